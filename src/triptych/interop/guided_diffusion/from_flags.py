"""The configuration that guided-diffusion's flags alone describe, for training: nothing is read from weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triptych.core.errors import ConfigError
from triptych.core.model import ModelConfig
from triptych.interop.flags import numbers
from triptych.interop.guided_diffusion.flags import Kind, Program
from triptych.interop.guided_diffusion.shapes import Shape
from triptych.interop.guided_diffusion.weights import LEVELS, NUM_CLASSES, configuration_of, reached


def configuration(flags: Mapping[str, Any], kind: Kind, *, program: Program = "guided-diffusion") -> tuple[ModelConfig, int]:
    """The model of a whole set of flags (see flags.flag_table), and its image size in pixels.

    Raises ConfigError, naming the flag, where they make no network: an image size without default levels, heads that do not divide.
    """
    size = flags["large_size" if kind == "super-resolution" else "image_size"]
    prefix = "classifier_" if kind == "classifier" else ""
    mult = numbers(flags.get("channel_mult", "")) or LEVELS[program][kind].get(size)
    if mult is None:
        known = ", ".join(map(str, LEVELS[program][kind]))
        raise ConfigError(
            "--image_size", f"got {size}, which has default levels for {known} only; give --channel_mult (one number a level)"
        )
    width = flags["classifier_width" if kind == "classifier" else "num_channels"]
    if width < 1:
        raise ConfigError("--classifier_width" if kind == "classifier" else "--num_channels", f"got {width}, expected at least 1")
    levels = {level for level, _ in reached(flags[f"{prefix}attention_resolutions"], size, len(mult))}
    shape = Shape(
        kind=kind,
        channels=3,
        num_channels=width,
        num_res_blocks=flags["classifier_depth" if kind == "classifier" else "num_res_blocks"],
        widths=tuple(int(part * width) for part in mult),
        attention=tuple(level in levels for level in range(len(mult))),
        scale_shift_norm=flags[f"{prefix}use_scale_shift_norm"],
        resblock_updown=flags.get(f"{prefix}resblock_updown", False),
        num_classes=NUM_CLASSES if kind == "classifier" or flags["class_cond"] else None,
        learns_variance=kind != "classifier" and flags["learn_sigma"],
        pool=flags.get("classifier_pool"),
        pool_size=None,
    )
    return configuration_of(shape, flags, size), size
