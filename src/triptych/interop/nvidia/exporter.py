"""Runs as state dicts with NVIDIA's names of tensors, one file for each network, and what builds the networks."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from triptych.core.errors import ConfigError
from triptych.core.files import whole
from triptych.core.weight_files import write_weights
from triptych.interop.nvidia.families import FAMILIES, KNOWN
from triptych.interop.nvidia.family import State, part_of
from triptych.interop.programs import Exported, ExportRequest, check_replaced, latent_notes, write_beside


def exported(request: ExportRequest) -> Exported:
    """Writes the files; an earlier export is replaced. Raises as `programs.exported` does."""
    out = request.out
    if request.drop_variance:
        raise ConfigError("drop_variance", "goes with diffusers: leave it out")
    family = next((family for family in FAMILIES.values() if isinstance(request.config, family.config)), None)
    if family is None:
        kind = type(request.config).__name__.removesuffix("Config")
        raise ConfigError("to", f"NVIDIA's names are those of {KNOWN}; this run is of {kind}")
    if request.spec.width not in (None, request.spec.image_size):
        raise ConfigError("", "NVIDIA's programs cannot express this model: data: images that are not squares")
    if out.suffix not in (".pt", ".safetensors"):
        raise ConfigError("out", f"got {str(out)!r}, expected the name of a file that ends with .pt or .safetensors")
    paths, beside = (out, *(out.with_stem(f"{out.stem}-{part}") for part in family.parts[1:])), out.with_suffix(".json")
    settings = json.dumps(family.built_with(request.config, request.spec), indent=2) + "\n"
    check_replaced(paths, beside, settings)
    state = request.load().state_dict()
    write_beside(beside, settings)
    for part, path in zip(family.parts, paths, strict=True):
        _write(family.given(part_of(state, part), part=part, config=request.config, spec=request.spec), path)
    return Exported((*paths, beside), None, (*family.notes, *latent_notes(request.spec)))


def _write(state: State, path: Path) -> None:
    if path.suffix == ".pt":
        write_weights(state, path)
        return
    with whole(path) as temporary:
        save_file(state, temporary)
