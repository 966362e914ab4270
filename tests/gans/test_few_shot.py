"""FUNIT and COCO-FUNIT in training: terms worked out by hand, phases, styles, held-out classes, sizes, errors, published sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.engine.toys import START
from tests.gans.terms import check_gradients
from triptych.core.batch import STYLE, Batch, DataSpec, InputSpec
from triptych.core.errors import ConfigError
from triptych.core.model import seeded_build
from triptych.core.rng import Rng
from triptych.core.translation import Translator
from triptych.gans.augmentation import augmented
from triptych.gans.coco_funit import COCOFUNITGeneratorConfig, COCOFUNITTranslator
from triptych.gans.funit import FUNIT, FUNITConfig, FUNITDiscriminatorConfig, FUNITGeneratorConfig
from triptych.gans.init import InitConfig
from triptych.gans.losses import AdversarialConfig
from triptych.gans.penalties import PenaltyConfig
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig

pytestmark = pytest.mark.usefixtures("float64")  # float32 rounds differently with the batch and the kind of CPU

SIZE, CLASSES, COUNT = 16, 5, 4
SMALL: dict[str, Any] = {
    "num_filters": 4,
    "num_res_blocks": 1,
    "num_downsamples_content": 2,
    "num_downsamples_style": 2,
    "style_dims": 4,
    "mlp_filters": 8,
}
GENERATORS = {"funit": FUNITGeneratorConfig(**SMALL), "coco-funit": COCOFUNITGeneratorConfig(**SMALL, style_bias_dims=6)}
DISCRIMINATOR = FUNITDiscriminatorConfig(num_filters=4, max_num_filters=8, num_layers=3)


def spec_of(styles: int = 1, *, size: int = SIZE, channels: int = 3, classes: int = CLASSES) -> DataSpec:
    names = ["style"] if styles == 1 else [f"style_{k + 1}" for k in range(styles)]
    images = tuple(InputSpec(name=name, kind="image", channels=channels) for name in names)
    labels = InputSpec(name="style_labels", kind="labels", num_classes=classes)
    return DataSpec(image_size=size, channels=channels, num_classes=classes, inputs=(*images, labels))


def small(styles: int = 1, *, generator: str = "funit", **changes: Any) -> FUNIT:
    """Weights large enough for every part to have a say."""
    initial = InitConfig(kind="kaiming", gain=1.0, bias="normal", bias_gain=0.1)
    settings = {"generator": GENERATORS[generator], "discriminator": DISCRIMINATOR, "initial": initial} | changes
    return seeded_build(FUNITConfig(**settings), spec_of(styles), seed=0)  # pyright: ignore[reportReturnType]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def batch_of(styles: int = 1, *, count: int = COUNT, first_class: int = 0) -> Batch:
    labels = torch.arange(count) % CLASSES
    names = ["style"] if styles == 1 else [f"style_{k + 1}" for k in range(styles)]
    inputs = {name: numbers(count, 3, SIZE, SIZE, seed=k + 1) for k, name in enumerate(names)}
    inputs["style_labels"] = first_class + (labels + 2) % CLASSES
    return Batch(numbers(count, 3, SIZE, SIZE), first_class + labels, torch.arange(count), inputs)


def phase_of(model: FUNIT, name: str):
    return next(phase for phase in model.phases if phase.name == name)


def terms_of(model: FUNIT, phase: str, batch: Batch):
    return model.loss(phase_of(model, phase), batch, Rng(0, (phase, 0), batch.index))


# Terms by hand


def judged(model: FUNIT, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Score maps (b, h w) and mean features, from the discriminator's parts."""
    inner = model.discriminator.model
    features = inner.model(images)
    mean = features.mean((2, 3))
    likeness = torch.einsum("bd,bd->b", mean, inner.embedder.weight[labels])
    return (inner.classifier(features)[:, 0] + likeness[:, None, None]).flatten(1), mean


def drawn(model: FUNIT, batch: Batch, names: list[str]) -> tuple[Tensor, Tensor]:
    """The translation in the mean of the styles, and the content image in its own, from the generator's parts."""
    inner = model.generator.generator
    content = inner.content_encoder(batch.images)
    style = sum(inner.style_encoder(batch.inputs[name]) for name in names) / len(names)
    return inner.decode(content, style), inner.decode(content, inner.style_encoder(batch.images))


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize(("styles", "names"), [(1, ["style"]), (3, ["style_1", "style_2", "style_3"])])
def test_terms_of_both_phases(generator: str, styles: int, names: list[str]) -> None:
    model, batch = small(styles, generator=generator, adversarial_weight=0.7, image_recon_weight=0.3), batch_of(styles)
    assert isinstance(model.generator.generator, COCOFUNITTranslator) == (generator == "coco-funit")
    assert batch.labels is not None
    style_labels = batch.inputs["style_labels"]
    translation, reconstruction = drawn(model, batch, names)
    real, real_mean = judged(model, batch.inputs[names[0]], style_labels)
    fake, fake_mean = judged(model, translation, style_labels)
    own, _ = judged(model, reconstruction, batch.labels)
    found = terms_of(model, "discriminator", batch)
    assert list(found.logged) == ["real", "fake"]
    torch.testing.assert_close(found.logged["real"], F.relu(1 - real).mean(1))
    torch.testing.assert_close(found.logged["fake"], F.relu(1 + fake).mean(1))
    torch.testing.assert_close(found.loss.detach(), F.relu(1 - real).mean(1) + F.relu(1 + fake).mean(1))
    found = terms_of(model, "generator", batch)
    expected = {
        "adversarial": -0.5 * (fake.mean(1) + own.mean(1)),
        "feature_matching": (fake_mean - real_mean).abs().mean(1),
        "image_recon": (reconstruction - batch.images).abs().mean((1, 2, 3)),
    }
    assert list(found.logged) == list(expected)
    rng = Rng(0, ("generator", 0), batch.index)
    check_gradients(model.generator, model.generator_terms(model.made(batch, rng), batch, rng), expected)
    for name, term in expected.items():
        torch.testing.assert_close(found.logged[name], term)
        assert term.std() > 1e-3 * term.abs().mean(), "the samples' terms differ"
    weighted = 0.7 * expected["adversarial"] + expected["feature_matching"] + 0.3 * expected["image_recon"]
    torch.testing.assert_close(found.loss.detach(), weighted)


def test_relativistic_partners() -> None:
    """A translation competes with the style image, a reconstruction with the content image."""
    model, batch = small(adversarial=AdversarialConfig(relativistic=True)), batch_of()
    assert batch.labels is not None
    labels = batch.inputs["style_labels"]
    with torch.no_grad():
        translation, reconstruction = drawn(model, batch, ["style"])
        against_style = judged(model, translation, labels)[0] - judged(model, batch.inputs["style"], labels)[0]
        against_content = judged(model, reconstruction, batch.labels)[0] - judged(model, batch.images, batch.labels)[0]
    expected = -0.5 * (against_style.mean(1) + against_content.mean(1))
    torch.testing.assert_close(terms_of(model, "generator", batch).logged["adversarial"], expected)


def test_penalties_are_those_of_the_contest_of_styles() -> None:
    model, batch = small(penalty=PenaltyConfig(r1_gamma=3.0, r2_gamma=5.0)), batch_of()
    labels = batch.inputs["style_labels"]
    with torch.no_grad():
        translation, _ = drawn(model, batch, ["style"])
    found = terms_of(model, "discriminator", batch).logged
    for name, gamma, images in (("r1", 3.0, batch.inputs["style"]), ("r2", 5.0, translation)):
        images = images.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(judged(model, images, labels)[0].mean(1).sum(), images)
        torch.testing.assert_close(found[name], gamma / 2 * gradient.square().sum((1, 2, 3)))
        assert found[name].min() > 0


def test_both_sides_are_changed_alike_before_they_are_judged() -> None:
    model, batch = small(augment=("color", "translation")), batch_of()
    rng, labels = Rng(0, ("generator", 0), batch.index), batch.inputs["style_labels"]
    with torch.no_grad():
        translation, _ = drawn(model, batch, ["style"])
        changed = [augmented(x, rng.child("augment", ""), policy=("color", "translation")) for x in (translation, batch.inputs["style"])]
        (fake, fake_mean), (_, real_mean) = (judged(model, images, labels) for images in changed)
    assert (changed[0] - translation).abs().mean() > 0.1
    found = terms_of(model, "generator", batch).logged
    torch.testing.assert_close(found["feature_matching"], (fake_mean - real_mean).abs().mean(1))
    contest = model.contests(model.made(batch, rng), batch, rng)[0]
    torch.testing.assert_close(contest.fake.view(contest.fake.images), changed[0])
    torch.testing.assert_close(contest.real.view(contest.real.images), changed[1])
    torch.testing.assert_close(contest.fake.scores().outputs[0].flatten(1), fake)


@pytest.mark.parametrize(
    ("changes", "terms"),
    [
        ({"adversarial_weight": 0.0}, ["feature_matching", "image_recon"]),
        ({"feature_matching_weight": 0.0}, ["adversarial", "image_recon"]),
        ({"image_recon_weight": 0.0}, ["adversarial", "feature_matching"]),
        ({"adversarial_weight": 0.0, "image_recon_weight": 0.0}, ["feature_matching"]),
        ({"adversarial_weight": 0.0, "feature_matching_weight": 0.0}, ["image_recon"]),
    ],
)
def test_terms_without_weight_are_left_out(changes: dict[str, float], terms: list[str]) -> None:
    whole, model, batch = small(), small(**changes), batch_of()
    every, found = terms_of(whole, "generator", batch).logged, terms_of(model, "generator", batch).logged
    assert list(found) == terms
    assert all(torch.equal(found[name], every[name]) for name in terms)


# Phases


@pytest.mark.parametrize("generator", GENERATORS)
def test_a_phase_changes_its_own_networks_alone(generator: str) -> None:
    settings = replace(GENERATORS[generator], content_norm="batch", weight_norm="spectral")
    batch = batch_of()
    model = seeded_build(FUNITConfig(generator=settings, discriminator=DISCRIMINATOR, initial=InitConfig(kind="none")), spec_of(), seed=0)
    assert isinstance(model, FUNIT) and model.couples_samples
    for phase in model.phases:
        for name in ("generator", "discriminator"):
            getattr(model, name).requires_grad_(name in phase.networks)
        own = [parameter for parameter in model.parameters() if parameter.requires_grad]
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.prepare(phase, START)
        terms_of(model, phase.name, batch).loss.mean().backward()
        assert all(parameter.grad is not None for parameter in own)
        torch.optim.SGD(own, lr=0.1).step()
        model.stepped(phase)
        changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
        assert {name.partition(".")[0] for name in changed} == {phase.name}
        kinds = {name.rpartition(".")[2] for name in changed}
        assert {"weight_orig", "bias", "weight_u", "weight_v"} <= kinds
        assert ("running_mean" in kinds) == (phase.name == "generator")


@pytest.mark.parametrize("phase", ["discriminator", "generator"])
@pytest.mark.parametrize("generator", GENERATORS)
def test_microbatches_give_the_gradient_of_the_whole_batch(generator: str, phase: str) -> None:
    model, batch = small(2, generator=generator, augment=("translation",)), batch_of(2)
    assert not model.couples_samples
    network = getattr(model, phase)
    rng = Rng(0, (phase, 0), batch.index)
    gradients = []
    for parts in ([slice(0, 4)], [slice(0, 1), slice(1, 4)]):
        network.zero_grad()
        for part in parts:
            (model.loss(phase_of(model, phase), batch[part], rng[part]).loss.sum() / COUNT).backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in network.named_parameters()})
    size = max(float(gradient.norm()) for gradient in gradients[0].values())  # a bias before a norm has none but for rounding
    for name, gradient in gradients[0].items():
        assert (gradients[1][name] - gradient).norm() <= 1e-5 * size, name
    assert size > 1e-2


# Classes that training never met


def test_held_out_classes_are_validated_without_the_discriminator() -> None:
    model, batch = small().eval(), batch_of(first_class=CLASSES)
    found = terms_of(model, "generator", batch)
    inner = model.generator.generator
    with torch.no_grad():
        own = inner.decode(inner.content_encoder(batch.images), inner.style_encoder(batch.images))
    expected = (own - batch.images).abs().mean((1, 2, 3))
    assert list(found.logged) == ["image_recon"] and model.validated == ("generator",)
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(found.logged["image_recon"], expected)
    model.train()
    with pytest.raises(IndexError):
        terms_of(model, "generator", batch)


# Translation


def test_an_example_is_what_translate_takes() -> None:
    for styles in (1, 2):
        model, batch = small(styles).eval(), batch_of(styles)
        assert isinstance(model, Translator)
        example = model.example(batch, settings=model.translation)
        assert example.truth is None and set(example.inputs) == {"images", STYLE} and model.sources[0].name == "images"
        assert example.inputs[STYLE].shape == (COUNT, styles, 3, SIZE, SIZE)
        made = model.translate(example.inputs, Rng(0, ("translate",), batch.index), settings=model.translation)
        with torch.no_grad():
            expected, _ = drawn(model, batch, ["style"] if styles == 1 else ["style_1", "style_2"])
        torch.testing.assert_close(made, expected)
        assert not made.requires_grad and made.abs().max() <= 1


def translated(model: FUNIT, images: Tensor, style: Tensor) -> Tensor:
    index = torch.arange(len(images))
    return model.translate({"images": images, STYLE: style}, Rng(0, ("translate",), index), settings=model.translation)


@pytest.mark.parametrize("generator", GENERATORS)
def test_an_image_is_translated_alike_in_any_batch(generator: str) -> None:
    model = small(generator=generator).eval()
    images, style = numbers(5, 3, SIZE, SIZE), numbers(5, 2, 3, SIZE, SIZE, seed=1)
    whole = translated(model, images, style)
    for parts in ([slice(0, 1), slice(1, 5)], [slice(2, 5)]):
        for part in parts:
            torch.testing.assert_close(translated(model, images[part], style[part]), whole[part], atol=1e-4, rtol=0)
    assert (translated(model, images, style.roll(1, 0)) - whole).abs().mean() > 1e-3, "the style has a say"
    assert (translated(model, images.roll(1, 0), style) - whole).abs().mean() > 1e-3, "the content has a say"


def test_rectangles_and_the_least_size() -> None:
    model = small().eval()
    assert (model.stride, model.least_size, model.output_channels) == (4, 12, 3)
    assert (model.styles, model.random_styles) == ("required", False)
    for height, width in ((12, 12), (12, 40), (28, 16)):
        assert translated(model, numbers(2, 3, height, width), numbers(2, 1, 3, 12, 13)).shape == (2, 3, height, width)
    deep = seeded_build(
        FUNITConfig(generator=replace(GENERATORS["funit"], num_downsamples_style=5), discriminator=DISCRIMINATOR), spec_of(size=32), seed=0
    )
    assert isinstance(deep, FUNIT) and deep.least_size == 32
    assert translated(deep.eval(), numbers(1, 3, 32, 32), numbers(1, 1, 3, 32, 32)).shape == (1, 3, 32, 32)
    with pytest.raises(RuntimeError, match="[Pp]adding size"):
        deep.generator.style(numbers(1, 3, 16, 16))


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"images": numbers(2, 3, 16, 16)}, r"^style: missing, this model needs images of shape \(b, k, 3, h, w\)"),
        ({STYLE: numbers(2, 1, 3, 16, 16)}, r"^images: missing"),
        ({"images": numbers(2, 1, 16, 16), STYLE: numbers(2, 1, 3, 16, 16)}, r"^images: got images of shape \(2, 1, 16, 16\), expected"),
        ({"images": numbers(2, 3, 16, 16), STYLE: numbers(2, 3, 16, 16)}, r"^style: got images of shape \(2, 3, 16, 16\), expected"),
        ({"images": numbers(2, 3, 16, 16), STYLE: numbers(2, 0, 3, 16, 16)}, r"^style: got images of shape \(2, 0"),
        (
            {"images": numbers(2, 3, 16, 18), STYLE: numbers(2, 1, 3, 16, 16)},
            r"^images: got 18x16 pixels, expected sides .* multiples of 4",
        ),
        ({"images": numbers(2, 3, 8, 16), STYLE: numbers(2, 1, 3, 16, 16)}, r"^images: got 16x8 pixels, expected at least 12"),
        ({"images": numbers(2, 3, 16, 16), STYLE: numbers(2, 1, 3, 16, 8)}, r"^style: got 8x16 pixels, expected at least 12"),
        ({"images": numbers(2, 3, 16, 16), STYLE: numbers(1, 1, 3, 16, 16)}, r"^style: got style images for 1 image, expected them for 2"),
    ],
)
def test_what_cannot_be_translated(inputs: dict[str, Tensor], said: str) -> None:
    model = small().eval()
    with pytest.raises(ConfigError, match=said):
        model.translate(inputs, Rng(0, (), torch.arange(2)), settings=model.translation)


# Data and settings that do not fit


def test_data_without_styles_or_classes_are_refused() -> None:
    whole = spec_of()
    lacking = (
        DataSpec(image_size=SIZE, channels=3),
        DataSpec(image_size=SIZE, channels=3, num_classes=5),
        replace(whole, num_classes=None),
        replace(whole, inputs=whole.inputs[:1]),
        replace(whole, inputs=whole.inputs[1:]),
    )
    for spec in lacking:
        with pytest.raises(ConfigError, match=r"^the data has no style images, or no classes of them; .* recipe funit-omniglot$"):
            FUNITConfig().build(spec)


@pytest.mark.parametrize(
    ("changes", "size", "said"),
    [
        ({}, 18, r"generator.num_downsamples_content: got 2 for images of 18x18 pixels, expected .* multiples of 4; .*data.image_size"),
        ({"num_downsamples_content": 3}, 16, r"generator.num_downsamples_content: got 3 for images of 16x16 pixels, which takes 24"),
        ({"num_downsamples_style": 5}, 16, r"generator.num_downsamples_style: got 5 for images of 16x16 pixels, which takes 32"),
        ({"num_layers": 5}, 16, r"discriminator.num_layers: got 5 for images of 16x16 pixels, which takes 17"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, int], size: int, said: str) -> None:
    layers = {name: changes[name] for name in changes if name == "num_layers"}
    steps = {name: changes[name] for name in changes if name != "num_layers"}
    config = FUNITConfig(generator=replace(GENERATORS["funit"], **steps), discriminator=replace(DISCRIMINATOR, **layers))
    with pytest.raises(ConfigError, match=said):
        config.build(spec_of(size=size))


@pytest.mark.parametrize(
    ("generator", "discriminator"),
    [
        ({"num_downsamples_content": 0}, {"num_layers": 1}),
        ({"num_downsamples_content": 1}, {"num_layers": 3}),
        ({"num_downsamples_content": 2, "num_downsamples_style": 4}, {"num_layers": 4}),
        ({"num_downsamples_content": 3, "num_downsamples_style": 3}, {"num_layers": 5}),
    ],
)
def test_the_smallest_images_that_are_taken_can_be_trained_on(generator: dict[str, int], discriminator: dict[str, int]) -> None:
    config = FUNITConfig(generator=replace(GENERATORS["funit"], **generator), discriminator=replace(DISCRIMINATOR, **discriminator))
    stride, least = config.generator.stride, 0
    while not least:
        for size in range(stride, 100, stride):
            try:
                model = config.build(spec_of(size=size))
            except ConfigError:
                continue
            least = size
            break
    images = numbers(2, 3, least, least)
    batch = Batch(images, torch.tensor([0, 1]), torch.arange(2), {"style": images, "style_labels": torch.tensor([1, 2])})
    for phase in ("discriminator", "generator"):
        assert torch.isfinite(terms_of(model, phase, batch).loss).all()
    assert least >= model.least_size


@pytest.mark.parametrize("name", ["feature_matching_weight", "image_recon_weight"])
@pytest.mark.parametrize("value", [-0.1, float("inf"), float("nan")])
def test_weights_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: got "):
        FUNITConfig(**{name: value})


def test_a_generator_without_any_term_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^adversarial_weight: got 0.0, expected a positive number where"):
        FUNITConfig(adversarial_weight=0.0, feature_matching_weight=0.0, image_recon_weight=0.0)


# Recipes


@pytest.mark.parametrize(
    ("recipe", "classes", "generator", "discriminator"),
    [
        ("funit-animal-faces", 149, 120_987_203, 92_038_977),
        ("funit-animal-faces", 119, 120_987_203, 92_008_257),
        ("coco-funit-animal-faces", 149, 121_562_307, 92_038_977),
        ("coco-funit-mammals", 305, 121_562_307, 92_198_721),
    ],
)
def test_numbers_of_parameters_of_the_published_models(recipe: str, classes: int, generator: int, discriminator: int) -> None:
    config = load_recipe(recipe)
    with torch.device("meta"):
        model = config.model.build(spec_of(size=config.data.image_size, classes=classes))
    assert isinstance(model, FUNIT) and (model.stride, model.least_size) == (16, 48)
    counts = (sum(p.numel() for p in network.parameters()) for network in (model.generator, model.discriminator))
    assert tuple(counts) == (generator, discriminator)


def test_published_training() -> None:
    config = load_recipe("coco-funit-mammals")
    train, optim, data = config.train, config.optim, config.data
    assert (train.batch_size, train.total_images // train.batch_size, optim.decay_every // train.batch_size) == (64, 150_000, 100_000)
    assert (optim.name, optim.learning_rate, optim.betas, optim.decay_factor) == ("adam", 1e-4, (0.0, 0.999), 0.5)
    assert (data.image_size, data.resize, data.scale, data.crop, data.flip) == (256, 270, 0.1, "random", True)
    assert isinstance(config.model, FUNITConfig)
    model = config.model
    weights = (model.adversarial_weight, model.feature_matching_weight, model.image_recon_weight)
    assert weights == (1.0, 1.0, 0.1) and model.adversarial.kind == "hinge" and model.initial.kind == "none"


@pytest.mark.parametrize("recipe", ["funit-omniglot", "coco-funit-omniglot"])
def test_small_recipes_take_grey_images(recipe: str) -> None:
    config = load_recipe(recipe)
    assert RunConfig.from_dict(config.to_dict()) == config
    model = config.model.build(spec_of(size=32, channels=1))
    assert isinstance(model, FUNIT) and model.output_channels == 1
    assert isinstance(model.generator.generator, COCOFUNITTranslator) == recipe.startswith("coco")
