"""The picture of docs/methods/augmentation.md: one image under each change of ADA.

    python benchmarks/ada_picture.py --out docs/methods/images/ada.png

The image is drawn here. Every row is one setting of `ADAConfig` by itself at p = 1, with four draws; the last row has all of the default at
p = 0.5.
"""

from __future__ import annotations

import argparse
import colorsys
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from triptych.core.images import to_uint8
from triptych.core.rng import Rng
from triptych.gans.ada import ADAConfig, adapted

SIDE, DRAWS, LABEL, GAP, FACTOR = 72, 4, 132, 4, 4


def scene() -> Tensor:
    """A house under the sun, drawn four times as large: (1, 3, 72, 72)."""
    side = SIDE * FACTOR
    picture = Image.new("RGB", (side, side))
    draw = ImageDraw.Draw(picture)
    for row in range(side):
        draw.line((0, row, side, row), fill=tuple(round(255 * c) for c in colorsys.hsv_to_rgb(0.56, 0.75 - 0.6 * row / side, 0.95)))
    parts = (  # shape, corners as shares of the side, colour
        ("ellipse", (0.68, 0.08, 0.90, 0.30), (255, 214, 60)),
        ("rectangle", (0.0, 0.78, 1.0, 1.0), (88, 160, 64)),
        ("rectangle", (0.22, 0.48, 0.62, 0.84), (222, 196, 160)),
        ("polygon", (0.16, 0.48, 0.42, 0.24, 0.68, 0.48), (178, 58, 48)),
        ("rectangle", (0.28, 0.62, 0.38, 0.84), (96, 60, 40)),
        ("rectangle", (0.46, 0.56, 0.57, 0.67), (250, 244, 190)),
        ("rectangle", (0.79, 0.62, 0.83, 0.84), (96, 60, 40)),
        ("ellipse", (0.71, 0.40, 0.91, 0.68), (36, 110, 56)),
    )
    for shape, corners, colour in parts:
        getattr(draw, shape)([side * corner for corner in corners], fill=colour)
    small = picture.resize((SIDE, SIDE), Image.Resampling.BOX)
    return torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).view(SIDE, SIDE, 3).permute(2, 0, 1)[None] / 127.5 - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    image, changes = scene(), ADAConfig.changes()
    none = dict.fromkeys(changes, 0.0)
    rows = [(change.replace("_", " "), ADAConfig().updated(none | {change: 1.0}), 1.0) for change in changes]
    rows.append(("default, p = 0.5", ADAConfig(), 0.5))
    half = -(-len(rows) // 2)
    width, height = LABEL + DRAWS * (SIDE + GAP) + GAP, half * (SIDE + GAP) + GAP
    sheet = Image.new("RGB", (2 * width, height), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (name, settings, p) in enumerate(rows):
        left, top = number // half * width, number % half * (SIDE + GAP) + GAP
        draw.text((left + 8, top + SIDE / 2 - 6), name, fill="black")
        seen = to_uint8(adapted(image.expand(DRAWS, -1, -1, -1), Rng(0, (name,), torch.arange(DRAWS)), p=p, settings=settings))
        for column, pixels in enumerate(seen.numpy()):
            sheet.paste(Image.fromarray(pixels), (left + LABEL + column * (SIDE + GAP), top))
    sheet.save(options.out, optimize=True)


if __name__ == "__main__":
    main()
