"""Convolutions to few channels, several pixels together, against PyTorch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from triptych.nn import few_channels
from triptych.nn.convolution import fast_convolution
from triptych.nn.few_channels import convolved_together, pixels_together

IMAGES, WEIGHT = (1, 8, 70, 134), (3, 8, 7, 7)


def maps(shape: tuple[int, ...], *, seed: int = 0) -> torch.Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(("padding", "kernel"), [(0, 7), (3, 7), (2, 5), (1, 3)])
@pytest.mark.parametrize("biased", [True, False])
def test_values_and_derivatives_are_those_of_pytorch(count: int, padding: int, kernel: int, biased: bool) -> None:
    width = 8 + kernel - 1 - 2 * padding
    given = [maps((2, 5, 11, width)), maps((3, 5, kernel, kernel), seed=1), maps((3, 1, 1, 1), seed=2).flatten()]
    x, weight, bias = (each.requires_grad_() for each in given)
    variables = [x, weight, bias] if biased else [x, weight]
    ours = convolved_together(x, weight, bias if biased else None, padding=padding, count=count)
    theirs = F.conv2d(x, weight, bias if biased else None, padding=padding)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    firsts = [torch.autograd.grad(y.pow(3).sum(), variables, create_graph=True) for y in (ours, theirs)]
    torch.testing.assert_close(*firsts, rtol=1e-11, atol=1e-11)
    seconds = [torch.autograd.grad(first[0].square().sum(), variables, allow_unused=True) for first in firsts]
    for found, expected in zip(*seconds, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize(("vectors", "count"), [("AVX512", 4), ("AVX2", 2), ("DEFAULT", 1)])
def test_as_many_pixels_as_vectors_have_room_for(vectors: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_channels, "vectors", lambda: vectors)
    x, weight = maps(IMAGES), maps(WEIGHT)
    assert pixels_together(x, weight, stride=1, padding=0) == count  # 64 x 128 pixels
    padded = [pixels_together(maps((1, 8, 64, width)), weight, stride=1, padding=3) for width in (128, 131)]
    assert padded == [count, 1], "of as many pixels as there were, which are divided or not"

    def alone(x: torch.Tensor, weight: torch.Tensor, stride: int = 1) -> bool:
        return pixels_together(x, weight, stride=stride, padding=0) == 1

    assert alone(x, maps((5, 8, 7, 7))) and alone(x, maps((3, 8, 3, 3))) and alone(x, weight, stride=2)
    assert alone(x[:, :, :-1].contiguous(memory_format=torch.channels_last), weight), "too few pixels"
    assert alone(maps((1, 8, 71, 135)), weight), "129 pixels are not divided"
    assert alone(x.contiguous(), weight), "whose pixels do not lie together"


def test_layers_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_channels, "vectors", lambda: "AVX512")
    x, weight = maps(IMAGES), maps(WEIGHT)
    shapes, library = [], F.conv2d
    monkeypatch.setattr(F, "conv2d", lambda x, weight, *given, **named: shapes.append(weight.shape) or library(x, weight, *given, **named))
    torch.testing.assert_close(fast_convolution(x, weight), library(x, weight), rtol=1e-12, atol=1e-12)
    assert shapes == [(12, 8, 7, 10)]


def test_under_autocast_it_is_in_its_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_channels, "vectors", lambda: "AVX512")
    x, weight = maps(IMAGES).float().contiguous(memory_format=torch.channels_last), maps(WEIGHT).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = fast_convolution(x, weight)
    exact = F.conv2d(x, weight)
    assert found.dtype == torch.bfloat16
    assert (found.float() - exact).abs().max() <= 0.02 * exact.abs().max()
