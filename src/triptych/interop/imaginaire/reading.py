"""Sections of imaginaire's YAML files, read one setting at a time, and the models that they name."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast, get_args

from triptych.core.errors import ConfigError, nearest
from triptych.core.given import shown

ModelType = Literal["spade", "pix2pixHD", "unit", "munit", "funit", "coco_funit", "vid2vid", "fs_vid2vid", "wc_vid2vid"]
"""As the last part of `gen.type`."""

MODEL_TYPES = cast(tuple[ModelType, ...], get_args(ModelType))
VIDEO: tuple[ModelType, ...] = ("vid2vid", "fs_vid2vid", "wc_vid2vid")
"""Those of clips."""
MOST = 10_000
"""Of layers, scales and channels that a YAML file may ask for: more is a mistake."""


class Settings:
    """A section of a YAML file. The sections of one file share `read`, the dotted names of the settings read, and `warnings`."""

    def __init__(self, values: Any, section: str = "", parent: Settings | None = None) -> None:
        if not isinstance(values, Mapping):
            raise ConfigError(section, f"got {shown(values)}, expected a table of settings")
        self.values, self.section = values, section
        self.read: set[str] = set() if parent is None else parent.read
        self.warnings: list[str] = [] if parent is None else parent.warnings

    def inside(self, key: str) -> Settings:
        """A section within; empty where there is none."""
        value = self.values.get(key)
        return Settings({} if value is None else value, self.name(key), self)

    def changed(self, values: Mapping[str, Any]) -> Settings:
        """The section with other values."""
        return Settings(values, self.section, self)

    def name(self, key: str) -> str:
        """The dotted name of a setting in this section."""
        return f"{self.section}.{key}" if self.section else key

    def require(self, holds: bool, key: str, expected: str) -> None:
        """Raises ConfigError unless `holds`: names the setting, what stands there and what is `expected`."""
        if not holds:
            raise ConfigError(self.name(key), f"got {shown(self.values.get(key))}, expected {expected}")

    def warn(self, key: str, text: str) -> None:
        """Keeps a warning about a setting."""
        self.warnings.append(f"{self.name(key)}: {text}")

    def value(self, key: str, default: Any = None) -> Any:
        """What stands under a key, whatever it is; `default` where nothing does."""
        self.read.add(self.name(key))
        value = self.values.get(key)
        return default if value is None else value

    def number(self, key: str, default: int | None = None, *, least: int = 1, most: int = MOST) -> int:
        """A whole number; 1e9 is one."""
        value = self.value(key, default)
        whole: Any = int(value) if isinstance(value, float) and value.is_integer() else value
        fits = isinstance(whole, int) and not isinstance(whole, bool) and least <= whole <= most
        self.require(fits, key, f"a whole number from {least} to {most}")
        return whole

    def factor(self, key: str, default: float | None = None, *, least: float = -math.inf, most: float = math.inf) -> float:
        """A finite number."""
        value = self.value(key, default)
        fits = (
            isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max and least <= value <= most
        )
        bounds = "" if least == -math.inf else f" of at least {least:g}" if most == math.inf else f" from {least:g} to {most:g}"
        self.require(fits, key, f"a number{bounds}")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.factor(key, default)
        self.require(value > 0, key, "a positive number")
        return value

    def rate(self, key: str, default: float | None = None) -> float:
        """A number from 0 to below 1."""
        value = self.factor(key, default, least=0)
        self.require(value < 1, key, "a number from 0 to below 1")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self.value(key, default)
        self.require(isinstance(value, bool), key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.value(key, default)
        self.require(isinstance(value, str), key, "text")
        return value

    def texts(self, key: str, expected: str) -> list[str]:
        """A list of texts, or a single one; `expected`: in the error."""
        value = self.value(key)
        texts = [value] if isinstance(value, str) else [] if value is None else value
        self.require(isinstance(texts, list) and all(isinstance(text, str) and text for text in texts), key, expected)
        return texts

    def choice(self, key: str, allowed: Iterable[str], default: str | None = None) -> str:
        """One of some words; an empty one is "none"."""
        value, allowed = self.value(key, default) or "none", tuple(allowed)
        self.require(value in allowed, key, f"one of {', '.join(map(repr, allowed))}{nearest(str(value), allowed)}")
        return value


def model_types(config: Any) -> dict[str, ModelType]:
    """The models of a YAML file's `gen` and `dis`; one without a type has the other's. ConfigError where neither has one, or is unknown."""
    if not isinstance(config, Mapping):
        raise ConfigError("", f"got {shown(config)}, expected a table with the sections gen and dis")
    values = {section: Settings(config.get(section) or {}, section).values.get("type") for section in ("gen", "dis")}
    types: dict[str, ModelType] = {name: _model_type(f"{name}.type", value) for name, value in values.items() if value is not None}
    if not types:
        raise ConfigError("gen.type", f"missing, expected imaginaire.generators.NAME with NAME one of {', '.join(MODEL_TYPES)}")
    if types.get("gen") == "fs_vid2vid" and types.get("dis") == "vid2vid":
        types["dis"] = "fs_vid2vid"
    return {section: types.get(section, next(iter(types.values()))) for section in values}


def is_foreign(value: Any) -> bool:
    """Whether a type names code of others: a dotted name that does not begin with the program's."""
    return isinstance(value, str) and "." in value and not value.startswith("imaginaire.")


def _model_type(setting: str, value: Any) -> ModelType:
    if is_foreign(value):
        raise ConfigError(setting, f"got {shown(value)}, expected one that begins with 'imaginaire.': code of others is not run")
    name = value.rpartition(".")[2] if isinstance(value, str) else value
    if name == "multires_patch":
        return "pix2pixHD"
    if name == "fs_vid2vid" and setting.startswith("dis"):  # vid2vid has this discriminator
        return "vid2vid"
    if name not in MODEL_TYPES:
        raise ConfigError(
            setting, f"got {shown(value)}, expected one that ends in {', '.join(MODEL_TYPES)}{nearest(str(name), MODEL_TYPES)}"
        )
    return name
