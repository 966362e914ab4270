"""A reader of pickles that runs nothing: plain values, tensors, and everything else as inert records.

A pickle is a program for a small machine with a stack. Python's own machine imports whatever the program names and calls it. This one
has no import: a name is looked up in the tables below, which are what pickles of StyleGAN2, StyleGAN3, EDM, EDM2 and R3GAN need, and any
other name ends the reading. In such pickles every network is a call of torch_utils.persistence._reconstruct_persistent_obj with its
class's name, its source code and its attributes; here the source code is dropped and the rest is a `Record`.

https://docs.python.org/3/library/pickletools.html has the instructions.
"""

from __future__ import annotations

import io
import math
import mmap
import pickletools
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor

from triptych.core.errors import CheckpointError, printable
from triptych.core.files import explain
from triptych.core.reading import open_regular

_MOST_INSTRUCTIONS = 4_000_000  # EDM2's largest network takes some 100,000
_TORCH_FILE, _ZIP_FILE = 0x1950A86A20F9469CFC6C, b"PK\x03\x04"
_MOST_NAME, _MOST_SAID = 200, 120  # characters of a class's name, and of a name in a message
_MOST_AXES = 16

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_STORAGES = {
    "BFloat16Storage": torch.bfloat16,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "ShortStorage": torch.int16,
}
_NUMBERS = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}


@dataclass(eq=False)
class Record:
    """An object that was not made: what it is of, and what it has."""

    name: str
    "Its class: of NVIDIA's persistent classes the bare name (Generator), else with its module (torch.nn.modules.container.ModuleList)."
    arguments: tuple[Any, ...] = ()
    state: Any = None
    "Its attributes by name, where it has any."


@dataclass(frozen=True)
class Expected:
    """What a file should be, for messages."""

    kind: str
    file: str
    "What to give in its place."

    @property
    def damaged(self) -> str:
        return f"is damaged or cut off, or no {self.kind}"

    @property
    def of_zip(self) -> str:
        return f"is a zip archive, and no {self.kind}: give {self.file}"

    @property
    def of_torch(self) -> str:
        return f"is a file of torch.save, and no {self.kind}: give {self.file}"


NETWORKS = Expected("pickle of NVIDIA's networks", "NVIDIA's own file (.pkl)")


class Unreadable(Exception):
    """A pickle cannot be read; the message says why, in one line. Without one it is damaged."""


@dataclass(frozen=True)
class _Name:
    """A name in the pickle, which the tables allow."""

    name: str
    call: Callable[..., Any] | None = None
    "What stands for calling it; None: it becomes a Record."


def read_pickle(path: str | Path, *, expected: Expected = NETWORKS) -> Any:
    """What a pickle, by default of NVIDIA's, holds: numbers, text, lists, tuples, dictionaries, tensors, and a `Record` for each object.

    Nothing in the file is imported, called or run, and the tensors take twice its length at most. Raises CheckpointError, with the
    file's name, for a file that is missing, damaged, no pickle, or that names anything else than such networks need, with that name.
    """
    path = Path(path)
    try:
        with open(open_regular(path), "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            _check_kind(content, expected)
            value = _Machine(_Globals(len(content), expected), expected).run(content)
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise CheckpointError(f"{path} is a folder; give a file (.pkl)") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {explain(error)}") from error
    except Unreadable as error:
        raise CheckpointError(f"{path} {str(error) or expected.damaged}") from None
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError) as error:
        raise CheckpointError(f"{path} {expected.damaged}") from error
    if type(value) is int and value == _TORCH_FILE:
        raise CheckpointError(f"{path} {expected.of_torch}")
    return value


def _check_kind(content: mmap.mmap, expected: Expected) -> None:
    """Raises Unreadable for files of other kinds that are likely to be given by mistake."""
    if content[:4] == _ZIP_FILE:
        raise Unreadable(expected.of_torch if _is_of_torch(content) else expected.of_zip)
    if content[:1] not in (b"\x80", b"(", b"c"):
        raise Unreadable(f"is no pickle: give {expected.file}")


def _is_of_torch(content: mmap.mmap) -> bool:
    """Whether an archive has what torch.save puts into one: a pickle, data.pkl, in a folder."""
    try:
        with zipfile.ZipFile(cast(IO[bytes], content)) as archive:
            return any(PurePath(name).name == "data.pkl" for name in archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError):  # ValueError: shorter than the end of an archive
        return False


# The names that are allowed --------------------------------------------------------------------------------------------------


class _Globals:
    """What stands for each name.

    It counts the bytes of tensors, and the values of lists and dictionaries that are made of others: a pickle could have one block of
    bytes made into tensors many times, or one list copied.
    """

    def __init__(self, length: int, expected: Expected) -> None:
        self._expected = expected
        self._bytes_left = self._values_left = length
        self._calls: dict[str, Callable[..., Any]] = {
            "torch_utils.persistence._reconstruct_persistent_obj": _persistent,
            "dnnlib.util.EasyDict": self._dict,
            "collections.OrderedDict": self._dict,
            "builtins.set": self._tuple,
            "torch._utils._rebuild_tensor_v2": _tensor,
            "torch._utils._rebuild_parameter": _parameter,
            "torch.storage._load_from_bytes": self._storage,
            "torch.Size": self._tuple,
            "numpy.core.multiarray.scalar": _number,
            "numpy._core.multiarray.scalar": _number,
        }

    def __call__(self, module: str, name: str) -> Any:
        """The dtype or the `_Name` that a name of the pickle stands for. Raises Unreadable for one that is not allowed."""
        full = f"{module}.{name}"
        if full in self._calls:
            return _Name(full, self._calls[full])
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if full in _INERT or (module.startswith(_INERT_MODULES) and len(full) <= _MOST_NAME):
            return _Name(full)
        if full in _TENSORFLOW and self._expected is NETWORKS:
            raise Unreadable("is of the TensorFlow versions of StyleGAN; convert it with legacy.py of stylegan2-ada-pytorch first")
        raise Unreadable(f"names {_said(full)}, which no {self._expected.kind} needs: nothing of it was run")

    def _dict(self, *arguments: Any) -> dict[Any, Any]:
        """The dictionary that a call of dict or OrderedDict makes: of none, or of one list of pairs."""
        made: dict[Any, Any] = {}
        for pairs in self._copied(arguments):
            for key, value in pairs.items() if isinstance(pairs, dict) else pairs:
                made[_key(key)] = value
        return made

    def _tuple(self, *arguments: Any) -> tuple[Any, ...]:
        """The values of a set or a size, in the order of the file."""
        _check(len(arguments) <= 1 and not any(isinstance(values, dict) for values in arguments))
        return tuple(value for values in self._copied(arguments) for value in values)

    def _copied(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        _check(all(isinstance(values, list | tuple | dict) for values in arguments))
        self._values_left -= sum(len(values) for values in arguments)
        _check(self._values_left >= 0, "has the same values copied again and again")
        return arguments

    def _storage(self, data: Any) -> Tensor:
        """The numbers in a file of torch.save's older format, of one storage: (n,)."""
        _check(isinstance(data, bytes))
        self._bytes_left -= len(data)
        _check(self._bytes_left >= 0, "has the same bytes made into tensors again and again")
        dtype = _dtype_of_storage(data, self._expected)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an odd version of the pickle
            return torch.empty(0, dtype=dtype).set_(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))


_INERT = {"torch.device", "numpy.dtype", "numpy.ndarray", "numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"}
_INERT_MODULES = ("torch.nn.modules.", "R3GAN.")
"""Modules whose classes become records."""
_TENSORFLOW = {"dnnlib.tflib.network.Network", "tfutil.Network"}


def _persistent(meta: Any) -> Record:
    _check(isinstance(meta, dict) and isinstance(meta.get("class_name"), str) and isinstance(meta.get("state"), dict))
    return Record(meta["class_name"], state=meta["state"])


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Tensor:
    """The tensor that lies in a storage. It has no more values than are there: a few bytes could claim any shape."""
    _check(isinstance(storage, Tensor) and storage.ndim == 1 and len(size) == len(stride) <= _MOST_AXES)
    _check(all(type(number) is int and number >= 0 for number in (offset, *size, *stride)))
    count, last = math.prod(size), offset + sum((side - 1) * step for side, step in zip(size, stride, strict=True))
    _check(count <= len(storage) and (count == 0 or last < len(storage)), "has a tensor that is larger than its numbers")
    return storage.as_strided(size, stride, offset) if count else storage.new_empty(size)


def _parameter(data: Any, *rest: Any) -> Tensor:
    _check(isinstance(data, Tensor))
    return data


def _number(dtype: Any, data: Any) -> int | float | bool:
    """A number of NumPy's as one of Python's."""
    _check(isinstance(dtype, Record) and dtype.name == "numpy.dtype" and dtype.arguments[0] in _NUMBERS and isinstance(data, bytes))
    order = dtype.state[1] if isinstance(dtype.state, tuple) else "<"
    _check(order in ("<", ">", "|", "="))
    (value,) = np.frombuffer(data, np.dtype(f"{order}{dtype.arguments[0]}"))
    return value.item()


def _dtype_of_storage(data: bytes, expected: Expected) -> torch.dtype:
    """The dtype of the storage in a file of torch.save's older format. Raises Unreadable unless it is one storage with all its numbers."""
    stream = io.BytesIO(data)
    found: list[tuple[str, torch.dtype, int]] = []

    def persistent(identity: Any) -> Record:
        kind, storage, key, _, count, view = identity
        _check(kind == "storage" and isinstance(storage, Record) and type(count) is int and count >= 0 and view is None and not found)
        found.append((key, storage.arguments[0], count))
        return Record("storage")

    def storages(module: str, name: str) -> Any:
        if module != "torch" or name not in _STORAGES:
            raise Unreadable(f"names {_said(f'{module}.{name}')} in a tensor, which is no type of tensors: nothing of it was run")
        return Record(name, (_STORAGES[name],))

    magic, _, _, value, keys = (_Machine(storages, expected, persistent).run(stream) for _ in range(5))
    _check(magic == _TORCH_FILE and isinstance(value, Record) and value.name == "storage" and len(found) == 1)
    key, dtype, count = found[0]
    _check(keys == [key] and stream.tell() + 8 + count * dtype.itemsize == len(data), "has a tensor that is cut off")
    return dtype


# The machine -----------------------------------------------------------------------------------------------------------------


_MARK = object()


class _Machine:
    """Runs the instructions of a pickle that make values."""

    def __init__(self, globals_: Callable[[str, str], Any], expected: Expected, persistent: Callable[[Any], Any] | None = None) -> None:
        self._globals, self._expected, self._persistent = globals_, expected, persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, stream: io.BytesIO | mmap.mmap) -> Any:
        """The value of the pickle at which the stream stands; it then stands behind it. Any error but MemoryError means damage."""
        for count, (instruction, argument, _) in enumerate(pickletools.genops(cast(IO[bytes], stream))):
            _check(count < _MOST_INSTRUCTIONS, f"has more than {_MOST_INSTRUCTIONS:,} values")
            name = instruction.name
            if name == "STOP":
                (value,) = self._stack
                return value
            if name in _LITERALS:
                self._stack.append(argument)
            elif name in _MADE:
                self._stack.append(_MADE[name]())
            elif name in _INSTRUCTIONS:
                _INSTRUCTIONS[name](self, argument)
            elif name not in ("PROTO", "FRAME"):
                raise Unreadable(f"has the instruction {name}, which no {self._expected.kind} needs: nothing of it was run")

    def _marked(self) -> list[Any]:
        """What lies above the last mark, which goes too."""
        place = len(self._stack) - 1
        while self._stack[place] is not _MARK:
            place -= 1
            _check(place >= 0)
        values = self._stack[place + 1 :]
        del self._stack[place:]
        return values

    def _tuple(self, argument: Any) -> None:
        self._stack.append(tuple(self._marked()))

    def _short_tuple(self, count: int) -> None:
        _check(len(self._stack) >= count)
        values = tuple(self._stack[-count:])
        del self._stack[-count:]
        self._stack.append(values)

    def _append(self, argument: Any) -> None:
        value = self._stack.pop()
        self._extended([value])

    def _extended(self, values: list[Any]) -> None:
        _check(type(self._stack[-1]) is list)
        self._stack[-1].extend(values)

    def _set_items(self, values: list[Any]) -> None:
        items = self._stack[-1]
        _check(type(items) is dict and len(values) % 2 == 0)
        for key, value in zip(values[::2], values[1::2], strict=True):
            items[_key(key)] = value

    def _set_item(self, argument: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set_items([key, value])

    def _put(self, place: int) -> None:
        self._memo[place] = self._stack[-1]

    def _get(self, place: int) -> None:
        self._stack.append(self._memo[place])

    def _name(self, argument: Any) -> None:
        module, _, name = argument.partition(" ")
        self._stack.append(self._globals(module, name))

    def _name_of_stack(self, argument: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        _check(type(name) is str and type(module) is str)
        self._stack.append(self._globals(module, name))

    def _call(self, argument: Any) -> None:
        arguments, called = self._stack.pop(), self._stack.pop()
        _check(type(arguments) is tuple and isinstance(called, _Name))
        self._stack.append(Record(called.name, arguments) if called.call is None else called.call(*arguments))

    def _build(self, argument: Any) -> None:
        state, record = self._stack.pop(), self._stack[-1]
        if type(record) is not dict:  # attributes of an OrderedDict say nothing of networks
            _check(isinstance(record, Record) and record.state is None)
            record.state = state

    def _identity(self, argument: Any) -> None:
        if self._persistent is None:
            raise Unreadable(f"refers to values outside of it, which no {self._expected.kind} does")
        self._stack.append(self._persistent(self._stack.pop()))


_LITERALS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
_LITERALS |= {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"}
_MADE: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_SET": list,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: _MARK,
}
_INSTRUCTIONS: Mapping[str, Callable[[_Machine, Any], None]] = {
    "TUPLE": _Machine._tuple,
    "TUPLE1": lambda machine, _: machine._short_tuple(1),
    "TUPLE2": lambda machine, _: machine._short_tuple(2),
    "TUPLE3": lambda machine, _: machine._short_tuple(3),
    "APPEND": _Machine._append,
    "APPENDS": lambda machine, _: machine._extended(machine._marked()),
    "ADDITEMS": lambda machine, _: machine._extended(machine._marked()),
    "SETITEM": _Machine._set_item,
    "SETITEMS": lambda machine, _: machine._set_items(machine._marked()),
    "PUT": _Machine._put,
    "BINPUT": _Machine._put,
    "LONG_BINPUT": _Machine._put,
    "MEMOIZE": lambda machine, _: machine._put(len(machine._memo)),
    "GET": _Machine._get,
    "BINGET": _Machine._get,
    "LONG_BINGET": _Machine._get,
    "GLOBAL": _Machine._name,
    "STACK_GLOBAL": _Machine._name_of_stack,
    "REDUCE": _Machine._call,
    "NEWOBJ": _Machine._call,
    "BUILD": _Machine._build,
    "BINPERSID": _Machine._identity,
}


def _key(key: Any) -> str | int:
    """A key of a dictionary: text, or a number. Others could be nested so deeply that Python's own hash of them would crash."""
    _check(isinstance(key, str | int))
    return key


def _check(right: bool, what: str = "") -> None:
    if not right:
        raise Unreadable(what)


def _said(name: str) -> str:
    name = printable(name)
    return name if len(name) <= _MOST_SAID else f"{name[:_MOST_SAID]}..."
