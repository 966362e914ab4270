"""What a network says of pictures, and of references: from images, from statistics, from the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.pictures import picture
from triptych.engine.distributed import World
from triptych.evaluation.feature_space import open_space
from triptych.runs.embedding import embedded
from triptych.runs.given.pictures import open_pictures
from triptych.runs.references import reference_of

ALONE = World(0, 1, torch.device("cpu"))
RANDOM = open_space("random")
IMAGES = np.stack([picture(8, 6, seed=k) for k in range(70)])


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "references"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.savez(tmp_path / "a.npz", arr_0=IMAGES)
    return tmp_path / "a.npz"


def test_each_image_has_its_outputs(file: Path, tmp_path: Path) -> None:
    """With an output file and without; as the network gives them for the first 32, and for the last ones among others."""
    direct = RANDOM(torch.from_numpy(IMAGES[:32]))["features"].numpy()
    for out in (None, tmp_path / "out.npz"):
        arrays = embedded(open_pictures(file), RANDOM, out=out, world=ALONE).arrays
        assert arrays["features"].dtype == np.float32 and arrays["features"].shape == (70, 64)
        np.testing.assert_array_equal(arrays["features"][:32], direct)
        last = RANDOM(torch.from_numpy(IMAGES[-32:]))["features"].numpy()
        np.testing.assert_allclose(arrays["features"][-6:], last[-6:], rtol=1e-4, atol=1e-4)


def test_a_reference_is_embedded_once(file: Path, own_cache: Path) -> None:
    first = reference_of(file, RANDOM, world=ALONE)
    assert [path.suffix for path in own_cache.iterdir()] == [".npz"]

    def fails(*_: object) -> None:
        raise AssertionError("embedded anew")

    RANDOM.forward, before = fails, RANDOM.forward  # type: ignore[method-assign]
    try:
        again = reference_of(file, RANDOM, world=ALONE)
    finally:
        RANDOM.forward = before  # type: ignore[method-assign]
    np.testing.assert_array_equal(first.array("features"), again.array("features"))
    np.testing.assert_allclose(again.moments("features").covariance, np.cov(first.array("features").astype(np.float64).T), atol=1e-9)
