"""The largest microbatch whose passes fit into memory (`train.microbatch auto`), or the largest batch, found by making them."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from torch import Tensor

from triptych.core.batch import Batch
from triptych.core.memory import limited_to_available
from triptych.core.model import Phase, TrainingProgress
from triptych.engine.distributed import World
from triptych.engine.microbatch import Attempts, Microbatch, largest_that_fits, reserved
from triptych.engine.turns import Turns


def find_microbatch(
    turns: Turns, slices: Sequence[Batch], *, microbatch: Microbatch, attempts: Attempts, at: TrainingProgress, world: World
) -> None:
    """Makes `microbatch` as large as fits, in all processes alike. Changes nothing else.

    It makes the forward and backward passes of all turns of the iteration `at`, in which every phase is due, on `slices`. On a CPU no
    more memory is taken than there is, so that the system kills nobody. Raises DoesNotFit where not even the smallest microbatch fits.
    """
    parameters = [parameter for updater in turns.updaters.values() for parameter in updater.parameters.values()]

    def fits(size: int) -> bool:
        return attempts.fits(parameters, lambda: _passes(turns, slices, size, at))

    neighbours = world.gather(socket.gethostname()).count(socket.gethostname())
    with limited_to_available(neighbours) if world.device.type == "cpu" else nullcontext():
        size = largest_that_fits(microbatch.sizes, fits)
    microbatch.size = size or microbatch.group
    if size is None:
        raise microbatch.does_not_fit(attempts.said)
    for updater in turns.updaters.values():
        updater.require_gradients(True)


def largest_batch(
    turns: Turns, slices: Sequence[Batch], *, group: int, attempts: Attempts, at: TrainingProgress, world: World
) -> int | None:
    """The largest batch, smaller than that of `slices`, of which the passes of an iteration fit; None: none does, or it cannot be said.

    For models whose samples affect each other, in a process that is alone. Changes nothing.
    """
    parameters = [parameter for updater in turns.updaters.values() for parameter in updater.parameters.values()]

    def fits(size: int) -> bool:
        return attempts.fits(parameters, lambda: _passes(turns, [batch[:size] for batch in slices], size, at))

    sizes = range(group * ((len(slices[0]) - 1) // group), 0, -group)
    try:
        with limited_to_available(1) if world.device.type == "cpu" else nullcontext():
            return largest_that_fits(sizes, fits) if sizes else None
    except (RuntimeError, ValueError):  # so few images may be too few for the model
        return None


def _passes(turns: Turns, slices: Sequence[Batch], size: int, at: TrainingProgress) -> None:
    """Makes the passes of an iteration, with the memory taken that the optimizers will take."""

    def passes(phase: Phase, batch: Batch, progress: TrainingProgress) -> Mapping[str, Tensor]:
        rng = turns.rng(phase, batch, progress)
        return turns.updaters[phase.networks].try_passes(phase, batch, rng=rng, size=size, progress=progress)

    with reserved(updater.optimizer for updater in turns.updaters.values()):
        turns.take([batch[: 2 * size] for batch in slices], passes, at)  # two microbatches: the second one finds gradients there
