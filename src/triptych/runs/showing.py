"""A sheet of what a model sees of its training images: `triptych data show`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from triptych.core.address import is_address
from triptych.core.batch import Batch, DataSpec, InputSpec, RawBatch
from triptych.core.errors import ConfigError, DataError
from triptych.core.files import PICTURES
from triptych.core.model import Augments, ModelConfig
from triptych.core.rng import Rng, permutation
from triptych.core.wording import counted
from triptych.data.config import DataConfig
from triptych.data.domains import UnpairedImages
from triptych.data.few_shot import FewShotImages
from triptych.data.images import Data, ImageSet
from triptych.data.source import are_latents
from triptych.engine.distributed import open_world
from triptych.runs.files import check_apart, check_place, writing
from triptych.runs.translation_grid import levels, pictured, write_rows

_MOST_CELLS = 4096
_SHOWN_P = 0.5


@dataclass(frozen=True)
class Shown:
    """What is on a sheet."""

    rows: list[str]
    "Of each row, from above: the key of its image in the source, and its class."
    columns: str
    "What is in a row, from the left."
    classes: tuple[str, ...] | None
    "Names of the classes; None: there are no labels."
    notes: tuple[str, ...]
    "What is said of the source."


@dataclass(frozen=True)
class _Sight:
    """What of images is shown, and how."""

    draws: int
    seed: int
    augments: Augments | None
    p: float | None
    small_size: int | None

    def cells(self, images: ImageSet, spec: DataSpec, item: int, position: int) -> Iterator[np.ndarray]:
        """The pictures of a row: all that belongs to an image as it is, then in each draw, the first of which is that of `position`."""
        yield from self._members(_batch(images, item, None, self.seed), spec, images)
        for draw in range(self.draws):
            drawn = _batch(images, item, position + draw * len(images), self.seed)
            if self.augments is not None:
                rng = Rng(self.seed, ("show",), drawn.index)
                drawn = Batch(self.augments.augmented(drawn.images, rng, p=self.p), drawn.labels, drawn.index, drawn.inputs)
            yield from self._members(drawn, spec, images)

    def _members(self, batch: Batch, spec: DataSpec, images: ImageSet) -> Iterator[np.ndarray]:
        image = levels(batch.images)
        others = [pictured(batch.inputs[each.name][0], each) for each in _shown_inputs(spec)]
        if self.small_size is not None:
            others.append(levels(F.interpolate(batch.images, size=self.small_size, mode="area")))
        yield from [image, *others] if isinstance(images, FewShotImages) else [*others, image]

    def members(self, spec: DataSpec, images: ImageSet) -> list[str]:
        """Names of what `cells` shows of each draw."""
        others = [each.name for each in _shown_inputs(spec)] + ([] if self.small_size is None else ["small image"])
        return ["image", *others] if isinstance(images, FewShotImages) else [*others, "image"]


def show_data(
    settings: DataConfig,
    out: str | Path,
    *,
    model: ModelConfig | None = None,
    count: int = 8,
    draws: int = 4,
    seed: int = 0,
    p: float | None = None,
) -> Shown:
    """Writes a picture of the first `count` images of a training with this seed, a row each: as they are, and in `draws` draws.

    The first draw is the one which that training sees. What belongs to an image stands beside it: class maps in colours, instances by
    their edges, style images; of two domains each has its rows. `model`: what learns the images; its small images, where it enlarges them,
    and its augmentation are shown too, which happens as often as `p` says (None: as in its first step). Raises ConfigError and DataError
    for what cannot be shown.
    """
    place = Path(out)
    if place.suffix not in PICTURES:
        raise ConfigError("out", f"got {str(place)!r}, expected a name that ends with {', '.join(PICTURES)}")
    check_place(place)
    if settings.path is not None and not is_address(settings.path):
        check_apart(place, settings.path)
    data = None if are_latents(settings) else settings.open()
    if data is None or data.spec.frames is not None:
        raise DataError(f"{settings.path}: holds {'latents' if data is None else 'clips'}, and a sheet shows images; give images")
    said = "" if not isinstance(model, Augments) else model.augmentation_in_words(p)
    if p is not None and not (isinstance(model, Augments) and model.augmentation_in_words(1.0)):
        raise ConfigError("p", f"got {p}, but {'no recipe is given' if model is None else 'this model changes no images'}; leave it out")
    varied = [*_variations(settings), *([said] if said else [])]
    augments = model if isinstance(model, Augments) and said else None
    sight = _Sight(draws if varied else 0, seed, augments, p, getattr(model, "small_size", None))
    rows: list[list[np.ndarray]] = []
    names: list[str] = []
    groups = _groups(data, settings)
    in_a_row = (1 + sight.draws) * len(sight.members(groups[0][2], groups[0][1]))
    if sum(min(count, len(images)) for _, images, _ in groups) * in_a_row > _MOST_CELLS:
        got = f"got {count} with {counted(draws, 'draw')}"
        raise ConfigError("count", f"{got}, but a sheet holds {_MOST_CELLS:,} pictures; lower one of them")
    for title, images, spec in groups:
        for position, item in enumerate(permutation(len(images), seed=seed, epoch=0)[:count].tolist()):
            rows.append(list(sight.cells(images, spec, item, position)))
            names.append(title + _name(images, spec, item))
    with writing(place, world=open_world("cpu")):
        write_rows(place, rows)
    columns = f"{' + '.join(sight.members(groups[0][2], groups[0][1]))}, as it is"
    drawn = f"; then {counted(sight.draws, 'draw')} of training ({'; '.join(varied)})"
    columns += drawn if sight.draws else ", for nothing about it is random"
    return Shown(names, columns, data.spec.class_names, (*data.notes, *_hint(model, p)))


def _groups(data: Data, settings: DataConfig) -> list[tuple[str, ImageSet, DataSpec]]:
    """Sets of images whose rows follow one another, and what the names of their rows begin with."""
    if not isinstance(data.train, UnpairedImages):
        return [("", data.train, data.spec)]
    alone = dataclasses.replace(data.spec, inputs=())
    return [(f"{Path(name).name}: ", images, alone) for name, images in zip(settings.domain_folders, data.train.domains, strict=True)]


def _variations(settings: DataConfig) -> list[str]:
    """What is random about training images, in words."""
    return [
        *(["crop at random"] if settings.crop == "random" else []),
        *(["mirrored or not"] if settings.flip or settings.augment == "affine" else []),
        *([f"augment {settings.augment}"] if settings.augment != "none" else []),
        *([f"jitter {settings.jitter:g}"] if settings.jitter > 0 else []),
    ]


def _hint(model: ModelConfig | None, p: float | None) -> tuple[str, ...]:
    """What is said of augmentation that begins after the first step."""
    if p is not None or not (isinstance(model, Augments) and model.augments_later):
        return ()
    return (f"in the first step p is 0; --p {_SHOWN_P:g} shows {model.augmentation_in_words(_SHOWN_P)}",)


def _batch(images: ImageSet, item: int, position: int | None, seed: int) -> Batch:
    """An image with all that belongs to it, as it is or as training sees it at a position of its order."""
    loaded = images.batch(np.array([item]), None if position is None else np.array([position]), seed=seed)
    labels = None if loaded.labels is None else torch.from_numpy(loaded.labels)
    inputs = {name: torch.from_numpy(values) for name, values in loaded.inputs.items()}
    index = torch.tensor([item if position is None else position])
    return RawBatch(torch.from_numpy(loaded.images), labels, index, inputs).to("cpu")


def _shown_inputs(spec: DataSpec) -> list[InputSpec]:
    return [each for each in spec.inputs if each.kind != "labels"]


def _name(images: ImageSet, spec: DataSpec, item: int) -> str:
    key = images.source_key(item)
    if images.labels is None or spec.class_names is None:
        return key
    return f"{key} ({spec.class_names[int(images.labels[item])]})"
