"""Whether runs that meet any fault, again and again, end like runs that are left alone: all families, divided between processes and not.

    python benchmarks/chaos.py --faults 1000 --state FOLDER --out FILE.md

Trains a tiny diffusion model, flow and GAN, by one process and by two that divide it (train.shard full), unbroken. Then trains each
again, with a fault in every start, and gives the same command again, until so many faults were met:

- SIGKILL at start-up, in a step, a validation, a grid, an evaluation, a checkpoint, and before any operation on a file of the run: of the
  process, of one of two, of both, of torchrun, and of one under torchrun, which starts all anew;
- SIGSTOP of a process, of one of two for good, and of one of two again and again, which makes it slow;
- a disk that is full (a small tmpfs; without the right to mount one, a limit on the size of files), a directory that becomes
  read-only, is renamed, or is removed; a clock that jumps; a newest checkpoint that is damaged.

Processes are forks of this one, which has imported all they need; torchrun is its agent, with forks for workers. In a long trial of one
process one start in thirty is the true command, killed while it imports. A process that waits for one that was killed before they met is
ended after two minutes, as torchrun ends it at once. `--state` keeps what was done: the same command goes on.

Exit code 1 unless every broken run ended with the bytes of weights, averages, optimizer, state and grids, the metrics and the files of
the unbroken one, every start ended as it should, and no process was left.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch is imported: a process with threads cannot be forked

import argparse
import contextlib
import ctypes
import datetime
import importlib
import json
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import faults
from compared_runs import differences, finished
from faults import (
    AWAY,
    CLOCK,
    DAMAGE,
    FULL,
    GONE,
    IMPORTS,
    KILL,
    KILL_ALL,
    KILL_LAUNCHER,
    PLACES,
    READ_ONLY,
    RESTART,
    SLOW,
    STARTUP,
    STOP,
    UNDER_LAUNCHER,
    WRITE,
    Fault,
    Wire,
)
from machine import machine

from triptych.cli.main import main as triptych
from triptych.core.parent import end_with

COMMON = """
--device cpu --data.image-size 8 --data.workers 0 --train.total-images 48 --train.batch-size 4 --train.checkpoint-every 8
--train.sample-every 16 --train.sample-count 2 --train.validate-every 16 --train.validate-images 4 --train.evaluate-every 16
--train.evaluate-features random --train.evaluate-metrics frechet --train.evaluate-count 2 --train.evaluate-reference 2
--train.precision float32 --train.timeout-minutes 0.3 --train.keep-last 3 --log.every 12
"""
FAMILIES = {
    "diffusion": ("adm-digits", "--model.network.num-channels 32 --model.network.num-res-blocks 1 --model.network.channel-mult 1 "
                  "--model.network.attention-resolutions 8 --model.sampling.steps 2"),
    "flow": ("glow-digits", "--model.levels 2 --model.depth 2 --model.width 16 --model.init-images 8"),
    "gan": ("stylegan2-digits", "--model.latent-dims 6 --model.generator.base-channels 32 --model.generator.max-channels 4 "
            "--model.generator.mapping-layers 2 --model.generator.style-dims 6 --model.discriminator.base-channels 32 "
            "--model.discriminator.max-channels 4 --model.discriminator.mapping-layers 2 --model.discriminator.group-size 2"),
}  # fmt: skip
LASTING = tuple(PLACES)
ALONE = [
    *((KILL, place) for place in (STARTUP, *LASTING, WRITE, WRITE, WRITE, WRITE)),
    *((what, place) for what in (DAMAGE, FULL, AWAY, CLOCK) for place in ("a step", WRITE)),
    *((what, WRITE) for what in (READ_ONLY, FULL, GONE)),
    (READ_ONLY, STARTUP),
    (STOP, "a grid"),
]
"""What one process may meet, each once in a round."""
TOGETHER = [
    *((what, place) for what in (KILL, KILL_ALL) for place in (STARTUP, *LASTING, WRITE)),
    *((KILL_LAUNCHER, place) for place in (STARTUP, "a step", "a grid", WRITE)),
    *((RESTART, place) for place in ("a step", WRITE)),
    *((what, WRITE) for what in (DAMAGE, FULL, READ_ONLY, AWAY, GONE, CLOCK)),
    (STOP, "a step"),
    (STOP, "a checkpoint"),
    (SLOW, "a step"),
]
"""What two processes may meet."""
LONGEST_SECONDS, DISK_MEBIBYTES, ROUND_OF_IMPORTS, LONG = 120.0, 24, 30, 200
_SUBREAPER = 36  # linux/prctl.h


@dataclass(frozen=True)
class Trial:
    """A family, trained by so many processes, and the run of it that nobody broke."""

    family: str
    processes: int
    unbroken: Path
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.family}, {self.processes} process{'es' if self.processes > 1 else ''}"

    def words(self, run: Path) -> list[str]:
        """The command that starts the run, and that goes on with it."""
        recipe, settings = FAMILIES[self.family]
        return [
            "train",
            recipe,
            "--run",
            str(run),
            *COMMON.split(),
            *settings.split(),
            *(["--train.shard", "full"] if self.processes > 1 else []),
        ]


@dataclass
class Met:
    """A fault, or a start in which none came, and what became of the processes."""

    trial: str
    what: str
    where: str
    met: bool
    ended: bool
    "Whether the run reached its end in this start."
    problems: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    "Processes that outlived the command."


# One start of the command -----------------------------------------------------------------------------------------------


def forked(act: Callable[[], int | None]) -> int:
    """The number of a process, a fork of this one, that ends with the code that `act` returns, or with this one."""
    own, process = os.getpid(), os.fork()
    if process:
        return process
    code = 70
    try:
        end_with(own)
        code = act() or 0
    except BaseException:  # nothing of this process's own may run in the fork
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Start:
    """One start of the command of a run: its processes, from their start to the end of the last one."""

    def __init__(
        self, trial: Trial, run: Path, out: Path, *, fault: Fault | None = None, wire: Wire | None = None, notes: Path | None = None
    ) -> None:
        """`out`: where what it says goes. `notes`: where what it passes through goes."""
        self.trial, self.run, self.out, self.fault, self.wire, self.notes = trial, run, out, fault, wire, notes
        self.out.write_bytes(b"")
        self.codes: dict[int, int] = {}
        if fault is not None and fault.what in UNDER_LAUNCHER:
            self.processes = [forked(self._launch)]
        elif fault is not None and fault.where == IMPORTS:
            self.processes = [self._true_command()]
        else:
            told = self._told() if trial.processes > 1 else {}
            self.processes = [forked(lambda rank=rank: self._work(told | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if told else {}))
                              for rank in range(trial.processes)]  # fmt: skip

    def _told(self) -> dict[str, str]:
        """What torchrun tells its processes."""
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            port = bound.getsockname()[1]
        size = str(self.trial.processes)
        return {
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "x",
        }

    def _work(self, told: dict[str, str]) -> int:
        from triptych.runs import close_world

        os.environ.update(told)
        descriptor = os.open(self.out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        faults.obey_permissions()
        noted = faults.Notes(self.run, self.notes) if self.notes is not None and told.get("RANK", "0") == "0" else None
        fault, wire = self.fault, self.wire
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if fault is not None and wire is not None and first and fault.rank == int(os.environ.get("RANK", "0")):
            faults.expect(fault, self.run, wire)
        code = triptych(self.trial.words(self.run))
        close_world()
        if noted is not None:
            noted.write()
        return code

    def _launch(self) -> int:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torchrun has its own tracebacks
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=self.trial.processes, run_id=str(os.getpid()), rdzv_backend="c10d",
            rdzv_endpoint="localhost:0", max_restarts=2, start_method="fork", logs_specs=DefaultLogsSpecs(), local_addr="localhost",
        )  # fmt: skip

        def work() -> int:
            code = self._work({})
            if code:
                os._exit(code)
            return code

        try:
            elastic_launch(config, work)()
        except ChildFailedError:
            return 1
        return 0

    def _true_command(self) -> int:
        words = [sys.executable, "-m", "triptych", *self.trial.words(self.run)]
        with self.out.open("ab") as output:
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output).pid

    def reap(self) -> bool:
        """Notes the processes that have ended. Whether all have, those too that lost their parent."""
        with contextlib.suppress(ChildProcessError):
            while True:
                process, status = os.waitpid(-1, os.WNOHANG)
                if not process:
                    return False
                self.codes[process] = os.waitstatus_to_exitcode(status)
        return True

    @property
    def over(self) -> bool:
        """Whether the processes of the command itself have ended."""
        self.reap()
        return all(process in self.codes for process in self.processes)

    @property
    def succeeded(self) -> bool:
        return all(self.codes.get(process) == 0 for process in self.processes)

    def kill(self) -> None:
        for process in self.processes:
            if process not in self.codes:
                os.kill(process, signal.SIGKILL)

    def leftovers(self) -> list[str]:
        """Ends the processes that outlive the command by seconds, and names them."""
        until = time.monotonic() + 15
        while not self.reap():
            if time.monotonic() > until:
                children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
                named = [Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()[-60:] for child in children]
                for child in children:
                    os.kill(int(child), signal.SIGKILL)
                return named
            time.sleep(0.01)
        return []


# Faults -----------------------------------------------------------------------------------------------------------------


class Striker:
    """Puts a fault to the processes of a start, from outside, and takes it away when they have ended."""

    def __init__(self, start: Start, fault: Fault, disk: Path | None, wire: Wire) -> None:
        self.start, self.fault, self.disk, self.wire = start, fault, disk, wire
        self.run, self.aside = start.run, start.run.with_name(f"{start.run.name}-aside")

    def strike(self, process: int) -> None:
        """What happens to the process that is at its place, to the others, or to what they write to."""
        what, start = self.fault.what, self.start
        if what == CLOCK:
            for path in self.run.rglob("*"):
                with contextlib.suppress(OSError):
                    os.utime(path, (0, 0) if self.fault.chance < 0.5 else (4e9, 4e9))
        if what in (KILL, RESTART, CLOCK, DAMAGE):
            os.kill(process, signal.SIGKILL)
        elif what in (KILL_ALL, KILL_LAUNCHER):
            start.kill()
        elif what == STOP:
            os.kill(process, signal.SIGSTOP)
            if start.trial.processes == 1:
                time.sleep(0.1)
                os.kill(process, signal.SIGCONT)
        elif what == SLOW:
            for _ in range(5):
                os.kill(process, signal.SIGSTOP)
                time.sleep(0.3)
                os.kill(process, signal.SIGCONT)
                time.sleep(0.02)
        elif what == FULL:
            left = int(self.fault.chance * 3e5)
            if self.disk is not None:
                faults.fill(self.disk, left)
            else:
                for each in start.processes:
                    with contextlib.suppress(ProcessLookupError):  # what they say is to go into a file too
                        resource.prlimit(each, resource.RLIMIT_FSIZE, (20_000 + left, 20_000 + left))
        elif what == READ_ONLY:
            self._permit(0o555)
        elif what in (AWAY, GONE) and self.run.exists():
            os.rename(self.run, self.aside)
        self.wire.release()

    def _permit(self, mode: int) -> None:
        for folder in (self.run, self.run / "checkpoints", self.run / "samples"):
            with contextlib.suppress(FileNotFoundError):
                folder.chmod(mode)

    def undo(self) -> list[str]:
        """Takes the fault away; what was found on the way that should not be."""
        what = self.fault.what
        if what == FULL and self.disk is not None:
            (self.disk / "filler").unlink(missing_ok=True)
        elif what == READ_ONLY:
            self._permit(0o755)
        elif what in (AWAY, GONE) and self.aside.exists():
            if self.start.succeeded and self.run.exists():  # it was away before it was looked into: a new run was trained, to the end
                shutil.rmtree(self.aside)
                return []
            found = [f"the directory was made anew, with {sorted(path.name for path in self.run.iterdir())}"] if self.run.exists() else []
            shutil.rmtree(self.run, ignore_errors=True)
            if what == AWAY:
                os.rename(self.aside, self.run)
            else:
                shutil.rmtree(self.aside)
            return found
        elif what == DAMAGE and not self.start.succeeded and len(finished(self.run)) > 1:  # nobody starts it again when it has ended
            faults.damage(finished(self.run)[-1], self.fault.chance)
        return []


def attempt(trial: Trial, run: Path, out: Path, fault: Fault, disk: Path | None) -> Met:
    """A start of the run that is to meet a fault."""
    wire = Wire()
    if fault.what == READ_ONLY and fault.where == STARTUP and run.exists():
        run.chmod(0o555)
    start, began = Start(trial, run, out, fault=fault, wire=wire), time.monotonic()
    striker = Striker(start, fault, disk, wire)
    stopped, met, problems = None, False, list[str]()
    while not start.over:
        process = wire.told(0.005) if not met else None
        if fault.where == IMPORTS and time.monotonic() - began > fault.delay:
            process = start.processes[0]
        if process is not None and not met:
            met = True
            striker.strike(process)
            stopped = process if fault.what == STOP and trial.processes > 1 else None
        elif met:
            time.sleep(0.005)
        if stopped is not None and len(start.codes) == trial.processes - 1:
            with contextlib.suppress(ProcessLookupError):  # what was killed in the round before may be gone
                os.kill(stopped, signal.SIGKILL)
        if time.monotonic() - began > LONGEST_SECONDS:
            if (fault.what, fault.where) != (KILL, STARTUP):  # without torchrun one that never came is waited for, half an hour
                problems.append(f"did not end within {LONGEST_SECONDS:.0f} seconds")
            start.kill()
            began = float("inf")
    left = start.leftovers()
    problems += striker.undo()
    wire.close()
    said = start.out.read_text(errors="replace")
    ended = start.succeeded
    if "Traceback" in said:
        problems.append(f"a traceback: {' | '.join(said[said.index('Traceback') :].splitlines())[-2000:]}")
    if not met and not ended:
        problems.append(f"ended with {list(start.codes.values())} before the fault: {said[-300:]}")
    elif not ended and fault.what in (FULL, READ_ONLY, AWAY, GONE) and "triptych: error: " not in said:
        problems.append(f"ended with {list(start.codes.values())} and no word: {said[-300:]}")
    without = all(code == 0 for process, code in start.codes.items() if process != stopped)  # the others had no more need of it
    if stopped is not None and not without and f"rank {fault.rank} (process {stopped} " not in said:
        problems.append(f"the stopped process was not named: {said[-300:]}")
    if met and not ended and (fault.what in (SLOW, RESTART) or (fault.what == STOP and stopped is None)):
        problems.append(f"did not survive: {said[-300:]}")
    return Met(trial.name, fault.what, fault.where, met, ended, problems, left)


def drawn(trial: Trial, number: int, chance: random.Random, *, imports: bool) -> Fault:
    """The fault of that number."""
    if imports and trial.processes == 1 and number % ROUND_OF_IMPORTS == ROUND_OF_IMPORTS - 1:
        return Fault(KILL, IMPORTS, delay=chance.uniform(0, 2.5))
    kinds = ALONE if trial.processes == 1 else TOGETHER
    rounds = list(kinds)
    random.Random(f"{trial.name} {number // len(kinds)}").shuffle(rounds)
    what, where = rounds[number % len(kinds)]
    most = {STARTUP: 1, WRITE: trial.notes["visits"][WRITE] // 2, "a step": 5}.get(where, 2)
    delay = chance.uniform(0, trial.notes["seconds"][where])
    return Fault(what, where, chance.randint(1, max(most, 1)), delay, chance.randrange(trial.processes), chance.random())


# Trials -----------------------------------------------------------------------------------------------------------------


def unbroken(family: str, processes: int, folder: Path) -> Trial:
    """The trial of a family; what its processes imported is then imported here, so that forks need not."""
    name = f"{family}-{processes}"
    trial, notes = Trial(family, processes, folder / name), folder / f"{name}.json"
    warm_up(Trial(family, 1, trial.unbroken), folder / f"{name}-warm")
    start = Start(trial, trial.unbroken, folder / f"{name}.out", notes=notes)
    while not start.over:
        time.sleep(0.01)
    if not start.succeeded:
        raise SystemExit(f"{trial.name} failed without a fault:\n{start.out.read_text()[-3000:]}")
    found = json.loads(notes.read_text())
    for module in found["modules"]:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    lacking = [place for place, count in found["visits"].items() if not count]
    assert not lacking, f"{trial.name} has no {lacking}"
    return Trial(family, processes, trial.unbroken, found)


def warm_up(trial: Trial, run: Path) -> None:
    """Trains for a few steps in this process: what it reads, parses and compiles its forks then have."""
    with (out := run.with_suffix(".out")).open("w") as said, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = triptych([*trial.words(run), "--train.total-images", "16"])
    assert code == 0, out.read_text()
    until = time.monotonic() + 10  # threads of the training end a moment after it
    while len(threads := os.listdir("/proc/self/task")) > 1:
        assert time.monotonic() < until, f"{len(threads)} threads: this process cannot be forked"
        time.sleep(0.01)


def lane(trial: Trial, folder: Path, state: Path, *, count: int, imports: bool, small_disk: bool) -> None:
    """Puts so many faults to runs of the trial, and compares each run that ends; notes both in `state`, and goes on from there."""
    done = [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []
    number, starts = sum(each.get("met", False) for each in done), len(done)
    disk = folder if small_disk and faults.small_disk(folder, DISK_MEBIBYTES) else None
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    run, out = folder / "run", folder.with_name(f"{folder.name}.out")

    def note(what: dict[str, Any]) -> None:
        with state.open("a") as file:
            file.write(json.dumps(what) + "\n")

    while number < count:
        ended = False
        while number < count and not ended:
            starts += 1
            fault = drawn(trial, number, random.Random(f"{trial.name} {starts}"), imports=imports)
            met = attempt(trial, run, out, fault, disk)
            note(asdict(met) | {"fault": asdict(fault)})
            number, ended = number + met.met, met.ended
            if met.problems or met.left:
                print(f"{trial.name} {number}: {met}", file=sys.stderr)
        if not ended:
            start = Start(trial, run, out)
            while not start.over:
                time.sleep(0.01)
            if not start.succeeded:
                note({"trial": trial.name, "end": [f"failed: {start.out.read_text()[-300:]}"]})
                break
        found = differences(trial.unbroken, run)
        strange = sorted(path.name for path in folder.iterdir() if path != run)
        note({"trial": trial.name, "end": found + [f"left over beside it: {name}" for name in strange]})
        print(f"{trial.name}: {number} faults, {found or 'the same'}", file=sys.stderr)
        shutil.rmtree(run)


def main(arguments: list[str] | None = None) -> int:
    """0, or 1 when a run ended otherwise than the unbroken one, or something was left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=1000, help="in all")
    names = [f"{family}-{processes}" for processes in (1, 2) for family in FAMILIES]
    parser.add_argument("--trials", nargs="+", choices=names, default=names, help="families and numbers of processes")
    parser.add_argument("--lanes", type=int, default=2, help="trials at a time")
    parser.add_argument("--state", type=Path, help="folder that keeps what was done; the same command goes on")
    parser.add_argument("--no-disk", action="store_true", help="mount no small disk: a full one is a limit on the size of files")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args(arguments)
    began, clock = time.monotonic(), sum(os.times()[:4])
    with tempfile.TemporaryDirectory() as scratch:
        folder, state = Path(scratch), options.state or Path(scratch) / "state"
        state.mkdir(exist_ok=True)
        trials = [unbroken(name[:-2], int(name[-1]), folder) for name in options.trials]
        waiting = list(enumerate(trials))
        running, failed = set[int](), False
        while waiting or running:
            while waiting and len(running) < options.lanes:
                place, trial = waiting.pop(0)
                own = folder / f"lane-{place}"
                own.mkdir()
                given = {
                    "count": (options.faults + place) // len(trials),
                    "imports": options.faults >= LONG,
                    "small_disk": not options.no_disk,
                }
                path = state / f"{trial.name.replace(', ', '-').replace(' ', '-')}.jsonl"
                running.add(forked(lambda trial=trial, own=own, path=path, given=given: lane(trial, own, path, **given)))
            process, status = os.wait()
            running.discard(process)
            failed |= status != 0
        lines = [json.loads(line) for path in sorted(state.glob("*.jsonl")) for line in path.read_text().splitlines()]
        versions = machine()
    seconds = {"seconds": time.monotonic() - began, "processor": sum(os.times()[:4]) - clock}
    text, missed = report(lines, seconds, versions)
    print(text)
    if options.out:
        options.out.write_text(text)
    return int(missed or failed)


def report(lines: list[dict[str, Any]], took: dict[str, float], versions: str) -> tuple[str, bool]:
    """The result as markdown, and whether anything was not as it should be."""
    met, ends = [line for line in lines if line.get("met")], [line for line in lines if "end" in line]
    differing = [f"{line['trial']}: {each}" for line in ends for each in line["end"]]
    problems = [f"{line['trial']}, {line['what']}, {line['where']}: {each}" for line in lines for each in line.get("problems", [])]
    left = [process for line in lines for process in line.get("left", [])]
    grids = [each for each in differing if "missing: samples/" in each]
    files = [each for each in differing if "left over" in each]
    others = len(differing) - len(grids) - len(files)
    out = [
        f"# Chaos, {datetime.date.today().isoformat()}",
        "",
        versions,
        "",
        f"{len(met)} faults in {len([line for line in lines if 'what' in line])} starts; {len(ends)} broken runs reached their end, "
        f"{sum(not line['end'] for line in ends)} of them like the unbroken one. This start took {took['seconds']:.0f} s, "
        f"{took['processor']:.0f} s of the processor.",
        "",
        "| | |",
        "|---|---|",
        f"| faults | {len(met)} |",
        f"| runs with other bytes, metrics or missing files | {others} |",
        f"| grids missing | {len(grids)} |",
        f"| files left | {len(files)} |",
        f"| processes left | {len(left)} |",
        f"| starts that ended otherwise than they should | {len(problems)} |",
        "",
    ]
    names = list(dict.fromkeys(line["trial"] for line in met))
    counts = Counter((line["what"], line["where"], line["trial"]) for line in met)
    out += [f"| fault | where | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for what, where in sorted({(what, where) for what, where, _ in counts}):
        out.append(f"| {what} | {where} | {' | '.join(str(counts[what, where, name] or '') for name in names)} |")
    out += ["", *(f"- {line}" for line in (*differing, *problems, *left))]
    return "\n".join(out).rstrip() + "\n", bool(differing or problems or left)


if __name__ == "__main__":
    sys.exit(main())
