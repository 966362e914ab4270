"""The seam between latents and images: what a model of latents makes is decoded by the autoencoder that its data were encoded by.

Models, samplers and guides know of latents alone. A run's `DataSpec.latents` says which autoencoder's run it was, at which checkpoint and
with which hash; `shown_by` is what every verb that shows images asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from triptych.core.batch import DataSpec, LatentSpec
from triptych.core.errors import CheckpointError
from triptych.core.images import nearest_uint8, to_uint8
from triptych.core.model import Encoder, GaussianEncoder
from triptych.engine.distributed import World
from triptych.engine.run_directory import RunDirectory
from triptych.runs.stored import StoredRun

Shown = Callable[[Tensor], Tensor]
"""From what a model makes (b, c, h, w) to images, uint8 (b, h, w, c)."""
_MOST_PIXELS = {"cpu": 2**18, "cuda": 2**22}
"""Of images that are decoded at once, by kind of device; at least one image is."""


def shown_by(spec: DataSpec, world: World) -> Shown:
    """What turns the outputs of a model of such samples into images: latents are decoded. Raises CheckpointError as `LatentSpace` does."""
    return to_uint8 if spec.latents is None else LatentSpace(spec.latents, world).shown


class LatentSpace:
    """The autoencoder of latents, with its weights on the device of `world`."""

    def __init__(self, spec: LatentSpec, world: World) -> None:
        """Raises CheckpointError where the autoencoder's run is not there, or has other weights than those that encoded."""
        self._spec = spec
        place = RunDirectory(Path(spec.autoencoder))
        remedy = 'put it back, or write where it is into "autoencoder" under "latents" in the run\'s config.json'
        if not place.exists():
            raise CheckpointError(f"{spec.autoencoder}: the autoencoder of the latents is not there; {remedy}")
        run, which = StoredRun(place), "raw" if spec.weights == "model" else spec.weights
        if spec.checkpoint not in run.checkpoints():
            what = f"its checkpoint at {spec.checkpoint} images, which encoded the latents, is gone"
            raise CheckpointError(f"{spec.autoencoder}: {what}; {remedy}")
        if run.origin(checkpoint=str(spec.checkpoint), weights=which)["hash"] != spec.sha256:
            what = f"its weights ({spec.weights}) are others than those that encoded the latents"
            raise CheckpointError(f"{spec.autoencoder}: {what}; {remedy}")
        model, _ = run.loaded(str(spec.checkpoint), which, world)
        model.requires_grad_(False)
        assert isinstance(model, Encoder) and isinstance(model, GaussianEncoder), "the latents were encoded by it"
        self._autoencoder = model
        height = spec.image_size
        pixels = _MOST_PIXELS["cpu" if world.device.type == "cpu" else "cuda"]
        self._at_once = max(1, pixels // (height * (spec.width or height)))

    def samples(self, images: Tensor) -> Tensor:
        """The samples (b, z, h', w') of images in [-1, 1] (b, c, h, w): the means of their latents, normalised."""
        parts = [self._autoencoder.posterior(part)[0] for part in images.float().split(self._at_once)]
        return self._spec.normalised(torch.cat(parts))

    def images(self, samples: Tensor) -> Tensor:
        """The images (b, c, h, w) in [-1, 1] of samples (b, z, h', w')."""
        latents, settings = self._spec.restored(samples.float()), self._autoencoder.encoding
        parts = [self._autoencoder.decode([part], labels=None, settings=settings) for part in latents.split(self._at_once)]
        return torch.cat(parts)

    def shown(self, samples: Tensor) -> Tensor:
        """The same as uint8 (b, h, w, c), in host memory."""
        return nearest_uint8(self.images(samples))
