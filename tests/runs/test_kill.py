"""A run that is killed with SIGKILL, also inside a checkpoint write, ends with the bytes of an unbroken one."""

from __future__ import annotations

import random
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.processes import forked
from triptych.cli.main import main
from triptych.engine.checkpoint import checkpoint_path, list_checkpoints, load_checkpoint

TOTAL, BATCH = 120, 8
FLAGS = f"""--train.total-images {TOTAL} --train.batch-size {BATCH} --train.checkpoint-every {BATCH} --train.sample-count 0
--train.validate-images 0 --model.network.num-channels 32 --model.network.num-res-blocks 1 --model.network.channel-mult 1 2
--model.network.attention-resolutions 4 --data.image-size 8 --data.workers 0 --log.every {BATCH} --device cpu""".split()


def start(run: Path) -> BaseProcess:
    return forked(main, ["train", "adm-digits", "--run", str(run), *FLAGS], files=f"{run}-says")


def ends_well(process: BaseProcess) -> bool:
    process.join(300)
    return process.exitcode == 0


def newest(run: Path) -> int:
    return max(list_checkpoints(run / "checkpoints"), default=0)


def wait_until(happened, process: BaseProcess) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert process.is_alive(), "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.0005)


@pytest.mark.slow
def test_a_killed_run_ends_with_the_bytes_of_an_unbroken_one(tmp_path):
    assert ends_well(start(tmp_path / "unbroken"))
    killed, moments = tmp_path / "killed", random.Random(0)
    for attempt in range(3):
        process = start(killed)
        begun = newest(killed)
        wait_until(lambda begun=begun: newest(killed) >= begun + 3 * BATCH, process)
        if attempt % 2:
            wait_until(lambda: any(killed.glob("checkpoints/.tmp-*")), process)
        else:
            time.sleep(moments.uniform(0, 0.05))
        process.kill()
        process.join()
        assert newest(killed) < TOTAL
    assert ends_well(start(killed))
    ends = [load_checkpoint(checkpoint_path(run / "checkpoints", TOTAL)) for run in (tmp_path / "unbroken", killed)]
    assert ends[0].hashes == ends[1].hashes and {"model", "optimizer", "ema-0.999"} == ends[0].hashes.keys()
