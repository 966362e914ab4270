"""What the start of a training takes more where there are many images: processor time and memory, by how they are stored.

    python benchmarks/many_images.py --out FILE.md

A folder of 200,000 PNGs of 16x16 pixels, the same in 1,000 sub-folders, and tars and Parquet files of half as many, which it writes; each
as the data of `flow-small` for one step, without loader processes, beside 16 images. What is kept in the user's cache is kept in a folder
of its own, so that the first start of each finds nothing. Every start is a process.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from machine import machine, show_report
from PIL import Image

FEW, DISTINCT, FOLDERS, MOST_IN_GROUP = 16, 256, 1_000, 1_000
STEP = f"--data.image-size 16 --data.workers 0 --train.total-images {FEW} --train.batch-size {FEW} --train.sample-count 0 --log.no-report"
STEP += " --train.validate-images 0 --device cpu"
CHILD = """
import json, resource, sys
from triptych.cli.main import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
"""


def pngs() -> list[bytes]:
    """Some images of noise, encoded; sets repeat them."""
    chance, encoded = np.random.default_rng(0), []
    for _ in range(DISTINCT):
        buffer = io.BytesIO()
        Image.fromarray(chance.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(buffer, "PNG")
        encoded.append(buffer.getvalue())
    return encoded


def write_folder(place: Path, images: list[bytes], count: int) -> None:
    place.mkdir()
    for k in range(count):
        (place / f"{k:06}.png").write_bytes(images[k % DISTINCT])


def write_folders(place: Path, images: list[bytes], count: int) -> None:
    for k in range(count):
        folder = place / f"{k % FOLDERS:04}"
        if k < FOLDERS:
            folder.mkdir(parents=True)
        (folder / f"{k:06}.png").write_bytes(images[k % DISTINCT])


def write_tar(place: Path, images: list[bytes], count: int) -> None:
    with tarfile.open(place, "w") as archive:
        for k in range(count):
            member = tarfile.TarInfo(f"{k:06}.png")
            member.size = len(images[k % DISTINCT])
            archive.addfile(member, io.BytesIO(images[k % DISTINCT]))


def write_parquet(place: Path, images: list[bytes], count: int) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [{"bytes": images[k % DISTINCT], "path": f"{k:06}.png"} for k in range(count)]
    pyarrow.parquet.write_table(pyarrow.table({"image": rows}), place, row_group_size=MOST_IN_GROUP)


def start(data: Path, run: Path, cache: Path) -> tuple[float, float]:
    """Seconds of the processor, and MiB at most, of a training of one step in a new run."""
    command = [sys.executable, "-c", CHILD, "train", "flow-small", "--run", str(run), "--data.path", str(data), *STEP.split()]
    environment = os.environ | {"TRIPTYCH_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    code, seconds, mebibytes = json.loads(said.splitlines()[-1])
    assert code == 0, said
    return seconds, mebibytes


def measured(folder: Path, count: int) -> list[tuple[str, float, float]]:
    """What, seconds and MiB of the few images, and of each other source what it takes more."""
    images, half = pngs(), count // 2
    sources: list[tuple[str, str, int, Callable[[Path, list[bytes], int], None]]] = [
        ("a folder of {:,} images", "folder", count, write_folder),
        (f"{{:,}} images in {FOLDERS:,} sub-folders", "folders", count, write_folders),
        ("a tar of {:,} images", "many.tar", half, write_tar),
    ]
    if importlib.util.find_spec("pyarrow") is not None:
        sources.append((f"a Parquet file of {{:,}} rows in groups of {MOST_IN_GROUP:,}", "many.parquet", half, write_parquet))
    write_folder(folder / "few", images, FEW)
    runs, cache = folder / "runs", folder / "cache"
    start(folder / "few", runs / "warm", cache)  # so that files of Python and PyTorch are in memory
    few = start(folder / "few", runs / "few", cache)
    rows = [(f"{FEW} images", *few)]
    for name, place, number, write in sources:
        write(folder / place, images, number)
        for time in ("the first time", "the next time"):
            seconds, mebibytes = start(folder / place, runs / f"{place} {time}", cache)
            rows.append((f"{name.format(number)}, {time}", seconds - few[0], mebibytes - few[1]))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200_000, help="of a folder; of a tar or a Parquet file half as many")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        (_, seconds, mebibytes), *rows = measured(Path(scratch), options.images)
        lines = [
            f"# Starts with many images, {datetime.date.today().isoformat()}",
            "",
            f"{machine()}; processor time of one process, other programs ran beside it.",
            "",
            f"With {FEW} images a start takes {seconds:.1f} s of the processor and {mebibytes:.0f} MiB. More than that:",
            "",
            "| | seconds of the processor | memory, MiB |",
            "|---|---|---|",
            *(f"| {name} | {more:.1f} | {memory:.0f} |" for name, more, memory in rows),
        ]
        show_report(lines, out=options.out)  # before all is removed, which takes minutes


if __name__ == "__main__":
    main()
