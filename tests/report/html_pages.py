"""What a browser would see of a page: its tags, its texts, what it would ask the network for."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "link", "img", "input", "br"}
LOADING = {"src", "href", "srcset", "poster", "action", "data", "xlink:href"}


@dataclass
class Page(HTMLParser):
    """A page that was read; `problems` are tags that do not close, and addresses outside of it."""

    text: str = ""
    values: list[float] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.text += " " if tag in ("td", "th", "dd") else ""
        given = dict(attrs)
        for name in LOADING & given.keys():
            if not (given[name] or "").startswith("data:"):
                self.problems.append(f"{tag} loads {given[name]}")
        self.problems += [f"{tag} runs {name}" for name in given if name.startswith("on")]
        if tag == "data":
            self.values.append(float(given["value"] or "nan"))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"{tag} closes nothing")

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("style", "script"):
            self.text += data


def read_page(page: str | Path) -> Page:
    """The page, which is checked: whole, asking for nothing, running nothing but its own script."""
    text = page.read_text("utf-8") if isinstance(page, Path) else page
    read = Page()
    read.feed(text)
    read.close()
    assert read.problems == [] and read._open == [], (read.problems, read._open)
    assert "url(" not in text and "@import" not in text and "http://" not in text and "https://" not in text
    assert read.tags.count("script") == 1
    return read
