"""How long imaginaire's YAML files train, how fast, and what is written when: counted in images."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from triptych.core.errors import ConfigError
from triptych.interop.imaginaire.reading import Settings
from triptych.interop.imaginaire.yaml_file import ENDLESS

FALLBACK_IMAGES = 1_000_000
"""Length of a training whose epochs nobody has counted."""

_POLICIES = ("step", "linear", "constant")
_MOST_BATCH = 1_000_000


@dataclass(frozen=True)
class Span:
    """A length, in iterations and in epochs; None: it has none. Where both are given the shorter one counts."""

    iterations: int | None = None
    epochs: float | None = None

    @property
    def ever(self) -> bool:
        """Whether it has an end."""
        return self.iterations is not None or self.epochs is not None


@dataclass(frozen=True)
class Optimizer:
    """One of the two sections of optimizers."""

    rate: float
    betas: tuple[float, float]
    eps: float
    clip_norm: float | None
    policy: str
    start: Span
    "linear: where the rate begins to fall."
    end: Span
    "linear: where it has fallen; step: between falls."
    factor: float
    "What is left after a fall, or in the end."


@dataclass(frozen=True)
class Schedule:
    """What a file says of all that is counted, and of the optimizer."""

    batch: int
    "Images of a step of one GPU."
    discriminator_steps: int
    generator_steps: int
    optimizer: Optimizer
    discriminator_rate: float
    total: Span
    checkpoint: Span
    sample: Span
    validate: Span
    log_iterations: int
    settings: dict[str, Any]
    "Of the training, but for what is counted in images."
    average_start: int
    "Steps of the generator after which averages begin."
    half_life: float | None = None
    "Images after which an average has forgotten half; None: its rate is among the settings."
    warnings: list[str] = field(default_factory=list)

    @property
    def uses_epochs(self) -> bool:
        """Whether anything is counted in epochs, so that the number of training images is needed."""
        spans = (self.total, self.checkpoint, self.sample, self.validate, self.optimizer.start, self.optimizer.end)
        return any(span.epochs is not None for span in spans)

    def step_images(self, processes: int) -> int:
        """Images of an optimizer step in all processes."""
        return self.batch * processes

    def iteration_images(self, processes: int) -> int:
        """Images that an iteration draws: each of its steps has its own."""
        return self.step_images(processes) * max(self.discriminator_steps, self.generator_steps)

    def run_settings(self, *, processes: int, num_images: int | None) -> dict[str, dict[str, Any]]:
        """The sections train, optim and log of a run in so many processes, on so many training images (None: unknown).

        What is counted in epochs of unknown length is left out: the run has FALLBACK_IMAGES, and the rate stays where it is.
        """
        images = self.iteration_images(processes)
        epoch = None if num_images is None else max(1, num_images // images) * images

        def of(span: Span) -> int | None:
            found = [] if span.iterations is None else [span.iterations * images]
            if span.epochs is not None and epoch is not None:
                found.append(math.ceil(span.epochs * epoch))
            return max(1, min(found)) if found else None

        total = of(self.total) or (FALLBACK_IMAGES if self.total.epochs is not None else ENDLESS * images)
        train = self.settings | {
            "total_images": total,
            "batch_size": self.step_images(processes),
            "ema_start": -(-self.average_start // self.generator_steps) * images,
            "checkpoint_every": of(self.checkpoint),
            "sample_every": of(self.sample),
            "validate_every": of(self.validate),
        }
        if self.half_life is not None and train["ema_rates"]:
            train["ema_rates"] = (0.5 ** (self.step_images(processes) / self.half_life),)
        # An average moves after each of the generator's steps there, here after all of an iteration.
        train["ema_rates"] = tuple(rate**self.generator_steps for rate in train["ema_rates"])
        optimizer = self.optimizer
        optim: dict[str, Any] = {
            "name": "adam",
            "learning_rate": optimizer.rate,
            "betas": optimizer.betas,
            "eps": optimizer.eps,
            "clip_norm": optimizer.clip_norm,
        }
        start, end = of(optimizer.start), of(optimizer.end)
        if optimizer.policy == "step" and end is not None:
            optim |= {"schedule": "step", "decay_every": end, "decay_factor": optimizer.factor}
        elif optimizer.policy == "linear" and end is not None:
            optim |= {"schedule": "linear", "decay_start": start or 0, "decay_end": end, "decay_to": optimizer.factor}
        return {"train": train, "optim": optim, "log": {"every": self.log_iterations * images}}


def planned_schedule(settings: Settings) -> Schedule:
    """What the file says. Raises ConfigError, naming the setting, for what is wrong or not here."""
    warnings: list[str] = []
    trainer = settings.inside("trainer")
    batch = settings.inside("data").inside("train").number("batch_size", 1, most=_MOST_BATCH)
    generator, discriminator = (_optimizer(settings.inside(name), warnings) for name in ("gen_opt", "dis_opt"))
    _compare(generator, discriminator, warnings)
    saved = _span(settings, "snapshot_save_iter", "snapshot_save_epoch")
    measured = _span(settings, "metrics_iter", "metrics_epoch")
    steps = {name: trainer.number(name, 1, most=100) for name in ("dis_step", "gen_step")}
    average = trainer.inside("model_average_config")
    if steps["gen_step"] > 1 and average.flag("enabled", False):
        warnings.append(
            "trainer.gen_step: the average moves once in an iteration here, by as much as in all its steps there (--train.ema-rates)"
        )
    return Schedule(
        batch=batch,
        discriminator_steps=steps["dis_step"],
        generator_steps=steps["gen_step"],
        optimizer=generator,
        discriminator_rate=discriminator.rate / generator.rate,
        total=_span(settings, "max_iter", "max_epoch"),
        checkpoint=saved,
        sample=_span(settings, "image_save_iter", None),
        validate=measured if measured.ever else saved,
        log_iterations=settings.number("logging_iter", 100, most=ENDLESS),
        settings=_precision(trainer.inside("amp_config"), warnings) | _averages(average, warnings),
        average_start=average.number("start_iteration", 1000, least=0, most=ENDLESS),
        half_life=None if average.value("g_smooth_img") is None else _positive(average, "g_smooth_img", 1.0),
        warnings=warnings,
    )


def _span(settings: Settings, iterations: str, epochs: str | None) -> Span:
    found: list[int | None] = []
    for key in (iterations, epochs):
        number = ENDLESS if key is None else settings.number(key, ENDLESS, most=10 * ENDLESS)
        found.append(None if number >= ENDLESS else number)
    return Span(found[0], found[1])


def _optimizer(section: Settings, warnings: list[str]) -> Optimizer:
    if section.choice("type", "adam", ("adam",)) != "adam":
        raise AssertionError("only adam is allowed")
    betas = tuple(section.factor(f"adam_beta{k}", otherwise, least=0) for k, otherwise in ((1, 0.0), (2, 0.999)))
    for k, beta in enumerate(betas, start=1):
        if beta >= 1:
            raise ConfigError(section.name(f"adam_beta{k}"), f"got {beta:g}, expected a number from 0 to below 1")
    rate, eps = (_positive(section, key, otherwise) for key, otherwise in (("lr", 1e-4), ("eps", 1e-8)))
    clip = section.value("clip_grad_norm")
    if section.flag("skip_grad", False):
        warnings.append(f"{section.name('skip_grad')}: a step whose gradient is larger than clip_grad_norm is clipped here, not dropped")
    policy = section.inside("lr_policy")
    kind = policy.choice("type", "step", _POLICIES)
    start, end, factor = _policy(policy, kind)
    return Optimizer(
        rate=rate,
        betas=(betas[0], betas[1]),
        eps=eps,
        clip_norm=None if clip is None else _positive(section, "clip_grad_norm", 1.0),
        policy=kind,
        start=start,
        end=end,
        factor=factor,
    )


def _policy(policy: Settings, kind: str) -> tuple[Span, Span, float]:
    """Where the rate begins to fall, where it has fallen (or how often it does), and to what part."""
    iterations = policy.flag("iteration_mode", False)

    def span(value: int) -> Span:
        return Span() if value >= ENDLESS else Span(iterations=value) if iterations else Span(epochs=value)

    step, gamma = policy.number("step_size", ENDLESS, most=10 * ENDLESS), policy.factor("gamma", 1.0, least=0, most=1)
    begin, finish = (policy.number(key, otherwise, least=0, most=10 * ENDLESS) for key, otherwise in (("decay_start", 0), ("decay_end", 0)))
    target = policy.factor("decay_target", 0.0, least=0, most=1)
    if kind == "linear":
        if finish <= begin:
            raise ConfigError(policy.name("decay_end"), f"got {finish}, expected more than decay_start, {begin}")
        return span(begin), span(finish), target
    if kind == "step" and gamma == 0:
        raise ConfigError(policy.name("gamma"), "got 0, expected more than 0 and at most 1")
    return Span(), span(step) if kind == "step" and gamma < 1 else Span(), gamma


def _positive(section: Settings, key: str, otherwise: float) -> float:
    value = section.factor(key, otherwise)
    if value <= 0:
        raise ConfigError(section.name(key), f"got {value:g}, expected a positive number")
    return value


def _compare(generator: Optimizer, discriminator: Optimizer, warnings: list[str]) -> None:
    """Notes what of the discriminator's optimizer has to be the generator's here."""
    names = {"betas": "adam_beta1, adam_beta2", "eps": "eps", "clip_norm": "clip_grad_norm"}
    names |= dict.fromkeys(("policy", "start", "end", "factor"), "lr_policy")
    differing = [theirs for ours, theirs in names.items() if getattr(generator, ours) != getattr(discriminator, ours)]
    for theirs in dict.fromkeys(differing):
        warnings.append(f"dis_opt.{theirs}: other than that of gen_opt, which both networks have here; only their rates may differ")


def _precision(amp: Settings, warnings: list[str]) -> dict[str, Any]:
    scale, growth = _positive(amp, "init_scale", 65536.0), _positive(amp, "growth_factor", 2.0)
    interval, backoff = amp.number("growth_interval", 2000, most=ENDLESS), amp.factor("backoff_factor", 0.5)
    if not amp.flag("enabled", False):
        return {"precision": "float32"}
    if backoff != 0.5:
        warnings.append(f"{amp.name('backoff_factor')}: got {backoff:g}; the loss scale halves here when it is too large")
    warnings.append(f"{amp.name('enabled')}: in bf16, which needs no loss scale, not in fp16 (--train.precision fp16)")
    # The scale grows by the factor once in an interval there, evenly here.
    return {"precision": "bf16", "loss_scale": max(1.0, scale), "loss_scale_growth": max(0.0, math.log2(growth) / interval)}


def _averages(average: Settings, warnings: list[str]) -> dict[str, Any]:
    beta = average.factor("beta", 0.9999, least=0)
    if beta >= 1:
        raise ConfigError(average.name("beta"), f"got {beta:g}, expected a number from 0 to below 1")
    batches = average.number("num_batch_norm_estimation_iterations", 30, least=0)
    if not average.flag("remove_sn", True):
        warnings.append(f"{average.name('remove_sn')}: averages here are always of weights as spectral norm applies them")
    rates = (beta,) if average.flag("enabled", False) else ()
    return {"ema_rates": rates, "ema_warmup": False, "statistics_batches": batches}
