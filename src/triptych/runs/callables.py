"""What the training loop is handed: images, a validation, and what draws grids of samples."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from triptych.core.batch import RawBatch
from triptych.core.errors import DataError
from triptych.core.model import Encoder, Model, Sampler, Upsampler
from triptych.core.translation import Translator
from triptych.core.wording import counted
from triptych.data.images import Data, ImageSet
from triptych.data.loader import Loader, evaluation_batches
from triptych.data.skipping import Chosen, spread
from triptych.engine.callables import Callables, Evaluation, Grid
from triptych.engine.distributed import World
from triptych.engine.progress import Watch
from triptych.engine.run_directory import RunDirectory
from triptych.engine.validation import validation_loss
from triptych.recipes.config import RunConfig
from triptych.runs.bad_images import BadImages, readable_images
from triptych.runs.latent_space import shown_by
from triptych.runs.reconstructing import reconstructed_grid
from triptych.runs.sampling import Request, Samples, drawing, label_list, write_grid
from triptych.runs.translating import translated_grids
from triptych.runs.upsampling import upsampled_grid
from triptych.runs.work import assembled, in_memory


def callables(
    model: Model,
    data: Data,
    config: RunConfig,
    directory: RunDirectory,
    world: World,
    loader: Loader,
    evaluation: Evaluation | None = None,
    bad_images: BadImages | None = None,
) -> Callables:
    """All that the loop of the run in `directory` calls, of which `loader` draws the training images.

    `bad_images` has what the loader and the validation find.
    """
    return Callables(
        draw=loader.batches,
        validate=_validation(model, data, config, world, {} if bad_images is None else bad_images.found),
        grids=_grids(model, data, config, directory, world),
        calibrate=_calibration(data, config, world),
        evaluation=evaluation,
        news=None if bad_images is None else bad_images.news,
    )


def training_loader(data: Data, config: RunConfig, world: World, *, workers: int | None, bad_images: BadImages | None = None) -> Loader:
    """What draws this process's share of the training images."""
    return Loader(
        data.train,
        batch_size=config.train.batch_size,
        seed=config.train.seed,
        rank=world.rank,
        world_size=world.size,
        workers=workers,
        bad=None if bad_images is None else bad_images.found,
    )


def _calibration(data: Data, config: RunConfig, world: World) -> Callable[[], Iterator[RawBatch]] | None:
    """The first batches of the training, again and again, for the statistics of batch norm; None where none are wanted."""
    if not config.train.statistics_batches:
        return None

    def batches() -> Iterator[RawBatch]:
        with closing(training_loader(data, config, world, workers=0)) as loader:
            yield from itertools.islice(loader.batches(0), config.train.statistics_batches)

    return batches


def _validation(
    model: Model, data: Data, config: RunConfig, world: World, bad: dict[str, str]
) -> Callable[[Watch], dict[str, float]] | None:
    """The validation for the loop; None where there is nothing to validate or nothing to do it with."""
    held_out, limit = data.validation, config.train.validate_images
    if held_out is None or not model.validated or not min(len(held_out), limit):
        return None
    train = config.train
    size = train.microbatch * world.size if isinstance(train.microbatch, int) else train.batch_size
    count = min(len(held_out), limit)

    @functools.cache
    def images() -> ImageSet:
        """Those that can be read of so many: the same in every process."""
        numbers = np.arange(count) if config.data.order == "by-name" else spread(count, len(held_out))
        good = readable_images(held_out, numbers, world, bad)
        if not len(good):
            raise DataError(f"of {counted(count, 'held-out image')} none can be read: set train.validate_images to 0")
        return Chosen(held_out, good)

    def validate(watch: Watch) -> dict[str, float]:
        batches = evaluation_batches(images(), batch_size=size, rank=world.rank, world_size=world.size)
        share = len(images()) / world.size
        seed, precision = config.train.seed, config.train.precision
        return validation_loss(model, batches, seed=seed, precision=precision, world=world, seen=lambda done: watch(done, share))

    return validate


def _grids(model: Model, data: Data, config: RunConfig, directory: RunDirectory, world: World) -> dict[str, Grid]:
    """What draws each grid of samples, or of what is made of held-out images, by the end of its name; none for a model that makes none."""
    train, count = config.train, config.train.sample_count
    size = train.at_once(world.size)  # what fits into memory with gradients fits without

    def grid(request: Request, write: Callable[[Path, np.ndarray], None]) -> Grid:
        def draw(path: Path, watch: Watch) -> None:
            parts = in_memory(drawing(model, request, batch_size=size, device=world.device), world, watch)
            if world.is_main:
                write(path, assembled(parts, request.count)["images"])

        return draw

    if isinstance(model, Translator) and count:
        return translated_grids(model, data, count=count, precision=train.precision, batch_size=size, world=world)
    if not isinstance(model, Sampler | Upsampler | Encoder) or not count or data.spec.pictured.channels not in (1, 3):
        return {}
    if not isinstance(model, Sampler):
        made = upsampled_grid if isinstance(model, Upsampler) else reconstructed_grid
        return {"": grid(*made(model, data, count=count, precision=train.precision))}
    labels = label_list(model.num_classes, data.spec, count=count, given=None)
    request = Request(count, 0, labels, model.sampling, train.precision, shown=shown_by(data.spec, world, directory))
    requests = {"": request} | {f"-{name}": dataclasses.replace(request, settings=settings) for name, settings in model.grids.items()}
    return {ending: grid(wanted, lambda path, images: write_grid(path, Samples(images, labels))) for ending, wanted in requests.items()}
