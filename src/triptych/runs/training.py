"""Training: a configuration and a directory become a run, or a run goes on."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import secrets
import shlex
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triptych.core.batch import DataSpec, RawBatch
from triptych.core.errors import CheckpointError, ConfigError, Stopped
from triptych.core.model import DataInitialized, Model, Sampler, Translator, Upsampler
from triptych.core.reading import user_path
from triptych.core.rng import Rng
from triptych.data.images import Data
from triptych.data.loader import Loader, evaluation_batches
from triptych.engine.allocator import keep_freed_memory
from triptych.engine.checkpoint import Checkpoint, checkpoint_path, load_checkpoint, load_newest, sweep
from triptych.engine.distributed import World, failing_together, open_world
from triptych.engine.loop import Callables, Grid, Loop, refuse_impossible
from triptych.engine.metric_log import MetricLog
from triptych.engine.precision import native_precision
from triptych.engine.progress import Progress, Watch
from triptych.engine.reporting import Reporting
from triptych.engine.run_directory import RunDirectory, list_checkpoints
from triptych.engine.schedule import refuse_unknown_phases
from triptych.engine.signals import StopRequest, stop_on_signals, to_standard_error
from triptych.engine.validation import validation_loss
from triptych.interop.weight_files import read_weights
from triptych.recipes.config import RunConfig
from triptych.runs.document import RunDocument, accept_changes
from triptych.runs.interchange import settings_alone, untrained_import
from triptych.runs.run import Run, open_run
from triptych.runs.sampling import Drawing, Request, Samples, label_list, write_grid
from triptych.runs.stored import build, outline
from triptych.runs.translating import translated_grids
from triptych.runs.upsampling import upsampled_grid
from triptych.runs.weights import load_fitting_weights, load_weights
from triptych.runs.work import assembled, in_memory

_LONG_WARMUP = 0.1
"""A warm-up that takes more of a run than this is warned of."""
_FEW_HELD_OUT = 20


@dataclass
class _Start:
    """What this start of a run begins with."""

    config: RunConfig
    recipe: str | None
    stored: RunDocument | None
    "The run's own document; None: the run is new."
    notes: list[str]
    "Lines for the log."


def train(
    config: RunConfig,
    run_dir: str | Path,
    *,
    recipe: str | None = None,
    init_from: str | Path | None = None,
    device: str | None = None,
) -> Run:
    """Trains in `run_dir` until `config.train.total_images`, or until a signal asks to stop; the run is saved either way.

    A directory that holds a run goes on from its newest readable checkpoint; settings that may not change are refused.
    `init_from` starts a new run from another run's averaged weights. Under torchrun all processes call it alike.
    Raises UserError (ConfigError, DataError, CheckpointError) before anything is written, RunError when training fails, and Stopped, a
    KeyboardInterrupt, when a signal comes before the first step or after another one.
    """
    keep_freed_memory()
    world = open_world(device)
    directory = RunDirectory(Path(run_dir))
    with failing_together(), stop_on_signals() as stop, _saying_what_is_saved(directory), ExitStack() as stack:
        stop.at_once = True  # until there is something to save
        stop.say = to_standard_error if world.is_main else lambda message: None
        world.watch(limit_minutes=config.train.timeout_minutes, log_path=directory.log_path)
        start = world.on_main(lambda: _start(config.rescaled(world.size), directory, recipe, init_from, world.device, stack))
        data = start.config.data.open()
        if start.stored is not None:
            _require_same_images(start.stored.spec, data.spec)
        checkpoint = None if start.stored is None else _newest_checkpoint(directory, world, start.notes)
        model = (build if checkpoint is None else outline)(start.config, data.spec)
        if checkpoint is not None:
            load_weights(model, checkpoint.files["model"])
            start.notes += [] if init_from is None else ["--init-from is not used: the run goes on from its own checkpoint"]
        elif init_from is not None:
            start.notes += _initialize_from(model, init_from)
        refuse_impossible(model, start.config.train, world)
        refuse_unknown_phases(start.config.optim, model.phases)
        _lend_weights(model)
        document = RunDocument(start.config, data.spec, start.recipe)
        world.on_main(lambda: _prepare_directory(directory, document, start, stack))
        model.to(world.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if checkpoint is None and init_from is None:
            _initialize(model, data, start.config, world)
        _loop(model, data, document, directory, world, stack, checkpoint, start.notes, stop)
    return open_run(run_dir)


@contextmanager
def _saying_what_is_saved(directory: RunDirectory) -> Iterator[None]:
    """Within it an interruption says what of the run is on the disk."""
    try:
        yield
    except KeyboardInterrupt:
        saved = list_checkpoints(directory.checkpoints)
        if not saved:
            raise Stopped("interrupted before anything was saved; the same command begins again") from None
        raise Stopped(f"interrupted; the run is saved at {saved[-1]} images, and the same command goes on from there") from None


def _require_same_images(stored: DataSpec, found: DataSpec) -> None:
    """Raises ConfigError unless a run of `stored` can go on with the images of `found`; an imported run has classes without names."""
    nameless = stored.num_classes is not None and stored.class_names is None
    if found == stored or (nameless and dataclasses.replace(found, class_names=None) == stored):
        return
    names = ("image_size", "width", "channels", "num_classes", "inputs", "frames")
    lines = [f"{name} {getattr(found, name)} in place of {getattr(stored, name)}" for name in names]
    wrong = [line for line, name in zip(lines, names, strict=True) if getattr(found, name) != getattr(stored, name)]
    raise ConfigError(
        "data",
        f"the images are not those of this run ({', '.join(wrong) or 'other class names'}); give its own, or begin another run with "
        "--init-from this one",
    )


def _start(
    config: RunConfig, directory: RunDirectory, recipe: str | None, init_from: str | Path | None, device: torch.device, stack: ExitStack
) -> _Start:
    if not directory.exists() and list_checkpoints(directory.checkpoints):
        raise CheckpointError(
            f"{directory.root} has checkpoints but no config.json, as after an import that was cut short; import again, or choose another "
            "directory"
        )
    if not directory.exists() or settings_alone(directory):
        notes = []
        if config.train.randomized_seed:
            seed = secrets.randbits(63)
            config = dataclasses.replace(config, train=dataclasses.replace(config.train, seed=seed))
            notes = [f"drew seed {seed}"]
        config, reasons = _with_precision(config, device)
        return _Start(config, recipe, None, [*notes, *reasons])
    stack.enter_context(directory.lock())
    stored = RunDocument.from_dict(directory.read_config())
    if config.train.randomized_seed:
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, seed=stored.config.train.seed))
    settled, fresh = stored.config, untrained_import(directory)
    config, reasons = _with_precision(config, device, kept=None if fresh else settled.train.precision)
    if fresh:  # only the model of such a run is fixed
        settled = dataclasses.replace(settled, data=config.data, train=config.train, optim=config.optim, log=config.log)
    try:
        notes = reasons + accept_changes(settled, config, directory=str(directory.root))
    except ConfigError:
        if None in (recipe, stored.recipe) or recipe == stored.recipe:
            raise
        place = shlex.quote(str(directory.root))
        raise ConfigError(
            "--run",
            f"{directory.root} holds a run of {stored.recipe}, not of {recipe}: triptych train {place} goes on with it; for {recipe} give "
            f"another --run (with --init-from {place}, to begin with its weights)",
        ) from None
    return _Start(config, recipe or stored.recipe, stored, notes)


def _with_precision(config: RunConfig, device: torch.device, *, kept: str | None = None) -> tuple[RunConfig, list[str]]:
    """The configuration with a precision in place of auto, and a line for the log: `kept`, that of the run, or what suits the device."""
    if config.train.precision != "auto":
        return config, []
    native = native_precision(device)
    chosen = native if kept in (None, "auto") else kept
    suits = f"this {device.type} multiplies bf16 {'natively' if native == 'bf16' else 'no faster'}"
    why = suits if kept in (None, "auto") else "as in this run"
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, precision=chosen))
    return config, [f"train.precision auto: {chosen} ({why})"]


def _prepare_directory(directory: RunDirectory, document: RunDocument, start: _Start, stack: ExitStack) -> None:
    directory.create()
    if start.stored is None:
        stack.enter_context(directory.lock())
    directory.sweep()
    sweep(directory.checkpoints)
    directory.write_config(document.to_dict())


def _newest_checkpoint(directory: RunDirectory, world: World, notes: list[str]) -> Checkpoint | None:
    found: Checkpoint | None = None

    def find() -> int | None:
        nonlocal found
        found = load_newest(directory.checkpoints, warn=notes.append)
        return None if found is None else found.images_seen

    images = world.on_main(find)
    if images is None or found is not None:
        return found
    return load_checkpoint(checkpoint_path(directory.checkpoints, images))


def _initialize_from(model: Model, init_from: str | Path) -> list[str]:
    source = open_run(init_from)
    lines = load_fitting_weights(model, source.tensors())
    return [f"starts from the weights of {init_from} at {source.find_checkpoint()} images", *(f"init-from: {line}" for line in lines)]


def _lend_weights(model: Model) -> None:
    """Loads the frozen networks that training needs. Raises ConfigError where no file is given, CheckpointError where it does not fit."""
    for name, path in model.borrowed.items():
        if path is None:
            raise ConfigError(
                f"model.{name}.weights",
                f"missing: give the file of weights of the {name} network (.pth or .safetensors), or set model.{name}_weight to 0",
            )
        getattr(model, name).load(read_weights(user_path(path)), source=path)


def _initialize(model: Model, data: Data, config: RunConfig, world: World) -> None:
    """Data-dependent initialization, on the same first images in every process."""
    if not isinstance(model, DataInitialized):
        return
    with _closing(Loader(data.train, batch_size=model.init_images, seed=config.train.seed, workers=0)) as loader:
        batch = next(loader.batches(0)).to(world.device)
    model.initialize(batch, Rng(config.train.seed, ("initialize",), batch.index))


def _loop(
    model: Model,
    data: Data,
    document: RunDocument,
    directory: RunDirectory,
    world: World,
    stack: ExitStack,
    checkpoint: Checkpoint | None,
    notes: list[str],
    stop: StopRequest,
) -> None:
    config = document.config
    _prepare_backend(model, config, world)
    started_before = directory.metrics_path.exists()
    reporting = _reporting(directory, document, stack, checkpoint) if world.is_main else None
    say = reporting.log.text if reporting is not None else lambda message: None
    stack.callback(setattr, stop, "say", stop.say)  # before the log is closed
    stop.say = say
    stack.enter_context(_shown_warnings(say))
    loader = stack.enter_context(_closing(_loader(data, config, world, workers=config.data.workers)))
    loop = Loop(
        model,
        train=config.train,
        optim=config.optim.in_images(len(data.train)),
        log=config.log,
        world=world,
        directory=directory,
        callables=Callables(
            draw=loader.batches,
            validate=_validation(model, data, config, world),
            grids=_grids(model, data, config, world),
            calibrate=_calibration(data, config, world),
        ),
        reporting=reporting,
    )
    for line in [*_opening(model, data, document, directory, world, checkpoint), *notes]:
        say(line)
    if checkpoint is not None:
        loop.restore(checkpoint)
    if reporting is not None and started_before:
        reporting.log.resumed(loop.images_seen)
    _run(loop, stop, directory, say)
    world.barrier()


def _prepare_backend(model: Model, config: RunConfig, world: World) -> None:
    torch.backends.cudnn.deterministic = True  # its faster kernels add in an order of their own, and a resume would show it
    wish = config.train.compile
    if wish == "on" or (wish == "auto" and world.device.type == "cuda"):
        for name in dict.fromkeys(name for phase in model.phases for name in phase.networks):
            getattr(model, name).compile()


def _reporting(directory: RunDirectory, document: RunDocument, stack: ExitStack, checkpoint: Checkpoint | None) -> Reporting:
    images = 0 if checkpoint is None else checkpoint.images_seen
    progress = stack.enter_context(Progress(document.config.train.total_images, images=images))
    log = MetricLog(directory, config=document.config.log, settings=document.to_dict(), show=progress.message)
    return Reporting(stack.enter_context(log), progress)


def _run(loop: Loop, stop: StopRequest, directory: RunDirectory, say: Callable[[str], None]) -> None:
    started = time.monotonic()
    try:
        with failing_together():
            finished = loop.run(stop)
    except Exception as error:
        say(f"failed at {loop.images_seen} images: {error}")
        raise
    except KeyboardInterrupt:
        say(f"interrupted at {loop.images_seen} images")
        raise
    if finished:
        minutes = (time.monotonic() - started) / 60
        say(f"finished: {loop.images_seen} images seen, {minutes:.1f} minutes in this start; the run is in {directory.root}")
    else:
        say(f"stopped by {stop.name or 'another process'} at {loop.images_seen} images and saved; the same command goes on from there")


def _loader(data: Data, config: RunConfig, world: World, *, workers: int | None) -> Loader:
    return Loader(
        data.train,
        batch_size=config.train.batch_size,
        seed=config.train.seed,
        rank=world.rank,
        world_size=world.size,
        workers=workers,
    )


def _calibration(data: Data, config: RunConfig, world: World) -> Callable[[], Iterator[RawBatch]] | None:
    """The first batches of the training, again and again, for the statistics of batch norm; None where none are wanted."""
    if not config.train.statistics_batches:
        return None

    def batches() -> Iterator[RawBatch]:
        size = config.train.batch_size
        with _closing(
            Loader(data.train, batch_size=size, seed=config.train.seed, rank=world.rank, world_size=world.size, workers=0)
        ) as own:
            yield from itertools.islice(own.batches(0), config.train.statistics_batches)

    return batches


def _opening(
    model: Model, data: Data, document: RunDocument, directory: RunDirectory, world: World, checkpoint: Checkpoint | None
) -> Iterator[str]:
    settings = document.config.train
    parameters = sum(p.numel() for p in model.parameters())
    held_out = 0 if data.validation is None else len(data.validation)
    verb = "starts" if checkpoint is None else f"goes on at {checkpoint.images_seen} images"
    name = document.recipe or type(document.config.model).__name__.removesuffix("Config")
    yield f"{name} {verb}: run {directory.root}, {parameters:,} parameters, seed {settings.seed}, {settings.precision}"
    yield (
        f"{len(data.train):,} training images ({held_out:,} held out), {'x'.join(map(str, data.spec.height_and_width))}, "
        f"{data.spec.channels} channel(s), {data.spec.num_classes or 'no'} classes; {world.size} process(es) on {world.device.type}"
    )
    yield from data.notes
    if held_out and model.validated and settings.validate_images and held_out < _FEW_HELD_OUT:
        yield (
            f"warning: {held_out} images are held out, too few to choose the best checkpoint by: raise --data.validation-fraction, "
            "or judge by the samples"
        )
    yield from _long_warmup(document.config)


def _long_warmup(config: RunConfig) -> Iterator[str]:
    """A warning where the learning rate is still rising after a tenth of the run."""
    total, optim = config.train.total_images, config.optim
    warmup = optim.warmup(total)
    if warmup > _LONG_WARMUP * total:
        reached = (
            "" if warmup <= total else f" and ends at {optim.learning_rate * total / warmup:.2g} in place of {optim.learning_rate:.2g}"
        )
        yield (
            f"warning: the learning rate rises over {round(warmup):,} of the run's {total:,} images{reached}: "
            f"train longer, or set --optim.warmup-images {max(1, round(_LONG_WARMUP * total))}"
        )


def _validation(model: Model, data: Data, config: RunConfig, world: World) -> Callable[[Watch], dict[str, float]] | None:
    """The validation for the loop; None where there is nothing to validate or nothing to do it with."""
    held_out, limit = data.validation, config.train.validate_images
    if held_out is None or not model.validated or min(len(held_out), limit) < world.size:
        return None
    size = config.train.batch_size if config.train.microbatch is None else config.train.microbatch * world.size

    def validate(watch: Watch) -> dict[str, float]:
        batches = evaluation_batches(held_out, batch_size=size, rank=world.rank, world_size=world.size, limit=limit)
        own = min(len(held_out), limit) / world.size
        seed, precision = config.train.seed, config.train.precision
        return validation_loss(model, batches, seed=seed, precision=precision, world=world, seen=lambda done: watch(done, own))

    return validate


def _grids(model: Model, data: Data, config: RunConfig, world: World) -> dict[str, Grid]:
    """What draws each grid of samples, or of what is made of held-out images, by the end of its name; none for a model that makes none."""
    train, count = config.train, config.train.sample_count
    size = train.microbatch or max(1, train.batch_size // world.size)  # what fits into memory with gradients fits without
    if isinstance(model, Translator) and count:
        return translated_grids(model, data, count=count, precision=train.precision, batch_size=size, world=world)
    if not isinstance(model, Sampler | Upsampler) or not count or data.spec.channels not in (1, 3):  # latents are no pictures
        return {}
    if isinstance(model, Upsampler):
        request, write = upsampled_grid(model, data, count=count, precision=train.precision)
        return {"": functools.partial(_draw_grid, model, request, write, size, world)}
    request = Request(count, 0, label_list(model, data.spec, count=count, given=None), model.sampling, train.precision)
    write = functools.partial(_write_samples, labels=request.labels)
    further = {f"-{name}": dataclasses.replace(request, settings=settings) for name, settings in model.grids.items()}
    return {ending: functools.partial(_draw_grid, model, wanted, write, size, world) for ending, wanted in {"": request, **further}.items()}


def _draw_grid(
    model: Model, request: Request, write: Callable[[Path, np.ndarray], None], batch_size: int, world: World, path: Path, watch: Watch
) -> None:
    parts = in_memory(Drawing(model, request, batch_size, world.device), world, watch)
    if world.is_main:
        write(path, assembled(parts, request.count)["images"])


def _write_samples(path: Path, images: np.ndarray, *, labels: np.ndarray | None) -> None:
    write_grid(path, Samples(images, labels))


@contextmanager
def _closing(loader: Loader) -> Iterator[Loader]:
    try:
        yield loader
    finally:
        loader.close()


@contextmanager
def _shown_warnings(say: Any) -> Iterator[None]:
    """Within it warnings become lines of the log."""
    before = warnings.showwarning
    warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
    try:
        yield
    finally:
        warnings.showwarning = before
