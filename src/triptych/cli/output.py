"""What the commands say. Everything goes through here: a name in it may come from a stranger's file, and must not steer the terminal."""

from __future__ import annotations

import sys

from triptych.core.errors import printable


def show(line: str, *, error: bool = False) -> None:
    """Prints one line, on standard error where it is about an error; control characters in it are written as escapes.

    Where standard error takes nothing (its terminal is gone, its disk is full), what is said there is lost, and not the exit code too.
    """
    try:
        print(printable(line), file=sys.stderr if error else sys.stdout, flush=True)
    except OSError as reason:
        if not error:
            raise OSError(reason.errno, reason.strerror, "standard output") from reason


def show_page(text: str, *, error: bool = False) -> None:
    """Prints a text of several lines, such as a page of help, each as `show` does."""
    for line in text.split("\n"):
        show(line, error=error)
