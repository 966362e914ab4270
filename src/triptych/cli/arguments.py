"""What the verbs that take a run have in common."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from triptych.cli.output import show
from triptych.cli.processes import is_first_process
from triptych.core.address import is_address
from triptych.core.config import Config
from triptych.core.errors import ConfigError, DataError
from triptych.core.reading import user_path
from triptych.data.patterns import exists
from triptych.engine.run_directory import RunDirectory, run_and_checkpoint

if TYPE_CHECKING:
    from triptych.cli.settings import Flag
    from triptych.runs import Run


What = Literal["run", "run or images", "images", "folder"]
_EXPECTED = {"run": "the run directory is", "run or images": "a run or images are", "images": "the images are", "folder": "the folder is"}

_MOST_MODELS = 3  # that a message names


def require_argument(arguments: Sequence[str], what: What, *, usage: str) -> None:
    """Raises ConfigError where the first of the arguments is missing, is empty, as a variable that is not set, or is an option."""
    if not arguments:
        raise ConfigError("", f"no {what} given; usage: {usage}")
    if not arguments[0] or arguments[0].startswith("-"):
        raise ConfigError("", f"got {arguments[0]!r} where {_EXPECTED[what]} expected; usage: {usage}")


def first_argument(arguments: Sequence[str], what: What = "run", *, usage: str) -> str:
    """A verb's first argument; raises ConfigError as `require_argument` does."""
    require_argument(arguments, what, usage=usage)
    return arguments[0]


def run_argument(arguments: Sequence[str], *, usage: str) -> str:
    """The run directory, a verb's first argument; raises ConfigError as `first_argument` does, CheckpointError where nothing is there."""
    run = first_argument(arguments, usage=usage)
    if not asks_for_help(arguments):
        require_run(run)
    return run


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether a page of help is all that is wanted."""
    return not {"-h", "--help"}.isdisjoint(arguments)


def require_run(directory: str) -> None:
    """Raises CheckpointError where there is no run: at once, for to look closer takes PyTorch."""
    run = RunDirectory(user_path(directory))
    if not run.exists():
        run.read_config()


def require_images(images: str | None, *, note: str = "") -> None:
    """Raises DataError where there is no file or folder of that name; as early as `require_run`. `note` ends the message.

    A pattern of several files is looked at later, and so is what lies at an address.
    """
    if is_address(images):
        return
    if images not in (None, "", "None") and not exists(path := user_path(images)):
        raise DataError(f"{path}: does not exist{note}")


def flag_value(flag: str, arguments: Sequence[str]) -> str | None:
    """The value that a flag is given; the last one, where there are several, as tyro has it."""
    value = None
    for position, argument in enumerate(arguments):
        if argument == flag:
            value = next(iter(arguments[position + 1 :]), None)
        elif argument.startswith(f"{flag}="):
            value = argument.partition("=")[2]
    return value


def given_flag(flags: Iterable[Flag], arguments: Sequence[str]) -> str | None:
    """The first of some flags that a command line has; None: it has none of them."""
    words = {argument.partition("=")[0].replace("--no-", "--", 1).replace("_", "-") for argument in arguments}
    return next((flag.name for flag in flags if flag.name in words), None)


def flag_words(flag: str, arguments: Sequence[str]) -> list[str]:
    """The values of a list that a flag is given (A,B or A B); those of the last one, where there are several."""
    words: list[str] = []
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == flag:
            rest = arguments[position + 1 :]
            following = list(rest[: next((k for k, word in enumerate(rest) if word.startswith("-")), len(rest))])
            words = [word.strip() for given in ([value] if equals else following) for word in given.split(",")]
    return words


@contextmanager
def named_as_flags(*parts: Config) -> Iterator[None]:
    """Within it a ConfigError names the flags of the settings of `parts` that it is about."""
    from triptych.cli.settings import flag_name, flags_of

    settings = {flag.setting for part in parts for flag in flags_of(part)}
    try:
        yield
    except ConfigError as error:
        raise error.renamed(lambda name: flag_name(name) if name in settings else name) from None


@contextmanager
def naming_models(options: Config, settings: Config, *, of: str) -> Iterator[None]:
    """Within it an error about a setting that only other models have says which ones, and what this run's has.

    `settings`: of the run's model, that may be given beside the `options` of the verb; `of`: what they are settings of, in words.
    """
    from triptych.cli.settings import flags_of

    try:
        yield
    except ConfigError as error:
        own, flag = [each.name for each in flags_of(settings)], error.setting.replace("_", "-")
        if flag in (*own, *(each.name for each in flags_of(options))) or not (others := _models_with(flag)):
            raise
        some = f"{', '.join(others[:_MOST_MODELS])}{' and others' if len(others) > _MOST_MODELS else ''}"
        raise ConfigError(error.setting, f"a setting of {some}, not of this run's {of}, which has {', '.join(own) or 'none'}") from None


def _models_with(flag: str) -> list[str]:
    """The models of recipes whose samples, or translations, have a setting of that flag."""
    from triptych.cli.settings import flags_of
    from triptych.recipes.catalogue import load_recipe, recipes

    found = dict[str, None]()
    for model in (load_recipe(name).model for name in recipes()):
        parts = (getattr(model, part, None) for part in ("sampling", "translation"))
        if any(flag == each.name for part in parts if isinstance(part, Config) for each in flags_of(part)):
            found[type(model).__name__.removesuffix("Config")] = None
    return list(found)


def at_checkpoint(arguments: Sequence[str]) -> list[str]:
    """The arguments of a verb; RUN/checkpoints/512000 in the place of the run becomes RUN --checkpoint 512000."""
    words = list(arguments)
    run, checkpoint = run_and_checkpoint(words[0] if words else "")
    if checkpoint is None:
        return words
    if any(argument.partition("=")[0] == "--checkpoint" for argument in words):
        raise ConfigError("--checkpoint", f"got one beside {words[0]!r}, which is a checkpoint already; leave one of them out")
    return [str(run), *words[1:], "--checkpoint", checkpoint]


def next_command(run: Run, *, trained: bool) -> str | None:
    """What to do with a run that has weights: a line with the command; None where there is nothing but to train. `trained`: on its data."""
    place, verbs = shlex.quote(str(run.directory)), run.config.model.verbs()
    if "translate" in verbs:
        held_out = f"triptych translate {place} --held-out, or " if trained else ""
        style = " --style IMAGES" if getattr(run.outline, "styles", "none") == "required" else ""
        return f"translate with it: {held_out}triptych translate {place} INPUT{style} --out DIR"
    if not verbs.isdisjoint(("sample", "upsample")):
        return f"draw from it: triptych sample {place}{' --base IMAGES' if 'upsample' in verbs else ''}"
    if "guide" in verbs:
        return f"lead a run by it: triptych sample RUN --guide {place}"
    return None


def finished(*lines: str) -> int:
    """The exit code of a verb that has done its work: the processes part, and the first one says what was made."""
    from triptych import runs

    runs.close_world()
    for line in lines if is_first_process() else ():
        show(line)
    return 0


def measured(images: str, *lines: str) -> int:
    """The same of a verb that measures images: where these are a run, its page is made anew."""
    from triptych.report.live import refresh_page

    if is_first_process() and RunDirectory(Path(images)).exists():
        refresh_page(Path(images), show)
    return finished(*lines)


def class_names(run: Run, *, guide: str | None) -> Sequence[str] | None:
    """The names that --labels may have: those of the run's classes, or of the classifier's that leads a run without."""
    if run.spec.class_names is not None or guide is None:
        return run.spec.class_names
    from triptych import runs

    return runs.open_run(run_and_checkpoint(guide)[0]).spec.class_names


def label_values(labels: Sequence[str] | None, names: Sequence[str] | None = None) -> list[int | str] | None:
    """The labels of `--labels`, names or numbers of classes; None where there are none. What is both is a name, as of folders 1 and 2.

    `names`: those of the classes. Where one has commas, its pieces are one label: as many as make a name.
    """
    if labels is None:
        return None
    by_pieces = {tuple(map(str.strip, name.split(","))): name for name in names or () if "," in name}
    longest = max(map(len, by_pieces), default=1)
    values: list[int | str] = []
    start = 0
    while start < len(labels):
        ends = range(min(start + longest, len(labels)), start + 1, -1)
        end = next((end for end in ends if tuple(labels[start:end]) in by_pieces), start + 1)
        values.append(by_pieces.get(tuple(labels[start:end]), labels[start]))
        start = end
    return values


def strengths(pieces: Sequence[str]) -> dict[str, float | tuple[float, float]]:
    """The strengths of `--direction`, by name, a range as (from, to); raises ConfigError for anything else."""
    by_name: dict[str, float | tuple[float, float]] = {}
    parts: list[str] = []
    for piece in pieces:
        if parts and "=" not in parts[-1]:  # the name of a class may have commas
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    for part in map(str.strip, parts):
        name, _, strength = part.rpartition("=")
        try:
            ends = [float(end) for end in strength.split(":")]
        except ValueError:
            ends = []
        if not name or len(ends) not in (1, 2) or not all(map(math.isfinite, ends)):
            raise ConfigError("direction", f"got {part!r}, expected NAME=STRENGTH or NAME=FROM:TO (smiling=0.8,young=-1:1)")
        if name in by_name:
            raise ConfigError("direction", f"got {name} twice")
        by_name[name] = ends[0] if len(ends) == 1 else (ends[0], ends[1])
    return by_name
