"""RAFT against recorded outputs of torchvision's, its parts against direct loops, and which files of weights it refuses."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from triptych.core.errors import CheckpointError
from triptych.core.rng import Rng
from triptych.nn.frozen import Operations
from triptych.nn.raft import Raft, RaftName, _enlarged, _looked_up, _similarities, required_tensors
from triptych.nn.small_networks import random_weights

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "raft.json").read_text("utf-8"))
EXACT = {"rtol": 0, "atol": 1e-11}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


def opened(name: RaftName, *, updates: int) -> Raft:
    weights = random_weights(required_tensors(name))
    network = Raft(name, updates=updates).double()
    network.load({key: tensor.abs() + 0.5 if key.endswith("running_var") else tensor for key, tensor in weights.items()})
    return network


@pytest.mark.parametrize(("name", "parameters", "tensors"), [("raft_large", 5_257_536, 169), ("raft_small", 990_162, 106)])
def test_names_and_shapes_are_torchvisions(name: RaftName, parameters: int, tensors: int) -> None:
    """All but the counts of batches, which nothing is computed from."""
    published = {key: tuple(shape) for key, shape in RECORDED[name]["shapes"].items()}
    used = {key: shape for key, shape in published.items() if not key.endswith("num_batches_tracked")}
    assert required_tensors(name) == used and len(published) == tensors
    assert sum(math.prod(shape) for key, shape in used.items() if "running" not in key) == parameters


@pytest.mark.parametrize("name", ["raft_large", "raft_small"])
def test_flow_is_torchvisions(name: RaftName) -> None:
    random = Rng(0, ("raft",), torch.zeros(1, dtype=torch.int64))
    first, second = (random.normal(part, 3, 128, 128).double().clamp(-1, 1) for part in ("first", "second"))
    flow = opened(name, updates=2)(first, second)
    assert flow.shape == (1, 2, 128, 128) and flow.abs().max() > 0.5
    torch.testing.assert_close(
        flow[0, :, ::13, ::13].flatten(), torch.tensor(RECORDED[name]["flow"], dtype=torch.float64), rtol=0, atol=1e-6
    )


def test_what_is_alike_is_looked_up_around_a_place() -> None:
    """Level by level, then step by step to the right, then down; zeros outside, between four places."""
    first, second = drawn(1, 5, 2, 3), drawn(1, 5, 16, 24, seed=1)
    levels = _similarities(first, second)
    places = torch.stack((drawn(2, 3, seed=2) * 14 + 10, drawn(2, 3, seed=3) * 10 + 7))[None]
    found = _looked_up(levels, places, radius=1)
    assert found.shape == (1, 4 * 9, 2, 3)
    for i, j, level in itertools.product(range(2), range(3), range(4)):
        side = 2**level
        alike = torch.einsum("c,cyx->yx", first[0, :, i, j], second[0]) / math.sqrt(5)
        alike = alike.view(16 // side, side, 24 // side, side).mean((1, 3))
        for number, (across, down) in enumerate(itertools.product((-1, 0, 1), repeat=2)):
            x, y = float(places[0, 0, i, j]) / side + across, float(places[0, 1, i, j]) / side + down
            expected = 0.0
            for column, row in itertools.product((math.floor(x), math.floor(x) + 1), (math.floor(y), math.floor(y) + 1)):
                if 0 <= column < 24 // side and 0 <= row < 16 // side:
                    expected += (1 - abs(x - column)) * (1 - abs(y - row)) * float(alike[row, column])
            assert abs(float(found[0, 9 * level + number, i, j]) - expected) < 1e-11


def test_a_flow_is_enlarged_by_weighted_means_of_nine_neighbours() -> None:
    flow, hidden = drawn(1, 2, 2, 3), drawn(1, 4, 2, 3, seed=1)
    tensors = {"mask_predictor.convrelu.0.weight": drawn(256, 4, 3, 3, seed=2), "mask_predictor.convrelu.0.bias": drawn(256, seed=3)}
    tensors |= {"mask_predictor.conv.weight": drawn(576, 256, 1, 1, seed=4), "mask_predictor.conv.bias": drawn(576, seed=5)}
    found = _enlarged(Operations(lambda name, shape: tensors[name].reshape(shape)), flow, hidden)
    features = torch.nn.functional.conv2d(hidden, *list(tensors.values())[:2], padding=1).relu()
    scores = 0.25 * torch.nn.functional.conv2d(features, *list(tensors.values())[2:])[0]
    for i, j, down, across in itertools.product(range(2), range(3), range(8), range(8)):
        weights = torch.stack([scores[64 * k + 8 * down + across, i, j] for k in range(9)]).softmax(0)
        expected = torch.zeros(2, dtype=torch.float64)
        for k, (row, column) in enumerate(itertools.product((i - 1, i, i + 1), (j - 1, j, j + 1))):
            if 0 <= row < 2 and 0 <= column < 3:
                expected += weights[k] * 8 * flow[0, :, row, column]
        torch.testing.assert_close(found[0, :, 8 * i + down, 8 * j + across], expected, **EXACT)


def test_other_sizes_are_resized_and_their_flow_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """To at least 128 pixels and multiples of 8; a flow of 4 pixels across 128 is one of 2 across 64."""
    network, seen = Raft("raft_small"), []

    def found(pair: Tensor) -> dict[str, Tensor]:
        seen.append(pair)
        return {"flow": torch.tensor([4.0, 3.0], dtype=torch.float64)[:, None, None].expand(1, 2, *pair.shape[2:])}

    monkeypatch.setattr(network, "found", found)
    grey = drawn(1, 1, 150, 64)
    flow = network(grey, grey)
    assert seen[0].shape == (1, 6, 152, 128) and torch.equal(seen[0][:, 0], seen[0][:, 5])
    torch.testing.assert_close(flow, torch.tensor([2.0, 3 * 150 / 152], dtype=torch.float64)[:, None, None].expand(1, 2, 150, 64), **EXACT)
    as_it_is = network(drawn(1, 3, 128, 136), drawn(1, 3, 128, 136, seed=1))
    assert seen[1].shape == (1, 6, 128, 136) and torch.equal(as_it_is[0, :, 0, 0], torch.tensor([4.0, 3.0], dtype=torch.float64))


def test_other_files_are_refused() -> None:
    small = random_weights(required_tensors("raft_small"))
    with pytest.raises(CheckpointError, match=r"cannot use my\.pth, as those of raft_large: feature_encoder.convnormrelu.0.weight has the"):
        Raft("raft_large").load(small, source="my.pth")
    del small["update_block.flow_head.conv2.bias"]
    with pytest.raises(CheckpointError, match=r"there is no update_block\.flow_head\.conv2\.bias"):
        Raft("raft_small").load(small)
