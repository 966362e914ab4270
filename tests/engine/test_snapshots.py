"""Snapshots of averages by length: when they are written, and that they are those of the run whatever happened to it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.engine.distributed_worker import write_snapshots
from tests.engine.test_statistics import Normed
from tests.engine.toys import Denoiser, make_loop, resumed, run, seeded, stop_after
from tests.processes import run_together
from triptych.core.errors import CheckpointError, ConfigError, RunError
from triptych.engine import checkpoint, snapshots
from triptych.engine.checkpoint import checkpoint_path, list_checkpoints, load_checkpoint
from triptych.engine.config import TrainConfig
from triptych.engine.distributed import World
from triptych.engine.ema import Average
from triptych.engine.lengths import exponent_of
from triptych.engine.schedule import refuse_impossible

LENGTHS = (0.05, 0.2)
SETTINGS: dict[str, Any] = {"ema_rates": (0.9,), "ema_lengths": LENGTHS, "snapshot_every": 16}
"""Of runs of 64 images in batches of 8."""


class Crash(Exception):
    pass


def crashing_at(loop: Any, images: int) -> None:
    """The process dies in the step that begins at so many images."""
    iteration = loop._iteration

    def until(batches: Any) -> None:
        if loop.images_seen >= images:
            raise Crash
        iteration(batches)

    loop._iteration = until
    with pytest.raises(Crash):
        run(loop)


def hashes(root: Path) -> dict[int, dict[str, str]]:
    folder = root / "snapshots"
    return {number: load_checkpoint(checkpoint_path(folder, number)).hashes for number in list_checkpoints(folder)}


def test_a_disk_that_is_full_for_one_of_several_processes_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*args: Any, **options: Any) -> None:
        raise checkpoint.Unwritten("No space left on device (free some space and start again)")

    monkeypatch.setattr(snapshots, "write_folder", full)
    loop = make_loop(seeded(Denoiser), tmp_path, **SETTINGS)
    with pytest.raises(CheckpointError, match=r"cannot write snapshot .*: No space left on device \(free some space and start again\)$"):
        run(loop)


def test_snapshots_are_the_averages_at_multiples(tmp_path: Path):
    run(make_loop(seeded(Denoiser), tmp_path, **SETTINGS | {"snapshot_every": 20, "checkpoint_every": 8, "keep_last": 99}))
    found = hashes(tmp_path)
    assert list(found) == [24, 40, 64], "at the first step that reaches or passes 20, 40, 60"
    for number, files in found.items():
        stored = load_checkpoint(checkpoint_path(tmp_path / "checkpoints", number)).hashes
        assert files == {f"ema-length-{length}": stored[f"ema-length-{length}"] for length in LENGTHS}
    assert len({digest for files in found.values() for digest in files.values()}) == 6


def test_a_run_that_stops_and_goes_on_has_the_snapshots_of_an_unbroken_one(tmp_path: Path):
    run(make_loop(seeded(Denoiser), tmp_path / "unbroken", **SETTINGS))
    for stopped in (16, 24):
        root = tmp_path / f"stopped-{stopped}"
        first = make_loop(seeded(Denoiser), root, **SETTINGS)
        assert first.run(stop_after(first, stopped)) is False
        assert list(hashes(root)) == [16], "also where the stop comes in the step of a snapshot"
        run(resumed(root, Denoiser(), **SETTINGS))
        assert hashes(root) == hashes(tmp_path / "unbroken") and len(hashes(root)) == 4


def test_a_snapshot_of_a_past_that_was_given_up_goes_away(tmp_path: Path):
    settings = SETTINGS | {"checkpoint_every": 32}
    crashing_at(make_loop(seeded(Denoiser), tmp_path, **settings), 56)
    before = hashes(tmp_path)
    assert list(before) == [16, 32, 48]
    for length in ("0.1", "0.15"):  # what `triptych average` kept
        checkpoint_path(tmp_path / "averages" / f"ema-length-{length}", 16).mkdir(parents=True)
        checkpoint_path(tmp_path / "averages" / f"ema-length-{length}", 48).mkdir()
    torn = tmp_path / "snapshots" / ".tmp-000000064-99"
    torn.mkdir()
    crashing_at(resumed(tmp_path, Denoiser(), **settings), 40)
    assert list(hashes(tmp_path)) == [16, 32] and not torn.exists()
    assert sorted(path.name for path in (tmp_path / "averages").glob("*/*")) == ["000000016"] * 2
    run(resumed(tmp_path, Denoiser(), **settings))
    assert {number: hashes(tmp_path)[number] for number in before} == before, "made again as they were"


def test_a_run_that_begins_again_begins_without_snapshots(tmp_path: Path):
    crashing_at(make_loop(seeded(Denoiser), tmp_path, **SETTINGS), 24)
    assert list(hashes(tmp_path)) == [16]
    crashing_at(make_loop(seeded(Denoiser), tmp_path, **SETTINGS), 8)
    assert not hashes(tmp_path)


def test_a_disk_that_is_full_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "replace_folder", full)
    with pytest.raises(CheckpointError, match=r"cannot write snapshot .*snapshots/000000016: No space left on device"):
        run(make_loop(seeded(Denoiser), tmp_path, **SETTINGS))
    assert not list((tmp_path / "snapshots").iterdir()) and not list((tmp_path / "checkpoints").iterdir())


def test_an_average_that_is_not_finite_ends_the_training(tmp_path: Path):
    loop = make_loop(seeded(Denoiser), tmp_path, **SETTINGS)
    loop.averages[-1].update = lambda images_seen, images: loop.averages[-1].tensors["network.0.bias"].fill_(math.nan)
    said = rf"network.0.bias of {loop.averages[-1].settings.name}.safetensors has values that are not finite, .* at 16 images seen; nothing"
    with pytest.raises(RunError, match=said):
        run(loop)
    assert not hashes(tmp_path)


def test_in_half_precision_what_is_learned_is_rounded(tmp_path: Path):
    class Frequencies(Denoiser):
        def __init__(self) -> None:
            super().__init__()
            self.network.register_buffer("frequencies", torch.linspace(1, 2, 7))

    for precision in ("float32", "fp16"):
        run(make_loop(seeded(Frequencies), tmp_path / precision, **SETTINGS | {"snapshot_precision": precision, "snapshot_every": 64}))
    exact, half = (load_checkpoint(tmp_path / name / "snapshots/000000064").files["ema-length-0.2"] for name in ("float32", "fp16"))
    assert torch.equal(exact["network.frequencies"], half["network.frequencies"])
    assert all(torch.equal(half[name], exact[name].half()) for name in exact if name != "network.frequencies")


def test_weights_too_large_for_half_precision_are_refused(tmp_path: Path):
    model = seeded(Denoiser)
    with torch.no_grad():
        next(model.parameters()).fill_(1e5)
    loop = make_loop(model, tmp_path, **SETTINGS | {"snapshot_precision": "fp16"})
    message = r"network.0.weight of ema-length-0.05.safetensors .* as torch.float16: set --train.snapshot-precision float32"
    with pytest.raises(CheckpointError, match=message):
        run(loop)
    assert not hashes(tmp_path)


def test_an_average_that_the_run_did_not_have_from_its_start_says_when_it_began(tmp_path: Path):
    alone = SETTINGS | {"ema_lengths": (0.05,)}
    first = make_loop(seeded(Denoiser), tmp_path, **alone)
    first.run(stop_after(first, 24))
    assert "begun" not in load_checkpoint(checkpoint_path(tmp_path / "checkpoints", 24)).info
    second = resumed(tmp_path, Denoiser(), **SETTINGS)
    second.run(stop_after(second, 40))
    run(resumed(tmp_path, Denoiser(), **SETTINGS))
    for folder, numbers in (("snapshots", (32, 48, 64)), ("checkpoints", (40, 64))):
        for number in numbers:
            assert load_checkpoint(checkpoint_path(tmp_path / folder, number)).info["begun"] == {"ema-length-0.2": 24}
    assert "begun" not in load_checkpoint(checkpoint_path(tmp_path / "snapshots", 16)).info


def test_an_overflow_does_not_hold_an_average_by_length_back(tmp_path: Path):
    """Its profile goes by the images seen; one by its rate waits for the next step."""
    loop = make_loop(seeded(Denoiser), tmp_path, **SETTINGS)
    batches = loop.callables.draw(0)
    for _ in range(3):
        loop._iteration(batches)
    (updater,) = loop.updaters.values()
    updater.scale.accept = lambda norm: False
    weights, before = [average.tensors["network.0.weight"].clone() for average in loop.averages], loop.model.network[0].weight.clone()
    loop._iteration(batches)
    assert torch.equal(loop.model.network[0].weight, before)
    rates = [1.0, *((24 / 32) ** (exponent_of(length) + 1) for length in LENGTHS)]
    for average, old, rate in zip(loop.averages, weights, rates, strict=True):
        torch.testing.assert_close(average.tensors["network.0.weight"], rate * old + (1 - rate) * before)


def test_models_whose_averages_look_at_images_have_none():
    settings = TrainConfig(total_images=64, batch_size=8, ema_lengths=LENGTHS, snapshot_every=16)
    with pytest.raises(ConfigError, match=r"train.snapshot_every: got 16, but averages of Normed take statistics from images"):
        refuse_impossible(Normed(), settings, World(0, 1, torch.device("cpu")))
    refuse_impossible(seeded(Denoiser), settings, World(0, 1, torch.device("cpu")))


@pytest.mark.slow
def test_one_of_several_processes_writes(tmp_path: Path):
    write_snapshots(tmp_path / "1")
    run_together(2, write_snapshots, tmp_path / "2")
    one, two = ({n: load_checkpoint(tmp_path / f"{count}/snapshots/{n:09d}").files for n in (16, 32)} for count in (1, 2))
    assert sorted(path.name for path in (tmp_path / "2").glob("*-by-*")) == ["16-by-0", "32-by-0"]
    for number, files in one.items():
        for stem, tensors in files.items():
            for name, tensor in tensors.items():
                torch.testing.assert_close(two[number][stem][name], tensor, rtol=1e-9, atol=1e-9)


def test_the_copies_in_an_average_are_not_learned():
    model = seeded(Denoiser)
    model.network.register_buffer("constant", torch.ones(2))
    learned = Average(model, TrainConfig(total_images=1, batch_size=1, ema_lengths=(0.1,)).all_averages[1]).learned
    assert learned == {name for name, tensor in model.named_parameters() if isinstance(tensor, nn.Parameter)}


def test_nothing_is_removed_of_the_present_and_the_past(tmp_path: Path):
    for number in (16, 32, 48):
        checkpoint_path(tmp_path, number).mkdir()
    assert snapshots.give_up_after(tmp_path, 32) == [f"removed what {tmp_path} had of 48 images: the run goes on from 32"]
    assert list_checkpoints(tmp_path) == [16, 32]
    assert snapshots.give_up_after(tmp_path, 32) == snapshots.give_up_after(tmp_path / "none", 32) == []
    assert snapshots.give_up_after(tmp_path, 0) == [f"removed what {tmp_path} had of 16 to 32 images (2 of them): the run goes on from 0"]
