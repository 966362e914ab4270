"""UNIT and MUNIT in training and in use: every term by hand, who learns from what, styles, directions, and what does not fit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.engine.toys import START
from tests.gans.terms import gradients
from triptych.core.batch import STYLE, Batch, DataSpec, InputSpec
from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.core.model import Model, Phase
from triptych.core.rng import Rng
from triptych.core.translation import Translator
from triptych.gans.augmentation import augmented
from triptych.gans.discriminators import PatchDiscriminatorConfig, ResidualDiscriminatorConfig, Scores
from triptych.gans.funit import FUNITGeneratorConfig
from triptych.gans.losses import AdversarialConfig
from triptych.gans.model import TopKConfig
from triptych.gans.munit import MUNIT, MUNITConfig, MUNITGeneratorConfig, MUNITTranslationConfig, feature_distance, moved
from triptych.gans.penalties import PenaltyConfig
from triptych.gans.perceptual import PerceptualConfig
from triptych.gans.unit import UNIT, UNITConfig, UNITGeneratorConfig
from triptych.gans.unpaired_base import DirectionConfig, UnpairedGAN
from triptych.nn.feature_networks import required_tensors
from triptych.recipes.catalogue import load_recipe

pytestmark = pytest.mark.usefixtures("float64")  # float32 rounds differently with the batch and the kind of CPU

SIDE, COUNT = 16, 3
PATCH = PatchDiscriminatorConfig(num_discriminators=2, num_filters=4, max_num_filters=8, num_layers=1)
RESIDUAL = ResidualDiscriminatorConfig(num_filters=4, max_num_filters=8, num_layers=2)
UNIT_TINY = UNITGeneratorConfig(num_filters=4, num_res_blocks=1, num_downsamples=1)
MUNIT_TINY = MUNITGeneratorConfig(
    num_filters=4, num_res_blocks=1, num_downsamples_content=1, num_downsamples_style=2, style_dims=3, mlp_filters=8
)
PERCEPTUAL = PerceptualConfig(network="squeezenet1_0", layers=("relu_1",), layer_weights=(0.5,))
EVERY_LATENT: dict[str, Any] = {
    "content_recon_weight": 1.3,
    "style_recon_weight": 0.7,
    "kl_weight": 0.1,
    "style_recon_within_weight": 0.6,
    "content_recon_within_weight": 0.4,
}
KINDS = ("unit", "munit")


def spec(side: int = SIDE, channels: int = 3, **settings: Any) -> DataSpec:
    other = InputSpec(name="images_b", kind="image", channels=channels)
    return DataSpec(**({"image_size": side, "channels": channels, "inputs": (other,)} | settings))


def config(kind: str, **settings: Any) -> UNITConfig | MUNITConfig:
    if kind == "unit":
        return UNITConfig(**({"generator": UNIT_TINY, "discriminator": PATCH} | settings))
    return MUNITConfig(**({"generator": MUNIT_TINY, "discriminator": PATCH} | settings))


def built(kind: str, **settings: Any) -> Any:
    """A tiny model whose parameters are far from their initial values, in training."""
    torch.manual_seed(0)
    made = config(kind, **settings)
    model = made.build(spec())
    if made.perceptual_weight > 0:
        generator = torch.Generator().manual_seed(4)
        shapes = required_tensors(made.perceptual.network, made.perceptual.compared)
        model.perceptual.load({name: 0.1 * torch.randn(shape, generator=generator) for name, shape in shapes.items()})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.train()


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def batch(count: int = COUNT, side: int = SIDE) -> Batch:
    return Batch(noise(count, 3, side, side), None, torch.arange(count), {"images_b": noise(count, 3, side, side, seed=1)})


def rng(count: int = COUNT, name: str = "generator") -> Rng:
    return Rng(5, (name, 0), torch.arange(count))


def phase(model: Model, name: str) -> Phase:
    return next(phase for phase in model.phases if phase.name == name)


def mean(x: Tensor) -> Tensor:
    return x.flatten(1).mean(1)


def l1(x: Tensor, y: Tensor) -> Tensor:
    return mean((x - y).abs())


def over_scales(scores: Scores, function: Any) -> Tensor:
    return sum(mean(function(scale)) for scale in scores.outputs) / len(scores.outputs)


def check_terms(model: UnpairedGAN, expected: dict[str, Tensor]) -> None:
    """The values of all terms, their gradients in the generator, and their weighted sum."""
    terms = model.generator_terms(model.made(batch(), rng()), batch(), rng())
    assert list(terms) == list(expected)
    for name, term in terms.items():
        assert term.shape == (COUNT,) and (term.detach().std() > 1e-6).item(), name
        torch.testing.assert_close(term, expected[name], msg=name)
        by_hand = gradients(model, expected[name])
        found = gradients(model, term)
        assert found.keys() == by_hand.keys(), name
        for key, gradient in found.items():
            if key.startswith("generator."):
                torch.testing.assert_close(gradient, by_hand[key], atol=1e-6, rtol=1e-4, msg=f"{name}: {key}")
    logged = model.loss(phase(model, "generator"), batch(), rng())
    total = sum(model.weights[name] * value for name, value in expected.items())
    torch.testing.assert_close(logged.loss, total)
    assert set(logged.logged) == set(expected) and not any(value.requires_grad for value in logged.logged.values())


# The terms ------------------------------------------------------------------------------------------------------------------------


def test_every_term_of_unit() -> None:
    model = built(
        "unit",
        adversarial=AdversarialConfig(kind="least_square"),
        adversarial_weight=2.0,
        image_recon_weight=3.0,
        cycle_weight=4.0,
        perceptual_weight=5.0,
        perceptual=PERCEPTUAL,
    )
    a, b = batch().images, batch().inputs["images_b"]
    one, two = model.generator.autoencoder_a, model.generator.autoencoder_b
    content_a, content_b = one.content_encoder(a), two.content_encoder(b)
    ab, ba = two.decoder(content_a), one.decoder(content_b)
    aba, bab = one.decoder(two.content_encoder(ab)), two.decoder(one.content_encoder(ba))
    judge_a, judge_b = model.discriminator.discriminator_a, model.discriminator.discriminator_b
    check_terms(
        model,
        {
            "adversarial_a": over_scales(judge_a(ba), lambda x: 0.5 * (x - 1) ** 2),
            "adversarial_b": over_scales(judge_b(ab), lambda x: 0.5 * (x - 1) ** 2),
            "image_recon": l1(one.decoder(content_a), a) + l1(two.decoder(content_b), b),
            "cycle_recon": l1(aba, a) + l1(bab, b),
            "perceptual": model.perceptual(ab, a) + model.perceptual(ba, b),
        },
    )
    assert model.weights == {"adversarial_a": 2, "adversarial_b": 2, "image_recon": 3, "cycle_recon": 4, "perceptual": 5}


@pytest.mark.parametrize("random_style", [True, False])
def test_every_term_of_munit(random_style: bool) -> None:
    weights = EVERY_LATENT | {"perceptual_weight": 0.3, "image_recon_weight": 2.0, "cycle_weight": 3.0}
    model = built("munit", gan_recon=True, random_style=random_style, perceptual=PERCEPTUAL, **weights)
    a, b = batch().images, batch().inputs["images_b"]
    one, two = model.generator.autoencoder_a, model.generator.autoencoder_b
    content_a, content_b, style_a, style_b = one.content_encoder(a), two.content_encoder(b), one.style_encoder(a), two.style_encoder(b)
    given_a, given_b = (rng().normal(f"style_{domain}", 3, 1, 1) for domain in "ab") if random_style else (style_a, style_b)
    ab, ba = two.decode(content_a, given_b), one.decode(content_b, given_a)
    aa, bb = one.decode(content_a, style_a), two.decode(content_b, style_b)
    aba, bab = one.decode(two.content_encoder(ab), style_a), two.decode(one.content_encoder(ba), style_b)
    judge_a, judge_b = model.discriminator.discriminator_a, model.discriminator.discriminator_b
    content_ab, content_ba = two.content_encoder(ab), one.content_encoder(ba)
    fixed_a, fixed_b = content_a.detach(), content_b.detach()
    check_terms(
        model,
        {
            "adversarial_a": 0.5 * (over_scales(judge_a(ba), torch.neg) + over_scales(judge_a(aa), torch.neg)),
            "adversarial_b": 0.5 * (over_scales(judge_b(ab), torch.neg) + over_scales(judge_b(bb), torch.neg)),
            "image_recon": l1(aa, a) + l1(bb, b),
            "cycle_recon": l1(aba, a) + l1(bab, b),
            "perceptual": model.perceptual(ab, a) + model.perceptual(ba, b),
            "content_recon": l1(content_ab, fixed_a) + l1(content_ba, fixed_b),
            "style_recon": l1(one.style_encoder(ba), given_a) + l1(two.style_encoder(ab), given_b),
            "kl": 0.5 * (style_a.flatten(1).square().sum(1) + style_b.flatten(1).square().sum(1)),
            "style_recon_within": l1(one.style_encoder(aa), style_a.detach()) + l1(two.style_encoder(bb), style_b.detach()),
            "content_recon_within": l1(one.content_encoder(aa), fixed_a) + l1(two.content_encoder(bb), fixed_b),
        },
    )
    undetached = gradients(model, l1(content_ab, content_a) + l1(content_ba, content_b))
    found = gradients(model, model.generator_terms(model.made(batch(), rng()), batch(), rng())["content_recon"])
    first = "generator.autoencoder_a.content_encoder.model.0.layers.conv.weight_orig"
    assert (undetached[first] - found[first]).norm() > 0.05 * found[first].norm(), "the contents of images are targets, and do not move"


def test_the_discriminators_terms() -> None:
    penalty = PenaltyConfig(r1_gamma=2.0)
    model = built("munit", consistency_weight=0.5, penalty=penalty, discriminator_rate=4.0, discriminator_steps=2)
    drawn = rng(name="discriminator")
    with torch.no_grad():
        out = model.made(batch(), drawn)
    terms = model.loss(phase(model, "discriminator"), batch(), drawn)
    total = torch.zeros(COUNT)
    for domain, real, fake in (("a", batch().images, out.images_ba), ("b", batch().inputs["images_b"], out.images_ab)):
        judge = getattr(model.discriminator, f"discriminator_{domain}")
        on_real, on_fake = over_scales(judge(real), lambda x: F.relu(1 - x)), over_scales(judge(fake), lambda x: F.relu(1 + x))
        x = real.clone().requires_grad_()
        (slope,) = torch.autograd.grad(over_scales(judge(x), lambda scale: scale).sum(), x)
        r1 = slope.flatten(1).square().sum(1)
        other = judge(moved(real, drawn.child(f"consistency_{domain}")))
        pairs = zip([f for s in judge(real).features for f in s], [f for s in other.features for f in s], strict=True)
        distances = [mean((f.mean((2, 3)) - g.mean((2, 3))) ** 2) for f, g in pairs]
        assert len(distances) == 4, "two layers of two scales"
        expected = {"real": on_real, "fake": on_fake, "r1": r1, "consistency": sum(distances) / 4}
        for name, value in expected.items():
            assert (value > 0).all()
            torch.testing.assert_close(terms.logged[f"{name}_{domain}"], value.detach(), msg=name)
        total += on_real + on_fake + r1 + 0.5 * expected["consistency"]
    torch.testing.assert_close(terms.loss, total)
    assert [(p.name, p.repeats, p.rate) for p in model.phases] == [("discriminator", 2, 4.0), ("generator", 1, 1.0)]


def test_consistency_of_one_score_and_what_is_moved() -> None:
    model = built("munit", discriminator=RESIDUAL, consistency_weight=1.0)
    terms = model.loss(phase(model, "discriminator"), batch(), rng())
    judge, real = model.discriminator.discriminator_b, batch().inputs["images_b"]
    ((features,),), ((other,),) = judge(real).features, judge(moved(real, rng().child("consistency_b"))).features
    torch.testing.assert_close(terms.logged["consistency_b"], mean((features - other) ** 2).detach())
    many = Rng(0, ("moved",), torch.arange(400))
    column = torch.linspace(-1, 1, 16).expand(400, 1, 16, 16)
    found = moved(column, many)
    slopes = (found[:, 0, 8, 9] - found[:, 0, 8, 6]).sign()
    assert 0.4 < (slopes < 0).float().mean() < 0.6, "half of them are mirrored"
    assert len(found.unique(dim=0)) == 2 * 5 * 5, "by up to two pixels of sixteen each way, mirrored or not"
    scores = Scores((), ((torch.zeros(2, 4, 3, 3), torch.zeros(2, 1)[..., None, None]),))
    ones = Scores((), ((torch.ones(2, 4, 3, 3), torch.full((2, 1, 1, 1), 3.0)),))
    assert feature_distance(scores, ones).tolist() == [5.0, 5.0]


@pytest.mark.parametrize("kind", KINDS)
def test_relativistic_and_augmented(kind: str) -> None:
    model = built(kind, adversarial=AdversarialConfig(relativistic=True), augment=("color", "translation", "cutout"))
    with torch.no_grad():
        out = model.made(batch(), rng())
    terms = model.loss(phase(model, "generator"), batch(), rng())
    game = model.loss(phase(model, "discriminator"), batch(), rng())
    for domain, real, fake in (("a", batch().images, out.images_ba), ("b", batch().inputs["images_b"], out.images_ab)):
        judge = getattr(model.discriminator, f"discriminator_{domain}")
        real, fake = (augmented(x, rng().child("augment", domain), policy=model.config.augment) for x in (real, fake))
        pairs = list(zip(judge(fake).outputs, judge(real).outputs, strict=True))
        ahead = sum(mean(x - y) for x, y in pairs) / len(pairs)
        torch.testing.assert_close(terms.logged[f"adversarial_{domain}"], -ahead.detach())
        on_fake = sum(mean(F.relu(1 + x - y)) for x, y in pairs) / len(pairs)
        torch.testing.assert_close(game.logged[f"fake_{domain}"], on_fake.detach())
        assert (real - batch().images).abs().max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_lazy_penalties_and_top_k(kind: str) -> None:
    model = built(kind, penalty=PenaltyConfig(r1_gamma=1.0, r2_gamma=2.0, every=4), top_k=TopKConfig(least=0.5, decay=0.5, round_steps=1))
    lazy = phase(model, "penalty")
    terms = model.loss(lazy, batch(), rng())
    assert lazy.every == 4 and set(terms.logged) == {"r1_a", "r2_a", "r1_b", "r2_b"}
    torch.testing.assert_close(terms.loss, sum(terms.logged.values()))
    assert model.couples_samples
    model.prepare(phase(model, "generator"), START)
    kept = model.loss(phase(model, "generator"), batch(4), rng(4)).logged["adversarial_a"]
    assert (kept == 0).sum() == 2


# Who learns from what ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_only_terms_with_a_weight_are_computed(kind: str) -> None:
    weights = {"adversarial_weight": 0.0, "image_recon_weight": 0.0, "cycle_weight": 0.0}
    latents = {"content_recon_weight": 0.0, "style_recon_weight": 0.0} if kind == "munit" else {}
    for setting, term, asked in (
        ("adversarial_weight", {"adversarial_a", "adversarial_b"}, set()),
        ("image_recon_weight", {"image_recon"}, {"reconstruct"}),
        ("cycle_weight", {"cycle_recon"}, {"cycle"}),
    ):
        model, calls, judged = built(kind, **weights | latents | {setting: 1.0}), [], []
        model.generator.register_forward_pre_hook(lambda _, args, kwargs, calls=calls: calls.append(kwargs), with_kwargs=True)
        model.discriminator.register_forward_pre_hook(lambda _, args, judged=judged: judged.append(args))
        found = model.loss(phase(model, "generator"), batch(), rng())
        assert set(found.logged) == term
        flags = [{name for name, value in call.items() if value is True} for call in calls]
        assert flags == [set(), asked] and bool(judged) == (setting == "adversarial_weight"), "translations, then what else is needed"


@pytest.mark.parametrize("kind", KINDS)
def test_a_phase_changes_its_own_networks_alone(kind: str) -> None:
    generator = replace(UNIT_TINY if kind == "unit" else MUNIT_TINY, content_norm="batch", weight_norm="spectral")
    discriminator = replace(PATCH, norm="batch")
    extra = {"consistency_weight": 1.0} | EVERY_LATENT if kind == "munit" else {}
    model = built(kind, generator=generator, discriminator=discriminator, **extra)
    for step in model.phases:
        for name in ("generator", "discriminator"):
            for parameter in getattr(model, name).parameters():
                parameter.requires_grad_(name in step.networks)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.prepare(step, START)
        model.zero_grad()
        model.loss(step, batch(), rng(name=step.name)).loss.sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.01 * parameter.grad)
        model.stepped(step)
        changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
        assert {name.split(".")[0] for name in changed} == set(step.networks)
        for part in ("weight_orig", "weight_u", "running_mean"):
            assert any(name.endswith(part) for name in changed), part
    assert model.couples_samples


@pytest.mark.parametrize("kind", KINDS)
def test_microbatches_give_the_gradient_of_the_whole_batch(kind: str) -> None:
    extra = EVERY_LATENT | {"consistency_weight": 1.0, "gan_recon": True} if kind == "munit" else {}
    model = built(kind, augment=("translation",), penalty=PenaltyConfig(r1_gamma=1.0), **extra)
    assert not model.couples_samples
    data, drawn = batch(5), rng(5)
    for step in model.phases:
        found = []
        for size in (5, 2):
            model.zero_grad()
            for start in range(0, 5, size):
                part = slice(start, min(start + size, 5))
                (model.loss(step, data[part], drawn[part]).loss.sum() / 5).backward()
            own = getattr(model, step.networks[0])
            found.append({name: p.grad.clone() for name, p in own.named_parameters()})
        rounding = 1e-6 * torch.stack([whole.norm() for whole in found[0].values()]).norm()  # all that biases before instance norms have
        for name, whole in found[0].items():
            assert (found[1][name] - whole).norm() <= 1e-4 * whole.norm() + rounding, name


ALL_OFF: dict[str, Any] = dict.fromkeys(
    ("adversarial_weight", "image_recon_weight", "cycle_weight", "content_recon_weight", "style_recon_weight"), 0.0
)


@pytest.mark.parametrize(
    ("settings", "partial"),
    [
        ({"adversarial_weight": 1.0}, True),
        ({"content_recon_weight": 1.0}, True),
        ({"adversarial_weight": 1.0, "content_recon_weight": 1.0, "perceptual_weight": 1.0, "perceptual": PERCEPTUAL}, True),
        ({"kl_weight": 1.0}, True),
        ({"adversarial_weight": 1.0, "kl_weight": 1.0}, False),
        ({"adversarial_weight": 1.0, "gan_recon": True}, False),
        ({"content_recon_weight": 1.0, "gan_recon": True}, True),
        ({"adversarial_weight": 1.0, "random_style": False}, False),
        ({"content_recon_weight": 1.0, "random_style": False}, False),
        ({"perceptual_weight": 1.0, "perceptual": PERCEPTUAL, "random_style": False}, False),
        *[
            ({f"{term}_weight": 1.0}, False)
            for term in ("image_recon", "cycle", "style_recon", "style_recon_within", "content_recon_within")
        ],
    ],
)
def test_a_model_knows_whether_all_its_parameters_learn(settings: dict[str, Any], partial: bool) -> None:
    model = built("munit", **ALL_OFF | settings)
    model.loss(phase(model, "generator"), batch(), rng()).loss.sum().backward()
    without = [name for name, parameter in model.generator.named_parameters() if parameter.grad is None]
    assert bool(without) == partial and phase(model, "generator").partial == partial
    assert all(".style_encoder." in name for name in without) or settings == {"kl_weight": 1.0}


def test_unit_reaches_all_its_parameters_by_any_term() -> None:
    for setting in ("adversarial_weight", "image_recon_weight", "cycle_weight"):
        model = built("unit", **{"adversarial_weight": 0.0, "image_recon_weight": 0.0, "cycle_weight": 0.0} | {setting: 1.0})
        model.loss(phase(model, "generator"), batch(), rng()).loss.sum().backward()
        assert all(parameter.grad is not None for parameter in model.generator.parameters())
        assert not phase(model, "generator").partial


@pytest.mark.parametrize("kind", KINDS)
def test_distances_of_held_out_images(kind: str) -> None:
    model = built(kind, cycle_weight=0.0).eval()
    with torch.no_grad():
        terms = model.loss(phase(model, "generator"), batch(), rng())
    a, b = batch().images, batch().inputs["images_b"]
    one, two = model.generator.autoencoder_a, model.generator.autoencoder_b
    if kind == "unit":
        aba, bab = one.decode(*two.encode(two.decode(*one.encode(a)))), two.decode(*one.encode(one.decode(*two.encode(b))))
    else:
        ab = two.decode(one.content_encoder(a), rng().normal("style_b", 3, 1, 1))
        ba = one.decode(two.content_encoder(b), rng().normal("style_a", 3, 1, 1))
        aba, bab = one.decode(two.content_encoder(ab), one.style_encoder(a)), two.decode(one.content_encoder(ba), two.style_encoder(b))
    expected = {"image_recon": l1(one(a), a) + l1(two(b), b), "cycle_recon": l1(aba, a) + l1(bab, b)}
    expected = {"reconstruction": sum(expected.values()), **expected}
    assert list(terms.logged) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(terms.logged[name], value.detach())
    torch.testing.assert_close(terms.loss, expected["reconstruction"].detach())


# Translation --------------------------------------------------------------------------------------------------------------------------


def translated(model: Any, images: Tensor, *, style: Tensor | None = None, seed: int = 5, **settings: Any) -> Tensor:
    inputs = {"images": images} | ({} if style is None else {STYLE: style})
    drawn = Rng(seed, ("translate",), torch.arange(len(images)))
    return model.translate(inputs, drawn, settings=replace(model.translation, **settings))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_translator_says_of_itself(kind: str) -> None:
    model = built(kind)
    assert isinstance(model, Translator)
    assert model.sources == (InputSpec(name="images", kind="image", channels=3),)
    assert (model.output_channels, model.stride, model.least_size) == (3, 2, 4)
    assert (model.styles, model.random_styles) == (("none", False) if kind == "unit" else ("optional", True))
    assert model.grids == {"b-to-a": replace(model.translation, direction="b-to-a")}
    other = replace(model.translation, direction="b-to-a")
    assert list(built(kind, translation=other).grids) == ["a-to-b"]
    for settings, images in ((model.translation, batch().images), (other, batch().inputs["images_b"])):
        example = model.example(batch(), settings=settings)
        assert example.truth is None and list(example.inputs) == ["images"]
        assert torch.equal(example.inputs["images"], images)
    with pytest.raises(ConfigError, match="TopKConfig are not the settings"):
        model.example(batch(), settings=TopKConfig())


def test_directions_of_unit_and_any_size() -> None:
    model = built("unit").eval()
    one, two = model.generator.autoencoder_a, model.generator.autoencoder_b
    for height, width in ((SIDE, SIDE), (6, 22), (4, 4)):
        images = noise(2, 3, height, width)
        ab, ba = two.decode(*one.encode(images)), one.decode(*two.encode(images))
        assert ab.abs().max() > 1, "the networks' outputs need to be clipped"
        found = translated(model, images)
        torch.testing.assert_close(found, ab.clamp(-1, 1).detach())
        torch.testing.assert_close(translated(model, images, direction="b-to-a"), ba.clamp(-1, 1).detach())
        assert not found.requires_grad and torch.equal(found, translated(model, images, seed=6))


def test_directions_and_styles_of_munit() -> None:
    model = built("munit").eval()
    one, two = model.generator.autoencoder_a, model.generator.autoencoder_b
    images, style = noise(2, 3, 12, 20), noise(2, 3, 3, 16, 26, seed=2)
    drawn = Rng(5, ("translate",), torch.arange(2)).normal("style", 3, 1, 1)
    for direction, source, target in (("a-to-b", one, two), ("b-to-a", two, one)):
        content = source.content_encoder(images)
        by_seed = target.decode(content, 0.7 * drawn).clamp(-1, 1).detach()
        torch.testing.assert_close(translated(model, images, direction=direction, temperature=0.7), by_seed)
        codes = torch.stack([target.style_encoder(style[:, k]) for k in range(3)]).mean(0)
        by_images = target.decode(content, codes).clamp(-1, 1).detach()
        found = translated(model, images, direction=direction, style=style)
        torch.testing.assert_close(found, by_images)
        assert torch.equal(found, translated(model, images, direction=direction, style=style, seed=6)), "nothing is drawn"
        assert (found - by_seed).abs().mean() > 1e-3
    assert (translated(model, images) - translated(model, images, seed=6)).abs().mean() > 1e-3
    assert torch.equal(translated(model, images, temperature=0.0), translated(model, images, temperature=0.0, seed=6))


@pytest.mark.parametrize("kind", KINDS)
def test_image_k_is_the_same_in_every_batch(kind: str) -> None:
    model = built(kind).eval()
    images, drawn = noise(5, 3, 8, 12), Rng(5, ("translate",), torch.arange(5))
    inputs = {"images": images} | ({STYLE: noise(5, 2, 3, 16, 16)} if kind == "munit" else {})
    for given in ({"images": images}, inputs):
        whole = model.translate(given, drawn, settings=model.translation)
        parts = [
            model.translate({name: tensor[s] for name, tensor in given.items()}, drawn[s], settings=model.translation)
            for s in (slice(0, 1), slice(1, 5))
        ]
        torch.testing.assert_close(torch.cat(parts), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("down", [0, 1, 2])
@pytest.mark.parametrize("norm", ["none", "instance"])
def test_the_least_size_is_the_least(down: int, norm: str) -> None:
    munit = replace(MUNIT_TINY, num_downsamples_content=down, num_downsamples_style=2, style_norm=norm)
    for kind, generator in (("unit", replace(UNIT_TINY, num_downsamples=down)), ("munit", munit)):
        patch = replace(PATCH, num_discriminators=1)
        model = config(kind, generator=generator, discriminator=patch).build(spec(16)).train()
        model.made(batch(2, model.least_size), rng(2))
        smaller = model.least_size - model.stride
        with pytest.raises((RuntimeError, ValueError)):
            model.made(batch(2, smaller), rng(2))
        with pytest.raises(ConfigError, match=f"got {smaller}x{smaller} pixels, expected at least {model.least_size}"):
            translated(model, noise(1, 3, smaller, smaller))


def test_what_translate_refuses() -> None:
    unit, munit = built("unit").eval(), built("munit").eval()
    images = noise(2, 3, 8, 8)
    with pytest.raises(ConfigError, match=r"^images: got 8x7 pixels, expected sides that are multiples of 2$"):
        translated(unit, noise(2, 3, 7, 8))
    with pytest.raises(ConfigError, match=r"^images: got images of shape \(2, 1, 8, 8\), expected \(b, 3, h, w\)$"):
        translated(munit, noise(2, 1, 8, 8))
    with pytest.raises(ConfigError, match=r"^images: got images of uint8, expected floating-point numbers from -1 to 1"):
        translated(munit, torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(ConfigError, match=r"^images: missing"):
        munit.translate({}, rng(2), settings=munit.translation)
    with pytest.raises(ConfigError, match=r"^style: this model takes no style images; leave them out$"):
        translated(unit, images, style=noise(2, 1, 3, 8, 8))
    with pytest.raises(ConfigError, match=r"^style: got images of shape \(2, 3, 8, 8\), expected \(b, k, 3, h, w\)$"):
        translated(munit, images, style=images)
    with pytest.raises(ConfigError, match=r"^style: got images of shape \(2, 0, 3, 8, 8\)"):
        translated(munit, images, style=noise(2, 0, 3, 8, 8))
    with pytest.raises(ConfigError, match=r"^style: got style images for 1 image, expected them for 2$"):
        translated(munit, images, style=noise(1, 1, 3, 8, 8))
    with pytest.raises(ConfigError, match=r"^style: got 2x2 pixels, expected at least 4 along a side$"):
        translated(munit, images, style=noise(2, 1, 3, 2, 2))
    for wrong in (1, 3):
        with pytest.raises(ConfigError, match=rf"^rng: got draws for {wrong} of 2 images, expected an index for each$"):
            munit.translate({"images": images}, rng(wrong), settings=munit.translation)
    with pytest.raises(ConfigError, match="DirectionConfig are not the settings"):
        munit.translate({"images": images}, rng(2), settings=DirectionConfig())
    for wrong in (-0.5, math.inf, math.nan):
        with pytest.raises(ConfigError, match="temperature"):
            MUNITTranslationConfig(temperature=wrong)


# What fits --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "settings", "data", "message"),
    [
        ("unit", {}, {"inputs": ()}, r"^the data has no images_b, and this model needs images of two domains; use data of UnpairedData"),
        ("munit", {}, {"inputs": (InputSpec(name="images_b", kind="instances"),)}, r"^the data has no images_b"),
        ("munit", {}, {"inputs": (InputSpec(name="images_b", kind="image", channels=1),)}, r"^the data has no images_b"),
        (
            "unit",
            {},
            {"image_size": 15},
            r"^generator.num_downsamples: got images of 15x15 pixels, expected sides that are multiples of 2,",
        ),
        ("munit", {}, {"width": 17}, r"^generator.num_downsamples_content: got images of 17x16 pixels"),
        ("unit", {}, {"image_size": 2}, r"^generator: got images of 2x2 pixels, expected at least 4 along a side"),
        ("munit", {"generator": replace(MUNIT_TINY, num_downsamples_style=5)}, {}, r"^generator: .* at least 32 along a side"),
        ("unit", {"discriminator": replace(PATCH, norm="instance", num_discriminators=4)}, {}, r"^discriminator: got .* at least 24 along"),
        (
            "unit",
            {"discriminator": RESIDUAL},
            {"image_size": 32},
            r"got 2, which takes images of exactly 16x16, .* but they have 32x32; set",
        ),
        (
            "munit",
            {"discriminator": RESIDUAL},
            {"width": 32},
            r"^discriminator.num_layers: got 2, .* but they have 32x16; set data.image_size",
        ),
        (
            "unit",
            {"perceptual_weight": 1.0, "perceptual": PerceptualConfig(network="alexnet")},
            {},
            r"^perceptual.layers: at the last of 1",
        ),
    ],
)
def test_data_that_does_not_fit(kind: str, settings: dict[str, Any], data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(kind, **settings).build(spec(**data))


def test_the_least_images_of_the_discriminators_are_taken() -> None:
    for settings, side in (
        ({"discriminator": replace(PATCH, norm="instance", num_discriminators=4)}, 24),
        ({"discriminator": RESIDUAL}, 16),
        ({"generator": replace(UNIT_TINY, num_downsamples=0)}, 17),  # whose stride is 1: any side will do
    ):
        model = config("unit", **settings).build(spec(side)).train()
        for step in model.phases:
            assert model.loss(step, batch(2, side), rng(2)).loss.isfinite().all()


def test_what_configs_refuse() -> None:
    for setting in ("image_recon_weight", "cycle_weight", "perceptual_weight", "kl_weight", "consistency_weight"):
        for wrong in (-1.0, math.nan, math.inf):
            with pytest.raises(ConfigError, match=f"^{setting}: got"):
                config("munit", **{setting: wrong})
    with pytest.raises(ConfigError, match=r"^adversarial_weight: got 0.0, expected a positive number where the weights of all other"):
        config("unit", adversarial_weight=0.0, image_recon_weight=0.0, cycle_weight=0.0)


def test_a_network_is_borrowed_exactly_where_it_is_weighed() -> None:
    assert not built("unit").frozen_networks
    assert dict(built("munit", perceptual_weight=1.0, perceptual=PERCEPTUAL).frozen_networks) == {"perceptual": None}
    grey = config("unit", perceptual_weight=1.0, perceptual=replace(PERCEPTUAL, weights="file.pth")).build(spec(channels=1))
    assert dict(grey.frozen_networks) == {"perceptual": "file.pth"} and not any("perceptual" in name for name in grey.state_dict())


@pytest.mark.parametrize(
    ("recipe", "kind", "generator", "discriminator", "images"),
    [
        ("unit-winter2summer", UNIT, 12_555_654, 5_295_042, 500_000),
        ("munit-dog2cat", MUNIT, 30_258_966, 32_322_498, 200_000 * 16),
        ("munit-edges2shoes", MUNIT, 30_258_966, 32_322_498, 200_000 * 16),
        ("munit-summer2winter-hd", MUNIT, 32_483_606, 63_696_198, 200_000),
    ],
)
def test_published_recipes(recipe: str, kind: type[UnpairedGAN], generator: int, discriminator: int, images: int) -> None:
    settings = load_recipe(recipe)
    with torch.device("meta"):
        model = settings.model.build(spec(settings.data.image_size))
    assert isinstance(model, kind)
    counts = [sum(p.numel() for p in network.parameters()) for network in (model.generator, model.discriminator)]
    assert counts == [generator, discriminator]
    assert settings.train.total_images == images
    assert model.phases[0].rate == (1.0 if kind is UNIT else 4.0)


@pytest.mark.parametrize("recipe", ["unit-mnist", "munit-mnist"])
def test_small_recipes_fit_their_images(recipe: str) -> None:
    settings = load_recipe(recipe)
    model = settings.model.build(spec(settings.data.image_size)).train()
    for step in model.phases:
        assert model.loss(step, batch(2, 32), rng(2)).loss.isfinite().all()


@pytest.mark.parametrize(
    ("name", "adversarial", "weights", "initial", "optim", "batch"),
    [
        ("unit-winter2summer", "least_square", (1, 1, 1, 0), ("normal", 0.02), (1e-4, 0.0, 0.999), 1),
        ("munit-dog2cat", "hinge", (1, 0.1, 0, 0, 1, 1), ("orthogonal", 1), (1e-4, 0.5, 0.999), 16),
        ("munit-edges2shoes", "hinge", (1, 1, 1, 0, 1, 1), ("orthogonal", 1), (1e-4, 0.5, 0.999), 16),
        ("munit-summer2winter-hd", "hinge", (1, 10, 10, 0, 1, 1), ("orthogonal", 1), (1e-4, 0.5, 0.999), 1),
    ],
)
def test_published_training(
    name: str,
    adversarial: str,
    weights: tuple[float, ...],
    initial: tuple[str, float],
    optim: tuple[float, float, float],
    batch: int,
) -> None:
    """`weights`: adversarial, image_recon, cycle, perceptual, and of MUNIT content_recon and style_recon; its others are 0."""
    recipe = load_recipe(name)
    model, train = recipe.model, recipe.train
    assert isinstance(model, UNITConfig | MUNITConfig) and model.adversarial.kind == adversarial
    names = ("adversarial", "image_recon", "cycle", "perceptual", *(("content_recon", "style_recon") if len(weights) == 6 else ()))
    assert tuple(getattr(model, f"{term}_weight") for term in names) == weights
    if isinstance(model, MUNITConfig):
        others = (model.kl_weight, model.style_recon_within_weight, model.content_recon_within_weight, model.consistency_weight)
        assert not any(others) and not model.gan_recon and model.random_style
        assert model.translation.direction == ("b-to-a" if name == "munit-edges2shoes" else "a-to-b")
    assert (model.initial.kind, model.initial.gain) == initial
    assert (recipe.optim.name, recipe.optim.learning_rate, *recipe.optim.betas) == ("adam", *optim)
    halves = ("step", 0.5) if name.startswith("unit") else ("constant", recipe.optim.decay_factor)
    assert (recipe.optim.schedule, recipe.optim.decay_factor) == halves
    assert (train.batch_size, train.ema_rates, train.ema_start, train.ema_warmup) == (batch, (0.9999,), 1_000 * batch, False)


@pytest.mark.parametrize("network", [MUNITGeneratorConfig, FUNITGeneratorConfig])
def test_a_decoder_without_a_place_for_the_style_is_refused(network: type[Config]) -> None:
    network.from_dict({"num_res_blocks": 1, "num_downsamples_content": 0})
    with pytest.raises(ConfigError, match="num_res_blocks: got 0, expected 1 or more without num_downsamples_content"):
        network.from_dict({"num_res_blocks": 0, "num_downsamples_content": 0})
