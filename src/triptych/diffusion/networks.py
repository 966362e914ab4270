"""The networks that a model of images may have: a U-Net, or a transformer over patches."""

from __future__ import annotations

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.diffusion.dit import DiT, DiTConfig
from triptych.diffusion.unet import ANOTHER_SIZE, UNet, UNetConfig
from triptych.nn.images import square_side

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
        size = square_side(spec, instead="give a DiT, or ")
        return UNet(config, image_size=size, in_channels=channels, out_channels=outputs, num_classes=num_classes, spans=spans)
    except ConfigError as error:
        raise of_latents(error, spec).inside("network") from None


def of_latents(error: ConfigError, spec: DataSpec) -> ConfigError:
    """The error; of latents it speaks of these, and in place of another data.image_size it says how they get another size."""
    if spec.latents is None:
        return error
    pictured = spec.pictured
    times, pixels = pictured.image_size / spec.image_size, "x".join(map(str, pictured.height_and_width))
    advice = (
        f"latents of another size (these are latents of images of {pixels} pixels, for which triptych data encode --image-size chooses "
        f"another size, {times:g} times that of the latents)"
    )
    return ConfigError(error.setting, error.reason.replace("images of", "latents of").replace(ANOTHER_SIZE, advice))
