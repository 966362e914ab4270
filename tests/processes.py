"""Starting torchrun on this machine, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def torchrun(processes: int, *arguments: str) -> list[str]:
    """The command that starts `processes` of a program; "-m", "--" and a module, or a file, and its arguments follow."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *arguments]


def environment() -> dict[str, str]:
    """One thread for each process, the tests' own modules, and the source beside them."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}


def run_torchrun(processes: int, *arguments: str, timeout_seconds: float = 240) -> subprocess.CompletedProcess[str]:
    """The finished torchrun."""
    command = torchrun(processes, *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, env=environment(), cwd=ROOT, check=False)
