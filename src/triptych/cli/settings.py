"""Settings as flags: tyro parses them and writes their help; what it refuses is explained here in one line.

tyro is given plain forms that mirror the configurations, section by section, with the values of a recipe as defaults. So a
section is always of the class that the recipe chose, and validation happens once, in `Config.updated`, with the full name of
the setting in the message.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import io
import itertools
import operator
import re
import textwrap
import tomllib
import types
import typing
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from triptych.cli.synonyms import hint
from triptych.core.config import Config, field_types, holds_section
from triptych.core.errors import ConfigError, nearest, printable
from triptych.core.given import given_place
from triptych.core.reading import parsed_json, read_regular
from triptych.runs.loading import Loading, WeightsChoice

_MOST_BYTES = 2**24  # of a file of settings

C = TypeVar("C", bound=Config)
S = TypeVar("S", bound=Config)


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag, the dotted name of the setting it sets, and the setting's type."""

    name: str
    setting: str
    annotation: Any
    default: Any


def parse(arguments: Sequence[str], *, prog: str, description: str, options: C, settings: S) -> tuple[C, S]:
    """The options of the verb and the settings, both with the flags in `arguments` laid over them.

    Prints the help and exits when that is asked for. Raises ConfigError, naming the flag, for anything it cannot use.
    """
    flags = {flag.name: flag for part in (options, settings) for flag in flags_of(part)}
    assert len(flags) == len(list(flags_of(options))) + len(list(flags_of(settings))), "a setting has the name of an option of the verb"
    words = list(_plain_booleans(arguments, flags))
    if "-h" in words or "--help" in words:
        page = _form("Flags", options, settings, names=flags, shown=True)
        tyro.cli(page, prog=printable(prog), description="\n".join(map(printable, description.splitlines())), args=["--help"])
    loose, groups = _grouped(words, flags)
    given = [(flags.get(_canonical(name, flags)), values) for name, values in groups]
    lacking = any(flag is None or _lacks_values(values, flag.annotation) for flag, values in given)
    form = _form("Flags", options, settings, names={flag.name for flag, _ in given if flag is not None})
    filled = None if loose or lacking else _quietly(form, list(_plain_values(words, flags)))
    if filled is None:
        raise diagnose(words, flags, dict(tables_of(settings)) if "--config" in flags else {})
    try:
        found = options.updated(_changes(filled, options)), settings.updated(_changes(filled, settings))
    except ConfigError as error:
        raise error.renamed(flag_name) from None
    for (name, values), (flag, _) in zip(groups, given, strict=True):
        if values == [""] and flag is not None and {str, Path} & set(_union(flag.annotation)):
            raise ConfigError(name, f"got '', expected {allowed(flag.annotation)}; leave {name} out for none")
        if flag is not None and flag.name in _WRITTEN:
            given_place(values[-1], name)
    return found


_WRITTEN = ("--run", "--out", "--keep-samples", "--page")
"""Flags that name what a verb writes, which is on this machine."""


def without_flags(arguments: Sequence[str], options: Config, names: Collection[str]) -> list[str]:
    """The arguments without the flags of these names, which are among those of `options`, nor their values."""
    flags = {flag.name: flag for flag in flags_of(options)}
    loose, groups = _grouped(list(_plain_booleans(arguments, flags)), flags)
    kept = list(loose)
    for name, values in groups:
        if _canonical(name, flags) not in names:
            kept += [f"{name}={values[0]}"] if len(values) == 1 and values[0].startswith("-") else [name, *values]
    return kept


def read_config_file(path: Path) -> dict[str, Any]:
    """The settings in a TOML or JSON file; the text "None" stands for None, as on the command line."""
    if path.suffix not in (".toml", ".json"):
        raise ConfigError("--config", f"got {str(path)!r}, expected a file that ends with .toml or .json")
    if not path.is_file():
        raise ConfigError("--config", f"there is no file {str(path)!r}")
    try:
        text = read_regular(path, most=_MOST_BYTES).decode("utf-8-sig")
        found = _without_text_none(tomllib.loads(text) if path.suffix == ".toml" else parsed_json(text, once=True))
    except OSError as error:
        raise ConfigError("--config", f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError("--config", f"{path} is not {path.suffix[1:].upper()}: {reason}") from None
    if isinstance(found, dict) and {"format", "spec", "model"} <= found.keys():
        raise ConfigError("--config", f"{path} is a run's own file; give one of settings, or go on with the run by its name")
    return found


def flag_name(setting: str) -> str:
    """The flag that sets the setting of that dotted name."""
    return f"--{setting.replace('_', '-')}" if setting else ""


def flags_of(settings: Config, *, section: str = "") -> Iterator[Flag]:
    """A flag for every setting; sections that are None and lists of sections have none."""
    for name, annotation in field_types(type(settings)).items():
        value = getattr(settings, name)
        if isinstance(value, Config):
            yield from flags_of(value, section=f"{section}{name}.")
        elif (plain := _plain_type(annotation)) is not None:
            yield Flag(flag_name(section + name), section + name, plain, value)


def tables_of(settings: Config, *, section: str = "") -> Iterator[tuple[str, str]]:
    """The settings that are, or may be, tables of a file alone, as flags would name them, and how a file writes each."""
    for name, annotation in field_types(type(settings)).items():
        value = getattr(settings, name)
        if isinstance(value, Config):
            yield from tables_of(value, section=f"{section}{name}.")
        elif holds_section(annotation):
            several = isinstance(value, tuple)
            yield flag_name(section + name), f"[[{section}{name}]]" if several else f"[{section}{name}]"


@functools.cache
def field_docs(cls: type[Config]) -> dict[str, str]:
    """The docstring under each field, those of the bases included; none for a class whose source is not there."""
    docs: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        try:
            source = inspect.getsource(owner)
        except OSError:
            continue
        (tree,) = ast.parse(textwrap.dedent(source)).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in itertools.pairwise(tree.body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                docs[ast.unparse(field.target)] = inspect.cleandoc(str(below.value.value))
    return {field.name: docs[field.name] for field in dataclasses.fields(cls) if field.name in docs}


def diagnose(arguments: Sequence[str], flags: dict[str, Flag], tables: dict[str, str]) -> ConfigError:
    """The error in `arguments`, which tyro refused: the first flag that is unknown or that does not take its values.

    `tables`: see `tables_of`; none where the command reads no file of settings.
    """
    loose, groups = _grouped(arguments, flags)
    if loose:
        return ConfigError("", f"unexpected {' '.join(loose)!r}; settings are given as --name value")
    for name, values in groups:
        flag = flags.get(_canonical(name, flags))
        if flag is None:
            return ConfigError(name, _in_a_file(name, tables) or f"unknown setting{hint(name, flags)}")
        default = True if flag.annotation is bool else dataclasses.MISSING  # without one, tyro wants a value after the flag
        one = dataclasses.make_dataclass("One", [("value", flag.annotation, dataclasses.field(default=default))], kw_only=True)
        negated = flag.name != name and _canonical(name, flags) != name.replace("_", "-")
        words = [word for value in values for word in _plain_words(value, flag.annotation)]
        if _lacks_values(values, flag.annotation) or _quietly(one, ["--no-value" if negated else "--value", *words]) is None:
            if len(values) > 1 and str in _union(flag.annotation):
                return ConfigError(
                    name, f"got {len(values)} texts ({' '.join(values)}), expected one; with spaces it needs quotation marks"
                )
            got = f"got {' '.join(values)!r}" if values else "the value is missing"
            return ConfigError(name, f"{got}, expected {allowed(flag.annotation)}{_nearest_choice(values, flag.annotation)}")
    return ConfigError("", f"cannot use {' '.join(arguments)!r}")


def _in_a_file(name: str, tables: dict[str, str]) -> str:
    """What is said of a flag that names a table, or a setting in one; nothing of any other."""
    for table, form in tables.items():
        if re.match(rf"{re.escape(table)}([.\[]|$)", name.replace("_", "-")):
            return f"no flag, but a table in a file of settings: write {form} and below it NAME = VALUE, and give the file by --config"
    return ""


def allowed(annotation: Any) -> str:
    """What may be written after a flag of that type."""
    plain = {int: "a whole number", float: "a number", bool: "nothing, True or False", str: "text", Path: "a path"}
    if annotation in plain:
        return plain[annotation]
    items = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(allowed(item) for item in items if item is not type(None))
    if origin is typing.Literal:
        return "one of " * (len(items) > 1) + ", ".join(map(str, items))
    if origin is tuple and items[-1:] == (Ellipsis,):
        return f"one value or several (A,B or A B), each {allowed(items[0])}"
    if origin is tuple:
        return f"{len(items)} values, each {' or '.join(dict.fromkeys(map(allowed, items)))}"
    return str(getattr(annotation, "__name__", annotation))


def whole_number(text: str) -> str:
    """The digits of a whole number that is written as 1e6, 2k, 1.5M, 3G or 1_000; any other text as it is."""
    match = re.fullmatch(r"([0-9][0-9_]*)(?:\.([0-9]+))?(?:[eE]\+?([0-9]{1,2}))?([kKMG]?)", text)
    if match is None:
        return text
    whole, part, exponent, unit = (group or "" for group in match.groups())
    places = int(exponent or 0) + {"": 0, "K": 3, "M": 6, "G": 9}[unit.upper()]
    part = part.rstrip("0")
    return str(int(whole + part.ljust(places, "0"))) if len(part) <= places else text


def _form(title: str, *parts: Config, names: Collection[str], shown: bool = False, section: str = "") -> type:
    """A plain dataclass of those settings of `parts` whose flags are in `names`, with values as defaults and docstrings as help.

    tyro takes a tenth of a second for all settings of a recipe. `shown`: for a page of help, on which the values must not steer
    the terminal. `section`: what stands before the names of these parts' settings.
    """
    fields: list[tuple[str, Any, Any]] = []
    for part in parts:
        docs = field_docs(type(part))
        for field, annotation in _listed(type(part)):
            value, setting = getattr(part, field), section + field
            if isinstance(value, Config):
                if any(name.startswith(flag_name(f"{setting}.")) for name in names):
                    inner = _form(f"{type(value).__name__}Form", value, names=names, shown=shown, section=f"{setting}.")
                    help_text = Annotated[inner, tyro.conf.arg(help=docs.get(field))]
                    fields.append((field, help_text, dataclasses.field(default_factory=inner)))
            elif (plain := _plain_type(annotation)) is not None and flag_name(setting) in names:
                default = _printable(value) if shown else value
                told = tyro.conf.arg(help=docs.get(field), help_behavior_hint=_default_shown(value, docs.get(field, "")))
                fields.append((field, Annotated[plain, told], dataclasses.field(default=default)))
    return dataclasses.make_dataclass(title, fields, kw_only=True)


def _default_shown(value: Any, told: str) -> str | None:
    """What the help says of a default in tyro's place; None: what tyro says. `told`: the help before it."""
    said = "(default: None)" if value == () else None  # an empty list, which tyro shows as nothing; None empties one
    return "(no default)" if value is None and told.startswith("Required") else said


def _listed(cls: type[Config]) -> list[tuple[str, Any]]:
    """The fields and their types, those that all verbs share after a verb's own."""
    shared = field_types(Loading) if issubclass(cls, WeightsChoice) else ()
    return sorted(field_types(cls).items(), key=lambda named: named[0] in shared)


def _printable(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_printable, value))
    return printable(value) if isinstance(value, str) else value


def _changes(filled: Any, settings: Config) -> dict[str, Any]:
    """What the filled-in form says other than `settings`."""
    changes: dict[str, Any] = {}
    for field in field_types(type(settings)):
        before = getattr(settings, field)
        if not hasattr(filled, field):
            continue
        if isinstance(before, Config):
            inner = _changes(getattr(filled, field), before)
            changes |= {field: inner} if inner else {}
        elif getattr(filled, field) != before:
            changes[field] = getattr(filled, field)
    return changes


def _quietly(form: type, arguments: Sequence[str]) -> Any:
    """The filled-in form, or None when tyro refuses the arguments; its own message is dropped."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            return tyro.cli(form, args=list(arguments), add_help=False)
        except SystemExit:
            return None


def _plain_booleans(arguments: Sequence[str], flags: dict[str, Flag]) -> Iterator[str]:
    """The arguments with booleans as tyro writes them: `--flag` and `--no-flag`; with a value where they may be None too."""
    words = deque(part for whole in arguments for part in _split_boolean(whole, flags))
    while words:
        word = words.popleft()
        flag = flags.get(_canonical(word, flags)) if _is_flag(word) else None
        following = words[0].lower() if words and not _is_flag(words[0]) else None
        if flag is None or not _is_boolean(flag):
            yield word
        elif following is None:
            yield _spelled(flag, yes=word.replace("_", "-") == flag.name)
        elif following in ("true", "false") and word.replace("_", "-") == flag.name:
            yield _spelled(flag, yes=words.popleft().lower() == "true")
        else:
            yield word  # None behind it, or a mistake


def _spelled(flag: Flag, *, yes: bool) -> str:
    if flag.annotation is not bool:
        return f"{flag.name}={yes}"
    head, dot, last = flag.name.rpartition(".")
    return flag.name if yes else f"{head}.no-{last}" if dot else f"--no-{flag.name[2:]}"


def _is_boolean(flag: Flag) -> bool:
    return bool in _union(flag.annotation)


def _split_boolean(argument: str, flags: dict[str, Flag]) -> list[str]:
    name, equals, value = argument.partition("=")
    flag = flags.get(name.replace("_", "-"))
    return [name, value] if equals and flag is not None and _is_boolean(flag) else [argument]


def _lacks_values(values: Sequence[str], annotation: Any) -> bool:
    """Whether a list is given no value, or none between two commas: that is a slip, for None empties it."""
    return _is_open_list(annotation) and (not values or "" in (word for value in values for word in _plain_words(value, annotation)))


def _plain_values(arguments: Sequence[str], flags: dict[str, Flag]) -> Iterator[str]:
    """The arguments with lists and whole numbers as tyro takes them."""
    flag: Flag | None = None
    for argument in arguments:
        if not _is_flag(argument):
            yield from [argument] if flag is None else _plain_words(argument, flag.annotation)
            continue
        name, equals, value = argument.partition("=")
        flag = flags.get(_canonical(name, flags))
        words = [value] if flag is None or not equals else _plain_words(value, flag.annotation)
        yield from [argument] if words == [value] else [name, *words]


def _plain_words(value: str, annotation: Any) -> list[str]:
    """A value as tyro takes it: `3,7` as two words and None as none, where a list is meant, `2k` as 2000 where a number is."""
    options = _union(annotation)
    lists = [typing.get_args(option) for option in options if typing.get_origin(option) is tuple]
    if value == "None" and _is_open_list(annotation) and type(None) not in options:
        return []
    words = [word.strip() for word in value.split(",")] if lists else [value]
    types_of_one = [*options, *(item for items in lists for item in items)]
    return [whole_number(word) for word in words] if int in types_of_one and str not in types_of_one else words


def _is_open_list(annotation: Any) -> bool:
    """Whether any number of values is taken."""
    return any(typing.get_origin(option) is tuple and Ellipsis in typing.get_args(option) for option in _union(annotation))


def _union(annotation: Any) -> tuple[Any, ...]:
    return typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, types.UnionType) else (annotation,)


def _is_flag(argument: str) -> bool:
    return argument.startswith("--") or (argument.startswith("-") and argument[1:2].isalpha())


def _grouped(arguments: Sequence[str], flags: dict[str, Flag]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The arguments before the first flag, and each flag with its values."""
    loose: list[str] = []
    groups: list[tuple[str, list[str]]] = []
    for argument in arguments:
        if _is_flag(argument):
            name, equals, value = argument.partition("=")
            groups.append((name, [value] if equals else []))
        else:
            (groups[-1][1] if groups else loose).append(argument)
    return loose, groups


def _canonical(name: str, flags: dict[str, Flag]) -> str:
    """The name as it is in `flags`: with hyphens, and without the "no-" of a boolean."""
    name = name.replace("_", "-")
    head, dot, last = name.rpartition(".")
    positive = f"{head}.{last.removeprefix('no-')}" if dot else f"--{name.removeprefix('--no-').removeprefix('--')}"
    return name if name in flags or positive not in flags or not _is_boolean(flags[positive]) else positive


def _nearest_choice(values: list[str], annotation: Any) -> str:
    items = typing.get_args(annotation)
    choices = items if typing.get_origin(annotation) is typing.Literal else [c for item in items for c in typing.get_args(item)]
    return nearest(" ".join(values), [choice for choice in choices if isinstance(choice, str)])


def _plain_type(annotation: Any) -> Any:
    """What a flag can say of a setting: a number where that or a section may stand; None of sections and lists of them alone."""
    options = _union(annotation)
    plain = [option for option in options if not holds_section(option)]
    if len(plain) == len(options):
        return annotation
    return None if set(plain) <= {type(None)} else functools.reduce(operator.or_, plain)


def _without_text_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_text_none(item) for name, item in value.items()}
    if isinstance(value, list):  # of tables; a text among others stays
        return [_without_text_none(item) if isinstance(item, dict) else item for item in value]
    return None if value == "None" else value
