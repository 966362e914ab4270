"""The styles of StyleGAN2: those of samples, those of given images by projection, and images from them, on a small random generator."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import ComparesFeatures, Encoder, LatentSampler, Styled
from triptych.core.rng import Rng
from triptych.gans.perceptual import PerceptualConfig, PerceptualLoss
from triptych.gans.projection import ProjectionConfig, distance_from, projected, rate, reduced, reduced_side, structure
from triptych.gans.stylegan2 import StyleGAN2, StyleGAN2Config, StyleGAN2Sampling
from triptych.nn.feature_networks import required_tensors

SPEC = DataSpec(image_size=16, channels=1, num_classes=3)
SMALL = DataSpec(image_size=8, channels=1, num_classes=3)
PIXELS = ProjectionConfig(steps=150)


def model(spec: DataSpec = SPEC, **settings: Any) -> StyleGAN2:
    """With fixed initial weights, noise that can be seen, and the mean of w where it is after a training."""
    torch.manual_seed(0)
    config = StyleGAN2Config(class_conditional=True).shrunk()
    config = replace(config, generator=replace(config.generator, base_channels=128, max_channels=8, mapping_layers=2), **settings)
    made = config.build(spec).eval()
    for name, parameter in made.named_parameters():
        if name.endswith("noise_strength"):
            parameter.data.fill_(0.1)
    with torch.no_grad():
        index = torch.arange(500)
        z = Rng(1, ("mean",), index).normal("z", config.latent_dims)
        made.generator.mapping.w_avg.copy_(made.generator.mapping(z, index % 3).mean(0))
    return made


def samples(count: int, *, first: int = 0, seed: int = 5) -> Rng:
    return Rng(seed, ("sample",), torch.arange(first, first + count))


def drawn(made: StyleGAN2, rng: Rng, **settings: Any) -> list[Tensor]:
    return made.sampled_latents(rng, labels=rng.index % 3, settings=StyleGAN2Sampling(**settings))


# Samples by way of their styles -----------------------------------------------------------------------------------------


def test_it_has_the_capabilities() -> None:
    made = model()
    assert isinstance(made, Encoder) and isinstance(made, LatentSampler) and isinstance(made, Styled) and isinstance(made, ComparesFeatures)
    assert {"sample", "encode"} <= StyleGAN2Config.verbs()
    assert made.style_sizes == (4, 8, 8, 16, 16, 16) and len(made.style_sizes) == made.generator.synthesis.num_ws


@pytest.mark.parametrize("noise", ["random", "fixed", "none"])
def test_samples_are_the_images_of_their_latents(noise: Any) -> None:
    made, settings = model(), StyleGAN2Sampling(truncation=0.6, noise=noise)
    latents = drawn(made, samples(3), truncation=0.6, noise=noise)
    assert len(latents) == (1 if noise == "fixed" else 6)
    images = made.sample(samples(3), labels=torch.tensor([0, 1, 2]), settings=settings)
    assert torch.equal(made.decode(latents), images)
    w = made.generator.mapping(samples(3).normal("z", 6), torch.tensor([0, 1, 2]))
    average = made.generator.mapping.w_avg
    torch.testing.assert_close(latents[0], (average + 0.6 * (w - average))[:, None].expand(-1, 6, -1), rtol=1e-4, atol=1e-5)


def test_latents_of_other_shapes() -> None:
    made = model()
    for wrong in ([torch.zeros(2, 6)], [torch.zeros(2, 5, 6)], [torch.zeros(2, 6, 6), torch.zeros(2, 1, 4, 4)]):
        with pytest.raises(ConfigError, match=r"latents: got the shapes .*, expected \(6, 6\), alone or with the noise maps of 5 layers"):
            made.decode(wrong)


# Projection -------------------------------------------------------------------------------------------------------------


def test_the_image_of_a_style_is_found_again(float64: None) -> None:
    """Measured: the squared difference of pixels falls by 8e4 to 8e5, and the distance from w to less than a hundredth."""
    made = model()
    latents = drawn(made, samples(3), noise="fixed")
    images = made.generator.synthesis(latents[0])
    (found,) = made.encode(images, rng=Rng(0, ("encode",), torch.arange(3)), settings=PIXELS)
    begin = made.generator.synthesis(made.generator.mapping.w_avg.expand(3, 6, -1))
    before, after = ((each - images).square().mean(dim=(1, 2, 3)) for each in (begin, made.generator.synthesis(found)))
    assert (after < before / 1000).all(), (before / after).tolist()
    assert found.shape == (3, 6, 6) and torch.equal(found, found[:, :1].expand(-1, 6, -1))
    away = (made.generator.mapping.w_avg - latents[0][:, 0]).norm(dim=1)
    assert ((found[:, 0] - latents[0][:, 0]).norm(dim=1) < 0.1 * away).all()


def test_a_style_for_each_layer_comes_nearer_to_any_image(float64: None) -> None:
    made, rng = model(SMALL), Rng(0, ("encode",), torch.arange(2))
    images = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(3)).double() * 2 - 1
    far = {}
    for space in ("w", "w+"):
        (found,) = made.encode(images, rng=rng, settings=replace(PIXELS, steps=80, space=space))
        far[space] = (made.generator.synthesis(found) - images).square().mean(dim=(1, 2, 3))
    assert (far["w+"] < far["w"]).all()


def test_noise_maps_are_found_too_and_stay_noise(float64: None) -> None:
    made, rng = model(SMALL), Rng(0, ("encode",), torch.arange(2))
    images = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(3)).double() * 2 - 1
    settings = replace(PIXELS, steps=80)
    plain, bound, free = (
        made.encode(images, rng=rng, settings=replace(settings, noise_maps=maps, noise_weight=weight))
        for maps, weight in ((False, 1e5), (True, 1e5), (True, 0.0))
    )
    assert [tuple(maps.shape) for maps in bound[1:]] == [(2, 1, side, side) for side in (4, 8, 8)] and len(plain) == 1
    for maps in bound[1:]:
        torch.testing.assert_close(maps.mean(dim=(1, 2, 3)), torch.zeros(2))
        torch.testing.assert_close(maps.square().mean(dim=(1, 2, 3)), torch.ones(2))
    far = [(made.decode(latents) - images).square().mean(dim=(1, 2, 3)) for latents in (plain, free)]
    assert (far[1] < far[0]).all()
    assert (structure(bound[1:]) < structure(free[1:]) / 10).all()


def test_neighbours_in_the_batch_change_nothing(float64: None) -> None:
    made, settings = model(), replace(PIXELS, steps=20, noise_maps=True)
    images = made.generator.synthesis(drawn(made, samples(3), noise="fixed")[0])
    rng = Rng(0, ("encode",), torch.arange(3))
    whole, last = made.encode(images, rng=rng, settings=settings), made.encode(images[2:], rng=rng[2:], settings=settings)
    for together, alone in zip(whole, last, strict=True):
        torch.testing.assert_close(together[2:], alone, rtol=1e-9, atol=1e-9)


def test_the_steps_are_told_and_gradients_stay_off() -> None:
    made, told = model(), []
    with torch.no_grad():
        images = made.sample(samples(2), labels=torch.tensor([0, 1]), settings=made.sampling)
        made.encode(
            images, rng=Rng(0, ("encode",), torch.arange(2)), settings=replace(PIXELS, steps=3), report=lambda *step: told.append(step)
        )
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert all(parameter.grad is None and parameter.requires_grad for parameter in made.parameters())


def test_the_learning_rate_rises_and_falls() -> None:
    assert rate(0) == 0 and rate(0.025) == pytest.approx(0.5) and rate(0.05) == rate(0.5) == rate(0.75) == 1
    assert rate(0.875) == pytest.approx(0.5) and rate(1) == pytest.approx(0)


def test_noise_on_w_falls_to_none() -> None:
    """N(0, (c sigma t^2)^2), t from 1 to 0 over the first three quarters."""
    made, seen = model(SMALL), []
    synthesis = made.generator.synthesis
    synthesis.register_forward_pre_hook(lambda module, given: seen.append(given[0].detach()))
    settings = ProjectionConfig(steps=8, noise=0.5, learning_rate=1e-9)
    mean = made.generator.mapping.w_avg
    rng = Rng(0, ("encode",), torch.arange(400))
    target = distance_from(torch.zeros(400, 1, 8, 8), None)
    projected(synthesis, target, rng, mean=mean, deviation=3.0, settings=settings)
    found = [float((ws[:, 0] - mean).square().mean().sqrt()) for ws in seen]
    assert found == pytest.approx([1.5 * max(0.0, 1 - step / 6) ** 2 for step in range(8)], rel=0.05, abs=1e-6)


def test_structure_is_what_neighbours_have_in_common() -> None:
    """Of a map of 16 pixels, and of its half, written out."""
    noise = np.random.default_rng(0).normal(size=(16, 16))
    half = (noise[::2, ::2] + noise[1::2, ::2] + noise[::2, 1::2] + noise[1::2, 1::2]) / 2
    expected = 0.0
    for level in (noise, half):
        size = len(level)
        for down, right in ((1, 0), (0, 1)):
            products = [level[i, j] * level[(i + down) % size, (j + right) % size] for i in range(size) for j in range(size)]
            expected += (sum(products) / size**2) ** 2
    maps = torch.from_numpy(np.stack([noise, np.ones((16, 16))]))[:, None]
    found = structure([maps])
    assert float(found[0]) == pytest.approx(expected) and float(found[1]) == pytest.approx(2 + 2 * 16)


def test_large_images_are_compared_at_256_pixels() -> None:
    images = torch.rand(1, 1, 512, 512)
    assert torch.equal(reduced(images), torch.nn.functional.avg_pool2d(images, 2)) and reduced(images[..., :256, :256]).shape[3] == 256


# Features ---------------------------------------------------------------------------------------------------------------

FIRST = PerceptualConfig(network="squeezenet1_0", layers=("relu_1",), layer_weights=(1.0,), criterion="l2")


def test_the_distance_of_features(float64: None) -> None:
    """Projection by the features of a frozen network, here one with random weights."""
    made = model()
    settings = replace(PIXELS, steps=60, distance="features", perceptual=FIRST)
    assert made.encoding_networks(settings) == {"perceptual": None}
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=generator) / 10 for name, shape in required_tensors("squeezenet1_0", ("relu_1",)).items()}
    made.perceptual.load(weights)
    images = made.generator.synthesis(drawn(made, samples(2), noise="fixed")[0])
    (found,) = made.encode(images, rng=Rng(0, ("encode",), torch.arange(2)), settings=settings)
    begin = made.generator.synthesis(made.generator.mapping.w_avg.expand(2, 6, -1))
    before, after = (made.perceptual(each, images) for each in (begin, made.generator.synthesis(found)))
    assert (after < before / 20).all(), (before / after).tolist()  # measured: 69 and 154
    torch.testing.assert_close(distance_from(images, made.perceptual)(begin), before)
    assert not any("perceptual" in name for name in made.state_dict())


def test_pixels_or_features() -> None:
    assert model().encoding_networks(ProjectionConfig()) == {}
    assert [ProjectionConfig().by_features(size) for size in (32, 64)] == [False, True]
    assert ProjectionConfig(distance="features").by_features(8) and not ProjectionConfig(distance="pixels").by_features(256)
    named = replace(FIRST, weights="a.pth")
    made = model()
    assert made.encoding_networks(ProjectionConfig(distance="features", perceptual=named)) == {"perceptual": "a.pth"}
    assert isinstance(made.perceptual, PerceptualLoss) and made.perceptual.config == named
    deep = ProjectionConfig(distance="features", perceptual=PerceptualConfig(network="alexnet"))
    with pytest.raises(ConfigError, match=r"layers: at the last of 1 scales images have 16x16 pixels, too few for relu_5 of alexnet"):
        made.encoding_networks(deep)


def test_large_images_are_looked_at_reduced() -> None:
    """The network has to fit the images of 256 pixels that are compared, and not those of 512."""
    made = StyleGAN2Config().shrunk().build(DataSpec(image_size=512, channels=1))
    assert reduced(torch.zeros(1, 1, 512, 512)).shape[2] == reduced_side(512) == reduced_side(256) == 256
    deep = PerceptualConfig(network="alexnet", num_scales=5)
    with pytest.raises(ConfigError, match=r"layers: at the last of 5 scales images have 16x16 pixels, too few for relu_5 of alexnet"):
        made.encoding_networks(ProjectionConfig(perceptual=deep))
    made.encoding_networks(ProjectionConfig(perceptual=replace(deep, num_scales=4)))


def test_the_deviation_of_w() -> None:
    """Of half as much w it is half."""
    made = model()
    whole = made._deviation()
    mapping = made.generator.mapping
    w = mapping.requires_grad_(False)(Rng(7, ("w",), torch.arange(3000)).normal("z", 6), torch.arange(3000) % 3)
    assert whole == pytest.approx(math.sqrt(float((w - mapping.w_avg).square().sum(1).mean())), rel=0.1)


def test_the_deviation_of_w_is_that_of_all_classes_alike() -> None:
    made = model()
    mapping = made.generator.mapping
    with torch.no_grad():
        mapping.embed.weight[:, 1] *= 4
        z = samples(3000).normal("z", 6)
        away = [(mapping(z, torch.full((3000,), label)) - mapping.w_avg).square().sum(1).mean() for label in range(3)]
    assert made._deviation() == pytest.approx(torch.stack(away).mean().sqrt().item(), rel=0.03)
    assert max(away) > 1.3 * min(away), "classes differ"


def test_settings_of_features_go_with_features() -> None:
    network = replace(ProjectionConfig().perceptual, network="vgg16")
    said = "distance: got None, so that images of 8 pixels are compared by their pixels and the settings of perceptual do nothing"
    with pytest.raises(ConfigError, match=said):
        model(SMALL).encoding_networks(ProjectionConfig(perceptual=network))
    assert model(SMALL).encoding_networks(ProjectionConfig()) == {}


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"steps": 0}, "steps: got 0, expected at least 1"),
        ({"learning_rate": 0.0}, "learning_rate: got 0.0, expected more than 0, to 1,000"),
        ({"learning_rate": 1e38}, "learning_rate: got 1e+38, expected more than 0, to 1,000"),
        ({"noise": -1.0}, "noise: got -1.0, expected 0 to 1,000"),
        ({"noise": 1e30}, "noise: got 1e+30, expected 0 to 1,000"),
        ({"noise_maps": True, "noise_weight": math.inf}, "noise_weight: got inf, expected 0 to 1e12"),
        ({"noise_weight": 5.0}, "noise_weight: got 5.0, expected 100000 without noise_maps"),
    ],
)
def test_mistakes(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ProjectionConfig(**settings)
    assert str(caught.value) == line
