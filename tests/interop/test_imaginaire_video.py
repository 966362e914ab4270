"""State dicts of vid2vid, under the original's names, become its networks; others are refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from triptych.core.errors import CheckpointError, ConfigError
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.video_networks import Vid2VidGenerator, Vid2VidGeneratorConfig, VideoDiscriminator, VideoDiscriminatorConfig
from triptych.gans.weight_norms import fold_spectral_norm
from triptych.interop.imaginaire import from_state_dict

CONFIG = {
    "gen": {"type": "imaginaire.generators.vid2vid", "flow": {"flow_output_multiplier": 7}},
    "dis": {"type": "imaginaire.discriminators.fs_vid2vid"},
}
SMALL = Vid2VidGeneratorConfig().shrunk()
SMALL = replace(SMALL, style_dims=256, flow=replace(SMALL.flow, multiplier=7.0))
PATCH = PatchDiscriminatorConfig(kernel_size=4, num_filters=4, max_num_filters=8, num_layers=2, norm="instance", weight_norm="none")


def random_network(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    network = build().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.2 * torch.randn_like(parameter))
    return network


@pytest.mark.parametrize(
    "config",
    [SMALL, replace(SMALL, label_input=False, style_dims=4), replace(SMALL, weight_norm="none", frames=4, spade_kernel_size=3, combined=0)],
)
def test_a_generator(config: Vid2VidGeneratorConfig) -> None:
    network = random_network(lambda: Vid2VidGenerator(config, label_channels=5, image_size=(16, 16)))
    made = from_state_dict({f"module.{key}": value for key, value in network.state_dict().items()}, None, CONFIG)
    assert made.kind == "vid2vid" and made.discriminator is None and made.generator is not None
    assert made.generator.network.config == config
    labels, images = torch.rand(2, config.frames, 5, 16, 16), torch.rand(2, config.frames - 1, 3, 16, 16)
    with torch.no_grad():
        found = made.generator(label=labels[:, -1], prev_labels=labels[:, :-1], prev_images=images)
        expected = network(labels[:, -1], labels[:, :-1], images)
        first = made.generator(label=labels[:, 0])
    for name, value in (("fake_images", expected.image), ("fake_flow_maps", expected.flow), ("warped_images", expected.warped)):
        torch.testing.assert_close(found[name], value)
    torch.testing.assert_close(found["fake_occlusion_masks"], expected.mask)
    assert list(first) == ["fake_images"]


def test_an_average_without_spectral_norm() -> None:
    network = random_network(lambda: Vid2VidGenerator(SMALL, label_channels=2))
    state: dict[str, Tensor] = {f"module.averaged_model.{key}": value for key, value in fold_spectral_norm(network.state_dict()).items()}
    state |= {f"module.module.{key}": value for key, value in network.state_dict().items()}
    made = from_state_dict(state | {"module.num_updates_tracked": torch.tensor(3)}, None, CONFIG)
    assert made.generator is not None and made.generator.network.config == replace(SMALL, weight_norm="none")
    label = torch.rand(1, 2, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(made.generator(label=label)["fake_images"], network(label).image)


def test_discriminators() -> None:
    config = VideoDiscriminatorConfig(patch=PATCH, temporal=replace(PATCH, num_layers=1), temporal_scales=2, temporal_frames=3)
    network = random_network(lambda: VideoDiscriminator(config, label_channels=5))
    made = from_state_dict(None, network.state_dict(), CONFIG).discriminator
    assert made is not None and list(made.network.state_dict()) == list(network.state_dict())
    label, images = torch.rand(2, 5, 32, 32), torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        found, expected = made(label=label, images=images), network(images, label=label)
    for one, other in zip(found["real_outputs"], expected.outputs, strict=True):
        torch.testing.assert_close(one, other)
    alone = VideoDiscriminator(replace(config, temporal_scales=0), label_channels=5)
    assert from_state_dict(None, alone.state_dict(), CONFIG).discriminator is not None


def test_what_does_not_fit_is_refused() -> None:
    state = Vid2VidGenerator(SMALL, label_channels=2).state_dict()
    with pytest.raises(CheckpointError, match="img_prev_embedding.up_0.layers.conv.bias"):
        from_state_dict({key: value for key, value in state.items() if key != "img_prev_embedding.up_0.layers.conv.bias"}, None, CONFIG)
    with pytest.raises(CheckpointError, match="the file is incomplete: it has no down_first.layers.conv.weight"):
        from_state_dict({"up_0.weight": torch.ones(1)}, None, CONFIG)
    with pytest.raises(ConfigError, match="gen.flow.flow_output_multiplier: got -1, expected a positive number"):
        from_state_dict(state, None, {"gen": CONFIG["gen"] | {"flow": {"flow_output_multiplier": -1}}})
    constant = Vid2VidGenerator(replace(SMALL, label_input=False), label_channels=2, image_size=(16, 32)).state_dict()
    with pytest.raises(CheckpointError, match="makes a first map of 32 pixels, expected a square"):
        from_state_dict(constant, None, CONFIG)
