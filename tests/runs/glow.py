"""A small run of Glow whose parameters have left the start, and labelled images for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from tests.contract.shrink import BATCH, shrunk
from triptych.runs import Run, train


def moved_run(directory: Path, recipe: str = "glow-digits") -> Run:
    """A run with activations normalized and every parameter some hundredths away from its first value."""
    settings = {"train": {"total_images": 12 * BATCH, "ema_rates": ()}, "optim": {"learning_rate": 0.02, "warmup_images": 0}}
    return train(shrunk(recipe).updated(settings), directory, device="cpu")


def pixels(count: int, *, channels: int = 1, seed: int = 0) -> np.ndarray:
    """uint8 images (n, 8, 8, c) of all values."""
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 8, channels), dtype=np.uint8)


def folder(path: Path, images: np.ndarray, names: list[str]) -> Path:
    """A folder of PNGs with those names, folders included."""
    for name, image in zip(names, images, strict=True):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.squeeze()).save(path / name)
    return path
