"""Processes of one world on this machine, for tests: forked ones, which start at once, and torchrun's own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]

# Forked from a process that has imported PyTorch once and has no threads; torchrun's processes would import it three times.
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["pytest", "torch._dynamo", "torch.distributed.checkpoint", "tests.contract.shrink"])


class Said(NamedTuple):
    """What a process wrote."""

    stdout: str
    stderr: str


def run_together(
    count: int, function: Callable[..., int | None], *arguments: Any, codes: list[int] | None = None, timeout_seconds: float = 240
) -> list[Said]:
    """`function` in each of `count` processes of one world, of which it is told as by torchrun. Fails where one fails.

    `codes`: the exit codes that are expected, by rank; else 0.
    """
    with tempfile.TemporaryDirectory() as folder:
        told = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "TORCHELASTIC_RUN_ID": "tests"}
        processes = [
            forked(function, *arguments, files=f"{folder}/{rank}", environment=told | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(count)
        ]
        deadline = time.monotonic() + timeout_seconds
        for process in processes:
            process.join(max(0, deadline - time.monotonic()))
        for process in processes:
            process.kill()
            process.join()
        said = [Said(*(Path(f"{folder}/{rank}.{stream}").read_text() for stream in ("out", "err"))) for rank in range(count)]
    found = [process.exitcode for process in processes]
    assert found == (codes or [0] * count), "\n".join(
        [f"exit codes {found} (-9: not done in time)", *(part.stderr[-3000:] for part in said)]
    )
    return said


def forked(function: Callable[..., int | None], *arguments: Any, files: str, environment: dict[str, str] | None = None) -> BaseProcess:
    """The started process of `function`, whose result is its exit code; what it writes goes to `files`.out and .err."""
    process = _SERVER.Process(target=_child, args=(environment or {}, files, function, arguments))
    process.start()
    return process


def _child(environment: dict[str, str], files: str, function: Callable[..., int | None], arguments: tuple[Any, ...]) -> None:
    os.environ.update(environment)
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{files}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    from triptych.runs import close_world

    code = function(*arguments)
    close_world()
    sys.exit(code)


def _free_port() -> int:
    """A port that is free, and below those that systems give to outgoing connections: one of these may be taken before it is used."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as bound, contextlib.suppress(OSError):
            bound.bind(("127.0.0.1", port))
            return port


def torchrun(processes: int, *arguments: str) -> list[str]:
    """The command that starts `processes` of a program; "-m", "--" and a module, or a file, and its arguments follow."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *arguments]


def environment() -> dict[str, str]:
    """The tests' own modules, and the source beside them."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
