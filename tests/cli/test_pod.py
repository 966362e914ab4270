"""torchrun in a pod: its exit code says whether another try may help."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from torch.distributed import DistStoreError

from tests.processes import _free_port, forked
from triptych.cli import pod
from triptych.cli.main import EXIT_FAILED, EXIT_USER_ERROR
from triptych.cli.pod import EXIT_TRY_AGAIN, code_of
from triptych.core.errors import STOPPED_CODE

SAVED = "os.makedirs('run/checkpoints/000000064', exist_ok=True)"
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def started(rank_0: str, rank_1: str, *words: str, name: str = "pod") -> BaseProcess:
    """A pod whose two processes do that, or a pod of a machine with one process where there are `words`."""
    here = f"import os, signal, sys, time\nos.chdir({os.getcwd()!r})\nprint('started', file=open('starts', 'a'))\n"
    script = Path(f"{name}.py").resolve()
    script.write_text(f"{here}if os.environ['RANK'] == '0':\n    {rank_0}\nelse:\n    {rank_1}\n")
    where = words or ("--standalone", "--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.05")
    files, told = str(Path(name).resolve()), {STOPPED_CODE: "75", "OMP_NUM_THREADS": "1"}
    return forked(pod.main, [str(Path("run").resolve()), *where, str(script)], files=files, environment=told)


def code_of_the(process: BaseProcess) -> int | None:
    process.join(60)
    process.kill()
    return process.exitcode


@pytest.mark.parametrize(
    ("rank_0", "rank_1", "code", "starts"),
    [
        ("pass", "pass", 0, 2),
        ("time.sleep(60)", "sys.exit(2)", EXIT_USER_ERROR, 4),  # the other one is killed then, or would tell that it lost this one
        ("sys.exit(1)", f"{SAVED}; {KILLED}", EXIT_TRY_AGAIN, 4),
        ("time.sleep(60)", KILLED, EXIT_FAILED, 4),
        ("sys.exit(75)", "sys.exit(75)", EXIT_TRY_AGAIN, 4),
    ],
)
def test_how_two_processes_end(rank_0: str, rank_1: str, code: int, starts: int) -> None:
    assert code_of_the(started(rank_0, rank_1)) == code, Path("pod.err").read_text()[-3000:]
    assert Path("starts").read_text().count("started") == starts
    assert (f"(exit code {code})" in Path("pod.err").read_text()) == (code != 0)


def test_a_pod_that_is_told_to_end() -> None:
    waits = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); print('ready', file=open('starts', 'a')); time.sleep(60)"
    process = started(waits, waits)
    until = time.monotonic() + 60
    while not (Path("starts").exists() and Path("starts").read_text().count("ready") == 2) and time.monotonic() < until:
        time.sleep(0.05)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    assert code_of_the(process) == 128 + signal.SIGTERM, Path("pod.err").read_text()[-3000:]


def test_one_pod_of_two_ends_the_job() -> None:
    """The other one has lost a process, and does not know why: its code may be any."""
    meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{_free_port()}", "--rdzv-id=job", "--nnodes=2", "--nproc-per-node=1"]
    tries = ["--max-restarts=1", "--monitor-interval=0.05"]
    one, other = (started("sys.exit(2)", "time.sleep(0.5); sys.exit(1)", *meet, *tries, name=name) for name in ("one", "other"))
    found = sorted([code_of_the(one) or 0, code_of_the(other) or 0])
    assert EXIT_USER_ERROR in found and 0 not in found, found


@pytest.mark.parametrize(
    ("codes", "got_on", "code"),
    [
        ({2, 1}, True, EXIT_USER_ERROR),
        ({-9, 1}, True, EXIT_TRY_AGAIN),
        ({-9, 1}, False, EXIT_FAILED),
        ({75, 1}, False, EXIT_TRY_AGAIN),
        ({130}, False, EXIT_TRY_AGAIN),  # stopped before there was anything to save
    ],
)
def test_the_code(codes: set[int], got_on: bool, code: int) -> None:
    """Kubeflow's training operator takes 128 to 255 for what may be tried again, 1 to 127 for what may not."""
    assert code_of(codes, stopped="75", got_on=got_on) == code
    assert EXIT_TRY_AGAIN == 203 and EXIT_FAILED < 128 and EXIT_USER_ERROR < 128


@pytest.mark.parametrize("alone", ["join_timeout=1", "is_host=0,read_timeout=1"], ids=["waiting for another", "no first one"])
def test_pods_that_do_not_meet(alone: str) -> None:
    nobody = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{_free_port()}", f"--rdzv-conf={alone}", "--rdzv-id=job", "--nnodes=2"]
    assert code_of_the(started("pass", "pass", *nobody, "--nproc-per-node=1")) == EXIT_TRY_AGAIN, Path("pod.err").read_text()[-3000:]
    assert "the pods do not meet" in Path("pod.err").read_text()


def test_a_store_that_goes_away_with_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(arguments: object) -> None:
        raise DistStoreError("wait timeout")

    monkeypatch.setattr("torch.distributed.run.run", lose)
    assert pod.main(["run", "x.py"]) == EXIT_TRY_AGAIN
