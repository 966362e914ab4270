"""Networks as the sections `gen` and `dis` of imaginaire's YAML files describe them, where no weights tell.

What a file leaves out is that of the published configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.gans.coco_funit import COCOFUNITGeneratorConfig
from triptych.gans.discriminators import PatchDiscriminatorConfig, ResidualDiscriminatorConfig
from triptych.gans.funit import FUNITDiscriminatorConfig, FUNITGeneratorConfig
from triptych.gans.instance_features import FeatureEncoderConfig
from triptych.gans.munit import MUNITGeneratorConfig
from triptych.gans.pix2pixhd import Pix2PixHDGeneratorConfig
from triptych.gans.spade import SPADEDiscriminatorConfig, SPADEGeneratorConfig
from triptych.gans.unit import UNITGeneratorConfig
from triptych.interop.imaginaire.reading import MOST, ModelType, Settings

C = TypeVar("C", bound=Config)

MOST_BLOCKS = 64
"""Of layers, blocks, scales and steps that a YAML file may ask for: more is a mistake."""
_COUNTS = ("num_layers", "num_res_blocks", "num_enhancer_res_blocks", "num_enhancers", "num_discriminators", "mlp_layers")
_STEPS = 16

_CONVOLUTIONS = {"num_filters": "num_filters", "weight_norm": "weight_norm_type"}
_CONTENT = {
    **_CONVOLUTIONS,
    "num_res_blocks": "num_res_blocks",
    "content_norm": "content_norm_type",
    "decoder_norm": "decoder_norm_type",
}
_WIDEST = {"max_num_filters": "max_num_filters", "pre_activation": "pre_act", "output": "output_nonlinearity"}
_STYLE = {
    "num_downsamples_content": "num_downsamples_content",
    "num_downsamples_style": "num_downsamples_style",
    "mlp_filters": "num_filters_mlp",
}
_SPADE_NORM = "activation_norm_params"
_SPADE = {
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
    "encoder_filters": "style_enc.num_filters",
}
_PIX2PIXHD = {
    "num_filters": "global_generator.num_filters",
    "num_downsamples": "global_generator.num_downsamples",
    "num_res_blocks": "global_generator.num_res_blocks",
    "num_enhancers": "local_enhancer.num_enhancers",
    "num_enhancer_res_blocks": "local_enhancer.num_res_blocks",
    "norm": "activation_norm_type",
    "weight_norm": "weight_norm_type",
}
_FEATURES = {"num_features": "num_feat_channels", "num_filters": "num_filters", "num_downsamples": "num_downsamples"}
_RESIDUAL = {**_CONVOLUTIONS, "max_num_filters": "max_num_filters", "num_layers": "num_layers"}
_PATCH = {**_RESIDUAL, "num_discriminators": "num_discriminators", "kernel_size": "kernel_size", "norm": "activation_norm_type"}

_PATCHES = {
    "spade": SPADEDiscriminatorConfig().patch,
    "pix2pixHD": PatchDiscriminatorConfig(num_layers=3, norm="instance"),
    "unit": PatchDiscriminatorConfig(num_discriminators=3, shared=True, num_filters=48),
    "munit": PatchDiscriminatorConfig(num_discriminators=3, num_filters=48, max_num_filters=1024, num_layers=5),
}
"""Of the published configurations."""


def planned_generator(kind: ModelType, gen: Settings, *, short_side: int | None) -> Config:
    """The generator that the section `gen` describes; `short_side`: pixels of the images that it is trained on, None: unknown.

    Raises ConfigError, naming the setting, for what is wrong or not here.
    """
    _check_norms(kind, gen)
    match kind:
        case "spade":
            return _spade(gen, short_side)
        case "pix2pixHD":
            return _pix2pixhd(gen)
        case "unit":
            return filled(UNITGeneratorConfig(), gen, {**_CONTENT, **_WIDEST, "num_downsamples": "num_downsamples_content"})
        case "munit":
            base = MUNITGeneratorConfig(mlp_layers=max(2, _layers(gen, 2)))
            return filled(base, gen, {**_CONTENT, **_WIDEST, **_STYLE, "style_dims": "latent_dim", "style_norm": "style_norm_type"})
        case "funit" | "coco_funit":
            names, layers = {**_CONTENT, **_STYLE, "style_dims": "style_dims"}, max(2, _layers(gen, 3) - 1)
            if kind == "funit":
                return filled(FUNITGeneratorConfig(mlp_layers=layers), gen, names)
            return filled(COCOFUNITGeneratorConfig(mlp_layers=layers), gen, {**names, "style_bias_dims": "usb_dims"})


def _layers(gen: Settings, otherwise: int) -> int:
    return gen.number("num_mlp_blocks", otherwise, most=MOST_BLOCKS)


def _spade(gen: Settings, short_side: int | None) -> SPADEGeneratorConfig:
    encoder = gen.inside("style_enc")
    dims = gen.value("style_dims")
    dims = encoder.value("style_dims") if dims is None else dims
    if dims is not None:
        dims = gen.number("style_dims", dims if isinstance(dims, int) else 0)
    base = SPADEGeneratorConfig(
        resolution=max((side for side in (256, 512, 1024) if side <= (short_side or 256)), default=256),  # type: ignore[arg-type]
        style_dims=dims,
        positional_input=gen.flag("use_posenc_in_input_layer", True),
    )
    made = filled(base, gen, _SPADE)
    return replace(made, norm_weight_norm=None) if made.norm_weight_norm == made.weight_norm else made


def _pix2pixhd(gen: Settings) -> Pix2PixHDGeneratorConfig:
    encoder = None
    if gen.value("enc") is not None:
        encoder = filled(FeatureEncoderConfig(), gen.inside("enc"), {**_FEATURES, "num_clusters": "num_clusters"})
    return filled(Pix2PixHDGeneratorConfig(encoder=encoder), gen, _PIX2PIXHD)


def planned_discriminator(kind: ModelType, dis: Settings) -> Config:
    """The discriminator that the section `dis` describes. Raises ConfigError, naming the setting, for what is wrong or not here."""
    _check_affine(dis)
    match kind:
        case "spade":
            return SPADEDiscriminatorConfig(patch=filled(_PATCHES[kind], dis, _PATCH))
        case "pix2pixHD":
            return filled(_PATCHES[kind], dis, _PATCH)
        case "unit" | "munit":
            patches = dis.flag("patch_dis" if kind == "unit" else "patch_wise", True)
            if patches:
                return filled(_PATCHES[kind], dis, _PATCH)
            return filled(ResidualDiscriminatorConfig(), dis, {**_RESIDUAL, "norm": "activation_norm_type"})
        case "funit" | "coco_funit":
            return filled(FUNITDiscriminatorConfig(), dis, _RESIDUAL)


def _check_norms(kind: ModelType, gen: Settings) -> None:
    """Raises ConfigError where the parts of a generator are to have paddings or norms of weights of their own."""
    padding = "zeros" if kind == "spade" else "reflect"
    if gen.value("padding_mode") not in (None, padding):
        raise ConfigError(gen.name("padding_mode"), f"got {gen.value('padding_mode')!r}, expected {padding!r}, as published")
    if kind == "spade":
        kernel, encoder = gen.value("kernel_size"), gen.inside("style_enc").value("kernel_size")
        if None not in (kernel, encoder) and kernel != encoder:
            raise ConfigError("gen.style_enc.kernel_size", f"got {encoder!r}, expected that of the generator, {kernel!r}")
        whole, own = gen.value("weight_norm_type"), gen.inside("style_enc").value("weight_norm_type")
        if own is not None and whole is not None and (own or "none") != (whole or "none"):
            raise ConfigError("gen.style_enc.weight_norm_type", f"got {own!r}, expected that of the generator, {whole!r}")
    else:
        _check_affine(gen)


def _check_affine(section: Settings) -> None:
    """Raises ConfigError for norms without gain and offset, which only SPADE's and AdaIN's have here."""
    params = section.inside("activation_norm_params")
    if not params.flag("affine", True):
        raise ConfigError(params.name("affine"), "got False, expected True: these norms have a gain and an offset here")


def filled(base: C, settings: Settings, names: Mapping[str, str]) -> C:
    """`base` with what the settings say; `names`: our settings, and what they are called there, dots for sections within.

    Raises ConfigError under the name of the file for a value of another type, or that is not allowed.
    """
    values: dict[str, Any] = {}
    for ours, theirs in names.items():
        *sections, key = theirs.split(".")
        inner = settings
        for section in sections:
            inner = inner.inside(section)
        value = inner.value(key)
        if value is None:
            continue
        if isinstance(getattr(base, ours), int) and not isinstance(getattr(base, ours), bool):
            most = _STEPS if "downsamples" in ours else MOST_BLOCKS if ours in _COUNTS else MOST
            value = inner.number(key, 0, least=0, most=most)
        values[ours] = "none" if value == "" else value
    try:
        return base.updated(values)
    except ConfigError as error:
        raise ConfigError(settings.name(names.get(error.setting, error.setting)), error.reason) from None
