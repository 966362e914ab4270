"""A folder of translations, or samples: every image is a file of its own, written whole or not at all.

A small file beside them says what was asked: the same request goes on where it was, another one replaces what the first made, and nothing
else is ever overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from triptych.core.errors import ConfigError, DataError
from triptych.core.files import write_text
from triptych.core.images import save_picture
from triptych.core.reading import is_inside, parsed_json
from triptych.data.stored import failure

GRID = "grid.png"
"""The picture of the first inputs and what was made of them."""

STAMP = ".triptych-translate.json"
"""The file that says which images were made by a command, and for what; samples have it too."""


class Folder(Sequence[np.ndarray]):
    """The store of the images made of each input; as a sequence uint8 (answers, h, w, c), read when they are asked for."""

    def __init__(self, out: Path, files: Sequence[Sequence[str]], *, grid_rows: int) -> None:
        """`files`: of each input those of its answers. Raises ConfigError or DataError where two files would be in one place."""
        self._out, self._files = out, files
        names = [name for answers in files for name in answers]
        if grid_rows and GRID in names:
            raise ConfigError(
                "grid", f"got {grid_rows}, but there is an input whose image is {GRID} itself; ask for no grid (0), or rename it"
            )
        clash = set(names).intersection(parent.as_posix() for name in names for parent in PurePosixPath(name).parents)
        if clash:
            raise DataError(f"{out / min(clash)}: would have to be an image and a folder; rename one of the two inputs")
        self._written = [*names, *([GRID] if grid_rows else [])]

    def missing(self, items: range) -> Iterable[Sequence[int]]:
        """One group: images of one size are made together, wherever they stand."""
        return [[item for item in items if not all((self._out / name).is_file() for name in self._files[item])]]

    def save(self, items: Sequence[int], arrays: Mapping[str, np.ndarray]) -> None:
        """Writes the images of some inputs: uint8 (b, answers, h, w, c)."""
        for item, answers in zip(items, arrays["images"], strict=True):
            for name, image in zip(self._files[item], answers, strict=True):
                (self._out / name).parent.mkdir(parents=True, exist_ok=True)
                save_picture(image, self._out / name)

    def claim(self, digest: str) -> None:
        """Makes the folder ready for a request: removes what another one made. Raises DataError for a file that no translation made."""
        out, names = self._out, self._written
        made, before = _stamped(out)
        foreign = next((name for name in names if name not in made and (out / name).exists()), None)
        if foreign is not None:
            raise DataError(f"{out / foreign} is there already, and no such command made it; choose another folder, or remove it")
        if before != digest:
            left = next((name for name in sorted(made - {*names, GRID}) if (out / name).exists()), None)
            if left is not None:
                raise DataError(
                    f"{out} already holds {left} of another request, which would be mixed with the new images; choose another folder "
                    "or empty it"
                )
            for name in made:
                (out / name).unlink(missing_ok=True)
            made = set()
        out.mkdir(parents=True, exist_ok=True)
        mark(out, made.union(names), request=digest)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, item: int) -> np.ndarray:  # type: ignore[override]  (no slices)
        return np.stack([_read(self._out / name) for name in self._files[item]])


def mark(out: Path, names: Iterable[str], *, request: str) -> None:
    """Writes down which files of a folder a command makes, so that the next one may replace them."""
    write_text(out / STAMP, json.dumps({"request": request, "files": sorted(names)}, indent=0) + "\n")


def made_in(out: Path) -> set[str]:
    """The files of a folder that commands made, as `mark` wrote them down."""
    return _stamped(out)[0]


def _stamped(out: Path) -> tuple[set[str], str | None]:
    """The files that commands made in a folder, and the last request; nothing where no stamp can be read."""
    try:
        stamp = parsed_json((out / STAMP).read_text("utf-8"))
        made, request = {str(name) for name in stamp["files"]}, str(stamp["request"])
    except (OSError, ValueError, TypeError, KeyError):
        return set(), None
    return (made, request) if all(map(is_inside, made)) else (set(), None)  # what is made may be deleted, but nothing elsewhere


def _read(path: Path) -> np.ndarray:
    try:
        with Image.open(path, formats=("PNG",)) as image:
            pixels = np.asarray(image)
    except Exception as error:
        raise failure(str(path), error) from error
    return pixels.reshape(*pixels.shape[:2], -1)
