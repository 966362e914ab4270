"""What was measured of several models and seeds, a line of a file for each, so that they can be measured at different times."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import machine

Row = dict[str, Any]


def add_row(path: Path, row: Row) -> None:
    """Prints a row, with the day and the machine, and writes it behind those in the file."""
    line = json.dumps(row | {"date": datetime.date.today().isoformat(), "machine": machine()})
    print(line, flush=True)
    with path.open("a", encoding="utf-8") as rows:
        rows.write(line + "\n")


def read_rows(path: Path) -> list[Row]:
    """The rows of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_report(title: str, rows: Sequence[Row], lines: Sequence[str], *, out: Path | None) -> None:
    """Prints a report of rows: its title with the day, their machines, and the lines; it also goes to the file `out`."""
    machines = sorted({row["machine"] for row in rows})
    report = "\n".join([f"# {title}, {datetime.date.today().isoformat()}", "", *machines, "", *lines]) + "\n"
    print(report)
    if out is not None:
        out.write_text(report, encoding="utf-8")
