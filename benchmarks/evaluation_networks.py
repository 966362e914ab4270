"""How many images a second the networks of evaluation look at, in channels_last and in PyTorch's plain order of memory.

    python benchmarks/evaluation_networks.py --out benchmarks/results/evaluation_networks-DATE.md

Batches are those of evaluation, 32 images of 32x32 pixels, whose resize counts; weights are random, which changes no time. The two orders
take turns. Where others use the machine, images in a second of processor time say more; with --threads 1 that is what a core does.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import time
from pathlib import Path

import torch
from machine import machine

from triptych.evaluation.feature_space import SPACES, required_tensors
from triptych.nn.frozen import FrozenNetwork
from triptych.nn.small_networks import random_weights

ORDERS = {"channels_last": torch.channels_last, "plain": torch.contiguous_format}
SPACE, TARGET, CORES = "inception", 10.0, 2  # images a second
BATCH = 32


def opened(name: str) -> FrozenNetwork:
    """The network of a space, with random weights."""
    shapes = required_tensors(name)
    drawn = {key: tensor.abs() if key.endswith("running_var") else tensor for key, tensor in random_weights(shapes).items()}
    network = FrozenNetwork(SPACES[name].run, SPACES[name].outputs)
    network.take_tensors(drawn, shapes, source=name)
    return network


@torch.no_grad()
def timed(name: str, network: FrozenNetwork, order: torch.memory_format) -> tuple[float, float]:
    """Images a second of a batch, by the clock and by the processor's time."""
    for key, tensor in list(network.named_buffers()):
        if tensor.ndim == 4:
            network.register_buffer(key, tensor.contiguous(memory_format=order), persistent=False)
    images = torch.randint(0, 256, (BATCH, 32, 32, 3), dtype=torch.uint8)
    start, processor = time.perf_counter(), time.process_time()
    network.found(SPACES[name].pixels.prepared(images, network.get_buffer("place")).contiguous(memory_format=order))
    return BATCH / (time.perf_counter() - start), BATCH / (time.process_time() - processor)


def main() -> int:
    """Measures, prints the table, and gives 1 where the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="batches in each order, after one that does not count")
    parser.add_argument("--threads", type=int, default=CORES)
    parser.add_argument("--spaces", nargs="+", default=[name for name in SPACES if name != "dinov2-vitl14"], choices=list(SPACES))
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows, reached = [], True
    for name in options.spaces:
        network = opened(name)
        found: dict[str, list[tuple[float, float]]] = {order: [] for order in ORDERS}
        for _ in range(options.rounds + 1):
            for order, layout in ORDERS.items():
                found[order].append(timed(name, network, layout))
        figures = {order: [statistics.median(part[kind] for part in parts[1:]) for kind in (0, 1)] for order, parts in found.items()}
        rows.append(f"| {name} | " + " | ".join(f"{value:.1f}" for order in ORDERS for value in figures[order]) + " |")
        print(rows[-1], flush=True)
        if name == SPACE:
            # With one thread, what each core does; processors that wait for one another count as busy.
            reached = max(figures["channels_last"][0], CORES / options.threads * figures["channels_last"][1]) >= TARGET
    report = [
        f"# Networks of evaluation, {datetime.date.today().isoformat()}",
        "",
        f"{machine()}. Load of the machine: {os.getloadavg()[0]:.1f}.",
        f"Medians of {options.rounds} batches of {BATCH} images of 32x32 pixels, float32, by the clock and in a second of processor time.",
        "",
        "| space | channels_last, images/s | of processor time | plain, images/s | of processor time |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"Target: {SPACE} {TARGET:g} images/s on {CORES} cores: {'reached' if reached else 'missed'}.",
    ]
    print("\n".join(report))
    if options.out is not None:
        options.out.write_text("\n".join(report) + "\n", encoding="utf-8")
    return 0 if reached else 1


if __name__ == "__main__":
    raise SystemExit(main())
