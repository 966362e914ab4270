"""The flags of SiT's train.py and sample.py that describe a model, and ours."""

from __future__ import annotations

from triptych.interop.flags import LATENT_FLAGS, NUM_HEADS, OriginalFlag

FLAGS: dict[str, OriginalFlag] = {
    flag.name: flag
    for flag in (
        OriginalFlag("model", "SiT-XL/2", "model"),
        OriginalFlag("image-size", 256, "model"),
        OriginalFlag("num-classes", 1000, "model"),
        NUM_HEADS,
        *LATENT_FLAGS,
        OriginalFlag("path-type", "Linear", "transport"),
        OriginalFlag("prediction", "velocity", "transport"),
    )
}
PATHS = {"Linear": "linear", "GVP": "gvp", "VP": "vp"}
"""Ours by theirs."""
BESIDE = ".sit.txt"
"""What the name of the text beside an exported file ends with."""
PREDICTIONS = ("velocity", "score", "noise")
