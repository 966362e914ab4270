from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import picture, write_folder
from tests.data.records import write_shards
from triptych.core.rng import key_of, words
from triptych.data.augmentation import affine, move, moves, shifts
from triptych.data.config import DataConfig
from triptych.data.images import ImageSet
from triptych.data.loader import Loader, evaluation_batches
from triptych.data.transforms import draw

TOP = 2**32 - 1
MIDDLE = (2**31 - 1, 2**31)  # the words beside 0
EXTREMES = np.array(list(itertools.product((0, TOP), repeat=6)))
DRAWN = np.concatenate((EXTREMES, words(np.arange(40), key=(1, 2), count=6)))


def parameters(drawn: np.ndarray) -> np.ndarray:
    """What six words mean: radians, two shares of the size, radians, two factors."""
    u = drawn / TOP * 2 - 1
    return u * [15 / 180 * np.pi, 0.1, 0.1, 0.02 / 180 * np.pi, 0.1, 0.1] + [0, 0, 0, 0, 1, 1]


def moved_as_described(
    image: np.ndarray, theta: float, down: float, right: float, shear: float, zoom_y: float, zoom_x: float
) -> np.ndarray:
    """The image of Keras's transformation in homogeneous coordinates (row, column, 1), one pixel after the other."""
    size = len(image)
    cos, sin, centre = np.cos(theta), np.sin(theta), size / 2 + 0.5
    chain = [
        [[1, 0, centre], [0, 1, centre], [0, 0, 1]],
        [[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]],
        [[1, 0, down * size], [0, 1, right * size], [0, 0, 1]],
        [[1, -np.sin(shear), 0], [0, np.cos(shear), 0], [0, 0, 1]],
        [[zoom_y, 0, 0], [0, zoom_x, 0], [0, 0, 1]],
        [[1, 0, -centre], [0, 1, -centre], [0, 0, 1]],
    ]
    matrix = np.linalg.multi_dot([np.array(each, dtype=np.float64) for each in chain])
    result = np.empty(image.shape)
    for row, column in np.ndindex(size, size):
        y, x, _ = matrix @ (row, column, 1)
        top, left = int(np.floor(y)), int(np.floor(x))
        result[row, column] = sum(
            (1 - abs(y - j)) * (1 - abs(x - i)) * image[np.clip(j, 0, size - 1), np.clip(i, 0, size - 1)]
            for j, i in itertools.product((top, top + 1), (left, left + 1))
        )
    return result


@pytest.mark.parametrize("augment", ["shift", "affine"])
@pytest.mark.parametrize(("size", "channels"), [(8, 3), (13, 1)])
def test_moves_are_as_described(augment, size, channels):
    images = np.stack([picture(size, size, seed=k, channels=channels) for k in range(len(DRAWN))])
    result = images.copy()
    move(result, shifts(DRAWN) if augment == "shift" else affine(DRAWN))
    for before, after, values in zip(images, result, parameters(DRAWN), strict=True):
        chosen = values if augment == "affine" else [0, values[1], values[2], 0, 1, 1]
        exact = moved_as_described(before, *chosen)
        assert (after <= exact + 1e-6).all() and (after > exact - 1 - 1e-6).all()  # the fraction is cut off


@pytest.mark.parametrize("channels", [1, 3])
def test_no_move_changes_nothing_and_whole_pixels_are_exact(channels):
    images = np.stack([picture(16, 16, seed=k, channels=channels) for k in range(3)])
    matrices = np.tile(np.eye(2, 3), (3, 1, 1))
    same = images.copy()
    move(same, matrices)
    np.testing.assert_array_equal(same, images)
    matrices[:, :, 2] = np.array([[1, 0], [0, -1], [1, -1]]) / 16  # one pixel up, one to the right, both
    move(same, matrices)
    np.testing.assert_array_equal(same[0], images[0][[*range(1, 16), 15]])
    np.testing.assert_array_equal(same[1], images[1][:, [0, *range(15)]])
    np.testing.assert_array_equal(same[2], images[2][[*range(1, 16), 15]][:, [0, *range(15)]])


@pytest.mark.parametrize("augment", ["shift", "affine"])
def test_a_flat_image_stays_flat(augment):
    """Nothing is taken from beyond the border, and no level is lost to rounding, at the farthest moves and at any size."""
    for size, level in ((1, 255), (2, 7), (5, 1), (33, 255), (64, 100)):
        flat = np.full((len(EXTREMES), size, size, 3), level, dtype=np.uint8)
        move(flat, shifts(EXTREMES) if augment == "shift" else affine(EXTREMES))
        assert (flat == level).all()


def test_parameters_are_spread_evenly_to_their_limits():
    drawn = moves(np.arange(4000), seed=0, augment="shift")
    np.testing.assert_array_equal(drawn[:, :, :2], np.tile(np.eye(2), (4000, 1, 1)))
    for shift in drawn[:, :, 2].T:
        counts, _ = np.histogram(shift, bins=10, range=(-0.1, 0.1))
        assert counts.sum() == 4000 and np.abs(counts - 400).max() < 5 * 20
    assert abs(np.corrcoef(drawn[:, :, 2].T)[0, 1]) < 0.06
    drawn = moves(np.arange(4000), seed=0, augment="affine")
    angles = np.degrees(np.arctan2(drawn[:, 1, 0], drawn[:, 0, 0]))
    zoomed = np.linalg.norm(drawn[:, :, :2], axis=1).T
    for values, low, high in ((angles, -15, 15), *((zoom, 0.9, 1.1) for zoom in zoomed)):
        assert low <= values.min() < low + 0.01 * (high - low) and high - 0.01 * (high - low) < values.max() <= high
        assert abs(values.mean() - (low + high) / 2) < 0.03 * (high - low)
    assert affine(np.full((1, 6), MIDDLE[0])) == pytest.approx(np.eye(2, 3)[None], abs=1e-9)
    assert affine(np.full((1, 6), MIDDLE[1])) == pytest.approx(np.eye(2, 3)[None], abs=1e-9)


def test_moves_depend_on_seed_and_position_alone():
    whole = moves(np.arange(100), seed=5, augment="affine")
    np.testing.assert_array_equal(moves(np.array([7, 99, 3]), seed=5, augment="affine"), whole[[7, 99, 3]])
    np.testing.assert_array_equal(whole, affine(words(np.arange(100), key=key_of(5, "data", "augment"), count=6)))
    assert not (moves(np.arange(100), seed=6, augment="affine") == whole).all(axis=(1, 2)).any()
    assert moves(np.arange(3), seed=5, augment="none") is None


# In training


def opened(path: Path, **settings) -> ImageSet:
    return DataConfig(path=str(path), validation_fraction=0, **({"image_size": 16, "flip": False} | settings)).open().train


@pytest.fixture(scope="module", params=["folder", "array", "mapped", "records"])
def place(request, tmp_path_factory) -> Path:
    """Six pictures of 20x16 pixels as one kind of source."""
    root = tmp_path_factory.mktemp("images")
    images = [picture(20, 16, seed=k) for k in range(6)]
    if request.param == "folder":
        return write_folder(root, [f"{k}.png" for k in range(6)])
    if request.param == "records":
        write_shards(root / "train", images, bits=4)
        return root
    path = root / ("x.npz" if request.param == "array" else "x.npy")
    np.savez(path, np.stack(images)) if request.param == "array" else np.save(path, np.stack(images))
    return path


@pytest.mark.parametrize("augment", ["none", "shift", "affine"])
def test_training_images_are_moved_then_mirrored(place, augment):
    images, plain = opened(place, augment=augment), opened(place)
    positions, items = np.arange(30, 42), np.arange(12) % 6
    draws = draw(positions, images.config, seed=4)
    expected = plain.batch(items).images
    if augment != "none":
        move(expected, moves(positions, seed=4, augment=augment))
    mirrored = words(positions, key=key_of(4, "data", "flip"))[:, 0] >= 2**31
    np.testing.assert_array_equal(draws.flip, mirrored & (augment == "affine"))
    expected = np.where(draws.flip[:, None, None, None], expected[:, :, ::-1], expected)
    np.testing.assert_array_equal(images.batch(items, positions, seed=4).images, expected)
    np.testing.assert_array_equal(images.batch(items).images, plain.batch(items).images)  # nor is anything moved without draws


def test_an_affine_half_is_mirrored_with_or_without_flip(place):
    positions = np.arange(200)
    draws = [draw(positions, opened(place, augment="affine", flip=flip).config, seed=1) for flip in (False, True)]
    np.testing.assert_array_equal(draws[0].flip, draws[1].flip)
    assert 0.35 < draws[0].flip.mean() < 0.65


@pytest.mark.parametrize("crop", ["center", "random"])
def test_neither_batches_nor_workers_nor_restarts_change_a_sample(place, crop):
    images = opened(place, augment="affine", crop=crop)

    def taken(batch_size: int, count: int, *, start: int = 0, workers: int = 0) -> np.ndarray:
        loader = Loader(images, batch_size=batch_size, seed=3, workers=workers)
        try:
            return np.concatenate([batch.images.numpy() for batch in itertools.islice(loader.batches(start), count)])
        finally:
            loader.close()

    whole = taken(6, 4)
    np.testing.assert_array_equal(taken(4, 6), whole)
    np.testing.assert_array_equal(taken(6, 2, start=12), whole[12:])
    np.testing.assert_array_equal(taken(3, 8, workers=1), whole)
    shown = np.concatenate([batch.images.numpy() for batch in evaluation_batches(images, batch_size=4)])
    np.testing.assert_array_equal(shown, opened(place).batch(np.arange(6)).images)


def test_augment_and_pad_belong_to_a_run():
    assert not DataConfig.changeable & {"augment", "pad"}
