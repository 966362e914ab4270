"""The flags of guided-diffusion and of improved-diffusion: their names, types and defaults.

guided-diffusion: https://github.com/openai/guided-diffusion. improved-diffusion, its ancestor, has fewer flags and some other defaults.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Literal, get_args

from triptych.core.errors import ConfigError, nearest
from triptych.interop.flags import OriginalFlag, Value

Program = Literal["guided-diffusion", "improved-diffusion"]
"""Whose flags are meant."""
Kind = Literal["diffusion", "classifier", "super-resolution"]
"""What a network is."""

PROGRAMS: tuple[Program, ...] = get_args(Program)


_LISTS = {
    "attention_resolutions": "whole numbers",
    "classifier_attention_resolutions": "whole numbers",
    "channel_mult": "numbers",
    "timestep_respacing": "text",
}


def _flags(group: str, **defaults: Value) -> tuple[OriginalFlag, ...]:
    return tuple(OriginalFlag(name, default, group, listed=_LISTS.get(name, "")) for name, default in defaults.items())  # type: ignore[arg-type]


DIFFUSION = _flags(
    "diffusion",
    learn_sigma=False,
    diffusion_steps=1000,
    noise_schedule="linear",
    timestep_respacing="",
    use_kl=False,
    predict_xstart=False,
    rescale_timesteps=False,
    rescale_learned_sigmas=False,
)
MODEL = _flags(
    "model",
    image_size=64,
    num_channels=128,
    num_res_blocks=2,
    num_heads=4,
    num_heads_upsample=-1,
    num_head_channels=-1,
    attention_resolutions="16,8",
    channel_mult="",
    dropout=0.0,
    class_cond=False,
    use_checkpoint=False,
    use_scale_shift_norm=True,
    resblock_updown=False,
    use_fp16=False,
    use_new_attention_order=False,
)
CLASSIFIER = _flags(
    "classifier",
    image_size=64,
    classifier_use_fp16=False,
    classifier_width=128,
    classifier_depth=2,
    classifier_attention_resolutions="32,16,8",
    classifier_use_scale_shift_norm=True,
    classifier_resblock_updown=True,
    classifier_pool="attention",
)
SUPER_RESOLUTION = _flags("super-resolution", large_size=256, small_size=64)

_NOT_OF_UPSAMPLERS = ("image_size", "channel_mult", "use_new_attention_order")
_NOT_IN_IMPROVED = ("num_head_channels", "channel_mult", "resblock_updown", "use_fp16", "use_new_attention_order")
_IMPROVED_DEFAULTS: dict[str, Value] = {"rescale_timesteps": True, "rescale_learned_sigmas": True}


@functools.cache
def flag_table(kind: Kind, program: Program = "guided-diffusion") -> dict[str, OriginalFlag]:
    """The flags by name that describe a network of that kind and its diffusion.

    Raises ConfigError for a program that has no such networks.
    """
    if program not in PROGRAMS:
        raise ConfigError("program", f"got {program!r}, expected {' or '.join(PROGRAMS)}{nearest(str(program), PROGRAMS)}")
    if kind == "classifier":
        if program == "improved-diffusion":
            raise ConfigError("program", "improved-diffusion has no classifiers; guided-diffusion has")
        return {flag.name: flag for flag in (*CLASSIFIER, *DIFFUSION)}
    flags = {flag.name: flag for flag in (*MODEL, *DIFFUSION)}
    if kind == "super-resolution":
        flags = {name: flag for name, flag in flags.items() if name not in _NOT_OF_UPSAMPLERS} | {f.name: f for f in SUPER_RESOLUTION}
    if program == "improved-diffusion":
        flags = {name: replace(flag, default=_IMPROVED_DEFAULTS.get(name, flag.default)) for name, flag in flags.items()}
        flags = {name: flag for name, flag in flags.items() if name not in _NOT_IN_IMPROVED}
        flags["sigma_small"] = OriginalFlag("sigma_small", False, "diffusion")
    return flags


def all_flags(program: Program = "guided-diffusion") -> dict[str, OriginalFlag]:
    """The flags of all kinds of networks, by name."""
    kinds = get_args(Kind) if program != "improved-diffusion" else ("diffusion", "super-resolution")
    return {name: flag for kind in kinds for name, flag in flag_table(kind, program).items()}
