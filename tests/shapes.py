"""The shapes that annotations of the families give (`Float[Tensor, "b c h w"]`), checked in every call that a test of theirs makes.

jaxtyping's own import hook wraps every function and looks at every call anew, which costs the tests of the families a third of
their time. Here only those that give shapes are wrapped, and what was once found right, of the same shapes, is not looked at again. In the
tests of the engine, of runs and of the command line, which call the same networks in the same way, nothing is looked at.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from beartype import beartype
from jaxtyping import jaxtyped
from torch import Tensor

PACKAGES = ("triptych.nn.", "triptych.flows.", "triptych.gans.", "triptych.diffusion.", "triptych.evaluation.")
FOLDERS = {"contract", *(package.split(".")[1] for package in PACKAGES)}
"""Of tests whose calls are checked, beside those of this file."""
RUNS = {"whole_run", "folders", "changing"}
"""Fixtures of tests in `contract` that train."""


def check_from_now_on() -> None:
    """Puts the checks around the functions of modules that are imported later."""
    assert not [name for name in sys.modules if name.startswith(PACKAGES)], "imported before their shapes could be checked"
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]


def check_in(test: Path, given: Collection[str]) -> None:
    """Checks from now on where the file of the test is one of the families', and it is given no runs: these call what others call."""
    global _checking
    _checking = test.name == "test_shapes.py" or (test.parent.name in FOLDERS and RUNS.isdisjoint(given))


_checking = True


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
                    setattr(place, name, _checked(member))


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which refuses what its annotations do not allow."""
    check = jaxtyped(typechecker=beartype)
    thorough = check(function)
    right: dict[Any, set[Any]] = {}  # by the form of the arguments, the forms of results

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        # The compiler does not understand the checks; the same function is checked where it is not compiled.
        if not _checking or torch.compiler.is_compiling():
            return function(*args, **kwargs)
        given = _form(args), _form(kwargs)
        if (known := right.get(given)) is None:
            result = thorough(*args, **kwargs)
            right.setdefault(given, set()).add(_form(result))
            return result
        result = function(*args, **kwargs)
        if (form := _form(result)) not in known:
            check(_returning(result, function))(*args, **kwargs)
            known.add(form)
        return result

    return checked


def _returning(result: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the same signature that does nothing else."""

    def same(*args: Any, **kwargs: Any) -> Any:
        return result

    among = FunctionType(same.__code__, function.__globals__, closure=same.__closure__)  # where the names in annotations are known
    return functools.update_wrapper(among, function)


def _form(value: Any) -> Any:
    """All that an annotation can ask of a value: of a tensor its data type and shape, of others their type, or what they are."""
    kind = type(value)
    if (form := _FORMS.get(kind)) is None:
        form = _FORMS.setdefault(kind, _form_of(kind))
    return form(value)


_FORMS: dict[type, Callable[[Any], Any]] = {}
"""For each type that was met, how the form of a value is found: this is called more often than all else in the tests."""


def _form_of(kind: type) -> Callable[[Any], Any]:
    if issubclass(kind, Tensor):
        return lambda value: (value.dtype, value.shape)
    if issubclass(kind, (list, tuple)):
        return lambda value: (kind, *[_form(member) for member in value])
    if issubclass(kind, dict):
        return lambda value: (kind, *[(key, _form(member)) for key, member in value.items()])
    return (lambda value: (kind, value)) if issubclass(kind, (int, str)) else lambda value: kind


def _gives_shapes(function: Callable[..., Any]) -> bool:
    return any("[Tensor, " in str(annotation) for annotation in function.__annotations__.values())
