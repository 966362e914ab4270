"""Latents of a set of images in one file, to be learned in place of the images: `triptych data encode`."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Unpack

import numpy as np
import torch
from torch import Tensor

from triptych.core.batch import DataSpec, LatentSpec, RawBatch
from triptych.core.errors import ConfigError, DataError, RunError
from triptych.core.given import given_place
from triptych.core.model import GaussianEncoder
from triptych.core.npz import Blocks
from triptych.core.reading import user_path
from triptych.core.wording import counted
from triptych.data.config import ClassesFrom, DataConfig
from triptych.data.images import Data
from triptych.data.latents import HELD_OUT, LABELS, MEAN, MIRRORED, STAMP, STD, LatentStamp, holds_latents, read_latent_file, read_stamp
from triptych.data.skipping import Chosen
from triptych.engine.distributed import World
from triptych.engine.precision import autocast
from triptych.engine.progress import Watch, unwatched
from triptych.runs.bad_images import readable_images
from triptych.runs.files import check_kept, check_place, save_npz, writing
from triptych.runs.given.data_images import contents
from triptych.runs.latent_space import autoencoder_of
from triptych.runs.latents import not_finite
from triptych.runs.loading import Loading, LoadingKeywords
from triptych.runs.pieces import Pieces
from triptych.runs.stored import Opened, StoredRun
from triptych.runs.work import Part, Within, Work, evaluating, make_missing, ranges


@dataclass(frozen=True)
class EncodedData:
    """What was written."""

    count: int
    "Images, each once."
    shape: tuple[int, ...]
    "Of an image's latents."
    stamp: LatentStamp
    already: bool = False
    "Whether the file held just these latents, and was left alone."


def encode_data(
    source: str | Path,
    run: StoredRun,
    out: str | Path,
    *,
    image_size: int | None = None,
    flip: bool | None = None,
    labels: ClassesFrom = "auto",
    enlarge: bool | None = None,
    validation_fraction: float | None = None,
    on_error: Literal["stop", "skip"] | None = None,
    progress: Watch = unwatched,
    **loading: Unpack[LoadingKeywords],
) -> EncodedData:
    """Writes mean and deviation of the latents of images at a path, by the autoencoder of `run`, to `out`, an .npz; for all processes.

    Where `run` is one on latents, its own autoencoder encodes as it did the latents that the run learned, and they get the run's scale.
    Of each image the middle is encoded, prepared as those that the autoencoder learned; `image_size`: at another size. `flip`: whether
    mirrored images are encoded too; None: where the autoencoder's training mirrored them. `enlarge`, `validation_fraction` and `on_error`
    are as of the data of a training; None: as in the autoencoder's. An interrupted call goes on where it was, and a file of just these
    latents is left alone.
    Raises ConfigError, DataError and CheckpointError for what cannot be used.
    """
    place, source, chosen = given_place(out, "out"), user_path(source), Loading(**loading)
    if place.suffix != ".npz":
        raise ConfigError("out", f"got {str(place)!r}, expected a name that ends with .npz")
    check_place(place)
    check_kept(place, source)
    if source.is_file() and holds_latents(source):
        raise DataError(f"{source}: holds latents already, which triptych train takes as they are; give the images that they are of")
    if place.is_file() and not holds_latents(place):
        raise DataError(
            f"cannot write {place}: it is there, and is no file of latents that a run learns; choose another --out, or remove it"
        )
    learned = run.spec.latents
    if learned is not None:
        run, chosen = _autoencoder_in(run, learned, chosen)
        if image_size not in (None, learned.image_size):
            reason = f"got {image_size}, but the run learned latents of images of {learned.image_size} pixels"
            raise ConfigError("image_size", f"{reason}; leave it out")
        image_size = learned.image_size
    if not isinstance(run.outline, GaussianEncoder):
        kind = type(run.outline).__name__
        raise ConfigError("with", f"got {run.directory}, a run of {kind}, which has no latents of images; give the run of an autoencoder")
    given = {"image_size": image_size, "flip": flip, "enlarge": enlarge, "on_error": on_error, "validation_fraction": validation_fraction}
    config = _prepared(run.config.data, source, labels=labels)
    config = dataclasses.replace(config, **{name: value for name, value in given.items() if value is not None})
    config, data = _opened(config, channels=run.spec.channels)
    opened = run.open(chosen)
    data = _without_bad(data, opened.world)
    shape = _shape(opened, data.spec)
    stamp = _stamp(run, opened, config, data, channels=shape[0])
    if learned is not None:
        stamp = dataclasses.replace(stamp, latents=learned, as_learned=True)
    count = sum(map(len, data.sets))
    work = Work(count, [stamp.asked, count], lambda items, within: _encoded(items, within, opened, data, stamp.latents))
    pieces = Pieces.of(place, identity=work.identity)
    if opened.world.on_main(lambda: _holds(place, stamp)):
        opened.world.on_main(pieces.remove)  # of a call that was killed before it could
        return EncodedData(count, shape, read_stamp(place), already=True)
    with writing(place, world=opened.world, kept="encoded"):
        make_missing(work, pieces, world=opened.world, progress=progress)
        opened.world.barrier()
        if opened.world.is_main:
            stamp = stamp if stamp.as_learned else _measured(stamp, pieces, count, training=len(data.train))
            _write(place, stamp, pieces, data, count=count, shape=shape)
            pieces.remove_all()
        opened.world.barrier()
    return EncodedData(count, shape, read_stamp(place))


def _autoencoder_in(run: StoredRun, learned: LatentSpec, loading: Loading) -> tuple[StoredRun, Loading]:
    """The run of the autoencoder of a run on latents, and its weights that encoded them.

    Raises ConfigError for other weights that are asked for, or for images that are no squares, CheckpointError where it is not there.
    """
    for name, value, usual in (("checkpoint", loading.checkpoint, "latest"), ("weights", loading.chosen, None)):
        if value != usual:
            raise ConfigError(name, f"got {value}, but {run.directory} says which weights of its autoencoder encode; leave it out")
    if learned.width not in (None, learned.image_size):
        raise ConfigError(
            "with", f"{run.directory} learned latents of {learned.width}x{learned.image_size} images; squares are encoded here"
        )
    found = autoencoder_of(learned, run.paths)
    return found.run, dataclasses.replace(loading, checkpoint=str(learned.checkpoint), weights=found.weights)


def _prepared(config: DataConfig, source: Path, *, labels: ClassesFrom) -> DataConfig:
    """What opens the images: as those of the autoencoder's training, without what is random about these."""
    plain = DataConfig()
    return DataConfig(
        path=str(source.absolute()),
        pad=config.pad,
        image_size=config.image_size,
        channels=config.channels,
        labels=labels,
        flip=config.flip,
        enlarge=config.enlarge,
        background=config.background,
        profiles=config.profiles,
        validation_fraction=config.validation_fraction or plain.validation_fraction,
        workers=0,
        on_error=config.on_error,
        most_errors=config.most_errors,
    )


def _opened(config: DataConfig, *, channels: int) -> tuple[DataConfig, Data]:
    """The images with so many channels, and what opens them: arrays have channels of their own.

    Raises ConfigError about an argument of `encode_data`, as where a pack is of another size, and DataError for a pack of other channels.
    """
    try:
        data = config.open()
    except ConfigError as error:
        raise error.renamed(lambda name: name.removeprefix("data.")) from error
    if data.spec.channels == channels:
        return config, data
    config = config.updated({"channels": channels})
    try:
        return config, config.open()
    except ConfigError as error:
        reason = f"{config.path}: a pack of images of {counted(data.spec.channels, 'channel')}, but the autoencoder takes {channels}"
        raise DataError(f"{reason}; pack them again with --data.channels {channels}") from error


def _without_bad(data: Data, world: World) -> Data:
    """The images that can be read, where data.on_error of the autoencoder's training is skip; the others are warned of."""
    bad: dict[str, str] = {}
    if data.train.config.on_error == "skip":
        train, *rest = (Chosen(one, readable_images(one, np.arange(len(one)), world, bad)) for one in data.sets)
        data = dataclasses.replace(data, train=train, validation=rest[0] if rest else None)
    for key, why in sorted(bad.items()):  # each process those that it looked at
        warnings.warn(f"cannot be read, and is left out: {key}: {why}", stacklevel=3)
    return data


def _stamp(run: StoredRun, opened: Opened, config: DataConfig, data: Data, *, channels: int) -> LatentStamp:
    """The stamp; its moments are not measured yet. `channels`: of the latents."""
    spec = data.spec
    latents = LatentSpec(
        autoencoder=str(run.directory.absolute()),
        checkpoint=int(opened.origin["images"]),
        weights=str(opened.origin["weights"]),
        sha256=str(opened.origin["hash"]),
        image_size=spec.image_size,
        width=spec.width,
        channels=spec.channels,
        mean=(0.0,) * channels,
        std=(1.0,) * channels,
    )
    found = opened.world.on_main(lambda: "-".join(map(contents, data.sets)))
    return LatentStamp(latents=latents, data=config, precision=opened.loading.precision, class_names=spec.class_names, contents=found)


def _shape(opened: Opened, spec: DataSpec) -> tuple[int, ...]:
    """Of an image's latents: (z, h, w). Raises ConfigError for sides that the autoencoder does not take."""
    try:
        return tuple(_posterior(opened, torch.zeros(1, spec.channels, *spec.height_and_width))[0].shape[1:])
    except ConfigError as error:
        raise ConfigError("image_size", error.reason) from error


def _posterior(opened: Opened, images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the latents, in float32 in host memory."""
    model, device = opened.model, opened.world.device
    assert isinstance(model, GaussianEncoder)
    with evaluating(opened.model), autocast(opened.loading.precision, device=device):
        mean, log_variance = model.posterior(images.to(device))
    return mean.float().cpu(), (0.5 * log_variance.float()).exp().cpu()


def _holds(place: Path, stamp: LatentStamp) -> bool:
    """Whether a file holds these latents and no others, each of its arrays whole."""
    try:
        return place.is_file() and read_latent_file(place).stamp.asked == stamp.asked
    except DataError:  # it is damaged, or of another version, for which a training advises to encode the images again
        return False


def _encoded(items: Sequence[int], within: Within, opened: Opened, data: Data, latents: LatentSpec) -> Iterator[Part]:
    training = len(data.train)
    for part in ranges(items, opened.batch_size(data.spec.height_and_width)):
        numbers = np.arange(part.start, part.stop)
        groups = [data.train.batch(numbers[numbers < training]).images]
        if data.validation is not None:
            groups.append(data.validation.batch(numbers[numbers >= training] - training).images)
        images = RawBatch(torch.from_numpy(np.concatenate(groups)), None, torch.from_numpy(numbers)).to(opened.world.device).images
        arrays: dict[str, np.ndarray] = {}
        for prefix, shown in {"": images, **({MIRRORED: images.flip(3)} if data.train.config.flip else {})}.items():
            mean, std = _posterior(opened, latents.seen(shown))
            arrays |= {prefix + MEAN: mean.contiguous().numpy(), prefix + STD: std.contiguous().numpy()}
        wrong = not_finite(arrays.values())
        if wrong.any():
            number = part[int(wrong.argmax())]
            key = data.train.key(number) if number < training else data.sets[1].key(number - training)
            remedy = "take another --checkpoint" if opened.loading.precision == "float32" else "encode by --precision float32"
            raise RunError(f"{key}: its latents are not finite in {opened.loading.precision}; {remedy}")
        yield part, arrays


def _measured(stamp: LatentStamp, pieces: Pieces, count: int, *, training: int) -> LatentStamp:
    """The stamp with mean and deviation of each channel of draws from the distributions of the training images."""
    total: float = 0
    sums = np.zeros((2, len(stamp.latents.mean)))
    for items, arrays in pieces.read(count):
        rows = np.asarray(items) < training
        for prefix in ("", MIRRORED):
            if prefix + MEAN in arrays:
                mean, std = (arrays[prefix + name][rows].astype(np.float64) for name in (MEAN, STD))
                sums += [mean.sum((0, 2, 3)), (mean**2 + std**2).sum((0, 2, 3))]
                total += mean[:, 0].size
    mean = sums[0] / total
    std = np.sqrt(np.maximum(sums[1] / total - mean**2, 1e-12))
    found = dataclasses.replace(stamp.latents, mean=tuple(mean.tolist()), std=tuple(std.tolist()))
    return dataclasses.replace(stamp, latents=found)


def _write(place: Path, stamp: LatentStamp, pieces: Pieces, data: Data, *, count: int, shape: tuple[int, ...]) -> None:
    def blocks(name: str) -> Blocks:
        return Blocks((count, *shape), np.dtype(np.float32), (arrays[name] for _, arrays in pieces.read(count)))

    held_out = np.arange(count) >= len(data.train)
    arrays: dict[str, np.ndarray | Blocks] = {STAMP: np.array(stamp.text()), HELD_OUT: held_out}
    if data.spec.class_names is not None:
        arrays[LABELS] = np.concatenate([images.labels for images in data.sets if images.labels is not None])
    for prefix in ("", *([MIRRORED] if stamp.data.flip else [])):
        arrays |= {prefix + name: blocks(prefix + name) for name in (MEAN, STD)}
    save_npz(place, arrays)
