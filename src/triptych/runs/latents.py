"""Latents of images: several arrays to an image, their file, and the way from one image to another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from triptych.core.config import Config
from triptych.core.errors import ConfigError, DataError
from triptych.core.files import explain
from triptych.core.given import shown, whole_number, whole_numbers
from triptych.core.npz import DamagedArchive, Header, open_npz, read_npz
from triptych.core.reading import parsed_json
from triptych.core.wording import counted
from triptych.data.latents import holds_latents
from triptych.runs.files import check_archive, check_place, save_npz

PathName = Literal["linear", "sphere"]
_SETTINGS = "settings"
_SMALLEST_SINE = 1e-6  # of the angle between two latents: below it they lie on one line, and a sphere has no shortest way


@dataclass(frozen=True)
class Latents:
    """What images are to a model."""

    arrays: tuple[np.ndarray, ...]
    "float32 (n, ...) each; of a diffusion model one array of noise, (n, c, h, w)."
    labels: np.ndarray | None
    "The labels of the images, int64 (n,), or None."
    settings: Mapping[str, Any] | None = None
    "Those of the encoder that they are from, by which they are decoded; None: nobody said."

    def __len__(self) -> int:
        return len(self.arrays[0])

    @property
    def digest(self) -> str:
        """A SHA-256 of the arrays, by which other latents are told from these."""
        hashed = hashlib.sha256()
        for array in self.arrays:
            hashed.update(f"{array.dtype} {array.shape}".encode())
            hashed.update(np.ascontiguousarray(array).data)
        return hashed.hexdigest()

    def first(self, count: int) -> Latents:
        """Those of the first `count` images."""
        return self._rows(slice(count))

    def chosen(self, numbers: Sequence[int], *, setting: str = "pick") -> Latents:
        """Those of some images, in the order of their numbers. Raises ConfigError about `setting` for numbers that are not there."""
        numbers = whole_numbers(numbers, setting)
        wrong = next((number for number in numbers if not 0 <= number < len(self)), None)
        if wrong is not None:
            raise ConfigError(setting, f"got {wrong}, expected 0 to {len(self) - 1}, the latents that are there")
        if not numbers:
            raise ConfigError(setting, "got an empty list, expected at least one latent")
        return self._rows(np.asarray(numbers, dtype=np.int64))

    def repeated(self, count: int) -> Latents:
        """Each `count` times, one copy after the other."""
        return self._rows(np.arange(len(self)).repeat(count))

    def _rows(self, rows: slice | np.ndarray) -> Latents:
        return replace(self, arrays=tuple(array[rows] for array in self.arrays), labels=None if self.labels is None else self.labels[rows])

    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of an image's latents."""
        return [array.shape[1:] for array in self.arrays]


@dataclass(frozen=True)
class Sampled:
    """Latents that no file holds: those of the samples of a seed, which `triptych sample` would draw."""

    seed: int = 0
    labels: Sequence[int | str] | None = None
    "Taken in turn, by number or name; None: all classes in turn."
    settings: Config | None = None
    "Of the sampler; None: those of the run."


def between(latents: Latents, first: int, last: int, count: int, *, path: PathName = "linear", noise_from: int | None = None) -> Latents:
    """`count` latents at even distances on the way from one to another, the two included, exactly as they are.

    linear: z = (1 - a) z_1 + a z_2, a from 0 to 1. sphere: z = (sin((1 - a) w) z_1 + sin(a w) z_2) / sin w, w the angle between the two
    (Shoemake 1985): the length changes evenly, where on the straight line between two independent noises it falls to 0.7 of theirs.
    Arrays from `noise_from` on are noise (None: they are latents as the others), and each goes on a sphere of its own whatever the path.
    The labels are theirs where both have the same, else None. Raises ConfigError for latents that are not there.
    """
    if path not in get_args(PathName):
        raise ConfigError("path", f"got {shown(path)}, expected {' or '.join(get_args(PathName))}")
    if whole_number(count, "count") < 2:
        raise ConfigError("count", f"got {count}, expected at least 2 between two latents")
    ends = checked(latents).chosen((first, last), setting="between")
    split = len(ends.arrays) if noise_from is None else noise_from
    made = _way(ends.arrays[:split], count, path=path)
    for noise in ends.arrays[split:]:
        made += _way((noise,), count, path="sphere")
    same = ends.labels is not None and ends.labels[0] == ends.labels[1]
    return Latents(made, np.repeat(ends.labels[:1], count) if ends.labels is not None and same else None)


def _way(ends: Sequence[np.ndarray], count: int, *, path: PathName) -> tuple[np.ndarray, ...]:
    """The arrays (count, ...) of the way between pairs (2, ...), all at one angle."""
    shares = np.linspace(0, 1, count)
    weights = np.stack((1 - shares, shares))
    angle = _angle(ends) if path == "sphere" else 0.0
    if np.sin(angle) > _SMALLEST_SINE:
        weights = np.sin(weights * angle) / np.sin(angle)
    return tuple(np.tensordot(weights.T.astype(np.float32), array, axes=1) for array in ends)


def _angle(pair: Sequence[np.ndarray]) -> float:
    """The angle between two latents, all levels together, in radians."""
    products = np.zeros((2, 2))
    for array in pair:
        rows = array.reshape(2, -1).astype(np.float64)
        products += rows @ rows.T
    lengths = np.sqrt(products[0, 0] * products[1, 1])
    return float(np.arccos(np.clip(products[0, 1] / lengths, -1, 1))) if lengths > 0 else 0.0


def checked(latents: object) -> Latents:
    """Latents as files of them hold them, with labels int64. Raises ConfigError for anything else."""
    if not isinstance(latents, Latents):
        raise ConfigError("latents", f"got {shown(latents)}, expected Latents, or the path of a file of them")
    arrays = latents.arrays
    if not arrays or not all(isinstance(array, np.ndarray) and array.dtype == np.float32 and array.ndim for array in arrays):
        found = ", ".join(str(getattr(array, "dtype", type(array).__name__)) for array in arrays) or "no array"
        raise ConfigError("latents", f"hold {found}, expected arrays of float32 (n, ...)")
    if len({len(array) for array in arrays}) > 1 or not len(latents):
        raise ConfigError(
            "latents", f"hold arrays of {', '.join(str(len(array)) for array in arrays)}, expected those of one image or more"
        )
    if not all(np.isfinite(array).all() for array in arrays):
        raise ConfigError("latents", "hold values that are not finite")
    if latents.labels is None:
        return latents
    labels = np.asarray(latents.labels)
    if labels.shape != (len(latents),) or not np.issubdtype(labels.dtype, np.integer):
        raise ConfigError("latents", f"have labels {shown(latents.labels)}, expected {counted(len(latents), 'whole number')}")
    return replace(latents, labels=labels.astype(np.int64))


# Files ---------------------------------------------------------------------------------------------------------------


def write_latents(path: Path, latents: Latents) -> None:
    """Writes an .npz with arr_0, then latent_1, latent_2 and so on where there are more, labels and settings; whole or not at all."""
    check_latents(path)
    others = {} if latents.labels is None else {"labels": latents.labels}
    if latents.settings is not None:
        others[_SETTINGS] = np.array(json.dumps(latents.settings))
    write_levels(path, latents.arrays, others)


def read_latents(path: Path) -> Latents:
    """The latents in a file of `write_latents`. Raises DataError for any other."""
    if holds_latents(path):
        reason = f"{path}: holds latents that triptych data encode wrote, for triptych train to learn"
        raise DataError(f"{reason}; give a file that triptych encode wrote")
    arrays = read_arrays(path, kind="latents")
    labels, said = arrays.pop("labels", None), arrays.pop(_SETTINGS, None)
    levels = read_levels(path, arrays, kind="latents")
    if labels is not None and (labels.shape != levels[0].shape[:1] or not np.issubdtype(labels.dtype, np.integer)):
        raise DataError(f"{path}: its arrays are not of one length, or its labels are not whole numbers")
    return Latents(levels, None if labels is None else labels.astype(np.int64), None if said is None else _parsed(path, said))


def _parsed(path: Path, said: np.ndarray) -> Mapping[str, Any]:
    try:
        settings = parsed_json(str(said))
    except ValueError:
        settings = None
    if not isinstance(settings, Mapping):
        raise DataError(f"{path}: its settings are none by name; encode the images again")
    return settings


def encoded_with(path: Path, default: Config) -> Config:
    """The settings of the encoder that latents in a file are from; `default` where nothing says them, or they are of another encoder."""
    try:
        with open_npz(path) as file:
            return type(default).from_dict(_parsed(path, file.array(_SETTINGS))) if _SETTINGS in file.names else default
    except (OSError, MemoryError, DamagedArchive, ValueError, DataError):
        return default  # what is wrong with the file is said where it is read


def check_latents(path: Path) -> None:
    """DataError unless latents can go there: `check_name`, and a file that is there is one of latents."""
    check_name(path, kind="latents")
    known = ("labels.npy", f"{_SETTINGS}.npy")
    check_archive(path, "arr_0.npy", others=lambda name: name in known or name.startswith("latent_"), first=_is_level)


def _is_level(header: Header) -> bool:
    return header.dtype == np.float32 and len(header.shape) > 1


def check_name(path: Path, *, kind: str, option: str = "--out") -> None:
    """DataError unless latents, or what `kind` says, can go to a file of that name."""
    if path.suffix != ".npz":
        raise DataError(f"{path}: {kind} are written as .npz")
    check_place(path, option=option)


def write_levels(path: Path, levels: Sequence[np.ndarray], others: Mapping[str, np.ndarray]) -> None:
    """Writes an array for each level, and others by name; whole or not at all. Raises DataError."""
    try:
        save_npz(path, dict(zip(_level_names(len(levels)), levels, strict=True)) | dict(others))
    except OSError as error:
        raise DataError(f"cannot write {path}: {explain(error)}") from error


def read_arrays(path: Path, *, kind: str, advice: str = "") -> dict[str, np.ndarray]:
    """All arrays of an .npz by name. Raises DataError for a file that is none; `kind` says of what it should be."""
    if not path.is_file():
        found = "is no file" if path.exists() else "there is no such file"
        raise DataError(f"{path}: {found}; expected an .npz of {kind}{advice}")
    try:
        return read_npz(path)
    except (DamagedArchive, MemoryError) as error:
        raise DataError(f"{path}: is damaged, or no .npz of {kind}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {explain(error)}") from error


def read_levels(path: Path, arrays: Mapping[str, np.ndarray], *, kind: str) -> tuple[np.ndarray, ...]:
    """The arrays of the levels, which must be all that there are, float32, finite and of one length. Raises DataError."""
    levels = [arrays[name] for name in _level_names(len(arrays)) if name in arrays]
    if not levels or len(levels) != len(arrays) or any(level.dtype != np.float32 for level in levels):
        names = ", ".join(f"{name} ({array.dtype})" for name, array in arrays.items()) or "nothing"
        raise DataError(f"{path}: holds {names}, expected {kind}: arr_0, and latent_1 and so on where there are more, all float32")
    if any(level.ndim == 0 or not len(level) or not np.isfinite(level).all() for level in levels):
        raise DataError(f"{path}: holds no {kind}, or values that are not finite")
    if len({len(level) for level in levels}) > 1:
        raise DataError(f"{path}: its arrays are not of one length")
    return tuple(levels)


def not_finite(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """Which items have a value that is no finite number in one of the arrays (n, ...): bool (n,)."""
    return np.any([~np.isfinite(array).reshape(len(array), -1).all(1) for array in arrays], axis=0)


def _level_names(count: int) -> list[str]:
    return ["arr_0", *(f"latent_{k}" for k in range(1, count))]
