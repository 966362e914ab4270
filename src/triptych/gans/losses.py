"""The losses of the GANs, one value for each sample.

Every function returns a tensor whose mean over the batch is the usual loss: where that is a mean over everything, the value of a
sample is the mean over that sample alone. Sums over microbatches and processes are then exact. Half precision becomes float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from triptych.core.config import Config, config
from triptych.nn.precision import widened

Outputs: TypeAlias = Float[Tensor, "b ..."] | Sequence[Float[Tensor, "b ..."]]
"""A discriminator's scores of b images; a list of them has one tensor for each scale."""

Features: TypeAlias = Sequence[Sequence[Float[Tensor, "b ..."]]]
"""The features of each layer of each discriminator."""

_ON_REAL: dict[str, Callable[[Tensor], Tensor]] = {
    "hinge": lambda x: F.relu(1 - x),
    "least_square": lambda x: 0.5 * (x - 1).square(),
    "non_saturated": lambda x: F.softplus(-x),
    "wasserstein": lambda x: -x,
}
_ON_FAKE: dict[str, Callable[[Tensor], Tensor]] = {
    "hinge": lambda x: F.relu(1 + x),
    "least_square": lambda x: 0.5 * x.square(),
    "non_saturated": lambda x: F.softplus(x),
    "wasserstein": lambda x: x,
}
_ON_FOOLED = _ON_REAL | {"hinge": _ON_REAL["wasserstein"]}  # the generator wants its images to be taken for real ones


@config
class AdversarialConfig(Config):
    """The game that generator and discriminator play."""

    kind: Literal["hinge", "least_square", "non_saturated", "wasserstein"] = "hinge"
    "Loss on the scores: hinge, squared distance to 1 (real) and 0 (fake), cross entropy, or the difference of the scores."
    relativistic: bool = False
    "Score every image relative to its partner in the batch: real - fake and fake - real."

    @property
    def decides_by_sign(self) -> bool:
        """Whether a score above 0 means a real image, and one below 0 a generated one."""
        return not self.relativistic and self.kind in ("hinge", "non_saturated")


def discriminator_losses(real: Outputs, fake: Outputs, *, settings: AdversarialConfig) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
    """The discriminator's loss on real images and on generated ones, to be added.

    Relativistic: the scores of sample i are replaced by real_i - fake_i and fake_i - real_i ("The relativistic discriminator",
    Jolicoeur-Martineau 2018, https://arxiv.org/abs/1807.00734, without its averages: pairs do not couple the samples of a batch). The
    two non-saturating losses are then one, softplus(-(real_i - fake_i)), which counts once ("The GAN is dead; long live the GAN!",
    Huang et al. 2024, https://arxiv.org/abs/2501.05441, Eq. 2): each is half of it.
    """
    if settings.relativistic:
        real, fake = differences(real, fake), differences(fake, real)
    on_real, on_fake = _ON_REAL[settings.kind], _ON_FAKE[settings.kind]
    losses = score_mean([on_real(x) for x in _scales(real)]), score_mean([on_fake(x) for x in _scales(fake)])
    return (losses[0] / 2, losses[1] / 2) if settings.relativistic and settings.kind == "non_saturated" else losses


def generator_loss(fake: Outputs, *, settings: AdversarialConfig, real: Outputs | None = None) -> Float[Tensor, " b"]:
    """The generator's loss on the scores of generated images. `real`: those of their partners, exactly when relativistic."""
    if settings.relativistic:
        assert real is not None, "a relativistic loss needs the scores of the real images"
        fake = differences(fake, real)
    on_fooled = _ON_FOOLED[settings.kind]
    return score_mean([on_fooled(x) for x in _scales(fake)])


def score_mean(scores: Outputs) -> Float[Tensor, " b"]:
    """The mean of each sample inside a scale, then over the scales."""
    return torch.stack([sample_mean(scale) for scale in _scales(scores)]).mean(0)


def differences(scores: Outputs, other: Outputs) -> list[Float[Tensor, "b ..."]]:
    """scores - other, scale by scale."""
    return [a - b for a, b in zip(_scales(scores), _scales(other), strict=True)]


def _scales(scores: Outputs) -> list[Tensor]:
    return [widened(scale) for scale in ([scores] if isinstance(scores, Tensor) else scores)]


def feature_matching(fake: Features, real: Features) -> Float[Tensor, " b"]:
    """L1 between the discriminators' features of generated and of real images. The real ones get no gradient.

    `fake[i][j]`: layer j of discriminator i. A sum over both, divided by the number of discriminators ("High-Resolution Image
    Synthesis and Semantic Manipulation with Conditional GANs", Wang et al. 2018, https://arxiv.org/abs/1711.11585, Eq. 4).
    """
    distances = [l1(a, b.detach()) for layers in zip(fake, real, strict=True) for a, b in zip(*layers, strict=True)]
    return torch.stack(distances).sum(0) / len(fake)


def gaussian_kl(mean: Float[Tensor, " b *d"], log_variance: Float[Tensor, " b *d"] | None = None) -> Float[Tensor, " b"]:
    """KL(N(mean, exp(log_variance)) || N(0, 1)) in nats, summed over the dimensions of each sample. No variance: it is 1.

    The loop takes the mean over the batch. imaginaire sums over it as well, so that its weight stands for one b times larger here.
    """
    mean = widened(mean)
    terms = mean.square()
    if log_variance is not None:
        log_variance = widened(log_variance)
        terms = terms + log_variance.exp() - 1 - log_variance
    return 0.5 * terms.flatten(1).sum(1)


def l1(x: Float[Tensor, " b *d"], target: Float[Tensor, " b *d"]) -> Float[Tensor, " b"]:
    """The mean of |x - target| over each sample.

    For images, styles, contents and what comes back from a cycle. Both get a gradient: detach what should have none.
    """
    return sample_mean((widened(x) - widened(target)).abs())


def top_k_weights(scores: Outputs, *, share: float, batch: Float[Tensor, " n"] | None = None) -> Float[Tensor, " b"]:
    """Factors of the generator's losses that keep the samples with the highest scores: n / k for these k, 0 for the others.

    The mean over all n samples is then that over the kept. k = share * n, rounded; samples that tie with the last one are kept too,
    so that the order of the batch has no say. "Top-k Training of GANs", Sinha et al. 2020, https://arxiv.org/abs/2002.06224.

    The samples of a batch decide about one another: a model that uses it sets `couples_samples`, which refuses microbatches. `batch`:
    the `score_mean` of all n samples of the step, gathered from all processes; None: these are all.
    """
    means = score_mean(scores).detach()
    every = means if batch is None else batch.detach()
    last = every.sort(descending=True).values[max(1, round(share * len(every))) - 1]
    kept = every >= last
    return (means >= last).to(means.dtype) * (len(every) / kept.sum())


def sample_mean(x: Float[Tensor, " b *d"]) -> Float[Tensor, " b"]:
    """The mean over all axes but the first."""
    # Of the axes as they lie: flattened, maps laid out channels last are copied, and so are their gradients.
    values = widened(x)[..., None]
    return values.sum(tuple(range(1, values.ndim))) / math.prod(values.shape[1:])
