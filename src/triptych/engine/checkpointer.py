"""What of a training goes into its checkpoints and snapshots, and comes back: weights, averages, the state of the optimizers.

A checkpoint may be written in a thread (`train.checkpoint_writing background`), of a copy in the host's memory, while the training goes on.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from triptych.core.errors import CheckpointError, RunError
from triptych.core.files import explained, remove, temporary_path
from triptych.core.model import Model
from triptych.engine.checkpoint import OPTIMIZER, Checkpoint, Files, not_finite, prune, save_checkpoint
from triptych.engine.config import TrainConfig
from triptych.engine.distributed import World
from triptych.engine.ema import Average
from triptych.engine.host_copies import HostCopies
from triptych.engine.optim import load_optimizer_state, optimizer_state
from triptych.engine.run_directory import RunDirectory
from triptych.engine.sharding import Sharding, own_part
from triptych.engine.snapshots import late, save_snapshot
from triptych.engine.state import STATISTICS
from triptych.engine.updater import Updater

_PATIENCE = timedelta(hours=12)  # of the threads for one another; a process that has gone ends their wait at once
_SEEN_SECONDS = 10.0  # until a new file is seen on the disk of a network


class Checkpointer:
    """Writes the checkpoints of a training and restores it from one. The main process writes; of a divided model each its parts."""

    def __init__(
        self,
        model: Model,
        updaters: Mapping[Any, Updater],
        averages: Sequence[Average],
        *,
        sharding: Sharding | None,
        train: TrainConfig,
        world: World,
        directory: RunDirectory,
    ) -> None:
        self._model, self._updaters, self._averages = model, list(updaters.values()), averages
        self._sharding, self._train, self._world, self._directory = sharding, train, world, directory
        self._writes = world.is_main or sharding is not None
        self._background = Background(world.device) if train.checkpoint_writing == "background" else None
        self._together: World | None = None
        "The processes that write a checkpoint together; None: the main process does it alone."
        if sharding is not None and self._background is not None:  # the messages of a group may not come from two threads
            self._together = dataclasses.replace(world, control=dist.new_group(backend="gloo", timeout=_PATIENCE), peers=None)
            sharding.join_on_host()
        elif sharding is not None:
            self._together = world
        self._pending = False
        self._good: int | None = None
        "Images seen by the checkpoint that was read or written last."

    def require_one_folder(self, *, say: Callable[[str], None]) -> None:
        """Raises CheckpointError in all processes where they write parts of checkpoints and one does not see the folder of the main one.

        The first checkpoint would find it too, and all until then would be lost. Where the main process writes alone it is warned of.
        """
        folder = self._directory.root
        fault = None if self._world.size == 1 else another_folder(folder, self._world)
        if fault is None:
            return
        if self._sharding is None:
            say(f"warning: {fault}: only a start with rank 0 there goes on with this run; give --run on a disk that all machines share")
            return

        def refuse() -> None:
            why = "with train.shard all processes write parts of a checkpoint"
            raise CheckpointError(f"{fault}, and {why}: give --run on a disk that all machines share, or set train.shard to none")

        self._world.on_main(refuse)

    # Reading ---------------------------------------------------------------------------------------------------------

    def restore(self, checkpoint: Checkpoint, *, say: Callable[[str], None]) -> None:
        """Gives the optimizers and the averages their state; `say` gets a line for what the checkpoint does not have.

        Raises CheckpointError for an optimizer's state of another model.
        """
        self._good = checkpoint.images_seen
        imported = "imported" in checkpoint.info
        if imported and OPTIMIZER not in checkpoint.files:
            say("the weights were imported without an optimizer's state: the optimizer starts anew")
        else:
            for updater in self._updaters:
                prefix = f"{updater.name}:"
                tensors = {name.removeprefix(prefix): t for name, t in checkpoint.files[OPTIMIZER].items() if name.startswith(prefix)}
                load_optimizer_state(updater.optimizer, updater.parameters, self._parts(tensors))
                updater.scale.log2_scale = checkpoint.info["log2_loss_scale"].get(updater.name, updater.scale.log2_scale)
        for average in self._averages:
            stored = checkpoint.files.get(average.settings.name)
            average.begun = checkpoint.images_seen
            if stored is not None:
                average.load(self._parts(stored))
                average.begun = checkpoint.info.get("begun", {}).get(average.settings.name, 0)
            elif imported:
                say(f"the average of {average.settings.described} starts at the imported weights")
            else:
                say(f"warning: this run had no average of {average.settings.described}; it starts at the weights of now")

    def _parts(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What this process keeps of the tensors of a file of a checkpoint."""
        if self._sharding is None:
            return tensors
        return {name: self._sharding.part(_weight_of(name), tensor) for name, tensor in tensors.items()}

    # Writing ---------------------------------------------------------------------------------------------------------

    def write(self, images_seen: int, *, best: Mapping[str, Any] | None, window: Mapping[str, Any], estimated: bool = True) -> None:
        """Writes a checkpoint of the present state and removes old ones. All processes call it.

        `best` and `window` go into its state.json, and whether the statistics of the averages are `estimated`. In the background it is not
        yet written when this returns: `finish` waits for it, and is called before the next one.

        Raises RunError in all processes for weights that are not finite, and CheckpointError when the disk is full or refuses.
        """
        assert not self._pending
        files = self._tensors()
        if self._background is None:
            self._require_finite(files, images_seen, among=self._world)
        self._pending = self._background is not None
        if not self._writes:
            return
        scales = {updater.name: updater.scale.log2_scale for updater in self._updaters}
        info: dict[str, Any] = {"log2_loss_scale": scales, "best": best, "window": window} | late(self._averages)
        if not estimated:
            info[STATISTICS] = False
        self._directory.require()

        def save(files: Files) -> None:
            together = self._together
            if self._background is not None:
                self._require_finite(files, images_seen, among=together)
            folder, joined = self._directory.checkpoints, self._joined(files)
            save_checkpoint(folder, images_seen=images_seen, files=joined, info=info, together=together, good=self._good)
            self._good = images_seen
            self.prune(best)

        if self._background is None:
            save(files)
        else:
            info = copy.deepcopy(info)
            self._background.begin(save, files)

    @property
    def pending(self) -> bool:
        """Whether a checkpoint was begun and not waited for. The same in all processes."""
        return self._pending

    @property
    def failed(self) -> bool:
        """Whether this process already knows that the checkpoint under way cannot be written."""
        return self._background is not None and self._background.error is not None

    def finish(self) -> None:
        """Waits until a checkpoint that is under way is on the disk. All processes call it; without one there is nothing to do.

        Raises in all of them what `write` would have raised.
        """
        if self._background is None or not self._pending:
            return
        self._background.wait()
        error, self._background.error, self._pending = self._background.error, None, False
        told = None if error is None else (isinstance(error, RunError), str(error))
        faults = [each for each in self._world.gather(told) if each is not None]
        if error is not None:
            raise error
        if faults:
            of_the_run, text = faults[0]
            raise RunError(text) if of_the_run else CheckpointError(text)

    def close(self) -> None:
        """Waits until this process writes no more; what went wrong with it is not told."""
        if self._background is not None:
            self._background.wait()

    def prune(self, best: Mapping[str, Any] | None) -> None:
        """Removes old checkpoints, in the main process. Raises CheckpointError."""
        if self._world.is_main:
            self._directory.require()
            images, train = None if best is None else int(best["images"]), self._train
            prune(self._directory.checkpoints, keep_last=train.keep_last, keep_every=train.keep_every, best=images, good=self._good)

    def write_snapshot(self, images_seen: int) -> None:
        """Writes a snapshot of the averages by length. All processes call it. Raises as `write` does."""
        self._require_finite({average.settings.name: average.tensors for average in self._averages}, images_seen, among=self._world)
        if self._writes:
            self._directory.require()
            dtype = torch.float16 if self._train.snapshot_precision == "fp16" else torch.float32
            save_snapshot(self._directory.snapshots, self._averages, images_seen=images_seen, dtype=dtype, arranged=self._arranged)

    def stored_bytes(self) -> dict[str, int]:
        """Bytes of the tensors of each file of a checkpoint, by its stem; where the model is divided, of this process's parts."""
        return {name: sum(tensor.nbytes for tensor in tensors.values()) for name, tensors in self._tensors().items()}

    def _require_finite(self, files: Files, images_seen: int, *, among: World | None) -> None:
        """Raises RunError in all these processes where weights are not finite: no loss has seen those of the last step yet."""
        own = not_finite(files) if self._writes else None
        fault = next((each for each in ([own] if among is None else among.gather(own)) if each is not None), None)
        if fault is not None:
            raise RunError(
                f"{fault} at {images_seen} images seen; nothing after the last checkpoint was saved; "
                "a lower --optim.learning-rate or --optim.clip-norm may help"
            )

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        """The tensors of each file of a checkpoint, by its stem and their names; they share memory with the training.

        Where the model is divided, they are this process's parts.
        """
        files = {"model": {name: own_part(tensor) for name, tensor in self._model.state_dict().items()}, OPTIMIZER: {}}
        files |= {average.settings.name: average.tensors for average in self._averages}
        for updater in self._updaters:
            state = optimizer_state(updater.optimizer, updater.parameters)
            files[OPTIMIZER] |= {f"{updater.name}:{name}": tensor for name, tensor in state.items()}
        return files

    def _arranged(self, files: Files) -> tuple[Files, World | None]:
        """The files of a snapshot as they are written, and the processes that write them together, if they do."""
        return self._joined(files), None if self._sharding is None else self._world

    def _joined(self, files: Files) -> Files:
        """The files as they are written: what is divided as tensors of which this process has a part."""
        if self._sharding is None:
            return files
        joined = self._sharding.joined
        return {stem: {name: joined(_weight_of(name), part) for name, part in parts.items()} for stem, parts in files.items()}


class Background:
    """A thread that writes one thing at a time, of copies of the tensors in host memory, which are kept for the next time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies = HostCopies(device)
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None
        "What ended the work too early."

    def begin(self, write: Callable[[Files], None], files: Files) -> None:
        """Copies the tensors of the files as they are now, and begins to write them. The one before must have been waited for."""
        copies = self._copies.taken(files)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

        def work() -> None:
            try:
                if self._device.type == "cuda":
                    torch.cuda.set_device(self._device)  # each thread has its own
                write(copies)
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def another_folder(folder: Path, world: World) -> str | None:
    """Says of the first process that does not see what the main one writes into the folder of a run; None: all see it. All call it."""

    def made() -> str:
        mark = temporary_path(folder / "seen")  # `RunDirectory.sweep` removes one that a killed process left
        with explained(f"write to the run directory {folder}"):
            mark.touch()
        return mark.name

    mark = folder / world.on_main(made)
    until = time.monotonic() + _SEEN_SECONDS
    while not (seen := os.path.exists(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    hosts = world.gather((seen, socket.gethostname()))
    if world.is_main:
        remove(mark)
    blind = next((rank for rank, (saw, _) in enumerate(hosts) if not saw), None)
    return None if blind is None else f"{folder} is another folder for rank {blind} on {hosts[blind][1]} than for rank 0 on {hosts[0][1]}"


def _weight_of(name: str) -> str:
    """The weight that a tensor of a checkpoint belongs to: of "networks:weight/moment", a tensor of an optimizer, the weight."""
    return name.rpartition(":")[2].partition("/")[0]
