"""torchrun in a pod: its exit code says whether another try may help."""

from __future__ import annotations

import os
import signal
import socket
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from torch.distributed import DistStoreError

from tests.processes import _free_port, forked
from triptych.cli import launch_agent, pod
from triptych.cli.main import EXIT_FAILED, EXIT_USER_ERROR
from triptych.cli.pod import EXIT_TRY_AGAIN, MOST_KILLED, code_of
from triptych.core.errors import STOPPED_CODE
from triptych.engine.run_directory import RunDirectory

SAVED = "os.makedirs('run/checkpoints/000000064', exist_ok=True)"
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def notes() -> list[Path]:
    """What pods have noted of their starts."""
    return list(Path().glob("run/.killed-*"))


def started(rank_0: str, rank_1: str, *words: str, name: str = "pod") -> BaseProcess:
    """A pod whose two processes do that once both have started, or a pod of a machine with one process where there are `words`."""
    here = f"import os, signal, sys, time\nos.chdir({os.getcwd()!r})\nprint('started', file=open('starts', 'a'))\n"
    # torchrun ends the one that is not there yet when the other ends.
    those = "int(os.environ['LOCAL_WORLD_SIZE']) * (1 + int(os.environ['TORCHELASTIC_RESTART_COUNT']))"
    here += f"until = time.monotonic() + 30\nwhile time.monotonic() < until and open('starts').read().count('started') < {those}:\n"
    here += "    time.sleep(0.01)\n"
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
        ("time.sleep(60)", "sys.exit(2)", EXIT_USER_ERROR, 2),  # the other one is killed then, or would tell that it lost this one
        ("time.sleep(60)", f"{SAVED}; sys.exit(2)", EXIT_USER_ERROR, 4),  # once more, for it has got on
        ("sys.exit(1)", f"{SAVED}; {KILLED}", EXIT_TRY_AGAIN, 4),
        ("time.sleep(60)", KILLED, EXIT_FAILED, 4),
        ("sys.exit(75)", "sys.exit(75)", EXIT_TRY_AGAIN, 4),
    ],
)
def test_how_two_processes_end(rank_0: str, rank_1: str, code: int, starts: int) -> None:
    assert code_of_the(started(rank_0, rank_1)) == code, Path("pod.err").read_text()[-3000:]
    assert Path("starts").read_text().count("started") == starts
    assert (f"(exit code {code})" in Path("pod.err").read_text()) == (code != 0)
    assert not notes(), "none was killed as a whole"


def test_a_pod_that_is_told_to_end() -> None:
    waits = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); print('ready', file=open('starts', 'a')); time.sleep(60)"
    process = started(waits, waits)
    until = time.monotonic() + 60
    while not (Path("starts").exists() and Path("starts").read_text().count("ready") == 2) and time.monotonic() < until:
        time.sleep(0.05)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    assert code_of_the(process) == 128 + signal.SIGTERM, Path("pod.err").read_text()[-3000:]


def test_a_pod_that_is_told_to_end_before_its_processes_are_there() -> None:
    """The first process of a pod hears no signal that it has not asked for."""
    port, until = _free_port(), time.monotonic() + 60
    nobody = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job", "--nnodes=2", "--nproc-per-node=1"]
    process = started("pass", "pass", *nobody)
    while not waits_at(port) and time.monotonic() < until:
        time.sleep(0.05)
    assert process.pid is not None
    noted = notes()
    os.kill(process.pid, signal.SIGTERM)
    assert code_of_the(process) == 128 + signal.SIGTERM, Path("pod.err").read_text()[-3000:]
    assert noted and not notes()


def waits_at(port: int) -> bool:
    """Whether the other pods could meet one there."""
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def begin(code: int | None, monkeypatch: pytest.MonkeyPatch, *, pod_of: str = "in64-worker-0") -> int | None:
    """The code of a pod whose torchrun ends with `code`; None: it is killed as a whole."""

    class Killed(BaseException):
        pass

    def end(run: str, arguments: object, before: int) -> int:
        if code is None:
            raise Killed
        return code

    with monkeypatch.context() as patched:
        patched.setattr(pod, "_code_of_torchrun", end)
        patched.setattr(pod.socket, "gethostname", lambda: pod_of)
        if code is None:
            patched.setattr(pod.Starts, "end", lambda self, code: None)  # which such a pod does not come to
        try:
            return pod.main(["run", "x.py"])
        except Killed:
            return None


def test_a_pod_that_is_killed_as_a_whole_again_and_again(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(MOST_KILLED):
        assert begin(None, monkeypatch) is None
        assert begin(EXIT_TRY_AGAIN, monkeypatch, pod_of="in64-worker-1") == EXIT_TRY_AGAIN
    capsys.readouterr()
    assert begin(0, monkeypatch) == EXIT_FAILED
    said = capsys.readouterr().err
    assert f"killed as a whole {MOST_KILLED} times in a row, without a new checkpoint at 0 images" in said and "(--memory)" in said
    assert said.count("\n") == 1
    assert begin(0, monkeypatch) == 0, "the next job counts anew"


@pytest.mark.parametrize(("between", "ended"), [(EXIT_TRY_AGAIN, True), (EXIT_FAILED, False), (0, False)])
def test_what_lies_between_two_starts_that_were_killed(between: int, ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods that did not meet, or were told to end, say nothing of the memory; with a job that ended the count ends too."""
    for code in [*[None] * (MOST_KILLED - 1), between, None]:
        assert begin(code, monkeypatch) == code
    assert (begin(EXIT_TRY_AGAIN, monkeypatch) == EXIT_FAILED) == ended


def test_a_new_checkpoint_between_two_starts_that_were_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 2 * MOST_KILLED):
        assert begin(None, monkeypatch) is None
        if number % 3 == 0:
            Path(f"run/checkpoints/{number:09}").mkdir(parents=True)
    assert begin(EXIT_TRY_AGAIN, monkeypatch) == EXIT_TRY_AGAIN


def test_a_pod_whose_processes_are_killed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is noted is there before the processes are; a run begins in a folder that has it."""
    process = started("time.sleep(2)", f"os.kill(os.getppid(), signal.SIGKILL); {KILLED}")
    assert code_of_the(process) == -signal.SIGKILL
    assert [note.read_text() for note in notes()] == ["0 1\n"]
    RunDirectory(Path("run")).create()


@pytest.mark.parametrize("damage", ["", "0", "none such", "0 1 2"])
def test_a_note_that_cannot_be_read(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("run").mkdir()
    Path("run/.killed-in64-worker-0").write_text(damage)
    assert begin(0, monkeypatch) == 0
    Path("run").rmdir()
    Path("run").touch()  # which is for the training to name
    assert begin(EXIT_USER_ERROR, monkeypatch) == EXIT_USER_ERROR


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


def test_a_job_that_is_done_ends_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(launch_agent, "torchrun", lambda run, arguments: asked.append((run, arguments)))
    assert launch_agent.main(["run", "-m", "triptych"]) == 0 and asked == [("run", ["-m", "triptych"])]


def test_where_no_checkpoint_can_be_looked_for_there_is_none() -> None:
    assert launch_agent.newest_checkpoint("run") == 0
    assert launch_agent.newest_checkpoint("a" * 300) == 0, "no name of a folder"
    Path("run/checkpoints/000000064").mkdir(parents=True)
    assert launch_agent.newest_checkpoint("run") == 64
