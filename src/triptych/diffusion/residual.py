"""The residual block of ADM (Dhariwal and Nichol 2021, arXiv 2105.05233), as BigGAN's and as DDPM's."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from triptych.core.rng import Rng
from triptych.diffusion.init import zeroed
from triptych.diffusion.norm import GroupNorm, Modulation
from triptych.nn.resample import convolved_enlarged, enlarged, halved

Resampling = Literal["none", "up", "down"]


class ResBlock(nn.Module):
    """skip(x) + conv(dropout(silu(norm(conv(silu(norm(x)))) modulated by the embedding))); the last convolution is 0 at first.

    The embedding scales and shifts the second norm's output (`scale_shift`), or is added before that norm. Parameters are named
    in_layers.{0,2}, emb_layers.1, out_layers.{0,3} and skip_connection, as in guided-diffusion's files.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        embedding: int,
        scale_shift: bool,
        dropout: float = 0.0,
        resampling: Resampling = "none",
        name: str = "",
    ) -> None:
        super().__init__()
        self.dropout, self.scale_shift, self.resampling, self.name = dropout, scale_shift, resampling, name
        self.in_layers = nn.ModuleDict({"0": GroupNorm(in_channels), "2": nn.Conv2d(in_channels, out_channels, 3, padding=1)})
        self.emb_layers = nn.ModuleDict({"1": nn.Linear(embedding, (2 if scale_shift else 1) * out_channels)})
        last = zeroed(nn.Conv2d(out_channels, out_channels, 3, padding=1))
        self.out_layers = nn.ModuleDict({"0": GroupNorm(out_channels), "3": last})
        self.skip_connection = nn.Identity() if in_channels == out_channels else nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Float[Tensor, "b c h w"], embedding: Float[Tensor, "b e"], rng: Rng | None = None) -> Float[Tensor, "b o _ _"]:
        """The block's output. `embedding`: after its SiLU, which all blocks share. `rng` draws the dropout masks, in training."""
        h, first = self.in_layers["0"](x, Modulation(silu=True)), self.in_layers["2"]
        match self.resampling:
            case "none":
                h = first(h)
            case "down":
                h, x = first(halved(h)), halved(x)
            case "up":
                assert isinstance(first, nn.Conv2d)
                h, x = convolved_enlarged(h, first.weight, first.bias), enlarged(x)
        with torch.autocast(x.device.type, enabled=False):
            modulation = self.emb_layers["1"](embedding)
        scale, shift = modulation.chunk(2, dim=1) if self.scale_shift else (None, None)
        if not self.scale_shift:
            h = h + modulation[:, :, None, None].to(h.dtype)
        keep = self._keep(h, rng)
        h = self.out_layers["0"](h, Modulation(scale=scale, shift=shift, silu=True, keep=keep, gain=1 / (1 - self.dropout)))
        return self.skip_connection(x) + self.out_layers["3"](h)

    def _keep(self, h: Tensor, rng: Rng | None) -> Tensor | None:
        if not self.training or self.dropout == 0:
            return None
        if rng is None:
            raise ValueError("a network with dropout needs an rng in training mode")
        channels, height, width = h.shape[1:]
        return rng.keep(f"dropout/{self.name}", height, width, channels, drop=self.dropout).permute(0, 3, 1, 2)
