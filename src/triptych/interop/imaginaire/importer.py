"""YAML files of imaginaire as runs, and the weights of a checkpoint that goes with one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from triptych.core.errors import ConfigError, DataError
from triptych.core.reading import user_path
from triptych.data.clips import ClipDataConfig, ClipImages
from triptych.data.config import DataConfig
from triptych.data.few_shot import FewShotDataConfig
from triptych.data.naming import TRAINING, held_out_folder
from triptych.interop.imaginaire.data import Dataset
from triptych.interop.imaginaire.experiment import Experiment, read_experiment
from triptych.interop.imaginaire.weights import Content, run_weights
from triptych.interop.imaginaire.yaml_file import YamlFile, read_yaml
from triptych.interop.programs import FirstFrames, ImportedRun, ImportRequest, about_file, refuse
from triptych.recipes.config import RunConfig

_FEWEST_BATCHES = 8  # of clips in an epoch
_AVERAGE_RATE = 0.9999  # of a moving average in a checkpoint whose file has none


def imported(request: ImportRequest) -> ImportedRun:
    """The run of a YAML file, and of a checkpoint's weights. ConfigError: file or request; CheckpointError: weights; DataError: no data."""
    refuse(request, ("flags", "ema", "ema_rate"), "a YAML file of imaginaire says it all")
    if request.processes < 1:
        raise ConfigError("processes", f"got {request.processes}, expected at least 1")
    with _about_yaml(request.file):
        return run_of(read_yaml(request.file), request)


@contextmanager
def _about_yaml(file: Path) -> Iterator[None]:
    """Within it a ConfigError says in which file its setting stands."""
    try:
        yield
    except ConfigError as error:
        raise error if not error.setting else ConfigError(f"{file}: {error.setting}", error.reason) from None


def run_of(file: YamlFile, request: ImportRequest) -> ImportedRun:
    """The run of a file that was read. Raises as `imported` does; a ConfigError names the setting alone."""
    experiment, notes = read_experiment(file), []
    files: dict[str, dict[str, Tensor]] = {}
    average, content = None, None
    for line in experiment.warnings:
        warnings.warn(line, stacklevel=2)
    if request.checkpoint is not None:
        with about_file(request.checkpoint):
            content = run_weights(request.checkpoint, experiment, file.settings)
        experiment, files["model"], average, notes = content.experiment, content.model, content.average, content.notes
    first = None if content is None else content.first
    config = _run_config(experiment, request)
    for line in [*experiment.notes, *notes]:
        request.report(line)
    if average is not None:
        rates = config.train.ema_rates or (_AVERAGE_RATE,)
        # An average from a file no longer begins as a copy of the weights.
        config = replace(config, train=replace(config.train, ema_rates=rates, ema_start=0))
        files[f"ema-{rates[0]}"] = average
        request.report(f"its moving average is the run's ema-{rates[0]}, and is used unless --weights raw is given")
    return ImportedRun(
        config=config,
        spec=experiment.data.spec,
        files=files,
        flags=f"--config {request.file.name}",
        sources=(request.file,) if request.checkpoint is None else (request.checkpoint, request.file),
        first_frames=None if first is None else _first_frames(first, config),
    )


def _first_frames(content: Content, clips: RunConfig) -> FirstFrames:
    """The SPADE that makes the first frames of a run of clips: its weights, with the settings of training of that run."""
    data = content.experiment.data
    assert data.config is not None
    config = replace(
        clips, model=content.experiment.model, data=data.config.updated({"path": clips.data.path}), train=replace(clips.train, ema_rates=())
    )
    return FirstFrames(config, data.spec, content.model)


def _run_config(experiment: Experiment, request: ImportRequest) -> RunConfig:
    """The configuration of the run. Epochs are counted in the data; without the data the run has a length of its own, with a warning."""
    data, schedule = experiment.data.config, experiment.schedule
    if data is None:
        raise ConfigError("data", "missing, and gen.num_labels too: say what images are made from, or give a checkpoint, which shows it")
    path = _data_path(experiment.data, request)
    data = replace(data, path=None if path is None else str(path))
    num_images, why = None, "nobody knows"
    if schedule.uses_epochs and path is not None:
        try:
            data, num_images = _counted(data, schedule.train.batch_size * request.processes)
        except DataError as error:
            why = f"cannot be counted ({error})"
    if schedule.uses_epochs and num_images is None:
        warnings.warn(
            f"the file counts in epochs, and how long one is {why}: import it with --data DIR, or give triptych train "
            "--train.total-images, --train.checkpoint-every and the schedule of --optim",
            stacklevel=2,
        )
    if isinstance(data, ClipDataConfig):
        schedule = replace(schedule, frames=(data.length.first, data.length.most))
        data = replace(data, length=schedule.lengths(data.length, processes=request.processes, num_images=num_images))
    train, optim, log = schedule.configs(processes=request.processes, num_images=num_images)
    return RunConfig(model=experiment.model, data=data, train=train, optim=optim, log=log)


def _counted(data: DataConfig, batch: int) -> tuple[DataConfig, int]:
    """The data, and the images of an epoch; of clips their number, or that of all frames where they are fewer than those of 8 batches.

    With references it is always the number of clips.

    Clips grow to the longest of them at most, without its references. Raises DataError.
    """
    if not isinstance(data, ClipDataConfig):
        return data, len(data.open().train)
    opened = replace(data, length=replace(data.length, most=data.length.first)).open().train
    assert isinstance(opened, ClipImages)
    lengths = [len(clip) for clip in opened.clips]
    most = max(data.length.first, max(lengths) - data.references)
    data = replace(data, length=replace(data.length, most=min(data.length.most, most)))
    return data, len(lengths) if data.references or len(lengths) >= _FEWEST_BATCHES * batch else sum(lengths)


def check_data(file: Path) -> None:
    """Raises ConfigError for a YAML file that cannot be used, and DataError where its data are not there."""
    with _about_yaml(file):
        root = read_experiment(read_yaml(file)).data.train_root
    if root is None or not user_path(root).exists():
        problem = "names no data" if root is None else f"has its data in {root}, which is not here"
        raise DataError(f"{file} {problem} (data.train.roots); give the folder as --data.path DIR")


def _data_path(data: Dataset, request: ImportRequest) -> Path | None:
    """Where the data lie: as the request says, else as the file says, where that folder exists."""
    if request.data is not None:
        if not request.data.exists():
            raise DataError(f"{request.data}: does not exist (data)")
        return request.data
    if data.train_root is None:
        return None
    root = user_path(data.train_root)
    if not root.exists():
        request.report(f"data.train.roots: there is no {root} here; triptych train takes the folder as --data.path")
        return None
    held = None if data.val_root is None else user_path(data.val_root)
    if held is not None and not held.exists():
        request.report(f"data.val.roots: there is no {held} here")
        held = None
    if isinstance(data.config, FewShotDataConfig):  # both types of data are of the same classes
        if held is not None:
            request.report(f"data.val.roots: {held} is not used; classes of {root} are held out by --data.held-out")
        return root / "images_content" if (root / "images_content").is_dir() else root
    beside = held is not None and held.parent == root.parent and held_out_folder([held.name]) is not None
    if root.name == TRAINING and beside:
        return root.parent
    if held is not None:
        request.report(f"data.val.roots: {held} is not used: it is not beside {root}, as train and val are; a share is held out")
    return root
