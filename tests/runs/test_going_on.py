"""How a run goes on: from which checkpoint, and where it is."""

from __future__ import annotations

import itertools
import json
import multiprocessing
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.contract.shrink import BATCH, light
from tests.data.pictures import write_folder
from triptych.core.errors import CheckpointError, DataError, RunError
from triptych.data.config import DataConfig
from triptych.data.images import Data
from triptych.data.skipping import read_skip, write_skip
from triptych.engine.loop import Loop
from triptych.engine.run_directory import RunDirectory, list_checkpoints
from triptych.runs import train, training
from triptych.runs.beforehand import refuse_at_start
from triptych.runs.beginning import _with_colours, prepare_directory


class Second:
    """Process 1 of two, and what it does in which order. The main one has found the checkpoint of `images`."""

    size, is_main = 2, False

    def __init__(self, images: int | None) -> None:
        self.images, self.done = images, list[str]()

    def on_main(self, act: object) -> int | None:
        return self.images

    def barrier(self) -> None:
        self.done.append("waited")


@pytest.mark.parametrize("images", [16, None])
def test_all_have_read_before_any_process_goes_on(images: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main process then renames what an interrupted write left, and another one may be reading that."""
    (tmp_path / "checkpoints" / ".old-000000016").mkdir(parents=True)
    world: Any = Second(images)

    def loaded(folder: Path) -> str:
        world.done.append(folder.name)
        return "checkpoint"

    monkeypatch.setattr(training, "load_checkpoint", loaded)
    assert training._newest_checkpoint(RunDirectory(tmp_path), world, []) == (None if images is None else "checkpoint")
    assert world.done == ([] if images is None else [".old-000000016"]) + ["waited"]


def test_the_main_process_tells_of_one_that_cannot_be_read_before_the_others_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checkpoints" / "000000016").mkdir(parents=True)
    world: Any = Second(16)
    world.on_main = lambda act: act()
    with pytest.raises(CheckpointError, match="the only checkpoint in .* cannot be read: put a copy of one back"):
        training._newest_checkpoint(RunDirectory(tmp_path), world, [])
    assert world.done == []


def test_a_run_that_was_removed_since_it_was_read_is_not_begun_anew(tmp_path: Path) -> None:
    """It would be trained from its beginning, without a word and without a lock."""
    start: Any = SimpleNamespace(stored=object(), keeps_list=False)
    with ExitStack() as stack, pytest.raises(CheckpointError, match="was removed or renamed"):
        prepare_directory(RunDirectory(tmp_path / "run"), SimpleNamespace(), start, stack)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("removed", ["checkpoints", "samples"])
def test_nor_one_that_is_removed_while_its_parts_are_looked_for(removed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, make = tmp_path / "run", Path.mkdir
    run.mkdir()
    (run / "config.json").write_text("{}")

    def made(path: Path, *given: Any, **named: Any) -> None:
        if path.name == removed:
            run.rename(tmp_path / "away")
        make(path, *given, **named)

    monkeypatch.setattr(Path, "mkdir", made)
    with pytest.raises(CheckpointError, match="cannot make the run directory"):
        RunDirectory(run).complete()
    assert not run.exists()


@pytest.mark.parametrize("keeps_list", [False, True])
def test_what_killed_starts_left_is_put_in_order(keeps_list: bool, tmp_path: Path) -> None:
    """Temporary files go, a checkpoint whose replacement was cut short has its name again, and the list of bad images lies in the run."""
    directory, bad = RunDirectory(tmp_path / "run"), tmp_path / "bad.json"
    directory.create()
    directory.write_config({"before": 1})
    write_skip(bad, {"a.png": "no image"})
    for name in (".old-000000008", ".tmp-000000016-1"):
        (directory.checkpoints / name).mkdir()
    (directory.root / ".config.json.123").touch()
    (tmp_path / "run/samples").rmdir()  # as somebody may remove it
    document: Any = SimpleNamespace(config=SimpleNamespace(data=SimpleNamespace(skip=str(bad))), to_dict=lambda: {"now": 2})
    start: Any = SimpleNamespace(stored=object(), keeps_list=keeps_list)
    with ExitStack() as stack:
        prepare_directory(directory, document, start, stack)
    assert [path.name for path in directory.checkpoints.iterdir()] == ["000000008"] and directory.samples.is_dir()
    assert not (directory.root / ".config.json.123").exists() and directory.read_config()["now"] == 2
    assert directory.left_out.exists() == (not keeps_list) and (keeps_list or read_skip(directory.left_out) == {"a.png": "no image"})


def test_what_another_start_made_while_images_were_opened_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a scheduler starts a job twice: the lock is free again when the second one comes to it."""
    config = light("adm-digits").updated({"train": {"total_images": BATCH, "validate_images": 0}})
    open_images, others = DataConfig.open, [True]

    def opening(self: DataConfig) -> Data:
        if others:
            others.clear()
            train(config, tmp_path / "run", device="cpu")
        return open_images(self)

    monkeypatch.setattr(DataConfig, "open", opening)
    with pytest.raises(CheckpointError, match="run: a run was begun here meanwhile; the same command goes on with it$"):
        train(config, tmp_path / "run", device="cpu")
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == [f"{BATCH:09d}"]


def test_images_that_changed_meanwhile_are_warned_of(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    write_folder(folder, [f"{k}.png" for k in range(20)])
    data = DataConfig(path=str(folder), image_size=8, channels=1, workers=0)
    config = replace(light("adm-digits-uncond"), data=data).updated({"train": {"total_images": BATCH, "validate_images": 0}})
    log = tmp_path / "run/log.txt"
    for images in (2, 3):
        train(config.updated({"train": {"total_images": images * BATCH}}), tmp_path / "run", device="cpu")
        assert "the images are not those of before" not in log.read_text("utf-8")
    write_folder(folder, ["new.png"])
    train(config.updated({"train": {"total_images": 4 * BATCH}}), tmp_path / "run", device="cpu")
    (line,) = [line for line in log.read_text("utf-8").splitlines() if "the images are not those of before" in line]
    stored = RunDirectory(tmp_path / "run").read_config()["images"]
    assert "warning: " in line and f", now {stored}): some were added, taken away or changed" in line


def test_images_that_were_held_out_are_not_trained_on(tmp_path: Path) -> None:
    """A file beside the folder of all others gives these other names, by which others of them would be held out."""
    folder = write_folder(tmp_path / "images", [f"archive/{kind}/{k}.png" for kind in "ab" for k in range(100)])
    data = DataConfig(path=str(folder), image_size=8, channels=1, workers=0, labels="none", validation_fraction=0.3)
    config = replace(light("adm-digits-uncond"), data=data).updated({"train": {"total_images": BATCH, "validate_images": 0}})
    train(config, tmp_path / "run", device="cpu")
    settings = tmp_path / "run/config.json"
    before, longer = settings.read_text("utf-8"), config.updated({"train": {"total_images": 2 * BATCH}})
    write_folder(folder, ["cover.png"])
    said = r"images: images that this run held out, such as archive/[ab]/\d+\.png, would be trained on now, .*give that folder"
    refused = partial(refuse_at_start, longer, RunDirectory(tmp_path / "run"), recipe=None, init_from=None, processes=1, of_each_machine=1)
    for start in (lambda: train(longer, tmp_path / "run", device="cpu"), refused):
        with pytest.raises(DataError, match=said):
            start()
    assert settings.read_text("utf-8") == before
    named = longer.updated({"data": {"path": str(folder / "archive")}})
    train(named, tmp_path / "run", device="cpu")
    (folder / "cover.png").unlink()
    write_folder(folder, [f"archive/a/new{k}.png" for k in range(40)])
    train(config.updated({"train": {"total_images": 3 * BATCH}}), tmp_path / "run", device="cpu")


def test_a_run_that_an_earlier_version_began_keeps_the_order_of_its_images(tmp_path: Path) -> None:
    config = light("adm-digits").updated({"train": {"total_images": BATCH}})
    train(config, tmp_path / "run")
    settings = tmp_path / "run" / "config.json"
    document = json.loads(settings.read_text())
    assert document["data"].pop("order") == "even"
    settings.write_text(json.dumps(document))
    run = train(replace(config, train=replace(config.train, total_images=2 * BATCH)), tmp_path / "run")
    assert run.config.data.order == "by-name" and json.loads(settings.read_text())["data"]["order"] == "by-name"
    assert "data.order by-name: validations look at the first held-out images" in (tmp_path / "run" / "log.txt").read_text()


def test_a_run_that_reads_colours_as_they_lie_goes_on_so_where_nothing_else_is_asked_for() -> None:
    """Runs of versions without these settings have both; one of them alone was asked for."""
    plain = light("adm-digits")
    stored, half, other = (
        plain.updated({"data": data})
        for data in ({"background": None, "profiles": "ignore"}, {"background": None}, {"background": "black"})
    )
    config, (note,) = _with_colours(plain, stored)
    assert config == stored and note.startswith("data.background None, data.profiles ignore: ")
    for asked, earlier in ((plain, half), (plain, plain), (other, stored), (half, stored)):
        assert _with_colours(asked, earlier) == (asked, [])


def test_a_training_whose_loader_process_is_killed_in_a_step_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch would raise that in the midst of the step, after which nothing whole is left to save."""
    step, steps = Loop._step, itertools.count(1)

    def killing(*given: Any) -> Any:
        if next(steps) == 3:
            (worker,) = multiprocessing.active_children()
            worker.kill()
        return step(*given)

    monkeypatch.setattr(Loop, "_step", killing)
    config = light("adm-digits-uncond").updated({"train": {"total_images": 20 * BATCH}, "data": {"workers": 1}})
    with pytest.raises(RunError, match=r"^a loader process was killed, .*: lower data.workers"):
        train(config, tmp_path / "run", device="cpu")
    assert (list_checkpoints(RunDirectory(tmp_path / "run").checkpoints) or [0])[-1] >= 3 * BATCH
