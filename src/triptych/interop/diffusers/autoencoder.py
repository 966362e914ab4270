"""A KL autoencoder in the layout of diffusers' AutoencoderKL: config.json and diffusion_pytorch_model.safetensors.

`AutoencoderKL.from_pretrained(folder)` loads it. The names of its tensors are those of our networks; files from before version 0.17 have
others in the attention, which are read too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.model import Model, seeded_build
from triptych.core.outline import without_weights
from triptych.core.weight_files import check_fit
from triptych.data.config import AS_STORED, DataConfig
from triptych.gans.discriminators import least_side
from triptych.gans.kl_autoencoder import KLAutoencoder, KLAutoencoderConfig
from triptych.gans.kl_networks import KLNetworksConfig
from triptych.interop.diffusers.folder import VERSION, write_folder
from triptych.interop.programs import Exported, ExportRequest
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig

CLASS = "AutoencoderKL"
CONFIG, WEIGHTS = "config.json", "diffusion_pytorch_model.safetensors"
_GENERATOR = "generator."
_OLDER = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
_EXPECTED: dict[str, Any] = {
    "act_fn": "silu",
    "mid_block_add_attention": True,
    "use_quant_conv": True,
    "use_post_quant_conv": True,
    "shift_factor": None,
    "latents_mean": None,
    "latents_std": None,
}
"""Settings of an AutoencoderKL that have one value here; a file may leave them out."""
_DOWN, _UP = "DownEncoderBlock2D", "UpDecoderBlock2D"


# Out ------------------------------------------------------------------------------------------------------------------


def exported(request: ExportRequest) -> Exported:
    """Writes the folder; an earlier export is replaced. Raises as `programs.exported` does."""
    if request.drop_variance:
        raise ConfigError("drop_variance", "an autoencoder has no output channels to drop; leave it out")
    model = request.load()
    assert isinstance(model, KLAutoencoder)
    document = to_document(model.config, request.spec)
    write_folder(request.out, {CONFIG: document}, {WEIGHTS: to_tensors(model)}, known=(CONFIG, WEIGHTS), head=CONFIG)
    return Exported((request.out,), None, tuple(_notes(model.config, request.spec)))


_SCALING_FACTOR = 0.18215
"""Of a config.json that names none, as Stable Diffusion's does not."""


def to_document(config: KLAutoencoderConfig, spec: DataSpec) -> dict[str, Any]:
    """What config.json holds."""
    network = config.network
    return {
        "_class_name": CLASS,
        "_diffusers_version": VERSION,
        "in_channels": spec.channels,
        "out_channels": spec.channels,
        "down_block_types": [_DOWN] * len(network.widths),
        "up_block_types": [_UP] * len(network.widths),
        "block_out_channels": list(network.widths),
        "layers_per_block": network.num_blocks,
        "latent_channels": network.latent_channels,
        "norm_num_groups": network.num_groups,
        "sample_size": max(spec.height_and_width),  # the side of its tiles, one number: images of the training's size need none
        "scaling_factor": 1.0 if config.scaling_factor is None else config.scaling_factor,
        **_EXPECTED,
    }


def _notes(config: KLAutoencoderConfig, spec: DataSpec) -> Iterator[str]:
    if config.scaling_factor is None:
        why = "model.scaling_factor, 1 / the deviation of the latents, is not set"
        yield f"its scaling_factor is 1: {why} (triptych data encode measures it)"
    height, width = spec.height_and_width
    if height != width:
        yield f"its sample_size, a single number, is the longer side of the {height}x{width} images; diffusers needs it for tiles alone"


def to_tensors(model: Model) -> dict[str, Tensor]:
    """The tensors of encoder and decoder under diffusers' names: float32 copies, contiguous, on the CPU."""
    assert isinstance(model, KLAutoencoder)
    return {name: tensor.detach().float().cpu().clone().contiguous() for name, tensor in model.generator.state_dict().items()}


# In -------------------------------------------------------------------------------------------------------------------


def to_run(document: Mapping[str, Any]) -> tuple[RunConfig, DataSpec]:
    """The run of a config.json, with the settings of training of autoencoder-photos, and its images.

    Raises CheckpointError that names a setting with a value that it cannot have here.
    """
    for name, value in _EXPECTED.items():
        if document.get(name, value) != value:
            raise CheckpointError(f"{name} is {document[name]!r}, expected {value!r}")
    widths = document.get("block_out_channels")
    if not isinstance(widths, list | tuple):
        raise CheckpointError(f"block_out_channels is {widths!r:.40}, expected the channels of each resolution")
    for name, kind in (("down_block_types", _DOWN), ("up_block_types", _UP)):
        if document.get(name) != [kind] * len(widths):
            raise CheckpointError(f"{name} is {document.get(name)!r}, expected {kind} once for each of block_out_channels")
    names = {
        "widths": "block_out_channels",
        "num_blocks": "layers_per_block",
        "latent_channels": "latent_channels",
        "num_groups": "norm_num_groups",
    }
    recipe = load_recipe("autoencoder-photos")
    assert isinstance(recipe.model, KLAutoencoderConfig)
    try:
        network = KLNetworksConfig.from_dict({ours: document[theirs] for ours, theirs in names.items() if theirs in document})
        model = recipe.model.updated({"network": network.to_dict(), "scaling_factor": document.get("scaling_factor", _SCALING_FACTOR)})
        spec = DataSpec.from_dict({"image_size": _side(document), "channels": document.get("in_channels", 3)})
        assert isinstance(model, KLAutoencoderConfig)
        model = _fitting(model, spec.image_size)
        model.check(spec)
    except ConfigError as error:
        raise CheckpointError(f"its settings have no model here: {error}") from None
    if document.get("out_channels", spec.channels) != spec.channels:
        raise CheckpointError(f"out_channels is {document['out_channels']!r}, expected {spec.channels}, as in_channels")
    if spec.channels not in (1, 3):
        raise CheckpointError(f"in_channels is {spec.channels}, expected 1 (grey) or 3 (RGB)")
    data = DataConfig(image_size=spec.image_size, channels=1 if spec.channels == 1 else 3, crop="random", labels="none")
    return replace(recipe, model=model, data=data.updated(AS_STORED)), spec


def _fitting(model: KLAutoencoderConfig, side: int) -> KLAutoencoderConfig:
    """The model with losses, of which the file says nothing, that take images of so many pixels.

    Where these are too small the discriminator has fewer layers, and there is no perceptual loss.
    """
    patches = model.discriminator
    while least_side(patches) > side and patches.num_layers > 1:
        patches = replace(patches, num_layers=patches.num_layers - 1)
    try:
        model.perceptual.check_size(side, side)
    except ConfigError:
        model = replace(model, perceptual_weight=0.0)
    return replace(model, discriminator=patches)


def _side(document: Mapping[str, Any]) -> Any:
    """Of the images, in pixels; a pair is height and width."""
    size = document.get("sample_size", 256)
    if not isinstance(size, list):
        return size
    if len(size) != 2 or size[0] != size[1]:
        raise CheckpointError(f"sample_size is {size!r}, expected a number, or height and width alike: it learns from squares here")
    return size[0]


def to_state(weights: Mapping[str, Tensor], config: RunConfig, spec: DataSpec) -> dict[str, Tensor]:
    """The state of the run's model: encoder and decoder of a file, and a discriminator that begins anew.

    Names and shapes are compared before any weight is drawn. Raises CheckpointError for the first tensor that does not fit.
    """
    theirs = {_renamed(name): tensor for name, tensor in weights.items()}
    try:
        with without_weights():
            outline = seeded_build(config.model, spec, seed=config.train.seed).state_dict()
    except ConfigError as error:  # it is too large
        raise CheckpointError(f"{CONFIG} beside it has no model here: {error}") from None
    own = {name.removeprefix(_GENERATOR): tensor for name, tensor in outline.items() if name.startswith(_GENERATOR)}
    theirs = {name: tensor.reshape(own[name].shape) if _is_pointwise(name, tensor, own) else tensor for name, tensor in theirs.items()}
    check_fit(own, theirs)
    fresh = seeded_build(config.model, spec, seed=config.train.seed).state_dict()
    return dict(fresh) | {_GENERATOR + name: theirs[name].float().contiguous() for name in own}


def _renamed(name: str) -> str:
    """The name of a tensor of any version in the present one."""
    return re.sub(r"(?<=\.attentions\.0\.)(query|key|value|proj_attn)(?=\.)", lambda match: _OLDER[match[1]], name)


def _is_pointwise(name: str, tensor: Tensor, own: Mapping[str, Tensor]) -> bool:
    """Whether the tensor is of a 1x1 convolution where we have a linear layer."""
    return name in own and tuple(tensor.shape) == (*own[name].shape, 1, 1)
