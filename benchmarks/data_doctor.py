"""`triptych data doctor`: time, memory and duplicates on images made here, and what it does with files made to break it.

    python benchmarks/data_doctor.py speed [--count 10000] [--side 256] [--workers 2] [--keep FOLDER]
    python benchmarks/data_doctor.py fuzz [--count 10000] [--workers 2] [--seed 0]

speed writes JPEGs, no two alike, and among them exact duplicates (copies of files, and the same pixels as PNG), near duplicates (saved
again at a lower quality), and images that differ from another in one level of one pixel. It runs the command in a process of its own, adds
up the memory of that and of its children (proportional set size, twice a second), and holds what was found against what was made. fuzz
makes random bytes, cuts and changed bytes of files in every format, wrong headers, and headers that declare far more pixels than there
are; a process is ended at one that takes 20 seconds of the processor, and 5 are late. Both print a table; the exit code is 1 where
something is missed, false, dead or late.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from machine import machine
from PIL import Image, features

from triptych.data.crew import made_of
from triptych.data.faults import FAULTS, bit
from triptych.data.looking import Wanted, fatal, look_at

SHARE = 100
"""One of so many images is a copy of a file; as many have its pixels, are near it, and differ from it in one level."""
LATE_SECONDS = 5.0  # of the processor: the time on the clock is that of whatever else the machine does
PIECE = 64
LOOK_SECONDS = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("speed", "fuzz"))
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=None)
    given = parser.parse_args()
    print(f"# data doctor, {given.what}: {time.strftime('%Y-%m-%d')}\n\n{machine()}\n")
    if given.what == "fuzz":
        return fuzz(given.count, given.workers, given.seed)
    with tempfile.TemporaryDirectory(prefix="data-doctor-") as folder:
        return speed(given.keep or Path(folder), given.count, given.side, given.workers, given.seed)


# Speed ----------------------------------------------------------------------------------------------------------------------


def speed(root: Path, count: int, side: int, workers: int, seed: int) -> int:
    expected = write_images(root / "images", count, side, seed)
    out = root / "found.json"
    command = [sys.executable, "-m", "triptych", "data", "doctor", str(root / "images"), "--image-size", "64", "--out", str(out)]
    began = time.monotonic()
    child = subprocess.Popen([*command, "--workers", str(workers)], stdout=subprocess.DEVNULL)
    peak = 0
    while child.poll() is None:
        peak = max(peak, memory(child.pid))
        time.sleep(LOOK_SECONDS)
    seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(out.read_text())
    groups: dict[str, set[frozenset[str]]] = {"copies": set(), "near": set()}
    for finding in found["findings"]:
        for group in finding.get("groups", ()):
            groups[finding["fault"].partition("_")[0]].add(frozenset(each["key"] for each in group))
    missed, false = expected["copies"] - groups["copies"], groups["copies"] - expected["copies"]
    reached = {pair for pair in expected["near"] if any(pair <= group for group in groups["near"])}
    strays = sum(map(len, groups["near"])) - sum(map(len, reached))
    rows = {
        "images": f"{count:,} of {side}x{side}",
        "processes": str(workers),
        "seconds": f"{seconds:.1f} ({count / seconds:.0f} images/s); of processors {used.ru_utime + used.ru_stime:.1f}",
        "of 100,000 at that rate": f"{seconds * 100_000 / count / 60:.1f} minutes",
        "memory": f"{peak / 1e6:.0f} MB",
        "exact duplicates": f"{len(expected['copies'])} groups made, {len(missed)} missed, {len(false)} false",
        "near duplicates": f"{len(expected['near'])} pairs made, {len(reached)} found; {strays} other images in their groups",
        "exit code": str(child.returncode),
    }  # fmt: skip
    print("| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows.items()))
    return 0 if not missed and not false and child.returncode == 0 else 1


def write_images(folder: Path, count: int, side: int, seed: int) -> dict[str, set[frozenset[str]]]:
    """Writes the images, and returns the groups of duplicates among them by their names."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    grain = generator.normal(0, 6, (2 * side, 2 * side, 3)).astype(np.float32)
    expected: dict[str, set[frozenset[str]]] = {"copies": set(), "near": set()}
    kinds = 5  # a picture of its own, then one of each kind of duplicate
    for k in range(count - (kinds - 1) * (count // SHARE)):
        coarse = Image.fromarray(generator.integers(0, 256, (9, 9, 3), dtype=np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
        top, left = generator.integers(0, side, 2)
        pixels = np.clip(np.asarray(coarse) + grain[top : top + side, left : left + side], 0, 255).astype(np.uint8)
        path = folder / f"{k:07d}.jpg"
        Image.fromarray(pixels).save(path, quality=90)
        if k >= count // SHARE:
            continue
        again = Image.open(path)
        names = [f"{k:07d}-{kind}" for kind in ("file.jpg", "pixels.png", "near.jpg", "level.png")]
        (folder / names[0]).write_bytes(path.read_bytes())
        again.save(folder / names[1])
        again.save(folder / names[2], quality=60)
        other = np.array(again)
        other[0, 0, 0] ^= 1
        Image.fromarray(other).save(folder / names[3])
        expected["copies"].add(frozenset([path.name, *names[:2]]))
        expected["near"].add(frozenset([path.name, *names]))
    return expected


def memory(process: int) -> int:
    """Bytes of a process and of its children, what they share counted once."""
    total = 0
    waiting = [process]
    while waiting:
        number = waiting.pop()
        try:
            lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
            for task in Path(f"/proc/{number}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (OSError, StopIteration):  # it has ended meanwhile
            continue
    return total


# Fuzz -----------------------------------------------------------------------------------------------------------------------


def fuzz(count: int, workers: int, seed: int) -> int:
    seeds = whole_files()
    kinds = (cut, changed, noise, wrong_header, declared, spliced)

    def make(items: range, ended: Mapping[int, str], began: Callable[[int], None]) -> list[tuple[str, int, float]]:
        made = []
        for item in items:
            generator = np.random.default_rng([seed, item])
            kind = kinds[item % len(kinds)]
            data = kind(generator, seeds)
            began(item)
            start = time.process_time()
            look = fatal(ended[item]) if item in ended else look_at(data, "a.png", Wanted(64))
            made.append((kind.__name__, int(look.row["faults"]), time.process_time() - start))
        return made

    pieces = [range(first, min(first + PIECE, count)) for first in range(0, count, PIECE)]
    began = time.monotonic()
    found = [each for _, made in made_of(pieces, make, workers=workers) for each in made]
    seconds = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    dead = sum(bool(faults & bit("fatal")) for _, faults, _ in found)
    slowest = max(taken for *_, taken in found)
    print(f"{count:,} files, seed {seed}, {workers} processes, {seconds:.0f} s\n")
    stops = [fault for fault in FAULTS if fault.stops or fault.name == "huge"]
    print("| made | files | " + " | ".join(fault.name for fault in stops) + " | read |\n|---|---|" + "---|" * (len(stops) + 1))
    for kind in kinds:
        mine = [faults for name, faults, _ in found if name == kind.__name__]
        counts = [sum(bool(faults & bit(fault.name)) for faults in mine) for fault in stops]
        read = sum(not any(faults & bit(fault.name) for fault in stops if fault.name != "small") for faults in mine)
        print(f"| {kind.__name__.replace('_', ' ')} | {len(mine):,} | " + " | ".join(f"{each:,}" for each in counts) + f" | {read:,} |")
    print(f"\nended or halted a process: {dead}; slowest: {slowest:.2f} s of the processor; largest process: {peak / 1e6:.0f} MB")
    return 0 if dead == 0 and slowest < LATE_SECONDS and peak < 1e9 else 1


def whole_files() -> list[bytes]:
    """A picture in every format, some of them with palettes, transparency, frames, and as photographs are turned."""
    generator = np.random.default_rng(0)
    picture = Image.fromarray(generator.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((160, 120), Image.Resampling.BICUBIC)
    grey, clear, small = picture.convert("L"), picture.convert("RGBA"), picture.quantize(32)
    exif = Image.Exif()
    exif[0x0112] = 6
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    saved = [
        (picture, "PNG", {}), (small, "PNG", {"transparency": 3}), (deep, "PNG", {}), (clear, "PNG", {}),
        (picture, "PNG", {"save_all": True, "append_images": [picture.rotate(90)]}),
        (picture, "JPEG", {}), (picture, "JPEG", {"progressive": True, "exif": exif}), (picture.convert("CMYK"), "JPEG", {}),
        (picture, "GIF", {"save_all": True, "append_images": [picture.rotate(90)]}), (picture, "BMP", {}), (grey, "BMP", {}),
        (picture, "TIFF", {"compression": "tiff_adobe_deflate"}), (picture, "TIFF", {"compression": "tiff_lzw"}), (deep, "TIFF", {}),
        (picture, "WEBP", {}), (clear, "WEBP", {"lossless": True}), (picture, "PPM", {}), (picture, "JPEG2000", {}),
        *([(picture, "AVIF", {})] if features.check("avif") else []),
    ]  # fmt: skip
    files = []
    for image, kind, options in saved:
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        files.append(buffer.getvalue())
    return files


def drawn(generator: np.random.Generator, seeds: list[bytes]) -> bytes:
    return seeds[generator.integers(len(seeds))]


def cut(generator: np.random.Generator, seeds: list[bytes]) -> bytes:
    data = drawn(generator, seeds)
    return data[: generator.integers(len(data))]


def changed(generator: np.random.Generator, seeds: list[bytes]) -> bytes:
    data = bytearray(drawn(generator, seeds))
    reach = len(data) if generator.random() < 0.5 else min(len(data), 200)
    for place in generator.integers(0, reach, generator.integers(1, 9)):
        data[place] = generator.integers(256)
    return bytes(data)


def noise(generator: np.random.Generator, seeds: list[bytes]) -> bytes:
    return generator.bytes(int(generator.integers(0, 4000)))


def wrong_header(generator: np.random.Generator, seeds: list[bytes]) -> bytes:
    size = int(generator.integers(4, 40))
    return drawn(generator, seeds)[:size] + generator.bytes(int(generator.integers(0, 3000)))


def spliced(generator: np.random.Generator, seeds: list[bytes]) -> bytes:
    first, second = drawn(generator, seeds), drawn(generator, seeds)
    return first[: generator.integers(len(first))] + second[generator.integers(len(second)) :]


@functools.cache
def zeros(power: int) -> bytes:
    """2^power MiB of zeros, deflated."""
    packer = zlib.compressobj(1)
    return b"".join(packer.compress(bytes(2**20)) for _ in range(2**power)) + packer.flush()


def declared(generator: np.random.Generator, seeds: list[bytes]) -> bytes:
    """A header of any sides up to 2^31, with few pixels behind it, or with zeros that unpack to as many as there is room for."""
    width, height = (int(2 ** generator.uniform(0, 31 if generator.random() < 0.3 else 15)) for _ in range(2))
    if generator.random() < 0.3:
        return b"P5 %d %d 255\n" % (width, height) + bytes(1000)
    if generator.random() < 0.3:
        sides = b"".join(min(side, 2**31 - 1).to_bytes(4, "little") for side in (width, height))
        return b"BM" + bytes(8) + (54).to_bytes(4, "little") + (40).to_bytes(4, "little") + sides + b"\1\0\x18\0" + bytes(500)
    depth, colour = [(8, 0), (8, 2), (16, 0), (16, 2), (8, 6), (1, 0)][generator.integers(6)]
    packed = zeros(int(generator.integers(0, 9)))
    head = width.to_bytes(4) + height.to_bytes(4) + bytes([depth, colour, 0, 0, 0])
    chunks = [(b"IHDR", head), (b"IDAT", packed), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        len(body).to_bytes(4) + kind + body + zlib.crc32(kind + body).to_bytes(4) for kind, body in chunks
    )


if __name__ == "__main__":
    sys.exit(main())
