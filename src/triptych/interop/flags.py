"""The flags of other programs' command lines: their types, and a parser of their own words, such as `--image_size 64 --class_cond True`."""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

from triptych.core.errors import ConfigError, nearest

Value = bool | int | float | str

YES, NO = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")


@dataclass(frozen=True)
class OriginalFlag:
    """A flag of the original; the type of its values is that of its default."""

    name: str
    default: Value
    group: str
    "What it is about; a command line has several groups."
    switch: bool = False
    "Whether it stands alone: its name means True."
    listed: Literal["", "whole numbers", "numbers", "signed numbers", "text"] = ""
    "What a text that is a list, separated by commas, is of; numbers are positive unless signed, and only whole ones may not be left out."

    @property
    def type(self) -> type:
        return type(self.default)


NUM_HEADS = OriginalFlag("num-heads", 16, "model")
"""No flag of SiT and DiT, where it is an argument of the network's class: for networks of sizes of one's own."""

LATENT_FLAGS = (
    OriginalFlag("latent-mean", "", "latents", listed="signed numbers"),
    OriginalFlag("latent-std", "", "latents", listed="numbers"),
    OriginalFlag("latent-scaled-to", 1.0, "latents"),
    OriginalFlag("latent-darkest", -1.0, "latents"),
)
"""Ours: how latents became samples, which is said in no file; see `programs.LatentScale`. Without them as in the originals' training."""


@dataclass(frozen=True)
class FlagValues:
    """The values of all flags of a command line, and the names of those that were given."""

    values: Mapping[str, Any]
    given: frozenset[str]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @classmethod
    def complete(cls, values: Mapping[str, Any], table: Mapping[str, OriginalFlag]) -> Self:
        """The values, with defaults for the other flags of the table."""
        return cls({name: flag.default for name, flag in table.items()} | dict(values), frozenset(values))


def parse_flags(words: str | Sequence[str], table: Mapping[str, OriginalFlag]) -> dict[str, Value]:
    """The values in a command line of the original, by flag; the last one counts where a flag is repeated.

    As there, the beginning of a name that no other flag shares stands for it. Several flags may be in one word, as shells that do not
    split variables give them. Raises ConfigError for an unknown flag (with the nearest one), a missing value and one of the wrong type.
    """
    values: dict[str, Value] = {}
    rest = _several(_split(words) if isinstance(words, str) else words)
    for word in rest:
        if not word.startswith("--"):
            raise ConfigError("flags", f"unexpected {word!r}; flags are given as --name value")
        name, equals, text = word.removeprefix("--").partition("=")
        flag = _begun(name, table)
        if flag.switch:
            if equals:
                raise ConfigError(f"--{name}", f"got {text!r}, but this flag takes no value")
            values[flag.name] = True
            continue
        value = text if equals else next(rest, None)
        if value is None or (not equals and value.startswith("--")):
            raise ConfigError(f"--{name}", "the value is missing")
        values[flag.name] = _parsed(value, flag)
    return values


def checked_flags(values: Mapping[str, Any], table: Mapping[str, OriginalFlag]) -> dict[str, Value]:
    """Python values as their flags' types (a list may stand for a text of numbers); ConfigError for an unknown flag or another type."""
    checked: dict[str, Value] = {}
    for name, value in values.items():
        flag = _named(name, table)
        if flag.listed:
            if isinstance(value, list | tuple):
                value = ",".join(map(str, value))
            elif isinstance(value, int | float) and not isinstance(value, bool):
                value = str(value)
        if flag.type is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not flag.type:
            raise ConfigError(f"--{name}", f"got {value!r}, expected {_expected(flag)}")
        checked[name] = _parsed(value, flag) if isinstance(value, str) else value
    return checked


def numbers(text: str) -> tuple[float, ...]:
    """The numbers of a text such as "1,2,2", whole ones as integers; raises ValueError for anything else. "": none."""
    parts = [float(part) for part in text.split(",")] if text.strip() else []
    return tuple(int(part) if part == int(part) else part for part in parts)


def flag_text(value: Any) -> str:
    """A value as it is written after its flag."""
    if isinstance(value, tuple | list):
        return ",".join(f"{number:g}" for number in value)
    return str(value)


def command_line(values: Mapping[str, Any]) -> str:
    """The flags as guided-diffusion's scripts take them; a value that is empty is left to its default."""
    return " ".join(f"--{name} {flag_text(value)}" for name, value in values.items() if flag_text(value) != "")


@contextmanager
def named_as_flags(names: Mapping[str, str], flags: Container[str]) -> Iterator[None]:
    """Within it a ConfigError is about the flag of its setting, if there is one. `names`: flags by a setting's last name, else alike."""
    try:
        yield
    except ConfigError as error:
        last = error.setting.rpartition(".")[2]
        name = names.get(last, last)
        raise ConfigError(f"--{name}" if name in flags else error.setting, error.reason) from None


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"--{name}" for name in names)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line.replace("\\\n", " "))
    except ValueError as error:
        raise ConfigError("flags", f"cannot read {line!r}: {error}") from None


def _several(words: Iterable[str]) -> Iterator[str]:
    """The words, those with several flags taken apart; a value is left as it is."""
    for word in words:
        name = word.partition("=")[0]
        yield from _split(word) if name.startswith("--") and len(name.split()) > 1 else [word]


def _begun(name: str, table: Mapping[str, OriginalFlag]) -> OriginalFlag:
    if name in table:
        return table[name]
    begun = [flag for flag in table if name and flag.startswith(name)]
    if len(begun) > 1:
        raise ConfigError(f"--{name}", f"several flags begin so: {listed(begun)}")
    return _named(begun[0] if begun else name, table)


def _named(name: str, table: Mapping[str, OriginalFlag]) -> OriginalFlag:
    if name not in table:
        raise ConfigError(f"--{name}", f"unknown flag{nearest(f'--{name}', (f'--{flag}' for flag in table))}")
    return table[name]


def _parsed(text: str, flag: OriginalFlag) -> Value:
    """The value that a text means, of the flag's type."""
    try:
        if flag.type is bool:
            return {**dict.fromkeys(YES, True), **dict.fromkeys(NO, False)}[text.lower()]
        if "numbers" in flag.listed:
            whole, signed = flag.listed == "whole numbers", flag.listed == "signed numbers"
            found = numbers(text)
            if (whole and not found) or any((number <= 0 and not signed) or (whole and isinstance(number, float)) for number in found):
                raise ValueError
            return text
        return flag.type(text)
    except (ValueError, KeyError, OverflowError):
        raise ConfigError(f"--{flag.name}", f"got {text!r}, expected {_expected(flag)}") from None


def _expected(flag: OriginalFlag) -> str:
    if "numbers" in flag.listed:
        kind = "numbers" if flag.listed == "signed numbers" else f"positive {flag.listed}"
        return f"{kind}, separated by commas"
    return {bool: f"one of {', '.join(YES)} or of {', '.join(NO)}", int: "a whole number", float: "a number", str: "text"}[flag.type]
