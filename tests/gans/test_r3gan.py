"""R3GAN against formulas of its own in NumPy, float64, and its losses against plain autograd."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.engine.toys import START
from triptych.core.batch import Batch, DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import Phase
from triptych.core.ramp import Ramp
from triptych.core.rng import Rng
from triptych.gans.r3gan import R3GAN, R3GANConfig, R3GANNetworkConfig, ResidualBlock

COUNT, SIZE, CLASSES = 5, 16, 3
NETWORK = R3GANNetworkConfig(widths=(8, 8, 4), group_channels=4, half_stages=1)
SPEC = DataSpec(image_size=SIZE, channels=3, num_classes=CLASSES)


def small(*, moved: bool = True, **settings: Any) -> R3GAN:
    """A small model; `moved`: with every weight off its initial value."""
    settings = {"class_conditional": True, "latent_dims": 6, "class_dims": 5, "generator": NETWORK, "discriminator": NETWORK} | settings
    torch.manual_seed(0)
    model = R3GANConfig(**settings).build(SPEC)
    with torch.no_grad():
        for parameter in model.parameters() if moved else ():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def arrays(network: nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.detach().double().numpy() for name, tensor in network.state_dict().items()}


# The networks, written once more


def lrelu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, 0.2 * x)


def grouped(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """3x3 with a border of zeros: output o sees the channels of its group, `weight.shape[1]` of them."""
    outs, inside = weight.shape[:2]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    height, width = x.shape[2:]
    y = np.zeros((len(x), outs, height, width))
    for o in range(outs):
        first = o // (outs // (x.shape[1] // inside)) * inside
        for i in range(inside):
            for row in range(3):
                for column in range(3):
                    y[:, o] += weight[o, i, row, column] * padded[:, first + i, row : row + height, column : column + width]
    return y + bias[:, None, None]


def pointwise(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | float = 0.0) -> np.ndarray:
    return np.einsum("bihw,oi->bohw", x, weight[:, :, 0, 0]) + np.reshape(bias, (-1, 1, 1))


def block(x: np.ndarray, w: dict[str, np.ndarray], name: str) -> np.ndarray:
    y = lrelu(pointwise(x, w[f"{name}.conv1.weight"], w[f"{name}.conv1.bias"]))
    y = lrelu(grouped(y, w[f"{name}.conv2.weight"], w[f"{name}.conv2.bias"]))
    return x + pointwise(y, w[f"{name}.conv3.weight"])


def raised(x: np.ndarray) -> np.ndarray:
    """Twice the size: between two pixels at the distances 1/4 and 3/4, along each axis; nothing beyond the border."""
    for axis in (2, 3):
        before, after = np.zeros_like(x), np.zeros_like(x)
        here: list[Any] = [slice(None)] * 4
        there = list(here)
        here[axis], there[axis] = slice(1, None), slice(None, -1)
        before[tuple(here)], after[tuple(there)] = x[tuple(there)], x[tuple(here)]
        x = np.stack((0.75 * x + 0.25 * before, 0.75 * x + 0.25 * after), axis + 1).reshape(*x.shape[:axis], -1, *x.shape[axis + 1 :])
    return x


def lowered(x: np.ndarray) -> np.ndarray:
    """Half the size: four pixels by 1, 3, 3, 1 eighths along each axis; zeros beyond the border."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    rows = np.sum([k / 8 * padded[:, :, j : j + x.shape[2] : 2] for j, k in enumerate((1, 3, 3, 1))], axis=0)
    return np.sum([k / 8 * rows[..., j : j + x.shape[3] : 2] for j, k in enumerate((1, 3, 3, 1))], axis=0)


def generated(w: dict[str, np.ndarray], z: np.ndarray, labels: np.ndarray) -> np.ndarray:
    code = np.concatenate((z, w["embedding.weight"][:, labels].T), axis=1)
    x = w["basis"] * (code @ w["linear.weight"].T)[:, :, None, None]
    for stage in range(3):
        if stage > 0:
            if f"stages.{stage}.transition.weight" in w:
                x = pointwise(x, w[f"stages.{stage}.transition.weight"])
            x = raised(x)
        for k in range(2):
            x = block(x, w, f"stages.{stage}.blocks.{k}")
    return pointwise(x, w["to_image.weight"])


def scored(w: dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    x = pointwise(images, w["from_image.weight"])
    for stage in range(3):
        for k in range(2):
            x = block(x, w, f"stages.{stage}.blocks.{k}")
        if stage < 2:
            x = lowered(x)
            if f"stages.{stage}.transition.weight" in w:
                x = pointwise(x, w[f"stages.{stage}.transition.weight"])
    features = np.einsum("bchw,chw->bc", x, w["basis.weight"][:, 0]) @ w["linear.weight"].T
    return (features * w["embedding.weight"][:, labels].T).sum(1)


def test_networks_are_their_formulas(float64) -> None:
    model, labels = small(), torch.tensor([2, 0, 1, 1, 2])
    z, images = torch.randn(COUNT, 6), torch.randn(COUNT, 3, SIZE, SIZE)
    with torch.no_grad():
        found = model.generator(z, labels).numpy(), model.discriminator(images, labels).outputs[0][:, 0].numpy()
    assert found[0].shape == (COUNT, 3, SIZE, SIZE)
    np.testing.assert_allclose(found[0], generated(arrays(model.generator), z.numpy(), labels.numpy()), atol=1e-12)
    np.testing.assert_allclose(found[1], scored(arrays(model.discriminator), images.numpy(), labels.numpy()), atol=1e-12)
    assert found[0].std() > 0.1 and found[1].std() > 0.01


def test_without_classes_the_score_is_one_linear_map(float64) -> None:
    model = small(class_conditional=False)
    with torch.no_grad():
        score = model.discriminator(torch.randn(COUNT, 3, SIZE, SIZE)).outputs[0]
    assert score.shape == (COUNT, 1) and model.num_classes is None
    assert model.discriminator.linear.weight.shape == (1, 8) and model.generator.linear.weight.shape == (8, 6)
    assert not [name for name, _ in model.named_parameters() if "embedding" in name]


# Initial values


def test_first_blocks_change_nothing(float64) -> None:
    model = small(moved=False)
    x = torch.randn(2, 8, 4, 4)
    blocks = [layer for layer in model.generator.stages[:2].modules() if isinstance(layer, ResidualBlock)]
    assert len(blocks) == 4 and all(torch.equal(block(x), x) for block in blocks)
    z, labels = torch.randn(2, 6), torch.tensor([0, 1])
    w = arrays(model.generator)
    expected = raised(raised(w["basis"] * (np.c_[z, w["embedding.weight"][:, labels].T] @ w["linear.weight"].T)[:, :, None, None]))
    expected = pointwise(pointwise(expected, w["stages.2.transition.weight"]), w["to_image.weight"])
    with torch.no_grad():
        np.testing.assert_allclose(model.generator(z, labels).numpy(), expected, atol=1e-12)


def test_first_weights_have_the_published_deviations() -> None:
    """N(0, gain^2 / inputs): sqrt(2 / 1.04) S^(-1/4) inside S blocks, 1 elsewhere, 1 / sqrt(width) for the discriminator's classes."""
    torch.manual_seed(0)
    network = R3GANNetworkConfig(widths=(64, 64, 32), num_blocks=3)
    settings = R3GANConfig(generator=network, discriminator=network, class_conditional=True)
    model = settings.build(DataSpec(image_size=32, channels=3, num_classes=200))
    inside = math.sqrt(2 / 1.04) * 9**-0.25
    expected = {
        "generator.basis": 1.0,
        "generator.linear.weight": 1 / math.sqrt(128),
        "generator.embedding.weight": 1 / math.sqrt(200),
        "generator.stages.1.blocks.2.conv1.weight": inside / math.sqrt(64),
        "generator.stages.1.blocks.2.conv2.weight": inside / math.sqrt(16 * 9),
        "generator.stages.2.transition.weight": 1 / math.sqrt(64),
        "discriminator.stages.0.transition.weight": 1 / math.sqrt(32),
        "discriminator.stages.2.blocks.0.conv1.weight": inside / math.sqrt(64),
        "discriminator.basis.weight": 1 / 8,
        "discriminator.linear.weight": 1 / math.sqrt(64),
        "discriminator.embedding.weight": 1 / math.sqrt(64 * 200),
    }
    weights = dict(model.named_parameters())
    for name, deviation in expected.items():
        weight = weights[name]
        # Of n values the standard deviation has an error of 1 / sqrt(2 n).
        assert weight.std().item() == pytest.approx(deviation, rel=4 / math.sqrt(2 * weight.numel())), name
        assert abs(weight.mean().item()) < 4 * deviation / math.sqrt(weight.numel()), name
    for name, weight in weights.items():
        assert weight.any() == (not name.endswith(("bias", "conv3.weight"))), name


# Precision


@pytest.mark.parametrize("half_stages", [0, 1, 3])
def test_the_highest_stages_are_half(half_stages: int) -> None:
    model = small(generator=replace(NETWORK, half_stages=half_stages), discriminator=replace(NETWORK, half_stages=half_stages))
    found: dict[str, list[torch.dtype]] = {"generator": [], "discriminator": []}

    def note(name: str) -> Any:
        return lambda block, inputs, y: found[name].extend((inputs[0].dtype, y.dtype))

    for name, network in model.named_children():
        for layer in network.modules():
            if isinstance(layer, ResidualBlock):
                layer.register_forward_hook(note(name))
    z, labels = torch.randn(2, 6), torch.tensor([0, 1])
    with torch.no_grad():
        exact = model.generator(z, labels)
        score = model.discriminator(exact, labels).outputs[0]
        assert set(found["generator"] + found["discriminator"]) == {torch.float32}
        for dtypes in found.values():
            dtypes.clear()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            images = model.generator(z, labels)
            rounded = model.discriminator(images, labels).outputs[0]
    wide, half = [torch.float32] * 4 * (3 - half_stages), [torch.bfloat16] * 4 * half_stages
    assert found == {"generator": wide + half, "discriminator": half + wide}
    assert images.dtype == rounded.dtype == torch.float32
    # bf16 has 8 bits; measured: up to 0.02.
    assert (images - exact).norm() <= 0.05 * exact.norm() and (rounded - score).norm() <= 0.1 * score.norm()
    assert torch.equal(images, exact) == (half_stages == 0)


# The losses


def batch_of(count: int = COUNT) -> Batch:
    images = torch.rand(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float32) * 2 - 1
    return Batch(images.to(torch.get_default_dtype()), torch.arange(count) % CLASSES, torch.arange(count))


def rng_of(phase: Phase) -> Rng:
    return Rng(0, (phase.name, 0), torch.arange(COUNT))


def found_gradients(model: R3GAN, phase: Phase) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of each sample, and the gradient of its mean by the weights of the phase's network."""
    model.zero_grad()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(phase.networks))
    model.prepare(phase, START)
    loss = model.loss(phase, batch_of(), rng_of(phase)).loss
    loss.mean().backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def plain_gradients(model: R3GAN, phase: Phase, *, gammas: tuple[float, float]) -> tuple[Tensor, dict[str, Tensor]]:
    """The same by Eqs. 2 to 4, in the precision of the weights."""
    batch = batch_of()
    own = {name: p.requires_grad_() for name, p in model.named_parameters() if name.startswith(phase.networks)}
    z, labels = rng_of(phase).normal("z", 6).to(batch.images.dtype), batch.labels
    real, fake = batch.images.clone(), model.generator(z, labels)
    if phase.name == "discriminator":
        real, fake = real.requires_grad_(), fake.detach().requires_grad_()
    on_real, on_fake = (model.discriminator(images, labels).outputs[0][:, 0] for images in (real, fake))
    if phase.name == "generator":
        loss = F.softplus(on_real - on_fake)
    else:
        loss = F.softplus(on_fake - on_real)
        for scores, images, gamma in zip((on_real, on_fake), (real, fake), gammas, strict=True):
            (slope,) = torch.autograd.grad(scores.sum(), images, create_graph=True)
            loss = loss + gamma / 2 * slope.square().sum((1, 2, 3))
    gradients = torch.autograd.grad(loss.mean(), list(own.values()))
    return loss.detach(), dict(zip(own, gradients, strict=True))


PENALISED: dict[str, Any] = {"penalty": replace(R3GANConfig().penalty, r1_gamma=30.0, r2_gamma=Ramp(start=20.0, end=0.2, images=100))}


@pytest.mark.parametrize("name", ["discriminator", "generator"])
def test_losses_and_gradients_are_the_papers(name: str, float64) -> None:
    model = small(**PENALISED)
    phase = next(phase for phase in model.phases if phase.name == name)
    (loss, found), (expected_loss, expected) = found_gradients(model, phase), plain_gradients(model, phase, gammas=(30.0, 20.0))
    torch.testing.assert_close(loss, expected_loss)
    assert set(found) == set(expected)
    for key, gradient in expected.items():
        assert gradient.norm() > 0 and (found[key] - gradient).norm() <= 1e-10 * gradient.norm(), key


@pytest.mark.parametrize("precision", ["float32", "training"])
def test_under_autocast_gradients_stay_near_the_exact_ones(precision: Any) -> None:
    """Measured: 0.009 of the whole gradient, and 0.0004 of the loss; without the penalties the gradient is 0.6 away."""
    model = small(penalty=replace(PENALISED["penalty"], precision=precision))
    exact = small(**PENALISED).double()
    for phase in model.phases:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, found = found_gradients(model, phase)
        torch.set_default_dtype(torch.float64)
        try:
            expected_loss, expected = plain_gradients(exact, phase, gammas=(30.0, 20.0))
        finally:
            torch.set_default_dtype(torch.float32)
        assert loss.dtype == torch.float32 and (loss - expected_loss).norm() <= 0.005 * expected_loss.norm()
        whole, exactly = (torch.cat([part[key].double().flatten() for key in expected]) for part in (found, expected))
        assert (whole - exactly).norm() <= 0.05 * exactly.norm()


def test_an_iteration_has_images_for_each_step() -> None:
    model = small()
    assert model.slices == 2 and [(turn.phase.name, turn.slice) for turn in model.turns(START)] == [("discriminator", 0), ("generator", 1)]
    assert small(fresh_images=False).slices == 1


# Sampling and settings


def test_samples_are_within_range_and_of_their_class(float64) -> None:
    model = small().eval()
    rng = Rng(3, ("sample",), torch.arange(4))
    images = model.sample(rng, labels=torch.tensor([0, 1, 2, 0]))
    assert images.shape == (4, 3, SIZE, SIZE) and images.abs().max() == 1, "what overshoots is cut off"
    other = model.sample(rng, labels=torch.tensor([1, 1, 2, 0]))
    assert not torch.equal(other[0], images[0]) and torch.equal(other[1:], images[1:])
    for labels in (None, torch.tensor([0, 1, 2, 3])):
        with pytest.raises(ConfigError, match="labels"):
            model.sample(rng, labels=labels)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"widths": ()}, "^widths: got nothing"),
        ({"widths": (8, 0)}, "^widths: got 8, 0"),
        ({"widths": (768, 100)}, "^group_channels: got 16, expected a divisor of 2 x 100"),
        ({"num_blocks": 0}, "^num_blocks: got 0"),
        ({"half_stages": -1}, "^half_stages: got -1"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        R3GANNetworkConfig(**settings)


def test_images_that_cannot_be_halved_so_often_are_refused() -> None:
    with torch.device("meta"), pytest.raises(ConfigError, match=r"^discriminator\.widths: got 8, 8, 8 for images of 6x6 pixels.* of 4"):
        small = R3GANNetworkConfig(widths=(8, 8))
        R3GANConfig(generator=small, discriminator=replace(small, widths=(8, 8, 8))).build(DataSpec(image_size=6, channels=1))
    with torch.device("meta"):
        model = R3GANConfig(generator=NETWORK, discriminator=NETWORK).build(DataSpec(image_size=28, width=20, channels=1))
    assert model.generator.basis.shape == (8, 7, 5) and model.discriminator.basis.weight.shape == (8, 1, 7, 5)
