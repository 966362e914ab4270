"""Letters with marks (é) are one character or two in the names of files, as programs write them; then equal names do not meet."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable


def other_form(name: str, names: Iterable[str]) -> str:
    """For messages about a name that is none of `names`: what to do where it is one of them in another form of Unicode; else nothing."""
    if name.isascii():
        return ""
    composed = unicodedata.normalize("NFC", name)
    if not any(unicodedata.normalize("NFC", each) == composed for each in names):
        return ""
    return "; it is there in another form of Unicode (letters with marks as one character, NFC, or as two, NFD): give both one form"
