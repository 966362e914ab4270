"""What the names and shapes of imaginaire's weights, and the settings of its YAML files, say of a network."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from triptych.gans.coco_funit import COCOFUNITGeneratorConfig
from triptych.gans.discriminators import PairDiscriminator, PatchDiscriminatorConfig, ResidualDiscriminatorConfig
from triptych.gans.funit import FUNITDiscriminator, FUNITDiscriminatorConfig, FUNITGenerator, FUNITGeneratorConfig
from triptych.gans.instance_features import FeatureEncoderConfig
from triptych.gans.munit import MUNITGenerator, MUNITGeneratorConfig
from triptych.gans.norms import NormKind
from triptych.gans.pix2pixhd import Pix2PixHDDiscriminator, Pix2PixHDGenerator, Pix2PixHDGeneratorConfig
from triptych.gans.spade import SPADEDiscriminator, SPADEDiscriminatorConfig, SPADEGenerator, SPADEGeneratorConfig
from triptych.gans.unit import UNITGenerator, UNITGeneratorConfig
from triptych.interop.imaginaire.reading import ModelType, Settings, Weights

STEPS = 16
"""The most changes of resolution that a YAML file may ask for."""


@dataclass(frozen=True)
class Described:
    """A network's configuration, and the function that makes it."""

    config: Any
    build: Callable[[], nn.Module]
    image_channels: int = 3
    label_channels: int | None = None
    "Of what pairs are made from; None: of a model that has no such."
    num_classes: int | None = None
    "That a few-shot discriminator knows; None: of another network."


def describe_generator(kind: ModelType, weights: Weights, values: Any) -> Described:
    """The generator of a type with such weights; `values`: the section `gen`."""
    settings = Settings(values, "gen")
    return {
        "spade": _spade,
        "pix2pixHD": _pix2pixhd,
        "unit": _unit,
        "munit": _munit,
        "funit": _funit,
        "coco_funit": _coco_funit,
    }[kind](weights, settings)


def _spade(weights: Weights, gen: Settings) -> Described:
    root, norm = "spade_generator", gen.inside("activation_norm_params")
    spade = f"{root}.head_1.conv_block_0.layers.norm"
    separate, hidden = weights.has(rf"{spade}\.gammas\."), weights.has(rf"{spade}\.mlps\.0\.0\.")
    head = weights.weight(f"{root}.head_0.layers.conv")
    first = f"{spade}.mlps.0.0.layers.conv" if hidden else f"{spade}.{'gammas.0' if separate else 'mlps.0.1'}.layers.conv"
    seen = weights.weight(first)
    whole, inner = weights.norm_of(f"{root}.head_0.layers.conv"), weights.norm_of(first)
    size = next((size for size in (1024, 512) if weights.has(rf"{root}\.conv_img{size}\.")), 256)
    styled = weights.has(rf"{root}\.fc_0\.")
    encoder = weights.weight("style_encoder.layer1.layers.conv") if styled else (64, 3, 3, 3)
    config = SPADEGeneratorConfig(
        resolution=cast(Any, size),
        num_filters=gen.number("num_filters", lambda: max(1, head[0] // 8)),
        kernel_size=gen.number("kernel_size", head[2]),
        style_dims=gen.number("style_dims", lambda: weights.weight(f"{root}.fc_0.layers.conv", axes=2)[1]) if styled else None,
        spade_filters=norm.number("num_filters", seen[0] if hidden else 0, least=0),
        spade_kernel_size=norm.number("kernel_size", seen[2]),
        separate_projection=norm.flag("separate_projection", separate),
        spade_norm=norm.norm("activation_norm_type", "sync_batch"),
        global_norm=gen.norm("global_adaptive_norm_type", "sync_batch"),
        norm_affine=weights.has(rf"{re.escape(spade)}\.norm\.weight"),
        weight_norm=whole,
        norm_weight_norm=None if inner == whole else inner,
        positional_input=gen.flag("use_posenc_in_input_layer", head[1] == seen[1] + 2),
        output_multiplier=gen.factor("output_multiplier", 1.0),
        encoder_filters=gen.inside("style_enc").number("num_filters", encoder[0]),
        encoder_size=64 * _side(weights, "style_encoder.fc_mu.layers.conv", 8 * encoder[0]) if styled else 256,
    )
    image_channels = weights.weight(f"{root}.conv_img256.layers.conv")[0]
    channels = {"label_channels": seen[1], "image_channels": image_channels}
    return Described(config, lambda: SPADEGenerator(config, **channels), **channels)


def _side(weights: Weights, stem: str, channels: int) -> int:
    """The side of the square map of so many channels that a linear layer takes."""
    return max(1, math.isqrt(weights.weight(stem, axes=2)[1] // channels))


def _pix2pixhd(weights: Weights, gen: Settings) -> Described:
    enhancers = weights.count(r"enhancer_(\d+)\.")
    root = "global_model" if enhancers else "global_model.model"
    pattern = root.replace(".", r"\.")
    first = weights.weight(f"{root}.0.layers.conv")
    blocks = weights.count(rf"{pattern}\.(\d+)\.conv_block_0\.")
    # The first convolution, n down, and n up, with the last one where there are no enhancers.
    convolutions = weights.count(rf"{pattern}\.(\d+)\.layers\.")
    downs = min((convolutions - (1 if enhancers else 2)) // 2, STEPS)
    wide, local, encoder = gen.inside("global_generator"), gen.inside("local_enhancer"), None
    label_channels = first[1]
    if weights.has(r"encoder\."):
        start, features = weights.weight("encoder.model.0.layers.conv"), _last_output(weights, "encoder.model")
        steps = (weights.count(r"encoder\.model\.(\d+)\.layers\.") - 2) // 2
        encoder = FeatureEncoderConfig(num_features=features, num_filters=start[0], num_downsamples=max(1, steps))
        label_channels -= features
    config = Pix2PixHDGeneratorConfig(
        num_filters=wide.number("num_filters", first[0]),
        num_downsamples=wide.number("num_downsamples", max(0, downs), least=0, most=STEPS),
        num_res_blocks=wide.number("num_res_blocks", blocks, least=0),
        num_enhancers=local.number("num_enhancers", enhancers, least=0, most=STEPS),
        num_enhancer_res_blocks=local.number(
            "num_res_blocks", weights.count(r"enhancer_0\.model_upsample\.(\d+)\.conv_block_0") or 3, least=0
        ),
        norm=gen.norm("activation_norm_type", "instance"),
        weight_norm=weights.weight_norm,
        encoder=encoder,
    )
    image_channels = _last_output(weights, f"enhancer_{enhancers - 1}.model_upsample" if enhancers else root)
    channels = {"label_channels": max(1, label_channels), "image_channels": image_channels}
    return Described(config, lambda: Pix2PixHDGenerator(config, **channels), **channels)


def _last_output(weights: Weights, root: str) -> int:
    """Output channels of the last block of a row."""
    indices = [int(m[1]) for m in (re.match(rf"{re.escape(root)}\.(\d{{1,4}})\.layers\.conv\.", name) for name in weights.state) if m]
    return weights.weight(f"{root}.{max(indices, default=0)}.layers.conv")[0]


def _auto_encoder(weights: Weights, gen: Settings, root: str) -> dict[str, Any]:
    """What the content encoders of UNIT, MUNIT and FUNIT have in common."""
    content = f"{root}.content_encoder.model"
    pattern = re.escape(content)
    blocks, convolutions = weights.count(rf"{pattern}\.(\d+)\.conv_block_0"), weights.count(rf"{pattern}\.(\d+)\.layers")
    return {
        "num_filters": gen.number("num_filters", lambda: weights.weight(f"{content}.0.layers.conv")[0]),
        "num_res_blocks": gen.number("num_res_blocks", blocks, least=0),
        "downs": gen.number("num_downsamples_content", max(0, convolutions - 1), least=0, most=STEPS),
        "content_norm": gen.norm("content_norm_type", "instance"),
        "decoder_norm": gen.norm("decoder_norm_type", "instance"),
        "weight_norm": weights.weight_norm,
    }


def _image_channels(weights: Weights, root: str) -> int:
    return weights.weight(f"{root}.content_encoder.model.0.layers.conv")[1]


def _widest(weights: Weights, gen: Settings, root: str, steps: int) -> int:
    """The most channels of a content: that of its last step down, or the published one where that is never reached."""
    return gen.number("max_num_filters", lambda: weights.weight(f"{root}.content_encoder.model.{steps}.layers.conv")[0])


def _pre_activation(weights: Weights, gen: Settings, root: str, steps: int) -> bool:
    seen = weights.norm_first(f"{root}.content_encoder.model.{steps + 1}.conv_block_0")
    return gen.flag("pre_act", seen is not False)


OUTPUTS = ("none", "tanh")


def _unit(weights: Weights, gen: Settings) -> Described:
    root = "autoencoder_a"
    common = _auto_encoder(weights, gen, root)
    steps = common.pop("downs")
    config = UNITGeneratorConfig(
        **common,
        num_downsamples=steps,
        max_num_filters=_widest(weights, gen, root, steps),
        pre_activation=_pre_activation(weights, gen, root, steps),
        output=gen.choice("output_nonlinearity", "none", OUTPUTS),
    )
    channels = _image_channels(weights, root)
    return Described(config, lambda: UNITGenerator(config, image_channels=channels), channels)


def _style(weights: Weights, gen: Settings, root: str) -> dict[str, Any]:
    """What the style encoders of MUNIT and FUNIT, and the layers after them, have in common."""
    convolutions = weights.count(rf"{re.escape(root)}\.style_encoder\.model\.(\d+)\.layers")
    return {
        "num_downsamples_style": gen.number("num_downsamples_style", max(0, convolutions - 1), least=0, most=STEPS),
        "mlp_filters": gen.number("num_filters_mlp", lambda: weights.weight(f"{root}.mlp.model.0.layers.conv", axes=2)[0]),
        "mlp_layers": max(1, weights.count(rf"{re.escape(root)}\.mlp\.model\.(\d+)\.")),
    }


def _munit(weights: Weights, gen: Settings) -> Described:
    root = "autoencoder_a"
    common = _auto_encoder(weights, gen, root)
    steps = common.pop("downs")
    config = MUNITGeneratorConfig(
        **common,
        **_style(weights, gen, root),
        num_downsamples_content=steps,
        max_num_filters=_widest(weights, gen, root, steps),
        style_dims=gen.number("latent_dim", lambda: weights.weight(f"{root}.mlp.model.0.layers.conv", axes=2)[1]),
        style_norm=gen.norm("style_norm_type", "none"),
        pre_activation=_pre_activation(weights, gen, root, steps),
        output=gen.choice("output_nonlinearity", "none", OUTPUTS),
    )
    channels = _image_channels(weights, root)
    return Described(config, lambda: MUNITGenerator(config, image_channels=channels), channels)


def _funit_settings(weights: Weights, gen: Settings) -> dict[str, Any]:
    common = _auto_encoder(weights, gen, "generator")
    steps = common.pop("downs")
    style_dims = gen.number("style_dims", lambda: weights.weight("generator.mlp.model.0.layers.conv", axes=2)[1])
    return common | _style(weights, gen, "generator") | {"num_downsamples_content": steps, "style_dims": style_dims}


def _funit(weights: Weights, gen: Settings) -> Described:
    config = FUNITGeneratorConfig(**_funit_settings(weights, gen))
    channels = _image_channels(weights, "generator")
    return Described(config, lambda: FUNITGenerator(config, image_channels=channels), channels)


def _coco_funit(weights: Weights, gen: Settings) -> Described:
    bias = gen.number("usb_dims", lambda: weights.shape("generator.usb", axes=2)[1])
    config = COCOFUNITGeneratorConfig(**_funit_settings(weights, gen), style_bias_dims=bias)
    channels = _image_channels(weights, "generator")
    return Described(config, lambda: FUNITGenerator(config, image_channels=channels), channels)


def describe_discriminator(kind: ModelType, weights: Weights, values: Any) -> Described:
    """The discriminator of a model with such weights; `values`: the section `dis`."""
    dis = Settings(values, "dis")
    match kind:
        case "spade":
            return _spade_discriminator(weights, dis)
        case "pix2pixHD":
            patch = _patches(weights, dis, "model.", norm="instance")
            images = dis.number("image_channels", 3)
            channels = {"label_channels": _patch_input(weights, "model.") - images, "image_channels": images}
            return Described(patch, lambda: Pix2PixHDDiscriminator(patch, **channels), **channels)
        case "unit" | "munit":
            return _pair(weights, dis)
        case "funit" | "coco_funit":
            return _class_discriminator(weights, dis)


def _patches(weights: Weights, dis: Settings, prefix: str, *, norm: NormKind = "none") -> PatchDiscriminatorConfig:
    shared = weights.has(rf"{re.escape(prefix)}discriminator\.")
    root = f"{prefix}discriminator" if shared else f"{prefix}discriminators.0"
    layers = weights.count(rf"{re.escape(root)}\.layer(\d+)\.")
    first = weights.weight(f"{root}.layer0.0.layers.conv")
    scales = 3 if shared else weights.count(rf"{re.escape(prefix)}discriminators\.(\d+)\.")
    normed = weights.has(rf"{re.escape(root)}\.layer0\.0\.layers\.norm\.")
    return PatchDiscriminatorConfig(
        num_discriminators=dis.number("num_discriminators", scales),
        shared=shared,
        kernel_size=dis.number("kernel_size", first[2]),
        num_filters=dis.number("num_filters", first[0]),
        max_num_filters=dis.number("max_num_filters", lambda: weights.weight(f"{root}.layer{layers - 2}.0.layers.conv")[0]),
        num_layers=dis.number("num_layers", max(1, layers - 2), most=STEPS),
        norm=dis.norm("activation_norm_type", norm if norm != "none" else "instance" if normed else "none"),
        weight_norm=weights.weight_norm,
    )


def _patch_input(weights: Weights, prefix: str) -> int:
    shared = weights.has(rf"{re.escape(prefix)}discriminator\.")
    return weights.weight(f"{prefix}{'discriminator' if shared else 'discriminators.0'}.layer0.0.layers.conv")[1]


def _spade_discriminator(weights: Weights, dis: Settings) -> Described:
    pyramid = weights.has(r"fpse_discriminator\.")
    config = SPADEDiscriminatorConfig(patch=_patches(weights, dis, ""), feature_pyramid=pyramid)
    images = weights.weight("fpse_discriminator.enc1.layers.conv")[1] if pyramid else dis.number("image_channels", 3)
    labels = weights.weight("fpse_discriminator.embedding.layers.conv")[1] if pyramid else _patch_input(weights, "") - images
    channels = {"label_channels": labels, "image_channels": images}
    return Described(config, lambda: SPADEDiscriminator(config, **channels), **channels)


def _pair(weights: Weights, dis: Settings) -> Described:
    root = "discriminator_a."
    if weights.has(r"discriminator_a\.discriminators?\."):
        config = _patches(weights, dis, root)
        channels = _patch_input(weights, root)
    else:
        config = _residual(weights, dis, f"{root}model")
        channels = weights.weight(f"{root}model.0.layers.conv")[1]
    return Described(config, lambda: PairDiscriminator(config, image_channels=channels), channels)


def _residual(weights: Weights, dis: Settings, root: str) -> ResidualDiscriminatorConfig:
    layers = max(1, weights.count(rf"{re.escape(root)}\.(\d+)\.conv_block_0\."))
    return ResidualDiscriminatorConfig(
        num_filters=dis.number("num_filters", lambda: weights.weight(f"{root}.0.layers.conv")[0]),
        max_num_filters=dis.number("max_num_filters", lambda: weights.weight(f"{root}.{2 * layers - 1}.conv_block_1.layers.conv")[0]),
        num_layers=dis.number("num_layers", layers, most=STEPS),
        norm=dis.norm("activation_norm_type", "none"),
        weight_norm=weights.weight_norm,
    )


def _class_discriminator(weights: Weights, dis: Settings) -> Described:
    blocks, root = weights.count(r"model\.model\.(\d+)\.conv_block_0\."), "model.model"
    layers = max(1, blocks // 2)
    first = weights.weight(f"{root}.0.layers.conv")
    config = FUNITDiscriminatorConfig(
        num_filters=dis.number("num_filters", first[0]),
        max_num_filters=dis.number("max_num_filters", lambda: weights.weight(f"{root}.{4 * layers - 2}.conv_block_1.layers.conv")[0]),
        num_layers=dis.number("num_layers", layers, most=STEPS),
        weight_norm=weights.weight_norm,
    )
    classes = weights.shape("model.embedder.weight", axes=2)[0]
    return Described(
        config, lambda: FUNITDiscriminator(config, num_classes=classes, image_channels=first[1]), first[1], num_classes=classes
    )
