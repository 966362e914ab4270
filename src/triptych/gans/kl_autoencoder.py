"""A KL autoencoder: images to small latents that are nearly N(0, I), and back with details that look real.

"High-Resolution Image Synthesis with Latent Diffusion Models", Rombach et al. 2022, https://arxiv.org/abs/2112.10752, section 3.1 and
appendix G. The generator is an encoder E, which gives an image x a normal distribution of latents q(z | x), and a decoder D. It minimises

    |x - D(z)|_1 + d w_p P(x, D(z)) + w_kl KL(q(z | x) || N(0, I)) + w_g lambda g(D(z)),    z ~ q(z | x),

the first term and KL summed over an image of d numbers, P the perceptual loss, g the loss on the scores of a patch discriminator that has
to tell reconstructions from images. From `adversarial_start` images on it plays; before that it is neither called nor trained. With L the
first two terms, and W the weight of the decoder's last convolution (Eq. 25; as in Esser et al. 2021, arXiv 2012.09841, Eq. 7),

    lambda = min(|dL / dW| / (|dg / dW| + 1e-4), 1e4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Float
from torch import Tensor

from triptych.core.batch import Batch, DataSpec
from triptych.core.config import Config, config, settings_like
from triptych.core.errors import ConfigError
from triptych.core.model import LossTerms, Phase, Report, TrainingProgress, Turn
from triptych.core.rng import Rng
from triptych.gans.ada import require_colours
from triptych.gans.discriminators import MultiResPatch, PatchDiscriminatorConfig, least_side
from triptych.gans.init import InitConfig, initialize
from triptych.gans.kl_networks import Gaussian, KLNetworks, KLNetworksConfig
from triptych.gans.losses import gaussian_kl, l1, sample_mean
from triptych.gans.model import DISCRIMINATOR, GAN, GENERATOR, Contest, GANConfig, weighted_terms
from triptych.gans.perceptual import PerceptualConfig, PerceptualLoss
from triptych.gans.translation_base import PERCEPTUAL, check_perceptual, check_sides
from triptych.nn.collectives import summed
from triptych.nn.gradients import gradient
from triptych.nn.images import check_drawn, image_shape

_ADDED, _MOST = 1e-4, 1e4  # of lambda


@config
class KLEncodingConfig(Config):
    """How images become latents."""

    sample: bool = False
    "Draw the latents from their distributions; else they are its means."


@config
class KLAutoencoderConfig(GANConfig):
    """A KL autoencoder."""

    kind_name: ClassVar = "kl-autoencoder"
    changeable: ClassVar = frozenset(("encoding", "scaling_factor"))

    network: KLNetworksConfig = KLNetworksConfig()
    "The encoder and the decoder."
    discriminator: PatchDiscriminatorConfig = PatchDiscriminatorConfig(
        num_discriminators=1, kernel_size=4, last_kernel_size=4, num_layers=3, norm="sync_batch", first_norm=False, weight_norm="none"
    )
    "The discriminator."
    perceptual_weight: float = 1.0
    "Weight of the perceptual loss, beside 1 for the mean absolute difference; 0: there is none, and no file of weights is needed."
    perceptual: PerceptualConfig = PerceptualConfig()
    "The perceptual loss."
    kl_weight: float = 1e-6
    "Weight of KL in nats, beside 1 for the sum of the absolute differences."
    adversarial_weight: float = 0.5
    "Weight of the generator's loss on the scores; 0: there is no discriminator in the training."
    adversarial_start: int = 0
    "Images seen when the discriminator joins."
    adaptive: bool = True
    "Whether that loss gets as large a gradient at the last convolution as the reconstruction's; it then depends on the whole batch."
    scaling_factor: float | None = None
    "Factor of the latents in other programs, 1 / their deviation (0.18215 of Stable Diffusion's); for exports. None: not known."
    encoding: KLEncodingConfig = KLEncodingConfig()
    "How images become latents."
    initial: InitConfig = InitConfig(kind="none", bias="none")
    "Initial weights of encoder and decoder; none: PyTorch's own. The discriminator's are normal with deviation 0.02."

    def validate(self) -> None:
        for name in ("perceptual_weight", "kl_weight"):
            self.require(0 <= getattr(self, name) < float("inf"), name, "0 or a positive number")
        self.require(self.adversarial_start >= 0, "adversarial_start", "0 or more")
        self.require(
            self.scaling_factor is None or 0 < self.scaling_factor < float("inf"), "scaling_factor", "a positive number, or nothing"
        )

    def shrunk(self) -> Self:
        """Narrow networks for images of 8 pixels, for tests; the discriminator joins after two batches."""
        return replace(
            self,
            network=self.network.shrunk(),
            discriminator=replace(self.discriminator, num_filters=4, max_num_filters=8, num_layers=1),
            adversarial_start=12,
        )

    def check(self, spec: DataSpec) -> None:
        """Raises ConfigError for images that the networks or the perceptual loss do not take."""
        factor, widths = self.network.factor, self.network.widths
        multiples = f"expected sides of multiples of {factor}, as {len(widths)} resolutions need"
        check_sides(spec, "network.widths", stride=factor, expected=multiples, advice="give fewer widths, or another data.image_size")
        if self.adversarial_weight > 0:
            least, advice = least_side(self.discriminator), "give fewer num_layers, or a larger data.image_size"
            check_sides(spec, "discriminator", least=least, expected=f"expected at least {least} along a side", advice=advice)
        check_perceptual(spec, weight=self.perceptual_weight, perceptual=self.perceptual)

    def build(self, spec: DataSpec) -> KLAutoencoder:
        return KLAutoencoder(self, spec)


class KLAutoencoder(GAN):
    """Phases "discriminator", once it has joined, and "generator": encoder and decoder. It is an Encoder."""

    config: KLAutoencoderConfig
    generator: KLNetworks
    discriminator: MultiResPatch
    validated = (GENERATOR,)
    begins = True
    interpolation: Literal["linear", "sphere"] = "linear"
    latents_hold_class = True

    def __init__(self, config: KLAutoencoderConfig, spec: DataSpec) -> None:
        config.check(spec)
        networks = KLNetworks(config.network, channels=spec.channels)
        super().__init__(config, networks, MultiResPatch(config.discriminator, in_channels=spec.channels))
        initialize(self.discriminator, settings=InitConfig(kind="normal", gain=0.02))
        if self.ada is not None:
            require_colours(config.ada, spec.channels)
        self.encoding, self.image_channels = config.encoding, spec.channels
        self.retains_graph = config.adaptive and config.adversarial_weight > 0
        self.couples_samples = config.adversarial_weight > 0 and (self.couples_samples or self.retains_graph)
        self.dimensions = math.prod(image_shape(spec))
        "Numbers of an image: d."
        self.perceptual = PerceptualLoss(config.perceptual) if config.perceptual_weight > 0 else None
        if self.perceptual is not None:
            self.frozen_networks = {PERCEPTUAL: config.perceptual.weights}

    # Training -----------------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each of the generator's terms: l1 and perceptual are means over an image, the loss has their sums."""
        c, d = self.config, self.dimensions
        return {"l1": d, PERCEPTUAL: d * c.perceptual_weight, "kl": c.kl_weight, "adversarial": c.adversarial_weight}

    def turns(self, progress: TrainingProgress) -> Iterable[Turn]:
        """The phases in turn, those of the discriminator once it has joined."""
        joined = self._joined(progress.images_seen)
        return (turn for turn in super().turns(progress) if joined or DISCRIMINATOR not in turn.phase.networks)

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        """The terms of the phase; the generator's loss on the scores is weighed anew in each step, by what is logged as its balance."""
        if phase.name != GENERATOR or not self.training or not self.config.adaptive or not self._joined(self._images_seen):
            return super().loss(phase, batch, rng)
        terms = self.generator_terms(self.made_by_now(batch, rng), batch, rng)
        balance = self._balance(terms)
        losses = weighted_terms(terms, {**self.weights, "adversarial": self.config.adversarial_weight * balance})
        return replace(losses, logged={**losses.logged, "balance": balance.expand(len(losses.loss)).clone()})

    def made(self, batch: Batch, rng: Rng) -> tuple[Tensor, Gaussian]:
        """Reconstructions, of latents drawn from their distributions."""
        return self.generator(batch.images, self._noise(batch.images, rng))

    def begun(self, batch: Batch) -> Gaussian:
        """The distributions of the latents."""
        return self.generator.posterior(batch.images)

    def completed(self, begun: Gaussian, batch: Batch, rng: Rng) -> tuple[Tensor, Gaussian]:
        """As `made`."""
        return self.generator(batch.images, self._noise(batch.images, rng), posterior=begun)

    def contests(self, made: tuple[Tensor, Gaussian], batch: Batch, rng: Rng) -> list[Contest]:
        """Images against their reconstructions."""
        return [self._contest(batch, made[0], rng)]

    def generator_terms(self, made: tuple[Tensor, Gaussian], batch: Batch, rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """l1, kl, and perceptual and adversarial as far as they are there."""
        images, posterior = made
        terms = self._distances(images, posterior, batch)
        if self._joined(self._images_seen):
            terms["adversarial"] = self.verdict(self._contest(batch, images, rng)).loss
        return terms

    def distances(self, batch: Batch, rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """l1, kl, perceptual where that has its weights, and psnr in dB, of what the means of the latents are decoded to."""
        posterior = self.generator.posterior(batch.images)
        images = self.generator.decoded(posterior.mean).clamp(-1, 1)
        mse = sample_mean((images - batch.images).square())
        return self._distances(images, posterior, batch) | {"psnr": 10 * torch.log10(4 / mse.clamp(min=1e-10))}

    def _distances(self, images: Tensor, posterior: Gaussian, batch: Batch) -> dict[str, Tensor]:
        terms = {"l1": l1(images, batch.images), "kl": gaussian_kl(posterior.mean, posterior.log_variance)}
        if self.perceptual is not None and self.perceptual.network.loaded:
            terms[PERCEPTUAL] = self.perceptual(images, batch.images)
        return terms

    def _contest(self, batch: Batch, images: Tensor, rng: Rng) -> Contest:
        return self.contest(batch.images, images, rng, discriminate=lambda view: self.discriminator)

    def _joined(self, images_seen: int) -> bool:
        return self.config.adversarial_weight > 0 and images_seen >= self.config.adversarial_start

    def _balance(self, terms: Mapping[str, Tensor]) -> Tensor:
        """lambda, of the samples of all processes, without a gradient."""
        weights, last = self.weights, self.generator.last_weight
        reconstruction = torch.stack([weights[name] * terms[name] for name in ("l1", PERCEPTUAL) if name in terms]).sum(0)
        count = summed(reconstruction.new_tensor(float(len(reconstruction))))

        def norm(loss: Tensor) -> Tensor:
            return (summed(gradient(loss.sum(), last, retain_graph=True)) / count).norm()

        return (norm(reconstruction) / (norm(terms["adversarial"]) + _ADDED)).clamp(max=_MOST)

    def _noise(self, images: Tensor, rng: Rng) -> Float[Tensor, "b z h w"]:
        factor, channels = self.config.network.factor, self.config.network.latent_channels
        return rng.normal("z", channels, images.shape[2] // factor, images.shape[3] // factor)

    # Latents ------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def posterior(self, images: Float[Tensor, "b c h w"]) -> Gaussian:
        """The distributions of the latents. Raises ConfigError for images of other channels or sides than the networks take."""
        factor, (channels, height, width) = self.config.network.factor, images.shape[1:]
        if channels != self.image_channels or height % factor or width % factor:
            wanted = f"{self.image_channels} channels and sides of multiples of {factor}"
            raise ConfigError("images", f"got {channels} channels and {width}x{height} pixels, expected {wanted}")
        return self.generator.posterior(images)

    def encode(
        self,
        images: Float[Tensor, "b c h w"],
        *,
        labels: Tensor | None = None,
        rng: Rng,
        settings: Config | None = None,
        report: Report | None = None,
    ) -> list[Tensor]:
        """One level of latents (b, z, h / f, w / f): means, or with `settings.sample` drawn by `rng`."""
        posterior = self.posterior(images)
        if sampled := settings_like(self.encoding, settings).sample:
            check_drawn(rng, len(images))
        return [posterior.at(self._noise(images, rng)) if sampled else posterior.mean]

    @torch.no_grad()
    def decode(
        self, latents: list[Float[Tensor, "b _ _ _"]], *, labels: Tensor | None = None, settings: Config | None = None
    ) -> Float[Tensor, "b c h w"]:
        """The images of latents of any size. Raises ConfigError for other channels, or several levels."""
        settings_like(self.encoding, settings)
        channels = self.config.network.latent_channels
        if len(latents) != 1 or latents[0].ndim != 4 or latents[0].shape[1] != channels:
            shapes = ", ".join(str(tuple(level.shape[1:])) for level in latents) or "none"
            raise ConfigError("latents", f"got the shapes {shapes}, expected one level of {channels} channels")
        return self.generator.decoded(latents[0].to(self.generator.last_weight.dtype)).clamp(-1, 1)
