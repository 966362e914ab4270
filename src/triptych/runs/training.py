"""Training: a configuration and a directory become a run, or a run goes on."""

from __future__ import annotations

import dataclasses
import shlex
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError, RunError, Stopped, UserError
from triptych.core.given import given_place, optional_path, shown
from triptych.core.memory import is_out_of_memory, said_of
from triptych.core.model import DataInitialized, Model
from triptych.core.rng import Rng
from triptych.core.wording import counted
from triptych.data.fingerprint import fingerprint, held_out_marks, refuse_held_out
from triptych.data.images import Data
from triptych.data.loader import Loader
from triptych.engine.allocator import keep_freed_memory
from triptych.engine.callables import Callables
from triptych.engine.checkpoint import Checkpoint, checkpoint_path, load_checkpoint, load_newest
from triptych.engine.distributed import World, failing_together, open_world
from triptych.engine.loop import Loop
from triptych.engine.metric_log import MetricLog
from triptych.engine.microbatch import DoesNotFit
from triptych.engine.progress import Progress, unwatched
from triptych.engine.reporting import Reporting
from triptych.engine.run_directory import RunDirectory, list_checkpoints, run_and_checkpoint
from triptych.engine.schedule import refuse_impossible, refuse_single_frames, refuse_unknown_phases
from triptych.engine.sharding import is_divided
from triptych.engine.signals import StopRequest, stop_on_signals, to_standard_error
from triptych.engine.state import NoneReadable
from triptych.recipes.config import RunConfig
from triptych.report.live import LivePage
from triptych.runs.bad_images import BadImages
from triptych.runs.beginning import begin, prepare_directory, same_images, same_objects
from triptych.runs.callables import callables, training_loader
from triptych.runs.document import OF_PUBLISHED, RunDocument, with_own_list
from triptych.runs.latent_space import keep_autoencoder, require_decodable, unlike_latents
from triptych.runs.opening_lines import opening_lines
from triptych.runs.run import Run, open_run
from triptych.runs.stored import build, outline
from triptych.runs.training_scores import TrainingScores
from triptych.runs.weights import load_fitting_weights, load_frozen_networks, load_weights


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
    `init_from` starts a new run from another run's averaged weights, the newest or those of RUN/checkpoints/N. Under torchrun all
    processes call it alike.
    Raises UserError (ConfigError, DataError, CheckpointError) before anything is written, RunError when training fails, and Stopped, a
    KeyboardInterrupt, when a signal comes before the first step or after another one.
    """
    if not isinstance(config, RunConfig):
        raise ConfigError("config", f"got {shown(config)}, expected a RunConfig, as triptych.recipes makes them: adm_digits()")
    if not isinstance(recipe, str | None):
        raise ConfigError("recipe", f"got {shown(recipe)}, expected the name of a recipe, or nothing")
    run_dir = given_place(run_dir, "run_dir")
    init_from = optional_path(init_from, "init_from")
    keep_freed_memory(keep=False)  # until an iteration has fitted into memory
    world = open_world(device)
    directory = RunDirectory(Path(run_dir))
    with failing_together(), stop_on_signals() as stop, _saying_what_is_saved(directory), ExitStack() as stack:
        stop.at_once = True  # until there is something to save
        stop.say = to_standard_error if world.is_main else lambda message: None
        world.watch(limit_minutes=config.train.timeout_minutes, log_path=directory.log_path, records=directory.records)
        start = world.on_main(lambda: begin(config.rescaled(world.size), directory, recipe, world.device, stack))
        data = (with_own_list(start.config.data, directory) if start.keeps_list else start.config.data).open()
        if start.stored is not None:
            same_objects(start.stored.objects, data.objects)
            data = dataclasses.replace(data, spec=same_images(start.stored.spec, data.spec, fresh=start.fresh))
        images = world.on_main(lambda: fingerprint(data))
        if start.stored is not None and start.stored.images not in ("", images) and not _known_without_contents(start.stored, data, world):
            marks = start.stored.held_out
            world.on_main(lambda: refuse_held_out(marks, data))
            start.notes.append(
                f"warning: the images are not those of before ({start.stored.images}, now {images}): some were added, taken away or "
                "changed; in this epoch some may come twice, or not at all, and other images may be held out than before"
            )
        checkpoint = None if start.stored is None else _newest_checkpoint(directory, world, start.notes)
        model = (build if checkpoint is None else outline)(start.config, data.spec)
        if checkpoint is not None:
            load_weights(model, checkpoint.files["model"])
            start.notes += [] if init_from is None else ["--init-from is not used: the run goes on from its own checkpoint"]
        elif init_from is not None:
            start.notes += initialize_from(model, init_from, data.spec)
        prepare_model(model, start.config, data.spec, world)
        evaluated = start.config.train.evaluate_every is not None
        scores = TrainingScores(model, data.spec, start.config, directory, world) if evaluated else None
        require_decodable(data.spec, start.config.train, directory)  # before anything is written
        held_out = held_out_marks(data) if world.is_main else ()
        licence = _licence(start.stored, init_from if checkpoint is None else None)
        document = RunDocument(start.config, data.spec, start.recipe, start.asked, data.objects, images, held_out, licence)
        world.on_main(lambda: prepare_directory(directory, document, start, stack))
        latents = data.spec.latents
        if latents is not None:
            start.notes += world.on_main(lambda: keep_autoencoder(latents, directory))
        model.to(world.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if checkpoint is None and init_from is None:
            initialize_from_images(model, data, start.config, world)
        finished = _loop(model, data, document, directory, world, stack, checkpoint, start.notes, stop, scores)
    run = open_run(run_dir)
    run.stopped = not finished
    return run


def _known_without_contents(stored: RunDocument, data: Data, world: World) -> bool:
    """Whether a run knows latents by a fingerprint that leaves out what their images are, as some versions noted it."""
    return bool(data.contents) and world.on_main(lambda: stored.images == fingerprint(dataclasses.replace(data, contents="")))


def prepare_model(model: Model, config: RunConfig, spec: DataSpec, world: World) -> None:
    """Loads the frozen networks of a model that so many processes shall train. Raises ConfigError for settings that do not go with it."""
    refuse_impossible(model, config.train, world)
    refuse_single_frames(spec.clip_length, config.train)
    refuse_unknown_phases(config.optim, model.phases, absent=model.absent_phases)
    load_frozen_networks(model)


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


def _newest_checkpoint(directory: RunDirectory, world: World, notes: list[str]) -> Checkpoint | None:
    newest: Checkpoint | None = None

    def find() -> int | None:
        nonlocal newest
        damaged: list[str] = []
        try:
            newest = load_newest(directory.checkpoints, warn=damaged.append)
        except CheckpointError as error:
            advice = _without_checkpoints(directory) if isinstance(error, NoneReadable) else ""
            raise CheckpointError("; ".join([*damaged, str(error)]) + advice) from error
        notes.extend(damaged)
        return None if newest is None else newest.images_seen

    images = world.on_main(find)
    if images is not None and newest is None:
        newest = load_checkpoint(checkpoint_path(directory.checkpoints, images))
    world.barrier()  # then the main process puts back one whose replacement was cut short, under its name, and others may be reading it
    return newest


def _without_checkpoints(directory: RunDirectory) -> str:
    """What a user can do with a run of which no checkpoint can be read; perhaps its weights can."""
    advice = f": put a copy of one back, or move {directory.checkpoints} away, and the same command begins again at 0 images"
    with warnings.catch_warnings(), suppress(UserError):
        warnings.simplefilter("ignore")
        open_run(directory.root).tensors()
        advice += f"; its weights can be read: another --run with --init-from {shlex.quote(str(directory.root))} begins with them"
    return advice


def _licence(stored: RunDocument | None, init_from: Path | None) -> str:
    """Of published weights that a run begins with: that of the run whose weights it takes, else that of its own."""
    if init_from is not None:
        return open_run(run_and_checkpoint(init_from)[0]).licence
    return "" if stored is None else stored.licence


_TOLD = 10
"""Of the tensors that another run's weights do not fit: with a new kind of layer they are hundreds."""


def initialize_from(model: Model, init_from: str | Path, spec: DataSpec) -> list[str]:
    """Loads the weights of another run that fit, and gives lines for the log. `spec`: of the images that are learned now."""
    directory, checkpoint = run_and_checkpoint(init_from)
    source, which = open_run(directory), checkpoint or "latest"
    found = load_fitting_weights(model, source.tensors(checkpoint=which))
    lines, fit = [*found.lines], f"{found.count:,} of {counted(found.of, 'tensor fits', 'tensors fit')}"
    images = source.find_checkpoint(which)
    unlike = unlike_latents(source.spec, spec)
    if unlike:
        own = f"triptych data encode IMAGES --with {directory} makes latents as it learned them"
        advice = f"; {own}" if source.spec.latents is not None else ""
        lines.insert(0, f"warning: {directory} learned others ({'; '.join(unlike)}){advice}")
    if source.licence:
        lines.insert(0, f"{OF_PUBLISHED}: {source.licence}")
    more = [f"and {counted(len(lines) - _TOLD, 'tensor')} more"] if len(lines) > _TOLD else []
    return [f"starts from the weights of {directory} at {images} images: {fit}", *(f"init-from: {line}" for line in lines[:_TOLD] + more)]


def initialize_from_images(model: Model, data: Data, config: RunConfig, world: World) -> None:
    """Data-dependent initialization, on the same first images in every process.

    Raises DoesNotFit where memory does not suffice for all of them at once, and a setting of the model says how many they are.
    """
    if not isinstance(model, DataInitialized):
        return
    with closing(Loader(data.train, batch_size=model.init_images, seed=config.train.seed, workers=0)) as loader:
        images = next(loader.batches(0))
    try:
        batch = images.to(world.device)
        model.initialize(batch, Rng(config.train.seed, ("initialize",), batch.index))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or not hasattr(config.model, "init_images"):
            raise
        reason = f"got {model.init_images}, which do not fit into memory at once ({said_of(error)}); give fewer"
        raise DoesNotFit("model.init_images", reason) from None


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
    scores: TrainingScores | None,
) -> bool:
    """Trains; False where it was asked to stop."""
    config = document.config
    notes = [*notes, *prepare_backend(model, config, world)]
    started_before = directory.metrics_path.exists()
    if checkpoint is None and started_before and directory.metrics_path.stat().st_size:
        lost = f"warning: {directory.root} has figures of a training, but no checkpoint to go on from: it begins again at 0 images"
        notes = [lost, *notes]
    reporting = _reporting(directory, document, stack, checkpoint) if world.is_main else None
    say = reporting.log.text if reporting is not None else lambda message: None
    stack.callback(setattr, stop, "say", stop.say)  # before the log is closed
    stop.say = say
    stack.enter_context(_shown_warnings(say))
    bad_images = BadImages(data, config.data, directory, world, say) if config.data.on_error == "skip" else None
    loader = stack.enter_context(closing(training_loader(data, config, world, workers=config.data.workers, bad_images=bad_images)))
    evaluation = None if scores is None else scores.evaluation

    def found_microbatch(size: int) -> None:
        """Notes it in config.json, and uses it for what else goes through the networks."""
        nonlocal document
        document = document.with_microbatch(size)
        world.on_main(lambda: directory.write_config(document.to_dict()))
        loop.callables = handed()

    def handed() -> Callables:
        made = callables(model, data, document.config, directory, world, loader, evaluation, bad_images)
        return dataclasses.replace(made, found_microbatch=found_microbatch)

    loop = Loop(
        model,
        train=config.train,
        optim=config.optim.in_images(len(data.train)),
        log=config.log,
        world=world,
        directory=directory,
        callables=handed(),
        reporting=reporting,
    )
    measured = [] if scores is None else [scores.describe()]
    for line in [*opening_lines(model, data, document, directory, world, checkpoint), *measured, *notes]:
        say(line)
    if checkpoint is not None:
        loop.restore(checkpoint)
    if reporting is not None and started_before:
        reporting.log.resumed(loop.images_seen)
    page = LivePage(directory.root, say) if reporting is not None and config.log.report else None
    if reporting is not None and page is not None:
        reporting.page = page.refresh
    if scores is not None:
        _prepare_scores(scores, reporting)
    if page is not None and started_before:
        page.write()  # the one that is there says how the start before ended
    finished = _run(loop, stop, directory, say, page)
    world.barrier()
    return finished


def _prepare_scores(scores: TrainingScores, reporting: Reporting | None) -> None:
    if reporting is None:
        scores.prepare(unwatched)
        return
    with reporting.log.paused(), reporting.progress.task("looking at real images, for evaluations", reporting.log.text) as task:
        scores.prepare(task.update)


_COMPILED_ITERATIONS = 5000
"""To compile networks takes a minute or more, which a run of fewer iterations does not win back."""


def prepare_backend(model: Model, config: RunConfig, world: World) -> list[str]:
    """Sets what a training's arithmetic needs, and compiles the networks where `train.compile` wishes it, which it says."""
    if world.device.type == "cuda":
        torch.use_deterministic_algorithms(config.train.deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.deterministic = config.train.deterministic
    wish, iterations = config.train.compile, config.train.total_images / (config.train.batch_size * model.slices)
    long = world.device.type == "cuda" and not is_divided(config.train, world) and iterations >= _COMPILED_ITERATIONS
    if wish == "on" or (wish == "auto" and long):
        if model.retains_graph:
            from torch._functorch import config as functorch

            functorch.donated_buffer = False  # else a backward pass reuses what the next one needs
        for name in dict.fromkeys(name for phase in model.phases for name in phase.networks):
            getattr(model, name).compile()
        for message in ("Dynamo detected a call to a `functools.lru_cache`", "TensorFloat32 tensor cores"):
            warnings.filterwarnings("ignore", message=message)  # what is cached is a constant; float32 is meant
        return ["the first step compiles the networks, which takes minutes (--train.compile off: it does not)"]
    return []


def _reporting(directory: RunDirectory, document: RunDocument, stack: ExitStack, checkpoint: Checkpoint | None) -> Reporting:
    images = 0 if checkpoint is None else checkpoint.images_seen
    progress = stack.enter_context(Progress(document.config.train.total_images, images=images))
    log = MetricLog(directory, config=document.config.log, settings=document.to_dict(), show=progress.message)
    return Reporting(stack.enter_context(closing(log)), progress)


def _run(loop: Loop, stop: StopRequest, directory: RunDirectory, say: Callable[[str], None], page: LivePage | None) -> bool:
    started, seen = time.monotonic(), loop.images_seen
    try:
        with failing_together():
            finished = loop.run(stop)
    except Exception as error:
        explained = _explained(error)
        say(f"failed at {loop.images_seen} images: {explained}")
        if explained is error:
            raise
        raise explained from error
    except KeyboardInterrupt:
        say(f"interrupted at {loop.images_seen} images")
        raise
    else:
        minutes = (time.monotonic() - started) / 60
        ended = f"finished: {loop.images_seen} images seen, {minutes:.1f} minutes in this start; the run is in {directory.root}"
        if loop.images_seen == seen:
            ended += f"; it had been trained to its end, and --train.total-images {2 * seen} trains it longer"
        by = stop.name or "another process"
        say(ended if finished else f"stopped by {by} at {loop.images_seen} images and saved; the same command goes on from there")
        return finished
    finally:
        if page is not None:
            page.write()


def _explained(error: Exception) -> Exception:
    """The error, or what it means to who trains."""
    what, lacks, _ = str(error).partition(" does not have a deterministic implementation")
    if not lacks:
        return error
    return RunError(
        f"{what} adds in no fixed order on this device: --train.no-deterministic trains with it, and a resume may end otherwise"
    )


@contextmanager
def _shown_warnings(say: Any) -> Iterator[None]:
    """Within it warnings become lines of the log."""
    before = warnings.showwarning
    warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
    try:
        yield
    finally:
        warnings.showwarning = before
