"""`triptych launch slurm`: the file of a job for sbatch."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from triptych.cli.launch import LaunchOptions, Written, plain_name, training_of, written_by
from triptych.core.config import config
from triptych.core.errors import ConfigError, printable

_OPTION = re.compile(r"--[a-z][a-z-]*(=.+)?")
_TIME = re.compile(r"(?:(\d+)-(\d+)(?::(\d+))?(?::(\d+))?)|(?:(\d+)(?::(\d+))?(?::(\d+))?)")
_LEAST_AFTER_NOTICE = 60  # seconds; Slurm looks at the time of jobs so seldom
_MOST_NOTICE = 65_535  # seconds, of sbatch's --signal


@config
class SlurmOptions(LaunchOptions):
    """What is asked of Slurm."""

    time: str = "24:00:00"
    "Time until the job is stopped, and queued again: days-hours, hours:minutes:seconds, or minutes."
    cpus: int | None = None
    "CPU cores of each machine, for processes and loaders; None: as the cluster gives, which is often one."
    partition: str | None = None
    "The partition; None: the cluster's default."
    account: str | None = None
    "The account; None: the user's default."
    sbatch: str | None = None
    "Further options of sbatch in one text, without their dashes: 'qos=long mem=200G exclusive'. None: no others."

    def validate(self) -> None:
        self.require(self.cpus is None or self.cpus >= 1, "cpus", "at least 1, or nothing")
        form = "days-hours[:minutes[:seconds]], hours:minutes:seconds, minutes:seconds or minutes"
        self.require(_TIME.fullmatch(self.time) is not None, "time", form)
        most = min(seconds_of(self.time) - _LEAST_AFTER_NOTICE, _MOST_NOTICE)
        self.require(most >= 1, "time", f"more than {_LEAST_AFTER_NOTICE} seconds, for the training is told before its end (--notice)")
        self.require(self.notice <= most, "notice", f"1 to {most:,} seconds, of a job of {self.time}")
        self.require(all(map(_OPTION.fullmatch, self.more)), "sbatch", "options of sbatch in one text, such as 'qos=long mem=200G'")
        for name in ("partition", "account", "sbatch"):
            value = getattr(self, name)
            self.require(value is None or value == printable(value), name, "text of one line")

    @property
    def more(self) -> list[str]:
        """Further options of sbatch."""
        try:
            return [f"--{word.removeprefix('--')}" for word in shlex.split(self.sbatch or "")]
        except ValueError:
            raise ConfigError("sbatch", f"got {self.sbatch!r}, whose quotation marks do not close") from None


def prepared(words: Sequence[str]) -> Written:
    """The file of the job. Raises what `triptych train` raises for settings."""
    from triptych.runs.slurm import Job, job_file

    options, training = training_of(words, SlurmOptions(), platform="slurm")
    directory = training.directory
    if not directory.name:
        raise ConfigError("--run", f"got {str(directory)!r}, which has no name of its own; give a folder for the run, such as runs/NAME")
    job = Job(
        name=plain_name(directory),
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
    text = job_file(job, training.command, python=sys.executable, written_by=written_by("slurm", words))
    place = Path(options.out) if options.out else directory.with_name(f"{directory.name}.sbatch")
    return Written(options, place, text, f"{directory}/slurm-JOB.out", ["sbatch"], directory, training.check)


def seconds_of(time: str) -> int:
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
