"""NVIDIA's pickles of networks (StyleGAN2, EDM, EDM2, and R3GAN, which took over their form), read without running anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triptych.core.lazy import lazy

if TYPE_CHECKING:
    from triptych.interop.nvidia.snapshots import read_snapshot

__all__ = ["read_snapshot"]
__getattr__ = lazy(__name__, {"triptych.interop.nvidia.snapshots": __all__})
