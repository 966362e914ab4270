"""A run that did not fit into memory: what config.json, the log and a resume say of its microbatch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.shrink import BATCH, light
from triptych.cli.main import main
from triptych.core.batch import Batch
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.model import LossTerms
from triptych.diffusion.adm import ADM
from triptych.engine.checkpoint import checkpoint_path, load_checkpoint
from triptych.engine.microbatch import DoesNotFit
from triptych.runs import open_run, train
from triptych.runs.document import RunDocument
from triptych.runs.plan_probe import Task, measure

Sizes = list[int]


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Sizes]]:
    """Says how many images at once the gradient of an ADM may be taken of; gives the sizes that were tried."""
    loss, sizes, rooms = ADM.loss, Sizes(), [BATCH]

    def bounded(model: ADM, phase: Any, batch: Batch, rng: Any) -> LossTerms:
        terms = loss(model, phase, batch, rng)
        if terms.loss.requires_grad:
            sizes.append(len(batch))
        if terms.loss.requires_grad and len(batch) > rooms[0]:
            raise MemoryError("so little")
        return terms

    monkeypatch.setattr(ADM, "loss", bounded)

    def given(count: int) -> Sizes:
        rooms[0] = count
        sizes.clear()
        return sizes

    yield given


def config(iterations: int = 2, **settings: Any) -> Any:
    wanted = {"total_images": iterations * BATCH, "sample_count": 0, "validate_images": 0, "checkpoint_every": None} | settings
    return light("adm-digits").updated({"train": wanted})


def documented(root: Path) -> tuple[Any, Any]:
    """The microbatch in config.json, and what was asked for in its place."""
    document = json.loads((root / "config.json").read_text())
    return document["train"]["microbatch"], document.get("asked")


@pytest.mark.slow
def test_a_run_goes_on_with_the_microbatch_that_it_found(tmp_path, room):
    root, sizes = tmp_path / "run", room(3)
    train(config(), root, device="cpu")
    assert sizes == [BATCH, 3, 3, 3, 3] and documented(root) == (3, {"train.microbatch": None})
    log = (root / "log.txt").read_text()
    (line,) = [line for line in log.splitlines() if "fit into memory" in line]
    assert line.endswith(
        "warning: 6 images at once did not fit into memory in phase denoise after 0 images (so little): the step was taken with 3 at once, "
        "and so are those that follow"
    )
    sizes = room(2)  # less than it was
    train(config(3), root, device="cpu")
    assert sizes == [3, 2, 2, 2] and documented(root) == (2, {"train.microbatch": None})
    assert "train.microbatch 3, which this run found to fit into memory" in (root / "log.txt").read_text()
    sizes = room(BATCH)
    train(open_run(root).config.updated({"train": {"total_images": 4 * BATCH}}), root, device="cpu")  # its own settings
    assert sizes == [2, 2, 2] and documented(root) == (2, {"train.microbatch": None})
    sizes = room(BATCH)
    train(config(5, microbatch=4), root, device="cpu")  # another wish
    assert sizes == [4, 2] and documented(root) == (4, None)
    assert "train.microbatch changed from 2 to 4" in (root / "log.txt").read_text()


@pytest.mark.slow
def test_a_run_on_auto_is_the_run_that_was_given_the_number(tmp_path, room):
    sizes = room(4)
    train(config(microbatch="auto"), tmp_path / "auto", device="cpu")
    assert documented(tmp_path / "auto") == (3, {"train.microbatch": "auto"}) and sizes[0] == BATCH and sizes[-4:] == [3, 3, 3, 3]
    assert "train.microbatch auto: 3 images at once fit into memory" in (tmp_path / "auto/log.txt").read_text()
    train(config(microbatch=3), tmp_path / "given", device="cpu")
    ends = [load_checkpoint(checkpoint_path(tmp_path / name / "checkpoints", 2 * BATCH)).hashes for name in ("auto", "given")]
    assert ends[0] == ends[1]
    sizes = room(BATCH)
    train(config(3, microbatch="auto"), tmp_path / "auto", device="cpu")
    assert sizes == [3, 3], "what was found is not looked for again"


def test_what_cannot_be_divided_ends_in_one_line(tmp_path, room, capsys):
    room(0)
    sizes = "--train.batch-size 2 --train.total-images 4 --model.network.num-channels 32 --model.network.num-res-blocks 1 --data.workers 0"
    assert main(["train", "adm-digits", "--run", str(tmp_path / "run"), "--device", "cpu", *sizes.split()]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    expected = "triptych: error: --train.microbatch: 1 image at once does not fit into memory (so little), and fewer there cannot be; lower"
    assert line.startswith(expected)


def test_a_plan_measures_the_size_that_it_asks_for_or_none(room):
    sizes = room(1)
    with pytest.raises(DoesNotFit, match="2 images at once do not fit"):
        measure(Task(config().to_dict(), "cpu", (2, 4), 2, 0.01))
    assert sizes == [2]


def test_what_was_asked_for_is_checked():
    document = RunDocument(config(), open_spec(), None).with_microbatch(3)
    assert RunDocument.from_dict(document.to_dict()) == document
    smaller = document.with_microbatch(2)
    assert (smaller.config.train.microbatch, smaller.asked) == (2, {"train.microbatch": None}), "what was asked for first"
    for wrong in ([], {"train.seed": 3}):
        with pytest.raises(CheckpointError, match="asked: expected nothing but train.microbatch"):
            RunDocument.from_dict(document.to_dict() | {"asked": wrong})


def test_what_was_asked_for_counts_as_long_as_it_is_asked_for_again():
    found = RunDocument(config(), open_spec(), None).with_microbatch(3)
    again, other, same = (config().updated({"train": {"microbatch": size}}) for size in (None, 2, 3))
    assert found.with_found(again) == found.config and found.with_found(other) == other and found.with_found(same) == found.config
    assert found.asked_still(found.config) == {"train.microbatch": None} and found.asked_still(other) == {}


def open_spec() -> Any:
    return config().data.open().spec


def test_numbers_below_one_are_refused():
    with pytest.raises(ConfigError, match=r"microbatch: got 0, expected at least 1, or auto, or nothing"):
        config(microbatch=0)
