"""A training of openai/glow, recorded from the program itself: what its first batch sets, and four steps of its Adamax."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from triptych.core.batch import Batch
from triptych.core.rng import Rng
from triptych.engine.config import OptimConfig
from triptych.engine.optim import make_optimizer
from triptych.flows.glow import Glow
from triptych.interop.glow import from_variables

with np.load(Path(__file__).parents[1] / "golden/glow_training.npz") as _file:
    ARRAYS = dict(_file)
FLAGS = {"image_size": 8, "n_levels": 2, "depth": 1, "width": 4, "learntop": True, "flow_coupling": 1}
BETAS = (0.9, 0.95)  # of 20 steps in an epoch
RATES = (0.25e-3, 0.5e-3, 0.75e-3, 1e-3)


def variables(when: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(f"{when}/"): array for name, array in ARRAYS.items() if name.startswith(f"{when}/")}


class Told(Rng):
    """Its uniform draws are the recorded ones."""

    def uniform(self, name: str, *shape: int) -> torch.Tensor:
        assert name == "dequantization"
        return torch.from_numpy(ARRAYS["u"]).permute(0, 3, 1, 2)


def first_batch() -> tuple[Batch, Rng]:
    index = torch.arange(6)
    return Batch(torch.from_numpy(ARRAYS["x"]).permute(0, 3, 1, 2).float() / 127.5 - 1, None, index), Told(0, ("test",), index)


def tensors(model: Glow) -> dict[str, torch.Tensor]:
    return {name: tensor.double() for name, tensor in model.state_dict().items()}


def test_the_first_batch_sets_what_it_sets_there() -> None:
    fresh = {name: np.zeros_like(array) if "actnorm" in name else array for name, array in variables("init").items()}
    model = from_variables(fresh, FLAGS)
    model.initialize(*first_batch())
    for name, expected in tensors(from_variables(variables("init"), FLAGS)).items():
        torch.testing.assert_close(tensors(model)[name], expected, atol=1e-6, rtol=0, msg=name)


@pytest.mark.parametrize("memory", ["autograd", "checkpoint", "inversion"])
def test_four_steps_end_where_they_do_there(memory) -> None:
    model = from_variables(variables("moved"), FLAGS).train()
    for level in model.network.levels:
        level.memory = memory
    settings = OptimConfig(name="adamax-glow", betas=BETAS)
    optimizer = make_optimizer(dict(model.named_parameters()), settings, device=torch.device("cpu"))
    for rate, loss in zip(RATES, ARRAYS["losses"], strict=True):
        optimizer.param_groups[0]["lr"] = rate
        bits = model.loss(model.phases[0], *first_batch()).loss
        assert bits.detach().mean().item() == pytest.approx(loss, abs=1e-5)
        optimizer.zero_grad()
        bits.mean().backward()
        optimizer.step()
    before, after = (tensors(from_variables(variables(when), FLAGS)) for when in ("moved", "trained"))
    moved = sum((after[name] - before[name]).square().sum() for name in after)
    missed = sum((after[name] - tensors(model)[name]).square().sum() for name in after)
    assert missed <= 1e-4**2 * moved and moved > 0
