"""The training loop. It serves every family: it knows phases, never what they mean.

An iteration draws its slices of images, takes the turns of the model, one optimizer step each, and moves the averages. Everything
on a schedule depends on the number of images seen alone, so that an interrupted run ends like one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from triptych.core.batch import Batch, RawBatch
from triptych.core.errors import RunError, Stopped, UserError
from triptych.core.files import explained
from triptych.core.model import Model, Phase, TrainingProgress
from triptych.core.wording import counted
from triptych.engine.allocator import keep_freed_memory
from triptych.engine.averaged_weights import AveragedWeights
from triptych.engine.callables import BY_VALIDATION, Callables, Grid, chosen_by
from triptych.engine.checkpoint import Checkpoint, list_checkpoints
from triptych.engine.checkpointer import Checkpointer
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.engine.distributed import Agreement, World, patiently
from triptych.engine.ema import Average
from triptych.engine.fitting import find_microbatch, largest_batch
from triptych.engine.measurements import Measurements
from triptych.engine.metric_log import read_metrics
from triptych.engine.microbatch import Attempts, DoesNotFit, Microbatch
from triptych.engine.profiling import Profiler
from triptych.engine.progress import Watch
from triptych.engine.reporting import Reporting
from triptych.engine.run_directory import RunDirectory
from triptych.engine.schedule import refuse_impossible, step_settings
from triptych.engine.sharding import Sharding, is_divided
from triptych.engine.signals import StopRequest
from triptych.engine.snapshots import give_up_after
from triptych.engine.turns import Turns
from triptych.engine.updater import Updater

_VALIDATION, _EVALUATION = "validation/", "evaluation/"  # what the names of their figures begin with in the log


class Loop:
    """Trains `model` until `train.total_images`, a stop request or a failure."""

    def __init__(
        self,
        model: Model,
        *,
        train: TrainConfig,
        optim: OptimConfig,
        log: LogConfig,
        world: World,
        directory: RunDirectory,
        callables: Callables,
        reporting: Reporting | None,
    ) -> None:
        self.model, self.train, self.optim, self.log, self.world = model, train, optim, log, world
        self.directory, self.callables, self.reporting = directory, callables, reporting
        refuse_impossible(model, train, world)
        networks = dict.fromkeys(phase.networks for phase in model.phases)
        self.microbatch, self.attempts = Microbatch(model, train=train, world=world), Attempts(model, world)
        self.sharding = Sharding(model, train, world) if is_divided(train, world) else None
        parts: dict[str, Any] = {"microbatch": self.microbatch, "attempts": self.attempts, "sharding": self.sharding}
        self.updaters = {n: Updater(model, n, train=train, optim=optim, world=world, **parts) for n in networks}
        self.turns = Turns(model, self.updaters, seed=train.seed, keeps=self.sharding is None)
        self.averages = [Average(model, settings) for settings in train.all_averages]
        shared: dict[str, Any] = {"train": train, "world": world, "sharding": self.sharding}
        self.averaged = AveragedWeights(model, self.averages, calibrate=callables.calibrate, **shared)
        self.checkpointer = Checkpointer(model, self.updaters, self.averages, directory=directory, **shared)
        self.slices = model.slices
        self.drawn = train.batch_size * self.slices
        self.measurements = Measurements(world.sum, allow_overflow=train.precision == "fp16")
        self.images_seen = 0
        self.best: dict[str, Any] | None = None
        self.criterion = (callables.evaluation and callables.evaluation.criterion) or BY_VALIDATION
        self._saved_at: int | None = None
        self._stop = StopRequest()
        self._stepped = False
        self._between = True
        "Whether no step of an iteration that is not finished has been taken."

    # State -----------------------------------------------------------------------------------------------------------

    def restore(self, checkpoint: Checkpoint) -> None:
        """Goes on from a checkpoint; the model's own tensors must have been loaded before the loop was made.

        What the checkpoint does not have is said in the log. Its tensors are let go of: they would stay in memory as long as the training
        lasts, and on the disk when its files are removed. Raises CheckpointError for an optimizer's state of another model.
        """
        self.checkpointer.restore(checkpoint, say=self._say)
        checkpoint.files.clear()
        self.images_seen, self._saved_at = checkpoint.images_seen, checkpoint.images_seen if checkpoint.estimated else None
        self.best = checkpoint.info["best"]
        there = self.world.on_main(lambda: list_checkpoints(self.directory.checkpoints))  # another machine may see the folder as it was
        if self.best is not None and self.best["images"] not in there:
            self._say(f"the best checkpoint, at {self.best['images']} images, is no longer there: what is measured next takes its place")
            self.best = None
        if self.best is not None and not self.criterion.measured_so(self.best):
            otherwise = " measured with other settings" if chosen_by(self.best) == self.criterion.by else ""
            self._say(
                f"the best checkpoint so far, at {self.best['images']} images, was chosen by {chosen_by(self.best)}{otherwise}; now "
                f"{self.criterion.by} decides, and its first figure takes the place"
            )
        self.measurements.window = checkpoint.info.get("window", {})

    @patiently("writing a checkpoint")
    def save(self) -> None:
        """Writes a checkpoint, unless the present state has one, and prunes old ones. In the background it may only have begun.

        All processes call it. The main one writes; where the model is divided each process writes its parts.
        """
        self._check()
        self.checkpointer.finish()
        if self.images_seen == self._saved_at:
            self.checkpointer.prune(self.best)
            return
        fault = self.averaged.estimate(self.images_seen)
        self.checkpointer.write(self.images_seen, best=self.best, window=self.measurements.window, estimated=fault is None)
        self._saved_at = self.images_seen
        if fault is not None:
            self._save_and_end(fault)

    def _finish_saving(self) -> None:
        """Waits until the checkpoint that is written in the background, if one is, is on the disk. All processes call it."""
        if self.checkpointer.pending:
            with self.world.patience("writing a checkpoint"):
                self.checkpointer.finish()

    def _save_whole(self) -> None:
        """Saves, and waits until that is on the disk."""
        self.save()
        self._finish_saving()

    # The loop --------------------------------------------------------------------------------------------------------

    def run(self, stop: StopRequest) -> bool:
        """Trains to the end; True when it is reached, False when it was asked to stop. Either way the run is saved.

        Raises Stopped where the request comes before the first step, when there is nothing new to save.
        """
        with closing(self.checkpointer):
            return self._run(stop)

    def _run(self, stop: StopRequest) -> bool:
        self._stop = stop
        stop.at_once = False
        stopped = False
        agreement = Agreement(self.world)
        self.model.train()
        if self.world.is_main:
            for folder in (self.directory.snapshots, *self.directory.averages.glob("*")):
                for line in give_up_after(folder, self.images_seen):
                    self._say(line)
        self.checkpointer.require_one_folder(say=self._say)
        try:
            self._find_microbatch()
            self._catch_up()
            stopped = self._train(agreement)
        except DoesNotFit as error:
            if self.images_seen and self._between and self.world.size == 1:  # else the others know nothing of it, or it is no state to keep
                self._save_whole()
            raise (self._with_what_fits() or error) from None
        except Stopped:
            if not self._stepped:
                raise
            stopped = True  # in all processes alike
        agreement.close()
        self.world.limit(None)
        self._save_whole()
        self._tell()
        return not stopped

    def _train(self, agreement: Agreement) -> bool:
        """Trains to the end, or until the processes agree to stop: then True."""
        saved_time, saved = time.monotonic(), False
        batches = self.callables.draw(self.images_seen)
        with Profiler(self.directory.profile, steps=self.train.profile_steps if self.world.is_main else 0) as profiler:
            while self.images_seen < self.train.total_images:
                before = self.images_seen
                self._iteration(batches)
                if not self.attempts.said:
                    keep_freed_memory()
                self.world.limit(self.train.timeout_minutes)  # from the second on: the first one may compile
                minutes = self.train.checkpoint_minutes
                overdue = minutes is not None and time.monotonic() - saved_time >= 60 * minutes
                news = self.callables.news is not None and self.callables.news.pending()
                wishes = {"stop": self._stop.name is not None, "overdue": overdue and self.world.is_main, "news": news}
                agreed = agreement.vote(wishes | {"unsaved": self.checkpointer.failed})
                if agreed["unsaved"]:
                    self._finish_saving()
                if agreed["news"]:
                    self._tell()
                # Several processes hear of a wish an iteration later: one that was made before the last checkpoint is fulfilled.
                overdue = agreed["overdue"] and not (saved and agreement.lags)
                saved = self._scheduled(before, overdue=overdue, stopped=agreed["stop"])
                saved_time = time.monotonic() if saved else saved_time
                if agreed["stop"]:
                    return True
                profiler.step()
        return False

    def iterations(self, batches: Iterator[RawBatch]) -> Iterator[int]:
        """Takes one iteration after the other, without end and without anything that is due on a schedule: the images seen after each.

        For measurements of what an iteration costs. Nothing is written.
        """
        self.model.train()
        while True:
            self._iteration(batches)
            yield self.images_seen

    def stored_bytes(self) -> dict[str, int]:
        """Bytes of the tensors of each file of a checkpoint, by its stem; where the model is divided, of this process's parts."""
        return self.checkpointer.stored_bytes()

    def _iteration(self, batches: Iterator[RawBatch]) -> None:
        # Other processes would wait for this one's step; but before the first one nothing is lost when all of them end.
        interruptible = self.world.size == 1 or not self._stepped
        self.world.doing("loading images")
        with self._stop.interrupting() if interruptible else nullcontext():
            slices = self._draw_slices(batches)
        self.world.doing("taking a step")
        self._stepped = True
        self.turns.take(slices, self._step, TrainingProgress(self.images_seen, self.drawn, self.train.total_images))
        stepped = all(updater.stepped for updater in self.updaters.values())
        for average in self.averages:
            if stepped or average.settings.length is not None:  # the profile of one by length goes by the images seen
                average.update(self.images_seen, images=self.drawn)
        self.images_seen += self.drawn
        self._between = True

    def _find_microbatch(self) -> None:
        """Finds the microbatch where it is to be found, on the images of an iteration that takes the most memory."""
        if self.train.microbatch != "auto":
            return
        self.world.doing("finding the largest microbatch that fits into memory")
        with self._stop.interrupting():
            every = self.drawn * math.lcm(*(phase.every for phase in self.model.phases))
            largest = -(-min(self.model.largest_from, self.train.total_images - 1) // every) * every  # all phases are due there
            slices = self._draw_slices(self.callables.draw(largest))
            at = TrainingProgress(largest, self.drawn, self.train.total_images)
            find_microbatch(self.turns, slices, microbatch=self.microbatch, attempts=self.attempts, at=at, world=self.world)
        self._say(f"train.microbatch auto: {counted(self.microbatch.size, 'image at once fits', 'images at once fit')} into memory")
        self._tell_microbatch()

    def _with_what_fits(self) -> DoesNotFit | None:
        """The error of a batch that cannot be divided, with the largest that fits; None: the batch can be, or this is not known.

        It is found by the passes of the next iteration, in a training of one process.
        """
        if not self.model.couples_samples or self.world.size > 1:
            return None
        said, at = self.attempts.said, TrainingProgress(self.images_seen, self.drawn, self.train.total_images)
        self.world.doing("finding the largest batch that fits into memory")
        batches = self.callables.draw(self.images_seen)
        slices = [next(batches).to(self.world.device) for _ in range(self.slices)]
        found = largest_batch(self.turns, slices, group=self.microbatch.group, attempts=self.attempts, at=at, world=self.world)
        return None if found is None else self.microbatch.does_not_fit(said, batch=found)

    def _tell_microbatch(self) -> None:
        if self.callables.found_microbatch is not None:
            self.callables.found_microbatch(self.microbatch.size)

    def _draw_slices(self, batches: Iterator[RawBatch]) -> list[Batch]:
        try:
            return [next(batches).to(self.world.device) for _ in range(self.slices)]
        except (UserError, RunError) as error:  # of an image, or of a process that loads them
            if self.world.size == 1 and self._stepped:  # the others of several are in their step already
                self._save_and_end(error)
            raise

    def _save_and_end(self, error: Exception) -> NoReturn:
        """Saves what was trained so far, in all processes, before an error between two steps ends the training."""
        self._save_whole()
        self._say(f"saved at {self.images_seen} images; the same command goes on from there")
        raise error

    @contextmanager
    def _saving_first(self, *, alike: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        """The context in which an error ends the training when that is saved; of several processes one that is `alike` in all of them."""
        try:
            yield
        except Exception as error:  # also for want of memory: no step is under way
            if self.world.size > 1 and not isinstance(error, alike):
                raise
            self._save_and_end(error)

    def _tell(self) -> None:
        fault = None if self.callables.news is None else self.callables.news.tell()
        if fault is not None:
            self._save_and_end(fault)

    def _step(self, phase: Phase, batch: Batch, progress: TrainingProgress) -> dict[str, Tensor]:
        """One step of the phase; what its loss carries to the following turns."""
        updater, size, total = self.updaters[phase.networks], self.microbatch.size, self.train.batch_size
        rng, settings = self.turns.rng(phase, batch, progress), step_settings(self.optim, phase, progress)
        record, observed, carried = updater.step(phase, batch, rng=rng, settings=settings, total=total, progress=progress)
        self._between = False
        if self.microbatch.size < size:
            self._say(
                f"warning: {size} images at once did not fit into memory in phase {phase.name} after {self.images_seen} images "
                f"({self.attempts.said}): the step was taken with {self.microbatch.size} at once, and so are those that follow"
            )
            self._tell_microbatch()
        if observed:
            self.model.observe(phase, {name: self.world.gather_samples(values) for name, values in observed.items()})
        self.measurements.add(record)
        if self.world.device.type == "cpu":
            self._check()
        return carried

    def _check(self) -> None:
        """Raises RunError in all processes where a measurement is not finite. The message ends with `Model.fault`."""
        try:
            self.measurements.check()
        except RunError as error:
            faults = [fault for fault in self.world.gather(self.model.fault()) if fault is not None]
            if not faults:
                raise
            raise RunError(f"{error}; {faults[0]}") from None

    # What happens on a schedule --------------------------------------------------------------------------------------

    def _scheduled(self, before: int, *, overdue: bool, stopped: bool) -> bool:
        """Logs, validates, saves, samples and evaluates where that fell due since `before`. Returns whether a checkpoint was written."""
        train = self.train
        rates = {f"{updater.name}/learning_rate": updater.optimizer.param_groups[0]["lr"] for updater in self.updaters.values()}
        if self._due(self.log.every, before):
            self._check()
            values = self.measurements.means() | (rates if len(rates) > 1 else {"learning_rate": next(iter(rates.values()))})
            if train.precision == "fp16":
                values |= {f"{updater.name}/log2_loss_scale": updater.scale.log2_scale for updater in self.updaters.values()}
            self._write(values)
        if self.reporting is not None:
            self.reporting.progress.update(self.images_seen)
        drawing = self._due(train.sample_every, before)
        if drawing and self.world.is_main:
            for path in map(self._grid_path, self.callables.grids):  # of a past that was given up: what is not there is drawn
                with explained(f"remove {path}"):
                    path.unlink(missing_ok=True)
        if self._passed(train.snapshot_every, before):
            self._snapshot()  # before the checkpoint: where a run goes on, all that fell due until then are there
        validating = not stopped and self._due(train.validate_every, before)
        improved = validating and self._validate()
        saved = improved or overdue or stopped or self._due(train.checkpoint_every, before) or self._passed(train.keep_every, before)
        if saved:
            self.save()  # before the samples, which may take longer than a cluster's notice
        evaluating = not stopped and self._evaluation_due(before)
        if evaluating or (drawing and not stopped):
            self._finish_saving()  # what is made of a checkpoint is there no earlier than the checkpoint
        if drawing and not stopped:
            self._draw(self.callables.grids)
        if evaluating and self._evaluate():
            self._save_best()
            saved = True
        if not stopped and (saved or drawing or validating or evaluating):
            self._refresh()
        return saved

    def _due(self, every: int | None, before: int) -> bool:
        """Whether a multiple of `every` lies between `before` and the images seen, or the run has ended."""
        return self.images_seen >= self.train.total_images or self._passed(every, before)

    def _passed(self, every: int | None, before: int) -> bool:
        return every is not None and self.images_seen // every > before // every

    @patiently("writing a snapshot")
    def _snapshot(self) -> None:
        """Writes a snapshot of the averages by length, never in the background. All processes call it; those that save write it."""
        self._check()
        self.checkpointer.finish()
        self.checkpointer.write_snapshot(self.images_seen)

    def _catch_up(self) -> None:
        """Makes up for the validation, the grids and the evaluation that were due where the run goes on and that a stop prevented."""
        if not self.images_seen:
            return
        before = self.images_seen - self.drawn
        if self._due(self.train.validate_every, before):
            written = self.world.on_main(lambda: self._written(_VALIDATION))
            if self._validate() if written is None else self._improved(written):
                self._save_best()
        if self._due(self.train.sample_every, before):
            missing = self.world.on_main(lambda: [ending for ending in self.callables.grids if not self._grid_path(ending).exists()])
            self._draw({ending: self.callables.grids[ending] for ending in missing})
        if self._evaluation_due(before):
            written = self.world.on_main(lambda: self._written(_EVALUATION))
            same = self.best is None or chosen_by(self.best) == self.criterion.by  # else what is written may be of other settings
            if self._evaluate() if written is None else same and self._improved(written, evaluated=True):
                self._save_best()

    def _evaluation_due(self, before: int) -> bool:
        every = self.train.evaluate_every
        return self.callables.evaluation is not None and every is not None and self._due(every, before)

    def _save_best(self) -> None:
        """Saves what was noted of the present state, which may have a checkpoint already, as the best."""
        self._saved_at = None
        self.save()

    def _written(self, kind: str) -> dict[str, float] | None:
        """The figures of the validation, or of the evaluation, at the present images seen; None: the log does not have them."""
        for line in read_metrics(self.directory.metrics_path, kind=kind):
            values = {name.removeprefix(kind): value for name, value in line.items() if name.startswith(kind)}
            if values and line["images"] == self.images_seen:
                return values
        return None

    def _grid_path(self, ending: str) -> Path:
        return self.directory.samples / f"{self.images_seen:09d}{ending}.png"

    @patiently("drawing samples")
    def _draw(self, grids: Mapping[str, Grid]) -> None:
        """Draws grids of samples, unless a stop is asked for."""
        self._check()
        for ending, grid in grids.items():
            path, saving = self._grid_path(ending), self._saving_first()
            shown = self._watch(f"samples/{path.name}")
            with saving, explained(f"write {path}"), self.averaged.applied(self.images_seen), shown as watch:
                grid(path, watch)
            if self.reporting is not None and not ending:
                self.reporting.log.image(self.images_seen, path)

    @contextmanager
    def _watch(self, name: str) -> Iterator[Watch]:
        """The context of some work, with the `Watch` for it, which shows its progress and raises Stopped on a request to stop."""
        with nullcontext() if self.reporting is None else self.reporting.progress.task(name, self.reporting.log.text) as task:

            def watch(done: float, total: float) -> None:
                if task is not None:
                    task.update(done, total)
                self._stop.look(self.world)

            yield watch

    @patiently("validating")
    def _validate(self) -> bool:
        """Validates, where the data and the model allow it, and logs. Returns whether the score is the best so far."""
        if self.callables.validate is None:
            return False
        self._check()
        name, saving = f"validation at {self.images_seen} images", self._saving_first(alike=UserError)
        with saving, self.averaged.applied(self.images_seen), self._watch(name) as watch:
            values = self.callables.validate(watch)
        self._write({f"{_VALIDATION}{name}": value for name, value in values.items()})
        return self._improved(values)

    @patiently("evaluating samples")
    def _evaluate(self) -> bool:
        """Evaluates samples and logs. Returns whether the figure that decides is the best so far. What fails there is said, no more."""
        assert self.callables.evaluation is not None
        self._check()
        began, found, place = time.monotonic(), None, f"{self.images_seen} images"
        paused = nullcontext() if self.reporting is None else self.reporting.log.paused()
        with self._saving_first(), paused, self.averaged.applied(self.images_seen), self._watch(f"evaluation at {place}") as watch:
            try:
                found = self.callables.evaluation.measure(watch)
            except (RunError, UserError) as error:  # in all processes alike
                self._say(f"warning: no evaluation at {place}: {error}; the training goes on")
        if found is None:
            return False
        if self.reporting is not None:
            self.directory.require()
            self.reporting.evaluated(self.images_seen, found, prefix=_EVALUATION, seconds=time.monotonic() - began)
        for note in found.notes:
            self._say(note)
        return self._improved(found.values, evaluated=True)

    def _improved(self, values: Mapping[str, float], *, evaluated: bool = False) -> bool:
        """Whether the figures of a validation, or of an evaluation, are the best so far by what decides; then that is noted."""
        figure = self.criterion.figure
        if evaluated != bool(figure):
            return False
        score = values.get(figure) if figure else next(iter(values.values()))
        if not self.criterion.improved(score, self.best):
            return False
        self.best = self.criterion.noted(score, self.images_seen)
        return True

    def _write(self, values: dict[str, float]) -> None:
        if self.reporting is not None:
            self.directory.require()
            self.reporting.write(self.images_seen, values, self.model.phases)

    def _refresh(self) -> None:
        """Writes the run's page anew, in the main process, for seconds: the others wait for it no longer than for a step."""
        if self.reporting is not None:
            self.reporting.refresh()

    def _say(self, message: str) -> None:
        if self.reporting is not None:
            self.reporting.log.text(message)
