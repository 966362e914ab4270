"""Networks of few-shot vid2vid: as a YAML file describes them, and as the names and shapes of weights do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from triptych.gans.fs_vid2vid_networks import FewShotGenerator, FewShotGeneratorConfig
from triptych.gans.video_discriminators import VideoDiscriminator, VideoDiscriminatorConfig
from triptych.gans.video_networks import EmbeddingConfig
from triptych.interop.imaginaire.networks import MOST_STEPS, overlaid
from triptych.interop.imaginaire.reading import Settings
from triptych.interop.imaginaire.tensors import Network, Weights
from triptych.interop.imaginaire.video import EMBEDDING, FLOW, MULTIPLIER, agreeing, flow_network, require_parts, steps, video_discriminator

SECOND_FLOW = "flow_network_temp."
"""Files have the flow network twice: its second name."""
AVERAGED_EPS = 1e-5
"""Added to the variances of the references' label maps in averaged weights."""
_NAMES = {
    "num_filters": "num_filters",
    "max_num_filters": "max_num_filters",
    "num_downsamples": "num_downsamples",
    "spade_kernel_size": "activation_norm_params.kernel_size",
    "combined": "flow.multi_spade_combine.num_layers",
    "generated": "hyper.num_hyper_layers",
    "linear_layers": "hyper.num_fc_layers",
}


def described_few_shot(gen: Settings, *, references: int) -> FewShotGeneratorConfig:
    """The generator of the section `gen`, of so many references. Raises ConfigError, naming the setting, for what is not here."""
    base = replace(FewShotGeneratorConfig(), attention=references > 1)
    base = replace(base, flow=replace(base.flow, num_downsamples=3, multiplier=MULTIPLIER))
    # What has to be equal among these is so in the whole alone.
    embedding = overlaid(base.embedding, gen.inside("embed"), EMBEDDING)
    downsamples = embedding.num_downsamples
    gen.inside("embed").require(downsamples >= 2, "num_downsamples", "at least 2")
    generated = min(base.generated, downsamples - 1)
    base = replace(base, embedding=embedding, num_filters=embedding.num_filters, num_downsamples=downsamples, generated=generated)
    made = overlaid(base, gen, {"weight_norm": "weight_norm_type", **_NAMES})
    made = replace(made, flow=overlaid(base.flow, gen.inside("flow"), {**FLOW, "num_res_blocks": "num_blocks"}))
    hyper, flow, params = (gen.inside(name) for name in ("hyper", "flow", "activation_norm_params"))
    attention = hyper.inside("attention")
    for name in ("num_filters", "num_downsamples"):  # the original reads them from another section
        attention.value(name)
    hyper.value("kernel_size")
    flow.value("num_res_blocks")
    combine = flow.inside("multi_spade_combine")
    require_parts(
        gen,
        made,
        [
            (params, "num_filters", 0),
            (hyper, "is_hyper_spade", True),
            (hyper, "is_hyper_embed", True),
            (hyper, "is_hyper_conv", False),
            (hyper, "activation_norm_type", "instance"),
            (hyper, "weight_norm_type", made.weight_norm),
            (hyper, "method_to_use_ref_labels", "mul"),
            (flow, "warp_ref", True),
            (flow, "sep_prev_flow", False),
            (flow, "sep_warp_embed", True),
            (combine, "sep_warp_embed", True),
            (combine.inside("embed"), "sep_warp_embed", True),
        ],
    )
    return made


def few_shot_generator(weights: Weights, gen: Settings) -> Network:
    """The generator with such weights. Raises CheckpointError for another network, ConfigError for a wrong setting."""
    root = "weight_generator"
    filters, image_channels = weights.weight(f"{root}.ref_img_first.layers.conv")[:2]
    label_filters, label_channels = weights.weight(f"{root}.label_embedding.conv_first.layers.conv")[:2]
    downsamples = steps(weights, f"{root}.ref_img_down_", ".")
    combined = sum(weights.has(f"up_{level}.conv_block_0.layers.norm.mlps.1.") for level in range(downsamples + 1))
    config = FewShotGeneratorConfig(
        num_filters=filters,
        max_num_filters=weights.weight(f"up_{downsamples}.conv_block_0.layers.conv")[1],
        num_downsamples=downsamples,
        spade_kernel_size=weights.weight("up_0.conv_block_0.layers.norm.mlps.1.0.layers.conv")[2] if combined else 1,
        combined=combined,
        generated=max(1, min(weights.count(f"{root}.fc_spade_0_", "."), MOST_STEPS)),
        linear_layers=max(0, weights.count(f"{root}.fc_spade_0_0.", ".") - 1),
        attention=weights.has(f"{root}.attention_module."),
        weight_norm=weights.weight_norm,
        embedding=EmbeddingConfig(num_filters=label_filters, num_downsamples=steps(weights, f"{root}.label_embedding.down_", ".")),
        flow=flow_network(weights, gen, name="flow_network_ref", branch="down_flow"),
    )
    return Network(FewShotGenerator, agreeing(config, gen, _NAMES), image_channels, label_channels=label_channels)


def few_shot_discriminator(weights: Weights, dis: Settings) -> Network:
    """The discriminators with such weights, which also see a reference and its label map. Raises CheckpointError for other networks."""
    network = video_discriminator(weights, dis)
    beside = (network.label_channels or 0) - network.image_channels
    return replace(network, make=_beside_references, label_channels=max(1, beside // 2))


def _beside_references(config: VideoDiscriminatorConfig, *, label_channels: int, image_channels: int) -> VideoDiscriminator:
    channels = {"label_channels": 2 * label_channels + image_channels, "image_channels": image_channels}
    return VideoDiscriminator(config, **channels, crop_channels=2 * image_channels)


def without_second_flow(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights without the second name of the flow network."""
    return {name: tensor for name, tensor in state.items() if not name.startswith(SECOND_FLOW)}
