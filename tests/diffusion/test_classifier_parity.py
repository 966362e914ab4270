"""Same weights and inputs as guided-diffusion's classifier, same logits and gradients."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
import torch

from tests.diffusion import recorded
from triptych.core.batch import DataSpec
from triptych.core.model import ModelConfig
from triptych.diffusion.classifier import ClassifierNetwork, NoisyClassifier
from triptych.diffusion.gaussian import NoiseConfig, NoiseProcess
from triptych.diffusion.guidance import classifier_score
from triptych.diffusion.unet import EncoderConfig
from triptych.recipes import classifiers

ARRAYS, RECORD = recorded.load("classifier")
LOGITS = 1e-5
GRADIENT = 1e-6  # the gradients are about 1e-3 in size
TIMES, LABELS = torch.tensor(RECORD["timesteps"]), torch.tensor(RECORD["labels"])


def network(flags: dict[str, Any]) -> ClassifierNetwork:
    config = EncoderConfig(
        num_channels=32,
        num_res_blocks=flags["num_res_blocks"],
        channel_mult=tuple(flags["channel_mult"]),
        attention_resolutions=tuple(flags["attention"]),
        num_heads=flags["num_heads"],
        num_head_channels=None if flags["num_head_channels"] == -1 else flags["num_head_channels"],
        scale_shift_norm=flags["scale_shift_norm"],
        resblock_updown=flags["resblock_updown"],
    )
    made = ClassifierNetwork(config, image_size=16, in_channels=3, num_classes=flags["classes"], pool=flags["pool"]).eval()
    made.load_state_dict({key: recorded.weight(key, value.shape) for key, value in made.state_dict().items()})
    return made.requires_grad_(False)


def check_keys(shapes: dict[str, list[int]], known: dict[str, Any]) -> None:
    assert len(shapes) == known["keys"]
    assert hashlib.sha256(json.dumps(shapes).encode()).hexdigest() == known["sha256"]


@pytest.mark.parametrize("name", RECORD["cases"])
def test_logits_and_keys(name: str) -> None:
    made = network(RECORD["cases"][name])
    check_keys({key: list(value.shape) for key, value in made.state_dict().items()}, RECORD["cases"][name])
    logits = made(recorded.array(f"{name}/x", (3, 3, 16, 16), 1.0), TIMES)
    torch.testing.assert_close(logits, torch.from_numpy(ARRAYS[f"{name}/logits"]), atol=LOGITS, rtol=0)


@pytest.mark.parametrize("name", RECORD["cases"])
def test_gradient_of_the_label(name: str) -> None:
    """As guidance takes it, one timestep at a time."""
    made, process = network(RECORD["cases"][name]), NoiseProcess(NoiseConfig())
    x = recorded.array(f"{name}/x", (3, 3, 16, 16), 1.0)
    for k, t in enumerate(TIMES.tolist()):
        part = slice(k, k + 1)
        score = classifier_score(lambda x, c: made(x, c.times(x)), LABELS[part], scale=1.0)
        gradient = score(x[part], process.at_step(t))
        assert gradient is not None
        torch.testing.assert_close(gradient, torch.from_numpy(ARRAYS[f"{name}/gradient"][part]), atol=GRADIENT, rtol=1e-3)


@pytest.mark.parametrize(
    ("size", "parameters", "schedule"),
    [(64, 65_438_568, "cosine"), (128, 42_568_040, "linear"), (256, 54_096_360, "linear"), (512, 54_448_360, "linear")],
)
def test_published_keys_and_shapes(size: int, parameters: int, schedule: str) -> None:
    recipe = getattr(classifiers, f"classifier_imagenet{size}")()
    config: ModelConfig = recipe.model
    with torch.device("meta"):
        model = config.build(DataSpec(image_size=size, channels=3, num_classes=1000))
    assert isinstance(model, NoisyClassifier)
    check_keys(
        {key: list(value.shape) for key, value in model.network.state_dict().items()}, RECORD["published"][f"{size}x{size}_classifier"]
    )
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert not list(model.buffers())
    assert model.process.config.schedule == schedule and model.process.steps == 1000
    assert recipe.data.image_size == size


@pytest.mark.parametrize(
    ("size", "steps", "batch_size", "learning_rate", "weight_decay"),
    [(64, 300_000, 1024, 6e-4, 0.2), (128, 300_000, 256, 3e-4, 0.05), (256, 500_000, 256, 3e-4, 0.05), (512, 500_000, 256, 3e-4, 0.05)],
)
def test_published_training(size: int, steps: int, batch_size: int, learning_rate: float, weight_decay: float) -> None:
    """Dhariwal and Nichol 2021, Table 12."""
    recipe = getattr(classifiers, f"classifier_imagenet{size}")()
    assert (recipe.train.total_images, recipe.train.batch_size) == (steps * batch_size, batch_size)
    assert (recipe.optim.learning_rate, recipe.optim.weight_decay, recipe.optim.schedule) == (learning_rate, weight_decay, "linear")
