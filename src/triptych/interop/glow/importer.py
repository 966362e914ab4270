"""Checkpoints of openai/glow as runs.

The variables are read; names and shapes show the model, and flags the rest of it; the training is that of the nearest recipe; the moving
averages in the checkpoint become the run's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.engine.ema import averaged_state
from triptych.flows.glow import Glow, GlowConfig
from triptych.interop.flags import checked_flags, parse_flags
from triptych.interop.glow import weights
from triptych.interop.glow.flags import FLAGS, TrainFlags, check_positive, squares, words
from triptych.interop.programs import ImportedRun, ImportRequest, about_file, going_on, refuse
from triptych.interop.tensor_bundle import bundle_files, read_variables
from triptych.recipes.catalogue import load_recipe, recipes
from triptych.recipes.config import RunConfig

_PROCESSES = 8  # of the original's recipes; a checkpoint does not say, and the rate of its averages depends on it
_PERMUTATIONS = {"reverse": 0, "shuffle": 1, "1x1": 2}
_COUPLINGS = {"add": 0, "aff": 1}
_CATEGORIES = {"bdr": "bedroom", "crh": "church", "twr": "tower"}


@dataclass(frozen=True)
class PublishedCheckpoint:
    """A published checkpoint: the name of its archive, the flags that its shapes do not tell or have to bear out, and its recipe."""

    name: str
    flags: Mapping[str, Any] = field(hash=False)
    recipe: str


def imported(request: ImportRequest) -> ImportedRun:
    """The run of a checkpoint. Raises ConfigError for flags that its shapes contradict, CheckpointError for files."""
    refuse(request, ("checkpoint", "data", "processes"), "goes with imaginaire, not with glow")
    if request.ema is not None:
        raise ConfigError("ema", "a checkpoint of glow holds its averages itself: leave it out")
    if request.ema_rate is not None and not 0 <= request.ema_rate < 1:
        raise ConfigError("ema_rate", f"got {request.ema_rate}, expected 0 or more and below 1")
    flags = request.flags or {}
    given = parse_flags(flags, FLAGS) if isinstance(flags, str) else _checked(flags)
    check_positive(given)
    variables = read_variables(request.file, wanted=weights.is_of_model)
    with about_file(request.file):
        described, published = _model_flags(variables, given, request)
        model = weights.from_variables(variables, described)
        config = going_on(_run_config(model, described["problem"], published))
        files = {"model": dict(model.state_dict())}
        averages = weights.averages(variables)
        if averages is None and request.ema_rate is not None:
            raise ConfigError("ema_rate", "the checkpoint has no moving averages of all its weights: leave it out")
        if averages is not None:
            trained = replace(TrainFlags.complete(given, FLAGS), processes=_PROCESSES)
            rate = trained.second_rate if request.ema_rate is None else request.ema_rate
            config = replace(config, train=replace(config.train, ema_rates=(rate,)))
            average = averaged_state(weights.from_variables(averages, described))
            files[f"ema-{rate}"] = {name: tensor.detach() for name, tensor in average.items()}
            request.report(f"its moving averages are the run's ema-{rate}, and are used unless --weights raw is given")
    return ImportedRun(
        config=config,
        spec=_spec(model),
        recipe=None if published is None else published.recipe,
        files=files,
        flags=words({name: value for name, value in described.items() if name in FLAGS}),
        published=None if published is None else published.name,
        sources=tuple(bundle_files(request.file)),
    )


def _checked(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags, checked; n_y, which is no flag of the command line, is left as it is."""
    others = {name: value for name, value in flags.items() if name == "n_y"}
    return checked_flags({name: value for name, value in flags.items() if name not in others}, FLAGS) | others


def _model_flags(
    variables: weights.Variables, given: Mapping[str, Any], request: ImportRequest
) -> tuple[dict[str, Any], PublishedCheckpoint | None]:
    """All flags of the model, and the published checkpoint that it is; None: it is another one."""
    published = published_checkpoint(request.file)
    if published is None:
        return weights.complete_flags(variables, given), None
    try:
        described = weights.complete_flags(variables, {**published.flags, **given})
    except ConfigError:
        request.report(f"{request.file} has the name of the published {published.name}, but another model")
        return weights.complete_flags(variables, given), None
    request.report(f"{request.file} is the published {published.name}")
    return described, published


def _spec(model: Glow) -> DataSpec:
    channels, image_size, _ = model.image_shape
    return DataSpec(image_size=image_size, channels=channels, num_classes=model.num_classes)


def _run_config(model: Glow, problem: str, published: PublishedCheckpoint | None) -> RunConfig:
    """The model, with training, data and settings that leave no trace in weights from its recipe, or from the recipe most like it.

    Squares are cut out of images as the original cuts them for its `problem`, whatever that recipe is of.
    """
    spec = _spec(model)
    recipe = _most_like(model.config, spec) if published is None else load_recipe(published.recipe)
    assert isinstance(recipe.model, GlowConfig)
    traceless = {name: getattr(recipe.model, name) for name in ("memory", "init_images", "sampling")}
    labels = "none" if spec.num_classes is None else "auto"
    # From wherever the images are: the recipe that is most like it may be one of another data set.
    images = {"source": "auto", "image_size": spec.image_size, "channels": 1 if spec.channels == 1 else 3, "labels": labels}
    data = recipe.data.updated(images | ({} if published is not None else squares(problem, spec.image_size)))
    return replace(recipe, model=replace(model.config, **traceless), data=data)


def _most_like(model: GlowConfig, spec: DataSpec) -> RunConfig:
    """The recipe of Glow that is nearest: by image size, then by whether it has classes, then by the number of settings that differ."""

    def differences(recipe: RunConfig) -> tuple[float, bool, int]:
        size = abs(math.log2(recipe.data.image_size / spec.image_size))
        names = [field.name for field in fields(model)]
        other = [name for name in names if getattr(recipe.model, name) != getattr(model, name)]
        return size, (recipe.data.labels == "none") != (spec.num_classes is None), len(other)

    loaded = (load_recipe(name) for name, recipe in recipes().items() if recipe.family == "flows")
    glows = [recipe for recipe in loaded if isinstance(recipe.model, GlowConfig)]
    # Not one of the built-in digits: a run with those would train on them, though nobody asked for digits.
    return min((recipe for recipe in glows if recipe.data.source != "digits"), key=differences)


def published_checkpoint(path: str | Path) -> PublishedCheckpoint | None:
    """The published checkpoint that a path speaks of: a folder of it, or the file itself, is called like the archive; None: none."""
    for part in reversed(Path(path).absolute().parts):
        ablation = re.search(r"abl-(reverse|shuffle|1x1)-(add|aff)", part)
        if ablation:
            flags = {"flow_permutation": _PERMUTATIONS[ablation[1]], "flow_coupling": _COUPLINGS[ablation[2]]}
            return PublishedCheckpoint(ablation[0], {"problem": "cifar10", "image_size": 32, "n_bits_x": 8} | flags, "glow-cifar10")
        lsun = re.search(r"lsun-rnvp-(bdr|crh|twr)", part)
        if lsun:
            flags = {"problem": "lsun_realnvp", "image_size": 64, "n_bits_x": 8, "flow_permutation": 2, "flow_coupling": 1}
            return PublishedCheckpoint(lsun[0], flags, f"glow-lsun-{_CATEGORIES[lsun[1]]}")
    return None
