"""Files of weights (.pt, .safetensors): the only place where one is read or written.

PyTorch's are read with weights_only, so that nothing in a file is run, and mapped into memory where their format allows.
"""

from __future__ import annotations

import errno
import os
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from triptych.core.errors import CheckpointError
from triptych.core.files import whole
from triptych.core.tensors import load_tensors

_MOST_UNPACKED = 10  # times the length of a compressed file; weights hardly become shorter
_WRAPPERS = ("module.", "_orig_mod.")
"""What DistributedDataParallel and torch.compile put before every name."""


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file by name.

    Those under "state_dict", where many programs keep them, and without the prefixes that DistributedDataParallel and torch.compile give.
    Raises CheckpointError for a file that is missing or damaged, that holds anything that would have to be run, an optimizer's state
    or another thing than tensors by name.
    """
    return checked_weights(read_content(path), name=str(path))


def read_content(path: str | Path, *, inert: tuple[type, ...] = ()) -> Any:
    """Whatever a file holds: tensors, and plain values around them. Raises CheckpointError where it cannot be read.

    `inert`: classes that may be among them, which hold values and do nothing when they are made.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path} is a folder; give a file of weights (.pt)" if path.is_dir() else f"there is no file {path}")
    try:
        if path.suffix == ".safetensors":
            return load_tensors(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a strange pickle is warned of before it is refused
            with torch.serialization.safe_globals([*inert]):
                return torch.load(path, map_location="cpu", weights_only=True, mmap=_lies_open(path))
    except PermissionError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except (MemoryError, CheckpointError):
        raise
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged, or not a file of safetensors") from error
    except Exception as error:  # what a damaged file raises depends on where the damage is
        if "unsupported global" in str(error).lower() or "Unsupported class" in str(error):
            raise CheckpointError(f"{path} holds more than tensors: to read it, code that it names would have to be run") from error
        if "TorchScript" in str(error):
            raise CheckpointError(f"{path} is TorchScript, a program; give the weights alone (a state dict)") from error
        raise CheckpointError(f"{path} is damaged, or not a file of PyTorch's weights") from error


def _lies_open(path: Path) -> bool:
    """Whether a file is an archive whose members can be mapped; of compressed ones PyTorch would take the packed bytes for numbers.

    Raises CheckpointError for compressed ones, which PyTorch does not write itself, that would unpack to far more than weights can.
    """
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    size, most = sum(member.file_size for member in members), _MOST_UNPACKED * path.stat().st_size
    if size > most:
        raise CheckpointError(f"{path} is compressed and unpacks to {size:,} bytes, expected {most:,} or fewer: save it with torch.save")
    return all(member.compress_type == zipfile.ZIP_STORED for member in members)


def checked_weights(content: Any, *, name: str = "the file") -> dict[str, Tensor]:
    """Tensors by name, as they were handed over; raises CheckpointError, about `name`, for anything else."""
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{name} holds {_kind(content)}, expected tensors by name (a state dict)")
    if isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if "param_groups" in content and "state" in content:
        raise CheckpointError(f"{name} is the state of an optimizer (opt*.pt), expected weights (model*.pt or ema_*.pt)")
    if not content:
        raise CheckpointError(f"{name} is empty, expected tensors by name (a state dict)")
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            inner = " (a state dict inside another dictionary: save that one alone)" if isinstance(value, Mapping) else ""
            raise CheckpointError(f"{name} holds {_kind(value)} under {key!r}, expected tensors by name{inner}")
        if not _is_whole(value):
            raise CheckpointError(f"{name}: {key} does not hold all of its {value.numel()} values; save plain tensors")
    tensors = {key: value.detach() for key, value in content.items()}
    while prefix := next((prefix for prefix in _WRAPPERS if all(name.startswith(prefix) for name in tensors)), None):
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def _kind(value: Any) -> str:
    """The type of a value, for messages: a list, an int."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def check_fit(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError, naming the first tensor of a file that a network's `own` ones show to be wrong.

    Wrong are a tensor that is missing, too many or of another shape, and one that holds no floating point numbers where the network has
    them, or values that are not finite.
    """
    for name, tensor in expected.items():
        if name not in weights:
            raise CheckpointError(f"the file is incomplete: it has no {name}")
        if weights[name].shape != tensor.shape:
            raise CheckpointError(f"{name} has shape {list(weights[name].shape)}, expected {list(tensor.shape)}")
        if tensor.is_floating_point() and not weights[name].is_floating_point():
            raise CheckpointError(f"{name} has type {weights[name].dtype}, expected floating point numbers")
        if not weights[name].float().isfinite().all():
            raise CheckpointError(f"{name} holds values that are not finite: its training failed; take an earlier file")
    for name in weights:
        if name not in expected:
            raise CheckpointError(f"the file is of another network: it has {name}, which this one lacks")


def write_weights(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes a file that `torch.load` reads, whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as temporary:
        try:
            torch.save(dict(tensors), temporary)
        except RuntimeError as error:  # PyTorch's writer of archives has no other word for a full disk
            said = str(error).splitlines()[0]
            raise (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if "inline_container" in said else OSError(said)) from error


def _is_whole(tensor: Tensor) -> bool:
    """Whether all values of the tensor are there, one by one: a file of a few bytes may say that it has any shape."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return False
    return tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()
