"""Label maps that a feature pyramid averages, one size from the other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from triptych.gans.discriminators import averaged_to


@pytest.mark.parametrize(
    ("sides", "averaged"),
    [
        ((32, 64), [(32, 64), (8, 16), (4, 8)]),
        ((48, 36), [(48, 36), (48, 36), (48, 36)]),  # 12x9, 6x5 and 3x3: 9 is not 5 squares, and neither is 36
        ((28, 32), [(28, 32), (28, 32), (4, 4)]),  # 7x8, 4x4 and 2x2
        ((30, 32), [(30, 32), (30, 32), (30, 32)]),  # 8x8, 4x4 and 2x2: 30 rows are no 8 parts of their own
    ],
)
def test_each_size_is_the_average_of_the_map_itself(sides, averaged, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, pool = [], F.adaptive_avg_pool2d
    monkeypatch.setattr(F, "adaptive_avg_pool2d", lambda x, size: seen.append(tuple(x.shape[2:])) or pool(x, size))
    label = torch.randn(2, 3, *sides, dtype=torch.float64)
    means = label
    for stride in (4, 8, 16):
        height, width = (-(-side // stride) for side in sides)
        means = averaged_to((height, width), finer=means, label=label)
        torch.testing.assert_close(means, pool(label, (height, width)))
    assert seen == averaged
