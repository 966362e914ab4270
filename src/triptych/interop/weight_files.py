"""PyTorch's files of weights (.pt): the only place where one is read or written.

They are read with weights_only, so that nothing in a file is run, and mapped into memory where their format allows.
"""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from triptych.core.errors import CheckpointError


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file by name.

    Raises CheckpointError for a file that is missing or damaged, that holds anything that would have to be run, an optimizer's state
    or another thing than tensors by name.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path} is a folder; give a file of weights (.pt)" if path.is_dir() else f"there is no file {path}")
    return checked_weights(_load(path), name=str(path))


def checked_weights(content: Any, *, name: str = "the file") -> dict[str, Tensor]:
    """Tensors by name, as they were handed over; raises CheckpointError, about `name`, for anything else."""
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{name} holds a {type(content).__name__}, expected tensors by name (a state dict)")
    if "param_groups" in content and "state" in content:
        raise CheckpointError(f"{name} is the state of an optimizer (opt*.pt), expected weights (model*.pt or ema_*.pt)")
    if not content:
        raise CheckpointError(f"{name} is empty, expected tensors by name (a state dict)")
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            inner = " (a state dict inside another dictionary: save that one alone)" if isinstance(value, Mapping) else ""
            raise CheckpointError(f"{name} holds a {type(value).__name__} under {key!r}, expected tensors by name{inner}")
    return {key: value.detach() for key, value in content.items()}


def write_weights(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes a file that `torch.load` reads, whole or not at all. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        try:
            torch.save(dict(tensors), temporary)
        except RuntimeError as error:  # PyTorch's writer of archives has no other word for a full disk
            raise OSError(str(error).splitlines()[0]) from error
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _load(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a strange pickle is warned of before it is refused
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except PermissionError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except MemoryError:
        raise
    except Exception as error:  # what a damaged file raises depends on where the damage is
        if "unsupported global" in str(error).lower() or "Unsupported class" in str(error):
            raise CheckpointError(f"{path} holds more than tensors: to read it, code that it names would have to be run") from error
        raise CheckpointError(f"{path} is damaged, or not a file of PyTorch's weights") from error
