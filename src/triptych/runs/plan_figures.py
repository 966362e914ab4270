"""The figures of a plan: what follows from what was measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from triptych.core.memory import in_bytes
from triptych.core.wording import counted
from triptych.recipes.config import RunConfig
from triptych.runs.scaling import Scaled

LEAST_EPOCHS, MOST_EPOCHS = 0.01, 10_000.0
_USED = 0.9
"""The share of the memory that is free that a run should take: what it takes varies, and the machine has other things to do."""


@dataclasses.dataclass(frozen=True)
class Size:
    """What was measured with so many images in the network at once."""

    images: int
    seconds: tuple[float, ...]
    "Of an iteration of each batch that was measured."
    batches: tuple[int, ...]
    peak_bytes: int
    "At its peak: of the process (CPU), or of the tensors on the device (CUDA)."


@dataclasses.dataclass(frozen=True)
class Memory:
    """The peak of memory as a line: `fixed` + `per_image` times the images that go through the networks at once."""

    fixed: float
    "Bytes."
    per_image: float
    "Bytes."
    start_bytes: int
    "Of the process before anything of the run is there, part of `fixed`; 0 on a GPU."
    free_bytes: int | None
    "What the device, or the machine or its container, has free; None: not known."
    gradient_bytes: int
    "What the gradients take, which are kept between microbatches."
    divisible: bool
    "Whether a batch may be cut into microbatches."
    group: int = 1
    "Images that are compared with one another: a microbatch is a multiple."
    whole: bool = True
    "Whether the measurements were of batches that are not cut."
    least: float = 0.0
    "Bytes at the peak of what is beside the steps: the beginning, grids, validations and evaluations."
    loader_processes: int = 0
    loader_bytes: int = 0
    "What the loader's processes take beside this one."
    most: int | None = None
    "The most images at once that were measured, where more were tried in vain; None: none were."

    def at(self, images: int) -> float:
        """Bytes at the peak with so many images at once."""
        return max(self.least, self.fixed + self.per_image * images)

    def too_many(self, images: int) -> bool:
        """Whether so many were tried at once in vain, or more than the most that fitted."""
        return self.most is not None and images > self.most

    @property
    def largest(self) -> int | None:
        """The largest microbatch that fits, or batch where it cannot be cut; 0: none does; None: not known, or nothing limits it.

        Where whole batches were measured, the gradients that wait for the next microbatch are added.
        """
        if self.free_bytes is None or self.per_image <= 0:
            return self.most
        room = _USED * self.free_bytes - self.loader_bytes
        waiting = self.gradient_bytes if self.divisible and self.whole else 0
        # `fixed` counts the process as it starts, and that memory is taken out of what is free as well.
        images = max(0, int((room - waiting - self.fixed) / self.per_image) // self.group * self.group)
        return images if self.most is None else min(images, self.most)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run will take."""

    device: str
    precision: str
    parameters: dict[str, int]
    "By network."
    operations: float
    "Floating-point operations of training on an image, forward and backward, of all phases."
    training_images: int
    batch: int
    at_once: int
    "Images that go through the networks at once: the microbatch, or the batch."
    images_per_step: int
    "Images seen in an iteration: those of all slices."
    sizes: tuple[Size, ...]
    memory: Memory
    step_seconds: float
    extrapolated: bool
    "Whether the run's own size was not measured, for it takes too long or too much memory."
    loader_rate: float
    "Images a second that the loader alone gives."
    images_seen: int
    "Where the run would go on."
    total_images: int
    begin_seconds: float
    "Until the first step: imports, opening the images, building the model, and what it takes from the first images."
    grid_seconds: float
    validation_seconds: float
    evaluation_seconds: float
    "Of one, but for the look at the reference."
    reference_seconds: float
    "Of the look at the reference, once, unless the cache knows it."
    counts: dict[str, int]
    "Grids, validations and evaluations that are still to come."
    checkpoints_by_images: int
    "Checkpoints that are still to come for the images seen, with the last one; there may be more by minutes."
    checkpoint_seconds: float
    "To write one."
    training_waits: bool
    "Whether it stands still meanwhile; if not, it waits for the last one."
    images_to_checkpoint: int | None
    checkpoint_minutes: float | None
    checkpoint_bytes: int
    kept_bytes: int
    "At most on the disk at once: kept checkpoints, the one that is being written, snapshots, and the autoencoder of latents."
    free_disk: int
    lying_bytes: int = 0
    "What the run has on the disk already, part of kept_bytes."
    sample: Literal["image", "clip"] = "image"
    "What is counted as an image."
    scaled: Scaled | None = None
    "Of a run of several processes; then sizes, at_once and memory are those of each of them, the rest is of all together."

    @property
    def rate(self) -> float:
        """Images seen a second, where the loader keeps up or not."""
        return self.images_per_step / max(self.step_seconds, self.images_per_step / self.loader_rate)

    @property
    def seconds_left(self) -> float:
        """To the end of the run: its beginning, steps, grids, validations, evaluations and checkpoints."""
        return self.begin_seconds + self._seconds_of_steps + self.seconds_around if self._seconds_of_steps else 0.0

    @property
    def _seconds_of_steps(self) -> float:
        return math.ceil(max(0, self.total_images - self.images_seen) / self.images_per_step) * self.images_per_step / self.rate

    @property
    def seconds_around(self) -> float:
        """Of grids, validations, evaluations and checkpoints."""
        saved = self.checkpoint_seconds * (self.checkpoints if self.training_waits else min(1, self.checkpoints))
        return self._seconds_of_looks + saved

    @property
    def _seconds_of_looks(self) -> float:
        counts = self.counts
        evaluations = counts["evaluations"] * self.evaluation_seconds + (self.reference_seconds if counts["evaluations"] else 0.0)
        return counts["grids"] * self.grid_seconds + counts["validations"] * self.validation_seconds + evaluations

    @property
    def checkpoints(self) -> int:
        """That are still to come, by images or by minutes."""
        if self.checkpoint_minutes is None:
            return self.checkpoints_by_images
        by_minutes = int((self._seconds_of_steps + self._seconds_of_looks) / (60 * self.checkpoint_minutes))
        return max(self.checkpoints_by_images, by_minutes)

    @property
    def seconds_to_checkpoint(self) -> float:
        """To the next checkpoint: by images, by minutes, or the last one."""
        bounds = [self.seconds_left]
        if self.images_to_checkpoint is not None:
            bounds.append(math.ceil(self.images_to_checkpoint / self.images_per_step) * self.images_per_step / self.rate)
        if self.checkpoint_minutes is not None:
            bounds.append(60 * self.checkpoint_minutes)
        return min(bounds)

    @property
    def epochs(self) -> float:
        """How often each training image is seen in the whole run."""
        return self.total_images / self.training_images

    @property
    def memory_bytes(self) -> float:
        """The peak of the run's own size: as it was measured, else by the line. Of several processes, that of each."""
        own = next((size.peak_bytes for size in self.sizes if size.images == self.at_once), None)
        saved = 0 if self.scaled is None else self.scaled.saved_bytes
        return self.memory.at(self.at_once) if own is None else max(own - saved, self.memory.least)

    def warnings(self) -> list[str]:
        """What is likely to be a mistake, a line each."""
        lines, images = [], counted(self.training_images, self.sample)
        step_rate = self.images_per_step / self.step_seconds
        if self.loader_rate < step_rate:
            lines.append(
                f"the loader gives {rounded(self.loader_rate)} images a second and the steps would take {rounded(step_rate)}: raise "
                "--data.workers, set --data.decode reduced, or give the images as an array of their size"
            )
        if self.epochs < LEAST_EPOCHS:
            lines.append(f"the run sees {100 * self.epochs:.2g} % of its {images}: raise --train.total-images, or give fewer")
        if self.epochs > MOST_EPOCHS:
            lines.append(
                f"the run sees each of its {images} {self.epochs:,.0f} times and would learn them by heart: lower "
                "--train.total-images, or give more"
            )
        if self.kept_bytes - self.lying_bytes > self.free_disk:
            lines.append(
                f"checkpoints and snapshots take up to {in_bytes(self.kept_bytes)} and the disk has {in_bytes(self.free_disk)}: keep fewer "
                "(--train.keep-last, --train.keep-every, --train.snapshot-every), or give --run on another disk"
            )
        free = self.memory.free_bytes
        taken = self.memory_bytes + self.memory.loader_bytes
        if self.memory.too_many(self.at_once):
            lines.append(f"{counted(self.at_once, 'image at once does', 'images at once do')} not fit into memory: {self._remedy()}")
        elif free is not None and taken > free:
            lines.append(f"the run takes {in_bytes(taken)} of memory and {in_bytes(free)} are free: {self._remedy()}")
        return lines

    def _remedy(self) -> str:
        largest = self.memory.largest
        if not largest:
            return "take a smaller recipe or --data.image-size"
        return f"--train.microbatch {largest}" if self.memory.divisible else f"--train.batch-size {largest * self.processes}"

    @property
    def processes(self) -> int:
        """Of the run."""
        return 1 if self.scaled is None else self.scaled.machines.processes

    def to_dict(self) -> dict[str, Any]:
        """All of it for JSON, with what follows from it; times are seconds."""
        derived: dict[str, Any] = {
            "parameters_in_all": sum(self.parameters.values()),
            "images_per_second": self.rate,
            "seconds_left": self.seconds_left,
            "seconds_to_checkpoint": self.seconds_to_checkpoint,
            "checkpoints": self.checkpoints,
            "epochs": self.epochs,
            "memory_bytes": self.memory_bytes,
            "largest": self.memory.largest,
            "warnings": self.warnings(),
        }
        if self.scaled is not None:
            derived["least_step_seconds"] = self.scaled.least_seconds
        return dataclasses.asdict(self) | derived


def rounded(value: float) -> str:
    """A number to three digits; from 1,000 on whole, which is not written with an exponent."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def line_through(sizes: Sequence[Size]) -> tuple[float, float]:
    """Intercept and slope (0 or more) of the line through the peaks of the two largest sizes, in bytes; a level one through a single size.

    Smaller sizes would make it too flat: where few images go through the networks, the optimizer's step may be the peak.
    """
    if len(sizes) == 1:
        return float(sizes[0].peak_bytes), 0.0
    one, two = sizes[-2:]
    slope = (two.peak_bytes - one.peak_bytes) / (two.images - one.images)
    return (two.peak_bytes - slope * two.images, slope) if slope > 0 else (float(max(size.peak_bytes for size in sizes)), 0.0)


def step_seconds(sizes: Sequence[Size], *, at_once: int, batch: int) -> tuple[float, bool]:
    """Seconds of an iteration with that batch, and whether they are extrapolated from smaller sizes.

    A batch that is cut takes the time of one microbatch, with the step of the optimizer, and that of a further one as often as there are
    further ones. Batches that are not cut lie on a line.
    """
    own = next((size for size in sizes if size.images == at_once), None)
    of = own or sizes[-1]
    if len(of.batches) == 2:
        further = max(0.0, of.seconds[1] - of.seconds[0])
        return of.seconds[0] + (batch / of.images - 1) * further, own is None
    if own is not None:
        return own.seconds[0], False
    if len(sizes) == 1:
        return of.seconds[0] * batch / of.images, True
    slope, fixed = np.polyfit([size.images for size in sizes], [size.seconds[0] for size in sizes], 1)
    return float(max(of.seconds[0], fixed + slope * batch)), True


def times_due(every: int | None, seen: int, total: int, *, step: int, also: int | None = None) -> int:
    """How often something is still to come that happens at multiples of `every` and of `also`, and at the end.

    It happens once in an iteration of `step` images, however many multiples that passes.
    """

    def before_end(span: int | None) -> int:
        return 0 if span is None else (total - 1) // span - seen // span

    if seen >= total:
        return 0
    common = math.lcm(every, also) if every and also else None  # where both fall due at once
    return min(before_end(every) + before_end(also) - before_end(common) + 1, -(-(total - seen) // step))


def kept_bytes(config: RunConfig, checkpoint: int, powers: int, *, step: int) -> int:
    """The most that lies on the disk at once: newest checkpoints, the best one, those for good, one that is being written, snapshots.

    `powers`: bytes of the averages by length, which a snapshot has; `step`: images of an iteration, which writes one of each at most.
    """
    train = config.train
    iterations = -(-train.total_images // step)
    for_good = 0 if train.keep_every is None else (train.total_images - 1) // train.keep_every  # one at the end is the newest
    snapshots = 0 if train.snapshot_every is None else min(train.total_images // train.snapshot_every, iterations)
    checkpoints = min(train.keep_last + for_good + 1, iterations) + 1
    return checkpoints * checkpoint + snapshots * (powers // 2 if train.snapshot_precision == "fp16" else powers)
