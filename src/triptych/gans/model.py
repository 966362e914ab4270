"""What all GANs here have in common: a generator, a discriminator, the phases in which they play, and their loss terms.

"Generative Adversarial Networks", Goodfellow et al. 2014, https://arxiv.org/abs/1406.2661. A model says which images its discriminator
has to tell apart (its contests) and what else its generator has to satisfy (its terms); the rest stands here: the adversarial losses,
gradient penalties, augmentation, top-k training, the phases of an iteration and the averages.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from triptych.core.batch import Batch
from triptych.core.config import Config, config, spelled
from triptych.core.errors import ConfigError
from triptych.core.model import Averaged, LossTerms, Model, ModelConfig, Phase, TrainingProgress
from triptych.core.ramp import Ramp, value_at
from triptych.core.rng import Rng
from triptych.gans.ada import ADAConfig, adapted
from triptych.gans.adaptation import Adaptation, mean_signs
from triptych.gans.augmentation import Change, View
from triptych.gans.discriminators import Scores
from triptych.gans.init import InitConfig, initialize
from triptych.gans.losses import AdversarialConfig, Outputs, discriminator_losses, generator_loss, score_mean, top_k_weights
from triptych.gans.penalties import PenaltyConfig, as_leaf, differentiable, gradient_penalty, squared_gradient
from triptych.gans.weight_norms import effective_weights, power_iteration, rescale_average
from triptych.nn.batch_norm import batch_norms, frozen_statistics
from triptych.nn.collectives import gathered

Discriminate: TypeAlias = Callable[[Tensor], Scores]

GENERATOR, DISCRIMINATOR, PENALTY = "generator", "discriminator", "penalty"
_SIGN = "ada_sign"


@config
class TopKConfig(Config):
    """Top-k training: the generator learns from those of its images that the discriminator finds best."""

    least: float = 1.0
    "The share of a batch that is left in the end; 1: all of it, always."
    decay: float = 0.99
    "Factor of the share, from 1 on, after each round."
    round_steps: int = 1000
    "Steps of the generator in a round: as many as a pass over the data takes, in the paper."

    def validate(self) -> None:
        self.require(0 < self.least <= 1, "least", "above 0 and at most 1")
        self.require(0 < self.decay <= 1, "decay", "above 0 and at most 1")
        self.require(self.round_steps >= 1, "round_steps", "at least 1")

    def share(self, step: int) -> float:
        """The share of a batch in the generator's step of this number, from 1: `decay` to the power of the whole rounds, or `least`."""
        return max(self.decay ** (step // self.round_steps), self.least)


@config
class GANConfig(ModelConfig):
    """The game of a generator and a discriminator."""

    within_bounds: ClassVar = True
    terms: ClassVar[dict[str, str]] = {"adversarial": "adversarial_weight"}
    "The generator's terms, and the setting that weighs each."

    adversarial: AdversarialConfig = AdversarialConfig()
    "The loss on the discriminator's scores."
    adversarial_weight: float = 1.0
    "Weight of the generator's loss on the scores."
    discriminator_steps: int = 1
    "Steps of the discriminator in each iteration, each on images of its own."
    generator_steps: int = 1
    "Steps of the generator in each iteration, each on images of its own."
    discriminator_rate: float = 1.0
    "Learning rate of the discriminator, as a factor of that of the generator."
    penalty: PenaltyConfig = PenaltyConfig()
    "Gradient penalties of the discriminator."
    augment: tuple[Change, ...] = ()
    "Random changes through which the discriminator sees real and generated images."
    ada: ADAConfig = ADAConfig()
    "Random changes with a probability, which may be steered; they come before those of `augment`."
    augment_alike: bool = True
    "The same changes for a real image and its generated partner; else each has its own. A label map has those of its image."
    top_k: TopKConfig = TopKConfig()
    "Training of the generator by its best images."
    initial: InitConfig = InitConfig()
    "Initial weights of both networks."

    def validate(self) -> None:
        for setting in self.terms.values():
            self.require(0 <= getattr(self, setting) < float("inf"), setting, "0 or a positive number")
        self.require(self.discriminator_steps >= 1, "discriminator_steps", "at least 1")
        self.require(self.generator_steps >= 1, "generator_steps", "at least 1")
        self.require(0 < self.discriminator_rate < float("inf"), "discriminator_rate", "a positive number")
        self.require(len(set(self.augment)) == len(self.augment), "augment", "names that differ")
        if self.ada.target is not None:
            self._check_steering()

    def augmentation_in_words(self, p: float | None = None) -> str:
        """The changes through which the discriminator sees images; see `Augments`."""
        often = self._often(p)
        ada = [f"ADA at p = {often:g}"] if often > 0 and any(getattr(self.ada, change) for change in self.ada.changes()) else []
        always = [f"DiffAugment ({', '.join(self.augment)})"] if self.augment else []
        return f"the discriminator's {' and '.join([*ada, *always])}" if ada or always else ""

    @property
    def augments_later(self) -> bool:
        """Whether ADA's changes begin after the first step; see `Augments`."""
        return self.ada.used and self._often(None) == 0

    def augmented(self, images: Float[Tensor, "b c h w"], rng: Rng, *, p: float | None = None) -> Float[Tensor, "b c h w"]:
        """Images as the discriminator sees them; see `Augments`."""
        often = self._often(p)
        adapt = functools.partial(adapted, p=often, settings=self.ada) if often > 0 else None
        return View(self.augment, rng, adapt)(images)

    def _often(self, p: float | None) -> float:
        return value_at(self.ada.p, 0) if p is None else p

    def _check_steering(self) -> None:
        """Raises ConfigError where p cannot be steered: first for a game in which it never can."""
        if not self.adversarial.decides_by_sign:
            names = ["adversarial.relativistic" if self.adversarial.relativistic else "adversarial.kind", "ada.p"]
            reason = "p would be steered by the signs of scores, which mean nothing with this {}; leave it out and give {}"
            raise ConfigError("ada.target", reason, names)
        if isinstance(self.ada.p, Ramp):
            raise ConfigError("ada.p", f"got {spelled(self.ada.p)}, expected a number, from which {{}} moves it", ["ada.target"])

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each of the generator's terms."""
        return {term: getattr(self, setting) for term, setting in self.terms.items()}


@dataclass(frozen=True)
class Seen:
    """Images, real or generated, and how the discriminator sees them."""

    images: Float[Tensor, "b c h w"]
    "Before augmentation."
    view: View
    "Their augmentation."
    discriminate: Discriminate
    "From augmented images to scores; the discriminator's other inputs (label map, class, domain) are bound."

    def scores(self) -> Scores:
        """What the discriminator says of the augmented images."""
        return self.discriminate(self.view(self.images))


@dataclass(frozen=True)
class Contest:
    """Real and generated images that the discriminator has to tell apart."""

    name: str
    "Stands in the names of the terms; may be empty."
    real: Seen
    fake: Seen
    share: Float[Tensor, "b m"] | None = None
    """Where each sample has m images, one after the other: the part of each in the sample's terms, 0 for one that does not count.
    None: each has one."""

    def of_samples(self, terms: Float[Tensor, " n"]) -> Float[Tensor, " b"]:
        """The terms of the images as terms of the samples."""
        if self.share is None:
            return terms
        each = terms.view(self.share.shape)
        return torch.where(self.share > 0, self.share * each, 0).sum(1)

    def term(self, kind: str) -> str:
        """The name of a term of this contest."""
        return f"{kind}_{self.name}" if self.name else kind


@dataclass(frozen=True)
class Verdict:
    """What a contest means for the generator."""

    loss: Float[Tensor, " b"]
    "Of its images' scores."
    real: Scores
    "Without gradients."
    fake: Scores


class GAN(Model, Averaged):
    """A generator and a discriminator. Phases "discriminator", "generator", and "penalty" where that is lazy."""

    averaged = (GENERATOR,)
    obsolete = ("generator_steps",)
    of_training = frozenset({"ada.p", "ada.signs"})
    begins = False
    "Whether, where something is drawn, both steps make the same before that: `begun` and `completed` are there."
    _top_k_share = 1.0
    _images_seen = 0

    def __init__(self, config: GANConfig, generator: nn.Module, discriminator: nn.Module, *, partial: bool = False) -> None:
        """Takes the networks and draws their initial weights. `partial`: some losses give some parameters no gradient."""
        super().__init__()
        self.config = config
        self.generator, self.discriminator = generator, discriminator
        if config.penalty.wanted and batch_norms(discriminator):
            raise ConfigError(
                "penalty", "the discriminator has batch norm, which mixes its images' gradients; give it another norm, or none"
            )
        for network in (generator, discriminator):
            initialize(network, settings=config.initial)
        self.ada = Adaptation(config.ada) if config.ada.used else None
        penalty, rate = config.penalty, config.discriminator_rate
        once = (self.begins or not self.draws) and config.discriminator_steps == config.generator_steps == 1
        judge: dict[str, Any] = {"repeats": config.discriminator_steps, "rate": rate, "partial": partial}
        phases = [Phase(DISCRIMINATOR, (DISCRIMINATOR,), begins=(GENERATOR,) if once else (), **judge)]
        if config.penalty.wanted and penalty.every > 1:
            phases.append(Phase(PENALTY, (DISCRIMINATOR,), every=penalty.every, rate=rate, partial=True))
        phases.append(Phase(GENERATOR, (GENERATOR,), repeats=config.generator_steps, partial=partial))
        self.phases = tuple(phases)
        self.absent_phases = tuple({PENALTY} - {phase.name for phase in phases})
        self.couples_samples = config.top_k.least < 1 or any(batch_norms(network) for network in (generator, discriminator))

    # What a model says --------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each of the generator's terms, and of `discriminator_extras`."""
        return self.config.weights

    @property
    def draws(self) -> bool:
        """Whether what the generator makes is drawn. Else it is the same in a step of the discriminator and the generator's behind it."""
        return True

    @abstractmethod
    def made(self, batch: Batch, rng: Rng) -> Any:
        """What the generator makes of a batch in training and both networks learn from: tensors, in tuples or by name."""

    def begun(self, batch: Batch) -> Any:
        """What of that is made before anything is drawn, of a model that `begins`."""
        raise TypeError(f"{type(self).__name__} does not say what it makes before it draws")

    def completed(self, begun: Any, batch: Batch, rng: Rng) -> Any:
        """What is `made` when this was begun with."""
        raise TypeError(f"{type(self).__name__} does not say what it makes of that with which it begins")

    @abstractmethod
    def contests(self, made: Any, batch: Batch, rng: Rng) -> list[Contest]:
        """What the discriminator has to tell apart when this was `made`, each by `contest`. Called without gradients."""

    def penalised_contests(self, batch: Batch, rng: Rng) -> list[Contest]:
        """The contests, of which a lazy penalty looks at those sides alone that have one: the other ones may be anything."""
        return self.contests(self.made(batch, rng), batch, rng)

    @abstractmethod
    def generator_terms(self, made: Any, batch: Batch, rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """The generator's terms by name when this was `made`, not yet weighted: those whose weight is not 0."""

    def distances(self, batch: Batch, rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """In evaluation mode, how far held-out images are from what they should be. The first is the score of a validation.

        A model that has them says so in `validated`.
        """
        raise TypeError(f"{type(self).__name__} does not say how far held-out images are from what they should be")

    def discriminator_extras(self, contests: list[Contest], rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """Further terms of the discriminator by name, not yet weighted: `weights` has theirs too."""
        return {}

    # The game -----------------------------------------------------------------------------------------------------------

    def prepare(self, phase: Phase, progress: TrainingProgress) -> None:
        """Notes how far the training is, and finds the share of the batch that top-k training keeps in this step."""
        self._images_seen = progress.images_seen
        if self.ada is not None and phase.name == DISCRIMINATOR and progress.step == 0:
            self.ada.prepare(progress)
        if phase.name == GENERATOR:
            self._top_k_share = self.config.top_k.share(progress.iteration * phase.repeats + progress.step + 1)

    def stepped(self, phase: Phase) -> None:
        """One power iteration of spectral norm in the phase's networks, so that the other phase sees the sigma of their new weights.

        It comes after the optimizer's step. Small initial weights change completely in one step of Adam, and a sigma from before the
        step would no longer fit them.
        """
        for name in phase.networks:
            power_iteration(getattr(self, name))

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        """The terms of the phase; in evaluation mode, of the generator, its `distances` alone: scores there mean nothing."""
        if phase.name == GENERATOR:
            if not self.training:
                return weighted_terms(self.distances(batch, rng), {}, first_alone=True)
            return weighted_terms(self.generator_terms(self.made_by_now(batch, rng), batch, rng), self.weights)
        if phase.name == PENALTY:
            with torch.no_grad(), frozen_statistics(self.generator):
                contests = self.penalised_contests(batch, rng)
            return weighted_terms(self._penalty_terms(contests), {})
        made = self._made_first(batch, rng)
        with torch.no_grad():
            contests = self.contests(made, batch, rng)
        terms, signs = self._discriminator_terms(contests)
        losses = weighted_terms(terms | self.discriminator_extras(contests, rng), self.weights)
        return losses if self.ada is None else self._with_signs(losses, signs, self.ada)

    def made_by_now(self, batch: Batch, rng: Rng) -> Any:
        """What the generator makes, for its own step: with gradients; as the discriminator's step before left it, or anew."""
        kept = None if batch.kept is None else batch.kept.take()
        if kept is None:
            return self.made(batch, rng)
        return self.completed(kept, batch, rng) if self.draws else kept

    def _made_first(self, batch: Batch, rng: Rng) -> Any:
        """The same for the discriminator's step: without gradients, but the generator's step finds with them what is kept."""
        if batch.kept is None:
            with torch.no_grad(), frozen_statistics(self.generator):
                return self.made(batch, rng)
        kept = self.begun(batch) if self.draws else self.made(batch, rng)
        batch.kept.put(kept)
        if not self.draws:
            return detached(kept)
        with torch.no_grad(), frozen_statistics(self.generator):
            return self.completed(kept, batch, rng)

    def observe(self, phase: Phase, terms: Mapping[str, Tensor]) -> None:
        """Hands the signs of the discriminator's scores of real images to what steers the augmentation."""
        if self.ada is not None and _SIGN in terms:
            self.ada.observe(terms[_SIGN])

    def _with_signs(self, losses: LossTerms, signs: list[Tensor], ada: Adaptation) -> LossTerms:
        """The terms with p, and with the signs that real images got where these mean something."""
        logged = {"ada_p": ada.p.expand(len(losses.loss)).clone()}
        observed = {}
        if self.config.adversarial.decides_by_sign:
            observed = {_SIGN: torch.stack(signs).mean(0)}
        return replace(losses, logged={**losses.logged, **logged, **observed}, observed={**losses.observed, **observed})

    def _discriminator_terms(self, contests: list[Contest]) -> tuple[dict[str, Tensor], list[Tensor]]:
        """The terms of the contests by name, and for each contest the `mean_signs` of its real images."""
        terms, penalties, signs = {}, {}, []
        always = self.config.penalty.every == 1
        for contest in contests:
            scores: list[Outputs] = []
            for kind, seen, gamma in self._sides(contest):
                outputs, penalty = self._judged(seen, gamma=gamma if always else None)
                scores.append(outputs)
                if penalty is not None:
                    penalties[contest.term(kind)] = contest.of_samples(penalty)
            signs.append(mean_signs(scores[0]))
            losses = discriminator_losses(*scores, settings=self.config.adversarial)
            terms |= {contest.term(name): contest.of_samples(loss) for name, loss in zip(("real", "fake"), losses, strict=True)}
        return terms | penalties, signs

    def _sides(self, contest: Contest) -> tuple[tuple[str, Seen, float | None], ...]:
        """Both sides of a contest, with the names of their penalties and the weights that these have now; None: there is none."""
        sides, settings = (("r1", contest.real), ("r2", contest.fake)), self.config.penalty
        gammas = (settings.r1_gamma, settings.r2_gamma)
        now = [value_at(gamma, self._images_seen) if gamma else None for gamma in gammas]
        return tuple((kind, seen, gamma) for (kind, seen), gamma in zip(sides, now, strict=True))

    def _judged(self, seen: Seen, *, gamma: float | None) -> tuple[Outputs, Tensor | None]:
        """The discriminator's scores of one side, and the penalty where it has one: of one pass where precision allows it."""
        if gamma is None:
            return seen.scores().outputs, None
        if torch.is_autocast_enabled(seen.images.device.type) and self.config.penalty.precision == "float32":
            return seen.scores().outputs, self._penalty(seen, gamma=gamma, every=1)
        images, discriminate = self._penalised(seen)
        with differentiable():
            x = as_leaf(images)
            outputs = discriminate(x)
        return outputs, squared_gradient(outputs, x, factor=gamma / 2)

    def _penalty_terms(self, contests: list[Contest]) -> dict[str, Tensor]:
        """Those of a lazy penalty, which is there once for all the steps that the discriminator takes in so many iterations."""
        every = self.config.penalty.every * self.config.discriminator_steps
        sides = [(contest, kind, seen, gamma) for contest in contests for kind, seen, gamma in self._sides(contest)]
        return {
            contest.term(kind): contest.of_samples(self._penalty(seen, gamma=gamma, every=every))
            for contest, kind, seen, gamma in sides
            if gamma is not None
        }

    def _penalty(self, seen: Seen, *, gamma: float, every: int) -> Tensor:
        images, discriminate = self._penalised(seen)
        return gradient_penalty(discriminate, images, gamma=gamma, every=every)

    def _penalised(self, seen: Seen) -> tuple[Tensor, Callable[[Tensor], Outputs]]:
        """The images at which the gradient of one side is taken, and their scores as a function of them."""
        if self.config.penalty.at == "original":
            return seen.images, lambda x: seen.discriminate(seen.view(x)).outputs
        return seen.view(seen.images), lambda x: seen.discriminate(x).outputs

    def verdict(self, contest: Contest, *, compare: bool = False) -> Verdict:
        """What the discriminator says to the generator's images of a contest. `compare`: the real images' features are needed too."""
        settings, real = self.config.adversarial, Scores((), ())
        with frozen_statistics(self.discriminator):
            fake = contest.fake.scores()
            if compare or settings.relativistic:
                with torch.no_grad():
                    real = contest.real.scores()
        loss = generator_loss(fake.outputs, settings=settings, real=real.outputs if settings.relativistic else None)
        if self.config.top_k.least < 1:
            loss = loss * top_k_weights(fake.outputs, share=self._top_k_share, batch=gathered(score_mean(fake.outputs)))
        return Verdict(contest.of_samples(loss), real, fake)

    def contest(
        self,
        real: Float[Tensor, "b c h w"],
        fake: Float[Tensor, "b c h w"],
        rng: Rng,
        *,
        discriminate: Callable[[View], Discriminate],
        name: str = "",
        share: Float[Tensor, "_ m"] | None = None,
    ) -> Contest:
        """The contest between real and generated images, augmented by draws from `rng`.

        `discriminate`: for a view, the function from images seen through it to scores. A label map has to be seen through the view too.
        `share`: where a sample has several images; see `Contest`.
        """
        view = View(self.config.augment, rng.child("augment", name), self.ada)
        first = Seen(real, view, discriminate(view))
        if self.config.augment_alike:
            return Contest(name, first, replace(first, images=fake), share)
        view = View(self.config.augment, rng.child("augment", name, "fake"), self.ada)
        return Contest(name, first, Seen(fake, view, discriminate(view)), share)

    # Averages -----------------------------------------------------------------------------------------------------------

    def run_averaged(self, batch: Batch, rng: Rng) -> None:
        """Makes the images that the discriminator would see."""
        self.made(batch, rng)

    def effective(self) -> Mapping[str, Tensor]:
        """The generator's weights as spectral norm applies them."""
        return effective_weights(self.generator, f"{GENERATOR}.")

    def recompute_buffers(self, average: Mapping[str, Tensor]) -> None:
        """Makes sigma 1 for the averages of such weights."""
        divided = [name for name, _ in self.generator.named_parameters(GENERATOR) if name.endswith(".weight_orig")]
        rescale_average(average, divided)


def detached(made: Any) -> Any:
    """The same without gradients: a tensor, or tuples and mappings of them. Raises TypeError for what may hide tensors from it."""
    if isinstance(made, Mapping):
        return {name: detached(part) for name, part in made.items()}
    if isinstance(made, tuple):
        parts = [detached(part) for part in made]
        return made._make(parts) if hasattr(made, "_make") else tuple(parts)  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(made, Tensor):
        return made.detach() if made.requires_grad else made
    if made is None or isinstance(made, bool | int | float | str):
        return made
    raise TypeError(f"a generator made a {type(made).__name__}, expected tensors, in tuples or by name")


def weighted_terms(terms: Mapping[str, Tensor], weights: Mapping[str, float | Tensor], *, first_alone: bool = False) -> LossTerms:
    """The weighted sum of the terms, or the first of them alone; each goes to the log as it is."""
    weighted = [weights.get(name, 1.0) * term for name, term in terms.items()]
    logged = {name: term.detach() for name, term in terms.items()}
    return LossTerms(weighted[0] if first_alone else torch.stack(weighted).sum(0), logged)
