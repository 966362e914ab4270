"""What the models have in common whose samples are the end of a way from noise to images, on which another model may lead them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Literal

from torch import Tensor

from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.core.model import Model, Report
from triptych.core.rng import Rng
from triptych.diffusion.counting import network_calls
from triptych.diffusion.gaussian import Coefficients, ImageHook, NoiseConfig
from triptych.diffusion.guided import Guide, Guided, led_away_from, led_by
from triptych.diffusion.samplers import Step


class GuidableSampler(Model):
    """A diffusion model of images, by class or not. Its latents are noise, which knows no class."""

    image_shape: tuple[int, int, int]
    sampling: Any
    "The default settings of its sampler."
    interpolation: Literal["linear", "sphere"] = "sphere"
    latents_hold_class = False

    @property
    @abstractmethod
    def noise(self) -> NoiseConfig | None:
        """The timesteps that it was trained on; None: it knows every noise level."""

    @abstractmethod
    def seen_by(self, c: Coefficients, noise: NoiseConfig | None) -> Coefficients:
        """A noise level of this model's samplers as a network of `noise` sees it."""

    @abstractmethod
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

    @abstractmethod
    def last_image(self, steps: Iterator[Step], settings: Config, report: Report | None) -> Tensor:
        """The images (b, c, h, w) at the end of the steps with these settings; `report` is told of them."""

    def sample(self, rng: Rng, *, labels: Tensor | None, settings: Config, report: Report | None = None) -> Tensor:
        """One image for each index of `rng`: (b, c, h, w) in [-1, 1].

        `labels` (b,) are given exactly when the model is conditional; `settings` are like its `sampling`; `report` is told of the steps.
        The model must be in evaluation mode. Raises ConfigError for labels, steps or guidance that do not fit.
        """
        return self.last_image(self.sample_progressive(rng, labels=labels, settings=settings), settings, report)

    def network_calls(self, settings: Config, *, weaker: bool = False, classifier: bool = False) -> int:
        """How often `sample` asks the network for an image with these settings (see core.model.Stepwise)."""
        return network_calls(
            self,
            lambda twin, rng, labels, guide: twin.sample_progressive(rng, labels=labels, settings=settings, guide=guide),
            weaker=weaker,
            classifier=classifier,
        )

    def guided_by(self, classifier: Model) -> Guided:
        """This model's sampler, led by a NoisyImageClassifier of the same images, noise and classes; ConfigError for any other."""
        return led_by(self, classifier)

    def guided_with(self, weaker: Model) -> Guided:
        """This model's sampler, led away from a LabelledPredictor of the same images, noise and classes; ConfigError for any other."""
        return led_away_from(self, weaker)

    def noise_in(self, latents: list[Tensor]) -> Tensor:
        """The noise (b, c, h, w), alone in a list, that images come from; raises ConfigError for other latents."""
        shapes = [tuple(latent.shape[1:]) for latent in latents]
        if shapes != [self.image_shape]:
            raise ConfigError("latents", f"got the shapes {shapes} of a sample, expected {[self.image_shape]}")
        return latents[0]
