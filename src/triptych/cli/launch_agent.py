"""torchrun in a job of a cluster, without starts that would end like the one before: `python -m triptych.cli.launch_agent RUN ARGUMENTS`.

torchrun starts all processes anew, --max-restarts times, whatever the reason was. What was given and cannot be used (exit code 2: a
setting, the data, a full disk) is so at the next start too, and each start takes minutes of all machines. Only where the run has made a
checkpoint since its processes began is there another start: what was given could be used then, and what failed may be over, as where a
server of the data was away.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.cli.main import EXIT_FAILED, EXIT_USER_ERROR
from triptych.cli.output import show
from triptych.core.errors import UserError
from triptych.engine.run_directory import RunDirectory, list_checkpoints

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup


def main(words: Sequence[str]) -> int:
    """The exit code of torchrun with these arguments, a run's folder before them: 0, 2 where something given cannot be used, else 1."""
    run, *arguments = words
    # PyTorch takes seconds, and nothing else of the command line needs it.
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        torchrun(run, arguments)
    except ChildFailedError as failed:
        code = EXIT_USER_ERROR if EXIT_USER_ERROR in codes_of(failed.failures) else EXIT_FAILED
        show(f"triptych: {ended_with(failed.failures)} (exit code {code})", error=True)
        return code
    return 0


def torchrun(run: str, arguments: Sequence[str]) -> None:
    """As torchrun with these arguments, but for starts that are of no use. Raises what it raises: ChildFailedError, SignalException."""
    from torch.distributed import run as torch_run
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher import api

    parent: Any = LocalElasticAgent  # whose methods have a decorator that hides what they take

    class Agent(parent):
        """Its methods are those that PyTorch's documentation has for agents of one's own."""

        _images = 0
        _failures: Mapping[int, Any] = {}

        def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
            self._images = newest_checkpoint(run)
            return super()._start_workers(worker_group)

        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            found = super()._monitor_workers(worker_group)
            self._failures = found.failures
            return found

        def _restart_workers(self, worker_group: WorkerGroup) -> None:
            if EXIT_USER_ERROR in codes_of(self._failures) and newest_checkpoint(run) <= self._images:
                raise ChildFailedError("triptych", dict(self._failures))
            super()._restart_workers(worker_group)

    api.LocalElasticAgent = Agent  # type: ignore[misc]  # which torchrun makes; this process does nothing else
    torch_run.run(torch_run.parse_args(list(arguments)))


def codes_of(failures: Mapping[int, Any]) -> set[int]:
    """The exit codes of processes that failed, by rank; negative by a signal."""
    return {failure.exitcode for failure in failures.values()}


def ended_with(failures: Mapping[int, Any]) -> str:
    """The same in words."""
    return f"processes ended with {', '.join(f'{rank}: {each.exitcode}' for rank, each in sorted(failures.items()))} (rank: code)"


def newest_checkpoint(run: str) -> int:
    """Images seen by the newest checkpoint; 0 where there is none, or none can be looked for."""
    try:
        return max(list_checkpoints(RunDirectory(Path(run)).checkpoints), default=0)
    except UserError:
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
