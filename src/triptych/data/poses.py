"""Poses as maps of people: a channel for each limb, as `triptych data draw` writes them, and DensePose.

Limbs overlap, so a pixel has no number of one limb: a file has a bit for each channel. It is a PNG of 32 bits a pixel (RGBA), and channel c
is bit c mod 8 of level c // 8. A file of DensePose is a PNG in RGB: u and v of the surface from 0 to 255, then the part, from 1 to 24; all
three are 0 where there is nobody. The networks of few-shot vid2vid see all three from -1 to 1, the part by its share of 24.
"""

from __future__ import annotations

import numpy as np

from triptych.core.batch import InputSpec
from triptych.core.rng import key_of, words
from triptych.data.decode import levels_of
from triptych.data.keypoints import NUM_BODY_LIMBS, NUM_LIMBS

NUM_PARTS = 24
"""Of DensePose, numbered from 1 on."""
_LEVELS = 4  # of RGBA


def as_bits(limbs: np.ndarray) -> np.ndarray:
    """Channels of 0 and 1, uint8 (h, w, 27), as the levels of a file: uint8 (h, w, 4)."""
    return np.packbits(np.pad(limbs, ((0, 0), (0, 0), (0, 8 * _LEVELS - NUM_LIMBS))), axis=-1, bitorder="little")


def limbs_of(levels: np.ndarray) -> np.ndarray:
    """The channels that the levels of a file (h, w, 4) hold: uint8 (h, w, 27), 0 or 255. Raises ValueError where it has others too."""
    bits = np.unpackbits(levels, axis=-1, bitorder="little")
    if bits[..., NUM_LIMBS:].any():
        raise ValueError(f"a picture and no map of {NUM_LIMBS} limbs; make it by triptych data draw --kind people --form limbs")
    return bits[..., :NUM_LIMBS] * np.uint8(255)


def densepose_of(levels: np.ndarray) -> np.ndarray:
    """The levels of a file (h, w, 3) as networks see them: float32 (3, h, w) in [-1, 1]. Raises ValueError for a part that there is not."""
    most = int(levels[..., 2].max(initial=0))
    if most > NUM_PARTS:
        raise ValueError(f"holds part {most}, expected 0 to {NUM_PARTS} in the last channel, behind u and v; write it as DensePose's IUV")
    return (np.moveaxis(levels, -1, 0) / np.array([255, 255, NUM_PARTS])[:, None, None] * 2 - 1).astype(np.float32)


def levels(value: bytes | np.ndarray, spec: InputSpec) -> np.ndarray:
    """What an item of limbs or DensePose is stored as: uint8 (h, w, 4 or 3). Raises ValueError for what is none."""
    if isinstance(value, bytes):
        return levels_of(value, "RGBA" if spec.stored == "limbs" else "RGB")
    return value


def channels(values: np.ndarray, spec: InputSpec) -> np.ndarray:
    """The channels of such levels: uint8 (h, w, 27) or float32 (3, h, w)."""
    return limbs_of(values) if spec.stored == "limbs" else densepose_of(values)


# Left out in training


def dropped(positions: np.ndarray, count: int, *, share: float, seed: int, name: str) -> np.ndarray:
    """Which of `count` channels or parts are left out at these positions: bool (b, count), each true with probability `share`."""
    return words(positions, key=key_of(seed, "data", "drop", name), count=count) < share * 2**32


def leave_out(values: np.ndarray, which: np.ndarray, spec: InputSpec) -> None:
    """Takes channels of limbs (..., h, w, 27), or parts of DensePose (..., 3, h, w), out of maps in place, of all alike: `which`, (n,).

    Hands and the face, of many lines each in one channel, stay.
    """
    if spec.stored == "limbs":
        values[..., np.flatnonzero(which[:NUM_BODY_LIMBS])] = 0
        return
    part = np.rint((values[..., 2, :, :] + 1) * (NUM_PARTS / 2)).astype(np.int64)
    gone = np.append(False, which)[part]  # behind 0, which is nobody
    values[np.broadcast_to(gone[..., None, :, :], values.shape)] = -1
