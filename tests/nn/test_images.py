"""What models refuse of the images that they are built for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.contract.shrink import shrunk
from triptych.core.batch import DataSpec, InputSpec
from triptych.core.errors import ConfigError
from triptych.nn.images import image_shape

CLIPS = DataSpec(image_size=8, channels=3, num_classes=4, inputs=(InputSpec(name="labels", kind="classes", num_classes=4),), frames=3)


def test_the_shape_of_images() -> None:
    assert image_shape(replace(CLIPS, frames=None)) == (3, 8, 8)
    assert image_shape(replace(CLIPS, frames=None, width=12)) == (3, 8, 12)


@pytest.mark.parametrize(
    "recipe",
    [
        "adm-digits",
        "autoencoder-photos",
        "classifier-digits",
        "edm2-digits",
        "flow-digits",
        "glow-digits",
        "mean-flow-digits",
        "r3gan-digits",
        "spade-camvid",
        "upsample-digits",
    ],
)
def test_models_of_single_images_take_no_clips(recipe: str) -> None:
    config, clips = shrunk(recipe).model, replace(CLIPS, image_size=32 if recipe == "spade-camvid" else 8)
    config.build(replace(clips, frames=None))
    with pytest.raises(ConfigError) as caught:
        config.build(clips)
    advice = "take data of single images, or a model of clips, such as vid2vid"
    assert str(caught.value) == f"the data has clips, but this model learns single images; {advice}"


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("classifier-digits", "network: a U-Net takes squares, not images of 8 x 16 pixels; leave out data.width"),
        ("glow-digits", "Glow takes squares, not images of 8 x 16 pixels; leave out data.width"),
    ],
)
def test_models_of_squares_take_no_others(recipe: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        shrunk(recipe).model.build(DataSpec(image_size=8, width=16, channels=1, num_classes=3))
    assert str(caught.value) == message
