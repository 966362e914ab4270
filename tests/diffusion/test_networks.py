"""What is said of sizes that a network does not take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from triptych.core.batch import DataSpec, LatentSpec
from triptych.core.errors import ConfigError
from triptych.core.model import ModelConfig
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.classifier import ClassifierConfig
from triptych.diffusion.dit import DiTConfig
from triptych.diffusion.edm import EDMConfig
from triptych.diffusion.edm2 import EDM2Config
from triptych.diffusion.flow_matching import FlowMatchingConfig
from triptych.diffusion.unet import EncoderConfig, UNetConfig

LATENTS = LatentSpec(autoencoder="kl", checkpoint=0, weights="raw", sha256="", image_size=144, channels=3, mean=(0.0,) * 4, std=(1.0,) * 4)
SPEC = DataSpec(image_size=18, channels=4, num_classes=2, latents=LATENTS)
ENCODED = (
    "latents of another size (these are latents of images of 144x144 pixels, for which triptych data encode --image-size chooses "
    "another size, 8 times that of the latents)"
)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            ADMConfig(network=UNetConfig(channel_mult=(1, 2, 2))),
            "18 pixels, expected a multiple of 4 pixels, as 3 levels need; give fewer, or",
        ),
        (
            ClassifierConfig(network=EncoderConfig(channel_mult=(1, 2, 2))),
            "18 pixels, expected a multiple of 4 pixels, as 3 levels need; give fewer, or",
        ),
        (EDMConfig(), "18 pixels, expected a multiple of 8 pixels, as 4 levels need; give fewer, or"),
        (EDM2Config(), "18 pixels, expected a multiple of 8 pixels, as 4 levels need; give fewer, or"),
        (FlowMatchingConfig(network=DiTConfig(patch=4)), "18 x 18 pixels, expected a divisor of both sides; change it, or give"),
    ],
)
def test_another_size_of_latents_is_chosen_when_they_are_encoded(config: ModelConfig, said: str) -> None:
    for latents, of, other in ((LATENTS, "latents", ENCODED), (None, "images", "another data.image_size")):
        with pytest.raises(ConfigError) as caught:
            config.build(replace(SPEC, latents=latents))
        assert f"for {of} of {said} {other}$" in f"{caught.value}$"


def test_what_does_not_depend_on_their_size_says_nothing_of_it() -> None:
    config = ADMConfig(network=UNetConfig(num_channels=48, channel_mult=(1, 2), attention_resolutions=()))
    with pytest.raises(ConfigError, match=r"num_channels: gives a level of 48 channels, expected .*; change it or channel_mult$"):
        config.build(SPEC)
