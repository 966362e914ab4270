"""One optimizer over one set of networks: microbatches, gradient, clipping, step."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from triptych.core.batch import Batch
from triptych.core.model import LossTerms, Model, Phase, TrainingProgress
from triptych.core.rng import Rng
from triptych.engine.config import OptimConfig, TrainConfig
from triptych.engine.distributed import World
from triptych.engine.measurements import StepRecord
from triptych.engine.microbatch import Attempts, Microbatch
from triptych.engine.optim import assert_same_layout, make_optimizer
from triptych.engine.precision import LossScale, autocast
from triptych.engine.schedule import StepSettings
from triptych.engine.sharding import Sharding


class _PhaseModule(nn.Module):
    """The networks of a phase as DDP sees them; its forward is the model's loss."""

    def __init__(self, model: Model, networks: tuple[str, ...]) -> None:
        super().__init__()
        for name in networks:
            self.add_module(name, getattr(model, name))
        self._model = (model,)  # in a tuple, so that the other networks are not registered

    def forward(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        return self._model[0].loss(phase, batch, rng)


def _joined(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of all microbatches, in the order of the samples."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


class _Summing:
    """Sums the gradients of a step over the processes: here when all of them have made its passes."""

    agrees: ClassVar[bool] = True
    "Whether the processes agree on whether the passes fit before they sum; else a lack of memory in one of them ends the run."
    divisor = 1
    "What the sum is divided by."

    def __init__(self, networks: nn.Module, world: World) -> None:
        self.networks, self._world = networks, world

    def alone(self) -> _Summing:
        """The same for passes of which no other process hears."""
        return self

    def around_step(self) -> AbstractContextManager[object]:
        """The context of the passes of a step, and of `finish`."""
        return nullcontext()

    def around_microbatch(self, *, last: bool) -> AbstractContextManager[object]:
        """The context of the passes of a microbatch."""
        return nullcontext()

    def finish(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Sums what is not summed yet."""
        self._world.sum_all([parameter.grad for parameter in parameters.values() if parameter.grad is not None])


class _SummingOnTheWay(_Summing):
    """Sums gradients while they are computed. A process that then lacks memory would leave the others waiting."""

    agrees = False

    def __init__(self, networks: nn.Module, world: World, *, partial: bool) -> None:
        """`partial`: whether a loss may not reach all of the parameters."""
        super().__init__(networks, world)
        # Buffers stay each process's own in a step: `forward_sync_buffers`, as PyTorch calls it since it deprecated the older name.
        names = inspect.signature(DistributedDataParallel).parameters
        buffers: dict[str, Any] = {"forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False}
        self._plain, self.divisor = networks, world.size
        self.networks = self._parallel = DistributedDataParallel(networks, find_unused_parameters=partial, **buffers)

    def alone(self) -> _Summing:
        return _Summing(self._plain, self._world)

    def around_microbatch(self, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self._parallel.no_sync()

    def finish(self, parameters: Mapping[str, nn.Parameter]) -> None:
        pass


class _SummingParts(_Summing):
    """Leaves each process its part of the sums, of a model that is divided: block by block on the way, or whole at the end."""

    agrees = False

    def __init__(self, networks: nn.Module, world: World, sharding: Sharding) -> None:
        super().__init__(networks, world)
        self._sharding, self.divisor = sharding, world.size if sharding.by_block else 1

    def around_step(self) -> AbstractContextManager[object]:
        return nullcontext() if self._sharding.by_block else self._sharding.gathered()

    def finish(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._sharding.take_gradients(parameters)


@dataclass
class Passes:
    """What the forward and backward passes of a step gave, besides gradients."""

    record: StepRecord
    observed: list[Mapping[str, Tensor]] = field(default_factory=list)
    "`LossTerms.observed` of each microbatch."
    carried: list[Mapping[str, Tensor]] = field(default_factory=list)
    "`LossTerms.carried` of each microbatch."


class Updater:
    """The optimizer of `networks`, shared by all phases that update just these."""

    def __init__(
        self,
        model: Model,
        networks: tuple[str, ...],
        *,
        train: TrainConfig,
        optim: OptimConfig,
        world: World,
        microbatch: Microbatch,
        attempts: Attempts,
        sharding: Sharding | None = None,
    ) -> None:
        phases = [phase for phase in model.phases if phase.networks == networks]
        self.name = "+".join(networks)
        self.scale = LossScale(train)
        self._model, self._train, self._world = model, train, world
        self._microbatch, self._attempts = microbatch, attempts
        self._networks = _PhaseModule(model, networks)
        self._sharding = sharding
        self.parameters = {name: p for name, p in self._networks.named_parameters() if p.requires_grad}
        if sharding is not None:
            self.parameters = sharding.optimized(self.parameters)
        self.optimizer = make_optimizer(self.parameters, optim, device=world.device)
        if sharding is not None:
            self._summing = _SummingParts(self._networks, world, sharding)
        elif world.size > 1 and not microbatch.shrinks:
            self._summing = _SummingOnTheWay(self._networks, world, partial=any(phase.partial for phase in phases))
        else:
            self._summing = _Summing(self._networks, world)
            world.take_from_main(list(self.parameters.values()))
        self._layout_checked = False
        self.stepped = True
        "Whether the last step was taken; False after an overflow of fp16. True before the first, which may come late (`Model.turns`)."

    def require_gradients(self, wanted: bool) -> None:
        """Switches the gradients of its parameters on or off."""
        for parameter in self.parameters.values():
            parameter.requires_grad_(wanted)
        if self._sharding is not None:
            self._sharding.require_gradients(self.parameters, wanted)

    def step(
        self, phase: Phase, batch: Batch, *, rng: Rng, settings: StepSettings, total: int, progress: TrainingProgress
    ) -> tuple[StepRecord, dict[str, Tensor], dict[str, Tensor]]:
        """One optimizer step on this process's share of `total` samples. Its record, and their `observed` and `carried` of `LossTerms`.

        Where memory does not suffice, the microbatch becomes smaller and the passes are made anew. Raises DoesNotFit where it cannot.
        """
        self._model.prepare(phase, progress)

        def work() -> Passes:
            return self._passed(phase, batch, rng, size=self._microbatch.size, total=total, progress=progress, summing=self._summing)

        parameters, summing = list(self.parameters.values()), self._summing
        with summing.around_step():
            while (passes := self._attempts.attempt(parameters, work, together=summing.agrees)) is None:
                if batch.kept is not None:
                    batch.kept.take()  # all that was made in vain
                self._microbatch.halve(self._attempts.said)
            summing.finish(self.parameters)
        passes.record.gradient_norm = self._apply(settings)
        self._model.stepped(phase)
        return passes.record, _joined(passes.observed), _joined(passes.carried)

    def try_passes(self, phase: Phase, batch: Batch, *, rng: Rng, size: int, progress: TrainingProgress) -> dict[str, Tensor]:
        """The passes of a step, `size` samples at a time, for the memory that they take: their `carried`. No process hears of another."""
        self._model.prepare(phase, progress)
        passes = self._passed(phase, batch, rng, size=size, total=len(batch), progress=progress, summing=self._summing.alone())
        self.optimizer.zero_grad(set_to_none=True)
        return _joined(passes.carried)

    def _passed(
        self, phase: Phase, batch: Batch, rng: Rng, *, size: int, total: int, progress: TrainingProgress, summing: _Summing
    ) -> Passes:
        """Adds the gradients of the batch, `size` samples at a time."""
        passes = Passes(StepRecord(phase.name, progress.images_seen + progress.iteration_images))
        by_block = self._sharding is not None and self._sharding.by_block
        factor = self.scale.scale * summing.divisor / total
        whole = len(batch) <= size
        for start in range(0, len(batch), size):
            samples = slice(start, min(start + size, len(batch)))
            with summing.around_microbatch(last=samples.stop == len(batch)):
                with autocast(self._train.precision, device=self._world.device, keeps_weights=not by_block):
                    terms = summing.networks(phase, batch if whole else batch[samples], rng[samples])
                (terms.loss.sum() * factor).backward()
            passes.record.terms.add(terms)
            passes.observed.append(terms.observed)
            passes.carried.append(terms.carried)
        return passes

    def _apply(self, settings: StepSettings) -> Tensor:
        """Clips the gradient and steps, unless fp16 overflowed. Returns the gradient's norm before clipping."""
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        self.scale.unscale(gradients)
        norm = torch.nn.utils.get_total_norm(gradients) if self._sharding is None else self._sharding.norm(gradients)
        settings.set(self.optimizer)  # also where there is no step: the rate is logged
        self.stepped = self.scale.accept(norm)
        if self.stepped:
            if settings.clip_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(self.parameters.values(), settings.clip_norm, norm)
            self.optimizer.step()
            if not self._layout_checked:
                assert_same_layout(self.optimizer)
                self._layout_checked = True
        self.optimizer.zero_grad(set_to_none=not self._model.saves_memory)
        return norm
