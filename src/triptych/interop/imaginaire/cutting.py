"""How images are resized, cut and varied: the section `augmentations` of imaginaire's YAML files, and the size of people cut out."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from triptych.core.errors import ConfigError
from triptych.data.config import DataConfig
from triptych.data.pairs import PairedDataConfig
from triptych.interop.imaginaire.reading import ModelType, Settings

D = TypeVar("D", bound=DataConfig)

MOST_PIXELS = 2**16
"""Along a side of an image."""
_OMITTED = ("random_resize_h_w_aspect", "rotate", "random_rotate_90", "contrast", "blur", "motion_blur", "compression", "gamma")
_SIZES: dict[ModelType, int] = {"pix2pixHD": 512, "unit": 512, "vid2vid": 512, "fs_vid2vid": 512, "wc_vid2vid": 512}
_SIZE = 256


def with_cut(kind: ModelType, config: D, augmentations: Settings) -> D:
    """`config` with how images are resized, cut and varied."""
    crop, centre = size_of(augmentations, "random_crop_h_w"), size_of(augmentations, "center_crop_h_w")
    whole, shortest = size_of(augmentations, "resize_h_w"), size_of(augmentations, "resize_smallest_side")
    if whole is not None and shortest is not None:
        raise ConfigError(augmentations.name("resize_h_w"), "given beside resize_smallest_side; leave out one of them")
    height, width = crop or centre or whole or shortest or (_SIZES.get(kind, _SIZE),) * 2
    if width != height:
        if not isinstance(config, PairedDataConfig):
            raise ConfigError(
                augmentations.name("random_crop_h_w"), f"got {height}, {width}, expected squares: only pairs may be rectangles"
            )
        config = replace(config, width=width)
    if whole is not None:
        augmentations.warn("resize_h_w", "images keep their proportions here: they are resized to cover it, and cut")
    for name in _OMITTED:
        if augmentations.value(name):
            augmentations.warn(name, "not done here, so images vary less (--data.jitter varies colours)")
    scale = augmentations.factor("random_scale_limit", 0.0, least=0, most=8)
    if scale and crop is None:
        augmentations.warn("random_scale_limit", "not done without random_crop_h_w")
    # Of a rectangle our setting is the height, which is not always the short side.
    resize = max(height, whole[0] if whole else -(-min(shortest) * height // min(height, width)) if shortest else height)
    return replace(
        config,
        image_size=height,
        resize=None if resize == height and crop is None else resize,
        crop="center" if crop is None else "random",
        scale=None if crop is None else scale,
        flip=augmentations.flag("horizontal_flip", False),
    )


def with_cut_out(config: D, data: Settings, *, people: bool) -> D:
    """`config` of the size that people are cut out to, and faces where data.cut_out is set."""
    data.texts("input_few_shot_labels", "a list of names of data.input_types")  # those of input_labels
    size = size_of(data, "output_h_w")
    if size is None:
        return config
    if not people:
        data.warn("output_h_w", "faces are not cut out by themselves: set data.cut_out and data.landmarks, or cut them out before")
    values = {"image_size": size[0], "width": None if size[0] == size[1] else size[1], "resize": None, "crop": "center", "scale": None}
    return config.updated(values)


def size_of(settings: Settings, key: str) -> tuple[int, int] | None:
    """Height and width: "256, 512", [256, 512] or 256."""
    value = settings.value(key)
    if value is None:
        return None
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    try:
        sides = [int(part) for part in parts if not isinstance(part, bool | float)]
    except (TypeError, ValueError):
        sides = []
    fits = len(sides) == len(parts) and len(sides) in (1, 2) and all(1 <= side <= MOST_PIXELS for side in sides)
    settings.require(fits, key, 'height and width in pixels, as "256, 256"')
    return sides[0], sides[-1]
