"""What a model that translates images is given: content images, and style images where it takes some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from triptych.core.batch import IMAGES, STYLE
from triptych.core.errors import ConfigError

Styles = Literal["none", "optional", "required"]


def content_and_style(
    inputs: Mapping[str, Tensor], *, channels: int, stride: int, least_size: int, styles: Styles
) -> tuple[Tensor, Tensor | None]:
    """The content images (b, c, h, w), and the style images (b, k, c, any size) where there are some.

    Raises ConfigError for what is missing, and for other shapes and sides than the generator takes.
    """
    images = _checked(inputs, IMAGES, ("b",), channels=channels, least_size=least_size)
    height, width = images.shape[2:]
    if height % stride or width % stride:
        raise ConfigError(IMAGES, f"got {width}x{height} pixels, expected sides that are multiples of {stride}")
    if inputs.get(STYLE) is None and styles != "required":
        return images, None
    if styles == "none":
        raise ConfigError(STYLE, "this model takes no style images; leave them out")
    style = _checked(inputs, STYLE, ("b", "k"), channels=channels, least_size=least_size)
    if len(style) != len(images):
        raise ConfigError(STYLE, f"got style images for {len(style)} images, expected them for {len(images)}")
    return images, style


def _checked(inputs: Mapping[str, Tensor], name: str, first: tuple[str, ...], *, channels: int, least_size: int) -> Tensor:
    images, wanted = inputs.get(name), f"({', '.join(first)}, {channels}, h, w)"
    if images is None:
        raise ConfigError(name, f"missing, this model needs images of shape {wanted}")
    if images.ndim != len(first) + 3 or images.shape[-3] != channels or 0 in images.shape[1:]:
        raise ConfigError(name, f"got images of shape {tuple(images.shape)}, expected {wanted}")
    height, width = images.shape[-2:]
    if min(height, width) < least_size:
        raise ConfigError(name, f"got {width}x{height} pixels, expected at least {least_size} along a side")
    return images
