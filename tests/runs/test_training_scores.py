"""Evaluations while training: the figures of `triptych evaluate`, at any number of processes, without a trace in the weights."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.shrink import BATCH, light
from tests.data.pictures import write_folder
from tests.processes import run_together
from triptych.core.errors import ConfigError, DataError
from triptych.engine.checkpoint import checkpoint_path, load_checkpoint
from triptych.engine.distributed import World
from triptych.engine.metric_log import read_metrics
from triptych.engine.progress import unwatched
from triptych.engine.run_directory import RunDirectory
from triptych.recipes.config import RunConfig
from triptych.runs import model_images, open_run, train
from triptych.runs.pieces import digest_of
from triptych.runs.stored import build
from triptych.runs.training_scores import SETTINGS, TrainingScores

FAST = {"sampler": "ddim", "steps": 2}
METRICS = ["frechet", "kid", "recall"]
COUNT = 40


ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("cache")
        patch.setenv("TRIPTYCH_CACHE", str(path))
        yield path


def config(recipe: str = "adm-digits", **settings: Any) -> RunConfig:
    sampling = {"model": {"sampling": FAST}} if recipe == "adm-digits" else {}
    evaluations = {
        "evaluate_every": 2 * BATCH,
        "evaluate_features": "random",
        "evaluate_count": COUNT,
        "evaluate_metrics": METRICS,
        "evaluate_reference": 100,
        "validate_images": 0,
    }
    return light(recipe).updated(sampling).updated({"train": evaluations | settings})


def evaluations(directory: Path) -> list[dict[str, float]]:
    lines = read_metrics(directory / "metrics.jsonl")
    return [{k: v for k, v in line.items() if k != "time"} for line in lines if any(k.startswith("evaluation/") for k in line)]


def text(directory: Path) -> str:
    return (directory / "log.txt").read_text()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps, evaluated after two and four."""
    directory = tmp_path_factory.mktemp("runs") / "unbroken"
    train(config(best_by="kid"), directory, device="cpu")
    return directory


@pytest.mark.slow
def test_the_figures_are_those_of_evaluate(unbroken, tmp_path):
    run = shutil.copytree(unbroken, tmp_path / "run")
    train(config(evaluate_reference=10_000, total_images=5 * BATCH, best_by="kid"), run, device="cpu")
    found = evaluations(run)
    assert [line["images"] for line in found] == [2 * BATCH, 4 * BATCH, 5 * BATCH]
    scores = open_run(run).score(metrics=METRICS, features="random", count=COUNT, settings=SETTINGS, device="cpu")
    for name, figure in scores.figures.items():
        assert found[-1][f"evaluation/{name}"] == pytest.approx(figure.value, rel=1e-9), name
        assert found[-1][f"evaluation/{name}_error"] == pytest.approx(figure.error, rel=1e-9), name
    said = [line for line in text(run).splitlines() if f"{5 * BATCH}/{5 * BATCH} images  evaluation" in line]
    assert len(said) == 1 and f"s, {COUNT} samples (few: below 2048): fd-random " in said[0] and " ± " in said[0]
    against = f"{COUNT} samples, seen by random, against"
    assert f"evaluations: frechet, kid, recall, near_equal, spread; {against} 1707 training images" in text(run)
    best = load_checkpoint(checkpoint_path(run / "checkpoints", 5 * BATCH), files=()).info["best"]
    how = best.pop("settings")
    assert best == {"score": found[-1]["evaluation/kid"], "images": 5 * BATCH, "by": f"kid ({against} 1707 training images)"}
    sampler = config().model.sampling.to_dict()  # type: ignore[attr-defined]
    assert how == digest_of([sampler, "float32"])[:8]
    assert f"was chosen by kid ({against} 100 training images); now kid ({against} 1707" in text(run)


class FakeWandb(ModuleType):
    """What Weights & Biases is called with."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("wandb")
        self.lines: list[dict[str, Any]] = []
        self.metrics: list[str] = []

    def init(self, **settings: Any) -> FakeWandb:
        return self

    def Settings(self, **settings: Any) -> None:
        return None

    def define_metric(self, name: str, **settings: Any) -> None:
        self.metrics.append(name)

    def log(self, line: dict[str, Any]) -> None:
        self.lines.append(line)

    def finish(self) -> None:
        pass


@pytest.mark.slow
def test_the_figures_arrive_where_else_is_logged(unbroken, tmp_path, monkeypatch):
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        plain = {"wandb": "offline"}
    else:
        plain = {"wandb": "offline", "tensorboard": True}
    train(config(best_by="kid").updated({"log": plain}), tmp_path, device="cpu")
    expected = evaluations(unbroken)
    assert [line for line in wandb.lines if "evaluation/kid" in line] == expected and wandb.metrics == ["images", "*"]
    assert {"evaluation/fd-random", "evaluation/recall_error", "evaluation/near_equal", "evaluation/spread"} <= set(expected[0])
    if "tensorboard" in plain:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(tmp_path / "tensorboard"))
        events.Reload()
        for name in set(expected[0]) - {"images"}:
            found = [(event.step, event.value) for event in events.Scalars(name)]
            assert found == [(line["images"], pytest.approx(line[name], rel=1e-6)) for line in expected], name


def test_training_ends_with_the_same_bytes(unbroken, tmp_path):
    train(config(evaluate_every=None), tmp_path, device="cpu")
    ends = [load_checkpoint(checkpoint_path(directory / "checkpoints", 4 * BATCH)) for directory in (unbroken, tmp_path)]
    assert ends[0].hashes == ends[1].hashes
    assert not evaluations(tmp_path)


@pytest.mark.slow
def test_a_signal_in_an_evaluation_saves_and_it_is_made_when_the_run_goes_on(unbroken, tmp_path, monkeypatch):
    sample, calls = model_images.draw, []

    def drawn(*given: Any) -> np.ndarray:
        calls.append(given[2].start)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return sample(*given)

    monkeypatch.setattr(model_images, "draw", drawn)
    assert train(config(best_by="kid"), tmp_path, device="cpu").stopped
    assert calls == [0, 32] and "stopped by SIGTERM at 12 images and saved" in text(tmp_path) and not evaluations(tmp_path)
    assert not train(config(best_by="kid"), tmp_path, device="cpu").stopped
    assert calls == [0, 32, 0, 32, 0, 32]
    assert evaluations(tmp_path) == evaluations(unbroken)
    ends = [load_checkpoint(checkpoint_path(directory / "checkpoints", 4 * BATCH)) for directory in (unbroken, tmp_path)]
    assert ends[0].hashes == ends[1].hashes and ends[0].info == ends[1].info


def test_a_long_sampler_is_stopped_between_its_steps(tmp_path, monkeypatch):
    sample, seen = model_images.draw, []

    def drawn(model: Any, request: Any, part: range, device: Any, report: Any) -> np.ndarray:
        def told(step: int, steps: int) -> None:
            seen.append((part.start, step))
            os.kill(os.getpid(), signal.SIGTERM)
            report(step, steps)

        return sample(model, request, part, device, told)

    monkeypatch.setattr(model_images, "draw", drawn)
    assert train(config(), tmp_path, device="cpu").stopped
    assert seen == [(0, 1)] and "stopped by SIGTERM at 12 images" in text(tmp_path)


def scores_of(settings: RunConfig, directory: Path, world: World) -> TrainingScores:
    """Of a model with its initial weights, moved so that its samples differ."""
    data = settings.data.open()
    model = build(settings, data.spec)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return TrainingScores(model, data.spec, settings, RunDirectory(directory), world)


def measure_together(settings: RunConfig, directory: Path, out: Path) -> None:
    from triptych.engine.distributed import open_world

    world = open_world("cpu")
    scores = scores_of(settings, directory, world)
    scores.prepare(unwatched)
    found = scores.measure(unwatched)
    out.with_suffix(f".{world.rank}").write_text(json.dumps(dict(found.values)))


@pytest.mark.slow
def test_figures_are_the_same_at_any_number_of_processes(tmp_path):
    """In float32, whose sums another number of threads may change; the groups that the networks see are the same."""
    alone, settings = tmp_path / "alone", config(evaluate_count=70)
    measure_together(settings, tmp_path, alone)
    run_together(2, measure_together, settings, tmp_path, tmp_path / "two")
    expected = json.loads(alone.with_suffix(".0").read_text())
    assert set(expected) >= {"fd-random", "kid", "recall", "near_equal"}
    for rank in (0, 1):
        found = json.loads((tmp_path / f"two.{rank}").read_text())
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_the_steps_of_a_sampler_are_told_of(tmp_path):
    scores = scores_of(config(evaluate_count=64, evaluate_metrics=()), tmp_path, World(0, 1, torch.device("cpu")))
    told = []
    scores.measure(lambda done, total: told.append((done, total)))
    assert told == [(0, 64), (16, 64), (32, 64), (48, 64), (64, 64), (64, 64)]


def test_each_evaluation_draws_anew(tmp_path):
    scores = scores_of(config(evaluate_count=16), tmp_path, World(0, 1, torch.device("cpu")))
    before, again = (scores.measure(unwatched).values["kid"] for _ in range(2))
    for parameter in scores._made.run.outline.parameters():
        parameter.data.mul_(0.5)
    assert before == again != scores.measure(unwatched).values["kid"]


# Models with a truth, and other families --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "metrics"), [("upsample-digits", ["psnr", "kid"]), ("glow-digits", ["kid"]), ("funit-omniglot", ["kid"])]
)
def test_other_models_are_evaluated(tmp_path, recipe, metrics):
    run = train(config(recipe, evaluate_metrics=metrics, evaluate_count=8, best_by=metrics[0]), tmp_path, device="cpu")
    (first, last) = evaluations(tmp_path)
    assert {f"evaluation/{name}" for name in [*metrics, "near_equal"]} <= set(last)
    better = max if metrics[0] == "psnr" else min
    best = better((first, last), key=lambda line: line[f"evaluation/{metrics[0]}"])
    assert run.find_checkpoint("best") == best["images"]


def test_without_metrics_only_the_samples_are_compared(tmp_path):
    train(config(evaluate_metrics=(), total_images=2 * BATCH), tmp_path, device="cpu")
    (line,) = evaluations(tmp_path)
    assert set(line) == {"images", "evaluation/near_equal", "evaluation/spread"} and line["evaluation/near_equal"] == 1.0
    assert f"s, {COUNT} samples: near_equal 1, " in text(tmp_path), "few are marked for distances of sets alone"


def test_a_metric_that_the_samples_are_too_few_for_is_named(tmp_path):
    train(config(evaluate_metrics=["recall", "frechet"], evaluate_count=2, total_images=2 * BATCH), tmp_path, device="cpu")
    assert "warning: recall was not measured: " in text(tmp_path)
    assert "evaluation/fd-random" in evaluations(tmp_path)[0]


def test_a_cache_that_cannot_be_written_is_said_at_the_start(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "file/cache"))
    scores = scores_of(config(), tmp_path, ALONE)
    reason = rf"cannot write {tmp_path}/file/cache/references/\S+\.npz: \S.*: name another folder by TRIPTYCH_CACHE$"
    with pytest.raises(DataError, match=f"^evaluations: no frechet can be measured: {reason}"):
        scores.prepare(unwatched)


# Collapse ---------------------------------------------------------------------------------------------------------------


def test_a_collapse_is_said_once_until_it_is_over(tmp_path):
    settings = config(evaluate_metrics=["recall"], evaluate_count=20)
    scores = scores_of(settings, tmp_path, World(0, 1, torch.device("cpu")))
    scores.prepare(unwatched)
    log, made = tmp_path / "metrics.jsonl", scores._made
    real = settings.data.open().train
    found = real.batch(np.arange(20)).images

    def evaluated(alike: int, nearer: int = 1) -> tuple[str, ...]:
        images = ((found.astype(int) - 128) // nearer + 128).astype(np.uint8)
        images[:alike] = images[0]

        def looked_at(looks: Any, **given: Any) -> dict[str, np.ndarray]:
            made.small = images
            return {"features": np.random.default_rng(1).normal(size=(20, 64)).astype(np.float32)}

        made.looked_at = looked_at  # type: ignore[method-assign]
        result = scores.measure(unwatched)
        assert result.values["near_equal"] == alike * (alike - 1) / 380
        with log.open("a") as file:
            figures = {f"evaluation/{name}": result.values[name] for name in ("near_equal", "spread")}
            file.write(json.dumps({"images": 8, **figures}) + "\n")
        return result.notes

    assert evaluated(0) == () and evaluated(2) == ()  # one pair of 190
    (note,) = evaluated(4)
    assert note.startswith("warning: samples have become alike: 3.16 % of their pairs differ by less than 2 of 255 levels, ")
    assert ", recall 1;" in note
    assert evaluated(0, nearer=4) == ()  # said before
    assert evaluated(2) == ("samples differ from one another again",) and "as far from one another" in evaluated(0, nearer=4)[0]


def test_a_training_that_has_hardly_begun_is_not_warned_of(unbroken):
    assert "alike" not in text(unbroken) and all(line["evaluation/spread"] < 0.5 for line in evaluations(unbroken))


# What is refused before anything is written -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evaluate_features": "inception"}, r"^train.evaluate_features: inception needs the file pt_inception-.* put it there$"),
        ({"evaluate_features": "inceptoin"}, r'^train.evaluate_features: unknown feature space "inceptoin"; did you mean "inception"'),
        ({"evaluate_metrics": ["kit"]}, r'^train.evaluate_metrics: unknown metric "kit"; did you mean "kid"'),
        ({"evaluate_metrics": ["sfid"]}, r'^train.evaluate_metrics: sfid cannot be measured: random has no "spatial"; inception has it'),
        (
            {"evaluate_metrics": ["kid", "fid"]},
            r"^train.evaluate_metrics: fid cannot be measured: FID is the distance in the",
        ),
        ({"evaluate_metrics": ["class-accuracy"]}, r"^train.evaluate_metrics: got class-accuracy, but a training has no classes"),
        ({"evaluate_metrics": ["kid", "psnr"]}, r"^train.evaluate_metrics: psnr cannot be measured: nobody knows the true images"),
    ],
)
def test_what_can_never_be_measured_is_refused_at_the_start(tmp_path, settings, message):
    directory = tmp_path / "run"
    with pytest.raises(ConfigError, match=message) as error:
        train(config(**settings), directory, device="cpu")
    assert "\n" not in str(error.value) and "--features-weights" not in str(error.value)
    assert not directory.exists()


def test_one_image_is_nothing_to_compare_with(tmp_path):
    write_folder(tmp_path / "images", ["a.png"])
    alone = {"data": {"source": "folder", "path": str(tmp_path / "images"), "validation_fraction": 0, "labels": "none"}}
    given = config("adm-digits-uncond").updated(alone)
    with pytest.raises(ConfigError, match=r"^train.evaluate_metrics: frechet, kid, recall cannot be measured: there is one image"):
        train(given, tmp_path / "run", device="cpu")
    train(given.updated({"train": {"evaluate_metrics": [], "evaluate_count": 2}}), tmp_path / "run", device="cpu")


def test_a_model_that_makes_no_images_is_not_evaluated(tmp_path):
    with pytest.raises(ConfigError, match=r"^train.evaluate_every: .* makes no (single )?(grey or RGB )?images"):
        train(config("classifier-digits"), tmp_path / "run", device="cpu")


def test_copies_among_a_part_of_the_images_are_said_to_be(tmp_path):
    """A figure of the same name by other settings of the sampler is another one."""
    settings = config(evaluate_metrics=["copies"], best_by="copies", evaluate_reference=100)
    scores = scores_of(settings, tmp_path, ALONE)
    assert "; copies of the 1,707 images are looked for among these alone (evaluate_reference)" in scores.describe()
    assert "alone" not in scores_of(config(evaluate_metrics=["copies"], evaluate_reference=10_000), tmp_path, ALONE).describe()
    faster = settings.updated({"model": {"sampling": {"steps": 3}}})
    criterion, other = (made.evaluation.criterion for made in (scores, scores_of(faster, tmp_path, ALONE)))
    assert criterion.by == other.by and criterion.settings != other.settings
    best = criterion.noted(0.1, 100)
    assert criterion.measured_so(best) and not other.measured_so(best) and other.improved(0.2, best) and not criterion.improved(0.2, best)
    assert other.measured_so({"score": 0.1, "images": 100, "by": other.by}), "of an earlier version"


@pytest.mark.parametrize(("best_by", "better", "worse"), [("kid", 0.1, 0.2), ("copies", 0.1, 0.2), ("recall", 0.2, 0.1)])
def test_the_best_is_the_lowest_or_the_highest_as_figures_are_meant(tmp_path, best_by, better, worse):
    criterion = scores_of(config(evaluate_metrics=[best_by], best_by=best_by), tmp_path, ALONE).evaluation.criterion
    for score, improved in ((better, True), (worse, False)):
        assert criterion.improved(score, criterion.noted((better + worse) / 2, 100)) == improved


def test_held_out_images_as_a_reference(tmp_path):
    train(config(evaluate_split="validation", total_images=2 * BATCH), tmp_path, device="cpu")
    assert "against 90 held-out images" in text(tmp_path)


@pytest.mark.parametrize(("real", "said"), [("alike", False), ("apart", True), (None, True)])
def test_equal_pairs_that_real_images_have_too_are_no_collapse(real: str | None, said: bool, tmp_path: Path) -> None:
    """After an evaluation without any a third of the pairs are equal, as where the set has its images several times."""
    directory = RunDirectory(tmp_path)
    directory.metrics_path.write_text(json.dumps({"images": 8, "evaluation/near_equal": 0.0}) + "\n")
    images = {"alike": np.zeros((8, 8, 8, 1), np.uint8), "apart": (np.arange(8 * 64) // 64 * 30).astype(np.uint8).reshape(8, 8, 8, 1)}
    scores: Any = SimpleNamespace(_directory=directory, _small=None if real is None else images[real], _config=light("adm-digits"))
    news = TrainingScores._collapse(scores, {"near_equal": 0.33})
    assert (news is not None and "33 % of their pairs" in news) == said
