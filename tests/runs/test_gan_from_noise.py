"""A GAN from noise in training: nothing but a figure of its samples can choose its best checkpoint, and its grids show the same noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from tests.contract.shrink import BATCH as SHRUNK_BATCH
from tests.contract.shrink import RECIPES, shrunk
from tests.gans.noise_gan import ScaledSampling, ToyNoiseGAN
from triptych.core.batch import DataSpec
from triptych.core.config import config
from triptych.core.errors import CheckpointError
from triptych.core.rng import Rng
from triptych.data.config import DataConfig
from triptych.engine.config import OptimConfig, TrainConfig
from triptych.engine.metric_log import read_metrics
from triptych.evaluation import feature_space
from triptych.gans.from_noise import NoiseGANConfig
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig
from triptych.runs import open_run, train

BATCH, COUNT = 8, 40


@config
class ToyNoiseGANConfig(NoiseGANConfig):
    """The toy, as a recipe would have it."""

    latent_dims: int = 4
    class_conditional: bool = True

    def build(self, spec: DataSpec) -> ToyNoiseGAN:
        return ToyNoiseGAN(self, spec)


def settings(**given: Any) -> RunConfig:
    evaluations = {"evaluate_every": BATCH, "evaluate_features": "random", "evaluate_count": COUNT, "evaluate_reference": 100}
    defaults = {"evaluate_metrics": ("frechet", "recall"), "best_by": "frechet", "keep_last": 1, "precision": "float32"}
    training = {"total_images": 5 * BATCH, "batch_size": BATCH, "ema_rates": (), "sample_count": 6, "sample_every": 2 * BATCH}
    return RunConfig(
        model=ToyNoiseGANConfig(),
        data=DataConfig(source="digits", image_size=6, channels=3, flip=False, workers=0),
        train=TrainConfig(**(training | evaluations | defaults | given)),
        optim=OptimConfig(learning_rate=0.3, warmup_images=0),  # so high that it soon gets worse
    )


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))


def figures(directory: Path, name: str) -> dict[int, float]:
    lines = read_metrics(directory / "metrics.jsonl")
    return {cast(int, line["images"]): line[key] for line in lines if (key := f"evaluation/{name}") in line}


def test_a_figure_of_its_samples_chooses_the_best_checkpoint(tmp_path):
    run = train(settings(), tmp_path / "run", device="cpu")
    found = figures(tmp_path / "run", "fd-random")
    best = min(found, key=found.__getitem__)
    assert list(found) == [BATCH * k for k in range(1, 6)] and best != 5 * BATCH
    assert run.find_checkpoint("best") == best and "nothing chooses" not in (tmp_path / "run" / "log.txt").read_text()
    page = (tmp_path / "run" / "report.html").read_text()
    assert open_run(tmp_path / "run").sample(2, checkpoint="best", labels=[3], device="cpu").images.shape == (2, 6, 6, 3)
    assert not any(key.startswith("validation/") for line in read_metrics(tmp_path / "run" / "metrics.jsonl") for key in line)
    assert f"fd-random ({COUNT} samples, seen by random, against 100 training images): the best checkpoint, at {best}" in page


def test_without_such_a_figure_none_is_the_best(tmp_path):
    run = train(settings(evaluate_every=None, best_by="validation"), tmp_path / "run", device="cpu")
    with pytest.raises(CheckpointError, match="no best checkpoint: nothing of it was validated or evaluated"):
        run.find_checkpoint("best")
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "nothing chooses the best checkpoint, for this model has no loss on held-out images: --train.evaluate-every 2 " in log


def test_grids_show_the_same_noise_and_classes_over_the_run_and_a_resume(tmp_path, monkeypatch):
    drawn: list[tuple[Tensor, Tensor]] = []
    sample = ToyNoiseGAN.sample

    def watched(self: ToyNoiseGAN, rng: Rng, *, labels: Tensor, settings: ScaledSampling, report: Any = None) -> Tensor:
        drawn.append((rng.normal("z", 4), labels))
        return sample(self, rng, labels=labels, settings=settings, report=report)

    monkeypatch.setattr(ToyNoiseGAN, "sample", watched)
    plain = settings(evaluate_every=None, best_by="validation")
    train(plain, tmp_path / "run", device="cpu")
    grids = len(list((tmp_path / "run" / "samples").glob("*.png")))
    train(replace(plain, train=replace(plain.train, total_images=8 * BATCH)), tmp_path / "run", device="cpu")
    assert 2 <= grids < len(list((tmp_path / "run" / "samples").glob("*.png"))) == len(drawn)
    for noise, labels in drawn:
        assert torch.equal(noise, drawn[0][0]) and torch.equal(labels, drawn[0][1]) and len(noise) == 6


# The recipes ------------------------------------------------------------------------------------------------------------

WATCHED = [name for name in RECIPES if isinstance(load_recipe(name).model, NoiseGANConfig)]


@pytest.mark.parametrize("name", WATCHED)
def test_a_recipe_measures_its_samples(name):
    train = load_recipe(name).train
    assert train.best_by == "frechet" and train.evaluate_every is not None and train.checkpoint_every is not None
    assert train.evaluate_every % train.checkpoint_every == 0 and 10 <= train.total_images / train.evaluate_every <= 500


@pytest.mark.slow
@pytest.mark.parametrize("name", ["r3gan-digits", "stylegan2-photos64"])
def test_a_recipe_needs_no_file_for_that(name, tmp_path, monkeypatch):
    """Without any network's weights it is random ones that choose the best checkpoint, and the log says how to get others."""
    monkeypatch.setattr(feature_space, "_places", lambda space: [])
    small, recipe = shrunk(name), load_recipe(name)
    watching = {field: getattr(recipe.train, field) for field in ("evaluate_metrics", "evaluate_features", "best_by")}
    training = replace(small.train, **watching, evaluate_every=2 * SHRUNK_BATCH, evaluate_count=8, total_images=2 * SHRUNK_BATCH)
    run = train(replace(small, train=training), tmp_path / "run", device="cpu")
    log = (tmp_path / "run" / "log.txt").read_text()
    assert run.find_checkpoint("best") == 2 * SHRUNK_BATCH and "nothing chooses" not in log
    assert "8 samples, seen by random, against" in log and "fd-random" in log
    assert ('; pip install "triptych[features]" brings a network that has learned\n' in log) == (name == "stylegan2-photos64")
