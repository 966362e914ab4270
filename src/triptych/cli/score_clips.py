"""`triptych evaluate` for clips: the flags, and the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from triptych.cli.arguments import measured, named_as_flags
from triptych.cli.progress_bar import progress_bar
from triptych.cli.score import spelled
from triptych.cli.settings import parse
from triptych.core.config import Config, config
from triptych.core.wording import counted
from triptych.evaluation.clip_metric import ClipMetricConfig
from triptych.evaluation.pair_metric import PairMetricConfig
from triptych.runs import Scores, open_run
from triptych.runs.clip_scoring import score_clips
from triptych.runs.given.sizes import PLAIN_SIZE, plain_size
from triptych.runs.loading import Loading
from triptych.runs.sides import is_run


@config
class ClipScoreOptions(Loading):
    """What is measured of clips, against which, to where."""

    metrics: tuple[str, ...] = ()
    "warping-error, sharpness, fvd; beside one of these also psnr, ssim, ms-ssim and lpips, frame by frame."
    reference: str | None = None
    "Of a folder of clips: the folder of the real ones, with the same names. None: of a run its held-out clips."
    true_flow: str | None = None
    "Of a folder of clips: the folder of the true flow to the frame before, CLIP/FRAME.npy as data.flow; None: it is estimated."
    image_size: str | None = None
    "Of folders: 64, or 48x64 (height, width), to which all frames are cut; None: they have one size."
    frames: int | None = None
    "Of a run: frames of each clip that it makes; None: data.length.most."
    count: int | None = None
    "Of a run: clips, spread evenly over its held-out ones; None: all."
    out: str | None = None
    "FILE.json: the figures; None: a name in RUN/evaluations, or for folders only the terminal."
    clip: ClipMetricConfig = dataclasses.field(default_factory=ClipMetricConfig)
    "Of the metrics of clips."
    pair: PairMetricConfig = dataclasses.field(default_factory=PairMetricConfig)
    "Of the metrics of frames."
    batch_size: int | None = None
    "None, and nothing else: clips are made and measured one by one."

    def validate(self) -> None:
        self.require(self.batch_size is None, "batch_size", "nothing: clips are made and measured one by one")
        self.require(self.image_size is None or plain_size(self.image_size) is not None, "image_size", PLAIN_SIZE)
        self.require(self.frames is None or self.frames >= 2, "frames", "at least 2")
        self.require(self.count is None or self.count >= 1, "count", "at least 1")
        self.require(self.out is None or Path(self.out).suffix == ".json", "out", "a name that ends with .json")


def main(clips: str, arguments: Sequence[str]) -> int:
    """Measures, and prints the figures and how they were measured."""
    options = configure(clips, arguments)
    with named_as_flags(options), progress_bar("evaluating") as progress:
        scores = score_clips(
            open_run(clips) if is_run(clips) else clips,
            options.reference,
            metrics=options.metrics,
            frames=options.frames,
            count=options.count,
            image_size=None if options.image_size is None else plain_size(options.image_size),
            flow=options.true_flow,
            settings=options.clip,
            pair=options.pair,
            out=options.out,
            progress=progress,
            **options.keywords(),
        )
    return measured(clips, *table(scores))


def configure(clips: str, arguments: Sequence[str]) -> ClipScoreOptions:
    """The options."""
    options, _ = parse(
        arguments, prog=f"triptych evaluate {clips}", description="Measures clips.", options=ClipScoreOptions(), settings=Config()
    )
    return options


def table(scores: Scores) -> list[str]:
    """The figures, one a line, and in the last line how they were measured."""
    lines, protocol = [], scores.protocol
    column = max(map(len, (*scores.figures, *scores.missing))) + 4
    for name, figure in scores.figures.items():
        lines.append(f"{name:{column}}{spelled(figure.value, figure.error)}")
        if "real" in figure.details:
            lines.append(f"{'  real':{column}}{figure.details['real']:.4f}")
    lines += [f"{name:{column}}not measured: {reason}" for name, reason in scores.missing.items()]
    height, width = protocol["size"]
    count = protocol["clips"]
    parts = [f"{counted(count, 'clip')}, {protocol['frames']} frames of {width}x{height}"]
    if "flow_of" in protocol:
        flow = "the true flow" if protocol["flow_of"] == "data" else f"flow by {protocol['flow_of']}"
        parts.append(f"{flow} where {protocol['masked_by']} agree")
    if scores.out is not None:
        parts.append(f"written to {scores.out}")
    return [*lines, "; ".join(parts)]
