"""vid2vid beside single frames, on clips whose flow is known: what flickers, and what is seen again, at equal minutes of training.

    python benchmarks/vid2vid_figures.py frames vid2vid wc-vid2vid --data DATA --runs DIR --rows FILE.jsonl --seed 0
    python benchmarks/vid2vid_figures.py --rows FILE.jsonl --out benchmarks/results/vid2vid_figures-DATE.md
    python benchmarks/vid2vid_figures.py frames vid2vid --data DATA --runs DIR --picture FILE.webp

The first form trains models and measures them, a line of FILE.jsonl for each; others may be trained at the same time. The second puts the
lines together. The third draws held-out clips that such runs make, side by side: map, each model, truth. DATA is a folder of pictures and
class maps, over which a window moves (data.kind pans; streets.py draws such), or one of clips with maps and the true flow (data.kind clips;
moving_digits.py writes such).

`vid2vid` and `wc-vid2vid` are the recipes vid2vid-maps64 and, on pans, wc-vid2vid-pans64. `frames` is the generator of vid2vid, trained
on single frames: a SPADE. Each sees as many clips (`frames`: frames) as --minutes core-minutes give, by the processor time of its steps;
those of clips see single frames for the share --alone of them. A
run that is there already is taken as it is, or goes on. Then each makes held-out clips; of pans the window goes away and comes back.

- warping error: the mean of |x_t - warp(x_(t-1), f*)|, f* the true flow, where that is known; in levels of 0 to 255.
- sharpness: the mean difference of neighbours by that of the true frames; distance: the mean of |x - y|, y the true frame, in levels.
- flow: the mean end-point error of the flow network, by that of a flow of 0.
- read: of digits in motion, the share of squares in which the LeNet of --judge reads their class.
- seen again: of pans, a pixel whose point an earlier frame shows, but none of the two before it, which are all that vid2vid is shown. Its
  difference is |x - x'|, x' the point's colour where it was shown last, in levels. Flat frames win it too: look at the sharpness.

Targets, means over seeds: vid2vid's warping error at most 0.6 of that of `frames`, its sharpness and its distance no worse than 0.9 and
1/0.9 times; its flow's error at most half; seen again, wc-vid2vid differs at most half as much as vid2vid. Exit code 1 when one is missed.

To see in half a minute of one core that all of it runs: --clips 12 --length 9 --count 4.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from digit_colours import judged
from families import speed
from moving import save_moving
from moving_digits import DIGIT, GROUND
from rows import Row, add_row, read_rows, write_report
from torch import Tensor

from triptych.core.batch import Batch, ClipLength
from triptych.core.images import grid, save_picture
from triptych.data.clips import ClipDataConfig
from triptych.data.loader import load
from triptych.data.pans import FLOW, POINTS, PanDataConfig
from triptych.gans.clip_base import warping_error
from triptych.gans.vid2vid import Vid2Vid, Vid2VidConfig
from triptych.gans.video_networks import Frame
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig
from triptych.runs import Run, open_run, train
from triptych.runs.translation_grid import palette

MODELS = ("frames", "vid2vid", "wc-vid2vid")
WARPING_AT_MOST, NO_WORSE, FLOW_AT_MOST, AGAIN_AT_MOST = 0.6, 0.9, 0.5, 0.5
TRAINED_FRAMES, CLIPS_AT_ONCE, PICTURED = 6, 4, 3
ONE_FRAME = ClipLength(first=1, most=1)
LEVELS = 127.5
"""Of 0 to 255, in a unit of [-1, 1]."""

FIGURES = {"warping": ".2f", "distance": ".1f", "sharpness": ".2f", "flow": ".2f", "again": ".1f", "read": ".0%"}


# Training ------------------------------------------------------------------------------------------------------------


def in_clips(data: str) -> bool:
    """Whether a folder has clips with flow; else it has pairs."""
    return (Path(data) / "train" / "flow").is_dir()


def configured(name: str, options: argparse.Namespace) -> RunConfig:
    """The recipe, with clips of one length; without guidance where that is not the model's."""
    config = load_recipe("wc-vid2vid-pans64")
    if name != "wc-vid2vid":
        plain = load_recipe("vid2vid-maps64").model
        assert isinstance(plain, Vid2VidConfig)
        if name == "frames":
            plain = replace(plain, discriminator=replace(plain.discriminator, temporal_scales=0))
        config = replace(config, model=plain)
    length = ONE_FRAME if name == "frames" else ClipLength(first=TRAINED_FRAMES, most=TRAINED_FRAMES)
    given = {"path": options.data, "num_classes": (options.classes,), "workers": 0}
    if in_clips(options.data):
        if name == "wc-vid2vid":
            sys.exit(f"{options.data}: no pans, whose points would be known; leave wc-vid2vid out")
        given |= {"maps": ("labels",), "image_size": 64, "flow": "flow", "flip": False}
        data: ClipDataConfig | PanDataConfig = ClipDataConfig(length=length, **given)
    else:
        assert isinstance(config.data, PanDataConfig)
        data = replace(config.data, dont_care=options.dont_care, margin=options.margin, length=length, **given)
    looks = {"validate_every": None, "validate_images": 0, "sample_every": None, "sample_count": 0, "checkpoint_every": None}
    return replace(config, data=data, train=replace(config.train, seed=options.seed, **looks))


def trained(name: str, folder: Path, options: argparse.Namespace) -> Run:
    """The run, trained for --minutes of one core first where it is not there yet; one that is not finished goes on."""
    if (folder / "config.json").is_file():
        config = open_run(folder).config
    else:
        config = configured(name, options)
        alone, clips = 0, options.clips or int(60 * options.minutes * speed(config))
        data = config.data
        if name != "frames":
            assert isinstance(data, ClipDataConfig | PanDataConfig)
            seconds = 60 * options.minutes * options.alone
            alone = options.clips or int(seconds * speed(replace(config, data=replace(data, length=ONE_FRAME))))
            clips = options.clips or int((1 - options.alone) * clips)
            config = replace(config, data=replace(data, length=replace(data.length, alone=alone)))
        config = replace(config, train=replace(config.train, total_images=alone + clips))
        config = replace(config, optim=replace(config.optim, decay_start=alone + clips // (4 if alone else 2)))
    run = train(config, folder)
    seen, whole = run.find_checkpoint(), run.config.train.total_images
    if seen < whole:
        sys.exit(f"{folder} was stopped at {seen} of {whole} clips; the same command goes on")
    return run


# Measuring -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def frames(model: Vid2Vid, clip: Batch, *, alone: bool) -> tuple[Tensor, list[Tensor | None]]:
    """The frames (b, t, c, h, w) that a model makes of clips, each from the ones before it or `alone`, and the flow of each, if any."""
    flows, past, made = list[Tensor | None](), list[Mapping[str, Tensor]](), list[Tensor]()
    memory: Mapping[str, Tensor] = {}

    def note(module: torch.nn.Module, given: object, frame: Frame) -> None:
        flows.append(frame.flow)

    noting = model.generator.register_forward_hook(note)
    for t in range(clip.images.shape[1]):
        now = {source.name: clip.inputs[source.name][:, t] for source in model.sources}
        before = torch.stack(made[-model.past_frames :], dim=1) if made and not alone else None
        made.append(model.next_frame({**now, **memory}, past, before, settings=model.translation))
        memory = model.remembered({**now, **memory}, made[-1])
        past = [*past, now][-model.past_frames :]
    noting.remove()
    return torch.stack(made, dim=1), flows


def seen_again(images: np.ndarray, points: np.ndarray, *, past: int = 2) -> np.ndarray:
    """The differences (n, c) of the pixels of a clip (t, h, w, c) that are seen again, from where their points were shown last."""
    when = np.full(points.max() + 1, -1)
    colours = np.zeros((len(when), images.shape[-1]))
    found = []
    for t, (image, shown) in enumerate(zip(images, points, strict=True)):
        again = (when[shown] >= 0) & (when[shown] < t - past)
        found.append(abs(image - colours[shown])[again])
        when[shown], colours[shown] = t, image
    return np.concatenate(found)


def read_right(images: Tensor, maps: Tensor, judge: Path) -> float:
    """Of the whole squares of digits in clips (b, t, c, h, w), the share that is read as the class that their map has."""
    squares, classes = list[np.ndarray](), list[int]()
    for image, found in zip(images.flatten(0, 1), maps.flatten(0, 1), strict=True):
        for label in found.unique().tolist():
            rows, columns = np.nonzero((found == label).numpy())
            if label and len(rows) == DIGIT**2 and np.ptp(rows) == np.ptp(columns) == DIGIT - 1:  # neither hidden nor two alike
                top, left = rows[0], columns[0]
                grey = (image[:, top : top + DIGIT, left : left + DIGIT].mean(0).numpy() + 1) * LEVELS
                squares.append(np.pad(np.clip((grey - GROUND) / (255 - GROUND), 0, 1), 2))
                classes.append(label - 1)
    return float((judged(judge, np.stack(squares)) == np.array(classes)).mean())


def gradient(images: Tensor) -> Tensor:
    """The mean difference of neighbours."""
    return images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()


def held_out(config: RunConfig, options: argparse.Namespace) -> Iterator[Batch]:
    """The held-out clips, of --length frames."""
    assert isinstance(config.data, ClipDataConfig | PanDataConfig)
    length = ClipLength(first=options.length, most=options.length)
    images = replace(config.data, length=length).open().validation
    assert images is not None
    for start in range(0, min(len(images), options.count), CLIPS_AT_ONCE):
        yield load(images, np.arange(start, min(len(images), options.count, start + CLIPS_AT_ONCE))).to("cpu")


def measured(run: Run, options: argparse.Namespace, *, alone: bool, picture: Path) -> Row:
    """The figures of a run; its frames of the first clips, above the true ones, go to `picture`."""
    model = run.load(device="cpu")
    assert isinstance(model, Vid2Vid)
    again, ends, read, whole = list[np.ndarray](), list[Tensor](), list[float](), list[list[float]]()
    for number, clip in enumerate(held_out(run.config, options)):
        made, flows = frames(model, clip, alone=alone)
        for images, points in zip((made + 1) * LEVELS, clip.inputs.get(POINTS, ()), strict=POINTS in clip.inputs):
            again.append(seen_again(images.movedim(1, -1).numpy(), points.numpy()))
        if options.judge is not None:
            read.append(read_right(made, clip.inputs["labels"], options.judge))
        warping = list[float]()
        for t in range(1, made.shape[1]):
            true = clip.inputs[FLOW][:, t]
            known = true.isfinite().all(1, keepdim=True).float()
            true = true.nan_to_num()
            warping.append(float(warping_error(made[:, t], made[:, t - 1], true, known).mean()) * LEVELS)
            flow = flows[t]
            if flow is not None:
                errors = [(field - true).square().sum(1, keepdim=True).sqrt()[known > 0].sum() for field in (flow, torch.zeros_like(flow))]
                ends.append(torch.stack(errors))
        of_frames = [statistics.fmean(warping), float((made - clip.images).abs().mean()) * LEVELS]
        whole.append([*of_frames, float(gradient(made) / gradient(clip.images))])
        if number == 0:
            shown = torch.stack((made, clip.images), dim=1).flatten(0, 2)
            save_picture(grid(_levels(shown), columns=options.length), picture)
    warping_mean, distance, sharpness = np.mean(whole, axis=0).tolist()
    row = {"warping": warping_mean, "distance": distance, "sharpness": sharpness}
    row |= {"again": float(np.concatenate(again).mean())} if again else {}
    row |= {"read": statistics.fmean(read)} if read else {}
    if ends:
        own, still = torch.stack(ends).sum(0).tolist()
        row["flow"] = own / still
    return row


def draw(options: argparse.Namespace) -> None:
    """A moving picture of the first held-out clips: maps, what each model makes of them, and the true frames."""
    columns = list[np.ndarray]()
    for name in options.models:
        run = open_run(options.runs / f"{name}-{options.seed}")
        model, clip = run.load(device="cpu"), next(held_out(run.config, options))
        assert isinstance(model, Vid2Vid)
        columns.append(_levels(frames(model, clip, alone=name == "frames")[0]))
    maps = palette(options.classes)[clip.inputs[model.sources[0].name].numpy()]
    save_moving(options.picture, list(zip(maps, *columns, _levels(clip.images), strict=True))[:PICTURED])


def _levels(images: Tensor) -> np.ndarray:
    """Of images (..., c, h, w) in [-1, 1]: uint8 (..., h, w, c)."""
    return ((images + 1) * LEVELS).clamp(0, 255).round().to(torch.uint8).movedim(-3, -1).numpy()


# The table -----------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Lines of the table, and the verdict of each target."""
    lines = ["| model | seed | clips seen | warping error | distance | sharpness | flow | seen again | read |", "|---" * 9 + "|"]
    for row in sorted(rows, key=lambda row: (MODELS.index(row["model"]), row["seed"])):
        figures = [f"{row[name]:{form}}" if name in row else "" for name, form in FIGURES.items()]
        lines.append(f"| {row['model']} | {row['seed']} | {row['clips']:,} | {' | '.join(figures)} |")

    def mean(model: str, figure: str) -> float:
        return statistics.fmean(row[figure] for row in rows if row["model"] == model)

    there, verdicts = {row["model"] for row in rows}, list[str]()
    if {"frames", "vid2vid"} <= there:
        warping, sharpness, distance = (mean("vid2vid", name) / mean("frames", name) for name in ("warping", "sharpness", "distance"))
        verdicts.append(_verdict("warping error of vid2vid by that of single frames", warping, WARPING_AT_MOST))
        verdicts.append(_verdict("sharpness of single frames by that of vid2vid", 1 / sharpness, 1 / NO_WORSE))
        verdicts.append(_verdict("distance of vid2vid by that of single frames", distance, 1 / NO_WORSE))
    if "vid2vid" in there:
        verdicts.append(_verdict("end-point error of vid2vid's flow by that of a flow of 0", mean("vid2vid", "flow"), FLOW_AT_MOST))
    if {"vid2vid", "wc-vid2vid"} <= there:
        again = mean("wc-vid2vid", "again") / mean("vid2vid", "again")
        verdicts.append(_verdict("difference of what is seen again, wc-vid2vid by vid2vid", again, AGAIN_AT_MOST))
    return lines, verdicts


def _verdict(what: str, value: float, most: float) -> str:
    return f"- {what}: {value:.2f}; target: at most {most:.2f}{'' if value <= most else ': MISSED'}."


def main() -> int:
    """0, or 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"to be trained and measured now: {', '.join(MODELS)}")
    parser.add_argument("--rows", type=Path, help="file of what was measured, a line for each model and seed")
    parser.add_argument("--picture", type=Path, help="draw clips of these models into this file, .webp, and train nothing")
    parser.add_argument("--data", help="folder of train/ and val/ with images/ and labels/; of clips also flow/")
    parser.add_argument("--runs", type=Path, help="folder of the runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--classes", type=int, default=12, help="of the maps")
    parser.add_argument("--dont-care", action="store_true", help="the maps have pixels of no class")
    parser.add_argument("--minutes", type=float, default=40.0, help="of one core, for the training of each")
    parser.add_argument("--alone", type=float, default=0.5, help="share of the minutes in which those of clips learn single frames first")
    parser.add_argument("--clips", type=int, help="train for so many clips instead, for a trial")
    parser.add_argument("--margin", type=int, default=24, help="how far the window moves")
    parser.add_argument("--judge", type=Path, help="of digits in motion: a LeNet's weights")
    parser.add_argument("--length", type=int, default=17, help="frames of held-out clips")
    parser.add_argument("--count", type=int, default=24, help="of held-out clips, at most")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_intermixed_args()
    if not set(options.models) <= set(MODELS) or (options.models and None in (options.data, options.runs)):
        parser.error(f"give models of {', '.join(MODELS)}, and --data and --runs with them")
    if options.picture is not None and options.models:
        draw(options)
        return 0
    if options.rows is None or options.picture is not None:
        parser.error("give --rows, or models and --picture")
    for name in options.models:
        folder = options.runs / f"{name}-{options.seed}"
        run = trained(name, folder, options)
        found = measured(run, options, alone=name == "frames", picture=folder / "frames.png")
        assert isinstance(run.config.data, ClipDataConfig | PanDataConfig)
        alone, seen = run.config.data.length.alone, run.config.train.total_images
        described = {"model": name, "seed": options.seed, "minutes": options.minutes, "alone": alone, "clips": seen - alone}
        add_row(options.rows, described | found)
    if options.models:
        return 0
    rows = read_rows(options.rows)
    lines, verdicts = table(rows)
    write_report("vid2vid beside single frames", rows, [*lines, "", *verdicts], out=options.out)
    return int(any("MISSED" in verdict for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
