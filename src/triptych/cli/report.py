"""`triptych report`: the page of a run, made anew."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from triptych.cli.arguments import run_argument
from triptych.cli.output import show, show_page
from triptych.core.config import Config, config

USAGE = """usage: triptych report RUN [--out FILE.html]

Writes one page about a run: what it is, what it makes, its curves and figures, what it cost, what happened, how to go on. The page holds
all that it shows, so it can be sent as it is. Training writes it too, and evaluate makes it anew; this command does at any time.

  --out FILE.html    another place than RUN/report.html

example: triptych report runs/digits"""


@config
class ReportOptions(Config):
    """Where the page goes."""

    out: str | None = None
    "FILE.html; None: RUN/report.html."

    def validate(self) -> None:
        self.require(self.out is None or Path(self.out).suffix in (".html", ".htm"), "out", "a name that ends with .html")


def main(arguments: Sequence[str]) -> int:
    """Writes the page, and says where."""
    if arguments and arguments[0] in ("-h", "--help"):
        show_page(USAGE)
        return 0
    directory = run_argument(arguments, usage="triptych report RUN [--out FILE.html]")
    options = configure(directory, arguments[1:])

    from triptych.report.run_report import write_report
    from triptych.runs.files import check_page

    own = Path(directory) / "report.html"
    out = own if options.out is None else Path(options.out)
    if (os.path.realpath(out.parent), out.name) != (os.path.realpath(own.parent), own.name):
        check_page(out)
    show(f"report: {write_report(directory, out)} (open it in a browser)")
    return 0


def configure(run: str, arguments: Sequence[str]) -> ReportOptions:
    """The options that the flags make."""
    from triptych.cli.settings import parse

    description = "Writes one page about a run, which holds all that it shows."
    return parse(arguments, prog=f"triptych report {run}", description=description, options=ReportOptions(), settings=Config())[0]
