"""What instances look like, as pix2pixHD's generator takes it (Wang et al. 2018, arXiv 1711.11585, section 3.4).

An encoder gives each pixel of a photo features, which are then averaged over each instance. Over a training set, those of each class are
clustered: the centres are looks to choose from where there is no photo.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from triptych.core.config import Config, config
from triptych.gans.autoencoder import doubled, output_block
from triptych.gans.layers import BlockOptions, ConvBlock, ResBlock, Stack, doubling
from triptych.nn.precision import widened

LEAST_SHARE = 0.0625
"""Of its image that an instance must cover to be clustered."""
MOST_ROUNDS = 100
"""Of k-means."""


@config
class FeatureEncoderConfig(Config):
    """The encoder of what instances look like."""

    num_features: int = 3
    "Channels of the features."
    num_filters: int = 16
    "Channels of the first convolution; they double at each step down."
    num_downsamples: int = 4
    "Steps that halve the size, and steps that double it again."
    num_clusters: int = 10
    "Looks that are kept for each class."

    def validate(self) -> None:
        for name in ("num_features", "num_filters", "num_downsamples", "num_clusters"):
            self.require(getattr(self, name) >= 1, name, "a positive whole number")


def hourglass(in_channels: int, *, widths: list[int], num_res_blocks: int = 0, options: BlockOptions) -> list[nn.Module]:
    """Convolutions down, residual blocks, and up again: the layers of the global generator, and of the encoder, but the last."""
    layers: list[nn.Module] = [ConvBlock(in_channels, widths[0], 7, options=options)]
    layers += [ConvBlock(ins, outs, 3, stride=2, options=options) for ins, outs in pairwise(widths)]
    layers += [ResBlock(widths[-1], widths[-1], order="CNACN", options=options) for _ in range(num_res_blocks)]
    for ins, outs in pairwise(reversed(widths)):
        layers += doubling(ins, outs, 3, options=options)
    return layers


class FeatureEncoder(nn.Module):
    """Images to features that are the same all over an instance: keys model.{i}; buffers cluster_{class} [num_clusters, num_features].

    The buffers hold what instances of each class look like, for images of which there is no photo: `keep` fills them.
    """

    def __init__(self, config: FeatureEncoderConfig, *, num_classes: int, image_channels: int, options: BlockOptions) -> None:
        super().__init__()
        self.num_classes = num_classes
        widths = doubled(config.num_filters, steps=config.num_downsamples)
        layers = hourglass(image_channels, widths=widths, options=options)
        self.model = Stack([*layers, output_block(widths[0], config.num_features, options=options, output="tanh")])
        for index in range(num_classes):
            self.register_buffer(f"cluster_{index}", torch.zeros(config.num_clusters, config.num_features))

    def forward(self, images: Float[Tensor, "b c h w"], *, instances: Num[Tensor, "b 1 h w"]) -> Float[Tensor, "b num_features h w"]:
        """The features of images, averaged over each instance."""
        return averaged_by_instance(self.model(images), instances)

    def keep(self, instances: InstanceFeatures) -> None:
        """Keeps the centres of the features of each class's instances; zeros where there is no instance of it."""
        for index in range(self.num_classes):
            centres = self.get_buffer(f"cluster_{index}")
            vectors = instances.features[instances.classes == index]
            centres.copy_(cluster_centres(vectors, count=len(centres)) if len(vectors) else torch.zeros_like(centres))

    @property
    def kept_any(self) -> bool:
        """Whether looks were kept."""
        return any(bool(self.get_buffer(f"cluster_{index}").any()) for index in range(self.num_classes))

    def kept(self, label: Float[Tensor, "b n h w"], *, choices: Int[Tensor, "b n"]) -> Float[Tensor, "b num_features h w"]:
        """The features of one-hot label maps, from the centres that were kept.

        `choices`: which of its centres each class has in each image.
        """
        centres = torch.stack([self.get_buffer(f"cluster_{index}") for index in range(self.num_classes)])
        picked = centres[torch.arange(self.num_classes, device=choices.device), choices]
        return torch.einsum("bnhw,bnc->bchw", label, picked.to(label.dtype))


def averaged_by_instance(features: Float[Tensor, "b c h w"], instances: Num[Tensor, "b 1 h w"]) -> Float[Tensor, "b c h w"]:
    """Each pixel as the mean over its instance in its image; `instances`: any numbers."""
    b, c, h, w = features.shape
    image = torch.arange(b, device=instances.device).reshape(b, 1, 1, 1).expand_as(instances)
    names = torch.stack((image.flatten(), instances.flatten().long()))
    index = torch.unique(names, dim=1, return_inverse=True)[1]
    flat = features.permute(0, 2, 3, 1).reshape(-1, c)
    wide = widened(flat)
    count = torch.bincount(index).to(wide.dtype)
    sums = wide.new_zeros(len(count), c).index_add(0, index, wide)
    return (sums / count[:, None])[index].reshape(b, h, w, c).permute(0, 3, 1, 2).to(features.dtype)


class InstanceFeatures(NamedTuple):
    """Features and classes of n instances."""

    features: Float[Tensor, "n c"]
    classes: Int[Tensor, " n"]


def instance_features(
    features: Float[Tensor, "b c h w"], *, instances: Num[Tensor, "b 1 h w"], label: Float[Tensor, "b n h w"]
) -> InstanceFeatures:
    """Those of the instances that cover more than `LEAST_SHARE` of their image, each of the class that most of its pixels have.

    `features`: as the encoder averages them; `label`: one-hot, all 0 where a pixel has no class. An instance without any is left out.
    """
    vectors, classes = [features.new_zeros(0, features.shape[1])], [label.new_zeros(0, dtype=torch.long)]
    for image, names, kinds in zip(features, instances[:, 0], label, strict=True):
        for name in names.unique():
            where = names == name
            pixels = kinds[:, where].sum(1)
            if float(where.float().mean()) > LEAST_SHARE and pixels.any():
                vectors.append(image[:, where].mean(1)[None])
                classes.append(pixels.argmax()[None])
    return InstanceFeatures(torch.cat(vectors), torch.cat(classes))


def cluster_centres(vectors: Float[Tensor, "n c"], *, count: int) -> Float[Tensor, "count c"]:
    """The centres that k-means finds for vectors, n > 0; of fewer vectors than centres some are there twice.

    The first centre is the vector nearest to the mean, each next one the vector furthest from those before, so that nothing is drawn.
    """
    chosen = [int((vectors - vectors.mean(0)).norm(dim=1).argmin())]
    for _ in range(count - 1):
        chosen.append(int(torch.cdist(vectors, vectors[chosen]).amin(1).argmax()))
    centres, before = vectors[chosen].clone(), None
    for _ in range(MOST_ROUNDS):
        nearest = torch.cdist(vectors, centres).argmin(1)
        if before is not None and torch.equal(nearest, before):
            break
        before = nearest
        for index in nearest.unique():
            centres[index] = vectors[nearest == index].mean(0)
    return centres
