"""Spectral norm: a weight W, as a matrix [out, the rest], over its largest singular value (Miyato et al. 2018, arXiv 1802.05957).

That is estimated as sigma = u . (W v) with two vectors of length 1, u [out] and v [the rest]. The matrix is taken as the weight lies in
memory: where a kernel has its channels last, its columns are in another order than v.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from triptych.nn.forward_mode import is_transformed


def divided(weight: Float[Tensor, "out ..."], u: Float[Tensor, " out"], v: Float[Tensor, " rest"]) -> Float[Tensor, "out ..."]:
    """W / sigma; differentiable in W, u and v taken as constants."""
    learns = torch.is_grad_enabled() and weight.requires_grad
    if learns and not torch.compiler.is_compiling() and not is_transformed(weight):
        return _Divided.apply(weight, u, v)
    return weight / largest_singular_value(weight, u, v)


def largest_singular_value(weight: Float[Tensor, "out ..."], u: Float[Tensor, " out"], v: Float[Tensor, " rest"]) -> Float[Tensor, ""]:
    """sigma = u . (W v)."""
    return _largest(weight, u, _columns(v, weight))


def _largest(weight: Tensor, u: Tensor, columns: Tensor) -> Tensor:
    with torch.autocast(weight.device.type, enabled=False):
        return torch.dot(u, torch.mv(_matrix(weight, weight), columns))


class _Divided(Function):
    """W / sigma, and its gradient: with G that by W / sigma, G / sigma - <G, W> / sigma^2 u v^T.

    Autograd would go through W ten times for that.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, u: Tensor, v: Tensor) -> Tensor:
        columns = _columns(v, weight)
        sigma = _largest(weight, u, columns)
        ctx.save_for_backward(weight, u, columns, sigma)
        return weight / sigma

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        weight, u, columns, sigma = ctx.saved_tensors
        if torch.is_grad_enabled():  # it will be differentiated again, and sigma depends on W
            sigma = _largest(weight, u, columns)
        with torch.autocast(weight.device.type, enabled=False):
            by_divided = _matrix(gradient, weight)
            along = torch.dot(by_divided.flatten(), _matrix(weight, weight).flatten())
            by_weight = (by_divided / sigma).addcmul_((-along / sigma.square() * u)[:, None], columns[None])
        return _tensor(by_weight, weight), None, None


@torch.no_grad()
def power_iteration(weight: Float[Tensor, "out ..."], u: Float[Tensor, " out"], v: Float[Tensor, " rest"], *, steps: int = 1) -> None:
    """Moves u and v towards the first singular vectors: v = W^T u / |W^T u|, then u = W v / |W v|, `steps` times."""
    matrix = _matrix(weight, weight)
    for _ in range(steps):
        columns = F.normalize(torch.mv(matrix.t(), u), dim=0, eps=1e-12)
        u.copy_(F.normalize(torch.mv(matrix, columns), dim=0, eps=1e-12))
        v.view(weight[:1].shape).copy_(_tensor(columns[None], weight[:1]))


@torch.no_grad()
def leading_vectors(weight: Float[Tensor, "out ..."]) -> tuple[Float[Tensor, " out"], Float[Tensor, " rest"]]:
    """The first left and right singular vectors.

    The one of the shorter side is the last eigenvector of W W^T, or of W^T W; the other follows from it.
    """
    matrix = weight.flatten(1)
    if weight.is_meta:
        return matrix.new_empty(matrix.shape[0]), matrix.new_empty(matrix.shape[1])
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.t()
    short = torch.linalg.eigh(wide @ wide.t()).eigenvectors[:, -1].clone()
    long = F.normalize(torch.mv(wide.t(), short), dim=0, eps=1e-12)
    return (short, long) if wide is matrix else (long, short)


def _matrix(x: Tensor, weight: Tensor) -> Float[Tensor, "out rest"]:
    """x, of the weight's shape, as a matrix in the order in which the weight lies."""
    return (x.permute(0, 2, 3, 1) if _has_channels_last(weight) else x).flatten(1)


def _tensor(matrix: Float[Tensor, "out rest"], weight: Tensor) -> Tensor:
    """What `_matrix` makes that matrix of."""
    if not _has_channels_last(weight):
        return matrix.view(weight.shape)
    return matrix.view(weight.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)


def _columns(v: Float[Tensor, " rest"], weight: Tensor) -> Float[Tensor, " rest"]:
    """v in the order of that matrix's columns."""
    return _matrix(v.view(1, *weight.shape[1:]), weight)[0]


def _has_channels_last(weight: Tensor) -> bool:
    return weight.ndim == 4 and weight.is_contiguous(memory_format=torch.channels_last)
