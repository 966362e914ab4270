"""The KL autoencoder: its networks written once more by their names in diffusers, and its losses by plain autograd, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from tests.contract.small_data import FIRST_LAYER, feature_weights
from tests.engine.toys import START
from triptych.core.batch import Batch, DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import Phase
from triptych.core.rng import Rng
from triptych.core.weight_files import read_weights
from triptych.data.config import DataConfig
from triptych.engine.config import TrainConfig
from triptych.engine.distributed import open_world
from triptych.gans.discriminators import NLayerPatch, PatchDiscriminatorConfig
from triptych.gans.kl_autoencoder import KLAutoencoder, KLAutoencoderConfig, KLEncodingConfig
from triptych.gans.kl_networks import KLNetworks, KLNetworksConfig
from triptych.gans.perceptual import PerceptualConfig
from triptych.recipes.autoencoders import autoencoder_photos, autoencoder_photos_f4
from triptych.recipes.config import RunConfig
from triptych.runs import train
from triptych.runs.loading import Loading
from triptych.runs.model_images import ImageRequest, maker_of
from triptych.runs.training import prepare_backend

SPEC = DataSpec(image_size=8, channels=3)
NETWORK = KLNetworksConfig(widths=(4, 8), num_blocks=1, latent_channels=2, num_groups=2)
PATCHES = PatchDiscriminatorConfig(
    num_discriminators=1, kernel_size=4, num_filters=4, max_num_filters=8, num_layers=1, norm="sync_batch", weight_norm="none"
)
GENERATOR, DISCRIMINATOR = Phase("generator", ("generator",)), Phase("discriminator", ("discriminator",))


def small(**settings: Any) -> KLAutoencoder:
    torch.manual_seed(0)
    model = KLAutoencoderConfig(**({"network": NETWORK, "discriminator": PATCHES, "perceptual_weight": 0.0} | settings)).build(SPEC)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def batch_of(count: int = 5) -> Batch:
    images = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.get_default_dtype()) * 2 - 1
    return Batch(images, None, torch.arange(count))


def rng_of(phase: Phase, count: int = 5) -> Rng:
    return Rng(0, (phase.name, 0), torch.arange(count))


# The networks ---------------------------------------------------------------------------------------------------------


class Again:
    """The networks once more, from their tensors by name."""

    def __init__(self, tensors: Mapping[str, Tensor], groups: int) -> None:
        self.tensors, self.groups = tensors, groups

    def conv(self, x: Tensor, name: str, **options: Any) -> Tensor:
        weight = self.tensors[f"{name}.weight"]
        padding = options.pop("padding", weight.shape[-1] // 2)
        return F.conv2d(x, weight, self.tensors[f"{name}.bias"], padding=padding, **options)

    def norm(self, x: Tensor, name: str) -> Tensor:
        parts = x.reshape(len(x), self.groups, -1)
        mean, variance = parts.mean(2, keepdim=True), parts.var(2, correction=0, keepdim=True)
        normal = ((parts - mean) / (variance + 1e-6).sqrt()).reshape(x.shape)
        return normal * self.tensors[f"{name}.weight"][:, None, None] + self.tensors[f"{name}.bias"][:, None, None]

    def activated(self, x: Tensor, norm: str) -> Tensor:
        y = self.norm(x, norm)
        return y * torch.sigmoid(y)

    def residual(self, x: Tensor, name: str) -> Tensor:
        y = self.conv(self.activated(x, f"{name}.norm1"), f"{name}.conv1")
        y = self.conv(self.activated(y, f"{name}.norm2"), f"{name}.conv2")
        return y + (self.conv(x, f"{name}.conv_shortcut") if f"{name}.conv_shortcut.weight" in self.tensors else x)

    def middle(self, x: Tensor, name: str) -> Tensor:
        x = self.residual(x, f"{name}.resnets.0")
        b, c, h, w = x.shape
        flat = self.norm(x, f"{name}.attentions.0.group_norm").reshape(b, c, h * w)

        def linear(y: Tensor, part: str) -> Tensor:
            weight, bias = (self.tensors[f"{name}.attentions.0.{part}.{kind}"] for kind in ("weight", "bias"))
            return torch.einsum("oc,bct->bot", weight, y) + bias[:, None]

        q, k, v = (linear(flat, f"to_{part}") for part in "qkv")
        mixed = torch.einsum("bqk,bck->bcq", (torch.einsum("bcq,bck->bqk", q, k) / math.sqrt(c)).softmax(2), v)
        return self.residual(x + linear(mixed, "to_out.0").reshape(x.shape), f"{name}.resnets.1")

    def encoded(self, x: Tensor, *, levels: int, blocks: int) -> Tensor:
        x = self.conv(x, "encoder.conv_in")
        for level in range(levels):
            for block in range(blocks):
                x = self.residual(x, f"encoder.down_blocks.{level}.resnets.{block}")
            if level < levels - 1:
                below_and_right = torch.cat((x, torch.zeros_like(x[:, :, :1])), dim=2)
                below_and_right = torch.cat((below_and_right, torch.zeros_like(below_and_right[..., :1])), dim=3)
                x = self.conv(below_and_right, f"encoder.down_blocks.{level}.downsamplers.0.conv", stride=2, padding=0)
        x = self.activated(self.middle(x, "encoder.mid_block"), "encoder.conv_norm_out")
        return self.conv(self.conv(x, "encoder.conv_out"), "quant_conv")

    def decoded(self, z: Tensor, *, levels: int, blocks: int) -> Tensor:
        x = self.middle(self.conv(self.conv(z, "post_quant_conv"), "decoder.conv_in"), "decoder.mid_block")
        for level in range(levels):
            for block in range(blocks + 1):
                x = self.residual(x, f"decoder.up_blocks.{level}.resnets.{block}")
            if level < levels - 1:
                doubled = x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
                x = self.conv(doubled, f"decoder.up_blocks.{level}.upsamplers.0.conv")
        return self.conv(self.activated(x, "decoder.conv_norm_out"), "decoder.conv_out")


@pytest.mark.parametrize(("widths", "blocks"), [((4, 8), 1), ((4, 4, 8), 2), ((6,), 1)])
def test_the_networks_are_those_of_the_paper(widths, blocks, float64):
    settings = KLNetworksConfig(widths=widths, num_blocks=blocks, latent_channels=3, num_groups=2)
    torch.manual_seed(0)
    networks = KLNetworks(settings, channels=3)
    with torch.no_grad():
        for parameter in networks.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    again = Again({name: tensor.detach() for name, tensor in networks.state_dict().items()}, groups=2)
    images = torch.randn(2, 3, 16, 8)
    with torch.no_grad():
        mean, log_variance = networks.posterior(images)
        moments = again.encoded(images, levels=len(widths), blocks=blocks)
        assert mean.shape == (2, 3, 16 // settings.factor, 8 // settings.factor)
        torch.testing.assert_close(torch.cat((mean, log_variance), 1), moments, rtol=1e-10, atol=1e-10)
        decoded = again.decoded(mean, levels=len(widths), blocks=blocks)
        torch.testing.assert_close(networks.decoded(mean), decoded, rtol=1e-10, atol=1e-10)


def test_parameters_are_as_many_as_published():
    counts = {}
    for recipe in (autoencoder_photos(), autoencoder_photos_f4()):
        with torch.device("meta"):
            model = recipe.model.build(DataSpec(image_size=256, channels=3))
        counts[recipe.model.network.factor] = sum(parameter.numel() for parameter in model.generator.parameters())
    assert counts == {8: 83_653_863, 4: 55_312_063}


def test_the_logarithm_of_the_variance_is_clipped(float64):
    model = small()
    with torch.no_grad():
        model.generator.quant_conv.bias[2:] = torch.tensor([1e3, -1e3])
    posterior = model.posterior(batch_of().images)
    assert (posterior.log_variance[:, 0] == 20).all() and (posterior.log_variance[:, 1] == -30).all()
    torch.testing.assert_close(posterior.std[:, 1], torch.full_like(posterior.std[:, 1], math.exp(-15)))


# The loss -------------------------------------------------------------------------------------------------------------


def plain_terms(model: KLAutoencoder, batch: Batch, rng: Rng) -> tuple[Tensor, dict[str, Tensor]]:
    """The reconstructions, and means over the batch of the terms as the paper has them: sums over an image."""
    mean, log_variance = model.generator.posterior(batch.images)
    latents = mean + (log_variance / 2).exp() * rng.normal("z", 2, 4, 4)
    images = model.generator.decoded(latents)
    kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum((1, 2, 3)).mean()
    return images, {"l1": (images - batch.images).abs().sum((1, 2, 3)).mean(), "kl": kl}


@pytest.mark.parametrize("perceptual", [0.0, 0.7])
def test_the_loss_before_the_discriminator_joins(perceptual, float64):
    features = PerceptualConfig(network="squeezenet1_0", layers=FIRST_LAYER, layer_weights=(1.0,), weights=str(feature_weights()))
    model = small(perceptual_weight=perceptual, perceptual=features, kl_weight=0.01, adversarial_start=1)
    if model.perceptual is not None:
        model.perceptual.load(read_weights(feature_weights()))
        model = model.double()
    batch, rng = batch_of(), rng_of(GENERATOR)
    model.prepare(GENERATOR, START)
    terms = model.loss(GENERATOR, batch, rng)
    images, plain = plain_terms(model, batch, rng)
    expected = plain["l1"] + 0.01 * plain["kl"]
    if model.perceptual is not None:
        expected = expected + 3 * 8 * 8 * perceptual * model.perceptual(images, batch.images).mean()
    torch.testing.assert_close(terms.loss.mean(), expected, rtol=1e-10, atol=0)
    assert set(terms.logged) == {"l1", "kl"} | ({"perceptual"} if perceptual else set())


@pytest.mark.parametrize("scale", [1.0, 1e-9])
def test_the_balance_of_the_loss_is_that_of_the_paper(scale, float64):
    """With scores of a usual size, and with ones so small that 1e-4 and the bound of 1e4 decide."""
    model = small(kl_weight=0.01, adversarial_weight=0.3).train()
    with torch.no_grad():
        last = model.discriminator.discriminators[0].layer2[0].layers["conv"]
        last.weight.mul_(scale)
    batch, rng = batch_of(), rng_of(GENERATOR)
    model.prepare(GENERATOR, START)
    terms = model.loss(GENERATOR, batch, rng)
    images, plain = plain_terms(model, batch, rng)
    g = -model.discriminator(images).outputs[0].mean()
    weight = model.generator.decoder.conv_out.weight
    of_rest, of_g = (torch.autograd.grad(loss, weight, retain_graph=True)[0].norm() for loss in (plain["l1"], g))
    balance = min(float(of_rest / (of_g + 1e-4)), 1e4)
    assert (balance == 1e4) == (scale < 1) and (scale < 1 or float(of_g) > 1e-3)
    expected = plain["l1"] + 0.01 * plain["kl"] + 0.3 * balance * g
    torch.testing.assert_close(terms.loss.mean(), expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(terms.logged["balance"], torch.full((5,), balance, dtype=torch.float64), rtol=1e-10, atol=0)
    ours, theirs = (torch.autograd.grad(loss, weight)[0] for loss in (terms.loss.mean(), expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_the_discriminator_tells_images_from_reconstructions(float64):
    model = small().train()
    batch, rng = batch_of(), rng_of(DISCRIMINATOR)
    model.prepare(DISCRIMINATOR, START)
    terms = model.loss(DISCRIMINATOR, batch, rng)
    fake, _ = plain_terms(model, batch, rng)
    real_scores, fake_scores = (model.discriminator(images).outputs[0] for images in (batch.images, fake.detach()))
    expected = F.relu(1 - real_scores).mean() + F.relu(1 + fake_scores).mean()
    torch.testing.assert_close(terms.loss.mean(), expected, rtol=1e-10, atol=0)


def test_the_discriminator_joins_at_its_number_of_images():
    model = small(adversarial_start=100)
    names = {seen: [turn.phase.name for turn in model.turns(replace(START, images_seen=seen))] for seen in (0, 99, 100)}
    assert names == {0: ["generator"], 99: ["generator"], 100: ["discriminator", "generator"]}
    batch = batch_of()
    for seen, joined in ((99, False), (100, True)):
        model.prepare(GENERATOR, replace(START, images_seen=seen))
        assert ("adversarial" in model.loss(GENERATOR, batch, rng_of(GENERATOR)).logged) == joined
    without = small(adversarial_weight=0.0)
    assert [turn.phase.name for turn in without.turns(replace(START, images_seen=10**9))] == ["generator"]
    assert not without.config.adaptive or "adversarial" not in without.loss(GENERATOR, batch, rng_of(GENERATOR)).logged


@pytest.mark.slow
def test_compiled_networks_go_on_when_the_discriminator_joins(monkeypatch: pytest.MonkeyPatch):
    """The balance goes back through the decoder twice, which a backward pass that frees what it saved refuses."""
    compile_module = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: compile_module(module, backend="aot_eager"))
    monkeypatch.setattr("torch._functorch.config.donated_buffer", True)
    model, plain = small(adversarial_start=100).train(), small(adversarial_start=100).train()
    config = RunConfig(model=model.config, data=DataConfig(path="x"), train=TrainConfig(total_images=8, batch_size=5, compile="on"))
    assert len(prepare_backend(model, config, open_world("cpu"))) == 1
    for seen in (99, 100):
        found = []
        for each in (model, plain):
            each.zero_grad()
            each.prepare(GENERATOR, replace(START, images_seen=seen))
            each.loss(GENERATOR, batch_of(), rng_of(GENERATOR)).loss.sum().backward()
            found.append([parameter.grad for parameter in each.generator.parameters()])
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)
    assert not small(adaptive=False).retains_graph


def test_the_discriminator_of_pix2pix():
    """Each score sees 70 pixels, and the first layer has no norm; earlier runs have what they were begun with.

    It has 2,764,737 parameters, and here 1,792 biases more, which batch norm takes out again.
    """
    patches = KLAutoencoderConfig().discriminator
    assert sum(parameter.numel() for parameter in NLayerPatch(patches, in_channels=3).parameters()) == 2_764_737 + 1_792
    network = NLayerPatch(replace(patches, num_filters=4, max_num_filters=8, norm="none"), in_channels=3).eval()
    x = torch.zeros(1, 3, 160, 160, requires_grad=True)
    scores, _ = network(x)
    (seen,) = torch.autograd.grad(scores[0, 0, scores.shape[2] // 2, scores.shape[3] // 2], x)
    rows = seen.abs().sum((0, 1, 3)).nonzero()
    assert int(rows.max() - rows.min()) + 1 == 70
    kept = patches.to_dict()
    assert (kept["last_kernel_size"], kept["first_norm"]) == (4, False)
    earlier = PatchDiscriminatorConfig.from_dict({k: v for k, v in kept.items() if k not in ("last_kernel_size", "first_norm")})
    assert (earlier.last_kernel_size, earlier.first_norm) == (3, True)
    assert not {"last_kernel_size", "first_norm"} & set(earlier.to_dict())


@pytest.mark.parametrize("settings", [{"discriminator": replace(PATCHES, norm="none"), "adaptive": False}, {"adversarial_weight": 0.0}])
def test_without_the_balance_and_batch_norm_or_without_a_game_microbatches_give_the_same_gradient(settings, float64):
    assert small().couples_samples and small(adaptive=False).couples_samples and not small(**settings).couples_samples
    model, batch, rng = small(**settings).train(), batch_of(), rng_of(GENERATOR)
    model.prepare(GENERATOR, START)

    def gradient(size: int) -> Tensor:
        model.zero_grad()
        for start in range(0, 5, size):
            part = slice(start, start + size)
            model.loss(GENERATOR, batch[part], rng[part]).loss.sum().backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.generator.parameters() if parameter.grad is not None])

    torch.testing.assert_close(gradient(2), gradient(5), rtol=1e-9, atol=1e-10)


def test_a_validation_measures_what_the_means_are_decoded_to(float64):
    model, batch = small().eval(), batch_of()
    terms = model.loss(GENERATOR, batch, rng_of(GENERATOR))
    images = model.generator.decoded(model.generator.posterior(batch.images).mean).clamp(-1, 1)
    expected = (images - batch.images).abs().mean((1, 2, 3))
    torch.testing.assert_close(terms.loss, expected)
    mse = ((images - batch.images) * 127.5).square().mean((1, 2, 3))
    torch.testing.assert_close(terms.logged["psnr"], 10 * torch.log10(255**2 / mse))


# Latents --------------------------------------------------------------------------------------------------------------


def test_latents_are_means_or_drawn_and_go_back_to_images(float64):
    model, batch = small().eval(), batch_of(3)
    posterior, rng = model.posterior(batch.images), Rng(0, ("encode",), batch.index)
    (means,) = model.encode(batch.images, rng=rng)
    (drawn,) = model.encode(batch.images, rng=rng, settings=KLEncodingConfig(sample=True))
    assert means.shape == (3, 2, 4, 4)
    torch.testing.assert_close(means, posterior.mean)
    torch.testing.assert_close(drawn, posterior.mean + posterior.std * rng.normal("z", 2, 4, 4))
    with torch.no_grad():
        model.generator.last_weight.mul_(4)  # some of it overshoots
        plain = model.generator.decoded(means)
    images = model.decode([means])
    assert images.shape == batch.images.shape and 0.2 < (plain.abs() > 1).double().mean() < 0.8
    assert torch.equal(images, plain.clamp(-1, 1))
    assert model.decode([torch.zeros(1, 2, 2, 6)]).shape == (1, 3, 4, 12)


def test_what_does_not_fit_is_refused():
    model = small()
    with pytest.raises(ConfigError, match="got 3 channels and 7x8 pixels, expected 3 channels and sides of multiples of 2"):
        model.posterior(torch.zeros(1, 3, 8, 7))
    with pytest.raises(ConfigError, match=r"^rng: got draws for 1 of 2 images, expected an index for each$"):
        model.encode(torch.zeros(2, 3, 8, 8), rng=Rng(0, ("test",), torch.arange(1)), settings=replace(model.encoding, sample=True))
    for latents in ([], [torch.zeros(1, 3, 4, 4)], [torch.zeros(1, 2, 4, 4)] * 2):
        with pytest.raises(ConfigError, match="expected one level of 2 channels"):
            model.decode(latents)
    with pytest.raises(ConfigError, match=r"network.widths: got images of 10x10 pixels, expected sides of multiples of 4"):
        KLAutoencoderConfig(network=replace(NETWORK, widths=(4, 4, 4))).build(DataSpec(image_size=10, channels=3))
    with pytest.raises(ConfigError, match=r"discriminator: got images of 8x8 pixels, expected at least 24 along a side"):
        KLAutoencoderConfig(network=NETWORK).build(SPEC)
    with pytest.raises(ConfigError, match="num_groups: got 3, expected a divisor of 4"):
        KLNetworksConfig(widths=(4, 8), num_groups=3)


# Runs -----------------------------------------------------------------------------------------------------------------


def test_a_run_shows_and_measures_reconstructions(tmp_path: Path):
    config = RunConfig(
        model=KLAutoencoderConfig(network=NETWORK, discriminator=PATCHES, perceptual_weight=0.0, adversarial_start=16),
        data=DataConfig(source="digits", image_size=8, flip=False, workers=0),
        train=TrainConfig(total_images=32, batch_size=8, sample_count=6, ema_rates=(0.5,), validate_images=16),
    )
    run = train(config, tmp_path / "run", device="cpu")
    held_out = config.data.open().validation
    model = run.load(device="cpu")
    assert held_out is not None and isinstance(model, KLAutoencoder)

    def reconstructed(originals: np.ndarray) -> np.ndarray:
        made = model.decode([model.posterior(torch.from_numpy(originals).permute(0, 3, 1, 2) / 127.5 - 1).mean])
        return ((made + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy().astype(int)

    originals = held_out.batch(np.arange(6)).images
    picture = np.asarray(Image.open(tmp_path / "run/samples/000000032.png"))
    factor = picture.shape[0] // 22  # two rows of images of 8 pixels between lines of 2
    pixels = picture[::factor, ::factor].astype(int)
    rows = [np.stack([pixels[top : top + 8, 2 + 10 * k : 10 + 10 * k] for k in range(6)]) for top in (2, 12)]
    assert np.array_equal(rows[0], originals[..., 0])
    assert np.abs(rows[1] - reconstructed(originals)[..., 0]).max() <= 1
    pictures = maker_of(run, ImageRequest()).made(run.open(Loading(device="cpu")), 6)
    spread = held_out.batch(np.arange(6) * len(held_out) // 6).images
    assert pictures.truth is not None and np.array_equal(pictures.truth(range(6)), spread)
    assert np.abs(pictures.images(range(6)) - reconstructed(spread)).max() <= 1


def test_averages_follow_the_weights_before_the_discriminator_has_joined(tmp_path: Path):
    config = RunConfig(
        model=KLAutoencoderConfig(network=NETWORK, discriminator=PATCHES, perceptual_weight=0.0, adversarial_start=1_000),
        data=DataConfig(source="digits", image_size=8, flip=False, workers=0),
        train=TrainConfig(total_images=16, batch_size=8, sample_count=0, ema_rates=(0.0,), ema_warmup=False, validate_images=0),
    )
    run = train(config, tmp_path / "run", device="cpu")
    averaged, raw = run.tensors(weights="ema-0.0"), run.tensors(weights="raw")
    assert all(torch.equal(tensor, raw[name]) for name, tensor in averaged.items() if name.startswith("generator."))
