"""The flags of imaginaire's train.py, with their defaults, and what they are here: https://github.com/NVlabs/imaginaire."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from triptych.core.errors import ConfigError
from triptych.interop.flags import FlagValues, OriginalFlag, Value, parse_flags

_DEFAULTS: dict[str, Value] = {"config": "", "logdir": "", "checkpoint": "", "seed": 2, "local_rank": 0, "wandb_name": "default"}
_DEFAULTS |= dict.fromkeys(("wandb_id", "resume", "num_workers"), "")
_DEFAULTS |= dict.fromkeys(("randomized_seed", "single_gpu", "debug", "use_jit", "profile", "wandb"), False)
FLAGS = {name: OriginalFlag(name, default, "run", switch=default is False) for name, default in _DEFAULTS.items()}
"""All of them by name; an empty text stands for one that is not given."""

_SEEDS = 10_001
"""How many seeds --randomized_seed chooses from."""
_PROFILED_STEPS = 10
_SECTIONS = ("--model.", "--data.", "--train.", "--optim.", "--log.")


@dataclass(frozen=True)
class TrainFlags(FlagValues):
    """A command line of train.py, and the settings of `triptych train` that followed it."""

    settings: tuple[str, ...] = ()

    @property
    def data_path(self) -> str | None:
        """The value of --data.path among the settings; the last one, where there are several, as the training takes it."""
        path = None
        for position, word in enumerate(self.settings):
            name, equals, value = word.partition("=")
            if name == "--data.path" and (equals or self.settings[position + 1 :]):
                path = value if equals else self.settings[position + 1]
        return path

    def training(self, note: Callable[[str], None], *, resumed: bool) -> list[str]:
        """The settings of the training as words; a resumed run's seed is compared with a given one. `note` is told what was drawn."""
        words: list[str] = []
        if self["randomized_seed"] and not resumed:
            seed = secrets.randbelow(_SEEDS)
            note(f"drew seed {seed}")
            words += ["--train.seed", str(seed)]
        elif not self["randomized_seed"] and (not resumed or "seed" in self.given):
            words += ["--train.seed", str(self["seed"])]
        if self["num_workers"]:
            words += ["--data.workers", self["num_workers"]]
        if self["profile"]:
            words += ["--train.profile-steps", str(_PROFILED_STEPS)]
        if self["wandb"] and not self["debug"]:
            words += ["--log.wandb", "online", "--log.wandb-project", self["wandb_name"]]
        return [*words, *self.settings]


def read_flags(words: Sequence[str]) -> TrainFlags:
    """The flags, checked and completed. Raises ConfigError for an unknown flag or value."""
    theirs: list[str] = []
    ours: list[str] = []
    chosen = theirs
    for word in words:
        if word.startswith("--"):
            chosen = ours if word.startswith(_SECTIONS) else theirs
        chosen.append(word)
    values = parse_flags([re.sub("^--local-rank", "--local_rank", word) for word in theirs], FLAGS)
    flags = replace(TrainFlags.complete(values, FLAGS), settings=tuple(ours))
    if not flags["config"]:
        raise ConfigError("--config", "missing: the YAML file")
    if flags["seed"] < 0:
        raise ConfigError("--seed", f"got {flags['seed']}, expected 0 or more")
    if flags["resume"] not in ("", "0", "1"):
        raise ConfigError("--resume", f"got {flags['resume']!r}, expected 0 or 1")
    if flags["num_workers"] and not flags["num_workers"].isdecimal():
        raise ConfigError("--num_workers", f"got {flags['num_workers']!r}, expected a whole number")
    return flags
