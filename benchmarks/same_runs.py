"""Whether a change of the code's structure changed a result: tiny runs by the tree before it and the tree after it, compared bit for bit.

    python benchmarks/same_runs.py --before TREE --after TREE [--out FILE.md]

A tree is a checkout of the repository. For a run of every kind of model (tiny_runs.py), by the command line, on one thread:

- each tree trains 20 steps: configuration, weights, averages, optimizer, state and metrics after 10 and after 20 are compared;
- each tree opens the run that BEFORE trained: the files that it samples, translates, encodes, evaluates and exports are compared;
- AFTER goes on with BEFORE's run from its 10th step, and has to end where BEFORE ended.

Exit code 1 when anything differs or fails. A tensor that AFTER no longer keeps on purpose is named by --dropped, a setting that it has
more or no longer by --setting. It takes some three minutes of processor time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from machine import machine
from tiny_runs import TINY, Tiny, run_lines, write_data

TIMING = {"time", "images_per_second", "memory_bytes", "seconds"}
HASHES = {"files", "digest"}
"""Of a checkpoint; they follow from its tensors."""
REQUEST = "request"
"""In the record that a folder of outputs keeps: a hash of the command's settings, by which a version knows its own half-done work."""


@dataclass(frozen=True)
class Expected:
    """Differences that are meant."""

    dropped: frozenset[str]
    settings: frozenset[str]


@dataclass(frozen=True)
class Outcome:
    """One comparison: what was compared, and in what it differs."""

    compared: str
    differences: list[str]

    def __str__(self) -> str:
        if not self.differences:
            return f"same: {self.compared}"
        more = f" and {len(self.differences) - 3} more" if len(self.differences) > 3 else ""
        return f"DIFFERS: {', '.join(self.differences[:3])}{more}"


# What a run is -----------------------------------------------------------------------------------------------------------


def tensors(file: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Type, shape and bytes of every tensor of a safetensors file."""
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = {name: entry for name, entry in json.loads(data[8:start]).items() if name != "__metadata__"}
    parts = {name: (start + entry["data_offsets"][0], start + entry["data_offsets"][1]) for name, entry in header.items()}
    return {name: (entry["dtype"], tuple(entry["shape"]), data[slice(*parts[name])]) for name, entry in header.items()}


def checkpoint(folder: Path) -> dict[str, Any]:
    """Everything in a checkpoint by name, without its hashes."""
    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= {f"{folder.name}/{file.stem}/{name}": value for name, value in tensors(file).items()}
    state = {name: value for name, value in json.loads((folder / "state.json").read_text()).items() if name not in HASHES}
    return found | flat(state, f"{folder.name}/state")


def flat(value: Any, name: str) -> dict[str, Any]:
    """The leaves of nested dictionaries by their path."""
    if not isinstance(value, dict):
        return {name: value}
    return {path: leaf for key, part in value.items() for path, leaf in flat(part, f"{name}.{key}").items()}


def metrics(run: Path) -> dict[str, Any]:
    """Every value that was logged, without times; lines that a resume made void are left out."""
    lines: list[dict[str, Any]] = []
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        if "resumed_at" in line:
            lines = [earlier for earlier in lines if earlier["images"] <= line["resumed_at"]]
        else:
            lines.append(line)
    return {f"line {k}: {name}": value for k, line in enumerate(lines) for name, value in line.items() if name not in TIMING}


def files(folder: Path) -> dict[str, Any]:
    """Every file in a folder by its path: its bytes, or the values in a JSON file without times and request."""
    paths = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: untimed(path) if path.suffix == ".json" else path.read_bytes() for name, path in paths.items()}


def untimed(file: Path) -> dict[str, Any]:
    """The values of a JSON file by their path in it."""
    values = flat(json.loads(file.read_text()), "")
    return {name: value for name, value in values.items() if name.rpartition(".")[2] not in {*TIMING, REQUEST}}


def trained(run: Path, *, only: str = "*") -> dict[str, Any]:
    """What a training leaves: checkpoints, metrics and grids."""
    kept = sorted(path for path in (run / "checkpoints").glob(only) if path.name.isdecimal())
    found = {name: value for folder in kept for name, value in checkpoint(folder).items()}
    return found | metrics(run) | {f"samples/{name}": data for name, data in files(run / "samples").items()}


def settings(run: Path) -> dict[str, Any]:
    """The settings in a run's config.json."""
    return flat(json.loads((run / "config.json").read_text()), "config")


# Comparing ---------------------------------------------------------------------------------------------------------------


def compare(before: dict[str, Any], after: dict[str, Any], expected: Expected) -> list[str]:
    """Names of what differs."""
    missing = [f"{name} is missing" for name in before.keys() - after.keys() if not meant(name, expected)]
    more = [f"{name} is new" for name in after.keys() - before.keys() if not meant(name, expected)]
    return [*sorted(missing), *sorted(more), *(name for name, value in before.items() if name in after and after[name] != value)]


def meant(name: str, expected: Expected) -> bool:
    """Whether that it is there in one tree alone is no difference."""
    path = name.removeprefix("config.")
    inside = any(path == setting or path.startswith(f"{setting}.") for setting in expected.settings)
    return name.rpartition("/")[2] in expected.dropped or inside


def outcome(failed: str | None, parts: Callable[[], tuple[dict[str, Any], dict[str, Any]]], what: str, expected: Expected) -> Outcome:
    """The comparison of two dictionaries, or the last line of the command that failed."""
    if failed:
        return Outcome("", [f"FAILED: {failed.strip().splitlines()[-1][:300]}"])
    before, after = parts()
    return Outcome(f"{len(before)} {what}", compare(before, after, expected))


def check(tiny: Tiny, root: Path, after: Path, expected: Expected) -> list[Outcome]:
    """Trains, opens and resumes with AFTER; BEFORE has trained and used its run already."""
    end = f"{tiny.images:09d}"
    old, new, opened, resumed = (root / place / tiny.name for place in ("before", "after", "opened", "resumed"))
    own = run_lines(after, [tiny.train()], folder=new.parent)
    use = run_lines(after, tiny.use(), folder=opened.parent)
    shutil.copytree(old, resumed)
    shutil.rmtree(resumed / "checkpoints" / end)
    on = run_lines(after, [tiny.train()], folder=resumed.parent)
    judged = partial(outcome, expected=expected)
    return [
        judged(own, lambda: (settings(old), settings(new)), "settings"),
        judged(own, lambda: (trained(old), trained(new)), "tensors, values and grids"),
        judged(use, lambda: (files(root / "before/out" / tiny.name), files(root / "opened/out" / tiny.name)), "files"),
        judged(on, lambda: (trained(old, only=end), trained(resumed, only=end)), "tensors, values and grids"),
    ]


def run_before(tiny: Tiny, root: Path, before: Path) -> None:
    """Trains with BEFORE, keeps a copy of the run for AFTER to open, and uses the run."""
    folder = root / "before"
    for lines in ([tiny.train()], tiny.use()):
        failed = run_lines(before, lines, folder=folder)
        if failed:
            raise SystemExit(f"{before} fails:\n{failed[-3000:]}")
        if not (root / "opened" / tiny.name).exists():
            shutil.copytree(folder / tiny.name, root / "opened" / tiny.name)


# The report --------------------------------------------------------------------------------------------------------------


def report(results: dict[str, list[Outcome]], before: Path, after: Path, *, good: bool) -> str:
    """The table and the verdict."""
    rows = [f"| {name} | {' | '.join(map(str, outcomes))} |" for name, outcomes in results.items()]
    return "\n".join(
        [
            f"# The same runs before and after, {datetime.date.today().isoformat()}",
            "",
            f"Before: {described(before)}; after: {described(after)}. {machine()}; one thread.",
            "",
            "| run | config.json | trained 20 steps | BEFORE's run used by AFTER | BEFORE's run resumed by AFTER at step 10 |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "Nothing differs." if good else "SOMETHING DIFFERS.",
        ]
    )


def described(tree: Path) -> str:
    """The commit of a tree, and whether it was changed since."""
    git = partial(subprocess.run, cwd=tree, capture_output=True, text=True, check=False)
    commit = git(["git", "rev-parse", "--short=12", "HEAD"]).stdout.strip() or "no commit"
    return commit + (" with changes" if git(["git", "status", "--porcelain", "src"]).stdout.strip() else "")


def main() -> int:
    """Prints the table; 1 when something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, metavar="TREE", help="checkout of the code before the change")
    parser.add_argument("--after", type=Path, required=True, metavar="TREE", help="checkout of the code after it")
    parser.add_argument("--only", nargs="+", choices=[tiny.name for tiny in TINY], help="these runs alone")
    parser.add_argument("--dropped", nargs="+", default=[], metavar="TENSOR", help="tensors that one of the trees lacks on purpose")
    parser.add_argument("--setting", nargs="+", default=[], metavar="NAME", help="settings that one of the trees lacks on purpose")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    expected = Expected(frozenset(options.dropped), frozenset(options.setting))
    # The classifier guides the first.
    chosen = [tiny for tiny in TINY if tiny is TINY[0] or options.only is None or tiny.name in options.only]
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        write_data(root / "data")
        for place in ("before", "after", "opened", "resumed"):
            (root / place).mkdir()
        results: dict[str, list[Outcome]] = {}
        for tiny in chosen:
            run_before(tiny, root, options.before)
            results[tiny.name] = check(tiny, root, options.after, expected)
            print(f"{tiny.name}: {'; '.join(map(str, results[tiny.name]))}", flush=True)
    good = not any(result.differences for outcomes in results.values() for result in outcomes)
    text = report(results, options.before, options.after, good=good)
    print(f"\n{text}")
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
