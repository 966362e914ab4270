"""The flags of SiT's train.py and sample.py that describe a model."""

from __future__ import annotations

from triptych.interop.flags import OriginalFlag

FLAGS: dict[str, OriginalFlag] = {
    flag.name: flag
    for flag in (
        OriginalFlag("model", "SiT-XL/2", "model"),
        OriginalFlag("image-size", 256, "model"),
        OriginalFlag("num-classes", 1000, "model"),
        OriginalFlag("path-type", "Linear", "transport"),
        OriginalFlag("prediction", "velocity", "transport"),
    )
}
SIZES: dict[str, tuple[int, int, int]] = {"S": (384, 12, 6), "B": (768, 12, 12), "L": (1024, 24, 16), "XL": (1152, 28, 16)}
"""Width, depth and heads of the published sizes."""
PATCHES = (2, 4, 8)
PATHS = {"Linear": "linear", "GVP": "gvp", "VP": "vp"}
"""Ours by theirs."""
PREDICTIONS = ("velocity", "score", "noise")
LATENT_FACTOR = 8
"""Pixels of an image for one of its latent, along a side."""
