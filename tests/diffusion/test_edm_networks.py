"""EDM's networks: against plain functions of their tensors, the published numbers of parameters, initial weights."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.diffusion import edm_reference as reference
from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.core.rng import Rng
from triptych.diffusion.edm import EDMConfig
from triptych.diffusion.edm_networks import ADMUNet, ADMUNetConfig, EDMNetworkConfig, FourierEmbedding, SongUNet, SongUNetConfig
from triptych.diffusion.unet import NO_LABEL
from triptych.nn.filters import BINOMIAL

DDPMPP = SongUNetConfig()
NCSNPP = SongUNetConfig(embedding="fourier", embedding_mult=2, encoder="residual", resample_filter=BINOMIAL)
CLASSES = 5


def small(network: SongUNetConfig) -> SongUNetConfig:
    """Three levels of different widths, two of them with attention."""
    return replace(network, num_channels=8, channel_mult=(1, 2, 3), num_blocks=2, attention_resolutions=(8, 4))


def randomized(network: nn.Module) -> nn.Module:
    """The network with parameters that are all random, in float64."""
    generator = torch.Generator().manual_seed(0)
    network.double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return network


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("size", [16, 8])  # maps that convolutions of enlarged ones fold, and smaller ones
@pytest.mark.parametrize("network", [DDPMPP, NCSNPP], ids=["ddpm++", "ncsn++"])
def test_the_network_is_the_published_one(network: SongUNetConfig, size: int) -> None:
    network = replace(small(network), attention_resolutions=(size // 2,))
    ours = randomized(SongUNet(network, image_size=size, channels=3, num_classes=CLASSES, augment_dims=9))
    x, t, augment = drawn(4, 3, size, size), drawn(4, seed=2), drawn(4, 9, seed=3)
    labels = torch.tensor([0, 4, NO_LABEL, 2])
    one_hot = torch.eye(CLASSES, dtype=torch.float64)[labels.clamp(min=0)] * (labels >= 0)[:, None]
    state = ours.state_dict()
    for told in (augment, None):
        expected = reference.song_unet(state, x, t, one_hot=one_hot, augment=told, taps=network.resample_filter)
        assert expected.std() > 0.1
        torch.testing.assert_close(ours(x, t, labels, augment=told), expected, rtol=1e-10, atol=1e-10)


def test_several_heads() -> None:
    ours = randomized(SongUNet(replace(small(DDPMPP), num_heads=4), image_size=16, channels=1))
    x, t = drawn(2, 1, 16, 16), drawn(2)
    attended: list[tuple[Tensor, Tensor]] = []
    block = ours.enc["8x8_block0"]
    assert isinstance(block, nn.Module)
    block.register_forward_hook(lambda module, args, output: attended.append((args[0], output)))
    embedding = ours._embed(t, None, None)  # type: ignore[operator]
    ours(x, t)
    (came, went) = attended[0]
    parts = {"taps": (1, 1), "eps": 1e-6, "scale": math.sqrt(0.5), "shifts": False}
    expected = reference.block(ours.state_dict(), "enc.8x8_block0", came, embedding, width=went.shape[1] // 4, **parts)
    torch.testing.assert_close(went, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("network", [DDPMPP, ADMUNetConfig()], ids=["ddpm++", "adm"])
def test_augmentation_is_embedded_in_full_precision(network: EDMNetworkConfig) -> None:
    """As the noise level is, where convolutions are in half precision."""
    told: list[torch.dtype] = []
    ours = network.shrunk().build(DataSpec(image_size=8, channels=1), num_classes=None, augment_dims=9).eval()
    assert isinstance(ours.map_augment, nn.Module)
    ours.map_augment.register_forward_hook(lambda module, given, output: told.append(output.dtype))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        ours(drawn(2, 1, 8, 8).float(), drawn(2).float(), augment=drawn(2, 9).float())
    assert told == [torch.float32]


@pytest.mark.parametrize("network", [DDPMPP, NCSNPP, ADMUNetConfig()], ids=["ddpm++", "ncsn++", "adm"])
def test_recomputed_blocks_give_the_same_gradient(network: EDMNetworkConfig, float64: None) -> None:
    spec = DataSpec(image_size=8, channels=3)
    x, t, rng = drawn(3, 3, 8, 8), drawn(3), Rng(0, ("x",), torch.arange(3))
    found = []
    for again in (False, True):
        torch.manual_seed(0)
        ours = replace(network.shrunk(), checkpoint=again).build(spec, num_classes=None, augment_dims=9)  # type: ignore[call-arg]
        randomized(ours).train()
        ours(x, t, None, rng, augment=drawn(3, 9)).square().sum().backward()
        found.append([parameter.grad for parameter in ours.parameters()])
    for plain, recomputed in zip(*found, strict=True):
        torch.testing.assert_close(plain, recomputed, rtol=1e-9, atol=1e-9)


def test_dropout_takes_features_away_before_the_last_convolution(float64: None) -> None:
    ours = SongUNet(replace(DDPMPP.shrunk(), dropout=0.5), image_size=8, channels=1).train()
    block, seen = ours.enc["8x8_block0"], []
    block.conv1.register_forward_hook(lambda module, args, output: seen.append(args[0]))  # type: ignore[union-attr]
    rng = Rng(0, ("x",), torch.arange(4))
    ours(drawn(4, 1, 8, 8), drawn(4), None, rng)
    ours.eval()(drawn(4, 1, 8, 8), drawn(4))
    dropped, whole = seen
    assert 0.45 < (dropped == 0).double().mean() < 0.55
    torch.testing.assert_close(dropped[dropped != 0], 2 * whole[dropped != 0])
    with pytest.raises(ValueError, match="needs an rng"):
        ours.train()(drawn(4, 1, 8, 8), drawn(4))


@pytest.mark.parametrize(
    ("network", "size", "classes", "augmented", "count"),
    [
        # EDM's README and logs say 55.7M, 61.8M and 295.9M; the last digits are from the formulas.
        (replace(DDPMPP, channel_mult=(2, 2, 2)), 32, None, 9, 55_733_891),
        (replace(DDPMPP, channel_mult=(2, 2, 2)), 32, 10, 9, 55_735_299),
        (DDPMPP, 64, None, 9, 61_805_571),
        (ADMUNetConfig(), 64, 1000, 0, 295_899_267),
    ],
)
def test_numbers_of_parameters(network: EDMNetworkConfig, size: int, classes: int | None, augmented: int, count: int) -> None:
    with torch.device("meta"):
        ours = network.build(DataSpec(image_size=size, channels=3, num_classes=classes), num_classes=classes, augment_dims=augmented)
    assert sum(parameter.numel() for parameter in ours.parameters()) == count


@pytest.mark.parametrize("network", [DDPMPP, NCSNPP], ids=["ddpm++", "ncsn++"])
def test_initial_weights(network: SongUNetConfig) -> None:
    """U(-a, a), a = gain sqrt(6 / (fan_in + fan_out)): the gain is 1e-5 where a branch ends, sqrt(0.2) of qkv; biases are 0."""
    torch.manual_seed(0)
    ours = SongUNet(replace(small(network), num_channels=32), image_size=16, channels=3, num_classes=CLASSES, augment_dims=9)
    seen = set()
    for name, parameter in ours.named_parameters():
        kind = name.split(".")[-2]
        if "norm" in kind:
            assert torch.equal(parameter, torch.ones_like(parameter) * (name.endswith("weight")))
        elif name.endswith("bias"):
            assert not parameter.any()
        else:
            taps = parameter[0, 0].numel()
            bound = math.sqrt(6 / (parameter.shape[0] * taps + parameter.shape[1] * taps))
            last = kind in ("conv1", "proj") or kind.endswith("aux_conv")
            bound *= 1e-5 if last else math.sqrt(0.2) if kind == "qkv" else 1
            assert 0.9 * bound < parameter.abs().max() <= bound * (1 + 1e-6), name
            assert abs(parameter.mean()) < 0.2 * bound, name
            seen.add("last" if last else kind)
    assert {"last", "qkv", "skip", "affine", "map_label", "map_augment", "map_layer0"} <= seen
    assert 15 < FourierEmbedding(2000).freqs.std() < 17


@pytest.mark.parametrize(("channels", "groups"), [(2, 1), (4, 1), (8, 2), (64, 16), (128, 32), (384, 32)])
def test_groups_of_a_norm(channels: int, groups: int) -> None:
    """32, fewer where they would have less than 4 channels."""
    assert SongUNet(replace(small(DDPMPP), num_channels=channels), image_size=16, channels=3).enc["16x16_block0"].norm0.num_groups == groups


def test_adm_is_told_of_augmentation(float64: None) -> None:
    """Beside the sinusoids, by a map that is 0 at first."""
    spec = DataSpec(image_size=8, channels=3, num_classes=CLASSES)
    ours = ADMUNet(ADMUNetConfig().shrunk(), spec, num_classes=CLASSES, augment_dims=9)
    x, t, labels, augment = drawn(2, 3, 8, 8), drawn(2), torch.tensor([1, 2]), drawn(2, 9)
    assert ours.map_augment is not None and not ours.map_augment.weight.any()
    randomized(ours)
    with torch.no_grad():
        assert (ours(x, t, labels, augment=augment) - ours(x, t, labels)).std() > 0.01
        assert torch.equal(ours(x, t, labels, augment=torch.zeros(2, 9)), ours(x, t, labels))


@pytest.mark.parametrize(
    ("settings", "size", "said"),
    [
        ({"channel_mult": (1, 2, 2, 2)}, 36, "channel_mult: got 1, 2, 2, 2 for images of 36 pixels, expected a multiple of 8"),
        ({"attention_resolutions": (12,)}, 64, "attention_resolutions: got 12, expected some of this network's resolutions"),
        ({"num_channels": 36}, 64, "num_channels: gives a layer of 144 channels, which 32 groups of a norm cannot share"),
        ({"num_channels": 7}, 64, "num_channels: got 7, expected an even number"),
        ({"num_heads": 3}, 64, "num_heads: got 3, expected a divisor of num_channels, 128"),
        ({"resample_filter": (1.0, 2.0)}, 64, "resample_filter: got 1.0, 2.0, expected 1,1 or 1,3,3,1"),
        ({"dropout": 1.0}, 64, "dropout: got 1.0, expected from 0 to below 1"),
    ],
)
def test_networks_that_there_are_not(settings: dict[str, object], size: int, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SongUNet(replace(DDPMPP, **settings), image_size=size, channels=3)  # type: ignore[arg-type]
    assert str(caught.value).startswith(said)


def test_rectangles_whose_sides_the_levels_divide() -> None:
    network = replace(DDPMPP, num_channels=32, channel_mult=(1, 1, 1, 1), num_blocks=1, attention_resolutions=())
    config = EDMConfig(network=network)
    model = config.build(DataSpec(image_size=16, width=24, channels=3)).eval()
    with torch.no_grad():
        assert model.predict(torch.zeros(1, 3, 16, 24), torch.ones(1, 1, 1, 1), None).shape == (1, 3, 16, 24)
    with pytest.raises(ConfigError, match="^network: got images of 16 x 20 pixels, expected a data.width that is a multiple of 8"):
        config.build(DataSpec(image_size=16, width=20, channels=3))
    assert [ADMUNetConfig(channel_mult=mult).halvings(16) for mult in (None, (1, 2, 2, 2))] == [2, 3]
    with pytest.raises(ConfigError, match=r"network.channel_mult: got 1, 1, 1, 1 for images of 18 pixels, expected a multiple of 8"):
        config.build(DataSpec(image_size=18, channels=3))


def test_labels_exactly_when_the_network_has_classes() -> None:
    ours = SongUNet(DDPMPP.shrunk(), image_size=8, channels=1, num_classes=CLASSES)
    with pytest.raises(ValueError, match="labels"):
        ours(torch.zeros(4, 1, 8, 8), torch.zeros(4))
