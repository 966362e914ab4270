"""Colours of points against a direct loop over pixels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from triptych.gans.point_colours import guidance_loss, no_colours, no_numbers, places_of, seen_colours, with_colours, with_numbers

pytestmark = pytest.mark.usefixtures("float64")

POINTS, FRAMES, SIDES = 40, 4, (5, 7)


def clip() -> tuple[Tensor, Tensor]:
    """Points (b, t, h, w), some of them nowhere and some beyond the table; and images."""
    generator = torch.Generator().manual_seed(3)
    points = torch.randint(-9, POINTS + 3, (2, FRAMES, *SIDES), generator=generator)
    return points, torch.rand(2, FRAMES, 3, *SIDES, generator=generator) * 2 - 1


def test_colours_against_a_loop() -> None:
    points, images = clip()
    table = no_colours(POINTS, like=images[:, 0])
    known: list[dict[int, Tensor]] = [{}, {}]
    shown = 0
    for t in range(FRAMES):
        found = seen_colours(table, points[:, t])
        for k, y, x in torch.cartesian_prod(torch.arange(2), torch.arange(SIDES[0]), torch.arange(SIDES[1])).tolist():
            colour = known[k].get(int(points[k, t, y, x]))
            expected = torch.tensor([-1.0, -1.0, -1.0, 0.0]) if colour is None else torch.cat((colour, torch.ones(1)))
            shown += colour is not None
            assert torch.equal(found[k, :, y, x], expected)
        table = with_colours(table, points[:, t], images[:, t])
        for k in range(2):
            for y in range(SIDES[0]):
                for x in range(SIDES[1]):
                    point = int(points[k, t, y, x])
                    if 0 <= point < POINTS:
                        known[k].setdefault(point, images[k, t, :, y, x])
    assert 100 < shown < 2 * FRAMES * SIDES[0] * SIDES[1]


@pytest.mark.parametrize("first", [0.25, 0.0, -1.0])
def test_a_point_keeps_its_first_colour(first: float) -> None:
    """Also where its numbers are those of a point that nobody has seen."""
    image = torch.zeros(1, 3, 1, 2)
    table = with_colours(no_colours(1, like=image), torch.tensor([[[-1, 0]]]), image + first)
    table = with_colours(table, torch.tensor([[[0, 0]]]), image + 0.5)
    assert seen_colours(table, torch.tensor([[[0, -1]]]))[0, :, 0].T.tolist() == [[first, first, first, 1.0], [-1.0, -1.0, -1.0, 0.0]]


class Made(TorchFunctionMode):
    """The bytes of all tensors that are made."""

    bytes = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {each.untyped_storage().data_ptr() for each in args if torch.is_tensor(each)}  # of what is seen or changed in place
        made = {each.untyped_storage() for each in (found if isinstance(found, tuple) else (found,)) if torch.is_tensor(each)}
        self.bytes += sum(storage.nbytes() for storage in made if storage.data_ptr() not in given)
        return found


def test_a_frame_takes_memory_by_its_pixels_beside_one_new_table() -> None:
    """Whatever the clip has in points: of 64 frames of 1024x2048 a table has 2 GiB, and three times that on the way is too much."""
    points, images = clip()
    table = no_colours(100_000, like=images[:, 0])
    with Made() as made:
        with_colours(table, points[:, 0], images[:, 0])
    size = table.untyped_storage().nbytes()
    assert made.bytes < 1.05 * size


@pytest.mark.parametrize("far", [1, 10**12])
def test_rows_for_the_points_that_were_seen_alone(far: int) -> None:
    """Whatever their numbers are: guidance is that of a table with a row for each number, to the bit."""
    points, images = clip()
    points = points.clamp(max=POINTS - 1)
    spread = torch.where(points >= 0, points * far + 7, points)
    every = no_colours(POINTS, like=images[:, 0])
    table, numbers = no_colours(1, like=images[:, 0]), no_numbers(like=points[:, 0])
    for t in range(FRAMES):
        assert torch.equal(seen_colours(table, places_of(spread[:, t], numbers)), seen_colours(every, points[:, t]))
        every = with_colours(every, points[:, t], images[:, t])
        before = table.clone(), numbers.clone()
        grown = with_numbers(table, numbers, spread[:, t], images[:, t])
        assert torch.equal(table, before[0]) and torch.equal(numbers, before[1]), "what was carried so far stays as it was"
        table, numbers = grown
        shown = spread[:, : t + 1]
        assert numbers.tolist() == [-1, *sorted(set(shown[shown >= 0].tolist()))] and table.shape == (2, len(numbers), 4)
    nowhere, new = torch.full((2, 1, 1), -1), torch.full((2, 1, 1), POINTS * far + 8)
    assert not seen_colours(table, places_of(torch.cat((nowhere, nowhere - 3, new), dim=2), numbers))[:, 3].any()


def test_the_loss_is_a_mean_over_known_pixels() -> None:
    guidance = torch.zeros(2, 4, 2, 2)
    guidance[0, :, 0, 0] = torch.tensor([0.25, 0.25, 0.25, 1])  # a quarter of the first image is known, nothing of the second
    image = torch.full((2, 3, 2, 2), 0.5, requires_grad=True)
    loss = guidance_loss(image, guidance)
    assert loss.tolist() == [0.25, 0.0]
    (gradient,) = torch.autograd.grad(loss.sum(), image, retain_graph=True)
    assert gradient[0, :, 0, 0].tolist() == [1 / 3] * 3 and gradient.abs().sum() == 1
    for weight in (20.0, 20 * 2.0**16):  # as published, and with the first loss scale of fp16
        (gradient,) = torch.autograd.grad(weight * loss.sum(), image, retain_graph=True)
        torch.testing.assert_close(gradient.abs().sum((1, 2, 3)), torch.tensor([weight, 0.0]))
