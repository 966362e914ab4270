"""Video files for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np


def write_video(
    path: Path,
    frames: Sequence[np.ndarray],
    *,
    codec: str = "libx264",
    pixels: str = "yuv420p",
    options: dict[str, str] | None = None,
    keys: int = 12,
    rate: int = 25,
) -> Path:
    """A file of these frames, uint8 (h, w, 3) or grey (h, w), with a key frame at least every so many."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, options={"threads": "1", **(options or {})})
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = pixels
        stream.codec_context.gop_size = keys
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="gray" if frame.ndim == 2 else "rgb24")
            container.mux(stream.encode(picture.reformat(format=pixels)))
        container.mux(stream.encode())
    return path


def decoded(path: Path, *, grey: bool = False) -> list[np.ndarray]:
    """All frames of a file in order, by the library alone: uint8 (h, w, 1 or 3)."""
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="gray" if grey else "rgb24") for frame in container.decode(video=0)]
    return [np.atleast_3d(frame) for frame in frames]
