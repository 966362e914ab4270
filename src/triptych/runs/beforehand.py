"""What a training would refuse at its start, found before its job waits in a queue."""

from __future__ import annotations

import torch

from triptych.core.address import Address, is_address
from triptych.core.reading import user_path
from triptych.core.remote import require_reader
from triptych.data.config import DataConfig
from triptych.data.fingerprint import refuse_held_out
from triptych.data.source import located_anywhere
from triptych.engine.distributed import World
from triptych.engine.run_directory import RunDirectory, list_checkpoints
from triptych.recipes.config import RunConfig
from triptych.runs.beginning import begin, same_images, same_objects
from triptych.runs.document import with_own_list
from triptych.runs.latent_space import require_decodable
from triptych.runs.stored import outline
from triptych.runs.training import initialize_from, prepare_model
from triptych.runs.training_scores import TrainingScores, names_and_embedder

_CPU = torch.device("cpu")  # that of a login node says nothing of those that will train: only settings are compared


def refuse_at_start(
    config: RunConfig, directory: RunDirectory, *, recipe: str | None, init_from: str | None, processes: int, of_each_machine: int
) -> None:
    """Raises the UserError with which `runs.train` of so many processes would end at its start; nothing is written.

    No server is asked: of data at an address only what this machine lacks to read them, and settings that do not go with an address. So of
    a new run on such data nobody knows how large the images are, and what depends on that is for the training to refuse.
    """
    directory.check()
    start = begin(config.rescaled(processes), directory, recipe, _CPU, None)
    config, stored = start.config, start.stored
    if is_address(config.data.path):
        _refuse_address(config.data)
        spec = None if stored is None else stored.spec
    else:
        data = (with_own_list(config.data, directory) if start.keeps_list else config.data).open()
        spec = data.spec
        if stored is not None:
            same_objects(stored.objects, data.objects)
            spec = same_images(stored.spec, spec, fresh=start.fresh)
            refuse_held_out(stored.held_out, data)
    alone, watched = World(0, 1, _CPU), config.train.evaluate_every is not None
    if spec is None:
        if watched:
            names_and_embedder(config.train, alone)
        return
    model = outline(config, spec)
    if init_from is not None and not list_checkpoints(directory.checkpoints):
        initialize_from(model, init_from, spec)
    if config.train.shard == "hybrid" and config.train.shard_size is None:  # torchrun tells it to the processes
        config = config.updated({"train": {"shard_size": of_each_machine}})
    train = config.train
    prepare_model(model, config, spec, World(0, processes, _CPU))
    if watched and is_address(config.data.path):
        names_and_embedder(train, alone)
    elif watched:
        TrainingScores(model, spec, config, directory, alone)
    require_decodable(spec, train, directory)


def _refuse_address(data: DataConfig) -> None:
    """Raises ConfigError or DataError for data at an address that a training with these settings and this Python cannot read."""
    refuse_settings_of_address(data)
    require_reader(Address(str(data.path)))


def refuse_settings_of_address(data: DataConfig) -> None:
    """Raises ConfigError or DataError for settings that do not go with an address, whatever the machine."""
    if type(data) is not DataConfig:
        user_path(str(data.path))  # which refuses it: pairs, domains and clips are read on this machine alone
    if data.source not in ("auto", "digits"):  # else the server may have to say what is there
        located_anywhere(data)
