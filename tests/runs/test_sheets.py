"""Pictures of many samples: where each image stands, and what their classes are called beside them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.core.npz import Header
from triptych.runs.sampling import _are_samples, label_columns, label_list, said_label, write_kinds

SIDE, GAP = 24, 2


@pytest.mark.parametrize(
    ("labels", "columns"),
    [
        (None, None),
        ([0, 1, 2, 3] * 3, None),
        ([0, 1, 2, 3, 4] * 3, 5),
        ([7, 3, 3, 1, 0, 7, 3], 5),
        ([*range(20), 0], 20),
        ([*range(21), 0], None),
        (list(range(8)), 8),
        ([5], None),
    ],
)
def test_a_row_is_a_round_of_five_to_twenty_labels(labels, columns):
    assert label_columns(None if labels is None else np.array(labels)) == columns


@pytest.mark.parametrize(("count", "columns", "rows"), [(3, 3, 1), (16, 16, 1), (18, 16, 2)])
def test_kinds_stand_below_one_another(tmp_path: Path, count, columns, rows):
    """Image k of a kind below that of the kind before, sixteen of them in a row at most; what is left of the last rows is white."""
    kinds = [np.arange(first, first + count, dtype=np.uint8).reshape(-1, 1, 1, 1).repeat(SIDE, 1).repeat(SIDE, 2) for first in (10, 100)]
    write_kinds(tmp_path / "a.png", kinds)
    with Image.open(tmp_path / "a.png") as picture:
        levels = np.asarray(picture)
    step = 2 * (SIDE + GAP)  # a pixel of so small an image is two wide
    assert levels.shape == (2 * rows * step + 2 * GAP, columns * step + 2 * GAP)
    found = levels[step // 2 :: step, step // 2 :: step].reshape(rows, 2, columns)
    for number, kind in enumerate(kinds):
        shown = found[:, number].ravel()
        assert list(shown) == [*kind[:, 0, 0, 0], *[255] * (rows * columns - count)]


def test_a_label_in_a_protocol_is_the_number_of_a_class_or_a_name():
    """A text of digits is a name first; a number of Python is never one."""
    spec = DataSpec(image_size=8, channels=1, num_classes=3, class_names=("7", "cat", "1"))
    assert [said_label(value, spec) for value in ("cat", "7", "1", "2", 1, "fish")] == ["cat", 0, 2, 2, 1, "fish"]
    assert said_label("1", DataSpec(image_size=8, channels=1, num_classes=3)) == 1


@pytest.mark.parametrize(("count", "end"), [(10, "c8, c9)"), (11, "c8, c9, ...)")])
def test_ten_classes_are_named_to_who_asks_for_another(count: int, end: str):
    spec = DataSpec(image_size=8, channels=1, num_classes=count, class_names=tuple(f"c{k}" for k in range(count)))
    with pytest.raises(ConfigError, match=rf"unknown class 'x' \(expected 0 to {count - 1}, or a name: c0, c1, .*{re.escape(end)}$"):
        label_list(count, spec, count=1, given=["x"])


@pytest.mark.parametrize(
    ("dtype", "shape", "ours"),
    [
        ("uint8", (2, 8, 8, 3), True),
        ("uint8", (2, 8, 8, 1), True),
        ("uint8", (2, 8, 8, 4), False),
        ("uint8", (2, 8, 8), False),
        ("float64", (2, 8, 8, 3), False),
        ("float32", (2, 8, 8, 4), True),
        ("float32", (2, 8), False),
    ],
)
def test_an_array_that_samples_may_replace_is_one_of_samples(dtype: str, shape: tuple[int, ...], ours: bool):
    """8-bit images, or latents: anything else that is called arr_0 is somebody's own."""
    assert _are_samples(Header(shape, np.dtype(dtype))) == ours
