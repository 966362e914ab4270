"""`triptych evaluate`: how good a trained run is, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from triptych.cli.arguments import at_checkpoint, finished, flag_value, named_as_flags, require_images, run_argument
from triptych.cli.output import show_page
from triptych.cli.progress_bar import progress_bar
from triptych.core.config import config
from triptych.core.errors import ConfigError
from triptych.data.config import DataConfig
from triptych.runs.loading import Loading

if TYPE_CHECKING:
    from triptych.evaluation.bits_per_dim import BitsPerDimConfig
    from triptych.runs import Evaluation

USAGE = """usage: triptych evaluate RUN [--metrics bits-per-dim] [--split SPLIT] [--count N] [--out FILE.json] [settings of the metrics]

Measures a trained run on images: its own held-out ones, or others (--data.path). The same command goes on after an interruption.

  bits-per-dim    bits for each 8-bit value of the images: exact for flows (--draws N averages over N dequantizations);
                  for diffusion models by the variational bound or by the probability-flow ODE

  triptych evaluate RUN --help    list all options

example: triptych evaluate runs/digits --likelihood ode --count 20"""


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
    directory = run_argument(arguments, usage="triptych evaluate RUN [--metrics bits-per-dim] [--count N]")
    require_images(flag_value("--data.path", arguments), note=" (data.path)")

    from triptych import runs

    run = runs.open_run(directory)
    options, settings = configure(directory, arguments[1:], data=run.config.data)
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
    return finished(*table(evaluation).split("\n"))


def configure(run: str, arguments: Sequence[str], *, data: DataConfig) -> tuple[EvaluateOptions, BitsPerDimConfig]:
    """The options, with the run's data where the flags do not say otherwise, and the settings of the metrics."""
    from triptych.cli.settings import parse
    from triptych.evaluation.bits_per_dim import BitsPerDimConfig
    from triptych.evaluation.catalogue import find_metric

    options, settings = parse(
        arguments,
        prog=f"triptych evaluate {run}",
        description="Measures the run on images. The options after --device are settings of the metrics.",
        options=EvaluateOptions(data=data),
        settings=BitsPerDimConfig(),
    )
    try:
        for name in options.metrics:
            find_metric(name)
    except ConfigError as error:
        raise ConfigError(f"--{error.setting}", error.reason) from None
    return options, settings


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
    of = f"{document['images']} of {data['available']}" if document["images"] < data["available"] else f"{document['images']}"
    dimensions = channels * height * width
    lines.append(f"on {of} images (split {data['split']}) of {width}x{height}x{channels} = {dimensions} values, {document['seconds']} s")
    lines.append(f"by {weights['weights']} at {weights['images']} images seen; written to {evaluation.out}")
    return "\n".join(lines)
