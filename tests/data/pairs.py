"""Pairs of files for tests, and what a loader makes of a set of images."""

from __future__ import annotations

import contextlib
import io
import itertools
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tests.data.pictures import encoded
from triptych.core.batch import RawBatch
from triptych.data.images import Data
from triptych.data.loader import Loader
from triptych.data.pairs import PairedDataConfig

COUNT = 7


def levels(width: int, height: int, *, seed: int = 0) -> np.ndarray:
    """Black and white blocks and dots (h, w, 3): no resize leaves them as they are."""
    generator = np.random.default_rng(seed)
    cells = generator.random((-(-height // 4), -(-width // 4))) < 0.5
    field = cells.repeat(4, 0).repeat(4, 1)[:height, :width] ^ (generator.random((height, width)) < 0.05)
    return np.where(field, 255, 0).astype(np.uint8)[..., None].repeat(3, axis=-1)


def as_map(numbers: np.ndarray, *, palette: bool = False) -> bytes:
    """A PNG of these numbers (h, w): grey of 8 or 16 bits, or places in a palette."""
    image = Image.fromarray(numbers if numbers.dtype == np.uint16 else numbers.astype(np.uint8))
    if palette:
        image = Image.fromarray(numbers.astype(np.uint8), "P")
        image.putpalette([255 - k // 3 for k in range(768)])
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_pairs(root: Path, *, count: int = COUNT, size: tuple[int, int] = (24, 16), first: int = 0, folder: str = "drive") -> Path:
    """Images of two levels, and their class map: 1 where they are white. Maps have a palette, and instances 16 bits."""
    for k in range(first, first + count):
        pixels = levels(*size, seed=k)
        numbers = pixels[..., 0].astype(np.uint16) // 255
        write(root / "images" / folder / f"{k}.png", encoded(pixels))
        write(root / "labels" / folder / f"{k}.png", as_map(numbers.astype(np.uint8), palette=k % 2 == 0))
        write(root / "objects" / folder / f"{k}.png", as_map(26000 + numbers))
        write(root / "edges" / folder / f"{k}.png", encoded(pixels[..., :1]))
        write(root / "night" / folder / f"{k}.png", encoded(255 - pixels))
    return root


SETTINGS = {
    "maps": ("labels",),
    "num_classes": (2,),
    "instances": "objects",
    "conditions": ("edges", "night"),
    "image_size": 8,
    "width": 12,
    "validation_fraction": 0.0,
}


def settings(path: Path, **changes: object) -> PairedDataConfig:
    return PairedDataConfig(path=str(path), **(SETTINGS | changes))


def opened(path: Path, **changes: object) -> Data:
    return settings(path, **changes).open()


def only_maps(path: Path, **changes: object) -> Data:
    return opened(path, instances=None, conditions=(), **changes)


def taken(images, *, start: int = 0, count: int = 5, batch_size: int = 4, workers: int = 0, **ranks: int) -> RawBatch:
    with contextlib.closing(Loader(images, batch_size=batch_size, seed=3, workers=workers, **ranks)) as loader:
        return joined(list(itertools.islice(loader.batches(start), count)))


def joined(batches: list[RawBatch]) -> RawBatch:
    inputs = {name: torch.cat([batch.inputs[name] for batch in batches]) for name in batches[0].inputs}
    labels = None if batches[0].labels is None else torch.cat([batch.labels for batch in batches])
    return RawBatch(torch.cat([batch.images for batch in batches]), labels, torch.cat([batch.index for batch in batches]), inputs)


def assert_same(one: RawBatch, other: RawBatch) -> None:
    assert torch.equal(one.images, other.images) and torch.equal(one.index, other.index)
    assert (one.labels is None) == (other.labels is None) and (one.labels is None or torch.equal(one.labels, other.labels))
    assert one.inputs.keys() == other.inputs.keys()
    for name in one.inputs:
        assert torch.equal(one.inputs[name], other.inputs[name]), name
