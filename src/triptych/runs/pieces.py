"""Finished pieces of long work on many items, in a hidden folder beside its output, until all are there.

The folder's name is a hash of what was asked for, so that pieces of something else are not taken up. A piece is written whole or not
at all; those of several processes go into one folder.
"""

from __future__ import annotations

import glob
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from triptych.core.errors import RunError
from triptych.core.npz import DamagedArchive, read_npz
from triptych.runs.files import save_npz

_LETTERS = 12  # of a digest


def digest_of(identity: Any) -> str:
    """Twelve letters for what JSON can hold."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:_LETTERS]


@dataclass(frozen=True)
class Pieces:
    """The pieces of one output."""

    folder: Path

    @staticmethod
    def of(out: Path, *, identity: Any) -> Pieces:
        """The pieces of the output `out` where `identity`, which JSON can hold, was asked for."""
        return Pieces(out.parent / f".{out.name}.partial-{digest_of(identity)}")

    def missing(self, items: range) -> Iterator[range]:
        """The stretches of `items` that are not there yet."""
        position = items.start
        for there in self._there():
            if there.start >= items.stop:
                break
            if position < there.start:
                yield range(position, there.start)
            position = max(position, there.stop)
        if position < items.stop:
            yield range(position, items.stop)

    def save(self, items: Sequence[int], arrays: Mapping[str, np.ndarray]) -> None:
        """Writes a piece of items that follow one another."""
        save_npz(self._path(items), arrays)

    def read(self, count: int) -> Iterator[tuple[range, dict[str, np.ndarray]]]:
        """Every piece with its items, in order; each of `count` items comes once.

        Raises RunError where pieces are missing, which somebody removed, or damaged, which are removed; the same command makes them anew.
        """
        missing = next(self.missing(range(count)), None)
        if missing is not None:
            raise RunError(f"{self.folder}: the pieces {missing.start} to {missing.stop - 1} of {count} are gone; the same command goes on")
        for items in self._there():
            path = self._path(items)
            try:
                yield items, read_npz(path)
            except (DamagedArchive, OSError) as error:
                path.unlink(missing_ok=True)
                raise RunError(f"{path} is damaged, and was removed; the same command goes on ({error})") from error

    def drop(self, stale: Callable[[range, int], bool]) -> None:
        """Deletes each piece that is `stale`, by its items and by when it was written, in nanoseconds."""
        for items in list(self._there()):
            path = self._path(items)
            if stale(items, path.stat().st_mtime_ns):
                path.unlink()

    def remove(self) -> None:
        """Deletes the pieces."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def remove_all(self) -> None:
        """Deletes the pieces, and those that interrupted calls left of other work on the same output, whose lock the caller has."""
        name, _, _ = self.folder.name.rpartition("-")
        for folder in self.folder.parent.glob(f"{glob.escape(name)}-{'[0-9a-f]' * _LETTERS}"):
            shutil.rmtree(folder, ignore_errors=True)

    def _path(self, items: Sequence[int]) -> Path:
        return self.folder / f"{items[0]:09d}-{items[-1] + 1:09d}.npz"

    def _there(self) -> Iterator[range]:
        """The items of each piece, ascending; a piece that overlaps the one before (the same was asked for twice at once) is left out."""
        spans = sorted(tuple(map(int, path.stem.split("-"))) for path in self.folder.glob("[0-9]*-*.npz"))
        covered = 0
        for start, stop in spans:
            if start >= covered:
                yield range(start, stop)
                covered = stop
