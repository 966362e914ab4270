"""How far RAFT's flow is from torchvision's, of the same random weights and images, in float64.

    python benchmarks/raft.py --out benchmarks/results/raft-DATE.md

torchvision is no dependency of Triptych; where it is not beside this environment's PyTorch, --site names a folder that has it (pip install
--no-deps --target FOLDER torchvision). --golden FILE.json also writes what tests/nn/test_raft.py compares with.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import sys
import time
from pathlib import Path
from typing import Any, cast

import torch
from machine import machine
from torch import Tensor

from triptych.core.rng import Rng
from triptych.nn.raft import Raft, RaftName
from triptych.nn.small_networks import random_weights

NETWORKS: tuple[RaftName, ...] = ("raft_large", "raft_small")
SIZES = ((128, 128), (136, 152))
TARGET = 1e-6  # pixels
GOLDEN_UPDATES, GOLDEN_STEP = 2, 13


def weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Weights by the tensors' names."""
    drawn = random_weights(shapes)
    return {name: (tensor.abs() + 0.5 if name.endswith("running_var") else tensor).double() for name, tensor in drawn.items()}


def images(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Two images of noise, (1, 3, h, w) in [-1, 1]."""
    drawn = Rng(0, ("raft",), torch.zeros(1, dtype=torch.int64))
    first, second = (drawn.normal(name, 3, height, width).double().clamp(-1, 1) for name in ("first", "second"))
    return first, second


def torchvisions(site: Path | None) -> Any:
    """torchvision's module of RAFT. Its wheels from PyPI bring operators that a PyTorch for CPUs cannot load; RAFT needs none of them."""
    if site is not None:
        sys.path.append(str(site))
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # pyright: ignore[reportMissingImports]
    from torchvision.models.optical_flow import raft  # pyright: ignore[reportMissingImports]

    grid = raft.make_coords_grid
    raft.make_coords_grid = lambda *given, **named: grid(*given, **named).double()  # it makes float32 of every type
    return raft, torchvision.__version__


@torch.no_grad()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=Path, help="folder with torchvision")
    parser.add_argument("--golden", type=Path, help="write recorded values to this file")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    module, version = torchvisions(options.site)
    rows, worst, golden = [], 0.0, dict[str, Any]()
    for name in NETWORKS:
        theirs = getattr(module, name)().eval()
        shapes = {key: tuple(tensor.shape) for key, tensor in theirs.state_dict().items()}
        state = weights({key: shape for key, shape in shapes.items() if not key.endswith("num_batches_tracked")})
        theirs.load_state_dict(state, strict=False)
        ours = Raft(name).double()
        ours.load(state)
        parameters = sum(math.prod(shapes[key]) for key, _ in theirs.named_parameters())
        for size in SIZES:
            pair, spent = images(*size), []
            for network in (theirs, ours):
                started = time.process_time()
                found = network(*pair)
                spent.append((cast(Tensor, found[-1] if network is theirs else found), time.process_time() - started))
            (expected, their_time), (flow, our_time) = spent
            apart = float((flow - expected).abs().max())
            worst = max(worst, apart)
            largest = float(expected.abs().max())
            rows.append(
                f"| {name} | {len(shapes)} | {parameters:,} | {size[0]}x{size[1]} | {largest:.2f} | {apart:.1e} "
                f"| {our_time:.1f} | {their_time:.1f} |"
            )
            print(rows[-1], flush=True)
        recorded = theirs(*images(*SIZES[0]), num_flow_updates=GOLDEN_UPDATES)[-1][0, :, ::GOLDEN_STEP, ::GOLDEN_STEP]
        golden[name] = {"shapes": shapes, "flow": [round(value, 9) for value in recorded.flatten().tolist()]}
    report = [
        f"# RAFT beside torchvision {version}, {datetime.date.today().isoformat()}",
        "",
        f"{machine()}.",
        "The same random weights in both, float64, 12 updates, a pair of images of noise. Seconds are of processor time, one pass each.",
        "",
        "| network | tensors | parameters | size | largest flow, pixels | largest difference, pixels | s | torchvision, s |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"Target: at most {TARGET:g} pixels: {'reached' if worst <= TARGET else 'missed'}.",
    ]
    print("\n".join(report))
    if options.golden is not None:
        options.golden.write_text(json.dumps(golden) + "\n", encoding="utf-8")
    if options.out is not None:
        options.out.write_text("\n".join(report) + "\n", encoding="utf-8")
    return 0 if worst <= TARGET else 1


if __name__ == "__main__":
    raise SystemExit(main())
