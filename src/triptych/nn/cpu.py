"""What kind of CPU this is: how something is computed fastest follows from that, never from a measurement, so that a resume is exact."""

from __future__ import annotations

import functools

import torch


@functools.cache
def vectors() -> str:
    """The widest vectors of the CPU that PyTorch uses: "AVX2", "AVX512" or another name."""
    return torch.backends.cpu.get_cpu_capability()


@functools.cache
def multiplies_fast() -> bool:
    """Whether the CPU is AMD's Zen 5: its convolutions run at twice the rate of other CPUs with AVX-512, and its memory does not."""
    can = getattr(torch.cpu, "get_capabilities", dict)()  # earlier versions of PyTorch do not say what a CPU can do
    return bool(can.get("avx512_vp2intersect") and can.get("avx512_bf16"))  # Intel's have one or the other
