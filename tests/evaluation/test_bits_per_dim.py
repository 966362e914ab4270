"""Bits per dimension of models whose likelihood is known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from triptych.core.batch import Batch
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.model import Likelihood, LossTerms, Model, Phase
from triptych.core.rng import Rng
from triptych.evaluation.bits_per_dim import BitsPerDimConfig, bits_per_dim
from triptych.evaluation.catalogue import METRICS
from triptych.evaluation.metric import Collected, Measured, standard_error


@config
class Settings(Config):
    steps: int = 7
    "Steps."
    probes: int | None = 3
    "Probes."


class Silent(Model):
    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        raise AssertionError("these models are not trained")


class Uniform(Silent):
    """Every 8-bit value has probability 1/256, but for the first pixel, which is known."""

    likelihood: Config = Config()

    def log_prob(self, batch: Batch, rng: Rng, *, settings: Config) -> Tensor:
        self.seen = settings
        return torch.full((len(batch),), -(batch.images[0].numel() - 1) * math.log(256)).double() - batch.index


class Integrated(Uniform):
    likelihood = Settings()


@dataclass(frozen=True)
class Terms:
    total: Tensor
    prior: Tensor
    terms: Tensor
    x0_mse: Tensor
    noise_mse: Tensor
    timesteps: tuple[int, ...]


class Bounded(Integrated):
    """Its terms are the number of the image, and the timestep."""

    def bound(self, batch: Batch, rng: Rng, *, steps: int | str | None = None, clip: bool = True) -> Terms:
        self.asked = steps, clip
        terms = torch.tensor([3.0, 2.0, 0.5]) + batch.index[:, None]
        prior = torch.full((len(batch),), 0.25)
        return Terms(terms.sum(1) + prior, prior, terms, 2 * terms, 4 * terms, (9, 4, 0))


def batch(start: int, stop: int) -> tuple[Batch, Rng]:
    index = torch.arange(start, stop)
    return Batch(torch.zeros(stop - start, 1, 2, 2), None, index), Rng(0, ("evaluate",), index)


def collected(parts: list[Measured]) -> Collected:
    each = {name: np.concatenate([part.each[name].numpy() for part in parts]) for name in parts[0].each}
    summed = {name: sum(part.summed[name].numpy() for part in parts) for name in parts[0].summed}
    return Collected(each, summed, {name: values.numpy() for name, values in parts[0].same.items()})  # type: ignore[arg-type]


def test_the_bound() -> None:
    model = Bounded()
    metric = bits_per_dim(model, BitsPerDimConfig(steps="3", clip=False))
    found = metric.conclude(collected([metric.measure(*batch(0, 2)), metric.measure(*batch(2, 3))]))
    assert model.asked == ("3", False) and metric.settings == {"likelihood": "bound", "steps": "3", "clip": False}
    values = np.array([5.75, 8.75, 11.75])
    assert found.figures == {
        "bits_per_dim": pytest.approx(8.75),
        "standard_error": pytest.approx(3 / math.sqrt(3)),
        "prior": 0.25,
        "kl": pytest.approx(7),
        "reconstruction": pytest.approx(1.5),
    }
    assert sum(found.figures[name] or 0 for name in ("prior", "kl", "reconstruction")) == pytest.approx(8.75)
    np.testing.assert_allclose(found.arrays["bits_per_dim"], values)
    assert found.arrays["timesteps"].tolist() == [9, 4, 0]
    assert found.arrays["vb"].tolist() == [4, 3, 1.5]
    assert found.arrays["x0_mse"].tolist() == [8, 6, 3] and found.arrays["noise_mse"].tolist() == [16, 12, 6]


def test_a_likelihood() -> None:
    model = Uniform()
    assert isinstance(model, Likelihood)
    metric = bits_per_dim(model, BitsPerDimConfig())
    found = metric.conclude(collected([metric.measure(*batch(0, 2)), metric.measure(*batch(2, 4))]))
    assert found.figures["bits_per_dim"] == pytest.approx(8 * 3 / 4 + 1.5 / (4 * math.log(2)))
    assert found.figures["log_prob"] == pytest.approx(-3 * math.log(256) - 1.5)
    assert metric.settings == {"likelihood": "exact"}
    assert found.arrays["log_prob"].shape == (4,)


def test_the_settings_of_a_likelihood() -> None:
    model = Bounded()
    metric = bits_per_dim(model, BitsPerDimConfig(likelihood="ode", probes=None))
    metric.measure(*batch(0, 1))
    assert model.seen == Settings(probes=None) and metric.settings == {"likelihood": "ode", "steps": 7, "probes": None}
    assert bits_per_dim(model, BitsPerDimConfig(likelihood="ode", steps="20")).settings == {"likelihood": "ode", "steps": 20, "probes": 1}


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (Silent(), {}, "metrics: bits-per-dim needs a model that knows how probable an image is; Silent does not$"),
        (Uniform(), {"likelihood": "bound"}, "likelihood: got bound, but Uniform has no variational bound; leave it out"),
        (Uniform(), {"steps": 5}, "steps: got 5, but Uniform knows the likelihood exactly, without steps; leave it out"),
        (Uniform(), {"probes": 5}, "probes: got 5, which goes with likelihood ode; leave it out"),
        (Bounded(), {"probes": None}, "probes: got None, which goes with likelihood ode; leave it out"),
        (Uniform(), {"clip": False}, "clip: got False, which goes with the variational bound; leave it out"),
        (Integrated(), {"clip": False, "likelihood": "ode"}, "clip: got False, which goes with the variational bound; leave it out"),
        (Uniform(), {"draws": 5}, "draws: got 5, but the likelihood of Uniform has no such setting; leave it out"),
        (Bounded(), {"draws": 5}, "draws: got 5, but the bound of Bounded draws no dequantization noise; leave it out"),
        (Bounded(), {"draws": 1, "likelihood": "ode"}, "draws: got 1, but the likelihood of Bounded has no such setting; leave it out"),
        (Uniform(), {"likelihood": "ode"}, "likelihood: got ode, but Uniform has no such likelihood; leave it out"),
        (Integrated(), {"steps": "ddim25"}, "steps: got 'ddim25', expected a number, with the likelihood of Integrated"),
    ],
)
def test_what_a_model_does_not_have(model: Model, settings: dict[str, str | int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bits_per_dim(model, BitsPerDimConfig(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"likelihood": "ode", "steps": "ddim25"}, "steps: got 'ddim25', expected a number, with likelihood ode"),
        ({"draws": 0}, "draws: got 0, expected at least 1"),
        ({"probes": 0}, "probes: got 0, expected at least 1, or None for the exact divergence"),
    ],
)
def test_bad_settings(settings: dict[str, str | int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BitsPerDimConfig(**settings)  # type: ignore[arg-type]


def test_the_catalogue() -> None:
    assert METRICS["bits-per-dim"].make is bits_per_dim


def test_the_standard_error() -> None:
    assert standard_error(np.array([1.0, 2.0, 6.0])) == pytest.approx(math.sqrt(7 / 3))
    assert standard_error(np.array([1.0])) is None
