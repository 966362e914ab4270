"""What both networks learn from is made once where both steps see the same: same losses and gradients, one pass of the generator."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.contract.kinds import able
from tests.contract.moved import first_batch, moved_model
from tests.contract.shrink import shrunk
from tests.engine.toys import make_loop, run
from tests.gans.toy_gan import Toy, images_of, toy
from triptych.core.batch import Batch, Kept
from triptych.core.model import LossTerms, Phase, TrainingProgress
from triptych.core.rng import Rng
from triptych.engine.loop import Loop
from triptych.gans.clip_base import ClipGANConfig
from triptych.gans.model import GAN, GANConfig, detached
from triptych.gans.penalties import PenaltyConfig

pytestmark = pytest.mark.usefixtures("float64")

ONE_OF_EACH = {type(model): name for name in able("translate") if isinstance(model := shrunk(name).model, GANConfig)}
COUNT = 4
DRAWING: dict[str, Callable[[Any], Any]] = {
    "MUNITConfig": lambda model: replace(model, random_style=False, style_recon_weight=0.0),
    "SPADEConfig": lambda model: replace(model, generator=replace(model.generator, style_dims=None)),
}
"""Kinds whose recipes draw what they make, and the same without."""


class Still(Toy):
    """Makes the same of the same images."""

    draws = False  # type: ignore[assignment]

    def made(self, batch: Batch, rng: Rng) -> Tensor:
        return self.generator(batch.images)


def still(kind: type[Still] = Still, **settings: Any) -> Still:
    config = toy(**settings).config
    torch.manual_seed(0)
    return kind(config)


def passes(model: GAN) -> list[bool]:
    """Whether gradients were wanted in each pass of the generator from now on, or of the first layer that has weights."""
    found: list[bool] = []
    model.generator.register_forward_hook(lambda *_: found.append(torch.is_grad_enabled()))
    return found


def phase_of(model: GAN, name: str) -> Phase:
    return next(phase for phase in model.phases if phase.name == name)


def step(model: GAN, name: str, batch: Batch, *, frame: int = 0) -> tuple[LossTerms, list[Tensor | None]]:
    """The terms of a phase, and the gradients of its networks, set as the engine sets them."""
    phase = phase_of(model, name)
    begun = phase.begins if batch.kept is not None else ()
    for network in ("generator", "discriminator"):
        getattr(model, network).requires_grad_(network in (*phase.networks, *begun))
    model.prepare(phase, TrainingProgress(0, len(batch), 100, frame))
    terms = model.loss(phase, batch, Rng(0, (name, frame), batch.index))
    return terms, list(torch.autograd.grad(terms.loss.sum(), list(getattr(model, phase.networks[0]).parameters()), allow_unused=True))


@pytest.mark.parametrize("name", ONE_OF_EACH.values())
def test_losses_and_gradients_are_the_same(name: str) -> None:
    config = shrunk(name)
    assert isinstance(config.model, GANConfig)
    drawing = DRAWING.get(type(config.model).__name__)
    if drawing is not None:
        model = moved_model(config)
        assert isinstance(model, GAN) and model.draws and phase_of(model, "discriminator").begins == ()
        config = replace(config, model=drawing(config.model))
    model, batch = moved_model(config), first_batch(config)
    assert isinstance(model, GAN) and not model.draws and phase_of(model, "discriminator").begins == ("generator",)
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in batch.inputs.items()}
    batch = replace(batch, images=batch.images.double(), inputs=inputs)
    found: dict[bool, list[Any]] = {}
    for keeps in (False, True):
        ran, now, found[keeps] = passes(model), batch, []
        for frame in range(3 if isinstance(config.model, ClipGANConfig) else 1):
            now = replace(now, kept=Kept() if keeps else None)
            for phase in ("discriminator", "generator"):
                terms, gradients = step(model, phase, now, frame=frame)
                found[keeps] += [terms.loss.detach(), *gradients]
                now = replace(now, inputs={**now.inputs, **terms.carried})
            assert now.kept is None or not now.kept.filled
            assert ran.count(False) == (0 if keeps else frame + 1), "the discriminator's step has no pass of its own"
    for ours, theirs in zip(found[True], found[False], strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_who_makes_once() -> None:
    assert phase_of(toy(), "discriminator").begins == (), "each step has draws of its own"
    assert phase_of(still(), "discriminator").begins == ("generator",)
    for steps in ({"discriminator_steps": 2}, {"generator_steps": 2}):
        assert phase_of(still(**steps), "discriminator").begins == (), "of several steps each has images of its own"


@pytest.mark.parametrize("name", [name for kind, name in ONE_OF_EACH.items() if issubclass(kind, ClipGANConfig)])
def test_a_lazy_penalty_between_the_steps_makes_its_own_frame(name: str) -> None:
    """Of the second frame, for which the first one is there."""
    config = shrunk(name)
    model = moved_model(replace(config, model=replace(config.model, penalty=PenaltyConfig(r1_gamma=1.0, every=2))))
    now, ran = first_batch(config), []
    assert isinstance(model, GAN)
    for frame in range(2):
        now, ran = replace(now, kept=Kept()), passes(model)
        for phase in ("discriminator", "penalty", "generator"):
            terms, _ = step(model, phase, now, frame=frame)
            now = replace(now, inputs={**now.inputs, **terms.carried})
    assert ran == [True, False], "the generator's step has no pass of its own"


def trained(root: Path, *, keeps: bool = True, model: Toy | None = None, **settings: Any) -> tuple[Loop, list[bool]]:
    model = still() if model is None else model
    ran = passes(model)
    loop = make_loop(model, root, total_images=24, **settings)
    loop.turns._keeps = loop.turns._keeps and keeps
    run(loop)
    return loop, ran


def test_a_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    """3 iterations of 8 images: one pass each, or two of all images, or of each microbatch."""
    loop, ran = trained(tmp_path / "once")
    assert ran == [True] * 3
    ways: list[tuple[str, dict[str, Any], int]] = [("anew", {"keeps": False}, 6), ("parts", {"microbatch": 3}, 18)]
    for name, given, count in ways:
        other, ran = trained(tmp_path / name, **given)
        assert len(ran) == count and ran.count(False) == count // 2
        for key, value in loop.model.state_dict().items():
            torch.testing.assert_close(other.model.state_dict()[key], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("lacking", ["discriminator", "generator"])
def test_what_does_not_fit_is_made_anew_in_parts(tmp_path: Path, lacking: str) -> None:
    """And nothing is left of what was made of all images."""
    left: list[weakref.ref[Tensor]] = []

    class Hungry(Still):
        def made(self, batch: Batch, rng: Rng) -> Tensor:
            images = super().made(batch, rng)
            if len(batch) == 8:
                left.append(weakref.ref(images))
            return images

        def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
            terms = super().loss(phase, batch, rng)
            if phase.name == lacking and len(batch) == 8:
                raise MemoryError
            gc.collect()
            assert len(batch) == 8 or all(image() is None for image in left)
            return terms

    loop, ran = trained(tmp_path / "lacking", model=still(Hungry))
    assert isinstance(loop.model, Hungry) and loop.microbatch.size == 4
    first = [True, False, False] if lacking == "discriminator" else [True]
    assert ran == [*first, True, True, *[False, False, True, True] * 2] and len(left) == 1
    other, _ = trained(tmp_path / "parts", microbatch=4)
    for key, value in other.model.state_dict().items():
        torch.testing.assert_close(loop.model.state_dict()[key], value, rtol=1e-9, atol=1e-12)


def test_nothing_is_left_where_the_same_images_fit_the_second_time(tmp_path: Path) -> None:
    """The share of a process may fit into the smaller microbatch for which another one asked."""
    made: list[weakref.ref[Tensor]] = []

    class Hungry(Still):
        lacks = True

        def made(self, batch: Batch, rng: Rng) -> Tensor:
            gc.collect()
            assert all(image() is None for image in made), "of a failed attempt or of the iteration before"
            images = super().made(batch, rng)
            made.append(weakref.ref(images))
            return images

        def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
            terms, lacks = super().loss(phase, batch, rng), self.lacks
            self.lacks = False
            if lacks:
                raise MemoryError
            return terms

    model = still(Hungry)
    loop = make_loop(model, tmp_path, total_images=16)
    loop.microbatch.size = 16
    run(loop)
    assert loop.microbatch.size == 8 and len(made) == 3


def test_the_generator_has_no_gradients_of_the_discriminators_step() -> None:
    model, batch = still(), replace(images_of(COUNT), kept=Kept())
    model.loss(phase_of(model, "discriminator"), batch, Rng(0, ("discriminator", 0), batch.index)).loss.sum().backward()
    assert all(parameter.grad is None for parameter in model.generator.parameters())
    assert all(parameter.grad is not None for parameter in model.discriminator.parameters())
    assert batch.kept is not None and batch.kept.filled


def test_parts_of_a_batch_keep_nothing() -> None:
    batch = replace(images_of(COUNT), kept=Kept())
    assert batch[:COUNT].kept is None and batch[:2].kept is None
    assert Kept().take() is None and not Kept().filled


def test_what_is_detached() -> None:
    x = torch.ones(2, requires_grad=True)
    made = detached({"a": x * 2, "b": (x * 3, None, (x * 4,))})
    assert not made["a"].requires_grad and not made["b"][0].requires_grad and made["b"][1] is None and not made["b"][2][0].requires_grad
    label, kept = torch.ones(2), Kept()
    assert detached(label) is label, "what is known of a tensor is known of this one alone"
    for hidden in ([x * 2], {"a": (x * 2, kept)}):
        with pytest.raises(TypeError, match=r"^a generator made a (list|Kept), expected tensors"):
            detached(hidden)
