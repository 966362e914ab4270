"""People, as maps of DensePose show them: the terms of the flow from a reference to another picture of the same person.

Few-shot vid2vid for dances (Wang et al. 2019, arXiv 1910.12713), as NVlabs/imaginaire has it. A map of DensePose has u, v and the part of
the body of each pixel, from -1 to 1; the part is 0 where nobody is, else 1 to 24 of 24. With

    P_g(s)  where map s shows group g of parts: nobody, or one of eight (`GROUPS`)
    B(s)    where s shows a person, or does so within seven pixels
    H(s)    the share of the head's parts, 23 and 24, in the 15x15 pixels around

a reference y_r with map s_r, moved by a flow f to where the frame x with map s shows the same, and m, 1 where it is of no use,

    flow    mean |warp(P(s_r), f) - P(s)| + mean |warp(B(s_r), f) - B(s)|
    mask    mean m H(s) + mean |x - warp(y_r, f)| H(s)
            + mean (1 - m) sum_g |warp(P_g(s_r), f) - P_g(s)| + mean (1 - m) max(0, B(s_r) - B(s))

so that a face is taken from the reference, and nothing is where the reference shows another part.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from triptych.gans.flow import warped
from triptych.gans.losses import l1, sample_mean
from triptych.nn.precision import widened

GROUPS = ((0,), (1, 2), (3, 4), (5, 6), (7, 9, 8, 10), (11, 13, 12, 14), (15, 17, 16, 18), (19, 21, 20, 22), (23, 24))
"""Nobody; torso, hands, feet, thighs, calves, upper arms, forearms, head, back or front, left and right alike."""
_PARTS, _HEAD, _AROUND = 24, 23, 15


def numbers(pose: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1 h w"]:
    """The part of each pixel, 0 to 24."""
    return ((widened(pose[:, 2:]) + 1) * (_PARTS / 2)).round()


def groups(pose: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 9 h w"]:
    """Where each group of parts is seen: 1, else 0."""
    part = numbers(pose)
    return torch.cat([torch.stack([part == one for one in group]).any(0) for group in GROUPS], dim=1).to(part.dtype)


def body(pose: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1 h w"]:
    """1 where a person is seen within seven pixels, else 0."""
    seen, reach = (numbers(pose) > 0).to(widened(pose).dtype), _AROUND // 2
    rows = F.max_pool2d(seen, (_AROUND, 1), stride=1, padding=(reach, 0))
    return F.max_pool2d(rows, (1, _AROUND), stride=1, padding=(0, reach))


def head(pose: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1 h w"]:
    """The share of the head in the 15x15 pixels around; none of it lies beyond the border."""
    seen, reach = (numbers(pose) >= _HEAD).to(widened(pose).dtype), _AROUND // 2
    rows = F.avg_pool2d(seen, (_AROUND, 1), stride=1, padding=(reach, 0))
    return F.avg_pool2d(rows, (1, _AROUND), stride=1, padding=(0, reach))


def without_head(pose: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
    """The map with nobody in the place of the head."""
    return torch.where(numbers(pose) >= _HEAD, -1, pose)


class Person(NamedTuple):
    """What a map of DensePose shows."""

    groups: Float[Tensor, "b 9 h w"]
    body: Float[Tensor, "b 1 h w"]
    head: Float[Tensor, "b 1 h w"]

    @classmethod
    def of(cls, pose: Float[Tensor, "b 3 h w"]) -> Self:
        return cls(groups(pose), body(pose), head(pose))


def terms_of_people(
    flow: Float[Tensor, "b 2 h w"],
    mask: Float[Tensor, "b 1 h w"],
    moved: Float[Tensor, "b c h w"],
    *,
    image: Float[Tensor, "b c h w"],
    person: Person,
    other: Person,
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
    """The terms of flow and mask of a picture that was `moved`, beside an `image`, with the `person` of this and of the other."""
    mask, image, moved = widened(mask), widened(image), widened(moved)
    there = warped(other.groups, flow)
    of_flow = l1(there, person.groups) + l1(warped(other.body, flow), person.body)
    off, left = (there - person.groups).abs().sum(1, keepdim=True), (other.body - person.body).clamp(min=0)
    of_head = sample_mean(mask * person.head) + sample_mean((image - moved).abs() * person.head)
    return of_flow, of_head + sample_mean((1 - mask) * off) + sample_mean((1 - mask) * left)
