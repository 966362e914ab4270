"""StyleGAN2's networks: our names of tensors are the original's. The configuration is what shapes and the file's settings say.

The settings are those of the classes Generator and Discriminator of stylegan2-ada-pytorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError
from triptych.core.model import ModelConfig
from triptych.gans.stylegan2 import StyleGAN2Config
from triptych.gans.stylegan2_layers import StyleGAN2DiscriminatorConfig, StyleGAN2GeneratorConfig
from triptych.interop.nvidia.family import PARTS, Family, Part, checked_spec
from triptych.interop.nvidia.snapshots import Network
from triptych.interop.shapes import Shapes

_BASE_CHANNELS = 32_768
_GROUP = 4  # images whose deviation is compared, in the original where nothing else is given
_EMBEDDING = "mapping.embed.weight"
_LATER = {"num_fp16_res": 4, "conv_clamp": 256}
"""Of both networks where stylegan3 trained them and the file says nothing; of stylegan2-ada-pytorch they are then 0 and none."""
_ARCHITECTURES = {"residual": "resnet", "plain": "orig"}


def _read(generator: Network, discriminator: Network | None) -> tuple[StyleGAN2Config, DataSpec]:
    unsaid = _LATER if "channel_base" in generator.settings else {}  # a setting of the generator itself in stylegan3 alone
    shapes, settings = Shapes(generator.tensors), unsaid | _flat(generator.settings)
    widths = {side: shapes.shape(f"synthesis.b{side}.conv1.weight", axes=4)[0] for side in _sides(shapes, "synthesis.b", ".conv1.weight")}
    size = max(widths)
    classes = shapes.shape(_EMBEDDING, axes=2)[1] if shapes.has(_EMBEDDING) else None
    style_dims, inputs, *_ = shapes.shape("mapping.fc0.weight", axes=2)
    channels, *_ = shapes.shape(f"synthesis.b{size}.torgb.weight", axes=4)
    spec = checked_spec(image_size=size, channels=channels, num_classes=classes)
    common = _common(shapes, settings, widths)
    alike = replace(StyleGAN2DiscriminatorConfig(**common), mapping_layers=StyleGAN2DiscriminatorConfig().mapping_layers)
    config = StyleGAN2Config(
        generator=StyleGAN2GeneratorConfig(style_dims=style_dims, **common),
        discriminator=alike if discriminator is None else _discriminator(discriminator, unsaid),
        latent_dims=inputs - (0 if classes is None else style_dims),
        class_conditional=classes is not None,
    )
    return config, spec


def _discriminator(discriminator: Network, unsaid: Mapping[str, Any]) -> StyleGAN2DiscriminatorConfig:
    shapes, settings = Shapes(discriminator.tensors), {**unsaid, **_flat(discriminator.settings)}
    sides = _sides(shapes, "b", ".conv0.weight")
    widths = {side: shapes.shape(f"b{side}.conv0.weight", axes=4)[0] for side in sides}
    widths[4], *_ = shapes.shape("b4.conv.weight", axes=4)
    return StyleGAN2DiscriminatorConfig(
        architecture="residual" if shapes.has(f"b{max(sides)}.skip.") else "plain",
        group_size=_stated_group(settings) or _GROUP if _has_deviation(shapes) else 1,
        **_common(shapes, settings, widths),
    )


def _has_deviation(shapes: Shapes) -> bool:
    """Whether the deviation between images is a feature of the last convolution, which then has more inputs than outputs."""
    width, features, *_ = shapes.shape("b4.conv.weight", axes=4)
    return features > width


def _stated_group(settings: Mapping[str, Any]) -> int | None:
    """How many images are compared; None where the file does not say it, or has None, for which the original takes all of a batch."""
    size = settings.get("mbstd_group_size")
    return size if isinstance(size, int) and size > 1 else None


def _remarks(discriminator: Network) -> tuple[str, ...]:
    if not _has_deviation(Shapes(discriminator.tensors)) or _stated_group(_flat(discriminator.settings)) is not None:
        return ()
    return (f"it does not say how many images its discriminator compares: groups of {_GROUP} are taken, as is usual",)


def _sides(shapes: Shapes, start: str, end: str) -> set[int]:
    """The resolutions of a network. Raises CheckpointError where there are none."""
    sides = shapes.numbers(start, end) - {0}
    if not sides:
        raise CheckpointError(f"the file is incomplete: it has no {start}4{end}")
    return sides


def _common(shapes: Shapes, settings: Mapping[str, Any], widths: Mapping[int, int]) -> dict[str, Any]:
    """The settings that both networks have. `widths`: channels at each resolution."""
    activation = settings.get("activation", "lrelu")
    if activation != "lrelu":
        raise CheckpointError(f"has the activation {activation!r:.40}, expected 'lrelu'")
    size, most = max(widths), max(widths.values())
    given = settings.get("channel_base")
    bases = [base for base in (given, _BASE_CHANNELS) if isinstance(base, int)]
    fitting = (base for base in bases if all(min(base // side, most) == width for side, width in widths.items()))
    clamp, half = settings.get("conv_clamp"), settings.get("num_fp16_res", 0)
    rate = settings.get("lr_multiplier", 0.01)
    return {
        "base_channels": next(fitting, widths[size] * size),
        "max_channels": most,
        "mapping_layers": shapes.count("mapping.fc", ".weight") or (0 if shapes.has(_EMBEDDING) else 8),
        "mapping_rate": float(rate) if isinstance(rate, int | float) else 0.01,
        "half_stages": half if type(half) is int else 0,
        "conv_clamp": float(clamp) if isinstance(clamp, int | float) else None,
    }


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a network, with those of its parts beside them: later versions have them in one dictionary."""
    inner = [settings.get(name) for name in ("synthesis_kwargs", "mapping_kwargs", "block_kwargs", "epilogue_kwargs")]
    return {name: value for part in (settings, *inner) if isinstance(part, Mapping) for name, value in part.items()}


def _original_name(name: str, part: Part, config: ModelConfig, spec: DataSpec) -> str:
    return name


def _built_with(config: ModelConfig, spec: DataSpec) -> dict[Part, dict[str, Any]]:
    assert isinstance(config, StyleGAN2Config)
    generator, discriminator = config.generator, config.discriminator

    def stages(network: StyleGAN2GeneratorConfig | StyleGAN2DiscriminatorConfig) -> dict[str, Any]:
        return {
            "channel_base": network.base_channels,
            "channel_max": network.max_channels,
            "num_fp16_res": network.half_stages,
            "conv_clamp": network.conv_clamp,
        }

    classes = (spec.num_classes or 0) if config.class_conditional else 0
    images = {"c_dim": classes, "img_resolution": spec.image_size, "img_channels": spec.channels}
    mappings = [{"num_layers": network.mapping_layers, "lr_multiplier": network.mapping_rate} for network in (generator, discriminator)]
    group = {"mbstd_group_size": discriminator.group_size, "mbstd_num_channels": int(discriminator.group_size > 1)}
    own: dict[Part, dict[str, Any]] = {
        "generator": {"z_dim": config.latent_dims, "w_dim": generator.style_dims, "synthesis_kwargs": stages(generator)},
        "discriminator": {"architecture": _ARCHITECTURES[discriminator.architecture], "epilogue_kwargs": group, **stages(discriminator)},
    }
    return {part: {**images, **own[part], "mapping_kwargs": mapping} for part, mapping in zip(PARTS, mappings, strict=True)}


STYLEGAN2 = Family(
    config=StyleGAN2Config,
    architecture=("generator", "discriminator", "latent_dims", "class_conditional"),
    read=_read,
    original_name=_original_name,
    constants=".resample_filter",
    built_with=_built_with,
    notes=("stylegan2-ada-pytorch: Generator(**settings of the .json), then load_state_dict of the file",),
    remarks=_remarks,
)
