"""Convolutions of maps that are 1 in a few channels of each pixel and 0 in all others, such as label maps.

y(p) = sum over the taps t of W_t x(s p + t - padding), where W_t has a column for each channel. Where x is 1 in the channels c_1, c_2, ..
of a pixel, W_t x is the sum of these columns. They are looked up: what a convolution would multiply by 0 is never touched. The gradient
by W_t is in column c the sum of y's gradients at the pixels that look c up; these are found from the pixels of x, sorted by channel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd import Function

from triptych.nn.cpu import takes_other_ways
from triptych.nn.precision import autocast_dtype, widened
from triptych.nn.resample import resized

_NOTE = "one_hot"
FEWEST_CHANNELS = 32
"""Of a map of which it is worth knowing them."""
_LEAST_PRODUCTS = 2**12  # of the channels of both sides: below it, finding the places costs more (measured, benchmarks/one_hot.py)


class OneHot:
    """A map (b, n, h, w) by the channels that are 1."""

    def __init__(self, index: Int[Tensor, "b j h w"], channels: int) -> None:
        """`index`: of each pixel j numbers of channels, all different, or -1; `channels`: n."""
        self.index, self.channels = index.contiguous(), channels
        self._sizes = dict[tuple[int, ...], OneHot]()
        self._taps = dict[_Geometry, Tensor]()
        self._places = dict[_Geometry, _Places]()

    def resized(self, size: tuple[int, ...] | torch.Size) -> OneHot:
        """The map at a size (h, w), each pixel its nearest one."""
        size = tuple(size)
        if size == tuple(self.index.shape[2:]):
            return self
        if size not in self._sizes:
            index = resized(self.index.float(), size, mode="nearest").int()
            self._sizes[size] = OneHot(index, self.channels)
        return self._sizes[size]

    def taps(self, geometry: _Geometry) -> Int[Tensor, "p t"]:
        """The rows of a table of the weight's columns, tap after tap, that each pixel of the convolution is the sum of."""
        if geometry not in self._taps:
            self._taps[geometry] = _taps(self.index, self.channels, geometry)
        return self._taps[geometry]

    def places(self, geometry: _Geometry) -> _Places:
        """Where each row of that table is looked up."""
        if geometry not in self._places:
            self._places[geometry] = _Places(self.index, self.channels, geometry)
        return self._places[geometry]


class _Geometry(NamedTuple):
    """Of a convolution."""

    kernel: int
    "Taps along a side."
    stride: int
    padding: int

    def side(self, pixels: int) -> int:
        """Pixels of the convolution along a side of so many."""
        return (pixels + 2 * self.padding - self.kernel) // self.stride + 1


def note(dense: Float[Tensor, "b n h w"], ones: OneHot) -> None:
    """Makes `ones` known as the channels that are 1 of this tensor, for as long as that is there. It must not be changed in place."""
    setattr(dense, _NOTE, ones)


def looked_up(dense: Tensor, *, outputs: int) -> OneHot | None:
    """What is known of a tensor, if a convolution of it to so many channels is faster by that; else None."""
    if torch.compiler.is_compiling() or not takes_other_ways():
        return None
    ones: OneHot | None = getattr(dense, _NOTE, None)
    return ones if ones is not None and dense.device.type == "cpu" and ones.channels * outputs >= _LEAST_PRODUCTS else None


def convolved(
    x: OneHot, weight: Float[Tensor, "d i k k"], bias: Float[Tensor, " d"] | None = None, *, stride: int = 1, padding: int = 0
) -> Float[Tensor, "b d _ _"]:
    """What `F.conv2d` gives for the dense map; in autocast's precision where that is on."""
    geometry, (b, _, h, w) = _Geometry(weight.shape[2], stride, padding), x.index.shape
    dtype = autocast_dtype(weight)
    with torch.autocast(weight.device.type, enabled=False):
        table = widened(weight).permute(2, 3, 1, 0).reshape(-1, len(weight))
        y = _Sums.apply(table, x, geometry)
        y = y if bias is None else y + bias
        return y.to(dtype).view(b, geometry.side(h), geometry.side(w), len(weight)).permute(0, 3, 1, 2)


class _Sums(Function):
    """Of each pixel of the convolution, the sum of the rows that it looks up: linear in the table."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, x: OneHot, geometry: _Geometry) -> Tensor:
        ctx.rest = x, geometry
        rows = torch.cat((table, table.new_zeros(1, table.shape[1])))
        return F.embedding_bag(x.taps(geometry), rows, mode="sum")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return _Spread.apply(gradient, *ctx.rest), None, None


class _Spread(Function):
    """Of each row of the table, the sum over the pixels that look it up: the transpose of `_Sums`."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, x: OneHot, geometry: _Geometry) -> Tensor:
        ctx.rest = x, geometry
        return x.places(geometry).sums(gradient)

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return _Sums.apply(tangent, *ctx.rest), None, None


def _taps(index: Tensor, channels: int, geometry: _Geometry) -> Tensor:
    (b, j, h, w), kernel, stride = index.shape, geometry.kernel, geometry.stride
    height, width = geometry.side(h), geometry.side(w)
    around = F.pad(index, [geometry.padding] * 4, value=-1)
    seen = around.as_strided(  # (b, height, width, k, k, j)
        (b, height, width, kernel, kernel, j),
        (around.stride(0), stride * around.stride(2), stride, around.stride(2), 1, around.stride(1)),
    )
    firsts = torch.arange(kernel * kernel, dtype=index.dtype).view(kernel, kernel, 1) * channels
    rows = seen + firsts
    return rows.masked_fill_(seen < 0, kernel * kernel * channels).reshape(b * height * width, kernel * kernel * j)


class _Places:
    """For each row of the table the pixels of the convolution that look it up.

    With a stride s the pixels of the map fall into s x s grids, and each tap sees those of one. In a grid the pixel r is seen by the pixel
    p = r - m of the convolution, m depending on the tap alone. So the pixels of a grid are sorted by channel once, and each tap has them
    moved by m, in a canvas with a border of zeros around y.
    """

    def __init__(self, index: Tensor, channels: int, geometry: _Geometry) -> None:
        (b, _, *sides), (kernel, stride, padding) = index.shape, geometry
        self._made = [geometry.side(side) for side in sides]
        self._groups = kernel * kernel, b, channels
        moves = [(tap - padding) // stride for tap in range(kernel)]
        self._before = max(0, *moves)
        needed = [-(-side // stride) - 1 - min(moves) for side in sides]  # of the last pixel of a grid
        self._after = [max(0, last - made + 1) for last, made in zip(needed, self._made, strict=True)]
        width = self._before + self._made[1] + self._after[1]
        height = self._before + self._made[0] + self._after[0]
        grids = {
            (a, c): _sorted(index[:, :, a::stride, c::stride], channels, height=height, width=width)
            for a in range(stride)
            for c in range(stride)
        }
        places, counts = [], []
        for row in range(kernel):
            for column in range(kernel):
                where, count = grids[(row - padding) % stride, (column - padding) % stride]
                places.append(where + (self._before - moves[row]) * width + self._before - moves[column])
                counts.append(count)
        self._places = torch.cat(places)
        self._offsets = F.pad(torch.cat(counts).cumsum(0), (1, 0)).to(index.dtype)

    def sums(self, values: Float[Tensor, "p d"]) -> Float[Tensor, "r d"]:
        """Of each row of the table the sum of the values of its pixels."""
        (_, b, _), d, before = self._groups, values.shape[1], self._before
        border = (0, 0, before, self._after[1], before, self._after[0])
        canvas = F.pad(values.view(b, *self._made, d), border).view(-1, d)
        sums = F.embedding_bag(self._places, canvas, self._offsets, mode="sum", include_last_offset=True)
        return sums.view(*self._groups, d).sum(1).view(-1, d)


def _sorted(index: Tensor, channels: int, *, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The pixels of a grid by sample and channel, as places in canvases of that size; how many each channel of each sample has."""
    b, _, h, w = index.shape
    sample = torch.arange(b, dtype=index.dtype).view(b, 1, 1, 1)
    rows, columns = torch.arange(h, dtype=index.dtype).view(h, 1), torch.arange(w, dtype=index.dtype)
    place = ((sample * height + rows) * width + columns).expand(index.shape)
    there = index >= 0
    of = (sample * channels + index)[there]
    return place[there][of.argsort(stable=True)], torch.bincount(of, minlength=b * channels)
