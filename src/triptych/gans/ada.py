"""Adaptive discriminator augmentation: the discriminator sees all images through random changes, as often as it needs not to overfit.

"Training Generative Adversarial Networks with Limited Data", Karras et al. 2020, https://arxiv.org/abs/2006.06676, appendix B. Each of 18
changes happens to an image with probability p times its multiplier. All that moves pixels is one geometric transform, all that changes
colours one matrix. Every draw is a function of the seed, the stream and the sample's index; the gradient goes through, twice too.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.ramp import Ramp, ends
from triptych.core.rng import Rng
from triptych.gans.ada_operators import NUM_BANDS, cut_out, filtered, recoloured
from triptych.nn.precision import widened
from triptych.nn.warp import changed, moving, scaling, transformed, turning

_COLOUR_CHANGES = ("brightness", "contrast", "luma_flip", "hue_rotation", "saturation")


@config
class ADAConfig(Config):
    """Random changes through which the discriminator sees images, each with probability p times its multiplier (at most 1)."""

    p: float | Ramp = 0.0
    "How often changes happen, from 0 to 1; where a target is given, at the beginning. 0 without a target: never."
    target: float | None = None
    "Move p until the signs of the discriminator's scores of real images have this mean (0.6 in the paper). None: p is as given."
    every: int = 4
    "Move p in every so many iterations, by the mean sign since then."
    images: int = 500_000
    "Real images that the discriminator sees while p moves from 0 to 1."
    x_flip: float = 1.0
    "Multiplier of a change: mirrored, half of the time."
    rotation_90: float = 1.0
    "Multiplier of a change: by 0, 1, 2 or 3 quarters of a turn."
    integer_translation: float = 1.0
    "Multiplier of a change: moved by whole pixels, up to an eighth of each side."
    isotropic_scaling: float = 1.0
    "Multiplier of a change: larger by 2^N(0, 0.2)."
    rotation: float = 1.0
    "Multiplier of a change: turned by any angle, before the anisotropic scaling, after it, or both."
    anisotropic_scaling: float = 1.0
    "Multiplier of a change: wider by 2^N(0, 0.2) and lower by the same."
    fractional_translation: float = 1.0
    "Multiplier of a change: moved by N(0, 1/8) of each side."
    brightness: float = 1.0
    "Multiplier of a change: N(0, 0.2) is added, where images are from -1 to 1."
    contrast: float = 1.0
    "Multiplier of a change: times 2^N(0, 0.5)."
    luma_flip: float = 1.0
    "Multiplier of a change: dark for light, colours kept, half of the time."
    hue_rotation: float = 1.0
    "Multiplier of a change: colours turned about the grey axis by any angle."
    saturation: float = 1.0
    "Multiplier of a change: colours times 2^N(0, 1)."
    image_filter: float = 0.0
    "Multiplier of a change: each of four bands of frequencies, by itself, times 2^N(0, 1)."
    noise: float = 0.0
    "Multiplier of a change: normal noise of standard deviation |N(0, 0.1)|."
    cutout: float = 0.0
    "Multiplier of a change: a grey rectangle of half the sides."

    def validate(self) -> None:
        self.require(all(0 <= p <= 1 for p in ends(self.p)), "p", "from 0 to 1")
        self.require(self.target is None or -1 < self.target < 1, "target", "above -1 and below 1, such as 0.6")
        for setting in ("every", "images"):
            self.require(getattr(self, setting) >= 1, setting, "at least 1")
        for change in self.changes():
            self.require(0 <= getattr(self, change) < float("inf"), change, "0 or a positive number")

    @classmethod
    def changes(cls) -> tuple[str, ...]:
        """The settings that are multipliers."""
        names = tuple(field.name for field in fields(cls))
        return names[names.index("x_flip") :]

    @property
    def used(self) -> bool:
        """Whether any change may ever happen."""
        return (self.target is not None or any(p > 0 for p in ends(self.p))) and any(getattr(self, change) for change in self.changes())


R3GAN_CHANGES = ADAConfig(brightness=0.5, contrast=0.5, luma_flip=0.5, hue_rotation=0.5, saturation=0.5, cutout=1.0)
"""The multipliers of R3GAN (https://arxiv.org/abs/2501.05441); the defaults are the "bgc" of ADA's paper."""


def adapted(
    images: Float[Tensor, "b c h w"], rng: Rng, *, p: float | Tensor, settings: ADAConfig, maps: bool = False
) -> Float[Tensor, "b c h w"]:
    """The images, changed at random, in float32 where the precision was lower; to the bit as they are where nothing happens to them.

    `p`: a number, or a tensor of one. `maps`: label maps, which are moved and cut as the images of the same `rng`, and keep their values.
    Values are not clipped. Raises ConfigError for colours of images that are neither grey nor RGB.
    """
    images = widened(images)
    if not maps:
        require_colours(settings, images.shape[1])
    with torch.autocast(images.device.type, enabled=False):
        drawn = draw(rng, p=p, settings=settings, size=(images.shape[2], images.shape[3]), dtype=images.dtype)
        sources = drawn.sources()
        images = changed(images, drawn.moved, lambda x, i: transformed(x, sources[i], fine=not maps))
        if not maps:
            colours = drawn.colours()
            images = changed(images, drawn.tinted, lambda x, i: recoloured(x, colours[i]))
            images = changed(images, (drawn.gains != 1).any(1), lambda x, i: filtered(x, drawn.gains[i]))
            images = changed(images, drawn.sigma > 0, lambda x, i: _noisy(x, drawn.sigma[i], Rng(rng.seed, rng.stream, rng.index[i])))
        return changed(images, drawn.cut, lambda x, i: cut_out(x, drawn.middle[i]))


def require_colours(settings: ADAConfig, channels: int) -> None:
    """Raises ConfigError for changes of colours in images of so many channels, unless these are grey or RGB."""
    if channels not in (1, 3) and any(getattr(settings, change) for change in _COLOUR_CHANGES):
        names = [f"ada.{change}" for change in _COLOUR_CHANGES]
        raise ConfigError(names[0], f"images of {channels} channels have no colours; set {', '.join(['{}'] * len(names))} to 0", names)


@dataclass(frozen=True)
class Changes:
    """What happens to each image; where a change does not, its number is the one that does nothing."""

    flip: Float[Tensor, " b"]
    "-1: mirrored; 1: not."
    quarters: Int[Tensor, " b"]
    pixels: Float[Tensor, "b 2"]
    "To the right and down, whole numbers."
    scale: Float[Tensor, " b"]
    first_angle: Float[Tensor, " b"]
    stretch: Float[Tensor, " b"]
    second_angle: Float[Tensor, " b"]
    shift: Float[Tensor, "b 2"]
    "To the right and down, in pixels."
    brightness: Float[Tensor, " b"]
    contrast: Float[Tensor, " b"]
    luma: Float[Tensor, " b"]
    "-1: dark for light; 1: not."
    hue: Float[Tensor, " b"]
    saturation: Float[Tensor, " b"]
    gains: Float[Tensor, "b 4"]
    "Of the bands of frequencies, lowest first."
    sigma: Float[Tensor, " b"]
    cut: Bool[Tensor, " b"]
    middle: Float[Tensor, "b 2"]
    "Of the rectangle that is cut: across and down, as shares of the sides."

    def sources(self) -> Float[Tensor, "b 2 3"]:
        """For each place p in the changed image, in pixels from the middle, the place in the image that it shows: source (p, 1).

        The product of the inverses of the transforms, the first of which comes first.
        """
        quarter = self.quarters.to(self.flip) * (math.pi / 2)
        one = torch.ones_like(self.flip)
        steps = (
            scaling(self.flip, one),
            turning(-quarter),
            moving(-self.pixels),
            scaling(1 / self.scale, 1 / self.scale),
            turning(-self.first_angle),
            scaling(1 / self.stretch, self.stretch),
            turning(-self.second_angle),
            moving(-self.shift),
        )
        return functools.reduce(torch.matmul, steps)[:, :2]

    def colours(self) -> Float[Tensor, "b 3 4"]:
        """The matrix of (red, green, blue, 1): brightness, contrast, then, in any order, what happens along the grey axis and about it."""
        options = {"dtype": self.hue.dtype, "device": self.hue.device}
        grey = torch.full((3, 3), 1 / 3, **options)
        beside = torch.eye(3, **options) - grey
        turned = torch.tensor([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]], **options) / math.sqrt(3)
        luma, cosine, sine, saturation, contrast, brightness = (
            value[:, None, None] for value in (self.luma, self.hue.cos(), self.hue.sin(), self.saturation, self.contrast, self.brightness)
        )
        linear = contrast * (luma * grey + saturation * (cosine * beside + sine * turned))
        return torch.cat((linear, brightness * linear.sum(2, keepdim=True)), dim=2)

    @property
    def moved(self) -> Bool[Tensor, " b"]:
        """Whether any pixel moves."""
        still = (self.flip == 1) & (self.quarters == 0) & (self.scale == 1) & (self.stretch == 1)
        still &= (self.first_angle == 0) & (self.second_angle == 0)
        return ~(still & (self.pixels == 0).all(1) & (self.shift == 0).all(1))

    @property
    def tinted(self) -> Bool[Tensor, " b"]:
        """Whether any colour changes."""
        return ~((self.brightness == 0) & (self.contrast == 1) & (self.luma == 1) & (self.hue == 0) & (self.saturation == 1))


def draw(rng: Rng, *, p: float | Tensor, settings: ADAConfig, size: tuple[int, int], dtype: torch.dtype) -> Changes:
    """What happens to images of `size` (h, w): the distributions of the paper, in the order of its changes."""
    gates, uniform = rng.uniform("gates", 19).to(dtype), rng.uniform("uniform", 10).to(dtype)
    normal = rng.normal("normal", 12).to(dtype)
    sides = torch.tensor(size[::-1], dtype=dtype, device=gates.device)
    gate = iter(gates.unbind(1))

    def happens(change: str) -> Tensor:
        probability = (torch.as_tensor(p, device=gates.device) * getattr(settings, change)).clamp(0, 1)
        # Two turns, each as often as makes either of them happen with the probability.
        return next(gate) < (1 - (1 - probability).sqrt() if change == "rotation" else probability)

    def drawn(change: str, value: Tensor, neutral: float) -> Tensor:
        return torch.where(_like(happens(change), value), value, neutral)

    mirrored, quarter, *pixels, first_angle, second_angle, luma, hue, across, down = uniform.unbind(1)
    scale, stretch, *shift, brightness, contrast, saturation = normal[:, :7].unbind(1)
    return Changes(
        flip=drawn("x_flip", _sign(mirrored), 1.0),
        quarters=drawn("rotation_90", (4 * quarter).floor(), 0.0).long(),
        pixels=drawn("integer_translation", ((torch.stack(pixels, 1) * 2 - 1) / 8 * sides).round(), 0.0),
        scale=drawn("isotropic_scaling", (0.2 * scale).exp2(), 1.0),
        first_angle=drawn("rotation", _angle(first_angle), 0.0),
        stretch=drawn("anisotropic_scaling", (0.2 * stretch).exp2(), 1.0),
        second_angle=drawn("rotation", _angle(second_angle), 0.0),
        shift=drawn("fractional_translation", torch.stack(shift, 1) / 8 * sides, 0.0),
        brightness=drawn("brightness", 0.2 * brightness, 0.0),
        contrast=drawn("contrast", (0.5 * contrast).exp2(), 1.0),
        luma=drawn("luma_flip", _sign(luma), 1.0),
        hue=drawn("hue_rotation", _angle(hue), 0.0),
        saturation=drawn("saturation", saturation.exp2(), 1.0),
        gains=_gains(torch.stack([drawn("image_filter", normal[:, 7 + band].exp2(), 1.0) for band in range(NUM_BANDS)], 1)),
        sigma=drawn("noise", 0.1 * normal[:, 11].abs(), 0.0),
        cut=happens("cutout"),
        middle=torch.stack((across, down), 1),
    )


def _gains(amplified: Float[Tensor, "b 4"]) -> Float[Tensor, "b 4"]:
    """The product over the bands of: one band amplified, all divided by what that does to the power of an image of spectrum 1/f."""
    power = torch.tensor([10, 1, 1, 1], dtype=amplified.dtype, device=amplified.device) / 13
    norm = (1 + power * (amplified.square() - 1)).sqrt()
    return amplified / norm.prod(1, keepdim=True)


def _noisy(images: Tensor, sigma: Tensor, rng: Rng) -> Tensor:
    return images + sigma[:, None, None, None] * rng.normal("noise", *images.shape[1:]).to(images.dtype)


def _sign(uniform: Tensor) -> Tensor:
    return torch.where(uniform < 0.5, -1.0, 1.0).to(uniform.dtype)


def _angle(uniform: Tensor) -> Tensor:
    return (2 * uniform - 1) * math.pi


def _like(which: Tensor, value: Tensor) -> Tensor:
    return which if value.ndim == 1 else which[:, None]
