"""How far the flow of each of vid2vid's teachers is from the true one, on photos that were moved.

    python benchmarks/flow_teachers.py PHOTOS ... --out benchmarks/results/flow_teachers-DATE.md [--raft FILE]

Both images of a pair are looked up in the photo at places of the scene, four to a pixel, whose mean the pixel is: the source where
nothing moved, the target where a pan or an affine move puts them, so that the flow is known exactly. Its error is measured where the true
flow leads to a place inside the source. DIS needs OpenCV (triptych[flow]), RAFT a file of weights; without them their rows are left out.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from machine import machine
from PIL import Image
from torch import Tensor

from triptych.core.weight_files import read_weights
from triptych.gans.flow import confidence
from triptych.gans.inverse_search import inverse_search
from triptych.gans.lucas_kanade import lucas_kanade
from triptych.nn.raft import Raft

Move = tuple[float, float, float, float]
"""To the right and down, in pixels; degrees; enlargement."""
MOVES: dict[str, Sequence[Move]] = {
    "whole pixels, up to 3": [(2, 1, 0, 1), (-3, 0, 0, 1), (1, -2, 0, 1)],
    "parts of pixels, up to 4": [(0.5, 0.25, 0, 1), (-2.3, 1.6, 0, 1), (3.4, -1.7, 0, 1)],
    "affine": [(0.6, -0.4, 3, 1), (-1.2, 0.8, 0, 1.05), (0.5, 1.5, -2, 0.96)],
}
SIZES = (64, 128)
_SHRUNK = 2  # pixels of the photo along one of an image
_FOUR = (-0.25, 0.25)


def places(size: int, move: Move) -> Tensor:
    """Where a target's pixels are in the source (h, w, 2), x and y in pixels; by the middle of the image."""
    across, down, degrees, scale = move
    middle = (size - 1) / 2
    y, x = torch.meshgrid(*[torch.arange(size, dtype=torch.float64) - middle] * 2, indexing="ij")
    cosine, sine = scale * math.cos(math.radians(degrees)), scale * math.sin(math.radians(degrees))
    return torch.stack((cosine * x - sine * y + across, sine * x + cosine * y + down), dim=-1) + middle


def seen(photo: Tensor, size: int, move: Move) -> Tensor:
    """The image (1, 3, h, w) in [-1, 1] that shows the middle of a photo (3, H, W) after a move."""
    found = torch.zeros(1, 3, size, size, dtype=torch.float64)
    height, width = photo.shape[1:]
    across, down, degrees, scale = move
    cosine, sine = scale * math.cos(math.radians(degrees)), scale * math.sin(math.radians(degrees))
    y, x = torch.meshgrid(*[torch.arange(size, dtype=torch.float64) - (size - 1) / 2] * 2, indexing="ij")
    for v in _FOUR:
        for u in _FOUR:
            at = torch.stack((cosine * (x + u) - sine * (y + v) + across, sine * (x + u) + cosine * (y + v) + down), dim=-1)
            grid = _SHRUNK * at / torch.tensor([(width - 1) / 2, (height - 1) / 2])
            found += F.grid_sample(photo[None], grid[None], mode="bicubic", align_corners=True) / len(_FOUR) ** 2
    return found.clamp(-1, 1)


def end_point_error(flow: Tensor, true: Tensor) -> tuple[float, float]:
    """Mean and median distance in pixels, where the true flow stays inside."""
    size = true.shape[-1]
    at = true[0].movedim(0, -1) + torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="xy"), dim=-1)
    inside = ((at >= 0) & (at <= size - 1)).all(-1)
    distances = (flow.double() - true)[0].square().sum(0).sqrt()[inside]
    return float(distances.mean()), float(distances.median())


@torch.no_grad()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, nargs="+", help="photos of at least 300x300 pixels, or folders of them")
    parser.add_argument("--count", type=int, default=6, help="photos that are looked at")
    parser.add_argument("--raft", type=Path, help="file of the weights of raft_large")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    teachers: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "zero": lambda target, source: torch.zeros_like(target[:, :2]),
        "Lucas and Kanade": lucas_kanade,
    }
    if importlib.util.find_spec("cv2") is not None:
        teachers["DIS"] = inverse_search
    if options.raft is not None:
        raft = Raft("raft_large")
        raft.load(read_weights(options.raft), source=str(options.raft))
        teachers["RAFT"] = raft
    files = [file for place in options.photos for file in (sorted(place.rglob("*.[jp][pn]g")) if place.is_dir() else [place])]
    photos = []
    for file in files[:: max(1, len(files) // options.count)]:
        with Image.open(file) as image:
            pixels = torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8).view(image.height, image.width, 3)
        if min(pixels.shape[:2]) >= _SHRUNK * (max(SIZES) + 16) and len(photos) < options.count:
            photos.append(pixels.movedim(-1, 0).double() / 127.5 - 1)
    rows, better = [], True
    for size in SIZES:
        for kind, moves in MOVES.items():
            errors: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in teachers}
            for photo in photos:
                source = seen(photo, size, (0, 0, 0, 1)).float()
                for move in moves:
                    target = seen(photo, size, move).float()
                    true = (places(size, move) - places(size, (0, 0, 0, 1))).movedim(-1, 0)[None]
                    for name, teacher in teachers.items():
                        started = time.process_time()
                        flow = teacher(target, source)
                        spent = time.process_time() - started
                        believed = float(confidence(target, source, flow).mean())
                        errors[name].append((*end_point_error(flow, true), believed, spent))
            for name, found in errors.items():
                mean, middle, believed = (statistics.fmean(one[k] for one in found) for k in range(3))
                spent = statistics.median(one[3] for one in found)
                rows.append(f"| {size} | {kind} | {name} | {mean:.3f} | {middle:.3f} | {100 * believed:.0f} % | {1000 * spent:.1f} |")
                print(rows[-1], flush=True)
            zero, classical = (statistics.fmean(one[0] for one in errors[name]) for name in ("zero", "Lucas and Kanade"))
            better &= classical < 0.5 * zero
    report = [
        f"# Teachers of flow on moved photos, {datetime.date.today().isoformat()}",
        "",
        f"{machine()}.",
        f"{len(photos)} photos at half their size, three moves of each kind; end-point errors in pixels, means over the pairs;",
        "pixels that pass the test of colours; processor time of a pair in ms, the median.",
        "",
        "| pixels a side | move | teacher | mean error | median error | believed | ms |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"Target: Lucas and Kanade's error below half of zero flow's in every row: {'reached' if better else 'missed'}.",
    ]
    print("\n".join(report))
    if options.out is not None:
        options.out.write_text("\n".join(report) + "\n", encoding="utf-8")
    return 0 if better else 1


if __name__ == "__main__":
    raise SystemExit(main())
