"""Colours of decoded images: transparency on a background, and colour profiles to sRGB.

A pixel of colour c and opacity a becomes a c + (1 - a) b on a background b, in the levels that are stored. Profiles are converted by
littleCMS, relative colorimetrically with black point compensation; one that is damaged, or of another kind of colours than the image,
is passed over, and the image is read as sRGB.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from PIL import Image

from triptych.data.config import AS_STORED, DataConfig, rgb_of

_MOST_PROFILE = 2**22  # bytes; those of printers have a few million
_KEPT = 8  # transforms; the images of a set have few profiles
_MODES = {"RGB ": "RGB", "GRAY": "L", "CMYK": "CMYK"}
"""The mode of the images that a profile of such a space describes."""
_DEVICES = ("mntr", "scnr", "prtr", "spac")
_SAME = 1  # of 255: profiles of sRGB differ by that in their rounding
_LEVELS = np.linspace(0, 255, 18).round().astype(np.uint8)  # of each channel, which are tried
_SIXTEEN_BITS = 2**16


@dataclass(frozen=True)
class Colours:
    """How the colours of a decoded image are read."""

    background: str | None = "white"
    "See `DataConfig.background`."
    profiles: Literal["convert", "ignore"] = "convert"
    "See `DataConfig.profiles`."

    @classmethod
    def of(cls, settings: DataConfig) -> Colours:
        """Those of a run's images."""
        return cls(settings.background, settings.profiles)

    @property
    def as_stored(self) -> bool:
        """Whether they are read as by versions before these settings."""
        return {"background": self.background, "profiles": self.profiles} == AS_STORED


PLAIN = Colours()
"""How colours are read where nobody says."""


def depend(image: Image.Image) -> bool:
    """Whether the colours of an opened image depend on `Colours`: it has transparency, or a profile that is not sRGB."""
    return image.has_transparency_data or _to_srgb(image) is not None


def converted(image: Image.Image, mode: str, colours: Colours, *, opened: Image.Image | None = None) -> Image.Image:
    """The image as grey (L) or RGB. `opened`: what it was decoded of, where that is another. Raises ValueError for strange pixels."""
    to_srgb = _to_srgb(opened or image) if colours.profiles == "convert" else None
    image, alpha = _of_eight_bits(image), None
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if colours.background is not None and image.has_transparency_data:
        image = image.convert("LA" if image.mode in ("1", "L", "La", "LA") else "RGBA")
        alpha, image = image.getchannel("A"), image.convert(image.mode[:-1])
    if to_srgb is not None:
        image = to_srgb(image)
    if alpha is not None and colours.background is not None:
        composed = Image.new("RGB", image.size, rgb_of(colours.background))
        composed.paste(image.convert("RGB"), mask=alpha)
        image = composed
    if image.mode in ("LAB", "HSV"):  # Pillow makes no grey of them
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


def is_converted(image: Image.Image, colours: Colours) -> bool:
    """Whether the levels of an opened image are not those of RGB: `converted` has to see them as they are."""
    return image.mode != "RGB" and colours.profiles == "convert" and _to_srgb(image) is not None


def _of_eight_bits(image: Image.Image) -> Image.Image:
    """The image, its levels scaled to 8 bits where they have 16; with an alpha where a level of these stands for nothing."""
    if image.mode == "F":
        raise ValueError("floating-point pixels; whole numbers of 8 or 16 bits can be used")
    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() >= _SIXTEEN_BITS:
        raise ValueError("pixels of 32 bits; 8 or 16 can be used")
    levels = Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    nothing = image.info.get("transparency")
    if isinstance(nothing, int):
        levels.putalpha(Image.fromarray(np.where(values == nothing, 0, 255).astype(np.uint8)))
    return levels


def _to_srgb(image: Image.Image) -> Callable[[Image.Image], Image.Image] | None:
    """What turns the levels of an opened image into sRGB by its profile; None: it has none that changes any."""
    profile = image.info.get("icc_profile")
    if not isinstance(profile, bytes) or not 0 < len(profile) <= _MOST_PROFILE:
        return None
    return _by_profile(profile, "CMYK" if image.mode == "CMYK" else "L" if image.mode.startswith(("1", "L", "I")) else "RGB")


@functools.lru_cache(maxsize=_KEPT)
def _by_profile(data: bytes, kind: str) -> Callable[[Image.Image], Image.Image] | None:
    """The same for images that are grey (L), RGB or CMYK."""
    from PIL import ImageCms

    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(data))
        of_device: Any = profile.profile
        described = _MODES.get(of_device.xcolor_space)
        if described is None or described not in (kind, "RGB" if kind == "L" else kind) or of_device.device_class not in _DEVICES:
            return None
        relative, flags = ImageCms.Intent.RELATIVE_COLORIMETRIC, ImageCms.Flags.BLACKPOINTCOMPENSATION
        if described == "L":  # its shades are looked up; littleCMS would interpolate between 33 of them
            flags |= ImageCms.Flags.NOOPTIMIZE
        srgb = ImageCms.createProfile("sRGB")
        transform = ImageCms.buildTransform(profile, srgb, described, "RGB", relative, flags)
        if described != "CMYK":
            tried = _tried(described)
            found = _levels(transform.apply(tried))
            if np.abs(found - _levels(tried.convert("RGB"))).max() <= _SAME:
                return None
            if described == "L":
                tables = found[0].T.tolist()
                return lambda image: Image.merge("RGB", [image.convert("L").point(table) for table in tables])
    except ImportError:
        raise ValueError("its colour profile cannot be used: this Pillow has no littleCMS; set data.profiles to ignore") from None
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return None
    return lambda image: transform.apply(image.convert(described))


def _tried(mode: str) -> Image.Image:
    """Levels from all over the colours of RGB or grey, and all shades of grey of either."""
    shades = np.arange(256, dtype=np.uint8)[None]
    if mode == "L":
        return Image.fromarray(shades)
    cube = np.stack(np.meshgrid(_LEVELS, _LEVELS, _LEVELS), axis=-1).reshape(1, -1, 3)
    return Image.fromarray(np.concatenate([cube, np.repeat(shades[..., None], 3, axis=-1)], axis=1))


def _levels(image: Image.Image) -> np.ndarray:
    return np.asarray(image).astype(np.int64)
