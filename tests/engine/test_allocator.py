"""What the C library does with memory that is freed."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

_CODE = """
import resource, sys, torch
from triptych.engine.allocator import keep_freed_memory
keep_freed_memory(keep=sys.argv[1] == "True")
for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(2**26) for _ in range(5)]  # 1.25 GiB
    del blocks
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults * resource.getpagesize() / 2**30)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no such setting")
@pytest.mark.parametrize("keep", [True, False])
def test_what_a_step_frees_is_there_for_the_next(keep: bool) -> None:
    """More than 1 GiB too, which glibc was once told to return. It prints the pages that the last of several steps faulted in, in GiB."""
    done = subprocess.run([sys.executable, "-c", _CODE, str(keep)], capture_output=True, text=True, timeout=120, check=True)
    assert (float(done.stdout) < 0.1) == keep, done
