"""`triptych evaluate`: how good a trained run is, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from triptych.cli.arguments import (
    asks_for_help,
    at_checkpoint,
    first_argument,
    flag_value,
    flag_words,
    measured,
    named_as_flags,
    require_images,
    run_argument,
)
from triptych.cli.output import show_page
from triptych.cli.progress_bar import progress_bar
from triptych.core.config import config
from triptych.core.errors import ConfigError
from triptych.core.wording import counted
from triptych.data.config import DataConfig
from triptych.engine.run_directory import RunDirectory
from triptych.runs.loading import Loading

if TYPE_CHECKING:
    from triptych.evaluation.bits_per_dim import BitsPerDimConfig
    from triptych.runs import Evaluation, Run

_USAGE_LINE = "triptych evaluate RUN_OR_IMAGES [--reference IMAGES] [--metrics LIST] [--count N]"

USAGE = f"""usage: {_USAGE_LINE} [--out FILE.json] [settings]

Measures a trained run, or images: a folder, .zip, .tar, .npz or .npy. The same command goes on after an interruption.

likelihood of a run's held-out images, or of others (--data.path):
  bits-per-dim    bits for each 8-bit value of the images: exact for flows (--draws N averages over N dequantizations);
                  for diffusion models by the variational bound or by the probability-flow ODE

images that a run makes, or a set of them, against a reference, in the features of a network (--features NAME):
  frechet         Frechet distance; called fid in the features of Inception, fd-NETWORK in others
  sfid            the same of features that keep their place in the image
  kid             kernel distance
  is, is-10       inception score, in splits of 5000 images or in 10 splits; needs no reference
  precision, recall; prdc-precision, prdc-recall, density, coverage
                  how far the two sets cover one another, by their nearest neighbours
  copies, authenticity
                  how many of the images are copies of the reference's

one image after the other:
  psnr, ssim, ms-ssim, lpips
                  how near images are to their truth: of models of pairs and of those that enlarge; of two sets by their order
  diversity       how much the answers to one input differ (--style-count 10), by LPIPS
  mean-iou, pixel-accuracy
                  how well images keep to their label maps, by those that your segmenter makes of them (--label-maps FOLDER)
  class-accuracy  how often a classifier sees the class that an image was made for (--classifier RUN)

clips that a run makes, or a folder of them beside that of the real ones (--reference), by clip:
  warping-error   how much they flicker: frames beside those before them, warped by the flow of the real clip
  sharpness       how sharp they are, beside the real ones; look at both
  fvd             distance of the sets in the features of your I3D network (--clip.i3d FILE --clip.run-i3d-code)
  psnr, ssim, ms-ssim, lpips
                  beside one of the three above: by frame, with errors over the clips

A run alone is measured by bits-per-dim; with --reference, and for a set, by frechet, kid, precision and recall.

  triptych evaluate RUN --help                   list the options of bits-per-dim
  triptych evaluate RUN --metrics frechet --help    those of the others, with the settings of the run's sampler
  triptych evaluate RUN --metrics warping-error --help    those of the metrics of clips

example: triptych evaluate runs/digits --likelihood ode --count 20
         triptych evaluate runs/digits --metrics frechet,kid --steps 25 --count 5000
         triptych evaluate samples.npz --reference ./photos --metrics fid,kid,precision,recall"""

BITS_PER_DIM = "bits-per-dim"
CLIP_METRICS = ("warping-error", "sharpness", "fvd")
"""Those of `evaluation.clip_metric`, whose module would import PyTorch."""


@config
class EvaluateOptions(Loading):
    """What is measured, on which images, with which weights, to where."""

    data: DataConfig
    "The images; those of the run where nothing is said. Never mirrored, always the centre crop."
    metrics: tuple[str, ...] = ("bits-per-dim",)
    "What is measured: bits-per-dim."
    split: Literal["validation", "train", "all"] | None = None
    "Held-out images, those of the training, or both; None: the held-out ones, or where there are none those of the training."
    count: int | None = None
    "Number of images, spread evenly over the split; None: all."
    seed: int = 0
    "Seed of the noise."
    out: str | None = None
    "FILE.json: the figures, with FILE.npz beside it for numbers by image and timestep; None: a name in RUN/evaluations."
    batch_size: int | None = None
    "Images of a batch in each process; None: the run's microbatch or batch, at most 64."

    def validate(self) -> None:
        self.require(len(self.metrics) > 0, "metrics", "at least one")
        self.require(self.count is None or self.count >= 1, "count", "at least 1")
        self.require(self.seed >= 0, "seed", "0 or more")
        self.require(self.out is None or Path(self.out).suffix == ".json", "out", "a name that ends with .json")


def main(arguments: Sequence[str]) -> int:
    """Measures, and prints the figures and where they are."""
    if arguments and arguments[0] in ("-h", "--help"):
        show_page(USAGE)
        return 0
    arguments = at_checkpoint(arguments)
    images = first_argument(arguments, "run or images", usage=_USAGE_LINE)
    reference, for_help = flag_value("--reference", arguments), asks_for_help(arguments)
    if arguments[-1] == "--reference":
        raise ConfigError("--reference", "the value is missing, expected images, a file of statistics, or a run")
    if any(name in CLIP_METRICS for name in flag_words("--metrics", arguments)):
        if not for_help:
            require_images(images, note="; expected a run of clips, or a folder of them")
            require_images(reference, note=" (--reference)")
        from triptych.cli import score_clips

        return score_clips.main(images, arguments[1:])
    if _scores(flag_words("--metrics", arguments), reference):
        if not for_help:
            require_images(images, note="; expected a run, or images: a folder, .zip, .tar, .npz or .npy")
            require_images(reference, note=" (--reference)")
        from triptych.cli import score

        return score.main(images, arguments[1:])
    if flag_value("--sweep", arguments) is not None:
        raise ConfigError("--sweep", "a sweep is of figures of images: name them by --metrics (frechet,kid)")
    if reference is not None:
        why = f"but {BITS_PER_DIM} is measured on the images of --data.path, without a reference; leave it out"
        raise ConfigError("--reference", f"got {reference!r}, {why}")
    if not for_help:
        _require_no_images(images)
    directory = run_argument(arguments, usage=_USAGE_LINE)
    require_images(flag_value("--data.path", arguments), note=" (data.path)")

    from triptych import runs

    run = runs.open_run(directory)
    options, settings = configure(directory, arguments[1:], data=run.config.data)
    _require_likelihood(run)
    with named_as_flags(options, settings), progress_bar("evaluating") as progress:
        evaluation = run.evaluate(
            options.metrics,
            settings=settings,
            data=options.data,
            split=options.split,
            count=options.count,
            seed=options.seed,
            out=options.out,
            progress=progress,
            **options.keywords(),
        )
    return measured(directory, *table(evaluation).split("\n"))


def _scores(metrics: Sequence[str], reference: str | None) -> bool:
    """Whether images are to be measured, and not likelihood. Raises ConfigError where both are."""
    others = [name for name in metrics if name != BITS_PER_DIM]
    if others and BITS_PER_DIM in metrics:
        why = "its flags are those of the likelihood, theirs those of the sampler"
        raise ConfigError("--metrics", f"got {BITS_PER_DIM} beside {', '.join(others)}; measure it by a command of its own: {why}")
    return bool(others) or (reference is not None and not metrics)


def _require_likelihood(run: Run) -> None:
    """Raises ConfigError, with what can be measured, for a run that makes images and does not know how probable one is."""
    model, verbs = run.config.model, run.config.model.verbs()
    if "evaluate" not in verbs and not verbs.isdisjoint(("sample", "translate", "upsample")):
        why = f"{type(model).__name__.removesuffix('Config')} has no likelihood, of which {BITS_PER_DIM} is"
        raise ConfigError("--metrics", f"{why}; measure what it makes: --metrics frechet,kid,precision,recall")


def _require_no_images(images: str) -> None:
    """Raises ConfigError or DataError for images, of which no likelihood can be measured, where a run is expected."""
    place = Path(images)
    if place.exists() and not RunDirectory(place).exists() and not any(place.glob("*/config.json")):
        if place.is_file():
            from triptych.runs.given.pictures import require_no_video

            require_no_video(place)
        why = f"missing: {images} is no run, and images are measured against others (--metrics is alone needs none)"
        raise ConfigError("--reference", why)


def configure(run: str, arguments: Sequence[str], *, data: DataConfig) -> tuple[EvaluateOptions, BitsPerDimConfig]:
    """The options, with the run's data where the flags do not say otherwise, and the settings of the metrics."""
    from triptych.cli.settings import parse
    from triptych.evaluation.bits_per_dim import BitsPerDimConfig

    return parse(
        arguments,
        prog=f"triptych evaluate {run}",
        description="Measures the run on images. The options after --device are settings of the metrics.",
        options=EvaluateOptions(data=data),
        settings=BitsPerDimConfig(),
    )


def table(evaluation: Evaluation) -> str:
    """The figures of every metric, one a line, and what they were measured on."""
    document, lines = evaluation.document, []
    names = [(metric, name) for metric, figures in evaluation.figures.items() for name in figures if name != "standard_error"]
    column = max(len(name) for _, name in names) + 4
    for metric, name in names:
        figures = evaluation.figures[metric]
        first = name == next(iter(figures))
        error = figures["standard_error"] if first else None
        label = name if first else f"  {name}"
        lines.append(f"{label:{column}}{figures[name]:.4f}" + (f" ± {error:.4f}" if error is not None else ""))
    channels, height, width = document["shape"]
    data, weights = document["data"], document["checkpoint"]
    some = f"{document['images']:,} of " if document["images"] < data["available"] else ""
    dimensions = channels * height * width
    images = f"{some}{counted(data['available'], 'image')} (split {data['split']})"
    lines.append(f"on {images} of {width}x{height}x{channels} = {dimensions} values, {document['seconds']} s")
    lines.append(f"by {weights['weights']} at {weights['images']} images seen; written to {evaluation.out}")
    return "\n".join(lines)
