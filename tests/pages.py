"""The code of the pages in docs, as modules."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest


def code_of(page: Path) -> list[str]:
    """The blocks of Python of a page, in order."""
    return re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), flags=re.M | re.S)


def module_of(source: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The source as a module of that name, for one test; its file lies in `folder`."""
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module
