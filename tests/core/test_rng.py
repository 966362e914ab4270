"""Randomness: known answers of Philox, independence of batching, distributions."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from triptych.core.rng import Rng, key_of, permutation, philox, words


def rng(count: int = 8, *, seed: int = 0, stream: tuple = ("test",), start: int = 0) -> Rng:
    return Rng(seed, stream, torch.arange(start, start + count))


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        # The known-answer tests that accompany the paper's reference implementation.
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, answer):
    for array in (lambda c: np.array([c], dtype=np.int64), lambda c: torch.tensor([c])):
        assert tuple(int(word[0]) for word in philox(*map(array, counter), key=key)) == answer


def test_numpy_and_torch_draw_the_same_words(monkeypatch):
    monkeypatch.setattr("triptych.core.rng._FEW_WORDS", 0)
    index = np.array([0, 5, 2**33 + 7])
    drawn = Rng(3, ("flip",), torch.from_numpy(index)).words("a", 6)
    assert np.array_equal(words(index, key=key_of(3, "flip", "a"), count=6), drawn.numpy())


def test_no_samples_have_no_words():
    """A process's share of a small last batch may be empty."""
    assert words(np.zeros(0, dtype=np.int64), key=key_of(3, "flip"), count=6).shape == (0, 6)


@pytest.mark.parametrize("draw", [lambda r: r.normal("x", 3, 7, 5), lambda r: r.uniform("x", 11), lambda r: r.keep("x", 9, 5, 3, drop=0.3)])
def test_a_sample_is_the_same_in_every_batch(draw):
    whole = draw(rng(37))
    for start, count in ((0, 1), (3, 5), (11, 26)):
        assert torch.equal(draw(rng(count, start=start)), whole[start : start + count])
    assert torch.equal(draw(rng(37)[4:9]), whole[4:9])


@pytest.mark.parametrize("shape", [(), (3, 3), (3, 5, 91), (2, 41, 50)])
def test_draws_made_together_are_those_made_one_by_one(shape):
    """Of numbers that are no multiple of four, all together, four at a time and singly, in any order, of large indices, of no samples."""
    for some in (rng(3, start=2**33), rng(1, seed=5), rng(50), rng(0)):
        drawn = some.normals([f"step/{i}" for i in range(11)], *shape)
        for i in (0, 1, 7, 10, 2):
            assert torch.equal(drawn(i), some.normal(f"step/{i}", *shape))


def test_draws_made_together_are_few_numbers(monkeypatch):
    made = []
    monkeypatch.setattr("triptych.core.rng.words", lambda *told, key, count: made.append(key) or words(*told, key=key, count=count))
    names = [f"step/{i}" for i in range(100)]
    rng(4).normals(names, 1, 32, 32)(7)
    assert np.shape(made.pop()[0]) == (4, 1, 1)  # 2^14 numbers
    drawn = rng(4).normals(names, 3, 64, 64)
    assert torch.equal(drawn(7), rng(4).normal("step/7", 3, 64, 64)) and not made  # one draw alone has more


def test_draws_differ_by_seed_stream_name_and_sample():
    draws = [rng().uniform("a", 64), rng(seed=1).uniform("a", 64), rng(stream=("other",)).uniform("a", 64), rng().uniform("b", 64)]
    draws += [rng().child("repeat", 1).uniform("a", 64), rng(start=8).uniform("a", 64), rng(start=2**32).uniform("a", 64)]
    rows = torch.cat(draws)
    assert torch.pdist(rows).min() > 1  # 64 independent uniforms lie about 3.3 apart
    assert torch.equal(rng(stream=("test", "repeat", 1)).uniform("a", 4), rng().child("repeat", 1).uniform("a", 4))


def test_normal_has_the_moments_of_a_normal():
    drawn = rng(64).normal("x", 5001).double()
    n = drawn.numel()
    assert abs(drawn.mean()) < 5 / math.sqrt(n)
    assert abs(drawn.var() - 1) < 5 * math.sqrt(2 / n)
    assert abs((drawn**4).mean() - 3) < 5 * math.sqrt(96 / n)
    assert abs((drawn[:, :-1] * drawn[:, 1:]).mean()) < 5 / math.sqrt(n)  # the halves of a Box-Muller pair are independent
    assert drawn.dtype == torch.float64 and torch.isfinite(drawn).all()
    tail = (drawn.abs() > 3).double().mean()
    assert abs(tail - 0.0026998) < 5 * math.sqrt(0.0027 / n)


def test_uniform_and_integers_cover_their_range_evenly():
    drawn = rng(64).uniform("u", 4000).double()
    assert drawn.min() >= 0 and drawn.max() < 1
    counts = torch.histc(drawn, 50, 0, 1)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 49 + 5 * math.sqrt(98)  # chi-squared
    integers = rng(64).integers("i", 7, 1000)
    counts = torch.bincount(integers.flatten(), minlength=7).double()
    assert integers.shape == (64, 1000) and len(counts) == 7
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 6 + 5 * math.sqrt(12)
    assert rng(5).integers("t", 10).shape == (5,)


@pytest.mark.parametrize("drop", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_keep_drops_its_share_independently(drop):
    kept = rng(32).keep("x", 50, 101, drop=drop).double()
    n = kept.numel()
    allowed = 5 * math.sqrt(max(drop * (1 - drop), 1e-12) / n) + 2**-16
    assert abs((1 - kept).mean() - drop) <= allowed
    centred = kept - kept.mean()
    if 0 < drop < 1:
        for near in (centred[:, :, :-1] * centred[:, :, 1:], centred[:, :-1] * centred[:, 1:], centred[:-1] * centred[1:]):
            assert abs(near.mean() / centred.var()) < 5 / math.sqrt(near.numel())


def test_permutation_is_one_and_changes_with_epoch_and_seed():
    first = permutation(1000, seed=0, epoch=0)
    assert sorted(first) == list(range(1000))
    assert (first == permutation(1000, seed=0, epoch=0)).all()
    for other in (permutation(1000, seed=0, epoch=1), permutation(1000, seed=1, epoch=0), np.arange(1000)):
        assert (first == other).mean() < 0.02
    places = np.stack([permutation(10, seed=0, epoch=e) for e in range(2000)])
    counts = np.stack([np.bincount(places[:, k], minlength=10) for k in range(10)])
    assert ((counts - 200) ** 2 / 200).sum() < 81 + 5 * math.sqrt(162)


def test_the_key_of_a_stream_is_a_constant_for_the_compiler():
    """The hash cannot be traced: without its mark every draw would break the compiled graph."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it looks through the cache
        compiled = torch.compile(lambda index: Rng(3, ("a",), index).uniform("b", 5), backend="eager", fullgraph=True)
        assert torch.equal(compiled(torch.arange(4)), Rng(3, ("a",), torch.arange(4)).uniform("b", 5))


def test_draws_stay_what_they_were() -> None:
    """A run that goes on under a later version meets the same numbers."""
    rng = Rng(7, ("a", 1), torch.tensor([0, 5, 2**33]))
    assert rng.words("w", 5)[:2].tolist() == [
        [1561696208, 1126091255, 2566161006, 2055174631, 2184221053],
        [545676018, 3802040724, 191962212, 3848565697, 3658160262],
    ]
    torch.testing.assert_close(rng.uniform("u", 3)[2], torch.tensor([0.4095, 0.4920, 0.3979]), atol=1e-4, rtol=0)
    normal = [[-1.7510, 0.2500, -0.5454], [-0.3660, 0.5731, 0.0938], [0.8071, 0.9091, -1.2276]]
    torch.testing.assert_close(rng.normal("n", 3), torch.tensor(normal), atol=1e-4, rtol=0)
    assert rng.integers("i", 10, 4).tolist() == [[1, 1, 5, 7], [7, 1, 0, 7], [0, 3, 3, 8]]
    assert rng.keep("k", 9, drop=0.5)[2].tolist() == [True, False, False, False, True, True, False, True, False]
    assert permutation(8, seed=1, epoch=2).tolist() == [5, 2, 4, 7, 1, 3, 0, 6]


def test_many_words_are_those_of_few():
    """Few are drawn by NumPy on a CPU, many by PyTorch."""
    rng = Rng(3, ("a", 1), torch.tensor([5, 2**40 + 1]))
    many = rng.words("b", 2**14)
    assert many.dtype == torch.int64 and len(many.unique()) > 2**14
    for k in range(2):
        assert torch.equal(rng[k : k + 1].words("b", 2**14), many[k : k + 1])
        assert torch.equal(rng[k : k + 1].words("b", 7), many[k : k + 1, :7])


def test_draws_ahead_are_the_same():
    names = [f"block{k}" for k in range(5)]
    for some in (rng(3, start=2**33), rng(300)):
        ahead = some.ahead(names, 2)
        for name in names:
            assert torch.equal(ahead.keep(name, 7, 3, drop=0.3), some.keep(name, 7, 3, drop=0.3))
            assert torch.equal(ahead[1:3].keep(name, 7, 3, drop=0.3), some[1:3].keep(name, 7, 3, drop=0.3))
            assert torch.equal(ahead.words(name, 1), some.words(name, 1))
            assert torch.equal(ahead.child("x").words(name, 2), some.child("x").words(name, 2))


@pytest.mark.slow
def test_compiled_draws_are_the_same():
    names = [f"block{k}" for k in range(5)]
    for some in (rng(3, start=2**33), rng(300)):
        compiled = torch.compile(lambda index: Rng(0, ("test",), index).ahead(names, 2).keep(names[1], 7, 3, drop=0.3), backend="eager")
        assert torch.equal(compiled(some.index), some.keep(names[1], 7, 3, drop=0.3))
