"""What is measured of clips: how much they flicker, how sharp they are, how far a set of them is from another; by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float32, UInt8

from triptych.core.config import Config, config
from triptych.core.errors import CheckpointError, ConfigError, DataError, one_line
from triptych.core.reading import sha256_of, user_path
from triptych.nn.raft import RaftConfig

WARPING_ERROR, SHARPNESS, FVD = "warping-error", "sharpness", "fvd"
CLIP_METRICS: Mapping[str, str] = {
    WARPING_ERROR: "how far frames are from those before them, warped by the flow of the real clip; 0 where nothing flickers",
    SHARPNESS: "mean gradient of the frames by that of the real ones: 1 for frames as sharp as these",
    FVD: "Frechet distance of the features that an I3D network of yours has of whole clips",
}


@config
class ClipMetricConfig(Config):
    """How clips are measured."""

    flow: Literal["auto", "data", "raft", "classical"] = "auto"
    "warping-error: the true flow, RAFT's, or Lucas and Kanade's between real frames; auto: the first of these that is there."
    raft: RaftConfig = RaftConfig()
    "RAFT, with the file of its weights."
    i3d: str | None = None
    "fvd, which needs it: file of an I3D network, TorchScript, that is called as i3d_torchscript.pt of StyleGAN-V. None: none."
    run_i3d_code: bool = False
    "fvd: that file is a program, which may do anything that you may; it is opened only where you say so here."

    def validate(self) -> None:
        self.require(self.flow != "raft" or self.raft.weights is not None, "flow", "another one, or raft with a file as raft.weights")


def mean_gradient(frames: UInt8[np.ndarray, "t h w c"]) -> float:
    """The mean absolute difference of neighbours, down and across, in levels."""
    x = frames.astype(np.float64)
    down, across = np.abs(np.diff(x, axis=1)), np.abs(np.diff(x, axis=2))
    return float((down.sum() + across.sum()) / max(down.size + across.size, 1))


def sharpness(made: UInt8[np.ndarray, "t h w c"], real: UInt8[np.ndarray, "t h w c"]) -> float:
    """The mean gradient of a clip by that of the real one. Raises DataError where that has no gradient."""
    expected = mean_gradient(real)
    if not expected:
        raise DataError("a real clip is flat: there is no sharpness to compare with", advice="leave it out, or the metric")
    return mean_gradient(made) / expected


Features = Callable[[np.ndarray], np.ndarray]
"""From a clip, uint8 (t, h, w, c), to its features, float32 (d,)."""


def open_i3d(settings: ClipMetricConfig, *, device: torch.device) -> tuple[Features, str]:
    """The features of an I3D network, and the SHA-256 of its file.

    Raises ConfigError where no file is given, or not that it may run; CheckpointError for what is no TorchScript.
    """
    if settings.i3d is None:
        raise ConfigError("i3d", "missing: give the TorchScript file of an I3D network, as i3d_torchscript.pt of StyleGAN-V (--clip.i3d)")
    path = user_path(settings.i3d)
    if not path.is_file():
        raise ConfigError("i3d", f"there is no file {path}")
    if not settings.run_i3d_code:
        reason = (
            f"{path} is a program (TorchScript), which opening it would run; allow that where you trust who made it (--clip.run-i3d-code)"
        )
        raise ConfigError("run_i3d_code", f"got False, but {reason}")
    try:
        network = torch.jit.load(str(path), map_location=device).eval()
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be opened as TorchScript: {one_line(error)}") from error

    @torch.no_grad()
    def features(clip: UInt8[np.ndarray, "t h w c"]) -> Float32[np.ndarray, " d"]:
        frames = torch.from_numpy(np.ascontiguousarray(clip)).to(device).float().movedim(-1, 0)[None].expand(-1, 3, -1, -1, -1)
        try:
            found = network(frames.contiguous(), rescale=True, resize=True, return_features=True)
        except RuntimeError as error:
            said = str(error).strip().splitlines()[-1]
            raise DataError(f"{path} cannot take a clip of {len(clip)} frames of {clip.shape[2]}x{clip.shape[1]}: {said}") from error
        return found.float().cpu().numpy().reshape(-1)

    return features, sha256_of(Path(path))
