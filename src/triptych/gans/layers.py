"""The blocks that all translation networks are made of: convolution, norm and nonlinearity in any order, and residual blocks of them.

The names of all parts (layers.conv, layers.norm, conv_block_0, conv_block_1, conv_block_s) are those of published weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from triptych.gans.norms import NO_NORM, AnyCondition, AnyNorm, ConditionalNorm, build_norm
from triptych.gans.weight_norms import Beside, Conv2d, Linear, WeightNorm
from triptych.nn.enlarging import Border
from triptych.nn.one_hot import OneHot
from triptych.nn.resample import enlarged

Nonlinearity = Literal["none", "relu", "leakyrelu", "tanh"]
BlockOrder = Literal["CNACNA", "CNACN", "NACNAC"]

SLOPE = 0.2
"""Of a leaky ReLU below zero."""


@dataclass(frozen=True)
class BlockOptions:
    """What the blocks of a network share."""

    norm: AnyNorm = NO_NORM
    nonlinearity: Nonlinearity = "none"
    weight_norm: WeightNorm = "none"
    padding_mode: Border = "zeros"


PLAIN = BlockOptions()


class _Block(nn.Module):
    """A layer, a norm and a nonlinearity in the order of a string of C, N and A; those that there are stand in `layers`."""

    def __init__(self, layer: nn.Module, norm: nn.Module | None, nonlinearity: Nonlinearity, order: str) -> None:
        super().__init__()
        if len(set(order)) != len(order) or not set("C") <= set(order) <= set("CNA"):
            raise ValueError(f"got the order {order!r}, expected C (convolution), and N (norm) and A (nonlinearity) at most once")
        parts = {"C": ("conv", layer), "N": ("norm", norm), "A": ("nonlinearity", _NONLINEARITIES[nonlinearity]())}
        self.layers = nn.ModuleDict({name: part for name, part in (parts[letter] for letter in order) if part is not None})
        self._own_input = "nonlinearity" in list(self.layers)[1:]
        "What the nonlinearity takes was made for it alone, so that it may write its result there."

    def forward(self, x: Float[Tensor, "b ..."] | OneHot | Beside, *conditions: AnyCondition) -> Float[Tensor, "b ..."]:
        """The block's output. `conditions`: what an adaptive norm takes; other norms ignore it."""
        y: Any = x
        for layer in self.layers.values():
            if isinstance(layer, nn.ReLU | nn.LeakyReLU) and not torch.compiler.is_compiling():  # which decides that itself
                layer.inplace = self._own_input and not y._is_view()  # in a view, autograd would copy all that is seen by it
            y = layer(y, *conditions) if isinstance(layer, ConditionalNorm) else layer(y)
        return y


def _nothing() -> None:
    return None


_NONLINEARITIES = {"none": _nothing, "relu": nn.ReLU, "leakyrelu": lambda: nn.LeakyReLU(SLOPE), "tanh": nn.Tanh}


class ConvBlock(_Block):
    """A convolution with norm and nonlinearity.

    `padding`: None keeps the size of an odd kernel, (k - 1) // 2. `enlarges`: the convolution is of every pixel as a square of four.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: int | None = None,
        bias: bool = True,
        order: str = "CNA",
        options: BlockOptions = PLAIN,
        enlarges: bool = False,
    ) -> None:
        conv = Conv2d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=(kernel_size - 1) // 2 if padding is None else padding,
            bias=bias,
            padding_mode=options.padding_mode,
            weight_norm=options.weight_norm,
            enlarges=enlarges,
        )
        norm = build_norm(options.norm, channels_before_norm(order, in_channels, out_channels)) if "N" in order else None
        super().__init__(conv, norm, options.nonlinearity, order)


class LinearBlock(_Block):
    """A linear layer with norm and nonlinearity, for vectors (b, c); its key is layers.conv as well."""

    def __init__(
        self, in_channels: int, out_channels: int, *, bias: bool = True, order: str = "CNA", options: BlockOptions = PLAIN
    ) -> None:
        linear = Linear(in_channels, out_channels, bias=bias, weight_norm=options.weight_norm)
        norm = build_norm(options.norm, channels_before_norm(order, in_channels, out_channels), dims=0) if "N" in order else None
        super().__init__(linear, norm, options.nonlinearity, order)


def channels_before_norm(order: str, in_channels: int, out_channels: int) -> int:
    """The channels that the norm of a block sees: the input's where it comes before the convolution."""
    return in_channels if order.find("N") < order.find("C") else out_channels


class ResBlock(nn.Module):
    """shortcut(x) + block_1(block_0(x)).

    `order` names the parts of both blocks: CNACNA ends with norm and nonlinearity, CNACN with the norm, NACNAC begins with them. The
    shortcut is a 1x1 convolution where the number of channels changes; it has the norm, and the nonlinearity where
    `shortcut_nonlinearity`. `bias`: of block_0, block_1 and the shortcut. `enlarges`: every pixel becomes a square of four, between the
    two blocks and before the shortcut; these must begin with their convolution.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        order: BlockOrder = "CNACNA",
        bias: tuple[bool, bool, bool] = (True, True, True),
        shortcut_nonlinearity: bool = False,
        options: BlockOptions = PLAIN,
        enlarges: bool = False,
    ) -> None:
        super().__init__()
        if enlarges and order == "NACNAC":
            raise ValueError(f"got the order {order!r} for a block that doubles the size, expected one that begins with a convolution")
        self.enlarges = enlarges
        hidden, first, rest = min(in_channels, out_channels), order[:3], order[3:]
        self.conv_block_0 = ConvBlock(in_channels, hidden, kernel_size, bias=bias[0], order=first, options=options)
        self.conv_block_1 = ConvBlock(hidden, out_channels, kernel_size, bias=bias[1], order=rest, options=options, enlarges=enlarges)
        if in_channels != out_channels:
            short = first if shortcut_nonlinearity else first.replace("A", "")
            self.conv_block_s = ConvBlock(in_channels, out_channels, 1, bias=bias[2], order=short, options=options, enlarges=enlarges)
        else:
            self.conv_block_s = None

    def forward(self, x: Float[Tensor, "b c h w"], *conditions: AnyCondition) -> Float[Tensor, "b d _ _"]:
        """The block's output; `conditions`: what adaptive norms take."""
        residual = self.conv_block_1(self.conv_block_0(x, *conditions), *conditions)
        if self.conv_block_s is not None:
            return residual + self.conv_block_s(x, *conditions)
        return residual + (enlarged(x) if self.enlarges else x)


def doubling(in_channels: int, out_channels: int, kernel_size: int, *, options: BlockOptions) -> list[nn.Module]:
    """The layers that double the size. Published weights have a number for the doubling, which the convolution does here."""
    return [nn.Identity(), ConvBlock(in_channels, out_channels, kernel_size, options=options, enlarges=True)]


class Wrapped(nn.Module):
    """A stack under a name of its own, as in published weights: keys model.{i}."""

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.model = Stack(blocks)

    def forward(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
        """The last block's output."""
        return self.model(x)


class Stack(nn.ModuleList):
    """Blocks in a row, with the numbers that they have in published weights; conditions go to those that take them."""

    def forward(self, x: Float[Tensor, "b ..."], *conditions: AnyCondition) -> Float[Tensor, "b ..."]:
        """The last block's output."""
        for block in self:
            x = block(x, *conditions) if isinstance(block, _Block | ResBlock) else block(x)
        return x
