"""`triptych data pack`: the images of a source in one file, as training takes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from triptych.cli.arguments import finished, require_images
from triptych.cli.data_settings import DATA_SIZE, data_flags, data_settings
from triptych.cli.output import show
from triptych.cli.progress_bar import progress_bar
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.wording import counted
from triptych.data.config import MOST_WORKERS, DataConfig

USAGE = "triptych data pack IMAGES --size N --out FILE.npz"
_SHORT = {**DATA_SIZE, "--resize": "--data.resize"}


@config
class PackOptions(Config):
    """What is packed, and to where."""

    out: str | None = None
    "Required. FILE.npz: pixels, for the fastest training; FILE.zip: a PNG for each image, as EDM and StyleGAN read them."
    recipe: str | None = None
    "Take the data settings of this recipe; None: the plain ones."
    files: bool = False
    "Keep the files as they are, in a FILE.zip."
    workers: int | None = None
    "Processes that load images; 0: none; None: by the source and the number of CPU cores."

    def validate(self) -> None:
        self.require(self.out is None or Path(self.out).suffix in (".npz", ".zip"), "out", "a name that ends with .npz or .zip")
        self.require(self.workers is None or 0 <= self.workers <= MOST_WORKERS, "workers", f"0 to {MOST_WORKERS}, or nothing")


def configure(arguments: Sequence[str]) -> tuple[PackOptions, DataConfig]:
    """The options, and what opens the images."""
    options, settings = data_settings(
        arguments,
        options=PackOptions(),
        verb="triptych data pack",
        description="Writes the images as training takes them into one file (--size N is --data.image-size, --resize N --data.resize).",
        usage=USAGE,
        short=_SHORT,
    )
    if options.out is None:
        raise ConfigError("--out", f"missing: the file to write; usage: {USAGE}")
    return options, settings.data


def main(arguments: Sequence[str]) -> int:
    """Packs, and prints what the file holds."""
    options, settings = configure(arguments)
    assert options.out is not None
    require_images(settings.path, note="; expected a folder, archive or array of images")

    from triptych.runs.packing import pack_data

    with data_flags(options), progress_bar("packing") as progress:
        packed = pack_data(settings, options.out, files=options.files, workers=options.workers, progress=progress)
    for note in packed.notes:
        show(note)
    stamp, already = packed.stamp, " were there already" if packed.already else ""
    form = {
        "squares": f"squares of {stamp.data.image_size} pixels",
        "whole": f"whole images with a short side of {stamp.data.resize}",
        "files": "files as they were",
    }[stamp.kept]
    classes = counted(len(stamp.class_names), "class", "classes") if stamp.class_names is not None else "no classes"
    return finished(
        f"{counted(stamp.count, 'image')} ({packed.held_out:,} held out, {classes}) as {form}, {stamp.images}{already}: {options.out}"
    )
