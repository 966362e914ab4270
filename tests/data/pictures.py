"""Small data sets for tests, made from arithmetic."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image


def picture(width: int, height: int, *, seed: int = 0, channels: int = 3) -> np.ndarray:
    """A photo-like uint8 picture (h, w, c): smooth shading, edges and a little noise."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    layers = []
    for _ in range(channels):
        a, b, phase, level = generator.uniform(0.5, 2), generator.uniform(0.5, 2), generator.uniform(0, 6), generator.uniform(60, 180)
        shade = level + 60 * np.sin(a * x / 20 + phase) * np.cos(b * y / 25)
        edge = np.where((x - width * generator.random()) * a > (y - height * generator.random()) * b, 30, -30)
        layers.append(shade + edge + generator.normal(0, 3, shade.shape))
    return np.clip(np.stack(layers, axis=-1), 0, 255).astype(np.uint8)


def textured(width: int, height: int) -> np.ndarray:
    """A picture (h, w, 3) with detail at scales of 4, 8 and 16 pixels, which shows the smallest displacement."""
    generator = np.random.default_rng(0)
    pixels = np.full((height, width, 3), 128.0)
    for cell, amplitude in ((4, 20), (8, 30), (16, 40)):
        coarse = generator.normal(0, 1, (height // cell + 2, width // cell + 2)).astype(np.float32)
        layer = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
        pixels += amplitude * layer[..., None] * generator.uniform(0.7, 1, 3)
    return np.clip(pixels, 0, 255).astype(np.uint8)


def encoded(pixels: np.ndarray, file_format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, file_format, **options)
    return buffer.getvalue()


def write_folder(root: Path, names: list[str], *, size: tuple[int, int] = (20, 16)) -> Path:
    """Images under these names, each different, in the format of its extension."""
    for k, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(*size, seed=k), "JPEG" if path.suffix == ".jpg" else "PNG"))
    return root


def write_tar(path: Path, folder: Path, *, prefix: str = "wrapped") -> Path:
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as tar:
        tar.add(folder, arcname=prefix)
    return path


def write_zip(path: Path, folder: Path, *, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder))
    return path


def write_idx(path: Path, values: np.ndarray) -> Path:
    header = [0x800 + values.ndim, *values.shape]
    path.write_bytes(b"".join(number.to_bytes(4) for number in header) + values.astype(np.uint8).tobytes())
    return path
