"""What `triptych plan --processes` computes beside runs of 1 to 8 processes on this machine, and tables of large runs.

    python benchmarks/scaling.py [--processes 2 4 8] [--steps 3] [--computed] --out FILE.md

- The network of adm-imagenet256 with 32 channels, images of 64 pixels, in batches of 4, or of 8 where there are 8 processes, of one thread
  each: one process alone with the share of the batch that each has, then DDP, full and hybrid (groups of 2). Of each the bytes that a
  process sent in a step (counted at the collective operations), the bytes that it keeps, its peak of memory and the time of a step,
  beside what is computed from the process alone and from gloo's bandwidth, which is measured first.
- `--computed`: nothing is trained, and the tables of docs/scaling.md are printed.

Exit code 1 where bytes sent or kept differ from the computed ones. Times are reported, and not judged.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from machine import machine
from sharding import ROOT, made, narrowed

sys.path.insert(0, str(ROOT))

from tests.processes import run_together
from tests.runs.scaling_worker import Traffic

from triptych.core.batch import DataSpec
from triptych.core.memory import forget_peak, in_bytes, peak_memory, resident_memory
from triptych.core.model import Model
from triptych.core.outline import without_weights
from triptych.engine.distributed import open_world
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig
from triptych.runs.operations import Operations
from triptych.runs.scaling import Machines, Scaled, State, collectives, scaled

KINDS = {"DDP": "none", "full": "full", "hybrid": "hybrid"}


def send(folder: Path, sizes: tuple[int, ...]) -> None:
    """Writes the seconds of an all-reduce and of an all-gather of so many bytes, medians."""
    world = open_world("cpu")
    found: dict[str, dict[int, float]] = {"all_reduce": {}, "all_gather": {}}
    for size in sizes:
        whole = torch.ones(size // 4)
        part = torch.ones(size // 4 // world.size)
        for name, operation in (
            ("all_reduce", lambda whole=whole: dist.all_reduce(whole)),
            ("all_gather", lambda whole=whole, part=part: dist.all_gather_into_tensor(whole, part)),
        ):
            times = []
            for _ in range(7):
                dist.barrier()
                began = time.perf_counter()
                operation()
                times.append(time.perf_counter() - began)
            found[name][size] = statistics.median(times)
    if world.is_main:
        (folder / f"send-{world.size}.json").write_text(json.dumps(found))


def train(folder: Path, case: str, shard: str, batch: int, steps: int) -> None:
    """Writes what this process sent in a step, what it keeps, its peak of memory, and the seconds of each step."""
    torch.set_num_threads(1)
    world = open_world("cpu")
    start = resident_memory()
    loop, iterations = made(configured(shard, batch), narrowed()[1], world)
    loop.measurements.sum_over_processes = lambda values: values
    next(iterations)
    with Traffic() as traffic:
        next(iterations)
    forget_peak()
    times = []
    for _ in range(steps):
        if world.size > 1:
            dist.barrier()
        began = time.perf_counter()
        next(iterations)
        times.append(time.perf_counter() - began)
    weights = [parameter for updater in loop.updaters.values() for parameter in updater.parameters.values()]
    state = [value for updater in loop.updaters.values() for each in updater.optimizer.state.values() for value in each.values()]
    averages = [tensor for average in loop.averages for tensor in average.tensors.values()]
    found = {
        "sent": traffic.sent,
        "weights": sum(tensor.nbytes for tensor in weights),
        "optimizer": sum(value.nbytes for value in state),
        "averages": sum(tensor.nbytes for tensor in averages),
        "start": start,
        "peak": peak_memory(),
        "seconds": times,
    }
    (folder / f"{case}-{world.rank}.json").write_text(json.dumps(found))


def configured(shard: str, batch: int) -> RunConfig:
    """The narrowed run."""
    config, _ = narrowed()
    size = 2 if shard == "hybrid" else None
    settings = {"shard": shard, "shard_size": size, "batch_size": batch, "ema_rates": (0.9999,)}
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **settings))


def bandwidth(told: dict[str, dict[str, float]], processes: int) -> tuple[float, float]:
    """Bytes a second of a process in a ring, and seconds of a message: of all-reduces, the smallest and the largest that were timed."""
    small, large = (min(map(int, told["all_reduce"])), max(map(int, told["all_reduce"])))
    latency = told["all_reduce"][str(small)] / (2 * (processes - 1))
    sent = 2 * (processes - 1) / processes * large
    return sent / (told["all_reduce"][str(large)] - told["all_reduce"][str(small)]), latency


def outlined(config: RunConfig, spec: DataSpec) -> Model:
    with without_weights():
        return config.model.build(spec)


def measured(folder: Path, counts: tuple[int, ...], steps: int, cores: int) -> tuple[list[str], bool]:
    """The lines of the report, and whether the bytes are those that were computed."""
    lines, right, batch = [], True, max(4, *counts)
    rates: dict[int, tuple[float, float]] = {}
    lines += ["gloo on this machine, beside what else it did:", ""]
    lines += ["| processes | all-reduce of 32 MiB: GB/s that a process sends | all-gather of 32 MiB | a message |", "|---|---|---|---|"]
    for count in counts:
        run_together(count, send, folder, (4096, 2**25), timeout_seconds=600)
        told = json.loads((folder / f"send-{count}.json").read_text())
        rates[count] = bandwidth(told, count)
        gathered = (count - 1) / count * 2**25 / told["all_gather"][str(2**25)]
        lines.append(f"| {count} | {rates[count][0] / 1e9:.2f} | {gathered / 1e9:.2f} | {1e6 * rates[count][1]:.0f} us |")
    alone: dict[int, dict[str, Any]] = {}
    for count in counts:
        run_together(1, train, folder, f"alone-{count}", "none", batch // count, steps, timeout_seconds=3600)
        alone[count] = json.loads((folder / f"alone-{count}-0.json").read_text())
    steps_alone = ", ".join(f"{told_seconds(alone[count]):.2f} s a step of {batch // count}" for count in alone)
    lines += ["", f"One process alone, one thread: {steps_alone}.", ""]
    pairs = (("sent", "counted"), ("kept", "counted"), ("peak", "measured"), ("a step", "measured"))
    lines += [f"| | {' | '.join(f'{what}, computed | {how}' for what, how in pairs)} |"]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    for count in counts:
        for kind, shard in KINDS.items():
            if shard == "hybrid" and count == 2:
                continue
            config = configured(shard, batch)
            machines = Machines(count, count, within=rates[count][0], between=1.0, latency=rates[count][1], sharing=max(1, count // cores))
            one = alone[count]
            state = State(one["weights"], one["weights"], one["optimizer"], one["averages"])
            model = outlined(config, narrowed()[1])
            plan = scaled(model, config.train, machines, turns={"denoise": 1.0}, seconds=told_seconds(one), state=state)
            case = f"{kind}-{count}"
            run_together(count, train, folder, case, shard, batch, steps, timeout_seconds=3600)
            told = [json.loads((folder / f"{case}-{rank}.json").read_text()) for rank in range(count)]
            found = collectives(model, config.train, machines, {"denoise": 1.0})
            expected: dict[str, float] = {}
            for each in found:
                expected[each.kind] = expected.get(each.kind, 0.0) + each.sent
            right &= all(abs(rank["sent"].get(kind, 0) - size) <= 1 for rank in told for kind, size in expected.items())
            right &= all(rank["sent"].keys() == expected.keys() for rank in told)
            kept = max(rank["weights"] + rank["optimizer"] + rank["averages"] for rank in told)
            planned = plan.state_bytes * (1 - one["weights"] / state.total)  # the gradients are gone after a step
            right &= abs(kept / planned - 1) < 0.01
            peak = max(one["peak"] - plan.saved_bytes, one["start"] + plan.least_bytes)
            cells = [
                f"{kind}, {count} processes",
                f"{plan.sent_bytes / 1e6:.3f} MB",
                f"{sum(told[0]['sent'].values()) / 1e6:.3f} MB",
                f"{planned / 1e6:.1f} MB",
                f"{kept / 1e6:.1f} MB",
                f"{peak / 1e6:.0f} MB",
                f"{max(rank['peak'] for rank in told) / 1e6:.0f} MB",
                f"{plan.least_seconds:.2f} to {plan.seconds:.2f} s" if plan.hidden_seconds else f"{plan.seconds:.2f} s",
                f"{told_seconds(told[0]):.2f} s",
            ]
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], file=sys.stderr, flush=True)
    return lines, right


GPU = 150e12
"""Operations a second in bf16 that a GPU is taken to reach: between what an A100 and an H100 are said to have at their best."""
HEADS = (
    *("processes", "weights", "state", "for a moment", "each sends", "leaves a machine"),
    *("computing", "sending", "a step", "computing of it"),
)
LARGE = {"adm-imagenet256": (256, 3), "adm-imagenet512": (512, 3), "dit-xl-2": (32, 4), "edm2-img512-xl": (64, 4)}


def computed() -> Iterator[str]:
    """Tables of large recipes on machines of 8 GPUs, with 300 GB/s within a machine and 25 GB/s between two."""
    for name, (size, channels) in LARGE.items():
        config = load_recipe(name)
        train = dataclasses.replace(config.train, out_of_memory="stop")
        model = outlined(config, DataSpec(image_size=size, channels=channels, num_classes=1000))
        weights = sum(parameter.nbytes for parameter in model.parameters())
        state = State(weights, weights, 2 * weights, len(train.all_averages) * weights)
        operations = 3 * forward_operations(model, size, channels)
        batch = f"batch {train.batch_size}, microbatch {train.microbatch or 'as large as can be'}"
        yield f"{name}: {weights / 4e6:.0f}M parameters, {operations / 1e12:.2f} TFLOP of training on an image, {batch}."
        yield ""
        yield f"| {' | '.join(HEADS)} |"
        yield f"|{'---|' * len(HEADS)}"
        for processes in (8, 64, 256):
            machines = Machines(processes, 8, within=300e9, between=25e9, latency=1e-5)
            for kind, shard in KINDS.items():
                if (shard == "hybrid" and processes == 8) or (shard != "none" and model.gathers == "never"):
                    continue
                chosen = dataclasses.replace(train, shard=shard)
                images = -(-train.batch_size // processes)
                found = scaled(model, chosen, machines, turns={"denoise": 1.0}, seconds=images * operations / GPU, state=state)
                yield row(processes, kind, found)
        yield ""


def row(processes: int, kind: str, found: Scaled) -> str:
    cells = [
        str(processes),
        kind,
        *(in_bytes(size) for size in (found.state_bytes, found.gathered_bytes, found.sent_bytes, found.left_bytes)),
        f"{found.compute_seconds:.3f} s",
        f"{found.exchange_seconds:.3f} s",
        f"{found.least_seconds:.3f} to {found.seconds:.3f} s",
        f"{100 * found.compute_seconds / found.seconds:.0f} to {100 * found.compute_seconds / found.least_seconds:.0f} %",
    ]
    return f"| {' | '.join(cells)} |"


def forward_operations(model: Any, size: int, channels: int) -> int:
    """Operations of the network on an image, counted by shapes alone."""
    model.eval()
    with torch.device("meta"), torch.no_grad(), patch("torch.autocast", lambda *_, **__: nullcontext()), Operations() as counted:
        model.network(torch.empty(1, channels, size, size), torch.empty(1), torch.empty(1, dtype=torch.long))
    return counted.count


def told_seconds(told: dict[str, Any]) -> float:
    """Of a step, the median."""
    return statistics.median(told["seconds"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", choices=(2, 4, 8), default=(2, 4, 8))
    parser.add_argument("--steps", type=int, default=3, help="timed steps")
    parser.add_argument("--cores", type=int, default=2, help="of this machine, which the processes share")
    parser.add_argument("--computed", action="store_true", help="print the tables of large runs, and train nothing")
    parser.add_argument("--note", default="", help="a line about the machine at that time")
    parser.add_argument("--out", type=Path, help="write the report to this file too")
    options = parser.parse_args()
    if options.computed:
        lines, right = list(computed()), True
    else:
        lines = [f"# Runs of several processes beside their plan, {datetime.datetime.now(datetime.UTC).date()}", "", machine(), ""]
        lines += [options.note, ""] if options.note else []
        with tempfile.TemporaryDirectory() as temporary:
            more, right = measured(Path(temporary), tuple(options.processes), options.steps, options.cores)
        lines += more
    report = "\n".join(lines) + "\n"
    print(report)
    if options.out is not None:
        options.out.write_text(report, encoding="utf-8")
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
