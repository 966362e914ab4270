"""`triptych sample`: images from a trained run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from triptych.cli.arguments import (
    at_checkpoint,
    class_names,
    finished,
    flag_value,
    given_flag,
    label_values,
    named_as_flags,
    naming_models,
    run_argument,
    strengths,
)
from triptych.cli.output import show_page
from triptych.cli.progress_bar import progress_bar
from triptych.core.config import Config, config, spelled
from triptych.core.errors import ConfigError, UserError
from triptych.core.files import OUTPUTS, OUTPUTS_IN_WORDS
from triptych.core.wording import counted
from triptych.runs.loading import Loading

if TYPE_CHECKING:
    from triptych.runs import Run

_COUNT = 64
_FROM, _LATENTS = "--from", "--latents"

USAGE = """usage: triptych sample RUN [--count N] [--seed S] [--labels 3,7] [--guide CLASSIFIER_RUN] [--out FILE] [sampler settings]
       triptych sample RUN --from LATENTS.npz [--pick 0,5] [--direction smiling=0.8,young=-1:1] [--count N] [--out FILE]
       triptych sample RUN --from LATENTS.npz --between 3,7 [--count N] [--out FILE]
       triptych sample RUN --from LATENTS.npz --mix 5,5 [--mix-at 16] [--out FILE]

Draws images from a trained run. Image k of a seed is the same whatever the count, batch size or number of processes.
An upsampler makes large images of the small ones that --base names: files, or a run that draws them.
--from draws nothing: it shows latents of images (triptych encode writes them), moved along directions, on the way between two, or, of a
model with a style for each layer, mixed. Flows, StyleGAN2 and R3GAN, which draw by way of latents, need no --from: they take their samples.

  triptych sample RUN --help    list all options, with the settings of that run's sampler

example: triptych sample runs/digits --count 64 --labels 3,7 --out grid.png"""

_NOT_WITH_LATENTS = "with --from, which draws nothing; leave it out"


@config
class SampleOptions(Loading):
    """How many images, of what, from which weights, to where."""

    count: int | None = None
    "Number of images; None: 64, or as many as --base or --from has; on a way (--between, --direction NAME=FROM:TO): 9."
    seed: int = 0
    "Seed of the noise."
    labels: tuple[str, ...] | None = None
    "Classes by number or name, taken in turn (3,7); None: all in turn, or those of --base or --from."
    out: str | None = None
    "FILE.png, .jpg or .webp: one grid; FILE.npz: arr_0 uint8 (n, h, w, c) and arr_1 labels; a folder: a PNG each. None: RUN/samples.*"
    base: str | None = None
    "The small images of an upsampler: a folder, .zip, .tar, .npz or .npy, or a run that draws them; None: the model needs none."
    guide: str | None = None
    "A run, or RUN/checkpoints/N, of a classifier of noisy images that leads the sampler to the labels, by --guidance-scale; None: none."
    guide_with: str | None = None
    "A run, or RUN/checkpoints/N, of a weaker model (smaller, less trained) that --guidance-scale leads the sampler away from; None: none."
    guide_ema_length: float | None = None
    "Length of the power-function average of that run's weights (0.15); None: its first average."
    latents: str | None = None
    "Also written --from: an .npz of latents (triptych encode makes it), of which the images are made; None: they are drawn."
    pick: tuple[int, ...] | None = None
    "Which of the latents, or of the samples, by number from 0 on (0,5); None: all."
    direction: tuple[str, ...] | None = None
    "Moves latents along directions (smiling=0.8,young=-0.5); NAME=FROM:TO: --count images along one, a row for each latent. None: unmoved."
    directions: str | None = None
    "An .npz of directions (triptych encode --directions makes it); None: RUN/directions.npz."
    between: tuple[int, int] | None = None
    "Two latents, or samples (3,7): --count images on the way from one to the other. None: no way is shown."
    path: Literal["linear", "sphere"] | None = None
    "The way of --between: a straight line, or on a sphere, which keeps the length; None: sphere where latents are noise, else linear."
    mix: tuple[int, int] | None = None
    "Rows and columns (5,5) of a grid: a row has the coarse styles of a latent, or sample, a column the fine ones of one. None: no grid."
    mix_at: int | None = None
    "Pixels of a side of the layers at which the fine styles begin; None: the middle of the layers."

    def validate(self) -> None:
        self.require(self.count is None or self.count >= 1, "count", "at least 1")
        self.require(self.seed >= 0, "seed", "0 or more")
        self.require(self.out is None or Path(self.out).suffix in OUTPUTS, "out", OUTPUTS_IN_WORDS)
        self.require(self.labels is None or all(self.labels), "labels", "numbers or names of classes")
        led = self.guide is not None or self.guide_with is not None
        self.require(self.guide_ema_length is None or led, "guide_ema_length", "nothing without --guide-with or --guide")
        for name in ("guide", "guide_with"):
            alone = self.base is None or getattr(self, name) is None
            self.require(alone, name, "none beside --base: draw with it to an .npz first, and give that as --base")
        self._check_latents()

    def _check_latents(self) -> None:
        """Raises ConfigError for options that do not go with --from, or go with it alone."""
        if self.latents is not None:
            self.require(self.seed == 0, "seed", f"0 {_NOT_WITH_LATENTS}")
            for name in ("base", "guide", "guide_with"):
                self.require(getattr(self, name) is None, name, f"nothing {_NOT_WITH_LATENTS}")
        for name in self.edits:
            for other in ("base", "guide", "guide_with"):
                if (given := getattr(self, other)) is not None:
                    raise ConfigError(other, f"got {spelled(given)} beside {{}}; leave one of them out", [name])
        self.require(self.mix_at is None or self.mix is not None, "mix_at", "nothing without --mix")
        self.require(self.path is None or self.between is not None, "path", "nothing without --between")
        self.require(self.directions is None or self.direction is not None, "directions", "nothing without --direction")
        for name in ("pick", "between"):
            self.require(all(number >= 0 for number in getattr(self, name) or ()), name, "numbers of latents, from 0 on")
        if self.direction is not None:
            strengths(self.direction)

    @property
    def edits(self) -> list[str]:
        """The names of those options that are about latents, of a file or of the samples."""
        return [name for name in ("pick", "direction", "between", "mix") if getattr(self, name) is not None]


def main(arguments: Sequence[str]) -> int:
    """Draws the images and prints where they are."""
    if arguments and arguments[0] in ("-h", "--help"):
        show_page(USAGE)
        return 0
    arguments = at_checkpoint(arguments)
    directory = run_argument(arguments, usage="triptych sample RUN [--count N] [--out FILE]")

    from triptych import runs

    run = runs.open_run(directory)
    sampling = getattr(run.config.model, "sampling", None)
    if not isinstance(sampling, Config):
        lead = f"it leads others: triptych sample RUN --guide {shlex.quote(directory)}"
        hints = {"translate": "; triptych translate makes its images", "guide": f"; {lead}"}
        hint = next((said for verb, said in hints.items() if verb in run.config.model.verbs()), "")
        raise UserError(f"{directory}: a {type(run.config.model).__name__.removesuffix('Config')} draws no samples{hint}")
    options, settings = configure(directory, arguments[1:], sampling=sampling)
    own = "samples.npz" if run.spec.undecoded else "samples.png"
    out = Path(options.out) if options.out is not None else Path(directory) / own
    with _called_from(), named_as_flags(options, settings):
        edits = options.latents is not None or bool(options.edits)
        count = _edit(run, options, settings, out) if edits else _draw(run, options, settings, out)
    return finished(f"{counted(count, 'image')} in {out}")


def _draw(run: Run, options: SampleOptions, settings: Config, out: Path) -> int:
    """Draws the images, and says how many."""
    asked: dict[str, Any] = {
        "seed": options.seed,
        "labels": None if options.labels is None else label_values(options.labels, class_names(run, guide=options.guide)),
        "settings": settings,
        "out": out,
        **options.keywords(),
    }
    if options.base is None:
        count = options.count or _COUNT
        with progress_bar("sampling") as progress:
            leading = {"guide": options.guide, "guide_with": options.guide_with, "guide_ema_length": options.guide_ema_length}
            run.sample(count, **asked, **leading, progress=progress)
        return count
    inputs = run.inputs(options.base)
    count = options.count or inputs.count
    with progress_bar("sampling") as progress:
        run.upsample(inputs, **asked, count=count, progress=progress)
    return count


def _edit(run: Run, options: SampleOptions, settings: Config, out: Path) -> int:
    """Makes images of latents, and says how many."""
    sampled = options.latents is None
    with progress_bar("decoding") as progress:
        samples = run.edit(
            options.latents,
            strengths=None if options.direction is None else strengths(options.direction),
            pick=None if options.pick is None else list(options.pick),
            between=options.between,
            path=options.path,
            count=options.count,
            mix=options.mix,
            mix_at=options.mix_at,
            labels=label_values(options.labels, run.spec.class_names),
            seed=options.seed,
            settings=settings if sampled else None,
            directions=options.directions,
            out=out,
            progress=progress,
            **options.keywords(),
        )
    return len(samples.images)


def configure(run: str, arguments: Sequence[str], *, sampling: Config) -> tuple[SampleOptions, Config]:
    """The options, and the settings of the sampler: those of the run with the flags laid over them."""
    from triptych.cli.settings import flags_of, parse

    if flag_value(_FROM, arguments) == "":
        raise ConfigError(_FROM, "got '', expected an .npz of latents (triptych encode makes it); leave it out to draw samples")
    with _called_from(), naming_models(SampleOptions(), sampling, of="sampler"):
        options, settings = parse(
            [_LATENTS + argument.removeprefix(_FROM) if argument.split("=")[0] == _FROM else argument for argument in arguments],
            prog=f"triptych sample {run}",
            description="Draws images from the run. The options after --device are settings of its sampler.",
            options=SampleOptions(),
            settings=sampling,
        )
    given = None if options.latents is None else given_flag(flags_of(sampling), arguments)
    if given is not None:
        raise ConfigError(given, "got it with --from, which draws nothing: latents are decoded as they were encoded; leave it out")
    return options, settings


@contextmanager
def _called_from() -> Iterator[None]:
    """Within it an error about the latents has the flag that people know: no field of a class can be named from."""
    try:
        yield
    except ConfigError as error:
        raise error.renamed(lambda name: _FROM if name == _LATENTS else name) from None
