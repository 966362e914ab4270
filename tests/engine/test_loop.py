"""The loop against hand computations: gradients, averages, schedules, resume, failures."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.engine.toys import Denoiser, Pair, draw, make_loop, metrics, resumed, run, seeded, stop_after
from triptych.core.errors import CheckpointError, ConfigError, RunError
from triptych.core.model import LossTerms, Phase, TrainingProgress
from triptych.core.ramp import Ramp
from triptych.core.rng import Rng
from triptych.engine.checkpoint import checkpoint_path, list_checkpoints, load_checkpoint, load_newest
from triptych.engine.config import LogConfig, OptimConfig, PhaseOptimConfig, TrainConfig
from triptych.engine.distributed import Agreement, World
from triptych.engine.measurements import StepRecord, TermSums
from triptych.engine.metric_log import read_metrics
from triptych.engine.schedule import refuse_impossible, step_settings
from triptych.engine.signals import StopRequest


def same(left: dict, right: dict) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_first_step_is_adamw_on_the_mean_loss(tmp_path):
    loop = make_loop(seeded(Denoiser), tmp_path / "run", total_images=8, ema_warmup=False)
    run(loop)
    model = seeded(Denoiser)
    world = World(0, 1, torch.device("cpu"))
    batch = next(draw(8, world=world)(0)).to("cpu")
    terms = model.loss(model.phases[0], batch, Rng(0, ("denoise", 0), batch.index))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    terms.loss.mean().backward()
    optimizer.step()
    for name, parameter in model.named_parameters():
        trained = loop.model.get_parameter(name)
        assert torch.allclose(trained, parameter, rtol=1e-4, atol=1e-6), name
        for average in loop.averages:
            expected = average.settings.rate * before[name] + (1 - average.settings.rate) * trained
            assert torch.allclose(average.tensors[name], expected, rtol=1e-5, atol=1e-7), name


def test_average_warms_up(tmp_path):
    loop = make_loop(seeded(Denoiser), tmp_path / "run", total_images=8, ema_rates=(0.9999,))
    run(loop)
    start = seeded(Denoiser).get_parameter("network.0.weight")
    expected = 0.1 * start + 0.9 * loop.model.get_parameter("network.0.weight")  # (1 + 0) / (10 + 0)
    assert torch.allclose(loop.averages[0].tensors["network.0.weight"], expected, atol=1e-6)


@pytest.mark.parametrize("microbatch", [1, 3, 8])
def test_microbatches_give_the_gradient_of_the_whole_batch(tmp_path, microbatch):
    whole, parts = (make_loop(seeded(Denoiser), tmp_path / str(m), microbatch=m, total_images=8, ema_rates=()) for m in (None, microbatch))
    gradients = []
    for loop in (whole, parts):
        (updater,) = loop.updaters.values()
        kept = {}
        updater.optimizer.zero_grad = lambda set_to_none, u=updater, k=kept: k.update({n: p.grad.clone() for n, p in u.parameters.items()})
        run(loop)
        gradients.append(kept)
    for name, gradient in gradients[0].items():
        assert (gradients[1][name] - gradient).norm() <= 1e-5 * gradient.norm(), name
    assert torch.allclose(whole.model.observations, parts.model.observations, rtol=1e-5)


@pytest.mark.parametrize("stop_at", [8, 24, 56])
def test_interrupted_run_ends_with_the_same_bytes(tmp_path, stop_at):
    unbroken = make_loop(seeded(Denoiser), tmp_path / "unbroken")
    run(unbroken)
    first = make_loop(seeded(Denoiser), tmp_path / "broken")
    stop = StopRequest()
    iteration = first._iteration

    def until(batches):
        iteration(batches)
        stop.name = "SIGTERM" if first.images_seen >= stop_at else None

    first._iteration = until
    assert first.run(stop) is False
    assert list_checkpoints(tmp_path / "broken/checkpoints") == [stop_at]
    checkpoint = load_newest(tmp_path / "broken/checkpoints", warn=pytest.fail)
    model = Denoiser()
    model.load_state_dict(checkpoint.files["model"])
    second = make_loop(model, tmp_path / "broken")
    second.restore(checkpoint)
    assert run(second) is True
    ends = [load_checkpoint(checkpoint_path(tmp_path / name / "checkpoints", 64)) for name in ("unbroken", "broken")]
    assert ends[0].hashes == ends[1].hashes
    assert all(same(ends[0].files[stem], ends[1].files[stem]) for stem in ends[0].files)
    assert {"model", "optimizer", "ema-0.9", "ema-0.99"} == ends[0].files.keys()


def test_optimizer_state_takes_the_layout_of_the_parameters(tmp_path):
    loop = make_loop(seeded(Denoiser), tmp_path / "run", total_images=8)
    run(loop)
    checkpoint = load_newest(tmp_path / "run/checkpoints", warn=pytest.fail)
    again = make_loop(seeded(Denoiser), tmp_path / "again", total_images=16)
    again.restore(checkpoint)
    (updater,) = again.updaters.values()
    weight = updater.parameters["network.0.weight"]
    assert weight.stride() == again.model.network[0].weight.stride() and not weight.is_contiguous()
    assert updater.optimizer.state[weight]["exp_avg"].stride() == weight.stride()


def test_each_phase_changes_its_own_networks_on_its_own_slices(tmp_path):
    loop = make_loop(seeded(Pair), tmp_path / "run", total_images=16, batch_size=4)
    model = loop.model
    changed = {}
    step = loop._step

    def watched(phase, batch, progress):
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        carried = step(phase, batch, progress)
        moved = {name.split(".")[0] for name, p in model.named_parameters() if not torch.equal(p, before[name])}
        changed.setdefault(phase.name, set()).update(moved)
        return carried

    loop._step = watched
    run(loop)
    assert changed == {"discriminator": {"discriminator"}, "generator": {"generator"}}
    assert loop.images_seen == 16  # 2 iterations of 2 slices of 4
    assert model.seen == {"discriminator": list(range(16)), "generator": [0, 1, 2, 3, 8, 9, 10, 11]}
    assert model.prepared == ["discriminator", "discriminator", "generator"] * 2
    assert model.finished == [(name, k) for k, name in enumerate(model.prepared, start=1)]
    steps = [(progress.images_seen, progress.iteration, progress.step) for progress in model.progress]
    assert steps == [(0, 0, 0), (0, 0, 1), (0, 0, 0), (8, 1, 0), (8, 1, 1), (8, 1, 0)]
    assert all((progress.iteration_images, progress.total_images) == (8, 16) for progress in model.progress)
    assert loop.averages[0].tensors.keys() == {"generator.weight", "generator.bias"}


def test_lazy_phase_runs_every_nth_iteration(tmp_path):
    model = seeded(Pair)
    model.phases = (Phase("discriminator", ("discriminator",), every=3), Phase("generator", ("generator",)))
    loop = make_loop(model, tmp_path / "run", total_images=28, batch_size=4)
    run(loop)
    assert model.prepared.count("discriminator") == 3 and model.prepared.count("generator") == 7


class Exploding(Denoiser):
    """Becomes NaN at the third step, in a logged term or in the gradient."""

    where = "vb"

    def loss(self, phase, batch, rng):
        terms = super().loss(phase, batch, rng)
        bad = float(batch.index[0]) >= 16
        if self.where == "gradient":
            # d/dx sqrt(x) at 0 is infinite, times 0 is NaN; its value is 0.
            zero = (terms.loss * 0).sqrt() if bad else 0
            return LossTerms(terms.loss + zero)
        return LossTerms(terms.loss, {"vb": terms.loss.detach() * (math.inf if bad else 1.0)})


@pytest.mark.parametrize(
    ("where", "said"), [("vb", '"denoise": the loss term "vb" is not finite at 24'), ("gradient", "the gradient is not finite at 24")]
)
def test_what_is_not_finite_stops_the_run_and_is_not_saved(tmp_path, where, said):
    model = seeded(Exploding)
    model.where = where
    loop = make_loop(model, tmp_path / "run", checkpoint_every=8)
    with pytest.raises(RunError, match=said):
        run(loop)
    assert list_checkpoints(tmp_path / "run/checkpoints") == [8, 16]


@pytest.mark.parametrize("writing", ["wait", "background"])
@pytest.mark.parametrize("where", ["weights", "average"])
def test_weights_that_no_loss_has_seen_yet_are_looked_at_before_they_are_saved(tmp_path, where, writing):
    class Overflowing(Denoiser):
        """Its third step ends in weights that are not finite."""

        steps = 0

        def stepped(self, phase: Phase) -> None:
            self.steps += 1
            if self.steps == 3 and where == "weights":
                with torch.no_grad():
                    self.network[0].bias[1] = math.inf

    loop = make_loop(seeded(Overflowing), tmp_path / "run", total_images=24, checkpoint_every=8, checkpoint_writing=writing)
    if where == "average":
        update = loop.averages[1].update

        def spoiled(images_seen, images):
            update(images_seen, images=images)
            loop.averages[1].tensors["network.0.bias"][1] = math.nan if images_seen == 16 else 0.0

        loop.averages[1].update = spoiled
    stem = "model" if where == "weights" else "ema-0.99"
    with pytest.raises(
        RunError, match=rf"network.0.bias of {stem}.safetensors has values that are not finite, or far too large at 24 images seen; nothing"
    ):
        run(loop)
    assert list_checkpoints(tmp_path / "run/checkpoints") == [8, 16]
    assert load_newest(tmp_path / "run/checkpoints", warn=pytest.fail).images_seen == 16


@pytest.mark.parametrize("change", [shutil.rmtree, lambda root: root.rename(root.with_name("elsewhere"))], ids=["removed", "renamed"])
def test_a_run_that_is_removed_meanwhile_ends_and_is_not_made_anew(tmp_path, change):
    loop = make_loop(seeded(Denoiser), tmp_path / "run", total_images=64, checkpoint_every=8)
    iteration = loop._iteration

    def watched(batches):
        iteration(batches)
        if loop.images_seen == 24:
            change(tmp_path / "run")

    loop._iteration = watched
    with pytest.raises(CheckpointError, match=r"run was removed or renamed while the run was trained: nothing can be saved there any more"):
        run(loop)
    assert loop.images_seen == 24 and not (tmp_path / "run").exists()


class Fading(Denoiser):
    """Its loss has a weight that falls with the images seen."""

    gamma = Ramp(start=1.0, end=0.0, images=32, shape="linear")

    def __init__(self):
        super().__init__()
        self.weights = []

    def prepare(self, phase, progress):
        self.weights.append(self.gamma.at(progress.images_seen))

    def loss(self, phase, batch, rng):
        terms = super().loss(phase, batch, rng)
        return LossTerms(self.weights[-1] * terms.loss)


def test_a_weight_may_change_over_the_run_and_a_resume_knows_it(tmp_path):
    unbroken = make_loop(seeded(Fading), tmp_path / "unbroken")
    run(unbroken)
    assert unbroken.model.weights == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0, 0.0]
    first = make_loop(seeded(Fading), tmp_path / "broken")
    assert not first.run(stop_after(first, 16))
    second = resumed(tmp_path / "broken", Fading())
    run(second)
    assert second.model.weights == unbroken.model.weights[2:]
    ends = [load_checkpoint(checkpoint_path(tmp_path / name / "checkpoints", 64)) for name in ("unbroken", "broken")]
    assert ends[0].hashes == ends[1].hashes


def test_the_model_may_say_what_failed(tmp_path):
    class Knowing(Exploding):
        where = "vb"

        def fault(self) -> str | None:
            return "its third layer"

    with pytest.raises(RunError, match=r"is not finite at 24 .* may help; its third layer$"):
        run(make_loop(seeded(Knowing), tmp_path / "run"))

    class BesideAnother(World):
        def gather(self, value):
            return [value, "a layer there"]

    for kind, said in ((Exploding, "a layer there"), (Knowing, "its third layer")):
        loop = make_loop(seeded(kind), tmp_path / kind.__name__, world=BesideAnother(0, 1, torch.device("cpu")))
        with pytest.raises(RunError, match=rf"is not finite at 24 .* may help; {said}$"):
            run(loop)
    loop = make_loop(seeded(Knowing), tmp_path / "late", total_images=24)
    step, check = loop._step, loop._check

    def unwaiting(*given):  # as on a GPU, where the line of the log is the first to wait for what the steps measure
        loop._check = lambda: None
        carried = step(*given)
        loop._check = check
        return carried

    loop._step = unwaiting
    with pytest.raises(RunError, match=r"is not finite at 24 .* may help; its third layer$"):
        run(loop)


@pytest.mark.parametrize("saves_memory", [False, True])
def test_gradients_keep_their_place_where_memory_is_saved(tmp_path, saves_memory):
    model = seeded(Denoiser)
    model.saves_memory = saves_memory
    loop = make_loop(model, tmp_path / "run", total_images=24)
    run(loop)
    other = make_loop(seeded(Denoiser), tmp_path / "other", total_images=24)
    run(other)
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all((gradient is not None) == saves_memory for gradient in gradients)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.model.parameters(), strict=True))


def test_a_phase_may_have_a_rate_of_its_own(tmp_path):
    model = seeded(Pair)
    model.phases = (replace(model.phases[0], rate=4.0), model.phases[1])
    loop = make_loop(model, tmp_path / "run", total_images=16, batch_size=4, optim=OptimConfig(learning_rate=1e-3))
    run(loop)
    rates = {name: updater.optimizer.param_groups[0]["lr"] for (name,), updater in loop.updaters.items()}
    assert rates == {"discriminator": 4e-3, "generator": 1e-3}


def test_a_phase_may_have_settings_of_its_own(tmp_path):
    """The steps of Adam by hand, with a beta2 that rises, a gradient that is clipped, and the other network as ever."""
    beta2 = Ramp(start=0.5, end=0.9, images=16, shape="linear")
    changed = PhaseOptimConfig(phase="discriminator", beta2=beta2, clip_norm=1e-3, eps=1e-2)
    optim = OptimConfig(name="adam", learning_rate=1e-2, betas=(0.5, 0.9), phases=(changed,))
    loop = make_loop(seeded(Pair), tmp_path / "run", total_images=32, batch_size=4, optim=optim)
    updaters = {updater.name: updater for updater in loop.updaters.values()}
    groups = {name: [] for name in updaters}
    weight, seen = loop.model.discriminator.weight, []
    for name, updater in updaters.items():
        take = updater.optimizer.step

        def watched(take=take, name=name, updater=updater):
            (group,) = updater.optimizer.param_groups
            groups[name].append((group["betas"][1], group["eps"]))
            before, norm = weight.detach().clone(), torch.nn.utils.get_total_norm([p.grad for p in updater.parameters.values()])
            take()
            if name == "discriminator":
                seen.append((weight.grad.clone(), before - weight.detach(), float(norm)))

        updater.optimizer.step = watched
    run(loop)
    assert groups["generator"] == [(0.9, 1e-8)] * 4
    rising = [0.5, 0.5, 0.7, 0.7, 0.9, 0.9, 0.9, 0.9]
    assert groups["discriminator"] == [(pytest.approx(value), 1e-2) for value in rising]
    m = v = torch.zeros_like(weight)
    for step, (value, (gradient, moved, norm)) in enumerate(zip(rising, seen, strict=True), start=1):
        assert norm <= 1.001e-3
        m, v = 0.5 * m + 0.5 * gradient, value * v + (1 - value) * gradient**2
        expected = 1e-2 * (m / (1 - 0.5**step)) / ((v / (1 - value**step)).sqrt() + 1e-2)
        torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-6)


def test_averages_are_copies_until_they_start(tmp_path):
    for images, same in ((24, True), (32, False)):
        model = seeded(Denoiser)
        loop = make_loop(model, tmp_path / str(images), total_images=images, ema_start=24)
        run(loop)
        (average, _), state = loop.averages, dict(model.named_parameters())
        assert all(torch.equal(average.tensors[name], parameter) == same for name, parameter in state.items())


def test_averages_with_a_warm_up_may_start_late(tmp_path):
    """Ten steps before the start (1 + n) / (10 + n) has no value, and is not needed."""
    model = seeded(Denoiser)
    loop = make_loop(model, tmp_path / "run", total_images=96, ema_start=96, ema_warmup=True)
    run(loop)
    assert all(torch.equal(loop.averages[0].tensors[name], parameter) for name, parameter in model.named_parameters())


class Overflowing(Denoiser):
    """Its gradient overflows in fp16 while the loss scale is above 2^limit."""

    limit = 18.0

    def loss(self, phase, batch, rng):
        terms = super().loss(phase, batch, rng)
        return LossTerms(_Overflow.apply(terms.loss.float(), 2.0**self.limit / 8))


class _Overflow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, limit):
        ctx.limit = limit
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return torch.where(gradient > ctx.limit, math.inf, gradient), None


def test_the_rate_that_is_logged_is_that_of_the_iteration_also_where_no_step_is_taken(tmp_path):
    rates = {}
    for model in (Denoiser, Overflowing):
        optim, log = OptimConfig(learning_rate=1e-3, warmup_images=48), LogConfig(every=8)
        loop = make_loop(seeded(model), tmp_path / model.__name__, precision="fp16", total_images=32, optim=optim, log=log)
        run(loop)
        rates[model] = [line["learning_rate"] for line in metrics(tmp_path / model.__name__) if "learning_rate" in line]
        (updater,) = loop.updaters.values()
    assert rates[Denoiser] == rates[Overflowing] and len(set(rates[Denoiser])) == 4
    assert not updater.stepped, "the last one overflowed"


def test_loss_scale_falls_until_the_gradient_is_finite(tmp_path):
    settings = {"precision": "fp16", "total_images": 8 * 6, "loss_scale_growth": 0.25, "log": LogConfig(every=8)}
    loop = make_loop(seeded(Overflowing), tmp_path / "run", **settings)
    start = loop.model.get_parameter("network.0.weight").detach().clone()
    (updater,) = loop.updaters.values()
    scales, moved = [], []
    step = loop._step

    def watched(*arguments):
        carried = step(*arguments)
        scales.append(updater.scale.log2_scale)
        moved.append(not torch.equal(loop.model.get_parameter("network.0.weight"), start))
        return carried

    loop._step = watched
    run(loop)
    assert scales == [19.0, 18.0, 18.25, 17.25, 17.5, 17.75]
    assert moved == [False, False, True, True, True, True]
    assert [line["network/log2_loss_scale"] for line in metrics(tmp_path / "run") if "learning_rate" in line] == scales
    checkpoint = load_newest(tmp_path / "run/checkpoints", warn=pytest.fail)
    assert checkpoint.info["log2_loss_scale"] == {"network": 17.75}


def test_a_gradient_that_overflows_in_fp16_costs_steps_and_nothing_else(tmp_path):
    loop = make_loop(seeded(Denoiser), tmp_path / "run", precision="fp16", total_images=8 * 40, loss_scale=2.0**40)
    start = {name: parameter.detach().clone() for name, parameter in loop.model.named_parameters()}
    run(loop)
    (updater,) = loop.updaters.values()
    assert 10 < updater.scale.log2_scale < 39  # it fell for as long as its products exceeded 65,504
    checkpoint = load_newest(tmp_path / "run/checkpoints", warn=pytest.fail)
    assert all(tensor.isfinite().all() for file in checkpoint.files.values() for tensor in file.values())
    assert all(not torch.equal(checkpoint.files["model"][name], tensor) for name, tensor in start.items())


def test_loss_scale_has_a_floor(tmp_path):
    model = seeded(Overflowing)
    model.limit = -1.0
    loop = make_loop(model, tmp_path / "run", precision="fp16", loss_scale=4.0, total_images=800)
    with pytest.raises(RunError, match=r"loss scale fell below its floor \(1\)"):
        run(loop)
    assert list_checkpoints(tmp_path / "run/checkpoints") == []


def test_a_clock_that_jumps_changes_nothing(tmp_path, monkeypatch):
    """Back and forth by years, as when a machine learns the time after its start; what counts seconds uses another clock."""
    made, years = {}, itertools.cycle((0.0, 2e9, 1.7e9, -1.0))
    for name in ("steady", "jumping"):
        if name == "jumping":
            monkeypatch.setattr(time, "time", lambda: next(years))
            monkeypatch.setattr(time, "time_ns", lambda: int(next(years) * 1e9))
        loop = make_loop(seeded(Denoiser), tmp_path / name, total_images=64, checkpoint_minutes=5.0, keep_last=9)
        assert run(loop)
        assert list_checkpoints(tmp_path / name / "checkpoints") == [64]  # none was overdue
        made[name] = load_newest(tmp_path / name / "checkpoints", warn=pytest.fail)
    assert made["steady"].hashes == made["jumping"].hashes


def test_a_checkpoint_is_due_so_many_minutes_after_the_last_one(tmp_path, monkeypatch):
    loop = make_loop(seeded(Denoiser), tmp_path / "run", total_images=64, checkpoint_every=None, checkpoint_minutes=2.0, keep_last=9)
    monkeypatch.setattr("triptych.engine.loop.time", SimpleNamespace(monotonic=lambda: 60.0 * loop.images_seen / 8))  # a minute a step
    assert run(loop)
    assert list_checkpoints(tmp_path / "run/checkpoints") == [16, 32, 48, 64]


def test_checkpoints_that_are_kept_are_written(tmp_path):
    """Where a batch passes a multiple of keep_every, whatever else is due."""
    loop = make_loop(seeded(Denoiser), tmp_path / "run", total_images=64, checkpoint_every=None, keep_every=20, keep_last=1)
    assert run(loop)
    assert list_checkpoints(tmp_path / "run/checkpoints") == [24, 40, 64]


class Late(Agreement):
    """The agreement of several processes: each vote gives the wishes of the call before."""

    def __init__(self, world):
        super().__init__(world)
        self.lags, self.before = True, None

    def vote(self, wishes):
        before, self.before = self.before, dict(wishes)
        return before or dict.fromkeys(wishes, False)


def test_a_checkpoint_that_several_processes_wish_for_is_written_once(tmp_path, monkeypatch):
    assert [Agreement(SimpleNamespace(size=size)).lags for size in (1, 2)] == [False, True]
    monkeypatch.setattr("triptych.engine.loop.Agreement", Late)
    loop = make_loop(seeded(Denoiser), tmp_path / "run", total_images=64, checkpoint_every=None, checkpoint_minutes=1e-9, keep_last=9)
    assert run(loop)
    assert list_checkpoints(tmp_path / "run/checkpoints") == [16, 32, 48, 64]


def test_a_finished_run_gives_up_the_checkpoints_that_it_shall_keep_no_more(tmp_path):
    run(make_loop(seeded(Denoiser), tmp_path, checkpoint_every=16, keep_last=3))
    assert list_checkpoints(tmp_path / "checkpoints") == [32, 48, 64]
    run(resumed(tmp_path, Denoiser(), keep_last=1))
    assert list_checkpoints(tmp_path / "checkpoints") == [64]


def test_clipping_bounds_the_gradient_of_the_step(tmp_path):
    loop = make_loop(
        seeded(Denoiser), tmp_path / "run", total_images=8, optim=OptimConfig(learning_rate=1.0, name="adamax", clip_norm=1e-3)
    )
    (updater,) = loop.updaters.values()
    norms = []
    step = updater.optimizer.step
    updater.optimizer.step = lambda: (
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in updater.parameters.values()]).item()),
        step(),
    )
    run(loop)
    assert norms == [pytest.approx(1e-3, rel=1e-3)]


def test_best_checkpoint_is_kept(tmp_path):
    scores = iter([3.0, 1.0, 2.0, 2.5, 2.0, 2.0, 2.0, 2.0])
    loop = make_loop(
        seeded(Denoiser),
        tmp_path / "run",
        validate=lambda watch: {"denoise/loss": next(scores)},
        validate_every=8,
        checkpoint_every=8,
        keep_last=1,
    )
    run(loop)
    assert loop.best == {"score": 1.0, "images": 16, "by": "validation"}
    assert list_checkpoints(tmp_path / "run/checkpoints") == [16, 64]


def test_validation_sees_the_averaged_weights(tmp_path):
    seen = []
    model = seeded(Denoiser)
    loop = make_loop(
        model,
        tmp_path / "run",
        total_images=8,
        validate=lambda watch: seen.append(model.network[0].weight.detach().clone()) or {"loss": 0.0},
    )
    run(loop)
    assert torch.equal(seen[0], loop.averages[0].tensors["network.0.weight"])
    assert not torch.equal(seen[0], model.network[0].weight)


def test_coupled_samples_refuse_microbatches(tmp_path):
    model = seeded(Denoiser)
    model.couples_samples = True
    with pytest.raises(ConfigError, match=r"train.microbatch: got 4.*Denoiser"):
        make_loop(model, tmp_path / "run", microbatch=4)


def test_groups_of_samples_stay_together(tmp_path):
    model = seeded(Denoiser)
    model.group_size = 4
    make_loop(model, tmp_path / "run", microbatch=4)
    with pytest.raises(ConfigError, match=r"train.microbatch: got 6, expected a multiple of 4"):
        make_loop(model, tmp_path / "run", microbatch=6)
    with pytest.raises(ConfigError, match=r"train.batch_size: got 6, expected a multiple of 4: the model takes images in groups of 4$"):
        make_loop(model, tmp_path / "run", batch_size=6)
    world = World(0, 3, torch.device("cpu"))
    refuse_impossible(model, TrainConfig(total_images=1, batch_size=24), world)
    with pytest.raises(
        ConfigError, match=r"train.batch_size: got 16, expected a multiple of 12: the model takes .* groups of 4 in each of 3 p"
    ):
        refuse_impossible(model, TrainConfig(total_images=1, batch_size=16), world)


@pytest.mark.parametrize("stop_at", [16, 24, 40])
def test_the_line_of_metrics_after_a_resume_averages_its_whole_window(tmp_path, stop_at):
    """Lines come every 24 images, so that a stop at 16 or 40 lies within a window."""
    settings = {"log": LogConfig(every=24), "total_images": 64}
    run(make_loop(seeded(Denoiser), tmp_path / "unbroken", **settings))
    first = make_loop(seeded(Denoiser), tmp_path / "broken", **settings)
    assert not first.run(stop_after(first, stop_at))
    run(resumed(tmp_path / "broken", Denoiser(), **settings))
    assert [line["images"] for line in metrics(tmp_path / "unbroken")] == [24, 48, 64]
    assert metrics(tmp_path / "broken") == metrics(tmp_path / "unbroken")
    times = [line["time"] for line in read_metrics(tmp_path / "broken/metrics.jsonl")]
    assert times == sorted(times)


def test_a_checkpoint_without_a_window_opens(tmp_path):
    run(make_loop(seeded(Denoiser), tmp_path / "run", total_images=16))
    state = tmp_path / "run/checkpoints/000000016/state.json"
    document = json.loads(state.read_text())
    assert document.pop("window") == {} and document.pop("digest")
    state.write_text(json.dumps(document))
    loop = resumed(tmp_path / "run", Denoiser(), total_images=24)
    assert run(loop) and loop.images_seen == 24


@pytest.mark.parametrize("what", ["save", "_draw", "_validate"])
def test_nothing_is_made_of_measurements_that_are_not_finite(tmp_path, what):
    """On a device they wait to be looked at, which is done at the latest before a checkpoint, a picture and a validation."""
    made: list[object] = []
    loop = make_loop(seeded(Denoiser), tmp_path / "run", validate=lambda watch: made.append("values"))
    terms = TermSums()
    terms.add(LossTerms(torch.tensor([1.0, torch.nan])))
    loop.measurements.add(StepRecord("denoise", 24, terms, torch.tensor(1.0)))
    with pytest.raises(RunError, match=r'"denoise": the loss term "loss" is not finite at 24'):
        getattr(loop, what)(*([{"": lambda path, watch: made.append(path)}] if what == "_draw" else []))
    assert not made and not any((tmp_path / "run/checkpoints").iterdir())


def test_the_gradient_under_fp16_is_that_of_float32(tmp_path):
    """Multiplied by the loss scale and divided by it again."""
    norms = {}
    for precision in ("float32", "fp16"):
        loop = make_loop(seeded(Denoiser), tmp_path / precision, precision=precision, loss_scale=1024.0, ema_rates=())
        batch = next(loop.callables.draw(0)).to("cpu")
        (updater,) = loop.updaters.values()
        (phase,) = loop.model.phases
        progress = TrainingProgress(0, 8, 8)
        settings = replace(step_settings(loop.optim, phase, progress), learning_rate=0.0)
        record, *_ = updater.step(phase, batch, rng=Rng(0, ("a",), batch.index), settings=settings, total=8, progress=progress)
        norms[precision] = float(record.gradient_norm)
    assert norms["fp16"] == pytest.approx(norms["float32"], rel=0.02)
