"""Files beside the frames of clips: the true flow from each frame to the one before, and the points of faces."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from triptych.core.errors import DataError, nearest, one_line
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


class OfFrame(NamedTuple):
    """A file that a frame needs."""

    frame: int
    "The number of the frame."
    name: str
    "The path of the file in its folder."
    there: bool
    "Whether it is there."


class FlowFiles:
    """The true flow of frames, in files of NumPy."""

    def __init__(self, place: Path, keys: Sequence[str], *, clips: Sequence[np.ndarray], folder: str, setting: str = "data.flow") -> None:
        """Raises DataError where one is missing; the first frame of a clip has no frame before it, and needs none.

        `setting`: what names the folder, of the data or on the command line (--true-flow).
        """
        self.name, self._place, self._keys = folder, place, keys
        require_folder(place, setting)
        self._firsts = {int(clip[0]) for clip in clips}
        _require_files(place, flow_names(place, keys, clips=clips), remedy=f"leave {setting} out")

    def read(self, k: int, cut: Cut, size: Size, crop: np.ndarray | None) -> np.ndarray:
        """The flow of frame k, cut as its image of this width and height: float32 (2, h, w), in pixels of the cut one. Raises DataError."""
        path = self._place / f"{self._keys[k]}.npy"
        steps = cut.fit(size, crop)
        if k in self._firsts:
            return np.full((2, steps.height, steps.width), np.nan, dtype=np.float32)
        try:
            flow = flow_of(read_regular(path, most=MOST_BYTES), size)
        except OSError as error:
            raise DataError(f"{path}: {_not_numpy(error)}") from error
        except ValueError as error:
            raise DataError(f"{path}: {error}") from error
        factors = steps.resized[0] / size[0], steps.resized[1] / size[1]
        return np.stack([cut.numbers(flow[..., axis].astype(np.float32) * np.float32(factors[axis]), crop) for axis in (0, 1)])


def flow_of(data: bytes, size: Size | None = None) -> np.ndarray:
    """The flow that a file holds: floats (h, w, 2). Raises ValueError for what is none, or not of the width and height of its frame."""
    try:
        flow = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # of as many types as a header has faults
        raise ValueError(_not_numpy(error)) from error
    sides = None if size is None else (size[1], size[0])
    if flow.dtype.kind != "f" or flow.shape != (*(sides or flow.shape[:2]), 2):
        wanted = "(height, width, 2)" if sides is None else f"{(*sides, 2)}, height and width of its frame"
        raise ValueError(f"{flow.dtype} of shape {flow.shape}, expected floats of shape {wanted}")
    if (abs(flow[np.isfinite(flow)]) > _FARTHEST).any():
        raise ValueError(f"has moves of more than {_FARTHEST:,} pixels; give nan where the flow is not known")
    return flow


def flow_names(place: Path, keys: Sequence[str], *, clips: Iterable[Sequence[int] | np.ndarray]) -> Iterator[OfFrame]:
    """The files of flow that frames need: each but the first of its clip."""
    for _, *others in clips:
        yield from (OfFrame(int(k), f"{keys[k]}.npy", (place / f"{keys[k]}.npy").is_file()) for k in others)


def landmark_names(place: Path, keys: Sequence[str]) -> Iterator[OfFrame]:
    """The files of the points of faces, one for each frame."""
    found = {frame_of(name): name.as_posix() for name in json_files(place)}
    yield from (OfFrame(k, found.get(key, f"{key}.json"), key in found) for k, key in enumerate(keys))


def _not_numpy(error: Exception) -> str:
    return f"cannot be read as an array of NumPy ({one_line(error)}); write it by numpy.save"


class LandmarkFiles:
    """The points of the face in each frame, in files of JSON."""

    def __init__(self, place: Path, keys: Sequence[str]) -> None:
        """Raises DataError where one is missing."""
        require_folder(place, "data.landmarks")
        names = list(landmark_names(place, keys))
        _require_files(place, names, remedy="remove the frame")
        self._paths = [place / name for _, name, _ in names]

    def extent(self, k: int) -> Extent | None:
        """The box around the points of frame k, None where OpenPose saw no face. Raises DataError naming the file for what is no such."""
        path = self._paths[k]
        try:
            points = landmarks_of(read_regular(path, most=MOST_BYTES))
        except OSError as error:
            raise DataError(f"{path}: {_no_face(error)}") from error
        except ValueError as error:
            raise DataError(f"{path}: {error}") from error
        return Extent(*map(float, (*points.min(0), *points.max(0)))) if len(points) else None


def landmarks_of(data: bytes) -> np.ndarray:
    """The points of a face that a file holds (n, 2), none where OpenPose saw no face. Raises ValueError for what is no such file."""
    try:
        return face_points(parsed_json(data))
    except ValueError as error:
        raise ValueError(_no_face(error)) from error


def _no_face(error: Exception) -> str:
    return f"cannot be read as the points of a face ({error})"


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


def require_folder(place: Path, setting: str) -> None:
    """Raises DataError where a folder that `setting` names is not there."""
    if not place.is_dir():
        inside = setting.startswith("data.")  # else it may be anywhere
        missing = f"{place.parent}: holds no folder {place.name}" if inside else f"{place}: no such folder"
        raise DataError(f"{missing} ({setting}){nearest(place.name, listed(place.parent) if place.parent.is_dir() else ())}")


def _require_files(place: Path, names: Iterable[OfFrame], *, remedy: str) -> None:
    missing = [name for _, name, there in names if not there]
    if missing:
        more = f" (nor {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise DataError(f"{place}: has no file {missing[0]}{more}; add it, or {remedy}")
