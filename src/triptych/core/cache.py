"""The user's cache: weights of networks that were fetched once, and what was computed of references."""

from __future__ import annotations

import os
from pathlib import Path

from triptych.core.reading import user_path


def cache_folder() -> Path:
    """The folder that TRIPTYCH_CACHE names, else XDG_CACHE_HOME/triptych, else ~/.cache/triptych; it need not exist.

    The weights of networks lie in its networks/, features and statistics of references in its references/. Raises DataError where
    TRIPTYCH_CACHE holds no path.
    """
    own = os.environ.get("TRIPTYCH_CACHE")
    if own:
        return user_path(own)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # A relative one is to be ignored, says the XDG Base Directory Specification.
    return (Path(shared) if os.path.isabs(shared) else user_path("~/.cache")) / "triptych"
