"""With the original's weights, its outputs: SPADE, UNIT and MUNIT against recorded values; names and shapes in the original's order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.gans import recorded
from tests.gans.published import MUNIT_TINY, SPADE_PATCH_TINY, SPADE_TINY, UNIT_PATCH, UNIT_TINY, on_meta
from triptych.gans.discriminators import PairDiscriminator, ResidualDiscriminatorConfig, Scores
from triptych.gans.munit import MUNITGenerator
from triptych.gans.spade import SPADEDiscriminator, SPADEDiscriminatorConfig, SPADEGenerator
from triptych.gans.unit import UNITGenerator

ARRAYS, CASES = recorded.recorded()
TOLERANCE = 1e-4
BUILD = {
    ("spade", "G"): lambda: SPADEGenerator(SPADE_TINY, label_channels=8),
    ("spade", "D"): lambda: SPADEDiscriminator(SPADEDiscriminatorConfig(patch=SPADE_PATCH_TINY), label_channels=8),
    ("unit", "G"): lambda: UNITGenerator(UNIT_TINY),
    ("unit", "D"): lambda: PairDiscriminator(replace(UNIT_PATCH, num_filters=4, max_num_filters=16)),
    ("munit", "G"): lambda: MUNITGenerator(MUNIT_TINY),
    ("munit", "D"): lambda: PairDiscriminator(ResidualDiscriminatorConfig(num_filters=4, max_num_filters=16)),
}


def loaded(name: str, part: str) -> nn.Module:
    network = on_meta(BUILD[name, part])
    network.load_state_dict(recorded.weights(name, part, CASES[name][f"{part}_keys"]), assign=True)
    return network.eval()


@pytest.mark.parametrize(("name", "part"), BUILD)
def test_names_and_shapes_in_order(name: str, part: str) -> None:
    own = [(key, list(tensor.shape)) for key, tensor in on_meta(BUILD[name, part]).state_dict().items()]
    assert own == list(CASES[name][f"{part}_keys"].items())


@torch.no_grad()
def test_spade() -> None:
    label, images = recorded.label(ARRAYS), recorded.images("spade", "images")
    out = loaded("spade", "G")(label=label, images=images, noise=recorded.draw("spade", 0, 8))
    for key, value in out._asdict().items():
        assert recorded.difference(value, ARRAYS[f"spade/{key}"]) < TOLERANCE, key
    network = loaded("spade", "D")
    for key, given in (("real", images), ("fake", out.fake_images)):
        assert_scores(network(given, label=label), f"spade/D/{key}_outputs", 5)


@torch.no_grad()
@pytest.mark.parametrize("name", ["unit", "munit"])
def test_unit_and_munit(name: str) -> None:
    a, b = recorded.images(name, "images_a"), recorded.images(name, "images_b")
    styles = {} if name == "unit" else {f"random_style_{x}": recorded.draw("munit", i, 8, 1, 1) for i, x in enumerate("ab")}
    out = loaded(name, "G")(images_a=a, images_b=b, **styles)
    made = {key: value for key, value in out._asdict().items() if value is not None}
    assert len(made) == len(out) - 6 * (name == "unit")  # which has no styles
    for key in made.keys() - {"given_a", "given_b"}:
        value = made[key]
        assert recorded.difference(value, ARRAYS[f"{name}/{key}"]) < TOLERANCE, key
    network = loaded(name, "D")
    given: dict[str, tuple[Tensor, str]] = {"a": (a, "a"), "b": (b, "b"), "ba": (out.images_ba, "a"), "ab": (out.images_ab, "b")}
    for key, (images, domain) in given.items():
        scores = network(images, domain=domain)
        if name == "unit":
            assert_scores(scores, f"unit/D/out_{key}", 3)
        else:
            assert recorded.difference(scores.outputs[0], ARRAYS[f"munit/D/out_{key}"]) < TOLERANCE


def assert_scores(scores: Scores, name: str, count: int) -> None:
    assert len(scores.outputs) == count
    for index, output in enumerate(scores.outputs):
        assert recorded.difference(output, ARRAYS[f"{name}/{index}"]) < TOLERANCE, index
