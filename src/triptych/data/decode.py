"""From the bytes of an image file to pixels, by Pillow, or by simplejpeg where that is installed and reduced scale is asked for.

Every mode of an image becomes RGB or grey: palettes are looked up, 16-bit grey is scaled by 1/257, CMYK is converted, and transparency
and colour profiles are read as `Colours` says. Animations give their first frame. Turned photographs (EXIF orientation) are turned
upright. Of maps, whose pixels are numbers, those numbers are read as they are.

Files may be hostile: `open_image` is the only way in. It knows the formats that Pillow decodes by itself, and no others, since for some
Pillow would start another program (for EPS, Ghostscript).
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile, ImageOps

from triptych.core.errors import one_line
from triptych.data.colours import PLAIN, Colours, converted, depend, is_converted
from triptych.data.transforms import Fit, Size, apply, padded

_LARGEST_REDUCTION = 3  # a JPEG's 8x8 blocks decode at 1/2, 1/4 and 1/8
_ORIENTATION = 0x0112  # EXIF tag
_BITS, _PHOTOMETRIC, _PLANES = 258, 262, 284  # TIFF tags
_WHITE_IS_ZERO, _SEPARATE = 0, 2
_STDERR = 2
_TRANSPOSED = range(5, 9)  # orientations that swap width and height
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow's names of the formats that are read."""
_PLUGINS = ("Avif", "Bmp", "Gif", "Jpeg", "Jpeg2K", "Mpo", "Png", "Ppm", "Tiff", "WebP")
MOST_PIXELS = 178_956_970
"""Of a decoded image; a small file may say that it has any number. Pillow's own limit: 512 MiB in RGB."""
_ALTERS = {"JPEG": "JPEG", "MPO": "JPEG", "AVIF": "AVIF", "JPEG2000": "JPEG 2000", "GIF": "GIF"}
"""Formats of which programs write other numbers than they were given: of a GIF the places of the colours that are used."""
_SPREAD = {"L;2": 85, "L;4": 17}  # what Pillow multiplies the levels of grey files with less than 8 bits by
_BYTE, _SHORTS = 255, (";16B", ";16L", ";16N")
"""The highest level of 8 bits, and how Pillow's names of decoders of 16 bits end."""


def image_square(
    data: bytes, fit_of: Callable[[Size], Fit], *, channels: int, reduced: bool, pad: int, colours: Colours = PLAIN
) -> np.ndarray:
    """The square, or rectangle, of pixels that is cut from an encoded image, padded before: uint8 (h, w, channels).

    `fit_of`: from width and height, upright, to how it is cut; `reduced`: whether JPEGs are decoded at reduced scale. Raises what
    `fit_of` raises, ValueError for pixels that cannot be used, and whatever Pillow raises when the file cannot be read.
    """
    with open_image(data) as image:
        orientation = orientation_of(image)
        original = _upright(image.size, orientation)
        steps = fit_of(original)
        halvings = _halvings(image, steps, orientation) if reduced and not pad else 0
        pixels = decoded(data, image, channels=channels, colours=colours, halvings=halvings)
    if pad:
        pixels = Image.fromarray(padded(np.atleast_3d(np.asarray(pixels)), pad).squeeze())
    return apply(pixels, steps, halvings_done=halvings, original=original).reshape(steps.height, steps.width, channels)


def decoded(data: bytes, image: ImageFile.ImageFile, *, channels: int, colours: Colours = PLAIN, halvings: int = 0) -> Image.Image:
    """An image that `open_image` opened: upright, as grey or RGB, at 1 / 2^halvings of its size. Raises what `image_square` does."""
    misread = _misread(image)
    if misread is not None:
        raise ValueError(misread)
    orientation = orientation_of(image)
    pixels = _decoded(data, image, halvings, channels, colours)
    if orientation != 1:
        pixels.getexif()[_ORIENTATION] = orientation
        pixels = ImageOps.exif_transpose(pixels)
    return pixels


@contextmanager
def open_image(data: bytes) -> Iterator[ImageFile.ImageFile]:
    """An encoded image, of which the header is read. Raises ValueError for no bytes or too many pixels, and whatever Pillow raises."""
    if not data:
        raise ValueError("an empty file")
    try:
        image = Image.open(io.BytesIO(data), formats=_formats())
    except Image.DecompressionBombError:
        raise ValueError(f"more than {MOST_PIXELS:,} pixels") from None
    with image, _silent_tiff(image):
        _scale_transparency(image)
        yield image


def _scale_transparency(image: ImageFile.ImageFile) -> None:
    """The colour of a PNG that is transparent, in the 8 bits that Pillow decodes to: it leaves it in those of the file."""
    if image.format != "PNG" or not image.tile:
        return
    colour, depth = image.info.get("transparency"), str(image.tile[0][3])
    spread = _SPREAD.get(depth, 1)
    if isinstance(colour, int) and colour <= _BYTE // spread:
        image.info["transparency"] = colour * spread
    elif isinstance(colour, tuple) and depth == "RGB;16B":
        image.info["transparency"] = tuple(level >> 8 for level in colour)


def _misread(image: ImageFile.ImageFile) -> str | None:
    """What there is to say of a TIFF of which Pillow makes other levels than it has, without a word; None of all others."""
    tags = getattr(image, "tag_v2", {})  # of a TIFF alone
    if max(tags.get(_BITS, (1,))) <= 8:
        return None
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        return "a TIFF of 16 bits in which 0 is white, which would be read as its negative: save it with 0 for black"
    if tags.get(_PLANES) == _SEPARATE and image.tile and image.tile[0][0] == "raw":
        return "a TIFF of 16 bits with each channel in a plane of its own, which would be misread: save it with the channels together"
    return None


@functools.cache
def _formats() -> tuple[str, ...]:
    """Those of FORMATS that this version of Pillow has."""
    for name in _PLUGINS:  # not by Image.init(), which imports all there are and takes a tenth of a second
        with suppress(ImportError):
            importlib.import_module(f"PIL.{name}ImagePlugin")
    return tuple(name for name in FORMATS if name in Image.OPEN)


@contextmanager
def _silent_tiff(image: Image.Image) -> Iterator[None]:
    """Within it what libtiff says of damage is not on the terminal: it writes to the descriptor of stderr, past Python."""
    if image.format != "TIFF" or sys.stderr is None:
        yield
        return
    sys.stderr.flush()
    kept, nothing = os.dup(_STDERR), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, _STDERR)
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)
        os.close(nothing)


def number_map(data: bytes, *, wide: bool = False) -> np.ndarray:
    """The numbers of the pixels of an encoded map, upright: int64 (h, w). Of a palette it is the place, not the colour.

    `wide`: a map of points, of which colours are numbers of 24 bits, red + 256 green + 65536 blue; none with a palette.
    Raises ValueError for a picture that is no map, and whatever Pillow raises when the file cannot be read.
    """
    with open_image(data) as image:
        if image.format in _ALTERS or (image.format == "WEBP" and _is_lossy_webp(data)):
            raise ValueError(f"a {_ALTERS.get(image.format, 'lossy WebP')}, which alters numbers, as a map: save maps as PNG")
        orientation, raw = orientation_of(image), image.tile[0][3] if image.tile else None
        image.load()
        turned = ImageOps.exif_transpose(image) if orientation != 1 else image
        mode, values = turned.mode, np.asarray(turned)
    depth, most = raw if isinstance(raw, str) else raw[0] if raw else "", None
    if image.format == "PPM" and isinstance(raw, tuple) and len(raw) == 2:
        most = int(raw[1])
        depth = "RGB;16B" if mode == "RGB" and most > _BYTE else depth
    if depth.endswith(_SHORTS) and depth.partition(";")[0] not in ("I", "L"):
        forms = "in grey, or in RGB of 8 bits a channel" if wide else "in grey alone"
        raise ValueError(f"16 bits in several channels ({depth}) as a map, of which half are lost in reading: save it {forms}")
    return _numbers(_as_stored(values, depth, most), mode, wide=wide)


def _as_stored(values: np.ndarray, depth: str, most: int | None) -> np.ndarray:
    """The levels that the file has, where Pillow spread them from 0 to the most that it keeps. `most`: of a PPM the highest level."""
    if most is None:
        return values // _SPREAD.get(depth, 1)
    return np.rint(values.astype(np.int64) * most / (_BYTE if most <= _BYTE else 65535)).astype(np.int64)


def _is_lossy_webp(data: bytes) -> bool:
    """Whether the WebP has a part that is coded with loss."""
    place = 12
    while place + 8 <= len(data):
        name, length = data[place : place + 4], int.from_bytes(data[place + 4 : place + 8], "little")
        if name == b"VP8 " or (name == b"ANMF" and data[place + 24 : place + 28] == b"VP8 "):
            return True
        place += 8 + length + length % 2
    return False


def levels_of(data: bytes, *modes: str) -> np.ndarray:
    """The levels of an encoded image of numbers in channels, as they lie: uint8 (h, w, c). `modes`: it must have one of these, RGB, RGBA.

    Raises ValueError for others, and whatever Pillow raises when the file cannot be read.
    """
    with open_image(data) as image:
        if image.format != "PNG" or image.mode not in modes:
            raise ValueError(f"{image.format} in {image.mode}, expected PNG in {' or '.join(modes)}, whose levels are numbers")
        image.load()
        return np.asarray(ImageOps.exif_transpose(image))


def _numbers(values: np.ndarray, mode: str, *, wide: bool) -> np.ndarray:
    if wide:
        return _wide_numbers(values, mode)
    if mode in ("1", "L", "P", "I") or mode.startswith("I;16"):
        return values.astype(np.int64)
    if mode in ("LA", "PA"):
        return values[..., 0].astype(np.int64)
    if mode in ("RGB", "RGBA") and (values[..., :1] == values[..., 1:3]).all():
        return values[..., 0].astype(np.int64)
    kind = "fractions" if mode == "F" else "a picture in colour"
    raise ValueError(f"{kind} ({mode}) as a map: save one number for each pixel, as a PNG in grey or with a palette")


def _wide_numbers(values: np.ndarray, mode: str) -> np.ndarray:
    """Those of pixels of 24 bits in colour, or in grey. Not of a palette: its places are few, and programs number them as they like."""
    if mode == "RGBA" and (values[..., 3] == 255).all():
        values, mode = values[..., :3], "RGB"
    if mode == "RGB":
        return values.astype(np.int64) @ np.array([1, 2**8, 2**16])
    if mode in ("1", "L", "I") or mode.startswith("I;16"):
        return values.astype(np.int64)
    if mode == "LA":
        return values[..., 0].astype(np.int64)
    kind = {"F": "fractions", "P": "a palette", "PA": "a palette", "RGBA": "transparency"}.get(mode, "a picture in colour")
    raise ValueError(f"{kind} ({mode}) as a map of points: save their numbers in grey (8 or 16 bits) or in RGB without alpha, as a PNG")


def header_size(data: bytes) -> Size:
    """Upright width and height, from the header alone."""
    return header(data).size


def header_channels(data: bytes) -> int:
    """1 for a grey image, 3 for one in colour, from the header alone."""
    return header(data).channels


class Header(NamedTuple):
    """What the header of an image says."""

    size: Size
    "Upright width and height."
    channels: int
    "1: grey, 3: colour."


def header(data: bytes) -> Header:
    """What the header of an image says."""
    with open_image(data) as image:
        return _header(image)


def header_and_colours(data: bytes) -> tuple[Header, bool]:
    """What the header of an image says, and whether its pixels depend on `Colours`."""
    with open_image(data) as image:
        return _header(image), depend(image)


def _header(image: Image.Image) -> Header:
    grey = image.mode in ("1", "L", "LA", "F") or image.mode.startswith("I")
    return Header(_upright(image.size, orientation_of(image)), 1 if grey else 3)


def reason(error: Exception) -> str:
    """What is wrong with an image file, in one line."""
    if isinstance(error, Image.UnidentifiedImageError):
        return f"not an image that can be read ({', '.join(FORMATS)})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(error)


def orientation_of(image: Image.Image) -> int:
    """How a photograph was turned, by its EXIF data: 1 for upright, to 8."""
    if "exif" not in image.info:
        return 1
    value = image.getexif().get(_ORIENTATION, 1)
    return value if value in range(1, 9) else 1


def _upright(size: Size, orientation: int) -> Size:
    return (size[1], size[0]) if orientation in _TRANSPOSED else size


def _halvings(image: Image.Image, steps: Fit, orientation: int) -> int:
    """How many of the halvings of the fit the JPEG decoder can do."""
    if image.format not in ("JPEG", "MPO"):
        return 0
    halvings = 0
    while halvings < min(len(steps.halved), _LARGEST_REDUCTION) and all(side % 2 ** (halvings + 1) == 0 for side in image.size):
        halvings += 1
    # Where a side is odd, pixels of the halved image no longer lie on those of the decoder. One such halving can be corrected if
    # another follows that averages the error out; more of them would differ by more than 2/255. Nor may the image be turned:
    # the decoder rounds up at the right and bottom.
    more_follow = halvings + 1 < len(steps.halved) and halvings < _LARGEST_REDUCTION
    return halvings + 1 if more_follow and orientation == 1 else halvings


def _decoded(data: bytes, image: Image.Image, halvings: int, channels: int, colours: Colours) -> Image.Image:
    """The image as grey or RGB, at 1 / 2^halvings of its size."""
    mode = "L" if channels == 1 else "RGB"
    if halvings:
        size = (-(-image.width // 2**halvings), -(-image.height // 2**halvings))
        if channels == 3 and not is_converted(image, colours) and (pixels := _by_simplejpeg(data, size)) is not None:
            return converted(pixels, mode, colours, opened=image)
        image.draft(None, (image.width // 2**halvings, image.height // 2**halvings))
        if image.size != size:
            raise ValueError(f"decoded at {image.size[0]}x{image.size[1]} instead of {size[0]}x{size[1]}: set data.decode to exact")
    image.load()
    return converted(image, mode, colours)


def _by_simplejpeg(data: bytes, size: Size) -> Image.Image | None:
    """RGB at the reduced size, the same pixels as Pillow's and sooner; None where simplejpeg is missing or declines the file."""
    library = _simplejpeg()
    if library is None:
        return None
    try:
        pixels = library.decode_jpeg(data, "RGB", min_width=size[0], min_height=size[1])
    except ValueError:
        return None
    return Image.fromarray(pixels) if pixels.shape[:2] == (size[1], size[0]) else None


@functools.cache
def _simplejpeg() -> ModuleType | None:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg
