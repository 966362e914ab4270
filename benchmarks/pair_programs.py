"""PSNR, SSIM and MS-SSIM of one photo and its JPEG as several programs have them: the numbers of docs/methods/image-pairs.md.

    pip install --target ../peers/site --no-deps scikit-image lazy_loader pytorch-msssim torchmetrics lightning-utilities
    PYTHONPATH=../peers/site python benchmarks/pair_programs.py --photo PHOTO.png --out FILE.md

A program that is not installed has no row. Target: Triptych's figures are those of pytorch-msssim and of scikit-image with the paper's
window, to 0.0001. Exit code 1 when it is missed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import io
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine, show_report
from PIL import Image

from triptych.evaluation.pairs import ms_ssim, psnr, ssim

QUALITY, CLOSE = 20, 1e-4
SIMILARITY = "skimage.metrics structural_similarity"
Row = tuple[str, str, Callable[[], Any]]


def of(name: str) -> Any:
    """The function of a program, "module function". Raises ImportError where the program is not installed."""
    module, function = name.split()
    return getattr(importlib.import_module(module), function)


def rows(photo: Image.Image, jpeg: Image.Image) -> list[Row]:
    """Figure, who computes it and how, and the computation."""
    x, y = (np.asarray(image)[None] for image in (photo, jpeg))
    grey_x, grey_y = (np.asarray(image.convert("L"))[None, ..., None] for image in (photo, jpeg))
    unit_x, unit_y = x[0] / 255.0, y[0] / 255.0
    tensors = [torch.from_numpy(unit).movedim(-1, 0)[None] for unit in (unit_x, unit_y)]
    window = {"gaussian_weights": True, "sigma": 1.5}

    def skimage(**settings: Any) -> float:
        return of(SIMILARITY)(unit_x, unit_y, channel_axis=2, **{"data_range": 1.0, **settings})

    return [
        ("PSNR", "Triptych", lambda: psnr(x, y)),
        ("PSNR", "Triptych, of the grey images", lambda: psnr(grey_x, grey_y)),
        ("SSIM", "Triptych", lambda: ssim(x, y)),
        ("SSIM", "pytorch-msssim", lambda: of("pytorch_msssim ssim")(*tensors, data_range=1.0)),
        ("SSIM", "scikit-image, the paper's window, variances divided by N", lambda: skimage(**window, use_sample_covariance=False)),
        ("SSIM", "torchmetrics", lambda: of("torchmetrics.functional.image structural_similarity_index_measure")(*tensors, data_range=1.0)),
        ("SSIM", "scikit-image, the paper's window", lambda: skimage(**window)),
        ("SSIM", "scikit-image, its default", skimage),
        ("SSIM", "Triptych, of the grey images", lambda: ssim(grey_x, grey_y)),
        ("SSIM", "scikit-image, a data range of 2", lambda: skimage(**window, use_sample_covariance=False, data_range=2.0)),
        ("MS-SSIM", "Triptych", lambda: ms_ssim(x, y)),
        ("MS-SSIM", "pytorch-msssim", lambda: of("pytorch_msssim ms_ssim")(*tensors, data_range=1.0)),
        (
            "MS-SSIM",
            "torchmetrics",
            lambda: of("torchmetrics.functional.image multiscale_structural_similarity_index_measure")(*tensors, data_range=1.0),
        ),
        ("MS-SSIM", "Triptych, of the grey images", lambda: ms_ssim(grey_x, grey_y)),
    ]


def versions() -> str:
    """Those of the programs that are installed."""
    found = []
    for name in ("pytorch-msssim", "scikit-image", "torchmetrics"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} is not installed")
    return ", ".join(found)


def main() -> int:
    """0, or 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photo", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    photo, buffer = Image.open(options.photo).convert("RGB"), io.BytesIO()
    photo.save(buffer, "JPEG", quality=QUALITY)
    found: dict[tuple[str, str], float] = {}
    for figure, program, compute in rows(photo, Image.open(buffer).convert("RGB")):
        try:
            found[figure, program] = float(np.asarray(compute()).reshape(()))
        except ImportError:
            print(f"{program} is not installed: no {figure} of it", file=sys.stderr)
    alike = [value for (figure, program), value in found.items() if figure == "SSIM" and (program == "pytorch-msssim" or "by N" in program)]
    passed = all(abs(value - found["SSIM", "Triptych"]) < CLOSE for value in alike)
    lines = [
        f"# Figures of a photo and its JPEG by several programs, {datetime.date.today().isoformat()}",
        "",
        f"{machine()}, Pillow {metadata.version('pillow')}; {versions()}.",
        "",
        f"{options.photo.name}, {photo.width}x{photo.height} pixels, as a JPEG of quality {QUALITY}.",
        "",
        "| figure | by | |",
        "|---|---|---|",
        *(f"| {figure} | {program} | {value:.{2 if figure == 'PSNR' else 4}f} |" for (figure, program), value in found.items()),
        "",
        f"Target, SSIM as the {len(alike)} programs with the same formula have it: {'reached' if passed else 'MISSED'}.",
    ]
    show_report(lines, out=options.out)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
