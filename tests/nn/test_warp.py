"""Geometric changes of images, against formulas in float64 that share no code with them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from triptych.nn.warp import SYM6, changed, transformed

STILL = torch.eye(3, dtype=torch.float64)[None, :2]


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


def sources(count: int, *, seed: int = 1) -> torch.Tensor:
    """Any affine maps, which look far beyond the border too."""
    drawn = torch.randn(count, 2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return STILL + drawn * torch.tensor([0.7, 0.7, 3.0], dtype=torch.float64)


def by_definition(image: np.ndarray, source: np.ndarray) -> np.ndarray:
    """One channel (h, w): padded by its mirror images, zeros between the pixels, sym6, bilinear, sym6 reversed, every second pixel."""
    (height, width), pad = image.shape, 80
    taps = np.array(SYM6) / np.sum(SYM6)
    peak = int(np.abs(taps).argmax())
    padded = np.pad(image, pad, mode="reflect")
    fine = np.zeros([2 * side for side in padded.shape])
    fine[::2, ::2] = padded
    for axis in (0, 1):  # a convolution whose largest tap keeps a pixel where it is
        fine = np.apply_along_axis(lambda row: 2 * np.convolve(row, taps)[peak : peak + len(row)], axis, fine)
    found = np.zeros_like(image)
    for y in range(height):
        for x in range(width):
            for i, down in enumerate(taps):
                for j, right in enumerate(taps):
                    place = np.array([2 * x + j - peak - (width - 1), 2 * y + i - peak - (height - 1)]) / 2
                    u, v = source @ [*place, 1]
                    u, v = 2 * (u + (width - 1) / 2 + pad), 2 * (v + (height - 1) / 2 + pad)
                    a, b = math.floor(u), math.floor(v)
                    corners = fine[b : b + 2, a : a + 2]
                    found[y, x] += down * right * np.array([b + 1 - v, v - b]) @ corners @ np.array([a + 1 - u, u - a])
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_geometric_transform_is_that_of_the_paper(dtype: torch.dtype) -> None:
    x, source = images(3, 2, 5, 7), sources(3)
    found = transformed(x.to(dtype), source.to(dtype))
    expected = np.stack([[by_definition(channel, s) for channel in image] for image, s in zip(x.numpy(), source.numpy(), strict=True)])
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-11 if dtype == torch.float64 else 1e-5)


def test_where_nothing_moves_the_filters_cancel_and_whole_pixels_are_copied() -> None:
    x = images(2, 3, 6, 9)
    torch.testing.assert_close(transformed(x, STILL.expand(2, -1, -1)), x, rtol=0, atol=1e-11)
    moved = STILL.repeat(2, 1, 1)
    moved[:, 0, 2] = 2  # what is seen comes from the right
    beyond = torch.cat((x[..., 2:], x[..., -2:-1], x[..., -3:-2]), 3)
    torch.testing.assert_close(transformed(x, moved), beyond, rtol=0, atol=1e-11)
    assert torch.equal(transformed(x, moved, fine=False), beyond)


def test_a_smooth_image_is_turned_and_scaled_about_its_middle() -> None:
    """Cosines that their mirror images continue, at the places that the map names."""
    height, width = 24, 32

    def smooth(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cos(2 * math.pi * (x / (width - 1) + 0.5)) + torch.cos(math.pi * (y / (height - 1) + 0.5))

    y, x = torch.meshgrid(*(torch.arange(side, dtype=torch.float64) - (side - 1) / 2 for side in (height, width)), indexing="ij")
    angle, scale = 0.7, 1.2
    linear = scale * torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    source = torch.cat((linear, torch.tensor([[1.3], [-2.1]], dtype=torch.float64)), 1)
    expected = smooth(*(row[0] * x + row[1] * y + row[2] for row in source))
    for fine in (True, False):
        found = transformed(smooth(x, y)[None, None], source[None], fine=fine)[0, 0]
        torch.testing.assert_close(found, expected, rtol=0, atol=0.05)


def test_label_maps_keep_their_range_and_each_pixel_its_sum() -> None:
    x = torch.nn.functional.one_hot(images(2, 6, 5).argsort(2) % 3, 3).permute(0, 3, 1, 2).double()
    y = transformed(x, sources(2), fine=False)
    assert y.min() >= 0
    torch.testing.assert_close(y.sum(1), torch.ones(2, 6, 5, dtype=torch.float64))
    assert transformed(x, sources(2)).min() < -0.01, "sym6 would not keep it"


def test_taps_are_orthogonal_to_themselves_two_further() -> None:
    lags = np.correlate(SYM6, SYM6, mode="full")[len(SYM6) - 1 :: 2]
    np.testing.assert_allclose(lags, np.eye(len(lags))[0], rtol=0, atol=2e-12)


def test_only_the_images_meant_are_changed() -> None:
    x = images(4, 1, 2, 2)
    which, factor = torch.tensor([False, True, False, True]), torch.tensor([2.0, 3.0, 4.0, 5.0])
    y = changed(x, which, lambda some, numbers: some * factor[numbers][:, None, None, None])
    assert torch.equal(y, x * torch.tensor([1.0, 3.0, 1.0, 5.0])[:, None, None, None])
    assert changed(x, torch.zeros(4, dtype=torch.bool), lambda some, numbers: some * math.nan) is x
