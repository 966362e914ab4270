"""A hash of the images that a model learns, by which two sources of the same images are recognised."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection

import numpy as np

from triptych.core.errors import DataError
from triptych.data.images import Data, ImageSet
from triptych.data.naming import hashed

_LOOKED_AT = 8
"""Images whose pixels are part of it: those whose key and label have the smallest hashes."""
_MARKED = 16
"""Held-out images that a run keeps in mind."""


def fingerprint(data: Data) -> str:
    """Twelve letters for keys and labels of all images, their size and channels, and the pixels of eight of them, without any draws.

    Neither the place of the source has a say, nor its form, nor which of the images are held out. An image that cannot be read counts by
    its key alone. Of latents, whose last digits depend on the batch in which they were encoded, the hash that their file has of the images
    counts instead of pixels.
    """
    sets = data.sets
    hashes = [_hashes(images) for images in sets]
    spec = data.spec
    total = sum(int(each.sum()) for each in hashes) % 2**48  # in whatever order
    said = [total, sum(map(len, sets)), spec.image_size, spec.width, spec.channels, spec.class_names]
    said += [data.contents] if data.contents else []
    digest = hashlib.sha256(json.dumps(said).encode())
    places = [(int(each[item]), number, int(item)) for number, each in enumerate(hashes) for item in np.argsort(each)[:_LOOKED_AT]]
    for _, number, item in sorted(places)[:_LOOKED_AT]:
        try:
            loaded = sets[number].batch(np.array([item]))
        except DataError:
            continue
        pixels = loaded.images
        if loaded.bad:  # others in their place
            continue
        digest.update(pixels.tobytes() if pixels.dtype == np.uint8 else b"")
    return digest.hexdigest()[:12]


def held_out_marks(data: Data) -> list[int]:
    """Hashes of the keys of some held-out images, by which a later start sees whether it would train on them."""
    return [] if data.validation is None else sorted(_marks(data.validation).tolist())[:_MARKED]


def refuse_held_out(marks: Collection[int], data: Data) -> None:
    """Raises DataError where most of the images of the marks, which were held out, are among those to be trained on now."""
    learned = np.flatnonzero(np.isin(_marks(data.train), list(marks))) if marks else np.arange(0)
    if len(learned) > 1 and 2 * len(learned) > len(marks):
        key = data.train.source_key(int(learned[0]))
        raise DataError(
            f"{data.train.config.path}: images that this run held out, such as {key}, would be trained on now, as where files came beside "
            "the folder that held all images; move these away, or give that folder (--data.path), or begin another run with --init-from "
            "this one"
        )


def _marks(images: ImageSet) -> np.ndarray:
    """Another hash of each key than the one that says which images are held out, of which it must know nothing: int64 (n,)."""
    return hashed([f"mark\0{images.source_key(item)}" for item in range(len(images))])


def _hashes(images: ImageSet) -> np.ndarray:
    """Of key and label of each image: int64 (n,), below 2^48."""
    keys = map(images.source_key, range(len(images)))
    if images.labels is None:
        return hashed(list(keys))
    return hashed([f"{key}\0{label}" for key, label in zip(keys, images.labels.tolist(), strict=True)])
