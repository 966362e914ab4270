"""`triptych encode`: images as a run's latents, and back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from triptych.cli.arguments import (
    asks_for_help,
    at_checkpoint,
    finished,
    given_flag,
    label_values,
    named_as_flags,
    require_argument,
    require_images,
    run_argument,
)
from triptych.cli.output import show_page
from triptych.cli.progress_bar import progress_bar
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.files import OUTPUTS, OUTPUTS_IN_WORDS
from triptych.core.wording import counted
from triptych.runs.loading import Loading

if TYPE_CHECKING:
    from triptych.runs import Run

_DECODES = ("--decode", "--no-decode")
_USAGE_LINE = "triptych encode RUN IMAGES [--out FILE.npz] [--check], or triptych encode RUN LATENTS.npz --decode [--out FILE]"

USAGE = f"""usage: {_USAGE_LINE}

Turns images into the latents of a trained run (for a diffusion model: the noise that DDIM draws them from), or latents into images.
IMAGES is a folder, .zip, .tar, .npz or .npy. --directions finds what a class or an attribute of the images is among the latents too;
`triptych sample RUN --from LATENTS.npz --direction NAME=STRENGTH` moves images along it.

  triptych encode RUN --help    list all options, with the settings of that run's encoder

example: triptych encode runs/digits images.npz --check --out latents.npz"""


@config
class EncodeOptions(Loading):
    """Which images, with which weights, to where."""

    decode: bool = False
    "From latents to images."
    check: bool = False
    "Decode the latents too, and print how far that is from the images."
    directions: bool = False
    "Also write a direction for each class of the images, or each attribute of --attributes: from those without it to those with it."
    attributes: str | None = None
    "A table of attributes: a CSV (file name, then 1 or 0, or 1 or -1), or CelebA's list_attr_celeba.txt; None: the classes."
    directions_out: str | None = None
    "FILE.npz of the directions; None: RUN/directions.npz."
    classes: Literal["auto", "folder", "prefix", "json", "none"] = "auto"
    "Classes of files: by folder, by what their name has before an underscore, by dataset.json (json), or none; auto: json or folder."
    count: int | None = None
    "The first so many; with --directions so many drawn from all, always the same ones. None: all."
    labels: tuple[str, ...] | None = None
    "Classes by number or name, taken in turn (3,7); None: those of the images, also in decoding."
    out: str | None = None
    "FILE.npz of the latents (None: RUN/latents.npz); of images as for sample: .png, .jpg, .webp, .npz or a folder (None: RUN/decoded.png)."

    def validate(self) -> None:
        for name in ("check", "directions"):
            self.require(not (self.decode and getattr(self, name)), name, "False with --decode; it goes with encoding")
        self.require(not self.decode or self.classes == "auto", "classes", "auto with --decode; it goes with encoding")
        for name in ("attributes", "directions_out"):
            self.require(self.directions or getattr(self, name) is None, name, "nothing without --directions")
        named = self.directions_out is None or Path(self.directions_out).suffix == ".npz"
        self.require(named, "directions_out", "a name that ends with .npz")
        self.require(self.count is None or self.count >= 1, "count", "at least 1")
        endings, expected = (OUTPUTS, OUTPUTS_IN_WORDS) if self.decode else ((".npz",), "a name that ends with .npz")
        self.require(self.out is None or Path(self.out).suffix in endings, "out", expected)
        self.require(self.labels is None or all(self.labels), "labels", "numbers or names of classes")


def main(arguments: Sequence[str]) -> int:
    """Encodes or decodes, and prints where the result is."""
    if arguments and arguments[0] in ("-h", "--help"):
        show_page(USAGE)
        return 0
    arguments = at_checkpoint(arguments)
    directory = run_argument(arguments, usage=_USAGE_LINE)
    helped = asks_for_help(arguments)
    if not helped:
        require_argument(arguments[1:], "images", usage=_USAGE_LINE)
    flags = arguments[1:] if helped else arguments[2:]
    decode = not helped and _decodes(flags)
    if not helped and not decode:  # at once, without PyTorch
        require_images(arguments[1], note="; expected a folder, .zip, .tar, .npz or .npy of images")

    from triptych import runs

    run = runs.open_run(directory)
    encoding = _to_decode(flags, Path(arguments[1]), run.encoding) if decode else run.encoding
    options, settings = configure(directory, flags, encoding=encoding)
    with named_as_flags(options, settings):
        line = _decode(run, arguments[1], options, settings) if options.decode else _encode(run, arguments[1], options, settings)
    return finished(line)


def _decodes(flags: Sequence[str]) -> bool:
    """Whether the flags ask for the way back: then their defaults are others. Of several words about it the last one counts."""
    asked = False
    for word, following in itertools.pairwise([*flags, ""]):
        name, equals, value = word.partition("=")
        if name in _DECODES:
            asked = name == _DECODES[0] and (value if equals else following).lower() != "false"
    return asked


def _to_decode(flags: Sequence[str], latents: Path, encoding: Config) -> Config:
    """The settings by which the latents were encoded. Raises ConfigError for flags of an encoder that say nothing about the way back."""
    from triptych.cli.settings import flags_of
    from triptych.runs.latents import encoded_with

    given = None if getattr(encoding, "both_ways", False) else given_flag(flags_of(encoding), flags)
    if given is not None:
        raise ConfigError(given, "got it with --decode, which takes no settings of this encoder; leave it out")
    return encoded_with(latents, encoding)


def configure(run: str, arguments: Sequence[str], *, encoding: Config) -> tuple[EncodeOptions, Config]:
    """The options, and the settings of the encoder: its defaults with the flags laid over them."""
    from triptych.cli.settings import parse

    return parse(
        arguments,
        prog=f"triptych encode {run} IMAGES",
        description="Turns images into latents, and back with --decode. The options after --device are settings of the run's encoder.",
        options=EncodeOptions(),
        settings=encoding,
    )


def _encode(run: Run, images: str, options: EncodeOptions, settings: Config) -> str:
    from triptych.runs.directions import DIRECTIONS

    out = Path(options.out) if options.out is not None else run.directory / "latents.npz"
    with progress_bar("coding") as progress:
        coder = run.coder(settings=settings, progress=progress, **options.keywords())
        pictures = coder.open(images, classes=options.classes)
        asked: dict[str, Any] = {"count": options.count, "labels": label_values(options.labels, run.spec.class_names)}
        if options.directions:
            file = Path(options.directions_out) if options.directions_out is not None else run.directory / DIRECTIONS
            directions, latents = coder.directions(pictures, **asked, attributes=options.attributes, out=file, latents_out=out)
            pictures = pictures.drawn(len(latents))
            line = f"{counted(len(latents), 'image')} encoded in {out}, {counted(len(directions), 'direction')} in {file}"
        else:
            latents = coder.encode(pictures, **asked, out=out)
            line = f"{counted(len(latents), 'image')} encoded in {out}"
        if options.check:
            line += f"; decoded they are {coder.error(pictures, latents):.2f} levels of 255 off on average"
    return line


def _decode(run: Run, latents: str, options: EncodeOptions, settings: Config) -> str:
    out = Path(options.out) if options.out is not None else run.directory / "decoded.png"
    with progress_bar("coding") as progress:
        coder = run.coder(settings=settings, progress=progress, **options.keywords())
        samples = coder.decode(latents, count=options.count, labels=label_values(options.labels, run.spec.class_names), out=out)
    return f"{counted(len(samples.images), 'image')} in {out}"
