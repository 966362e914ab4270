"""What all GANs have in common: phases, penalties, top-k, averages, against hand computations on a small one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.engine.toys import START, make_loop, run
from tests.gans import top_k_worker
from tests.gans.top_k_worker import COUNT, SETTINGS, terms_and_gradients
from tests.gans.toy_gan import STRONG, Toy, images_of, toy
from tests.processes import run_together
from triptych.core.errors import ConfigError
from triptych.core.model import LossTerms, Phase, TrainingProgress
from triptych.core.rng import Rng
from triptych.engine.checkpoint import checkpoint_path, load_checkpoint, load_newest
from triptych.engine.config import AverageConfig, OptimConfig
from triptych.engine.ema import Average
from triptych.engine.loop import Loop
from triptych.engine.signals import StopRequest
from triptych.gans.augmentation import augmented
from triptych.gans.discriminators import Scores
from triptych.gans.losses import AdversarialConfig
from triptych.gans.model import GANConfig, TopKConfig
from triptych.gans.penalties import PenaltyConfig
from triptych.gans.weight_norms import normalised_weight, spectral_layers
from triptych.nn.batch_norm import batch_norms
from triptych.runs.weights import load_fitting_weights, load_weights

pytestmark = pytest.mark.usefixtures("float64")  # float32 rounds differently with the batch and the kind of CPU


def phase_of(model: Toy, name: str) -> Phase:
    return next(phase for phase in model.phases if phase.name == name)


def rng_of(name: str, count: int = COUNT) -> Rng:
    return Rng(0, (name, 0), torch.arange(count))


def terms_of(model: Toy, name: str, count: int = COUNT) -> LossTerms:
    return model.loss(phase_of(model, name), images_of(count), rng_of(name, count))


def score_means(outputs: tuple[Tensor, ...], change=lambda x: x) -> Tensor:
    """The mean over both scales of the means over their maps: (b,)."""
    return sum(change(x).mean((1, 2, 3)) for x in outputs) / len(outputs)


# Terms


def test_terms_and_their_weights() -> None:
    model, batch = toy(adversarial_weight=0.7), images_of(COUNT)
    with torch.no_grad():
        fake = model.made(batch, rng_of("generator"))
        real_scores, fake_scores = model.discriminator(batch.images), model.discriminator(fake)
    found = terms_of(model, "generator")
    features = sum((a[0] - b[0]).abs().mean((1, 2, 3)) for a, b in zip(real_scores.features, fake_scores.features, strict=True)) / 2
    expected = {
        "adversarial": -score_means(fake_scores.outputs),
        "features": features,
        "distance": (fake - batch.images).abs().mean((1, 2, 3)),
    }
    assert list(found.logged) == list(expected)
    for name, term in expected.items():
        torch.testing.assert_close(found.logged[name], term)
        assert not found.logged[name].requires_grad and term.std() > 1e-3
    torch.testing.assert_close(found.loss, 0.7 * expected["adversarial"] + 0.5 * features + 0.25 * expected["distance"])
    with torch.no_grad():
        fake_scores = model.discriminator(model.made(batch, rng_of("discriminator")))
    found = terms_of(model, "discriminator")
    real_loss, fake_loss = (
        score_means(real_scores.outputs, lambda x: F.relu(1 - x)),
        score_means(fake_scores.outputs, lambda x: F.relu(1 + x)),
    )
    assert list(found.logged) == ["real", "fake"]
    torch.testing.assert_close(found.logged["real"], real_loss)
    torch.testing.assert_close(found.logged["fake"], fake_loss)
    torch.testing.assert_close(found.loss, real_loss + fake_loss)
    found.loss.mean().backward()
    assert all(parameter.grad is None for parameter in model.generator.parameters()), "no part of the discriminator's loss"


def test_relativistic_scores_are_differences_of_partners() -> None:
    model, batch = toy(adversarial=AdversarialConfig(kind="non_saturated", relativistic=True)), images_of(COUNT)
    assert not model.couples_samples
    for phase in ("discriminator", "generator"):
        with torch.no_grad():
            real, fake = model.discriminator(batch.images).outputs, model.discriminator(model.made(batch, rng_of(phase))).outputs
        ahead = tuple(a - b for a, b in zip(real, fake, strict=True))
        found = terms_of(model, phase).logged
        if phase == "generator":
            torch.testing.assert_close(found["adversarial"], score_means(ahead, lambda x: F.softplus(x)))
        else:
            torch.testing.assert_close(found["real"], score_means(ahead, lambda x: F.softplus(-x)) / 2)
            torch.testing.assert_close(found["fake"], score_means(ahead, lambda x: F.softplus(-x)) / 2)


def test_evaluation_has_distances_alone() -> None:
    model, batch = toy().eval(), images_of(COUNT)
    found = terms_of(model, "generator")
    with torch.no_grad():
        distance = (model.made(batch, rng_of("generator")) - batch.images).abs().mean((1, 2, 3))
    assert list(found.logged) == ["distance", "square"] and model.validated == ("generator",)
    torch.testing.assert_close(found.loss, distance)
    torch.testing.assert_close(found.logged["square"], distance.square())


def test_what_the_discriminator_sees() -> None:
    model, batch = toy(augment=("color", "translation")), images_of(COUNT)
    rng = rng_of("discriminator")
    (contest,) = model.contests(model.made(batch, rng), batch, rng)
    assert contest.real.images is batch.images and contest.fake.view is contest.real.view
    seen, maps = contest.real.view(batch.images), contest.real.view(batch.images, maps=True)
    assert torch.equal(seen, augmented(batch.images, rng.child("augment", ""), policy=("color", "translation")))
    assert torch.equal(maps, augmented(batch.images, rng.child("augment", ""), policy=("translation",)))
    other = model.contest(batch.images, batch.images, rng, discriminate=lambda view: model.discriminator, name="b")
    assert not torch.equal(other.real.view(batch.images), seen)
    (plain,) = toy().contests(batch.images, batch, rng)
    assert plain.real.view(batch.images) is batch.images


# Phases


def optimise(model: Toy, name: str) -> tuple[set[str], list[str]]:
    """The names of the tensors that a step of a phase changes, and of the parameters that had no gradient."""
    phase = phase_of(model, name)
    for network in ("generator", "discriminator"):
        getattr(model, network).requires_grad_(network in phase.networks)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    model.prepare(phase, START)
    terms_of(model, name).loss.mean().backward()
    own = {key: parameter for key, parameter in model.named_parameters() if parameter.requires_grad}
    torch.optim.SGD(own.values(), lr=0.1).step()
    model.stepped(phase)
    changed = {key for key, tensor in model.state_dict().items() if not torch.equal(tensor, before[key])}
    return changed, [key for key, parameter in own.items() if parameter.grad is None]


@pytest.mark.parametrize("norm", ["none", "batch", "sync_batch"])
def test_a_phase_changes_its_own_network_alone(norm: Any) -> None:
    model = toy(norm=norm)
    assert model.couples_samples == (norm != "none") == bool(batch_norms(model))
    for name in ("discriminator", "generator"):
        changed, without = optimise(model, name)
        assert {key.partition(".")[0] for key in changed} == {name} and not without
        kinds = {key.rpartition(".")[2] for key in changed}
        assert {"weight_orig", "weight_u", "weight_v", "weight", "bias"} <= kinds
        assert ("running_var" in kinds) == (norm != "none")


def test_lazy_penalty_has_a_phase_of_its_own() -> None:
    model = toy(penalty=PenaltyConfig(r1_gamma=3.0, every=4), discriminator_rate=2.0)
    assert [(phase.name, phase.networks, phase.every, phase.rate, phase.partial) for phase in model.phases] == [
        ("discriminator", ("discriminator",), 1, 2.0, False),
        ("penalty", ("discriminator",), 4, 2.0, True),
        ("generator", ("generator",), 1, 1.0, False),
    ]
    changed, without = optimise(model, "penalty")
    assert {key.partition(".")[0] for key in changed} == {"discriminator"}
    assert without == ["discriminator.last.layers.conv.bias"], "which no gradient of an image has a part in"


@pytest.mark.parametrize(("every", "steps", "times"), [(1, 1, 1), (1, 3, 1), (4, 1, 4), (4, 3, 12)])
def test_a_penalty_is_as_strong_in_the_mean_however_lazy(every: int, steps: int, times: int) -> None:
    """One step of a lazy one stands for all that the discriminator takes in so many iterations."""
    settings: dict[str, Any] = {"penalty": PenaltyConfig(r1_gamma=3.0, every=every), "discriminator_steps": steps}
    always = toy(penalty=PenaltyConfig(r1_gamma=3.0))
    name = "penalty" if every > 1 else "discriminator"
    found, expected = terms_of(toy(**settings), name).logged["r1"], terms_of(always, "discriminator").logged["r1"]
    torch.testing.assert_close(found, times * expected)


def test_the_count_of_steps_in_earlier_checkpoints_is_ignored() -> None:
    model = toy(**SETTINGS)
    tensors = {**toy(**SETTINGS).state_dict(), "generator_steps": torch.tensor(7)}
    load_weights(model, tensors)
    assert load_fitting_weights(model, tensors).lines == []


def test_steps_have_slices_of_their_own(tmp_path: Path) -> None:
    model = toy(discriminator_steps=3, generator_steps=2, penalty=PenaltyConfig(r1_gamma=1.0, every=2))
    seen: dict[str, list[list[int]]] = {}
    loss = model.loss

    def watched(phase, batch, rng):
        assert rng.stream[0] == phase.name
        seen.setdefault(f"{phase.name} {rng.stream[1]}", []).append(batch.index.tolist())
        return loss(phase, batch, rng)

    model.loss = watched  # type: ignore[method-assign]
    loop = make_loop(model, tmp_path / "run", total_images=18, batch_size=2, ema_rates=())
    run(loop)
    assert seen == {
        "discriminator 0": [[0, 1], [6, 7], [12, 13]],
        "discriminator 1": [[2, 3], [8, 9], [14, 15]],
        "discriminator 2": [[4, 5], [10, 11], [16, 17]],
        "generator 0": [[0, 1], [6, 7], [12, 13]],
        "generator 1": [[2, 3], [8, 9], [14, 15]],
        "penalty 0": [[0, 1], [12, 13]],
    }


def test_the_discriminator_may_learn_at_another_rate(tmp_path: Path) -> None:
    loop = make_loop(toy(discriminator_rate=4.0), tmp_path / "run", total_images=8, optim=OptimConfig(learning_rate=1e-3))
    run(loop)
    rates = {name: updater.optimizer.param_groups[0]["lr"] for (name,), updater in loop.updaters.items()}
    assert rates == {"discriminator": 4e-3, "generator": 1e-3}


# Penalties


class Linear(nn.Module):
    """The score of an image is its product with a vector, whose gradient everywhere is that vector."""

    def __init__(self) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.arange(108.0).view(3, 6, 6) / 100)

    def forward(self, images: Tensor) -> Scores:
        return Scores(((self.direction * images).sum((1, 2, 3))[:, None],), ())


@pytest.mark.parametrize("every", [1, 16])
def test_penalties_of_a_linear_discriminator(every: int) -> None:
    model = toy(judge=Linear(), penalty=PenaltyConfig(r1_gamma=3.0, r2_gamma=0.5, every=every))
    square = sum((k / 100) ** 2 for k in range(108))
    found = terms_of(model, "penalty" if every > 1 else "discriminator")
    assert list(found.logged) == ["r1", "r2"] if every > 1 else ["real", "fake", "r1", "r2"]
    torch.testing.assert_close(found.logged["r1"], torch.full((COUNT,), every * 1.5 * square))
    torch.testing.assert_close(found.logged["r2"], torch.full((COUNT,), every * 0.25 * square))
    torch.testing.assert_close(found.loss, sum(found.logged.values()))
    found.loss.mean().backward()
    gradient, rest = model.discriminator.direction.grad, torch.zeros(3, 6, 6)
    if every == 1:  # the scores' own part
        plain = toy(judge=Linear())
        terms_of(plain, "discriminator").loss.mean().backward()
        rest = plain.discriminator.direction.grad
    torch.testing.assert_close(gradient - rest, every * 3.5 * model.discriminator.direction.detach(), rtol=1e-4, atol=1e-4)
    if every > 1:
        assert list(terms_of(model, "discriminator").logged) == ["real", "fake"]


def test_one_of_two_penalties() -> None:
    for name in ("r1", "r2"):
        model = toy(penalty=PenaltyConfig(**{f"{name}_gamma": 1.0}))
        assert list(terms_of(model, "discriminator").logged) == ["real", "fake", name]
    assert [phase.name for phase in toy(penalty=PenaltyConfig(every=4)).phases] == ["discriminator", "generator"]


def test_penalties_refuse_batch_norm() -> None:
    for norm in ("batch", "sync_batch"):
        with pytest.raises(ConfigError, match=r"^penalty: the discriminator has batch norm"):
            toy(norm=norm, penalty=PenaltyConfig(r1_gamma=1.0))
    toy(norm="instance", penalty=PenaltyConfig(r1_gamma=1.0))


# Top-k


def test_top_k_keeps_ever_fewer_of_the_best() -> None:
    plain, model = toy(spectral=False), toy(spectral=False, top_k=TopKConfig(least=0.3, decay=0.5, round_steps=2))
    adversarial = terms_of(plain, "generator").logged["adversarial"]
    best = adversarial.argsort()  # the best have the highest scores, so the lowest loss
    # 7 samples, rounds of 2 steps: a share of 1, 0.5, 0.5, and then at least 0.3, rounded.
    for iteration, kept in enumerate((7, 4, 4, 2, 2)):
        model.prepare(phase_of(model, "generator"), TrainingProgress(4 * iteration, 4, total_images=20))
        model.prepare(phase_of(model, "discriminator"), START)
        found = terms_of(model, "generator").logged
        expected = torch.zeros(COUNT)
        expected[best[:kept]] = adversarial[best[:kept]] * COUNT / kept
        torch.testing.assert_close(found["adversarial"], expected)
        assert torch.equal(found["distance"], terms_of(plain, "generator").logged["distance"]), "other terms count for all"


def test_top_k_counts_each_step_of_the_generator() -> None:
    model, shares = toy(top_k=TopKConfig(least=0.1, decay=0.5, round_steps=3), generator_steps=2), []
    for iteration, step in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (500, 0)):
        model.prepare(phase_of(model, "generator"), TrainingProgress(8 * iteration, 8, total_images=8000, step=step))
        shares.append(model._top_k_share)
    assert shares == [1, 1, 0.5, 0.5, 0.5, 0.25, 0.1]


def test_top_k_refuses_microbatches(tmp_path: Path) -> None:
    model = toy(**SETTINGS)
    assert model.couples_samples and not toy().couples_samples
    with pytest.raises(ConfigError, match=r"train.microbatch: got 4.*Toy"):
        make_loop(model, tmp_path / "run", microbatch=4)
    assert "generator_steps" not in model.state_dict()


@pytest.mark.xdist_group("torchrun")
def test_two_processes_keep_what_one_keeps(tmp_path: Path) -> None:
    batch = images_of(COUNT)
    whole = terms_and_gradients(toy(**SETTINGS), batch, Rng(0, ("generator", 0), batch.index))
    run_together(2, top_k_worker.main, tmp_path)
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    kept = []
    for (terms, gradients), *shares in zip(whole, *parts, strict=True):
        kept.append(int((terms["adversarial"] != 0).sum()))
        for name, term in terms.items():
            torch.testing.assert_close(torch.cat([share[0][name] for share in shares]), term)
        for name, gradient in gradients.items():
            torch.testing.assert_close(shares[0][1][name] + shares[1][1][name], gradient, rtol=1e-4, atol=1e-5)
    assert kept == [5, 3, 2]  # 7 x 0.7, 7 x 0.49, 7 x 0.343


def interrupted(model: Toy, root: Path, *, stop_at: int | None, **settings: Any) -> Loop:
    """A loop that went on from what there is in `root`, to the end or to a stop."""
    loop = make_loop(model, root, total_images=32, batch_size=4, **settings)
    if (root / "checkpoints").exists() and (found := load_newest(root / "checkpoints", warn=pytest.fail)) is not None:
        model.load_state_dict(found.files["model"])
        loop = make_loop(model, root, total_images=32, batch_size=4, **settings)
        loop.restore(found)
    stop, iteration = StopRequest(), loop._iteration

    def until(batches):
        iteration(batches)
        stop.name = "SIGTERM" if stop_at is not None and loop.images_seen >= stop_at else None

    loop._iteration = until  # type: ignore[method-assign]
    assert loop.run(stop) == (stop_at is None)
    return loop


def test_an_interrupted_game_ends_with_the_same_bytes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "penalty": PenaltyConfig(r1_gamma=1.0, every=3),
        "top_k": TopKConfig(least=0.3, decay=0.5, round_steps=2),
        "augment": ("translation",),
        "norm": "instance",
    }
    interrupted(toy(**settings), tmp_path / "unbroken", stop_at=None)
    interrupted(toy(**settings), tmp_path / "broken", stop_at=12)
    interrupted(toy(**settings), tmp_path / "broken", stop_at=None)
    ends = [load_checkpoint(checkpoint_path(tmp_path / name / "checkpoints", 32)) for name in ("unbroken", "broken")]
    assert ends[0].hashes == ends[1].hashes and "generator_steps" not in ends[0].files["model"]


# Averages


def test_averages_follow_the_weights_as_they_are_applied() -> None:
    model = toy(norm="batch")
    average = Average(model, AverageConfig(rate=0.75))
    layers = list(spectral_layers(model.generator))
    assert len(layers) == 1 and set(model.effective()) == {"generator.0.layers.conv.weight_orig"}
    expected = [normalised_weight(layer).detach() for layer in layers]
    for step in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5).add_(torch.randn_like(parameter))
        model.stepped(phase_of(model, "generator"))
        expected = [0.75 * old + 0.25 * normalised_weight(layer).detach() for old, layer in zip(expected, layers, strict=True)]
        average.update(step, images=1)
    live = [normalised_weight(layer).detach() for layer in layers]
    assert all(name.startswith("generator.") for name in average.tensors)
    judge = {name: tensor.clone() for name, tensor in model.discriminator.state_dict().items()}
    with average.applied():
        for layer, weight, other in zip(layers, expected, live, strict=True):
            torch.testing.assert_close(normalised_weight(layer).detach(), weight)
            torch.testing.assert_close(layer.weight_orig, weight, msg="sigma is 1")
            assert (weight - other).abs().max() > 1e-3
        assert all(torch.equal(tensor, judge[name]) for name, tensor in model.discriminator.state_dict().items())
    for layer, weight in zip(layers, live, strict=True):
        assert torch.equal(normalised_weight(layer), weight)


def test_averages_take_their_statistics_from_the_images_that_are_judged() -> None:
    model = toy(norm="batch")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        model.run_averaged(images_of(COUNT), rng_of("statistics"))
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {f"generator.0.layers.norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}


# Settings


def test_both_networks_are_initialised() -> None:
    model, other = toy(), toy(initial=STRONG.updated({"gain": 2.0}))
    for network in ("generator", "discriminator"):
        for layer, twice in zip(*(spectral_layers(getattr(m, network)) for m in (model, other)), strict=True):
            torch.testing.assert_close(twice.weight_orig, 2 * layer.weight_orig)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("adversarial_weight", -1.0),
        ("adversarial_weight", float("inf")),
        ("adversarial_weight", float("nan")),
        ("discriminator_steps", 0),
        ("generator_steps", 0),
        ("discriminator_rate", 0.0),
        ("discriminator_rate", float("inf")),
        ("augment", ("color", "color")),
    ],
)
def test_settings_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: got "):
        GANConfig(**{name: value})


@pytest.mark.parametrize(("name", "value"), [("least", 0.0), ("least", 1.1), ("decay", 0.0), ("decay", 1.5), ("round_steps", 0)])
def test_settings_of_top_k_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: got "):
        TopKConfig(**{name: value})
