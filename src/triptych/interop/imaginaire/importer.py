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
from triptych.data.config import DataConfig
from triptych.data.domains import UnpairedDataConfig
from triptych.data.few_shot import FewShotDataConfig
from triptych.data.naming import TRAINING, held_out_folder
from triptych.data.pairs import PairedDataConfig
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.interop.imaginaire.data import DataKind, PlannedData
from triptych.interop.imaginaire.settings import Plan, plan_of
from triptych.interop.imaginaire.weights import run_weights
from triptych.interop.imaginaire.yaml_file import YamlFile, read_yaml
from triptych.interop.importing import ImportedRun, ImportRequest, about_file, refuse
from triptych.recipes.config import RunConfig

_DATA: dict[DataKind, type[DataConfig]] = {
    "paired_images": PairedDataConfig,
    "unpaired_images": UnpairedDataConfig,
    "unpaired_few_shot_images": FewShotDataConfig,
}
_GRID = 16  # translations of a grid during training


def imported(request: ImportRequest) -> ImportedRun:
    """The settings of a YAML file and, where a checkpoint is given, its weights."""
    refuse(request, ("flags", "ema", "ema_rate"), "a YAML file of imaginaire says it all")
    if request.processes < 1:
        raise ConfigError("processes", f"got {request.processes}, expected at least 1")
    with _about_yaml(request.file):
        return _from_yaml(read_yaml(request.file), request)


@contextmanager
def _about_yaml(file: Path) -> Iterator[None]:
    """Within it a ConfigError says in which file its setting stands."""
    try:
        yield
    except ConfigError as error:
        raise error if not error.setting else ConfigError(f"{file}: {error.setting}", error.reason) from None


def _from_yaml(file: YamlFile, request: ImportRequest) -> ImportedRun:
    plan, weights = plan_of(file), None
    for line in plan.warnings:
        warnings.warn(line, stacklevel=2)
    if request.checkpoint is not None:
        with about_file(request.checkpoint):
            weights = run_weights(request.checkpoint, plan, file)
        plan = weights.plan
    if plan.data.unsaid and not plan.data.label_channels:
        raise ConfigError("data", "missing, and gen.num_labels too: say what images are made from, or give a checkpoint, which shows it")
    config = _run_config(plan, request)
    files: dict[str, dict[str, Tensor]] = {}
    for line in [*plan.notes, *(weights.notes if weights else [])]:
        request.report(line)
    if weights is not None:
        files["model"] = weights.model
        if weights.average is not None:
            rates = config.train.ema_rates or (_UNSAID_RATE,)
            # An average that is there begins no more as a copy of the weights.
            config = replace(config, train=replace(config.train, ema_rates=rates, ema_start=0))
            files[f"ema-{rates[0]}"] = weights.average
            request.report(f"its moving average is the run's ema-{rates[0]}, and is used unless --weights raw is given")
    return ImportedRun(
        config=config,
        spec=plan.data.spec,
        recipe=None,
        files=files,
        flags=f"--config {request.file.name}",
        published=None,
        sources=(request.file,) if request.checkpoint is None else (request.checkpoint, request.file),
    )


_UNSAID_RATE = 0.9999  # of an average in a checkpoint whose file says that there is none


def _run_config(plan: Plan, request: ImportRequest) -> RunConfig:
    """The run's configuration. What is counted in epochs takes the data; without it the run has a length of its own, which is said."""
    path = _data_path(plan.data, request)
    data = _DATA[plan.data.kind](**plan.data.settings, path=None if path is None else str(path))
    num_images, why = None, "nobody knows"
    if plan.schedule.uses_epochs and path is not None:
        try:
            num_images = len(data.open().train)
        except DataError as error:
            why = f"cannot be counted ({error})"
    if plan.schedule.uses_epochs and num_images is None:
        warnings.warn(
            f"the file counts in epochs, and how long one is {why}: import it with --data DIR, or give triptych train "
            "--train.total-images, --train.checkpoint-every and the schedule of --optim",
            stacklevel=2,
        )
    settings = plan.schedule.run_settings(processes=request.processes, num_images=num_images)
    return RunConfig(
        model=plan.model,
        data=data,
        train=TrainConfig(**settings["train"], sample_count=_GRID),
        optim=OptimConfig(**settings["optim"]),
        log=LogConfig(**settings["log"]),
    )


def check_data(file: Path) -> None:
    """Raises ConfigError for a YAML file that cannot be used, and DataError where its data are not there."""
    with _about_yaml(file):
        root = plan_of(read_yaml(file)).data.train_root
    if root is None or not user_path(root).exists():
        found = "names no data" if root is None else f"has its data in {root}, which is not here"
        raise DataError(f"{file} {found} (data.train.roots); give the folder as --data.path DIR")


def _data_path(data: PlannedData, request: ImportRequest) -> Path | None:
    """Where the data lie: what is asked for, else what the file says, where that is there."""
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
    if data.kind == "unpaired_few_shot_images":  # both types of data are of the same classes
        if held is not None:
            request.report(f"data.val.roots: {held} is not used; classes of {root} are held out by --data.held-out")
        return root / "images_content" if (root / "images_content").is_dir() else root
    beside = held is not None and held.parent == root.parent and held_out_folder([held.name]) is not None
    if root.name == TRAINING and beside:
        return root.parent
    if held is not None:
        request.report(f"data.val.roots: {held} is not used: it is not beside {root}, as train and val are; a share is held out")
    return root
