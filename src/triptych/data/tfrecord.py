"""Images of TFRecord files as openai/glow writes them, read without TensorFlow.

A data set is a folder with `train/` and `validation/`; their files are `<split>-r%02d-s-%04d-of-%04d.tfrecords`: base-2 logarithm
of the resolution, number of the shard, shards in all. A file is a row of records: the length (uint64, little-endian), its masked
CRC-32C, the data, their masked CRC-32C. The data are a tf.train.Example, a protocol buffer: a map from names to lists, here `shape`
(height, width, channels), `data` (the uint8 pixels in that order) and `label`; what else it holds is passed over.

The files are walked from header to header once, when they are opened; records are then read by their offset. Their checksums are
checked as they are read.
"""

from __future__ import annotations

import functools
import os
import re
import weakref
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triptych.core.crc32c import crc32c, masked
from triptych.core.errors import DataError
from triptych.core.protobuf import DELIMITED, VARINT, Fetch, fields, in_memory, parts, varint
from triptych.core.reading import open_regular
from triptych.data.arrays import numerals
from triptych.data.naming import LABELS

_SPLITS = ("train", "validation")
_NAME = re.compile(r"(train|validation)-r(\d\d)-s-(\d{4}|[1-9]\d{4,8})-of-(\d{4}|[1-9]\d{4,8})\.tfrecords")
_HEADER, _FOOTER = 12, 4  # bytes: length and checksum before the data, checksum after them
_MOST_OPEN = 128  # files at a time: data sets have thousands, and processes may often open 1024
_WINDOW = 256  # bytes that are read at once of a record of which only the label is wanted
_INTS = 3  # the field of a tf.train.Feature that holds int64; 1 holds bytes, 2 floats
_BYTES = 1
_REPAIR = "copy or make the file again"


class Records:
    """The records of one split at one resolution."""

    def __init__(self, folder: Path, names: list[str], *, resolution: int) -> None:
        self.name = str(folder)
        self.resolution = resolution
        self.labels: np.ndarray | None = None
        self.class_names: tuple[str, ...] | None = None
        self._paths = [folder / name for name in names]
        walked = [_walked(path) for path in self._paths]
        self._ends = np.cumsum([len(offsets) for offsets, _ in walked], dtype=np.int64)
        self._offsets = np.concatenate([offsets for offsets, _ in walked])
        self._lengths = np.concatenate([lengths for _, lengths in walked])
        if not len(self):
            raise DataError(f"{self.name}: its TFRecord files of resolution {resolution} hold no records")
        self._descriptors: dict[int, int] = {}
        weakref.finalize(self, _close_all, self._descriptors)
        height, width, self.channels = self._parsed(0)[0]
        self.size = (width, height)
        "Width and height of the first image; others may have others, but no side below the resolution."
        self.read(0)

    def __len__(self) -> int:
        return len(self._offsets)

    def describe(self, k: int) -> str:
        """The file of a record and its number there, from 0, for messages."""
        file, number = self._place(k)
        return f"{self._paths[file]}: record {number}"

    def key(self, k: int) -> str:
        """The same within the folder of the data set, which is the same on every machine."""
        file, number = self._place(k)
        return f"{self._paths[file].parent.name}/{self._paths[file].name}: record {number}"

    def read(self, k: int) -> np.ndarray:
        """An image as uint8 (h, w, c). Raises DataError naming its file and number."""
        shape, pixels = self._parsed(k)
        if min(shape[:2]) < self.resolution or shape[2] != self.channels:
            sides, expected = "x".join(map(str, shape)), f"{self.resolution}x{self.resolution}x{self.channels}"
            raise DataError(f"{self.describe(k)}: an image of {sides} among those of {expected} or more; {_REPAIR}")
        return pixels

    def read_labels(self) -> np.ndarray:
        """The labels of all records, int64 of shape (n,), read around the pixels. Raises DataError for a record without one."""
        return np.fromiter((self._label(k) for k in range(len(self))), dtype=np.int64, count=len(self))

    def _place(self, k: int) -> tuple[int, int]:
        file = int(np.searchsorted(self._ends, k, side="right"))
        return file, k - int(self._ends[file - 1] if file else 0)

    def _descriptor(self, file: int) -> int:
        if file not in self._descriptors:
            if len(self._descriptors) >= _MOST_OPEN:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
            self._descriptors[file] = os.open(self._paths[file], os.O_RDONLY)
        return self._descriptors[file]

    def _read(self, k: int) -> memoryview:
        """The data of a record, once they are as long and have the checksum that the file says."""
        length = int(self._lengths[k])
        try:
            data = memoryview(os.pread(self._descriptor(self._place(k)[0]), length + _FOOTER, int(self._offsets[k])))
        except OSError as error:
            raise DataError(f"{self.describe(k)}: cannot be read ({error.strerror})") from error
        if len(data) < length + _FOOTER:
            raise DataError(f"{self.describe(k)}: cut short; {_REPAIR}")
        if masked(crc32c(data[:length])) != int.from_bytes(data[length:], "little"):
            raise DataError(f"{self.describe(k)}: damaged, its checksum is wrong; {_REPAIR}")
        return data[:length]

    def _parsed(self, k: int) -> tuple[tuple[int, ...], np.ndarray]:
        """Shape and pixels of an image, which fit together."""
        data = self._read(k)
        try:
            spans = _features(in_memory(data), len(data), wanted=(b"shape", b"data"))
            shape = tuple(_ints(in_memory(data), *spans[b"shape"]))
            start, end = _bytes(in_memory(data), *spans[b"data"])
        except (ValueError, LookupError) as error:
            raise self._unusable(k, error) from error
        if len(shape) != 3 or min(shape) < 1 or shape[2] not in (1, 3) or shape[0] * shape[1] * shape[2] != end - start:
            sides = "x".join(map(str, shape[:4])) or "empty"
            raise DataError(
                f"{self.describe(k)}: {end - start} bytes of pixels where its shape is {sides} (height, width, 1 or 3 expected)"
            )
        return shape, np.frombuffer(data, dtype=np.uint8, count=end - start, offset=start).reshape(shape)

    def _label(self, k: int) -> int:
        try:
            fetch = _window(self._descriptor(self._place(k)[0]), int(self._offsets[k]))
            labels = list(_ints(fetch, *_features(fetch, int(self._lengths[k]), wanted=(b"label",))[b"label"]))
        except OSError as error:
            raise DataError(f"{self.describe(k)}: cannot be read ({error.strerror})") from error
        except KeyError as error:
            raise DataError(f"{self.describe(k)}: has no label", advice="set {} to none", setting=LABELS) from error
        except (ValueError, IndexError) as error:
            raise self._unusable(k, error) from error
        if len(labels) != 1 or labels[0] < 0:
            values = ", ".join(map(str, labels[:4])) or "none"
            reason = f"{self.describe(k)}: label {values}, expected one number from 0"
            raise DataError(reason, advice="set {} to none", setting=LABELS)
        return labels[0]

    def _unusable(self, k: int, error: Exception) -> DataError:
        reason = f"it lacks {error.args[0].decode()!r}" if isinstance(error, KeyError) else str(error) or "it is damaged"
        return DataError(f"{self.describe(k)}: not an image as openai/glow writes it ({reason})")


def _close_all(descriptors: dict[int, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)


# Files


def holds_records(folder: Path) -> bool:
    """Whether a folder's `train` or `validation` holds files of this kind."""
    return any(_shards(folder / split) for split in _SPLITS)


def is_split(folder: Path) -> bool:
    """Whether the folder itself holds such files: it is a split, and the data set is the folder above."""
    return folder.name in _SPLITS and bool(_shards(folder))


def open_records(folder: Path, *, side: int, labelled: bool) -> tuple[Records, Records | None]:
    """The training and validation images of the smallest resolution of at least `side`, else of the largest there is.

    Without a `validation` folder the latter are None. Raises DataError naming a shard that is missing or damaged.
    """
    train, validation = (_open_split(folder / split, side=side) for split in _SPLITS)
    if train is None:
        raise DataError(f"{folder}: holds no {_SPLITS[0]}/{_SPLITS[0]}-rRR-s-SSSS-of-SSSS.tfrecords (as openai/glow names them)")
    if labelled:
        _label(train, validation)
    return train, validation


def _label(train: Records, validation: Records | None) -> None:
    """Gives both their labels, unless all are 0: so the original writes images without classes."""
    parts = [train] if validation is None else [train, validation]
    labels = [part.read_labels() for part in parts]
    if any(each.any() for each in labels):
        names = numerals(np.concatenate(labels), train.name)
        for part, each in zip(parts, labels, strict=True):
            part.labels, part.class_names = each, names


@dataclass(frozen=True)
class _Shard:
    name: str
    bits: int  # log2 of the resolution
    number: int
    count: int


def _shards(folder: Path) -> list[_Shard]:
    """The files of a split's folder, in order."""
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror})") from error
    matches = [match for match in map(_NAME.fullmatch, names) if match and match[1] == folder.name]
    return [_Shard(match[0], int(match[2]), int(match[3]), int(match[4])) for match in matches]


def _open_split(folder: Path, *, side: int) -> Records | None:
    shards = _shards(folder)
    if not shards:
        return None
    bits = min((shard.bits for shard in shards if 2**shard.bits >= side), default=max(shard.bits for shard in shards))
    shards = [shard for shard in shards if shard.bits == bits]
    count, name = shards[0].count, shards[0].name
    other = next((shard for shard in shards if shard.count != count or shard.number >= count), None)
    if other is not None:
        raise DataError(f"{folder / other.name}: does not go with {name}; keep the files of one set of shards")
    numbers = {shard.number for shard in shards}
    missing = next((k for k in range(count) if k not in numbers), None)
    if missing is not None:
        sibling = re.sub(r"-s-\d+-", f"-s-{missing:04d}-", name)
        raise DataError(f"{folder / sibling}: missing; all {count} shards have to be there")
    return Records(folder, [shard.name for shard in sorted(shards, key=lambda shard: shard.number)], resolution=2**bits)


def _walked(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Where the data of each record of a file begin, and how long they are: int64, both of shape (n,)."""
    offsets, lengths = array("q"), array("q")
    try:
        with open(open_regular(path), "rb", buffering=0) as file:
            descriptor, size, position = file.fileno(), os.fstat(file.fileno()).st_size, 0
            while position < size:
                length = _length(os.pread(descriptor, _HEADER, position))
                end = size + 1 if length is None else position + _HEADER + length + _FOOTER
                if length is not None and length < 0:
                    raise DataError(
                        f"{path}: record {len(offsets)} is damaged, or this is no TFRecord file, or a compressed one (unpack it); {_REPAIR}"
                    )
                if length is None or end > size:
                    raise DataError(f"{path}: cut short in record {len(offsets)}; {_REPAIR}")
                offsets.append(position + _HEADER)
                lengths.append(length)
                position = end
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    return np.array(offsets, dtype=np.int64), np.array(lengths, dtype=np.int64)


@functools.lru_cache(maxsize=4096)  # the records of a data set have few lengths
def _length(header: bytes) -> int | None:
    """The length in a record's header; None where the header is cut short, -1 where its checksum is wrong."""
    if len(header) < _HEADER:
        return None
    whole = masked(crc32c(header[:8])) == int.from_bytes(header[8:], "little")
    return int.from_bytes(header[:8], "little") if whole else -1


# tf.train.Example. All of these raise ValueError or IndexError where the bytes are none.


def _window(descriptor: int, offset: int) -> Fetch:
    """Reads from a file a little at a time, so that pixels can be skipped."""
    held, first = b"", 0

    def fetch(start: int, count: int) -> bytes:
        nonlocal held, first
        if start < first or start + count > first + len(held):
            held, first = os.pread(descriptor, max(count, _WINDOW), offset + start), start
        return held[start - first : start - first + count]

    return fetch


def _features(fetch: Fetch, length: int, *, wanted: tuple[bytes, ...]) -> dict[bytes, tuple[int, int]]:
    """Where in a tf.train.Example the wanted features are; looks no further than it has to."""
    spans = {}
    for features in parts(fetch, 0, length, 1):
        for entry in parts(fetch, *features, 1):
            key, value = b"", (0, 0)
            for number, kind, start, end in fields(fetch, *entry):
                if number == 1 and kind == DELIMITED and end - start <= max(map(len, wanted)):
                    key = bytes(fetch(start, end - start))
                elif number == 2 and kind == DELIMITED:
                    value = (start, end)
            if key in wanted:
                spans[key] = value
            if len(spans) == len(wanted):
                return spans
    return spans


def _ints(fetch: Fetch, start: int, end: int) -> Iterator[int]:
    """The numbers of a tf.train.Feature of int64."""
    for listed in parts(fetch, start, end, _INTS):
        for number, kind, first, last in fields(fetch, *listed):
            if number == 1 and kind in (VARINT, DELIMITED):  # one number, or many in a row
                data, at = fetch(first, last - first), 0
                while at < last - first:
                    value, at = varint(data, at)
                    yield value if value < 1 << 63 else value - (1 << 64)


def _bytes(fetch: Fetch, start: int, end: int) -> tuple[int, int]:
    """Where the one string of a tf.train.Feature of bytes is."""
    strings = [span for listed in parts(fetch, start, end, _BYTES) for span in parts(fetch, *listed, 1)]
    if len(strings) != 1:
        raise ValueError(f"'data' holds {len(strings)} strings of bytes")
    return strings[0]
