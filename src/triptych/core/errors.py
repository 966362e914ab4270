"""The errors that Triptych raises on purpose.

The command line prints a `UserError` as one line and exits with code 2, a `RunError` with code 1, `Stopped` with code 130.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Sequence

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, ends of lines, characters that turn the direction of text, and bytes of file names that are not UTF-8."""

_MOST_SAID = 300  # characters


class UserError(Exception):
    """Something that the user gave cannot be used; the message says what to change."""


class ConfigError(UserError, ValueError):
    """A setting is unknown, has the wrong type or is out of range.

    `setting` is the dotted name as it is written in a configuration ("train.batch_size"), in a list of tables with the number of the
    table from 0 on ("train.averages[1].rate"); `reason` the rest of the message. `names`: settings beside it, or in the same section,
    which the reason names: each has {} in its place.
    """

    def __init__(self, setting: str, reason: str, names: Sequence[str] = ()) -> None:
        self.setting, self._unnamed, self._names = setting, reason, tuple(names)
        self.reason = _with_names(reason, names)
        super().__init__(f"{setting}: {self.reason}" if setting else self.reason)

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, str, tuple[str, ...]]]:
        return ConfigError, (self.setting, self._unnamed, self._names)  # between processes: `args` is the message alone

    def renamed(self, name_of: Callable[[str], str]) -> ConfigError:
        """The same error for a user who knows the settings by other names."""
        return ConfigError(name_of(self.setting), self._unnamed, [name_of(name) for name in self._names])

    def inside(self, section: str) -> ConfigError:
        """The same error, seen from one level further out."""
        return self.renamed(lambda name: f"{section}{'' if not name or name.startswith('[') else '.'}{name}")


def _with_names(reason: str, names: Sequence[str]) -> str:
    """The reason with the names in its last places {}; braces before them are what a user gave. It may have fewer places."""
    first, *others = reason.rsplit("{}", len(names)) if names else [reason]
    return first + "".join(name + text for name, text in zip(names, others, strict=False))


class DataError(UserError):
    """A data set or one of its files cannot be used; names the file.

    `advice` says what to do about it; where that is to change a `setting`, it has {} in the place of the setting's name.
    """

    def __init__(self, reason: str, *, advice: str = "", setting: str = "") -> None:
        super().__init__(f"{reason}: {advice.format(setting)}" if advice else reason)
        self.reason, self.advice, self.setting = reason, advice, setting

    def renamed(self, setting: str) -> DataError:
        """The same error for a user who knows the setting by another name."""
        return DataError(self.reason, advice=self.advice, setting=setting)


class CheckpointError(UserError):
    """A run directory or checkpoint is missing, damaged or of another model."""


class RunError(Exception):
    """A run failed by itself: a value that is not finite, a loss scale that fell through its floor."""


STOPPED_CODE = "TRIPTYCH_STOPPED_CODE"
"""The environment variable with the exit code of a training that was stopped by a signal and saved, where that is not to be 0."""


class Stopped(KeyboardInterrupt):
    """A signal asked to stop; the message is for the user. No Exception, so that nothing takes it for a failure of its own."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A hint `; did you mean "x"?`, or an empty string when nothing is near; the dashes of flags are not counted as likeness."""
    matches = _close(name, tuple(allowed))
    return f'; did you mean "{matches[0]}"?' if matches else ""


@functools.lru_cache(maxsize=1024)
def _close(name: str, allowed: tuple[str, ...]) -> list[str]:
    words = {each.lstrip("-"): each for each in allowed}
    return [words[word] for word in difflib.get_close_matches(name.lstrip("-"), words, n=1, cutoff=0.6)]


def one_line(error: Exception) -> str:
    """What another library says of an error, in one line that is not too long: some write whole files into it."""
    line = " ".join(str(error).split()) or type(error).__name__
    return line if len(line) <= _MOST_SAID else f"{line[:_MOST_SAID]}..."


def printable(text: str) -> str:
    """The text as one line that a terminal and a log show as it is: control characters are written as escapes (\\x1b, \\n).

    Whatever is shown goes through here at the last moment, since any name in a message may come from a stranger's file.
    """
    return _UNPRINTABLE.sub(lambda match: _escaped(match[0]), text)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # how Python keeps a byte of a name that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
