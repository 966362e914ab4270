"""What a model that makes images of other images, or of maps, is to the commands: the protocols of translators.

`core/model.py` has what every model is to the training, and the protocols of the other capabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from triptych.core.batch import Batch, InputSpec
from triptych.core.config import Config
from triptych.core.rng import Rng


@dataclass(frozen=True)
class Example:
    """A translator's inputs from a batch of the data, and the true images where the data has them."""

    inputs: Mapping[str, Tensor]
    "As `Translator.translate` takes them."
    truth: Tensor | None = None
    "Images in [-1, 1] (b, c, h, w)."


@runtime_checkable
class Translator(Protocol):
    """A model that makes images of one kind from images, or maps, of another."""

    translation: Config
    "The default settings of `translate`; `triptych translate` takes them as flags."
    sources: tuple[InputSpec, ...]
    "What it makes images from."
    styles: Literal["none", "optional", "required"]
    "Whether it takes style images, which are then among the inputs under the name `STYLE`."
    random_styles: bool
    "Whether its images depend on the seed where no style images are given."
    output_channels: int
    "Of the images that it makes: 1 (grey) or 3 (RGB)."
    stride: int
    "The sides of images and maps are multiples of it."
    least_size: int
    "The fewest pixels along a side."

    def example(self, batch: Batch, *, settings: Config) -> Example:
        """The inputs of a translation from a batch of the data, and the truth where the data has it."""
        ...

    def translate(self, inputs: Mapping[str, Tensor], rng: Rng, *, settings: Config) -> Tensor:
        """An image in [-1, 1] for each sample, (b, c, h, w), of the size of the inputs.

        `inputs`: the tensors of `sources` by name, as in a `Batch`; and `STYLE` where it takes styles: always where they are required,
        else random ones are drawn from `rng` without them. Without gradients; the model must be in evaluation mode.
        """
        ...


@runtime_checkable
class VideoTranslator(Translator, Protocol):
    """A translator that makes the frames of clips one after the other. Its `translate` makes the last frame of whole clips (b, t, ...)."""

    past_frames: int
    "How many frames before it a frame depends on."
    judged_span: int
    "The fewest frames of a clip in training from which all its discriminators learn."
    remembers: bool
    "Whether it depends on all of them, by way of what `remembered` gives."
    style_sources: tuple[InputSpec, ...]
    "What it takes the look of a whole clip from, where it takes style images: these, and the maps that come with them."

    def next_frame(
        self, inputs: Mapping[str, Tensor], past: Sequence[Mapping[str, Tensor]], made: Tensor | None, *, settings: Config
    ) -> Tensor:
        """The images (b, c, h, w) in [-1, 1] of the next frame.

        `inputs`: those of the frame, as of `Translator.translate`, with the clip's `style_sources` (b, k, ...), and what was remembered of
        the frame before; `past`: those of the frames before it, oldest first, at most `past_frames`; `made`: their images (b, p, c, h, w),
        None where it is the first frame.
        Without gradients; the model must be in evaluation mode.
        """
        ...

    def first_frames(self, settings: Config) -> int:
        """How many frames of a clip a run of single images makes, where one is given for that."""
        ...

    def remembered(self, inputs: Mapping[str, Tensor], image: Tensor) -> Mapping[str, Tensor]:
        """What joins the inputs of the next frame, of a frame with these inputs and this image (b, c, h, w); without gradients."""
        ...
