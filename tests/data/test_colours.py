"""Transparency and colour profiles, held against formulas in float64 and against littleCMS."""

from __future__ import annotations

import io
import warnings
import zlib
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from tests.data.pictures import encoded, picture
from tests.data.profiles import ADOBE, SRGB, grey_profile, rgb_profile, srgb_of_light, srgb_of_rgb
from triptych.core.batch import DataSpec, InputSpec
from triptych.core.errors import ConfigError
from triptych.data.colours import Colours, _by_profile, converted
from triptych.data.config import AS_STORED, DataConfig
from triptych.data.cut import Cut
from triptych.data.decode import number_map
from triptych.engine.run_directory import RunDirectory
from triptych.recipes.catalogue import load_recipe
from triptych.runs.beginning import begin
from triptych.runs.document import RunDocument
from triptych.runs.given.collection import open_collection
from triptych.runs.given.pictures import open_pictures
from triptych.runs.given.sizes import as_trained

LEVELS = picture(16, 16, seed=1)
ALPHA = np.arange(256, dtype=np.uint8).reshape(16, 16)


def read(data: bytes, *, channels: int = 3, size: int = 16, reduced: bool = False, **colours) -> np.ndarray:
    return Cut(size, reduced=reduced, colours=Colours(**colours)).image(data, channels)


def saved(image: Image.Image, file_format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def on(background: tuple[int, int, int], levels: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    opaque = alpha[..., None] / 255
    return opaque * levels + (1 - opaque) * np.array(background, dtype=np.float64)


def assert_near(found: np.ndarray, expected: np.ndarray, within: float = 1.0) -> None:
    assert np.abs(found.astype(np.float64) - expected).max() <= within


# Transparency


@pytest.mark.parametrize(
    ("background", "rgb"),
    [("white", (255, 255, 255)), ("black", (0, 0, 0)), ("grey", (128, 128, 128)), ("#0A80ff", (10, 128, 255)), ("200", (200, 200, 200))],
)
@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "TIFF"])
def test_alpha_lets_the_background_through(background, rgb, file_format):
    image = Image.fromarray(np.dstack([LEVELS, ALPHA]))
    options = {"lossless": True, "exact": True} if file_format == "WEBP" else {}
    assert_near(read(saved(image, file_format, **options), background=background), on(rgb, LEVELS, ALPHA), 0.51)


def test_what_lies_beneath_shows_only_as_stored():
    image = saved(Image.fromarray(np.dstack([LEVELS, np.zeros_like(ALPHA)])))
    assert (read(image) == 255).all()
    np.testing.assert_array_equal(read(image, **AS_STORED), LEVELS)


@pytest.mark.parametrize("channels", [1, 3])
def test_transparent_grey(channels):
    grey = LEVELS[..., 0]
    data = saved(Image.fromarray(np.dstack([grey, ALPHA]), "LA"))
    expected = on((40, 40, 40), grey[..., None], ALPHA)[..., :1]
    assert_near(read(data, channels=channels, background="40"), np.repeat(expected, channels, axis=-1), 0.51)


def test_transparent_palettes_levels_and_colours():
    palette = Image.fromarray(LEVELS).quantize(16)
    alphas = np.arange(0, 256, 17, dtype=np.uint8)
    expected = on((0, 0, 0), np.asarray(palette.convert("RGB")), alphas[np.asarray(palette)])
    assert_near(read(saved(palette, transparency=bytes(alphas)), background="black"), expected, 0.51)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Pillow's would be a line of the log for each image
        beneath = read(saved(palette, transparency=bytes(alphas)), background=None)
    np.testing.assert_array_equal(beneath, np.asarray(palette.convert("RGB")))
    np.testing.assert_array_equal(read(saved(palette, "GIF", transparency=3))[np.asarray(palette) == 3], 255)
    grey = Image.fromarray(ALPHA)
    assert read(saved(grey, transparency=7), channels=1)[0, 7:9, 0].tolist() == [255, 8]
    colour = tuple(map(int, LEVELS[2, 3]))
    assert read(saved(Image.fromarray(LEVELS), transparency=colour))[2, 3].tolist() == [255] * 3
    np.testing.assert_array_equal(read(saved(Image.fromarray(LEVELS), transparency=colour), background=None), LEVELS)


def png(rows: list[bytes], *, width: int, bits: int, colour_type: int, nothing: bytes) -> bytes:
    """A PNG of forms that Pillow does not write. `nothing`: the colour that is transparent, 16 bits for each channel."""
    header = width.to_bytes(4) + len(rows).to_bytes(4) + bytes([bits, colour_type, 0, 0, 0])
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    chunks = [(b"IHDR", header), (b"tRNS", nothing), (b"IDAT", body), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        len(body).to_bytes(4) + kind + body + zlib.crc32(kind + body).to_bytes(4) for kind, body in chunks
    )


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_level_of_few_bits_that_stands_for_nothing(bits):
    values = np.arange(256, dtype=np.uint8).reshape(16, 16) & (2**bits - 1)
    packed = np.packbits(np.unpackbits(values[..., None], axis=-1)[..., 8 - bits :].reshape(16, -1), axis=-1)
    for level in {0, 1, 2**bits - 1}:
        data = png([row.tobytes() for row in packed], width=16, bits=bits, colour_type=0, nothing=level.to_bytes(2))
        shades = np.round(values / (2**bits - 1) * 255)
        np.testing.assert_array_equal(read(data, channels=1, background="77")[..., 0], np.where(values == level, 77, shades))
        np.testing.assert_array_equal(read(data, channels=3, background=None)[..., 1], shades)
        np.testing.assert_array_equal(number_map(data), values)


def test_a_colour_of_16_bits_that_stands_for_nothing():
    values = (LEVELS.astype(np.uint16) * 256 + 77).astype(">u2")  # of which Pillow keeps the upper half
    data = png([row.tobytes() for row in values], width=16, bits=16, colour_type=2, nothing=values[2, 3].tobytes())
    expected = np.where((LEVELS[2, 3] == LEVELS).all(-1, keepdims=True), np.array([255, 128, 0]), LEVELS)
    np.testing.assert_array_equal(read(data, background="#ff8000"), expected)
    np.testing.assert_array_equal(read(data, background=None), LEVELS)


def test_a_level_of_16_bits_that_stands_for_nothing():
    values = (np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)
    data = saved(Image.fromarray(values), transparency=257 * 5)
    chunk = data.index(b"tRNS")
    assert data[chunk + 4 : chunk + 6] == (257 * 5).to_bytes(2, "big")
    assert read(data, channels=1)[0, 4:7, 0].tolist() == [4, 255, 6]
    assert read(data, channels=1, background=None)[0, 4:7, 0].tolist() == [4, 5, 6]


def test_the_background_is_there_before_the_image_is_made_smaller():
    """What is hidden beneath transparent pixels must not bleed into their neighbours."""
    alpha = np.zeros((32, 32), dtype=np.uint8)
    alpha[:, :15] = 255
    levels = np.where(alpha[..., None] == 255, 0, [255, 0, 0]).astype(np.uint8)
    small = read(saved(Image.fromarray(np.dstack([levels, alpha]))), size=8, background="black")
    assert not small.any()


# Profiles


def with_profile(levels: np.ndarray, profile: bytes | None, file_format: str = "PNG", **options: object) -> bytes:
    return encoded(levels, file_format, icc_profile=profile, **options)


def by_littlecms(image: Image.Image, profile: bytes) -> np.ndarray:
    opened = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    relative, flags = ImageCms.Intent.RELATIVE_COLORIMETRIC, ImageCms.Flags.BLACKPOINTCOMPENSATION
    made = ImageCms.profileToProfile(image, opened, ImageCms.createProfile("sRGB"), relative, "RGB", flags=flags)
    assert made is not None
    return np.asarray(made).astype(np.float64)


@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "WEBP"])
def test_a_wider_space_becomes_srgb(file_format):
    options = {"lossless": True} if file_format == "WEBP" else {}
    data = with_profile(LEVELS, rgb_profile(), file_format, **options)
    assert_near(read(data), srgb_of_rgb(LEVELS))
    assert_near(read(data), by_littlecms(Image.fromarray(LEVELS), rgb_profile()))
    assert np.abs(srgb_of_rgb(LEVELS) - LEVELS).max() > 10
    np.testing.assert_array_equal(read(data, profiles="ignore"), LEVELS)


def test_light_is_taken_to_the_power_of_the_profile():
    linear = with_profile(LEVELS, rgb_profile(gamma=1.0))
    assert_near(read(linear), srgb_of_rgb(LEVELS, ADOBE, 1.0))


def test_a_space_near_srgb_becomes_srgb():
    ramp = np.repeat(ALPHA[..., None], 3, axis=-1)
    expected = srgb_of_rgb(ramp, SRGB, 2.2)
    assert 2 < np.abs(expected - ramp).max() < 10
    assert_near(read(with_profile(ramp, rgb_profile(SRGB, 2.2))), expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_profiles(channels):
    grey = ALPHA[..., None]
    found = read(with_profile(grey, grey_profile(1.0)), channels=channels)
    assert_near(found, np.repeat(srgb_of_light(grey / 255), channels, axis=-1))


def test_grey_and_palettes_with_a_profile_of_colours():
    grey = ALPHA[..., None]
    expected = srgb_of_rgb(np.repeat(grey, 3, axis=-1))
    assert_near(read(with_profile(grey, rgb_profile())), expected)
    palette = Image.fromarray(LEVELS).quantize(16)
    assert_near(read(saved(palette, icc_profile=rgb_profile())), srgb_of_rgb(np.asarray(palette.convert("RGB"))))


def test_transparent_images_are_converted_before_the_background():
    data = saved(Image.fromarray(np.dstack([LEVELS, ALPHA])), icc_profile=rgb_profile())
    assert_near(read(data, background="#0a80ff"), on((10, 128, 255), srgb_of_rgb(LEVELS), ALPHA))


def test_srgb_stays_to_the_bit():
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    np.testing.assert_array_equal(read(with_profile(LEVELS, profile)), LEVELS)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_jpegs_in_full_and_at_reduced_scale(reduced, channels):
    photo = picture(64, 64)
    plain, data = (with_profile(photo, profile, "JPEG", quality=95, subsampling=0) for profile in (None, rgb_profile()))
    levels = read(plain, reduced=reduced).astype(np.float64)
    expected = srgb_of_rgb(levels)
    expected = expected if channels == 3 else expected @ np.array([[0.299], [0.587], [0.114]])
    assert np.abs(read(data, reduced=reduced, channels=channels) - expected).mean() < 1
    grey = with_profile(photo[..., :1], grey_profile(1.0), "JPEG", quality=95)
    level = read(with_profile(photo[..., :1], None, "JPEG", quality=95), reduced=reduced, channels=1) / 255
    assert np.abs(read(grey, reduced=reduced, channels=channels) - srgb_of_light(level)).mean() < 1


UNUSABLE = {
    "one byte": b"\x00",
    "text": b"no profile" * 50,
    "its start": rgb_profile()[:200],
    "not its end": rgb_profile()[:-40],
    "a link": rgb_profile().replace(b"mntr", b"link"),
    "of inks": rgb_profile().replace(b"RGB ", b"CMYK"),
    "of greys": grey_profile(1.0),
    "too large": rgb_profile() + bytes(2**22),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_profile_that_cannot_be_used_is_passed_over(kind):
    np.testing.assert_array_equal(read(with_profile(LEVELS, UNUSABLE[kind], "TIFF")), LEVELS)


def test_profiles_with_damage_end_nothing():
    generator = np.random.default_rng(0)
    for _ in range(100):
        profile = np.frombuffer(rgb_profile(), dtype=np.uint8).copy()
        profile[generator.integers(0, len(profile), 6)] = generator.integers(0, 256, 6)
        to_srgb = _by_profile.__wrapped__(profile.tobytes(), "RGB")
        if to_srgb is not None:
            assert to_srgb(Image.fromarray(LEVELS)).size == (16, 16)


# Settings


@pytest.mark.parametrize("background", ["256", "#12345", "red-ish", "", "-1", "#12345g"])
def test_backgrounds_that_are_none(background):
    with pytest.raises(ConfigError, match=r"background: got .*, expected black, grey, white, a colour as #ff8000, a grey level"):
        DataConfig(background=background)


def test_settings_reach_every_kind_of_images(tmp_path):
    data = saved(Image.fromarray(np.dstack([LEVELS, ALPHA])))
    (tmp_path / "a.png").write_bytes(data)
    config = DataConfig(path=str(tmp_path), image_size=16, validation_fraction=0.0, background="#0a80ff")
    expected = on((10, 128, 255), LEVELS, ALPHA)
    assert_near(config.open().train.batch(np.arange(1)).images[0], expected, 0.51)
    np.testing.assert_array_equal(replace(config, **AS_STORED).open().train.batch(np.arange(1)).images[0], LEVELS)
    assert_near(open_pictures(tmp_path, like=config, least=1).images([0])[0], expected, 0.51)
    spec = InputSpec(name="x", kind="image", channels=3)
    assert_near(open_collection(tmp_path, spec, as_trained(config, DataSpec(image_size=16, channels=3))).load([0])[0], expected, 0.51)


def test_pictures_say_how_colours_were_read_where_that_matters(tmp_path):
    opaque, like = tmp_path / "opaque", DataConfig(image_size=16)
    opaque.mkdir()
    (opaque / "a.png").write_bytes(encoded(LEVELS))
    assert "colours" not in open_pictures(opaque, like=like, least=1).identity
    (opaque / "b.png").write_bytes(saved(Image.fromarray(np.dstack([LEVELS, ALPHA]))))
    told = open_pictures(opaque, like=like).identity
    assert told["colours"] == {"background": "white", "profiles": "convert"}
    before = open_pictures(opaque, like=like.updated(AS_STORED)).identity
    assert told == before | {"colours": told["colours"]}
    (opaque / "b.png").write_bytes(with_profile(LEVELS, rgb_profile()))
    assert "colours" in open_pictures(opaque, like=like).identity


# Runs of before


def test_runs_of_before_keep_their_colours(tmp_path):
    """config.json of earlier versions has none of the settings; the same command goes on with such a run."""
    recipe = load_recipe("adm-digits")
    document = RunDocument(recipe, DataSpec(image_size=16, channels=1), "adm-digits").to_dict()
    assert document["data"]["background"] == "white" and document["data"]["profiles"] == "convert"
    for name in AS_STORED:
        del document["data"][name]
    earlier = RunDocument.from_dict(document)
    assert earlier.config.data == recipe.data.updated(AS_STORED)
    directory = RunDirectory(tmp_path)
    directory.metrics_path.touch()  # it was trained
    for written in (document, earlier.to_dict()):
        directory.write_config(written)
        with ExitStack() as stack:
            start = begin(recipe, directory, "adm-digits", torch.device("cpu"), stack)
        assert start.config.data == earlier.config.data
        assert any("transparency and colour profiles are passed over, as in this run before" in note for note in start.notes)
    with ExitStack() as stack, pytest.raises(ConfigError, match=r"data\.background: got 'black', but the run in .* was started with None"):
        begin(replace(recipe, data=replace(recipe.data, background="black")), directory, "adm-digits", torch.device("cpu"), stack)


def test_recipes_of_originals_read_colours_as_they_do():
    for name in ("adm-imagenet64", "adm-lsun-cat", "classifier-imagenet64", "adm-upsample-64-256", "glow-imagenet32", "spade-coco256"):
        assert Colours.of(load_recipe(name).data).as_stored, name
    for name in ("pix2pixhd-cityscapes", "munit-dog2cat", "unit-winter2summer", "funit-animal-faces", "spade-lhq512"):
        assert Colours.of(load_recipe(name).data).as_stored, name
    assert Colours.of(load_recipe("adm-photos64").data) == Colours("white", "convert")


@pytest.mark.parametrize("mode", ["LAB", "HSV"])
def test_grey_of_colours_that_pillow_makes_no_grey_of(mode: str) -> None:
    image = Image.fromarray(LEVELS).convert("HSV") if mode == "HSV" else Image.merge("LAB", [Image.fromarray(LEVELS[..., 0])] * 3)
    for colours in (Colours(), Colours(**AS_STORED)):
        expected = np.asarray(converted(image, "RGB", colours).convert("L"))
        np.testing.assert_array_equal(np.asarray(converted(image, "L", colours)), expected)
