"""Settings of the whole test suite."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Before PyTorch is imported: two test processes with a thread per core each would wait for one another.
os.environ["OMP_NUM_THREADS"] = os.environ.get("TEST_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
# A test that reaches for a display or for an account of Weights & Biases has to fail, not ask.
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests marked gpu where there is no CUDA device."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def float64() -> Iterator[None]:
    """The test runs in float64; see tests/float64.py for why."""
    from tests.float64 import in_float64

    with in_float64():
        yield
