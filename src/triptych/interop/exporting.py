"""Runs as files of other programs. Each program that reads our weights has an exporter in its folder: `exported` writes its files."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from triptych.core.errors import ConfigError, nearest
from triptych.interop.importing import folder_of

if TYPE_CHECKING:
    from triptych.core.batch import DataSpec
    from triptych.core.model import Model, ModelConfig

Target = Literal["guided-diffusion", "diffusers"]
"""What a run is exported to."""
TARGETS: tuple[Target, ...] = get_args(Target)


@dataclass(frozen=True)
class ExportRequest:
    """What is to be written where; see `triptych.runs.export_run`."""

    out: Path
    config: ModelConfig
    spec: DataSpec
    load: Callable[[], Model]
    "Reads the model with its weights; called once nothing else is in the way."
    drop_variance: bool


@dataclass(frozen=True)
class Exported:
    """What an export wrote."""

    paths: tuple[Path, ...]
    "The file or folder first."
    flags: str | None
    "The original's flags that go with a file of its weights; None: there are none."
    notes: tuple[str, ...]
    "What the user has to know about using it."


def exported(to: Target, request: ExportRequest) -> Exported:
    """Writes the files of a program. Raises ConfigError for what it cannot express, OSError and SafetensorError where the disk refuses."""
    if to not in TARGETS:
        raise ConfigError("to", f"got {to!r}, expected one of {', '.join(TARGETS)}{nearest(str(to), TARGETS)}")
    return importlib.import_module(f"triptych.interop.{folder_of(to)}.exporter").exported(request)
