"""Images that are left out of a data set, by a list or because they cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import write_folder, write_idx, write_zip
from triptych.core.errors import DataError
from triptych.data.config import DataConfig
from triptych.data.images import ImageSet
from triptych.data.skipping import read_skip, write_skip

NAMES = [f"{kind}/{kind}_{k}.png" for kind in ("cat", "dog") for k in range(4)]


def opened(path: Path, **settings):
    return DataConfig(path=str(path), **({"image_size": 16, "validation_fraction": 0.0} | settings)).open()


def keys(images: ImageSet) -> list[str]:
    return [images.source_key(k) for k in range(len(images))]


# The file


def test_a_list_is_read_as_it_was_written(tmp_path):
    reasons = {"a/b.png": "truncated", "ü \udcff.png": "", "3": "equal to 2"}
    write_skip(tmp_path / "bad.json", reasons)
    assert read_skip(tmp_path / "bad.json") == reasons
    assert json.loads((tmp_path / "bad.json").read_text())["skip"][0] == {"key": "a/b.png", "why": "truncated"}
    with pytest.raises(DataError, match="no/bad.json: cannot be written"):
        write_skip(tmp_path / "no" / "bad.json", reasons)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[" * 100_000,
        "[]",
        '{"skip": []}',
        '{"format": "triptych-skip-2", "skip": []}',
        '{"format": "triptych-skip-1", "skip": ["a.png"]}',
        '{"format": "triptych-skip-1", "skip": [{"why": "x"}]}',
    ],
)
def test_another_file_is_no_list(tmp_path, content):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(DataError, match=r"bad\.json: .*(triptych-skip-1|triptych data doctor|a/b\.png)"):
        read_skip(tmp_path / "bad.json")


def test_a_list_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"bad\.json: cannot be read \(No such file"):
        read_skip(tmp_path / "bad.json")


# Keys


def test_keys_are_paths_inside_the_source(tmp_path):
    folder = write_folder(tmp_path / "photos", NAMES)
    assert keys(opened(folder).train) == keys(opened(write_zip(tmp_path / "x.zip", folder)).train) == sorted(NAMES)


def test_keys_of_arrays_are_numbers(tmp_path):
    write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((3, 16, 16)))
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.arange(3))
    write_idx(tmp_path / "t10k-images-idx3-ubyte", np.zeros((2, 16, 16)))
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.arange(2))
    data = opened(tmp_path, validation_fraction=0.5)
    assert keys(data.train) == ["0", "1", "2"] and data.validation is not None
    assert keys(data.validation) == ["test/0", "test/1"]
