"""What adaptive augmentation does to pixels, against formulas in float64 that share no code with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from triptych.gans.ada_operators import SYM2, band_filters, cut_out, filtered, recoloured


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


def test_taps_are_orthogonal_to_themselves_two_further() -> None:
    lags = np.correlate(SYM2, SYM2, mode="full")[len(SYM2) - 1 :: 2]
    np.testing.assert_allclose(lags, np.eye(len(lags))[0], rtol=0, atol=2e-12)


def low(omega: np.ndarray) -> np.ndarray:
    """|H|^2 / 2 of sym2 at a frequency: (-1, 0, 9, 16, 9, 0, -1) / 32."""
    return 0.5 + (9 * np.cos(omega) - np.cos(3 * omega)) / 16


def responses(omega: np.ndarray) -> np.ndarray:
    """Of the four bands, lowest first: each high share is what its low share lacks."""
    first, second, third = low(omega), low(2 * omega), low(4 * omega)
    return np.stack((first * second * third, first * second * (1 - third), first * (1 - second), 1 - first))


def test_bands_share_out_every_frequency() -> None:
    omega = np.linspace(0, np.pi, 65)
    filters = band_filters()
    found = filters @ np.cos(np.outer(np.arange(filters.shape[1]) - filters.shape[1] // 2, omega))
    np.testing.assert_allclose(found, responses(omega), atol=1e-11)
    octaves = np.searchsorted(np.pi * np.array([1 / 8, 1 / 4, 1 / 2]), omega, side="right")
    edges = np.isin(omega, np.pi * np.array([1 / 8, 1 / 4, 1 / 2]))
    np.testing.assert_array_equal(found.argmax(0)[~edges], octaves[~edges])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_filter_multiplies_each_cosine_by_its_gains(dtype: torch.dtype) -> None:
    """Cosines about the middles of the border pixels are what a symmetric filter at a mirror leaves alone but for a factor."""
    height, width = 9, 6  # below the filter's length of 43
    gains = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.3, 2.0, 0.7, 1.5]], dtype=dtype)
    for k, m in ((0, 0), (1, 2), (5, 3), (8, 5)):
        omega = np.pi * np.array([k / (height - 1), m / (width - 1)])
        wave = np.outer(np.cos(omega[0] * np.arange(height)), np.cos(omega[1] * np.arange(width)))
        found = filtered(torch.tensor(np.stack((wave, wave)))[:, None].to(dtype), gains)
        factors = (gains.double().numpy() @ responses(omega)).prod(1)
        np.testing.assert_allclose(found[:, 0].numpy(), factors[:, None, None] * wave, atol=1e-11 if dtype == torch.float64 else 1e-5)


def test_grey_images_are_coloured_images_of_three_equal_channels() -> None:
    x = images(2, 1, 3, 4)
    matrix = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    colour = recoloured(x.expand(-1, 3, -1, -1), matrix)
    torch.testing.assert_close(recoloured(x, matrix), colour.mean(1, keepdim=True))
    expected = torch.einsum("bij,bjhw->bihw", matrix[:, :, :3], x.expand(-1, 3, -1, -1)) + matrix[:, :, 3, None, None]
    torch.testing.assert_close(colour, expected)


@pytest.mark.parametrize("size", [(8, 8), (6, 9), (5, 7)])
def test_cutout_is_the_rectangle_that_the_paper_rounds(size: tuple[int, int]) -> None:
    height, width = size
    middle = torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = cut_out(torch.ones(40, 1, *size, dtype=torch.float64), middle)[:, 0]
    for hidden, (across, down) in zip(found == 0, middle.tolist(), strict=True):
        expected = torch.zeros(size, dtype=torch.bool)
        (left, right), (top, bottom) = (
            (max(0, round((at - 1 / 4) * side)), max(0, round((at + 1 / 4) * side))) for at, side in ((across, width), (down, height))
        )
        expected[top:bottom, left:right] = True
        assert torch.equal(hidden, expected)
