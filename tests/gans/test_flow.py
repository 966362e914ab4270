"""Warps, losses of flow and windows of frames against direct loops; and flow found between images that moved."""

from __future__ import annotations

import itertools
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from triptych.core.errors import ConfigError
from triptych.gans.flow import (
    confidence,
    cost_volume,
    flow_l1,
    inside,
    leads_home,
    mask_loss,
    past_window,
    temporal_memory,
    temporal_window,
    warped,
)
from triptych.gans.inverse_search import inverse_search
from triptych.gans.lucas_kanade import lucas_kanade

EXACT = {"rtol": 0, "atol": 1e-10}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


def looked_up(image: Tensor, x: float, y: float) -> Tensor:
    """The pixel (c,) of an image (c, h, w) at a place, clamped to the border, between four pixels."""
    height, width = image.shape[1:]
    x, y = min(max(x, 0.0), width - 1.0), min(max(y, 0.0), height - 1.0)
    left, top = min(int(x), width - 2), min(int(y), height - 2)
    u, v = x - left, y - top
    upper = (1 - u) * image[:, top, left] + u * image[:, top, left + 1]
    lower = (1 - u) * image[:, top + 1, left] + u * image[:, top + 1, left + 1]
    return (1 - v) * upper + v * lower


def test_a_warp_looks_up_what_the_flow_points_to() -> None:
    image, flow = drawn(2, 3, 5, 7), 6 * drawn(2, 2, 5, 7, seed=1)
    expected = torch.empty_like(image)
    for b, i, j in itertools.product(range(2), range(5), range(7)):
        expected[b, :, i, j] = looked_up(image[b], j + float(flow[b, 0, i, j]), i + float(flow[b, 1, i, j]))
    torch.testing.assert_close(warped(image, flow), expected, **EXACT)
    row = torch.arange(4.0, dtype=torch.float64).expand(1, 1, 2, 4)
    to_the_right = torch.tensor([0.5, 0.0], dtype=torch.float64)[None, :, None, None].expand(1, 2, 2, 4)
    torch.testing.assert_close(warped(row, to_the_right)[0, 0, 0], torch.tensor([0.5, 1.5, 2.5, 3.0], dtype=torch.float64), **EXACT)
    assert warped(row[..., :1], to_the_right[..., :1]).isfinite().all(), "a side of one pixel"


def test_a_warp_by_whole_pixels_gives_the_next_frame_of_a_pan() -> None:
    world = drawn(1, 3, 12, 14)
    before, now = world[..., 2:10, 3:11], world[..., 1:9, 5:13]  # the window moved by 2 to the right and 1 up
    flow = torch.tensor([2.0, -1.0], dtype=torch.float64)[None, :, None, None].expand(1, 2, 8, 8)
    torch.testing.assert_close(warped(before, flow)[..., 1:, :6], now[..., 1:, :6], **EXACT)
    confident = confidence(now, before, flow)
    assert confident[..., 1:, :6].min() == 1 and confident[..., 6:].mean() < 0.2


def test_places_inside_and_flows_that_lead_home() -> None:
    flow, back = 3 * drawn(2, 2, 6, 7), 3 * drawn(2, 2, 6, 7, seed=1)
    back[:, :, :3] = -flow[:, :, :3].mean((2, 3), keepdim=True)  # some do
    within, home = inside(flow), leads_home(flow, back)
    assert 0.1 < within.mean() < 0.9 and 0.02 < home.mean() < 0.9
    for b, i, j in itertools.product(range(2), range(6), range(7)):
        x, y = j + float(flow[b, 0, i, j]), i + float(flow[b, 1, i, j])
        assert float(within[b, 0, i, j]) == (0 <= x <= 6 and 0 <= y <= 5)
        there = looked_up(back[b], x, y)
        off, lengths = ((flow[b, :, i, j] + there) ** 2).sum(), (flow[b, :, i, j] ** 2).sum() + (there**2).sum()
        assert float(home[b, 0, i, j]) == float(off < 0.01 * lengths + 0.5)


@pytest.mark.parametrize(("off", "home"), [(0.7, 1), (0.72, 1), (1.4, 1), (1.5, 0), (-1.6, 1), (-1.7, 0)])
def test_a_long_flow_may_miss_home_by_more(off: float, home: int) -> None:
    there = torch.tensor([10.0, 0.0], dtype=torch.float64)[None, :, None, None].expand(1, 2, 3, 4)
    # off^2 < 0.01 (10^2 + (10 - off)^2) + 0.5: for off = 1.4 it is 1.96 < 2.2396, for 1.5 2.25 > 2.2225.
    assert leads_home(there, (off - 10) / 10 * there).unique().tolist() == [home]


@pytest.mark.parametrize("radius", [1, 2])
def test_a_cost_volume_is_that_of_loops(radius: int) -> None:
    now, before = (torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(k), dtype=torch.float64) for k in (0, 1))
    found, wanted = cost_volume(now, before, radius=radius), torch.zeros(2, (2 * radius + 1) ** 2, 5, 6, dtype=torch.float64)
    for k, row, column in itertools.product(range(2), range(5), range(6)):
        likeness = []
        for y, x in itertools.product(range(-radius, radius + 1), repeat=2):
            there = 0 <= row + y < 5 and 0 <= column + x < 6
            likeness.append(float(now[k, :, row, column] @ before[k, :, row + y, column + x]) if there else 0.0)
        mean = sum(likeness) / len(likeness)
        variance = sum((value - mean) ** 2 for value in likeness) / len(likeness)
        normalised = [(value - mean) / math.sqrt(variance + 0.01) for value in likeness]
        wanted[k, :, row, column] = torch.tensor(normalised, dtype=torch.float64)
    assert (found - wanted).abs().max() < 1e-12


def test_a_cost_volume_is_largest_at_the_move_of_classes_and_0_inside_of_areas() -> None:
    classes = torch.randint(0, 4, (1, 12, 12), generator=torch.Generator().manual_seed(0))
    maps = torch.nn.functional.one_hot(classes, 4).movedim(-1, 1).double()
    before = maps.roll((-1, 2), dims=(2, 3))  # what is at p now was at p + (2, -1)
    costs = cost_volume(maps, before, radius=2)[0, :, 3:-3, 3:-3]
    assert (costs <= costs[5 * 1 + 4] + 1e-12).all()
    flat = torch.ones(1, 4, 8, 8)
    assert (cost_volume(flat, flat, radius=2)[..., 2:-2, 2:-2] == 0).all()


def test_confidence_of_the_worked_example() -> None:
    target = torch.full((1, 3, 2, 2), 0.1, dtype=torch.float64)
    target[..., 1] = 0.08
    still = torch.zeros(1, 2, 2, 2, dtype=torch.float64)
    assert confidence(target, torch.zeros_like(target), still).tolist() == [[[[0, 1], [0, 1]]]]


def test_losses_of_flow_against_loops() -> None:
    flow, teacher = drawn(2, 2, 3, 4), drawn(2, 2, 3, 4, seed=1)
    confident = (drawn(2, 1, 3, 4, seed=2) > 0).double()
    mask, image, real = drawn(2, 1, 3, 4, seed=3).sigmoid(), 0.3 * drawn(2, 3, 3, 4, seed=4), 0.3 * drawn(2, 3, 3, 4, seed=5)
    for b in range(2):
        distance = loss = 0.0
        for i, j in itertools.product(range(3), range(4)):
            for axis in range(2):
                distance += abs(float(flow[b, axis, i, j]) - float(teacher[b, axis, i, j])) * float(confident[b, 0, i, j]) / 24
            q = min(max(1 - sum(abs(float(image[b, c, i, j]) - float(real[b, c, i, j])) for c in range(3)), 0.0), 1.0)
            loss += (float(mask[b, 0, i, j]) * q + abs(float(mask[b, 0, i, j]) - 1) * (1 - q)) / 12
        assert abs(float(flow_l1(flow, teacher, confident)[b]) - distance) < 1e-10
        assert abs(float(mask_loss(mask, image, real)[b]) - loss) < 1e-10
    one, half = torch.zeros(1, 2, 1, 2), torch.tensor([[[[1.0, 0.0]]]])
    one[:, 0] = 1
    assert flow_l1(one, torch.zeros_like(one), half).item() == 0.25


def test_the_mask_of_worked_examples_and_limits() -> None:
    real = torch.zeros(1, 3, 1, 1, dtype=torch.float64)
    mask = torch.full((1, 1, 1, 1), 0.3, dtype=torch.float64)
    near = torch.tensor([0.2, -0.1, 0.1], dtype=torch.float64).reshape(1, 3, 1, 1).requires_grad_()
    loss = mask_loss(mask, near, real)
    assert loss.item() == pytest.approx(0.46, abs=1e-12)
    (gradient,) = torch.autograd.grad(loss.sum(), near)
    torch.testing.assert_close(gradient.flatten(), torch.tensor([0.4, -0.4, 0.4], dtype=torch.float64), **EXACT)  # (1 - 2 mask) sign
    assert mask_loss(mask, real, real).item() == pytest.approx(0.3, abs=1e-12)
    assert mask_loss(mask, real + 1, real).item() == pytest.approx(0.7, abs=1e-12)


def test_windows_of_frames() -> None:
    for frame, frames, scale in itertools.product(range(30), (2, 3, 4), range(3)):
        skip = frames**scale
        wanted = [frame - k * skip for k in range(frames)][::-1]
        assert temporal_window(frame, scale=scale, frames=frames) == (tuple(wanted) if wanted[0] >= 0 else None)
        assert past_window(frame, frames=frames) == tuple(t for t in range(frame) if frame - t < frames)
        seen = temporal_window(99, scale=scale - 1, frames=frames) if scale else (99,)
        assert temporal_memory(scales=scale, frames=frames) == 99 - seen[0]
    assert temporal_window(1, scale=0, frames=3) is None and temporal_window(2, scale=0, frames=3) == (0, 1, 2)
    assert temporal_window(5, scale=1, frames=3) is None and temporal_window(6, scale=1, frames=3) == (0, 3, 6)


# Lucas and Kanade ---------------------------------------------------------------------------------------------------------


def waves(x: Tensor, y: Tensor) -> Tensor:
    """A smooth pattern of three channels, known between pixels."""
    channels = []
    for c in range(3):
        parts = [math.sin(k + c) * torch.sin((0.09 + 0.05 * k) * (x * math.cos(2 * k + c) + y * math.sin(2 * k + c)) + k) for k in range(6)]
        channels.append(torch.stack(parts).sum(0) / 3)
    return torch.stack(channels)


def error(flow: Tensor, true: Tensor) -> float:
    return float((flow - true).norm(dim=1).mean())


def test_a_teacher_has_the_precision_of_its_images_in_any_training() -> None:
    """Measured: 9e-7 pixels; convolutions in bfloat16 are off by 0.01."""
    world = torch.rand(1, 3, 12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float32) * 2 - 1
    world = torch.nn.functional.interpolate(world, size=(70, 70), mode="bicubic").clamp(-1, 1)
    target, source = world[..., 3:67, 3:67], world[..., 2:66, 5:69]
    with torch.autocast("cpu", torch.bfloat16):
        found = lucas_kanade(target, source)
    assert found.dtype == torch.float32
    assert (found - lucas_kanade(target.double(), source.double())).abs().max() < 1e-4


@pytest.mark.parametrize("move", [(1.3, -0.6), (-3.7, 2.2)])
def test_flow_of_a_pattern_that_moved(move: tuple[float, float]) -> None:
    y, x = torch.meshgrid(torch.arange(48.0), torch.arange(64.0), indexing="ij")
    target, source = waves(x, y)[None], waves(x - move[0], y - move[1])[None]
    true = torch.tensor(move)[None, :, None, None].expand(1, 2, 48, 64)
    found = lucas_kanade(target, source)
    assert found.shape == (1, 2, 48, 64)
    assert error(found, true) < 0.1 * error(torch.zeros_like(found), true)
    assert float((found - true).norm(dim=1).median()) < 0.1
    assert confidence(target, source, found).mean() > 0.9


def around(image: Tensor, y: int, x: int, reach: int) -> Tensor:
    """The pixels (c, n, n) around a place; beyond the border its pixels go on."""
    rows = [min(max(row, 0), image.shape[1] - 1) for row in range(y - reach, y + reach + 1)]
    columns = [min(max(column, 0), image.shape[2] - 1) for column in range(x - reach, x + reach + 1)]
    return image[:, rows][:, :, columns]


def gaussian(deviation: float) -> tuple[Tensor, int]:
    """Weights (n, n) to three deviations, and their reach."""
    reach = round(3 * deviation)
    taps = torch.tensor([math.exp(-((k / deviation) ** 2) / 2) for k in range(-reach, reach + 1)], dtype=torch.float64)
    weights = taps[:, None] * taps
    return weights / weights.sum(), reach


def at_size(image: Tensor, height: int, width: int) -> Tensor:
    """An image (c, h, w) looked up where the pixels of another size lie."""
    down, across = image.shape[1] / height, image.shape[2] / width
    found = [[looked_up(image, (j + 0.5) * across - 0.5, (i + 0.5) * down - 0.5) for j in range(width)] for i in range(height)]
    return torch.stack([torch.stack(row) for row in found]).movedim(-1, 0)


def halved_by_loop(image: Tensor) -> Tensor:
    weights, reach = gaussian(1.0)
    blurred = torch.empty_like(image)
    for y, x in itertools.product(range(image.shape[1]), range(image.shape[2])):
        blurred[:, y, x] = (around(image, y, x, reach) * weights).sum((1, 2))
    return at_size(blurred, image.shape[1] // 2, image.shape[2] // 2)


def step_by_loop(target: Tensor, source: Tensor, flow: Tensor) -> Tensor:
    """The flow (2, h, w) after a step of least squares."""
    (_, height, width), (weights, reach), moved = target.shape, gaussian(3.0), torch.empty_like(target)
    places = list(itertools.product(range(height), range(width)))
    counted = torch.zeros(height, width, dtype=torch.float64)
    for y, x in places:
        to_x, to_y = x + float(flow[0, y, x]), y + float(flow[1, y, x])
        moved[:, y, x] = looked_up(source, to_x, to_y)
        counted[y, x] = float(0 <= to_x <= width - 1 and 0 <= to_y <= height - 1)
    mean, products = (target + moved) / 2, torch.empty(5, height, width, dtype=torch.float64)
    for y, x in places:
        near = around(mean, y, x, 1)
        across, down, off = (near[:, 1, 2] - near[:, 1, 0]) / 2, (near[:, 2, 1] - near[:, 0, 1]) / 2, (target - moved)[:, y, x]
        pairs = ((across, across), (across, down), (down, down), (across, off), (down, off))
        products[:, y, x] = torch.stack([one @ other for one, other in pairs]) * counted[y, x]
    after = flow.clone()
    for y, x in places:
        xx, xy, yy, xt, yt = (around(products, y, x, reach) * weights).sum((1, 2)).tolist()
        system = torch.tensor([[xx + 1e-3, xy], [xy, yy + 1e-3]], dtype=torch.float64)
        after[:, y, x] += torch.linalg.solve(system, torch.tensor([xt, yt], dtype=torch.float64)).clamp(-1, 1)
    return after


def test_flow_against_a_loop() -> None:
    """A pattern that moves, before it a square that moves otherwise: sums, steps, sizes and medians that are not the method's show."""
    y, x = torch.meshgrid(torch.arange(32.0, dtype=torch.float64), torch.arange(37.0, dtype=torch.float64), indexing="ij")
    target, source = waves(x, y), waves(x - 2.6, y + 1.2)
    target[:, 8:18, 9:20], source[:, 10:20, 6:17] = 0.5 * drawn(3, 10, 11), 0.5 * drawn(3, 10, 11)
    levels = [(target, source), (halved_by_loop(target), halved_by_loop(source))]  # the second one is shorter than 32
    flow = torch.zeros(2, 16, 18, dtype=torch.float64)
    for here, there in reversed(levels):
        height, width = here.shape[1:]
        sizes = torch.tensor([width / flow.shape[2], height / flow.shape[1]], dtype=torch.float64)[:, None, None]
        flow = at_size(flow, height, width) * sizes
        for _ in range(3):
            flow = step_by_loop(here, there, flow)
        medians = [[around(flow, i, j, 2).flatten(1).median(1).values for j in range(width)] for i in range(height)]
        flow = torch.stack([torch.stack(row) for row in medians]).movedim(-1, 0)
    assert (lucas_kanade(target[None], source[None])[0] - flow).abs().max() < 1e-9


def test_each_pair_by_itself_and_no_flow_between_equal_images() -> None:
    y, x = torch.meshgrid(torch.arange(20.0), torch.arange(33.0), indexing="ij")
    images = torch.stack([waves(x, y), waves(x + 1, y), waves(x, y + 0.5)]).double()
    found = lucas_kanade(images, images.roll(1, 0))
    alone = torch.cat([lucas_kanade(images[k : k + 1], images.roll(1, 0)[k : k + 1]) for k in range(3)])
    assert (found - alone).abs().max() < 1e-10
    assert lucas_kanade(images, images).abs().max() < 1e-10


def test_dis_is_asked_for_grey_images_of_8_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for OpenCV: which image is which, brightness, and the order of axes. The real one, where it is there, comes below."""
    seen: list[np.ndarray] = []

    class Search:
        def calc(self, first: np.ndarray, second: np.ndarray, flow: None) -> np.ndarray:
            seen.extend((first, second))
            return np.stack((first / 255, second / 255), axis=-1).astype(np.float32)

    opencv = SimpleNamespace(DISOPTICAL_FLOW_PRESET_MEDIUM=2, DISOpticalFlow_create=lambda preset: Search())
    monkeypatch.setitem(sys.modules, "cv2", opencv)
    target, source = torch.full((2, 3, 4, 5), -1.0), torch.full((2, 3, 4, 5), 1.0)
    target[1, 0] = 1.0  # red
    flow = inverse_search(target, source)
    assert [image.dtype for image in seen] == [np.uint8] * 4 and {image.shape for image in seen} == {(4, 5)}
    assert [int(image[0, 0]) for image in seen] == [0, 255, 76, 255]
    assert flow.shape == (2, 2, 4, 5) and flow.dtype == target.dtype
    torch.testing.assert_close(flow[:, 0, 0, 0], torch.tensor([0.0, 76 / 255]), rtol=0, atol=1e-6)
    assert flow[:, 1].min() == 1 and inverse_search(target[:, :1], source[:, :1]).shape == flow.shape


@pytest.mark.peer("cv2")
def test_dis_finds_where_a_pattern_came_from() -> None:
    y, x = torch.meshgrid(torch.arange(72.0), torch.arange(72.0), indexing="ij")
    world = (torch.sin(x / 3) * torch.cos(y / 4) + torch.sin((x + 2 * y) / 7))[None, None] / 2
    target, source = world[..., 4:68, 5:69], world[..., 4:68, 3:67]
    flow = inverse_search(target, source)[..., 8:-8, 8:-8]
    assert (flow - torch.tensor([2.0, 0.0])[:, None, None]).abs().mean() < 0.3


def test_dis_without_opencv_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ConfigError, match=r'needs OpenCV: pip install "triptych\[flow\]"; or take another teacher'):
        inverse_search(drawn(1, 3, 8, 8), drawn(1, 3, 8, 8))
