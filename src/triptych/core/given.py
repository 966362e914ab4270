"""What Python calls are given, as what it has to be; else a ConfigError names the argument, before anything is read or made."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from triptych.core.address import is_address, without_secrets
from triptych.core.errors import ConfigError
from triptych.core.wording import counted

_MOST_SHOWN = 60  # characters of a value in a message


def whole_number(value: Any, name: str, *, least: int | None = None) -> int:
    """An int, also of numpy's; `least`: the smallest that is allowed. Raises ConfigError about the argument `name`."""
    wanted = "a whole number" if least is None else f"a whole number from {least} on"
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        raise ConfigError(name, f"got {shown(value)}, expected {wanted}")
    return number


def whole_numbers(values: Any, name: str, *, count: int | None = None) -> list[int]:
    """Several of them, `count` where it is given. Raises ConfigError about the argument `name`."""
    wanted = "whole numbers" if count is None else counted(count, "whole number")
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ConfigError(name, f"got {shown(values)}, expected {wanted}")
    numbers = [whole_number(value, name) for value in values]
    if count is not None and len(numbers) != count:
        raise ConfigError(name, f"got {counted(len(numbers), 'number')}, expected {wanted}")
    return numbers


def given_path(value: Any, name: str) -> Path:
    """A path, of a text that is more than blanks or a Path. Raises ConfigError about the argument `name`."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(name, f"got {shown(value)}, expected a path")
    return Path(text)


def given_place(value: Any, name: str) -> Path:
    """What `given_path` gives, to write to: no address. Raises ConfigError about the argument `name`."""
    path = given_path(value, name)
    if is_address(value):
        raise ConfigError(name, f"got {without_secrets(value)}, an address; expected a path on this machine")
    return path


def optional_place(value: Any, name: str) -> Path | None:
    """What `given_place` gives; None where nothing is given. Raises ConfigError about the argument `name`."""
    return None if value is None else given_place(value, name)


def optional_path(value: Any, name: str) -> Path | None:
    """What `given_path` gives; None where nothing is given. Raises ConfigError about the argument `name`."""
    return None if value is None else given_path(value, name)


def shown(value: Any) -> str:
    """A value in a message, in one line that is not too long."""
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # a number of more digits than Python writes; lists in lists in lists
        return f"something of type {type(value).__name__} that is too long to show"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
