"""The shapes that annotations of the families give (`Float[Tensor, "b c h w"]`), checked in every call that a test makes.

jaxtyping's own import hook wraps every function, which costs the tests of the families a tenth of their time. Here only those
that give shapes are wrapped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import FunctionType, ModuleType
from typing import Any

from beartype import beartype
from jaxtyping import jaxtyped

PACKAGES = ("triptych.nn.", "triptych.flows.", "triptych.gans.", "triptych.diffusion.", "triptych.evaluation.")


def check_from_now_on() -> None:
    """Puts the checks around the functions of modules that are imported later."""
    assert not [name for name in sys.modules if name.startswith(PACKAGES)], "imported before their shapes could be checked"
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]


class _Finder:
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name.startswith(PACKAGES) else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        own = [thing for thing in vars(module).values() if getattr(thing, "__module__", None) == module.__name__]
        for place in (module, *(thing for thing in own if isinstance(thing, type))):
            for name, member in list(vars(place).items()):
                if isinstance(member, FunctionType) and member.__module__ == module.__name__ and _gives_shapes(member):
                    setattr(place, name, jaxtyped(typechecker=beartype)(member))


def _gives_shapes(function: Callable[..., Any]) -> bool:
    return any("[Tensor, " in str(annotation) for annotation in function.__annotations__.values())
