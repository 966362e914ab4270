"""Files of a checkpoint that several processes write: torch.distributed.checkpoint's safetensors, each process its parts.

    checkpoints/000512000/
        model/shard-00001-model-00001-of-00001.safetensors  shard-00002-...
        ema-0.9999/...  optimizer/...  state.json

The header of each file says where in a tensor its part begins. There is no other metadata, and nothing is pickled. Any number of processes,
or one, reads them.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from triptych.core.errors import CheckpointError
from triptych.core.files import sync
from triptych.core.reading import sha256_of
from triptych.engine.distributed import World


def write_parts(folder: Path, tensors: Mapping[str, Tensor], world: World) -> dict[str, str]:
    """Writes this process's parts of tensors, divided or whole, into a folder that is there; the SHA-256 of its files by their names.

    All call it. Raises CheckpointError in all processes where one of them fails.
    """
    from torch.distributed.checkpoint.api import CheckpointException  # these take long to import
    from torch.distributed.checkpoint.filesystem import FileSystem
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    class Existing(FileSystem):
        def mkdir(self, path: object) -> None:
            """Nothing: PyTorch makes the folder with all above it, and so would bring back a run that was moved away."""

    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    writer.fs = Existing()
    try:
        save({name: tensor.detach() for name, tensor in tensors.items()}, storage_writer=writer, process_group=world.control)
    except CheckpointException as failed:  # not an Exception: told to all processes
        raise _cause(failed.failures) from None
    own = sorted(folder.glob(f"shard-{world.rank + 1:05d}-*"))
    for path in own:
        sync(path)
    if world.is_main:
        sync(folder)
    return {path.name: sha256_of(path) for path in own}


def _cause(failures: Mapping[int, tuple[BaseException, object]]) -> BaseException:
    """What a CheckpointException of PyTorch stands for, which wraps interruptions too."""
    rank, (error, _) = next(iter(failures.items()))
    return error if isinstance(error, KeyboardInterrupt) else CheckpointError(f"process {rank}: {error}")


def read_parts(folder: Path, names: Collection[str]) -> dict[str, Tensor]:
    """All tensors that were written there, each put together, on the CPU. `names`: those of all files, whose contents were checked.

    Raises CheckpointError for a folder with other files, or one that lacks a part of a tensor, and OSError.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    strange = sorted({path.name for path in folder.iterdir()} - set(names))
    if strange:
        raise CheckpointError(f"{folder} has a file {strange[0]}, which was not written there")
    try:
        found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder} is damaged: its files do not say which parts they have") from error
    tensors: dict[str, Any] = {}
    for name, stored in found.items():
        chunks, size = getattr(stored, "chunks", ()), getattr(stored, "size", torch.Size())
        if sum(chunk.sizes.numel() for chunk in chunks) != size.numel():
            raise CheckpointError(f"{folder} lacks a part of {name}")
        tensors[name] = torch.empty(size, dtype=stored.properties.dtype)  # type: ignore[union-attr]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this process reads alone
        try:
            load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
        except CheckpointException as failed:
            raise _cause(failed.failures) from None
    return tensors
