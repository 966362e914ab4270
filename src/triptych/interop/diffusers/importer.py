"""A folder of diffusers as a run: that of an AutoencoderKL, or of a pipeline that has one under vae."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from triptych.core.errors import CheckpointError
from triptych.core.files import explain
from triptych.core.reading import parsed_json, read_regular
from triptych.core.weight_files import read_weights
from triptych.interop.diffusers.autoencoder import CLASS, CONFIG, WEIGHTS, to_run, to_state
from triptych.interop.programs import ImportedRun, ImportRequest, about_file, going_on, refuse

_NAMES = (WEIGHTS, "diffusion_pytorch_model.fp16.safetensors", "diffusion_pytorch_model.bin")
_PIPELINE_PART = "vae"
_MOST_BYTES = 2**20  # of config.json; those of diffusers have some 600


def imported(request: ImportRequest) -> ImportedRun:
    """The run of a folder, or of a file of weights in one. Raises CheckpointError for what cannot be used."""
    refuse(request, ("flags", "ema", "ema_rate", "checkpoint", "data", "processes"), "config.json says it all")
    folder, weights = _found(request.file)
    with about_file(folder / CONFIG):
        document = _document(folder / CONFIG)
        if document.get("_class_name") != CLASS:
            raise CheckpointError(f"is of {document.get('_class_name')!r}, expected {CLASS}, the one that is read")
        config, spec = to_run(document)
        config = going_on(config)
    with about_file(weights):
        state = to_state(read_weights(weights), config, spec)
    request.report(f"{folder} is an {CLASS}, {len(document['block_out_channels'])} resolutions, images of {spec.image_size} pixels")
    request.report("it has no discriminator, which begins anew")
    return ImportedRun(config=config, spec=spec, files={"model": state}, flags="", sources=(weights, folder / CONFIG))


def _found(path: Path) -> tuple[Path, Path]:
    """The folder of the configuration, and the file of weights. Raises CheckpointError where they are not there."""
    if path.suffix == ".json":
        raise CheckpointError(f"{path}: is no file of weights; give the folder that it lies in, {path.parent}")
    if path.is_file():
        return path.parent, path
    if not path.exists():
        raise CheckpointError(f"there is no folder {path}")
    folder = path / _PIPELINE_PART if (path / _PIPELINE_PART / CONFIG).is_file() else path
    weights = next((folder / name for name in _NAMES if (folder / name).is_file()), None)
    if weights is None and any(folder.glob("*.index.json")):
        raise CheckpointError(f"{folder}: its weights lie in several files; save it again in one, with max_shard_size='10GB'")
    if weights is None:
        raise CheckpointError(f"{folder}: holds no {WEIGHTS}; give the folder of an {CLASS}, with {CONFIG} and that file")
    return folder, weights


def _document(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file; it has to lie beside the weights")
    try:
        document = parsed_json(read_regular(path, most=_MOST_BYTES))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read, or is no JSON ({explain(error)})") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} holds no settings by name")
    return document
