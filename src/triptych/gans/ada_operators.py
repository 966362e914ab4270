"""What adaptive augmentation does to pixels: a change of colours, a filter in four bands, a rectangle cut out.

"Training Generative Adversarial Networks with Limited Data", Karras et al. 2020, https://arxiv.org/abs/2006.06676, appendix B. All are
differentiable twice and treat each image by itself; what moves pixels is `nn/warp.py`. The filter is a matrix, one for rows and one for
columns.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from triptych.nn.warp import mirrored, taps_matrix

# Low-pass filter of the orthogonal wavelet sym2; the squares of the taps sum to 1.
SYM2 = (-0.12940952255092145, 0.22414386804185735, 0.836516303737469, 0.48296291314469025)
NUM_BANDS = 4


def recoloured(images: Float[Tensor, "b c h w"], matrix: Float[Tensor, "b 3 4"]) -> Float[Tensor, "b c h w"]:
    """`matrix` times (red, green, blue, 1) of each pixel. A grey image becomes the mean of what its three equal colours would."""
    if images.shape[1] == 1:
        matrix = torch.cat((matrix[:, :, :3].sum(2, keepdim=True), matrix[:, :, 3:]), dim=2).mean(1, keepdim=True)
    return (matrix[:, :, :-1] @ images.flatten(2) + matrix[:, :, -1:]).view_as(images)


def filtered(images: Float[Tensor, "b c h w"], gains: Float[Tensor, "b 4"]) -> Float[Tensor, "b c h w"]:
    """The images, with their four bands of frequencies, lowest first, times `gains` along both axes; mirrored at the border."""
    rows, columns = (torch.einsum("bn,nij->bij", gains, _bands(side, device=images.device).to(images)) for side in images.shape[2:])
    return rows[:, None] @ images @ columns[:, None].transpose(2, 3)


def cut_out(images: Float[Tensor, "b c h w"], middle: Float[Tensor, "b 2"]) -> Float[Tensor, "b c h w"]:
    """The images with zeros in a rectangle of half their sides around `middle` (across, down, from 0 to 1), cut off at the border."""
    height, width = images.shape[2:]
    columns, rows = (
        ((torch.arange(side, device=images.device) + 0.5) - side * at[:, None]).abs() < side / 4
        for side, at in zip((width, height), middle.unbind(1), strict=True)
    )
    return images * ~(rows[:, None, :, None] & columns[:, None, None, :])


@functools.lru_cache(maxsize=32)
def _bands(side: int, *, device: torch.device) -> Float[Tensor, "4 h h"]:
    """The matrices of the four band filters, lowest first, which sum to the identity."""
    bank = band_filters()
    at = mirrored(np.arange(side)[:, None] + np.arange(bank.shape[1]) - bank.shape[1] // 2, side)
    return torch.stack([taps_matrix(side, side, at=at, taps=np.broadcast_to(band, at.shape), device=device) for band in bank])


def band_filters() -> Float[np.ndarray, "4 n"]:
    """Symmetric filters of the frequencies 0 to pi/8, to pi/4, to pi/2, to pi, which sum to 1 in the middle: all that there is.

    sym2 and its mirror filter share out the power of each frequency: |H(z)|^2 / 2 + |H(-z)|^2 / 2 = 1. The low share is
    shared out again at half the frequency (z^2), and once more.
    """
    low = np.convolve(SYM2, SYM2[::-1]) / 2
    high = low * (-1.0) ** np.arange(-3, 4)
    bands, rest = [], np.ones(1)
    for level in range(NUM_BANDS - 1):
        step = 2**level
        parts = []
        for share in (low, high):
            spread = np.zeros(6 * step + 1)
            spread[::step] = share
            parts.append(np.convolve(rest, spread))
        rest, band = parts
        bands.append(band)
    length = len(rest)
    return np.stack([np.pad(band, (length - len(band)) // 2) for band in (rest, *reversed(bands))])
