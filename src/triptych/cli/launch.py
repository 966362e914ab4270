"""`triptych launch slurm`: a training as a job of a cluster."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from triptych.cli.arguments import flag_value, require_images
from triptych.cli.output import show, show_page
from triptych.cli.train import TrainOptions, base_and_settings, configure, place_of
from triptych.core.config import config
from triptych.core.errors import ConfigError, UserError, nearest, one_line, printable
from triptych.core.files import explain, write_text

_LINE = "triptych launch slurm RECIPE [settings as for train] [--nodes N] [--gpus N] [--time 4:00:00] [--submit]"
USAGE = """usage: triptych launch slurm RECIPE [settings as for train] [--nodes N] [--gpus N] [--time 4:00:00] [--submit]
       triptych launch slurm RUN [settings]
       triptych launch slurm --config FILE [settings]

Writes the file of a job for sbatch, and with --submit submits it: torchrun on all nodes, a signal before the time is up, after which the
training saves, stops and is queued again, and goes on by itself. Settings are checked here, before the job waits for hours.

  triptych launch slurm RECIPE --help    list every setting

example: triptych launch slurm adm-imagenet64 --run /shared/runs/in64 --data.path /shared/imagenet --nodes 4 --gpus 8 --time 24:00:00"""
_PLATFORMS = ("slurm",)
_OPTION = re.compile(r"--[a-z][a-z-]*(=.+)?")
_TIME = re.compile(r"(?:(\d+)-(\d+)(?::(\d+))?(?::(\d+))?)|(?:(\d+)(?::(\d+))?(?::(\d+))?)")
_LEAST_AFTER_NOTICE = 60  # seconds; Slurm looks at the time of jobs so seldom


@config
class SlurmOptions(TrainOptions):
    """What is asked of the cluster, and the run."""

    nodes: int = 1
    "Machines."
    gpus: int = 1
    "GPUs of each machine, with a process for each; 0: none."
    processes: int | None = None
    "Processes of each machine; None: one for each GPU."
    cpus: int | None = None
    "CPU cores of each machine, for processes and loaders; None: as the cluster gives, which is often one."
    time: str = "24:00:00"
    "Time until the job is stopped, and queued again: days-hours, hours:minutes:seconds, or minutes."
    notice: int = 300
    "Seconds before that end at which the training is told, to save and stop."
    restarts: int = 3
    "How often all processes are started anew within a job when one of them is killed."
    partition: str | None = None
    "The partition; None: the cluster's default."
    account: str | None = None
    "The account; None: the user's default."
    sbatch: str | None = None
    "Further options of sbatch in one text, without their dashes: 'qos=long mem=200G exclusive'."
    out: str | None = None
    "File of the job; None: the run's directory with .sbatch behind it."
    submit: bool = False
    "Submit the job."

    def validate(self) -> None:
        self.require(self.nodes >= 1, "nodes", "at least 1")
        self.require(self.gpus >= 0, "gpus", "0 or more")
        self.require(self.processes is None or self.processes >= 1, "processes", "at least 1, or nothing")
        self.require(self.gpus > 0 or self.processes is not None, "processes", "a number, where there are no GPUs")
        self.require(self.cpus is None or self.cpus >= 1, "cpus", "at least 1, or nothing")
        self.require(self.restarts >= 0, "restarts", "0 or more")
        form = "days-hours[:minutes[:seconds]], hours:minutes:seconds, minutes:seconds or minutes"
        self.require(_TIME.fullmatch(self.time) is not None, "time", form)
        most = _seconds(self.time) - _LEAST_AFTER_NOTICE
        self.require(1 <= self.notice <= max(most, 0), "notice", f"1 to {max(most, 0):,} seconds, of a job of {self.time}")
        self.require(all(map(_OPTION.fullmatch, self.more)), "sbatch", "options of sbatch in one text, such as 'qos=long mem=200G'")
        for name in ("partition", "account", "run", "sbatch"):
            value = getattr(self, name)
            self.require(value is None or value == printable(value), name, "text of one line")

    @property
    def more(self) -> list[str]:
        """Further options of sbatch."""
        try:
            return [f"--{word.removeprefix('--')}" for word in shlex.split(self.sbatch or "")]
        except ValueError:
            raise ConfigError("sbatch", f"got {self.sbatch!r}, whose quotation marks do not close") from None

    @property
    def of_each_node(self) -> int:
        """Processes of each machine."""
        return self.processes or self.gpus


def main(arguments: Sequence[str]) -> int:
    """Writes the file of the job, submits it where that is asked for, and says what is there."""
    if not arguments or arguments[0] in ("-h", "--help"):
        show_page(USAGE, error=not arguments)
        return 0 if arguments else 2
    platform, words = arguments[0], arguments[1:]
    if platform not in _PLATFORMS:
        raise ConfigError("", f"unknown triptych launch {platform!r}{nearest(platform, _PLATFORMS)}; usage: {_LINE}")
    if not words:
        raise ConfigError("", f"no recipe given; usage: {_LINE} (triptych recipes lists them)")
    if words[0] in ("-h", "--help"):
        show_page(USAGE)
        return 0
    options, directory, text = prepared(words)
    place = Path(options.out) if options.out else directory.with_name(f"{directory.name}.sbatch")
    try:
        directory.mkdir(parents=True, exist_ok=True)  # the job's output goes there
        write_text(place, text)
    except OSError as error:
        raise ConfigError("--out" if options.out else "--run", f"cannot write {error.filename or place}: {explain(error)}") from None
    show(f"job: {place} ({options.nodes} x {options.of_each_node} processes, {options.time}); its output: {directory}/slurm-JOB.out")
    show(submitted(place) if options.submit else f"submit it: sbatch {shlex.quote(str(place))}")
    return 0


def prepared(words: Sequence[str]) -> tuple[SlurmOptions, Path, str]:
    """The options, the run's directory, and the file of the job. Raises what `triptych train` raises for settings."""
    from triptych.cli.settings import flags_of, without_flags
    from triptych.runs.slurm import Job, job_file

    require_images(flag_value("--data.path", words), note=" (data.path)")
    base, settings = base_and_settings(words, usage=_LINE)
    options, run_config = configure(base, settings, options=SlurmOptions(), verb="launch slurm")
    require_images(run_config.data.path, note=" (data.path)")
    directory = place_of(base, options)
    processes = options.nodes * options.of_each_node
    batch = run_config.rescaled(processes).train.batch_size
    if batch < processes:
        reason = f"got {batch}, expected at least one image for each of {processes} processes ({options.nodes} nodes)"
        raise ConfigError("--train.batch-size", reason)
    own = {flag.name for flag in flags_of(SlurmOptions(processes=1))} - {flag.name for flag in flags_of(TrainOptions())}
    named = list(words[: len(words) - len(settings)])
    job = Job(
        name=re.sub(r"[^\w.-]", "-", directory.name),
        directory=directory,
        folder=Path.cwd(),
        nodes=options.nodes,
        gpus=options.gpus,
        processes=options.of_each_node,
        time=options.time,
        notice=options.notice,
        restarts=options.restarts,
        cpus=options.cpus,
        partition=options.partition,
        account=options.account,
        more=options.more,
    )
    command = ["train", *named, *without_flags(settings, SlurmOptions(processes=1), own)]
    text = job_file(job, command, python=sys.executable, written_by=printable(shlex.join(["triptych", "launch", "slurm", *words])))
    return options, directory, text


def submitted(place: Path) -> str:
    """What sbatch says of the job. Raises UserError where it does not take it."""
    program = shutil.which("sbatch")
    if program is None:
        raise ConfigError("--submit", f"there is no sbatch on this machine; submit {place} where there is one")
    done = subprocess.run([program, str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"sbatch did not take {place}: {one_line(Exception(done.stderr or done.stdout))}")
    return done.stdout.strip()


def _seconds(time: str) -> int:
    """The seconds of a time as Slurm writes it; 0 for what is none."""
    match = _TIME.fullmatch(time)
    if match is None:
        return 0
    days, hours, minutes, seconds, *plain = match.groups()
    if days is not None:
        return int(days) * 86_400 + int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    first, second, third = plain
    if third is not None:
        return int(first) * 3600 + int(second) * 60 + int(third)
    return int(first) * 60 + int(second or 0)
