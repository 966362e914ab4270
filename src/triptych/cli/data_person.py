"""`triptych data person`: maps of people with one person alone."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.cli.arguments import finished, named_as_flags
from triptych.cli.data_settings import FolderOptions, from_folder
from triptych.cli.progress_bar import progress_bar
from triptych.core.config import config
from triptych.core.errors import ConfigError
from triptych.core.reading import user_path
from triptych.core.wording import counted

USAGE = "triptych data person MAPS --out FOLDER --instances FOLDER --poses FOLDER"


@config
class PersonOptions(FolderOptions):
    """Which person, and to where."""

    out: str | None = None
    "Required: folder of the maps with one person, FOLDER/CLIP/FRAME.png for each MAPS/CLIP/FRAME.png."
    instances: str | None = None
    "Required: folder of maps of who each pixel shows, FOLDER/CLIP/FRAME.png: a number for each person, from 1 on; 0: nobody."
    poses: str | None = None
    "Required: folder of what triptych data draw --kind people drew. The person on whom most of it lies stays; if nobody, the largest."


def configure(arguments: Sequence[str]) -> tuple[str, PersonOptions]:
    """The folder that is read, and the options."""
    description = "Takes all people but one out of maps of people (data.densepose, data.limbs, data.conditions), by maps of who is where."
    folder, options = from_folder(
        arguments, options=PersonOptions(), prog="triptych data person MAPS", description=description, usage=USAGE
    )
    for name, value in (("--instances", options.instances), ("--poses", options.poses)):
        if value is None:
            raise ConfigError(name, f"missing; usage: {USAGE}")
    return folder, options


def main(arguments: Sequence[str]) -> int:
    """Writes the maps, and prints how many there are."""
    folder, options = configure(arguments)
    assert options.out is not None and options.instances is not None and options.poses is not None

    from triptych.runs.one_person import keep_person

    beside = {"instances": user_path(options.instances), "poses": user_path(options.poses)}
    with named_as_flags(options), progress_bar("writing") as progress:
        count = keep_person(user_path(folder), user_path(options.out), **beside, progress=progress)
    return finished(f"{counted(count, 'map')} of one person in {options.out}")
