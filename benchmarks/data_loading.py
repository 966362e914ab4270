"""Images per second of the loader beside guided-diffusion's: 256x256 JPEGs to 64 pixels, one worker, the same Pillow.

    python benchmarks/data_loading.py --guided-diffusion CHECKOUT --images FOLDER_OF_PHOTOS [--out RESULTS.md]
    python benchmarks/data_loading.py --sources --guided-diffusion CHECKOUT --images FOLDER_OF_PHOTOS [--out RESULTS.md]

Both loaders run in this process, in turn, several rounds; medians are reported. The JPEGs are made from the photos given:
squares of random place and size, resized to 256x256. guided-diffusion delivers float32 NCHW; ours delivers uint8 NHWC, and the
rows "with normalisation" include turning that into the same floats in the training process.

With --sources the same images are read from every kind of source, and by others: a reader of folders of a few lines, Hugging Face's
datasets and webdataset (where they can be imported: PYTHONPATH). All read in this process, without workers, and the time is that of the
processor, so that other work of the machine counts little.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import statistics
import sys
import tarfile
import tempfile
import time
import types
import zipfile
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


# Sources --------------------------------------------------------------------------------------------------------------------


def squares(image: Image.Image) -> np.ndarray:
    """The centre square of an image as most readers make it: resized to a short side of `SIZE`, cut, mirrored by chance."""
    width, height = image.size
    scale = SIZE / min(width, height)
    image = image.convert("RGB").resize((round(width * scale), round(height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - SIZE) // 2, (image.height - SIZE) // 2
    pixels = np.array(image.crop((left, top, left + SIZE, top + SIZE)))
    return pixels[:, ::-1].copy() if random.random() < 0.5 else pixels


class ImageFolder(torch.utils.data.Dataset[np.ndarray]):
    """The images of a folder, each opened when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> np.ndarray:
        with Image.open(self.paths[number]) as image:
            return squares(image)


def shuffled(images: Any) -> Iterator[Any]:
    """Batches of a data set in a random order, in this process."""
    return iter(torch.utils.data.DataLoader(images, batch_size=BATCH, shuffle=True, drop_last=True))


def of_datasets(parquet: Path, cache: Path) -> Callable[[], Iterator[Any]] | None:
    """Hugging Face's datasets on a Parquet file."""
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        return None
    images = datasets.load_dataset("parquet", data_files=str(parquet), split="train", cache_dir=str(cache))
    images = images.with_transform(lambda rows: {"image": [squares(image) for image in rows["image"]]})
    return lambda: shuffled(images)


def of_webdataset(shards: Path) -> Callable[[], Iterator[Any]] | None:
    """webdataset on the shards, shuffled within a buffer."""
    try:
        webdataset = importlib.import_module("webdataset")
    except ImportError:
        return None
    urls = sorted(map(str, shards.iterdir()))
    return lambda: iter(
        webdataset.WebDataset(urls, shardshuffle=len(urls))
        .shuffle(1000)
        .decode("pil")
        .to_tuple("jpg")
        .map(lambda sample: squares(sample[0]))
        .batched(BATCH, partial=False)
    )


def write_sources(jpegs: Path, root: Path) -> dict[str, Path]:
    """The JPEGs as they are (folder, zip, 4 tars, Parquet), their pixels (.npz), and packs of them, by name."""
    files = sorted(jpegs.iterdir())
    found = {"folder": jpegs, "zip": root / "x.zip", "tar shards": root / "shards", "npz": root / "x.npz"}
    with zipfile.ZipFile(found["zip"], "w") as archive:
        for file in files:
            archive.write(file, file.name)
    found["tar shards"].mkdir()
    for k in range(4):
        with tarfile.open(found["tar shards"] / f"{k:03d}.tar", "w") as tar:
            for file in files[k::4]:
                tar.add(file, file.name)
    np.savez(found["npz"], np.stack([np.asarray(Image.open(file)) for file in files]))
    with contextlib.suppress(ImportError):
        pyarrow: Any = importlib.import_module("pyarrow")
        rows = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
        table = pyarrow.table({"image": pyarrow.array(rows)})
        kind = json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})
        found["Parquet"] = root / "x.parquet"
        importlib.import_module("pyarrow.parquet").write_table(
            table.replace_schema_metadata({"huggingface": kind}), found["Parquet"], row_group_size=100
        )
    for ending in (".npz", ".zip"):
        found[f"pack {ending}"] = root / f"pack{ending}"
        pack_data(DataConfig(path=str(jpegs), image_size=SIZE), found[f"pack {ending}"], workers=0)
    return found


def processor_microseconds(batches: Iterator[Any], count: int) -> float:
    """Time of the processor for each image, over `count` batches, after the first one."""
    next(batches)
    start = time.process_time()
    for _ in range(count):
        next(batches)
    return (time.process_time() - start) / count / BATCH * 1e6


def measure_sources(jpegs: Path, root: Path, image_datasets: Any, *, rounds: int, count: int) -> tuple[dict[str, list[float]], list[str]]:
    """Microseconds of the processor for each image of every source and of every other reader, in turns; and who is missing."""
    places = write_sources(jpegs, root)
    others: dict[str, Callable[[], Iterator[Any]] | None] = {
        "guided-diffusion": lambda: shuffled(image_datasets.ImageDataset(SIZE, sorted(map(str, jpegs.iterdir())))),
        "ImageFolder of a few lines": lambda: shuffled(ImageFolder(jpegs)),
        "webdataset": of_webdataset(places["tar shards"]),
        "Hugging Face datasets": of_datasets(places["Parquet"], root / "cache") if "Parquet" in places else None,
    }
    missing = [name for name, made in others.items() if made is None]
    times: dict[str, list[float]] = {name: [] for name, made in others.items() if made is not None}
    for _ in range(rounds):
        for name, made in others.items():
            if made is not None:
                times[name].append(processor_microseconds(made(), count))
        for name, place in places.items():
            encoded = name in ("folder", "zip", "tar shards", "Parquet")
            for decode_as in ("exact", "reduced") if encoded else ("exact",):
                config = DataConfig(path=str(place), image_size=SIZE, validation_fraction=0, decode=decode_as)
                with contextlib.closing(Loader(config.open().train, batch_size=BATCH, seed=0, workers=0)) as loader:
                    row = f"{name}, {decode_as}" if encoded else name
                    # A pack is too fast for a few batches.
                    taken = processor_microseconds(loader.batches(0), 20 * count if name == "pack .npz" else count)
                    times.setdefault(f"triptych, {row}", []).append(taken)
    return times, missing


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
    parser.add_argument("--sources", action="store_true", help="every kind of source, by the processor's time")
    parser.add_argument("--out", type=Path, help="also write the table here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    image_datasets = peer(options.guided_diffusion)
    with tempfile.TemporaryDirectory() as scratch:
        jpegs, pack = Path(scratch, "jpegs"), Path(scratch, "pack.npz")
        jpegs.mkdir()
        make_jpegs(options.images, jpegs, options.count)
        if options.sources:
            count = options.count // BATCH - 2
            found, missing = measure_sources(jpegs, Path(scratch), image_datasets, rounds=options.rounds, count=count)
            return report(sources_head(options.rounds, missing), found, options.out)
        for path in (pack, pack.with_suffix(".zip")):
            pack_data(DataConfig(path=str(jpegs), image_size=SIZE), path, workers=1)
        # All batches of a round lie in one epoch: at its end, guided-diffusion's loader starts its worker anew.
        times = measure(jpegs, pack, image_datasets, rounds=options.rounds, count=options.count // BATCH - WARM_UP - 1)
        difference = mean_difference(jpegs)
    simplejpeg = "with simplejpeg" if decode._simplejpeg() else "without simplejpeg"
    head = [
        f"# Data loading, {time.strftime('%Y-%m-%d')}",
        "",
        f"256x256 JPEGs (quality 90, cut from photos) to {SIZE} pixels, batches of {BATCH}, one worker, mirrored at random;",
        f"{options.rounds} rounds in turn. {machine()}, Pillow {PIL.__version__}, {simplejpeg}.",
        f"Mean difference of reduced from exact decoding: {difference:.2f} / 255.",
        "",
    ]
    report(head, times, options.out)


def sources_head(rounds: int, missing: list[str]) -> list[str]:
    """What was measured, in words."""
    simplejpeg = "with simplejpeg" if decode._simplejpeg() else "without simplejpeg"
    return [
        f"# Sources of images, {time.strftime('%Y-%m-%d')}",
        "",
        f"256x256 JPEGs (quality 90, cut from photos) to {SIZE} pixels, batches of {BATCH}, mirrored at random, read in one process",
        f"without workers; time of the processor; {rounds} rounds in turn. {machine()}, Pillow {PIL.__version__}, {simplejpeg}.",
        f"Load of the machine: {os.getloadavg()[0]:.0f}.{' Not installed: ' + ', '.join(missing) + '.' if missing else ''}",
        "",
    ]


def report(head: list[str], times: dict[str, list[float]], out: Path | None) -> None:
    """Prints the table, and writes it to `out`."""
    base = times["guided-diffusion"]
    lines = ["| loader | us per image (median) | range | images/s | times guided-diffusion |", "|---|---|---|---|---|"]
    for name, values in times.items():
        ratio = statistics.median(theirs / own for theirs, own in zip(base, values, strict=True))
        middle = statistics.median(values)
        lines.append(f"| {name} | {middle:.1f} | {min(values):.1f} to {max(values):.1f} | {1e6 / middle:,.0f} | {ratio:.2f} |")
    text = "\n".join([*head, *lines, ""])
    print(text)
    if out:
        out.write_text(text)


if __name__ == "__main__":
    main()
