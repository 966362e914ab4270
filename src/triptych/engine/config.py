"""Settings of the training loop, the optimizer and the log. Everything that is counted is counted in images seen."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.ramp import Ramp, ends, value_at
from triptych.engine.lengths import LENGTHS, LONGEST, SHORTEST, exponent_of, length_name


@config
class AverageConfig(Config):
    """A moving average of the weights, e <- r e + (1 - r) w after each iteration: by its rate r, by its half-life, or by its length.

    One by its length is a power-function average: r = (1 - images of an iteration / t)^(gamma + 1), where t counts the images seen, those
    of the iteration included. So its profile grows with the run.
    """

    rate: float | None = None
    "r; None: it follows from half_life or length."
    half_life: int | Ramp | None = None
    "Images over which a weight comes to count half as much: r = 0.5^(images of an iteration / half_life); or a ramp. None: not by it."
    length: float | None = None
    "The width of a power-function average, as a share of the images seen (sigma_rel in EDM2): 0.05 or 0.1, at most 0.288. None: not by it."
    ramp_up: float | None = None
    "The half-life is at most this share of the images seen (0.05 in EDM and StyleGAN2); None: it is not bounded."
    warmup: bool = False
    "Start at rate (1 + n) / (10 + n) after n steps until that reaches the average's own."
    start: int = 0
    "Images until which the average is a copy of the weights, rounded down to whole iterations."

    def validate(self) -> None:
        given = [name for name in ("rate", "half_life", "length") if getattr(self, name) is not None]
        self.require(len(given) == 1, given[0] if given else "rate", "either a rate, or a half_life, or a length")
        self.require(self.rate is None or 0 <= self.rate < 1, "rate", "from 0 to below 1")
        lives = ends(self.half_life)
        within = all(0 <= life < 2**63 for life in lives) and (not lives or lives[-1] >= 1)
        self.require(within, "half_life", "at least 1 (a ramp may start at 0) and below 2^63")
        self.require(self.ramp_up is None or (self.ramp_up > 0 and self.half_life is not None), "ramp_up", "above 0, with a half_life")
        self.require(self.start >= 0, "start", "0 or more")
        if self.length is not None:
            self.require(SHORTEST <= self.length <= LONGEST, "length", LENGTHS)
            self.require(not self.warmup, "warmup", "False with a length, which starts by itself")
            self.require(self.start == 0, "start", "0 with a length, which starts by itself")

    @property
    def name(self) -> str:
        """What its file is called: ema-0.9999 by its rate, ema-500000 by its half-life in images, ema-length-0.1 by its length."""
        if self.length is not None:
            return length_name(self.length)
        return f"ema-{self.half_life.end:.0f}" if isinstance(self.half_life, Ramp) else f"ema-{self.half_life or self.rate}"

    @property
    def described(self) -> str:
        """What it is, in a message."""
        if self.length is not None:
            return f"length {self.length}"
        return f"rate {self.rate}" if self.half_life is None else f"half-life {self.name.removeprefix('ema-')} images"

    def rate_at(self, images_seen: int, *, images: int) -> float:
        """r of the update after the iteration of so many images that began at `images_seen`; 0: the average becomes the weights."""
        if self.length is not None:
            return (images_seen / (images_seen + images)) ** (exponent_of(self.length) + 1)
        updates = images_seen // images - self.start // images
        if updates < 0:
            return 0.0
        if self.rate is not None:
            rate = self.rate
        else:
            assert self.half_life is not None, "validate refuses it"
            half_life = min(value_at(self.half_life, images_seen), math.inf if self.ramp_up is None else self.ramp_up * images_seen)
            rate = 0.5 ** (images / half_life) if half_life > 0 else 0.0
        return min(rate, (1 + updates) / (10 + updates)) if self.warmup else rate


@config
class TrainConfig(Config):
    """How long, how large, how precise, and what is written when."""

    fixed: ClassVar = frozenset(("seed", "randomized_seed"))
    unwritten: ClassVar = frozenset(("shard", "shard_size", "checkpoint_writing", "deterministic"))

    total_images: int
    "Images seen when the run ends (every repetition counts)."
    batch_size: int
    "Images of one optimizer step, over all processes and microbatches."
    microbatch: int | Literal["auto"] | None = None
    "Images that go through the network at once in each process; None: its whole share of the batch; auto: as many as fit into memory."
    out_of_memory: Literal["halve", "stop"] = "halve"
    "Where a step does not fit into memory: halve microbatch and take the step anew, or stop. stop is a little faster in several processes."
    precision: Literal["auto", "float32", "bf16", "fp16"] = "float32"
    "Arithmetic of the networks; weights, losses and the optimizer stay float32. auto: bf16 where the device multiplies it natively."
    loss_scale: float = 2.0**20
    "fp16: the first loss scale."
    loss_scale_growth: float = 1e-3
    "fp16: log2 of the scale grows by this after a good step, and falls by 1 after an overflow."
    loss_scale_floor: float = 1.0
    "fp16: the run stops with a message when the scale falls below this."
    compile: Literal["auto", "on", "off"] = "auto"
    "torch.compile the networks; auto: on CUDA, in a run of 5000 iterations or more, which wins back the minutes that this takes."
    deterministic: bool = True
    "On CUDA: add in a fixed order, so that a resume ends with the same bytes. Without it some kernels are faster."
    seed: int = 0
    "Seed of everything random in the run."
    randomized_seed: bool = False
    "Draw a seed when the run is new; the one drawn is written into the run's config.json."
    ema_rates: tuple[float, ...] = (0.9999,)
    "Rates, per step, of the exponential moving averages of the weights; the first is used for samples and validation."
    ema_warmup: bool = True
    "Start each average at rate (1 + n) / (10 + n) after n steps until that reaches its own."
    ema_start: int = 0
    "Images until which the averages are copies of the weights, rounded down to whole iterations."
    ema_lengths: tuple[float, ...] = ()
    "Lengths of power-function averages (EDM2 tracks 0.05,0.1), after those of ema_rates; the three settings above do not concern them."
    averages: tuple[AverageConfig, ...] = ()
    "Further averages, after those of ema_rates and ema_lengths: each by a rate, a half-life or a length of its own."
    snapshot_every: int | None = None
    "Images between snapshots of the power-function averages, of which triptych average makes one of any length; None: none."
    snapshot_precision: Literal["float32", "fp16"] = "float32"
    "How they are stored. fp16 takes half the space, and leaves of a weight about three and a half digits."
    statistics_batches: int = 30
    "Training batches over which an average takes new statistics (of batch norm) before each use of it; 0: those of the weights."
    checkpoint_every: int | None = 500_000
    "Images between checkpoints; None: by time and at the end only."
    checkpoint_minutes: float | None = 30.0
    "Minutes between checkpoints; None: by images and at the end only."
    checkpoint_writing: Literal["wait", "background"] = "wait"
    "Whether the training waits while one is written, or goes on; that takes a copy of all that is saved, in the host's memory."
    keep_last: int = 2
    "Newest checkpoints that are kept (the best one, by best_by, is kept too)."
    keep_every: int | None = None
    "Images between checkpoints that are kept for good; None: there are none."
    sample_every: int | None = 500_000
    "Images between grids of samples; None: at the end only."
    sample_count: int = 64
    "Samples of a grid, always with the same noise and labels; 0: no grids."
    validate_every: int | None = 500_000
    "Images between validations; None: at the end only."
    validate_images: int = 2_048
    "Held-out images of a validation (fewer where there are fewer); 0: no validation."
    evaluate_every: int | None = None
    "Images between evaluations, which measure samples as triptych evaluate does; None: never."
    evaluate_metrics: tuple[str, ...] = ("frechet", "kid", "precision", "recall")
    "What is measured: metrics of sets, and those that compare with a truth where there is one; none: only how alike samples are."
    evaluate_features: str | None = None
    "Feature space of metrics of sets; None: inception where its weights are in the cache, else efficientnet-lite0; any: else random."
    evaluate_count: int = 1_000
    "Samples of an evaluation, always with the same noise and labels (fewer where they are made of fewer held-out images)."
    evaluate_split: Literal["train", "validation"] | None = None
    "Real images that they are compared with; None: those of the training (of a few-shot model the held-out ones)."
    evaluate_reference: int = 10_000
    "How many of these, spread evenly over them (all where there are fewer)."
    best_by: str = "validation"
    "What decides which checkpoint is the best: validation (its first loss), or one of evaluate_metrics."
    profile_steps: int = 0
    "Steps to profile after the third step of this start; writes profile/trace.json and profile/table.txt."
    shard: Literal["none", "full", "hybrid"] = "none"
    "Of several processes: whether each holds all weights, a part of them (FSDP2), or a part within a group of shard_size."
    shard_size: int | None = None
    "hybrid: processes that hold one copy of the model between them; None: those of a machine."
    timeout_minutes: float = 5.0
    "Of several processes: how long one may give no sign of life, or keep the others waiting in a step, before the run ends and names it."

    def validate(self) -> None:
        for name in ("total_images", "batch_size", "keep_last"):
            self.require(getattr(self, name) >= 1, name, "at least 1")
        self.require(self.microbatch in (None, "auto") or self.microbatch >= 1, "microbatch", "at least 1, or auto, or nothing")
        for name in ("checkpoint_every", "keep_every", "sample_every", "snapshot_every", "validate_every", "evaluate_every"):
            self.require(getattr(self, name) is None or getattr(self, name) >= 1, name, "at least 1, or nothing")
        for name in ("sample_count", "validate_images", "profile_steps", "ema_start", "statistics_batches"):
            self.require(getattr(self, name) >= 0, name, "0 or more")
        for name in ("evaluate_count", "evaluate_reference"):
            self.require(getattr(self, name) >= 2, name, "at least 2")
        if self.best_by != "validation":
            metrics = f"one of evaluate_metrics ({', '.join(self.evaluate_metrics) or 'which are none'})"
            self.require(self.best_by in self.evaluate_metrics, "best_by", f"validation, or {metrics}")
            if self.evaluate_every is None:
                reason = f"got None, expected a number of images, or {{}} validation, which is {self.best_by}"
                raise ConfigError("evaluate_every", reason, ["best_by"])
        self.require(self.checkpoint_minutes is None or self.checkpoint_minutes > 0, "checkpoint_minutes", "a positive number, or nothing")
        self.require(0 < self.timeout_minutes <= 24 * 60, "timeout_minutes", "a positive number, at most 1440")
        self.require(self.shard_size is None or self.shard_size >= 2, "shard_size", "at least 2, or nothing")
        self.require(self.shard_size is None or self.shard == "hybrid", "shard_size", f"nothing with shard {self.shard}")
        self.require(0 <= self.seed < 2**63, "seed", "0 to 2^63 - 1")
        self.require(all(0 <= rate < 1 for rate in self.ema_rates), "ema_rates", "rates from 0 to below 1")
        self.require(len(set(self.ema_rates)) == len(self.ema_rates), "ema_rates", "rates that differ")
        self.require(all(SHORTEST <= length <= LONGEST for length in self.ema_lengths), "ema_lengths", LENGTHS)
        names = [average.name for average in self.all_averages]
        if len(set(names)) < len(names):
            raise ConfigError("averages", f"got {', '.join(names)}, expected averages that differ")
        powers = any(average.length is not None for average in self.all_averages)
        self.require(self.snapshot_every is None or powers, "snapshot_every", "nothing without averages by length (ema_lengths 0.05,0.1)")
        self.require(self.loss_scale_floor > 0, "loss_scale_floor", "a positive number")
        self.require(self.loss_scale >= self.loss_scale_floor, "loss_scale", "at least loss_scale_floor")
        self.require(self.loss_scale_growth >= 0, "loss_scale_growth", "0 or more")

    def at_once(self, processes: int) -> int:
        """Images that go through a network at once in each of so many processes; of microbatch auto, before it is found, its share."""
        return self.microbatch if isinstance(self.microbatch, int) else -(-self.batch_size // processes)

    @property
    def all_averages(self) -> tuple[AverageConfig, ...]:
        """Those of `ema_rates`, of `ema_lengths`, then `averages`; the first one is used for samples and validation."""
        by_rate = (AverageConfig(rate=rate, warmup=self.ema_warmup, start=self.ema_start) for rate in self.ema_rates)
        return (*by_rate, *(AverageConfig(length=length) for length in self.ema_lengths), *self.averages)


@config
class PhaseOptimConfig(Config):
    """Settings of the optimizer that differ in the steps of a phase, or change over the run. None: as in the rest of the section."""

    unwritten: ClassVar = frozenset(("rate_factor", "beta2_power"))

    phase: str | None = None
    "Name of the phase, as in the log; None: every phase."
    learning_rate: float | Ramp | None = None
    "In place of the section's, before warm-up, schedule and the model's own factor."
    rate_factor: float | Ramp | None = None
    "Times the section's learning_rate, which then moves this one too; in place of learning_rate."
    beta1: float | Ramp | None = None
    "The first of betas."
    beta2: float | Ramp | None = None
    "The second of betas."
    beta2_power: float | Ramp | None = None
    "The second of the section's betas to this power, as in a lazy phase; in place of beta2."
    eps: float | Ramp | None = None
    "Added to the denominator."
    weight_decay: float | Ramp | None = None
    "As in the rest of the section."
    clip_norm: float | Ramp | None = None
    "Largest norm of the gradient of the phase's networks."

    def validate(self) -> None:
        for name in ("learning_rate", "rate_factor", "beta2_power", "eps", "clip_norm"):
            self.require(all(0 < value < math.inf for value in ends(getattr(self, name))), name, "a positive number")
        for name in ("beta1", "beta2"):
            self.require(all(0 <= value < 1 for value in ends(getattr(self, name))), name, "from 0 to below 1")
        self.require(all(value >= 0 for value in ends(self.weight_decay)), "weight_decay", "0 or more")
        self.require(self.rate_factor is None or self.learning_rate is None, "rate_factor", "nothing beside learning_rate")
        self.require(self.beta2_power is None or self.beta2 is None, "beta2_power", "nothing beside beta2")


@config
class OptimConfig(Config):
    """The optimizer and its learning rate."""

    fixed: ClassVar = frozenset(("name",))

    name: Literal["adamw", "adam", "adamax", "adamax-glow"] = "adamw"
    "Decoupled weight decay (Loshchilov and Hutter 2019); Adam or Adamax (Kingma and Ba 2015); or openai/glow's Adamax."
    learning_rate: float = 1e-4
    "Step size after warm-up."
    betas: tuple[float, float] = (0.9, 0.999)
    "Decay of the running mean of the gradient and of its square (of its largest magnitude in Adamax)."
    eps: float = 1e-8
    "Added to the denominator."
    weight_decay: float = 0.0
    "Decoupled in adamw, added to the gradient in adam and adamax, the part of each weight that a step takes away in adamax-glow."
    schedule: Literal["constant", "linear", "cosine", "step", "inverse-sqrt"] = "constant"
    "After warm-up: constant, or down along a line or half a cosine, by a factor every so many images, or as 1 / sqrt(images seen)."
    decay_start: int = 0
    "linear, cosine, inverse-sqrt: images seen (or epochs) where the rate begins to fall (EDM2's reference batches times the batch size)."
    decay_end: int | None = None
    "linear, cosine: images seen (or epochs) where it stops falling; None: train.total_images."
    decay_to: float = 0.0
    "linear, cosine: the final learning rate, as a fraction of learning_rate."
    decay_every: int | None = None
    "step, which needs it: images (or epochs) between the falls. None: there are none."
    decay_factor: float = 0.1
    "step: each fall multiplies the learning rate by this."
    decay_unit: Literal["images", "epochs"] = "images"
    "What decay_start, decay_end and decay_every count: images seen, or passes over the training images."
    warmup_images: int = 0
    "Images over which the learning rate rises linearly from 0."
    warmup_share: float | None = None
    "Largest share of train.total_images that the warm-up takes, whatever warmup_images says; None: warmup_images alone counts."
    clip_norm: float | None = None
    "Largest norm of the whole gradient; None: it is not clipped."
    phases: tuple[PhaseOptimConfig, ...] = ()
    "What differs in the steps of one phase, or changes over the run; of several that say the same, the last one counts."

    def validate(self) -> None:
        self.require(0 < self.learning_rate < math.inf, "learning_rate", "a positive number")
        self.require(all(0 <= beta < 1 for beta in self.betas), "betas", "two numbers from 0 to below 1")
        self.require(self.eps > 0, "eps", "a positive number")
        self.require(self.weight_decay >= 0, "weight_decay", "0 or more")
        if self.name == "adamax-glow":
            self.require(self.weight_decay < 1, "weight_decay", "below 1 with adamax-glow")
            decays = [decay for change in self.phases for decay in ends(change.weight_decay)]
            self.require(max(decays, default=0) < 1, "phases", "weight_decay below 1 with adamax-glow")
        self.require(self.decay_start >= 0, "decay_start", "0 or more")
        self.require(self.decay_end is None or self.decay_end > self.decay_start, "decay_end", "more than decay_start, or nothing")
        self.require(0 <= self.decay_to <= 1, "decay_to", "0 to 1")
        self.require(self.decay_start >= 1 or self.schedule != "inverse-sqrt", "decay_start", "at least 1 with schedule inverse-sqrt")
        self.require(self.decay_every is None or self.decay_every >= 1, "decay_every", "at least 1")
        self.require(self.decay_every is not None or self.schedule != "step", "decay_every", "a number of images with schedule step")
        self.require(0 < self.decay_factor <= 1, "decay_factor", "above 0 and at most 1")
        self.require(self.warmup_images >= 0, "warmup_images", "0 or more")
        self.require(self.warmup_share is None or 0 < self.warmup_share <= 1, "warmup_share", "above 0 and at most 1, or nothing")
        self.require(self.clip_norm is None or self.clip_norm > 0, "clip_norm", "a positive number, or nothing")

    def warmup(self, total_images: int) -> float:
        """Images of the warm-up in a run of that length."""
        return self.warmup_images if self.warmup_share is None else min(self.warmup_images, self.warmup_share * total_images)

    def in_images(self, epoch: int) -> OptimConfig:
        """The same with all counts in images, of which an epoch has so many."""
        if self.decay_unit == "images":
            return self
        counts = {name: getattr(self, name) for name in ("decay_start", "decay_end", "decay_every")}
        images = {name: count * epoch for name, count in counts.items() if count is not None}
        return dataclasses.replace(self, **images, decay_unit="images")


@config
class LogConfig(Config):
    """Where measurements go besides metrics.jsonl, log.txt and the terminal."""

    fixed: ClassVar = frozenset()

    every: int = 5_000
    "Images between lines of metrics."
    tensorboard: bool = False
    "Also write TensorBoard files (pip install triptych[logs])."
    wandb: Literal["off", "online", "offline"] = "off"
    "Also write to Weights & Biases (pip install triptych[logs]); a resumed run continues under its id."
    wandb_project: str = "triptych"
    "Project in Weights & Biases."
    report: bool = True
    "Write report.html into the run: at the end, and while it is trained after grids, validations and checkpoints."

    def validate(self) -> None:
        self.require(self.every >= 1, "every", "at least 1")
