"""The gradient of a convolution's weight as matrix products, where these are faster than the kernel that PyTorch has for it.

The gradient of y = conv(x, w) by the tap (p, q) of w is, with a stride of 1, a sum over the pixels n of y,

    dL/dw[o, i, p, q] = sum over n of g[n, o] x[n + (p, q) - padding, i],

a product of the gradient g and of x moved by the tap. All rows of all images lie one behind the other in one matrix, with zeros between two
images, so a move by p rows is a view of it that begins p rows later; for q there is a copy, moved by so many columns. With a larger
stride the pixels that a row of taps sees are gathered.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from triptych.nn.cpu import takes_other_ways, vectors

_FEWEST_CHANNELS = 64
_CACHED_VALUES = 2**20  # of the matrix at a time, which is 4 MiB in float32


def by_products(x: Float[Tensor, "b i h w"], weight: Float[Tensor, "o i kh kw"], *, padding: int) -> bool:
    """Whether the weight's gradient is faster as products: float32 of many channels on a CPU with AVX2 and without AVX-512.

    oneDNN's kernel for it reaches 50 to 60 % of what the two other convolutions of a step reach there, and products 75 to 80 %
    (benchmarks/weight_gradients.py).
    """
    kernel = min(weight.shape[2:])
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and takes_other_ways()
        and vectors() == "AVX2"
        and min(weight.shape[:2]) >= _FEWEST_CHANNELS
        and padding < kernel
    )


def weight_gradient(
    x: Float[Tensor, "b i h w"], gradient: Float[Tensor, "b o oh ow"], kernel: tuple[int, int], *, stride: int = 1, padding: int
) -> Float[Tensor, "o i kh kw"]:
    """The gradient by the weight of a convolution with that stride and padding, below both sides of the kernel; channels last."""
    o, i, (height, width) = gradient.shape[1], x.shape[1], kernel
    found = x.new_zeros(o, height, width * i)
    together = max(1, _CACHED_VALUES // ((gradient.shape[2] + padding) * gradient.shape[3] * width * i))
    for start in range(0, len(x), together):
        part = slice(start, start + together)
        given = found, x[part].permute(0, 2, 3, 1), gradient[part].permute(0, 2, 3, 1)
        if stride == 1:
            _add_products(*given, padding=padding)
        else:
            _add_strided_products(*given, stride=stride, padding=padding)
    return found.view(o, height, width, i).permute(0, 3, 1, 2)


def _add_strided_products(
    found: Float[Tensor, "o kh _"], x: Float[Tensor, "b h w i"], gradient: Float[Tensor, "b oh ow o"], *, stride: int, padding: int
) -> None:
    """Adds the gradients of some images for any stride."""
    b, rows, columns, outs = gradient.shape
    i = x.shape[3]
    width = found.shape[2] // i
    padded, flat = F.pad(x, (0, 0, padding, padding, padding, padding)), gradient.reshape(-1, outs).t()
    seen = x.new_empty(b, rows, columns, width, i)
    for p in range(found.shape[1]):
        row = padded[:, p : p + stride * (rows - 1) + 1 : stride]
        for q in range(width):
            seen[:, :, :, q] = row[:, :, q : q + stride * (columns - 1) + 1 : stride]
        _accumulate(found[:, p], flat, seen.view(-1, width * i))


def _add_products(
    found: Float[Tensor, "o kh _"], x: Float[Tensor, "b h w i"], gradient: Float[Tensor, "b oh ow o"], *, padding: int
) -> None:
    """Adds the gradients of some images for a stride of 1."""
    b, h, _, i = x.shape
    rows = h + padding  # of an image: its own, and the zeros between it and the next one
    out_rows, columns, outs = gradient.shape[1:]
    taps, width = found.shape[1], found.shape[2] // i
    if out_rows < rows:
        spread = gradient.new_empty(b, rows, columns, outs)
        spread[:, :out_rows], spread[:, out_rows:] = gradient, 0
        gradient = spread
    pixels, above = b * rows * columns, padding * columns
    matrix = x.new_empty((taps - 1) * columns + pixels, width * i)
    matrix[:above], matrix[above + pixels :] = 0, 0
    images = matrix[above : above + pixels].view(b, rows, columns, width, i)
    images[:, h:] = 0
    for q in range(width):
        _moved(images[:, :h, :, q], x, by=q - padding)
    flat = gradient.reshape(pixels, outs).t()
    for p in range(taps):
        _accumulate(found[:, p], flat, matrix[p * columns : p * columns + pixels])


def _accumulate(total: Float[Tensor, "o k"], flat: Float[Tensor, "o n"], seen: Float[Tensor, "n k"]) -> None:
    torch.addmm(total, flat, seen, out=total)  # not addmm_, which counters of operations do not know


def _moved(to: Float[Tensor, "b h ow i"], x: Float[Tensor, "b h w i"], *, by: int) -> None:
    """Column n of `to` becomes column n + by of x, or 0 where there is none."""
    first, last = max(0, -by), min(to.shape[2], x.shape[2] - by)
    to[:, :, first:last] = x[:, :, first + by : last + by]
    to[:, :, :first], to[:, :, last:] = 0, 0
