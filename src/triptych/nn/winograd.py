"""Convolutions with a stride of 1 as products of tiles, with a quarter of the multiplications of a 3x3 kernel.

"Fast Algorithms for Convolutional Neural Networks", Lavin and Gray 2016, arXiv 1509.09308. Each tile x of 6x6 pixels gives m x m pixels
of the convolution with a k x k kernel w, m = 7 - k:

    y = A^T [(G w G^T) * (B^T x B)] A,    * by elements

so that the sum over the channels becomes 36 products of matrices, tiles x channels by channels x channels. The matrices are those of Toom
and Cook: B^T and A^T go from polynomials to values at six points and back. The gradient by x is a convolution too, of the gradient g of y
with the kernel turned round; the one by w is

    G^T [sum over the tiles of (B^T x B) * (A g A^T)] G
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from triptych.nn.cpu import multiplies_fast, takes_other_ways, vectors
from triptych.nn.forward_mode import is_transformed

SIDE = 6
"""Of a tile, in pixels, and the number of points."""
POINTS = (0.0, 0.625, -0.625, 1.5, -1.5)
"""And infinity. With these, errors of rounding are about those of the plain convolution: with 0, 1, -1, 2 and -2 three times as large."""
_CACHED_VALUES = 2**19  # of the transformed tiles at a time, which is 2 MiB in float32
_FEWEST_TOGETHER = 128  # tiles: products with fewer rows are slow
_FEWEST_TILES, _FEWEST_TO_LEARN = 64, 48
_MOST_THREADS = 4  # measured with 1 and 2
LEAST_USED = 0.7  # of the pixels of tiles, which reach beyond maps whose sides are no multiples of 4


class _Narrowest(NamedTuple):
    """The fewest channels for which tiles are faster: the harmonic mean of those of both maps."""

    alone: int
    "With one thread."
    together: int
    "With several, which wait for memory in the transforms."
    learning: int
    "For the gradient of the weight."


_NARROWEST = {"AVX2": _Narrowest(80, 200, 64), "AVX512": _Narrowest(100, 120, 100)}
"""By the vectors of the CPU. Where it multiplies fast, transforms cost more than they save at all widths."""


def by_tiles(x: Float[Tensor, "b i h w"], weight: Float[Tensor, "o i kh kw"], *, stride: int, padding: int, learning: bool = False) -> bool:
    """Whether a convolution is faster so, or the gradient of its weight with `learning`: float32 on a CPU with AVX2 or AVX-512.

    It takes tiles enough to make up for the transforms of the kernels, and channels enough for those of the tiles, with several threads
    more; with many nothing is known (benchmarks/winograd.py). With AVX-512 and products as fast as Zen 5's it never is.
    """
    if not possible(x, weight, stride=stride, padding=padding) or (vectors() == "AVX512" and multiplies_fast()):
        return False
    (o, i), (b, _, *sides) = weight.shape[:2], x.shape
    threads, fewest_channels = torch.get_num_threads(), _NARROWEST.get(vectors())
    if fewest_channels is None:
        return False
    rows, columns = (side + 2 * padding - 2 for side in sides)
    tiles = b * -(-rows // 4) * -(-columns // 4)
    if b * rows * columns < LEAST_USED * 16 * tiles:
        return False
    if learning:
        fewest, narrowest = _FEWEST_TO_LEARN, fewest_channels.learning
    else:
        fewest, narrowest = _FEWEST_TILES, fewest_channels.alone if threads == 1 else fewest_channels.together
    return tiles >= fewest and i * o >= narrowest * (i + o) / 2


def possible(x: Float[Tensor, "b i h w"], weight: Float[Tensor, "o i kh kw"], *, stride: int, padding: int) -> bool:
    """Whether it is a convolution that can be computed with fewer multiplications, and about which something is known on this CPU."""
    # Asked first: a compiler would end its graph at the other questions, here and in the callers.
    if torch.compiler.is_compiling() or x.device.type != "cpu" or not (x.dtype == weight.dtype == torch.float32):
        return False
    # Autocast would round the products to half precision.
    if not takes_other_ways() or torch.is_autocast_enabled("cpu") or is_transformed(x) or is_transformed(weight):
        return False
    return weight.shape[2:] == (3, 3) and stride == 1 and 0 <= padding < 3 and torch.get_num_threads() <= _MOST_THREADS


class Transforms(NamedTuple):
    """The matrices of the equation."""

    image: Float[Tensor, "places places"]
    "B^T"
    kernel: Float[Tensor, "places taps"]
    "G"
    output: Float[Tensor, "pixels places"]
    "A^T"


@functools.cache
def transforms(kernel: int, dtype: torch.dtype = torch.float64, *, axes: int = 2) -> Transforms:
    """Those of kernels of so many pixels a side; for both axes at once they are the Kronecker products of those of one with themselves."""
    points, pixels, infinity = np.array(POINTS), SIDE + 1 - kernel, np.eye(SIDE)[-1]
    others = [np.delete(points, number) for number in range(len(points))]
    polynomials = [np.poly(zeros)[::-1] for zeros in (*others, points)]
    image = np.stack([np.pad(coefficients, (0, SIDE - len(coefficients))) for coefficients in polynomials])
    scales = [np.prod(point - zeros) for point, zeros in zip(points, others, strict=True)]
    kernels = np.vstack((np.vander(points, kernel, increasing=True) / np.array(scales)[:, None], infinity[-kernel:]))
    output = np.vstack((np.vander(points, pixels, increasing=True), infinity[-pixels:])).T
    matrices = (functools.reduce(np.kron, [matrix] * axes) for matrix in (image, kernels, output))
    return Transforms(*(torch.from_numpy(matrix).to(dtype) for matrix in matrices))


def parts(images: int, rows: int, *, together: int) -> Iterator[tuple[slice, slice]]:
    """Images, and rows of them, so many rows at a time or one."""
    tall = max(1, together)
    wide = max(1, tall // rows)
    for first in range(0, images, wide):
        for top in range(0, rows, tall):
            yield slice(first, first + wide), slice(top, min(top + tall, rows))


def convolved(x: Float[Tensor, "b i h w"], weight: Float[Tensor, "o i k k"], *, padding: int) -> Float[Tensor, "b o _ _"]:
    """What `F.conv2d` gives for a k of 3 or 5, and fewer zeros than k beyond the border; channels last."""
    kernels = _kernels(weight, transforms(weight.shape[2], x.dtype).kernel)
    return _products(x, kernels.transpose(1, 2), kernel=weight.shape[2], padding=padding)


def input_gradient(gradient: Float[Tensor, "b o _ _"], weight: Float[Tensor, "o i k k"], *, padding: int) -> Float[Tensor, "b i h w"]:
    """The gradient of <convolved(x, weight), gradient> by x; channels last."""
    k = weight.shape[2]
    turned = transforms(k, gradient.dtype).kernel.flip(1)
    return _products(gradient, _kernels(weight, turned), kernel=k, padding=k - 1 - padding)


def weight_gradient(
    x: Float[Tensor, "b i h w"], gradient: Float[Tensor, "b o _ _"], *, kernel: int, padding: int
) -> Float[Tensor, "o i k k"]:
    """The gradient of <convolved(x, weight), gradient> by a weight with such a kernel; channels last."""
    i, o = x.shape[1], gradient.shape[1]
    by, tiles = transforms(kernel, x.dtype), _Tiles(x, kernel=kernel, padding=padding)
    m, found = tiles.pixels, x.new_empty(SIDE**2, o, i)
    whole = bordered(gradient.permute(0, 2, 3, 1), rows=(0, tiles.down * m - tiles.height), columns=(0, tiles.across * m - tiles.width))
    whole = whole.reshape(tiles.images, tiles.down, m, tiles.across, m, o)
    for number, part in enumerate(tiles.parts(channels=max(i, o))):
        values = by.output.t() @ whole[part].permute(2, 4, 0, 1, 3, 5).reshape(m * m, -1)
        given = found, values.view(SIDE**2, -1, o).transpose(1, 2), tiles.transformed(part, by)
        torch.baddbmm(*given, beta=min(number, 1), out=found)  # what is in `found` at first is not read
    taps = (by.kernel.t() @ found.flatten(1)).view(kernel, kernel, o, i)
    return taps.permute(2, 0, 1, 3).contiguous().permute(0, 3, 1, 2)


def _kernels(weight: Tensor, transform: Float[Tensor, "36 taps"]) -> Float[Tensor, "36 o i"]:
    """G w G^T of the kernel from each channel to each."""
    o, i, k, _ = weight.shape
    return (transform @ weight.permute(2, 3, 0, 1).reshape(k * k, o * i)).view(-1, o, i)


def _products(x: Float[Tensor, "b i h w"], kernels: Float[Tensor, "36 i o"], *, kernel: int, padding: int) -> Float[Tensor, "b o _ _"]:
    i, o = kernels.shape[1:]
    by, tiles = transforms(kernel, x.dtype), _Tiles(x, kernel=kernel, padding=padding)
    m, rows, columns = tiles.pixels, tiles.down * tiles.pixels, tiles.across * tiles.pixels
    y = torch.empty((len(x), o, rows, columns), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    spread = y.permute(0, 2, 3, 1).view(len(x), tiles.down, m, tiles.across, m, o)
    for part in tiles.parts(channels=max(i, o)):
        made = by.output @ torch.bmm(tiles.transformed(part, by), kernels).flatten(1)
        spread[part] = made.view(m, m, *spread[part].shape[:2], tiles.across, o).permute(2, 3, 0, 4, 1, 5)
    if (rows, columns) == (tiles.height, tiles.width):
        return y
    return y[:, :, : tiles.height, : tiles.width].clone(memory_format=torch.channels_last)


def bordered(x: Float[Tensor, "b h w i"], *, rows: tuple[int, int], columns: tuple[int, int]) -> Float[Tensor, "b _ _ i"]:
    """x with so many rows of zeros above and below, and columns left and right. F.pad writes zeros everywhere first."""
    if not any(rows + columns):
        return x
    (b, h, w, i), (above, below), (left, right) = x.shape, rows, columns
    y = x.new_empty(b, above + h + below, left + w + right, i)
    inner = y[:, above : above + h]
    for border in (y[:, :above], y[:, above + h :], inner[:, :, :left], inner[:, :, left + w :]):
        border.zero_()
    inner[:, :, left : left + w] = x
    return y


class _Tiles:
    """The tiles of maps: `images` times `down` times `across`, for `pixels` x `pixels` of the convolution each."""

    def __init__(self, x: Float[Tensor, "b i h w"], *, kernel: int, padding: int) -> None:
        self.images, self._channels, height, width = x.shape
        self.pixels = SIDE + 1 - kernel
        self.height, self.width = (side + 2 * padding - kernel + 1 for side in (height, width))
        self.down, self.across = (-(-side // self.pixels) for side in (self.height, self.width))
        below, right = self.down * self.pixels - self.height, self.across * self.pixels - self.width
        padded = bordered(x.permute(0, 2, 3, 1), rows=(padding, padding + below), columns=(padding, padding + right))
        self._all = padded.unfold(1, SIDE, self.pixels).unfold(2, SIDE, self.pixels)

    def parts(self, *, channels: int) -> Iterator[tuple[slice, slice]]:
        """Images and rows of tiles, so many at a time as the cache has room for."""
        tiles = max(_FEWEST_TOGETHER, _CACHED_VALUES // (SIDE**2 * channels))
        return parts(self.images, self.down, together=tiles // self.across)

    def transformed(self, part: tuple[slice, slice], by: Transforms) -> Float[Tensor, "36 n i"]:
        """B^T x B of a part's tiles."""
        return (by.image @ self._all[part].permute(4, 5, 0, 1, 2, 3).reshape(SIDE**2, -1)).view(SIDE**2, -1, self._channels)
