"""Two domains of images without pairs: each image of A comes with one of B that was drawn for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from triptych.core.batch import IMAGES_B, DataSpec, InputSpec
from triptych.core.config import config
from triptych.core.errors import ConfigError, DataError, nearest
from triptych.core.reading import user_path
from triptych.core.rng import key_of, words
from triptych.data.config import DataConfig
from triptych.data.files import listed
from triptych.data.images import Data, ImageSet, Loaded, seed_beside
from triptych.data.naming import TRAINING, held_out_folder
from triptych.data.skipping import LeftOut
from triptych.data.source import open_images


@config
class UnpairedDataConfig(DataConfig):
    """Images of two domains, without pairs."""

    kind_name: ClassVar = "unpaired"
    changeable: ClassVar = DataConfig.changeable | {"a", "b"}

    a: str = "images_a"
    "Images of domain A: a folder in `path` (or in its train and val) or another place; whatever a path of images may be."
    b: str = "images_b"
    "Images of domain B, likewise."

    def validate(self) -> None:
        for setting in ("a", "b"):
            self.require(getattr(self, setting) not in ("", "."), setting, "the name of a folder, or a path")
        self.require(self.a != self.b, "b", f"another place than data.a, {self.a!r}")
        self.require(self.labels in ("auto", "none"), "labels", "auto or none: the classes of the domains are not looked at")
        self.require(self.label_file is None, "label_file", "nothing: the classes of the domains are not looked at")

    @property
    def domain_folders(self) -> tuple[str, ...]:
        """The folders of the two domains."""
        return (self.a, self.b)

    def open(self) -> Data:
        left_out = LeftOut.of(self)
        a, b = (_domain(self, setting, self.channels, left_out) for setting in ("a", "b"))
        if a.train.channels != b.train.channels:
            a, b = (_domain(self, setting, 3, left_out) for setting in ("a", "b"))
        train = UnpairedImages(a.train, b.train)
        validation = None if a.validation is None or b.validation is None else UnpairedImages(a.validation, b.validation)
        inputs = (InputSpec(name=IMAGES_B, kind="image", channels=train.channels),)
        spec = DataSpec(image_size=self.image_size, channels=train.channels, inputs=inputs)
        return Data(train, validation, spec, (*a.notes, *b.notes, *left_out.notes()))


class UnpairedImages(ImageSet):
    """The images of A, in turn where B has more, each with one of B: drawn in training, in turn where nothing is drawn.

    Where B has more, some of A come once more often than others in a pass of training, and the next pass goes on behind them, so that all
    of A are seen alike; with data.order by-name each pass begins with the first of A.
    """

    def __init__(self, a: ImageSet, b: ImageSet) -> None:
        super().__init__(a.config, channels=a.channels, items=np.arange(max(len(a), len(b))), labels=None)
        self._a, self._b = a, b

    def key(self, item: int) -> str:
        return self._a.key(item % len(self._a))

    def source_key(self, item: int) -> str:
        return self._a.source_key(item % len(self._a))

    def default_workers(self) -> int:
        return max(self._a.default_workers(), self._b.default_workers())

    @property
    def domains(self) -> tuple[ImageSet, ImageSet]:
        """The images of A and those of B, each once."""
        return self._a, self._b

    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        turns, others = items, items % len(self._b)
        if positions is not None:
            if self.config.order == "even":
                turns = items + positions // len(self) * len(self)
            others = (words(positions, key=key_of(seed, "data", "unpaired"))[:, 0] * len(self._b)) >> 32
        a = self._a.batch(turns % len(self._a), positions, seed=seed)
        b = self._b.batch(others, positions, seed=seed_beside(seed, IMAGES_B))
        return Loaded(a.images, None, {IMAGES_B: b.images}, {**a.bad, **b.bad})


def _domain(config: UnpairedDataConfig, setting: str, channels: Literal[1, 3] | None, left_out: LeftOut) -> Data:
    """The images of a domain for training and for validation."""
    root, name = user_path(config.path or ""), user_path(getattr(config, setting))
    common: dict[str, Any] = {field.name: getattr(config, field.name) for field in dataclasses.fields(DataConfig)}
    plain = dataclasses.replace(DataConfig(**common), labels="none", channels=channels, skip=None)

    def opened(place: Path, **settings: float) -> Data:
        inside = place.relative_to(root) if config.path is not None and place.is_relative_to(root) else name
        return open_images(dataclasses.replace(plain, path=str(place), **settings), left_out=left_out.inside(inside.as_posix()))

    if config.path is None or name.is_absolute() or not (root / TRAINING / name).exists():
        if not (root / name).exists():
            if config.path is None and len(name.parts) == 1:
                raise ConfigError("data.path", f"missing: give the folder that holds {config.a} and {config.b}")
            if not root.exists():
                raise DataError(f"{root}: does not exist (data.path)")
            there = [] if config.path is None else listed(root)
            raise DataError(f"{root / name}: does not exist (data.{setting}){nearest(str(name), there)}")
        return opened(root / name)
    held = held_out_folder(folder for folder in listed(root) if (root / folder / name).exists())
    if held is None:
        return opened(root / TRAINING / name)
    data = opened(root / TRAINING / name, validation_fraction=0.0)
    if config.validation_fraction == 0:
        return data
    rest = opened(root / held / name, validation_fraction=0.0)
    return dataclasses.replace(data, validation=rest.train, notes=(*data.notes, *rest.notes))
