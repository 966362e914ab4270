"""Optical flow between two images without a network: the method of Lucas and Kanade (1981), from coarse to fine.

At each size the flow is improved in three steps d of least squares: where I_s is the source warped by the flow so far, I_t the target and g
the gradient of their mean, d solves (sum g g^T + e) d = sum g (I_t - I_s), the sums over the channels and, weighted by a Gaussian, over
the pixels around that the flow leads to a place inside the source. A median then takes out what stands
alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from triptych.gans.flow import inside, warped
from triptych.nn.precision import widened

_COARSEST = 32
"""An image is halved while its short side has at least so many pixels."""
_STEPS = 3
_BLUR, _AROUND = 1.0, 3.0
"""Deviations of the Gaussians before a halving and of the sums, in pixels."""
_DAMPING = 1e-3
_MEDIAN = 5


@torch.no_grad()
def lucas_kanade(target: Float[Tensor, "b c h w"], source: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 2 h w"]:
    """The flow from each pixel of images in [-1, 1] to where it is in the source; each pair by itself, the same on every call."""
    with torch.autocast(target.device.type, enabled=False):
        levels = [(widened(target), widened(source))]
        while min(levels[-1][0].shape[2:]) >= _COARSEST:
            levels.append((_halved(levels[-1][0]), _halved(levels[-1][1])))
        flow = levels[-1][0].new_zeros(len(target), 2, *levels[-1][0].shape[2:])
        for here, there in reversed(levels):
            flow = _enlarged(flow, here.shape[2:])
            for _ in range(_STEPS):
                flow = flow + _step(here, warped(there, flow), inside(flow))
            flow = _median(flow)
        return flow


def _step(target: Tensor, source: Tensor, counted: Tensor) -> Tensor:
    """The change of the flow by least squares, at most a pixel each way."""
    padded = F.pad((target + source) / 2, (1, 1, 1, 1), mode="replicate")
    across, down = (padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]) / 2, (padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]) / 2
    difference = target - source
    products = (across * across, across * down, down * down, across * difference, down * difference)
    sums = _smoothed(torch.stack([product.sum(1) * counted[:, 0] for product in products], dim=1), _AROUND)
    xx, xy, yy, xt, yt = sums.unbind(1)
    xx, yy = xx + _DAMPING, yy + _DAMPING
    determinant = xx * yy - xy * xy
    return torch.stack(((yy * xt - xy * yt) / determinant, (xx * yt - xy * xt) / determinant), dim=1).clamp(-1, 1)


def _smoothed(x: Tensor, deviation: float) -> Tensor:
    """x by a Gaussian; beyond the border its pixels go on."""
    reach = round(3 * deviation)
    taps = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=x.dtype, device=x.device) / deviation) ** 2)
    taps = (taps / taps.sum()).expand(x.shape[1], 1, 1, -1)
    x = F.conv2d(F.pad(x, (reach, reach, 0, 0), mode="replicate"), taps, groups=x.shape[1])
    return F.conv2d(F.pad(x, (0, 0, reach, reach), mode="replicate"), taps.transpose(2, 3), groups=x.shape[1])


def _halved(image: Tensor) -> Tensor:
    size = [side // 2 for side in image.shape[2:]]
    return F.interpolate(_smoothed(image, _BLUR), size=size, mode="bilinear", align_corners=False)


def _enlarged(flow: Tensor, size: torch.Size) -> Tensor:
    """The flow at a size, in pixels of that size."""
    before = flow.shape[2:]
    if before == size:
        return flow
    flow = F.interpolate(flow, size=size, mode="bilinear", align_corners=False)
    return flow * flow.new_tensor([size[1] / before[1], size[0] / before[0]])[:, None, None]


def _median(flow: Tensor) -> Tensor:
    reach = _MEDIAN // 2
    around = F.pad(flow, (reach, reach, reach, reach), mode="replicate").unfold(2, _MEDIAN, 1).unfold(3, _MEDIAN, 1)
    around = around.flatten(4)
    # A GPU's own median takes no fixed one of several that are equal, which strict determinism refuses.
    return around.median(-1).values if around.device.type == "cpu" else around.sort(-1).values[..., around.shape[-1] // 2]
