"""Names and shapes of imaginaire's weights, and sections of its YAML files, asked one thing at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, cast, get_args

from torch import Tensor

from triptych.core.errors import CheckpointError, ConfigError, nearest
from triptych.gans.norms import NormKind
from triptych.gans.weight_norms import WeightNorm

ModelType = Literal["spade", "pix2pixHD", "unit", "munit", "funit", "coco_funit"]
"""As the last part of `gen.type`."""

MODEL_TYPES = cast(tuple[ModelType, ...], get_args(ModelType))
MOST = 10_000
"""Of layers, scales and channels that a YAML file may ask for: more is a mistake."""


class Weights:
    """The tensors of a network, asked by name."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.state = state

    def has(self, pattern: str) -> bool:
        """Whether a name begins with what the pattern describes."""
        return any(re.match(pattern, name) for name in self.state)

    def count(self, pattern: str) -> int:
        """How many different numbers stand in the names for the one group of the pattern."""
        return len({match[1] for match in (re.match(pattern, name) for name in self.state) if match})

    def shape(self, name: str, *, axes: int) -> tuple[int, ...]:
        """The shape of a tensor of at least `axes` axes, none of them empty."""
        if name not in self.state:
            raise CheckpointError(f"the file is incomplete: it has no {name}")
        shape = tuple(self.state[name].shape)
        if len(shape) < axes or 0 in shape:
            raise CheckpointError(f"{name} has shape {list(shape)}, expected {axes} axes")
        return shape

    def weight(self, stem: str, *, axes: int = 4) -> tuple[int, ...]:
        """The shape of a layer's weight (out, in, ...), whatever normalises it."""
        for last in ("weight_orig", "weight"):
            if f"{stem}.{last}" in self.state:
                return self.shape(f"{stem}.{last}", axes=axes)
        # Weight norm's direction is called like the right vector of spectral norm, which has one axis.
        return self.shape(f"{stem}.{'weight_v' if f'{stem}.weight_g' in self.state else self.weight_name}", axes=axes)

    @property
    def weight_norm(self) -> WeightNorm:
        """How the weights are normalised."""
        if any(name.endswith("weight_orig") for name in self.state):
            return "spectral"
        return "weight" if any(name.endswith("weight_g") for name in self.state) else "none"

    def norm_of(self, stem: str) -> WeightNorm:
        """How the weight of one layer is normalised."""
        names = {"weight_orig": "spectral", "weight_g": "weight"}
        return cast(WeightNorm, next((norm for last, norm in names.items() if f"{stem}.{last}" in self.state), "none"))

    @property
    def weight_name(self) -> str:
        """The name that most layers' weights have."""
        return {"none": "weight", "spectral": "weight_orig", "weight": "weight_v"}[self.weight_norm]

    def norm_first(self, block: str) -> bool | None:
        """Whether a block's norm comes before its convolution, as far as the order of the names tells; None: it has no norm."""
        names = [name for name in self.state if name.startswith(f"{block}.layers.")]
        return names[0].startswith(f"{block}.layers.norm.") if any(".layers.norm." in name for name in names) else None


class Settings:
    """A section of a YAML file; what it leaves out comes from elsewhere. It notes in `asked` what was asked for, by its dotted name."""

    def __init__(self, values: Any, section: str, asked: set[str] | None = None) -> None:
        if not isinstance(values, Mapping):
            raise ConfigError(section, f"got {values!r}, expected a table of settings")
        self.values, self.section = values, section
        self.asked: set[str] = set() if asked is None else asked

    def name(self, key: str) -> str:
        """The dotted name of a setting in this section."""
        return f"{self.section}.{key}" if self.section else key

    def value(self, key: str) -> Any:
        """What stands under a key, whatever it is; None: nothing."""
        self.asked.add(self.name(key))
        return self.values.get(key)

    def number(self, key: str, otherwise: Callable[[], int] | int, *, least: int = 1, most: int = MOST) -> int:
        """A whole number; 1e9 is one."""
        value = self.value(key)
        if value is None:
            return otherwise if isinstance(otherwise, int) else otherwise()
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if not isinstance(whole, int) or isinstance(whole, bool) or not least <= whole <= most:
            raise ConfigError(self.name(key), f"got {value!r}, expected a whole number from {least} to {most}")
        return whole

    def factor(self, key: str, otherwise: float, *, least: float = -math.inf, most: float = math.inf) -> float:
        """A finite number."""
        value = self.value(key)
        value = otherwise if value is None else value
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if not plain or not math.isfinite(value) or not least <= value <= most:
            bounds = "" if least == -math.inf else f" of at least {least:g}" if most == math.inf else f" from {least:g} to {most:g}"
            raise ConfigError(self.name(key), f"got {value!r}, expected a number{bounds}")
        return float(value)

    def flag(self, key: str, otherwise: bool) -> bool:
        """True or false."""
        value = self.value(key)
        value = otherwise if value is None else value
        if not isinstance(value, bool):
            raise ConfigError(self.name(key), f"got {value!r}, expected true or false")
        return value

    def text(self, key: str, otherwise: str) -> str:
        """A text."""
        value = self.value(key)
        value = otherwise if value is None else value
        if not isinstance(value, str):
            raise ConfigError(self.name(key), f"got {value!r}, expected text")
        return value

    def choice(self, key: str, otherwise: str, allowed: Iterable[str]) -> Any:
        """One of some words; an empty one is "none"."""
        value, allowed = self.value(key), tuple(allowed)
        value = (otherwise if value is None else value) or "none"
        if value not in allowed:
            hint = nearest(str(value), allowed)
            raise ConfigError(self.name(key), f"got {value!r}, expected one of {', '.join(map(repr, allowed))}{hint}")
        return value

    def norm(self, key: str, otherwise: NormKind) -> NormKind:
        """A kind of norm."""
        return self.choice(key, otherwise, get_args(NormKind))

    def inside(self, key: str) -> Settings:
        """A section within; empty where there is none."""
        value = self.values.get(key)
        return Settings({} if value is None else value, self.name(key), self.asked)


def model_types(config: Any) -> dict[str, ModelType]:
    """The model of each of a YAML file's sections `gen` and `dis`; one without a type has the other's.

    Raises ConfigError where neither has one, and for types that are not known.
    """
    if not isinstance(config, Mapping):
        raise ConfigError("", f"got {config!r}, expected a table with the sections gen and dis")
    given = {section: Settings(config.get(section) or {}, section).values.get("type") for section in ("gen", "dis")}
    found: dict[str, ModelType] = {name: _type_of(f"{name}.type", value) for name, value in given.items() if value is not None}
    if not found:
        raise ConfigError("gen.type", f"missing, expected imaginaire.generators.NAME with NAME one of {', '.join(MODEL_TYPES)}")
    one = next(iter(found.values()))
    return {name: found.get(name, one) for name in given}


OWN = "imaginaire."
"""What the types begin with that are the program's own."""

DISCRIMINATOR_TYPES: dict[str, ModelType] = {"multires_patch": "pix2pixHD"}
"""The discriminators that are called otherwise than their model."""


def _type_of(setting: str, value: Any) -> ModelType:
    name = value.rpartition(".")[2] if isinstance(value, str) else value
    outside = isinstance(value, str) and "." in value and not value.startswith(OWN)
    if isinstance(name, str) and name in DISCRIMINATOR_TYPES and not outside:
        return DISCRIMINATOR_TYPES[name]
    if outside:
        raise ConfigError(setting, f"got {value!r}, expected one that begins with {OWN!r}: code of others is not run")
    if name not in MODEL_TYPES:
        raise ConfigError(setting, f"got {value!r}, expected one that ends in {', '.join(MODEL_TYPES)}{nearest(str(name), MODEL_TYPES)}")
    return name
