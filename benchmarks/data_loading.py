"""Images per second of the loader beside guided-diffusion's: 256x256 JPEGs to 64 pixels, one worker, the same Pillow.

    python benchmarks/data_loading.py --guided-diffusion CHECKOUT --images FOLDER_OF_PHOTOS [--out RESULTS.md]

Both loaders run in this process, in turn, several rounds; medians are reported. The JPEGs are made from the photos given:
squares of random place and size, resized to 256x256. guided-diffusion delivers float32 NCHW; ours delivers uint8 NHWC, and the
rows "with normalisation" include turning that into the same floats in the training process.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from machine import machine
from PIL import Image

from triptych.data import decode
from triptych.data.config import DataConfig
from triptych.data.loader import Loader
from triptych.runs.packing import pack_data

BATCH, WARM_UP, SIZE = 64, 3, 64


def peer(checkout: Path) -> Any:
    """guided-diffusion's image_datasets module; its two imports that are not installed are replaced by what it uses of them."""
    blobfile: Any = types.ModuleType("blobfile")
    blobfile.listdir, blobfile.isdir, blobfile.basename = os.listdir, os.path.isdir, os.path.basename
    blobfile.join, blobfile.BlobFile = os.path.join, open
    mpi: Any = types.ModuleType("mpi4py")
    mpi.MPI = types.SimpleNamespace(COMM_WORLD=types.SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 1))
    sys.modules |= {"blobfile": blobfile, "mpi4py": mpi}
    sys.path.insert(0, str(checkout))
    package = types.ModuleType("guided_diffusion")  # its own __init__ is empty; this avoids nothing but a search
    package.__path__ = [str(checkout / "guided_diffusion")]
    sys.modules["guided_diffusion"] = package
    return importlib.import_module("guided_diffusion.image_datasets")


def make_jpegs(photos: Path, folder: Path, count: int) -> None:
    """`count` squares of 256x256 cut from the photos, as JPEGs of quality 90."""
    files = sorted(path for path in photos.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    generator = np.random.default_rng(0)
    for k in range(count):
        with Image.open(files[k % len(files)]) as photo:
            side = int(generator.integers(min(photo.size) * 3 // 4, min(photo.size) + 1))
            left, top = (int(generator.integers(0, length - side + 1)) for length in photo.size)
            square = photo.convert("RGB").resize((256, 256), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
        square.save(folder / f"{k:05d}.jpg", quality=90)


def microseconds(batches: Iterator[Any], count: int, finish: Callable[[Any], Any]) -> float:
    """Wall time per image over `count` batches, once the workers are under way."""
    for _ in range(WARM_UP):
        finish(next(batches))
    start = time.perf_counter()
    for _ in range(count):
        finish(next(batches))
    return (time.perf_counter() - start) / count / BATCH * 1e6


@contextlib.contextmanager
def without_simplejpeg() -> Iterator[None]:
    """Decoding by Pillow alone."""
    kept = decode._simplejpeg
    decode._simplejpeg = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        decode._simplejpeg = kept


def ours(config: DataConfig, count: int, *, workers: int, normalised: bool = False) -> float:
    """Time per image of our loader."""
    with contextlib.closing(Loader(config.open().train, batch_size=BATCH, seed=0, workers=workers)) as loader:
        return microseconds(loader.batches(0), count, lambda batch: batch.to("cpu") if normalised else batch)


def measure(jpegs: Path, pack: Path, image_datasets: Any, *, rounds: int, count: int) -> dict[str, list[float]]:
    """Microseconds per image of every loader, in every round."""
    files = {name: DataConfig(path=str(jpegs), image_size=SIZE, validation_fraction=0, decode=name) for name in ("exact", "reduced")}
    packed, zipped = (DataConfig(path=str(path), image_size=SIZE, validation_fraction=0) for path in (pack, pack.with_suffix(".zip")))
    long = 10 * count  # a pack is too fast for a few batches
    cases: dict[str, Callable[[], float]] = {
        "exact": lambda: ours(files["exact"], count, workers=1),
        "reduced, simplejpeg": lambda: ours(files["reduced"], count, workers=1),
        "reduced, simplejpeg, with normalisation": lambda: ours(files["reduced"], count, workers=1, normalised=True),
        "pack at 64 px (.npz), one worker": lambda: ours(packed, long, workers=1),
        "pack at 64 px (.npz), no worker": lambda: ours(packed, long, workers=0),
        "pack at 64 px (.npz), no worker, with normalisation": lambda: ours(packed, long, workers=0, normalised=True),
        "pack at 64 px (.zip of PNGs), one worker": lambda: ours(zipped, count, workers=1),
    }
    times: dict[str, list[float]] = {"guided-diffusion": [], "exact": [], "reduced, Pillow": []} | {name: [] for name in cases}
    for _ in range(rounds):
        theirs = image_datasets.load_data(data_dir=str(jpegs), batch_size=BATCH, image_size=SIZE)
        times["guided-diffusion"].append(microseconds(theirs, count, lambda batch: batch))
        theirs.close()
        with without_simplejpeg():
            times["reduced, Pillow"].append(ours(files["reduced"], count, workers=1))
        for name, case in cases.items():
            times[name].append(case())
    return times


def mean_difference(jpegs: Path) -> float:
    """Mean absolute difference of reduced and exact decoding, in 1/255."""
    exact, reduced = (
        DataConfig(path=str(jpegs), image_size=SIZE, validation_fraction=0, decode=name).open().train for name in ("exact", "reduced")
    )
    items = np.arange(256)
    return float(np.abs(exact.batch(items).images.astype(int) - reduced.batch(items).images.astype(int)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guided-diffusion", type=Path, required=True, help="a checkout of openai/guided-diffusion")
    parser.add_argument("--images", type=Path, required=True, help="a folder of photos")
    parser.add_argument("--count", type=int, default=2048, help="JPEGs to make")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="also write the table here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    image_datasets = peer(options.guided_diffusion)
    with tempfile.TemporaryDirectory() as scratch:
        jpegs, pack = Path(scratch, "jpegs"), Path(scratch, "pack.npz")
        jpegs.mkdir()
        make_jpegs(options.images, jpegs, options.count)
        for path in (pack, pack.with_suffix(".zip")):
            pack_data(DataConfig(path=str(jpegs), image_size=SIZE), path, workers=1)
        # All batches of a round lie in one epoch: at its end, guided-diffusion's loader starts its worker anew.
        times = measure(jpegs, pack, image_datasets, rounds=options.rounds, count=options.count // BATCH - WARM_UP - 1)
        difference = mean_difference(jpegs)
    base = times["guided-diffusion"]
    lines = ["| loader | us per image (median) | range | times guided-diffusion |", "|---|---|---|---|"]
    for name, values in times.items():
        ratio = statistics.median(theirs / own for theirs, own in zip(base, values, strict=True))
        lines.append(f"| {name} | {statistics.median(values):.1f} | {min(values):.1f} to {max(values):.1f} | {ratio:.2f} |")
    simplejpeg = "with simplejpeg" if decode._simplejpeg() else "without simplejpeg"
    head = [
        f"# Data loading, {time.strftime('%Y-%m-%d')}",
        "",
        f"256x256 JPEGs (quality 90, cut from photos) to {SIZE} pixels, batches of {BATCH}, one worker, mirrored at random;",
        f"{options.rounds} rounds in turn. {machine()}, Pillow {PIL.__version__}, {simplejpeg}.",
        f"Mean difference of reduced from exact decoding: {difference:.2f} / 255.",
        "",
    ]
    text = "\n".join([*head, *lines, ""])
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
