"""Databases, records, arrays and archives with damage: each is one line or is read, and nothing takes much memory.

Bytes are changed and files cut at places that a seed chooses. `DAMAGES` sets how many for each kind of file.
"""

from __future__ import annotations

import gzip
import os
import random
import shutil
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.data.databases import write_database
from tests.data.pictures import encoded, picture, write_folder, write_tar, write_zip
from tests.data.records import crc, example, features_of, shard
from tests.interop.checkpoint import FOLDER, PREFIX
from tests.interop.test_tensor_bundle import FLOAT, HEADER, described
from triptych.core.errors import CheckpointError, DataError
from triptych.data.archives import open_tar, open_zip
from triptych.data.arrays import array_file, mnist
from triptych.data.config import DataConfig
from triptych.data.database import open_database
from triptych.data.files import Files
from triptych.data.tfrecord import open_records
from triptych.interop.tensor_bundle import read_bundle

DAMAGES = int(os.environ.get("DAMAGES", "40"))
MOST_TAKEN = 2**24  # bytes; the files have a few thousand


def damaged(data: bytes, seed: int) -> bytes:
    """The data with some bytes changed, or cut short."""
    chance, changed = random.Random(seed), bytearray(data)
    kind = chance.randrange(4)
    if kind == 0:
        return data[: chance.randrange(len(data))]
    for _ in range(1 if kind == 1 else 8):
        place = chance.randrange(len(changed))
        changed[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, changed[place] ^ 1 << chance.randrange(8)))
    if kind == 3:  # a number of four bytes
        place = chance.randrange(len(changed))
        changed[place : place + 4] = chance.choice((b"\xff\xff\xff\xff", b"\0\0\0\x7f", b"\x7f\0\0\0"))[: len(changed) - place]
    return bytes(changed)


def all_read(files: Files) -> None:
    for k in range(len(files.names)):
        files.read(k)


def try_all(path: Path, read: Callable[[], object], versions: Iterator[bytes]) -> int:
    """How many versions of the file were refused. Fails for an error that is none of ours, one of many lines, or too much memory."""
    refused = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, data in enumerate(versions):
            path.write_bytes(data)
            tracemalloc.start()
            try:
                read()
            except (DataError, CheckpointError) as error:
                assert "\n" not in str(error) and len(str(error)) < 2000, (number, str(error)[:3000])
                refused += 1
            except Exception as error:
                raise AssertionError(f"version {number}: {type(error).__name__}: {error}") from error
            finally:
                taken = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
            assert taken < MOST_TAKEN, (number, taken)
    return refused


def versions(data: bytes, *, first: int = 0) -> Iterator[bytes]:
    return (damaged(data, seed) for seed in range(first, first + DAMAGES))


def test_a_database(tmp_path):
    folder = write_database(tmp_path / "db", write_folder(tmp_path / "files", [f"a/{k:02d}.png" for k in range(30)]))
    path = folder / "data.mdb"
    data = path.read_bytes()
    page = 4096
    assert try_all(path, lambda: all_read(open_database(folder)), versions(data)) > DAMAGES // 8

    def in_headers() -> Iterator[bytes]:  # where nearly every byte matters
        for seed in range(DAMAGES * 2):
            chance = random.Random(seed)
            start = chance.randrange(len(data) // page) * page
            yield data[:start] + damaged(data[start : start + 160], seed)[:160].ljust(160, b"\0") + data[start + 160 :]

    assert try_all(path, lambda: all_read(open_database(folder)), in_headers()) > DAMAGES // 2


def test_records(tmp_path):
    images = [picture(8, 8, seed=k) for k in range(3)]
    examples = [example(features_of(image)) for image in images]
    path = shard(tmp_path / "train", bits=3)
    path.parent.mkdir()

    def framed(data: bytes) -> bytes:
        """A record whose checksums are right, so that what it holds is looked at."""
        length = len(data).to_bytes(8, "little")
        return length + crc(length).to_bytes(4, "little") + data + crc(data).to_bytes(4, "little")

    def read() -> None:
        records, _ = open_records(tmp_path, side=8, labelled=True)
        for k in range(len(records)):
            records.read(k)

    whole = b"".join(map(framed, examples))
    path.write_bytes(whole)
    read()
    assert try_all(path, read, versions(whole)) > DAMAGES // 2
    # Bytes of the message around the pixels, of which a change shows nowhere.
    short = example(features_of(np.zeros((8, 8, 1), np.uint8)))
    assert try_all(path, read, (framed(damaged(short, seed)) for seed in range(DAMAGES))) > DAMAGES // 4


def test_a_bundle(tmp_path):
    for name in (f"{PREFIX.name}.index", f"{PREFIX.name}.data-00000-of-00001"):
        shutil.copyfile(FOLDER / name, tmp_path / name)
    read_bundle(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        data = path.read_bytes()
        assert try_all(path, lambda: read_bundle(tmp_path), versions(data)) > DAMAGES // 2
        path.write_bytes(data)


def test_the_entries_of_a_bundle(tmp_path):
    """Their checksums are right, so that what they say is looked at."""
    path = described(tmp_path, (b"", HEADER), (b"w", FLOAT)).with_suffix(".index")

    def lying() -> Iterator[bytes]:
        for seed in range(DAMAGES):
            header = damaged(HEADER, seed) if seed % 4 == 0 else HEADER
            yield described(tmp_path, (b"", header), (b"w", damaged(FLOAT, seed))).with_suffix(".index").read_bytes()

    assert try_all(path, lambda: read_bundle(tmp_path), lying()) > DAMAGES // 2


@pytest.mark.parametrize("ending", ["npz", "npy"])
def test_arrays(tmp_path, ending):
    images = np.stack([picture(8, 8, seed=k) for k in range(4)])
    path = tmp_path / f"x.{ending}"
    if ending == "npz":
        np.savez_compressed(path, images, np.arange(4))
    else:
        np.save(path, images)
    data = path.read_bytes()
    assert try_all(path, lambda: array_file(path).pixels.sum(), versions(data)) > DAMAGES // 8
    if ending == "npy":  # its header alone
        assert try_all(path, lambda: array_file(path).pixels.sum(), (damaged(data[:128], seed) + data[128:] for seed in range(DAMAGES)))


@pytest.mark.parametrize("ending", ["zip", "tar", "tar.gz"])
def test_archives(tmp_path, ending):
    folder = write_folder(tmp_path / "files", [f"a/{k}.png" for k in range(6)])
    path = tmp_path / f"x.{ending}"
    (write_zip if ending == "zip" else write_tar)(path, folder)
    opened = open_zip if ending == "zip" else open_tar
    data = path.read_bytes()
    assert try_all(path, lambda: all_read(opened(path)), versions(data)) > DAMAGES // 8
    if ending == "tar":  # its headers alone
        assert try_all(path, lambda: all_read(opened(path)), (damaged(data[:3072], seed) + data[3072:] for seed in range(DAMAGES)))


def test_idx_files(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    (tmp_path / "train-labels-idx1-ubyte").write_bytes((2049).to_bytes(4) + (5).to_bytes(4) + bytes(5))
    plain = (2051).to_bytes(4) + b"".join(n.to_bytes(4) for n in (5, 8, 8)) + bytes(range(64)) * 5
    assert try_all(path, lambda: mnist(tmp_path, "train"), versions(gzip.compress(plain))) > DAMAGES // 2
    assert try_all(path, lambda: mnist(tmp_path, "train"), (gzip.compress(damaged(plain[:16], k) + plain[16:]) for k in range(DAMAGES)))


@pytest.mark.parametrize("file_format", ["AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP"])
def test_images(tmp_path, file_format, capfd):
    (tmp_path / "d").mkdir()
    path = tmp_path / "d" / "a.png"
    options = {"compression": "jpeg"} if file_format == "TIFF" else {}
    data = encoded(picture(24, 24), file_format, **options)
    config = DataConfig(path=str(tmp_path / "d"), image_size=8, validation_fraction=0.0, decode="reduced")

    def read() -> None:
        images = config.open().train
        images.batch(np.arange(len(images)))

    try_all(path, read, versions(data))
    assert capfd.readouterr().err == ""
