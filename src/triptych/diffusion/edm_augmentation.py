"""Augmentation that does not leak: training images are changed at random, and the network is told how.

"Elucidating the Design Space of Diffusion-Based Generative Models", Karras et al. 2022, https://arxiv.org/abs/2206.00364, appendix F.2,
Table 6. A network that is told that nothing happened makes images that nothing happened to. All that moves pixels but mirrors is one
geometric transform, that of adaptive augmentation (`nn/warp.py`).
"""

from __future__ import annotations

import functools
import math

import torch
from jaxtyping import Float
from torch import Tensor

from triptych.core.config import Config, config
from triptych.core.rng import Rng
from triptych.nn.precision import widened
from triptych.nn.warp import changed, moving, scaling, transformed, turning

AUGMENT_DIMS = 9
"""Numbers that the network is told, 0 where a change did not happen: mirrored left to right, and top to bottom (0 or 1); the normal draw
of the scale; of the angle the cosine less 1, and the sine; the normal draw of the anisotropy times the cosine and the sine of its
direction; the normal draws of the shift to the right and down."""
_SCALE, _ANISOTROPY, _SHIFT = 0.2, 0.2, 1 / 8  # deviations: of the first two in powers of 2, of the last as a share of the sides
_SLANTED = 0.5  # how often anisotropy has another direction than that of the sides


@config
class NonLeakingConfig(Config):
    """Random changes of training images that the network is told: each with probability p times its multiplier (at most 1)."""

    p: float = 0.0
    "How often each change happens, from 0 to 1; 0: none does, and the network is told nothing."
    x_flip: bool = True
    "Mirror half of the images left to right, whatever p is above 0; data.flip would do it without telling."
    y_flip: float = 1.0
    "Multiplier of a change: mirrored top to bottom, half of the time."
    scaling: float = 1.0
    "Multiplier of a change: larger by 2^N(0, 0.2)."
    rotation: float = 1.0
    "Multiplier of a change: turned by any angle."
    anisotropy: float = 1.0
    "Multiplier of a change: longer by 2^N(0, 0.2) in one direction and shorter by the same across it."
    translation: float = 1.0
    "Multiplier of a change: moved by N(0, 1/8) of each side."

    def validate(self) -> None:
        self.require(0 <= self.p <= 1, "p", "from 0 to 1")
        for change in ("y_flip", "scaling", "rotation", "anisotropy", "translation"):
            self.require(0 <= getattr(self, change) < math.inf, change, "0 or a positive number")

    @property
    def dims(self) -> int:
        """Numbers that the network is told: 9, or none."""
        return AUGMENT_DIMS if self.p > 0 else 0


def augmented(
    images: Float[Tensor, "b c h w"], rng: Rng, settings: NonLeakingConfig
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b 9"]]:
    """The images, changed at random, and what the network is told of it; in float32 where the precision was lower.

    Images that nothing happens to are as they were to the bit. Values are not clipped; beyond its border an image goes on as its mirror.
    """
    images = widened(images)
    gates, uniform, normal = (
        draw.to(images.dtype) for draw in (rng.uniform("gates", 5), rng.uniform("uniform", 5), rng.normal("normal", 4))
    )
    gate = iter(gates.unbind(1))

    def when(change: str, value: Tensor) -> Tensor:
        """The value for the images that the change happens to, 0 for the others."""
        return torch.where(next(gate) < settings.p * getattr(settings, change), value, 0.0)

    left, top, turn, slant, direction = uniform.unbind(1)
    x_flip = torch.where(left < 0.5, float(settings.x_flip), torch.zeros_like(left))
    y_flip = when("y_flip", (top < 0.5).to(top))
    scale, angle = when("scaling", normal[:, 0]), when("rotation", _angle(turn))
    stretch, axis = when("anisotropy", normal[:, 1]), torch.where(slant < _SLANTED, _angle(direction), 0.0)
    moved = next(gate) < settings.p * settings.translation
    shift = normal[:, 2:] * moved[:, None]

    told = (x_flip, y_flip, scale, angle.cos() - 1, angle.sin(), stretch * axis.cos(), stretch * axis.sin(), *shift.unbind(1))
    for flip, dim in ((x_flip, 3), (y_flip, 2)):
        images = torch.where(flip[:, None, None, None] > 0, images.flip(dim), images)
    size, which = images.shape[2:], moved | (scale != 0) | (angle != 0) | (stretch != 0)
    with torch.autocast(images.device.type, enabled=False):
        sources = sources_of(scale=scale, angle=angle, stretch=stretch, axis=axis, shift=shift, size=(size[0], size[1]))
        return changed(images, which, lambda x, i: transformed(x, sources[i])), torch.stack(told, 1)


def sources_of(
    *,
    scale: Float[Tensor, " b"],
    angle: Float[Tensor, " b"],
    stretch: Float[Tensor, " b"],
    axis: Float[Tensor, " b"],
    shift: Float[Tensor, "b 2"],
    size: tuple[int, int],
) -> Float[Tensor, "b 2 3"]:
    """For each place p in the changed image, in pixels from the middle, the place in the image that it shows: source (p, 1).

    The product of the inverses of the changes, the first of which comes first. Places are (x, y), to the right and down; images turn by
    `angle`, and are stretched in the direction `axis`, counted from the right upwards.
    """
    longer, wider = (deviation * draw for deviation, draw in ((_SCALE, scale), (_ANISOTROPY, stretch)))
    sides = shift.new_tensor(size[::-1])
    steps = (
        scaling((-longer).exp2(), (-longer).exp2()),
        turning(angle),
        turning(-axis),
        scaling((-wider).exp2(), wider.exp2()),
        turning(axis),
        moving(-_SHIFT * sides * shift),
    )
    return functools.reduce(torch.matmul, steps)[:, :2]


def _angle(uniform: Tensor) -> Tensor:
    return (2 * uniform - 1) * math.pi
