"""Run.translate: what goes in, how it is cut, and what cannot be read."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.contract.shrink import shrunk
from tests.data.pairs import as_map, levels, write, write_pairs
from tests.data.pictures import encoded, picture, write_idx
from tests.runs.translators import (
    ONE_MAP,
    STRIDE,
    MirrorConfig,
    MirrorTranslation,
    close,
    halved,
    mirror_run,
    opened,
    paired_run,
    write_images,
)
from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError, DataError
from triptych.data.domains import UnpairedDataConfig
from triptych.data.made import STAMP
from triptych.evaluation.bits_per_dim import BitsPerDimConfig, bits_per_dim
from triptych.runs import Run
from triptych.runs.encoding import require_encoder
from triptych.runs.sampling import require_sampler
from triptych.runs.stored import build
from triptych.runs.translating import require_translator
from triptych.runs.translation_grid import palette

CPU = {"device": "cpu"}


# What goes in -----------------------------------------------------------------------------------------------------------


def test_a_folder_keeps_its_names(plain: Run, tmp_path: Path) -> None:
    names = ["b.png", "sub/a.b.png", "sub/deep/c.png"]
    pixels = write_images(tmp_path / "in", names)
    made = plain.translate(tmp_path / "in", out=tmp_path / "out", **CPU)
    assert made.names == ["b", "sub/a.b", "sub/deep/c"]
    files = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert files == {*names, "grid.png", STAMP}
    for name, expected, kept in zip(names, pixels, made.images, strict=True):
        assert close(opened(tmp_path / "out" / name), halved(expected)) and close(kept, halved(expected)[None])


def test_one_file_an_archive_and_an_array_are_taken_alike(plain: Run, tmp_path: Path) -> None:
    names = ["x/1.png", "x/2.jpg"]
    write_images(tmp_path / "in", names)
    expected = plain.translate(tmp_path / "in", **CPU)
    with zipfile.ZipFile(tmp_path / "in.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.write(tmp_path / "in" / name, name)
    with tarfile.open(tmp_path / "in.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "in", arcname=".")
    for path in ("in.zip", "in.tar.gz"):
        made = plain.translate(tmp_path / path, out=tmp_path / path.replace(".", "-"), **CPU)
        assert np.array_equal(np.stack(list(made.images)), np.stack(list(expected.images)))
        assert (tmp_path / path.replace(".", "-") / "x/2.png").is_file()
    one = plain.translate(tmp_path / "in/x/1.png", out=tmp_path / "one.png", **CPU)
    assert one.names == ["1"] and np.array_equal(opened(tmp_path / "one.png"), expected.images[0][0])
    array = np.stack([picture(8, 8, seed=k) for k in range(2)])
    np.savez(tmp_path / "in.npz", arr_0=array)
    np.save(tmp_path / "in.npy", array)
    for given in (tmp_path / "in.npz", tmp_path / "in.npy", array, {"images": array}, {"images": list(array)}):
        made = plain.translate(given, **CPU)
        assert made.names == ["000000", "000001"] and close(made.images[1], halved(array[1])[None])


def test_the_files_of_mnist_are_images_too(plain: Run, tmp_path: Path) -> None:
    pixels = np.stack([picture(8, 8, seed=k, channels=1) for k in range(2)])
    write_idx(tmp_path / "train-images-idx3-ubyte", pixels[..., 0])
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.array([3, 1]))
    made = plain.translate(tmp_path, **CPU)
    assert made.names == ["000000", "000001"] and close(made.images[1][0], halved(pixels[1].repeat(3, -1)))


def test_grey_and_colour_are_converted(plain: Run, styled: Run, tmp_path: Path) -> None:
    (grey,) = write_images(tmp_path / "grey", ["a.png"], size=(16, 16), channels=1)
    assert close(plain.translate(tmp_path / "grey", size=(16, 16), **CPU).images[0][0], halved(grey.repeat(3, -1)))
    write_images(tmp_path / "colour", ["a.png"], size=(16, 16))
    flat = MirrorTranslation(temperature=0)
    from_colour = styled.translate(tmp_path / "colour", settings=flat, **CPU).images[0][0]
    with Image.open(tmp_path / "colour/a.png") as image:
        assert close(from_colour, halved(np.asarray(image.convert("L"))[..., None]))
    array = picture(16, 16)[None]
    assert close(styled.translate(array, settings=flat, **CPU).images[0][0], from_colour)


def test_several_sources_are_matched_by_stem_and_shown_with_the_truth(paired: Run, pairs: Path, tmp_path: Path) -> None:
    made = paired.translate(pairs, out=tmp_path / "out", grid=2, **CPU)
    data = paired.config.data.open()
    held = data.train.batch(np.arange(7))
    for k in range(7):
        assert made.names[k] == f"drive/{k}"
        labels, objects = (held.inputs[name][k][..., None] for name in ("labels", "objects"))
        images = [held.inputs[name][k].astype(float) / 127.5 - 1 for name in ("edges", "night")]
        mean = (labels / 2 + objects % 2 + images[0] + images[1]) / 4 / 2
        assert close(made.images[k][0], np.clip((mean + 1) * 127.5, 0, 255).astype(np.uint8))
    sheet = opened(tmp_path / "out/grid.png")
    scale, height, width = 6, 8, 12
    cells = sheet[::scale, ::scale]
    assert sheet.shape == ((2 + 2 * (height + 2)) * scale, (2 + 6 * (width + 2)) * scale, 3)

    def cell(row: int, column: int) -> np.ndarray:
        top, left = 2 + row * (height + 2), 2 + column * (width + 2)
        return cells[top : top + height, left : left + width]

    assert np.array_equal(cell(1, 0), palette(2)[held.inputs["labels"][1]])
    numbers = held.inputs["objects"][1]
    inner = np.zeros_like(numbers, dtype=bool)
    inner[:, 1:] |= numbers[:, 1:] != numbers[:, :-1]
    inner[:, :-1] |= numbers[:, 1:] != numbers[:, :-1]
    inner[1:] |= numbers[1:] != numbers[:-1]
    inner[:-1] |= numbers[1:] != numbers[:-1]
    assert np.array_equal(cell(1, 1), np.where(inner, 0, 255)[..., None].repeat(3, -1))
    assert np.array_equal(cell(1, 2), held.inputs["edges"][1].repeat(3, -1)) and np.array_equal(cell(1, 3), held.inputs["night"][1])
    assert np.array_equal(cell(1, 4), made.images[1][0]) and np.array_equal(cell(1, 5), held.images[1])


def test_one_source_of_the_layout_of_the_training_data(mapped: Run, pairs: Path, tmp_path: Path) -> None:
    whole = mapped.translate(pairs, out=tmp_path / "out", **CPU)
    alone = mapped.translate(pairs / "labels", out=tmp_path / "alone", **CPU)
    assert whole.names == alone.names and np.array_equal(np.stack(list(whole.images)), np.stack(list(alone.images)))
    assert opened(tmp_path / "out/grid.png").shape[1] == (2 + 3 * 14) * 6  # map, answer, truth
    assert opened(tmp_path / "alone/grid.png").shape[1] == (2 + 2 * 14) * 6
    shutil.copytree(pairs, tmp_path / "split/val")
    with pytest.raises(DataError, match=r"split: holds val, each with a folder labels; name one of them, as in .*split/val$"):
        mapped.translate(tmp_path / "split", **CPU)
    assert mapped.translate(tmp_path / "split/val", **CPU).names == whole.names


def test_maps_are_numbers_in_grey_or_with_a_palette(mapped: Run, tmp_path: Path) -> None:
    numbers = levels(24, 16)[..., 0] // 255
    write(tmp_path / "maps/grey.png", as_map(numbers))
    write(tmp_path / "maps/palette.png", as_map(numbers, palette=True))
    grey, indexed = mapped.translate(tmp_path / "maps", **CPU).images
    assert np.array_equal(grey, indexed) and set(np.unique(grey)) == {127, 159}  # (0 / 2 + 1) 127.5, (1/2 / 2 + 1) 127.5
    given = mapped.translate({"labels": numbers[None]}, **CPU)
    assert np.array_equal(given.images[0], grey)
    write(tmp_path / "maps/wrong.png", as_map(numbers * 7))
    with pytest.raises(DataError, match=r"maps/wrong\.png: holds class 7, expected 0 to 1: the model knows no others; change the map$"):
        mapped.translate(tmp_path / "maps", **CPU)
    write(tmp_path / "jpeg/a.jpg", encoded(levels(24, 16), "JPEG"))
    with pytest.raises(DataError, match=r"jpeg/a\.jpg: a JPEG, which alters numbers, as a map"):
        mapped.translate(tmp_path / "jpeg", **CPU)
    np.savez(tmp_path / "maps.npz", arr_0=np.zeros((2, 16, 24), dtype=np.uint8))
    with pytest.raises(DataError, match=r"maps\.npz: maps are read from files of images, or given as arrays in Python"):
        mapped.translate(tmp_path / "maps.npz", **CPU)


@pytest.mark.parametrize("fate", ["dont_care", "blank"])
def test_other_classes_become_the_one_nobody_cares_for(tmp_path: Path, fate: str) -> None:
    run = paired_run(tmp_path / "run", tmp_path / "pairs", data=ONE_MAP | {fate: True})
    write(tmp_path / "maps/a.png", as_map(np.full((8, 12), 9)))
    made = run.translate(tmp_path / "maps", out=tmp_path / "out", **CPU)
    assert (made.images[0] == int((2 / 2 / 2 + 1) * 127.5)).all()
    assert (opened(tmp_path / "out/grid.png")[12:60, 12:84] == 0).all()


def test_colours_of_classes_differ() -> None:
    colours = palette(184).astype(int)
    assert len(np.unique(colours, axis=0)) == 185 and colours[184].tolist() == [0, 0, 0]
    first = colours[:20]
    distance = np.abs(first[:, None] - first[None]).sum(-1) + 1000 * np.eye(20)
    assert distance.min() > 40


# Sizes ------------------------------------------------------------------------------------------------------------------


def test_images_are_cut_as_those_of_the_run(paired: Run, plain: Run, tmp_path: Path) -> None:
    write_pairs(tmp_path / "large", count=2, size=(70, 50), first=20)
    made = paired.translate(tmp_path / "large", **CPU)
    data = paired.config.data.updated({"path": str(tmp_path / "large")}).open()
    batch = data.train.batch(np.arange(2))
    values = {name: torch.from_numpy(value) for name, value in batch.inputs.items()}
    labels, objects, edges, night = (values[name] for name in ("labels", "objects", "edges", "night"))
    mean = labels[..., None] / 2 + objects[..., None] % 2 + (edges / 127.5 - 1) + (night / 127.5 - 1)
    assert close(np.stack([images[0] for images in made.images]), ((mean / 8 + 1) * 127.5).numpy().astype(np.uint8))
    write_images(tmp_path / "photos", ["a.png"], size=(45, 31))
    config = plain.config.data.updated({"path": str(tmp_path / "photos")})
    assert close(plain.translate(tmp_path / "photos", **CPU).images[0][0], halved(config.open().train.batch(np.arange(1)).images[0]))
    wide = mirror_run(tmp_path / "wide", config.updated({"resize": 12, "pad": 2}))
    expected = halved(wide.config.data.open().train.batch(np.arange(1)).images[0])
    array = picture(45, 31)[None]
    assert close(wide.translate(tmp_path / "photos", **CPU).images[0][0], expected) and close(
        wide.translate(array, **CPU).images[0][0], expected
    )
    assert not close(plain.translate(tmp_path / "photos", **CPU).images[0][0], expected)
    assert close(plain.translate(array, **CPU).images[0][0], plain.translate(tmp_path / "photos", **CPU).images[0][0])


def test_every_image_at_its_own_size(plain: Run, mapped: Run, tmp_path: Path) -> None:
    pixels = write_images(tmp_path / "in", ["a.png"], size=(27, 14)) + write_images(tmp_path / "in/z", ["b.png", "c.png"], size=(12, 16))
    made = plain.translate(tmp_path / "in", size="own", out=tmp_path / "out", **CPU)
    assert [images.shape[1:3] for images in made.images] == [(12, 24), (16, 12), (16, 12)]
    assert close(made.images[0][0], halved(pixels[0][1:13, 1:25])) and close(made.images[2][0], halved(pixels[2]))
    assert opened(tmp_path / "out/grid.png").shape == ((2 + 3 * 18) * 3, (2 + 2 * 26) * 3, 3)
    numbers = levels(27, 14)[..., 0] // 255
    made = mapped.translate({"labels": numbers[None]}, size="own", **CPU)
    assert np.array_equal(made.images[0][0, ..., 0], np.where(numbers[1:13, 1:25], 159, 127))
    write_images(tmp_path / "small", ["tiny.png"], size=(40, 7))
    with pytest.raises(DataError, match=r"small/tiny\.png: 40x7 pixels, which would make 40x4; expected 8 to 16384 along each side"):
        plain.translate(tmp_path / "small", size="own", **CPU)


def test_a_given_size_and_a_short_side(plain: Run, mapped: Run, tmp_path: Path) -> None:
    write_images(tmp_path / "in", ["a.png", "b.png"], size=(40, 30))
    made = plain.translate(tmp_path / "in", size=(16, 24), **CPU)
    with Image.open(tmp_path / "in/a.png") as image:
        resized = np.asarray(image.resize((24, 18), Image.Resampling.BICUBIC))[1:17]
    assert close(made.images[0][0], halved(resized))
    made = plain.translate(tmp_path / "in", size=16, **CPU)
    with Image.open(tmp_path / "in/a.png") as image:
        assert close(made.images[0][0], halved(np.asarray(image.resize((21, 16), Image.Resampling.BICUBIC))[:, :20]))
    assert plain.translate(tmp_path / "in", size=64, **CPU).images[1].shape == (1, 64, 84, 3)
    assert mapped.translate({"labels": levels(40, 30)[None, ..., 0] // 255}, size=12, **CPU).images[0].shape == (1, 12, 16, 3)
    for size, text in ((10, "10"), ((16, 26), "16x26"), (4, "4"), (0, "0"), (20000, "20000")):
        with pytest.raises(ConfigError, match=f"size: got {text}, expected multiples of {STRIDE} from 8 to 16384"):
            plain.translate(tmp_path / "in", size=size, **CPU)
    write_images(tmp_path / "strip", ["a.png"], size=(2000, 2))
    with pytest.raises(DataError, match=r"strip/a\.png: 2000x2 pixels, which would make 32000x32"):
        plain.translate(tmp_path / "strip", size=32, **CPU)


def test_images_that_are_too_small_are_named(plain: Run, tmp_path: Path) -> None:
    write_images(tmp_path / "in", ["a.png"], size=(8, 7))
    with pytest.raises(DataError, match=r"in/a\.png: 8x7 pixels, too small for the run's 8x8; give larger ones, or another size$"):
        plain.translate(tmp_path / "in", **CPU)
    assert plain.translate(tmp_path / "in", size=8, **CPU).images[0].shape == (1, 8, 8, 3)


# Errors -----------------------------------------------------------------------------------------------------------------


def test_what_cannot_be_read(plain: Run, mapped: Run, paired: Run, pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    write_images(tmp_path / "cut", ["a.png", "b.png"], size=(64, 64))
    write(tmp_path / "cut/b.png", (tmp_path / "cut/b.png").read_bytes()[:900])
    write_images(tmp_path / "twice", ["a.png", "a.jpg"])
    write(tmp_path / "text/a.png", b"no image")
    (tmp_path / "dangling").mkdir()
    (tmp_path / "dangling/lost.png").symlink_to(tmp_path / "nowhere.png")
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        archive.writestr("../evil.png", encoded(picture(8, 8)))
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        tar.add(tmp_path / "twice/a.png", arcname="x/../../evil.png")
    (tmp_path / "evil.tgz").write_bytes((tmp_path / "evil.tar").read_bytes()[:100])
    np.savez(tmp_path / "floats.npz", arr_0=np.zeros((2, 8, 8, 3)))
    cases: list[tuple[Run, Any, type[Exception], str]] = [
        (plain, tmp_path / "nothing", DataError, "nothing: does not exist"),
        (plain, tmp_path / "empty", DataError, "empty: holds no images"),
        (plain, tmp_path / "notes.txt", DataError, r"notes\.txt: not recognised"),
        (plain, tmp_path / "cut", DataError, r"cut/b\.png: .*; repair or remove the file"),
        (plain, tmp_path / "text", DataError, r"text/a\.png: not an image that can be read"),
        (plain, tmp_path / "twice", DataError, r"twice/a\.png: a\.jpg has the same name but for its ending; remove one of them"),
        (plain, tmp_path / "evil.zip", DataError, r"evil\.zip: '\.\./evil' leads out of the folder"),
        (plain, tmp_path / "evil.tar", DataError, r"evil\.tar: 'x/\.\./\.\./evil' leads out of the folder"),
        (plain, tmp_path / "evil.tgz", DataError, r"evil\.tgz: cannot be read as a tar archive"),
        (plain, tmp_path / "floats.npz", DataError, r"floats\.npz: arr_0: float64 of shape .*, expected uint8"),
        (plain, np.zeros((0, 8, 8, 3), dtype=np.uint8), DataError, "images: holds nothing"),
        (plain, np.zeros((2, 8, 8), dtype=np.uint8), DataError, r"images\[0\]: uint8 of shape \(8, 8\), expected uint8 of shape \(height"),
        (plain, {"image": np.zeros((2, 8, 8, 3), dtype=np.uint8)}, ConfigError, 'inputs: got image, .* images; did you mean "images"'),
        (mapped, np.zeros((2, 8, 12)), DataError, r"labels\[0\]: float64 of shape \(8, 12\), expected whole numbers"),
        (paired, pairs / "labels", DataError, "labels: holds no folder labels"),
        (
            paired,
            pairs / "labels/drive/0.png",
            DataError,
            r"0\.png: not a folder; this model makes images of labels, objects, edges, night",
        ),
        (plain, 3, DataError, "images: got 3, expected a path or arrays"),
        (plain, tmp_path / "dangling", DataError, r"dangling/lost\.png: .*No such file"),
        (paired, np.zeros((2, 8, 12), dtype=int), ConfigError, "inputs: got one array, expected arrays by the names labels, objects"),
    ]
    for run, given, error, message in cases:
        out = tmp_path / "out/made"
        with pytest.raises(error, match=message):
            run.translate(given, out=out, **CPU)
        assert not out.exists(), "nothing was made"
    assert not (tmp_path.parent / "evil.png").exists() and not (tmp_path / "evil.png").exists()


def test_links_are_followed_and_their_changes_seen(plain: Run, tmp_path: Path) -> None:
    write_images(tmp_path / "elsewhere", ["a.png"])
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in/loop").symlink_to(tmp_path / "in")
    (tmp_path / "in/notes.txt").symlink_to(tmp_path / "nothing")
    made = plain.translate(tmp_path / "in", out=tmp_path / "out", **CPU)
    assert made.names == ["link/a"]
    before = opened(tmp_path / "out/link/a.png")
    (pixels,) = write_images(tmp_path / "elsewhere", ["a.png"], size=(16, 16))
    plain.translate(tmp_path / "in", out=tmp_path / "out", **CPU)
    assert not np.array_equal(opened(tmp_path / "out/link/a.png"), before) and pixels.shape == (16, 16, 3)


@pytest.mark.parametrize("size", ["big", (8,), [8, 8], 8.0, True, (8, 8.0)])
def test_sizes_of_another_kind(plain: Run, size: Any) -> None:
    with pytest.raises(ConfigError, match=r'^size: got .*, expected "own", a short side \(512\), or height and width as \(480, 640\)$'):
        plain.translate(np.zeros((1, 8, 8, 3), dtype=np.uint8), size=size, **CPU)
    with pytest.raises(ConfigError, match="^grid: got -1, expected a whole number from 0 on$"):
        plain.translate(np.zeros((1, 8, 8, 3), dtype=np.uint8), grid=-1, **CPU)


def test_the_folder_of_two_domains_is_not_translated_whole(tmp_path: Path) -> None:
    for name in ("train/cats", "train/dogs"):
        write_images(tmp_path / "pets" / name, [f"{k}.png" for k in range(4)])
    data = UnpairedDataConfig(path=str(tmp_path / "pets"), a="cats", b="dogs", image_size=8, validation_fraction=0, workers=0)
    run = mirror_run(tmp_path / "run", data)
    for given in (tmp_path / "pets", tmp_path / "pets/train"):
        with pytest.raises(DataError, match=r"train: holds the two domains cats and dogs; name one of them, as in .*train/cats$"):
            run.translate(given, **CPU)
    assert len(run.translate(tmp_path / "pets/train/cats", **CPU).names) == 4


def test_sources_that_do_not_fit_one_another(paired: Run, pairs: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    shutil.copytree(pairs, parts)
    (parts / "objects/drive/3.png").unlink()
    with pytest.raises(DataError, match=r"labels/drive/3\.png: .*objects has no file drive/3\.\* to go with it"):
        paired.translate(parts, **CPU)
    write(parts / "objects/drive/3.png", as_map(np.zeros((20, 24), dtype=np.uint8)))
    with pytest.raises(DataError, match=r"objects/drive/3\.png: 24x20 pixels, but .*labels/drive/3\.png has 24x16; make them one size"):
        paired.translate(parts, **CPU)
    shutil.rmtree(parts / "objects")
    with pytest.raises(DataError, match="parts: holds no folder objects .which this model makes images of."):
        paired.translate(parts, **CPU)
    arrays = {name: np.zeros((2, 8, 12), dtype=int) for name in ("labels", "objects")}
    images = {name: np.zeros((3, 8, 12, 3), dtype=np.uint8) for name in ("edges", "night")}
    with pytest.raises(ConfigError, match="inputs: got 2 labels, 2 objects, 3 edges, 3 night, expected as many of each"):
        paired.translate(arrays | images, **CPU)
    images = {name: array[:2] for name, array in images.items()}
    assert len(paired.translate(arrays | images, **CPU).images) == 2


def test_models_that_are_used_otherwise_say_how() -> None:
    spec = DataSpec(image_size=8, channels=1, num_classes=10)
    with torch.device("meta"):
        models = {name: build(shrunk(name), spec) for name in ("adm-digits", "upsample-digits", "classifier-digits")}
    with pytest.raises(ConfigError, match="model: ADM makes images of nothing; use triptych sample RUN$"):
        require_translator(models["adm-digits"])
    with pytest.raises(ConfigError, match="model: SuperResolution enlarges images; use triptych sample RUN --base IMAGES"):
        require_translator(models["upsample-digits"])
    with pytest.raises(ConfigError, match="model: NoisyClassifier translates no images"):
        require_translator(models["classifier-digits"])
    with pytest.raises(ConfigError, match="model: Mirror makes images from images or maps; use triptych translate RUN INPUT"):
        require_sampler(MirrorConfig().build(spec))
    with pytest.raises(ConfigError, match="model: Mirror encodes no images; triptych translate makes images of images with it"):
        require_encoder(MirrorConfig().build(spec))
    with pytest.raises(ConfigError, match="is; Mirror does not; what it scores on held-out images is in its metrics.jsonl"):
        bits_per_dim(MirrorConfig().build(spec), BitsPerDimConfig())
