"""Small data of every kind that recipes learn, and what a data source of a recipe gives at full size."""

from __future__ import annotations

import atexit
import functools
import itertools
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from triptych.core.batch import ClipLength, DataSpec, InputSpec
from triptych.core.rng import key_of, words
from triptych.data.clips import ClipDataConfig
from triptych.data.config import DataConfig
from triptych.data.domains import UnpairedDataConfig
from triptych.data.few_shot import FewShotDataConfig
from triptych.data.pairs import PairedDataConfig
from triptych.data.pans import FLOW, POINTS, PanDataConfig
from triptych.data.poses import NUM_PARTS
from triptych.nn.feature_networks import required_tensors

COUNT, SIDE, CLASSES = 40, 32, 4
"""Images of a small data set, pixels of their sides, classes of their maps."""
DOUBLE_EVERY = 9
"""Clips after which they grow: in the middle of the second batch."""


@functools.cache
def _root() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="triptych-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _pixels(name: str, count: int, side: int, levels: int, *, channels: int = 3) -> np.ndarray:
    """Random whole numbers below `levels`, (count, side, side, channels).

    Every pixel is drawn: flat regions cross the bends of rectifiers all at once, so that rounding would show as much as a fault.
    """
    drawn = words(np.arange(count), key=key_of(0, name), count=side**2 * channels) % levels
    return drawn.reshape(count, side, side, channels).astype(np.uint8)


def _write(folder: Path, name: str, levels: int, *, side: int = SIDE, count: int = COUNT) -> None:
    pixels = _pixels(name, count, side, levels)
    _save(folder, pixels if levels == 256 else pixels[..., 0])


def _save(folder: Path, images: np.ndarray) -> None:
    """Uncompressed, for all kinds of data are written before the first test."""
    folder.mkdir(parents=True, exist_ok=True)
    for k, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{k:03d}.png", compress_level=0)


@functools.cache
def _paired(target: str, maps: tuple[str, ...], instances: str | None, conditions: tuple[str, ...]) -> Path:
    root = _root() / "-".join(("paired", target, *maps, instances or "", *conditions))
    for name in (target, *conditions):
        _write(root / name, name, 256)
    for name in (*maps, *([] if instances is None else [instances])):
        _write(root / name, name, CLASSES)
    return root


@functools.cache
def _clips(target: str, maps: tuple[str, ...], conditions: tuple[str, ...], points: str | None, poses: tuple[InputSpec, ...]) -> Path:
    """Clips of 6 frames, larger ones of limbs, for hands are small."""
    side = 2 * SIDE if any(spec.stored == "limbs" for spec in poses) else SIDE
    numbers = {**dict.fromkeys((target, *conditions), 256), **dict.fromkeys(maps, CLASSES), **({} if points is None else {points: 200})}
    root = _root() / "-".join(("clips", *numbers, *(spec.name for spec in poses)))
    for index in range(12):
        for name, count in numbers.items():
            _write(root / name / f"clip{index}", f"{name}{index}", count, side=side, count=6)
        for spec in poses:
            _write_poses(root / spec.name / f"clip{index}", f"{spec.name}{index}", spec, side=side, count=6)
    return root


def _write_poses(folder: Path, name: str, spec: InputSpec, *, side: int, count: int) -> None:
    """Maps of limbs, or of DensePose, whose parts change from pixel to pixel."""
    levels = _pixels(name, count, side, 256, channels=4 if spec.stored == "limbs" else 3)
    levels[..., -1] %= 8 if spec.stored == "limbs" else NUM_PARTS + 1
    _save(folder, levels)


@functools.cache
def _unpaired(a: str, b: str) -> Path:
    root = _root() / f"unpaired-{a}-{b}"
    for name in (a, b):
        _write(root / name, name, 256)
    return root


@functools.cache
def _few_shot() -> Path:
    root = _root() / "few-shot"
    for index in range(6):
        _write(root / f"class{index}", f"class{index}", 256, count=8)
    return root


@functools.cache
def feature_weights() -> Path:
    """A file of random weights of SqueezeNet's first layer, for perceptual losses."""
    path = _root() / "squeezenet.pt"
    generator = torch.Generator().manual_seed(0)
    shapes = required_tensors("squeezenet1_0", FIRST_LAYER)
    torch.save({name: 0.05 * torch.randn(shape, generator=generator, dtype=torch.float32) for name, shape in shapes.items()}, path)
    return path


FIRST_LAYER = ("relu_1",)


def small_data(data: DataConfig) -> DataConfig:
    """The data of a recipe in its own form, small: pairs, domains, classes for few examples; else the digits at 8x8."""
    plain = {"image_size": SIDE, "resize": None, "scale": None, "crop": "center", "decode": "exact", "workers": 0, "enlarge": False}
    if isinstance(data, ClipDataConfig):
        classes, length = (CLASSES,) * len(data.maps), ClipLength(first=3, most=4, double_every=DOUBLE_EVERY)
        path = _clips(data.target, data.maps, data.conditions, data.points, tuple(data.poses))
        plain["image_size"] = SIDE if data.limbs is None else 2 * SIDE
        return replace(data, **plain, path=str(path), width=None, num_classes=classes, length=length, validation_fraction=0.5)
    if isinstance(data, PanDataConfig):
        plain |= {"length": ClipLength(first=3, most=4, double_every=DOUBLE_EVERY), "margin": 2, "speed": 2, "enlarge": True}
    if isinstance(data, PairedDataConfig):
        path = _paired(data.target, data.maps, data.instances, data.conditions)
        return replace(data, **plain, path=str(path), width=None, num_classes=(CLASSES,) * len(data.maps), validation_fraction=0.25)
    if isinstance(data, UnpairedDataConfig):
        path = _unpaired(Path(data.a).name, Path(data.b).name)
        return replace(data, **plain, path=str(path), a=Path(data.a).name, b=Path(data.b).name, validation_fraction=0.25)
    if isinstance(data, FewShotDataConfig):
        return replace(data, **plain, path=str(_few_shot()), held_out=2)
    labels = "none" if data.labels == "none" else "auto"
    channels = 1 if _is_grey(data) else 3
    return replace(data, source="digits", path=None, image_size=8, channels=channels, labels=labels, decode="exact", workers=0)


def _is_grey(data: DataConfig) -> bool:
    """Whether the data of a recipe are digits: the built-in ones, or MNIST's."""
    return data.source == "digits" or data.image_size == 28


def full_spec(data: DataConfig, *, few_shot_classes: int = 149) -> DataSpec:
    """What the data of a recipe gives at full size, without looking at any."""
    classes: int | None = 10 if _is_grey(data) or data.image_size == 32 else 1000
    channels = data.channels or (1 if _is_grey(data) else 3)
    size = data.image_size
    if data.source == "latents":  # of an autoencoder with 4 channels and an eighth of the pixels each way
        channels, size = 4, size // 8
    inputs: list[InputSpec] = []
    width = None
    if data.labels == "none":
        classes = None
    if isinstance(data, PairedDataConfig):
        classes, width = None, None if data.width == data.image_size else data.width
        for name, count in zip(data.maps, data.num_classes, strict=True):
            inputs.append(InputSpec(name=name, kind="classes", num_classes=count, dont_care=data.dont_care))
        if data.instances is not None:
            inputs.append(InputSpec(name=data.instances, kind="instances"))
        poses = data.poses if isinstance(data, ClipDataConfig) else []
        inputs += [*poses, *(InputSpec(name=name, kind="image", channels=3 if poses else 1) for name in data.conditions)]
    if isinstance(data, UnpairedDataConfig):
        classes, inputs = None, [InputSpec(name="images_b", kind="image", channels=channels)]
    if isinstance(data, FewShotDataConfig):
        classes = few_shot_classes
        names = ["style"] if data.style_count == 1 else [f"style_{k}" for k in itertools.islice(itertools.count(1), data.style_count)]
        inputs = [InputSpec(name=name, kind="image", channels=channels) for name in names]
        inputs.append(InputSpec(name="style_labels", kind="labels", num_classes=classes))
    if isinstance(data, PanDataConfig):
        inputs += [InputSpec(name=FLOW, kind="flow"), InputSpec(name=POINTS, kind="points")]
    if isinstance(data, ClipDataConfig) and data.points is not None:
        inputs.append(InputSpec(name=data.points, kind="points"))
    clips = isinstance(data, ClipDataConfig | PanDataConfig)
    style: list[InputSpec] = []
    if isinstance(data, ClipDataConfig) and data.references:
        style = [InputSpec(name="style", kind="image", channels=channels)]
        style += [replace(entry, name=f"{entry.name}_of_style") for entry in inputs]
    frames, length = (data.length.most, data.length) if clips else (None, None)
    return DataSpec(
        frames=frames,
        clip_length=length,
        image_size=size,
        width=width,
        channels=channels,
        num_classes=classes,
        class_names=None if classes is None else tuple(map(str, range(classes))),
        inputs=(*(replace(entry, frames=frames) for entry in inputs), *(replace(entry, references=data.references) for entry in style)),
    )
