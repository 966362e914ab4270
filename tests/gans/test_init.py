"""Initial weights: their spread, the layers they reach, and spectral and weight norm."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from triptych.core.errors import ConfigError
from triptych.gans.init import InitConfig, initialize
from triptych.gans.weight_norms import Conv2d, normalised_weight


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def drawn(layer: nn.Module, **settings) -> torch.Tensor:
    initialize(layer, settings=InitConfig(**settings))
    return next(layer.parameters()).detach()


FAN_IN, FAN_OUT = 32 * 9, 128 * 9  # of Conv2d(32, 128, 3)


@pytest.mark.parametrize(
    ("kind", "deviation"),
    [
        ("xavier", math.sqrt(2 / (FAN_IN + FAN_OUT))),
        ("xavier_uniform", math.sqrt(2 / (FAN_IN + FAN_OUT))),
        ("kaiming", math.sqrt(2 / FAN_IN)),
        ("orthogonal", math.sqrt(1 / FAN_IN)),
        ("normal", 1.0),
    ],
)
def test_spread(kind, deviation) -> None:
    weight = drawn(nn.Conv2d(32, 128, 3), kind=kind, gain=0.5)
    assert weight.std().item() == pytest.approx(0.5 * deviation, rel=0.02)
    assert weight.mean().abs() < 0.02 * deviation
    kurtosis = (weight / weight.std()).pow(4).mean().item()
    assert kurtosis == pytest.approx(1.8 if kind == "xavier_uniform" else 3.0, abs=0.15)


def test_orthogonal_rows() -> None:
    matrix = drawn(nn.Linear(32, 8), kind="orthogonal", gain=2.0)
    torch.testing.assert_close(matrix @ matrix.T, 4 * torch.eye(8))


def test_default_is_xavier_with_gain_002() -> None:
    assert drawn(nn.Linear(200, 300)).std().item() == pytest.approx(0.02 * math.sqrt(2 / 500), rel=0.02)


def test_layers_that_are_reached() -> None:
    class ConvBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleDict({"conv": nn.ConvTranspose2d(3, 4, 3), "norm": nn.BatchNorm2d(4)})

    network = nn.ModuleList([ConvBlock(), nn.Linear(3, 3), nn.Embedding(5, 3), nn.LayerNorm(3), nn.PReLU()])
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    initialize(network, settings=InitConfig(kind="normal", gain=1.0))
    changed = {name for name, tensor in network.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"0.layers.conv.weight", "0.layers.conv.bias", "1.weight", "1.bias", "2.weight"}
    assert network.state_dict()["1.bias"].abs().max() == 0


def test_biases() -> None:
    layer = nn.Linear(2, 4000)
    own = layer.bias.detach().clone()
    drawn(layer, bias="none")
    assert torch.equal(layer.bias, own)
    drawn(layer, bias="normal")
    assert layer.bias.std().item() == pytest.approx(0.5, rel=0.05)
    drawn(layer, bias="normal", bias_gain=0.1)
    assert layer.bias.std().item() == pytest.approx(0.1, rel=0.05)
    weight = layer.weight.detach().clone()
    drawn(layer, kind="none")
    assert torch.equal(layer.weight, weight)
    assert layer.bias.abs().max() == 0


def test_spectral_norm_is_settled_again() -> None:
    layer = Conv2d(4, 8, 3, weight_norm="spectral")
    initialize(layer, settings=InitConfig(kind="normal", gain=3.0))
    assert layer.weight_orig.std().item() == pytest.approx(3.0, rel=0.2)
    assert torch.linalg.matrix_norm(normalised_weight(layer).flatten(1), ord=2).item() == pytest.approx(1.0, abs=0.01)


def test_pytorchs_own_spectral_norm() -> None:
    layer = nn.utils.spectral_norm(nn.Linear(50, 60))
    initialize(layer, settings=InitConfig(kind="normal", gain=3.0))
    assert layer.weight_orig.std().item() == pytest.approx(3.0, rel=0.05)


def test_weight_norm_applies_the_weights_drawn() -> None:
    layer = Conv2d(16, 32, 3, weight_norm="weight")
    initialize(layer, settings=InitConfig(kind="normal", gain=3.0))
    assert normalised_weight(layer).std().item() == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize("kind", ["xavier", "orthogonal"])
def test_the_memorys_order_has_no_say(kind) -> None:
    torch.manual_seed(1)
    plain = drawn(nn.Conv2d(4, 8, 3), kind=kind)
    layer = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    torch.manual_seed(1)
    nn.Conv2d(4, 8, 3)  # draws as many as the first
    assert torch.equal(drawn(layer, kind=kind), plain)


def test_settings_out_of_range_are_refused() -> None:
    for name in ("gain", "bias_gain"):
        with pytest.raises(ConfigError, match=rf"^{name}: got 0\.0, expected a positive number"):
            InitConfig(**{name: 0.0})
