"""The settings of networks in the sections `gen` and `dis` of imaginaire's YAML files, by their names there and here.

What a file leaves out is that of the published configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.core.given import shown
from triptych.gans.coco_funit import COCOFUNITGeneratorConfig
from triptych.gans.discriminators import ResidualDiscriminatorConfig
from triptych.gans.funit import FUNITDiscriminatorConfig, FUNITGeneratorConfig
from triptych.gans.instance_features import FeatureEncoderConfig
from triptych.gans.munit import MUNITConfig, MUNITGeneratorConfig
from triptych.gans.pix2pixhd import Pix2PixHDConfig, Pix2PixHDGeneratorConfig
from triptych.gans.spade import SPADEDiscriminatorConfig, SPADEGeneratorConfig
from triptych.gans.unit import UNITConfig, UNITGeneratorConfig
from triptych.interop.imaginaire.reading import MOST, ModelType, Settings
from triptych.recipes.unpaired import munit_summer2winter_hd, unit_winter2summer

C = TypeVar("C", bound=Config)

MOST_STEPS = 16
"""Changes of resolution that a YAML file may ask for: more is a mistake."""
_MOST_BLOCKS = 64
_COUNTS = ("num_layers", "num_res_blocks", "num_enhancer_res_blocks", "num_enhancers", "num_discriminators", "mlp_layers")

_CONVOLUTIONS = {"num_filters": "num_filters", "weight_norm": "weight_norm_type"}
_CONTENT = {**_CONVOLUTIONS, "num_res_blocks": "num_res_blocks", "content_norm": "content_norm_type", "decoder_norm": "decoder_norm_type"}
_WIDEST = {"max_num_filters": "max_num_filters", "pre_activation": "pre_act", "output": "output_nonlinearity"}
_STYLE = {
    "num_downsamples_content": "num_downsamples_content",
    "num_downsamples_style": "num_downsamples_style",
    "mlp_filters": "num_filters_mlp",
}
_SPADE_NORM = "activation_norm_params"
_FUNIT = {**_CONTENT, **_STYLE, "style_dims": "style_dims"}
GENERATORS: dict[ModelType, dict[str, str]] = {
    "spade": {
        **_CONVOLUTIONS,
        "kernel_size": "kernel_size",
        "spade_filters": f"{_SPADE_NORM}.num_filters",
        "spade_kernel_size": f"{_SPADE_NORM}.kernel_size",
        "norm_weight_norm": f"{_SPADE_NORM}.weight_norm_type",
        "separate_projection": f"{_SPADE_NORM}.separate_projection",
        "spade_norm": f"{_SPADE_NORM}.activation_norm_type",
        "norm_affine": f"{_SPADE_NORM}.activation_norm_params.affine",
        "global_norm": "global_adaptive_norm_type",
        "output_multiplier": "output_multiplier",
        "positional_input": "use_posenc_in_input_layer",
        "encoder_filters": "style_enc.num_filters",
    },
    "pix2pixHD": {
        "num_filters": "global_generator.num_filters",
        "num_downsamples": "global_generator.num_downsamples",
        "num_res_blocks": "global_generator.num_res_blocks",
        "num_enhancers": "local_enhancer.num_enhancers",
        "num_enhancer_res_blocks": "local_enhancer.num_res_blocks",
        "norm": "activation_norm_type",
        "weight_norm": "weight_norm_type",
    },
    "unit": {**_CONTENT, **_WIDEST, "num_downsamples": "num_downsamples_content"},
    "munit": {**_CONTENT, **_WIDEST, **_STYLE, "style_dims": "latent_dim", "style_norm": "style_norm_type"},
    "funit": _FUNIT,
    "coco_funit": {**_FUNIT, "style_bias_dims": "usb_dims"},
}
_ENCODER = {"num_features": "num_feat_channels", "num_filters": "num_filters", "num_downsamples": "num_downsamples"}
_ENCODER |= {"num_clusters": "num_clusters"}
CLASSES = {**_CONVOLUTIONS, "max_num_filters": "max_num_filters", "num_layers": "num_layers"}
RESIDUAL = {**CLASSES, "norm": "activation_norm_type"}
PATCH = {**RESIDUAL, "num_discriminators": "num_discriminators", "kernel_size": "kernel_size"}
"""Our settings, and their names in the sections `gen` and `dis`; dots for sections within."""

_PATCHES: dict[ModelType, Config] = {
    "pix2pixHD": Pix2PixHDConfig().discriminator,
    "unit": cast(UNITConfig, unit_winter2summer().model).discriminator,
    "munit": cast(MUNITConfig, munit_summer2winter_hd().model).discriminator,
}
"""Of the published configurations."""


def generator_config(kind: ModelType, gen: Settings, *, short_side: int) -> Config:
    """The generator that `gen` describes, for images with so many pixels on the `short_side`; a ConfigError names the setting."""
    _check_paddings_and_norms(kind, gen)
    names = GENERATORS.get(kind, {})
    match kind:
        case "spade":
            dims = gen.inside("style_enc").value("style_dims")
            base = SPADEGeneratorConfig(
                resolution=1024 if short_side >= 1024 else 512 if short_side >= 512 else 256,
                style_dims=None if gen.value("style_dims", dims) is None else gen.number("style_dims", dims),
                positional_input=True,
            )
            made = overlaid(base, gen, names)
            return replace(made, norm_weight_norm=None) if made.norm_weight_norm == made.weight_norm else made
        case "pix2pixHD":
            encoder = None if gen.value("enc") is None else overlaid(FeatureEncoderConfig(), gen.inside("enc"), _ENCODER)
            return overlaid(Pix2PixHDGeneratorConfig(encoder=encoder), gen, names)
        case "unit":
            return overlaid(UNITGeneratorConfig(), gen, names)
        case "munit":
            return overlaid(MUNITGeneratorConfig(mlp_layers=max(2, _mlp_blocks(gen, 2))), gen, names)
        case "funit":
            return overlaid(FUNITGeneratorConfig(mlp_layers=max(2, _mlp_blocks(gen, 3) - 1)), gen, names)
        case "coco_funit":
            return overlaid(COCOFUNITGeneratorConfig(mlp_layers=max(2, _mlp_blocks(gen, 3) - 1)), gen, names)
        case "vid2vid" | "fs_vid2vid" | "wc_vid2vid":
            raise TypeError(f"the networks of {kind} are in video.py and few_shot_video.py")


def _mlp_blocks(gen: Settings, default: int) -> int:
    return gen.number("num_mlp_blocks", default, most=_MOST_BLOCKS)


def discriminator_config(kind: ModelType, dis: Settings) -> Config:
    """The discriminator that the section `dis` describes. Raises ConfigError, naming the setting, for what is wrong or not here."""
    _check_affine(dis)
    match kind:
        case "spade":
            return SPADEDiscriminatorConfig(patch=overlaid(SPADEDiscriminatorConfig().patch, dis, PATCH))
        case "pix2pixHD":
            return overlaid(_PATCHES[kind], dis, PATCH)
        case "unit" | "munit":
            if dis.flag("patch_dis" if kind == "unit" else "patch_wise", True):
                return overlaid(_PATCHES[kind], dis, PATCH)
            return overlaid(ResidualDiscriminatorConfig(), dis, RESIDUAL)
        case "funit" | "coco_funit":
            return overlaid(FUNITDiscriminatorConfig(), dis, CLASSES)
        case "vid2vid" | "fs_vid2vid" | "wc_vid2vid":
            raise TypeError(f"the networks of {kind} are in video.py and few_shot_video.py")


def _check_paddings_and_norms(kind: ModelType, gen: Settings) -> None:
    """Raises ConfigError where parts of a generator have a padding, kernel or weight norm that they cannot have here."""
    padding = "zeros" if kind == "spade" else "reflect"
    gen.require(gen.value("padding_mode", padding) == padding, "padding_mode", f"{padding!r}, as published")
    if kind != "spade":
        _check_affine(gen)
        return
    encoder = gen.inside("style_enc")
    for key in ("kernel_size", "weight_norm_type"):
        whole, part = gen.value(key), encoder.value(key)
        fits = whole is None or part is None or (whole or "none") == (part or "none")
        encoder.require(fits, key, f"that of the generator, {shown(whole)}")


def _check_affine(section: Settings) -> None:
    """Raises ConfigError for norms without gain and offset, which only SPADE's and AdaIN's have here."""
    params = section.inside("activation_norm_params")
    params.require(params.flag("affine", True), "affine", "True: these norms have a gain and an offset here")


def overlaid(base: C, settings: Settings, names: Mapping[str, str], *, least: int = 0) -> C:
    """`base` with what the settings say; `names`: our settings, and their names in the file.

    `least`: of whole numbers, unless that of `base` is smaller. Raises ConfigError under the name of the file for a value of another
    type, or that is not allowed.
    """
    values: dict[str, Any] = {}
    for ours, theirs in names.items():
        *sections, key = theirs.split(".")
        inner = settings
        for section in sections:
            inner = inner.inside(section)
        value, default = inner.value(key), getattr(base, ours)
        if value is None:
            continue
        if type(default) is int:
            most = MOST_STEPS if "downsamples" in ours else _MOST_BLOCKS if ours in _COUNTS else MOST
            value = inner.number(key, least=min(least, default), most=most)
        elif type(default) is float:
            value = inner.factor(key)
        values[ours] = "none" if value == "" else value
    try:
        return base.updated(values)
    except ConfigError as error:
        raise ConfigError(settings.name(names.get(error.setting, error.setting)), error.reason) from None
