"""Trainings that the system gives too little memory: what they go on with, and what weights they end with.

    .venv/bin/python benchmarks/out_of_memory.py [--limits 1050,950,870] [--out FILE.md]

adm-digits takes five steps of 128 images within each limit of its address space, in MB (RLIMIT_AS; none: about 1150 are taken), and then
once more without a limit, from the start with the microbatch that was found. Goals: every training ends; the weights of both differ
by at most 1e-4 of their length (float32, whose sums have another order). Exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import machine
from safetensors.torch import load_file
from torch import Tensor

BATCH, STEPS, EQUAL = 128, 5, 1e-4
QUIET = ["--train.sample-count", "0", "--train.validate-images", "0", "--log.no-report", "--log.every", str(BATCH)]


def trained(run: Path, *settings: str, limit: int | None = None) -> tuple[int, str]:
    """The exit code and what was said, of a training of one thread that may have so many bytes of addresses."""
    bound = None if limit is None else functools.partial(resource.setrlimit, resource.RLIMIT_AS, (limit, limit))
    command = [sys.executable, "-m", "triptych", "train", "adm-digits", "--run", str(run), "--train.batch-size", str(BATCH)]
    command += ["--train.total-images", str(BATCH * STEPS), "--device", "cpu", *QUIET, *settings]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    done = subprocess.run(command, preexec_fn=bound, env=environment, capture_output=True, text=True)
    return done.returncode, done.stderr


def weights(run: Path) -> dict[str, Tensor]:
    """Those of the only checkpoint."""
    (checkpoint,) = (run / "checkpoints").iterdir()
    return load_file(checkpoint / "model.safetensors")


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The length of the difference of all weights, as a share of the length of the weights."""
    difference, length = (
        sum(float(tensor.double().square().sum()) for tensor in tensors) for tensors in ([a[n] - b[n] for n in b], b.values())
    )
    return (difference / length) ** 0.5


def row(folder: Path, limit: int) -> tuple[str, bool]:
    """The line of a limit, and whether it keeps the goals."""
    bound, free = folder / str(limit), folder / f"{limit}-free"
    code, said = trained(bound, limit=limit * 10**6)
    if code:
        return f"| {limit} MB | {code}: {said.splitlines()[-1]} | | |", False
    found = json.loads((bound / "config.json").read_text())["train"]["microbatch"] or BATCH
    trained(free, "--train.microbatch", str(found))
    difference = apart(weights(bound), weights(free))
    return f"| {limit} MB | 0 | {found} | {difference:.1e} |", difference <= EQUAL


def main() -> int:
    """Trains, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", default="1050,950,870")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(Path(folder), limit) for limit in map(int, given.limits.split(","))]
    lines = [f"# Too little memory, {datetime.date.today()}", "", machine(), ""]
    lines += [
        "| limit of addresses | exit code | images at once | length of the difference of the weights, of theirs |",
        "|---|---|---|---|",
    ]
    print(text := "\n".join([*lines, *(line for line, _ in rows), ""]))
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    return 0 if all(kept for _, kept in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
