"""How good diffusion models are by the number of calls of their network, after equal minutes of training.

    python benchmarks/network_calls.py digits --runs DIR --rows FILE.jsonl --minutes 10 adm-digits edm-digits flow-digits mean-flow-digits
    python benchmarks/network_calls.py cifar10 --data TRAIN --held-out TEST --classifier cifar10_resnet20.pth --runs DIR --rows FILE.jsonl \
        --minutes 50 --seed 0 adm
    python benchmarks/network_calls.py cifar10 --rows FILE.jsonl --out FILE.md

Each call trains the named models, for as many images as the minutes of one core give, counted by the processor time of the steps, and
appends a line for each of them to the rows; one model a call, for its peak memory to be its own. Without names it writes the table of all
rows so far. A run that is there already goes on, and so does what is measured of it.

digits: recipes of the built-in digits. A sample is recognised where three nearest neighbours among the real ones say its label
(digits_quality.py). Target: at least 90 % of what mean flows draw in one call.

cifar10: networks of about 8 million parameters on photos of 32x32 pixels, without labels: ADM, EDM, EDM2, and flow matching on the U-Net
and on a transformer, all with the same batch, rate of averaging and mirroring. Frechet distances against the held-out photos, in two
feature spaces, and bits per dimension by the ODE. Target: at 10 calls the best of the new ones is nearer than ADM in both spaces, with more
than twice the deviation over the seeds between them.

UniPC draws from all of them, a call a step, but from mean flows, which have steps of their own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from digits_quality import Neighbours, reduced
from families import speed
from rows import Row, add_row, read_rows, write_report

from triptych.core.images import grid, save_picture
from triptych.data.config import DataConfig
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.dit import DiTConfig
from triptych.diffusion.edm import EDMConfig
from triptych.diffusion.edm2 import EDM2Config
from triptych.diffusion.edm2_network import EDM2NetworkConfig
from triptych.diffusion.edm_augmentation import NonLeakingConfig
from triptych.diffusion.edm_networks import SongUNetConfig
from triptych.diffusion.flow_matching import FlowMatchingConfig
from triptych.diffusion.mean_flow import MeanFlowConfig
from triptych.diffusion.unet import UNetConfig
from triptych.engine.config import LogConfig
from triptych.engine.metric_log import read_metrics
from triptych.evaluation.bits_per_dim import BitsPerDimConfig
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig
from triptych.runs import Run, open_run, score, train
from triptych.runs.model_images import ImageRequest

DIGIT_CALLS, PHOTO_CALLS, DECIDING = (1, 2, 5, 10, 50), (5, 10, 20, 50), 10
SAMPLES, PICTURED, RECOGNISED_AT_LEAST, BASELINE, SEEDS = 500, 50, 0.90, "adm", 3
LIKELIHOOD_IMAGES, LIKELIHOOD_STEPS = 32, 20


# The models ----------------------------------------------------------------------------------------------------------


def photo_models() -> dict[str, RunConfig]:
    """The models of 32x32 photos, by name, without their data."""
    unet = UNetConfig(num_channels=32, num_res_blocks=1, channel_mult=(1, 2, 4, 7), attention_resolutions=(8,), num_head_channels=32)
    song = SongUNetConfig(num_channels=32, channel_mult=(1, 2, 4, 6), num_blocks=1, attention_resolutions=(8,), num_heads=1, dropout=0.0)
    magnitudes = EDM2NetworkConfig(
        num_channels=32, channel_mult=(1, 2, 4, 6), num_blocks=1, attention_resolutions=(8,), num_head_channels=32
    )
    digits = {name: load_recipe(f"{name}-digits") for name in ("adm", "edm", "edm2", "flow")}
    published, flow = load_recipe("adm-cifar10").model, digits["flow"].model
    assert isinstance(published, ADMConfig) and isinstance(flow, FlowMatchingConfig)
    plain: dict[str, Any] = {"class_conditional": False}
    without: dict[str, Any] = {**plain, "label_dropout": 0.0, "sampling": replace(flow.sampling, guidance_scale=1.0)}
    models = {
        "adm": replace(published, network=unet, class_conditional=False),
        "edm": replace(_of(EDMConfig, digits["edm"]), network=song, augmentation=NonLeakingConfig(p=0.0), **plain),
        "edm2": replace(_of(EDM2Config, digits["edm2"]), network=magnitudes, **plain),
        "flow-unet": replace(flow, network=unet, **without),
        "flow-dit": replace(flow, network=DiTConfig(patch=4, width=256, depth=7, heads=4), **without),
    }
    return {name: replace(digits[name.partition("-")[0]], model=model) for name, model in models.items()}


def _of(kind: type[Any], recipe: RunConfig) -> Any:
    assert isinstance(recipe.model, kind)
    return recipe.model


def without_looks(config: RunConfig, *, batch_size: int, seed: int) -> RunConfig:
    """The same with nothing drawn or validated on the way, and one average of all models alike."""
    steps = {"batch_size": batch_size, "seed": seed, "ema_rates": (0.999,), "ema_lengths": (), "snapshot_every": None}
    looks = {"sample_count": 0, "validate_images": 0, "evaluate_every": None, "best_by": "validation", "checkpoint_every": 20_000}
    return replace(config, train=replace(config.train, **steps, **looks), log=LogConfig(every=3_200))


def trained(config: RunConfig, folder: Path, *, minutes: float) -> Run:
    """The run in the folder, trained for so many core-minutes first; one that is not finished goes on."""
    if (folder / "config.json").is_file():
        return train(open_run(folder).config, folder)
    images = int(60 * minutes * speed(config))
    return train(replace(config, train=replace(config.train, total_images=images)), folder)


# What is measured ----------------------------------------------------------------------------------------------------


def settings_of(run: Run, calls: int) -> Any:
    """The sampler's settings that call the network so many times for an image, unguided."""
    model: Any = run.config.model
    if isinstance(model, MeanFlowConfig):
        return replace(model.sampling, steps=calls)
    clipped = {"clip_guided": False} if isinstance(model, ADMConfig) else {}
    return replace(model.sampling, sampler="unipc", steps=calls, guidance_scale=1.0, **clipped)


def measured(run: Run, calls: Sequence[int], figures: Callable[[Run, int, Path], Mapping[str, float]], folder: Path) -> dict[str, Any]:
    """The figures of the run's samples by number of calls, each measured once."""
    found = {}
    for number in calls:
        place = folder / f"samples-{number}.json"
        if not place.is_file():
            place.write_text(json.dumps(dict(figures(run, number, folder / f"samples-{number}.npz"))))
        found[str(number)] = json.loads(place.read_text())
    return found


def digit_figures(run: Run, calls: int, kept: Path) -> dict[str, float]:
    """The share recognised as their label, and the distance to the training images."""
    request = ImageRequest(settings=settings_of(run, calls))
    scores = score(run.directory, metrics=("frechet",), count=SAMPLES, request=request, keep_samples=kept)
    with np.load(kept) as drawn:
        images, labels = drawn["arr_0"], drawn["arr_1"] if "arr_1" in drawn else np.resize(np.arange(10), len(drawn["arr_0"]))
    with np.load(Path(str(resources.files("triptych.data"))) / "assets" / "digits.npz") as digits:
        real, truth = digits["images"].reshape(-1, 64).astype(np.float64), digits["labels"].astype(np.int64)
    right = Neighbours(real, truth).predict(reduced(images)) == labels
    (distance,) = (figure.value for figure in scores.figures.values())
    return {"recognised": float(right.mean()), "distance": distance}


def photo_figures(held_out: str, classifier: str) -> Callable[[Run, int, Path], dict[str, float]]:
    """What measures a run's samples against the held-out photos."""

    def figures(run: Run, calls: int, kept: Path) -> dict[str, float]:
        run.sample(SAMPLES, seed=0, settings=settings_of(run, calls), out=kept, batch_size=50)
        spaces: dict[str, dict[str, Any]] = {
            "efficientnet-lite0": {},
            "cifar10-resnet20": {"features_weights": classifier},
        }
        found = {}
        for space, weights in spaces.items():
            scores = score(kept, held_out, metrics=("frechet",), features=space, image_size=32, **weights)
            (found[space],) = (figure.value for figure in scores.figures.values())
        return found

    return figures


def bits(run: Run, held_out: str) -> float:
    """Bits per dimension of some held-out photos."""
    settings = BitsPerDimConfig(likelihood="ode", steps=LIKELIHOOD_STEPS)
    data = replace(run.config.data, path=held_out) if isinstance(run.config.data, DataConfig) else None
    found = run.evaluate(settings=settings, data=data, split="train", count=LIKELIHOOD_IMAGES)
    value = found.figures["bits-per-dim"]["bits_per_dim"]
    assert value is not None
    return value


def described(run: Run) -> Row:
    """What the training of a run took."""
    lines = [line for line in read_metrics(run.directory / "metrics.jsonl") if "images_per_second" in line]
    parameters = sum(weight.numel() for weight in run.load(device="cpu").parameters() if weight.requires_grad)
    return {"images": run.find_checkpoint(), "parameters": parameters, "memory": max(line["memory_bytes"] for line in lines)}


# The tables ----------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float], digits: int = 3) -> str:
    """The mean, and with several values their deviation."""
    mean = f"{statistics.fmean(values):.{digits}g}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2g}"


def digits_table(rows: Sequence[Row]) -> tuple[list[str], str]:
    """The table of digits, and the verdict."""
    calls = list(map(str, DIGIT_CALLS))
    lines = [
        f"| recipe | core-minutes | images seen | {' | '.join(f'{n} call' + 's' * (n != '1') for n in calls)} |",
        f"|---|---|---|{'---|' * len(calls)}",
    ]
    for row in rows:
        cells = [
            f"{100 * row['calls'][n]['recognised']:.1f} %, {row['calls'][n]['distance']:.2f}" if n in row["calls"] else "" for n in calls
        ]
        lines.append(f"| `{row['model']}` | {row['minutes']:g} | {row['images']:,} | {' | '.join(cells)} |")
    one = [row["calls"]["1"]["recognised"] for row in rows if row["model"] == "mean-flow-digits"]
    verdict = f"Target: at least {RECOGNISED_AT_LEAST:.0%} of what mean flows draw in one call are recognised."
    return lines, f"{verdict} {'Reached' if one and min(one) >= RECOGNISED_AT_LEAST else 'MISSED'}."


def photos_table(rows: Sequence[Row]) -> tuple[list[str], str]:
    """The table of photos, and the verdict."""
    calls, spaces = list(map(str, PHOTO_CALLS)), list(rows[0]["calls"][str(DECIDING)])
    head = ["model", "seeds", "parameters, M", "images seen", "images/s", "memory, GB", "bits/dim"]
    head += [f"{space}, {n} calls" for space in spaces for n in calls]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    by_model: dict[str, list[Row]] = {}
    for row in rows:
        by_model.setdefault(row["model"], []).append(row)
    for name, own in by_model.items():
        cells = [name, ", ".join(str(row["seed"]) for row in own), f"{own[0]['parameters'] / 1e6:.2f}"]
        cells += [spread([row["images"] for row in own], 5), spread([row["images"] / (60 * row["minutes"]) for row in own])]
        cells += [spread([row["memory"] / 1e9 for row in own]), spread([row["bits"] for row in own])]
        cells += [spread([row["calls"][n][space] for row in own]) for space in spaces for n in calls]
        lines.append(f"| {' | '.join(cells)} |")
    ahead = f"nearer than {BASELINE} in both spaces, by more than twice the deviation over {SEEDS} seeds"
    wanted = f"Target: at {DECIDING} calls a new model {ahead}."
    complete = [name for name, own in by_model.items() if len(own) >= SEEDS]
    missing = [name for name in by_model if name not in complete]
    also = f" Seeds are missing of {', '.join(missing)}." if missing else ""
    if BASELINE not in complete or len(complete) < 2:
        return lines, f"{wanted} NOT SHOWN.{also}"
    better = [name for name in complete if name != BASELINE and all(_ahead(by_model, name, space) for space in spaces)]
    return lines, f"{wanted} {'Reached by ' + ', '.join(better) if better else 'MISSED'}.{also}"


def _ahead(by_model: Mapping[str, Sequence[Row]], name: str, space: str) -> bool:
    own, other = ([row["calls"][str(DECIDING)][space] for row in by_model[model]] for model in (name, BASELINE))
    deviation = (statistics.variance(own) + statistics.variance(other)) ** 0.5
    return statistics.fmean(other) - statistics.fmean(own) > 2 * deviation


def main() -> int:
    """0, or 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("digits", "cifar10"))
    parser.add_argument("models", nargs="*", help="to be trained and measured now")
    parser.add_argument("--rows", type=Path, required=True, help="file of what was measured, a line for each model and seed")
    parser.add_argument("--runs", type=Path, help="folder of the runs")
    parser.add_argument("--minutes", type=float, default=50.0, help="of one core, for the training of each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", help="cifar10: folder, archive or array of the training photos")
    parser.add_argument("--held-out", help="cifar10: folder, archive or array of others")
    parser.add_argument("--classifier", help="cifar10: file of weights of the feature space cifar10-resnet20")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_intermixed_args()
    for name in options.models:
        folder = options.runs / f"{name}-{options.seed}"
        if options.kind == "digits":
            recipe = load_recipe(name)
            run = trained(without_looks(recipe, batch_size=64, seed=options.seed), folder, minutes=options.minutes)
            calls = (1, 2, 5) if isinstance(recipe.model, MeanFlowConfig) else DIGIT_CALLS[2:]
            found: Row = {"calls": measured(run, calls, digit_figures, folder)}
        else:
            data = DataConfig(path=options.data, image_size=32, labels="none", workers=0)
            config = replace(photo_models()[name], data=data)
            run = trained(without_looks(config, batch_size=32, seed=options.seed), folder, minutes=options.minutes)
            found = {"calls": measured(run, PHOTO_CALLS, photo_figures(options.held_out, options.classifier), folder)}
            found["bits"] = bits(run, options.held_out)
        for kept in sorted(folder.glob("samples-*.npz")):
            with np.load(kept) as drawn:
                save_picture(grid(drawn["arr_0"][:PICTURED], columns=10), kept.with_suffix(".png"))
        add_row(options.rows, {"model": name, "seed": options.seed, "minutes": options.minutes, **described(run), **found})
    if options.models:
        return 0
    rows = read_rows(options.rows)
    lines, verdict = (digits_table if options.kind == "digits" else photos_table)(rows)
    title = {"digits": "Digits by network calls", "cifar10": "Photos of 32x32 by network calls"}[options.kind]
    write_report(title, rows, [*lines, "", verdict], out=options.out)
    return int("Reached" not in verdict)


if __name__ == "__main__":
    sys.exit(main())
