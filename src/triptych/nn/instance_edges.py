"""The boundaries of the objects in an instance map, as pix2pixHD's networks see them (Wang et al. 2018, arXiv 1711.11585)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Num
from torch import Tensor


def instance_edges(instances: Num[Tensor, "b 1 h w"]) -> Float[Tensor, "b 1 h w"]:
    """1 where a pixel differs from the one to its left or right, above or below, else 0 (section 3.3); as float32."""
    edges = torch.zeros_like(instances, dtype=torch.bool)
    across, down = instances[..., 1:] != instances[..., :-1], instances[..., 1:, :] != instances[..., :-1, :]
    edges[..., 1:] |= across
    edges[..., :-1] |= across
    edges[..., 1:, :] |= down
    edges[..., :-1, :] |= down
    return edges.float()
