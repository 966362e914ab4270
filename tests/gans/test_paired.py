"""SPADE and pix2pixHD in training and in use: label maps, terms, phases, translations, and what their configurations refuse."""

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
from triptych.core.model import Phase
from triptych.core.rng import Rng
from triptych.core.translation import Translator
from triptych.data.pairs import PairedDataConfig
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.init import InitConfig
from triptych.gans.instance_features import FeatureEncoderConfig
from triptych.gans.label_maps import LabelMaps
from triptych.gans.losses import AdversarialConfig
from triptych.gans.model import Contest
from triptych.gans.paired_base import PairedGAN, PairedGANConfig
from triptych.gans.perceptual import PerceptualConfig
from triptych.gans.pix2pixhd import Pix2PixHD, Pix2PixHDConfig, Pix2PixHDGeneratorConfig, Pix2PixHDTranslationConfig
from triptych.gans.spade import SPADE, SPADEConfig, SPADEDiscriminatorConfig, SPADEGeneratorConfig, SPADETranslationConfig
from triptych.nn.feature_networks import required_tensors
from triptych.recipes.catalogue import load_recipe

pytestmark = pytest.mark.usefixtures("float64")  # float32 rounds differently with the batch and the kind of CPU

CLASSES = 3
MAP = InputSpec(name="labels", kind="classes", num_classes=CLASSES)
INSTANCES = InputSpec(name="instances", kind="instances")
SPEC = DataSpec(image_size=32, channels=3, inputs=(MAP, INSTANCES))
INITIAL = InitConfig(kind="orthogonal", gain=0.7)
PATCH = PatchDiscriminatorConfig(num_filters=4, max_num_filters=8, num_layers=2)
SQUEEZENET = PerceptualConfig(network="squeezenet1_0", layers=("relu_1",), layer_weights=(0.5,))
STYLE_DIMS = 6

SPADE_CONFIG = SPADEConfig(
    generator=SPADEGeneratorConfig(num_filters=2, style_dims=STYLE_DIMS, spade_filters=4, encoder_filters=2, encoder_size=64),
    discriminator=SPADEDiscriminatorConfig(patch=PATCH),
    perceptual_weight=0.0,
    initial=INITIAL,
)
HD_CONFIG = Pix2PixHDConfig(
    generator=Pix2PixHDGeneratorConfig(num_filters=4, num_downsamples=2, num_res_blocks=1, num_enhancers=1, num_enhancer_res_blocks=1),
    discriminator=replace(PATCH, norm="instance"),
    perceptual_weight=0.0,
    initial=INITIAL,
)
ENCODING = replace(
    HD_CONFIG, generator=replace(HD_CONFIG.generator, encoder=FeatureEncoderConfig(num_filters=4, num_downsamples=2, num_clusters=2))
)
CONFIGS = {"spade": SPADE_CONFIG, "pix2pixhd": HD_CONFIG, "encoding": ENCODING}


def with_instance_norm(config: SPADEConfig) -> SPADEConfig:
    return replace(config, generator=replace(config.generator, spade_norm="instance", global_norm="instance"))


def random_batch(count: int = 4, *, spec: DataSpec = SPEC, height: int = 32, width: int = 32) -> Batch:
    """Random squares of 8 pixels as maps, smooth noise as images."""
    generator = torch.Generator().manual_seed(7)

    def squares(levels: int) -> Tensor:
        small = torch.randint(levels, (count, 1, height // 8, width // 8), generator=generator).float()
        return F.interpolate(small, size=(height, width)).long()[:, 0]

    def pictures(channels: int) -> Tensor:
        small = torch.rand(count, channels, height // 4, width // 4, generator=generator) * 2 - 1
        return F.interpolate(small, size=(height, width), mode="bilinear")

    inputs: dict[str, Tensor] = {}
    for entry in spec.inputs:
        inputs[entry.name] = pictures(entry.channels or 3) if entry.kind == "image" else squares(entry.num_classes or 5)
    return Batch(pictures(spec.channels), None, torch.arange(count), inputs)


def built(config: PairedGANConfig, *, spec: DataSpec = SPEC) -> Any:
    torch.manual_seed(0)
    model = config.build(spec)
    assert isinstance(model, PairedGAN)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.train()


def with_perceptual_weights(model: PairedGAN) -> PairedGAN:
    """The model with random weights in its perceptual network."""
    generator = torch.Generator().manual_seed(1)
    shapes = required_tensors("squeezenet1_0", ("relu_1",))
    assert model.perceptual is not None
    model.perceptual.load({name: 0.05 * torch.randn(shape, generator=generator) for name, shape in shapes.items()})
    return model


def stream(batch: Batch, *names: str) -> Rng:
    return Rng(3, names, batch.index)


# Label maps ---------------------------------------------------------------------------------------------------------------


def test_the_label_map_has_classes_then_conditions_then_edges() -> None:
    grey = InputSpec(name="edges", kind="image", channels=1)
    second = InputSpec(name="parts", kind="classes", num_classes=2, dont_care=True)
    labels = LabelMaps((INSTANCES, grey, MAP, second))
    inputs = {
        "labels": torch.tensor([[[0, 2], [1, 3]]]),  # 3 is no class, and has no channel
        "parts": torch.tensor([[[0, 1], [2, 2]]]),  # 2 is the ignore index
        "edges": torch.tensor([[[[-1.0, 0.0], [0.5, 1.0]]]]),
        "instances": torch.tensor([[[1, 1], [1, 1000]]]),
    }
    expected = torch.tensor(
        [
            [[1, 0], [0, 0]],
            [[0, 0], [1, 0]],
            [[0, 1], [0, 0]],
            [[1, 0], [0, 0]],
            [[0, 1], [0, 0]],
            [[0, 0], [1, 1]],
            [[-1, 0], [0.5, 1]],
            [[0, 1], [1, 1]],
        ]
    )[None]
    assert labels.channels == 8
    assert torch.equal(labels(inputs), expected)
    positive = LabelMaps((INSTANCES, grey, MAP, second), positive_conditions=True)(inputs)
    assert torch.equal(positive[:, 6], torch.tensor([[[0, 0.5], [0.75, 1]]]))
    assert torch.equal(positive[:, [0, 1, 2, 3, 4, 5, 7]], expected[:, [0, 1, 2, 3, 4, 5, 7]])
    assert torch.equal(labels.first_classes(inputs), expected[:, :3])


def test_some_conditions_go_from_0_to_1() -> None:
    edges, depth = (InputSpec(name=name, kind="image", channels=1) for name in ("edges", "depth"))
    inputs = {name: torch.full((1, 1, 2, 2), value) for name, value in (("edges", 0.5), ("depth", -1.0))}
    mixed = LabelMaps((edges, depth), positive=("depth",))(inputs)
    assert torch.equal(mixed[0, :, 0, 0], torch.tensor([0.5, 0.0]))
    with pytest.raises(ConfigError, match=r"positive_inputs: got 'dephts', which is none of data.conditions.*depth"):
        LabelMaps((edges, depth), positive=("dephts",))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_networks_take_the_label_map_of_the_data(name: str) -> None:
    model = built(CONFIGS[name])
    batch = random_batch()
    assert model.labels.channels == CLASSES + 1
    assert torch.equal(model.labels(batch.inputs)[:, :CLASSES].sum(1), torch.ones(4, 32, 32))
    (contest,) = model.contests(model.made(batch, stream(batch)), batch, stream(batch))
    fake = contest.fake.images
    assert fake.shape == batch.images.shape and fake.abs().max() <= 1
    assert contest.real.images is batch.images


# The game -----------------------------------------------------------------------------------------------------------------


def stepped(model: PairedGAN, phase: Phase, batch: Batch) -> set[str]:
    """Takes a step as the engine does; the names of all tensors of the state that it changed."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    own = [f"{network}." for network in phase.networks]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(tuple(own)))
    model.prepare(phase, START)
    model.loss(phase, batch, stream(batch, phase.name)).loss.mean().backward()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            assert (parameter.grad is not None) == name.startswith(tuple(own)), name
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    model.stepped(phase)
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_phase_changes_only_its_own_networks(name: str) -> None:
    config: Any = CONFIGS[name]
    if name == "spade":
        config = replace(config, discriminator=replace(config.discriminator, patch=replace(PATCH, norm="batch")))
    model, batch = built(config), random_batch()
    assert [phase.name for phase in model.phases] == ["discriminator", "generator"]
    for phase in model.phases:
        changed = stepped(model, phase, batch)
        own = {key for key in model.state_dict() if key.startswith(f"{phase.networks[0]}.")}
        assert changed <= own
        # u and v move, and running statistics do; the kept looks stay.
        for kind in ("weight_v", "running_mean", "num_batches_tracked"):
            moving = {key for key in own if key.endswith(kind)}
            assert moving <= changed
        assert {key for key in own if key.endswith("weight_orig")} <= changed
        assert not any("cluster_" in key for key in changed)


def hinge_fooled(outputs: tuple[Tensor, ...]) -> Tensor:
    return -torch.stack([scale.mean((1, 2, 3)) for scale in outputs]).mean(0)


def test_the_terms_of_spade_by_hand() -> None:
    config = replace(SPADE_CONFIG, perceptual_weight=2.0, perceptual=SQUEEZENET, l1_weight=3.0, feature_matching_weight=5.0, kl_weight=0.25)
    model, batch = with_perceptual_weights(built(config)), random_batch()
    rng = stream(batch, "generator")
    generator: Any = model.generator
    label = torch.cat((F.one_hot(batch.inputs["labels"], CLASSES).permute(0, 3, 1, 2), model.labels(batch.inputs)[:, -1:]), dim=1).to(
        batch.images.dtype
    )
    mu, logvar = generator.encode(batch.images)
    z = mu + (0.5 * logvar).exp() * rng.normal("style", STYLE_DIMS)
    fake = generator.spade_generator(label, z)
    of_fake, of_real = (model.discriminator(images, label=label) for images in (fake, batch.images))
    matched = sum(
        (a - b).abs().mean((1, 2, 3))
        for layers in zip(of_fake.features, of_real.features, strict=True)
        for a, b in zip(*layers, strict=True)
    )
    assert model.perceptual is not None
    network = model.perceptual.network
    features = [network(network.prepared(images))[0] for images in (fake, batch.images)]
    expected = {
        "adversarial": hinge_fooled(of_fake.outputs),
        "feature_matching": matched / 2,
        "perceptual": 0.5 * (features[0] - features[1]).abs().mean((1, 2, 3)),
        "l1": (fake - batch.images).abs().mean((1, 2, 3)),
        "kl": -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(1),
    }
    assert len(of_fake.outputs) == 5 and len(of_fake.features) == 2
    check_gradients(generator, model.generator_terms(model.made(batch, rng), batch, rng), expected)
    terms = model.loss(model.phases[1], batch, rng)
    assert terms.logged.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(terms.logged[name], value, msg=name, atol=1e-5, rtol=1e-4)
        assert value.abs().min() > 1e-3, name
    weighted = [expected[name] * weight for name, weight in
                {"adversarial": 1, "feature_matching": 5, "perceptual": 2, "l1": 3, "kl": 0.25}.items()]  # fmt: skip
    torch.testing.assert_close(terms.loss, torch.stack(weighted).sum(0), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("relativistic", [False, True])
def test_the_discriminator_by_hand(relativistic: bool) -> None:
    model, batch = built(replace(HD_CONFIG, adversarial=AdversarialConfig(relativistic=relativistic))), random_batch()
    with torch.no_grad():
        terms = model.loss(model.phases[0], batch, stream(batch))
        label = model.labels(batch.inputs)
        fake = model.generator(label=label)
        of_real, of_fake = (model.discriminator(images, label=label).outputs for images in (batch.images, fake))
        fooling = model.loss(model.phases[1], batch, stream(batch)).logged["adversarial"]
    if relativistic:
        pairs = [(r - f, f - r) for r, f in zip(of_real, of_fake, strict=True)]
        of_real, of_fake = (tuple(pair[k] for pair in pairs) for k in (0, 1))
    real = sum((1 - x).clamp(min=0).mean((1, 2, 3)) for x in of_real) / 2
    judged = sum((1 + x).clamp(min=0).mean((1, 2, 3)) for x in of_fake) / 2
    torch.testing.assert_close(terms.logged["real"], real)
    torch.testing.assert_close(terms.logged["fake"], judged)
    torch.testing.assert_close(terms.loss, real + judged)
    torch.testing.assert_close(fooling, hinge_fooled(of_fake))


@pytest.mark.parametrize(
    ("settings", "terms"),
    [
        ({"feature_matching_weight": 0.0, "l1_weight": 1.0}, {"adversarial", "l1", "kl"}),
        ({"adversarial_weight": 0.0, "kl_weight": 0.0}, {"feature_matching"}),
        ({"generator": replace(SPADE_CONFIG.generator, style_dims=None)}, {"adversarial", "feature_matching"}),
    ],
)
def test_only_terms_with_weight_are_there(settings: dict[str, Any], terms: set[str]) -> None:
    model, batch = built(replace(SPADE_CONFIG, **settings)), random_batch()
    assert model.loss(model.phases[1], batch, stream(batch)).logged.keys() == terms


def test_the_generator_runs_once_in_its_phase() -> None:
    model, batch = built(SPADE_CONFIG), random_batch()
    calls = []
    model.generator.spade_generator.register_forward_hook(lambda *_: calls.append(1))
    model.loss(model.phases[1], batch, stream(batch))
    assert len(calls) == 1


def test_validation_scores_by_l1_with_the_mean_style() -> None:
    model, batch = built(replace(SPADE_CONFIG, perceptual_weight=1.0, perceptual=SQUEEZENET)).eval(), random_batch()
    assert model.frozen_networks == {"perceptual": None}
    with torch.no_grad():
        terms = model.loss(model.phases[1], batch, stream(batch))
        images = model.generator(label=model.labels(batch.inputs), z=torch.zeros(4, STYLE_DIMS)).fake_images
        assert terms.logged.keys() == {"l1"}
        torch.testing.assert_close(terms.loss, (images - batch.images).abs().mean((1, 2, 3)))
        both = with_perceptual_weights(model).loss(model.phases[1], batch, stream(batch, "other"))
    assert list(both.logged) == ["l1", "perceptual"]
    assert torch.equal(both.loss, terms.loss)
    assert not any("perceptual" in name for name in model.state_dict())


@pytest.mark.parametrize("config", [with_instance_norm(SPADE_CONFIG), HD_CONFIG, ENCODING], ids=["spade", "pix2pixhd", "encoding"])
def test_microbatches_give_the_gradient_of_the_whole_batch(config: PairedGANConfig) -> None:
    model, batch = built(replace(config, augment=("color", "translation"))), random_batch()
    assert not model.couples_samples
    for phase in model.phases:
        gradients = []
        for size in (4, 3):
            model.zero_grad()
            rng = stream(batch, phase.name)
            for start in range(0, 4, size):
                part = slice(start, start + size)
                (model.loss(phase, batch[part], rng[part]).loss.sum() / 4).backward()
            gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if name.startswith(phase.networks)})
        whole = torch.cat([gradient.flatten() for gradient in gradients[0].values()]).norm()
        assert whole > 0
        for name, gradient in gradients[0].items():
            assert (gradients[1][name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-6 * whole, name


def test_batch_norm_couples_the_samples() -> None:
    assert built(SPADE_CONFIG).couples_samples
    assert built(replace(HD_CONFIG, discriminator=replace(PATCH, norm="batch"))).couples_samples


def seen_by(contest: Contest) -> tuple[Tensor, Tensor, Tensor]:
    """The real and the generated images, and their label map, as the discriminator sees them."""
    real, fake = contest.real, contest.fake
    return real.view(real.images), fake.view(fake.images), real.discriminate.keywords["label"]  # type: ignore[attr-defined]


def test_real_image_generated_image_and_label_map_are_changed_alike() -> None:
    model, batch = built(replace(HD_CONFIG, augment=("color", "translation", "cutout"))), random_batch()
    label = model.labels(batch.inputs)
    same = replace(batch, images=label[:, :3] * 2 - 1)
    rng = stream(batch)
    real, fake, judged = seen_by(model._contest(same, label, same.images, rng))
    assert torch.equal(real, fake), "real and generated"
    assert set(judged.unique().tolist()) == {0.0, 1.0}, "a map keeps its colours"
    moved, _, _ = seen_by(replace(model.config, augment=("translation", "cutout")).build(SPEC)._contest(same, label, same.images, rng))
    inside = judged[:, :3].sum(1, keepdim=True) > 0  # what moves in or is cut out has no class, and is grey in an image
    assert torch.equal(moved, torch.where(inside, judged[:, :3] * 2 - 1, 0))
    assert not torch.equal(moved, same.images) and 0 < inside.float().mean() < 1
    assert seen_by(built(HD_CONFIG)._contest(same, label, same.images, rng))[2] is label


def test_a_label_map_is_changed_as_its_own_image() -> None:
    model, batch = built(replace(HD_CONFIG, augment=("translation",), augment_alike=False)), random_batch()
    label = model.labels(batch.inputs)
    contest = model._contest(batch, label, label[:, :3], stream(batch))
    for seen in (contest.real, contest.fake):
        assert torch.equal(seen.discriminate.keywords["label"][:, :3], seen.view(label[:, :3]))
    assert not torch.equal(contest.real.discriminate.keywords["label"], contest.fake.discriminate.keywords["label"])


# Translation --------------------------------------------------------------------------------------------------------------


def translated(model: Any, inputs: dict[str, Tensor], *, index: Tensor | None = None, seed: int = 5, **settings: Any) -> Tensor:
    rng = Rng(seed, ("translate",), torch.arange(len(inputs["labels"])) if index is None else index)
    return model.translate(inputs, rng, settings=replace(model.translation, **settings))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("styled", [False, True])
def test_translation_k_is_the_same_in_every_batch_and_has_any_size(name: str, styled: bool) -> None:
    model, batch = built(CONFIGS[name]), random_batch(height=48, width=32)
    assert all(isinstance(one, Translator) for one in [model])
    model.loss(model.phases[1], batch, stream(batch))  # moves the running statistics off their first values
    model.eval()
    if name == "encoding":
        model.collect([batch])
    inputs = dict(model.example(batch, settings=model.translation).inputs)
    assert model.example(batch, settings=model.translation).truth is batch.images
    assert inputs.keys() == {"labels", "instances"}
    if styled and model.styles == "none":
        with pytest.raises(ConfigError, match="takes none"):
            translated(model, inputs | {STYLE: batch.images[:, None]})
        return
    if styled:
        inputs |= {STYLE: torch.stack((batch.images, batch.images.flip(0)), dim=1)}
    whole = translated(model, inputs)
    assert whole.shape == (4, 3, 48, 32) and whole.abs().max() <= 1 and whole.dtype == batch.images.dtype
    for part in (slice(0, 1), slice(1, 4)):
        some = translated(model, {key: values[part] for key, values in inputs.items()}, index=torch.arange(4)[part])
        torch.testing.assert_close(some, whole[part], atol=1e-4, rtol=0)
    other = translated(model, inputs | {"labels": inputs["labels"].roll(1, dims=0)})
    assert (other - whole).abs().amax((1, 2, 3)).min() > 1e-3, "the labels do not matter"
    differs = (translated(model, inputs, seed=6) - whole).abs().amax((1, 2, 3))
    random = model.random_styles and not styled
    assert (differs.min() > 1e-4) if random else (differs.max() == 0)
    assert model.random_styles == (model.styles == "optional") == (name != "pix2pixhd")


def test_styles_of_spade() -> None:
    model, batch = built(SPADE_CONFIG).eval(), random_batch()
    inputs = dict(batch.inputs)
    label = model.labels(inputs)

    def of(z: Tensor) -> Tensor:
        with torch.no_grad():
            return model.generator(label=label, z=z).fake_images

    drawn = Rng(5, ("translate",), torch.arange(4)).normal("style", STYLE_DIMS)
    torch.testing.assert_close(translated(model, inputs), of(drawn))
    torch.testing.assert_close(translated(model, inputs, temperature=0.5), of(0.5 * drawn))
    assert torch.equal(translated(model, inputs, temperature=0.0), of(torch.zeros(4, STYLE_DIMS)))
    first, second = batch.images, F.interpolate(batch.images.flip(0), size=(32, 32))
    with torch.no_grad():
        mean = (model.generator.encode(first)[0] + model.generator.encode(second)[0]) / 2
    torch.testing.assert_close(translated(model, inputs | {STYLE: torch.stack((first, second), dim=1)}), of(mean))
    without = built(replace(SPADE_CONFIG, generator=replace(SPADE_CONFIG.generator, style_dims=None))).eval()
    assert without.styles == "none" and not without.random_styles
    assert translated(without, inputs).shape == (4, 3, 32, 32)


def test_looks_of_pix2pixhd() -> None:
    model, batch = built(ENCODING).eval(), random_batch()
    halves = torch.zeros(4, 32, 32, dtype=torch.long)
    halves[:, :, 16:] = 1  # class 0 to the left, 1 to the right, nothing of class 2
    inputs = {"labels": halves, "instances": halves + 7}
    encoder = model.generator.encoder
    with torch.no_grad():
        features = encoder(batch.images, instances=inputs["instances"][:, None])
    model.collect([replace(batch, inputs=inputs)[part] for part in (slice(0, 3), slice(3, 4))])
    for index, column in ((0, 0), (1, 31)):
        looks, centres = features[:, :, 0, column], encoder.get_buffer(f"cluster_{index}")
        assert centres.shape == (2, 3)
        # Two centres of four looks: each is the mean of those that are nearest to it, and the distances are below those to the mean.
        nearest = torch.cdist(looks, centres).argmin(1)
        for k in range(2):
            torch.testing.assert_close(centres[k], looks[nearest == k].mean(0))
        assert torch.cdist(looks, centres).amin(1).sum() < (looks - looks.mean(0)).norm(dim=1).sum()
    assert not encoder.get_buffer("cluster_2").any()

    photo = translated(model, inputs | {STYLE: batch.images[:, None]})
    with torch.no_grad():
        torch.testing.assert_close(photo, model.generator(label=model.labels(inputs), features=features))
        choices = Rng(5, ("translate",), torch.arange(4)).integers("look", 2, CLASSES)
        kept = torch.stack(
            [torch.stack([encoder.get_buffer(f"cluster_{int(c)}")[choices[b, int(c)]] for c in (0, 1)]) for b in range(4)]
        )  # (b, class, feature)
        chosen = kept[torch.arange(4)[:, None, None], halves].permute(0, 3, 1, 2)
        torch.testing.assert_close(translated(model, inputs), model.generator(label=model.labels(inputs), features=chosen))
    larger = torch.rand(4, 3, 64, 40) * 2 - 1
    resized = F.interpolate(larger, size=(32, 32), mode="bilinear", antialias=True)
    of_larger, of_resized = (translated(model, inputs | {STYLE: images[:, None]}) for images in (larger, resized))
    assert torch.equal(of_larger, of_resized)


def test_an_example_has_the_photo_where_no_looks_were_kept() -> None:
    model, batch = built(ENCODING).eval(), random_batch()
    example = model.example(batch, settings=model.translation)
    assert torch.equal(example.inputs[STYLE], batch.images[:, None])
    with pytest.raises(ConfigError, match="style: missing: these weights have kept no looks"):
        translated(model, dict(batch.inputs))
    made = translated(model, dict(example.inputs))
    with torch.no_grad():
        torch.testing.assert_close(made, model.made(batch, stream(batch)).images)
    small = torch.arange(32 * 32).view(1, 32, 32).expand(4, -1, -1)
    for instances, kept in ((small, False), (torch.zeros_like(small), True)):  # too small to be kept, and one all over
        model.collect([replace(batch, inputs={**batch.inputs, "instances": instances})])
        assert (STYLE not in model.example(batch, settings=model.translation).inputs) == kept


# What is refused ----------------------------------------------------------------------------------------------------------


def spec_of(*inputs: InputSpec, size: int = 32, width: int | None = None) -> DataSpec:
    return DataSpec(image_size=size, width=width, channels=3, inputs=inputs)


@pytest.mark.parametrize(
    ("config", "spec", "setting", "words"),
    [
        (SPADE_CONFIG, spec_of(), "", "data.maps"),
        (HD_CONFIG, spec_of(InputSpec(name="style_labels", kind="labels", num_classes=3)), "", "in pairs"),
        (SPADE_CONFIG, spec_of(MAP, width=40), "generator.resolution", "40x32 pixels, expected sides of multiples of 16"),
        (with_instance_norm(SPADE_CONFIG), spec_of(MAP, size=16), "generator.resolution", "at least 32"),
        (HD_CONFIG, spec_of(MAP, InputSpec(name=STYLE, kind="image", channels=3)), "", 'has a folder "style"'),
        (HD_CONFIG, spec_of(MAP, size=36), "generator.num_downsamples", "multiples of 8"),
        (HD_CONFIG, spec_of(MAP, size=8), "generator.num_downsamples", "at least 16"),
        (
            replace(SPADE_CONFIG, discriminator=SPADEDiscriminatorConfig(patch=replace(PATCH, kernel_size=4, num_layers=4))),
            SPEC,
            "discriminator.patch.num_layers",
            "at least 64",
        ),
        (replace(HD_CONFIG, discriminator=replace(PATCH, norm="instance", num_layers=5)), SPEC, "discriminator.num_layers", "at least 66"),
        (ENCODING, spec_of(MAP), "generator.encoder", "data.instances"),
        (
            replace(HD_CONFIG, generator=replace(HD_CONFIG.generator, encoder=FeatureEncoderConfig(num_downsamples=4))),
            spec_of(MAP, INSTANCES, size=16),
            "generator.encoder.num_downsamples",
            "at least 32",
        ),
        (ENCODING, spec_of(INSTANCES), "generator.encoder", "data.maps"),
        (replace(HD_CONFIG, perceptual_weight=1.0), spec_of(MAP, size=16), "perceptual.layers", None),
    ],
)
def test_build_names_what_does_not_fit(config: PairedGANConfig, spec: DataSpec, setting: str, words: str | None) -> None:
    if setting == "perceptual.layers":  # VGG-19 halves four times before relu_5_1; a quarter of 16 pixels is too small
        config = replace(config, perceptual=PerceptualConfig(num_scales=3))
    with pytest.raises(ConfigError) as caught:
        config.build(spec)
    assert caught.value.setting == setting
    assert words is None or words in caught.value.reason


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"l1_weight": -1.0}, "l1_weight"),
        ({"kl_weight": float("inf")}, "kl_weight"),
        ({"perceptual_weight": float("nan")}, "perceptual_weight"),
        ({"adversarial_weight": 0.0, "feature_matching_weight": 0.0}, "adversarial_weight"),
        ({"discriminator_steps": 0}, "discriminator_steps"),
    ],
)
def test_settings_out_of_range(settings: dict[str, float], setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(SPADE_CONFIG, **settings)
    assert caught.value.setting == setting
    with pytest.raises(ConfigError):
        SPADETranslationConfig(temperature=-1.0)


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ({"labels": None}, "labels", "missing"),
        ({"labels": torch.zeros(2, 1, 32, 32, dtype=torch.long)}, "labels", "(b, h, w)"),
        ({"labels": torch.zeros(2, 32, 32)}, "labels", "float32"),
        ({"labels": torch.zeros(2, 40, 32, dtype=torch.long)}, "labels", "multiples of 16"),
        ({"instances": torch.zeros(2, 32, 48, dtype=torch.long)}, "instances", "expected 2 of 32x32"),
        ({STYLE: torch.zeros(2, 3, 32, 32)}, STYLE, "(2, k, 3, h, w)"),
        ({STYLE: torch.zeros(2, 0, 3, 32, 32)}, STYLE, "(2, k, 3, h, w)"),
        (
            {STYLE: torch.zeros(2, 1, 3, 32, 32, dtype=torch.uint8)},
            STYLE,
            "got images of uint8, expected floating-point numbers from -1 to 1",
        ),
    ],
)
def test_translation_names_what_does_not_fit(change: dict[str, Any], name: str, words: str) -> None:
    model, batch = built(SPADE_CONFIG).eval(), random_batch(2)
    inputs = {key: values for key, values in (dict(batch.inputs) | change).items() if values is not None}
    with pytest.raises(ConfigError) as caught:
        model.translate(inputs, stream(batch), settings=model.translation)
    assert caught.value.setting == name and words in caught.value.reason
    with pytest.raises(ConfigError, match="are not the settings wanted here"):
        model.translate(inputs, stream(batch), settings=Pix2PixHDTranslationConfig())


@pytest.mark.parametrize("name", ["spade", "encoding"])
def test_a_random_style_is_drawn_for_each_image(name: str) -> None:
    model, batch = built(CONFIGS[name]).eval(), random_batch(3)
    if name == "encoding":
        model.collect([batch])
    for wrong in (1, 2):
        with pytest.raises(ConfigError, match=rf"^rng: got draws for {wrong} of 3 images, expected an index for each$"):
            translated(model, dict(batch.inputs), index=torch.arange(wrong))
    assert len(translated(model, dict(batch.inputs) | {STYLE: batch.images[:, None]}, index=torch.arange(1))) == 3  # nothing is drawn


# Recipes ------------------------------------------------------------------------------------------------------------------


def spec_of_recipe(data: Any) -> DataSpec:
    """What the data of a recipe gives, without looking at any."""
    assert isinstance(data, PairedDataConfig)
    maps = [
        InputSpec(name=name, kind="classes", num_classes=count, dont_care=data.dont_care)
        for name, count in zip(data.maps, data.num_classes, strict=True)
    ]
    instances = [] if data.instances is None else [InputSpec(name=data.instances, kind="instances")]
    return DataSpec(image_size=data.image_size, width=data.width, channels=3, inputs=(*maps, *instances))


@pytest.mark.parametrize(
    ("name", "label_channels", "generator", "discriminator"),
    [
        ("spade-coco256", 185, (415_333_507, 508), (51_926_787, 110)),
        ("spade-lhq512", 184, (424_726_278, 616), None),
        ("pix2pixhd-cityscapes", 36, (182_589_507, 164), (3_156_482, 56)),
        ("pix2pixhd-cityscapes-2k", 36, (182_900_835, 218), (4_734_723, 84)),
    ],
)
def test_published_recipes_have_the_published_numbers(
    name: str, label_channels: int, generator: tuple[int, int], discriminator: tuple[int, int] | None
) -> None:
    recipe = load_recipe(name)
    with torch.device("meta"):
        model: Any = recipe.model.build(spec_of_recipe(recipe.data))
    assert model.labels.channels == label_channels
    for network, expected in ((model.generator, generator), (model.discriminator, discriminator)):
        if expected is not None:
            assert (sum(p.numel() for p in network.parameters()), len(network.state_dict())) == expected
    assert recipe.optim.name == "adam" and recipe.train.precision == "float32" and model.frozen_networks == {"perceptual": None}
    coco = name.startswith("spade")
    assert isinstance(model, SPADE if coco else Pix2PixHD)
    assert (recipe.optim.learning_rate, *recipe.optim.betas) == ((1e-4, 0.0, 0.999) if coco else (2e-4, 0.5, 0.999))
    assert model.phases[0].rate == (4.0 if coco else 1.0)
    assert dict(model.weights) == {"adversarial": 1, "feature_matching": 10, "perceptual": 10, "l1": 0} | ({"kl": 0.2} if coco else {})


@pytest.mark.parametrize("name", ["spade-camvid", "pix2pixhd-camvid"])
def test_small_recipes_fit_their_data_and_need_no_weights(name: str) -> None:
    recipe = load_recipe(name)
    spec = spec_of_recipe(recipe.data)
    model: Any = recipe.model.build(spec)
    assert spec.height_and_width == (64, 96) and not model.frozen_networks and model.weights["l1"] > 0
    batch = Batch(torch.zeros(1, 3, 64, 96), None, torch.arange(1), {"labels": torch.zeros(1, 64, 96, dtype=torch.long)})
    with torch.no_grad():
        (contest,) = model.contests(model.made(batch, stream(batch)), batch, stream(batch))
        assert contest.fake.images.shape == batch.images.shape
        assert all(scores.shape[2:].numel() > 2 for scores in contest.fake.scores().outputs)


@pytest.mark.parametrize(
    ("name", "epoch", "batch", "epochs", "decay", "rate", "start", "statistics", "initial", "cut"),
    [
        ("spade-coco256", 118_000, 32, 400, 400, 0.9999, 1_000, 30, ("xavier", 0.02), (256, None, "random", 0.2)),
        ("pix2pixhd-cityscapes", 2_975, 16, 200, 100, 0.999, 500, None, ("xavier", 0.02), (512, 1024, "random", 0.2)),
        ("pix2pixhd-cityscapes-2k", 2_975, 16, 100, 100, 0.999, 500, None, ("xavier", 0.02), (1024, 2048, "random", 0.2)),
    ],
)
def test_published_training(
    name: str,
    epoch: int,
    batch: int,
    epochs: int,
    decay: int,
    rate: float,
    start: int,
    statistics: int | None,
    initial: tuple[str, float],
    cut: tuple[int, int | None, str, float],
) -> None:
    """Epochs, and steps until averages start, as the original counts them; eight processes. Without batch norm statistics have no say."""
    recipe = load_recipe(name)
    train, optim, data, model = recipe.train, recipe.optim, recipe.data, recipe.model
    assert isinstance(data, PairedDataConfig) and isinstance(model, PairedGANConfig)
    assert (train.batch_size, train.total_images, train.ema_rates) == (batch, epochs * epoch, (rate,))
    assert train.ema_start == start * batch and not train.ema_warmup
    assert statistics is None or train.statistics_batches == statistics
    assert (optim.schedule, optim.decay_every, optim.decay_factor) == ("step", decay * epoch, 0.1)
    assert (model.initial.kind, model.initial.gain) == initial and model.adversarial.kind == "hinge"
    assert (data.image_size, data.width, data.crop, data.scale) == cut and data.flip
