"""What a start from another run's weights takes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from triptych.core.batch import DataSpec, InputSpec
from triptych.core.errors import CheckpointError
from triptych.core.model import Model, ModelConfig, seeded_build
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.classifier import ClassifierConfig
from triptych.gans.ada import ADAConfig
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.pix2pixhd import Pix2PixHDConfig, Pix2PixHDGeneratorConfig
from triptych.gans.stylegan2 import StyleGAN2Config
from triptych.gans.weight_norms import normalised_weight, spectral_layers
from triptych.runs.weights import load_fitting_weights, load_weights

COARSE = Pix2PixHDConfig(
    generator=Pix2PixHDGeneratorConfig(num_filters=4, num_downsamples=2, num_res_blocks=1, num_enhancer_res_blocks=1),
    discriminator=PatchDiscriminatorConfig(num_filters=4, num_layers=2, norm="instance"),
    perceptual_weight=0.0,
)
LAST = 8
"""Of its layers: one, two down, a residual block, and twice two up come before the one that makes the image."""
FINE = replace(COARSE, generator=replace(COARSE.generator, num_enhancers=1))


def built(config: Pix2PixHDConfig, *, classes: int = 3, seed: int) -> Model:
    inputs = (InputSpec(name="labels", kind="classes", num_classes=classes),)
    return seeded_build(config, DataSpec(image_size=32, channels=3, inputs=inputs), seed=seed)


def largest(model: Model) -> list[float]:
    """The largest singular value of each weight as its layer applies it."""
    layers = list(spectral_layers(model))
    assert len(layers) > 10
    return [float(torch.linalg.matrix_norm(normalised_weight(layer).detach().flatten(1), 2)) for layer in layers]


def test_enhancers_start_from_a_trained_global_generator() -> None:
    source, model = built(COARSE, seed=1), built(FINE, seed=2)
    lines = load_fitting_weights(model, source.state_dict()).lines
    known, state = source.state_dict(), model.state_dict()
    own = [name for name in state if name.startswith("generator.global_model.")]
    assert len(own) > 20
    for name in own:
        assert torch.equal(state[name], known[name.replace("global_model.", "global_model.model.")]), name
    assert not any(line.startswith("generator.global_model.") and line.endswith("new") for line in lines)
    assert sum(line.startswith("generator.enhancer_0.") and line.endswith("new") for line in lines) > 10
    assert {line for line in lines if line.endswith("is not used")} == {
        f"generator.global_model.{LAST}.layers.conv.{name} is not used" for name in ("weight", "bias")
    }


def test_a_weight_that_starts_anew_keeps_the_vectors_of_its_spectral_norm() -> None:
    model = built(COARSE, classes=5, seed=2)
    before = largest(model)
    lines = load_fitting_weights(model, built(COARSE, classes=3, seed=1).state_dict()).lines
    first = "generator.global_model.model.0.layers.conv.weight_"
    assert f"{first}u starts anew: it is of {first}orig" in lines
    for found, fresh in zip(largest(model), before, strict=True):
        assert abs(found - 1) < 0.02 and abs(fresh - 1) < 0.02


def test_tensors_of_earlier_versions_are_ignored_where_the_model_says_so() -> None:
    source, model = built(COARSE, seed=1), built(COARSE, seed=2)
    tensors = source.state_dict() | {"steps": torch.tensor(7)}
    with pytest.raises(CheckpointError, match="it has steps, which this one lacks"):
        load_weights(model, tensors)
    assert "steps is not used" in load_fitting_weights(built(COARSE, seed=3), tensors).lines
    model.obsolete = ("steps",)
    load_weights(model, tensors)
    expected = source.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
    assert load_fitting_weights(model, tensors).lines == []


def test_the_probability_of_augmentation_is_that_of_the_new_training() -> None:
    source, model = (
        seeded_build(StyleGAN2Config(ada=ADAConfig(target=0.6, p=p)).shrunk(), DataSpec(image_size=32, channels=3), seed=seed)
        for seed, p in enumerate((0.7, 0.1))
    )
    source.state_dict()["ada.signs"].fill_(9)
    assert load_fitting_weights(model, source.state_dict()).lines == []
    state = model.state_dict()
    assert float(state["ada.p"]) == pytest.approx(0.1) and not state["ada.signs"].any()
    assert all(torch.equal(tensor, source.state_dict()[name]) for name, tensor in state.items() if name not in model.of_training)
    load_weights(model, source.state_dict())  # a resume
    assert float(model.state_dict()["ada.p"]) == pytest.approx(0.7)


@pytest.mark.parametrize("kind", ["diffusion", "classifier"])
def test_the_losses_of_timesteps_are_those_of_the_new_training(kind: str) -> None:
    network = {"num_channels": 32, "num_res_blocks": 1, "channel_mult": [1], "attention_resolutions": [], "num_head_channels": 32}
    config: ModelConfig = ADMConfig() if kind == "diffusion" else ClassifierConfig()
    noise = {"diffusion" if kind == "diffusion" else "noise": {"steps": 4, "schedule": "cosine"}}
    config = config.updated({"network": network, "timestep_sampler": "loss-second-moment"} | noise)
    source, model = (seeded_build(config, DataSpec(image_size=8, channels=1, num_classes=3), seed=seed) for seed in (1, 2))
    source.observe(source.phases[0], {"t": torch.tensor([0, 1]), "loss": torch.tensor([2.0, 3.0])})
    tensors = source.state_dict()
    assert load_fitting_weights(model, tensors).lines == []
    state = model.state_dict()
    assert not state["timesteps.history"].any() and not state["timesteps.count"].any()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in state.items() if not name.startswith("timesteps."))
    load_weights(model, tensors)  # a resume
    assert model.state_dict()["timesteps.count"].tolist() == [1, 1, 0, 0]
