"""Four Gaussians on a square, learned by R3GAN's loss: the whole game, on points. benchmarks/gaussians.py has 25, and the loss in parts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from triptych.core.batch import Batch, DataSpec
from triptych.core.config import Config
from triptych.core.model import Report, TrainingProgress
from triptych.core.rng import Rng
from triptych.gans.discriminators import Scores
from triptych.gans.from_noise import NoiseGAN, NoiseGANConfig
from triptych.gans.losses import AdversarialConfig
from triptych.gans.penalties import PenaltyConfig

SPACING, DEVIATION, LATENT, BATCH = 2.0, 0.2, 6, 64


class Judge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, images: Tensor, labels: Tensor | None) -> Scores:
        return Scores((self.network(images.flatten(1)),), ())


class Points(NoiseGAN):
    """Points as images of one pixel; the noise is flips of a coin and two normal numbers."""

    sampling = Config()

    def __init__(self, config: NoiseGANConfig) -> None:
        generator = nn.Sequential(nn.Linear(LATENT, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
        super().__init__(config, DataSpec(image_size=1, channels=2), generator, Judge())

    def generated(self, labels: Tensor | None, rng: Rng) -> Tensor:
        z = rng.normal("z", LATENT)
        return self.generator(torch.cat((z[:, :-2].sign(), z[:, -2:]), dim=1))[:, :, None, None]

    @torch.no_grad()
    def sample(self, rng: Rng, *, labels: Tensor | None = None, settings: Config | None = None, report: Report | None = None) -> Tensor:
        return self.generated(None, rng)


def learned(*, seed: int, gamma: float, iterations: int) -> tuple[int, float]:
    """How many of the four modes have a tenth of their share of the samples, and the share within 3 standard deviations of one."""
    torch.manual_seed(seed)
    penalty = PenaltyConfig(r1_gamma=gamma, r2_gamma=gamma, at="original", precision="training")
    adversarial = AdversarialConfig(kind="non_saturated", relativistic=True)
    model = Points(NoiseGANConfig(latent_dims=LATENT, fresh_images=True, adversarial=adversarial, penalty=penalty))
    images = 2 * BATCH * iterations
    optimizers = {
        phase.networks: torch.optim.Adam(getattr(model, *phase.networks).parameters(), 5e-3, (0.0, 0.9)) for phase in model.phases
    }
    for first in range(0, images, 2 * BATCH):
        progress = TrainingProgress(images_seen=first, iteration_images=2 * BATCH, total_images=images)
        for turn in model.turns(progress):
            index = torch.arange(BATCH) + first + turn.slice * BATCH
            for network in ("generator", "discriminator"):
                getattr(model, network).requires_grad_(network in turn.phase.networks)
            model.prepare(turn.phase, progress)
            rng = Rng(seed, (turn.phase.name,), index)
            corner = 2 * rng.integers("corner", 2, 2) - 1
            real = SPACING / 2 * corner + DEVIATION * rng.normal("spread", 2)
            model.loss(turn.phase, Batch(real[:, :, None, None], None, index), rng).loss.mean().backward()
            optimizers[turn.phase.networks].step()
            optimizers[turn.phase.networks].zero_grad()
    points = model.sample(Rng(seed, ("sample",), torch.arange(1_000))).flatten(1)
    near = (points.abs() - SPACING / 2).norm(dim=1) <= 3 * DEVIATION
    corners = (points > 0).long()[near]
    counts = torch.bincount(2 * corners[:, 0] + corners[:, 1], minlength=4)
    return int((counts >= 25).sum()), near.float().mean().item()


def test_all_modes_are_found() -> None:
    """Measured: four, and 76 to 99.8 % within with four seeds; 99.8 % with this one."""
    modes, within = learned(seed=1, gamma=0.3, iterations=250)
    assert modes == 4 and within > 0.8
