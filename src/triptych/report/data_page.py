"""The page about a source of images: what was found out of them, with the pictures concerned."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup
from PIL import Image

from triptych.data.decode import decoded, number_map, open_image
from triptych.data.examination import ClassCount, Examination, Finding
from triptych.report.page import render, write_page

_SIDE = 160
"""Pixels of a thumbnail."""
_MOST_IMAGES, _MOST_GROUPS, _MOST_OF_A_GROUP = 12, 6, 4
_MOST_CLASSES = 20
_MOST_RATIO = 8
"""Sides of a thumbnail; what is longer is cut."""
_SPREAD = 67
"""Numbers of a map become greys that differ, by this factor."""


@dataclass(frozen=True)
class Shown:
    """An image on the page."""

    key: str
    side: str
    why: str
    uri: Markup | None
    "None: it cannot be shown."
    width: int
    height: int


@dataclass(frozen=True)
class Section:
    """A fault on the page."""

    finding: Finding
    groups: list[list[Shown]]
    "Of other faults than duplicates one group for all."
    left_out: int
    "Images, or groups, that are not shown."


def write_data_page(path: Path, found: Examination) -> None:
    """Writes the page: one file that loads nothing. Raises OSError."""
    sections = [_section(found, finding) for finding in found.findings]
    write_page(path, render("data.html", found=found, sections=sections, classes=_chosen(found.classes)))


def _section(found: Examination, finding: Finding) -> Section:
    if finding.groups:
        groups = [[_shown(found, finding, item) for item in group[:_MOST_OF_A_GROUP].tolist()] for group in finding.groups[:_MOST_GROUPS]]
        return Section(finding, groups, max(0, len(finding.groups) - _MOST_GROUPS))
    images = [_shown(found, finding, item) for item in finding.items[:_MOST_IMAGES].tolist()]
    return Section(finding, [images] if images else [], max(0, len(finding.items) - _MOST_IMAGES))


def _shown(found: Examination, finding: Finding, item: int) -> Shown:
    uri, size = None, (0, 0)
    if found.rows["decoded"][item]:
        try:
            image = _thumbnail(found, item)
        except Exception:  # the file may have changed meanwhile, in as many ways as it can be damaged
            image = None
        if image is not None:
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=85)
            uri = Markup(f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}")
            size = image.size
    return Shown(found.key(item), found.side(item), finding.why.get(item, ""), uri, *size)


def _thumbnail(found: Examination, item: int) -> Image.Image:
    """The image as training sees it, small; of a map its numbers as greys."""
    value = found.read(item)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = found.part(item).kind
        if kind in ("map", "points"):
            numbers = number_map(value, wide=kind == "points") if isinstance(value, bytes) else value
            image = Image.fromarray((numbers.reshape(numbers.shape[:2]) * _SPREAD % 256).astype(np.uint8))
        elif isinstance(value, bytes):
            with open_image(value) as opened:
                image = decoded(value, opened, channels=3, colours=found.wanted.colours)
        else:
            image = Image.fromarray(value if value.shape[-1] == 3 else value[..., 0])
    short = min(image.size)
    image = image.crop((0, 0, min(image.width, _MOST_RATIO * short), min(image.height, _MOST_RATIO * short)))
    image.thumbnail((_SIDE, _SIDE))
    return image


def _chosen(classes: Sequence[ClassCount]) -> list[ClassCount]:
    """The classes for the table: all of a few, else the largest and the smallest."""
    ordered = sorted(classes, key=lambda each: -each.training)
    return list(_ends(ordered)) if len(ordered) > 2 * _MOST_CLASSES else ordered


def _ends(ordered: Sequence[ClassCount]) -> Iterator[ClassCount]:
    yield from ordered[:_MOST_CLASSES]
    yield from ordered[-_MOST_CLASSES:]
