"""Run.evaluate: figures, files, interruptions, other images, and what is refused."""

from __future__ import annotations

import errno
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.contract.shrink import BATCH, light, shrunk
from tests.processes import run_together
from triptych.cli.main import main
from triptych.core.batch import Batch, DataSpec
from triptych.core.errors import ConfigError, DataError, RunError
from triptych.core.rng import Rng
from triptych.data.config import DataConfig
from triptych.diffusion.likelihood import FlowODEConfig
from triptych.diffusion.model import DiffusionModel
from triptych.evaluation.bits_per_dim import BitsPerDimConfig
from triptych.recipes.config import RunConfig
from triptych.runs import Evaluation, Run, evaluation, open_run, train
from triptych.runs.pieces import Pieces

STEPS = 20


def config(**changes: Any) -> RunConfig:
    """adm-digits, shrunk, with a short chain; `changes` by section."""
    base = {"train": {"total_images": BATCH}, "model": {"diffusion": {"steps": STEPS}}, "optim": {"warmup_images": 0}}
    return light("adm-digits").updated(base).updated(changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(config(), tmp_path_factory.mktemp("runs") / "trained", device="cpu")


def measured(run: Run, **asked: Any) -> Evaluation:
    return run.evaluate(**({"count": 5, "batch_size": 2, "device": "cpu", "settings": BitsPerDimConfig(steps=4)} | asked))


def held_out(run: Run, numbers: list[int]) -> tuple[DiffusionModel, Batch, Rng]:
    """The model, some held-out images, and the noise that an evaluation with seed 3 gives them."""
    images = run.config.data.open().validation
    assert images is not None and images.labels is not None
    pixels = torch.from_numpy(images.batch(np.array(numbers)).images).permute(0, 3, 1, 2) / 127.5 - 1
    index = torch.tensor(numbers)
    model = run.load(device="cpu")
    assert isinstance(model, DiffusionModel)
    return model, Batch(pixels, torch.from_numpy(images.labels[numbers]), index), Rng(3, ("evaluate", "bits-per-dim"), index)


NUMBERS = [0, 18, 36, 54, 72]  # five of ninety


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "clip"), [(None, True), (5, True), ("ddim4", False)])
def test_the_bound_is_that_of_the_model(trained: Run, tmp_path: Path, steps: int | str | None, clip: bool) -> None:
    model, batch, rng = held_out(trained, NUMBERS)
    direct = model.bound(batch, rng, steps=steps, clip=clip)
    settings = BitsPerDimConfig(steps=steps, clip=clip)
    found = measured(trained, seed=3, settings=settings, out=tmp_path / "a.json")
    figures = found.figures["bits-per-dim"]
    assert list(figures) == ["bits_per_dim", "standard_error", "prior", "kl", "reconstruction"]
    assert figures["bits_per_dim"] == pytest.approx(float(direct.total.mean()), rel=1e-5)
    assert figures["standard_error"] == pytest.approx(float(direct.total.std()) / math.sqrt(5), rel=1e-4)
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["image"].tolist() == NUMBERS
        np.testing.assert_allclose(arrays["bits_per_dim"], direct.total, rtol=1e-5)
        np.testing.assert_allclose(arrays["prior"], direct.prior, rtol=1e-5, atol=1e-9)
        for name, values in (("vb", direct.terms), ("x0_mse", direct.x0_mse), ("noise_mse", direct.noise_mse)):
            np.testing.assert_allclose(arrays[name], values.double().mean(0), rtol=1e-4, err_msg=name)
        assert arrays["timesteps"].tolist() == list(direct.timesteps)
        assert arrays["timesteps"][0] == (STEPS - 1 if steps != "ddim4" else 15) and arrays["timesteps"][-1] == 0


def test_the_flow_is_that_of_the_model(trained: Run) -> None:
    model, batch, rng = held_out(trained, NUMBERS)
    direct = model.log_prob(batch, rng, settings=FlowODEConfig(steps=3, probes=2))
    found = measured(trained, seed=3, settings=BitsPerDimConfig(likelihood="ode", steps=3, probes=2))
    np.testing.assert_allclose(found.arrays["log_prob"], direct, rtol=1e-5)
    assert found.figures["bits-per-dim"]["bits_per_dim"] == pytest.approx(-float(direct.mean()) / (64 * math.log(2)), rel=1e-5)


@pytest.mark.slow
def test_the_files_say_what_was_measured(trained: Run) -> None:
    found = measured(trained)
    assert found.out.parent == trained.directory / "evaluations"
    assert found.out.name.startswith("bits-per-dim-000000006-") and found.out.suffix == ".json"
    document = json.loads(found.out.read_text())
    assert document == found.document
    assert document["metrics"]["bits-per-dim"]["bits_per_dim"] == found.figures["bits-per-dim"]["bits_per_dim"]
    assert document["metrics"]["bits-per-dim"]["settings"] == {"likelihood": "bound", "steps": 4, "clip": True}
    assert document["checkpoint"]["images"] == 6 and document["checkpoint"]["weights"] == "ema-0.999"
    assert len(document["checkpoint"]["hash"]) == 64
    assert (document["images"], document["shape"], document["seed"], document["precision"]) == (5, [1, 8, 8], 0, "float32")
    assert document["data"]["split"] == "validation" and document["data"]["available"] == 90
    assert document["data"]["source"] == "digits" and "flip" not in document["data"]
    assert (found.out.parent / document["arrays"]).is_file()
    assert not [path for path in found.out.parent.iterdir() if path.name.startswith(".")]
    assert measured(trained).out == found.out and measured(trained, seed=1).out != found.out


@pytest.mark.slow
def test_an_image_does_not_depend_on_its_batch_or_on_the_count(trained: Run) -> None:
    one = measured(trained, batch_size=1)
    np.testing.assert_allclose(measured(trained, batch_size=5).arrays["bits_per_dim"], one.arrays["bits_per_dim"], rtol=1e-5)
    more = measured(trained, count=10)
    assert more.arrays["image"][::2].tolist() == one.arrays["image"].tolist()
    np.testing.assert_allclose(more.arrays["bits_per_dim"][::2], one.arrays["bits_per_dim"], rtol=1e-5)
    assert not np.allclose(measured(trained, seed=1).arrays["bits_per_dim"], one.arrays["bits_per_dim"], rtol=1e-3)


def test_nothing_is_rounded_to_tf32(trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU; here it is seen by the setting that it follows."""
    convolutions, bound, seen = torch.backends.cudnn.conv, DiffusionModel.bound, []  # pyright: ignore[reportAttributeAccessIssue]

    def watched(self: DiffusionModel, *arguments: Any, **settings: Any) -> Any:
        seen.append(convolutions.fp32_precision)
        return bound(self, *arguments, **settings)

    monkeypatch.setattr(DiffusionModel, "bound", watched)
    before, convolutions.fp32_precision = convolutions.fp32_precision, "tf32"
    try:
        measured(trained, out=tmp_path / "x.json")
        assert set(seen) == {"ieee"} and convolutions.fp32_precision == "tf32"
    finally:
        convolutions.fp32_precision = before


@pytest.mark.slow
def test_an_interrupted_evaluation_goes_on(trained: Run, tmp_path: Path) -> None:
    whole, seen = measured(trained, count=9, out=tmp_path / "whole.json"), []

    def interrupt(done: int, total: int) -> None:
        seen.append((done, total))
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(trained, count=9, out=tmp_path / "a.json", progress=interrupt)
    assert not (tmp_path / "a.json").exists()
    again: list[tuple[int, int]] = []
    found = measured(trained, count=9, out=tmp_path / "a.json", batch_size=3, progress=lambda done, total: again.append((done, total)))
    assert seen == [(0, 9), (2, 9), (4, 9)] and again == [(4, 9), (7, 9), (9, 9)]
    for name, values in whole.arrays.items():
        np.testing.assert_allclose(found.arrays[name], values, rtol=1e-4, atol=1e-9, err_msg=name)
    assert not list(tmp_path.glob(".*"))
    other: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        measured(trained, count=9, out=tmp_path / "a.json", progress=interrupt)
    measured(trained, count=9, seed=1, out=tmp_path / "a.json", progress=lambda done, total: other.append(done))
    assert other[0] == 0  # pieces of another seed are not taken up


@pytest.mark.slow
def test_splits(trained: Run, tmp_path: Path) -> None:
    training, everything = (measured(trained, split=split, count=3, out=tmp_path / "a.json") for split in ("train", "all"))
    assert training.document["data"]["available"] == 1707 and everything.document["data"]["available"] == 1797
    assert everything.arrays["image"].tolist() == [0, 599, 1198]
    for k in range(12):
        Image.fromarray(np.random.default_rng(k).integers(0, 256, (8, 8), dtype=np.uint8)).save(tmp_path / f"{k}.png")
    data = {"path": str(tmp_path), "channels": 1, "labels": "none", "validation_fraction": 0.25}
    few = train(config(data=data, model={"class_conditional": False}), tmp_path / "few", device="cpu")
    whole, start = (measured(few, split=split, count=None).arrays["bits_per_dim"] for split in ("all", "train"))
    assert len(whole) == 12 > len(start) == len(few.config.data.open().train)
    np.testing.assert_allclose(whole[: len(start)], start, rtol=1e-4)
    without = config(data={"validation_fraction": 0.0})
    run = train(without, tmp_path / "run", device="cpu")
    with pytest.warns(UserWarning, match="the data has no held-out images: those of the training are used"):
        assert measured(run).document["data"]["split"] == "train"
    with pytest.raises(ConfigError, match="split: got validation, but digits has no held-out images"):
        measured(run, split="validation")


@pytest.fixture
def folder(trained: Run, tmp_path: Path) -> Path:
    """Held-out images as PNGs, with the class in their names; not all classes are there."""
    _, batch, _ = held_out(trained, NUMBERS)
    (tmp_path / "folder").mkdir()
    for k, (image, label) in enumerate(zip(batch.images, batch.labels.tolist(), strict=True)):  # type: ignore[union-attr]
        pixels = ((image[0] + 1) * 127.5).round().byte().numpy()
        Image.fromarray(pixels).save(tmp_path / "folder" / f"{label}_{k}.png")
    return tmp_path / "folder"


def test_other_images(trained: Run, folder: Path) -> None:
    data = replace(trained.config.data, path=str(folder), labels="prefix", validation_fraction=0.0)
    found = measured(trained, data=data, split="all", count=None, batch_size=8, seed=3)
    model, batch, _ = held_out(trained, NUMBERS)
    order = sorted(range(5), key=lambda k: (int(batch.labels[k]), k))  # type: ignore[index]
    assert order != list(range(5)), "the names would not have to be looked at"
    arranged = Batch(batch.images[order], batch.labels[order], torch.arange(5))  # type: ignore[index]
    direct = model.bound(arranged, Rng(3, ("evaluate", "bits-per-dim"), arranged.index), steps=4)
    np.testing.assert_allclose(found.arrays["bits_per_dim"], direct.total, rtol=1e-5)
    assert found.document["data"]["path"] == str(folder)


def test_other_images_under_the_same_names_are_measured_anew(trained: Run, folder: Path) -> None:
    data = replace(trained.config.data, path=str(folder), labels="prefix", validation_fraction=0.0)
    first = measured(trained, data=data, split="all", count=None)
    Image.new("L", (16, 16), 200).save(next(folder.iterdir()))
    again = measured(trained, data=data, split="all", count=None)
    assert first.out != again.out and first.document["data"]["contents"] != again.document["data"]["contents"]


def test_the_model_is_told_the_labels(trained: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights have hardly been trained: the figures would not show a wrong one."""
    told: list[int] = []
    bound = DiffusionModel.bound

    def spy(self: DiffusionModel, batch: Batch, rng: Rng, **settings: Any) -> Any:
        assert batch.labels is not None
        told.extend(batch.labels.tolist())
        return bound(self, batch, rng, **settings)

    monkeypatch.setattr(DiffusionModel, "bound", spy)
    labels = held_out(trained, NUMBERS)[1].labels
    assert labels is not None
    measured(trained)
    assert told == labels.tolist() and len(set(told)) > 2
    told.clear()
    data = replace(trained.config.data, path=str(folder), labels="prefix", validation_fraction=0.0)
    measured(trained, data=data, split="all")
    assert told == sorted(labels.tolist())  # by name: with numbers of the folder's own they would begin at 0
    assert max(told) >= len(set(told))


def test_images_that_do_not_fit(trained: Run, folder: Path) -> None:
    data = replace(trained.config.data, path=str(folder), validation_fraction=0.0)
    for change, error, message in (
        ({"labels": "none"}, ConfigError, "data.labels: this run's model is told the class of each image, but .* has no labels"),
        ({"image_size": 4, "labels": "prefix"}, ConfigError, "data.image_size: got 4, but the run's images have 8 pixels"),
        ({"path": str(folder / "nowhere")}, DataError, "nowhere: does not exist"),
    ):
        with pytest.raises(error, match=message):
            measured(trained, data=replace(data, **change))
    with pytest.raises(ConfigError, match="split: got validation, but .* has no held-out images; use train or all"):
        measured(trained, data=replace(data, labels="prefix"), split="validation")
    Image.new("L", (8, 8)).save(folder / "cat_1.png")
    with pytest.raises(DataError, match='class "cat" is none of this model'):
        measured(trained, data=replace(data, labels="prefix"))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"metrics": ("fid",)}, "metrics: got fid, which is measured by triptych evaluate RUN --metrics fid; in Python by run.score; here"),
        ({"metrics": ("bits-per-dims",)}, 'metrics: unknown metric "bits-per-dims"; did you mean "bits-per-dim"'),
        ({"count": 91}, r"count: got 91, expected 1 to 90, the images that are there \(split validation\)"),
        ({"count": 0}, "count: got 0, expected a whole number from 1 on"),
        ({"split": "test"}, "split: got 'test', expected train, validation, all"),
        ({"batch_size": 0}, "batch_size: got 0"),
        ({"out": "a.txt"}, "out: got 'a.txt', expected a name that ends with .json"),
        ({"settings": BitsPerDimConfig(steps=21)}, "steps: got '21', which asks for 21 of the 20 steps"),
    ],
)
def test_bad_requests_are_refused(trained: Run, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        measured(trained, **asked)


def test_a_classifier_has_no_likelihood(tmp_path: Path) -> None:
    run = train(shrunk("classifier-digits").updated({"train": {"total_images": BATCH}}), tmp_path / "run", device="cpu")
    with pytest.raises(ConfigError, match="metrics: bits-per-dim needs a model that knows how probable an image is; NoisyClassifier does"):
        measured(run)


def test_an_upsampler_has_one(tmp_path: Path) -> None:
    recipe = shrunk("adm-upsample-64-256").updated({"train": {"total_images": BATCH}})
    found = measured(train(recipe, tmp_path / "run", device="cpu"), settings=BitsPerDimConfig(steps=3))
    assert found.document["shape"] == [3, 8, 8] and math.isfinite(found.figures["bits-per-dim"]["bits_per_dim"] or math.nan)


def test_infinities_are_named(trained: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def infinite(self: DiffusionModel, batch: Batch, rng: Rng, *, settings: Any) -> torch.Tensor:
        return torch.where(batch.index == 18, -math.inf, -1.0).double()

    monkeypatch.setattr(DiffusionModel, "log_prob", infinite)
    with pytest.raises(RunError, match="bits-per-dim: image 18 gives inf; try precision float32, or more steps"):
        measured(trained, settings=BitsPerDimConfig(likelihood="ode"))


def test_a_full_disk(trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Pieces, "save", full)
    with pytest.raises(DataError, match=r"cannot write .*a.json: No space .*; what was measured is kept, and the same command goes on"):
        measured(trained, out=tmp_path / "a.json")


@pytest.mark.slow
@pytest.mark.xdist_group("torchrun")
def test_two_processes_find_the_same(trained: Run, tmp_path: Path) -> None:
    out = tmp_path / "two.json"
    flags = ["--count", "5", "--batch-size", "2", "--steps", "4", "--device", "cpu", "--out", str(out)]
    main_process, other = run_together(2, main, ["evaluate", str(trained.directory), *flags])
    assert main_process.stdout.count("bits_per_dim") == 1 and "on 5 of 90 images" in main_process.stdout
    assert not other.stdout
    one = measured(open_run(trained.directory), out=tmp_path / "one.json")
    document = json.loads(out.read_text())
    assert document["processes"] == 2
    assert document["metrics"]["bits-per-dim"]["bits_per_dim"] == pytest.approx(one.figures["bits-per-dim"]["bits_per_dim"], rel=1e-5)
    with np.load(tmp_path / "two.npz") as arrays:
        for name, values in one.arrays.items():
            np.testing.assert_allclose(arrays[name], values, rtol=1e-4, atol=1e-9, err_msg=name)


def test_a_place_that_cannot_be_written_is_found_before_the_work(trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("triptych.runs.evaluation._measured", None)
    with pytest.raises(DataError, match=r"cannot write .*file/a\.json: .*file is a file; choose another --out"):
        measured(trained, out=tmp_path / "file/a.json")
    with pytest.raises(ConfigError, match=r"out: got .*a\.txt', expected a name that ends with \.json"):
        measured(trained, out=tmp_path / "a.txt", checkpoint="7")  # before a checkpoint is looked for


def test_settings_of_training_alone_do_not_make_another_evaluation() -> None:
    """What they change is mirrored, moved, ordered or loaded in training; the same figures are taken as they are."""
    config = shrunk("adm-digits").data
    images: Any = SimpleNamespace(split="all", available=3, chosen=range(3))
    opened: Any = SimpleNamespace(origin={}, loading=SimpleNamespace(precision="float32"))

    def asked(data: DataConfig) -> dict[str, Any]:
        spec = DataSpec(image_size=8, channels=1)
        return evaluation._asked({}, images, spec, opened, seed=0, data=data, hashed="0123")

    of_training = {"workers": 3, "flip": not config.flip, "crop": "random", "augment": "shift", "anchor_size": 7, "order": "by-name"}
    for name, value in of_training.items():
        changed = replace(config, **{name: value})
        assert changed != config and asked(changed) == asked(config), name
    assert asked(replace(config, enlarge=not config.enlarge)) != asked(config)
