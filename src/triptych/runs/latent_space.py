"""The seam between latents and images: what a model of latents makes is decoded by the autoencoder that its data were encoded by.

Models, samplers and guides know of latents alone. A run's `DataSpec.latents` says which autoencoder's run it was, at which checkpoint and
with which hash; `shown_by` is what every verb that shows images asks for. A run on latents keeps a copy of the autoencoder in its folder, a
run of one checkpoint with the weights that encoded alone, stamped with the hash of these. It decodes where the original is gone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from triptych.core.batch import DataSpec, LatentSpec
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.files import explain
from triptych.core.images import nearest_uint8, to_uint8
from triptych.core.model import Encoder, GaussianEncoder
from triptych.engine.checkpoint import checkpoint_path, load_checkpoint, save_checkpoint, sweep
from triptych.engine.config import TrainConfig
from triptych.engine.distributed import World, open_world
from triptych.engine.run_directory import RunDirectory
from triptych.interop.programs import LatentScale
from triptych.runs.document import RunDocument
from triptych.runs.stored import StoredRun

Shown = Callable[[Tensor], Tensor]
"""From what a model makes (b, c, h, w) to images, uint8 (b, h, w, c), or to latents that nothing decodes, float32 (b, h, w, c)."""
_TRIED = 8
"""Side of the latents that are decoded to see what images an autoencoder makes of them."""
_COPIED = "copy_of"
"""What state.json of a copy has the hash of the original weights under."""
_LETTERS = 12  # of a hash in messages
_ROUNDING = 1e-6
"""Of a channel's deviation: moments of the same latents differ by less. One other image among a hundred thousand changes them by more."""
_MOST_PIXELS = {"cpu": 2**18, "cuda": 2**22}
"""Of images that are decoded at once, by kind of device; at least one image is."""


@dataclasses.dataclass(frozen=True)
class Autoencoder:
    """The run whose autoencoder encoded latents, or a copy of it, and which of its weights did."""

    run: StoredRun
    weights: str


def autoencoder_of(spec: LatentSpec, directory: RunDirectory) -> Autoencoder:
    """What decodes the latents of the run in `directory`: the autoencoder's run where the latents say it is, else the copy in the run.

    Raises CheckpointError where neither is there with the weights that encoded, naming what is wrong with the first.
    """
    try:
        return _original(spec, directory)
    except CheckpointError:
        copy = _copy(spec, directory)
        if copy is None:
            raise
        return copy


def require_decodable(spec: DataSpec, train: TrainConfig, directory: RunDirectory) -> None:
    """Raises CheckpointError as `autoencoder_of` does where a training of `spec` in `directory` makes images of latents."""
    if spec.latents is not None and (train.sample_count or train.evaluate_every is not None):
        autoencoder_of(spec.latents, directory)


def _original(spec: LatentSpec, directory: RunDirectory) -> Autoencoder:
    place = RunDirectory(Path(spec.autoencoder))
    remedy = "put it back, or encode the images again"
    if directory.exists():
        remedy = 'put it back, or write where it is into "autoencoder" under "latents" in the run\'s config.json'
    if not place.exists():
        raise CheckpointError(f"{spec.autoencoder}: the autoencoder of the latents is not there; {remedy}")
    run, which = StoredRun(place), "raw" if spec.weights == "model" else spec.weights
    try:  # not by its checkpoints alone: an average by length may be put together out of snapshots
        found = run.origin(checkpoint=str(spec.checkpoint), weights=which)["hash"]
    except CheckpointError as error:
        if spec.checkpoint in run.checkpoints():
            raise
        what = f"its checkpoint at {spec.checkpoint} images, which encoded the latents, is gone"
        raise CheckpointError(f"{spec.autoencoder}: {what}; {remedy}") from error
    if found != spec.sha256:
        what = f"its weights ({spec.weights}) are others than those that encoded the latents"
        raise CheckpointError(f"{spec.autoencoder}: {what}; {remedy}")
    return Autoencoder(run, which)


def _copy(spec: LatentSpec, directory: RunDirectory) -> Autoencoder | None:
    """The copy in a run; None where there is none of the weights that encoded."""
    place = directory.autoencoder
    try:
        found = load_checkpoint(checkpoint_path(place.checkpoints, spec.checkpoint), files=())
        return Autoencoder(StoredRun(place), "raw") if found.info.get(_COPIED) == spec.sha256 else None
    except CheckpointError:
        return None


def keep_autoencoder(spec: LatentSpec, directory: RunDirectory) -> list[str]:
    """Copies the autoencoder of latents into the run in `directory`, unless it is there; gives lines for the log.

    Where the original is not there, or the disk is full, a line says so. In one process.
    """
    if _copy(spec, directory) is not None:
        return []
    place = directory.autoencoder
    try:
        original = _original(spec, directory)
        tensors = original.run.tensors(checkpoint=str(spec.checkpoint), weights=original.weights)
        place.checkpoints.mkdir(parents=True, exist_ok=True)
        sweep(place.checkpoints)
        info = {"log2_loss_scale": {}, "best": None, _COPIED: spec.sha256}
        save_checkpoint(place.checkpoints, images_seen=spec.checkpoint, files={"model": tensors}, info=info)
        place.write_config(RunDocument(original.run.config, original.run.spec, original.run.recipe, licence=original.run.licence).to_dict())
    except (CheckpointError, OSError) as error:
        said = explain(error) if isinstance(error, OSError) else error
        return [f"warning: no copy of the autoencoder is kept in the run, so that it cannot be moved alone: {said}"]
    return []


def copy_bytes(spec: LatentSpec, directory: RunDirectory) -> int:
    """How large the copy will be that `keep_autoencoder` makes; 0 where it is there, or cannot be made."""
    if _copy(spec, directory) is not None:
        return 0
    try:
        original = _original(spec, directory)
        return sum(tensor.nbytes for tensor in original.run.tensors(checkpoint=str(spec.checkpoint), weights=original.weights).values())
    except CheckpointError:
        return 0


def require_autoencoder(autoencoder: str | Path) -> StoredRun:
    """The run in a folder. Raises CheckpointError where there is none, ConfigError about "autoencoder" where it is of no autoencoder."""
    run = StoredRun(RunDirectory(Path(autoencoder)))
    model = run.outline
    if not isinstance(model, GaussianEncoder) or not isinstance(model, Encoder):
        reason = f"{type(model).__name__} gives no distribution of latents; give the run of an autoencoder"
        raise ConfigError("autoencoder", f"got {str(autoencoder)!r}: {reason}")
    return run


def require_decoded(spec: DataSpec, name: str | Path) -> None:
    """ConfigError where the samples of the run `name`, which are `spec`, are latents that nothing decodes."""
    if spec.undecoded:
        reason = f"{name} makes latents of {spec.channels} channels, and was imported without their autoencoder"
        raise ConfigError("model", f"{reason}; import it again with --autoencoder RUN")


def decoded_by(autoencoder: str | Path, spec: DataSpec, scale: LatentScale) -> LatentSpec:
    """What samples of `spec`, of another program, are latents of: images that the run in the folder `autoencoder` decodes.

    Raises CheckpointError where there is no run with weights, ConfigError about "autoencoder" for one that has other latents.
    """
    run = require_autoencoder(autoencoder)
    try:
        model, origin = run.loaded("latest", None, open_world("cpu"))
        assert isinstance(model, Encoder), "its outline is"
        tried = model.decode([torch.zeros(1, spec.channels, _TRIED, _TRIED)], labels=None, settings=model.encoding)
    except ConfigError as error:
        raise ConfigError("autoencoder", f"got {str(autoencoder)!r}, which has other latents: {error.reason}") from None
    channels, factor = tried.shape[1], tried.shape[2] // _TRIED
    height, width = spec.height_and_width
    return LatentSpec(
        autoencoder=str(run.directory.absolute()),
        checkpoint=int(origin["images"]),
        weights=str(origin["weights"]),
        sha256=str(origin["hash"]),
        image_size=factor * height,
        width=None if width == height else factor * width,
        channels=channels,
        mean=scale.mean,
        std=scale.std,
        scaled_to=scale.scaled_to,
        darkest=scale.darkest,
    )


def unlike_latents(stored: DataSpec, found: DataSpec) -> list[str]:
    """How latents differ from those of a run, wherever the autoencoder is; nothing where they do not, or neither are latents."""
    before, now = stored.latents, found.latents
    if before is None or now is None:
        return [] if before is now else [f"{_kind(found)} in place of {_kind(stored)}"]
    names = [field.name for field in dataclasses.fields(LatentSpec) if field.name != "autoencoder"]
    pairs = {name: (getattr(now, name), getattr(before, name)) for name in names}
    changed = {name: pair for name, pair in pairs.items() if not _alike(*pair, before.std)}
    return [f"{name} {_said(name, one)} in place of {_said(name, other)}" for name, (one, other) in changed.items()]


def _alike(one: Any, other: Any, std: tuple[float, ...]) -> bool:
    """Whether a setting of latents is the same; of moments, but for what the order of their sums and the kind of processor change."""
    if not isinstance(one, tuple):
        return one == other
    return len(one) == len(other) and all(abs(a - b) <= _ROUNDING * scale for a, b, scale in zip(one, other, std, strict=True))


def _kind(spec: DataSpec) -> str:
    """What samples are called."""
    if spec.latents is not None:
        return "latents"
    return "latents of which no autoencoder is known" if spec.undecoded else "images"


def _said(name: str, value: Any) -> str:
    """The value of a setting of latents in a message."""
    if isinstance(value, tuple):
        return ", ".join(f"{number:.4g}" for number in value)
    return value[:_LETTERS] if name == "sha256" else str(value)


def shown_by(spec: DataSpec, world: World, directory: RunDirectory) -> Shown:
    """What turns the outputs of the model of the run in `directory` into images: latents are decoded, where an autoencoder is known.

    Raises as `autoencoder_of` does.
    """
    if spec.undecoded:
        return lambda samples: samples.float().permute(0, 2, 3, 1).contiguous().cpu()
    return to_uint8 if spec.latents is None else LatentSpace(spec.latents, world, directory).shown


class LatentSpace:
    """The autoencoder of latents, with its weights on the device of `world`."""

    def __init__(self, spec: LatentSpec, world: World, directory: RunDirectory) -> None:
        """Raises CheckpointError as `autoencoder_of` does, and where the weights are damaged."""
        self._spec = spec
        found = autoencoder_of(spec, directory)
        model, _ = found.run.loaded(str(spec.checkpoint), found.weights, world)
        model.requires_grad_(False)
        assert isinstance(model, Encoder) and isinstance(model, GaussianEncoder), "the latents were encoded by it"
        self._autoencoder = model
        height = spec.image_size
        pixels = _MOST_PIXELS["cpu" if world.device.type == "cpu" else "cuda"]
        self._at_once = max(1, pixels // (height * (spec.width or height)))

    def samples(self, images: Tensor) -> Tensor:
        """The samples (b, z, h', w') of images in [-1, 1] (b, c, h, w): the means of their latents, normalised."""
        parts = [self._autoencoder.posterior(self._spec.seen(part))[0] for part in images.float().split(self._at_once)]
        return self._spec.normalised(torch.cat(parts))

    def images(self, samples: Tensor) -> Tensor:
        """The images (b, c, h, w) in [-1, 1] of samples (b, z, h', w')."""
        latents, settings = self._spec.restored(samples.float()), self._autoencoder.encoding
        parts = [self._autoencoder.decode([part], labels=None, settings=settings) for part in latents.split(self._at_once)]
        return self._spec.pictures(torch.cat(parts))

    def shown(self, samples: Tensor) -> Tensor:
        """The same as uint8 (b, h, w, c), in host memory."""
        return nearest_uint8(self.images(samples))
