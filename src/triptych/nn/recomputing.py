"""Activation checkpointing: features that are computed again in the backward pass instead of being kept.

"Training Deep Nets with Sublinear Memory Cost", Chen et al. 2016, https://arxiv.org/abs/1604.06174.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

T = TypeVar("T")


def recomputed(part: Callable[..., T], *inputs: Any, when: bool = True) -> T:
    """part(*inputs), of which only the inputs are kept for the backward pass where gradients are wanted and `when` says so.

    It is computed again in the precision that autocast gave it, and must draw from no global generator. The gradient may be differentiated
    too, but all that its own graph needs is then kept.
    """
    if not (when and torch.is_grad_enabled()):
        return part(*inputs)
    return checkpoint(part, *inputs, use_reentrant=False, preserve_rng_state=False)


def recomputed_twice(part: nn.Module, x: Tensor, *, when: bool = True) -> Tensor:
    """As `recomputed`; and where the gradient is differentiated, as by a gradient penalty, its graph is computed again too.

    Kept are x and the gradient of the result alone. PyTorch's own checkpoints keep nothing for a gradient, but all for its gradient.
    `part` gives one tensor; it has no buffers that move.
    """
    if not (when and torch.is_grad_enabled()) or torch.compiler.is_compiling():  # which has no second derivatives
        return recomputed(part, x, when=when)
    kind = x.device.type
    run = _Run(part, kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
    return _Result.apply(run, x, *run.weights())


class _Run(NamedTuple):
    """A part of a network, and the precision in which it is computed."""

    part: nn.Module
    device: str
    half: bool
    dtype: torch.dtype

    def weights(self) -> list[Tensor]:
        """Those that learn."""
        return [weight for weight in self.part.parameters() if weight.requires_grad]

    def __call__(self, x: Tensor) -> Tensor:
        # A weight that is cast without gradients must not be found again where these are wanted.
        with torch.autocast(self.device, dtype=self.dtype, enabled=self.half, cache_enabled=False):
            return self.part(x)


class _Result(Function):
    """y = f(x, w)."""

    @staticmethod
    def forward(ctx: Any, run: _Run, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x, *weights)
        ctx.set_materialize_grads(False)
        return run(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if gradient is None:  # as from a second derivative that is 0
            return (None,) * len(ctx.needs_input_grad)
        return None, *_Gradient.apply(ctx.run, gradient, *ctx.saved_tensors)


class _Gradient(Function):
    """The gradients of <f(x, w), g> by x and w."""

    @staticmethod
    def forward(ctx: Any, run: _Run, gradient: Tensor, x: Tensor, *weights: Tensor) -> tuple[Tensor | None, ...]:
        ctx.run, ctx.by_x = run, x.requires_grad
        ctx.save_for_backward(gradient, x, *weights)
        ctx.set_materialize_grads(False)
        with torch.enable_grad():
            x = x.detach().requires_grad_(ctx.by_x)
            sources = [x, *weights] if ctx.by_x else list(weights)
            found = torch.autograd.grad(run(x), sources, gradient, allow_unused=True)
        return found if ctx.by_x else (None, *found)

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gradient, x, *weights = ctx.saved_tensors
        with torch.enable_grad():
            gradient, x = gradient.detach().requires_grad_(), x.detach().requires_grad_()
            wanted = [number for number, tangent in enumerate(tangents) if tangent is not None]
            sources, given = [(x, *weights)[number] for number in wanted], [tangents[number] for number in wanted]
            first = torch.autograd.grad(ctx.run(x), sources, gradient, create_graph=True)
            second = torch.autograd.grad(first, (gradient, x, *weights), given, allow_unused=True)
        return None, *second
