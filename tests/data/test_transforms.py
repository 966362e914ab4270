from __future__ import annotations

import math
import struct
import zlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import encoded, picture, textured
from triptych.core.rng import key_of, words
from triptych.data import decode
from triptych.data.colours import Colours
from triptych.data.config import DataConfig
from triptych.data.cut import Cut, TooSmall
from triptych.data.transforms import apply, draw, fit, mirror, padded, with_channels

AS_LIES = Colours(background=None, profiles="ignore")


def square(data: bytes, image_size: int, *, crop: np.ndarray | None = None, channels: int = 3, **options: Any) -> np.ndarray:
    return Cut(image_size, **{"enlarge": True} | options).image(data, channels, crop)


def as_described(image: Image.Image, image_size: int, short: int, offset) -> np.ndarray:
    """The crop in the words of guided-diffusion's description; `offset` gives the corner along an axis of some length."""
    while min(image.size) >= 2 * short:
        image = image.resize((image.width // 2, image.height // 2), Image.Resampling.BOX)
    scale = short / min(image.size)
    pixels = np.array(image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC))
    top, left = offset(pixels.shape[0], 0), offset(pixels.shape[1], 1)
    return pixels[top : top + image_size, left : left + image_size]


SIZES = [(16, 16), (17, 16), (16, 31), (32, 32), (33, 70), (100, 47), (129, 64), (9, 12)]


@pytest.mark.parametrize("size", SIZES)
def test_centre_crop_is_as_described(size):
    pixels = picture(*size)
    expected = as_described(Image.fromarray(pixels), 16, 16, lambda length, axis: (length - 16) // 2)
    np.testing.assert_array_equal(square(encoded(pixels), 16), expected)


def test_halving_averages_pairs():
    pixels = picture(64, 64).astype(int)
    for _ in range(2):
        rows = (pixels[:, ::2] + pixels[:, 1::2] + 1) >> 1
        pixels = (rows[::2] + rows[1::2] + 1) >> 1
    np.testing.assert_array_equal(square(encoded(picture(64, 64)), 16), pixels)


@pytest.mark.parametrize("size", SIZES)
def test_random_crop_is_as_described(size):
    pixels = picture(*size)
    for drawn in words(np.arange(20), key=(1, 2), count=3):
        short = 16 + (int(drawn[0]) * (math.ceil(16 / 0.8) - 16 + 1) >> 32)
        expected = as_described(
            Image.fromarray(pixels), 16, short, lambda length, axis, drawn=drawn: int(drawn[1 + axis]) * (length - 16 + 1) >> 32
        )
        np.testing.assert_array_equal(square(encoded(pixels), 16, crop=drawn), expected)


@pytest.mark.parametrize("image_size", [4, 7, 16, 28, 32, 64, 100, 256])
def test_random_crop_covers_every_scale_and_place_up_to_the_described_largest(image_size):
    extremes = [np.array([a, b, c]) for a in (0, 2**32 - 1) for b in (0, 2**32 - 1) for c in (0, 2**32 - 1)]
    fits = [fit((1000, 1000), image_size, words_of) for words_of in extremes]
    assert {steps.resized[0] for steps in fits} == {image_size, math.ceil(image_size / 0.8)}
    for steps in fits:
        assert {steps.top, steps.left} <= {0, steps.resized[0] - image_size}


def test_random_crop_scales_are_equally_likely():
    drawn = words(np.arange(5000), key=(3, 4), count=3)
    counts = Counter(fit((100, 100), 16, d).resized[0] for d in drawn)
    assert sorted(counts) == [16, 17, 18, 19, 20]
    assert all(abs(count - 1000) < 5 * math.sqrt(1000) for count in counts.values())


def test_a_given_short_side_is_what_the_square_is_cut_from():
    pixels = picture(100, 150)
    for drawn in (None, *words(np.arange(20), key=(5, 6), count=3)):

        def place(length, axis, drawn=drawn):
            return (length - 16) // 2 if drawn is None else int(drawn[1 + axis]) * (length - 16 + 1) >> 32

        expected = as_described(Image.fromarray(pixels), 16, 24, place)
        np.testing.assert_array_equal(square(encoded(pixels), 16, crop=drawn, resize=24), expected)


RANDOM = DataConfig(crop="random")


def test_draws_depend_on_seed_and_position_alone():
    whole = draw(np.arange(1000), RANDOM, seed=5)
    part = draw(np.array([7, 999, 3]), RANDOM, seed=5)
    np.testing.assert_array_equal(part.flip, whole.flip[[7, 999, 3]])
    np.testing.assert_array_equal(part.crop, whole.crop[[7, 999, 3]])
    assert abs(whole.flip.mean() - 0.5) < 0.08
    assert (draw(np.arange(1000), DataConfig(), seed=6).flip != whole.flip).mean() > 0.4
    np.testing.assert_array_equal(whole.flip, words(np.arange(1000), key=key_of(5, "data", "flip"))[:, 0] >= 2**31)
    assert not draw(np.arange(1000), DataConfig(flip=False), seed=5).flip.any()


@pytest.mark.parametrize("channels", [1, 3])
def test_mirror_turns_the_chosen_left_to_right(channels):
    images = np.stack([picture(6, 4, seed=k, channels=channels) for k in range(3)])
    mirrored = images.copy()
    mirror(mirrored, np.array([True, False, True]))
    np.testing.assert_array_equal(mirrored[0], np.flip(images[0], axis=1))
    np.testing.assert_array_equal(mirrored[1], images[1])
    np.testing.assert_array_equal(mirrored[2], np.flip(images[2], axis=1))


def test_grey_is_pillows_grey():
    every = np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3), dtype=np.uint8)
    np.testing.assert_array_equal(with_channels(every, 1)[0, ..., 0], np.asarray(Image.fromarray(every[0]).convert("L")))
    np.testing.assert_array_equal(with_channels(every[..., :1], 3), np.repeat(every[..., :1], 3, axis=-1))


def test_an_image_of_the_right_size_is_untouched():
    pixels = picture(16, 16)
    np.testing.assert_array_equal(apply(Image.fromarray(pixels), fit((16, 16), 16)), pixels)


# Modes


def saved(image: Image.Image, file_format: str = "PNG", **options: object) -> bytes:
    import io

    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def test_palette_and_transparent_palette():
    image = Image.fromarray(picture(16, 16)).quantize(16)
    expected = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(square(saved(image), 16), expected)
    np.testing.assert_array_equal(square(saved(image, transparency=bytes(range(16))), 16, colours=AS_LIES), expected)
    np.testing.assert_array_equal(square(saved(image, "GIF"), 16), expected)


def test_alpha_is_dropped_where_there_is_no_background():
    pixels, alpha = picture(16, 16), np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    np.testing.assert_array_equal(square(saved(Image.fromarray(np.concatenate([pixels, alpha], -1))), 16, colours=AS_LIES), pixels)
    grey = np.concatenate([pixels[..., :1], alpha], -1)
    np.testing.assert_array_equal(square(saved(Image.fromarray(grey, "LA")), 16, channels=1, colours=AS_LIES), pixels[..., :1])


def test_sixteen_bits_are_scaled():
    values = np.random.default_rng(0).permutation(65536)[:256].astype(np.uint16).reshape(16, 16)
    expected = np.round(values / 257).astype(np.uint8)
    for file_format in ("PNG", "TIFF"):
        np.testing.assert_array_equal(square(saved(Image.fromarray(values), file_format), 16, channels=1)[..., 0], expected)


def tiff(levels: np.ndarray, *, photometric: int, planes: bool, compressed: bool = False) -> bytes:
    """A TIFF of 16 bits (h, w, c). `planes`: the channels one after the other."""
    height, width, channels = levels.shape
    strips = [levels[..., c].tobytes() for c in range(channels)] if planes else [levels.tobytes()]
    strips = [zlib.compress(strip) for strip in strips] if compressed else strips
    starts = [8 + sum(map(len, strips[:k])) for k in range(len(strips))]
    shorts = {256: [width], 257: [height], 258: [16] * channels, 262: [photometric], 277: [channels], 278: [height]}
    shorts |= {259: [8 if compressed else 1], 284: [2 if planes else 1]}
    tags = {**{tag: ("H", each) for tag, each in shorts.items()}, 273: ("I", starts), 279: ("I", [len(strip) for strip in strips])}
    directory = 8 + sum(map(len, strips))
    behind = directory + 2 + 12 * len(tags) + 4
    entries = further = b""
    for tag, (kind, values) in sorted(tags.items()):
        value = struct.pack(f"<{len(values)}{kind}", *values)
        if len(value) > 4:
            value, further = struct.pack("<I", behind + len(further)), further + value
        entries += struct.pack("<HHI", tag, {"H": 3, "I": 4}[kind], len(values)) + value.ljust(4, b"\0")
    return struct.pack("<2sHI", b"II", 42, directory) + b"".join(strips) + struct.pack("<H", len(tags)) + entries + bytes(4) + further


def test_tiffs_of_sixteen_bits_that_pillow_misreads():
    """It makes negatives of those in which 0 is white, and noise of planes, and says nothing."""
    levels = np.random.default_rng(0).integers(0, 65536, (16, 16, 3)).astype("<u2")
    np.testing.assert_array_equal(square(tiff(levels, photometric=2, planes=False), 16), levels >> 8)
    grey = square(tiff(levels[..., :1], photometric=1, planes=False), 16, channels=1)
    np.testing.assert_array_equal(grey, np.round(levels[..., :1] / 257))
    with pytest.raises(ValueError, match="^a TIFF of 16 bits in which 0 is white, .*: save it with 0 for black$"):
        square(tiff(levels[..., :1], photometric=0, planes=False), 16, channels=1)
    with pytest.raises(ValueError, match="^a TIFF of 16 bits with each channel in a plane of its own, .* with the channels together$"):
        square(tiff(levels, photometric=2, planes=True), 16)
    np.testing.assert_array_equal(square(tiff(levels, photometric=2, planes=True, compressed=True), 16), levels >> 8)
    white_is_zero = saved(Image.fromarray(picture(16, 16, channels=1)[..., 0]), "TIFF")
    entry = struct.pack("<HHIHH", 262, 3, 1, 1, 0)
    assert white_is_zero.count(entry) == 1
    negative = white_is_zero.replace(entry, struct.pack("<HHIHH", 262, 3, 1, 0, 0))  # of 8 bits, which Pillow reads as they are meant
    np.testing.assert_array_equal(square(negative, 16, channels=1), 255 - picture(16, 16, channels=1))


def test_other_modes():
    one = Image.fromarray(np.eye(16, dtype=bool))
    np.testing.assert_array_equal(square(saved(one), 16)[..., 0], 255 * np.eye(16))
    cmyk = Image.fromarray(np.full((16, 16, 4), [0, 255, 255, 0], dtype=np.uint8), "CMYK")
    np.testing.assert_array_equal(square(saved(cmyk, "TIFF"), 16)[0, 0], [255, 0, 0])
    webp = saved(Image.fromarray(picture(16, 16)), "WEBP", lossless=True)
    np.testing.assert_array_equal(square(webp, 16), picture(16, 16))
    for values in (np.full((16, 16), 70000, dtype=np.int32), np.zeros((16, 16), dtype=np.float32)):
        with pytest.raises(ValueError, match="pixels"):
            square(saved(Image.fromarray(values), "TIFF"), 16)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(64, 48), (63, 47)])
@pytest.mark.parametrize("reduced", [False, True])
def test_photographs_are_turned_upright(orientation, size, reduced):
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = picture(*size)
    turned = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright),
        7: np.rot90(upright.transpose(1, 0, 2), 2),
        8: np.rot90(upright, -1),
    }[orientation]
    data = encoded(np.ascontiguousarray(turned), "JPEG", quality=95, subsampling=0, exif=exif)
    difference = np.abs(square(data, 16, reduced=reduced).astype(int) - square(encoded(upright), 16)).mean()
    assert difference < 3


# Reduced scale


@pytest.mark.parametrize("library", ["simplejpeg", "Pillow"])
@pytest.mark.parametrize("size", [(256, 256), (480, 360), (255, 301), (500, 375), (641, 427), (1030, 1025)])
@pytest.mark.parametrize("crop", [None, np.array([2**31, 2**30, 2**31])])
def test_reduced_decoding_is_near_exact(monkeypatch, library, size, crop):
    if library == "Pillow":
        monkeypatch.setattr(decode, "_simplejpeg", lambda: None)
    else:
        pytest.importorskip("simplejpeg")
    data = encoded(textured(*size), "JPEG", quality=90)
    exact, reduced = (square(data, 64, crop=crop, reduced=reduced).astype(int) for reduced in (False, True))
    assert (exact != reduced).any() == (size != (255, 301))  # odd, and halved once: nothing to gain within the tolerance
    assert np.abs(exact - reduced).mean() < 2


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_reduced_decoding_of_what_is_turned_is_near_exact(orientation):
    """Of an odd side the decoder rounds up at the end that is the beginning when it is upright."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(textured(641, 427), "JPEG", quality=90, exif=exif)
    exact, reduced = (square(data, 64, reduced=reduced).astype(int) for reduced in (False, True))
    assert np.abs(exact - reduced).mean() < 2


def test_both_libraries_reduce_to_the_same_pixels(monkeypatch):
    pytest.importorskip("simplejpeg")
    data = [encoded(picture(200 + k, 300 - k, seed=k), "JPEG", quality=80 + k, subsampling=k % 3) for k in range(6)]
    data.append(encoded(picture(200, 200, channels=1), "JPEG"))
    fast = [square(each, 40, reduced=True) for each in data]
    monkeypatch.setattr(decode, "_simplejpeg", lambda: None)
    for one, other in zip(fast, [square(each, 40, reduced=True) for each in data], strict=True):
        np.testing.assert_array_equal(one, other)


def test_reduced_leaves_other_files_exact():
    small, png = encoded(picture(70, 70), "JPEG"), encoded(picture(200, 200))
    for data in (small, png):
        np.testing.assert_array_equal(square(data, 64, reduced=True), square(data, 64))


def test_small_images_are_refused_unless_enlarged():
    data = encoded(picture(30, 15))
    with pytest.raises(TooSmall, match=r"30x15 pixels, smaller than data.image_size 16"):
        square(data, 16, enlarge=False)
    assert square(data, 16, enlarge=True).shape == (16, 16, 3)
    assert square(data, 15, enlarge=False).shape == (15, 15, 3)


def test_a_border_is_the_least_of_each_column_and_row():
    image = np.array([[[5, 1], [9, 2]], [[7, 4], [3, 8]]], dtype=np.uint8)
    for images in (image, image[None]):
        found = padded(images, 1)
        assert found.shape == (*images.shape[:-3], 4, 4, 2) and found.dtype == np.uint8
        assert found[..., 0].reshape(4, 4).tolist() == [[3, 5, 3, 3], [5, 5, 9, 5], [3, 7, 3, 3], [3, 5, 3, 3]]
        assert found[..., 1].reshape(4, 4).tolist() == [[1, 1, 2, 1], [1, 1, 2, 1], [4, 4, 8, 4], [1, 1, 2, 1]]
    assert padded(image, 0) is image
