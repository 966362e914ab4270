"""Images as a model's latents, and back."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from triptych.core.batch import DataSpec, RawBatch, share
from triptych.core.config import Config
from triptych.core.errors import ConfigError, DataError
from triptych.core.images import to_uint8
from triptych.core.model import Encoder
from triptych.core.rng import Rng
from triptych.engine.checkpoint import explain
from triptych.engine.distributed import World
from triptych.runs.files import check_place, save_npz
from triptych.runs.sampling import Samples, check_output, label_list, write_samples
from triptych.runs.translation import Pictures, open_pictures

T = TypeVar("T")


@dataclass(frozen=True)
class Latents:
    """What images are to a model."""

    arrays: tuple[np.ndarray, ...]
    "float32 (n, ...) each; of a diffusion model one array of noise, (n, c, h, w)."
    labels: np.ndarray | None
    "The labels of the images, int64 (n,), or None."

    def __len__(self) -> int:
        return len(self.arrays[0])

    def first(self, count: int) -> Latents:
        """Those of the first `count` images."""
        return Latents(tuple(array[:count] for array in self.arrays), None if self.labels is None else self.labels[:count])


class Coder:
    """A model with all that it takes to go between images and latents. In every process of a run; the first one writes."""

    def __init__(
        self, model: nn.Module, spec: DataSpec, settings: Config, *, batch_size: int, world: World, progress: Callable[[int], None]
    ) -> None:
        self.model, self.spec, self.settings = model, spec, settings
        self._encoder, self._num_classes = require_encoder(model), getattr(model, "num_classes", None)
        self._batch_size, self._world, self._progress = batch_size, world, progress

    @torch.no_grad()
    def encode(
        self,
        images: str | Path | np.ndarray | Pictures,
        *,
        count: int | None = None,
        labels: Sequence[int | str] | None = None,
        out: Path | None = None,
    ) -> Latents:
        """The latents of the first `count` (None: all) of images, at a path or uint8 (n, h, w, c); also written to `out`, an .npz.

        `labels` are taken in turn; None: those of the images. Raises ConfigError for labels that do not fit, DataError for images that
        cannot be used and where `out` cannot be written.
        """
        if out is not None:
            check_latents_name(out)
        pictures = self.open(images)
        count = pictures.count if count is None else count
        if not 1 <= count <= pictures.count:
            raise ConfigError("count", f"got {count}, expected 1 to {pictures.count}, the images that are there")
        chosen = pictures.labels(self.model, self.spec, count=count, given=labels)

        def part(indices: range) -> list[np.ndarray]:
            index = torch.arange(indices.start, indices.stop)
            batch = RawBatch(torch.from_numpy(pictures.load(indices)), None, index).to(self._world.device)
            rng = Rng(0, ("encode",), batch.index)
            made = self._encoder.encode(batch.images, labels=self._told(chosen, indices), rng=rng, settings=self.settings)
            return [latent.float().cpu().numpy() for latent in made]

        levels = zip(*self._shared(count, part), strict=True)
        latents = Latents(tuple(np.concatenate(level) for level in levels), chosen)
        if out is not None and self._world.is_main:
            write_latents(out, latents)
        return latents

    def decode(
        self, latents: Latents | str | Path, *, count: int | None = None, labels: Sequence[int | str] | None = None, out: Path | None = None
    ) -> Samples:
        """The images of the first `count` (None: all) of latents, given or in a file; also written to `out`: .png, .npz or a folder.

        `labels` are taken in turn; None: those that the images had. Raises ConfigError for labels and latents that do not fit, DataError
        for a file that cannot be read or written.
        """
        latents = latents if isinstance(latents, Latents) else read_latents(Path(latents))
        count = len(latents) if count is None else count
        if not 1 <= count <= len(latents):
            raise ConfigError("count", f"got {count}, expected 1 to {len(latents)}, the latents that are there")
        if out is not None:
            check_output(out, count=count)
        latents = latents.first(count)
        chosen = self._labels(latents, labels)
        samples = Samples(to_uint8(self._decoded(latents, chosen)).numpy(), chosen)
        if out is not None and self._world.is_main:
            write_samples(out, samples)
        return samples

    def error(self, images: str | Path | np.ndarray | Pictures, latents: Latents) -> float:
        """How far images are from what `encode` made of them, decoded: the mean over their values, in levels of 255."""
        levels = torch.from_numpy(self.open(images).load(range(len(latents)))).permute(0, 3, 1, 2).double()
        # Not of 8-bit images: to cut off what follows the point would add half a level.
        decoded = self._decoded(latents, latents.labels).double()
        return float(((decoded + 1) * 127.5 - levels).abs().mean())

    def open(self, images: str | Path | np.ndarray | Pictures) -> Pictures:
        """The images, of the model's size. Raises DataError for what cannot be used."""
        if isinstance(images, Pictures):
            return images
        if not isinstance(images, np.ndarray) and not Path(images).expanduser().exists():
            raise DataError(f"{images}: does not exist; expected a folder, .zip, .tar, .npz or .npy of images")
        return open_pictures(images, size=self.spec.image_size, channels=self.spec.channels)

    @torch.no_grad()
    def _decoded(self, latents: Latents, labels: np.ndarray | None) -> Tensor:
        """The images (n, c, h, w) in [-1, 1], in host memory."""

        def part(indices: range) -> Tensor:
            chosen = [torch.from_numpy(array[indices.start : indices.stop]).to(self._world.device) for array in latents.arrays]
            return self._encoder.decode(chosen, labels=self._told(labels, indices), settings=self.settings).float().cpu()

        return torch.cat(self._shared(len(latents), part))

    def _labels(self, latents: Latents, given: Sequence[int | str] | None) -> np.ndarray | None:
        if given is not None:
            return label_list(self.model, self.spec, count=len(latents), given=given)
        if self._num_classes is not None and latents.labels is None:
            raise ConfigError("labels", f"the latents have none, but this model needs one for each, from 0 to {self._num_classes - 1}")
        return latents.labels

    def _told(self, labels: np.ndarray | None, indices: range) -> Tensor | None:
        """The labels of some indices, where the model is conditional."""
        if labels is None or self._num_classes is None:
            return None
        return torch.from_numpy(labels[indices.start : indices.stop]).to(self._world.device)

    def _shared(self, count: int, part: Callable[[range], T]) -> list[T]:
        """What `part` gives for each batch of `count` images, in order; each process does its share."""
        own, made = share(count, rank=self._world.rank, world_size=self._world.size), []
        for start in range(own.start, own.stop, self._batch_size):
            indices = range(start, min(start + self._batch_size, own.stop))
            made.append(part(indices))
            self._progress(len(indices))
        return [one for process in self._world.gather(made) for one in process]


def require_encoder(model: nn.Module) -> Encoder:
    """The model as an encoder; ConfigError where it is none."""
    if not isinstance(model, Encoder):
        raise ConfigError("model", f"{type(model).__name__} encodes no images")
    return model


def write_latents(path: Path, latents: Latents) -> None:
    """Writes an .npz with arr_0, then latent_1, latent_2 and so on where there are more, and labels; whole or not at all."""
    check_latents_name(path)
    names = ["arr_0", *(f"latent_{k}" for k in range(1, len(latents.arrays)))]
    arrays: dict[str, Any] = dict(zip(names, latents.arrays, strict=True)) | ({} if latents.labels is None else {"labels": latents.labels})
    try:
        save_npz(path, arrays)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error


def check_latents_name(path: Path) -> None:
    """DataError unless latents can go to a file of that name."""
    if path.suffix != ".npz":
        raise DataError(f"{path}: latents are written as .npz")
    check_place(path)


def read_latents(path: Path) -> Latents:
    """The latents in a file of `write_latents`. Raises DataError for any other."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; expected an .npz of latents")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file.items()) if isinstance(file, np.lib.npyio.NpzFile) else {}
    except (EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: is damaged, or no .npz of latents") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {explain(error)}") from error
    labels = arrays.pop("labels", None)
    levels = [arrays[name] for name in ["arr_0", *(f"latent_{k}" for k in range(1, len(arrays)))] if name in arrays]
    if not levels or len(levels) != len(arrays) or any(level.dtype != np.float32 for level in levels):
        found = ", ".join(f"{name} ({array.dtype})" for name, array in arrays.items()) or "nothing"
        raise DataError(f"{path}: holds {found}, expected latents: arr_0, and latent_1 and so on where there are more, all float32")
    if any(level.ndim == 0 or not len(level) or not np.isfinite(level).all() for level in levels):
        raise DataError(f"{path}: holds no latents, or values that are not finite")
    lengths = {len(level) for level in levels} | (set() if labels is None else {labels.size})
    if len(lengths) > 1 or (labels is not None and (labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer))):
        raise DataError(f"{path}: its arrays are not of one length, or its labels are not whole numbers")
    return Latents(tuple(levels), None if labels is None else labels.astype(np.int64))
