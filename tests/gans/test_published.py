"""The published configurations have the published numbers of parameters and of tensors."""

from __future__ import annotations

import pytest

from tests.gans.published import PUBLISHED, on_meta
from triptych.gans.unit import UNITGeneratorConfig


@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers_of_parameters_and_tensors(name: str) -> None:
    counted = PUBLISHED[name]
    network = on_meta(counted.build)
    assert (sum(p.numel() for p in network.parameters()), len(network.state_dict())) == (counted.parameters, counted.keys)


def test_widths_that_the_published_networks_do_not_reach() -> None:
    assert UNITGeneratorConfig().max_num_filters == 256
