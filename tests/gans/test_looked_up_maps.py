"""Label maps of classes and edges alone: networks look them up, and find what the dense maps give."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.gans.test_paired import INSTANCES, MAP, SPADE_CONFIG, built, random_batch, stream
from triptych.core.batch import InputSpec
from triptych.gans import label_maps
from triptych.gans.label_maps import LabelMaps
from triptych.gans.norms import SpatialNormLayer
from triptych.nn import one_hot
from triptych.nn.one_hot import looked_up


@pytest.fixture(autouse=True)
def few_channels_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_maps, "FEWEST_CHANNELS", 0)


def test_what_is_known_of_a_label_map_is_true() -> None:
    second = InputSpec(name="parts", kind="classes", num_classes=2, dont_care=True)
    labels = LabelMaps((INSTANCES, MAP, second))
    inputs = {
        "labels": torch.tensor([[[0, 2, -1], [1, 3, 0]]]),  # 3 and -1 are no classes, and have no channel
        "parts": torch.tensor([[[0, 1, -1], [2, 2, 9]]]),
        "instances": torch.tensor([[[1, 1, 1], [1, 1000, 1]]]),
    }
    label = labels(inputs)
    ones = looked_up(label, outputs=10_000)
    assert ones is not None and ones.channels == labels.channels == 7
    found = torch.stack([(ones.index == channel).any(1) for channel in range(7)], dim=1)
    assert torch.equal(found.float(), label) and label.any(0).flatten(1).any(1).all()
    grey = InputSpec(name="edges", kind="image", channels=1)
    assert looked_up(LabelMaps((MAP, grey))(inputs | {"edges": torch.zeros(1, 1, 2, 3)}), outputs=10_000) is None, "one has an image"


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32], ids=str)
def test_class_maps_of_small_whole_numbers_are_the_same(kind: torch.dtype) -> None:
    """Also where there are more classes than such a number can count."""
    labels = LabelMaps((replace(MAP, num_classes=300), InputSpec(name="parts", kind="classes", num_classes=2)))
    inputs = {"labels": torch.tensor([[[0, 2], [43, 120]]]), "parts": torch.tensor([[[0, 1], [2, 1]]])}
    small = {name: values.to(kind) for name, values in inputs.items()}
    assert torch.equal(labels(small), labels(inputs)) and labels(inputs)[0, :, 1, 0].nonzero().tolist() == [[43]]
    found, expected = looked_up(labels(small), outputs=10_000), looked_up(labels(inputs), outputs=10_000)
    assert found is not None and expected is not None and torch.equal(found.index, expected.index)


@pytest.mark.usefixtures("float64")
def test_networks_look_label_maps_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPADE's losses and gradients with and without; the hidden layers of its norms, the first ones of the discriminators and the head."""
    model, batch = built(SPADE_CONFIG).double(), random_batch()
    batch = replace(
        batch, images=batch.images.double(), inputs={k: v.double() if v.is_floating_point() else v for k, v in batch.inputs.items()}
    )
    calls: list[int] = []
    plain = one_hot.convolved
    monkeypatch.setattr(one_hot, "convolved", lambda *given, **named: (calls.append(1), plain(*given, **named))[1])
    found = {}
    for least in (0, 10**9):
        monkeypatch.setattr(one_hot, "_LEAST_PRODUCTS", least)
        for name in ("generator", "discriminator"):
            terms = model.loss(next(phase for phase in model.phases if phase.name == name), batch, stream(batch))
            found[least, name] = [terms.loss, *torch.autograd.grad(terms.loss.sum(), list(getattr(model, name).parameters()))]
    norms = sum(isinstance(layer, SpatialNormLayer) for layer in model.generator.modules())
    assert norms == 19 and len(calls) == 2 * (norms + 2), "in each phase those of the generator, and that of patches of full size twice"
    for name in ("generator", "discriminator"):
        for ours, theirs in zip(found[0, name], found[10**9, name], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
