"""A training as a job of Slurm: the file that sbatch takes.

Slurm stops a job when its time is up, when another one preempts it, and when a machine fails. The job is told before: SIGUSR1 goes to its
shell some time before the end, SIGTERM to its processes when it is preempted. Either makes the training save and stop, which its log says;
then the shell asks for the job to be queued again, and the same command goes on from there. A training that fails by itself is not begun
again, nor is one whose job was cancelled.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triptych.core.files import no_option

STOPPED = "and saved; the same command goes on from there"
"""How the line of a run's log ends that says it was stopped by a signal."""
_FIRST_PORT, _PORTS = 20_000, 10_000  # below those that Linux gives to connections

_BODY = """\
# The first signal before the end goes on to the training, which saves and stops; a second one would end it at once.
asked= told= step=
tell() {{
    asked=1
    if [[ -n $step && -z $told ]]; then
        told=1
        kill -USR1 "$step" 2>/dev/null || true
    fi
}}
trap tell USR1 TERM

# Where the processes meet: the first machine, at a port of the job's own.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$(({first_port} + SLURM_JOB_ID % {ports}))
start=${{SLURM_RESTART_COUNT:-0}}
log={log}
before=$(stat -c %s "$log" 2>/dev/null || echo 0)

# The step gets the cores that the job has: since Slurm 22.05 it does not by itself.
if [[ -n ${{SLURM_CPUS_PER_TASK:-}} ]]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
srun --kill-on-bad-exit=1 {python} -m triptych.cli.launch_agent {run} \\
    --nnodes {nodes} --nproc-per-node {processes} --max-restarts {restarts} \\
    --rdzv-backend c10d --rdzv-endpoint "$head:$port" --rdzv-id "$SLURM_JOB_ID-$start" \\
    --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 --shutdown-timeout {notice} \\
    -m -- triptych {command} &
step=$!
if [[ -n $asked ]]; then sleep 1; tell; fi  # a process that has just been forked does not hear it
while kill -0 "$step" 2>/dev/null; do wait "$step"; done
wait "$step"
code=$?

# What was stopped is queued again, and goes on; what is finished, has failed by itself or was cancelled is not.
# The controller may not answer at once, as when many jobs end together.
for try in 1 2 3 4 5 6; do
    state=$(scontrol show job "$SLURM_JOB_ID") && break
    sleep 5
done
again=
if tail -c "+$((before + 1))" "$log" 2>/dev/null | grep -q {stopped}; then again=1; fi
if [[ $code -ne 0 && ( -n $told || $state == *PreemptTime=[0-9]* ) ]]; then again=1; fi
if [[ -n $again && $state == *JobState=RUNNING* ]]; then
    echo "stopped: job $SLURM_JOB_ID is queued again"
    for try in 1 2 3 4 5 6; do
        scontrol requeue "$SLURM_JOB_ID" && exit 0
        sleep 5
    done
fi
exit "$code"
"""


@dataclass(frozen=True)
class Job:
    """What is asked of the cluster."""

    name: str
    directory: Path
    "The run."
    folder: Path
    "Where relative paths begin."
    nodes: int
    gpus: int
    "Of each node; 0: none."
    processes: int
    "Of each node."
    time: str
    notice: int
    "Seconds that a training has for saving and stopping."
    restarts: int
    cpus: int | None = None
    "Cores of each node; None: as the cluster gives."
    partition: str | None = None
    account: str | None = None
    more: Sequence[str] = ()
    "Further options of sbatch."


def job_file(job: Job, command: Sequence[str], *, python: str, written_by: str) -> str:
    """The text of the file.

    `command`: that of triptych, its verb first; `python`: what runs it on the nodes; `written_by`: the command line, for a comment.
    """
    options = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        *([f"--gpus-per-node={job.gpus}"] if job.gpus else []),
        *([] if job.cpus is None else [f"--cpus-per-task={job.cpus}"]),
        f"--time={job.time}",
        *([] if job.partition is None else [f"--partition={job.partition}"]),
        *([] if job.account is None else [f"--account={job.account}"]),
        "--requeue",
        "--open-mode=append",
        f"--signal=B:USR1@{job.notice}",
        f"--chdir={job.folder}",
        f"--output={str(job.folder / job.directory).replace('%', '%%')}/slurm-%j.out",
        *job.more,
    ]
    body = _BODY.format(
        first_port=_FIRST_PORT,
        ports=_PORTS,
        log=shlex.quote(no_option(job.directory / "log.txt")),
        run=shlex.quote(no_option(job.directory)),
        python=shlex.quote(python),
        nodes=job.nodes,
        processes=job.processes,
        restarts=job.restarts,
        notice=job.notice,
        command=shlex.join(command),
        stopped=shlex.quote(STOPPED),
    )
    lines = ["#!/bin/bash", f"# Written by: {written_by}", *(f"#SBATCH {_quoted(option)}" for option in options), "", body]
    return "\n".join(lines)


def _quoted(option: str) -> str:
    """An option as sbatch reads it: with quotation marks where there is more than letters and digits."""
    name, equals, value = option.partition("=")
    if not equals or shlex.quote(value) == value:
        return option
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'
