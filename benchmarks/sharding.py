"""Models divided between processes (train.shard) beside DDP and one process: gradients, weights, memory, steps a second.

    python benchmarks/sharding.py --out FILE.md

- One recipe of each family with its smallest networks, in float64: the largest relative difference of a gradient of the first
  iteration, and of a weight after 20, from those of one process, under DDP and FSDP with 2 and 4 processes and on a mesh of 2 x 2.
- The bytes of weights, gradients, optimizer's state and average in each of 4 processes, as a share of one process's, for the network of
  adm-imagenet256 narrowed: the most that was there at the beginning or end of a block's forward pass, or when its backward pass began.
  What is there for a moment within a backward pass (the weights of two blocks, a block's gradient, messages) is not counted.
- Steps a second of 2 processes with a thread each, and of 1 process with 2 threads.

Exit code 1 where a difference is above 1e-5, or the share above 0.30.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from machine import machine

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.contract.shrink import shrunk
from tests.float64 import in_float64
from tests.processes import run_together

from triptych.core.batch import DataSpec, RawBatch
from triptych.core.model import seeded_build
from triptych.engine.callables import Callables
from triptych.engine.distributed import World, open_world
from triptych.engine.loop import Loop
from triptych.engine.run_directory import RunDirectory
from triptych.engine.updater import Updater
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig

RECIPES = ("adm-digits", "glow-digits", "stylegan2-digits")
KINDS = {
    "DDP, 2 processes": (2, "none"),
    "FSDP, 2 processes": (2, "full"),
    "DDP, 4 processes": (4, "none"),
    "FSDP, 4 processes": (4, "full"),
    "hybrid, 2 x 2 processes": (4, "hybrid"),
}
BATCH, ITERATIONS, LARGEST_DIFFERENCE, LARGEST_SHARE = 8, 20, 1e-5, 0.30


def configured(name: str, shard: str, **changes: Any) -> RunConfig:
    recipe = shrunk(name)
    size = 2 if shard == "hybrid" else None
    given = {
        "batch_size": BATCH,
        "total_images": 10**6,
        "precision": "float32",
        "microbatch": None,
        "ema_rates": (0.999,),
        "ema_lengths": (),
    }
    train = dataclasses.replace(recipe.train, **given, averages=(), snapshot_every=None, evaluate_every=None, shard=shard, shard_size=size)
    optim = dataclasses.replace(recipe.optim, warmup_images=0, warmup_share=None)
    return dataclasses.replace(recipe, train=train, optim=optim, **changes)


def made(config: RunConfig, spec: DataSpec, world: World, directory: RunDirectory | None = None) -> tuple[Loop, Any]:
    """A loop, and its iterations on images of noise."""
    model = seeded_build(config.model, spec, seed=0)
    with torch.no_grad():  # what begins at 0 would have gradients of 0
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number), dtype=parameter.dtype)
    loop = Loop(
        model,
        train=config.train,
        optim=config.optim,
        log=config.log,
        world=world,
        directory=directory or RunDirectory(Path("unused")),
        callables=Callables(draw=lambda start: iter(()), validate=None),
        reporting=None,
    )
    share = config.train.batch_size // world.size

    def batches() -> Any:
        for number in range(10**6):
            generator = torch.Generator().manual_seed(number)
            shape = (config.train.batch_size, spec.image_size, spec.image_size, spec.channels)
            images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
            labels = torch.randint(0, spec.num_classes or 1, (len(images),), generator=generator)
            own = slice(world.rank * share, (world.rank + 1) * share)
            index = torch.arange(number * len(images), (number + 1) * len(images))
            yield RawBatch(images[own], labels[own] if spec.num_classes else None, index[own])

    return loop, loop.iterations(batches())


def whole(loop: Loop) -> dict[str, torch.Tensor]:
    """The weights, all of them."""
    with nullcontext() if loop.sharding is None else loop.sharding.gathered():
        return {name: weight.detach().clone() for name, weight in loop.model.named_parameters()}


@in_float64()
def trained(folder: Path, shards: dict[str, str]) -> None:
    """Trains each recipe; the main process writes the gradients of the first iteration and the weights at the end."""
    world = open_world("cpu")
    for kind, shard in shards.items():
        for name in RECIPES:
            gradients: list[dict[str, torch.Tensor]] = []
            config = configured(name, shard)
            loop, iterations = made(config, config.data.open().spec, world)
            apply = Updater._apply

            def kept(updater: Updater, settings: Any, apply: Any = apply, loop: Loop = loop, gradients: Any = gradients) -> torch.Tensor:
                if loop.images_seen == 0:
                    own = {name: p.grad.clone() for name, p in updater.parameters.items() if p.grad is not None}
                    joined = own if loop.sharding is None else {name: loop.sharding.joined(name, grad) for name, grad in own.items()}
                    gradients.append({name: getattr(grad, "full_tensor", lambda grad=grad: grad)() for name, grad in joined.items()})
                return apply(updater, settings)

            Updater._apply = kept  # type: ignore[method-assign]
            for _ in range(ITERATIONS):
                next(iterations)
            Updater._apply = apply  # type: ignore[method-assign]
            weights = whole(loop)
            if world.is_main:
                torch.save({"gradients": gradients, "weights": weights}, folder / f"{kind}-{name}.pt")


def narrowed() -> tuple[RunConfig, DataSpec]:
    """adm-imagenet256 with 32 channels in place of 256 and heads of 32, on images of 64 pixels; the rest is as published."""
    recipe = configured("adm-imagenet256", "none")
    published: Any = load_recipe("adm-imagenet256").model
    network = dataclasses.replace(published.network, num_channels=32, num_head_channels=32)
    return dataclasses.replace(recipe, model=dataclasses.replace(published, network=network)), DataSpec(
        image_size=64, channels=3, num_classes=1000
    )


def measured(folder: Path, shard: str, steps: int) -> None:
    """Writes the most bytes that this process had, and the seconds of a step."""
    world = open_world("cpu")
    config, spec = narrowed()
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, shard=shard, batch_size=4, ema_rates=(0.9999,)))
    loop, iterations = made(config, spec, world)
    most = 0

    def look(*_: Any) -> None:
        nonlocal most
        present = [*loop.model.parameters(), *(p for updater in loop.updaters.values() for p in updater.parameters.values())]
        tensors = [tensor for p in present for tensor in (p, p.grad) if tensor is not None]
        tensors += [value for updater in loop.updaters.values() for state in updater.optimizer.state.values() for value in state.values()]
        tensors += [tensor for average in loop.averages for tensor in average.tensors.values()]
        storages = {}
        for tensor in tensors:
            storage = (tensor.to_local() if hasattr(tensor, "to_local") else tensor).untyped_storage()
            storages[storage.data_ptr()] = storage.size()
        most = max(most, sum(storages.values()))

    for module in loop.model.modules():
        if type(module).__name__.removeprefix("FSDP") in ("Stage", "UNet"):
            module.register_forward_pre_hook(look)
            module.register_forward_hook(look)
            module.register_full_backward_pre_hook(look)
    next(iterations)
    next(iterations)
    look()
    for module in loop.model.modules():
        module._forward_pre_hooks = type(module._forward_pre_hooks)((k, h) for k, h in module._forward_pre_hooks.items() if h is not look)
        module._forward_hooks = type(module._forward_hooks)((k, h) for k, h in module._forward_hooks.items() if h is not look)
        module._backward_pre_hooks.clear()
    began = time.perf_counter()
    for _ in range(steps):
        next(iterations)
    seconds = (time.perf_counter() - began) / max(steps, 1)
    (folder / f"{shard}-{world.size}-{world.rank}.json").write_text(json.dumps({"bytes": most, "seconds": seconds}))


def alone(folder: Path, steps: int) -> None:
    torch.set_num_threads(2)
    measured(folder, "none", steps)


def difference(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest difference of a tensor, relative to its norm; rounding of what is all but 0 does not count."""
    scale = max(float(tensor.norm()) for tensor in expected.values())
    return max(float((found[name] - tensor).norm()) / (float(tensor.norm()) + 1e-9 * scale) for name, tensor in expected.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3, help="timed steps")
    parser.add_argument("--out", type=Path, help="write the report to this file too")
    options = parser.parse_args()
    missed = False
    lines = [f"# Models divided between processes, {datetime.datetime.now(datetime.UTC).date()}", "", machine(), ""]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run_together(1, trained, folder, {"one": "none"}, timeout_seconds=3600)
        for processes in (2, 4):
            shards = {kind: shard for kind, (count, shard) in KINDS.items() if count == processes}
            run_together(processes, trained, folder, shards, timeout_seconds=3600)
        lines += [
            f"Differences from one process in float64, batches of {BATCH}: of a gradient, and of a weight after {ITERATIONS} iterations.",
            "",
        ]
        lines += [f"| | {' | '.join(RECIPES)} |", f"|---{'|---' * len(RECIPES)}|"]
        for kind in KINDS:
            cells = []
            for name in RECIPES:
                one, other = (torch.load(folder / f"{each}-{name}.pt") for each in ("one", kind))
                gradient = max(difference(*pair) for pair in zip(other["gradients"], one["gradients"], strict=True))
                weight = difference(other["weights"], one["weights"])
                missed |= max(gradient, weight) > LARGEST_DIFFERENCE
                cells.append(f"{gradient:.0e}, {weight:.0e}")
            lines.append(f"| {kind} | {' | '.join(cells)} |")
        run_together(1, alone, folder, options.steps, timeout_seconds=3600)
        for shard in ("none", "full"):
            run_together(2, measured, folder, shard, options.steps, timeout_seconds=3600)
        run_together(4, measured, folder, "full", 0, timeout_seconds=3600)
        found = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    one = found["none-1-0"]
    shares = [found[f"full-4-{rank}"]["bytes"] / one["bytes"] for rank in range(4)]
    missed |= max(shares) > LARGEST_SHARE
    lines += ["", "The network of adm-imagenet256 with 32 channels, images of 64 pixels, batches of 4, float32.", ""]
    lines += ["| | bytes of weights, gradients, optimizer and average | steps/s |", "|---|---|---|"]
    lines.append(f"| 1 process, 2 threads | {one['bytes'] / 2**20:.1f} MiB | {1 / one['seconds']:.2f} |")
    for shard in ("none", "full"):
        told = found[f"{shard}-2-0"]
        which = "DDP" if shard == "none" else "FSDP"
        lines.append(f"| {which}, 2 processes of 1 thread | {told['bytes'] / 2**20:.1f} MiB in each | {1 / told['seconds']:.2f} |")
    lines.append(f"| FSDP, 4 processes | {', '.join(f'{share:.3f}' for share in shares)} of one process's (at most {LARGEST_SHARE}) | |")
    report = "\n".join(lines) + "\n"
    print(report)
    if options.out is not None:
        options.out.write_text(report, encoding="utf-8")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
