"""What is found wrong with a file: each fault on files made here, and nothing on a good one."""

from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from tests.data.pairs import as_map
from tests.data.pictures import encoded, picture
from triptych.data.colours import Colours
from triptych.data.cut import Cut
from triptych.data.faults import FAULTS, bit
from triptych.data.looking import Look, Wanted, look_at, look_at_map
from triptych.data.stored import BadImage, failure
from triptych.data.transforms import with_channels

WANTED = Wanted(32)
PIXELS = picture(60, 40)


def saved(image: Image.Image, file_format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def faults(look: Look) -> set[str]:
    return {fault.name for fault in FAULTS if int(look.row["faults"]) & bit(fault.name)}


def found(data: bytes, name: str = "a.png", wanted: Wanted = WANTED) -> set[str]:
    return faults(look_at(data, name, wanted))


def transparent(beneath: np.ndarray, share: float = 0.5) -> Image.Image:
    alpha = np.full(beneath.shape[:2], 255, dtype=np.uint8)
    alpha[: round(share * len(alpha))] = 0
    return Image.fromarray(np.dstack([beneath, alpha]))


def halved() -> np.ndarray:
    """A picture whose upper half is black."""
    pixels = PIXELS.copy()
    pixels[:20] = 0
    return pixels


def profile(name: str) -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile(name)).tobytes()


def turned(value: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


def declared(width: int, height: int) -> bytes:
    """A PNG of these sides, of which there are no pixels."""
    chunk = b"IHDR" + width.to_bytes(4) + height.to_bytes(4) + bytes([8, 2, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4) + chunk + zlib.crc32(chunk).to_bytes(4) + encoded(PIXELS)[33:]


IMAGE = Image.fromarray(PIXELS)
MOVED = Image.fromarray(picture(60, 40, seed=1))
MADE = {
    "good": (encoded(PIXELS), set()),
    "good jpeg": (encoded(PIXELS, "JPEG"), {"misnamed"}),
    "empty": (b"", {"empty"}),
    "text": (b"<html>not found</html>", {"unreadable"}),
    "cut header": (encoded(PIXELS)[:20], {"unreadable"}),
    "cut": (encoded(PIXELS)[:-900], {"truncated"}),
    "cut jpeg": (encoded(PIXELS, "JPEG")[:-300], {"truncated", "misnamed"}),
    "damaged": (encoded(PIXELS)[:300] + bytes(300) + encoded(PIXELS)[600:], {"damaged"}),
    "fractions": (saved(Image.fromarray(PIXELS[..., 0].astype(np.float32)), "TIFF"), {"damaged", "misnamed"}),
    "bomb": (declared(20_000, 10_000), {"bomb"}),
    "huge": (declared(9_000, 9_000), {"huge"}),
    "a lie": (declared(600, 400), {"damaged"}),
    "animation": (saved(IMAGE, save_all=True, append_images=[MOVED]), {"animated"}),
    "gif": (saved(IMAGE, "GIF", save_all=True, append_images=[MOVED]), {"animated", "misnamed"}),
    "pages": (saved(IMAGE, "TIFF", save_all=True, append_images=[MOVED]), {"animated", "misnamed"}),
    "cmyk": (saved(IMAGE.convert("CMYK"), "JPEG"), {"cmyk", "misnamed"}),
    "16 bits": (saved(Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257)), {"deep"}),
    "opaque": (saved(transparent(PIXELS, 0.0)), set()),
    "alpha": (saved(transparent(halved())), {"alpha"}),
    "hidden": (saved(transparent(PIXELS)), {"alpha", "hidden"}),
    "palette": (saved(IMAGE.quantize(16), transparency=3), {"alpha"}),
    "a colour": (saved(IMAGE, transparency=tuple(map(int, PIXELS[3, 4]))), {"alpha"}),
    "another colour": (saved(Image.fromarray(PIXELS // 2), transparency=(255, 0, 0)), set()),
    "a level": (saved(IMAGE.convert("L"), transparency=int(np.asarray(IMAGE.convert("L"))[3, 4])), {"alpha"}),
    "turned": (saved(IMAGE, exif=turned(6)), {"turned"}),
    "upright": (saved(IMAGE, exif=turned(1)), set()),
    "sRGB": (saved(IMAGE, icc_profile=profile("sRGB")), set()),
    "another profile": (saved(IMAGE, icc_profile=profile("LAB")), {"profile"}),
    "broken profile": (saved(IMAGE, icc_profile=b"none"), {"profile"}),
    "small": (encoded(PIXELS[:31]), {"small"}),
    "just large enough": (encoded(PIXELS[:32, :32]), set()),
    "long": (encoded(picture(97, 32)), {"extreme"}),
    "not too long": (encoded(picture(96, 32)), set()),
    "flat": (encoded(np.full((40, 40, 3), 9, dtype=np.uint8) + (np.arange(40) % 5)[:, None].astype(np.uint8)), {"flat"}),
    "not flat": (encoded(np.full((40, 40, 3), 9, dtype=np.uint8) + (np.arange(40) % 6)[:, None].astype(np.uint8)), set()),
}  # fmt: skip


@pytest.mark.parametrize("kind", MADE)
def test_faults(kind: str) -> None:
    data, expected = MADE[kind]
    assert found(data) == expected


def test_an_rgb_file_of_16_bits() -> None:
    """Pillow cannot write one."""
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in PIXELS.astype(np.uint16) * 257)
    chunks = [(b"IHDR", (60).to_bytes(4) + (40).to_bytes(4) + bytes([16, 2, 0, 0, 0])), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    data = b"".join(len(body).to_bytes(4) + kind + body + zlib.crc32(kind + body).to_bytes(4) for kind, body in chunks)
    look = look_at(b"\x89PNG\r\n\x1a\n" + data, "a.png", WANTED)
    assert faults(look) == {"deep"}
    assert (look.row["digest"] == look_at(encoded(PIXELS), "a.png", WANTED).row["digest"]).all()


@pytest.mark.parametrize(("name", "expected"), [("a.JPG", set()), ("a.jfif", set()), ("a.webp", {"misnamed"}), ("a", set()), ("7", set())])
def test_names(name: str, expected: set[str]) -> None:
    assert found(encoded(PIXELS, "JPEG"), name) == expected


def test_any_size_will_do_unless_one_is_asked_for() -> None:
    data = encoded(PIXELS[:8, :8])
    assert found(data) == {"small"}
    assert found(data, wanted=Wanted(None)) == set() == found(data, wanted=Wanted(32, enlarge=True))
    assert found(encoded(PIXELS), wanted=Wanted(32, 64)) == {"small"}, "60 pixels wide"
    assert found(encoded(PIXELS), wanted=Wanted(32, 48)) == set()


def test_a_thin_image_is_not_enlarged_to_fill_the_memory() -> None:
    look = look_at(encoded(picture(4000, 1)), "a.png", Wanted(512))
    assert faults(look) >= {"small", "extreme"} and look.row["values"] == 512 * 512 * 3


def test_the_hashes_are_of_what_training_sees() -> None:
    """The same pixels in another format, mode or turn are one picture, and one level more is another."""
    base = look_at(encoded(PIXELS), "a.png", WANTED).row
    for data in (saved(transparent(PIXELS, 0)), encoded(PIXELS, "BMP"), saved(IMAGE.transpose(Image.Transpose.ROTATE_90), exif=turned(6))):
        row = look_at(data, "a", WANTED).row
        assert (row["digest"] == base["digest"]).all() and row["hash"] == base["hash"]
        assert (row["width"], row["height"]) == (60, 40)
    clear = saved(transparent(PIXELS))
    beneath = look_at(clear, "a.png", Wanted(32, colours=Colours(None))).row
    assert (beneath["digest"] == base["digest"]).all(), "the colours beneath"
    white = PIXELS.copy()
    white[:20] = 255
    assert (look_at(clear, "a.png", WANTED).row["digest"] == look_at(white, "0", WANTED).row["digest"]).all(), "a background"
    assert (look_at(PIXELS, "0", WANTED).row["digest"] == base["digest"]).all(), "an array of pixels"
    other = PIXELS.copy()
    other[-1, -1, -1] ^= 1
    assert (look_at(encoded(other), "a.png", WANTED).row["digest"] != base["digest"]).any()
    reshaped = PIXELS.reshape(30, 80, 3)
    assert (look_at(encoded(reshaped), "a.png", Wanted(None)).row["digest"] != base["digest"]).any(), "the same bytes, other sides"


@pytest.mark.parametrize("size", [(60, 40), (32, 32), (200, 130)])
def test_sums_are_of_the_squares_that_training_sees(size: tuple[int, int]) -> None:
    for channels in (1, 3):
        data = encoded(picture(*size, channels=channels))
        row = look_at(data, "a.png", WANTED).row
        square = with_channels(Cut(32).image(data, channels), 3).astype(np.int64)
        assert (row["values"], row["total"], row["squares"]) == (square.size, square.sum(), (square**2).sum())
        assert row["grey"] == (channels == 1)


def test_what_is_readable_here_is_readable_in_training() -> None:
    """On 240 files of six formats, cut or changed at places that a seed draws."""
    generator = np.random.default_rng(0)
    whole = [encoded(PIXELS, kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM")]
    read = 0
    for k in range(240):
        data = bytearray(whole[k % len(whole)])
        if k % 3 == 0:
            data = data[: generator.integers(0, len(data))]
        for place in generator.integers(0, max(1, len(data)), 4) if k % 3 else ():
            data[place] = generator.integers(0, 256)
        look = look_at(bytes(data), "a.png", Wanted(32, enlarge=True))
        try:
            Cut(32, enlarge=True).image(bytes(data), 3)
            trains = True
        except Exception as error:  # any, for training takes any for a bad file but those of the machine
            assert isinstance(failure("a.png", error), BadImage)
            trains = False
        stops = {fault.name for fault in FAULTS if fault.stops} & faults(look)
        assert bool(look.row["decoded"]) == trains == (not stops), (k, faults(look))
        read += trains
    assert 40 < read < 200


def test_maps() -> None:
    numbers = np.arange(20 * 16).reshape(16, 20) % 3
    assert faults(look_at_map(as_map(numbers), num_classes=3)) == set()
    assert faults(look_at_map(as_map(numbers), num_classes=None)) == set()
    look = look_at_map(as_map(numbers, palette=True), num_classes=2)
    assert faults(look) == {"classes"} and look.reasons == {"classes": "holds 2; 0 to 1 expected"}
    assert (look.row["width"], look.row["height"], look.row["decoded"]) == (20, 16, True)
    assert faults(look_at_map(encoded(PIXELS), num_classes=3)) == {"damaged"}, "a picture in colour"
    assert faults(look_at_map(b"", num_classes=3)) == {"empty"}
    assert faults(look_at_map(b"text", num_classes=3)) == {"unreadable"}
    assert faults(look_at_map(encoded(PIXELS[..., :1])[:-200], num_classes=None)) == {"truncated"}
