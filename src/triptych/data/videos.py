"""Video files as folders of frames: CLIP.mp4 is a clip whose frames are CLIP/000000, CLIP/000001, ..., in the order of their times.

Opening a file reads its packets and decodes its first frame alone. What is kept of it is an index: the time of each frame, and which
are key frames, from which decoding may begin. Frame k is found by its time: decoding starts at the last key frame that is not after it, or
goes on from the frame that was read before it. So reading at random gives what reading in order does (see `Video.frame`).

Files may be hostile. The ending of a name says what the file is taken for, since for some formats (playlists) the library would open what
they name; it gets an open regular file, never a path. The library is PyAV (pip install "triptych[video]"), which brings FFmpeg.
"""

from __future__ import annotations

import importlib
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from triptych.core.errors import DataError, one_line
from triptych.core.reading import open_regular
from triptych.core.wording import counted
from triptych.data.decode import MOST_PIXELS
from triptych.data.files import Files, Folder, ending, inside, open_folder, walked

_CONTAINERS = dict.fromkeys((".mp4", ".m4v", ".mov"), "mov") | dict.fromkeys((".webm", ".mkv"), "matroska") | {".avi": "avi"}
"""FFmpeg's name of what a file of each ending is taken for."""
VIDEOS = "AVI, MKV, MOV, MP4 and WebM files"
"""What is looked for, in words."""
_MOST_FRAMES = 2**24
_MOST_OPEN = 4  # decoders in each process, of each folder
_CUT_OFF = 0.5  # seconds that a file may end before the time that its header says
_HIDDEN_VP8 = 0x10  # the bit of a VP8 frame's first byte that is not set where it is not shown (RFC 6386, 9.1)
_REPAIR = "copy or make the file again"


def is_video(name: str) -> bool:
    """Whether a file of this name is taken for a video; hidden files are not."""
    return ending(name) in _CONTAINERS and not name.rpartition("/")[2].startswith(".")


def pyav(place: Path) -> Any:
    """The library. Raises DataError naming what needs it."""
    try:
        library = importlib.import_module("av")
    except ImportError:
        raise DataError(
            f"{place}: video files are read and written by PyAV, which is not installed: pip install 'triptych[video]'"
        ) from None
    return library


def _matroska_bytes(path: Path) -> int | None:
    """The size of a Matroska file as its head says it: an EBML header, then a segment with all the rest (RFC 8794 and RFC 9559); None: it
    does not say."""
    with open(open_regular(path), "rb") as file:
        head = file.read(4096)
    at = 0
    for name in (b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"):
        start = at + len(name)
        if head[at:start] != name or start >= len(head) or not head[start]:
            return None
        length = 9 - head[start].bit_length()  # of the size: the first bit that is set says it
        size, unknown = int.from_bytes(head[start : start + length]), 1 << 7 * length
        if size % unknown == unknown - 1:
            return None
        at = start + length + size % unknown
    return at


class Video:
    """The frames of a video file, by number."""

    def __init__(self, path: Path) -> None:
        """Reads the packets of the file. Raises DataError for what is damaged or cut short, and for what is no video."""
        self.path, self._library = path, pyav(path)
        with self._named():
            self._open()
            stream = self._stream
            self.lossless = not stream.codec_context.codec.lossy
            "Whether pixels are those that were written."
            self.rate = float(stream.average_rate or stream.guessed_rate or 0)
            "Frames per second; 0: unknown."
            times, keys = self._packets()
            self._times, self._keys = np.array(sorted(times), dtype=np.int64), np.array(sorted(keys), dtype=np.int64).reshape(-1, 2)
            self._check(stream)
            first = self._decoded(0)
            self.channels = 1 if first.format.name.startswith("gray") else 3
            self._coded = first.width, first.height
            self.size = _pixels(first, self.channels).shape[1::-1]
            "Width and height, upright."
        self.close()

    def __len__(self) -> int:
        return len(self._times)

    def frame(self, k: int) -> np.ndarray:
        """The k-th frame, upright: uint8 (h, w, 1 or 3). Raises DataError."""
        with self._named(f": frame {k}"):
            self._open()
            found = self._decoded(k)
            if (found.width, found.height) != self._coded:
                width, height = self._coded
                raise _Damaged(f"{found.width}x{found.height} pixels, but the first frame has {width}x{height}")
            return _pixels(found, self.channels)

    def close(self) -> None:
        """Closes the decoder, which the next frame opens again."""
        if self._container is not None:
            self._container.close()
        self._container = self._stream = self._frames = self._at = None

    # Reading ----------------------------------------------------------------------------------------------------------

    _container: Any = None
    _stream: Any = None
    _frames: Iterator[Any] | None = None
    _at: int | None = None  # time of the frame that was decoded last
    _process = 0
    _inherited: Any = None

    def _open(self) -> None:
        if self._process != os.getpid():  # a fork has the decoder and the place in the file of another process
            self._inherited = self._container, self._stream, self._frames  # freeing them would wait for threads that only that one has
            self._container, self._process = None, os.getpid()
        if self._container is not None:
            return
        file = open(open_regular(self.path), "rb")  # noqa: SIM115 (the container keeps it open)
        try:
            self._container = self._library.open(file, format=_CONTAINERS[ending(self.path.name)], metadata_errors="ignore")
        except BaseException:
            file.close()
            raise
        if not self._container.streams.video:
            raise _Damaged("holds no video")
        self._stream, self._frames, self._at = self._container.streams.video[0], None, None
        if self._stream.codec_context is None:
            raise _Damaged("of a kind that the library cannot decode", advice="write it as mp4 (ffmpeg -i FILE FILE.mp4)")
        self._stream.codec_context.thread_count = 1  # batches are decoded by several processes

    def _packets(self) -> tuple[list[int], list[tuple[int, int]]]:
        """The times of the frames that are shown, and (time, place in the order of decoding as a time) of the key frames."""
        times, keys, is_vp8 = list[int](), list[tuple[int, int]](), self._stream.codec_context.name == "vp8"
        for packet in self._container.demux(self._stream):
            if not packet.size:
                continue  # the end
            if packet.is_corrupt:
                raise _Damaged(f"cut short or damaged after {counted(len(times), 'frame')}")
            if packet.pts is None:
                raise _Damaged("its frames have no times; write it as mp4 (ffmpeg -i FILE -c copy FILE.mp4)", advice="")
            if packet.is_keyframe:
                keys.append((packet.pts, packet.pts if packet.dts is None else min(packet.dts, packet.pts)))
            if not packet.is_discard and not (is_vp8 and not bytes(packet)[0] & _HIDDEN_VP8):
                times.append(packet.pts)
            if len(times) > _MOST_FRAMES:
                raise _Damaged(f"more than {_MOST_FRAMES:,} frames", advice="cut it into shorter ones")
        return times, keys

    def _check(self, stream: Any) -> None:
        count, times = len(self._times), self._times
        if not count or not len(self._keys):
            raise _Damaged("holds no frames")
        if (np.diff(times) == 0).any():
            raise _Damaged("two of its frames have the same time")
        width, height = stream.codec_context.width, stream.codec_context.height
        if not 0 < width * height <= MOST_PIXELS:
            raise _Damaged(f"{width}x{height} pixels, expected at most {MOST_PIXELS:,}", advice="")
        said = None if self._container.duration is None else self._container.duration / self._library.time_base
        step = np.median(np.diff(times)) if count > 1 else 0
        ends = float((times[-1] + step) * stream.time_base)
        if said is not None and len(self._container.streams) == 1 and ends < said - _CUT_OFF:
            raise _Damaged(f"cut short: its frames end after {ends:.1f} of {said:.1f} seconds")
        if _CONTAINERS[ending(self.path.name)] == "matroska":
            wanted, there = _matroska_bytes(self.path), self.path.stat().st_size
            if wanted is not None and there < wanted:
                raise _Damaged(f"cut short: {there:,} of {wanted:,} bytes")

    def _decoded(self, k: int) -> Any:
        """The k-th frame, as the library has it."""
        wanted = int(self._times[k])
        last = int(np.searchsorted(self._keys[:, 0], wanted, side="right")) - 1
        if self._at is not None and self._at < wanted and (last < 0 or self._keys[last, 0] <= self._at):
            found = self._forward(wanted)
            if found is not None:
                return found
        for key in range(max(last, 0), -1, -1):  # an earlier one, where a file's own index leads too far
            self._container.seek(int(self._keys[key, 1]), stream=self._stream)
            self._frames = self._container.decode(self._stream)
            found = self._forward(wanted)
            if found is not None:
                return found
        raise _Damaged("cannot be decoded")

    def _forward(self, wanted: int) -> Any | None:
        """The frame of this time, from where decoding is; None where it does not come."""
        assert self._frames is not None
        for frame in self._frames:
            if frame.pts is None or frame.pts < wanted:
                continue
            self._at = frame.pts
            if frame.pts > wanted:
                return None
            if frame.is_corrupt:
                raise _Damaged("damaged")
            return frame
        self._at = None
        return None

    @contextmanager
    def _named(self, what: str = "") -> Iterator[None]:
        """Within it every error of the library and of the system becomes a DataError that names the file."""
        try:
            yield
        except DataError:
            raise
        except _Damaged as error:
            self.close()
            raise DataError(f"{self.path}{what}: {error}{f'; {error.advice}' if error.advice else ''}") from error
        except (self._library.error.FFmpegError, OSError, ValueError, EOFError) as error:
            self.close()
            reason = getattr(error, "strerror", None) or one_line(error)
            raise DataError(f"{self.path}{what}: cannot be read as a video ({reason}); {_REPAIR}") from error


class _Damaged(Exception):
    """What is wrong with a file, and what to do about it."""

    def __init__(self, message: str, *, advice: str = _REPAIR) -> None:
        super().__init__(message)
        self.advice = advice


def _pixels(frame: Any, channels: int) -> np.ndarray:
    """Its pixels upright: uint8 (h, w, channels)."""
    values = frame.to_ndarray(format="gray" if channels == 1 else "rgb24")
    values = values.reshape(*values.shape[:2], channels)
    return np.rot90(values, round(frame.rotation / 90) % 4)  # anticlockwise both


class ClipFolder(Files):
    """The images of a folder, and the frames of its video files, each as the bytes of a PNM file."""

    def __init__(self, folder: Folder, videos: Sequence[str]) -> None:
        """`videos`: their paths from the folder. Raises DataError for one that cannot be used, or whose frames have the name of others."""
        root = folder.place
        assert isinstance(root, Path)
        self._folder, self._open = folder, OrderedDict[int, Video]()
        self.videos: dict[str, Video] = {}
        "By their names without ending, which are those of their clips."
        clips = {name.rpartition("/")[0] for name in folder.names}
        for name in videos:
            clip = name[: -len(ending(name))]
            if clip in self.videos or clip in clips:
                other = self.videos[clip].path.name if clip in self.videos else f"the folder {clip}"
                raise DataError(f"{root / name}: {other} beside it is a clip of the same name; rename or remove one of them")
            self.videos[clip] = Video(root / name)
        super().__init__(root, [*folder.names, *(f"{clip}/{t:06d}" for clip, video in self.videos.items() for t in range(len(video)))])
        for name in videos:
            folder.passed_over[ending(name)] -= 1
        self.passed_over, self.remarks = +folder.passed_over, folder.remarks
        self._list, self._firsts = list(self.videos.values()), np.cumsum([len(folder.names), *map(len, self.videos.values())])

    def _place(self, k: int) -> tuple[int, int]:
        """The video of a file, and its frame there."""
        number = int(np.searchsorted(self._firsts, k, side="right")) - 1
        return number, k - int(self._firsts[number])

    def describe(self, k: int) -> str:
        if k < self._firsts[0]:
            return self._folder.describe(k)
        number, frame = self._place(k)
        return f"{self._list[number].path}: frame {frame}"

    def read(self, k: int) -> bytes:
        if k < self._firsts[0]:
            return self._folder.read(k)
        number, frame = self._place(k)
        self._open[number] = self._open.pop(number, self._list[number])
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)[1].close()
        pixels = self._list[number].frame(frame)
        return _header(pixels.shape[2], (pixels.shape[1], pixels.shape[0])) + pixels.tobytes()

    def head(self, k: int) -> bytes:
        if k < self._firsts[0]:
            return self._folder.read(k)
        video = self._list[self._place(k)[0]]
        return _header(video.channels, video.size)

    def check_numbers(self) -> None:
        lossy = next((video for video in self._list if not video.lossless or video.channels != 1), None)
        if lossy is not None:
            kind = "in colour" if lossy.lossless else "that is compressed with loss, which alters numbers,"
            raise DataError(f"{lossy.path}: a video {kind} as maps; save them as PNG files in a folder {lossy.path.stem}, or as grey FFV1")


def _header(channels: int, size: tuple[int, int]) -> bytes:
    return f"P{5 if channels == 1 else 6} {size[0]} {size[1]} 255\n".encode()


def open_clips(root: Path) -> Files:
    """The images of a folder and of all folders below it, and the frames of its videos. Raises DataError."""
    folder, _ = open_folder(root)
    if not any(map(_CONTAINERS.__contains__, folder.passed_over)):
        return folder
    names = []
    for relative, folders, others in walked(root):
        folders[:] = [entry for entry in folders if not entry.name.startswith(".")]
        names += [inside(relative, entry.name) for entry in others if is_video(entry.name)]
    return ClipFolder(folder, names)


def open_video(path: Path) -> Files:
    """The frames of a video file. Raises DataError."""
    return ClipFolder(Folder(path.parent, []), [path.name])
