"""Files of other programs as runs. Each program has an importer in its folder: an `ImportRequest` goes in, an `ImportedRun` comes out."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from triptych.core.errors import CheckpointError, ConfigError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from triptych.core.batch import DataSpec
    from triptych.recipes.config import RunConfig

Source = Literal["guided-diffusion", "improved-diffusion", "glow", "imaginaire"]
"""Whose weights are imported."""
SOURCES: tuple[Source, ...] = get_args(Source)


@dataclass(frozen=True)
class ImportRequest:
    """What is to be imported; see `triptych.runs.import_run`."""

    file: Path
    flags: str | Mapping[str, Any] | None
    program: Source
    ema: Path | None
    ema_rate: float | None
    report: Callable[[str], None]
    checkpoint: Path | None = None
    data: Path | None = None
    processes: int = 1


@dataclass(frozen=True)
class ImportedRun:
    """What an importer makes of the files."""

    config: RunConfig
    spec: DataSpec
    recipe: str | None
    "The recipe whose settings of training the run has, if any."
    files: dict[str, dict[str, Tensor]]
    "The run's checkpoint: model, and ema-RATE. Empty where there are settings alone."
    flags: str
    "The original's flags that describe the model, defaults included."
    published: str | None
    "Name of the published file that it is."
    sources: tuple[Path, ...]
    "The files that were read; that of the request first."


def imported(request: ImportRequest) -> ImportedRun:
    """What the file of a request is. Raises ConfigError for flags and the other settings, CheckpointError for files."""
    if request.program not in SOURCES:
        raise ConfigError("program", f"got {request.program!r}, expected {expected_program(str(request.program))}")
    return importlib.import_module(f"triptych.interop.{folder_of(request.program)}.importer").imported(request)


def folder_of(program: str) -> str:
    """The folder of interop that a program's files lie in."""
    return {"improved-diffusion": "guided_diffusion"}.get(program, program).replace("-", "_")


def expected_program(name: str) -> str:
    """The programs that there are, and the one that an unknown name is nearest to."""
    return f"{', '.join(SOURCES[:-1])} or {SOURCES[-1]}{nearest(name, SOURCES)}"


def refuse(request: ImportRequest, names: tuple[str, ...], reason: str) -> None:
    """Raises ConfigError for a setting of the request that its program has no use for."""
    for name in names:
        if getattr(request, name) != (1 if name == "processes" else None):
            raise ConfigError(name, f"{reason}: leave it out")


@contextmanager
def about_file(file: Path) -> Iterator[None]:
    """Within it a CheckpointError says which file it is about, unless it names it already."""
    try:
        yield
    except CheckpointError as error:
        if str(file) in str(error):
            raise
        raise CheckpointError(f"{file}: {error}") from None
