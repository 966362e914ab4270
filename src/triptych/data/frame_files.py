"""Files beside the frames of clips: the true flow from each frame to the one before, and the points of faces."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from triptych.core.errors import DataError, nearest
from triptych.core.reading import parsed_json, read_regular
from triptych.data.cut import Cut
from triptych.data.cut_out import CutOut, DrawnMaps, Extent, Shows
from triptych.data.files import MOST_BYTES, listed, walked
from triptych.data.keypoints import face_points
from triptych.data.stored import Member
from triptych.data.transforms import Size

_OF_OPENPOSE = "_keypoints"
"""What OpenPose writes behind the name of a frame."""


_FARTHEST = 10_000  # pixels


class FlowFiles:
    """The true flow of frames, in files of NumPy."""

    def __init__(self, place: Path, keys: Sequence[str], *, clips: Sequence[np.ndarray], folder: str, setting: str = "data.flow") -> None:
        """Raises DataError where one is missing; the first frame of a clip has no frame before it, and needs none.

        `setting`: what names the folder, of the data or on the command line (--true-flow).
        """
        self.name, self._place, self._keys = folder, place, keys
        _require_folder(place, setting)
        self._firsts = {int(clip[0]) for clip in clips}
        needed = (key for k, key in enumerate(keys) if k not in self._firsts)
        _require_files(place, needed, ".npy", there=lambda key: (place / f"{key}.npy").is_file(), remedy=f"leave {setting} out")

    def read(self, k: int, cut: Cut, size: Size, crop: np.ndarray | None) -> np.ndarray:
        """The flow of frame k, cut as its image of this width and height: float32 (2, h, w), in pixels of the cut one. Raises DataError."""
        path = self._place / f"{self._keys[k]}.npy"
        steps = cut.fit(size, crop)
        if k in self._firsts:
            return np.full((2, steps.height, steps.width), np.nan, dtype=np.float32)
        try:
            flow = np.load(io.BytesIO(read_regular(path, most=MOST_BYTES)), allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path}: cannot be read as an array of NumPy ({error}); write it by numpy.save") from error
        if flow.shape != (size[1], size[0], 2) or flow.dtype.kind != "f":
            wanted = f"floats of shape ({size[1]}, {size[0]}, 2), height and width of its frame"
            raise DataError(f"{path}: {flow.dtype} of shape {flow.shape}, expected {wanted}")
        if (abs(flow[np.isfinite(flow)]) > _FARTHEST).any():
            raise DataError(f"{path}: has moves of more than {_FARTHEST:,} pixels; give nan where the flow is not known")
        factors = steps.resized[0] / size[0], steps.resized[1] / size[1]
        return np.stack([cut.numbers(flow[..., axis].astype(np.float32) * np.float32(factors[axis]), crop) for axis in (0, 1)])


class LandmarkFiles:
    """The points of the face in each frame, in files of JSON."""

    def __init__(self, place: Path, keys: Sequence[str]) -> None:
        """Raises DataError where one is missing."""
        _require_folder(place, "data.landmarks")
        found = {frame_of(name): place / name for name in json_files(place)}
        _require_files(place, keys, ".json", there=found.__contains__, remedy="remove the frame")
        self._paths = [found[key] for key in keys]

    def extent(self, k: int) -> Extent | None:
        """The box around the points of frame k, None where OpenPose saw no face. Raises DataError naming the file for what is no such."""
        path = self._paths[k]
        try:
            points = face_points(parsed_json(read_regular(path, most=MOST_BYTES)))
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read as the points of a face ({error})") from error
        return Extent(*map(float, (*points.min(0), *points.max(0)))) if len(points) else None


def shown_by(cut_out: CutOut, root: Path, keys: Sequence[str], members: Iterable[Member]) -> Shows:
    """What says where that is which is cut out of the frames below a folder. Raises DataError where points are missing."""
    if cut_out.kind == "face":
        return LandmarkFiles(root / cut_out.by, keys)
    return next(DrawnMaps(member, member.spec) for member in members if member.spec.name == cut_out.by)


def json_files(place: Path) -> list[Path]:
    """The files of key points below a folder, relative to it, in the order of their names."""
    entries = ((folder, entry.name) for folder, _, others in walked(place) for entry in others)
    return sorted(Path(folder, name) for folder, name in entries if name.endswith(".json") and not name.startswith("."))


def frame_of(name: Path) -> str:
    """Sub-folders and stem of the frame that a file of key points is of."""
    return name.with_suffix("").as_posix().removesuffix(_OF_OPENPOSE)


def _require_folder(place: Path, setting: str) -> None:
    if not place.is_dir():
        inside = setting.startswith("data.")  # else it may be anywhere
        missing = f"{place.parent}: holds no folder {place.name}" if inside else f"{place}: no such folder"
        raise DataError(f"{missing} ({setting}){nearest(place.name, listed(place.parent) if place.parent.is_dir() else ())}")


def _require_files(place: Path, keys: Iterable[str], ending: str, *, there: Callable[[str], bool], remedy: str) -> None:
    missing = [key for key in keys if not there(key)]
    if missing:
        more = f" (nor {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise DataError(f"{place}: has no file {missing[0]}{ending}{more}; add it, or {remedy}")
