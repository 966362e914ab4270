"""`triptych evaluate` for the metrics of images: the flags, and the table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from triptych.cli.arguments import finished, label_values, named_as_flags
from triptych.cli.progress_bar import progress_bar
from triptych.cli.settings import parse
from triptych.core.config import Config, config
from triptych.evaluation.feature_set import SetMetricConfig
from triptych.evaluation.pair_metric import PairMetricConfig
from triptych.runs import Scores, open_run, score
from triptych.runs.given.sizes import PLAIN_SIZE, plain_size
from triptych.runs.loading import Loading
from triptych.runs.model_images import ImageRequest, settings_of
from triptych.runs.protocol import protocol_line
from triptych.runs.sides import is_run
from triptych.runs.single_images import SingleRequest

_SHOWN_DETAILS = ("extrapolated",)


@config
class ScoreOptions(Loading):
    """What is measured, against what, in which network's features, to where."""

    reference: str | None = None
    "A folder, .zip, .tar, .npz or .npy of images, an .npz of statistics (mu, sigma), or a run; None: of a run its training images."
    metrics: tuple[str, ...] | None = None
    "fid, frechet, kid, precision, recall and others (triptych evaluate --help); None: frechet, kid, precision, recall."
    features: str | None = None
    "The network whose features are compared; None: inception where its weights are in the cache, else efficientnet-lite0."
    features_weights: str | None = None
    "The file of its weights; None: the one in the cache."
    features_resize: str | None = None
    "How images become as large as the network takes them; None: as is usual for it."
    split: Literal["train", "validation", "all"] | None = None
    "The run's own images as reference: those of the training, held-out ones, or both; None: train (few-shot models: validation)."
    count: int | None = None
    "Images that the run makes; None: as many as the reference has, at most 10000."
    image_size: str | None = None
    "Of two sets: 64, or 48x64 (height, width), to which all images are cut; None: they have one size."
    seed: int = 0
    "Seed of the images that are made."
    labels: tuple[str, ...] | None = None
    "Samplers: classes by number or name, taken in turn (3,7); None: all in turn."
    guide: str | None = None
    "Samplers: a run of a classifier of noisy images that leads them; None: no classifier."
    guide_with: str | None = None
    "Samplers: a run of a weaker model that they are led away from; None: none."
    style: str | None = None
    "Translators: images whose look is taken; None: none, or drawn by the seed."
    style_each: bool = False
    "Translators: the answers take the images of --style in turn."
    style_count: int = 1
    "Translators: answers to each input."
    keep_samples: str | None = None
    "A folder (a PNG each) or FILE.npz that keeps the images which the run makes; None: they are not kept."
    out: str | None = None
    "FILE.json: the figures; None: a name in RUN/evaluations, or for sets only the terminal."
    classifier: str | None = None
    "class-accuracy: a run of a classifier of noisy images, or a network with classes (mnist-lenet)."
    label_maps: str | None = None
    "mean-iou, pixel-accuracy: a folder of label maps of the images (000000.png ...), which your segmenter made of --keep-samples FOLDER."
    metric: SetMetricConfig = dataclasses.field(default_factory=SetMetricConfig)
    "Of the metrics that compare sets."
    pair: PairMetricConfig = dataclasses.field(default_factory=PairMetricConfig)
    "Of the metrics that look at one image after the other."
    batch_size: int | None = None
    "Of bits-per-dim alone: images are made, and seen, in groups of 32, so that figures do not depend on it."

    def validate(self) -> None:
        self.require(self.metrics is None or len(self.metrics) > 0, "metrics", "at least one")
        self.require(self.count is None or self.count >= 2, "count", "at least 2")
        self.require(self.image_size is None or plain_size(self.image_size) is not None, "image_size", PLAIN_SIZE)
        self.require(self.seed >= 0, "seed", "0 or more")
        self.require(self.style_count >= 1, "style_count", "at least 1")
        self.require(self.out is None or Path(self.out).suffix == ".json", "out", "a name that ends with .json")
        for name in ("reference", "style", "guide", "guide_with", "features_weights", "classifier", "label_maps", "keep_samples"):
            self.require(getattr(self, name) != "", name, f"a path, or no --{name.replace('_', '-')} at all")


def main(images: str, arguments: Sequence[str]) -> int:
    """Measures, and prints the figures and how they were measured."""
    options, settings = configure(images, arguments)
    request = ImageRequest(
        seed=options.seed,
        settings=settings if is_run(images) else None,
        labels=label_values(options.labels),
        guide=options.guide,
        guide_with=options.guide_with,
        style=options.style,
        style_each=options.style_each,
        style_count=options.style_count,
    )
    with named_as_flags(options, settings), progress_bar("evaluating") as progress:
        scores = score(
            open_run(images) if is_run(images) else images,
            options.reference,
            metrics=options.metrics,
            features=options.features,
            features_weights=options.features_weights,
            features_resize=options.features_resize,
            request=request,
            split=options.split,
            count=options.count,
            image_size=None if options.image_size is None else plain_size(options.image_size),
            settings=options.metric,
            single=SingleRequest(options.pair, options.classifier, options.label_maps),
            out=options.out,
            keep_samples=options.keep_samples,
            progress=progress,
            **options.keywords(),
        )
    return finished(*table(scores))


def configure(images: str, arguments: Sequence[str]) -> tuple[ScoreOptions, Config]:
    """The options, and the settings of the run's sampler, or translations; none for a set."""
    return parse(
        arguments,
        prog=f"triptych evaluate {images}",
        description="Measures images. The options after --device are settings of the run's sampler.",
        options=ScoreOptions(),
        settings=settings_of(open_run(images)) if is_run(images) else Config(),
    )


def table(scores: Scores) -> list[str]:
    """The figures, one a line, and in the last line how they were measured."""
    lines = []
    column = max(map(len, (*scores.figures, *scores.missing))) + 4
    for name, figure in scores.figures.items():
        lines.append(f"{name:{column}}{spelled(figure.value, figure.error)}")
        lines += [f"  {detail:{column - 2}}{figure.details[detail]:.4f}" for detail in _SHOWN_DETAILS if detail in figure.details]
    lines += [f"{name:{column}}not measured: {reason}" for name, reason in scores.missing.items()]
    where = "" if scores.out is None else f"; {'was already in' if scores.already else 'written to'} {scores.out}"
    return [*lines, protocol_line(scores.protocol) + where]


def spelled(value: float, error: float | None) -> str:
    """A figure with its standard error, both with two digits of that, and at least four after the point."""
    digits = 4 if not error else min(9, max(4, 1 - math.floor(math.log10(error))))
    return f"{value:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")
