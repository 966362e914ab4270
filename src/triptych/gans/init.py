"""Initial weights of the GANs' networks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from triptych.core.config import Config, config
from triptych.gans.weight_norms import find_singular_vectors

_KINDS_OF_LAYER = ("Conv", "Linear", "Embedding")


@config
class InitConfig(Config):
    """How the weights of convolutions, linear layers and embeddings are drawn."""

    kind: Literal["xavier", "xavier_uniform", "kaiming", "orthogonal", "normal", "none"] = "xavier"
    "xavier, kaiming and normal draw from normal distributions; none: PyTorch's own initial weights."
    gain: float = 0.02
    "Factor of the weights; with normal their standard deviation."
    bias: Literal["zero", "normal", "none"] = "zero"
    "Biases: 0, drawn from a normal distribution, or PyTorch's own."
    bias_gain: float = 0.5
    "Standard deviation of normal biases."

    def validate(self) -> None:
        self.require(0 < self.gain < math.inf, "gain", "a positive number")
        self.require(0 < self.bias_gain < math.inf, "bias_gain", "a positive number")


@torch.no_grad()
def initialize(module: nn.Module, *, settings: InitConfig) -> None:
    """Draws the weights anew, from PyTorch's global generator, of all layers inside whose class is named Conv, Linear or Embedding.

    The weight that a layer applies has the values drawn, with spectral norm divided by their largest singular value; norms are left
    alone. xavier: Glorot and Bengio 2010; kaiming: He et al. 2015 (arXiv 1502.01852), by the number of inputs; orthogonal: Saxe et al.
    2013 (arXiv 1312.6120).
    """
    for layer in module.modules():
        if any(kind in type(layer).__name__ for kind in _KINDS_OF_LAYER):
            _draw(dict(layer.named_parameters(recurse=False)), settings)
    if settings.kind != "none":
        find_singular_vectors(module)


def _draw(parameters: Mapping[str, Tensor], settings: InitConfig) -> None:
    """Draws a layer's own parameters: weight, weight_orig of spectral norm or weight_v and weight_g of weight norm, and bias."""
    weight = next((parameters[name] for name in ("weight", "weight_orig", "weight_v") if name in parameters), None)
    if weight is not None and settings.kind != "none":
        weight.copy_(_drawn(weight, settings))
        if "weight_g" in parameters:
            parameters["weight_g"].copy_(weight.flatten(1).norm(dim=1).view_as(parameters["weight_g"]))
    if weight is not None and "bias" in parameters and settings.bias != "none":
        parameters["bias"].normal_(std=settings.bias_gain) if settings.bias == "normal" else parameters["bias"].zero_()


def _drawn(weight: Tensor, settings: InitConfig) -> Tensor:
    drawn = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)  # so that the memory's order has no say
    if settings.kind == "xavier":
        return nn.init.xavier_normal_(drawn, gain=settings.gain)
    if settings.kind == "xavier_uniform":
        return nn.init.xavier_uniform_(drawn, gain=settings.gain)
    if settings.kind == "kaiming":
        return nn.init.kaiming_normal_(drawn, mode="fan_in").mul_(settings.gain)
    if settings.kind == "orthogonal":
        return nn.init.orthogonal_(drawn, gain=settings.gain)
    return nn.init.normal_(drawn, std=settings.gain)
