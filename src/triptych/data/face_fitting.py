"""Faces of a clip, fitted to another face: its 68 points in every frame, with the proportions of someone else.

Few-shot vid2vid (Wang et al. 2019, arXiv 1910.12713), as NVlabs/imaginaire has it, drives the picture of one person by the face of another.
The points go in groups of mirror images. With c the middle of a group, q that of the chin, a how far the group's points are from c in the
mean, b how far c is from q, and g the width of the driver's face by that of the reference's, both in their first frames,

    s_a = g a_ref / a,   s_b = g b_ref / b,   p' = (p - c) s_a + (c - q) s_b + q

From the second frame on s is 0.9 of the one before and 0.1 of this. What is drawn is the median of five frames around. The group of the
chin itself, whose b is next to nothing, has s_b = s_a.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

Points = Float64[np.ndarray, "68 2"]

_CHIN, _NOTHING, _KEPT, _MEDIAN = 8, 1e-3, 0.9, 5


def _mirrored(first: int, last: int, count: int) -> list[tuple[int, ...]]:
    return [(first + k, last - k) for k in range(count)]


GROUPS: tuple[tuple[int, ...], ...] = (
    *_mirrored(0, 16, 7), (7, 9, 8),  # jaw
    *_mirrored(17, 26, 5), (27,), (28,), (29,), (30,), *_mirrored(31, 35, 2), (33,),  # brows, nose
    (36, 45), (37, 44), (38, 43), (39, 42), (40, 47), (41, 46),  # eyes
    *_mirrored(48, 54, 3), (51,), *_mirrored(55, 59, 2), (57,), *_mirrored(60, 64, 2), (62,), (65, 67), (66,),  # mouth
)  # fmt: skip
"""Points of a face that belong together: mirror images of one another, and those of the middle."""
_OF_CHIN = next(number for number, group in enumerate(GROUPS) if _CHIN in group)


def fitted(clip: Sequence[Points], reference: Points) -> list[Points]:
    """The faces of a clip, in order, with the proportions of the reference. Raises ValueError where one of them has no width."""
    widths = [float(np.ptp(points[:, 0])) for points in (clip[0], reference)] if len(clip) else [1.0, 1.0]
    if min(widths) <= 0:
        raise ValueError("the points of the first face, or of the reference, have no width")
    wanted, smoothed, moved = _sizes(reference) * (widths[0] / widths[1]), None, []
    for points in clip:
        scales = wanted / _sizes(points)
        scales[_OF_CHIN, 1] = scales[_OF_CHIN, 0]
        smoothed = scales if smoothed is None else _KEPT * smoothed + (1 - _KEPT) * scales
        moved.append(_scaled(points, smoothed))
    around = _MEDIAN // 2
    return [np.median(moved[max(0, t - around) : t + around + 1], axis=0) for t in range(len(moved))]


def _sizes(points: Points) -> np.ndarray:
    """Of each group how far its points are from their middle, and that from the chin: (groups, 2)."""
    found = []
    for group in GROUPS:
        own = points[list(group)]
        middle = own.mean(0)
        found.append((np.linalg.norm(own - middle, axis=1).mean(), np.linalg.norm(middle - points[_CHIN])))
    return np.array(found) + _NOTHING


def _scaled(points: Points, scales: np.ndarray) -> Points:
    moved = points.copy()
    for group, (within, away) in zip(GROUPS, scales, strict=True):
        own, chin = points[list(group)], points[_CHIN]
        middle = own.mean(0)
        moved[list(group)] = (own - middle) * within + (middle - chin) * away + chin
    return moved
