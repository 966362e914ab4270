"""Images looked up by gathering pixels, against F.grid_sample; enlarging by repeating, against F.interpolate."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from triptych.nn.lookup import gathered, looked_up
from triptych.nn.resample import enlarged, repeated, resized
from triptych.nn.warp import _gathered, _Lookup


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("border", "align_corners"), [("border", True), ("border", False), ("reflection", True), ("reflection", False)])
@pytest.mark.parametrize("size", [(5, 7), (8, 3), (2, 2), (1, 1)])
def test_gathering_is_grid_sample(border, align_corners, size):
    images = numbers(3, 2, *size).requires_grad_()
    grid = (1.7 * numbers(3, 6, 4, 2, seed=1)).requires_grad_()
    with torch.no_grad():
        grid[:, :2] = torch.tensor([-1.0, 1.0], dtype=torch.float64)  # corners, where a still flow looks
    weights = numbers(3, 2, 6, 4, seed=2)
    results = []
    for y in (
        gathered(images, grid, border=border, align_corners=align_corners),
        F.grid_sample(images, grid, padding_mode=border, align_corners=align_corners),
    ):
        results.append((y.detach(), *torch.autograd.grad((y * weights).sum(), (images, grid))))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_the_way_is_chosen_by_device_and_order(monkeypatch):
    """On a CPU, whose sums have a fixed order anyway, the library's own operation is used."""
    monkeypatch.setattr("triptych.nn.lookup.gathered", lambda *_, **__: pytest.fail("not on a CPU"))
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    images, grid = numbers(1, 1, 3, 3).requires_grad_(), numbers(1, 2, 2, 2)
    found = looked_up(images, grid, border="border", align_corners=True)
    assert torch.equal(found, F.grid_sample(images, grid, padding_mode="border", align_corners=True))


def test_where_an_order_is_wanted_it_has_derivatives_of_any_order(monkeypatch):
    """Which the library's own operation has not."""
    monkeypatch.setattr("triptych.nn.lookup.in_order", lambda images: True)
    images, grid = numbers(1, 2, 4, 3).requires_grad_(), numbers(1, 2, 2, 2, seed=1).requires_grad_()
    found = looked_up(images, grid, border="reflection", align_corners=False)
    torch.testing.assert_close(found, F.grid_sample(images, grid, padding_mode="reflection", align_corners=False))
    torch.autograd.grad(torch.autograd.grad(found.square().sum(), grid, create_graph=True)[0].sum(), images)


def test_in_order_has_the_derivatives_of_a_lookup():
    images, grid = numbers(2, 3, 6, 5).requires_grad_(), 1.5 * numbers(2, 4, 4, 2, seed=1)
    weights = numbers(2, 3, 4, 4, seed=2).requires_grad_()
    results = []
    for lookup in (_gathered, _Lookup.apply):
        y = lookup(images, grid)
        (first,) = torch.autograd.grad((y * weights).sum(), images, create_graph=True)
        results.append((y.detach(), first.detach(), *torch.autograd.grad(first.square().sum(), weights)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_repeating_is_enlarging(layout):
    x = numbers(2, 3, 4, 5).to(memory_format=layout).requires_grad_()
    weights = numbers(2, 3, 8, 10, seed=1)
    results = [(y.detach(), *torch.autograd.grad((y * weights).sum(), x)) for y in (repeated(x), enlarged(x))]
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert repeated(x).is_contiguous(memory_format=torch.channels_last)


def test_resizing_goes_by_the_area_of_pixels():
    """The middle of a large pixel lies a quarter of a small one beside the middle of that."""
    line = torch.tensor([0.0, 4.0, 8.0]).view(1, 1, 1, 3)
    assert resized(line, (1, 6), mode="bilinear").flatten().tolist() == [0, 1, 3, 5, 7, 8]
    assert resized(line, (2, 6), mode="nearest").flatten().tolist() == [0, 0, 4, 4, 8, 8] * 2
    assert resized(line, (1, 3), mode="bilinear") is line
    with torch.autocast("cpu", torch.bfloat16):
        assert resized(line.bfloat16(), (1, 6), mode="bilinear").dtype == torch.bfloat16
