from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from triptych.core.errors import ConfigError
from triptych.core.rng import Rng
from triptych.diffusion.bounds import bound_term, discretized_gaussian_log_likelihood, losses, normal_kl, prior_term
from triptych.diffusion.gaussian import Coefficients, GaussianConfig, GaussianDiffusion, StepCoefficients, factors, times_at
from triptych.diffusion.respacing import respaced_timesteps
from triptych.diffusion.samplers import ancestral_steps, ddim_steps, x0_predictor

MEANS = ["epsilon", "x0", "previous_x", "v"]
T4 = torch.tensor([0, 1, 40, 99])


def process(**settings: Any) -> GaussianDiffusion:
    return GaussianDiffusion(GaussianConfig(**({"steps": 100, "schedule": "cosine"} | settings)))


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x0 = torch.randint(0, 256, (4, 3, 4, 4), generator=generator) / 127.5 - 1
    return x0, torch.randn(4, 3, 4, 4, generator=generator)


def test_anchors() -> None:
    linear, cosine = GaussianDiffusion(GaussianConfig()), GaussianDiffusion(GaussianConfig(schedule="cosine"))
    abar = StepCoefficients(*linear.tables).abar
    np.testing.assert_allclose(linear.betas[[0, 999]], [1e-4, 0.02], rtol=1e-9)
    np.testing.assert_allclose(abar[[0, 499, 999]], [0.9999, 0.0785872429, 4.03582977e-5], rtol=1e-8)
    np.testing.assert_allclose(StepCoefficients(*linear.tables).variance_small[1], 5.45318766e-5, rtol=1e-8)
    np.testing.assert_allclose(cosine.betas[[0, 998, 999]], [4.12842248e-5, 0.749999393, 0.999], rtol=1e-8)
    np.testing.assert_allclose(StepCoefficients(*cosine.tables).abar[[499, 999]], [0.493843590, 2.42876691e-9], rtol=1e-8)
    longer = GaussianDiffusion(GaussianConfig(schedule="cosine", steps=4000))
    np.testing.assert_allclose([longer.betas[0], StepCoefficients(*longer.tables).abar[-1]], [9.86581881e-6, 1.51798047e-10], rtol=1e-8)
    assert GaussianConfig(steps=4000).table()[0] == pytest.approx(2.5e-5)


@pytest.mark.parametrize("steps", [1, 19, 20])
def test_short_linear_schedules_are_refused(steps: int) -> None:
    with pytest.raises(ConfigError, match=f"steps: got {steps}, expected at least 21"):
        GaussianConfig(steps=steps)


def test_a_table_of_betas() -> None:
    given = GaussianDiffusion(GaussianConfig(steps=3, betas=(0.1, 0.2, 0.4)))
    np.testing.assert_allclose(StepCoefficients(*given.tables).abar, [0.9, 0.72, 0.432])
    with pytest.raises(ConfigError, match="one for each of the 4 steps"):
        GaussianConfig(steps=4, betas=(0.1, 0.2, 0.4))
    for wrong in (1.0, 0.0, 1e-17):
        with pytest.raises(ConfigError, match="betas: got .*, expected numbers from 1e-12 to below 1"):
            GaussianConfig(steps=3, betas=(wrong, 0.1, 0.2))
    assert GaussianDiffusion(GaussianConfig(steps=2, betas=(1e-12, 0.1))).levels.low == pytest.approx(1e-6, rel=1e-3)


def test_a_table_that_leaves_nothing_of_the_image_is_refused() -> None:
    nearly = GaussianDiffusion(GaussianConfig(steps=14, betas=(0.99,) * 14))
    c = nearly.at(torch.tensor([13]))
    assert float(c.sqrt_recip.square()) == pytest.approx(1e28, rel=1e-5)  # in float32
    with pytest.raises(ConfigError, match="a product of all 1 - beta of at least 1e-30, what is left of the image"):
        GaussianConfig(steps=16, betas=(0.99,) * 16)


def test_numbers_and_tensors_are_the_same_coefficients() -> None:
    chain = process()
    many = chain.at(T4)
    for i, step in enumerate(T4.tolist()):
        one = chain.at_step(step)
        for name in StepCoefficients.__dataclass_fields__:
            value = getattr(many, name)
            assert value.shape == (4, 1, 1, 1)
            assert value[i].item() == pytest.approx(getattr(one, name), rel=1e-6)


def test_coefficients_follow_from_the_noise_level_alone() -> None:
    """As numbers and as tensors, and as a table has them; alpha and sigma of x_t keep the variance."""
    chain = process()
    table = chain.at(T4)
    assert isinstance(table, StepCoefficients)
    many = Coefficients.of_sigma(table.sigma.double(), time=table.time)
    for i, step in enumerate(T4.tolist()):
        one = Coefficients.of_sigma(chain.at_step(step).sigma, time=chain.at_step(step).time)
        for name in Coefficients.__dataclass_fields__:
            assert getattr(one, name) == pytest.approx(getattr(chain.at_step(step), name), rel=1e-12)
            assert getattr(many, name)[i].item() == pytest.approx(getattr(one, name), rel=1e-6)
        assert one.sqrt_abar**2 + one.sqrt_noise**2 == pytest.approx(1, rel=1e-14)
        assert one.sqrt_noise / one.sqrt_abar == pytest.approx(one.sigma, rel=1e-14)
    assert not isinstance(one, StepCoefficients) and not hasattr(one, "posterior_x0")


def test_only_timesteps_have_a_step_before() -> None:
    chain = process(mean="previous_x")
    x = torch.zeros(1, 1, 2, 2)
    assert torch.equal(chain.x0_from(x, x, chain.at_step(3)), x)
    with pytest.raises(AssertionError):
        chain.x0_from(x, x, chain.at_time(3.5))


@pytest.mark.parametrize("kept", [range(100), (3, 20, 77)], ids=["all", "some"])
def test_a_mean_that_is_predicted_is_not_clipped(kept: Sequence[int]) -> None:
    """As in the published program, where all timesteps are kept: clipping changes the x_0 that is told alone."""
    chain, (x_t, output) = process(mean="previous_x").respaced(kept), data()
    free, clipped = (chain.moments(output, x_t, chain.at_step(2), hook) for hook in (None, lambda x0: x0.clamp(-0.1, 0.1)))
    assert torch.equal(free.mean, clipped.mean)
    assert torch.equal(clipped.x0, free.x0.clamp(-0.1, 0.1)) and free.x0.abs().max() > 0.1


@pytest.mark.parametrize("mean", MEANS)
def test_rows_of_a_trajectory_give_what_the_coefficients_give(mean: str) -> None:
    chain, (x_t, prediction) = process(mean=mean), (part.double() for part in data())
    assert [c.time for c in chain.points] == list(reversed(range(100)))
    for c, row in zip(chain.points, factors([chain.x0_row(c) for c in chain.points], x_t), strict=True):
        torch.testing.assert_close(chain.x0_from(prediction, x_t, c, row), chain.x0_from(prediction, x_t, c))


def test_times_at_are_the_times_of_the_points() -> None:
    chain, x = process(rescale_timesteps=True).respaced((3, 8, 50)), torch.zeros(2, 1, 4, 4)
    times = times_at(chain.points, Rng(0, ("sample",), torch.arange(2)))
    for c in chain.points:
        torch.testing.assert_close(times[c], c.times(x), rtol=0, atol=0)


def test_a_respaced_process_is_made_anew_for_other_timesteps() -> None:
    chain = process()
    first = chain.respaced((0, 50, 99))
    assert chain.respaced([0, 50, 99]) is first
    assert chain.respaced((0, 99)).kept == (0, 99) and chain.respaced((0, 50, 99)).kept == (0, 50, 99)


def test_posterior_is_bayes_rule() -> None:
    """q(x_{t-1} | x_t, x_0) from the two Gaussians that it combines: precisions add, means are weighted by them."""
    chain, x0, (_, x_t) = process(), data()[0].double(), data()
    for step in (1, 30, 99):
        c, beta = chain.at_step(step), float(chain.betas[step])
        prior_precision, likelihood_precision = 1 / (1 - c.abar_prev), (1 - beta) / beta
        mean = (prior_precision * math.sqrt(c.abar_prev) * x0 + likelihood_precision * x_t.double() / math.sqrt(1 - beta)) / (
            prior_precision + likelihood_precision
        )
        torch.testing.assert_close(chain.posterior_mean(x0, x_t.double(), c), mean)
        assert c.variance_small == pytest.approx(1 / (prior_precision + likelihood_precision))
        assert math.exp(c.log_variance_small) == pytest.approx(c.variance_small)


@pytest.mark.parametrize("mean", MEANS)
def test_the_target_gives_back_the_image_and_the_noise(mean: str) -> None:
    chain, (x0, noise) = process(mean=mean, variance="fixed_small"), data()
    x0, noise, t = x0.double(), noise.double(), torch.tensor([1, 5, 40, 90])
    for i, step in enumerate(t.tolist()):
        c = chain.at_step(step)
        x_t = chain.noised(x0[i], noise[i], c)
        target = chain.target(x0[i], x_t, noise[i], c)
        torch.testing.assert_close(chain.x0_from(target, x_t, c), x0[i])
        torch.testing.assert_close(chain.noise_from(x0[i], x_t, c), noise[i])
        moments = chain.moments(target[None], x_t[None], c)
        torch.testing.assert_close(moments.mean[0], chain.posterior_mean(x0[i], x_t, c))


def test_v_is_a_rotation() -> None:
    chain, (x0, noise) = process(mean="v"), data()
    c = chain.at_step(40)
    x_t, v = chain.noised(x0, noise, c), chain.target(x0, chain.noised(x0, noise, c), noise, c)
    torch.testing.assert_close(x_t**2 + v**2, x0**2 + noise**2, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("loss", ["mse", "kl"])
def test_the_loss_of_a_perfect_mean_is_its_least(mean: str, loss: str) -> None:
    chain, (x0, noise) = process(mean=mean, variance="fixed_small", loss=loss), data()
    c = chain.at(T4)
    x_t = chain.noised(x0, noise, c)
    target = chain.target(x0, x_t, noise, c)
    perfect = losses(chain, target, x0=x0, x_t=x_t, noise=noise, t=T4)["loss"]
    worse = losses(chain, target + 0.5 * torch.randn_like(target), x0=x0, x_t=x_t, noise=noise, t=T4)["loss"]
    assert (worse > perfect).all()
    torch.testing.assert_close(perfect[1:], torch.zeros(3), atol=1e-3, rtol=0)


def test_hybrid_loss_trains_the_variance_alone_by_the_bound() -> None:
    chain, (x0, noise) = process(variance="learned_range"), data()
    x_t = chain.noised(x0, noise, chain.at(T4))
    output = torch.randn(4, 6, 4, 4, generator=torch.Generator().manual_seed(2)).requires_grad_()
    terms = losses(chain, output, x0=x0, x_t=x_t, noise=noise, t=T4)
    (from_bound,) = torch.autograd.grad(terms["vb"].sum(), output, retain_graph=True)
    (from_loss,) = torch.autograd.grad(terms["loss"].sum(), output)
    assert not from_bound[:, :3].any()
    assert from_bound[:, 3:].any()
    torch.testing.assert_close(from_loss[:, 3:], from_bound[:, 3:])
    torch.testing.assert_close(from_loss[:, :3], 2 * (output[:, :3] - noise) / 48)


def test_rescaled_losses() -> None:
    (x0, noise), output = data(), 0.1 * torch.randn(4, 6, 4, 4)
    terms = {}
    for loss in ("mse", "rescaled_mse", "kl", "rescaled_kl"):
        chain = process(variance="learned_range", loss=loss)
        terms[loss] = losses(chain, output, x0=x0, x_t=chain.noised(x0, noise, chain.at(T4)), noise=noise, t=T4)
    torch.testing.assert_close(terms["rescaled_mse"]["vb"], terms["mse"]["vb"] * 0.1)
    torch.testing.assert_close(terms["rescaled_mse"]["loss"], terms["mse"]["mse"] + terms["mse"]["vb"] * 0.1)
    torch.testing.assert_close(terms["rescaled_kl"]["loss"], terms["kl"]["loss"] * 100)


def test_learned_range_lies_between_the_fixed_variances() -> None:
    chain, x = process(variance="learned_range"), torch.randn(1, 3, 4, 4)
    c = chain.at_step(40)
    for logit, expected in ((-1.0, c.log_variance_small), (1.0, c.log_beta)):
        output = torch.cat((torch.zeros_like(x), torch.full_like(x, logit)), dim=1)
        torch.testing.assert_close(chain.moments(output, x, c).log_variance, torch.full_like(x, expected))


def test_a_learned_variance_of_a_longer_step_lies_between_the_fixed_ones() -> None:
    """However far beyond those of the step that was learned the network's is."""
    chain, x = process(variance="learned").respaced((3, 50, 99)), torch.zeros(1, 3, 4, 4)
    c = chain.at_step(1)
    for logit, expected in ((-100.0, c.log_variance_small), (100.0, c.log_beta)):
        output = torch.cat((x, torch.full_like(x, logit)), dim=1)
        torch.testing.assert_close(chain.moments(output, x, c).log_variance, torch.full_like(x, expected))


def test_rescaled_timesteps() -> None:
    def seen(chain: GaussianDiffusion, steps: list[int]) -> list[float]:
        c = chain.at(torch.tensor(steps))
        assert [chain.at_step(step).time for step in steps] == pytest.approx(c.time.flatten().tolist())
        return c.times(torch.zeros(len(steps))).tolist()

    assert seen(process(rescale_timesteps=True), [0, 50]) == [0.0, 500.0]
    assert seen(process(), [0, 50]) == [0, 50]
    assert seen(process(rescale_timesteps=True).respaced([0, 10, 99]), [1, 2]) == [100.0, 990.0]
    assert process().at_step(7).times(torch.zeros(3, 1)).tolist() == [7, 7, 7]


def test_between_two_timesteps() -> None:
    """The table's values at its timesteps, the geometric mean of sigma half way; `time_of` is the inverse."""
    chain = process(rescale_timesteps=True)
    for step in (0, 31, 99):
        here, table = chain.at_time(step), chain.at_step(step)
        for name in ("time", "abar", "sqrt_abar", "sqrt_noise", "sqrt_recip", "sigma"):
            assert getattr(here, name) == pytest.approx(getattr(table, name), rel=1e-9), name
        assert chain.time_of(table.sigma) == pytest.approx(step)
    half = chain.at_time(10.5)
    assert half.sigma == pytest.approx((chain.at_step(10).sigma * chain.at_step(11).sigma) ** 0.5)
    assert half.time == pytest.approx(105) and half.abar == pytest.approx(1 / (1 + half.sigma**2))
    assert chain.time_of(half.sigma) == pytest.approx(10.5)


def test_respacing_keeps_the_noise_levels() -> None:
    chain, kept = process(), [3, 20, 77]
    respaced = chain.respaced(kept)
    np.testing.assert_allclose(StepCoefficients(*respaced.tables).abar, StepCoefficients(*chain.tables).abar[kept])
    assert respaced.at(torch.tensor([0, 2])).time.flatten().tolist() == [3, 77]
    assert process().respaced([5]).steps == 1  # a single step has no second one to take its first variance from
    first, second = (process().respaced([5, 9]).at_step(step) for step in (0, 1))
    assert first.log_variance_small == second.log_variance_small and first.variance_large == second.variance_small


def test_normal_kl_against_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    m1, v1, m2, v2 = torch.randn(4, 100, generator=generator)
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(normal(m1, (v1 / 2).exp()), normal(m2, (v2 / 2).exp()))
    torch.testing.assert_close(normal_kl(m1, v1, m2, v2), expected)


def test_discretized_likelihood_is_a_distribution() -> None:
    """It sums to 1 over the 256 values, and is the Gaussian's mass of each bin (the approximated CDF is within 2e-4)."""
    levels = torch.arange(256, dtype=torch.float64) / 127.5 - 1
    for mean, deviation in ((0.1, 0.05), (-0.98, 0.1), (1.3, 0.5)):
        mean_of, log_variance = torch.full_like(levels, mean), 2 * math.log(deviation)
        mass = discretized_gaussian_log_likelihood(levels, mean_of, log_variance).exp()
        assert float(mass.sum()) == pytest.approx(1, abs=1e-6)
        cdf = torch.distributions.Normal(mean, deviation).cdf
        exact = cdf(levels + 1 / 255) - cdf(levels - 1 / 255)
        exact[0], exact[-1] = cdf(levels[0] + 1 / 255), 1 - cdf(levels[-1] - 1 / 255)
        torch.testing.assert_close(mass, exact, atol=5e-4, rtol=0)
    impossible = discretized_gaussian_log_likelihood(levels, torch.full_like(levels, 10), 2 * math.log(0.1))
    torch.testing.assert_close(impossible[:-1], torch.full_like(levels[:-1], math.log(1e-12)))  # the published bound


def test_prior_term_in_closed_form() -> None:
    chain, (x0, _) = process(schedule="linear", steps=30, betas=tuple([0.05] * 30)), data()
    abar = 0.95**30
    expected = 0.5 * (abar * x0**2 + (1 - abar) - 1 - math.log(1 - abar)).mean(dim=(1, 2, 3)) / math.log(2)
    torch.testing.assert_close(prior_term(chain, x0), expected)


def test_bound_terms() -> None:
    """A KL in bits for t > 0; -log2 P(x_0) at t = 0, which is near 0 for an exact mean of a narrow Gaussian."""
    chain, (x0, noise) = process(variance="fixed_small", mean="x0"), data()
    c = chain.at(T4)
    x_t = chain.noised(x0, noise, c)
    shifted = chain.moments(x0 + 0.1, x_t, c)
    terms = bound_term(chain, shifted, x0=x0, x_t=x_t, coefficients=c)
    for i, step in enumerate(T4.tolist()):
        one = chain.at_step(step)
        if step:
            assert terms[i].item() == pytest.approx((0.1 * one.posterior_x0) ** 2 / (2 * one.variance_small) / math.log(2), rel=1e-3)
        else:
            assert bound_term(chain, chain.moments(x0, x_t, c), x0=x0, x_t=x_t, coefficients=c)[i] < terms[i]
            mass = discretized_gaussian_log_likelihood(x0[i], x0[i] + 0.1, one.log_variance_small)
            assert terms[i].item() == pytest.approx(-float(mass.mean()) / math.log(2), rel=1e-4)


DATA = (0.1, 0.3)
"""Mean and deviation of independent pixels, whose best network is known."""


class KnownNetwork(nn.Module):
    """What such a network says of them at a timestep, as it was trained: of a step of one timestep; with the exact variance of it."""

    def __init__(self, chain: GaussianDiffusion) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, x: Tensor, c: StepCoefficients) -> Tensor:
        c = self.chain.at_step(round(c.time))
        mean, deviation = DATA
        variance = c.abar * deviation**2 + 1 - c.abar
        x0 = mean + c.sqrt_abar * deviation**2 / variance * (x - c.sqrt_abar * mean)
        said = self.chain.target(x0, x, self.chain.noise_from(x0, x, c), c)
        if not self.chain.config.learns_variance:
            return said
        log_variance = math.log(c.posterior_x0**2 * deviation**2 * (1 - c.abar) / variance + c.variance_small)
        share = (log_variance - c.log_variance_small) / (c.log_beta - c.log_variance_small)
        value = log_variance if self.chain.config.variance == "learned" else 2 * share - 1
        return torch.cat((said, torch.full_like(x, value)), dim=1)


def drawn_by(chain: GaussianDiffusion, *, kept: int, ddim: bool) -> Tensor:
    """Samples of the known network on so many evenly spaced timesteps."""
    some = chain.respaced(respaced_timesteps(str(kept), total=chain.config.steps))
    rng = Rng(0, ("sample",), torch.arange(16))
    draw = rng.normals([f"step/{i}" for i in range(kept + 1)], 1, 8, 8)
    x, network = draw(kept).double(), KnownNetwork(chain)
    if ddim:
        steps = ddim_steps(some, x0_predictor(some, network), x, noise=lambda i: draw(i).double())  # type: ignore[arg-type]
    else:
        steps = ancestral_steps(some, network, x, noise=lambda i: draw(i).double())  # type: ignore[arg-type]
    *_, last = steps
    return last.sample


@pytest.mark.parametrize("kept", [1000, 250, 20])
@pytest.mark.parametrize("ddim", [False, True])
@pytest.mark.parametrize("mean", ["x0", "previous_x", "v"])
def test_what_is_predicted_does_not_matter_to_the_samples_on_any_timesteps(mean: str, ddim: bool, kept: int) -> None:
    images = [drawn_by(process(mean=name, steps=1000, variance="fixed_small"), kept=kept, ddim=ddim) for name in ("epsilon", mean)]
    torch.testing.assert_close(*images, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kept", [1000, 250, 50])
def test_a_learned_variance_is_that_of_the_step_which_is_taken(kept: int) -> None:
    images = {name: drawn_by(process(steps=1000, variance=name), kept=kept, ddim=False) for name in ("learned", "learned_range")}
    for made in images.values():
        assert made.std().item() == pytest.approx(DATA[1], rel=0.05)
    if kept < 1000:
        torch.testing.assert_close(images["learned"], images["learned_range"], rtol=0, atol=0.02)
