"""The kinds of networks that a model here takes."""

from __future__ import annotations

from collections.abc import Mapping

from triptych.interop.nvidia.edm import EDM
from triptych.interop.nvidia.edm2 import EDM2
from triptych.interop.nvidia.family import Family
from triptych.interop.nvidia.r3gan import R3GAN
from triptych.interop.nvidia.snapshots import Kind
from triptych.interop.nvidia.stylegan2 import STYLEGAN2

FAMILIES: Mapping[Kind, Family] = {"StyleGAN2": STYLEGAN2, "R3GAN": R3GAN, "EDM": EDM, "EDM2": EDM2}
*_most, _last = FAMILIES
KNOWN = f"{', '.join(_most)} and {_last}"
"""Their names, in a message."""
