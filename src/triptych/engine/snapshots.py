"""Snapshots of the power-function averages, taken while a run is trained: a run of any number of them is the past of its weights.

    RUN/snapshots/000512000/
        ema-length-0.05.safetensors  ema-length-0.1.safetensors  state.json

Each is written and read as a checkpoint is, whole or absent, with its hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from triptych.core.errors import CheckpointError
from triptych.core.files import explain
from triptych.engine.checkpoint import Files, Unwritten, not_finite, remove_checkpoint, sweep, write_folder
from triptych.engine.distributed import World
from triptych.engine.ema import Average
from triptych.engine.run_directory import list_checkpoints


def save_snapshot(
    folder: Path,
    averages: Sequence[Average],
    *,
    images_seen: int,
    dtype: torch.dtype,
    arranged: Callable[[Files], tuple[Files, World | None]],
) -> None:
    """Writes a snapshot of those of the averages that are by length; what is learned as `dtype`, constants as they are.

    `arranged` gives the files as they are written, and the processes that write them together, if they do.

    Raises CheckpointError when the disk is full or refuses, and for weights that are too large for the type.
    """
    powers = [average for average in averages if average.settings.length is not None]
    files: Files = {average.settings.name: _stored(average, dtype) for average in powers}
    fault = not_finite(files)
    if fault is not None:
        raise CheckpointError(f"{fault} as {dtype}: set --train.snapshot-precision float32")
    info = {"log2_loss_scale": {}, "best": None} | late(powers)
    target = folder / f"{images_seen:09d}"
    try:
        files, together = arranged(files)
        write_folder(target, images_seen=images_seen, files=files, info=info, together=together)
    except (OSError, SafetensorError, Unwritten) as error:
        raise CheckpointError(f"cannot write snapshot {target}: {explain(error)}") from error


def _stored(average: Average, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: tensor.to(dtype) if name in average.learned else tensor for name, tensor in average.tensors.items()}


def late(averages: Sequence[Average]) -> dict[str, dict[str, int]]:
    """What state.json says of averages by length that the run did not have from its start."""
    begun = {average.settings.name: average.begun for average in averages if average.settings.length is not None and average.begun}
    return {"begun": begun} if begun else {}


def give_up_after(folder: Path, images_seen: int) -> list[str]:
    """Removes what was made of a past that was given up, after so many images, and what interrupted writes left; gives lines for the log.

    Raises CheckpointError.
    """
    sweep(folder)
    doomed = [number for number in list_checkpoints(folder) if number > images_seen]
    for number in doomed:
        remove_checkpoint(folder, number)
    if not doomed:
        return []
    which = f"{doomed[0]} images" if len(doomed) == 1 else f"{doomed[0]} to {doomed[-1]} images ({len(doomed)} of them)"
    return [f"removed what {folder} had of {which}: the run goes on from {images_seen}"]
