"""The images at a path: what kind of source lies there, and the sets for training and validation that are made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from triptych.core.address import Address, Place, is_address
from triptych.core.batch import DataSpec
from triptych.core.cache import cache_folder, remote_limit
from triptych.core.errors import ConfigError, DataError
from triptych.core.memory import in_bytes
from triptych.core.reading import user_path
from triptych.core.remote import identity_of
from triptych.core.wording import counted
from triptych.data import arrays
from triptych.data.archives import open_tar, open_zip
from triptych.data.arrays import Arrays
from triptych.data.config import DataConfig, Source
from triptych.data.cut import Cut, TooSmall
from triptych.data.database import is_database, open_database
from triptych.data.files import KINDS, LABELS_FILE, Files, open_folder
from triptych.data.images import ArrayImages, Data, FileImages, ImageSet, prepared
from triptych.data.label_file import classes_by, not_for
from triptych.data.latents import holds_latents, open_latents
from triptych.data.naming import LABELS, divided, held_out, pairs_warning, parsed
from triptych.data.pack import ArrayPack, PackedImages, array_pack, files_pack, named_classes
from triptych.data.parquet import SUFFIX, open_parquet
from triptych.data.patterns import exists, is_pattern, matched
from triptych.data.shards import TAR_SUFFIXES, holds_shards, open_shards, remote_shards
from triptych.data.skipping import LeftOut, without_bad
from triptych.data.tfrecord import Records, holds_records, is_split, open_records

FILES = ("folder", "lmdb", "parquet", "tar", "zip")
"""Sources that are made of image files."""
_SHOWN = 3
"""Of classes without images."""
ELSEWHERE = ("tar", "zip", "arrays", "latents")
"""Sources that are read in parts where they are not on this machine."""


def existing_path(config: DataConfig) -> Path:
    """`config.path`. Raises ConfigError where there is none, DataError where nothing lies there."""
    if config.path is None:
        raise ConfigError("data.path", "missing: give the folder or file of the images")
    path = user_path(config.path)
    if not exists(path):
        raise DataError(f"{path}: does not exist (data.path)")
    return path


def located(config: DataConfig) -> tuple[Path, Source]:
    """`config.path` and the kind of source that lies there. Raises ConfigError or DataError where it is not there, or of another kind.

    Of images on this machine alone; see `located_anywhere`.
    """
    path = existing_path(config)
    source = recognised(path) if config.source in ("auto", "digits") else config.source
    if is_pattern(path) and source not in ("tar", "parquet"):
        raise DataError(f"{path}: a pattern stands for tars or Parquet files, but data.source is {source}")
    if source in ("mnist", "cifar10", "folder", "tfrecord", "lmdb") and not path.is_dir():
        raise DataError(f"{path}: not a folder, but data.source is {source}")
    if source == "latents" and not path.is_file():
        encode = f"triptych data encode {path} --with AUTOENCODER_RUN --out FILE.npz"
        raise DataError(f"{path}: a folder, but latents are learned, which lie in an .npz; {encode} makes one of images")
    if source in ("zip", "arrays") and not path.is_file():
        raise DataError(f"{path}: not a file, but data.source is {source}")
    return path, source


def located_anywhere(config: DataConfig) -> tuple[Place, Source]:
    """The same, also of data that lie elsewhere."""
    if not is_address(config.path):
        return located(config)
    address = Address(str(config.path))
    source = _recognised_elsewhere(address) if config.source in ("auto", "digits") else config.source
    if source not in ELSEWHERE:
        reason = f"got {source!r}, but {address} is not on this machine, and of what is elsewhere {', '.join(ELSEWHERE)} are read"
        raise ConfigError("data.source", f"{reason}; copy the images here, or make one file of them (triptych data pack)")
    return address, source


def are_latents(config: DataConfig) -> bool:
    """Whether latents lie at the path, which who wants images says before the settings are held against them. Raises as `open_images`."""
    return type(config) is DataConfig and config.path is not None and located_anywhere(config)[1] == "latents"


def open_images(config: DataConfig, *, left_out: LeftOut | None = None) -> Data:
    """The images of any source, each alone, without those that are `left_out` (None: those of data.skip).

    Raises ConfigError or DataError.
    """
    listed = LeftOut.of(config) if left_out is None else left_out
    data = _opened(config, listed)
    own = () if left_out is not None else listed.notes()
    return replace(data, notes=(*data.notes, *_unlearned(config, data), *own))


def _unlearned(config: DataConfig, data: Data) -> tuple[str, ...]:
    """A warning of classes that no image to train on has, as where held-out images alone have them; else nothing."""
    names, labels = data.spec.class_names, data.train.labels
    if names is None or labels is None:
        return ()
    absent = np.flatnonzero(np.bincount(labels, minlength=len(names)) == 0)
    if not len(absent):
        return ()
    some = ", ".join(names[k] for k in absent[:_SHOWN]) + (f" and {len(absent) - _SHOWN:,} more" if len(absent) > _SHOWN else "")
    have, are = ("has", "is") if len(absent) == 1 else ("have", "are")
    told = f"{len(absent):,} of {len(names):,} classes {have} no image to train on ({some}) and {are} not learned"
    return (f"warning: {config.path or config.source}: {told}",)


def _opened(config: DataConfig, left_out: LeftOut) -> Data:
    if config.path is None and config.source == "digits":
        check_label_file(config, "digits")
        return _from_pixels(config, arrays.digits(), None, left_out, enlarge=True)
    path, source = located_anywhere(config)
    if isinstance(path, Address):
        return _elsewhere(config, path, source, left_out)
    return _opened_at(config, path, source, left_out)


def _elsewhere(config: DataConfig, path: Address, source: Source, left_out: LeftOut) -> Data:
    """Data that are not on this machine, with the versions of the files that they are made of."""
    identity = None if source == "tar" else str(identity_of(path))
    data = _opened_at(config, path, source, left_out)
    if identity is not None:
        data = replace(data, objects={str(path): identity})
        if str(identity_of(path)) != identity:
            raise DataError(f"{path}: changed while it was opened; start again")
    count = f"{len(data.objects):,} files, " if len(data.objects) > 1 else ""
    kept = f"parts are kept in {cache_folder() / 'remote'}, {in_bytes(remote_limit())} at most"
    return replace(data, notes=(*data.notes, f"{path}: {count}read from there; {kept}"))


def _opened_at(config: DataConfig, path: Place, source: Source, left_out: LeftOut) -> Data:
    if source in FILES:
        return _from_files(config, *open_files(path, source), left_out)
    check_label_file(config, source)
    if source == "latents":
        return open_latents(config, path)
    pack = array_pack(path) if source == "arrays" else None
    if pack is not None:
        return _from_pack(config, pack, path.name, left_out)
    if source == "tfrecord":
        _check_labels(config, path.name, labelled=True)
    side = (config.resize or config.image_size) - 2 * config.pad
    return _from_pixels(config, *open_pixels(path, source, side=side, labelled=config.labels != "none"), left_out)


def open_pixels(path: Place, source: Source, *, side: int, labelled: bool) -> tuple[Arrays | Records, Arrays | Records | None]:
    """The images for training, and those for testing where a source has some, of a source that is not made of image files.

    Of TFRecord files the smallest resolution of at least `side`, else the largest. Raises DataError.
    """
    if source == "arrays":
        return arrays.array_file(path), None
    assert isinstance(path, Path)
    if source == "tfrecord":
        return open_records(path, side=side, labelled=labelled)
    if source == "latents":
        raise DataError(f"{path}: holds latents, and images are wanted here; give the images")
    if source == "mnist":
        train, test = arrays.mnist(path, "train"), arrays.mnist(path, "t10k")
    else:
        train, test = arrays.cifar10(path, "data_batch_*.bin"), arrays.cifar10(path, "test_batch.bin")
    if train is None:
        raise DataError(f"{path}: holds no {'train-images-idx3-ubyte' if source == 'mnist' else 'data_batch_1.bin'}")
    return train, test


def open_files(path: Place, source: Source) -> tuple[Files, list[str]]:
    """The image files at a path, and the sub-folders without any."""
    if isinstance(path, Address):
        if source == "zip":
            return open_zip(path), []
        return (open_tar if _is_tar(path) and "{" not in path.text else open_shards)(path), []
    several = matched(path)
    if several is not None:
        return {"tar": open_shards, "parquet": open_parquet}[source](path, several), []
    if source == "folder":
        return open_folder(path)
    if source == "tar" and path.is_dir():
        return open_shards(path), []
    return {"tar": open_tar, "zip": open_zip, "lmdb": open_database, "parquet": open_parquet}[source](path), []


def recognised(path: Path) -> Source:
    """The kind of source that lies at an existing path, or that the files of a pattern are. Raises DataError for a file of another kind."""
    several = matched(path)
    if several is not None:
        return _several(path, several)
    if path.is_dir():
        if arrays.find_idx(path, "train", "images-idx3"):
            return "mnist"
        if holds_records(path):
            return "tfrecord"
        if is_database(path):
            return "lmdb"
        if is_split(path):
            raise DataError(f"{path}: one split of a set of TFRecord files: give the folder above it")
        if (path / "data_batch_1").is_file() and not (path / "data_batch_1.bin").is_file():
            raise DataError(
                f"{path}: CIFAR-10's Python version, which is pickled: give the folder of its binary version (data_batch_1.bin)"
            )
        if (path / "data_batch_1.bin").is_file():
            return "cifar10"
        if holds_shards(path, (SUFFIX,)):
            return "parquet"
        return "tar" if holds_shards(path) else "folder"
    name = path.name.lower()
    if _is_tar(path):
        return "tar"
    if name.endswith(".zip"):
        return "zip"
    if name.endswith(SUFFIX):
        return "parquet"
    if name.endswith((".npz", ".npy")):
        return "latents" if name.endswith(".npz") and holds_latents(path) else "arrays"
    endings = f"{', '.join(TAR_SUFFIXES)}, .zip, {SUFFIX}, .npz or .npy"
    raise DataError(f"{path}: not recognised; expected a folder, or a file ending in {endings}")


def _several(path: Path, files: list[Path]) -> Source:
    def all_are(suffixes: tuple[str, ...]) -> bool:
        return all(file.name.lower().endswith(suffixes) and file.is_file() for file in files)

    if all_are(TAR_SUFFIXES):
        return "tar"
    if all_are((SUFFIX,)):
        return "parquet"
    others = f"{files[0].name} and {counted(len(files) - 1, 'other')}"
    raise DataError(f"{path}: stands for {others}, which are not all tars, nor all {SUFFIX}; give a folder")


def _is_tar(path: Place) -> bool:
    return path.name.lower().endswith(TAR_SUFFIXES)


def _recognised_elsewhere(address: Address) -> Source:
    """The kind of source at an address, by its name. Raises DataError for another kind."""
    if _is_tar(address):
        return "tar"
    match address.suffix.lower():
        case ".zip":
            return "zip"
        case ".npy":
            return "arrays"
        case ".npz":
            return "latents" if holds_latents(address) else "arrays"
    if address.suffix.lower() != SUFFIX and remote_shards(address):
        return "tar"
    expected = "a .zip, .tar, .npz or .npy, a folder of tars, or a name such as part-{000..127}.tar"
    raise DataError(f"{address}: not recognised; expected {expected}")


def _from_pixels(
    config: DataConfig, train: Arrays | Records, test: Arrays | Records | None, left_out: LeftOut, *, enlarge: bool = False
) -> Data:
    _check_labels(config, train.name, labelled=train.labels is not None)
    for part in (train, test):
        if part is not None and len(part):
            _check_sides(config, part, enlarge=enlarge)
    channels = config.channels or train.channels
    labelled = config.labels != "none" and train.labels is not None
    kept = left_out.kept(train.key, len(train))
    if test is None:
        chosen, rest = (kept[part] for part in held_out([str(k) for k in kept], fraction=config.validation_fraction))
    else:
        rest = left_out.kept(test.key, len(test))
        chosen, rest = kept, rest if config.validation_fraction > 0 else rest[:0]
    _check_count(len(chosen), train.name, files=False)
    training = _opener(config, train, left_out, channels=channels, labelled=labelled)
    validation = None
    if labelled and test is not None and len(rest):
        check_classes(train, test)
    if len(rest):
        validation = (training if test is None else _opener(config, test, left_out, channels=channels, labelled=labelled))(rest)
    return Data(training(chosen), validation, _spec(config, channels, train.class_names if labelled else None))


def check_classes(train: Arrays | Records, test: Arrays | Records) -> None:
    """Raises DataError for a class of images for testing that no image for training can have."""
    if train.class_names is None or test.labels is None:
        return
    most, count = int(test.labels.max(initial=0)), len(train.class_names)
    if most >= count:
        reason = f"{test.name}: holds the class {most}, but {train.name}, to train on, 0 to {count - 1} alone"
        raise DataError(reason, advice="mend the labels, or set {} to none", setting=LABELS)


def _opener(
    config: DataConfig, part: Arrays | Records, left_out: LeftOut, *, channels: int, labelled: bool
) -> Callable[[np.ndarray], ImageSet]:
    """From the numbers of some images to the set of them."""

    def labels(items: np.ndarray) -> np.ndarray | None:
        return part.labels[items] if labelled and part.labels is not None else None

    if isinstance(part, Records):
        return lambda items: without_bad(
            FileImages(part, config, channels=channels, items=items, labels=labels(items)), keys_begin=left_out.folder
        )
    pixels = prepared(part.pixels, config)
    named = {"name": part.name, "keys_begin": part.keys_begin}
    return lambda items: ArrayImages(pixels, config, **named, channels=channels, items=items, labels=labels(items))


def _from_pack(config: DataConfig, pack: ArrayPack, name: str, left_out: LeftOut) -> Data:
    """The images of an .npz that `triptych data pack` wrote, held out as in their source."""
    opening, labels = pack.stamp.opening(config, name), pack.chosen_labels(config, name)
    kept = left_out.kept(pack.keys.__getitem__, len(pack.keys))
    training, validation = pack.divided(kept, validation_fraction=config.validation_fraction)
    _check_count(len(training), name, files=False)
    sets = [PackedImages(pack, opening, name=name, items=items, labels=labels) for items in (training, validation)]
    spec = _spec(config, sets[0].channels, None if labels is None else pack.stamp.class_names)
    return Data(sets[0], sets[1] if len(validation) else None, spec)


def _check_labels(config: DataConfig, name: str, *, labelled: bool) -> None:
    """Labels of an array's own are as good as those by folder that a recipe asks for."""
    if config.labels in ("prefix", "json") or (config.labels == "folder" and not labelled):
        hint = "it has labels of its own" if labelled else "it has no labels"
        raise ConfigError("data.labels", f"got {config.labels!r}, but {name} is not made of image files and {hint}: use auto or none")


def check_label_file(config: DataConfig, source: Source) -> None:
    """Raises ConfigError where a text file is to say the classes of images that are no files."""
    if config.label_file is not None and source not in FILES:
        raise not_for(config, f"the images come as {source}, which have labels of their own or none")


def _check_sides(config: DataConfig, part: Arrays | Records, *, enlarge: bool) -> None:
    try:
        replace(Cut.of(config), enlarge=enlarge or config.enlarge).fit(part.size)
    except TooSmall as error:
        raise DataError(f"{part.name}: images of {error}") from None


def _from_files(config: DataConfig, files: Files, empty: list[str], left_out: LeftOut) -> Data:
    pack = files_pack(files)
    kept = left_out.kept(files.key, len(files.names))
    files = files.part(kept) if pack is None else files
    place = str(files.place)
    names = list(files.keys)
    _check_count(len(names), place)
    paths = parsed(names)
    classes = classes_by(config, files, paths, empty=empty)
    if pack is None:
        training, validation = divided(paths, validation_fraction=config.validation_fraction)
    else:
        training, validation = pack.divided(kept, validation_fraction=config.validation_fraction)
        config, classes = pack.stamp.opening(config, files.place.name), named_classes(classes, pack.stamp, files.place)
    _check_count(len(training), place)
    channels = config.channels or 3

    def images(items: np.ndarray) -> ImageSet:
        opened = FileImages(files, config, channels=channels, items=items, labels=None if classes is None else classes.labels[items])
        opened.probe()
        return without_bad(opened, keys_begin=left_out.folder)

    spec = _spec(config, channels, None if classes is None else classes.names)
    by = LABELS_FILE if files.tables else "the files beside the images" if files.labelled else "the source itself"
    several = "" if classes is None else counted(len(classes.names), "class", "classes")
    own = (f"{place}: {several} by {by}",) if classes is not None and classes.numbered else ()
    own += (f"{place}: {several} by {config.label_file}",) if classes is not None and config.label_file else ()
    notes = (*files.notes, *own, *pairs_warning(names, place), *filter(None, [paths.warning]))
    return Data(images(training), images(validation) if len(validation) else None, spec, notes, files.objects)


NO_IMAGES = "no images to train on"


def _check_count(count: int, place: str, *, files: bool = True) -> None:
    if not count:
        raise DataError(f"{place}: {NO_IMAGES}{f' ({KINDS} are looked for, in sub-folders too)' if files else ''}")


def _spec(config: DataConfig, channels: int, class_names: tuple[str, ...] | None) -> DataSpec:
    return DataSpec(
        image_size=config.image_size,
        channels=channels,
        num_classes=None if class_names is None else len(class_names),
        class_names=class_names,
    )
