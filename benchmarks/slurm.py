"""Whether a training that Slurm preempts, tells to stop and queues again ends like one that is left alone.

    python benchmarks/slurm.py --out FILE.md

Sets up a cluster of one machine on loopback, by slurmctld, slurmd and munged (Debian: apt-get install slurm-wlm; as root), with a partition
whose jobs those of another one preempt, and takes it down. Each job is written and submitted by `triptych launch slurm --submit`, with two
processes on the CPU:

- one is left alone;
- one is preempted as soon as it has a checkpoint, by a job of the other partition, and one as soon as it runs;
- one gets the signal that comes before the end of its time;
- one is killed on its machine (SIGKILL of a process), and torchrun starts it anew within the job;
- one is cancelled, and must not come back; one fails by itself, and must not either.

Exit code 1 unless those that went on have the last checkpoint of the first one, byte for byte, and nothing is left of the cluster.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from machine import machine

SETTINGS = (
    "--nodes 1 --gpus 0 --processes 2 --time 0:30:00 --notice 60 --partition low --device cpu "
    "--model.network.num-channels 32 --model.network.num-res-blocks 1 --train.batch-size 16 --train.total-images 960 "
    "--train.checkpoint-every 160 --train.sample-count 0 --train.validate-every 480 --train.validate-images 8 --train.precision float32"
)
CONF = """\
ClusterName=triptych
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={root}/munge.sock,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,sched_interval=2
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=60
InactiveLimit=0
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes={host} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as waiting:
        waiting.bind(("127.0.0.1", 0))
        return waiting.getsockname()[1]


@contextlib.contextmanager
def cluster(root: Path) -> Iterator[None]:
    """Slurm on this machine, found by SLURM_CONF."""
    root.chmod(0o755)
    for name in ("state", "spool"):
        (root / name).mkdir()
    key = root / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    conf = root / "slurm.conf"
    conf.write_text(CONF.format(root=root, host=socket.gethostname().split(".")[0], ctld=free_port(), slurmd=free_port()))
    (root / "cgroup.conf").write_text("CgroupAutomount=no\n")
    os.environ["SLURM_CONF"] = str(conf)
    munge = [f"--{name}={root / file}" for name, file in (("socket", "munge.sock"), ("key-file", "munge.key"), ("log-file", "munged.log"))]
    munge += [f"--pid-file={root / 'munged.pid'}", f"--seed-file={root / 'munged.seed'}", "--force", "--foreground"]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for words in (["munged", *munge], ["slurmctld", "-D", "-c"], ["slurmd", "-D", "-c"]):
            log = (root / f"{words[0]}.out").open("wb")
            daemons.append(subprocess.Popen([shutil.which(words[0]) or f"/usr/sbin/{words[0]}", *words[1:]], stdout=log, stderr=log))
            time.sleep(2)
        wait(lambda: "idle" in shell("sinfo -h -o %T"), "the machine is idle", seconds=60)
        yield
    finally:
        for job in shell("squeue -h -o %A").split():
            shell(f"scancel --signal=KILL --full {job}; scancel {job}")
        with contextlib.suppress(TimeoutError):
            wait(lambda: not shell("squeue -h -o %A").split(), "no job is left", seconds=60)
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def shell(line: str) -> str:
    """What a command prints."""
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False).stdout


def wait(happened: Callable[[], object], what: str, *, seconds: float = 600) -> None:
    until = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {seconds:g} seconds in vain until {what}")
        time.sleep(0.2)


def submit(run: Path, *more: str) -> str:
    """The number of the job of a training."""
    words = [sys.executable, "-m", "triptych", "launch", "slurm", "adm-digits", "--run", str(run), *SETTINGS.split(), *more, "--submit"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return said.rpartition("Submitted batch job ")[2].split()[0]


def state(job: str) -> dict[str, str]:
    """What Slurm says of a job, by name."""
    return dict(re.findall(r"(\w+)=(\S*)", shell(f"scontrol show job {job}")))


def ended(job: str) -> bool:
    return state(job).get("JobState", "GONE") in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "GONE")


def newest(run: Path) -> int:
    """Images of the last checkpoint; 0: there is none."""
    return max((int(each.name) for each in (run / "checkpoints").glob("[0-9]*")), default=0)


def digest(run: Path) -> str:
    """Of the files of the last checkpoint."""
    hashed = hashlib.sha256()
    for file in sorted((run / "checkpoints" / f"{newest(run):09d}").iterdir()):
        hashed.update(file.name.encode() + file.read_bytes())
    return f"{newest(run)} images, {hashed.hexdigest()[:16]}"


def workers(run: Path) -> list[int]:
    """The processes that train in a run, oldest first; not torchrun."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if str(run).encode() in words and b"torch.distributed" not in words and b"LOCAL_RANK=" in (process / "environ").read_bytes():
                found.append(int(process.name))
    return sorted(found)


def started_in(root: Path) -> list[str]:
    """The processes that have the cluster of a folder in their environment: daemons, jobs and what these started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"SLURM_CONF={root}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:60])
    return found


def preempted(run: Path, images: int) -> str:
    """A job that another one takes the place of once it has so many images, or for 0 once it runs."""
    job = submit(run)
    wait(lambda: newest(run) >= images and state(job).get("JobState") == "RUNNING", f"{run.name} has {images} images")
    words = ["sbatch", "--partition=high", "--cpus-per-task=2", "--output=/dev/null", "--wrap", "sleep 1"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return job


def told(run: Path) -> str:
    """A job that gets the signal that Slurm sends before the end of its time."""
    job = submit(run)
    wait(lambda: newest(run) >= 160, f"{run.name} has a checkpoint")
    shell(f"scancel --batch --signal=USR1 {job}")
    return job


def killed(run: Path) -> str:
    """A job one of whose processes is killed."""
    job = submit(run)
    wait(lambda: newest(run) >= 160, f"{run.name} has a checkpoint")
    os.kill(workers(run)[-1], signal.SIGKILL)
    return job


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    lines = ["| job | queued again | seconds | ended as | last checkpoint | as it should |", "|---|---|---|---|---|---|"]
    passed = True
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with cluster(root):
            version = shell("sinfo --version").strip()
            os.chdir(root)
            os.environ["OMP_NUM_THREADS"] = "1"
            expected = ""

            def note(name: str, run: Path, job: str, begun: float, *, restarts: range, ends: str, whole: bool = True) -> None:
                nonlocal expected, passed
                wait(lambda: ended(job), f"job {name} ends", seconds=900)
                found = state(job)
                last = digest(run) if newest(run) else "none"
                expected = expected or last
                count = int(found.get("Restarts", -1))
                good = found.get("JobState") == ends and count in restarts and (last == expected or not whole)
                passed &= good
                lines.append(f"| {name} | {count} | {time.monotonic() - begun:.0f} | {found.get('JobState')} | {last} | {good} |")
                print(lines[-1], flush=True)
                if not good:
                    print(shell(f"tail -n 40 {run}/slurm-*.out"), flush=True)

            kinds: list[tuple[str, Callable[[Path], str], range]] = [
                ("left alone", submit, range(1)),
                ("preempted at a checkpoint", lambda run: preempted(run, 160), range(1, 2)),
                ("preempted as it begins", lambda run: preempted(run, 0), range(1, 2)),
                ("told that its time is up", told, range(1, 2)),
                ("a process is killed", killed, range(1)),
            ]
            for name, begin, restarts in kinds:
                begun, run = time.monotonic(), root / name.replace(" ", "-")
                note(name, run, begin(run), begun, restarts=restarts, ends="COMPLETED")
            begun, run = time.monotonic(), root / "cancelled"
            job = submit(run)
            wait(lambda: newest(run) >= 160, "the job to cancel has a checkpoint")
            shell(f"scancel {job}")
            note("cancelled", run, job, begun, restarts=range(1), ends="CANCELLED", whole=False)
            begun, run = time.monotonic(), root / "fails"
            np_file = root / "broken.npz"
            np_file.write_bytes(b"no archive")
            note("fails by itself", run, submit(run, "--data.path", str(np_file)), begun, restarts=range(1), ends="FAILED", whole=False)
        left = started_in(root)
    passed &= not left
    head = f"# Jobs of Slurm that are stopped, {datetime.date.today()}\n\n{machine()}\n\n{version}, one machine, two processes."
    page = f"{head}\n\n" + "\n".join(lines) + f"\n\nProcesses of the cluster that are left: {', '.join(left) or 'none'}.\n"
    print(page)
    if arguments.out is not None:
        arguments.out.write_text(page)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
