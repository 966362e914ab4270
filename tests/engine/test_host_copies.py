"""Copies of tensors in the host's memory: what they hold, and how much memory they take."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from triptych.engine.host_copies import HostCopies, placed


def power(size: int) -> int:
    """What PyTorch makes of so many bytes of pinned memory."""
    return 1 << (size - 1).bit_length()


@pytest.mark.parametrize("seed", range(20))
def test_nothing_lies_on_another_and_every_buffer_is_a_power_of_two(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 10 ** rng.integers(1, 7), rng.integers(1, 60)).tolist()
    places, buffers = placed(sizes)
    assert all(size == power(size) for size in buffers) and len(places) == len(sizes)
    for number, room in enumerate(buffers):
        here = sorted((place.first, place.first + size) for place, size in zip(places, sizes, strict=True) if place.buffer == number)
        assert here and here[-1][1] <= room and all(end <= first for (_, end), (first, _) in pairwise(here))
    assert all(place.first % 64 == 0 for place in places)
    assert placed([]) == ([], [])


@pytest.mark.parametrize("channels", [48, 96, 160, 192, 320])
def test_weights_take_little_more_than_their_size(channels: int) -> None:
    """Pinned one by one, those whose widths are no powers of two take a quarter to a third more."""
    layers = [nn.Conv2d(channels * a, channels * b, 3) for a, b in ((1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (3, 2), (2, 1))]
    sizes = 4 * [weight.nbytes for layer in layers for weight in layer.parameters()]  # with an average, and Adam's two moments
    assert sum(placed(sizes)[1]) < 1.05 * sum(sizes)
    assert sum(map(power, sizes)) > 1.25 * sum(sizes)


def test_copies_stay_what_the_tensors_were_in_memory_that_is_used_again() -> None:
    moved = torch.arange(24.0).view(2, 3, 4).transpose(0, 2)
    files = {
        "model": {
            "w": torch.randn(5, 7),
            "half": torch.randn(3).bfloat16(),
            "moved": moved,
            "n": torch.tensor(3),
            "none": torch.empty(0, 4),
        },
        "optimizer": {"step": torch.tensor([1, 2, 3], dtype=torch.uint8), "double": torch.randn(2, dtype=torch.float64)},
        "nothing": {},
    }
    copies = HostCopies(torch.device("cpu"))
    taken, expected = (
        copies.taken(files),
        {stem: {name: value.clone() for name, value in tensors.items()} for stem, tensors in files.items()},
    )
    first = [tensor.data_ptr() for tensors in taken.values() for tensor in tensors.values()]
    for tensors in files.values():
        for tensor in tensors.values():
            tensor += 1

    def same(found, wanted) -> bool:
        return {stem: list(tensors) for stem, tensors in found.items()} == {
            stem: list(tensors) for stem, tensors in wanted.items()
        } and all(
            found[stem][name].dtype == tensor.dtype and torch.equal(found[stem][name], tensor)
            for stem, tensors in wanted.items()
            for name, tensor in tensors.items()
        )

    assert same(taken, expected) and all(tensor.is_contiguous() for tensors in taken.values() for tensor in tensors.values())
    again = copies.taken(files)
    assert same(again, files) and [tensor.data_ptr() for tensors in again.values() for tensor in tensors.values()] == first
    files["nothing"] = {"new": torch.ones(100)}
    assert same(copies.taken(files), files)
