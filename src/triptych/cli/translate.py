"""`triptych translate`: images made from images, or maps, by a trained run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from triptych.cli.arguments import asks_for_help, at_checkpoint, finished, named_as_flags, naming_models, require_images, run_argument
from triptych.cli.output import show_page
from triptych.cli.progress_bar import progress_bar
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.files import OUTPUTS
from triptych.core.wording import counted
from triptych.runs.loading import Loading

if TYPE_CHECKING:
    from triptych.runs.given.sizes import OutputSize

_USAGE_LINE = "triptych translate RUN INPUT [--out DIR], or triptych translate RUN --held-out [--count N] [--out DIR]"

USAGE = f"""usage: {_USAGE_LINE}

Makes images of one kind from images, or maps, of another: photos of label maps, the same scene in winter, an animal of another species.
INPUT is a file, a folder, .zip, .tar, .npz or .npy; for a model of several sources a folder with a sub-folder for each (labels/a.png goes
with objects/a.png). --style names images whose look is taken, --style-count 5 asks for several answers. DIR gets an image for each input,
under its name, and grid.png, which shows input, answers and, where there is one, the truth.

  triptych translate RUN --help    list all options, with the settings of that run's model

example: triptych translate runs/spade-camvid ./camvid/val --style-count 3 --out photos"""


@config
class TranslateOptions(Loading):
    """Of what, in whose look, how large, from which weights, to where."""

    held_out: bool = False
    "Translate held-out images of the run's own data, in place of INPUT."
    count: int | None = None
    "The first so many inputs; None: all."
    style: str | None = None
    "Images whose look is taken, all together: a file, folder, .zip, .tar, .npz or .npy; of clips a folder of data. None: none, or random."
    style_each: bool = False
    "Each answer takes one image of --style, in turn over the inputs, in place of all together."
    style_count: int = 1
    "Answers to each input: with random styles, or in those of --style-each."
    size: str = "run"
    "run: cut as the run's images; own: each image's own, down to what the model can make; 512: the short side; 480x640: height, width."
    seed: int = 0
    "Seed of random styles."
    out: str | None = None
    "A folder: NAME.png for each input (NAME_0.png ...); .npz: all; .png, .jpg, .webp: one; .mp4, .webm: a clip. None: RUN/translated."
    grid: int = 16
    "Rows of grid.png in the folder, for clips spread over their frames; 0: no grid."
    first: str | None = None
    "Of a model of clips: an image that they begin with, a folder with one for each, or a run that makes first frames. None: it makes them."
    video: Literal["mp4", "webm"] | None = None
    "The folder gets a video of each clip, CLIP.mp4 or CLIP.webm. None: frames."
    fps: float | None = None
    "Frames per second of videos; None: those of INPUT where that is a video, else 25."
    compare: bool = False
    "A video shows input, made and, where there is one, the truth side by side."
    batch_size: int | None = None
    "Images made at once in each process; None: the run's batch size, fewer where images are larger."

    def validate(self) -> None:
        self.require(self.count is None or self.count >= 1, "count", "at least 1")
        self.require(self.style_count >= 1, "style_count", "at least 1")
        self.require(_size(self.size) is not None, "size", "run, own, a short side (512), or height and width (480x640)")
        self.require(self.seed >= 0, "seed", "0 or more")
        self.require(self.style != "", "style", "images, or no --style at all")
        self.require(
            self.out is None or (self.out != "" and Path(self.out).suffix in (*OUTPUTS, ".mp4", ".webm")),
            "out",
            "a name that ends with .png, .jpg, .webp, .npz or, for a clip, .mp4 or .webm, or a folder",
        )
        self.require(self.fps is None or 0.001 <= self.fps <= 1000, "fps", "0.001 to 1000")
        self.require(self.grid >= 0, "grid", "0 or more")


def main(arguments: Sequence[str]) -> int:
    """Translates, and prints where the images are."""
    if arguments and arguments[0] in ("-h", "--help"):
        show_page(USAGE)
        return 0
    arguments = at_checkpoint(arguments)
    directory = run_argument(arguments, usage=_USAGE_LINE)
    inputs, flags = split(arguments[1:])
    if not asks_for_help(arguments):
        require_images(inputs)

    from triptych import runs
    from triptych.runs.clip_videos import VIDEOS, VideoSettings

    run = runs.open_run(directory)
    options, settings = configure(directory, flags, translation=run.translation)
    if not options.held_out and inputs is None:
        raise ConfigError("", f"no input given; usage: {_USAGE_LINE}")
    if inputs == "":
        raise ConfigError("", "got an empty word as input, which would be the current folder; write . for that")
    if options.held_out and inputs is not None:
        raise ConfigError("--held-out", f"got an input, {inputs!r}, too; give one of them")
    out = Path(options.out) if options.out is not None else Path(directory) / "translated"
    with named_as_flags(options, settings), progress_bar("translating") as progress:
        made = run.translate(
            inputs,
            count=options.count,
            style=options.style,
            style_each=options.style_each,
            style_count=options.style_count,
            size=_size(options.size)[0],  # type: ignore[index]  (None was refused)
            seed=options.seed,
            settings=settings,
            out=out,
            grid=options.grid,
            first=options.first,
            video=VideoSettings(kind=options.video, rate=options.fps, compare=options.compare),
            progress=progress,
            **options.keywords(),
        )
    what = "frame" if options.video is not None or out.suffix in VIDEOS else "image"
    return finished(f"{counted(len(made.names) * options.style_count, what)} in {out}")


def split(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The input, which comes before all flags, and the flags; no input where they begin at once."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], list(arguments[1:])
    return None, list(arguments)


def configure(run: str, arguments: Sequence[str], *, translation: Config) -> tuple[TranslateOptions, Config]:
    """The options, and the settings of the model: those of the run with the flags laid over them."""
    from triptych.cli.settings import parse

    with naming_models(TranslateOptions(), translation, of="model"):
        return parse(
            arguments,
            prog=f"triptych translate {run} INPUT",
            description="Makes images from images or maps. The options after --device are settings of the run's model.",
            options=TranslateOptions(),
            settings=translation,
        )


def _size(text: str) -> tuple[OutputSize] | None:
    """What `--size` says, in a tuple of its own, for it may be None; None for what it does not take."""
    from triptych.runs.given.sizes import plain_size

    if text in ("run", "own"):
        return (None,) if text == "run" else ("own",)
    size = plain_size(text)
    return None if size is None else (size,)
