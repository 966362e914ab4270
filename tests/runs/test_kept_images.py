"""Images that a score keeps in a folder: with their classes, as `triptych sample` writes them, and in the place of what commands made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from triptych.core.errors import DataError
from triptych.engine.distributed import open_world
from triptych.engine.progress import unwatched
from triptych.runs.given.pictures import open_pictures
from triptych.runs.kept_images import keep
from triptych.runs.model_images import ModelImages
from triptych.runs.sampling import Samples, write_samples

LABELS = np.array([7, 3, 7, 3, 7])


def made(*, labels: np.ndarray | None) -> ModelImages:
    """Five images, each of one level."""
    levels = np.arange(0, 160, 20, dtype=np.uint8)[:, None, None, None] + np.zeros((8, 4, 4, 1), np.uint8)
    identity = {"labels": None if labels is None else labels.tolist()}
    return ModelImages(
        lambda part: levels[part.start : part.stop], count=5, size=(4, 4), channels=1, chunk=8, identity=identity, labels=labels
    )


def kept(folder: Path, *, labels: np.ndarray | None) -> list[str]:
    """The files of a folder in which images were kept."""
    keep(made(labels=labels), folder, world=open_world("cpu"), progress=unwatched)
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_a_folder_has_the_classes_as_samples_have(tmp_path: Path) -> None:
    images = made(labels=LABELS)
    write_samples(tmp_path / "samples", Samples(images.images(range(5)), LABELS))
    assert "dataset.json" in kept(tmp_path / "kept", labels=LABELS)
    assert (tmp_path / "kept/dataset.json").read_text() == (tmp_path / "samples/dataset.json").read_text()
    found = open_pictures(tmp_path / "kept").labels
    assert found is not None and found.tolist() == LABELS.tolist()
    (tmp_path / "kept/dataset.json").unlink()
    assert "dataset.json" in kept(tmp_path / "kept", labels=LABELS), "of the same request too"


def test_classes_that_a_command_wrote_are_replaced_and_others_are_not(tmp_path: Path) -> None:
    images = [f"{k:06d}.png" for k in range(5)]
    write_samples(tmp_path / "a", Samples(np.zeros((5, 4, 4, 1), np.uint8), LABELS[::-1]))
    assert kept(tmp_path / "a", labels=None) == images
    assert kept(tmp_path / "a", labels=LABELS) == [*images, "dataset.json"]
    write_samples(tmp_path / "a", Samples(np.zeros((5, 4, 4, 1), np.uint8), None))
    assert not (tmp_path / "a/dataset.json").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/dataset.json").write_text("mine")
    with pytest.raises(DataError, match=r"mine/dataset\.json is there already, and no such command made it; choose another folder"):
        kept(tmp_path / "mine", labels=LABELS)
    assert (tmp_path / "mine/dataset.json").read_text() == "mine"
