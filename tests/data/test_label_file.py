"""Classes by a text file, as those of ImageNet's validation images."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from tests.data.pictures import write_folder, write_tar, write_zip
from triptych.cli.main import main
from triptych.core.errors import ConfigError, DataError
from triptych.data import matlab
from triptych.data.config import DataConfig
from triptych.data.few_shot import FewShotDataConfig
from triptych.data.images import Data
from triptych.data.matlab import read_structs
from triptych.data.skipping import write_skip
from triptych.data.subjects import open_subjects
from triptych.runs.packing import pack_data

FLAT = [f"ILSVRC2012_val_{k:08d}.png" for k in range(1, 13)]
WORDS = ["n03", "n01", "n02", "n01", "n01", "n03", "n02", "n02", "n03", "n01", "n02", "n03"]
"""Synsets of the flat images."""
IDS = {"n01": 10, "n02": 2, "n03": 7}
"""As in ImageNet's development kit, where numbers are not in the order of synsets."""


def opened(path: Path, labels: Path | None, **settings) -> Data:
    file = None if labels is None else str(labels)
    return DataConfig(path=str(path), label_file=file, **({"image_size": 16, "validation_fraction": 0.0} | settings)).open()


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def told(data: Data) -> dict[str, str]:
    """The class of each image, by its name."""
    assert data.spec.class_names is not None
    sets = [images for images in (data.train, data.validation) if images is not None]
    keys = [(Path(images.source_key(k)).name, images.labels[k]) for images in sets for k in range(len(images))]
    return {key: data.spec.class_names[label] for key, label in keys}


EXPECTED = dict(zip(FLAT, WORDS, strict=True))
SHUFFLED = sorted(range(12), key=lambda k: k * 7 % 12)
FORMS = {
    "by order": WORDS,
    "by order, with spaces and empty lines": [f"  {word}\t\n" for word in WORDS],
    "names": [f"{FLAT[k]} {WORDS[k]}" for k in SHUFFLED],
    "tabs": [f"{FLAT[k]}\t{WORDS[k]}" for k in SHUFFLED],
    "commas": [f"{FLAT[k]},{WORDS[k]},some words" for k in SHUFFLED],
    "semicolons": ["name;class", *(f"{FLAT[k]};{WORDS[k]}" for k in SHUFFLED)],
    "semicolons, with commas": [f'"{FLAT[k]}";{WORDS[k]};{"1,5" * (k % 2)}' for k in SHUFFLED],
    "quoted": [f'"{FLAT[k]}","{WORDS[k]}"' for k in SHUFFLED],
    "kaggle": ["ImageId,PredictionString", *(f"{FLAT[k][:-4]},{WORDS[k]} 111 108 230 366 {WORDS[k]} 1 2 3 4 " for k in SHUFFLED)],
    "paths": [f"./{FLAT[k]} {WORDS[k]}" for k in SHUFFLED],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_the_same(tmp_path, form):
    folder = write_folder(tmp_path / "val", FLAT)
    data = opened(folder, written(tmp_path / "labels.txt", *FORMS[form]))
    assert told(data) == EXPECTED and data.spec.class_names == ("n01", "n02", "n03")
    assert data.train.labels.dtype == np.int64
    assert f"{folder}: 3 classes by {tmp_path / 'labels.txt'}" in data.notes


@pytest.mark.parametrize("kind", ["zip", "tar", "folder of its own"])
def test_images_in_archives_and_below_one_folder(tmp_path, kind):
    folder = write_folder(tmp_path / "val", FLAT)
    path = {"zip": lambda: write_zip(tmp_path / "x.zip", folder), "tar": lambda: write_tar(tmp_path / "x.tar", folder)}.get(
        kind, lambda: write_folder(tmp_path / "root", [f"inner/{name}" for name in FLAT])
    )()
    for form in ("by order", "names"):
        assert told(opened(path, written(tmp_path / "labels.txt", *FORMS[form]))) == EXPECTED


def test_the_numbers_of_the_development_kit_by_the_names_of_a_training_folder(tmp_path):
    """The split of ImageNet as it is unpacked: folders for training, flat images for validation, numbers in an order of their own."""
    root = write_folder(tmp_path / "images", [f"train/{word}/{word}_{k}.png" for word in IDS for k in range(3)])
    write_folder(root, [f"val/{name}" for name in FLAT] + ["test/1.png"])  # of those for testing no one knows the classes
    truth = written(tmp_path / "truth.txt", *(str(IDS[word]) for word in WORDS))
    kit = written(tmp_path / "map_clsloc.txt", *(f"{word} {number} a_kit fox" for word, number in IDS.items()))
    settings = {"validation_fraction": 0.1, "class_file": str(kit)}
    data = opened(root, truth, **settings)
    assert (len(data.train), len(data.validation)) == (9, 12) and data.spec.class_names == ("n01", "n02", "n03")
    assert told(data) == EXPECTED | {f"{word}_{k}.png": word for word in IDS for k in range(3)}
    assert told(opened(root, truth, **settings | {"class_file": str(write_kit(tmp_path / "meta.mat", IDS))})) == told(data)
    # Caffe's: numbers from 0 on in the order of the lines of another file.
    caffe = written(tmp_path / "val.txt", *(f"{name} {sorted(IDS).index(word)}" for name, word in EXPECTED.items()))
    words = written(tmp_path / "synset_words.txt", *(f"{word} tench, Tinca tinca" for word in sorted(IDS)))
    assert told(opened(root, caffe, **settings | {"class_file": str(words)})) == told(data)
    with pytest.raises(DataError, match=r"truth\.txt: says 7 for val/.*0001\.png, but no sub-folder is called so; data.class_file may"):
        opened(root, truth, validation_fraction=0.1)
    assert told(opened(root, written(tmp_path / "names.txt", *WORDS), **settings)) == told(data)  # names stay names


def test_numbers_without_names_are_in_their_order(tmp_path):
    folder = write_folder(tmp_path / "val", FLAT)
    data = opened(folder, written(tmp_path / "truth.txt", *(str(IDS[word]) for word in WORDS)))
    assert data.spec.class_names == ("2", "7", "10")
    assert data.train.labels.tolist() == [(2, 7, 10).index(IDS[word]) for word in WORDS]


def test_a_number_with_zeros_before_it_is_the_same_number(tmp_path):
    folder = write_folder(tmp_path / "val", FLAT)
    numbers = [f"{IDS[word]:0{1 + k % 3}d}" for k, word in enumerate(WORDS)]
    data = opened(folder, written(tmp_path / "truth.txt", *numbers))
    assert data.spec.class_names == ("2", "7", "10")
    assert data.train.labels.tolist() == [(2, 7, 10).index(IDS[word]) for word in WORDS]
    padded = written(tmp_path / "truth.txt", *(f"{IDS[word]:03d}" for word in WORDS))
    assert opened(folder, padded).spec.class_names == ("002", "007", "010")  # as they are written


def test_a_semicolon_in_one_class_is_a_letter(tmp_path):
    folder = write_folder(tmp_path / "val", ["a.png", "b.png"])
    assert told(opened(folder, written(tmp_path / "l.txt", "old;new", "old"))) == {"a.png": "old;new", "b.png": "old"}


def test_names_in_another_form_of_unicode(tmp_path):
    composed, apart = "caf\u00e9.png", "cafe\u0301.png"
    folder = write_folder(tmp_path / "val", [apart, "tea.png"])
    with pytest.raises(DataError, match=rf"line 1 names {composed}, but there is no such image; it is there in another form of Unicode"):
        opened(folder, written(tmp_path / "l.txt", f"{composed},a", "tea.png,b"))
    with pytest.raises(DataError, match=r"line 1 names caf\u00e8\.png, but there is no such image$"):
        opened(folder, written(tmp_path / "l.txt", "caf\u00e8.png,a", "tea.png,b"))


def test_a_line_counts_before_the_folder(tmp_path):
    root = write_folder(tmp_path / "x", ["cat/0.png", "cat/1.png", "dog/0.png", "2.png"])
    data = opened(root, written(tmp_path / "l.txt", "cat/1.png dog", "2.png cat"))
    assert [data.spec.class_names[label] for label in data.train.labels] == ["cat", "cat", "dog", "dog"]  # 2.png comes first


def test_images_that_are_left_out_keep_their_lines(tmp_path):
    folder = write_folder(tmp_path / "val", FLAT)
    write_skip(tmp_path / "skip.json", {FLAT[0]: "x", FLAT[5]: "x"})
    for form in ("by order", "names"):
        labels = written(tmp_path / "labels.txt", *FORMS[form])
        found = told(opened(folder, labels, skip=str(tmp_path / "skip.json")))
        assert found == {name: word for name, word in EXPECTED.items() if name not in (FLAT[0], FLAT[5])}


def test_packs_and_the_doctor_know_the_classes(tmp_path, capsys):
    folder, labels = write_folder(tmp_path / "val", FLAT), written(tmp_path / "labels.txt", *WORDS)
    config = DataConfig(path=str(folder), label_file=str(labels), image_size=16, validation_fraction=0.0)
    for ending in (".npz", ".zip"):
        pack = tmp_path / f"pack{ending}"
        pack_data(config, pack, workers=0)
        assert told(opened(pack, None)) == EXPECTED
        with pytest.raises(ConfigError, match=r"data\.label_file: got '.*labels\.txt', but "):
            opened(pack, labels)
    subjects = open_subjects(config)
    assert subjects.class_names == ("n01", "n02", "n03") and not subjects.complaints
    out = tmp_path / "found.json"
    written(labels, *WORDS[1:])
    assert main(["data", "doctor", str(folder), "--label-file", str(labels), "--workers", "0", "--out", str(out)]) == 1
    said = json.dumps(json.loads(out.read_text()))
    assert "has 11 lines, but there are 12 images" in said and "labels.txt" in said


MISTAKES = {
    "nothing": ([""], "holds no lines; expected one with its class for each image"),
    "too few": (WORDS[1:], "has 11 lines, but there are 12 images; give one for each"),
    "mixed": ([f"{FLAT[0]} n01", *WORDS[1:]], "line 2 has no name before its class, unlike line 1"),
    "mixed later": ([*WORDS[1:], f"{FLAT[0]} n01"], "line 12 has a name before its class, unlike line 1"),
    "missing": (FORMS["names"][1:], f"has no class for {FLAT[SHUFFLED[0]]}; add a line"),
    "absent": ([*FORMS["names"], "other.png n01"], "line 13 names other.png, but there is no such image"),
    "twice": ([*FORMS["names"], f"{FLAT[3]} n02"], f"have two classes for {FLAT[3]}"),
    "two names of one": ([*FORMS["names"], f"{FLAT[3][:-4]} {WORDS[3]}"], f"line 13 names {FLAT[3][:-4]}, but there is no such image"),
    "no class": ([f"{name}," for name in FLAT], "line 1 has no class"),
    "bars": ([f"{name}|{word}" for name, word in EXPECTED.items()], "line 1 begins with the name of an image, but has no class that"),
    "names alone": (FLAT, "line 1 begins with the name of an image, but has no class that"),
    "long": (["x" * 300, *WORDS[1:]], "line 1 has a class of too many letters"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(tmp_path, mistake):
    lines, message = MISTAKES[mistake]
    labels = written(tmp_path / "labels.txt", *lines)
    with pytest.raises(DataError) as error:
        opened(write_folder(tmp_path / "val", FLAT), labels)
    said = str(error.value)
    assert message in said and said.startswith(f"{labels}: ") and "\n" not in said


def test_names_that_two_images_have(tmp_path):
    root = write_folder(tmp_path / "x", ["train/0.png", "train/1.png", "val/0.png"])
    with pytest.raises(DataError, match=r"line 1 names two images, train/0\.png and val/0\.png; write their paths$"):
        opened(root, written(tmp_path / "l.txt", "0.png a", "1.png b"), validation_fraction=0.1)
    data = opened(root, written(tmp_path / "l.txt", "train/0.png a", "1.png b", "val/0.png b"), validation_fraction=0.1)
    assert data.train.labels.tolist() == [0, 1] and data.validation.labels.tolist() == [1]


def test_files_that_cannot_be_read(tmp_path):
    folder = write_folder(tmp_path / "val", FLAT)
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"bytes\.txt: no text in UTF-8"):
        opened(folder, tmp_path / "bytes.txt")
    with pytest.raises(DataError, match=r"absent\.txt: cannot be read"):
        opened(folder, tmp_path / "absent.txt")
    labels = written(tmp_path / "labels.txt", *("4" for _ in WORDS))
    for lines, message in (
        (["a 1", "b 1"], r"classes\.txt: has a number or a name of a class twice"),
        (["a", "a"], r"classes\.txt: has a number or a name of a class twice"),
        (["a 1", "b 2"], r"labels\.txt: line 1 has the class 4, which is not in .*classes\.txt \(2 classes, from a with the number 1\)"),
        (["a", "b"], r"line 1 has the class 4, which is not in .*classes\.txt \(2 classes, from a with the number 0\)"),
    ):
        with pytest.raises(DataError, match=message):
            opened(folder, labels, class_file=str(written(tmp_path / "classes.txt", *lines)))


def write_kit(path: Path, numbers: Mapping[str, Any], *, compressed: bool = True) -> Path:
    """As meta.mat of ImageNet's development kit, by SciPy."""
    fields = [(name, object) for name in ("ILSVRC2012_ID", "WNID", "words", "num_children", "children")]
    synsets = np.array([(number, word, "Ünlike, words", 2.0, np.array([3.0, 4.0])) for word, number in numbers.items()], dtype=fields)
    savemat(path, {"version": "1", "other": np.eye(3), "synsets": synsets[:, None]}, do_compression=compressed)
    return path


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("kind", [float, np.uint16, np.int32, np.uint8])
def test_files_of_matlab(tmp_path, kind, compressed):
    path = write_kit(tmp_path / "meta.mat", {"n02119789": kind(1), "n7": kind(250), "x" * 40: kind(3)}, compressed=compressed)
    assert read_structs(path, "synsets", ("WNID", "ILSVRC2012_ID")) == [("n02119789", 1.0), ("n7", 250.0), ("x" * 40, 3.0)]
    assert read_structs(path, "synsets", ("words", "children"))[2] == ("Ünlike, words", None)
    for name, field, said in (("synsets", "none", "its fields are ILSVRC2012_ID, WNID, words"), ("other", "WNID", "no such variable")):
        with pytest.raises(
            DataError, match=rf"meta\.mat: not read as a file of MATLAB, version 5 to 7 \({said}.*expected a variable {name} with"
        ):
            read_structs(path, name, (field,))


def test_damaged_files_of_matlab_are_said(tmp_path, monkeypatch):
    content = write_kit(tmp_path / "meta.mat", IDS, compressed=False).read_bytes()
    generator = np.random.default_rng(0)
    whole, failed = read_structs(tmp_path / "meta.mat", "synsets", ("WNID",)), 0
    for trial in range(150):
        damaged = bytearray(content[: generator.integers(len(content))] if trial % 3 == 0 else content)
        for place in generator.integers(len(damaged), size=trial % 3) if damaged else ():
            damaged[place] = generator.integers(256)
        (tmp_path / "damaged.mat").write_bytes(damaged)
        try:
            assert len(read_structs(tmp_path / "damaged.mat", "synsets", ("WNID",))) <= len(whole)
        except DataError:
            failed += 1
    assert failed > 50
    folder, labels = write_folder(tmp_path / "val", FLAT), written(tmp_path / "labels.txt", *("4" for _ in WORDS))
    for numbers, said in (
        ({"a": 1, "b": np.array([])}, "1 of its 2 synsets have a WNID and an ILSVRC2012_ID"),
        ({"a": 1, "b": 2}, "the class 4"),
    ):
        with pytest.raises(DataError, match=said):
            opened(folder, labels, class_file=str(write_kit(tmp_path / "kit.mat", numbers)))
    monkeypatch.setattr(matlab, "_MOST_BYTES", 2**20)
    (tmp_path / "bomb.mat").write_bytes(content[:128] + struct.pack("<II", 15, len(packed := zlib.compress(bytes(2**20 + 1)))) + packed)
    with pytest.raises(DataError, match="a part of it is cut short, or too large"):
        read_structs(tmp_path / "bomb.mat", "synsets", ("WNID",))


def test_settings_that_do_not_fit(tmp_path):
    labels = written(tmp_path / "labels.txt", *WORDS)
    np.save(tmp_path / "x.npy", np.zeros((12, 16, 16, 3), np.uint8))
    with pytest.raises(ConfigError, match=r"data\.label_file: got '.*', but the images come as arrays, which have labels of"):
        opened(tmp_path / "x.npy", labels)
    with pytest.raises(ConfigError, match="but the images come as digits"):
        DataConfig(source="digits", label_file=str(labels)).open()
    for settings, message in (
        ({"label_file": "x", "labels": "none"}, "labels: got 'none', expected auto or folder, where data.label_file"),
        ({"class_file": "x"}, "class_file: got 'x', expected nothing without data.label_file"),
    ):
        with pytest.raises(ConfigError, match=message):
            DataConfig(**settings)
    with pytest.raises(ConfigError, match="label_file: got 'x', expected nothing"):
        FewShotDataConfig(label_file="x")
    assert "label_file" not in DataConfig().to_dict() and "class_file" not in DataConfig().to_dict()
