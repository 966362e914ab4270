"""Few-shot data: content and style of different classes, classes that are held out as a whole."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.data.databases import write_database
from tests.data.pairs import assert_same, joined, taken
from tests.data.pictures import encoded, write_folder, write_zip
from triptych.core.batch import DataSpec, InputSpec
from triptych.core.errors import ConfigError, DataError
from triptych.data.few_shot import FewShotDataConfig
from triptych.data.files import PACK_FILE
from triptych.data.images import Data
from triptych.data.loader import evaluation_batches

CLASSES, EACH = 6, 4


def write_classes(root: Path, *, classes: int = CLASSES, each: int = EACH) -> Path:
    """Flat images that say which they are: the red of all is that of the class, the green that of the image."""
    for c in range(classes):
        for k in range(each):
            path = root / f"class{c}" / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(np.full((16, 16, 3), [40 * c, 10 * k, 0], dtype=np.uint8)))
    return root


def opened(path: Path, **changes: object) -> Data:
    return FewShotDataConfig(path=str(path), **({"image_size": 16, "held_out": 0} | changes)).open()


def class_and_number(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    images = np.asarray(images)
    return images[:, 0, 0, 0] // 40, images[:, 0, 0, 1] // 10


def test_styles_are_of_another_class_each_as_often(tmp_path):
    data = opened(write_classes(tmp_path))
    assert data.spec == DataSpec(
        image_size=16,
        channels=3,
        num_classes=CLASSES,
        class_names=tuple(f"class{c}" for c in range(CLASSES)),
        inputs=(InputSpec(name="style", kind="image", channels=3), InputSpec(name="style_labels", kind="labels", num_classes=CLASSES)),
    )
    batch = taken(data.train, count=100, batch_size=24)
    content, _ = class_and_number(batch.images)
    style, number = class_and_number(batch.inputs["style"])
    np.testing.assert_array_equal(batch.labels, content)
    np.testing.assert_array_equal(batch.inputs["style_labels"], style)
    assert (content != style).all()
    pairs = np.bincount(content * CLASSES + style, minlength=CLASSES**2).reshape(CLASSES, CLASSES)
    assert (np.diag(pairs) == 0).all()
    others = pairs[~np.eye(CLASSES, dtype=bool)]
    assert np.abs(others - 80).max() < 5 * np.sqrt(80)
    assert np.abs(np.bincount(number) - 600).max() < 5 * np.sqrt(600)


@pytest.mark.parametrize("count", [2, 3, EACH])
def test_several_styles_are_different_images_of_one_class(tmp_path, count):
    data = opened(write_classes(tmp_path), style_count=count)
    names = [f"style_{k + 1}" for k in range(count)]
    assert [given.name for given in data.spec.inputs] == [*names, "style_labels"]
    batch = taken(data.train, count=50, batch_size=24)
    found = [class_and_number(batch.inputs[name]) for name in names]
    for style, _ in found:
        np.testing.assert_array_equal(style, batch.inputs["style_labels"])
    numbers = np.stack([number for _, number in found], axis=1)
    assert all(len(set(row)) == count for row in numbers.tolist())
    for column in numbers.T:
        assert np.abs(np.bincount(column, minlength=EACH) - 300).max() < 5 * np.sqrt(300)


def test_held_out_classes_are_numbered_after_those_of_training(tmp_path):
    data = opened(write_classes(tmp_path), held_out=("class1", "class4"))
    assert data.spec.num_classes == 4 and data.spec.class_names == ("class0", "class2", "class3", "class5")
    assert sorted(set(data.train.labels.tolist())) == [0, 1, 2, 3] and sorted(set(data.validation.labels.tolist())) == [4, 5]
    (batch,) = evaluation_batches(data.validation, batch_size=100)
    assert len(batch) == 2 * EACH
    content, number = class_and_number(batch.images)
    assert content.tolist() == [1] * EACH + [4] * EACH and number.tolist() == [*range(EACH)] * 2
    style, _ = class_and_number(batch.inputs["style"])
    assert style.tolist() == [4] * EACH + [1] * EACH
    assert batch.inputs["style_labels"].tolist() == [5] * EACH + [4] * EACH
    parts = list(evaluation_batches(data.validation, batch_size=3))
    assert_same(joined(parts), batch)


def test_classes_by_number_and_by_share_stay_the_same(tmp_path):
    write_classes(tmp_path)

    def held(**settings: object) -> set[str]:
        validation = opened(tmp_path, **settings).validation
        return set() if validation is None else {Path(validation.key(k)).parent.name for k in range(len(validation))}

    assert held() == held(held_out=None, validation_fraction=0.0) == set()
    assert len(held(held_out=2)) == 2 and len(held(held_out=3)) == 3 and held(held_out=2) < held(held_out=3)
    assert held(held_out=None) == held(held_out=2)
    assert held(held_out=None, validation_fraction=0.5) == held(held_out=3)


def test_folders_above_classes(tmp_path):
    for alphabet in ("Greek", "Latin", "Tifinagh"):
        write_classes(tmp_path / "wrapped" / alphabet, classes=3)
    archive = write_zip(tmp_path / "characters.zip", tmp_path / "wrapped")
    for place in (tmp_path / "wrapped", archive):
        data = opened(place, class_folder="deepest", held_out=("Latin", "Greek/class2", "Greek/class0"))
        assert data.spec.class_names == ("Greek/class1", *(f"Tifinagh/class{k}" for k in range(3)))
        assert len(data.validation) == 5 * EACH
        assert opened(place).spec.class_names == ("Greek", "Latin", "Tifinagh")


def test_split_folders_are_used(tmp_path):
    write_classes(tmp_path / "train")
    write_folder(tmp_path / "val", [f"{name}/{k}.png" for name in ("class5", "new", "other") for k in range(2)])
    data = opened(tmp_path, held_out=None)
    assert data.spec.num_classes == CLASSES and len(data.train) == CLASSES * EACH
    assert data.validation.labels.tolist() == [5, 5, 6, 6, 7, 7]
    assert opened(tmp_path, held_out=None, validation_fraction=0.0).validation is None
    with pytest.raises(ConfigError, match="data.held_out: got 2, but .* is split into folders by itself; leave it out"):
        opened(tmp_path, held_out=2)


def test_what_lies_beside_split_folders_is_warned_of(tmp_path):
    for name in ("train", "val"):
        write_classes(tmp_path / name, classes=3)
    assert opened(tmp_path, held_out=None).notes == ()
    write_classes(tmp_path / "more", classes=1)
    (warning,) = opened(tmp_path).notes
    assert warning.startswith("warning: the folders train and val are no split, for more/class0/0.png lies beside them")


def test_databases(tmp_path):
    write_classes(tmp_path / "files")
    write_database(tmp_path / "lmdb", tmp_path / "files")
    one, other = (opened(tmp_path / name, held_out=2) for name in ("files", "lmdb"))
    assert one.spec == other.spec
    assert_same(taken(one.train), taken(other.train, workers=1))


def test_content_and_style_are_augmented_apart(tmp_path):
    write_folder(tmp_path, ["a/1.png", "b/1.png"], size=(20, 20))
    (tmp_path / "b" / "1.png").write_bytes((tmp_path / "a" / "1.png").read_bytes())
    images = opened(tmp_path, flip=True, crop="random", style_count=1).train
    batch = images.batch(np.zeros(64, dtype=np.int64), np.arange(64), seed=2)
    assert (batch.images == batch.inputs["style"]).all(axis=(1, 2, 3)).mean() < 0.2


def test_workers_resume_ranks_and_batch_size_change_nothing(tmp_path):
    images = opened(write_classes(tmp_path), flip=True, crop="random", jitter=0.2, style_count=2).train
    whole = taken(images)
    assert_same(taken(images, workers=2), whole)
    assert_same(joined([taken(images, count=2), taken(images, start=8, count=3)]), whole)
    assert_same(taken(images, count=4, batch_size=5), whole)
    assert_same(joined([taken(images, count=1, rank=rank, world_size=2) for rank in range(2)]), taken(images, count=1))


def test_classes_that_do_not_do(tmp_path):
    write_classes(tmp_path / "set")
    for changes, error, message in (
        ({"held_out": ("class7",)}, ConfigError, r"data.held_out: got 'class7', which is no class in .*; did you mean \"class"),
        ({"held_out": 5}, ConfigError, r"data.held_out: got 5, but .* has 6 classes, of which 2 have to remain"),
        ({"held_out": ("class1",)}, DataError, "for validation there is only class class1; the style is of another class"),
        ({"held_out": tuple(f"class{c}" for c in range(5))}, DataError, "for training there is only class class5"),
        ({"style_count": 5}, DataError, "for training class class0 has 4 images, fewer than data.style_count 5: lower it, or add"),
    ):
        with pytest.raises(error, match=message):
            opened(tmp_path / "set", **changes)
    with pytest.raises(DataError, match="for training there is only class class0"):
        opened(write_classes(tmp_path / "one", classes=1))
    write_folder(tmp_path / "set", ["loose.png"])
    with pytest.raises(DataError, match="set: loose.png lies in no folder of a class: move it into one"):
        opened(tmp_path / "set")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: no images to train on"):
        opened(tmp_path / "empty")
    np.save(tmp_path / "x.npy", np.zeros((4, 16, 16, 3), dtype=np.uint8))
    with pytest.raises(DataError, match="x.npy: expected a folder, archive or LMDB of image files in folders of classes, not arrays"):
        opened(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"held_out": 1}, "held_out: got 1, expected 0, or at least 2"),
        ({"held_out": -2}, "held_out: got -2"),
        ({"held_out": ()}, r"held_out: got nothing"),
        ({"style_count": 0}, "style_count: got 0, expected at least 1"),
        ({"labels": "none"}, "labels: got 'none', expected auto or folder"),
        ({"source": "arrays"}, "source: got 'arrays', expected one of auto, folder, tar, zip, lmdb"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(ConfigError, match=message):
        FewShotDataConfig(**changes)


def test_the_folders_of_a_pack_are_no_classes(tmp_path):
    """They hold a thousand images each, in the order of the source."""
    write_zip(tmp_path / "x.zip", write_classes(tmp_path / "root"))
    assert opened(tmp_path / "x.zip").spec.num_classes == CLASSES
    with zipfile.ZipFile(tmp_path / "x.zip", "a") as archive:
        archive.writestr(PACK_FILE, "{}")
    with pytest.raises(DataError, match=r"x.zip: a pack, whose folders are no classes; give the folder or archive that it was made of"):
        opened(tmp_path / "x.zip")
