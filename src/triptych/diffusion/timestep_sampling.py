"""Which timestep each training sample gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from triptych.core.rng import Rng

TimestepSamplerName = Literal["uniform", "loss-second-moment"]

HISTORY = 10
UNIFORM_PROBABILITY = 0.001
LOSS_HISTORY = frozenset(("timesteps.history", "timesteps.count"))
"""The buffers of `LossSecondMoment` in a model whose `timesteps` it is: losses of its own training."""


class UniformTimesteps(nn.Module):
    """Draws timesteps in 0..steps-1, every one with the same probability."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def draw(self, rng: Rng) -> tuple[Int[Tensor, " b"], Float[Tensor, " b"]]:
        """A timestep for each sample, and the weight that makes its loss an unbiased mean over timesteps: here 1."""
        t = rng.integers("t", self.steps)
        return t, torch.ones(len(t), device=t.device)

    def observed(self, t: Int[Tensor, " b"], loss: Float[Tensor, " b"]) -> dict[str, Tensor]:
        """What `observe` wants to know of a step, for `LossTerms.observed`."""
        return {}

    def observe(self, terms: Mapping[str, Tensor]) -> None:
        """Enters what was observed in a step, (b,) each, in the order of the samples."""


class LossSecondMoment(UniformTimesteps):
    """Timesteps in proportion to the root mean square of their last ten losses (Nichol and Dhariwal 2021, Eq. 18).

    Uniform until each has ten, and with probability 0.001 after that; and in evaluation mode. The losses are buffers, so that a resumed
    run goes on alike.
    """

    history: Tensor
    count: Tensor

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        self.register_buffer("history", torch.zeros(steps, HISTORY))
        self.register_buffer("count", torch.zeros(steps, dtype=torch.int64))

    def probabilities(self) -> Float64[Tensor, " steps"]:
        """Of every timestep, of sum 1."""
        size = self.history.double().square().mean(1).sqrt()
        # All losses 0 (a network that cannot err) would leave nothing to divide by.
        ready = (self.count >= HISTORY).all() & (size.sum() > 0)
        weighted = size / size.sum() * (1 - UNIFORM_PROBABILITY) + UNIFORM_PROBABILITY / self.steps
        return torch.where(ready, weighted, 1 / self.steps)

    def draw(self, rng: Rng) -> tuple[Int[Tensor, " b"], Float[Tensor, " b"]]:
        """See UniformTimesteps."""
        if not self.training:
            return super().draw(rng)
        p = self.probabilities()
        cumulative = (p * 2.0**52).long().cumsum(0).double()  # of whole numbers: those of others have no fixed order on a GPU
        t = torch.searchsorted(cumulative, rng.uniform("t").double() * cumulative[-1], right=True).clamp_(max=self.steps - 1)
        return t, (1 / (self.steps * p[t])).float()

    def observed(self, t: Int[Tensor, " b"], loss: Float[Tensor, " b"]) -> dict[str, Tensor]:
        """The timesteps and the losses, unweighted."""
        return {"t": t, "loss": loss.detach()} if self.training else {}

    def observe(self, terms: Mapping[str, Tensor]) -> None:
        """Enters losses (b,), unweighted, at their timesteps (b,), in order."""
        t, loss = terms["t"], terms["loss"]
        same = t[:, None] == t[None, :]
        earlier, later = same.tril(-1).sum(1), same.triu(1).sum(1)
        # Where a timestep comes more than ten times, only its last ten count; the others go to a row that is thrown away.
        row = torch.where(later < HISTORY, t, self.steps)
        slot = (self.count[t] + earlier) % HISTORY
        table = torch.cat((self.history, self.history.new_zeros(1, HISTORY)))
        table[row, slot] = loss.to(table.dtype)
        self.history.copy_(table[:-1])
        self.count.index_add_(0, t, torch.ones_like(t))


def make_timestep_sampler(name: TimestepSamplerName, steps: int) -> UniformTimesteps:
    """The sampler of that name."""
    return (LossSecondMoment if name == "loss-second-moment" else UniformTimesteps)(steps)
