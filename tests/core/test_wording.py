"""Numbers of things, as messages say them."""

from __future__ import annotations

import pytest

from triptych.core.wording import counted


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((1, "image"), "1 image"),
        ((0, "image"), "0 images"),
        ((2_000, "image"), "2,000 images"),
        ((1, "class", "classes"), "1 class"),
        ((3, "class", "classes"), "3 classes"),
        ((1, "pair is", "pairs are"), "1 pair is"),
        ((12, "pair is", "pairs are"), "12 pairs are"),
        (("1", "epoch"), "1 epoch"),
        (("1.5", "epoch"), "1.5 epochs"),
        (("12,345", "step"), "12,345 steps"),
    ],
)
def test_one_is_told_from_several(given: tuple[int, str], said: str) -> None:
    assert counted(*given) == said
