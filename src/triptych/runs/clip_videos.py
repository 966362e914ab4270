"""Clips that a run made, as video files: out.mp4, or CLIP.mp4 for each clip in a folder.

The frames are made as always, in a hidden folder beside the video whose name is a hash of what was asked for. A video is written when its
frames are all there, and is whole or absent; the frames are removed when all videos are written. So an interrupted command goes on at the
frame where it was, and a clip of any length takes the memory of a few frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from triptych.core.errors import DataError, one_line
from triptych.core.files import whole
from triptych.data.videos import Video, pyav

VIDEOS = (".mp4", ".webm")
"""Endings of the videos that are written."""
RATE = 25.0
"""Frames per second where nothing is said."""

_CODECS: dict[str, tuple[str, dict[str, str]]] = {
    ".mp4": ("libx264", {"crf": "16", "threads": "1"}),
    ".webm": ("libvpx-vp9", {"crf": "24", "b": "0", "threads": "1", "deadline": "good", "cpu-used": "4"}),
}
"""The encoder of each ending. Its settings are of a quality at which losses are hard to see; one thread gives the same bytes everywhere."""
_SMPTE_170M, _MPEG_RANGE = 6, 1  # the matrix by which the library converts RGB, and its range: players need to know them


@dataclass(frozen=True)
class VideoSettings:
    """How frames become videos."""

    rate: float | None = None
    "Frames per second; None: those of the video that the frames are made of, else 25."
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


def side_by_side(cells: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures (h, w, 1 or 3) in a row, on white: uint8 (h, w, 3)."""
    height = max(cell.shape[0] for cell in cells)
    row = np.full((height, sum(cell.shape[1] for cell in cells), 3), 255, dtype=np.uint8)
    left = 0
    for cell in cells:
        row[: cell.shape[0], left : left + cell.shape[1]] = cell
        left += cell.shape[1]
    return row
