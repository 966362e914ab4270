"""Checkpoints of TensorFlow (Saver V2: PREFIX.index, PREFIX.data-00000-of-00001), read without TensorFlow; and variables in an .npz.

The index is a table of LevelDB's: a footer of 48 bytes, which says where the index of its blocks is; blocks of entries, sorted by key, each
key given as what it shares with the one before and the rest; after each block a byte that says whether it is compressed, and a masked
CRC-32C. The values are small protocol buffers: a header under the empty key, and for every variable its type, shape, file, place, size and
CRC-32C. The data files are the variables' bytes, one after the other.

https://github.com/google/leveldb/blob/main/doc/table_format.md, and tensor_bundle.proto of TensorFlow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from triptych.core.crc32c import crc32c, masked
from triptych.core.errors import CheckpointError
from triptych.core.files import explain
from triptych.core.npz import DamagedArchive, open_npz
from triptych.core.protobuf import values, varint
from triptych.core.reading import read_regular

_FOOTER, _MAGIC, _TRAILER = 48, 0xDB4775248B80FB57, 5
_LARGEST_INDEX = 1 << 26  # bytes; that of 4,000 variables has 300,000
_MOST_AXES = 32
_MOST_UNPACKED = 10  # times the length of an .npz; weights hardly become shorter
_DATA_FILE = re.compile(r"\.data-\d{5}-of-\d{5}$")
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 14: "<u2", 19: "<f2"}
_BFLOAT16 = 14  # the upper half of a float32
_OTHER_TYPES = {4: "uint8", 5: "int16", 6: "int8", 7: "text", 8: "complex64", 10: "bool", 17: "uint16", 22: "uint32", 23: "uint64"}


@dataclass(frozen=True)
class Entry:
    """What the index says of a variable."""

    dtype: int
    "TensorFlow's number of its type."
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    sliced: bool
    "Whether it is stored in slices, each under a key of its own."


def read_variables(path: str | Path, *, wanted: Callable[[str], bool] | None = None) -> dict[str, np.ndarray]:
    """The variables of a checkpoint of TensorFlow, or of an .npz of arrays, by name; those that `wanted` accepts (None: all).

    `path` is the checkpoint's prefix, one of its files, or a folder with one checkpoint. Raises CheckpointError for anything else.
    """
    path = Path(path)
    return _read_npz(path, wanted) if path.suffix.lower() == ".npz" else read_bundle(path, wanted=wanted)


def read_bundle(path: str | Path, *, wanted: Callable[[str], bool] | None = None) -> dict[str, np.ndarray]:
    """The variables of a checkpoint by name, those that `wanted` accepts; its CRCs are checked.

    Numbers of other types than float16 to float64, bfloat16 (which becomes float32), int32 and int64 are left out where `wanted` is None,
    as text is. Raises CheckpointError, with the file's name, for files that are missing, cut or damaged, and for what it cannot read.
    """
    prefix = find_bundle(path)
    index = prefix.with_name(f"{prefix.name}.index")
    num_shards, entries = read_index(index)
    chosen = {name: entry for name, entry in entries.items() if (entry.dtype in _TYPES if wanted is None else wanted(name))}
    shards = {shard: _Shard(prefix, shard, num_shards) for shard in sorted({entry.shard for entry in chosen.values()})}
    by_place = sorted(chosen, key=lambda name: (chosen[name].shard, chosen[name].offset))
    end = dict.fromkeys(shards, 0)
    for name in by_place:  # before anything is read: a small file may claim to hold the same bytes a million times
        entry = chosen[name]
        if entry.offset < end[entry.shard]:
            _refuse(index, f"{name} lies where another variable does")
        end[entry.shard] = entry.offset + entry.size
        shards[entry.shard].check(name, entry)
    variables = {name: shards[chosen[name].shard].read(name, chosen[name]) for name in by_place}
    return {name: variables[name] for name in chosen}


def bundle_files(path: str | Path) -> list[Path]:
    """The files of a checkpoint, the index first, or the .npz. Raises CheckpointError where there is none."""
    path = Path(path)
    if path.suffix.lower() == ".npz":
        return [path]
    prefix = find_bundle(path)
    index = prefix.with_name(f"{prefix.name}.index")
    num_shards, _ = read_index(index)
    return [index, *(_Shard(prefix, shard, num_shards).path for shard in range(num_shards))]


def find_bundle(path: str | Path) -> Path:
    """The prefix of the checkpoint that its prefix, one of its files or a folder (or sub-folder) names. CheckpointError: none, several."""
    path = Path(path)
    if path.is_dir():
        indices = sorted(path.glob("*.index")) or sorted(path.glob("*/*.index"))
        if len(indices) != 1:
            several = indices and f"several checkpoints, {indices[0].stem} and {indices[1].stem} among them: name one"
            raise CheckpointError(f"{path} holds {several or 'no checkpoint (*.index)'}")
        return indices[0].with_suffix("")
    if path.suffix == ".pb":
        raise CheckpointError(f"{path} is a frozen graph, not variables; give a checkpoint: PREFIX.index with PREFIX.data-00000-of-00001")
    if re.search(r"\.(tar|tgz|zip|tar\.gz)$", path.name):
        raise CheckpointError(f"{path} is an archive; unpack it, and give the checkpoint in it (PREFIX.index)")
    name = _DATA_FILE.sub("", re.sub(r"\.(index|meta)$", "", path.name)) or path.name
    for prefix in dict.fromkeys((path.with_name(name), path)):
        if prefix.with_name(f"{prefix.name}.index").is_file():
            return prefix
    if path.is_file() and name == path.name:
        raise CheckpointError(f"{path} is not a checkpoint of TensorFlow: expected PREFIX.index with its PREFIX.data-*, or an .npz")
    raise CheckpointError(f"there is no checkpoint {path}: no file {name}.index in {path.parent}")


# The index ---------------------------------------------------------------------------------------------------------------


def read_index(path: Path) -> tuple[int, dict[str, Entry]]:
    """The number of data files, and the entry of each variable by name."""
    try:
        data = read_regular(path, most=_LARGEST_INDEX)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    if len(data) < _FOOTER or int.from_bytes(data[-8:], "little") != _MAGIC:
        _refuse(path, "it does not end as the index of a checkpoint does (Saver V2)")
    try:
        table = dict(_table(data))
        shards = _num_shards(table.pop(b"", None))
        # A key that begins with 0 is that of a slice; the variable has an entry too, which says that it is sliced.
        return shards, {key.decode("utf-8"): _entry(value) for key, value in table.items() if key[0]}
    except UnicodeDecodeError:
        _refuse(path, "a name in it is not text")
    except (ValueError, IndexError) as error:
        _refuse(path, str(error) if isinstance(error, ValueError) else "it is cut short")


def _refuse(path: Path, reason: str) -> NoReturn:
    raise CheckpointError(f"{path} is damaged, or not a checkpoint of TensorFlow: {reason}")


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    footer = data[-_FOOTER:]
    _, position = _handle(footer, 0)  # the other index, of what describes blocks; checkpoints have none
    place, _ = _handle(footer, position)
    before = None
    read = 0
    for _, handle in _block(data, place):
        place, _ = _handle(handle, 0)
        read += place[1]
        if read > len(data):
            raise ValueError("its blocks overlap")
        for key, value in _block(data, place):
            if before is not None and key <= before:
                raise ValueError("its names are out of order")
            before = key
            yield key, value


def _block(data: bytes, place: tuple[int, int]) -> Iterator[tuple[bytes, bytes]]:
    offset, size = place
    end = offset + size
    if size < 4 or end + _TRAILER > len(data) - _FOOTER:
        raise ValueError("a block lies beyond its end")
    if masked(crc32c(data[offset : end + 1])) != int.from_bytes(data[end + 1 : end + _TRAILER], "little"):
        raise ValueError("the checksum of a block is wrong")
    if data[end] != 0:
        raise ValueError(f"a block is compressed (type {data[end]}), which TensorFlow's own are not")
    content = memoryview(data)[offset:end]
    restarts = int.from_bytes(content[-4:], "little")
    limit = size - 4 * (restarts + 1)
    if limit < 0:
        raise ValueError("a block is too short")
    position, key = 0, b""
    while position < limit:
        shared, position = varint(content, position)
        rest, position = varint(content, position)
        length, position = varint(content, position)
        if shared > len(key) or position + rest + length > limit:
            raise ValueError("an entry is longer than its block")
        key = key[:shared] + bytes(content[position : position + rest])
        position += rest + length
        yield key, bytes(content[position - length : position])


def _handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Offset and size of a block, and where the next thing begins."""
    offset, position = varint(data, position)
    size, position = varint(data, position)
    return (offset, size), position


def _num_shards(header: bytes | None) -> int:
    if header is None:
        raise ValueError("it has no header")
    fields = dict(values(header))
    if fields.get(2, 0) != 0:
        raise ValueError("its numbers are big-endian")
    shards = fields.get(1, 0)
    if not isinstance(shards, int) or not 1 <= shards <= 99_999:
        raise ValueError(f"it speaks of {shards!r} data files")
    return shards


def _entry(data: bytes) -> Entry:
    numbers = {1: 0, 3: 0, 4: 0, 5: 0, 6: 0}
    shape: list[int] = []
    sliced = False
    for field, value in values(data):
        if field in numbers and isinstance(value, int):
            numbers[field] = value
        elif field == 2 and isinstance(value, bytes):
            shape = [_axis(part) for number, part in values(value) if number == 2]
        elif field == 7:
            sliced = True
    if len(shape) > _MOST_AXES or math.prod(axis or 1 for axis in shape) >= 1 << 60:
        raise ValueError("a shape in it is impossible")
    return Entry(numbers[1], tuple(shape), numbers[3], numbers[4], numbers[5], numbers[6], sliced)


def _axis(data: int | bytes) -> int:
    if not isinstance(data, bytes):
        raise ValueError("a shape in it is not one")
    size = dict(values(data)).get(1, 0)
    if not isinstance(size, int) or size >= 1 << 63:
        raise ValueError("a shape in it is impossible")
    return size


# The data ----------------------------------------------------------------------------------------------------------------


class _Shard:
    """One of the data files. Raises CheckpointError where it is missing."""

    def __init__(self, prefix: Path, shard: int, num_shards: int) -> None:
        self.path = prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}")
        try:
            self._size = self.path.stat().st_size
        except OSError as error:
            raise CheckpointError(f"{prefix.name}.index needs {self.path}: {error.strerror}") from error

    def check(self, name: str, entry: Entry) -> None:
        """Raises CheckpointError unless the variable can be read and lies in this file."""
        if entry.sliced:
            raise CheckpointError(f"{self.path}: {name} is stored in slices (a partitioned variable), which is not read; save it whole")
        if entry.dtype not in _TYPES:
            kind = _OTHER_TYPES.get(entry.dtype, f"of TensorFlow's type {entry.dtype}")
            raise CheckpointError(f"{self.path}: {name} is {kind}, expected float16 to float64, bfloat16, int32 or int64")
        if math.prod(entry.shape) * np.dtype(_TYPES[entry.dtype]).itemsize != entry.size:
            _refuse(self.path, f"{name} of shape {list(entry.shape)} has {entry.size} bytes")
        if entry.offset + entry.size > self._size:
            _refuse(self.path, f"it is cut short: {name} ends at byte {entry.offset + entry.size} of {self._size}")

    def read(self, name: str, entry: Entry) -> np.ndarray:
        """The variable, after `check`."""
        try:
            data = np.fromfile(self.path, dtype=np.uint8, count=entry.size, offset=entry.offset)
        except OSError as error:
            raise CheckpointError(f"cannot read {self.path}: {error.strerror}") from error
        except MemoryError:
            raise CheckpointError(f"{self.path}: there is no memory for the {entry.size} bytes of {name}") from None
        if len(data) != entry.size or masked(crc32c(data)) != entry.crc:
            _refuse(self.path, f"the checksum of {name} is wrong")
        values = data.view(_TYPES[entry.dtype])
        if entry.dtype == _BFLOAT16:
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.reshape(entry.shape)


# Arrays in an archive ------------------------------------------------------------------------------------------------------


def _read_npz(path: Path, wanted: Callable[[str], bool] | None) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}")
    try:
        with open_npz(path) as file:
            names = [name for name in file.names if wanted is None or wanted(name)]
            size, most = sum(file.header(name).bytes for name in names), _MOST_UNPACKED * path.stat().st_size
            if size > most:
                raise CheckpointError(f"{path} unpacks to {size:,} bytes, expected {most:,} or fewer: save it with numpy.savez")
            return {name: file.array(name) for name in names}
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {explain(error)}") from error
    except MemoryError as error:
        raise CheckpointError(f"{path}: there is no memory for its arrays: {error}") from error
    except DamagedArchive as error:
        raise CheckpointError(f"{path} is damaged, or not an .npz of arrays: {error}") from error
