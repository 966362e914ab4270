"""A translator whose answers can be told beforehand, and runs of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from tests.data.pairs import SETTINGS, write, write_pairs
from tests.data.pictures import encoded, picture
from triptych.core.batch import STYLE, Batch, DataSpec, InputSpec
from triptych.core.config import Config, config
from triptych.core.images import to_uint8
from triptych.core.model import LossTerms, Model, ModelConfig, Phase
from triptych.core.rng import Rng
from triptych.core.translation import Example
from triptych.data.config import DataConfig
from triptych.data.pairs import PairedDataConfig
from triptych.engine.config import TrainConfig
from triptych.recipes.config import RunConfig
from triptych.runs import Run, train

STRIDE, LEAST = 4, 8


@config
class MirrorTranslation(Config):
    """Which way."""

    direction: Literal["a-to-b", "b-to-a"] = "a-to-b"
    "b-to-a: the negative."
    temperature: float = 1.0
    "Of the random style."


@config
class MirrorConfig(ModelConfig):
    """What it takes."""

    styles: Literal["none", "optional", "required"] = "none"
    "Style images."
    random_styles: bool = False
    "Random styles."
    example_styles: bool = False
    "Held-out images come with styles."
    further: bool = False
    "Another grid during training."
    translation: MirrorTranslation = MirrorTranslation()
    "Settings."

    def build(self, spec: DataSpec) -> Mirror:
        """The model."""
        return Mirror(self, spec)


class Mirror(Model):
    """The mean of its sources, half as bright, and a quarter of the mean of the styles: of images, or drawn."""

    phases = (Phase("mirror", ("network",)),)
    averaged = ()
    stride, least_size = STRIDE, LEAST

    def __init__(self, config: MirrorConfig, spec: DataSpec) -> None:
        super().__init__()
        self.network = nn.Conv2d(1, 1, 1, bias=False)
        nn.init.ones_(self.network.weight)
        self.translation, self.styles, self.random_styles = config.translation, config.styles, config.random_styles
        self.sources = spec.inputs or (InputSpec(name="images", kind="image", channels=spec.channels),)
        self.output_channels = spec.channels
        self.example_styles = config.example_styles or config.styles == "required"
        self.grids = {"b-to-a": MirrorTranslation(direction="b-to-a")} if config.further else {}

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        return LossTerms(0 * self.network(batch.images[:, :1]).mean((1, 2, 3)))

    def example(self, batch: Batch, *, settings: Config) -> Example:
        paired = "images" not in (spec.name for spec in self.sources)
        inputs = dict(batch.inputs) if paired else {"images": batch.images}
        if self.example_styles:
            inputs[STYLE] = batch.images[:, None].flip(0)
        return Example(inputs, batch.images if paired else None)

    def translate(self, inputs: Mapping[str, Tensor], rng: Rng, *, settings: Config) -> Tensor:
        assert not self.training and isinstance(settings, MirrorTranslation)
        assert set(inputs) - {STYLE} == {spec.name for spec in self.sources}
        made = torch.stack([self._values(inputs[spec.name], spec) for spec in self.sources]).mean(0) / 2
        assert made.shape[2] % STRIDE == 0 and made.shape[3] % STRIDE == 0
        if STYLE in inputs:
            assert inputs[STYLE].ndim == 5 and self.styles != "none"
            made = made + inputs[STYLE].mean((1, 3, 4))[:, :, None, None] / 4
        elif self.random_styles:
            made = made + settings.temperature * rng.normal("style", self.output_channels, 1, 1) / 8
        return made * self.network.weight * (1 if settings.direction == "a-to-b" else -1)

    def _values(self, values: Tensor, spec: InputSpec) -> Tensor:
        if spec.kind != "image":
            values = (values % 2 if spec.kind == "instances" else values / (spec.num_classes or 1))[:, None].float()
        return values.expand(-1, self.output_channels, -1, -1)


def mirror_run(root: Path, data: DataConfig, *, total_images: int = 4, **model: Any) -> Run:
    """A run of it, which has learnt nothing."""
    settings = TrainConfig(total_images=total_images, batch_size=4, sample_count=0, ema_rates=(), compile="off", validate_images=0)
    return train(RunConfig(model=MirrorConfig(**model), data=data, train=settings), root, device="cpu")


def paired_run(root: Path, pairs: Path, *, data: Mapping[str, Any] | None = None, **model: Any) -> Run:
    """One on the pairs that are written to `pairs`: all four sources, 12 pixels wide and 8 high."""
    write_pairs(pairs)
    return mirror_run(root, PairedDataConfig(path=str(pairs), **(SETTINGS | {"workers": 0} | dict(data or {}))), **model)


ONE_MAP = {"instances": None, "conditions": ()}
"""Changes of the data, for class maps alone."""


def plain_data(**changes: Any) -> DataConfig:
    """The built-in digits, 16x16, grey."""
    return DataConfig(**({"source": "digits", "image_size": 16, "labels": "none", "workers": 0} | changes))


def write_images(folder: Path, names: list[str], *, size: tuple[int, int] = (8, 8), channels: int = 3) -> list[np.ndarray]:
    pixels = [picture(*size, seed=k, channels=channels) for k in range(len(names))]
    for name, image in zip(names, pixels, strict=True):
        write(folder / name, encoded(image))
    return pixels


def halved(pixels: np.ndarray) -> np.ndarray:
    """What the toy makes of an image: half as bright, in 8 bits."""
    images = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
    return to_uint8(images / 2).numpy()[0]


def opened(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def close(made: np.ndarray, other: np.ndarray) -> bool:
    return made.shape == other.shape and np.abs(made.astype(int) - other.astype(int)).max() <= 1
