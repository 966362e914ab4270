"""Sets of images that are evaluated: whatever they are stored in, a few in memory at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.pictures import picture
from triptych.runs.given.pictures import open_pictures

IMAGES = np.stack([picture(8, 6, seed=k) for k in range(5)])


def all_of(pictures: Any) -> np.ndarray:
    return pictures.images(range(len(pictures)))


def content_of(path: Path) -> dict[str, Any]:
    """The identity of a set without its place."""
    return {name: value for name, value in open_pictures(path).identity.items() if name not in ("path", "kind")}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_gives_its_images_in_any_order(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "a.npz", arr_0=IMAGES, arr_1=np.arange(5))
    pictures = open_pictures(tmp_path / "a.npz")
    assert (len(pictures), pictures.size, pictures.channels) == (5, (6, 8), 3)
    np.testing.assert_array_equal(all_of(pictures), IMAGES)
    np.testing.assert_array_equal(pictures.images([3, 0, 4, 4, 1]), IMAGES[[3, 0, 4, 4, 1]])
    np.testing.assert_array_equal(pictures.labels, np.arange(5))
