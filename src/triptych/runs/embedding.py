"""What a network says of a set of pictures, as long work: shared between processes, kept in pieces, and taken up again.

The network always sees groups of 32 images, which begin at multiples of 32, and the last one is filled up. So what it says of an image,
whose last digits depend on the size of the batch, does not depend on the number of processes or on where an earlier call was interrupted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triptych.core.errors import RunError
from triptych.core.npz import Blocks, DamagedArchive, Npz, local, open_npz
from triptych.core.reading import parsed_json
from triptych.engine.distributed import World
from triptych.engine.progress import Watch, unwatched
from triptych.evaluation.feature_set import FeatureSet
from triptych.evaluation.feature_space import Embedder
from triptych.runs.files import save_npz
from triptych.runs.given.pictures import Pictures
from triptych.runs.pieces import Pieces
from triptych.runs.work import Part, Within, Work, done, in_memory, ranges

GROUP = 32
"""Images that a network sees at once."""

_GROUPS_KEPT = 4
"""Groups of a piece: to write one takes milliseconds, and a GPU is through a group in ten."""

_MOST_IDENTITY = 2**20  # bytes
_LONGEST_CONTENT = 2**16  # characters of what pictures are

IDENTITY = "identity"
"""The array of a file that says, in JSON, what the others were made of."""


@dataclass(frozen=True)
class Look:
    """Something that is found at each image of a set."""

    outputs: tuple[str, ...]
    "The names of what is found."
    identity: Any
    "All that it depends on besides the images; JSON."
    find: Callable[[Sequence[int], np.ndarray], Mapping[str, np.ndarray]]
    "From the numbers of a group's images, and these, uint8 (b, h, w, c), to a row for each, by name: (b, ...)."


def embedded(pictures: Pictures, embedder: Embedder, *, out: Path | None = None, world: World, progress: Watch = unwatched) -> FeatureSet:
    """All outputs of the network for the pictures, in every process: float32 (n, d) each. Raises RunError where they are not finite.

    The rest as in `looked_at`.
    """
    return FeatureSet(looked_at(pictures, [network(embedder, world.device)], out=out, world=world, progress=progress))


def looked_at(
    pictures: Pictures,
    looks: Sequence[Look],
    *,
    out: Path | None = None,
    groups_kept: int | None = None,
    world: World,
    progress: Watch = unwatched,
) -> dict[str, np.ndarray]:
    """What is found at the pictures, in one pass, by name: a row for each, in their order and in every process.

    `out`: an .npz that keeps it and is mapped afterwards, with pieces beside it while the work lasts; one that holds it already is
    taken as it is. None: in memory. `groups_kept`: in a piece; fewer for pictures that take long to make. `progress` is told of
    images. Raises DataError for pictures that cannot be read and an `out` that cannot be written, Stopped for an interruption.
    """
    identity = origin(pictures, *(look.identity for look in looks))
    names = [name for look in looks for name in look.outputs]
    if out is not None and world.on_main(lambda: stored(out, identity, names) is not None):
        return _taken(out, identity, names)
    count = len(pictures)

    def make(groups: Sequence[int], within: Within) -> Iterator[Part]:
        for some in ranges(groups, groups_kept or _GROUPS_KEPT):
            made = [_found(pictures, looks, range(group * GROUP, min((group + 1) * GROUP, count))) for group in some]
            yield some, {name: np.concatenate([outputs[name] for outputs in made]) for name in made[0]}

    def told(groups: float, of: float) -> None:
        progress(min(groups * GROUP, count), min(of * GROUP, count))

    def write(path: Path, _: None) -> None:
        pieces = Pieces.of(path, identity=work.identity)
        save_npz(path, {IDENTITY: told_of(identity), **_blocks(pieces, work.count, count)})

    work = Work(-(-count // GROUP), ["embedded", *identity, names], make)
    if out is None:
        return _joined(in_memory(work, world, told))
    done(work, out, world=world, progress=told, kept="embedded", conclude=lambda parts: None, write=write)
    world.barrier()
    return _taken(out, identity, names)


def network(embedder: Embedder, device: torch.device, outputs: Iterable[str] | None = None) -> Look:
    """What a network says of images: float32 (b, d). `outputs`: some of its own; None: all."""
    wanted = embedder.outputs if outputs is None else tuple(name for name in embedder.outputs if name in set(outputs))

    def find(items: Sequence[int], images: np.ndarray) -> dict[str, np.ndarray]:
        outputs = embedder(torch.from_numpy(images).to(device))
        arrays = {name: outputs[name].float().cpu().numpy() for name in wanted}
        for name, values in arrays.items():
            wrong = ~np.isfinite(values).all(axis=1)
            if wrong.any():
                raise RunError(f'{embedder.name}: "{name}" of image {items[int(wrong.argmax())]} is not finite')
        return arrays

    return Look(wanted, embedder.identity, find)


def origin(pictures: Pictures, *looks: Any) -> Any:
    """All that the outputs depend on, as JSON has it: the pictures, wherever they lie, and the identities of what looks at them.

    Of pictures that have much to say, as those with a label for each, it is a hash.
    """
    content = {name: value for name, value in pictures.identity.items() if name not in ("path", "kind")}
    text = json.dumps(content, sort_keys=True)
    if len(text) > _LONGEST_CONTENT:
        content = {"sha256": hashlib.sha256(text.encode()).hexdigest()}
    return json.loads(json.dumps([content, *looks]))


def stored(path: Path, identity: Any, names: Iterable[str]) -> dict[str, np.ndarray] | None:
    """The arrays of a file that was made of `identity`, mapped; None where it is not there, damaged, or made of something else."""
    try:
        with open_npz(path) as file:
            if said(file) != identity:
                return None
            return {name: local(file.mapped(name)) for name in names}
    except (DamagedArchive, OSError):
        return None


def told_of(identity: Any) -> np.ndarray:
    """What a file was made of, as `said` reads it."""
    return np.array(json.dumps(identity, sort_keys=True))


def said(file: Npz) -> Any:
    """What a file was made of; None where it does not say. Raises ValueError where that is damaged."""
    if IDENTITY not in file.names:
        return None
    header = file.header(IDENTITY)
    if header.dtype.kind != "U" or header.shape or header.bytes > _MOST_IDENTITY:
        raise ValueError(f"{IDENTITY} is {header.dtype} of shape {list(header.shape)}, expected a text")
    return parsed_json(str(file.array(IDENTITY)))


def _taken(out: Path, identity: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    arrays = stored(out, identity, names)
    if arrays is None:
        raise RunError(f"{out} was changed by another command; the same command makes it anew")
    return arrays


def _found(pictures: Pictures, looks: Sequence[Look], items: range) -> dict[str, np.ndarray]:
    lacking = GROUP - len(items)
    images = pictures.images(items)
    filled = np.concatenate([images, images[-1:].repeat(lacking, axis=0)])
    numbers = [*items, *[items[-1]] * lacking]
    return {name: values[: len(items)] for look in looks for name, values in look.find(numbers, filled).items()}


def _joined(parts: Iterable[Part]) -> dict[str, np.ndarray]:
    """The parts of a work in memory, which are in order: so are the shares of the processes."""
    rows: dict[str, list[np.ndarray]] = {}
    for _, arrays in parts:
        for name, values in arrays.items():
            rows.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in rows.items()}


def _blocks(pieces: Pieces, groups: int, count: int) -> dict[str, Blocks]:
    """The arrays that the pieces make up, a piece at a time in memory."""
    _, first = next(pieces.read(groups))

    def rows(name: str) -> Iterator[np.ndarray]:
        return (arrays[name] for _, arrays in pieces.read(groups))

    return {name: Blocks((count, *values.shape[1:]), values.dtype, rows(name)) for name, values in first.items()}
