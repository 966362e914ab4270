"""imaginaire's checkpoints as the tensors of a run: the networks as they were trained, and the generator's moving average.

Averages have spectral norm divided out there, into a plain `weight`. Here an averaged weight keeps weight_orig, u and v, with u so long
that sigma is 1: what its layer applies is the averaged weight itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.model import seeded_build
from triptych.core.outline import without_weights
from triptych.core.weight_files import check_fit, read_content
from triptych.core.wording import counted
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.fs_vid2vid_networks import FewShotGeneratorConfig
from triptych.gans.spade import SPADEConfig, SPADEDiscriminatorConfig
from triptych.gans.weight_norms import fold_spectral_norm, rescale_average
from triptych.interop.imaginaire.data import Dataset, assumed_data
from triptych.interop.imaginaire.experiment import Experiment
from triptych.interop.imaginaire.few_shot_video import AVERAGED_EPS, without_second_flow
from triptych.interop.imaginaire.reading import ModelType, Settings
from triptych.interop.imaginaire.shapes import ROOTS, discriminator_of, generator_of
from triptych.interop.imaginaire.state_dicts import has_average, unwrapped
from triptych.interop.imaginaire.tensors import Network, Weights
from triptych.interop.imaginaire.video import SINGLE

_GENERATOR, _DISCRIMINATOR = "generator", "discriminator"
_KEYS = {_GENERATOR: "net_G", _DISCRIMINATOR: "net_D"}
_OPTIMIZERS = ("opt_G", "opt_D", "sch_G", "sch_D")
_LEAST_PATCH = PatchDiscriminatorConfig(num_discriminators=1, num_filters=1, num_layers=1)
"""Of a SPADE that makes first frames alone: the file has no discriminator of it."""
_ROUNDS = 5  # of power iteration, from what fitted the weights of the last step

State = dict[str, Tensor]


@dataclass(frozen=True)
class Content:
    """What of a checkpoint goes into a run."""

    experiment: Experiment
    "With the networks that the weights are of and the data that they take."
    model: State
    average: State | None
    "The generator's, under the names of the model's state; None: the file has none."
    notes: list[str]
    first: Content | None = None
    "Of the SPADE that makes first frames, where the file has one."


def run_weights(path: str | Path, experiment: Experiment, settings: Settings) -> Content:
    """A checkpoint's weights for a file's experiment. CheckpointError: it cannot be used; ConfigError: gen or dis do not agree with it."""
    trained, average, notes = _read(path)
    single = _taken_out(trained[_GENERATOR])
    if average is not None:
        _taken_out(average)
    _check_kind(experiment.kind, trained[_GENERATOR])
    if experiment.kind == "fs_vid2vid":
        trained[_GENERATOR] = without_second_flow(trained[_GENERATOR])
        average = None if average is None else without_second_flow(average)
    if _is_coarse(experiment, trained[_GENERATOR]):
        return _enlarged(experiment, trained[_GENERATOR], notes)
    content = _content(experiment, trained, average, settings, notes)
    return replace(content, first=_of_first_frames(content.experiment, single)) if single else content


def _taken_out(generator: State) -> State:
    """The weights of a model of first frames, which are no longer among those of the generator."""
    names = [name for name in generator if name.startswith(SINGLE)]
    return {name.removeprefix(SINGLE): generator.pop(name) for name in names}


def _of_first_frames(clips: Experiment, weights: State) -> Content:
    """The SPADE with such weights, for the label maps of clips. Raises CheckpointError for weights of something else."""
    try:
        _check_kind("spade", weights)
        judge = SPADEDiscriminatorConfig(patch=_LEAST_PATCH, feature_pyramid=False)
        positive = {"positive_conditions": clips.data.positive_conditions, "positive_inputs": clips.data.positive_inputs}
        model = SPADEConfig(discriminator=judge, perceptual_weight=0.0, **positive)
        experiment = replace(clips, kind="spade", model=model, data=clips.data.single())
        return _content(experiment, {_GENERATOR: weights}, None, Settings({}), [])
    except CheckpointError as error:
        raise CheckpointError(f"{SINGLE.removesuffix('.')}: {error}") from None


def _content(experiment: Experiment, trained: Mapping[str, State], average: State | None, settings: Settings, notes: list[str]) -> Content:
    experiment = _with_networks(experiment, trained, settings, averaged=average is not None)
    with without_weights():
        expected = _fresh(experiment)  # names and shapes alone
    model: State = {}
    for name, state in trained.items():
        network = _part(expected, name)
        check_fit(network, state)
        model |= {f"{name}.{key}": state[key] for key in network}
    if missing := expected.keys() - model.keys():
        fresh = _fresh(experiment)
        model |= {key: fresh[key] for key in missing}
        if _DISCRIMINATOR not in trained:
            notes.append("it has no net_D: the discriminator begins anew")
    if average is not None:
        average = _unfolded(average, _part(model, _GENERATOR))
    return Content(experiment, {key: model[key].clone() for key in expected}, average, notes)


def _read(path: str | Path) -> tuple[dict[str, State], State | None, list[str]]:
    """The networks of a checkpoint as they were trained, the generator's average, and what is left out."""
    content = read_content(path)
    if not isinstance(content, Mapping) or content.get("net_G") is None:
        names = f" but {', '.join(sorted(map(str, content))[:3])}" if isinstance(content, Mapping) and content else ""
        raise CheckpointError(f"holds no net_G{names}: this is no checkpoint of imaginaire")
    states = {name: content[key] for name, key in _KEYS.items() if content.get(key) is not None}
    trained = {name: _floats(unwrapped(state, averaged=False, name=_KEYS[name])) for name, state in states.items()}
    average = None
    if has_average(states[_GENERATOR]):
        average = _floats(unwrapped(states[_GENERATOR], averaged=True, name="net_G"))
    optimizers = any(name in content for name in _OPTIMIZERS)
    return trained, average, ["the state of its optimizers is not taken: they begin anew"] if optimizers else []


def _floats(state: State) -> State:
    """The weights in float32: what is put together of several must not be of several types."""
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in state.items()}


def _check_kind(kind: ModelType, generator: State) -> None:
    parts, expected = sorted({name.partition(".")[0] for name in generator}), ROOTS[kind]
    if expected not in parts and set(parts) & set(ROOTS.values()):
        raise CheckpointError(
            f"holds the weights of another model than {kind} (net_G has {parts[0]}, expected {expected}): "
            "give the YAML file that they were trained with"
        )


def _part(state: Mapping[str, Tensor], name: str) -> State:
    """The tensors of a network under the names that they have in it."""
    return {key.removeprefix(f"{name}."): tensor for key, tensor in state.items() if key.startswith(f"{name}.")}


def _fresh(experiment: Experiment) -> State:
    try:
        return dict(seeded_build(experiment.model, experiment.data.spec, seed=0).state_dict())
    except ConfigError as error:
        raise error.inside("model") from None


# The file and the weights ---------------------------------------------------------------------------------------------------


def _with_networks(experiment: Experiment, trained: Mapping[str, State], settings: Settings, *, averaged: bool) -> Experiment:
    """The experiment with the networks and the classes that the weights show. Raises ConfigError where the file says otherwise."""
    networks: dict[str, Any] = {}
    for name, state in trained.items():
        section, weights = settings.inside("gen" if name == _GENERATOR else "dis"), Weights(state)
        network = (generator_of if name == _GENERATOR else discriminator_of)(experiment.kind, weights, section)
        _check_weight_norms(section, network.config, weights)
        data = experiment.data
        if data.assumed and name == _GENERATOR:
            data = assumed_data(data.label_channels or network.label_channels or 1, side=network.config.resolution)
        _check_channels(data, network, name)
        if network.num_classes is not None:
            data = data.with_classes(network.num_classes)
        config = network.config
        if averaged and isinstance(config, FewShotGeneratorConfig):
            config = replace(config, reference_eps=AVERAGED_EPS)
        experiment, networks[name] = replace(experiment, data=data), config
    return replace(experiment, model=replace(experiment.model, **networks))


def _check_weight_norms(section: Settings, config: Any, weights: Weights) -> None:
    norm, params = getattr(config, "weight_norm", weights.weight_norm), section.inside("activation_norm_params")
    for part, expected in ((section, norm), (params, getattr(config, "inner_weight_norm", norm))):
        value = part.value("weight_norm_type")
        if value is not None and (value or "none") != expected:
            raise ConfigError(part.name("weight_norm_type"), f"got {value!r}, but the weights have {expected!r}")


def _check_channels(data: Dataset, network: Network, name: str) -> None:
    """Raises ConfigError where a network takes other label maps, images or classes than the data have."""
    if network.label_channels not in (None, data.label_channels):
        reason = f"they have {data.label_channels} channels ({data.label_parts}), but the {name}'s weights take {network.label_channels}"
        raise ConfigError("gen.num_labels" if data.assumed else "data.input_labels", reason)
    if network.image_channels != data.spec.channels:
        reason = f"images have {counted(data.spec.channels, 'channel')}, but the {name}'s weights {network.image_channels}"
        raise ConfigError("data.input_types", reason)
    if network.num_classes is not None and data.spec.num_classes not in (None, network.num_classes):
        raise ConfigError("dis.num_classes", f"got {data.spec.num_classes}, but the weights know {network.num_classes} classes")


# Averages -------------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _unfolded(average: Mapping[str, Tensor], trained: Mapping[str, Tensor]) -> State:
    """An average with weight_orig, u and v where `trained` has them; a CheckpointError names the first tensor of another network."""
    if any(key.endswith("weight_orig") for key in average):  # spectral norm was left in it (remove_sn: False)
        check_fit(trained, average)
        average = fold_spectral_norm(average)
    else:
        check_fit(fold_spectral_norm(trained), average)
    unfolded: State = {}
    divided = []
    for key in trained:
        stem, _, last = key.rpartition("weight_")
        if f"{stem}weight_orig" not in trained:
            unfolded[key] = average[key].clone()
        elif last == "orig":
            weight = average[f"{stem}weight"].clone()
            unfolded |= {key: weight, **_vectors(weight, trained[f"{stem}weight_u"], stem)}
            divided.append(key)
    rescale_average(unfolded, divided)
    return {f"{_GENERATOR}.{key}": unfolded[key] for key in trained}


def _vectors(weight: Tensor, u: Tensor, stem: str) -> State:
    """u and v of a weight, from a first u. Raises CheckpointError for a weight of zeros, which has none."""
    matrix, v = weight.flatten(1), weight.flatten(1).new_zeros(0)
    for _ in range(_ROUNDS):
        v = F.normalize(matrix.t() @ u, dim=0)
        u = F.normalize(matrix @ v, dim=0)
    if not float(torch.dot(u, matrix @ v)) > 0:
        raise CheckpointError(f"averaged_model.{stem}weight is 0 throughout: its training failed; take an earlier file")
    return {f"{stem}weight_u": u, f"{stem}weight_v": v}


# From the coarse pix2pixHD to the one with enhancers ------------------------------------------------------------------------


def _is_coarse(experiment: Experiment, state: Mapping[str, Tensor]) -> bool:
    """Whether the weights are a pix2pixHD's without the enhancers that the file asks for."""
    generator = getattr(experiment.model, _GENERATOR)
    return bool(getattr(generator, "num_enhancers", 0)) and any(key.startswith("global_model.model.") for key in state)


def _enlarged(experiment: Experiment, state: Mapping[str, Tensor], notes: list[str]) -> Content:
    """The weights of the coarse generator, all but its last layer, in the model with enhancers; the rest of it is fresh."""
    fresh = _fresh(experiment)
    taken = {key: tensor for key, tensor in fresh.items() if key.startswith("generator.global_model.")}
    renamed = {f"generator.{key.replace('global_model.model.', 'global_model.', 1)}": tensor for key, tensor in state.items()}
    check_fit(taken, {key: tensor for key, tensor in renamed.items() if key in taken})
    notes = [*notes, "it has no enhancers: the global generator takes its weights; they and the discriminator begin anew"]
    return Content(experiment, fresh | {key: renamed[key].clone() for key in taken}, None, notes)
