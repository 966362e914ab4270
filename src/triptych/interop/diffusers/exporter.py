"""A diffusion model as a folder of the library diffusers: https://github.com/huggingface/diffusers. For autoencoders see `autoencoder`.

`UNet2DModel.from_pretrained(folder, subfolder="unet")` loads the network, `DDPMPipeline.from_pretrained(folder)` draws from it where it
is told no class. diffusers is not needed to write one. Its blocks hold a level each: residual blocks, their attention, and what changes
the resolution after them; the scheduler has the diffusion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from triptych.core.errors import ConfigError
from triptych.core.model import Model
from triptych.diffusion.adm import ADM
from triptych.diffusion.blocks import SelfAttention, split_rows
from triptych.diffusion.gaussian import RESCALED_TO, GaussianConfig
from triptych.diffusion.model import SamplingConfig
from triptych.diffusion.norm import NUM_GROUPS
from triptych.diffusion.unet import UNet
from triptych.gans.kl_autoencoder import KLAutoencoderConfig
from triptych.interop.diffusers import autoencoder
from triptych.interop.diffusers.folder import VERSION, check_name, write_folder
from triptych.interop.programs import Exported, ExportRequest, latent_notes

_UNET, _WEIGHTS = "unet/config.json", "unet/diffusion_pytorch_model.safetensors"
_SCHEDULER, _INDEX = "scheduler/scheduler_config.json", "model_index.json"
_RESIDUAL = {
    "in_layers.0": "norm1",
    "in_layers.2": "conv1",
    "emb_layers.1": "time_emb_proj",
    "out_layers.0": "norm2",
    "out_layers.3": "conv2",
    "skip_connection": "conv_shortcut",
}
_FIXED = {
    "time_embed.0": "time_embedding.linear_1",
    "time_embed.2": "time_embedding.linear_2",
    "label_emb": "class_embedding",
    "input_blocks.0.0": "conv_in",
    "out.0": "conv_norm_out",
    "out.2": "conv_out",
}
_PREDICTIONS = {"epsilon": "epsilon", "x0": "sample", "v": "v_prediction"}


@dataclass(frozen=True)
class DiffusersModel:
    """What the folder holds."""

    unet: dict[str, Any]
    "unet/config.json."
    scheduler: dict[str, Any]
    "scheduler/scheduler_config.json."
    index: dict[str, Any] | None
    "model_index.json; None: the pipeline could not draw from it."
    tensors: dict[str, Tensor]
    notes: list[str]
    "What the user has to know."


def exported(request: ExportRequest) -> Exported:
    """Writes the folder; an earlier export is replaced. Raises as `programs.exported` does."""
    check_name(request.out)
    if isinstance(request.config, KLAutoencoderConfig):
        return autoencoder.exported(request)
    layout = to_diffusers(request.load(), drop_variance=request.drop_variance)
    if request.spec.latents is not None:
        layout = replace(layout, index=None)  # its pipeline would show the latents
    write_diffusers(layout, request.out)
    return Exported((request.out,), None, (*layout.notes, *latent_notes(request.spec)))


def to_diffusers(model: Model, *, drop_variance: bool = False) -> DiffusersModel:
    """The model in diffusers' layout, with `drop_variance` without a learned variance; a ConfigError names all that diffusers lacks."""
    if not isinstance(model, ADM):
        raise ConfigError("", f"diffusers cannot express this model: its UNet2DModel has no counterpart of {type(model).__name__}")
    if not isinstance(model.network, UNet):
        raise ConfigError("", "diffusers cannot express this model: its transformers embed the time by other frequencies")
    diffusion = model.config.diffusion
    if drop_variance and not diffusion.learns_variance:
        raise ConfigError("drop_variance", "this model learns no variance: it has no output channels to drop")
    refused = list(_refused(model, drop_variance=drop_variance))
    if refused:
        raise ConfigError("", "diffusers cannot express this model: " + "; ".join(refused))
    tensors = _tensors(model.network)
    if drop_variance:
        half = len(tensors["conv_out.bias"]) // 2
        tensors |= {name: tensors[name][:half].clone() for name in ("conv_out.weight", "conv_out.bias")}
    head = {"_diffusers_version": VERSION}
    index = {"_class_name": "DDPMPipeline", **head, "scheduler": ["diffusers", "DDPMScheduler"], "unet": ["diffusers", "UNet2DModel"]}
    rescaled = diffusion.time_unit != 1
    return DiffusersModel(
        unet={"_class_name": "UNet2DModel", **head, **_unet_config(model, outputs=len(tensors["conv_out.bias"]))},
        scheduler={"_class_name": "DDPMScheduler", **head, **_scheduler(diffusion, model.config.sampling, drop_variance=drop_variance)},
        index=None if rescaled else index,
        tensors=tensors,
        notes=list(_notes(model, drop_variance=drop_variance)),
    )


def write_diffusers(layout: DiffusersModel, folder: Path) -> None:
    """Writes the folder, whole or not at all; an earlier export is replaced, and ConfigError raised where other files are in the way."""
    documents = {_UNET: layout.unet, _SCHEDULER: layout.scheduler} | ({} if layout.index is None else {_INDEX: layout.index})
    write_folder(folder, documents, {_WEIGHTS: layout.tensors}, known=(_UNET, _SCHEDULER, _INDEX, _WEIGHTS), head=_UNET)


def _refused(model: ADM, *, drop_variance: bool) -> Iterator[str]:
    unet = _unet(model)
    network = unet.config
    if not network.conv_resample and not network.resblock_updown:
        yield "model.network.conv_resample: false"
    if unet.levels.widths[0] != network.num_channels:
        yield (
            f"model.network.channel_mult: its first number is not 1 (the timestep is embedded in {network.num_channels} numbers, "
            f"the first level has {unet.levels.widths[0]} channels)"
        )
    if _head_channels(unet) == 0:
        yield "model.network.num_heads: heads of several widths (it has one attention_head_dim; num_head_channels gives that)"
    if model.config.diffusion.variance == "learned" and not drop_variance:
        yield "model.diffusion.variance: learned (its schedulers want the variance, not its logarithm; it can be dropped: drop_variance)"
    if model.config.diffusion.mean not in _PREDICTIONS:
        yield f"model.diffusion.mean: {model.config.diffusion.mean} (its schedulers know {', '.join(_PREDICTIONS)})"


def _unet(model: ADM) -> UNet:
    assert isinstance(model.network, UNet), "a transformer is refused"
    return model.network


def _head_channels(network: UNet) -> int | None:
    """Channels of all attention heads; None: every attention has a single one; 0: neither."""
    layers = [module for module in network.modules() if isinstance(module, SelfAttention)]
    channels = {layer.proj_out.in_channels // layer.heads for layer in layers}
    if len(channels) == 1:
        return channels.pop()
    return None if all(layer.heads == 1 for layer in layers) else 0


def _unet_config(model: ADM, *, outputs: int) -> dict[str, Any]:
    unet = _unet(model)
    network, levels = unet.config, unet.levels
    resampling = "resnet" if network.resblock_updown else "conv"
    plain = {True: ("ResnetDownsampleBlock2D", "ResnetUpsampleBlock2D"), False: ("DownBlock2D", "UpBlock2D")}[network.resblock_updown]
    down = ["AttnDownBlock2D" if there else plain[0] for there in levels.attention]
    up = ["AttnUpBlock2D" if there else plain[1] for there in reversed(levels.attention)]
    return {
        "sample_size": model.image_shape[1],
        "in_channels": model.image_shape[0],
        "out_channels": outputs,
        "center_input_sample": False,
        "time_embedding_type": "positional",
        "freq_shift": 0,
        "flip_sin_to_cos": True,
        "down_block_types": down,
        "mid_block_type": "UNetMidBlock2D",
        "up_block_types": up,
        "block_out_channels": list(levels.widths),
        "layers_per_block": network.num_res_blocks,
        "mid_block_scale_factor": 1,
        "downsample_padding": 1,
        "downsample_type": resampling,
        "upsample_type": resampling,
        "dropout": network.dropout,
        "act_fn": "silu",
        "attention_head_dim": _head_channels(unet),
        "norm_num_groups": NUM_GROUPS,
        "attn_norm_num_groups": NUM_GROUPS,
        "norm_eps": 1e-5,
        "resnet_time_scale_shift": "scale_shift" if network.scale_shift_norm else "default",
        "add_attention": True,
        "class_embed_type": None,
        "num_class_embeds": model.num_classes,
    }


def _scheduler(diffusion: GaussianConfig, sampling: SamplingConfig, *, drop_variance: bool) -> dict[str, Any]:
    betas = diffusion.table()
    return {
        "num_train_timesteps": diffusion.steps,
        "beta_start": float(betas[0]) if diffusion.schedule == "linear" else 1e-4,
        "beta_end": float(betas[-1]) if diffusion.schedule == "linear" else 0.02,
        "beta_schedule": "linear" if diffusion.schedule == "linear" else "squaredcos_cap_v2",
        "trained_betas": None if diffusion.betas is None else list(diffusion.betas),
        "variance_type": "fixed_large" if drop_variance else diffusion.variance,
        "prediction_type": _PREDICTIONS[diffusion.mean],
        "clip_sample": sampling.clip,
        "clip_sample_range": sampling.threshold,
        "timestep_spacing": "linspace",
    }


def _notes(model: ADM, *, drop_variance: bool) -> Iterator[str]:
    diffusion = model.config.diffusion
    if model.num_classes is not None:
        yield "DDPMPipeline gives no class labels: call the network, UNet2DModel, with class_labels"
    if diffusion.time_unit != 1:
        yield (
            f"the network takes t * {RESCALED_TO} / {diffusion.steps}, which no scheduler gives: there is no model_index.json; call "
            "UNet2DModel with that"
        )
    if diffusion.learns_variance and not drop_variance:
        yield "the network has a second half of output channels, for the variance: DDPMScheduler uses it, other schedulers refuse it"
    if model.config.label_dropout:
        yield "UNet2DModel always takes a label: there is no guidance without labels"


def _tensors(network: UNet) -> dict[str, Tensor]:
    """The network's tensors under diffusers' names: float32 copies, contiguous, on the CPU."""
    attention = {name: module for name, module in network.named_modules() if isinstance(module, SelfAttention)}
    order = network.config.attention_order
    tensors: dict[str, Tensor] = {}
    for name, tensor in network.state_dict().items():
        value = tensor.detach().to("cpu", torch.float32, copy=True).contiguous()
        layer, parameter = name.rpartition(".")[::2]
        owner, last = layer.rpartition(".")[::2]
        if owner in attention:
            module, place = attention[owner], _place(owner, network)
            if last == "qkv":
                rows = split_rows(value.flatten(1) if value.ndim == 3 else value, heads=module.heads, order=order)
                tensors |= {f"{place}.to_{part}.{parameter}": row.clone() for part, row in zip("qkv", rows, strict=True)}
            else:
                key = "group_norm" if last == "norm" else "to_out.0"
                tensors[f"{place}.{key}.{parameter}"] = value.flatten(1).clone() if value.ndim == 3 else value
        elif layer in _FIXED:
            tensors[f"{_FIXED[layer]}.{parameter}"] = value
        else:
            tensors[f"{_layer(layer, network)}.{parameter}"] = value
    return tensors


def _layer(layer: str, network: UNet) -> str:
    """The name of a layer of a residual block, or of a convolution that changes the resolution."""
    place, inner = re.fullmatch(r"(\w+\.\d+\.\d+|middle_block\.\d+)\.(.+)", layer).groups()  # type: ignore[union-attr]
    return f"{_place(place, network)}.{_RESIDUAL.get(inner, 'conv')}"


def _place(place: str, network: UNet) -> str:
    """The block of diffusers that corresponds to input_blocks.N.K, middle_block.K or output_blocks.N.K."""
    part, *numbers = place.split(".")
    if part == "middle_block":
        return "mid_block.attentions.0" if numbers == ["1"] else f"mid_block.resnets.{int(numbers[0]) // 2}"
    blocks, index, position = network.config.num_res_blocks, int(numbers[0]), int(numbers[1])
    encoder = part == "input_blocks"
    level, block = divmod(index - 1 if encoder else index, blocks + 1)
    name = f"{'down' if encoder else 'up'}_blocks.{level}"
    if encoder and block == blocks:
        return f"{name}.downsamplers.0"
    stage = getattr(network, part)[index]
    if isinstance(stage[position], SelfAttention):
        return f"{name}.attentions.{block}"
    return f"{name}.resnets.{block}" if position == 0 else f"{name}.upsamplers.0"
