"""Where the user's cache is, and how much it may take."""

from __future__ import annotations

from pathlib import Path

import pytest

from triptych.core.cache import cache_folder, remote_limit
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


@pytest.mark.parametrize(
    ("given", "expected"), [(None, 20_000_000_000), ("", 20_000_000_000), ("200", 200_000_000_000), ("0.5", 500_000_000)]
)
def test_gigabytes_for_data_that_lies_elsewhere(given, expected, monkeypatch) -> None:
    monkeypatch.delenv("TRIPTYCH_CACHE_GB", raising=False)
    if given is not None:
        monkeypatch.setenv("TRIPTYCH_CACHE_GB", given)
    assert remote_limit() == expected


@pytest.mark.parametrize("given", ["much", "0", "-1", "inf", "nan"])
def test_gigabytes_that_are_none(given, monkeypatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE_GB", given)
    with pytest.raises(DataError, match=f"TRIPTYCH_CACHE_GB: got '{given}', expected a positive number"):
        remote_limit()
