"""What both networks learn from is made once as far as both steps see the same: same losses and gradients, fewer passes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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
from triptych.gans.kl_autoencoder import KLAutoencoderConfig
from triptych.gans.model import GAN, GANConfig, detached
from triptych.gans.norms import SharedMap
from triptych.gans.penalties import PenaltyConfig

pytestmark = pytest.mark.usefixtures("float64")

ONE_OF_EACH = {type(model): name for name in able("translate") if isinstance(model := shrunk(name).model, GANConfig)}
COUNT = 4
DRAWING: dict[str, Callable[[Any], Any]] = {
    "MUNITConfig": lambda model: replace(model, random_style=False, style_recon_weight=0.0),
    "SPADEConfig": lambda model: replace(model, generator=replace(model.generator, style_dims=None)),
}
"""Kinds whose recipes draw what they make, and the same without."""
BEFORE_DRAWS = {
    "munit-edges2shoes": ("autoencoder_a.content_encoder", "autoencoder_b.style_encoder"),
    "spade-coco256": ("style_encoder", "spade_generator.up_1b.conv_block_0.layers.norm.gammas.0.layers.conv"),
    "autoencoder-photos": ("encoder", "quant_conv"),
}
"""Some of the layers of generators that do not depend on what is drawn."""


class Still(Toy):
    """Makes the same of the same images."""

    draws = False  # type: ignore[assignment]

    def made(self, batch: Batch, rng: Rng) -> Tensor:
        return self.generator(batch.images)


def still(kind: type[Still] = Still, **settings: Any) -> Still:
    config = toy(**settings).config
    torch.manual_seed(0)
    return kind(config)


def passes(network: nn.Module) -> list[bool]:
    """Whether gradients were wanted in each pass of a network from now on."""
    found: list[bool] = []
    network.register_forward_hook(lambda *_: found.append(torch.is_grad_enabled()))
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
        config = replace(config, model=drawing(config.model))
    model, batch = moved_model(config), first_batch(config)
    assert isinstance(model, GAN) and not model.draws
    frames = 3 if isinstance(config.model, ClipGANConfig) else 1
    losses, ran = losses_and_gradients(model, batch, model.generator, frames=frames)
    for ours, theirs in losses:
        assert_same(ours, theirs)
    assert ran[False].count(False) == frames and ran[True] == [True] * ran[False].count(True)


@pytest.mark.parametrize("name", BEFORE_DRAWS)
def test_what_is_not_drawn_is_made_once(name: str) -> None:
    config = shrunk(name)
    if isinstance(config.model, KLAutoencoderConfig):
        config = replace(config, model=replace(config.model, adversarial_start=0))
    model, batch = moved_model(config), first_batch(config)
    assert isinstance(model, GAN) and model.draws
    for layer in BEFORE_DRAWS[name]:
        losses, ran = losses_and_gradients(model, batch, model.generator.get_submodule(layer))
        for ours, theirs in losses:
            assert_same(ours, theirs)
        assert ran[False][:2] == [False, True] and ran[True] == ran[False][1:]
    _, ran = losses_and_gradients(model, batch, model.generator)
    assert ran[True] == ran[False] and ran[True][:2] == [False, True], "what is drawn is made without gradients for the discriminator"
    before = {name: buffer.clone() for name, buffer in model.generator.named_buffers()}
    step(model, "discriminator", replace(batch, kept=Kept()))
    for name, buffer in model.generator.named_buffers():
        assert torch.equal(buffer, before[name]), name


@pytest.mark.slow
def test_compiled_networks_find_what_is_shared() -> None:
    """The front of PyTorch's compiler, which decides what a compiled network reads and writes; its back end would take minutes."""
    config = shrunk("spade-coco256")
    found: list[list[Tensor]] = []
    for backend in ("", "aot_eager"):
        model, batch = moved_model(config), replace(first_batch(config), kept=Kept())
        assert isinstance(model, GAN)
        if backend:
            model.generator.compile(backend=backend)
        _, first = step(model, "discriminator", batch)
        assert batch.kept is not None
        shared = batch.kept.take()
        batch.kept.put(shared)
        assert shared[0]._made
        terms, gradients = step(model, "generator", batch)
        assert not shared[0]._made
        found.append([terms.loss.detach(), *(gradient for gradient in [*first, *gradients] if gradient is not None)])
    most = max(float(gradient.abs().max()) for gradient in found[0])
    for compiled, plain in zip(*found, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-9, atol=1e-12 * most)


def test_of_a_shared_map_nothing_is_left() -> None:
    norm, label = nn.Identity(), torch.ones(1, 1, 2, 2, requires_grad=True)
    shared, made = SharedMap(label), []

    def make(map: Tensor) -> list[Tensor]:
        made.append(map * 2)
        return made[-1:]

    with torch.no_grad():
        (first,) = shared.scale_and_shift(norm, 0, make)
        (other,) = shared.scale_and_shift(norm, 1, make)
    assert first.requires_grad and other is not first
    assert shared.scale_and_shift(norm, 0, make)[0] is first and shared.scale_and_shift(norm, 1, make)[0] is other
    left = weakref.ref(first)
    del first, made[0]
    assert left() is None


def losses_and_gradients(
    model: GAN, batch: Batch, network: nn.Module, *, frames: int = 1
) -> tuple[list[tuple[Tensor | None, Tensor | None]], dict[bool, list[bool]]]:
    """Losses and gradients of both steps where the first leaves something to the second, beside those where it does not; and the
    `passes` of a network in both cases.
    """
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in batch.inputs.items()}
    batch = replace(batch, images=batch.images.double(), inputs=inputs)
    found: dict[bool, list[Any]] = {}
    ran: dict[bool, list[bool]] = {}
    for keeps in (False, True):
        ran[keeps], now, found[keeps] = passes(network), batch, []
        for frame in range(frames):
            now = replace(now, kept=Kept() if keeps else None)
            for phase in ("discriminator", "generator"):
                terms, gradients = step(model, phase, now, frame=frame)
                found[keeps] += [terms.loss.detach(), *gradients]
                now = replace(now, inputs={**now.inputs, **terms.carried})
            assert now.kept is None or not now.kept.filled
        network._forward_hooks.clear()
    return list(zip(found[True], found[False], strict=True)), ran


def assert_same(ours: Tensor | None, theirs: Tensor | None) -> None:
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
        now, ran = replace(now, kept=Kept()), passes(model.generator)
        for phase in ("discriminator", "penalty", "generator"):
            terms, _ = step(model, phase, now, frame=frame)
            now = replace(now, inputs={**now.inputs, **terms.carried})
    assert ran == [True, False], "the generator's step has no pass of its own"


def trained(root: Path, *, keeps: bool = True, model: Toy | None = None, **settings: Any) -> tuple[Loop, list[bool]]:
    model = still() if model is None else model
    ran = passes(model.generator)
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
