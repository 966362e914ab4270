"""Classifiers that say of images which class they show: those of runs, and networks with classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triptych.core.batch import DataSpec, RawBatch
from triptych.core.errors import ConfigError, nearest
from triptych.core.model import Classifier
from triptych.core.wording import counted
from triptych.engine.distributed import World
from triptych.engine.run_directory import RunDirectory
from triptych.evaluation.feature_space import OR_NAMED, SPACES, open_space
from triptych.runs.stored import StoredRun
from triptych.runs.work import evaluating

LOGITS = "logits"


@dataclass(frozen=True)
class ImageClassifier:
    """What gives images logits."""

    logits: Callable[[np.ndarray], np.ndarray]
    "Of uint8 images (b, h, w, c): (b, classes)."
    spec: DataSpec | None
    "Whose classes these are; None: they go by their numbers."
    identity: Any
    "JSON."


def open_classifier(source: str | Path, *, size: tuple[int, int], channels: int, world: World) -> ImageClassifier:
    """The classifier of a run, at no noise, or the network of a space with classes, for images of that size.

    Raises ConfigError or CheckpointError where there is none, or it does not fit.
    """
    if RunDirectory(Path(source)).exists():
        return _of_run(StoredRun(RunDirectory(Path(source))), size=size, channels=channels, world=world)
    able = [name for name, space in SPACES.items() if LOGITS in space.outputs]
    if str(source) not in able:
        known = f"expected a run of a classifier, or one of {', '.join(able)}"
        raise ConfigError("classifier", f"got {str(source)!r}, {known}{nearest(str(source), able)}")
    try:
        embedder = open_space(str(source), device=world.device)
    except ConfigError as error:
        raise ConfigError("classifier", error.reason.removesuffix(OR_NAMED)) from None

    def logits(images: np.ndarray) -> np.ndarray:
        return embedder(torch.from_numpy(images).to(world.device))[LOGITS].float().cpu().numpy()

    return ImageClassifier(logits, None, embedder.identity)


def _of_run(run: StoredRun, *, size: tuple[int, int], channels: int, world: World) -> ImageClassifier:
    model = run.outline
    if not isinstance(model, Classifier):
        raise ConfigError("classifier", f"{run.directory} is a run of {type(model).__name__}, which recognises no images")
    if (run.spec.height_and_width, run.spec.channels) != (size, channels):
        (high, wide), (own_high, own_wide) = size, run.spec.height_and_width
        kinds = f"images of {own_wide}x{own_high} with {counted(run.spec.channels, 'channel')}, these have {wide}x{high} with {channels}"
        raise ConfigError("classifier", f"{run.directory} recognises {kinds}")
    loaded, origin = run.loaded_together("latest", None, world)
    coefficients = loaded.process.at_step(0)  # type: ignore[union-attr, operator]  (of a NoisyClassifier)

    def logits(images: np.ndarray) -> np.ndarray:
        batch = RawBatch(torch.from_numpy(images), None, torch.arange(len(images))).to(world.device)
        with evaluating(loaded):
            return loaded.classify(batch.images, coefficients).float().cpu().numpy()  # type: ignore[operator]

    return ImageClassifier(logits, run.spec, {"run": str(run.directory), **origin})
