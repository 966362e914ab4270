"""The tensors of a training in a checkpoint: of the model, its averages and its optimizers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from torch import Tensor

from triptych.core.errors import RunError
from triptych.core.model import Model
from triptych.engine.checkpoint import OPTIMIZER, Checkpoint, not_finite
from triptych.engine.distributed import World
from triptych.engine.ema import Average
from triptych.engine.optim import load_optimizer_state, optimizer_state
from triptych.engine.updater import Updater


def saved_tensors(model: Model, updaters: Iterable[Updater], averages: Iterable[Average]) -> dict[str, dict[str, Tensor]]:
    """The tensors of each file of a checkpoint, by its stem and their names; they share memory with the training."""
    files = {"model": dict(model.state_dict()), OPTIMIZER: {}}
    files |= {average.settings.name: average.tensors for average in averages}
    for updater in updaters:
        state = optimizer_state(updater.optimizer, updater.parameters)
        files[OPTIMIZER] |= {f"{updater.name}:{name}": tensor for name, tensor in state.items()}
    return files


def refuse_not_finite(files: dict[str, dict[str, Tensor]], *, images_seen: int, world: World) -> None:
    """Raises RunError, in all processes alike, for weights and averages that are not finite: no loss has seen the last step's yet."""
    fault = world.from_main(not_finite(files) if world.is_main else None)
    if fault is not None:
        raise RunError(
            f"{fault} at {images_seen} images seen; nothing after the last checkpoint was saved; a lower --optim.learning-rate "
            "or --optim.clip-norm may help"
        )


def restore(checkpoint: Checkpoint, updaters: Collection[Updater], averages: Collection[Average]) -> Iterator[str]:
    """Takes the state of optimizers and averages; gives a line for the log for each that the checkpoint does not have.

    Raises CheckpointError for an optimizer's state of another model.
    """
    imported = "imported" in checkpoint.info
    if imported and OPTIMIZER not in checkpoint.files:
        yield "the weights were imported without an optimizer's state: the optimizer starts anew"
    else:
        for updater in updaters:
            prefix = f"{updater.name}:"
            own = {name.removeprefix(prefix): t for name, t in checkpoint.files[OPTIMIZER].items() if name.startswith(prefix)}
            load_optimizer_state(updater.optimizer, updater.parameters, own)
            updater.scale.log2_scale = checkpoint.info["log2_loss_scale"].get(updater.name, updater.scale.log2_scale)
    for average in averages:
        stored = checkpoint.files.get(average.settings.name)
        if stored is not None:
            average.load(stored)
        elif imported:
            yield f"the average of {average.settings.described} starts at the imported weights"
        else:
            yield f"warning: this run had no average of {average.settings.described}; it starts at the weights of now"
