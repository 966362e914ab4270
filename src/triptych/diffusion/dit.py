"""DiT: a transformer over patches, told the time and the class by adaptive layer norms.

"Scalable Diffusion Models with Transformers", Peebles and Xie 2023, https://arxiv.org/abs/2212.09748; as SiT (Ma et al. 2024, arXiv
2401.08740) uses it. With c the sum of the embeddings of time and class, a block is

    x <- x + g_1 attention((1 + s_1) norm(x) + b_1),    x <- x + g_2 mlp((1 + s_2) norm(x) + b_2),

where the six vectors are linear in silu(c) and 0 at first: an untrained block changes nothing, and an untrained network gives 0.

Names and shapes are those of SiT's files. What differs: images need not be squares, and the table of positions, which is a formula, is
computed for the size at hand instead of being kept in the state.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.rng import Rng
from triptych.diffusion.blocks import attend, timestep_embedding, zeroed
from triptych.diffusion.unet import ANOTHER_SIZE, NO_LABEL
from triptych.nn.linear import Linear
from triptych.nn.recomputing import recomputed

FREQUENCIES = 256
"""Numbers that a time is embedded in."""
_EPS = 1e-6  # of the layer norms
_MLP_RATIO = 4
_STD = 0.02  # of the first weights of the embeddings


@config
class DiTConfig(Config):
    """A transformer over patches."""

    kind_name: ClassVar = "dit"
    changeable: ClassVar = frozenset(("checkpoint",))

    patch: int = 2
    "Pixels of a patch along a side; the sides of the images are multiples of it."
    width: int = 384
    "Numbers that a patch is described by."
    depth: int = 12
    "Blocks."
    heads: int = 6
    "Attention heads of a block."
    spare_outputs: bool = False
    "Twice as many output channels, the second half of which nothing uses: published SiT has them."
    checkpoint: bool = False
    "Recompute the blocks in the backward pass: much less activation memory for about a third more time."

    def validate(self) -> None:
        for name in ("patch", "width", "depth", "heads"):
            self.require(getattr(self, name) >= 1, name, "at least 1")
        self.require(self.width % 4 == 0, "width", "a multiple of 4, for rows and columns have sines and cosines each")
        self.require(self.width % self.heads == 0, "heads", f"a divisor of {self.width}, the width")

    def shrunk(self) -> Self:
        """Two blocks of width 32 over patches of at most two pixels."""
        return replace(self, patch=min(self.patch, 2), width=32, depth=2, heads=2)


def position_table(height: int, width: int, channels: int) -> Float[Tensor, "1 {height*width} {channels}"]:
    """Sines and cosines of the column and then of the row of each patch, row by row: float64.

    In each half first sin(p f_k), then cos(p f_k), with f_k = 10000^(-k / (channels / 4)).
    """
    quarter = channels // 4
    frequencies = 10_000 ** (-torch.arange(quarter, dtype=torch.float64) / quarter)
    rows, columns = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    halves = []
    for place in (columns, rows):
        angles = place.reshape(-1, 1) * frequencies
        halves += [angles.sin(), angles.cos()]
    return torch.cat(halves, dim=1)[None]


@functools.lru_cache(maxsize=64)
def _kept_table(height: int, width: int, channels: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return position_table(height, width, channels).to(device, dtype)


# What torch.compiler.assume_constant_result does; see core/rng.py.
_kept_table.__wrapped__._dynamo_marked_constant = True  # type: ignore[attr-defined]


class _Embedder(nn.Module):
    """An MLP of the sinusoids of a number; keys mlp.0, mlp.2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.ModuleDict({"0": Linear(FREQUENCIES, width), "2": Linear(width, width)})
        for layer in self.mlp.values():
            nn.init.normal_(layer.weight, std=_STD)  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, number: Shaped[Tensor, " b"]) -> Float[Tensor, "b d"]:
        return self.mlp["2"](F.silu(self.mlp["0"](timestep_embedding(number, FREQUENCIES))))


class _LabelTable(nn.Module):
    """A row for each class, and a last one for none; key embedding_table."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(num_classes + 1, width)
        nn.init.normal_(self.embedding_table.weight, std=_STD)

    def forward(self, labels: Int[Tensor, " b"]) -> Float[Tensor, "b d"]:
        return self.embedding_table(torch.where(labels == NO_LABEL, self.embedding_table.num_embeddings - 1, labels))


def _linear(inputs: int, outputs: int) -> Linear:
    """A layer with the published first weights."""
    layer = Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _normalised(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """(1 + scale) norm(x) + shift of (b, n, d) by vectors (b, d)."""
    return F.layer_norm(x, x.shape[-1:], eps=_EPS) * (1 + scale[:, None]) + shift[:, None]


class Attention(nn.Module):
    """Self-attention over patches; keys qkv, whose rows are counted (q, k, v; heads; channels), and proj."""

    def __init__(self, width: int, *, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = _linear(width, 3 * width), _linear(width, width)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(attend(q, k, v).transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    """Attention and an MLP, each behind an adaptive norm and a gate; keys attn, mlp.{fc1,fc2}, adaLN_modulation.1."""

    def __init__(self, width: int, *, heads: int) -> None:
        super().__init__()
        self.attn = Attention(width, heads=heads)
        self.mlp = nn.ModuleDict({"fc1": _linear(width, _MLP_RATIO * width), "fc2": _linear(_MLP_RATIO * width, width)})
        self.adaLN_modulation = nn.ModuleDict({"1": zeroed(Linear(width, 6 * width))})

    def forward(self, x: Float[Tensor, "b n d"], told: Float[Tensor, "b d"]) -> Float[Tensor, "b n d"]:
        """x, changed. `told`: silu(c)."""
        with torch.autocast(x.device.type, enabled=False):
            shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = self.adaLN_modulation["1"](told).chunk(6, dim=1)
        x = x + gate_1[:, None] * self.attn(_normalised(x, shift_1, scale_1))
        hidden = F.gelu(self.mlp["fc1"](_normalised(x, shift_2, scale_2)), approximate="tanh")
        return x + gate_2[:, None] * self.mlp["fc2"](hidden)


class _Final(nn.Module):
    """The pixels of each patch; keys linear, adaLN_modulation.1."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.linear = zeroed(Linear(width, outputs))
        self.adaLN_modulation = nn.ModuleDict({"1": zeroed(Linear(width, 2 * width))})

    def forward(self, x: Float[Tensor, "b n d"], told: Float[Tensor, "b d"]) -> Float[Tensor, "b n o"]:
        shift, scale = self.adaLN_modulation["1"](told).chunk(2, dim=1)
        return self.linear(_normalised(x, shift, scale))


class DiT(nn.Module):
    """The network of a DiTConfig for images of `in_channels`; an untrained one gives exactly 0.

    Keys: x_embedder.proj, t_embedder.mlp, y_embedder.embedding_table, blocks.N, final_layer; with `spans` also span_embedder.mlp.
    """

    def __init__(
        self,
        network: DiTConfig,
        *,
        image_size: int | tuple[int, int],
        in_channels: int,
        out_channels: int,
        num_classes: int | None = None,
        spans: bool = False,
    ) -> None:
        super().__init__()
        sides = (image_size, image_size) if isinstance(image_size, int) else image_size
        for side in sides:
            if side % network.patch:
                reason = f"got {network.patch} for images of {' x '.join(map(str, sides))} pixels, expected a divisor of both sides"
                raise ConfigError("patch", f"{reason}; change it, or give {ANOTHER_SIZE}")
        self.config, self.out_channels, self.num_labels = network, out_channels, num_classes
        self.image_size, self.in_channels = sides, in_channels
        width, self._outputs = network.width, out_channels * (2 if network.spare_outputs else 1)
        patches = nn.Conv2d(in_channels, width, network.patch, stride=network.patch)
        nn.init.xavier_uniform_(patches.weight.view(width, -1))
        nn.init.zeros_(patches.bias)  # type: ignore[arg-type]
        self.x_embedder = nn.ModuleDict({"proj": patches})
        self.t_embedder = _Embedder(width)
        if spans:
            self.span_embedder = _Embedder(width)
        self.spans = spans
        if num_classes is not None:
            self.y_embedder = _LabelTable(num_classes, width)
        self.blocks = nn.ModuleList(Block(width, heads=network.heads) for _ in range(network.depth))
        self.final_layer = _Final(width, network.patch**2 * self._outputs)

    def forward(
        self,
        x: Float[Tensor, "b c h w"],
        t: Shaped[Tensor, " b"],
        y: Int[Tensor, " b"] | None = None,
        rng: Rng | None = None,
        span: Shaped[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b o h w"]:
        """The output of `out_channels` channels for images whose sides the patch divides.

        `t`: times. `y`: labels, exactly when the network has classes; NO_LABEL for a sample without. `span`: another
        time, exactly for a network of `spans`. `rng` is not asked, for there is no dropout.
        """
        told = self._told(t, y, span)
        h, w, p = x.shape[2], x.shape[3], self.config.patch
        rows, columns = h // p, w // p
        tokens = self.x_embedder["proj"](x).flatten(2).transpose(1, 2)
        tokens = tokens + _kept_table(rows, columns, self.config.width, x.device, x.dtype)
        for block in self.blocks:
            tokens = recomputed(block, tokens, told, when=self.config.checkpoint)
        with torch.autocast(x.device.type, enabled=False):
            patches = self.final_layer(tokens.to(x.dtype), told)
        patches = patches.view(-1, rows, columns, p, p, self._outputs)
        return patches[..., : self.out_channels].permute(0, 5, 1, 3, 2, 4).reshape(-1, self.out_channels, h, w)

    def _told(self, t: Tensor, y: Tensor | None, span: Tensor | None) -> Tensor:
        """silu(c), float32 or wider: (b, width)."""
        if (y is not None) != (self.num_labels is not None) or (span is not None) != self.spans:
            raise ValueError("labels must be given exactly when the network has classes, and spans when it takes them")
        with torch.autocast(t.device.type, enabled=False):
            c = self.t_embedder(t)
            if span is not None:
                c = c + self.span_embedder(span)
            if y is not None:
                c = c + self.y_embedder(y)
            return F.silu(c)
