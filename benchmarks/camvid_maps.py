"""How well a segmentation network reads street scenes that a model made from label maps, beside real photos.

    python benchmarks/camvid_maps.py --data CAMVID --judge judge.pt                             (trains the judge alone)
    python benchmarks/camvid_maps.py --data CAMVID --judge judge.pt --run runs/spade-camvid --recipe spade-camvid --out FILE.md

CAMVID holds train/ and val/ with images/ and labels/. The judge is a small U-Net, trained on the real training photos at 64x96 with
changes of colour, so that it has to look at more than the mean colour of a class. Images are made from the label maps of val/, which
neither judge nor model was trained on. Targets: pixel accuracy of at least 80 % of that on the real photos, and at least 10 points above
that on label maps painted in the mean colours of their classes. Pixels without a class (11) are not counted. Exit code 1 when a target is
missed. A run that is not there yet is trained first.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from translation_runs import length, report, trained_run

from triptych.data.pairs import PairedDataConfig
from triptych.runs import Run
from triptych.runs.translation_grid import palette, write_rows

CLASSES, UNLABELLED = 12, 11
SHARE_OF_REAL, ABOVE_COLOURS = 0.80, 0.10
ROWS = 8  # of the picture
JUDGE_STEPS, JUDGE_BATCH, JUDGE_WIDTH = 2500, 12, 24


class Judge(nn.Module):
    """A U-Net from photos to scores of the classes of each pixel."""

    def __init__(self, width: int = JUDGE_WIDTH) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 4 * width]
        self.down = nn.ModuleList(_pair(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(_pair(widths[k] + widths[k - 1], widths[k - 1]) for k in (3, 2, 1))
        self.last = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (b, 12, h, w) of photos (b, 3, h, w) in [-1, 1]."""
        kept = []
        for k, block in enumerate(self.down):
            x = block(x if k == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for block, side in zip(self.up, reversed(kept[:-1]), strict=True):
            x = block(torch.cat((F.interpolate(x, scale_factor=2), side), dim=1))
        return self.last(x)


def _pair(ins: int, outs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (ins, outs):
        layers += [nn.Conv2d(channels, outs, 3, padding=1, bias=False), nn.BatchNorm2d(outs), nn.ReLU()]
    return nn.Sequential(*layers)


def arrays(images: Any) -> tuple[Tensor, Tensor]:
    """Photos (n, 3, 64, 96) in [-1, 1] and label maps (n, 64, 96) of a set of pairs, cut as held-out images are."""
    loaded = images.batch(np.arange(len(images)))
    return torch.from_numpy(loaded.images).permute(0, 3, 1, 2).float() / 127.5 - 1, torch.from_numpy(loaded.inputs["labels"])


def trained_judge(data: Any, path: Path, seed: int = 0) -> Judge:
    """The judge in a file, trained first where there is none."""
    judge = Judge()
    if path.is_file():
        judge.load_state_dict(torch.load(path, weights_only=True))
        return judge.eval()
    torch.manual_seed(seed)
    judge = Judge()
    photos, labels = arrays(data.train)
    optimizer = torch.optim.AdamW(judge.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=JUDGE_STEPS)
    for step in range(JUDGE_STEPS):
        chosen = torch.randint(len(photos), (JUDGE_BATCH,))
        x, y = varied(photos[chosen], labels[chosen])
        loss = F.cross_entropy(judge(x), y, ignore_index=UNLABELLED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 250 == 0:
            print(f"judge: step {step}, loss {float(loss.detach()):.3f}", flush=True)
    judge.eval()
    torch.save(judge.state_dict(), path)
    return judge


def varied(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mirrored, shifted, and each channel stretched and moved at random."""
    flip = torch.rand(len(x)) < 0.5
    x, y = torch.where(flip[:, None, None, None], x.flip(3), x), torch.where(flip[:, None, None], y.flip(2), y)
    top, left = int(torch.randint(-6, 7, ())), int(torch.randint(-8, 9, ()))
    x, y = x.roll((top, left), (2, 3)), y.roll((top, left), (1, 2))
    gain, offset = torch.empty(len(x), 3, 1, 1).uniform_(0.6, 1.4), torch.empty(len(x), 3, 1, 1).uniform_(-0.4, 0.4)
    return x * gain + offset, y


@torch.no_grad()
def accuracy(judge: Judge, photos: Tensor, labels: Tensor) -> float:
    """Share of the pixels with a class whose class the judge finds."""
    found = torch.cat([judge(part).argmax(1) for part in photos.split(32)])
    return float((found == labels)[labels != UNLABELLED].float().mean())


def painted(labels: Tensor, photos: Tensor, classes: Tensor) -> Tensor:
    """Label maps in the mean colour that each class has in the photos with these classes."""
    flat, colours = photos.permute(0, 2, 3, 1), torch.zeros(CLASSES, 3)
    for index in range(CLASSES):
        colours[index] = flat[classes == index].mean(0)
    return colours[labels].permute(0, 3, 1, 2)


def draw(run: Run, labels: np.ndarray, path: Path) -> None:
    """Rows of a label map and three answers to it, in pairs side by side; one answer of a model without styles."""
    answers = 3 if run.translation.to_dict() else 1
    made = run.translate({"labels": labels}, style_count=answers)
    maps = palette(CLASSES)[labels]
    rows = [[maps[k], *made.images[k]] for k in range(len(labels))]
    half = -(-len(rows) // 2)
    write_rows(path, [first + second for first, second in zip(rows[:half], rows[half:], strict=True)])


def main() -> int:
    """0, or 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of CamVid")
    parser.add_argument("--judge", type=Path, required=True, help="file of the judge's weights, written where there is none")
    parser.add_argument("--run", type=Path, help="a run of a paired recipe at 64x96")
    parser.add_argument("--recipe", default="spade-camvid")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    parser.add_argument("--picture", type=Path, help="also draw some label maps and what was made of them to this file")
    options = parser.parse_args()
    config = PairedDataConfig(
        path=options.data, image_size=64, width=96, maps=("labels",), num_classes=(CLASSES,), flip=False, enlarge=True, workers=0
    )
    data = config.open()
    judge = trained_judge(data, options.judge)
    photos, labels = arrays(data.validation)
    real, colours = accuracy(judge, photos, labels), accuracy(judge, painted(labels, *arrays(data.train)), labels)
    rows: list[tuple[str, float, float | None]] = [("real photos", real, None), ("mean colours of the classes", colours, None)]
    note = ""
    if options.run is not None:
        run = trained_run(options.run, options.recipe, {"path": options.data})
        made = run.translate({"labels": labels.numpy()})
        images = torch.from_numpy(np.concatenate(made.images)).permute(0, 3, 1, 2).float() / 127.5 - 1
        needed = max(SHARE_OF_REAL * real, colours + ABOVE_COLOURS)
        rows.append((f"made by {options.recipe}", accuracy(judge, images, labels), needed))
        note = length(run)
        if options.picture:
            draw(run, labels.numpy()[:: -(-len(labels) // ROWS)], options.picture)
    return report("CamVid from label maps", "images | pixel accuracy of the judge", rows, note, out=options.out)


if __name__ == "__main__":
    sys.exit(main())
