"""Layers that preserve magnitudes: where what goes in has variance 1, what comes out has (Karras et al. 2024, arXiv 2312.02696).

No layer has a bias. A weight counts only by the direction of each of its filters, which are normalised wherever they are used (`unit`);
`force_unit` writes the normalised ones back, after each step of training, so that the size of a step is that of a turn.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from triptych.nn.convolution import fast_convolution

EPS = 1e-4
_SILU_RMS = 0.596
"""sqrt(E silu(z)^2) of z ~ N(0, 1) (Karras et al. 2024, Eq. 81)."""


def unit(x: Tensor, *, dims: tuple[int, ...]) -> Tensor:
    """x / (eps + the root of the mean of its squares over `dims`), of the shape and type of x; eps = 1e-4, the mean at least in float32."""
    return x * _factor(x, dims).to(x.dtype)


def _factor(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    dtype = torch.promote_types(x.dtype, torch.float32)
    norm = torch.linalg.vector_norm(x, dim=dims, keepdim=True, dtype=dtype)
    return (EPS + norm / math.sqrt(x.numel() / max(norm.numel(), 1))).reciprocal()


def mp_silu(x: Tensor) -> Tensor:
    """silu(x) / 0.596."""
    return F.silu(x) / _SILU_RMS


def mp_sum(a: Tensor, b: Tensor, *, t: float) -> Tensor:
    """((1 - t) a + t b) / sqrt((1 - t)^2 + t^2): of variance 1 where a and b are, and are uncorrelated (Eq. 88)."""
    return torch.lerp(a, b, t) / math.hypot(1 - t, t)


def mp_cat(a: Float[Tensor, "b n h w"], b: Float[Tensor, "b m h w"], *, t: float = 0.5) -> Float[Tensor, "b _ h w"]:
    """a and b along the channels, scaled so that they count as 1 - t to t, however many channels each has (Eq. 103)."""
    n, m = a.shape[1], b.shape[1]
    whole = math.sqrt(n + m) / math.hypot(1 - t, t)
    return torch.cat((whole / math.sqrt(n) * (1 - t) * a, whole / math.sqrt(m) * t * b), dim=1)


class _UnitLayer(nn.Module):
    """A linear map without bias, key `weight` [out, in, ...], whose filters have the length 1."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape))
        self.force_unit()

    @torch.no_grad()
    def force_unit(self) -> None:
        """Normalises the weight that is kept (forced weight normalisation, Eq. 66); what the layer does stays the same."""
        if not self.weight.is_meta:
            self.weight.copy_(unit(self.weight, dims=self._filter))

    def filters(self, gain: Tensor | float = 1.0) -> Tensor:
        """The weight as it is applied: filters of length `gain` (but for eps)."""
        return self.weight * (_factor(self.weight, self._filter) * (gain / math.sqrt(self.weight[0].numel())))

    @property
    def _filter(self) -> tuple[int, ...]:
        return tuple(range(1, self.weight.ndim))


class UnitLinear(_UnitLayer):
    """y = W x; with `gain` gain times that."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(out_features, in_features)

    def forward(self, x: Float[Tensor, "b i"], gain: Tensor | float = 1.0) -> Float[Tensor, "b o"]:
        return F.linear(x, self.filters(gain))


class UnitConv2d(_UnitLayer):
    """A convolution of `side` x `side` pixels, an odd number, that keeps the size; with `gain` gain times that."""

    def __init__(self, in_channels: int, out_channels: int, side: int) -> None:
        super().__init__(out_channels, in_channels, side, side)

    def forward(self, x: Float[Tensor, "b i h w"], gain: Tensor | float = 1.0) -> Float[Tensor, "b o h w"]:
        return fast_convolution(x, self.filters(gain), padding=self.weight.shape[-1] // 2)


class UnitFourier(nn.Module):
    """Random Fourier features of a number: sqrt(2) cos(2 pi (f x + phase)), f ~ N(0, 1), phase ~ U(0, 1) (Eq. 75).

    The buffers `freqs` and `phases`, with the factor 2 pi, are drawn once and saved.
    """

    freqs: Tensor
    phases: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("freqs", torch.empty(features).normal_().mul_(2 * math.pi))
        self.register_buffer("phases", torch.empty(features).uniform_().mul_(2 * math.pi))

    def forward(self, x: Float[Tensor, " b"]) -> Float[Tensor, "b f"]:
        return (x.to(self.freqs.dtype)[:, None] * self.freqs + self.phases).cos() * math.sqrt(2)


def force_unit(network: nn.Module) -> None:
    """Normalises the weights that are kept in all layers of a network."""
    for module in network.modules():
        if isinstance(module, _UnitLayer):
            module.force_unit()
