"""Averages of weights that spectral norm divides."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from triptych.core.batch import Batch
from triptych.core.model import Averaged, LossTerms, Model, Phase
from triptych.core.rng import Rng
from triptych.engine.config import AverageConfig
from triptych.engine.ema import Average
from triptych.gans.layers import BlockOptions, ConvBlock
from triptych.gans.weight_norms import effective_weights, normalised_weight, power_iteration, rescale_average, spectral_layers

pytestmark = pytest.mark.usefixtures("float64")  # float32 rounds differently with the batch and the kind of CPU


class Normed(Model, Averaged):
    """A network of two layers with spectral norm."""

    phases = (Phase("generator", ("generator",)),)
    averaged = ("generator",)

    def __init__(self) -> None:
        super().__init__()
        options = BlockOptions(weight_norm="spectral", nonlinearity="relu")
        self.generator = torch.nn.Sequential(ConvBlock(3, 8, 3, options=options), ConvBlock(8, 3, 1, options=options))

    def effective(self) -> Mapping[str, Tensor]:
        return effective_weights(self.generator, "generator.")

    def recompute_buffers(self, average: Mapping[str, Tensor]) -> None:
        rescale_average(average, self.effective())

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        return LossTerms(self.generator(batch.images).mean((1, 2, 3)))


def applied(model: Normed) -> list[Tensor]:
    return [normalised_weight(layer).detach().clone() for layer in spectral_layers(model.generator)]


def test_the_average_is_that_of_the_weights_as_they_are_applied() -> None:
    torch.manual_seed(0)
    model = Normed()
    average = Average(model, AverageConfig(rate=0.75))
    expected = applied(model)
    with average.applied():
        for found, weight in zip(applied(model), expected, strict=True):
            torch.testing.assert_close(found, weight)
    for step in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5).add_(torch.randn_like(parameter))
        power_iteration(model.generator)
        expected = [0.75 * old + 0.25 * new for old, new in zip(expected, applied(model), strict=True)]
        average.update(step, images=1)
    live = applied(model)
    with average.applied():
        for found, weight, other in zip(applied(model), expected, live, strict=True):
            torch.testing.assert_close(found, weight)
            assert (found - other).abs().max() > 0.01
    for found, weight in zip(applied(model), live, strict=True):
        assert torch.equal(found, weight), "the live weights are as they were"


def test_training_goes_on_from_an_average() -> None:
    torch.manual_seed(0)
    model = Normed()
    average = Average(model, AverageConfig(rate=0.5))
    model.load_state_dict(average.tensors)
    power_iteration(model.generator, steps=50)
    for weight in applied(model):
        torch.testing.assert_close(torch.linalg.matrix_norm(weight.flatten(1), 2), torch.tensor(1.0), atol=1e-3, rtol=0)
