"""pix2pixHD: High-Resolution Image Synthesis and Semantic Manipulation with Conditional GANs (Wang et al. 2018, arXiv 1711.11585).

A global generator at a fraction of the size, and local enhancers (section 3.1), each of which doubles it. With s_N the label map and
s_(n-1) that of s_n at half the size,

    F_0 = global(s_0),    F_n = up_n(down_n(s_n) + F_(n-1)),    image = tanh(convolution(F_N))

The label map has a channel more, the boundaries of the instances (section 3.3). A feature encoder (section 3.4) gives each instance what
it looks like, from a photo or from what instances of its class looked like. The loss is that of `paired_base` (Eq. 5 and the perceptual
loss).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Num
from torch import Tensor, nn

from triptych.core.batch import STYLE, Batch, DataSpec
from triptych.core.config import Config, config, settings_like
from triptych.core.errors import ConfigError
from triptych.core.rng import Rng
from triptych.core.translation import Example
from triptych.gans.autoencoder import doubled, output_block
from triptych.gans.discriminators import MultiResPatch, PatchDiscriminatorConfig, Scores, least_side
from triptych.gans.instance_features import FeatureEncoder, FeatureEncoderConfig, InstanceFeatures, hourglass, instance_features
from triptych.gans.label_maps import LabelMaps, class_channels
from triptych.gans.layers import BlockOptions, ConvBlock, ResBlock, Stack, Wrapped, doubling
from triptych.gans.norms import Norm, NormKind
from triptych.gans.paired_base import Painted, PairedGAN, PairedGANConfig
from triptych.gans.translation_base import GeneratorConfig
from triptych.gans.weight_norms import WeightNorm
from triptych.nn.collectives import gathered
from triptych.nn.images import check_drawn
from triptych.nn.instance_edges import instance_edges
from triptych.nn.precision import widened


@config
class Pix2PixHDGeneratorConfig(GeneratorConfig):
    """The global generator, its local enhancers and the feature encoder."""

    num_filters: int = 64
    "Channels of the global generator's first convolution; they double at each step down."
    num_downsamples: int = 4
    "Steps of the global generator that halve the size."
    num_res_blocks: int = 9
    "Residual blocks of the global generator."
    num_enhancers: int = 0
    "Local enhancers, each of which doubles the size."
    num_enhancer_res_blocks: int = 3
    "Residual blocks of each local enhancer."
    norm: NormKind = "instance"
    "Norm of all layers but the last."
    weight_norm: WeightNorm = "spectral"
    "Norm of the weights of all layers but the last."
    encoder: FeatureEncoderConfig | None = None
    "The feature encoder. None: there is none."

    def validate(self) -> None:
        self.require(self.num_filters >= 1, "num_filters", "a positive whole number")
        for name in ("num_downsamples", "num_res_blocks", "num_enhancers", "num_enhancer_res_blocks"):
            self.require(getattr(self, name) >= 0, name, "0 or more")
        divisor = 2**self.num_enhancers
        self.require(self.num_filters % divisor == 0, "num_filters", f"a multiple of {divisor}, for {self.num_enhancers} enhancers")

    def shrunk(self) -> Self:
        return replace(self, num_filters=4, num_downsamples=1, num_res_blocks=1, num_enhancer_res_blocks=1)

    @property
    def stride(self) -> int:
        stride = 2 ** (self.num_downsamples + self.num_enhancers)
        return stride if self.encoder is None else max(stride, 2**self.encoder.num_downsamples)

    @property
    def least_size(self) -> int:
        """The fewest pixels along a side: a reflected border of 3 takes 4 pixels, and the smallest maps, of 2 pixels, have a variance."""
        least = 2**self.num_enhancers * max(4, 2 ** (self.num_downsamples + 1))
        return least if self.encoder is None else max(least, 2 ** (self.encoder.num_downsamples + 1))


class LocalEnhancer(nn.Module):
    """Twice the size of what the network before it gives: keys model_downsample.{i}, model_upsample.{i}."""

    def __init__(
        self, in_channels: int, num_filters: int, *, image_channels: int | None, num_res_blocks: int, options: BlockOptions
    ) -> None:
        super().__init__()
        nf = num_filters
        first, down = ConvBlock(in_channels, nf, 7, options=options), ConvBlock(nf, 2 * nf, 3, stride=2, options=options)
        self.model_downsample = Stack([first, down])
        layers: list[nn.Module] = [ResBlock(2 * nf, 2 * nf, order="CNACN", options=options) for _ in range(num_res_blocks)]
        layers += doubling(2 * nf, nf, 3, options=options)
        if image_channels is not None:
            layers.append(output_block(nf, image_channels, options=options, output="tanh"))
        self.model_upsample = Stack(layers)

    def forward(self, x: Float[Tensor, "b n h w"], coarse: Float[Tensor, "b _ h//2 w//2"]) -> Float[Tensor, "b c h w"]:
        """num_filters features, or images of the last enhancer. `coarse`: the 2 num_filters features of the network before."""
        return self.model_upsample(self.model_downsample(x) + coarse)


class Pix2PixHDGenerator(nn.Module):
    """Keys global_model.model.{i}; with enhancers global_model.{i} and enhancer_{n}.*; encoder.* where there is a feature encoder."""

    def __init__(
        self, config: Pix2PixHDGeneratorConfig, *, label_channels: int, image_channels: int = 3, num_classes: int | None = None
    ) -> None:
        """`num_classes`: those whose looks a feature encoder keeps; None: all label channels but the last, which is that of the edges."""
        super().__init__()
        self.config = config
        options = BlockOptions(norm=Norm(config.norm), nonlinearity="relu", weight_norm=config.weight_norm, padding_mode="reflect")
        channels = label_channels + (config.encoder.num_features if config.encoder else 0)
        widths = doubled(config.num_filters, steps=config.num_downsamples)
        layers = hourglass(channels, widths=widths, num_res_blocks=config.num_res_blocks, options=options)
        if config.num_enhancers:
            self.global_model = Stack(layers)
        else:
            self.global_model = Wrapped([*layers, output_block(widths[0], image_channels, options=options, output="tanh")])
        for index in range(config.num_enhancers):
            enhancer = LocalEnhancer(
                channels,
                config.num_filters // 2 ** (index + 1),
                image_channels=image_channels if index == config.num_enhancers - 1 else None,
                num_res_blocks=config.num_enhancer_res_blocks,
                options=options,
            )
            self.add_module(f"enhancer_{index}", enhancer)
        if config.encoder:
            classes = label_channels - 1 if num_classes is None else num_classes
            self.encoder = FeatureEncoder(config.encoder, num_classes=classes, image_channels=image_channels, options=options)

    def forward(
        self, *, label: Float[Tensor, "b n h w"], features: Float[Tensor, "b num_features h w"] | None = None
    ) -> Float[Tensor, "b c h w"]:
        """The images in [-1, 1] of label maps, sides multiples of `config.stride`.

        `label`: as `with_edges` makes it, where there are instances. `features`: of the feature encoder, exactly when there is one.
        """
        if (features is None) != (self.config.encoder is None):
            raise ValueError("features are needed, exactly when the network has a feature encoder")
        x = label if features is None else torch.cat((label, features), dim=1)
        pyramid = [x]
        for _ in range(self.config.num_enhancers):
            pyramid.append(F.avg_pool2d(pyramid[-1], 3, stride=2, padding=1, count_include_pad=False))
        out = self.global_model(pyramid.pop())
        for index in range(self.config.num_enhancers):
            out = self.get_submodule(f"enhancer_{index}")(pyramid.pop(), out)
        return out


def with_edges(label: Float[Tensor, "b n h w"], instances: Num[Tensor, "b 1 h w"]) -> Float[Tensor, "b n+1 h w"]:
    """The label maps with a channel more: the edges of `instances`."""
    return torch.cat((label, instance_edges(instances).to(label.dtype)), dim=1)


class Pix2PixHDDiscriminator(nn.Module):
    """Patch discriminators of a label map and its image: keys model.discriminators.{i}.*."""

    def __init__(self, config: PatchDiscriminatorConfig, *, label_channels: int, image_channels: int = 3) -> None:
        super().__init__()
        self.model = MultiResPatch(config, in_channels=label_channels + image_channels)

    def forward(self, images: Float[Tensor, "b c h w"], *, label: Float[Tensor, "b n h w"]) -> Scores:
        """The scores of images with the label maps that they were made of."""
        return self.model(images, beside=label)


@config
class Pix2PixHDTranslationConfig(Config):
    """Settings of a translation: there are none, the label map says it all, or the look of a photo."""


@config
class Pix2PixHDConfig(PairedGANConfig):
    """pix2pixHD."""

    kind_name: ClassVar = "pix2pixhd"
    changeable: ClassVar = frozenset(("translation",))

    generator: Pix2PixHDGeneratorConfig = Pix2PixHDGeneratorConfig()
    "The global generator, its enhancers and its feature encoder."
    discriminator: PatchDiscriminatorConfig = PatchDiscriminatorConfig(num_layers=3, norm="instance")
    "The discriminator."
    translation: Pix2PixHDTranslationConfig = Pix2PixHDTranslationConfig()
    "Settings of `triptych translate`."

    def shrunk(self) -> Self:
        return replace(self, generator=self.generator.shrunk(), discriminator=self.discriminator.shrunk())

    def build(self, spec: DataSpec) -> Pix2PixHD:
        """The model with fresh weights; raises ConfigError for data that is not in pairs, and for sizes that do not fit."""
        labels = self.label_maps(spec.inputs)
        generator, encoder = self.generator, self.generator.encoder
        sides: dict[str, tuple[object, int, int]] = {}
        if encoder is not None:
            if labels.instances is None or not labels.classes:
                lacking = "instance maps (data.instances)" if labels.instances is None else "class maps (data.maps)"
                raise ConfigError("generator.encoder", f"got a feature encoder, but the data has no {lacking}; leave it out, or give them")
            down = encoder.num_downsamples
            sides["generator.encoder.num_downsamples"] = (down, 2**down, 2 ** (down + 1))
        sides |= {
            "generator.num_downsamples": (generator.num_downsamples, generator.stride, generator.least_size),
            "discriminator.num_layers": (self.discriminator.num_layers, 1, least_side(self.discriminator)),
        }
        self.check_sides(spec, sides=sides)
        return Pix2PixHD(self, spec, labels)


class Pix2PixHD(PairedGAN):
    """The model of a Pix2PixHDConfig.

    With a feature encoder, what its instances look like comes from the real image in training and validation. A translation has it from
    style images of the same layout; without them from looks of the training images, which `collect` finds and keeps.
    """

    config: Pix2PixHDConfig
    generator: Pix2PixHDGenerator
    discriminator: Pix2PixHDDiscriminator

    def __init__(self, config: Pix2PixHDConfig, spec: DataSpec, labels: LabelMaps) -> None:
        channels = {"label_channels": labels.channels, "image_channels": spec.channels}
        classes = class_channels(labels.classes[0]) if config.generator.encoder is not None else None
        generator = Pix2PixHDGenerator(config.generator, **channels, num_classes=classes)
        discriminator = Pix2PixHDDiscriminator(config.discriminator, **channels)
        super().__init__(config, spec, generator, discriminator, labels=labels, sizes=config.generator, translation=config.translation)
        self.num_clusters = 0 if config.generator.encoder is None else config.generator.encoder.num_clusters
        if self.num_clusters:
            self.styles, self.random_styles, self.collects = "optional", True, True

    def renamed(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """With enhancers, the layers of a global generator that was trained alone become those of this one's."""
        tensors = super().renamed(tensors)
        if not self.config.generator.num_enhancers:
            return tensors
        alone, here = "generator.global_model.model.", "generator.global_model."
        return {here + name.removeprefix(alone) if name.startswith(alone) else name: tensor for name, tensor in tensors.items()}

    @property
    def draws(self) -> bool:
        """It does not."""
        return False

    def made(self, batch: Batch, rng: Rng) -> Painted:
        """The images with the looks of the real ones' instances."""
        label = self.labels(batch.inputs)
        features = self._features(batch.images, batch.inputs) if self.num_clusters else None
        return Painted(label, self.generator(label=label, features=features))

    def distances(self, batch: Batch, rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """Those of the images that are made in training."""
        return self.compared(self.made(batch, rng).images, batch.images)

    def example(self, batch: Batch, *, settings: Config) -> Example:
        """The label maps and what belongs to them, and the real images; these as style images too where no looks were kept."""
        example = super().example(batch, settings=settings)
        if not self.num_clusters or self.generator.encoder.kept_any:
            return example
        return replace(example, inputs={**example.inputs, STYLE: batch.images[:, None]})

    def _features(self, images: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        return self.generator.encoder(images, instances=self.labels.instance_map(inputs))

    @torch.no_grad()
    def collect(self, batches: Iterable[Batch]) -> None:
        """Keeps what the larger instances of each class look like in these images, as cluster centres, for translations without a photo."""
        kept = []
        for batch in batches:
            instances = self.labels.instance_map(batch.inputs)
            features = self._features(batch.images, batch.inputs)
            kept.append(instance_features(features, instances=instances, label=self.labels.first_classes(batch.inputs)))
        features, classes = (torch.cat(parts) for parts in zip(*kept, strict=True))
        everywhere = gathered(widened(features).flatten()).view(-1, features.shape[1])
        self.generator.encoder.keep(InstanceFeatures(everywhere, gathered(classes)))

    @torch.no_grad()
    def translate(self, inputs: Mapping[str, Tensor], rng: Rng, *, settings: Config) -> Float[Tensor, "b c h w"]:
        """An image in [-1, 1] of each label map.

        With a feature encoder its instances have the mean of the looks that k style images have in their place, which should show the same
        layout, or each class one of its kept looks, by `rng`. `settings` is a Pix2PixHDTranslationConfig. Raises ConfigError for what is
        missing or does not fit.
        """
        settings = settings_like(self.translation, settings)
        label = self._label(inputs)
        images, features = self._style(inputs, count=len(label)), None
        if images is not None:
            features = self._features_of_styles(images, inputs, size=label.shape[2:])
        elif self.num_clusters:
            if not self.generator.encoder.kept_any:
                raise ConfigError(STYLE, "missing: these weights have kept no looks of instances (only averages do); give style images")
            check_drawn(rng, len(label))
            classes = self.labels.first_classes(inputs)
            choices = rng.integers("look", self.num_clusters, classes.shape[1])
            features = self.generator.encoder.kept(classes, choices=choices)
        return widened(self.generator(label=label, features=features))

    def _features_of_styles(self, images: Tensor, inputs: Mapping[str, Tensor], *, size: torch.Size) -> Tensor:
        flat, k = images.flatten(0, 1), images.shape[1]
        if flat.shape[2:] != size:
            flat = F.interpolate(flat, size=tuple(size), mode="bilinear", align_corners=False, antialias=True)
        instances = self.labels.instance_map(inputs).repeat_interleave(k, dim=0)
        return self.generator.encoder(flat, instances=instances).unflatten(0, images.shape[:2]).mean(1)
