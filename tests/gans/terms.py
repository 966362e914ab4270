"""A model's terms against those worked out by hand: the values, and what each teaches."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from triptych.gans.losses import AdversarialConfig, feature_matching, generator_loss


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """The gradient of the sum of the loss in each parameter that has a part in it."""
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(loss.sum(), tuple(parameters.values()), retain_graph=True, allow_unused=True)
    return {name: gradient for name, gradient in zip(parameters, found, strict=True) if gradient is not None}


def judged_by_hand(contests: Mapping[str, tuple[Tensor, Tensor, nn.Module]], *, settings: AdversarialConfig) -> dict[str, Tensor]:
    """The generator's terms of contests by the ends of their names: what is real, what is fake, and what judges both."""
    terms = {}
    for name, (true, fake, network) in contests.items():
        verdict, known = network(fake), network(true)
        terms[f"adversarial{name}"] = generator_loss(verdict.outputs, settings=settings)
        terms[f"feature_matching{name}"] = feature_matching(verdict.features, known.features)
    return terms


def check_gradients(generator: nn.Module, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Each term teaches the generator what the same by hand does; a value alone would not show that something was detached.

    Float32 moves a gradient by about 1e-5 of all of them; of biases before a norm rounding is all that there is.
    """
    assert found.keys() == expected.keys()
    for name, term in found.items():
        ours, theirs = gradients(generator, term), gradients(generator, expected[name])
        assert ours.keys() == theirs.keys() and ours, name
        whole = torch.stack([gradient.norm() for gradient in theirs.values()]).norm()
        for key, gradient in ours.items():
            assert (gradient - theirs[key]).norm() <= 1e-3 * theirs[key].norm() + 1e-4 * whole, f"{name}: {key}"
