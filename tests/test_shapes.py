"""That the suite checks the shapes which annotations give."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from triptych.diffusion.resample import convolved_enlarged
from triptych.nn.resample import enlarged


def test_a_wrong_shape_is_refused() -> None:
    assert enlarged(torch.zeros(2, 3, 4, 5)).shape == (2, 3, 8, 10)
    with pytest.raises(TypeCheckError):
        enlarged(torch.zeros(3, 4, 5))
    with pytest.raises(TypeCheckError):
        convolved_enlarged(torch.zeros(2, 3, 4, 5), torch.zeros(4, 3, 3, 3), torch.zeros(5))
