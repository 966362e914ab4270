"""The perceptual loss: distances between the features that a frozen network, trained to classify photos, has of two images.

"Perceptual Losses for Real-Time Style Transfer and Super-Resolution", Johnson et al. 2016, https://arxiv.org/abs/1603.08155, with the
layers and weights of pix2pixHD (Wang et al. 2018, https://arxiv.org/abs/1711.11585). The networks are ours, up to where they
turn into classes; their weights come from a file that the user has, under the names of torchvision's models (see nn/feature_networks.py).

No checkpoint has these weights: a model is built, loaded and sampled without them, and they are loaded where it is trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from triptych.core.config import Config, config
from triptych.core.errors import ConfigError, nearest
from triptych.gans.losses import l1, sample_mean
from triptych.nn.feature_networks import NETWORKS, FeatureNetwork, NetworkName, Preprocessing, layer_names, trace
from triptych.nn.precision import widened


@config
class PerceptualConfig(Config):
    """A distance of images in the features of a frozen network."""

    changeable: ClassVar = frozenset(("weights",))

    network: NetworkName = "vgg19"
    "The network, trained to classify ImageNet."
    weights: str | None = None
    "File of its weights (.pth or .safetensors), with the names of torchvision; a training needs it, and nothing else. None: none."
    preprocessing: Preprocessing | None = None
    "What the weights expect. imagenet: RGB less mean, by deviation; caffe: BGR 0..255 less mean; symmetric: RGB -1..1. None: as usual."
    layers: tuple[str, ...] | None = None
    "Layers that are compared; None: five from fine to coarse, in VGG relu_1_1, relu_2_1, relu_3_1, relu_4_1 and relu_5_1."
    layer_weights: tuple[float, ...] = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1.0)
    "Factor of each layer's distance."
    criterion: Literal["l1", "l2"] = "l1"
    "Mean of the absolute or of the squared differences of features."
    num_scales: int = 1
    "Compare also at half the size, a quarter and so on: the number of sizes."
    resize: int | None = None
    "Pixels of the sides that images are resized to first, 224 for what the networks were trained on; None: as they are."

    def validate(self) -> None:
        if self.layers is not None:
            layers = layer_names(self.network)
            for name in self.layers:
                hint = nearest(name, layers) or f", expected some of {', '.join(layers)}"
                self.require(name in layers, "layers", f"layers of {self.network}{hint}")
            self.require(0 < len(self.layers) == len(set(self.layers)), "layers", "at least one name, each once")
        count = len(self.compared)
        self.require(len(self.layer_weights) == count, "layer_weights", f"{count} numbers, one for each layer")
        self.require(all(0 <= weight < math.inf for weight in self.layer_weights), "layer_weights", "0 or more")
        self.require(self.num_scales >= 1, "num_scales", "at least 1")
        self.require(self.resize is None or self.resize >= 1, "resize", "at least 1, or none")

    @property
    def compared(self) -> tuple[str, ...]:
        """The names of the layers that are compared."""
        return NETWORKS[self.network].layers if self.layers is None else self.layers

    def check_size(self, height: int, width: int) -> None:
        """Raises ConfigError where images of this size become too small for the layers at the last of the scales."""
        sides = (height, width) if self.resize is None else (self.resize, self.resize)
        height, width = (side >> (self.num_scales - 1) for side in sides)
        try:
            trace(self.network, self.compared, height=height, width=width)
        except RuntimeError:
            reason = f"at the last of {self.num_scales} scales images have {height}x{width} pixels, too few for {self.compared[-1]}"
            raise ConfigError("layers", f"{reason} of {self.network}; take earlier layers, fewer scales or a larger resize") from None


class PerceptualLoss(nn.Module):
    """The loss of a PerceptualConfig. It has no state to save; `load` comes before the first call."""

    def __init__(self, config: PerceptualConfig) -> None:
        super().__init__()
        self.config = config
        self.network = FeatureNetwork(config.network, layers=config.compared, preprocessing=config.preprocessing)

    def load(self, weights: Mapping[str, Tensor], *, source: str = "the weights") -> None:
        """Takes the network's weights from the tensors of a file, which messages call `source`; raises CheckpointError."""
        self.network.load(weights, source=source)

    def forward(self, images: Float[Tensor, "b c h w"], target: Float[Tensor, "b c h w"]) -> Float[Tensor, " b"]:
        """The distance of each image, grey or RGB in [-1, 1], from its target, which gets no gradient.

        Layers and scales are summed. Raises ConfigError while there are no weights.
        """
        return self.between(self.features(images), self.features(target.detach()))

    def features(self, images: Float[Tensor, "b c h w"]) -> list[Float[Tensor, "b _ _ _"]]:
        """The features of the layers, at one scale after the other. Raises ConfigError while there are no weights."""
        if not self.network.loaded:
            raise ConfigError("weights", f"the perceptual loss has no weights; give a file of those of {self.network.name}")
        x, found = self._resized(self.network.prepared(images)), []
        for scale in range(self.config.num_scales):
            x = _halved(x) if scale > 0 else x
            found += self.network(x)
        return found

    def between(self, features: list[Float[Tensor, "b _ _ _"]], target: list[Float[Tensor, "b _ _ _"]]) -> Float[Tensor, " b"]:
        """The distance of images from their targets, by the features of both."""
        distance = l1 if self.config.criterion == "l1" else _l2
        weights = self.config.layer_weights * self.config.num_scales
        return torch.stack([w * distance(a, b) for w, a, b in zip(weights, features, target, strict=True)]).sum(0)

    def _resized(self, x: Tensor) -> Tensor:
        size = self.config.resize
        return x if size is None else F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)


def _l2(x: Tensor, target: Tensor) -> Tensor:
    return sample_mean((widened(x) - widened(target)).square())


def _halved(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=0.5, mode="bilinear", align_corners=False)
