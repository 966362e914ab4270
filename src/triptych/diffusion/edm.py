"""EDM: a diffusion model of any noise level.

"Elucidating the Design Space of Diffusion-Based Generative Models", Karras et al. 2022, https://arxiv.org/abs/2206.00364. What differs
from the published program: the noise, level, augmentation and dropout of a sample depend on the sample alone, the loss of a sample is a
mean over its numbers where the published one is their sum, and a gradient that is not finite ends the run.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

from jaxtyping import Float, Int
from torch import Tensor

from triptych.core.batch import Batch, DataSpec
from triptych.core.config import config
from triptych.core.errors import ConfigError
from triptych.core.model import LossTerms, Phase
from triptych.core.rng import Rng
from triptych.diffusion.edm_augmentation import NonLeakingConfig, augmented
from triptych.diffusion.edm_networks import EDMNetworkConfig, SongUNetConfig
from triptych.diffusion.networks import of_latents
from triptych.diffusion.preconditioned import PreconditionedConfig, PreconditionedModel, preconditioned, weight_of


@config
class EDMConfig(PreconditionedConfig):
    """EDM."""

    kind_name: ClassVar = "edm"

    network: EDMNetworkConfig = dataclasses.field(default_factory=SongUNetConfig)
    "The network: DDPM++ or NCSN++ (song-unet), or that of ADM (adm-unet)."
    augmentation: NonLeakingConfig = NonLeakingConfig()
    "Random changes of training images that the network is told."

    def shrunk(self) -> Self:
        return dataclasses.replace(self, network=self.network.shrunk(), sampling=self.sampling.shrunk())

    def build(self, spec: DataSpec) -> EDM:
        """The model for the images of `spec`; raises ConfigError when they are unlabelled, or of a size that the network cannot take."""
        return EDM(self, spec)

    def augmentation_in_words(self, p: float | None = None) -> str:
        """The changes that the network is told; see `Augments`."""
        often = self.augmentation.p if p is None else p
        return f"augmentation that does not leak, at p = {often:g}" if often > 0 else ""

    @property
    def augments_later(self) -> bool:
        """No: as often in every step; see `Augments`."""
        return False

    def augmented(self, images: Float[Tensor, "b c h w"], rng: Rng, *, p: float | None = None) -> Float[Tensor, "b c h w"]:
        """Images as the network learns them; see `Augments`."""
        settings = self.augmentation if p is None else dataclasses.replace(self.augmentation, p=p)
        return augmented(images, rng, settings)[0]


class EDM(PreconditionedModel):
    """The model of an EDMConfig."""

    config: EDMConfig

    def __init__(self, config: EDMConfig, spec: DataSpec) -> None:
        super().__init__(config, spec)
        try:
            self.network = config.network.build(spec, num_classes=self.num_classes, augment_dims=config.augmentation.dims)
        except ConfigError as error:
            raise of_latents(error, spec).inside("network") from None
        _, height, width = self.image_shape
        multiple = 2 ** config.network.halvings(height)  # of the height it is one, or there would be no such network
        if width % multiple:
            wanted = f"a data.width that is a multiple of {multiple}, as the levels need"
            raise ConfigError("network", f"got images of {height} x {width} pixels, expected {wanted}")

    def predict(
        self,
        x: Float[Tensor, "b c h w"],
        sigma: Float[Tensor, "b 1 1 1"],
        labels: Int[Tensor, " b"] | None,
        rng: Rng | None = None,
        *,
        augment: Float[Tensor, "b a"] | None = None,
    ) -> Float[Tensor, "b c h w"]:
        """D(x; sigma) = c_skip x + c_out F(c_in x; c_noise), Eq. 7 with the last column of Table 1.

        `augment` is the label of augmentation, None for images that nothing happened to.
        """

        def network(x: Tensor, t: Tensor) -> Tensor:
            return self.network(x, t, labels, rng, augment=augment)

        return preconditioned(network, x, sigma, sigma_data=self.config.sigma_data)

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        """weight |D(y + n) - y|^2 of each sample, a mean over its numbers, at a noise level of its own (Eq. 8 and Table 1).

        In evaluation mode without augmentation and dropout. The weight is 1 / c_out^2, so that an untrained network has a loss near 1.
        """
        settings = self.config.augmentation
        images, augment = batch.images, None
        if self.training and settings.p > 0:
            images, augment = augmented(images, rng.child("augmentation"), settings)
        levels = self.config.levels_of_training(rng)
        noisy = images + levels.sigma * rng.normal("noise", *self.image_shape)
        found = self.predict(noisy, levels.sigma, self.told(batch, rng), rng, augment=augment)
        error = (found - images).square().mean((1, 2, 3))
        loss = weight_of(levels.sigma, sigma_data=self.config.sigma_data) * error
        return LossTerms(loss=loss, logged={"loss": loss.detach(), "x0_mse": error.detach()}, group=levels.group)
