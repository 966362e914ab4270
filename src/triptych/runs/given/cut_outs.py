"""How the frames of clips that a user brings are cut for a run that saw faces or people cut out of its clips."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from triptych.core.errors import ConfigError
from triptych.data.clip_files import ClipFiles
from triptych.data.clips import ClipDataConfig
from triptych.data.config import DataConfig
from triptych.data.cut import Cut
from triptych.data.cut_out import Box, CutOut
from triptych.data.frame_files import shown_by
from triptych.data.stored import Member, measure
from triptych.runs.given.collection import Collection
from triptych.runs.given.sizes import OutputSize


def cut_out_of(config: DataConfig, *, given: Any, size: OutputSize, setting: str) -> CutOut | None:
    """What a run on the data of `config` cuts out of frames; None: nothing. Raises ConfigError for arrays, and for a size of their own."""
    found = config.cutting_out if isinstance(config, ClipDataConfig) else None
    if found is None:
        return None
    what = "faces" if found.kind == "face" else "people"
    if not isinstance(given, str | Path):
        raise ConfigError(setting, f"got arrays, but this run cuts {what} out of frames; name a folder with its sub-folder {found.by}")
    if size is not None:
        raise ConfigError("size", f"got {size!r}, but this run cuts {what} out of frames, to its own size; leave it out")
    return found


def cut_out(cut: CutOut, found: ClipFiles, opened: Sequence[Collection], root: Path, *, each: bool) -> list[Collection]:
    """The images and maps of clips below `root`, cut by the box of their clip's first frame; with `each` by the box of each frame.

    Raises DataError for a frame without its file of points.
    """
    members = [member.items for member in opened if isinstance(member.items, Member)]
    goes_by = {frame: frame if each else frames[0] for frames in found.clips.values() for frame in frames}
    shows = shown_by(cut, root, found.keys, members)

    @functools.cache
    def box(frame: int) -> Box:
        size, _ = measure(opened[0].items, frame, lambda size, where: cut.plain)
        return cut.box([shows.extent(frame)], size)

    def own(*, target: bool) -> Callable[[int], Cut]:
        return lambda frame: cut.cut(box(goes_by[frame]), target=target)

    return [replace(one, own=own(target=one.spec.name == cut.target)) for one in opened]
