"""A folder of images that a command makes: every one is a file of its own, written whole or not at all.

A small file beside them says what was asked (data/made.py): the same request goes on where it was, another one replaces what the first
made, and nothing else is ever overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from triptych.core.errors import ConfigError, DataError
from triptych.core.files import whole
from triptych.core.images import save_picture
from triptych.data.files import LABELS_FILE
from triptych.data.made import made_in, mark
from triptych.data.stored import failure
from triptych.engine.distributed import open_world
from triptych.engine.progress import Watch
from triptych.runs.files import check_place, writing

GRID = "grid.png"
"""The picture of the first inputs and what was made of them."""
_FRAMES = "frames"
"""The request of frames: all of them are one, for each is replaced by its name."""


class Folder(Sequence[np.ndarray]):
    """The store of the images made of each input; as a sequence uint8 (answers, h, w, c), read when they are asked for."""

    def __init__(self, out: Path, files: Sequence[Sequence[str]], *, grid_rows: int, labelled: bool = False) -> None:
        """`files`: of each input those of its answers; `labelled`: a file of their labels will lie beside them.

        Raises ConfigError or DataError where two files would be in one place.
        """
        self._out, self._files = out, files
        names = [name for answers in files for name in answers]
        if grid_rows and GRID in names:
            raise ConfigError(
                "grid", f"got {grid_rows}, but there is an input whose image is {GRID} itself; ask for no grid (0), or rename it"
            )
        clash = set(names).intersection(parent.as_posix() for name in names for parent in PurePosixPath(name).parents)
        if clash:
            raise DataError(f"{out / min(clash)}: would have to be an image and a folder; rename one of the two inputs")
        self._answers, self._written = names, [*names, *([GRID] if grid_rows else []), *([LABELS_FILE] if labelled else [])]

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
        before = made_in(out)
        made = set(before.files)
        _refuse_foreign(out, names, made)
        if before.request != digest:
            left = next((name for name in sorted(made - {*names, GRID, LABELS_FILE}) if (out / name).exists()), None)
            if left is not None:
                raise DataError(
                    f"{out} already holds {left} of another request, which would be mixed with the new images; choose another folder "
                    "or empty it"
                )
            for name in made:
                (out / name).unlink(missing_ok=True)
            made = set()
        out.mkdir(parents=True, exist_ok=True)
        made.update(names)
        mark(out, made, request=digest, overview=GRID if GRID in made.difference(self._answers) else None)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, item: int) -> np.ndarray:  # type: ignore[override]  (no slices)
        return np.stack([_read(self._out / name) for name in self._files[item]])


def save_frames(out: Path, names: Sequence[str], frame: Callable[[str], np.ndarray], *, progress: Watch) -> None:
    """Writes OUT/NAME.png for each name, the levels as they are: uint8 (h, w) or (h, w, 3 or 4).

    What an earlier call made there stays, or is replaced. Raises DataError for a file that is there of anything else, and where nothing can
    be written.
    """
    files = [f"{name}.png" for name in names]
    check_place(out / files[0])
    with writing(out, world=open_world("cpu")):
        out.mkdir(exist_ok=True)  # of a name with a dot, which might be a file's
        made = made_in(out)
        _refuse_foreign(out, files, made.files if made.request in (None, _FRAMES) else frozenset())
        mark(out, made.files.union(files), request=made.request or _FRAMES, overview=made.overview)
        for done, (name, file) in enumerate(zip(names, files, strict=True)):
            progress(done, len(names))
            image = Image.fromarray(frame(name))
            (out / file).parent.mkdir(parents=True, exist_ok=True)
            with whole(out / file) as temporary:
                image.save(temporary, "PNG")
    progress(len(names), len(names))


def _refuse_foreign(out: Path, files: Iterable[str], made: AbstractSet[str]) -> None:
    foreign = next((name for name in files if name not in made and (out / name).exists()), None)
    if foreign is not None:
        raise DataError(f"{out / foreign} is there already, and no such command made it; choose another folder, or remove it")


def _read(path: Path) -> np.ndarray:
    try:
        with Image.open(path, formats=("PNG",)) as image:
            pixels = np.asarray(image)
    except Exception as error:
        raise failure(str(path), error) from error
    return pixels.reshape(*pixels.shape[:2], -1)
