"""`triptych data points`: imaginaire's unprojection files as maps of points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from triptych.cli.arguments import finished, named_as_flags
from triptych.cli.data_settings import FolderOptions, from_folder
from triptych.cli.progress_bar import progress_bar
from triptych.core.config import config
from triptych.core.reading import user_path
from triptych.core.wording import counted

USAGE = "triptych data points UNPROJECTIONS --out FOLDER"


@config
class PointsOptions(FolderOptions):
    """Of which size, and to where."""

    out: str | None = None
    "Required: folder of the maps of points, FOLDER/CLIP/FRAME.png for each UNPROJECTIONS/CLIP/FRAME.pkl."
    height: int = 512
    "Height of the frames in pixels."
    width: int = 1024
    "Width of the frames in pixels."

    def validate(self) -> None:
        for name in ("height", "width"):
            self.require(getattr(self, name) >= 1, name, "at least 1")


def configure(arguments: Sequence[str]) -> tuple[str, PointsOptions]:
    """The folder that is read, and the options."""
    description = "Writes imaginaire's unprojection files (.pkl), which are not run, as maps of points (data.points of clips)."
    return from_folder(arguments, options=PointsOptions(), prog="triptych data points UNPROJECTIONS", description=description, usage=USAGE)


def main(arguments: Sequence[str]) -> int:
    """Writes the maps, and prints how many there are."""
    folder, options = configure(arguments)
    assert options.out is not None

    from triptych.interop.imaginaire.unprojections import ENDING, point_map, unprojection_files
    from triptych.runs.files import check_apart
    from triptych.runs.image_folder import save_frames

    source, out, size = user_path(folder), Path(options.out), (options.height, options.width)
    names = unprojection_files(source)
    check_apart(out, source)
    with named_as_flags(options), progress_bar("writing") as progress:
        save_frames(out, names, lambda name: point_map(source / f"{name}{ENDING}", size=size), progress=progress)
    return finished(f"{counted(len(names), 'map')} of points of {options.width}x{options.height}: {options.out}")
