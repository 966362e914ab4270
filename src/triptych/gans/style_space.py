"""The space of the styles w of StyleGAN2: images from styles, the styles of samples, and those of given images, by projection."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from triptych.core.config import Config, settings_like
from triptych.core.errors import ConfigError
from triptych.core.model import Report
from triptych.core.rng import Rng
from triptych.gans.from_noise import NoiseGAN
from triptych.gans.groups import in_groups
from triptych.gans.perceptual import PerceptualLoss
from triptych.gans.projection import ProjectionConfig, distance_from, projected, reduced_side
from triptych.gans.stylegan2_networks import StyleGAN2Generator

_DRAWS = 1000  # of w, for their deviation: it is a sum over all of w's numbers, and so known to a percent


class StyleSpace(NoiseGAN):
    """A generator by styles. Its latents are the styles (n, styles, dims), and noise for each layer where that is not the fixed one."""

    encoding = ProjectionConfig()
    interpolation = "linear"
    latents_hold_class = True
    generator: StyleGAN2Generator
    perceptual: PerceptualLoss

    @property
    def style_sizes(self) -> tuple[int, ...]:
        """Pixels of a side of the layer of each style: each convolution has one, and the last image."""
        sides = self.generator.synthesis.sides
        return (*sides, sides[-1])

    @torch.no_grad()
    def decode(self, latents: list[Tensor], *, labels: Tensor | None = None, settings: Config | None = None) -> Float[Tensor, "b c h w"]:
        """The images in [-1, 1] of styles; raises ConfigError for latents of other shapes. `labels` are not needed: w holds the class."""
        return self.images_of(latents)

    def images_of(self, latents: list[Tensor], *, index: Int[Tensor, " b"] | None = None) -> Float[Tensor, "b c h w"]:
        """What `decode` gives; of the samples of an `index` on one device the same to the last bit in every batch."""
        synthesis, dims = self.generator.synthesis, len(self.generator.mapping.w_avg)
        styles = (synthesis.num_ws, dims)
        maps = [(1, side, side) for side in synthesis.sides]
        shapes = [tuple(latent.shape[1:]) for latent in latents]
        if shapes not in ([styles], [styles, *maps]):
            raise ConfigError("latents", f"got the shapes {shapes}, expected {styles}, alone or with the noise maps of {len(maps)} layers")
        ws, *noise = latents
        make, side = lambda ws, *noise: [synthesis(ws, noise or None).clamp(-1, 1)], synthesis.sides[-1]
        return in_groups(make, ws, *noise, side=side, index=index)[0]

    def encoding_networks(self, settings: Config) -> Mapping[str, str | None]:
        """The network of features, where images are compared by them; it is made here, and awaits its weights."""
        settings = settings_like(self.encoding, settings)
        if not settings.by_features(self.image_shape[2]):
            if settings.perceptual != self.encoding.perceptual:
                said = f"got {settings.distance}, so that images of {self.image_shape[2]} pixels are compared by their pixels"
                raise ConfigError("distance", f"{said} and the settings of perceptual do nothing; give features, or leave them out")
            return {}
        settings.perceptual.check_size(*map(reduced_side, self.image_shape[1:]))
        self.perceptual = PerceptualLoss(settings.perceptual)
        return {"perceptual": settings.perceptual.weights}

    @torch.no_grad()
    def encode(
        self, images: Tensor, *, labels: Tensor | None = None, rng: Rng, settings: Config | None = None, report: Report | None = None
    ) -> list[Tensor]:
        """The styles of images (b, c, h, w) in [-1, 1], and their noise maps where these are optimised: see projection.py.

        `settings`: a ProjectionConfig. The network of `encoding_networks` must have its weights.
        """
        settings = settings_like(self.encoding, settings)
        features = self.perceptual if settings.by_features(self.image_shape[2]) else None
        mapping = self.generator.mapping
        images = images.to(mapping.w_avg.dtype)
        styles, maps = projected(
            self.generator.synthesis,
            distance_from(images, features),
            rng,
            mean=mapping.w_avg,
            deviation=self._deviation(),
            settings=settings,
            report=report,
        )
        return [styles.contiguous(), *maps]

    @torch.no_grad()
    def _deviation(self) -> float:
        """sigma: the root of E |w - w_avg|^2, over all classes alike."""
        mapping = self.generator.mapping
        index = torch.arange(_DRAWS, device=mapping.w_avg.device)
        labels = None if self.num_classes is None else index % self.num_classes
        z = Rng(0, ("deviation",), index).normal("z", self.config.latent_dims).to(mapping.w_avg)
        return float((mapping(z, labels) - mapping.w_avg).square().sum(dim=1).mean().sqrt())
