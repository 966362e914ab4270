"""`triptych compare`: one page that sets runs beside one another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from triptych.cli.arguments import asks_for_help, require_run
from triptych.cli.output import show, show_page
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.wording import counted

USAGE = """usage: triptych compare RUN RUN ... --out FILE.html

Writes one page about several runs, of any families: samples of the same noise side by side, figures with intervals, quality by steps,
network calls, images seen and settings of the sampler, copies, curves, cost, and the settings that differ. The page holds all that it
shows, so it can be sent as it is.

  --out FILE.html    where the page goes; required

example: triptych compare runs/digits runs/glow-digits --out compare.html"""


@config
class CompareOptions(Config):
    """Where the page goes."""

    out: str | None = None
    "Required: FILE.html."

    def validate(self) -> None:
        self.require(self.out is None or Path(self.out).suffix in (".html", ".htm"), "out", "a name that ends with .html")


def main(arguments: Sequence[str]) -> int:
    """Writes the page, and says where."""
    if asks_for_help(arguments):
        show_page(USAGE)
        return 0
    runs, out = configure(arguments)
    for run in runs:
        require_run(run)

    from triptych.report.comparison import write_comparison
    from triptych.runs.files import check_page

    check_page(out)
    show(f"comparison: {write_comparison(runs, out)} (open it in a browser)")
    return 0


def configure(arguments: Sequence[str]) -> tuple[list[str], Path]:
    """The runs, and the page's place, which may come before them. Raises ConfigError where one is missing."""
    from triptych.cli.settings import parse

    runs, flags = list[str](), list[str]()
    for argument in arguments:
        (flags if argument.startswith("-") or flags[-1:] == ["--out"] else runs).append(argument)
    description = "Writes one page that sets runs beside one another."
    given = parse(flags, prog="triptych compare", description=description, options=CompareOptions(), settings=Config())[0]
    if len(runs) < 2:
        raise ConfigError("", f"got {counted(len(runs), 'run')}, expected at least 2; usage: {USAGE.partition(chr(10))[0][7:]}")
    if given.out is None:
        raise ConfigError("--out", "missing: the page needs a name that ends with .html")
    return runs, Path(given.out)
