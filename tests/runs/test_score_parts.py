"""What scores are made with, each by itself and without a run: images that are kept, pictures of the nearest ones, files of figures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from triptych.data.domains import UnpairedImages
from triptych.engine.distributed import open_world
from triptych.engine.progress import unwatched
from triptych.evaluation.feature_set import Figure
from triptych.runs.kept_images import keep
from triptych.runs.model_images import ModelImages, _sources
from triptych.runs.nearest_pairs import write_pairs
from triptych.runs.scoring import Scores, _read, write_scores


def levels(first: int, made: list[range] | None = None) -> ModelImages:
    """Six images of one level each: first, first + 1 and so on; `made` gets what is made at once."""

    def make(part: range) -> np.ndarray:
        if made is not None:
            made.append(part)
        return np.broadcast_to(np.arange(first + part.start, first + part.stop, dtype=np.uint8)[:, None, None, None], (len(part), 4, 4, 3))

    return ModelImages(make, count=6, size=(4, 4), channels=3, chunk=2, identity={"first": first})


@pytest.mark.parametrize("name", ["kept", "kept.npz"])
def test_images_that_are_kept_are_read_and_not_made_again(tmp_path: Path, name: str) -> None:
    made: list[range] = []
    images = levels(100, made)
    keep(images, tmp_path / name, world=open_world("cpu"), progress=unwatched)
    assert made == [range(2), range(2, 4), range(4, 6)]
    assert images.images([4, 1, 5])[:, 0, 0, 0].tolist() == [104, 101, 105] and len(made) == 3


def test_of_the_nearest_images_that_of_the_reference_stands_on_the_left(tmp_path: Path) -> None:
    pairs = [{"reference": 1, "made": 5}, {"reference": 3, "made": 0}]
    write_pairs(tmp_path / "pairs.png", levels(10), levels(200), pairs)
    with Image.open(tmp_path / "pairs.png") as picture:
        pixels = np.asarray(picture)[..., 0]
    shown = pixels[24 * 4 :: 24 * 6, 24 * 4 :: 24 * 6]  # of 4 pixels each, and 2 around them, all 24 times as large
    assert shown.tolist() == [[201, 15], [203, 10]]


def test_figures_of_something_else_are_measured_anew(tmp_path: Path) -> None:
    scores = Scores({"kid": Figure(0.5, 0.25, {"subsets": 3}, {"each": np.arange(3)})}, {"psnr": "no truth"}, {"images": 6}, {})
    write_scores(tmp_path / "made.json", scores, {"digest": "0123"})
    found = _read(tmp_path / "made.json", "0123")
    assert found is not None and found.already and found.to_dict() == scores.to_dict()
    assert found.figures["kid"].arrays["each"].tolist() == [0, 1, 2]
    assert _read(tmp_path / "made.json", "4567") is None and _read(tmp_path / "other.json", "0123") is None


@pytest.mark.parametrize(("direction", "count"), [("a-to-b", 3), ("b-to-a", 5)])
def test_translations_are_of_the_images_of_the_domain_that_they_begin_in(direction: str, count: int) -> None:
    images: Any = UnpairedImages.__new__(UnpairedImages)
    images._a, images._b = range(3), range(5)
    settings: Any = SimpleNamespace(direction=direction)
    assert _sources(images, settings) == count
