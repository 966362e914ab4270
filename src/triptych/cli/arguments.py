"""What the verbs that take a run have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from triptych.core.config import Config
from triptych.core.errors import ConfigError


def run_argument(arguments: Sequence[str], *, usage: str) -> str:
    """The run directory, a verb's first argument; raises ConfigError where it is missing or an option stands in its place."""
    if not arguments:
        raise ConfigError("", f"no run given; usage: {usage}")
    if arguments[0].startswith("-"):
        raise ConfigError("", f"got {arguments[0]!r} where the run directory is expected; usage: {usage}")
    return arguments[0]


@contextmanager
def named_as_flags(*parts: Config) -> Iterator[None]:
    """Within it a ConfigError about a setting of `parts` names the flag."""
    from triptych.cli.settings import flag_name, flags_of

    try:
        yield
    except ConfigError as error:
        if error.setting in {flag.setting for part in parts for flag in flags_of(part)}:
            raise ConfigError(flag_name(error.setting), error.reason) from None
        raise


def names_checkpoint(text: str) -> bool:
    """Whether `--checkpoint` takes the text."""
    return text in ("latest", "best") or text.isdecimal()


def separated(labels: str) -> list[str]:
    """The parts of `--labels`."""
    return [label.strip() for label in labels.split(",")]


def label_values(labels: str | None) -> list[int | str] | None:
    """The labels of `--labels`: numbers, and names of classes; None where there are none."""
    return None if labels is None else [int(label) if label.isdecimal() else label for label in separated(labels)]
