"""Weights of other programs as runs of ours, and runs as files of other programs.

An imported run has one checkpoint, at 0 images, whose state.json says under "imported" where its weights come from: the program, the file
and its SHA-256, the flags, and which moving averages came with it ("averages": stems of files). Published weights are themselves an
average, and are stored once, as the model's; with that mark they are used where the run's first average is asked for.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from safetensors import SafetensorError
from torch import Tensor

from triptych.core.errors import CheckpointError, ConfigError, nearest
from triptych.core.model import Model
from triptych.data.config import DataConfig
from triptych.engine.checkpoint import checkpoint_path, explain, list_checkpoints, load_checkpoint, save_checkpoint
from triptych.engine.config import OptimConfig, TrainConfig
from triptych.engine.ema import averaged_state
from triptych.engine.run_directory import RunDirectory
from triptych.interop.diffusers import to_diffusers, write_diffusers
from triptych.interop.flags import Program, all_flags, command_line, parse_flags
from triptych.interop.guided_diffusion import Described, describe, filled_model, to_state_dict
from triptych.interop.original_flags import flag_line, original_flags
from triptych.interop.published import Published, recognise
from triptych.interop.shapes import shape_flags
from triptych.interop.weight_files import read_weights, write_weights
from triptych.recipes.catalogue import load_recipe
from triptych.recipes.config import RunConfig
from triptych.runs.document import RunDocument
from triptych.runs.run import Run, open_run

Target = Literal["guided-diffusion", "diffusers"]
"""What a run is exported to."""
TARGETS: tuple[Target, ...] = get_args(Target)


def import_run(
    file: str | Path,
    run_dir: str | Path,
    *,
    flags: str | Mapping[str, Any] | None = None,
    program: Program = "guided-diffusion",
    ema: str | Path | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Run:
    """A new run with the weights of a file of guided-diffusion or improved-diffusion; ready to sample, evaluate and train.

    `flags`: the original's, as its command line or by name; None: the file is a published one, known by its name or its shapes. `ema`: the
    average of the weights, a file ema_RATE_STEPS.pt beside model*.pt. `report` is told what the file was recognised as.
    Raises ConfigError for flags that are wrong or missing, CheckpointError for files that cannot be used and where there is a run already.
    """
    directory = RunDirectory(Path(run_dir))
    if directory.exists():
        raise CheckpointError(f"{run_dir} holds a run already; choose another directory")
    weights = read_weights(file)
    with _about(file):
        given, program, published = _flags_of(weights, file, flags, program, report)
        described = describe(weights, given, program=program)
        config, recipe = _run_config(described, published)
        files = {"model": dict(filled_model(config.model, described.spec, weights).state_dict())}
    if ema is not None:
        rate = _rate(Path(ema))
        config = replace(config, train=replace(config.train, ema_rates=(rate,)))
        with _about(ema):
            average = averaged_state(filled_model(config.model, described.spec, read_weights(ema)))
        files[f"ema-{rate}"] = {name: tensor.detach() for name, tensor in average.items()}
    origin = {
        "program": program,
        "file": Path(file).name,
        "sha256": _digest(Path(file)),
        "flags": command_line(described.flags),
        "published": None if published is None else published.name,
        "averages": [stem for stem in files if stem != "model"],
    }
    directory.create()
    with directory.lock():
        info = {"log2_loss_scale": {}, "best": None, "imported": origin}
        save_checkpoint(directory.checkpoints, images_seen=0, files=files, info=info)
        _log(directory, f"imported from {origin['file']} ({program}, SHA-256 {origin['sha256']}): {origin['flags']}")
        directory.write_config(RunDocument(config, described.spec, recipe).to_dict())
    return open_run(run_dir)


def untrained_import(directory: RunDirectory) -> bool:
    """Whether a run was imported and not trained since: then nothing but its model is settled."""
    if list_checkpoints(directory.checkpoints) != [0]:
        return False
    return "imported" in load_checkpoint(checkpoint_path(directory.checkpoints, 0), files=()).info


def _flags_of(
    weights: Mapping[str, Tensor],
    file: str | Path,
    flags: str | Mapping[str, Any] | None,
    program: Program,
    report: Callable[[str], None],
) -> tuple[Mapping[str, Any], Program, Published | None]:
    """The flags of a file and their program: those given, or those of the published file that it is."""
    known = all_flags(program)
    if flags is not None:
        return parse_flags(flags, known) if isinstance(flags, str) else flags, program, None
    found = recognise(weights, Path(file).name)
    if found is None:
        raise ConfigError(
            "--flags",
            f"missing, for {file} is not a published file: give the flags that it was trained with; its shapes say "
            + command_line(shape_flags(weights)),
        )
    report(f"{file} is {found.line}")
    return found.published.flags, found.published.program, found.published


def _run_config(described: Described, published: Published | None) -> tuple[RunConfig, str | None]:
    """The configuration of the run, and the recipe whose settings of training it has."""
    model, spec = described.config, described.spec
    if published is not None and published.recipe is not None:
        recipe = load_recipe(published.recipe)
        sampler = getattr(recipe.model, "timestep_sampler", "uniform")  # has no trace in the flags of the network
        return replace(recipe, model=model.updated({"timestep_sampler": sampler})), published.recipe
    half = described.flags.get("use_fp16") or described.flags.get("classifier_use_fp16")
    classifier = "classifier_width" in described.flags
    return RunConfig(
        model=model,
        data=DataConfig(
            image_size=spec.image_size,
            channels=1 if spec.channels == 1 else 3,
            labels="none" if spec.num_classes is None else "auto",
            crop="random" if classifier else "center",
        ),
        train=TrainConfig(
            total_images=1_000_000,
            batch_size=64,
            precision="bf16" if half else "float32",
            checkpoint_every=100_000,
            sample_every=100_000,
            validate_every=100_000,
        ),
        optim=OptimConfig(learning_rate=3e-4 if classifier else 1e-4, weight_decay=0.05 if classifier else 0.0),
    ), None


def _rate(ema: Path) -> float:
    """The rate in a name such as ema_0.9999_500000.pt."""
    match = re.match(r"ema_(0?\.\d+|0)_", ema.name)
    if match is None:
        raise ConfigError("ema", f"got {ema.name!r}, expected a name such as ema_0.9999_500000.pt, which says the rate of the average")
    return float(match[1])


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _log(directory: RunDirectory, line: str) -> None:
    with directory.log_path.open("a", encoding="utf-8") as log:
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")


class _about:
    """Within it a CheckpointError says which file it is about, unless it names it already."""

    def __init__(self, file: str | Path) -> None:
        self._file = str(file)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CheckpointError) and self._file not in str(error):
            raise CheckpointError(f"{self._file}: {error}") from None


@dataclass(frozen=True)
class Exported:
    """What an export wrote."""

    paths: tuple[Path, ...]
    "The file or folder first."
    flags: str | None
    "The original's flags that go with a file of its weights; None: there are none."
    notes: tuple[str, ...]
    "What the user has to know about using it."


def export_run(
    run_dir: str | Path,
    to: Target,
    out: str | Path,
    *,
    checkpoint: str = "latest",
    weights: str | None = None,
    drop_variance: bool = False,
) -> Exported:
    """Writes a run's weights for another program, and says how to use them there.

    guided-diffusion: `out` is a .pt, and beside it a .flags.txt has the flags of its scripts. diffusers: `out` is a folder, with the
    second half of the output channels left out on request (`drop_variance`). `checkpoint` and `weights` are as in `Run.load`.
    An earlier export is replaced. Raises ConfigError that names what the other program cannot express, and for an `out` that is
    something else, CheckpointError where nothing can be read or written.
    """
    if to not in TARGETS:
        raise ConfigError("to", f"got {to!r}, expected one of {', '.join(TARGETS)}{nearest(str(to), TARGETS)}")
    run, out = open_run(run_dir), Path(out)
    try:
        if to == "diffusers":
            return _export_diffusers(run.load(checkpoint=checkpoint, weights=weights, device="cpu"), out, drop_variance)
        if drop_variance:
            raise ConfigError("drop_variance", "guided-diffusion makes no use of it: leave it out, or export to diffusers")
        if out.suffix != ".pt":
            raise ConfigError("out", f"got {str(out)!r}, expected the name of a file that ends with .pt")
        beside = out.with_suffix(".flags.txt")
        if out.exists() and not beside.exists():
            raise ConfigError(
                "out", f"{out} is there and is no earlier export ({beside.name} is not beside it); choose another, or remove it"
            )
        told = original_flags(run.config.model, run.spec)
        write_weights(to_state_dict(run.load(checkpoint=checkpoint, weights=weights, device="cpu")), out)
        flags = command_line(flag_line(told))
        beside.write_text(flags + "\n", encoding="utf-8")
        return Exported((out, beside), flags, tuple(told.notes))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write {out}: {explain(error)}") from error


def _export_diffusers(model: Model, out: Path, drop_variance: bool) -> Exported:
    layout = to_diffusers(model, drop_variance=drop_variance)
    write_diffusers(layout, out)
    return Exported((out,), None, tuple(layout.notes))
