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


def dit_b_2() -> RunConfig:
    """DiT-B/2 on latents of ImageNet by class, 256x256, 130.3M parameters.

    The settings of the paper (Peebles and Xie 2023), for 400,000 steps. data.path is a file of latents with labels, of an autoencoder that
    has 8 times fewer pixels each way and 4 channels, encoded with --flip.
    """
    return _dit(sit_b_2())


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


def _dit(sit: RunConfig) -> RunConfig:
    """The network and the training of SiT's recipe, which are DiT's, with the diffusion of ADM."""
    assert isinstance(sit.model, FlowMatchingConfig) and isinstance(sit.model.network, DiTConfig)
    model = ADMConfig(
        network=replace(sit.model.network, spare_outputs=False),
        diffusion=GaussianConfig(variance="learned_range"),
        class_conditional=True,
        label_dropout=sit.model.label_dropout,
        sampling=SamplingConfig(steps=250, clip=False),
    )
    return replace(sit, model=model)
