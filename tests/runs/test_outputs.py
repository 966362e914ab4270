"""What a command writes when another one writes the same, and when it is killed: whole, or not there."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.interop.networks import diffusion_weights
from tests.runs.glow import moved_run, pixels
from tests.runs.translators import mirror_run, opened, plain_data, write_images
from triptych.core.errors import CheckpointError, ConfigError, DataError, RunError
from triptych.core.files import temporary_path
from triptych.data.config import DataConfig
from triptych.engine import distributed
from triptych.engine.checkpoint import load_checkpoint, save_checkpoint
from triptych.runs import Run, import_run, open_run, train
from triptych.runs.files import writing

Progress = Callable[..., None]


@dataclass
class Case:
    """A command: what it is called with, and what it writes into a folder."""

    out: str
    act: Callable[[Path, Progress], Any]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tests here fork their process: a copy has none of the threads that PyTorch computes with, and would wait for them for ever."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return moved_run(tmp_path_factory.mktemp("flow") / "run")


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return mirror_run(tmp_path_factory.mktemp("mirror") / "run", plain_data())


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given")
    write_images(folder, ["a.png", "deep/b.png", "c.png"], size=(16, 16), channels=1)
    return folder


@pytest.fixture(params=["sample .npz", "sample folder", "evaluate", "translate .npz", "translate folder", "encode", "decode"])
def case(request: pytest.FixtureRequest, flow: Run, translator: Run, given: Path) -> Case:
    def encode(out: Path, progress: Progress) -> None:
        flow.coder(batch_size=2, device="cpu", progress=progress).encode(pixels(4), out=out)

    def decode(out: Path, progress: Progress) -> None:
        latents = flow.encode(pixels(4), device="cpu")
        flow.coder(batch_size=2, device="cpu", progress=progress).decode(latents, out=out)

    def sample(out: Path, progress: Progress) -> None:
        flow.sample(4, batch_size=2, device="cpu", out=out, progress=progress)

    def evaluate(out: Path, progress: Progress) -> None:
        flow.evaluate(count=4, batch_size=2, device="cpu", out=out, progress=progress)

    def translate(out: Path, progress: Progress) -> None:
        translator.translate(given, batch_size=2, device="cpu", out=out, progress=progress)

    cases = {
        "sample .npz": Case("a.npz", sample),
        "sample folder": Case("a", sample),
        "evaluate": Case("a.json", evaluate),
        "translate .npz": Case("a.npz", translate),
        "translate folder": Case("a", translate),
        "encode": Case("a.npz", encode),
        "decode": Case("a.npz", decode),
    }
    return cases[request.param]


def nothing(*given: object) -> None:
    pass


def contents(folder: Path) -> dict[str, Any]:
    """What all files in a folder hold, by name; raises for one that is not whole."""
    return {str(path.relative_to(folder)): content(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def content(path: Path) -> Any:
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: array.tolist() for name, array in arrays.items()}
    if path.suffix == ".png":
        return opened(path).tolist()
    document = json.loads(path.read_text())
    document.pop("seconds", None)
    return document


def test_of_two_commands_with_one_output_the_second_is_refused(case: Case, tmp_path: Path) -> None:
    (tmp_path / "both").mkdir()
    refused: list[str] = []

    def meanwhile(*done: int) -> None:
        if not refused and done[0]:
            with pytest.raises(DataError) as caught:
                case.act(tmp_path / "both" / case.out, nothing)
            refused.append(str(caught.value))

    case.act(tmp_path / "both" / case.out, meanwhile)
    (line,) = refused
    assert line.startswith(f"another command (process {os.getpid()} on ") and "\n" not in line
    assert line.endswith(f") writes {tmp_path / 'both' / case.out}: wait until it ends, or choose another --out")
    case.act(tmp_path / "alone" / case.out, nothing)
    assert contents(tmp_path / "both") == contents(tmp_path / "alone")


def test_what_a_run_keeps_is_not_mixed_with_what_is_made_of_it(case: Case, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for part in ("checkpoints/000000008", "samples"):
        (run / part).mkdir(parents=True)
    (run / "config.json").write_text("{}")
    places = [run / "checkpoints" / case.out, run / "samples" / case.out]
    places += {"": [run, run / "checkpoints", run / "evaluations"], ".json": [run / "config.json"]}.get(Path(case.out).suffix, [])
    there = sorted(run.rglob("*"))
    for place in places:
        with pytest.raises(DataError) as caught:
            case.act(place, nothing)
        another = f"{run}/mine{place.suffix}"
        assert str(caught.value) == f"cannot write {place}: the run {run} keeps its own files there; choose another --out, as {another}"
        assert sorted(run.rglob("*")) == there
    case.act(Path(another), nothing)
    assert Path(another).exists()


def test_pieces_that_vanish_are_an_error_and_no_image_of_chance(flow: Run, tmp_path: Path) -> None:
    def removed(*_: float) -> None:
        for piece in tmp_path.glob(".a.npz.partial-*/000000002-*.npz"):
            piece.unlink()

    with pytest.raises(RunError, match=r"the pieces 2 to 3 of 4 are gone; the same command goes on"):
        flow.sample(4, batch_size=2, device="cpu", out=tmp_path / "a.npz", progress=removed)
    assert not (tmp_path / "a.npz").exists()
    again: list[tuple[float, float]] = []
    flow.sample(4, batch_size=2, device="cpu", out=tmp_path / "a.npz", progress=lambda *now: again.append(now))
    assert again == [(2, 4), (4, 4)] and [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_on_a_full_disk_what_is_there_is_whole_and_the_same_command_goes_on(case: Case, tmp_path: Path, monkeypatch) -> None:
    """The disk is full at each of the moments when something has to be on it."""
    case.act(tmp_path / "unbroken" / case.out, nothing)
    expected, wait, moment = contents(tmp_path / "unbroken"), os.fsync, 0
    while True:
        left = moment

        def full(descriptor: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            wait(descriptor)

        folder = tmp_path / f"full{moment}"
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            try:
                case.act(folder / case.out, nothing)
            except DataError as error:
                assert str(error).startswith(f"cannot write {folder / case.out}: No space left on device (free some space and start again)")
        for path in visible(folder):
            assert content(path) == expected[str(path.relative_to(folder))], (moment, path)
        case.act(folder / case.out, nothing)
        assert contents(folder) == expected, moment
        if left >= 0:
            break
        moment += 1
    assert moment


OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod")


def killed_at(operation: int, act: Callable[[], object], folder: Path) -> bool:
    """Whether a process that does `act` was killed at an operation on the files of a folder, or had fewer."""
    child = os.fork()
    if child == 0:
        left = operation

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            if event in OPERATIONS and isinstance(arguments[0], str | os.PathLike) and str(folder) in os.fspath(arguments[0]):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def visible(folder: Path) -> Iterator[Path]:
    """The files that are for the user."""
    return (
        path for path in folder.rglob("*") if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


@pytest.mark.slow
def test_killed_at_any_moment_what_is_there_is_whole_and_the_same_command_goes_on(case: Case, tmp_path: Path) -> None:
    case.act(tmp_path / "unbroken" / case.out, nothing)
    expected = contents(tmp_path / "unbroken")
    operation = 0
    while True:
        folder = tmp_path / f"killed{operation}"
        was_killed = killed_at(operation, lambda folder=folder: case.act(folder / case.out, nothing), folder)
        for path in visible(folder):
            assert content(path) == expected[str(path.relative_to(folder))], (operation, path)
        if not was_killed:
            break
        case.act(folder / case.out, nothing)
        assert contents(folder) == expected, operation
        operation += 4 if operation > 4 else 1
    assert operation > 4


FLAGS = "--image_size 16 --num_channels 32 --num_res_blocks 1 --channel_mult 1,2 --attention_resolutions 8 --num_heads 2 --class_cond True "
FLAGS += "--resblock_updown True --learn_sigma True"


@pytest.mark.slow
def test_an_import_that_is_killed_is_whole_or_done_again(tmp_path: Path) -> None:
    torch.save(diffusion_weights(classes=10), tmp_path / "model.pt")
    operation, cut_short, expected = 0, 0, None
    while True:
        folder = tmp_path / f"run{operation}"
        was_killed = killed_at(operation, lambda folder=folder: import_run(tmp_path / "model.pt", folder, flags=FLAGS), folder)
        if (folder / "config.json").exists():
            run = open_run(folder)
        else:
            if (folder / "checkpoints" / "000000000").exists():
                cut_short += 1
                with pytest.raises(CheckpointError, match="has checkpoints but no config.json"):
                    train(run.config, folder, device="cpu")
            run = import_run(tmp_path / "model.pt", folder, flags=FLAGS)
            assert not [path for path in folder.rglob("*") if ".tmp-" in path.name], operation
        found = {name: tensor.double().sum().item() for name, tensor in run.tensors().items()}
        expected = expected or found
        assert found == expected, operation
        if not was_killed:
            break
        operation += 4
    assert operation > 10 and cut_short


def test_weights_that_are_not_finite_are_refused_by_name(flow: Run, tmp_path: Path) -> None:
    """A checkpoint such as earlier versions wrote."""
    shutil.copytree(flow.directory, tmp_path / "run")
    (number,) = flow.checkpoints()
    path = tmp_path / "run/checkpoints" / f"{number:09d}"
    stored = load_checkpoint(path)
    name = next(iter(stored.files["model"]))
    stored.files["model"][name].view(-1)[0] = math.nan
    save_checkpoint(path.parent, images_seen=number, files=stored.files, info=stored.info)
    run = open_run(tmp_path / "run")
    with pytest.raises(CheckpointError, match=rf"{number:09d} cannot be used: {name} of model.safetensors has values that are not finite"):
        run.sample(1, checkpoint=str(number), device="cpu")
    with pytest.warns(UserWarning, match=name), pytest.raises(CheckpointError, match="the only checkpoint in .* cannot be read$"):
        run.sample(1, device="cpu")


def test_a_run_whose_checkpoints_are_gone_says_that_it_begins_again(flow: Run, tmp_path: Path) -> None:
    shutil.copytree(flow.directory, tmp_path / "run")
    log = (tmp_path / "run/log.txt").read_text()
    shutil.rmtree(tmp_path / "run/checkpoints")
    train(flow.config, tmp_path / "run", device="cpu")
    said = "has figures of a training, but no checkpoint to go on from: it begins again at 0 images"
    assert said not in log and (tmp_path / "run/log.txt").read_text().count(said) == 1


def test_nothing_is_no_run_and_no_path() -> None:
    with pytest.raises(CheckpointError, match="got '', expected the directory of a run"):
        open_run("")
    with pytest.raises(ConfigError, match="path: got '', expected a path, or nothing"):
        DataConfig(path="")


def test_a_start_of_training_removes_what_killed_ones_left(flow: Run, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(flow.directory, run)
    before = sorted(run.rglob("*"))
    dead = 2**22 + 1  # Linux numbers no process so
    current = temporary_path(run / "config.json").name.replace(f"-{os.getpid()}-", f"-{dead}-")
    for name in (current, f".config.json.{dead}", f"samples/.000000008.png.{dead}", f"samples/{current}"):
        (run / name).touch()
    (run / "checkpoints" / f".tmp-000000008-{dead}").mkdir()
    train(flow.config, run, device="cpu")
    assert sorted(run.rglob("*")) == before


def test_a_place_that_cannot_be_made_is_one_line_for_all_processes(flow: Run, tmp_path: Path, monkeypatch) -> None:
    said: list[object] = []

    class World(distributed.World):
        def from_main(self, value):
            said.append(value)
            return value

    def refuse(*given: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with (
        pytest.raises(DataError, match="cannot write .*: No space left"),
        writing(tmp_path / "a" / "b.npz", world=World(0, 2, torch.device("cpu"))),
    ):
        raise AssertionError
    assert isinstance(said[0], DataError)


def test_what_was_made_is_kept_where_something_was_begun(tmp_path: Path) -> None:
    alone = distributed.World(0, 1, torch.device("cpu"))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError) as before, writing(tmp_path / "file" / "out", world=alone, kept="made"):
        raise AssertionError
    assert str(before.value) == f"cannot write {tmp_path / 'file' / 'out'}: Not a directory"
    goes_on = "No space left on device .*; what was made is kept, and the same command goes on$"
    with pytest.raises(DataError, match=goes_on), writing(tmp_path / "out", world=alone, kept="made"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_best_checkpoint_is_known_though_the_newest_is_damaged(flow: Run, tmp_path: Path) -> None:
    shutil.copytree(flow.directory, tmp_path / "run")
    (number,) = flow.checkpoints()
    path = tmp_path / "run/checkpoints" / f"{number:09d}"
    stored = load_checkpoint(path)
    info = stored.info | {"best": {"score": 1.0, "images": number}}
    for images in (number, number + 8):
        made = save_checkpoint(path.parent, images_seen=images, files=stored.files, info=info)
    (made / "state.json").write_text("{}")
    run = open_run(tmp_path / "run")
    with pytest.warns(UserWarning, match="no format number; the one before it is used"):
        assert run.find_checkpoint("best") == number
