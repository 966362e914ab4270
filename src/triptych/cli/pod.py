"""torchrun in a pod, with an exit code that says whether another try may help: `python3 -m triptych.cli.pod RUN TORCHRUN'S ARGUMENTS`.

Kubeflow's training operator makes a pod anew that ended with 128 or more, as by a signal, and ends the job where one ended with 1 to 127
(restartPolicy ExitCode). It counts neither, and torchrun ends with 1 whatever happened, once its own restarts are used up. So it is
decided here, by how the processes ended and by the run's checkpoints:

- something that was given cannot be used: 2, and the job ends;
- they were stopped by a signal and have saved, or torchrun was: 128 and more;
- they failed, were killed or lost the others, and the run has got on since this pod began: 128 and more;
- the same without a new checkpoint in all those starts: 1, and the job ends, for it would go on so for days.

The processes of other pods lose the one that failed, and end with a code that says nothing of the reason: one pod whose own process has
found it is enough to end the job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from triptych.cli.main import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USER_ERROR
from triptych.cli.output import show
from triptych.core.errors import STOPPED_CODE, UserError, one_line
from triptych.engine.run_directory import RunDirectory, list_checkpoints

EXIT_TRY_AGAIN = 128 + 75  # EX_TEMPFAIL, among the codes of what is tried again
_SIGNALLED = 128


def main(words: Sequence[str]) -> int:
    """The exit code of torchrun with these arguments, a run's folder before them, which is only looked at."""
    run, *arguments = words
    # PyTorch takes seconds, and nothing else of the command line needs it.
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import parse_args
    from torch.distributed.run import run as torchrun

    before = _newest(run)
    try:
        torchrun(parse_args(arguments))
    except ChildFailedError as failed:
        codes = {failure.exitcode for failure in failed.failures.values()}
        code = code_of(codes, stopped=os.environ.get(STOPPED_CODE), got_on=_newest(run) > before)
        what = (
            f"processes ended with {', '.join(f'{rank}: {each.exitcode}' for rank, each in sorted(failed.failures.items()))} (rank: code)"
        )
        return _ended(what, code)
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


def _newest(run: str) -> int:
    """Images seen by the newest checkpoint; 0 where there is none, or none can be looked for."""
    try:
        return max(list_checkpoints(RunDirectory(Path(run)).checkpoints), default=0)
    except UserError:
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
