"""Labels in a dataset.json, as StyleGAN's and EDM's programs write them."""

from __future__ import annotations

import json
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import encoded, picture, write_folder, write_tar, write_zip
from triptych.core.errors import ConfigError, DataError
from triptych.data.config import DataConfig
from triptych.data.images import Data
from triptych.runs.given.collection import open_squares
from triptych.runs.given.pictures import open_pictures

NAMES = [f"{k // 4:05d}/img{k:08d}.png" for k in range(8)]  # sub-folders that mean nothing
CLASSES = [3, 0, 2, 2, 0, 3, 5, 0]


def labelled(root: Path, labels: object, *, names: list[str] = NAMES) -> Path:
    write_folder(root, names)
    (root / "dataset.json").write_text(json.dumps({"labels": labels}))
    return root


def entries(labels: object = CLASSES, names: list[str] = NAMES) -> list[list]:
    return [[name, label] for name, label in zip(names, labels, strict=True)]


def opened(path: Path, **settings) -> Data:
    return DataConfig(path=str(path), **({"image_size": 16, "validation_fraction": 0.0} | settings)).open()


def refused(path: Path, **settings) -> str:
    with pytest.raises(DataError) as error:
        opened(path, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", ["folder", "x.zip", "x.tar", "x.tar.gz"])
@pytest.mark.parametrize("labels", ["auto", "folder", "json"])
def test_classes_are_those_of_the_file(tmp_path, kind, labels):
    """Wherever it lies, the order of its entries has no say, and folders none."""
    path = labelled(tmp_path / "folder", entries()[::-1])
    if kind == "x.zip":
        path = write_zip(tmp_path / kind, path)
    elif kind != "folder":
        path = write_tar(tmp_path / kind, path)
    data = opened(path, labels=labels)
    assert data.train.labels.tolist() == CLASSES and data.train.labels.dtype == np.int64
    assert (data.spec.num_classes, data.spec.class_names) == (6, tuple("012345"))  # 1 and 4 have no image
    missing = "2 of 6 classes have no image to train on (1, 4) and are not learned"
    assert [note.rpartition(": ")[2] for note in data.notes] == ["6 classes by dataset.json", missing]


def test_other_labels_may_be_asked_for(tmp_path):
    labelled(tmp_path, entries())
    assert opened(tmp_path, labels="none").spec.num_classes is None
    write_folder(tmp_path / "new", ["a_1.png", "b_1.png"])
    (tmp_path / "new" / "dataset.json").write_text("not json")
    assert opened(tmp_path / "new", labels="prefix").spec.class_names == ("a", "b")
    assert opened(tmp_path / "new", labels="none").notes == ()


def test_null_is_no_labels_and_folders_mean_nothing(tmp_path):
    labelled(tmp_path, None)
    assert opened(tmp_path).spec.num_classes is None
    assert opened(tmp_path, labels="folder").spec.class_names == ("00000", "00001")
    assert "no labels" in refused(tmp_path, labels="json")


def test_a_list_of_numbers_for_one_class(tmp_path):
    labelled(tmp_path, entries([[float(k == label) for k in range(9)] for label in CLASSES]))
    data = opened(tmp_path)
    assert data.train.labels.tolist() == CLASSES and data.spec.num_classes == 9


def test_held_out_by_file_name_or_by_folder(tmp_path):
    labelled(tmp_path / "a", entries())
    with_labels = opened(tmp_path / "a", validation_fraction=0.4)
    without = opened(tmp_path / "a", validation_fraction=0.4, labels="none")
    for one, other in ((with_labels.train, without.train), (with_labels.validation, without.validation)):
        keys = [Path(one.key(k)).name for k in range(len(one))]
        assert keys == [Path(other.key(k)).name for k in range(len(other))]
        assert one.labels.tolist() == [CLASSES[int(key[3:11])] for key in keys]
    names = ["train/x.png", "train/y.png", "val/x.png"]
    for top in ("", "train/", "val/"):  # one file for all, or one for each
        below = [name for name in names if name.startswith(top)]
        root = tmp_path / ("b" if not top else "c")
        write_folder(root / top, [name.removeprefix(top) for name in below])
        pairs = [[name.removeprefix(top), names.index(name)] for name in below]
        (root / top / "dataset.json").write_text(json.dumps({"labels": pairs}))
    for root in (tmp_path / "b", tmp_path / "c"):
        data = opened(root, validation_fraction=0.1)
        assert data.train.labels.tolist() == [0, 1] and data.validation.labels.tolist() == [2]


MISTAKES = {
    "missing": (entries()[1:], "has no label for 00000/img00000000.png:"),
    "several-missing": (entries()[2:], "has no label for 00000/img00000000.png and 1 other:"),
    "double": ([*entries(), [NAMES[0], 1]], "more than one label for 00000/img00000000.png"),
    "absent": ([*entries(), ["00000/x.png", 1]], "label for 00000/x.png, but there is no such image"),
    "outside": ([*entries(), ["../00000/img00000000.png", 1]], "label for ../00000/img00000000.png, but"),
    "negative": (entries([-1, *CLASSES[1:]]), "label -1 for 00000/img00000000.png, expected one class, a whole number from 0"),
    "huge": (entries([2**20, *CLASSES[1:]]), "label 1048576 for"),
    "fraction": (entries([2.5, *CLASSES[1:]]), "label 2.5 for"),
    "word": (entries(["cat", *CLASSES[1:]]), "label 'cat' for"),
    "true": (entries([True, *CLASSES[1:]]), "label True for"),
    "camera": (entries([[0.5] * 25, *CLASSES[1:]]), "label [0.5, 0.5, 0.5, "),
    "two-classes": (entries([[1, 1, 0], *CLASSES[1:]]), "label [1, 1, 0] for"),
    "no-pair": ([*entries(), [NAMES[0]]], "holds ['00000/img00000000.png'] among its labels"),
    "no-name": ([*entries(), [7, 1]], "holds [7, 1] among its labels"),
    "table": ({"0": "background"}, 'holds no list of "labels"'),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(tmp_path, mistake):
    labels, said = MISTAKES[mistake]
    message = refused(labelled(tmp_path, labels))
    assert message.startswith(f"{tmp_path}/dataset.json: ") and said in message and len(message) < 400
    assert message.endswith("mend the file, or set data.labels to folder, prefix or none")


def test_what_is_no_json_or_too_large_is_one_line(tmp_path):
    labelled(tmp_path, entries())
    for content in (b"", b"{", b"[" * 100_000, b"[1]", b"{}", b'{"labels": [[\xff, 1]]}', b'{"labels": [["x", ' + b"9" * 5000 + b"]]}"):
        (tmp_path / "dataset.json").write_bytes(content)
        assert "dataset.json: " in refused(tmp_path)
    assert "no dataset.json lies there" in refused(write_folder(tmp_path / "new", ["1.png"]), labels="json")
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("1.png", encoded(picture(16, 16)))
        archive.writestr("dataset.json", b'{"labels": [' + b"[]," * 2**23 + b"[]]}")
    tracemalloc.start()
    assert "larger than 1,056,768 bytes" in refused(tmp_path / "bomb.zip")
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def test_labels_by_json_are_not_for_arrays(tmp_path):
    np.savez(tmp_path / "x.npz", np.zeros((2, 16, 16, 3), np.uint8), np.array([0, 1]))
    with pytest.raises(ConfigError, match="labels of its own"):
        opened(tmp_path / "x.npz", labels="json")


def test_sets_to_evaluate_and_to_encode_have_the_labels(tmp_path):
    """As those of arrays they have no names: a class is the run's own number."""
    path = write_zip(tmp_path / "x.zip", labelled(tmp_path / "folder", entries()))
    assert open_pictures(path, image_size=16).labels.tolist() == CLASSES
    collection = open_squares(path, side=16, channels=3)
    assert (collection.labels.tolist(), collection.class_names) == (CLASSES, None)


def test_a_set_to_evaluate_goes_without_labels_that_are_wrong(tmp_path):
    pictures = open_pictures(labelled(tmp_path, entries()[1:]), image_size=16)
    assert pictures.labels is None and "has no label for 00000/img00000000.png; so the images have no labels" in pictures.notes[0]
