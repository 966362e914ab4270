"""Features and gradients that are computed again against those that are kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from triptych.nn.convolution import Conv2d
from triptych.nn.recomputing import recomputed, recomputed_twice
from triptych.nn.rectifier import leaky_rectifier

SIZE, COUNT = 8, 3


class Block(nn.Module):
    """x + conv(lrelu(conv(x))), smooth behind that, so that nothing of the second derivative is 0."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.last = Conv2d(width, 4 * width, 3, padding=1), Conv2d(4 * width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.last(leaky_rectifier(self.first(x), 0.2)))


def blocks(count: int = 3, width: int = 4) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(Block(width) for _ in range(count))


def penalised(parts: nn.ModuleList, x: Tensor, run: Any, **settings: Any) -> Tensor:
    """A loss and the squared gradient of a score by x."""
    y = x
    for part in parts:
        y = run(part, y, **settings)
    (slope,) = torch.autograd.grad(y.float().pow(3).sum() if y.dtype == torch.bfloat16 else y.pow(3).sum(), x, create_graph=True)
    return y.sin().sum() + slope.square().sum()


@pytest.mark.parametrize("run", [recomputed, recomputed_twice])
@pytest.mark.parametrize("frozen", [False, True])
def test_second_derivatives(run: Any, frozen: bool, float64: None) -> None:
    parts = blocks()
    if frozen:
        parts[1].first.requires_grad_(False)
    wanted = [weight for weight in parts.parameters() if weight.requires_grad]
    x = torch.randn(COUNT, 4, SIZE, SIZE, requires_grad=True)
    plain, found = (torch.autograd.grad(penalised(parts, x, run, when=when), [x, *wanted]) for when in (False, True))
    for expected, gradient in zip(plain, found, strict=True):
        assert expected.norm() > 1
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("run", [recomputed, recomputed_twice])
def test_first_derivatives_of_a_part_whose_input_has_none(run: Any, float64: None) -> None:
    (part,) = blocks(1)
    x = torch.randn(COUNT, 4, SIZE, SIZE)
    plain, found = (torch.autograd.grad(run(part, x, when=when).pow(3).sum(), list(part.parameters())) for when in (False, True))
    for expected, gradient in zip(plain, found, strict=True):
        torch.testing.assert_close(gradient, expected)
    with torch.no_grad():
        assert not run(part, x).requires_grad


@pytest.mark.parametrize("run", [recomputed, recomputed_twice])
def test_a_weight_that_a_part_does_not_use_has_no_gradient(run: Any, float64: None) -> None:
    parts = blocks(1)
    parts[0].unused = nn.Parameter(torch.ones(2))
    x = torch.randn(COUNT, 4, SIZE, SIZE, requires_grad=True)
    penalised(parts, x, run).backward()
    assert [name for name, weight in parts[0].named_parameters() if weight.grad is None] == ["unused"]


@pytest.mark.parametrize("run", [recomputed, recomputed_twice])
def test_the_precision_is_that_of_the_first_time(run: Any) -> None:
    """Also where autocast is off when the gradient is taken, as in a penalty; the rounding of sums may differ (measured: 0.004)."""
    parts, found, dtypes = blocks(), [], []
    parts[1].last.register_forward_hook(lambda part, inputs, output: dtypes.append(output.dtype))
    x = torch.randn(COUNT, 4, SIZE, SIZE, generator=torch.Generator().manual_seed(1)).requires_grad_()
    for when in (False, True):
        with torch.autocast("cpu", torch.bfloat16):
            y = x
            for part in parts:
                y = run(part, y, when=when)
        (slope,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        gradients = torch.autograd.grad(y.sin().sum() + slope.square().sum(), list(parts.parameters()))
        found.append(torch.cat([gradient.flatten() for gradient in gradients]))
    assert len(dtypes) > 2 and set(dtypes) == {torch.bfloat16}
    assert (found[1] - found[0]).norm() < 0.02 * found[0].norm()


def kept(run: Any, *, penalty: bool, when: bool) -> int:
    """Bytes that are there when the loss is known."""
    parts = blocks(4, width=8)
    x = torch.randn(8, 8, 16, 16, requires_grad=True)
    with torch.profiler.profile(profile_memory=True) as profile:
        if penalty:
            loss = penalised(parts, x, run, when=when)
        else:
            loss = x
            for part in parts:
                loss = run(part, loss, when=when)
    assert loss.requires_grad
    return sum(event.self_cpu_memory_usage for event in profile.key_averages())


@pytest.mark.parametrize(("run", "penalty"), [(recomputed, False), (recomputed_twice, False), (recomputed_twice, True)])
def test_less_is_kept(run: Any, penalty: bool) -> None:
    recomputing, plain = (kept(run, penalty=penalty, when=when) for when in (True, False))
    assert 0 < recomputing < 0.5 * plain, (recomputing, plain)
