"""Recipes of DiT: ADM's diffusion with a transformer."""

from __future__ import annotations

from dataclasses import replace

from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.dit import DiTConfig
from triptych.diffusion.flow_matching import FlowMatchingConfig
from triptych.diffusion.gaussian import GaussianConfig
from triptych.diffusion.model import SamplingConfig
from triptych.recipes.config import RunConfig
from triptych.recipes.flow_matching import sit_b_2, sit_l_2, sit_s_2, sit_xl_2, sit_xl_2_512


def dit_s_2() -> RunConfig:
    """DiT-S/2 on latents of ImageNet by class, 256x256, 32.9M parameters.

    The settings of the paper (Peebles and Xie 2023), for 400,000 steps. data.path is a file of latents with labels, of an autoencoder that
    has 8 times fewer pixels each way and 4 channels, encoded with --flip.
    """
    return _dit(sit_s_2())


def dit_s_4() -> RunConfig:
    """DiT-S/4 on latents of ImageNet by class, 256x256, 32.9M parameters: a quarter of the tokens of dit-s-2, all else as there.

    In the paper every size was trained with patches of 2, 4 and 8 (Peebles and Xie 2023, Table 4); the others are `model.network.patch`.
    """
    return _dit(sit_s_2(), patch=4)


def dit_s_8() -> RunConfig:
    """DiT-S/8 on latents of ImageNet by class, 256x256, 33.1M parameters: 16 tokens, where dit-s-2 has 256; all else as there.

    The cheapest model of the paper (Peebles and Xie 2023, Table 4), for trying out.
    """
    return _dit(sit_s_2(), patch=8)


def dit_b_2() -> RunConfig:
    """DiT-B/2 on latents of ImageNet by class, 256x256, 130.3M parameters.

    The settings of the paper (Peebles and Xie 2023), for 400,000 steps. data.path is a file of latents with labels, of an autoencoder that
    has 8 times fewer pixels each way and 4 channels, encoded with --flip.
    """
    return _dit(sit_b_2())


def dit_b_4() -> RunConfig:
    """DiT-B/4 on latents of ImageNet by class, 256x256, 130.4M parameters: a quarter of the tokens of dit-b-2, all else as there.

    About as much work for an image as dit-s-2 (Peebles and Xie 2023, Table 4).
    """
    return _dit(sit_b_2(), patch=4)


def dit_l_2() -> RunConfig:
    """DiT-L/2 on latents of ImageNet by class, 256x256, 457.8M parameters.

    The settings of the paper (Peebles and Xie 2023), for 400,000 steps. data.path is a file of latents with labels, of an autoencoder that
    has 8 times fewer pixels each way and 4 channels, encoded with --flip.
    """
    return _dit(sit_l_2())


def dit_xl_2() -> RunConfig:
    """DiT-XL/2 on latents of ImageNet by class, 256x256, 674.8M parameters.

    The settings of the paper (Peebles and Xie 2023), for 7 million steps. Published: FID 2.27, with guidance at scale 1.5. data.path is a
    file of latents with labels, of an autoencoder that has 8 times fewer pixels each way and 4 channels, encoded with --flip.
    """
    return _dit(sit_xl_2())


def dit_xl_2_512() -> RunConfig:
    """DiT-XL/2 on latents of ImageNet by class, 512x512, 674.8M parameters.

    The settings of the paper (Peebles and Xie 2023), for 3 million steps. Published: FID 3.04, with guidance at scale 1.5. data.path is a
    file of latents with labels, of an autoencoder that has 8 times fewer pixels each way and 4 channels, encoded with --flip.
    """
    return _dit(sit_xl_2_512())


def _dit(sit: RunConfig, *, patch: int = 2) -> RunConfig:
    """The network, with patches of that size, and the training of SiT's recipe, which are DiT's, with the diffusion of ADM."""
    assert isinstance(sit.model, FlowMatchingConfig) and isinstance(sit.model.network, DiTConfig)
    model = ADMConfig(
        network=replace(sit.model.network, patch=patch, spare_outputs=False),
        diffusion=GaussianConfig(variance="learned_range"),
        class_conditional=True,
        label_dropout=sit.model.label_dropout,
        sampling=SamplingConfig(steps=250, clip=False),
    )
    return replace(sit, model=model)
