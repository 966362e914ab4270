"""What the GANs that make images from noise have in common, on a small one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.engine.toys import make_loop, run
from tests.gans.noise_gan import SIZE, ScaledSampling, ToyNoiseGAN, labelled, noise_gan
from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import LossTerms, Sampler, TrainingProgress
from triptych.core.ramp import Ramp
from triptych.core.rng import Rng
from triptych.gans.ada import ADAConfig
from triptych.gans.from_noise import NoiseGANConfig
from triptych.gans.losses import AdversarialConfig
from triptych.gans.penalties import PenaltyConfig

pytestmark = pytest.mark.usefixtures("float64")  # float32 rounds differently with the batch and the kind of CPU

COUNT = 6
R3 = AdversarialConfig(kind="non_saturated", relativistic=True)


def terms_of(model: ToyNoiseGAN, name: str) -> LossTerms:
    phase = next(phase for phase in model.phases if phase.name == name)
    return model.loss(phase, labelled(COUNT), Rng(0, (name, 0), torch.arange(COUNT)))


def gradients(model: ToyNoiseGAN, name: str) -> dict[str, Tensor]:
    model.zero_grad()
    terms_of(model, name).loss.sum().backward()
    return {key: parameter.grad.clone() for key, parameter in model.named_parameters() if parameter.grad is not None}


def squared(model: ToyNoiseGAN, images: Tensor, labels: Tensor | None) -> Tensor:
    x = images.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.discriminator(x, labels).outputs[0].sum(), x, create_graph=True)
    return gradient.flatten(1).square().sum(1)


def test_changes_of_colours_need_images_that_have_some() -> None:
    assert noise_gan(ada=ADAConfig(p=0.5)).ada is not None
    with pytest.raises(ConfigError, match="ada.brightness.* images of 4 channels have no colours"):
        ToyNoiseGAN(NoiseGANConfig(ada=ADAConfig(p=0.5)), DataSpec(image_size=SIZE, channels=4))


@pytest.mark.parametrize("conditional", [False, True])
def test_the_loss_of_r3gan(conditional: bool) -> None:
    """softplus(-(D(x) - D(G(z)))) + gamma / 2 (|grad D(x)|^2 + |grad D(G(z))|^2), and its gradient."""
    penalty = PenaltyConfig(r1_gamma=0.7, r2_gamma=0.3, at="original")
    model, batch = noise_gan(class_conditional=conditional, adversarial=R3, penalty=penalty), labelled(COUNT)
    labels = batch.labels if conditional else None
    found = gradients(model, "discriminator")
    assert found and all(name.startswith("discriminator.") for name in found)
    model.zero_grad()
    fake = model.generator(Rng(0, ("discriminator", 0), torch.arange(COUNT)).normal("z", 4), labels).detach()
    real_score, fake_score = (model.discriminator(images, labels).outputs[0][:, 0] for images in (batch.images, fake))
    loss = F.softplus(fake_score - real_score) + 0.35 * squared(model, batch.images, labels) + 0.15 * squared(model, fake, labels)
    torch.testing.assert_close(terms_of(model, "discriminator").loss, loss)
    loss.sum().backward()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, model.get_parameter(name).grad)
    assert {name for name, parameter in model.named_parameters() if parameter.grad is not None} == set(found)


def test_the_generator_of_r3gan_sees_its_partner() -> None:
    model, batch = noise_gan(adversarial=R3), labelled(COUNT)
    fake = model.generator(Rng(0, ("generator", 0), torch.arange(COUNT)).normal("z", 4), None)
    expected = F.softplus(model.discriminator(batch.images, None).outputs[0] - model.discriminator(fake, None).outputs[0])[:, 0]
    torch.testing.assert_close(terms_of(model, "generator").loss, expected)


def test_labels_have_a_say_in_both_networks() -> None:
    game = AdversarialConfig(kind="non_saturated")  # in the hinge loss a shift of both scores cancels out
    model, other = noise_gan(class_conditional=True, adversarial=game), labelled(COUNT)
    before = {name: terms_of(model, name).loss.detach() for name in ("discriminator", "generator")}
    assert other.labels is not None
    for network in (model.generator, model.discriminator):
        with torch.no_grad():
            network.classes.weight[1] += 1
        for name, loss in before.items():
            changed = terms_of(model, name).loss.detach() != loss
            assert torch.equal(changed, other.labels == 1), "only those of the class"
        with torch.no_grad():
            network.classes.weight[1] -= 1


def test_a_weight_of_penalties_may_change_over_the_run() -> None:
    ramp = Ramp(start=2.0, end=1.0, images=100, shape="linear")
    model, plain = noise_gan(penalty=PenaltyConfig(r1_gamma=ramp)), noise_gan(penalty=PenaltyConfig(r1_gamma=1.0))
    for seen, factor in ((0, 2.0), (50, 1.5), (100, 1.0), (900, 1.0)):
        model.prepare(model.phases[0], TrainingProgress(seen, COUNT, total_images=1_000))
        found, expected = (terms_of(each, "discriminator").logged["r1"] for each in (model, plain))
        torch.testing.assert_close(found, factor * expected)
    with pytest.raises(ConfigError, match=r"^r2_gamma: got "):
        PenaltyConfig(r2_gamma=Ramp(start=-1.0, end=1.0, images=1))
    with pytest.raises(ConfigError, match=r"^precision: got 'training'"):
        PenaltyConfig(r1_gamma=1.0, every=2, precision="training")


@pytest.mark.parametrize("fresh", [False, True])
def test_the_generator_may_have_images_of_its_own(fresh: bool, tmp_path: Path) -> None:
    model = noise_gan(fresh_images=fresh, discriminator_steps=2, generator_steps=2, penalty=PenaltyConfig(r1_gamma=1.0, every=2))
    seen: dict[str, list[list[int]]] = {}
    loss = model.loss

    def watched(phase: Any, batch: Any, rng: Any) -> LossTerms:
        seen.setdefault(f"{phase.name} {rng.stream[1]}", []).append(batch.index.tolist())
        return loss(phase, batch, rng)

    model.loss = watched  # type: ignore[method-assign]
    drawn = 8 if fresh else 4
    loop = make_loop(model, tmp_path / "run", total_images=2 * drawn, batch_size=2, ema_rates=())
    run(loop)
    assert loop.images_seen == 2 * drawn
    assert seen == {
        "discriminator 0": [[0, 1], [drawn, drawn + 1]],
        "discriminator 1": [[2, 3], [drawn + 2, drawn + 3]],
        "penalty 0": [[0, 1]],
        "generator 0": [[4, 5], [12, 13]] if fresh else [[0, 1], [4, 5]],
        "generator 1": [[6, 7], [14, 15]] if fresh else [[2, 3], [6, 7]],
    }


def test_real_and_generated_images_have_changes_of_their_own() -> None:
    model = noise_gan(augment=("translation",))
    (contest,) = model.contests(labelled(COUNT).images, labelled(COUNT), Rng(0, ("discriminator", 0), torch.arange(COUNT)))
    images = labelled(COUNT).images
    assert not torch.equal(contest.real.view(images), contest.fake.view(images))


def test_sampling_and_its_errors() -> None:
    model = noise_gan(class_conditional=True).eval()
    assert isinstance(model, Sampler)
    rng, labels = Rng(0, ("sample",), torch.arange(5)), torch.tensor([0, 1, 2, 0, 1])
    images = model.sample(rng, labels=labels, settings=ScaledSampling())
    assert images.shape == (5, 3, SIZE, SIZE) and not images.requires_grad
    torch.testing.assert_close(images[2:3], model.sample(rng[2:3], labels=labels[2:3], settings=ScaledSampling()))
    for given, message in ((None, "needs labels, from 0 to 2"), (labels[:2], "got 2 for 5 images"), (labels + 1, "got 3, expected 0 to 2")):
        with pytest.raises(ConfigError, match=message):
            model.sample(rng, labels=given, settings=ScaledSampling())
    with pytest.raises(ConfigError, match="trained without labels"):
        noise_gan().sample(rng, labels=labels, settings=ScaledSampling())
    with pytest.raises(ConfigError, match="the data has no labels"):
        ToyNoiseGAN(NoiseGANConfig(class_conditional=True), DataSpec(image_size=SIZE, channels=3))
    with pytest.raises(ConfigError, match="latent_dims: got 0"):
        NoiseGANConfig(latent_dims=0)


@pytest.mark.parametrize(("penalty", "made"), [({"r1_gamma": 0.7}, 0), ({"r1_gamma": 0.7, "r2_gamma": 0.3}, 1), ({"r2_gamma": 0.3}, 1)])
@pytest.mark.parametrize("at", ["original", "augmented"])
def test_a_lazy_penalty_makes_only_images_that_it_looks_at(at: Any, penalty: dict[str, float], made: int) -> None:
    """every * gamma / 2 * |grad D|^2, at the images and through the views of the contest, and its gradient."""
    changes = {"augment": ("translation",), "class_conditional": True}
    model = noise_gan(**changes, penalty=PenaltyConfig(**penalty, every=4, at=at))
    drawn = Rng(0, ("penalty", 0), torch.arange(COUNT))
    (contest,) = model.contests(model.made(labelled(COUNT), drawn), labelled(COUNT), drawn)
    ran: list[int] = []
    model.generator.register_forward_hook(lambda *_: ran.append(1))
    found = gradients(model, "penalty")
    terms = terms_of(model, "penalty")
    assert found and len(ran) == 2 * made and set(terms.logged) == {name.removesuffix("_gamma") for name in penalty}

    model.zero_grad()
    loss = torch.zeros(COUNT)
    for name, seen in (("r1_gamma", contest.real), ("r2_gamma", contest.fake)):
        x = (seen.images if at == "original" else seen.view(seen.images)).detach().requires_grad_()
        outputs = seen.discriminate(seen.view(x) if at == "original" else x).outputs[0]
        (gradient,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
        loss = loss + 4 * penalty.get(name, 0.0) / 2 * gradient.flatten(1).square().sum(1)
    torch.testing.assert_close(terms.loss, loss)
    loss.sum().backward()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, model.get_parameter(name).grad)
