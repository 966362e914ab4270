"""Batches, shares and pictures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from triptych.core.batch import RawBatch, share
from triptych.core.images import enlarge, grid, save_png, to_uint8


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


def test_batches_are_sliced_whole():
    batch = RawBatch(torch.zeros(4, 2, 2, 1, dtype=torch.uint8), torch.arange(4), torch.arange(10, 14)).to("cpu")
    part = batch[1:3]
    assert len(part) == 2 and part.labels.tolist() == [1, 2] and part.index.tolist() == [11, 12]


def test_grid_places_images_row_by_row(tmp_path):
    images = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1)
    sheet = grid(images, columns=3, gap=1)
    assert sheet.shape == (5, 7, 1)
    assert sheet[1::2, 1::2, 0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (sheet[0::2] == 255).all()
    save_png(enlarge(sheet, 2), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == (14, 10) and picture.mode == "L"
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_grid_is_about_square(count):
    height, width, _ = grid(np.zeros((count, 4, 4, 3), dtype=np.uint8)).shape
    assert height <= width <= 2 * height + 4
