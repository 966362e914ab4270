"""Flow matching: targets, times, and samples by the solvers of every kind, against closed forms."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from tests.float64 import in_float64
from triptych.core.batch import Batch, DataSpec
from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.core.model import seeded_build
from triptych.core.rng import Rng
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.classifier import ClassifierConfig
from triptych.diffusion.continuous import LevelSamplerName, LevelSamplingConfig
from triptych.diffusion.dit import DiTConfig
from triptych.diffusion.edm import EDMConfig
from triptych.diffusion.edm_augmentation import NonLeakingConfig
from triptych.diffusion.flow_matching import FlowMatching, FlowMatchingConfig
from triptych.diffusion.gaussian import Coefficients, GaussianConfig
from triptych.diffusion.path_solvers import PATH_SOLVERS
from triptych.diffusion.paths import PATHS, Form, PathName
from triptych.diffusion.unet import NO_LABEL, EncoderConfig, UNetConfig
from triptych.recipes.catalogue import load_recipe

SPEC = DataSpec(image_size=8, channels=1, num_classes=3)
NETWORK = DiTConfig(width=16, depth=1, heads=2)
UNETS = UNetConfig(num_channels=32, num_res_blocks=1, channel_mult=(1,), attention_resolutions=())
MEAN, DEVIATION = 0.2, 0.4
PATH_NAMES: tuple[PathName, ...] = get_args(PathName)
FORMS: tuple[Form, ...] = get_args(Form)
every_path = pytest.mark.parametrize("path", PATH_NAMES)
every_form = pytest.mark.parametrize("form", FORMS)


def made(**settings: Any) -> FlowMatching:
    config = FlowMatchingConfig(**({"network": NETWORK} | settings))
    model = seeded_build(config, SPEC, seed=0)
    assert isinstance(model, FlowMatching)
    return model.eval()


class KnownNetwork(nn.Module):
    """What is to be said of independent pixels from N(0.2, 0.4^2), in any form; it counts its calls and notes their times."""

    def __init__(self, path: PathName, form: Form, scale: float = 1.0) -> None:
        super().__init__()
        self.path, self.form, self.scale, self.calls = PATHS[path], form, scale, 0
        self.times = list[float]()

    def forward(self, x: Tensor, t: Tensor, labels: Tensor | None, rng: Rng | None) -> Tensor:
        self.calls += 1
        self.times += (t / self.scale).tolist()
        point = self.path.at((t / self.scale)[:, None, None, None].double())
        variance = point.alpha**2 * DEVIATION**2 + point.s**2
        away = x - point.alpha * MEAN
        x0, noise = MEAN + point.alpha * DEVIATION**2 / variance * away, point.s / variance * away
        match self.form:
            case "velocity":
                return point.d_alpha * x0 + point.d_s * noise
            case "score":
                return -away / variance
            case "noise":
                return noise


def known(path: PathName = "linear", form: Form = "velocity", **settings: Any) -> FlowMatching:
    model = made(path=path, prediction=form, **settings)
    model.network = KnownNetwork(path, form, model.config.time_scale)  # type: ignore[assignment]
    return model


def batch(count: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 1, 8, 8, generator=generator, dtype=torch.float64) * DEVIATION + MEAN
    return Batch(images, torch.arange(count) % 3, torch.arange(count))


def rng(count: int = 6) -> Rng:
    return Rng(5, ("denoise", 0), torch.arange(count))


@every_path
@every_form
def test_the_loss_by_hand(path: PathName, form: Form) -> None:
    """The mean over pixels of the squared error of what is predicted; of a score times s, against minus the noise."""
    with in_float64():
        model, given = known(path, form), batch()
        terms = model.loss(model.phases[0], given, rng())
        t = model.config.drawn_times(rng())
        noise = rng().normal("noise", 1, 8, 8)
        curve = PATHS[path].at(t)
        x = curve.alpha * given.images + curve.s * noise
        said = model.network(x, t.flatten(), None, None)
        target = {"velocity": curve.d_alpha * given.images + curve.d_s * noise, "noise": noise, "score": -noise / curve.s}[form]
        weight = curve.s**2 if form == "score" else 1
        expected = (weight * (said - target) ** 2).mean((1, 2, 3))
    torch.testing.assert_close(terms.loss, expected, rtol=1e-9, atol=1e-12)
    assert terms.group is not None and torch.equal(terms.group, (4 * (1 - t.flatten())).long())


@every_path
def test_the_quarters_of_the_log_begin_with_the_least_noise(path: PathName) -> None:
    """As those of all other diffusion models do, and as the report of a run says."""
    with in_float64():
        model = known(path)
        group = model.loss(model.phases[0], batch(64), rng(64)).group
        point = PATHS[path].at(model.config.drawn_times(rng(64)).flatten())
    assert group is not None and set(group.tolist()) == {0, 1, 2, 3}
    levels = torch.as_tensor(point.s / point.alpha)
    for quarter in range(3):
        assert levels[group == quarter].max() < levels[group == quarter + 1].min()


@pytest.mark.parametrize(
    ("settings", "quantiles"),
    [
        ({}, (0.25, 0.5, 0.75)),
        ({"times": "logit-normal"}, (0.33746, 0.5, 0.66254)),
        ({"times": "logit-normal", "time_mean": -0.4, "time_deviation": 1.4}, (0.20684, 0.40131, 0.63283)),
        ({"times": "edm-skewed"}, (0.59642, 0.76852, 0.88178)),
        ({"times": "edm-skewed", "time_mean": 0.0}, (0.30802, 0.5, 0.69198)),
    ],
)
def test_times_of_training(settings: dict[str, Any], quantiles: tuple[float, float, float]) -> None:
    """Their quartiles: of z_q = 0, +-0.67449 through sigmoid(m + d z), and through 1 / (1 + exp(m + d z))."""
    t = FlowMatchingConfig(**settings).drawn_times(Rng(0, ("denoise", 0), torch.arange(20_000))).flatten()
    found = t.quantile(torch.tensor([0.25, 0.5, 0.75]))
    torch.testing.assert_close(found, torch.tensor(quantiles), atol=0.01, rtol=0)
    assert float(t.min()) >= 0 and float(t.max()) <= 1


@pytest.mark.parametrize(
    ("settings", "first", "last"),
    [({}, 0, 1), ({"prediction": "noise"}, 1e-3, 1 - 1e-3), ({"path": "vp", "prediction": "score"}, 0, 1 - 1e-5)],
)
def test_times_stay_within_the_interval(settings: dict[str, Any], first: float, last: float) -> None:
    t = FlowMatchingConfig(**settings).drawn_times(Rng(0, ("denoise", 0), torch.arange(50_000))).flatten()
    assert first <= float(t.min()) < first + 1e-3 and last - 1e-3 < float(t.max()) <= last


def test_the_noisiest_times_are_those_of_a_noise_level_of_ten_thousand() -> None:
    t = FlowMatchingConfig(times="edm-skewed", time_mean=30.0).drawn_times(Rng(0, ("denoise", 0), torch.arange(20)))
    torch.testing.assert_close(t, torch.full((20, 1, 1, 1), 1e-4))


@every_path
@every_form
def test_every_form_predicts_the_same_image(path: PathName, form: Form) -> None:
    """To 1e-6 in float64, and E[x_0 | x] itself."""
    model = known(path, form, time_scale=7.0)
    x = batch().images
    for sigma in (0.01, 0.5, 3.0, 60.0):
        noisy = x + sigma * rng().normal("n", 1, 8, 8).double()
        exact = MEAN + DEVIATION**2 / (DEVIATION**2 + sigma**2) * (noisy - MEAN)
        c = Coefficients.of_sigma(sigma, time=sigma)
        torch.testing.assert_close(model.predictor(None)(noisy * c.sqrt_abar, c), exact, atol=1e-6, rtol=0)


def sampled(model: FlowMatching, **settings: Any) -> Tensor:
    count = 40
    with in_float64():
        config = dataclasses.replace(model.sampling, **settings)
        steps = list(model.sample_progressive(Rng(0, ("sample",), torch.arange(count)), settings=config))
        assert len(steps) == config.steps, "the steps that are reported"
        return steps[-1].sample


@pytest.mark.parametrize("sampler", get_args(LevelSamplerName))
@every_path
def test_every_sampler_draws_from_the_model(sampler: LevelSamplerName, path: PathName) -> None:
    """The mean and the deviation of 2,560 pixels of samples."""
    steps = 250 if sampler in ("euler", "ode-euler", "sde-euler") else 40
    pixels = sampled(known(path), sampler=sampler, steps=steps)
    # Euler's and the stochastic steps are of first order; 40 * 64 draws have a mean known to 0.008.
    assert float(pixels.mean()) == pytest.approx(MEAN, abs=0.03)
    assert float(pixels.std()) == pytest.approx(DEVIATION, abs=0.03)


@pytest.mark.parametrize("sampler", ["ode-heun", "ode-rk4", "heun", "unipc", "dpm++2m"])
def test_deterministic_samplers_agree(sampler: LevelSamplerName) -> None:
    """All follow one ODE, so that the same noise becomes the same image: by EDM's solvers over sigma and by those over t."""
    fine = sampled(known(), sampler="ode-rk4", steps=40)
    torch.testing.assert_close(sampled(known(), sampler=sampler, steps=60), fine, atol=0.012, rtol=0)


@pytest.mark.parametrize("other", ["gvp", "vp"])
def test_a_model_goes_along_other_paths_too(other: PathName) -> None:
    torch.testing.assert_close(
        sampled(known(), sampler="ode-heun", steps=100, flow_path=other), sampled(known(), sampler="ode-heun", steps=100), atol=4e-3, rtol=0
    )


@pytest.mark.parametrize(
    ("sampler", "calls"), [("ode-euler", 5), ("ode-heun", 10), ("ode-rk4", 20), ("sde-euler", 5), ("heun", 9), ("euler", 5)]
)
def test_network_calls(sampler: LevelSamplerName, calls: int) -> None:
    model = known()
    sampled(model, sampler=sampler, steps=5)
    assert model.network.calls == calls  # type: ignore[union-attr]


def test_guidance_without_labels_moves_the_velocity() -> None:
    """v = v_u + w (v_c - v_u), for one step of Euler from noise."""
    with in_float64():
        model = made(class_conditional=True, label_dropout=0.1)
        torch.manual_seed(1)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.2)
        draws, labels = Rng(0, ("sample",), torch.arange(3)), torch.arange(3)
        settings = LevelSamplingConfig(sampler="ode-euler", steps=2, guidance_scale=2.5)
        steps = list(model.sample_progressive(draws, labels=labels, settings=settings))
        x, zero = draws.normal("initial", 1, 8, 8), torch.zeros(3)
        told, untold = (model.said(x, zero, y) for y in (labels, torch.full((3,), NO_LABEL)))
        torch.testing.assert_close(steps[0].sample, x + 0.5 * (untold + 2.5 * (told - untold)), rtol=1e-9, atol=1e-9)


def test_labels_are_dropped_in_training_alone() -> None:
    model, seen = made(class_conditional=True, label_dropout=0.5), []
    model.network.register_forward_pre_hook(lambda module, given: seen.append(given[2]))
    many = dataclasses.replace(batch(200), images=batch(200).images.float())
    for training in (True, False):
        model.train(training).loss(model.phases[0], many, rng(200))
    assert 70 < int((seen[0] == NO_LABEL).sum()) < 130 and torch.equal(seen[1], many.labels)


def test_a_u_net_serves_too_and_the_kind_is_kept() -> None:
    network = UNetConfig(num_channels=32, num_res_blocks=1, channel_mult=(1,), attention_resolutions=(), num_heads=1)
    for config in (FlowMatchingConfig(network=network), FlowMatchingConfig(network=NETWORK, path="gvp", times="logit-normal")):
        assert FlowMatchingConfig.from_dict(config.to_dict()) == config
        model = seeded_build(config, SPEC, seed=0).eval()
        assert isinstance(model, FlowMatching)
        assert model.network(torch.zeros(2, 1, 8, 8), torch.zeros(2), None, None).shape == (2, 1, 8, 8)


def test_images_need_not_be_squares() -> None:
    spec = DataSpec(image_size=8, width=12, channels=1)
    model = seeded_build(FlowMatchingConfig(network=NETWORK), spec, seed=0).eval()
    assert isinstance(model, FlowMatching)
    made = model.sample(Rng(0, ("sample",), torch.arange(2)), labels=None, settings=model.sampling)
    assert made.shape == (2, 1, 8, 12)
    with pytest.raises(
        ConfigError, match="network: a U-Net takes squares, not images of 8 x 12 pixels; give a DiT, or leave out data.width"
    ):
        seeded_build(FlowMatchingConfig(network=UNetConfig(channel_mult=(1, 1), attention_resolutions=())), spec, seed=0)


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (FlowMatchingConfig, {"time_mean": 0.5}, "times: got 'uniform', expected logit-normal or edm-skewed, where"),
        (FlowMatchingConfig, {"times": "logit-normal", "time_deviation": 0.0}, "time_deviation: got 0.0, expected a positive number"),
        (FlowMatchingConfig, {"time_scale": 0.0}, "time_scale: got 0.0, expected a positive number"),
        (LevelSamplingConfig, {"sampler": "heun", "flow_path": "gvp"}, "flow_path: got 'gvp', expected nothing with sampler heun"),
        (LevelSamplingConfig, {"sampler": "heun", "grid": "edm"}, "grid: got 'edm', expected uniform with sampler heun"),
        (LevelSamplingConfig, {"sampler": "ode-heun", "churn": 1.0}, "churn: got 1.0, expected 0 with sampler ode-heun"),
    ],
)
def test_errors(cls: type[Config], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cls(**settings)


def test_path_samplers_are_among_the_samplers() -> None:
    assert set(PATH_SOLVERS) < set(get_args(LevelSamplerName))


@pytest.mark.parametrize(
    ("name", "width", "depth", "heads", "steps", "parameters"),
    [
        ("s-2", 384, 12, 6, 400_000, 32_865_056),
        ("b-2", 768, 12, 12, 400_000, 130_315_808),
        ("l-2", 1024, 24, 16, 400_000, 457_840_672),
        ("xl-2", 1152, 28, 16, 7_000_000, 674_834_720),
    ],
)
def test_published_settings_of_sit(name: str, width: int, depth: int, heads: int, steps: int, parameters: int) -> None:
    recipe = load_recipe(f"sit-{name}")
    model, train, optim = recipe.model, recipe.train, recipe.optim
    assert isinstance(model, FlowMatchingConfig)
    assert model.network == DiTConfig(patch=2, width=width, depth=depth, heads=heads, spare_outputs=True)
    assert (model.path, model.prediction, model.times, model.time_scale, model.label_dropout) == ("linear", "velocity", "uniform", 1, 0.1)
    assert (recipe.data.source, recipe.data.image_size, recipe.data.latent_std, recipe.data.flip) == ("latents", 256, 1.0, True)
    assert (train.total_images, train.batch_size, train.ema_rates, train.ema_warmup) == (steps * 256, 256, (0.9999,), False)
    assert (optim.name, optim.learning_rate, optim.schedule, optim.weight_decay, optim.warmup_images) == ("adamw", 1e-4, "constant", 0, 0)
    with torch.device("meta"):
        made = model.build(DataSpec(image_size=32, channels=4, num_classes=1000))
    assert sum(parameter.numel() for parameter in made.parameters()) == parameters


def weaker(kind: str) -> Any:
    """A model with random weights, by which another one is led."""
    if kind in FORMS:
        model: Any = made(prediction=kind)
    else:
        edm, adm = EDMConfig(augmentation=NonLeakingConfig(p=0.0)).shrunk(), ADMConfig(network=UNETS)
        model = seeded_build(edm if kind == "edm" else adm, SPEC, seed=1).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.usefixtures("float64")
@every_path
@pytest.mark.parametrize("sampler", ["ode-heun", "sde-euler", "heun"])
@pytest.mark.parametrize("kind", ["edm", "adm", *FORMS])
def test_a_model_that_is_never_asked_for_noise_alone_guides_one_that_is(path: PathName, sampler: Any, kind: str) -> None:
    settings = LevelSamplingConfig(sampler=sampler, steps=4, guidance_scale=2.0)
    drawn = {}
    for guide in (kind, None):
        model = known(path)
        led: Any = model if guide is None else model.guided_with(weaker(guide))
        drawn[guide] = led.sample(rng(2), labels=None, settings=dataclasses.replace(settings, guidance_scale=1.0 if guide is None else 2.0))
    assert drawn[kind].isfinite().all() and not torch.equal(drawn[kind], drawn[None])


@pytest.mark.usefixtures("float64")
@every_path
def test_a_model_led_away_from_itself_stays_where_it_is(path: PathName) -> None:
    settings = LevelSamplingConfig(sampler="ode-heun", steps=4)
    plain = known(path).sample(rng(2), labels=None, settings=settings)
    led = known(path).guided_with(known(path)).sample(rng(2), labels=None, settings=dataclasses.replace(settings, guidance_scale=3.0))
    torch.testing.assert_close(led, plain, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("float64")
@every_path
@pytest.mark.parametrize("sampler", ["ode-euler", "ode-heun", "sde-euler", "heun"])
def test_a_classifier_leads_it_below_a_noise_level_of_80(path: PathName, sampler: Any) -> None:
    network = EncoderConfig(num_channels=32, num_res_blocks=1, channel_mult=(1,), attention_resolutions=(), num_head_channels=32)
    classifier: Any = seeded_build(ClassifierConfig(network=network), SPEC, seed=0).eval()
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    asked, classify = list[float](), classifier.classify
    classifier.classify = lambda x, c: asked.append(c.sigma) or classify(x, c)
    settings = LevelSamplingConfig(sampler=sampler, steps=20, guidance_scale=2.0)
    images = known(path).guided_by(classifier).sample(rng(3), labels=torch.tensor([0, 1, 2]), settings=settings)
    assert images.isfinite().all() and asked and max(asked) <= 80


def test_no_weaker_model_predicts_the_previous_x() -> None:
    other = seeded_build(ADMConfig(network=UNETS, diffusion=GaussianConfig(mean="previous_x")), SPEC, seed=0)
    with pytest.raises(ConfigError, match="guide_with: it predicts previous_x, which says nothing between timesteps"):
        made().guided_with(other)


@every_path
@pytest.mark.parametrize("along", PATH_NAMES)
@pytest.mark.parametrize("form", ["score", "noise"])
def test_a_network_is_asked_within_the_times_of_its_own_path(path: PathName, along: PathName, form: Form) -> None:
    with in_float64():
        model = known(path, form)
        settings = dataclasses.replace(model.sampling, sampler="ode-heun", flow_path=along, steps=8)
        images = model.sample(rng(), labels=None, settings=settings)
    first, last = PATHS[path].interval(form, training=False)
    times = model.network.times
    assert first - 1e-9 <= min(times) and max(times) <= last + 1e-9, (min(times), max(times))
    assert min(times) < first + 0.01 and max(times) > last - 0.01 and images.isfinite().all()


@every_path
def test_velocities_are_sampled_to_the_end_but_on_the_path_vp(path: PathName) -> None:
    """There the velocity is infinite at the end, and the last time is 0.999, not that of training."""
    with in_float64():
        model = known(path)
        model.sample(rng(2), labels=None, settings=dataclasses.replace(model.sampling, sampler="ode-euler", steps=4))
    expected = [0, 0.333, 0.666, 0.999] if path == "vp" else [0, 0.25, 0.5, 0.75]
    times = set(model.network.times)  # type: ignore[arg-type]
    assert sorted(times) == pytest.approx(expected, abs=1e-9)
