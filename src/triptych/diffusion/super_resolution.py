"""Super-resolution: a diffusion model of large images, given small ones.

"Diffusion Models Beat GANs on Image Synthesis", Dhariwal and Nichol 2021, https://arxiv.org/abs/2105.05233;
"Image Super-Resolution via Iterative Refinement", Saharia et al. 2021, https://arxiv.org/abs/2104.07636. The U-Net sees the noisy large
image beside the small one, enlarged. What differs from the published program: grey images and any sizes work, and label dropout and
DDIM are there as in every model of the family.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from triptych.core.batch import Batch, DataSpec
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.model import Report
from triptych.core.rng import Rng
from triptych.diffusion.counting import network_calls
from triptych.diffusion.model import Conditions, DiffusionConfig, DiffusionModel
from triptych.diffusion.unet import UNet, UNetConfig
from triptych.nn.images import check_drawn, square_side


@config
class SuperResolutionConfig(DiffusionConfig):
    """A diffusion model that makes large images of small ones."""

    kind_name: ClassVar = "super-resolution"
    within_bounds: ClassVar = True
    guidable: ClassVar = False

    network: UNetConfig = field(default_factory=UNetConfig)
    "The U-Net."
    small_size: int
    "Height and width of the small images, in pixels; the large ones have data.image_size."

    def validate(self) -> None:
        self.require(self.small_size >= 1, "small_size", "at least 1")

    def shrunk(self) -> Self:
        return replace(self, network=self.network.shrunk(), sampling=replace(self.sampling, steps="4"), small_size=4)

    def build(self, spec: DataSpec) -> SuperResolution:
        """The model for the large images of `spec`; raises ConfigError when they are unlabelled, or of a size that does not fit."""
        if self.small_size >= spec.image_size:
            raise ConfigError("small_size", f"got {self.small_size}, expected less than data.image_size, {spec.image_size}")
        return SuperResolution(self, spec)


class SuperResolutionUNet(UNet):
    """The network eps(x_t, t, low_res, y): a U-Net that sees x_t and the enlarged small image, channel by channel."""

    def __init__(
        self, network: UNetConfig, *, image_size: int, in_channels: int, out_channels: int, num_classes: int | None = None
    ) -> None:
        super().__init__(network, image_size=image_size, in_channels=2 * in_channels, out_channels=out_channels, num_classes=num_classes)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] (it takes one condition more)
        self,
        x: Float[Tensor, "b c h w"],
        t: Shaped[Tensor, " b"],
        low_res: Float[Tensor, "b c s s"],
        y: Int[Tensor, " b"] | None = None,
        rng: Rng | None = None,
    ) -> Float[Tensor, "b o h w"]:
        """The output for noisy images x and small ones; the rest as in `UNet`."""
        large = F.interpolate(low_res, size=x.shape[2:], mode="bilinear", align_corners=False)
        return super().forward(torch.cat((x, large.to(x.dtype)), dim=1), t, y, rng)


class SuperResolution(DiffusionModel):
    """The model of a SuperResolutionConfig: an Upsampler."""

    config: SuperResolutionConfig

    def __init__(self, config: SuperResolutionConfig, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.input_size = config.small_size

    def network_for(self, spec: DataSpec, *, out_channels: int) -> SuperResolutionUNet:
        """A U-Net that is told the small image too."""
        network, classes = self.config.network, self.num_classes
        try:
            size = square_side(spec)
            return SuperResolutionUNet(network, image_size=size, in_channels=spec.channels, out_channels=out_channels, num_classes=classes)
        except ConfigError as error:
            raise error.inside("network") from None

    def conditions(self, batch: Batch) -> Conditions:
        """The small images, by the mean over areas of the large ones, and the labels where the model is conditional."""
        return F.interpolate(batch.images, size=self.input_size, mode="area"), None if self.num_classes is None else batch.labels

    def upsample(self, batch: Batch, rng: Rng, *, settings: Config, report: Report | None = None) -> Tensor:
        """One large image for each small one of `batch` (b, c, s, s): (b, c, h, w) in [-1, 1].

        Its labels are needed where the model is conditional, and not used elsewhere; `settings` is a SamplingConfig; `report` is told of
        the steps. The model must be in evaluation mode. Raises ConfigError for images, labels or steps that do not fit.
        """
        wanted = (self.image_shape[0], self.input_size, self.input_size)
        if tuple(batch.images.shape[1:]) != wanted:
            raise ConfigError("images", f"got images of shape {tuple(batch.images.shape[1:])}, expected {wanted}")
        check_drawn(rng, len(batch))
        labels = None if self.num_classes is None else self.checked_labels(batch.labels, len(batch))
        return self.last_image(self.trajectory(rng, (batch.images, labels), settings), settings, report)

    def network_calls(self, settings: Config, *, weaker: bool = False, classifier: bool = False) -> int:
        """How often `upsample` asks the network for an image with these settings (see core.model.Stepwise); nothing leads it."""
        return network_calls(self, lambda twin, rng, labels, guide: twin.trajectory(rng, (None, labels), settings))
