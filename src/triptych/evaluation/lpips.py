"""LPIPS: how far apart two images are in the features of a network, in units fitted to what people see.

"The Unreasonable Effectiveness of Deep Features as a Perceptual Metric", Zhang et al. 2018, https://arxiv.org/abs/1801.03924, Eq. 1, in
version 0.1. The linear heads come with Triptych (assets/lpips.npz); the networks' weights are torchvision's, from a file that the user has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float64, UInt8
from torch import Tensor, nn

from triptych.core.cache import cache_folder
from triptych.core.errors import CheckpointError, ConfigError, DataError
from triptych.core.reading import sha256_of, user_path
from triptych.core.weight_files import read_weights
from triptych.nn.feature_networks import FeatureNetwork, trace
from triptych.nn.precision import without_tf32

LpipsNetwork = Literal["alexnet", "vgg16"]


@dataclass(frozen=True)
class Backbone:
    """A network whose features are compared."""

    layers: tuple[str, ...]
    file: str
    "Of torchvision's weights; its last letters begin the SHA-256."

    @property
    def sha256(self) -> str:
        """How the file's hash begins."""
        return Path(self.file).stem.rpartition("-")[2]


BACKBONES: Mapping[LpipsNetwork, Backbone] = {
    "alexnet": Backbone(("relu_1", "relu_2", "relu_3", "relu_4", "relu_5"), "alexnet-owt-7be5be79.pth"),
    "vgg16": Backbone(("relu_1_2", "relu_2_2", "relu_3_3", "relu_4_3", "relu_5_3"), "vgg16-397923af.pth"),
}
_SOURCE = "https://download.pytorch.org/models/"
_EPS = 1e-10  # added to the length of a feature vector: the v0.1 program's


class Lpips(nn.Module):
    """The distance of pairs of images. The network sees one image at a time, so that a figure does not depend on the batch."""

    identity: dict[str, Any]
    "JSON: what the distance depends on beside the images."

    def __init__(self, name: LpipsNetwork, weights: Mapping[str, Tensor], *, source: str = "the weights", sha256: str = "") -> None:
        """Takes the network's weights by torchvision's names; raises CheckpointError, about `source`, where they do not fit."""
        super().__init__()
        # "imagenet" is LPIPS's own scaling of images in [-1, 1]: its shift is 2 mean - 1, its scale 2 std.
        self.network = FeatureNetwork(name, layers=BACKBONES[name].layers, preprocessing="imagenet")
        self.network.load(weights, source=source)
        self.name: LpipsNetwork = name
        self.identity = {"lpips": "0.1", "network": name, "sha256": sha256 or None}
        for layer, head in enumerate(heads(name)):
            self.register_buffer(f"head_{layer}", torch.from_numpy(head), persistent=False)

    @torch.no_grad()
    def forward(self, images: UInt8[Tensor, "b h w c"], truth: UInt8[Tensor, "b h w c"]) -> Float64[Tensor, " b"]:
        """d(x, x0), Eq. 1, of each pair: 0 for equal images, and the same in both directions; seldom above 1.

        Grey images are repeated to three channels. Raises DataError for images too small for the network.
        """
        return torch.stack([self._distance(self.features(x), self.features(y)) for x, y in zip(images, truth, strict=True)])

    @torch.no_grad()
    def diversity(self, answers: UInt8[Tensor, "b k h w c"]) -> Float64[Tensor, " b"]:
        """The mean distance of all pairs among the k answers to each input; raises DataError for fewer than two."""
        if answers.shape[1] < 2:
            raise DataError(f"diversity needs at least 2 answers to each input, got {answers.shape[1]}")
        means = []
        for own in answers:
            features = [self.features(image) for image in own]
            means.append(torch.stack([self._distance(x, y) for x, y in combinations(features, 2)]).mean())
        return torch.stack(means)

    @torch.no_grad()
    def features(self, image: UInt8[Tensor, "h w c"]) -> list[Float[Tensor, "1 _ _ _"]]:
        """The features of the five layers, each pixel's vector divided by its length plus 1e-10."""
        require_side(self.name, *image.shape[:2])
        x = image.permute(2, 0, 1)[None].to(self.network.get_buffer("place")) / 127.5 - 1
        with torch.autocast(x.device.type, enabled=False), without_tf32():
            return [f / (f.square().sum(1, keepdim=True).sqrt() + _EPS) for f in self.network(self.network.prepared(x))]

    def _distance(self, x: list[Tensor], y: list[Tensor]) -> Float64[Tensor, ""]:
        total = torch.zeros((), dtype=torch.float64, device=x[0].device)
        for layer, (a, b) in enumerate(zip(x, y, strict=True)):
            by_channel = (a - b).square().double().mean((0, 2, 3))
            total = total + by_channel @ self.get_buffer(f"head_{layer}").double()
        return total


def heads(name: LpipsNetwork) -> list[np.ndarray]:
    """The weights, 0 or more, of the channels of the five layers: float32 (c,) each."""
    with (
        resources.as_file(resources.files("triptych.evaluation") / "assets" / "lpips.npz") as path,
        np.load(path, allow_pickle=False) as file,
    ):
        return [file[f"{name}.{layer}"] for layer in range(len(BACKBONES[name].layers))]


def open_lpips(name: LpipsNetwork, *, weights: str | Path | None = None, device: torch.device) -> Lpips:
    """LPIPS with torchvision's weights of a file, or of the cache's networks/.

    Raises ConfigError where there is no such file, and CheckpointError where its contents are others.
    """
    backbone = BACKBONES[name]
    path = user_path(weights) if weights is not None else cache_folder() / "networks" / backbone.file
    if not path.is_file():
        remedy = f"fetch {_SOURCE}{backbone.file} and put it there, or give the file (evaluate --pair.lpips-weights FILE)"
        raise ConfigError("", f"LPIPS needs the weights of {name}, and there is no file {path}; {remedy}")
    tensors, digest = read_weights(path), sha256_of(path)
    if not digest.startswith(backbone.sha256):
        reason = f"the SHA-256 begins with {digest[:8]}, that of {backbone.file} with {backbone.sha256}"
        raise CheckpointError(f"{path} is not torchvision's {name}: {reason}; fetch {_SOURCE}{backbone.file}")
    return Lpips(name, tensors, source=str(path), sha256=digest).to(device)


def require_side(name: LpipsNetwork, height: int, width: int) -> None:
    """Raises DataError for images too small to come to the network's last layer."""
    smallest = smallest_side(name)
    if min(height, width) < smallest:
        raise DataError(f"LPIPS on {name} needs images of at least {smallest} pixels a side, got {width}x{height}")


@cache
def smallest_side(name: LpipsNetwork) -> int:
    """Pixels of the shorter side at which the network's last layer has a pixel."""
    return next(side for side in range(1, 64) if _reaches_last_layer(name, side))


def _reaches_last_layer(name: LpipsNetwork, side: int) -> bool:
    try:
        trace(name, BACKBONES[name].layers, height=side, width=side)
    except RuntimeError:  # a layer would have no pixels
        return False
    return True
