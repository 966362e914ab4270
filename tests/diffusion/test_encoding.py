"""Images to noise and back by DDIM: exact paths on data whose denoiser is known, independence of the batch, refusals."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from triptych.core.batch import DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import Encoder, seeded_build
from triptych.core.rng import Rng
from triptych.diffusion.adm import ADM, ADMConfig, EncodingConfig
from triptych.diffusion.gaussian import GaussianConfig
from triptych.diffusion.model import SamplingConfig
from triptych.diffusion.unet import UNetConfig

MEAN, DEVIATION = 0.1, 0.3
SPEC = DataSpec(image_size=8, channels=1, num_classes=3)


def model(**settings: Any) -> ADM:
    network = UNetConfig(num_channels=32, num_res_blocks=1, channel_mult=(1, 1), attention_resolutions=(4,), dropout=0.2)
    diffusion = GaussianConfig(steps=1000, schedule="cosine", mean="v", variance="fixed_small")
    made = seeded_build(ADMConfig(**({"network": network, "diffusion": diffusion, "class_conditional": True} | settings)), SPEC, seed=0)
    assert isinstance(made, ADM)
    torch.manual_seed(0)
    for parameter in made.network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.01)
    return made.eval()


class KnownNetwork(nn.Module):
    """The best v of independent pixels from N(mean of the label, deviation^2), and how often it was asked."""

    def __init__(self, made: ADM) -> None:
        super().__init__()
        self.abar = torch.from_numpy(made.diffusion.tables[1])
        self.calls = 0

    def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        self.calls += 1
        abar = self.abar[t.long()][:, None, None, None]
        alpha, noise, mean = abar.sqrt(), (1 - abar).sqrt(), (MEAN * labels)[:, None, None, None]
        gain = (x - alpha * mean) / (DEVIATION**2 * abar + 1 - abar)
        x0, eps = mean + alpha * DEVIATION**2 * gain, noise * gain
        return alpha * eps - noise * x0


def known() -> tuple[ADM, KnownNetwork]:
    made = model()
    network = KnownNetwork(made)
    made.network = network  # type: ignore[assignment]
    return made, network


def pictures(count: int = 6) -> tuple[Tensor, Tensor, Rng]:
    rng = Rng(3, ("images",), torch.arange(count))
    labels = torch.arange(count) % 3
    return MEAN * labels[:, None, None, None] + DEVIATION * rng.normal("images", 1, 8, 8).double().clamp(-2, 2), labels, rng


def test_a_diffusion_model_is_an_encoder() -> None:
    made = model()
    assert isinstance(made, Encoder)
    assert made.encoding == EncodingConfig()


def test_the_noise_is_where_the_exact_path_ends() -> None:
    made, network = known()
    images, labels, rng = pictures()
    first, last = made.diffusion.at_step(0), made.diffusion.at_step(999)

    def deviation(c: Any) -> float:
        return math.sqrt(DEVIATION**2 * c.abar + 1 - c.abar)

    mean = MEAN * labels[:, None, None, None]
    exact = last.sqrt_abar * mean + deviation(last) / deviation(first) * (images - first.sqrt_abar * mean)
    errors, seen = [], []
    for steps in (50, 100, 200):
        settings = EncodingConfig(steps=steps)
        (noise,) = made.encode(images, labels=labels, rng=rng, settings=settings, report=lambda done, count: seen.append((done, count)))
        errors.append(float((noise - exact).abs().max()))
    assert all(0.7 < math.log2(before / after) < 1.4 for before, after in pairwise(errors)), errors
    assert network.calls == 49 + 99 + 199
    assert seen == [(k, count) for count in (49, 99, 199) for k in range(1, count + 1)]


def test_decoding_brings_the_images_back_and_more_steps_do_it_better() -> None:
    made, network = known()
    images, labels, rng = pictures()
    errors = []
    for steps in (50, 100, 200):
        settings = EncodingConfig(steps=steps)
        latents = made.encode(images, labels=labels, rng=rng, settings=settings)
        network.calls = 0
        errors.append(float((made.decode(latents, labels=labels, settings=settings) - images).abs().max()))
        assert network.calls == steps
    assert errors[-1] < 0.02
    assert all(after < 0.7 * before for before, after in pairwise(errors)), errors


def test_another_label_moves_the_mean() -> None:
    made, _ = known()
    images, labels, rng = pictures()
    latents = made.encode(images, labels=labels, rng=rng)
    other = (labels + 1) % 3
    moved = made.decode(latents, labels=other) - images
    torch.testing.assert_close(moved, (MEAN * (other - labels).double())[:, None, None, None].expand_as(images), atol=0.02, rtol=0)


@pytest.mark.usefixtures("float64")
def test_latents_do_not_depend_on_the_batch() -> None:
    made, settings = model(), EncodingConfig(steps=6)
    images, labels, rng = pictures(5)
    images = images.double()
    (whole,) = made.encode(images, labels=labels, rng=rng, settings=settings)
    cuts = (slice(0, 1), slice(1, 5))
    parts = [made.encode(images[cut], labels=labels[cut], rng=rng[cut], settings=settings)[0] for cut in cuts]
    assert whole.std() > 0.1
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-4, rtol=1e-4)
    decoded = made.decode([whole], labels=labels, settings=settings)
    parts = [made.decode([whole[cut]], labels=labels[cut], settings=settings) for cut in cuts]
    torch.testing.assert_close(torch.cat(parts), decoded, atol=1e-4, rtol=1e-4)
    assert not whole.requires_grad and not decoded.requires_grad


@pytest.mark.usefixtures("float64")
def test_decoding_is_the_sampler_without_clipping() -> None:
    made = model()
    rng, labels = Rng(7, ("sample",), torch.arange(3)), torch.tensor([0, 2, 1])
    sampled = made.sample(rng, labels=labels, settings=SamplingConfig(sampler="ddim", steps=9, clip=False))
    decoded = made.decode([rng.normal("initial", 1, 8, 8)], labels=labels, settings=EncodingConfig(steps=9))
    assert torch.equal(sampled, decoded)


def test_250_steps_or_all_of_fewer() -> None:
    made, network = known()
    images, labels, rng = pictures(2)
    made.encode(images, labels=labels, rng=rng)
    assert network.calls == 249
    short = model(diffusion=GaussianConfig(steps=10, schedule="cosine"))
    given = images.float()
    latents = [short.encode(given, labels=labels, rng=rng, settings=EncodingConfig(steps=steps))[0] for steps in (None, 10)]
    assert torch.equal(*latents)


@pytest.mark.parametrize(
    ("labels", "latents", "steps", "message"),
    [
        (None, [(2, 1, 8, 8)], 5, "labels: this model needs labels, from 0 to 2"),
        ([0, 3], [(2, 1, 8, 8)], 5, "labels: got 3, expected 0 to 2"),
        ([0, 1], [(2, 3, 8, 8)], 5, "latents: got the shapes [(3, 8, 8)] of a sample, expected [(1, 8, 8)]"),
        ([0, 1], [(2, 1, 8, 8)] * 2, 5, "latents: got the shapes [(1, 8, 8), (1, 8, 8)] of a sample, expected [(1, 8, 8)]"),
        ([0, 1], [(2, 1, 8, 8)], 1, "steps: got 1, expected 2 or more: one is the first timestep alone, from which no way leads to noise"),
        ([0, 1], [(2, 1, 8, 8)], 5000, "steps: got '5000', which asks for 5000 of the 1000 steps of a section; the nearest is 1000"),
    ],
)
def test_what_does_not_fit_is_refused(labels: Any, latents: list[tuple[int, ...]], steps: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model().decode(
            [torch.zeros(shape) for shape in latents],
            labels=None if labels is None else torch.tensor(labels),
            settings=EncodingConfig(steps=steps),
        )
    assert str(caught.value) == message
