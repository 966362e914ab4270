"""Image files in an LMDB, as imaginaire lays them out: the key is folder and stem ("sequence/stem"), the value the bytes of the file.

A data set of that kind is one LMDB for each type of data (PATH/images/data.mdb, PATH/seg_maps/data.mdb) beside all_filenames.json and
metadata.json. The names are read from the keys themselves, so the JSON files are not needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from triptych.core.errors import DataError
from triptych.data.files import Files

_FILE = "data.mdb"


def is_database(folder: Path) -> bool:
    """Whether the folder is an LMDB."""
    return (folder / _FILE).is_file()


class Database(Files):
    """The files of an LMDB."""

    def read(self, k: int) -> bytes:
        # Opened for each file: an environment must not live through a fork, nor be open twice in one process.
        with _reading(self.place) as transaction:
            value = transaction.get(os.fsencode(self.names[k]))
        if value is None:
            raise DataError(f"{self.describe(k)}: no longer in the database")
        return value


def open_database(folder: Path) -> Database:
    """The files of the LMDB in a folder. Raises DataError where it is damaged, or the package lmdb is missing."""
    with _reading(folder, whole=True) as transaction:
        names = [os.fsdecode(key) for key in transaction.cursor().iternext(keys=True, values=False)]
    return Database(folder, sorted(names, key=lambda name: name.split("/")))


@contextmanager
def _reading(folder: Path, *, whole: bool = False) -> Iterator[Any]:
    """A transaction; `whole`: once the file is known to be as long as it says, for it is mapped, and nothing is caught beyond its end."""
    try:
        import lmdb
    except ImportError:
        raise DataError(f'{folder}: an LMDB, which the package lmdb reads: pip install "triptych[data]"') from None
    try:
        with lmdb.open(str(folder), readonly=True, lock=False, create=False, readahead=False, max_readers=1) as environment:
            if whole and (environment.info()["last_pgno"] + 1) * environment.stat()["psize"] > (folder / _FILE).stat().st_size:
                raise DataError(f"{folder / _FILE}: cut short; copy or make it again")
            with environment.begin() as transaction:
                yield transaction
    except (lmdb.Error, OSError) as error:
        raise DataError(f"{folder}: cannot be read as an LMDB ({' '.join(str(error).split())})") from error
