"""One optimizer over one set of networks: microbatches, gradient, clipping, step."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from triptych.core.batch import Batch
from triptych.core.model import LossTerms, Model, Phase, TrainingProgress
from triptych.core.rng import Rng
from triptych.engine.config import OptimConfig, TrainConfig
from triptych.engine.distributed import World
from triptych.engine.measurements import StepRecord
from triptych.engine.optim import assert_same_layout, make_optimizer
from triptych.engine.precision import LossScale, autocast
from triptych.engine.schedule import StepSettings


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


class Updater:
    """The optimizer of `networks`, shared by all phases that update just these."""

    def __init__(self, model: Model, networks: tuple[str, ...], *, train: TrainConfig, optim: OptimConfig, world: World) -> None:
        phases = [phase for phase in model.phases if phase.networks == networks]
        self.name = "+".join(networks)
        self.scale = LossScale(train)
        self._model, self._train, self._world = model, train, world
        module = _PhaseModule(model, networks)
        self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.optimizer = make_optimizer(self.parameters, optim, device=world.device)
        self._module: nn.Module = module
        if world.size > 1:
            partial = any(phase.partial for phase in phases)
            # Buffers stay each process's own in a step: `forward_sync_buffers`, as PyTorch calls it since it deprecated the older name.
            names = inspect.signature(DistributedDataParallel).parameters
            buffers: dict[str, Any] = {"forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False}
            self._module = DistributedDataParallel(module, find_unused_parameters=partial, **buffers)
        self._layout_checked = False
        self.stepped = True
        "Whether the last step was taken; False after an overflow of fp16. True before the first, which may come late (`Model.turns`)."

    def require_gradients(self, wanted: bool) -> None:
        """Switches the gradients of its parameters on or off."""
        for parameter in self.parameters.values():
            parameter.requires_grad_(wanted)

    def step(
        self, phase: Phase, batch: Batch, *, rng: Rng, settings: StepSettings, total: int, progress: TrainingProgress
    ) -> tuple[StepRecord, dict[str, Tensor], dict[str, Tensor]]:
        """One optimizer step on this process's share of `total` samples. Its record, and their `observed` and `carried` of `LossTerms`."""
        self._model.prepare(phase, progress)
        record = StepRecord(phase.name, progress.images_seen + progress.iteration_images)
        observed, carried = [], []
        factor = self.scale.scale * self._world.size / total  # DDP divides by the number of processes
        for samples, last in self._microbatches(len(batch)):
            with nullcontext() if last or not isinstance(self._module, DistributedDataParallel) else self._module.no_sync():
                with autocast(self._train.precision, device=self._world.device):
                    terms = self._module(phase, batch[samples], rng[samples])
                (terms.loss.sum() * factor).backward()
            record.terms.add(terms)
            observed.append(terms.observed)
            carried.append(terms.carried)
        record.gradient_norm = self._apply(settings)
        self._model.stepped(phase)
        return record, _joined(observed), _joined(carried)

    def _microbatches(self, count: int) -> Iterator[tuple[slice, bool]]:
        size = self._train.microbatch or count
        for start in range(0, count, size):
            yield slice(start, min(start + size, count)), start + size >= count

    def _apply(self, settings: StepSettings) -> Tensor:
        """Clips the gradient and steps, unless fp16 overflowed. Returns the gradient's norm before clipping."""
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        self.scale.unscale(gradients)
        norm = torch.nn.utils.get_total_norm(gradients)
        self.stepped = self.scale.accept(norm)
        if self.stepped:
            if settings.clip_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(self.parameters.values(), settings.clip_norm, norm)
            for group in self.optimizer.param_groups:
                group["lr"], group["betas"] = settings.learning_rate, (settings.beta1, settings.beta2)
                group["eps"], group["weight_decay"] = settings.eps, settings.weight_decay
            self.optimizer.step()
            if not self._layout_checked:
                assert_same_layout(self.optimizer)
                self._layout_checked = True
        self.optimizer.zero_grad(set_to_none=not self._model.saves_memory)
        return norm
