"""Frozen networks: functions that ask for their tensors as they go, by name and shape.

So the same lines compute a network and tell what it needs. Its weights come from a file that the user has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.core.errors import CheckpointError
from triptych.nn.convolution import fast_convolution
from triptych.nn.linear import linear

Layers: TypeAlias = Iterator[tuple[str, Tensor]]
Take: TypeAlias = Callable[[str, tuple[int, ...]], Tensor]


class Operations:
    """The layers that have weights; `take` gives a tensor for its name and shape."""

    def __init__(self, take: Take) -> None:
        self.take = take

    def conv(
        self,
        x: Tensor,
        name: str,
        channels: int,
        kernel: int | tuple[int, int],
        *,
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        groups: int = 1,
        bias: bool = True,
    ) -> Tensor:
        """A convolution to so many channels."""
        sides = (kernel, kernel) if isinstance(kernel, int) else kernel
        weight = self.take(f"{name}.weight", (channels, x.shape[1] // groups, *sides))
        offset = self.take(f"{name}.bias", (channels,)) if bias else None
        if groups == 1 and isinstance(padding, int):
            return fast_convolution(x, weight, offset, stride=stride, padding=padding)
        return F.conv2d(x, weight, offset, stride, padding, groups=groups)

    def norm(self, x: Tensor, name: str, *, eps: float = 1e-5) -> Tensor:
        """Batch norm with the running statistics."""
        parts = ("running_mean", "running_var", "weight", "bias")
        mean, variance, weight, bias = (self.take(f"{name}.{part}", (x.shape[1],)) for part in parts)
        return F.batch_norm(x, mean, variance, weight, bias, training=False, eps=eps)

    def linear(self, x: Tensor, name: str, channels: int) -> Tensor:
        """A linear map of the last axis, with a bias."""
        return linear(x, self.take(f"{name}.weight", (channels, x.shape[-1])), self.take(f"{name}.bias", (channels,)))


def bordered(x: Tensor, kernel: int, *, stride: int) -> Tensor:
    """Zeros around x for a convolution to ceil(size / stride) pixels, as TensorFlow's "same" puts them: the odd one at the end."""
    left_right, top_bottom = (
        (total // 2, total - total // 2) for total in (kernel - 1 - (side - 1) % stride for side in (x.shape[3], x.shape[2]))
    )
    return F.pad(x, (*left_right, *top_bottom))


Run: TypeAlias = Callable[[Operations, Tensor], Layers]
"""A network: its layers by name, in order, of prepared images (b, c, h, w)."""


def run_layers(run: Run, layers: Collection[str] | None, x: Tensor, take: Take) -> dict[str, Tensor]:
    """What `layers` (None: all) give, by name; what comes after the last of them is not computed."""
    found: dict[str, Tensor] = {}
    for name, feature in run(Operations(take), x):
        if layers is None or name in layers:
            found[name] = feature
        if layers is not None and len(found) == len(layers):
            break
    return found


@functools.cache
def traced(run: Run, layers: tuple[str, ...] | None, size: tuple[int, int, int]) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """The shapes of the tensors that a network asks for until it has come to `layers` (None: all), and the layers by then.

    Of images of `size` (channels, height, width); nothing is computed.
    """
    shapes: dict[str, tuple[int, ...]] = {}

    def take(name: str, shape: tuple[int, ...]) -> Tensor:
        shapes[name] = shape
        return torch.empty(shape, device="cpu")

    # No images rather than the meta device, some of whose operations import PyTorch's compiler.
    found = run_layers(run, layers, torch.empty(0, *size, device="cpu"), take)
    return shapes, tuple(found)


class FrozenNetwork(nn.Module):
    """A network that never learns: it has no parameters, and its weights are buffers that are not saved.

    They move with the model, and no checkpoint, average or optimizer knows them. `load` comes before the first call.
    """

    def __init__(self, run: Run, layers: tuple[str, ...]) -> None:
        super().__init__()
        self.layers = layers
        self.loaded = False
        self._run = run
        with torch.device("cpu"):  # not saved, so never without values
            self.register_buffer("place", torch.empty(0), persistent=False)

    def take_tensors(self, weights: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], *, source: str) -> None:
        """Copies, on the device and in the type of the network, the tensors of these names and shapes; others may be there.

        Raises CheckpointError for one that is missing, or has another shape or type or a value that is not finite.
        """
        for name, shape in shapes.items():
            tensor = _checked(weights, name, shape, source=source)
            layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
            copy = tensor.detach().to(self.get_buffer("place"), copy=True).contiguous(memory_format=layout)
            self.register_buffer(_buffer(name), copy, persistent=False)
        self.loaded = True

    def found(self, x: Tensor) -> dict[str, Tensor]:
        """What the layers give of prepared images, by name."""
        assert self.loaded, "weights come before the first call"
        return run_layers(self._run, self.layers, x, lambda name, _: self.get_buffer(_buffer(name)))


def _buffer(name: str) -> str:
    """A buffer's name, which must have no dot and be none of the module's attributes."""
    return "frozen_" + name.replace(".", "_")


def _checked(weights: Mapping[str, Tensor], name: str, shape: tuple[int, ...], *, source: str) -> Tensor:
    tensor = weights.get(name)
    if not isinstance(tensor, Tensor):
        raise CheckpointError(f"cannot use {source}: there is no {name} (they begin with {next(iter(weights), 'nothing')})")
    if tuple(tensor.shape) != shape:
        raise CheckpointError(f"cannot use {source}: {name} has the shape {list(tensor.shape)}, expected {list(shape)}")
    if not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
        raise CheckpointError(f"cannot use {source}: {name} has values that are not finite numbers of floating point")
    return tensor
