"""What a training would refuse at its start, found before its job waits in a queue."""

from __future__ import annotations

import torch

from triptych.core.address import is_address
from triptych.engine.distributed import World
from triptych.engine.run_directory import RunDirectory, list_checkpoints
from triptych.engine.schedule import refuse_impossible, refuse_single_frames, refuse_unknown_phases
from triptych.recipes.config import RunConfig
from triptych.runs.beginning import begin, same_images, same_objects
from triptych.runs.document import with_own_list
from triptych.runs.latent_space import autoencoder_of
from triptych.runs.stored import outline
from triptych.runs.training import initialize_from
from triptych.runs.weights import load_frozen_networks

_CPU = torch.device("cpu")  # that of a login node says nothing of those that will train: only settings are compared


def refuse_at_start(
    config: RunConfig, directory: RunDirectory, *, recipe: str | None, init_from: str | None, processes: int, of_each_machine: int
) -> None:
    """Raises the UserError with which `runs.train` of so many processes would end at its start; nothing is written.

    Data at an address are not looked at: the machine that trains may see others.
    """
    directory.check()
    start = begin(config.rescaled(processes), directory, recipe, _CPU, None)
    config, stored = start.config, start.stored
    if is_address(config.data.path):
        spec = None if stored is None else stored.spec
    else:
        data = (with_own_list(config.data, directory) if start.keeps_list else config.data).open()
        spec = data.spec
        if stored is not None:
            same_objects(stored.objects, data.objects)
            spec = same_images(stored.spec, spec, fresh=start.fresh)
    if spec is None:
        return
    model = outline(config, spec)
    if init_from is not None and not list_checkpoints(directory.checkpoints):
        initialize_from(model, init_from, spec)
    if config.train.shard == "hybrid" and config.train.shard_size is None:  # torchrun tells it to the processes
        config = config.updated({"train": {"shard_size": of_each_machine}})
    train = config.train
    refuse_impossible(model, train, World(0, processes, _CPU))
    refuse_single_frames(spec.clip_length, train)
    refuse_unknown_phases(config.optim, model.phases, absent=model.absent_phases)
    load_frozen_networks(model)
    if spec.latents is not None and (train.evaluate_every is not None or train.sample_count):
        autoencoder_of(spec.latents, directory)
