"""From a template to one file of HTML that needs nothing else: styles, script and pictures are in it, and it asks for nothing.

Whatever comes from a run's files is text: jinja escapes it, `printable` takes control characters away, and a policy in the page's head lets
the browser run no script but ours and load nothing, should something slip through.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from triptych import __version__
from triptych.core.errors import printable
from triptych.core.files import write_text
from triptych.report.chart import BOTTOM, HEIGHT, RIGHT, TOP, WIDTH, brief, plain

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).parent / "templates"
_MOST_TEXT = 2_000


def render(template: str, **values: Any) -> str:
    """The page that a template makes of the values."""
    return _environment().get_template(template).render(**values, written=time.strftime("%Y-%m-%d %H:%M:%S"))


def write_page(path: Path, page: str) -> None:
    """Writes the page whole, and makes its folder where that is missing. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page.encode("utf-8", "backslashreplace").decode())  # a name of a file may be no UTF-8


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (_TEMPLATES / "script.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    environment.globals.update(
        style=Markup((_TEMPLATES / "style.css").read_text("utf-8")),
        script=Markup(script),
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        version=__version__,
        frame={"width": WIDTH, "height": HEIGHT, "right": WIDTH - RIGHT, "top": TOP, "bottom": HEIGHT - BOTTOM},
    )
    environment.filters.update(plain=plain, brief=brief, exact=repr, grouped=lambda count: f"{count:,}")
    return environment


def shown(value: Any) -> Any:
    """A value as it goes into the page: text without control characters, and not too long."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = printable(value)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."
