"""What a run is, from its config.json: its recipe, model and data, the settings that differ, and the commands that go on with it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triptych.core.config import spelled
from triptych.core.wording import counted
from triptych.data.few_shot import FewShotDataConfig
from triptych.recipes.catalogue import load_recipe, recipes
from triptych.recipes.config import RunConfig
from triptych.recipes.earlier import of_now
from triptych.report.listing import document_of, inside, kind_of

_SECTIONS = ("model", "data", "train", "optim", "log")
_MOST_SETTINGS = 2_000
_MOST_CLASSES = 12
_DEEPEST = 16
_ABSENT = "(not there)"
_AUTO = ("train.precision",)
"""Settings in whose place a training writes what it chose, where they are auto."""


@dataclass(frozen=True)
class Setting:
    """A setting of a run beside the recipe's."""

    name: str
    value: str
    recipe: str | None
    "What the recipe has; None: there is no recipe to compare with."

    @property
    def differs(self) -> bool:
        """Whether it is another one than the recipe's, and not what the recipe left to the training."""
        left = self.name in _AUTO and self.recipe == "auto"
        return self.recipe is not None and self.value != self.recipe and not left


@dataclass(frozen=True)
class Facts:
    """What is known of a run before it has trained."""

    root: Path
    recipe: str
    "The recipe, or the kind of model where there is none."
    summary: str
    "What the recipe is, in a line."
    family: str
    data: str
    images: str
    "Size, channels, classes."
    settings: list[Setting]
    document: dict[str, Any]
    "config.json."
    fault: str | None
    "Why config.json cannot be read; None: it can."
    verbs: frozenset[str] = field(default_factory=frozenset)
    needs_style: bool = False
    "Whether it translates nothing without style images."

    @property
    def place(self) -> Path:
        """The folder, from wherever the page is read."""
        return self.root.resolve()

    @property
    def on_latents(self) -> bool:
        """Whether it learns latents of images."""
        return inside(self.document, "spec", "latents") is not None

    @property
    def name(self) -> str:
        """What the folder is called."""
        return self.place.name

    @property
    def differing(self) -> list[Setting]:
        """The settings that are not the recipe's."""
        return [setting for setting in self.settings if setting.differs]

    def number(self, *names: str) -> int | float | None:
        """A number in config.json by the names that lead to it."""
        value = inside(self.document, *names)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def facts_of(root: Path) -> Facts:
    """What the files of a run say it is; what cannot be read is left out, and said."""
    document, fault = document_of(root)
    recipe, kind = document.get("recipe"), kind_of(document)
    known = recipes().get(recipe) if isinstance(recipe, str) else None
    defaults = _settings_of_recipe(known.name) if known else {}
    sections = {name: document[name] for name in _SECTIONS if name in document}
    with suppress(RecursionError):  # of a hostile file, which is no run
        sections = of_now(sections)
    settings = flattened(sections)
    config = _config(sections)
    return Facts(
        root=root,
        recipe=recipe if isinstance(recipe, str) else f"{kind} (no recipe)",
        summary=known.summary if known else "",
        family=f"{known.heading} ({kind})" if known else kind,
        data=_data(document),
        images=", ".join(_images(document.get("spec"))),
        settings=[
            Setting(name, spelled_value(value), _recipes_value(name, value, defaults) if defaults else None)
            for name, value in list(settings.items())[:_MOST_SETTINGS]
        ],
        document=document,
        fault=fault,
        verbs=frozenset() if config is None else config.model.verbs(),
        needs_style=config is not None and _needs_style(config),
    )


def _settings_of_recipe(name: str) -> dict[str, Any]:
    try:
        return flattened(json.loads(json.dumps(load_recipe(name).to_dict())))
    except Exception:  # a recipe of the user's own that no longer works: the report goes without it
        return {}


def _config(sections: dict[str, Any]) -> RunConfig | None:
    try:
        return RunConfig.from_dict(sections)
    except Exception:  # of another version, or damaged: its commands are those of every run
        return None


def _needs_style(config: RunConfig) -> bool:
    """Whether it learns from images of a style beside those that it translates: examples of a class, or references."""
    return isinstance(config.data, FewShotDataConfig) or bool(getattr(config.data, "references", 0))


def flattened(document: Any, prefix: str = "", depth: int = _DEEPEST) -> dict[str, Any]:
    """The values of nested tables by their dotted names; lists, and what lies deeper than a run's settings do, stay whole."""
    if not isinstance(document, dict) or depth == 0:
        return {prefix.rstrip("."): document}
    found: dict[str, Any] = {}
    for name, value in document.items():
        found |= flattened(value, f"{prefix}{name}.", depth - 1)
    return found


def spelled_value(value: Any) -> str:
    """A setting as a reader of config.json knows it."""
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and abs(value) >= 1_000:
        return f"{value:,}"
    return spelled(value)


def _recipes_value(name: str, value: Any, defaults: Mapping[str, Any]) -> str:
    """What the recipe has, spelled as the run's where it is the same: 1 and 1.0 are."""
    theirs = defaults.get(name, _ABSENT)
    return spelled_value(value if theirs == value else theirs)


def _data(document: Mapping[str, Any]) -> str:
    data = document.get("data")
    if not isinstance(data, dict):
        return "unknown"
    path, source = data.get("path"), data.get("source")
    return str(path if path is not None else source if source is not None else "unknown")


def _images(spec: Any) -> Iterator[str]:
    if not isinstance(spec, dict):
        return
    height, width = spec.get("image_size"), spec.get("width")
    channels, shown = spec.get("channels"), inside(spec, "latents", "image_size")
    if shown is not None:
        size = f"{shown} x {inside(spec, 'latents', 'width') or shown} pixels"
        yield f"latents of {height} x {width or height} and {counted(str(channels), 'channel')}, of images of {size}"
    else:
        yield f"{height} x {width or height} pixels"
        yield "grey" if channels == 1 else "RGB" if channels == 3 else counted(str(channels), "channel")
    frames = inside(spec, "clip_length", "most")
    if frames is not None:
        yield f"clips of up to {counted(str(frames), 'frame')}"
    classes, names = spec.get("num_classes"), spec.get("class_names")
    if classes is None:
        yield "no classes"
        return
    listed = [str(name) for name in names[:_MOST_CLASSES]] if isinstance(names, list) else []
    more = ", ..." if isinstance(names, list) and len(names) > _MOST_CLASSES else ""
    yield counted(str(classes), "class", "classes") + (f" ({', '.join(listed)}{more})" if listed else "")


@dataclass(frozen=True)
class Command:
    """A command that goes on with a run, and what it does."""

    what: str
    line: str


def commands(facts: Facts, *, trained: bool) -> Iterator[Command]:
    """What can be done with the run next; those that need weights only where there are some: `trained`."""
    place = shlex.quote(str(facts.place))
    total = facts.number("train", "total_images")
    further = (
        "Go on where it stopped; once it has finished, with a larger number of images." if trained else "Begin, for nothing is saved yet."
    )
    if facts.fault is None:
        yield Command(further, f"triptych train {place}")
    if isinstance(total, int):
        yield Command("Train twice as long.", f"triptych train {place} --train.total-images {2 * total}")
    if trained:
        yield from _with_weights(facts, place)
    yield Command("Make this page anew.", f"triptych report {place}")
    yield Command("Set it beside another run.", f"triptych compare {place} OTHER --out compare.html")


def _with_weights(facts: Facts, place: str) -> Iterator[Command]:
    verbs = facts.verbs
    if "sample" in verbs:
        yield Command("Draw images.", f"triptych sample {place} --count 64 --out grid.png")
    if "upsample" in verbs:
        yield Command("Enlarge images.", f"triptych sample {place} --base IMAGES --out large.png")
    if "translate" in verbs:
        yield Command("Translate images.", f"triptych translate {place} INPUT{' --style IMAGES' if facts.needs_style else ''} --out made")
    if "guide" in verbs:
        yield Command("Lead another run by it.", f"triptych sample OTHER --guide {place} --out grid.png")
    if "evaluate" in verbs and not facts.on_latents:
        yield Command("Measure it.", f"triptych evaluate {place}")
    elif not verbs.isdisjoint(("sample", "translate")):
        yield Command("Measure what it makes.", f"triptych evaluate {place} --metrics frechet")
