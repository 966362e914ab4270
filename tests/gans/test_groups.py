"""Samples of the GANs from noise are the same to the last bit in every batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from triptych.core.batch import DataSpec
from triptych.core.rng import Rng
from triptych.gans.from_noise import NoiseGANConfig
from triptych.gans.groups import in_groups
from triptych.gans.r3gan import R3GANConfig
from triptych.gans.stylegan2 import StyleGAN2Config


@pytest.mark.parametrize("config", [StyleGAN2Config(), R3GANConfig()])
@pytest.mark.parametrize(("side", "classes"), [(8, 3), (32, None)])
def test_a_sample_is_the_same_to_the_bit_in_every_batch(config: NoiseGANConfig, side: int, classes: int | None) -> None:
    """In float32: the kernels of a CPU round differently with the size of the batch, which is why images are made in groups."""
    torch.manual_seed(0)
    spec = DataSpec(image_size=side, channels=3, num_classes=classes)
    model = replace(config, class_conditional=classes is not None).shrunk().build(spec).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)

    def made(start: int, stop: int) -> Tensor:
        rng = Rng(5, ("sample",), torch.arange(start, stop))
        return model.sample(rng, labels=None if classes is None else rng.index % classes, settings=model.sampling)  # type: ignore[operator]

    whole = made(0, 11)
    assert whole.shape == (11, 3, side, side) and (whole[0] != whole[3]).any()
    for size in (1, 2, 5, 8):
        assert torch.equal(torch.cat([made(start, min(start + size, 11)) for start in range(0, 11, size)]), whole)


def test_groups_are_filled_up_and_cut_off() -> None:
    """Each row is in the place that its number has, and the others are of any row."""
    seen: list[list[int]] = []

    def make(x: Tensor, y: Tensor) -> list[Tensor]:
        seen.append(x.tolist())
        return [x + y, -x]

    total, negative = in_groups(make, torch.arange(5), 10 * torch.arange(5), side=64)
    assert seen == [[0, 1], [2, 3], [4, 4]]
    assert total.tolist() == [0, 11, 22, 33, 44] and negative.tolist() == [0, -1, -2, -3, -4]
    in_groups(make, torch.arange(1), torch.arange(1), side=1024)
    assert seen[-1] == [0]
    total, _ = in_groups(make, torch.tensor([7, 5, 6]), torch.tensor([0, 10, 20]), side=64, index=torch.tensor([7, 5, 6]))
    assert seen[-2:] == [[5, 5], [6, 7]] and total.tolist() == [7, 15, 26]
