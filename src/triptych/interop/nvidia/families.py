"""The kinds of networks that a model here takes."""

from __future__ import annotations

from collections.abc import Mapping

from triptych.interop.nvidia.family import Family
from triptych.interop.nvidia.r3gan import R3GAN
from triptych.interop.nvidia.snapshots import Kind

FAMILIES: Mapping[Kind, Family] = {"R3GAN": R3GAN}
