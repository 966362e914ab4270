"""Small models that exercise every part of the seam, and a loop around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from triptych.core.batch import Batch, RawBatch, share
from triptych.core.model import LossTerms, Model, Phase, TrainingProgress, Turn
from triptych.core.rng import Rng, key_of, words
from triptych.engine.callables import Callables, Evaluation
from triptych.engine.checkpoint import load_newest
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.engine.distributed import World
from triptych.engine.loop import Loop
from triptych.engine.metric_log import MetricLog, read_metrics
from triptych.engine.progress import Progress
from triptych.engine.reporting import Reporting
from triptych.engine.run_directory import RunDirectory
from triptych.engine.signals import StopRequest

SIZE = 6
START = TrainingProgress(images_seen=0, iteration_images=1, total_images=1)
"""The beginning of a training, for a step outside a loop."""


class Denoiser(Model):
    """Convolutions with noise and dropout from the rng, and a memory of what it observed."""

    phases = (Phase("denoise", ("network",)),)
    averaged = ("network",)
    validated = ("denoise",)

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 3, 3, padding=1))
        self.register_buffer("observations", torch.zeros(4, dtype=torch.float64))

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        noise = rng.normal("noise", 3, SIZE, SIZE)
        keep = rng.keep("dropout", 3, SIZE, SIZE, drop=0.25)
        square = (self.network((batch.images + noise) * keep) - noise).float().square().mean((1, 2, 3))
        group = rng.integers("t", 4)[:, 0] if rng.integers("t", 4).ndim > 1 else rng.integers("t", 4)
        return LossTerms(square, {"twice": 2 * square.detach()}, group=group, observed={"t": group, "loss": square.detach()})

    def observe(self, phase: Phase, terms: Mapping[str, Tensor]) -> None:
        order = torch.arange(1, len(terms["t"]) + 1, dtype=torch.float64)
        self.observations.index_add_(0, terms["t"], terms["loss"].double() * order)


class Hungry(Denoiser):
    """A denoiser for which `room` images at once are all that fits into memory, from the step on in which `since` images are seen.

    Its forward passes change a buffer and draw from PyTorch's generator, before they fail too. Some images alone use one of its parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        self.network.register_buffer("passes", torch.zeros(()))
        self.network.register_parameter("rare", nn.Parameter(torch.ones(())))
        self.room, self.since, self.in_backward = 8, 0, False
        self.culprit = 7  # of eight samples the one that is too much: the ones before it have given their gradients
        self.error: Exception = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB")
        self.sizes: list[int] = []

    def prepare(self, phase: Phase, progress: TrainingProgress) -> None:
        self.full = progress.images_seen >= self.since

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        self.sizes.append(len(batch))
        terms = super().loss(phase, batch, rng)
        self.network.passes.add_(torch.rand(()))
        loss = terms.loss
        if (batch.index % 8 == 6).any():
            loss = loss * torch.where(batch.index % 8 == 6, self.network.rare, 1.0)
        if self.full and len(batch) > self.room and (batch.index % 8 == self.culprit).any():
            if not self.in_backward:
                raise self.error
            loss = _Failing.apply(loss, self.error)
        return replace(terms, loss=loss)


class _Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, error: Exception) -> Tensor:
        ctx.error = error
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise ctx.error


class Pair(Model):
    """Two networks that are updated in turn, like a GAN's: two steps of one for each of the other."""

    phases = (Phase("discriminator", ("discriminator",), repeats=2), Phase("generator", ("generator",)))
    averaged = ("generator",)

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Conv2d(3, 3, 3, padding=1)
        self.discriminator = nn.Conv2d(3, 1, 3, padding=1)
        self.prepared: list[str] = []
        self.progress: list[TrainingProgress] = []
        self.finished: list[tuple[str, int]] = []
        self.seen: dict[str, list[int]] = {"discriminator": [], "generator": []}

    def prepare(self, phase: Phase, progress: TrainingProgress) -> None:
        self.prepared.append(phase.name)
        self.progress.append(progress)

    def stepped(self, phase: Phase) -> None:
        self.finished.append((phase.name, len(self.prepared)))

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        self.seen[phase.name] += batch.index.tolist()
        score = self.discriminator(self.generator(rng.normal("z", 3, SIZE, SIZE)))
        real = self.discriminator(batch.images)
        loss = (real - score if phase.name == "discriminator" else score).square().mean((1, 2, 3))
        return LossTerms(loss)


class Clip(Model):
    """Draws two frames, each from the one before, and judges each of them: four turns on the same images."""

    phases = (Phase("judge", ("judge",)), Phase("draw", ("network",)))
    averaged = ("network",)

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Conv2d(3, 3, 3, padding=1)
        self.judge = nn.Conv2d(3, 1, 3, padding=1)
        self.told: list[tuple[str, int]] = []

    def turns(self, progress: TrainingProgress) -> Iterator[Turn]:
        for _ in range(2):
            yield from (Turn(phase) for phase in self.phases)

    def prepare(self, phase: Phase, progress: TrainingProgress) -> None:
        self.told.append((phase.name, progress.step))

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        frame = self.network(batch.images + batch.inputs.get("past", torch.zeros_like(batch.images)) + rng.normal("z", 3, SIZE, SIZE))
        if phase.name == "judge":
            return LossTerms((self.judge(batch.images) - self.judge(frame.detach()) - 1).square().mean((1, 2, 3)))
        loss = (frame - batch.images).square().mean((1, 2, 3)) + self.judge(frame).square().mean((1, 2, 3))
        return LossTerms(loss, carried={"past": frame.detach()})


def draw(batch_size: int, *, world: World) -> Any:
    """A source of images that are functions of their position."""

    def batches(start: int) -> Iterator[RawBatch]:
        own = share(batch_size, rank=world.rank, world_size=world.size)
        while True:
            index = torch.arange(start + own.start, start + own.stop)
            pixels = words(index.numpy(), key=key_of(0, "pixels"), count=SIZE * SIZE * 3) % 256
            yield RawBatch(torch.from_numpy(pixels).to(torch.uint8).view(-1, SIZE, SIZE, 3), None, index)
            start += batch_size

    return batches


def make_loop(
    model: Model,
    root: Path,
    *,
    world: World | None = None,
    validate: Any = None,
    grids: Any = None,
    evaluation: Evaluation | None = None,
    found: Callable[[int], None] | None = None,
    calibrate: Callable[[], Iterator[RawBatch]] | None = None,
    optim: OptimConfig | None = None,
    log: LogConfig | None = None,
    **train: Any,
) -> Loop:
    """A loop around the model, channels last; without a terminal, and without a log unless `log` says when it writes."""
    world = world or World(0, 1, torch.device("cpu"))
    settings = TrainConfig(**({"total_images": 64, "batch_size": 8, "checkpoint_every": None, "ema_rates": (0.9, 0.99)} | train))
    directory = RunDirectory(root)
    directory.create()
    directory.write_config({})
    reporting = None
    if log is not None and world.is_main:
        progress = Progress(settings.total_images, stream=StringIO())
        reporting = Reporting(MetricLog(directory, config=log, settings={}, show=progress.message), progress)
    return Loop(
        model.to(memory_format=torch.channels_last),
        train=settings,
        optim=optim or OptimConfig(learning_rate=1e-2),
        log=log or LogConfig(),
        world=world,
        directory=directory,
        callables=Callables(draw(settings.batch_size, world=world), validate, grids or {}, calibrate, evaluation, found_microbatch=found),
        reporting=reporting,
    )


def seeded(kind: type[Model]) -> Model:
    """The model with fixed initial weights."""
    torch.manual_seed(0)
    return kind()


def run(loop: Loop) -> bool:
    """Runs the loop with nobody asking to stop."""
    return loop.run(StopRequest())


def resumed(root: Path, model: Model, **settings: Any) -> Loop:
    """A loop around a fresh model that goes on from the newest checkpoint, as `triptych train` does."""
    checkpoint = load_newest(root / "checkpoints", warn=print)
    assert checkpoint is not None
    model.load_state_dict(checkpoint.files["model"])
    loop = make_loop(model, root, **settings)
    loop.restore(checkpoint)
    if loop.reporting is not None:
        loop.reporting.log.resumed(loop.images_seen)
    return loop


def metrics(root: Path) -> list[dict[str, Any]]:
    """The lines of metrics without what depends on the clock."""
    clock = ("time", "images_per_second", "memory_bytes")
    return [{name: value for name, value in line.items() if name not in clock} for line in read_metrics(root / "metrics.jsonl")]


def stop_after(loop: Loop, images: int) -> StopRequest:
    """A request that comes in the step that ends at so many images."""
    stop, iteration = StopRequest(), loop._iteration

    def until(batches: Iterator[RawBatch]) -> None:
        iteration(batches)
        stop.name = "SIGTERM" if loop.images_seen >= images else None

    loop._iteration = until
    return stop
