"""Which timestep each training sample gets."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from triptych.core.rng import Rng

HISTORY = 10
UNIFORM_PROBABILITY = 0.001


class TimestepSampler(nn.Module, ABC):
    """Draws timesteps in 0..steps-1."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    @abstractmethod
    def draw(self, rng: Rng) -> tuple[Tensor, Tensor]:
        """A timestep for each sample, int64 (b,), and the weight, float32 (b,), that makes its loss an unbiased mean over timesteps."""


class UniformTimesteps(TimestepSampler):
    """Every timestep with the same probability."""

    def draw(self, rng: Rng) -> tuple[Tensor, Tensor]:
        """See TimestepSampler; the weights are 1."""
        t = rng.integers("t", self.steps)
        return t, torch.ones(len(t), device=t.device)


class LossSecondMoment(TimestepSampler):
    """Timesteps in proportion to the root mean square of their last ten losses (Nichol and Dhariwal 2021, Eq. 18).

    Uniform until each has ten, and with probability 0.001 after that. The losses are buffers, so that a resumed run goes on alike.
    """

    history: Tensor
    count: Tensor

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        self.register_buffer("history", torch.zeros(steps, HISTORY))
        self.register_buffer("count", torch.zeros(steps, dtype=torch.int64))

    def probabilities(self) -> Tensor:
        """Of every timestep: float64 (steps,), of sum 1."""
        size = self.history.double().square().mean(1).sqrt()
        # All losses 0 (a network that cannot err) would leave nothing to divide by.
        ready = (self.count >= HISTORY).all() & (size.sum() > 0)
        weighted = size / size.sum() * (1 - UNIFORM_PROBABILITY) + UNIFORM_PROBABILITY / self.steps
        return torch.where(ready, weighted, 1 / self.steps)

    def draw(self, rng: Rng) -> tuple[Tensor, Tensor]:
        """See TimestepSampler."""
        p = self.probabilities()
        cumulative = p.cumsum(0)
        t = torch.searchsorted(cumulative, rng.uniform("t").double() * cumulative[-1], right=True).clamp_(max=self.steps - 1)
        return t, (1 / (self.steps * p[t])).float()

    def record(self, t: Tensor, loss: Tensor) -> None:
        """Enters losses (b,), unweighted, at the timesteps t (b,), in order."""
        same = t[:, None] == t[None, :]
        earlier, later = same.tril(-1).sum(1), same.triu(1).sum(1)
        # Where a timestep comes more than ten times, only its last ten count; the others go to a row that is thrown away.
        row = torch.where(later < HISTORY, t, self.steps)
        slot = (self.count[t] + earlier) % HISTORY
        table = torch.cat((self.history, self.history.new_zeros(1, HISTORY)))
        table[row, slot] = loss.to(table.dtype)
        self.history.copy_(table[:-1])
        self.count.index_add_(0, t, torch.ones_like(t))
