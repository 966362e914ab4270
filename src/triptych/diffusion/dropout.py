"""Dropout of feature maps by masks that have names.

Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting".
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor

from triptych.core.rng import MASK_WORDS, Rng


@runtime_checkable
class DroppingBlock(Protocol):
    """A block of a network that drops activations in training."""

    training: bool
    dropout: float
    "The probability with which an activation is dropped."
    name: str
    "Of the block in its network."


@runtime_checkable
class DroppingNetwork(Protocol):
    """A network of such blocks."""

    training: bool
    masks: list[str]
    "`mask_name` of each block that drops activations."


def mask_name(block: str) -> str:
    """The name by which the block of that name draws its mask."""
    return f"dropout/{block}"


def masks_ahead(network: DroppingNetwork, rng: Rng | None) -> Rng | None:
    """The generator, which has drawn the keys of all masks of the network, in one go, where that is in training."""
    return rng.ahead(network.masks, MASK_WORDS) if network.training and rng is not None else rng


def kept(block: DroppingBlock, h: Float[Tensor, "b c h w"], rng: Rng | None) -> Bool[Tensor, "b c h w"] | None:
    """Which activations of h the block keeps; None: all. Raises ValueError where it drops some and has no `rng` to draw them."""
    if not block.training or block.dropout == 0:
        return None
    if rng is None:
        raise ValueError("a network with dropout needs an rng in training mode")
    channels, height, width = h.shape[1:]
    return rng.keep(mask_name(block.name), height, width, channels, drop=block.dropout).permute(0, 3, 1, 2)
