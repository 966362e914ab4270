"""What the GANs that translate have in common: sides that fit, the perceptual loss, and the checks of what they are given."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Literal, Self

from torch import Tensor, nn

from triptych.core.batch import IMAGES, STYLE, DataSpec, InputSpec
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.wording import counted
from triptych.gans.model import GAN, GENERATOR, GANConfig
from triptych.gans.perceptual import PerceptualConfig, PerceptualLoss
from triptych.nn.images import image_shape

Styles = Literal["none", "optional", "required"]
PERCEPTUAL = "perceptual"


@config
class GeneratorConfig(Config):
    """The networks that make images."""

    @property
    @abstractmethod
    def stride(self) -> int:
        """The sides of images are multiples of it."""

    @property
    @abstractmethod
    def least_size(self) -> int:
        """The fewest pixels along a side."""

    @abstractmethod
    def shrunk(self) -> Self:
        """Narrow networks, for tests."""


def check_sides(spec: DataSpec, setting: str, *, stride: int = 1, least: int = 1, given: object = None, expected: str, advice: str) -> None:
    """Raises ConfigError for images whose sides are no multiples of `stride`, or shorter than `least`.

    `given`: the setting, which has a part in the message unless it is None; `expected`: the sides, in words.
    """
    height, width = spec.height_and_width
    if height % stride or width % stride or min(height, width) < least:
        got = "" if given is None else f"{given!r} for "
        raise ConfigError(setting, f"got {got}images of {width}x{height} pixels, {expected}; {advice}")


def check_perceptual(spec: DataSpec, *, weight: float, perceptual: PerceptualConfig) -> None:
    """Raises ConfigError for images that a perceptual loss of this weight does not take."""
    if weight > 0:
        try:
            perceptual.check_size(*spec.height_and_width)
        except ConfigError as error:
            raise error.inside(PERCEPTUAL) from None


def check_numbers(images: Tensor, name: str) -> None:
    """Raises ConfigError for images of whole numbers, as those of files are."""
    if not images.is_floating_point():
        got = str(images.dtype).removeprefix("torch.")
        raise ConfigError(name, f"got images of {got}, expected floating-point numbers from -1 to 1: those of 0 to 255 over 127.5, less 1")


class TranslationGAN(GAN):
    """A GAN that is a Translator."""

    validated = (GENERATOR,)
    styles: Styles = "none"
    random_styles = False

    def __init__(
        self,
        config: GANConfig,
        spec: DataSpec,
        generator: nn.Module,
        discriminator: nn.Module,
        *,
        sizes: GeneratorConfig,
        translation: Config,
        perceptual: PerceptualConfig | None = None,
        partial: bool = False,
    ) -> None:
        """`translation`: the default settings; `perceptual`: None where that loss has no weight."""
        super().__init__(config, generator, discriminator, partial=partial)
        self.translation = translation
        self.sources = (InputSpec(name=IMAGES, kind="image", channels=spec.channels),)
        self.output_channels = image_shape(spec)[0]
        self.stride, self.least_size = sizes.stride, sizes.least_size
        self.perceptual = None if perceptual is None else PerceptualLoss(perceptual)
        if perceptual is not None:
            self.frozen_networks = {PERCEPTUAL: perceptual.weights}

    def content_and_style(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """The content images (b, c, h, w), and the style images (b, k, c, any size) where there are some.

        Raises ConfigError for what is missing, and for other shapes and sides than the generator takes.
        """
        images = self._checked(inputs, IMAGES, ("b",))
        height, width = images.shape[2:]
        if height % self.stride or width % self.stride:
            raise ConfigError(IMAGES, f"got {width}x{height} pixels, expected sides that are multiples of {self.stride}")
        if inputs.get(STYLE) is None and self.styles != "required":
            return images, None
        if self.styles == "none":
            raise ConfigError(STYLE, "this model takes no style images; leave them out")
        style = self._checked(inputs, STYLE, ("b", "k"))
        if len(style) != len(images):
            raise ConfigError(STYLE, f"got style images for {counted(len(style), 'image')}, expected them for {len(images)}")
        return images, style

    def _checked(self, inputs: Mapping[str, Tensor], name: str, first: tuple[str, ...]) -> Tensor:
        images, wanted = inputs.get(name), f"({', '.join(first)}, {self.output_channels}, h, w)"
        if images is None:
            raise ConfigError(name, f"missing, this model needs images of shape {wanted}")
        if images.ndim != len(first) + 3 or images.shape[-3] != self.output_channels or 0 in images.shape[1:]:
            raise ConfigError(name, f"got images of shape {tuple(images.shape)}, expected {wanted}")
        check_numbers(images, name)
        height, width = images.shape[-2:]
        if min(height, width) < self.least_size:
            raise ConfigError(name, f"got {width}x{height} pixels, expected at least {self.least_size} along a side")
        return images
