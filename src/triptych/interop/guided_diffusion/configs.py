"""guided-diffusion's flags as configurations of ours, and configurations as its flags. The tables say which flag is which setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import ModelConfig
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.classifier import ClassifierConfig
from triptych.diffusion.dit import DiTConfig
from triptych.diffusion.gaussian import GaussianConfig, NoiseConfig
from triptych.diffusion.model import SamplingConfig
from triptych.diffusion.super_resolution import SuperResolutionConfig
from triptych.diffusion.unet import CHANNEL_MULT, EncoderConfig, UNetConfig, levels_of
from triptych.interop.flags import Value, flag_text, numbers
from triptych.interop.guided_diffusion.flags import Kind, Program, flag_table
from triptych.interop.guided_diffusion.shapes import multiples

CLASSIFIER_HEAD_CHANNELS = 64
"""Channels of every attention head of the original's classifiers; no flag changes it."""
NUM_CLASSES = 1000
"""A constant of the originals; files with another number come from changed programs."""

LEVELS: dict[Program, dict[Kind, dict[int, tuple[float, ...]]]] = {
    "guided-diffusion": {
        "diffusion": {size: CHANNEL_MULT[size] for size in (64, 128, 256, 512)},
        "classifier": {size: CHANNEL_MULT[size] for size in (64, 128, 256, 512)},
        "super-resolution": {64: CHANNEL_MULT[64], 256: CHANNEL_MULT[256], 512: CHANNEL_MULT[256]},
    },
    "improved-diffusion": {
        "diffusion": {size: CHANNEL_MULT[size] for size in (32, 64, 256)},
        "super-resolution": {64: CHANNEL_MULT[64], 256: CHANNEL_MULT[256]},
    },
}
"""The originals' widths of the levels by image size, where no flag gives them."""

_PROCESS = {"steps": "diffusion_steps", "schedule": "noise_schedule", "rescale_timesteps": "rescale_timesteps"}
_NETWORK = {
    "num_channels": "num_channels",
    "num_res_blocks": "num_res_blocks",
    "num_heads": "num_heads",
    "dropout": "dropout",
    "checkpoint": "use_checkpoint",
    "scale_shift_norm": "use_scale_shift_norm",
    "resblock_updown": "resblock_updown",
}
_CLASSIFIER = {
    "num_channels": "classifier_width",
    "num_res_blocks": "classifier_depth",
    "scale_shift_norm": "classifier_use_scale_shift_norm",
    "resblock_updown": "classifier_resblock_updown",
}
"""Settings of NoiseConfig, of UNetConfig, and of a classifier's EncoderConfig, with the flags that have the same values."""


def flags_of(kind: Kind) -> dict[str, str]:
    """The flags of settings, by a setting's last name."""
    return _PROCESS | (_CLASSIFIER | {"pool": "classifier_pool"} if kind == "classifier" else _NETWORK)


# Flags as configurations -----------------------------------------------------------------------------------------------


def configuration(
    flags: Mapping[str, Any], kind: Kind, *, program: Program = "guided-diffusion", levels: tuple[float, ...] = ()
) -> tuple[ModelConfig, int]:
    """The model of a whole set of flags (see flags.flag_table), and its image size in pixels.

    `levels`: the widths of the levels as multiples of the first one, where weights show them. Raises ConfigError, of our settings or of the
    original's flags, where they make no network: an image size without default levels, heads that do not divide.
    """
    size = flags["large_size" if kind == "super-resolution" else "image_size"]
    mult = _level_widths(flags, kind, program=program, levels=levels)
    if flags["noise_schedule"] not in ("linear", "cosine"):
        raise ConfigError("noise_schedule", f"got {flags['noise_schedule']!r}, expected linear or cosine")
    channel_mult = None if mult == CHANNEL_MULT.get(size) and kind != "super-resolution" else mult
    process = _settings(_PROCESS, flags)
    if kind == "classifier":
        network = EncoderConfig(
            **_settings(_CLASSIFIER, flags),
            channel_mult=channel_mult,
            attention_resolutions=reached(flags["classifier_attention_resolutions"], size, len(mult)),
            num_head_channels=CLASSIFIER_HEAD_CHANNELS,
        )
        return ClassifierConfig(network=network, noise=NoiseConfig(**process)).updated({"pool": flags["classifier_pool"]}), size
    heads, decoder_heads = (None if flags.get(name, -1) == -1 else flags[name] for name in ("num_head_channels", "num_heads_upsample"))
    parts: dict[str, Any] = {
        "network": UNetConfig(
            **_settings(_NETWORK, flags),
            channel_mult=channel_mult,
            attention_resolutions=reached(flags["attention_resolutions"], size, len(mult)),
            num_head_channels=heads,
            num_heads_upsample=None if heads is not None else decoder_heads,
            attention_order="new" if flags.get("use_new_attention_order") else "legacy",
        ),
        "diffusion": GaussianConfig(
            **process,
            mean="x0" if flags["predict_xstart"] else "epsilon",
            variance="learned_range" if flags["learn_sigma"] else "fixed_small" if flags.get("sigma_small") else "fixed_large",
            loss="rescaled_kl" if flags["use_kl"] else "rescaled_mse" if flags["rescale_learned_sigmas"] else "mse",
        ),
        "class_conditional": flags["class_cond"],
    }
    spacing = flags["timestep_respacing"]
    try:
        parts["sampling"] = SamplingConfig(steps=int(spacing) if spacing.isdecimal() else spacing or None)
        if kind == "super-resolution":
            return SuperResolutionConfig(**parts, small_size=flags["small_size"]), size
        return ADMConfig(**parts), size
    except ConfigError as error:
        raise ConfigError("timestep_respacing", error.reason) if error.setting in ("steps", "sampling.steps") else error from None


def _level_widths(flags: Mapping[str, Any], kind: Kind, *, program: Program, levels: tuple[float, ...]) -> tuple[float, ...]:
    name = "large_size" if kind == "super-resolution" else "image_size"
    size = flags[name]
    mult = levels or numbers(flags.get("channel_mult", "")) or LEVELS[program][kind].get(size)
    if mult is None:
        known = ", ".join(map(str, LEVELS[program][kind]))
        further = "; give --channel_mult (one number a level)" if "channel_mult" in flag_table(kind, program) else ""
        raise ConfigError(f"--{name}", f"got {size}, which has default levels for {known} only{further}")
    width = "classifier_width" if kind == "classifier" else "num_channels"
    if flags[width] < 1:
        raise ConfigError(f"--{width}", f"got {flags[width]}, expected at least 1")
    return levels or multiples([int(part * flags[width]) for part in mult], flags[width])


def reached(text: str, size: int, levels: int) -> tuple[int, ...]:
    """The resolutions of the flag that the network reaches, as its levels have them; the original overlooks the others."""
    factors = dict.fromkeys(size // int(resolution) for resolution in numbers(text))
    return tuple(size // factor for factor in factors if factor in {2**level for level in range(levels)})


def _settings(table: Mapping[str, str], flags: Mapping[str, Any]) -> dict[str, Any]:
    return {setting: flags[flag] for setting, flag in table.items() if flag in flags}


# Configurations as flags -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OriginalFlags:
    """The flags of a model, and what they do not say."""

    flags: dict[str, Value]
    "In the order of the original's table."
    notes: list[str]
    "What the user has to know or to do beside giving the flags."


def original_flags(config: ModelConfig, spec: DataSpec) -> OriginalFlags:
    """The flags that make the network of `config` for the images of `spec` and its diffusion; a ConfigError names all that have none."""
    refused = list(_refused(config, spec))
    if refused:
        raise ConfigError("", "guided-diffusion cannot express this model: " + "; ".join(refused))
    if isinstance(config, ClassifierConfig):
        kind, flags = "classifier", _classifier_flags(config, spec)
    else:
        assert isinstance(config, ADMConfig | SuperResolutionConfig)
        kind, flags = _kind(config), _model_flags(config, spec)
    return OriginalFlags({name: flags[name] for name in flag_table(kind) if name in flags}, list(_notes(config, spec)))


def _kind(config: ModelConfig) -> Kind:
    if isinstance(config, ClassifierConfig):
        return "classifier"
    return "super-resolution" if isinstance(config, SuperResolutionConfig) else "diffusion"


def _classifier_flags(config: ClassifierConfig, spec: DataSpec) -> dict[str, Value]:
    return {
        **{flag: getattr(config.network, setting) for setting, flag in _CLASSIFIER.items()},
        **{flag: getattr(config.noise, setting) for setting, flag in _PROCESS.items()},
        "image_size": spec.image_size,
        "classifier_attention_resolutions": _attention(config.network, spec),
        "classifier_pool": config.pool,
    }


def _model_flags(config: ADMConfig | SuperResolutionConfig, spec: DataSpec) -> dict[str, Value]:
    network, diffusion = config.network, config.diffusion
    assert isinstance(network, UNetConfig), "a transformer is refused"
    flags = {
        **{flag: getattr(network, setting) for setting, flag in _NETWORK.items()},
        **{flag: getattr(diffusion, setting) for setting, flag in _PROCESS.items()},
        "num_heads_upsample": network.num_heads_upsample or -1,
        "num_head_channels": network.num_head_channels or -1,
        "attention_resolutions": _attention(network, spec),
        "class_cond": config.class_conditional,
        "learn_sigma": diffusion.learns_variance,
        "predict_xstart": diffusion.mean == "x0",
        "use_kl": diffusion.loss in ("kl", "rescaled_kl"),
        "rescale_learned_sigmas": diffusion.loss == "rescaled_mse",
    }
    if isinstance(config, SuperResolutionConfig):  # its weights are written in the legacy order, and its widths have no flag
        return flags | {"large_size": spec.image_size, "small_size": config.small_size}
    mult, order = flag_text(_own_levels(network, spec, "diffusion")), network.attention_order == "new"
    return flags | {"image_size": spec.image_size, "channel_mult": mult, "use_new_attention_order": order}


def _attention(network: EncoderConfig, spec: DataSpec) -> str:
    """The resolutions; where there are none, one that is never reached, for the flag cannot be empty."""
    return flag_text(network.attention_resolutions) or str(2 * spec.image_size)


def _own_levels(network: EncoderConfig, spec: DataSpec, kind: Kind) -> tuple[float, ...]:
    """The widths of the levels as multiples of the first; none where the original has them by the image size."""
    mult = tuple(network.channel_mult or CHANNEL_MULT[spec.image_size])
    return () if mult == LEVELS["guided-diffusion"][kind].get(spec.image_size) else mult


def _refused(config: ModelConfig, spec: DataSpec) -> Iterator[str]:
    """A line for each setting that has no flag."""
    if spec.channels != 3:
        yield f"data.channels: {spec.channels} (the original's networks take three)"
    if not isinstance(config, ADMConfig | SuperResolutionConfig | ClassifierConfig):
        yield f"model: {type(config).__name__.removesuffix('Config')}"
        return
    network, kind = config.network, _kind(config)
    if isinstance(network, DiTConfig):
        yield "model.network: a transformer"
        return
    mult = _own_levels(network, spec, kind)
    if any(part != int(part) for part in mult):
        yield f"model.network.channel_mult: {flag_text(mult)} (its flag takes whole numbers)"
    if mult and kind != "diffusion":
        what = "a classifier of" if kind == "classifier" else "an upsampler to"
        yield f"model.network.channel_mult: the widths of {what} {spec.image_size} pixels have no flag"
    if isinstance(config, ClassifierConfig) and _head_channels(network, spec) != {CLASSIFIER_HEAD_CHANNELS}:
        yield f"model.network.num_head_channels: other than {CLASSIFIER_HEAD_CHANNELS} (a constant of the original)"
    if not network.conv_resample and not network.resblock_updown:
        yield "model.network.conv_resample: false"
    section, noise = ("noise", config.noise) if isinstance(config, ClassifierConfig) else ("diffusion", config.diffusion)
    if noise.betas is not None:
        yield f"model.{section}.betas: a table of betas"
    if isinstance(config, ClassifierConfig):
        return
    if config.diffusion.mean not in ("epsilon", "x0"):
        yield f"model.diffusion.mean: {config.diffusion.mean} (it has epsilon, and x0 as --predict_xstart)"
    if config.diffusion.variance == "learned":
        yield "model.diffusion.variance: learned (it has learned_range, as --learn_sigma, and fixed_large)"


def _head_channels(network: EncoderConfig, spec: DataSpec) -> set[int]:
    levels = levels_of(network, image_size=spec.image_size)
    widths = [width for width, there in zip(levels.widths, levels.attention, strict=True) if there]
    return {network.num_head_channels or width // network.num_heads for width in (*widths, levels.widths[-1])}


def _notes(config: ModelConfig, spec: DataSpec) -> Iterator[str]:
    """A line for each thing that differs in the original or has to be changed there."""
    of_classifier = isinstance(config, ClassifierConfig)
    if of_classifier and config.network.dropout:
        yield "the original trains classifiers without dropout"
    if isinstance(config, ADMConfig | SuperResolutionConfig):
        if config.diffusion.variance == "fixed_small":
            yield "the original samples with fixed_large in place of fixed_small, unless create_gaussian_diffusion gets sigma_small"
        if config.diffusion.loss == "kl":
            yield "to train on, the original has rescaled_kl in place of kl: the same loss times diffusion_steps"
    if (of_classifier or getattr(config, "class_conditional", False)) and spec.num_classes != NUM_CLASSES:
        yield (
            f"the model has {spec.num_classes} classes: set the constant NUM_CLASSES in guided_diffusion/script_util.py, {NUM_CLASSES}, "
            f"to {spec.num_classes}" + (", and out_channels in create_classifier" if of_classifier else "")
        )
    if isinstance(config, ADMConfig | SuperResolutionConfig):
        if config.label_dropout:
            yield "the original always gives the network a label: there is no guidance without a classifier"
        if config.timestep_sampler != "uniform":
            yield f"to train on: --schedule_sampler {config.timestep_sampler}"
        sampler, steps = config.sampling.sampler, config.sampling.steps
        words = ("" if steps is None else f" --timestep_respacing {steps}") + (" --use_ddim True" if sampler == "ddim" else "")
        words += "" if config.sampling.clip else " --clip_denoised False"
        if sampler == "ddim" and config.sampling.eta:
            yield f"the original's ddim has eta 0, this run's {config.sampling.eta:g}: it draws other samples there"
        if config.sampling.clip and config.sampling.threshold != 1:
            yield f"the original clips at 1, this run at {config.sampling.threshold:g}: it draws other samples there"
        if sampler not in ("ancestral", "ddim"):
            yield f"the original has no sampler {sampler}: it draws by ancestral sampling, or by --use_ddim True"
        elif words:
            yield f"to sample as this run does:{words}"
