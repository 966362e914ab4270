"""Reading .npz files that may be damaged or hostile."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np


class DamagedArchive(Exception):
    """A file is no .npz of plain arrays; the message says why, in one line."""


def read_npz(path: Path, *, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, np.ndarray]:
    """The arrays of an .npz, by name, of those that are wanted; nothing in it is unpickled, and none is larger than the file says.

    Raises DamagedArchive, OSError where it cannot be read, and MemoryError.
    """
    try:
        with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as file:
            names = [name for name in file.files if wanted(name)]
            for name in names:
                _check_member(archive, name)
            return {name: file[name] for name in names}
    # NumPy and zipfile raise many types: an encrypted zip is a RuntimeError, one of a strange method a NotImplementedError.
    except (ValueError, KeyError, EOFError, SyntaxError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        reason = "it holds Python objects" if "allow_pickle" in str(error) else " ".join(str(error).split())
        raise DamagedArchive(reason) from error


def _check_member(archive: zipfile.ZipFile, name: str) -> None:
    """Raises ValueError unless the archive holds as many bytes as the header of the array asks for."""
    member = archive.getinfo(f"{name}.npy" if f"{name}.npy" in archive.namelist() else name)
    with archive.open(member) as content:
        version = np.lib.format.read_magic(content)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(content)
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects")
    if math.prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError(f"{name} of shape {list(shape)} is cut short")
