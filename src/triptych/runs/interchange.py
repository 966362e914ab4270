"""Weights of other programs as runs of ours, and runs as files of other programs.

The importer of a program (interop/programs.py) reads its files; `import_run` writes the run. It has one checkpoint, at 0 images. Its
state.json says under "imported" where the weights come from: the program, the file, its SHA-256 (of several files, that of all their
bytes), the flags, the moving averages that came with it ("averages": stems of files), and a licence that the weights are under. Published
weights are themselves an average and are stored once, as the model's; with that mark they are used where the run's first average is asked
for.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.files import explain
from triptych.core.given import given_path, given_place
from triptych.core.model import Model
from triptych.core.reading import user_path
from triptych.engine.checkpoint import checkpoint_path, list_checkpoints, load_checkpoint, save_checkpoint, sweep
from triptych.engine.run_directory import RunDirectory
from triptych.interop.programs import Exported, ExportRequest, FirstFrames, ImportedRun, ImportRequest, Program, Target, exported, imported
from triptych.recipes.config import RunConfig
from triptych.runs.document import OF_PUBLISHED, RunDocument
from triptych.runs.files import check_place
from triptych.runs.latent_space import decoded_by, keep_autoencoder, require_autoencoder
from triptych.runs.loading import Loading
from triptych.runs.run import Run, open_run


def import_run(
    file: str | Path,
    run_dir: str | Path,
    *,
    flags: str | Mapping[str, Any] | None = None,
    program: Program = "guided-diffusion",
    ema: str | Path | None = None,
    ema_rate: float | None = None,
    checkpoint: str | Path | None = None,
    data: str | Path | None = None,
    processes: int = 1,
    autoencoder: str | Path | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Run:
    """A new run with another program's weights; ready to sample, evaluate and train.

    `file`: weights of guided-diffusion or improved-diffusion, or a checkpoint of glow (see `read_variables`). `flags`: the original's, as
    its command line or by name; None: the file is a published one, which its name or its shapes show, or one of glow's, whose shapes show
    nearly all. `ema`: the average of the weights, a file ema_RATE_STEPS.pt beside model*.pt. `ema_rate`: the rate of the averages in a
    checkpoint of glow; None: that of its flags. `report` gets a line for what was recognised.

    imaginaire's `file` is a YAML file, and `checkpoint` the weights that go with it; None: the run has settings alone, and is to be
    trained. `data`: the folder of its data, in place of that in the file; `processes` of a training, each of which has the file's batch.
    nvidia's `file` is a pickle of StyleGAN2's, R3GAN's, EDM's or EDM2's networks, of which nothing is run; it says it all.

    `autoencoder`: the folder of the run that decodes what a model of latents makes (nvidia's EDM2 of 4 channels, sit, dit); the run keeps a
    copy of it. None: samples are latents.

    Raises ConfigError for flags that are wrong or missing, CheckpointError for files that cannot be used and where there is a run already,
    DataError for an address in place of a path.
    """
    directory, file = RunDirectory(given_place(run_dir, "run_dir")), _place(file, "file")
    if directory.exists() and not settings_alone(directory):
        raise CheckpointError(f"{run_dir} holds a run already; choose another directory")
    directory.check()
    given = {"ema": ema, "checkpoint": checkpoint, "data": data}
    paths = {name: None if path is None else _place(path, name) for name, path in given.items()}
    if autoencoder is not None:
        autoencoder = _place(autoencoder, "autoencoder")
        require_autoencoder(autoencoder)
    lines = list[str]()
    request = ImportRequest(file, flags, program, ema_rate=ema_rate, report=lines.append, processes=processes, **paths)
    source = imported(request)
    spec = _decoded(source, autoencoder, lines.append)
    for line in lines:  # of what can be used
        report(line)
    origin = _origin(program, source)
    directory.create()
    with directory.lock():
        directory.sweep()
        sweep(directory.checkpoints)
        info = {"log2_loss_scale": {}, "best": None, "imported": origin}
        if source.files:
            save_checkpoint(directory.checkpoints, images_seen=0, files=source.files, info=info)
        more = source.flags if source.licence is None else f"{OF_PUBLISHED}: {source.licence}"
        _log(directory, f"imported from {origin['file']} ({program}, SHA-256 {origin['sha256']}): {more}")
        if source.first_frames is not None:
            place = directory.first_frames
            _write_first_frames(source.first_frames, place, info | {"imported": {**origin, "averages": []}}, licence=source.licence or "")
            report(f"the model of first frames is a run of its own, {place.root}, which triptych translate and evaluate take")
        for line in [] if spec.latents is None else keep_autoencoder(spec.latents, directory):
            report(line)
        document = RunDocument(_of_images(source.config, spec), spec, source.recipe, licence=source.licence or "")
        directory.write_config(document.to_dict())  # last: now it is a run
    return open_run(run_dir)


def _place(path: str | Path, name: str) -> Path:
    """Where on this machine a file or folder to be read is. Raises ConfigError about the argument `name`, DataError for an address."""
    given_path(path, name)
    return user_path(path)


def _origin(program: Program, source: ImportedRun) -> dict[str, Any]:
    """What the first checkpoint says of the file that it was read from."""
    origin = {
        "program": program,
        "file": source.sources[0].name,
        "sha256": _digest(source.sources),
        "flags": source.flags,
        "published": source.published,
        "averages": [stem for stem in source.files if stem != "model"],
    }
    return origin if source.licence is None else origin | {"licence": source.licence}


def _write_first_frames(first: FirstFrames, place: RunDirectory, info: dict[str, Any], *, licence: str) -> None:
    """The run of the model that makes the first frames of clips."""
    place.create()
    save_checkpoint(place.checkpoints, images_seen=0, files={"model": first.model}, info=info)
    place.write_config(RunDocument(first.config, first.spec, None, licence=licence).to_dict())


def _decoded(source: ImportedRun, autoencoder: str | Path | None, report: Callable[[str], None]) -> DataSpec:
    """What the model learned, with the autoencoder that decodes it where it learned latents and one is given."""
    if source.latents is None:
        if autoencoder is not None:
            raise ConfigError("autoencoder", "the file is of a model of images, not of latents: leave it out")
        return source.spec
    if autoencoder is None:
        taken = "samples are latents, not images" if source.spec.undecoded else "samples are taken for images"
        report(f"no --autoencoder is given: {taken}")
        return source.spec
    latents = decoded_by(autoencoder, source.spec, source.latents)
    report(f"latents are decoded by {autoencoder}, of which the run keeps a copy")
    return replace(source.spec, latents=latents)


def _of_images(config: RunConfig, spec: DataSpec) -> RunConfig:
    """The configuration with the size of the images that the samples are latents of, where they are."""
    return config if spec.latents is None else replace(config, data=replace(config.data, image_size=spec.latents.image_size))


def untrained_import(directory: RunDirectory) -> bool:
    """Whether a run was imported and not trained since. Then only its model is fixed; the other settings may still be chosen."""
    if list_checkpoints(directory.checkpoints) != [0]:
        return False
    return "imported" in load_checkpoint(checkpoint_path(directory.checkpoints, 0), files=()).info


def settings_alone(directory: RunDirectory) -> bool:
    """Whether a run has no weights and was never trained: it is as good as new."""
    return not list_checkpoints(directory.checkpoints) and not directory.metrics_path.exists()


def _digest(files: Sequence[Path]) -> str:
    """The SHA-256 of a file, or of several, one after the other."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            hashlib.file_digest(content, lambda: digest)
    return digest.hexdigest()


def _log(directory: RunDirectory, line: str) -> None:
    with directory.log_path.open("a", encoding="utf-8") as log:
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")


def export_run(
    run_dir: str | Path,
    to: Target,
    out: str | Path,
    *,
    checkpoint: str = "latest",
    weights: str | None = None,
    ema_length: float | None = None,
    drop_variance: bool = False,
) -> Exported:
    """Writes a run's weights for another program, and says how to use them there.

    guided-diffusion: `out` is a .pt, and beside it a .flags.txt has the flags of its scripts. diffusers: `out` is a folder, with the
    second half of the output channels left out on request (`drop_variance`). nvidia: `out` is a .pt or .safetensors of the generator of a
    StyleGAN2 or R3GAN, with that of the discriminator beside it, or of the network of an EDM or EDM2; a .json beside it has the networks'
    settings. sit: `out` is a .pt, and beside it a .sit.txt says how it is built. `checkpoint`, `weights` and `ema_length` are as in
    `WeightsChoice`.

    An earlier export of a model with the same settings is replaced. Raises ConfigError that names what the other program cannot express,
    and for an `out` that is something else, CheckpointError where nothing can be read or written.
    """
    run, out = open_run(run_dir), given_place(out, "out")
    check_place(out / "model" if out.is_dir() else out)  # a folder may be an earlier export, whose config.json is no run's

    def load() -> Model:
        return run.open(Loading(checkpoint=checkpoint, weights=weights, ema_length=ema_length, device="cpu")).model

    try:
        done = exported(to, ExportRequest(out, run.config.model, run.spec, load, drop_variance))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write {out}: {explain(error)}") from error
    return replace(done, notes=(*done.notes, f"{OF_PUBLISHED}: {run.licence}")) if run.licence else done
