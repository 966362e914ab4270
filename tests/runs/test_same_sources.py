"""The same images as a folder, zip, shards, Parquet, .npz and packs: the same batches and the same run, to the bit."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.contract.shrink import shrunk
from tests.data.pictures import picture, write_folder, write_zip
from tests.data.test_shards import sharded
from triptych.data.config import DataConfig
from triptych.data.loader import Loader
from triptych.engine.config import LogConfig, OptimConfig
from triptych.runs import open_run, train
from triptych.runs.packing import pack_data

SIDE, COUNT, BATCH = 8, 12, 6
NAMES = [f"class{k // 6}/{k:02d}.png" for k in range(COUNT)]
IMAGES = np.stack([picture(SIDE, SIDE, seed=k) for k in range(COUNT)])
LABELS = [k // 6 for k in range(COUNT)]


def sources(root: Path) -> dict[str, Path]:
    folder = write_folder(root / "folder", NAMES, size=(SIDE, SIDE))
    np.savez(root / "x.npz", IMAGES, np.array(LABELS))
    found = {"folder": folder, "zip": write_zip(root / "x.zip", folder), "shards": sharded(folder, root / "shards"), "npz": root / "x.npz"}
    parquet = pytest.importorskip("tests.data.test_parquet")
    found["parquet"] = parquet.write(root / "x.parquet", parquet.of_folder(folder), LABELS, names=["class0", "class1"])
    for ending in (".npz", ".zip"):
        found[f"pack {ending}"] = root / f"pack{ending}"
        pack_data(settings(folder), found[f"pack {ending}"], workers=0)
    return found


def settings(path: Path) -> DataConfig:
    return DataConfig(path=str(path), image_size=SIDE, validation_fraction=0.0, workers=0)


def batches(data: DataConfig) -> list[torch.Tensor]:
    """What training sees in an epoch and a half."""
    config = replace(data, augment="shift", jitter=0.1)
    with closing(Loader(config.open().train, batch_size=BATCH, seed=3, workers=0)) as loader:
        stream = loader.batches(0)
        taken = [next(stream) for _ in range(3)]
    return [values for batch in taken for values in (batch.images, batch.labels) if values is not None]


def weights(data: DataConfig, run: Path) -> dict[str, torch.Tensor]:
    """Of two steps, each on images of both classes."""
    recipe = shrunk("adm-digits").updated({"model": {"class_conditional": True}})
    steps = replace(recipe.train, total_images=2 * BATCH, batch_size=BATCH, microbatch=None, sample_count=0)
    train(replace(recipe, data=data, train=steps, optim=OptimConfig(learning_rate=1e-3), log=LogConfig(report=False)), run, device="cpu")
    return open_run(run).tensors()


@pytest.mark.slow
def test_the_same_images_in_six_sources_give_the_same_run(tmp_path):
    places = sources(tmp_path)
    assert len(places) == 7
    expected = batches(settings(places["folder"]))
    assert len(expected) == 6 and sorted(torch.cat(expected[1:4:2]).tolist()) == LABELS  # an epoch, with its classes
    trained = weights(settings(places["folder"]), tmp_path / "run folder")
    for kind, place in places.items():
        for one, other in zip(batches(settings(place)), expected, strict=True):
            assert torch.equal(one, other), kind
        if kind != "folder":
            found = weights(settings(place), tmp_path / f"run {kind}")
            assert found.keys() == trained.keys(), kind
            assert all(torch.equal(found[name], trained[name]) for name in found), kind
    other = weights(replace(settings(places["folder"]), flip=False), tmp_path / "run that is not mirrored")
    assert not all(torch.equal(other[name], trained[name]) for name in other)  # what is seen has its say
