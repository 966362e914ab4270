"""Faults put into the code on purpose, one at a time: does a test notice each?

    python benchmarks/mutants.py [--only TEXT] [--seed 0] [--per-file 2] [--out FILE]
    python benchmarks/mutants.py --check

The faults are those of mutations.py, written by hand, and some that are made by rule (swapped arguments, changed constants, turned
comparisons, dropped calls) and drawn for each file by the seed. Each is applied in a copy of the repository, and the tests that
mutations.py names for its file run there until one fails, the quick ones first. For each file a process imports all that the tests do,
but for the file and what imports it, and is forked for each fault: so one costs little more than its tests. Prints what no test noticed;
ends with 1 where there is anything. --check says only which faults no longer fit the code, as tests/test_repository.py does.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import hypothesis  # noqa: F401  # as pytest does, once for all
import pytest
from machine import machine
from mutations import BY_HAND, EQUIVALENT, ROOT, TESTS, stale

SOURCE = Path("src/triptych")
TIME_LIMIT = 300.0  # seconds: a fault that makes a test wait for ever is noticed too, if the machine was not merely busy
_FOUND = ("noticed", "too slow")
_TIMED_OUT = b"Failed: Timeout (>"  # pytest-timeout's word for a test that was too slow
PYTEST = ("-x", "-q", "-p", "no:cacheprovider")
_TOGETHER = 4  # faults of a file in one process, at least, if there are so many: what it imports at first takes as long as two of them
_MARKS = "not slow and not gpu", "not gpu"  # which tests are run; the second where the files have none of the first


@cache
def text_of(file: str) -> str:
    """The file's text as it is when this is first asked."""
    return (ROOT / SOURCE / file).read_text()


@dataclass(frozen=True)
class Mutant:
    """One fault: in a file, the text from `start` to `end` replaced."""

    file: str
    start: int
    end: int
    new: str
    tests: tuple[str, ...]
    by_hand: bool = False

    def applied(self) -> str:
        """The file's text with the fault."""
        text = text_of(self.file)
        return text[: self.start] + self.new + text[self.end :]

    def lines(self) -> tuple[str, str]:
        """The lines that change, before and after."""
        text = text_of(self.file)
        first, last = text.rfind("\n", 0, self.start) + 1, text.find("\n", self.end)
        before = text[first:last]
        after = text[first : self.start] + self.new + text[self.end : last]
        return " ".join(before.split()), " ".join(after.split())


# Faults by rule -------------------------------------------------------------------------------------------------------------

_OPERATORS = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
_NAMES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "cos": "sin",
    "sin": "cos",
    "exp": "expm1",
    "zeros": "ones",
    "ones": "zeros",
}
_LEFT_OUT = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)


class _Rules:
    """All faults of one file: (start, end, new text)."""

    def __init__(self, text: str) -> None:
        self.text, self.found = text, []
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line.encode()))
        self._bytes = text.encode()
        self._visit(ast.parse(text))

    def _at(self, line: int, column: int) -> int:
        return len(self._bytes[: self._starts[line - 1] + column].decode())

    def _span(self, node: ast.AST) -> tuple[int, int]:
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def _between(self, left: ast.AST, right: ast.AST, operator: ast.AST) -> None:
        if type(operator) not in _OPERATORS:
            return
        old, new = _OPERATORS[type(operator)]
        start, end = self._span(left)[1], self._span(right)[0]
        place = self.text.find(old, start, end)
        if place >= 0:
            self.found.append((place, place + len(old), new))

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, _LEFT_OUT) or (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "require"):
            return
        if isinstance(node, ast.If) and any(isinstance(child, ast.Raise) for child in node.body):
            return  # a check; what is refused has tests of its own
        self._mutate(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases"):
                continue
            for child in value if isinstance(value, list) else (value,):
                if isinstance(child, ast.AST):
                    self._visit(child)

    def _mutate(self, node: ast.AST) -> None:
        if isinstance(node, ast.BinOp):
            self._between(node.left, node.right, node.op)
        elif isinstance(node, ast.Compare):
            self._between(node.left, node.comparators[0], node.ops[0])
        elif isinstance(node, ast.BoolOp):
            self._between(node.values[0], node.values[1], node.op)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            self.found.append((*self._span(node), self.text[slice(*self._span(node.operand))]))
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            value = node.value
            new = (not value) if isinstance(value, bool) else value + 1 if isinstance(value, int) else 2 * value or 1.0
            self.found.append((*self._span(node), repr(new)))
        elif isinstance(node, ast.AugAssign):
            self._between(node.target, node.value, node.op)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self.found.append((*self._span(node), "pass"))
        elif isinstance(node, ast.Call):
            self._call(node)

    def _call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            if node.func.attr in ("detach", "double", "float", "abs", "square", "sqrt", "flip", "t") and not node.args:
                self.found.append((self._span(node.func.value)[1], self._span(node)[1], ""))
            if node.func.attr in _NAMES:
                end = self._span(node.func)[1]
                self.found.append((end - len(node.func.attr), end, _NAMES[node.func.attr]))
        elif isinstance(node.func, ast.Name) and node.func.id in _NAMES:
            self.found.append((*self._span(node.func), _NAMES[node.func.id]))
        symmetric = getattr(node.func, "id", getattr(node.func, "attr", "")) in ("min", "max", "minimum", "maximum", "dot", "promote_types")
        if (
            len(node.args) >= 2
            and not symmetric
            and not isinstance(node.args[0], ast.Starred)
            and not isinstance(node.args[1], ast.Starred)
        ):
            (a, b), (c, d) = self._span(node.args[0]), self._span(node.args[1])
            self.found.append((a, d, self.text[c:d] + self.text[b:c] + self.text[a:b]))


def by_rule(file: str, *, seed: int, count: int) -> Iterator[Mutant]:
    """`count` faults of a file. Which ones depends on the seed and on the text of each line alone, not on where it stands."""
    text = text_of(file)
    drawn = []
    for start, end, new in _Rules(text).found:
        mutant = Mutant(file, start, end, new, TESTS[file])
        before, after = mutant.lines()
        if before == after or (file, before, after) in EQUIVALENT:
            continue
        drawn.append((hashlib.sha256(f"{seed} {file} {before} {after}".encode()).digest(), mutant))
    yield from (mutant for _, mutant in sorted(drawn, key=lambda pair: pair[0])[:count])


def by_hand() -> Iterator[Mutant]:
    """The faults of the table."""
    for file, old, new, *tests in BY_HAND:
        start = text_of(file).index(old)
        yield Mutant(file, start, start + len(old), new, tuple(tests) or TESTS[file], by_hand=True)


# Running them ---------------------------------------------------------------------------------------------------------------


class _QuickestFirst:
    """A plugin of pytest: of each file the quick tests come first, by the seconds that each took in an earlier run.

    Those that share what is made for their file come after the others, in their order. `make test` parts tests into processes alike.
    """

    def __init__(self, noted: Path) -> None:
        self.noted = noted
        lines = noted.read_text("utf-8").splitlines() if noted.exists() else []
        self.seconds = {test: float(seconds) for seconds, _, test in (line.partition(" ") for line in lines)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        files = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}
        together = {item: item.get_closest_marker("xdist_group") is not None for item in items}
        items.sort(key=lambda item: (files[item.path], together[item], 0.0 if together[item] else self.seconds.get(item.nodeid, 0.0)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.nodeid not in self.seconds:
            with self.noted.open("a", encoding="utf-8") as file:
                file.write(f"{report.duration:.3f} {report.nodeid}\n")


class Slot:
    """A copy of the repository in which one fault at a time is tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__", ".*_cache")
        for part in ("src", "tests", "docs", "benchmarks"):
            shutil.copytree(ROOT / part, folder / part, ignore=ignored)
        for file in ROOT.glob("*.*"):
            if file.is_file():
                shutil.copy(file, folder)
        self.process = 0
        self.told: Connection | None = None

    def start(self, mutants: list[Mutant]) -> None:
        """Begins to try faults of one file, in a fork of this process."""
        self.told, telling = multiprocessing.Pipe(duplex=False)
        self.process = os.fork()
        if self.process == 0:
            code = 1
            try:
                self._import_all_but(mutants)
                for mutant in mutants:
                    telling.send((mutant, *self._tried(mutant)))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)  # what is below on the stack is the parent's
        telling.close()

    def _import_all_but(self, mutants: list[Mutant]) -> None:
        """Imports what the tests import, but for the faults' module and whatever needs it: these are imported anew with each fault."""
        os.chdir(self.folder)
        os.environ["PYTHONPATH"] = str(self.folder / "src")
        sys.path[0:0] = [str(self.folder / "src"), str(self.folder)]
        name = ".".join(("triptych", *Path(mutants[0].file).with_suffix("").parts)).removesuffix(".__init__")
        importlib.import_module("tests.conftest")  # before any module whose shapes it has checked
        sys.modules[name] = None  # type: ignore[assignment]  # so all that imports it fails, and is not kept
        for test in dict.fromkeys(test.partition("::")[0] for mutant in mutants for test in mutant.tests):
            for node in ast.parse(Path(test).read_text("utf-8")).body:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    with suppress(ImportError):
                        exec(compile(ast.Module([node], []), test, "exec"), {"__package__": ".".join(Path(test).parent.parts)})
        del sys.modules[name]

    def _tried(self, mutant: Mutant) -> tuple[str, float]:
        """What became of the fault ("noticed", "too slow", "survived", or what went wrong), and the seconds that took."""
        began = time.monotonic()
        self._write(mutant.file, mutant.applied())
        process, found, status = os.fork(), 0, 0
        if process == 0:
            self._run(mutant)
        try:
            while not found and time.monotonic() - began < TIME_LIMIT:
                time.sleep(0.02)
                found, status = os.waitpid(process, os.WNOHANG)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
                if not found:
                    os.waitpid(process, 0)
                os.killpg(process, signal.SIGKILL)
            self._write(mutant.file, text_of(mutant.file))
        if not found or _TIMED_OUT in (self.folder / "log.txt").read_bytes():
            return "too slow", time.monotonic() - began
        code = os.waitstatus_to_exitcode(status)
        # Of files that are not there the check before says so.
        return {0: "survived", 3: "pytest failed", 5: "no tests"}.get(code, "noticed"), time.monotonic() - began

    def _write(self, file: str, text: str) -> None:
        path = self.folder / SOURCE / file
        path.write_text(text)
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()  # Python trusts it where size and time of the source are the same

    def _run(self, mutant: Mutant) -> None:
        os.setsid()
        log = os.open(self.folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        code, order = 1, _QuickestFirst(self.folder.parent / "seconds.txt")
        try:
            for marks in _MARKS:
                code = pytest.main([*PYTEST, "-m", marks, f"--basetemp={self.folder / 'tmp'}", *mutant.tests], [order])
                if code != pytest.ExitCode.NO_TESTS_COLLECTED:
                    break
        finally:
            os._exit(code)  # even of a signal that a fault let through


def run(mutants: list[Mutant], *, processes: int) -> Iterator[tuple[Mutant, str, float]]:
    """Each fault, what became of it, and the seconds that took."""
    by_file = {file: [mutant for mutant in mutants if mutant.file == file] for file in dict.fromkeys(mutant.file for mutant in mutants)}
    parts = [(some, min(processes, -(-len(some) // _TOGETHER))) for some in by_file.values()]
    waiting = [some[k::count] for some, count in parts for k in range(count)][::-1]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        slots = [Slot(Path(folder) / str(k)) for k in range(processes)]
        while waiting or any(slot.told for slot in slots):
            for slot in slots:
                if slot.told is None and waiting:
                    slot.start(waiting.pop())
            telling = wait([slot.told for slot in slots if slot.told])
            for slot in slots:
                if slot.told in telling:
                    try:
                        yield slot.told.recv()
                    except EOFError:
                        if os.waitpid(slot.process, 0)[1] != 0:
                            raise RuntimeError("not all faults were tried: see above") from None
                        slot.told = None


def main() -> int:
    """Prints what no test noticed, and a table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose file or text has this alone")
    parser.add_argument("--seed", type=int, default=0, help="which faults are drawn for each file")
    parser.add_argument("--per-file", type=int, default=2, help="faults by rule in each file; 0: those by hand alone")
    parser.add_argument("--unchecked", action="store_true", help="do not first run the tests without a fault")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="the table goes there as well, as Markdown")
    parser.add_argument("--check", action="store_true", help="only say which faults no longer fit the code")
    options = parser.parse_args()
    assert not any(name.split(".")[0] == "triptych" for name in sys.modules), "the faults' tests would run without them"
    if misfits := list(stale()):
        print(*misfits, "mend these in benchmarks/mutations.py", sep="\n")
        return 1
    if options.check:
        print(f"all {len(BY_HAND)} faults by hand fit the code")
        return 0
    mutants = list(by_hand()) + [m for file in TESTS for m in by_rule(file, seed=options.seed, count=options.per_file)]
    chosen = [m for m in mutants if any(options.only in part for part in (m.file, *m.lines()))]

    tests = [] if options.unchecked else dict.fromkeys(test for mutant in chosen for test in mutant.tests)
    unchanged = [replace(chosen[0], end=chosen[0].start, new="", tests=(test,)) for test in tests]
    for mutant, result, seconds in run(unchanged, processes=options.processes):
        if result != "survived":
            print(f"without any fault, {' '.join(mutant.tests)}: {result} after {seconds:.0f} s")
            return 1
    counts, left, slow, began = Counter(), [], [], time.monotonic()
    for mutant, result, seconds in run(chosen, processes=options.processes):
        part = mutant.file.split("/")[0]
        counts[part, "all"] += 1
        counts[part, result if result in _FOUND else "survived"] += 1
        if result != "noticed":
            before, after = mutant.lines()
            (left if result not in _FOUND else slow).append(f"{result}: {mutant.file}\n    - {before}\n    + {after}\n")
            print(f"{(slow if result in _FOUND else left)[-1]}    ({seconds:.0f} s)", flush=True)
    parts = dict.fromkeys(part for part, _ in counts)
    rows = [f"| {part} | {counts[part, 'all']} | {counts[part, 'too slow']} | {counts[part, 'survived']} |" for part in parts]
    table = ["| folder | faults | noticed by a test's time alone | not noticed |", "|---|---|---|---|", *rows]
    table.append(f"| all | {len(chosen)} | {len(slow)} | {len(left)} |")
    told = f"{sum(m.by_hand for m in chosen)} by hand, the others by rule with seed {options.seed}; {time.monotonic() - began:.0f} s"
    report = "\n".join((*table, "", told, machine(), *left, *slow))
    print(report)
    if options.out:
        options.out.write_text(report + "\n")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
