"""Steps that do not fit into memory: undone, divided and taken anew; and the microbatch that fits, found before the first step."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from tests.engine.toys import Clip, Hungry, Pair, make_loop, resumed, run, seeded, stop_after
from tests.processes import forked
from triptych.core.batch import Batch
from triptych.core.errors import ConfigError
from triptych.core.memory import data_memory
from triptych.core.model import LossTerms, Model, Phase, TrainingProgress
from triptych.core.rng import Rng
from triptych.engine import microbatch
from triptych.engine.checkpoint import checkpoint_path, list_checkpoints, load_checkpoint
from triptych.engine.config import TrainConfig
from triptych.engine.distributed import World
from triptych.engine.microbatch import Attempts, DoesNotFit, Microbatch, largest_that_fits, reserved

ERRORS = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB"),
    "cpu": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
    ),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "python": MemoryError(),
}


def hungry(*, room: int, since: int = 0, **settings: Any) -> Hungry:
    """One with fixed weights, and the generator's state fixed for what it draws."""
    model = seeded(Hungry)
    assert isinstance(model, Hungry)
    model.room, model.since = room, since
    for name, value in settings.items():
        setattr(model, name, value)
    torch.manual_seed(5)
    return model


def bytes_of(root: Path, images: int = 64) -> dict[str, str]:
    return load_checkpoint(checkpoint_path(root / "checkpoints", images)).hashes


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory) -> tuple[dict[str, str], Tensor]:
    """A run whose microbatch is changed by hand after 32 images: the hashes of its end, and what is drawn next."""
    root = tmp_path_factory.mktemp("runs") / "by-hand"
    begun = make_loop(hungry(room=8), root)
    begun.run(stop_after(begun, 32))
    drawn = torch.get_rng_state()
    ended = resumed(root, hungry(room=2), microbatch=2)
    torch.set_rng_state(drawn)
    run(ended)
    return bytes_of(root), torch.rand(())


@pytest.mark.parametrize(("error", "in_backward"), [("cuda", True), ("cpu", False), ("cublas", False), ("python", True)])
def test_a_step_that_does_not_fit_is_taken_anew_in_smaller_parts(tmp_path, by_hand, error, in_backward):
    """To the bit as where the microbatch is changed by hand at that step: weights, averages, buffers, and what is drawn next."""
    found: list[int] = []
    model = hungry(room=2, since=32, error=ERRORS[error], in_backward=in_backward)
    run(make_loop(model, tmp_path / "divided", found=found.append))
    assert torch.equal(torch.rand(()), by_hand[1])
    assert found == [2] and model.sizes == [8] * 4 + [8, 4, 4] + [2] * 16, "8 and 4 were tried once"
    assert bytes_of(tmp_path / "divided") == by_hand[0]


def test_it_ends_with_the_weights_of_the_smaller_microbatch_from_the_start(tmp_path, float64):
    divided, small = hungry(room=3, since=32), hungry(room=8)
    run(make_loop(divided, tmp_path / "divided"))
    run(make_loop(small, tmp_path / "small", microbatch=2))
    for name, parameter in small.named_parameters():
        assert torch.allclose(divided.get_parameter(name), parameter, rtol=1e-9, atol=1e-11), name
    assert torch.allclose(divided.observations, small.observations, rtol=1e-9)


def test_freed_memory_is_kept_while_iterations_fit_and_no_more_where_one_did_not(tmp_path, monkeypatch):
    """What is kept lies in pieces between others in use: fewer images at once would not fit either."""
    kept: list[bool] = []
    for module in ("loop", "microbatch"):
        monkeypatch.setattr(f"triptych.engine.{module}.keep_freed_memory", lambda keep=True: kept.append(keep))
    run(make_loop(hungry(room=2, since=32), tmp_path / "divided"))
    assert kept == [True] * 4 + [False] * 2, "two attempts of the fifth iteration fail"


class HungryPair(Pair):
    """A game whose generator does not fit, from its second step on."""

    room = 2

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        terms = super().loss(phase, batch, rng)
        late = phase.name == "generator" and self.prepared.count("generator") > 1
        if late and len(batch) > self.room and (batch.index % 8 == 7).any():
            raise ERRORS["cpu"]
        return terms


@pytest.mark.parametrize("saves_memory", [False, True])
def test_of_a_game_the_phase_that_failed_is_repeated_alone(tmp_path, saves_memory):
    model = seeded(HungryPair)
    assert isinstance(model, HungryPair)
    model.saves_memory = saves_memory  # then gradients stay where they are between steps
    run(make_loop(model, tmp_path / "run", total_images=48))
    assert model.prepared == ["discriminator", "discriminator", "generator"] * 3
    tried = [*range(16, 24), *range(16, 24)]  # at once, and then four at once
    assert model.seen == {"discriminator": list(range(48)), "generator": [*range(8), *tried, *range(16, 24), *range(32, 40)]}
    model.saves_memory = False
    whole = seeded(Pair)
    run(make_loop(whole, tmp_path / "whole", total_images=48))
    for name, parameter in whole.named_parameters():
        assert torch.allclose(model.get_parameter(name), parameter, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize(("size", "group", "sizes"), [(12, 1, [6, 3, 2, 1]), (7, 1, [4, 2, 1]), (24, 4, [12, 8, 4]), (40, 8, [24, 16, 8])])
def test_a_microbatch_is_halved_in_whole_groups(size, group, sizes):
    model = seeded(Pair)
    model.group_size = group
    microbatch = Microbatch(model, train=TrainConfig(total_images=1, batch_size=size), world=World(0, 1, torch.device("cpu")))
    for smaller in sizes:
        microbatch.halve("so it was")
        assert microbatch.size == smaller
    images = "1 image at once does" if group == 1 else f"{group} images at once do"
    with pytest.raises(
        DoesNotFit, match=rf"train.microbatch: {images} not fit into memory \(so it was\), and fewer there cannot be; lower"
    ):
        microbatch.halve("so it was")


def test_the_sizes_divide_a_share_as_evenly_as_can_be():
    world, train = World(0, 2, torch.device("cpu")), TrainConfig(total_images=1, batch_size=24, microbatch="auto")
    assert Microbatch(seeded(Pair), train=train, world=world).sizes == [12, 6, 4, 3, 2, 1]
    model = seeded(Pair)
    model.group_size = 2
    assert Microbatch(model, train=train, world=world).sizes == [12, 6, 4, 2]


def test_a_coupled_batch_of_several_processes_names_them_all():
    """One process cannot try what fits while the others wait for its gradients."""
    model = hungry(room=4, couples_samples=True)
    microbatch = Microbatch(model, train=TrainConfig(total_images=1, batch_size=24), world=World(0, 2, torch.device("cpu")))
    expected = (
        r"batch_size: got 24, but 12 images at once .*; lower it, which is that of all 2 processes \(triptych plan --processes 2 measures"
    )
    with pytest.raises(DoesNotFit, match=expected):
        microbatch.halve("so it was")


def test_the_largest_that_fits_is_found_in_few_trials():
    for count in range(1, 40):
        sizes = list(range(count, 0, -1))
        for room in range(count + 1):
            tried: list[int] = []
            found = largest_that_fits(sizes, lambda size, tried=tried, room=room: tried.append(size) or size <= room)
            assert found == (room or None) and len(tried) <= 2 * count.bit_length() and len(set(tried)) == len(tried)
            assert tried[0] == count


def test_coupled_samples_end_the_run_and_nothing_is_lost(tmp_path):
    model = hungry(room=4, since=32, couples_samples=True, culprit=0)
    with pytest.raises(ConfigError) as caught:
        run(make_loop(model, tmp_path / "run"))
    assert str(caught.value) == (
        "train.batch_size: got 8, but 8 images at once do not fit into memory (CUDA out of memory), and the samples of a batch affect each "
        "other in Hungry, so that it cannot be divided; 4 fit: lower it to that"
    )
    assert list_checkpoints(tmp_path / "run/checkpoints") == [32], "what was trained until then"
    stopped = make_loop(hungry(room=8), tmp_path / "stopped")
    stopped.run(stop_after(stopped, 32))
    assert bytes_of(tmp_path / "run", 32) == bytes_of(tmp_path / "stopped", 32)


def test_half_an_iteration_is_not_saved(tmp_path):
    class Game(Pair):
        couples_samples = True

        def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
            if phase.name == "generator" and self.progress[-1].images_seen:
                raise ERRORS["cuda"]
            return super().loss(phase, batch, rng)

    with pytest.raises(DoesNotFit):
        run(make_loop(seeded(Game), tmp_path))
    assert list_checkpoints(tmp_path / "checkpoints") == [], "the discriminator has taken a step more than the generator"


@pytest.mark.parametrize(
    ("room", "group", "said", "tried"), [(7, 4, "4 fit", [4]), (1, 1, "1 fit", [7, 6, 4, 1, 2]), (3, 4, "triptych plan", [4])]
)
def test_the_largest_batch_that_fits_is_said(tmp_path, room, group, said, tried):
    model = hungry(room=room, couples_samples=True, group_size=group, culprit=0)
    with pytest.raises(DoesNotFit, match=said):
        run(make_loop(model, tmp_path / "run"))
    assert model.sizes == [8, *tried], "a batch that is tried is one pass, not as many as the one that did not fit"


def test_a_model_that_takes_no_few_samples_ends_as_before(tmp_path):
    model = hungry(room=4, couples_samples=True)
    loss = model.loss
    model.loss = lambda phase, batch, rng: loss(phase, batch, rng) if len(batch) == 8 else _refuse()  # type: ignore[method-assign]
    with pytest.raises(DoesNotFit, match=r"8 images at once do not fit .*triptych plan measures what fits"):
        run(make_loop(model, tmp_path / "run"))


def _refuse() -> LossTerms:
    raise ValueError("Expected more than 1 value per channel when training")


def test_stop_is_no_recovery(tmp_path):
    with pytest.raises(ConfigError, match=r"train.microbatch: 8 images at once .*; lower it, or leave that to train.out_of_memory halve$"):
        run(make_loop(hungry(room=4), tmp_path / "run", out_of_memory="stop"))
    assert list_checkpoints(tmp_path / "run/checkpoints") == []


def test_a_divided_model_is_not_told_of_what_it_cannot_do():
    train = TrainConfig(total_images=8, batch_size=8, shard="full", out_of_memory="stop")
    microbatch = Microbatch(hungry(room=4), train=train, world=World(0, 2, torch.device("cpu")))
    with pytest.raises(ConfigError, match=r"train.microbatch: 4 images at once .*; lower it$"):
        microbatch.halve("no memory")


def test_another_error_is_no_want_of_memory(tmp_path):
    model = hungry(room=4, error=RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="^shapes differ$"):
        run(make_loop(model, tmp_path / "run"))
    assert model.sizes == [8]


# train.microbatch auto -----------------------------------------------------------------------------------------------


def test_auto_finds_the_largest_and_changes_nothing_else(tmp_path):
    found: list[int] = []
    model = hungry(room=3)
    loop = make_loop(model, tmp_path / "auto", microbatch="auto", found=found.append)
    updated: list[str] = []
    (updater,) = loop.updaters.values()
    step = updater.optimizer.step
    updater.optimizer.step = lambda: updated.append("step") or step()
    run(loop)
    assert found == [3] and model.sizes == [8, 4, 4, 2, 2, 3, 3] + [3, 3, 2] * 8 and len(updated) == 8
    drawn_next = torch.rand(())
    run(make_loop(hungry(room=3), tmp_path / "given", microbatch=3))
    assert torch.equal(drawn_next, torch.rand(()))
    assert bytes_of(tmp_path / "auto") == bytes_of(tmp_path / "given")


@pytest.mark.parametrize("kind", [Pair, Clip])
def test_auto_goes_through_all_phases(tmp_path, kind):
    """The last phase is the one that does not fit, and the only one of Clip that gets what the frame before carries."""

    class Full(kind):
        def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
            last = "past" in batch.inputs if kind is Clip else phase.name == "generator"
            if last and len(batch) > 2:
                raise MemoryError
            return super().loss(phase, batch, rng)

    found: list[int] = []
    run(make_loop(seeded(Full), tmp_path / "auto", microbatch="auto", found=found.append))
    run(make_loop(seeded(kind), tmp_path / "given", microbatch=2))
    assert found == [2] and bytes_of(tmp_path / "auto") == bytes_of(tmp_path / "given")


def test_auto_looks_where_iterations_take_the_most(tmp_path):
    """At an iteration in which every phase is due; of a run that ends before it, near its end."""
    seen = list[int]()

    class Growing(Pair):
        phases = tuple(replace(phase, every=3) for phase in Pair.phases[:1]) + Pair.phases[1:]

        def prepare(self, phase: Phase, progress: TrainingProgress) -> None:
            seen.append(progress.images_seen)

    for total, largest, expected in ((640, 20, 48), (640, 50, 96), (100, 10**6, 144)):
        seen.clear()
        Growing.largest_from = largest
        loop = make_loop(seeded(Growing), tmp_path / f"{largest}", microbatch="auto", total_images=total)
        drawn, draw = list[int](), loop.callables.draw
        loop.callables = replace(loop.callables, draw=lambda at, draw=draw, drawn=drawn: drawn.append(at) or draw(at))
        loop._find_microbatch()
        assert set(seen) == {expected} and drawn == [expected]


def test_auto_says_where_not_even_one_image_fits(tmp_path):
    with pytest.raises(ConfigError, match=r"train.microbatch: 1 image at once does not fit into memory \(CUDA out of memory\), and fewer"):
        run(make_loop(hungry(room=0, culprit=0), tmp_path / "run", microbatch="auto"))
    model = hungry(room=8, couples_samples=True)
    with pytest.raises(ConfigError, match=r"train.microbatch: got auto, but the samples of a batch affect each other in Hungry"):
        make_loop(model, tmp_path / "coupled", microbatch="auto")


def test_trials_leave_room_for_the_states_of_optimizers(monkeypatch):
    weights = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))]
    optimizer = torch.optim.Adam(weights)
    taken: list[torch.Size] = []
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda tensor: taken.append(tensor.shape) or empty_like(tensor))
    with reserved([optimizer]):
        assert taken == [torch.Size([3])] * 2 + [torch.Size([2, 2])] * 2
    weights[0].grad = torch.ones(3)
    optimizer.step()
    taken.clear()
    with reserved([optimizer]):
        assert taken == [torch.Size([2, 2])] * 2, "the first one has its state"


def test_buffers_of_frozen_networks_are_left_alone():
    """They never change, and may be hundreds of megabytes."""

    class WithFrozen(Pair):
        frozen_networks = {"vgg": None}  # noqa: RUF012

        def __init__(self) -> None:
            super().__init__()
            self.vgg = nn.BatchNorm1d(2)
            self.generator.register_buffer("w", torch.zeros(2))

    model = seeded(WithFrozen)

    def work() -> None:
        model.generator.w.add_(1)
        model.generator.w = model.generator.w + 1  # another tensor in its place
        model.vgg.running_mean.add_(1)
        raise MemoryError

    attempts = Attempts(model, World(0, 1, torch.device("cpu")))
    place = model.generator.w
    assert attempts.attempt([], work, together=True) is None
    assert model.generator.w is place and place.tolist() == [0, 0] and model.vgg.running_mean.tolist() == [1, 1]


@pytest.mark.parametrize(("processes", "together", "copied"), [(1, False, True), (1, True, True), (2, False, False)])
def test_buffers_are_copied_only_where_something_is_done_with_them_after_a_failure(monkeypatch, processes, together, copied):
    """A process that is alone saves its run; of several that do not agree none goes on."""
    model = seeded(Pair)
    model.generator.register_buffer("w", torch.zeros(2))

    def work() -> None:
        model.generator.w.add_(1)
        raise MemoryError("no memory")

    copies: list[torch.Size] = []
    monkeypatch.setattr(microbatch, "_copy", lambda tensor, copy=microbatch._copy: copies.append(tensor.shape) or copy(tensor))
    attempts = Attempts(model, World(0, processes, torch.device("cpu")))
    assert attempts.attempt([], work, together=together) is None and attempts.said == "no memory"
    assert copies == [torch.Size([2])] * copied and model.generator.w.tolist() == [1 - copied] * 2


def test_spectral_norms_that_move_in_a_forward_pass_are_put_back():
    model = seeded(Pair)
    model.discriminator = nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3))
    attempts = Attempts(model, World(0, 1, torch.device("cpu")))
    noted = {name: buffer.clone() for name, buffer in model.named_buffers()}
    weights = list(model.parameters())

    def pass_through(*, fails: bool) -> None:
        model.discriminator(torch.ones(1, 3, 5, 5)).sum().backward()
        if fails:
            raise MemoryError

    def moved() -> set[str]:
        return {name for name, buffer in model.named_buffers() if not torch.equal(buffer, noted[name])}

    assert attempts.attempt(weights, lambda: pass_through(fails=True), together=True) is None
    assert not moved() and all(weight.grad is None for weight in weights)
    assert attempts.fits(weights, lambda: pass_through(fails=False)), "and it is put back where it fits"
    assert not moved() and all(weight.grad is None for weight in weights)
    pass_through(fails=False)
    assert len(moved()) == 2, "u and v"


# A real limit --------------------------------------------------------------------------------------------------------

_PIECE = 2**22  # numbers of an activation for an image: 16 MiB


class Large(Model):
    """A model that takes 16 MiB for each image and activation: at least four of them in a step."""

    phases = (Phase("step", ("network",)),)
    averaged = ("network",)

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(1, 1)
        self.sizes: list[int] = []

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        self.sizes.append(len(batch))
        kept: Tensor = self.network.weight * torch.zeros(len(batch), _PIECE)
        return LossTerms((kept * kept).flatten(1)[:, 0] + self.network.bias)


def train_within(folder: Path, microbatch: Literal["auto"] | None) -> None:
    """A training in a process that may take 240 MiB more than it has; where it tries first, it is told that no more is there."""
    torch.set_num_threads(1)
    room = 240 * 2**20
    if microbatch is None:
        most = (data_memory() or 0) + room
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    found: list[int] = []
    model = Large()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("triptych.core.memory.available_memory", lambda: room / 0.9)
        run(make_loop(model, folder, total_images=8, batch_size=4, microbatch=microbatch, found=found.append))
    (folder / "found.txt").write_text(f"{found} {model.sizes}", encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(data_memory() is None, reason="the system has no limit of a process's data")
@pytest.mark.parametrize(("microbatch", "tried"), [(None, [4]), ("auto", [4, 2, 2])])
def test_a_process_stays_within_a_limit_of_the_system(tmp_path, microbatch, tried):
    process = forked(train_within, tmp_path / "run", microbatch, files=str(tmp_path / "out"))
    process.join(120)
    assert process.exitcode == 0, (tmp_path / "out.err").read_text()
    assert (tmp_path / "run/found.txt").read_text() == f"[2] {[*tried, 2, 2, 2, 2]}"
