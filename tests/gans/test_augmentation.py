"""Differentiable augmentation: what each change does, its range, its gradient, and that a sample's changes are its own."""

from __future__ import annotations

import pytest
import torch

from triptych.core.rng import Rng
from triptych.gans.augmentation import augmented, cut_out, scaled, translated, with_brightness, with_contrast, with_saturation

POLICIES = ("color", "translation", "translation_scale", "cutout")


def rng(count: int, *, first: int = 0, stream: str = "augment") -> Rng:
    return Rng(0, (stream,), torch.arange(first, first + count))


def images(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype) * 2 - 1


def ramp(size: int) -> torch.Tensor:
    """(1, 2, size, size): the middle of each pixel, across and down, from -1 to 1 between the borders."""
    middles = (torch.arange(size) + 0.5) * 2 / size - 1
    return torch.stack((middles.expand(size, -1), middles[:, None].expand(-1, size)))[None]


def test_neutral_draws_change_nothing() -> None:
    x, zero, one = images(2, 3, 8, 6), torch.zeros(2), torch.ones(2)
    still = torch.zeros(2, dtype=torch.int64)
    torch.testing.assert_close(with_brightness(x, zero), x)
    torch.testing.assert_close(with_saturation(x, one), x)
    torch.testing.assert_close(with_contrast(x, one), x)
    assert torch.equal(translated(x, down=still, right=still, reach=(1, 1)), x)
    torch.testing.assert_close(scaled(x, scale=one, shift=torch.zeros(2, 2)), x)
    assert torch.equal(cut_out(x, row=still, column=still, size=(0, 0)), x)
    assert torch.equal(augmented(x, rng(2), policy=()), x)


def test_colours_by_hand() -> None:
    x = torch.tensor([[0.2, 0.6], [-0.4, 0.0]])[None, :, :, None].expand(2, -1, -1, -1)  # 2 channels of 2 pixels
    amount = torch.tensor([0.5, -0.25])
    torch.testing.assert_close(with_brightness(x, amount)[:, 0, 0, 0], torch.tensor([0.7, -0.05]))
    grey = with_saturation(x, torch.tensor([0.0, 2.0]))
    torch.testing.assert_close(grey[0, :, :, 0], torch.tensor([[-0.1, 0.3], [-0.1, 0.3]]))
    torch.testing.assert_close(grey[1, :, :, 0], torch.tensor([[0.5, 0.9], [-0.7, -0.3]]))
    flat = with_contrast(x, torch.tensor([0.5, 1.5]))  # around 0.1
    torch.testing.assert_close(flat[0, :, :, 0], torch.tensor([[0.15, 0.35], [-0.15, 0.05]]))
    torch.testing.assert_close(flat[1, :, :, 0], torch.tensor([[0.25, 0.85], [-0.65, -0.05]]))


def test_translation_moves_whole_pixels_and_fills_with_zeros() -> None:
    x = images(2, 3, 8, 8)
    moved = translated(x, down=torch.tensor([1, -1]), right=torch.tensor([0, 1]), reach=(1, 1))
    assert torch.equal(moved[0, :, 1:], x[0, :, :-1])
    assert moved[0, :, 0].abs().max() == 0
    assert torch.equal(moved[1, :, :-1, 1:], x[1, :, 1:, :-1])
    assert moved[1, :, -1].abs().max() == moved[1, :, :, 0].abs().max() == 0


def test_scaled_shows_the_image_at_scale_p_plus_shift() -> None:
    x = ramp(32)
    inside = scaled(x, scale=torch.tensor([0.75]), shift=torch.tensor([[0.125, -0.0625]]))
    torch.testing.assert_close(inside[:, 0], 0.75 * x[:, 0] + 0.125)
    torch.testing.assert_close(inside[:, 1], 0.75 * x[:, 1] - 0.0625)
    beyond = scaled(x, scale=torch.tensor([1.0]), shift=torch.tensor([[0.125, 0.0]]))  # two pixels
    torch.testing.assert_close(beyond[0, 0, :, -2:], x[0, 0, :, [-1, -2]])


@pytest.mark.parametrize(("size", "row", "rows"), [(4, 4, slice(2, 6)), (4, 0, slice(0, 2)), (4, 8, slice(6, 8)), (3, 0, slice(0, 2))])
def test_cutout_is_a_square_as_far_as_it_is_inside(size, row, rows) -> None:
    x = torch.ones(1, 1, 8, 8)
    cut = cut_out(x, row=torch.tensor([row]), column=torch.tensor([4]), size=(size, size))
    expected = torch.ones(8, 8)
    expected[rows, 4 - size // 2 : 4 - size // 2 + size] = 0
    assert torch.equal(cut[0, 0], expected)


def test_ranges_of_brightness_saturation_and_contrast() -> None:
    """Of an image with two colours: brightness moves its mean, contrast the grey part of its deviation, both with saturation the rest."""
    count = 4000
    x = torch.tensor([[0.3, 0.1], [-0.1, -0.3]])[None, :, :, None].expand(count, -1, -1, -1)  # channel 0.2, pixel 0.1 from the mean 0
    y = augmented(x, rng(count), policy=("color",))
    brightness = y.mean((1, 2, 3))
    contrast = (y.mean(1)[:, 0] - y.mean(1)[:, 1])[:, 0] / 0.2
    saturation = (y[:, 0] - y[:, 1]).mean((1, 2)) / 0.4 / contrast
    for drawn, low, high in ((brightness, -0.5, 0.5), (contrast, 0.5, 1.5), (saturation, 0.0, 2.0)):
        step = (high - low) / 100
        assert low - 1e-3 <= drawn.min() <= low + step
        assert high - step <= drawn.max() <= high + 1e-3
        assert drawn.mean().item() == pytest.approx((low + high) / 2, abs=2 * step)
    assert torch.corrcoef(torch.stack((brightness, contrast, saturation))).triu(1).abs().max() < 0.06


def test_range_of_translation() -> None:
    x = torch.zeros(2000, 1, 24, 16)
    x[:, :, 12, 8] = 1
    place = augmented(x, rng(2000), policy=("translation",)).flatten(1).argmax(1)
    assert sorted(set((place // 16).tolist())) == list(range(9, 16))  # 24 / 8 up and down
    assert sorted(set((place % 16).tolist())) == list(range(6, 11))
    counts = torch.bincount(place // 16)[9:]
    assert counts.min() > 0.8 * counts.float().mean()
    assert torch.corrcoef(torch.stack((place // 16, place % 16)).float())[0, 1].abs() < 0.06
    five = augmented(x[:, :, :, 3:14], rng(2000), policy=("translation",)).flatten(1).argmax(1) % 11
    assert sorted(set(five.tolist())) == [4, 5, 6]  # 11 / 8 is rounded to 1


def test_range_of_translation_and_scale() -> None:
    count, x = 2000, ramp(32)
    y = augmented(x.expand(count, -1, -1, -1), rng(count), policy=("translation_scale",))
    scale = (y[:, 0, 16, 20] - y[:, 0, 16, 12]) / 0.5
    across, down = (y[:, axis, 15:17, 15:17].mean((1, 2)) for axis in (0, 1))
    for drawn, low, high in ((scale, 0.875, 1.125), (across, -0.125, 0.125), (down, -0.125, 0.125)):
        assert low - 1e-3 <= drawn.min() <= low + 0.004
        assert high - 0.004 <= drawn.max() <= high + 1e-3
    assert torch.corrcoef(torch.stack((scale, across, down))).triu(1).abs().max() < 0.08


@pytest.mark.parametrize(("side", "cut"), [(8, 4), (7, 4), (10, 5)])
def test_cutout_hides_half_of_the_side(side, cut) -> None:
    hidden = augmented(torch.ones(500, 1, side, side), rng(500), policy=("cutout",))[:, 0] == 0
    rows, columns = hidden.any(2).sum(1), hidden.any(1).sum(1)
    assert torch.equal(hidden.sum((1, 2)), rows * columns)
    for count in (rows, columns):
        assert (int(count.min()), int(count.max())) == ((cut + cut % 2) // 2, cut)
    places = side + 1 - cut % 2
    assert len(hidden.any(2).unique(dim=0)) == len(hidden.any(1).unique(dim=0)) == places
    assert hidden.any(0).all()
    middle = torch.arange(side) * hidden.any(1) / columns[:, None]
    assert torch.corrcoef(torch.stack(((torch.arange(side) * hidden.any(2) / rows[:, None]).sum(1), middle.sum(1))))[0, 1].abs() < 0.15


@pytest.mark.parametrize("policy", POLICIES)
def test_gradient(policy) -> None:
    x = images(2, 2, 4, 5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: augmented(x, rng(2), policy=(policy,)), x)


def test_changes_are_those_of_the_sample_and_its_stream() -> None:
    x = images(6, 3, 16, 16)
    whole = augmented(x, rng(6), policy=POLICIES)
    parts = [augmented(x[:2], rng(2), policy=POLICIES), augmented(x[2:], rng(4, first=2), policy=POLICIES)]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-6)
    assert torch.equal(augmented(x, rng(6), policy=POLICIES), whole)
    assert not torch.allclose(augmented(x, rng(6, stream="other"), policy=POLICIES), whole)
    assert not torch.allclose(augmented(x[:1], rng(1, first=1), policy=POLICIES), whole[:1])


def test_changes_come_in_the_order_of_the_policy() -> None:
    x = images(1, 3, 8, 8)
    cut_first, cut_last = (augmented(x, rng(1), policy=policy) for policy in (("cutout", "color"), ("color", "cutout")))
    assert (cut_last == 0).sum() >= 3 * 4
    assert (cut_first == 0).sum() == 0


def test_half_precision_becomes_float32() -> None:
    y = augmented(images(2, 3, 8, 8).bfloat16(), rng(2), policy=POLICIES)
    assert y.dtype == torch.float32
    assert y.shape == (2, 3, 8, 8)
