"""The images of a source in one file, as training takes them: `triptych data pack`."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from triptych.core.address import is_address
from triptych.core.config import spelled
from triptych.core.errors import ConfigError, DataError
from triptych.core.files import whole
from triptych.core.npz import Blocks
from triptych.core.reading import user_path
from triptych.core.remote import names_version
from triptych.core.wording import counted
from triptych.data.archives import most_of_a_pack
from triptych.data.config import DataConfig
from triptych.data.decode import open_image
from triptych.data.files import LABELS_FILE, PACK_FILE, Names, is_image
from triptych.data.fingerprint import fingerprint
from triptych.data.images import Data, FileImages, ImageSet, Loaded
from triptych.data.loader import batches_of
from triptych.data.naming import divided, held_out, parsed
from triptych.data.pack import (
    CLASSES,
    DIVISION,
    KEY_ENDS,
    KEYS,
    PIXELS,
    STAMP,
    Division,
    Kept,
    PackStamp,
    preparation,
    stamp_of,
    versions_of,
)
from triptych.data.source import are_latents
from triptych.data.stored import BadImage
from triptych.engine.distributed import open_world
from triptych.engine.progress import Watch, unwatched
from triptych.runs.files import check_archive, check_kept, check_place, save_npz, writing
from triptych.runs.given.collection import files_at
from triptych.runs.pieces import Pieces
from triptych.runs.work import Part, Work, make_missing, ranges

_PIECE_BYTES, _MOST_IN_A_PIECE = 2**24, 1024
_FILE_BYTES = 2**17  # of a photograph, about
_IN_A_FOLDER = 1000  # images, as EDM's programs have it
_ENDS = "ends"
ENDINGS = (".npz", ".zip")
"""Of the names of packs."""


@dataclass(frozen=True)
class Packed:
    """What was written."""

    stamp: PackStamp
    held_out: int
    "Of the images, those that were held out when they were packed."
    notes: tuple[str, ...]
    "What is said of the source."
    already: bool = False
    "Whether the file held just this, and was left alone."


def pack_data(
    settings: DataConfig, out: str | Path, *, files: bool = False, workers: int | None = None, progress: Watch = unwatched
) -> Packed:
    """Writes the images that `settings` open to `out`, an .npz of pixels or a .zip of PNGs; for all processes.

    With data.crop random and a data.resize, images are kept whole, with that short side. `files`: a .zip of the files as they are.
    `workers`: processes that load, as of a `Loader`. An interrupted call goes on where it was and ends with the same bytes; a file of just
    these images is left alone, while no file of theirs changed. Raises ConfigError and DataError for what cannot be packed.
    """
    place = Path(out)
    if place.suffix not in ENDINGS:
        raise ConfigError("out", f"got {str(place)!r}, expected a name that ends with .npz or .zip")
    check_place(place)
    check_kept(place, settings.path or "")
    check_archive(place, PACK_FILE if place.suffix == ".zip" else f"{STAMP}.npy")
    kept = _kept(settings, place, files=files)
    if settings.on_error == "skip":
        raise ConfigError("data.on_error", "got skip, but a pack has every image once: leave it out, and bad images too by data.skip")
    if are_latents(settings):
        raise DataError(f"{settings.path}: holds latents, which are packed already; give images")
    holds_out, settings = settings.validation_fraction > 0, _anywhere(settings)
    opened = _opened(dataclasses.replace(settings, enlarge=True) if files else settings)  # a file that is kept may be of any size
    images = _KINDS[kept](opened)
    divides, division = _division(images, settings.validation_fraction)
    stamp = PackStamp(
        kept=kept,
        data=preparation(settings, channels=opened.spec.channels),
        class_names=opened.spec.class_names,
        count=len(images),
        division=divides,
        images=fingerprint(opened),
        versions=versions_of(opened.objects),
    )
    _check_replaced(place, stamp)
    zipped = place.suffix == ".zip"
    if zipped and len(_said(stamp, division, images)) > most_of_a_pack(len(images)):
        raise DataError(f"cannot write {place}: the names of {len(images):,} images are too long for a .zip; end --out in .npz")
    source = _Source(settings, place, known=all(map(names_version, opened.objects.values())))
    kept_back = 0 if opened.validation is None or not holds_out else len(opened.validation)
    world = open_world("cpu")
    work = Work(len(images), [place.suffix, stamp.to_dict()], lambda items, within: _made(images, items, workers, encoded=zipped))
    pieces = Pieces.of(place, identity=work.identity)
    with writing(place, world=world, kept="packed"):
        already = world.on_main(lambda: place.is_file() and stamp_of(place) == stamp and not source.changed_since_packed())
        if not already:
            world.on_main(lambda: pieces.drop(source.changed(images)))
            make_missing(work, pieces, world=world, progress=progress)
            world.barrier()
        if world.is_main:
            if not already:
                (_write_zip if zipped else _write_array)(place, stamp, division, images, pieces)
            pieces.remove_all()
        world.barrier()
    return Packed(stamp, kept_back, opened.notes, already)


@dataclass(frozen=True)
class _Source:
    """When what is packed changed: the stamp of a pack has eight images' pixels alone."""

    settings: DataConfig
    place: Path
    "Of the pack, which may lie in the folder that is packed."
    known: bool
    "Whether the versions of all files elsewhere are known, and so are in the stamp."

    def changed_since_packed(self) -> bool:
        """Whether a file changed after the pack was written, or nobody knows."""
        newest = self._newest
        return newest is None or newest > self.place.stat().st_mtime_ns

    def changed(self, images: _Squares) -> Callable[[range, int], bool]:
        """Whether one of some images changed after a piece of them was written: by its file, or by the newest where it has none."""

        def changed(items: range, written: int) -> bool:
            for item in items:
                try:
                    time = _time(images.key(item))
                except (OSError, ValueError):  # within an archive, or in an array
                    time = self._newest
                if time is None or time > written:
                    return True
            return False

        return changed

    @functools.cached_property
    def _newest(self) -> int | None:
        """When a file of the source changed last, in nanoseconds; None where nobody knows."""
        if self.settings.path is None or is_address(self.settings.path):
            return 0 if self.known else None
        path = user_path(self.settings.path)
        try:
            files = [file for file in files_at(path) if file == path or not self._is_none_of_it(file)]
            return max(map(_time, files), default=0)
        except OSError:
            return None

    def _is_none_of_it(self, file: Path) -> bool:
        """Whether a file is the pack, or hidden, as what is left of an interrupted call."""
        return file.name.startswith(".") or (file.name == self.place.name and file.resolve() == self.place.resolve())


def _time(file: str | Path) -> int:
    """When a file changed last, or the link to it, which may lead to an older file now."""
    return max(time for state in (os.stat(file), os.lstat(file)) for time in (state.st_mtime_ns, state.st_ctime_ns))


def _check_replaced(place: Path, stamp: PackStamp) -> None:
    """DataError where a pack is there whose images were prepared otherwise: it is none of this command, and may be all there is."""
    old = stamp_of(place) if place.is_file() else None
    if old is None or (old.kept, old.data) == (stamp.kept, stamp.data):
        return
    theirs, own = old.data.to_dict() | {"kept": old.kept}, stamp.data.to_dict() | {"kept": stamp.kept}
    name = next(name for name in theirs if theirs[name] != own.get(name))
    found = f"{counted(old.count, 'image')} with {name} {spelled(theirs[name])}, here {spelled(own.get(name))}"
    raise DataError(f"cannot write {place}: it is a pack of {found}; choose another --out, or remove it")


def _opened(settings: DataConfig) -> Data:
    """The images; of one that cannot be read DataError does not advise to skip it, as a training can."""
    try:
        return settings.open()
    except DataError as error:
        if not isinstance(error.__cause__, BadImage):
            raise
        raise _left_out(error.__cause__) from error


def _left_out(error: BadImage) -> DataError:
    return DataError(f"{error}, or leave it out by data.skip")


def _kept(settings: DataConfig, place: Path, *, files: bool) -> Kept:
    """In what form images are kept. Raises ConfigError for what no file can keep."""
    if type(settings) is not DataConfig:
        raise ConfigError("data", f"images of the kind {settings.kind_name} cannot be packed, only plain images; train from their folders")
    if files:
        if place.suffix != ".zip":
            raise ConfigError("files", f"files as they are go into a zip, but --out is {str(place)!r}; end its name in .zip")
        return "files"
    if settings.crop == "center":
        return "squares"
    if settings.resize is None or settings.scale:
        size = settings.image_size
        reason = f"got random, so what is cut out differs from draw to draw{' in scale too' if settings.scale else ''}"
        remedy = f"give --resize {-(-size * 5 // 4)} too{' and leave out data.scale' if settings.scale else ''}, which keeps whole images"
        raise ConfigError("data.crop", f"{reason}: {remedy} with that short side, or --files, or leave data.crop out")
    return "whole"


def _anywhere(settings: DataConfig) -> DataConfig:
    """What opens all images, those too that a source holds out by itself."""
    fraction = settings.validation_fraction or DataConfig().validation_fraction
    path = settings.path if settings.path is None or is_address(settings.path) else str(Path(settings.path).absolute())
    return dataclasses.replace(settings, path=path, validation_fraction=fraction)


class _Squares(ImageSet):
    """All images of a source, those too that are held out, in its order; where it has a split of its own, in several places, these last."""

    bytes_each: int
    "About what an image takes."

    def __init__(self, data: Data) -> None:
        self.sets = data.sets
        owner = np.repeat(np.arange(len(self.sets)), [len(images) for images in self.sets])
        items = np.concatenate([np.arange(len(images)) for images in self.sets])
        self.source_numbers = np.concatenate([images.numbers for images in self.sets])
        order = np.arange(len(items))
        if len(np.unique(self.source_numbers)) == len(items):
            order = np.argsort(self.source_numbers)
        labels = [images.labels for images in self.sets if images.labels is not None]
        together = np.concatenate(labels)[order] if labels else None
        super().__init__(data.train.config, channels=data.train.channels, items=items[order], labels=together)
        self.owner, self.source_numbers = owner[order], self.source_numbers[order]
        self.keys = [self.of(item)[0].source_key(self.of(item)[1]) for item in range(len(self))]
        self.bytes_each = self.config.image_size**2 * self.channels

    def of(self, item: int) -> tuple[ImageSet, int]:
        """The set that an image is in, and its number there."""
        return self.sets[self.owner[item]], int(self._items[item])

    def key(self, item: int) -> str:
        images, number = self.of(item)
        return images.key(number)

    def source_key(self, item: int) -> str:
        return self.keys[item]

    def default_workers(self) -> int:
        return max(images.default_workers() for images in self.sets)

    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        """Images without any draws: uint8 (b, h, w, c)."""
        squares = np.empty((len(items), self.config.image_size, self.config.image_size, self.channels), dtype=np.uint8)
        for number, images in enumerate(self.sets):
            chosen = self.owner[items] == number
            if chosen.any():
                with _leaving_out():
                    squares[chosen] = images.batch(self._items[items[chosen]]).images
        return Loaded(squares, None)

    def encoded(self, item: int) -> bytes:
        """An image as a file."""
        return _png(self.batch(np.array([item])).images[0])


class _Whole(_Squares):
    """Whole images with a short side of data.resize."""

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        if not all(isinstance(images, FileImages) for images in self.sets):
            raise DataError(f"{data.train.key(0)}: an array is cut at random as fast as a pack would be; train from it as it is")
        self.bytes_each = 2 * (self.config.resize or 0) ** 2 * self.channels

    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        shape = self.image(0).shape
        images = [self.image(int(item)) for item in items]
        for item, image in zip(items, images, strict=True):
            if image.shape != shape:
                sides = f"{image.shape[1]}x{image.shape[0]} pixels with that data.resize, but the first one has {shape[1]}x{shape[0]}"
                raise DataError(f"{self.key(int(item))}: {sides}; whole images of several sizes go into a zip: end --out in .zip")
        return Loaded(np.stack(images), None)

    def image(self, item: int) -> np.ndarray:
        """An image, uint8 (h, w, c). Raises DataError naming the file."""
        images, number = self.of(item)
        assert isinstance(images, FileImages)
        with _leaving_out():
            return images.whole(number)

    def encoded(self, item: int) -> bytes:
        return _png(self.image(item))


class _Files(_Squares):
    """Files as they are."""

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        for images in self.sets:
            if not isinstance(images, FileImages) or not isinstance(images.content(0), bytes):
                raise DataError(f"{images.key(0)}: no file that could be kept as it is, but pixels; leave out --files")
        self.bytes_each = _FILE_BYTES

    def encoded(self, item: int) -> bytes:
        images, number = self.of(item)
        with _leaving_out():
            content = images.content(number)
        assert isinstance(content, bytes)
        return content


class _Encoded(ImageSet):
    """Images as the bytes of files, one after the other."""

    def __init__(self, images: _Squares) -> None:
        super().__init__(images.config, channels=images.channels, items=images.numbers, labels=None)
        self._images = images

    def key(self, item: int) -> str:
        return self._images.key(item)

    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        """As images the bytes, uint8 (length,), and where each file ends, int64 (b,), as the input "ends"."""
        files = [self._images.encoded(int(item)) for item in items]
        return Loaded(np.frombuffer(bytearray().join(files), dtype=np.uint8), None, {_ENDS: np.cumsum([len(file) for file in files])})


_KINDS: dict[Kept, type[_Squares]] = {"squares": _Squares, "whole": _Whole, "files": _Files}


@contextmanager
def _leaving_out() -> Iterator[None]:
    """Within it the message for an image that cannot be read says how to pack the others."""
    try:
        yield
    except BadImage as error:
        raise _left_out(error) from error


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0]).save(buffer, "PNG")
    return buffer.getvalue()


def _ending(key: str, file: bytes) -> str:
    """The ending of a file's name; by its format where the key has none, as those of databases may."""
    ending = PurePosixPath(key).suffix
    if is_image(f"image{ending}"):
        return ending
    with open_image(file) as image:
        name = image.format or ""
    return {"JPEG2000": ".jp2", "MPO": ".jpg"}.get(name, f".{name.lower()}")


def _division(images: _Squares, fraction: float) -> tuple[Division, np.ndarray | None]:
    """What of the images holds them out in their source: what gives its training images and its held-out ones again."""
    held = images.owner == 1
    if np.array_equal(np.flatnonzero(held), divided(parsed(images.keys), validation_fraction=fraction)[1]):
        return "keys", None
    if np.array_equal(np.flatnonzero(held), held_out(list(map(str, images.source_numbers)), fraction=fraction)[1]):
        return "numbers", images.source_numbers
    return "split", held.astype(np.int64)


def _made(images: _Squares, items: Sequence[int], workers: int | None, *, encoded: bool) -> Iterator[Part]:
    size = max(1, min(_MOST_IN_A_PIECE, _PIECE_BYTES // images.bytes_each))
    parts = list(ranges(items, size))
    given = images.config.workers if workers is None else workers
    chosen = images.default_workers() if given is None else given
    numbers = (np.arange(part.start, part.stop) for part in parts)
    for part, batch in zip(parts, batches_of(_Encoded(images) if encoded else images, numbers, workers=chosen), strict=True):
        yield part, {PIXELS: batch.images.numpy(), **{name: values.numpy() for name, values in batch.inputs.items()}}


def _write_array(place: Path, stamp: PackStamp, division: np.ndarray | None, images: _Squares, pieces: Pieces) -> None:
    first = next(arrays[PIXELS] for _, arrays in pieces.read(len(images)))
    keys = Names(images.keys)
    arrays: dict[str, np.ndarray | Blocks] = {STAMP: np.array(stamp.text())}
    arrays |= {KEYS: np.frombuffer(keys.bytes, dtype=np.uint8), KEY_ENDS: keys.ends}
    arrays |= {} if division is None else {DIVISION: division}
    arrays |= {} if images.labels is None else {CLASSES: images.labels}
    blocks = (arrays[PIXELS] for _, arrays in pieces.read(len(images)))
    save_npz(place, {PIXELS: Blocks((len(images), *first.shape[1:]), np.dtype(np.uint8), blocks), **arrays})


def _write_zip(place: Path, stamp: PackStamp, division: np.ndarray | None, images: _Squares, pieces: Pieces) -> None:
    """A file for each image; the labels, as StyleGAN's and EDM's programs read them; and what the pack says of itself."""
    names: list[str] = []
    said = _said(stamp, division, images)
    with whole(place) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for items, arrays in pieces.read(len(images)):
            starts = [0, *arrays[_ENDS][:-1]]
            for item, start, end in zip(items, starts, arrays[_ENDS], strict=True):
                file = arrays[PIXELS][start:end].tobytes()
                ending = _ending(images.keys[item], file) if stamp.kept == "files" else ".png"
                names.append(f"{item // _IN_A_FOLDER:05d}/img{item:08d}{ending}")
                archive.writestr(zipfile.ZipInfo(names[-1]), file)
        labels = None if images.labels is None else list(zip(names, images.labels.tolist(), strict=True))
        for name, document in ((LABELS_FILE, json.dumps({"labels": labels})), (PACK_FILE, said)):
            archive.writestr(zipfile.ZipInfo(name), document)


def _said(stamp: PackStamp, division: np.ndarray | None, images: _Squares) -> str:
    """What a zip says of itself; it is longer than its labels."""
    return json.dumps({"stamp": stamp.to_dict(), "keys": images.keys, "division": None if division is None else division.tolist()})
