"""Reconstructions: images that a model encodes and decodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from triptych.core.batch import RawBatch
from triptych.core.images import nearest_uint8
from triptych.core.model import Report
from triptych.core.rng import Rng
from triptych.data.images import Data
from triptych.runs.encoding import require_encoder
from triptych.runs.latent_space import Shown
from triptych.runs.sampling import Request, write_kinds


@dataclass(frozen=True)
class Reconstruction(Request):
    """Which reconstructions are wanted, by an encoder that is told no labels. Image k depends on these, on its own image and on k alone."""

    load: Callable[[Sequence[int]], np.ndarray]
    "The images of some indices, uint8 (b, h, w, c)."
    shown: Shown = field(default=nearest_uint8, kw_only=True)
    "The nearest levels: these images were 8-bit ones."

    def images(self, model: nn.Module, part: range, device: torch.device, report: Report | None = None) -> Tensor:
        """What the latents of the images of these indices are decoded to: (b, c, h, w) in [-1, 1]."""
        encoder = require_encoder(model)
        index = torch.arange(part.start, part.stop, device=device)
        batch = RawBatch(torch.from_numpy(self.load(part)), None, index).to(device)
        rng = Rng(self.seed, ("encode",), index)
        latents = encoder.encode(batch.images, labels=None, rng=rng, settings=self.settings, report=report)
        return encoder.decode(latents, labels=None, settings=self.settings)


def reconstructed_grid(
    model: nn.Module, data: Data, *, count: int, precision: str
) -> tuple[Reconstruction, Callable[[Path, np.ndarray], None]]:
    """A request that reconstructs some of the data's images, and what writes the picture: rows of originals and reconstructions in turn.

    They are the first held-out images, or training images where none are held out.
    """
    images = data.looked_at
    count = min(count, len(images))
    originals = images.batch(np.arange(count)).images
    settings = require_encoder(model).encoding
    request = Reconstruction(count, 0, None, settings, precision, load=lambda part: originals[np.asarray(part)])
    return request, lambda path, made: write_kinds(path, (originals, made))
