"""Crops of faces and hands, which discriminators of their own judge in clips of people.

vid2vid (Wang et al. 2018, arXiv 1808.06601) and few-shot vid2vid (Wang et al. 2019, arXiv 1910.12713) have a discriminator of faces for
dances; NVlabs/imaginaire also has one of hands. The label map says where they are: poses drawn with a channel for each part, or DensePose.
With the first and last columns x0, x1 and rows y0, y1 of the pixels of a face in an image of h x w,

                    centre                                          side
    drawn poses     (x0 + x1) // 2, (3 y0 + 2 y1) // 5              floor(2.5 (x1 - x0)), from 32 to w
    DensePose       (x0 + x1) // 2, (y0 + y1) // 2                  floor(1.25 (y1 - y0)), from 32 to w
    no face         w // 2, h // 4                                  8 (h // 32)
    a hand          (x0 + x1) // 2, (y0 + y1) // 2                  8 (h // 64)

A square begins side // 2 before its centre, and is moved into the image. Crops of faces have 8 (h // 32) pixels a side, those of hands
8 (h // 64).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.core.batch import InputSpec
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.gans.discriminators import PatchDiscriminatorConfig, least_side
from triptych.nn.lookup import looked_up
from triptych.nn.precision import widened

Part = Literal["face", "hand"]

DRAWN_CHANNELS = 27
"""Of drawn poses: 24 pairs of the body's points, the left hand, the right hand, the face."""
_HANDS, _FACE, _PARTS = slice(24, 26), 26, 2
_HEAD = 0.9
"""Above it are the two parts of the head, 23 and 24 of 24, where the parts of DensePose go from -1 to 1."""
_LEAST_SIDE = 32
_STEPS: dict[Part, int] = {"face": 32, "hand": 64}
"""Pixels of an image's height for eight of a crop."""


@config
class CropConfig(Config):
    """A discriminator of crops."""

    weight: float = 0.0
    "Weight of its scores and of its features, for both networks; 0: there is none. Published: 10."
    patch: PatchDiscriminatorConfig = PatchDiscriminatorConfig(
        num_discriminators=1, kernel_size=4, num_filters=32, num_layers=3, norm="instance", weight_norm="spectral"
    )
    "The patch discriminators of a crop."

    def validate(self) -> None:
        self.require(0 <= self.weight < float("inf"), "weight", "0 or a positive number")
        self.require(not self.patch.shared, "patch", "one with shared false: each scale has a network of its own")

    def shrunk(self) -> Self:
        """One narrow network of one layer, for tests."""
        return replace(self, patch=replace(self.patch.shrunk(), num_discriminators=1, num_layers=1))

    def least_height(self, part: Part) -> int:
        """The fewest rows of images whose crops every scale has a score for."""
        return -(-least_side(self.patch) // 8) * _STEPS[part]


class PoseMap(NamedTuple):
    """That of the condition images which says where faces and hands are."""

    name: str
    drawn: bool
    "Whether it is of drawn poses, a channel for each part; else DensePose's."


def pose_map(inputs: Sequence[InputSpec], *, part: Part, weight: float) -> PoseMap:
    """What of the inputs shows a part: drawn poses, or for faces DensePose's image, its part in the third channel.

    Raises ConfigError, naming the setting of the discriminator, where there is none.
    """
    images = [entry for entry in inputs if entry.kind == "image"]
    for entry in images:
        if entry.channels == DRAWN_CHANNELS:
            return PoseMap(entry.name, drawn=True)
    for entry in images:
        if part == "face" and entry.channels == 3 and (entry.stored == "densepose" or "densepose" in entry.name.lower()):
            return PoseMap(entry.name, drawn=False)
    other = ", or DensePose's maps (data.densepose, or a condition whose name has densepose in it)" if part == "face" else ""
    wanted = f"a condition image of {DRAWN_CHANNELS} channels (poses, drawn with a channel for each part){other}"
    raise ConfigError(f"discriminator.{part}.weight", f"got {weight:g}, but no label map shows where a {part} is; expected 0, or {wanted}")


@dataclass(frozen=True)
class Crops:
    """Squares of images, m of each."""

    left: Int[Tensor, "b m"]
    "First columns."
    top: Int[Tensor, "b m"]
    "First rows."
    side: Int[Tensor, "b m"]
    "Pixels along a side."
    size: int
    "Pixels along a side when they are cut out."
    share: Float[Tensor, "b m"] | None = None
    "The part of each in what is said of its image: equal parts of 1 for those that are there, 0 for the others. None: one, always there."

    def of(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "n c s s"]:
        """The squares of images, (n = b m), resized: bilinear, corner pixels on corner pixels. Those of one image follow one another."""
        images = widened(images)
        many = images.repeat_interleave(self.left.shape[1], dim=0)
        steps = torch.arange(self.size, device=images.device)
        axes = []
        for first, length in ((self.left, images.shape[3]), (self.top, images.shape[2])):
            along = (self.side.flatten() - 1)[:, None] * steps
            place = first.flatten()[:, None] + along.to(images.dtype) / (self.size - 1)
            axes.append(2 * place / (length - 1) - 1)
        across, down = axes
        grid = torch.stack(torch.broadcast_tensors(across[:, None, :], down[:, :, None]), dim=-1)
        with torch.autocast(images.device.type, enabled=False):
            return looked_up(many, grid, border="border", align_corners=True)


def face_crops(pose: Float[Tensor, "b c h w"], *, drawn: bool) -> Crops:
    """The face of each image, or the upper middle of images without one; `pose` in [-1, 1] as a `PoseMap` says."""
    height, width = pose.shape[2:]
    box = _Box.of(pose[:, _FACE] > -1 if drawn else pose[:, _PARTS] > _HEAD)
    if drawn:
        row, side = (3 * box.top + 2 * box.bottom) // 5, 5 * (box.right - box.left) // 2
    else:
        row, side = (box.top + box.bottom) // 2, 5 * (box.bottom - box.top) // 4
    size = crop_size("face", height)
    row, column = torch.where(box.there, row, height // 4), torch.where(box.there, (box.left + box.right) // 2, width // 2)
    side = torch.where(box.there, side.clamp(min=_LEAST_SIDE), size).clamp(max=min(height, width))
    return _squares(row[:, None], column[:, None], side[:, None], image=(height, width), size=size)


def hand_crops(pose: Float[Tensor, "b c h w"]) -> Crops:
    """The left and the right hand of each image, where they are seen; `pose` in [-1, 1]: drawn, with a channel for each part."""
    height, width = pose.shape[2:]
    box = _Box.of(pose[:, _HANDS].flatten(0, 1) == 1)
    row, column, there = (values.unflatten(0, (-1, 2)) for values in ((box.top + box.bottom) // 2, (box.left + box.right) // 2, box.there))
    size = crop_size("hand", height)
    side = torch.full_like(row, min(size, height, width))
    squares = _squares(row, column, side, image=(height, width), size=size)
    return replace(squares, share=widened(there.to(pose.dtype)) / there.sum(1, keepdim=True).clamp(min=1))


def part_crops(pose: Float[Tensor, "b c h w"], *, part: Part, drawn: bool) -> Crops:
    """The faces, or the hands, of each image."""
    return hand_crops(pose) if part == "hand" else face_crops(pose, drawn=drawn)


def crop_size(part: Part, height: int) -> int:
    """Pixels along a side of the crops of images of such a height."""
    return height // _STEPS[part] * 8


class _Box(NamedTuple):
    """First and last columns and rows of the pixels of a mask; where there are none, those of the whole image."""

    left: Int[Tensor, " n"]
    right: Int[Tensor, " n"]
    top: Int[Tensor, " n"]
    bottom: Int[Tensor, " n"]
    there: Bool[Tensor, " n"]

    @classmethod
    def of(cls, mask: Bool[Tensor, "n h w"]) -> Self:
        there = mask.flatten(1).any(1)
        return cls(*_ends(mask.any(1) | ~there[:, None]), *_ends(mask.any(2) | ~there[:, None]), there)


def _ends(seen: Bool[Tensor, "n k"]) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """The first and the last place that is true in each row, of which there is one."""
    index, last = torch.arange(seen.shape[1], device=seen.device), seen.shape[1] - 1
    return torch.where(seen, index, last).amin(1), torch.where(seen, index, 0).amax(1)


def _squares(row: Tensor, column: Tensor, side: Tensor, *, image: tuple[int, int], size: int) -> Crops:
    """The squares around such centres, moved into the image."""
    top, left = ((centre - side // 2).clamp(min=0).minimum(length - side) for centre, length in zip((row, column), image, strict=True))
    return Crops(left, top, side, size)
