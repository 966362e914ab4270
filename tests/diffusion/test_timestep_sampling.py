from __future__ import annotations

import pytest
import torch

from triptych.core.rng import Rng
from triptych.diffusion.timestep_sampling import LossSecondMoment, UniformTimesteps

HISTORY = 10  # losses of each timestep that count


def rng(count: int, seed: int = 0) -> Rng:
    return Rng(seed, ("denoise",), torch.arange(count))


def warmed(steps: int = 20) -> tuple[LossSecondMoment, torch.Tensor]:
    """A sampler with ten losses for every timestep, of different spreads, and these losses (steps, 10)."""
    sampler = LossSecondMoment(steps)
    losses = torch.linspace(0.1, 3, steps)[:, None] * (1 + torch.linspace(0, 2, steps)[:, None] * torch.arange(HISTORY).remainder(3))
    for column in losses.unbind(1):
        sampler.observe({"t": torch.arange(steps), "loss": column})
    return sampler, losses


def test_uniform() -> None:
    t, weights = UniformTimesteps(10).draw(rng(20_000))
    assert t.dtype == torch.int64 and (weights == 1).all()
    counts = torch.bincount(t, minlength=10)
    assert len(counts) == 10 and (counts - 2000).abs().max() < 200


def test_draws_belong_to_their_samples() -> None:
    sampler, _ = warmed()
    for each in (sampler, UniformTimesteps(20)):
        whole, parts = each.draw(rng(10)), [each.draw(rng(10)[part]) for part in (slice(0, 3), slice(3, 10))]
        assert torch.equal(whole[0], torch.cat([part[0] for part in parts]))
        assert torch.equal(whole[1], torch.cat([part[1] for part in parts]))


def test_uniform_until_every_timestep_has_its_losses() -> None:
    sampler = LossSecondMoment(20)
    for _ in range(HISTORY):
        sampler.observe({"t": torch.arange(19), "loss": torch.arange(19.0) + 1})
    torch.testing.assert_close(sampler.probabilities(), torch.full((20,), 0.05, dtype=torch.float64))
    t, weights = sampler.draw(rng(10_000))
    assert (weights == 1).all()
    assert (torch.bincount(t, minlength=20) - 500).abs().max() < 100


def test_probabilities_are_those_of_the_paper() -> None:
    sampler, losses = warmed()
    size = losses.double().square().mean(1).sqrt()
    expected = 0.999 * size / size.sum() + 0.001 / 20
    torch.testing.assert_close(sampler.probabilities(), expected, atol=1e-7, rtol=0)
    t, _ = sampler.draw(rng(50_000))
    torch.testing.assert_close(torch.bincount(t, minlength=20) / 50_000, expected.float(), atol=0.005, rtol=0)


def test_draws_sum_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose sums have an order on a GPU, where PyTorch refuses those of others; the draws are those of the probabilities all the same."""
    sampler, _ = warmed()
    ends, plain = sampler.probabilities().cumsum(0), torch.Tensor.cumsum
    expected = torch.searchsorted(ends, rng(1_000).uniform("t").double(), right=True)

    def whole(x: torch.Tensor, dim: int) -> torch.Tensor:
        assert not x.is_floating_point()
        return plain(x, dim)

    monkeypatch.setattr(torch.Tensor, "cumsum", whole)
    assert torch.equal(sampler.draw(rng(1_000))[0], expected)


def test_the_part_of_a_timestep_begins_with_its_first_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four equal parts the second begins with 1/4; the last one has the largest draw."""
    monkeypatch.setattr(Rng, "uniform", lambda rng, name: torch.tensor([0, 0.25, 0.5, 0.75, 1 - 2**-24]))
    assert LossSecondMoment(4).draw(rng(5))[0].tolist() == [0, 1, 2, 3, 3]


def test_weights_make_the_mean_unbiased() -> None:
    sampler, _ = warmed()
    f = torch.linspace(-1, 5, 20) ** 2
    t, weights = sampler.draw(rng(100_000))
    torch.testing.assert_close((weights * f[t]).mean(), f.mean(), atol=0.15, rtol=0)
    assert abs(float(f[t].mean() - f.mean())) > 2  # unweighted, it is not
    p = sampler.probabilities()
    torch.testing.assert_close(weights.double(), 1 / (20 * p[t]), atol=0, rtol=1e-6)


def test_record_keeps_the_last_ten_in_order() -> None:
    sampler, known = LossSecondMoment(5), {t: [] for t in range(5)}
    generator = torch.Generator().manual_seed(0)
    for count in (3, 40, 1, 60, 7):
        t, loss = torch.randint(0, 4, (count,), generator=generator), torch.rand(count, generator=generator)
        sampler.observe({"t": t, "loss": loss})
        for step, value in zip(t.tolist(), loss.tolist(), strict=True):
            known[step].append(value)
    for step, values in known.items():
        assert sampler.count[step] == len(values)
        expected = sorted(values[-HISTORY:]) if len(values) >= HISTORY else sorted(values + [0.0] * (HISTORY - len(values)))
        assert sorted(sampler.history[step].tolist()) == expected


def test_a_loss_of_0_everywhere_stays_uniform() -> None:
    sampler = LossSecondMoment(4)
    for _ in range(HISTORY):
        sampler.observe({"t": torch.arange(4), "loss": torch.zeros(4)})
    assert (sampler.probabilities() == 0.25).all()


def test_the_history_is_in_the_state() -> None:
    sampler, _ = warmed()
    copy = LossSecondMoment(20)
    copy.load_state_dict(sampler.state_dict())
    assert torch.equal(copy.draw(rng(100))[0], sampler.draw(rng(100))[0])
