"""The shape of the code in numbers, of one tree or of several beside each other.

    python benchmarks/structure.py --tree TREE [--tree TREE2] [--out FILE.md]

A tree is a checkout of the repository. What is counted:

- lines: of files, whole; of functions, without their docstring.
- layers: those of the import rules in the tree's pyproject.toml.
- passing through files: the tree's functions that a command calls, in the order in which they start, without imports and without
  `__torch_function__`, which PyTorch calls at every operation. A change is from one file to another; a climb is a change to a file in a
  higher layer; a call upwards is of a function whose caller lies in a lower layer. One training step is what a run of 4 steps has more
  than one of 3.
- import time: processor time of a process that imports what trains and opens a run from triptych.runs, the median of 5.
- shapes: of the public functions and methods with Tensor in the signature, those whose docstring or annotations name a shape.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from machine import machine
from tiny_runs import environment, require_tree, run_line, write_data

LONG_FILE, LONG_FUNCTION = 400, 50
"""The guide of CONTRIBUTING.md."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Row = tuple[str, str]


# The source --------------------------------------------------------------------------------------------------------------


@dataclass
class Source:
    """The modules of a tree."""

    root: Path
    modules: dict[str, ast.Module] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: Path) -> Source:
        """Reads every module."""
        source = cls(tree / "src/triptych")
        for path in sorted(source.root.rglob("*.py")):
            text, name = path.read_text("utf-8"), path.relative_to(source.root).as_posix()
            source.modules[name], source.lines[name] = ast.parse(text), len(text.splitlines())
        return source

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Every function with where it is, those inside others too."""
        for name, module in self.modules.items():
            yield from ((f"{name} {node.name}", node) for node in ast.walk(module) if isinstance(node, Function))

    def public(self) -> Iterator[ast.AST]:
        """Public functions, classes and methods of public classes."""
        for module in self.modules.values():
            yield from _public(module.body)


def _public(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for node in body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body)


def length(function: Function) -> int:
    """Lines of a function without its docstring."""
    end = function.end_lineno or function.lineno
    text = function.body[0] if ast.get_docstring(function, clean=False) is not None else None
    return end - function.lineno + 1 - (0 if text is None else (text.end_lineno or text.lineno) - text.lineno + 1)


_LENGTH = r"(?:\.\.\.|\w{1,12})(?: ?[*/+-] ?\w{1,12}| or \w{1,12})*"
SHAPE = re.compile(rf"\((?:{_LENGTH},)(?: {_LENGTH},?)*\)|\bshapes?\b|\[b, | scalar")
"""A shape in words: (b, c, h, w), (b,), or "of shape"."""
TYPED_SHAPE = re.compile(r"""(?:Float|Float32|Float64|Int|Int64|Bool|Shaped|UInt8|Num)\[[\w.]+, ['"]""")


def takes_tensors(function: Function) -> bool:
    """Whether a Tensor, typed with its shape or not, is among the arguments or comes back."""
    return "Tensor" in signature(function)


def signature(function: Function) -> str:
    """The arguments and what comes back."""
    return ast.unparse(function.args) + ("" if function.returns is None else ast.unparse(function.returns))


def names_shape(function: Function) -> bool:
    """Whether its docstring or its annotations name one."""
    return bool(SHAPE.search(ast.get_docstring(function) or "") or TYPED_SHAPE.search(signature(function)))


def share(part: int, whole: int) -> str:
    """Both numbers and the percentage."""
    return f"{part} of {whole} ({100 * part / whole:.0f} %)"


def longest(sizes: dict[str, int], count: int, limit: int) -> str:
    """The largest, by name; then how many are above the limit."""
    top = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:count]
    return f"{', '.join(f'{name} {size}' for name, size in top)}; over {limit}: {sum(size > limit for size in sizes.values())}"


def source_rows(tree: Path) -> list[Row]:
    """What is read from the source alone."""
    source = Source.of(tree)
    packages: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for name, lines in source.lines.items():
        package = name.partition("/")[0] if "/" in name else "(top)"
        packages[package] += lines
        counts[package] += 1
    functions = {name: length(node) for name, node in source.functions()}
    public = list(source.public())
    tensors = [node for node in public if isinstance(node, Function) and takes_tensors(node)]
    documented = sum(ast.get_docstring(node) is not None for node in public if isinstance(node, ast.ClassDef | Function))
    rows = [
        ("modules", f"{len(source.modules):,}"),
        ("lines", f"{sum(source.lines.values()):,}"),
        *((f"lines of {name}", f"{packages[name]:,} in {counts[name]}") for name in sorted(packages)),
        ("functions", f"{len(functions):,}, median {statistics.median(functions.values()):.0f} lines"),
        ("longest files", longest(source.lines, 8, LONG_FILE)),
        ("longest functions", longest(functions, 8, LONG_FUNCTION)),
        ("public functions, methods and classes with a docstring", share(documented, len(public))),
        ("with Tensors in the signature that name a shape", share(sum(map(names_shape, tensors)), len(tensors))),
    ]
    rules = import_rules(tree)
    of_layers, of_others = (
        sum(len(rule.get("ignore_imports", ())) for rule in rules if (rule["type"] == "layers") is kind) for kind in (True, False)
    )
    return [*rows, ("exceptions to the layers (ignore_imports)", f"{of_layers}; to the other rules: {of_others}")]


def import_rules(tree: Path) -> list[dict[str, Any]]:
    """What import-linter is told of the tree."""
    return tomllib.loads((tree / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]


# Passing through files ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trip:
    """What a command's calls passed through."""

    calls: Counter[str]
    changes: int
    climbs: int
    upward: int
    builds: int
    "How often a model was made."

    def minus(self, other: Trip) -> Trip:
        """What this command had more than the other."""
        return Trip(self.calls - other.calls, self.changes - other.changes, self.climbs - other.climbs, self.upward - other.upward, 0)

    def __str__(self) -> str:
        return f"{len(self.calls)} files, {self.changes:,} changes, {self.climbs:,} climbs, {self.upward:,} calls upwards"


def ranks(tree: Path) -> dict[str, int]:
    """The height of each package in the tree's layers."""
    layers = next(rule["layers"] for rule in import_rules(tree) if rule["type"] == "layers")
    return {name.strip(" ()"): height for height, layer in enumerate(reversed(layers)) for name in re.split(r"[|:]", layer)}


class Tracer:
    """Follows the functions of one tree that run in this thread; imports are left out."""

    def __init__(self, tree: Path) -> None:
        self.root = str(tree.resolve() / "src/triptych") + os.sep
        self.ranks = ranks(tree)
        self.calls: Counter[str] = Counter()
        self.changes = self.climbs = self.upward = self.builds = 0
        self.importing = 0
        self.last: str | None = None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code.co_name == "<module>" and event in ("call", "return"):
            self.importing += 1 if event == "call" else -1
        elif event == "call" and self.importing == 0 and code.co_filename.startswith(self.root) and code.co_name != "__torch_function__":
            self.passed(frame, code.co_filename.removeprefix(self.root))

    def passed(self, frame: FrameType, file: str) -> None:
        """Counts a call of a function of that file."""
        self.calls[file] += 1
        if self.last is not None and file != self.last:
            self.changes += 1
            self.climbs += self.rank(file) > self.rank(self.last)
        self.last = file
        caller = self.caller(frame)
        self.upward += caller is not None and self.rank(file) > self.rank(caller)
        self.builds += frame.f_code.co_name == "__init__" and is_model(frame)

    def caller(self, frame: FrameType) -> str | None:
        """The file of the nearest caller that is the tree's."""
        above = frame.f_back
        while above is not None and not above.f_code.co_filename.startswith(self.root):
            above = above.f_back
        return None if above is None else above.f_code.co_filename.removeprefix(self.root)

    def rank(self, file: str) -> int:
        """The height of the file's layer; what lies beside the packages is above all."""
        return self.ranks.get(file.partition("/")[0], len(self.ranks))


def is_model(frame: FrameType) -> bool:
    """Whether a frame is the start of making a model, not of one of its bases or parts."""
    kind = type(frame.f_locals.get("self"))
    if not any((base.__module__, base.__qualname__) == ("triptych.core.model", "Model") for base in kind.__mro__):
        return False
    return getattr(kind.__init__, "__code__", None) is frame.f_code


def trace_child(tree: Path, words: list[str], out: Path) -> None:
    """Runs a command line in this process and writes what its calls passed through."""
    require_tree(tree)
    tracer = Tracer(tree)
    tracer.importing = -1  # running the command's own module is no import
    sys.setprofile(tracer)
    try:
        run_line(words)
    finally:
        sys.setprofile(None)
        found = {
            "calls": tracer.calls,
            "changes": tracer.changes,
            "climbs": tracer.climbs,
            "upward": tracer.upward,
            "builds": tracer.builds,
        }
        out.write_text(json.dumps(found))


_QUIET = "--device cpu --data.workers 0 --train.sample-count 0 --train.validate-images 0 --log.every 1000000"
_TRAIN = {
    "adm-digits": f"train adm-digits --run NAME {_QUIET} --train.batch-size 8 --train.precision float32 --train.total-images",
    "unit-mnist": f"train unit-mnist --run NAME {_QUIET} --data.path ../data --data.a images_a.npz --data.b images_b.npz "
    "--model.generator.num-filters 4 --model.discriminator.num-filters 8 --train.batch-size 8 --train.total-images",
}
_USES = {
    "`sample`, 4 images in a grid": "sample adm-digits-4 --device cpu --count 4 --steps 4 --out grid.png",
    "`translate`, 2 files": "translate unit-mnist-4 ../data/two --device cpu --out made",
}


def trip_rows(tree: Path, scratch: Path) -> list[Row]:
    """What training, sampling and translating pass through."""
    folder = scratch / tree.resolve().as_posix().replace("/", "_")
    folder.mkdir()
    rows: list[Row] = []
    for recipe, command in _TRAIN.items():
        three, four = (trip(tree, f"{command.replace('NAME', f'{recipe}-{steps}')} {8 * steps}", folder) for steps in (3, 4))
        rows += [(f"one training step of {recipe}", str(four.minus(three))), (f"`train {recipe}`, 4 steps", str(four))]
    for name, command in _USES.items():
        found = trip(tree, command, folder)
        rows += [(name, str(found)), (f"{name.partition(',')[0]} makes the model", f"{found.builds} times")]
    return rows


def trip(tree: Path, command: str, folder: Path) -> Trip:
    """What a command line passes through, in a process of its own."""
    out = folder / "trip.json"
    words = [sys.executable, __file__, "--tree", str(tree.resolve()), "--trace", str(out), *command.split()]
    done = subprocess.run(words, cwd=folder, env=environment(tree), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"triptych {command} in {tree} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    found = json.loads(out.read_text())
    return Trip(Counter(found.pop("calls")), **found)


def processor_seconds(tree: Path, code: str) -> float:
    """Of a process that runs the code."""
    before = os.times()
    subprocess.run([sys.executable, "-c", code], env=environment(tree), check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def import_rows(trees: list[Path]) -> list[list[Row]]:
    """For each tree the import time of triptych.runs, the trees in turns."""
    times: list[list[float]] = [[] for _ in trees]
    torch: list[float] = []
    for _ in range(5):
        torch.append(processor_seconds(trees[0], "import torch"))
        for tree, found in zip(trees, times, strict=True):
            found.append(processor_seconds(tree, "from triptych.runs import open_run, train"))
    alone = f"PyTorch alone: {statistics.median(torch):.2f}"
    return [[("import of open_run and train from triptych.runs, CPU s", f"{statistics.median(found):.2f} ({alone})")] for found in times]


# The report --------------------------------------------------------------------------------------------------------------


def table(trees: list[Path], columns: list[list[Row]]) -> str:
    """A row for everything that any tree has."""
    names = list(dict.fromkeys(name for column in columns for name, _ in column))
    known = [dict(column) for column in columns]
    lines = [f"# The shape of the code, {datetime.date.today().isoformat()}", "", f"{machine()}.", ""]
    lines += [f"| | {' | '.join(tree.resolve().name for tree in trees)} |", f"|{'---|' * (len(trees) + 1)}"]
    lines += [f"| {name} | {' | '.join(values.get(name, '') for values in known)} |" for name in names]
    return "\n".join(lines)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, action="append", required=True, help="a checkout; more than once for a column each")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    parser.add_argument("--trace", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trace:
        trace_child(options.tree[0], options.trace[1:], Path(options.trace[0]))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        write_data(Path(scratch) / "data")
        columns = [source_rows(tree) + trip_rows(tree, Path(scratch)) for tree in options.tree]
    columns = [column + times for column, times in zip(columns, import_rows(options.tree), strict=True)]
    text = table(options.tree, columns)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
