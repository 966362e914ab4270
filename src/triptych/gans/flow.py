"""The mathematics of video: warps by optical flow, what flow is learned from, and which frames a network sees.

"Video-to-Video Synthesis", Wang et al. 2018, https://arxiv.org/abs/1808.06601. A flow f(p) = (x, y) is in pixels, to the right and down,
and leads from a pixel p of the target frame to where it was in the source frame, the one before.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from triptych.gans.losses import l1, sample_mean
from triptych.nn.lookup import looked_up
from triptych.nn.precision import widened

CONFIDENT = 0.02
"""The squared difference of a pixel's colours (in [-1, 1], summed over channels) from which on a flow is not believed."""

FLAT = 0.01
"""Added to the variance of likenesses over moves: what varies far less than this says nothing."""


def warped(image: Float[Tensor, "b c h w"], flow: Float[Tensor, "b 2 h w"]) -> Float[Tensor, "b c h w"]:
    """The image at p + f(p), between four pixels; beyond its border the border's pixel."""
    with torch.autocast(image.device.type, enabled=False):
        image, flow = widened(image), widened(flow)
        places = []
        for axis, side in ((0, image.shape[3]), (1, image.shape[2])):
            start = torch.arange(side, dtype=flow.dtype, device=flow.device)
            at = (start if axis == 0 else start[:, None]) + flow[:, axis]
            places.append(2 * at / max(side - 1, 1) - 1)
        return looked_up(image, torch.stack(places, dim=-1), border="border", align_corners=True)


def cost_volume(now: Float[Tensor, "b n h w"], before: Float[Tensor, "b n h w"], *, radius: int) -> Float[Tensor, "b m h w"]:
    """How alike each place p of a map is to the places around it in the map before: <now(p), before(p + d)> for the m moves d.

    d = (x, y) are all whole numbers from -radius to radius, row by row; beyond the border all is 0. Of the m numbers of a place the mean is
    taken out, and they are divided by their standard deviation: where all moves are as likely, as inside of an area of one class, all are
    0. The cost volume of "PWC-Net", Sun et al. 2018, https://arxiv.org/abs/1709.02371, Eq. 2, so normalised.
    """
    with torch.autocast(now.device.type, enabled=False):
        now, (height, width) = widened(now), now.shape[2:]
        around = F.pad(widened(before), (radius,) * 4)
        moves = range(2 * radius + 1)
        costs = [(now * around[:, :, y : y + height, x : x + width]).sum(1) for y in moves for x in moves]
        volume = torch.stack(costs, dim=1)
        volume = volume - volume.mean(1, keepdim=True)
        return volume * (volume.square().mean(1, keepdim=True) + FLAT).rsqrt()


def confidence(
    target: Float[Tensor, "b c h w"], source: Float[Tensor, "b c h w"], flow: Float[Tensor, "b 2 h w"]
) -> Float[Tensor, "b 1 h w"]:
    """1 where the flow finds the target's colour in the source, else 0 (behind what moved away, beyond the border)."""
    difference = (widened(target) - warped(source, flow)).square().sum(1, keepdim=True)
    return (difference < CONFIDENT).to(difference.dtype)


def inside(flow: Float[Tensor, "b 2 h w"]) -> Float[Tensor, "b 1 h w"]:
    """1 where the flow leads to a place inside the source, else 0."""
    height, width = flow.shape[2:]
    x, y = flow[:, :1] + torch.arange(width, device=flow.device), flow[:, 1:] + torch.arange(height, device=flow.device)[:, None]
    return ((x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)).to(flow.dtype)


def leads_home(flow: Float[Tensor, "b 2 h w"], back: Float[Tensor, "b 2 h w"]) -> Float[Tensor, "b 1 h w"]:
    """1 where the flow from the source `back`, at the place that the flow leads to, leads home again, else 0: what is seen in one alone.

    |f + f'|^2 < 0.01 (|f|^2 + |f'|^2) + 0.5, Eq. 5 of "Dense Point Trajectories by GPU-Accelerated Large Displacement Optical Flow",
    Sundaram et al. 2010, as measures of flicker have it (Ruder et al. 2016, Lai et al. 2018).
    """
    there = warped(back, flow)
    off, lengths = (flow + there).square().sum(1, keepdim=True), (flow.square() + there.square()).sum(1, keepdim=True)
    return (off < 0.01 * lengths + 0.5).to(flow.dtype)


def flow_l1(flow: Float[Tensor, "b 2 h w"], teacher: Float[Tensor, "b 2 h w"], confident: Float[Tensor, "b 1 h w"]) -> Float[Tensor, " b"]:
    """The mean of |flow - teacher| over all pixels, 0 where the teacher is not confident."""
    return l1(flow * confident, teacher * confident)


def warping_error(
    image: Float[Tensor, "b c h w"], before: Float[Tensor, "b c h w"], flow: Float[Tensor, "b 2 h w"], confident: Float[Tensor, "b 1 h w"]
) -> Float[Tensor, " b"]:
    """The mean of |image - warp(before, flow)| where the flow is believed; 0 where that is nowhere."""
    differences = (image - warped(before, flow)).abs() * confident
    return differences.flatten(1).sum(1) / (image.shape[1] * confident.flatten(1).sum(1)).clamp(min=1)


def mask_loss(
    mask: Float[Tensor, "b 1 h w"], warped_image: Float[Tensor, "b c h w"], real: Float[Tensor, "b c h w"]
) -> Float[Tensor, " b"]:
    """The loss of a mask that says where the warped image cannot be used: 1 there, 0 where it can.

    With q = 1 - sum_c |warped - real|, not below 0, mean(mask q) + mean(|mask - 1| (1 - q)). q is differentiated too.
    """
    q = (1 - (widened(warped_image) - widened(real)).abs().sum(1, keepdim=True)).clamp(0, 1)
    mask = widened(mask)
    return sample_mean(mask * q) + sample_mean((mask - 1).abs() * (1 - q))


def past_window(frame: int, *, frames: int) -> tuple[int, ...]:
    """The frames before a frame that a network of `frames` frames, this one included, is shown: oldest first, fewer at the start."""
    return tuple(range(max(0, frame - frames + 1), frame))


def temporal_window(frame: int, *, scale: int, frames: int) -> tuple[int, ...] | None:
    """The frames that a temporal discriminator of so many frames judges at a frame: every frames^scale-th, oldest first.

    None while the clip is too short for that.
    """
    step = frames**scale
    first = frame - (frames - 1) * step
    return tuple(range(first, frame + 1, step)) if first >= 0 else None


def temporal_memory(*, scales: int, frames: int) -> int:
    """How many past frames have to be kept for the temporal discriminators of so many scales."""
    return (frames - 1) * frames ** (scales - 1) if scales else 0
