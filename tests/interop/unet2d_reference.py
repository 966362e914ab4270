"""diffusers' UNet2DModel as plain functions of a configuration and tensors by name, as its documentation and files have them.

It reads what an export wrote and nothing of ours, so that names, layouts and settings can be held against the network without diffusers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def outputs(config: Mapping[str, Any], tensors: Mapping[str, Tensor], x: Tensor, t: Tensor, y: Tensor | None) -> Tensor:
    """What the network says of noisy images (b, c, h, w) at timesteps (b,), given classes (b,) where it has any."""
    assert config["act_fn"] == "silu" and config["time_embedding_type"] == "positional" and not config["center_input_sample"]
    return _UNet2D(config, tensors).forward(x, t, y)


class _UNet2D:
    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.config, self.tensors, self.unread = config, tensors, set(tensors)

    def tensor(self, name: str) -> Tensor:
        self.unread.discard(name)
        return self.tensors[name]

    def conv(self, name: str, x: Tensor, **settings: int) -> Tensor:
        weight = self.tensor(f"{name}.weight")
        return F.conv2d(x, weight, self.tensor(f"{name}.bias"), **{"padding": weight.shape[-1] // 2, **settings})

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensor(f"{name}.weight"), self.tensor(f"{name}.bias"))

    def norm(self, name: str, x: Tensor, groups: int) -> Tensor:
        return F.group_norm(x, groups, self.tensor(f"{name}.weight"), self.tensor(f"{name}.bias"), self.config["norm_eps"])

    def embedding(self, t: Tensor, y: Tensor | None) -> Tensor:
        width = self.config["block_out_channels"][0]
        rates = torch.exp(-math.log(10_000) * torch.arange(width // 2).double() / (width // 2 - self.config["freq_shift"]))
        angles = t[:, None].double() * rates
        parts = (angles.cos(), angles.sin()) if self.config["flip_sin_to_cos"] else (angles.sin(), angles.cos())
        told = self.linear("time_embedding.linear_2", F.silu(self.linear("time_embedding.linear_1", torch.cat(parts, dim=1))))
        return told if y is None else told + self.tensor("class_embedding.weight")[y]

    def resnet(self, name: str, x: Tensor, told: Tensor, resample: Any = lambda images: images) -> Tensor:
        groups = self.config["norm_num_groups"]
        hidden = self.conv(f"{name}.conv1", resample(F.silu(self.norm(f"{name}.norm1", x, groups))))
        moved = self.linear(f"{name}.time_emb_proj", F.silu(told))[:, :, None, None]
        if self.config["resnet_time_scale_shift"] == "default":
            hidden = self.norm(f"{name}.norm2", hidden + moved, groups)
        else:
            scale, shift = moved.chunk(2, dim=1)
            hidden = self.norm(f"{name}.norm2", hidden, groups) * (1 + scale) + shift
        hidden, kept = self.conv(f"{name}.conv2", F.silu(hidden)), resample(x)
        return hidden + (self.conv(f"{name}.conv_shortcut", kept) if f"{name}.conv_shortcut.weight" in self.tensors else kept)

    def attention(self, name: str, x: Tensor) -> Tensor:
        channels = x.shape[1]
        width = self.config["attention_head_dim"] or channels
        flat = self.norm(f"{name}.group_norm", x.flatten(2), self.config["attn_norm_num_groups"]).mT
        q, k, v = (self.linear(f"{name}.to_{part}", flat).unflatten(2, (channels // width, width)).transpose(1, 2) for part in "qkv")
        mixed = torch.softmax(q @ k.mT / math.sqrt(width), dim=-1) @ v
        return x + self.linear(f"{name}.to_out.0", mixed.transpose(1, 2).flatten(2)).mT.unflatten(2, x.shape[2:])

    def resampled(self, name: str, x: Tensor, told: Tensor, kind: str) -> Tensor:
        """To the next level: through a residual block, or a convolution."""
        down = name.endswith("downsamplers.0")
        if "Resnet" in kind or ("Attn" in kind and self.config["downsample_type" if down else "upsample_type"] == "resnet"):
            return self.resnet(name, x, told, (lambda images: F.avg_pool2d(images, 2)) if down else _doubled)
        if down:
            return self.conv(f"{name}.conv", x, stride=2, padding=self.config["downsample_padding"])
        return self.conv(f"{name}.conv", _doubled(x))

    def forward(self, x: Tensor, t: Tensor, y: Tensor | None) -> Tensor:
        told, h, layers = self.embedding(t, y), self.conv("conv_in", x), self.config["layers_per_block"]
        skips, levels = [h], len(self.config["block_out_channels"])
        for level, kind in enumerate(self.config["down_block_types"]):
            block = f"down_blocks.{level}"
            for layer in range(layers):
                h = self.resnet(f"{block}.resnets.{layer}", h, told)
                h = self.attention(f"{block}.attentions.{layer}", h) if "Attn" in kind else h
                skips.append(h)
            if level < levels - 1:
                h = self.resampled(f"{block}.downsamplers.0", h, told, kind)
                skips.append(h)
        h = self.resnet("mid_block.resnets.0", h, told)
        h = self.attention("mid_block.attentions.0", h) if self.config["add_attention"] else h
        h = self.resnet("mid_block.resnets.1", h, told) / self.config["mid_block_scale_factor"]
        for level, kind in enumerate(self.config["up_block_types"]):
            block = f"up_blocks.{level}"
            for layer in range(layers + 1):
                h = self.resnet(f"{block}.resnets.{layer}", torch.cat((h, skips.pop()), dim=1), told)
                h = self.attention(f"{block}.attentions.{layer}", h) if "Attn" in kind else h
            if level < levels - 1:
                h = self.resampled(f"{block}.upsamplers.0", h, told, kind)
        made = self.conv("conv_out", F.silu(self.norm("conv_norm_out", h, self.config["norm_num_groups"])))
        assert not self.unread, f"not of UNet2DModel: {sorted(self.unread)}"
        return made


def _doubled(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="nearest")
