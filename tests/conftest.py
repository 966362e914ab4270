"""Settings of the whole test suite."""

from __future__ import annotations

import functools
import gc
import importlib.util
import itertools
import os
import zlib
from collections.abc import Iterator

# Before PyTorch is imported: two test processes with a thread per core each would wait for one another.
os.environ["OMP_NUM_THREADS"] = os.environ.get("TEST_THREADS", "1")
os.environ["MKL_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
# A test that reaches for a display or for an account of Weights & Biases has to fail, not ask.
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")

import pytest

from tests import shapes

shapes.check_from_now_on()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-state-names", action="store_true", help="note the names of all tensors of all models")
    parser.addoption("--share", metavar="K/N", help="only the tests of each N-th file or so, K from 0 on: all N shares have them all")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests that lack a GPU, a peer or real data; asked for by `-m`, they are skipped and say what they lack."""
    lacking = {item: lack for item in items if (lack := lack_of(item)) is not None}
    if any(name in config.getoption("markexpr") for name in NEEDS):
        for item, lack in lacking.items():
            item.add_marker(pytest.mark.skip(reason=f"needs {lack}"))
    elif lacking:
        config.hook.pytest_deselected(items=list(lacking))
        items[:] = [item for item in items if item not in lacking]
    share = config.getoption("share")
    if share is not None:
        number, shares = map(int, share.split("/"))
        others = [item for item in items if share_of(item.nodeid, shares) != number]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if share_of(item.nodeid, shares) == number]
    for item in items:
        keep_together(item)


def share_of(nodeid: str, shares: int) -> int:
    """In which share a test is: that of its file, for what is made once for all tests of it."""
    return zlib.crc32(nodeid.partition("::")[0].encode()) % shares


def keep_together(item: pytest.Item) -> None:
    """What the tests of a module share is made in one process alone, which runs them all; where they do not say otherwise."""
    definitions = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else ()
    if item.get_closest_marker("xdist_group") is None and any(parts[-1].scope == "module" for parts in definitions):
        item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def pytest_collection_finish() -> None:
    """What is there by now stays, so that the search for garbage need not go through it again and again."""
    gc.freeze()
    gc.set_threshold(5000, 50, 50)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Shapes are looked at in the tests of the families."""
    shapes.check_in(item.path, getattr(item, "fixturenames", ()))


_finished = itertools.count(1)


def pytest_runtest_logfinish() -> None:
    """So does what a hundred tests have left, modules above all: some tests search for garbage at each step."""
    if next(_finished) % 100 == 0:
        gc.collect()
        gc.freeze()


NEEDS = ("gpu", "peer", "real_data")
"""Markers of tests that need what does not come with the repository; `make test-more` lists and runs them."""


def lack_of(item: pytest.Item) -> str | None:
    """What a test needs and does not find."""
    for mark in (mark for name in NEEDS for mark in item.iter_markers(name)):
        found, lack = {
            "gpu": lambda: (has_gpu(), "a CUDA device"),
            "peer": lambda module: (importlib.util.find_spec(module) is not None, f"{module} on PYTHONPATH"),
            "real_data": lambda folder: (folder.is_dir(), f"the data sets in {folder}"),
        }[mark.name](*mark.args)
        if not found:
            return lack
    return None


@functools.cache
def has_gpu() -> bool:
    """Whether there is a CUDA device."""
    import torch

    return torch.cuda.is_available()


@pytest.fixture
def float64() -> Iterator[None]:
    """The test runs in float64; see tests/float64.py for why."""
    from tests.float64 import in_float64

    with in_float64():
        yield
