"""The pictures of a run for a page: as text within it, made smaller where they are large."""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from PIL import Image

from triptych.core.errors import one_line
from triptych.core.reading import open_regular

_NAME = re.compile(r"(\d{9,18})(-[\w.-]{1,60})?\.png")
_MOST_FILE, _MOST_PIXELS = 2**26, 2**26  # Pillow warns of more than 89 million pixels
_LARGEST_SIDE = 1024
_AS_IT_IS = 2**17
"""Bytes of a file that goes into the page unchanged, where its sides are small enough."""
_PIXEL_ART = 256
"""Pictures below this are enlarged with sharp pixels."""
_SHOWN_WIDTH, _SHOWN_HEIGHT = 560, 640
_MOST_FRAMES = 10
_MOST_SERIES = 16


@dataclass(frozen=True)
class Picture:
    """A picture within a page."""

    name: str
    images_seen: int | None
    uri: Markup
    "Its data; empty where it cannot be shown."
    width: int
    height: int
    fault: str | None = None
    "Why it cannot be shown."

    @property
    def shown_width(self) -> int:
        """Pixels of the page that it takes where there is room: small ones are enlarged."""
        return round(min(_SHOWN_WIDTH, _SHOWN_HEIGHT * self.width / max(1, self.height)))

    @property
    def shown_height(self) -> int:
        """Pixels of the page that it takes where there is room."""
        return round(self.shown_width * self.height / max(1, self.width))

    @property
    def sharp(self) -> bool:
        """Whether it is so small that its pixels should stay squares."""
        return max(self.width, self.height) <= _PIXEL_ART


@dataclass(frozen=True)
class Series:
    """The grids of one kind, the oldest first."""

    name: str
    frames: list[Picture]
    left_out: int


class Pictures:
    """Makes pictures ready for a page, and keeps them for the next time, while their files stay as they are."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int, int], Picture] = {}
        self._kept_beside: dict[tuple[str, int, int], Picture] = {}

    def of_run(self, root: Path) -> list[Series]:
        """The grids in the samples folder by the ends of their names; of many an even choice, and the newest."""
        found: dict[str, list[tuple[int, Path]]] = {}
        for name in _names(root / "samples"):
            if match := _NAME.fullmatch(name):
                found.setdefault((match[2] or "").removeprefix("-"), []).append((int(match[1]), root / "samples" / name))
        before, self._kept = self._kept, {}
        series = []
        for name in sorted(found)[:_MOST_SERIES]:
            chosen = evenly(sorted(found[name]))
            frames = [self._picture(path, images, before, self._kept) for images, path in chosen]
            series.append(Series(name, frames, len(found[name]) - len(chosen)))
        return series

    def beside(self, paths: Sequence[Path]) -> list[Picture]:
        """Pictures that lie elsewhere in the run."""
        before, self._kept_beside = self._kept_beside, {}
        return [self._picture(path, None, before, self._kept_beside) for path in paths]

    def _picture(
        self, path: Path, images_seen: int | None, before: dict[tuple[str, int, int], Picture], kept: dict[tuple[str, int, int], Picture]
    ) -> Picture:
        try:
            status = path.stat()
            key = (str(path), status.st_mtime_ns, status.st_size)
        except OSError:
            return picture(path, images_seen)
        kept[key] = before.get(key) or picture(path, images_seen)
        return kept[key]


def evenly(items: Sequence[tuple[int, Path]], most: int = _MOST_FRAMES) -> list[tuple[int, Path]]:
    """At most so many of the items, evenly spread, with the last one. A longer list keeps what a shorter one chose, or every other one."""
    step = 1
    while len(items[:-1:step]) > most - 1:
        step *= 2
    return [*items[:-1:step], *items[-1:]]


def picture(path: Path, images_seen: int | None = None) -> Picture:
    """The picture in a file; one that cannot be shown says why."""
    try:
        uri, (width, height) = _embedded(path)
    except Exception as error:  # what a damaged picture raises depends on where the damage is
        return Picture(path.name, images_seen, Markup(""), 0, 0, f"{path.name} cannot be shown: {_reason(error)}")
    return Picture(path.name, images_seen, uri, width, height)


def _embedded(path: Path) -> tuple[Markup, tuple[int, int]]:
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MOST_FILE:
            raise ValueError(f"it has {size / 1e6:.0f} MB, more than {_MOST_FILE / 1e6:.0f}")
        with Image.open(file, formats=("PNG",)) as image:
            width, height = image.size
            if width * height > _MOST_PIXELS:
                raise ValueError(f"it has {width} x {height} pixels, more than {_MOST_PIXELS:,}")
            image.load()
            if max(width, height) <= _LARGEST_SIDE and size <= _AS_IT_IS:
                file.seek(0)
                return _data_uri(file.read(), "png"), image.size
            shown = image.convert("L" if image.mode in ("1", "L", "I", "I;16") else "RGB")
    shown.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    shown.save(buffer, "JPEG", quality=88)
    return _data_uri(buffer.getvalue(), "jpeg"), shown.size


def _data_uri(data: bytes, kind: str) -> Markup:
    return Markup(f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "it is damaged" if isinstance(error, OSError | SyntaxError) else one_line(error)


def _names(folder: Path) -> Iterator[str]:
    try:
        yield from (entry.name for entry in os.scandir(folder))
    except OSError:
        return
