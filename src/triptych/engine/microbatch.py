"""How many images go through the networks at once in each process, and work that is undone where memory does not suffice for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from triptych.core.errors import ConfigError
from triptych.core.memory import is_out_of_memory, said_of
from triptych.core.model import Model
from triptych.core.wording import counted
from triptych.engine.allocator import keep_freed_memory, return_freed_memory
from triptych.engine.config import TrainConfig
from triptych.engine.distributed import World
from triptych.engine.sharding import is_divided

T = TypeVar("T")


class DoesNotFit(ConfigError):
    """A step does not fit into memory, and cannot be divided any further."""


class Microbatch:
    """The largest number of images that go through a network at once: one for all phases and all processes."""

    def __init__(self, model: Model, *, train: TrainConfig, world: World) -> None:
        self._model, self._train, self._processes = model, train, world.size
        self.group = model.group_size
        self.size = min(train.at_once(world.size), -(-train.batch_size // world.size))
        self._divided = is_divided(train, world)
        self.shrinks = train.out_of_memory == "halve" and not model.couples_samples and not self._divided
        "Whether it becomes smaller where memory does not suffice."

    @property
    def sizes(self) -> list[int]:
        """All that divide a process's share into as equal parts as can be, descending: the whole, its half, its third and so on."""
        groups = self.size // self.group
        return [self.group * size for size in dict.fromkeys(-(-groups // parts) for parts in range(1, groups + 1))]

    def halve(self, said: str) -> None:
        """Takes half of it, rounded up. Raises DoesNotFit, which says what was `said`, where it cannot be divided."""
        if not self.shrinks or self.size <= self.group:
            raise self.does_not_fit(said)
        self.size = self.group * -(-(self.size // self.group) // 2)

    def does_not_fit(self, said: str, *, batch: int | None = None) -> DoesNotFit:
        """The error for a step that cannot be divided as it would have to be. `batch`: the largest that fits, where that is known."""
        what = f"{counted(self.size, 'image at once does', 'images at once do')} not fit into memory ({said})"
        if self._model.couples_samples:
            coupled = f"and the samples of a batch affect each other in {type(self._model).__name__}, so that it cannot be divided"
            every, option = "", ""
            if self._processes > 1:
                every, option = f", which is that of all {self._processes} processes", f" --processes {self._processes}"
            remedy = f"lower it{every} (triptych plan{option} measures what fits)"
            remedy = remedy if batch is None else f"{counted(batch, 'fits', 'fit')}: lower it to that"
            return DoesNotFit("train.batch_size", f"got {self._train.batch_size}, but {what}, {coupled}; {remedy}")
        if self.size > self.group:
            leave = "" if self._divided or self._train.out_of_memory == "halve" else ", or leave that to train.out_of_memory halve"
            return DoesNotFit("train.microbatch", f"{what}; lower it{leave}")
        less = "lower data.image_size or the widths of the model, or take less memory for them: train.precision bf16, or activations that"
        return DoesNotFit("train.microbatch", f"{what}, and fewer there cannot be; {less} the model computes again")


class Attempts:
    """Work that adds up gradients. Where memory does not suffice for it, in any process, all of it is undone in all of them.

    What a forward and a backward pass may change is put back: gradients, buffers, the states of PyTorch's generators. No optimizer's step
    may be among the work, and no collective operation.
    """

    def __init__(self, model: Model, world: World) -> None:
        self._world = world
        frozen = {id(module) for name in model.frozen_networks for module in getattr(model, name).modules()}
        self._modules = [module for module in model.modules() if id(module) not in frozen and module._buffers]
        self.said = ""
        "What the last error of want of memory said."

    def attempt(self, parameters: Sequence[nn.Parameter], work: Callable[[], T], *, together: bool) -> T | None:
        """What `work` returns, which adds to the gradients of `parameters`; None where memory did not suffice: then all is as before.

        `together`: whether all processes do it and agree on the outcome; then all have gradients of the same parameters. Several that do
        not agree end with the one that lacks memory, and nothing is kept of what they did: then nothing is put back.
        """
        lost = self._world.size > 1 and not together
        before = None if lost else _State(self._modules, parameters, self._world.device)
        result = self._result(parameters, work, together=together)
        if result is None and before is not None:
            self._undo(before)
        return result

    def fits(self, parameters: Sequence[nn.Parameter], work: Callable[[], object]) -> bool:
        """Whether memory suffices for `work` in all processes. Either way all is as before."""
        before = _State(self._modules, parameters, self._world.device)
        done = self._result(parameters, lambda: work() or True, together=True) is not None
        self._undo(before)
        return done

    def _result(self, parameters: Sequence[nn.Parameter], work: Callable[[], T], *, together: bool) -> T | None:
        result: T | None = None
        failed = False
        try:
            result = work()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            failed, self.said = True, said_of(error)
        # Out of the handler: the error, and with it all that its frames hold, is gone.
        if together:
            mine = [failed, *(parameter.grad is not None for parameter in parameters)]
            failed_anywhere, *graded = self._world.largest(mine)
            self.said = self.said if failed == failed_anywhere else "in another process"
            failed = bool(failed_anywhere)
            for parameter in () if failed else itertools.compress(parameters, graded):
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        return None if failed else result

    def _undo(self, before: _State) -> None:
        before.restore()
        keep_freed_memory(keep=False)
        return_freed_memory(self._world.device)


class _State:
    """What a forward and a backward pass may change, as it is now."""

    def __init__(self, modules: Iterable[nn.Module], parameters: Sequence[nn.Parameter], device: torch.device) -> None:
        self._buffers = [(module, name, tensor, _copy(tensor)) for module in modules for name, tensor in module._buffers.items()]
        self._parameters = [(parameter, parameter.grad is not None) for parameter in parameters]
        self._device = device
        self._generator = torch.get_rng_state()
        self._device_generator = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @torch.no_grad()
    def restore(self) -> None:
        """Puts it back. Gradients that were there, all of them 0, are 0 again; the others are gone."""
        for parameter, kept in self._parameters:
            if kept and parameter.grad is not None:
                parameter.grad.zero_()
            else:
                parameter.grad = None
        for module, name, tensor, values in self._buffers:
            module._buffers[name] = tensor
            if tensor is not None and values is not None:
                tensor.copy_(values)
        torch.set_rng_state(self._generator)
        if self._device_generator is not None:
            torch.cuda.set_rng_state(self._device_generator, self._device)


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def largest_that_fits(sizes: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """The first of the descending `sizes` that fits, all after it being taken to fit too; None: none does. Large ones are tried first."""
    low = at = 0
    while not fits(sizes[at]):
        if at == len(sizes) - 1:
            return None
        low, at = at + 1, min(2 * at + 1, len(sizes) - 1)
    high = at
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(sizes[middle]) else (middle + 1, high)
    return sizes[high]


@contextmanager
def reserved(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[None]:
    """The context in which the memory is taken that the states of optimizers will take from their first step on."""
    fresh = (p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"] if not optimizer.state.get(p))
    taken = [torch.empty_like(parameter).fill_(0) for parameter in fresh for _ in range(2)]  # two moments: all of them have these
    yield
    del taken
