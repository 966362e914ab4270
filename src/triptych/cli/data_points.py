"""`triptych data points`: imaginaire's unprojection files as maps of points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from triptych.cli.arguments import asks_for_help, finished, named_as_flags
from triptych.cli.progress_bar import progress_bar
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError

USAGE = "triptych data points UNPROJECTIONS --out FOLDER"


@config
class PointsOptions(Config):
    """Of which size, and to where."""

    out: str | None = None
    "Folder of the maps of points: FOLDER/CLIP/FRAME.png for each UNPROJECTIONS/CLIP/FRAME.pkl."
    height: int = 512
    "Of the frames."
    width: int = 1024
    "Of the frames."

    def validate(self) -> None:
        for name in ("height", "width"):
            self.require(getattr(self, name) >= 1, name, "at least 1")


def configure(arguments: Sequence[str]) -> tuple[str, PointsOptions]:
    """The folder that is read, and the options."""
    from triptych.cli.settings import parse

    helped = asks_for_help(arguments)
    if not helped and (not arguments or arguments[0].startswith("-")):
        problem = f"got {arguments[0]!r} where the folder is expected" if arguments else "no folder given"
        raise ConfigError("", f"{problem}; usage: {USAGE}")
    options, _ = parse(
        arguments if helped else arguments[1:],
        prog="triptych data points UNPROJECTIONS",
        description="Writes imaginaire's unprojection files (.pkl), which are not run, as maps of points (data.points of clips).",
        options=PointsOptions(),
        settings=Config(),
    )
    if options.out is None:
        raise ConfigError("--out", f"missing: the folder to write; usage: {USAGE}")
    return arguments[0], options


def main(arguments: Sequence[str]) -> int:
    """Writes the maps, and prints how many there are."""
    folder, options = configure(arguments)
    assert options.out is not None

    from triptych.interop.imaginaire.unprojections import write_point_maps

    with named_as_flags(options), progress_bar("writing") as progress:
        count = write_point_maps(Path(folder), Path(options.out), size=(options.height, options.width), progress=progress)
    return finished(f"{count:,} maps of points of {options.width}x{options.height}: {options.out}")
