"""Typed configurations: frozen dataclasses that go to plain dictionaries and back without loss.

    @config
    class OptimizerConfig(Config):
        learning_rate: float = 1e-4
        "Step size after warm-up."
        def validate(self) -> None:
            self.require(self.learning_rate > 0, "learning_rate", "a positive number")

A field annotated with a base class (`model: ModelConfig`) may hold any subclass; its dictionary then names it under
"kind", by the `kind_name` that the class gives itself ("adm"). Files keep that name, wherever the class moves. A kind is found
among the classes already imported and the modules of Triptych; nothing else is ever imported on the word of a file. Where a
class has a setting called "kind", the word means that, and no subclass.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from triptych.core.errors import ConfigError, nearest

_PACKAGE = __name__.partition(".")[0]
_INT_LIMIT = 2**63
_MOST_SHOWN = 200  # characters of a value in a message


T = TypeVar("T")
C = TypeVar("C", bound="Config")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """The class as a frozen, slotted, keyword-only dataclass."""
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)


@config
class Config:
    """Base of every configuration."""

    kind_name: ClassVar = ""
    "What files call this class where one of several may stand; it never changes. Each such class has its own."
    changeable: ClassVar[frozenset[str]] = frozenset()
    "Names of the settings that may change when a run goes on; the others are refused."
    fixed: ClassVar[frozenset[str] | None] = None
    "Of a class whose settings may change but for a few: the names of these; None: `changeable` counts."
    unwritten: ClassVar[frozenset[str]] = frozenset()
    "Names of the settings that a dictionary leaves out where they have their default: it then reads as before they were there."

    def __init_subclass__(cls) -> None:
        if "__post_init__" in cls.__dict__:
            raise TypeError(f"{cls.__qualname__} has a __post_init__, which would replace the checks of its bases; call it validate")

    def __post_init__(self) -> None:
        for cls in reversed(type(self).__mro__):
            if issubclass(cls, Config) and "validate" in cls.__dict__:
                cls.validate(self)

    def validate(self) -> None:
        """Raises ConfigError for a value out of range. The `validate` of every base class runs by itself, the base's first."""

    @classmethod
    def may_change(cls, setting: str) -> bool:
        """Whether a run may go on with another value of the setting."""
        return setting in cls.changeable if cls.fixed is None else setting not in cls.fixed

    def require(self, condition: bool, setting: str, allowed: str) -> None:
        """Raises ConfigError unless `condition` holds: names the setting, what was given and what is `allowed`."""
        if not condition:
            raise ConfigError(setting, f"got {spelled(getattr(self, setting))}, expected {allowed}")

    def check_types(self) -> None:
        """Raises ConfigError for a value of another type than its setting's: what is not built by `from_dict` may have one."""
        for name, annotation in field_types(type(self)).items():
            try:
                convert(getattr(self, name), annotation)
            except ConfigError as error:
                raise error.inside(name) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries, lists, numbers, strings, booleans and None: what JSON can hold."""
        hints = field_types(type(self))
        return {
            field.name: _plain(value, hints[field.name])
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default or field.name not in self.unwritten
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The configuration that `values` describes; absent settings keep their defaults.

        Raises ConfigError for an unknown name (with the nearest one), a wrong type or a value out of range.
        """
        return _build(cls, values, None)

    def updated(self, values: Mapping[str, Any]) -> Self:
        """A copy with `values` laid over it, section by section. Raises ConfigError as `from_dict` does."""
        return _build(type(self), values, self)


def settings_like(default: C, settings: Config | None) -> C:
    """The settings of a call, `default` for None. Raises ConfigError for those of something else."""
    if settings is None:
        return default
    if not isinstance(settings, type(default)):
        raise ConfigError("settings", f"{type(settings).__name__} are not the settings wanted here, {type(default).__name__}")
    return settings


@functools.cache
def field_types(cls: type[Config]) -> dict[str, Any]:
    """The resolved annotation of every field."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def kind_of(cls: type[Config]) -> str:
    """The name under which a dictionary refers to a configuration class; one without a name of its own is called by its module."""
    return cls.__dict__.get("kind_name") or f"{cls.__module__}:{cls.__qualname__}"


def _build(cls: type[C], values: Any, current: Any) -> C:
    """The configuration that `values` describes, laid over `current` where that is one of this class."""
    if not isinstance(values, Mapping):
        raise ConfigError("", f"got {_quoted(values)}, expected a table of settings")
    types_by_name = field_types(cls)
    if "kind" not in types_by_name:
        if values.get("kind", kind_of(cls)) != kind_of(cls):
            raise ConfigError("kind", f"got {values['kind']!r}, expected {kind_of(cls)!r}")
        values = {name: value for name, value in values.items() if name != "kind"}
    settings = {name: getattr(current, name) for name in types_by_name} if type(current) is cls else {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in types_by_name:
            raise ConfigError(str(key), f"unknown setting of {cls.__name__}{nearest(name, types_by_name)}")
        try:
            settings[name] = convert(value, types_by_name[name], settings.get(name))
        except ConfigError as error:
            raise error.inside(name) from None
    missing = [
        f.name
        for f in dataclasses.fields(cls)
        if f.name not in settings and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(missing[0], "missing, and it has no default")
    return cls(**settings)


def convert(value: Any, annotation: Any, current: Any = None) -> Any:
    """`value` as the annotated type; over `current` where that is a section. Raises ConfigError (with no setting named)."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, typing.get_args(annotation), current)
    if origin is typing.Literal:
        allowed = typing.get_args(annotation)
        if value not in allowed or isinstance(value, bool) != any(a is value for a in allowed if isinstance(a, bool)):
            names = ", ".join(map(repr, allowed))
            raise ConfigError("", f"got {_quoted(value)}, expected one of {names}{nearest(str(value), map(str, allowed))}")
        return allowed[allowed.index(value)]  # 3 for 3.0
    if origin is tuple:
        return _convert_tuple(value, typing.get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return _convert_section(value, annotation, current)
    return _convert_scalar(value, annotation)


def _convert_scalar(value: Any, annotation: Any) -> Any:
    if annotation is type(None) or annotation is None:
        if value is not None:
            raise ConfigError("", f"got {_quoted(value)}, expected nothing")
        return None
    if annotation is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) <= sys.float_info.max:
            raise ConfigError("", f"got {_quoted(value)}, expected a finite number")
        return float(value)
    if annotation is int and isinstance(value, float) and value.is_integer():  # 1e6 in a file of settings
        value = int(value)
    if isinstance(value, bool) != (annotation is bool) or not isinstance(value, annotation):
        raise ConfigError("", f"got {_quoted(value)}, expected {type_name(annotation)}")
    if annotation is int and not -_INT_LIMIT <= value < _INT_LIMIT:
        raise ConfigError("", f"got {_quoted(value)}, expected a whole number of at most 64 bits")
    return value


def _convert_union(value: Any, options: tuple[Any, ...], current: Any) -> Any:
    for option in options:
        if type(value) is option:
            return convert(value, option, current)
    kind = value.get("kind") if isinstance(value, Mapping) else None
    for option in options:
        if isinstance(option, type) and issubclass(option, Config) and kind == kind_of(option):
            return convert(value, option, current)
    reasons = {}
    for option in options:
        try:
            return convert(value, option, current)
        except ConfigError as error:
            if error.setting:
                raise
            reasons[option] = error.reason
    reasons.pop(type(None), None)
    if len(reasons) == 1:
        raise ConfigError("", *reasons.values())
    raise ConfigError("", f"got {_quoted(value)}, expected {' or '.join(map(type_name, options))}")


def _convert_tuple(value: Any, items: tuple[Any, ...]) -> tuple[Any, ...]:
    open_ended = len(items) == 2 and items[1] is Ellipsis
    if value is None and open_ended:
        return ()
    if not isinstance(value, list | tuple):
        raise ConfigError("", f"got {_quoted(value)}, expected a list of {type_name(items[0])}")
    if open_ended and holds_section(items[0]):
        return tuple(_convert_table(table, items[0], number) for number, table in enumerate(value))
    if open_ended:
        return tuple(convert(item, items[0]) for item in value)
    if len(value) != len(items):
        raise ConfigError("", f"got {spelled(value)}, expected {len(items)} values")
    return tuple(convert(item, annotation) for item, annotation in zip(value, items, strict=True))


def _convert_table(value: Any, annotation: Any, number: int) -> Any:
    try:
        return convert(value, annotation)
    except ConfigError as error:
        raise error.inside(f"[{number}]") from None


def holds_section(annotation: Any) -> bool:
    """Whether a setting of this type is a section, may be one, or is a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return True
    return any(map(holds_section, typing.get_args(annotation)))


def _convert_section(value: Any, annotation: type[Config], current: Any) -> Config:
    if isinstance(value, annotation):
        return value
    named = isinstance(value, Mapping) and "kind" in value and "kind" not in field_types(annotation)
    cls = _resolve_kind(value["kind"], annotation) if named else type(current) if isinstance(current, Config) else annotation
    return _build(cls, value, current)


def _resolve_kind(kind: Any, base: type[Config]) -> type[Config]:
    if not isinstance(kind, str):
        raise ConfigError("kind", f"got {_quoted(kind)}, expected text")
    if kind not in _kinds(base):
        for module in modules_that_name(kind):
            importlib.import_module(module)
    kinds = _kinds(base)
    if kind not in kinds:
        raise ConfigError("kind", f"unknown {_quoted(kind)}{nearest(kind, kinds)}")
    return kinds[kind]


def _kinds(cls: type[Config]) -> dict[str, type[Config]]:
    """The class and its subclasses that are imported, by their kind."""
    # By name: making a dataclass slotted replaces the class, and the replaced one is still listed as a subclass.
    kinds = {kind_of(cls): getattr(sys.modules.get(cls.__module__), cls.__qualname__, cls)}
    for subclass in cls.__subclasses__():
        kinds |= _kinds(subclass)
    return kinds


def modules_that_name(kind: str) -> Iterator[str]:
    """The modules of Triptych in whose source a class gives itself this name."""
    root = Path(__file__).parent.parent
    for path in sorted(root.rglob("*.py")):
        if f'kind_name: ClassVar = "{kind}"\n' in path.read_text("utf-8"):
            yield ".".join((_PACKAGE, *path.relative_to(root).with_suffix("").parts))


def _plain(value: Any, annotation: Any = None) -> Any:
    if isinstance(value, Config):
        # A slotted dataclass replaces the class it decorates, so identity is that of the name.
        options = (annotation, *typing.get_args(annotation))
        declared = {kind_of(option) for option in options if isinstance(option, type) and issubclass(option, Config)}
        kind = kind_of(type(value))
        return ({} if declared == {kind} or "kind" in field_types(type(value)) else {"kind": kind}) | value.to_dict()
    if isinstance(value, tuple | list):
        items, *_ = (*typing.get_args(annotation), None)
        return [_plain(item, items) for item in value]
    return value


def spelled(value: Any) -> str:
    """A value in a message: text in quotes, the items of a list without brackets."""
    return _shown(value, lambda: ", ".join(map(str, value)) or "nothing") if isinstance(value, tuple | list) else _quoted(value)


def _quoted(value: Any) -> str:
    """A value as Python writes it."""
    return _shown(value, lambda: repr(value))


def _shown(value: Any, written: Callable[[], str]) -> str:
    """A value as it is written, cut where it is long: it may come from a hostile file."""
    try:
        text = written()
    except (ValueError, RecursionError):  # a number of more digits than Python writes; lists in lists in lists
        return f"something of type {type(value).__name__} that is too long to show"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def type_name(annotation: Any) -> str:
    """The annotation in a user's words."""
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "nothing"}
    if annotation in plain:
        return plain[annotation]
    if typing.get_origin(annotation) is typing.Literal:
        options = typing.get_args(annotation)
        return "one of " * (len(options) > 1) + ", ".join(map(repr, options))
    if typing.get_origin(annotation) is tuple:
        return f"a list of {type_name(typing.get_args(annotation)[0])}"
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return f"a table ({', '.join(field_types(annotation))})"
    return str(getattr(annotation, "__name__", annotation))
