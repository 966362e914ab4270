"""Generators that double their maps, against the same networks with every convolution taken of the large map."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.gans.published import COCO_TINY, FUNIT_TINY, UNIT_TINY
from triptych.gans import weight_norms
from triptych.gans.funit import FUNITGenerator
from triptych.gans.unit import UNITGenerator
from triptych.gans.weight_norms import Conv2d

FEW_SHOT = {"funit": replace(FUNIT_TINY, num_downsamples_content=2), "coco-funit": replace(COCO_TINY, num_downsamples_content=2)}


def of_the_large_map(x: Tensor, weight: Tensor, bias: Tensor | None, *, border: str) -> Tensor:
    large = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    reach = weight.shape[2] // 2
    return F.conv2d(F.pad(large, [reach] * 4, mode="constant" if border == "zeros" else border), weight, bias)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", FEW_SHOT)
@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_few_shot_generators(name: str, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images, what batch norm remembers, and the gradients by the images and all weights."""
    torch.manual_seed(0)
    network = FUNITGenerator(replace(FEW_SHOT[name], decoder_norm=norm))
    images = {key: torch.randn(2, 3, 32, 64, requires_grad=True) for key in ("images_content", "images_style")}
    state = {key: value.clone() for key, value in network.state_dict().items()}
    variables = [*images.values(), *network.parameters()]
    upstream = torch.randn(2, 2, 3, 32, 64)

    def found() -> list[Tensor]:
        network.load_state_dict(state)
        out = torch.stack(network(**images)[:2])
        return [out, *network.buffers(), *torch.autograd.grad(out, variables, upstream)]

    ours = [value.clone() for value in found()]
    monkeypatch.setattr(weight_norms, "convolved_enlarged", of_the_large_map)
    for one, other in zip(ours, found(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("name", ["unit", *FEW_SHOT])
def test_fewer_products(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 of 25 less for a 5x5 kernel, but for what its folding takes and the reflected border; 3 of 4 less for a 1x1 one."""
    few_shot = FEW_SHOT.get(name)
    network = UNITGenerator(UNIT_TINY).autoencoder_a if few_shot is None else FUNITGenerator(few_shot).generator
    decoder, content = network.decoder, network.content_encoder(torch.randn(1, 3, 64, 64))
    style = () if few_shot is None else (torch.randn(1, few_shot.mlp_filters),)
    expected = sum(
        2 * 4 * 16**2 * 4**step * layer.weight.numel() * (0.75 if layer.kernel_size == (1, 1) else 16 / 25)
        for step, layers in enumerate(doublings(decoder))
        for layer in layers
    )
    ours = products(decoder, content, *style)
    monkeypatch.setattr(weight_norms, "convolved_enlarged", of_the_large_map)
    saved = products(decoder, content, *style) - ours
    assert 0.9 * expected < saved <= expected


def doublings(decoder: nn.Module) -> list[list[Conv2d]]:
    """The convolutions of doubled maps, by step."""
    blocks = ([layer for layer in block.modules() if isinstance(layer, Conv2d) and layer.enlarges] for block in decoder.decoder)
    return [layers for layers in blocks if layers]


def products(network: nn.Module, *inputs: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        network(*inputs)
    return counter.get_total_flops()
