"""That the suite checks the shapes which annotations give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from tests import shapes
from tests.shapes import _checked
from triptych.nn.enlarging import convolved_enlarged
from triptych.nn.resample import enlarged


@pytest.mark.parametrize(
    ("place", "given", "checked"),
    [
        ("gans/test_paired.py", (), True),
        ("contract/test_recipes.py", ("name",), True),
        ("contract/test_recipes.py", ("name", "whole_run"), False),
        ("runs/test_runs.py", (), False),
        ("test_shapes.py", (), True),
    ],
)
def test_the_tests_of_the_families_are_checked(monkeypatch, place: str, given: tuple[str, ...], checked: bool) -> None:
    monkeypatch.setattr(shapes, "_checking", None)
    shapes.check_in(Path("tests") / place, given)
    assert shapes._checking is checked


def test_a_wrong_shape_is_refused() -> None:
    assert enlarged(torch.zeros(2, 3, 4, 5)).shape == (2, 3, 8, 10)
    with pytest.raises(TypeCheckError):
        enlarged(torch.zeros(3, 4, 5))
    with pytest.raises(TypeCheckError):
        convolved_enlarged(torch.zeros(2, 3, 4, 5), torch.zeros(4, 3, 3, 3), torch.zeros(5))


def test_what_was_right_once_is_checked_for_other_shapes_types_and_results() -> None:
    factors = iter((2, 2, 3, 2))

    def doubled(x: Float[Tensor, "b c"], how: str, more: tuple[Float[Tensor, " b"], ...] = ()) -> Float[Tensor, "b 2*c"]:
        return torch.cat([x] * next(factors), 1)

    checked = _checked(doubled)
    for _ in range(2):
        assert checked(torch.zeros(2, 3), "so", ()).shape == (2, 6)
    with pytest.raises(TypeCheckError, match="return value"):
        checked(torch.zeros(2, 3), "so", ())
    for x, how, more in (
        (torch.zeros(2, 3, dtype=torch.int64), "so", ()),
        (torch.zeros(2, 3, 1), "so", ()),
        (torch.zeros(2, 3), 1, ()),
        (torch.zeros(2, 3), "so", (torch.zeros(3),)),
    ):
        with pytest.raises(TypeCheckError, match="parameters"):
            checked(x, how, more)
    assert checked(torch.zeros(2, 3), "so", ()).shape == (2, 6)
