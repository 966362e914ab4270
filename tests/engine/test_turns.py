"""Turns of a model's own, and what one of them carries to the next."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.engine.toys import SIZE, Clip, Denoiser, Pair, draw, make_loop, resumed, run, seeded, stop_after
from triptych.core.batch import Batch
from triptych.core.model import LossTerms, Model, Phase, TrainingProgress, Turn
from triptych.core.rng import Rng
from triptych.engine.checkpoint import checkpoint_path, load_checkpoint
from triptych.engine.distributed import World


def order(model: Model, iteration: int) -> list[tuple[str, int]]:
    return [(turn.phase.name, turn.slice) for turn in model.turns(TrainingProgress(8 * iteration, 8, 800))]


def test_phases_take_turns_one_after_the_other():
    model = seeded(Pair)
    assert order(model, 0) == order(model, 7) == [("discriminator", 0), ("discriminator", 1), ("generator", 0)]
    model.phases = (Phase("penalty", ("discriminator",), every=4), Phase("generator", ("generator",), repeats=2))
    assert [len(order(model, iteration)) for iteration in range(9)] == [3, 2, 2, 2, 3, 2, 2, 2, 3]
    assert order(model, 4) == [("penalty", 0), ("generator", 0), ("generator", 1)]


def test_an_iteration_is_what_it_is_by_hand(tmp_path: Path):
    loop = make_loop(seeded(Clip), tmp_path / "run", total_images=8)
    run(loop)
    assert loop.images_seen == 8 and loop.model.told == [("judge", 0), ("draw", 0), ("judge", 1), ("draw", 1)]
    model = seeded(Clip)
    batch = next(draw(8, world=World(0, 1, torch.device("cpu")))(0)).to("cpu")
    optimizers = {name: torch.optim.AdamW(part.parameters(), lr=1e-2, weight_decay=0.0) for name, part in model.named_children()}
    past = torch.zeros_like(batch.images)
    for frame in range(2):
        for name in ("judge", "draw"):
            model.zero_grad()
            made = model.network(batch.images + past + Rng(0, (name, frame), batch.index).normal("z", 3, SIZE, SIZE))
            if name == "judge":
                loss = (model.judge(batch.images) - model.judge(made.detach()) - 1).square().mean()
            else:
                loss = (made - batch.images).square().mean() + model.judge(made).square().mean()
            loss.backward()
            optimizers["judge" if name == "judge" else "network"].step()
        past = made.detach()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(loop.model.get_parameter(name), parameter, rtol=1e-4, atol=1e-5)


class Numbered(Model):
    """Carries the numbers of its samples from step to step, under a name that stays and one of the step; keeps what it is given."""

    phases = (Phase("draw", ("network",), repeats=2),)
    averaged = ("network",)

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(1, 1)
        self.step = 0
        self.given: dict[tuple[int, int], list[float]] = defaultdict(list)
        self.names: dict[int, set[str]] = {}

    def turns(self, progress: TrainingProgress) -> list[Turn]:
        return [Turn(self.phases[0], part) for part in (0, 1, 0, 1, 0, 1)]

    def prepare(self, phase: Phase, progress: TrainingProgress) -> None:
        self.step, self.iteration = progress.step, progress.iteration

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        number: Tensor = batch.inputs.get("number", torch.full((len(batch), 1), -1.0))
        self.given[self.iteration, self.step] += number[:, 0].tolist()
        self.names[self.step] = set(batch.inputs)
        index = batch.index[:, None].float()
        return LossTerms(self.network(number)[:, 0], carried={"number": index, f"of {self.step}": index})


@pytest.mark.parametrize("microbatch", [None, 3])
def test_what_is_carried_stays_with_its_sample_and_within_its_iteration(tmp_path: Path, microbatch: int | None):
    loop = make_loop(seeded(Numbered), tmp_path / "run", total_images=16, batch_size=4, microbatch=microbatch)
    run(loop)
    none = [-1.0] * 4
    for iteration in (0, 1):
        first, second = ([8.0 * iteration + 4 * part + k for k in range(4)] for part in (0, 1))
        assert [loop.model.given[iteration, step] for step in range(6)] == [none, none, first, second, first, second]
    assert [loop.model.names[step] for step in (1, 3, 5)] == [set(), {"number", "of 1"}, {"number", "of 1", "of 3"}]


def test_a_resume_ends_with_the_same_bytes(tmp_path: Path):
    run(make_loop(seeded(Clip), tmp_path / "unbroken", microbatch=3))
    first = make_loop(seeded(Clip), tmp_path / "broken", microbatch=3)
    assert first.run(stop_after(first, 24)) is False
    run(resumed(tmp_path / "broken", Clip(), microbatch=3))
    ends = [load_checkpoint(checkpoint_path(tmp_path / name / "checkpoints", 64)) for name in ("unbroken", "broken")]
    assert ends[0].hashes == ends[1].hashes


def test_a_model_that_carries_nothing_is_given_nothing(tmp_path: Path):
    seen = []

    class Looking(Denoiser):
        def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
            seen.append(dict(batch.inputs))
            return super().loss(phase, batch, rng)

    run(make_loop(seeded(Looking), tmp_path / "run", total_images=16))
    assert seen == [{}, {}]
