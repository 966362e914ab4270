"""The small classifiers against plain modules with the keys of their published weights."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.nn.frozen import FrozenNetwork, traced
from triptych.nn.small_networks import lenet, random_network, random_weights, resnet20


def outputs(run, weights: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    shapes, layers = traced(run, None, tuple(x.shape[1:]))
    assert set(shapes) == {name for name in weights if not name.endswith("num_batches_tracked")}
    network = FrozenNetwork(run, layers).double()
    network.take_tensors(weights, shapes, source="the test")
    return network.found(x)


def drawn(network: nn.Module) -> dict[str, Tensor]:
    """The weights of a module, in evaluation mode, after they were drawn."""
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items() if tensor.is_floating_point()}
    weights = {name: tensor.double() for name, tensor in random_weights(shapes).items()}
    network.double().eval().load_state_dict(
        {name: tensor.exp() if name.endswith("running_var") else tensor for name, tensor in weights.items()}, strict=False
    )
    return network.state_dict()


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convnet = nn.ModuleDict({"c1": nn.Conv2d(1, 6, 5), "c3": nn.Conv2d(6, 16, 5), "c5": nn.Conv2d(16, 120, 5)})
        self.fc = nn.ModuleDict({"f6": nn.Linear(120, 84), "f7": nn.Linear(84, 10)})

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = nn.MaxPool2d(2)(self.convnet["c1"](x).relu())
        x = nn.MaxPool2d(2)(self.convnet["c3"](x).relu())
        x = self.fc["f6"](self.convnet["c5"](x).relu().squeeze((2, 3))).relu()
        return x, self.fc["f7"](x)


class Block(nn.Module):
    def __init__(self, before: int, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, channels, 3, channels // before, 1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        if y.shape != x.shape:
            zeros = torch.zeros_like(y[:, : x.shape[1] // 2])
            x = torch.cat((zeros, x[:, :, ::2, ::2], zeros), 1)
        return (x + y).relu()


class ResNet20(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(Block(16, 16) for _ in range(3)))
        self.layer2 = nn.Sequential(Block(16, 32), Block(32, 32), Block(32, 32))
        self.layer3 = nn.Sequential(Block(32, 64), Block(64, 64), Block(64, 64))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.adaptive_avg_pool2d(self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x)).relu()))), 1).flatten(1)
        return x, self.linear(x)


def test_lenet() -> None:
    plain, x = LeNet(), torch.rand(2, 1, 32, 32, dtype=torch.float64)
    weights = drawn(plain)
    found = outputs(lenet, weights, x)
    with torch.no_grad():
        features, logits = plain(x)
    torch.testing.assert_close(found, {"features": features, "logits": logits})
    assert features.shape == (2, 84) and features.std() > 0.01


def test_resnet20() -> None:
    plain, x = ResNet20(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    weights = drawn(plain)
    found = outputs(resnet20, weights, x)
    with torch.no_grad():
        features, logits = plain(x)
    torch.testing.assert_close(found, {"features": features, "logits": logits})
    assert features.shape == (2, 64) and features.std() > 0.01


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = (nn.Conv2d(*channels, 3, 2, 1) for channels in ((3, 16), (16, 32), (32, 64)))

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.conv1, self.conv2, self.conv3):
            x = nn.LeakyReLU(0.2)(conv(x))
        return F.adaptive_avg_pool2d(x, 1).flatten(1)


def test_random_network() -> None:
    plain, x = Three(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    weights = drawn(plain)
    with torch.no_grad():
        torch.testing.assert_close(outputs(random_network, weights, x), {"features": plain(x)})
    for name, tensor in weights.items():
        deviation = 0.1 if name.endswith("bias") else math.sqrt(2 / tensor[0].numel())
        assert abs(tensor.std() / deviation - 1) < 4 / math.sqrt(2 * tensor.numel()), name


def test_random_weights_are_those_that_figures_were_measured_with() -> None:
    weights = random_weights({"conv1.weight": (16, 3, 3, 3), "conv1.bias": (16,)})
    found = (*weights["conv1.weight"].flatten()[:2].tolist(), *weights["conv1.bias"][:2].tolist())
    assert found == pytest.approx((-0.17409979, 0.17578264, 0.17777404, -0.015421921), rel=1e-5)
