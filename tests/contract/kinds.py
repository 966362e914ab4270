"""Few recipes in which every kind of setting occurs, for tests that would take too long with all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.contract.shrink import RECIPES, shrunk


def kinds(counts: Callable[[str, str], bool] = lambda path, value: True) -> list[str]:
    """Recipes in which every value occurs that a setting has in any recipe, once all are shrunk: few recipes, but every kind of them.

    The class of the model and of its networks are such values. Sizes and strengths are none: those are alike when recipes are shrunk.
    `counts`: which settings and values have to occur.
    """
    documents = {name: _without_strengths(shrunk(name).to_dict()) for name in RECIPES}
    settings = {name: {found for found in _settings(document) if counts(*found)} for name, document in documents.items()}
    found, left = list[str](), set[tuple[str, str]]().union(*settings.values())
    while left:
        name = max(settings, key=lambda name: len(settings[name] & left))  # the first of several
        found.append(name)
        left -= settings[name]
    for name in list(found):  # those that came first may have nothing of their own now
        others = set[tuple[str, str]]().union(*(settings[other] for other in found if other != name))
        if settings[name] <= others:
            found.remove(name)
    return sorted(found)


def _settings(document: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The settings of a document, by their paths, and their values as text."""
    if isinstance(document, dict) and document.keys() == {"start", "end", "images", "shape"}:
        yield path, document["shape"]
    elif isinstance(document, dict):
        for name, value in document.items():
            yield from _settings(value, f"{path}.{name}")
    else:
        yield path, repr(document)


_IMAGES = {"warmup_images", "decay_start", "decay_every", "ema_start", "snapshot_every", "half_life", "ramp_up", "start"}
_FILES = {"flip", "pad", "resize", "class_folder", "path"}
"""Settings of data that no model knows of; they have tests of their own."""


def _without_strengths(document: Any) -> Any:
    """The document of a configuration without its strengths, moments and files: of each number that is no count, whether it is zero."""
    if isinstance(document, dict):
        return {name: not value if name in _IMAGES else _without_strengths(value) for name, value in document.items() if name not in _FILES}
    if isinstance(document, list):
        numbers = document and all(isinstance(value, int | float) for value in document)
        return len(document) if numbers else [_without_strengths(value) for value in document]
    return int(document == 0) if isinstance(document, float) else document


def able(verb: str) -> list[str]:
    """The recipes, one of each kind, whose model serves that verb."""
    return [name for name in KINDS if verb in shrunk(name).model.verbs()]


KINDS = kinds()
_OF_A_SAMPLE = (".model.sampling.", ".model.translation.", ".model.encoding.", ".model.diffusion.", ".model.noise.", ".model.augmentation.")
_OF_A_SAMPLE += (".model.network.", ".model.times.")
"""How a sample is drawn, encoded and weighed, and a network for which a batch is so many samples: no other process can matter to them."""


def _matters_to_processes(path: str, value: str) -> bool:
    counts = path.startswith(".model.") and not value[0].isdigit()
    return counts and (path.endswith(".kind") or not f"{path}.".startswith(_OF_A_SAMPLE))


MODELS = kinds(_matters_to_processes)
"""For several processes: the settings of the model that are no numbers, nor of one sample alone, occur with each value."""
