"""`triptych evaluate` for the metrics of images: the flags, and the table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from triptych.cli.arguments import class_names, label_values, measured, named_as_flags, naming_models
from triptych.cli.progress_bar import progress_bar
from triptych.cli.settings import parse
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.engine.progress import Watch
from triptych.evaluation.feature_set import SetMetricConfig
from triptych.evaluation.pair_metric import PairMetricConfig
from triptych.runs import Scores, open_run, score
from triptych.runs.files import check_figures
from triptych.runs.given.sizes import PLAIN_SIZE, plain_size
from triptych.runs.loading import Loading
from triptych.runs.model_images import ImageRequest, settings_of
from triptych.runs.protocol import protocol_line
from triptych.runs.scoring import write_sweep
from triptych.runs.sides import is_run
from triptych.runs.single_images import SingleRequest

_SHOWN_DETAILS = ("extrapolated",)
_ONE_FOR_ALL = ("sweep", "out", "metrics", "keep-samples")


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
    split: Literal["validation", "train", "all"] | None = None
    "The run's own images as reference: those of the training, held-out ones, or both; None: train (few-shot models: validation)."
    count: int | None = None
    "Images that the run makes, or a run as --reference; None: as many as the reference has, at most 10000."
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
    guide_ema_length: float | None = None
    "Samplers: length of the power-function average of that run's weights (0.15); None: its first average."
    style: str | None = None
    "Translators: images whose look is taken; None: none, or drawn by the seed."
    style_each: bool = False
    "Translators: the answers take the images of --style in turn."
    style_count: int = 1
    "Translators: answers to each input."
    keep_samples: str | None = None
    "A folder (a PNG each) or FILE.npz that keeps the images which the run makes; None: they are not kept."
    sweep: str | None = None
    "A setting and its values (guidance-scale=1,2,4; weights=raw,ema-0.999; ema-length=0.05,0.1), an evaluation for each. None: one alone."
    out: str | None = None
    "FILE.json: the figures; None: a name in RUN/evaluations, or for sets only the terminal."
    classifier: str | None = None
    "class-accuracy, which needs it: a run of a classifier of noisy images, or a network with classes (mnist-lenet). None: none."
    label_maps: str | None = None
    "mean-iou, pixel-accuracy, which need it: folder of label maps (000000.png ...) that your segmenter made of --keep-samples. None: none."
    metric: SetMetricConfig = dataclasses.field(default_factory=SetMetricConfig)
    "Of the metrics that compare sets."
    pair: PairMetricConfig = dataclasses.field(default_factory=PairMetricConfig)
    "Of the metrics that look at one image after the other."
    batch_size: int | None = None
    "Of bits-per-dim alone. None or a number: images are made, and seen, in groups of 32, so that figures do not depend on it."

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
    if options.sweep is not None:
        return sweep(images, arguments, options)
    with progress_bar("evaluating") as progress:
        scores = measure(images, options, settings, progress)
    return measured(images, *table(scores))


def measure(images: str, options: ScoreOptions, settings: Config, progress: Watch) -> Scores:
    """The figures that the options ask for."""
    named = options.labels is not None and is_run(images)
    request = ImageRequest(
        seed=options.seed,
        settings=settings if is_run(images) else None,
        labels=label_values(options.labels, class_names(open_run(images), guide=options.guide) if named else None),
        guide=options.guide,
        guide_with=options.guide_with,
        guide_ema_length=options.guide_ema_length,
        style=options.style,
        style_each=options.style_each,
        style_count=options.style_count,
    )
    with named_as_flags(options, settings):
        return score(
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


def sweep(images: str, arguments: Sequence[str], options: ScoreOptions) -> int:
    """Measures once for each value of a setting, and prints the figures of all."""
    assert options.sweep is not None
    if options.keep_samples is not None:
        raise ConfigError("--keep-samples", f"got {options.keep_samples!r}, but a sweep makes other images for each value; leave it out")
    setting, values = swept(options.sweep)
    flags = [argument.partition("=")[0].replace("_", "-") for argument in arguments]
    if flags.count("--sweep") > 1:
        raise ConfigError("--sweep", f"got {flags.count('--sweep')} of them, but one setting is swept at a time; leave one of them out")
    if f"--{setting}" in flags or f"--no-{setting}" in flags:
        raise ConfigError("--sweep", f"got {options.sweep!r} beside --{setting}; leave one of them out")
    given = without_flags(("--sweep", "--out"), arguments)
    asked = [configure(images, [*given, f"--{setting}", value]) for value in values]  # all of them are looked at before one is measured
    place = Path(options.out) if options.out is not None else None
    if place is not None:
        check_figures(place)
    found: dict[str, Scores] = {}
    for value, (one, settings) in zip(values, asked, strict=True):
        with progress_bar(f"{setting} {value}") as progress:
            found[value] = measure(images, one, settings, progress)
    place = write_sweep(setting, found, place, device=options.device)
    return measured(images, *sweep_table(setting, found, place))


def swept(text: str) -> tuple[str, list[str]]:
    """The setting of a sweep and its values. Raises ConfigError."""
    setting, _, rest = text.partition("=")
    setting, values = setting.strip().removeprefix("--").replace("_", "-"), [value.strip() for value in rest.split(",")]
    if not setting or len(values) < 2 or not all(values) or len(set(values)) < len(values):
        raise ConfigError("--sweep", f"got {text!r}, expected a setting with two or more values (guidance-scale=1,2,4)")
    if setting in _ONE_FOR_ALL:
        raise ConfigError("--sweep", f"got {text!r}, but --{setting} is one for all values")
    if setting == "ema":  # rates of averages, which --weights calls ema-RATE
        return "weights", [f"ema-{value}" for value in values]
    return setting, values


def without_flags(flags: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The arguments without some flags and their one value."""
    kept: list[str] = []
    for position, argument in enumerate(arguments):
        after = position > 0 and arguments[position - 1] in flags
        if not after and argument.partition("=")[0] not in flags:
            kept.append(argument)
    return kept


def configure(images: str, arguments: Sequence[str], *, sampling: Config | None = None) -> tuple[ScoreOptions, Config]:
    """The options, and the settings of the run's sampler, or translations; none for a set. `sampling`: None for those of the run."""
    own = sampling or (settings_of(open_run(images)) if is_run(images) else Config())
    with naming_models(ScoreOptions(), own, of="sampler") if is_run(images) else nullcontext():
        return parse(
            arguments,
            prog=f"triptych evaluate {images}",
            description="Measures images. The options after --device are settings of the run's sampler.",
            options=ScoreOptions(),
            settings=own,
        )


def table(scores: Scores) -> list[str]:
    """The figures, one a line, and in the last line how they were measured."""
    lines = []
    details = [f"  {detail}" for figure in scores.figures.values() for detail in _SHOWN_DETAILS if detail in figure.details]
    column = max(map(len, (*scores.figures, *scores.missing, *details))) + 4
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


def sweep_table(setting: str, found: Mapping[str, Scores], place: Path | None) -> list[str]:
    """A line for each value, and in the last line how they were measured."""
    names = list(dict.fromkeys(name for scores in found.values() for name in scores.figures))
    calls = {value: str(scores.protocol.get("network_calls", "-")) for value, scores in found.items()}
    counted = calls if len({*calls.values()}) > 1 and any(value != called for value, called in calls.items()) else {}
    rows = [[setting, *(["network calls"] if counted else []), *names]]
    for value, scores in found.items():
        figures = (scores.figures.get(name) for name in names)
        told = [counted[value]] if counted else []
        rows.append([value, *told, *("-" if figure is None else spelled(figure.value, figure.error) for figure in figures)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["    ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    missing = {name: reason for scores in reversed(list(found.values())) for name, reason in scores.missing.items()}
    lines += [f"{name} not measured: {reason}" for name, reason in missing.items()]
    where = "" if place is None else f"; written to {place}"
    shared = protocol_line(*(scores.protocol for scores in found.values()), swept=setting)
    return [*lines, f"{setting} = {', '.join(found)}, else {shared}{where}"]
