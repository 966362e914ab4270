"""The pools by which torchvision's Inception-v3 differs from that of FID (recorded: tests/evaluation/test_feature_space.py)."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.nn.frozen import run_layers
from triptych.nn.inception import inception_v3


@pytest.mark.parametrize(("before", "block"), [("pool_2", "mixed_5b"), ("mixed_6b", "mixed_6c"), ("mixed_7b", "mixed_7c")])
def test_torchvisions_averages_count_the_border(before, block) -> None:
    drawn: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(0)

    def take(name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in drawn:
            scale = math.sqrt(2 / math.prod(shape[1:])) if len(shape) > 1 else 1.0
            drawn[name] = scale * (
                torch.randn(shape, generator=generator) if len(shape) > 1 else 0.5 + torch.rand(shape, generator=generator)
            )
        return drawn[name]

    x = torch.rand(1, 3, 128, 128, generator=generator)
    found = run_layers(inception_v3, (before, block), x, take)
    name = f"Mixed_{block.removeprefix('mixed_')}.branch_pool"
    mean, variance, weight, bias = (drawn[f"{name}.bn.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
    convolved = F.conv2d(F.avg_pool2d(found[before], 3, 1, 1, count_include_pad=True), drawn[f"{name}.conv.weight"])
    expected = F.batch_norm(convolved, mean, variance, weight, bias, eps=1e-3).relu()
    torch.testing.assert_close(found[block][:, -expected.shape[1] :], expected, rtol=1e-4, atol=1e-5 * float(expected.max()))
