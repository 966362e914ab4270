"""Runs that earlier versions wrote: they open, draw what they drew, and go on as they would have gone on.

The expected numbers are from another machine's float32; the tolerances are several times what instruction sets and threads change.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.earlier.use import MODELS, gone_on, pictures

VERSIONS = Path(__file__).parent.parent / "earlier"
MEASURED_WITHIN = 2e-3
"""Of a metric, or of a tensor's mean magnitude, relative."""
MEAN_SCORE, SCORE_WITHIN = "generator/adversarial", 2e-3
"""A mean of scores near 0, which the hinge loss takes from 1: two threads change it by 7e-4 after a step of Adam."""
STEPS_OF_ADAM = 2e-3
"""Of a weight: a gradient of rounding alone (of a bias before a norm) moves it by the whole learning rate, up or down."""


@pytest.mark.parametrize("version", ["0.1.0"])
@pytest.mark.parametrize("name", MODELS)
def test_opens_draws_and_goes_on(name, version, tmp_path):
    with tarfile.open(VERSIONS / version / f"{name}.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2, which Debian 12 has, knows no filters
        archive.extractall(tmp_path)
    expected = json.loads((VERSIONS / version / f"{name}.json").read_text())
    run = tmp_path / "run"
    np.testing.assert_allclose(pictures(run), expected["pictures"], rtol=1e-3, atol=1 / 255)
    found = gone_on(run)
    assert found["tensors"].keys() == expected["tensors"].keys()
    for key, value in expected["tensors"].items():
        within = 1e-6 if key.startswith("optimizer/") else STEPS_OF_ADAM
        assert found["tensors"][key] == pytest.approx(value, rel=MEASURED_WITHIN, abs=within), key
    assert len(found["metrics"]) == len(expected["metrics"])
    for ours, theirs in zip(found["metrics"], expected["metrics"], strict=True):
        scores = [values.pop(MEAN_SCORE, 0.0) for values in (ours, theirs)]
        assert scores[0] == pytest.approx(scores[1], rel=MEASURED_WITHIN, abs=SCORE_WITHIN)
        assert ours == pytest.approx(theirs, rel=MEASURED_WITHIN, abs=1e-5)
