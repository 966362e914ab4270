"""What the command lines of other programs have in common.

The flags are read and checked; they become commands of Triptych, imports first and the training or the like last; each is printed and run.
A training's flags become a configuration (interop/PROGRAM/commands.py), and that the nearest recipe with the settings that differ.
"""

from __future__ import annotations

import hashlib
import importlib
import shlex
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from triptych.cli.output import show, show_page
from triptych.cli.processes import is_first_process, num_processes
from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.interop.flags import FlagValues, OriginalFlag

if TYPE_CHECKING:
    from triptych.recipes.config import RunConfig

Commands = Iterator[list[str]]
"""Commands of Triptych, without its name."""
Values = TypeVar("Values")
"""The flags of a command line, read."""
LAUNCHERS = ("python", "python3", "mpiexec", "mpirun", "srun", "torchrun", "horovodrun")


def run_script(
    arguments: Sequence[str],
    *,
    usage: str,
    flags: dict[str, OriginalFlag],
    several: str,
    read: Callable[[Sequence[str]], Values],
    commands: Callable[[Values], Commands],
    instead: Mapping[str, str] | None = None,
) -> int:
    """The exit code of the last command that an original's train.py becomes; 2 and its usage without arguments.

    `several`: how ours runs on several processes. `read`: the flags, checked; `commands`: what they become. `instead`: what the original's
    other scripts are here.
    """
    if not arguments:
        show_page(usage, error=True)
        return 2
    if "-h" in arguments or "--help" in arguments:
        show_page(f"{usage}\n\n{flag_list(flags)}")
        return 0
    arguments = without_python(arguments, begin="the flags", several=several)
    if arguments[0].endswith(".py"):
        script = Path(arguments[0]).name
        if script != "train.py":
            raise ConfigError("", f"got {arguments[0]!r}, expected train.py{(instead or {}).get(script, '')}")
        arguments = arguments[1:]
    values = read(arguments)
    return run_all(lambda: commands(values))


def run_all(commands: Callable[[], Commands]) -> int:
    """The exit code of the last command; the others are imports, which the first of several processes runs while all others wait."""
    if num_processes() == 1:
        code = 0
        for command in commands():
            code = _run(command)
            if code:
                break
        return code
    from triptych.engine.distributed import open_world

    def prepared() -> list[str]:
        *before, last = commands()
        for command in before:
            _run(command)
        return last

    return _run(open_world().on_main(prepared))


def _run(command: list[str]) -> int:
    """Prints a command and runs it; gives its exit code."""
    from triptych.cli.main import VERBS

    if is_first_process():
        show(f"triptych {shlex.join(command)}")
    return importlib.import_module(VERBS[command[0]].module).main(command[1:])


def note(text: str) -> None:
    """Says something about what the command line has become."""
    if is_first_process():
        show(f"triptych: note: {text}", error=True)


def without_python(arguments: Sequence[str], *, begin: str, several: str) -> Sequence[str]:
    """A copied command line without `python`; a ConfigError for another launcher says how to `begin`, and how `several` processes run."""
    if not arguments or arguments[0] not in LAUNCHERS:
        return arguments
    if arguments[0] not in ("python", "python3") or len(arguments) < 2 or arguments[1].startswith("-"):
        got = " ".join(arguments[: 2 if arguments[0].startswith("python") else 1])
        raise ConfigError("", f"got {got!r}; begin with {begin}, for several processes so: {several} ...")
    return arguments[1:]


def flag_list(flags: dict[str, OriginalFlag]) -> str:
    """A page of help: the flags with their defaults."""
    width = max(map(len, flags)) + 4
    lines = (f"  {'--' + flag.name:{width}}{'' if flag.switch else flag.default}".rstrip() for flag in flags.values())
    return "flags of the original, with its defaults:\n" + "\n".join(lines)


def import_commands(program: str, path: str, *, words: str, setting: str) -> Generator[list[str], None, Path]:
    """Returns the run of the weights in a file; yields the command that makes it, where it is not there already.

    `path` may be a run itself. `words`: the flags that describe the model. `setting`: the flag that names the file.
    """
    if not path:
        raise ConfigError(setting, "missing: the file of the weights, or a run directory")
    if (Path(path) / "config.json").is_file():
        return Path(path)
    digest = hashlib.sha256(f"{Path(path).resolve()} {_version(Path(path))} {words}".encode()).hexdigest()[:6]
    run = Path("runs") / f"{Path(path).stem}-{digest}"
    if not (run / "config.json").is_file():
        yield ["import", program, path, "--run", str(run), *(["--flags", words] if words else [])]
    return run


def weights_to_begin(program: str, flags: FlagValues, name: str, *, words: str) -> Generator[list[str], None, list[str]]:
    """Yields the import of the weights that a training's flag names; returns the options by which `triptych train` begins with them."""
    if not flags[name]:
        return []
    run = yield from import_commands(program, flags[name], words=words, setting=f"--{name}")
    note(f"--{name} gives the weights alone; a run of Triptych goes on exactly when the same command is given again")
    return ["--init-from", str(run)]


def _version(path: Path) -> str:
    """Changes with the file: another file of the same name is another import."""
    # A checkpoint of TensorFlow goes by what its files begin with, and by their folder.
    for file in (path, Path(f"{path}.index"), *sorted(path.glob("*.index")), *sorted(path.glob("*/*.index"))):
        if file.is_file():
            stamp = file.stat()
            return f"{stamp.st_size} {stamp.st_mtime_ns}"
    return ""


def nearest_recipe(config: RunConfig, *, families: tuple[str, ...]) -> tuple[str, list[str]]:
    """The recipe of the same kind of model that needs the fewest settings to become `config`, and those settings as flags."""
    from triptych.recipes.catalogue import load_recipe, recipes

    candidates = {name: load_recipe(name) for name, recipe in recipes().items() if recipe.family in families}
    commands = {name: settings_flags(base, config) for name, base in candidates.items() if type(base.model) is type(config.model)}
    recipe = min(commands, key=lambda name: len(commands[name]))
    return recipe, commands[recipe]


def settings_flags(base: Config, target: Config) -> list[str]:
    """The flags that make `base` into `target`, which has the same sections."""
    from triptych.cli.settings import flags_of

    words: list[str] = []
    for flag in flags_of(base):
        value = attrgetter(flag.setting)(target)
        if value != flag.default:
            words += [flag.name, *(map(str, value or (None,)) if isinstance(value, tuple) else [str(value)])]
    return words
