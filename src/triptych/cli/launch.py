"""`triptych launch`: a training as a job of a cluster. The platforms are in modules of their own."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from triptych.cli.arguments import named_as_flags, require_images
from triptych.cli.output import show, show_page
from triptych.cli.train import Base, TrainOptions, base_and_settings, configure, place_of
from triptych.core.config import config
from triptych.core.errors import ConfigError, UserError, nearest, one_line, printable
from triptych.core.files import explain, no_option, write_text
from triptych.core.wording import counted
from triptych.engine.run_directory import RunDirectory

if TYPE_CHECKING:
    from triptych.recipes.config import RunConfig

USAGE = """usage: triptych launch slurm RECIPE [settings as for train] [--nodes N] [--gpus N] [--time 4:00:00] [--submit]
       triptych launch kubernetes RECIPE --image IMAGE --claim CLAIM --run /shared/runs/NAME [settings as for train] [--submit]

Writes the job of a training: a file for sbatch, or the manifest of a PyTorchJob. --submit submits it too. The job starts torchrun on all
machines. Before they are taken away the training has time to save, and afterwards it goes on by itself. What the training would refuse at
its start is refused here, before the job waits; for kubernetes, whose paths are those of the pods, that is the settings alone.
A run in the place of the recipe goes on, as with train. slurm takes a file of settings by --config, too; kubernetes does not.

  triptych launch PLATFORM RECIPE --help    list every setting

example: triptych launch slurm adm-imagenet64 --run /shared/runs/in64 --data.path /shared/imagenet --nodes 4 --gpus 8 --time 24:00:00"""
_PLATFORMS = ("slurm", "kubernetes")


@config
class LaunchOptions(TrainOptions):
    """What is asked of any cluster, and the run."""

    nodes: int = 1
    "Number of machines."
    gpus: int = 1
    "GPUs of each machine, with a process for each; 0: none."
    processes: int | None = None
    "Processes of each machine; None: one for each GPU."
    notice: int = 300
    "Seconds that the training has, where it is told of its end, to save and stop."
    restarts: int = 3
    "How often all processes are started anew within a job when one of them is killed or fails; not where something given cannot be used."
    out: str | None = None
    "File of the job; None: by the name of the run."
    submit: bool = False
    "Submit the job."

    def validate(self) -> None:
        self.require(self.nodes >= 1, "nodes", "at least 1")
        self.require(self.gpus >= 0, "gpus", "0 or more")
        self.require(self.processes is None or self.processes >= 1, "processes", "at least 1, or nothing")
        self.require(self.gpus > 0 or self.processes is not None, "processes", "a number, where there are no GPUs")
        self.require(self.notice >= 1, "notice", "at least 1")
        self.require(self.restarts >= 0, "restarts", "0 or more")
        self.require(self.run is None or self.run == printable(self.run), "run", "text of one line")

    @property
    def of_each_node(self) -> int:
        """Processes of each machine."""
        return self.processes or self.gpus


Options = TypeVar("Options", bound=LaunchOptions)


@dataclass(frozen=True)
class Written:
    """The file of a job."""

    options: LaunchOptions
    place: Path
    text: str
    output: str
    "Where the job's output will be, in words."
    submit: Sequence[str]
    "The command that submits it, without the file."
    folder: Path | None = None
    "That has to be there before the job begins."
    check: Callable[[], None] = lambda: None
    "Raises what the training would refuse at its start, where its paths can be looked at from here."


def main(arguments: Sequence[str]) -> int:
    """Writes the file of the job, submits it where that is asked for, and says what is there."""
    if not arguments or "-h" in arguments[:2] or "--help" in arguments[:2]:
        show_page(USAGE, error=not arguments)
        return 0 if arguments else 2
    job = prepared(arguments)
    job.check()
    try:
        kept = _kept(job)
        if job.folder is not None:
            job.folder.mkdir(parents=True, exist_ok=True)
        write_text(job.place, job.text)
    except OSError as error:
        setting = "--out" if job.options.out else "--run"
        raise ConfigError(setting, f"cannot write {error.filename or job.place}: {explain(error)}") from None
    processes = counted(job.options.of_each_node, "process", "processes")
    show(f"job: {job.place} ({job.options.nodes} x {processes}); its output: {job.output}{kept}")
    words = [*job.submit, no_option(job.place)]
    show(submitted(words) if job.options.submit else f"submit it: {shlex.join(words)}")
    return 0


def _kept(job: Written) -> str:
    """Keeps a file of a job that is there, which may have been edited; what is said of it. Raises OSError, ConfigError for another file."""
    if not job.place.exists():
        return ""
    before = job.place.read_bytes()
    if b"# Written by: triptych launch" not in before:
        raise ConfigError("--out", f"{job.place} is there, and triptych launch did not write it; choose another, or remove it")
    if before == job.text.encode():
        return ""
    names = (f"{job.place.name}.bak{number}" for number in itertools.chain([""], itertools.count(2)))
    kept = next(place for place in map(job.place.with_name, names) if not place.exists())
    os.replace(job.place, kept)
    return f"; the one before is {kept}"


def prepared(arguments: Sequence[str]) -> Written:
    """The file of the job that the arguments are about. Raises what `triptych train` raises for settings."""
    platform, words = arguments[0], arguments[1:]
    if platform not in _PLATFORMS:
        known = " or ".join(_PLATFORMS)
        raise ConfigError(
            "", f"triptych launch: got {platform!r}, expected {known}{nearest(platform, _PLATFORMS)} (triptych launch --help)"
        )
    if not words:
        raise ConfigError("", f"no recipe given; usage: triptych launch {platform} RECIPE [settings] (triptych recipes lists them)")
    return importlib.import_module(f"triptych.cli.launch_{platform}").prepared(words)


@dataclass(frozen=True)
class Training:
    """The training that a job runs."""

    base: Base
    options: LaunchOptions
    config: RunConfig
    command: list[str]
    "That of triptych, without what is asked of the cluster."

    @property
    def directory(self) -> Path:
        """The run."""
        return place_of(self.base, self.options)

    def check(self) -> None:
        """Raises what `triptych train` would refuse at its start, where the paths are those of this machine."""
        require_images(self.config.data.path, note=" (data.path)")

        from triptych.runs.beforehand import refuse_at_start

        options = self.options
        with named_as_flags(options, self.config):
            refuse_at_start(
                self.config,
                RunDirectory(self.directory),
                recipe=self.base.recipe,
                init_from=options.init_from,
                processes=options.nodes * options.of_each_node,
                of_each_machine=options.of_each_node,
            )


def training_of(words: Sequence[str], options: Options, *, platform: str) -> tuple[Options, Training]:
    """The options, and the training. Raises what `triptych train` raises for settings."""
    from triptych.cli.settings import flags_of, without_flags

    base, settings = base_and_settings(words, usage=f"triptych launch {platform} RECIPE [settings as for train]")
    given, run_config = configure(base, settings, options=options, verb=f"launch {platform}")
    _check_batch(given, run_config)
    own = {flag.name for flag in flags_of(options)} - {flag.name for flag in flags_of(TrainOptions())}
    named = list(words[: len(words) - len(settings)])
    device = _device(given)  # without it a machine whose GPUs cannot be used would train on its CPU
    return given, Training(base, given, run_config, ["train", *named, *without_flags(settings, options, own), *device])


def written_by(platform: str, words: Sequence[str]) -> str:
    """The command line, for a comment in the file."""
    return printable(shlex.join(["triptych", "launch", platform, *words]))


def plain_name(directory: Path) -> str:
    """The name of a run in letters, digits and dashes; it does not begin with a dash, as options do."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", directory.name).lstrip("-.") or "run"


def _device(options: LaunchOptions) -> list[str]:
    """The flag that asks for GPUs where the job has them. Raises ConfigError for a device that does not go with them."""
    if options.device is None:
        return ["--device", "cuda"] if options.gpus else []
    wanted = "cuda" if options.gpus else "cpu"
    if options.device != wanted:
        raise ConfigError("--device", f"got {options.device!r}, expected {wanted} with --gpus {options.gpus}, or nothing")
    return []


def _check_batch(options: LaunchOptions, run_config: RunConfig) -> None:
    processes = options.nodes * options.of_each_node
    batch = run_config.rescaled(processes).train.batch_size
    if batch < processes:
        reason = f"got {batch}, expected at least one image for each of {processes} processes (--nodes {options.nodes})"
        raise ConfigError("--train.batch-size", reason)


def submitted(words: Sequence[str]) -> str:
    """What the cluster's command says of the job. Raises UserError where it does not take it."""
    program = shutil.which(words[0])
    if program is None:
        raise ConfigError("--submit", f"there is no {words[0]} on this machine; submit {words[-1]} where there is one")
    done = subprocess.run([program, *words[1:]], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{words[0]} did not take {words[-1]}: {one_line(Exception(done.stderr or done.stdout))}")
    return done.stdout.strip()
