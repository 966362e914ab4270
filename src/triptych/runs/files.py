"""Writing what a run makes: whole or not at all, and with errors that a user understands."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from triptych.core.errors import DataError
from triptych.core.files import explain, whole


def check_place(out: Path) -> None:
    """DataError where nothing can be written to `out`, before long work is done for it."""
    folder = next(parent for parent in out.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise DataError(f"cannot write {out}: {folder} is a file; choose another --out")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(f"cannot write {out}: no permission to write in {folder}; choose another --out")
    if out.suffix and out.is_dir():
        raise DataError(f"cannot write {out}: it is a folder; choose another --out")


def check_kept(out: Path, read: str | Path) -> None:
    """DataError where `out` is the file that is read, which would be lost."""
    if out.is_file() and Path(read).is_file() and out.samefile(read):
        raise DataError(f"cannot write {out}: it is what is read; choose another --out")


def save_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the arrays by name, whole or not at all, and makes the folder where it is missing. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)  # pyright: ignore[reportArgumentType]


@contextmanager
def explained(out: Path, *, done: str) -> Iterator[None]:
    """Within it an error of the disk is a DataError; `done` says what of the work is kept all the same ("drawn")."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot write {out}: {explain(error)}; what was {done} is kept, and the same command goes on") from error
