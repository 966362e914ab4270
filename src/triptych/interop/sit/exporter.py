"""Runs as files of SiT: the state dict of a transformer that learns velocities, scores or noise."""

from __future__ import annotations

from triptych.core.errors import ConfigError
from triptych.core.weight_files import write_weights
from triptych.diffusion.dit import DiTConfig
from triptych.diffusion.flow_matching import FlowMatching, FlowMatchingConfig
from triptych.interop.flags import command_line
from triptych.interop.programs import Exported, ExportRequest, check_replaced, latent_notes, write_beside
from triptych.interop.sit.flags import BESIDE, PATHS
from triptych.interop.sit.weights import to_state_dict
from triptych.interop.transformers import own_flags


def exported(request: ExportRequest) -> Exported:
    """Writes the file, and its flags beside it; an earlier export is replaced. Raises as `programs.exported` does."""
    out, config = request.out, request.config
    if request.drop_variance:
        raise ConfigError("drop_variance", "goes with diffusers: leave it out")
    if out.suffix != ".pt":
        raise ConfigError("out", f"got {str(out)!r}, expected the name of a file that ends with .pt")
    if not isinstance(config, FlowMatchingConfig) or not isinstance(config.network, DiTConfig):
        kind = f"{type(config).__name__.removesuffix('Config')}{' with a U-Net' * isinstance(config, FlowMatchingConfig)}"
        raise ConfigError("to", f"SiT is flow matching with a transformer; this run is of {kind}")
    reasons = [
        *(["model.class_conditional: false (it always takes labels)"] if not config.class_conditional else []),
        *([f"model.time_scale: {config.time_scale:g} (it embeds the time itself)"] if config.time_scale != 1 else []),
        *(["data: images that are not squares"] if request.spec.width not in (None, request.spec.image_size) else []),
    ]
    if reasons:
        raise ConfigError("", f"SiT cannot express this model: {'; '.join(reasons)}")
    path, network = next(name for name, ours in PATHS.items() if ours == config.path), config.network
    arguments = (
        f"SiT(input_size={request.spec.image_size}, patch_size={network.patch}, in_channels={request.spec.channels}, "
        f"hidden_size={network.width}, depth={network.depth}, num_heads={network.heads}, num_classes={request.spec.num_classes}, "
        f"learn_sigma={network.spare_outputs})"
    )
    flags, beside = {"path-type": path, "prediction": config.prediction}, out.with_suffix(BESIDE)
    text = f"{command_line(flags)}\n{arguments}\n{own_flags(flags | {'num-heads': network.heads}, request.spec)}\n"
    check_replaced([out], beside, text)
    model = request.load()
    assert isinstance(model, FlowMatching)
    write_beside(beside, text)
    write_weights(to_state_dict(model), out)
    return Exported((out, beside), command_line(flags), (f"it is the state dict of {arguments}", *latent_notes(request.spec)))
