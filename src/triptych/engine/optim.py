"""Optimizers, and their state in a checkpoint."""

# pyright: reportPrivateImportUsage=false
# (the operations on lists of tensors, torch._foreach_*, have no public names)

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from triptych.core.errors import CheckpointError
from triptych.engine.config import OptimConfig


def make_optimizer(parameters: Mapping[str, nn.Parameter], settings: OptimConfig, *, device: torch.device) -> torch.optim.Optimizer:
    """The optimizer of the named parameters; fused where PyTorch has a fused kernel."""
    group = list(parameters.values())
    common = {"lr": settings.learning_rate, "betas": settings.betas, "eps": settings.eps, "weight_decay": settings.weight_decay}
    if settings.name == "adamax":
        return _uncompiled(torch.optim.Adamax)(group, **common, foreach=True)
    if settings.name == "adamax-glow":
        return _uncompiled(GlowAdamax)(group, **common)
    kind = torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam
    if device.type == "cpu":
        return _uncompiled(_in_rows(kind))(group, **common, fused=True)
    return _uncompiled(kind)(group, **common, fused=device.type == "cuda")


@functools.cache
def _in_rows(kind: type[torch.optim.Adam]) -> type[torch.optim.Adam]:
    """The class, which shows PyTorch's kernel each tensor as one row of numbers, as it lies in memory.

    The kernel would copy each gradient whose channels are last, and goes through all of them by one index (see `assert_same_layout`).
    """

    def _init_group(self: Any, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        has_complex = kind._init_group(self, group, *lists)
        parameters, gradients = lists[:2]
        for k, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            if gradient.stride() != parameter.stride() and not _lies_as(gradient, parameter):  # as no backward pass leaves it
                gradients[k] = torch.empty_like(parameter).copy_(gradient)
        for tensors in lists[:4]:  # these and both moments
            tensors[:] = [tensor if tensor.ndim == 1 else tensor.as_strided((tensor.numel(),), (1,)) for tensor in tensors]
        return has_complex

    return type(kind.__name__, (kind,), {"_init_group": _init_group})


@functools.cache
def _uncompiled(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """The class of optimizers with its methods as they are: PyTorch wraps them for its compiler.

    The first call of each would import that compiler, which takes seconds. No optimizer is compiled here.
    """
    names = ("add_param_group", "load_state_dict", "state_dict", "step", "zero_grad")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    return type(kind.__name__, (kind,), methods | {"step": torch.no_grad()(methods["step"])})


_PIECE_VALUES = 2**18  # with the gradient, the two moments and the weight 4 MiB


class GlowAdamax(torch.optim.Optimizer):
    """Adamax as openai/glow has it: the step keeps Adam's sqrt(1 - beta2^t), so that the first ones are smaller.

    In step t, from 1, with the gradient g:  m <- beta1 m + (1 - beta1) g,  v <- max(beta2 v, |g|),
    w <- (1 - weight_decay) w - rate sqrt(1 - beta2^t) / (1 - beta1^t) m / (v + eps). The gradients are overwritten, to need no more memory.
    """

    def __init__(self, params: Iterable[nn.Parameter], *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step on all parameters that have a gradient."""
        for group in self.param_groups:
            for parameters in self._by_steps(group["params"]):
                for part in _pieces(parameters):
                    self._step(part, group)

    def _by_steps(self, parameters: Iterable[Tensor]) -> Iterable[list[Tensor]]:
        """The parameters with a gradient, by the number of steps they have taken, this one counted."""
        by_steps: dict[int, list[Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state |= {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(parameter), "exp_inf": torch.zeros_like(parameter)}
            state["step"] += 1
            by_steps.setdefault(int(state["step"]), []).append(parameter)
        return by_steps.values()

    def _step(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        states = [self.state[parameter] for parameter in parameters]
        step = int(states[0]["step"])
        means, largest = ([state[name] for state in states] for name in ("exp_avg", "exp_inf"))
        scratch = [parameter.grad for parameter in parameters if parameter.grad is not None]
        torch._foreach_lerp_(means, scratch, 1 - beta1)
        torch._foreach_abs_(scratch)
        torch._foreach_mul_(largest, beta2)
        torch._foreach_maximum_(largest, scratch)
        torch._foreach_copy_(scratch, largest)
        torch._foreach_add_(scratch, group["eps"])
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["weight_decay"])
        rate = group["lr"] * math.sqrt(1 - beta2**step) / (1 - beta1**step)
        torch._foreach_addcdiv_(parameters, means, scratch, -rate)


def _pieces(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """The parameters; on a CPU a few at a time, so that they stay in its cache from one operation to the next."""
    if parameters[0].device.type != "cpu":
        yield parameters
        return
    start, values = 0, 0
    for k, parameter in enumerate(parameters, 1):
        values += parameter.numel()
        if values >= _PIECE_VALUES or k == len(parameters):
            yield parameters[start:k]
            start, values = k, 0


def optimizer_state(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The optimizer's tensors, as "parameter name/tensor name"."""
    return {f"{name}/{key}": value for name, parameter in parameters.items() for key, value in optimizer.state.get(parameter, {}).items()}


@torch.no_grad()
def load_optimizer_state(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]) -> None:
    """Takes the tensors of a checkpoint in the memory layout of the parameters: fused kernels use one index for all of them.

    A parameter that no loss has reached yet has none. Raises CheckpointError for a tensor of another shape or of no parameter.
    """
    by_parameter: dict[str, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        name, _, key = full_name.rpartition("/")
        by_parameter.setdefault(name, {})[key] = tensor
    if unknown := sorted(by_parameter.keys() - parameters.keys()):
        raise CheckpointError(f"the optimizer's state does not fit this model: it has {unknown[0]}, which this one lacks")
    for name, state in by_parameter.items():
        parameter = parameters[name]
        for key, tensor in state.items():
            if key == "step":
                device = parameter.device if optimizer.defaults.get("fused") else "cpu"
                optimizer.state[parameter][key] = tensor.to(device, copy=True)  # else it would keep the whole file in memory
                continue
            if tensor.shape != parameter.shape:
                raise CheckpointError(f"the optimizer's {name}/{key} has shape {list(tensor.shape)}, expected {list(parameter.shape)}")
            optimizer.state[parameter][key] = torch.empty_like(parameter).copy_(tensor)


def assert_same_layout(optimizer: torch.optim.Optimizer) -> None:
    """AssertionError unless every gradient and state tensor lies in memory as its parameter does."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            tensors = [value for value in optimizer.state.get(parameter, {}).values() if torch.is_tensor(value) and value.ndim]
            for tensor in [*tensors, *([] if parameter.grad is None else [parameter.grad])]:
                assert _lies_as(tensor, parameter), (tensor.shape, tensor.stride(), parameter.stride())


def _lies_as(tensor: Tensor, parameter: Tensor) -> bool:
    """Whether both have the same numbers of the same places in their order in memory, so that one index goes through both."""
    return _layout(tensor) == _layout(parameter)


def _layout(tensor: Tensor) -> tuple[tuple[int, int], ...]:
    return tuple((size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
