"""What flows from the data to a model: batches of images, and the description of where they come from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.reading import LARGEST_SIDE, MOST_CLASSES

_MOST_CHANNELS, _MOST_FRAMES = 2**12, 2**16

IMAGES_B, STYLE, STYLE_LABELS = "images_b", "style", "style_labels"
"""Names of inputs: the images of domain b; those whose look is taken; the class of the latter. `Batch.images` are those of domain a.

The inputs of a `Batch` have the style images one by one, by `style_names`; those of a translation all of a sample as one tensor,
(b, k, c, h, w).
"""
IMAGES = "images"
"""Name of the images to be changed among the inputs of a translation."""


def style_map(name: str) -> str:
    """The name of the maps (or images) `name` that belong to style images."""
    return f"{name}_of_{STYLE}"


def style_names(count: int) -> tuple[str, ...]:
    """The names of so many style images of each sample."""
    return (STYLE,) if count == 1 else tuple(f"{STYLE}_{k + 1}" for k in range(count))


@config
class InputSpec(Config):
    """A further tensor of each sample, beside its image and its label."""

    unwritten: ClassVar = frozenset({"blank", "frames", "nearest", "references", "stored"})

    name: str
    "Its name in `Batch.inputs`."
    kind: Literal["image", "classes", "instances", "labels", "flow", "points"]
    """image: in [-1, 1] (b, c, h, w). classes, instances: class or object of each pixel, int64 (b, h, w). labels: a class each, int64 (b,).
    flow: of each pixel how many pixels (x, y) further it was in the frame before, float32 (b, 2, h, w); NaN where that is not known.
    points: the point of the scene that each pixel shows, int64 (b, h, w), numbered from 0 in each clip; -1 where none is known."""
    channels: int | None = None
    "image: 1 (grey), 3 (RGB), or as many as a latent has."
    num_classes: int | None = None
    "classes, labels: the number of classes."
    dont_care: bool = False
    "classes: whether there are pixels of class num_classes, the ignore index."
    blank: bool = False
    "classes: whether there are pixels of class num_classes that have no channel: all of theirs are 0."
    frames: int | None = None
    "image, classes, instances, flow, points: the frames of each sample, as the axis t behind b; None: there is no such axis."
    references: int | None = None
    "image, classes, instances: it is of so many other frames of the same clip, as the axis k behind b; None: of the sample itself."
    stored: Literal["pixels", "limbs", "densepose"] = "pixels"
    "image: what its files hold. limbs: bits of 27 channels, -1 or 1. densepose: u, v and the part, of 3 channels (`data.poses`)."
    nearest: bool = False
    "image: it is resized to the nearest pixel, so that it has no levels but those of its files."

    def validate(self) -> None:
        fits = _counts(self.channels, _MOST_CHANNELS) if self.kind == "image" else self.channels is None
        self.require(fits, "channels", f"1 to {_MOST_CHANNELS:,} for an image, nothing for others")
        counted = self.kind in ("classes", "labels")
        self.require((self.num_classes is not None) == counted, "num_classes", "a number for classes and labels, nothing for others")
        self.require(self.num_classes is None or _counts(self.num_classes, MOST_CLASSES), "num_classes", f"1 to {MOST_CLASSES:,}")
        self.require(not self.dont_care or self.kind == "classes", "dont_care", "false but for classes")
        self.require(not self.blank or (self.kind == "classes" and not self.dont_care), "blank", "false but for classes without dont_care")
        self.require(not self.nearest or (self.kind == "image" and self.stored == "pixels"), "nearest", "false but for images of pixels")
        framed = self.frames is None or (_counts(self.frames, _MOST_FRAMES) and self.kind != "labels")
        self.require(framed, "frames", f"1 to {_MOST_FRAMES:,}, or nothing; nothing for labels")
        shown = self.kind in ("image", "classes", "instances") and self.frames is None
        others = self.references is None or (_counts(self.references, _MOST_FRAMES) and shown)
        self.require(others, "references", f"1 to {_MOST_FRAMES:,} for images and maps without frames, or nothing")
        channels = {"pixels": self.channels, "limbs": 27, "densepose": 3}[self.stored]
        self.require(self.channels == channels, "stored", "pixels, limbs of an image of 27 channels, or densepose of one of 3")


@config
class ClipLength(Config):
    """How many frames of a clip a training sees, as a function of the clips that it has seen."""

    first: int = 4
    "Frames of a clip at the beginning, and of held-out clips; those of pans have the most."
    alone: int = 0
    "Before that so many clips have one frame each: a generator of frames learns these at the price of single images."
    most: int = 16
    "The most frames."
    double_every: int | None = None
    "The number doubles each time that so many further clips were seen, up to `most`; None: it stays."

    def validate(self) -> None:
        self.require(_counts(self.first, _MOST_FRAMES), "first", f"1 to {_MOST_FRAMES:,}")
        self.require(self.first <= self.most and _counts(self.most, _MOST_FRAMES), "most", f"at least `first`, at most {_MOST_FRAMES:,}")
        self.require(self.alone >= 0, "alone", "0 or more")
        self.require(self.double_every is None or self.double_every >= 1, "double_every", "at least 1, or nothing")

    def at(self, clips_seen: int) -> int:
        """The frames of the next clip."""
        if clips_seen < self.alone:
            return 1
        clips_seen -= self.alone
        doublings = 0 if self.double_every is None else min(clips_seen // self.double_every, _MOST_FRAMES.bit_length())
        return min(self.most, self.first * 2**doublings)

    @property
    def longest_from(self) -> int:
        """Clips seen from which on they have the most frames."""
        if self.double_every is None:
            return self.alone
        return self.alone + math.ceil(math.log2(self.most / self.first)) * self.double_every


@config
class LatentSpec(Config):
    """What latents are of: images, and the autoencoder that encoded them and decodes what is made like them."""

    unwritten: ClassVar = frozenset({"darkest"})

    autoencoder: str
    "Folder of its run."
    checkpoint: int
    "Images seen by its checkpoint."
    weights: str
    "Which of its weights."
    sha256: str
    "Of their file."
    image_size: int
    "Of the images: height in pixels; the width too where there is no `width`."
    width: int | None = None
    "Width in pixels; None: the images are squares."
    channels: int
    "1 (grey) or 3 (RGB)."
    mean: tuple[float, ...]
    "Of each channel of the latents, as the autoencoder has them."
    std: tuple[float, ...]
    "Deviation of each channel."
    scaled_to: float = 0.5
    "The deviation that the samples have: latents are less `mean`, by `std`, times this."
    darkest: float = -1.0
    "What the autoencoder was shown for black, white being 1: -1, or 0 for the latents that published EDM2 learned."

    def validate(self) -> None:
        for name, most in (("image_size", LARGEST_SIDE), ("channels", 3)):
            self.require(_counts(getattr(self, name), most), name, f"1 to {most:,}")
        self.require(self.width is None or _counts(self.width, LARGEST_SIDE), "width", f"1 to {LARGEST_SIDE:,}, or nothing")
        self.require(len(self.mean) == len(self.std) and all(math.isfinite(value) for value in self.mean), "mean", "one for each std")
        self.require(all(0 < value < math.inf for value in self.std), "std", "positive numbers")
        self.require(0 < self.scaled_to < math.inf, "scaled_to", "a positive number")
        self.require(-1 <= self.darkest < 1, "darkest", "from -1 to below 1")

    def normalised(self, latents: Tensor) -> Tensor:
        """Latents of the autoencoder (b, z, h, w) as samples."""
        mean, std = self._moments(latents)
        return (latents - mean) * (self.scaled_to / std)

    def restored(self, samples: Tensor) -> Tensor:
        """Samples (b, z, h, w) as latents of the autoencoder."""
        mean, std = self._moments(samples)
        return samples * (std / self.scaled_to) + mean

    def seen(self, images: Tensor) -> Tensor:
        """Images in [-1, 1] as the autoencoder was shown them."""
        return images if self.darkest == -1 else self.darkest + (images + 1) * ((1 - self.darkest) / 2)

    def pictures(self, decoded: Tensor) -> Tensor:
        """What the autoencoder decodes as images in [-1, 1]."""
        return decoded if self.darkest == -1 else ((decoded - self.darkest) * (2 / (1 - self.darkest)) - 1).clamp(-1, 1)

    def _moments(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (torch.tensor(values, dtype=like.dtype, device=like.device)[:, None, None] for values in (self.mean, self.std))
        return mean, std


@config
class DataSpec(Config):
    """What a data source gives; a model's `build` reads it."""

    unwritten: ClassVar = frozenset({"frames", "clip_length", "latents"})

    image_size: int
    "Height in pixels; the width too where there is no `width`."
    channels: int
    "1 (grey), 3 (RGB), or as many as a latent has."
    num_classes: int | None = None
    "Number of classes; None: the images have no labels."
    class_names: tuple[str, ...] | None = None
    "Names of the classes in the order of their labels; None: the images have no labels."
    width: int | None = None
    "Width in pixels; None: the images are squares."
    inputs: tuple[InputSpec, ...] = ()
    "What else belongs to each sample."
    frames: int | None = None
    "Frames of each sample, as the axis t behind b; None: samples are single images. With a `clip_length` the most that one has."
    clip_length: ClipLength | None = None
    "How many frames the samples have in the course of a training; None: always as many."
    latents: LatentSpec | None = None
    "What the samples are latents of; None: they are images themselves."

    def validate(self) -> None:
        for name, most in (("image_size", LARGEST_SIDE), ("channels", _MOST_CHANNELS)):
            self.require(_counts(getattr(self, name), most), name, f"1 to {most:,}")
        for name, most in (("width", LARGEST_SIDE), ("num_classes", MOST_CLASSES), ("frames", _MOST_FRAMES)):
            self.require(getattr(self, name) is None or _counts(getattr(self, name), most), name, f"1 to {most:,}, or nothing")
        named = self.class_names is None or len(self.class_names) == self.num_classes
        self.require(named, "class_names", f"one for each of {self.num_classes or 'no'} classes, or nothing")
        grows = self.clip_length is None or self.clip_length.most == self.frames
        self.require(grows, "clip_length", "nothing, or one whose `most` is the number of frames")
        self.require(self.latents is None or len(self.latents.mean) == self.channels, "latents", f"means of {self.channels} channels")

    @property
    def height_and_width(self) -> tuple[int, int]:
        """Of the images, in pixels."""
        return self.image_size, self.width or self.image_size

    @property
    def bounded(self) -> bool:
        """Whether the samples are images, in [-1, 1], and not latents, which have no bounds."""
        return self.latents is None and self.channels in (1, 3)

    @property
    def undecoded(self) -> bool:
        """Whether the samples are latents of which no autoencoder is known, so that nothing shows them."""
        return self.latents is None and self.channels not in (1, 3)

    @property
    def pictured(self) -> DataSpec:
        """The images that the samples are, or are latents of."""
        images = self.latents
        if images is None:
            return self
        return replace(self, image_size=images.image_size, width=images.width, channels=images.channels, latents=None)

    def num_labels(self, *, class_conditional: bool) -> int | None:
        """The classes that a model of these images is told; None: it goes without. Raises ConfigError where there are none to tell."""
        if class_conditional and self.num_classes is None:
            raise ConfigError("class_conditional", "got true, but the data has no labels; set it to false, or give labelled data")
        return self.num_classes if class_conditional else None


def _counts(value: int | None, most: int) -> bool:
    return value is not None and 1 <= value <= most


def labels_for_model(labels: Tensor | None, count: int, *, num_classes: int | None) -> Tensor | None:
    """As `checked_labels`, for a model of so many classes; one without classes (None) takes no labels: ConfigError where there are some."""
    if num_classes is not None:
        return checked_labels(labels, count, num_classes=num_classes)
    if labels is not None:
        raise ConfigError("labels", "this model was trained without labels; leave them out")
    return None


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
class _Samples:
    images: Tensor
    labels: Tensor | None
    index: Tensor
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    "What else belongs to each sample, by the names of `DataSpec.inputs`; batch axis first."

    def __len__(self) -> int:
        return len(self.index)


class Kept:
    """Room for what a step computes of its samples with gradients, until a later step of the iteration takes it."""

    def __init__(self) -> None:
        self._computed: Any = None

    def put(self, computed: Any) -> None:
        """Keeps it, and its graph with it."""
        self._computed = computed

    @property
    def filled(self) -> bool:
        """Whether something is there."""
        return self._computed is not None

    def take(self) -> Any:
        """What is there, which is gone then; None: nothing is."""
        computed, self._computed = self._computed, None
        return computed


@dataclass(frozen=True)
class Batch(_Samples):
    """Images in [-1, 1] (b, c, h, w), or clips (b, t, c, h, w); their labels (b,) or None; and the number of each sample (b,)."""

    kept: Kept | None = field(default=None, compare=False, repr=False)
    "Where the steps that take all of these samples at once leave something to one another; None: they do not."

    def __getitem__(self, samples: slice) -> Batch:
        """Some of the samples. Nothing is kept of them alone."""
        labels = None if self.labels is None else self.labels[samples]
        inputs = {name: values[samples] for name, values in self.inputs.items()}
        return Batch(self.images[samples], labels, self.index[samples], inputs)


class RawBatch(_Samples):
    """A batch as the loader gives it, in host memory: images (b, h, w, c) or clips (b, t, h, w, c) of uint8, or floats as in `Batch`.

    Inputs: uint8 as in `images`; or of another type, and then as in `Batch`.
    """

    def to(self, device: torch.device | str) -> Batch:
        """The batch on `device`. What is uint8 is normalised there to [-1, 1] (x / 127.5 - 1): (b, c, h, w), laid out channels last."""

        def sent(values: Tensor) -> Tensor:
            there = values.to(device, non_blocking=True)
            return there.movedim(-1, -3).float().div_(127.5).sub_(1) if values.dtype == torch.uint8 else there

        labels = None if self.labels is None else self.labels.to(device, non_blocking=True)
        inputs = {name: sent(values) for name, values in self.inputs.items()}
        return Batch(sent(self.images), labels, self.index.to(device, non_blocking=True), inputs)


def share(total: int, *, rank: int, world_size: int) -> range:
    """The consecutive samples of `total` that belong to a process; sizes differ by one at most."""
    return range(total * rank // world_size, total * (rank + 1) // world_size)
