"""openai/glow's variables become models of ours, or are refused in one line."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.diffusion import recorded
from tests.flows.flows import images, moved
from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.model import seeded_build
from triptych.flows.glow import Glow, GlowConfig
from triptych.interop.glow.importer import imported, published_checkpoint
from triptych.interop.glow.weights import averages, complete_flags, from_variables, structure_flags, variable_name
from triptych.interop.programs import ImportRequest
from triptych.recipes.catalogue import load_recipe

ARRAYS, FLAGS = recorded.load("glow")


def recorded_weights() -> dict[str, np.ndarray]:
    return {name.removeprefix("weights/"): array for name, array in ARRAYS.items() if name.startswith("weights/")}


def variables(model: Glow) -> dict[str, np.ndarray]:
    """The model's tensors as the original would hold them."""
    found = {}
    for name, tensor in model.state_dict().items():
        source, array = variable_name(name), tensor.numpy()
        if array.ndim == 4:
            array = array.transpose(2, 3, 1, 0)
        elif array.ndim == 2:
            array = array.T
        elif source.endswith(("actnorm_center/b", "actnorm_scale/logs")) or (source.endswith("/b") and "y_emb" not in source):
            array = array.reshape(1, 1, 1, -1)
        elif source.endswith("logs"):
            array = array.reshape(1, -1)
        found[source] = array
    return found


def model_of(*, num_classes: int | None = None, **settings: Any) -> Glow:
    config = GlowConfig(**({"levels": 2, "depth": 2, "width": 8} | settings))
    model = seeded_build(config, DataSpec(image_size=8, channels=3, num_classes=num_classes), seed=3)
    moved(model)
    assert isinstance(model, Glow)
    return model.eval()


def refused(weights: dict[str, np.ndarray], flags: dict[str, Any]) -> str:
    with pytest.raises((ConfigError, CheckpointError)) as raised:
        from_variables(weights, flags)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_flags_reach_their_settings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = from_variables(recorded_weights(), FLAGS | {"lr": 0.01, "polyak_epochs": 2})
    assert model.config == GlowConfig(levels=3, depth=2, width=16, coupling="affine", permutation="conv", learn_top=True, bits=8)
    assert model.image_shape == (3, 32, 32) and model.num_classes is None and not model.training


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({"coupling": "additive", "permutation": "shuffle"}, {"flow_permutation": 1}),
        ({"permutation": "reverse", "learn_top": False}, {"flow_permutation": 0, "flow_coupling": 1, "learntop": False}),
        ({"num_classes": 5, "class_conditional": True, "class_weight": 0.01, "bits": 5}, {"ycond": True, "weight_y": 0.01, "n_bits_x": 5}),
    ],
)
def test_every_kind_of_model_comes_over(settings, flags) -> None:
    model = model_of(**settings)
    flags = {"n_levels": 2, "depth": 2, "width": 8, "image_size": 8, "learntop": True} | flags
    flags.setdefault("flow_coupling", 0 if settings.get("coupling") == "additive" else 1)
    weights = variables(model)
    weights = {name: array for name, array in weights.items() if flags.get("flow_permutation") != 0 or "shuffle" not in name}
    if flags.get("flow_permutation") == 1:
        weights |= {f"{name}_inverse": np.argsort(array) for name, array in weights.items() if name.endswith("/indices")}
    weights |= {"Variable_1": np.zeros(3), **{f"{name}/ExponentialMovingAverage": 0 * array for name, array in weights.items()}}
    found = from_variables(weights, flags)
    assert found.config == model.config
    tensors = found.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensors[name], tensor), name
    labels = torch.tensor([4, 1]) if "num_classes" in settings else None
    assert torch.equal(found.bits_per_dim(images(2), labels=labels), model.bits_per_dim(images(2), labels=labels))


def test_names_are_the_originals() -> None:
    assert set(variables(model_of(num_classes=4, class_conditional=True, class_weight=1.0))) >= {
        "model/1/0/f1/l_last/logs",
        "model/0/1/invconv/W",
        "model/pool0/conv/W",
        "model/prior/p/b",
        "model/prior/y_emb/W",
        "model/classifier/logs",
    }
    assert set(variables(from_variables(recorded_weights(), FLAGS))) == set(recorded_weights())


def test_tensors_do_as_well_as_arrays() -> None:
    model = from_variables({name: torch.from_numpy(array) for name, array in recorded_weights().items()}, FLAGS)
    found = model.bits_per_dim(torch.from_numpy(ARRAYS["x"]), noise=torch.from_numpy(ARRAYS["u"]))
    np.testing.assert_allclose(found.numpy(), ARRAYS["bits_per_dim"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", [">f4", "<f8", np.longdouble])
def test_numbers_of_any_width_and_byte_order(kind: str | type) -> None:
    found = from_variables({name: array.astype(kind) for name, array in recorded_weights().items()}, FLAGS).state_dict()
    for name, tensor in from_variables(recorded_weights(), FLAGS).state_dict().items():
        assert torch.equal(found[name], tensor), name


def test_defaults_and_unknown_flags() -> None:
    absent = {
        name: value for name, value in FLAGS.items() if name not in ("n_levels", "image_size", "flow_permutation", "n_bits_x", "ycond")
    }
    with pytest.warns(UserWarning, match='the flag learn_top is ignored.*did you mean "learntop"'):
        model = from_variables(recorded_weights(), absent | {"learn_top": True})
    assert model.config.levels == 3 and model.image_shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 3}, "the weights have no model/0/2/actnorm_center/b"),
        ({"depth": 1}, "the weights have model/0/1/actnorm_center/b, which a model of these flags has not"),
        ({"width": 32}, r"model/0/0/f1/l_1/W has shape [3, 3, 7, 16], which a model of these flags has not; see width"),
        ({"flow_coupling": 0}, "model/0/0/f1/l_last/W has shape [3, 3, 17, 12]"),
        ({"flow_permutation": 1}, "the weights have model/0/0/invconv/W, which a model of these flags has not; see learntop"),
        ({"learntop": False}, "the weights have model/prior/p/W"),
        ({"ycond": True}, "the weights have no model/prior/y_emb/W"),
        ({"flow_coupling": 2}, "flow_coupling: got 2, expected 0, 1"),
        ({"problem": "svhn"}, "problem: got 'svhn', expected mnist, cifar10"),
        ({"learntop": 1}, "learntop: got 1, expected true or false"),
        ({"depth": 2.0}, "depth: got 2.0, expected int"),
        ({"n_bits_x": 9}, "bits: got 9, expected 1 to 8"),
        ({"image_size": 36}, "levels: got 3 for images of 36 pixels"),
    ],
)
def test_what_does_not_fit_is_named(change, message) -> None:
    assert message in refused(recorded_weights(), FLAGS | change)


# Checkpoints ---------------------------------------------------------------------------------------------------------


def told(model: Glow) -> dict[str, Any]:
    return structure_flags(variables(model))


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({}, {"n_levels": 2, "depth": 2, "width": 8, "flow_coupling": 1, "flow_permutation": 2, "learntop": True, "ycond": False}),
        ({"levels": 1, "depth": 3, "width": 5, "coupling": "additive"}, {"n_levels": 1, "depth": 3, "width": 5, "flow_coupling": 0}),
        ({"permutation": "shuffle", "learn_top": False}, {"flow_permutation": 1, "learntop": False, "weight_y": False, "n_y": None}),
        ({"num_classes": 5, "class_conditional": True}, {"ycond": True, "n_y": 5, "weight_y": False}),
        ({"num_classes": 3, "class_conditional": True, "class_weight": 0.5}, {"ycond": True, "n_y": 3, "weight_y": True}),
    ],
)
def test_names_and_shapes_tell_the_flags(settings, flags) -> None:
    assert flags.items() <= told(model_of(**settings)).items()


def test_no_permutation_is_the_reversed_order() -> None:
    model = model_of(permutation="reverse")
    assert structure_flags({name: array for name, array in variables(model).items() if "shuffle" not in name})["flow_permutation"] == 0


def test_all_flags_of_a_checkpoint() -> None:
    found = complete_flags(variables(model_of()), {"n_bits_x": 5, "image_size": 8})
    assert (found["n_bits_x"], found["image_size"], found["depth"], found["weight_y"]) == (5, 8, 2, 0.0)
    assert complete_flags(variables(model_of()), {"n_y": 10})["n_y"] == 10, "of the data set; the model never saw classes"
    classed = variables(model_of(num_classes=3, class_conditional=True, class_weight=0.5))
    assert (complete_flags(classed, {})["weight_y"], complete_flags(classed, {"weight_y": 0.5})["weight_y"]) == (0.01, 0.5)
    assert (complete_flags(classed, {})["image_size"], complete_flags(classed, {"problem": "celeba"})["image_size"]) == (32, 256)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"depth": 3, "width": 512}, "--depth: the checkpoint has 2, got 3; --width: the checkpoint has 8, got 512"),
        ({"learntop": False}, "--learntop: the checkpoint has True, got False"),
        ({"n_y": 4}, "--n_y: the checkpoint has 3, got 4"),
        ({"weight_y": 0.0}, "--weight_y: the checkpoint has a classifier, got 0.0"),
        ({"image_size": 30}, "--image_size: got 30, for the checkpoint has 2 levels: expected a multiple of 4"),
        ({"image_size": 2**17}, "--image_size: got 131072, for the checkpoint has 2 levels: expected a multiple of 4, at most 65536"),
        ({"n_bits_x": 0}, "--n_bits_x: got 0, expected 1 to 8"),
        ({"problem": "svhn"}, "--problem: got 'svhn', expected mnist, cifar10"),
    ],
)
def test_flags_that_the_shapes_contradict(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        complete_flags(variables(model_of(num_classes=3, class_conditional=True, class_weight=0.5)), given)
    assert message in str(raised.value)


def test_the_default_size_has_to_fit_the_levels() -> None:
    deep = {
        f"model/{level}/0/{name}": np.zeros((1, 1, 1, 4)) for level in range(6) for name in ("actnorm_center/b", "f1/l_1/W", "f1/l_last/W")
    }
    with pytest.raises(ConfigError, match="--image_size: missing; 32, its default, does not do, for the checkpoint has 6 levels"):
        complete_flags(deep, {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda all: {"weight": np.zeros(3)}, "these are not the variables of openai/glow: none is called model/LEVEL/STEP/..."),
        (lambda all: all | {"model/7/1/invconv/W": np.zeros(3)}, "the weights have no model/2/0, but other levels have it"),
        (lambda all: all | {"model/14999/0/x": np.zeros(3)}, "the weights have 15000 levels, expected 1 to 16"),
        (lambda all: all | {"model/0/999999/x": np.zeros(3)}, "the weights have no model/0/2, but other levels have it"),
        (lambda all: all | {"model/0/0/f1/l_1/W": np.zeros(3)}, "model/0/0/f1/l_1/W has shape [3], expected 4 axes"),
        (
            lambda all: all | {"model/0/0/f1/l_1/W": np.zeros((0, 2**50, 1, 1))},
            f"model/0/0/f1/l_1/W has shape [0, {2**50}, 1, 1], and so no values",
        ),
        (lambda all: all | {"model/prior/y_emb/W": np.float32(0)}, "model/prior/y_emb/W has shape [], expected 2 axes"),
    ],
)
def test_variables_of_another_program(change, message: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        complete_flags(change(variables(model_of())), {})
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("model/0/0/invconv/W", np.full((12, 12), np.nan), "model/0/0/invconv/W holds values that are not finite"),
        ("model/0/0/invconv/W", np.full((12, 12), "a"), "model/0/0/invconv/W has type <U1, expected numbers"),
        ("model/0/0/invconv/W", np.full((12, 12), 1e300), "model/0/0/invconv/W holds values that are not finite"),
        ("model/0/0/f1/l_2/W", np.zeros((1, 1, 8, 9)), "model/0/0/f1/l_2/W has shape [1, 1, 8, 9]"),
    ],
)
def test_values_that_make_no_model(name: str, array: np.ndarray, message: str) -> None:
    flags = {"n_levels": 2, "depth": 2, "width": 8, "image_size": 8, "learntop": True, "flow_coupling": 1}
    assert message in refused(variables(model_of()) | {name: array}, flags)


def test_an_order_that_is_none() -> None:
    flags = {"n_levels": 2, "depth": 2, "width": 8, "image_size": 8, "learntop": True, "flow_coupling": 1, "flow_permutation": 1}
    weights = variables(model_of(permutation="shuffle")) | {"model/0/0/shuffle/indices": np.zeros(12, dtype=np.int32)}
    assert "model/0/0/shuffle/indices is not an order of 12 channels" in refused(weights, flags)


def test_averages_stand_for_all_trained_variables_or_none() -> None:
    weights = variables(model_of(permutation="shuffle"))
    averaged = {f"{name}/ExponentialMovingAverage": array / 2 for name, array in weights.items() if "shuffle" not in name}
    found = averages(weights | averaged | {"Variable": np.zeros(1)})
    assert found is not None and found.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(found[name], array if "shuffle" in name else array / 2)
    averaged.popitem()
    assert averages(weights | averaged) is None


@pytest.mark.parametrize("size", [64, 128])
def test_squares_of_an_unpublished_checkpoint_are_those_of_its_problem(size: int, tmp_path: Path) -> None:
    """Whatever the recipe that is most like it does: with three levels that is one of LSUN, which cuts them out of 96 pixels."""
    np.savez(tmp_path / "w.npz", **variables(model_of(levels=3)))
    for problem, crop, resize in (("imagenet-oord", "center", None), ("lsun_realnvp", "random", max(96, size))):
        flags = {"image_size": size, "problem": problem}
        config = imported(ImportRequest(tmp_path / "w.npz", flags, "glow", None, None, print)).config
        assert (config.data.image_size, config.data.crop, config.data.resize) == (size, crop, resize)
        recipe = load_recipe("glow-lsun-bedroom" if size == 64 else "glow-lsun128")
        assert config.train.validate_images == recipe.train.validate_images, "of the recipe that is most like it"
        assert not config.train.ema_warmup, "an imported average goes on"


def test_published_checkpoints_are_known_by_a_name_in_their_path() -> None:
    for path, name, recipe in (
        ("abl-1x1-aff/logs/model_best_loss.ckpt", "abl-1x1-aff", "glow-cifar10"),
        ("/data/abl-reverse-add/model_best_loss.ckpt.index", "abl-reverse-add", "glow-cifar10"),
        ("lsun-rnvp-crh", "lsun-rnvp-crh", "glow-lsun-church"),
    ):
        found = published_checkpoint(path)
        assert found is not None and (found.name, found.recipe) == (name, recipe)
        assert load_recipe(found.recipe).data.image_size == found.flags["image_size"]
    assert published_checkpoint("logs/model_best_loss.ckpt") is None
