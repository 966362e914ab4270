"""train and open_run: directories, resumes, weights, samples, and what they refuse."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.contract.shrink import BATCH, light, shrunk
from tests.data.pictures import write_folder
from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError, DataError
from triptych.core.images import save_picture
from triptych.core.model import TrainingProgress
from triptych.data.images import ImageSet
from triptych.data.made import STAMP, mark
from triptych.engine.checkpoint import checkpoint_path, list_checkpoints, load_checkpoint
from triptych.engine.distributed import World
from triptych.engine.loop import Loop
from triptych.engine.metric_log import read_metrics
from triptych.engine.schedule import scheduled_rate
from triptych.recipes.catalogue import load_recipe, recipes
from triptych.recipes.config import RunConfig
from triptych.runs import Run, callables, files, open_run, sampling, stored, train
from triptych.runs.beginning import refuse_shorter
from triptych.runs.callables import _validation
from triptych.runs.document import accept_changes
from triptych.runs.encoding import coder
from triptych.runs.given.pictures import open_pictures
from triptych.runs.guidance import guided
from triptych.runs.loading import Loading
from triptych.runs.opening_lines import long_warmup
from triptych.runs.sampling import Samples, label_list, write_samples
from triptych.runs.stored import build, outline
from triptych.runs.training import initialize_from


def config(**changes) -> RunConfig:
    """adm-digits, shrunk; `changes` by section, as in `Config.updated`."""
    return light("adm-digits").updated(changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Run:
    path = tmp_path_factory.mktemp("runs") / "trained"
    schedule = {"checkpoint_every": BATCH, "validate_every": BATCH, "sample_every": 2 * BATCH, "sample_count": 10, "keep_last": 3}
    return train(config(train=schedule, log={"every": BATCH}), path, recipe="adm-digits", device="cpu")


def test_an_epoch_is_as_long_as_the_training_images(tmp_path):
    optim = {"learning_rate": 1.0e-4, "schedule": "step", "decay_every": 1, "decay_factor": 0.5, "decay_unit": "epochs", "warmup_images": 0}
    images = np.random.default_rng(0).integers(0, 256, (2 * BATCH, 8, 8, 1), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", arr_0=images, arr_1=np.arange(2 * BATCH) % 10)
    data = {"source": "arrays", "path": str(tmp_path / "images.npz"), "validation_fraction": 0.0}
    run = train(config(optim=optim, data=data, log={"every": BATCH}), tmp_path / "run", device="cpu")
    lines = read_metrics(run.directory / "metrics.jsonl")
    assert [line["learning_rate"] for line in lines if "learning_rate" in line] == [1e-4, 1e-4, 5e-5, 5e-5]
    assert json.loads((run.directory / "config.json").read_text())["optim"]["decay_every"] == 1


def test_a_run_holds_what_the_format_says(trained):
    root = trained.directory
    document = json.loads((root / "config.json").read_text())
    assert document["format"] == 1 and document["recipe"] == "adm-digits"
    assert document["train"]["total_images"] == 4 * BATCH and document["optim"]["name"] == "adamw"
    assert document["spec"]["num_classes"] == 10
    files = {path.name for path in (root / "checkpoints/000000024").iterdir()}
    assert files == {"model.safetensors", "ema-0.999.safetensors", "optimizer.safetensors", "state.json"}
    assert {path.name for path in (root / "samples").iterdir()} == {"000000012.png", "000000024.png"}
    lines = read_metrics(root / "metrics.jsonl")
    assert [line["images"] for line in lines if "denoise/loss" in line] == [6, 12, 18, 24]
    assert {"denoise/loss", "denoise/gradient_norm", "learning_rate", "images_per_second"} <= lines[0].keys()
    quartiles = [name for line in lines for name in line if name.startswith("denoise/loss_q")]
    assert set(quartiles) == {f"denoise/loss_q{k}" for k in range(4)}
    assert sum("validation/denoise/loss" in line for line in lines) == 4
    log = (root / "log.txt").read_text()
    assert "finished: 24 images seen" in log
    history = re.findall(r"\d (6|12|18|24)/24 images  [\d.]+ images/s  (validation/\w+/)?loss \d", log)
    assert [images for images, _ in history] == ["6", "6", "12", "12", "18", "18", "24", "24"], "in training and held out"
    assert (
        "warning: the learning rate rises over 6,400 of the run's 24 images and ends at 3.8e-06 in place of 0.001: "
        "train longer, or set --optim.warmup-images 2\n" in log
    )


def test_the_log_says_what_is_odd_about_the_images(tmp_path):
    write_folder(tmp_path / "photos", [f"images/{k}.png" for k in range(12)] + [f"edges/{k}.png" for k in range(12)])
    (tmp_path / "photos" / "notes.txt").write_text("x")
    data = {"path": str(tmp_path / "photos"), "labels": "none", "channels": 1}
    start = config(data=data, model={"class_conditional": False}, train={"total_images": BATCH})
    lines = (train(start, tmp_path / "run", device="cpu").directory / "log.txt").read_text()
    assert "passed over 1 file that is no image: 1 .txt\n" in lines
    assert "12 of 24 files look like the other halves of pairs (images/" not in lines and "(edges/0.png beside images/0.png)" in lines
    assert re.search(r"warning: (1 image is|[1-9]\d? images are) held out, too few to choose the best checkpoint by", lines)


def test_only_a_long_warmup_is_warned_of():
    for name in recipes():
        assert list(long_warmup(load_recipe(name))) == [], name
    published = load_recipe("glow-imagenet64")
    (warning,) = long_warmup(published.updated({"train": {"total_images": 1_000_000}}))
    assert " images: train longer" in warning and list(long_warmup(published.updated({"train": {"total_images": 1_250_000}}))) == []
    assert warning.endswith("rises over 125,000 of the run's 1,000,000 images: train longer, or set --optim.warmup-images 100000")


@pytest.mark.parametrize(
    "name",
    [
        "adm-photos64",
        "edm-photos64",
        "edm-digits",
        "adm-digits",
        "adm-mnist",
        "glow-digits",
        "glow-mnist",
        "classifier-digits",
        "upsample-digits",
    ],
)
def test_on_few_images_of_ones_own_the_learning_rate_reaches_its_value(name):
    recipe = load_recipe(name).updated({"train": {"total_images": 1_200, "batch_size": 20}, "optim": {"schedule": "constant"}})
    assert scheduled_rate(recipe.optim.learning_rate, recipe.optim, TrainingProgress(100, 20, 1_200)) == recipe.optim.learning_rate
    assert list(long_warmup(recipe)) == []


def test_a_changed_length_says_what_becomes_of_the_learning_rate():
    recipe = load_recipe("adm-digits").updated({"train": {"total_images": 50_000}})
    longer = recipe.updated({"train": {"total_images": 100_000}})
    assert accept_changes(recipe, longer, directory="runs/x") == [
        "train.total_images changed from 50000 to 100000; the cosine fall of the learning rate is stretched to the new length, "
        "and its warm-up is now 6,400 images"
    ]
    ended = {"optim": {"decay_end": 40_000}}
    (line,) = accept_changes(recipe.updated(ended), longer.updated(ended), directory="runs/x")
    assert line == "train.total_images changed from 50000 to 100000; its warm-up is now 6,400 images", "the fall ends where it did"
    constant = load_recipe("adm-cifar10")
    (line,) = accept_changes(constant, constant.updated({"train": {"total_images": 100_000}}), directory="runs/x")
    assert line == "train.total_images changed from 64000000 to 100000"


def test_weights_and_checkpoints_are_chosen_by_name(trained):
    assert trained.checkpoints()[-3:] == [12, 18, 24]
    raw, average = (trained.tensors(weights=w) for w in ("raw", "ema-0.999"))
    assert any(not torch.equal(raw[name], average[name]) for name in raw)
    default = trained.tensors()
    assert all(torch.equal(default[name], average[name]) for name in average)
    loaded = trained.load(weights="raw", device="cpu").state_dict()
    assert all(torch.equal(loaded[name], raw[name]) for name in raw)
    best = trained.find_checkpoint("best")
    scores = {
        line["images"]: line["validation/denoise/loss"]
        for line in read_metrics(trained.directory / "metrics.jsonl")
        if "validation/denoise/loss" in line
    }
    assert best == min(scores, key=scores.__getitem__)
    assert trained.find_checkpoint("12") == 12
    for which in ("13", "newest", "-12", "1.2"):
        with pytest.raises(CheckpointError, match=f'no checkpoint "{which}" in .*; there are latest, best, '):
            trained.find_checkpoint(which)
    with pytest.raises(ConfigError, match='weights: got "ema-0.99", expected one of raw, ema-0.999; did you mean "ema-0.999"'):
        trained.load(weights="ema-0.99")


def test_the_same_command_goes_on(tmp_path):
    start = config(train={"total_images": BATCH}, optim={"schedule": "constant"})
    train(start, tmp_path / "run", device="cpu")
    train(start.updated({"train": {"total_images": 2 * BATCH}, "optim": {"learning_rate": 5e-4}}), tmp_path / "run", device="cpu")
    assert list_checkpoints(tmp_path / "run/checkpoints") == [6, 12]
    log = (tmp_path / "run/log.txt").read_text()
    assert "train.total_images changed from 6 to 12" in log and "optim.learning_rate changed from 0.001 to 0.0005" in log
    assert json.loads((tmp_path / "run/config.json").read_text())["optim"]["learning_rate"] == 5e-4
    assert [line.get("resumed_at") for line in map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())].count(6) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"network": {"num_channels": 128}}}, r"model.network.num_channels: got 128, but the run in .* was started with 32"),
        ({"train": {"seed": 4}}, "train.seed: got 4, but the run in .* was started with 0"),
        ({"data": {"image_size": 16}}, "data.image_size: got 16"),
        ({"optim": {"name": "adam"}}, "optim.name: got 'adam'"),
    ],
)
def test_a_setting_that_may_not_change_is_refused(trained, change, message):
    before = sorted(path.name for path in trained.directory.rglob("*"))
    with pytest.raises(ConfigError, match=message):
        train(trained.config.updated(change), trained.directory, device="cpu")
    assert sorted(path.name for path in trained.directory.rglob("*")) == before


def test_another_recipe_says_whose_run_it_is(trained):
    root = trained.directory
    with pytest.raises(ConfigError) as caught:
        train(shrunk("glow-digits"), root, recipe="glow-digits", device="cpu")
    assert str(caught.value) == (
        f"--run: {root} holds a run of adm-digits, not of glow-digits: triptych train {root} goes on with it; for glow-digits give another "
        f"--run (with --init-from {root}, to begin with its weights)"
    )


def test_settings_of_the_sampler_and_the_log_may_change(trained):
    changed = trained.config.updated({"model": {"sampling": {"eta": 0.5}}, "log": {"every": 3}, "data": {"workers": 1}})
    run = train(changed, trained.directory, device="cpu")
    assert run.config.log.every == 3


def test_what_cannot_be_built_leaves_nothing_behind(tmp_path):
    with pytest.raises(ConfigError, match=r"model.network.num_channels"):
        train(config(model={"network": {"num_channels": 40}}), tmp_path / "run", device="cpu")
    with pytest.raises(DataError, match="nowhere"):
        train(config(data={"path": str(tmp_path / "nowhere"), "source": "folder"}), tmp_path / "run", device="cpu")
    with pytest.raises(ConfigError, match="model.class_conditional"):
        train(config(data={"labels": "none"}), tmp_path / "run", device="cpu")
    with pytest.raises(ConfigError, match="optim.phases: got the phase 'nobody'"):
        train(config(optim={"phases": [{"phase": "nobody", "eps": 1e-6}]}), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_counts_at_an_anchor_size_are_those_of_one_process(tmp_path):
    asked = shrunk("glow-digits").updated(
        {
            "model": {"init_images": 10},
            "data": {"anchor_size": 16, "image_size": 8},
            "train": {"batch_size": 6, "microbatch": 2, "total_images": 48},
            "optim": {"warmup_images": 60},
        }
    )
    plain = asked.rescaled(3)
    assert (plain.train.batch_size, plain.train.microbatch, plain.train.total_images) == (6 * 4 * 3, 2 * 4, 48)
    assert (plain.model.init_images, plain.optim.warmup_images, plain.data.anchor_size) == (10 * 4, 60 * 4, None)
    small = asked.updated({"data": {"image_size": 32}}).rescaled(2)  # a quarter of 6, 2 and 10, cut off, and at least 1
    assert (small.train.batch_size, small.train.microbatch, small.model.init_images, small.optim.warmup_images) == (2, 1, 2, 10)
    assert asked.updated({"data": {"image_size": 64}}).rescaled(2).model.init_images == 2  # one image has no variance
    assert plain.rescaled(5) == plain
    run = train(asked, tmp_path / "run", device="cpu")
    assert run.config == asked.rescaled(1) and run.checkpoints()[-1] == 48
    again = train(asked.updated({"train": {"total_images": 72}}), tmp_path / "run", device="cpu")
    assert again.checkpoints()[-1] == 72, "the same command goes on"


def test_the_page_says_that_a_run_was_begun_again_before_its_first_step(trained, tmp_path, monkeypatch):
    place, pages = shutil.copytree(trained.directory, tmp_path / "run"), []

    def ended(loop: Loop, stop: object) -> None:
        pages.append((place / "report.html").read_text())
        raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "run", ended)
    with pytest.raises(KeyboardInterrupt):
        train(trained.config.updated({"train": {"total_images": 48}, "log": {"report": True}}), place, device="cpu")
    assert "begun again" in pages[0] and "(50 %)" in pages[0]


@pytest.mark.slow
def test_a_randomized_seed_is_recorded_and_kept(tmp_path):
    wish = config(train={"randomized_seed": True, "total_images": BATCH})
    first = train(wish, tmp_path / "a", device="cpu").config.train.seed
    assert first != train(wish, tmp_path / "b", device="cpu").config.train.seed
    assert train(wish.updated({"train": {"total_images": 2 * BATCH}}), tmp_path / "a", device="cpu").config.train.seed == first
    assert f"drew seed {first}" in (tmp_path / "a/log.txt").read_text()


def test_a_run_that_has_ended_says_how_it_is_trained_longer(trained, tmp_path):
    place, seen = tmp_path / "run", trained.config.train.total_images
    shutil.copytree(trained.directory, place)
    train(trained.config, place, device="cpu")
    first, *_, now = [line for line in (place / "log.txt").read_text().splitlines() if f"finished: {seen} images seen" in line]
    assert first.endswith(f" in this start; the run is in {trained.directory}")
    assert now.endswith(f"{place}; it had been trained to its end, and --train.total-images {2 * seen} trains it longer")


def test_init_from_takes_what_fits_and_names_the_rest(trained, tmp_path):
    other = config(data={"channels": 3}, train={"total_images": BATCH})
    run = train(other, tmp_path / "run", init_from=trained.directory, device="cpu")
    log = (tmp_path / "run/log.txt").read_text()
    assert "starts from the weights of" in log
    assert "init-from: network.input_blocks.0.0.weight starts anew: its shape was [32, 1, 3, 3], now it is [32, 3, 3, 3]" in log
    assert "network.time_embed.0.weight" not in log
    name = "network.input_blocks.1.0.in_layers.2.weight"
    assert torch.allclose(run.tensors(weights="raw")[name], trained.tensors()[name], atol=2e-3)  # a step or so of learning rate 1e-3
    assert not torch.allclose(build(other, run.spec).state_dict()[name], trained.tensors()[name], atol=0.02)


def test_init_from_names_ten_tensors_that_do_not_fit(trained):
    model = outline(trained.config.updated({"model": {"network": {"num_channels": 64}}}), trained.spec)
    first, *lines, more = initialize_from(model, trained.directory, trained.spec)
    before = trained.tensors()
    anew = [name for name, tensor in model.state_dict().items() if tensor.shape != before[name].shape]
    assert [line.removeprefix("init-from: ").split()[0] for line in lines] == anew[:10]
    assert more == f"init-from: and {len(anew) - 10} tensors more"
    assert first.endswith(f" images: {len(before) - len(anew)} of {len(before)} tensors fit")


def test_init_from_a_checkpoint(trained):
    model = build(trained.config, trained.spec)
    (line,) = initialize_from(model, trained.directory / f"checkpoints/{2 * BATCH:09d}", trained.spec)
    count = len(model.state_dict())
    assert line == f"starts from the weights of {trained.directory} at {2 * BATCH} images: {count} of {count} tensors fit"
    earlier, newest = (trained.tensors(checkpoint=which) for which in (str(2 * BATCH), "latest"))
    name = "network.input_blocks.1.0.in_layers.2.weight"
    assert torch.equal(model.state_dict()[name], earlier[name]) and not torch.equal(earlier[name], newest[name])


def test_a_length_that_the_run_is_past_is_refused_and_nothing_is_changed(trained):
    before, seen = (trained.directory / "config.json").read_bytes(), trained.config.train.total_images
    for total in (1, seen - 1):
        with pytest.raises(ConfigError, match=rf"train.total_images: got {total}, but the run has seen {seen} images of {seen}; give"):
            train(trained.config.updated({"train": {"total_images": total}}), trained.directory, device="cpu")
    assert (trained.directory / "config.json").read_bytes() == before


@pytest.mark.parametrize(("total", "before", "seen"), [(64, 100, 64), (50, 50, 64), (64, 50, 64), (80, 100, 64), (1, 100, 0)])
def test_lengths_that_a_run_may_have(total, before, seen):
    """Also what it had before: the last batch may have gone past it."""
    refuse_shorter(total, before, seen=seen)


@pytest.mark.parametrize(("total", "before", "seen"), [(63, 100, 64), (49, 50, 64), (31, 32, 32)])
def test_lengths_that_it_may_not_have(total, before, seen):
    with pytest.raises(ConfigError, match=f"got {total}, but the run has seen {seen} images of {before}"):
        refuse_shorter(total, before, seen=seen)


@pytest.mark.parametrize("taken", [2 * BATCH, 4 * BATCH])
def test_every_process_takes_the_checkpoint_of_the_main_one(trained, monkeypatch, taken):
    """The second of two, which finds the latest, where the main one found an earlier one before that was written."""

    class Two(World):
        def from_main(self, value):
            return taken

    monkeypatch.setattr(stored, "open_world", lambda device: Two(1, 2, torch.device("cpu")))
    opened = trained.open_together(Loading(weights="raw"))
    assert opened.origin["images"] == taken
    expected = trained.tensors(checkpoint=str(taken), weights="raw")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in opened.model.state_dict().items())


def test_what_measures_and_encodes_opens_the_checkpoint_of_all_processes(trained, together):
    verbs = [
        lambda: trained.evaluate(["bits-per-dim"], count=2, device="cpu"),
        lambda: trained.score(metrics=["frechet"], features="random", count=4, device="cpu"),
        lambda: coder(trained, device="cpu"),
    ]
    for verb in verbs:
        with pytest.raises(together):
            verb()


def test_a_guide_is_of_the_checkpoint_of_all_processes(trained, monkeypatch):
    def taken(self, which, weights, world):
        assert (which, weights) == ("latest", None)
        raise CheckpointError("together")

    monkeypatch.setattr(stored.StoredRun, "loaded_together", taken)
    model = trained.load(device="cpu")
    settings = model.sampling.updated({"guidance_scale": 2.0})
    with pytest.raises(CheckpointError, match="together"):
        guided(model, trained, guide=None, guide_with=trained.directory, settings=settings, world=World(0, 2, torch.device("cpu")))


def test_samples_are_of_the_checkpoint_that_all_processes_take(trained, monkeypatch):
    earlier, latest = (trained.sample(2, checkpoint=str(number), device="cpu").images for number in (2 * BATCH, 4 * BATCH))
    assert not np.array_equal(earlier, latest) and np.array_equal(trained.sample(2, device="cpu").images, latest)
    monkeypatch.setattr(Run, "open_together", lambda self, loading: self.open(replace(loading, checkpoint=str(2 * BATCH))))
    assert np.array_equal(trained.sample(2, device="cpu").images, earlier)


def test_more_samples_than_the_memory_holds_are_refused(trained, tmp_path, monkeypatch):
    side, free = trained.spec.image_size, 10**6
    monkeypatch.setattr(sampling, "available_memory", lambda: free)
    message = rf"count: got {free // side**2 + 1}, but so many images of {side}x{side} pixels take 1 MB of memory, and 1 MB are free"
    with pytest.raises(ConfigError, match=message):
        trained.sample(free // side**2 + 1, out=tmp_path / "out")
    assert not list(tmp_path.iterdir())
    sampling.require_room(free // side**2, trained.spec)
    with pytest.raises(ConfigError):
        sampling.require_room(free // side**2, replace(trained.spec, channels=3))
    with pytest.raises(ConfigError):
        sampling.require_room(free // side**2, replace(trained.spec, width=2 * side))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")  # every process has all images
    sampling.require_room(free // side**2 // 4, trained.spec)
    with pytest.raises(ConfigError, match="take 250 KB in each of 4 processes, 1 MB of memory, and 1 MB are free"):
        sampling.require_room(free // side**2 // 4 + 1, trained.spec)
    monkeypatch.setattr(sampling, "available_memory", lambda: None)
    sampling.require_room(10**12, trained.spec)


@pytest.mark.parametrize(("ending", "longest", "rows"), [(".jpg", 65500, 1092), (".webp", 16383, 273)])
def test_a_grid_that_its_format_cannot_hold_is_refused_before_it_is_drawn(trained, tmp_path, monkeypatch, ending, longest, rows):
    """Five classes in turn are five columns; a row of images of 8 pixels takes 60."""
    out = tmp_path / f"a{ending}"
    save_picture(np.zeros((longest, 1, 1), np.uint8), out)
    with pytest.raises(OSError):  # of its library
        save_picture(np.zeros((longest + 1, 1, 1), np.uint8), out)
    out.unlink()
    monkeypatch.setattr(sampling, "draw", lambda *given: pytest.fail("it was drawn"))
    message = rf"a grid of {5 * rows} images would have 312x{60 * rows + 12} pixels, and {ending} holds {longest:,} a side; end the name in"
    with pytest.raises(DataError, match=message):
        trained.sample(5 * rows, labels=range(5), out=out, device="cpu")
    assert not list(tmp_path.iterdir())
    sampling.check_sheet(out, trained.spec, count=5 * rows - 5, columns=5)


@pytest.mark.parametrize("columns", [None, 3])
def test_the_size_of_a_grid_is_known_before(tmp_path, monkeypatch, columns):
    images = np.zeros((11, 30, 20, 1), np.uint8)
    write_samples(tmp_path / "a.png", Samples(images, None), columns=columns)
    with Image.open(tmp_path / "a.png") as sheet:
        size = sheet.size
    spec = DataSpec(image_size=30, width=20, channels=1)
    for limit, fits in ((max(size), True), (max(size) - 1, False)):
        monkeypatch.setitem(sampling._LONGEST_SIDE, ".webp", limit)
        with nullcontext() if fits else pytest.raises(DataError, match=f"would have {size[0]}x{size[1]} pixels"):
            sampling.check_sheet(tmp_path / "a.webp", spec, count=11, columns=columns)


@pytest.mark.slow
def test_samples_are_written_in_every_form(trained, tmp_path):
    kept = trained.sample(7, seed=3, labels=[3, 7], batch_size=4, device="cpu")
    assert kept.labels.tolist() == [3, 7, 3, 7, 3, 7, 3]
    trained.sample(7, seed=3, labels=["3", "7"], batch_size=3, device="cpu", out=tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["arr_0"].shape == (7, 8, 8, 1) and arrays["arr_0"].dtype == np.uint8
        assert arrays["arr_1"].tolist() == kept.labels.tolist() and arrays["arr_1"].dtype == np.int64
        assert np.abs(arrays["arr_0"].astype(int) - kept.images).max() <= 1
    trained.sample(7, seed=3, labels=[3, 7], device="cpu", out=tmp_path / "folder")
    assert len(list((tmp_path / "folder").glob("*.png"))) == 7
    assert json.loads((tmp_path / "folder/dataset.json").read_text())["labels"][1] == ["000001.png", 7]
    with Image.open(tmp_path / "folder/000002.png") as picture:
        assert np.abs(np.asarray(picture).astype(int) - kept.images[2, ..., 0]).max() <= 1
    trained.sample(7, seed=3, device="cpu", out=tmp_path / "grid.png")
    for name in ("grid.jpg", "grid.jpeg", "grid.webp"):
        trained.sample(7, seed=3, device="cpu", out=tmp_path / name)
        with Image.open(tmp_path / "grid.png") as one, Image.open(tmp_path / name) as other:
            assert other.format == ("WEBP" if name.endswith("webp") else "JPEG")
            apart = np.asarray(one.convert("L")).astype(int) - np.asarray(other.convert("L"))
            assert np.abs(apart).mean() < 3 if other.format == "JPEG" else not apart.any()
    assert (tmp_path / "grid.png").exists() and not list(tmp_path.glob(".*"))
    assert not np.array_equal(trained.sample(2, seed=4, labels=[3], device="cpu").images, kept.images[:2])


@pytest.mark.slow
def test_an_interrupted_long_sampling_goes_on(trained, tmp_path, monkeypatch):
    whole = trained.sample(9, seed=5, batch_size=2, device="cpu")

    def progress(done, total):
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained.sample(9, seed=5, batch_size=2, device="cpu", out=tmp_path / "a.npz", progress=progress)
    again = []
    trained.sample(9, seed=5, batch_size=2, device="cpu", out=tmp_path / "a.npz", progress=lambda *now: again.append(now))
    assert again[0] == (4, 9) and again[-1] == (9, 9) and again == sorted(again)  # four were there
    assert len(again) > 4  # a batch tells of its steps
    with np.load(tmp_path / "a.npz") as arrays:
        assert np.abs(arrays["arr_0"].astype(int) - whole.images).max() <= 1
    other = []
    trained.sample(9, seed=6, batch_size=9, device="cpu", out=tmp_path / "a.npz", progress=lambda *now: other.append(now))
    assert other[0] == (0, 9) and other[-1] == (9, 9)  # pieces of another seed are not taken up


@pytest.mark.parametrize(("limit", "validated"), [(3, True), (1, True), (0, False)])
def test_more_processes_than_held_out_images_validate_them(limit: int, validated: bool) -> None:
    config = shrunk("adm-digits")
    config = replace(config, train=replace(config.train, validate_images=limit))
    data, world = config.data.open(), World(0, 4, torch.device("cpu"))
    assert (_validation(build(config, data.spec), data, config, world, {}) is not None) == validated


@pytest.mark.parametrize(("order", "seen"), [("even", [0, 3, 6, 9]), ("by-name", [0, 1, 2, 3])])
def test_a_validation_sees_images_of_all_that_are_held_out(
    order: str, seen: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"val/{k:02}.png" for k in range(12)]
    images = {"path": str(write_folder(tmp_path, ["train/a.png", *names])), "order": order, "channels": 1, "enlarge": True}
    config = shrunk("adm-digits").updated({"data": images, "model": {"class_conditional": False}, "train": {"validate_images": 4}})
    data, looked_at = config.data.open(), list[str]()

    def noted(images: ImageSet, **_: object) -> list[object]:
        looked_at.extend(Path(images.key(k)).name for k in range(len(images)))
        return []

    monkeypatch.setattr(callables, "evaluation_batches", noted)
    monkeypatch.setattr(callables, "validation_loss", lambda *_, **__: {})
    validate = _validation(build(config, data.spec), data, config, World(0, 1, torch.device("cpu")), {})
    assert validate is not None and validate(lambda done, total: None) == {}
    assert looked_at == [f"{k:02}.png" for k in seen]


def test_a_class_that_is_called_by_a_number_is_meant_by_its_name() -> None:
    """A folder 10 comes before a folder 2. Python's numbers are numbers of classes, and so is a text that is no name."""
    spec = DataSpec(image_size=8, channels=1, num_classes=4, class_names=("1", "10", "2", "3"))
    given = ["1", "10", "2", "3", 1, "0"]
    assert list(label_list(4, spec, count=6, given=given)) == [0, 1, 2, 3, 1, 0]


def test_an_archive_of_something_else_is_kept(trained, tmp_path) -> None:
    np.savez(tmp_path / "mine.npz", arr_0=np.zeros(3), mu=np.zeros(3))
    before = (tmp_path / "mine.npz").read_bytes()
    with pytest.raises(DataError, match=r"cannot write .*mine\.npz: it is there, and no such command made it; choose another --out"):
        trained.sample(2, device="cpu", out=tmp_path / "mine.npz")
    assert (tmp_path / "mine.npz").read_bytes() == before
    for seed in (1, 2):
        trained.sample(2, seed=seed, device="cpu", out=tmp_path / "ours.npz")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"labels": [10]}, ConfigError, "labels: got 10, expected 0 to 9"),
        ({"labels": ["seven"]}, ConfigError, "labels: unknown class 'seven'"),
        ({"labels": ["12"]}, ConfigError, "labels: got 12, expected 0 to 9"),
        ({"labels": []}, ConfigError, "labels: got an empty list"),
        ({"out": "a.gif"}, DataError, "samples are written as .png"),
        ({"count": 0}, ConfigError, "count: got 0"),
        ({"batch_size": 0}, ConfigError, "batch_size: got 0"),
        ({"checkpoint": "7"}, CheckpointError, 'no checkpoint "7"'),
    ],
)
def test_bad_requests_are_refused(trained, arguments, error, message):
    with pytest.raises(error, match=message):
        trained.sample(**({"count": 2, "device": "cpu"} | arguments))


def test_where_only_an_average_is_damaged_the_other_weights_are_named(trained: Run, tmp_path: Path) -> None:
    shutil.copytree(trained.directory, tmp_path / "run")
    for average in (tmp_path / "run/checkpoints").glob("*/ema-*.safetensors"):
        average.write_bytes(average.read_bytes()[:-8])
    run = open_run(tmp_path / "run")
    with (
        pytest.warns(UserWarning, match="ema-"),
        pytest.raises(CheckpointError, match="(can|cannot) be read; the weights without an average can be read: --weights raw$"),
    ):
        run.sample(1, device="cpu")
    assert len(run.sample(1, weights="raw", device="cpu").images) == 1


@pytest.mark.parametrize("name", ["other.png", "photo.JPG", "cats/0.webp", "000002.png"])
def test_a_folder_with_other_images_is_not_mixed_with_samples(trained, tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=f"already holds {name}, which would be mixed with the new samples"):
        trained.sample(2, device="cpu", out=tmp_path)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("000001.png", "000001.png is there already, and no such command made it; choose another --out, or remove it"),
        ("dataset.json", "already holds dataset.json, which would be mixed with the new samples"),
    ],
)
def test_a_file_that_is_no_sample_is_not_replaced(trained, tmp_path, name, why):
    (tmp_path / name).write_text("mine")
    with pytest.raises(DataError, match=why):
        trained.sample(2, device="cpu", out=tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_samples_replace_those_of_an_earlier_command(trained, tmp_path):
    out = tmp_path / "samples"
    trained.sample(2, device="cpu", seed=1, out=out)
    (out / "notes.txt").write_text("mine")
    first = {path.name: path.read_bytes() for path in out.glob("*.png")}
    trained.sample(3, device="cpu", out=out)
    assert sorted(first) == ["000000.png", "000001.png"] and all((out / name).read_bytes() != image for name, image in first.items())
    assert {path.name for path in out.glob("*.png")} == {"000000.png", "000001.png", "000002.png"}
    with pytest.raises(DataError, match=r"already holds 000002\.png"):
        trained.sample(2, device="cpu", out=out)
    (out / "000002.png").unlink()
    trained.sample(2, device="cpu", out=out)
    labels = out / "dataset.json"
    assert labels.is_file()
    write_samples(out, Samples(np.zeros((2, 8, 8, 1), np.uint8), None))
    assert not labels.exists(), "which would name other samples"
    trained.sample(2, device="cpu", out=out)
    assert labels.is_file()


def test_labels_that_the_first_version_wrote_go_with_its_samples(trained, tmp_path):
    out = tmp_path / "samples"
    out.mkdir()
    for name in ("000000.png", "labels.json"):
        (out / name).write_text("{}")
    mark(out, ["000000.png", "labels.json"], request="samples")
    trained.sample(1, device="cpu", out=out)
    assert {path.name for path in out.iterdir()} == {"000000.png", "dataset.json", STAMP}


def test_the_classes_of_samples_in_a_folder_are_read(trained, tmp_path):
    trained.sample(3, labels=[7, 2, 5], device="cpu", out=tmp_path / "made")
    assert trained.encode(tmp_path / "made", device="cpu").labels.tolist() == [7, 2, 5]
    pictures = open_pictures(tmp_path / "made")
    assert pictures.labels is not None and pictures.labels.tolist() == [7, 2, 5] and not pictures.notes


@pytest.mark.parametrize("name", ["run", "photos"])
def test_a_place_in_a_run_is_apart_from_it(trained, tmp_path, name):
    """Where `check_place` lets it be; photos are a folder that is read."""
    if name == "run":
        files.check_apart(trained.directory / "mine.png", trained.directory)
        return
    (tmp_path / name).mkdir()
    with pytest.raises(DataError, match="it lies in .*photos, which is read"):
        files.check_apart(tmp_path / name / "mine.png", tmp_path / name)


def test_a_file_that_is_read_is_known_by_its_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.npz").touch()
    with pytest.raises(DataError, match="it is the file that is read"):
        files.check_apart(tmp_path / "a.npz", "~/a.npz")


def test_a_place_that_cannot_be_written_is_refused_before_the_weights_are_read(trained, tmp_path, monkeypatch):
    from triptych.runs.stored import StoredRun

    def refused(*given: object) -> None:
        raise AssertionError("the weights were read")

    monkeypatch.setattr(StoredRun, "_read", refused)
    (tmp_path / "file").write_bytes(b"")
    for call in (trained.sample, trained.edit):
        with pytest.raises(DataError, match=r"cannot write .*file is a file"):
            call(*((2,) if call == trained.sample else ("latents.npz",)), out=tmp_path / "file" / "x.png", device="cpu")


def test_unlabelled_models_take_no_labels(tmp_path):
    run = train(shrunk("adm-cifar10").updated({"train": {"total_images": BATCH}}), tmp_path / "run", device="cpu")
    with pytest.raises(ConfigError, match="trained without labels"):
        run.sample(1, labels=[1], device="cpu")
    assert run.sample(1, device="cpu").labels is None


def test_a_checkpoint_of_another_model_is_refused(trained, tmp_path):
    document = json.loads((trained.directory / "config.json").read_text())
    document["model"]["network"]["num_channels"] = 128
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(document))
    (other / "checkpoints").symlink_to(trained.directory / "checkpoints")
    with pytest.raises(CheckpointError, match=r"of another model: network\.\S+ has shape"):
        open_run(other).load(device="cpu")
    with pytest.raises(CheckpointError, match="no run in"):
        open_run(tmp_path / "nothing")


def test_a_training_says_why_none_of_its_checkpoints_can_be_read(trained: Run, tmp_path: Path) -> None:
    shutil.copytree(trained.directory, tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").glob("*/model.safetensors"):
        file.write_bytes(file.read_bytes()[:-4])
    said = (
        r"^\S+model\.safetensors is damaged or cut short: .*; (none of the \d checkpoints|the only checkpoint) in \S+ can(not)? be read: "
        r"put a copy of one back, or move \S+/run/checkpoints away, and the same command begins again at 0 images$"
    )
    with pytest.raises(CheckpointError, match=said):
        train(trained.config, tmp_path / "run", device="cpu")


def test_a_training_says_that_the_weights_of_a_damaged_checkpoint_can_be_read(trained: Run, tmp_path: Path) -> None:
    shutil.copytree(trained.directory, tmp_path / "a run")
    for file in (tmp_path / "a run" / "checkpoints").glob("*/optimizer.safetensors"):
        file.write_bytes(file.read_bytes()[:-4])
    said = r"begins again at 0 images; its weights can be read: another --run with --init-from '\S+/a run' begins with them$"
    with pytest.raises(CheckpointError, match=said):
        train(trained.config, tmp_path / "a run", device="cpu")


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_used(tmp_path):
    start = config(train={"checkpoint_every": BATCH, "total_images": 3 * BATCH}, optim={"schedule": "constant"})
    train(start, tmp_path / "run", device="cpu")
    unbroken = load_checkpoint(checkpoint_path(tmp_path / "run/checkpoints", 18)).hashes
    file = tmp_path / "run/checkpoints/000000018/model.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.warns(UserWarning, match=r"000000018.*model.safetensors.*the one before it is used"):
        assert open_run(tmp_path / "run").sample(1, device="cpu").images.shape == (1, 8, 8, 1)
    train(start, tmp_path / "run", device="cpu")
    log = (tmp_path / "run/log.txt").read_text()
    assert "model.safetensors" in log and "goes on at 12 images" in log
    assert load_checkpoint(checkpoint_path(tmp_path / "run/checkpoints", 18)).hashes == unbroken


def send_when_trained(metrics: Path, name: str, processes: Callable[[], list[int]], *, lines: int) -> None:
    """Sends the signal to these processes once there are so many lines of metrics; nothing is saved before the first step."""

    def send() -> None:
        while not metrics.is_file() or metrics.read_text().count("\n") < lines:
            time.sleep(0.05)
        for process in processes():
            os.kill(process, getattr(signal, name))

    threading.Thread(target=send, daemon=True).start()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_saves_and_ends_normally(tmp_path, name):
    start = config(train={"total_images": 10**9}, log={"every": BATCH})
    send_when_trained(tmp_path / "run/metrics.jsonl", name, lambda: [os.getpid()], lines=1)
    run = train(start, tmp_path / "run", device="cpu")
    assert len(run.checkpoints()) == 1 and run.checkpoints()[0] > 0
    assert (
        f"stopped by {name} at {run.checkpoints()[0]} images and saved; the same command goes on" in (run.directory / "log.txt").read_text()
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_to_every_process_of_a_job_saves_too(tmp_path, name):
    """Loader processes wait for the training to end them."""
    start = config(train={"total_images": 10**9}, data={"workers": 2}, log={"every": BATCH})
    sent: list[int] = []

    def processes() -> list[int]:
        sent.extend(child.pid for child in multiprocessing.active_children() if child.pid is not None)
        return [*sent, os.getpid()]

    # After a few steps both loader processes are there and have given batches.
    send_when_trained(tmp_path / "run/metrics.jsonl", name, processes, lines=5)
    run = train(start, tmp_path / "run", device="cpu")
    assert len(sent) == 2 and not multiprocessing.active_children()
    assert f"stopped by {name} at {run.checkpoints()[0]} images and saved" in (run.directory / "log.txt").read_text()


def test_bf16_and_compile_train(tmp_path):
    run = train(config(train={"precision": "bf16", "total_images": BATCH}), tmp_path / "run", device="cpu")
    line = read_metrics(run.directory / "metrics.jsonl")[0]
    exact = train(config(train={"total_images": BATCH}), tmp_path / "exact", device="cpu")
    assert line["denoise/loss"] == pytest.approx(read_metrics(exact.directory / "metrics.jsonl")[0]["denoise/loss"], rel=0.02)


@pytest.mark.slow
def test_a_run_keeps_the_precision_that_suited_where_it_began(tmp_path, monkeypatch):
    def logged() -> str:
        return (tmp_path / "run/log.txt").read_text()

    auto = config(train={"precision": "auto", "total_images": BATCH})
    monkeypatch.setattr("triptych.runs.beginning.native_precision", lambda device: "bf16")
    half = train(auto, tmp_path / "run", device="cpu")
    assert half.config.train.precision == "bf16"
    assert "train.precision auto: bf16 (this cpu multiplies bf16 natively)" in logged() and "seed 0, bf16" in logged()
    exact = train(config(train={"precision": "float32", "total_images": BATCH}), tmp_path / "exact", device="cpu")
    moved, exactly = half.tensors(weights="raw"), exact.tensors(weights="raw")
    assert not all(torch.equal(moved[name], exactly[name]) for name in moved), "it was not trained in bf16"

    monkeypatch.setattr("triptych.runs.beginning.native_precision", lambda device: "float32")
    longer = replace(auto, train=replace(auto.train, total_images=2 * BATCH))
    assert train(longer, tmp_path / "run", device="cpu").config.train.precision == "bf16"
    assert "train.precision auto: bf16 (as in this run)" in logged() and "precision changed" not in logged()
    told = replace(longer, train=replace(longer.train, precision="float32", total_images=3 * BATCH))
    assert train(told, tmp_path / "run", device="cpu").config.train.precision == "float32"
    assert "train.precision changed from 'bf16' to 'float32'" in logged()
    assert train(auto, tmp_path / "other", device="cpu").config.train.precision == "float32"


@pytest.mark.slow
def test_a_profile_is_written(tmp_path):
    run = train(config(train={"profile_steps": 2, "total_images": 6 * BATCH}), tmp_path / "run", device="cpu")
    trace = json.loads((run.directory / "profile/trace.json").read_text())
    assert any("convolution" in event.get("name", "") for event in trace["traceEvents"])
    assert "aten::" in (run.directory / "profile/table.txt").read_text()


def test_two_trainings_do_not_share_a_directory(tmp_path):
    from triptych.engine.run_directory import RunDirectory

    directory = RunDirectory(tmp_path / "run")
    directory.create()
    with directory.lock(), pytest.raises(CheckpointError, match="trains in"):
        train(replace(config()), tmp_path / "run", device="cpu")


def test_a_full_disk_stops_the_sampling_and_keeps_what_was_drawn(trained, tmp_path, monkeypatch):
    write, calls = files.write_npz, []

    def full(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*arguments)

    monkeypatch.setattr(files, "write_npz", full)
    with pytest.raises(DataError, match=r"cannot write .*a.npz: .*(disk|space).*the same command goes on"):
        trained.sample(4, batch_size=2, device="cpu", out=tmp_path / "a.npz")
    again = []
    trained.sample(4, batch_size=2, device="cpu", out=tmp_path / "a.npz", progress=lambda *now: again.append(now))
    assert again[0] == (2, 4) and again[-1] == (4, 4)


def test_a_full_disk_at_a_grid_stops_the_run_and_keeps_its_checkpoint(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("triptych.runs.callables.write_grid", full)
    start = config(train={"sample_every": BATCH, "checkpoint_every": BATCH, "sample_count": 4})
    with pytest.raises(CheckpointError, match=r"cannot write .*000000006.png: .*(disk|space)"):
        train(start, tmp_path / "run", device="cpu")
    assert list_checkpoints(tmp_path / "run/checkpoints") == [6]


def test_init_from_is_said_to_be_used_where_it_is(trained, tmp_path):
    run = tmp_path / "run"
    for total, used in ((BATCH, True), (2 * BATCH, False)):
        if used:  # a start that was cut short: the run is there, its first checkpoint is not
            train(config(train={"total_images": BATCH}), run, device="cpu")
            shutil.rmtree(run / "checkpoints")
        (run / "log.txt").write_text("")
        train(config(train={"total_images": total}), run, init_from=trained.directory, device="cpu")
        log = (run / "log.txt").read_text()
        assert ("--init-from is not used" in log) is not used and ("starts from the weights of" in log) is used


def test_a_place_that_cannot_be_written_is_found_before_the_work(trained, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setattr("triptych.runs.sampling.draw", None)
    with pytest.raises(DataError, match=r"cannot write .*file/a\.npz: .*file is a file; choose another --out"):
        trained.sample(2, device="cpu", out=file / "a.npz")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(DataError, match=r"cannot write .*a\.npz: no permission to write in .*; choose another --out"):
        trained.sample(2, device="cpu", out=tmp_path / "deep/er/a.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
