"""How fast the flow network of vid2vid learns: with and without norms, with label maps compared, and with more or less halved maps.

    python benchmarks/flow_networks.py --data DATA [--steps 600] [--out FILE.md]

DATA is a folder of pictures and class maps, over which a window moves (data.kind pans), or one of clips with true flow (data.kind clips;
moving_digits.py writes such). The network of the recipe vid2vid-maps64 learns the true flow alone, by the mean of |f - f*|, from two label
maps and the true frame before. Printed is its mean end-point error on
held-out windows, by that of a flow of 0, after each hundred steps, and the processor time of a step.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from machine import machine
from torch import Tensor

from triptych.core.batch import Batch, ClipLength
from triptych.data.clips import ClipDataConfig
from triptych.data.images import ImageSet
from triptych.data.loader import Loader, load
from triptych.data.pans import FLOW, PanDataConfig
from triptych.gans.vid2vid import Vid2VidConfig
from triptych.gans.video_networks import FlowNetwork, FlowNetworkConfig
from triptych.recipes.catalogue import load_recipe

BATCH, FRAMES, HELD_OUT, LOOK_EVERY = 4, 3, 48, 100
SEEN = 2
"""Frames that the network sees, the one that is to come included."""
RATE, BETAS = 4e-4, (0.5, 0.999)
HELD_FRAMES = (2, 4, 7)
"""Of held-out windows of nine frames, which turn back in the middle."""


def variants(flow: FlowNetworkConfig) -> dict[str, FlowNetworkConfig]:
    """The networks that are compared."""
    less = replace(flow, num_downsamples=3, num_res_blocks=2)
    published = replace(less, norm="instance", cost_radius=0)
    return {
        "as published": published,
        "without norms": replace(published, norm="none"),
        "maps compared": replace(published, cost_radius=3),
        "both": less,
        "both, halved twice, with four blocks in place of two": replace(flow, num_downsamples=2, num_res_blocks=4),
    }


def moments(clip: Batch, frames: tuple[int, ...], *, classes: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Of frames: label maps and images that the network sees, the true flow, and where that is known."""
    maps = F.one_hot(clip.inputs["labels"].long().clamp(max=classes - 1), classes).movedim(-1, 2).float()
    for t in frames:
        flow = clip.inputs[FLOW][:, t]
        known = flow.isfinite().all(1, keepdim=True)
        first = t + 1 - SEEN
        yield maps[:, first : t + 1].flatten(1, 2), clip.images[:, first:t].flatten(1, 2), flow.nan_to_num(), known.float()


@torch.no_grad()
def error(network: FlowNetwork, images: ImageSet, *, classes: int) -> float:
    """The end-point error, by that of a flow of 0."""
    sums = torch.zeros(2)
    for start in range(0, min(len(images), HELD_OUT), 8):
        clip = load(images, np.arange(start, min(len(images), HELD_OUT, start + 8))).to("cpu")
        for labels, before, true, known in moments(clip, HELD_FRAMES, classes=classes):
            flow, _ = network(labels, before)
            sums += torch.stack([((found - true).square().sum(1, keepdim=True).sqrt() * known).sum() for found in (flow, 0 * flow)])
    return float(sums[0] / sums[1])


def learned(flow: FlowNetworkConfig, data: ClipDataConfig | PanDataConfig, *, steps: int, classes: int) -> tuple[list[float], float]:
    """The errors, and the processor seconds of a step."""
    recipe = load_recipe("vid2vid-maps64").model
    assert isinstance(recipe, Vid2VidConfig)
    held_out = replace(data, length=ClipLength(first=9, most=9)).open().validation
    assert held_out is not None
    torch.manual_seed(0)
    config = replace(recipe.generator, flow=flow, frames=SEEN)
    network = FlowNetwork(config, label_channels=SEEN * classes, image_channels=3 * (SEEN - 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE, betas=BETAS)
    errors, seconds = list[float](), 0.0
    loader = Loader(data.open().train, batch_size=BATCH, seed=0, workers=0)
    for step, batch in zip(range(steps), loader.batches(0), strict=False):
        start = time.process_time()
        for labels, before, true, known in moments(batch.to("cpu"), (FRAMES - 1,), classes=classes):
            found, _ = network(labels, before)
            optimizer.zero_grad()
            ((found - true).abs() * known).mean().backward()
            optimizer.step()
        seconds += time.process_time() - start
        if (step + 1) % LOOK_EVERY == 0:
            network.eval()
            errors.append(error(network, held_out, classes=classes))
            network.train()
    return errors, seconds / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with images/ and labels/, or with train/ and val/ of such")
    parser.add_argument("--classes", type=int, default=12, help="of the maps")
    parser.add_argument("--margin", type=int, default=24, help="how far the window moves")
    parser.add_argument("--steps", type=int, default=600, help="of training, each on four windows")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    recipe = load_recipe("wc-vid2vid-pans64")
    flow = load_recipe("vid2vid-maps64").model
    assert isinstance(recipe.data, PanDataConfig) and isinstance(flow, Vid2VidConfig)
    given = {"path": options.data, "num_classes": (options.classes,), "workers": 0, "length": ClipLength(first=FRAMES, most=FRAMES)}
    if (Path(options.data) / "train" / "flow").is_dir():
        data: ClipDataConfig | PanDataConfig = ClipDataConfig(maps=("labels",), image_size=64, flow="flow", flip=False, **given)
    else:
        data = replace(recipe.data, margin=options.margin, **given)
    looks = range(LOOK_EVERY, options.steps + 1, LOOK_EVERY)
    lines = [f"# Flow networks, {datetime.date.today()}", "", f"{machine()}. `benchmarks/flow_networks.py`.", ""]
    lines += [f"| network | {' | '.join(f'{look:,} steps' for look in looks)} | seconds a step |", "|---" * (len(looks) + 2) + "|"]
    for name, network in variants(flow.generator.flow).items():
        errors, seconds = learned(network, data, steps=options.steps, classes=options.classes)
        lines.append(f"| {name} | {' | '.join(f'{value:.2f}' for value in errors)} | {seconds:.3f} |")
        print(lines[-1], flush=True)
    lines += ["", "Mean end-point error on held-out windows, by that of a flow of 0."]
    print("\n".join(lines))
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
