"""Writing what a run makes: whole or not at all, and with errors that a user understands."""

from __future__ import annotations

import glob
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from triptych.core.address import is_address
from triptych.core.errors import DataError, Stopped
from triptych.core.files import explain, real_path, sweep, whole
from triptych.core.locks import Held, Lock
from triptych.core.npz import Blocks, DamagedArchive, Header, open_npz, write_npz
from triptych.core.reading import open_regular, parsed_json, read_regular, user_path
from triptych.data.clips import ClipDataConfig
from triptych.data.config import DataConfig
from triptych.data.files import is_run_folder, listed
from triptych.data.made import STAMP
from triptych.data.naming import TRAINING, held_out_folder
from triptych.data.pairs import PairedDataConfig, folder_settings
from triptych.data.source import located
from triptych.engine.distributed import World
from triptych.engine.run_directory import RunDirectory, run_that_keeps

_MOST_JSON = 2**30
_GENERATOR, _HEAD = b'<meta name="generator" content="Triptych', 4096
"""What every page of ours says at its beginning."""
_OF_IMAGES = frozenset(("arr_0", "mean", "mu"))
"""Names of arrays in an .npz of images, of latents, and of statistics."""


def check_place(out: Path, *, option: str = "--out") -> None:
    """DataError where nothing can be written to `out`, or nothing should: a run keeps its own files there. Before long work is done.

    `option`: what names the place on the command line.
    """
    folder = next(parent for parent in out.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise DataError(f"cannot write {out}: {folder} is a file; choose another {option}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(f"cannot write {out}: no permission to write in {folder}; choose another {option}")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:  # /proc has the permissions of any folder
        raise DataError(f"cannot write {out}: {folder} takes no new files ({explain(error)}); choose another {option}") from None
    if out.suffix and out.is_dir():
        raise DataError(f"cannot write {out}: it is a folder; choose another {option}")
    run = run_that_keeps(out)
    if run is not None:
        another = run / f"mine{out.suffix}"
        raise DataError(f"cannot write {out}: the run {run} keeps its own files there; choose another {option}, as {another}")


def check_kept(out: Path, read: str | Path, *, option: str = "--out") -> None:
    """DataError where `out` is the file that is read, which would be lost."""
    if out.is_file() and Path(read).is_file() and out.samefile(read):
        raise DataError(f"cannot write {out}: it is the file that is read; choose another {option}")


def check_apart(out: Path, *read: object) -> None:
    """DataError where `out` is a file that is read, or lies in a folder that is read, among whose images it would be; not of a run.

    What is read may also be no path, as an array, or nothing.
    """
    for path in [user_path(place) for place in read if isinstance(place, str | Path)]:
        check_kept(out, path)
        if path.is_dir() and not RunDirectory(path).exists() and real_path(path) in (real_path(out), *real_path(out).parents):
            raise DataError(f"cannot write {out}: it lies in {path}, which is read; choose another --out")


def check_unlearned(out: Path, data: DataConfig, *, option: str = "--out") -> None:
    """DataError where images written to `out` would be read by a later start of a run of `data`, in one of whose folders it lies.

    What lies in a run there, or is hidden, is none of these images, and neither is an .npz.
    """
    if out.suffix == ".npz" or is_address(data.path):
        return
    place = real_path(out)
    for folder in _read_folders(data):
        if _would_be_read(place, real_path(folder)) and _is_read_whole(folder, data):
            why = "which would learn it when it goes on"
            if isinstance(data, PairedDataConfig):
                why = "which would look for the other half of a pair when it goes on"
            raise DataError(f"cannot write {out}: it lies in {folder}, the images of this run, {why}; choose another {option}")


def _read_folders(data: DataConfig) -> Iterator[Path]:
    """The folders whose images a run of `data` reads: that of all, or those of each domain or each type of its pairs, divided or not."""
    names = list(data.domain_folders)
    if isinstance(data, PairedDataConfig):
        names = list(data.folders if isinstance(data, ClipDataConfig) else folder_settings(data))
    if not names:
        yield from () if data.path is None else (user_path(data.path),)
        return
    root, there = user_path(data.path or ""), list[str]()
    with suppress(DataError):  # where it is gone, domains may still have paths of their own
        there = [part for part in listed(root) if held_out_folder([part])]
    for name in map(user_path, names):
        held = held_out_folder(part for part in there if (root / part / name).is_dir())
        yield from (root / part / name for part in ("", TRAINING, *([] if held is None else [held])))


def _would_be_read(place: Path, folder: Path) -> bool:
    """Whether a file at a place is one of the folder's; none is where there is no folder."""
    if not folder.is_dir() or folder not in (place, *place.parents):
        return False
    inner = place.relative_to(folder)
    within = [folder / each for each in (inner, *inner.parents) if each != Path()]
    apart = any(is_run_folder(os.listdir(each)) for each in within if each.is_dir())
    return not apart and not any(part.startswith(".") for part in inner.parts)


def _is_read_whole(folder: Path, data: DataConfig) -> bool:
    """Whether all image files of a folder are read, which is no data set of another form."""
    return located(DataConfig(source=data.source, path=str(folder)))[1] == "folder"


def _require_ours(out: Path, is_ours: Callable[[], bool], *, option: str = "--out") -> None:
    """DataError where a file is there that is none of ours, and would be lost: labels, settings, whatever `out` was named like by mistake.

    `is_ours` looks at a file that is there; what it cannot read is not ours.
    """
    if not out.exists():
        return
    try:
        ours = is_ours()
    except (OSError, ValueError, KeyError, NotImplementedError, zipfile.BadZipFile, DamagedArchive, SafetensorError):
        ours = False
    if not ours:
        raise DataError(f"cannot write {out}: it is there, and no such command made it; choose another {option}, or remove it")


def check_json(out: Path, is_ours: Callable[[Mapping[str, Any]], bool]) -> None:
    """DataError where a file is there that is none of ours. `is_ours` looks at its values by name."""

    def looked_at() -> bool:
        found = parsed_json(read_regular(out, most=_MOST_JSON))
        return isinstance(found, Mapping) and is_ours(found)

    check_place(out)
    _require_ours(out, looked_at)


def check_page(out: Path) -> None:
    """DataError where a file is there that is no page of ours."""
    check_place(out)
    _require_ours(out, lambda: _GENERATOR in read_regular(out, most=_MOST_JSON)[:_HEAD])


def check_archive(
    out: Path,
    *members: str,
    others: Callable[[str], bool] = lambda name: True,
    first: Callable[[Header], bool] | None = None,
    option: str = "--out",
) -> None:
    """DataError where a file is there that is none of ours: no zip (as an .npz is) with members of these names.

    `others`: whether ours may have a member of another name. `first`: whether its array `arr_0` may be one of ours.
    """

    def looked_at() -> bool:
        with open(open_regular(out), "rb") as content, zipfile.ZipFile(content) as archive:
            found = set(archive.namelist())
        if not found.issuperset(members) or not all(map(others, found.difference(members))):
            return False
        if first is None:
            return True
        with open_npz(out) as file:
            return first(file.header("arr_0"))

    _require_ours(out, looked_at, option=option)


def check_notes(out: Path, note: str) -> None:
    """DataError where a file is there that is none of ours: no .safetensors that has this note in its header."""

    def looked_at() -> bool:
        os.close(open_regular(out))
        with safe_open(out, "numpy") as file:
            return note in (file.metadata() or {})

    check_place(out)
    _require_ours(out, looked_at)


def check_figures(out: Path) -> None:
    """DataError where figures cannot be written to `out`, a .json, and the numbers by image to the .npz beside it; see `check_json`."""
    check_json(out, lambda found: "format" in found and any(name in found for name in ("figures", "metrics", "sweep")))
    beside = out.with_suffix(".npz")
    if beside.exists() and not out.exists() and _holds_others(beside):
        raise DataError(f"cannot write {beside}, which goes with {out}: it is there, and no such command made it; choose another --out")


def _holds_others(path: Path) -> bool:
    """Whether an .npz holds images, latents or statistics, and no numbers by image; so too one that cannot be read."""
    try:
        with open_npz(path) as file:
            return not _OF_IMAGES.isdisjoint(file.names)
    except (OSError, MemoryError, DamagedArchive):
        return True


def save_npz(path: Path, arrays: Mapping[str, np.ndarray | Blocks]) -> None:
    """Writes the arrays by name, whole or not at all, and makes the folder where it is missing. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as temporary, temporary.open("wb") as file:
        write_npz(file, arrays)


@contextmanager
def writing(out: Path, *, world: World, kept: str | None = None) -> Iterator[None]:
    """The block in which this command alone writes `out`, a file or, of a name without an ending, a folder; for all processes.

    What killed commands left there is removed first. An error of the disk becomes a DataError, and an interruption says how to go on;
    `kept` says what of the work the same command takes up again ("drawn"). Raises DataError where another command writes there.
    """
    place = out.parent if out.suffix else out
    lock: Lock | None = None
    was_there = place.exists()

    def begin() -> None:
        nonlocal lock
        try:
            place.mkdir(parents=True, exist_ok=True)
            lock = _locked(out, place)
        except OSError as error:  # as an error that reaches the other processes too, which wait for this one
            raise failed(error, rest="") from error
        for folder in _swept(out):
            sweep(folder)

    goes_on = None if kept is None else f"what was {kept} is kept, and the same command goes on"

    def failed(error: OSError, *, rest: str) -> DataError:
        return DataError(f"cannot write {out}: {explain(error)}{rest}")

    try:
        world.on_main(begin)
        yield
    except KeyboardInterrupt:
        raise Stopped(f"interrupted; {goes_on or 'the same command begins again'}") from None
    except OSError as error:
        raise failed(error, rest="" if goes_on is None else f"; {goes_on}") from error
    finally:
        if lock is not None:
            lock.release(remove=True)
            if not was_there:
                with suppress(OSError):  # what was written is in it
                    if os.listdir(place) == [STAMP]:
                        (place / STAMP).unlink()
                    place.rmdir()


def _locked(out: Path, place: Path) -> Lock:
    """The lock on an output: in a folder, beside a file."""
    try:
        return Lock(place / (f".{out.name}.lock" if out.suffix else ".lock"))
    except Held as holder:
        raise DataError(f"another command ({holder}) writes {out}: wait until it ends, or choose another --out") from None


def _swept(out: Path) -> Iterator[Path]:
    """The folders where writers of an output leave temporary files."""
    yield out.parent
    yield from out.parent.glob(f".{glob.escape(out.name)}.partial-*")
    if not out.suffix:
        yield from (Path(place) for place, _, _ in os.walk(out))
