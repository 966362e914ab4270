"""The published configurations of the image models and small ones, with their numbers of parameters and of tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from triptych.gans.coco_funit import COCOFUNITGeneratorConfig
from triptych.gans.discriminators import PairDiscriminator, PatchDiscriminatorConfig, ResidualDiscriminatorConfig
from triptych.gans.funit import FUNITDiscriminator, FUNITDiscriminatorConfig, FUNITGenerator, FUNITGeneratorConfig
from triptych.gans.munit import MUNITGenerator, MUNITGeneratorConfig
from triptych.gans.pix2pixhd import Pix2PixHDDiscriminator, Pix2PixHDGenerator, Pix2PixHDGeneratorConfig
from triptych.gans.spade import SPADEDiscriminator, SPADEDiscriminatorConfig, SPADEGenerator, SPADEGeneratorConfig
from triptych.gans.unit import UNITGenerator, UNITGeneratorConfig

SPADE_PATCH = PatchDiscriminatorConfig(kernel_size=4, num_filters=128, num_layers=5)
PIX2PIXHD_PATCH = PatchDiscriminatorConfig(num_layers=3, norm="instance")
UNIT_PATCH = PatchDiscriminatorConfig(num_discriminators=3, shared=True, num_filters=48)
HD_PATCH = PatchDiscriminatorConfig(num_discriminators=3, num_filters=48, max_num_filters=1024, num_layers=5)

SPADE_TINY = SPADEGeneratorConfig(num_filters=4, style_dims=8, spade_filters=8, encoder_filters=4)
SPADE_PATCH_TINY = replace(SPADE_PATCH, num_filters=4, max_num_filters=16)
PIX2PIXHD_TINY = Pix2PixHDGeneratorConfig(num_filters=4, num_res_blocks=2)
UNIT_TINY = UNITGeneratorConfig(num_filters=4)
MUNIT_TINY = MUNITGeneratorConfig(num_filters=4, mlp_filters=16)
FUNIT_TINY = FUNITGeneratorConfig(num_filters=4, mlp_filters=16, style_dims=8)
COCO_TINY = COCOFUNITGeneratorConfig(num_filters=4, mlp_filters=16, style_dims=8, style_bias_dims=16)
FUNIT_D_TINY = FUNITDiscriminatorConfig(num_filters=4, max_num_filters=32)


def described(network: nn.Module) -> tuple[int, int, str]:
    """Its parameters, its tensors, and a hash of their names and shapes in their order."""
    lines = [f"{key} {list(tensor.shape)}" for key, tensor in network.state_dict().items()]
    return sum(p.numel() for p in network.parameters()), len(lines), hashlib.sha256("\n".join(lines).encode()).hexdigest()


@dataclass(frozen=True)
class Counted:
    """A network, and how many trainable parameters and tensors it has."""

    build: Callable[[], nn.Module]
    parameters: int
    keys: int


PUBLISHED = {
    "spade G": Counted(lambda: SPADEGenerator(SPADEGeneratorConfig(), label_channels=185), 415_333_507, 508),
    "spade style": Counted(lambda: SPADEGenerator(SPADEGeneratorConfig(), label_channels=185).style_encoder, 10_465_408, 28),
    "spade D": Counted(lambda: SPADEDiscriminator(SPADEDiscriminatorConfig(patch=SPADE_PATCH), label_channels=185), 51_926_787, 110),
    "spade lhq 512 G": Counted(
        lambda: SPADEGenerator(SPADEGeneratorConfig(resolution=512, output_multiplier=0.5), label_channels=184), 424_726_278, 616
    ),
    "pix2pixHD 1k G": Counted(lambda: Pix2PixHDGenerator(Pix2PixHDGeneratorConfig(), label_channels=36), 182_589_507, 164),
    "pix2pixHD 1k D": Counted(lambda: Pix2PixHDDiscriminator(PIX2PIXHD_PATCH, label_channels=36), 3_156_482, 56),
    "pix2pixHD 2k G": Counted(lambda: Pix2PixHDGenerator(Pix2PixHDGeneratorConfig(num_enhancers=1), label_channels=36), 182_900_835, 218),
    "pix2pixHD 2k D": Counted(
        lambda: Pix2PixHDDiscriminator(replace(PIX2PIXHD_PATCH, num_discriminators=3), label_channels=36), 4_734_723, 84
    ),
    "unit G": Counted(lambda: UNITGenerator(UNITGeneratorConfig()), 12_555_654, 172),
    "unit D": Counted(lambda: PairDiscriminator(UNIT_PATCH), 5_295_042, 48),
    "munit G": Counted(lambda: MUNITGenerator(MUNITGeneratorConfig()), 30_258_966, 308),
    "munit D": Counted(lambda: PairDiscriminator(ResidualDiscriminatorConfig()), 32_322_498, 144),
    "munit hd G": Counted(lambda: MUNITGenerator(MUNITGeneratorConfig(num_downsamples_content=3)), 32_483_606, 332),
    "munit hd D": Counted(lambda: PairDiscriminator(HD_PATCH), 63_696_198, 168),
    "funit G": Counted(lambda: FUNITGenerator(FUNITGeneratorConfig()), 120_987_203, 120),
    "funit D 149": Counted(lambda: FUNITDiscriminator(FUNITDiscriminatorConfig(), num_classes=149), 92_038_977, 121),
    "funit D 119": Counted(lambda: FUNITDiscriminator(FUNITDiscriminatorConfig(), num_classes=119), 92_008_257, 121),
    "coco-funit G": Counted(lambda: FUNITGenerator(COCOFUNITGeneratorConfig()), 121_562_307, 129),
    "coco-funit D mammals": Counted(lambda: FUNITDiscriminator(FUNITDiscriminatorConfig(), num_classes=305), 92_198_721, 121),
    "spade G tiny": Counted(lambda: SPADEGenerator(SPADE_TINY, label_channels=8), 585_499, 508),
    "spade D tiny": Counted(lambda: SPADEDiscriminator(SPADEDiscriminatorConfig(patch=SPADE_PATCH_TINY), label_channels=8), 52_115, 110),
    "pix2pixHD 1k G tiny": Counted(lambda: Pix2PixHDGenerator(PIX2PIXHD_TINY, label_channels=7), 199_699, 80),
    "pix2pixHD 1k D tiny": Counted(lambda: Pix2PixHDDiscriminator(replace(PIX2PIXHD_PATCH, num_filters=4), label_channels=7), 13_754, 56),
    "pix2pixHD 2k G tiny": Counted(lambda: Pix2PixHDGenerator(replace(PIX2PIXHD_TINY, num_enhancers=1), label_channels=7), 201_195, 134),
    "pix2pixHD 2k D tiny": Counted(
        lambda: Pix2PixHDDiscriminator(replace(PIX2PIXHD_PATCH, num_filters=4, num_discriminators=3), label_channels=7), 20_631, 84
    ),
    "unit G tiny": Counted(lambda: UNITGenerator(UNIT_TINY), 90_982, 172),
    "unit D tiny": Counted(lambda: PairDiscriminator(replace(UNIT_PATCH, num_filters=4, max_num_filters=16)), 12_722, 48),
    "munit G tiny": Counted(lambda: MUNITGenerator(MUNIT_TINY), 123_846, 308),
    "munit D tiny": Counted(lambda: PairDiscriminator(ResidualDiscriminatorConfig(num_filters=4, max_num_filters=16)), 50_170, 128),
    "munit hd G tiny": Counted(lambda: MUNITGenerator(replace(MUNIT_TINY, num_downsamples_content=3)), 398_054, 332),
    "munit hd D tiny": Counted(lambda: PairDiscriminator(replace(HD_PATCH, num_filters=4, max_num_filters=16)), 52_086, 168),
    "funit G tiny": Counted(lambda: FUNITGenerator(FUNIT_TINY), 476_795, 120),
    "funit D tiny": Counted(lambda: FUNITDiscriminator(FUNIT_D_TINY, num_classes=5), 127_749, 117),
    "coco-funit G tiny": Counted(lambda: FUNITGenerator(COCO_TINY), 478_523, 129),
}


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """The network without memory for its weights."""
    with torch.device("meta"):
        return build()
