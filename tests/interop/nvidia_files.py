"""Pickles in the form in which NVIDIA's programs write their networks, made here: no real file and none of their code is needed."""

from __future__ import annotations

import pickle
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

SOURCE = "raise RuntimeError('the source code in a pickle was run')"


class Persistent:
    """An object of a class that NVIDIA's programs store with its source code."""

    def __init__(self, class_name: str, state: Mapping[str, Any], source: str = SOURCE) -> None:
        self.class_name, self.state, self.source = class_name, dict(state), source

    def __reduce__(self) -> tuple[Any, ...]:
        meta = {"type": "class", "version": 6, "module_src": self.source, "class_name": self.class_name, "state": self.state}
        return sys.modules["torch_utils.persistence"]._reconstruct_persistent_obj, (meta,), None


def module_state(parts: Mapping[str, Any], *, buffers: Mapping[str, Tensor] = {}, unsaved: set[str] | None = None) -> dict[str, Any]:
    """The attributes of a module with these tensors and modules."""
    return {
        "training": False,
        "_parameters": OrderedDict(
            (name, nn.Parameter(part, requires_grad=False)) for name, part in parts.items() if isinstance(part, Tensor)
        ),
        "_buffers": OrderedDict(buffers),
        "_non_persistent_buffers_set": set() if unsaved is None else unsaved,
        "_forward_hooks": OrderedDict(),
        "_modules": OrderedDict((name, part) for name, part in parts.items() if not isinstance(part, Tensor)),
    }


def network(class_name: str, tensors: Mapping[str, Tensor], *, settings: Mapping[str, Any], source: str = SOURCE) -> Persistent:
    """A network with these tensors by name, and what it was built with."""
    state = _nested(tensors, source)
    state |= {"_init_args": (), "_init_kwargs": sys.modules["dnnlib.util"].EasyDict(settings)}
    return Persistent(class_name, state, source)


def _nested(tensors: Mapping[str, Tensor], source: str) -> dict[str, Any]:
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        head, _, rest = name.partition(".")
        groups.setdefault(head, {})[rest] = tensor
    own = {head: group[""] for head, group in groups.items() if "" in group}
    inner = {head: Persistent("Part", _nested(group, source), source) for head, group in groups.items() if "" not in group}
    return module_state(own | inner)


@contextmanager
def modules_of_nvidia() -> Iterator[None]:
    """Within it the modules that such pickles name exist, so that they can be written."""
    persistence, easy = ModuleType("torch_utils.persistence"), ModuleType("dnnlib.util")

    def _reconstruct_persistent_obj(meta: Any) -> Any:
        raise AssertionError("called")

    class EasyDict(dict):  # type: ignore[type-arg]
        pass

    for module, part in ((persistence, _reconstruct_persistent_obj), (easy, EasyDict)):
        part.__module__, part.__qualname__ = module.__name__, part.__name__
        setattr(module, part.__name__, part)
    with pytest.MonkeyPatch.context() as patch:
        for module in (persistence, easy, ModuleType("torch_utils"), ModuleType("dnnlib")):
            patch.setitem(sys.modules, module.__name__, module)
        yield


def write_pickle(path: Path, content: Any, *, protocol: int = 3) -> Path:
    """Writes a pickle as NVIDIA's programs do; within `modules_of_nvidia`."""
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def small_tensors() -> dict[str, Tensor]:
    """Of a network that is none, but has the tensor by which StyleGAN2 is known."""
    return {
        "synthesis.b4.const": torch.arange(32.0).reshape(2, 4, 4),
        "mapping.fc0.weight": torch.ones(3, 3).half(),
        "w_avg": torch.zeros(3),
    }
