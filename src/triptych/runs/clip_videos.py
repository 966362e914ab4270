"""Clips that a run made, as video files: out.mp4, or CLIP.mp4 for each clip in a folder.

The frames are made as always, in a hidden folder beside the video, or in the folder of videos, whose name is a hash of what was asked for.
Videos are written when all frames are there, each whole or absent; the frames are removed when all videos are written, and with them those
that other commands left of the same videos. So an interrupted command goes on at the frame where it was, and a clip of any length takes the
memory of a few frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np

from triptych.core.errors import DataError, one_line
from triptych.core.files import whole
from triptych.data.stored import evenly_spaced
from triptych.data.videos import Video, pyav
from triptych.engine.distributed import World
from triptych.runs.files import writing
from triptych.runs.image_folder import GRID, Folder
from triptych.runs.pieces import Pieces, digest_of
from triptych.runs.translation_grid import write_rows

VIDEOS = (".mp4", ".webm")
"""Endings of the videos that are written."""
RATE = 25.0
"""Frames per second where nothing is said."""

_CODECS: dict[str, tuple[str, dict[str, str]]] = {
    ".mp4": ("libx264", {"crf": "16", "threads": "1", "x264-params": "mbtree=0"}),
    ".webm": ("libvpx-vp9", {"crf": "24", "b": "0", "threads": "1", "deadline": "good", "cpu-used": "4"}),
}
"""The encoder of each ending, at a quality whose losses are hard to see. One thread gives the same bytes at every call; x264 only without
its tree of macroblocks: with AVX-512 and B-frames that reads memory which nobody wrote."""
_SMPTE_170M, _MPEG_RANGE = 6, 1  # the matrix by which the library converts RGB, and its range: players need to know them


@dataclass(frozen=True)
class VideoSettings:
    """How frames become videos."""

    kind: Literal["mp4", "webm"] | None = None
    "A folder gets a video of each clip, CLIP.mp4 or CLIP.webm; None: the frames."
    rate: float | None = None
    "Frames per second; None: those of the video that each clip is made of, else 25."
    compare: bool = False
    "Input, made and, where there is one, the truth side by side."


def write_video(out: Path, frames: Iterable[np.ndarray], *, rate: float) -> None:
    """Writes frames of one size, uint8 (h, w, 1 or 3), whole or not at all; sides become even by a row or column that comes twice.

    Raises DataError where the library cannot, OSError for the disk.
    """
    library = pyav(out)
    codec, options = _CODECS[out.suffix]
    with whole(out) as temporary:
        try:
            with library.open(str(temporary), "w", format=out.suffix[1:], options={"fflags": "+bitexact"}) as container:
                stream: Any = None
                for frame in frames:
                    picture = _even(frame)
                    if stream is None:
                        stream = container.add_stream(codec, rate=Fraction(rate).limit_denominator(1001), options=options)
                        stream.height, stream.width, stream.pix_fmt = *picture.shape[:2], "yuv420p"
                        stream.codec_context.colorspace, stream.codec_context.color_range = _SMPTE_170M, _MPEG_RANGE
                    container.mux(stream.encode(library.VideoFrame.from_ndarray(picture, format="rgb24")))
                if stream is not None:
                    container.mux(stream.encode())
        except library.error.FFmpegError as error:
            if isinstance(error, OSError):
                raise
            raise DataError(f"{out}: cannot be written ({one_line(error)})") from error


def _even(frame: np.ndarray) -> np.ndarray:
    """As RGB, contiguous, with even sides."""
    height, width = frame.shape[:2]
    frame = np.broadcast_to(frame, (height, width, 3))
    return np.ascontiguousarray(np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))


class VideoFrames(Sequence[np.ndarray]):
    """The frames of videos, uint8 (1, h, w, 3), read from them when they are asked for; of each its video and its place there."""

    def __init__(self, places: Sequence[tuple[Path, int]]) -> None:
        self._places, self._videos = places, dict[Path, Video]()

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, item: int) -> np.ndarray:  # type: ignore[override]  (no slices)
        path, frame = self._places[item]
        if path not in self._videos:
            self._videos = {path: Video(path)}
        return self._videos[path].frame(frame)[None]


@dataclass(frozen=True)
class Filmed:
    """The frames that become videos."""

    clips: Mapping[str, Sequence[int]]
    "Of each clip the items that are its frames, in order."
    files: Sequence[Sequence[str]]
    "Of each item the file of its frame, until the video is written."
    digest: str
    "Changes with what the frames are made of."
    make: Callable[[Folder], None]
    "Makes the frames that a folder lacks; when it returns, all processes have."
    show: Callable[[int, np.ndarray], Sequence[np.ndarray]]
    "From an item and what was made of it, uint8 (1, h, w, c), to the pictures that stand in a row."


def in_videos(
    wanted: Filmed, out: Path, settings: VideoSettings, *, rates: Mapping[str, float], grid_rows: int, world: World
) -> VideoFrames:
    """The frames of all clips, in the video `out` or, in a folder, in one of each clip, with a picture of `grid_rows` of them.

    `rates`: frames per second of each clip. A folder's videos that are there from the same request are kept. Raises DataError for what
    cannot be written.
    """
    alone = out.suffix in VIDEOS
    names = [out.name if alone else f"{clip or 'clip'}.{settings.kind}" for clip in wanted.clips]
    if len(set(names)) < len(names):
        raise DataError(f"{out}: two clips would be written as clip.{settings.kind}; put the frames that lie loose into a folder")
    places = [out if alone else out / name for name in names]
    kept = out.parent / f".{out.name}.partial-{wanted.digest}" if alone else out / f".frames.partial-{wanted.digest}"
    frames = Folder(kept, wanted.files, grid_rows=0)
    videos = Folder(out, [[name] for name in names], grid_rows=grid_rows)
    made = VideoFrames(_by_item(wanted.clips.values(), places))

    def pictures(items: Sequence[int]) -> Iterator[np.ndarray]:
        for item in items:
            yield side_by_side(wanted.show(item, frames[item])) if settings.compare else frames[item][0]

    def write(numbers: Iterable[int]) -> None:
        clips = list(wanted.clips.items())
        for number in numbers:
            clip, items = clips[number]
            places[number].parent.mkdir(parents=True, exist_ok=True)
            write_video(places[number], pictures(items), rate=rates[clip])

    def draw_grid() -> None:
        shown = [int(item) for item in evenly_spaced(len(made), grid_rows)]
        write_rows(out / GRID, [[made[item][0]] if settings.compare else wanted.show(item, made[item]) for item in shown])

    with writing(out, world=world, kept="made"):
        if not alone:
            world.on_main(lambda: videos.claim(digest_of([wanted.digest, settings.kind, settings.compare, dict(rates)])))
        left = [number for number, place in enumerate(places) if alone or not place.is_file()]
        if left:
            world.on_main(lambda: frames.claim(wanted.digest))
            wanted.make(frames)
            world.on_main(lambda: write(left))
        world.on_main(Pieces(kept).remove_all)
        if grid_rows and not alone:
            world.on_main(draw_grid)
    return made


def _by_item(clips: Iterable[Sequence[int]], places: Sequence[Path]) -> list[tuple[Path, int]]:
    """Of each item its video, and its place there."""
    found = {item: (place, t) for place, clip in zip(places, clips, strict=True) for t, item in enumerate(clip)}
    return [found[item] for item in range(len(found))]


def side_by_side(cells: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures (h, w, 1 or 3) in a row, on white: uint8 (h, w, 3)."""
    height = max(cell.shape[0] for cell in cells)
    row = np.full((height, sum(cell.shape[1] for cell in cells), 3), 255, dtype=np.uint8)
    left = 0
    for cell in cells:
        row[: cell.shape[0], left : left + cell.shape[1]] = cell
        left += cell.shape[1]
    return row
