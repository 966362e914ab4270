"""Images that a run makes for a score and a user wants to have: they are written first, and read from there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from triptych.core.errors import DataError
from triptych.engine.distributed import World
from triptych.engine.progress import Watch
from triptych.runs.embedding import GROUP, Look, looked_at, origin
from triptych.runs.files import check_apart, check_place, writing
from triptych.runs.image_folder import Folder
from triptych.runs.model_images import ModelImages
from triptych.runs.pieces import digest_of
from triptych.runs.sampling import png_names, write_labels
from triptych.runs.work import Part, Within, Work, make_missing


def check_target(place: Path, read: Sequence[object]) -> None:
    """DataError where images cannot be kept at `place`, or should not: it is, or lies in, what is read."""
    check_place(place)
    if place.suffix not in ("", ".npz"):
        raise DataError(f"{place}: images are kept in a folder, as PNGs, or in an .npz, not as {place.suffix}")
    if not place.suffix and place.is_file():
        raise DataError(f"{place} is a file; name a folder, or end the name in .npz")
    check_apart(place, *read)


def keep(images: ModelImages, place: Path, *, world: World, progress: Watch) -> None:
    """Writes all images to `place`, an .npz (arr_0, and arr_1 with labels) or a folder of PNGs (and with labels a dataset.json).

    From then on they are read from there. An interrupted call goes on where it was. Raises DataError where `place` cannot be written, or
    has files that were not made so.
    """
    if place.suffix:
        rows = looked_at(images, [_pixels(images)], out=place, groups_kept=1, world=world, progress=progress)["arr_0"]
        images.read_from(lambda items: rows[np.asarray(items)])
        return
    names, labels = png_names(len(images)), images.labels
    folder = Folder(place, [[name] for name in names], grid_rows=0, labelled=labels is not None)

    def make(items: Sequence[int], within: Within) -> Iterator[Part]:
        for first in range(0, len(items), GROUP):
            part = items[first : first + GROUP]
            yield part, {"images": images.images(part)[:, None]}

    work = Work(len(images), digest_of(["kept", origin(images)]), make)
    with writing(place, world=world, kept="drawn"):
        world.on_main(lambda: folder.claim(work.identity))
        make_missing(work, folder, world=world, progress=progress)
        world.barrier()
        if labels is not None:
            world.on_main(lambda: write_labels(place, names, labels))
    images.read_from(lambda items: np.concatenate([folder[item] for item in items]))


def _pixels(images: ModelImages) -> Look:
    labels = images.labels

    def find(items: Sequence[int], pixels: np.ndarray) -> dict[str, np.ndarray]:
        return {"arr_0": pixels} | ({} if labels is None else {"arr_1": labels[np.asarray(items)]})

    return Look(("arr_0",) if labels is None else ("arr_0", "arr_1"), "pixels", find)
