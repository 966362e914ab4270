"""Same weights and inputs as guided-diffusion, same numbers."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.diffusion import recorded
from triptych.core.batch import DataSpec
from triptych.diffusion.adm import ADM, ADMConfig
from triptych.diffusion.bounds import bound, losses
from triptych.diffusion.gaussian import GaussianConfig, GaussianDiffusion, StepCoefficients, factors
from triptych.diffusion.respacing import respaced_timesteps
from triptych.diffusion.samplers import (
    ancestral_step,
    ancestral_steps,
    clipping,
    ddim_reverse_step,
    ddim_row,
    ddim_step,
    ddim_steps,
    x0_predictor,
)
from triptych.diffusion.unet import UNet, UNetConfig

NAME = "unet_new_order"
FLOAT32, SCHEDULE = 1e-4, 1e-6
ARRAYS, CONFIGS = recorded.load("adm")
MORE, MORE_CONFIGS = recorded.load("adm_more")
CLIP = clipping(1.0)


def expect(value: Tensor, name: str, *, arrays: dict[str, np.ndarray] = ARRAYS) -> None:
    torch.testing.assert_close(value, torch.from_numpy(arrays[name]), atol=FLOAT32, rtol=0)


def given(name: str) -> Tensor:
    return torch.from_numpy(ARRAYS[f"{NAME}/{name}"])


@pytest.fixture(scope="module")
def model() -> ADM:
    config = ADMConfig(
        network=UNetConfig(
            num_channels=32,
            num_res_blocks=2,
            channel_mult=(1, 2),
            attention_resolutions=(32, 16),
            num_head_channels=16,
            resblock_updown=True,
            attention_order="new",
        ),
        diffusion=GaussianConfig(schedule="cosine", variance="learned_range"),
        class_conditional=True,
    )
    model = config.build(DataSpec(image_size=32, channels=3, num_classes=1000)).eval()
    model.network.load_state_dict(recorded.weights(CONFIGS[NAME]["keys"]))
    return model.requires_grad_(False)


def chain(model: ADM, spec: str) -> GaussianDiffusion:
    return model.diffusion.respaced(respaced_timesteps(spec, total=1000))


def denoise(model: ADM):
    return lambda x, c: model.network(x, c.times(x), given("y"))


def draws(kind: str, x: Tensor):
    return lambda i: recorded.array(f"{NAME}/{kind}/{i}", x.shape, 1.0)


def test_network(model: ADM) -> None:
    expect(model.network(given("x"), given("t"), given("y")), f"{NAME}/out")


def test_losses(model: ADM) -> None:
    x0, t, noise = given("x").clamp(-1, 1), given("t"), given("noise")
    x_t = model.diffusion.noised(x0, noise, model.diffusion.at(t))
    terms = losses(model.diffusion, model.network(x_t, t, given("y")), x0=x0, x_t=x_t, noise=noise, t=t)
    for name in ("loss", "mse", "vb"):
        expect(terms[name], f"{NAME}/loss/{name}")


def test_moments(model: ADM) -> None:
    x, t = given("x"), given("t")
    moments = model.diffusion.moments(model.network(x, t, given("y")), x, model.diffusion.at(t), CLIP)
    expect(moments.mean, f"{NAME}/p/mean")
    expect(moments.variance, f"{NAME}/p/variance")
    expect(moments.log_variance, f"{NAME}/p/log_variance")
    expect(moments.x0, f"{NAME}/p/pred_xstart")


@pytest.mark.parametrize("spec", ["ddim10", "10", "5,10,4"])
def test_respaced_chain(model: ADM, spec: str) -> None:
    process = chain(model, spec)
    assert list(process.kept) == ARRAYS[f"{NAME}/respace/{spec}/timestep_map"].tolist()
    np.testing.assert_allclose(process.betas, ARRAYS[f"{NAME}/respace/{spec}/betas"], atol=SCHEDULE, rtol=0)


def test_ddim(model: ADM) -> None:
    x = given("x")
    process = chain(model, "ddim10")
    steps = list(ddim_steps(process, x0_predictor(process, denoise(model), hook=CLIP), x, noise=draws("none", x)))
    assert len(steps) == 10
    expect(steps[-1].sample, f"{NAME}/ddim10")


def test_ddim_reverse(model: ADM) -> None:
    process, x, t = chain(model, "ddim10"), given("x").clamp(-1, 1), torch.tensor([2, 5])
    c = process.at(t)
    x0 = process.moments(denoise(model)(x, c), x, c, CLIP).x0
    expect(ddim_reverse_step(process, x0, x, c), f"{NAME}/ddim_reverse")


def test_ancestral(model: ADM) -> None:
    x = given("x")
    *_, last = ancestral_steps(chain(model, "10"), denoise(model), x, noise=draws("anc", x), hook=CLIP)
    expect(last.sample, f"{NAME}/ancestral10")


def test_bits_per_dim(model: ADM) -> None:
    x0 = given("x").clamp(-1, 1)
    result = bound(chain(model, "10"), denoise(model), x0, noise=draws("bpd", x0), hook=CLIP)
    expect(result.total, f"{NAME}/bpd/total_bpd")
    expect(result.prior, f"{NAME}/bpd/prior_bpd")
    expect(result.terms, f"{NAME}/bpd/vb")
    expect(result.x0_mse, f"{NAME}/bpd/xstart_mse")
    expect(result.noise_mse, f"{NAME}/bpd/mse")


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_schedules(schedule: str) -> None:
    process = GaussianDiffusion(GaussianConfig(schedule=schedule))  # type: ignore[arg-type]
    tables = StepCoefficients(*process.tables)
    ours = {
        "betas": process.betas,
        "alphas_cumprod": tables.abar,
        "posterior_variance": tables.variance_small,
        "posterior_log_variance_clipped": tables.log_variance_small,
        "posterior_mean_coef1": tables.posterior_x0,
        "posterior_mean_coef2": tables.posterior_xt,
    }
    for name, table in ours.items():
        np.testing.assert_allclose(table, ARRAYS[f"schedule/{schedule}/{name}"], atol=SCHEDULE, rtol=0, err_msg=name)


@pytest.mark.parametrize("name", MORE_CONFIGS["nets"])
def test_other_networks(name: str) -> None:
    flags = MORE_CONFIGS["nets"][name]
    config = UNetConfig(
        num_channels=flags["num_channels"],
        num_res_blocks=flags["num_res_blocks"],
        channel_mult=tuple(flags["channel_mult"]),
        attention_resolutions=tuple(flags["attention"]),
        num_heads=flags["num_heads"],
        num_heads_upsample=None if flags["num_heads_upsample"] == -1 else flags["num_heads_upsample"],
        scale_shift_norm=flags["scale_shift_norm"],
        resblock_updown=flags["resblock_updown"],
        conv_resample=flags["conv_resample"],
    )
    network = UNet(config, image_size=16, in_channels=3, out_channels=flags["out"]).eval()
    network.load_state_dict({key: recorded.weight(key, value.shape) for key, value in network.state_dict().items()})
    with torch.no_grad():
        expect(network(recorded.array(f"{name}/x", (1, 3, 16, 16), 1.0), torch.tensor([357])), f"net/{name}", arrays=MORE)


def fixed_output(variance: str) -> Tensor:
    output = recorded.array("output", (4, 6, 4, 4), 0.5)
    if not variance.startswith("learned"):
        return output[:, :3]
    return torch.cat((output[:, :3], output[:, 3:] - (4 if variance == "learned" else 0)), dim=1)


@pytest.mark.parametrize(("mean", "variance", "loss"), [tuple(case) for case in MORE_CONFIGS["cases"]])
def test_parametrizations(mean: str, variance: str, loss: str) -> None:
    config = GaussianConfig(steps=50, mean=mean, variance=variance, loss=loss, rescale_timesteps=True)  # type: ignore[arg-type]
    process, t = GaussianDiffusion(config), torch.tensor([0, 1, 23, 49])
    x0, noise = recorded.array("x0", (4, 3, 4, 4), 0.6).clamp(-1, 1), recorded.array("noise", (4, 3, 4, 4), 1.0)
    output, c = fixed_output(variance), process.at(t)
    torch.testing.assert_close(c.times(x0), torch.from_numpy(MORE["times"]))
    terms = losses(process, output, x0=x0, x_t=process.noised(x0, noise, c), noise=noise, t=t)
    prefix = f"loss/{mean}/{variance}/{loss}/"
    for key in [key for key in MORE if key.startswith(prefix)]:
        torch.testing.assert_close(terms[key.removeprefix(prefix)], torch.from_numpy(MORE[key]), atol=FLOAT32, rtol=1e-5, msg=key)
    if loss == "mse":
        moments = process.moments(output, noise, c, CLIP)
        named = {"mean": moments.mean, "variance": moments.variance, "log_variance": moments.log_variance, "pred_xstart": moments.x0}
        for key, value in named.items():
            expect(value.expand(4, 3, 4, 4)[:, :1, :2, :2], f"p/{mean}/{variance}/{key}", arrays=MORE)


@pytest.mark.parametrize("eta", [0.3, 1.0])
def test_ddim_step_with_noise(eta: float) -> None:
    process = GaussianDiffusion(GaussianConfig(schedule="cosine")).respaced(respaced_timesteps("25", total=1000))
    x, t = recorded.array("noise", (4, 3, 4, 4), 1.0), torch.tensor([0, 1, 12, 24])
    c, drawn = process.at(t), recorded.array("step", x.shape, 1.0)
    moments = process.moments(fixed_output("fixed_large"), x, c, CLIP)
    rows = factors([ddim_row(process.at_step(step), eta=eta) for step in t.tolist()], x)
    parts = [ddim_step(x0, x_t, row, noise=noise) for x0, x_t, row, noise in zip(moments.x0, x, rows, drawn, strict=True)]
    expect(torch.stack(parts), f"ddim_eta/{eta}", arrays=MORE)
    expect(ancestral_step(moments, c, drawn), "anc", arrays=MORE)


B = {"num_channels": 256, "num_head_channels": 64, "attention_resolutions": (32, 16, 8), "resblock_updown": True}
PUBLISHED = {
    # name: (image size, input channels, classes, flags, parameters)
    "64x64_diffusion": (64, 3, 1000, B | {"num_channels": 192, "num_res_blocks": 3, "attention_order": "new"}, 295_904_454),
    "128x128_diffusion": (128, 3, 1000, B | {"num_head_channels": None}, 421_529_606),
    "256x256_diffusion": (256, 3, 1000, B, 553_838_086),
    "256x256_diffusion_uncond": (256, 3, None, B, 552_814_086),
    "512x512_diffusion": (512, 3, 1000, B, 558_997_638),
    "lsun": (256, 3, None, B | {"dropout": 0.1}, 552_814_086),
    "64_256_upsampler": (256, 6, 1000, B | {"num_channels": 192, "num_head_channels": None}, 311_795_910),
    "128_512_upsampler": (
        512,
        6,
        1000,
        B | {"num_channels": 192, "attention_resolutions": (32, 16), "channel_mult": (1, 1, 2, 2, 4, 4)},
        308_835_270,
    ),
    "cifar_improved": (32, 3, None, {"num_channels": 128, "num_res_blocks": 3, "dropout": 0.3}, 52_546_438),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_keys_and_shapes(name: str) -> None:
    size, channels, classes, flags, parameters = PUBLISHED[name]
    with torch.device("meta"):
        network = UNet(UNetConfig(**flags), image_size=size, in_channels=channels, out_channels=6, num_classes=classes)
    shapes = {key: list(value.shape) for key, value in network.state_dict().items()}
    known = json.loads((recorded.GOLDEN / "adm_keys.json").read_text())[name]
    assert len(shapes) == known["keys"]
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert hashlib.sha256(json.dumps(shapes).encode()).hexdigest() == known["sha256"]
    assert not list(network.buffers())
