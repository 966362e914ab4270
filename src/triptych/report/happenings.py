"""What happened to a run, from its log.txt: starts, resumes, stops, failures, warnings; the lines of losses are passed over."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from triptych.core.errors import printable
from triptych.report.growing import GrowingFile

Kind = Literal["start", "resume", "stop", "failure", "warning", "end", "note"]

_DATED = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (.*)")
_PASSED_OVER = re.compile(r"[\d,]+/[\d,]+ images( |$)|(samples/|validation at |evaluation at |looking at |report\.html).*\d:\d\d( left)?$")
_KINDS: tuple[tuple[Kind, str], ...] = (
    ("failure", r"failed at |(?!warning: ).*\bis not finite\b|process \d+ .*(failed|died|lost)"),
    ("start", r".* starts: run "),
    ("resume", r".* goes on at [\d,]+ images: run "),
    ("stop", r"stopped by |interrupted at "),
    ("warning", r"warning: "),
    ("end", r"finished: "),
)
_ALIKE, _APART = re.compile(r"warning: (samples \S+ \S+ alike: .*)"), re.compile(r"samples differ from one another again")
_FIRST, _LAST = 30, 170
_MOST_SAID = 400


def _kind(text: str) -> Kind:
    for kind, pattern in _KINDS:
        if re.match(pattern, text):
            return kind
    return "note"


@dataclass(frozen=True)
class Happening:
    """A line of the log that says more than a loss."""

    date: str
    kind: Kind
    text: str


class Happenings:
    """The happenings of a run; `update` reads what is new in log.txt."""

    def __init__(self, path: Path) -> None:
        self._file = GrowingFile(path)
        self._first: list[Happening] = []
        self._last: list[Happening] = []
        self.counts: Counter[Kind] = Counter()
        self.notes: list[str] = []
        "What is to be said about the file, a line each."
        self.parameters: str | None = None
        "Of the model, as the log has it."
        self.newest = ""
        "When the newest line was written, of whatever kind."
        self.collapse: str | None = None
        "What was said of samples that have become alike, unless they differ again."

    def update(self) -> None:
        """Reads the new lines."""
        self.notes = []
        try:
            for line in self._file.lines():
                self._take(line)
        except OSError as error:
            self.notes = [f"log.txt cannot be read: {error.strerror or error}"]
        if self._file.left_out:
            self.notes.append(f"log.txt is very long: its first {self._file.left_out:,} bytes are left out")

    def _take(self, line: str) -> None:
        match = _DATED.fullmatch(printable(line))
        if match is None:
            return
        self.newest = match[1]
        if _PASSED_OVER.match(match[2]):
            return
        date, text = match[1], match[2]
        kind = _kind(text)
        self.counts[kind] += 1
        if kind in ("start", "resume") and (found := re.search(r", ([\d,]+) parameters, ", text)):
            self.parameters = found[1]
        if alike := _ALIKE.fullmatch(text):
            self.collapse = alike[1]
        elif _APART.fullmatch(text):
            self.collapse = None
        happening = Happening(date, kind, text if len(text) <= _MOST_SAID else f"{text[:_MOST_SAID]}...")
        if len(self._first) < _FIRST:
            self._first.append(happening)
        else:
            self._last = [*self._last[-_LAST + 1 :], happening]

    @property
    def shown(self) -> list[Happening]:
        """The first ones and the newest, in order."""
        return [*self._first, *self._last]

    @property
    def left_out(self) -> int:
        """How many lie between those that are shown."""
        return self.counts.total() - len(self.shown)

    @property
    def state(self) -> str:
        """How the run stands by the last start, stop or end that the log has."""
        words = {"start": "begun", "resume": "begun again", "stop": "stopped", "failure": "failed", "end": "finished"}
        return next((words[each.kind] for each in reversed(self.shown) if each.kind in words), "without a log")
