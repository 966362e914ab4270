"""Networks as the names and shapes of imaginaire's weights describe them, with the settings of the YAML file laid over them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from triptych.gans.coco_funit import COCOFUNITGeneratorConfig
from triptych.gans.discriminators import PairDiscriminator, PatchDiscriminatorConfig, ResidualDiscriminatorConfig
from triptych.gans.funit import FUNITDiscriminator, FUNITDiscriminatorConfig, FUNITGenerator, FUNITGeneratorConfig
from triptych.gans.instance_features import FeatureEncoderConfig
from triptych.gans.munit import MUNITGenerator, MUNITGeneratorConfig
from triptych.gans.norms import NormKind
from triptych.gans.pix2pixhd import Pix2PixHDDiscriminator, Pix2PixHDGenerator, Pix2PixHDGeneratorConfig
from triptych.gans.spade import SPADEDiscriminator, SPADEDiscriminatorConfig, SPADEGenerator, SPADEGeneratorConfig
from triptych.gans.unit import UNITGenerator, UNITGeneratorConfig
from triptych.interop.imaginaire.few_shot_video import few_shot_discriminator, few_shot_generator
from triptych.interop.imaginaire.networks import CLASSES, GENERATORS, MOST_STEPS, PATCH, RESIDUAL, C, overlaid
from triptych.interop.imaginaire.reading import VIDEO, ModelType, Settings
from triptych.interop.imaginaire.tensors import Network, Weights
from triptych.interop.imaginaire.video import video_discriminator, video_generator

ROOTS: dict[ModelType, str] = {"spade": "spade_generator", "pix2pixHD": "global_model"}
ROOTS |= {"unit": "autoencoder_a", "munit": "autoencoder_a", "funit": "generator", "coco_funit": "generator"}
ROOTS |= {"vid2vid": "flow_network_temp", "wc_vid2vid": "flow_network_temp", "fs_vid2vid": "weight_generator"}
"""A part that every generator of a model has: names of its weights begin so."""

_OF_WEIGHTS = ("weight_norm", "norm_weight_norm", "norm_affine")
"""Settings that the weights alone decide: an average has no spectral norm, whatever the file says."""


def generator_of(kind: ModelType, weights: Weights, gen: Settings) -> Network:
    """The generator with such weights; the rest is as `gen` says. CheckpointError for another network, ConfigError for a wrong setting."""
    if kind == "fs_vid2vid":
        return few_shot_generator(weights, gen)
    if kind in VIDEO:
        return video_generator(kind, weights, gen)
    network = _spade(weights) if kind == "spade" else _pix2pixhd(weights) if kind == "pix2pixHD" else _auto_encoders(kind, weights)
    names = GENERATORS[kind]
    if getattr(network.config, "style_dims", None) is not None:
        names = {"style_dims": "style_dims", **names}
    return replace(network, config=_overlaid(network.config, gen, names))


def _overlaid(config: C, settings: Settings, names: Mapping[str, str]) -> C:
    return overlaid(config, settings, {ours: theirs for ours, theirs in names.items() if ours not in _OF_WEIGHTS}, least=1)


# Generators -----------------------------------------------------------------------------------------------------------------


def _spade(weights: Weights) -> Network:
    root = ROOTS["spade"]
    spade = f"{root}.head_1.conv_block_0.layers.norm"
    separate = weights.has(f"{spade}.gammas.")
    hidden = weights.has(f"{spade}.mlps.0.0.") and (separate or weights.has(f"{spade}.mlps.0.1."))
    head = weights.weight(f"{root}.head_0.layers.conv")
    first = f"{spade}.{'gammas.0' if separate and not hidden else 'mlps.0.0'}.layers.conv"
    seen = weights.weight(first)
    whole, inner = weights.norm_of(f"{root}.head_0.layers.conv"), weights.norm_of(first)
    config = SPADEGeneratorConfig(
        resolution=1024 if weights.has(f"{root}.conv_img1024.") else 512 if weights.has(f"{root}.conv_img512.") else 256,
        num_filters=max(1, head[0] // 8),
        kernel_size=head[2],
        style_dims=None,
        spade_filters=seen[0] if hidden else 0,
        spade_kernel_size=seen[2],
        separate_projection=separate,
        norm_affine=weights.has(f"{spade}.norm.weight"),
        weight_norm=whole,
        norm_weight_norm=None if inner == whole else inner,
        positional_input=head[1] == seen[1] + 2,
    )
    if weights.has(f"{root}.fc_0."):
        filters = weights.weight("style_encoder.layer1.layers.conv")[0]
        last = weights.weight("style_encoder.fc_mu.layers.conv", axes=2)[1]  # of a square map with 8 times the filters
        config = replace(
            config,
            style_dims=weights.weight(f"{root}.fc_0.layers.conv", axes=2)[1],
            encoder_filters=filters,
            encoder_size=64 * max(1, math.isqrt(last // (8 * filters))),
        )
    image_channels = weights.weight(f"{root}.conv_img256.layers.conv")[0]
    return Network(SPADEGenerator, config, image_channels, label_channels=seen[1])


def _pix2pixhd(weights: Weights) -> Network:
    enhancers = weights.count("enhancer_", ".")
    root = ROOTS["pix2pixHD"] + ("" if enhancers else ".model")
    first = weights.weight(f"{root}.0.layers.conv")
    # The first convolution, n down, and n up, with the last one where there are no enhancers.
    convolutions = weights.count(f"{root}.", ".layers.")
    label_channels, encoder = first[1], None
    if weights.has("encoder."):
        steps = (weights.count("encoder.model.", ".layers.") - 2) // 2
        filters, features = weights.weight("encoder.model.0.layers.conv")[0], _last_output(weights, "encoder.model")
        encoder = FeatureEncoderConfig(num_features=features, num_filters=filters, num_downsamples=max(1, steps))
        label_channels -= features
    config = Pix2PixHDGeneratorConfig(
        num_filters=first[0],
        num_downsamples=max(0, min((convolutions - (1 if enhancers else 2)) // 2, MOST_STEPS)),
        num_res_blocks=weights.count(f"{root}.", ".conv_block_0."),
        num_enhancers=enhancers,
        num_enhancer_res_blocks=weights.count("enhancer_0.model_upsample.", ".conv_block_0") or 3,
        weight_norm=weights.weight_norm,
        encoder=encoder,
    )
    image_channels = _last_output(weights, f"enhancer_{enhancers - 1}.model_upsample" if enhancers else root)
    return Network(Pix2PixHDGenerator, config, image_channels, label_channels=max(1, label_channels))


def _last_output(weights: Weights, root: str) -> int:
    return weights.weight(f"{root}.{max(weights.numbers(f'{root}.', '.layers.conv.'), default=0)}.layers.conv")[0]


def _downsamples(weights: Weights, encoder: str) -> int:
    """Steps of an encoder that halve the size: all its convolutions but the first."""
    return max(0, weights.count(f"{encoder}.model.", ".layers") - 1)


def _content(weights: Weights, root: str) -> dict[str, Any]:
    """Settings of all content encoders."""
    encoder = f"{root}.content_encoder"
    return {
        "num_filters": weights.weight(f"{encoder}.model.0.layers.conv")[0],
        "num_res_blocks": weights.count(f"{encoder}.model.", ".conv_block_0"),
        "weight_norm": weights.weight_norm,
    }


def _domain_content(weights: Weights, root: str) -> dict[str, Any]:
    """Settings of the content encoders of UNIT and MUNIT."""
    encoder = f"{root}.content_encoder"
    steps = _downsamples(weights, encoder)
    norm_first = weights.norm_first(f"{encoder}.model.{steps + 1}.conv_block_0")
    widest = weights.weight(f"{encoder}.model.{steps}.layers.conv")[0]
    return {**_content(weights, root), "max_num_filters": widest, "pre_activation": norm_first is not False}


def _style(weights: Weights, root: str) -> dict[str, Any]:
    """Settings of models with a style: MUNIT and FUNIT."""
    width, dims = weights.weight(f"{root}.mlp.model.0.layers.conv", axes=2)[:2]
    return {
        "num_downsamples_content": _downsamples(weights, f"{root}.content_encoder"),
        "num_downsamples_style": _downsamples(weights, f"{root}.style_encoder"),
        "style_dims": dims,
        "mlp_filters": width,
        "mlp_layers": max(1, weights.count(f"{root}.mlp.model.", ".")),
    }


def _auto_encoders(kind: ModelType, weights: Weights) -> Network:
    root = ROOTS[kind]
    channels = weights.weight(f"{root}.content_encoder.model.0.layers.conv")[1]
    if kind == "unit":
        config = UNITGeneratorConfig(**_domain_content(weights, root), num_downsamples=_downsamples(weights, f"{root}.content_encoder"))
        return Network(UNITGenerator, config, channels)
    if kind == "munit":
        return Network(MUNITGenerator, MUNITGeneratorConfig(**_domain_content(weights, root), **_style(weights, root)), channels)
    settings = _content(weights, root) | _style(weights, root)
    if kind == "funit":
        return Network(FUNITGenerator, FUNITGeneratorConfig(**settings), channels)
    bias = weights.shape("generator.usb", axes=2)[1]
    return Network(FUNITGenerator, COCOFUNITGeneratorConfig(**settings, style_bias_dims=bias), channels)


# Discriminators -------------------------------------------------------------------------------------------------------------


def discriminator_of(kind: ModelType, weights: Weights, dis: Settings) -> Network:
    """The discriminator with such weights; what they do not show is as the section `dis` says. Raises as `generator_of` does."""
    match kind:
        case "spade":
            return _spade_discriminator(weights, dis)
        case "pix2pixHD":
            config, channels = _patches(weights, dis, "model.", norm="instance")
            images = dis.number("image_channels", 3)
            return Network(Pix2PixHDDiscriminator, config, images, label_channels=channels - images)
        case "unit" | "munit":
            if weights.has("discriminator_a.discriminator"):
                config, channels = _patches(weights, dis, "discriminator_a.")
            else:
                settings, channels = _residual(weights, "discriminator_a.model", blocks=1)
                config = _overlaid(ResidualDiscriminatorConfig(**settings), dis, RESIDUAL)
            return Network(PairDiscriminator, config, channels)
        case "vid2vid" | "wc_vid2vid":
            return video_discriminator(weights, dis)
        case "fs_vid2vid":
            return few_shot_discriminator(weights, dis)
        case "funit" | "coco_funit":
            settings, channels = _residual(weights, "model.model", blocks=2)
            config = _overlaid(FUNITDiscriminatorConfig(**settings), dis, CLASSES)
            return Network(FUNITDiscriminator, config, channels, num_classes=weights.shape("model.embedder.weight", axes=2)[0])


def _patches(weights: Weights, dis: Settings, prefix: str, *, norm: NormKind = "none") -> tuple[PatchDiscriminatorConfig, int]:
    """Discriminators of patches, and the channels that they take; `norm`: one that leaves no weights."""
    shared = weights.has(f"{prefix}discriminator.")
    root = f"{prefix}discriminator" if shared else f"{prefix}discriminators.0"
    layers = weights.count(f"{root}.layer", ".")
    filters, channels, kernel_size = weights.weight(f"{root}.layer0.0.layers.conv")[:3]
    config = PatchDiscriminatorConfig(
        num_discriminators=3 if shared else weights.count(f"{prefix}discriminators.", "."),
        shared=shared,
        kernel_size=kernel_size,
        num_filters=filters,
        max_num_filters=weights.weight(f"{root}.layer{layers - 2}.0.layers.conv")[0],
        num_layers=max(1, layers - 2),
        norm="instance" if weights.has(f"{root}.layer0.0.layers.norm.") else norm,
        weight_norm=weights.weight_norm,
    )
    return _overlaid(config, dis, PATCH), channels


def _spade_discriminator(weights: Weights, dis: Settings) -> Network:
    patch, channels = _patches(weights, dis, "")
    if not weights.has("fpse_discriminator."):
        images = dis.number("image_channels", 3)
        config = SPADEDiscriminatorConfig(patch=patch, feature_pyramid=False)
        return Network(SPADEDiscriminator, config, images, label_channels=channels - images)
    images, labels = (weights.weight(f"fpse_discriminator.{layer}.layers.conv")[1] for layer in ("enc1", "embedding"))
    return Network(SPADEDiscriminator, SPADEDiscriminatorConfig(patch=patch), images, label_channels=labels)


def _residual(weights: Weights, root: str, *, blocks: int) -> tuple[dict[str, Any], int]:
    """Settings of a discriminator with so many residual blocks in a layer, and the channels of its images."""
    layers = max(1, weights.count(f"{root}.", ".conv_block_0.") // blocks)
    filters, channels = weights.weight(f"{root}.0.layers.conv")[:2]
    widest = weights.weight(f"{root}.{blocks * (2 * layers - 1)}.conv_block_1.layers.conv")[0]
    return {"num_filters": filters, "max_num_filters": widest, "num_layers": layers, "weight_norm": weights.weight_norm}, channels
