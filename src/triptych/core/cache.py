"""The user's cache: weights of networks that were fetched once, and what was computed of references."""

from __future__ import annotations

import math
import os
from pathlib import Path

from triptych.core.errors import DataError
from triptych.core.reading import user_path

_REMOTE_GB = 20.0


def cache_folder() -> Path:
    """The folder that TRIPTYCH_CACHE names, else XDG_CACHE_HOME/triptych, else ~/.cache/triptych; it need not exist.

    The weights of networks lie in its networks/, features and statistics of references in its references/, parts of data that lie
    elsewhere in its remote/. Raises DataError where TRIPTYCH_CACHE holds no path.
    """
    own = os.environ.get("TRIPTYCH_CACHE")
    if own:
        return user_path(own)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # A relative one is to be ignored, says the XDG Base Directory Specification.
    return (Path(shared) if os.path.isabs(shared) else user_path("~/.cache")) / "triptych"


def remote_limit() -> int:
    """Bytes that parts of data that lie elsewhere may take in it: as TRIPTYCH_CACHE_GB says, 20 GB by default.

    Raises DataError where that is no positive number.
    """
    given = os.environ.get("TRIPTYCH_CACHE_GB") or str(_REMOTE_GB)
    try:
        size = float(given)
    except ValueError:
        size = math.nan
    if not 0 < size < math.inf:
        raise DataError(f"TRIPTYCH_CACHE_GB: got {given!r}, expected a positive number: gigabytes for parts of data that lie elsewhere")
    return round(size * 10**9)
