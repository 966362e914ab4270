"""Runs as they lie on disk, written without training."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from triptych.engine.run_directory import RunDirectory
from triptych.recipes.catalogue import load_recipe

LOG = """2026-01-02 03:04:05 adm-digits starts: run runs/a, 1,371,233 parameters, seed 0, float32
2026-01-02 03:04:06 warning: few images
2026-01-02 03:04:07 100/1,000 images  50 images/s  loss 0.5  memory 400 MB  0:10 left
2026-01-02 03:04:08 samples/000000100.png: 0:12
2026-01-02 03:04:09 stopped by SIGTERM at 200 images and saved; the same command goes on from there
2026-01-02 03:05:05 adm-digits goes on at 200 images: run runs/a, 1,371,233 parameters, seed 0, float32
"""
LINES = (
    {"images": 100, "time": 2.0, "denoise/loss": 0.5, "learning_rate": 1e-3, "images_per_second": 50.0, "memory_bytes": 2**30},
    {"images": 100, "time": 2.5, "validation/denoise/loss": 0.6, "validation/denoise/loss_standard_error": 0.01},
    {"images": 300, "time": 6.0, "denoise/loss": 9.0, "images_per_second": 60.0, "memory_bytes": 2**29},
    {"resumed_at": 200},
    {"images": 250, "time": 5.0, "denoise/loss": 0.25, "learning_rate": 5e-4, "images_per_second": 40.0, "memory_bytes": 2**30},
)


def made_run(
    root: Path,
    *,
    recipe: str = "adm-digits",
    changes: Mapping[str, Any] = {},
    lines: Iterable[Any] = LINES,
    log: str = LOG,
    grids: Iterable[int] = (100, 200),
    class_names: Iterable[str] = ("0", "1"),
) -> Path:
    """A run of a recipe with other settings, these lines of metrics and of the log, and grids of noise."""
    directory = RunDirectory(root)
    directory.create()
    names = list(class_names)
    spec = {"image_size": 16, "channels": 1, "num_classes": len(names), "class_names": names, "width": None, "inputs": []}
    directory.write_config({"recipe": recipe, **load_recipe(recipe).updated(changes).to_dict(), "spec": spec})
    directory.metrics_path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    directory.log_path.write_text(log)
    for number in grids:
        pixels = np.random.default_rng(number).integers(0, 256, (32, 32), dtype=np.uint8)
        Image.fromarray(pixels).save(directory.samples / f"{number:09d}.png")
    return root


def evaluated(root: Path, name: str, figures: Mapping[str, Any], **protocol: Any) -> None:
    """Figures as `triptych evaluate` writes them."""
    folder = root / "evaluations"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({"figures": figures, "protocol": protocol}))
