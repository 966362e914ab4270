"""Seconds until `triptych --help` and `triptych recipes` have answered: the median of ten processes each.

    .venv/bin/python benchmarks/startup.py

The bounds are 0.3 s for the help and 0.5 s for the recipes; the exit code is 1 when one is missed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

PROCESSES = 10
BOUNDS = {("--help",): 0.3, ("recipes",): 0.5}


def seconds(command: list[str]) -> float:
    """The wall-clock time of one process."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> int:
    """Prints a line for each command; 1 when one is slower than its bound."""
    program = Path(sys.executable).with_name("triptych")
    missed = False
    for arguments, bound in BOUNDS.items():
        times = [seconds([str(program), *arguments]) for _ in range(PROCESSES)]
        median = statistics.median(times)
        missed |= median > bound
        print(f"triptych {' '.join(arguments):8}  median {median:.3f} s  range {min(times):.3f} to {max(times):.3f} s  bound {bound} s")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
