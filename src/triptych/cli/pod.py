"""torchrun in a pod, with an exit code that says whether another try may help: `python3 -m triptych.cli.pod RUN TORCHRUN'S ARGUMENTS`.

Kubeflow's training operator makes a pod anew that ended with 128 or more, as by a signal, and ends the job where one ended with 1 to 127
(restartPolicy ExitCode). It counts neither (backoffLimit counts starts of containers within a pod, and these are pods), and torchrun ends
with 1 whatever happened, once its own restarts are used up. So it is decided here, by how the processes ended and by the run's checkpoints:

- something that was given cannot be used: 2, and the job ends;
- they were stopped by a signal and have saved, or torchrun was: 128 and more;
- they failed, were killed or lost the others, and the run has got on since this pod began: 128 and more;
- the same without a new checkpoint in all those starts: 1, and the job ends, for it would go on so for days.

The processes of other pods lose the one that failed, and end with a code that says nothing of the reason: one pod whose own process has
found it is enough to end the job.

A pod that is killed as a whole has no say; since Kubernetes 1.28 that is what happens where memory is short, for all processes of a
container are killed together (memory.oom.group of cgroup v2). So each start is noted in the run's folder before anything else, and the note
is taken back at the end, where there is one (`Starts`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import FrameType

from triptych.cli.launch_agent import codes_of, ended_with, newest_checkpoint, torchrun
from triptych.cli.main import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USER_ERROR
from triptych.cli.output import show
from triptych.core.errors import STOPPED_CODE, one_line
from triptych.core.files import remove, write_text

EXIT_TRY_AGAIN = 128 + 75  # EX_TEMPFAIL, among the codes of what is tried again
_SIGNALLED = 128
MOST_KILLED = 5
"""Starts of a pod in a row that may be killed as a whole at one checkpoint; some are those of machines that were lost."""


class Starts:
    """Starts of this pod that were killed as a whole, one after the other, since the run's newest checkpoint.

    They are in a hidden file of the run's folder, which a run that begins there passes over. A pod that is made anew has its name again,
    and each pod of a job has one of its own. A disk that does not take the file is for the training to name.
    """

    def __init__(self, run: str, images: int) -> None:
        self._path, self._images = Path(run) / f".killed-{socket.gethostname()}", images
        self.killed = 0
        with contextlib.suppress(OSError, ValueError):
            at, killed = map(int, self._path.read_text(encoding="utf-8").split())
            self.killed = killed if at == images else 0

    def begin(self) -> None:
        """Notes this start as one that was killed, until `end` says otherwise."""
        self._write(self.killed + 1)

    def end(self, code: int) -> None:
        """Takes this start back; where the job ends with it, the next job counts anew."""
        if code < _SIGNALLED or self.killed == 0:
            remove(self._path)
        else:
            self._write(self.killed)

    def _write(self, killed: int) -> None:
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self._path, f"{self._images} {killed}\n")


def main(words: Sequence[str]) -> int:
    """The exit code of torchrun with these arguments, a run's folder before them, in which starts are noted."""
    run, *arguments = words
    before = newest_checkpoint(run)
    starts, code = Starts(run, before), EXIT_FAILED
    try:
        if starts.killed >= MOST_KILLED:
            what = f"this pod was killed as a whole {starts.killed} times in a row, without a new checkpoint at {before:,} images"
            advice = "as for want of memory: give the pods more (--memory), or save before they are lost (--train.checkpoint-minutes)"
            code = _ended(f"{what}, {advice}", EXIT_FAILED)
        else:
            starts.begin()
            code = _code_of_torchrun(run, arguments, before)
    finally:
        starts.end(code)
    return code


def _code_of_torchrun(run: str, arguments: Sequence[str], before: int) -> int:
    """The exit code of the pod. `before`: images seen by the newest checkpoint when it began."""
    # PyTorch takes seconds, and nothing else of the command line needs it.
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError

    def end(number: int, frame: FrameType | None) -> None:
        raise SignalException("told to end", signal.Signals(number))

    try:
        signal.signal(signal.SIGTERM, end)  # torchrun's own comes with its processes; until then the first process of a pod would hear none
        torchrun(run, arguments)
    except ChildFailedError as failed:
        codes = codes_of(failed.failures)
        code = code_of(codes, stopped=os.environ.get(STOPPED_CODE), got_on=newest_checkpoint(run) > before)
        return _ended(ended_with(failed.failures), code)
    except SignalException as signalled:
        return _ended(f"told by {signalled.sigval.name} to end", _SIGNALLED + signalled.sigval)
    except (RendezvousError, DistError, OSError) as error:  # the other pods are not there, or not any more
        return _ended(f"the pods do not meet: {one_line(error)}", EXIT_TRY_AGAIN)
    return 0


def code_of(codes: Collection[int], *, stopped: str | None, got_on: bool) -> int:
    """The exit code of a pod whose processes ended with `codes`, negative by a signal.

    `stopped`: the code of a training that was stopped and saved; `got_on`: whether the run has a checkpoint that it had not.
    """
    if EXIT_USER_ERROR in codes:
        return EXIT_USER_ERROR
    if got_on or EXIT_INTERRUPTED in codes or (stopped is not None and int(stopped) in codes):
        return EXIT_TRY_AGAIN
    return EXIT_FAILED


def _ended(what: str, code: int) -> int:
    follows = "this pod may be made anew" if code >= _SIGNALLED else "another try would end so too, and the job ends"
    show(f"triptych: {what}; {follows} (exit code {code})", error=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
