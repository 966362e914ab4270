"""Which precision a tensor has within autocast and without it."""

from __future__ import annotations

import pytest
import torch

from triptych.nn.precision import autocasted, stage_precision, widened

HALF = (torch.float16, torch.bfloat16)


def test_half_precision_is_widened() -> None:
    for dtype in HALF:
        assert widened(torch.ones(2, dtype=dtype)).dtype == torch.float32
    for dtype in (torch.float32, torch.float64):
        assert widened(torch.ones(2, dtype=dtype)).dtype == dtype


def test_float64_stays_as_it_is_within_autocast() -> None:
    single, double = torch.ones(2), torch.ones(2, dtype=torch.float64)
    assert autocasted(single) is single
    with torch.autocast("cpu", torch.bfloat16):
        assert (autocasted(single).dtype, autocasted(double).dtype) == (torch.bfloat16, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_stage_is_half_where_it_may_be_and_autocast_is_on(dtype: torch.dtype) -> None:
    given, weight = torch.ones(1, 2, dtype=dtype), torch.ones(2, 2)
    for on, half, expected in ((True, True, torch.bfloat16), (True, False, torch.float32), (False, True, torch.float32)):
        with torch.autocast("cpu", torch.bfloat16, enabled=on), stage_precision(given, half=half) as x:
            assert (x.dtype, (x @ weight).dtype) == (expected, expected), (on, half)
