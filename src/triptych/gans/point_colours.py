"""The colours of the points of a scene: taken from the frames that show them first, and shown where later frames show them again.

"World-Consistent Video-to-Video Synthesis", Mallya et al. 2020, https://arxiv.org/abs/2007.08509. A table (b, n, c + 1) has for each of
n points its colour and whether that is known, 1 or 0. A map of points (b, h, w) has the number of the point that each pixel shows; -1
where none is known. Numbers are places in the table, or any: then the sorted distinct numbers (n,) of its rows go with the table.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from triptych.gans.losses import sample_mean
from triptych.nn.precision import widened


def no_colours(count: int, *, like: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n c1"]:
    """The table of so many points before the first of such images: none is known."""
    return like.new_zeros(len(like), count, like.shape[1] + 1)


def with_colours(table: Float[Tensor, "b n c1"], points: Int[Tensor, "b h w"], image: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n c1"]:
    """The table with the colours of the points that an image is the first to show: of several pixels of a point the first in reading order.

    Points that are known keep their colours; those beyond the table have none.
    """
    count, channels = table.shape[1], image.shape[1]
    places = torch.where((points >= 0) & (points < count), points, count).flatten(1)
    places, order = places.sort(dim=1, stable=True)  # the pixels of a point side by side, in reading order
    new = torch.ones_like(places, dtype=torch.bool)
    new[:, 1:] = places[:, 1:] != places[:, :-1]
    grown = torch.cat((table, table.new_zeros(len(table), 1, channels + 1)), dim=1)  # a row more, for what is not to be kept
    new &= grown[..., -1].gather(1, places) == 0
    colours = image.flatten(2).movedim(1, 2).to(table.dtype).gather(1, order[..., None].expand(-1, -1, channels))
    rows = torch.where(new, places, count) + (count + 1) * torch.arange(len(table), device=places.device)[:, None]
    grown.flatten(0, 1)[rows.flatten()] = torch.cat((colours, torch.ones_like(colours[..., :1])), dim=-1).flatten(0, 1)
    return grown[:, :count]


def seen_colours(table: Float[Tensor, "b n c1"], points: Int[Tensor, "b h w"]) -> Float[Tensor, "b c1 h w"]:
    """The colours of the points that pixels show, -1 where they are not known; the last channel is 1 where they are, else 0."""
    count = table.shape[1]
    places = points.flatten(1)
    inside = (places >= 0) & (places < count)
    found = table.gather(1, torch.where(inside, places, 0)[..., None].expand(-1, -1, table.shape[2]))
    known = inside[..., None] & (found[..., -1:] > 0)
    colours = torch.where(known, found[..., :-1], -1)
    return torch.cat((colours, known.to(table.dtype)), dim=-1).movedim(1, 2).unflatten(2, points.shape[1:])


def no_numbers(*, like: Int[Tensor, "b h w"]) -> Int[Tensor, " n"]:
    """The numbers that go with a table before the first of such maps: -1 alone, whose row never has a colour."""
    return like.new_full((1,), -1)


def with_numbers(
    table: Float[Tensor, "b n c1"], numbers: Int[Tensor, " n"], points: Int[Tensor, "b h w"], image: Float[Tensor, "b c h w"]
) -> tuple[Float[Tensor, "b m c1"], Int[Tensor, " m"]]:
    """The table and its numbers with the points that an image is the first to show; as `with_colours` of numbers that are places.

    There is a row for each point that any of the maps has shown, whatever its number.
    """
    shown, places = torch.unique(points.clamp(min=-1), return_inverse=True)
    seen = torch.unique(torch.cat((numbers, shown)))
    rows = table.new_zeros(len(table), len(seen), table.shape[2])
    rows[:, torch.searchsorted(seen, numbers)] = table
    of_shown = torch.searchsorted(seen, shown)
    rows[:, of_shown] = with_colours(rows[:, of_shown], torch.where(points >= 0, places, -1), image)
    return rows, seen


def places_of(points: Int[Tensor, "b h w"], numbers: Int[Tensor, " n"]) -> Int[Tensor, "b h w"]:
    """The rows of the points in the table of these numbers, of no point that of -1; -1 of those that it does not have."""
    places = torch.searchsorted(numbers, points.contiguous()).clamp(max=len(numbers) - 1)
    return torch.where(numbers[places] == points, places, -1)


def guidance_loss(image: Float[Tensor, "b c h w"], guidance: Float[Tensor, "b c1 h w"]) -> Float[Tensor, " b"]:
    """The mean of |image - colours| over the pixels whose colours are known; 0 where there are none."""
    known = guidance[:, -1:]
    return sample_mean((widened(image) - guidance[:, :-1]).abs() * known) / sample_mean(known).clamp(min=1 / known[0].numel())
