"""A run's model as a sampler that another run's model leads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from triptych.core.batch import DataSpec
from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.core.given import given_path
from triptych.core.model import Guidable, Model
from triptych.engine.distributed import World
from triptych.engine.run_directory import RunDirectory, run_and_checkpoint
from triptych.runs.latent_space import unlike_latents
from triptych.runs.loading import WeightsChoice
from triptych.runs.stored import StoredRun


@dataclass(frozen=True)
class GuidedSampler:
    """A sampler that a guide leads."""

    model: nn.Module
    spec: DataSpec
    "What its labels mean: the run's own classes, or those of the classifier that leads a run without."
    origin: dict[str, str | int]
    "The hash of the guide's weights, under the name of the setting."


def leader(place: str | Path, ema_length: float | None) -> tuple[StoredRun, WeightsChoice]:
    """The run that is to lead another one, and which weights of it. Raises ConfigError and CheckpointError where there are none."""
    directory, checkpoint = run_and_checkpoint(place)
    return StoredRun(RunDirectory(directory)), WeightsChoice(checkpoint=checkpoint or "latest", ema_length=ema_length)


def guided(
    model: Model,
    run: StoredRun,
    *,
    guide: str | Path | None,
    guide_with: str | Path | None,
    settings: Config,
    world: World,
    guide_ema_length: float | None = None,
) -> GuidedSampler:
    """The sampler of `model`, which is of `run`, led by the run `guide` or `guide_with`; itself where both are None.

    Its newest weights lead, or those of a checkpoint where RUN/checkpoints/N is named; its first average, or the one of
    `guide_ema_length`, which may also be that of RUN/snapshots/N. Raises ConfigError, naming the setting, where the
    two do not fit or nothing would come of it, CheckpointError where there is no guide.
    """
    if guide is None and guide_with is None:
        if guide_ema_length is not None:
            raise ConfigError("guide_ema_length", f"got {guide_ema_length}, but no run leads; leave it out")
        return GuidedSampler(model, run.spec, {})
    if guide is not None and guide_with is not None:
        raise ConfigError("guide_with", "got a weaker model beside a classifier ({}); give one of them", ["guide"])
    setting, place = ("guide", guide) if guide is not None else ("guide_with", guide_with)
    if not isinstance(model, Guidable):
        raise ConfigError(setting, f"{type(model).__name__} cannot be guided")
    if guide is None and getattr(settings, "guidance_scale", None) == 1:
        reason = "got 1.0, at which a weaker model ({}) changes nothing; give more than 1"
        raise ConfigError("guidance_scale", reason, ["guide_with"])
    other, weights = leader(given_path(place, setting), guide_ema_length)
    theirs, ours = other.spec.class_names, run.spec.class_names
    if theirs is not None and ours is not None and theirs != ours:
        wrong = next((name for name in theirs if name not in ours), theirs[0])
        raise ConfigError(setting, f"the classes of {other.directory} are not those of {run.directory} (its {wrong!r}, for one)")
    unlike = unlike_latents(run.spec, other.spec)
    if unlike:
        raise ConfigError(setting, f"the images of {other.directory} are not those of {run.directory} ({'; '.join(unlike)})")
    helper, origin = other.loaded_together(weights.checkpoint, weights.chosen, world)
    helper.requires_grad_(False)  # its gradient is wanted for images, not for weights
    sampler = model.guided_by(helper) if guide is not None else model.guided_with(helper)
    spec = run.spec if guide is None or ours is not None else other.spec
    return GuidedSampler(sampler.eval(), spec, {setting: origin["hash"]})
