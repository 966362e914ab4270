"""The layers of Glow: log-determinants against Jacobians, inverses, initialization, and what is in the state."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.flows.flows import moved
from triptych.flows import layers
from triptych.flows.layers import (
    ActNorm,
    Coupling,
    CouplingNetwork,
    InvertibleConv,
    NormalizedConv,
    Permutation,
    ZeroConv,
    ZeroLinear,
    bordered_conv,
    make_mixing,
)
from triptych.flows.multiscale import FlowStep, Level, StepSettings

MIXINGS = ("conv", "conv-lu", "shuffle", "reverse")
COUPLINGS = ("additive", "affine")


def settings(mixing="conv", coupling="affine", border=True) -> StepSettings:
    return StepSettings(width=6, coupling=coupling, mixing=mixing, border=border)


def numbers(*shape: int, seed: int = 0, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def log_det(function, x: torch.Tensor) -> torch.Tensor:
    """log|det| of the Jacobian of one sample's map, by autograd."""
    jacobian = torch.autograd.functional.jacobian(function, x)
    assert isinstance(jacobian, torch.Tensor)
    return torch.linalg.slogdet(jacobian.reshape(x.numel(), -1)).logabsdet


def test_actnorm() -> None:
    norm = ActNorm(2)
    with torch.no_grad():
        norm.bias.copy_(torch.tensor([1.0, -2.0]))
        norm.log_scale.copy_(torch.tensor([0.5, -1.0]))
    x = numbers(1, 2, 3, 3, dtype=torch.float32)
    y = norm(x)
    torch.testing.assert_close(y[:, 0], (x[:, 0] + 1) * 2.718281828**1.5)
    torch.testing.assert_close(y[:, 1], (x[:, 1] - 2) * 2.718281828**-3)
    torch.testing.assert_close(norm.inverse(y), x)


def test_actnorm_starts_at_mean_0_and_variance_1() -> None:
    norm = ActNorm(3)
    x = 5 * numbers(4, 3, 6, 6, dtype=torch.float32) * torch.tensor([1.0, 0.1, 0.0])[:, None, None] + 2
    norm.initialize(x)
    y = norm(x)
    assert y.mean((0, 2, 3)).abs().max() < 1e-4
    torch.testing.assert_close(y.var((0, 2, 3), correction=0)[:2], torch.ones(2), atol=1e-4, rtol=0)
    assert torch.isfinite(y).all(), "a channel without variance is not blown up beyond measure"
    centred = x - x.mean((0, 2, 3), keepdim=True)
    expected = torch.log(1 / (centred.square().mean((0, 2, 3)).sqrt() + 1e-6)) / 3
    torch.testing.assert_close(norm.log_scale.detach()[:2], expected[:2], atol=1e-5, rtol=0)
    norm.initialize(torch.tensor([3.0, -3.0]).view(2, 1, 1, 1).expand(2, 3, 2, 2) * torch.tensor([1.0, 1e-6, 0.0])[:, None, None])
    torch.testing.assert_close(norm.scale(), torch.tensor([1 / 3, 1 / 4e-6, 1e6]), msg="1 / (std + 1e-6)")


@pytest.mark.parametrize("name", MIXINGS)
def test_mixing(name) -> None:
    torch.manual_seed(3)
    norm, mixing = ActNorm(6).double(), make_mixing(name, 6).double()
    moved(mixing)
    moved(norm)
    x = numbers(1, 6, 2, 3)
    y = mixing.after(norm, x)
    plain = ActNorm(6).double()
    torch.testing.assert_close(y, mixing.after(plain, norm(x)), msg="actnorm comes first")
    torch.testing.assert_close(mixing.inverse(y), norm(x), atol=1e-12, rtol=0)
    expected = log_det(lambda x: mixing.after(plain, x), x)
    torch.testing.assert_close(6 * mixing.log_dets([mixing])[0], expected, atol=1e-10, rtol=0)
    assert name in ("shuffle", "reverse") or expected.abs() > 0.1


@pytest.mark.parametrize("name", ["conv", "conv-lu"])
def test_mixing_starts_as_a_rotation(name) -> None:
    torch.manual_seed(3)
    mixing = make_mixing(name, 8)
    matrix = mixing.matrix()  # type: ignore[attr-defined]
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(8), atol=1e-5, rtol=0)
    assert (matrix - torch.eye(8)).abs().max() > 0.3
    assert mixing.log_dets([mixing]).abs().max() < 1e-5


def test_kept_inverse_follows_the_weights() -> None:
    mixing = InvertibleConv(4)
    y = numbers(1, 4, 2, 2, dtype=torch.float32)
    mixing.inverse(y)
    assert mixing.inverse_matrix() is mixing.inverse_matrix(), "computed once"
    for change in (lambda: mixing.weight.data.mul_(2), lambda: setattr(mixing.weight, "data", 3 * mixing.weight.data), mixing.double):
        change()
        x = mixing.inverse(y.to(mixing.weight.dtype))
        back = torch.einsum("oi,bihw->bohw", mixing.weight, x)
        torch.testing.assert_close(back.to(y.dtype), y, atol=1e-5, rtol=0)


def test_inverse_and_log_det_are_computed_in_float64() -> None:
    """Of a Hilbert matrix, whose condition number is 1.5e7: float32 would have hardly a digit of its inverse."""
    mixing, place = InvertibleConv(6), torch.arange(6.0)
    mixing.weight.data = 1 / (place[:, None] + place + 1)
    matrix = mixing.matrix().detach().double()
    torch.testing.assert_close(mixing.inverse_matrix().double(), torch.linalg.inv(matrix), rtol=1e-6, atol=0)
    torch.testing.assert_close(mixing.log_dets([mixing])[0], torch.linalg.slogdet(matrix).logabsdet, rtol=1e-9, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["conv", "conv-lu"])
def test_mixing_on_a_gpu_is_not_rounded_to_tf32(name) -> None:
    mixing, norm, x = make_mixing(name, 48), ActNorm(48), numbers(4, 48, 8, 8, dtype=torch.float32)
    moved(norm)
    on_cpu = mixing.after(norm, x)
    mixing, norm = mixing.cuda(), norm.cuda()
    y = mixing.after(norm, x.cuda())
    torch.testing.assert_close(y.cpu(), on_cpu, atol=1e-5, rtol=0)
    torch.testing.assert_close(norm.inverse(mixing.inverse(y)).cpu(), x, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["shuffle", "reverse"])
def test_orders_are_saved(name) -> None:
    torch.manual_seed(0)
    mixing = make_mixing(name, 12)
    assert isinstance(mixing, Permutation)
    x = torch.arange(12.0).view(1, 12, 1, 1)
    y = mixing.after(ActNorm(12), x)
    assert not torch.equal(x, y) and torch.equal(mixing.inverse(y), x)
    if name == "reverse":
        assert torch.equal(y, x.flip(1))
    torch.manual_seed(1)
    other = make_mixing(name, 12)
    other.load_state_dict(mixing.state_dict())
    assert "order" in mixing.state_dict() and torch.equal(other.after(ActNorm(12), x), y)


@pytest.mark.parametrize(("inputs", "outputs"), [(2, 5), (5, 2)])
def test_border_is_the_last_input_channel(inputs, outputs) -> None:
    x, weight, bias = numbers(2, inputs, 4, 5), numbers(outputs, inputs + 1, 3, 3, seed=1), numbers(outputs, seed=2)
    found = bordered_conv(x, weight, bias, border=True)
    padded = torch.zeros(2, inputs + 1, 6, 7, dtype=x.dtype)
    padded[:, -1] = 1
    padded[:, :, 1:-1, 1:-1] = torch.cat((x, torch.zeros(2, 1, 4, 5, dtype=x.dtype)), dim=1)
    torch.testing.assert_close(found, F.conv2d(padded, weight, bias))
    plain = bordered_conv(x, weight[:, :-1], bias, border=False)
    torch.testing.assert_close(found[..., 1:-1, 1:-1], plain[..., 1:-1, 1:-1])
    assert (found - plain).abs().amax((0, 1))[0].min() > 0.01


def test_zero_layers_scale_after_the_bias() -> None:
    conv, linear = ZeroConv(2, 3, border=True).double(), ZeroLinear(2, 3).double()
    assert not any(parameter.any() for layer in (conv, linear) for parameter in layer.parameters())
    moved(conv)
    moved(linear)
    x = numbers(2, 2, 3, 3)
    expected = (bordered_conv(x, conv.weight, conv.bias, border=True)) * torch.exp(3 * conv.log_scale)[:, None, None]
    torch.testing.assert_close(conv(x), expected)
    v = numbers(4, 2)
    torch.testing.assert_close(linear(v), (v @ linear.weight.T + linear.bias) * torch.exp(3 * linear.log_scale))


@pytest.mark.parametrize("kernel", [1, 3])
def test_normalized_conv_is_actnorm_of_a_convolution(kernel) -> None:
    layer = NormalizedConv(2, 5, kernel=kernel, border=kernel == 3).double()
    moved(layer)
    x = numbers(3, 2, 4, 4)
    plain = bordered_conv(x, layer.weight, None, border=True) if kernel == 3 else F.conv2d(x, layer.weight)
    torch.testing.assert_close(layer(x), layer.norm(plain))


@pytest.mark.parametrize("kind", COUPLINGS)
@pytest.mark.parametrize("border", [True, False])
def test_coupling(kind, border) -> None:
    coupling = Coupling(4, width=5, kind=kind, border=border).double()
    moved(coupling)
    x = numbers(2, 4, 3, 3)
    y, found = coupling(x)
    assert torch.equal(y[:, :2], x[:, :2]) and (y - x)[:, 2:].abs().min() > 0
    torch.testing.assert_close(coupling.inverse(y), x, atol=1e-12, rtol=0)
    expected = torch.stack([log_det(lambda x: coupling(x)[0], x[k : k + 1]) for k in range(2)])
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    h = coupling.network(x[:, :2])
    if kind == "additive":
        torch.testing.assert_close(y[:, 2:], x[:, 2:] + h)
    else:
        assert found.abs().min() > 0.1
        torch.testing.assert_close(y[:, 2:], (x[:, 2:] + h[:, 0::2]) * torch.sigmoid(h[:, 1::2] + 2))


def test_affine_coupling_starts_at_scale_sigmoid_2() -> None:
    x = numbers(1, 4, 2, 2, dtype=torch.float32)
    y, found = Coupling(4, width=5, kind="affine", border=True)(x)
    torch.testing.assert_close(y[:, 2:], 0.880797 * x[:, 2:])
    torch.testing.assert_close(found, torch.full((1,), 8 * -0.126928))


def test_coupling_network_starts_with_normalized_layers() -> None:
    network = CouplingNetwork(3, 16, 6, border=True)
    x = 4 * numbers(8, 3, 6, 6, dtype=torch.float32) + 1
    network.initialize(x)
    first = network.first(x)
    second = network.second(F.relu(first))
    for y in (first, second):
        assert y.mean((0, 2, 3)).abs().max() < 1e-3
        torch.testing.assert_close(y.var((0, 2, 3), correction=0), torch.ones(16), atol=1e-3, rtol=0)
    assert not network(x).any(), "the last convolution starts at 0"
    large = CouplingNetwork(16, 64, 6, border=True)
    for layer in (large.first, large.second):
        assert layer.weight.detach().std().item() == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_level(mixing, coupling) -> None:
    torch.manual_seed(0)
    level = Level(8, depth=3, settings=settings(mixing, coupling), splits=True).double()
    moved(level)
    x = numbers(2, 2, 4, 6)
    y, found, _ = level(x)
    torch.testing.assert_close(level.inverse(y), x, atol=1e-11, rtol=0)
    expected = torch.stack([log_det(lambda x: level(x)[0], x[k : k + 1]) for k in range(2)])
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
    assert found.abs().min() > 0.1
    for step in level.steps:
        z, _ = step(y)
        torch.testing.assert_close(step.inverse(z), y, atol=1e-12, rtol=0)


@pytest.mark.parametrize("mixing", MIXINGS)
def test_inverses_at_hand_are_those_of_now(mixing) -> None:
    torch.manual_seed(0)
    level = Level(8, depth=3, settings=settings(mixing, "affine"), splits=True).double()
    moved(level)
    y = numbers(2, 8, 2, 3)
    plain = [step.mixing.inverse(y) for step in level.steps]
    with layers.inverses_at_hand(step.mixing for step in level.steps):
        for step, expected in zip(level.steps, plain, strict=True):
            torch.testing.assert_close(step.mixing.inverse(y), expected, atol=1e-12, rtol=0)
    moved(level)
    for step, before in zip(level.steps, plain, strict=True):
        after = step.mixing.inverse(y)
        torch.testing.assert_close(step.mixing.after(ActNorm(8).double(), after), y, atol=1e-10, rtol=0)
        assert mixing in ("shuffle", "reverse") or not torch.allclose(after, before)


def test_inverses_of_a_level_are_computed_in_one_go_and_let_go(monkeypatch) -> None:
    level = Level(8, depth=3, settings=replace(settings(), memory="inversion"), splits=True)
    counts = []
    monkeypatch.setattr(layers, "_inverses", lambda found, inverses=layers._inverses: counts.append(len(found)) or inverses(found))
    level(numbers(2, 2, 4, 4, dtype=torch.float32))[0].sum().backward()
    assert counts == [3]
    with pytest.raises(ZeroDivisionError), layers.inverses_at_hand(step.mixing for step in level.steps):
        with layers.inverses_at_hand(step.mixing for step in level.steps):
            assert all(step.mixing.held_inverse is not None for step in level.steps)
        assert level.steps[0].mixing.inverse_matrix().isfinite().all(), "the inner one ends, the outer one goes on without"
        raise ZeroDivisionError
    assert all(step.mixing.held_inverse is None for step in level.steps), "none outlives a change of the weights"


def test_squeeze_orders_channels_by_old_channel_row_column() -> None:
    level = Level(8, depth=1, settings=settings("reverse", "additive"), splits=False)  # at the start the channels in reverse order
    x = torch.arange(2 * 4 * 4.0).view(1, 2, 4, 4)
    squeezed = level(x)[0].flip(1)
    for c in range(2):
        for dy in range(2):
            for dx in range(2):
                assert torch.equal(squeezed[0, 4 * c + 2 * dy + dx], x[0, c, dy::2, dx::2])


def test_initialized_level_is_normalized_step_by_step() -> None:
    torch.manual_seed(0)
    level = Level(8, depth=4, settings=settings(), splits=False)
    x = numbers(16, 2, 8, 8, dtype=torch.float32) * 3 + 1
    level.initialize(x)
    y = F.pixel_unshuffle(x, 2)
    for step in level.steps:
        assert isinstance(step, FlowStep)
        normed = step.norm(y)
        assert normed.mean((0, 2, 3)).abs().max() < 1e-4
        torch.testing.assert_close(normed.var((0, 2, 3), correction=0), torch.ones(8), atol=1e-3, rtol=0)
        y, _ = step(y)
