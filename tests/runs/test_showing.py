"""Sheets of training images: what is on them is what training sees."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.contract.small_data import small_data
from tests.data.pictures import write_folder
from triptych.cli.main import main
from triptych.core.batch import IMAGES_B, STYLE, Batch
from triptych.core.errors import ConfigError, DataError
from triptych.core.images import nearest_uint8
from triptych.core.model import Augments
from triptych.core.rng import Rng, permutation
from triptych.data.config import DataConfig
from triptych.data.loader import Loader
from triptych.diffusion.edm_augmentation import augmented
from triptych.gans.ada import adapted
from triptych.recipes.catalogue import load_recipe
from triptych.runs import showing
from triptych.runs.showing import Shown, show_data
from triptych.runs.translation_grid import palette

NAMES = [f"{kind}/{k}.png" for kind in ("cat", "dog") for k in range(5)]


@pytest.fixture
def sheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """From settings to what is said of the sheet, and the pictures in its rows."""
    written: list[list[list[np.ndarray]]] = []
    write = showing.write_rows

    def kept(path: Path, rows: list[list[np.ndarray]]) -> None:
        written.append(rows)
        write(path, rows)

    monkeypatch.setattr(showing, "write_rows", kept)

    def of(settings: DataConfig, **options: Any) -> tuple[Shown, list[list[np.ndarray]]]:
        return show_data(settings, tmp_path / "sheet.png", **options), written[-1]

    return of


def photos(root: Path, **settings: Any) -> DataConfig:
    path = write_folder(root / "photos", NAMES, size=(30, 24))
    return DataConfig(**({"path": str(path), "image_size": 16, "validation_fraction": 0.0, "workers": 0} | settings))


def first_batch(settings: DataConfig, *, seed: int, count: int) -> Batch:
    """What a training sees first."""
    with closing(Loader(settings.open().train, batch_size=count, seed=seed, workers=0)) as loader:
        return next(loader.batches(0)).to("cpu")


def levels(images: torch.Tensor) -> np.ndarray:
    return nearest_uint8(images).numpy()


def test_the_first_draw_is_what_training_sees(tmp_path, sheet):
    settings = photos(tmp_path, crop="random", augment="affine", jitter=0.2)
    shown, rows = sheet(settings, count=4, draws=3, seed=7)
    assert [len(row) for row in rows] == [4] * 4
    images = settings.open().train
    items = permutation(len(images), seed=7, epoch=0)[:4]
    np.testing.assert_array_equal(np.stack([row[0] for row in rows]), images.batch(items).images)
    np.testing.assert_array_equal(np.stack([row[1] for row in rows]), levels(first_batch(settings, seed=7, count=4).images))
    assert all(not np.array_equal(row[draw], row[draw + 1]) for row in rows for draw in range(3))
    assert shown.rows == [f"{NAMES[item]} ({NAMES[item][:3]})" for item in items]
    assert shown.classes == ("cat", "dog")
    assert shown.columns == "image, as it is; then 3 draws of training (crop at random; mirrored or not; augment affine; jitter 0.2)"
    with Image.open(tmp_path / "sheet.png") as picture:
        across, down = picture.size
    assert across == down > 4 * 16


def test_nothing_random_is_drawn_once(tmp_path, sheet):
    shown, rows = sheet(photos(tmp_path, flip=False), count=100)
    assert [len(row) for row in rows] == [1] * len(NAMES) and sorted(row[:9] for row in shown.rows) == sorted(NAMES)
    assert shown.columns.endswith("for nothing about it is random")


@pytest.mark.parametrize("recipe", ["stylegan2-digits", "edm-digits"])
def test_the_augmentation_of_a_model(tmp_path, sheet, recipe):
    """As its own function has it of the image that training gives, with other draws in each column; and only where it happens."""
    settings = photos(tmp_path, flip=False)
    model = load_recipe(recipe).model
    assert isinstance(model, Augments)
    shown, rows = sheet(settings, model=model, count=3, draws=2, seed=5, p=0.9)
    assert "at p = 0.9" in shown.columns
    images = first_batch(settings, seed=5, count=3).images
    for draw in range(2):
        rng = Rng(5, ("show",), torch.arange(3) + draw * len(NAMES))
        if recipe == "edm-digits":
            expected, _ = augmented(images, rng, replace(model.augmentation, p=0.9))  # type: ignore[attr-defined]
        else:
            expected = adapted(images, rng.child("ada"), p=0.9, settings=model.ada)  # type: ignore[attr-defined]
        for row, image in zip(rows, expected, strict=True):
            assert np.abs(row[1 + draw].astype(int) - levels(image[None])[0]).max() <= 1  # sums in another order
    _, rows = sheet(settings, model=model, p=0.0)
    assert {len(row) for row in rows} == {1}


def test_the_first_step_of_a_steered_augmentation(tmp_path, sheet):
    """There p is 0; what would show it is said."""
    shown, rows = sheet(photos(tmp_path, flip=False), model=load_recipe("stylegan2-digits").model)
    assert {len(row) for row in rows} == {1}
    assert shown.notes == ("in the first step p is 0; --p 0.5 shows the discriminator's ADA at p = 0.5",)
    for recipe in ("spade-camvid", "edm-imagenet64"):  # whose augmentation never begins
        assert sheet(photos(tmp_path, flip=False), model=load_recipe(recipe).model)[0].notes == ()
    policy = replace(load_recipe("stylegan2-digits").model, augment=("color", "cutout"))  # type: ignore[call-arg]
    shown, rows = sheet(photos(tmp_path, flip=False), model=policy)
    assert "DiffAugment (color, cutout)" in shown.columns and {len(row) for row in rows} == {5}


def test_pairs(sheet):
    """Class maps in colours, beside the image that is to be made, cut and mirrored alike."""
    settings = small_data(load_recipe("spade-camvid").data)
    shown, rows = sheet(settings, count=3, draws=2, seed=2)
    batch = first_batch(settings, seed=2, count=3)
    spec = settings.open().spec
    (maps,) = spec.inputs
    for k, row in enumerate(rows):
        assert len(row) == 6
        np.testing.assert_array_equal(row[2], palette(maps.num_classes or 0)[batch.inputs[maps.name][k].numpy()])
        np.testing.assert_array_equal(row[3], levels(batch.images)[k])
    assert shown.columns.startswith(f"{maps.name} + image, as it is; then 2 draws")


def test_domains(sheet):
    settings = small_data(load_recipe("munit-dog2cat").data)
    shown, rows = sheet(settings, count=2, draws=1)
    a, b = (Path(name).name for name in settings.domain_folders)
    assert [row.partition(":")[0] for row in shown.rows] == [a, a, b, b]
    first = settings.open().train
    of_b = first.domains[1].batch(permutation(len(first.domains[1]), seed=0, epoch=0)[:2]).images  # type: ignore[attr-defined]
    np.testing.assert_array_equal(np.stack([row[0] for row in rows[2:]]), of_b)
    assert IMAGES_B not in shown.columns


def test_style_images_stand_beside_the_content(sheet):
    settings = small_data(load_recipe("funit-omniglot").data)
    shown, rows = sheet(settings, count=3, draws=1, seed=4)
    batch = first_batch(settings, seed=4, count=3)
    half = len(rows[0]) // 2
    np.testing.assert_array_equal(np.stack([row[half] for row in rows]), levels(batch.images))
    styles = [name for name in batch.inputs if name.startswith(STYLE) and batch.inputs[name].ndim == 4]
    np.testing.assert_array_equal(np.stack([row[half + 1] for row in rows]), levels(batch.inputs[styles[0]]))
    assert shown.columns.startswith(f"image + {' + '.join(styles)}")


def test_the_small_images_of_an_upsampler(tmp_path, sheet):
    """The mean of each area of the large one."""
    settings = photos(tmp_path, flip=False)
    model = replace(load_recipe("upsample-digits").model, small_size=4)  # type: ignore[call-arg]
    _, rows = sheet(settings, model=model, count=2)
    for small, large in rows:
        expected = large.reshape(4, 4, 4, 4, 3).mean((1, 3))
        assert np.abs(small - expected).max() <= 0.51


def test_what_cannot_be_shown(tmp_path):
    settings = photos(tmp_path)
    for options, said in (
        ({"p": 0.5}, "p: got 0.5, but no recipe is given"),
        ({"p": 0.5, "model": load_recipe("glow-mnist").model}, "p: got 0.5, but this model changes no images"),
        ({"count": 10, "draws": 2000}, "count: got 10 with 2,000 draws, but a sheet holds 4,096 pictures"),
    ):
        with pytest.raises(ConfigError, match=said):
            show_data(settings, tmp_path / "sheet.png", **options)
    with pytest.raises(ConfigError, match=r"expected a name that ends with \.png"):
        show_data(settings, tmp_path / "sheet.tif")
    with pytest.raises(DataError, match="it is the file that is read"):
        show_data(replace(settings, path=str(tmp_path / "photos/cat/0.png")), tmp_path / "photos/cat/0.png")
    with pytest.raises(DataError, match=r"cannot write .*/1\.png: it lies in .*/photos, which is read; choose another --out"):
        show_data(settings, tmp_path / "photos/cat/1.png")
    assert not (tmp_path / "sheet.png").exists()


def test_a_sheet_without_a_name_replaces_none(tmp_path, capsys, monkeypatch):
    settings = photos(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sheet.png").write_bytes(b"mine")
    for name in ("sheet-2.png", "sheet-3.png"):
        assert main(["data", "show", str(settings.path), "--image-size", "8", "--count", "1"]) == 0
        assert capsys.readouterr().out.endswith(f"1 image: {name}\n") and (tmp_path / name).is_file()
    assert (tmp_path / "sheet.png").read_bytes() == b"mine"


def test_the_command(tmp_path, capsys):
    settings = photos(tmp_path)
    out = tmp_path / "x.webp"
    command = ["data", "show", str(settings.path), "--size", "8", "--data.validation-fraction", "0", "--out", str(out), "--count", "2"]
    assert main([*command, "--recipe", "stylegan2-digits", "--model.augment", "color"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("   1  ") and lines[-3].startswith("each row: image, as it is; then 4 draws of training (")
    assert "DiffAugment (color)" in lines[-3]
    assert lines[-2:] == ["2 classes: cat, dog", f"2 images: {out}"] and out.is_file()
    assert main(["data", "show", "--recipe", "adm-digits", "--out", str(tmp_path / "digits.png")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("10 classes: 0, 1, 2") and lines[-1] == f"8 images: {tmp_path / 'digits.png'}"
    assert (tmp_path / "digits.png").is_file()
    for words, said in (
        (["--recipe", "adm-digitz"], "--recipe: "),
        (["--count", "0"], "--count: "),
        (["--size", "200"], "smaller than data.image_size 200"),
        (["--data.path", "x"], "--data.path: got one beside the images"),
        (["--p", "2"], "--p: got 2"),
    ):
        assert main(["data", "show", str(settings.path), "--out", str(out), *words]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1
    assert main(["data", "show", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err
