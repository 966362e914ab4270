"""The discriminators of clips: patches of single frames with their label maps, of crops of them, and of several frames.

The names of all parts are those of the weights that NVlabs/imaginaire published.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from triptych.core.config import Config, config
from triptych.gans.crops import CropConfig, Part
from triptych.gans.discriminators import NLayerPatch, PatchDiscriminatorConfig, Scores, at_scales


class FramePatch(nn.Module):
    """Patch discriminators of x, of x at half its size, and so on: keys discriminator_{i}.*."""

    def __init__(self, config: PatchDiscriminatorConfig, *, in_channels: int) -> None:
        super().__init__()
        self.scales = config.num_discriminators
        for scale in range(self.scales):
            self.add_module(f"discriminator_{scale}", NLayerPatch(config, in_channels=in_channels))

    def forward(self, x: Float[Tensor, "b c h w"], *, beside: Float[Tensor, "b n h w"] | None = None) -> Scores:
        """The scores of each scale, of images with a map `beside` them, whose channels come first."""
        outputs, features = [], []
        for scale, seen in enumerate(at_scales(x, beside, count=self.scales)):
            scores, layers = self.get_submodule(f"discriminator_{scale}")(seen)
            outputs.append(scores)
            features.append(layers)
        return Scores(tuple(outputs), tuple(features))


@config
class VideoDiscriminatorConfig(Config):
    """Discriminators of single frames with their label maps, of crops of them, and of frames that follow one another."""

    unwritten: ClassVar = frozenset(("face", "hand"))

    patch: PatchDiscriminatorConfig = PatchDiscriminatorConfig(kernel_size=4, num_layers=3, norm="instance", weight_norm="none")
    "The patch discriminators of a frame."
    temporal_scales: int = 0
    "Discriminators of several frames: the first of successive ones, each further one of frames `temporal_frames` times as far apart."
    temporal_frames: int = 3
    "Frames that each of them judges."
    temporal: PatchDiscriminatorConfig = PatchDiscriminatorConfig(kernel_size=4, num_layers=3, norm="instance", weight_norm="none")
    "The patch discriminators of several frames."
    face: CropConfig = CropConfig()
    "That of crops of faces."
    hand: CropConfig = CropConfig()
    "That of crops of hands."

    @property
    def crops(self) -> dict[Part, CropConfig]:
        """The discriminators of crops that there are."""
        parts: dict[Part, CropConfig] = {"face": self.face, "hand": self.hand}
        return {part: settings for part, settings in parts.items() if settings.weight > 0}

    def validate(self) -> None:
        for name in ("patch", "temporal"):
            self.require(not getattr(self, name).shared, name, "one with shared false: each scale has a network of its own")
        self.require(0 <= self.temporal_scales <= 4, "temporal_scales", "0 to 4")
        self.require(self.temporal_frames >= 2, "temporal_frames", "at least 2")

    def shrunk(self) -> Self:
        """Narrow networks, for tests."""
        crops = {"face": self.face.shrunk(), "hand": self.hand.shrunk()} if self.crops else {}
        return replace(self, patch=self.patch.shrunk(), temporal=self.temporal.shrunk(), **crops)


class VideoDiscriminator(nn.Module):
    """Keys net_D.*, net_D_face.* and net_D_hand.* of crops, and net_DT{s}.* of each temporal scale."""

    def __init__(
        self, config: VideoDiscriminatorConfig, *, label_channels: int, image_channels: int = 3, crop_channels: int | None = None
    ) -> None:
        """`crop_channels`: of crops with what is seen beside them; None: of images, for nothing is."""
        super().__init__()
        self.net_D = FramePatch(config.patch, in_channels=label_channels + image_channels)
        for part, settings in config.crops.items():
            self.add_module(f"net_D_{part}", FramePatch(settings.patch, in_channels=crop_channels or image_channels))
        for scale in range(config.temporal_scales):
            self.add_module(f"net_DT{scale}", FramePatch(config.temporal, in_channels=image_channels * config.temporal_frames))

    def forward(self, images: Float[Tensor, "b c h w"], *, label: Float[Tensor, "b n h w"]) -> Scores:
        """The scores of frames with their label maps."""
        return self.net_D(images, beside=label)

    def temporal(self, images: Float[Tensor, "b m h w"], *, scale: int) -> Scores:
        """The scores of several frames, oldest first, joined along their channels."""
        return self.get_submodule(f"net_DT{scale}")(images)

    def crop(self, images: Float[Tensor, "n c s s"], *, part: Part, beside: Float[Tensor, "n m s s"] | None = None) -> Scores:
        """The scores of crops, with what is seen beside each."""
        seen = images if beside is None else torch.cat((images, beside), dim=1)
        return self.get_submodule(f"net_D_{part}")(seen)
