"""The networks that a model of images may have: a U-Net, or a transformer over patches."""

from __future__ import annotations

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.diffusion.dit import DiT, DiTConfig
from triptych.diffusion.unet import UNet, UNetConfig

NetworkConfig = UNetConfig | DiTConfig
Network = UNet | DiT
"""Called with x (b, c, h, w), t (b,), the labels (b,) of a network that has classes, and an rng."""


def network_for(
    spec: DataSpec, config: NetworkConfig, *, num_classes: int | None, spans: bool = False, out_channels: int | None = None
) -> Network:
    """The network of a configuration for images of `spec`.

    `spans`: it is told another time too. `out_channels`: of what it says; None: as many as the images have. Raises ConfigError, about the
    setting "network", where it cannot take them.
    """
    channels, outputs = spec.channels, spec.channels if out_channels is None else out_channels
    try:
        if isinstance(config, DiTConfig):
            size = spec.height_and_width
            return DiT(config, image_size=size, in_channels=channels, out_channels=outputs, num_classes=num_classes, spans=spans)
        if spec.width not in (None, spec.image_size):
            raise ConfigError("", f"a U-Net takes squares, not images of {spec.image_size} x {spec.width} pixels; give a DiT")
        size = spec.image_size
        return UNet(config, image_size=size, in_channels=channels, out_channels=outputs, num_classes=num_classes, spans=spans)
    except ConfigError as error:
        raise of_latents(error, spec).inside("network") from None


def of_latents(error: ConfigError, spec: DataSpec) -> ConfigError:
    """The error about a size; of latents it says that the size of their images is chosen when they are encoded."""
    if spec.latents is None:
        return error
    pixels = "x".join(map(str, spec.pictured.height_and_width))
    why = f"these are latents of images of {pixels} pixels, for which triptych data encode --image-size chooses another size"
    return ConfigError(error.setting, f"{error.reason} ({why})")
