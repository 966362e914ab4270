"""config.json: the configuration of a run, the description of its data, and what may change when it goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych import __version__
from triptych.core.batch import DataSpec
from triptych.core.config import Config
from triptych.core.errors import CheckpointError, ConfigError
from triptych.data.config import DataConfig
from triptych.engine.run_directory import RunDirectory
from triptych.recipes.config import RunConfig
from triptych.recipes.earlier import of_now

_MICROBATCH = "train.microbatch"
_HEAD, _FOUND = ("triptych", "recipe"), ("asked", "objects", "images", "held_out", "licence")
OF_PUBLISHED = "licence of the published weights that the run began with"
"""How a licence is told."""
_NOTHING = object()  # None is a microbatch that may be asked for


@dataclass(frozen=True)
class RunDocument:
    """What config.json holds."""

    config: RunConfig
    spec: DataSpec
    recipe: str | None
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    "What the user gave for settings in whose place the run found another value, by name: train.microbatch."
    objects: Mapping[str, str] = dataclasses.field(default_factory=dict)
    "Which version it is of each file of the data that lies elsewhere, by address."
    images: str = ""
    "The fingerprint of the images; empty in runs of earlier versions."
    held_out: Sequence[int] = ()
    "Marks of some held-out images (see `fingerprint`); empty in runs of earlier versions."
    licence: str = ""
    "Of published weights that the run began with, by an import or --init-from; empty where none is known."

    def to_dict(self) -> dict[str, Any]:
        """The JSON document (the run directory adds its format number)."""
        head = {"triptych": __version__, "recipe": self.recipe}
        found = {"asked": dict(self.asked), "objects": dict(self.objects), "images": self.images, "held_out": [*self.held_out]}
        found["licence"] = self.licence
        return head | self.config.to_dict() | {"spec": self.spec.to_dict()} | {name: value for name, value in found.items() if value}

    def with_microbatch(self, found: int) -> RunDocument:
        """The same with a microbatch that was found in the place of the one asked for."""
        config = dataclasses.replace(self.config, train=dataclasses.replace(self.config.train, microbatch=found))
        return dataclasses.replace(self, config=config, asked={_MICROBATCH: self.config.train.microbatch, **self.asked})

    def with_found(self, config: RunConfig) -> RunConfig:
        """The settings of a start that goes on with this run: what was found in place of what is asked for again."""
        if config.train.microbatch != self.asked.get(_MICROBATCH, _NOTHING):
            return config
        return dataclasses.replace(config, train=dataclasses.replace(config.train, microbatch=self.config.train.microbatch))

    def asked_still(self, config: RunConfig) -> Mapping[str, Any]:
        """What was asked for where these settings have what was found for it."""
        return self.asked if config.train.microbatch == self.config.train.microbatch else {}

    @staticmethod
    def from_dict(document: dict[str, Any], place: Path = Path("config.json")) -> RunDocument:
        """The inverse of `to_dict`. Raises CheckpointError for a document, which lies in `place`, that this version cannot read."""
        settings = {name: value for name, value in document.items() if name not in (*_HEAD, "spec", *_FOUND)}
        try:
            config = RunConfig.from_dict(of_now(settings))
            recipe = document.get("recipe")
            if not isinstance(recipe, str | None):
                raise ConfigError("recipe", "expected the name of a recipe, or null")
            asked = document.get("asked", {})
            if not isinstance(asked, dict) or not asked.keys() <= {_MICROBATCH}:
                raise ConfigError("asked", f"expected nothing but {_MICROBATCH}")
            objects = document.get("objects", {})
            if not isinstance(objects, dict) or not all(isinstance(said, str) for said in objects.values()):
                raise ConfigError("objects", "expected the version of each file, by address")
            images = document.get("images", "")
            if not isinstance(images, str):
                raise ConfigError("images", "expected the fingerprint of the images")
            held_out = document.get("held_out", [])
            if not isinstance(held_out, list) or not all(type(mark) is int for mark in held_out):
                raise ConfigError("held_out", "expected the marks of held-out images, whole numbers")
            licence = document.get("licence", "")
            if not isinstance(licence, str):
                raise ConfigError("licence", "expected the licence of published weights")
            return RunDocument(config, DataSpec.from_dict(document["spec"]), recipe, asked, objects, images, tuple(held_out), licence)
        except KeyError as error:
            raise CheckpointError(f"{place}: {error.args[0]} is missing") from None
        except RecursionError:
            raise CheckpointError(f"{place}: nested too deeply") from None
        except ConfigError as error:
            written = document.get("triptych", "an unknown version")
            raise CheckpointError(f"{place} (written by Triptych {written}): {error}") from None


def with_own_list(config: DataConfig, directory: RunDirectory) -> DataConfig:
    """What opens the images of a run: without those of its own copy of the list that it was started with."""
    kept = config.skip is not None and directory.left_out.is_file()
    return dataclasses.replace(config, skip=str(directory.left_out)) if kept else config


def differences(old: Config, new: Config, prefix: str = "") -> Iterator[tuple[str, Any, Any, bool]]:
    """(dotted name, old value, new value, whether a run may go on with it) of every setting that differs."""
    if type(old) is not type(new):
        yield prefix.rstrip("."), type(old).__name__, type(new).__name__, False
        return
    for field in dataclasses.fields(old):
        before, after = getattr(old, field.name), getattr(new, field.name)
        free = old.may_change(field.name)
        if isinstance(before, Config) and isinstance(after, Config) and not free:
            yield from differences(before, after, f"{prefix}{field.name}.")
        elif before != after:
            yield f"{prefix}{field.name}", before, after, free


def accept_changes(old: RunConfig, new: RunConfig, *, directory: str) -> list[str]:
    """One line for every setting that changed and may; raises ConfigError for the first that may not."""
    lines = []
    for name, before, after, free in differences(old, new):
        if not free:
            raise ConfigError(
                name,
                f"got {_show(after)}, but the run in {directory} was started with {_show(before)}; give that, or another --run "
                "(with --init-from, to begin with this run's weights)",
            )
        lines.append(f"{name} changed from {_show(before)} to {_show(after)}{_stretched(name, old, new)}")
    return lines


def _stretched(name: str, old: RunConfig, new: RunConfig) -> str:
    """What another length of the run does to its learning rate."""
    if name != "train.total_images":
        return ""
    rates = (old.optim, old.train.total_images), (new.optim, new.train.total_images)
    parts = []
    if new.optim.schedule in ("linear", "cosine") and new.optim.decay_end is None:
        parts.append(f"the {new.optim.schedule} fall of the learning rate is stretched to the new length")
    if len({optim.warmup(total) for optim, total in rates}) > 1:
        parts.append(f"its warm-up is now {round(new.optim.warmup(new.train.total_images)):,} images")
    return f"; {', and '.join(parts)}" if parts else ""


def _show(value: Any) -> str:
    return str(value.to_dict()) if isinstance(value, Config) else repr(value)
