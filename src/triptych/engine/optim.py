"""Optimizers, the learning rate, and their state in a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from triptych.core.errors import CheckpointError
from triptych.engine.config import OptimConfig


def make_optimizer(parameters: Mapping[str, nn.Parameter], settings: OptimConfig, *, device: torch.device) -> torch.optim.Optimizer:
    """The optimizer of the named parameters; fused where PyTorch has a fused kernel."""
    group = list(parameters.values())
    common = {"lr": settings.learning_rate, "betas": settings.betas, "eps": settings.eps, "weight_decay": settings.weight_decay}
    if settings.name == "adamax":
        return torch.optim.Adamax(group, **common, foreach=True)
    kind = torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam
    return kind(group, **common, fused=device.type in ("cpu", "cuda"))


def learning_rate(settings: OptimConfig, *, images_seen: int, step_images: int, total_images: int) -> float:
    """The rate of the step that starts at `images_seen`.

    Warm-up: proportional to the images seen when the step is done. Then constant, or a line or half a cosine that starts
    at the run's first image and reaches 0 at `total_images`.
    """
    rate = settings.learning_rate
    if settings.schedule != "constant":
        done = min(images_seen / total_images, 1.0)
        rate *= 1 - done if settings.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    if settings.warmup_images:
        rate *= min((images_seen + step_images) / settings.warmup_images, 1.0)
    return rate


def optimizer_state(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The optimizer's tensors, as "parameter name/tensor name"."""
    return {f"{name}/{key}": value for name, parameter in parameters.items() for key, value in optimizer.state.get(parameter, {}).items()}


@torch.no_grad()
def load_optimizer_state(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]) -> None:
    """Takes the tensors of a checkpoint, laid out in memory as the parameters are: fused kernels walk all of them by one index.

    Raises CheckpointError where a tensor is missing or of another shape.
    """
    by_parameter: dict[str, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        name, _, key = full_name.rpartition("/")
        by_parameter.setdefault(name, {})[key] = tensor
    if by_parameter and by_parameter.keys() != parameters.keys():
        odd = sorted(by_parameter.keys() ^ parameters.keys())[0]
        raise CheckpointError(f"the optimizer's state does not fit this model: {odd} is on one side only")
    for name, state in by_parameter.items():
        parameter = parameters[name]
        for key, tensor in state.items():
            if tensor.ndim == 0:
                device = parameter.device if optimizer.defaults.get("fused") else "cpu"
                optimizer.state[parameter][key] = tensor.to(device)
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
                assert _layout(tensor) == _layout(parameter), (tensor.shape, tensor.stride(), parameter.stride())


def _layout(tensor: Tensor) -> tuple[tuple[int, int], ...]:
    return tuple((size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
