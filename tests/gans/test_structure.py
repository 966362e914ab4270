"""What no recorded value and no shape shows of pix2pixHD, FUNIT and COCO-FUNIT: borders, orders, strides and last layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.gans.published import PUBLISHED, on_meta
from triptych.gans.coco_funit import COCOFUNITGeneratorConfig
from triptych.gans.discriminators import PairDiscriminator, PatchDiscriminatorConfig
from triptych.gans.funit import FUNITDiscriminator, FUNITDiscriminatorConfig, FUNITGenerator, FUNITGeneratorConfig
from triptych.gans.layers import ConvBlock, ResBlock
from triptych.gans.munit import MUNITGenerator, MUNITGeneratorConfig
from triptych.gans.pix2pixhd import Pix2PixHDGenerator, Pix2PixHDGeneratorConfig
from triptych.gans.unit import UNITGenerator, UNITGeneratorConfig
from triptych.gans.weight_norms import Conv2d

REFLECTING = ["pix2pixHD 1k G", "pix2pixHD 2k G", "unit G", "munit G", "munit hd G", "funit G", "funit D 149", "coco-funit G"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_borders(name: str) -> None:
    modes = {
        layer.padding_mode for layer in on_meta(PUBLISHED[name].build).modules() if isinstance(layer, Conv2d) and layer.padding != (0, 0)
    }
    reflecting = name.removesuffix(" tiny") in REFLECTING or name.startswith("funit D") or name == "coco-funit D mammals"
    assert modes == {"reflect" if reflecting else "zeros"}


def orders(network: nn.Module) -> set[str]:
    """The orders of the residual blocks: of both convolutions, and of the shortcut after a bar."""
    letters, found = {"conv": "C", "norm": "N", "nonlinearity": "A"}, set()
    for block in network.modules():
        if isinstance(block, ResBlock):
            first, second, short = (
                "".join(letters[key] for key in part.layers) if isinstance(part, ConvBlock) else ""
                for part in (block.conv_block_0, block.conv_block_1, block.conv_block_s)
            )
            found.add(f"{'up ' if block.enlarges else ''}{first}{second}|{short}")
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("spade G", {"NACNAC|", "NACNAC|NC"}),
        ("pix2pixHD 2k G", {"CNACN|"}),
        ("unit G", {"NACNAC|"}),
        ("munit G", {"NACNAC|"}),
        ("munit D", {"ACAC|", "ACAC|C"}),
        ("funit G", {"CNACNA|", "up CNACNA|CNA"}),
        ("coco-funit G", {"CNACNA|", "up CNACNA|CNA"}),
        ("funit D 149", {"ACAC|", "ACAC|C"}),
    ],
)
def test_orders_of_residual_blocks(name: str, expected: set[str]) -> None:
    assert orders(on_meta(PUBLISHED[name].build)) == expected


@pytest.mark.parametrize(
    ("build", "slope"),
    [
        (lambda: Pix2PixHDGenerator(Pix2PixHDGeneratorConfig(), label_channels=4), 0),
        (lambda: UNITGenerator(UNITGeneratorConfig()), 0),
        (lambda: MUNITGenerator(MUNITGeneratorConfig()), 0),
        (lambda: FUNITGenerator(FUNITGeneratorConfig()), 0),
        (lambda: FUNITGenerator(COCOFUNITGeneratorConfig()), 0),
        (lambda: PairDiscriminator(PatchDiscriminatorConfig()), 0.2),
        (lambda: FUNITDiscriminator(FUNITDiscriminatorConfig(), num_classes=3), 0.2),
    ],
)
def test_generators_have_relus_and_discriminators_leaky_ones(build, slope: float) -> None:
    modules = list(on_meta(build).modules())
    slopes = {layer.negative_slope for layer in modules if isinstance(layer, nn.LeakyReLU)} | (
        {0} if any(isinstance(m, nn.ReLU) for m in modules) else set()
    )
    assert slopes == {slope}


@torch.no_grad()
@pytest.mark.parametrize(("name", "limited"), [("pix2pixHD 1k G tiny", True), ("pix2pixHD 2k G tiny", True), ("unit G tiny", False)])
def test_which_images_are_limited(name: str, limited: bool) -> None:
    torch.manual_seed(0)
    network = PUBLISHED[name].build()
    last = [layer for layer in network.modules() if isinstance(layer, Conv2d)][-1]
    last.weight.mul_(100)
    x = torch.randn(1, 7, 64, 64)
    given = {"images_a": x[:, :3], "images_b": x[:, 3:6]} if name.startswith("unit") else {"label": x}
    out = network(**given)
    largest = float((out if isinstance(out, torch.Tensor) else out.images_ab).abs().max())
    assert largest <= 1 if limited else largest > 2


@torch.no_grad()
def test_funit_limits_its_images_and_halves_its_judged_ones_after_each_pair_of_blocks_but_the_last() -> None:
    torch.manual_seed(0)
    config = FUNITGeneratorConfig(num_filters=4, num_downsamples_content=2, style_dims=8, mlp_filters=16)
    network = FUNITGenerator(config)
    network.generator.decoder.decoder[-1].layers["conv"].weight.mul_(100)
    out = network(images_content=torch.randn(1, 3, 64, 64), images_style=torch.randn(1, 3, 64, 64)).images_trans
    assert out.shape == (1, 3, 64, 64) and 0.5 < float(out.abs().max()) <= 1
    judge = FUNITDiscriminator(FUNITDiscriminatorConfig(num_filters=4, max_num_filters=8, num_layers=3), num_classes=3)
    assert judge(torch.randn(2, 3, 32, 32), labels=torch.tensor([0, 1])).outputs[0].shape == (2, 1, 8, 8)
    blocks, x = judge.model.model, torch.randn(1, 8, 6, 6)
    pools = [index for index, layer in enumerate(blocks) if isinstance(layer, nn.AvgPool2d)]
    assert pools == [4, 8] and all(blocks[index].kernel_size == 3 and blocks[index].stride == 2 for index in pools)
    for index in pools:
        torch.testing.assert_close(blocks[index - 1](x), nn.ReflectionPad2d(1)(x), atol=0, rtol=0)


def test_the_widths_of_a_config_may_change() -> None:
    wide = on_meta(lambda: UNITGenerator(replace(UNITGeneratorConfig(), num_filters=200, num_downsamples=2)))
    assert wide.autoencoder_a.content_encoder.model[2].layers["conv"].out_channels == 256  # the most
