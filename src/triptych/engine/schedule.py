"""What an optimizer takes each step with: its settings in a phase, at a number of images seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from torch.optim import Optimizer

from triptych.core.batch import ClipLength
from triptych.core.errors import ConfigError, nearest
from triptych.core.model import Model, Phase, TrainingProgress
from triptych.core.ramp import Ramp, ends, scaled, value_at
from triptych.engine.config import OptimConfig, PhaseOptimConfig, TrainConfig
from triptych.engine.distributed import World
from triptych.engine.sharding import refuse_undividable
from triptych.engine.statistics import needs_batches


@dataclass(frozen=True)
class StepSettings:
    """The settings of one step."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip_norm: float | None

    def set(self, optimizer: Optimizer) -> None:
        """Gives the optimizer its part of them."""
        for group in optimizer.param_groups:
            group["lr"], group["betas"] = self.learning_rate, (self.beta1, self.beta2)
            group["eps"], group["weight_decay"] = self.eps, self.weight_decay


def step_settings(optim: OptimConfig, phase: Phase, progress: TrainingProgress) -> StepSettings:
    """The settings of `optim` in a step of the phase. `Phase.rate` is a factor of the learning rate."""
    said = _said_of(optim, phase)
    if (factor := said.pop("rate_factor", None)) is not None:
        said["learning_rate"] = scaled(factor, optim.learning_rate)
    if (power := said.pop("beta2_power", None)) is not None:
        said["beta2"] = optim.betas[1] ** value_at(power, progress.images_seen)
    settings = replace(_of_section(optim), **{name: value_at(value, progress.images_seen) for name, value in said.items()})
    return replace(settings, learning_rate=scheduled_rate(settings.learning_rate, optim, progress) * phase.rate)


_RIVALS = {"rate_factor": "learning_rate", "learning_rate": "rate_factor", "beta2_power": "beta2", "beta2": "beta2_power"}
"""Settings of a phase and those that say the same in another way."""
_CHANGES = [field.name for field in fields(PhaseOptimConfig) if field.name != "phase"]


def _of_section(optim: OptimConfig) -> StepSettings:
    return StepSettings(optim.learning_rate, *optim.betas, optim.eps, optim.weight_decay, optim.clip_norm)


def _said_of(optim: OptimConfig, phase: Phase) -> dict[str, float | Ramp]:
    """What `optim.phases` says of the phase, by the names of PhaseOptimConfig; of several that say the same, the last one."""
    said: dict[str, float | Ramp] = {}
    for change in optim.phases:
        if change.phase in (None, phase.name):
            changed = {name: getattr(change, name) for name in _CHANGES if getattr(change, name) is not None}
            said = {name: value for name, value in said.items() if _RIVALS.get(name) not in changed} | changed
    return said


_NAMES = {"beta1": "the first of optim.betas", "beta2": "the second of optim.betas"}


def without_effect(optim: OptimConfig, phases: Sequence[Phase]) -> Iterator[str]:
    """A line for each number of the section that does nothing in some of the phases, for `optim.phases` has another one there.

    A ramp that begins at the section's number is no other one.
    """
    for name, number in vars(_of_section(optim)).items():
        said = {phase.name: _said_of(optim, phase).get(name) for phase in phases}
        where = [phase for phase, value in said.items() if value is not None and ends(value)[0] != number]
        if where and number is not None:
            told = _NAMES.get(name, f"optim.{name}")
            yield f"{told}, {number:g}, does nothing in {', '.join(where)}: optim.phases has another {name} there"


def scheduled_rate(rate: float, optim: OptimConfig, progress: TrainingProgress) -> float:
    """The learning rate `rate` after warm-up and schedule, in a step.

    Warm-up: proportional to the images seen when the step is done, over `optim.warmup` images. Then constant; or a line or half a cosine
    from 1 at decay_start to decay_to at decay_end (the end of the run where that is None); or decay_factor to the power of the whole
    decay_every that are over; or 1 / sqrt(images seen / decay_start) from decay_start on (Karras et al. 2024, of EDM2).
    """
    images_seen, total_images = progress.images_seen, progress.total_images
    if optim.schedule == "step":
        assert optim.decay_every is not None, "OptimConfig refuses it"
        rate *= optim.decay_factor ** (images_seen // optim.decay_every)
    elif optim.schedule == "inverse-sqrt":
        rate /= math.sqrt(max(images_seen / optim.decay_start, 1.0))
    elif optim.schedule != "constant":
        start, end = optim.decay_start, optim.decay_end or total_images
        done = min(max(images_seen - start, 0) / max(end - start, 1), 1.0)
        left = 1 - done if optim.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
        rate *= optim.decay_to + (1 - optim.decay_to) * left
    warmup = optim.warmup(total_images)
    if warmup:
        rate *= min((images_seen + progress.iteration_images) / warmup, 1.0)
    return rate


def refuse_unknown_phases(optim: OptimConfig, phases: Sequence[Phase], *, absent: Sequence[str] = ()) -> None:
    """Raises ConfigError where `optim.phases` names a phase that the model does not have, nor would have with other settings (`absent`)."""
    names = [phase.name for phase in phases]
    for name in [change.phase for change in optim.phases]:
        if name is not None and name not in (*names, *absent):
            raise ConfigError("optim.phases", f"got the phase {name!r}, expected one of {', '.join(names)}{nearest(name, names)}")


def refuse_single_frames(clips: ClipLength | None, train: TrainConfig) -> None:
    """Raises ConfigError for a run of clips that would end before their first one of several frames."""
    last = (train.total_images - 1) // train.batch_size * train.batch_size
    if clips is not None and clips.most > 1 and train.total_images and last < clips.alone:
        reason = f"got {clips.alone:,}, expected at most {last:,}, where the last step of {train.total_images:,} images begins"
        raise ConfigError("data.length.alone", reason)


def refuse_impossible(model: Model, train: TrainConfig, world: World) -> None:
    """Raises ConfigError for settings that this model or this number of processes cannot train with."""
    if model.couples_samples and train.microbatch is not None:
        name = type(model).__name__
        raise ConfigError(
            "train.microbatch", f"got {train.microbatch}, but the samples of a batch affect each other in {name}; leave it out"
        )
    if train.snapshot_every is not None and needs_batches(model):
        reason = f"got {train.snapshot_every}, but averages of {type(model).__name__} take statistics from images; leave it out"
        raise ConfigError("train.snapshot_every", reason)
    if train.batch_size < world.size:
        raise ConfigError("train.batch_size", f"got {train.batch_size}, expected at least one image for each of {world.size} processes")
    refuse_undividable(model, train, world)
    group, microbatch = model.group_size, train.microbatch
    if group > 1 and train.batch_size % (group * world.size):
        processes = "" if world.size == 1 else f" in each of {world.size} processes"
        advice = f"expected a multiple of {group * world.size}: the model takes images in groups of {group}{processes}"
        raise ConfigError("train.batch_size", f"got {train.batch_size}, {advice}")
    if isinstance(microbatch, int) and microbatch % group:
        raise ConfigError(
            "train.microbatch", f"got {microbatch}, expected a multiple of {group}, the images that the model takes as one group"
        )
