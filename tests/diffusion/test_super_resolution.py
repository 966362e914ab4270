"""Super-resolution: what the network is told, what it makes, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from triptych.core.batch import Batch, DataSpec
from triptych.core.errors import ConfigError
from triptych.core.model import Guidable, Sampler, Upsampler, seeded_build
from triptych.core.rng import Rng
from triptych.diffusion.gaussian import GaussianConfig
from triptych.diffusion.model import SamplingConfig
from triptych.diffusion.super_resolution import SuperResolution, SuperResolutionConfig
from triptych.diffusion.unet import UNetConfig

SPEC = DataSpec(image_size=8, channels=1, num_classes=3)
NETWORK = UNetConfig(num_channels=32, num_res_blocks=1, channel_mult=(1, 1), attention_resolutions=(4,))


def config(**settings: Any) -> SuperResolutionConfig:
    diffusion = GaussianConfig(steps=100, schedule="cosine", variance="learned_range")
    given = {"small_size": 4, "network": NETWORK, "diffusion": diffusion, "class_conditional": True}
    return SuperResolutionConfig(**(given | settings))


def model(spec: DataSpec = SPEC, **settings: Any) -> SuperResolution:
    made = seeded_build(config(**settings), spec, seed=0)
    assert isinstance(made, SuperResolution)
    torch.manual_seed(0)
    for parameter in made.network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.05)
    return made.eval()


def small_batch(count: int = 5, *, channels: int = 1, size: int = 4) -> Batch:
    images = torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(5)) * 2 - 1
    return Batch(images, torch.arange(count) % 3, torch.arange(count))


def upsampled(made: SuperResolution, batch: Batch, **settings: Any) -> Tensor:
    return made.upsample(batch, Rng(9, ("upsample",), batch.index), settings=SamplingConfig(steps=4).updated(settings))


def test_it_upsamples_and_does_not_sample() -> None:
    made = model()
    assert isinstance(made, Upsampler) and not isinstance(made, Sampler)
    assert made.input_size == 4


def test_the_small_image_is_the_mean_over_areas() -> None:
    large = torch.arange(64.0).view(1, 1, 8, 8)
    low_res, labels = model().conditions(Batch(large, torch.tensor([1]), torch.arange(1)))
    assert low_res is not None and labels is not None and labels.tolist() == [1]
    assert low_res[0, 0, 0].tolist() == [4.5, 6.5, 8.5, 10.5]  # means of 0, 1, 8, 9; of 2, 3, 10, 11; ...
    low_res, labels = model(small_size=3, class_conditional=False).conditions(Batch(large, torch.tensor([1]), torch.arange(1)))
    assert low_res is not None and low_res.shape == (1, 1, 3, 3) and labels is None
    assert float(low_res[0, 0, 0, 0]) == 9.0  # of the rows and columns 0, 1, 2


def test_the_network_sees_the_small_image_bilinearly_enlarged(monkeypatch: pytest.MonkeyPatch) -> None:
    made, seen = model(), []
    monkeypatch.setattr(made.network, "_down", lambda x, *_: seen.append(x) or ([], x))
    monkeypatch.setattr(made.network, "output_blocks", nn.ModuleList())
    monkeypatch.setattr(made.network, "out", nn.ModuleDict({"0": _Same(), "2": nn.Identity()}))
    x, low_res = torch.randn(1, 1, 8, 8), torch.tensor([[0.0, 1.0, 1.0, 1.0]]).expand(4, 4)[None, None]
    made.network(x, torch.tensor([3]), low_res, torch.tensor([0]))
    assert torch.equal(seen[0][:, :1], x)
    assert seen[0][0, 1, 5].tolist() == [0.0, 0.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]


class _Same(nn.Module):
    def forward(self, x: Tensor, _: Any) -> Tensor:
        return x


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("settings", [{}, {"sampler": "ddim"}, {"sampler": "ddim", "eta": 1.0}])
def test_enlargements_do_not_depend_on_the_batch(settings: dict[str, Any]) -> None:
    made, batch = model(), small_batch()
    images = upsampled(made, batch, **settings)
    assert images.shape == (5, 1, 8, 8) and images.abs().max() <= 1
    torch.testing.assert_close(upsampled(made, batch[3:5], **settings), images[3:5], atol=1e-4, rtol=0)


def test_small_image_label_and_noise_all_matter() -> None:
    made, batch = model(), small_batch()
    images = upsampled(made, batch, sampler="ddim")
    assert batch.labels is not None
    others = [
        Batch(-batch.images, batch.labels, batch.index),
        Batch(batch.images, (batch.labels + 1) % 3, batch.index),
        Batch(batch.images, batch.labels, batch.index + 5),
    ]
    for other in others:
        assert ((upsampled(made, other, sampler="ddim") - images).flatten(1).abs().amax(1) > 0.01).all()


def test_the_loss_goes_by_the_small_image_of_the_same_batch() -> None:
    made = model()
    images = small_batch(6, size=8)
    rng = Rng(0, ("denoise", 0), images.index)
    terms = made.loss(made.phases[0], images, rng)
    assert terms.loss.shape == (6,)
    part = made.loss(made.phases[0], images[2:4], rng[2:4])
    torch.testing.assert_close(part.loss, terms.loss[2:4], atol=1e-5, rtol=1e-5)
    noise, t = rng.normal("noise", 1, 8, 8), made.timesteps.draw(rng)[0]
    x_t = made.diffusion.noised(images.images, noise, made.diffusion.at(t))
    output = made.network(x_t, t.float(), *made.conditions(images))
    torch.testing.assert_close((output[:, :1] - noise).square().mean((1, 2, 3)), terms.logged["mse"], atol=1e-5, rtol=1e-5)
    flat = Batch(torch.zeros_like(images.images), images.labels, images.index)
    assert not torch.allclose(made.network(x_t, t.float(), *made.conditions(flat)), output, atol=1e-2)


@pytest.mark.usefixtures("float64")
def test_colours_and_sizes() -> None:
    network = NETWORK.updated({"attention_resolutions": (8,)})
    made = model(DataSpec(image_size=16, channels=3), small_size=6, class_conditional=False, network=network)
    batch = small_batch(2, channels=3, size=6)
    assert upsampled(made, batch, steps=2).shape == (2, 3, 16, 16)
    assert made.network.in_channels == 6
    unlabelled = Batch(batch.images, None, batch.index)
    torch.testing.assert_close(upsampled(made, unlabelled, steps=2), upsampled(made, batch, steps=2))


def test_guidance_without_labels() -> None:
    plain, guided = model(), model(label_dropout=0.1)
    batch = small_batch()
    # No other model leads an upsampler, so that none is advised.
    needed = r"guidance_scale: got 2\.0, but this model was not trained with model\.label_dropout, .* needs; give 1$"
    with pytest.raises(ConfigError, match=needed):
        upsampled(plain, batch, guidance_scale=2.0)
    with pytest.raises(ConfigError, match=r"guidance_interval: got 0\.5, 2\.0, but nothing guides; give a guidance_scale other than 1$"):
        upsampled(guided, batch, guidance_interval=(0.5, 2.0))
    with pytest.raises(ConfigError, match=r"sampling\.guidance_scale: got 2\.0, expected 1 in a model without label_dropout$"):
        config(sampling=SamplingConfig(guidance_scale=2.0))
    assert not isinstance(plain, Guidable) and not plain.config.guidable
    assert not torch.allclose(upsampled(guided, batch, guidance_scale=2.0), upsampled(guided, batch), atol=1e-3)


def test_what_does_not_fit_is_refused() -> None:
    for size in (8, 9):
        with pytest.raises(ConfigError, match=f"small_size: got {size}, expected less than data.image_size, 8"):
            config(small_size=size).build(SPEC)
    with pytest.raises(ConfigError, match="^network: a U-Net takes squares, not images of 8 x 16 pixels; leave out data.width$"):
        config().build(replace(SPEC, width=16))
    with pytest.raises(ConfigError, match="small_size: got 0, expected at least 1"):
        config(small_size=0)
    with pytest.raises(ConfigError, match="class_conditional: got true, but the data has no labels"):
        config().build(DataSpec(image_size=8, channels=1))
    with pytest.raises(ConfigError, match=r"label_dropout: got 0\.1"):
        config(class_conditional=False, label_dropout=0.1)
    made, batch = model(), small_batch()
    with pytest.raises(ConfigError, match=r"images: got images of shape \(1, 5, 5\), expected \(1, 4, 4\)"):
        upsampled(made, small_batch(size=5))
    with pytest.raises(ConfigError, match=r"^rng: got draws for 2 of 5 images, expected an index for each$"):
        made.upsample(batch, Rng(0, ("test",), torch.arange(2)), settings=made.sampling)
    with pytest.raises(ConfigError, match="labels: this model needs labels, from 0 to 2"):
        upsampled(made, Batch(batch.images, None, batch.index))
    with pytest.raises(ConfigError, match="labels: got 3, expected 0 to 2"):
        upsampled(made, Batch(batch.images, torch.arange(5), batch.index))
