"""Convolutions of maps of ones by looking them up, against PyTorch's of the dense maps."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.nn import one_hot
from triptych.nn.one_hot import OneHot, convolved, looked_up, note

CHANNELS, EDGE = 6, 5


def drawn(height: int, width: int, *, ones: int = 2, batch: int = 3, seed: int = 0) -> OneHot:
    """Classes 0 to 3, of some pixels none, and beside them edges, where `ones` is 2. Channel 4 is never 1."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(-1, 4, (batch, 1, height, width), generator=generator)
    edges = torch.where(torch.rand(classes.shape, generator=generator) < 0.4, EDGE, -1)
    return OneHot(torch.cat((classes, edges), dim=1)[:, :ones].int(), CHANNELS)


def dense(x: OneHot, dtype: torch.dtype = torch.float64) -> Tensor:
    """The map itself."""
    return torch.stack([(x.index == channel).any(1) for channel in range(x.channels)], dim=1).to(dtype)


def weights(kernel: int, *, outputs: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(outputs, CHANNELS, kernel, kernel, generator=generator, dtype=torch.float64)
    return weight.requires_grad_(), torch.randn(outputs, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "height", "width"),
    [
        (1, 1, 0, 4, 4),
        (3, 1, 1, 7, 9),
        (5, 1, 2, 8, 8),
        (5, 1, 2, 2, 2),
        (3, 1, 0, 6, 5),
        (4, 2, 1, 8, 10),
        (4, 2, 1, 9, 11),
        (4, 2, 2, 3, 3),
        (3, 2, 1, 5, 6),
        (7, 3, 2, 11, 13),
    ],
)
@pytest.mark.parametrize("ones", [1, 2])
def test_values_and_derivatives_are_those_of_the_dense_map(
    kernel: int, stride: int, padding: int, height: int, width: int, ones: int
) -> None:
    x, (weight, bias) = drawn(height, width, ones=ones), weights(kernel)
    geometry = {"stride": stride, "padding": padding}
    ours, theirs = convolved(x, weight, bias, **geometry), F.conv2d(dense(x, torch.float64), weight, bias, **geometry)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    firsts = [torch.autograd.grad(y.pow(3).sum(), (weight, bias), create_graph=True) for y in (ours, theirs)]
    torch.testing.assert_close(*firsts, rtol=1e-11, atol=1e-11)
    seconds = [torch.autograd.grad(first[0].square().sum(), (weight, bias)) for first in firsts]
    torch.testing.assert_close(*seconds, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("batch", [0, 2])
def test_a_map_without_ones(batch: int) -> None:
    weight, bias = weights(3)
    x = OneHot(torch.full((batch, 2, 5, 5), -1, dtype=torch.int32), CHANNELS)
    y = convolved(x, weight, bias, padding=1)
    assert torch.equal(y, bias[:, None, None].expand(y.shape))
    (gradient,) = torch.autograd.grad(y.sum(), weight)
    assert not gradient.any()


@pytest.mark.parametrize("size", [(4, 6), (8, 12), (3, 5), (16, 16)])
def test_another_size_has_the_nearest_pixels(size: tuple[int, int]) -> None:
    x = drawn(8, 12)
    assert torch.equal(dense(x.resized(size), torch.float32), F.interpolate(dense(x, torch.float32), size=size, mode="nearest"))
    assert x.resized(size) is x.resized(torch.Size(size)), "found once"
    assert (x.resized(size) is x) == (size == (8, 12))


def test_places_are_found_once() -> None:
    x, (weight, _) = drawn(8, 8), weights(3)
    for _ in range(2):
        torch.autograd.grad(convolved(x, weight, padding=1).square().sum(), weight)
    assert len(x._taps) == len(x._places) == 1
    torch.autograd.grad(convolved(x, weight, padding=1, stride=2).sum(), weight)
    assert len(x._taps) == len(x._places) == 2


def test_half_precision() -> None:
    """The sums are of float32 weights, and rounded once."""
    x, (weight, bias) = drawn(8, 8), weights(5)
    weight, bias = weight.detach().float().requires_grad_(), bias.detach().float()
    exact = convolved(x, weight, bias, padding=2)
    with torch.autocast("cpu", torch.bfloat16):
        half = convolved(x, weight, bias, padding=2)
    assert exact.dtype == torch.float32 and half.dtype == torch.bfloat16
    assert torch.equal(half, exact.bfloat16())
    (found,), (expected,) = torch.autograd.grad(half.sum(), weight), torch.autograd.grad(exact.sum(), weight)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)


def test_what_is_known_of_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn(4, 4)
    label = dense(x, torch.float32)
    assert looked_up(label, outputs=10_000) is None
    note(label, x)
    fewest = one_hot._LEAST_PRODUCTS // CHANNELS
    assert looked_up(label, outputs=fewest + 1) is x and looked_up(label, outputs=fewest) is None
    assert looked_up(label.clone(), outputs=10_000) is None and looked_up(label + 0, outputs=10_000) is None
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert looked_up(label, outputs=10_000) is None, "it takes the dense map"
    alive = weakref.ref(x)
    del x, label
    gc.collect()
    assert alive() is None
