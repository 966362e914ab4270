"""What several layers make of one tensor, made once."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor

from triptych.nn.derived import derived


def test_it_is_made_once_for_each_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def doubled(x: Tensor) -> Tensor:
        made.append(1)
        return 2 * x

    x = torch.ones(3)
    first = derived(x, "doubled", doubled)
    assert first.tolist() == [2, 2, 2] and derived(x, "doubled", doubled) is first and len(made) == 1
    assert derived(x, ("doubled", 2), doubled) is not first and derived(x.clone(), "doubled", doubled) is not first and len(made) == 3
    assert derived(x, "itself", lambda x: x) is x
    alive = weakref.ref(x)
    del x
    assert alive() is None, "it does not wait for the collector"
    x = torch.ones(3)
    first = derived(x, "doubled", doubled)
    learned = torch.ones(3, requires_grad=True)
    assert derived(learned, "doubled", doubled) is not derived(learned, "doubled", doubled), "its graph is gone after a backward pass"
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert derived(x, "doubled", doubled) is not first
