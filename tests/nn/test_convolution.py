"""Convolutions with second derivatives of their own against PyTorch's and against finite differences, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from triptych.nn.convolution import Conv2d, convolution, transposed_convolution

SHAPES = {
    "3x3": {"padding": 1},
    "groups": {"padding": 1, "groups": 2},
    "stride": {"stride": 2, "padding": 1},
    "channels": {"groups": 4},
}


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def inputs(kind: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    groups = SHAPES[kind].get("groups", 1)
    return numbers(2, 4, 5, 5), numbers(4, 4 // groups, 3, 3, seed=1), numbers(4, seed=2)


@pytest.mark.parametrize("kind", SHAPES)
def test_values_and_derivatives_are_those_of_pytorch(kind) -> None:
    x, weight, bias = inputs(kind)
    ours, theirs = convolution(x, weight, bias, **SHAPES[kind]), F.conv2d(x, weight, bias, **SHAPES[kind])
    torch.testing.assert_close(ours, theirs)
    wanted = torch.autograd.grad(theirs.square().sum(), (x, weight, bias))
    torch.testing.assert_close(torch.autograd.grad(ours.square().sum(), (x, weight, bias)), wanted)
    ours, theirs = transposed_convolution(x, weight, **SHAPES[kind]), F.conv_transpose2d(x, weight, **SHAPES[kind])
    torch.testing.assert_close(ours, theirs)
    wanted = torch.autograd.grad(theirs.square().sum(), (x, weight))
    torch.testing.assert_close(torch.autograd.grad(ours.square().sum(), (x, weight)), wanted)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("transposed", [False, True])
def test_second_and_third_derivatives(kind, transposed) -> None:
    x, weight, bias = inputs(kind)

    def gradients(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if transposed:
            y = transposed_convolution(x, weight, **SHAPES[kind]) + bias[:, None, None]
        else:
            y = convolution(x, weight, bias, **SHAPES[kind])
        return torch.autograd.grad(y.pow(3).sum(), (x, weight, bias), create_graph=True)

    assert torch.autograd.gradcheck(gradients, (x, weight, bias), fast_mode=True)
    assert torch.autograd.gradgradcheck(gradients, (x, weight, bias), fast_mode=True)


def test_a_gradient_by_the_input_alone_computes_none_of_the_weight(monkeypatch) -> None:
    x, weight, bias = inputs("3x3")
    y = convolution(x, weight, bias, padding=1)
    asked: list[tuple[bool, ...]] = []
    derivatives = torch.ops.aten.convolution_backward

    def counted(*arguments):
        asked.append(arguments[-1])
        return derivatives(*arguments)

    monkeypatch.setattr(torch.ops.aten, "convolution_backward", counted)
    torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert asked == [(True, False, False)]
    torch.autograd.grad(y.sum(), weight)
    assert (False, True, False) in asked


def test_autocast_computes_in_half_precision_and_keeps_the_weights_gradient_in_float32() -> None:
    layer = Conv2d(4, 4, 3, padding=1)
    x = numbers(2, 4, 5, 5).detach().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    y.float().sum().backward()
    assert layer.weight.grad is not None and layer.bias is not None and layer.bias.grad is not None
    assert (y.dtype, layer.weight.grad.dtype, layer.bias.grad.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    torch.testing.assert_close(y.float(), F.conv2d(x, layer.weight, layer.bias, padding=1), rtol=0.02, atol=0.02)


def test_without_gradients_nothing_is_kept() -> None:
    with torch.no_grad():
        assert convolution(*inputs("3x3"), padding=1).grad_fn is None
    assert convolution(*(part.detach() for part in inputs("3x3")), padding=1).requires_grad is False
