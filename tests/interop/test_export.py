"""Models of ours in guided-diffusion's flags and files, and what it cannot express."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.diffusion import recorded
from tests.interop.networks import originals
from triptych.core.batch import DataSpec
from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.core.model import Model, ModelConfig
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.blocks import SelfAttention, legacy_rows, split_rows
from triptych.diffusion.classifier import ClassifierConfig
from triptych.diffusion.gaussian import GaussianConfig, NoiseConfig
from triptych.diffusion.model import SamplingConfig
from triptych.diffusion.super_resolution import SuperResolutionConfig
from triptych.diffusion.unet import EncoderConfig, UNetConfig
from triptych.interop.guided_diffusion.configs import original_flags
from triptych.interop.guided_diffusion.weights import from_state_dict, to_state_dict

SPEC = DataSpec(image_size=64, channels=3, num_classes=1000)
NETWORK = UNetConfig(num_channels=32, num_res_blocks=1, channel_mult=(1, 2), attention_resolutions=(32,), num_head_channels=16)
ADM = ADMConfig(network=NETWORK, class_conditional=True)
ENCODER = EncoderConfig(num_channels=64, num_res_blocks=1, attention_resolutions=(16,), num_head_channels=64)
CLASSIFIER = ClassifierConfig(network=ENCODER)
UPSAMPLER = SuperResolutionConfig(
    network=replace(NETWORK, channel_mult=None, attention_resolutions=(16,)), small_size=16, class_conditional=True
)
T, Y = torch.tensor([3, 800]), torch.tensor([3, 999])


def made(config: ModelConfig, spec: DataSpec = SPEC) -> Model:
    model = config.build(spec).eval()
    network = model.get_submodule("network")
    network.load_state_dict(recorded.weights({name: tensor.shape for name, tensor in network.state_dict().items()}))
    return model


def inputs(config: ModelConfig, size: int = 64) -> list[torch.Tensor]:
    given = [recorded.array("x", (2, 3, size, size), 1.0), T]
    if isinstance(config, SuperResolutionConfig):
        given.append(recorded.array("low", (2, 3, 16, 16), 1.0))
    return given + ([] if isinstance(config, ClassifierConfig) else [Y])


VARIANTS: dict[str, ModelConfig] = {
    "model": ADM,
    "every flag": ADMConfig(
        network=UNetConfig(
            num_channels=32,
            num_res_blocks=2,
            channel_mult=(1, 2, 2),
            attention_resolutions=(),
            num_heads=2,
            num_heads_upsample=4,
            attention_order="new",
            dropout=0.2,
            scale_shift_norm=False,
            resblock_updown=True,
            checkpoint=True,
        ),
        diffusion=GaussianConfig(
            steps=500, schedule="cosine", rescale_timesteps=True, mean="x0", variance="learned_range", loss="rescaled_mse"
        ),
        class_conditional=True,
    ),
    "bound": ADMConfig(network=NETWORK, diffusion=GaussianConfig(variance="learned_range", loss="rescaled_kl"), class_conditional=True),
    "default levels": ADMConfig(network=replace(NETWORK, channel_mult=None), class_conditional=True),
    "classifier": CLASSIFIER,
    "classifier of features": ClassifierConfig(network=replace(ENCODER, resblock_updown=True, scale_shift_norm=False), pool="spatial_v2"),
    "cosine classifier": ClassifierConfig(network=replace(ENCODER, attention_order="new"), noise=NoiseConfig(schedule="cosine", steps=50)),
    "upsampler": UPSAMPLER,
    "upsampler of the new order": replace(UPSAMPLER, network=replace(UPSAMPLER.network, attention_order="new", num_head_channels=32)),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_there_and_back(name: str) -> None:
    config = VARIANTS[name]
    model = made(config)
    flags = original_flags(config, SPEC).flags
    state = to_state_dict(model)
    back = from_state_dict(state, flags)
    own = model.get_submodule("network").state_dict()
    reordered = not isinstance(config, ADMConfig) and config.network.attention_order == "new"  # type: ignore[attr-defined]
    same = [torch.equal(state[key], own[key]) for key in own]
    assert list(state) == list(own) and all(tensor.is_contiguous() for tensor in state.values())
    assert not [key for key in own if state[key].data_ptr() == own[key].data_ptr()], "copies"
    assert all(same) != reordered
    given = inputs(config)
    with torch.no_grad():
        torch.testing.assert_close(back.network(*given), model.network(*given), atol=1e-5, rtol=0)  # type: ignore[operator]
    if not reordered:
        assert _settled(back.config) == _settled(config)  # type: ignore[arg-type]


def _settled(config: Any) -> Config:
    """The configuration with what goes without saying said, and without what a classifier's or a head's flags leave out."""
    network = config.network
    changes: dict[str, Any] = {"channel_mult": network.channel_mult or (1, 2, 3, 4)}
    return config.updated({"network": changes | ({"num_heads": 4} if network.num_head_channels else {})})


@pytest.mark.peer("guided_diffusion")
@pytest.mark.parametrize("name", VARIANTS)
def test_the_original_loads_it(name: str) -> None:
    script_util = originals()
    config = VARIANTS[name]
    model, told = made(config), original_flags(config, SPEC).flags
    make, defaults = {
        ADMConfig: ("create_model_and_diffusion", "model_and_diffusion_defaults"),
        ClassifierConfig: ("create_classifier_and_diffusion", "classifier_and_diffusion_defaults"),
        SuperResolutionConfig: ("sr_create_model_and_diffusion", "sr_model_and_diffusion_defaults"),
    }[type(config)]  # type: ignore[index]
    theirs, diffusion = getattr(script_util, make)(**(getattr(script_util, defaults)() | told))
    theirs.load_state_dict(to_state_dict(model), strict=True)
    given = inputs(config)
    keywords = {"y": given[-1]} if len(given) > 2 else {}
    if isinstance(config, SuperResolutionConfig):
        keywords["low_res"] = given[2]
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(*given[:2], **keywords), model.network(*given), atol=2e-5, rtol=0)  # type: ignore[operator]
    noise = config.noise if isinstance(config, ClassifierConfig) else config.diffusion  # type: ignore[attr-defined]
    assert diffusion.num_timesteps == noise.steps and diffusion.rescale_timesteps == noise.rescale_timesteps


def test_flags_in_their_order() -> None:
    told = original_flags(ADM, SPEC).flags
    assert list(told)[:3] == ["image_size", "num_channels", "num_res_blocks"]
    assert told["attention_resolutions"] == "32" and told["num_head_channels"] == 16 and told["channel_mult"] == "1,2"
    assert original_flags(VARIANTS["every flag"], SPEC).flags["attention_resolutions"] == "128", "never reached"
    assert original_flags(VARIANTS["default levels"], SPEC).flags["channel_mult"] == ""
    assert {"large_size": 64, "small_size": 16}.items() <= original_flags(UPSAMPLER, SPEC).flags.items()


def test_the_levels_of_512_pixels_need_no_flag() -> None:
    config = ADMConfig(network=UNetConfig(num_channels=64, attention_resolutions=(32,)))
    assert original_flags(config, DataSpec(image_size=512, channels=3)).flags["channel_mult"] == ""


@pytest.mark.parametrize(
    ("config", "spec", "line"),
    [
        (ADM.updated({"diffusion": {"mean": "v"}}), SPEC, "model.diffusion.mean: v (it has epsilon, and x0 as --predict_xstart)"),
        (ADM.updated({"diffusion": {"mean": "previous_x"}}), SPEC, "model.diffusion.mean: previous_x"),
        (ADM.updated({"diffusion": {"variance": "learned"}}), SPEC, "model.diffusion.variance: learned"),
        (ADM.updated({"diffusion": {"steps": 2, "betas": [0.1, 0.2], "schedule": "cosine"}}), SPEC, "model.diffusion.betas: a table"),
        (CLASSIFIER.updated({"noise": {"steps": 2, "betas": [0.1, 0.2]}}), SPEC, "model.noise.betas: a table"),
        (ADM.updated({"network": {"conv_resample": False}}), SPEC, "model.network.conv_resample: false"),
        (ADM.updated({"network": {"channel_mult": [1, 1.5]}}), SPEC, "model.network.channel_mult: 1,1.5 (its flag takes whole numbers)"),
        (ADM, DataSpec(image_size=64, channels=1, num_classes=1000), "data.channels: 1 (the original's networks take three)"),
        (ADM, DataSpec(image_size=64, channels=4, num_classes=1000), "data.channels: 4 (the original's networks take three)"),
        (CLASSIFIER.updated({"network": {"num_head_channels": 32}}), SPEC, "model.network.num_head_channels: other than 64"),
        (
            CLASSIFIER.updated({"network": {"channel_mult": [1, 2], "attention_resolutions": [32]}}),
            SPEC,
            "model.network.channel_mult: the widths of a classifier of 64",
        ),
        (
            UPSAMPLER.updated({"network": {"channel_mult": [1, 2], "attention_resolutions": [32]}}),
            SPEC,
            "model.network.channel_mult: the widths of an upsampler to 64",
        ),
        (ModelConfig(), SPEC, "model: Model"),
    ],
)
def test_what_has_no_flag(config: ModelConfig, spec: DataSpec, line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        original_flags(config, spec)
    assert str(raised.value).startswith(f"guided-diffusion cannot express this model: {line}")


def test_everything_that_has_no_flag_in_one_line() -> None:
    both = ADM.updated({"diffusion": {"mean": "v"}, "network": {"conv_resample": False}})
    with pytest.raises(ConfigError, match=r"conv_resample: false; model\.diffusion\.mean: v"):
        original_flags(both, SPEC)


def test_notes() -> None:
    config = ADM.updated(
        {"label_dropout": 0.1, "timestep_sampler": "loss-second-moment", "diffusion": {"variance": "fixed_small", "loss": "kl"}}
    )
    config = replace(config, sampling=SamplingConfig(steps=25, sampler="ddim", eta=0.5, clip=False))
    notes = "\n".join(original_flags(config, SPEC.updated({"num_classes": 10})).notes)
    for part in (
        "the model has 10 classes: set the constant NUM_CLASSES in guided_diffusion/script_util.py, 1000, to 10",
        "fixed_large in place of fixed_small",
        "rescaled_kl in place of kl",
        "to train on: --schedule_sampler loss-second-moment",
        "to sample as this run does: --timestep_respacing 25 --use_ddim True --clip_denoised False",
        "the original's ddim has eta 0, this run's 0.5: it draws other samples there",
        "no guidance without a classifier",
    ):
        assert part in notes
    assert not original_flags(ADM, SPEC).notes
    (sampler,) = original_flags(replace(ADM, sampling=SamplingConfig(sampler="heun", steps=9)), SPEC).notes
    assert sampler.startswith("the original has no sampler heun")
    (few,) = original_flags(CLASSIFIER, SPEC.updated({"num_classes": 7})).notes
    assert few.endswith("to 7, and out_channels in create_classifier")
    (dropout,) = original_flags(CLASSIFIER.updated({"network": {"dropout": 0.1}}), SPEC).notes
    assert dropout == "the original trains classifiers without dropout"


def test_rows_of_both_orders() -> None:
    """Row h 3c + j c + r of the legacy order is row j H c + h c + r of the new one: of part j, head h, channel r."""
    heads, width = 3, 4
    legacy = torch.tensor([[100 * j + 10 * h + r] for h in range(heads) for j in range(3) for r in range(width)])
    new = torch.tensor([[100 * j + 10 * h + r] for j in range(3) for h in range(heads) for r in range(width)])
    parts = torch.tensor([[[100 * j + 10 * h + r] for h in range(heads) for r in range(width)] for j in range(3)])
    assert torch.equal(torch.stack(split_rows(legacy, heads=heads, order="legacy")), parts)
    assert torch.equal(torch.stack(split_rows(new, heads=heads, order="new")), parts)
    assert torch.equal(legacy_rows(new, heads=heads, order="new"), legacy)
    assert torch.equal(legacy_rows(legacy, heads=heads, order="legacy"), legacy)


def test_attention_has_a_row_order_of_its_own() -> None:
    """The reordering of an upsampler matters: without it the output is another."""
    config = VARIANTS["upsampler of the new order"]
    assert isinstance(config, SuperResolutionConfig)
    model = made(config)
    assert any(isinstance(module, SelfAttention) and module.heads > 1 for module in model.modules())
    raw = {name: tensor.clone() for name, tensor in model.get_submodule("network").state_dict().items()}
    wrong = from_state_dict(raw, original_flags(config, SPEC).flags)
    given = inputs(config)
    with torch.no_grad():
        assert not torch.allclose(wrong.network(*given), model.network(*given), atol=1e-3)  # type: ignore[operator]
