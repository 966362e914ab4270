"""From images and hours to the settings of a run: which recipe, size, batch, length, averages and augmentation, and why each."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from triptych.core.errors import ConfigError, DataError, RunError
from triptych.core.memory import in_bytes
from triptych.core.wording import counted
from triptych.data.source import FILES
from triptych.engine.config import TrainConfig
from triptych.engine.distributed import open_world
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig
from triptych.runs.data_look import Look
from triptych.runs.plan_figures import Plan, rounded
from triptych.runs.plan_probe import Task
from triptych.runs.planning import at_once, measured_apart, plan

Family = Literal["flow", "gan", "diffusion"]
FAMILIES: tuple[Family, ...] = ("flow", "gan", "diffusion")
FEW, SOME = 1_000, 10_000
"""Images below which a model learns them by heart, and below which augmentation helps."""
_MOST_CHECKPOINTS, _MOST_EVALUATIONS = 10, 4
_LEAST_STEPS, _LEAST_BATCH = 1_000, 8
_AROUND = 0.1
"""The share of the hours that grids, validations, checkpoints and evaluations may take, each."""
_MOST_GRIDS = 10
_SCREENED = 3.0  # seconds of iterations, where all that is asked is whether a recipe is too slow
_MEASURED = 10.0  # seconds of iterations, of the recipe that is chosen
_SCREENED_IMAGES = {True: 4, False: 32}
"""Images of a batch there, on a CPU and on a GPU, which a few would not fill: multiples of the groups of StyleGAN2's discriminators."""
_SCREENED_AT_MOST = 90.0  # seconds in all, after which the recipe counts as too slow
_SHORT = 3600.0
"""A shorter run is not evaluated on the way: the networks that look at the samples would take too much of it."""

Settings = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A recipe that may be taken, and the images seen below which it is not worth it."""

    recipe: str
    size: int | None
    "Height and width; None: that of the images."
    least_images: int
    what: str
    on_cpu: bool = True
    "Whether it may be tried on a CPU: a very large one would only take its memory and minutes."


_DIFFUSION = (
    Candidate("edm-photos64", 64, 1_000_000, "EDM with 62M parameters"),
    Candidate("flow-small", 64, 300_000, "flow matching with a small U-Net"),
    Candidate("flow-small", 32, 0, "flow matching with a small U-Net"),
)
_GANS = (
    Candidate("stylegan2-auto128", 128, 4_000_000, "StyleGAN2 with ADA, 23M parameters"),
    Candidate("stylegan2-photos64", 64, 500_000, "StyleGAN2 with ADA, 22M parameters"),
    Candidate("stylegan2-digits", 64, 200_000, "StyleGAN2 with ADA, small networks"),
    Candidate("stylegan2-digits", 32, 0, "StyleGAN2 with ADA, small networks"),
)
_FLOWS = (
    Candidate("glow-imagenet64", 64, 3_000_000, "Glow with 112M parameters"),
    Candidate("glow-cifar10", 32, 1_500_000, "Glow with 45M parameters"),
    Candidate("glow-digits", 32, 0, "a small Glow"),
)
PHOTOS: dict[Family, tuple[Candidate, ...]] = {"diffusion": _DIFFUSION, "gan": _GANS, "flow": _FLOWS}
"""By family, from the largest to one that is always taken."""
SMALL: dict[Family, tuple[Candidate, ...]] = {
    "diffusion": (Candidate("adm-mnist", None, 600_000, "ADM for MNIST"), Candidate("edm-digits", None, 0, "EDM with a small network")),
    "gan": (Candidate("stylegan2-mnist", 32, 0, "StyleGAN2 with ADA, small networks"),),
    "flow": (Candidate("glow-mnist", None, 100_000, "Glow for MNIST"), Candidate("glow-digits", 16, 0, "a small Glow")),
}
"""Of grey images with sides of 32 at most."""
PAIRS = (
    Candidate("spade-coco256", 256, 5_000_000, "SPADE as published, 415M parameters, without a perceptual network", on_cpu=False),
    Candidate("spade-camvid", 128, 100_000, "SPADE with small networks"),
    Candidate("spade-camvid", 64, 0, "SPADE with small networks"),
)
TWO_PHOTOS = (Candidate("pix2pixhd-camvid", 64, 0, "pix2pixHD with small networks"),)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The settings of a run, and why each."""

    recipe: str
    settings: Settings
    "By section, what is laid over the recipe."
    reasons: tuple[tuple[str, str], ...]
    "What was chosen, and why, a line each."
    plan: Plan
    warnings: tuple[str, ...] = ()

    @property
    def config(self) -> RunConfig:
        """The configuration of the run."""
        return load_recipe(self.recipe).updated(self.settings)


def choose(
    seen: Look,
    *,
    hours: float,
    directory: str | Path,
    family: Family | None = None,
    device: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Choice:
    """What to train on these images in so many hours on this machine, in a new run `directory`. `say` is told what is measured.

    An image that cannot be read, although its header can, is met in the measurements; then such images are passed over. Raises ConfigError
    for a family that cannot learn them, DataError where they cannot be used, CheckpointError where no run can be begun, RunError where no
    recipe can be measured.
    """
    try:
        return _chosen(seen, hours, Path(directory), family, device, say)
    except DataError as error:
        if seen.bad is not None:
            raise
        say(f"{error}; passing over such images")
        bad = str(error).partition(", or set ")[0]
        return _chosen(dataclasses.replace(seen, bad=bad), hours, Path(directory), family, device, say)


def _chosen(seen: Look, hours: float, directory: Path, family: Family | None, device: str | None, say: Callable[[str], None]) -> Choice:
    on_cpu = open_world(device).device.type == "cpu"
    reasons = [("data", seen.described())]
    if seen.bad is not None:
        reasons.append(("bad images", f"passed over (data.on_error skip), as {seen.bad}"))
    chosen_family = _family(seen, family, reasons)
    candidates = _candidates(seen, chosen_family, on_cpu=on_cpu)
    candidate, settings, rate = _affordable(seen, candidates, hours * 3600, on_cpu=on_cpu, device=device, reasons=reasons, say=say)
    settings = merged(settings, _batch(_config(candidate.recipe, settings), rate * hours * 3600, reasons))
    settings = merged(settings, _evaluations(_config(candidate.recipe, settings), hours * 3600, images=seen.count, on_cpu=on_cpu))
    say(f"measuring {candidate.recipe} as it was chosen")
    found = plan(_config(candidate.recipe, settings), directory=directory, device=device, seconds=_MEASURED, say=say)
    settings = merged(settings, _fitting(_config(candidate.recipe, settings), found, reasons))
    settings = merged(settings, _length(_config(candidate.recipe, settings), found, hours * 3600, reasons=reasons))
    config = _config(candidate.recipe, settings)
    of_all = dataclasses.replace(found, at_once=at_once(config), total_images=config.train.total_images)
    return Choice(candidate.recipe, settings, tuple(reasons), of_all, (*few(seen, candidate.recipe), *of_all.warnings()))


def merged(settings: Settings, changes: Settings) -> Settings:
    """The settings with the changes laid over them, section by section."""
    laid = dict(settings)
    for name, value in changes.items():
        laid[name] = merged(laid[name], value) if isinstance(value, dict) and isinstance(laid.get(name), dict) else value
    return laid


def _config(recipe: str, settings: Settings) -> RunConfig:
    return load_recipe(recipe).updated(settings)


def _family(seen: Look, wanted: Family | None, reasons: list[tuple[str, str]]) -> Family:
    if seen.pairs is not None:
        if wanted not in (None, "gan"):
            raise ConfigError(
                "--family",
                f"got {wanted!r}, but pairs are learned by GANs alone; leave it out, or say --pairs False",
            )
        reasons.append(("family", "gan: images are to be made from their other halves"))
        return "gan"
    if wanted is not None:
        reasons.append(("family", f"{wanted}: as asked for"))
        return wanted
    if seen.count < FEW:
        reasons.append(("family", f"gan: with fewer than {FEW:,} images a GAN with adaptive augmentation copies least"))
        return "gan"
    reasons.append(("family", "diffusion: it draws all kinds of the images, and its training ends well"))
    return "diffusion"


def _candidates(seen: Look, family: Family, *, on_cpu: bool) -> Sequence[Candidate]:
    if seen.pairs is not None:
        return [one for one in (PAIRS if seen.pairs.maps else TWO_PHOTOS) if one.on_cpu or not on_cpu]
    small = seen.channels == 1 and seen.sides[2] <= 32
    table = (SMALL if small else PHOTOS)[family]
    # What is larger than most images would only enlarge them; the last one is always there.
    usual = seen.usual or seen.sides[0]
    return [one for one in table[:-1] if one.size is None or one.size <= usual] + [table[-1]]


def _affordable(
    seen: Look,
    candidates: Sequence[Candidate],
    seconds: float,
    *,
    on_cpu: bool,
    device: str | None,
    reasons: list[tuple[str, str]],
    say: Callable[[str], None],
) -> tuple[Candidate, Settings, float]:
    """The first candidate of which the hours see enough images, else the last one; the settings of its data; about its images a second."""
    measured = list[bool]()
    for candidate in candidates:
        said: list[tuple[str, str]] = []
        settings = settings_for(seen, candidate, said)
        config = _config(candidate.recipe, settings)
        say(f"looking how fast {candidate.recipe} is at {candidate.size or settings['data']['image_size']} pixels")
        found = _rate(config, min(config.train.batch_size, _SCREENED_IMAGES[on_cpu]), device, limit=min(_SCREENED_AT_MOST, seconds / 4))
        rate = 0.0 if isinstance(found, str) else found
        images = rate * seconds
        if images >= candidate.least_images and not isinstance(found, str):
            break
        measured.append(not isinstance(found, str))
        seeing = f"it would see {images:,.0f} images in the time, and needs {candidate.least_images:,}"
        say(f"it was not measured: {found}" if isinstance(found, str) else seeing)
    speed = f"about {rounded(rate)} images/s here, {images:,.0f} in the time" if rate else "not measured"
    larger = measured[: candidates.index(candidate)]
    passed = ", in which larger ones would see too few" if all(larger) else "; larger ones would see too few or could not be measured"
    reasons.append(("recipe", f"{candidate.recipe} ({candidate.what}): {speed}{passed if larger else ''}"))
    _say_size(seen, settings, reasons, tried=bool(larger))
    reasons += said
    return candidate, settings, rate


def _rate(config: RunConfig, size: int, device: str | None, *, limit: float) -> float | str:
    """About how many images a second are trained on, in so small a batch; or why that is not known: the time, or the memory."""
    try:
        found = measured_apart(Task(config.to_dict(), device, (size,), None, _SCREENED), limit_seconds=limit)
    except RunError as error:
        return str(error).partition(":")[0]  # what it advises is taken already
    return found["drawn"] * size / found["seconds"][-1]


def settings_for(seen: Look, candidate: Candidate, reasons: list[tuple[str, str]]) -> Settings:
    """What is laid over the candidate's recipe for these images, before batch and length."""
    settings = merged(data_settings(seen, candidate), _labels(seen, reasons))
    return merged(settings, augmentation(seen, candidate.recipe, reasons))


def data_settings(seen: Look, candidate: Candidate) -> Settings:
    """The section `data` for these images in the candidate's size."""
    smallest, _, largest = seen.sides
    size = candidate.size or max(16, (seen.usual or smallest) // 4 * 4)
    data: Settings = {"path": str(seen.path.absolute()), "source": "auto", "image_size": size}
    data |= {} if seen.bad is None else {"on_error": "skip"}
    padded = smallest == largest and size <= 32 and size - smallest in (2, 4, 6, 8)  # digits and the like keep their pixels
    if seen.source in (*FILES, "pairs") or (smallest < size and not padded):  # of many files a few were looked at
        data["enlarge"] = True
    if seen.pairs is None:
        decode = "reduced" if max(seen.shape) > 2 * size else "exact"
        data |= {"pad": (size - smallest) // 2 if padded else 0}  # whatever border the recipe has for its own images
        settings: Settings = {"data": data | {"channels": seen.channels, "flip": seen.channels == 3, "decode": decode}}
        if candidate.recipe == "edm-digits":  # by the resolutions that the network has at that size
            settings["model"] = {"network": {"attention_resolutions": [size // 4]}}
        if candidate.recipe == "adm-mnist":
            settings["model"] = {"network": {"channel_mult": [1, 2, 2], "attention_resolutions": [size // 2, size // 4]}}
        return settings
    pairs = seen.pairs
    data |= {"width": _width(seen, size), "target": pairs.target, "maps": list(pairs.maps), "num_classes": list(pairs.num_classes)}
    data |= {"dont_care": pairs.dont_care, "instances": None, "conditions": list(pairs.conditions)}
    # The published recipe's weights of VGG19 are not everyone's: a plain difference takes their place.
    published = candidate.recipe == "spade-coco256"
    return {"data": data} | ({"model": {"perceptual_weight": 0.0, "l1_weight": 5.0}} if published else {})


def _width(seen: Look, height: int) -> int:
    """The width of pairs of that height in the shape of the images: a multiple of 32, from the height to twice that."""
    width, own = seen.shape
    return max(height, 32 * round(min(2.0, width / own) * height / 32))


def _say_size(seen: Look, settings: Settings, reasons: list[tuple[str, str]], *, tried: bool) -> None:
    """`tried`: whether larger recipes were."""
    data = settings["data"]
    own = data["image_size"] - 2 * data.get("pad", 0)
    limit = "as large as the recipe learns in the time" if tried else "the largest there is for such images"
    why = "the images' own" if seen.sides[0] == seen.sides[2] == own else limit
    bordered = f" and a border of {data['pad']} pixels" if data.get("pad") else ""
    enlarged = ", to which smaller images are enlarged" if seen.sides[0] < own else ""
    reasons.append(("size", f"{data.get('width', data['image_size'])}x{data['image_size']}: {why}{bordered}{enlarged}"))


def _labels(seen: Look, reasons: list[tuple[str, str]]) -> Settings:
    """By class where there are classes: all candidates can, but those for pairs, which have none."""
    if seen.pairs is not None:
        return {}
    learned = seen.classes is not None and 2 <= seen.classes <= max(2, seen.count // 20)
    if learned:
        reasons.append(("labels", f"learned: {seen.classes} classes, so samples can be asked for by class"))
    elif seen.classes:
        many = f"classes are too many for {seen.count:,} images"
        reasons.append(("labels", f"not learned: {counted(seen.classes, 'class is all that there is', many)}"))
    else:
        reasons.append(("labels", "none: the images have no classes"))
    return {"data": {"labels": "auto" if learned else "none"}, "model": {"class_conditional": learned}}


def augmentation(seen: Look, recipe: str, reasons: list[tuple[str, str]]) -> Settings:
    """What keeps so many images from being learned by heart."""
    count = counted(seen.count, "image")
    if seen.pairs is not None:
        reasons.append(("augmentation", "random cut-outs and mirroring: both halves of a pair alike"))
        return {}
    mirrored = "mirrored at random, " if seen.channels == 3 else "not mirrored (grey images may be characters), "
    if recipe.startswith("stylegan2"):
        reasons.append(("augmentation", f"{mirrored}ADA: it augments as much as the discriminator's overfitting asks for ({count})"))
        return {}
    if recipe.startswith("edm") and seen.channels == 3 and seen.count < 100_000:
        p, dropout = (0.3, 0.25) if seen.count < FEW else (0.15, 0.15) if seen.count < SOME else (0.12, 0.1)
        why = f"non-leaking, p {p}, and dropout {dropout}, for {count}; its changes mirror as well, so data.flip is off"
        reasons.append(("augmentation", why))
        # Mirrored top to bottom, or turned round, an image of a photo is none.
        return {"model": {"augmentation": {"p": p, "y_flip": 0.0}, "network": {"dropout": dropout}}, "data": {"flip": False}}
    enough = FEW if recipe == "flow-small" else SOME  # so small a network does not learn some thousand by heart, and would draw moved ones
    if seen.count < enough and seen.channels == 3:
        reasons.append(("augmentation", f"{mirrored}moved by up to a tenth: {counted(seen.count, 'image is', 'images are')} few"))
        return {"data": {"augment": "shift"}}
    why = f"{count} are enough" if seen.count >= enough else "characters that are moved or turned may be others"
    reasons.append(("augmentation", f"{mirrored}no more: {why}"))
    return {"data": {"augment": "none"}} | ({"model": {"augmentation": {"p": 0.0}}} if recipe.startswith("edm") else {})


def few(seen: Look, recipe: str) -> tuple[str, ...]:
    """What to expect of fewer than a thousand images; nothing of more."""
    if seen.count >= FEW:
        return ()
    if seen.pairs is not None:
        return (
            f"{counted(seen.count, 'pair is', 'pairs are')} fewer than {FEW:,}: expect the details of these in whatever it makes; better, "
            f"begin with a run of {recipe} on more pairs of the kind: --init-from RUN",
        )
    remedy = "ADA is on" if recipe.startswith("stylegan2") else "Augmentation is on" if seen.channels == 3 else "A shorter run makes fewer"
    return (
        f"{counted(seen.count, 'image is', 'images are')} fewer than {FEW:,}: expect copies among the samples (triptych evaluate RUN "
        f"--metrics copies counts them). {remedy}; better still, begin with a run of {recipe} on more images of the kind: --init-from RUN",
    )


def _batch(config: RunConfig, images: float, reasons: list[tuple[str, str]]) -> Settings:
    """The batch that gives a run of so many images enough steps: the recipe's, or one that is smaller by halvings."""
    batch = chosen = config.train.batch_size
    while chosen // 2 >= _LEAST_BATCH and images / chosen < _LEAST_STEPS:
        chosen //= 2
    why = "the recipe's" if chosen == batch else f"the recipe's {batch} would take fewer than {_LEAST_STEPS:,} steps in the time"
    reasons.append(("batch", f"{chosen}: {why}"))
    return {"train": {"batch_size": chosen}}


def _fitting(config: RunConfig, found: Plan, reasons: list[tuple[str, str]]) -> Settings:
    """The microbatch that fits into memory, or the batch of a model that cannot cut it; none where all fits.

    Raises RunError where not even one image does.
    """
    largest = found.memory.largest
    if largest is None or largest >= found.at_once:
        return {}
    if not largest:
        raise RunError(f"not even one image fits into the {in_bytes(found.memory.free_bytes or 0)} of memory that are free: free some")
    if found.memory.divisible:
        reasons.append(("microbatch", f"{largest}: more would not fit into the memory that is free"))
        return {"train": {"microbatch": largest}}
    reasons.append(("batch", f"{largest}: more would not fit into the memory that is free, and the model cannot cut it"))
    return {"train": {"batch_size": largest}}


def _length(config: RunConfig, found: Plan, seconds: float, *, reasons: list[tuple[str, str]]) -> Settings:
    """How many images the hours see, how often something is drawn and measured, and which average goes with that many steps."""
    train = config.train
    counts, took = around(config, found, seconds)
    saves, saving = checkpoints(found, seconds)
    evaluations, evaluating = (0, 0.0) if train.evaluate_every is None else evaluated(found, seconds)
    left = max(0.0, seconds - found.begin_seconds - took - saving - evaluating)
    step = found.images_per_step // found.batch * train.batch_size
    steps = max(1, math.floor(left * found.rate / step))
    total = steps * step
    every = max(1, math.ceil(steps / counts["grids"])) * step
    changes: Settings = {"total_images": total, "checkpoint_every": max(1, math.ceil(steps / saves)) * step, "sample_every": every}
    changes |= {"validate_every": every, "sample_count": counts["samples"], "validate_images": counts["validated"]}
    epochs = total / found.training_images
    seen = f"{total:,} images seen ({counted(rounded(epochs), 'epoch')}, {counted(steps, 'step')})"
    reasons.append(("length", f"{seen}: {rounded(found.rate)} images/s for the time"))
    times = "once" if counts["grids"] == 1 else f"{counts['grids']} times"
    drawn = f"{counted(counts['samples'], 'sample')} {times}" if counts["samples"] else "no grids"
    reasons.append(("grids", f"{drawn}: about {counted(round(took), 'second')} of the time with the validations"))
    changes |= _average(config, steps, reasons)
    if train.evaluate_every is not None:
        changes |= _evaluated(train, evaluations, evaluating, math.ceil(steps / max(1, evaluations)) * step, reasons)
    optim: Settings = {}
    if config.optim.warmup(total) > total / 10:
        optim["warmup_share"] = 0.1
        reasons.append(("learning rate", f"rises over {total // 10:,} images, a tenth of the run"))
    if config.optim.schedule == "linear":
        optim["decay_start"] = total // 2
        reasons.append(("learning rate", f"falls along a line from {total // 2:,} images on, half of the run"))
    return {"train": changes, "log": {"every": max(1, steps // 100) * step}} | ({"optim": optim} if optim else {})


def around(config: RunConfig, found: Plan, seconds: float) -> tuple[dict[str, int], float]:
    """How many grids of how many samples, and validations of how many images, take a small share of the time; and the seconds of all."""
    share, train = _AROUND * seconds, config.train
    grids = max(1, min(_MOST_GRIDS, int(share / max(found.grid_seconds, 1e-9))))
    samples, grid = _fewer(train.sample_count, found.grid_seconds * grids, share, least=min(4, train.sample_count))
    validated, validation = _fewer(train.validate_images, found.validation_seconds * grids, share, least=min(32, train.validate_images))
    return {"grids": grids, "samples": samples, "validated": validated}, grid + validation


def _fewer(count: int, takes: float, share: float, *, least: int) -> tuple[int, float]:
    """As many as fit into the share of the time, and the seconds that they take."""
    if takes <= share:
        return count, takes
    fitting = max(least, int(count * share / takes))
    return fitting, takes * fitting / count


def _average(config: RunConfig, steps: int, reasons: list[tuple[str, str]]) -> Settings:
    train = config.train
    if not train.ema_rates:
        described = ", ".join(one.described for one in train.all_averages)
        reasons.append(("average", f"{described}: the recipe's, which is shorter while a run is young"))
        return {}
    rate = 0.9 if steps < 200 else 0.99 if steps < 2_000 else 0.999 if steps < 50_000 else 0.9999
    reasons.append(("average", f"rate {rate}: it looks back over about {round(1 / (1 - rate)):,} of {counted(steps, 'step')}"))
    start = min(train.ema_start, steps // 10 * train.batch_size)
    return {"ema_rates": [rate]} | ({} if start == train.ema_start else {"ema_start": start})


def checkpoints(found: Plan, seconds: float) -> tuple[int, float]:
    """How many checkpoints take a small share of the time, and the seconds of all."""
    each = max(found.checkpoint_seconds, 1e-9)
    count = max(1, min(_MOST_CHECKPOINTS, int(_AROUND * seconds / each)))
    return count, count * each


def evaluated(found: Plan, seconds: float) -> tuple[int, float]:
    """How many evaluations take a small share of the time, 0 where none does, and the seconds of all, with the look at the reference."""
    count = max(0, min(_MOST_EVALUATIONS, int((_AROUND * seconds - found.reference_seconds) / max(found.evaluation_seconds, 1e-9))))
    return count, count * found.evaluation_seconds + (found.reference_seconds if count else 0.0)


def _evaluations(config: RunConfig, seconds: float, *, images: int, on_cpu: bool) -> Settings:
    """What is measured in evaluations, of a recipe that has some; none in a short run, or where one image is left to be learned."""
    if config.train.evaluate_every is None:
        return {}
    if seconds < _SHORT or images < 3:  # of two one is held out
        return {"train": {"evaluate_every": None, "best_by": "validation"}}
    return {"train": {"evaluate_features": "random", "evaluate_count": 500, "evaluate_reference": 2_000}} if on_cpu else {}


def _evaluated(train: TrainConfig, count: int, took: float, every: int, reasons: list[tuple[str, str]]) -> Settings:
    if not count:
        reasons.append(("evaluations", "none on the way: one would take too much of the time; triptych evaluate measures it afterwards"))
        return {"evaluate_every": None, "best_by": "validation"}
    by = "a network of random weights" if train.evaluate_features == "random" else "a network that has learned"
    what = f"{count} on the way, of {train.evaluate_count:,} samples by {by}: about {counted(round(took), 'second')} of the time"
    reasons.append(("evaluations", f"{what}; their Frechet distance chooses the best checkpoint"))
    return {"evaluate_every": every}


def as_toml(choice: Choice, *, run: str, head: str) -> str:
    """The file that `triptych train --config FILE` takes, with the reasons as comments."""
    lines = [
        f"# {head}",
        *(f"# {name}: {why}" for name, why in choice.reasons),
        "",
        f"recipe = {_toml(choice.recipe)}",
        f"run = {_toml(run)}",
    ]
    for name, values in _tables(choice.settings):
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join([*lines, ""])


def as_json(choice: Choice, *, run: str) -> str:
    """The same as JSON, without comments."""
    return json.dumps({"recipe": choice.recipe, "run": run} | choice.settings, indent=2) + "\n"


def _tables(settings: Settings, prefix: str = "") -> list[tuple[str, Settings]]:
    plain = {key: value for key, value in settings.items() if not isinstance(value, dict)}
    tables = [(prefix.rstrip("."), plain)] if prefix and plain else []
    for key, value in settings.items():
        if isinstance(value, dict):
            tables += _tables(value, f"{prefix}{key}.")
    return tables


def _toml(value: Any) -> str:
    if value is None:
        return '"None"'
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    # A string of JSON is one of TOML, but for the character that only TOML escapes.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
