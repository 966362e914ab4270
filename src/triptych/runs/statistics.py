"""Statistics of a set of images in one file, as guided-diffusion, pytorch-fid and this program read them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triptych.core.errors import ConfigError
from triptych.core.npz import Blocks
from triptych.data.transforms import with_channels
from triptych.engine.distributed import open_world
from triptych.engine.progress import Watch, unwatched
from triptych.evaluation.feature_space import default_space, open_space
from triptych.runs.embedding import GROUP, IDENTITY, origin, told_of
from triptych.runs.files import check_archive, check_kept, check_place, save_npz, writing
from triptych.runs.given.pictures import Pictures, open_pictures
from triptych.runs.references import COUNT, NAMES, reference_of


@dataclass(frozen=True)
class Written:
    """What was written."""

    count: int
    "Images."
    size: tuple[int, int]
    "Their height and width."
    network: str
    dimensions: dict[str, int]
    "Numbers in each output that has statistics."


def write_statistics(
    path: str | Path,
    out: str | Path,
    *,
    features: str | None = None,
    weights: str | Path | None = None,
    resize: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    images: bool = False,
    device: str | None = None,
    progress: Watch = unwatched,
) -> Written:
    """Writes mean and covariance of the outputs of a network over the images at `path` to `out`, an .npz; for all processes.

    It holds mu and sigma of "features" and, where the network has that output, mu_s and sigma_s of "spatial": float64 (d,) and (d, d); with
    `images` also arr_0, the images in RGB, uint8 (n, h, w, 3). `features`: the network; None: see `default_space`. `image_size`: see
    `open_pictures`. Features stay in the user's cache. Raises ConfigError, DataError and CheckpointError for what cannot be used.
    """
    place = Path(out)
    if place.suffix != ".npz":
        raise ConfigError("out", f"got {str(place)!r}, expected a name that ends with .npz")
    check_place(place)
    check_kept(place, path)
    check_archive(place, f"{COUNT}.npy", f"{IDENTITY}.npy")
    world = open_world(device)
    embedder = open_space(
        features or default_space(), weights=None if weights is None else Path(weights), resize=resize, device=world.device
    )
    pictures = open_pictures(path, image_size=image_size)
    for note in pictures.notes if world.is_main else ():
        warnings.warn(note.removeprefix("warning: "), stacklevel=2)
    found = reference_of(pictures, embedder, outputs=embedder.outputs, world=world, progress=progress)
    moments = {output: found.moments(output) for output in NAMES if output in embedder.outputs}
    with writing(place, world=world):
        if world.is_main:
            arrays: dict[str, np.ndarray | Blocks] = {
                COUNT: np.array(len(pictures)),
                IDENTITY: told_of(origin(pictures, embedder.identity)),
            }
            for output, each in moments.items():
                arrays |= dict(zip(NAMES[output], (each.mean, each.covariance), strict=True))
            if images:
                arrays["arr_0"] = Blocks((len(pictures), *pictures.size, 3), np.dtype(np.uint8), _coloured(pictures))
            save_npz(place, arrays)
        world.barrier()
    return Written(len(pictures), pictures.size, embedder.name, {output: len(each.mean) for output, each in moments.items()})


def _coloured(pictures: Pictures) -> Iterator[np.ndarray]:
    """The images in RGB, which is what other programs read."""
    for first in range(0, len(pictures), GROUP):
        yield with_channels(pictures.images(range(first, min(first + GROUP, len(pictures)))), 3)
