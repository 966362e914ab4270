"""Images as a model's latents, and back. A `Coder` holds the opened run; its two ways are work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, Unpack, get_args

import numpy as np
import torch
from torch import Tensor, nn

from triptych.core.batch import RawBatch
from triptych.core.config import Config, settings_like
from triptych.core.errors import ConfigError, RunError
from triptych.core.files import real_path
from triptych.core.given import given_path, optional_place, shown
from triptych.core.images import nearest_uint8, to_uint8
from triptych.core.model import ComparesFeatures, Decoder, Encoder, LatentSampler, Model, Sampler, Styled
from triptych.core.reading import user_path
from triptych.core.rng import Rng
from triptych.core.translation import Translator
from triptych.data.colours import Colours
from triptych.data.config import ClassesFrom, DataConfig
from triptych.engine.precision import autocast
from triptych.engine.progress import Watch, unwatched
from triptych.engine.run_directory import RunDirectory
from triptych.runs.comparing import load_networks
from triptych.runs.directions import Directions, Edit, check_directions, directions_of, read_directions, write_directions
from triptych.runs.files import check_kept, check_unlearned, writing
from triptych.runs.given.attributes import attribute_groups, class_groups
from triptych.runs.given.classes import labels_of
from triptych.runs.given.collection import Collection, counted, open_squares
from triptych.runs.latent_space import LatentSpace, require_decoded
from triptych.runs.latents import Latents, Sampled, check_latents, check_name, checked, not_finite, read_latents, write_latents
from triptych.runs.loading import Loading, LoadingKeywords
from triptych.runs.sampling import Samples, check_output, check_sheet, label_columns, label_list, require_sampler, write_samples
from triptych.runs.stored import Opened, StoredRun
from triptych.runs.work import Part, Within, Work, assembled, done, evaluating, in_memory, ranges, steps_within

T = TypeVar("T")


def coder(run: StoredRun, *, settings: Config | None = None, progress: Watch = unwatched, **loading: Unpack[LoadingKeywords]) -> Coder:
    """What turns images into latents and latents into images. `settings`: None for those of `encoding`.

    `progress` is told how many of this process's images are done, and how many there are, in each of the two ways anew. Raises
    ConfigError where the model has no latents of which it makes images, or makes latents that nothing decodes, CheckpointError as `load`
    does.
    """
    require_decoded(run.spec, run.directory)
    return Coder(run.open_together(Loading(**loading)), settings, data=run.config.data, directory=run.paths, progress=progress)


class Coder:
    """A model with all that it takes to go between images and latents. In every process of a run; the first one writes."""

    def __init__(self, opened: Opened, settings: Config | None, *, data: DataConfig, directory: RunDirectory, progress: Watch) -> None:
        """`data`: the images of the run that was opened, by which others in files are read too; `directory`: its own."""
        self.model, self.spec, self._chosen = opened.model, opened.spec, settings
        self.settings = settings_like(require_decoder(opened.model).encoding, settings)
        self._opened, self._data, self._progress, self._networks_loaded = opened, data, progress, False
        self._space = None if self.spec.latents is None else LatentSpace(self.spec.latents, opened.world, directory)

    def encode(
        self,
        images: str | Path | np.ndarray | Collection,
        *,
        count: int | None = None,
        labels: Sequence[int | str] | None = None,
        out: str | Path | None = None,
    ) -> Latents:
        """The latents of the first `count` (None: all) of images, at a path or uint8 (n, h, w, c); also written to `out`, an .npz.

        `labels` are taken in turn; None: those of the images. Raises ConfigError for labels that do not fit, DataError for images that
        cannot be used and where `out` cannot be written.
        """
        require_encoder(self.model)
        out = optional_place(out, "out")
        if out is not None:
            check_name(out, kind="latents")
        pictures = self.open(images)
        if out is not None:
            check_kept(out, pictures.name)
            check_latents(out)
        count = counted(count, len(pictures))
        chosen = labels_of(pictures, self._num_classes(labels), self.spec, count=count, chosen=labels)
        self._load_networks()

        identity = None if out is None else self._asked("encode", pictures.origin, chosen, count, self.settings)
        work = Work(count, identity, lambda items, within: self._encoded(items, within, pictures, chosen))

        def conclude(parts: Iterable[Part]) -> Latents:
            levels = assembled(parts, count)
            made = Latents(tuple(levels[str(level)] for level in range(len(levels))), chosen, self.settings.to_dict())
            _require_finite(made)
            return made

        return self._done(work, out, kept="encoded", conclude=conclude, write=write_latents)

    def directions(
        self,
        images: str | Path | np.ndarray | Collection,
        *,
        attributes: str | Path | None = None,
        count: int | None = None,
        labels: Sequence[int | str] | None = None,
        out: str | Path | None = None,
        latents_out: str | Path | None = None,
    ) -> tuple[Directions, Latents]:
        """A direction for each class of the images, or for each attribute of a table (see attributes.py), and the latents they are from.

        Written to `out` and `latents_out`, each an .npz. `count`: so many of the images, drawn from all (`Collection.drawn`): the first
        ones may be of one class. The rest as in `encode`.
        Raises ConfigError or DataError also for images without classes, a table that does not fit them, and an attribute that all or none
        of them have.
        """
        out = optional_place(out, "out")
        latents_out = optional_place(latents_out, "latents_out")
        if out is not None and latents_out is not None and real_path(out) == real_path(latents_out):
            raise ConfigError("directions_out", f"got {str(out)!r}, where the latents go; name another file")
        pictures = self.open(images)
        if out is not None:
            check_name(out, kind="directions", option="--directions-out")
            check_kept(out, pictures.name, option="--directions-out")
            check_directions(out, option="--directions-out")
        count = counted(count, len(pictures))
        pictures = pictures.drawn(count)
        if attributes is None:
            groups = class_groups(pictures, self.spec, count=count)
        else:
            groups = attribute_groups(user_path(attributes), pictures, count=count)
        world, kept = self._opened.world, None if latents_out is None else "encoded"
        with nullcontext() if out is None else writing(out, world=world, kept=kept):
            latents = self.encode(pictures, count=count, labels=labels, out=latents_out)
            moved = replace(latents, arrays=latents.arrays[:1]) if isinstance(self.model, Styled) else latents  # not the noise maps
            made = directions_of(moved, groups)
            if out is not None and world.is_main:
                write_directions(out, made)
        return made, latents

    def edit(
        self,
        latents: Latents | Sampled | str | Path,
        edit: Edit,
        *,
        directions: Directions | str | Path | None = None,
        labels: Sequence[int | str] | None = None,
        out: str | Path | None = None,
    ) -> Samples:
        """The images of latents, given, in a file, or those of samples, moved as `edit` says; also written to `out`, a row for each way.

        `labels` are taken in turn for the latents that are picked; None: those that their images had. Raises ConfigError for what does not
        fit, as between two classes where the model is told one, and DataError for a file that cannot be read or written.
        """
        out = optional_place(out, "out")
        if out is not None:
            for source in (latents, directions):
                if isinstance(source, str | Path):
                    check_kept(out, source)
        if edit.mix is not None and not isinstance(self.model, Styled):
            reason = f"{type(self.model).__name__} has no style for each layer, as StyleGAN2 has; {{}} shows what lies between two images"
            raise ConfigError("mix", reason, ["between"])
        kept = to_uint8 if isinstance(latents, Sampled) else nearest_uint8  # as samples are kept
        picked = self._sampled(latents, edit) if isinstance(latents, Sampled) else edit.picked(_read(latents))
        settings = self._settings_of(picked)
        picked = replace(picked, labels=self._labels(picked, labels))
        if edit.between is not None and self._told_classes is not None and picked.labels is not None and np.ptp(picked.labels):
            what = "samples" if isinstance(latents, Sampled) else "latents"
            ends, classes = (" and ".join(map(str, pair)) for pair in (edit.between, picked.labels.tolist()))
            raise ConfigError("labels", f"{what} {ends} are of the classes {classes}; give one class, which all images between them have")
        if edit.strengths and not isinstance(directions, Directions | None):
            directions = read_directions(Path(directions))
        if edit.between is not None:
            edit = replace(edit, path=edit.path or require_decoder(self.model).interpolation)
        styles = self._styles(picked) if edit.mix is not None else ()
        noise_from = 1 if isinstance(self.model, Styled) else None
        directions = directions if isinstance(directions, Directions) else None
        made = edit.made_of(picked, directions, styles=styles, noise_from=noise_from)
        made = replace(made, settings=settings.to_dict())
        return self._images(made, self._labels(made, None), out, columns=edit.columns, kept=kept, cornered=edit.mix is not None)

    def decode(
        self,
        latents: Latents | str | Path,
        *,
        count: int | None = None,
        labels: Sequence[int | str] | None = None,
        out: str | Path | None = None,
    ) -> Samples:
        """The images of the first `count` (None: all) of latents, given or in a file; also written to `out`: a picture, .npz or a folder.

        `labels` are taken in turn; None: those that the images had. Raises ConfigError for labels and latents that do not fit, DataError
        for a file that cannot be read or written.
        """
        out = optional_place(out, "out")
        if out is not None and isinstance(latents, str | Path):
            check_kept(out, latents)
        latents = _read(latents)
        latents = latents.first(counted(count, len(latents), what="latents"))
        return self._images(latents, self._labels(latents, labels), out)

    def error(self, images: str | Path | np.ndarray | Collection, latents: Latents) -> float:
        """How far images are from what `encode` made of them, decoded: the mean over their values, in levels of 255."""
        pictures = self.open(images)
        if len(pictures) < len(latents):
            raise ConfigError("images", f"got {len(pictures)}, expected {len(latents)}, one for each of the latents")
        levels = torch.from_numpy(pictures.load(range(len(latents)))).permute(0, 3, 1, 2).double()
        # Not of 8-bit images: rounding would hide errors below half a level.
        settings = self._settings_of(latents)
        work = Work(len(latents), None, lambda items, within: self._decoded(items, latents, latents.labels, settings, kept=Tensor.float))
        decoded = assembled(in_memory(work, self._opened.world, self._progress), len(latents))["images"]
        return float(((torch.from_numpy(decoded).double() + 1) * 127.5 - levels).abs().mean())

    def open(self, images: str | Path | np.ndarray | Collection, *, classes: ClassesFrom = "auto") -> Collection:
        """The images, of the model's size; `classes`: see `open_collection`. Raises DataError for what cannot be used."""
        if isinstance(images, Collection):
            return images
        if isinstance(images, str):
            given_path(images, "images")
        if classes not in get_args(ClassesFrom):
            raise ConfigError("classes", f"got {shown(classes)}, expected {', '.join(get_args(ClassesFrom))}")
        pictured = self.spec.pictured
        colours = Colours.of(self._data)
        return open_squares(images, side=pictured.image_size, channels=pictured.channels, colours=colours, classes=classes)

    def _images(
        self,
        latents: Latents,
        labels: np.ndarray | None,
        out: Path | None,
        *,
        columns: int | None = None,
        kept: Callable[[Tensor], Tensor] = nearest_uint8,
        cornered: bool = False,
    ) -> Samples:
        """The images of latents, in every process; also written to `out`. `cornered`: the first one is left white."""
        settings = self._settings_of(latents)
        if out is not None:
            check_output(out, count=len(latents))
            check_unlearned(out, self._data)
            check_sheet(out, self.spec.pictured, count=len(latents), columns=columns or label_columns(labels))

        def conclude(parts: Iterable[Part]) -> Samples:
            images = assembled(parts, len(latents))["images"]
            if cornered:
                images[0] = 255
            return Samples(images, labels)

        identity = None if out is None else self._asked("decode", latents.digest, labels, len(latents), settings)
        return self._done(
            Work(len(latents), identity, lambda items, within: self._decoded(items, latents, labels, settings, kept=kept)),
            out,
            kept="decoded",
            conclude=conclude,
            write=lambda path, samples: write_samples(path, samples, columns=columns),
        )

    def _sampled(self, sampled: Sampled, edit: Edit) -> Latents:
        """The latents of the samples that an edit begins with."""
        model = self.model
        if not isinstance(model, LatentSampler):
            reason = f"missing: {type(model).__name__} does not tell the latents of its samples; triptych encode writes those of images"
            raise ConfigError("latents", reason)
        numbers = np.array(edit.numbers(), dtype=np.int64)
        labels = label_list(self.model.num_classes, self.spec, count=_labels_in_turn(sampled, self.model), given=sampled.labels)
        labels = None if labels is None else labels[numbers % len(labels)]
        settings = sampled.settings or require_sampler(model).sampling
        levels: list[list[np.ndarray]] = []
        for part in ranges(range(len(numbers)), self._opened.batch_size()):
            index = torch.from_numpy(numbers[part.start : part.stop]).to(self._opened.world.device)
            told = None if labels is None else torch.from_numpy(labels[part.start : part.stop]).to(index.device)
            with self._running():
                made = model.sampled_latents(Rng(sampled.seed, ("sample",), index), labels=told, settings=settings)
            levels.append([level.float().cpu().numpy() for level in made])
        return Latents(tuple(np.concatenate(parts) for parts in zip(*levels, strict=True)), labels)

    def _styles(self, latents: Latents) -> tuple[int, ...]:
        """The pixels of the layer of each style. Raises ConfigError for latents that have others."""
        assert isinstance(self.model, Styled)
        sizes, shape = self.model.style_sizes, latents.arrays[0].shape[1:]
        if len(shape) != 2 or shape[0] != len(sizes):
            raise ConfigError("latents", f"got the shape {shape} of an image's styles, expected {len(sizes)} of them")
        return sizes

    @property
    def _told_classes(self) -> int | None:
        """Classes of the labels that the two ways are told; None: they are told none."""
        return None if require_decoder(self.model).latents_hold_class else self.model.num_classes

    def _num_classes(self, given: Sequence[int | str] | None) -> int | None:
        if given is not None and self.model.num_classes is not None and self._told_classes is None:
            raise ConfigError("labels", f"the latents of {type(self.model).__name__} hold the class of an image; leave them out")
        return self._told_classes

    def _load_networks(self) -> None:
        """Loads the frozen networks by which the model compares images, once."""
        if isinstance(self.model, ComparesFeatures) and not self._networks_loaded:
            load_networks(self.model, self.settings, device=self._opened.world.device)
            self._networks_loaded = True

    def _encoded(self, items: Sequence[int], within: Within, images: Collection, labels: np.ndarray | None) -> Iterator[Part]:
        for part in ranges(items, self._opened.batch_size()):
            batch = RawBatch(torch.from_numpy(images.load(part)), None, torch.as_tensor(part)).to(self._opened.world.device)
            told, rng = self._told(part, labels), Rng(0, ("encode",), batch.index)
            with self._running():
                report = steps_within(within, len(part))
                samples = batch.images if self._space is None else self._space.samples(batch.images)
                made = require_encoder(self.model).encode(samples, labels=told, rng=rng, settings=self.settings, report=report)
            yield part, {str(level): latent.float().cpu().numpy() for level, latent in enumerate(made)}

    def _decoded(
        self, items: Sequence[int], latents: Latents, labels: np.ndarray | None, settings: Config, *, kept: Callable[[Tensor], Tensor]
    ) -> Iterator[Part]:
        """`kept`: what is kept of images (b, c, h, w) in [-1, 1]."""
        for part in ranges(items, self._opened.batch_size()):
            levels = [torch.from_numpy(array[part.start : part.stop]).to(self._opened.world.device) for array in latents.arrays]
            with self._running():
                samples = require_decoder(self.model).decode(levels, labels=self._told(part, labels), settings=settings)
                images = samples if self._space is None else self._space.images(samples)
            yield part, {"images": kept(images).cpu().numpy()}

    @contextmanager
    def _running(self) -> Iterator[None]:
        with evaluating(self.model), autocast(self._opened.loading.precision, device=self._opened.world.device):
            yield

    def _told(self, part: range, labels: np.ndarray | None) -> Tensor | None:
        """The labels of some indices, where the model is conditional."""
        if labels is None or self._told_classes is None:
            return None
        return torch.from_numpy(labels[part.start : part.stop]).to(self._opened.world.device)

    def _settings_of(self, latents: Latents) -> Config:
        """By which latents are decoded: those that were given, else those by which they were encoded, else the defaults.

        Raises ConfigError for latents of another encoder.
        """
        if self._chosen is not None or latents.settings is None:
            return self.settings
        try:
            return type(self.settings).from_dict(latents.settings)
        except ConfigError as error:
            reason = f"got some of another model, encoded with settings that this run's encoder does not have ({error})"
            raise ConfigError("latents", f"{reason}; give latents that this run encoded") from error

    def _asked(self, way: str, inputs: str, labels: np.ndarray | None, count: int, settings: Config) -> Any:
        """All that one of the two ways depends on, for JSON."""
        told = None if labels is None else labels.tolist()
        return [way, inputs, told, count, settings.to_dict(), self._opened.loading.precision, self._opened.origin]

    def _done(
        self, work: Work, out: Path | None, *, kept: str, conclude: Callable[[Iterable[Part]], T], write: Callable[[Path, T], object]
    ) -> T:
        return done(work, out, world=self._opened.world, progress=self._progress, kept=kept, conclude=conclude, write=write)

    def _labels(self, latents: Latents, given: Sequence[int | str] | None) -> np.ndarray | None:
        num_classes = self._num_classes(given)
        if given is not None:
            return label_list(num_classes, self.spec, count=len(latents), given=given)
        if num_classes is not None and latents.labels is None:
            raise ConfigError("labels", f"the latents have none, but this model needs one for each, from 0 to {num_classes - 1}")
        return latents.labels


def require_encoder(model: nn.Module) -> Encoder:
    """The model as an encoder; ConfigError where it is none."""
    if not isinstance(model, Encoder):
        raise ConfigError("model", f"{type(model).__name__} encodes no images{_instead(model)}")
    return model


def require_decoder(model: nn.Module) -> Decoder:
    """The model as a decoder; ConfigError where it is none."""
    if not isinstance(model, Decoder):
        raise ConfigError("model", f"{type(model).__name__} has no latents of which it makes images{_instead(model)}")
    return model


def _instead(model: nn.Module) -> str:
    """What can be done with a model whose latents cannot be had."""
    if isinstance(model, Translator):
        return "; triptych translate makes images of images with it"
    return "; triptych sample draws images with it" if isinstance(model, Sampler) else ""


def _read(latents: Latents | str | Path) -> Latents:
    return read_latents(Path(latents)) if isinstance(latents, str | Path) else checked(latents)


def _require_finite(latents: Latents) -> None:
    """Raises RunError where some are no numbers: no file of latents may hold such."""
    wrong = not_finite(latents.arrays)
    if wrong.any():
        said = f"the latents of image {int(wrong.argmax())}, and of {int(wrong.sum())} in all, are not finite"
        raise RunError(f"{said}; try other settings of the encoder, or --precision float32")


def _labels_in_turn(sampled: Sampled, model: Model) -> int:
    """After so many samples their labels begin again."""
    return len(sampled.labels) if sampled.labels is not None else model.num_classes or 1
