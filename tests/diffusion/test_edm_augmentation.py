"""Augmentation that does not leak: what happens to images, and what the network is told of it."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch
from torch import Tensor

from triptych.core.errors import ConfigError
from triptych.core.rng import Rng
from triptych.diffusion.edm_augmentation import AUGMENT_DIMS, NonLeakingConfig, augmented, sources_of

COUNT = 4000
DRAWS = ("scale", "angle", "stretch", "axis")
NONE = {"x_flip": False, "y_flip": 0.0, "scaling": 0.0, "rotation": 0.0, "anisotropy": 0.0, "translation": 0.0}


def alone(change: str, *, p: float = 1.0) -> NonLeakingConfig:
    return NonLeakingConfig(p=p, **(NONE | {change: True if change == "x_flip" else 1.0}))  # type: ignore[arg-type]


def rng(count: int, first: int = 0) -> Rng:
    return Rng(0, ("augment",), torch.arange(first, first + count))


def told_of(settings: NonLeakingConfig, count: int = COUNT) -> Tensor:
    """What the network is told of so many tiny images."""
    return augmented(torch.zeros(count, 1, 2, 2, dtype=torch.float64), rng(count), settings)[1]


def smooth(height: int = 16, width: int = 24) -> tuple[Tensor, Tensor, Tensor]:
    """A smooth image without symmetry that its mirror images continue smoothly; and x and y of its pixels."""
    y, x = torch.meshgrid(*(torch.arange(side, dtype=torch.float64) - (side - 1) / 2 for side in (height, width)), indexing="ij")
    return picture(x, y, height, width), x, y


def picture(x: Tensor, y: Tensor, height: int = 16, width: int = 24) -> Tensor:
    return torch.cos(math.pi * (x / (width - 1) + 0.5)) + 0.5 * torch.cos(math.pi * (y / (height - 1) + 0.5))


def test_mirrored_images() -> None:
    x = torch.rand(40, 3, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for change, number, dim in (("x_flip", 0, 3), ("y_flip", 1, 2)):
        y, told = augmented(x, rng(40), alone(change, p=1.0))
        mirrored = told[:, number] == 1
        assert 10 < mirrored.sum() < 30
        assert torch.equal(y, torch.where(mirrored[:, None, None, None], x.flip(dim), x))
        assert not told[:, [i for i in range(AUGMENT_DIMS) if i != number]].any()


@pytest.mark.parametrize(
    ("change", "numbers", "undone"),
    [
        # For what was told, where the picture shows what was at (x, y) of it: the change, written out, to the right and down.
        ("scaling", (2,), lambda t, x, y: (x / 2 ** (0.2 * t[2]), y / 2 ** (0.2 * t[2]))),
        ("rotation", (3, 4), lambda t, x, y: ((1 + t[3]) * x - t[4] * y, t[4] * x + (1 + t[3]) * y)),
        ("anisotropy", (5, 6), lambda t, x, y: _unstretched(t[5], t[6], x, y)),
        ("translation", (7, 8), lambda t, x, y: (x - t[7] * 24 / 8, y - t[8] * 16 / 8)),
    ],
)
def test_a_change_is_what_the_network_is_told(change: str, numbers: tuple[int, ...], undone) -> None:
    image, x, y = smooth()
    found, told = augmented(image.expand(30, 1, -1, -1), rng(30), alone(change))
    assert not told[:, [i for i in range(AUGMENT_DIMS) if i not in numbers]].any()
    assert (told[:, list(numbers)] != 0).any(0).all()
    assert (found - image).abs().max() > 0.15
    errors = torch.stack([(one - picture(*undone(t, x, y))).abs().max() for one, t in zip(found[:, 0], told, strict=True)])
    right = errors < 0.03  # between fine pixels it is interpolated along lines
    if change == "anisotropy":  # its direction and the opposite one are the same, so what is told leaves open whether it grew or shrank
        assert 0.3 < right.double().mean() < 0.7
        straight = told[:, 6] == 0
        assert straight.any() and torch.equal(right[straight], (told[straight, 5] > 0) | (told[straight, 5].abs() < 0.1))
    else:
        assert right.all()


def _unstretched(cosine: Tensor, sine: Tensor, x: Tensor, y: Tensor, *, by: float = 1) -> tuple[Tensor, Tensor]:
    """Longer by 2^(0.2 w) in the direction of the angle upwards from the right (y points down), shorter by it across."""
    w = torch.hypot(cosine, sine)
    along, across = (cosine * x - sine * y) / w, (sine * x + cosine * y) / w
    along, across = along / 2 ** (by * 0.2 * w), across * 2 ** (by * 0.2 * w)
    return (cosine * along + sine * across) / w, (-sine * along + cosine * across) / w


def test_changes_come_in_the_published_order() -> None:
    """Scaled, turned, stretched, then moved: what is seen at p was moved, stretched and turned back, and made small again."""
    draws = {name: torch.tensor([v], dtype=torch.float64) for name, v in zip(DRAWS, (0.7, 0.4, -1.1, 0.9), strict=True)}
    shift = torch.tensor([[0.5, -0.3]], dtype=torch.float64)
    (source,) = sources_of(**draws, shift=shift, size=(16, 24))
    p = torch.tensor([3.0, -2.0], dtype=torch.float64)
    x, y = p[0] - 0.5 * 24 / 8, p[1] + 0.3 * 16 / 8
    # A draw of -1.1 stretches by 1.1 across its direction.
    x, y = _unstretched(torch.tensor(1.1 * math.cos(0.9 + math.pi / 2)), torch.tensor(1.1 * math.sin(0.9 + math.pi / 2)), x, y)
    x, y = math.cos(0.4) * x - math.sin(0.4) * y, math.sin(0.4) * x + math.cos(0.4) * y
    expected = torch.stack([x, y]) / 2 ** (0.2 * 0.7)
    torch.testing.assert_close(source @ torch.tensor([*p, 1.0], dtype=torch.float64), expected)


def test_how_often_and_how_much() -> None:
    """Each change with probability p, all of them independent; the draws are normal, or of any angle."""
    p = 0.3
    told = told_of(NonLeakingConfig(p=p))
    happened = torch.stack([told[:, 1] == 1, told[:, 2] != 0, told[:, 4] != 0, told[:, 5] != 0, told[:, 7] != 0], 1).double()
    wanted = torch.tensor([p / 2, p, p, p, p], dtype=torch.float64)
    error = 4 * (wanted * (1 - wanted) / COUNT).sqrt()
    assert ((happened.mean(0) - wanted).abs() < error).all()
    assert abs((told[:, 0] == 1).double().mean() - 0.5) < 4 * 0.5 / math.sqrt(COUNT), "mirrored whatever p is"
    assert (torch.corrcoef(happened.T) - torch.eye(5)).abs().max() < 4 / math.sqrt(COUNT)
    whole = told_of(NonLeakingConfig(p=1.0))
    stretch = torch.hypot(whole[:, 5], whole[:, 6])
    for normal in (whole[:, 2], whole[:, 7], whole[:, 8]):
        assert abs(normal.mean()) < 4 / math.sqrt(COUNT) and abs(normal.std() - 1) < 4 / math.sqrt(2 * COUNT)
    assert (torch.corrcoef(whole[:, [2, 5, 6, 7, 8]].T) - torch.eye(5)).abs().max() < 4 / math.sqrt(COUNT)
    assert abs(stretch.square().mean() - 1) < 4 * math.sqrt(2 / COUNT)
    assert abs((whole[:, 6] == 0).double().mean() - 0.5) < 4 * 0.5 / math.sqrt(COUNT), "along the sides half of the time"
    angle = torch.atan2(whole[:, 4], 1 + whole[:, 3])
    assert abs(angle.std() - math.pi / math.sqrt(3)) < 0.06 and abs(angle.mean()) < 0.12
    torch.testing.assert_close((1 + whole[:, 3]).square() + whole[:, 4].square(), torch.ones(COUNT, dtype=torch.float64))


def test_a_multiplier_is_one_of_p() -> None:
    told = told_of(NonLeakingConfig(p=0.2, **(NONE | {"scaling": 2.0, "rotation": 100.0})))  # type: ignore[arg-type]
    assert abs((told[:, 2] != 0).double().mean() - 0.4) < 0.04
    assert (told[:, 4] != 0).all()


def test_images_that_nothing_happens_to_and_draws_of_each_sample() -> None:
    x = torch.rand(60, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    settings = NonLeakingConfig(p=0.1)
    y, told = augmented(x, rng(60), settings)
    still = ~told.any(1)
    assert 5 < still.sum() < 50
    assert torch.equal(y[still], x[still])
    some, some_told = augmented(x[20:25], rng(5, first=20), settings)
    torch.testing.assert_close(some, y[20:25], rtol=0, atol=1e-12)
    assert torch.equal(some_told, told[20:25])


def test_half_precision_does_not_reach_where_images_are_moved() -> None:
    """As it is told: matrices of bf16 would show what lies up to three quarters of a pixel off in an image of 64."""
    x, settings = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0)), NonLeakingConfig(p=1.0)
    exact, told = augmented(x.double(), rng(8), settings)
    with torch.autocast("cpu", torch.bfloat16):
        half, told_in_half = augmented(x, rng(8), settings)
    assert half.dtype == torch.float32 and (exact - x).abs().max() > 0.1
    torch.testing.assert_close(half.double(), exact, rtol=0, atol=1e-3)
    torch.testing.assert_close(told_in_half.double(), told, rtol=0, atol=1e-5)


def test_settings() -> None:
    assert (NonLeakingConfig().dims, NonLeakingConfig(p=0.1).dims) == (0, AUGMENT_DIMS)
    assert {field.name for field in fields(NonLeakingConfig)} == {"p", *NONE}
    for settings, said in (({"p": 1.5}, "p: got 1.5"), ({"rotation": -1.0}, "rotation: got -1.0, expected 0 or a positive number")):
        with pytest.raises(ConfigError, match=said):
            NonLeakingConfig(**settings)
