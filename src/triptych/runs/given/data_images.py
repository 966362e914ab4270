"""The images of a run's own data, as its model learns them, and those of them that it makes images like."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np

from triptych.core.address import is_address
from triptych.core.batch import DataSpec
from triptych.core.config import Config
from triptych.core.errors import ConfigError, DataError
from triptych.core.given import shown
from triptych.core.reading import user_path
from triptych.data.config import DataConfig
from triptych.data.domains import UnpairedImages
from triptych.data.few_shot import FewShotDataConfig
from triptych.data.images import Data, ImageSet
from triptych.data.patterns import exists
from triptych.data.skipping import Spread
from triptych.runs.given.known import known
from triptych.runs.given.pictures import Split, SplitPictures
from triptych.runs.latent_space import unlike_latents
from triptych.runs.stored import StoredRun

_SPLITS = {"train": "training images", "validation": "held-out images", "all": "all images"}


def reopened(config: DataConfig, spec: DataSpec) -> Data:
    """The data of a run, which were `spec`. Raises ConfigError or DataError where they are not there, or not what they were."""
    data = config.open()
    before, now = ((told.height_and_width, told.channels, [entry.name for entry in told.inputs]) for told in (spec, data.spec))
    if now != before:
        raise DataError(f"{config.path}: no longer the data of this run (size, channels, inputs: {now} in place of {before})")
    unlike = unlike_latents(spec, data.spec)
    if unlike:
        reason = f"{config.path}: no longer the latents of this run ({'; '.join(unlike)})"
        raise DataError(f"{reason}: put the file back that it learned, or encode its images with triptych data encode --with RUN")
    return data


def check_split(split: object) -> None:
    """Raises ConfigError for what is no split's name."""
    if split not in (None, *_SPLITS):
        raise ConfigError("split", f"got {shown(split)}, expected {', '.join(_SPLITS)}")


def of_split(data: Data, split: Split, *, name: str) -> list[ImageSet]:
    """The sets of images of a split of the data, which messages call `name`. Raises ConfigError for held-out ones where there are none."""
    wanted = {"train": [data.train], "validation": data.sets[1:], "all": data.sets}[split]
    if not wanted:
        raise ConfigError("split", f"got validation, but {name} has no held-out images; use train or all")
    return wanted


def model_reference(
    run: StoredRun, *, split: Split | None = None, settings: Config | None = None, most: int | None = None
) -> SplitPictures:
    """The real images that those of the run's model should be like: of a model between two domains those that it translates to.

    `split`: None for the images of the training; of a few-shot model the held-out ones, whose classes its images have. `settings`: of a
    translation, which say its direction. `most`: of so many images at most, spread evenly over all. Raises ConfigError or DataError where
    there are none.
    """
    check_split(split)
    config = run.config.data
    data = reopened(config, run.spec)
    if data.pictures is not None:  # the images that the latents are of
        latents, config = config.path, data.pictures
        if config.path is not None and not exists(Path(config.path)):
            reason = f"{config.path}: does not exist; the latents in {latents} are of the images there"
            raise DataError(f"{reason}: put them back, or name images to compare with (reference)")
        data = config.open()
    split = split or ("validation" if isinstance(config, FewShotDataConfig) and data.validation is not None else "train")
    name = f"{_SPLITS[split]} of {config.path or 'the built-in digits'}"
    sets = [_target(images, settings) for images in of_split(data, split, name="the run's data")]
    some = [images if most is None or len(images) <= most else Spread(images, most) for images in sets]
    return SplitPictures(name, config, split, some, data.spec, available=sum(map(len, sets)))


def contents(images: ImageSet, *, first: int | None = None) -> str:
    """A hash of images, their names and all that belongs to them; `first`: of so many of them.

    They are read once, and anew when the files at data.path, or their labels, change. Two domains, whose files lie apart, are so each.
    """
    if isinstance(images, UnpairedImages):
        both = [contents(domain, first=None if first is None else min(first, len(domain))) for domain in images.domains]
        return hashlib.sha256("".join(both).encode()).hexdigest()
    images = images if first is None else Spread(images, first, available=first)
    config = images.config
    labels = b"" if images.labels is None else np.ascontiguousarray(images.labels, dtype="<i8").tobytes()

    def read() -> dict[str, str]:
        hashed = hashlib.sha256()
        for item in range(len(images)):
            if type(config) is DataConfig:  # there is nothing but the images, and their files need not be decoded
                parts: dict[str, bytes | np.ndarray] = {"images": images.content(item)}
            else:
                loaded = images.batch(np.array([item]))
                parts = {"images": loaded.images, **loaded.inputs}
            parts["key"] = os.fsencode(images.key(item))
            for name, part in sorted(parts.items()):
                content = part if isinstance(part, bytes) else json.dumps(part.shape).encode() + np.ascontiguousarray(part).tobytes()
                hashed.update(f"{name} {len(content)} ".encode() + content)
        hashed.update(labels)
        return {"sha256": hashed.hexdigest()}

    if config.path is None or is_address(config.path):
        return read()["sha256"]
    keys = hashlib.sha256(b"\0".join([*(os.fsencode(images.key(item)) for item in range(len(images))), labels])).hexdigest()
    return known(user_path(config.path), ["contents", config.to_dict(), images.channels, keys], read)["sha256"]


def _target(images: ImageSet, settings: Config | None) -> ImageSet:
    return images.domains[target_domain(settings)] if isinstance(images, UnpairedImages) else images


def target_domain(settings: Config | None) -> int:
    """The domain that a translation of these settings ends in: 0 for A, 1 for B."""
    return 1 if getattr(settings, "direction", "a-to-b") == "a-to-b" else 0
