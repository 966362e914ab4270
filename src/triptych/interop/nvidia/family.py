"""What a kind of networks brings along to be taken and given: its configuration of shapes, and its names of tensors and ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError
from triptych.core.model import ModelConfig
from triptych.core.weight_files import check_fit
from triptych.data.config import AS_STORED, DataConfig
from triptych.interop.nvidia.snapshots import Network, Snapshot
from triptych.interop.programs import LatentScale
from triptych.interop.transformers import LATENT_FACTOR
from triptych.nn.filters import BINOMIAL
from triptych.recipes.catalogue import load_recipe, recipes
from triptych.recipes.config import RunConfig

Part = Literal["generator", "discriminator", "network"]
PARTS: tuple[Part, ...] = ("generator", "discriminator")
State = dict[str, Tensor]


@dataclass(frozen=True)
class Family:
    """A kind of networks."""

    config: type[ModelConfig]
    "Of our model."
    architecture: tuple[str, ...]
    "Its settings that tensors show; the others, which are about training, are a recipe's or `training`'s."
    read: Callable[[Network, Network | None], tuple[ModelConfig, DataSpec]]
    "The model that a generator and a discriminator are of (None: the file has none), and its images. Raises CheckpointError, ConfigError."
    original_name: Callable[[str, Part, ModelConfig, DataSpec], str]
    "The original's name of a tensor of ours, both without the network's own."
    constants: str
    "The end of the names of tensors that are not learned: kernels of the filter of all resampling."
    built_with: Callable[[ModelConfig, DataSpec], dict[Part, dict[str, Any]]]
    "What the original's networks have to be built with."
    notes: tuple[str, ...]
    "What the user of an export has to know."
    remarks: Callable[[Network], tuple[str, ...]] = lambda discriminator: ()
    "What the user of an import has to know of a discriminator that was taken."
    parts: tuple[Part, ...] = PARTS
    "The model's networks, that which makes images first."
    taps: Callable[[ModelConfig], tuple[float, ...]] = lambda config: BINOMIAL
    "Of the filter of all resampling."
    to_original: Callable[[str, Tensor, ModelConfig], Tensor] = lambda name, tensor, config: tensor
    "A tensor of ours, by our name, in the original's layout."
    to_ours: Callable[[str, Tensor, ModelConfig], Tensor] = lambda name, tensor, config: tensor
    "The way back."
    training: Callable[[ModelConfig, Snapshot], ModelConfig] = lambda config, snapshot: config
    "The model with the settings of training that a file says. Raises ConfigError for values that no model has."
    latents: LatentScale | None = None
    "Of its networks that learn as many channels as this has: how another program's latents became their samples."

    def taken(self, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], *, part: Part, config: ModelConfig, spec: DataSpec) -> State:
        """A network's tensors under our names, of our dtypes, without constants. `ours`: the names, shapes and dtypes that are expected.

        Raises CheckpointError that names, as the original does, the first tensor that is missing, too many or of another shape, or that
        holds other values than it may.
        """
        names = {name: self.original_name(name, part, config, spec) for name in ours}
        names = {name: original for name, original in names.items() if not original.endswith(self.constants)}
        learned = {name: tensor for name, tensor in theirs.items() if not name.endswith(self.constants)}
        check_fit({original: self.to_original(name, ours[name], config) for name, original in names.items()}, learned)
        for name in theirs.keys() - learned.keys():
            check_filter(name, theirs[name], self.taps(config))
        return {
            name: self.to_ours(name, learned[original].to(ours[name].dtype, copy=True), config).contiguous()
            for name, original in names.items()
        }

    def given(self, ours: Mapping[str, Tensor], *, part: Part, config: ModelConfig, spec: DataSpec) -> State:
        """A network's tensors under the original's names; they are copied and made contiguous."""
        return {
            self.original_name(name, part, config, spec): self.to_original(name, tensor.detach(), config).clone(
                memory_format=torch.contiguous_format
            )
            for name, tensor in ours.items()
        }

    def run(self, model: ModelConfig, spec: DataSpec, snapshot: Snapshot) -> tuple[RunConfig, str | None]:
        """A run of the model with the settings of training of its file, and for what that does not say of the recipe that is most like it.

        With that recipe's name if it is the same.
        """
        found = {name: recipe for name in recipes() if type((recipe := load_recipe(name)).model) is self.config}
        likeness = {name: self._likeness(recipe, model, spec) for name, recipe in found.items()}
        nearest = max(likeness, key=lambda name: likeness[name])
        recipe = found[nearest]
        trained = self.training(replace(recipe.model, **{name: getattr(model, name) for name in self.architecture}), snapshot)
        if trained == recipe.model and recipe.data.image_size == spec.image_size:
            return recipe, nearest
        data = DataConfig(
            image_size=spec.image_size,
            channels=1 if spec.channels == 1 else 3,
            labels="none" if spec.num_classes is None else "auto",
            flip=recipe.data.flip,
        )
        return replace(recipe, model=trained, data=data.updated(AS_STORED)), None

    def _likeness(self, recipe: RunConfig, model: ModelConfig, spec: DataSpec) -> tuple[float, int, int]:
        """How alike a recipe is: in the size of what it learns, in its architecture; of equal ones the longest is the published.

        One of latents is like no file of images, and one of images like none of latents.
        """
        latents = self.latents is not None and spec.channels == len(self.latents.mean)
        if (recipe.data.source == "latents") != latents:
            return 0, 0, 0
        small, large = sorted((recipe.data.image_size // (LATENT_FACTOR if latents else 1), spec.image_size))
        alike = sum(getattr(recipe.model, name) == getattr(model, name) for name in self.architecture)
        return small / large, alike, recipe.train.total_images


def part_of(state: Mapping[str, Tensor], part: Part) -> State:
    """The tensors of a network of our model under the names that they have in it."""
    return {name.removeprefix(f"{part}."): tensor for name, tensor in state.items() if name.startswith(f"{part}.")}


def checked_spec(*, image_size: int, channels: int, num_classes: int | None) -> DataSpec:
    """What images a model is of. Raises CheckpointError for such as no network makes."""
    if channels not in (1, 3):
        raise CheckpointError(f"makes images of {channels} channels, expected 1 (grey) or 3 (RGB)")
    return DataSpec(image_size=image_size, channels=channels, num_classes=num_classes)


def check_filter(name: str, kernel: Tensor, taps: tuple[float, ...]) -> None:
    """Raises CheckpointError unless a kernel is that of the taps in both directions, or in one, but for a factor."""
    one = kernel.new_tensor(taps).double()
    wanted = (one[:, None] * one).flatten() if kernel.numel() == len(taps) ** 2 else one
    values = kernel.double().flatten()
    fits = values.shape == wanted.shape and bool(((values * wanted.sum() - wanted * values.sum()).abs() <= 1e-3 * values.sum()).all())
    if not fits or not values.sum() > 0:
        raise CheckpointError(f"{name} is another filter than {' '.join(f'{tap:g}' for tap in taps)}, which is the one here")
