"""imaginaire's weights in, its calls and names of outputs; every file or setting that does not fit is named in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.gans import recorded
from tests.gans.published import (
    COCO_TINY,
    FUNIT_D_TINY,
    FUNIT_TINY,
    HD_PATCH,
    MUNIT_TINY,
    PIX2PIXHD_PATCH,
    PIX2PIXHD_TINY,
    SPADE_PATCH_TINY,
    SPADE_TINY,
    UNIT_PATCH,
    UNIT_TINY,
)
from triptych.core.errors import CheckpointError, ConfigError
from triptych.gans.discriminators import MultiResPatch, PairDiscriminator, ResidualDiscriminatorConfig
from triptych.gans.funit import FUNITDiscriminator, FUNITGenerator
from triptych.gans.instance_features import FeatureEncoderConfig
from triptych.gans.munit import MUNITGenerator
from triptych.gans.pix2pixhd import Pix2PixHDDiscriminator, Pix2PixHDGenerator, with_edges
from triptych.gans.spade import SPADEDiscriminator, SPADEDiscriminatorConfig, SPADEGenerator
from triptych.gans.unit import UNITGenerator
from triptych.gans.weight_norms import fold_spectral_norm
from triptych.interop.imaginaire import from_state_dict

ARRAYS, CASES = recorded.recorded()
TOLERANCE = 1e-4


def networks(*states: Any, **options: Any) -> tuple[Any, Any]:
    model = from_state_dict(*states, **options)
    return model.generator, model.discriminator


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def published(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    case = CASES[name]
    return recorded.weights(name, "G", case["G_keys"]), recorded.weights(name, "D", case["D_keys"]), {k: case[k] for k in ("gen", "dis")}


@torch.no_grad()
def test_spade() -> None:
    generator, discriminator = networks(*published("spade"))
    label, images = recorded.label(ARRAYS), recorded.images("spade", "images")
    z = torch.from_numpy(ARRAYS["spade/mu"]) + torch.exp(torch.from_numpy(ARRAYS["spade/logvar"]) / 2) * recorded.draw("spade", 0, 8)
    out = generator(label=label, images=images, z=z)
    assert set(out) == {"fake_images", "mu", "logvar"}
    for key, value in out.items():
        assert recorded.difference(value, ARRAYS[f"spade/{key}"]) < TOLERANCE, key
    scores = discriminator(label=label, images=images, fake_images=out["fake_images"])
    assert set(scores) == {"real_outputs", "real_features", "fake_outputs", "fake_features"}
    for key in ("real_outputs", "fake_outputs"):
        assert len(scores[key]) == 5
        for index, value in enumerate(scores[key]):
            assert recorded.difference(value, ARRAYS[f"spade/D/{key}/{index}"]) < TOLERANCE
    assert [len(layers) for layers in scores["real_features"]] == [6, 6]
    again = generator(label=label, z=z)
    assert set(again) == {"fake_images"} and torch.equal(again["fake_images"], out["fake_images"])
    torch.manual_seed(1)
    drawn = torch.randn(1, 8)
    torch.manual_seed(1)
    torch.testing.assert_close(generator(label=label)["fake_images"], generator(label=label, z=drawn)["fake_images"])


@torch.no_grad()
@pytest.mark.parametrize("name", ["unit", "munit"])
def test_unit_and_munit(name: str) -> None:
    generator, discriminator = networks(*published(name))
    given = {f"images_{x}": recorded.images(name, f"images_{x}") for x in "ab"}
    styles = {} if name == "unit" else {f"style_{x}_rand": recorded.draw("munit", i, 8, 1, 1) for i, x in enumerate("ab")}
    out = generator(**given, **styles)
    names = {key.removeprefix(f"{name}/") for key in ARRAYS if key.startswith(f"{name}/") and "/D/" not in key}
    assert set(out) == names
    for key, value in out.items():
        assert recorded.difference(value, ARRAYS[f"{name}/{key}"]) < TOLERANCE, key
    scores = discriminator(**given, images_ab=out["images_ab"], images_ba=out["images_ba"])
    assert set(scores) == {f"{kind}_{x}" for kind in ("out", "fea") for x in ("a", "b", "ab", "ba")}
    for x in ("a", "b", "ab", "ba"):
        if name == "munit":
            assert recorded.difference(scores[f"out_{x}"], ARRAYS[f"munit/D/out_{x}"]) < TOLERANCE
            continue
        for index, value in enumerate(scores[f"out_{x}"]):
            assert recorded.difference(value, ARRAYS[f"unit/D/out_{x}/{index}"]) < TOLERANCE


@torch.no_grad()
def test_random_styles_of_munit_and_those_of_the_images() -> None:
    weights = MUNITGenerator(MUNIT_TINY).state_dict()
    generator, _ = networks(weights, None, {"gen": {"type": "imaginaire.generators.munit"}})
    given = {"images_a": torch.randn(2, 3, 32, 32), "images_b": torch.randn(2, 3, 32, 32)}
    torch.manual_seed(1)
    out = generator(**given)
    torch.manual_seed(1)
    a, b = torch.randn(2, 8, 1, 1), torch.randn(2, 8, 1, 1)
    assert torch.equal(out["style_a_rand"], a) and torch.equal(out["style_b_rand"], b)
    own = generator(**given, random_style=False, image_recon=False, cycle_recon=False, latent_recon=False)
    assert set(own) == {"images_ab", "images_ba", "content_a", "content_b", "style_a", "style_b"}
    assert torch.equal(own["images_ab"], generator(**given, style_a_rand=own["style_a"], style_b_rand=own["style_b"])["images_ab"])


@dataclass(frozen=True)
class Pair:
    """A model's two networks, and their type."""

    kind: str
    generator: Callable[[], nn.Module]
    discriminator: Callable[[], nn.Module]


FEATURES = replace(PIX2PIXHD_TINY, encoder=FeatureEncoderConfig(num_filters=4, num_downsamples=2))
PAIRS = [
    Pair(
        "spade",
        lambda: SPADEGenerator(replace(SPADE_TINY, resolution=512, positional_input=True, encoder_size=128), label_channels=5),
        lambda: SPADEDiscriminator(SPADEDiscriminatorConfig(patch=SPADE_PATCH_TINY, feature_pyramid=False), label_channels=5),
    ),
    Pair(
        "spade",
        lambda: SPADEGenerator(
            replace(SPADE_TINY, style_dims=None, separate_projection=False, weight_norm="weight"), label_channels=2, image_channels=1
        ),
        lambda: SPADEDiscriminator(SPADEDiscriminatorConfig(patch=SPADE_PATCH_TINY), label_channels=2, image_channels=1),
    ),
    Pair(
        "pix2pixHD",
        lambda: Pix2PixHDGenerator(PIX2PIXHD_TINY, label_channels=7),
        lambda: Pix2PixHDDiscriminator(replace(PIX2PIXHD_PATCH, num_filters=4), label_channels=7),
    ),
    Pair(
        "pix2pixHD",
        lambda: Pix2PixHDGenerator(replace(PIX2PIXHD_TINY, num_enhancers=2), label_channels=7),
        lambda: Pix2PixHDDiscriminator(replace(PIX2PIXHD_PATCH, num_filters=4, num_discriminators=3), label_channels=7),
    ),
    Pair(
        "pix2pixHD",
        lambda: Pix2PixHDGenerator(FEATURES, label_channels=7),
        lambda: Pix2PixHDDiscriminator(replace(PIX2PIXHD_PATCH, num_filters=4, weight_norm="none"), label_channels=7),
    ),
    Pair(
        "spade",
        lambda: SPADEGenerator(replace(SPADE_TINY, style_dims=None, spade_filters=0), label_channels=2),
        lambda: SPADEDiscriminator(SPADEDiscriminatorConfig(patch=SPADE_PATCH_TINY, feature_pyramid=False), label_channels=2),
    ),
    Pair(
        "unit",
        lambda: UNITGenerator(replace(UNIT_TINY, pre_activation=False, weight_norm="spectral")),
        lambda: PairDiscriminator(replace(UNIT_PATCH, num_filters=4)),
    ),
    Pair(
        "munit",
        lambda: MUNITGenerator(replace(MUNIT_TINY, num_downsamples_content=3, weight_norm="weight")),
        lambda: PairDiscriminator(replace(HD_PATCH, num_filters=4)),
    ),
    Pair(
        "munit",
        lambda: MUNITGenerator(replace(MUNIT_TINY, mlp_layers=4, max_num_filters=8), image_channels=1),
        lambda: PairDiscriminator(ResidualDiscriminatorConfig(num_filters=4, num_layers=3), image_channels=1),
    ),
    Pair("funit", lambda: FUNITGenerator(FUNIT_TINY), lambda: FUNITDiscriminator(FUNIT_D_TINY, num_classes=5)),
    Pair("coco_funit", lambda: FUNITGenerator(COCO_TINY), lambda: FUNITDiscriminator(FUNIT_D_TINY, num_classes=5)),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.kind)
def test_networks_are_read_from_their_weights(pair: Pair) -> None:
    own = pair.generator(), pair.discriminator()
    states = [network.state_dict() for network in own]
    config = {"gen": {"type": f"imaginaire.generators.{pair.kind}"}, "dis": {"type": f"imaginaire.discriminators.{pair.kind}"}}
    for network, read in zip(own, networks(*states, config), strict=True):
        assert not read.training and repr(read.network) == repr(network.eval())
        assert all(
            torch.equal(one, other) for one, other in zip(read.network.state_dict().values(), network.state_dict().values(), strict=True)
        )


def test_copies_of_the_weights_are_taken() -> None:
    state = UNITGenerator(UNIT_TINY).state_dict()
    generator, none = networks(state, None, {"gen": {"type": "unit"}})
    assert none is None
    first = next(iter(state))
    state[first].zero_()
    assert generator.network.state_dict()[first].any()


@torch.no_grad()
def test_pix2pixhd_takes_instances_as_the_last_channel_and_judges_with_their_edges() -> None:
    own, judge = PAIRS[2].generator().eval(), PAIRS[2].discriminator().eval()
    generator, discriminator = networks(
        own.state_dict(), judge.state_dict(), {"gen": {"type": "pix2pixHD"}, "dis": {"type": "multires_patch"}}
    )
    label = torch.zeros(1, 7, 32, 32)
    label[:, 6, :, 16:] = 26003
    edged = torch.zeros(1, 7, 32, 32)
    edged[:, 6, :, 15:17] = 1
    images = generator(label=label)["fake_images"]
    torch.testing.assert_close(images, own(label=edged))
    scores = discriminator(label=label, images=images)
    assert set(scores) == {"real_outputs", "real_features"}
    torch.testing.assert_close(scores["real_outputs"][1], judge(images, label=edged).outputs[1])
    with_features, _ = networks(PAIRS[4].generator().state_dict(), None, {"gen": {"type": "pix2pixHD"}})
    assert set(with_features(label=label, images=images)) == {"fake_images", "feature_maps"}


@torch.no_grad()
def test_pix2pixhd_takes_label_maps_that_have_edges_already() -> None:
    own, judge, encoding = PAIRS[2].generator().eval(), PAIRS[2].discriminator().eval(), PAIRS[4].generator().eval()
    config = {"gen": {"type": "pix2pixHD"}, "dis": {"type": "multires_patch"}}
    model = from_state_dict(own.state_dict(), judge.state_dict(), config, edges=False)
    assert model.generator is not None and model.discriminator is not None
    instances = torch.zeros(1, 1, 32, 32)
    instances[..., 16:] = 26003
    plain = torch.randn(1, 6, 32, 32)
    edged = with_edges(plain, instances)
    images = model.generator(label=edged)["fake_images"]
    assert torch.equal(images, own(label=edged))
    scores = model.discriminator(label=edged, images=images)
    assert torch.equal(scores["real_outputs"][1], judge(images, label=edged).outputs[1])
    read = [from_state_dict(encoding.state_dict(), None, config, edges=edges).generator for edges in (True, False)]
    assert read[0] is not None and read[1] is not None
    given = read[0](label=torch.cat((plain, instances), dim=1), images=images)
    again = read[1](label=edged, images=images, instance_maps=instances)
    assert all(torch.equal(given[name], again[name]) for name in ("fake_images", "feature_maps"))
    with pytest.raises(ValueError, match="needs instance_maps"):
        read[1](label=edged, images=images)


@torch.no_grad()
@pytest.mark.parametrize("pair", PAIRS[-2:], ids=lambda pair: pair.kind)
def test_funit_and_coco_funit(pair: Pair) -> None:
    own, judge = pair.generator().eval(), pair.discriminator().eval()
    generator, discriminator = networks(own.state_dict(), judge.state_dict(), {"gen": {"type": pair.kind}})
    labels = {"labels_content": torch.tensor([0, 1]), "labels_style": torch.tensor([2, 3])}
    given = {"images_content": torch.randn(2, 3, 64, 64), "images_style": torch.randn(2, 3, 64, 64)}
    out = generator(**given, **labels)
    expected = own(**given)
    assert torch.equal(out["images_trans"], expected.images_trans) and torch.equal(out["images_recon"], expected.images_recon)
    scores = discriminator(**given, **labels, **out)
    judged = judge(out["images_recon"], labels=labels["labels_content"])
    torch.testing.assert_close(scores["fake_out_recon"], judged.outputs[0])
    torch.testing.assert_close(scores["fake_features_recon"], judged.features[0][0])
    assert set(scores) == {
        f"{kind}" for x in ("real_{}_style", "fake_{}_trans", "fake_{}_recon") for kind in map(x.format, ("out", "features"))
    }


@torch.no_grad()
def test_the_average_is_preferred_and_its_spectral_norm_is_folded() -> None:
    live, averaged = MUNITGenerator(MUNIT_TINY).eval(), MUNITGenerator(MUNIT_TINY).eval()
    state = {f"module.module.{key}": tensor for key, tensor in live.state_dict().items()}
    state |= {f"module.averaged_model.{key}": tensor for key, tensor in fold_spectral_norm(averaged.state_dict()).items()}
    state["module.num_updates_tracked"] = torch.tensor(5)
    given = {"images_a": torch.randn(1, 3, 32, 32), "images_b": torch.randn(1, 3, 32, 32)}
    config = {"gen": {"type": "munit", "weight_norm_type": "spectral"}}
    for prefer, expected in ((True, averaged), (False, live)):
        generator, _ = networks(state, None, config, averaged=prefer)
        torch.testing.assert_close(generator(**given, random_style=False)["images_ab"], expected(**given).images_ab, atol=1e-4, rtol=1e-4)
    plain = {f"module.{key}": tensor for key, tensor in live.state_dict().items()}
    assert networks(plain, None, config)[0] is not None


@cache
def munit_weights() -> dict[str, Tensor]:
    return MUNITGenerator(MUNIT_TINY).state_dict()


def broken(change: Callable[[dict[str, Tensor]], Any], **settings: Any) -> None:
    state = dict(munit_weights())
    change(state)
    networks(state, None, {"gen": {"type": "munit", **settings}})


FIRST = "autoencoder_a.style_encoder.model.0.layers.conv.weight_orig"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop(FIRST), f"it has no {FIRST}"),
        (lambda s: s.pop("autoencoder_b.mlp.model.1.layers.conv.bias"), "it has no autoencoder_b.mlp.model.1.layers.conv.bias"),
        (lambda s: s.pop("autoencoder_a.mlp.model.0.layers.conv.weight"), "it has no autoencoder_a.mlp.model.0.layers.conv.weight"),
        (lambda s: s.update({"extra": torch.ones(1)}), "it has extra"),
        (lambda s: s.update({FIRST: torch.ones(4, 3, 7, 5)}), rf"{FIRST} has shape \[4, 3, 7, 5\], expected \[4, 3, 7, 7\]"),
        (lambda s: s.update({FIRST: torch.ones(4, 3, 7, 7, dtype=torch.int64)}), f"{FIRST} has type torch.int64"),
        (lambda s: s.update({FIRST: torch.full((4, 3, 7, 7), torch.nan)}), f"{FIRST} holds values that are not finite"),
        (lambda s: s.update({"autoencoder_a.content_encoder.model.0.layers.conv.weight_orig": torch.ones(())}), "expected at least 4 axes"),
        (lambda s: s.clear(), "is empty"),
        (lambda s: s.update(net_D={}), "holds a dict under 'net_D'"),
    ],
)
def test_weights_that_do_not_fit_are_named(change: Callable[[dict[str, Tensor]], Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as raised:
        broken(change)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.kind)
@pytest.mark.parametrize("part", [0, 1])
def test_every_cut_file_is_refused_by_name(pair: Pair, part: int) -> None:
    """Without a tensor of a network, or with one of another number of axes, at every place in turn."""
    state = (pair.generator, pair.discriminator)[part]().state_dict()
    config = {("gen", "dis")[part]: {"type": pair.kind}}
    for place, name in enumerate(dict.fromkeys([*list(state)[:: max(1, len(state) // 6)], list(state)[-1]])):
        changes = (
            {k: v for k, v in state.items() if k != name},
            state | {name: state[name][None]},
            state | {name: state[name].flatten()[:0]},
        )
        given: list[Any] = [None, None]
        given[part] = changes[place % 3]
        with pytest.raises((CheckpointError, ConfigError)) as raised:
            networks(*given, config)
        assert "\n" not in str(raised.value) and len(str(raised.value)) < 300


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_filters": 8}, rf"{FIRST.replace('weight_orig', 'bias')} has shape \[4\], expected \[8\]"),
        ({"num_filters": "8"}, "gen.num_filters: got '8', expected a whole number from 1 to"),
        ({"num_filters": 10**9}, "gen.num_filters: got 1000000000"),
        ({"num_downsamples_content": 500}, "gen.num_downsamples_content: got 500"),
        ({"num_res_blocks": 3}, "the file is incomplete: it has no autoencoder_a.decoder.decoder.4.layers.conv.bias"),
        ({"pre_act": 1}, "gen.pre_act: got 1, expected true or false"),
        ({"content_norm_type": "instanc"}, "gen.content_norm_type: got 'instanc'.*did you mean \"instance\""),
        ({"output_nonlinearity": ["tanh"]}, "gen.output_nonlinearity"),
    ],
)
def test_settings_that_do_not_fit_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, CheckpointError), match=message) as raised:
        broken(lambda state: None, **settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "gen.type: missing, expected imaginaire.generators.NAME"),
        ({"gen": {"type": "imaginaire.generators.gancraft"}}, "gen.type: got 'imaginaire.generators.gancraft', expected one that ends in"),
        ({"gen": {"type": 3}}, "gen.type: got 3"),
        ({"gen": 3}, "gen: got 3, expected a table"),
        ([], "expected a table with the sections gen and dis"),
        ({"gen": {"type": "spade", "activation_norm_params": 5}}, "gen.activation_norm_params: got 5, expected a table"),
        ({"gen": {"type": "spade", "output_multiplier": float("nan")}}, "gen.output_multiplier: got nan, expected a number"),
    ],
)
def test_sections_that_are_none_are_named(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        networks(SPADEGenerator(SPADE_TINY, label_channels=3).state_dict(), None, config)


def test_multi_scale_patches_alone_are_no_discriminator_of_a_model() -> None:
    with pytest.raises(CheckpointError, match="discriminator_a"):
        networks(None, MultiResPatch(replace(HD_PATCH, num_filters=4)).state_dict(), {"dis": {"type": "munit"}})


@torch.no_grad()
@pytest.mark.parametrize("name", ["spade", "unit", "munit"])
def test_from_state_dict_takes_either_half(name: str) -> None:
    generator, discriminator, config = published(name)
    whole = from_state_dict(generator, discriminator, config)
    assert whole.kind == name and not whole.training and whole.generator is not None and whole.discriminator is not None
    assert not any(module.training for module in whole.modules())
    one, other = from_state_dict(generator, None, {"gen": config["gen"]}), from_state_dict(None, discriminator, {"dis": config["dis"]})
    assert one.discriminator is None and one.generator is not None and other.generator is None and other.discriminator is not None
    given = {f"images_{x}": recorded.images(name, f"images_{x}") for x in "ab"} if name != "spade" else {"label": recorded.label(ARRAYS)}
    fixed = {"random_style": False} if name == "munit" else {"z": torch.ones(1, 8)} if name == "spade" else {}
    outputs = whole.generator(**given, **fixed)
    for key, value in one.generator(**given, **fixed).items():
        assert torch.equal(value, outputs[key]), key
    shown = given | ({"fake_images": outputs["fake_images"]} if name == "spade" else {})
    assert set(other.discriminator(**shown)) == set(whole.discriminator(**shown)) != set()
    assert len(list(whole.parameters())) == len(list(one.parameters())) + len(list(other.parameters()))
