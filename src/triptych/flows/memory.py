"""Running invertible steps: what the backward pass keeps of them, and what it computes again.

"autograd" keeps every activation; "checkpoint" keeps the input of each step and runs the step again (Chen et al. 2016, "Training deep nets
with sublinear memory cost", arXiv 1604.06174); "inversion" keeps the output of the last step alone and goes back through the inverses
(Gomez et al. 2017, "The reversible residual network", arXiv 1707.04585), so that its memory does not grow with depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from triptych.nn.recomputing import recomputed

MemoryName = Literal["autograd", "checkpoint", "inversion"]


class InvertibleStep(Protocol):
    """A module that gives y and the log|det| of each sample, and x back from y."""

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]: ...

    def rewound(self, y: Tensor) -> list[Rewound]:
        """The way back from y (b, c, h, w), the last part of the step first."""
        ...

    def parameters(self) -> Iterable[nn.Parameter]: ...


@dataclass(frozen=True)
class Rewound:
    """A part of a step, gone back through: its input, and its output computed from it again, with a graph."""

    inputs: tuple[Tensor, ...]
    "Leaves of the graph; joined along the channels they are the part's input."
    outputs: tuple[Tensor, ...]
    "The part's output, and its log|det| (b,) where that depends on the sample."
    parameters: tuple[nn.Parameter, ...]
    "Those of the part."

    @property
    def x(self) -> Tensor:
        """The part's input (b, c, h, w), without a graph."""
        return _joined([part.detach() for part in self.inputs])


class Passed(NamedTuple):
    """What steps make of x."""

    y: Tensor
    log_det: Tensor
    "The sum of their log|det|: (b,)."
    largest: Tensor
    "The largest magnitude after each step, for all samples together: (k,), without a gradient."


def run_steps(
    steps: Iterable[InvertibleStep],
    x: Tensor,
    *,
    memory: MemoryName,
    rewinding: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Passed:
    """What all steps make of x (b, ...) in turn. The way back through their inverses happens within the context `rewinding`."""
    steps = tuple(steps)
    if memory == "inversion" and torch.is_grad_enabled():
        # As arguments, so that the graph (and DDP, which waits for every parameter's gradient) knows of the parameters.
        return Passed(*_Inverted.apply(steps, rewinding, x, *_parameters(steps)))
    return _passed(steps, x, again=memory == "checkpoint")


def _passed(steps: Sequence[InvertibleStep], x: Tensor, *, again: bool = False) -> Passed:
    log_det, largest = x.new_zeros(len(x)), []
    for step in steps:
        x, changed = recomputed(step, x, when=again)
        log_det = log_det + changed
        largest.append(torch.linalg.vector_norm(x.detach(), math.inf))
    return Passed(x, log_det, torch.stack(largest))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The parts joined along the channels."""
    first, *others = parts
    return torch.cat((first, *others), dim=1) if others else first


def _parameters(steps: Iterable[InvertibleStep]) -> list[nn.Parameter]:
    return [parameter for step in steps for parameter in step.parameters()]


class _Inverted(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        steps: tuple[InvertibleStep, ...],
        rewinding: Callable[[], AbstractContextManager[None]],
        x: Tensor,
        *parameters: Tensor,
    ) -> Passed:
        device = x.device.type
        ctx.steps, ctx.rewinding = steps, rewinding
        ctx.autocast = {
            "device_type": device,
            "enabled": torch.is_autocast_enabled(device),
            "dtype": torch.get_autocast_dtype(device),
        }
        passed = _passed(steps, x)
        ctx.mark_non_differentiable(passed.largest)
        ctx.save_for_backward(passed.y, *parameters)  # the parameters so that a change of theirs before the backward pass is an error
        return passed

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor, grad_log_det: Tensor, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        y = ctx.saved_tensors[0]
        gradients: dict[nn.Parameter, Tensor] = {}
        with torch.autocast(**ctx.autocast), ctx.rewinding():
            for step in reversed(ctx.steps):
                for part in step.rewound(y):
                    learned = [parameter for parameter in part.parameters if parameter.requires_grad]
                    grads = torch.autograd.grad(part.outputs, (*part.inputs, *learned), (grad, grad_log_det)[: len(part.outputs)])
                    of_inputs, of_parameters = grads[: len(part.inputs)], grads[len(part.inputs) :]
                    grad, y = _joined(of_inputs), part.x
                    gradients |= dict(zip(learned, of_parameters, strict=True))
        return None, None, grad, *(gradients.get(parameter) for parameter in _parameters(ctx.steps))
