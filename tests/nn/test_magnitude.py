"""Layers that preserve magnitudes, against their formulas and against N(0, 1)."""

from __future__ import annotations

import math

import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss

from triptych.nn.forward_mode import directional_derivative
from triptych.nn.magnitude import UnitConv2d, UnitFourier, UnitLinear, force_unit, mp_cat, mp_silu, mp_sum, mp_sum_with, unit


@pytest.fixture(autouse=True)
def _float64(float64):
    torch.manual_seed(0)


def test_unit_by_hand():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    rms = math.sqrt(12.5)
    assert torch.equal(unit(x, dims=(1,))[1], torch.zeros(2))
    torch.testing.assert_close(unit(x, dims=(1,))[0], x[0] / (1e-4 + rms))
    whole = unit(torch.randn(3, 4, 5, 5), dims=(1, 2, 3))
    torch.testing.assert_close(whole.square().mean((1, 2, 3)).sqrt(), torch.ones(3), rtol=2e-4, atol=0)
    assert unit(torch.randn(2, 3).bfloat16(), dims=(1,)).dtype == torch.bfloat16


@pytest.mark.parametrize(("shape", "dims"), [((3, 4), (1,)), ((3, 2, 3, 3), (1, 2, 3)), ((2, 5, 3, 2), (1,))])
def test_the_gradients_of_unit_and_of_a_gain(shape, dims):
    """Against differences, and along a direction, where autograd goes through it."""
    x, gain = torch.randn(shape, requires_grad=True), torch.tensor(0.7, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: unit(x, dims=dims), (x,))
    layer = UnitLinear(4, 3) if len(shape) == 2 else UnitConv2d(shape[1], shape[0], shape[2])
    assert torch.autograd.gradcheck(lambda w, gain: torch.func.functional_call(_Filters(layer), {"layer.weight": w}, (gain,)), (x, gain))
    direction = torch.randn(shape)
    along = directional_derivative(lambda x: unit(x, dims=dims), (x.detach(),), (direction,))
    with torch.enable_grad():
        (back,) = torch.autograd.grad((unit(x, dims=dims) * direction).sum(), x)
    torch.testing.assert_close((along * direction).sum(), (back * direction).sum())


class _Filters(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, gain):
        return self.layer.filters(gain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rms", "size"), [(1e-3, 1.0), (3e-5, 1.0), (0.03, 100.0), (200.0, 0.1)])
def test_the_gradient_of_unit_in_half_precision(dtype, rms, size):
    """As precise as its type, where what x is multiplied by in it has no place in float16."""
    x, g = (rms * torch.randn(4, 64)).to(dtype), (size * torch.randn(4, 64)).to(dtype)
    found = []
    for precision in (dtype, torch.float64):
        given = x.to(precision, copy=True).requires_grad_()
        unit(given, dims=(1,)).backward(g.to(precision))
        found.append(given.grad.double())
    assert (found[0] - found[1]).norm() < 4 * torch.finfo(dtype).eps * found[1].norm()


def test_where_there_is_nothing_the_gradient_of_unit_is_finite():
    x = torch.zeros(2, 3, requires_grad=True)
    unit(x, dims=(1,)).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((2, 3), 1e4))


def test_the_gradient_of_unit_of_small_numbers():
    """Below eps, where it hardly divides."""
    x, g = (1e-6 * torch.randn(2, 3).double()).requires_grad_(), torch.randn(2, 3).double()
    (expected,) = torch.autograd.grad(x / (1e-4 + x.square().mean(1, keepdim=True).sqrt()), x, g)
    unit(x, dims=(1,)).backward(g)
    torch.testing.assert_close(x.grad, expected)


def test_silu_keeps_the_magnitude_of_a_normal_variable():
    points, weights = (torch.tensor(values) for values in hermegauss(80))
    second = (weights * mp_silu(points).square()).sum() / math.sqrt(2 * math.pi)
    assert second.sqrt() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("t", [0.3, 0.5, 0.9])
def test_sums_and_joins_keep_the_magnitude(t):
    a, b = torch.eye(2)[:, :, None].unbind(0)  # two variables as orthogonal vectors of length 1
    total = mp_sum(a, b, t=t)
    assert total.norm() == pytest.approx(1) and total[1] / total[0] == pytest.approx(t / (1 - t))
    layer, x, y = UnitConv2d(2, 3, 1), torch.randn(1, 2, 4, 4), torch.randn(1, 3, 4, 4)
    torch.testing.assert_close(mp_sum_with(y, layer, x, t=t, gain=0.8), mp_sum(y, 0.8 * layer(x), t=t))
    a, b = torch.ones(1, 6, 2, 2), torch.ones(1, 2, 2, 2)
    joined = mp_cat(a, b, t=t)
    assert joined.square().mean() == pytest.approx(1)
    first, second = joined.split([6, 2], dim=1)
    assert second.square().sum().sqrt() / first.square().sum().sqrt() == pytest.approx(t / (1 - t)), "they count as 1 - t to t"


@pytest.mark.parametrize("layer", [UnitLinear(7, 5), UnitConv2d(4, 6, 3)])
def test_a_weight_counts_by_its_direction_alone(layer):
    layer.double()
    x = torch.randn(2, 7) if isinstance(layer, UnitLinear) else torch.randn(2, 4, 5, 5)
    wanted = layer(x)
    flat = layer.filters().flatten(1)
    torch.testing.assert_close(flat.norm(dim=1), torch.ones(len(flat)), rtol=3e-4, atol=0)
    torch.testing.assert_close(layer(x, gain=-2.5), -2.5 * wanted)
    (layer(x) ** 3).sum().backward()
    gradient = layer.weight.grad
    assert gradient is not None
    along = (gradient * layer.weight).flatten(1).sum(1).abs()
    assert (along <= 1e-3 * gradient.flatten(1).norm(dim=1) * layer.weight.flatten(1).norm(dim=1)).all(), "it only turns"
    with torch.no_grad():
        layer.weight.mul_(torch.linspace(0.5, 20, len(layer.weight)).view(-1, *[1] * (layer.weight.ndim - 1)))
    torch.testing.assert_close(layer(x), wanted, rtol=3e-4, atol=3e-4)
    force_unit(torch.nn.Sequential(layer))
    once = layer.weight.clone()
    torch.testing.assert_close(once.flatten(1).square().mean(1), torch.ones(len(once)), rtol=1e-3, atol=0)
    force_unit(layer)
    torch.testing.assert_close(layer.weight, once, rtol=2e-4, atol=0)


def test_a_convolution_by_hand():
    conv = UnitConv2d(2, 3, 3)
    weight = conv.weight.detach() / (1e-4 + conv.weight.detach().square().mean((1, 2, 3), keepdim=True).sqrt()) / math.sqrt(18)
    x = torch.randn(1, 2, 4, 6)
    torch.testing.assert_close(conv(x), torch.nn.functional.conv2d(x, weight, padding=1))


def test_fourier_features():
    features = UnitFourier(20_000)
    t = torch.tensor([0.3, -1.7])
    out = features(t)
    torch.testing.assert_close(out[1], math.sqrt(2) * torch.cos(features.freqs * -1.7 + features.phases))
    torch.testing.assert_close(out.square().mean(1), torch.ones(2), rtol=0.03, atol=0)
    assert features.freqs.std() == pytest.approx(2 * math.pi, rel=0.03)
    assert features.phases.min() >= 0 and 6.28 < features.phases.max() <= 2 * math.pi
    assert set(features.state_dict()) == {"freqs", "phases"}
