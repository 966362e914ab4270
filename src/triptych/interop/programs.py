"""The programs whose files are read and written, each with a folder of its own.

Its importer makes an `ImportedRun` of an `ImportRequest`, its exporter writes the files that an `ExportRequest` asks for.
"""

from __future__ import annotations

import importlib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from safetensors import SafetensorError, safe_open

from triptych.core.errors import CheckpointError, ConfigError, nearest
from triptych.core.files import write_text
from triptych.core.ramp import ends

if TYPE_CHECKING:
    from torch import Tensor

    from triptych.core.batch import DataSpec
    from triptych.core.model import Model, ModelConfig
    from triptych.recipes.config import RunConfig

Program = Literal["guided-diffusion", "improved-diffusion", "glow", "imaginaire", "nvidia", "diffusers", "sit", "dit"]
"""Whose weights are imported."""
PROGRAMS: tuple[Program, ...] = get_args(Program)
Target = Literal["guided-diffusion", "diffusers", "nvidia", "sit"]
"""What a run is exported to."""
TARGETS: tuple[Target, ...] = get_args(Target)


@dataclass(frozen=True)
class ImportRequest:
    """What is to be imported; see `triptych.runs.import_run`."""

    file: Path
    flags: str | Mapping[str, Any] | None
    program: Program
    ema: Path | None
    ema_rate: float | None
    report: Callable[[str], None]
    checkpoint: Path | None = None
    data: Path | None = None
    processes: int = 1


@dataclass(frozen=True)
class LatentScale:
    """How the latents of an autoencoder became the samples of another program; see `LatentSpec`."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scaled_to: float
    darkest: float = -1.0


@dataclass(frozen=True)
class FirstFrames:
    """A model of single images that makes the first frames of clips."""

    config: RunConfig
    spec: DataSpec
    model: dict[str, Tensor]


@dataclass(frozen=True)
class ImportedRun:
    """What an importer makes of the files."""

    config: RunConfig
    spec: DataSpec
    files: dict[str, dict[str, Tensor]]
    "The run's checkpoint: model, and ema-RATE. Empty where there are settings alone."
    flags: str
    "The original's flags that describe the model, defaults included."
    sources: tuple[Path, ...]
    "The files that were read; that of the request first."
    recipe: str | None = None
    "The recipe whose settings of training the run has, if any."
    published: str | None = None
    "Name of the published file that it is."
    licence: str | None = None
    "Of the weights, where their authors state one with the program's."
    latents: LatentScale | None = None
    "Of a model of latents, whose autoencoder is not in the file."
    first_frames: FirstFrames | None = None
    "Of a model of clips, the one in the file that makes their first frames."


def imported(request: ImportRequest) -> ImportedRun:
    """What the file of a request is. Raises ConfigError for flags and the other settings, CheckpointError for files."""
    if request.program not in PROGRAMS:
        raise ConfigError("program", f"got {request.program!r}, expected {expected_program(str(request.program))}")
    made: ImportedRun = importlib.import_module(f"triptych.interop.{folder_of(request.program)}.importer").imported(request)
    type(made.config).from_dict(made.config.to_dict())  # a run with a setting that cannot be read could not be opened
    return made


def folder_of(program: str) -> str:
    """The folder of interop that a program's files lie in."""
    return {"improved-diffusion": "guided_diffusion"}.get(program, program).replace("-", "_")


def expected_program(name: str) -> str:
    """The programs that there are, and the one that an unknown name is nearest to."""
    return f"{', '.join(PROGRAMS[:-1])} or {PROGRAMS[-1]}{nearest(name, PROGRAMS)}"


def refuse(request: ImportRequest, names: tuple[str, ...], reason: str) -> None:
    """Raises ConfigError for a setting of the request that its program has no use for."""
    for name in names:
        if getattr(request, name) != (1 if name == "processes" else None):
            raise ConfigError(name, f"{reason}: leave it out")


def going_on(config: RunConfig) -> RunConfig:
    """The settings with averages of the weights that go on from what is imported, where those of a new run would begin at its weights.

    One by its length grows with the run, and so begins anew all the same.
    """
    averages = []
    for average in config.train.averages:
        half_life = None if average.half_life is None else round(ends(average.half_life)[-1])
        averages.append(replace(average, half_life=half_life, warmup=False, ramp_up=None, start=0))
    return replace(config, train=replace(config.train, ema_warmup=False, ema_start=0, averages=tuple(averages)))


@contextmanager
def about_file(file: Path) -> Iterator[None]:
    """Within it a CheckpointError says which file it is about, unless it names it already."""
    try:
        yield
    except CheckpointError as error:
        if str(file) in str(error):
            raise
        raise CheckpointError(f"{file}: {error}") from None


# Exports --------------------------------------------------------------------------------------------------------------


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


def latent_notes(spec: DataSpec) -> tuple[str, ...]:
    """What the user of an exported model of latents has to know; nothing of one of images."""
    if spec.latents is None:
        return ()
    factors = (std / spec.latents.scaled_to for std in spec.latents.std)
    scale, mean = (", ".join(f"{value:.6g}" for value in values) for values in (factors, spec.latents.mean))
    where = f"it makes latents z, of the autoencoder in {spec.latents.autoencoder}"
    levels = "" if spec.latents.darkest == -1 else f"; in what that decodes black is {spec.latents.darkest:g} and white 1"
    return (f"{where}, which decodes z * scale + mean, channel by channel: scale {scale}; mean {mean}{levels}",)


def holds_text(path: Path, text: str) -> bool:
    """Whether that is a file of just this text. Raises OSError where it cannot be read."""
    content = text.encode()
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content


def check_replaced(paths: Sequence[Path], beside: Path, text: str) -> None:
    """ConfigError where writing `paths`, and `text` in the file beside them, would cost files that no earlier export wrote.

    An earlier export, which may be replaced, is known by the same text in the file beside it, and holds weights.
    """
    same = holds_text(beside, text)
    for path in paths:
        if same and path.exists() and not _holds_weights(path):
            raise ConfigError("out", f"{path} is there and holds no weights, so no export wrote it; choose another, or remove it")
    for path in () if same else (*paths, beside):
        if path.exists():
            said = "does not say just the same" if beside.exists() else "is not beside it"
            reason = f"{path} is there and is no earlier export of this model ({beside.name} {said})"
            raise ConfigError("out", f"{reason}; choose another, or remove it")


def _holds_weights(path: Path) -> bool:
    """Whether a file is one of safetensors, or by its form one of PyTorch's."""
    if path.suffix != ".safetensors":
        return zipfile.is_zipfile(path)
    try:
        with safe_open(path, "pt") as file:
            return bool(file.keys())
    except (OSError, SafetensorError):
        return False


def write_beside(beside: Path, text: str) -> None:
    """Writes the file by which an export is known: first, so that one that was interrupted can be made again. Raises OSError."""
    beside.parent.mkdir(parents=True, exist_ok=True)
    write_text(beside, text)


def exported(to: Target, request: ExportRequest) -> Exported:
    """Writes the files of a program. Raises ConfigError for what it cannot express, OSError and SafetensorError where the disk refuses."""
    if to not in TARGETS:
        raise ConfigError("to", f"got {to!r}, expected one of {', '.join(TARGETS)}{nearest(str(to), TARGETS)}")
    return importlib.import_module(f"triptych.interop.{folder_of(to)}.exporter").exported(request)
