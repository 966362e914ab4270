"""The test suite as other kinds of CPU would run it: with other kernels, other numbers of threads, and other rounding.

Every factor is turned once around the default, and the lowest kernels come together with the most threads; other combinations of
factors that do not touch one another are left out. `rounding` is a machine that there is not: see tests/other_rounding.py.
A run on this machine's own kernels alone is `make test`.

    python benchmarks/test_matrix.py --out benchmarks/results/test_matrix-DATE.md
    python benchmarks/test_matrix.py --only avx2 rounding -- tests/gans -k batch
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from machine import machine

ROOT = Path(__file__).resolve().parents[1]
ONEDNN, ATEN, THREADS = "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "TEST_THREADS"
MACHINES: dict[str, dict[str, str]] = {
    "default": {},
    "onednn-avx512": {ONEDNN: "AVX512_CORE"},
    "onednn-avx2": {ONEDNN: "AVX2"},
    "onednn-sse41": {ONEDNN: "SSE41"},
    "aten-avx2": {ATEN: "avx2"},
    "aten-default": {ATEN: "default"},
    "threads-2": {THREADS: "2"},
    "threads-4": {THREADS: "4"},
    "lowest": {ONEDNN: "SSE41", ATEN: "default", THREADS: "4"},
    "rounding": {"PYTEST_ADDOPTS": "-p tests.other_rounding"},
}
"""What is set in the environment of the suite, by the name of the machine."""


@dataclass(frozen=True)
class Outcome:
    """What pytest said at its end, how long it took, and which tests failed and why."""

    name: str
    summary: str
    minutes: float
    failed: tuple[str, ...]


def tested(name: str, arguments: list[str]) -> Outcome:
    """The suite, or what of it the arguments select, on a machine."""
    started = time.monotonic()
    threads = MACHINES[name].get(THREADS, "1")
    paths = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    # More threads than cores, which spin while they wait, would take most of the time from one another.
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE"} | MACHINES[name]
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-q", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    failed = tuple(re.findall(r"^(?:FAILED|ERROR) (.+)", done.stdout, flags=re.MULTILINE))
    summary = (done.stdout.strip().splitlines() or [f"exit code {done.returncode}: {done.stderr.strip()[-200:]}"])[-1]
    return Outcome(name, summary, (time.monotonic() - started) / 60, failed or (() if done.returncode == 0 else ("pytest itself",)))


def report(outcomes: list[Outcome], arguments: list[str]) -> str:
    """The outcomes as a page, with this machine."""
    lines = [
        f"# The test suite on simulated machines, {datetime.date.today().isoformat()}",
        "",
        f"{machine()}. Two processes of pytest. Selected: {' '.join(arguments) or 'all tests'}.",
        "",
        "| machine | environment | outcome | minutes |",
        "|---|---|---|---|",
    ]
    for outcome in outcomes:
        settings = " ".join(f"{key}={value}" for key, value in MACHINES[outcome.name].items())
        lines.append(f"| {outcome.name} | {settings} | {outcome.summary} | {outcome.minutes:.1f} |")
    failed = [f"- {outcome.name}: {test}" for outcome in outcomes for test in outcome.failed]
    return "\n".join([*lines, "", *(failed or ["All of them passed."])])


def main() -> int:
    """0, or 1 where a test failed on any machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(MACHINES), default=list(MACHINES), help="some of the machines")
    parser.add_argument("--out", type=Path, help="where the report is written")
    given = sys.argv[1:]
    split = given.index("--") if "--" in given else len(given)
    options, arguments = parser.parse_args(given[:split]), given[split + 1 :]
    outcomes: list[Outcome] = []
    for name in options.only:
        outcomes.append(tested(name, arguments))
        print(f"{name}: {outcomes[-1].summary}", *outcomes[-1].failed, sep="\n  ", flush=True)
        if options.out:  # after every one, for all of them take half an hour
            options.out.write_text(report(outcomes, arguments) + "\n", encoding="utf-8")
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
