"""How probable images are, by the probability-flow ODE: the deterministic way from noise to images has a density.

"Score-Based Generative Modeling through Stochastic Differential Equations", Song et al. 2021, https://arxiv.org/abs/2011.13456, section
4.3 and appendix D; the divergence by random vectors: "FFJORD", Grathwohl et al. 2019, https://arxiv.org/abs/1810.01367.

In l = log sigma, with sigma = sqrt(1 / abar - 1) and the x_0 that the network predicts at x_t, the ODE is

    d x_t / d l = abar x_t - sqrt(abar) x_0(x_t),        d log p(x_t) / d l = -(abar d - sqrt(abar) tr(d x_0 / d x_t)).

In the variable x_t / sqrt(abar) of Karras et al. (2022) it is the same path; this one stays bounded and is at rest where all is noise,
so the many units of l up there cost nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from triptych.core.config import Config, config
from triptych.core.rng import Rng
from triptych.diffusion.gaussian import Levels
from triptych.diffusion.ode import State, runge_kutta_4
from triptych.diffusion.samplers import Predictor
from triptych.nn.gradients import gradient

BIN = 2 / 255
"""Distance between neighbouring 8-bit values in [-1, 1]."""

Trace = Callable[[Tensor, Tensor, int], Tensor]
"""tr(d output / d x) of each sample, (b,), for output and x (b, c, h, w) of one graph, at the k-th evaluation."""


@config
class FlowODEConfig(Config):
    """How the probability-flow ODE is integrated."""

    steps: int = 50
    "Steps of the Runge-Kutta method of order 4, of equal length in the log of the noise level; four network calls each."
    probes: int | None = 1
    "Random vectors for the divergence at each network call; None: the exact one, with a backward pass for each dimension."

    def validate(self) -> None:
        self.require(self.steps >= 1, "steps", "at least 1")
        self.require(self.probes is None or self.probes >= 1, "probes", "at least 1, or None for the exact divergence")


def exact_trace(output: Float[Tensor, " b *d"], x: Float[Tensor, " b *d"], k: int) -> Float64[Tensor, " b"]:
    """The trace by a vector-Jacobian product for each dimension."""
    flat = output.flatten(1)
    diagonal = [gradient(flat[:, i].sum(), x, retain_graph=True).flatten(1)[:, i] for i in range(flat.shape[1])]
    return torch.stack(diagonal, dim=1).sum(1, dtype=torch.float64)


def estimated_trace(rng: Rng, *, probes: int) -> Trace:
    """The mean of v^T J v over `probes` vectors of independent signs (Hutchinson 1990), unbiased; new ones for every k."""

    def trace(output: Float[Tensor, " b *d"], x: Float[Tensor, " b *d"], k: int) -> Float64[Tensor, " b"]:
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for probe in range(probes):
            signs = (2 * rng.integers(f"probe/{k}/{probe}", 2, *x.shape[1:]) - 1).to(output.dtype)
            product = gradient(output, x, signs, retain_graph=probe + 1 < probes)
            total += (product * signs).flatten(1).sum(1, dtype=torch.float64)
        return total / probes

    return trace


@torch.no_grad()
def log_density(predict: Predictor, levels: Levels, images: Float[Tensor, " b *d"], *, steps: int, trace: Trace) -> Float64[Tensor, " b"]:
    """log p of each of the images, in nats. No graph outlives a network call.

    p is the density of y = x / sqrt(abar) at the least noise of the levels, to which the ODE takes x from N(0, 1) at the most noise.
    The error of the fixed grid falls with the fourth power of `steps`; the estimate is as noisy as `trace` is.
    """
    first = levels.at(levels.low)
    grid = np.linspace(math.log(levels.low), math.log(levels.high), steps + 1).tolist()
    dimensions, calls = images[0].numel(), itertools.count()

    def slope(state: State, log_sigma: float) -> State:
        """d x / d log sigma, and its divergence (b,), at the x of the state."""
        c, x = levels.at(math.exp(log_sigma)), state[0]
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            x0 = predict(x, c).to(x.dtype)
            divergence = c.abar * dimensions - c.sqrt_abar * trace(x0, x, next(calls))
        return c.abar * x.detach() - c.sqrt_abar * x0.detach(), divergence

    x, total = images * first.sqrt_abar, images.new_full((len(images),), 0.5 * dimensions * math.log(first.abar), dtype=torch.float64)
    for here, there in pairwise(grid):
        x, total = runge_kutta_4(slope, (x, total), here, there)
    return total - 0.5 * (x.double() ** 2 + math.log(2 * math.pi)).flatten(1).sum(1)


def log_prob(
    predict: Predictor, levels: Levels, images: Float[Tensor, " b *d"], rng: Rng, *, settings: FlowODEConfig
) -> Float64[Tensor, " b"]:
    """log P of each 8-bit image in [-1, 1], in nats.

    For an image with uniform noise within the bins of its pixels added, so that the mean over that noise is at most log P (Theis et
    al. 2016, arXiv 1511.01844). `rng` draws the noise, once, and the random vectors.
    """
    shape = images.shape[1:]
    within = (rng.uniform("dequantization", *shape) - 0.5) * BIN
    trace = exact_trace if settings.probes is None else estimated_trace(rng, probes=settings.probes)
    density = log_density(predict, levels, images + within, steps=settings.steps, trace=trace)
    return density + math.prod(shape) * math.log(BIN)
