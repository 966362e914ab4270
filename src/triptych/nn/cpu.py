"""What kind of CPU this is, and whether what is computed faster another way is computed so.

Which way is the fastest follows from the kind of CPU, never from a measurement, so that a resume is exact.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@functools.cache
def vectors() -> str:
    """The widest vectors of the CPU that PyTorch uses: "AVX2", "AVX512" or another name."""
    return torch.backends.cpu.get_cpu_capability()


@functools.cache
def multiplies_fast() -> bool:
    """Whether the CPU is AMD's Zen 5: its convolutions run at twice the rate of other CPUs with AVX-512, and its memory does not."""
    can = _capabilities()
    return bool(can.get("avx512_vp2intersect") and can.get("avx512_bf16"))  # Intel's have one or the other


@functools.cache
def multiplies_in_halves() -> bool:
    """Whether the CPU is AMD's Zen 4, which computes vectors of 512 bits in two halves: no faster than with AVX2."""
    can = _capabilities()
    intel = can.get("avx512_fp16") or not can.get("avx512_vbmi2")  # of Intel's with bf16 each is one or the other
    return bool(can.get("avx512_bf16") and not can.get("avx512_vp2intersect") and not intel)


def _capabilities() -> dict[str, bool]:
    return getattr(torch.cpu, "get_capabilities", dict)()  # earlier versions of PyTorch do not say what a CPU can do


_as_defined = False


@contextmanager
def as_defined() -> Iterator[None]:
    """Within it PyTorch computes every convolution as it is defined, whatever is faster on this CPU: to count operations."""
    global _as_defined
    before, _as_defined = _as_defined, True
    try:
        yield
    finally:
        _as_defined = before


def takes_other_ways() -> bool:
    """Whether a convolution may be computed in another way than it is defined."""
    return not _as_defined
