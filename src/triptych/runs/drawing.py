"""Folders of key points, drawn into folders of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from triptych.core.errors import DataError, nearest
from triptych.core.files import explain
from triptych.core.reading import parsed_json, read_regular
from triptych.data.clip_files import clips_of
from triptych.data.decode import header_size
from triptych.data.face_fitting import fitted
from triptych.data.files import MOST_BYTES, listed, open_folder
from triptych.data.frame_files import frame_of, json_files
from triptych.data.keypoints import COLOURED, Kind, PeopleStyle, drawn, read_face
from triptych.data.pairs import stems
from triptych.data.poses import as_bits
from triptych.engine.progress import Watch, unwatched
from triptych.runs.files import check_apart
from triptych.runs.image_folder import save_frames


def draw_folder(
    source: Path,
    out: Path,
    *,
    kind: Kind,
    size: tuple[int, int] | None,
    frames: Path | None,
    forehead: bool = True,
    style: PeopleStyle = COLOURED,
    fit: Path | None = None,
    progress: Watch = unwatched,
) -> int:
    """Writes OUT/CLIP/FRAME.png for each SOURCE/CLIP/FRAME.json; returns how many there are. With `style.limbs` as `as_bits` packs them.

    Of this height and width; None: of that of the image of the same name in `frames`. `fit`: the file of a face whose proportions all faces
    get, which lie as those of clips do. Raises DataError naming the file for what cannot be drawn, or is there and no drawing.
    """
    if not source.is_dir():
        hint = "" if source.exists() else nearest(source.name, listed(source.parent))
        raise DataError(f"{source}: no folder; name that of the key points (.json){hint}")
    names = json_files(source)
    if not names:
        raise DataError(f"{source}: holds no key points (.json)")
    faces = {} if fit is None else _fitted_faces(source, names, fit)
    check_apart(out, source, frames)
    images = None if frames is None else open_folder(frames)[0]
    numbers = {} if images is None else stems(images)
    files = dict[str, Path]()
    for name in names:
        if files.setdefault(frame_of(name), name) != name:
            raise DataError(f"{source}: {files[frame_of(name)]} and {name} are of one frame; remove one of them")

    def picture(stem: str) -> np.ndarray:
        name, (high, wide) = files[stem], size or (0, 0)
        if images is not None:
            if stem not in numbers:
                raise DataError(f"{source / name}: {frames} has no image {stem}.*, whose size it would have")
            wide, high = header_size(images.head(numbers[stem]))
        try:
            content = faces[name] if name in faces else parsed_json(read_regular(source / name, most=MOST_BYTES))
            pixels = drawn(content, kind, height=high, width=wide, forehead=forehead, style=style)
        except (OSError, ValueError) as error:
            raise DataError(f"{source / name}: cannot be drawn ({error})") from error
        return as_bits(pixels) if style.limbs else pixels

    save_frames(out, list(files), picture, progress=progress)
    return len(files)


def _fitted_faces(source: Path, names: Sequence[Path], reference: Path) -> dict[Path, np.ndarray]:
    """The points of the faces of each clip with the proportions of a reference, by their files."""
    wanted, found = _points(reference), dict[Path, np.ndarray]()
    for numbers in clips_of([frame_of(name) for name in names]).values():
        members = [names[k] for k in numbers]
        try:
            faces = fitted([_points(source / name) for name in members], wanted)
        except ValueError as error:
            raise DataError(f"{source / members[0]}: cannot be fitted to {reference} ({error})") from error
        found |= zip(members, faces, strict=True)
    return found


def _points(path: Path) -> np.ndarray:
    try:
        return read_face(parsed_json(read_regular(path, most=MOST_BYTES)))
    except (OSError, ValueError) as error:
        why = explain(error) if isinstance(error, OSError) else error
        raise DataError(f"{path}: cannot be read as the points of a face ({why})") from error
