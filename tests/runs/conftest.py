"""Runs of a translator whose answers can be told beforehand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.shrink import BATCH, light
from tests.data.pairs import write
from tests.data.pictures import encoded, picture
from tests.runs.translators import ONE_MAP, mirror_run, paired_run, plain_data
from triptych.data.config import DataConfig
from triptych.runs import Run, train
from triptych.runs.loading import Loading


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """From a recipe to a run of it, shrunk, after one step: made once for all tests."""
    runs: dict[str, Run] = {}

    def of(recipe: str) -> Run:
        if recipe not in runs:
            config = light(recipe).updated({"train": {"total_images": BATCH, "validate_images": 0}})
            runs[recipe] = train(config, tmp_path_factory.mktemp("tiny") / recipe, device="cpu")
        return runs[recipe]

    return of


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, empty."""
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> type[Exception]:
    """What ends a verb where all processes open one checkpoint of the run."""

    class Together(Exception):
        pass

    def opened(self: Run, loading: Loading) -> None:
        raise Together

    monkeypatch.setattr(Run, "open_together", opened)
    return Together


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data") / "pairs"


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory, pairs: Path) -> Run:
    """Four sources, and the truth."""
    return paired_run(tmp_path_factory.mktemp("runs") / "paired", pairs)


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory, pairs: Path) -> Run:
    """One class map, and the truth; half of it held out."""
    return paired_run(tmp_path_factory.mktemp("runs") / "mapped", pairs, data=ONE_MAP | {"validation_fraction": 0.5})


@pytest.fixture(scope="module")
def styled(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One grey image of 16x16, and styles: of images or random."""
    return mirror_run(tmp_path_factory.mktemp("runs") / "styled", plain_data(), styles="optional", random_styles=True)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One image in colour, 8x8; no styles."""
    data = tmp_path_factory.mktemp("photos")
    for k in range(4):
        write(data / f"{k}.png", encoded(picture(8, 8, seed=k)))
    config = DataConfig(path=str(data), image_size=8, labels="none", workers=0, validation_fraction=0)
    return mirror_run(tmp_path_factory.mktemp("runs") / "plain", config)
