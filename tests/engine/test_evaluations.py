"""Evaluations in the loop: what they write, what they never change, and how they choose the best checkpoint."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.engine.toys import Denoiser, make_loop, metrics, resumed, run, seeded
from triptych.core.errors import ConfigError, DataError, RunError, Stopped
from triptych.engine import checkpointer, metric_log
from triptych.engine.callables import Criterion, Evaluated, Evaluation, chosen_by
from triptych.engine.checkpoint import checkpoint_path, list_checkpoints, load_checkpoint, load_newest, save_checkpoint
from triptych.engine.config import LogConfig, TrainConfig
from triptych.engine.distributed import World
from triptych.engine.progress import Watch
from triptych.engine.signals import made_by_all
from triptych.engine.state import read_state

LOG = LogConfig(every=64)
LOWER, HIGHER = Criterion("kid of 9 samples", "kid"), Criterion("recall of 9 samples", "recall", -1)


def found(values: Sequence[float], name: str) -> Callable[[Watch], Evaluated]:
    """An evaluation that finds one value after the other."""
    left = iter(values)
    return lambda watch: Evaluated({"other": 0.0, name: next(left)}, "9 samples")


def evaluated(root: Path, values: Sequence[float], criterion: Criterion | None = LOWER, make: Any = make_loop, **settings: Any) -> Any:
    evaluation = Evaluation(found(values, "kid" if criterion is None else criterion.figure), criterion)
    every = {"evaluate_every": 8, "checkpoint_every": 16, "keep_last": 1, "log": LOG} | settings
    return make(*((seeded(Denoiser), root) if make is make_loop else (root, Denoiser())), evaluation=evaluation, **every)


def text(root: Path) -> list[str]:
    return [line[20:] for line in (root / "log.txt").read_text().splitlines()]


@pytest.mark.parametrize("criterion", [LOWER, HIGHER])
def test_the_best_checkpoint_is_chosen_by_a_figure(tmp_path, criterion):
    values = [math.nan, 2.0, 1.0, math.nan, 1.0, 4.0, 2.0, 2.0]  # at 24 the lowest, at 48 the highest
    loop = evaluated(tmp_path, values, criterion, validate=lambda watch: {"loss": -time.monotonic()}, validate_every=8)
    run(loop)
    images, score = (24, 1.0) if criterion is LOWER else (48, 4.0)
    assert loop.best == {"score": score, "images": images, "by": criterion.by}
    assert list_checkpoints(tmp_path / "checkpoints") == [images, 64]
    assert load_checkpoint(checkpoint_path(tmp_path / "checkpoints", 64), files=()).info["best"] == loop.best
    name = f"evaluation/{criterion.figure}"
    assert [line["images"] for line in metrics(tmp_path) if math.isnan(line.get(name, 0.0))] == [8, 32]


def test_without_a_criterion_the_validation_chooses(tmp_path):
    losses = iter([2.0, 1.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0])
    loop = evaluated(tmp_path, [8.0 - k for k in range(8)], None, validate=lambda watch: {"loss": next(losses)}, validate_every=8)
    run(loop)
    assert loop.best == {"score": 1.0, "images": 16, "by": "validation"}


def test_a_resume_keeps_the_best(tmp_path):
    run(evaluated(tmp_path, [3.0, 1.0, 2.0, 2.0], total_images=32))
    loop = evaluated(tmp_path, [2.0, 2.0, 0.5, 2.0], make=resumed)
    assert loop.best == {"score": 1.0, "images": 16, "by": LOWER.by}
    run(loop)
    assert loop.best == {"score": 0.5, "images": 56, "by": LOWER.by}
    assert not any("chosen by" in line for line in text(tmp_path))


def test_a_best_checkpoint_that_is_gone_gives_way(tmp_path):
    run(evaluated(tmp_path, [3.0, 1.0, 2.0, 2.0], total_images=32))
    shutil.rmtree(checkpoint_path(tmp_path / "checkpoints", 16))
    loop = evaluated(tmp_path, [2.0, 2.0, 1.5, 2.0], make=resumed)
    assert loop.best is None
    run(loop)
    assert loop.best == {"score": 1.5, "images": 56, "by": LOWER.by}
    assert "the best checkpoint, at 16 images, is no longer there: what is measured next takes its place" in text(tmp_path)


def test_whether_the_best_checkpoint_is_there_is_asked_of_the_main_process_alone(tmp_path):
    class Second(World):
        """A process that sees the folder otherwise than the main one, as on the disk of a network."""

        def on_main(self, act: Callable[[], Any]) -> Any:
            return [16, 32]

    run(evaluated(tmp_path, [3.0, 1.0, 2.0, 2.0], total_images=32))
    shutil.rmtree(checkpoint_path(tmp_path / "checkpoints", 16))
    loop = evaluated(tmp_path, [], make=resumed, world=Second(0, 1, torch.device("cpu")))
    assert loop.best == {"score": 1.0, "images": 16, "by": LOWER.by}


def test_a_checkpoint_that_was_gone_on_from_outlives_damaged_ones(tmp_path):
    run(evaluated(tmp_path, [], None, evaluate_every=None, total_images=32, keep_last=3))  # none is the best
    for images in list_checkpoints(tmp_path / "checkpoints")[1:]:
        (checkpoint_path(tmp_path / "checkpoints", images) / "model.safetensors").write_bytes(b"")
    loop = evaluated(tmp_path, [], None, evaluate_every=None, make=resumed, keep_last=1)
    loop.save()
    assert load_newest(tmp_path / "checkpoints", warn=lambda line: None).images_seen == loop.images_seen == 16


def test_damaged_checkpoints_count_for_none_of_those_that_are_kept(tmp_path):
    run(evaluated(tmp_path, [], None, evaluate_every=None, total_images=32, keep_last=2))
    folder = tmp_path / "checkpoints"
    (checkpoint_path(folder, 32) / "model.safetensors").write_bytes(b"")
    loop = evaluated(tmp_path, [], None, evaluate_every=None, make=resumed, keep_last=2, checkpoint_every=40, total_images=40)
    assert loop.images_seen == 16
    run(loop)
    assert list_checkpoints(folder) == [16, 40] and sorted(path.name for path in folder.glob("s*")) == ["superseded-000000032"]


def test_another_criterion_says_so_and_its_first_figure_takes_the_place(tmp_path):
    run(evaluated(tmp_path, [], None, validate=lambda watch: {"loss": -5.0}, evaluate_every=None, total_images=16))
    loop = evaluated(tmp_path, [7.0, 8.0, 9.0], make=resumed, total_images=32)
    run(loop)
    said = "the best checkpoint so far, at 16 images, was chosen by validation; now kid of 9 samples decides, and its first figure"
    assert f"{said} takes the place" in text(tmp_path)
    assert loop.best == {"score": 7.0, "images": 16, "by": LOWER.by}  # of the evaluation that was due where the run went on


def test_a_figure_that_was_measured_otherwise_is_not_taken_from_the_log(tmp_path):
    run(evaluated(tmp_path, [3.0, 1.0], total_images=16))
    loop = evaluated(tmp_path, [7.0, 8.0], Criterion("kid of 20 samples", "kid"), make=resumed, total_images=32)
    run(loop)
    assert loop.best == {"score": 7.0, "images": 24, "by": "kid of 20 samples"}


def test_a_checkpoint_of_an_earlier_version_was_chosen_by_validation():
    assert chosen_by({"score": 1.0, "images": 8}) == "validation"


def test_what_chose_the_best_is_checked_when_a_checkpoint_is_read(tmp_path):
    run(evaluated(tmp_path, [1.0], total_images=8))
    state = checkpoint_path(tmp_path / "checkpoints", 8) / "state.json"
    assert read_state(state)["best"]["by"] == LOWER.by
    state.write_text(state.read_text().replace(f'"{LOWER.by}"', "3"))
    with pytest.raises(Exception, match=r"best is .* expected null, or a score"):
        read_state(state)


def test_an_evaluation_changes_nothing_of_the_training(tmp_path):
    def measure(watch: Watch) -> Evaluated:
        torch.rand(3)
        return Evaluated({"kid": 1.0}, "9 samples")

    loops = [
        make_loop(seeded(Denoiser), tmp_path / name, evaluation=Evaluation(measure), evaluate_every=every)
        for name, every in (("with", 8), ("without", None))
    ]
    assert all(run(loop) for loop in loops)
    ends = [load_checkpoint(checkpoint_path(tmp_path / name / "checkpoints", 64)) for name in ("with", "without")]
    assert ends[0].hashes == ends[1].hashes


def test_it_sees_the_averaged_weights(tmp_path):
    seen = []
    model = seeded(Denoiser)

    def measure(watch: Watch) -> Evaluated:
        seen.append(model.network[0].weight.detach().clone())
        return Evaluated({}, "9 samples")

    loop = make_loop(model, tmp_path, total_images=8, evaluation=Evaluation(measure), evaluate_every=8)
    run(loop)
    assert torch.equal(seen[0], loop.averages[0].tensors["network.0.weight"])
    assert not torch.equal(seen[0], model.network[0].weight)


def test_figures_are_a_line_of_metrics_and_one_of_text_and_take_no_time_of_training(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(metric_log, "time", SimpleNamespace(monotonic=lambda: clock.now, strftime=time.strftime))

    def measure(watch: Watch) -> Evaluated:
        clock.now += 1000
        return Evaluated({"kid": 0.01234, "kid_error": 0.00056, "recall": 0.5}, "9 samples", ("warning: recall is low",))

    loop = make_loop(seeded(Denoiser), tmp_path, total_images=16, evaluation=Evaluation(measure), evaluate_every=8, log=LOG)
    run(loop)
    lines = [line for line in metrics(tmp_path) if "evaluation/kid" in line]
    assert lines == [{"images": n, "evaluation/kid": 0.01234, "evaluation/kid_error": 0.00056, "evaluation/recall": 0.5} for n in (8, 16)]
    assert metric_log.read_metrics(tmp_path / "metrics.jsonl")[-1]["time"] == 0.0
    assert "8/16 images  evaluation 0.0 s, 9 samples: kid 0.01234 ± 0.00056, recall 0.5" in text(tmp_path)
    assert text(tmp_path).count("warning: recall is low") == 2


def test_what_is_measured_has_its_checkpoint_on_the_disk(tmp_path, monkeypatch):
    def slowly(*given: Any, **named: Any) -> Path:
        time.sleep(0.1)
        return save_checkpoint(*given, **named)

    there = []
    monkeypatch.setattr(checkpointer, "save_checkpoint", slowly)
    measure = Evaluation(lambda watch: there.append(list_checkpoints(tmp_path / "checkpoints")[-1:]) or Evaluated({}, "9 samples"))
    every = {"evaluate_every": 8, "checkpoint_every": 8, "checkpoint_writing": "background"}
    run(make_loop(seeded(Denoiser), tmp_path, total_images=24, evaluation=measure, **every))
    assert there == [[8], [16], [24]]


@pytest.mark.parametrize("error", [RunError("the features of image 3 are not finite"), DataError("photos/7.png cannot be read")])
def test_one_that_fails_is_a_line_and_the_training_goes_on(tmp_path, error):
    def measure(watch: Watch) -> Evaluated:
        raise error

    loop = make_loop(seeded(Denoiser), tmp_path, total_images=16, evaluation=Evaluation(measure, LOWER), evaluate_every=16, log=LOG)
    assert run(loop)
    assert loop.best is None and f"warning: no evaluation at 16 images: {error}; the training goes on" in text(tmp_path)


def test_never_means_not_at_the_end_either(tmp_path):
    loop = evaluated(tmp_path, [], evaluate_every=None)
    assert run(loop) and loop.best is None


def test_a_kill_before_the_best_was_written_down_changes_nothing(tmp_path):
    loop = evaluated(tmp_path, [2.0, 1.0], total_images=16)
    save = loop.save

    def killed() -> None:
        if loop.best is not None and loop.best["images"] == 16:
            raise KeyboardInterrupt
        save()

    loop.save = killed
    with pytest.raises(KeyboardInterrupt):
        run(loop)
    again = evaluated(tmp_path, [], make=resumed, total_images=16)  # the figure is in the log
    assert again.best["images"] == 8
    run(again)
    assert load_checkpoint(checkpoint_path(tmp_path / "checkpoints", 16), files=()).info["best"]["images"] == 16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"best_by": "fid", "evaluate_every": 8}, r"best_by: got .?fid.?, expected validation, or one of evaluate_metrics \(frechet, kid"),
        ({"best_by": "kid", "evaluate_every": 8, "evaluate_metrics": ()}, r"one of evaluate_metrics \(which are none\)"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"evaluate_count": 1}, "evaluate_count: got 1, expected at least 2"),
        ({"evaluate_reference": 1}, "evaluate_reference"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig(total_images=8, batch_size=8, **settings)


def test_who_turns_evaluations_off_is_told_the_other_setting_by_its_flag():
    with pytest.raises(ConfigError) as caught:
        TrainConfig(total_images=8, batch_size=8, best_by="kid")
    told = caught.value.renamed(lambda name: {"evaluate_every": "--train.evaluate-every", "best_by": "--train.best-by"}[name])
    reason = "got None, expected a number of images, or --train.best-by validation, which is kid"
    assert str(told) == f"--train.evaluate-every: {reason}"


class Others(World):
    """A world of three processes, two of which made something else."""

    outcomes: tuple[Any, Any] = (1, 1)

    def gather(self, value: Any) -> list[Any]:
        return [value, *self.outcomes]


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    def of(*outcomes: Any) -> World:
        monkeypatch.setattr(Others, "outcomes", outcomes)
        return Others(0, 3, torch.device("cpu"))

    yield of


def test_what_one_process_raises_all_do(others):
    assert made_by_all(others(2, 3), lambda: 1) == [1, 2, 3]
    for fault in (RunError("not finite"), DataError("photos/7.png: damaged")):
        with pytest.raises(type(fault), match=str(fault)):
            made_by_all(others(2, fault), lambda: 1)
    with pytest.raises(Stopped):
        made_by_all(others(Stopped("SIGTERM"), RunError("not finite")), lambda: 1)
