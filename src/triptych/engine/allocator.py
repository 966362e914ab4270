"""The C library's allocator, told to keep memory between steps, and what returns kept memory.

glibc returns every large buffer to the system when it is freed and faults it in again at the next step; on a CPU that costs
10 to 15 % of a training step. What is kept lies in pieces between others that are in use. So where memory is short, nothing is kept.
"""

from __future__ import annotations

import ctypes
import gc
import sys

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEEP = {_M_TRIM_THRESHOLD: (-1,), _M_MMAP_THRESHOLD: (1 << 30, 1 << 25)}  # -1: never; older versions of glibc refuse more than 32 MiB
_RETURN = dict.fromkeys(_KEEP, (1 << 17,))  # bytes, as glibc begins; it raises them by itself where it is not told


def keep_freed_memory(*, keep: bool = True) -> bool:
    """Raises glibc's mmap and trim thresholds for this process, or lowers them; False where the C library has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is None:
        return False
    sizes = _KEEP if keep else _RETURN
    return all(any(mallopt(setting, size) == 1 for size in sizes[setting]) for setting in sizes)


def return_freed_memory(device: torch.device) -> None:
    """Gives memory that is kept for later back to the system, or to the GPU: in other pieces it may suffice."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is not None:
        trim(0)
