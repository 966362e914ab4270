from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from triptych.core.batch import Batch, DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import Sampler, seeded_build
from triptych.core.rng import Rng, key_of
from triptych.diffusion.adm import ADM, ADMConfig, EncodingConfig
from triptych.diffusion.gaussian import Coefficients, GaussianConfig
from triptych.diffusion.mean_flow import MeanFlowConfig, MeanFlowSamplingConfig
from triptych.diffusion.model import SamplingConfig
from triptych.diffusion.respacing import respaced_timesteps
from triptych.diffusion.samplers import ddim_steps, x0_predictor
from triptych.diffusion.unet import UNetConfig
from triptych.recipes import diffusion as recipes
from triptych.recipes.config import RunConfig

SPEC = DataSpec(image_size=8, channels=1, num_classes=3)
NETWORK = UNetConfig(num_channels=32, num_res_blocks=1, channel_mult=(1, 1), attention_resolutions=(4,), dropout=0.2)


def config(**settings: Any) -> ADMConfig:
    diffusion = GaussianConfig(steps=100, schedule="cosine", variance="learned_range")
    return ADMConfig(**({"network": NETWORK, "diffusion": diffusion, "class_conditional": True} | settings))


def model(**settings: Any) -> ADM:
    made = seeded_build(config(**settings), SPEC, seed=0)
    assert isinstance(made, ADM)
    torch.manual_seed(0)
    for parameter in made.network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.05)
    return made


def batch(count: int = 6) -> tuple[Batch, Rng]:
    generator = torch.Generator().manual_seed(5)
    index = torch.arange(1000, 1000 + count)
    images = torch.rand(count, 1, 8, 8, generator=generator) * 2 - 1
    return Batch(images, torch.randint(0, 3, (count,), generator=generator), index), Rng(0, ("denoise", 0), index)


def gradient(made: ADM, parts: list[slice]) -> tuple[Tensor, dict[str, Tensor]]:
    whole, rng = batch()
    made.zero_grad()
    terms = [made.loss(made.phases[0], whole[part], rng[part]) for part in parts]
    (sum(term.loss.sum() for term in terms) / len(whole)).backward()  # type: ignore[union-attr]
    joined = {name: torch.cat([term.logged[name] for term in terms]) for name in terms[0].logged}
    return torch.cat([p.grad.flatten() for p in made.network.parameters() if p.grad is not None]), joined


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("timestep_sampler", ["uniform", "loss-second-moment"])
def test_microbatches_give_the_whole_batchs_gradient(timestep_sampler: str) -> None:
    made = model(timestep_sampler=timestep_sampler)
    whole, logged = gradient(made, [slice(0, 6)])
    for parts in ([slice(0, 3), slice(3, 6)], [slice(0, 1), slice(1, 6)]):
        split, split_logged = gradient(made, parts)
        assert float((split - whole).norm() / whole.norm()) < 1e-5
        for name, values in logged.items():
            torch.testing.assert_close(split_logged[name], values, atol=1e-5, rtol=1e-5)


def test_terms() -> None:
    made, (images, rng) = model(), batch()
    terms = made.loss(made.phases[0], images, rng)
    assert terms.loss.shape == (6,) and terms.loss.requires_grad
    assert set(terms.logged) == {"loss", "mse", "vb"}
    assert not any(value.requires_grad for value in terms.logged.values())
    torch.testing.assert_close(terms.logged["mse"] + terms.logged["vb"], terms.loss.detach())
    t, _ = made.timesteps.draw(rng)
    assert terms.group is not None and terms.group.tolist() == [step * 4 // 100 for step in t.tolist()]
    assert not terms.observed


def test_the_label_matters() -> None:
    made, (images, rng) = model(), batch()
    other = Batch(images.images, (images.labels + 1) % 3, images.index)  # type: ignore[operator]
    assert not torch.allclose(made.loss(made.phases[0], images, rng).loss, made.loss(made.phases[0], other, rng).loss)


def test_loss_aware_timesteps() -> None:
    made = model(timestep_sampler="loss-second-moment", diffusion=GaussianConfig(steps=4, schedule="cosine", loss="kl"))
    images, rng = batch()
    before = {name: value.clone() for name, value in made.network.state_dict().items()}
    for i in range(60):
        terms = made.loss(made.phases[0], images, rng.child(i))
        assert set(terms.observed) == {"t", "loss"}
        made.observe(made.phases[0], terms.observed)
    assert (made.timesteps.count >= 10).all()  # type: ignore[operator]
    t, weights = made.timesteps.draw(rng)
    terms = made.loss(made.phases[0], images, rng)
    assert torch.equal(terms.observed["t"], t)
    torch.testing.assert_close(terms.loss.detach(), weights * terms.observed["loss"])
    torch.testing.assert_close(terms.logged["vb"], weights * terms.observed["loss"])
    assert terms.group is not None and terms.group.tolist() == t.tolist()  # of four timesteps each is a quartile
    assert not torch.allclose(weights, torch.ones(6))
    assert {"timesteps.history", "timesteps.count"} <= set(made.state_dict())
    assert all(torch.equal(value, before[name]) for name, value in made.network.state_dict().items())


def test_evaluation_is_uniform_and_without_dropout() -> None:
    made, (images, rng) = model(timestep_sampler="loss-second-moment"), batch()
    made.eval()
    terms = made.loss(made.phases[0], images, rng)
    assert not terms.observed
    made.network.config = made.network.config.updated({"dropout": 0.0})
    assert torch.equal(made.loss(made.phases[0], images, rng).loss, terms.loss)
    made.train()
    assert not torch.allclose(made.loss(made.phases[0], images, rng).loss, terms.loss)


def test_initial_loss_is_that_of_predicting_nothing() -> None:
    fresh, (images, rng) = seeded_build(config(), SPEC, seed=1), batch(64)
    terms = fresh.loss(fresh.phases[0], images, rng)
    assert float(terms.logged["mse"].mean()) == pytest.approx(1, abs=0.06)


# Sampling.


def sampled(made: ADM, count: int, **settings: Any) -> Tensor:
    rng = Rng(9, ("sample",), torch.arange(count))
    return made.sample(rng, labels=torch.arange(count) % 3, settings=SamplingConfig(**({"steps": 5} | settings)))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("settings", [{}, {"sampler": "ddim"}, {"sampler": "ddim", "eta": 1.0}, {"steps": "ddim10"}, {"steps": "3,2"}])
def test_samples_do_not_depend_on_the_batch(settings: dict[str, Any]) -> None:
    made = model().eval()
    assert isinstance(made, Sampler)
    images = sampled(made, 5, **settings)
    assert images.shape == (5, 1, 8, 8) and images.abs().max() <= 1
    rng = Rng(9, ("sample",), torch.arange(5))[2:3]
    one = made.sample(rng, labels=torch.tensor([2]), settings=SamplingConfig(**({"steps": 5} | settings)))
    torch.testing.assert_close(one, images[2:3], atol=1e-4, rtol=0)
    assert not torch.allclose(images[0], images[3])  # another noise, the same label


def test_every_step_has_its_own_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def spy(seed: int, *stream: str) -> tuple[int, int]:
        names.append(stream[-1])
        return key_of(seed, *stream)

    monkeypatch.setattr("triptych.core.rng.key_of", spy)
    sampled(model().eval(), 2, steps=4)
    assert names == ["initial", "step/0", "step/1", "step/2", "step/3"]  # the last step adds none
    names.clear()
    model().eval().bound(*batch(2), steps=3)
    assert names == ["step/0", "step/1", "step/2"]


def test_progressive_sampling() -> None:
    made, rng = model().eval(), Rng(9, ("sample",), torch.arange(3))
    labels, settings = torch.arange(3), SamplingConfig(steps=7, threshold=0.5)
    steps = list(made.sample_progressive(rng, labels=labels, settings=settings))
    assert len(steps) == 7
    assert all(step.x0.abs().max() <= 0.5 for step in steps)
    assert not steps[0].sample.requires_grad
    torch.testing.assert_close(steps[-1].sample.clamp(-1, 1), made.sample(rng, labels=labels, settings=settings))
    wide = list(made.sample_progressive(rng, labels=labels, settings=SamplingConfig(steps=7, clip=False)))
    assert wide[0].x0.abs().max() > 1
    half = list(made.sample_progressive(rng, labels=labels, settings=settings, hook=lambda x0: x0 * 0))
    assert not half[-1].sample.any()


@pytest.mark.usefixtures("float64")
def test_eta_is_that_of_the_steps_of_ddim() -> None:
    made, rng = model().eval(), Rng(9, ("sample",), torch.arange(3))

    def says(x: Tensor, c: Coefficients) -> Tensor:
        return torch.cat((x.sin(), x), dim=1)

    made.denoiser = lambda conditions, times=None: says  # type: ignore[method-assign]
    process, predict, ends = made.diffusion.respaced(respaced_timesteps(4, total=100)), x0_predictor(made.diffusion, says), []
    for eta in (0.0, 0.5, 1.0):
        settings = SamplingConfig(sampler="ddim", steps=4, eta=eta, clip=False)
        *_, found = made.sample_progressive(rng, labels=torch.arange(3), settings=settings)
        noise = [rng.normal(name, 1, 8, 8) for name in ("initial", "step/0", "step/1", "step/2")]
        *_, expected = ddim_steps(process, predict, noise[0], noise=lambda i: noise[i + 1], eta=eta)  # noqa: B023
        torch.testing.assert_close(found.sample, expected.sample, rtol=1e-9, atol=1e-9)
        ends.append(found.sample)
    assert all(float((one - other).std()) > 0.1 for one, other in pairwise(ends))


def test_labels_are_checked() -> None:
    made, rng = model().eval(), Rng(9, ("sample",), torch.arange(2))
    for labels, message in (
        (None, "labels: this model needs labels, from 0 to 2"),
        (torch.tensor([0, 3]), "labels: got 3, expected 0 to 2"),
        (torch.tensor([-1, 0]), "labels: got -1, expected 0 to 2"),
        (torch.tensor([0]), "labels: got 1 for 2 images"),
    ):
        with pytest.raises(ConfigError, match=message):
            made.sample(rng, labels=labels, settings=made.sampling)
    unlabelled = model(class_conditional=False).eval()
    with pytest.raises(ConfigError, match="labels: this model was trained without labels"):
        unlabelled.sample(rng, labels=torch.tensor([0, 1]), settings=unlabelled.sampling)
    assert unlabelled.sample(rng, labels=None, settings=SamplingConfig(steps=2)).shape == (2, 1, 8, 8)


@pytest.mark.usefixtures("float64")
def test_bound_of_images() -> None:
    made, (images, rng) = model().eval(), batch()
    result = made.bound(images, rng, steps=10)
    assert result.terms.shape == (6, 10)
    torch.testing.assert_close(result.total, result.terms.sum(1) + result.prior)
    part = made.bound(images[2:4], rng[2:4], steps=10)
    torch.testing.assert_close(part.total, result.total[2:4], atol=1e-3, rtol=1e-4)
    assert result.x0_mse.max() <= 4 < made.bound(images, rng, steps=10, clip=False).x0_mse.max()


def test_the_bound_where_the_last_noise_level_still_knows_the_image() -> None:
    made, (images, rng) = model(diffusion=GaussianConfig(steps=4, betas=(0.1,) * 4)).eval(), batch()
    result, abar = made.bound(images, rng), 0.9**4
    kl = 0.5 * (abar * images.images**2 - abar - math.log(1 - abar))
    torch.testing.assert_close(result.prior, kl.mean((1, 2, 3)) / math.log(2))
    torch.testing.assert_close(result.total, result.terms.sum(1) + result.prior)
    assert (result.prior > 0.05).all()


# Configuration.


def test_what_the_data_lacks() -> None:
    with pytest.raises(ConfigError, match="class_conditional: got true, but the data has no labels"):
        config().build(DataSpec(image_size=8, channels=1))
    with pytest.raises(ConfigError, match=r"network\.channel_mult: got 1, 1 for images of 9 pixels, expected a multiple of 2"):
        config().build(DataSpec(image_size=9, channels=1, num_classes=3))
    assert config(class_conditional=False).build(SPEC).num_classes is None


def test_bad_sampling_settings() -> None:
    with pytest.raises(ConfigError, match=r"sampling\.steps: got '101', which asks for 101 of the 100 steps"):
        config(sampling=SamplingConfig(steps=101))
    for name, value in (("eta", 1.5), ("threshold", 0.0)):
        with pytest.raises(ConfigError, match=name):
            SamplingConfig(**{name: value})  # type: ignore[arg-type]
    made = model().eval()
    with pytest.raises(ConfigError, match="steps"):
        sampled(made, 2, steps="ddim37")


RECIPES = ["adm_digits", "adm_mnist", "adm_cifar10", "adm_cifar10_vlb", "adm_imagenet64", "adm_photos64"]


@pytest.mark.parametrize("name", RECIPES)
def test_recipes(name: str) -> None:
    recipe: RunConfig = getattr(recipes, name)()
    assert RunConfig.from_dict(recipe.to_dict()) == recipe
    spec = DataSpec(image_size=recipe.data.image_size, channels=1 if name in ("adm_digits", "adm_mnist") else 3, num_classes=10)
    with torch.device("meta"):
        made = recipe.model.build(spec)
    assert isinstance(made, Sampler) and made.averaged == ("network",)


def test_published_sizes() -> None:
    def parameters(recipe: RunConfig, classes: int) -> int:
        with torch.device("meta"):
            made = recipe.model.build(DataSpec(image_size=recipe.data.image_size, channels=3, num_classes=classes))
        return sum(p.numel() for p in made.parameters())

    assert parameters(recipes.adm_cifar10(), 10) == 52_546_438
    assert parameters(recipes.adm_imagenet64(), 1000) == 295_904_454


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("kind", ["adm", "mean-flow"])
def test_images_are_within_their_bounds_and_latents_have_none(kind: str, channels: int) -> None:
    spec = DataSpec(image_size=8, channels=channels)
    network = UNetConfig(num_channels=32, num_res_blocks=1, channel_mult=(1,), attention_resolutions=())
    settings = MeanFlowConfig(network=network) if kind == "mean-flow" else ADMConfig(network=network)
    made = seeded_build(settings, spec, seed=0).eval()
    rng = Rng(0, (), torch.arange(2))
    sampling = MeanFlowSamplingConfig() if kind == "mean-flow" else SamplingConfig(sampler="ddim", steps=2, clip=False)
    samples = [made.sample(rng, labels=None, settings=sampling)]  # type: ignore[operator]
    if isinstance(made, ADM):
        samples.append(made.decode([3 * rng.normal("noise", channels, 8, 8)], labels=None, settings=EncodingConfig(steps=2)))
    for sample in samples:
        assert (float(sample.abs().max()) > 1) == (channels == 4)
