"""The layers of Glow: channel-wise affine maps, invertible maps of the channels, coupling, and the convolutions inside them.

"Glow: Generative Flow with Invertible 1x1 Convolutions", Kingma and Dhariwal 2018, https://arxiv.org/abs/1807.03039, Table 1.

    actnorm     y = (x + b) exp(3 l)                            log|det| = H W sum 3 l
    mixing      y = W x at each pixel, or y = x in another order log|det| = H W log|det W|, or 0
    coupling    y_1 = x_1,  y_2 = x_2 + f(x_1)                  log|det| = 0
        affine  y_2 = (x_2 + m) s, (m, r) = f(x_1), s = sigmoid(r + 2)     log|det| = sum log s

What is learned as a log-scale is used times 3, as in the original program: the scale moves three times as far in a step. There m and r are
the even and the odd channels of f. Every layer is a function of its input and its parameters and has an inverse, so activations can be
computed from either side. Convolutions of f follow autocast; everything that is carried on keeps the precision of the input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64
from torch import Tensor, nn

from triptych.flows.memory import Rewound
from triptych.nn.convolution import fast_convolution

LOG_SCALE_FACTOR = 3.0
"""What a learned log-scale is multiplied by."""
_STD_FLOOR = 1e-6  # added to the standard deviation of a channel at the start
_INITIAL_STD = 0.05  # of the weights of the hidden convolutions

CouplingName = Literal["additive", "affine"]
MixingName = Literal["conv", "conv-lu", "shuffle", "reverse"]


def full_precision(x: Tensor) -> torch.autocast:
    """The context in which autocast does not touch what is computed from x, of any shape."""
    return torch.autocast(x.device.type, enabled=False)


class ActNorm(nn.Module):
    """y = (x + b) exp(3 l), channel by channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))
        self.log_scale = nn.Parameter(torch.zeros(channels))

    def scale(self) -> Float[Tensor, " c"]:
        """exp(3 l)."""
        return torch.exp(LOG_SCALE_FACTOR * self.log_scale)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return (x + self.bias[:, None, None]) * self.scale()[:, None, None]

    def inverse(self, y: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """x of y."""
        return y / self.scale()[:, None, None] - self.bias[:, None, None]

    @torch.no_grad()
    def initialize(self, x: Float[Tensor, "b c h w"]) -> None:
        """Sets b and l so that the mean of each channel of the output is 0 and its variance 1 over this batch."""
        self.bias.copy_(-x.mean((0, 2, 3)))
        std = (x + self.bias[:, None, None]).square().mean((0, 2, 3)).sqrt()
        self.log_scale.copy_(-torch.log(std + _STD_FLOOR) / LOG_SCALE_FACTOR)


# Maps of the channels ------------------------------------------------------------------------------------------------


class Mixing(nn.Module, ABC):
    """An invertible linear map of the channels, the same at every pixel."""

    @abstractmethod
    def after(self, norm: ActNorm, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """The map of norm(x)."""

    @abstractmethod
    def inverse(self, y: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """x of y."""

    @abstractmethod
    def log_dets(self, layers: Sequence[Mixing]) -> Float64[Tensor, " k"]:
        """log|det| of each of `layers`, which are all of this class and width, at one pixel."""


class Permutation(Mixing):
    """y_c = x_order[c]; the order is saved with the model."""

    order: Tensor

    def __init__(self, order: Tensor) -> None:
        super().__init__()
        self.register_buffer("order", order)

    def after(self, norm: ActNorm, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return norm(x)[:, self.order]

    def inverse(self, y: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return y[:, self.order.argsort()]

    def log_dets(self, layers: Sequence[Mixing]) -> Float64[Tensor, " k"]:
        return torch.zeros(len(layers), dtype=torch.float64, device=self.order.device)


class _Matrix(Mixing):
    """y = W x. The inverse of W is kept for as long as W stays what it is."""

    def __init__(self) -> None:
        super().__init__()
        self._inverted: tuple[Tensor, Tensor] | None = None
        self.held_inverse: Tensor | None = None
        "The inverse of W, of which it is known that W does not change; see `inverses_at_hand`."

    @abstractmethod
    def matrix(self) -> Float[Tensor, "c c"]:
        """W."""

    def after(self, norm: ActNorm, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        # Actnorm goes into the weights: c^2 products in place of a pass over the activations.
        with full_precision(x):
            weight = self.matrix() * norm.scale()
            return _at_each_pixel(x, weight, weight @ norm.bias)

    def inverse(self, y: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        with full_precision(y):
            return _at_each_pixel(y, self.inverse_matrix(), None)

    @torch.no_grad()
    def inverse_matrix(self) -> Float[Tensor, "c c"]:
        """The inverse of W, computed in float64, without a gradient."""
        if self.held_inverse is not None:
            return self.held_inverse
        matrix = self.matrix()
        # By value: neither versions nor addresses tell of every way in which weights are exchanged.
        last = self._inverted
        same = last is not None and last[0].device == matrix.device and last[0].dtype == matrix.dtype and torch.equal(last[0], matrix)
        if last is None or not same:
            last = self._inverted = matrix.clone(), _inverses([self])[0]
        return last[1]


def _at_each_pixel(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    if x.device.type == "cpu":
        return F.conv2d(x, matrix[:, :, None, None], bias)
    # A GPU rounds what it convolves to TF32, unless told otherwise, and then the inverse undoes nothing; products of matrices stay float32.
    return F.linear(x.movedim(1, -1), matrix, bias).movedim(-1, 1)


def _inverses(layers: Sequence[_Matrix]) -> Sequence[Tensor]:
    matrices = torch.stack([layer.matrix() for layer in layers])
    # What is singular gives values that are not finite, and nothing waits for the device to tell.
    return torch.linalg.inv_ex(matrices.double()).inverse.to(matrices.dtype).unbind()


@contextmanager
def inverses_at_hand(mixings: Iterable[Mixing]) -> Iterator[None]:
    """Within it the maps, all of one width, stay what they are: their inverses are computed in one go."""
    layers = [mixing for mixing in mixings if isinstance(mixing, _Matrix)]
    with torch.no_grad():
        inverses = _inverses(layers) if layers else ()
    for layer, inverse in zip(layers, inverses, strict=True):
        layer.held_inverse = inverse
    try:
        yield
    finally:
        for layer in layers:
            layer.held_inverse = None


class InvertibleConv(_Matrix):
    """y = W x with any W; it starts as a random rotation (or reflection)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(_random_rotation(channels))

    def matrix(self) -> Float[Tensor, "c c"]:
        return self.weight

    def log_dets(self, layers: Sequence[Mixing]) -> Float64[Tensor, " k"]:
        matrices = [layer.matrix() for layer in layers if isinstance(layer, InvertibleConv)]
        return torch.linalg.slogdet(torch.stack(matrices).double()).logabsdet


class InvertibleConvLU(_Matrix):
    """y = P L (U + diag(sign exp(log_s))) x, with P and the signs fixed: never singular, and its log|det| is a sum (section 3.2)."""

    permutation: Tensor
    sign: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        permutation, lower, upper = torch.linalg.lu(_random_rotation(channels))
        diagonal = upper.diagonal()
        self.register_buffer("permutation", permutation)
        self.register_buffer("sign", diagonal.sign())
        self.lower = nn.Parameter(lower.tril(-1))
        self.upper = nn.Parameter(upper.triu(1))
        self.log_scale = nn.Parameter(diagonal.abs().log())

    def matrix(self) -> Float[Tensor, "c c"]:
        unit = torch.eye(len(self.sign), dtype=self.lower.dtype, device=self.lower.device)
        upper = self.upper.triu(1) + torch.diag(self.sign * self.log_scale.exp())
        with full_precision(upper):  # also on the way back through the inverses
            return self.permutation @ (self.lower.tril(-1) + unit) @ upper

    def log_dets(self, layers: Sequence[Mixing]) -> Float64[Tensor, " k"]:
        return torch.stack([layer.log_scale for layer in layers if isinstance(layer, InvertibleConvLU)]).sum(1, dtype=torch.float64)


def make_mixing(name: MixingName, channels: int) -> Mixing:
    """The map of that name, with fresh weights or a fresh order."""
    if name == "conv":
        return InvertibleConv(channels)
    if name == "conv-lu":
        return InvertibleConvLU(channels)
    return Permutation(torch.randperm(channels) if name == "shuffle" else torch.arange(channels).flip(0))


def _random_rotation(channels: int) -> Tensor:
    drawn = torch.randn(channels, channels)
    return drawn.t() if drawn.is_meta else torch.linalg.qr(drawn).Q  # whose columns come first in memory


# Convolutions --------------------------------------------------------------------------------------------------------


def bordered_conv(
    x: Float[Tensor, "b c h w"], weight: Float[Tensor, "o i 3 3"], bias: Float[Tensor, " o"] | None, *, border: bool
) -> Float[Tensor, "b o h w"]:
    """The 3x3 convolution of x, padded with zeros.

    With `border` the weight has one input channel more, the last: it is 1 on the ring of padding and 0 within, so that the convolution
    can tell the edge of the image.
    """
    if not border:
        return F.conv2d(x, weight, bias, padding=1)
    ring = F.pad(x.new_zeros(1, 1, *x.shape[2:]), (1, 1, 1, 1), value=1.0)
    if weight.shape[1] <= weight.shape[0]:  # one more of a few channels costs less than a pass over many
        return F.conv2d(torch.cat((F.pad(x, (1, 1, 1, 1)), ring.expand(len(x), -1, -1, -1)), dim=1), weight, bias)
    seen = F.unfold(ring, 3)[0]  # what of the ring each pixel sees: (9, h w)
    return F.conv2d(x, weight[:, :-1], bias, padding=1) + (weight[:, -1].flatten(1) @ seen).unflatten(1, x.shape[2:])


class ZeroConv(nn.Module):
    """(conv3x3(x) + b) exp(3 l), all parameters 0 at the start."""

    def __init__(self, in_channels: int, out_channels: int, *, border: bool) -> None:
        super().__init__()
        self.border = border
        self.weight = nn.Parameter(torch.zeros(out_channels, in_channels + border, 3, 3))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        self.log_scale = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b o h w"]:
        scale = torch.exp(LOG_SCALE_FACTOR * self.log_scale)
        return bordered_conv(x, self.weight * scale[:, None, None, None], self.bias * scale, border=self.border)


class ZeroLinear(nn.Module):
    """(W x + b) exp(3 l), all parameters 0 at the start."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        self.log_scale = nn.Parameter(torch.zeros(out_features))

    def forward(self, x: Float[Tensor, "b i"]) -> Float[Tensor, "b o"]:
        return F.linear(x, self.weight, self.bias) * torch.exp(LOG_SCALE_FACTOR * self.log_scale)


class NormalizedConv(nn.Module):
    """actnorm(conv(x)) with a kernel of 1 or 3 pixels; the convolution has no bias of its own."""

    def __init__(self, in_channels: int, out_channels: int, *, kernel: int, border: bool = False) -> None:
        super().__init__()
        self.border = border
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels + border, kernel, kernel))
        nn.init.normal_(self.weight, std=_INITIAL_STD)
        self.norm = ActNorm(out_channels)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b o h w"]:
        scale = self.norm.scale()
        return self._conv(x, self.weight * scale[:, None, None, None], self.norm.bias * scale)

    def initialize(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b o h w"]:
        """Sets the actnorm from this batch; what the layer then makes of it."""
        self.norm.initialize(self._conv(x, self.weight, None))
        return self(x)

    def _conv(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return fast_convolution(x, weight, bias) if weight.shape[-1] == 1 else bordered_conv(x, weight, bias, border=self.border)


# Coupling ------------------------------------------------------------------------------------------------------------


class CouplingNetwork(nn.Module):
    """f: conv 3x3, actnorm, ReLU, conv 1x1, actnorm, ReLU, zero conv 3x3. It need not be invertible."""

    def __init__(self, in_channels: int, width: int, out_channels: int, *, border: bool) -> None:
        super().__init__()
        self.first = NormalizedConv(in_channels, width, kernel=3, border=border)
        self.second = NormalizedConv(width, width, kernel=1)
        self.last = ZeroConv(width, out_channels, border=border)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b o h w"]:
        hidden = F.relu(self.first(x), inplace=True)
        return self.last(F.relu(self.second(hidden), inplace=True)).to(x.dtype)

    def initialize(self, x: Float[Tensor, "b c h w"]) -> None:
        """Sets the actnorms from this batch, one after the other."""
        self.second.initialize(F.relu(self.first.initialize(x)))


class Coupling(nn.Module):
    """Changes the second half of the channels by what a network makes of the first."""

    def __init__(self, channels: int, *, width: int, kind: CouplingName, border: bool) -> None:
        super().__init__()
        self.kind = kind
        half = channels // 2
        self.network = CouplingNetwork(half, width, channels if kind == "affine" else half, border=border)

    def forward(self, x: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, " b"]]:
        """y, and log|det dy/dx| of each sample."""
        first, second = x.chunk(2, dim=1)
        moved, log_det = self._moved(second, self.network(first))
        return torch.cat((first, moved), dim=1), x.new_zeros(len(x)) if log_det is None else log_det

    def inverse(self, y: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """x of y."""
        first, second = y.chunk(2, dim=1)
        return torch.cat((first, self._moved_back(second, self.network(first))), dim=1)

    def rewound(self, y: Float[Tensor, "b c h w"]) -> Rewound:
        """The way back from y. The network's input is the same on both sides, so it runs once for the inverse and for the graph."""
        first, second = (half.detach() for half in y.chunk(2, dim=1))
        with torch.enable_grad():
            h = self.network(first.requires_grad_())
            with torch.no_grad():
                second = self._moved_back(second, h)
            moved, log_det = self._moved(second.requires_grad_(), h)
            outputs = (torch.cat((first, moved), dim=1), *(() if log_det is None else (log_det,)))
        return Rewound((first, second), outputs, tuple(self.parameters()))

    def _moved(self, second: Tensor, h: Tensor) -> tuple[Tensor, Tensor | None]:
        """y_2 of x_2, and log|det| (b,); None: it is 0."""
        if self.kind == "additive":
            return second + h, None
        shift, log_scale = _shift_and_log_scale(h)
        return (second + shift) * log_scale.exp(), log_scale.flatten(1).sum(1)

    def _moved_back(self, second: Tensor, h: Tensor) -> Tensor:
        """x_2 of y_2."""
        if self.kind == "additive":
            return second - h
        shift, log_scale = _shift_and_log_scale(h)
        return second * torch.exp(-log_scale) - shift


def _shift_and_log_scale(h: Tensor) -> tuple[Tensor, Tensor]:
    return h[:, 0::2], F.logsigmoid(h[:, 1::2] + 2)
