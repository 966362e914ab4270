"""What GANs have in common that learn from two domains of images, without pairs.

In all names a is the domain of `Batch.images`, b that of the input `IMAGES_B`, and "ab" what has come from a to b.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from triptych.core.batch import IMAGES, IMAGES_B, Batch, DataSpec
from triptych.core.config import Config, config, settings_like
from triptych.core.errors import ConfigError
from triptych.core.rng import Rng
from triptych.core.translation import Example
from triptych.gans.autoencoder import AutoEncoder
from triptych.gans.discriminators import PairDiscriminator, PatchDiscriminatorConfig, ResidualDiscriminatorConfig, least_side
from triptych.gans.losses import l1
from triptych.gans.model import Contest, GANConfig
from triptych.gans.perceptual import PerceptualConfig
from triptych.gans.translation_base import GeneratorConfig, TranslationGAN, check_perceptual, check_sides
from triptych.nn.images import check_drawn

Direction = Literal["a-to-b", "b-to-a"]


class Encoded(NamedTuple):
    """Contents (b, d, h', w') of images of both domains, and their styles (b, style_dims, 1, 1) where the model has some."""

    content_a: Tensor
    content_b: Tensor
    style_a: Tensor | None
    style_b: Tensor | None


class Translations(NamedTuple):
    """What the generator makes of images of both domains; "ba" is the content of b decoded by a. What was not asked for is None.

    Images (b, c, h, w), contents (b, d, h', w'), styles (b, style_dims, 1, 1) where the model has some.
    """

    images_ab: Tensor
    images_ba: Tensor
    content_a: Tensor
    content_b: Tensor
    style_a: Tensor | None = None
    style_b: Tensor | None = None
    given_a: Tensor | None = None
    "The style that translations to a have; `given_b`: those to b."
    given_b: Tensor | None = None
    content_ab: Tensor | None = None
    content_ba: Tensor | None = None
    style_ab: Tensor | None = None
    style_ba: Tensor | None = None
    images_aa: Tensor | None = None
    images_bb: Tensor | None = None
    images_aba: Tensor | None = None
    images_bab: Tensor | None = None


class BothDomains(nn.Module):
    """An auto-encoder of each domain: keys autoencoder_a.*, autoencoder_b.*."""

    def __init__(self, build: Callable[[], AutoEncoder]) -> None:
        super().__init__()
        self.autoencoder_a, self.autoencoder_b = build(), build()

    def encode(self, images_a: Float[Tensor, "b c h w"], images_b: Float[Tensor, "b c h w"]) -> Encoded:
        """The images' contents and styles."""
        (content_a, style_a), (content_b, style_b) = self.autoencoder_a.encode(images_a), self.autoencoder_b.encode(images_b)
        return Encoded(content_a, content_b, style_a, style_b)

    def forward(
        self,
        *,
        images_a: Float[Tensor, "b c h w"],
        images_b: Float[Tensor, "b c h w"],
        random_style_a: Float[Tensor, "b style_dims 1 1"] | None = None,
        random_style_b: Float[Tensor, "b style_dims 1 1"] | None = None,
        encode_translations: bool = False,
        reconstruct: bool = True,
        cycle: bool = True,
        encoded: Encoded | None = None,
        begun: Translations | None = None,
    ) -> Translations:
        """Translations both ways of images whose sides are multiples of `GeneratorConfig.stride`.

        `random_style_a`, `random_style_b`: styles of the translations to a and to b; None: those of the images.
        `encode_translations`: also the contents and styles of the translations; `reconstruct`: also each image through its own
        auto-encoder; `cycle`: also the translations back, in their own styles. `encoded`: the images' contents and styles, where these
        are known; `begun`: what was made without all of the three.
        """
        a, b, out = self.autoencoder_a, self.autoencoder_b, begun
        if out is None:
            content_a, content_b, style_a, style_b = self.encode(images_a, images_b) if encoded is None else encoded
            given_a = style_a if random_style_a is None else random_style_a
            given_b = style_b if random_style_b is None else random_style_b
            images_ba, images_ab = a.decode(content_b, given_a), b.decode(content_a, given_b)
            out = Translations(images_ab, images_ba, content_a, content_b, style_a, style_b, given_a, given_b)
        if encode_translations or cycle:
            (content_ba, style_ba), (content_ab, style_ab) = a.encode(out.images_ba), b.encode(out.images_ab)
            out = out._replace(content_ab=content_ab, content_ba=content_ba, style_ab=style_ab, style_ba=style_ba)
            if cycle:
                out = out._replace(images_aba=a.decode(content_ab, out.style_a), images_bab=b.decode(content_ba, out.style_b))
        if reconstruct:
            out = out._replace(images_aa=a.decode(out.content_a, out.style_a), images_bb=b.decode(out.content_b, out.style_b))
        return out


@config
class DirectionConfig(Config):
    """Which way images are translated."""

    direction: Direction = "a-to-b"
    "The domain that the images are of, and the one that they come to."


@config
class UnpairedConfig(GANConfig):
    """A GAN of two domains."""

    changeable: ClassVar = frozenset(("translation",))
    terms: ClassVar = {
        "adversarial_a": "adversarial_weight",
        "adversarial_b": "adversarial_weight",
        "image_recon": "image_recon_weight",
        "cycle_recon": "cycle_weight",
        "perceptual": "perceptual_weight",
    }

    generator: GeneratorConfig
    "The two auto-encoders."
    discriminator: PatchDiscriminatorConfig | ResidualDiscriminatorConfig = PatchDiscriminatorConfig(num_discriminators=3)
    "The discriminator that each domain has."
    image_recon_weight: float = 1.0
    "Weight of the distance between an image and what its own auto-encoder makes of it."
    cycle_weight: float = 1.0
    "Weight of the distance between an image and what comes back of it from the other domain."
    perceptual_weight: float = 0.0
    "Weight of the distance between an image and its translation in the features of a frozen network."
    perceptual: PerceptualConfig = PerceptualConfig()
    "That network."
    translation: DirectionConfig = DirectionConfig()
    "Default settings of `triptych translate`; the grids during training go both ways."

    def validate(self) -> None:
        wanted = "a positive number where the weights of all other terms are 0"
        self.require(any(self.weights.values()), "adversarial_weight", wanted)

    def shrunk(self) -> Self:
        return replace(self, generator=self.generator.shrunk(), discriminator=self.discriminator.shrunk())

    def check(self, spec: DataSpec, *, steps: str) -> None:
        """Raises ConfigError for data without a second domain, and for sizes that do not fit; `steps`: the setting of the stride."""
        if not any(entry.name == IMAGES_B and entry.kind == "image" and entry.channels == spec.channels for entry in spec.inputs):
            reason = f"the data has no {IMAGES_B}, and this model needs images of two domains"
            raise ConfigError("", f"{reason}; use data of UnpairedDataConfig, as in the recipe unit-mnist")
        stride, least = self.generator.stride, self.generator.least_size
        multiples = f"expected sides that are multiples of {stride}, 2 to the power of it"
        check_sides(spec, f"generator.{steps}", stride=stride, expected=multiples, advice="give fewer, or another data.image_size")
        advice, larger = "give fewer downsamples", "or a larger data.image_size"
        check_sides(spec, "generator", least=least, expected=f"expected at least {least} along a side", advice=f"{advice}, {larger}")
        (height, width), judge = spec.height_and_width, self.discriminator
        if isinstance(judge, PatchDiscriminatorConfig):
            least, advice = least_side(judge), f"give fewer num_layers or num_discriminators, {larger}"
            check_sides(spec, "discriminator", least=least, expected=f"expected at least {least} along a side", advice=advice)
        elif (height, width) != (side := 4 * 2**judge.num_layers, side):
            reason = f"got {judge.num_layers}, which takes images of exactly {side}x{side}, 4 times 2 to the power of it"
            raise ConfigError("discriminator.num_layers", f"{reason}, but they have {width}x{height}; set data.image_size to {side}")
        check_perceptual(spec, weight=self.perceptual_weight, perceptual=self.perceptual)


class UnpairedGAN(TranslationGAN):
    """Two auto-encoders and a discriminator of each domain."""

    config: UnpairedConfig
    generator: BothDomains
    discriminator: PairDiscriminator
    begins = True

    def __init__(self, config: UnpairedConfig, spec: DataSpec, generator: BothDomains, *, partial: bool = False) -> None:
        super().__init__(
            config,
            spec,
            generator,
            PairDiscriminator(config.discriminator, image_channels=spec.channels),
            sizes=config.generator,
            translation=config.translation,
            perceptual=config.perceptual if config.perceptual_weight > 0 else None,
            partial=partial,
        )
        other: Direction = "a-to-b" if config.translation.direction == "b-to-a" else "b-to-a"
        self.grids = {other: replace(config.translation, direction=other)}

    # Training -----------------------------------------------------------------------------------------------------------

    def random_styles_of(self, rng: Rng) -> dict[str, Float[Tensor, "b style_dims 1 1"]]:
        """The styles that translations have in training, as the generator's forward takes them; empty: those of the images."""
        return {}

    @property
    def latents_needed(self) -> dict[str, bool]:
        """What `latent_terms` and `adversarial_terms` need beside translations: `encode_translations`, `reconstruct` of the generator."""
        return {"encode_translations": False, "reconstruct": False}

    def latent_terms(self, out: Translations) -> dict[str, Float[Tensor, " b"]]:
        """The terms of contents and styles."""
        return {}

    def _run(self, batch: Batch, **wanted: Any) -> Translations:
        return self.generator(images_a=batch.images, images_b=batch.inputs[IMAGES_B], **wanted)

    def made(self, batch: Batch, rng: Rng) -> Translations:
        """Translations both ways alone."""
        return self._run(batch, **self.random_styles_of(rng), reconstruct=False, cycle=False)

    def begun(self, batch: Batch) -> Encoded:
        """Contents and styles of the images."""
        return self.generator.encode(batch.images, batch.inputs[IMAGES_B])

    def completed(self, begun: Encoded, batch: Batch, rng: Rng) -> Translations:
        """As `made`."""
        return self._run(batch, **self.random_styles_of(rng), encoded=begun, reconstruct=False, cycle=False)

    def contests(self, made: Translations, batch: Batch, rng: Rng) -> list[Contest]:
        """a: the images of a, and those of b as a; b: the other way round."""
        return self._contests(batch, rng, a=made.images_ba, b=made.images_ab)

    def generator_terms(self, made: Translations, batch: Batch, rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """adversarial_a and adversarial_b; of each other term the sum over both domains."""
        weights, needed = self.weights, self.latents_needed
        reconstruct = needed["reconstruct"] or weights["image_recon"] > 0
        out = self._run(batch, begun=made, **{**needed, "reconstruct": reconstruct}, cycle=weights["cycle_recon"] > 0)
        terms = self.adversarial_terms(batch, out, rng) if weights["adversarial_a"] > 0 else {}
        if weights["image_recon"] > 0:
            terms["image_recon"] = _image_recon(batch, out)
        if weights["cycle_recon"] > 0:
            terms["cycle_recon"] = _cycle_recon(batch, out)
        if self.perceptual is not None:
            to_b, to_a = self.perceptual(out.images_ab, batch.images), self.perceptual(out.images_ba, batch.inputs[IMAGES_B])
            terms["perceptual"] = to_b + to_a
        return terms | self.latent_terms(out)

    def adversarial_terms(self, batch: Batch, out: Translations, rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """Of the translations: adversarial_a of those to a, adversarial_b of those to b."""
        return self.fooled(batch, rng, a=out.images_ba, b=out.images_ab)

    def fooled(self, batch: Batch, rng: Rng, *, a: Float[Tensor, "b c h w"], b: Float[Tensor, "b c h w"]) -> dict[str, Float[Tensor, " b"]]:
        """The same of any images that were made for each domain."""
        return {contest.term("adversarial"): self.verdict(contest).loss for contest in self._contests(batch, rng, a=a, b=b)}

    def _contests(self, batch: Batch, rng: Rng, *, a: Tensor, b: Tensor) -> list[Contest]:
        def contest(domain: Literal["a", "b"], real: Tensor, fake: Tensor) -> Contest:
            return self.contest(real, fake, rng, discriminate=lambda view: partial(self.discriminator, domain=domain), name=domain)

        return [contest("a", batch.images, a), contest("b", batch.inputs[IMAGES_B], b)]

    def distances(self, batch: Batch, rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """reconstruction: of images from their own auto-encoder and from the way back, summed; then each of the two."""
        out = self._run(batch, **self.random_styles_of(rng), reconstruct=True, cycle=True)
        images, cycle = _image_recon(batch, out), _cycle_recon(batch, out)
        return {"reconstruction": images + cycle, "image_recon": images, "cycle_recon": cycle}

    # Translation --------------------------------------------------------------------------------------------------------

    def code(self, images: Tensor | None, rng: Rng, *, encoder: AutoEncoder, settings: DirectionConfig) -> Tensor | None:
        """The styles of translations, of style images (b, k, c, any size) or at random; None for a model without."""
        return None

    def example(self, batch: Batch, *, settings: Config) -> Example:
        """The images of the domain that the direction starts from; there is no ground truth for them."""
        return Example(
            {IMAGES: batch.images if settings_like(self.config.translation, settings).direction == "a-to-b" else batch.inputs[IMAGES_B]}
        )

    @torch.no_grad()
    def translate(self, inputs: Mapping[str, Tensor], rng: Rng, *, settings: Config) -> Float[Tensor, "b c h w"]:
        """The images (b, c, h, w) in the other domain, clipped to [-1, 1]; `settings` are such as `translation`.

        A model with styles takes the mean style of k images of that domain, (b, k, c, any size), or draws it from `rng`. Raises ConfigError
        for images that do not fit.
        """
        images, style = self.content_and_style(inputs)
        if style is None and self.random_styles:
            check_drawn(rng, len(images))
        settings, a, b = settings_like(self.config.translation, settings), self.generator.autoencoder_a, self.generator.autoencoder_b
        source, target = (a, b) if settings.direction == "a-to-b" else (b, a)
        code = self.code(style, rng, encoder=target, settings=settings)
        return target.decode(source.content_encoder(images), code).clamp(-1, 1)


def distance(made: Float[Tensor, " b *d"] | None, target: Float[Tensor, " b *d"]) -> Float[Tensor, " b"]:
    """L1 between something that the generator was asked for and its target."""
    assert made is not None, "the generator was not asked for it"
    return l1(made, target)


def _image_recon(batch: Batch, out: Translations) -> Tensor:
    return distance(out.images_aa, batch.images) + distance(out.images_bb, batch.inputs[IMAGES_B])


def _cycle_recon(batch: Batch, out: Translations) -> Tensor:
    return distance(out.images_aba, batch.images) + distance(out.images_bab, batch.inputs[IMAGES_B])
