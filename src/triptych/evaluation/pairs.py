"""How near an image is to its truth: PSNR, SSIM and MS-SSIM of pairs of 8-bit images, in float64.

"Image Quality Assessment: From Error Visibility to Structural Similarity", Wang et al. 2004, https://doi.org/10.1109/TIP.2003.819861;
"Multi-Scale Structural Similarity for Image Quality Assessment", Wang et al. 2003, https://doi.org/10.1109/ACSSC.2003.1292216.

Values are divided by 255, so that their range is 1. A window never reaches over the border: only places where all of it lies within the
image count. Each channel is measured by itself, and the mean over the channels is the image's figure. docs/methods/image-pairs.md says
where other programs differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, UInt8

from triptych.core.errors import DataError

Images: TypeAlias = UInt8[np.ndarray, "b h w c"]
"""With 1 or 3 channels."""
PerImage: TypeAlias = Float[np.ndarray, " b"]
"""float64."""

WINDOW, _SIGMA = 11, 1.5  # pixels
_C1, _C2 = 0.01**2, 0.03**2  # (K1 L)² and (K2 L)², for the range L = 1
_SCALE_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)  # Wang et al. 2003, section 3.2, from fine to coarse
SMALLEST_SIDE = WINDOW << (len(_SCALE_WEIGHTS) - 1)
"""Pixels of the shorter side that MS-SSIM needs: its window has to lie within the image of the coarsest scale."""


def psnr(images: Images, truth: Images) -> PerImage:
    """Peak signal-to-noise ratio in dB, 10 log10(L² / MSE) with the mean squared error over all pixels and channels of an image.

    Infinite where the two are equal. Raises DataError where they cannot be compared.
    """
    require_alike(images, truth)
    error = _of_each(lambda x, y: np.square(x - y).mean(axis=(1, 2, 3)), images, truth)
    with np.errstate(divide="ignore"):
        return -10 * np.log10(error)


def ssim(images: Images, truth: Images) -> PerImage:
    """Structural similarity, Wang et al. 2004, Eqs. 13 to 17, in [-1, 1]: 1 for equal images.

    The window is Gaussian, 11x11 with a standard deviation of 1.5 pixels. Raises DataError for images that cannot be compared or are
    smaller than the window.
    """
    require_alike(images, truth)
    _require_side(images, WINDOW, "SSIM", "the window is 11x11")
    return _of_each(lambda x, y: np.multiply(*_similarity(x, y)).mean(axis=(1, 2, 3)), images, truth)


def ms_ssim(images: Images, truth: Images) -> PerImage:
    """Multi-scale structural similarity, Wang et al. 2003, Eq. 7 with five scales, in [0, 1]: 1 for equal images.

    From one scale to the next means of 2x2 pixels are taken; an odd last row or column is left out. A factor below 0, whose power would
    not be real, counts as 0. Raises DataError for images that cannot be compared or are smaller than 176 pixels.
    """
    require_alike(images, truth)
    _require_side(images, SMALLEST_SIDE, "MS-SSIM", "an 11x11 window at a sixteenth of the size")
    return _of_each(_at_all_scales, images, truth)


def _at_all_scales(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """MS-SSIM of images in [0, 1]."""
    product = np.ones((len(x), x.shape[3]))
    for scale, weight in enumerate(_SCALE_WEIGHTS):
        if scale > 0:
            x, y = _halved(x), _halved(y)
        luminance, contrast_structure = _similarity(x, y)
        last = scale == len(_SCALE_WEIGHTS) - 1
        factor = (luminance * contrast_structure if last else contrast_structure).mean(axis=(1, 2))
        product *= np.maximum(factor, 0) ** weight
    return product.mean(axis=1)


def _similarity(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At each place of the window: the comparison of luminance l, and that of contrast and structure c s (with C3 = C2 / 2)."""
    mean_x, mean_y = _windowed(x), _windowed(y)
    variances = _windowed(x * x + y * y) - mean_x**2 - mean_y**2
    covariance = _windowed(x * y) - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + _C1) / (mean_x**2 + mean_y**2 + _C1)
    return luminance, (2 * covariance + _C2) / (variances + _C2)


def _windowed(x: np.ndarray) -> np.ndarray:
    """Means under the window, (b, h - 10, w - 10, c): first over rows, then over columns."""
    weights = np.exp(-np.square(np.arange(WINDOW) - WINDOW // 2) / (2 * _SIGMA**2))
    weights /= weights.sum()
    rows, columns = (side - WINDOW + 1 for side in x.shape[1:3])
    x = functools.reduce(np.add, (weight * x[:, shift : shift + rows] for shift, weight in enumerate(weights)))
    return functools.reduce(np.add, (weight * x[:, :, shift : shift + columns] for shift, weight in enumerate(weights)))


def _halved(x: np.ndarray) -> np.ndarray:
    height, width = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    x = x[:, :height, :width]
    return (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4


def _of_each(measure: Callable[[np.ndarray, np.ndarray], np.ndarray], images: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """What is measured of one pair after the other, in [0, 1]; a whole batch takes far more memory, and longer by a processor's caches."""
    return np.concatenate([measure(images[k : k + 1] / 255.0, truth[k : k + 1] / 255.0) for k in range(len(images))])


def require_alike(images: np.ndarray, truth: np.ndarray) -> None:
    """Raises DataError unless both are 8-bit images, (b, h, w, c), of one shape with 1 or 3 channels."""
    for given in (images, truth):
        if given.dtype != np.uint8 or given.ndim != 4 or given.shape[3] not in (1, 3) or 0 in given.shape:
            raise DataError(f"got {given.dtype} of shape {list(given.shape)}, expected 8-bit images (b, h, w, c) with 1 or 3 channels")
    if images.shape != truth.shape:
        shapes = " and ".join(f"{len(x)} of {x.shape[2]}x{x.shape[1]} with {x.shape[3]} channels" for x in (images, truth))
        raise DataError(f"images and their truth have to be alike, got {shapes}")


def _require_side(images: np.ndarray, smallest: int, name: str, reason: str) -> None:
    height, width = images.shape[1:3]
    if min(height, width) < smallest:
        raise DataError(f"{name} needs images of at least {smallest} pixels a side ({reason}), got {width}x{height}")
