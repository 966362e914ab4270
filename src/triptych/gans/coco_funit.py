"""COCO-FUNIT: Few-Shot Unsupervised Image Translation with a Content Conditioned Style Encoder (Saito et al. 2020, arXiv 2007.07431).

FUNIT, but for the style s: a vector u that all images share (the universal style bias) joins it, and the content c says what of it
counts, so that the pose of a style image leaks less into the translation:

    s' = M_s([s, u]) M_c(mean of c),    M_s and M_c layers of their own

Loss and discriminator are those of FUNIT.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from triptych.core.config import config
from triptych.gans.autoencoder import StyleLayers
from triptych.gans.funit import FUNITGeneratorConfig, FUNITTranslator


@config
class COCOFUNITGeneratorConfig(FUNITGeneratorConfig):
    """FUNIT's, with the universal style bias."""

    kind_name: ClassVar = "coco-funit"

    style_bias_dims: int = 1024
    "Numbers of the style that all images share."

    def validate(self) -> None:
        self.require(self.style_bias_dims >= 1, "style_bias_dims", "a positive whole number")

    def shrunk(self) -> Self:
        return replace(super(COCOFUNITGeneratorConfig, self).shrunk(), style_bias_dims=4)  # noqa: UP008 (no bare super() in slotted classes)

    def translator(self, *, image_channels: int) -> FUNITTranslator:
        """The network with fresh weights."""
        return COCOFUNITTranslator(self, image_channels=image_channels)


class COCOFUNITTranslator(FUNITTranslator):
    """FUNIT's keys, and usb [1, style_bias_dims], mlp_content.*, mlp_style.*."""

    def __init__(self, config: COCOFUNITGeneratorConfig, *, image_channels: int) -> None:
        super().__init__(config, image_channels=image_channels)
        content = config.num_filters * 2**config.num_downsamples_content
        self.usb = nn.Parameter(torch.randn(1, config.style_bias_dims))
        self.mlp_content = StyleLayers([content, config.mlp_filters, config.style_dims])
        self.mlp_style = StyleLayers([config.style_dims + config.style_bias_dims, config.mlp_filters, config.style_dims])

    def decode(self, content: Float[Tensor, "b d _ _"], style: Float[Tensor, "b style_dims *1"] | None = None) -> Float[Tensor, "b c h w"]:
        """The images of a content in a style."""
        assert style is not None
        style = style.flatten(1)
        joined = torch.cat((style, self.usb.to(style.dtype).expand(len(style), -1)), dim=1)
        return super().decode(content, self.mlp_style(joined) * self.mlp_content(content.mean((2, 3))))
