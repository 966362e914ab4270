"""ADM: a diffusion model of images, conditional on their class or not.

"Diffusion Models Beat GANs on Image Synthesis", Dhariwal and Nichol 2021, https://arxiv.org/abs/2105.05233; with other settings the
models of "Improved Denoising Diffusion Probabilistic Models", Nichol and Dhariwal 2021, https://arxiv.org/abs/2102.09672.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from triptych.core.batch import Batch, DataSpec
from triptych.core.config import Config, config
from triptych.core.rng import Rng
from triptych.diffusion.gaussian import ImageHook
from triptych.diffusion.model import Conditions, DiffusionConfig, DiffusionModel, Guide, last_sample
from triptych.diffusion.samplers import Step
from triptych.diffusion.unet import UNet


@config
class ADMConfig(DiffusionConfig):
    """A diffusion model of images, by class or not."""

    def build(self, spec: DataSpec) -> ADM:
        """The model for the images of `spec`; raises ConfigError when they are unlabelled, or of a size that the network cannot take."""
        return ADM(self, spec)


class ADM(DiffusionModel):
    """The model of an ADMConfig."""

    network: UNet

    def __init__(self, config: ADMConfig, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.sampling = config.sampling

    def make_network(self, spec: DataSpec, *, out_channels: int) -> UNet:
        """The U-Net from x_t to what is predicted of it."""
        network, size = self.config.network, spec.image_size
        return UNet(network, image_size=size, in_channels=spec.channels, out_channels=out_channels, num_classes=self.num_classes)

    def conditions(self, batch: Batch) -> Conditions:
        """The labels, where the model is conditional."""
        return (None if self.num_classes is None else batch.labels,)

    def sample(self, rng: Rng, *, labels: Tensor | None, settings: Config) -> Tensor:
        """One image for each index of `rng`: (b, c, h, w) in [-1, 1].

        `labels` (b,) are given exactly when the model is conditional; `settings` is a SamplingConfig. The model must be in
        evaluation mode. Raises ConfigError for labels or steps that do not fit.
        """
        return last_sample(self.sample_progressive(rng, labels=labels, settings=settings))

    def sample_progressive(
        self,
        rng: Rng,
        *,
        labels: Tensor | None = None,
        settings: Config | None = None,
        guide: Guide | None = None,
        hook: ImageHook | None = None,
    ) -> Iterator[Step]:
        """Every step of `sample`, from noise to images; `hook` changes the x_0 that each predicts, before it is clipped."""
        conditions = (self.checked_labels(labels, len(rng)),)
        return self.trajectory(rng, conditions, self.sampling if settings is None else settings, guide=guide, hook=hook)
