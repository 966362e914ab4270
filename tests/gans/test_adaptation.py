"""ADA in a game: what the discriminator sees, how p is steered, and that it goes on from checkpoints, by microbatches, over processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.contract.kinds import able
from tests.contract.moved import first_batch, moved_model
from tests.contract.shrink import shrunk
from tests.engine.toys import make_loop, metrics, resumed, run, stop_after
from tests.float64 import in_float64
from tests.gans.noise_gan import SIZE, ToyNoiseGAN, labelled, noise_gan
from tests.processes import run_together
from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import TrainingProgress
from triptych.core.outline import without_weights
from triptych.core.ramp import Ramp
from triptych.core.rng import Rng
from triptych.engine.checkpoint import checkpoint_path, load_checkpoint
from triptych.engine.config import LogConfig
from triptych.engine.distributed import open_world
from triptych.gans.ada import ADAConfig, adapted
from triptych.gans.adaptation import Adaptation, mean_signs
from triptych.gans.augmentation import augmented
from triptych.gans.clip_base import ClipGAN, ClipGANConfig
from triptych.gans.crops import CropConfig
from triptych.gans.from_noise import NoiseGANConfig
from triptych.gans.losses import AdversarialConfig
from triptych.gans.model import GAN, GANConfig
from triptych.gans.penalties import PenaltyConfig

pytestmark = pytest.mark.usefixtures("float64")

COUNT = 6
OFTEN = ADAConfig(p=0.8, cutout=1.0, noise=1.0, image_filter=1.0)
STEERED = ADAConfig(target=0.2, every=2, images=60)
SIGNED = AdversarialConfig(kind="non_saturated")


def prepared(ada: Adaptation, iteration: int, *, batch: int = 10) -> float:
    ada.prepare(TrainingProgress(batch * iteration, batch, total_images=1000))
    return ada.p.item()


def test_p_rises_above_the_target_falls_below_it_and_never_under_0() -> None:
    ada = Adaptation(ADAConfig(target=0.5, every=2, images=400))
    assert prepared(ada, 0) == 0, "nothing was seen yet"
    ada.observe(torch.ones(10))
    assert prepared(ada, 1) == 0, "not due"
    ada.observe(torch.zeros(10))  # the mean of both is the target itself
    assert prepared(ada, 2) == 0
    for iteration, mean, expected in ((2, 0.6, 20), (4, 1.0, 40), (6, 0.4, 20), (8, -1.0, 0), (10, 0.0, 0)):
        ada.observe(torch.full((20,), mean))
        assert prepared(ada, iteration) == pytest.approx(expected / 400)
    for step in range(21):  # no upper bound
        ada.observe(torch.ones(20))
        prepared(ada, 12 + 2 * step)
    assert ada.p.item() == pytest.approx(1.05)
    assert Adaptation(ADAConfig(p=0.3, target=0.5)).p.item() == pytest.approx(0.3), "it may begin above 0"


def test_p_of_a_ramp_follows_the_images_seen() -> None:
    ramp = Ramp(start=0.0, end=0.3, images=100, shape="linear")
    ada = Adaptation(ADAConfig(p=ramp))
    assert [round(prepared(ada, iteration), 6) for iteration in (0, 5, 10, 50)] == [0, 0.15, 0.3, 0.3]
    ada.observe(torch.ones(10))
    assert not ada.state_dict(), "it follows from the images seen"
    with without_weights():
        assert Adaptation(ADAConfig(p=ramp)).p.device.type == "cpu", "no checkpoint will bring it"
    assert list(Adaptation(STEERED).state_dict()) == ["p", "signs"]


def test_the_sign_of_an_image_is_that_of_its_scores() -> None:
    assert mean_signs(torch.tensor([[2.0], [-0.1], [0.0]])).tolist() == [1, -1, 0]
    scales = [torch.tensor([[[1.0, -2.0], [3.0, 4.0]]]), torch.tensor([[-5.0]])]
    assert mean_signs(scales).tolist() == [(0.5 - 1) / 2]


def scores(model: ToyNoiseGAN, images: Tensor) -> Tensor:
    return model.discriminator(images, None).outputs[0][:, 0]


@pytest.mark.parametrize("alike", [True, False])
def test_the_discriminator_sees_changed_images_and_is_penalised_through_the_changes(alike: bool) -> None:
    """The loss and its gradient by hand: ADA first, then `augment`; R1 where the images were not changed yet."""
    penalty = PenaltyConfig(r1_gamma=0.7, at="original")
    model = noise_gan(adversarial=SIGNED, ada=OFTEN, augment=("translation",), augment_alike=alike, penalty=penalty)
    phase, rng = model.phases[0], Rng(0, ("discriminator", 0), torch.arange(COUNT))
    found = model.loss(phase, labelled(COUNT), rng)
    gradients = torch.autograd.grad(found.loss.sum(), list(model.discriminator.parameters()))

    draws = rng.child("augment", ""), rng.child("augment", "") if alike else rng.child("augment", "", "fake")
    real = labelled(COUNT).images.requires_grad_()
    fake = model.generator(rng.normal("z", 4), None).detach()
    seen = [
        augmented(adapted(x, draw.child("ada"), p=0.8, settings=OFTEN), draw, policy=("translation",))
        for x, draw in zip((real, fake), draws, strict=True)
    ]
    (slope,) = torch.autograd.grad(scores(model, seen[0]).sum(), real, create_graph=True)
    loss = F.softplus(-scores(model, seen[0])) + F.softplus(scores(model, seen[1])) + 0.35 * slope.flatten(1).square().sum(1)
    torch.testing.assert_close(found.loss, loss)
    torch.testing.assert_close(gradients, torch.autograd.grad(loss.sum(), list(model.discriminator.parameters())))
    torch.testing.assert_close(found.logged["ada_sign"], scores(model, seen[0]).sign().detach())
    assert found.logged["ada_p"].tolist() == pytest.approx([0.8] * COUNT)

    generator = model.loss(model.phases[-1], labelled(COUNT), Rng(0, ("generator", 0), torch.arange(COUNT)))
    rng = Rng(0, ("generator", 0), torch.arange(COUNT))
    draw = rng.child("augment", "") if alike else rng.child("augment", "", "fake")
    view = adapted(model.generator(rng.normal("z", 4), None), draw.child("ada"), p=0.8, settings=OFTEN)
    torch.testing.assert_close(generator.loss, F.softplus(-scores(model, augmented(view, draw, policy=("translation",)))))


def test_without_it_nothing_changes() -> None:
    plain, unused = noise_gan(), noise_gan(ada=ADAConfig(p=0.5).updated(dict.fromkeys(ADAConfig.changes(), 0.0)))
    assert plain.ada is None and unused.ada is None
    assert not any("ada" in name for name in plain.state_dict())
    assert not noise_gan(ada=OFTEN).state_dict().keys() - plain.state_dict().keys()


def test_colours_that_images_lack_are_refused_before_the_training() -> None:
    spec = DataSpec(image_size=SIZE, channels=4)
    with pytest.raises(ConfigError, match="^ada.brightness: images of 4 channels have no colours; .*, ada.saturation to 0$"):
        ToyNoiseGAN(NoiseGANConfig(ada=OFTEN), spec)
    ToyNoiseGAN(NoiseGANConfig(), spec)


def steered(**settings: Any) -> ToyNoiseGAN:
    return noise_gan(adversarial=SIGNED, ada=STEERED, discriminator_steps=2, **settings)


def test_a_game_steers_p_by_the_signs_of_both_steps(tmp_path: Path) -> None:
    model, observed, moved = steered(), [], []
    assert model.ada is not None
    observe, prepare = model.ada.observe, model.ada.prepare

    def watched(signs: Tensor) -> None:
        observed.append(signs.clone())
        observe(signs)

    def told(progress: TrainingProgress) -> None:
        prepare(progress)
        moved.append(model.ada.p.item())  # type: ignore[union-attr]

    model.ada.observe, model.ada.prepare = watched, told  # type: ignore[method-assign]
    run(make_loop(model, tmp_path / "run", batch_size=5, total_images=80, ema_rates=(), log=LogConfig(every=10)))
    assert [len(signs) for signs in observed] == [5] * 16
    p, expected = 0.0, []
    for iteration in range(8):
        if iteration and iteration % 2 == 0:
            since = torch.cat(observed[2 * iteration - 4 : 2 * iteration])
            p = max(0.0, p + (1 if since.mean() > 0.2 else -1 if since.mean() < 0.2 else 0) * 20 / 60)
        expected.append(p)
    assert moved == pytest.approx(expected, abs=1e-6)
    assert len(set(moved)) > 1, "it moved"
    lines = [line for line in metrics(tmp_path / "run") if "discriminator/ada_p" in line]
    assert [line["discriminator/ada_p"] for line in lines] == pytest.approx(expected, abs=1e-6)
    signs = [torch.cat(observed[2 * iteration : 2 * iteration + 2]).mean().item() for iteration in range(8)]
    assert [line["discriminator/ada_sign"] for line in lines] == pytest.approx(signs)


LENGTH: dict[str, Any] = {"batch_size": 4, "total_images": 64, "checkpoint_every": 24}


def test_an_interrupted_game_ends_with_the_same_bytes(tmp_path: Path) -> None:
    run(make_loop(steered(), tmp_path / "whole", **LENGTH))
    broken = make_loop(steered(), tmp_path / "broken", **LENGTH)
    assert not broken.run(stop_after(broken, 24))
    middle = broken.model.state_dict()
    assert middle["ada.signs"][1] == 8, "in the middle of two iterations"
    run(resumed(tmp_path / "broken", steered(), **LENGTH))
    ends = [load_checkpoint(checkpoint_path(tmp_path / name / "checkpoints", 64)) for name in ("whole", "broken")]
    assert ends[0].hashes == ends[1].hashes
    assert ends[0].files["model"]["ada.p"] > 0


@in_float64()
def train_together(folder: Path) -> None:
    world = open_world("cpu")
    loop = make_loop(steered(), folder / "run", world=world, **LENGTH)
    run(loop)
    torch.save(loop.model.state_dict(), folder / f"{world.rank}.pt")


@pytest.mark.slow
@pytest.mark.xdist_group("torchrun")
def test_microbatches_and_processes_move_p_alike(tmp_path: Path) -> None:
    whole, parts = (make_loop(steered(), tmp_path / name, microbatch=size, **LENGTH) for name, size in (("whole", None), ("parts", 3)))
    run(whole)
    run(parts)
    run_together(2, train_together, tmp_path)
    states = [parts.model.state_dict(), *(torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))]
    assert whole.model.state_dict()["ada.p"] > 0
    for state in states:
        for name, tensor in whole.model.state_dict().items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-7, atol=1e-9, msg=name)


@pytest.mark.parametrize(
    ("game", "names"),
    [
        (AdversarialConfig(kind="non_saturated", relativistic=True), "adversarial.relativistic"),
        (AdversarialConfig(kind="wasserstein"), "adversarial.kind"),
        (AdversarialConfig(kind="least_square"), "adversarial.kind"),
    ],
)
def test_signs_that_mean_nothing_steer_nothing(game: AdversarialConfig, names: str) -> None:
    with pytest.raises(ConfigError, match=f"^ada.target: .*this {names}; leave it out and give ada.p"):
        GANConfig(adversarial=game, ada=STEERED)
    ramp = replace(STEERED, p=Ramp(start=0.0, end=0.3, images=100))
    with pytest.raises(ConfigError, match=f"^ada.target: .*this {names}; leave it out and give ada.p"):  # the graver of two faults
        GANConfig(adversarial=game, ada=ramp)
    with pytest.raises(ConfigError, match=r"^ada\.p: got .*, expected a number, from which ada\.target moves it$"):
        GANConfig(adversarial=AdversarialConfig(kind="non_saturated"), ada=ramp)
    model = noise_gan(adversarial=game, ada=OFTEN)
    logged = model.loss(model.phases[0], labelled(COUNT), Rng(0, ("discriminator", 0), torch.arange(COUNT))).logged
    assert "ada_p" in logged and "ada_sign" not in logged


ONE_OF_EACH = {type(model): name for name in able("translate") if isinstance(model := shrunk(name).model, GANConfig)}


@pytest.mark.parametrize(("name", "alike"), [(name, i % 2 == 0) for i, name in enumerate(ONE_OF_EACH.values())])
def test_every_translator_can_use_it(name: str, alike: bool) -> None:
    """A look changes every image, alike where that is wanted, and cuts label maps where it cuts their images."""
    config = shrunk(name)
    assert isinstance(config.model, GANConfig)
    changes = {"ada": replace(OFTEN, p=1.0), "augment": (), "augment_alike": alike}
    if isinstance(config.model, ClipGANConfig):  # where it judges single frames, whole
        changes["discriminator"] = replace(config.model.discriminator, temporal_scales=0, face=CropConfig(), hand=CropConfig())
    model = moved_model(replace(config, model=replace(config.model, **changes)))
    batch = first_batch(config)
    batch = replace(
        batch, images=batch.images.double(), inputs={k: v.double() if v.is_floating_point() else v for k, v in batch.inputs.items()}
    )
    moment = batch
    if isinstance(config.model, ClipGANConfig):  # the first frames of clips
        assert isinstance(model, ClipGAN)
        framed = {entry.name for entry in model.spec.inputs if entry.frames is not None}
        inputs = {name: values[:, 0] if name in framed else values for name, values in batch.inputs.items()}
        moment = replace(batch, images=batch.images[:, 0], inputs=inputs)
    assert isinstance(model, GAN)
    drawn = Rng(0, ("discriminator", 0), batch.index)
    contests = model.contests(model.made(moment, drawn), moment, drawn)
    for contest in contests:
        real = contest.real.images
        seen = contest.real.view(real)
        assert (seen != real).flatten(1).any(1).all()
        assert torch.equal(contest.fake.view(real), seen) == alike
        maps = torch.ones(len(real), 3, *real.shape[2:])
        assert torch.equal(contest.real.view(maps, maps=True) == 0, (seen == 0).all(1, keepdim=True).expand_as(maps)), "the same rectangle"
    phase = next(phase for phase in model.phases if phase.name == "discriminator")
    terms = model.loss(phase, batch, Rng(0, ("discriminator", 0), batch.index))
    assert terms.logged["ada_p"].tolist() == [1.0] * len(batch)
    terms.loss.sum().backward()
    assert all(parameter.grad is not None for parameter in model.discriminator.parameters())
