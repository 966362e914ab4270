"""What many processes would take: closed forms by hand, and the bytes that two processes send."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from tests.processes import run_together
from tests.runs.scaling_worker import configured, count
from tests.runs.test_planning import PLAN
from triptych.cli import plan as cli
from triptych.core.errors import ConfigError
from triptych.core.model import Phase
from triptych.engine.config import TrainConfig
from triptych.runs import planning
from triptych.runs.plan_figures import Plan
from triptych.runs.plan_probe import turns_of_phases
from triptych.runs.scaling import BUCKET_BYTES, Collective, Group, Machines, State, collectives, scaled, units
from triptych.runs.stored import outline

CLUSTER = Machines(32, 8, within=300e9, between=25e9, latency=1e-5)
STATE = State(weights=400, gradients=400, optimizer=800, averages=400)


class Toy:
    """A model of one network: blocks of 64 and 36 weights, and 9 weights beside them."""

    couples_samples = False

    def __init__(self, gathers: str = "blocks") -> None:
        self.gathers = gathers
        self.network = nn.Module()
        self.network.blocks = nn.ModuleList([nn.Linear(8, 8, bias=False), nn.Linear(6, 6, bias=False)])
        self.network.out = nn.Linear(3, 3, bias=False)
        self.phases = (Phase("step", ("network",)),)


def toy(gathers: str = "blocks") -> Any:
    return Toy(gathers)


def train(**settings: Any) -> TrainConfig:
    return TrainConfig(**{"total_images": 1_000, "batch_size": 32, **settings})


def test_what_a_ring_sends_and_how_long_it_takes():
    """8 GB over 4 processes: 2 x 6 GB of an all-reduce in 6 messages, 6 GB in 3 of the others."""
    group = Group(4, 1e9, 0)
    for kind, sent, messages in (("all_reduce", 12e9, 6), ("all_gather", 6e9, 3), ("reduce_scatter", 6e9, 3)):
        one = Collective(kind, 8e9, group, 1)  # type: ignore[arg-type]
        assert one.sent == sent
        assert one.seconds(0.5) == pytest.approx(sent / 1e9 + 0.5 * messages)
        assert dataclasses.replace(one, times=0.25).seconds(0.5) == pytest.approx(one.seconds(0.5) / 4)


def test_rings_share_the_connection_of_a_machine():
    assert (CLUSTER.count, CLUSTER.everyone()) == (4, Group(32, 25e9, 1))
    assert CLUSTER.holders(8) == Group(8, 300e9, 0)
    assert CLUSTER.holders(16) == Group(16, 25e9, 1)
    assert CLUSTER.copies(8) == Group(4, 25e9 / 8, 8)  # of each of a machine's processes one leaves it
    assert CLUSTER.copies(2) == Group(16, 25e9 / 2, 2)
    assert CLUSTER.copies(16) == Group(2, 25e9 / 8, 8)
    one = dataclasses.replace(CLUSTER, per_machine=32)
    assert one.everyone() == Group(32, 300e9, 0) and one.copies(8) == Group(4, 300e9, 0)
    assert dataclasses.replace(CLUSTER, between=600e9).everyone().rate == 300e9


@pytest.mark.parametrize("size", [3, 12])
def test_copies_that_lie_across_a_border_are_refused(size):
    with pytest.raises(ConfigError, match=f"train.shard_size: got {size}"):
        CLUSTER.refuse_uneven(size)
    with pytest.raises(ConfigError, match="machine_processes: got 5, expected a divisor of the 32"):
        dataclasses.replace(CLUSTER, per_machine=5).refuse_uneven(1)
    for fits in (1, 2, 4, 8, 16, 32):
        CLUSTER.refuse_uneven(fits)


def test_parts_are_as_long_as_the_longest():
    """Of 6 rows a process of 4 has 2, so 8 are sent; of 3 it has 1, so 4 are."""
    first, second, rest = units(toy().network, by_block=True)
    assert [unit.rest for unit in (first, second, rest)] == [False, False, True]
    assert [unit.whole for unit in (first, second, rest)] == [4 * 64, 4 * 36, 4 * 9]
    assert [unit.padded(4) for unit in (first, second, rest)] == [4 * 64, 4 * 8 * 6, 4 * 4 * 3]
    (whole,) = units(toy().network, by_block=False)
    assert whole.whole == 4 * 109 and whole.rest


def sent(found: list[Collective]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for each in found:
        total[each.kind] += each.sent
    return dict(total)


def test_what_each_kind_sends_by_hand():
    machines = dataclasses.replace(CLUSTER, processes=4, per_machine=2)
    turns = {"step": 1.0}
    assert sent(collectives(toy(), train(), machines, turns)) == {"all_reduce": 2 * 3 / 4 * 4 * 109}
    blocks, rest = 4 * (64 + 48), 4 * 12
    full = sent(collectives(toy(), train(shard="full"), machines, turns))
    assert full == {"all_gather": 3 / 4 * (2 * blocks + rest), "reduce_scatter": 3 / 4 * (blocks + rest)}
    cut = sent(collectives(toy(), train(shard="full", microbatch=3), machines, turns))  # 8 images of each process in 3 passes
    assert cut == {kind: 3 * size for kind, size in full.items()}
    hybrid = sent(collectives(toy(), train(shard="hybrid"), machines, turns))
    blocks, rest = 4 * (64 + 36), 4 * 4 * 3  # of 3 rows 2 and 1
    assert hybrid == {
        "all_gather": 1 / 2 * (2 * blocks + rest),
        "reduce_scatter": 1 / 2 * (blocks + rest),
        "all_reduce": 2 * 1 / 2 * (blocks + rest) / 2,
    }
    whole = sent(collectives(toy("whole"), train(shard="full", microbatch=3), machines, {"step": 0.5}))
    assert whole == {"all_gather": 3 / 4 * 4 * 124 / 2, "all_reduce": 2 * 3 / 4 * 4 * 109 / 2}
    assert collectives(toy(), train(), dataclasses.replace(machines, processes=1), turns) == []


def test_large_gradients_go_in_several_messages():
    model = toy()
    model.network.out = nn.Linear(3, 3 * BUCKET_BYTES // 12, bias=False, device="meta")
    (one,) = collectives(model, train(), CLUSTER, {"step": 1.0})
    assert one.times == 4 and one.times * one.size == 3 * BUCKET_BYTES + 400


def test_how_much_may_overlap():
    """2 s of computing. DDP hides all but its last bucket in the backward pass of the last microbatch, FSDP all but its ends."""
    slow = dataclasses.replace(CLUSTER, processes=4, per_machine=4, within=436.0, latency=0.0)

    def of(model: Any, **settings: Any):
        return scaled(model, train(**settings), slow, turns={"step": 1.0}, seconds=2.0, state=STATE)

    assert of(toy()).exchange_seconds == pytest.approx(1.5) and of(toy()).hidden_seconds == 0
    assert of(toy(), out_of_memory="stop").hidden_seconds == pytest.approx(0)  # a single bucket
    large = toy()
    large.network.out = nn.Linear(3, 3 * BUCKET_BYTES // 12, bias=False, device="meta")
    assert of(large, out_of_memory="stop").hidden_seconds == pytest.approx(2 / 3 * 2.0)
    assert of(large, out_of_memory="stop", microbatch=4).hidden_seconds == pytest.approx(2 / 3 * 2.0 / 2)
    quick = dataclasses.replace(slow, within=1e9)
    found = scaled(large, train(out_of_memory="stop"), quick, turns={"step": 1.0}, seconds=2.0, state=STATE)
    assert (
        found.hidden_seconds == pytest.approx(3 / 4 * found.exchange_seconds)
        and found.seconds == found.compute_seconds + found.exchange_seconds
    )
    full = of(toy(), shard="full")
    assert full.exchange_seconds == pytest.approx(3 / 4 * (3 * 4 * 112 + 2 * 4 * 12) / 436)
    assert full.hidden_seconds == pytest.approx(min(2.0, full.exchange_seconds - 3 / 4 * 2 * 4 * 12 / 436))
    assert full.least_seconds == pytest.approx(full.seconds - full.hidden_seconds)
    assert of(toy("whole"), shard="full").hidden_seconds == 0


def test_processes_that_share_a_device_compute_as_many_times_as_slowly():
    shared = dataclasses.replace(CLUSTER, sharing=2)
    assert scaled(toy(), train(), shared, turns={"step": 1.0}, seconds=2.0, state=STATE).compute_seconds == 4.0


def test_what_leaves_a_machine():
    """One ring of all processes, or, where each holds a part, a ring for each of its processes."""
    turns = {"step": 1.0}
    ddp = scaled(toy(), train(), CLUSTER, turns=turns, seconds=1.0, state=STATE)
    assert ddp.left_bytes == ddp.sent_bytes == pytest.approx(2 * 31 / 32 * 436)
    hybrid = scaled(toy(), train(shard="hybrid"), CLUSTER, turns=turns, seconds=1.0, state=STATE)
    part = 4 * (8 + 6 + 3)
    assert hybrid.left_bytes == pytest.approx(8 * 2 * 3 / 4 * part)


def test_memory_by_hand():
    """A quarter of 2000 bytes where rows divide evenly: 4 of 16 rows."""
    model, machines = toy(), dataclasses.replace(CLUSTER, processes=4, per_machine=4)
    model.network.blocks = nn.ModuleList([nn.Linear(4, 16, bias=False)])
    model.network.out = nn.Linear(9, 4, bias=False)

    def of(gathers: str = "blocks", **settings: Any):
        model.gathers = gathers
        return scaled(model, train(**settings), machines, turns={"step": 1.0}, seconds=1.0, state=STATE)

    ddp = of(out_of_memory="stop")
    assert (ddp.state_bytes, ddp.state_of_one, ddp.saved_bytes) == (2000, 2000, -400)  # its buckets
    later = of()
    assert (later.saved_bytes, later.least_bytes) == (0, 2400)  # the copy is there when activations are gone
    full = of(shard="full")
    assert full.state_bytes == 500
    assert full.gathered_bytes == 2 * 144 + 5 * 256 and full.saved_bytes == 1500 - full.gathered_bytes
    whole = of("whole", shard="full")
    assert whole.state_bytes == 500 and whole.saved_bytes == 3 / 4 * 1200 - 1 / 4 * 800
    assert whole.least_bytes == 500 + 400 + 2 * 400


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "DDP": ("dit-xl-2", {"out_of_memory": "stop"}),
    "summed afterwards": ("dit-xl-2", {"microbatch": 1}),
    "by block": ("dit-xl-2", {"shard": "full", "microbatch": 1}),
    "whole": ("stylegan2-digits", {"shard": "full"}),
}


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes sent and kept, by rank."""
    folder = tmp_path_factory.mktemp("scaling")
    run_together(2, count, folder, CASES, timeout_seconds=600)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.xdist_group("torchrun")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES)
def test_two_processes_send_and_keep_what_is_planned(case, counted):
    name, settings = CASES[case]
    config = configured(name, **settings)
    model = outline(config, config.data.open().spec)
    machines = Machines(2, 2, within=1e9, between=1e9, latency=0.0)
    turns = {phase.name: float(phase.repeats) for phase in model.phases}  # the iteration in which all of them have a turn
    planned = sent(collectives(model, config.train, machines, turns))
    kept = counted[0][case]
    assert kept["sent"] == counted[1][case]["sent"]
    if any(phase.partial for phase in model.phases):  # some weights have no gradient there: 44 bytes of 12,112
        assert 0.99 * planned["all_reduce"] < kept["sent"].pop("all_reduce") <= planned.pop("all_reduce")
    assert kept["sent"] == pytest.approx(planned)
    sizes = {name: getattr(model, name) for phase in model.phases for name in phase.networks}
    weights = sum(parameter.nbytes for network in sizes.values() for parameter in network.parameters())
    if "shard" in settings:
        alone = sum(unit.part(2) for network in sizes.values() for unit in units(network, by_block=True))
        single = sum(parameter.nbytes for network in sizes.values() for parameter in network.parameters() if not parameter.ndim)
        assert kept["weights"] == alone + single
    else:
        assert kept["weights"] == weights


def test_lazy_phases_have_a_turn_now_and_then():
    config = configured("stylegan2-digits")
    model = outline(config, config.data.open().spec)
    turns = turns_of_phases(model, drawn=8, total=8_000)
    assert turns == {phase.name: phase.repeats / phase.every for phase in model.phases}


def planned(
    monkeypatch: pytest.MonkeyPatch, machines: Machines, changes: Mapping[str, Any] = {}, answers: Mapping[str, Any] = {}, **settings: Any
) -> tuple[Plan, list[Any]]:
    """The plan where one process with a share of the batch took 2 s and 3 GB, and who was asked to measure what."""
    asked = []

    def answer(task: Any) -> dict[str, Any]:
        asked.append(task)
        weights = 4 * 1_404_481
        return {
            "seconds": [2.0 for _ in task.batches],
            "peak_bytes": 3 * 10**9,
            "start_bytes": 10**8,
            "free_bytes": None,
            "flops": 1.0,
            "stored_bytes": {"model": weights, "optimizer": 2 * weights, "ema-0.9": weights},
            "power_bytes": 0,
            "gradient_bytes": weights,
            "loader": 100.0,
            "loader_processes": 0,
            "loader_bytes": 0,
            "begin_bytes": 10**8,
            "around_bytes": 10**8,
            "begin_seconds": 1.0,
            "grid_seconds": 4.0,
            "validation_seconds": 2.0,
            "evaluation_seconds": None,
            "reference_seconds": None,
            "device": "cpu",
            "precision": "float32",
        } | dict(answers)

    monkeypatch.setattr(planning, "measured_apart", answer)
    config = configured("adm-digits", batch_size=64, **settings).updated(changes)
    return planning.plan(config, directory="runs/none", device="cpu", machines=machines), asked


def test_what_comes_once_an_iteration_is_counted_by_the_iterations_of_all_processes(monkeypatch):
    """Ten of 64 images, where a process that counted its own 4 would have 160: so checkpoints, what is kept, and grids."""
    every = {"total_images": 640, "keep_every": 8, "sample_every": 8, "checkpoint_minutes": None, "keep_last": 1}
    found, _ = planned(monkeypatch, Machines(16, 16, within=1e9, between=1e9, latency=0.0), {"train": every})
    assert (found.checkpoints, found.counts["grids"]) == (10, 10)
    assert found.kept_bytes == 11 * found.checkpoint_bytes, "one is being written"


def test_the_plan_of_several_processes(monkeypatch):
    """Each of 16 has 4 of the 64 images; two share a device, so 2 s become 4, and their grids take an eighth."""
    machines = Machines(16, 8, within=1e9, between=1e8, latency=0.0, sharing=2)
    monkeypatch.setattr(planning, "usable_cores", lambda: 6)
    found, asked = planned(monkeypatch, machines, shard="hybrid")
    assert max(batch for task in asked for batch in task.batches) == 4
    assert all(task.settings["train"]["shard"] == "none" for task in asked if "shard" in task.settings["train"])
    assert found.scaled is not None and (found.batch, found.at_once, found.images_per_step, found.processes) == (64, 4, 64, 16)
    assert found.scaled.shard_size == 8 and found.scaled.compute_seconds == 4.0
    assert found.step_seconds == 4.0 + found.scaled.exchange_seconds > found.scaled.least_seconds
    assert (found.grid_seconds, found.validation_seconds, found.loader_rate) == (0.5, 0.25, 1_200.0), "16 loaders, of which 8 have 6 cores"
    assert found.memory_bytes == 3 * 10**9 - found.scaled.saved_bytes < 3 * 10**9
    shown = "\n".join(cli.lines_of(found))
    assert "16 on 2 machines of 8, 4 images of a batch each; 8 hold one copy" in shown and "each machine" in shown
    assert "the other processes" not in shown
    roomy = dataclasses.replace(found.memory, free_bytes=10**10, fixed=1e9, per_image=1e9, loader_bytes=0, gradient_bytes=10**9)
    for divisible, said in (
        (True, "microbatch that fits is 7 in each process"),
        (False, "batch that fits is 8 in each process, 128 in all"),
    ):
        lines = "\n".join(cli.lines_of(dataclasses.replace(found, memory=dataclasses.replace(roomy, divisible=divisible))))
        assert f"the largest {said}" in lines
    json.dumps(found.to_dict())


@pytest.mark.parametrize("around", [0, 10**9])
def test_what_lies_beside_the_steps_of_several_processes(around, monkeypatch):
    """Evaluations are shared by eight devices; at the peak beside the steps the optimizer's state and averages are divided, or gradients
    are summed."""
    machines, weights = Machines(16, 16, within=1e9, between=1e9, latency=0.0, sharing=2), 4 * 1_404_481
    monkeypatch.setattr(planning, "available_memory", lambda: 10**10)
    beside = {"evaluation_seconds": 16.0, "reference_seconds": 8.0, "around_bytes": around}
    found, _ = planned(monkeypatch, machines, answers=beside, shard="full")
    assert (found.evaluation_seconds, found.reference_seconds, found.memory.free_bytes) == (2.0, 1.0, 5 * 10**9)
    assert found.scaled is not None and 1 / 16 < found.scaled.state_bytes / (5 * weights) < 1 / 8
    share = found.scaled.state_bytes / (5 * weights)
    at_peak = around - (1 - share) * 3 * weights if around else 10**8 + found.scaled.least_bytes
    assert found.memory.least == pytest.approx(at_peak) and at_peak > 10**8


def test_the_loader_is_measured_with_the_workers_of_one_of_several(monkeypatch, tmp_path):
    """Of 16 cores each of four processes has four, one of them for itself; what the user says holds."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for k in range(20):
        Image.new("RGB", (20, 20), (k, 0, 0)).save(folder / f"{k}.png")
    monkeypatch.setattr("triptych.data.images.usable_cores", lambda: 16)
    machines = Machines(4, 4, within=1e9, between=1e8, latency=0.0)
    for given, workers in ((None, 3), (5, 5)):
        data = {"source": "folder", "path": str(folder), "labels": "none", "workers": given, "validation_fraction": 0.0}
        _, asked = planned(monkeypatch, machines, {"data": data, "model": {"class_conditional": False}})
        assert {task.settings["data"]["workers"] for task in asked} == {workers}


@pytest.mark.parametrize(
    ("processes", "settings", "said"),
    [
        (65, {}, "train.batch_size: got 64, expected at least one image"),
        (48, {"shard": "full"}, "train.batch_size: got 64, expected a multiple of the 48"),
        (16, {"shard": "hybrid", "shard_size": 6}, "train.shard_size: got 6"),
    ],
)
def test_what_could_not_begin_is_not_planned(processes, settings, said, monkeypatch):
    with pytest.raises(ConfigError, match=said):
        planned(monkeypatch, Machines(processes, processes, within=1e9, between=1e9, latency=0.0), **settings)


def test_one_process_is_planned_as_before():
    assert PLAN.scaled is None and PLAN.processes == 1
    assert not [line for line in cli.lines_of(PLAN) if line.startswith(("processes", "traffic", "state", "step  "))]


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"processes": 0}, "processes"),
        ({"processes": 8, "machine_processes": 3}, "machine_processes"),
        ({"machine_processes": 1}, "machine_processes"),
        ({"processes": 2, "within": 0.0}, "within"),
        ({"processes": 2, "between": float("nan")}, "between"),
        ({"processes": 2, "latency": -1.0}, "latency"),
        ({"within": 2.0}, "within"),
        ({"between": 5.0}, "between"),
        ({"latency": 3.0}, "latency"),
        ({"processes": 2, "sharing": 3}, "sharing"),
        ({"sharing": 2}, "sharing"),
    ],
)
def test_options_that_make_no_sense(options, setting):
    with pytest.raises(ConfigError) as caught:
        cli.PlanOptions(**options)
    assert caught.value.setting.endswith(setting)
    assert "processes" in options or "without --processes" in str(caught.value)


def test_weights_on_no_device_are_planned_alike():
    """The outline of a model has shapes alone."""
    model = toy()
    other = toy()
    other.network = model.network.to(torch.device("meta"))
    assert [unit.shapes for unit in units(other.network, by_block=True)] == [unit.shapes for unit in units(model.network, by_block=True)]
