"""Two domains: who comes with whom, layouts, and what is said of domains that are not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.databases import write_database
from tests.data.pairs import assert_same, joined, taken
from tests.data.pictures import picture, write_folder
from triptych.core.batch import DataSpec, InputSpec
from triptych.core.errors import ConfigError, DataError
from triptych.core.rng import key_of, permutation, words
from triptych.data.config import DataConfig
from triptych.data.domains import UnpairedDataConfig
from triptych.data.images import Data, seed_beside
from triptych.data.loader import evaluation_batches


def write_domains(root: Path, a: int = 5, b: int = 8, *, names: tuple[str, str] = ("images_a", "images_b")) -> Path:
    write_folder(root, [f"{names[0]}/{k}.png" for k in range(a)] + [f"{names[1]}/{k}.png" for k in range(b)])
    return root


def opened(path: Path | None, **changes: object) -> Data:
    settings = {"image_size": 16, "validation_fraction": 0.0, "flip": False} | changes
    return UnpairedDataConfig(path=None if path is None else str(path), **settings).open()


def one_domain(path: Path, **changes: object):
    return DataConfig(path=str(path), labels="none", image_size=16, validation_fraction=0.0, **({"flip": False} | changes)).open().train


@pytest.mark.parametrize(("a", "b"), [(5, 8), (8, 5)])
def test_an_epoch_is_as_long_as_the_larger_domain(tmp_path, a, b):
    data = opened(write_domains(tmp_path, a, b))
    assert len(data.train) == 8 and data.validation is None
    assert data.spec == DataSpec(image_size=16, channels=3, inputs=(InputSpec(name="images_b", kind="image", channels=3),))
    domain_a, domain_b = one_domain(tmp_path / "images_a"), one_domain(tmp_path / "images_b")
    (batch,) = evaluation_batches(data.train, batch_size=8)
    numbers = np.arange(8)
    np.testing.assert_array_equal(batch.images, domain_a.batch(numbers % a).images)
    np.testing.assert_array_equal(batch.inputs["images_b"], domain_b.batch(numbers % b).images)
    assert batch.labels is None and data.train.key(7) == domain_a.key(7 % a)


def test_training_draws_the_other_domain_by_seed_and_position(tmp_path):
    data = opened(write_domains(tmp_path))
    batch = taken(data.train, count=4, batch_size=8)
    domain_a, domain_b = one_domain(tmp_path / "images_a"), one_domain(tmp_path / "images_b")
    positions = np.arange(32)
    order = np.concatenate([permutation(8, seed=3, epoch=epoch) for epoch in range(4)])
    passes = positions // 8
    np.testing.assert_array_equal(batch.images, domain_a.batch((order + 8 * passes) % 5).images)
    others = (words(positions, key=key_of(3, "data", "unpaired"))[:, 0] * 8) >> 32
    np.testing.assert_array_equal(batch.inputs["images_b"], domain_b.batch(others).images)
    assert len(set(others.tolist())) == 8


@pytest.mark.parametrize(("order", "most"), [("even", 8), ("by-name", 10)])
def test_all_images_of_the_smaller_domain_are_seen_alike(tmp_path: Path, order: str, most: int) -> None:
    data = opened(write_domains(tmp_path), order=order)
    batch = taken(data.train, count=5, batch_size=8)  # five passes of 8 images, of which A has 5
    own = one_domain(tmp_path / "images_a").batch(np.arange(5)).images
    times = [int((batch.images.numpy() == image).all(axis=(1, 2, 3)).sum()) for image in own]
    assert sum(times) == 40 and max(times) == most and (order == "by-name" or min(times) == most)


def test_both_domains_are_augmented_apart(tmp_path):
    pixels = np.stack([picture(20, 20, seed=k) for k in range(6)])
    np.savez(tmp_path / "a.npz", pixels)
    np.savez(tmp_path / "b.npz", pixels[:1])
    np.savez(tmp_path / "one.npz", pixels[:1])
    data = opened(tmp_path, a="one.npz", b="b.npz", flip=True, crop="random", enlarge=True)
    positions = np.arange(64)
    batch = data.train.batch(np.zeros(64, dtype=np.int64), positions, seed=1)
    same = (batch.images == batch.inputs["images_b"]).all(axis=(1, 2, 3)).mean()
    assert same < 0.2
    alone = one_domain(tmp_path / "one.npz", flip=True, crop="random", enlarge=True)
    np.testing.assert_array_equal(batch.images, alone.batch(np.zeros(64, dtype=np.int64), positions, seed=1).images)
    beside = alone.batch(np.zeros(64, dtype=np.int64), positions, seed=seed_beside(1, "images_b"))
    np.testing.assert_array_equal(batch.inputs["images_b"], beside.images)


def test_workers_resume_ranks_and_batch_size_change_nothing(tmp_path):
    images = opened(write_domains(tmp_path), flip=True, crop="random", scale=0.2, jitter=0.2).train
    whole = taken(images)
    assert_same(taken(images, workers=2), whole)
    assert_same(joined([taken(images, count=2), taken(images, start=8, count=3)]), whole)
    assert_same(taken(images, count=4, batch_size=5), whole)
    assert_same(joined([taken(images, count=1, rank=rank, world_size=2) for rank in range(2)]), taken(images, count=1))


# Layouts


def test_splits(tmp_path):
    write_domains(tmp_path / "train")
    write_domains(tmp_path / "test", 2, 3)
    data = opened(tmp_path, validation_fraction=0.1)
    assert (len(data.train), len(data.validation)) == (8, 3)
    assert data.validation.key(0) == str(tmp_path / "test" / "images_a" / "0.png")
    assert opened(tmp_path).validation is None


@pytest.mark.parametrize("folder", ["", "train"])
def test_a_share_of_each_domain_is_held_out(tmp_path, folder):
    write_domains(tmp_path / folder, 20, 30, names=("horses", "zebras"))
    data = opened(tmp_path, a="horses", b="zebras", validation_fraction=0.3)
    train, held = ({part.key(k) for k in range(len(part))} for part in (data.train, data.validation))
    assert held and not held & train and len(held | train) == 20


def test_domains_may_lie_anywhere_and_be_anything(tmp_path):
    write_domains(tmp_path / "files")
    np.save(tmp_path / "grey.npy", np.stack([picture(20, 20, seed=k, channels=1) for k in range(4)]))
    data = opened(None, a=str(tmp_path / "files" / "images_a"), b=str(tmp_path / "grey.npy"))
    assert (len(data.train), data.spec.channels) == (5, 3)
    assert data.train.batch(np.arange(5)).inputs["images_b"].shape == (5, 16, 16, 3)
    data = opened(tmp_path, a="files/images_a", b="grey.npy", channels=1)
    assert data.spec.inputs[0].channels == data.spec.channels == 1
    data = opened(tmp_path, a="grey.npy", b=str(tmp_path / "grey.npy"))
    assert data.spec.channels == 1


def test_databases(tmp_path):
    write_domains(tmp_path / "files")
    for name in ("images_a", "images_b"):
        write_database(tmp_path / "lmdb" / "train" / name, tmp_path / "files" / name)
    one, other = (opened(tmp_path / name).train for name in ("files", "lmdb"))
    assert_same(taken(one), taken(other, workers=1))


# Errors


def test_domains_that_are_missing(tmp_path):
    write_domains(tmp_path)
    with pytest.raises(DataError, match=rf'^{tmp_path}/image_b: does not exist \(data.b\); did you mean "images_b"\?$'):
        opened(tmp_path, b="image_b")
    with pytest.raises(ConfigError, match=r"^data.path: missing: give the folder that holds images_a and images_b$"):
        opened(None)
    with pytest.raises(DataError, match=r"^cats/a: does not exist \(data.a\)$"):
        opened(None, a="cats/a")
    with pytest.raises(DataError, match=r"nowhere: does not exist \(data.path\)$"):
        opened(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: no images to train on"):
        opened(tmp_path, b="empty")
    with pytest.raises(DataError, match="images_a/0.png: 20x16 pixels, smaller than data.image_size 17"):
        opened(tmp_path, image_size=17)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": ""}, "a: got '', expected the name of a folder, or a path"),
        ({"b": "images_a"}, "b: got 'images_a', expected another place than data.a"),
        ({"labels": "folder"}, "labels: got 'folder'"),
        ({"image_size": 0}, "image_size: got 0"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(ConfigError, match=message):
        UnpairedDataConfig(**changes)


def test_tensors_reach_the_model_normalised(tmp_path):
    batch = next(evaluation_batches(opened(write_domains(tmp_path)).train, batch_size=4)).to("cpu")
    assert batch.inputs["images_b"].shape == (4, 3, 16, 16) and batch.inputs["images_b"].dtype == torch.float32
    assert batch[1:3].inputs["images_b"].shape[0] == 2
