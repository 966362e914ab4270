"""The published files: what their flags build has the recorded names and shapes, and renamed files are recognised."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.diffusion import recorded
from tests.interop.networks import diffusion_weights
from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.model import Model
from triptych.diffusion.adm import ADMConfig
from triptych.diffusion.classifier import ClassifierConfig
from triptych.interop.guided_diffusion.configs import configuration
from triptych.interop.guided_diffusion.flags import flag_table
from triptych.interop.guided_diffusion.published import PUBLISHED, Published, recognise
from triptych.interop.guided_diffusion.weights import describe
from triptych.recipes.catalogue import load_recipe

KEYS: dict[str, dict[str, Any]] = {
    **json.loads((recorded.GOLDEN / "adm_keys.json").read_text()),
    **json.loads((recorded.GOLDEN / "classifier.json").read_text())["published"],
}
PARAMETERS = {
    "64x64_diffusion": 295_904_454,
    "128x128_diffusion": 421_529_606,
    "256x256_diffusion": 553_838_086,
    "256x256_diffusion_uncond": 552_814_086,
    "512x512_diffusion": 558_997_638,
    "lsun": 552_814_086,
    "64_256_upsampler": 311_795_910,
    "128_512_upsampler": 308_835_270,
    "64x64_classifier": 65_438_568,
    "128x128_classifier": 42_568_040,
    "256x256_classifier": 54_096_360,
    "512x512_classifier": 54_448_360,
    "cifar_improved": 52_546_438,
}
RECORDED = {published.name: published.name.removesuffix(".pt") for published in PUBLISHED} | {
    "lsun_bedroom.pt": "lsun",
    "lsun_cat.pt": "lsun",
    "lsun_horse.pt": "lsun",
    "lsun_horse_nodropout.pt": "lsun",
    "cifar10_uncond_50M_500K.pt": "cifar_improved",
    "cifar10_uncond_vlb_50M_500K.pt": "cifar_improved",
}


def build(published: Published) -> Model:
    """The model of the flags alone, without memory for its weights."""
    flags = {name: flag.default for name, flag in flag_table(published.kind, published.program).items()} | dict(published.flags)
    config, size = configuration(flags, published.kind, program=published.program)
    with torch.device("meta"):
        return config.build(DataSpec(image_size=size, channels=3, num_classes=1000))


@functools.cache
def shapes_of(published: Published) -> dict[str, Tensor]:
    return build(published).get_submodule("network").state_dict()


def test_all_files_are_there() -> None:
    assert [sum(p.program == program for p in PUBLISHED) for program in ("guided-diffusion", "improved-diffusion")] == [15, 8]
    assert len({published.name for published in PUBLISHED}) == 23
    assert set(RECORDED.values()) >= set(KEYS) and set(PARAMETERS) == set(KEYS)


@pytest.mark.parametrize("published", [p for p in PUBLISHED if RECORDED[p.name] in KEYS], ids=lambda p: p.name)
def test_keys_and_shapes(published: Published) -> None:
    name = RECORDED[published.name]
    shapes = {key: list(tensor.shape) for key, tensor in shapes_of(published).items()}
    assert len(shapes) == KEYS[name]["keys"]
    assert hashlib.sha256(json.dumps(shapes).encode()).hexdigest() == KEYS[name]["sha256"]
    assert sum(map(math.prod, shapes.values())) == PARAMETERS[name]


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda p: p.name)
def test_a_renamed_file_is_recognised(published: Published) -> None:
    shapes = shapes_of(published)
    found = recognise(shapes, "weights.pt")
    assert found is not None and not found.by_name
    assert published.name in (found.published.name, *found.others)
    named = recognise(shapes, f"downloads/{published.name}")
    assert named is not None and named.by_name and named.published == published
    assert named.line == f"the published {published.name}"
    # Whichever it is taken for, samples are drawn alike; what differs is training.
    ours, theirs = (describe(shapes, p.flags, program=p.program).config for p in (published, found.published))
    if isinstance(ours, ADMConfig) and isinstance(theirs, ADMConfig):
        free = {"dropout": 0.0}
        assert ours.network.updated(free) == theirs.network.updated(free)
        assert ours.diffusion.updated({"loss": "mse"}) == theirs.diffusion.updated({"loss": "mse"})
    else:
        assert ours == theirs


def test_files_of_the_same_shapes() -> None:
    by_name = {published.name: published for published in PUBLISHED}
    alone = recognise(shapes_of(by_name["64x64_diffusion.pt"]))
    assert alone is not None and alone.line == "the published 64x64_diffusion.pt, by its shapes"
    lsun = recognise(shapes_of(by_name["lsun_cat.pt"]))
    assert lsun is not None and lsun.line == (
        "taken for the published 256x256_diffusion_uncond.pt (the same shapes: lsun_bedroom.pt, lsun_cat.pt, lsun_horse.pt, "
        "lsun_horse_nodropout.pt; they differ in their training)"
    )
    vlb = recognise(shapes_of(by_name["cifar10_uncond_vlb_50M_500K.pt"]))
    assert vlb is not None and vlb.published.name == "cifar10_uncond_50M_500K.pt" and vlb.others == ("cifar10_uncond_vlb_50M_500K.pt",)


def test_other_files() -> None:
    assert recognise(diffusion_weights(), "mine.pt") is None
    with pytest.raises(
        CheckpointError, match=r"64x64_diffusion.pt has the name of a published file, but not its network \(--num_channels: "
    ):
        recognise(diffusion_weights(), "64x64_diffusion.pt")
    with pytest.raises(CheckpointError, match=r"64x64_classifier.pt has the name .* \(it is a diffusion network\)"):
        recognise(diffusion_weights(), "64x64_classifier.pt")
    by_name = {published.name: published for published in PUBLISHED}
    other = dict(shapes_of(by_name["64x64_diffusion.pt"])) | {"label_emb.weight": torch.empty(10, 768, device="meta")}
    assert recognise(other) is None, "ten classes are of another training"
    upsampler = by_name["128_512_upsampler.pt"]
    with pytest.raises(
        ConfigError, match="--large_size: the file is of 256 or 512 pixels .its levels have the widths 1,1,2,2,4,4., got 64"
    ):
        describe(shapes_of(upsampler), {**upsampler.flags, "large_size": 64})
    with pytest.raises(CheckpointError, match=r"it is of 10 classes\); give its flags"):
        recognise(other, "64x64_diffusion.pt")


@pytest.mark.parametrize("published", [p for p in PUBLISHED if p.recipe is not None], ids=lambda p: p.name)
def test_recipes_are_of_the_same_model(published: Published) -> None:
    """All but the dropout of lsun_horse_nodropout and, of the likelihood model, how timesteps are drawn in training."""
    assert published.recipe is not None
    recipe, ours = load_recipe(published.recipe).model, describe(shapes_of(published), published.flags, program=published.program).config
    if published.name == "lsun_horse_nodropout.pt":
        recipe = recipe.updated({"network": {"dropout": 0.0}})
    if isinstance(ours, ClassifierConfig | ADMConfig):
        recipe = recipe.updated({"timestep_sampler": "uniform"})
    assert ours == recipe
