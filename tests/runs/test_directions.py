"""Directions among latents, the way between two, and the images that they lead to."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.contract.shrink import BATCH, shrunk
from tests.runs.glow import folder, moved_run, pixels
from triptych.core.errors import ConfigError, DataError
from triptych.runs import Directions, Latents, Run, between, train
from triptych.runs import directions as module
from triptych.runs.directions import Edit, directions_of, read_directions, write_directions
from triptych.runs.latents import Sampled


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return moved_run(tmp_path_factory.mktemp("runs") / "glow")


@pytest.fixture(scope="module")
def conditional(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return moved_run(tmp_path_factory.mktemp("runs") / "cond", "glow-cifar10-cond")


@pytest.fixture(scope="module")
def latents(run: Run) -> Latents:
    return run.encode(pixels(6), device="cpu")


def random_latents(count: int = 5, *, seed: int = 0, labels: np.ndarray | None = None) -> Latents:
    generator = np.random.default_rng(seed)
    return Latents(tuple(generator.normal(size=(count, *shape)).astype(np.float32) for shape in ((2, 3, 3), (7,))), labels)


def some_directions(names: tuple[str, ...] = ("smiling", "young")) -> Directions:
    return Directions(names, random_latents(len(names), seed=1).arrays)


# What a direction is -------------------------------------------------------------------------------------------------


def test_a_direction_is_the_difference_of_two_means(monkeypatch: pytest.MonkeyPatch) -> None:
    latents, members = random_latents(7), np.array([True, False, True, False, False, False, True])
    whole = directions_of(latents, {"smiling": members, "serious": ~members})
    monkeypatch.setattr(module, "_BLOCK_VALUES", 40)  # two images at a time
    for made in (whole, directions_of(latents, {"smiling": members, "serious": ~members})):
        assert made.names == ("smiling", "serious") and len(made) == 2
        for array, direction, opposite in zip(latents.arrays, made.of("smiling"), made.of("serious"), strict=True):
            assert direction.dtype == np.float32
            np.testing.assert_allclose(direction, 1.6 * (array[members].mean(0) - array[~members].mean(0)), atol=1e-6)
            np.testing.assert_allclose(opposite, -direction, atol=1e-6)


def test_means_are_taken_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 the sum of many images would stop at 2^24."""
    monkeypatch.setattr(module, "_BLOCK_VALUES", 1)  # an image at a time
    values = np.full((40, 1), 2.0**24, np.float32)
    values[20:, 0] += 2
    members = np.arange(40) < 20
    assert directions_of(Latents((values,), None), {"a": members}).of("a")[0] == pytest.approx(-3.2)


@pytest.mark.parametrize(("members", "words"), [([1, 1, 1], "all of the 3 images have a"), ([0, 0, 0], "none of the 3 images has a")])
def test_an_attribute_of_all_or_none(members: list[int], words: str) -> None:
    with pytest.raises(ConfigError, match=f"directions: {words}; a direction needs images with and without"):
        directions_of(random_latents(3), {"a": np.array(members, dtype=bool)})


def test_what_is_added_is_found_by_projection() -> None:
    latents, directions = random_latents(), some_directions()
    before = directions.project(latents, "young")
    moved = directions.applied(latents, {"young": 0.75})
    np.testing.assert_allclose(directions.project(moved, "young") - before, 0.75, atol=1e-6)
    strengths = [0.5, -1, 0, 2, 3]
    moved = directions.applied(latents, {"young": strengths})
    np.testing.assert_allclose(directions.project(moved, "young") - before, strengths, atol=1e-6)
    np.testing.assert_allclose(directions.project(Latents(directions.arrays, None), "young")[1], 1, atol=1e-6)
    np.testing.assert_array_equal(moved.arrays[0][2], latents.arrays[0][2])


def test_several_directions_add_up() -> None:
    latents, directions = random_latents(labels=np.arange(5)), some_directions()
    moved = directions.applied(latents, {"young": 2, "smiling": -1})
    for array, before, direction in zip(moved.arrays, latents.arrays, directions.arrays, strict=True):
        np.testing.assert_allclose(array, before + 2 * direction[1] - direction[0], atol=1e-6)
    assert moved.labels is latents.labels


def test_what_cannot_be_applied() -> None:
    latents, directions = random_latents(), some_directions()
    with pytest.raises(ConfigError) as caught:
        directions.applied(latents, {"smilng": 1})
    assert str(caught.value) == 'direction: unknown direction "smilng"; did you mean "smiling"? (there is smiling, young)'
    other = Latents(latents.arrays[:1], None)
    for call in (lambda: directions.applied(other, {"young": 1}), lambda: directions.project(other, "young")):
        with pytest.raises(ConfigError, match="are those of latents of 2x3x3, 7 numbers, but these have 2x3x3$"):
            call()
    with pytest.raises(ConfigError, match="got the strength 1e\\+39 for young, expected finite numbers"):
        directions.applied(latents, {"young": 1e39})
    with pytest.raises(ConfigError, match="^direction: got the strength -5e\\+38 for young, expected finite numbers$"):
        directions.applied(latents, {"young": np.linspace(1, -1e39, 5)})
    nothing = replace(directions, arrays=tuple(np.zeros_like(array) for array in directions.arrays))
    with pytest.raises(ConfigError, match="young is nothing"):
        nothing.project(latents, "young")


@pytest.mark.parametrize("place", ["images", "images.npz"])
def test_a_part_of_the_images_is_drawn_from_all(place: str, run: Run, tmp_path: Path) -> None:
    """The first ones may be of one class; and where classes come in turn, so may those at even steps."""
    images, labels = pixels(40), np.repeat(np.arange(2), 20)
    folder(tmp_path / "images", images, [f"{'ab'[label]}/{k:02}.png" for k, label in enumerate(labels)])
    np.savez(tmp_path / "images.npz", arr_0=images, arr_1=labels)
    coder = run.coder(device="cpu")
    whole = coder.open(tmp_path / place)
    part = whole.drawn(10)
    chosen = np.flatnonzero([(image == part.load(range(10))).all((1, 2, 3)).any() for image in images])
    assert len(chosen) == 10 and {0, 1} == set(labels[chosen])
    np.testing.assert_array_equal(part.load(range(10)), images[chosen])
    assert part.labels is not None and part.labels.tolist() == labels[chosen].tolist() and len(part) == 10
    assert part.items.describe(3) == whole.items.describe(int(chosen[3])) and part.origin != whole.origin
    assert whole.drawn(40) is whole and whole.drawn(10).origin == part.origin != whole.drawn(11).origin
    twice = part.drawn(4)
    assert {twice.items.describe(k) for k in range(4)} < {part.items.describe(k) for k in range(10)}
    made, latents = coder.directions(tmp_path / place, count=10)
    np.testing.assert_array_equal(latents.arrays[0], coder.encode(images[chosen]).arrays[0])
    expected = directions_of(latents, {name: labels[chosen] == k for k, name in enumerate("ab")})
    for name in made.names:
        np.testing.assert_array_equal(made.of(name)[0], expected.of("ab"[int(name)] if name.isdigit() else name)[0])
    assert coder.error(part, latents) < 1 < coder.error(whole, latents)


# The way between two -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["linear", "sphere"])
def test_both_ends_of_a_way_are_exact(path: Any) -> None:
    latents = random_latents()
    way = between(latents, 3, 1, 5, path=path)
    assert len(way) == 5
    for array, made in zip(latents.arrays, way.arrays, strict=True):
        assert made.dtype == np.float32
        np.testing.assert_array_equal(made[[0, -1]], array[[3, 1]])


def test_the_straight_way() -> None:
    latents = random_latents()
    for array, made in zip(latents.arrays, between(latents, 3, 1, 5).arrays, strict=True):
        np.testing.assert_allclose(made[1], array[3] + 0.25 * (array[1] - array[3]), atol=1e-6)


def test_the_way_on_a_sphere() -> None:
    """Equal angles between equal lengths, all levels together; between latents of one line it is straight."""
    flat = np.random.default_rng(0).normal(size=(2, 25))
    flat *= 5 / np.linalg.norm(flat, axis=1, keepdims=True)
    pair = Latents((flat[:, :18].reshape(2, 2, 3, 3).astype(np.float32), flat[:, 18:].astype(np.float32)), None)
    way = between(pair, 0, 1, 4, path="sphere")
    rows = np.concatenate([array.reshape(4, -1) for array in way.arrays], axis=1).astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 5, atol=1e-5)
    cosines = (rows[1:] * rows[:-1]).sum(1) / 25
    np.testing.assert_allclose(np.arccos(cosines), np.arccos(flat[0] @ flat[1] / 25) / 3, atol=1e-5)
    same = between(Latents((np.ones((2, 3), np.float32),), None), 0, 1, 3, path="sphere")
    np.testing.assert_array_equal(same.arrays[0], np.ones((3, 3)))
    assert np.isfinite(between(Latents((np.zeros((2, 3), np.float32),), None), 0, 1, 3, path="sphere").arrays[0]).all()


@pytest.mark.parametrize("path", ["linear", "sphere"])
def test_noise_stays_noise_on_the_way_between_styles(path: Any) -> None:
    """Each map keeps its deviation, at an angle of its own, whatever the way of the styles is; on a line it falls to 0.7 of it."""
    generator = np.random.default_rng(0)
    arrays = [generator.normal(size=(2, *shape)).astype(np.float32) for shape in ((4, 6), (1, 32, 32), (1, 64, 64))]
    arrays[2][1] = 0.6 * arrays[2][0] + 0.8 * arrays[2][1]  # another angle than that of the others
    pair = Latents(tuple(arrays), None)
    styles, *maps = between(pair, 0, 1, 9, path=path, noise_from=1).arrays
    np.testing.assert_array_equal(styles, between(Latents(pair.arrays[:1], None), 0, 1, 9, path=path).arrays[0])
    for noise, ends in zip(maps, pair.arrays[1:], strict=True):
        np.testing.assert_array_equal(noise[[0, -1]], ends)
        np.testing.assert_array_equal(noise, between(Latents((ends,), None), 0, 1, 9, path="sphere").arrays[0])
        along = noise.std(axis=(1, 2, 3)) / np.linspace(ends[0].std(), ends[1].std(), 9)
        np.testing.assert_allclose(along, 1, atol=0.03)
    assert between(pair, 0, 1, 9).arrays[1][4].std() < 0.75


def test_the_labels_of_a_way() -> None:
    latents = random_latents(labels=np.array([4, 2, 4, 1, 1]))
    assert between(latents, 0, 1, 3).labels is None
    labels = between(latents, 0, 2, 3).labels
    assert labels is not None and labels.tolist() == [4, 4, 4]
    with pytest.raises(ConfigError, match="between: got 5, expected 0 to 4, the latents that are there"):
        between(latents, 0, 5, 3)
    with pytest.raises(ConfigError, match="count: got 1, expected at least 2 between two latents"):
        between(latents, 0, 1, 1)
    with pytest.raises(ConfigError, match="latents: got 'latents.npz', expected Latents"):
        between("latents.npz", 0, 1, 3)  # type: ignore[arg-type]


# Files ---------------------------------------------------------------------------------------------------------------


def test_the_file_of_directions(tmp_path: Path) -> None:
    directions = some_directions(("5_o_Clock_Shadow", "naïve"))
    write_directions(tmp_path / "deep" / "d.npz", directions)
    back = read_directions(tmp_path / "deep" / "d.npz")
    assert back.names == directions.names
    for array, expected in zip(back.arrays, directions.arrays, strict=True):
        np.testing.assert_array_equal(array, expected)
    with np.load(tmp_path / "deep" / "d.npz", allow_pickle=False) as file:
        assert sorted(file) == ["arr_0", "latent_1", "names"]
    with pytest.raises(DataError, match=r"d\.txt: directions are written as \.npz"):
        write_directions(tmp_path / "d.txt", directions)


ONE = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"arr_0": ONE}, "holds no names, expected directions; triptych encode RUN IMAGES --directions makes them"),
        ({"arr_0": ONE, "names": np.array(["a"])}, "its names are <U1 of shape (1,), expected 2 texts"),
        ({"arr_0": ONE, "names": np.array([1, 2])}, "its names are int64 of shape (2,), expected 2 texts"),
        ({"arr_0": ONE, "names": np.array(["a", "a"])}, "has two directions of one name"),
        ({"arr_0": ONE, "names": np.array(["a", "b"], object)}, "is damaged, or no .npz of directions"),
        ({"arr_0": ONE * np.nan, "names": np.array(["a", "b"])}, "holds no directions, or values that are not finite"),
        ({"arr_0": ONE, "latent_1": ONE[:1], "names": np.array(["a", "b"])}, "its arrays are not of one length"),
        (
            {"arr_0": ONE, "labels": ONE, "names": np.array(["a", "b"])},
            "holds arr_0 (float32), labels (float32), expected directions: arr_0",
        ),
        ({"names": np.array(["a", "b"])}, "holds nothing, expected directions"),
    ],
)
def test_other_files_are_refused(arrays: dict[str, np.ndarray], words: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError) as caught:
        read_directions(tmp_path / "d.npz")
    assert words in str(caught.value) and "d.npz: " in str(caught.value)


def claiming(count: int) -> bytes:
    """An .npz whose array says that it has so many values, and has none."""
    header, file = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (count,)})
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("arr_0.npy", header.getvalue())
    return file.getvalue()


def test_files_that_are_damaged(tmp_path: Path) -> None:
    write_directions(tmp_path / "d.npz", some_directions())
    whole = (tmp_path / "d.npz").read_bytes()
    encrypted = bytearray(whole)
    for start in (whole.index(b"PK\x03\x04") + 6, whole.index(b"PK\x01\x02") + 8):
        encrypted[start] |= 1
    for content in (whole[: len(whole) // 2], b"", b"text", claiming(10**13), bytes(encrypted)):
        (tmp_path / "d.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"d\.npz: is damaged, or no \.npz of directions$"):
            read_directions(tmp_path / "d.npz")
    with pytest.raises(DataError, match=r"none\.npz: there is no such file; expected an \.npz of directions; triptych encode RUN IMAGES"):
        read_directions(tmp_path / "none.npz")


# Images --------------------------------------------------------------------------------------------------------------


def test_nothing_done_to_latents_gives_the_same_images(run: Run, latents: Latents) -> None:
    directions = directions_of(latents, {"a": np.arange(6) < 3})
    for asked in ({}, {"strengths": {"a": 0.0}, "directions": directions}):
        np.testing.assert_array_equal(run.edit(latents, device="cpu", **asked).images, pixels(6))
    np.testing.assert_array_equal(run.edit(latents, pick=[4, 0, 4], device="cpu").images, pixels(6)[[4, 0, 4]])
    np.testing.assert_array_equal(run.edit(latents, count=2, device="cpu").images, pixels(6)[:2])


def test_images_between_two(run: Run, latents: Latents) -> None:
    for path in ("linear", "sphere"):
        way = run.edit(latents, between=(1, 4), path=path, count=5, device="cpu").images
        np.testing.assert_array_equal(way[[0, -1]], pixels(6)[[1, 4]])
        assert len(np.unique(way.reshape(5, -1), axis=0)) == 5
    own, linear = (run.edit(latents, between=(1, 4), path=path, device="cpu").images for path in (None, "linear"))
    np.testing.assert_array_equal(own, linear)
    assert len(own) == 9


def test_latents_that_float32_cannot_undo(run: Run, latents: Latents) -> None:
    far = Latents(tuple(array * np.float32(1e37) for array in latents.arrays), None)
    with pytest.warns(UserWarning, match="not finite; what is not is black .float32 cannot undo latents so far from those of the training"):
        images = run.decode(far, device="cpu").images
    assert images.dtype == np.uint8


def test_a_range_of_strengths_is_a_row_for_each_latent(run: Run, latents: Latents, tmp_path: Path) -> None:
    directions = directions_of(latents, {"a": np.arange(6) < 3, "b": np.arange(6) % 2 == 0})
    ways = run.edit(
        latents, pick=[5, 2], strengths={"a": (-1, 0.5)}, count=4, directions=directions, device="cpu", out=tmp_path / "grid.png"
    )
    assert Image.open(tmp_path / "grid.png").size == (6 * (4 * 10 + 2), 6 * (2 * 10 + 2))
    assert len(ways.images) == 8
    np.testing.assert_array_equal(ways.images[[2, 6]], pixels(6)[[5, 2]])
    for k, strength in ((0, -1.0), (3, 0.5)):
        alone = run.edit(latents, pick=[5, 2], strengths={"a": strength}, directions=directions, device="cpu").images
        off = np.abs(ways.images[[k, k + 4]].astype(int) - alone)
        assert off.max() <= 1  # a level, where float32 rounds another way in a batch of another size
    one_more = run.edit(latents, pick=[5], strengths={"a": (-1, 1), "b": 0.5}, count=3, directions=directions, device="cpu").images
    fixed = run.edit(latents, pick=[5], strengths={"a": -1, "b": 0.5}, directions=directions, device="cpu").images
    assert np.abs(one_more[0].astype(int) - fixed[0]).max() <= 1


def test_batches_make_no_difference(run: Run) -> None:
    images = pixels(6)
    whole, split = (run.coder(batch_size=size, device="cpu") for size in (6, 4))
    latents, parts = whole.encode(images), split.encode(images)
    for array, part in zip(latents.arrays, parts.arrays, strict=True):
        np.testing.assert_allclose(part, array, atol=1e-5)
    groups = {"a": np.arange(6) < 3}
    directions = directions_of(latents, groups)
    for array, part in zip(directions.arrays, directions_of(parts, groups).arrays, strict=True):
        np.testing.assert_allclose(part, array, atol=1e-5)
    for coder in (whole, split):
        np.testing.assert_array_equal(coder.edit(parts, Edit()).images, images)
    moved = [coder.edit(latents, Edit({"a": 0.6}), directions=directions).images.astype(int) for coder in (whole, split)]
    assert np.abs(moved[0] - moved[1]).max() <= 1 and np.abs(moved[0] - images).max() > 1


def test_directions_of_a_run(run: Run, latents: Latents, tmp_path: Path) -> None:
    """By classes of a folder, of an array and of file names, and by a table: the same directions."""
    names = ["a_0.png", "a_1.png", "a_2.png", "b_0.png", "b_1.png", "b_2.png"]
    flat = folder(tmp_path / "flat", pixels(6), names)
    tree = folder(tmp_path / "tree", pixels(6), [f"{name[0]}/{name}" for name in names])
    np.savez(tmp_path / "array.npz", arr_0=pixels(6), arr_1=np.array([0, 0, 0, 7, 7, 7]))
    (tmp_path / "table.csv").write_text("file,a\n" + "".join(f"{name},{int(name[0] == 'a')}\n" for name in names))
    expected = directions_of(latents, {"a": np.arange(6) < 3}).arrays
    for made, listed in (
        (run.directions(tree, device="cpu", out=tmp_path / "d.npz"), ("a", "b")),
        (run.directions(flat, classes="prefix", device="cpu"), ("a", "b")),
        (run.directions(tmp_path / "array.npz", device="cpu"), ("0", "7")),
        (run.directions(flat, attributes=tmp_path / "table.csv", device="cpu"), ("a",)),
        (read_directions(tmp_path / "d.npz"), ("a", "b")),
    ):
        assert made.names == listed
        for array, wanted in zip(made.arrays, expected, strict=True):
            np.testing.assert_allclose(array[0], wanted[0], atol=1e-6)


def test_the_run_has_a_file_of_its_own(run: Run, latents: Latents) -> None:
    file = run.directory / "directions.npz"
    with pytest.raises(DataError, match=r"directions\.npz: there is no such file"):
        run.edit(latents, strengths={"a": 1}, device="cpu")
    write_directions(file, directions_of(latents, {"a": np.arange(6) < 3}))
    assert not np.array_equal(run.edit(latents, strengths={"a": 1}, device="cpu").images, pixels(6))
    file.unlink()


def test_the_classes_of_a_conditional_model(conditional: Run) -> None:
    images, labels = pixels(4, channels=3), [1, 7, 1, 2]
    step = 2 ** (8 - conditional.config.model.bits)  # type: ignore[attr-defined]
    coder = conditional.coder(device="cpu")
    latents = coder.encode(images, labels=labels)
    same = coder.edit(latents, Edit(pick=[1, 0]))
    np.testing.assert_array_equal(same.images, images[[1, 0]] // step * step)
    assert same.labels is not None and same.labels.tolist() == [7, 1]
    way = coder.edit(latents, Edit(between=(0, 2), count=3))
    assert way.labels is not None and way.labels.tolist() == [1, 1, 1]
    np.testing.assert_array_equal(way.images[[0, 2]], images[[0, 2]] // step * step)
    with pytest.raises(ConfigError, match=r"labels: latents 0 and 1 are of the classes 1 and 7; give one class, which"):
        coder.edit(latents, Edit(between=(0, 1)))
    with pytest.raises(ConfigError, match=r"labels: samples 3 and 8 are of the classes 3 and 8; give one class, which"):
        coder.edit(Sampled(0), Edit(between=(3, 8)))
    told = coder.edit(latents, Edit(between=(0, 1), count=2), labels=[7]).labels
    assert told is not None and told.tolist() == [7, 7]
    others = coder.edit(latents, Edit({"a": (0, 1)}, pick=[0, 1], count=2), labels=[3, 4], directions=coder_directions(latents))
    assert others.labels is not None and others.labels.tolist() == [3, 3, 4, 4]
    with pytest.raises(ConfigError, match="labels: the latents have none, but this model needs one for each, from 0 to 9"):
        coder.edit(Latents(latents.arrays, None), Edit(pick=[0]))


def coder_directions(latents: Latents) -> Directions:
    return directions_of(latents, {"a": np.arange(len(latents)) < 2})


@pytest.mark.slow
def test_a_diffusion_model(tmp_path: Path) -> None:
    """Directions are made of latents alone, so every encoder has them."""
    config = shrunk("adm-digits").updated({"train": {"total_images": BATCH}})
    run = train(config, tmp_path / "adm", device="cpu")
    coder = run.coder(settings=run.encoding.updated({"steps": 4}), device="cpu")
    directions, latents = coder.directions(pixels_file(tmp_path), out=tmp_path / "d.npz")
    assert directions.names == ("1", "3") and latents.arrays[0].shape == (4, 1, 8, 8)
    still, moved = (coder.edit(latents, Edit({"3": by}), directions=tmp_path / "d.npz").images for by in (0.0, 0.8))
    np.testing.assert_array_equal(still, coder.decode(latents).images)
    assert not np.array_equal(moved, still)
    own, sphere, linear = (coder.edit(latents, Edit(between=(0, 1), path=path, count=3)).images for path in (None, "sphere", "linear"))
    np.testing.assert_array_equal(own, sphere)
    assert not np.array_equal(linear, sphere)


def pixels_file(folder: Path) -> Path:
    np.savez(folder / "images.npz", arr_0=pixels(4), arr_1=np.array([3, 3, 1, 1]))
    return folder / "images.npz"


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"pick": [0, 9]}, "pick: got 9, expected 0 to 5, the latents that are there"),
        ({"pick": []}, "pick: got an empty list, expected at least one latent"),
        ({"between": (0, 9)}, "between: got 9, expected 0 to 5, the latents that are there"),
        ({"between": (0, 1), "pick": [2]}, "between: got 0, 1 beside pick, expected one of the two"),
        ({"between": (0, 1), "strengths": {"a": (0, 1)}}, "between: got 0, 1 beside a range for a, expected one of the two"),
        ({"between": (0, 1), "count": 1}, "count: got 1, expected at least 2"),
        ({"strengths": {"a": (0, 1), "b": (0, 1)}}, "direction: got ranges for a and b, expected one at most"),
        ({"count": 7}, "count: got 7, expected 1 to 6, the latents that are there"),
        ({"count": 0}, "count: got 0, expected at least 1"),
        ({"labels": [1]}, "labels: this run's model was trained without labels; leave them out"),
    ],
)
def test_mistakes(asked: dict[str, Any], line: str, run: Run, latents: Latents) -> None:
    with pytest.raises(ConfigError) as caught:
        run.edit(latents, device="cpu", **asked)
    assert str(caught.value) == line
