from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.toys import Denoiser, Pair, draw, seeded
from triptych.core.batch import Batch, RawBatch
from triptych.core.model import LossTerms, Phase
from triptych.core.rng import Rng
from triptych.engine.distributed import World
from triptych.engine.validation import validation_loss

ONE = World(0, 1, torch.device("cpu"))


def held_out(count: int, *, batch_size: int, ranks: int = 1, rank: int = 0) -> Iterator[RawBatch]:
    """Images 0..count-1 in batches; of each, this rank's share."""
    whole = next(draw(count, world=ONE)(0))
    for start in range(0, count, batch_size):
        size = min(batch_size, count - start)
        own = slice(start + size * rank // ranks, start + size * (rank + 1) // ranks)
        yield RawBatch(whole.images[own], None, whole.index[own])


def validate(model: Denoiser, batches: Iterator[RawBatch], world: World = ONE) -> dict[str, float]:
    return validation_loss(model, batches, seed=3, precision="float32", world=world)


def test_every_term_over_all_images_and_by_group() -> None:
    model = seeded(Denoiser)
    assert isinstance(model, Denoiser)
    found = validate(model, held_out(33, batch_size=10))
    batch = next(held_out(33, batch_size=33)).to("cpu")
    terms = model.loss(model.phases[0], batch, Rng(3, ("validation", "denoise"), batch.index))
    group = terms.group
    assert group is not None
    expected = {}
    for name, values in (("loss", terms.loss.detach()), ("twice", terms.logged["twice"])):
        expected[f"denoise/{name}"] = values.mean()
        expected[f"denoise/{name}_standard_error"] = values.std() / 33**0.5
        expected |= {f"denoise/{name}_q{k}": values[group == k].mean() for k in range(4)}
    assert found == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-5)
    assert next(iter(found)) == "denoise/loss"  # it decides which checkpoint is best
    assert len(set(found.values())) == 12 and model.training


def test_a_group_without_images_has_no_mean() -> None:
    model = seeded(Denoiser)
    assert isinstance(model, Denoiser)
    found = validate(model, held_out(1, batch_size=4))
    assert len([name for name in found if name.startswith("denoise/loss_q")]) == 1
    assert not any("standard_error" in name for name in found), "of one image there is none"
    assert validate(model, held_out(2, batch_size=4))["denoise/loss_standard_error"] > 0


@dataclass(frozen=True)
class _Second(World):
    """The second of two processes, that knows what the first one has."""

    other: Tensor | None = None

    def sum(self, values: Tensor) -> Tensor:
        return values if self.other is None else values + self.other

    def gather(self, value: Any) -> list[Any]:
        return [value, value]


def test_two_processes_find_what_one_does() -> None:
    model = seeded(Denoiser)
    assert isinstance(model, Denoiser)
    # 21 images in batches of 10: in the last batch the first process has none.
    heard: list[Tensor] = []

    class First(World):
        def sum(self, values: Tensor) -> Tensor:
            heard.append(values.clone())
            return values

        def gather(self, value: Any) -> list[Any]:
            return [value, value]

    validate(model, held_out(21, batch_size=10, ranks=2, rank=0), First(0, 2, torch.device("cpu")))
    both = validate(model, held_out(21, batch_size=10, ranks=2, rank=1), _Second(1, 2, torch.device("cpu"), other=heard[0]))
    assert both == pytest.approx(validate(model, held_out(21, batch_size=7)), rel=1e-6)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_may_have_no_images(rank: int) -> None:
    """One image for two processes: it is the second one's."""
    heard: list[Any] = []

    class Speaking(World):
        def sum(self, values: Tensor) -> Tensor:
            heard.append(values.clone())
            return values

        def gather(self, value: Any) -> list[Any]:
            heard.append(value)
            return [value, value]

    model = seeded(Denoiser)
    assert isinstance(model, Denoiser)
    alone = validate(model, held_out(1, batch_size=4), Speaking(0, 1, torch.device("cpu")))
    names, numbers = heard

    class Whole(World):
        def sum(self, values: Tensor) -> Tensor:
            return values + (0 if rank else numbers)

        def gather(self, value: Any) -> list[Any]:
            return [{}, value] if rank else [value, names]

    own = held_out(1, batch_size=4, ranks=2, rank=rank)
    assert validate(model, own, Whole(rank, 2, torch.device("cpu"))) == alone


def test_the_loss_is_that_of_evaluation_mode() -> None:
    class Spy(Denoiser):
        def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
            modes.append((self.training, torch.is_grad_enabled()))
            return super().loss(phase, batch, rng)

    modes: list[tuple[bool, bool]] = []
    validate(Spy(), held_out(9, batch_size=4))
    assert modes == [(False, False)] * 3


def test_terms_without_groups() -> None:
    model = seeded(Pair)
    model.validated = ("discriminator", "generator")
    found = validation_loss(model, held_out(9, batch_size=4), seed=3, precision="float32", world=ONE)
    assert list(found) == [f"{phase}/loss{kind}" for phase in ("discriminator", "generator") for kind in ("", "_standard_error")]
