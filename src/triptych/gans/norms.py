"""The norms of a block: plain ones, and those that a vector (AdaIN) or a map (SPADE) modulates.

AdaIN: Huang and Belongie 2017 (arXiv 1703.06868). SPADE: Park et al. 2019 (arXiv 1903.07291). A block is told which norm to have by
a `Norm`, an `AdaptiveNorm` or a `SpatialNorm`, and makes it for its own number of channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from triptych.core.errors import ConfigError
from triptych.gans.weight_norms import Conv2d, Linear, WeightNorm
from triptych.nn.batch_norm import BatchNorm1d, BatchNorm2d
from triptych.nn.enlarging import Border
from triptych.nn.one_hot import looked_up
from triptych.nn.precision import widened
from triptych.nn.resample import resized

NormKind = Literal["none", "instance", "batch", "sync_batch", "layer", "layer_2d", "group"]

GROUPS = 4
EPSILON = 1e-5


@dataclass(frozen=True)
class Norm:
    """A norm that nothing modulates."""

    kind: NormKind = "none"
    """Over each channel of a sample (instance), of a process's batch or of the batch of all (sync_batch); over the channels of a pixel
    (layer), of a sample (layer_2d), or groups of channels."""
    affine: bool = True
    "Whether each channel has its own gain and offset."


@dataclass(frozen=True)
class AdaptiveNorm:
    """A norm with a scale and shift computed from a vector."""

    base: Norm
    cond_channels: int
    "Of the vector."
    separate: bool = False
    "Two linear layers, fc_gamma and fc_beta, in place of one, fc, whose first half is gamma."
    weight_norm: WeightNorm = "none"


@dataclass(frozen=True)
class SpatialNorm:
    """A norm with a scale and shift for each pixel, computed from one or several maps."""

    base: Norm
    cond_channels: tuple[int, ...]
    "Of each map."
    num_filters: int | tuple[int, ...] = 128
    "Of the hidden layer, of all maps or of each; 0: there is none."
    kernel_size: int = 3
    separate: bool = True
    "Two convolutions, gammas and betas, in place of one whose first half is gamma."
    weight_norm: WeightNorm = "none"
    padding_mode: Border = "zeros"
    generated: bool = False
    "The first map comes with its own convolution, as a `GeneratedMap`: of each sample another one."


class GeneratedMap(NamedTuple):
    """A map of each sample, and the convolution that makes a scale and a shift out of it, of that sample alone."""

    map: Float[Tensor, "b n h w"]
    weight: Float[Tensor, "b 2*c n k k"]
    "The first half of the rows makes the scale."
    bias: Float[Tensor, "b 2*c"]


class SharedMap:
    """A map for two passes of the same weights: what norms make of it in the first one, with gradients, is taken in the second."""

    def __init__(self, map: Float[Tensor, "b n h w"]) -> None:
        self.map = map
        self._made: dict[tuple[nn.Module, int], Sequence[Tensor]] = {}

    def scale_and_shift(self, norm: nn.Module, index: int, make: Callable[[Tensor], Sequence[Tensor]]) -> Sequence[Tensor]:
        """What `norm` makes of its map of that index."""
        if (norm, index) in self._made:
            return self._made.pop((norm, index))
        with torch.enable_grad():
            made = make(self.map)
        self._made[norm, index] = made
        return made


def own_convolution(
    x: Float[Tensor, "b i h w"], weight: Float[Tensor, "b o i k k"], bias: Float[Tensor, "b o"]
) -> Float[Tensor, "b o h w"]:
    """Each sample convolved with its own weights, of an odd side; the size stays."""
    b, o, i, k, _ = weight.shape
    if k == 1:
        return (weight.view(b, o, i).to(x.dtype) @ x.flatten(2) + bias[:, :, None].to(x.dtype)).view(b, o, *x.shape[2:])
    wide = F.conv2d(
        x.reshape(1, b * i, *x.shape[2:]), weight.flatten(0, 1).to(x.dtype), bias.flatten().to(x.dtype), padding=k // 2, groups=b
    )
    return wide.view(b, o, *x.shape[2:])


AnyNorm: TypeAlias = Norm | AdaptiveNorm | SpatialNorm

AnyCondition: TypeAlias = Float[Tensor, "b ..."] | GeneratedMap | SharedMap | None
"""What an adaptive norm may take; a plain one ignores it."""

NO_NORM = Norm()


def build_norm(norm: AnyNorm, channels: int, *, dims: int = 2) -> nn.Module | None:
    """The norm of `channels` channels; None where there is none. `dims`: 2 for (b, c, h, w), 0 for (b, c).

    Raises ConfigError where a group norm has channels that are not a multiple of its groups.
    """
    if isinstance(norm, AdaptiveNorm):
        return AdaptiveNormLayer(norm, channels, dims=dims)
    if isinstance(norm, SpatialNorm):
        if dims != 2:
            raise ValueError("a spatially adaptive norm is for images, not for vectors")
        return SpatialNormLayer(norm, channels)
    if dims == 0 and norm.kind in ("instance", "layer_2d"):
        raise ValueError(f"the norm {norm.kind!r} is for images, not for vectors")
    match norm.kind:
        case "none":
            return None
        case "instance":
            return InstanceNorm2d(channels, eps=EPSILON, affine=norm.affine)
        case "batch" | "sync_batch":
            synced = norm.kind == "sync_batch"
            return (BatchNorm2d if dims == 2 else BatchNorm1d)(channels, eps=EPSILON, affine=norm.affine, synced=synced)
        case "layer":
            return PixelLayerNorm(channels, eps=EPSILON, elementwise_affine=norm.affine)
        case "layer_2d":
            return GroupNorm(1, channels, eps=EPSILON, affine=norm.affine)
        case "group":
            if channels % GROUPS:
                raise ConfigError("norm", f"got group for {channels} channels, expected a multiple of {GROUPS}; change filters or norm")
            return GroupNorm(GROUPS, channels, eps=EPSILON, affine=norm.affine)


class InstanceNorm2d(nn.InstanceNorm2d):
    """Instance norm, of a single sample as batch norm.

    PyTorch's own gives wrong gradients, without a word, for one sample whose gradient is laid out channels last on a CPU (2.13).
    """

    def forward(self, input: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """The normalised input."""
        if len(input) == 1:
            return F.batch_norm(input, None, None, self.weight, self.bias, training=True, eps=self.eps)
        return super().forward(input)


class PixelLayerNorm(nn.LayerNorm):
    """Layer norm over the channels of each pixel of (b, c, h, w), or of each vector (b, c)."""

    def forward(self, input: Float[Tensor, "b c *hw"]) -> Float[Tensor, "b c *hw"]:
        """The normalised input."""
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


class GroupNorm(nn.GroupNorm):
    """Group norm computed in float32: a CPU's half-precision kernel is coarse for channels_last."""

    def forward(self, input: Float[Tensor, "b c *hw"]) -> Float[Tensor, "b c *hw"]:
        """The normalised input, of its own type."""
        return super().forward(widened(input)).to(input.dtype)


class ConditionalNorm(nn.Module):
    """What a block hands its conditions to."""


class AdaptiveNormLayer(ConditionalNorm):
    """norm(x) (1 + gamma) + beta, gamma and beta linear in a vector: keys norm.*, fc.layers.conv or fc_gamma and fc_beta."""

    def __init__(self, norm: AdaptiveNorm, channels: int, *, dims: int) -> None:
        super().__init__()
        self.separate = norm.separate
        self.norm = build_norm(norm.base, channels, dims=dims) or nn.Identity()
        if norm.separate:
            self.fc_gamma = _named(Linear(norm.cond_channels, channels, weight_norm=norm.weight_norm))
            self.fc_beta = _named(Linear(norm.cond_channels, channels, weight_norm=norm.weight_norm))
        else:
            self.fc = _named(Linear(norm.cond_channels, 2 * channels, weight_norm=norm.weight_norm))

    def forward(self, x: Float[Tensor, "b c *hw"], condition: Float[Tensor, "b cond_channels *1"]) -> Float[Tensor, "b c *hw"]:
        """The norm's output. `condition`: may have two more axes, of one pixel."""
        condition = condition.flatten(1)
        if self.separate:
            gamma, beta = _inner(self.fc_gamma)(condition), _inner(self.fc_beta)(condition)
        else:
            gamma, beta = _inner(self.fc)(condition).chunk(2, dim=1)
        ones = [1] * (x.ndim - 2)
        return _modulated(self.norm(x), gamma.reshape(*gamma.shape, *ones), beta.reshape(*beta.shape, *ones))


class SpatialNormLayer(ConditionalNorm):
    """norm(x) (1 + gamma) + beta, gamma and beta convolutions of relu(convolution) of a map; several maps act one after the other.

    Keys mlps.{i}.0, gammas.{i}, betas.{i} (or mlps.{i}.1, of both; mlps.{i}.0 where there is no hidden layer), each with layers.conv, and
    norm.*. A generated first map has none.
    """

    def __init__(self, norm: SpatialNorm, channels: int) -> None:
        super().__init__()
        self.separate = norm.separate
        if norm.generated and (norm.separate or norm.num_filters not in (0, (0,) * len(norm.cond_channels))):
            raise ValueError("a map with its own convolution has no hidden layer, and one convolution for both")

        def convolution(ins: int, outs: int) -> nn.Module:
            padding, mode = (norm.kernel_size - 1) // 2, norm.padding_mode
            return _named(Conv2d(ins, outs, norm.kernel_size, padding=padding, padding_mode=mode, weight_norm=norm.weight_norm))

        self.mlps, self.gammas, self.betas = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        count = len(norm.cond_channels)
        every = norm.num_filters if isinstance(norm.num_filters, tuple) else (norm.num_filters,) * count
        for place, (ins, filters) in enumerate(zip(norm.cond_channels, every, strict=True)):
            layers = [convolution(ins, filters)] if filters else []
            hidden = filters or ins
            if norm.separate:
                self.gammas.append(convolution(hidden, channels))
                self.betas.append(convolution(hidden, channels))
            elif place or not norm.generated:
                layers.append(convolution(hidden, 2 * channels))
            self.mlps.append(nn.ModuleDict({str(place): layer for place, layer in enumerate(layers)}))
        self.norm = build_norm(norm.base, channels) or nn.Identity()

    def forward(self, x: Float[Tensor, "b c h w"], *conditions: AnyCondition) -> Float[Tensor, "b c h w"]:
        """The norm's output. `conditions`: maps of cond_channels each, resized to x by their nearest pixel.

        A map that is None, or one of the last that is not given, modulates nothing; the first has to be there.
        """
        if not 1 <= len(conditions) <= len(self.mlps) or conditions[0] is None:
            raise ValueError(f"got {len(conditions)} conditional maps, expected the first of {len(self.mlps)}, and at most so many")
        out = self.norm(x)
        for index, condition in enumerate(conditions):
            if condition is not None:
                out = _modulated(out, *self._scale_and_shift(index, condition, x.shape[2:]))
        return out

    def _scale_and_shift(self, index: int, condition: Tensor | GeneratedMap | SharedMap, size: torch.Size) -> Sequence[Tensor]:
        """gamma and beta (b, channels, h, w) of a map, at that size."""
        if isinstance(condition, SharedMap):
            return condition.scale_and_shift(self, index, lambda map: self._scale_and_shift(index, map, size))
        if isinstance(condition, GeneratedMap):
            return own_convolution(resized(condition.map, size, mode="nearest"), condition.weight, condition.bias).chunk(2, dim=1)
        mlp = self.mlps[index]
        assert isinstance(mlp, nn.ModuleDict)
        layers = list(mlp.values())
        first = _inner(layers[0] if layers else self.gammas[index])
        ones = looked_up(condition, outputs=first.out_channels) if first.padding_mode == "zeros" else None
        x = resized(condition, size, mode="nearest") if ones is None else ones.resized(size)
        for layer in layers if self.separate else layers[:-1]:
            x = F.relu(_inner(layer)(x))
        if self.separate:
            return _inner(self.gammas[index])(x), _inner(self.betas[index])(x)
        return _inner(layers[-1])(x).chunk(2, dim=1)


def _modulated(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return (x * (1 + gamma.to(x.dtype))).add_(beta.to(x.dtype))  # addcmul has two products with 1 more in its gradient


def _named(layer: nn.Module) -> nn.Module:
    """The layer under the name that layers have in a block: layers.conv."""
    return nn.ModuleDict({"layers": nn.ModuleDict({"conv": layer})})


def _inner(block: nn.Module) -> Any:
    return block["layers"]["conv"]  # pyright: ignore[reportIndexIssue]
