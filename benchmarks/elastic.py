"""Whether a training of four processes whose processes are killed, stopped and slow goes on by itself, and ends like an undisturbed one.

    python benchmarks/elastic.py --out FILE.md

Each run is one command, by torchrun with `--max-restarts`, four processes on this machine (gloo, a tiny diffusion model):

- one is left alone;
- of one a rank, another each time, is killed (SIGKILL) ten times at random moments, also while all start;
- of one a rank is stopped for good (SIGSTOP): the others name it, and torchrun starts all anew;
- of one a rank is slow: it is stopped for most of each half second, for twenty seconds;
- one is started on two "machines" (two torchruns of two processes each, `--nnodes 1:2`), the second of which is killed: the first goes on
  with the two processes that are left;
- one is told to stop (SIGTERM to torchrun) and goes on by the same command.

Exit code 1 unless each ends by itself (the last one by its second command) with the last checkpoint of the first one: byte for byte, and
where the number of processes changes with weights that differ by no more than the order of sums in float32 explains.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from compared_runs import differences, finished, newest
from machine import machine

from triptych.engine.checkpoint import load_checkpoint

PROCESSES, KILLS, RESTARTS = 4, 10, 14
SETTINGS = """
--device cpu --data.image-size 8 --data.workers 0 --train.batch-size 16 --train.checkpoint-every 64 --train.sample-every 640
--train.sample-count 4 --train.validate-every 640 --train.validate-images 8 --train.precision float32 --train.timeout-minutes 0.3
--log.every 160 --train.keep-every 64 --model.network.num-channels 32 --model.network.num-res-blocks 1 --model.network.channel-mult 1
--model.network.attention-resolutions 8 --model.sampling.steps 2
"""
LARGEST_DIFFERENCE = 1e-2
"""Of the weights of the run that changes its number of processes, relative to how far training moved them."""
LONGEST_SECONDS = 1200


@dataclass
class Job:
    """A run, and the torchruns that train it."""

    run: Path
    images: int
    launchers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *options: str, processes: int = PROCESSES) -> subprocess.Popen[bytes]:
        """A torchrun of so many processes."""
        words = [sys.executable, "-m", "torch.distributed.run", *options, f"--nproc-per-node={processes}", f"--max-restarts={RESTARTS}"]
        train = ["-m", "--", "triptych", "train", "adm-digits", "--run", str(self.run), *SETTINGS.split()]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self.run.with_suffix(".out").open("ab") as said:
            words += [*train, "--train.total-images", str(self.images)]
            self.launchers.append(subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said))
        return self.launchers[-1]

    def members(self) -> list[int]:
        """The processes that train in the run now, in the order of their ranks."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str(self.run).encode() not in (process / "cmdline").read_bytes():
                    continue
                rank = re.search(rb"(?:^|\0)RANK=(\d+)", (process / "environ").read_bytes())
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
                if rank is not None and state != "Z":
                    found[int(rank[1])] = int(process.name)
        return [found[rank] for rank in sorted(found)]

    @property
    def log(self) -> str:
        path = self.run / "log.txt"
        return path.read_text() if path.exists() else ""

    @property
    def starts(self) -> int:
        """How often all processes have begun to train."""
        return len(re.findall(r"process(?:es)? on cpu", self.log))

    def wait(self, happened: Callable[[], object], what: str) -> None:
        until = time.monotonic() + LONGEST_SECONDS
        while not happened():
            if time.monotonic() > until or all(launcher.poll() is not None for launcher in self.launchers):
                raise RuntimeError(f"{self.run.name}: it did not come that {what}; it said {self.said()}")
            time.sleep(0.05)

    def said(self) -> str:
        return self.run.with_suffix(".out").read_text()[-3000:]

    def end(self) -> int:
        """The exit code of the first torchrun that is left."""
        for launcher in self.launchers:
            launcher.wait(LONGEST_SECONDS)
        return self.launchers[0].returncode


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as waiting:
        waiting.bind(("127.0.0.1", 0))
        return waiting.getsockname()[1]


def left_alone(job: Job) -> str:
    job.start("--standalone")
    return "nothing"


def killed(job: Job) -> str:
    chance = random.Random(0)
    job.start("--standalone")
    for kill in range(KILLS):
        job.wait(lambda kill=kill: job.starts > kill and len(job.members()) == PROCESSES, f"it runs for kill {kill}")
        begun = newest(job.run)
        # Of some only once there is a new checkpoint, or the run would not get on; of others while they start.
        if kill % 2:
            job.wait(lambda begun=begun: newest(job.run) > begun, "a checkpoint is written")
        time.sleep(chance.uniform(0, 2))
        members = job.members()
        os.kill(members[chance.randrange(len(members))], signal.SIGKILL)
        job.wait(lambda kill=kill: job.starts > kill + 1, "it goes on")
    return f"{KILLS} kills"


def stopped(job: Job) -> str:
    job.start("--standalone")
    job.wait(lambda: newest(job.run), "there is a checkpoint")
    os.kill(job.members()[2], signal.SIGSTOP)
    job.wait(lambda: job.starts > 1, "all are started anew")
    named = re.findall(r"failed at \d+ images: rank 2 \(process \d+ on .*?\) ([^;:]*)", job.log)
    records = sorted(path.name for path in (job.run / "records").glob("*.json"))
    return f"rank 2 {named[0] if named else 'WAS NOT NAMED'}; records: {', '.join(records) or 'NONE'}"


def slowed(job: Job) -> str:
    job.start("--standalone")
    job.wait(lambda: newest(job.run), "there is a checkpoint")
    slow, until = job.members()[1], time.monotonic() + 20
    while time.monotonic() < until:
        for number, seconds in ((signal.SIGSTOP, 0.45), (signal.SIGCONT, 0.05)):
            os.kill(slow, number)
            time.sleep(seconds)
    return f"{job.starts} start"


def with_a_machine_less(job: Job) -> str:
    port = free_port()
    options = [
        "--nnodes=1:2",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=localhost:{port}",
        "--rdzv-id=elastic",
        "--rdzv-conf=last_call_timeout=5",
    ]
    job.start(*options, processes=2)
    time.sleep(1)
    other = job.start(*options, processes=2)
    job.wait(lambda: newest(job.run), "there is a checkpoint")
    other.kill()
    job.wait(lambda: job.starts > 1, "the others go on")
    job.launchers.pop(1).wait()
    return f"processes: {', '.join(re.findall(r'([0-9]+) process', job.log))}"


def told_to_stop(job: Job) -> str:
    first = job.start("--standalone")
    job.wait(lambda: newest(job.run), "there is a checkpoint")
    first.terminate()
    code = first.wait(60)
    job.launchers.clear()
    job.start("--standalone")
    said = re.findall(r"stopped by \w+ at (\d+) images and saved", job.log)
    return f"saved at {said[0] if said else 'NOTHING'} images, code {code}"


KINDS: dict[str, Callable[[Job], str]] = {
    "left alone": left_alone,
    "a rank is killed": killed,
    "a rank hangs": stopped,
    "a rank is slow": slowed,
    "a machine goes away": with_a_machine_less,
    "told to stop": told_to_stop,
}


def moved(unbroken: Path, run: Path) -> float:
    """How far the weights are from those of the unbroken run, relative to how far these came since their first kept checkpoint's."""
    first, last, found = (
        load_checkpoint(path, files=["model"]).files["model"] for path in (finished(unbroken)[0], finished(unbroken)[-1], finished(run)[-1])
    )
    away = sum(float((found[name] - last[name]).double().square().sum()) for name in last)
    came = sum(float((last[name] - first[name]).double().square().sum()) for name in last)
    return (away / came) ** 0.5


def main() -> int:
    """0, or 1 when a run did not end by itself as the first one did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1920, help="of each run")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no torchrun outlives this script
    lines = ["| what happens | seen | starts | seconds | code | beside the first run | as it should |", "|---|---|---|---|---|---|---|"]
    passed = True
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in dict.fromkeys(["left alone", *options.kinds]):
            job, begun = Job(folder / name.replace(" ", "-"), options.images), time.monotonic()
            try:
                seen = KINDS[name](job)
                code = job.end()
                strange = differences(folder / "left-alone", job.run)
                if name == "a machine goes away":
                    away = moved(folder / "left-alone", job.run)
                    beside, good = f"weights {away:.0e} of the way apart", away <= LARGEST_DIFFERENCE
                else:
                    beside, good = ", ".join(strange) or "the same bytes, grids, metrics, files", not strange
                good &= code == 0 and not re.search("[A-Z]{4}", seen)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                seen, code, beside, good = str(error), -1, "", False
            finally:
                for launcher in job.launchers:
                    launcher.kill()
            time.sleep(2)
            left = job.members()
            good &= not left
            passed &= good
            seen += f"; left: {left}" if left else ""
            lines.append(f"| {name} | {seen} | {job.starts} | {time.monotonic() - begun:.0f} | {code} | {beside} | {good} |")
            print(lines[-1], file=sys.stderr, flush=True)
    head = f"# Four processes that are killed, stopped and slow, {datetime.date.today().isoformat()}\n\n{machine()}\n\n"
    what = f"adm-digits `{' '.join(SETTINGS.split())} --train.total-images {options.images}`, torchrun with {PROCESSES} processes on gloo."
    text = f"{head}{what}\n\n" + "\n".join(lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
