"""Crops of faces and hands: squares and pixels against direct loops, and what says where they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from triptych.core.batch import InputSpec
from triptych.core.errors import ConfigError
from triptych.gans.crops import CropConfig, Crops, PoseMap, crop_size, face_crops, hand_crops, pose_map
from triptych.gans.discriminators import NLayerPatch

pytestmark = pytest.mark.usefixtures("float64")

POSES = InputSpec(name="poses", kind="image", channels=27)
DENSE = InputSpec(name="pose_maps-DensePose", kind="image", channels=3)
SIZES = [(64, 64), (96, 64), (64, 160), (128, 70)]


def poses(height: int, width: int, *, channels: int, level: float, seed: int = 0) -> Tensor:
    """Rectangles in every channel of six images, of -1 but for `level` inside of them; nothing in the last image."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.full((6, channels, height, width), -1.0)
    for k in range(5):
        for channel in range(channels):
            y, x = (int(torch.randint(side, (), generator=generator)) for side in (height, width))
            most = max(3, height // (1 + k))
            tall, wide = (1 + int(torch.randint(most, (), generator=generator)) for _ in range(2))
            made[k, channel, y : y + tall, x : x + wide] = level
            made[k, channel, y, x] = level
    return made


def pixels(mask: Tensor) -> list[tuple[int, int]]:
    return [(y, x) for y in range(mask.shape[0]) for x in range(mask.shape[1]) if mask[y, x]]


def moved_inside(row: int, column: int, side: int, mask: Tensor) -> tuple[int, int, int]:
    height, width = mask.shape
    return max(0, min(column - side // 2, width - side)), max(0, min(row - side // 2, height - side)), side


def face_by_hand(mask: Tensor, *, drawn: bool) -> tuple[int, int, int]:
    """First column, first row and side."""
    height, width = mask.shape
    found = pixels(mask)
    if not found:
        return moved_inside(height // 4, width // 2, height // 32 * 8, mask)
    y0, y1 = min(y for y, _ in found), max(y for y, _ in found)
    x0, x1 = min(x for _, x in found), max(x for _, x in found)
    if drawn:
        row, side = (3 * y0 + 2 * y1) // 5, int(2.5 * (x1 - x0))
    else:
        row, side = (y0 + y1) // 2, int(1.25 * (y1 - y0))
    return moved_inside(row, (x0 + x1) // 2, min(max(side, 32), width, height), mask)


def resized_by_hand(square: Tensor, size: int) -> Tensor:
    """Bilinear, corner pixels on corner pixels, pixel by pixel."""
    channels, side, _ = square.shape
    made = torch.zeros(channels, size, size)
    for i in range(size):
        for j in range(size):
            y, x = i * (side - 1) / (size - 1), j * (side - 1) / (size - 1)
            top, left = min(int(y), side - 2), min(int(x), side - 2)
            down, across = y - top, x - left
            upper = (1 - across) * square[:, top, left] + across * square[:, top, left + 1]
            lower = (1 - across) * square[:, top + 1, left] + across * square[:, top + 1, left + 1]
            made[:, i, j] = (1 - down) * upper + down * lower
    return made


def squares(crops: Crops) -> list[list[tuple[int, int, int]]]:
    """First column, first row and side of each, image by image."""
    every = torch.stack((crops.left, crops.top, crops.side), -1)
    return [[(left, top, side) for left, top, side in image] for image in every.tolist()]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("drawn", [True, False])
def test_squares_of_faces_are_those_by_hand(size: tuple[int, int], drawn: bool) -> None:
    seen = set()
    for seed in range(4):
        pose = poses(*size, channels=27 if drawn else 3, level=0.92, seed=seed)
        found = squares(face_crops(pose, drawn=drawn))
        expected = [face_by_hand(image[-1 if drawn else 2] > (-1 if drawn else 0.9), drawn=drawn) for image in pose]
        assert found == [[square] for square in expected]
        seen |= {square[2] for square in expected}
    assert len(seen) > 3 or min(size) < 70


def test_the_parts_of_densepose_that_are_a_head_and_the_faintest_line() -> None:
    """Parts 23 and 24 of 24, from -1 to 1: 22 / 24 is a part of an arm. A drawn line counts however faint it is."""
    pose = torch.full((3, 3, 64, 64), -1.0)
    for k, part in enumerate((22, 23, 24)):
        pose[k, 2, 10:50, 20:24] = 2 * part / 24 - 1
    assert squares(face_crops(pose, drawn=False)) == [[(24, 8, 16)], [(0, 5, 48)], [(0, 5, 48)]]
    drawn = torch.full((1, 27, 64, 64), -1.0)
    drawn[0, 26, 20:26, 30:47] = 1 / 127.5 - 1
    assert squares(face_crops(drawn, drawn=True)) == [[(18, 2, 40)]]


@pytest.mark.parametrize("size", SIZES)
def test_squares_of_hands_are_those_by_hand_and_those_that_are_there_share_evenly(size: tuple[int, int]) -> None:
    pose = poses(*size, channels=27, level=1.0)
    pose[1, 24] = pose[2, 25] = 0.99
    crops = hand_crops(pose)
    side = size[0] // 64 * 8
    for k, image in enumerate(pose):
        there = []
        for hand, channel in enumerate((24, 25)):
            found = pixels(image[channel] == 1)
            there.append(bool(found))
            if found:
                row = (min(y for y, _ in found) + max(y for y, _ in found)) // 2
                column = (min(x for _, x in found) + max(x for _, x in found)) // 2
                assert squares(crops)[k][hand] == moved_inside(row, column, side, image[0])
        assert crops.share is not None
        assert crops.share[k].tolist() == [float(one) / max(1, sum(there)) for one in there]
    assert crops.share is not None and crops.share[1:3].tolist() == [[0, 1], [1, 0]] and crops.share[5].tolist() == [0, 0]


@pytest.mark.parametrize("drawn", [True, False])
def test_pixels_of_crops_are_those_by_hand(drawn: bool) -> None:
    torch.manual_seed(0)
    pose, images = poses(96, 64, channels=27 if drawn else 3, level=1.0), torch.randn(6, 3, 96, 64)
    for crops, count, size in ((face_crops(pose, drawn=drawn), 1, 24), (hand_crops(poses(96, 64, channels=27, level=1.0)), 2, 8)):
        found = crops.of(images)
        assert found.shape == (6 * count, 3, size, size) and crops.size == size
        for k, places in enumerate(squares(crops)):
            for m, (left, top, side) in enumerate(places):
                expected = resized_by_hand(images[k, :, top : top + side, left : left + side], size)
                torch.testing.assert_close(found[k * count + m], expected, rtol=0, atol=1e-10)


def test_crops_of_an_image_do_not_depend_on_the_others_and_keep_gradients_inside() -> None:
    torch.manual_seed(0)
    pose, images = poses(64, 64, channels=27, level=1.0), torch.randn(6, 3, 64, 64, requires_grad=True)
    whole, alone = face_crops(pose, drawn=True).of(images), face_crops(pose[2:3], drawn=True).of(images[2:3])
    assert torch.equal(whole[2:3], alone)
    (gradient,) = torch.autograd.grad(whole[5].sum(), images)
    (left, top, side) = squares(face_crops(pose, drawn=True))[5][0]
    assert gradient[5, :, top : top + side, left : left + side].eq(1).all() and gradient.abs().sum() == 3 * side**2


def test_what_says_where_parts_are() -> None:
    colours = InputSpec(name="colours", kind="image", channels=3)
    assert pose_map((colours, DENSE, POSES), part="face", weight=1) == PoseMap("poses", True)
    assert pose_map((colours, DENSE, POSES), part="hand", weight=1) == PoseMap("poses", True)
    assert pose_map((colours, DENSE), part="face", weight=1) == PoseMap("pose_maps-DensePose", False)
    assert pose_map((colours, replace(colours, name="alone", stored="densepose")), part="face", weight=1) == PoseMap("alone", False)
    with pytest.raises(ConfigError, match=r"discriminator.face.weight: got 10, but no label map shows where a face is; expected 0, or a"):
        pose_map((colours, replace(DENSE, channels=1), InputSpec(name="poses", kind="classes", num_classes=27)), part="face", weight=10)
    with pytest.raises(ConfigError, match=r"discriminator.hand.weight: got 2, .* condition image of 27 channels \([^)]*\)$"):
        pose_map((colours, DENSE), part="hand", weight=2)


@pytest.mark.parametrize("part", ["face", "hand"])
def test_images_are_as_tall_as_every_scale_of_a_discriminator_needs(part) -> None:
    config = CropConfig()
    network, least = NLayerPatch(config.patch, in_channels=3), config.least_height(part)
    size = crop_size(part, least)
    assert network(torch.randn(1, 3, size, size))[0].numel() >= 1
    assert crop_size(part, least - 1) == size - 8
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        network.train()(torch.randn(1, 3, size - 8, size - 8))
