"""Weights and flags of the originals become models of ours, or are refused in one line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.diffusion import recorded
from tests.interop.networks import CLASSIFIER, DIFFUSION, UPSAMPLER, classifier_weights, diffusion_weights, originals, upsampler_weights
from triptych.core.errors import CheckpointError, ConfigError
from triptych.diffusion.adm import ADM
from triptych.diffusion.classifier import NoisyClassifier
from triptych.diffusion.super_resolution import SuperResolution
from triptych.interop.guided_diffusion.shapes import shape_flags
from triptych.interop.guided_diffusion.weights import describe, from_state_dict

ARRAYS, CONFIGS = recorded.load("adm")
NAME = "unet_new_order"


def refused(weights: dict[str, Tensor], flags: dict[str, Any], **settings: Any) -> str:
    with pytest.raises((ConfigError, CheckpointError)) as raised:
        from_state_dict(weights, flags, **settings)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_recorded_output() -> None:
    model = from_state_dict(recorded.weights(CONFIGS[NAME]["keys"]), CONFIGS[NAME]["flags"])
    assert isinstance(model, ADM) and not model.training
    given = {name: torch.from_numpy(ARRAYS[f"{NAME}/{name}"]) for name in ("x", "t", "y", "out")}
    with torch.no_grad():
        out = model.network(given["x"], given["t"], given["y"])
    torch.testing.assert_close(out, given["out"], atol=1e-4, rtol=0)


def test_every_flag_reaches_its_setting() -> None:
    flags = DIFFUSION | {
        "num_heads_upsample": 4,
        "dropout": 0.3,
        "use_checkpoint": True,
        "use_new_attention_order": True,
        "diffusion_steps": 400,
        "noise_schedule": "cosine",
        "timestep_respacing": "ddim25",
        "predict_xstart": True,
        "rescale_timesteps": True,
        "rescale_learned_sigmas": True,
    }
    model = from_state_dict(diffusion_weights(), flags)
    assert isinstance(model, ADM)
    network, diffusion = model.config.network, model.config.diffusion
    assert (network.num_heads, network.num_heads_upsample, network.num_head_channels) == (2, 4, None)
    assert (network.dropout, network.checkpoint, network.attention_order) == (0.3, True, "new")
    assert (network.channel_mult, network.attention_resolutions) == ((1, 2), (8,))
    assert (diffusion.steps, diffusion.schedule, diffusion.mean, diffusion.variance) == (400, "cosine", "x0", "learned_range")
    assert (diffusion.loss, diffusion.rescale_timesteps, model.config.sampling.steps) == ("rescaled_mse", True, "ddim25")
    assert (model.num_classes, model.image_shape) == (1000, (3, 16, 16))
    both = from_state_dict(diffusion_weights(), flags | {"use_kl": True, "num_head_channels": 16, "timestep_respacing": "10"})
    assert isinstance(both, ADM)
    assert both.config.diffusion.loss == "rescaled_kl" and both.config.sampling.steps == 10
    assert both.config.network.num_head_channels == 16 and both.config.network.num_heads_upsample is None, "head channels decide"


def test_defaults() -> None:
    model = from_state_dict(diffusion_weights(outputs=3, classes=None), DIFFUSION | {"learn_sigma": False, "class_cond": False})
    assert isinstance(model, ADM)
    assert (model.config.diffusion.variance, model.config.diffusion.loss, model.num_classes) == ("fixed_large", "mse", None)
    assert model.config.sampling.steps is None and model.config.network.attention_order == "legacy"


def test_attention_that_is_never_reached() -> None:
    model = from_state_dict(diffusion_weights(), DIFFUSION | {"attention_resolutions": "8,4,999"})
    assert isinstance(model, ADM) and model.config.network.attention_resolutions == (8,)
    rounded = from_state_dict(diffusion_weights(), DIFFUSION | {"attention_resolutions": "6"})  # 16 // 6 = 2, the second level
    assert isinstance(rounded, ADM) and rounded.config.network.attention_resolutions == (8,)
    bare = from_state_dict(diffusion_weights(attention_resolutions=()), DIFFUSION | {"attention_resolutions": "32"})
    assert isinstance(bare, ADM) and bare.config.network.attention_resolutions == ()


def test_a_single_level() -> None:
    """Nothing in it changes the resolution, so that no block of the decoder ends a level."""
    flags = DIFFUSION | {"channel_mult": "1", "attention_resolutions": "16", "num_res_blocks": 2}
    model = from_state_dict(diffusion_weights(channel_mult=(1,), attention_resolutions=(16,), num_res_blocks=2), flags)
    assert isinstance(model, ADM)
    assert (model.config.network.channel_mult, model.config.network.num_res_blocks) == ((1,), 2)


def test_half_precision_is_widened_and_copied() -> None:
    weights = diffusion_weights()
    halves = {name: tensor.half() if tensor.ndim > 2 else torch.nn.Parameter(tensor) for name, tensor in weights.items()}
    model = from_state_dict(halves, DIFFUSION)
    state = model.get_submodule("network").state_dict()
    assert all(tensor.dtype == torch.float32 for tensor in state.values())
    assert all(torch.equal(state[name], halves[name].float()) for name in state)
    state["out.0.bias"].add_(1)
    assert torch.equal(halves["out.0.bias"], weights["out.0.bias"])


def test_a_classifier() -> None:
    for pool in ("attention", "adaptive", "spatial", "spatial_v2"):
        model = from_state_dict(classifier_weights(pool=pool), CLASSIFIER | {"classifier_pool": pool, "noise_schedule": "cosine"})
        assert isinstance(model, NoisyClassifier) and model.config.pool == pool
        assert model.config.noise.schedule == "cosine" and model.config.network.num_head_channels == 64
        with torch.no_grad():
            assert model.network(torch.zeros(2, 3, 16, 16), torch.tensor([0, 999])).shape == (2, 1000)
    few = from_state_dict(classifier_weights(classes=7), CLASSIFIER)
    assert isinstance(few, NoisyClassifier) and few.num_classes == 7


def test_the_depth_of_a_classifier_that_may_have_two() -> None:
    """Ten blocks: levels of four and a down block, or of one; the flag decides."""
    weights = classifier_weights(num_res_blocks=4, channel_mult=(1, 1), attention_resolutions=(), pool="adaptive")
    flags = {"image_size": 16, "classifier_width": 64, "classifier_pool": "adaptive", "classifier_attention_resolutions": "99"}
    for depth, mult in ((4, (1, 1)), (1, (1, 1, 1, 1, 1))):
        found = describe(weights, flags | {"classifier_depth": depth})
        assert found.config.network.num_res_blocks == depth and found.config.network.channel_mult == mult  # type: ignore[attr-defined]
    assert "--classifier_depth: the file has 1, got 3" in refused(weights, flags | {"classifier_depth": 3})


def test_the_flags_of_a_classifier_beside_those_of_its_model() -> None:
    """As the original's classifier_sample takes them: each file finds its own."""
    both = {**DIFFUSION, **CLASSIFIER}
    assert isinstance(from_state_dict(classifier_weights(), both), NoisyClassifier)
    assert isinstance(from_state_dict(diffusion_weights(), both), ADM)


def test_an_upsampler() -> None:
    model = from_state_dict(upsampler_weights(), UPSAMPLER)
    assert isinstance(model, SuperResolution)
    assert (model.config.small_size, model.image_shape, model.config.network.channel_mult) == (16, (3, 64, 64), (1, 2, 3, 4))
    with torch.no_grad():
        out = model.network(torch.zeros(1, 3, 64, 64), torch.tensor([7]), torch.ones(1, 3, 16, 16), torch.tensor([5]))
    assert out.shape == (1, 6, 64, 64)


def test_grey_images_of_changed_programs() -> None:
    model = from_state_dict(diffusion_weights(channels=1, outputs=2), DIFFUSION)
    assert isinstance(model, ADM) and model.image_shape == (1, 16, 16)
    assert "takes 5 channels, expected 3" in refused(diffusion_weights(channels=5), DIFFUSION)


def test_improved_diffusion() -> None:
    flags = {"image_size": 32, "num_channels": 32, "num_res_blocks": 1, "attention_resolutions": "16", "num_heads": 2}
    weights = diffusion_weights(
        outputs=3, classes=None, size=32, channel_mult=(1, 2, 2, 2), attention_resolutions=(16,), resblock_updown=False
    )
    model = from_state_dict(weights, flags | {"diffusion_steps": 4000, "sigma_small": True}, program="improved-diffusion")
    assert isinstance(model, ADM)
    diffusion = model.config.diffusion
    assert (diffusion.rescale_timesteps, diffusion.loss, diffusion.variance) == (True, "rescaled_mse", "fixed_small")
    assert "--channel_mult 1,2,2,2 is missing: the file has it, and images of 32 pixels have no default" in refused(weights, flags)
    assert "unknown flag" in refused(weights, flags | {"channel_mult": "1,2,2,2"}, program="improved-diffusion")
    updown = refused(diffusion_weights(outputs=3, classes=None), {"image_size": 16} | flags, program="improved-diffusion")
    assert "residual blocks that change the resolution (--resblock_updown True), which improved-diffusion has no flag for" in updown
    narrow = {"image_size": 64, "num_channels": 32, "num_res_blocks": 1, "attention_resolutions": "32"}
    line = refused(
        diffusion_weights(outputs=3, classes=None, size=64, attention_resolutions=(32,), resblock_updown=False),
        narrow,
        program="improved-diffusion",
    )
    assert line == "the file has levels of the widths 1,2, for which improved-diffusion has no flag"
    assert "improved-diffusion has no classifiers" in refused(classifier_weights(), {"image_size": 16}, program="improved-diffusion")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"num_channels": 64}, "--num_channels: the file has 32, got 64"),
        ({"num_channels": None}, "--num_channels 32 is missing: the file has 32, the default is 128"),
        ({"num_res_blocks": 2}, "--num_res_blocks: the file has 1, got 2"),
        ({"num_res_blocks": None}, "--num_res_blocks 1 is missing: the file has 1, the default is 2"),
        ({"channel_mult": "1,2,2"}, "--channel_mult: the file has 1,2, got 1,2,2"),
        ({"channel_mult": None}, "--channel_mult 1,2 is missing: the file has it, and images of 16 pixels have no default"),
        ({"channel_mult": "", "image_size": 64}, "--channel_mult 1,2 is missing: the file has it, the default for 64 pixels is 1,2,3,4"),
        ({"attention_resolutions": "16"}, "--attention_resolutions: the file has 8 (of 16 pixels), got 16"),
        ({"attention_resolutions": "16,8"}, "--attention_resolutions: the file has 8 (of 16 pixels), got 16,8"),
        ({"image_size": 32}, "--attention_resolutions: the file has 16 (of 32 pixels), got 8"),
        ({"image_size": 0}, "--image_size: got 0, expected a multiple of 2 up to 8192: the file has 2 levels"),
        ({"image_size": -16}, "--image_size: got -16, expected a multiple of 2 up to 8192: the file has 2 levels"),
        ({"image_size": 17}, "--image_size: got 17, expected a multiple of 2 up to 8192: the file has 2 levels"),
        ({"image_size": 10**9}, "--image_size: got 1000000000, expected a multiple of 2 up to 8192: the file has 2 levels"),
        ({"class_cond": None}, "--class_cond True is missing: the file has label_emb.weight for 1000 classes"),
        ({"class_cond": False}, "--class_cond: the file has label_emb.weight for 1000 classes, got False"),
        ({"learn_sigma": None}, "--learn_sigma True is missing: the file has 6 output channels"),
        ({"learn_sigma": False}, "--learn_sigma: the file has 6 output channels, got False"),
        ({"resblock_updown": None}, "--resblock_updown True is missing: the file has residual blocks that change the resolution"),
        ({"use_scale_shift_norm": False}, "--use_scale_shift_norm: the file has embeddings that scale and shift, got False"),
        ({"noise_schedule": "cosin"}, "--noise_schedule: got 'cosin', expected linear or cosine"),
        ({"diffusion_steps": 0}, "--diffusion_steps: got 0, expected 1 to 1,000,000"),
        ({"num_heads": 3}, "--num_heads: got 3, expected a divisor of 64, the width of a level with attention"),
        ({"num_head_channels": 48}, "--num_head_channels: got 48, expected a divisor of 64, the width of a level with attention"),
        ({"dropout": 1.5}, "--dropout: got 1.5, expected from 0 to below 1"),
        ({"timestep_respacing": "ddim37"}, '--timestep_respacing: got "ddim37", but no whole stride'),
        ({"num_chanels": 3}, '--num_chanels: unknown flag; did you mean "--num_channels"?'),
        ({"large_size": 64}, "--large_size is a flag of another kind of network: the file is a diffusion model (it has output_blocks"),
    ],
)
def test_wrong_and_missing_flags(change: dict[str, Any], line: str) -> None:
    flags = {name: value for name, value in (DIFFUSION | change).items() if value is not None}
    assert refused(diffusion_weights(), flags).startswith(line)


def test_all_differences_in_one_line() -> None:
    line = refused(diffusion_weights(), {"image_size": 16, "channel_mult": "1,2", "attention_resolutions": "8"})
    for flag in ("num_channels 32", "num_res_blocks 1", "resblock_updown True", "class_cond True", "learn_sigma True"):
        assert f"--{flag} is missing" in line


def test_flags_that_the_file_has_not() -> None:
    plain = diffusion_weights(outputs=3, classes=None, resblock_updown=False, scale_shift_norm=False)
    line = refused(plain, DIFFUSION)
    assert "--class_cond: the file has no label_emb.weight, got True" in line
    assert "--learn_sigma: the file has 3 output channels, got True" in line
    assert "--resblock_updown: the file has convolutions that change the resolution, got True" in line
    assert "--use_scale_shift_norm False is missing: the file has embeddings that are added" in line


def test_the_image_size_by_its_levels() -> None:
    weights = diffusion_weights(size=64, channel_mult=(1, 2, 3, 4), attention_resolutions=(16,))
    flags = {name: value for name, value in DIFFUSION.items() if name != "channel_mult"} | {"attention_resolutions": "16"}
    assert isinstance(from_state_dict(weights, flags | {"image_size": 64}), ADM)
    line = "--image_size: the file is of 64 pixels (its levels have the widths 1,2,3,4), got 256"
    assert refused(weights, flags | {"image_size": 256}) == line
    large = refused(upsampler_weights(), UPSAMPLER | {"large_size": 512})
    assert large == "--large_size: the file is of 64 pixels (its levels have the widths 1,2,3,4), got 512"
    missing = refused(upsampler_weights(), {name: value for name, value in UPSAMPLER.items() if name != "large_size"})
    assert missing == "--large_size: the file is of 64 pixels (its levels have the widths 1,2,3,4), the default is 256"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"classifier_width": 32}, "--classifier_width: the file has 64, got 32"),
        ({"classifier_depth": None}, "--classifier_depth 1 is missing: the file has 1, the default is 2"),
        ({"classifier_pool": "spatial"}, "--classifier_pool: the file has attention pooling, got spatial"),
        ({"classifier_resblock_updown": False}, "--classifier_resblock_updown: the file has residual blocks that change the resolution"),
        ({"classifier_use_scale_shift_norm": False}, "--classifier_use_scale_shift_norm: the file has embeddings that scale and shift"),
        ({"image_size": 32}, "--image_size: the file is of 16 pixels (its pooling takes 8x8), got 32"),
        ({"classifier_attention_resolutions": "16"}, "--classifier_attention_resolutions: the file has 8 (of 16 pixels), got 16"),
    ],
)
def test_wrong_flags_of_a_classifier(change: dict[str, Any], line: str) -> None:
    flags = {name: value for name, value in (CLASSIFIER | change).items() if value is not None}
    assert refused(classifier_weights(), flags).startswith(line)


def test_flags_of_another_kind() -> None:
    assert refused(classifier_weights(), {"image_size": 16, "num_channels": 64}).startswith(
        "--num_channels is a flag of another kind of network: the file is a classifier (it has no output_blocks)"
    )
    assert refused(diffusion_weights(), CLASSIFIER).startswith(
        "--classifier_width, --classifier_depth, --classifier_attention_resolutions are flags of another kind of network"
    )
    assert refused(upsampler_weights(), UPSAMPLER | {"image_size": 16}).startswith("--image_size: the file is an upsampler")


def test_networks_of_changed_programs() -> None:
    """Levels and an order of attention that the original's upsamplers and classifiers have no flag for may be told by those it has."""
    mult = {"channel_mult": (1, 2), "attention_resolutions": (32,), "resblock_updown": False}
    weights = diffusion_weights(channels=6, size=64, **mult)
    flags = UPSAMPLER | {"attention_resolutions": "32", "channel_mult": "1,2", "use_new_attention_order": True, "image_size": 64}
    model = from_state_dict(weights, flags)
    assert isinstance(model, SuperResolution)
    assert (model.config.network.channel_mult, model.config.network.attention_order) == ((1, 2), "new")
    assert refused(weights, flags | {"channel_mult": "1,1"}) == "--channel_mult: the file has 1,2, got 1,1"
    assert refused(weights, flags | {"image_size": 32}).startswith("--image_size: the file is an upsampler")
    narrow = classifier_weights(size=64, channel_mult=(1, 2), attention_resolutions=(32,))
    own = CLASSIFIER | {"image_size": 64, "classifier_attention_resolutions": "32"}
    assert isinstance(from_state_dict(narrow, own | {"channel_mult": "1,2"}), NoisyClassifier)
    assert refused(narrow, own | {"channel_mult": "1,3"}).startswith("--channel_mult 1,2 is missing")


def test_files_of_something_else() -> None:
    weights = diffusion_weights()
    optimizer = {"state": {}, "param_groups": []}
    assert "is the state of an optimizer (opt*.pt), expected weights" in refused(optimizer, DIFFUSION)  # type: ignore[arg-type]
    assert "the dictionary is empty" in refused({}, DIFFUSION)
    nested = {"model": weights}
    assert "a state dict inside another dictionary" in refused(nested, DIFFUSION)  # type: ignore[arg-type]
    assert "there is no time_embed.0.weight (it begins with conv.weight)" in refused({"conv.weight": torch.zeros(1)}, DIFFUSION)
    without = {name: tensor for name, tensor in weights.items() if name != "output_blocks.2.0.in_layers.0.bias"}
    assert refused(without, DIFFUSION) == "the file is incomplete: it has no output_blocks.2.0.in_layers.0.bias"
    assert "it has extra.weight, which this one lacks" in refused(weights | {"extra.weight": torch.zeros(1)}, DIFFUSION)
    bent = weights | {"out.0.bias": torch.zeros(5)}
    assert refused(bent, DIFFUSION) == "out.0.bias has shape [5], expected [32]"
    assert "floating point" in refused(weights | {"out.0.bias": torch.zeros(32, dtype=torch.int64)}, DIFFUSION)
    pooled = diffusion_weights(resblock_updown=False, conv_resample=False)
    assert "there is no input_blocks.2: the file is incomplete, or its network resamples by plain pooling" in refused(pooled, DIFFUSION)
    short = {name: tensor for name, tensor in weights.items() if not name.startswith("output_blocks.3")}
    assert "input_blocks and 3 output_blocks do not make a network" in refused(short, DIFFUSION)
    headless = {name: tensor for name, tensor in classifier_weights().items() if not name.startswith("out.")}
    assert "neither output_blocks nor a classifier's out" in refused(headless, CLASSIFIER)


def test_blocks_that_make_no_levels() -> None:
    weights, classifier, one = diffusion_weights(), classifier_weights(), torch.ones(1)
    none = "input_blocks and 4 output_blocks do not make a network of guided-diffusion"
    assert refused(weights | {"output_blocks.0.1.conv.weight": one}, DIFFUSION) == f"4 {none}"  # the first block ends a level
    first = classifier | {"input_blocks.0.0.op.weight": one}
    assert refused(first, CLASSIFIER) == f"4 {none.replace('4 o', '0 o')}"
    uneven = classifier | {"input_blocks.4.0.weight": one, "out.1.weight": one}
    assert refused(uneven, CLASSIFIER).startswith("the 5 input_blocks do not make levels of equal depth")
    empty = weights | {"input_blocks.4.0.norm.weight": one}
    assert refused(empty, DIFFUSION).startswith("input_blocks.4 is neither a residual block nor a convolution")


def test_shape_flags() -> None:
    told = shape_flags(diffusion_weights(size=64, channel_mult=(1, 2, 3, 4), attention_resolutions=(32, 8), classes=None))
    assert told == {
        "image_size": 64,
        "num_channels": 32,
        "num_res_blocks": 1,
        "channel_mult": "1,2,3,4",
        "attention_resolutions": "32,8",
        "use_scale_shift_norm": True,
        "resblock_updown": True,
        "class_cond": False,
        "learn_sigma": True,
    }
    assert "image_size" not in shape_flags(diffusion_weights()), "two levels are of no published size"
    assert shape_flags(classifier_weights()) == {
        "image_size": 16,
        "classifier_width": 64,
        "classifier_depth": 1,
        "classifier_attention_resolutions": "8",
        "classifier_use_scale_shift_norm": True,
        "classifier_resblock_updown": True,
        "classifier_pool": "attention",
    }
    assert shape_flags(upsampler_weights())["large_size"] == 64


X, T = recorded.array("x", (2, 3, 64, 64), 1.0), torch.tensor([3, 800])


@pytest.mark.peer("guided_diffusion")
@pytest.mark.parametrize(
    "flags",
    [
        {"attention_resolutions": "32,16", "num_heads_upsample": 4, "channel_mult": "1,2,2"},
        {"attention_resolutions": "16", "num_head_channels": 16, "use_scale_shift_norm": False, "resblock_updown": True},
        {"attention_resolutions": "24,7", "use_new_attention_order": True, "learn_sigma": True, "class_cond": True, "num_res_blocks": 2},
    ],
)
def test_outputs_of_the_original(flags: dict[str, Any]) -> None:
    script_util = originals()
    flags = {"image_size": 64, "num_channels": 32, "num_res_blocks": 1, "num_heads": 2} | flags
    theirs, _ = script_util.create_model_and_diffusion(**(script_util.model_and_diffusion_defaults() | flags))
    weights = recorded.weights({name: tensor.shape for name, tensor in theirs.state_dict().items()})
    theirs.load_state_dict(weights)
    y = torch.tensor([3, 999]) if flags.get("class_cond") else None
    with torch.no_grad():
        torch.testing.assert_close(from_state_dict(weights, flags).network(X, T, y), theirs.eval()(X, T, y), atol=2e-5, rtol=0)  # type: ignore[operator]


@pytest.mark.peer("guided_diffusion")
@pytest.mark.parametrize("pool", ["attention", "adaptive", "spatial", "spatial_v2"])
def test_logits_of_the_original(pool: str) -> None:
    script_util = originals()
    flags = CLASSIFIER | {"image_size": 64, "classifier_attention_resolutions": "16,8", "classifier_pool": pool}
    theirs, _ = script_util.create_classifier_and_diffusion(**(script_util.classifier_and_diffusion_defaults() | flags))
    weights = recorded.weights({name: tensor.shape for name, tensor in theirs.state_dict().items()})
    theirs.load_state_dict(weights)
    with torch.no_grad():
        torch.testing.assert_close(from_state_dict(weights, flags).network(X, T), theirs.eval()(X, T), atol=2e-5, rtol=0)  # type: ignore[operator]


@pytest.mark.peer("guided_diffusion")
def test_upsampled_by_the_original() -> None:
    script_util = originals()
    theirs, _ = script_util.sr_create_model_and_diffusion(**(script_util.sr_model_and_diffusion_defaults() | UPSAMPLER))
    weights = recorded.weights({name: tensor.shape for name, tensor in theirs.state_dict().items()})
    theirs.load_state_dict(weights)
    low, y = recorded.array("low", (2, 3, 16, 16), 1.0), torch.tensor([3, 999])
    with torch.no_grad():
        ours = from_state_dict(weights, UPSAMPLER).network(X, T, low, y)  # type: ignore[operator]
        torch.testing.assert_close(ours, theirs.eval()(X, T, low_res=low, y=y), atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "tensor", "line"),
    [
        ("time_embed.0.weight", torch.ones(3), "time_embed.0.weight has the shape [3]: the network is not one of guided-diffusion"),
        ("input_blocks.0.0.weight", torch.tensor(1.0), "input_blocks.0.0.weight has the shape []: the network"),
        ("label_emb.weight", torch.tensor(1.0), "label_emb.weight has the shape []: the network"),
        ("time_embed.0.weight", torch.ones(4, 0), "time_embed.0.weight has the shape [4, 0]: the network"),
        ("input_blocks." + 5000 * "9" + ".0.weight", torch.ones(1), "the file is of another network: it has input_blocks.999"),
        ("out.2.bias", torch.tensor([0.0, 0, 0, 0, 0, float("nan")]), "out.2.bias holds values that are not finite"),
    ],
)
def test_hostile_tensors(name: str, tensor: Tensor, line: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        from_state_dict(diffusion_weights() | {name: tensor}, DIFFUSION)
    assert str(raised.value).startswith(line)


def test_timesteps_that_cannot_be_read_are_named_by_their_own_flag() -> None:
    for spacing in ("abc", "5000"):
        with pytest.raises(ConfigError, match=r"timestep_respacing: got"):
            from_state_dict(diffusion_weights(), DIFFUSION | {"timestep_respacing": spacing})
