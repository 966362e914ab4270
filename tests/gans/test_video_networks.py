"""The networks of vid2vid: names, shapes and counts of the published ones, and a frame against the same by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.gans.published import described, on_meta
from tests.gans.video_by_hand import Parts, up
from triptych.core.errors import ConfigError
from triptych.gans.crops import CropConfig
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.flow import cost_volume, warped
from triptych.gans.video_discriminators import VideoDiscriminator, VideoDiscriminatorConfig
from triptych.gans.video_networks import (
    EmbeddingConfig,
    FlowNetwork,
    FlowNetworkConfig,
    Vid2VidGenerator,
    Vid2VidGeneratorConfig,
    WCVid2VidGenerator,
    WCVid2VidGeneratorConfig,
)

STREET = Vid2VidGeneratorConfig()
DANCING = replace(STREET, label_input=False, flow=FlowNetworkConfig(num_downsamples=3, multiplier=20.0))
SMALL = Vid2VidGeneratorConfig(
    num_filters=16,
    max_num_filters=128,
    num_layers=4,
    num_downsamples=2,
    combined=2,
    embedding=EmbeddingConfig(num_filters=16, num_downsamples=3),
    flow=FlowNetworkConfig(num_filters=16, num_downsamples=3, num_res_blocks=2, multiplier=10.0),
)
PATCH = PatchDiscriminatorConfig(kernel_size=4, num_filters=32, num_layers=4, norm="instance")
CROP = CropConfig(weight=10.0)


PUBLISHED = {
    "street G": (
        lambda: Vid2VidGenerator(STREET, label_channels=35),
        346_972_262,
        572,
        "83101e9392bbfa8b4019acfae0db933ba9dde61082ee6177dd78af2f721bbefe",
    ),
    "dancing G": (
        lambda: Vid2VidGenerator(DANCING, label_channels=27),
        226_947_942,
        536,
        "45bbfe34d0d4c33d315e0e2c026a27210a34219c2d8a17032442bb02d5101752",
    ),
    "small G": (
        lambda: Vid2VidGenerator(SMALL, label_channels=12),
        3_184_502,
        336,
        "74537510cb6c0bffd214d252cc937bf2a237b2fa417ea553dd0efcd6d01331dd",
    ),
    "street D": (
        lambda: VideoDiscriminator(VideoDiscriminatorConfig(), label_channels=35),
        5_597_826,
        36,
        "4cbd53a172433d565857264b2bc1492c959cb7aa24f1c5f63513b74b5a603075",
    ),
    "dancing D": (
        lambda: VideoDiscriminator(VideoDiscriminatorConfig(patch=PATCH, face=CROP, hand=CROP), label_channels=27),
        7_003_268,
        124,
        "05539eea62419e21b304a4eb849b1a67b56a73699fc598d132f82bf6f00ea63a",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_and_shapes_are_the_published_ones_in_their_order(name: str) -> None:
    build, *expected = PUBLISHED[name]
    assert described(on_meta(build)) == tuple(expected)


TINY = replace(STREET.shrunk(), weight_norm="none")


def tiny(config: Vid2VidGeneratorConfig = TINY) -> Vid2VidGenerator:
    torch.manual_seed(0)
    sizes = {"label_channels": 3, "image_size": (16, 24)}
    network = WCVid2VidGenerator(config, **sizes) if isinstance(config, WCVid2VidGeneratorConfig) else Vid2VidGenerator(config, **sizes)
    network.double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network


def clip(frames: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    labels = F.one_hot(torch.randint(3, (2, frames, 16, 24), generator=generator), 3).movedim(-1, 2).double()
    return labels, torch.rand(2, frames, 3, 16, 24, generator=generator, dtype=torch.float64) * 2 - 1


class ByHand(Parts):
    """A frame of the tiny generator written out by the names of its weights.

    `combined`: so many sizes see what was warped; `guidance` is the map after that of them all.
    """

    combined = 1
    guidance: Tensor | None = None

    def flow(self, labels: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        name, sums = "flow_network_temp", []
        for part, x in (("down_lbl", labels), ("down_img", images)):
            for i in (0, 1):
                x = F.leaky_relu(self.norm(f"{name}.{part}.{i}", self.conv(f"{name}.{part}.{i}", x, stride=i + 1)), 0.2)
            sums.append(x)
        x = sums[0] + sums[1]
        first, second = f"{name}.res_flow.0.conv_block_0", f"{name}.res_flow.0.conv_block_1"
        y = F.leaky_relu(self.norm(first, self.conv(first, x)), 0.2)
        x = x + self.norm(second, self.conv(second, y))
        x = F.leaky_relu(self.norm(f"{name}.up_flow.1", self.conv(f"{name}.up_flow.1", up(x))), 0.2)
        return TINY.flow.multiplier * self.conv(f"{name}.conv_flow.0", x), torch.sigmoid(self.conv(f"{name}.conv_mask.0", x))

    def frame(self, label: Tensor, past_labels: Tensor, past: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        now, flow, mask, moved = self.embedded("label_embedding", label, skips=False), None, None, None
        if past.shape[1]:
            before = self.embedded("label_embedding", past_labels[:, -1], skips=False)
            x = self.block("down_0", self.conv("down_first", past[:, -1]), before[:1])
            x = self.block("down_1", F.avg_pool2d(x, 3, stride=2, padding=1), before[1:2])
            x = self.block("res_1", self.block("res_0", x, before[2:]), now[2:])
        else:
            x = self.conv("fc", F.interpolate(label, size=(4, 6), mode="nearest"))
            x = up(self.block("up_2", x, now[2:]))
        if past.shape[1] == 2:
            flow, mask = self.flow(torch.cat((past_labels.flatten(1, 2), label), 1), past.flatten(1, 2))
            moved = self.embedded("img_prev_embedding", torch.cat((warped(past[:, -1], flow), mask), 1), skips=True)
        for level in (1, 0):
            seen = [moved[level] if moved else None, self.guidance] if level < self.combined else []
            x = self.block(f"up_{level}", x, [now[level], *seen])
            x = up(x) if level else x
        return torch.tanh(self.conv("conv_img", F.leaky_relu(x, 0.2))), flow, mask


@pytest.mark.parametrize(("frames", "blend"), [(1, False), (1, True), (2, True), (2, False), (3, False), (3, True)])
def test_a_frame_is_the_same_by_hand(frames: int, blend: bool) -> None:
    network, (labels, images) = tiny(replace(TINY, blend=blend)), clip(frames)
    found = network(labels[:, -1], labels[:, :-1], images[:, :-1])
    image, flow, mask = ByHand(network.state_dict()).frame(labels[:, -1], labels[:, :-1], images[:, :-1])
    if blend and frames == 3:
        image = mask * image + (1 - mask) * warped(images[:, -2], flow)
    torch.testing.assert_close(found.image, image, rtol=0, atol=1e-10)
    assert (found.flow is None) == (frames < 3)
    if found.flow is not None:
        torch.testing.assert_close(found.flow, flow, rtol=0, atol=1e-10)
        torch.testing.assert_close(found.mask, mask, rtol=0, atol=1e-10)
        torch.testing.assert_close(found.warped, warped(images[:, -2], flow), rtol=0, atol=1e-10)


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_guidance_reaches_all_sizes_that_are_combined(frames: int) -> None:
    config = replace(WCVid2VidGeneratorConfig().shrunk(), weight_norm="none", combined=2)
    network, (labels, images) = tiny(config), clip(frames)
    known = clip(1)[0][:, 0, :1]
    guidance = torch.cat((torch.where(known > 0, clip(4)[1][:, -1], -1), known), dim=1)
    found = network(labels[:, -1], labels[:, :-1], images[:, :-1], guidance)
    by_hand = ByHand(network.state_dict())
    by_hand.combined, by_hand.guidance = 2, guidance
    image, *_ = by_hand.frame(labels[:, -1], labels[:, :-1], images[:, :-1])
    torch.testing.assert_close(found.image, image, rtol=0, atol=1e-10)
    found.image.sum().backward()
    guided = {name: weight.grad for name, weight in network.named_parameters() if ".mlps.2." in name and name.startswith("up_")}
    assert {name.split(".")[0] for name in guided} == {"up_0", "up_1"}
    assert all(gradient is not None and gradient.abs().max() > 0 for gradient in guided.values())


def test_a_constant_first_map_and_frames_that_are_too_many() -> None:
    network, (labels, images) = tiny(replace(TINY, label_input=False)), clip(4)
    first = network(labels[:, 0]).image
    assert first.shape == (2, 3, 16, 24) and (first[0] - first[1]).abs().max() > 0.01
    assert network(torch.cat((labels[:, 0], labels[:, 0]), dim=3)).image.shape == (2, 3, 16, 48)
    with pytest.raises(ValueError, match="got 3 past images, expected at most 2"):
        network(labels[:, -1], labels[:, :-1], images[:, :-1])
    with pytest.raises(ValueError, match="as many label maps"):
        network(labels[:, -1], None, images[:, :2])


def test_half_precision_gives_nearly_the_same_frame() -> None:
    network, (labels, images) = tiny().float(), clip(3)
    given = labels[:, -1].float(), labels[:, :-1].float(), images[:, :-1].float()
    with torch.no_grad():
        whole = network(*given)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = network(*given)
    for one, other in zip(whole, half, strict=True):
        assert other.dtype == torch.float32
        assert 0 < (one - other).abs().mean() < 0.1 * one.std()


def test_discriminators_see_the_label_map_half_the_size_and_frames_in_their_order() -> None:
    config = VideoDiscriminatorConfig(temporal_scales=2).shrunk()
    network = VideoDiscriminator(config, label_channels=3).double()
    labels, images = clip(3)
    scores = network(images[:, 0], label=labels[:, 0])
    half = F.interpolate(torch.cat((labels[:, 0], images[:, 0]), 1), size=(8, 12), mode="bilinear", align_corners=True)
    torch.testing.assert_close(scores.outputs[1], network.net_D.discriminator_1(half)[0])
    assert len(scores.outputs) == len(scores.features) == 2
    several = network.temporal(images.flatten(1, 2), scale=1)
    torch.testing.assert_close(several.outputs[0], network.net_DT1.discriminator_0(torch.cat(images.unbind(1), 1))[0])


@pytest.mark.parametrize("halvings", [0, 1])
def test_the_flow_network_is_shown_the_last_two_maps_compared(halvings: int) -> None:
    config = replace(SMALL, flow=replace(SMALL.flow, num_downsamples=2, cost_radius=1, cost_halvings=halvings))
    torch.manual_seed(0)
    network = FlowNetwork(config, label_channels=6, image_channels=6).double().eval()
    labels, images = torch.rand(2, 6, 16, 16, dtype=torch.float64), torch.rand(2, 6, 16, 16, dtype=torch.float64)
    x = labels
    for level, layer in enumerate(network.down_lbl):
        x = layer(x)
        if level == halvings:
            pair = (F.avg_pool2d(maps, 2**halvings) for maps in (labels[:, 4:], labels[:, 2:4]))
            assert network.cost is not None
            x = x + network.cost(cost_volume(*pair, radius=1))
    wanted = network._found(x + network.down_img(images))
    for found, expected in zip(network(labels, images), wanted, strict=True):
        assert torch.equal(found, expected)
    network.cost = None
    assert not torch.equal(network(labels, images)[0], wanted[0])


def test_without_norms_a_flow_network_tells_the_moves_of_whole_frames() -> None:
    """Instance norm takes the mean of each feature out: an input that is flat but for its border looks like any other one."""
    flat = torch.ones(1, 6, 64, 64)
    few = FlowNetworkConfig(num_filters=4, num_downsamples=1, num_res_blocks=0)
    for flow, tells in ((few, False), (replace(few, norm="none"), True)):
        torch.manual_seed(0)
        network = FlowNetwork(replace(SMALL, flow=flow), label_channels=6, image_channels=6).eval()
        (one, _), (other, _) = (network(scale * flat, 0 * flat) for scale in (1.0, 3.0))
        moved = (one - other).abs()[..., 16:48, 16:48].mean()
        assert (moved > 0.05 * one.abs().mean()) == tells


def test_settings_of_the_flow_network() -> None:
    with pytest.raises(ConfigError, match="cost_radius: got -1, expected 0 or more"):
        FlowNetworkConfig(cost_radius=-1)
    with pytest.raises(ConfigError, match="cost_halvings: got 6, expected 0 to num_downsamples"):
        FlowNetworkConfig(cost_halvings=6)
