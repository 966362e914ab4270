"""StyleGAN2's layers and losses against the formulas of the papers, written out in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.engine.toys import START
from triptych.core.batch import Batch, DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import LossTerms, Phase, TrainingProgress
from triptych.core.rng import Rng
from triptych.engine.config import OptimConfig, PhaseOptimConfig, TrainConfig
from triptych.engine.distributed import open_world
from triptych.engine.schedule import refuse_impossible, refuse_unknown_phases, step_settings
from triptych.gans.penalties import PenaltyConfig
from triptych.gans.stylegan2 import PathConfig, StyleGAN2, StyleGAN2Config, StyleGAN2Sampling
from triptych.gans.stylegan2_layers import FullyConnected, MappingNetwork, StyleGAN2GeneratorConfig, modulated_convolution
from triptych.gans.stylegan2_networks import DiscriminatorLayer, SynthesisLayer, ToRGB, group_deviation
from triptych.nn.filters import kernel_of, upsampled, upsampled_convolution
from triptych.recipes.catalogue import load_recipe, recipes

pytestmark = pytest.mark.usefixtures("float64")
CLASSES = 3


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spec(size: int = 8, classes: int | None = None) -> DataSpec:
    names = None if classes is None else tuple(map(str, range(classes)))
    return DataSpec(image_size=size, channels=3, num_classes=classes, class_names=names)


def made(size: int = 8, **settings: Any) -> StyleGAN2:
    """A small model with noise, and biases that are not 0."""
    torch.manual_seed(0)
    config = replace(StyleGAN2Config(class_conditional=True).shrunk(), **settings)
    model = config.build(spec(size, CLASSES if config.class_conditional else None))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def batch(count: int = 4, size: int = 8) -> Batch:
    return Batch(numbers(count, 3, size, size), torch.arange(count) % CLASSES, torch.arange(count))


def loss_of(model: StyleGAN2, name: str, images: Batch) -> LossTerms:
    return model.loss(phase(model, name), images, Rng(0, (name, 0), images.index))


def phase(model: StyleGAN2, name: str) -> Phase:
    return next(phase for phase in model.phases if phase.name == name)


# Layers -----------------------------------------------------------------------------------------------------------------


def convolved_by_the_papers_equations(x: Tensor, weight: Tensor, styles: Tensor, *, up: bool) -> Tensor:
    """Each image with its own weights: Eq. 1, then Eq. 3."""
    images = []
    for image, style in zip(x, styles, strict=True):
        modulated = torch.stack([torch.stack([style[i] * weight[o, i] for i in range(len(style))]) for o in range(len(weight))])
        demodulated = torch.stack([kernel / torch.sqrt((kernel**2).sum() + 1e-8) for kernel in modulated])
        one = image[None]
        images.append(upsampled_convolution(one, demodulated) if up else F.conv2d(one, demodulated, padding=1))
    return torch.cat(images)


@pytest.mark.parametrize("by_weights", [False, True])
@pytest.mark.parametrize("up", [False, True])
def test_modulated_convolution(by_weights, up) -> None:
    x, weight, styles = numbers(2, 3, 4, 4), numbers(5, 3, 3, 3, seed=1), numbers(2, 3, seed=2)
    expected = convolved_by_the_papers_equations(x, weight, styles, up=up)
    kernel = kernel_of((1.0, 3.0, 3.0, 1.0)) if up else None
    found = modulated_convolution(x, weight, styles, kernel=kernel, by_weights=by_weights)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    narrow = modulated_convolution(
        x.float(), weight.float(), styles.float(), kernel=None if kernel is None else kernel.float(), by_weights=by_weights
    )
    assert (narrow - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_both_ways_of_modulation_give_one_image_and_one_gradient() -> None:
    images, gradients = [], []
    for modulation in ("features", "weights"):
        model = made(generator=replace(StyleGAN2Config().generator.shrunk(), modulation=modulation))
        image = model.generated(batch().labels, Rng(0, ("x",), torch.arange(4)))
        (image * numbers(*image.shape)).sum().backward()
        images.append(image.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in model.generator.parameters() if p.grad is not None]))
    torch.testing.assert_close(*images, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-10)


def test_a_layer_of_the_synthesis() -> None:
    """lrelu(y + strength noise + bias) sqrt(2), clipped."""
    torch.manual_seed(0)
    settings = StyleGAN2GeneratorConfig(style_dims=6, conv_clamp=1.5)
    layer = SynthesisLayer(settings, 4, 5, resolution=8, up=False)
    torch.nn.init.constant_(layer.noise_strength, 0.7)
    torch.nn.init.normal_(layer.bias)
    x, w, noise = numbers(2, 4, 8, 8), numbers(2, 6), numbers(2, 1, 8, 8, seed=3)
    styles = w @ layer.affine.weight.T / math.sqrt(6) + layer.affine.bias
    y = convolved_by_the_papers_equations(x, layer.weight, styles, up=False) + 0.7 * noise + layer.bias[:, None, None]
    expected = (math.sqrt(2) * torch.where(y > 0, y, 0.2 * y)).clamp(-1.5, 1.5)
    torch.testing.assert_close(layer(x, w, noise, by_weights=False), expected)
    fixed = layer(x, w, None, by_weights=False)
    torch.testing.assert_close(layer(x, w, layer.noise_const.expand(2, 1, 8, 8), by_weights=False), fixed)


def test_equalised_layers() -> None:
    torch.manual_seed(0)
    linear = FullyConnected(6, 5, active=True, rate=0.01, bias=2.0)
    assert abs(linear.weight.std() - 100) < 30, "drawn from N(0, 1) / rate"
    x = numbers(3, 6)
    y = x @ (0.01 / math.sqrt(6) * linear.weight).T + 0.01 * linear.bias
    torch.testing.assert_close(linear(x), math.sqrt(2) * torch.where(y > 0, y, 0.2 * y))
    layer = DiscriminatorLayer(4, 5, 3, gain=math.sqrt(0.5), limit=1.0)
    torch.nn.init.normal_(layer.bias)
    image = numbers(2, 4, 8, 8)
    y = F.conv2d(image, layer.weight / math.sqrt(36), layer.bias, padding=1)
    expected = torch.where(y > 0, y, 0.2 * y).clamp(-math.sqrt(0.5), math.sqrt(0.5))  # sqrt(2) sqrt(1/2) = 1
    torch.testing.assert_close(layer(image), expected)
    layer.gain, layer.limit = 0.3, None
    y = 0.3 * F.conv2d(image, layer.weight / math.sqrt(36), layer.bias, padding=1)
    torch.testing.assert_close(layer(image), torch.where(y > 0, y, 0.2 * y))


def test_the_image_of_features_is_modulated_alone() -> None:
    """sum over i of s_i w_i x_i / sqrt(number of i), and the bias, clipped."""
    torch.manual_seed(0)
    layer = ToRGB(StyleGAN2GeneratorConfig(style_dims=6, conv_clamp=1.5), 4, image_channels=3)
    torch.nn.init.normal_(layer.bias)
    x, w = numbers(2, 4, 8, 8), numbers(2, 6)
    styles = w @ layer.affine.weight.T / math.sqrt(6) + layer.affine.bias
    expected = torch.einsum("oi,bi,bihw->bohw", layer.weight[:, :, 0, 0], styles, x) / math.sqrt(4) + layer.bias[:, None, None]
    assert expected.abs().max() > 1.5
    for by_weights in (False, True):
        torch.testing.assert_close(layer(x, w, by_weights=by_weights), expected.clamp(-1.5, 1.5))


def test_each_layer_has_its_style() -> None:
    """The image of a resolution has the style of the next one's first convolution, and is doubled by the filter to be added."""
    synthesis = made().generator.synthesis
    ws, noise = numbers(2, 4, 6), [numbers(2, 1, side, side, seed=side) for side in synthesis.sides]
    four, eight = (synthesis.get_submodule(name) for name in ("b4", "b8"))
    x = four.conv1(four.const.expand(2, -1, -1, -1), ws[:, 0], noise[0], by_weights=False)  # type: ignore[union-attr]
    image = four.torgb(x, ws[:, 1], by_weights=False)  # type: ignore[operator]
    x = eight.conv0(x, ws[:, 1], noise[1], by_weights=False)  # type: ignore[operator]
    x = eight.conv1(x, ws[:, 2], noise[2], by_weights=False)  # type: ignore[operator]
    image = upsampled(image, kernel_of((1.0, 3.0, 3.0, 1.0))) + eight.torgb(x, ws[:, 3], by_weights=False)  # type: ignore[operator]
    torch.testing.assert_close(synthesis(ws, noise), image)


def test_mapping() -> None:
    torch.manual_seed(0)
    network = MappingNetwork(StyleGAN2GeneratorConfig(mapping_layers=2), z_dims=4, num_classes=CLASSES, w_dims=6)
    z, labels = numbers(3, 4), torch.tensor([2, 0, 1])
    embedded = network.embed.weight.T[labels] / math.sqrt(CLASSES) + network.embed.bias
    x = torch.cat([part / (part.square().mean(1, keepdim=True) + 1e-8).sqrt() for part in (z, embedded)], dim=1)
    torch.testing.assert_close(network(z, labels), network.fc1(network.fc0(x)))


@pytest.mark.parametrize(("count", "size"), [(6, 2), (6, 3), (4, 4)])
def test_deviation_of_groups_is_that_of_a_loop(count, size) -> None:
    x = numbers(count, 3, 2, 2)
    for k, found in enumerate(group_deviation(x, size)):
        group = x[k // size * size : (k // size + 1) * size]
        mean = sum(group) / size
        expected = torch.sqrt(sum((image - mean) ** 2 for image in group) / size + 1e-8).mean()
        torch.testing.assert_close(found, expected.expand(1, 2, 2))
    with pytest.raises(ValueError, match=f"got {count + 1} images, expected a multiple of {size}"):
        group_deviation(numbers(count + 1, 1, 2, 2), size)


# Losses -----------------------------------------------------------------------------------------------------------------


def test_path_lengths_and_their_gradient_are_those_of_the_jacobian() -> None:
    """|J^T y| with J by autograd row by row; its gradient by differences."""
    model = made(style_mixing=0.0)
    rng, labels = Rng(0, ("path", 0), torch.arange(2)), torch.tensor([0, 2])
    with torch.no_grad():
        w = model.generator.mapping(rng.normal("z", 6), labels)
    noise, directions = model.generator.synthesis.drawn_noise(rng), rng.normal("direction", 3, 8, 8) / 8
    for k in range(2):
        ws = w[k].expand(1, model.generator.synthesis.num_ws, -1)
        jacobian = torch.autograd.functional.jacobian(
            lambda ws, k=k: model.generator.synthesis(ws, [part[k : k + 1] for part in noise]).flatten(), ws
        )
        assert isinstance(jacobian, Tensor)
        product = torch.einsum("p,pns->ns", directions[k].flatten().double(), jacobian[:, 0])
        torch.testing.assert_close(model.path_lengths(labels, rng)[k].detach(), product.square().sum(1).mean().sqrt())
    model.path_lengths(labels, rng).sum().backward()
    weight = model.generator.synthesis.b8.conv0.weight
    assert weight.grad is not None
    for place in ((0, 1, 0, 2), (3, 2, 1, 1)):
        changed = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                weight[place] += step
            changed.append(float(model.path_lengths(labels, rng).sum().detach()))
            with torch.no_grad():
                weight[place] -= step
        assert abs((changed[0] - changed[1]) / 2e-5 - weight.grad[place]) < 1e-6 * weight.grad.norm()


def test_the_paths_phase_is_the_penalty_of_half_the_images() -> None:
    model, images = made(path=PathConfig(weight=3.0, every=5, shrink=2)), batch(6)
    model.path_mean.fill_(0.25)
    terms = loss_of(model, "path", images)
    rng = Rng(0, ("path", 0), images.index[::2])
    lengths = model.path_lengths(images.labels[::2], rng)
    torch.testing.assert_close(terms.loss.sum() / 6, 5 * 3.0 * (lengths - 0.25).square().mean())
    assert phase(model, "path").every == 5 and phase(model, "path").networks == ("generator",)
    assert model.path_mean == 0.25, "a loss moves nothing"
    model.observe(phase(model, "path"), terms.observed)
    torch.testing.assert_close(model.path_mean, 0.99 * torch.tensor(0.25) + 0.01 * lengths.mean().detach())


@pytest.mark.parametrize("name", ["path", "penalty"])
def test_a_lazy_term_stands_for_all_the_steps_of_its_network(name: str) -> None:
    penalty, images = PenaltyConfig(r1_gamma=3.0, every=16, at="original"), batch()
    once, twice = (made(penalty=penalty, generator_steps=steps, discriminator_steps=steps) for steps in (1, 2))
    torch.testing.assert_close(loss_of(twice, name, images).loss, 2 * loss_of(once, name, images).loss)


def test_the_lazy_penalty_is_the_plain_one() -> None:
    model, images = made(penalty=PenaltyConfig(r1_gamma=3.0, every=16, at="original")), batch()
    loss_of(model, "penalty", images).loss.sum().backward()
    found = {name: p.grad.clone() for name, p in model.discriminator.named_parameters() if p.grad is not None}
    model.zero_grad()
    x = images.images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.discriminator(x, images.labels).outputs[0].sum(), x, create_graph=True)
    (16 * 3.0 / 2 * gradient.square().sum()).backward()
    for name, parameter in model.discriminator.named_parameters():
        if name in found and parameter.grad is not None:
            torch.testing.assert_close(found[name], parameter.grad)
    assert found["b8.conv0.weight"].norm() > 0


def test_the_running_mean_of_w_and_truncation() -> None:
    model, images = made(style_mixing=0.5), batch()
    model.prepare(phase(model, "generator"), START)
    terms = loss_of(model, "generator", images)
    w = model.generator.mapping(Rng(0, ("generator", 0), images.index).normal("z", 6), images.labels).detach()
    assert not model.generator.mapping.w_avg.any(), "a loss moves nothing"
    model.observe(phase(model, "generator"), terms.observed)
    torch.testing.assert_close(model.generator.mapping.w_avg, 0.005 * w.mean(0))
    mean = model.generator.mapping.w_avg
    ws = model.truncated(w, settings=StyleGAN2Sampling(truncation=0.7, truncation_layers=1))
    torch.testing.assert_close(ws[:, 0], mean + 0.7 * (w - mean))
    torch.testing.assert_close(ws[:, 1:], w[:, None].expand(-1, 3, -1))
    at_mean = model.eval().sample(
        Rng(1, ("s",), torch.arange(3)), labels=torch.tensor([0, 1, 2]), settings=StyleGAN2Sampling(truncation=0.0, noise="fixed")
    )
    torch.testing.assert_close(at_mean, at_mean[:1].expand_as(at_mean))


def test_styles_are_mixed_in_their_share_of_images() -> None:
    model = made()
    rng = Rng(0, ("x",), torch.arange(4000))
    crossover = model._mixing(rng)["crossover"]
    layers = model.generator.synthesis.num_ws
    counts = torch.bincount(crossover, minlength=layers + 1) / 4000
    expected = torch.tensor([0.0] + [0.9 / (layers - 1)] * (layers - 1) + [0.1])
    assert (counts - expected).abs().max() < 4 * math.sqrt(0.25 / 4000)
    z, other = numbers(3, 6), numbers(3, 6, seed=1)
    labels = torch.tensor([0, 1, 2])
    ws = model.generator.styles(z, labels, other=other, crossover=torch.tensor([1, 2, layers]))
    w, second = model.generator.mapping(z, labels), model.generator.mapping(other, labels)
    for k, first in enumerate((1, 2, layers)):
        torch.testing.assert_close(ws[k], torch.stack([w[k] if layer < first else second[k] for layer in range(layers)]))


def test_the_discriminators_label_is_projected() -> None:
    model, images = made(), batch()
    features = model.discriminator.b4(model.discriminator.b8(images.images))
    mapped = model.discriminator.mapping(None, images.labels)
    (found,) = model.discriminator(images.images, images.labels).outputs
    torch.testing.assert_close(found, (features * mapped).sum(1, keepdim=True) / math.sqrt(features.shape[1]))


def test_a_residual_block_and_a_plain_one() -> None:
    model = made(discriminator=replace(StyleGAN2Config().discriminator.shrunk(), architecture="residual"))
    block, x = model.discriminator.b8, numbers(2, 3, 8, 8)
    y = block.fromrgb(x)
    torch.testing.assert_close(block(x), block.skip(y) + block.conv1(block.conv0(y)))
    assert block.skip.gain == pytest.approx(math.sqrt(0.5)), "the sum has the variance of one"
    plain = made(discriminator=replace(StyleGAN2Config().discriminator.shrunk(), architecture="plain")).discriminator.b8
    assert plain.skip is None and plain.conv1.gain == pytest.approx(math.sqrt(2)) and block.conv1.gain == pytest.approx(1)


def test_initial_weights() -> None:
    """N(0, 1), over the rate of the mapping network; biases of styles are 1, all others and the strengths of noise 0."""
    torch.manual_seed(0)
    model = StyleGAN2Config(class_conditional=True, latent_dims=16).shrunk().build(spec(classes=CLASSES))
    for name, parameter in model.named_parameters():
        if name.endswith(("weight", "const")):
            scale = 100 if "mapping.fc" in name else 1
            assert 0.3 * scale < parameter.square().mean().sqrt() < 2 * scale, name
        else:
            assert (parameter == ("affine" in name)).all(), name


def test_a_whole_discriminator() -> None:
    """Every convolution over the root of its inputs, sqrt(2) lrelu behind it, a filter before each that halves, sqrt(1/2) of two sums."""
    model = made(class_conditional=False, style_mixing=0.0).discriminator
    binomial = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8

    def rectified(y: Tensor) -> Tensor:
        return math.sqrt(2) * torch.where(y > 0, y, 0.2 * y)

    def convolved(x: Tensor, layer: DiscriminatorLayer, *, down: bool = False) -> Tensor:
        weight, (ins, side) = layer.weight, layer.weight.shape[1:3]
        if down:
            kernel = (binomial[:, None] * binomial).expand(ins, 1, 4, 4)
            x = F.conv2d(x, kernel, padding=1 + side // 2, groups=ins)
        y = F.conv2d(x, weight / math.sqrt(ins * side**2), stride=1 + down, padding=0 if down else side // 2)
        return y if layer.bias is None else rectified(y + layer.bias[:, None, None])

    images = numbers(4, 3, 8, 8)
    block, last = model.b8, model.b4
    y = convolved(images, block.fromrgb)
    y = (convolved(convolved(y, block.conv0), block.conv1, down=True) + convolved(y, block.skip, down=True)) / math.sqrt(2)
    groups = y.view(2, 2, *y.shape[1:])
    deviation = ((groups - groups.mean(1, keepdim=True)).square().mean(1) + 1e-8).sqrt().mean((1, 2, 3))
    y = torch.cat((y, deviation.repeat_interleave(2)[:, None, None, None].expand(4, 1, 4, 4)), dim=1)
    y = convolved(y, last.conv).flatten(1)
    y = rectified(y @ last.fc.weight.T / math.sqrt(y.shape[1]) + last.fc.bias)
    expected = y @ last.out.weight.T / math.sqrt(y.shape[1]) + last.out.bias
    torch.testing.assert_close(model(images).outputs[0], expected)


@pytest.mark.parametrize(("size", "half"), [(8, [8]), (32, [8, 16, 32]), (256, [32, 64, 128, 256])])
def test_the_highest_resolutions_from_8_on_may_be_half(size: int, half: list[int]) -> None:
    settings = StyleGAN2GeneratorConfig(half_stages=4)
    assert [side for side in (4, 8, 16, 32, 64, 128, 256) if side <= size and settings.is_half(side, size=size)] == half


# What is refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 28])
def test_sizes_that_do_not_double_from_four_are_refused(size) -> None:
    with pytest.raises(ConfigError, match=f"got images of {size}x{size}, expected squares of 8, 16, 32"):
        StyleGAN2Config().build(spec(size))


@pytest.mark.parametrize(("train", "setting"), [({"batch_size": 6}, "batch_size"), ({"batch_size": 8, "microbatch": 2}, "microbatch")])
def test_batches_that_are_no_groups_are_refused(train, setting) -> None:
    model = made(discriminator=replace(StyleGAN2Config().discriminator.shrunk(), group_size=4))
    with pytest.raises(ConfigError, match=f"train.{setting}: got {train[setting]}, expected a multiple of 4"):
        refuse_impossible(model, TrainConfig(total_images=24, **train), open_world("cpu"))


def test_other_initial_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match="model.initial|initial: "):
        replace(StyleGAN2Config(), initial=replace(StyleGAN2Config().initial, kind="normal"))


# Published models -------------------------------------------------------------------------------------------------------

PUBLISHED = {
    "stylegan2-cifar10-cond": (10, 20_215_315, 23_089_664),
    "stylegan2-cifar10": (None, 19_947_539, 20_720_641),
    "stylegan2-auto64": (None, 22_243_608, 23_407_361),
    "stylegan2-auto128": (None, 22_949_277, 23_882_369),
    "stylegan2-auto256": (None, 23_191_522, 24_001_089),
    "stylegan2-paper256": (None, 24_767_458, 24_001_089),
    "stylegan2-auto512": (None, 28_700_647, 28_982_849),
    "stylegan2-auto1024": (None, 28_794_124, 29_012_513),
    "stylegan2-paper512": (None, 30_276_583, 28_982_849),
    "stylegan2-paper1024": (None, 30_370_060, 29_012_513),
    "stylegan2-ffhq1024": (None, 30_370_060, 29_012_513),
}
"""Classes, and the parameters of the generator and the discriminator."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_published_models(name) -> None:
    classes, *counts = PUBLISHED[name]
    recipe = load_recipe(name)
    with torch.device("meta"):
        model = recipe.model.build(spec(recipe.data.image_size, classes))
    assert [sum(p.numel() for p in network.parameters()) for network in (model.generator, model.discriminator)] == counts


@pytest.mark.parametrize(
    ("name", "batch_size", "gamma", "half_life"),
    [("stylegan2-auto64", 32, 0.0256, 10_000), ("stylegan2-auto256", 16, 0.8192, 5_000), ("stylegan2-auto512", 8, 6.5536, 2_500)],
)
def test_settings_by_resolution(name, batch_size, gamma, half_life) -> None:
    recipe = load_recipe(name)
    assert recipe.train.batch_size == batch_size
    assert recipe.model.penalty.r1_gamma == pytest.approx(gamma)
    assert recipe.train.all_averages[0].half_life == half_life


RECIPES = [name for name in recipes() if name.startswith("stylegan2")]


@pytest.mark.parametrize("name", RECIPES)
def test_the_optimizer_of_each_phase_is_that_of_so_many_more_steps(name: str) -> None:
    """To the last bit what absolute numbers, as earlier versions wrote them, give; a flag scales the rate in all phases."""
    optim, rate = load_recipe(name).optim, 0.002 if "1024" in name else 0.0025
    lazy = [PhaseOptimConfig(phase=phase, learning_rate=rate * 16 / 17, beta2=0.99 ** (16 / 17)) for phase in ("discriminator", "penalty")]
    absolute = OptimConfig(name="adam", learning_rate=rate * 4 / 5, betas=(0.0, 0.99 ** (4 / 5)), phases=tuple(lazy))
    written = OptimConfig.from_dict(absolute.to_dict())
    scaled = replace(optim, learning_rate=optim.learning_rate / 8, betas=(0.5, 0.99**2))
    for phase_name, share in {"discriminator": 16 / 17, "penalty": 16 / 17, "generator": 0.8, "path": 0.8}.items():
        phase, progress = Phase(phase_name, (phase_name,)), TrainingProgress(50_000, 32, 10**6)
        step, other = step_settings(optim, phase, progress), step_settings(scaled, phase, progress)
        assert step == step_settings(written, phase, progress)
        assert step.learning_rate == pytest.approx(rate * share, rel=1e-12) and step.beta2 == pytest.approx(0.99**share, rel=1e-12)
        assert other == replace(step, learning_rate=step.learning_rate / 8, beta1=0.5, beta2=pytest.approx(step.beta2**2))


def test_published_recipes_learn_all_images() -> None:
    """That of CIFAR-10, which has test images of its own, holds out these; those for small sets and one's own images a twentieth."""
    fractions = {name: load_recipe(name).data.validation_fraction for name in RECIPES}
    assert {name for name, fraction in fractions.items() if fraction == 0} == {name for name in PUBLISHED if "cifar10" not in name}
    assert set(fractions.values()) == {0.0, 0.05}


def test_names_of_tensors_are_the_published_ones() -> None:
    names = set(made(8).state_dict())
    for name in (
        "generator.mapping.embed.weight",
        "generator.mapping.fc1.bias",
        "generator.mapping.w_avg",
        "generator.synthesis.b4.const",
        "generator.synthesis.b8.conv0.affine.weight",
        "generator.synthesis.b8.conv1.noise_const",
        "generator.synthesis.b8.conv1.noise_strength",
        "generator.synthesis.b8.conv1.resample_filter",
        "generator.synthesis.b8.torgb.affine.bias",
        "discriminator.b8.fromrgb.weight",
        "discriminator.b8.skip.weight",
        "discriminator.b4.out.bias",
        "discriminator.mapping.fc0.weight",
    ):
        assert name in names
    assert "discriminator.b8.skip.bias" not in names and "discriminator.mapping.w_avg" not in names


@pytest.mark.parametrize("name", ["stylegan2-digits", "stylegan2-auto64"])
def test_regularization_may_be_switched_off(name: str) -> None:
    """The recipes name the lazy phases for the optimizer, which is no mistake in a run without them."""
    recipe = load_recipe(name)
    assert isinstance(recipe.model, StyleGAN2Config)
    config = replace(
        recipe.model.shrunk(), penalty=replace(recipe.model.penalty, r1_gamma=0.0), path=replace(recipe.model.path, weight=0.0)
    )
    model = config.build(DataSpec(image_size=16, channels=3, num_classes=10))
    assert [phase.name for phase in model.phases] == ["discriminator", "generator"]
    refuse_unknown_phases(recipe.optim, model.phases, absent=model.absent_phases)
    with pytest.raises(ConfigError, match="optim.phases"):
        refuse_unknown_phases(recipe.optim, model.phases)
