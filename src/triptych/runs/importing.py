"""What the weights of other programs are: each program has an importer, which reads its files and says of which run they are."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from triptych.core.batch import DataSpec
from triptych.core.errors import CheckpointError, ConfigError, DataError, nearest
from triptych.core.model import Model
from triptych.core.reading import user_path
from triptych.data.config import DataConfig
from triptych.data.naming import TRAINING, held_out_folder
from triptych.data.pairs_config import FewShotDataConfig, PairedDataConfig, UnpairedDataConfig
from triptych.data.source import open_data
from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
from triptych.engine.ema import averaged_state
from triptych.flows.glow import Glow, GlowConfig
from triptych.interop.flags import SOURCES, Source, checked_flags, command_line, parse_flags
from triptych.interop.glow import weights as glow
from triptych.interop.glow.flags import FLAGS, check_positive, second_rate, words
from triptych.interop.glow.published import PublishedGlow
from triptych.interop.glow.published import published as published_glow
from triptych.interop.guided_diffusion.flags import Program, all_flags
from triptych.interop.guided_diffusion.published import Published, recognise
from triptych.interop.guided_diffusion.shapes import shape_flags
from triptych.interop.guided_diffusion.weights import Described, describe, filled_model
from triptych.interop.imaginaire.data import DataKind, PlannedData
from triptych.interop.imaginaire.settings import Plan, plan_of
from triptych.interop.imaginaire.weights import run_weights
from triptych.interop.imaginaire.yaml_file import YamlFile, read_yaml
from triptych.interop.tensor_bundle import bundle_files, read_variables
from triptych.interop.weight_files import read_weights
from triptych.recipes.catalogue import load_recipe, recipes
from triptych.recipes.config import RunConfig

_GLOW_PROCESSES = 8  # of the original's recipes; a checkpoint does not say, and the rate of its averages depends on it


@dataclass(frozen=True)
class Request:
    """What is to be imported; see `import_run`."""

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
class Imported:
    """What an importer found."""

    config: RunConfig
    spec: DataSpec
    recipe: str | None
    "The recipe whose settings of training the run has; None: of none."
    files: dict[str, dict[str, Tensor]]
    "Of the run's checkpoint: model, and ema-RATE; none where there are no weights but settings alone."
    flags: str
    "All flags of the original that say what the model is, the defaults included."
    published: str | None
    "Name of the published file that it is."
    sources: tuple[Path, ...]
    "The files that were read, the one that was named first."


def imported(request: Request) -> Imported:
    """What the file of a request is. Raises ConfigError for flags and the other settings, CheckpointError for files."""
    if request.program not in SOURCES:
        known = f"{', '.join(SOURCES[:-1])} or {SOURCES[-1]}"
        raise ConfigError("program", f"got {request.program!r}, expected {known}{nearest(str(request.program), SOURCES)}")
    if request.program == "imaginaire":
        return _imaginaire(request)
    for name, otherwise in (("checkpoint", None), ("data", None), ("processes", 1)):
        if getattr(request, name) != otherwise:
            raise ConfigError(name, f"goes with imaginaire, not with {request.program}: leave it out")
    return _glow(request) if request.program == "glow" else _diffusion(request, request.program)


class about:
    """Within it a CheckpointError says which file it is about, unless it names it already."""

    def __init__(self, file: str | Path) -> None:
        self._file = str(file)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, CheckpointError) and self._file not in str(error):
            raise CheckpointError(f"{self._file}: {error}") from None


# guided-diffusion and improved-diffusion -----------------------------------------------------------------------------------


def _diffusion(request: Request, program: Program) -> Imported:
    if request.ema_rate is not None:
        raise ConfigError("ema_rate", f"{program}'s averages are files of their own, whose names say the rate: give ema")
    weights = read_weights(request.file)
    with about(request.file):
        given, program, published = _flags_of(weights, request, program)
        described = describe(weights, given, program=program)
        config, recipe = _run_config(described, published)
        files = {"model": dict(filled_model(config.model, described.spec, weights).state_dict())}
    if request.ema is not None:
        rate = _rate(request.ema)
        config = replace(config, train=replace(config.train, ema_rates=(rate,)))
        with about(request.ema):
            files[f"ema-{rate}"] = _averaged(filled_model(config.model, described.spec, read_weights(request.ema)))
    return Imported(
        config=config,
        spec=described.spec,
        recipe=recipe,
        files=files,
        flags=command_line(described.flags),
        published=None if published is None else published.name,
        sources=(request.file,),
    )


def _averaged(model: Model) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in averaged_state(model).items()}


def _flags_of(weights: Mapping[str, Tensor], request: Request, program: Program) -> tuple[Mapping[str, Any], Program, Published | None]:
    """The flags of a file and their program: those given, or those of the published file that it is."""
    known, file = all_flags(program), request.file
    if request.flags is not None:
        return parse_flags(request.flags, known) if isinstance(request.flags, str) else request.flags, program, None
    found = recognise(weights, file.name)
    if found is None:
        raise ConfigError(
            "--flags",
            f"missing, for {file} is not a published file: give the flags that it was trained with; its shapes say "
            + command_line(shape_flags(weights)),
        )
    request.report(f"{file} is {found.line}")
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


# glow ------------------------------------------------------------------------------------------------------------------------


def _glow(request: Request) -> Imported:
    if request.ema is not None:
        raise ConfigError("ema", "a checkpoint of glow holds its averages itself: leave it out")
    if request.ema_rate is not None and not 0 <= request.ema_rate < 1:
        raise ConfigError("ema_rate", f"got {request.ema_rate}, expected 0 or more and below 1")
    flags = request.flags or {}
    given = parse_flags(flags, FLAGS) if isinstance(flags, str) else _glow_values(flags)
    check_positive(given)
    variables = read_variables(request.file, wanted=glow.is_of_model)
    with about(request.file):
        described, published = _described(variables, given, request)
        model = glow.from_variables(variables, described)
        config = _glow_config(model, published)
        files = {"model": {name: tensor.detach() for name, tensor in model.state_dict().items()}}
        averages = glow.averages(variables)
        if averages is None and request.ema_rate is not None:
            raise ConfigError("ema_rate", "the checkpoint has no moving averages of all its weights: leave it out")
        if averages is not None:
            rate = _glow_rate(given) if request.ema_rate is None else request.ema_rate
            config = replace(config, train=replace(config.train, ema_rates=(rate,)))
            files[f"ema-{rate}"] = _averaged(glow.from_variables(averages, described))
            request.report(f"its moving averages are the run's ema-{rate}, and are used unless --weights raw is given")
    return Imported(
        config=config,
        spec=_glow_spec(model),
        recipe=None if published is None else published.recipe,
        files=files,
        flags=words({name: value for name, value in described.items() if name in FLAGS}),
        published=None if published is None else published.name,
        sources=tuple(bundle_files(request.file)),
    )


def _glow_values(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags, checked; n_y, which is no flag of the command line, is left as it is."""
    others = {name: value for name, value in flags.items() if name == "n_y"}
    return checked_flags({name: value for name, value in flags.items() if name not in others}, FLAGS) | others


def _described(variables: glow.Variables, given: Mapping[str, Any], request: Request) -> tuple[dict[str, Any], PublishedGlow | None]:
    """All flags of the model, and the published checkpoint that it is."""
    published = published_glow(request.file)
    if published is None:
        return glow.described(variables, given), None
    try:
        described = glow.described(variables, {**published.flags, **given})
    except ConfigError:
        request.report(f"{request.file} has the name of the published {published.name}, but another model")
        return glow.described(variables, given), None
    request.report(f"{request.file} is the published {published.name}")
    return described, published


def _glow_rate(given: Mapping[str, Any]) -> float:
    return second_rate({name: flag.default for name, flag in FLAGS.items()} | dict(given), world_size=_GLOW_PROCESSES)


def _glow_spec(model: Glow) -> DataSpec:
    channels, image_size, _ = model.image_shape
    return DataSpec(image_size=image_size, channels=channels, num_classes=model.num_classes)


def _glow_config(model: Glow, published: PublishedGlow | None) -> RunConfig:
    """The model with the training, the data and the settings without a trace in the weights of its recipe, or of the one most like it."""
    spec = _glow_spec(model)
    recipe = _most_like(model.config, spec) if published is None else load_recipe(published.recipe)
    assert isinstance(recipe.model, GlowConfig)
    untold = {name: getattr(recipe.model, name) for name in ("memory", "init_images", "sampling")}
    labels = "none" if spec.num_classes is None else "auto"
    # From wherever the images are: the recipe that is most like it may be one of another data set.
    data = replace(recipe.data, source="auto", image_size=spec.image_size, channels=1 if spec.channels == 1 else 3, labels=labels)
    return replace(recipe, model=replace(model.config, **untold), data=data)


def _most_like(model: GlowConfig, spec: DataSpec) -> RunConfig:
    """The recipe of Glow with the nearest image size, then that has classes where this model has, then with the most of its settings."""

    def differences(recipe: RunConfig) -> tuple[float, bool, int]:
        size = abs(math.log2(recipe.data.image_size / spec.image_size))
        names = [field.name for field in fields(model)]
        other = [name for name in names if getattr(recipe.model, name) != getattr(model, name)]
        return size, (recipe.data.labels == "none") != (spec.num_classes is None), len(other)

    found = [load_recipe(name) for name, recipe in recipes().items() if recipe.family == "flows"]
    # The built-in digits are no one's data: a run of theirs would train without being told on what.
    return min((recipe for recipe in found if isinstance(recipe.model, GlowConfig) and recipe.data.source != "digits"), key=differences)


# imaginaire -------------------------------------------------------------------------------------------------------------------

_DATA: dict[DataKind, type[DataConfig]] = {
    "paired_images": PairedDataConfig,
    "unpaired_images": UnpairedDataConfig,
    "unpaired_few_shot_images": FewShotDataConfig,
}
_GRID = 16  # translations of a grid during training


def _imaginaire(request: Request) -> Imported:
    """The settings of a YAML file and, where a checkpoint is given, its weights."""
    for name in ("flags", "ema", "ema_rate"):
        if getattr(request, name) is not None:
            raise ConfigError(name, "a YAML file of imaginaire says it all: leave it out")
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


def _from_yaml(file: YamlFile, request: Request) -> Imported:
    plan, weights = plan_of(file), None
    for line in plan.warnings:
        warnings.warn(line, stacklevel=2)
    if request.checkpoint is not None:
        with about(request.checkpoint):
            weights = run_weights(request.checkpoint, plan, file)
        plan = weights.plan
    if plan.data.unsaid and not plan.data.label_channels:
        raise ConfigError("data", "missing, and gen.num_labels too: say what images are made from, or give a checkpoint, which shows it")
    config = _imaginaire_config(plan, request)
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
    return Imported(
        config=config,
        spec=plan.data.spec,
        recipe=None,
        files=files,
        flags=f"--config {request.file.name}",
        published=None,
        sources=(request.file,) if request.checkpoint is None else (request.checkpoint, request.file),
    )


_UNSAID_RATE = 0.9999  # of an average in a checkpoint whose file says that there is none


def _imaginaire_config(plan: Plan, request: Request) -> RunConfig:
    """The run's configuration. What is counted in epochs takes the data; without it the run has a length of its own, which is said."""
    path = _imaginaire_path(plan.data, request)
    data = _DATA[plan.data.kind](**plan.data.settings, path=None if path is None else str(path))
    num_images, why = None, "nobody knows"
    if plan.schedule.uses_epochs and path is not None:
        try:
            num_images = len(open_data(data).train)
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


def check_imaginaire_data(file: Path) -> None:
    """Raises ConfigError for a YAML file that cannot be used, and DataError where its data are not there."""
    with _about_yaml(file):
        root = plan_of(read_yaml(file)).data.train_root
    if root is None or not user_path(root).exists():
        found = "names no data" if root is None else f"has its data in {root}, which is not here"
        raise DataError(f"{file} {found} (data.train.roots); give the folder as --data.path DIR")


def _imaginaire_path(data: PlannedData, request: Request) -> Path | None:
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
