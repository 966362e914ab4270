"""Glow as a whole: recorded values, exactness of its density and of its inverse, what it promises as a model."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest
import torch

from tests.diffusion import recorded
from tests.flows.flows import batch, glow, images, rng
from triptych.core.batch import DataSpec
from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.core.images import to_uint8
from triptych.core.model import Encoder, Likelihood, Sampler, VariationalBound
from triptych.evaluation.bits_per_dim import BitsPerDimConfig, bits_per_dim
from triptych.flows.glow import Glow, GlowConfig, GlowEncodingConfig, GlowLikelihoodConfig, GlowSamplingConfig
from triptych.flows.memory import MemoryName
from triptych.interop.glow import from_variables

ARRAYS, FLAGS = recorded.load("glow")


@pytest.fixture(scope="module")
def published() -> Glow:
    weights = {name.removeprefix("weights/"): array for name, array in ARRAYS.items() if name.startswith("weights/")}
    return from_variables(weights, FLAGS)


def given(name: str) -> torch.Tensor:
    return torch.from_numpy(ARRAYS[name])


# Recorded values -----------------------------------------------------------------------------------------------------


def test_recorded_bits_per_dim(published) -> None:
    found = published.bits_per_dim(given("x"), noise=given("u"))
    np.testing.assert_allclose(found.numpy(), ARRAYS["bits_per_dim"], atol=1e-5, rtol=0)


def test_recorded_latents(published) -> None:
    latents = published.encode(given("x"), noise=given("u"))
    assert len(latents) == 3
    for i, latent in enumerate(latents):
        torch.testing.assert_close(latent, given(f"eps/{i}"), atol=1e-4, rtol=0)


def test_recorded_sample(published) -> None:
    with torch.no_grad():
        sample = published.network.inverse([given(f"sample_eps/{i}") for i in range(3)], None)
    torch.testing.assert_close(sample, given("sample"), atol=1e-3, rtol=0)


# The density ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"num_classes": 3, "class_conditional": True},
        {"permutation": "conv-lu", "coupling": "additive", "border": "none"},
        {"permutation": "shuffle", "learn_top": False},
    ],
)
def test_density_is_that_of_a_change_of_variables(settings) -> None:
    """log p(x) = log N(latents; 0, 1) + log|det d latents / dx|, the Jacobian by autograd in float64."""
    model = glow(channels=1, width=6, **settings).double()
    labels = torch.tensor([2]) if settings.get("class_conditional") else None
    x = torch.rand(1, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 0.5

    def flat(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([latent.flatten(1) for latent in model.network(x, labels).latents], dim=1)

    jacobian = torch.autograd.functional.jacobian(flat, x)
    assert isinstance(jacobian, torch.Tensor)
    log_det = torch.linalg.slogdet(jacobian.reshape(64, 64)).logabsdet
    normal = -0.5 * (flat(x).square().sum() + 64 * math.log(2 * math.pi))
    assert log_det.abs() > 1
    torch.testing.assert_close(model.network(x, labels).log_prob[0], normal + log_det, atol=1e-9, rtol=0)


def test_bits_per_dim_is_the_density_of_the_dequantized_image() -> None:
    model = glow(bits=5)
    x, u = images(3), torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(4))
    encoded = model.network((torch.div(x, 8, rounding_mode="floor") + u) / 32 - 0.5, None)
    expected = (192 * math.log(32) - encoded.log_prob) / (192 * math.log(2))
    torch.testing.assert_close(model.bits_per_dim(x, noise=u), expected)
    torch.testing.assert_close(model.bits_per_dim(x), model.bits_per_dim(x, noise=torch.full_like(u, 0.5)))


def test_density_integrates_to_1() -> None:
    model = glow(channels=1, image_size=2, levels=1, depth=2, by=0.15)
    points, extent = 26, 7.0
    side = (torch.arange(points) + 0.5) / points * 2 * extent - extent
    total = 0.0
    for part in torch.cartesian_prod(side, side, side, side).view(-1, 1, 2, 2).split(100_000):
        with torch.no_grad():
            total += float(model.network(part, None).log_prob.double().exp().sum())
    assert total * (2 * extent / points) ** 4 == pytest.approx(1, abs=5e-3)


# Inverse -------------------------------------------------------------------------------------------------------------


def deep(**settings: Any) -> Glow:
    """A model of 32 steps to a level, moved off the identity and then normalized by some images."""
    model = glow(image_size=16, levels=3, depth=32, **({"width": 16, "by": 0.02} | settings))
    model.initialize(batch(images(32, image_size=16, channels=settings.get("channels", 3), seed=9)), rng(32))
    return model


@pytest.mark.parametrize("coupling", ["additive", "affine"])
@pytest.mark.parametrize(("bf16", "tolerance"), [(False, 5e-5), (True, 0.05)])
def test_inverse_at_depth_32(coupling, bf16, tolerance) -> None:
    model, x = deep(coupling=coupling), torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)) - 0.5
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        latents = model.network(x, None).latents
        back = model.network.inverse(latents, None)
    assert (back - x).abs().max() < tolerance
    assert all(0.3 < latent.std() < 3 for latent in latents)


def test_carried_values_stay_float32_under_bf16() -> None:
    model = glow(by=0.03)
    x, precise = images(4), None
    for enabled in (False, True):
        seen = []
        hooks = [
            layer.register_forward_hook(lambda _, __, out, seen=seen: seen.append(out[0].dtype))
            for level in model.network.levels
            for layer in level.steps
        ]
        inner = []
        hidden = model.network.levels[0].steps[0].coupling.network.second
        hooks.append(hidden.register_forward_hook(lambda _, __, out, inner=inner: inner.append(out.dtype)))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            found = model.bits_per_dim(x)
            encoded = model.network(model.dequantization.of_values(x, 0.5, dtype=torch.float32), None)
            back = model.network.inverse(encoded.latents, None)
        for hook in hooks:
            hook.remove()
        assert set(seen) == {torch.float32} and len(seen) >= 2 * 2
        assert inner[0] == (torch.bfloat16 if enabled else torch.float32), "only what is inside the coupling networks"
        assert found.dtype == encoded.log_prob.dtype == encoded.latents[0].dtype == back.dtype == torch.float32
        precise = found if precise is None else precise
        torch.testing.assert_close(found, precise, atol=0.02, rtol=0)
        assert (back - model.dequantization.of_values(x, 0.5, dtype=torch.float32)).abs().max() < (0.05 if enabled else 1e-4)


@pytest.mark.parametrize("make", [lambda: glow(image_size=16), lambda: glow(image_size=16, bits=5), lambda: deep(channels=1), deep])
@pytest.mark.parametrize("bf16", [False, True])
def test_8_bit_images_come_back_exactly(make, bf16) -> None:
    model = make()
    channels = model.image_shape[0]
    every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, channels, 16, 16)
    values = torch.cat((images(7, image_size=16, channels=channels), every))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        latents = model.encode(batch(values).images, labels=None, rng=rng(8), settings=GlowEncodingConfig())
        back = to_uint8(model.decode(latents, labels=None, settings=GlowEncodingConfig())).permute(0, 3, 1, 2)
    step = 2 ** (8 - model.config.bits)
    assert torch.equal(back, values // step * step)
    assert [tuple(latent.shape[1:]) for latent in latents] == model.network.latent_shapes


@pytest.fixture
def tf32() -> Iterator[None]:
    convolutions = torch.backends.cudnn.conv
    before, convolutions.fp32_precision = convolutions.fp32_precision, "tf32"
    yield
    convolutions.fp32_precision = before


@pytest.mark.usefixtures("tf32")
def test_what_has_to_come_back_is_not_rounded_to_tf32() -> None:
    """On a GPU; here it is seen by the setting that it follows."""
    convolutions, model, seen = torch.backends.cudnn.conv, glow(), []
    model.network.levels[0].steps[0].coupling.network.register_forward_hook(lambda *_: seen.append(convolutions.fp32_precision))
    model.decode(model.encode(images(2)))
    assert seen == ["ieee", "ieee"] and convolutions.fp32_precision == "tf32"
    model.bits_per_dim(images(2))
    assert seen[-1] == "tf32", "that is the user's choice"


def test_latents_of_the_published_sizes() -> None:
    with torch.device("meta"):
        shapes = {
            (size, levels): GlowConfig(levels=levels, depth=1, width=2).build(DataSpec(image_size=size, channels=3)).network.latent_shapes
            for size, levels in ((32, 3), (64, 4))
        }
    assert shapes[32, 3] == [(6, 16, 16), (12, 8, 8), (48, 4, 4)]
    assert shapes[64, 4] == [(6, 32, 32), (12, 16, 16), (24, 8, 8), (96, 4, 4)]


@pytest.mark.parametrize(
    ("levels", "depth", "coupling", "classes", "parameters", "tensors"),
    [
        (3, 32, "affine", None, 44_603_604, 1161),
        (3, 32, "additive", None, 38_395_668, 1161),
        (3, 48, "affine", None, 66_861_588, 1737),
        (4, 48, "affine", None, 112_377_540, 2316),
        (6, 32, "additive", None, 175_099_620, 2322),
        (5, 64, "additive", None, 200_432_868, 3855),
        (3, 32, "additive", 10, 38_397_320, 1167),
        (3, 48, "additive", 1000, 57_695_876, 1743),
    ],
)
def test_number_of_parameters(levels, depth, coupling, classes, parameters, tensors) -> None:
    conditional: dict[str, Any] = {"class_conditional": True, "class_weight": 0.01} if classes else {}
    config = GlowConfig(levels=levels, depth=depth, coupling=coupling, **conditional)
    with torch.device("meta"):
        model = config.build(DataSpec(image_size=2 ** (levels + 2), channels=3, num_classes=classes))
    found = list(model.parameters())
    assert (sum(p.numel() for p in found), len(found)) == (parameters, tensors)


# As a model ----------------------------------------------------------------------------------------------------------


def test_capabilities() -> None:
    model = glow()
    assert isinstance(model, Sampler) and isinstance(model, Likelihood) and isinstance(model, Encoder)
    assert not isinstance(model, VariationalBound)
    assert {memory: glow(memory=memory).saves_memory for memory in get_args(MemoryName)} == {
        "autograd": False,
        "checkpoint": True,
        "inversion": True,
    }


def test_initialize_normalizes_every_actnorm_in_one_pass() -> None:
    model = glow(by=0.0, depth=3, image_size=16)
    data = batch(images(32, image_size=16))
    model.initialize(data, rng(32))
    outputs: list[torch.Tensor] = []
    for level in model.network.levels:
        for step in level.steps:
            for layer in (step.coupling.network.first, step.coupling.network.second):
                layer.register_forward_hook(lambda _, __, out: outputs.append(out.clone()))  # ReLU works in place
    model.loss(model.phases[0], data, rng(32))
    assert len(outputs) == 2 * 3 * 2
    for y in outputs:
        assert y.mean((0, 2, 3)).abs().max() < 1e-3
        torch.testing.assert_close(y.var((0, 2, 3), correction=0), torch.ones(8), atol=5e-3, rtol=0)


def test_loss_is_bits_per_dim_at_the_noise_of_the_sample() -> None:
    model, values = glow(), images(4)
    terms = model.loss(model.phases[0], batch(values), rng(4))
    expected = model.bits_per_dim(values, noise=rng(4).uniform("dequantization", 3, 8, 8))
    torch.testing.assert_close(terms.loss, expected)
    torch.testing.assert_close(terms.logged["bits_per_dim"], expected)
    other = model.loss(model.phases[0], batch(values), rng(4, seed=1)).loss
    assert (other - terms.loss).abs().min() > 0


def test_class_terms() -> None:
    model = glow(num_classes=4, class_conditional=True, class_weight=0.5)
    values, labels = images(6), torch.tensor([0, 1, 2, 3, 0, 1])
    terms = model.loss(model.phases[0], batch(values, labels), rng(6))
    top = model.network(model._dequantized(batch(values).images, rng(6)), labels).top
    assert model.classifier is not None
    logits = model.classifier(top.mean((2, 3)))
    class_bits = -torch.log2(torch.softmax(logits, 1)[torch.arange(6), labels])
    torch.testing.assert_close(terms.logged["class_bits"], class_bits)
    torch.testing.assert_close(terms.loss, terms.logged["bits_per_dim"] + 0.5 * class_bits)
    assert torch.equal(terms.logged["class_error"], (logits.argmax(1) != labels).float())
    assert terms.loss.requires_grad and not any(term.requires_grad for term in terms.logged.values())
    assert model.phases[0].networks == model.averaged == ("network", "classifier")
    assert (model.bits_per_dim(values, labels=labels) - model.bits_per_dim(values, labels=labels.flip(0))).abs().max() > 1e-4


def test_without_a_weight_nothing_is_asked_of_the_classes() -> None:
    model, values, labels = glow(num_classes=4, class_conditional=True), images(4), torch.arange(4)
    terms = model.loss(model.phases[0], batch(values, labels), rng(4))
    expected = model.bits_per_dim(values, noise=rng(4).uniform("dequantization", 3, 8, 8), labels=labels)
    torch.testing.assert_close(terms.loss, expected)
    assert set(terms.logged) == {"bits_per_dim"} and model.phases[0].networks == ("network",)


def test_label_moves_mean_and_deviation_of_the_top_alone() -> None:
    model = glow(num_classes=4, class_conditional=True)
    x = model.dequantization.of_values(images(1).expand(4, -1, -1, -1), 0.5, dtype=torch.float32)
    encoded = model.network(x, torch.arange(4))
    for same in (encoded.latents[0], encoded.top):  # but for rounding, which may differ with the place in the batch
        torch.testing.assert_close(same[0], same[1])
    prior = model.network.top(torch.arange(4), encoded.top)
    for part in prior:
        assert (part[0] - part[1]).abs().min() > 0
    channels = model.network.latent_shapes[-1][0]
    h = model.network.top.conv(torch.zeros(1, 2 * channels, 2, 2)) + model.network.top.label(torch.eye(4))[:, :, None, None]
    torch.testing.assert_close(prior.mean, h[:, :channels])
    torch.testing.assert_close(prior.log_std, h[:, channels:])


def test_images_by_class_come_back_with_their_labels() -> None:
    model, values = glow(num_classes=4, class_conditional=True), images(4)
    labels = torch.arange(4)
    latents = model.encode(values, labels=labels)
    assert torch.equal(to_uint8(model.decode(latents, labels=labels)), values.permute(0, 2, 3, 1))
    assert not torch.equal(to_uint8(model.decode(latents, labels=labels.flip(0))), values.permute(0, 2, 3, 1))
    for call in (lambda: model.encode(values), lambda: model.decode(latents)):
        with pytest.raises(ConfigError, match="labels: this model needs labels, from 0 to 3"):
            call()


def test_log_prob_is_what_the_metric_measures() -> None:
    model, values = glow(), images(3)
    u = rng(3).uniform("dequantization", 3, 8, 8)
    measured = bits_per_dim(model, BitsPerDimConfig()).measure(batch(values), rng(3))
    torch.testing.assert_close(measured.each["bits_per_dim"].float(), model.bits_per_dim(values, noise=u))
    one = model.log_prob(batch(values), rng(3), settings=GlowLikelihoodConfig(draws=1))
    three = model.log_prob(batch(values), rng(3), settings=GlowLikelihoodConfig(draws=3))
    more = [model.log_prob(batch(values), rng(3).child(k), settings=GlowLikelihoodConfig()) for k in (1, 2)]
    torch.testing.assert_close(three, (one + more[0] + more[1]) / 3)
    assert (three - one).abs().min() > 1e-6
    coarse = glow(bits=5)
    nats = -192 * math.log(2) * coarse.bits_per_dim(values, noise=u)
    torch.testing.assert_close(coarse.log_prob(batch(values), rng(3)).float(), nats)


def test_temperature_multiplies_the_noise() -> None:
    model = glow()
    cold = [model.sample(rng(3, seed), labels=None, settings=GlowSamplingConfig(temperature=(0.0,))) for seed in (0, 1)]
    assert torch.equal(cold[0], cold[1]) and torch.equal(cold[0][0], cold[0][1])
    zeros = [torch.zeros(3, *shape) for shape in model.network.latent_shapes]
    assert torch.equal(cold[0], model.decode(zeros, labels=None, settings=model.encoding))
    noise = [0.7 * rng(3).normal(f"latent/{k}", *shape) for k, shape in enumerate(model.network.latent_shapes)]
    warm = model.sample(rng(3), labels=None, settings=GlowSamplingConfig(temperature=(0.7,)))
    assert torch.equal(warm, model.decode(noise, labels=None, settings=model.encoding)) and not torch.equal(warm[0], warm[1])


def test_uniform_dequantization_of_an_encoding_is_the_noise_of_rng() -> None:
    model, values = glow(), images(2)
    settings = GlowEncodingConfig(dequantization="uniform")
    latents = model.encode(batch(values).images, labels=None, rng=rng(2), settings=settings)
    again = model.encode(values, noise=rng(2).uniform("dequantization", 3, 8, 8))
    middle = model.encode(batch(values).images, labels=None, rng=rng(2), settings=GlowEncodingConfig())
    assert torch.equal(latents[0], again[0]) and not torch.equal(latents[0], middle[0])
    assert torch.equal(middle[0], model.encode(values, noise=torch.full((2, 3, 8, 8), 0.5))[0])
    back = to_uint8(model.decode(latents, labels=None, settings=settings)).permute(0, 3, 1, 2).int()
    assert (back - values.int()).abs().max() <= 1


def test_images_that_are_not_finite_are_black_with_a_warning() -> None:
    model = glow()
    with torch.no_grad():
        model.network.levels[0].steps[0].norm.bias.fill_(math.nan)
    with pytest.warns(UserWarning, match="2 of 2 images are not finite"):
        image = model.sample(rng(2), labels=None, settings=GlowSamplingConfig())
    assert not to_uint8(image).any()


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        ("levels.1.steps.0.mixing.weight", r"levels\.1\.steps\.0\.mixing: its matrix is singular or not finite"),
        ("levels.0.steps.1.norm.log_scale", r"levels\.0\.steps\.1: its output is not finite, from values of up to \d"),
        ("levels.0.steps.0.coupling.network.last.log_scale", r"levels\.0\.steps\.0: its output is not finite, from the image"),
        ("levels.0.split.conv.log_scale", r"levels\.0\.split: "),
        ("top.conv.log_scale", "top: "),
    ],
)
def test_the_layer_that_fails_is_named(layer, reason) -> None:
    model = glow(depth=2)
    model.loss(model.phases[0], batch(images(2)), rng(2))
    with torch.no_grad():
        parameter = dict(model.network.named_parameters())[layer]
        parameter.zero_() if layer.endswith("weight") else parameter.fill_(200.0)
    assert model.fault() is None and model._extent is not None
    assert not any(part.requires_grad for part in model._extent), "it would keep the graph of a step"
    model.loss(model.phases[0], batch(images(2)), rng(2))
    found = model.fault()
    assert found is not None and re.match(reason, found)
    with torch.no_grad():  # what a step on such a loss makes of the weights
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    model.loss(model.phases[0], batch(images(2)), rng(2))
    assert model.fault() == found, "the first layer that failed is the one to be named"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"levels": 0}, "levels: got 0, expected 1 to 16"),
        ({"levels": 15_000}, "levels: got 15000, expected 1 to 16"),
        ({"depth": 0}, "depth: got 0"),
        ({"bits": 9}, "bits: got 9, expected 1 to 8"),
        ({"init_images": 1}, "init_images: got 1"),
        ({"class_weight": 0.1}, "class_weight: got 0.1, expected 0 where class_conditional is false"),
        ({"coupling": "afine"}, 'did you mean "affine"'),
        ({"sampling": {"temperature": [-1.0]}}, "sampling.temperature: got -1.0"),
    ],
)
def test_settings_that_cannot_be(settings, message) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        GlowConfig.from_dict(settings)


def test_data_that_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="levels: got 3 for images of 28 pixels, expected an image size that is a multiple of 8"):
        GlowConfig(levels=3).build(DataSpec(image_size=28, channels=1))
    with pytest.raises(ConfigError, match="class_conditional: got true, but the data has no labels"):
        GlowConfig(class_conditional=True).build(DataSpec(image_size=8, channels=1))


def test_calls_that_do_not_fit() -> None:
    model, labelled = glow(), glow(num_classes=4, class_conditional=True)
    with pytest.raises(ConfigError, match=r"images: got float32 \(2, 3, 8, 8\), expected uint8 of shape \(b, 3, 8, 8\)"):
        model.bits_per_dim(images(2).float())
    with pytest.raises(ConfigError, match="noise: got shape"):
        model.bits_per_dim(images(2), noise=torch.rand(1, 3, 8, 8))
    with pytest.raises(ConfigError, match="labels: this model needs labels, from 0 to 3"):
        labelled.bits_per_dim(images(2))
    with pytest.raises(ConfigError, match="labels: got 3 for 2 images"):
        labelled.bits_per_dim(images(2), labels=torch.zeros(3, dtype=torch.long))
    with pytest.raises(ConfigError, match="latents: got the shapes"):
        model.decode([torch.zeros(2, 6, 4, 4)], labels=None, settings=model.encoding)
    with pytest.raises(ConfigError, match="dequantization: got uniform, which needs an rng"):
        model.encode(images(2), settings=GlowEncodingConfig(dequantization="uniform"))
    with pytest.raises(ConfigError, match=r"^rng: got draws for 1 of 2 images, expected an index for each$"):
        model.encode(images(2), rng=rng(1), settings=GlowEncodingConfig(dequantization="uniform"))
    for call in (
        lambda: model.sample(rng(2), labels=None, settings=Config()),
        lambda: model.log_prob(batch(images(2)), rng(2), settings=Config()),
        lambda: model.encode(batch(images(2)).images, labels=None, rng=rng(2), settings=Config()),
    ):
        with pytest.raises(ConfigError, match="are not the settings"):
            call()
