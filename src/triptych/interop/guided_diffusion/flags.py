"""The flags of guided-diffusion and of improved-diffusion, of their networks and of their scripts: names, types and defaults.

guided-diffusion: https://github.com/openai/guided-diffusion. improved-diffusion, its ancestor, has fewer flags and some other defaults.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from triptych.core.errors import ConfigError, nearest
from triptych.interop.flags import FlagValues, OriginalFlag, Value, command_line, parse_flags

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
    """The flags by name of a network of that kind and its diffusion. Raises ConfigError for a program that has no such networks."""
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


# Scripts --------------------------------------------------------------------------------------------------------------

_TRAINING: dict[str, Value] = {
    "data_dir": "",
    "schedule_sampler": "uniform",
    "lr": 1e-4,
    "weight_decay": 0.0,
    "lr_anneal_steps": 0,
    "batch_size": 1,
    "microbatch": -1,
    "ema_rate": "0.9999",
    "log_interval": 10,
    "save_interval": 10_000,
    "resume_checkpoint": "",
    "use_fp16": False,
    "fp16_scale_growth": 1e-3,
}
_CLASSIFIER_TRAINING: dict[str, Value] = {
    "data_dir": "",
    "val_data_dir": "",
    "noised": True,
    "iterations": 150_000,
    "lr": 3e-4,
    "weight_decay": 0.0,
    "anneal_lr": False,
    "batch_size": 4,
    "microbatch": -1,
    "schedule_sampler": "uniform",
    "resume_checkpoint": "",
    "log_interval": 10,
    "eval_interval": 5,
    "save_interval": 10_000,
}
_SAMPLING: dict[str, Value] = {"clip_denoised": True, "num_samples": 10_000, "batch_size": 16, "use_ddim": False, "model_path": ""}
_CLASSIFIER_SAMPLING: dict[str, Value] = {**_SAMPLING, "classifier_path": "", "classifier_scale": 1.0}
_UPSAMPLING: dict[str, Value] = {**_SAMPLING, "base_samples": ""}
_LIKELIHOOD: dict[str, Value] = {"data_dir": "", "clip_denoised": True, "num_samples": 1_000, "batch_size": 1, "model_path": ""}


@dataclass(frozen=True)
class Script:
    """One of the original's scripts."""

    own: Mapping[str, Value]
    "The flags that say nothing of a network or its diffusion, with their defaults."
    kinds: tuple[Kind, ...]
    "The networks whose flags it has too."
    place: str
    "The flag of ours that says where the result goes."

    def flags(self) -> dict[str, OriginalFlag]:
        flags = {name: flag for kind in self.kinds for name, flag in flag_table(kind).items()}
        return flags | {name: OriginalFlag(name, default, "script") for name, default in {**self.own, self.place: ""}.items()}


SCRIPTS = {
    "image_train": Script(_TRAINING, ("diffusion",), "run"),
    "super_res_train": Script(_TRAINING, ("super-resolution",), "run"),
    "classifier_train": Script(_CLASSIFIER_TRAINING, ("classifier",), "run"),
    "image_sample": Script(_SAMPLING, ("diffusion",), "out"),
    "super_res_sample": Script(_UPSAMPLING, ("super-resolution",), "out"),
    "classifier_sample": Script(_CLASSIFIER_SAMPLING, ("diffusion", "classifier"), "out"),
    "image_nll": Script(_LIKELIHOOD, ("diffusion",), "out"),
}
OF_SCRIPTS = frozenset(name for script in SCRIPTS.values() for name in script.own)
"""The names of the flags of scripts alone."""


@dataclass(frozen=True)
class ScriptFlags(FlagValues):
    """The command line of a script."""

    script: str = ""

    @property
    def kind(self) -> Kind:
        """What its first network is."""
        return SCRIPTS[self.script].kinds[0]

    @property
    def place(self) -> str | None:
        """What --run or --out names."""
        return self[SCRIPTS[self.script].place] or None

    def words(self, kind: Kind, *, without: Container[str] = ()) -> str:
        """The given flags that describe a network of that kind, as a command line, but for those `without`."""
        wanted = {name: value for name, value in self.values.items() if name in self.given and name in flag_table(kind)}
        return command_line({name: value for name, value in wanted.items() if name not in without})


def script_name(script: str) -> str:
    """The script that is meant, by its name or its path. Raises ConfigError for an unknown one."""
    name = Path(script).stem  # "scripts/image_train.py" is what a copied command line begins with
    if name == "evaluator":
        raise ConfigError("", f"got {script!r}: for it there is `triptych evaluate SAMPLES.npz --reference REFERENCE.npz`")
    if name not in SCRIPTS:
        raise ConfigError("", f'unknown script "{script}"{nearest(name, SCRIPTS)} (triptych guided-diffusion --help lists them)')
    return name


def read(script: str, words: Sequence[str]) -> ScriptFlags:
    """The flags of a script, checked and completed. Raises ConfigError for an unknown script, flag or value."""
    name = script_name(script)
    table = SCRIPTS[name].flags()
    return replace(ScriptFlags.complete(parse_flags(words, table), table), script=name)
