"""Learning rates, optimizers and their state."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn

from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.model import Phase, TrainingProgress
from triptych.core.ramp import Ramp
from triptych.engine import optim
from triptych.engine.config import AverageConfig, OptimConfig, PhaseOptimConfig, TrainConfig
from triptych.engine.optim import assert_same_layout, load_optimizer_state, make_optimizer, optimizer_state
from triptych.engine.schedule import StepSettings, refuse_unknown_phases, scheduled_rate, step_settings, without_effect

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("settings", "images_seen", "expected"),
    [
        (OptimConfig(learning_rate=2.0), 500, 2.0),
        (OptimConfig(learning_rate=2.0, schedule="linear"), 0, 2.0),
        (OptimConfig(learning_rate=2.0, schedule="linear"), 250, 1.5),
        (OptimConfig(learning_rate=2.0, schedule="linear"), 1000, 0.0),
        (OptimConfig(learning_rate=2.0, schedule="cosine"), 250, 1 + math.cos(math.pi / 4)),
        (OptimConfig(learning_rate=2.0, schedule="cosine"), 1000, 0.0),
        (OptimConfig(learning_rate=2.0, schedule="linear", decay_start=10, decay_end=20, decay_to=0.1), 10, 2.0),
        (OptimConfig(learning_rate=2.0, schedule="linear", decay_start=10, decay_end=20, decay_to=0.1), 15, 1.1),
        (OptimConfig(learning_rate=2.0, schedule="linear", decay_start=10, decay_end=20, decay_to=0.1), 30, 0.2),
        (OptimConfig(learning_rate=2.0, schedule="linear", decay_start=500), 400, 2.0),
        (OptimConfig(learning_rate=2.0, schedule="linear", decay_start=500), 750, 1.0),
        (OptimConfig(learning_rate=2.0, schedule="cosine", decay_end=100, decay_to=0.5), 50, 1.5),
        (OptimConfig(learning_rate=2.0, schedule="step", decay_every=400), 399, 2.0),
        (OptimConfig(learning_rate=2.0, schedule="step", decay_every=400), 400, 0.2),
        (OptimConfig(learning_rate=2.0, schedule="step", decay_every=400, decay_factor=0.5), 900, 0.5),
        (OptimConfig(learning_rate=2.0, schedule="linear", decay_start=5, decay_end=6), 6, 0.0),
        (OptimConfig(learning_rate=2.0, schedule="inverse-sqrt", decay_start=100), 60, 2.0),
        (OptimConfig(learning_rate=2.0, schedule="inverse-sqrt", decay_start=100), 100, 2.0),
        (OptimConfig(learning_rate=2.0, schedule="inverse-sqrt", decay_start=100), 121, 2 / 1.1),
        (OptimConfig(learning_rate=2.0, schedule="inverse-sqrt", decay_start=100), 900, 2 / 3),
        (OptimConfig(learning_rate=2.0, warmup_images=1_000, schedule="inverse-sqrt", decay_start=100), 400, 0.41),
        (OptimConfig(learning_rate=2.0, warmup_images=100), 0, 0.2),
        (OptimConfig(learning_rate=2.0, warmup_images=100), 40, 1.0),
        (OptimConfig(learning_rate=2.0, warmup_images=100), 90, 2.0),
        (OptimConfig(learning_rate=2.0, warmup_images=100, schedule="linear"), 40, 0.96),
        (OptimConfig(learning_rate=2.0, warmup_images=100, warmup_share=0.02), 0, 1.0),
        (OptimConfig(learning_rate=2.0, warmup_images=100, warmup_share=0.02), 10, 2.0),
        (OptimConfig(learning_rate=2.0, warmup_images=100, warmup_share=0.5), 0, 0.2),
    ],
)
def test_learning_rate(settings, images_seen, expected):
    assert rate(settings, images_seen, step=10, total=1000) == pytest.approx(expected, abs=1e-12)


def rate(settings: OptimConfig, images_seen: int, *, step: int, total: int) -> float:
    return scheduled_rate(settings.learning_rate, settings, TrainingProgress(images_seen, step, total))


PHASES = (Phase("discriminator", ("discriminator",), rate=2.0), Phase("generator", ("generator",)))


def test_a_phase_has_settings_of_its_own_that_may_change_over_the_run():
    """Those of R3GAN, whose beta2 rises, with a discriminator as in StyleGAN2."""
    optim = OptimConfig(
        learning_rate=1.0,
        betas=(0.0, 0.9),
        warmup_images=100,
        weight_decay=0.3,
        clip_norm=5.0,
        phases=(
            PhaseOptimConfig(beta2=Ramp(start=0.9, end=0.99, images=200)),
            PhaseOptimConfig(phase="discriminator", learning_rate=0.5, beta1=0.1, eps=1e-3, weight_decay=0.2, clip_norm=1.0),
            PhaseOptimConfig(phase="generator", learning_rate=Ramp(start=1.0, end=0.5, images=100, shape="linear"), weight_decay=0.0),
        ),
    )
    between = 0.9 + 0.09 * (1 - math.sqrt(0.5)) / 2
    for images_seen, beta2, warm, falling in ((0, 0.9, 0.1, 1.0), (50, between, 0.6, 0.75), (300, 0.99, 1.0, 0.5)):
        first, second = (step_settings(optim, phase, TrainingProgress(images_seen, 10, 1000)) for phase in PHASES)
        assert vars(first) == pytest.approx(vars(StepSettings(0.5 * warm * 2.0, 0.1, beta2, 1e-3, 0.2, 1.0)))
        assert vars(second) == pytest.approx(vars(StepSettings(falling * warm, 0.0, beta2, 1e-8, 0.0, 5.0)))
    assert step_settings(OptimConfig(), PHASES[1], TrainingProgress(0, 10, 1000)) == StepSettings(1e-4, 0.9, 0.999, 1e-8, 0.0, None)
    assert OptimConfig.from_dict(optim.to_dict()) == optim


def of_phases(*phases: PhaseOptimConfig, images_seen: int = 0, learning_rate: float = 0.5) -> list[tuple[float, float]]:
    """The learning rate, without the model's own factor, and beta2, in both phases."""
    optim = OptimConfig(learning_rate=learning_rate, betas=(0.0, 0.81), phases=phases)
    steps = [step_settings(optim, phase, TrainingProgress(images_seen, 10, 1000)) for phase in PHASES]
    return [(step.learning_rate / phase.rate, step.beta2) for phase, step in zip(PHASES, steps, strict=True)]


def test_a_phase_may_follow_the_learning_rate_and_beta2_of_the_section():
    lazy = PhaseOptimConfig(phase="discriminator", rate_factor=0.75, beta2_power=0.5)
    falling = PhaseOptimConfig(phase="generator", rate_factor=Ramp(start=1.0, end=0.2, images=100, shape="linear"))
    for rate in (0.5, 2.0):
        for images_seen, factor in ((0, 1.0), (50, 0.6), (100, 0.2), (300, 0.2)):
            found = of_phases(lazy, falling, images_seen=images_seen, learning_rate=rate)
            assert found == [pytest.approx((0.75 * rate, 0.9)), pytest.approx((factor * rate, 0.81))]
    assert of_phases(PhaseOptimConfig(beta2_power=Ramp(start=0.5, end=2.0, images=10)), images_seen=10)[0][1] == pytest.approx(0.6561)
    optim = OptimConfig(phases=(lazy, falling))
    assert OptimConfig.from_dict(optim.to_dict()) == optim


def test_what_a_phase_says_last_of_its_rate_counts():
    """As a factor or as a number; and so for beta2."""
    one, other = PhaseOptimConfig(learning_rate=3.0, beta2=0.1), PhaseOptimConfig(rate_factor=0.5, beta2_power=0.5)
    assert of_phases(one, other) == [pytest.approx((0.25, 0.9))] * 2
    assert of_phases(other, one) == [pytest.approx((3.0, 0.1))] * 2
    assert of_phases(other, PhaseOptimConfig(rate_factor=2.0), PhaseOptimConfig(eps=1.0)) == [pytest.approx((1.0, 0.9))] * 2


def test_a_ramp_of_factors_ends_at_the_product():
    """As the ramp of the rates themselves does, to the last bit."""
    factors, rates = Ramp(start=1.0, end=0.2, images=70), Ramp(start=1e-3, end=2e-4, images=70)
    for images_seen in (0, 1, 23, 69, 70, 99):
        step = [
            of_phases(change, images_seen=images_seen, learning_rate=1e-3)
            for change in (PhaseOptimConfig(rate_factor=factors), PhaseOptimConfig(learning_rate=rates))
        ]
        assert step[0] == step[1]


def test_numbers_of_the_section_that_do_nothing_are_named():
    rate, beta2 = PhaseOptimConfig(phase="discriminator", learning_rate=0.3), PhaseOptimConfig(beta2=Ramp(start=0.9, end=0.99, images=8))

    def said(*phases: PhaseOptimConfig, **settings: float | tuple[float, float] | None) -> list[str]:
        return list(without_effect(OptimConfig(**({"betas": (0.0, 0.9)} | settings), phases=phases), PHASES))

    assert said(beta2, PhaseOptimConfig(rate_factor=0.5, beta1=0.0), clip_norm=None) == []
    assert said(PhaseOptimConfig(clip_norm=1.0), PhaseOptimConfig(phase="penalty", learning_rate=0.3)) == []
    assert said(rate, learning_rate=0.25) == [
        "optim.learning_rate, 0.25, does nothing in discriminator: optim.phases has another learning_rate there"
    ]
    assert said(rate, PhaseOptimConfig(rate_factor=0.5)) == []
    assert said(beta2, betas=(0.0, 0.95)) == [
        "the second of optim.betas, 0.95, does nothing in discriminator, generator: optim.phases has another beta2 there"
    ]


def test_phases_that_the_model_lacks_are_refused():
    refuse_unknown_phases(OptimConfig(phases=(PhaseOptimConfig(phase="penalty"),)), PHASES, absent=("penalty",))
    refuse_unknown_phases(OptimConfig(phases=(PhaseOptimConfig(phase="generator"), PhaseOptimConfig())), PHASES)
    with pytest.raises(ConfigError, match=r"optim.phases: got the phase 'generators', expected one of discriminator, generator"):
        refuse_unknown_phases(OptimConfig(phases=(PhaseOptimConfig(phase="generators"),)), PHASES)


def test_schedules_may_be_counted_in_epochs():
    settings = OptimConfig(schedule="linear", decay_start=10, decay_end=20, decay_to=0.1, decay_unit="epochs", learning_rate=1.0)
    counted = settings.in_images(50)
    assert (counted.decay_start, counted.decay_end, counted.decay_every, counted.decay_unit) == (500, 1000, None, "images")
    rates = [rate(counted, images, step=0, total=5000) for images in (500, 750, 1000, 2000)]
    assert rates == pytest.approx([1.0, 0.55, 0.1, 0.1])
    stepped = OptimConfig(schedule="step", decay_every=100, decay_unit="epochs").in_images(2975)
    assert stepped.decay_every == 297_500 and stepped.in_images(7) == stepped


def parameters() -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
    return dict(convolution.named_parameters())


def two_steps(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]) -> None:
    for step in (1, 2):
        for name, parameter in parameters.items():
            torch.manual_seed(step + len(name))
            parameter.grad = torch.empty_like(parameter).copy_(torch.randn(parameter.shape))
        optimizer.step()


@pytest.mark.parametrize("name", ["adamw", "adam", "adamax", "adamax-glow"])
def test_each_optimizer_takes_the_steps_of_its_formula(name):
    settings = OptimConfig(name=name, learning_rate=1e-2, betas=(0.8, 0.9), eps=1e-2, weight_decay=0.1)
    own, hand = parameters(), parameters()
    two_steps(make_optimizer(own, settings, device=CPU), own)
    for key, parameter in hand.items():
        w, m, v = parameter.detach().double(), 0.0, 0.0
        for step in (1, 2):
            torch.manual_seed(step + len(key))
            g = torch.randn(parameter.shape).double() + (0.1 * w if name in ("adam", "adamax") else 0.0)
            w = w * {"adamw": 1 - 1e-2 * 0.1, "adamax-glow": 1 - 0.1}.get(name, 1.0)
            m = 0.8 * m + 0.2 * g
            if name == "adamax":
                v = torch.maximum(0.9 * torch.as_tensor(v), g.abs() + 1e-2)
                w = w - 1e-2 / (1 - 0.8**step) * m / v
            elif name == "adamax-glow":
                v = torch.maximum(0.9 * torch.as_tensor(v), g.abs())
                w = w - 1e-2 * math.sqrt(1 - 0.9**step) / (1 - 0.8**step) * m / (v + 1e-2)
            else:
                v = 0.9 * v + 0.1 * g * g
                w = w - 1e-2 * (m / (1 - 0.8**step)) / ((v / (1 - 0.9**step)).sqrt() + 1e-2)
        assert torch.allclose(own[key].double(), w, atol=1e-6), key


def test_adam_takes_a_gradient_in_any_layout():
    own, other = parameters(), parameters()
    optimizers = [make_optimizer(group, OptimConfig(learning_rate=0.1), device=CPU) for group in (own, other)]
    for group, layout in ((own, torch.channels_last), (other, torch.contiguous_format)):
        torch.manual_seed(0)
        for name, parameter in group.items():
            gradient = torch.randn(parameter.shape)
            parameter.grad = gradient.to(memory_format=layout) if name == "weight" else gradient[:1].expand(parameter.shape)
    for optimizer in optimizers:
        optimizer.step()
    assert all(torch.equal(own[name], other[name]) for name in own)


@pytest.mark.parametrize("name", ["adamw", "adam"])
def test_the_fused_kernel_copies_nothing(name):
    own = parameters()
    optimizer = make_optimizer(own, OptimConfig(name=name), device=CPU)
    two_steps(optimizer, own)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["aten::_fused_adam" + "w" * (name == "adamw") + "_"] == 1
    assert "aten::clone" not in counts


def test_adamax_glow_takes_every_parameter_once_at_its_own_step(monkeypatch):
    """However its parameters are cut into pieces, and though some had no gradient before."""
    settings = OptimConfig(name="adamax-glow", learning_rate=1e-2)
    torch.manual_seed(0)
    first, second = ({str(k): torch.randn(k, 3) for k in range(1, 6)} for _ in range(2))
    ends = []
    for size in (1, 16, 10_000):
        monkeypatch.setattr(optim, "_PIECE_VALUES", size)
        own = {name: nn.Parameter(torch.zeros_like(gradient)) for name, gradient in first.items()}
        optimizer = make_optimizer(own, settings, device=CPU)
        for gradients, left_out in ((first, "2"), (second, "5")):
            for name, parameter in own.items():
                parameter.grad = None if name == left_out else gradients[name].clone()
            optimizer.step()
        ends.append(own)
    alone = {"2": second, "5": first}
    for name, parameter in ends[0].items():
        assert all(torch.equal(parameter, other[name]) for other in ends[1:])
        if name in alone:  # in its first step w = -rate sqrt(1 - beta2) sign(g)
            torch.testing.assert_close(parameter.detach(), -1e-2 * math.sqrt(1e-3) * alone[name][name].sign())
        else:
            assert optimizer.state[own[name]]["step"] == 2


@pytest.mark.parametrize("reached", [True, False])
@pytest.mark.parametrize("name", ["adamw", "adam", "adamax", "adamax-glow"])
def test_state_goes_to_a_contiguous_file_and_back(name, reached):
    """Also where no loss has reached a parameter, which then has no state."""
    settings = OptimConfig(name=name, learning_rate=1e-2)
    own = parameters()
    optimizer = make_optimizer(own, settings, device=CPU)
    if reached:
        two_steps(optimizer, own)
    else:
        own["weight"].grad = torch.ones_like(own["weight"])
        optimizer.step()
    saved = {key: tensor.clone(memory_format=torch.contiguous_format) for key, tensor in optimizer_state(optimizer, own).items()}
    assert "weight/exp_avg" in saved and ("bias/step" in saved) == reached
    other = parameters()
    for key, parameter in other.items():
        parameter.data.copy_(own[key])
    resumed = make_optimizer(other, settings, device=CPU)
    load_optimizer_state(resumed, other, saved)
    two_steps(optimizer, own)
    two_steps(resumed, other)
    assert_same_layout(resumed)
    assert all(torch.equal(own[key], other[key]) for key in own)


@pytest.mark.parametrize("name", ["adamax", "adamax-glow"])
def test_the_moments_of_a_single_number_are_where_it_is(name):
    """On a GPU, for which the meta device stands here; the counter of steps stays with the CPU."""
    gain = {"gain": nn.Parameter(torch.empty((), device="meta"))}
    optimizer = make_optimizer(gain, OptimConfig(name=name), device=torch.device("meta"))
    moments = {"gain/exp_avg": torch.ones(()), "gain/exp_inf": torch.ones(())}
    load_optimizer_state(optimizer, gain, {"gain/step": torch.tensor(3.0), **moments})
    assert {key: value.device.type for key, value in optimizer.state[gain["gain"]].items()} == {
        "step": "cpu",
        "exp_avg": "meta",
        "exp_inf": "meta",
    }


def test_state_of_another_model_is_refused():
    own = parameters()
    optimizer = make_optimizer(own, OptimConfig(), device=CPU)
    with pytest.raises(CheckpointError, match="does not fit this model: it has gain, which this one lacks"):
        load_optimizer_state(optimizer, own, {"weight/exp_avg": torch.zeros(5, 3, 3, 3), "gain/exp_avg": torch.zeros(5)})
    with pytest.raises(CheckpointError, match=r"weight/exp_avg has shape \[5\], expected \[5, 3, 3, 3\]"):
        load_optimizer_state(optimizer, own, {"bias/exp_avg": torch.zeros(5), "weight/exp_avg": torch.zeros(5)})


def test_a_layout_that_differs_is_noticed():
    own = parameters()
    optimizer = make_optimizer(own, OptimConfig(), device=CPU)
    own["weight"].grad = torch.zeros(5, 3, 3, 3)
    with pytest.raises(AssertionError):
        assert_same_layout(optimizer)


def averaging(*averages: AverageConfig) -> TrainConfig:
    return TrainConfig(total_images=1, batch_size=1, ema_rates=(0.9,), averages=averages)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrainConfig(total_images=0, batch_size=1), "total_images: got 0, expected at least 1"),
        (lambda: TrainConfig(total_images=1, batch_size=1, ema_rates=(1.0,)), "ema_rates: got"),
        (lambda: TrainConfig(total_images=1, batch_size=1, ema_rates=(0.9, 0.9)), "ema_rates: got .* expected rates that differ"),
        (lambda: OptimConfig(schedule="inverse-sqrt"), "decay_start: got 0, expected at least 1 with schedule inverse-sqrt"),
        (lambda: AverageConfig(), "rate: got None, expected either a rate, or a half_life, or a length"),
        (lambda: AverageConfig(rate=0.9, half_life=8), "rate: got 0.9, expected either a rate, or a half_life, or a length"),
        (lambda: AverageConfig(rate=1.0), "rate: got 1.0, expected from 0 to below 1"),
        (lambda: AverageConfig(half_life=0), "half_life: got 0, expected at least 1"),
        (lambda: AverageConfig(rate=0.9, ramp_up=0.05), "ramp_up: got 0.05, expected above 0, with a half_life"),
        (lambda: AverageConfig(half_life=Ramp(start=0, end=1e300, images=8)), "half_life: got .* and below 2\\^63"),
        (lambda: averaging(AverageConfig(rate=0.9)), "averages: got ema-0.9, ema-0.9, expected averages that differ"),
        (lambda: averaging(AverageConfig(half_life=8), AverageConfig(half_life=8, ramp_up=0.1)), "averages: got"),
        (lambda: TrainConfig(total_images=1, batch_size=1, loss_scale=0.5), "loss_scale: got 0.5, expected at least loss_scale_floor"),
        (lambda: OptimConfig(learning_rate=0.0), "learning_rate: got 0.0, expected a positive number"),
        (lambda: OptimConfig(learning_rate=math.inf), "learning_rate: got inf, expected a positive number"),
        (lambda: OptimConfig(betas=(0.9, 1.0)), "betas: got"),
        (lambda: PhaseOptimConfig(beta2=Ramp(start=0.9, end=1.0, images=8)), "beta2: got .* expected from 0 to below 1"),
        (lambda: PhaseOptimConfig(eps=0.0), "eps: got 0.0, expected a positive number"),
        (lambda: PhaseOptimConfig(rate_factor=Ramp(start=1, end=0, images=8)), "rate_factor: got .* expected a positive number"),
        (lambda: PhaseOptimConfig(rate_factor=0.5, learning_rate=0.1), "rate_factor: got 0.5, expected nothing beside learning_rate"),
        (lambda: PhaseOptimConfig(beta2_power=0.0), "beta2_power: got 0.0, expected a positive number"),
        (lambda: PhaseOptimConfig(beta2_power=0.5, beta2=0.9), "beta2_power: got 0.5, expected nothing beside beta2"),
        (lambda: PhaseOptimConfig(weight_decay=-1.0), "weight_decay: got -1.0, expected 0 or more"),
        (lambda: Ramp(start=0.0, end=1.0, images=0), "images: got 0, expected at least 1"),
        (lambda: OptimConfig(schedule="step"), "decay_every: got None, expected a number of images with schedule step"),
        (lambda: OptimConfig(decay_start=20, decay_end=20), "decay_end: got 20, expected more than decay_start"),
        (lambda: OptimConfig(name="adamax-glow", weight_decay=1.0), "weight_decay: got 1.0, expected below 1 with adamax-glow"),
        (
            lambda: OptimConfig(name="adamax-glow", phases=(PhaseOptimConfig(weight_decay=Ramp(start=0, end=1, images=8)),)),
            "phases: got .* expected weight_decay below 1 with adamax-glow",
        ),
    ],
)
def test_settings_out_of_range(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_file_of_settings_is_told_what_a_table_holds():
    optim = OptimConfig()
    with pytest.raises(ConfigError, match=r"^phases: got 5, expected a list of a table \(phase, learning_rate, rate_factor, beta1, .*\)$"):
        optim.updated({"phases": 5})
    with pytest.raises(
        ConfigError, match=r"^phases\[0\]\.beta1: got 'x', expected a number or a table \(start, end, images, shape\) or nothing$"
    ):
        optim.updated({"phases": [{"beta1": "x"}]})


def test_which_settings_a_run_may_go_on_with():
    """All of training but the seed, all of the optimizer but its kind."""
    for settings, fixed in ((TrainConfig, {"seed", "randomized_seed"}), (OptimConfig, {"name"})):
        names = {field.name for field in dataclasses.fields(settings)}
        assert {name for name in names if not settings.may_change(name)} == fixed
