"""Same weights and inputs as guided-diffusion's super-resolution, same numbers."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.diffusion import recorded
from triptych.core.batch import Batch, DataSpec
from triptych.diffusion.bounds import losses
from triptych.diffusion.gaussian import GaussianConfig, GaussianDiffusion
from triptych.diffusion.respacing import respaced_timesteps
from triptych.diffusion.samplers import ancestral_steps, clipping, ddim_steps, x0_predictor
from triptych.diffusion.super_resolution import SuperResolution, SuperResolutionConfig
from triptych.diffusion.unet import UNetConfig
from triptych.recipes.catalogue import load_recipe

ARRAYS, NETS = recorded.load("super_resolution")
SHAPE, LABELS = (2, 3, 16, 16), torch.tensor([2, 5])
CLIP = clipping(1.0)


class Case:
    """A recorded network with its inputs."""

    def __init__(self, name: str) -> None:
        flags = NETS[name]
        self.name = name
        network = UNetConfig(
            num_channels=32,
            num_res_blocks=flags["num_res_blocks"],
            channel_mult=tuple(flags["channel_mult"]),
            attention_resolutions=tuple(flags["attention"]),
            num_heads=flags["num_heads"],
            num_heads_upsample=None if flags["num_heads_upsample"] == -1 else flags["num_heads_upsample"],
            scale_shift_norm=flags["scale_shift_norm"],
            resblock_updown=flags["resblock_updown"],
        )
        config = SuperResolutionConfig(
            small_size=flags["small_size"],
            network=network,
            diffusion=GaussianConfig(schedule=flags["schedule"], variance="learned_range" if flags["learn_sigma"] else "fixed_large"),
            class_conditional=flags["classes"] is not None,
        )
        self.model: SuperResolution = config.build(DataSpec(image_size=16, channels=3, num_classes=flags["classes"])).eval()
        self.shapes = {key: list(value.shape) for key, value in self.model.network.state_dict().items()}
        self.model.network.load_state_dict(recorded.weights(self.shapes))
        self.model.requires_grad_(False)
        self.x0 = self.given("x0", 0.6).clamp(-1, 1)
        self.conditions = self.model.conditions(Batch(self.x0, LABELS, torch.arange(2)))

    def given(self, key: str, scale: float = 1.0) -> Tensor:
        return recorded.array(f"sr/{self.name}/{key}", SHAPE, scale)

    def chain(self, spec: str) -> GaussianDiffusion:
        return self.model.diffusion.respaced(respaced_timesteps(spec, total=1000))

    def noise(self, i: int) -> Tensor:
        return self.given(f"step/{i}")

    def expect(self, value: Tensor, key: str) -> None:
        torch.testing.assert_close(value, torch.from_numpy(ARRAYS[f"{self.name}/{key}"]), atol=1e-4, rtol=0)


@pytest.fixture(params=NETS, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def test_keys_and_shapes(case: Case) -> None:
    assert len(case.shapes) == NETS[case.name]["keys"]
    assert hashlib.sha256(json.dumps(case.shapes).encode()).hexdigest() == NETS[case.name]["sha256"]


def test_network(case: Case) -> None:
    t = torch.tensor([17, 803])
    case.expect(case.model.network(case.given("x"), t, *case.conditions), "out")
    shifted = F.pad(case.conditions[0], (1, 0))[..., :-1]  # type: ignore[arg-type]
    assert (
        case.model.network(case.given("x"), t, shifted, *case.conditions[1:]) - torch.from_numpy(ARRAYS[f"{case.name}/out"])
    ).std() > 0.01


def test_losses(case: Case) -> None:
    process, t, noise = case.model.diffusion, torch.tensor([17, 803]), case.given("noise")
    x_t = process.noised(case.x0, noise, process.at(t))
    terms = losses(process, case.model.network(x_t, t, *case.conditions), x0=case.x0, x_t=x_t, noise=noise, t=t)
    recorded_terms = [key.rpartition("/")[2] for key in ARRAYS if key.startswith(f"{case.name}/loss/")]
    assert recorded_terms
    for key in recorded_terms:
        case.expect(terms[key], f"loss/{key}")


def test_ancestral(case: Case) -> None:
    steps = ancestral_steps(case.chain("5"), case.model.denoiser(case.conditions), case.given("x"), noise=case.noise, hook=CLIP)
    case.expect(list(steps)[-1].sample, "ancestral5")


def test_ddim(case: Case) -> None:
    process = case.chain("ddim5")
    predict = x0_predictor(process, case.model.denoiser(case.conditions), hook=CLIP)
    case.expect(list(ddim_steps(process, predict, case.given("x"), noise=case.noise))[-1].sample, "ddim5")


@pytest.mark.parametrize(
    ("recipe", "published", "parameters"),
    [("adm-upsample-64-256", "64_256_upsampler", 311_795_910), ("adm-upsample-128-512", "128_512_upsampler", 308_835_270)],
)
def test_published_keys_and_shapes(recipe: str, published: str, parameters: int) -> None:
    config = load_recipe(recipe)
    spec = DataSpec(image_size=config.data.image_size, channels=3, num_classes=1000)
    with torch.device("meta"):
        model = config.model.build(spec)
    assert isinstance(model, SuperResolution) and f"{model.input_size}_{spec.image_size}_upsampler" == published
    shapes = {key: list(value.shape) for key, value in model.network.state_dict().items()}
    known = json.loads((recorded.GOLDEN / "adm_keys.json").read_text())[published]
    assert len(shapes) == known["keys"]
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert hashlib.sha256(json.dumps(shapes).encode()).hexdigest() == known["sha256"]


@pytest.mark.parametrize(("recipe", "steps"), [("adm-upsample-64-256", 500_000), ("adm-upsample-128-512", 1_050_000)])
def test_published_training(recipe: str, steps: int) -> None:
    """Dhariwal and Nichol 2021, Table 13."""
    config = load_recipe(recipe)
    assert (config.train.total_images, config.train.batch_size, config.optim.learning_rate) == (steps * 256, 256, 1e-4)
