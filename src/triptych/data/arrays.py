"""Images that come as arrays: the built-in digits, MNIST's idx files, CIFAR-10's binary files, .npz and .npy."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import shutil
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO, TypeVar, cast

import numpy as np

from triptych.core.address import Address, Place
from triptych.core.cache import cache_folder
from triptych.core.errors import DataError
from triptych.core.files import explain, remove, sweep, whole
from triptych.core.memory import in_bytes
from triptych.core.npz import DamagedArchive, Header, Npz, OnDisk, Rows, local, map_npy, open_npz
from triptych.core.reading import MOST_CLASSES, open_regular
from triptych.core.wording import counted
from triptych.data.naming import LABELS

_IDX_IMAGES, _IDX_LABELS = 2051, 2049  # magic numbers: unsigned bytes in 3 dimensions and in 1
_CIFAR_SIDE = 32
_CIFAR_RECORD = 1 + 3 * _CIFAR_SIDE**2
_CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_DIGIT_LEVELS = 16
_TEST = "test/"
_BLOCK = 2**20  # bytes
_READ_WHOLE = 2**28  # bytes of an array in an .npz; larger ones are mapped
_LEFT_FREE = 2**28  # bytes of a disk

T = TypeVar("T")


@dataclass(frozen=True)
class Arrays:
    """Images of one split as uint8 (n, h, w, c) and their classes as int64 (n,), or None."""

    name: str
    pixels: OnDisk
    labels: np.ndarray | None
    class_names: tuple[str, ...] | None
    keys_begin: str = ""
    "What their keys begin with: test/ of a source's own images for testing."

    def __len__(self) -> int:
        return len(self.pixels)

    def key(self, k: int) -> str:
        """What an image is called inside the source: its number."""
        return f"{self.keys_begin}{k}"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.pixels.shape[2], self.pixels.shape[1]

    @property
    def channels(self) -> int:
        """1 or 3."""
        return self.pixels.shape[3]


def digits() -> Arrays:
    """1,797 handwritten digits of 8x8 pixels (E. Alpaydin and C. Kaynak, CC BY 4.0; see assets/digits.txt)."""
    with resources.as_file(resources.files("triptych.data") / "assets" / "digits.npz") as path, np.load(path, allow_pickle=False) as file:
        levels, labels = file["images"].astype(np.int64), file["labels"].astype(np.int64)
    pixels = ((levels * 255 + _DIGIT_LEVELS // 2) // _DIGIT_LEVELS).astype(np.uint8)
    return Arrays("digits", pixels[..., None], labels, tuple(map(str, range(10))))


def find_idx(folder: Path, split: str, kind: str) -> Path | None:
    """MNIST's file of a split ("train", "t10k") and kind ("images-idx3", "labels-idx1"), compressed or not."""
    names = (f"{split}-{spelling}-ubyte{suffix}" for spelling in (kind, kind.replace("-", ".")) for suffix in ("", ".gz"))
    return next((folder / name for name in names if (folder / name).is_file()), None)


def mnist(folder: Path, split: str) -> Arrays | None:
    """A split of MNIST or of a data set in its format; None when the folder lacks it."""
    images, labels = find_idx(folder, split, "images-idx3"), find_idx(folder, split, "labels-idx1")
    if images is None:
        return None
    pixels = _idx(images, magic=_IDX_IMAGES)
    _check_images(str(images), Header(pixels.shape, pixels.dtype))
    if labels is None:
        raise DataError(f"{images}: the file of its labels, {split}-labels-idx1-ubyte, is not beside it")
    classes = _idx(labels, magic=_IDX_LABELS).astype(np.int64)
    if len(classes) != len(pixels):
        raise DataError(f"{labels}: {counted(len(classes), 'label')} for the {counted(len(pixels), 'image')} of {images.name}")
    return Arrays(images.name, pixels[..., None], classes, numerals(classes, str(labels)), keys_begin="" if split == "train" else _TEST)


def _idx(path: Path, *, magic: int) -> np.ndarray:
    dimensions = magic % 256
    try:
        with open(open_regular(path), "rb") as file, cast(IO[bytes], gzip.open(file)) if path.suffix == ".gz" else file as content:
            head = content.read(4 + 4 * dimensions)
            found = int.from_bytes(head[:4])
            if found != magic:
                kind = "images" if magic == _IDX_IMAGES else "labels"
                raise DataError(f"{path}: not an idx file of {kind} (magic {found}, expected {magic})")
            shape = tuple(int.from_bytes(head[4 * k + 4 : 4 * k + 8]) for k in range(dimensions))
            data = _read_up_to(content, math.prod(shape) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({explain(error)})") from error
    if len(data) != math.prod(shape):
        count = f"{len(data)} bytes" if len(data) < math.prod(shape) else "more bytes"
        raise DataError(f"{path}: {count} of data where its header says {'x'.join(map(str, shape))}")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _read_up_to(content: IO[bytes], most: int) -> bytes:
    """The rest of a file, or its first `most` bytes, without taking memory for bytes that are not there."""
    data = bytearray()
    while len(data) < most and (block := content.read(min(most - len(data), _BLOCK))):
        data += block
    return bytes(data)


def cifar10(folder: Path, pattern: str) -> Arrays | None:
    """A split of CIFAR-10's binary version, by the names of its files; None when the folder lacks it."""
    files = sorted(folder.glob(pattern))
    parts = [_cifar_records(path) for path in files]
    if not parts:
        return None
    wanted = [f"data_batch_{number}.bin" for number in range(1, len(files) + 1)]
    missing = [] if pattern.startswith("test") else [name for name in wanted if not (folder / name).exists()]
    if missing:
        raise DataError(f"{folder}: has {files[-1].name}, but no {missing[0]}; copy the missing file of CIFAR-10 there")
    records = np.concatenate(parts)
    pixels = records[:, 1:].reshape(-1, 3, _CIFAR_SIDE, _CIFAR_SIDE).transpose(0, 2, 3, 1)
    begin = _TEST if pattern.startswith("test") else ""
    return Arrays(folder.name, np.ascontiguousarray(pixels), records[:, 0].astype(np.int64), _CIFAR_CLASSES, keys_begin=begin)


def _cifar_records(path: Path) -> np.ndarray:
    try:
        with open(open_regular(path), "rb") as file:
            data = np.fromfile(file, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) == 0 or len(data) % _CIFAR_RECORD:
        raise DataError(
            f"{path}: {len(data)} bytes, expected a multiple of {_CIFAR_RECORD}; it is cut short or not CIFAR-10's binary version"
        )
    records = data.reshape(-1, _CIFAR_RECORD)
    if records[:, 0].max() >= len(_CIFAR_CLASSES):
        raise DataError(f"{path}: holds class {records[:, 0].max()}, expected 0 to 9; it is not CIFAR-10's binary version")
    return records


def array_file(path: Place) -> Arrays:
    """A .npy of images, mapped into memory as it is read, or an .npz with images as arr_0 (or "images") and perhaps labels as arr_1.

    Images of an .npz that have more than 256 MiB are mapped too: where they lie, or, if they are compressed, once they are unpacked into
    the user's cache, where the next process finds them.
    """
    pixels, labels = _images_and_labels(path, lambda file, name: _read_or_mapped(file, name, path))
    return Arrays(path.name, _with_channels(pixels), labels, None if labels is None else numerals(labels, str(path)))


def image_rows(path: Path) -> tuple[np.ndarray | Rows, np.ndarray | None]:
    """The same images, uint8 (n, h, w) or (n, h, w, 1 or 3), which stay on the disk, and their labels, int64 (n,), or None."""
    rows, labels = _images_and_labels(path, Npz.rows)
    return rows if isinstance(rows, Rows) else local(rows), labels


def _images_and_labels(path: Place, read: Callable[[Npz, str], T]) -> tuple[T | OnDisk, np.ndarray | None]:
    try:
        if path.suffix.lower() == ".npy":
            mapped = map_npy(path)
            _check_images(str(path), Header(mapped.shape, mapped.dtype))
            return mapped, None
        with open_npz(path) as file:
            images, classes = ("images", "labels") if "arr_0" not in file.names else ("arr_0", "arr_1")
            if images not in file.names:
                held = ", ".join(file.names) or "nothing"
                raise DataError(f"{path}: holds {held}, expected images as arr_0 (and labels as arr_1), or as images (and labels)")
            header = file.header(images)
            _check_images(f"{path}: {images}", header)  # before anything is unpacked
            pixels = read(file, images)
            labels = _labels(file, classes, header.shape[0], f"{path}: {classes}") if classes in file.names else None
    except (OSError, MemoryError) as error:
        raise DataError(f"{path}: cannot be read ({explain(error)})") from error
    except DamagedArchive as error:
        hint = " (images of mixed sizes?)" if "Python objects" in str(error) else ""
        raise DataError(f"{path}: {error}{hint}; save one uint8 array of shape (n, height, width, 1 or 3)") from error
    return pixels, labels


def _read_or_mapped(file: Npz, name: str, path: Place) -> OnDisk:
    if file.header(name).bytes <= _READ_WHOLE:
        return file.array(name)
    if file.is_stored(name):
        return file.mapped(name)
    if isinstance(path, Address):
        raise DataError(f"{path}: {name} is compressed, and cannot be read in parts; save it with np.savez, or copy it here")
    return _unpacked(file, name, path)


def _unpacked(file: Npz, name: str, path: Path) -> OnDisk:
    """A compressed array, mapped from the cache, into which it is unpacked where nobody did so before. Raises DataError without the room.

    One array is kept for each path: that of an earlier file is removed.
    """
    header, folder = file.header(name), cache_folder() / "arrays"
    place = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]
    status = path.stat()
    stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino, name, header.shape]
    target = folder / f"{place}-{hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:16]}.npy"
    with suppress(OSError, DamagedArchive):
        found = map_npy(target)
        if (found.shape, found.dtype) == (header.shape, header.dtype):
            return found
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder)
    free = shutil.disk_usage(folder).free
    if free < header.bytes + _LEFT_FREE:
        reason = f"{path}: unpacked it has {in_bytes(header.bytes)}, and {folder} has room for {in_bytes(max(0, free - _LEFT_FREE))}"
        raise DataError(f"{reason}; name a folder with more in TRIPTYCH_CACHE, or save it with np.savez, which does not compress")
    with whole(target) as temporary:
        file.unpack(name, temporary)
    for earlier in folder.glob(f"{place}-*.npy"):
        if earlier != target:
            remove(earlier)
    return map_npy(target)


def _with_channels(array: OnDisk) -> OnDisk:
    if array.ndim != 3:
        return array
    return array[..., None] if isinstance(array, np.ndarray) else array.reshaped(*array.shape, 1)


def _check_images(where: str, header: Header) -> None:
    shape = (*header.shape, 1) if len(header.shape) == 3 else header.shape
    if len(shape) != 4 or shape[-1] not in (1, 3) or 0 in shape[1:] or header.dtype != np.uint8:
        raise DataError(f"{where}: {header.dtype} of shape {header.shape}, expected uint8 of shape (n, height, width, 1 or 3)")


def _labels(file: Npz, name: str, count: int, where: str) -> np.ndarray:
    header = file.header(name)
    fits = header.shape == (count,) and np.issubdtype(header.dtype, np.integer)
    labels = file.array(name) if fits else np.empty(0)  # nothing else is unpacked
    if not fits or (count and labels.min() < 0):
        raise DataError(f"{where}: {header.dtype} of shape {header.shape}, expected {counted(count, 'label')}, whole numbers from 0")
    return labels.astype(np.int64)


def numerals(labels: np.ndarray, where: str) -> tuple[str, ...]:
    """The names of classes that have none but their numbers. Raises DataError for numbers that can be none."""
    largest = int(labels.max(initial=-1))
    if largest >= MOST_CLASSES:
        raise DataError(f"{where}: label {largest}, expected less than {MOST_CLASSES}", advice="set {} to none", setting=LABELS)
    return tuple(map(str, range(largest + 1)))
