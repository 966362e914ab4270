"""Triptych trains, samples and evaluates image generators: normalizing flows, GANs and diffusion models."""

import os

# Where Linux gives large pages of memory to those that ask for them, PyTorch asks, if this is there before its first tensor.
# A step of a transformer on a CPU takes 4 % less time then (docs/design.md, "Arithmetic on a CPU").
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "0.2.0.dev0"
