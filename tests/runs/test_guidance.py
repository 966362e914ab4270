"""Runs that lead one another: a classifier's, a weaker model's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.contract.shrink import BATCH, light
from triptych.cli.main import main
from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.runs import Run, open_run, train
from triptych.runs.guidance import guided

SETTINGS = {"sampler": "ddim", "steps": "3", "guidance_scale": 30.0}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for name, recipe in (("plain", "adm-digits-uncond"), ("told", "adm-digits"), ("judge", "classifier-digits")):
        config = light(recipe)
        timing = replace(config.train, total_images=2 * BATCH, checkpoint_every=BATCH, sample_every=None)
        train(replace(config, train=timing), folder / name, device="cpu")
    return {path.name: path for path in folder.iterdir()}


def settings_of(run: Run, **changes: object) -> Config:
    sampling: Config = run.config.model.sampling  # type: ignore[attr-defined]
    return sampling.updated(SETTINGS | changes)


@pytest.mark.slow
def test_a_classifier_leads_and_its_labels_are_kept(runs: dict[str, Path], tmp_path: Path) -> None:
    run = open_run(runs["plain"])
    settings = settings_of(run)
    led = run.sample(6, settings=settings, guide=runs["judge"], labels=["3", "7"], device="cpu", out=tmp_path / "led.npz")
    assert led.labels is not None and led.labels.tolist() == [3, 7] * 3
    with np.load(tmp_path / "led.npz") as file:
        assert file["arr_1"].tolist() == [3, 7] * 3 and np.array_equal(file["arr_0"], led.images)
    free = run.sample(6, settings=settings_of(run, guidance_scale=1.0), device="cpu")
    assert free.labels is None and not np.array_equal(free.images, led.images)
    one_by_one = run.sample(6, settings=settings, guide=runs["judge"], labels=[3, 7], device="cpu", batch_size=1)
    assert np.abs(one_by_one.images.astype(int) - led.images.astype(int)).max() <= 1


def test_away_from_a_weaker_run(runs: dict[str, Path]) -> None:
    run = open_run(runs["told"])
    plain = run.sample(4, settings=settings_of(run, guidance_scale=1.0), device="cpu")
    led = run.sample(4, settings=settings_of(run), guide_with=runs["plain"], device="cpu")
    assert not np.array_equal(plain.images, led.images)


def test_pieces_of_another_guide_are_not_taken_up(runs: dict[str, Path]) -> None:
    """What identifies a request on disk includes the hash of the guide's weights."""
    run = open_run(runs["plain"])
    from triptych.engine.distributed import open_world

    world = open_world("cpu")
    model, origin = run.loaded("latest", None, world)
    sampler = guided(model, run, guide=runs["judge"], guide_with=None, settings=settings_of(run), world=world)
    judge = open_run(runs["judge"])
    place = runs["judge"] / f"checkpoints/{BATCH:09d}"
    earlier = guided(model, run, guide=place, guide_with=None, settings=settings_of(run), world=world)
    assert earlier.origin == {"guide": judge.loaded(str(BATCH), None, world)[1]["hash"]} != sampler.origin
    assert sampler.origin == {"guide": judge.loaded("latest", None, world)[1]["hash"]} and sampler.spec == run.spec
    assert set(origin) == {"images", "weights", "hash"}


@pytest.mark.slow
def test_what_is_refused(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = open_run(runs["plain"])
    with pytest.raises(ConfigError, match=r"guide_with: got a weaker model beside a classifier \(guide\); give one of them"):
        run.sample(2, guide=runs["judge"], guide_with=runs["told"], device="cpu")
    for wrong in ("", 3):
        with pytest.raises(ConfigError, match=f"guide: got {wrong!r}, expected a path"):
            run.sample(2, guide=wrong, device="cpu")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"guidance_scale: got 30\.0, but this model was not trained with model\.label_dropout"):
        run.sample(2, settings=settings_of(run), device="cpu")
    for arguments, line in (
        (["--guide", str(runs["told"])], "--guide: ADM is no classifier of noisy images; a weaker model goes to --guide-with"),
        (
            ["--guide-with", str(runs["judge"]), "--guidance-scale", "2"],
            "--guide-with: NoisyClassifier is no diffusion model of images; a classifier goes to --guide\n",
        ),
        (
            ["--guide", str(runs["judge"]), "--guide-with", str(runs["told"])],
            "--guide-with: got a weaker model beside a classifier (--guide); give one of them",
        ),
        (
            ["--guidance-interval", "0.1,0.2"],
            "--guidance-interval: got 0.1, 0.2, but nothing guides; give a guide, or a --guidance-scale other than 1",
        ),
        (["--guide", str(tmp_path / "none")], "there is no config.json"),
        (["--guide-with", str(runs["plain"])], "--guidance-scale: got 1.0, at which a weaker model (--guide-with) changes nothing"),
        (["--guide", str(runs["judge"]), "--labels", "12"], "--labels: got 12, expected 0 to 9"),
        (["--guide", str(runs["judge"]), "--guidance-scale", "-1"], "--guidance-scale: got -1.0, expected 0 or more"),
    ):
        assert main(["sample", str(runs["plain"]), "--count", "1", "--steps", "2", "--device", "cpu", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("triptych: error: ") and line in error and error.count("\n") == 1


def test_classes_of_other_names_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    """As many classes, in another order: labels would silently mean something else."""
    document = json.loads((runs["judge"] / "config.json").read_text())
    document["spec"]["class_names"] = [f"digit {name}" for name in document["spec"]["class_names"]]
    other = tmp_path / "other"
    other.mkdir()
    (other / "checkpoints").symlink_to(runs["judge"] / "checkpoints")
    (other / "config.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"guide: the classes of .*other are not those of .*plain \(its 'digit 0', for one\)"):
        open_run(runs["plain"]).sample(2, guide=other, device="cpu")
