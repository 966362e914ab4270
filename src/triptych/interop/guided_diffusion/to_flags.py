"""A model of ours in guided-diffusion's flags, as far as they go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import ModelConfig
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.classifier import ClassifierConfig
from triptych.diffusion.gaussian import GaussianConfig, NoiseConfig
from triptych.diffusion.model import DiffusionConfig, SamplingConfig
from triptych.diffusion.super_resolution import SuperResolutionConfig
from triptych.diffusion.unet import CHANNEL_MULT, EncoderConfig, plan
from triptych.interop.flags import Value, flag_text
from triptych.interop.guided_diffusion.flags import flag_table
from triptych.interop.guided_diffusion.weights import CLASSIFIER_HEAD_CHANNELS, LEVELS, NUM_CLASSES


@dataclass
class Expressed:
    """The flags of a model, and what they do not say."""

    flags: dict[str, Value]
    notes: list[str] = field(default_factory=list)
    "What the user has to know or to do beside giving the flags."
    refused: list[str] = field(default_factory=list)
    "Settings that the original cannot be given."


def original_flags(config: ModelConfig, spec: DataSpec) -> Expressed:
    """The flags by which guided-diffusion's scripts make the network of `config` for the images of `spec`, and its diffusion.

    Raises ConfigError that names every setting for which there is no flag.
    """
    told = Expressed({})
    if spec.channels != 3:
        told.refused.append("data.channels: grey images (the original's networks take three channels)")
    if isinstance(config, ClassifierConfig):
        _tell_classifier(config, spec, told)
    elif isinstance(config, ADMConfig | SuperResolutionConfig):
        _tell_diffusion_model(config, spec, told)
    else:
        told.refused.append(f"model: a {type(config).__name__.removesuffix('Config')}")
    if told.refused:
        raise ConfigError("", "guided-diffusion cannot express this model: " + "; ".join(told.refused))
    return told


def _tell_diffusion_model(config: DiffusionConfig, spec: DataSpec, told: Expressed) -> None:
    network, upsampler = config.network, isinstance(config, SuperResolutionConfig)
    if isinstance(config, SuperResolutionConfig):
        told.flags |= {"large_size": spec.image_size, "small_size": config.small_size}
    else:
        told.flags["image_size"] = spec.image_size
    told.flags |= {
        "num_channels": network.num_channels,
        "num_res_blocks": network.num_res_blocks,
        "num_heads": network.num_heads,
        "num_heads_upsample": network.num_heads_upsample or -1,
        "num_head_channels": network.num_head_channels or -1,
        "attention_resolutions": _attention(network, spec),
        "channel_mult": _levels(network, spec, told, table=LEVELS["guided-diffusion"]["super-resolution" if upsampler else "diffusion"]),
        "dropout": network.dropout,
        "class_cond": config.class_conditional,
        "use_checkpoint": network.checkpoint,
        "use_scale_shift_norm": network.scale_shift_norm,
        "resblock_updown": network.resblock_updown,
        "use_new_attention_order": network.attention_order == "new",
        "learn_sigma": config.diffusion.learns_variance,
    }
    if upsampler:  # the weights are written in the legacy order
        del told.flags["use_new_attention_order"]
        if told.flags.pop("channel_mult"):
            told.refused.append(f"model.network.channel_mult: the widths of an upsampler to {spec.image_size} pixels have no flag")
    _tell_resampling(network, told)
    _tell_process(config.diffusion, told)
    _tell_parametrization(config.diffusion, told)
    if config.class_conditional:
        _tell_classes(spec, told)
    if config.label_dropout:
        told.notes.append("the original always gives the network a label: there is no guidance without a classifier")
    if config.timestep_sampler != "uniform":
        told.notes.append(f"to train on: --schedule_sampler {config.timestep_sampler}")
    _tell_sampling(config.sampling, told)


def _tell_sampling(sampling: SamplingConfig, told: Expressed) -> None:
    if sampling.sampler not in ("ancestral", "ddim"):
        told.notes.append(f"the original has no sampler {sampling.sampler}: it draws by ancestral sampling, or by --use_ddim True")
        return
    words = f" --timestep_respacing {sampling.steps}" if sampling.steps is not None else ""
    words += " --use_ddim True" if sampling.sampler == "ddim" else ""
    if words:
        told.notes.append(f"to sample as this run does:{words}")


def _tell_classifier(config: ClassifierConfig, spec: DataSpec, told: Expressed) -> None:
    network = config.network
    told.flags |= {
        "image_size": spec.image_size,
        "classifier_width": network.num_channels,
        "classifier_depth": network.num_res_blocks,
        "classifier_attention_resolutions": _attention(network, spec),
        "classifier_use_scale_shift_norm": network.scale_shift_norm,
        "classifier_resblock_updown": network.resblock_updown,
        "classifier_pool": config.pool,
    }
    if _levels(network, spec, told, table=LEVELS["guided-diffusion"]["classifier"]):
        told.refused.append(f"model.network.channel_mult: the widths of a classifier of {spec.image_size} pixels have no flag")
    levels = plan(network, image_size=spec.image_size)
    widths = {width for width, there in zip(levels.widths, levels.attention, strict=True) if there} | {levels.widths[-1]}
    heads = {width: network.num_head_channels or width // network.num_heads for width in widths}
    if any(channels != CLASSIFIER_HEAD_CHANNELS for channels in heads.values()):
        told.refused.append(f"model.network.num_head_channels: other than {CLASSIFIER_HEAD_CHANNELS} (a constant of the original)")
    if network.dropout:
        told.notes.append("the original trains classifiers without dropout")
    _tell_resampling(network, told)
    _tell_process(config.noise, told)
    _tell_classes(spec, told)


def _attention(network: EncoderConfig, spec: DataSpec) -> str:
    """The resolutions; where there are none, one that is never reached, for the flag cannot be empty."""
    return flag_text(network.attention_resolutions) or str(2 * spec.image_size)


def _levels(network: EncoderConfig, spec: DataSpec, told: Expressed, *, table: Mapping[int, tuple[float, ...]]) -> str:
    """channel_mult as a flag; empty where the original has it by the image size."""
    mult = network.channel_mult or CHANNEL_MULT[spec.image_size]
    if tuple(mult) == table.get(spec.image_size):
        return ""
    if any(part != int(part) for part in mult):
        told.refused.append(f"model.network.channel_mult: {flag_text(mult)} (its flag takes whole numbers)")
    return flag_text(mult)


def _tell_resampling(network: EncoderConfig, told: Expressed) -> None:
    if not network.conv_resample and not network.resblock_updown:
        told.refused.append("model.network.conv_resample: false")


def _tell_process(noise: NoiseConfig, told: Expressed) -> None:
    told.flags |= {"diffusion_steps": noise.steps, "noise_schedule": noise.schedule, "rescale_timesteps": noise.rescale_timesteps}
    if noise.betas is not None:
        told.refused.append("model.diffusion.betas: a table of betas")


def _tell_parametrization(diffusion: GaussianConfig, told: Expressed) -> None:
    if diffusion.mean not in ("epsilon", "x0"):
        told.refused.append(f"model.diffusion.mean: {diffusion.mean} (it has epsilon, and x0 as --predict_xstart)")
    if diffusion.variance == "learned":
        told.refused.append("model.diffusion.variance: learned (it has learned_range, as --learn_sigma, and fixed_large)")
    if diffusion.variance == "fixed_small":
        told.notes.append(
            "the original samples with fixed_large in place of fixed_small, unless create_gaussian_diffusion gets sigma_small"
        )
    if diffusion.loss == "kl":
        told.notes.append("to train on, the original has rescaled_kl in place of kl: the same loss times diffusion_steps")
    told.flags |= {
        "predict_xstart": diffusion.mean == "x0",
        "use_kl": diffusion.loss in ("kl", "rescaled_kl"),
        "rescale_learned_sigmas": diffusion.loss == "rescaled_mse",
    }


def _tell_classes(spec: DataSpec, told: Expressed) -> None:
    if spec.num_classes != NUM_CLASSES:
        told.notes.append(
            f"the model has {spec.num_classes} classes: set the constant NUM_CLASSES in guided_diffusion/script_util.py, {NUM_CLASSES}, "
            f"to {spec.num_classes}" + (", and out_channels in create_classifier" if "classifier_width" in told.flags else "")
        )


def flag_line(told: Expressed) -> dict[str, Any]:
    """The flags in the order of the original's table."""
    kind = "classifier" if "classifier_width" in told.flags else "super-resolution" if "large_size" in told.flags else "diffusion"
    return {name: told.flags[name] for name in flag_table(kind) if name in told.flags}
