"""Batch norm against torch.nn's: the same bits in one process, and the whole batch's results over two."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.nn.processes_worker import CASES, SHARES, inputs, made, numbers, passed, settings_of
from triptych.core.errors import ConfigError
from triptych.nn.batch_norm import BatchNorm1d, BatchNorm2d, batch_norms, frozen_statistics

OURS, THEIRS = (BatchNorm1d, BatchNorm2d), (nn.BatchNorm1d, nn.BatchNorm2d)
TOLERANCES = {"bf16": 2e-2, "far from zero": 1e-4}
"""Of the largest value; far from zero the inputs themselves are rounded to 6e-5. Else 1e-6."""


@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("case", [case for case in CASES if "frozen" not in CASES[case] and "synced" not in CASES[case]])
def test_one_process_has_the_bits_of_torch(case: str, synced: bool) -> None:
    layer_settings, input_settings, _ = settings_of(case)
    ours, theirs = made(OURS, synced=synced, **layer_settings), made(THEIRS, **layer_settings)
    x, target = inputs(**input_settings)
    found, expected = passed(ours, x, target), passed(theirs, x, target)
    assert found.keys() == expected.keys() and ours.state_dict().keys() == theirs.state_dict().keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype, name
    assert torch.equal(ours.eval()(x), theirs.eval()(x))


@pytest.mark.parametrize("synced", [False, True])
def test_frozen_statistics_are_left_alone_and_not_used(synced: bool) -> None:
    layer, free = (made(OURS, synced=synced) for _ in range(2))
    x, target = inputs()
    expected = passed(free, x, target)
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    found = passed(layer, x, target, frozen=True)
    for name, tensor in expected.items():
        assert torch.equal(found[name], before.get(name, tensor)), name
    layer.eval()
    with frozen_statistics(layer):
        evaluated = layer(x)
    assert torch.equal(evaluated, layer(x)) and not torch.equal(evaluated, found["output"])


def test_freezing_ends_with_its_block() -> None:
    network = nn.Sequential(BatchNorm2d(3), nn.Sequential(BatchNorm2d(3), nn.BatchNorm2d(3)))
    assert len(batch_norms(network)) == 3
    own = [layer for layer in batch_norms(network) if isinstance(layer, BatchNorm2d)]
    with frozen_statistics(network):
        with frozen_statistics(network[1]):
            pass
        assert [layer.frozen for layer in own] == [True, True], "the inner block restores what it found"
    with pytest.raises(ValueError, match="stop"), frozen_statistics(network):
        raise ValueError("stop")
    assert [layer.frozen for layer in own] == [False, False]
    assert not any("frozen" in name or "synced" in name for name in network.state_dict())


def test_a_momentum_of_none_is_a_plain_mean() -> None:
    layer = made(OURS, momentum=None)
    batches = [numbers(4, 3, 2, 2, seed=seed) + seed for seed in range(3)]
    for x in batches:
        layer(x)
    torch.testing.assert_close(layer.running_mean, torch.stack([x.mean((0, 2, 3)) for x in batches]).mean(0))
    torch.testing.assert_close(layer.running_var, torch.stack([x.var((0, 2, 3)) for x in batches]).mean(0))


def test_half_precision_keeps_its_type() -> None:
    layer = made(OURS)
    x, _ = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x.bfloat16()).dtype == torch.bfloat16
        assert layer(x).dtype == torch.float32
    assert layer.running_mean.dtype == torch.float32


# Two processes


def whole(case: str) -> tuple[dict[str, Any], torch.Tensor]:
    """What one process with the whole batch finds; in float32, for half precision rounds a sum differently in each place."""
    layer_settings, input_settings, pass_settings = settings_of(case)
    x, target = inputs(**input_settings)
    layer, x = made(OURS if pass_settings else THEIRS, **layer_settings), x.float()
    return passed(layer, x, target, **pass_settings), copy.deepcopy(layer).eval()(x)


@pytest.mark.xdist_group("torchrun")
@pytest.mark.parametrize("case", [case for case in CASES if "synced" not in CASES[case]])
def test_uneven_shares_have_the_statistics_of_the_whole_batch(case: str, two_processes: list[dict[str, Any]]) -> None:
    expected, evaluated = whole(case)
    parts = [part[case] for part in two_processes]
    half = CASES[case].get("dtype") == torch.bfloat16
    tolerance = {"rtol": 0, "atol": TOLERANCES.get(case, 1e-6)}
    for name, tensor in expected.items():
        if name in ("output", "input gradient"):
            found = torch.cat([part[name] for part in parts])
            assert found.dtype == (torch.bfloat16 if half else torch.float32)
            torch.testing.assert_close(found.float() / tensor.abs().max(), tensor / tensor.abs().max(), **tolerance, msg=name)
        elif name.startswith("gradient"):
            found = parts[0][name] + parts[1][name]
            torch.testing.assert_close(found / tensor.abs().max(), tensor / tensor.abs().max(), **tolerance, msg=name)
        else:
            assert torch.equal(parts[0][name], parts[1][name]), f"{name} differs between the processes"
            torch.testing.assert_close(parts[0][name], tensor, rtol=1e-6, atol=1e-6, msg=name)
    found = torch.cat([part[f"{case}, evaluation"] for part in two_processes])
    torch.testing.assert_close(found.float() / evaluated.abs().max(), evaluated / evaluated.abs().max(), **tolerance)


@pytest.mark.xdist_group("torchrun")
def test_without_sync_each_process_has_its_own_statistics(two_processes: list[dict[str, Any]]) -> None:
    x, target = inputs()
    for part, share in zip(two_processes, SHARES, strict=True):
        for name, tensor in passed(made(THEIRS), x[share], target[share]).items():
            assert torch.equal(part["own batches"][name], tensor), name


@pytest.mark.parametrize("frozen", [False, True])
def test_one_number_of_a_channel_has_no_deviation(frozen: bool) -> None:
    layer = BatchNorm2d(3)
    layer.frozen = frozen
    with pytest.raises(ConfigError, match="^train.batch_size: got one image"):
        layer(torch.ones(1, 3, 1, 1))
    assert layer(torch.ones(2, 3, 1, 1)).shape == (2, 3, 1, 1) == layer.eval()(torch.ones(2, 3, 1, 1)).shape
