"""Files of guided-diffusion and improved-diffusion as runs.

The weights are read; the flags are those given, or those of the published file that it is; flags and shapes make a model together, which
takes the weights; a published file has the training of its recipe; the moving average, where there is one, is filled in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from triptych.core.errors import ConfigError
from triptych.core.weight_files import read_weights
from triptych.data.config import AS_STORED, DataConfig
from triptych.engine.config import OptimConfig, TrainConfig
from triptych.engine.ema import averaged_state
from triptych.interop.flags import command_line, parse_flags
from triptych.interop.guided_diffusion.flags import OF_SCRIPTS, PROGRAMS, Program, all_flags
from triptych.interop.guided_diffusion.published import Published, recognise
from triptych.interop.guided_diffusion.shapes import shape_flags
from triptych.interop.guided_diffusion.weights import DescribedNetwork, describe, filled_model
from triptych.interop.programs import ImportedRun, ImportRequest, about_file, going_on, refuse
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig


def imported(request: ImportRequest) -> ImportedRun:
    """The run of a file of weights. Raises ConfigError for flags that its shapes contradict, CheckpointError for files."""
    program = request.program
    assert program in PROGRAMS
    refuse(request, ("checkpoint", "data", "processes"), f"goes with imaginaire, not with {program}")
    if request.ema_rate is not None:
        reason = f"got {request.ema_rate:g}, but {program}'s averages are files of their own, whose names say the rate"
        raise ConfigError("ema_rate", f"{reason}: give the file by {{}}, and leave the rate out", ["ema"])
    if request.ema is not None and not request.ema.is_file():
        raise ConfigError("ema", f"there is no file {request.ema}")
    weights = read_weights(request.file)
    with about_file(request.file):
        flags, published = _flags(weights, request, program)
        described = describe(weights, flags, program=program if published is None else published.program)
        recipe = None if published is None else published.recipe
        config = going_on(_run_config(described, recipe))
        files = {"model": dict(filled_model(config.model, described.spec, weights).state_dict())}
    if request.ema is not None:
        rate = _rate(request.ema)
        config = replace(config, train=replace(config.train, ema_rates=(rate,)))
        with about_file(request.ema):
            average = averaged_state(filled_model(config.model, described.spec, read_weights(request.ema)))
            files[f"ema-{rate}"] = {name: tensor.detach() for name, tensor in average.items()}
    return ImportedRun(
        config=config,
        spec=described.spec,
        recipe=recipe,
        files=files,
        flags=command_line(described.flags),
        published=None if published is None else published.name,
        sources=(request.file,),
    )


def _flags(weights: Mapping[str, Tensor], request: ImportRequest, program: Program) -> tuple[Mapping[str, Any], Published | None]:
    """The flags that were given; without any those of the published file that it is, and that file."""
    if isinstance(request.flags, str):
        try:
            return parse_flags(request.flags, all_flags(program)), None
        except ConfigError as error:
            if error.setting.removeprefix("--") not in OF_SCRIPTS - all_flags().keys():
                raise
            raise ConfigError(error.setting, "this is a flag of the original's scripts, not of a network: leave it out") from None
    if request.flags is not None:
        return request.flags, None
    recognised = recognise(weights, request.file.name)
    if recognised is None:
        raise ConfigError(
            "--flags",
            f"missing, for {request.file} is not a published file: give the flags that it was trained with; its shapes say "
            + command_line(shape_flags(weights)),
        )
    request.report(f"{request.file} is {recognised.line}")
    return recognised.published.flags, recognised.published


def _run_config(described: DescribedNetwork, recipe: str | None) -> RunConfig:
    """The configuration of the run, with the settings of training of the recipe; without one those that its kind usually has."""
    model, spec = described.config, described.spec
    if recipe is not None:
        config = load_recipe(recipe)
        sampler = getattr(config.model, "timestep_sampler", "uniform")  # has no trace in the flags of the network
        return replace(config, model=model.updated({"timestep_sampler": sampler}))
    half = described.flags.get("use_fp16") or described.flags.get("classifier_use_fp16")
    classifier = "classifier_width" in described.flags
    return RunConfig(
        model=model,
        data=DataConfig(
            image_size=spec.image_size,
            channels=1 if spec.channels == 1 else 3,
            labels="none" if spec.num_classes is None else "auto",
            crop="random" if classifier else "center",
        ).updated(AS_STORED),
        train=TrainConfig(
            total_images=1_000_000,
            batch_size=64,
            precision="bf16" if half else "float32",
            checkpoint_every=100_000,
            sample_every=100_000,
            validate_every=100_000,
        ),
        optim=OptimConfig(learning_rate=3e-4 if classifier else 1e-4, weight_decay=0.05 if classifier else 0.0),
    )


def _rate(ema: Path) -> float:
    match = re.match(r"ema_(0?\.\d+|0)_", ema.name)
    if match is None:
        raise ConfigError("ema", f"got {ema.name!r}, expected a name such as ema_0.9999_500000.pt, which says the rate of the average")
    return float(match[1])
