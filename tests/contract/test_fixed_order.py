"""No recipe trains by operations that PyTorch refuses on a GPU where sums are to have a fixed order (train.deterministic)."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from tests.contract.kinds import KINDS
from tests.contract.moved import first_batch, gradients, moved_model
from tests.contract.shrink import shrunk

REFUSED = {
    *(f"{kind}_pad{n}d_backward" for kind in ("reflection", "replication") for n in (1, 3)),
    "reflection_pad2d_backward",  # that of replication_pad2d, as those of bilinear interpolation, has another form there
    "grid_sampler_2d_backward",
    "grid_sampler_3d_backward",
    "_adaptive_avg_pool2d_backward",
    "adaptive_max_pool2d_backward",
    "avg_pool3d_backward",
    "upsample_bicubic2d_backward",
    "_upsample_bicubic2d_aa_backward",
    "_upsample_bilinear2d_aa_backward",
    "nll_loss2d_forward",
    "histc",
    "kthvalue",
    "put",
    "put_",
}
"""By the documentation of torch.use_deterministic_algorithms, and sums of what comes before (cumsum) but of whole numbers."""


class Refusals(TorchDispatchMode):
    """What would be refused of that which is called."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in REFUSED or (name == "cumsum" and args[0].is_floating_point()):
            self.found.add(name)
        return func(*args, **(kwargs or {}))


EVERY = [pytest.param(name, marks=() if "coco-funit" in name else pytest.mark.slow) for name in KINDS]


@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_refused_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("lookup", "enlarging", "warp"):
        monkeypatch.setattr(f"triptych.nn.{module}.in_order", lambda x: True)
    config = shrunk(name)
    model, batch = moved_model(config).train(), first_batch(config)
    with Refusals() as refusals:
        for phase in model.phases:
            gradients(model, phase, batch)
    assert not refusals.found
