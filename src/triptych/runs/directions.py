"""Directions in the space of a model's latents: what an attribute of images (a smile, a class) is there, and images moved along it.

As in the demo of Glow, "Glow: Generative Flow with Invertible 1x1 Convolutions", Kingma and Dhariwal 2018, https://arxiv.org/abs/1807.03039:

    dz = 1.6 (mean z of the images with the attribute - mean z of those without)

over all levels at once; z + s dz has more of the attribute, and <z, dz> / |dz|^2 says how much of dz is in z.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import numpy as np

from triptych.core.config import spelled
from triptych.core.errors import ConfigError, DataError, nearest
from triptych.core.given import shown, whole_number, whole_numbers
from triptych.runs.files import check_archive
from triptych.runs.latents import Latents, PathName, between, check_name, read_arrays, read_levels, write_levels
from triptych.runs.mixing import first_style, mixed

LENGTH = 1.6
"""Length of a direction, in distances of the two means: the original's, so that its strengths, from -1 to 1, have the same effect."""

DIRECTIONS = "directions.npz"
"""The file in a run's directory where no other is named."""

IMAGES_ALONG = 9
"""Images on a way where no number is given."""

SAMPLES = 64
"""Samples that are moved where no number is given."""

_MOST_MIXED = 2**16
_BLOCK_VALUES = 2**22  # of latents that are added up in float64 at a time: 32 MiB
Range = tuple[float, float]


@dataclass(frozen=True)
class Directions:
    """A direction for each of some attributes."""

    names: tuple[str, ...]
    "Of the attributes."
    arrays: tuple[np.ndarray, ...]
    "float32 (attributes, ...) each, for each array of the latents."

    def __len__(self) -> int:
        return len(self.names)

    def of(self, name: str) -> tuple[np.ndarray, ...]:
        """The direction of an attribute: an array for each of the latents. Raises ConfigError, with the nearest, for an unknown one."""
        if name not in self.names:
            raise ConfigError("direction", f'unknown direction "{name}"{nearest(name, self.names)} (there is {", ".join(self.names)})')
        return tuple(array[self.names.index(name)] for array in self.arrays)

    def applied(self, latents: Latents, strengths: Mapping[str, float | Sequence[float] | np.ndarray]) -> Latents:
        """z + sum of s dz; a strength s for all latents, or one for each. Raises ConfigError for unknown directions and other latents.

        Latents may have more levels than the directions, which stay as they are: noise maps beside styles.
        """
        self._check(latents)
        arrays = [array.copy() for array in latents.arrays]
        for name, strength in strengths.items():
            with np.errstate(over="ignore"):
                factors = np.broadcast_to(np.asarray(strength, dtype=np.float64).astype(np.float32), len(latents))
            if not np.isfinite(factors).all():
                wrong = np.broadcast_to(np.asarray(strength), len(latents))[~np.isfinite(factors)][0]
                raise ConfigError("direction", f"got the strength {wrong} for {name}, expected finite numbers")
            for array, direction in zip(arrays, self.of(name), strict=False):
                array += factors.reshape(-1, *[1] * direction.ndim) * direction
        return replace(latents, arrays=tuple(arrays))

    def project(self, latents: Latents, name: str) -> np.ndarray:
        """<z, dz> / |dz|^2 over all levels, float64 (n,): s more after a move by s. Raises ConfigError as `applied` does."""
        self._check(latents)
        products, square = np.zeros(len(latents)), 0.0
        for array, direction in zip(latents.arrays, self.of(name), strict=False):
            line = direction.reshape(-1).astype(np.float64)
            square += float(line @ line)
            products += np.array([row.reshape(-1).astype(np.float64) @ line for row in array])
        if square == 0:
            raise ConfigError("direction", f"{name} is nothing: the images with and without it have the same mean")
        return products / square

    def _check(self, latents: Latents) -> None:
        shapes, wanted = latents.shapes(), [array.shape[1:] for array in self.arrays]
        if shapes[: len(wanted)] != wanted:
            theirs, these = (", ".join("x".join(map(str, shape)) for shape in each) for each in (wanted, shapes))
            raise ConfigError("direction", f"the directions are those of latents of {theirs} numbers, but these have {these}")


def directions_of(latents: Latents, groups: Mapping[str, np.ndarray]) -> Directions:
    """The direction of each attribute; `groups` tell which images have it, bool (n,). The means are taken in float64.

    Raises ConfigError for an attribute that all or none of the images have.
    """
    names = tuple(groups)
    for name in names:
        check_group(name, groups[name])
    members = np.stack([groups[name] for name in names])
    counts = members.sum(1)
    # Each image weighs 1 / n among those with the attribute, and -1 / m among those without: one product gives the difference.
    weights = LENGTH * np.where(members, 1 / counts[:, None], -1 / (members.shape[1] - counts[:, None]))
    return Directions(names, tuple(_weighted_sum(weights, array) for array in latents.arrays))


def check_group(name: str, members: np.ndarray, *, whose: str = "") -> None:
    """ConfigError unless some images have the attribute and some do not; `whose` says where it is from."""
    count = int(members.sum())
    if count in (0, len(members)):
        said = f"all of the {len(members)} images have" if count else f"none of the {len(members)} images has"
        said = said if len(members) > 1 else f"the only image {'has' if count else 'lacks'}"
        raise ConfigError("directions", f"{whose}{said} {name}; a direction needs images with and without: give others, or leave it out")


def _weighted_sum(weights: np.ndarray, array: np.ndarray) -> np.ndarray:
    """weights (k, n) times array (n, ...), summed in float64 a few images at a time: float32 (k, ...)."""
    rows = array.reshape(len(array), -1)
    total = np.zeros((len(weights), rows.shape[1]))
    step = max(1, _BLOCK_VALUES // rows.shape[1])
    for start in range(0, len(rows), step):
        total += weights[:, start : start + step] @ rows[start : start + step].astype(np.float64)
    return total.astype(np.float32).reshape(len(weights), *array.shape[1:])


# Files ---------------------------------------------------------------------------------------------------------------


def check_directions(path: Path, *, option: str = "--out") -> None:
    """DataError unless directions can go there: `check_name`, and a file that is there is one of directions."""
    check_name(path, kind="directions", option=option)
    check_archive(path, "names.npy", "arr_0.npy", option=option)


def write_directions(path: Path, directions: Directions) -> None:
    """Writes an .npz: names, and the arrays under the names of those of latents; whole or not at all. Raises DataError."""
    check_directions(path)
    write_levels(path, directions.arrays, {"names": np.array(directions.names)})


def read_directions(path: Path) -> Directions:
    """The directions in a file of `write_directions`. Raises DataError for any other."""
    advice = "; triptych encode RUN IMAGES --directions makes them"
    arrays = read_arrays(path, kind="directions", advice=advice)
    names = arrays.pop("names", None)
    if names is None:
        raise DataError(f"{path}: holds no names, expected directions{advice}")
    levels = read_levels(path, arrays, kind="directions")
    if names.dtype.kind != "U" or names.shape != (len(levels[0]),):
        raise DataError(f"{path}: its names are {names.dtype} of shape {names.shape}, expected {len(levels[0])} texts")
    if len(set(names.tolist())) < len(names):
        raise DataError(f"{path}: has two directions of one name")
    return Directions(tuple(names.tolist()), levels)


# What is asked for ---------------------------------------------------------------------------------------------------


def _strength(name: str, value: object) -> float | Range:
    """How far to go along a direction, or from where to where. Raises ConfigError for neither."""
    try:
        numbers = np.asarray(value)
    except ValueError:  # lists of several lengths
        numbers = np.asarray(None)
    if numbers.dtype.kind not in "iuf" or numbers.shape not in ((), (2,)):
        raise ConfigError("strengths", f"got {shown(value)} for {name}, expected a number, or two of them, from and to")
    return float(numbers) if numbers.ndim == 0 else (float(numbers[0]), float(numbers[1]))


@dataclass(frozen=True)
class Edit:
    """Which images are made of latents."""

    strengths: Mapping[str, float | Range] = field(default_factory=dict)
    "How far to go along directions, by name; a range (from, to), of one direction: `count` images along it."
    pick: Sequence[int] | None = None
    "Numbers of the latents; None: all."
    between: tuple[int, int] | None = None
    "Two latents: `count` images on the way from one to the other."
    path: PathName | None = None
    "The way between two latents, see `triptych.runs.latents.between`; None: the model's own, straight for one that has none."
    count: int | None = None
    "Images on a way (None: 9); elsewhere the first so many of the latents (None: all)."
    mix: tuple[int, int] | None = None
    "Rows and columns of a grid of mixed styles; the first of the latents are those of the rows, the next ones those of the columns."
    mix_at: int | None = None
    "Pixels of a side of the first layer that has the style of the column; None: the middle of the styles."

    def __post_init__(self) -> None:
        self._check_types()
        self._check_mix()
        ranges = self._ranges()
        if len(ranges) > 1:
            raise ConfigError("direction", f"got ranges for {' and '.join(ranges)}, expected one at most")
        if ranges and self.between is not None:
            raise ConfigError("between", f"got {spelled(self.between)} beside a range for {next(iter(ranges))}, expected one of the two")
        if self.pick is not None and self.between is not None:
            raise ConfigError("between", f"got {spelled(self.between)} beside {{}}, expected one of the two", ["pick"])
        least = 2 if self.columns and not self.mix else 1
        if self.count is not None and self.count < least:
            raise ConfigError("count", f"got {self.count}, expected at least {least}")

    def _check_types(self) -> None:
        if not isinstance(self.strengths, Mapping):
            raise ConfigError("strengths", f"got {shown(self.strengths)}, expected a strength for each of some directions, by name")
        object.__setattr__(self, "strengths", {name: _strength(name, value) for name, value in self.strengths.items()})
        for name, count in (("pick", None), ("between", 2), ("mix", 2)):
            value = getattr(self, name)
            if value is not None:
                numbers = whole_numbers(value, name, count=count)
                object.__setattr__(self, name, numbers if count is None else tuple(numbers))
        if self.path is not None:
            if self.path not in get_args(PathName):
                raise ConfigError("path", f"got {shown(self.path)}, expected {' or '.join(get_args(PathName))}")
            if self.between is None:
                raise ConfigError("path", f"got {self.path} without {{}}", ["between"])
        if self.count is not None:
            object.__setattr__(self, "count", whole_number(self.count, "count"))

    def _check_mix(self) -> None:
        if self.mix is None:
            if self.mix_at is not None:
                raise ConfigError("mix_at", f"got {self.mix_at}, expected nothing without {{}}", ["mix"])
            return
        if min(self.mix) < 1:
            raise ConfigError("mix", f"got {spelled(self.mix)}, expected rows and columns, 1 or more of each")
        if (self.mix[0] + 1) * (self.mix[1] + 1) > _MOST_MIXED:
            raise ConfigError("mix", f"got {spelled(self.mix)}, expected rows and columns of at most {_MOST_MIXED:,} images")
        for name in ("between", "count", "strengths"):
            if getattr(self, name):
                other = "direction" if name == "strengths" else name
                raise ConfigError("mix", f"got {spelled(self.mix)} beside {{}}, expected one of the two", [other])
        if self.pick is not None and len(self.pick) != sum(self.mix):
            wanted = f"{sum(self.mix)}, one for each row and column of {{}}"
            raise ConfigError("pick", f"got {len(self.pick)} latents, expected {wanted}", ["mix"])

    @property
    def columns(self) -> int | None:
        """The images on a way, or of a row of mixed styles, which are a row of the grid; None: there is no way."""
        if self.mix is not None:
            return self.mix[1] + 1
        return (self.count or IMAGES_ALONG) if self._ranges() or self.between is not None else None

    def picked(self, latents: Latents) -> Latents:
        """The latents that it begins with. Raises ConfigError for some that are not there."""
        if self.between is not None:
            return latents.chosen(self.between, setting="between")
        if self.mix is not None and self.pick is None:
            if len(latents) < sum(self.mix):
                wanted = f"at least {sum(self.mix)} latents, one for each; there are {len(latents)}"
                raise ConfigError("mix", f"got {spelled(self.mix)}, which needs {wanted}")
            return latents.first(sum(self.mix))
        latents = latents if self.pick is None else latents.chosen(self.pick)
        if self.columns is not None or self.count is None:
            return latents
        if self.count > len(latents):
            raise ConfigError("count", f"got {self.count}, expected 1 to {len(latents)}, the latents that are there")
        return latents.first(self.count)

    def numbers(self) -> list[int]:
        """Which samples it begins with, of as many as one likes. Raises ConfigError where nobody said."""
        if self.between is not None:
            return list(self.between)
        if self.pick is not None:
            if self.columns is None and (self.count or 0) > len(self.pick):
                raise ConfigError("count", f"got {self.count}, expected 1 to {len(self.pick)}, the samples of {{}}", ["pick"])
            return list(self.pick if self.columns is not None else self.pick[: self.count])
        if self.mix is not None:
            return list(range(sum(self.mix)))
        if self.columns is not None:
            raise ConfigError("pick", "got None, expected the numbers of the samples that are moved")
        return list(range(self.count or SAMPLES))

    def made_of(
        self, picked: Latents, directions: Directions | None, *, styles: Sequence[int] = (), noise_from: int | None = None
    ) -> Latents:
        """The latents of the images, a row of them after the other. Raises ConfigError for directions that are not there.

        `styles`: of a grid of mixed styles, the `style_sizes` of the model. `noise_from`: as of `between`.
        """
        if self.mix is not None:
            return mixed(picked, self.mix, first_fine=first_style(styles, self.mix_at))
        count = self.columns or 1
        if self.between is not None:
            made = between(picked, 0, 1, count, path=self.path or "linear", noise_from=noise_from)
        else:
            made = picked.repeated(count) if count > 1 else picked
        if not self.strengths:
            return made
        if directions is None:
            raise ConfigError("directions", f"none are given, but strengths of {', '.join(self.strengths)}")
        strengths = {
            name: np.tile(np.linspace(*strength, count), len(picked)) if isinstance(strength, tuple) else strength
            for name, strength in self.strengths.items()
        }
        return directions.applied(made, strengths)

    def _ranges(self) -> list[str]:
        return [name for name, strength in self.strengths.items() if isinstance(strength, tuple)]
