"""Attributes of images: from their classes, and from tables as people have them, whole and damaged."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.runs.glow import folder, pixels
from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError, DataError, UserError
from triptych.data.config import ClassesFrom
from triptych.runs.given.attributes import attribute_groups, class_groups
from triptych.runs.given.collection import Collection, open_squares

NAMES = ["1.png", "2.png", "3.png"]
SPEC = DataSpec(image_size=8, channels=1, num_classes=3, class_names=("cat", "dog", "emu"))


@pytest.fixture
def pictures(tmp_path: Path) -> Collection:
    return opened(folder(tmp_path / "images", pixels(3), NAMES))


def opened(source: Path | np.ndarray, classes: ClassesFrom = "auto") -> Collection:
    return open_squares(source, side=8, channels=1, classes=classes)


def read(path: Path, pictures: Collection, text: str, *, count: int | None = None) -> dict[str, list[bool]]:
    path.write_text(text, encoding="utf-8")
    return {name: found.tolist() for name, found in attribute_groups(path, pictures, count=count or len(pictures)).items()}


@pytest.mark.parametrize(
    "text",
    [
        "image,smiling,young\n1.png,1,0\n3.png,0,1\n2.png,1,1\n",
        "image_id,smiling,young\r\n2.png,1,1\r\n1.png,1,-1\r\n\r\n3.png,-1,1\r\n",
        '\ufefffile,"smiling","young"\n"1.png", 1 , 0\n2.png,1,1\n3.png,0,1\n4.png,7,many\n',
        "3\nsmiling young\n1.png  1 -1\n2.png  1  1\n3.png -1  1\n",
        "202599\n smiling young \n3.png -1 1\n\n1.png 1 -1\n000001.jpg -1\n2.png 1 1\n",
    ],
)
def test_tables(text: str, pictures: Collection, tmp_path: Path) -> None:
    assert read(tmp_path / "a.csv", pictures, text) == {"smiling": [True, True, False], "young": [False, True, True]}


def test_the_first_images_alone_need_rows(pictures: Collection, tmp_path: Path) -> None:
    assert read(tmp_path / "a.csv", pictures, "f,a\n1.png,1\n2.png,0\n", count=2) == {"a": [True, False]}


def test_files_of_one_name_in_several_folders(tmp_path: Path) -> None:
    tree = opened(folder(tmp_path / "tree", pixels(3), ["x/1.png", "y/1.png", "y/2.png"]))
    assert read(tmp_path / "a.csv", tree, "f,a\ny/1.png,1\n2.png,1\nx/1.png,0\n") == {"a": [False, True, True]}
    with pytest.raises(DataError) as caught:
        read(tmp_path / "a.csv", tree, "f,a\n1.png,1\n")
    assert str(caught.value) == (
        f"{tmp_path}/a.csv, line 2: 1.png may be {tmp_path}/tree/x/1.png or {tmp_path}/tree/y/1.png; write the folder too"
    )


def test_images_in_an_archive(tmp_path: Path) -> None:
    folder(tmp_path / "images", pixels(3), NAMES)
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for name in NAMES:
            archive.write(tmp_path / "images" / name, f"faces/{name}")
    text = "f,a\n1.png,1\nfaces/2.png,0\n3.png,1\n"
    assert read(tmp_path / "a.csv", opened(tmp_path / "images.zip"), text) == {"a": [True, False, True]}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("f,a\n1.png,1\n2.png,0\n", "a.csv: has no row for {}/images/3.png"),
        ("f,a\n1.png,1\n2.png,0\n3.jpg,1\n", "a.csv: has no row for {}/images/3.png; it has one for 3.jpg"),
        ("f,a\n1.png,1\n2.png,0\n2.png,1\n", "a.csv, line 4: has a second row for {}/images/2.png"),
        ("f,a,b\n1.png,1\n", "a.csv, line 2: 1.png has 1 value, expected 2"),
        ("2\na b\n1.png 1 1 1\n", "a.csv, line 3: 1.png has 3 values, expected 2"),
        ("f,a\n1.png,yes\n", "a.csv, line 2: a of 1.png is 'yes', expected 1 or 0, or 1 or -1"),
        ("f,a\n1.png,\n", "a.csv, line 2: a of 1.png is '', expected 1 or 0, or 1 or -1"),
        ("f,a\n1.png,1\n2.png,0\n3.png,-1\n", "a.csv: a is 0 for some images and -1 for others, expected 1 or 0, or 1 or -1"),
        (
            "f,a\n1.png,1\n2.png,1\n3.png,1\n",
            "directions: {}/a.csv: all of the 3 images have a; a direction needs images with and without: give others, or leave it out",
        ),
        (
            "3\na b\n1.png -1 1\n2.png -1 1\n3.png -1 -1\n",
            "directions: {}/a.csv: none of the 3 images has a; a direction needs images with and without: give others, or leave it out",
        ),
        ("f,a,a\n", "a.csv: has two columns named a"),
        ("f,a,\n", "a.csv: its first line should name the attributes: file,NAME,NAME and so on"),
        ("f\n1.png\n", "a.csv: its first line should name the attributes: file,NAME,NAME and so on"),
        ("", "a.csv: its first line should name the attributes: file,NAME,NAME and so on"),
        ("3\n", "a.csv: its first line should name the attributes: file,NAME,NAME and so on"),
        ("f,a\n" + "x" * 200_000 + ",1\n", "a.csv: is no table of attributes (field larger than field limit (131072))"),
    ],
)
def test_tables_that_do_not_fit(text: str, line: str, pictures: Collection, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path / "a.csv", pictures, text)
    expected = line.replace("{}", str(tmp_path))
    assert str(caught.value) == (expected if expected.startswith("directions") else f"{tmp_path}/{expected}")


def test_what_is_no_table(pictures: Collection, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\x89PNG\r\n\xff\xfe")
    with pytest.raises(DataError, match=r"a\.csv: is no table of attributes \('utf-8' codec can't decode"):
        attribute_groups(tmp_path / "a.csv", pictures, count=3)
    with pytest.raises(DataError, match=r"b\.csv: there is no such file; expected a \.csv of attributes, or list_attr_celeba\.txt"):
        attribute_groups(tmp_path / "b.csv", pictures, count=3)
    with pytest.raises(ConfigError, match=r"attributes: the array holds images without file names, which the rows of .*a\.csv go by"):
        attribute_groups(tmp_path / "a.csv", opened(pixels(3)), count=3)


def test_classes(tmp_path: Path) -> None:
    tree = folder(tmp_path / "tree", pixels(3), ["owl/1.png", "ape/1.png", "owl/2.png"])
    assert {name: found.tolist() for name, found in class_groups(opened(tree), SPEC, count=3).items()} == {
        "ape": [True, False, False],
        "owl": [False, True, True],
    }
    np.savez(tmp_path / "a.npz", arr_0=pixels(3), arr_1=np.array([2, 0, 2]))
    assert {name: found.tolist() for name, found in class_groups(opened(tmp_path / "a.npz"), SPEC, count=3).items()} == {
        "cat": [False, True, False],
        "emu": [True, False, True],
    }
    np.savez(tmp_path / "b.npz", arr_0=pixels(3), arr_1=np.array([2, 0, 3]))  # not the classes of the run
    assert list(class_groups(opened(tmp_path / "b.npz"), SPEC, count=3)) == ["0", "2", "3"]


def test_classes_that_give_no_direction(pictures: Collection, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        class_groups(pictures, SPEC, count=3)
    advice = "put them in sub-folders, one for each class, or give a table of attributes (--attributes)"
    assert str(caught.value) == f"directions: {tmp_path}/images has no classes; {advice}"
    np.savez(tmp_path / "a.npz", arr_0=pixels(3), arr_1=np.array([1, 1, 0]))
    with pytest.raises(ConfigError, match=r"a\.npz: all of the 2 images have the class dog; a direction needs images with and without"):
        class_groups(opened(tmp_path / "a.npz"), SPEC, count=2)


def test_where_classes_are_from(tmp_path: Path) -> None:
    tree = folder(tmp_path / "tree", pixels(3), ["owl/a_1.png", "owl/b_1.png", "ape/b_2.png"])
    names: dict[ClassesFrom, object] = {kind: opened(tree, kind).class_names for kind in ("auto", "folder", "prefix", "none")}
    assert names == {"auto": ("ape", "owl"), "folder": ("ape", "owl"), "prefix": ("a", "b"), "none": None}
    np.savez(tmp_path / "a.npz", arr_0=pixels(3), arr_1=np.array([1, 1, 0]))
    assert opened(tmp_path / "a.npz", "none").labels is None
    with pytest.raises(ConfigError, match=r"classes: got 'prefix', but .*a\.npz is not made of files; leave it out"):
        opened(tmp_path / "a.npz", "prefix")
    flat = folder(tmp_path / "flat", pixels(1), ["1.png"])
    with pytest.raises(DataError) as caught:
        opened(flat, "prefix")
    assert str(caught.value) == f"{flat}: 1.png has no class before an underscore: rename it, or set classes to folder or none"
