"""Mixed styles: images that have the coarse styles of one image and the fine ones of another.

"A Style-Based Generator Architecture for Generative Adversarial Networks", Karras et al. 2019, https://arxiv.org/abs/1812.04948, Fig. 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from triptych.core.errors import ConfigError
from triptych.runs.latents import Latents


def mixed(latents: Latents, mix: tuple[int, int], *, first_fine: int) -> Latents:
    """The latents of a grid of (rows + 1) x (columns + 1) images, row by row.

    `latents`: those of the rows, then those of the columns. Style k of a mixed image is that of its row for k < `first_fine`, else that of
    its column; other latents (noise maps) are those of its row. The first image of a row and of a column are the plain ones; the first of
    all, where nothing is mixed, is that of the first row again.
    """
    rows, columns = mix
    row, column = np.divmod(np.arange((rows + 1) * (columns + 1)), columns + 1)
    coarse = np.where(row > 0, row - 1, rows + column - 1)
    fine = np.where(column > 0, rows + column - 1, row - 1)
    coarse[0] = fine[0] = 0
    styles = np.concatenate((latents.arrays[0][coarse, :first_fine], latents.arrays[0][fine, first_fine:]), axis=1)
    return Latents((styles, *(array[coarse] for array in latents.arrays[1:])), None)


def first_style(sizes: Sequence[int], at: int | None) -> int:
    """The first of the styles of a layer of `at` pixels; None: of the layers in the middle. `sizes`: pixels of each style's layer.

    Raises ConfigError where no layer has that size, or the first ones have: nothing would be mixed.
    """
    there = sorted(set(sizes))[1:]
    at = there[(len(there) - 1) // 2] if at is None and there else at
    if at not in there:
        raise ConfigError("mix_at", f"got {at}, expected one of {', '.join(map(str, there))}, the pixels of the layers")
    return list(sizes).index(at)
