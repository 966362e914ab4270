"""EDM2: a diffusion model whose network keeps all magnitudes, of weights too, and whose loss learns how uncertain each noise level is.

"Analyzing and Improving the Training Dynamics of Diffusion Models", Karras et al. 2024, https://arxiv.org/abs/2312.02696. What differs
from the published program:

- Weights are normalised after each step of the optimizer (`stepped`), there at the beginning of the next forward pass in training. So a
  forward pass changes no state, whatever the microbatches, and the averages of the weights see normalised ones; the effective weights,
  and so the steps, are the same. Averages themselves are never normalised, but in use, as all weights are.
- A gradient that is not finite ends the run, or with fp16 lets the step be skipped and the loss scale fall; there its values become 0.
- The noise, level and dropout of a sample depend on the sample alone.
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
from triptych.diffusion.continuous import LevelSamplingConfig
from triptych.diffusion.edm2_network import EDM2Network, EDM2NetworkConfig
from triptych.diffusion.networks import of_latents
from triptych.diffusion.preconditioned import PreconditionedConfig, PreconditionedModel, c_noise, preconditioned, weight_of
from triptych.nn.images import square_side
from triptych.nn.magnitude import force_unit


@config
class EDM2Config(PreconditionedConfig):
    """EDM2."""

    kind_name: ClassVar = "edm2"

    network: EDM2NetworkConfig = dataclasses.field(default_factory=EDM2NetworkConfig)
    "The network."
    noise_mean: float = -0.4
    "P_mean: noise levels of training are log-normal, with this mean of ln(sigma)."
    noise_std: float = 1.0
    "P_std: deviation of ln(sigma)."
    sampling: LevelSamplingConfig = LevelSamplingConfig(steps=32)
    "Default settings of `triptych sample`, and those of the grids during training."

    def shrunk(self) -> Self:
        return dataclasses.replace(self, network=self.network.shrunk(), sampling=self.sampling.shrunk())

    def build(self, spec: DataSpec) -> EDM2:
        """The model for the images of `spec`; raises ConfigError when they are unlabelled, or of a size that the network cannot take."""
        return EDM2(self, spec)


class EDM2(PreconditionedModel):
    """The model of an EDM2Config."""

    config: EDM2Config
    gathers = "never"

    def __init__(self, config: EDM2Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        try:
            side = square_side(spec)
            self.network = EDM2Network(config.network, image_size=side, channels=spec.channels, num_labels=self.num_classes)
        except ConfigError as error:
            raise of_latents(error, spec).inside("network") from None

    def predict(
        self,
        x: Float[Tensor, "b c h w"],
        sigma: Float[Tensor, "b 1 1 1"],
        labels: Int[Tensor, " b"] | None,
        rng: Rng | None = None,
    ) -> Float[Tensor, "b c h w"]:
        """D(x; sigma), the image expected behind x = x_0 + sigma n."""
        return preconditioned(lambda x, t: self.network(x, t, labels, rng), x, sigma, sigma_data=self.config.sigma_data)

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        """lambda / exp(u) |D(y + sigma n) - y|^2 + u, summed over the numbers of each sample, at a noise level of its own.

        u(sigma), which is learned beside D, tends to the logarithm of the weighted error at sigma, so that all noise levels count alike
        (Eqs. 14 to 16). In evaluation mode without dropout. The log has the mean over the numbers.
        """
        levels = self.config.levels_of_training(rng)
        noisy = batch.images + levels.sigma * rng.normal("noise", *self.image_shape)
        found = self.predict(noisy, levels.sigma, self.told(batch, rng), rng)
        error = (found - batch.images).square().mean((1, 2, 3))
        weighted = weight_of(levels.sigma, sigma_data=self.config.sigma_data) * error
        uncertainty = self.network.uncertainty(c_noise(levels.sigma))
        loss = weighted / uncertainty.exp() + uncertainty
        return LossTerms(
            loss=loss * batch.images[0].numel(),
            logged={
                "loss": loss.detach(),
                "weighted_mse": weighted.detach(),
                "x0_mse": error.detach(),
                "uncertainty": uncertainty.detach(),
            },
            group=levels.group,
        )

    def stepped(self, phase: Phase) -> None:
        """Normalises the weights, so that the next step turns each filter by what it says, however long it had grown."""
        force_unit(self.network)
