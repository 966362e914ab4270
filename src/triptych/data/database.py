"""Image files in an LMDB, as imaginaire lays them out: the key is folder and stem ("sequence/stem"), the value the bytes of the file.

A data set of that kind is one LMDB for each type of data (PATH/images/data.mdb, PATH/seg_maps/data.mdb) beside all_filenames.json and
metadata.json. The names are read from the keys themselves, so the JSON files are not needed.

The file is read here, without LMDB's own library: that maps it into memory and trusts it, and a damaged one ends the process. Like an
archive it is indexed once; values are then read by their offset. The format is that of LMDB 0.9 on 64-bit little-endian machines: pages,
the first two of which name the root of a B+ tree; its branch pages lead to its leaf pages, which hold keys, and values or where they lie.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from triptych.core.errors import DataError
from triptych.core.reading import open_regular
from triptych.data.archives import Archive, LocalFile
from triptych.data.tar_index import Member

_FILE = "data.mdb"
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_META = struct.Struct("<16x II 16x I H 2x 40x 4x H 2x 24x Q Q Q Q")
"""Of a page that begins a file, 16 bytes in: magic, version, size of a page, flags of both databases, entries and root, last page, time."""
_PAGE = struct.Struct("<Q 2x H H H")  # its number, its kind, where its free room begins and ends
_NODE = struct.Struct("<H H H H")  # two halves of a size or page number, flags, length of the key
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_ELSEWHERE = 1  # the value lies on pages of its own
_NO_PAGE = 2**64 - 1
_LEAST_PAGE, _LARGEST_PAGE = 512, 2**16


def is_database(folder: Path) -> bool:
    """Whether the folder is an LMDB."""
    return (folder / _FILE).is_file()


def open_database(folder: Path) -> Archive:
    """The files of the LMDB in a folder. Raises DataError where it is damaged."""
    path = folder / _FILE
    try:
        file = open(open_regular(path), "rb")  # noqa: SIM115 (the database keeps it open)
        tree = _Tree.of(file.fileno())
        members = [] if tree.root == _NO_PAGE else list(tree.members())
        if len(members) != tree.entries:
            raise _Damaged(f"{len(members)} entries where {tree.entries} should be")
        return Archive(folder, LocalFile(file, folder), members)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except (_Damaged, struct.error) as error:
        reason = str(error) if isinstance(error, _Damaged) else "cut short"
        raise DataError(f"{path}: {reason}; copy or make it again") from error


class _Damaged(Exception):
    """What is wrong with the file."""


@dataclass(frozen=True)
class _Tree:
    """The tree of a file's one database."""

    descriptor: int
    page_size: int
    pages: int
    root: int
    entries: int

    @staticmethod
    def of(descriptor: int) -> _Tree:
        """The newest of the two that a file names: a write ends by naming it in the place of the older one."""
        first = _meta(os.pread(descriptor, _META.size, 0))
        page_size = first[2]
        if not _LEAST_PAGE <= page_size <= _LARGEST_PAGE:
            raise _Damaged(f"its pages cannot have {page_size} bytes")
        second = _meta(os.pread(descriptor, _META.size, page_size))
        *_, entries, root, last, _ = max(first, second, key=lambda meta: meta[-1])
        if any(meta[4] for meta in (first, second)):
            raise _Damaged("it is no database of images: its keys may come twice, or are numbers")
        size = os.fstat(descriptor).st_size
        if (last + 1) * page_size > size:
            raise _Damaged("cut short")
        return _Tree(descriptor, page_size, size // page_size, root, entries)

    def members(self) -> Iterator[Member]:
        """The values, in the order of their keys."""
        waiting, seen, before = [self.root], set(), b""
        while waiting:
            number = waiting.pop()
            if number in seen:
                raise _Damaged(f"page {number} comes twice in its tree")
            seen.add(number)
            page, kind, nodes = self._page(number)
            if kind == _BRANCH:
                # Two halves of the page that is led to, and its highest bits where other nodes have flags.
                waiting += [low | high << 16 | top << 32 for low, high, top, _ in (_NODE.unpack_from(page, at) for at in reversed(nodes))]
                continue
            for at in nodes:
                key, member = self._member(page, at, number)
                if key <= before:
                    raise _Damaged("its keys are out of order")
                before = key
                yield member

    def _page(self, number: int) -> tuple[bytes, int, list[int]]:
        """A page, whether it is a branch or a leaf, and where its nodes begin."""
        if number >= self.pages:
            raise _Damaged(f"it leads to page {number} of {self.pages}")
        page = os.pread(self.descriptor, self.page_size, number * self.page_size)
        stored, kind, lower, upper = _PAGE.unpack_from(page)
        if stored != number or kind not in (_BRANCH, _LEAF) or not _PAGE.size <= lower <= upper <= len(page):
            raise _Damaged(f"page {number} is damaged")
        return page, kind, list(struct.unpack_from(f"<{(lower - _PAGE.size) // 2}H", page, _PAGE.size))

    def _member(self, page: bytes, at: int, number: int) -> tuple[bytes, Member]:
        """The key of a leaf's node, and where its value lies."""
        low, high, flags, length = _NODE.unpack_from(page, at)
        size, start = low | high << 16, at + _NODE.size + length
        key = page[at + _NODE.size : start]
        if flags not in (0, _ELSEWHERE) or not key or start > len(page):
            raise _Damaged(f"page {number} holds something else than a value")
        offset = number * self.page_size + start
        if flags == _ELSEWHERE:
            (first,) = struct.unpack_from("<Q", page, start)
            stored, kind, *_ = _PAGE.unpack(os.pread(self.descriptor, _PAGE.size, first * self.page_size) if first < self.pages else b"")
            if stored != first or kind != _OVERFLOW:
                raise _Damaged(f"page {first} is damaged")
            offset = first * self.page_size + _PAGE.size
        elif start + size > len(page):
            raise _Damaged(f"page {number} is damaged")
        return key, Member(os.fsdecode(key), offset, size, size)


def _meta(data: bytes) -> tuple[int, ...]:
    meta = _META.unpack(data)
    if meta[:2] != (_MAGIC, _VERSION):
        raise _Damaged("not an LMDB, or one of a machine that writes numbers otherwise")
    return meta
