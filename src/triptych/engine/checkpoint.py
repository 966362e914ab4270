"""Checkpoints: folders of safetensors files and one state.json, each written whole or not at all.

    checkpoints/000512000/     images seen when it was made
        model.safetensors  ema-0.9999.safetensors  optimizer.safetensors
        state.json             see state.py

A checkpoint is written under a temporary name, synced to the disk and renamed, so a crash at any moment leaves the old one or
the new one. One that replaces another of the same number first renames that to ".old-NUMBER"; while the number itself is
absent, the one set aside still counts, so there is no moment without a checkpoint. Hashes are checked at every reading.

Of a model that is divided between processes, each writes its parts of every file: see parts.py.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from triptych.core.errors import CheckpointError
from triptych.core.files import explain, explained, remove, replace_folder, sync, whole
from triptych.core.reading import sha256_of
from triptych.core.tensors import load_tensors
from triptych.engine.distributed import World
from triptych.engine.parts import read_parts, write_parts
from triptych.engine.run_directory import REPLACED, checkpoint_path, list_checkpoints
from triptych.engine.state import RESERVED, STATISTICS, SUFFIX, NoneReadable, NotNow, read_state, write_state

STATE = "state.json"
OPTIMIZER = "optimizer"
"""The file of a checkpoint with the state of the optimizers; all others hold weights."""
_TEMPORARY = ".tmp-"
_SUPERSEDED = "superseded-"

Files = Mapping[str, Mapping[str, Tensor]]
"""The tensors of each file, by its stem and their names."""
Wanted = Collection[str] | Callable[[Mapping[str, Any]], Collection[str]] | None
"""Which files of a checkpoint to read: their stems, or a function from the other fields of state.json to stems. None: all."""


T = TypeVar("T")


class Unwritten(Exception):
    """A checkpoint that processes write together was not written: one of them could not."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds: tensors by file stem and name, the rest of state.json, and the SHA-256 of every file by stem.

    Of a file in several parts, that of their names and hashes.
    """

    images_seen: int
    files: dict[str, dict[str, Tensor]]
    info: dict[str, Any]
    hashes: dict[str, str]

    @property
    def estimated(self) -> bool:
        """Whether its averages have statistics of their own, where they need some."""
        return self.info.get(STATISTICS, True)


def save_checkpoint(
    folder: Path, *, images_seen: int, files: Files, info: Mapping[str, Any], together: World | None = None, good: int | None = None
) -> Path:
    """The path of the new checkpoint, complete and on the disk when this returns.

    Tensors may be on any device, in any memory format, and may share storage; they are stored contiguous. `info` is what JSON
    holds. A checkpoint of the same number is replaced; others that are newer than the `good` one, from which the training went on or
    which it wrote last, or (None) than this one, can only come from a past that was abandoned because they could not be read. They
    are renamed to "superseded-NUMBER", so that they count for none of those that are kept. `together`: the processes that write it,
    all of which call this. Raises CheckpointError when the disk is full or refuses; then the temporary folder is removed and the older
    checkpoints are as they were.
    """
    target, last = folder / f"{images_seen:09d}", images_seen if good is None else good
    try:
        write_folder(target, images_seen=images_seen, files=files, info=info, together=together)
        if together is not None and not together.is_main:
            return target
        for newer in [number for number in list_checkpoints(folder) if number > last and number != images_seen]:
            superseded = folder / f"{_SUPERSEDED}{newer:09d}"
            shutil.rmtree(superseded, ignore_errors=True)
            os.rename(checkpoint_path(folder, newer), superseded)
    except (OSError, SafetensorError, Unwritten) as error:
        kept = [number for number in list_checkpoints(folder) if number <= last and number != images_seen]
        there = f"the last good one is {checkpoint_path(folder, kept[-1])}" if kept else "there is no earlier one"
        raise CheckpointError(f"cannot write checkpoint {target}: {explain(error)}; {there}") from error
    return target


def write_folder(target: Path, *, images_seen: int, files: Files, info: Mapping[str, Any], together: World | None = None) -> None:
    """Writes the folder of a checkpoint, in the place of another; see `save_checkpoint`. Raises OSError, SafetensorError and Unwritten."""
    if together is not None:
        _write_together(target, images_seen=images_seen, files=files, info=info, world=together)
        return
    folder = target.parent
    temporary = folder / f"{_TEMPORARY}{target.name}-{os.getpid()}"
    try:
        folder.mkdir(exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        hashes = {stem + SUFFIX: write_tensors(temporary / (stem + SUFFIX), tensors) for stem, tensors in files.items()}
        write_state(temporary / STATE, images_seen=images_seen, files=hashes, info=info)
        sync(temporary)
        replace_folder(temporary, target, aside=folder / f"{REPLACED}{target.name}")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_together(target: Path, *, images_seen: int, files: Files, info: Mapping[str, Any], world: World) -> None:
    """Writes the folder, each process its parts. It gets its name when all have written; where one fails, Unwritten is raised in all."""
    folder = target.parent
    temporary = folder / world.from_main(f"{_TEMPORARY}{target.name}-{os.getpid()}")

    def begin() -> None:
        folder.mkdir(exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for stem in files:
            (temporary / stem).mkdir()

    def end() -> None:
        state = {name: digest for part in parts for name, digest in sorted(part.items())}
        write_state(temporary / STATE, images_seen=images_seen, files=state, info=info)
        sync(temporary)
        replace_folder(temporary, target, aside=folder / f"{REPLACED}{target.name}")

    try:
        _agree(world, begin if world.is_main else lambda: None)
        own: dict[str, str] = {}
        for stem in files:
            written = _agree(world, lambda stem=stem: write_parts(temporary / stem, files[stem], world))
            own |= {f"{stem}/{name}": digest for name, digest in written.items()}
        parts = world.gather(own)
        _agree(world, end if world.is_main else lambda: None)
    finally:
        if world.is_main:
            shutil.rmtree(temporary, ignore_errors=True)


def _agree(world: World, act: Callable[[], T]) -> T:
    """What `act` returns in this process. Raises Unwritten in all processes where it fails in one of them."""
    result, fault = None, None
    try:
        result = act()
    except (OSError, SafetensorError, CheckpointError) as error:
        fault = explain(error)
    faults = [each for each in world.gather(fault) if each is not None]
    if faults:
        raise Unwritten(faults[0])
    return result  # type: ignore[return-value]


def load_checkpoint(path: Path, *, files: Wanted = None) -> Checkpoint:
    """The checkpoint at `path`, on the CPU; only the `files` asked for.

    Raises CheckpointError that names the file when one is missing, damaged or of an unknown format, or has weights that are not finite.
    """
    state = read_state(path / STATE)
    parts: dict[str, dict[str, str]] = {}
    for name, digest in state["files"].items():
        parts.setdefault(name.partition("/")[0].removesuffix(SUFFIX), {})[name] = digest
    stems = list(parts)
    info = {name: value for name, value in state.items() if name not in RESERVED}
    files = files(info) if callable(files) else files
    unknown = sorted(set(files or ()) - set(stems))
    if unknown:
        raise CheckpointError(f"checkpoint {path} has no {unknown[0]}{SUFFIX}; it has {', '.join(stems)}")
    wanted = [stem for stem in stems if files is None or stem in files]
    tensors = {stem: _read_tensors(path, stem, parts[stem]) for stem in wanted}
    fault = not_finite(tensors)
    if fault is not None:
        raise CheckpointError(f"{path} cannot be used: {fault}, so the training had failed before it was saved")
    return Checkpoint(state["images_seen"], tensors, info, {stem: _digest(digests) for stem, digests in parts.items()})


def load_newest(folder: Path, *, warn: Callable[[str], None], files: Wanted = None) -> Checkpoint | None:
    """The newest checkpoint that can be read, or None where none was ever written.

    Each damaged one is reported through `warn`. A training that goes on there may remove what is being read: then it has newer ones, and
    they are looked for anew. Raises NoneReadable when there are checkpoints and all are damaged, CheckpointError for one that may be whole
    but cannot be read now.
    """
    numbers = list_checkpoints(folder)
    for number in reversed(numbers):
        try:
            return load_checkpoint(checkpoint_path(folder, number), files=files)
        except NotNow as error:
            path = checkpoint_path(folder, number)
            before = "" if number == numbers[0] else f"; to go on from the checkpoint before it, move {path} out of {folder}"
            raise CheckpointError(f"{error}; nothing was changed, and it may be whole{before}") from error
        except CheckpointError as error:
            if list_checkpoints(folder) != numbers:
                return load_newest(folder, warn=warn, files=files)
            before = "the one before it is used" if number != numbers[0] else "there is none before it"
            warn(f"{error}; {before}")
    if numbers:
        several = f"none of the {len(numbers):,} checkpoints in {folder} can be read"
        raise NoneReadable(several if len(numbers) > 1 else f"the only checkpoint in {folder} cannot be read")
    return None


def not_finite(files: Mapping[str, Mapping[str, Tensor]]) -> str | None:
    """Names a weight or average that is not finite, or so large (1e19) that its square is not. None: there is none.

    As "TENSOR of FILE has values that are not finite, or far too large". An optimizer's state is not looked at.
    """
    for stem, tensors in files.items():
        named = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_floating_point()}
        if stem == OPTIMIZER or not named:
            continue
        # A norm is finite only if all values are, and is 50 times faster than a look at each.
        norms = [torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32)) for tensor in named.values()]
        for name, norm in zip(named, torch.stack([norm.double() for norm in norms]).tolist(), strict=True):
            if not math.isfinite(norm):
                return f"{name} of {stem}{SUFFIX} has values that are not finite, or far too large"
    return None


def prune(folder: Path, *, keep_last: int, keep_every: int | None, best: int | None, good: int | None = None) -> list[int]:
    """The checkpoints that were removed: all but the newest `keep_last`, the `best`, those of `keep_every`, and a `good` one.

    Those of `keep_every` are the first at or after each multiple: an iteration rarely ends at one. The good one was read or written by
    this training; newer ones may be damaged.
    """
    numbers = list_checkpoints(folder)
    kept = {*numbers[-keep_last:], best, good}
    if keep_every is not None:
        firsts = {number // keep_every: number for number in reversed(numbers)}
        kept |= {number for multiple, number in firsts.items() if multiple}
    removed = [number for number in numbers if number not in kept]
    for number in removed:
        remove_checkpoint(folder, number)
    return removed


def remove_checkpoint(folder: Path, number: int) -> None:
    """Removes the checkpoint of that number of images. Raises CheckpointError."""
    path = checkpoint_path(folder, number)
    doomed = folder / f"{_TEMPORARY}{path.name}-removed"
    remove(doomed)
    with explained(f"remove checkpoint {path}"), suppress(FileNotFoundError):  # somebody else has removed it
        os.rename(path, doomed)  # first, so that nobody sees a half of it; `sweep` removes what remains
    remove(doomed)


def sweep(folder: Path) -> None:
    """Removes what interrupted writes and removals left. Only for the process that holds the lock of the run. Raises CheckpointError."""
    with explained(f"put the checkpoints in {folder} in order"):
        for aside in folder.glob(REPLACED + "*"):
            target = folder / aside.name.removeprefix(REPLACED)
            if not target.exists():
                os.rename(aside, target)
        for pattern in (_TEMPORARY, REPLACED):
            for leftover in folder.glob(pattern + "*"):
                remove(leftover)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], *, notes: Mapping[str, str] | None = None) -> str:
    """Writes one file to the disk, with `notes` in its header; its SHA-256.

    Read back from the page cache, that takes a fifth of the time of the writing.
    """
    with whole(path) as temporary:  # for the permissions: safetensors makes files that their owner alone may read
        save_file(_portable(tensors), temporary, metadata=None if notes is None else dict(notes))
    return sha256_of(path)


def _portable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in host memory, contiguous, each with its own storage: what safetensors accepts."""
    stored: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().to("cpu").contiguous()
        if plain.untyped_storage().data_ptr() in storages:
            plain = plain.clone(memory_format=torch.contiguous_format)
        storages.add(plain.untyped_storage().data_ptr())
        stored[name] = plain
    return stored


def _digest(parts: Mapping[str, str]) -> str:
    """The hash of a file; of one in several parts, of the names and hashes of these."""
    (first, *others) = parts.values()
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest() if others else first


def _read_tensors(folder: Path, stem: str, digests: Mapping[str, str]) -> dict[str, Tensor]:
    path = folder
    try:
        for name, expected in digests.items():
            path = folder / name
            if sha256_of(path) != expected:
                raise CheckpointError(f"{path} is damaged or cut short: its content is not what was written")
        return load_tensors(path) if stem + SUFFIX in digests else read_parts(folder / stem, [Path(name).name for name in digests])
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except OSError as error:
        raise NotNow(f"cannot read {path}: {explain(error)}") from error
    except SafetensorError as error:
        raise CheckpointError(f"cannot read {path}: {explain(error)}") from error
