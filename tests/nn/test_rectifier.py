"""The leaky rectifier against PyTorch's, in float64, and what it leaves out of a second derivative."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from triptych.nn.rectifier import leaky_rectifier

POINTS = (-60.0, -3.0, -0.5, 0.5, 1.0, 1.5, 7.0)


def plain(x: torch.Tensor, limit: float | None) -> torch.Tensor:
    y = F.leaky_relu(x, 0.2)
    return y if limit is None else y.clamp(-limit, limit)


@pytest.mark.parametrize("limit", [None, 2.0])
def test_values_and_derivatives_are_those_of_pytorch(limit) -> None:
    x = torch.tensor(POINTS, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(leaky_rectifier(x, 0.2, limit), plain(x, limit))

    def derivatives(rectify) -> tuple[torch.Tensor, torch.Tensor]:
        (first,) = torch.autograd.grad(rectify(x**3).square().sum(), x, create_graph=True)
        return first, torch.autograd.grad(first.square().sum(), x)[0]

    expected = derivatives(lambda x: plain(x, limit))
    for ours, exact in zip(derivatives(lambda x: leaky_rectifier(x, 0.2, limit)), expected, strict=True):
        assert exact.count_nonzero() == len(POINTS) - (0 if limit is None else 4)
        torch.testing.assert_close(ours, exact)


def test_the_second_derivative_sends_no_zeros_back() -> None:
    x, weight = (torch.tensor(POINTS, dtype=torch.float64, requires_grad=True) for _ in range(2))
    (first,) = torch.autograd.grad(leaky_rectifier(weight * x, 0.2, 8.0).sum(), x, create_graph=True)
    by_x, by_weight = torch.autograd.grad(first.sum(), (x, weight), allow_unused=True)
    assert by_x is None
    torch.testing.assert_close(by_weight, torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_no_gradient_where_it_clips(dtype: torch.dtype) -> None:
    limit = 256 * 0.5**0.5  # 181.02, of which half precision keeps 181
    x = torch.tensor([500, -5000, 10], dtype=dtype, requires_grad=True)
    y = leaky_rectifier(x, 0.2, limit)
    y.sum().backward()
    assert y.tolist() == [181, -181, 10] and x.grad is not None and x.grad.tolist() == [0, 0, 1]
