"""What a plan says: its arithmetic by hand, and one that is measured."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

from tests.contract.shrink import light, shrunk
from tests.core.test_parent import gone
from triptych.cli import plan as cli
from triptych.cli.main import main
from triptych.core.errors import CheckpointError, ConfigError, DataError
from triptych.core.rng import Rng
from triptych.engine.allocator import return_freed_memory
from triptych.engine.config import TrainConfig
from triptych.engine.distributed import World
from triptych.nn import linear
from triptych.runs import disk, plan_probe, planning, train
from triptych.runs.operations import Operations
from triptych.runs.plan_figures import Memory, Plan, Size, kept_bytes, line_through, rounded, step_seconds, times_due
from triptych.runs.plan_probe import Task, _extrapolated, _loop, _operations, kinds_of_iterations, measure, middle
from triptych.runs.planning import next_size, plan

MEMORY = Memory(fixed=1e9, per_image=1e8, start_bytes=0, free_bytes=10**10, gradient_bytes=5 * 10**8, divisible=True)
PLAN = Plan(
    device="cpu",
    precision="float32",
    parameters={"network": 3, "other": 4},
    operations=1e9,
    training_images=1_000,
    batch=10,
    at_once=10,
    images_per_step=10,
    sizes=(Size(10, (2.0,), (10,), 2 * 10**9),),
    memory=MEMORY,
    step_seconds=2.0,
    extrapolated=False,
    loader_rate=50.0,
    images_seen=0,
    total_images=5_000,
    begin_seconds=5.0,
    grid_seconds=100.0,
    validation_seconds=10.0,
    evaluation_seconds=50.0,
    reference_seconds=40.0,
    counts={"grids": 3, "validations": 2, "evaluations": 0},
    checkpoints_by_images=5,
    checkpoint_seconds=0.01,
    training_waits=True,
    images_to_checkpoint=1_000,
    checkpoint_minutes=30.0,
    checkpoint_bytes=10**6,
    kept_bytes=4 * 10**6,
    free_disk=10**9,
)


def sized(*peaks: tuple[int, int], seconds: tuple[float, ...] = (1.0,)) -> list[Size]:
    return [Size(images, seconds, (images,), peak) for images, peak in peaks]


def test_the_command_hands_on_what_is_asked_and_names_flags(monkeypatch, capsys):
    asked = []

    def planned(config, **given):
        asked.append((config.train.batch_size, given["machines"].processes, given["machines"].within, given["machines"].latency))
        return PLAN

    monkeypatch.setattr(planning, "plan", planned)
    words = ["plan", "adm-digits", "--train.batch-size", "6", "--processes", "2", "--within", "3", "--latency", "7"]
    assert main([*words, "--json"]) == 0 and asked == [(6, 2, 3e9, pytest.approx(7e-6))]
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(PLAN.to_dict()))

    def refused(config, **given):
        raise ConfigError("data.image_size", "got 3")

    monkeypatch.setattr(planning, "plan", refused)
    assert main(words) == 2 and capsys.readouterr().err == "triptych: error: --data.image-size: got 3\n"


def test_times_and_rate_by_hand():
    assert PLAN.rate == 5.0
    assert PLAN.seconds_left == 5 + 500 * 2.0 + 3 * 100 + 2 * 10 + 5 * 0.01
    assert PLAN.seconds_to_checkpoint == 200.0  # of 1,000 images; sooner than half an hour
    assert dataclasses.replace(PLAN, images_to_checkpoint=1).seconds_to_checkpoint == 2.0  # a whole step
    assert dataclasses.replace(PLAN, images_to_checkpoint=None).seconds_to_checkpoint == PLAN.seconds_left
    assert dataclasses.replace(PLAN, images_to_checkpoint=None, checkpoint_minutes=2.0).seconds_to_checkpoint == 120.0
    assert dataclasses.replace(PLAN, images_seen=4_991, counts=dict.fromkeys(PLAN.counts, 0)).seconds_left == 7.05  # a whole step
    assert dataclasses.replace(PLAN, images_seen=5_000).seconds_left == 0.0  # it is done
    evaluated = dataclasses.replace(PLAN, counts=PLAN.counts | {"evaluations": 4})
    assert evaluated.seconds_left == PLAN.seconds_left + 4 * 50 + 40  # one look at the reference


def test_checkpoints_come_by_images_or_by_minutes():
    """Steps, grids and validations take 1,320 s."""
    assert PLAN.checkpoints == 5
    often = dataclasses.replace(PLAN, checkpoint_minutes=2.0, checkpoint_seconds=3.0)
    assert often.checkpoints == 11
    assert often.seconds_around == 320 + 11 * 3 and dataclasses.replace(often, training_waits=False).seconds_around == 320 + 3
    assert dataclasses.replace(PLAN, checkpoint_minutes=None).checkpoints == 5
    assert often.to_dict()["checkpoints"] == 11


def test_the_disk_is_measured_and_nothing_is_left_on_it(tmp_path, monkeypatch):
    times = iter((10.0, 12.0))
    monkeypatch.setattr(disk.time, "perf_counter", lambda: next(times))
    assert disk.seconds_to_write(tmp_path / "runs" / "none", 640 * 2**20) == 20.0  # of a tenth of it
    assert not list(tmp_path.iterdir())


def test_a_disk_that_refuses_counts_as_a_slow_one(tmp_path, monkeypatch):
    def refuse(dir):
        raise OSError

    monkeypatch.setattr(disk.tempfile, "TemporaryFile", refuse)
    assert disk.seconds_to_write(tmp_path, 10**9) == 10.0


def test_a_loader_that_is_slower_sets_the_rate_and_is_warned_of():
    slow = dataclasses.replace(PLAN, loader_rate=2.5)
    assert slow.rate == 2.5 and slow.seconds_left == 5 + 2_000 + 320 + 0.05
    assert [line for line in slow.warnings() if "loader" in line] and not PLAN.warnings()


@pytest.mark.parametrize(("total", "word"), [(9, "0.9 %"), (10, None), (10_000_000, None), (10_001_000, "10,001 times")])
def test_data_too_few_and_too_many_at_the_borders(total, word):
    lines = dataclasses.replace(PLAN, total_images=total).warnings()
    assert lines == [] if word is None else word in lines[0] and len(lines) == 1


def test_clips_are_called_clips(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "measured_apart", lambda task: ANSWER | {"seconds": [1.0], "peak_bytes": task.batches[-1]})
    config = light("vid2vid-maps64").updated({"train": {"total_images": 1_000_000}})
    found = plan(config, directory=tmp_path / "none", device="cpu")
    assert f"of its {found.training_images} clips " in found.warnings()[-1]
    assert f"data            {found.training_images} clips, " in "\n".join(cli.lines_of(found))


def test_a_disk_too_small_and_a_memory_too_small_are_warned_of():
    (disk,) = dataclasses.replace(PLAN, free_disk=3_999_999).warnings()
    assert "4 MB" in disk and "--train.keep-last, --train.keep-every" in disk and "--run" in disk
    assert not dataclasses.replace(PLAN, free_disk=10**6, lying_bytes=3 * 10**6).warnings(), "of four, three are there"
    assert dataclasses.replace(PLAN, free_disk=10**6, lying_bytes=3 * 10**6 - 1).warnings()
    (memory,) = dataclasses.replace(PLAN, memory=dataclasses.replace(MEMORY, free_bytes=1_999_999_999)).warnings()
    assert "--train.microbatch 2" in memory or "smaller" in memory
    roomy = dataclasses.replace(MEMORY, free_bytes=2 * 10**9 + 10**6)
    assert not dataclasses.replace(PLAN, memory=roomy).warnings()
    (memory,) = dataclasses.replace(PLAN, memory=dataclasses.replace(roomy, loader_bytes=2 * 10**6)).warnings()
    assert "takes 2 GB of memory and 2 GB are free" in memory


def test_the_largest_microbatch_by_hand():
    """0.9 of 10 GB, without 1 GB that is fixed and 0.5 GB of gradients that wait, holds 75 images of 0.1 GB."""
    assert MEMORY.largest == 75
    assert dataclasses.replace(MEMORY, whole=False).largest == 80  # of batches that were cut the gradients are measured
    assert dataclasses.replace(MEMORY, divisible=False).largest == 80
    assert dataclasses.replace(MEMORY, group=4).largest == 72
    assert dataclasses.replace(MEMORY, free_bytes=10**9).largest == 0
    assert dataclasses.replace(MEMORY, free_bytes=None).largest is None
    assert dataclasses.replace(MEMORY, per_image=0.0).largest is None
    assert dataclasses.replace(MEMORY, loader_bytes=5 * 10**8).largest == 70


def test_what_did_not_fit_bounds_the_largest():
    """Whatever the line says: a level one, of a single size, says nothing."""
    level = dataclasses.replace(MEMORY, per_image=0.0, most=2)
    assert level.largest == 2 and dataclasses.replace(level, free_bytes=None).largest == 2
    assert dataclasses.replace(MEMORY, most=16).largest == 16 and dataclasses.replace(MEMORY, most=90).largest == 75
    plan = dataclasses.replace(PLAN, memory=level)
    assert plan.warnings() == ["10 images at once do not fit into memory: --train.microbatch 2"]
    shown = "\n".join(cli.lines_of(plan))
    assert "10 images at once do not fit (tried)" in shown and "the largest microbatch that fits is 2" in shown
    assert not dataclasses.replace(PLAN, memory=dataclasses.replace(MEMORY, most=10)).warnings()


def test_large_numbers_have_no_exponent():
    values = {0.0701: "0.0701", 68.64: "68.6", 999.4: "999", 999.6: "1,000", 2309.3: "2,309", 1.5e7: "15,000,000"}
    assert [rounded(value) for value in values] == list(values.values())
    plan = dataclasses.replace(PLAN, loader_rate=23_456.7, operations=1.2345e12, total_images=4_060_000, checkpoints_by_images=4_061)
    shown = "\n".join(cli.lines_of(plan))
    assert all(words in shown for words in ("23,457 images/s", "1,234 GFLOP", "4,060 epochs", "4,061 checkpoints"))
    one = "\n".join(cli.lines_of(dataclasses.replace(PLAN, training_images=1, counts=PLAN.counts | {"grids": 1})))
    assert "data            1 image, 5,000 epochs" in one and "1 grid, 2 validations, 0 evaluations and 5 checkpoints" in one
    assert "e+" not in shown
    assert cli.hours(2000.4 * 86_400) == "2,000 days" and cli.hours(90.0) == "90 seconds"


def test_a_plan_in_words():
    """1,000 s of steps, 320 s of grids and validations; where something is not so, it is not said."""
    assert list(cli.lines_of(PLAN)) == [
        "parameters      7 (network 3, other 4)",
        "operations      1 GFLOP an image, forward and backward, all phases",
        "memory          2 GB with 10 images at once (measured)",
        "                100 MB for each further image",
        "                10 GB are free: the largest microbatch that fits is 75",
        "speed           5 images/s (2 s a step of 10 images)",
        "loader          50 images/s",
        "time            22.1 minutes to 5,000 images; 5.33 minutes of it for 3 grids, 2 validations, 0 evaluations and 5 checkpoints",
        "                3.33 minutes to the next checkpoint",
        "disk            4 MB at most (1 MB a checkpoint); 1 GB free",
        "data            1,000 images, 5 epochs",
        f"not counted     {cli.NOT_COUNTED[True][0]}",
    ]
    memory = dataclasses.replace(MEMORY, start_bytes=10**8, loader_processes=1, loader_bytes=2 * 10**6, divisible=False)
    changes = {"device": "cuda", "memory": memory, "at_once": 20, "images_seen": 1_000, "extrapolated": True}
    lines = list(cli.lines_of(dataclasses.replace(PLAN, **changes)))
    assert lines[2:8] == [
        "memory          2 GB with 10 images at once (measured)",
        "memory          3 GB with 20 images at once (by the line through these)",
        "                100 MB for each further image, 100 MB of it the program itself",
        "                10 GB are free: the largest batch that fits is 79",
        "speed           5 images/s (2 s a step of 10 images, from smaller sizes)",
        "loader          50 images/s by 1 process, which takes 2 MB more",
    ]
    assert lines[8].startswith("time            18.8 minutes from 1,000 to 5,000 images; ") and lines[-1].endswith(", compilation")
    few = dataclasses.replace(PLAN, memory=dataclasses.replace(memory, loader_processes=2, free_bytes=None))
    assert "loader          50 images/s by 2 processes, which take 2 MB more" in cli.lines_of(few)
    assert not any("are free" in line for line in cli.lines_of(few))
    assert [cli.hours(seconds) for seconds in (119.9, 120.0, 7_199.0, 7_200.0, 172_800.0)] == [
        "120 seconds",
        "2 minutes",
        "120 minutes",
        "2 hours",
        "2 days",
    ]


def test_the_peak_may_be_beside_the_steps():
    """2 GB of steps with 10 images; grids or evaluations that take 3 GB are the peak then, but for 25 images the steps are."""
    high = dataclasses.replace(MEMORY, least=3e9)
    assert PLAN.memory_bytes == 2e9 and dataclasses.replace(PLAN, memory=high).memory_bytes == 3e9
    assert [high.at(images) for images in (5, 25)] == [3e9, 3.5e9]


def test_the_line_through_the_peaks():
    fixed, slope = line_through(sized((2, 120), (4, 140), (8, 180)))
    assert (fixed, slope) == pytest.approx((100, 10))
    assert line_through(sized((2, 120))) == (120, 0)
    assert line_through(sized((2, 120), (8, 120), (16, 200))) == (40, 10)  # a few images are not the peak of what has few
    assert line_through(sized((2, 120), (4, 110))) == (120, 0)  # rounding of a small network: no less for more images


def test_seconds_of_a_step():
    whole = [Size(2, (3.0,), (2,), 0), Size(8, (9.0,), (8,), 0)]
    assert step_seconds(whole, at_once=8, batch=8) == (9.0, False)
    assert step_seconds(whole, at_once=16, batch=16) == (pytest.approx(17.0), True)
    assert step_seconds(whole[:1], at_once=4, batch=4) == (6.0, True)
    cut = [Size(4, (3.0, 5.0), (4, 8), 0)]  # a microbatch takes 2 seconds, the optimizer 1
    assert step_seconds(cut, at_once=4, batch=20) == (11.0, False)
    assert step_seconds(cut, at_once=8, batch=16) == (9.0, True)


def test_which_sizes_are_measured():
    quick, slow = sized((2, 0), seconds=(0.1,)), sized((2, 0), seconds=(9.0,))
    assert next_size(quick, 64, group=1, seconds=10) == 32
    assert next_size([*quick, *sized((32, 0))], 64, group=1, seconds=10) == 64
    assert next_size(slow, 64, group=1, seconds=10) == 8  # there have to be two
    assert next_size([*slow, *sized((8, 0), seconds=(9.0,))], 64, group=1, seconds=10) is None
    assert next_size([*slow, *sized((8, 0), seconds=(4.0,))], 64, group=1, seconds=10) == 16
    assert next_size(sized((2, 0)), 2, group=1, seconds=10) is None
    assert next_size(sized((4, 0), seconds=(0.1,)), 12, group=4, seconds=10) == 12  # half of it is measured already
    assert next_size(sized((4, 0), seconds=(0.1,)), 24, group=4, seconds=10) == 12
    assert next_size(sized((2, 0), (8, 0), (16, 0)), 64, group=1, seconds=10) == 64
    assert next_size(sized((2, 0), (8, 0), (16, 0), (32, 0)), 64, group=1, seconds=10) is None  # four are enough


def test_what_is_still_to_come():
    assert times_due(100, 0, 1_000, step=10) == 10
    assert times_due(300, 0, 1_000, step=10) == 4  # and at the end
    assert times_due(300, 650, 1_000, step=50) == 2
    assert times_due(None, 0, 1_000, step=10) == 1 and times_due(100, 1_000, 1_000, step=10) == 0
    assert times_due(1, 0, 1_000, step=300) == 4, "an iteration passes many of them, and something happens once"
    assert times_due(1, 900, 1_000, step=300) == 1
    assert times_due(500, 0, 1_000, step=10, also=100) == times_due(None, 0, 1_000, step=10, also=100) == 10
    assert times_due(300, 0, 1_000, step=10, also=400) == 6 and times_due(300, 350, 1_000, step=10, also=200) == 5, "600 comes once"


def test_what_lies_on_the_disk_at_once():
    recipe = shrunk("adm-digits")

    def kept(**settings) -> int:
        train = TrainConfig(total_images=1_000, batch_size=10, **settings)
        return kept_bytes(dataclasses.replace(recipe, train=train), 100, 10, step=10)

    assert kept(keep_last=2) == 400  # the best one, and one that is being written
    assert kept(keep_last=1, keep_every=250) == 600, "250, 500, 750, the newest, the best, and 1,000 while it is written"
    assert kept(keep_last=1, keep_every=300) == 600 and kept(keep_last=1, keep_every=1_000) == 300
    assert kept(ema_lengths=(0.1,), snapshot_every=100) == 400 + 100
    assert kept(ema_lengths=(0.1,), snapshot_every=100, snapshot_precision="fp16") == 400 + 50
    assert kept(keep_last=10**6) == kept(keep_last=60, keep_every=10) == 10_100, "of 100 iterations, and one that is being written"
    assert kept(ema_lengths=(0.1,), snapshot_every=1) == 400 + 1_000


def test_work_that_is_long_is_extrapolated_and_a_grid_that_ends_is_dropped(monkeypatch):
    monkeypatch.setattr("triptych.runs.plan_probe._OTHER_SECONDS", 5.0)
    now = [0.0]
    monkeypatch.setattr("triptych.runs.plan_probe.time.monotonic", lambda: now[0])

    def work(watch):
        now[0] += 2  # to begin with
        for step in range(1, 101):
            now[0] += 0.5
            watch(step, 100)
        raise OSError("nowhere to write to")

    assert _extrapolated(work) == pytest.approx(52.0)
    assert now[0] < 10
    monkeypatch.setattr("triptych.runs.plan_probe._OTHER_SECONDS", 1e9)
    now[0] = 0.0
    assert _extrapolated(work) == pytest.approx(52.0)


def loop_of(recipe: str, **train):
    config = shrunk(recipe).updated({"train": train})
    return _loop(config, config.data.open(), World(0, 1, torch.device("cpu")))


def test_lazy_phases_count_as_often_as_they_come():
    loop = loop_of("stylegan2-digits", total_images=10_000)
    kinds = kinds_of_iterations(loop)
    every = {phase.name: phase.every for phase in loop.model.phases}
    assert sorted(every.values())[-1] == 16
    assert sum(share for _, share in kinds) == 1
    assert sorted(share for _, share in kinds) == [1 / 16, 3 / 16, 12 / 16]
    assert all(3_000 < images < 6_000 for images, _ in kinds)  # in the middle of the run


def test_the_time_of_an_iteration_is_a_mean_over_its_kinds(monkeypatch):
    """A quarter of the iterations take 4 seconds, the others 1; the first two rounds and one slow moment do not count."""
    taken = {100: iter([9.0, 9.0, 4.0, 4.0, 4.0]), 200: iter([9.0, 9.0, 1.0, 50.0, 1.0])}
    monkeypatch.setattr(plan_probe, "kinds_of_iterations", lambda loop: [(100, 0.25), (200, 0.75)])
    monkeypatch.setattr(plan_probe, "_one", lambda loop, iterations, images: next(taken[images]))
    monkeypatch.setattr(plan_probe, "_MOST_ROUNDS", 3)
    assert plan_probe._timed(None, iter(()), 1e9) == (0.25 * 4.0 + 0.75 * 1.0, 3)  # type: ignore[arg-type]


def test_operations_by_hand():
    """A linear layer, a convolution and attention, forward and backward: the products of their sides, twice for each gradient."""
    x = torch.randn(5, 7, requires_grad=True)
    weight = torch.randn(7, 3, requires_grad=True)
    with Operations() as forward:
        y = x @ weight
    with Operations() as backward:
        y.sum().backward()
    assert (forward.count, backward.count) == (2 * 5 * 7 * 3, 4 * 5 * 7 * 3)
    with Operations() as convolution:
        torch.nn.functional.conv2d(torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), padding=1)
    assert convolution.count == 2 * 2 * 4 * 8 * 8 * 3 * 9
    query = torch.randn(2, 4, 16, 8, requires_grad=True)
    with Operations() as attention:
        out = torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert attention.count == 2 * 2 * (2 * 4 * 16 * 16 * 8)
    with Operations() as backward:
        out.sum().backward()
    assert backward.count >= 2 * attention.count  # its products are taken again in the backward pass


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")
def test_operations_of_a_linear_map_by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "by_onednn", lambda x, weight: True)
    x, weight = torch.randn(5, 7, requires_grad=True), torch.randn(3, 7, requires_grad=True)
    with Operations() as both:
        linear.linear(x, weight).sum().backward()
    assert both.count == 3 * 2 * 5 * 7 * 3


def test_operations_of_a_training_are_three_times_those_of_its_loss():
    """Two times what goes forward comes backward, and the first layers' inputs need no gradient."""
    loop = loop_of("adm-digits")
    batches = loop.callables.draw(0)
    with closing(batches):  # type: ignore[type-var]
        counted = _operations(loop, loop.iterations(batches))
        batch = next(batches).to(torch.device("cpu"))
    with Operations() as forward, torch.no_grad():
        loop.model.loss(loop.model.phases[0], batch, Rng(0, ("denoise", 0), batch.index))
    assert 2.7 < counted * len(batch) / forward.count <= 3.3


@pytest.mark.parametrize("recipe", ["stylegan2-digits", "r3gan-digits"])
def test_operations_of_penalties_are_counted(recipe):
    """Gradients of gradients, in every iteration (R3GAN) or in one of sixteen."""
    loop = loop_of(recipe, total_images=10_000)
    batches = loop.callables.draw(0)
    with closing(batches):  # type: ignore[type-var]
        assert _operations(loop, loop.iterations(batches)) > 1e4


@pytest.mark.slow
def test_clips_are_as_long_as_in_the_middle_of_the_run():
    """There they have four frames; the first ones have three."""
    loop = loop_of("vid2vid-maps64", total_images=100, batch_size=1)
    assert middle(loop) == 50
    first, later = (next(loop.callables.draw(images)) for images in (0, middle(loop)))
    assert (first.images.shape[1], later.images.shape[1]) == (3, 4)
    batches = loop.callables.draw(middle(loop))
    with closing(batches):  # type: ignore[type-var]
        assert _operations(loop, loop.iterations(batches)) > 1e6


def small(tmp_path: Path):
    return shrunk("adm-digits").updated(
        {"train": {"total_images": 600, "checkpoint_every": 120, "sample_count": 4}, "data": {"workers": 0}}
    )


def here(task: Task) -> dict:
    """What the process that measures answers, without the process."""
    return_freed_memory(torch.device("cpu"))  # of earlier tests; a process of its own has none
    return planning.found_in(json.loads(json.dumps(measure(Task(**json.loads(json.dumps(dataclasses.asdict(task))))))))


@pytest.mark.slow
def test_a_plan_is_measured_and_touches_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "measured_apart", here)
    monkeypatch.setattr(planning, "next_size", lambda sizes, own, **_: own if len(sizes) == 1 else None)
    monkeypatch.setattr(plan_probe, "_LOADER_SECONDS", 0.1)
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    measured = {"evaluate_every": 300, "evaluate_features": "random", "evaluate_count": 4, "evaluate_reference": 8}
    found = plan(small(tmp_path).updated({"train": measured}), directory="runs/none", device="cpu", seconds=0.01)
    assert not list(tmp_path.iterdir())
    assert found.counts == {"grids": 1, "validations": 1, "evaluations": 2}
    assert found.evaluation_seconds > 0 and found.reference_seconds > 0
    assert found.seconds_left > 2 * found.evaluation_seconds + found.reference_seconds
    assert found.memory_bytes >= found.memory.least > found.memory.start_bytes
    assert [size.images for size in found.sizes] == [2, 6]
    assert 0 < found.memory.start_bytes <= found.sizes[0].peak_bytes
    assert found.parameters["network"] == sum(found.parameters.values()) > 0
    assert found.rate > 0 and found.loader_rate > 0 and found.grid_seconds > 0 and not found.extrapolated
    model = found.parameters["network"] * 4
    assert 4 * model <= found.checkpoint_bytes < 4.2 * model  # weights, an average, two moments
    shown = "\n".join(cli.lines_of(found))
    assert "with 6 images at once (measured)" in shown and "600 images" in shown
    assert json.loads(json.dumps(found.to_dict()))["images_per_second"] == pytest.approx(found.rate)


def test_nothing_is_measured_for_a_run_that_could_not_begin(tmp_path):
    (tmp_path / "photo.png").touch()
    for place, reason in ((tmp_path, "is not a run"), (tmp_path / "photo.png", "a file is in the way")):
        with pytest.raises(CheckpointError, match=reason):
            plan(small(tmp_path), directory=place, device="cpu", say=pytest.fail)


@pytest.mark.parametrize(
    ("recipe", "changes", "words"),
    [
        ("adm-digits", {"optim": {"phases": [{"phase": "nobody", "eps": 1e-6}]}}, "optim.phases: got the phase 'nobody', expected one of"),
        ("vid2vid-maps64", {"data": {"length": {"alone": 10**6}}}, "data.length.alone: got 1,000,000, expected at most"),
    ],
)
def test_nothing_is_measured_with_settings_that_a_training_refuses(recipe, changes, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        plan(light(recipe).updated(changes), directory=tmp_path / "none", device="cpu", say=pytest.fail)


def test_a_plan_of_a_run_refuses_what_that_refuses_and_counts_what_it_has(tmp_path, monkeypatch):
    run = train(light("glow-digits"), tmp_path / "run", device="cpu")
    checkpoints = list((run.directory / "checkpoints").rglob("*.*"))
    monkeypatch.setattr(planning, "measured_apart", lambda task: ANSWER | {"seconds": [1.0], "peak_bytes": task.batches[-1]})
    later = plan(run.config.updated({"train": {"total_images": 48}}), directory=run.directory, device="cpu")
    assert later.lying_bytes == sum(file.stat().st_size for file in checkpoints) > 0
    for changes, words in (
        ({"train": {"total_images": 1}}, "train.total_images: got 1, but the run has seen 24 images of 24"),
        ({"train": {"seed": 5}}, "train.seed: "),
        ({"model": {"levels": 1}}, "model.levels: "),
    ):
        with pytest.raises(ConfigError, match=words):
            plan(run.config.updated(changes), directory=run.directory, device="cpu", say=pytest.fail)


@pytest.mark.slow
def test_a_batch_that_is_cut_is_measured_with_one_and_with_two_microbatches(tmp_path):
    task = Task(small(tmp_path).to_dict(), "cpu", (2, 4), 2, 0.01)
    found = here(task)
    assert len(found["seconds"]) == 2 and found["drawn"] == 1


ANSWER = {
    "flops": 1.0,
    "stored_bytes": {},
    "power_bytes": 0,
    "gradient_bytes": 0,
    "loader": 1.0,
    "grid_seconds": 0.0,
    "begin_bytes": 0,
    "begin_seconds": 1.0,
    "around_bytes": 0,
    "loader_processes": 0,
    "loader_bytes": 0,
    "evaluation_seconds": None,
    "reference_seconds": None,
    "start_bytes": 0,
    "free_bytes": None,
    "device": "cpu",
    "precision": "float32",
    "validation_seconds": None,
}
"""Of the process that measures, but for seconds and the peak."""


@pytest.mark.parametrize(
    ("fitting", "tried", "most"),
    [(2, [2, 32, 8, 4], 2), (4, [2, 32, 8, 4], 4), (8, [2, 32, 8, 16], 8), (32, [2, 32, 64], 32), (64, [2, 32, 64], None)],
)
def test_where_memory_ends_smaller_sizes_are_tried(fitting, tried, most, tmp_path, monkeypatch):
    asked = []

    def answer(task: Task) -> dict:
        (size,) = task.batches
        asked.append(size)
        if size > fitting:
            raise planning.NoMemory
        return ANSWER | {"seconds": [0.01 * size], "peak_bytes": 1000 + size}

    monkeypatch.setattr(planning, "measured_apart", answer)
    found = plan(small(tmp_path).updated({"train": {"batch_size": 64}}), directory=tmp_path / "none", device="cpu")
    assert (asked, found.memory.most) == (tried, most)
    assert found.memory.largest == most or (most is None and found.memory.largest > 64)  # type: ignore[operator]
    assert bool(found.warnings() and "64 images at once do not fit" in found.warnings()[-1]) == (most is not None)


def test_what_is_tried_where_memory_ends_are_whole_groups(tmp_path, monkeypatch):
    """Of four, for samples that are compared with one another: of 40 images 20 do not fit, and of 10 only 8 are whole groups."""
    asked = []

    def answer(task: Task) -> dict:
        asked.append(task.batches[0])
        if asked[-1] > 8:
            raise planning.NoMemory
        return ANSWER | {"seconds": [0.01], "peak_bytes": 1000 + asked[-1]}

    monkeypatch.setattr(planning, "measured_apart", answer)
    changes = {"model": {"discriminator": {"group_size": 4}}, "train": {"batch_size": 40, "total_images": 400}}
    found = plan(shrunk("stylegan2-digits").updated(changes), directory=tmp_path / "none", device="cpu")
    assert (asked, found.memory.largest) == ([4, 20, 8], 8)


def test_a_model_that_draws_nothing_has_no_grids(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_probe, "_LOADER_SECONDS", 0.01)
    config = shrunk("classifier-digits").updated({"train": {"batch_size": 2, "validate_images": 2}, "data": {"workers": 0}})
    found = here(Task(config.to_dict(), "cpu", (2,), None, 0.01, other=True))
    assert found["grid_seconds"] is None and found["validation_seconds"] > 0
    monkeypatch.setattr(planning, "measured_apart", lambda task: found)
    drawn = plan(config, directory=tmp_path / "none", device="cpu")
    assert (drawn.counts["grids"], drawn.grid_seconds) == (0, 0.0) and drawn.counts["validations"] > 0


def test_checkpoints_that_are_kept_for_good_are_counted_though_others_are_rarer(tmp_path, monkeypatch):
    """The last one too: at 150, 300, 450 and 600, and of the others at 400."""
    monkeypatch.setattr(planning, "measured_apart", lambda task: ANSWER | {"seconds": [1.0], "peak_bytes": task.batches[-1]})
    for settings, count, first in (({"keep_every": 150}, 5, 150), ({"keep_every": 450}, 3, 400), ({}, 2, 400)):
        config = small(tmp_path).updated({"train": {"checkpoint_every": 400, "checkpoint_minutes": None, **settings}})
        found = plan(config, directory=tmp_path / "none", device="cpu")
        assert (found.checkpoints, found.images_to_checkpoint) == (count, first)


@pytest.mark.parametrize(("microbatch", "batches", "whole"), [("auto", (6,), True), (None, (6,), True), (3, (3, 6), False)])
def test_a_microbatch_that_is_to_be_found_is_planned_as_the_whole_batch(microbatch, batches, whole, tmp_path, monkeypatch):
    asked = []

    def answer(task: Task) -> dict:
        asked.append(task)
        return ANSWER | {"seconds": [1.0 for _ in task.batches], "peak_bytes": task.batches[-1]}

    monkeypatch.setattr(planning, "measured_apart", answer)
    config = small(tmp_path).updated({"train": {"microbatch": microbatch}})
    found = plan(config, directory=tmp_path / "none", device="cpu")
    assert (asked[-1].batches, found.memory.whole) == (batches, whole)
    assert asked[-1].microbatch == (None if whole else 3)
    assert found.memory.divisible, "no sample changes what another one adds"


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        ({"error": "DataError", "setting": "", "reason": "a.png: cut short"}, DataError),
        ({"error": "ConfigError", "setting": "data.path", "reason": "missing"}, ConfigError),
        ({"error": "CheckpointError", "setting": "", "reason": "no weights"}, CheckpointError),
    ],
)
def test_errors_come_back_as_they_were(answer, raised):
    with pytest.raises(raised, match=answer["reason"]) as caught:
        planning.found_in(answer)
    assert getattr(caught.value, "setting", "") == answer["setting"]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
def test_a_plan_that_is_killed_leaves_no_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = small(tmp_path).updated({"data": {"workers": 1}}).to_dict()
    task = Task(settings, "cpu", (2,), None, 60.0)
    parent = multiprocessing.get_context("fork").Process(target=planning.measured_apart, args=(task,))
    parent.start()
    (child,) = until(lambda: children(parent.pid))
    until(lambda: children(child))  # its loader
    both = [child, *children(child)]
    parent.kill()
    parent.join()
    assert all(gone(process) for process in both)
    assert not list(tmp_path.iterdir())


def children(process: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except FileNotFoundError:
        return []


def until(look, *, seconds: float = 240):
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found
