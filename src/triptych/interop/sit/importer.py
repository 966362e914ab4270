"""Files of SiT as runs: published ones, which are bare state dicts, and checkpoints of its training with weights, average and settings."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triptych.core.errors import ConfigError
from triptych.core.weight_files import checked_weights, read_content
from triptych.data.config import AS_STORED, DataConfig
from triptych.engine.config import OptimConfig, TrainConfig
from triptych.engine.ema import averaged_state
from triptych.interop.flags import Value, checked_flags, command_line, parse_flags
from triptych.interop.programs import ImportedRun, ImportRequest, about_file, refuse
from triptych.interop.sit.flags import FLAGS, LATENT_FACTOR, PATHS
from triptych.interop.sit.weights import described, filled
from triptych.recipes.config import RunConfig

LICENCE = "MIT (SiT)"
_RATE = 0.9999  # of the original's average


def imported(request: ImportRequest) -> ImportedRun:
    """The run of a file. Raises ConfigError for flags that its shapes contradict, CheckpointError for files."""
    refuse(request, ("ema", "ema_rate", "checkpoint", "data", "processes"), "SiT's files have their average with them")
    content = read_content(request.file, inert=(Namespace,))
    with about_file(request.file):
        states, theirs = _parts(content)
        given = {**theirs, **_given(request)}
        config, spec = described(states["model"], given)
        files = {"model": {name: tensor.detach() for name, tensor in filled(config, spec, states["model"]).state_dict().items()}}
        if "ema" in states:
            average = averaged_state(filled(config, spec, states["ema"]))
            files[f"ema-{_RATE}"] = {name: tensor.detach() for name, tensor in average.items()}
    what = "a checkpoint of a training" if "ema" in states else "weights alone"
    request.report(f"{request.file} is {what} of SiT: latents of {spec.channels} x {spec.image_size} x {spec.image_size}")
    request.report(f"licence of the published weights: {LICENCE}")
    run = RunConfig(
        model=config,
        data=DataConfig(image_size=spec.image_size).updated(AS_STORED),
        train=TrainConfig(total_images=1_800_000_000, batch_size=256, ema_rates=(_RATE,), ema_warmup=False),
        optim=OptimConfig(learning_rate=1e-4),
    )
    flags = {
        "image-size": spec.image_size * LATENT_FACTOR,
        "num-classes": spec.num_classes,
        "path-type": next(name for name, ours in PATHS.items() if ours == config.path),
        "prediction": config.prediction,
    }
    return ImportedRun(config=run, spec=spec, files=files, flags=command_line(flags), sources=(request.file,), licence=LICENCE)


def _parts(content: Any) -> tuple[dict[str, dict[str, Tensor]], dict[str, Value]]:
    """The state dicts of a file, and the flags of the training that it is from."""
    if not isinstance(content, Mapping) or not isinstance(content.get("model"), Mapping):
        return {"model": checked_weights(content)}, {}
    states = {name: checked_weights(content[name], name=name) for name in ("model", "ema") if isinstance(content.get(name), Mapping)}
    theirs = vars(content["args"]) if isinstance(content.get("args"), Namespace) else {}
    known = {name: theirs[name.replace("-", "_")] for name in FLAGS if name.replace("-", "_") in theirs}
    return states, checked_flags(known, FLAGS)


def _given(request: ImportRequest) -> dict[str, Value]:
    if isinstance(request.flags, Mapping):
        return checked_flags({name.replace("_", "-"): value for name, value in request.flags.items()}, FLAGS)
    try:
        return parse_flags(request.flags or "", FLAGS)
    except ConfigError as error:
        raise ConfigError(error.setting, f"{error.reason} (SiT's flags here are {', '.join(f'--{name}' for name in FLAGS)})") from None
