"""Batch norm whose running statistics can be left alone, and whose batch may be that of all processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from triptych.core.errors import ConfigError
from triptych.nn.collectives import summed, world_size
from triptych.nn.precision import widened


class _BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Keys as those of torch.nn's. `synced`: statistics of the batches of all processes, else of each one's own."""

    def __init__(self, channels: int, *, eps: float = 1e-5, affine: bool = True, synced: bool = False) -> None:
        super().__init__(channels, eps=eps, affine=affine)
        self.synced = synced
        self.frozen = False
        "Whether training leaves the running statistics alone."

    def forward(self, input: Float[Tensor, "b c *d"]) -> Float[Tensor, "b c *d"]:
        """The normalised input."""
        if self.training and self.synced and world_size() > 1:
            return self._over_processes(input)
        if self.training and input.numel() == input.shape[1]:
            raise ConfigError(
                "train.batch_size", "got one image, of which batch norm sees one number a channel; give 2 or more, or larger images"
            )
        if self.training and self.frozen:
            return F.batch_norm(input, None, None, self.weight, self.bias, training=True, eps=self.eps)
        return super().forward(input)

    def _over_processes(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            x = widened(input)
            axes = [axis for axis in range(x.ndim) if axis != 1]
            own_variance, own_mean = torch.var_mean(x, axes, correction=0)
            own_count = x.numel() / x.shape[1]
            count = summed(own_mean.new_tensor([own_count]))
            mean = summed(own_count * own_mean) / count
            # The spread around the common mean: sums of squares alone would lose it where the mean is large.
            variance = summed(own_count * (own_variance + (own_mean - mean).square())) / count
            if not self.frozen:
                self._remember(mean.detach(), variance.detach() * count / (count - 1))
            scale, shift = torch.rsqrt(variance + self.eps), -mean
            shape = [1, -1, *[1] * (x.ndim - 2)]
            out = (x + shift.view(shape)) * scale.view(shape)
            if self.weight is not None:
                out = out * self.weight.view(shape) + self.bias.view(shape)
            return out.to(input.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)


class BatchNorm2d(_BatchNorm, nn.BatchNorm2d):
    """Of (b, c, h, w)."""


class BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    """Of (b, c)."""


def batch_norms(module: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The batch norms inside, torch.nn's too."""
    return [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Within it the batch norms of `module` use the statistics of the batch, in training, and keep their running ones as they are."""
    layers = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
    before = [layer.frozen for layer in layers]
    for layer in layers:
        layer.frozen = True
    try:
        yield
    finally:
        for layer, frozen in zip(layers, before, strict=True):
            layer.frozen = frozen


@contextmanager
def statistics_of_all(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Within it those of the layers that are batch norms of ours take statistics of the batches of all processes."""
    ours = [layer for layer in layers if isinstance(layer, _BatchNorm)]
    before = [layer.synced for layer in ours]
    for layer in ours:
        layer.synced = True
    try:
        yield
    finally:
        for layer, synced in zip(ours, before, strict=True):
            layer.synced = synced
