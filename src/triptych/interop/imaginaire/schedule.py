"""How long imaginaire's YAML files train, how fast, and what is written when: counted in images."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from triptych.core.batch import ClipLength
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.gans.model import GANConfig
from triptych.gans.paired_base import PairedGANConfig
from triptych.interop.imaginaire.reading import Settings
from triptych.interop.imaginaire.yaml_file import ENDLESS

UNCOUNTED_IMAGES = 1_000_000
"""Length of a training in epochs whose images nobody has counted."""

_GRID = 16
"""Translations in the grids during training."""


@dataclass(frozen=True)
class Span:
    """A length, in iterations and in epochs; None: it has none. Where both are given the shorter one counts."""

    iterations: int | None = None
    epochs: int | None = None

    @property
    def ends(self) -> bool:
        return self.iterations is not None or self.epochs is not None

    def images(self, iteration: int, epoch: int | None) -> int | None:
        """The length in images, of which an iteration and an epoch have so many (None: unknown). None: it has no end."""
        lengths = [] if self.iterations is None else [self.iterations * iteration]
        if self.epochs is not None and epoch is not None:
            lengths.append(self.epochs * epoch)
        return max(1, min(lengths)) if lengths else None


@dataclass(frozen=True)
class Decay:
    """How the learning rate falls."""

    policy: Literal["step", "linear", "constant"]
    start: Span
    "linear: where it begins to fall."
    end: Span
    "linear: where it has fallen; step: between falls."
    factor: float
    "What is left of it after a fall, or in the end."

    def applied(self, optim: OptimConfig, iteration: int, epoch: int | None) -> OptimConfig:
        """The optimizer with this schedule; one without a known end stays at a constant rate."""
        start, end = (span.images(iteration, epoch) for span in (self.start, self.end))
        if self.policy == "step" and end is not None:
            return replace(optim, schedule="step", decay_every=end, decay_factor=self.factor)
        if self.policy == "linear" and end is not None:
            return replace(optim, schedule="linear", decay_start=start or 0, decay_end=end, decay_to=self.factor)
        return optim


@dataclass(frozen=True)
class Schedule:
    """What a file says of the training, of the optimizer, and of all that is counted."""

    train: TrainConfig
    "Of one process, where nothing is counted in images yet."
    optim: OptimConfig
    decay: Decay
    spans: dict[str, Span]
    "By settings of `train`."
    log_iterations: int
    repeats: int
    "Steps of an iteration, each on images of its own: the discriminator's or the generator's, whichever are more."
    generator_steps: int
    average_start: int
    "Steps of the generator after which averages begin."
    half_life: float | None
    "Images after which an average has forgotten half; None: its rate is in `train`."
    frames: tuple[int, int] = (1, 1)
    "Of a clip, at first and at most: each has a step of the generator."
    doubling: Span = Span()
    "After which clips are twice as long."
    single: Span = Span()
    "In which clips have one frame, at the beginning."

    @property
    def uses_epochs(self) -> bool:
        """Whether anything is counted in epochs, so that the number of training images is needed."""
        return any(span.epochs is not None for span in (*self.spans.values(), self.decay.start, self.decay.end, self.doubling, self.single))

    def configs(self, *, processes: int, num_images: int | None) -> tuple[TrainConfig, OptimConfig, LogConfig]:
        """The settings of a run in so many processes, on so many training images (None: unknown).

        What is counted in epochs of unknown length is left out: the run has UNCOUNTED_IMAGES, and the rate stays where it is.
        """
        batch, iteration, epoch = self._counted(processes, num_images)
        counts = {name: span.images(iteration, epoch) for name, span in self.spans.items()}
        if counts["total_images"] is None:
            counts["total_images"] = UNCOUNTED_IMAGES if self.spans["total_images"].ends else ENDLESS * iteration
        rates = self.train.ema_rates
        if self.half_life is not None and rates:
            rates = (0.5 ** (batch / self.half_life),)
        train = replace(
            self.train,
            batch_size=batch,
            # An average moves after each of the generator's steps there, here after all of an iteration.
            ema_rates=tuple(rate ** (self.generator_steps * sum(self.frames) / 2) for rate in rates),
            ema_start=-(-self.average_start // (self.generator_steps * self.frames[0])) * iteration,
            **cast(Any, counts),
        )
        return train, self.decay.applied(self.optim, iteration, epoch), LogConfig(every=self.log_iterations * iteration)

    def lengths(self, clips: ClipLength, *, processes: int, num_images: int | None) -> ClipLength:
        """`clips` with the counts of the file: how many have one frame, and after how many more they are twice as long.

        What is counted in epochs of unknown length is left out.
        """
        _, iteration, epoch = self._counted(processes, num_images)
        alone, doubling = (span.images(iteration, epoch) for span in (self.single, self.doubling))
        return replace(clips, alone=alone or 0, double_every=doubling)

    def _counted(self, processes: int, num_images: int | None) -> tuple[int, int, int | None]:
        """Images of a batch, of an iteration and of an epoch (None: unknown)."""
        batch = self.train.batch_size * processes
        iteration = batch * self.repeats
        return batch, iteration, None if num_images is None else max(1, num_images // iteration) * iteration


def read_schedule(settings: Settings, model: GANConfig, *, clips: ClipLength | None = None) -> Schedule:
    """What the file says of the training of a model, on `clips` of such lengths or on images.

    Raises ConfigError, naming the setting, for what is wrong or not here.
    """
    trainer = settings.inside("trainer")
    average, measured = trainer.inside("model_average_config"), _span(settings, "metrics_iter", "metrics_epoch")
    saved = _span(settings, "snapshot_save_iter", "snapshot_save_epoch")
    generator, discriminator = ((_optim(section), _decay(section)) for section in map(settings.inside, ("gen_opt", "dis_opt")))
    _compare(settings.inside("dis_opt"), generator, discriminator)
    if model.generator_steps > 1 and average.flag("enabled"):
        trainer.warn("gen_step", "the average moves once in an iteration here, by as much as in all its steps there (--train.ema-rates)")
    frames, doubling, single = (1, 1), Span(), Span()
    if clips is not None:
        frames = clips.first, clips.most
        epochs = settings.number("num_epochs_temporal_step", ENDLESS, most=10 * ENDLESS)
        doubling = Span() if epochs >= ENDLESS else Span(epochs=epochs)
        alone = settings.number("single_frame_epoch", 0, least=0)
        single = Span(epochs=alone) if alone else Span()
        if average.flag("enabled"):
            trainer.warn("model_average_config", "an average moves once in an iteration here, by as much as in the frames of a clip there")
    return Schedule(
        train=_train(trainer, batch=batch_size(settings), clips=clips is not None, paired=isinstance(model, PairedGANConfig)),
        frames=frames,
        doubling=doubling,
        single=single,
        optim=generator[0],
        decay=generator[1],
        spans={
            "total_images": _span(settings, "max_iter", "max_epoch"),
            "checkpoint_every": saved,
            "sample_every": _span(settings, "image_save_iter"),
            "validate_every": measured if measured.ends else saved,
        },
        log_iterations=settings.number("logging_iter", most=ENDLESS),
        repeats=max(model.discriminator_steps, model.generator_steps),
        generator_steps=model.generator_steps,
        average_start=average.number("start_iteration", least=0, most=ENDLESS),
        half_life=None if average.value("g_smooth_img") is None else average.positive("g_smooth_img"),
    )


def batch_size(settings: Settings) -> int:
    return settings.inside("data").inside("train").number("batch_size", most=1_000_000)


def _span(settings: Settings, *keys: str) -> Span:
    """Of iterations, and perhaps of epochs."""
    numbers = [settings.number(key, most=10 * ENDLESS) for key in keys]
    return Span(*(None if number >= ENDLESS else number for number in numbers))


def _optim(section: Settings) -> OptimConfig:
    section.choice("type", ("adam",))
    if section.flag("skip_grad"):
        section.warn("skip_grad", "a step whose gradient is larger than clip_grad_norm is clipped here, not dropped")
    return OptimConfig(
        name="adam",
        learning_rate=section.positive("lr"),
        betas=(section.rate("adam_beta1"), section.rate("adam_beta2")),
        eps=section.positive("eps"),
        clip_norm=None if section.value("clip_grad_norm") is None else section.positive("clip_grad_norm"),
    )


def _decay(section: Settings) -> Decay:
    settings = section.inside("lr_policy")
    policy = cast(Literal["step", "linear", "constant"], settings.choice("type", ("step", "linear", "constant")))
    iterations = settings.flag("iteration_mode")

    def span(value: int) -> Span:
        return Span() if value >= ENDLESS else Span(iterations=value) if iterations else Span(epochs=value)

    step, gamma = settings.number("step_size", most=10 * ENDLESS), settings.factor("gamma", least=0, most=1)
    start, end = (settings.number(key, least=0, most=10 * ENDLESS) for key in ("decay_start", "decay_end"))
    target = settings.factor("decay_target", least=0, most=1)
    if policy == "linear":
        settings.require(end > start, "decay_end", f"more than decay_start, {start}")
        return Decay(policy, span(start), span(end), target)
    settings.require(gamma > 0 or policy != "step", "gamma", "more than 0 and at most 1")
    return Decay(policy, Span(), span(step) if policy == "step" and gamma < 1 else Span(), gamma)


def _compare(section: Settings, generator: tuple[OptimConfig, Decay], discriminator: tuple[OptimConfig, Decay]) -> None:
    """Warns of what differs between the optimizers: here the discriminator has that of the generator, at a rate of its own."""
    names = {"betas": "adam_beta1, adam_beta2", "eps": "eps", "clip_norm": "clip_grad_norm"}
    differing = [theirs for ours, theirs in names.items() if getattr(generator[0], ours) != getattr(discriminator[0], ours)]
    for name in [*differing, *(["lr_policy"] if generator[1] != discriminator[1] else [])]:
        section.warn(name, "other than that of gen_opt, which both networks have here; only their rates may differ")


def _train(trainer: Settings, *, batch: int, clips: bool, paired: bool) -> TrainConfig:
    """Precision and averages of a training, of clips or of images; `paired`: images of label maps."""
    amp, average = trainer.inside("amp_config"), trainer.inside("model_average_config")
    scale, growth, interval = amp.positive("init_scale"), amp.positive("growth_factor"), amp.number("growth_interval", most=ENDLESS)
    backoff, beta = amp.factor("backoff_factor"), average.rate("beta")
    train = TrainConfig(
        total_images=UNCOUNTED_IMAGES,
        batch_size=batch,
        sample_count=_GRID,
        ema_rates=(beta,) if average.flag("enabled") else (),
        ema_warmup=False,
        statistics_batches=average.number("num_batch_norm_estimation_iterations", least=0),
    )
    if clips or paired:  # each frame of a clip has other parts of the networks; the recipes of pairs are not compiled either
        train = replace(train, compile="off")
    if amp.flag("enabled") and clips:
        amp.warn("enabled", "there in the losses alone, and the networks are in float32; so is this run (--train.precision bf16)")
    elif amp.flag("enabled"):
        if backoff != 0.5:
            amp.warn("backoff_factor", f"got {backoff:g}; the loss scale halves here when it is too large")
        amp.warn("enabled", "in bf16, which needs no loss scale, not in fp16 (--train.precision fp16)")
        # The scale grows by the factor once in an interval there, evenly here.
        growth = max(0.0, math.log2(growth) / interval)
        train = replace(train, precision="bf16", loss_scale=max(1.0, scale), loss_scale_growth=growth)
    if not average.flag("remove_sn"):
        average.warn("remove_sn", "averages here are always of weights as spectral norm applies them")
    return train
