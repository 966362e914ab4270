"""Sums and collections over processes that have different numbers of values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.nn.processes_worker import numbers
from triptych.nn.collectives import gathered, summed, world_size


def test_one_process_has_it_all() -> None:
    x = numbers(3).requires_grad_()
    assert world_size() == 1 and summed(x) is x
    assert torch.equal(gathered(x), x) and not gathered(x).requires_grad


@pytest.mark.xdist_group("torchrun")
def test_values_come_in_the_order_of_the_processes(two_processes: list[dict[str, Any]]) -> None:
    for part in two_processes:
        assert part["world"] == 2
        values, whole_numbers = part["gathered"]
        assert torch.equal(values, numbers(7)) and not values.requires_grad
        assert torch.equal(whole_numbers, torch.arange(7))
        assert torch.equal(part["none of one"], torch.arange(3.0))


@pytest.mark.xdist_group("torchrun")
def test_a_sum_and_its_gradient(two_processes: list[dict[str, Any]]) -> None:
    total = numbers(3, seed=0) + numbers(3, seed=1)
    for part in two_processes:
        found, gradient = part["summed"]
        torch.testing.assert_close(found, total)
        # The losses are (rank + 1) total^2, and each x is in the totals of both.
        torch.testing.assert_close(gradient, (1 + 2) * 2 * total)
        assert torch.equal(part["turned"], torch.full((3, 4), 2.0))
