"""References: what is known of the images that others are held against, as statistics in a file or as images.

Images are embedded once. Their features, and the moments of all outputs, stay in the user's cache under a hash of what the images are, how
they are prepared, and the network.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triptych.core.cache import cache_folder
from triptych.core.errors import DataError
from triptych.core.files import explain, remove
from triptych.core.locks import Held, Lock
from triptych.core.npz import DamagedArchive, Header, Npz, open_npz
from triptych.core.reading import sha256_of, user_path
from triptych.data.config import DataConfig
from triptych.engine.distributed import World
from triptych.engine.progress import Watch, unwatched
from triptych.evaluation.feature_set import FeatureSet
from triptych.evaluation.feature_space import Embedder
from triptych.evaluation.moments import Moments
from triptych.runs.embedding import IDENTITY, embedded, origin, said, stored, told_of
from triptych.runs.files import save_npz
from triptych.runs.given.pictures import Pictures, StoredPictures, open_pictures
from triptych.runs.pieces import digest_of

NAMES = {"features": ("mu", "sigma"), "spatial": ("mu_s", "sigma_s")}
"""What guided-diffusion, pytorch-fid and EDM call mean and covariance of an output in their files."""
COUNT = "count"
"""How many images there were, a number that other programs do not write."""
_NUMBER = Header((), np.dtype(np.int64))
_SYMMETRIC = 1e-3  # of the largest entry: statistics are kept in float32 too
_FEATURES = "features"  # the output that is kept for each image of a reference
_WAIT_SECONDS = 0.5


@dataclass(frozen=True)
class Statistics:
    """A file of statistics."""

    path: Path
    has_images: bool
    "Whether it has images too, as guided-diffusion's: arr_0."
    identity: dict[str, Any]
    "For JSON: path, kind, and the file's SHA-256."
    count: int = 0
    "Of how many images; 0 where the file does not say."
    size: tuple[int, int] | None = None
    "Height and width of these; None where the file does not say."


def open_reference(
    path: str | Path, *, image_size: int | tuple[int, int] | None = None, like: DataConfig | None = None, channels: int | None = None
) -> StoredPictures | Statistics:
    """What lies at a path: a file of statistics (.npz with mu and sigma), or pictures (see `open_pictures`). Raises DataError."""
    place = user_path(path)
    if place.suffix.lower() in (".pkl", ".pickle"):
        reason = f"{place}: pickled, and such a file can run any program"
        raise DataError(reason, advice="give the .npz of these statistics (mu, sigma), or the images")
    if place.suffix.lower() == ".npz" and place.exists():
        statistics = _statistics(place)
        if statistics is not None:
            return statistics
    return open_pictures(place, image_size=image_size, like=like, channels=channels)


def reference_of(
    source: str | Path | Pictures | Statistics,
    embedder: Embedder,
    *,
    outputs: Sequence[str] = (_FEATURES,),
    features: bool = True,
    world: World,
    progress: Watch = unwatched,
) -> FeatureSet:
    """The moments of `outputs`, and with `features` also the "features" of each image, in every process.

    `source`: what `open_reference` gives, or a path. Statistics are read; pictures are embedded once, and then read from the cache. Raises
    DataError for statistics that are damaged, lack what is asked for, or are those of another network.
    """
    opened = open_reference(source) if isinstance(source, str | Path) else source
    if not isinstance(opened, Statistics):
        return _cached(opened, embedder, world=world, progress=progress)
    moments = _moments(opened.path, embedder, [name for name in outputs if name in NAMES], world.device)
    if not features:
        return FeatureSet({}, moments)
    if not opened.has_images:
        reason = f"{opened.path}: holds statistics alone"
        raise DataError(reason, advice="for metrics that look at each image (kid, precision, recall) give the images")
    return FeatureSet(_cached(open_pictures(opened.path), embedder, world=world, progress=progress).arrays, moments)


# Statistics


def _statistics(path: Path) -> Statistics | None:
    """The statistics in an .npz; None where it holds something else. Raises DataError."""
    with _opened(path) as file:
        names = file.names
        if "mu" not in names and "sigma" not in names:
            return None
        shape = file.header("arr_0").shape if "arr_0" in names else ()
        count = _counted(file) if COUNT in names or not shape else shape[0]
        identity = {"path": str(path), "kind": "statistics", "sha256": sha256_of(path)}
        return Statistics(path, "arr_0" in names, identity, count, _size(file, shape))


@contextmanager
def _opened(path: Path) -> Iterator[Npz]:
    """A file of statistics; within it what cannot be read of it becomes a DataError."""
    try:
        with open_npz(path) as file:
            yield file
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({explain(error)})") from error
    except DamagedArchive as error:
        raise DataError(f"{path}: {error}; copy or make it again") from error


def _counted(file: Npz) -> int:
    """Of how many images the statistics in a file are said to be; 0 where it does not say."""
    return int(file.array(COUNT)) if COUNT in file.names and file.header(COUNT) == _NUMBER else 0


def _size(file: Npz, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Height and width of the images of statistics: of Triptych's own files, and of those with images, of this `shape`."""
    match said(file), shape:
        case ([{"size": [int(high), int(wide)]}, *_], _) | (_, (_, high, wide, _)):
            return high, wide
    return None


def _moments(path: Path, embedder: Embedder, outputs: Sequence[str], device: torch.device) -> dict[str, Moments]:
    """The moments in a file, by output. Raises DataError."""
    dimensions = _dimensions(embedder, device)
    with _opened(path) as file:
        _check_network(file, path, embedder)
        count = _counted(file)
        return {output: _read(file, path, output, dimensions[output], embedder.name, count) for output in outputs}


def _check_network(file: Npz, path: Path, embedder: Embedder) -> None:
    """DataError where the file says that it was made by another network, or by other weights or another resize."""
    match said(file):
        case [_, {**network}] if network != json.loads(json.dumps(embedder.identity)):
            other = ", ".join(f"{name} {network.get(name)}" for name in embedder.identity if network.get(name) != embedder.identity[name])
            reason = f"{path}: statistics of another network than {embedder.name} as it is asked for here ({other})"
            raise DataError(reason, advice="make them again, or choose --features, --features-weights and --features-resize as they were")


def _dimensions(embedder: Embedder, device: torch.device) -> dict[str, int]:
    """How many numbers each output has."""
    outputs = embedder(torch.zeros((1, 32, 32, 3), dtype=torch.uint8, device=device))
    return {name: values.shape[1] for name, values in outputs.items()}


def _read(file: Npz, path: Path, output: str, size: int, network: str, count: int) -> Moments:
    names = NAMES[output]
    missing = [name for name in names if name not in file.names]
    if missing:
        held = ", ".join(file.names)
        raise DataError(f'{path}: holds {held}, but no {" and ".join(missing)}, the statistics of "{output}"', advice="give the images")
    for name, shape in zip(names, ((size,), (size, size)), strict=True):
        header = file.header(name)  # before anything is unpacked
        if header.shape != shape or header.dtype.kind != "f":
            found = f"{header.dtype} of shape {list(header.shape)}"
            reason = f"{path}: {name} is {found}, but {network} has {size} {output}, so {list(shape)} is expected"
            raise DataError(reason, advice="give statistics of this network, the images, or another --features")
    mean, covariance = (file.array(name).astype(np.float64) for name in names)
    if not np.isfinite(mean).all() or not np.isfinite(covariance).all():
        raise DataError(f"{path}: {' or '.join(names)} holds values that are not finite; copy or make it again")
    if np.abs(covariance - covariance.T).max() > _SYMMETRIC * np.abs(covariance).max() or np.diagonal(covariance).min() < 0:
        raise DataError(f"{path}: {names[1]} is no covariance, for it is not symmetric or has variances below 0; make it again")
    return Moments(count, mean, covariance)


# The cache


def _cached(pictures: Pictures, embedder: Embedder, *, world: World, progress: Watch) -> FeatureSet:
    """The features and moments of pictures, from the cache, or made and kept there."""
    identity = origin(pictures, embedder.identity)
    place = cache_folder() / "references" / f"{digest_of(identity)}.npz"
    lock: Lock | None = None

    def begin() -> bool:
        nonlocal lock
        if _kept(place, identity, embedder) is not None:
            return True
        lock = _waited_for(place)
        return _kept(place, identity, embedder) is not None  # another command made it meanwhile

    try:
        if not world.on_main(begin):
            working = place.with_suffix(".features.npz")
            made = embedded(pictures, embedder, out=working, world=world, progress=progress)
            world.on_main(lambda: _keep(place, identity, made))
            world.on_main(lambda: remove(working))
        world.barrier()
        kept = _kept(place, identity, embedder)
    finally:
        if lock is not None:
            lock.release(remove=True)
    if kept is None:
        raise DataError(f"{place}: damaged while it was used; the same command makes it anew")
    return kept


def _keep(place: Path, identity: Any, made: FeatureSet) -> None:
    moments = {output: made.moments(output) for output in NAMES if output in made.arrays}
    arrays: dict[str, np.ndarray] = {IDENTITY: told_of(identity), _FEATURES: made.arrays[_FEATURES]}
    for output, found in moments.items():
        arrays |= dict(zip(NAMES[output], (found.mean, found.covariance), strict=True))
    try:
        save_npz(place, arrays)
    except OSError as error:
        raise _unwritable(place, error) from error


def _kept(place: Path, identity: Any, embedder: Embedder) -> FeatureSet | None:
    """What the cache has; None where it lacks it, or it is damaged."""
    outputs = [output for output in NAMES if output in embedder.outputs]
    arrays = stored(place, identity, [_FEATURES, *(name for output in outputs for name in NAMES[output])])
    if arrays is None:
        return None
    features = arrays[_FEATURES]
    moments = {output: Moments(len(features), *(np.array(arrays[name]) for name in NAMES[output])) for output in outputs}
    return FeatureSet({_FEATURES: features}, moments)


def _waited_for(place: Path) -> Lock:
    """The lock on an entry of the cache, when other commands are done with it."""
    said_so = False
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                return Lock(place.with_suffix(".lock"))
            except Held as holder:
                if not said_so:
                    warnings.warn(f"another command ({holder}) embeds this reference: waiting for it", stacklevel=2)
                said_so = True
                time.sleep(_WAIT_SECONDS)
    except OSError as error:
        raise _unwritable(place, error) from error


def _unwritable(place: Path, error: OSError) -> DataError:
    return DataError(f"cannot write {place}: {explain(error)}", advice="name another folder by TRIPTYCH_CACHE")
