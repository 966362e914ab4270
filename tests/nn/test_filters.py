"""Resampling by filters against sums over pixels that are written out, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from triptych.nn import filters

LONG = (0.5, -1.0, 2.0, 6.0, 5.0, 1.5, -0.5, 0.25)  # not symmetric, and so long that it goes along one axis after the other
TAPS = [filters.BINOMIAL, (1.0, 2.0, 4.0, 1.0), LONG, (1.0, 1.0)]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stuffed(x: np.ndarray) -> np.ndarray:
    """Zeros between the pixels."""
    large = np.zeros((*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3]))
    large[:, :, ::2, ::2] = x
    return large


def convolved(x: np.ndarray, taps: Sequence[float], *, start: int, count: int, axis: int) -> np.ndarray:
    """sum over m of taps[m] x[j - m] for the `count` places j from `start` on, with x = 0 outside."""
    x = np.moveaxis(x, axis, -1)
    out = np.zeros((*x.shape[:-1], count))
    for place in range(count):
        for tap, value in enumerate(taps):
            if 0 <= start + place - tap < x.shape[-1]:
                out[..., place] += value * x[..., start + place - tap]
    return np.moveaxis(out, -1, axis)


def filtered(x: np.ndarray, taps: Sequence[float], *, shift: int = 0) -> np.ndarray:
    """The normalised filter in both directions. Its middle is half a pixel before the pixel; a `shift` of 1: behind it."""
    weights = np.array(taps) / sum(taps)
    for axis in (2, 3):
        x = convolved(x, weights, start=len(taps) // 2 - 1 + shift, count=x.shape[axis], axis=axis)
    return x


@pytest.mark.parametrize("taps", TAPS, ids=len)
def test_doubling(taps) -> None:
    x = numbers(2, 3, 4, 5)
    expected = 4 * filtered(stuffed(x.numpy()), taps)
    np.testing.assert_allclose(filters.upsampled(x, taps).numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(filters.upsampled(x.float(), taps).numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(filters.upsampled(x, filters.kernel_of(taps, dtype=torch.float64)).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("taps", TAPS, ids=len)
def test_halving(taps) -> None:
    x = numbers(2, 3, 6, 8)
    expected = filtered(x.numpy(), taps, shift=1)[:, :, ::2, ::2]
    np.testing.assert_allclose(filters.downsampled(x, taps).numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(filters.downsampled(x.float(), taps).numpy(), expected, atol=1e-5)


def test_an_image_of_one_colour_keeps_it() -> None:
    x = torch.full((1, 1, 8, 8), 3.0)
    torch.testing.assert_close(filters.upsampled(x)[:, :, 2:-2, 2:-2], torch.full((1, 1, 12, 12), 3.0))
    torch.testing.assert_close(filters.downsampled(x)[:, :, 1:-1, 1:-1], torch.full((1, 1, 2, 2), 3.0))


def test_the_published_filter_is_symmetric_about_the_pixels_middle() -> None:
    line = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64).view(1, 1, 1, 5)
    expected = torch.tensor([0, 0, 0, 0.25, 0.75, 0.75, 0.25, 0, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(filters.upsampled(line)[0, 0].sum(0), 1.5 * expected)  # 0.75 of it in each of the two rows
    x = numbers(1, 2, 8, 8)
    torch.testing.assert_close(filters.downsampled(x.flip(2, 3)), filters.downsampled(x).flip(2, 3))


@pytest.mark.parametrize("side", [1, 3])
@pytest.mark.parametrize("taps", [filters.BINOMIAL, LONG], ids=len)
def test_convolution_of_a_doubled_image(side, taps) -> None:
    x, weight = numbers(2, 3, 4, 4), numbers(5, 3, side, side, seed=1)
    large = F.conv2d(torch.from_numpy(np.pad(stuffed(x.numpy()), ((0, 0), (0, 0), (8, 8), (8, 8)))), weight.flip(2, 3), padding=side // 2)
    expected = 4 * filtered(large.numpy(), taps)[:, :, 8:-8, 8:-8]
    np.testing.assert_allclose(filters.upsampled_convolution(x, weight, taps).numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(filters.upsampled_convolution(x.float(), weight.float(), taps).numpy(), expected, atol=1e-5)


def test_groups_of_the_convolution_of_a_doubled_image() -> None:
    x, weights = numbers(2, 3, 4, 4), [numbers(5, 3, 3, 3, seed=seed) for seed in (1, 2)]
    apart = torch.cat([filters.upsampled_convolution(image[None], weight) for image, weight in zip(x, weights, strict=True)])
    together = filters.upsampled_convolution(x.reshape(1, 6, 4, 4), torch.cat(weights), groups=2)
    torch.testing.assert_close(together.view_as(apart), apart)


@pytest.mark.parametrize("side", [1, 3])
@pytest.mark.parametrize("taps", [filters.BINOMIAL, LONG], ids=len)
def test_convolution_of_stride_two(side, taps) -> None:
    x, weight = numbers(2, 3, 8, 8), numbers(5, 3, side, side, seed=1)
    # Every pixel of the filtered image (a halved one has every second), far beyond the border; then the convolution at every second.
    far = F.pad(x, (8, 8, 8, 8))
    smooth = torch.zeros_like(far)
    for row in range(2):
        for column in range(2):
            smooth[:, :, row::2, column::2] = filters.downsampled(far.roll((-row, -column), (2, 3)), taps)
    expected = F.conv2d(smooth, weight, padding=side // 2)[:, :, 8:-8:2, 8:-8:2]
    torch.testing.assert_close(filters.downsampled_convolution(x, weight, taps), expected)


@pytest.mark.parametrize("side", [1, 3])
@pytest.mark.parametrize("taps", [filters.BINOMIAL, LONG], ids=len)
def test_a_convolution_that_is_halved_sees_beyond_the_border(side, taps) -> None:
    x, weight = numbers(2, 3, 6, 8), numbers(5, 3, side, side, seed=1)
    far = F.conv2d(F.pad(x, (8, 8, 8, 8)), weight, padding=side // 2)
    torch.testing.assert_close(filters.convolved_downsampled(x, weight, taps), filters.downsampled(far, taps)[:, :, 4:-4, 4:-4])


FORMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "upsampled": lambda x, weight: filters.upsampled(x),
    "downsampled": lambda x, weight: filters.downsampled(x),
    "long": lambda x, weight: filters.downsampled(filters.upsampled(x, LONG), LONG),
    "upsampled_convolution": filters.upsampled_convolution,
    "downsampled_convolution": filters.downsampled_convolution,
    "lopsided convolution": lambda x, weight: filters.upsampled_convolution(x, weight, (1.0, 2.0, 4.0, 1.0)),
    "wide convolution": lambda x, weight: filters.downsampled_convolution(x, F.pad(weight, (2, 2, 2, 2))),
}


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_both_orders(form) -> None:
    x, weight = numbers(1, 2, 4, 4).requires_grad_(), numbers(2, 2, 3, 3, seed=1).requires_grad_()
    inputs = (x, weight) if "convolution" in form else (x,)

    def squared(x: torch.Tensor, weight: torch.Tensor = weight) -> torch.Tensor:
        return FORMS[form](x, weight).square()  # so that the second derivative is not 0

    assert torch.autograd.gradcheck(squared, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(squared, inputs, fast_mode=True)


@pytest.mark.parametrize("form", ["upsampled", "downsampled", "upsampled_convolution", "downsampled_convolution"])
def test_half_precision_and_its_gradients_within_rounding(form) -> None:
    x, weight = numbers(2, 4, 8, 8).bfloat16().requires_grad_(), numbers(4, 4, 3, 3, seed=1).bfloat16().requires_grad_()
    inputs = (x, weight) if "convolution" in form else (x,)
    wide = [part.detach().double().requires_grad_() for part in (x, weight)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = FORMS[form](x, weight)
    assert y.dtype == torch.bfloat16
    expected = FORMS[form](*wide)
    torch.testing.assert_close(y.double(), expected, rtol=0.05, atol=0.05 * expected.std().item())
    gradients = torch.autograd.grad(y.float().square().sum(), inputs)
    for ours, exact in zip(gradients, torch.autograd.grad(expected.square().sum(), wide[: len(inputs)]), strict=True):
        assert ours.dtype == torch.bfloat16
        torch.testing.assert_close(ours.double(), exact, rtol=0.05, atol=0.05 * exact.std().item())


def test_a_filter_keeps_float32_within_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert filters.downsampled(filters.upsampled(numbers(1, 1, 4, 4).float())).dtype == torch.float32


def test_a_filter_of_an_odd_length_is_refused() -> None:
    with pytest.raises(ValueError, match="3 taps, expected an even number"):
        filters.upsampled(numbers(1, 1, 4, 4), (1.0, 2.0, 1.0))
