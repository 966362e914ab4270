"""What several processes do: batch norm over all of them and sums over them, each with a share of its own."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from triptych.engine.distributed import open_world
from triptych.nn.batch_norm import BatchNorm1d, BatchNorm2d, frozen_statistics
from triptych.nn.collectives import gathered, summed, world_size

SHARES = (slice(0, 5), slice(5, 7))
"""Of the 7 samples, by process."""

CASES = {
    "plain": {},
    "not affine": {"affine": False},
    "momentum None": {"momentum": None},
    "frozen": {"frozen": True},
    "far from zero": {"offset": 1000.0},
    "bf16": {"dtype": torch.bfloat16},
    "vectors": {"vectors": True},
    "own batches": {"synced": False},
}
STEPS = 2


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def made(layers: tuple[type, type], *, vectors: bool = False, affine: bool = True, momentum: float | None = 0.1, **extra: bool):
    """A batch norm of 3 channels, of the class for vectors or for maps, with parameters that are not the initial ones."""
    layer = layers[0 if vectors else 1](3, affine=affine, **extra)
    layer.momentum = momentum
    if affine:
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
            layer.bias.copy_(torch.tensor([-1.0, 0.0, 1.0]))
    return layer


def inputs(*, vectors: bool = False, offset: float = 0.0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """7 samples, and what their outputs are multiplied by in a loss."""
    shape = (7, 3) if vectors else (7, 3, 4, 2)
    scale = torch.arange(1.0, 8.0).view(-1, *[1] * (len(shape) - 1))  # the processes' means and variances differ
    return (scale * numbers(*shape) + offset).to(dtype), numbers(*shape, seed=1)


def passed(layer, x: Tensor, target: Tensor, *, frozen: bool = False) -> dict[str, Tensor]:
    """Some training steps' worth of forward and backward passes: what came of the last one, and the running statistics."""
    x = x.clone().requires_grad_()
    for _ in range(STEPS):
        layer.zero_grad()
        x.grad = None
        if frozen:
            with frozen_statistics(layer):
                out = layer(x)
        else:
            out = layer(x)
        (out.float().square() * target).sum().backward()
    found = {"output": out.detach(), "input gradient": x.grad}
    found |= {f"gradient of {name}": parameter.grad for name, parameter in layer.named_parameters()}
    return found | {name: buffer.clone() for name, buffer in layer.named_buffers()}


def settings_of(case: str) -> tuple[dict, dict, dict]:
    """Of the layer, of the inputs, of the passes."""
    given = CASES[case]
    sorts = (("vectors", "affine", "momentum"), ("vectors", "offset", "dtype"), ("frozen",))
    return tuple({name: given[name] for name in sort if name in given} for sort in sorts)  # type: ignore[return-value]


def main(folder: Path) -> None:
    world = open_world("cpu")
    share = SHARES[world.rank]
    found: dict[str, object] = {"world": world_size()}
    for case in CASES:
        layer_settings, input_settings, pass_settings = settings_of(case)
        x, target = inputs(**input_settings)
        layer = made((BatchNorm1d, BatchNorm2d), synced=CASES[case].get("synced", True), **layer_settings)
        found[case] = passed(layer, x[share], target[share], **pass_settings)
        layer.eval()
        found[f"{case}, evaluation"] = layer(x[share])
    found["gathered"] = [gathered(numbers(7).requires_grad_()[share]), gathered(torch.arange(7)[share])]
    found["none of one"] = gathered(torch.arange(3.0)[: 3 * world.rank])
    x = numbers(3, seed=world.rank).requires_grad_()
    total = summed(x)
    ((world.rank + 1) * total.square()).sum().backward()
    found["summed"] = [total.detach(), x.grad]
    turned = numbers(4, 3).t().requires_grad_()
    summed(turned).sum().backward()
    found["turned"] = turned.grad
    torch.save(found, folder / f"{world.rank}.pt")
