"""Pictures of translations: a row for each input, with what it was, whose look was taken, what was made, and the truth."""

from __future__ import annotations

import colorsys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from triptych.core.batch import STYLE, InputSpec
from triptych.core.images import nearest_uint8
from triptych.core.translation import Example
from triptych.nn.instance_edges import instance_edges
from triptych.runs.sampling import Samples, write_grid

_LARGEST_CELL = 512
_GOLDEN = 0.618034  # of the circle of hues: steps of it come near to one another as late as they can
_SHADES = ((0.9, 0.95), (0.55, 1.0), (0.95, 0.6))  # saturation and value


def rows(example: Example, made: Sequence[np.ndarray], sources: Sequence[InputSpec]) -> list[list[np.ndarray]]:
    """A list of pictures, uint8 (h, w, c), for each sample: its sources, the first of its style images, the answers, and the truth.

    `made`: the answers to each, uint8 (answers, h, w, c).
    """
    shown = []
    for k, answers in enumerate(made):
        cells = [pictured(_shown(example.inputs[spec.name][k], spec), spec) for spec in sources]
        if STYLE in example.inputs:
            cells.append(levels(example.inputs[STYLE][k, :1]))
        cells += list(answers)
        if example.truth is not None:
            cells.append(levels(example.truth[k : k + 1]))
        shown.append(cells)
    return shown


def _shown(values: Tensor, spec: InputSpec) -> Tensor:
    """An image or map as it is, of a clip of them the last one."""
    return values[-1] if values.ndim > (3 if spec.kind == "image" else 2) else values


def write_rows(path: Path, shown: Sequence[Sequence[np.ndarray]]) -> None:
    """Writes a PNG of rows of pictures; they stand in cells of one size, in which large ones are made smaller, all by the same factor."""
    cells = [cell for row in shown for cell in row]
    factor = -(-max(max(cell.shape[:2]) for cell in cells) // _LARGEST_CELL)
    cells = [_reduced(cell, factor) for cell in cells]
    height, width, channels = (max(cell.shape[axis] for cell in cells) for axis in range(3))
    sheet = np.full((len(cells), height, width, channels), 255, dtype=np.uint8)
    for place, cell in zip(sheet, cells, strict=True):
        place[: cell.shape[0], : cell.shape[1]] = cell
    write_grid(path, Samples(sheet, None), columns=len(shown[0]))


def palette(count: int) -> np.ndarray:
    """A colour for each of `count` classes, and black for the number after them: uint8 (count + 1, 3)."""

    def colours() -> Iterator[tuple[float, float, float]]:
        for k in range(count):
            saturation, value = _SHADES[k % len(_SHADES)]
            yield colorsys.hsv_to_rgb(k * _GOLDEN % 1, saturation, value)
        yield 0.0, 0.0, 0.0

    return np.array([[round(255 * level) for level in colour] for colour in colours()], dtype=np.uint8)


def pictured(values: Tensor, spec: InputSpec) -> np.ndarray:
    """An image as it is, limbs white where there is one, classes in colours, instances by their edges, points white where there is one."""
    if spec.stored == "limbs":
        return levels(values.amax(0)[None, None])
    if spec.kind == "image":
        return levels(values[None])
    if spec.kind == "classes":
        return palette(spec.num_classes or 0)[values.cpu().numpy()]
    if spec.kind == "points":
        return np.where(values.cpu().numpy() >= 0, 255, 0).astype(np.uint8)[..., None]
    edges = instance_edges(values[None, None])[0, 0].cpu().numpy()
    return np.where(edges > 0, 0, 255).astype(np.uint8)[..., None]


def levels(images: Tensor) -> np.ndarray:
    """The first of images that were 8-bit ones: uint8 (h, w, c)."""
    return nearest_uint8(images).numpy()[0]


def _reduced(cell: np.ndarray, factor: int) -> np.ndarray:
    if factor == 1:
        return cell
    image = Image.fromarray(cell[..., 0] if cell.shape[-1] == 1 else cell).reduce(factor)
    return np.asarray(image).reshape(image.height, image.width, -1)
