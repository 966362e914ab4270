"""What two processes found, for the tests of this folder."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.nn import processes_worker
from tests.processes import run_together


@pytest.fixture(scope="session")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What `processes_worker` found in each of two processes."""
    folder = tmp_path_factory.mktemp("processes")
    run_together(2, processes_worker.main, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
