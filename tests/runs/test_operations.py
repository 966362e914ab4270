"""Operations are those of the networks as they are defined, however a CPU computes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.gans.norms import Norm, SpatialNorm, SpatialNormLayer
from triptych.gans.weight_norms import Conv2d
from triptych.nn import convolution as convolutions
from triptych.nn import few_channels, one_hot, weight_gradient, winograd, winograd_rows
from triptych.nn.convolution import FastConv2d, convolution, transposed_convolution
from triptych.nn.cpu import as_defined
from triptych.nn.enlarging import convolved_enlarged, folds
from triptych.nn.one_hot import OneHot, note
from triptych.runs.operations import Operations


def counted(compute: Callable[[], Tensor]) -> int:
    """Operations of it and of its gradients."""
    with Operations() as both:
        compute().sum().backward()
    return both.count


def learned(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


@pytest.mark.parametrize(
    ("vectors", "way", "layer", "shape"),
    [
        ("AVX2", "by_tiles", FastConv2d(128, 128, 3, padding=1), (2, 128, 32, 32)),
        ("AVX512", "by_rows", FastConv2d(128, 128, 3, padding=1), (8, 128, 32, 32)),
        ("AVX2", "by_products", FastConv2d(64, 64, 1), (2, 64, 8, 8)),
        ("AVX2", "pixels_together", FastConv2d(8, 3, 5, padding=2), (2, 8, 64, 64)),
    ],
    ids=["tiles", "rows", "products", "pixels together"],
)
def test_convolutions_count_the_same_on_every_cpu(
    vectors: str, way: str, layer: FastConv2d, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (few_channels, weight_gradient, winograd, winograd_rows):
        monkeypatch.setattr(module, "vectors", lambda: vectors)
    monkeypatch.setattr(winograd, "multiplies_fast", lambda: vectors == "AVX512")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    x = learned(*shape).contiguous(memory_format=torch.channels_last)
    stride = {} if way == "by_products" else {"stride": 1}

    def taken() -> int:  # of several pixels together the number, of the others whether
        return getattr(convolutions, way)(x, layer.weight, padding=layer.padding[0], **stride) - (way == "pixels_together")

    assert taken() > 0
    assert counted(lambda: layer(x)) == 3 * 2 * x.numel() * layer.weight.numel() // layer.in_channels
    with as_defined():
        assert taken() == 0
    assert taken() > 0, "afterwards again"


def test_a_convolution_of_a_doubled_map_counts_that_of_the_large_one() -> None:
    x, weight = learned(2, 4, 8, 8), learned(5, 4, 3, 3)
    assert folds(x, 1)
    assert counted(lambda: convolved_enlarged(x, weight, None)) == 3 * 2 * (2 * 16 * 16) * (4 * 5) * 9


def test_label_maps_count_with_all_their_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are convolved on a GPU, in a network's layer and in the hidden one of a norm."""
    monkeypatch.setattr(one_hot, "_LEAST_PRODUCTS", 0)
    classes = torch.arange(128).view(2, 8, 8) % 7
    label = F.one_hot(classes, 7).permute(0, 3, 1, 2).float()
    note(label, OneHot(classes[:, None].int(), 7))
    layer, norm = Conv2d(7, 5, 3, padding=1), SpatialNormLayer(SpatialNorm(Norm("none"), (7,), num_filters=5), 4)
    first, others = 2 * (2 * 8 * 8) * (7 * 5) * 9, 2 * (2 * 8 * 8) * (5 * 8) * 9
    assert counted(lambda: layer(label)) == 2 * first, "the map has no gradient"
    assert counted(lambda: norm(torch.randn(2, 4, 8, 8), label)) == 2 * first + 3 * others


@pytest.mark.parametrize("convolve", [convolution, transposed_convolution, F.conv2d, F.conv_transpose2d])
def test_channels_of_other_groups_do_not_count(convolve: Callable[..., Tensor]) -> None:
    """Neither in the gradient of the weight nor in those of gradients: four groups of two channels."""
    x, weight = learned(2, 8, 6, 6), learned(8, 2, 3, 3)
    own = 2 * (2 * 6 * 6) * (8 * 2) * 9
    assert counted(lambda: convolve(x, weight, padding=1, groups=4)) == 3 * own
    with Operations() as penalty:
        slope = torch.autograd.grad(convolve(x, weight, padding=1, groups=4).square().sum(), x, create_graph=True)[0]
    assert penalty.count == 2 * own
    with Operations() as second:
        slope.square().sum().backward()
    assert second.count == 4 * own, "by the slope's two factors, and by those of the convolution"
