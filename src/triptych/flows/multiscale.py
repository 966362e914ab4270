"""The multi-scale flow of Glow: steps, levels, and the Gaussians that their outputs are held against.

"Glow: Generative Flow with Invertible 1x1 Convolutions", Kingma and Dhariwal 2018, https://arxiv.org/abs/1807.03039, Figure 2; the
multi-scale architecture is that of "Density estimation using Real NVP", Dinh et al. 2017, https://arxiv.org/abs/1605.08803, section 3.6.

A level squeezes the image (each 2x2 block of a channel becomes four channels), takes `depth` steps of actnorm, mixing and coupling, and
splits: half of the channels leave as z_2 ~ N(mean(z_1), std(z_1)), the others go on. What is left after the last level has a Gaussian of
its own, learned for each pixel and class. So

    log p(x) = sum log|det| + sum over levels of log N(z_2; mean(z_1), std(z_1)) + log N(z; mean(y), std(y)),

and a latent is (z - mean) / std, which is N(0, 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Modules
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from triptych.flows.layers import (
    LOG_SCALE_FACTOR,
    ActNorm,
    Coupling,
    CouplingName,
    Mixing,
    MixingName,
    ZeroConv,
    ZeroLinear,
    full_precision,
    inverses_at_hand,
    make_mixing,
)
from triptych.flows.memory import MemoryName, Rewound, run_steps


@dataclass(frozen=True)
class StepSettings:
    """How the steps of a flow are made."""

    width: int
    coupling: CouplingName
    mixing: MixingName
    border: bool
    memory: MemoryName = "autograd"
    "What the backward pass keeps of a level's steps."


class Gaussian(NamedTuple):
    """Independent normal distributions, of the shape of their mean and logarithm of the standard deviation."""

    mean: Tensor
    log_std: Tensor

    def latent(self, z: Tensor) -> Tensor:
        """(z - mean) / std: (b, c, h, w)."""
        return (z - self.mean) * torch.exp(-self.log_std)

    def of_latent(self, latent: Tensor) -> Tensor:
        """The z (b, c, h, w) that has this latent."""
        return self.mean + latent * torch.exp(self.log_std)

    def log_prob(self, latent: Tensor) -> Tensor:
        """log N(z; mean, std) of the z that has this latent, over all values of a sample: (b,)."""
        return (-0.5 * (latent.square() + math.log(2 * math.pi)) - self.log_std).flatten(1).sum(1)


class Extent(NamedTuple):
    """How large what passes through the flow becomes, without a gradient: it tells which layer failed."""

    largest: Tensor
    "The largest magnitude after each step: (levels, depth)."
    log_det: Tensor
    "log|det| of each step's mixing, at one pixel: (levels, depth)."
    log_prob: Tensor
    "log p of what leaves at each level, over all samples; the last is what is left: (levels,)."

    def unless_failed(self, earlier: Extent | None) -> Extent:
        """This one, or the earlier one where that has a value that is not finite. Nothing waits for the device."""
        if earlier is None:
            return self
        fine = torch.stack([part.isfinite().all() for part in earlier]).all()
        return Extent(*(torch.where(fine, new, old) for new, old in zip(self, earlier, strict=True)))

    def fault(self) -> str | None:
        """The first layer that made something that is not finite, or has no inverse; None: there is none."""
        before, levels = "the image", len(self.log_prob)
        for i, (largest, log_det, log_prob) in enumerate(zip(*(part.tolist() for part in self), strict=True)):
            for j, (value, singular) in enumerate(zip(largest, log_det, strict=True)):
                name = f"levels.{i}.steps.{j}"
                if not math.isfinite(singular):
                    return f"{name}.mixing: its matrix is singular or not finite"
                if not math.isfinite(value):
                    return f"{name}: its output is not finite, from {before}"
                before = f"values of up to {value:.3g}"
            if not math.isfinite(log_prob):
                return f"{'top' if i == levels - 1 else f'levels.{i}.split'}: the log-density of its values is not finite"
        return None


class Encoded(NamedTuple):
    """What a flow makes of images."""

    log_prob: Tensor
    "log p(x) in nats: (b,)."
    latents: list[Tensor]
    "What left at each level, and last what was left: (b, c, h, w) each, N(0, 1) under the model."
    top: Tensor
    "The last of them before its Gaussian was taken off."
    extent: Extent


class FlowStep(nn.Module):
    """Actnorm, mixing, coupling."""

    def __init__(self, channels: int, settings: StepSettings) -> None:
        super().__init__()
        self.norm = ActNorm(channels)
        self.mixing = make_mixing(settings.mixing, channels)
        self.coupling = Coupling(channels, width=settings.width, kind=settings.coupling, border=settings.border)

    def forward(self, x: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, " b"]]:
        """y, and the part of log|det dy/dx| that depends on the sample, (b,); the rest `Level` adds for all steps at once."""
        return self.coupling(self.mixing.after(self.norm, x))

    def inverse(self, y: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """x of y."""
        return self.norm.inverse(self.mixing.inverse(self.coupling.inverse(y)))

    def rewound(self, y: Float[Tensor, "b c h w"]) -> list[Rewound]:
        """The way back from y: through the coupling, then through mixing and actnorm."""
        coupling = self.coupling.rewound(y)
        x = self.norm.inverse(self.mixing.inverse(coupling.x)).detach()
        with torch.enable_grad():
            mixed = self.mixing.after(self.norm, x.requires_grad_())
        return [coupling, Rewound((x,), (mixed,), (*self.norm.parameters(), *self.mixing.parameters()))]

    def initialize(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Sets the actnorms from this batch; what the step then makes of it."""
        self.norm.initialize(x)
        mixed = self.mixing.after(self.norm, x)
        self.coupling.network.initialize(mixed.chunk(2, dim=1)[0])
        return self.coupling(mixed)[0]


class Split(nn.Module):
    """Half of the channels leave; the others say what to expect of them."""

    def __init__(self, channels: int, *, border: bool) -> None:
        super().__init__()
        self.conv = ZeroConv(channels // 2, channels, border=border)

    def prior(self, kept: Float[Tensor, "b c h w"]) -> Gaussian:
        """The distribution of the half that leaves, given the other one."""
        with full_precision(kept):
            h = self.conv(kept)
        return Gaussian(h[:, 0::2], h[:, 1::2])


class TopPrior(nn.Module):
    """The distribution of what is left at the end, (channels, size, size).

    A zero convolution of nothing gives each pixel a mean and a deviation: all that it sees is where the border is. A label moves both.
    """

    def __init__(self, channels: int, size: int, *, learned: bool, num_classes: int | None, border: bool) -> None:
        super().__init__()
        self.channels, self.size, self.num_classes = channels, size, num_classes
        self.conv = ZeroConv(2 * channels, 2 * channels, border=border) if learned else None
        self.label = None if num_classes is None else ZeroLinear(num_classes, 2 * channels)

    def forward(self, labels: Int[Tensor, " b"] | None, like: Float[Tensor, "b c h w"]) -> Gaussian:
        """For as many samples as `like` has, of its type."""
        h = like.new_zeros(1, 2 * self.channels, self.size, self.size)
        with full_precision(like):
            if self.conv is not None:
                h = self.conv(h)
            if self.label is not None:
                assert labels is not None and self.num_classes is not None
                h = h + self.label(F.one_hot(labels, self.num_classes).to(h.dtype))[:, :, None, None]
        mean, log_std = h.expand(len(like), -1, -1, -1).chunk(2, dim=1)
        return Gaussian(mean, log_std)


class Level(nn.Module):
    """Squeeze, steps, and a split unless it is the last."""

    def __init__(self, channels: int, *, depth: int, settings: StepSettings, splits: bool) -> None:
        super().__init__()
        self.steps: Modules[FlowStep] = nn.ModuleList(FlowStep(channels, settings) for _ in range(depth))  # type: ignore[assignment]
        self.split = Split(channels, border=settings.border) if splits else None
        self.memory: MemoryName = settings.memory

    def forward(self, x: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b 4*c h//2 w//2"], Float[Tensor, " b"], tuple[Tensor, Tensor]]:
        """The squeezed image after all steps, log|det| (b,), and of an Extent the largest magnitudes and log|det| (depth,)."""
        x = F.pixel_unshuffle(x, 2)
        scales = torch.stack([step.norm.log_scale for step in self.steps]).sum(dtype=torch.float64)
        mixings: list[Mixing] = [step.mixing for step in self.steps]
        mixed = mixings[0].log_dets(mixings)
        log_det = (x.shape[2] * x.shape[3] * (LOG_SCALE_FACTOR * scales + mixed.sum())).to(x.dtype)
        passed = run_steps(self.steps, x, memory=self.memory, rewinding=lambda: inverses_at_hand(mixings))
        return passed.y, log_det + passed.log_det, (passed.largest, mixed.detach().to(x.dtype))

    def inverse(self, y: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c//4 2*h 2*w"]:
        """The image before the squeeze."""
        for step in reversed(self.steps):
            y = step.inverse(y)
        return F.pixel_shuffle(y, 2)

    def initialize(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 4*c h//2 w//2"]:
        """Sets the actnorms from this batch; the squeezed image after all steps."""
        x = F.pixel_unshuffle(x, 2)
        for step in self.steps:
            x = step.initialize(x)
        return x


class MultiscaleFlow(nn.Module):
    """Images (b, channels, size, size), about 1 in range, to Gaussian latents and back."""

    def __init__(
        self, channels: int, size: int, *, levels: int, depth: int, settings: StepSettings, learn_top: bool, num_classes: int | None
    ) -> None:
        super().__init__()
        self.latent_shapes: list[tuple[int, int, int]] = []
        made = []
        for level in range(levels):
            splits = level < levels - 1
            channels, size = 4 * channels, size // 2
            made.append(Level(channels, depth=depth, settings=settings, splits=splits))
            channels //= 2 if splits else 1
            self.latent_shapes.append((channels, size, size))
        self.levels: Modules[Level] = nn.ModuleList(made)  # type: ignore[assignment]
        self.top = TopPrior(channels, size, learned=learn_top, num_classes=num_classes, border=settings.border)

    def forward(self, x: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"] | None) -> Encoded:
        """The log-density of each image and its latents; `labels` exactly when the flow has classes."""
        log_dets, latents, log_probs, extents = [], [], [], []
        for level in self.levels:
            x, log_det, extent = level(x)
            log_dets.append(log_det)
            extents.append(extent)
            if level.split is None:
                prior, left = self.top(labels, x), x
            else:
                x, left = x.chunk(2, dim=1)
                prior = level.split.prior(x)
            latents.append(prior.latent(left))
            log_probs.append(prior.log_prob(latents[-1]))
        largest, mixed = (torch.stack(parts) for parts in zip(*extents, strict=True))
        densities = torch.stack(log_probs)
        log_prob = (torch.stack(log_dets) + densities).sum(0)
        return Encoded(log_prob, latents, x, Extent(largest, mixed, densities.detach().sum(1)))

    def inverse(self, latents: list[Float[Tensor, "b _ _ _"]], labels: Int[Tensor, " b"] | None) -> Float[Tensor, "b c h w"]:
        """The images that have these latents."""
        x = self.top(labels, latents[-1]).of_latent(latents[-1])
        for level, latent in zip(reversed(self.levels), [None, *reversed(latents[:-1])], strict=True):
            if latent is not None and level.split is not None:
                x = torch.cat((x, level.split.prior(x).of_latent(latent)), dim=1)
            x = level.inverse(x)
        return x

    @torch.no_grad()
    def initialize(self, x: Float[Tensor, "b c h w"]) -> None:
        """Sets every actnorm so that its output over this batch has mean 0 and variance 1, one after the other."""
        for level in self.levels:
            x = level.initialize(x)
            if level.split is not None:
                x = x.chunk(2, dim=1)[0]
