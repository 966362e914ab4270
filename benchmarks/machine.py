"""The machine that a benchmark ran on, in a line of its report; and the report."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

_TELLING = ("avx2", "avx512_f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16", "neon", "sve", "bf16")


def machine() -> str:
    """The CPU, what it has of the instructions that a step's time depends on, cores and threads, and the versions."""
    can = torch.cpu.get_capabilities()
    flags = " ".join(name for name in _TELLING if can.get(name)) or "none known"
    gpu = f"; {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return (
        f"{can.get('cpu_name') or platform.processor() or 'unknown CPU'} (instructions: {flags}; ATen uses "
        f"{torch.backends.cpu.get_cpu_capability()}){gpu}; {len(os.sched_getaffinity(0))} cores, {torch.get_num_threads()} threads; "
        f"Python {platform.python_version()}, PyTorch {torch.__version__}"
    )


def show_kernels(
    description: str | None,
    heads: Sequence[str],
    names: Iterable[str],
    row: Callable[[str, torch.dtype, int], str],
    *,
    precisions: Sequence[torch.dtype] = (torch.float32, torch.bfloat16),
) -> None:
    """Reports a table of kernels under its heads: for each precision a row of each name, by `row`, which is told how often to measure.

    The command line says threads, rounds and where the report goes.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    from triptych.engine.allocator import keep_freed_memory  # here: faults are tried in processes that have imported no part of triptych

    torch.set_num_threads(options.threads)
    keep_freed_memory()
    lines = [machine(), "", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    lines += [row(name, precision, options.rounds) for precision in precisions for name in names]
    show_report(lines, out=options.out)


def show_report(lines: Sequence[str], *, out: Path | None) -> None:
    """Prints a report; it also goes to the file `out`."""
    report = "\n".join(lines)
    print(report)
    if out is not None:
        out.write_text(report + "\n", encoding="utf-8")
