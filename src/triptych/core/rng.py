"""Randomness as a function of (seed, stream, sample index), and of nothing else.

`Rng` holds a seed, a stream (a tuple of names: purpose, phase, repeat) and the indices of the samples it draws for. Each draw
has a name, so two draws of one stream are independent and their order does not matter; the values of sample i are the same
whichever batch, microbatch, process or restart it is drawn in.

Words come from Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), counter = (block, 0, index),
key = hash of (seed, stream, name). Masks of feature dropout need a number for every activation, so they come from a cheaper
integer hash that is keyed per sample by Philox.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_MIXER_0, _MIXER_1 = 0x85EBCA6B, 0xC2B2AE35  # of MurmurHash3's finalizer
_TO_UNIT = 2.0**-24  # 24 bits fill a float32's significand, so that 1.0 cannot come out
_KEEP_LEVELS = 2**16
_FEW_WORDS = 2**14
MASK_WORDS = 2
"""Words of a sample that `Rng.keep` takes."""
_CACHED_WORDS = 2**16  # 256 KiB, twice


def philox(c0: Any, c1: Any, c2: Any, c3: Any, *, key: tuple[Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Four words in 0..2^32-1 for each counter; int64 arrays of NumPy or tensors of PyTorch, shaped alike."""
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1  # wraps modulo 2^64: the bits are those of the unsigned product
        c0, c1, c2, c3 = ((p1 >> 32) & _MASK) ^ c1 ^ k0, p1 & _MASK, ((p0 >> 32) & _MASK) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL_0) & _MASK, (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


@functools.lru_cache(maxsize=4096)
def key_of(seed: int, *names: str | int) -> tuple[int, int]:
    """The Philox key of a stream."""
    digest = hashlib.blake2b(repr((seed, *names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


# What torch.compiler.assume_constant_result does, without its import of the whole compiler, which takes longer than that of torch
# itself. torch.compile looks through the cache, so the mark is on what is in it.
key_of.__wrapped__._dynamo_marked_constant = True  # type: ignore[attr-defined]


def words(index: np.ndarray, *, key: tuple[Any, Any], count: int = 1) -> np.ndarray:
    """`count` words in 0..2^32-1 for each sample index, on the CPU: int64 of shape (len(index), count).

    With arrays (k, 1, 1) in `key` those of k streams: (k, len(index), count).
    """
    index, block = np.asarray(index, dtype=np.int64)[:, None], np.arange(-(-count // 4), dtype=np.int64)
    counter = np.zeros(np.broadcast_shapes(np.shape(key[0]), (len(index), len(block))), dtype=np.int64)
    drawn = philox(counter + block, counter, counter + (index & _MASK), counter + (index >> 32), key=key)
    return np.stack(drawn, axis=-1).reshape(*counter.shape[:-1], 4 * len(block))[..., :count]  # of no samples too


def permutation(count: int, *, seed: int, epoch: int) -> np.ndarray:
    """The order of `count` items in an epoch: int64 of shape (count,)."""
    drawn = words(np.arange(count), key=key_of(seed, "order", epoch), count=2)
    return np.argsort((drawn[:, 0] << 31) ^ drawn[:, 1], kind="stable")


@dataclass(frozen=True)
class Rng:
    """Draws for the samples `index` (int64, shape (b,)) of one stream; draws land on the device of `index`."""

    seed: int
    stream: tuple[str | int, ...]
    index: Tensor
    drawn: Mapping[str, Tensor] = field(default_factory=dict, compare=False, repr=False)
    "Words that `ahead` has drawn, by their names."

    def __len__(self) -> int:
        return len(self.index)

    def child(self, *names: str | int) -> Rng:
        """The stream inside this one."""
        return Rng(self.seed, self.stream + names, self.index)

    def __getitem__(self, samples: slice) -> Rng:
        """The same stream for some of the samples."""
        return replace(self, index=self.index[samples], drawn={name: words[samples] for name, words in self.drawn.items()})

    def words(self, name: str, count: int) -> Tensor:
        """Uniform integers in 0..2^32-1: int64 of shape (b, count)."""
        if name in self.drawn:
            return self.drawn[name][:, :count]
        return self._words([name], count)[0]

    def ahead(self, names: Sequence[str], count: int) -> Rng:
        """The same stream, for which the first `count` words of these names are drawn, all in one go.

        Drawn one by one each takes a hundred small operations: to start them costs more time than they take, and more yet to compile them.
        """
        return replace(self, drawn=dict(zip(names, self._words(names, count), strict=True))) if names else self

    def _words(self, names: Sequence[str], count: int) -> Tensor:
        """The words of each name: (k, b, count)."""
        keys = [key_of(self.seed, *self.stream, name) for name in names]
        device = self.index.device
        if device.type == "cpu" and len(names) * len(self) * count <= _FEW_WORDS and not torch.compiler.is_compiling():
            first, second = np.array(keys, dtype=np.int64).T[:, :, None, None]
            return torch.from_numpy(words(self.index.numpy(), key=(first, second), count=count))  # the same words, in half the time
        key: tuple[Any, Any] = keys[0]
        if len(names) > 1:
            first, second = torch.tensor(keys, device=device).T[:, :, None, None]
            key = first, second
        blocks = -(-count // 4)
        counter = torch.zeros(len(names), len(self), blocks, dtype=torch.int64, device=device)
        index, block = counter + self.index[:, None], counter + torch.arange(blocks, device=device)
        drawn = philox(block, counter, index & _MASK, index >> 32, key=key)
        return torch.stack(drawn, dim=-1).view(len(names), len(self), -1)[..., :count]

    def uniform(self, name: str, *shape: int) -> Tensor:
        """Uniform in [0, 1): float32 of shape (b, *shape)."""
        return ((self.words(name, math.prod(shape)) >> 8).float() * _TO_UNIT).view(len(self), *shape)

    def normal(self, name: str, *shape: int) -> Tensor:
        """Standard normal: float32 of shape (b, *shape), by the Box-Muller transform of pairs of words."""
        count = math.prod(shape)
        return _normal(self.words(name, 2 * (-(-count // 2))), count).view(len(self), *shape)

    def normals(self, names: Sequence[str], *shape: int) -> Callable[[int], Tensor]:
        """What `normal` draws under the i-th of the names, as a function of i.

        On a CPU small draws are made many at a time: one by one, starting their operations takes most of the time.
        """
        count = math.prod(shape)
        together = min(len(names), _FEW_WORDS // max(1, len(self) * count)) if self.index.device.type == "cpu" else 1
        if together < 2:
            return lambda i: self.normal(names[i], *shape)

        @functools.lru_cache(maxsize=1)
        def part(k: int) -> tuple[Tensor, ...]:
            drawn = self._words(names[k * together : (k + 1) * together], count + count % 2)
            return _normal(drawn, count).view(len(drawn), len(self), *shape).unbind()

        return lambda i: part(i // together)[i % together]

    def integers(self, name: str, high: int, *shape: int) -> Tensor:
        """Uniform in 0..high-1 (high at most 2^31): int64 of shape (b, *shape)."""
        return ((self.words(name, math.prod(shape)) * high) >> 32).view(len(self), *shape)

    def keep(self, name: str, *shape: int, drop: float) -> Tensor:
        """Which activations dropout keeps: bool of shape (b, *shape), each False with probability `drop` (to 2^-16)."""
        count = math.prod(shape)
        threshold = round(drop * _KEEP_LEVELS) - _KEEP_LEVELS // 2
        if threshold >= _KEEP_LEVELS // 2:
            return torch.zeros(len(self), *shape, dtype=torch.bool, device=self.index.device)
        keys, half = self.words(name, MASK_WORDS), -(-count // 2)  # two activations to a 32-bit word
        if keys.device.type == "cpu" and not torch.compiler.is_compiling():
            kept = torch.from_numpy(_masks(keys.numpy().astype(np.uint32), half, threshold))
        else:
            k0, k1 = _as_int32(keys)[:, :, None].unbind(1)
            counter = torch.arange(half, dtype=torch.int32, device=keys.device).mul_(_signed(_WEYL_0))
            kept = _halves(_mixed(counter + k0, k1)) >= threshold
        return kept[:, :count].view(len(self), *shape)


def _normal(words: Tensor, count: int) -> Tensor:
    """`count` standard normals (..., count) of words (..., n), n even and at least `count`."""
    pairs = words.unflatten(-1, (-1, 2))
    # float64 on a CPU: its vector kernels round a sample differently by its place in the batch; rounding to float32 hides it.
    dtype = torch.float64 if words.device.type == "cpu" else torch.float32
    radius = (pairs[..., 0] + 1).to(dtype).mul_(2.0**-32).log_().mul_(-2).sqrt_()
    angle = pairs[..., 1].to(dtype).mul_(2 * math.pi * 2.0**-32)
    return torch.stack((radius * angle.cos(), angle.sin_().mul_(radius)), dim=-1).float().flatten(-2)[..., :count].contiguous()


def _masks(keys: np.ndarray, half: int, threshold: int) -> np.ndarray:
    """The masks of 2 `half` activations of the samples with these keys, on a CPU: bool (b, 2 half).

    NumPy has shifts that carry no sign and writes bools as it compares, and so takes half of PyTorch's time on one thread.
    """
    counter = np.arange(half, dtype=np.uint32) * np.uint32(_WEYL_0)
    kept = np.empty((len(keys), 2 * half), dtype=np.bool_)
    rows = max(1, _CACHED_WORDS // max(1, half))  # as many samples at a time as a cache holds
    for start in range(0, len(keys), rows):
        part = slice(start, start + rows)
        x = counter + keys[part, :1]
        x ^= x >> 16
        x *= np.uint32(_MIXER_0)
        x += keys[part, 1:]
        x ^= x >> 13
        x *= np.uint32(_MIXER_1)
        x ^= x >> 16
        np.greater_equal(x.view(np.int16), threshold, out=kept[part])
    return kept


def _mixed(x: Tensor, key: Tensor) -> Tensor:
    """The finalizer of MurmurHash3 with a second key in it, in place; int32."""
    y = (x >> 16).bitwise_and_(0xFFFF)  # shifts of int32 carry the sign
    x.bitwise_xor_(y).mul_(_signed(_MIXER_0)).add_(key)
    torch.bitwise_right_shift(x, 13, out=y).bitwise_and_(0x7FFFF)
    x.bitwise_xor_(y).mul_(_signed(_MIXER_1))
    torch.bitwise_right_shift(x, 16, out=y).bitwise_and_(0xFFFF)
    return x.bitwise_xor_(y)


def _halves(x: Tensor) -> Tensor:
    """The int16 that int32 (b, n) are made of, the lower ones first: (b, 2n)."""
    if torch.compiler.is_compiling():  # which fuses this with what comes after, and a view not
        return torch.stack((x << 16 >> 16, x >> 16), dim=-1).flatten(1)
    return x.view(torch.int16)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def _as_int32(drawn: Tensor) -> Tensor:
    return torch.where(drawn >= 1 << 31, drawn - (1 << 32), drawn).int()
