"""Pickles of NVIDIA's programs, and of R3GAN, as runs.

The networks are read (`snapshots.py`); their tensors show the model, which a recipe trains; the average, G_ema, becomes the run's, and is
the model's weights too where the file has no others. Nothing in the file is run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.model import ModelConfig, seeded_build
from triptych.core.outline import without_weights
from triptych.interop.nvidia.families import FAMILIES, KNOWN
from triptych.interop.nvidia.family import Family, Part, State, part_of
from triptych.interop.nvidia.snapshots import AVERAGES, LICENCES, Snapshot, read_snapshot
from triptych.interop.programs import ImportedRun, ImportRequest, about_file, going_on, refuse
from triptych.recipes.config import RunConfig

_P = "ada.p"
"""The name of ADA's p in a model's state."""
_STORED_P = "p"


def imported(request: ImportRequest) -> ImportedRun:
    """The run of a pickle. Raises CheckpointError for a file that cannot be used, ConfigError for a request with settings of its own."""
    refuse(request, ("flags", "ema", "ema_rate", "checkpoint", "data", "processes"), "NVIDIA's pickles say it all")
    snapshot = read_snapshot(request.file)
    with about_file(request.file):
        if snapshot.kind not in FAMILIES:
            raise CheckpointError(
                f"is a network of {snapshot.kind} ({snapshot.maker.class_name}), which no model here takes; those of {KNOWN} are taken"
            )
        made = _fitting(snapshot, FAMILIES[snapshot.kind])
    scale = FAMILIES[snapshot.kind].latents
    licence = LICENCES[snapshot.kind]
    for line in (f"{request.file} is of {snapshot.kind}", *made.notes, f"licence of {snapshot.kind}'s published weights: {licence}"):
        request.report(line)
    return ImportedRun(
        config=made.config,
        spec=made.spec,
        files=made.files,
        flags="",
        sources=(request.file,),
        recipe=made.recipe,
        licence=licence,
        latents=None if scale is None or len(scale.mean) != made.spec.channels else scale,
    )


@dataclass(frozen=True)
class _Made:
    config: RunConfig
    spec: DataSpec
    recipe: str | None
    files: dict[str, State]
    notes: list[str]


def _fitting(snapshot: Snapshot, family: Family) -> _Made:
    """The run of a snapshot, without its discriminator where that alone cannot be taken. Raises CheckpointError."""
    try:
        return _run(snapshot, family)
    except CheckpointError as error:
        if "D" not in snapshot.networks or "discriminator" not in family.parts:
            raise
        others = {name: network for name, network in snapshot.networks.items() if name != "D"}
        return _run(replace(snapshot, networks=others), family, without=f"its discriminator cannot be taken, and begins anew: {error}")


def _run(snapshot: Snapshot, family: Family, *, without: str = "it has no discriminator, which begins anew") -> _Made:
    """The run of a snapshot: the average as such where the file has the weights that were trained too, else as the model's weights.

    `without`: the note where there is no discriminator.
    """
    networks, notes = snapshot.networks, []
    try:
        model, spec = family.read(snapshot.maker, networks.get("D"))
        config, recipe = family.run(model, spec, snapshot)
        config = going_on(config)
        with without_weights():
            expected = _fresh(config.model, spec)  # names, shapes and dtypes alone
    except ConfigError as error:
        raise CheckpointError(f"its networks have no model here: {error}") from None

    def taken(name: str, part: Part) -> State:
        """A network of the file under the names of our model's state."""
        try:
            found = family.taken(networks[name].tensors, part_of(expected, part), part=part, config=config.model, spec=spec)
        except CheckpointError as error:
            raise CheckpointError(f"{name}: {error}") from None
        return {f"{part}.{key}": tensor for key, tensor in found.items()}

    averaged, maker = next((name for name in AVERAGES if name in networks), None), family.parts[0]
    state = taken("G" if "G" in networks else snapshot.maker_name, maker)
    if "discriminator" in family.parts:
        if "D" in networks:
            state |= taken("D", "discriminator")
            notes.extend(family.remarks(networks["D"]))
        else:
            notes.append(without)
    fresh = _fresh(config.model, spec)
    files = {"model": fresh | state | _augmentation(snapshot, expected, notes)}
    if averaged is not None and "G" in networks:
        stem = config.train.all_averages[0].name
        files[stem] = {key: fresh[key] for key in expected if key.startswith(f"{maker}.")} | taken(averaged, maker)
        notes.append(f"its average is the run's {stem}, and is used unless --weights raw is given")
    return _Made(config, spec, recipe, files, notes)


def _augmentation(snapshot: Snapshot, expected: State, notes: list[str]) -> State:
    """p of the augmentations, where the file has it and the run steers it; else a note says of one that is there what counts."""
    found = snapshot.networks.get("augment_pipe")
    p = None if found is None else found.tensors.get(_STORED_P)
    if p is None:
        return {}
    value = float(p) if p.numel() == 1 else math.nan
    if not 0 <= value < math.inf:
        notes.append("its p of the augmentations is no number from 0 on, and begins anew")
        return {}
    if _P not in expected:
        notes.append(f"its p of the augmentations, {value:.4g}, is not taken: this run's is what --model.ada.p says")
        return {}
    return {_P: p.reshape(expected[_P].shape).to(expected[_P].dtype, copy=True)}


def _fresh(model: ModelConfig, spec: DataSpec) -> State:
    return dict(seeded_build(model, spec, seed=0).state_dict())
