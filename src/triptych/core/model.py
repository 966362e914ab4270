"""The seam between the engine and the families: what a model declares, and what the loop calls.

A model is networks and losses, and a sampler where it has one. It owns no optimizer, device, logger, file or collective. The
loop draws a batch for each optimizer step of each phase, calls `prepare` once, then `loss` for each microbatch, steps the
phase's optimizer, calls `stepped`, and hands all terms to `observe`. A model has no clock of its own: what changes over a run
(a weight, a probability) is a function of the `TrainingProgress` that `prepare` is told.
"""

from __future__ import annotations

import inspect
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from triptych.core.batch import Batch, DataSpec
from triptych.core.config import Config, config
from triptych.core.limits import bounded_size
from triptych.core.rng import Rng
from triptych.core.translation import Translator

Report = Callable[[int, int], None]
"""Called after each step of long work with the steps that are done and their number. It may raise, to end the work there."""
NUM_GROUPS = 4
"""Number of groups of samples that the log may tell apart (`LossTerms.group`): the quartiles of noise level."""


@dataclass(frozen=True)
class Phase:
    """One kind of optimizer step within an iteration."""

    name: str
    networks: tuple[str, ...]
    "Attribute names of the networks that it updates."
    repeats: int = 1
    "Optimizer steps an iteration, each on its own slice of the iteration's images."
    every: int = 1
    "Runs in every `every`-th iteration only (lazy regularization)."
    rate: float = 1.0
    "Factor of the learning rate in its steps."
    partial: bool = False
    "Whether the loss reaches only part of the parameters (find_unused_parameters of DDP)."
    begins: tuple[str, ...] = ()
    "All networks of a later step on the same images, where its loss leaves some of that in `Batch.kept`: they have gradients in it too."


@dataclass(frozen=True)
class LossTerms:
    """What a loss returns for the b samples it was given."""

    loss: Tensor
    "Differentiated: shape (b,). The loop sums it and divides by the step's global number of samples."
    logged: Mapping[str, Tensor] = field(default_factory=dict)
    "Detached terms for the log, each of shape (b,)."
    group: Tensor | None = None
    'Integers 0..3 of shape (b,), 0 for the least noise: every logged term is also logged by group, as "name_q0" to "name_q3".'
    observed: Mapping[str, Tensor] = field(default_factory=dict)
    "Detached tensors of shape (b,) that `observe` gets; gathered from all processes only where there are any."
    carried: Mapping[str, Tensor] = field(default_factory=dict)
    "Detached tensors (b, ...) for the following turns of the iteration on the same images, which find them in `Batch.inputs`."


@dataclass(frozen=True)
class TrainingProgress:
    """How far a training is when an optimizer step begins."""

    images_seen: int
    "Before the iteration of the step."
    iteration_images: int
    "Images of one iteration."
    total_images: int
    "Images seen when the run ends."
    step: int = 0
    "Number of the step among those of its phase in this iteration, from 0."

    @property
    def iteration(self) -> int:
        """Number of the iteration, from 0; derived from the images, so a run that changed its batch size counts by the new one."""
        return self.images_seen // self.iteration_images


@dataclass(frozen=True)
class Turn:
    """One optimizer step of an iteration."""

    phase: Phase
    slice: int = 0
    "Which slice of the iteration's images it takes, of `Model.slices`."


class Model(nn.Module, ABC):
    """Networks, losses and, where it is a `Sampler`, a sampler."""

    phases: tuple[Phase, ...]
    absent_phases: tuple[str, ...] = ()
    "Names of phases that it has with other settings (a penalty); the optimizer's settings may name them all the same."
    averaged: tuple[str, ...]
    "Attribute names of the networks that the exponential moving averages follow."
    validated: tuple[str, ...] = ()
    "Names of the phases with a loss that is meaningful on held-out images."
    num_classes: int | None = None
    "Classes of the labels that it is told; None: it takes no labels."
    couples_samples: bool = False
    "Whether the samples of a batch affect each other (batch norm, top-k); such a model refuses microbatches."
    group_size: int = 1
    "So many consecutive samples affect each other (minibatch deviation); the parts of a batch are then multiples of it."
    grids: Mapping[str, Config] = MappingProxyType({})
    "Settings of a sampler for further grids of samples in training, by the ending of their file names."
    frozen_networks: Mapping[str, str | None] = MappingProxyType({})
    "Frozen networks that training needs: the file of their weights by attribute name; None: no file was given."
    obsolete: tuple[str, ...] = ()
    "Names of tensors in the state of earlier versions. They are ignored in checkpoints."
    of_training: frozenset[str] = frozenset()
    "Names of tensors that a training steers by what it sees. One that starts from another run's weights has its own."
    gathers: Literal["blocks", "whole", "never"] = "whole"
    """How its weights are put together where `train.shard` divides them: block by block while a network runs, for a loss that calls each
    network as a module and is differentiated once; whole for the passes of a step; or never: then it cannot be divided."""
    retains_graph: bool = False
    "Whether a loss goes back through a network more than once."
    largest_from: int = 0
    "Images seen from which on iterations take the most memory (clips grow)."
    saves_memory: bool = False
    "Whether it trades time for memory. Gradients then stay allocated between steps: freeing them would fragment the memory."

    @property
    def slices(self) -> int:
        """How many slices of images an iteration draws, each as large as the batch."""
        return max(phase.repeats for phase in self.phases)

    def turns(self, progress: TrainingProgress) -> Iterable[Turn]:
        """The optimizer steps of an iteration, in order: the phases that are due, one after the other, each with its repeats.

        A model may take them in another order, or several on the same slice (the frames of a clip). Each step of a phase has noise of its
        own. All processes must get the same turns, so they depend on `progress` alone.
        """
        for phase in self.phases:
            if progress.iteration % phase.every == 0:
                yield from (Turn(phase, repeat) for repeat in range(phase.repeats))

    def prepare(self, phase: Phase, progress: TrainingProgress) -> None:
        """Called once before each optimizer step."""

    def stepped(self, phase: Phase) -> None:
        """Called once after each optimizer step (power iterations of spectral norm, on the new weights)."""

    @abstractmethod
    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        """The terms of each sample. Changes no state but running statistics of the phase's own networks."""

    def renamed(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The state of another run's model under the names of this one, for a start from its weights."""
        return tensors

    def fault(self) -> str | None:
        """The part of the model in which the first loss became not finite, for a message; None: it cannot tell."""
        return None

    def observe(self, phase: Phase, terms: Mapping[str, Tensor]) -> None:
        """Called once after each step with `LossTerms.observed` of all microbatches and processes, in sample order."""


@config
class ModelConfig(Config):
    """Base of the configurations that build a model."""

    within_bounds: ClassVar[bool] = False
    "Whether models make images within [-1, 1] alone. Latents go beyond."

    def build(self, spec: DataSpec) -> Model:
        """The model with fresh weights from PyTorch's global generator; raises ConfigError when the data lacks what it needs."""
        raise TypeError(f"{type(self).__name__} has no build method")

    def shrunk(self) -> Self:
        """The same kind of model with the smallest networks, for tests: its norms, dropout, losses and sampler stay as they are."""
        return self

    @classmethod
    def verbs(cls) -> frozenset[str]:
        """Those of `VERBS` that its models can serve, by the class that `build` is annotated with; no model is built."""
        model = typing.get_type_hints(cls.build)["return"]
        return frozenset(verb for verb, protocols in VERBS.items() if any(_has_methods(model, protocol) for protocol in protocols))


@runtime_checkable
class Augments(Protocol):
    """A configuration whose models change training images at random themselves."""

    def augmentation_in_words(self, p: float | None = None) -> str:
        """What happens to them where it happens as often as `p` says (None: as in the first step); empty: nothing."""
        ...

    @property
    def augments_later(self) -> bool:
        """Whether some of it may begin after the first step."""
        ...

    def augmented(self, images: Tensor, rng: Rng, *, p: float | None = None) -> Tensor:
        """Images (b, c, h, w) as the network sees them."""
        ...


@runtime_checkable
class DataInitialized(Protocol):
    """A model that takes initial weights from images."""

    init_images: int
    "Number of images that it takes them from."

    def initialize(self, batch: Batch, rng: Rng) -> None:
        """Called once, before the first step, with the same first images in every process."""


@runtime_checkable
class Averaged(Protocol):
    """A model whose moving averages are not plain means of its parameters. A class that inherits from it has these defaults."""

    collects: bool = False
    "Whether `collect` is to be called."

    def effective(self) -> Mapping[str, Tensor]:
        """Tensors that averages follow in place of parameters, by the parameter's name: with spectral norm, weight / sigma."""
        return {}

    def recompute_buffers(self, average: Mapping[str, Tensor]) -> None:
        """Called with an average's tensors, by name, after each update of it: recomputes the buffers that go with `effective`."""

    def run_averaged(self, batch: Batch, rng: Rng) -> None:
        """Runs the averaged networks as training does, and nothing else: their batch norms take statistics from it."""
        raise TypeError(f"{type(self).__name__} has batch norm and does not say how its networks run")

    def collect(self, batches: Iterable[Batch]) -> None:
        """Fills buffers of the averaged networks from training batches, each this process's share, with the present weights.

        Called in evaluation mode, before an average is used or saved; after batch norms have taken their statistics.
        """


@runtime_checkable
class Sampler(Protocol):
    """A model that makes images."""

    sampling: Config
    "The default settings of its sampler; `triptych sample` takes them as flags."
    num_classes: int | None
    "Classes of the labels that it takes; None: it takes none."

    def sample(self, rng: Rng, *, labels: Tensor | None, settings: Config, report: Report | None = None) -> Tensor:
        """One image in [-1, 1] for each index of `rng`: (b, c, h, w). `labels`: (b,), exactly when the model is conditional.

        `report` is told of the steps, where there are several.
        """
        ...


@runtime_checkable
class Stepwise(Protocol):
    """A model that asks its network several times for an image."""

    def network_calls(self, settings: Config, *, weaker: bool = False, classifier: bool = False) -> int:
        """How often it does with these settings of its sampler, for one image.

        `weaker`: led away from a weaker model, whose calls count too. `classifier`: led by a classifier, whose calls do not. Raises
        ConfigError for settings that do not fit.
        """
        ...


@runtime_checkable
class Guidable(Protocol):
    """A sampler that another model may lead."""

    def guided_by(self, classifier: Model) -> nn.Module:
        """A Sampler: this model's, pushed to where `classifier` recognises the label. Raises ConfigError where the two do not fit."""
        ...

    def guided_with(self, weaker: Model) -> nn.Module:
        """A Sampler: this model's, pushed away from what `weaker` does. Raises ConfigError where the two do not fit."""
        ...


@runtime_checkable
class Likelihood(Protocol):
    """A model that knows how probable an image is."""

    likelihood: Config
    "The default settings of `log_prob`."

    def log_prob(self, batch: Batch, rng: Rng, *, settings: Config) -> Tensor:
        """log P of each 8-bit image of the batch, in nats: (b,), so that its bits per dimension are -log P / (d ln 2).

        A model of continuous images gives log p(image + u) + d log(2 / 255), u uniform within +-1/255 and drawn from `rng`; its mean
        over u is at most log P. Without gradients; the model must be in evaluation mode.
        """
        ...


@dataclass(frozen=True)
class Bound:
    """An upper bound on the bits per dimension of images, and its parts."""

    total: Tensor
    "(b,): the sum of `terms`, and `prior`."
    prior: Tensor
    "(b,): the KL divergence of the last noise level from N(0, 1)."
    terms: Tensor
    "(b, T), from the last timestep to the first; like the two below."
    x0_mse: Tensor
    "Mean squared error of the predicted image."
    noise_mse: Tensor
    "Mean squared error of the noise that follows from it."
    timesteps: tuple[int, ...]
    "The original timesteps, in the order of `terms`."


@runtime_checkable
class VariationalBound(Protocol):
    """A model that bounds how improbable an image is."""

    def bound(self, batch: Batch, rng: Rng, *, steps: int | str | None = None, clip: bool = True) -> Bound:
        """The bound on the bits per dimension of each 8-bit image of the batch, at `steps` of the timesteps (None: all).

        `clip`: the image that each step predicts is clipped to [-1, 1]. The model must be in evaluation mode.
        """
        ...


@runtime_checkable
class Upsampler(Protocol):
    """A model that makes large images from small ones."""

    sampling: Config
    "The default settings of its sampler; `triptych sample` takes them as flags."
    input_size: int
    "Height and width, in pixels, of the small images; they have as many channels as the large ones."

    def upsample(self, batch: Batch, rng: Rng, *, settings: Config, report: Report | None = None) -> Tensor:
        """One image in [-1, 1] for each of the batch, (b, c, input_size, input_size): (b, c, h, w).

        The batch has labels where the model is conditional; where it is not, it may have some that are not used. `report` is told of the
        steps, where there are several.
        """
        ...


@runtime_checkable
class Decoder(Protocol):
    """A model that makes images of latents."""

    encoding: Config
    "The default settings of the ways from latents to images and, of an Encoder, back; `triptych encode` takes them as flags."
    interpolation: Literal["linear", "sphere"]
    "The path between the latents of two images: a line, or a sphere where latents are noise (on a line their norm would fall)."
    latents_hold_class: bool
    "Whether the class of an image is in its latents. Else the ways of a conditional model are told the labels."

    def decode(self, latents: list[Tensor], *, labels: Tensor | None, settings: Config) -> Tensor:
        """The images (b, c, h, w) in [-1, 1] of latents; raises ConfigError for latents of other shapes than the model's.

        `labels`: (b,), exactly when the model is conditional and its latents do not hold the class. Without gradients; the model must be in
        evaluation mode.
        """
        ...


@runtime_checkable
class Encoder(Decoder, Protocol):
    """A model with latents that images go to and come back from."""

    def encode(self, images: Tensor, *, labels: Tensor | None, rng: Rng, settings: Config, report: Report | None = None) -> list[Tensor]:
        """The latents of images (b, c, h, w), each with its batch axis first. `rng` draws what the model needs (dequantization noise).

        `labels`: as those of `decode`. `report` is told of the steps, where there are several. Without gradients; the model must be in
        evaluation mode.
        """
        ...


@runtime_checkable
class GaussianEncoder(Protocol):
    """An encoder with one level of latents, that says how they are distributed: images to be learned by way of their latents."""

    def posterior(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the variance of the latents of images (b, c, h, w), independent normal ones: (b, z, h, w) each.

        Without gradients; the model must be in evaluation mode. Raises ConfigError for images of sides that it does not take.
        """
        ...


@runtime_checkable
class LatentSampler(Protocol):
    """A decoder that samples by way of its latents."""

    def sampled_latents(self, rng: Rng, *, labels: Tensor | None, settings: Config) -> list[Tensor]:
        """The latents of the images that `Sampler.sample` makes of the same arguments: `decode` makes these of them."""
        ...


@runtime_checkable
class Styled(Protocol):
    """A decoder whose first latents are styles (n, styles, dims): one for each layer of its generator, from coarse to fine.

    Its other latents are noise: their way between two images is on a sphere, whatever `interpolation` says of the styles.
    """

    style_sizes: tuple[int, ...]
    "Pixels of a side of the layer of each style."


@runtime_checkable
class ComparesFeatures(Protocol):
    """An encoder that compares images by frozen networks, whose weights are files that the user has."""

    def encoding_networks(self, settings: Config) -> Mapping[str, str | None]:
        """The file of their weights by attribute name, as `Model.frozen_networks`: of those that `encode` needs with these settings."""
        ...


@runtime_checkable
class Classifier(Protocol):
    """A model that recognises noisy images, and so can lead a `Guidable`."""

    def classify(self, x: Tensor, c: Any) -> Tensor:
        """Logits (b, num_classes) of noisy images (b, c, h, w) at the coefficients `c` of their noise process."""
        ...


VERBS: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {
        "sample": (Sampler,),
        "upsample": (Upsampler,),
        "translate": (Translator,),
        "encode": (Encoder,),
        "evaluate": (Likelihood, VariationalBound),
        "guide": (Classifier,),
    }
)
"""What can be done with a trained model, and the protocols of which it needs one."""


def _has_methods(model: type, protocol: type) -> bool:
    return all(hasattr(model, name) for name, member in vars(protocol).items() if inspect.isfunction(member) and not name.startswith("_"))


def seeded_build(model: ModelConfig, spec: DataSpec, *, seed: int) -> Model:
    """The model with initial weights that depend on `seed` alone; PyTorch's global generator is left as it was.

    Raises ConfigError for a model that is too large, before it takes memory.
    """
    with torch.random.fork_rng(devices=[]), bounded_size():
        torch.manual_seed(seed)
        return model.build(spec)
