"""`triptych imaginaire`: the command line of imaginaire's train.py, translated into commands of Triptych, which are run.

Its flags are taken word for word. They become an import of the YAML file (and of weights to begin with), and a training of the run that
this makes; both are printed before they run. A flag that has no meaning any more is named with what replaced it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.cli.originals import Commands, note, run_script
from triptych.cli.processes import num_processes
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.files import explain, write_text
from triptych.interop.flags import parse_flags
from triptych.interop.imaginaire.flags import FLAGS, RANDOM_SEEDS

USAGE = """usage: triptych imaginaire [train.py] --config FILE [--logdir DIR] --flag value ... [settings]

Takes the command line of imaginaire's train.py, prints the equivalent commands of Triptych and runs them. The run is in --logdir (else
logs/DATE_NAME); the same command with that --logdir goes on with it. Settings of `triptych train` may follow, such as
--data.path DIR (in place of the YAML file's roots) or --model.perceptual.weights vgg19.pth: nothing is downloaded.

  triptych imaginaire --help    list the flags

example: triptych imaginaire --config base128_bs4.yaml --logdir runs/spade --model.perceptual.weights vgg19-dcbb9e9d.pth"""

_SEVERAL = "torchrun --nproc-per-node N -m -- triptych imaginaire"
_SECTIONS = ("--model.", "--data.", "--train.", "--optim.", "--log.")
_DATA_PATH = "--data.path"
_PROFILED_STEPS = 10
_IMPORT = "after `triptych import imaginaire FILE WEIGHTS --run RUN`"
_OTHER_SCRIPTS = {
    "inference.py": f"; for inference.py there is `triptych translate RUN IMAGES --out DIR`, {_IMPORT}",
    "evaluate.py": f"; for evaluate.py there is `triptych evaluate RUN`, {_IMPORT}",
}
_REPLACED = {
    "local_rank": "torchrun tells each process its own",
    "use_jit": "networks are compiled by --train.compile",
    "single_gpu": "without torchrun there is one process",
}


@dataclass(frozen=True)
class Given:
    """The values of all flags, which of them were given, and settings of ours."""

    values: Mapping[str, Any]
    named: frozenset[str]
    settings: tuple[str, ...]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def main(arguments: Sequence[str]) -> int:
    """The exit code of the last command that ran."""
    return run_script(arguments, usage=USAGE, flags=FLAGS, several=_SEVERAL, read=read, commands=commands, instead=_OTHER_SCRIPTS)


def read(arguments: Sequence[str]) -> Given:
    """The flags, checked and completed, and the settings of ours among them. Raises ConfigError for an unknown flag or value."""
    words, settings = _separated(arguments)
    values = parse_flags([word.replace("--local-rank", "--local_rank", 1) for word in words], FLAGS)
    given = Given({flag.name: flag.default for flag in FLAGS.values()} | values, frozenset(values), tuple(settings))
    if not given["config"]:
        raise ConfigError("--config", "missing: the YAML file")
    if given["seed"] < 0:
        raise ConfigError("--seed", f"got {given['seed']}, expected 0 or more")
    if given["resume"] not in ("", "0", "1"):
        raise ConfigError("--resume", f"got {given['resume']!r}, expected 0 or 1")
    if given["num_workers"] and not given["num_workers"].isdecimal():
        raise ConfigError("--num_workers", f"got {given['num_workers']!r}, expected a whole number")
    return given


def _separated(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of the original, and settings of ours with their values."""
    theirs: list[str] = []
    ours: list[str] = []
    chosen = theirs
    for word in arguments:
        if word.startswith("--"):
            chosen = ours if word.startswith(_SECTIONS) else theirs
        chosen.append(word)
    return theirs, ours


def commands(given: Given) -> Commands:
    """What the flags become."""
    for name, reason in _REPLACED.items():
        if name in given.named:
            note(f"--{name} is not used: {reason}")
    config, logdir = Path(given["config"]), _logdir(given)
    begun = _begun(logdir)
    if begun and given["resume"] == "0":
        raise ConfigError("--resume", f"got 0, but {logdir} holds a run; give another --logdir")
    begin: list[str] = []
    if begun:
        _note_resumed(given, logdir)
    else:
        begin = yield from _imported(given, config, logdir)
    yield ["train", str(logdir), *begin, *_settings(given, begun=begun)]


def _logdir(given: Given) -> Path:
    if given["logdir"]:
        return Path(given["logdir"])
    return Path("logs") / f"{time.strftime('%Y_%m%d_%H%M_%S')}_{Path(given['config']).stem}"


def _begun(logdir: Path) -> bool:
    """Whether the directory holds a run with weights, or one that was trained."""
    if not (logdir / "config.json").is_file():
        return False
    from triptych.engine.run_directory import RunDirectory
    from triptych.runs.interchange import settings_alone

    return not settings_alone(RunDirectory(logdir))


def _note_resumed(given: Given, logdir: Path) -> None:
    note(f"{logdir} holds a run: it goes on with its own settings, and the YAML file is not read again")
    if given["checkpoint"]:
        note("--checkpoint is not used: the run goes on from its own weights")
    if given["randomized_seed"]:
        note("--randomized_seed is not used: the run keeps its seed")


def _imported(given: Given, config: Path, logdir: Path) -> Any:
    """Yields the import of the file and perhaps of weights; returns what the training has to be told of weights in a run."""
    words, begin = ["import", "imaginaire", str(config)], []
    checkpoint = given["checkpoint"]
    if checkpoint and (Path(checkpoint) / "config.json").is_file():
        begin = ["--init-from", checkpoint]
    elif checkpoint:
        if not Path(checkpoint).is_file():
            raise CheckpointError(f"there is no checkpoint {checkpoint}")
        words.append(checkpoint)
    if checkpoint and given["resume"] == "1":
        note("--resume 1 gives the weights alone: the optimizers and the count of images begin anew")
    words += ["--run", str(logdir)]
    path = _data_path(given)
    if path is None and config.is_file():  # before a run is made that could not be trained
        from triptych.interop.imaginaire.importer import check_data

        check_data(config)
    words += [] if path is None else ["--data", path]
    if num_processes() > 1:
        words += ["--processes", str(num_processes())]
    if given["wandb_id"]:
        _write_wandb_id(logdir, given["wandb_id"])
    yield words
    return begin


def _data_path(given: Given) -> str | None:
    """The value of --data.path among the settings."""
    for position, word in enumerate(given.settings):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == _DATA_PATH:
            return value if equals else next(iter(given.settings[position + 1 :]), None)
    return None


def _write_wandb_id(logdir: Path, name: str) -> None:
    from triptych.engine.run_directory import RunDirectory

    directory = RunDirectory(logdir)
    directory.create()
    try:
        write_text(directory.wandb_id_path, f"{name}\n")
    except OSError as error:
        raise CheckpointError(f"cannot write {directory.wandb_id_path}: {explain(error)}") from error


def _settings(given: Given, *, begun: bool) -> list[str]:
    """The settings of the training. The seed of a run that goes on is its own, and held against one that is given."""
    words: list[str] = []
    if given["randomized_seed"] and not begun:
        seed = secrets.randbelow(RANDOM_SEEDS)
        note(f"drew seed {seed}")
        words += ["--train.seed", str(seed)]
    elif not given["randomized_seed"] and (not begun or "seed" in given.named):
        words += ["--train.seed", str(given["seed"])]
    if given["num_workers"]:
        words += ["--data.workers", given["num_workers"]]
    if given["profile"]:
        words += ["--train.profile-steps", str(_PROFILED_STEPS)]
    if given["wandb"] and not given["debug"]:
        words += ["--log.wandb", "online", "--log.wandb-project", given["wandb_name"]]
    return [*words, *given.settings]
