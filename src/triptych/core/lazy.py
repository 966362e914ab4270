"""Names of a package that are imported when they are asked for, so that help and flags do not wait for PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `names`: those of each module."""

    def get(name: str) -> Any:
        for module, defined in names.items():
            if name in defined:
                return getattr(importlib.import_module(module), name)
        raise AttributeError(f"module {package} has no attribute {name}")

    return get
