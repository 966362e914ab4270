"""guided-diffusion's scripts: their own flags with the defaults, and those of the networks that they are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from triptych.core.errors import ConfigError, nearest
from triptych.interop.flags import FlagValues, OriginalFlag, Value, command_line
from triptych.interop.guided_diffusion.flags import Kind, flag_table

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
        """All its flags by name."""
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

    def words(self, kind: Kind) -> str:
        """The given flags that describe a network of that kind, as a command line."""
        return command_line({name: value for name, value in self.values.items() if name in self.given and name in flag_table(kind)})


def script_name(script: str) -> str:
    """The script that is meant, by its name or its path. Raises ConfigError for an unknown one."""
    name = Path(script).stem  # "scripts/image_train.py" is what a copied command line begins with
    if name not in SCRIPTS:
        raise ConfigError("", f'unknown script "{script}"{nearest(name, SCRIPTS)} (triptych guided-diffusion --help lists them)')
    return name


def read(script: str, words: Sequence[str]) -> ScriptFlags:
    """The flags of a script, checked and completed. Raises ConfigError for an unknown script, flag or value."""
    name = script_name(script)
    return replace(ScriptFlags.read(words, SCRIPTS[name].flags()), script=name)
