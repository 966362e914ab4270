"""What the backward pass keeps changes neither the result nor the gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from triptych.flows.layers import CouplingName, MixingName, inverses_at_hand
from triptych.flows.memory import MemoryName, run_steps
from triptych.flows.multiscale import FlowStep, StepSettings

DEPTH, CHANNELS = 16, 8


def steps_of(coupling: CouplingName = "affine", mixing: MixingName = "conv", depth: int = DEPTH) -> nn.ModuleList:
    """Steps with every parameter moved off its initial value, where the coupling does nothing."""
    torch.manual_seed(0)
    steps = nn.ModuleList(FlowStep(CHANNELS, StepSettings(width=32, coupling=coupling, mixing=mixing, border=True)) for _ in range(depth))
    with torch.no_grad():
        for parameter in steps.parameters():
            parameter.add_(0.03 * torch.randn_like(parameter))
    return steps


def gradients(steps: nn.ModuleList, memory: MemoryName, *, bf16: bool = False) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The result, its log|det|, and the gradient of a function of both with respect to x and all parameters."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, CHANNELS, 8, 8, generator=generator).requires_grad_()
    weight = torch.randn(4, CHANNELS, 8, 8, generator=generator)
    steps.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        rewinding = partial(inverses_at_hand, [step.mixing for step in steps])  # type: ignore[misc]
        y, log_det, _ = run_steps(steps, x, memory=memory, rewinding=rewinding)  # type: ignore[arg-type]
    assert y.dtype == log_det.dtype == x.dtype, "carried in full precision"
    ((y * weight).sum() + 3 * log_det.sum() + 0.1 * y.square().sum()).backward()
    assert x.grad is not None
    found = {"x": x.grad} | {name: p.grad.clone() for name, p in steps.named_parameters() if p.grad is not None}
    return y.detach(), log_det.detach(), found


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("memory", ["checkpoint", "inversion"])
@pytest.mark.parametrize(("coupling", "mixing"), [("affine", "conv"), ("additive", "conv"), ("affine", "conv-lu"), ("affine", "shuffle")])
def test_the_gradient_is_that_of_autograd(memory: MemoryName, coupling: CouplingName, mixing: MixingName) -> None:
    steps = steps_of(coupling, mixing)
    plain, other = gradients(steps, "autograd"), gradients(steps, memory)
    torch.testing.assert_close(other[0], plain[0])
    torch.testing.assert_close(other[1], plain[1])
    assert plain[2].keys() == other[2].keys() == {"x", *dict(steps.named_parameters())}
    for name, gradient in plain[2].items():
        assert gradient.norm() > 0, name
        assert (other[2][name] - gradient).norm() <= 1e-4 * gradient.norm(), name


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("memory", ["checkpoint", "inversion"])
def test_parameters_that_do_not_learn_get_no_gradient(memory: MemoryName) -> None:
    steps = steps_of(depth=3)
    for name, parameter in steps.named_parameters():
        parameter.requires_grad_("norm" in name and not name.startswith("1"))
    plain, other = gradients(steps, "autograd")[2], gradients(steps, memory)[2]
    assert plain.keys() == other.keys() == {"x", *(name for name, p in steps.named_parameters() if p.requires_grad)}
    for name, gradient in plain.items():
        assert (other[name] - gradient).norm() <= 1e-4 * gradient.norm(), name


@pytest.mark.parametrize("mixing", get_args(MixingName))
def test_the_gradient_under_bf16_is_that_of_autograd_under_bf16(mixing: MixingName) -> None:
    """The first half of the channels passes a coupling unchanged, so the network gives the very same numbers the second time."""
    steps = steps_of(mixing=mixing)
    plain, other = (gradients(steps, memory, bf16=True)[2] for memory in ("autograd", "inversion"))
    whole, difference = (torch.cat([part.flatten() for part in parts]) for parts in (plain.values(), _differences(plain, other)))
    full = torch.cat([part.flatten() for part in gradients(steps, "autograd")[2].values()])
    assert (whole - full).norm() > 1e-3 * full.norm(), "the networks did not run in bf16"
    # 1 if they did not. They get what float32 has undone, and bf16 rounds some of it to another number: 0.24 where float32 is coarse.
    assert difference.norm() <= 0.5 * (whole - full).norm(), "on the way back they did not"


def _differences(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[Tensor]:
    return [b[name] - a[name] for name in a]


def kept_bytes(act: Callable[[], object]) -> int:
    """What a forward pass keeps for its backward pass, parameters apart."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        held = act()
    del held
    return sum(kept.values())


def test_inversion_keeps_as_much_at_any_depth() -> None:
    def kept(memory: MemoryName, depth: int) -> int:
        steps, x = steps_of(depth=depth), torch.randn(4, CHANNELS, 8, 8, requires_grad=True)
        return kept_bytes(lambda: run_steps(steps, x, memory=memory))  # type: ignore[arg-type]

    activation = 4 * CHANNELS * 8 * 8 * 4
    assert kept("inversion", 4) == kept("inversion", 16) == activation
    assert kept("autograd", 16) > 3 * kept("autograd", 4) > 100 * activation
    assert kept("checkpoint", 16) <= 20 * activation


@pytest.mark.parametrize("memory", get_args(MemoryName))
def test_without_gradients_nothing_is_kept(memory: MemoryName) -> None:
    steps, x = steps_of(depth=2), torch.randn(4, CHANNELS, 8, 8)
    with torch.no_grad():
        y, log_det, _ = run_steps(steps, x, memory=memory)  # type: ignore[arg-type]
    assert not y.requires_grad and not log_det.requires_grad


@pytest.mark.parametrize("memory", get_args(MemoryName))
def test_steps_learn_from_images_which_need_no_gradient(memory: MemoryName) -> None:
    steps = steps_of(depth=2)
    passed = run_steps(steps, torch.randn(4, CHANNELS, 8, 8), memory=memory)  # type: ignore[arg-type]
    assert not passed.largest.requires_grad, "the graph of a step would live as long as what is known of its extent"
    (passed.y.sum() + passed.log_det.sum()).backward()
    assert all(parameter.grad is not None and parameter.grad.norm() > 0 for parameter in steps.parameters())


def test_a_parameter_that_changed_in_between_is_an_error() -> None:
    steps, x = steps_of(depth=2), torch.randn(4, CHANNELS, 8, 8, requires_grad=True)
    y, _, _ = run_steps(steps, x, memory="inversion")  # type: ignore[arg-type]
    with torch.no_grad():
        next(steps.parameters()).add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_the_way_back_leaves_no_graph() -> None:
    """So that memory does not grow with depth."""
    step = steps_of(depth=1)[0]
    with torch.enable_grad():
        parts = step.rewound(torch.randn(2, CHANNELS, 4, 4))
        assert len(parts) > 1 and not any(part.x.requires_grad for part in parts)
        assert all(leaf.is_leaf and leaf.requires_grad for part in parts for leaf in part.inputs)
