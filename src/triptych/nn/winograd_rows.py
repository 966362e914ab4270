"""Convolutions with a stride of 1 as six convolutions of rows, with half of the multiplications of a 3x3 kernel.

The algorithm of winograd.py for one axis. Six rows x_0 to x_5 give m = 7 - k rows y_0 to y_{m-1} of the convolution with a kernel w of k
rows,

    y = A^T [(G w) * (B^T x)],    * convolves along the rows and sums over the channels,

with the values z of the bracket at the points 0, p, -p, q, -q and infinity. Those of x at p and -p share their sums:

    0: p^2 q^2 x_0 - (p^2 + q^2) x_2 + x_4,    infinity: p^2 q^2 x_1 - (p^2 + q^2) x_3 + x_5,
    p and -p: (x_4 - q^2 x_2) +- p (x_3 - q^2 x_1),    q and -q: (x_4 - p^2 x_2) +- q (x_3 - p^2 x_1),

and so do those of y, y_r = (sum over the points a of a^r z_a) + [r = m - 1] z_infinity. Tiles do this for both axes, with half as
many multiplications as rows. But one and a half times as many numbers as a map has go through memory here, and two and a quarter times as
many there; and these are convolutions, for which PyTorch reaches the full rate of a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from triptych.nn.cpu import vectors
from triptych.nn.winograd import LEAST_USED, POINTS, SIDE, bordered, parts, possible, transforms

_P, _Q = POINTS[1], POINTS[3]
_FEWEST_CHANNELS = {("AVX2", False): (64, 64), ("AVX512", False): (64, 96), ("AVX512", True): (96, 128)}
"""For which rows are faster, the harmonic mean of those of both maps, with one thread and with several: by the vectors of the CPU and
whether it is the gradient of the weight. With AVX2 that is faster by tiles."""
_NARROWEST_TILES = {("AVX2", False): 300, ("AVX512", False): 400, ("AVX512", True): 200}
"""From how many channels on tiles, where both are possible, are faster than rows with several threads: those share a cache that tiles need,
and on machines of which others have a part it may be small. By the vectors of the CPU and whether it is the gradient of the weight."""
_FEWEST_PRODUCTS = 2**26  # of a pixel's channel with a weight, by thread and tap: smaller ones do not make up for the calls
_FEWEST_PIXELS, _LEAST_WIDTH = 1024, 14  # with fewer, the kernels cost too much; in narrower maps, PyTorch's convolution of a row is slow
_MOST_VALUES = 2**22  # of six rows at the points, of all tiles that are computed together: 16 MiB in float32


def by_rows(x: Float[Tensor, "b i h w"], weight: Float[Tensor, "o i kh kw"], *, stride: int, padding: int, learning: bool = False) -> bool:
    """Whether a convolution is faster so, or the gradient of its weight with `learning` (benchmarks/winograd.py)."""
    fewest = _FEWEST_CHANNELS.get((vectors(), learning)) if possible(x, weight, stride=stride, padding=padding) else None
    if fewest is None:
        return False
    (o, i), (b, _, *sides), threads = weight.shape[:2], x.shape, torch.get_num_threads()
    rows, columns = (side + 2 * padding - 2 for side in sides)
    pixels = b * rows * columns
    large = columns >= _LEAST_WIDTH and pixels >= _FEWEST_PIXELS and pixels * i * o >= _FEWEST_PRODUCTS * threads
    return large and rows >= LEAST_USED * 4 * -(-rows // 4) and i * o >= fewest[threads > 1] * (i + o) / 2


def rows_before_tiles(weight: Float[Tensor, "o i kh kw"], *, learning: bool = False) -> bool:
    """Whether rows are the better choice of a convolution for which both are faster than PyTorch, or of the gradient of its weight."""
    (o, i), narrowest = weight.shape[:2], _NARROWEST_TILES.get((vectors(), learning), 0)
    return torch.get_num_threads() > 1 and i * o < narrowest * (i + o) / 2


def convolved(x: Float[Tensor, "b i h w"], weight: Float[Tensor, "o i k k"], *, padding: int) -> Float[Tensor, "b o _ _"]:
    """What `F.conv2d` gives for a k of 3 or 5, and fewer zeros than k beyond the border; channels last."""
    k = weight.shape[2]
    kernels = _kernels(weight, transforms(k, weight.dtype, axes=1).kernel)
    return _Rows(x, kernel=k, padding=padding).through(lambda z, kernel: F.conv2d(z, kernel, padding=(0, padding)), kernels)


def input_gradient(gradient: Float[Tensor, "b o _ _"], weight: Float[Tensor, "o i k k"], *, padding: int) -> Float[Tensor, "b i h w"]:
    """The gradient of <convolved(x, weight), gradient> by x; channels last."""
    k = weight.shape[2]
    kernels = _kernels(weight, transforms(k, weight.dtype, axes=1).kernel.flip(1))
    rows = _Rows(gradient, kernel=k, padding=k - 1 - padding)
    return rows.through(lambda z, kernel: F.conv_transpose2d(z, kernel, padding=(0, padding)), kernels)


def weight_gradient(
    x: Float[Tensor, "b i h w"], gradient: Float[Tensor, "b o _ _"], *, kernel: int, padding: int
) -> Float[Tensor, "o i k k"]:
    """The gradient of <convolved(x, weight), gradient> by a weight with such a kernel; channels last."""
    (i, o), rows = (x.shape[1], gradient.shape[1]), _Rows(x, kernel=kernel, padding=padding)
    whole = bordered(gradient.permute(0, 2, 3, 1), rows=(0, rows.down * rows.made - rows.height), columns=(0, 0))
    whole = whole.reshape(rows.images, rows.down, rows.made, -1, o)
    like = torch.empty((o, i, 1, kernel), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    shape = [1, 1], [0, padding], [1, 1], False, [0, 0], 1, (False, True, False)
    found: list[Tensor] = []
    for part in rows.parts(channels=max(i, o)):
        points = zip(_spread(whole[part]), rows.at_points(part), strict=True)
        learned = [torch.ops.aten.convolution_backward(_row(g), _row(z), like, None, *shape)[1] for g, z in points]
        found = [torch.add(*two) for two in zip(found, learned, strict=True)] if found else learned
    values = torch.stack([each.permute(0, 2, 3, 1).reshape(-1) for each in found])
    taps = (transforms(kernel, x.dtype, axes=1).kernel.t() @ values).view(kernel, o, kernel, i)
    return taps.transpose(0, 1).contiguous().permute(0, 3, 1, 2)


def _kernels(weight: Float[Tensor, "o i k k"], transform: Float[Tensor, "6 k"]) -> list[Float[Tensor, "o i 1 k"]]:
    """G w: the kernels of the six convolutions."""
    o, i, k, _ = weight.shape
    found = transform @ weight.permute(2, 0, 3, 1).reshape(k, -1)
    return [each.view(o, 1, k, i).permute(0, 3, 1, 2) for each in found]


def _row(tiles: Float[Tensor, "b t w i"]) -> Float[Tensor, "_ i 1 w"]:
    """Each tile's row as an image of its own, channels last."""
    return tiles.flatten(0, 1).unsqueeze(1).permute(0, 3, 1, 2)


class _Rows:
    """The tiles of maps: `images` times `down` of them, for `made` rows of the convolution each, `height` in all."""

    def __init__(self, x: Float[Tensor, "b i h w"], *, kernel: int, padding: int) -> None:
        self.images, _, height, self._width = x.shape
        self.made, self.height = SIDE + 1 - kernel, height + 2 * padding - kernel + 1
        self.down = -(-self.height // self.made)
        below = self.down * self.made - self.height
        self._all = bordered(x.permute(0, 2, 3, 1), rows=(padding, padding + below), columns=(0, 0))

    def parts(self, *, channels: int) -> Iterator[tuple[slice, slice]]:
        """Images and tiles."""
        return parts(self.images, self.down, together=_MOST_VALUES // (SIDE * self._width * channels))

    def at_points(self, part: tuple[slice, slice]) -> Float[Tensor, "6 b t w i"]:
        """B^T x of a part's tiles."""
        images, tiles = part
        first, last = (self.made * tile for tile in (tiles.start, tiles.stop - 1))
        x0, x1, x2, x3, x4, x5 = (self._all[images, first + row : last + row + 1 : self.made] for row in range(SIDE))
        z = x0.new_empty(SIDE, *x0.shape)
        for even, out in (((x0, x2, x4), z[0]), ((x1, x3, x5), z[-1])):
            torch.add(even[2], even[1], alpha=-(_P**2 + _Q**2), out=out).add_(even[0], alpha=(_P * _Q) ** 2)
        for point, other, out in ((_P, _Q, z[1:3]), (_Q, _P, z[3:5])):
            even, odd = (torch.add(far, near, alpha=-(other**2)) for far, near in ((x4, x2), (x3, x1)))
            _at_both(even, odd, point, out=out)
        return z

    def through(self, convolve: Callable[[Tensor, Tensor], Tensor], kernels: Sequence[Tensor]) -> Float[Tensor, "b o _ _"]:
        """A^T of what a convolution makes of the rows at each point, with the kernel of the point."""
        y = spread = None
        for part in self.parts(channels=max(kernels[0].shape[:2])):
            z = [convolve(_row(rows), kernel) for rows, kernel in zip(self.at_points(part), kernels, strict=True)]
            if y is None or spread is None:
                _, o, _, w = z[0].shape
                # No view, for then no one could change it in place.
                shape = self.images, o, self.down * self.made, w
                y = torch.empty(shape, dtype=z[0].dtype, device=z[0].device, memory_format=torch.channels_last)
                spread = y.permute(0, 2, 3, 1).view(self.images, self.down, self.made, w, o)
            _add_up([each.permute(0, 2, 3, 1) for each in z], out=spread[part])
        assert y is not None
        return y if y.shape[2] == self.height else y[:, :, : self.height].clone(memory_format=torch.channels_last)


def _at_both(even: Tensor, odd: Tensor, point: float, *, out: Float[Tensor, "2 ..."]) -> None:
    """even + point odd and even - point odd: the values of a polynomial at the point and at its negative."""
    torch.add(even, odd, alpha=point, out=out[0])
    torch.add(even, odd, alpha=-point, out=out[1])


def _add_up(z: Sequence[Float[Tensor, "_ 1 w o"]], *, out: Float[Tensor, "b t m w o"]) -> None:
    """A^T z."""
    b, t, made, w, o = out.shape
    zero, p, minus_p, q, minus_q, infinity = (each.reshape(b, t, w, o) for each in z)
    even, odd = (p + minus_p, q + minus_q), (p - minus_p, q - minus_q)
    for r in range(made):
        row, (of_p, of_q), end = out[:, :, r], odd if r % 2 else even, {0: zero, made - 1: infinity}.get(r)
        if end is None:
            torch.mul(of_p, _P**r, out=row)
        else:
            torch.add(end, of_p, alpha=_P**r, out=row)
        row.add_(of_q, alpha=_Q**r)


def _spread(rows: Float[Tensor, "b t m w o"]) -> Float[Tensor, "6 b t w o"]:
    """A g of a part's gradients g: of sum over r of g_r a^r the values at the points a, and at infinity the last g."""
    g = rows.unbind(2)
    z = rows.new_empty(SIDE, *g[0].shape)
    z[0], z[-1] = g[0], g[-1]
    for point, out in ((_P, z[1:3]), (_Q, z[3:5])):
        even, odd = (g[0], g[1]) if len(g) == 2 else (torch.add(near, far, alpha=point**2) for near, far in zip(g[:2], g[2:], strict=True))
        _at_both(even, odd, point, out=out)
    return z
