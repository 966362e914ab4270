"""Numbers of maps as they are in files, and how rectangles are planned and colours varied."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from tests.data.pairs import as_map, opened, write
from tests.data.pictures import encoded, picture
from triptych.data.decode import number_map
from triptych.data.transforms import apply_nearest, fit, recolour


@pytest.mark.parametrize(("size", "target"), [((24, 16), (8, 12)), ((31, 17), (8, 8)), ((45, 100), (16, 24)), ((10, 10), (16, 16))])
def test_maps_are_pillows_nearest_in_one_resize(size, target):
    height, width = target
    numbers = np.random.default_rng(1).integers(0, 250, (size[1], size[0]))
    for crop in (None, np.array([2**31, 2**30, 3 * 2**30])):
        steps = fit(size, height, crop, width=width)
        resized = np.asarray(Image.fromarray(numbers.astype(np.uint8)).resize(steps.resized, Image.Resampling.NEAREST))
        expected = resized[steps.top : steps.top + height, steps.left : steps.left + width]
        assert expected.shape == target
        # Pillow adds up floats, so that it may round a place between two pixels either way.
        rows, columns = (
            (2 * np.arange(start, start + length) + 1) * of % (2 * to) != 0
            for start, length, of, to in ((steps.top, height, size[1], steps.resized[1]), (steps.left, width, size[0], steps.resized[0]))
        )
        found = apply_nearest(numbers, steps)
        np.testing.assert_array_equal(found[rows][:, columns], expected[rows][:, columns])
        assert found.shape == target and (found == expected).mean() > 0.8


def test_rectangles_are_covered_by_the_smallest_image_that_can():
    assert fit((480, 360), 64, width=96).resized == (96, 72)
    assert fit((360, 480), 64, width=96).resized == (96, 128)
    assert fit((2048, 1024), 512, width=1024).halved == ((1024, 512),)
    assert fit((480, 360), 64, np.array([2**32 - 1, 0, 2**32 - 1]), resize=80, width=96, scale=0.5).resized == (180, 135)
    steps = fit((480, 360), 64, np.array([2**32 - 1, 0, 2**32 - 1]), resize=80, width=96)
    assert (steps.resized, steps.top, steps.left) == ((120, 90), 0, 24)


def test_scale_is_uniform_and_ends_where_it_says():
    drawn = np.linspace(0, 2**32 - 1, 5000).astype(np.int64)
    for resize, base in ((None, 20), (30, 30)):
        shorts = [fit((100, 100), 20, np.array([word, 0, 0]), resize=resize, scale=0.2).resized[0] for word in drawn]
        values, counts = np.unique(shorts, return_counts=True)
        assert values.tolist() == list(range(base, round(1.2 * base) + 1))
        assert counts.max() - counts.min() <= 2


# Jitter


def test_jitter_changes_images_in_colour_alike_and_nothing_else(tmp_path):
    for k in range(4):
        pixels = picture(24, 16, seed=k)
        for folder, data in (("images", encoded(pixels)), ("night", encoded(pixels)), ("edges", encoded(pixels[..., :1]))):
            write(tmp_path / folder / f"{k}.png", data)
        write(tmp_path / "labels" / f"{k}.png", as_map(pixels[..., 0]))
        write(tmp_path / "objects" / f"{k}.png", as_map(pixels[..., 0].astype(np.uint16)))
    still, varied = (opened(tmp_path, num_classes=(256,), jitter=amount).train for amount in (0.0, 0.3))
    items = np.arange(4)
    one, other = still.batch(items, items, seed=5), varied.batch(items, items, seed=5)
    assert (one.images != other.images).any(axis=(1, 2, 3)).all()
    np.testing.assert_array_equal(other.inputs["night"], other.images)
    for name in ("labels", "objects", "edges"):
        np.testing.assert_array_equal(one.inputs[name], other.inputs[name])
    np.testing.assert_array_equal(varied.batch(items).images, still.batch(items).images)


def test_jitter_is_as_described():
    image = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    for unit in ((-1.0, 0.5, 0.25), (0.5, -1.0, -1.0), (0.0, 0.0, 0.0)):
        drawn = ((np.array([unit]) + 1) * 2.0**31).astype(np.int64)
        changed = image.copy()
        recolour(changed, drawn, amount=0.4)
        brightness, contrast, gamma = 1 + 0.4 * unit[0], 1 + 0.4 * unit[1], 1.4 ** unit[2]
        expected = np.clip(brightness * (contrast * ((image / 255) ** gamma - 0.5) + 0.5), 0, 1) * 255
        assert np.abs(changed - expected).max() <= 0.5 + 1e-9
    assert np.array_equal(changed, image)


# The numbers of maps


def packed(numbers: np.ndarray, *, bits: int) -> bytes:
    """A grey PNG with less than 8 bits to a pixel, which Pillow cannot write."""
    height, width = numbers.shape
    rows = b"".join(
        b"\0" + np.packbits((row[:, None] >> np.arange(bits - 1, -1, -1) & 1).astype(np.uint8).reshape(-1)).tobytes() for row in numbers
    )
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    parts = [struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_numbers_are_read_as_they_are():
    numbers = np.random.default_rng(0).integers(0, 256, (8, 16))
    for palette in (False, True):
        np.testing.assert_array_equal(number_map(as_map(numbers, palette=palette)), numbers)
    large = numbers.astype(np.uint16) * 255
    np.testing.assert_array_equal(number_map(as_map(large)), large)
    np.testing.assert_array_equal(number_map(encoded(np.repeat(numbers[..., None].astype(np.uint8), 3, axis=-1))), numbers)
    with_alpha = np.stack([numbers, 255 - numbers], axis=-1).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(with_alpha, "LA").save(buffer, "PNG")
    np.testing.assert_array_equal(number_map(buffer.getvalue()), numbers)


def saved_as(values: np.ndarray, mode: str, *, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(values, mode).save(buffer, kind)
    return buffer.getvalue()


def test_points_are_numbers_in_grey_or_in_colour_and_nothing_else():
    bytes_of = np.random.default_rng(0).integers(0, 256, (8, 16, 4)).astype(np.uint8)
    points = bytes_of[..., :3].astype(np.int64) @ np.array([1, 256, 65536])
    np.testing.assert_array_equal(number_map(encoded(bytes_of[..., :3]), wide=True), points)
    grey = np.repeat(bytes_of[..., :1], 3, axis=-1)
    np.testing.assert_array_equal(number_map(encoded(grey), wide=True), bytes_of[..., 0].astype(np.int64) * 65793)
    for values in (bytes_of[..., 0], bytes_of[..., 0].astype(np.uint16) * 257):
        np.testing.assert_array_equal(number_map(as_map(values), wide=True), values)
    far = (points + 1_900_000_000).astype(np.int32)
    np.testing.assert_array_equal(number_map(saved_as(far, "I", kind="TIFF"), wide=True), far)
    np.testing.assert_array_equal(number_map(saved_as(bytes_of[..., :2].copy(), "LA"), wide=True), bytes_of[..., 0])
    opaque = bytes_of.copy()
    opaque[..., 3] = 255
    np.testing.assert_array_equal(number_map(saved_as(opaque, "RGBA"), wide=True), points)
    clear = np.concatenate((grey, bytes_of[..., 3:]), axis=-1)
    for data, kind in (
        (as_map(bytes_of[..., 0], palette=True), "a palette (P)"),
        (saved_as(clear, "RGBA"), "transparency (RGBA)"),
        (saved_as(far.astype(np.float32), "F", kind="TIFF"), "fractions (F)"),
        (saved_as(bytes_of, "CMYK", kind="TIFF"), "a picture in colour (CMYK)"),
    ):
        with pytest.raises(ValueError) as refused:
            number_map(data, wide=True)
        forms = "save their numbers in grey (8 or 16 bits) or in RGB without alpha, as a PNG"
        assert str(refused.value) == f"{kind} as a map of points: {forms}"


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_numbers_of_few_bits_are_not_spread(bits):
    numbers = np.random.default_rng(0).integers(0, 2**bits, (5, 16))
    np.testing.assert_array_equal(number_map(packed(numbers, bits=bits)), numbers)


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("JPEG", {}, "JPEG"),
        ("WEBP", {"quality": 80}, "lossy WebP"),
        ("WEBP", {"quality": 80, "append_images": [Image.new("L", (16, 8), 3)], "save_all": True}, "lossy WebP"),
        ("AVIF", {}, "AVIF"),
        ("JPEG2000", {}, "JPEG 2000"),
        ("GIF", {}, "GIF"),
    ],
)
def test_maps_whose_numbers_were_altered_are_refused(kind, settings, said):
    numbers = np.random.default_rng(0).integers(0, 12, (8, 16)).astype(np.uint8)
    buffer = io.BytesIO()
    try:
        Image.fromarray(numbers).save(buffer, kind, **settings)
    except (KeyError, OSError):
        pytest.skip(f"this Pillow writes no {kind}")
    with pytest.raises(ValueError, match=f"^a {said}, which alters numbers, as a map: save maps as PNG$"):
        number_map(buffer.getvalue())


def test_maps_without_loss_are_read():
    numbers = np.random.default_rng(0).integers(0, 12, (8, 16)).astype(np.uint8)
    for kind, settings in (("WEBP", {"lossless": True, "exact": True}), ("TIFF", {}), ("BMP", {})):
        buffer = io.BytesIO()
        Image.fromarray(numbers).save(buffer, kind, **settings)
        np.testing.assert_array_equal(number_map(buffer.getvalue()), numbers)


@pytest.mark.parametrize("most", [3, 15, 255, 300, 65535])
def test_a_pgm_has_the_numbers_of_its_range(most):
    numbers = np.random.default_rng(0).integers(0, most + 1, (8, 16))
    raw = numbers.astype(np.uint8 if most < 256 else ">u2").tobytes()
    plain = " ".join(map(str, numbers.reshape(-1))).encode()
    for header, body in ((b"P5", raw), (b"P2", plain)):
        np.testing.assert_array_equal(number_map(header + f" 16 8 {most}\n".encode() + body), numbers)


@pytest.mark.parametrize(("channels", "colour"), [(2, 4), (3, 2), (4, 6)])
def test_16_bits_in_several_channels_are_no_map(channels, colour):
    rows = b"".join(b"\0" + struct.pack(">H", 300) * channels * 4 for _ in range(2))
    header = struct.pack(">IIBBBBB", 4, 2, 16, colour, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    parts = [struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    for wide, forms in ((False, "in grey alone"), (True, "in grey, or in RGB of 8 bits a channel")):
        with pytest.raises(ValueError, match=rf"^16 bits in several channels \(.*;16B\) as a map, .*: save it {forms}$"):
            number_map(data, wide=wide)


def tiff_of_16_bits(order: str) -> bytes:
    """A file of 2x1 pixels in RGB, uncompressed, by TIFF 6.0, section 6. `order`: of the bytes, "<" or ">"."""
    entries = (
        (256, 3, 1, 2),
        (257, 3, 1, 1),
        (258, 3, 3, 8),
        (259, 3, 1, 1),
        (262, 3, 1, 2),
        (273, 4, 1, 14),
        (277, 3, 1, 3),
        (279, 4, 1, 12),
    )
    pixels, first = struct.pack(f"{order}6H", 300, 300, 300, 5, 5, 5), 32
    table = b"".join(
        struct.pack(f"{order}HHI", tag, kind, count) + struct.pack(f"{order}{'HH' if (kind, count) == (3, 1) else 'I'}", *value)
        for tag, kind, count, number in entries
        for value in [(number, 0) if (kind, count) == (3, 1) else (number,)]
    )
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, first)
    depths = struct.pack(f"{order}3H", 16, 16, 16)
    return head + depths + pixels + b"\0" * 6 + struct.pack(f"{order}H", len(entries)) + table + b"\0" * 4


@pytest.mark.parametrize("wide", [False, True])
def test_16_bits_in_colour_are_no_map_in_any_format(wide):
    plain = b"P3 2 1 65535\n" + b"300 300 300 5 5 5"
    for data in (tiff_of_16_bits("<"), tiff_of_16_bits(">"), plain, b"P6 2 1 65535\n" + struct.pack(">6H", 300, 300, 300, 5, 5, 5)):
        with pytest.raises(ValueError, match=r"^16 bits in several channels \(RGB;16[BL]\) as a map"):
            number_map(data, wide=wide)


def test_points_of_a_ppm_are_numbers_of_its_range():
    levels = np.random.default_rng(0).integers(0, 101, (8, 16, 3))
    data = b"P6 16 8 100\n" + levels.astype(np.uint8).tobytes()
    np.testing.assert_array_equal(number_map(data, wide=True), levels @ np.array([1, 256, 65536]))


def test_maps_of_turned_photographs_are_turned():
    numbers = np.arange(12).reshape(3, 4)
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.fromarray(numbers.astype(np.uint8)).save(buffer, "PNG", exif=exif)
    np.testing.assert_array_equal(number_map(buffer.getvalue()), np.rot90(numbers, -1))
