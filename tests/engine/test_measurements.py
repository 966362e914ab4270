"""Loss terms on their way to the log."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from triptych.core.errors import RunError
from triptych.core.model import LossTerms
from triptych.engine.measurements import Measurements, StepRecord, TermSums, totals


def record(values: list[float], *, group: list[int] | None = None, norm: float = 1.0) -> StepRecord:
    """A step on microbatches of one sample each."""
    made = StepRecord("denoise", images=64, gradient_norm=torch.tensor(norm))
    for k, value in enumerate(values):
        loss = torch.tensor([value])
        made.terms.add(LossTerms(loss, {"half": loss / 2}, group=None if group is None else torch.tensor([group[k]])))
    return made


def same(values: Tensor) -> Tensor:
    return values


def test_means_are_over_samples_and_those_of_the_norm_over_steps() -> None:
    measurements = Measurements(same)
    measurements.add(record([1.0, 2.0, 6.0], group=[0, 3, 0], norm=2.0))
    measurements.add(record([3.0], group=[3], norm=5.0))
    loss = {"loss": 3.0, "loss_q0": 3.5, "loss_q3": 2.5}
    expected = loss | {name.replace("loss", "half"): value / 2 for name, value in loss.items()} | {"gradient_norm": 3.5}
    assert measurements.means() == pytest.approx({f"denoise/{name}": value for name, value in expected.items()})
    measurements.add(record([7.0], norm=1.0))
    assert measurements.means() == {"denoise/loss": 7.0, "denoise/half": 3.5, "denoise/gradient_norm": 1.0}


def test_the_norm_is_that_of_all_processes_already() -> None:
    measurements = Measurements(lambda values: 2 * values)
    measurements.add(record([4.0], norm=3.0))
    assert measurements.means() == {"denoise/loss": 4.0, "denoise/half": 2.0, "denoise/gradient_norm": 3.0}


def test_one_bad_value_spoils_its_own_group_alone() -> None:
    sums = TermSums()
    sums.add(LossTerms(torch.tensor([1.0, math.nan, 3.0]), {"good": torch.ones(3)}, group=torch.tensor([0, 2, 0])))
    found = {name: total / count for name, total, count in totals(sums.names, sums.flat().tolist())}
    assert math.isnan(found.pop("loss")) and math.isnan(found.pop("loss_q2"))
    assert found == {"loss_q0": 2, "good": 1, "good_q0": 1, "good_q2": 1}


def test_what_is_not_finite_ends_the_run() -> None:
    for bad, message in (
        (record([1.0, math.inf]), 'phase "denoise": the loss term "loss" is not finite at 64 images seen'),
        (record([1.0], norm=math.nan), 'phase "denoise": the gradient is not finite at 64 images seen'),
    ):
        measurements = Measurements(same)
        measurements.add(bad)
        with pytest.raises(RunError, match=message):
            measurements.check()
    scaled = Measurements(same, allow_overflow=True)
    scaled.add(record([1.0], norm=math.inf))
    scaled.add(record([1.0], norm=2.0))
    assert scaled.means()["denoise/gradient_norm"] == 2.0
