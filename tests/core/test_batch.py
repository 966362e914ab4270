"""Batches, shares and pictures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from triptych.core.batch import DataSpec, InputSpec, RawBatch, share
from triptych.core.errors import ConfigError
from triptych.core.images import enlarge, grid, nearest_uint8, save_picture, to_uint8


@given(st.integers(0, 1000), st.integers(1, 17))
def test_shares_are_consecutive_and_even(total, world_size):
    shares = [share(total, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert [k for part in shares for k in part] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_normalisation_is_the_inverse_of_the_8_bit_conversion():
    pixels = torch.arange(256, dtype=torch.uint8).repeat(3).view(1, 16, 16, 3)
    batch = RawBatch(pixels, None, torch.arange(1)).to("cpu")
    assert batch.images.shape == (1, 3, 16, 16) and batch.images.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(batch.images, pixels.permute(0, 3, 1, 2) / 127.5 - 1)
    assert batch.images.min() == -1 and batch.images.max() == 1
    assert (to_uint8(batch.images).int() - pixels.int()).abs().max() <= 1  # it truncates
    assert torch.equal(to_uint8(torch.full((1, 1, 1, 1), 9.0)).flatten(), torch.tensor([255], dtype=torch.uint8))
    assert to_uint8(torch.zeros(1, 1, 1, 1)).item() == 127
    assert torch.equal(nearest_uint8(batch.images), pixels)
    beyond = torch.tensor([-9.0, -0.001, 0.001, 9.0]).view(4, 1, 1, 1)
    assert nearest_uint8(beyond).flatten().tolist() == [0, 127, 128, 255]


def test_batches_are_sliced_whole():
    batch = RawBatch(torch.zeros(4, 2, 2, 1, dtype=torch.uint8), torch.arange(4), torch.arange(10, 14)).to("cpu")
    part = batch[1:3]
    assert len(part) == 2 and part.labels.tolist() == [1, 2] and part.index.tolist() == [11, 12]


def test_inputs_are_normalised_where_they_are_images_and_sliced_with_their_batch():
    inputs = {
        "edges": torch.arange(4 * 6, dtype=torch.uint8).view(4, 2, 3, 1),
        "classes": torch.arange(4 * 6).view(4, 2, 3),
        "style_labels": torch.arange(4),
    }
    raw = RawBatch(torch.zeros(4, 2, 3, 3, dtype=torch.uint8), None, torch.arange(4), inputs)
    batch = raw.to("cpu")
    assert batch.inputs["edges"].shape == (4, 1, 2, 3) and batch.inputs["edges"].is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(batch.inputs["edges"], inputs["edges"].permute(0, 3, 1, 2) / 127.5 - 1)
    assert torch.equal(batch.inputs["classes"], inputs["classes"]) and batch.inputs["classes"].dtype == torch.int64
    part = batch[1:3]
    assert {name: len(values) for name, values in part.inputs.items()} == dict.fromkeys(inputs, 2)
    assert torch.equal(part.inputs["style_labels"], torch.tensor([1, 2])) and part.images.shape == (2, 3, 2, 3)
    assert not RawBatch(torch.zeros(1, 2, 2, 1, dtype=torch.uint8), None, torch.arange(1)).to("cpu").inputs


def test_specs_go_to_documents_and_back():
    spec = DataSpec(
        image_size=8,
        channels=3,
        width=16,
        inputs=(InputSpec(name="labels", kind="classes", num_classes=12), InputSpec(name="edges", kind="image", channels=1)),
    )
    document = spec.to_dict()
    assert document["inputs"][0] == {"name": "labels", "kind": "classes", "channels": None, "num_classes": 12, "dont_care": False}
    assert set(document) == {"image_size", "channels", "num_classes", "class_names", "width", "inputs"}
    assert DataSpec.from_dict(document) == spec and spec.height_and_width == (8, 16)
    old = DataSpec.from_dict({"image_size": 8, "channels": 1, "num_classes": None, "class_names": None})
    assert (old.width, old.inputs, old.height_and_width) == (None, (), (8, 8))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "image"}, "channels: got None, expected 1 to 4,096 for an image"),
        ({"kind": "image", "channels": 0}, "channels: got 0, expected 1 to 4,096"),
        ({"kind": "instances", "channels": 0}, "channels: got 0, expected .*nothing"),
        ({"kind": "instances", "frames": 0}, "frames: got 0, expected 1 to 65,536, or nothing"),
        ({"kind": "labels", "num_classes": 2, "frames": 2}, "frames: got 2, expected .*nothing for labels"),
        ({"kind": "classes"}, "num_classes: got None, expected a number"),
        ({"kind": "instances", "channels": 1}, "channels: got 1, expected .*nothing"),
        ({"kind": "instances", "num_classes": 3}, "num_classes: got 3, expected .*nothing"),
        ({"kind": "classes", "num_classes": 3, "dont_care": True, "blank": True}, "blank: got True, .*without dont_care"),
        ({"kind": "instances", "blank": True}, "blank: got True, expected false but for classes"),
        ({"kind": "instances", "nearest": True}, "nearest: got True, expected false but for images"),
        ({"kind": "image", "channels": 3, "stored": "limbs"}, "stored: got 'limbs', expected pixels, limbs of an image of 27 channels"),
        ({"kind": "image", "channels": 3, "frames": 2, "references": 2}, "references: got 2, expected .* without frames, or nothing"),
    ],
)
def test_inputs_that_cannot_be(wrong, message):
    with pytest.raises(ConfigError, match=message):
        InputSpec(name="x", **wrong)
    with pytest.raises(ConfigError, match="kind: got 'video', expected one of"):
        InputSpec.from_dict({"name": "x", "kind": "video"})
    for name in ("image_size", "channels", "width", "num_classes", "frames"):
        with pytest.raises(ConfigError, match=f"{name}: got 0, expected 1 to "):
            DataSpec(**{"image_size": 8, "channels": 1, name: 0})


def test_grid_places_images_row_by_row(tmp_path):
    images = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1)
    sheet = grid(images, columns=3, gap=1)
    assert sheet.shape == (5, 7, 1)
    assert sheet[1::2, 1::2, 0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (sheet[0::2] == 255).all()
    save_picture(enlarge(sheet, 2), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == (14, 10) and picture.mode == "L"
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    assert grid(images, columns=3).shape == (8, 11, 1), "two pixels between them, and around them"


@pytest.mark.parametrize(("ending", "most"), [(".png", 0), (".webp", 0), (".jpg", 5), (".jpeg", 5)])
def test_pictures_are_written_as_near_to_their_pixels_as_the_format_can(tmp_path, ending, most):
    """JPEG of noise is off by 3.2 levels in the mean; by 6.2 with the quality 90, and by 39 where colours have half the resolution."""
    picture = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    save_picture(picture, tmp_path / f"a{ending}")
    with Image.open(tmp_path / f"a{ending}") as read:
        assert np.abs(np.asarray(read.convert("RGB"), int) - picture).mean() <= most


@pytest.mark.parametrize("count", [1, 2, 7])
def test_grid_is_about_square(count):
    height, width, _ = grid(np.zeros((count, 4, 4, 3), dtype=np.uint8)).shape
    assert height <= width <= 2 * height + 4
