"""A setting that files leave out where it has its default has that default for ever: another one would change what old runs say."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

from triptych import recipes
from triptych.core.config import Config
from triptych.data.latents import LatentStamp
from triptych.data.pack import PackStamp
from triptych.gans.crops import CropConfig
from triptych.nn.raft import RaftConfig

DEFAULTS: dict[str, dict[str, Any]] = {
    "ClipDataConfig": {
        "points": None,
        "references": 0,
        "limbs": None,
        "densepose": None,
        "drop_parts": 0.0,
        "cut_out": "none",
        "landmarks": None,
    },
    "ClipGANConfig": {"raft": RaftConfig(network="raft_large", weights=None), "warping_weight": 0.0},
    "DataConfig": {
        "label_file": None,
        "class_file": None,
        "latent_std": 0.5,
        "skip": None,
        "on_error": "stop",
        "most_errors": 0.01,
    },
    "DataSpec": {"frames": None, "clip_length": None, "latents": None},
    "FewShotVid2VidConfig": {"people": False, "hide_head": False},
    "InputSpec": {"blank": False, "frames": None, "nearest": False, "references": None, "stored": "pixels"},
    "LatentSpec": {"darkest": -1.0},
    LatentStamp.__name__: {"as_learned": False, "contents": ""},
    "MeanFlowConfig": {"guidance_times": (0.0, 1.0)},
    PackStamp.__name__: {"versions": ""},
    "PairedDataConfig": {"blank": False, "nearest": ()},
    "PairedGANConfig": {"positive_inputs": ()},
    "PatchDiscriminatorConfig": {"last_kernel_size": 3, "first_norm": True},
    "PhaseOptimConfig": {"rate_factor": None, "beta2_power": None},
    "SamplingConfig": {"flow_path": None, "grid": "uniform"},
    "TrainConfig": {"shard": "none", "shard_size": None, "checkpoint_writing": "wait", "deterministic": True},
    "VideoDiscriminatorConfig": {"face": CropConfig(weight=0.0), "hand": CropConfig(weight=0.0)},
}
"""The settings, in the class that first has them."""


@pytest.fixture(scope="module")
def every_class() -> dict[str, type[Config]]:
    for module in pkgutil.iter_modules(recipes.__path__):  # which import every model and every kind of data
        importlib.import_module(f"{recipes.__name__}.{module.name}")
    return {cls.__name__: cls for cls in below(Config) if cls.__module__.startswith("triptych.")}


def below(cls: type[Config]) -> Iterator[type[Config]]:
    for each in cls.__subclasses__():
        yield each
        yield from below(each)


def test_what_is_left_out_has_its_default_for_ever(every_class: dict[str, type[Config]]) -> None:
    found = {}
    for name, cls in every_class.items():
        own = inspect.get_annotations(cls)
        left_out = {field.name: field.default for field in dataclasses.fields(cls) if field.name in cls.unwritten and field.name in own}
        found |= {name: left_out} if left_out else {}
    assert found == DEFAULTS


def test_settings_that_are_left_out_are_there(every_class: dict[str, type[Config]]) -> None:
    for cls in every_class.values():
        assert cls.unwritten <= {field.name for field in dataclasses.fields(cls)}, cls
