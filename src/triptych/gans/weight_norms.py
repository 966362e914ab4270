"""Convolutions and linear layers whose weight is normalised: spectral norm and weight norm.

Spectral norm (Miyato et al. 2018, arXiv 1802.05957) divides the weight W by its largest singular value, estimated as
sigma = u . (W v) with two stored vectors. A forward pass never moves them, so that all microbatches and processes of a step see
one sigma: `power_iteration` moves them, once for each optimizer step. Weight norm (Salimans and Kingma 2016, arXiv 1602.07868)
gives each output its own length g: w = g v / |v|.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from triptych.gans import spectral_norm
from triptych.nn import one_hot
from triptych.nn.convolution import fast_convolution
from triptych.nn.derived import derived
from triptych.nn.enlarging import Border, convolved_enlarged, padded
from triptych.nn.linear import linear
from triptych.nn.one_hot import OneHot, looked_up
from triptych.nn.precision import autocast_dtype, autocasted

WeightNorm = Literal["none", "spectral", "weight"]


class Beside(NamedTuple):
    """Images with a map beside them: the channels of the map come first."""

    map: Float[Tensor, "b n h w"] | OneHot
    images: Float[Tensor, "b m h w"]


class Conv2d(nn.Conv2d):
    """A convolution with a normalised weight.

    Keys weight, bias; with spectral norm bias, weight_orig, weight_u [out], weight_v [the rest]; with weight norm bias, weight_g, weight_v.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        padding_mode: Border = "zeros",
        weight_norm: WeightNorm = "none",
        enlarges: bool = False,
    ) -> None:
        """`enlarges`: of every pixel as a square of four, by a kernel that keeps that size."""
        super().__init__(in_channels, out_channels, kernel_size, stride=stride, padding=padding, bias=bias, padding_mode=padding_mode)
        if enlarges and (stride != 1 or kernel_size != 2 * padding + 1):
            raise ValueError(f"got kernels of {kernel_size}, strides of {stride} and borders of {padding}; this does not keep the size")
        self.enlarges = enlarges
        _reparametrize(self, weight_norm)

    def forward(self, input: Float[Tensor, "b c h w"] | OneHot | Beside) -> Float[Tensor, "b d _ _"]:
        """The convolution. A OneHot has zeros around it, and is not enlarged."""
        weight = normalised_weight(self)
        if not isinstance(input, Beside):
            return self._convolved(self._known(input), weight, self.bias)
        first = weight.shape[1] - input.images.shape[1]  # joined, they would be copied, and the map have a gradient
        map = self._known(input.map)
        if isinstance(map, Tensor):
            map, weight = derived(map, autocast_dtype(map), autocasted), autocasted(weight)
        return self._convolved(map, weight[:, :first], self.bias) + self._convolved(input.images, weight[:, first:], None)

    def _known(self, input: Tensor | OneHot) -> Tensor | OneHot:
        """What is known of the input, where the convolution is faster by that."""
        if isinstance(input, OneHot) or self.padding_mode != "zeros" or self.enlarges:
            return input
        ones = looked_up(input, outputs=self.out_channels)
        return input if ones is None else ones

    def _convolved(self, input: Tensor | OneHot, weight: Tensor, bias: Tensor | None) -> Tensor:
        if isinstance(input, OneHot):
            return one_hot.convolved(input, weight, bias, stride=self.stride[0], padding=int(self.padding[0]))
        if self.enlarges:
            return convolved_enlarged(input, weight, bias, border=self.padding_mode)  # type: ignore[arg-type]
        if self.kernel_size == (1, 1) and self.stride != (1, 1) and self.padding == (0, 0):
            # oneDNN's own gradient of it, with AVX-512, channels last and fewer than 16 of them, writes beyond its memory.
            return fast_convolution(input[..., :: self.stride[0], :: self.stride[1]], weight, bias)
        padding = int(self.padding[0])
        if self.padding_mode != "zeros":
            input = padded(input, self.padding_mode, rows=padding, columns=padding)  # type: ignore[arg-type]
            padding = 0
        return fast_convolution(input, weight, bias, stride=self.stride[0], padding=padding)


class Linear(nn.Linear):
    """A linear layer with a normalised weight; keys as those of `Conv2d`."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, weight_norm: WeightNorm = "none") -> None:
        super().__init__(in_features, out_features, bias=bias)
        _reparametrize(self, weight_norm)

    def forward(self, input: Float[Tensor, "b in_features"]) -> Float[Tensor, "b out_features"]:
        """The layer's output."""
        return linear(input, normalised_weight(self), self.bias)


def _reparametrize(layer: nn.Conv2d | nn.Linear, weight_norm: WeightNorm) -> None:
    if weight_norm == "none":
        return
    weight = layer.weight
    del layer.weight  # what is registered below comes after the bias, as in published files
    if weight_norm == "weight":
        layer.weight_g = nn.Parameter(weight.detach().flatten(1).norm(dim=1).reshape(-1, *[1] * (weight.ndim - 1)))
        layer.weight_v = weight
        return
    layer.weight_orig = weight
    u, v = spectral_norm.leading_vectors(weight)
    layer.register_buffer("weight_u", u)
    layer.register_buffer("weight_v", v)


def normalised_weight(layer: nn.Conv2d | nn.Linear) -> Float[Tensor, "out ..."]:
    """The weight that the layer applies; differentiable in its parameters, u and v of spectral norm taken as constants."""
    if "weight" in layer._parameters:
        return layer.weight
    if "weight_g" in layer._parameters:
        direction, length = cast(Tensor, layer.weight_v), cast(Tensor, layer.weight_g)
        return direction * (length / direction.flatten(1).norm(dim=1).reshape(length.shape))
    weight, u, v = (cast(Tensor, getattr(layer, f"weight_{name}")) for name in ("orig", "u", "v"))
    return spectral_norm.divided(weight, u, v)


def power_iteration(module: nn.Module, *, steps: int = 1) -> None:
    """Moves u and v of every spectral norm in `module` by so many steps of the power method."""
    for layer in spectral_layers(module):
        weight, u, v = (cast(Tensor, getattr(layer, f"weight_{name}")) for name in ("orig", "u", "v"))
        spectral_norm.power_iteration(weight, u, v, steps=steps)


def find_singular_vectors(module: nn.Module) -> None:
    """Finds u and v of every spectral norm in `module` anew; for after its weights were set to something else."""
    for layer in spectral_layers(module):
        u, v = spectral_norm.leading_vectors(cast(Tensor, layer.weight_orig))
        cast(Tensor, layer.weight_u).copy_(u)
        cast(Tensor, layer.weight_v).copy_(v)


def spectral_layers(module: nn.Module) -> Iterator[nn.Conv2d | nn.Linear]:
    """The layers of `module` that have spectral norm."""
    for layer in module.modules():
        if isinstance(layer, Conv2d | Linear) and "weight_orig" in layer._parameters:
            yield layer


def effective_weights(module: nn.Module, prefix: str) -> dict[str, Float[Tensor, ...]]:
    """The weights that the layers with spectral norm apply, under the names of their weight_orig: for `Model.effective`.

    `prefix`: the module's name in the model, and a dot.
    """
    weights = {}
    for name, layer in module.named_modules(prefix=prefix.removesuffix(".")):
        if isinstance(layer, Conv2d | Linear) and "weight_orig" in layer._parameters:
            weights[f"{name}.weight_orig"] = normalised_weight(layer).detach()
    return weights


@torch.no_grad()
def rescale_average(average: Mapping[str, Tensor], names: Iterable[str]) -> None:
    """Divides the u of averaged weights, whose weight_orig have these names, so that sigma is 1: for `Model.recompute_buffers`."""
    for name in names:
        stem = name.removesuffix("orig")
        u, v = average[f"{stem}u"], average[f"{stem}v"]
        u /= spectral_norm.largest_singular_value(average[name], u, v)


def fold_spectral_norm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict with a plain `weight` in place of every weight_orig, weight_u and weight_v; the other tensors as they are."""
    folded = {}
    for name, tensor in state.items():
        stem, _, last = name.rpartition("weight_")
        if f"{stem}weight_orig" not in state:
            folded[name] = tensor
        elif last == "orig":
            folded[f"{stem}weight"] = tensor / spectral_norm.largest_singular_value(
                tensor, state[f"{stem}weight_u"], state[f"{stem}weight_v"]
            )
        elif last not in ("u", "v"):
            folded[name] = tensor
    return folded
