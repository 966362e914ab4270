"""The embeddings of places, of as many patches as were trained and of others."""

from __future__ import annotations

import torch

from triptych.nn.vision_transformer import _positions


def test_places_of_the_trained_size_are_as_they_were_learned() -> None:
    """Interpolated they would be others, for the scale is a little more than 1."""
    learned = torch.randn(1, 1 + 3**2, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(_positions(learned, 3, 3), learned)
    wider = _positions(learned, 3, 4)
    assert wider.shape == (1, 1 + 3 * 4, 4) and torch.equal(wider[:, 0], learned[:, 0]), "the class has no place"
