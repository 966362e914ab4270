"""Copies of tensors in the host's memory, which is kept for the next time; pinned for a GPU, which then copies without waiting for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_ALIGNED = 64  # bytes: where a value of any type may begin


class Place(NamedTuple):
    """Where something lies."""

    buffer: int
    first: int
    "Its first byte there."


def placed(sizes: Sequence[int]) -> tuple[list[Place], list[int]]:
    """Where things of so many bytes lie in buffers, and the bytes of these: powers of two, to which PyTorch enlarges all pinned memory.

    Largest first, each in the first buffer with room for it. A new one is the largest that what is left can fill, so that little stays
    empty; pinned one by one, the weights of most recipes take half as much again.
    """
    whole = [max(_ALIGNED, -(-size // _ALIGNED) * _ALIGNED) for size in sizes]
    left, places = sum(whole), [Place(0, 0)] * len(whole)
    buffers, used = list[int](), list[int]()
    for k in sorted(range(len(whole)), key=lambda k: -whole[k]):
        size = whole[k]
        buffer = next((n for n, room in enumerate(buffers) if room - used[n] >= size), len(buffers))
        if buffer == len(buffers):
            buffers.append(max(1 << (size - 1).bit_length(), 1 << (left.bit_length() - 1)))
            used.append(0)
        places[k] = Place(buffer, used[buffer])
        used[buffer] += size
        left -= size
    return places, buffers


class HostCopies:
    """The copies of the tensors of some files."""

    def __init__(self, device: torch.device) -> None:
        self._pinned = device.type == "cuda"
        self._layout: list[object] = []
        self._copies: dict[str, dict[str, Tensor]] = {}

    @torch.no_grad()
    def taken(self, files: Mapping[str, Mapping[str, Tensor]]) -> Mapping[str, Mapping[str, Tensor]]:
        """The tensors as they are now, in the memory of those taken before where they are of the same names, shapes and types.

        On a GPU they are there when it has done what it was told.
        """
        layout = [(stem, name, tensor.shape, tensor.dtype) for stem, tensors in files.items() for name, tensor in tensors.items()]
        if layout != self._layout:
            self._copies, self._layout = {}, []  # first, so that both are never there
            self._copies, self._layout = self._empty(files), list(layout)
        for stem, tensors in files.items():
            if tensors:
                copies = list(self._copies[stem].values())
                torch._foreach_copy_(copies, list(tensors.values()), non_blocking=True)  # pyright: ignore[reportPrivateImportUsage]
        return self._copies

    def _empty(self, files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        every = [tensor for tensors in files.values() for tensor in tensors.values()]
        places, sizes = placed([tensor.nbytes for tensor in every])
        buffers = [torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned) for size in sizes]
        found = iter(
            buffers[place.buffer][place.first : place.first + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for place, tensor in zip(places, every, strict=True)
        )
        return {stem: {name: next(found) for name in tensors} for stem, tensors in files.items()}
