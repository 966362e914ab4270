"""imaginaire's checkpoints as the tensors of a run: the networks as they were trained, and the generator's moving average.

Averages have spectral norm divided out there, into a plain `weight`. Here an averaged weight keeps weight_orig, u and v, with u so long
that sigma is 1: what its layer applies is the averaged weight itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.model import seeded_build
from triptych.core.outline import without_weights
from triptych.gans.weight_norms import fold_spectral_norm, settle_average
from triptych.interop.imaginaire.reading import Settings, Weights
from triptych.interop.imaginaire.settings import Plan
from triptych.interop.imaginaire.shapes import Described, describe_discriminator, describe_generator
from triptych.interop.imaginaire.state_dicts import unwrapped
from triptych.interop.imaginaire.yaml_file import YamlFile
from triptych.interop.weight_files import check_fit, read_content

_GENERATOR, _DISCRIMINATOR = "generator", "discriminator"
_SECTIONS = {_GENERATOR: "gen", _DISCRIMINATOR: "dis"}
_KEYS = {_GENERATOR: "net_G", _DISCRIMINATOR: "net_D"}
_OPTIMIZERS = ("opt_G", "opt_D", "sch_G", "sch_D")
_BEGINNINGS = {
    "spade": "spade_generator",
    "pix2pixHD": "global_model",
    "unit": "autoencoder_a",
    "munit": "autoencoder_a",
    "funit": "generator",
    "coco_funit": "generator",
}
"""What names in every generator of a model begin with."""
_ROUNDS = 5  # of power iteration, from what fitted the weights of the last step

State = dict[str, Tensor]


@dataclass(frozen=True)
class RunWeights:
    """What of a checkpoint goes into a run."""

    plan: Plan
    "With the networks that the weights are of, and the data that they take."
    model: State
    "The model's state."
    average: State | None
    "The generator's, under the names of the model's state; None: the file has none."
    notes: list[str] = field(default_factory=list)


def run_weights(path: str | Path, plan: Plan, file: YamlFile) -> RunWeights:
    """The weights in a checkpoint for the run that a YAML file plans; they have to bear out its sections gen and dis.

    Raises CheckpointError for a checkpoint that cannot be used, ConfigError where it and the file do not fit.
    """
    live, average, notes = _read(path)
    begun = sorted({name.partition(".")[0] for name in live[_GENERATOR]})
    if _BEGINNINGS[plan.kind] not in begun and set(begun) & set(_BEGINNINGS.values()):
        raise CheckpointError(
            f"holds the weights of another model than {plan.kind} (net_G has {begun[0]}, expected {_BEGINNINGS[plan.kind]}): "
            "give the YAML file that they were trained with"
        )
    if _is_coarse(plan, live[_GENERATOR]):
        return _enlarged(plan, live[_GENERATOR], notes)
    plan = _borne_out(plan, live, file)
    with without_weights():
        own = dict(_fresh(plan))  # names and shapes alone
    model: State = {}
    for name, state in live.items():
        part = _part(own, name)
        check_fit(part, state)
        model |= {f"{name}.{key}": state[key] for key in part}
    if missing := [key for key in own if key not in model]:
        fresh = _fresh(plan)
        model |= {key: fresh[key] for key in missing}
        if _DISCRIMINATOR not in live:
            notes.append("it has no net_D: the discriminator begins anew")
    if average is not None:
        average = _unfolded(average, _part(model, _GENERATOR))
    return RunWeights(plan, {key: model[key].clone() for key in own}, average, notes)


def _read(path: str | Path) -> tuple[dict[str, State], State | None, list[str]]:
    """The networks of a checkpoint as they were trained, the generator's average without spectral norm, and what is left out."""
    content = read_content(path)
    if not isinstance(content, Mapping) or content.get("net_G") is None:
        found = f" but {', '.join(sorted(map(str, content))[:3])}" if isinstance(content, Mapping) and content else ""
        raise CheckpointError(f"holds no net_G{found}: this is no checkpoint of imaginaire")
    states = {name: content[key] for name, key in _KEYS.items() if content.get(key) is not None}
    live = {name: unwrapped(state, averaged=False, name=_KEYS[name]) for name, state in states.items()}
    average = None
    if any(".averaged_model." in f".{key}" for key in states[_GENERATOR]):
        average = fold_spectral_norm(unwrapped(states[_GENERATOR], averaged=True, name="net_G"))
    told = any(name in content for name in _OPTIMIZERS)
    return live, average, ["the state of its optimizers is not taken: they begin anew"] if told else []


def _part(state: Mapping[str, Tensor], name: str) -> State:
    """The tensors of a network under the names that they have in it."""
    return {key.removeprefix(f"{name}."): tensor for key, tensor in state.items() if key.startswith(f"{name}.")}


def _fresh(plan: Plan) -> State:
    try:
        return dict(seeded_build(plan.model, plan.data.spec, seed=0).state_dict())
    except ConfigError as error:
        raise error.inside("model") from None


# The file and the weights ---------------------------------------------------------------------------------------------------


def _borne_out(plan: Plan, live: Mapping[str, State], file: YamlFile) -> Plan:
    """The plan with the networks and the classes that the weights show. Raises ConfigError where the file says otherwise."""
    networks: dict[str, Any] = {}
    for name, state in live.items():
        section, weights = file.settings.inside(_SECTIONS[name]), Weights(state)
        describe = describe_generator if name == _GENERATOR else describe_discriminator
        found = describe(plan.kind, weights, section.values)
        _check_weight_norms(section, found.config, weights)
        if plan.data.unsaid and name == _GENERATOR:
            channels = plan.data.label_channels or found.label_channels or 1
            plan = dataclasses.replace(plan, data=plan.data.with_labels(channels, side=found.config.resolution))
        _check_channels(plan, found, name)
        if found.num_classes is not None:
            plan = dataclasses.replace(plan, data=plan.data.with_classes(found.num_classes))
        networks[name] = found.config
    return dataclasses.replace(plan, model=dataclasses.replace(plan.model, **networks))


def _check_weight_norms(section: Settings, found: Any, weights: Weights) -> None:
    whole = getattr(found, "weight_norm", weights.weight_norm)
    norms = {"weight_norm_type": whole, "activation_norm_params.weight_norm_type": getattr(found, "inner_weight_norm", whole)}
    for name, norm in norms.items():
        *sections, key = name.split(".")
        inner = section.inside(sections[0]) if sections else section
        given = inner.value(key)
        if given is not None and (given or "none") != norm:
            raise ConfigError(inner.name(key), f"got {given!r}, but the weights have {norm!r}")


def _check_channels(plan: Plan, found: Described, name: str) -> None:
    data = plan.data
    if found.label_channels is not None and found.label_channels != data.label_channels:
        reason = f"they have {data.label_channels} channels ({data.label_parts}), but the {name}'s weights take {found.label_channels}"
        raise ConfigError("gen.num_labels" if data.unsaid else "data.input_labels", reason)
    if found.image_channels != data.spec.channels:
        reason = f"images have {data.spec.channels} channels, but the {name}'s weights {found.image_channels}"
        raise ConfigError("data.input_types", reason)
    if found.num_classes is not None and data.spec.num_classes not in (None, found.num_classes):
        raise ConfigError("dis.num_classes", f"got {data.spec.num_classes}, but the weights know {found.num_classes} classes")


# Averages -------------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _unfolded(average: Mapping[str, Tensor], live: Mapping[str, Tensor]) -> State:
    """An average as a run keeps it: weight_orig, u and v in place of a plain weight, where `live` has them.

    Raises CheckpointError, naming the first tensor, where the two are not of one network.
    """
    check_fit(fold_spectral_norm(live), average)
    found: State = {}
    divided = []
    for key in live:
        stem, _, last = key.rpartition("weight_")
        if f"{stem}weight_orig" not in live:
            found[key] = average[key].clone()
        elif last == "orig":
            weight = average[f"{stem}weight"].clone()
            found |= {key: weight, **_vectors(weight, live[f"{stem}weight_u"], stem)}
            divided.append(key)
    settle_average(found, divided)
    return {f"{_GENERATOR}.{key}": found[key] for key in live}


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


def _is_coarse(plan: Plan, state: Mapping[str, Tensor]) -> bool:
    """Whether the weights are a pix2pixHD's without the enhancers that the file asks for."""
    generator = getattr(plan.model, _GENERATOR)
    return bool(getattr(generator, "num_enhancers", 0)) and any(key.startswith("global_model.model.") for key in state)


def _enlarged(plan: Plan, state: Mapping[str, Tensor], notes: list[str]) -> RunWeights:
    """The weights of the coarse generator, all but its last layer, in the model with enhancers; the rest of it is fresh."""
    fresh = _fresh(plan)
    own = {key: tensor for key, tensor in fresh.items() if key.startswith("generator.global_model.")}
    renamed = {f"generator.{key.replace('global_model.model.', 'global_model.', 1)}": tensor for key, tensor in state.items()}
    check_fit(own, {key: tensor for key, tensor in renamed.items() if key in own})
    notes = [*notes, "it has no enhancers: the global generator takes its weights; they and the discriminator begin anew"]
    return RunWeights(plan, fresh | {key: renamed[key].clone() for key in own}, None, notes)
