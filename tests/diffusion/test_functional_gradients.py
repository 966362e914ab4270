"""Gradients by torch.func, which knows no autograd nodes of our own: they are autograd's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.contract.shrink import shrunk
from triptych.core.batch import DataSpec


@pytest.mark.parametrize("recipe", ["adm-digits", "classifier-digits", "edm-digits", "edm2-digits", "flow-digits"])
def test_gradients_are_those_of_autograd(recipe: str) -> None:
    torch.manual_seed(0)
    network = shrunk(recipe).model.build(DataSpec(image_size=8, channels=1, num_classes=10)).get_submodule("network").double().eval()
    for parameter in network.parameters():  # some begin at 0, and what is before them would have no gradient
        nn.init.normal_(parameter, std=0.2)
    given = torch.randn(2, 1, 8, 8, dtype=torch.float64), torch.rand(2, dtype=torch.float64)
    labels = () if recipe == "classifier-digits" else (torch.tensor([0, 9]),)

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(network, weights, (*given, *labels)).square().sum()

    weights = dict(network.named_parameters())
    found = torch.func.grad(loss)({name: weight.detach() for name, weight in weights.items()})
    for (name, gradient), wanted in zip(
        found.items(), torch.autograd.grad(loss(weights), list(weights.values()), materialize_grads=True), strict=True
    ):
        assert wanted.abs().max() > 0 or name.startswith("logvar"), name  # the uncertainty is no part of the output
        torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-9 * float(wanted.abs().max()), msg=name)
