"""A process ends with its parent, where that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.processes import environment

CHILD = """
import os, sys, time
from triptych.core import parent
if {watching}:
    sys.platform = "darwin"
parent._LOOK_SECONDS = 0.05
parent.end_with({of})
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = "import os, subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); time.sleep(60)"


def gone(process: int, *, within_seconds: float = 10) -> bool:
    """Whether the process ends in time; one that nobody has waited for has ended too."""
    until = time.monotonic() + within_seconds
    while time.monotonic() < until:
        try:
            with open(f"/proc/{process}/stat", encoding="ascii") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
@pytest.mark.parametrize("watching", [False, True], ids=["by the system", "by looking"])
def test_a_child_ends_with_a_parent_that_is_killed(watching):
    command = [sys.executable, "-c", PARENT, CHILD.format(watching=watching, of="os.getppid()")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not gone(child, within_seconds=0.3)
        parent.kill()
        assert gone(child)


def test_a_child_whose_parent_has_ended_already_ends_at_once():
    code = CHILD.format(watching=False, of="os.getpid()")  # somebody who is not its parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20, env=environment(), check=False)
    assert done.returncode == -signal.SIGKILL and not done.stdout
