"""The machine that a benchmark ran on, in a line of its report; and the report."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
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


def show_report(lines: Sequence[str], *, out: Path | None) -> None:
    """Prints a report; it also goes to the file `out`."""
    report = "\n".join(lines)
    print(report)
    if out is not None:
        out.write_text(report + "\n", encoding="utf-8")
