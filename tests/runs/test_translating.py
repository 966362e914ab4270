"""Run.translate: styles and seeds, held-out images, where it goes, and the pictures during training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.pairs import as_map, write, write_pairs
from tests.data.pictures import encoded, picture
from tests.processes import run_together
from tests.runs.translating_worker import translate_together
from tests.runs.translators import (
    ONE_MAP,
    MirrorTranslation,
    close,
    mirror_run,
    opened,
    paired_run,
    plain_data,
    write_images,
)
from triptych.core.errors import ConfigError, DataError
from triptych.core.rng import Rng
from triptych.data.files import open_folder
from triptych.data.made import STAMP
from triptych.runs import Run
from triptych.runs.translation_grid import palette

CPU = {"device": "cpu"}


# Styles and seeds -------------------------------------------------------------------------------------------------------


def test_answers_depend_on_seed_place_and_number_alone(styled: Run) -> None:
    array = np.full((7, 16, 16, 1), 100, dtype=np.uint8)
    one = styled.translate(array, seed=3, **CPU)
    five = styled.translate(array, seed=3, style_count=5, batch_size=2, **CPU)
    assert all(close(five.images[k][:1], one.images[k]) and five.images[k].shape == (5, 16, 16, 1) for k in range(7))
    drawn = Rng(3, ("translate",), torch.arange(7)).normal("style", 1, 1, 1) / 8
    second = Rng(3, ("translate", 1), torch.arange(7)).normal("style", 1, 1, 1) / 8
    for k in range(7):
        for answer, noise in ((0, drawn), (1, second)):
            expected = ((100 / 127.5 - 1) / 2 + float(noise[k]) + 1) * 127.5
            assert abs(int(five.images[k][answer, 0, 0, 0]) - expected) <= 1.01
    assert len({int(image[0, 0, 0]) for images in five.images for image in images}) > 20
    assert not np.array_equal(styled.translate(array, seed=4, **CPU).images[0], one.images[0])
    assert close(styled.translate(array, seed=3, count=2, **CPU).images[1], one.images[1])
    cold = styled.translate(array, settings=MirrorTranslation(temperature=0, direction="b-to-a"), **CPU)
    assert {int(value) for images in cold.images for value in np.unique(images)} == {int((1 - (100 / 127.5 - 1) / 2) * 127.5)}


def test_the_style_of_images_together_and_in_turn(styled: Run, tmp_path: Path) -> None:
    array = np.full((3, 16, 16, 1), 127, dtype=np.uint8)
    shades = [20, 120, 220]
    for k, shade in enumerate(shades):
        write(tmp_path / f"looks/{k}.png", encoded(np.full((20, 24, 1), shade, dtype=np.uint8)))

    def expected(*values: int) -> int:
        return int(((127 / 127.5 - 1) / 2 + (np.mean(values) / 127.5 - 1) / 4 + 1) * 127.5)

    def shown(**asked: Any) -> list[list[int]]:
        made = styled.translate(array, **CPU, **asked)
        return [[int(image[0, 0, 0]) for image in images] for images in made.images]

    looks = tmp_path / "looks"
    assert shown(style=looks) == [[expected(*shades)]] * 3
    assert shown(style=looks / "2.png") == [[expected(220)]] * 3
    assert shown(style=np.full((1, 16, 16, 3), 20, dtype=np.uint8)) == [[expected(20)]] * 3
    assert shown(style=looks, style_each=True) == [[expected(shade)] for shade in shades]
    every = [[expected(shade) for shade in shades]] * 3
    assert shown(style=looks, style_each=True, style_count=3) == every
    assert shown(style=looks, style_each=True, style_count=3, batch_size=1) == every
    assert shown(style=looks, style_each=True, style_count=2)[1] == [expected(220), expected(20)]


def test_the_grid_is_none_of_the_images_of_its_folder(plain: Run, tmp_path: Path) -> None:
    write_images(tmp_path / "in", ["a.png", "b.png"], size=(16, 16), channels=1)
    out = tmp_path / "made/first"

    def images(place: Path) -> list[str]:
        return list(open_folder(place)[0].names)

    plain.translate(tmp_path / "in", out=out, **CPU)
    assert (out / "grid.png").exists() and images(out) == ["a.png", "b.png"] and images(out.parent) == ["first/a.png", "first/b.png"]
    plain.translate(tmp_path / "in", out=out, grid=0, **CPU)
    assert (out / "grid.png").exists() and images(out) == ["a.png", "b.png"], "the one that the call before drew"
    (out / STAMP).unlink()
    assert images(out) == ["a.png", "b.png", "grid.png"], "nothing says what it is"
    (tmp_path / "in/b.png").rename(tmp_path / "in/grid.png")
    plain.translate(tmp_path / "in", out=tmp_path / "named", grid=0, **CPU)
    assert images(tmp_path / "named") == ["a.png", "grid.png"], "made of an input of that name"


def test_the_grid_has_a_column_of_styles_and_one_for_each_answer(styled: Run, tmp_path: Path) -> None:
    pixels = write_images(tmp_path / "in", ["a.png", "b.png"], size=(16, 16), channels=1)
    pixels[1] //= 4  # dark levels are those that rounding loses
    write(tmp_path / "in/b.png", encoded(pixels[1]))
    styles = write_images(tmp_path / "looks", ["a.png", "b.png"], size=(16, 16), channels=1)[::-1]
    for path, image in zip(("a.png", "b.png"), styles, strict=True):
        write(tmp_path / "looks" / path, encoded(image))
    made = styled.translate(tmp_path / "in", style=tmp_path / "looks", style_each=True, style_count=2, out=tmp_path / "out", **CPU)
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {"a_0.png", "a_1.png", "b_0.png", "b_1.png", "grid.png"}
    cells = opened(tmp_path / "out/grid.png")[::3, ::3]
    assert cells.shape == (2 + 2 * 18, 2 + 4 * 18)
    row = [cells[20:36, 2 + 18 * column : 18 + 18 * column] for column in range(4)]
    assert np.array_equal(row[0], pixels[1][..., 0]) and np.array_equal(row[1], styles[0][..., 0])
    assert np.array_equal(row[2], made.images[1][0, ..., 0]) and np.array_equal(row[3], made.images[1][1, ..., 0])


def test_what_styles_a_model_cannot_have(styled: Run, plain: Run, tmp_path: Path) -> None:
    needy = mirror_run(tmp_path / "needy", plain_data(), styles="required")
    array = picture(16, 16)[None]
    looks = {"style": array}
    cases: list[tuple[Run, dict[str, Any], str]] = [
        (plain, looks, "style: Mirror takes no style from images; leave it out"),
        (plain, {"style_count": 2}, "style_count: got 2, but Mirror draws no style at random: it has one answer$"),
        (
            styled,
            looks | {"style_count": 2},
            "style_count: got 2, but all answers would have the one style that is given; take style images",
        ),
        (styled, {"style_each": True}, "style_each: got true, but there are no style images"),
        (styled, {"style_count": 0}, "style_count: got 0, expected a whole number from 1 on"),
        (needy, {}, "style: missing: Mirror makes images with the look of others; give one or several of them"),
        (styled, {"style": {"style": array}}, "style: got arrays by name"),
    ]
    for run, asked, message in cases:
        with pytest.raises(ConfigError, match=message):
            run.translate(array, **CPU, **asked)
    assert needy.translate(array, **looks, **CPU).images[0].shape == (1, 16, 16, 1)
    write_images(tmp_path / "looks", ["small.png"], size=(15, 16))
    with pytest.raises(DataError, match=r"looks/small\.png: 15x16 pixels, too small"):
        needy.translate(array, style=tmp_path / "looks", **CPU)
    held = needy.translate(None, count=4, **CPU)
    assert len(held.images) == 4
    with pytest.raises(ConfigError, match="style_count: got 2, but Mirror draws no style at random"):
        needy.translate(None, style_count=2, **CPU)


def test_what_is_no_number_or_path_is_named(styled: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # which an empty path would be
    write_images(tmp_path, ["a.png"])
    before = sorted(tmp_path.iterdir())
    for asked, message in (
        ({"count": 1.5}, "count: got 1.5, expected a whole number from 1 on"),
        ({"style_count": "2"}, "style_count: got '2', expected a whole number from 1 on"),
        ({"seed": -1}, "seed: got -1, expected a whole number from 0 on"),
        ({"grid": None}, "grid: got None, expected a whole number from 0 on"),
        ({"settings": 3}, "settings: int are not the settings wanted here"),
        ({"video": "mp4"}, "video: got 'mp4', expected VideoSettings"),
        ({"out": ""}, "out: got '', expected a path"),
        ({"out": 3}, "out: got 3, expected a path"),
        ({"style": ""}, "style: got '', expected a path"),
        ({"first": ""}, "first: got '', expected a path"),
        ({"inputs": ""}, "inputs: got '', expected a path"),
    ):
        given: dict[str, Any] = {"inputs": picture(16, 16)[None]} | CPU | asked
        with pytest.raises(ConfigError, match=message):
            styled.translate(**given)
    assert sorted(tmp_path.iterdir()) == before


# Held-out images --------------------------------------------------------------------------------------------------------


def test_held_out_images_with_the_truth(mapped: Run, plain: Run, paired: Run, tmp_path: Path) -> None:
    made = mapped.translate(None, out=tmp_path / "out", **CPU)
    data = mapped.config.data.open()
    assert data.validation is not None and len(made.names) == len(data.validation) > 1
    held = data.validation.batch(np.arange(2))
    assert np.array_equal(made.images[1][0, ..., 0], np.where(held.inputs["labels"][1], 159, 127))
    cells = opened(tmp_path / "out/grid.png")[::6, ::6]
    assert np.array_equal(cells[12:20, 30:42], held.images[1])
    assert mapped.translate(None, count=1, **CPU).names == ["000000"]
    with pytest.raises(ConfigError, match="held_out: got true, but the run's data has no held-out images"):
        plain.translate(None, **CPU)
    with pytest.raises(ConfigError, match="size: got 16, but held-out images have the run's size"):
        mapped.translate(None, size=16, **CPU)
    with pytest.raises(ConfigError, match="count: got 99, expected 1 to"):
        mapped.translate(None, count=99, **CPU)


def test_several_answers_to_held_out_images_have_random_styles(tmp_path: Path) -> None:
    run = mirror_run(tmp_path / "run", plain_data(), styles="optional", random_styles=True, example_styles=True)
    one, three = run.translate(None, count=2, **CPU), run.translate(None, count=2, style_count=3, **CPU)
    assert not close(three.images[0][:1], one.images[0])  # which has the style that the data says
    assert len({int(image[0, 0, 0]) for image in three.images[0]}) == 3


def test_held_out_images_need_the_data_of_the_run(tmp_path: Path) -> None:
    run = paired_run(tmp_path / "run", tmp_path / "pairs", data={"validation_fraction": 0.5})
    document = json.loads((tmp_path / "run/config.json").read_text())
    document["data"]["conditions"] = ["night"]
    (tmp_path / "run/config.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match="pairs: no longer the data of this run"):
        Run(run.paths).translate(None, **CPU)
    shutil.rmtree(tmp_path / "pairs")
    with pytest.raises(DataError, match="pairs: does not exist"):
        run.translate(None, **CPU)


def test_held_out_images_that_are_replaced_are_translated_anew(tmp_path: Path) -> None:
    run = paired_run(tmp_path / "run", tmp_path / "pairs", data={"validation_fraction": 0.5, **ONE_MAP})
    before, done = run.translate(None, out=tmp_path / "out", **CPU), list[tuple[float, float]]()
    kept = [images.copy() for images in before.images]
    run.translate(None, out=tmp_path / "out", progress=lambda *now: done.append(now), **CPU)
    assert done == [(len(kept), len(kept))], "the same request makes none again"
    for path in (tmp_path / "pairs/labels").rglob("*.png"):
        numbers = np.asarray(Image.open(path))
        write(path, as_map((1 - numbers).astype(np.uint8)))
    made = run.translate(None, out=tmp_path / "out", **CPU)
    assert all(np.array_equal(np.where(one == 159, 127, 159), other) for one, other in zip(kept, made.images, strict=True))


# Where it goes ----------------------------------------------------------------------------------------------------------


def test_an_interrupted_folder_goes_on_and_another_request_replaces_it(styled: Run, tmp_path: Path) -> None:
    write_images(tmp_path / "in", [f"{k}.png" for k in range(7)], size=(16, 16))
    out = tmp_path / "out"

    def stop(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        styled.translate(tmp_path / "in", out=out, batch_size=2, progress=stop, **CPU)
    assert len(list(out.glob("?.png"))) == 4 and not (out / "grid.png").exists()
    times = {path.name: path.stat().st_mtime_ns for path in out.glob("?.png")}
    done: list[tuple[int, int]] = []
    made = styled.translate(tmp_path / "in", out=out, batch_size=2, progress=lambda *now: done.append(now), **CPU)
    assert done == [(4, 7), (6, 7), (7, 7)]
    assert all((out / name).stat().st_mtime_ns == time for name, time in times.items())
    whole = styled.translate(tmp_path / "in", **CPU)
    assert all(close(one, other) for one, other in zip(made.images, whole.images, strict=True))
    done.clear()
    styled.translate(tmp_path / "in", out=out, progress=lambda *now: done.append(now), grid=0, **CPU)
    assert done == [(7, 7)]
    (out / "3.png").unlink()
    styled.translate(tmp_path / "in", out=out, progress=lambda *now: done.append(now), **CPU)
    assert done[1:] == [(6, 7), (7, 7)]
    with pytest.raises(KeyboardInterrupt):
        styled.translate(tmp_path / "in", out=out, seed=1, batch_size=2, progress=stop, **CPU)
    assert {path.name for path in out.glob("*.png")} == {f"{k}.png" for k in range(4)}  # none of the first seed is left among them
    other = styled.translate(tmp_path / "in", out=out, seed=1, **CPU)
    assert all(close(one, two) for one, two in zip(other.images, styled.translate(tmp_path / "in", seed=1, **CPU).images, strict=True))
    assert not np.array_equal(other.images[0], whole.images[0])
    write_images(tmp_path / "in", ["7.png", "0.png"], size=(16, 16))
    done.clear()
    styled.translate(tmp_path / "in", out=out, seed=1, progress=lambda *now: done.append(now), **CPU)
    assert done[0] == (0, 8)  # an input has changed, and one is new
    for change in ({"size": 16}, {"batch_size": 3}, {"style": tmp_path / "in/0.png"}, {"precision": "bf16"}):
        done.clear()
        styled.translate(tmp_path / "in", out=out, progress=lambda *now: done.append(now), **CPU, **change)
        assert done[0] == (0, 8), change
    done.clear()
    write(tmp_path / "in/0.png", encoded(picture(16, 16, seed=9)))
    styled.translate(tmp_path / "in", out=out, precision="bf16", progress=lambda *now: done.append(now), **CPU)
    assert done[0] == (0, 8)  # an input has changed


def test_all_processes_open_the_same_checkpoint(plain: Run, together: type[Exception]) -> None:
    with pytest.raises(together):
        plain.translate(picture(16, 16, channels=1)[None], **CPU)


def test_a_seed_is_nothing_to_a_model_without_chance(plain: Run, tmp_path: Path) -> None:
    write_images(tmp_path / "in", ["0.png", "1.png"], size=(16, 16))
    done: list[tuple[int, int]] = []
    for seed in (0, 1):
        plain.translate(tmp_path / "in", out=tmp_path / "out", seed=seed, progress=lambda *now: done.append(now), **CPU)
    assert done[-1] == (2, 2) and done.count((0, 2)) == 1


def test_files_of_others_are_left_alone(plain: Run, tmp_path: Path) -> None:
    write_images(tmp_path / "in", ["a.png", "b.png"])
    out = tmp_path / "out"
    write(out / "b.png", b"mine")
    with pytest.raises(DataError, match=r"out/b\.png is there already, and no such command made it; choose another folder, or remove it"):
        plain.translate(tmp_path / "in", out=out, **CPU)
    assert (out / "b.png").read_bytes() == b"mine" and not (out / "a.png").exists() and not (out / STAMP).exists()
    (out / "b.png").rename(out / "c.png")
    plain.translate(tmp_path / "in", out=out, **CPU)
    assert (out / "c.png").read_bytes() == b"mine"
    with pytest.raises(DataError, match=r"out already holds b\.png of another request, which would be mixed with the new images"):
        plain.translate(tmp_path / "in/a.png", out=out, **CPU)
    assert (out / "b.png").exists()
    write(tmp_path / "precious.png", b"mine")
    (out / STAMP).write_text(json.dumps({"request": "x", "files": ["../precious.png", "a.png", "b.png"]}))
    with pytest.raises(DataError, match=r"out/a\.png is there already"):
        plain.translate(tmp_path / "in", out=out, **CPU)
    assert (tmp_path / "precious.png").read_bytes() == b"mine"
    (out / STAMP).write_text("{")
    with pytest.raises(DataError, match=r"out/a\.png is there already"):
        plain.translate(tmp_path / "in", out=out, **CPU)
    write_images(tmp_path / "grids", ["grid.png"])
    with pytest.raises(ConfigError, match=r"grid: got 16, but there is an input whose image is grid\.png itself"):
        plain.translate(tmp_path / "grids", out=tmp_path / "new", **CPU)
    plain.translate(tmp_path / "grids", out=tmp_path / "new", grid=0, **CPU)
    assert opened(tmp_path / "new/grid.png").shape == (8, 8, 3)
    write_images(tmp_path / "clash", ["x.jpg", "x.png/y.png"])
    with pytest.raises(DataError, match=r"clashing/x\.png: would have to be an image and a folder; rename one of the two inputs$"):
        plain.translate(tmp_path / "clash", out=tmp_path / "clashing", **CPU)
    assert not (tmp_path / "clashing").exists()


def test_nothing_that_is_read_is_written(plain: Run, styled: Run, tmp_path: Path) -> None:
    write_images(tmp_path / "in", ["a.png"])
    before = (tmp_path / "in/a.png").read_bytes()
    cases = [
        (tmp_path / "in", "cannot write .*in: it lies in .*in, which is read"),
        (tmp_path / "in/made", "cannot write .*made: it lies in .*in, which is read"),
        (tmp_path / "in/x.npz", r"cannot write .*x\.npz: it lies in .*in, which is read"),
        (tmp_path / "in/a.png/b", r"cannot write .*a\.png is a file"),
        (tmp_path / "x.gif", r"x\.gif: translations are written as a folder, .*\.webp, or of a clip \.mp4 or \.webm, not as \.gif"),
    ]
    for out, message in cases:
        with pytest.raises(DataError, match=message):
            plain.translate(tmp_path / "in", out=out, **CPU)
    with pytest.raises(DataError, match=r"cannot write .*a\.png: it is the file that is read"):
        plain.translate(tmp_path / "in/a.png", out=tmp_path / "in/a.png", **CPU)
    assert (tmp_path / "in/a.png").read_bytes() == before and len(list(tmp_path.rglob("*"))) == 2
    with pytest.raises(DataError, match=r"two\.png: one image, but there are 2 to write"):
        styled.translate(picture(16, 16)[None], style_count=2, out=tmp_path / "two.png", **CPU)
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=r"file is a file; name a folder"):
        plain.translate(tmp_path / "in", out=tmp_path / "file", **CPU)


def test_arrays_and_their_interruption(styled: Run, tmp_path: Path) -> None:
    array = np.stack([picture(16, 16, seed=k, channels=1) for k in range(5)])
    out = tmp_path / "made.npz"

    def stop(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        styled.translate(array, out=out, style_count=2, batch_size=2, progress=stop, **CPU)
    done: list[tuple[int, int]] = []
    made = styled.translate(array, out=out, style_count=2, batch_size=2, progress=lambda *now: done.append(now), **CPU)
    assert done == [(4, 5), (5, 5)]
    for change in ({"size": 16}, {"inputs": array[::-1]}):
        with pytest.raises(KeyboardInterrupt):
            styled.translate(array, out=out, style_count=2, batch_size=2, progress=stop, **CPU)
        done.clear()
        asked: dict[str, Any] = {"inputs": array, "style_count": 2} | change
        styled.translate(**asked, out=tmp_path / "made.npz", progress=lambda *now: done.append(now), **CPU)
        assert done[0] == (0, 5), change
        styled.translate(array, out=out, style_count=2, batch_size=2, **CPU)
    whole = styled.translate(array, style_count=2, **CPU)
    with np.load(out) as arrays:
        assert arrays["arr_0"].shape == (10, 16, 16, 1)
        assert close(arrays["arr_0"], np.concatenate(list(whole.images))) and close(made.images[3], whole.images[3])
    assert [path.name for path in tmp_path.iterdir()] == ["made.npz"]
    write_images(tmp_path / "in", ["a.png"], size=(24, 16))
    write_images(tmp_path / "in", ["b.png"], size=(16, 16))
    with pytest.raises(DataError, match=r"x\.npz: holds images of one size, but a would be 24x16, b would be 16x16"):
        styled.translate(tmp_path / "in", size="own", out=tmp_path / "x.npz", **CPU)


def test_larger_images_come_in_smaller_batches(styled: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    translate = type(styled.load(device="cpu")).translate

    def spy(self: Any, inputs: Any, rng: Any, *, settings: Any) -> torch.Tensor:
        sizes.append(len(rng))
        return translate(self, inputs, rng, settings=settings)

    monkeypatch.setattr(type(styled.load(device="cpu")), "translate", spy)
    array = np.zeros((5, 16, 16, 1), dtype=np.uint8)
    styled.translate(array, **CPU)
    assert sizes == [4, 1]  # the run's batch of 4
    sizes.clear()
    styled.translate(array, size=32, **CPU)
    assert sizes == [1] * 5
    sizes.clear()
    styled.translate(array, size=32, batch_size=3, **CPU)
    assert sizes == [3, 2]


@pytest.mark.slow
@pytest.mark.xdist_group("torchrun")
def test_processes_share_the_work(styled: Run, tmp_path: Path) -> None:
    write_images(tmp_path / "in", [f"{k}.png" for k in range(7)], size=(16, 16))
    run_together(2, translate_together, styled.directory, tmp_path / "in", tmp_path / "out")
    alone = styled.translate(tmp_path / "in", style_count=2, **CPU)
    for k in range(7):
        for answer in range(2):
            assert close(opened(tmp_path / f"out/{k}_{answer}.png")[..., None], alone.images[k][answer])
    assert (tmp_path / "out/grid.png").exists()


# Training ---------------------------------------------------------------------------------------------------------------


def test_training_shows_held_out_images(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs")
    run = paired_run(tmp_path / "run", tmp_path / "pairs", data=ONE_MAP | {"validation_fraction": 0.5})
    config = run.config.updated({"train": {"total_images": 8, "sample_every": 8, "sample_count": 2}, "model": {"further": True}})
    from triptych.runs import train

    shown = train(config, tmp_path / "shown", device="cpu").directory / "samples"
    assert {path.name for path in shown.iterdir()} == {"000000008.png", "000000008-b-to-a.png"}
    data = config.data.open()
    assert data.validation is not None
    held = data.validation.batch(np.arange(2))
    sheets = {name: opened(shown / name)[::6, ::6] for name in ("000000008.png", "000000008-b-to-a.png")}
    assert all(sheet.shape == (2 + 2 * 10, 2 + 3 * 14, 3) for sheet in sheets.values())
    rows = {name: [sheet[12:20, 2 + 14 * k : 14 + 14 * k] for k in range(3)] for name, sheet in sheets.items()}
    for name, one, zero in (("000000008.png", 159, 127), ("000000008-b-to-a.png", 95, 127)):
        assert np.array_equal(rows[name][0], palette(2)[held.inputs["labels"][1]])
        assert np.array_equal(rows[name][1], np.where(held.inputs["labels"][1], one, zero)[..., None].repeat(3, -1))
        assert np.array_equal(rows[name][2], held.images[1])


def test_training_shows_styles_and_not_too_many_rows(tmp_path: Path) -> None:
    run = mirror_run(tmp_path / "run", plain_data(validation_fraction=0.0), styles="required")
    config = run.config.updated({"train": {"total_images": 8, "sample_every": 8, "sample_count": 64}})
    from triptych.runs import train

    (path,) = (train(config, tmp_path / "shown", device="cpu").directory / "samples").iterdir()
    assert opened(path).shape == ((2 + 24 * 18) * 3, (2 + 3 * 18) * 3)  # input, style, answer
