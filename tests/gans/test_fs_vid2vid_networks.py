"""The networks of few-shot vid2vid: names, shapes and counts of the published ones, and a frame against the same by hand."""

from __future__ import annotations

import math
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
from triptych.gans.flow import warped
from triptych.gans.fs_vid2vid_networks import Appearance, FewShotGenerator, FewShotGeneratorConfig, ReferenceAttention
from triptych.gans.norms import GeneratedMap, Norm, SpatialNorm, build_norm, own_convolution
from triptych.gans.video_discriminators import VideoDiscriminator, VideoDiscriminatorConfig

PATCH = PatchDiscriminatorConfig(kernel_size=4, num_filters=32, num_layers=4, norm="instance")
TINY = replace(FewShotGeneratorConfig().shrunk(), weight_norm="none")


PUBLISHED = {
    "faces G": (
        lambda: FewShotGenerator(FewShotGeneratorConfig(), label_channels=1),
        91_145_502,
        780 - 118,
        "615d180c6e1176798cf5a717648588c85b1e96933081b0d3680c7e912db0f5fa",
    ),
    "dancing G": (
        lambda: FewShotGenerator(FewShotGeneratorConfig(), label_channels=6),
        91_149_982,
        780 - 118,
        "b1c71bc53c7df263117f328a2cb97544cf19772c5c49f8cc9e6cbf8c0dc6c3e1",
    ),
    "faces D": (
        lambda: VideoDiscriminator(VideoDiscriminatorConfig(patch=PATCH), label_channels=2 * 1 + 3),
        5_593_922,
        68,
        "43b6aa6968bbefa4f3fbcb4dcb29c07e0367534330b60fa7a53d605b3234dd9b",
    ),
    "dancing D": (
        lambda: VideoDiscriminator(
            VideoDiscriminatorConfig(patch=PATCH, face=CropConfig(weight=10.0)), label_channels=2 * 6 + 3, crop_channels=6
        ),
        6_299_107,
        96,
        "b513b0ad36a365ce6c4afcc5deaaf7671ff937906ce757a2db562d0121c5400e",
    ),
}
"""118 tensors of a published generator are those of its flow network once more, under another name."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_and_shapes_are_the_published_ones_in_their_order(name: str) -> None:
    build, *expected = PUBLISHED[name]
    assert described(on_meta(build)) == tuple(expected)


def test_attention_has_the_published_names() -> None:
    network = on_meta(lambda: FewShotGenerator(FewShotGeneratorConfig(attention=True), label_channels=6))
    parts = {
        key.split(".")[2]: tensor
        for key, tensor in network.state_dict().items()
        if "attention_module" in key and key.endswith("weight_orig")
    }
    names = [f"atn_{kind}_{place}" for place in ("first", 0, 1) for kind in ("query", "key")]
    assert list(parts) == names and parts["atn_key_1"].shape == (128, 64, 1, 1)


@pytest.mark.parametrize("side", [1, 3])
def test_each_sample_is_convolved_with_its_own_weights(side: int) -> None:
    x, weight, bias = torch.randn(3, 4, 5, 6).double(), torch.randn(3, 2, 4, side, side).double(), torch.randn(3, 2).double()
    alone = [F.conv2d(one[None], w, b, padding=side // 2)[0] for one, w, b in zip(x, weight, bias, strict=True)]
    torch.testing.assert_close(own_convolution(x, weight, bias), torch.stack(alone))


def test_a_map_with_its_own_convolution_modulates_as_one_of_the_norm() -> None:
    norm = SpatialNorm(Norm("instance", affine=False), (3, 2), num_filters=0, kernel_size=1, separate=False)
    plain, generated = build_norm(norm, 4), build_norm(replace(norm, generated=True), 4)
    assert plain is not None and generated is not None
    assert list(generated.state_dict()) == [key for key in plain.state_dict() if not key.startswith("mlps.0.")]
    generated.load_state_dict(plain.state_dict(), strict=False)
    x, first, second = torch.randn(2, 4, 8, 8), torch.randn(2, 3, 4, 4), torch.randn(2, 2, 8, 8)
    weight, bias = (
        plain.state_dict()[f"mlps.0.0.layers.conv.{part}"].expand(2, *[-1] * dims) for part, dims in (("weight", 4), ("bias", 1))
    )
    torch.testing.assert_close(generated(x, GeneratedMap(first, weight, bias), second), plain(x, first, second))
    with pytest.raises(ValueError, match="no hidden layer"):
        build_norm(replace(norm, generated=True, num_filters=8), 4)


def tiny(config: FewShotGeneratorConfig = TINY) -> FewShotGenerator:
    torch.manual_seed(0)
    network = FewShotGenerator(config, label_channels=3).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network


def pictures(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Images (2, count, 3, 16, 24) and their label maps."""
    generator = torch.Generator().manual_seed(seed)
    labels = F.one_hot(torch.randint(3, (2, count, 16, 24), generator=generator), 3).movedim(-1, 2).double()
    return torch.rand(2, count, 3, 16, 24, generator=generator, dtype=torch.float64) * 2 - 1, labels


class ByHand(Parts):
    """A frame of the tiny generator, sample by sample and row by row."""

    def reference(self, name: str, x: Tensor, *, stride: int = 1) -> Tensor:
        name = f"weight_generator.ref_{name}"
        x = F.conv2d(x, self.state[f"{name}.layers.conv.weight"], self.state[f"{name}.layers.conv.bias"], stride=stride)
        mean, variance = x.mean((2, 3), keepdim=True), x.var((2, 3), correction=0, keepdim=True)
        normal = (x - mean) / (variance + (0.1 if "label" in name else 1e-5)).sqrt()
        gain, offset = (self.state[f"{name}.layers.norm.{part}"][:, None, None] for part in ("weight", "bias"))
        return F.leaky_relu(gain * normal + offset, 0.2)

    def halved(self, image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest features of references and of their label maps."""
        x, maps = self.reference("img_first", image), self.reference("label_first", label)
        for i in (0, 1):
            x, maps = self.reference(f"img_down_{i}", x, stride=2), self.reference(f"label_down_{i}", maps, stride=2)
        return x, maps

    def rows(self, x: Tensor, maps: Tensor) -> Tensor:
        """F_1, of such features of one reference."""
        a, share = self.reference("img_up_1", x)[0], self.reference("label_up_1", maps)[0].softmax(0)
        return torch.stack([torch.stack([(one * other).sum() for other in share]) for one in a])

    def generated(self, rows: Tensor, name: str, *shape: int) -> tuple[Tensor, Tensor]:
        made = []
        for row in rows:
            stack = f"weight_generator.fc_spade_{name}_0"
            hidden = F.leaky_relu(self.state[f"{stack}.0.layers.conv.weight"] @ row + self.state[f"{stack}.0.layers.conv.bias"], 0.2)
            made.append(self.state[f"{stack}.1.layers.conv.weight"] @ hidden + self.state[f"{stack}.1.layers.conv.bias"])
        values = torch.cat(made)
        count = math.prod(shape)
        return values[:count].view(shape), values[count : count + shape[0]]

    def flow(self, label: Tensor, other_label: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        name, x = "flow_network_ref", torch.cat((label, other_label, other), 1)
        for i in (0, 1):
            x = F.leaky_relu(self.norm(f"{name}.down_flow.{i}", self.conv(f"{name}.down_flow.{i}", x, stride=i + 1)), 0.2)
        y = x
        for part in ("conv_block_0", "conv_block_1"):
            y = self.conv(f"{name}.res_flow.0.{part}", F.leaky_relu(self.norm(f"{name}.res_flow.0.{part}", y), 0.2))
        x = F.leaky_relu(self.norm(f"{name}.up_flow.1", self.conv(f"{name}.up_flow.1", up(x + y))), 0.2)
        return TINY.flow.multiplier * self.conv(f"{name}.conv_flow.0", x), torch.sigmoid(self.conv(f"{name}.conv_mask.0", x))

    def largest(self, x: Tensor, label: Tensor, rows: Tensor, warps: list[Tensor | None]) -> Tensor:
        """up_0, whose first map is convolved with generated weights."""

        def modulated(x: Tensor, name: str, part: str) -> Tensor:
            channels, out = x.shape[1], F.instance_norm(x)
            for n, seen in enumerate((label, *warps)):
                if n == 0:
                    gamma, beta = F.conv2d(label, *self.generated(rows, name, 2 * channels, 4, 1, 1)).chunk(2, 1)
                elif seen is not None:
                    gamma, beta = self.conv(f"up_0.{part}.layers.norm.mlps.{n}.0", seen).chunk(2, 1)
                else:
                    continue
                out = out * (1 + gamma) + beta
            return out

        y = self.conv("up_0.conv_block_0", F.leaky_relu(modulated(x, "0", "conv_block_0"), 0.2))
        y = self.conv("up_0.conv_block_1", F.leaky_relu(modulated(y, "1", "conv_block_1"), 0.2))
        return y + self.conv("up_0.conv_block_s", modulated(x, "s", "conv_block_s"))

    def frame(self, label: Tensor, references: Tensor, labels: Tensor, past_label: Tensor | None, past: Tensor | None) -> Tensor:
        """Of one sample: label (1, 3, h, w), references (k, 3, h, w)."""
        each = [self.halved(references[k : k + 1], labels[k : k + 1]) for k in range(len(references))]
        x, rows = each[0][0], sum(self.rows(*one) for one in each) / len(each)
        assert isinstance(rows, Tensor)
        seen: list[Tensor | None] = []
        for kind, other_label, other in (("ref", labels[:1], references[:1]), ("prev", past_label, past)):
            if other is None or other_label is None:
                seen.append(None)
                continue
            flow, mask = self.flow(label, other_label, other)
            seen.append(self.embedded(f"{kind}_image_embedding", torch.cat((warped(other, flow), mask), 1), skips=True)[0])
        name, e = "weight_generator.label_embedding", []
        e.append(F.leaky_relu(self.conv(f"{name}.conv_first", label), 0.2))
        for i in (0, 1):
            e.append(F.leaky_relu(self.conv(f"{name}.down_{i}", e[-1], stride=2), 0.2))
        y1 = F.leaky_relu(self.conv(f"{name}.up_1", up(e[2])), 0.2)
        weight, bias = self.generated(rows, "e", 4, 8, 3, 3)
        y0 = F.leaky_relu(F.conv2d(up(y1), weight, bias, padding=1), 0.2)
        x = up(self.block("up_1", up(self.block("up_2", x, [e[2]])), [y1]))
        return torch.tanh(self.conv("conv_img", F.leaky_relu(self.largest(x, y0, rows, seen), 0.2)))


@pytest.mark.parametrize(("count", "past"), [(1, False), (1, True), (2, True)])
def test_a_frame_is_the_same_by_hand(count: int, past: bool) -> None:
    network, (images, labels), (references, reference_labels) = tiny(), pictures(2, seed=1), pictures(count, seed=2)
    before = (labels[:, 0], images[:, 0]) if past else (None, None)
    found = network(labels[:, 1], references, reference_labels, *before)
    hand = ByHand(network.state_dict())
    for k in range(2):
        one = [None if part is None else part[k : k + 1] for part in before]
        image = hand.frame(labels[k : k + 1, 1], references[k], reference_labels[k], *one)
        torch.testing.assert_close(found.image[k : k + 1], image, rtol=0, atol=1e-10)
    flow, mask = hand.flow(labels[:, 1], reference_labels[:, 0], references[:, 0])
    torch.testing.assert_close(found.reference.flow, flow, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.reference.mask, mask, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.reference.image, warped(references[:, 0], flow), rtol=0, atol=1e-10)
    assert (found.past is None) != past
    if found.past is not None:
        torch.testing.assert_close(found.past.flow, hand.flow(labels[:, 1], labels[:, 0], images[:, 0])[0], rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match="comes with its label map"):
        network(labels[:, 1], references, reference_labels, labels[:, 0])


def test_attention_is_a_softmax_over_all_places_of_all_references() -> None:
    torch.manual_seed(0)
    network = ReferenceAttention(replace(TINY, attention=True), label_channels=3).double()
    (_, labels), (_, now) = pictures(3, seed=3), pictures(1, seed=4)
    x, maps = torch.randn(6, 8, 4, 6).double(), torch.randn(6, 8, 4, 6).double()

    def seen(kind: str, label: Tensor) -> Tensor:
        for name in ("first", 0, 1):
            label = network.get_submodule(f"atn_{kind}_{name}")(label)
        return label

    mixed, mixed_maps, picked = network(x, maps, labels, now[:, 0])
    for k in range(2):
        query, keys = seen("query", now[:, 0])[k].flatten(1), seen("key", labels[k]).movedim(1, 0).flatten(1)
        share = (keys.T @ query).softmax(0)  # (3 h w, h w)
        for made, values in ((mixed, x), (mixed_maps, maps)):
            each = values.unflatten(0, (2, 3))[k].movedim(1, 0).flatten(1)
            torch.testing.assert_close(made[k].flatten(1), each @ share, rtol=0, atol=1e-10)
        assert picked[k] == share.view(3, -1).sum(1).argmax()


def test_what_attention_makes_of_the_references_goes_on_as_the_one_reference() -> None:
    """The features of the frame are those of images, and the weights are made of these and of label maps."""
    network, (_, labels), (references, reference_labels) = tiny(replace(TINY, attention=True)), pictures(1, seed=1), pictures(3, seed=2)
    generator, hand = network.weight_generator, ByHand(network.state_dict())
    assert generator.attention_module is not None
    found = generator(references, reference_labels, labels[:, 0])
    for k in range(2):
        seen = hand.halved(references[k], reference_labels[k])
        x, maps, picked = generator.attention_module(*seen, reference_labels[k : k + 1], labels[k : k + 1, 0])
        assert found.picked[k] == picked
        torch.testing.assert_close(found.features[k], x[0], rtol=0, atol=1e-10)
        for made, expected in zip(found.levels[0].first, hand.generated(hand.rows(x, maps), "0", 16, 4, 1, 1), strict=True):
            torch.testing.assert_close(made[k], expected, rtol=0, atol=1e-10)


def test_the_reference_that_attention_picks_is_warped_and_their_order_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    network, (_, labels), (references, reference_labels) = tiny(replace(TINY, attention=True)), pictures(1, seed=1), pictures(3, seed=2)
    given = labels[:, 0], references, reference_labels
    appearance: Appearance = network.weight_generator(references, reference_labels, labels[:, 0])
    with monkeypatch.context() as patch:
        patch.setattr(network.weight_generator, "forward", lambda *given: appearance._replace(picked=torch.tensor([2, 1])))
        found = network(*given)
    for k, picked in enumerate((2, 1)):
        torch.testing.assert_close(found.reference.image[k], warped(references[k : k + 1, picked], found.reference.flow[k : k + 1])[0])
    turned = network(labels[:, 0], references[:, [1, 2, 0]], reference_labels[:, [1, 2, 0]])
    torch.testing.assert_close(turned.image, network(*given).image)


def test_gradients_reach_all_but_what_is_never_used() -> None:
    network, (images, labels), given = tiny(), pictures(2, seed=1), pictures(1, seed=2)
    frame = network(labels[:, 1], *given, labels[:, 0], images[:, 0])
    (frame.image.square().sum() + frame.reference.mask.sum()).backward()
    without = {name for name, parameter in network.named_parameters() if parameter.grad is None}
    assert without == {name for name, _ in network.named_parameters() if "ref_img_up_0" in name or "ref_label_up_0" in name}


@pytest.mark.parametrize(
    ("wrong", "name"), [({"generated": 5}, "generated"), ({"num_filters": 16}, "num_filters"), ({"num_downsamples": 4}, "num_downsamples")]
)
def test_settings_that_do_not_fit_are_said(wrong: dict[str, int], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        replace(FewShotGeneratorConfig(), **wrong)


def test_widths_that_do_not_double() -> None:
    """There are as many numbers as the generated weights of each level need."""
    small = FewShotGeneratorConfig().shrunk()
    config = replace(small, num_filters=8, max_num_filters=12, embedding=replace(small.embedding, num_filters=8))
    generator = FewShotGenerator(config, label_channels=2).eval()
    side = 2 * config.least_size
    with torch.no_grad():
        frame = generator(torch.rand(1, 2, side, side), torch.rand(1, 1, 3, side, side), torch.rand(1, 1, 2, side, side))
    assert frame.image.shape == (1, 3, side, side)
