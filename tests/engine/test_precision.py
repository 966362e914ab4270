"""Arithmetic of the networks."""

from __future__ import annotations

import pytest
import torch

from triptych.core.errors import ConfigError
from triptych.engine.precision import autocast


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_matrices_are_multiplied_in_the_precision(precision: str, dtype: torch.dtype) -> None:
    with autocast(precision, device=torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


def test_an_unknown_precision_is_named() -> None:
    with pytest.raises(ConfigError, match=r"precision: got 'fp8', expected one of float32, bf16, fp16"):
        autocast("fp8", device=torch.device("cpu"))
