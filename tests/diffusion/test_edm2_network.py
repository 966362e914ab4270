"""The network of EDM2: published parameter counts, a second implementation from the formulas, magnitudes at initialisation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.core.errors import ConfigError
from triptych.core.rng import Rng
from triptych.diffusion.edm2_network import EDM2Block, EDM2Network, EDM2NetworkConfig
from triptych.diffusion.unet import NO_LABEL
from triptych.nn.magnitude import UnitConv2d

SMALL = EDM2NetworkConfig(num_channels=8, channel_mult=(1, 2, 3), num_blocks=2, attention_resolutions=(8, 4), num_head_channels=4)
WIDTHS = {"xxs": 64, "xs": 128, "s": 192, "m": 256, "l": 320, "xl": 384, "xxl": 448}
COUNTED = {
    ("xxs", 4): (31_309_029, 31_053_029),
    ("xs", 4): (124_713_253, 124_201_253),
    ("s", 4): (280_212_837, 279_444_837),
    ("m", 4): (497_807_781, 496_783_781),
    ("l", 4): (777_498_085, 776_218_085),
    ("xl", 4): (1_119_283_749, 1_117_747_749),
    ("xxl", 4): (1_523_164_773, 1_521_372_773),
    ("xs", 3): (124_710_949, None),
    ("s", 3): (280_209_381, None),
    ("m", 3): (497_803_173, None),
    ("l", 3): (777_492_325, None),
    ("xl", 3): (1_119_276_837, None),
}
"""Parameters of the published networks by size and channels, with 1000 classes and with none; 128 of them are the uncertainty's."""


@pytest.mark.parametrize(("size", "channels"), COUNTED)
def test_parameters_of_published_networks(size, channels):
    for classes, count in zip((1000, None), COUNTED[size, channels], strict=True):
        if count is not None:
            with torch.device("meta"):
                network = EDM2Network(EDM2NetworkConfig(num_channels=WIDTHS[size]), image_size=64, channels=channels, num_labels=classes)
            assert sum(p.numel() for p in network.parameters()) == count
            assert sum(p.numel() for p in network.unet.parameters()) == count - 128


def moved(settings: EDM2NetworkConfig = SMALL, *, num_labels: int | None = 5) -> EDM2Network:
    """A network of images of 16 pixels whose gains are not 0."""
    torch.manual_seed(0)
    network = EDM2Network(settings, image_size=16, channels=2, num_labels=num_labels)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("_gain"):
                parameter.fill_(0.7)
            else:
                parameter.mul_(1 + torch.rand_like(parameter))
    return network.eval()


# A second implementation, of the state alone -----------------------------------------------------------------------------------


class Reference:
    """The formulas on the tensors of a network, in the plainest form."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        self.state = state

    def weight(self, name: str) -> Tensor:
        w = self.state[f"{name}.weight"]
        fan_in = w[0].numel()
        norm = w.flatten(1).square().sum(1).sqrt().view(-1, *[1] * (w.ndim - 1))
        return w / (1e-4 + norm / math.sqrt(fan_in)) / math.sqrt(fan_in)

    def conv(self, x: Tensor, name: str) -> Tensor:
        w = self.weight(name)
        return F.conv2d(x, w, padding=w.shape[-1] // 2)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return torch.einsum("bi,oi->bo", x, self.weight(name))

    def fourier(self, t: Tensor, name: str) -> Tensor:
        return math.sqrt(2) * torch.cos(torch.outer(t, self.state[f"{name}.freqs"]) + self.state[f"{name}.phases"])

    @staticmethod
    def silu(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x) / 0.596

    @staticmethod
    def sum(a: Tensor, b: Tensor, t: float) -> Tensor:
        return ((1 - t) * a + t * b) / math.sqrt((1 - t) ** 2 + t**2)

    def block(self, x: Tensor, emb: Tensor, name: str, *, encoder: bool, heads: int) -> Tensor:
        b, _, h, w = x.shape
        skip = f"{name}.conv_skip"
        if name.endswith("_down"):
            x = x.view(b, -1, h // 2, 2, w // 2, 2).mean((3, 5))
        if name.endswith("_up"):
            x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
        if encoder:
            x = self.conv(x, skip) if f"{skip}.weight" in self.state else x
            x = x / (1e-4 + x.square().mean(1, keepdim=True).sqrt())
        y = self.conv(self.silu(x), f"{name}.conv_res0")
        scale = self.linear(emb, f"{name}.emb_linear") * self.state[f"{name}.emb_gain"] + 1
        y = self.conv(self.silu(y * scale[:, :, None, None]), f"{name}.conv_res1")
        if not encoder:
            x = self.conv(x, skip) if f"{skip}.weight" in self.state else x
        x = self.sum(x, y, 0.3)
        if f"{name}.attn_qkv.weight" in self.state:
            b, c, h, w = x.shape
            qkv = self.conv(x, f"{name}.attn_qkv").reshape(b, heads, c // heads, 3, h * w)
            qkv = qkv / (1e-4 + qkv.square().mean(2, keepdim=True).sqrt())
            q, k, v = qkv[:, :, :, 0], qkv[:, :, :, 1], qkv[:, :, :, 2]
            weights = torch.softmax(torch.einsum("bhcq,bhck->bhqk", q, k) / math.sqrt(c // heads), dim=-1)
            x = self.sum(x, self.conv(torch.einsum("bhqk,bhck->bhcq", weights, v).reshape(b, c, h, w), f"{name}.attn_proj"), 0.3)
        return x.clamp(-256, 256)

    def __call__(self, x: Tensor, t: Tensor, hot: Tensor | None, *, head_channels: int) -> Tensor:
        emb = self.linear(self.fourier(t, "unet.emb_fourier"), "unet.emb_noise")
        if hot is not None:
            emb = self.sum(emb, self.linear(hot * math.sqrt(hot.shape[1]), "unet.emb_label"), 0.5)
        emb, skips = self.silu(emb), []
        x = torch.cat((x, torch.ones_like(x[:, :1])), dim=1)
        for name in dict.fromkeys(".".join(key.split(".")[:3]) for key in self.state if key.startswith(("unet.enc.", "unet.dec."))):
            if name.endswith("_conv"):
                x = self.conv(x, name)
            else:
                if name.startswith("unet.dec.") and "_block" in name:
                    other = skips.pop()
                    n, m = x.shape[1], other.shape[1]
                    x = torch.cat((x * 0.5 * math.sqrt((n + m) / n), other * 0.5 * math.sqrt((n + m) / m)), dim=1) / math.sqrt(0.5)
                width = self.state[f"{name}.conv_res1.weight"].shape[0]
                x = self.block(x, emb, name, encoder=name.startswith("unet.enc."), heads=width // head_channels)
            if name.startswith("unet.enc."):
                skips.append(x)
        assert not skips
        return self.conv(x, "unet.out_conv") * self.state["unet.out_gain"]


@pytest.mark.parametrize("num_labels", [None, 5])
def test_a_second_implementation_agrees(num_labels, float64):
    network = moved(num_labels=num_labels)
    x, t = torch.randn(3, 2, 16, 16), torch.tensor([-1.5, 0.2, 1.1])
    labels = None if num_labels is None else torch.tensor([4, NO_LABEL, 0])
    hot = None
    if num_labels is not None:
        hot = torch.zeros(3, num_labels)
        hot[0, 4] = hot[2, 0] = 1  # none: zeros
    state = network.state_dict()
    wanted = Reference(dict(state))(x, t, hot, head_channels=4)
    found = network(x, t, labels)
    assert wanted.std() > 0.1
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    u = Reference(dict(state))
    wanted_u = u.linear(u.fourier(t, "logvar_fourier"), "logvar_linear")[:, 0]
    torch.testing.assert_close(network.uncertainty(t), wanted_u, rtol=1e-9, atol=1e-9)


def test_names_of_tensors():
    names = set(moved().state_dict())
    assert {name for name in names if not name.startswith(("unet.enc.", "unet.dec."))} == {
        *("unet.emb_fourier.freqs", "unet.emb_fourier.phases", "unet.emb_noise.weight", "unet.emb_label.weight"),
        *("unet.out_conv.weight", "unet.out_gain", "logvar_fourier.freqs", "logvar_fourier.phases", "logvar_linear.weight"),
    }
    parts = {".".join(name.split(".")[1:3]) for name in names if name.startswith(("unet.enc.", "unet.dec."))}
    assert parts == {
        *("enc.16x16_conv", "enc.16x16_block0", "enc.16x16_block1"),
        *("enc.8x8_down", "enc.8x8_block0", "enc.8x8_block1", "enc.4x4_down", "enc.4x4_block0", "enc.4x4_block1"),
        *("dec.4x4_in0", "dec.4x4_in1", "dec.4x4_block0", "dec.4x4_block1", "dec.4x4_block2"),
        *("dec.8x8_up", "dec.8x8_block0", "dec.8x8_block1", "dec.8x8_block2"),
        *("dec.16x16_up", "dec.16x16_block0", "dec.16x16_block1", "dec.16x16_block2"),
    }
    attending = {name.split(".")[2] for name in names if name.endswith("attn_qkv.weight")}
    assert attending == {f"{side}x{side}_{part}" for side in (4, 8) for part in ("block0", "block1", "block2")} | {"4x4_in0"}


def test_an_untrained_network_gives_nothing():
    network = EDM2Network(SMALL, image_size=16, channels=2)
    assert torch.equal(network(torch.randn(2, 2, 16, 16), torch.zeros(2)), torch.zeros(2, 2, 16, 16))


def test_dropout_is_a_function_of_the_sample(float64):
    network = moved(SMALL.__class__.from_dict(SMALL.to_dict() | {"dropout": 0.25}), num_labels=None).train()
    x, t, rng = torch.randn(3, 2, 16, 16), torch.zeros(3), Rng(1, ("x",), torch.arange(3))
    whole = network(x, t, None, rng)
    torch.testing.assert_close(network(x[1:2], t[1:2], None, rng[1:2]), whole[1:2], rtol=1e-9, atol=1e-9)
    assert (whole - network.eval()(x, t)).abs().max() > 0.05
    with pytest.raises(ValueError, match="a network with dropout needs an rng"):
        network.train()(x, t)


def test_what_dropout_leaves_is_as_much_larger(float64):
    block = EDM2Block(4, 4, embedding=2, normalizes=True, dropout=0.25, name="enc.b").train()
    dropped = block._dropped(torch.ones(64, 4, 8, 8), Rng(1, ("x",), torch.arange(64)))
    values, counts = dropped.unique(return_counts=True)
    torch.testing.assert_close(values, torch.tensor([0, 1 / 0.75]))
    assert counts[0] / dropped.numel() == pytest.approx(0.25, abs=0.014)  # 4 deviations


def test_what_leaves_a_block_is_within_256(float64):
    block = EDM2Block(4, 4, embedding=2, normalizes=False)
    x = 1e4 * torch.randn(2, 4, 4, 4)
    assert block(x, torch.zeros(2, 2)).aminmax() == (-256, 256)


def test_recomputing_the_blocks_changes_nothing(float64):
    gradients = []
    for checkpoint in (False, True):
        network = moved(SMALL.__class__.from_dict(SMALL.to_dict() | {"dropout": 0.25, "checkpoint": checkpoint}), num_labels=None).train()
        x = torch.randn(2, 2, 16, 16, generator=torch.Generator().manual_seed(1))
        network(x, torch.zeros(2), None, Rng(1, ("x",), torch.arange(2))).square().sum().backward()
        gradients.append(network.unet.enc["8x8_block0"].conv_res0.weight.grad)  # type: ignore[union-attr]
    assert gradients[0].norm() > 0
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"channel_mult": (1, 2, 2, 2, 2, 2)}, r"channel_mult: got .* expected a multiple of 32 pixels, as 6 levels need"),
        ({"attention_resolutions": (7,)}, r"attention_resolutions: got 7, expected some of this network's resolutions \(16, 8, 4\)"),
        ({"num_head_channels": 5}, "num_head_channels: got 5, expected a divisor of 16, the width of a level with attention"),
        ({"attention_resolutions": (), "num_head_channels": 5}, "num_head_channels: got 5, expected a divisor of"),
        ({"dropout": 1.0}, "dropout: got 1.0, expected from 0 to below 1"),
        ({"num_blocks": 0}, "num_blocks: got 0, expected at least 1"),
        ({"channel_mult": ()}, "channel_mult: got .* expected positive numbers"),
    ],
)
def test_networks_that_cannot_be(changes, said):
    with pytest.raises(ConfigError, match=said):
        EDM2Network(EDM2NetworkConfig.from_dict(SMALL.to_dict() | changes), image_size=16, channels=2)


# Magnitudes --------------------------------------------------------------------------------------------------------------------


def magnitudes(nets: int) -> dict[str, float]:
    """The root of the mean square of what leaves each part, and of the output at gain 1, over so many fresh networks."""
    settings = EDM2NetworkConfig(num_channels=64, channel_mult=(1, 2), num_blocks=1, attention_resolutions=(), num_head_channels=64)
    squares: dict[str, list[float]] = {}

    def noted(name: str) -> Any:
        return lambda module, given, out: squares.setdefault(name, []).append(out.square().mean().item())

    for seed in range(nets):
        torch.manual_seed(seed)
        unet = EDM2Network(settings, image_size=8, channels=3, num_labels=10).unet
        for side, parts in (("enc", unet.enc), ("dec", unet.dec)):
            for name, part in parts.items():
                part.register_forward_hook(noted(f"{side}.{name}"))
        unet.out_conv.register_forward_hook(noted("out"))
        with torch.no_grad():
            unet.out_gain.fill_(1)
            unet(torch.randn(2, 3, 8, 8), torch.randn(2) / 4, torch.arange(2))
    return {name: math.sqrt(sum(values) / nets) for name, values in squares.items()}


def test_every_block_keeps_the_magnitude_at_initialisation(monkeypatch):
    """Within 5 %, but for what no layer can help: the zeros beyond a border, and attention, which takes a mean of the pixels."""

    def around(conv: UnitConv2d, x: Tensor, gain: Tensor | float = 1.0) -> Tensor:
        return F.conv2d(F.pad(x, (conv.weight.shape[-1] // 2,) * 4, mode="circular"), conv.filters(gain))

    monkeypatch.setattr(UnitConv2d, "forward", around)
    monkeypatch.setattr(EDM2Block, "_attended", lambda block, x: x)
    found = magnitudes(12)
    assert len(found) == 12
    for name, magnitude in found.items():
        assert magnitude == pytest.approx(1, abs=0.05), name


def test_labels_exactly_when_the_network_has_classes() -> None:
    ours = EDM2Network(SMALL, image_size=16, channels=2, num_labels=3)
    with pytest.raises(ValueError, match="labels"):
        ours(torch.zeros(4, 2, 16, 16), torch.zeros(4))
