"""Networks of vid2vid and of world-consistent vid2vid: as a YAML file describes them, and as the names and shapes of weights do."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from triptych.core.errors import CheckpointError, ConfigError
from triptych.gans.crops import CropConfig, Part
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.video_discriminators import VideoDiscriminator, VideoDiscriminatorConfig
from triptych.gans.video_networks import (
    EmbeddingConfig,
    FlowNetworkConfig,
    FrameGeneratorConfig,
    Vid2VidGenerator,
    Vid2VidGeneratorConfig,
    WCVid2VidGenerator,
    WCVid2VidGeneratorConfig,
)
from triptych.interop.imaginaire.networks import MOST_STEPS, PATCH, C, overlaid
from triptych.interop.imaginaire.reading import MOST, ModelType, Settings
from triptych.interop.imaginaire.tensors import Network, Weights

SINGLE = "single_image_model."
"""What the names of the weights begin with that make the first frames of wc_vid2vid: a SPADE's."""
_ADDITIONAL = "additional_discriminators"
_PARTS: tuple[Part, ...] = ("face", "hand")
MULTIPLIER = 20.0
"""Of the flow, where the file says nothing."""
_GENERATORS: dict[ModelType, tuple[type[Vid2VidGeneratorConfig], type[Vid2VidGenerator]]] = {
    "vid2vid": (Vid2VidGeneratorConfig, Vid2VidGenerator),
    "wc_vid2vid": (WCVid2VidGeneratorConfig, WCVid2VidGenerator),
}
_NAMES = {
    "num_filters": "num_filters",
    "max_num_filters": "max_num_filters",
    "num_layers": "num_layers",
    "num_downsamples": "num_downsamples_img",
    "spade_kernel_size": "activation_norm_params.kernel_size",
    "combined": "flow.multi_spade_combine.num_layers",
    "label_input": "use_segmap_as_input",
    "style_dims": "style_dims",
}
FLOW = {
    "num_filters": "num_filters",
    "num_downsamples": "num_downsamples",
    "num_res_blocks": "num_res_blocks",
    "multiplier": "flow_output_multiplier",
}
EMBEDDING = {"num_filters": "num_filters", "num_downsamples": "num_downsamples"}


# As the file describes them -------------------------------------------------------------------------------------------------


def described_generator(kind: ModelType, gen: Settings, *, frames: int) -> Vid2VidGeneratorConfig:
    """The generator of the section `gen`, which sees so many frames. Raises ConfigError, naming the setting, for what is not here."""
    base = replace(_GENERATORS[kind][0](), frames=frames, label_input=False, combined=3)
    base = replace(base, flow=replace(base.flow, num_downsamples=3, multiplier=MULTIPLIER))
    made = overlaid(base, gen, {"weight_norm": "weight_norm_type", **_NAMES})
    made = replace(
        made,
        embedding=overlaid(base.embedding, gen.inside("embed"), EMBEDDING),
        flow=overlaid(base.flow, gen.inside("flow"), FLOW),
    )
    filters = _hidden(kind, gen)
    if isinstance(made, WCVid2VidGeneratorConfig):
        made = replace(made, guidance_filters=filters)
    _check_generator(gen, made)
    return made


def described_discriminator(dis: Settings, *, frames: int) -> VideoDiscriminatorConfig:
    """The discriminators of the section `dis`, those of several frames of so many. Raises ConfigError, naming the setting."""
    base = VideoDiscriminatorConfig()
    temporal = dis.inside("temporal")
    scales = temporal.number("num_scales", 0, least=0, most=4)
    several = {"temporal": overlaid(base.temporal, temporal, PATCH), "temporal_scales": scales} if scales else {}
    return replace(base, patch=overlaid(base.patch, dis.inside("image"), PATCH), temporal_frames=max(2, frames), **several, **_crops(dis))


def _hidden(kind: ModelType, gen: Settings) -> int:
    """Channels of the layers between guidance and its scale and shift, of the numbers of all maps; there are none but of guidance."""
    params = gen.inside("activation_norm_params")
    value = params.value("num_filters", 0)
    numbers = list(value) if isinstance(value, list) else [value]
    counts = all(isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= MOST for number in numbers)
    guided = kind == "wc_vid2vid" and len(numbers) > 1
    fits = counts and bool(numbers) and not any(numbers[:-1] if guided else numbers)
    params.require(fits, "num_filters", "0, or [0, 0, 128] for label map, warped image and guidance: only guidance has a hidden layer here")
    if guided:
        params.require(len(numbers) == 3, "num_filters", "three numbers: of label map, warped image and guidance")
    return numbers[-1] if guided else 0


def _check_generator(gen: Settings, made: Vid2VidGeneratorConfig) -> None:
    """Raises ConfigError where parts of the generator are what they cannot be here."""
    guidance = gen.inside("guidance")
    require_parts(gen, made, [(guidance, "partial_conv", False), (guidance, "only_with_flow", True), (guidance, "start_from", 0)])


def require_parts(gen: Settings, made: FrameGeneratorConfig, further: Sequence[tuple[Settings, str, object]]) -> None:
    """Raises ConfigError where parts of a generator are what they cannot be here; `further`: settings, and what they are if given."""
    params, flow, embed = (gen.inside(name) for name in ("activation_norm_params", "flow", "embed"))
    combined = flow.inside("multi_spade_combine").inside("embed")
    expected: list[tuple[Settings, str, object]] = [
        (gen, "kernel_size", 3),
        (gen, "activation_norm_type", "spatially_adaptive"),
        (gen, "padding_mode", "zeros"),
        (params, "activation_norm_type", "instance"),
        (params, "separate_projection", False),
        (params, "partial", False),
        (embed, "arch", "encoderdecoder"),
        (combined, "arch", "unet"),
        (combined, "num_filters", made.embedding.num_filters),
        (combined, "num_downsamples", made.embedding.num_downsamples),
        (flow, "activation_norm_type", "instance"),
        (flow, "max_num_filters", made.max_num_filters),
        (flow, "generate_raw_output", False),
        *further,
    ]
    for section in (embed, combined, flow):
        expected += [(section, "kernel_size", 3), (section, "weight_norm_type", made.weight_norm)]
    for section, key, value in expected:
        found = section.value(key, value)
        section.require((found or "none") == value if isinstance(value, str) else found == value, key, f"{value!r}")
    params.value("weight_norm_type")
    for section in (embed, combined):
        section.value("use_embed")
        section.value("max_num_filters")


def _crops(dis: Settings) -> dict[str, CropConfig]:
    """The discriminators of crops that the section `dis` has; a warning names other ones."""
    others = dis.value(_ADDITIONAL)
    crops: dict[str, CropConfig] = {}
    for name in others if isinstance(others, Mapping) else ():
        if name not in _PARTS:
            dis.warn(_ADDITIONAL, f"{name}: not here; of parts of frames, those of {' and '.join(_PARTS)} alone are judged")
            continue
        section = dis.inside(_ADDITIONAL).inside(str(name))
        section.value("vis")
        if weight := _crop_weight(section):
            crops[name] = replace(CropConfig(weight=weight), patch=overlaid(CropConfig().patch, section, PATCH))
    return crops


def _crop_weight(section: Settings) -> float:
    return section.factor("loss_weight", 1.0, least=0)


# As weights show them -------------------------------------------------------------------------------------------------------


def video_generator(kind: ModelType, weights: Weights, gen: Settings) -> Network:
    """The generator with such weights. Raises CheckpointError for another network, ConfigError for a wrong setting."""
    flow, embedding, norms = "flow_network_temp", "label_embedding", "conv_block_0.layers.norm.mlps"
    filters, image_channels = weights.weight("down_first.layers.conv")[:2]
    label_filters, label_channels = weights.weight(f"{embedding}.conv_first.layers.conv")[:2]
    layers = min(max(weights.numbers("up_", "."), default=0), MOST_STEPS)
    first = weights.weight(f"up_{layers}.conv_block_0.layers.conv")[1]
    seen = weights.weight(f"{flow}.down_lbl.0.layers.conv")
    label_input = len(weights.shape("fc.layers.conv.weight", axes=2)) == 4
    config_class, make = _GENERATORS[kind]
    config = config_class(
        num_filters=filters,
        max_num_filters=first,
        num_layers=max(1, layers),
        num_downsamples=max(1, weights.count("down_", ".conv_block_0.") - 1),
        spade_kernel_size=weights.weight(f"up_0.{norms}.0.0.layers.conv")[2],
        combined=sum(weights.has(f"up_{level}.{norms}.1.") for level in range(layers + 1)),
        frames=max(2, seen[1] // label_channels),
        label_input=label_input,
        style_dims=Vid2VidGeneratorConfig().style_dims if label_input else weights.shape("fc.layers.conv.weight", axes=2)[1],
        weight_norm=weights.weight_norm,
        embedding=EmbeddingConfig(num_filters=label_filters, num_downsamples=steps(weights, f"{embedding}.down_", ".")),
        flow=flow_network(weights, gen, name=flow, branch="down_lbl"),
    )
    if isinstance(config, WCVid2VidGeneratorConfig):
        if not weights.has(f"up_0.{norms}.2."):
            raise CheckpointError(f"the file is incomplete: it has no up_0.{norms}.2, the guidance of wc_vid2vid")
        hidden = weights.has(f"up_0.{norms}.2.1.")
        config = replace(config, guidance_filters=weights.weight(f"up_0.{norms}.2.0.layers.conv")[0] if hidden else 0)
    config = agreeing(config, gen, {ours: theirs for ours, theirs in _NAMES.items() if ours != "style_dims" or not label_input})
    if label_input:
        return Network(make, config, image_channels, label_channels=label_channels)
    pixels = weights.shape("fc.layers.conv.weight", axes=2)[0] // first
    side = math.isqrt(pixels)
    if side**2 != pixels:
        raise CheckpointError(f"fc.layers.conv.weight makes a first map of {pixels} pixels, expected a square")
    sized = functools.partial(make, image_size=(side << layers, side << layers))
    return Network(sized, config, image_channels, label_channels=label_channels)


def flow_network(weights: Weights, gen: Settings, *, name: str, branch: str) -> FlowNetworkConfig:
    """The flow network of that name, one of whose ways down is `branch`."""
    return FlowNetworkConfig(
        num_filters=weights.weight(f"{name}.{branch}.0.layers.conv")[0],
        num_downsamples=steps(weights, f"{name}.{branch}.", ".") - 1 or 1,
        num_res_blocks=weights.count(f"{name}.res_flow.", ".conv_block_0."),
        multiplier=gen.inside("flow").positive("flow_output_multiplier", MULTIPLIER),
    )


def agreeing(config: C, section: Settings, names: Mapping[str, str]) -> C:
    """`config`; raises ConfigError for a setting of the file that the weights contradict."""
    said = overlaid(config, section, names, least=1)
    for ours, theirs in names.items():
        found, shown = getattr(said, ours), getattr(config, ours)
        narrower = ours == "max_num_filters" and found >= shown  # a width that no layer reaches leaves no trace
        if found != shown and not narrower:
            raise ConfigError(section.name(theirs), f"got {found!r}, but the weights have {shown!r}")
    return said


def video_discriminator(weights: Weights, dis: Settings) -> Network:
    """The discriminators of single frames, and of several, with such weights. Raises CheckpointError for other networks."""
    images = dis.number("image_channels", 3)
    patch, channels = _patches(weights, "net_D")
    scales = weights.count("net_DT", ".")
    several = {}
    if scales:
        temporal, seen = _patches(weights, "net_DT0")
        several = {"temporal": temporal, "temporal_scales": scales, "temporal_frames": max(2, seen // images)}
    config = replace(VideoDiscriminatorConfig(patch=patch, **several), **_shown_crops(weights, dis))
    return Network(VideoDiscriminator, config, images, label_channels=max(1, channels - images))


def _shown_crops(weights: Weights, dis: Settings) -> dict[str, CropConfig]:
    """The discriminators of crops that there are weights of, with the weights in the losses that the section `dis` gives them."""
    shown: dict[str, CropConfig] = {}
    for part in _PARTS:
        if weights.has(f"net_D_{part}."):
            weight = _crop_weight(dis.inside(_ADDITIONAL).inside(part))
            dis.inside(_ADDITIONAL).inside(part).require(
                weight > 0, "loss_weight", "a positive number: the weights have this discriminator"
            )
            shown[part] = CropConfig(weight=weight, patch=_patches(weights, f"net_D_{part}")[0])
    return shown


def steps(weights: Weights, start: str, end: str) -> int:
    return max(1, min(weights.count(start, end), MOST_STEPS))


def _patches(weights: Weights, root: str) -> tuple[PatchDiscriminatorConfig, int]:
    """Discriminators of patches, and the channels that they take."""
    first = f"{root}.discriminator_0"
    layers = weights.count(f"{first}.layer", ".")
    filters, channels, kernel_size = weights.weight(f"{first}.layer0.0.layers.conv")[:3]
    config = PatchDiscriminatorConfig(
        num_discriminators=max(1, weights.count(f"{root}.discriminator_", ".")),
        kernel_size=kernel_size,
        num_filters=filters,
        max_num_filters=weights.weight(f"{first}.layer{layers - 2}.0.layers.conv")[0],
        num_layers=max(1, layers - 2),
        norm="instance" if weights.has(f"{first}.layer0.0.layers.norm.") else "none",
        weight_norm=weights.norm_of(f"{first}.layer0.0.layers.conv"),
    )
    return config, channels
