"""What flows from the data to a model: batches of images, and the description of where they come from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.core.config import Config, config
from triptych.core.errors import ConfigError


@config
class DataSpec(Config):
    """What a data source gives; a model's `build` reads it."""

    image_size: int
    "Height and width in pixels."
    channels: int
    "1 (grey) or 3 (RGB)."
    num_classes: int | None = None
    "Number of classes; None: the images have no labels."
    class_names: tuple[str, ...] | None = None
    "Names of the classes in the order of their labels; None: the images have no labels."

    def __post_init__(self) -> None:
        self.require(self.image_size >= 1, "image_size", "at least 1")
        self.require(self.channels in (1, 3), "channels", "1 or 3")

    def num_labels(self, *, class_conditional: bool) -> int | None:
        """The classes that a model of these images is told; None: it goes without. Raises ConfigError where there are none to tell."""
        if class_conditional and self.num_classes is None:
            raise ConfigError("class_conditional", "got true, but the data has no labels; set it to false, or give labelled data")
        return self.num_classes if class_conditional else None


def checked_labels(labels: Tensor | None, count: int, *, num_classes: int) -> Tensor:
    """The labels, int64 (count,); raises ConfigError unless there is one from 0 to num_classes - 1 for each image."""
    if labels is None:
        raise ConfigError("labels", f"this model needs labels, from 0 to {num_classes - 1}")
    if labels.shape != (count,):
        raise ConfigError("labels", f"got {labels.numel()} for {count} images")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        wrong = next(label for label in labels.tolist() if not 0 <= label < num_classes)
        raise ConfigError("labels", f"got {wrong}, expected 0 to {num_classes - 1}")
    return labels.long()


@dataclass(frozen=True)
class Batch:
    """Images in [-1, 1] (b, c, h, w), their labels (b,) or None, and the number of each sample (b,)."""

    images: Tensor
    labels: Tensor | None
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, samples: slice) -> Batch:
        """Some of the samples."""
        return Batch(self.images[samples], None if self.labels is None else self.labels[samples], self.index[samples])


@dataclass(frozen=True)
class RawBatch:
    """A batch as the loader gives it: uint8 images (b, h, w, c) in host memory."""

    images: Tensor
    labels: Tensor | None
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def to(self, device: torch.device | str) -> Batch:
        """The batch on `device`, its images normalised there to [-1, 1] (x / 127.5 - 1) and laid out channels last."""
        images = self.images.to(device, non_blocking=True).permute(0, 3, 1, 2).float().div_(127.5).sub_(1)
        labels = None if self.labels is None else self.labels.to(device, non_blocking=True)
        return Batch(images, labels, self.index.to(device, non_blocking=True))


def share(total: int, *, rank: int, world_size: int) -> range:
    """The consecutive samples of `total` that belong to a process; sizes differ by one at most."""
    return range(total * rank // world_size, total * (rank + 1) // world_size)
