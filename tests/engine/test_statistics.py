"""Averages have batch-norm statistics of their own: estimated with their weights, saved with them, used wherever they are."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine.toys import SIZE, Denoiser, draw, make_loop, run, seeded
from triptych.core.batch import Batch, RawBatch
from triptych.core.errors import DataError
from triptych.core.model import Averaged, LossTerms, Model, Phase
from triptych.core.rng import Rng
from triptych.engine.callables import Evaluated, Evaluation
from triptych.engine.checkpoint import checkpoint_path, list_checkpoints, load_checkpoint, load_newest
from triptych.engine.distributed import World
from triptych.engine.loop import Loop
from triptych.engine.signals import StopRequest
from triptych.engine.statistics import estimate_statistics, has_batch_norm
from triptych.nn.batch_norm import BatchNorm2d

ONE = World(0, 1, torch.device("cpu"))
BATCHES = 3


class Normed(Model, Averaged):
    """A network with batch norm that an average follows, and one that none does."""

    phases = (Phase("draw", ("network",)), Phase("judge", ("other",)))
    averaged = ("network",)
    couples_samples = True

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1))
        self.other = nn.Sequential(nn.Conv2d(3, 4, 3), BatchNorm2d(4))

    def noisy(self, batch: Batch, rng: Rng) -> Tensor:
        return batch.images + rng.normal("noise", 3, SIZE, SIZE)

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        if phase.name == "judge":
            return LossTerms(self.other(batch.images).square().mean((1, 2, 3)))
        return LossTerms((self.network(self.noisy(batch, rng)) - batch.images).square().mean((1, 2, 3)))

    def run_averaged(self, batch: Batch, rng: Rng) -> None:
        self.network(self.noisy(batch, rng))


def calibration() -> Iterator[RawBatch]:
    """The first batches of training."""
    return itertools.islice(draw(8, world=ONE)(0), BATCHES)


def batches() -> list[Batch]:
    return [raw.to("cpu") for raw in calibration()]


def expected_statistics(weights: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and variance before the batch norm of a network with these weights, by hand: averages over the batches."""
    means, variances = [], []
    model = Normed()
    for batch in batches():
        x = model.noisy(batch, Rng(0, ("statistics",), batch.index))
        before = torch.nn.functional.conv2d(x, weights["network.0.weight"], weights["network.0.bias"], padding=1)
        means.append(before.mean((0, 2, 3)))
        variances.append(before.var((0, 2, 3), correction=1))
    return torch.stack(means).mean(0), torch.stack(variances).mean(0)


def assert_estimated(weights: dict[str, Tensor]) -> None:
    mean, variance = expected_statistics(weights)
    torch.testing.assert_close(weights["network.1.running_mean"], mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights["network.1.running_var"], variance, rtol=1e-5, atol=1e-6)
    assert weights["network.1.num_batches_tracked"] == BATCHES


def make(root: Path, *, calibrated: bool = True, **settings: Any) -> tuple[Loop, list[int]]:
    """A loop around the model, and a list that counts the estimates by the images seen when they are made."""
    seen: list[int] = []

    def calibrate() -> Iterator[RawBatch]:
        seen.append(loop.images_seen)
        return calibration()

    loop = make_loop(seeded(settings.pop("kind", Normed)), root, calibrate=calibrate if calibrated else None, **settings)
    return loop, seen


# The estimate


def test_the_estimate_is_over_all_processes_whatever_training_does() -> None:
    synced = list[bool]()

    class Watched(Normed):
        def run_averaged(self, batch: Batch, rng: Rng) -> None:
            synced.append(self.network[1].synced)
            super().run_averaged(batch, rng)

    estimate_statistics(seeded(Watched), batches, seed=0)
    assert synced == [True] * BATCHES


@pytest.mark.parametrize("training", [True, False])
def test_statistics_are_plain_means_and_all_else_stays(training: bool) -> None:
    model = seeded(Normed).train(training)
    assert isinstance(model, Normed)
    layer, other = model.network[1], model.other[1]
    layer.running_mean.fill_(7.0)
    layer.momentum = 0.3
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    estimate_statistics(model, batches, seed=0)
    assert_estimated(model.state_dict())
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {f"network.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert (layer.momentum, other.momentum) == (0.3, 0.1) and not layer.synced
    assert model.training == layer.training == other.training == training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_what_a_model_collects_it_collects_in_evaluation_mode(training: bool) -> None:
    class Collecting(Denoiser, Averaged):
        collects = True

        def collect(self, batches: Iterable[Batch]) -> None:
            modes.append((self.training, len(list(batches))))

    model, modes = seeded(Collecting).train(training), []
    estimate_statistics(model, batches, seed=0)
    assert modes == [(False, BATCHES)] and model.training == training


def test_evaluation_is_as_training_where_there_is_one_batch() -> None:
    model, (batch, *_) = seeded(Normed), batches()
    assert isinstance(model, Normed)
    estimate_statistics(model, lambda: [batch], seed=0)
    x = model.noisy(batch, Rng(0, ("statistics",), batch.index))
    with torch.no_grad():
        before = model.network[0](x)
        trained, found = (model.train(mode).network[:2](x) for mode in (True, False))
    # Running variances have n - 1 in their denominator, those of training n.
    variance = before.var((0, 2, 3), correction=0)
    count = before.numel() / before.shape[1]
    ratio = ((variance + 1e-5) / (variance * count / (count - 1) + 1e-5)).sqrt()
    torch.testing.assert_close(found, trained * ratio[:, None, None], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found, trained, rtol=0, atol=0.01)
    assert (ratio < 0.9999).all(), "which the comparison can tell"


@pytest.mark.parametrize("training", [True, False])
def test_statistics_stay_as_they_are_where_an_image_cannot_be_read(training: bool) -> None:
    model = seeded(Normed).train(training)
    assert isinstance(model, Normed)
    layer = model.network[1]
    layer.running_mean.fill_(7.0)
    layer.momentum = 0.3
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def broken() -> Iterator[Batch]:
        yield batches()[0]
        raise DataError("a.png: cannot be read")

    with pytest.raises(DataError):
        estimate_statistics(model, broken, seed=0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert layer.momentum == 0.3 and not layer.synced and model.training == layer.training == training


def test_a_model_with_batch_norm_says_how_its_networks_run() -> None:
    class Silent(Denoiser):
        pass

    model = seeded(Silent)
    model.network.append(BatchNorm2d(3))
    with pytest.raises(TypeError, match="Silent has batch norm and is not Averaged"):
        estimate_statistics(model, batches, seed=0)


def test_which_models_have_batch_norm() -> None:
    model = Normed()
    assert has_batch_norm(model)
    model.averaged = ()
    assert not has_batch_norm(model) and not has_batch_norm(Denoiser())


# In the loop


def test_saved_averages_have_statistics_of_their_own(tmp_path: Path) -> None:
    loop, seen = make(tmp_path / "run", ema_warmup=False)
    run(loop)
    assert seen == [64, 64], "one for each average"
    files = load_newest(tmp_path / "run/checkpoints", warn=pytest.fail).files
    for rate in (0.9, 0.99):
        assert_estimated(files[f"ema-{rate}"])
    assert not torch.equal(files["ema-0.9"]["network.1.running_mean"], files["ema-0.99"]["network.1.running_mean"])
    plain, _ = make(tmp_path / "plain", calibrated=False, ema_warmup=False)
    run(plain)
    bare = load_newest(tmp_path / "plain/checkpoints", warn=pytest.fail).files
    for stem in ("model", "optimizer"):
        assert all(torch.equal(tensor, bare[stem][name]) for name, tensor in files[stem].items()), "training does not notice"
    assert files["model"]["network.1.num_batches_tracked"] == 8
    assert torch.equal(bare["ema-0.9"]["network.1.running_mean"], bare["model"]["network.1.running_mean"])


@pytest.mark.parametrize("stop_at", [8, 40])
def test_an_interrupted_run_ends_with_the_same_bytes(tmp_path: Path, stop_at: int) -> None:
    settings = {"checkpoint_every": 16, "keep_every": 16}
    unbroken, _ = make(tmp_path / "unbroken", **settings)
    run(unbroken)
    first, _ = make(tmp_path / "broken", **settings)
    stop, iteration = StopRequest(), first._iteration

    def until(source: Iterator[RawBatch]) -> None:
        iteration(source)
        stop.name = "SIGTERM" if first.images_seen >= stop_at else None

    first._iteration = until  # type: ignore[method-assign]
    assert first.run(stop) is False
    checkpoint = load_newest(tmp_path / "broken/checkpoints", warn=pytest.fail)
    assert checkpoint.images_seen == stop_at
    second, _ = make(tmp_path / "broken", **settings)
    second.model.load_state_dict(checkpoint.files["model"])
    second.restore(checkpoint)
    for average in second.averages:
        assert_estimated(average.tensors)
    assert run(second) is True
    for images in (48, 64):
        ends = [load_checkpoint(checkpoint_path(tmp_path / name / "checkpoints", images)) for name in ("unbroken", "broken")]
        assert ends[0].hashes == ends[1].hashes
    assert set(list_checkpoints(tmp_path / "unbroken/checkpoints")) == {16, 32, 48, 64}


@pytest.mark.parametrize(("gone_at", "meets"), [(24, "step"), (24, "grid"), (24, "evaluation"), (32, "checkpoint"), (64, "end")])
def test_what_was_trained_is_saved_where_images_cannot_be_read_any_more(tmp_path: Path, gone_at: int, meets: str) -> None:
    """Neither those that statistics are taken from. The next start takes them."""
    unbroken, _ = make(tmp_path / "unbroken")
    run(unbroken)

    def reading(source: Iterator[RawBatch]) -> Iterator[RawBatch]:
        for batch in source:
            if loop.images_seen >= gone_at:
                raise DataError("images: Stale file handle")
            yield batch

    every = {"grid": {"sample_every": 24}, "evaluation": {"evaluate_every": 24}, "checkpoint": {"checkpoint_every": 32}}
    evaluation = Evaluation(lambda watch: Evaluated({}, ""))
    given = {"evaluation": evaluation, "grids": {"": lambda path, watch: None}, **every.get(meets, {})}
    loop = make_loop(seeded(Normed), tmp_path / "broken", calibrate=lambda: reading(calibration()), **given)
    if meets == "step":
        draw_all = loop.callables.draw
        loop.callables = replace(loop.callables, draw=lambda start: reading(draw_all(start)))
    with pytest.raises(DataError, match="Stale file handle"):
        run(loop)
    checkpoint = load_newest(tmp_path / "broken/checkpoints", warn=pytest.fail)
    assert checkpoint is not None and checkpoint.images_seen == gone_at and checkpoint.info["statistics"] is False
    again, seen = make(tmp_path / "broken")
    again.model.load_state_dict(checkpoint.files["model"])
    again.restore(checkpoint)
    assert run(again) and seen[-1] == 64
    ends = [load_checkpoint(checkpoint_path(tmp_path / name / "checkpoints", 64)) for name in ("unbroken", "broken")]
    assert ends[0].hashes == ends[1].hashes and ends[0].info == ends[1].info


def test_one_of_several_processes_whose_images_cannot_be_read_saves_nothing_alone(tmp_path: Path) -> None:
    """The others, which it would wait for, take their step, or estimate."""

    def broken() -> Iterator[RawBatch]:
        raise DataError("images: Stale file handle")
        yield

    loop = make_loop(seeded(Normed), tmp_path / "run", calibrate=broken)
    assert isinstance(loop.averaged.estimate(0), DataError)
    loop.world = loop.averaged._world = World(0, 2, torch.device("cpu"))
    with pytest.raises(DataError):
        loop.averaged.estimate(0)
    with pytest.raises(DataError, match="^alone$"), loop._saving_first():
        raise DataError("alone")
    assert list_checkpoints(tmp_path / "run/checkpoints") == []
    told: list[Exception] = []
    loop._save_and_end = told.append  # type: ignore[method-assign]
    with loop._saving_first(alike=DataError):
        raise DataError("in all of them")
    assert [str(error) for error in told] == ["in all of them"]


def test_one_estimate_serves_all_that_happens_at_once(tmp_path: Path) -> None:
    used: list[tuple[str, int, dict[str, Tensor]]] = []

    def kept(loop: Loop, use: str) -> None:
        used.append((use, loop.images_seen, {name: tensor.clone() for name, tensor in loop.model.state_dict().items()}))

    def validate(watch: object) -> dict[str, float]:
        kept(loop, "validation")
        return {"loss": 0.0}

    settings = {"total_images": 32, "validate_every": 8, "checkpoint_every": 16, "sample_every": 16, "ema_rates": (0.5,)}
    loop, seen = make(tmp_path / "run", validate=validate, **settings)
    loop.callables = replace(loop.callables, grids={"": lambda path, watch: kept(loop, "samples")})
    run(loop)
    assert seen == [8, 16, 24, 32]
    assert [(use, images) for use, images, _ in used] == [
        ("validation", 8),
        ("validation", 16),
        ("samples", 16),
        ("validation", 24),
        ("validation", 32),
        ("samples", 32),
    ]
    for _, _, weights in used:
        assert_estimated(weights)
    (average,) = loop.averages
    assert torch.equal(used[-1][2]["network.0.weight"], average.tensors["network.0.weight"])
    assert not torch.equal(loop.model.state_dict()["network.0.weight"], average.tensors["network.0.weight"])


def test_models_without_batch_norm_are_not_calibrated(tmp_path: Path) -> None:
    loop, seen = make(tmp_path / "run", kind=Denoiser, total_images=16)
    run(loop)
    assert seen == []
