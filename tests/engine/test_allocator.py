"""What the C library does with memory that is freed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

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
    small = os.environ | {"THP_MEM_ALLOC_ENABLE": "0"}  # a large page is one fault
    done = subprocess.run([sys.executable, "-c", _CODE, str(keep)], env=small, capture_output=True, text=True, timeout=120, check=True)
    assert (float(done.stdout) < 0.1) == keep, done


_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_LARGE = """
import torch, triptych.recipes.catalogue, triptych.runs
x = torch.ones(2**24)
print(*(line.split()[1] for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHugePages")))
"""


@pytest.mark.skipif(not _PAGES.exists() or "[madvise]" not in _PAGES.read_text(), reason="large pages are not given on request here")
@pytest.mark.parametrize("wanted", [None, "0"])
def test_large_tensors_lie_in_large_pages(wanted: str | None) -> None:
    """Unless the user says otherwise. It prints kilobytes in such pages; the tensor has 65,536."""
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    environment |= {} if wanted is None else {"THP_MEM_ALLOC_ENABLE": wanted}
    done = subprocess.run([sys.executable, "-c", _LARGE], env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert (int(done.stdout) > 2**15) == (wanted is None), done
