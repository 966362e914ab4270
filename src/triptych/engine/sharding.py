"""Networks divided between processes by PyTorch's FSDP2 (`fully_shard`): each keeps a part of every weight.

The part of a weight is a run of its first axis. Gradients, the optimizer's state and the averages are divided alike, so all that works on
one number at a time works on the parts, as plain tensors: the optimizer, the averages, clipping. Weights are put together (gathered)
block by block while a network runs, or whole for the passes of a step; the model says which (`Model.gathers`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from triptych.core.errors import ConfigError
from triptych.core.model import Averaged, Model
from triptych.engine.config import TrainConfig
from triptych.engine.distributed import World


def is_divided(train: TrainConfig, world: World) -> bool:
    """Whether weights are divided: one process has all of them."""
    return train.shard != "none" and world.size > 1


def refuse_undividable(model: Model, train: TrainConfig, world: World) -> None:
    """Raises ConfigError where this model, or this number of processes, cannot be trained with `train.shard`."""
    if not is_divided(train, world):
        return
    reason, networks = None, [getattr(model, name) for phase in model.phases for name in phase.networks]
    if model.couples_samples:
        reason = "has norms, or losses, over the samples of all processes"
    elif model.gathers == "never":
        reason = "changes its weights, or differentiates them, in ways that need all of a weight in every process"
    elif isinstance(model, Averaged) and model.effective():
        reason = "has spectral norm, which needs all of a weight in every process"
    elif model.gathers == "blocks" and any(not weight.ndim for network in networks for weight in network.parameters()):
        reason = "has weights that are single numbers, which cannot be divided"
    if reason is not None:
        raise ConfigError("train.shard", f"got {train.shard!r}, but {type(model).__name__} {reason}; set it to none")
    if train.microbatch == "auto":
        raise ConfigError("train.microbatch", "got 'auto', which train.shard does not have; give a number, or leave it out")
    if model.gathers == "blocks" and train.batch_size % world.size:
        reason = f"got {train.batch_size}, expected a multiple of the {world.size} processes, which train.shard lets run in step"
        raise ConfigError("train.batch_size", reason)
    _shard_size(train, world)


def _shard_size(train: TrainConfig, world: World) -> int:
    """How many processes hold one copy of the model between them."""
    if train.shard == "full":
        return world.size
    size = train.shard_size or int(os.environ.get("LOCAL_WORLD_SIZE", world.size))
    if size < 2 or world.size % size:
        raise ConfigError("train.shard_size", f"got {size}, expected at least 2 and a divisor of the {world.size} processes")
    return size


def blocks(network: nn.Module) -> Iterator[nn.Module]:
    """The parts of a network whose weights are gathered one after the other, outermost ones.

    What its attribute `shard_blocks` names, where it has one, else the elements of its ModuleLists (a list that runs itself is one).
    """
    if hasattr(network, "shard_blocks"):
        yield from network.shard_blocks  # type: ignore[misc]
        return
    listed = isinstance(network, nn.ModuleList)
    for child in network.children():
        if _runs(child) and (listed or isinstance(child, nn.ModuleList)):
            yield child
        else:
            yield from blocks(child)


def _runs(module: nn.Module) -> bool:
    """Whether it may be called: a plain list or dictionary of modules may not."""
    return not isinstance(module, nn.ModuleList | nn.ModuleDict) or "forward" in vars(type(module))


def own_part(tensor: Tensor) -> Tensor:
    """What this process has of a tensor that may be divided: it shares memory with it, and has no gradient."""
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # pyright: ignore[reportAttributeAccessIssue]


class Sharding:
    """The networks that a model learns, divided between the processes of `world`. All of them must have equal weights before."""

    def __init__(self, model: Model, train: TrainConfig, world: World) -> None:
        from torch.distributed.device_mesh import init_device_mesh  # these take long to import
        from torch.distributed.fsdp import fully_shard

        refuse_undividable(model, train, world)
        self._world, self._model = world, model
        self.by_block = model.gathers == "blocks"
        "Whether weights are gathered block by block; else whole, for the passes of a step."
        size = _shard_size(train, world)
        shape, names = ((size,), ("shard",)) if size == world.size else ((world.size // size, size), ("copy", "shard"))
        self.mesh = self._mesh_of_copies = init_device_mesh(world.device.type, shape, mesh_dim_names=names)
        self._group = self.mesh.get_group("shard")
        self._rank, self._size = self.mesh.get_local_rank("shard"), size
        world.further_groups.extend(self.mesh.get_group(name) for name in names)
        learned = {name: getattr(model, name) for name in dict.fromkeys(name for phase in model.phases for name in phase.networks)}
        self._networks: list[Any] = list(learned.values())
        world.take_from_main([parameter for network in self._networks for parameter in network.parameters()])
        for network in self._networks:
            for parameter in network.parameters():
                parameter.data = parameter.data.contiguous()  # FSDP takes no other
            for block in blocks(network) if self.by_block else ():
                if next(block.parameters(), None) is not None:
                    fully_shard(block, mesh=self.mesh)
            # A single number, which FSDP does not divide, stays as it is in every process.
            fully_shard(network, mesh=self.mesh, ignored_params={p for p in network.parameters() if p.ndim == 0})
        self._units: list[Any] = [module for network in self._networks for module in network.modules() if hasattr(module, "unshard")]
        self._weights: dict[str, Any] = {
            name: parameter for prefix, network in learned.items() for name, parameter in network.named_parameters(prefix=prefix)
        }
        self._divided = {name: weight for name, weight in self._weights.items() if weight.ndim}

    # Parts and wholes ------------------------------------------------------------------------------------------------

    def optimized(self, names: Iterable[str]) -> dict[str, nn.Parameter]:
        """Parameters for an optimizer by their names in the model: this process's parts, in the same memory."""
        return {name: nn.Parameter(own_part(self._weights[name])) for name in names}

    def part(self, name: str, whole: Tensor) -> Tensor:
        """This process's part of a tensor that belongs to that tensor of the model: one that is not divided has all of it."""
        if name not in self._divided or whole.ndim == 0:
            return whole  # also the number of an optimizer's steps
        rows = -(-len(whole) // self._size)
        start = min(self._rank * rows, len(whole))
        return whole[start : start + rows]

    def joined(self, name: str, part: Tensor) -> Tensor:
        """The divided tensor (a DTensor) of which this process has that part."""
        from torch.distributed.tensor import DTensor

        whole = self._divided.get(name)
        if whole is None or part.ndim == 0:
            return part
        placed: dict[str, Any] = {"shape": whole.shape, "stride": whole.stride()}
        mesh = self.mesh if part.device.type == self.mesh.device_type else self._mesh_of_copies
        return DTensor.from_local(part, mesh, whole.placements, run_check=False, **placed)

    def join_on_host(self) -> None:
        """Lets `joined` take copies of parts in the host's memory too. All processes call it."""
        from torch.distributed.device_mesh import init_device_mesh

        if self.mesh.device_type != "cpu":
            self._mesh_of_copies = init_device_mesh("cpu", tuple(self.mesh.shape), mesh_dim_names=self.mesh.mesh_dim_names)

    # Passes ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """The context in which every process has all weights, as plain parameters, and may run the networks as often as it likes.

        A gradient is then this process's own. All processes enter it together.
        """
        self._hold(True)
        for unit in self._units:
            unit.unshard()
        try:
            yield
        finally:
            for unit in self._units:
                unit.reshard()
            self._hold(False)

    def _hold(self, whole: bool) -> None:
        for network in self._networks:
            network.set_reshard_after_forward(not whole)
            if self.by_block:
                network.set_reshard_after_forward(False, recurse=False)  # what is in no block: the backward pass begins with it
            network.set_reshard_after_backward(not whole)
            network.set_requires_gradient_sync(not whole)

    def require_gradients(self, names: Iterable[str], wanted: bool) -> None:
        """Switches the gradients of weights on or off. Not while they are gathered."""
        for name in names:
            self._weights[name].requires_grad_(wanted)

    @torch.no_grad()
    def take_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Moves this process's parts of the sums of the gradients to the `optimized` parameters.

        Where weights are gathered whole, it is called while they are: then the gradients are summed here.
        """
        if self.by_block:
            for name, parameter in parameters.items():
                divided = self._divided[name]
                parameter.grad, divided.grad = None if divided.grad is None else divided.grad.to_local(), None
            return
        present = dict(self._model.named_parameters())
        graded = self._world.largest([present[name].grad is not None for name in parameters])
        gradients: dict[str, Tensor] = {}
        for name, reached in zip(parameters, graded, strict=True):
            if reached:  # in some process
                own = present[name].grad
                gradients[name] = torch.zeros_like(present[name]) if own is None else own
        self._world.sum_all(gradients.values())
        for name, parameter in parameters.items():
            parameter.grad = self.part(name, gradients[name]).clone(memory_format=torch.contiguous_format) if name in gradients else None
            present[name].grad = None

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of a gradient of which each process has these parts, and all of what is not divided (single numbers)."""
        norm = torch.nn.utils.get_total_norm([gradient for gradient in gradients if gradient.ndim])
        squares = norm.double().square()
        dist.all_reduce(squares, group=self._group)
        squares += sum(gradient.double().square() for gradient in gradients if not gradient.ndim)
        return squares.sqrt().to(norm.dtype)
