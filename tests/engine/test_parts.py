"""Files of a checkpoint that several processes write, by one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

from triptych.core.errors import CheckpointError
from triptych.engine.distributed import World, close_world, open_world
from triptych.engine.parts import read_parts, write_parts


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world of one process as torchrun makes it."""
    told = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    yield open_world("cpu")
    close_world()


TENSORS = {"weight": torch.arange(6.0).view(2, 3), "bias": torch.ones(2)}


@pytest.mark.filterwarnings("ignore")  # of torch.distributed.checkpoint, that one process writes alone
def test_parts_come_back_and_none_brings_a_removed_run_back(tmp_path: Path, alone: World) -> None:
    folder = tmp_path / "run" / "checkpoints" / "model"
    folder.mkdir(parents=True)
    names = write_parts(folder, TENSORS, alone)
    found = read_parts(folder, names)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {name: tensor.tolist() for name, tensor in TENSORS.items()}
    with pytest.raises((CheckpointError, OSError)):
        write_parts(tmp_path / "renamed" / "checkpoints" / "model", TENSORS, alone)
    assert not (tmp_path / "renamed").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("error", "said"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError("gone"), CheckpointError)])
def test_an_interruption_while_parts_are_read_stays_one(
    error: BaseException, said: type[BaseException], tmp_path: Path, alone: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "model").mkdir()
    names = write_parts(folder, TENSORS, alone)

    def interrupted(*given: object) -> None:
        raise error

    monkeypatch.setattr(HuggingFaceStorageReader, "read_data", interrupted)
    with pytest.raises(said):
        read_parts(folder, names)
