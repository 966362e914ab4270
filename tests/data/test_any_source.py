"""What a recipe says of its source is a default: whatever lies at the path is recognised, in every recipe."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.data.databases import write_database
from tests.data.pictures import picture, write_folder, write_idx, write_tar, write_zip
from tests.data.records import write_shards
from triptych.data.config import DataConfig
from triptych.recipes.catalogue import load_recipe, recipes
from triptych.runs.document import accept_changes

SIDE, COUNT = 32, 8
IMAGES = [picture(SIDE, SIDE, seed=k) for k in range(COUNT)]
LABELS = [k % 2 for k in range(COUNT)]
KINDS = ["folder", "zip", "tar", "shards", "arrays", "cifar10", "mnist", "tfrecord", "lmdb"]
RECIPES = {name: recipe.data for name in recipes() if type((recipe := load_recipe(name)).data) is DataConfig}
PLAIN = {name: data for name, data in RECIPES.items() if data.source != "latents"}


def laid_out(kind: str, root: Path) -> Path:
    """Two classes of images as a data set of that kind."""
    folder = write_folder(root / "files", [f"class{label}/{k}.png" for k, label in enumerate(LABELS)], size=(SIDE, SIDE))
    place = root / kind
    if kind == "folder":
        return folder
    if kind == "zip":
        return write_zip(root / "files.zip", folder)
    if kind == "tar":
        return write_tar(root / "files.tar", folder)
    if kind == "shards":
        place.mkdir()
        for number, name in enumerate(("class0", "class1")):
            write_tar(place / f"{number}.tar", folder / name, prefix=name)
        return place
    if kind == "lmdb":
        return write_database(place, folder)
    if kind == "arrays":
        np.savez(root / "x.npz", np.stack(IMAGES), np.array(LABELS))
        return root / "x.npz"
    if kind == "tfrecord":
        write_shards(place / "train", IMAGES, bits=5, labels=LABELS)
        return place
    place.mkdir()
    if kind == "mnist":
        write_idx(place / "train-images-idx3-ubyte", np.stack(IMAGES)[..., 0])
        write_idx(place / "train-labels-idx1-ubyte", np.array(LABELS))
    else:
        planes = np.stack(IMAGES).transpose(0, 3, 1, 2).reshape(COUNT, -1)
        np.concatenate([np.array(LABELS, dtype=np.uint8)[:, None], planes], axis=1).tofile(place / "data_batch_1.bin")
    return place


@pytest.mark.parametrize("kind", KINDS)
def test_every_recipe_takes_images_of_every_kind(kind: str, tmp_path: Path) -> None:
    if kind == "lmdb" and importlib.util.find_spec("lmdb") is None:
        pytest.skip("lmdb is not installed")
    path = laid_out(kind, tmp_path)
    for name, data in PLAIN.items():
        small = replace(data, path=str(path), image_size=SIDE, resize=None, enlarge=True, validation_fraction=0.0)
        found = small.open()
        assert len(found.train) == COUNT, name
        assert (found.spec.num_classes is None) == (data.labels == "none"), name


def test_a_run_that_was_begun_with_a_source_goes_on_without_one() -> None:
    """Recipes once named their source; the images are still held against the run's own description of them."""
    recipe = load_recipe("adm-cifar10")
    begun = replace(recipe, data=replace(recipe.data, source="cifar10"))
    assert accept_changes(begun, recipe, directory="runs/x") == ["data.source changed from 'cifar10' to 'auto'"]
