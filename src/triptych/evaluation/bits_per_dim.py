"""Bits per dimension: how many bits an 8-bit value of an image costs under a model; the fewer the better."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from triptych.core.batch import Batch
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.model import Likelihood, Model, VariationalBound
from triptych.core.rng import Rng
from triptych.core.translation import Translator
from triptych.evaluation.metric import Collected, Findings, ImageMetric, Measured, standard_error


@config
class BitsPerDimConfig(Config):
    """How bits per dimension are measured."""

    likelihood: Literal["bound", "ode"] | None = None
    "bound: the variational bound; ode: exact likelihood by the probability-flow ODE; None: the bound, or what else the model has."
    steps: int | str | None = None
    'bound: timesteps, a number, numbers by section "a,b,c", or "ddimN"; None: all. ode: steps of the integration; None: 50.'
    clip: bool = True
    "bound: clip the image that each step predicts to [-1, 1]."
    probes: int | None = 1
    "ode: random vectors for the divergence at each network call; None: exact, a backward pass for each dimension."
    draws: int | None = None
    "Flows: draws of the dequantization noise, over which an image's bits are averaged; None: 1."

    def validate(self) -> None:
        number = str(self.steps)
        self.require(self.likelihood != "ode" or self.steps is None or number.isdecimal(), "steps", "a number, with likelihood ode")
        self.require(self.draws is None or self.draws >= 1, "draws", "at least 1")
        self.require(self.probes is None or self.probes >= 1, "probes", "at least 1, or None for the exact divergence")


def bits_per_dim(model: Model, settings: BitsPerDimConfig) -> ImageMetric:
    """The metric for a model. Raises ConfigError where it has no likelihood of the kind that `settings` ask for."""
    bounded, known = isinstance(model, VariationalBound), isinstance(model, Likelihood)
    name = type(model).__name__
    if not (bounded or known):
        instead = "; what it scores on held-out images is in its metrics.jsonl" if isinstance(model, Translator) else ""
        raise ConfigError("metrics", f"bits-per-dim needs a model that knows how probable an image is; {name} does not{instead}")
    if settings.likelihood == "bound" and not bounded:
        raise ConfigError("likelihood", f"got bound, but {name} has no variational bound; leave it out")
    if settings.likelihood == "ode" and not (isinstance(model, Likelihood) and hasattr(model.likelihood, "probes")):
        raise ConfigError("likelihood", f"got ode, but {name} has no such likelihood; leave it out")
    if settings.probes != 1 and settings.likelihood != "ode":
        raise ConfigError("probes", f"got {settings.probes}, which goes with likelihood ode; leave it out")
    if not settings.clip and not (bounded and settings.likelihood != "ode"):
        raise ConfigError("clip", "got False, which goes with the variational bound; leave it out")
    if isinstance(model, VariationalBound) and settings.likelihood != "ode":
        if settings.draws is not None:
            raise ConfigError("draws", f"got {settings.draws}, but the bound of {name} draws no dequantization noise; leave it out")
        return BoundMetric(model, settings)
    assert isinstance(model, Likelihood)
    return LikelihoodMetric(model, model.likelihood.updated(_changes(model, settings)), name=settings.likelihood or "exact")


def _changes(model: Likelihood, settings: BitsPerDimConfig) -> dict[str, Any]:
    """What `settings` change in those of the model's likelihood. Raises ConfigError for what that does not have."""
    name, changes = type(model).__name__, dict[str, Any]()
    if settings.steps is not None:
        if not hasattr(model.likelihood, "steps"):
            raise ConfigError("steps", f"got {settings.steps}, but {name} knows the likelihood exactly, without steps; leave it out")
        settings.require(str(settings.steps).isdecimal(), "steps", f"a number, with the likelihood of {name}")
        changes["steps"] = int(settings.steps)
    if settings.draws is not None:
        if not hasattr(model.likelihood, "draws"):
            raise ConfigError("draws", f"got {settings.draws}, but the likelihood of {name} has no such setting; leave it out")
        changes["draws"] = settings.draws
    if settings.likelihood == "ode":
        changes["probes"] = settings.probes
    return changes


class BoundMetric:
    """Bits per dimension by the variational bound.

    Figures: bits_per_dim, standard_error, and its parts prior, kl and reconstruction. Arrays: bits_per_dim and prior (n,); by timestep,
    in descending order (T,): timesteps, and the means over the images of vb (the terms of the bound), x0_mse and noise_mse.
    """

    def __init__(self, model: VariationalBound, settings: BitsPerDimConfig) -> None:
        self._model, self._settings = model, settings

    @property
    def settings(self) -> dict[str, Any]:
        """Which bound is measured."""
        return {"likelihood": "bound", "steps": self._settings.steps, "clip": self._settings.clip}

    @torch.no_grad()
    def measure(self, batch: Batch, rng: Rng) -> Measured:
        """The bound of the batch's images."""
        bound = self._model.bound(batch, rng, steps=self._settings.steps, clip=self._settings.clip)
        by_timestep = {"vb": bound.terms, "x0_mse": bound.x0_mse, "noise_mse": bound.noise_mse}
        return Measured(
            each={"bits_per_dim": bound.total, "prior": bound.prior},
            summed={name: values.sum(0, dtype=torch.float64) for name, values in by_timestep.items()},
            same={"timesteps": torch.tensor(bound.timesteps)},
        )

    def conclude(self, collected: Collected) -> Findings:
        """The means over all images."""
        total, prior = (collected.each[name].astype(np.float64) for name in ("bits_per_dim", "prior"))
        means = {name: values / len(total) for name, values in collected.summed.items()}
        figures = {
            "bits_per_dim": float(total.mean()),
            "standard_error": standard_error(total),
            "prior": float(prior.mean()),
            "kl": float(means["vb"][:-1].sum()),
            "reconstruction": float(means["vb"][-1]),
        }
        return Findings(figures, {**collected.each, **collected.same, **means})


class LikelihoodMetric:
    """Bits per dimension by a model's own likelihood.

    Figures: bits_per_dim, standard_error, and log_prob in nats. Arrays: bits_per_dim and log_prob (n,).
    """

    def __init__(self, model: Likelihood, settings: Config, *, name: str) -> None:
        self._model, self._settings, self._name = model, settings, name

    @property
    def settings(self) -> dict[str, Any]:
        """Which likelihood is measured, and its settings."""
        return {"likelihood": self._name, **self._settings.to_dict()}

    def measure(self, batch: Batch, rng: Rng) -> Measured:
        """log P of the batch's images."""
        log_prob: Tensor = self._model.log_prob(batch, rng, settings=self._settings)
        return Measured(each={"bits_per_dim": -log_prob / (batch.images[0].numel() * math.log(2)), "log_prob": log_prob})

    def conclude(self, collected: Collected) -> Findings:
        """The means over all images."""
        total, log_prob = (collected.each[name].astype(np.float64) for name in ("bits_per_dim", "log_prob"))
        figures = {"bits_per_dim": float(total.mean()), "standard_error": standard_error(total), "log_prob": float(log_prob.mean())}
        return Findings(figures, dict(collected.each))
