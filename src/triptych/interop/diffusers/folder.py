"""Folders in diffusers' layout: configurations as JSON, weights as safetensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from triptych.core.errors import ConfigError
from triptych.core.files import replace_folder, sweep, temporary_path, whole, write_text
from triptych.interop.programs import holds_text

VERSION = "0.34.0"
"""Of diffusers, whose configurations these are; later versions read them too."""
_FILES = (".bin", ".ckpt", ".json", ".npz", ".pkl", ".pt", ".pth", ".safetensors", ".tar", ".zip")
"""What names of files end with. A folder may have another ending, as in flowers-v1.5."""


def check_name(folder: Path) -> None:
    """Raises ConfigError for a name that is none of a folder, before any work is done."""
    ending = folder.suffix.lower()
    if folder.name in ("", "..") or ending in _FILES:
        raise ConfigError("out", f"got {str(folder)!r}, expected the name of a folder{f', not of a file ({ending})' * bool(ending)}")


def write_folder(
    folder: Path, documents: Mapping[str, dict[str, Any]], weights: Mapping[str, Mapping[str, Tensor]], *, known: Collection[str], head: str
) -> None:
    """Writes JSON documents and tensors by the names of their files, whole or not at all; an earlier export is replaced.

    `known`: the files that an export may have; `head`: the document by which it is known. Raises ConfigError where other files are in the
    way, or the export of another model.
    """
    folder = folder.resolve() if folder.is_symlink() else folder  # a link stays, and what it leads to is replaced
    texts = {name: json.dumps(document, indent=2) + "\n" for name, document in documents.items()}
    why_not = _in_the_way(folder, known, head, texts) if folder.exists() else None
    if why_not is not None:
        raise ConfigError("out", f"{folder} is there and {why_not}; choose another, or remove it")
    temporary = temporary_path(folder)
    sweep(folder.parent)
    try:
        for name in (*documents, *weights):
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_text(temporary / name, text)
        for name, tensors in weights.items():
            with whole(temporary / name) as file:
                save_file(dict(tensors), file, metadata={"format": "pt"})
        replace_folder(temporary, folder, aside=temporary_path(folder))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _in_the_way(folder: Path, known: Collection[str], head: str, texts: Mapping[str, str]) -> str | None:
    """Why a folder may not be replaced; None: it holds nothing, or an export of this model, known by the texts of its documents."""
    another = "is no earlier export of this model"
    if not folder.is_dir():
        return another
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    if head not in files:
        return another if any(folder.iterdir()) else None
    if not all(holds_text(folder / name, text) for name, text in texts.items()):
        return another
    foreign = min(files - set(known), default=None)
    return None if foreign is None else f"also holds {foreign}, which no export wrote"
