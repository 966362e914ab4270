"""Where the user's cache is."""

from __future__ import annotations

from pathlib import Path

import pytest

from triptych.core.cache import cache_folder
from triptych.core.errors import DataError


@pytest.mark.parametrize(
    ("own", "shared", "expected"),
    [
        (None, None, "/home/me/.cache/triptych"),
        ("", "", "/home/me/.cache/triptych"),
        (None, "/var/caches", "/var/caches/triptych"),
        (None, "caches", "/home/me/.cache/triptych"),  # relative: ignored, as its specification says
        ("/big/disk", "/var/caches", "/big/disk"),
        ("~/disk", None, "/home/me/disk"),
    ],
)
def test_cache_folder(own, shared, expected, monkeypatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in (("TRIPTYCH_CACHE", own), ("XDG_CACHE_HOME", shared)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def test_a_home_that_is_not_there(monkeypatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", "~nobody-of-that-name/disk")
    with pytest.raises(DataError, match="there is no home folder of that user"):
        cache_folder()
