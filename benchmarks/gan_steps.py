"""Images/s of a training step of StyleGAN2 and of R3GAN, against the same networks and losses run plainly.

    python benchmarks/gan_steps.py stylegan2 --out FILE.md
    python benchmarks/gan_steps.py r3gan --out FILE.md

StyleGAN2: 64x64, the `auto` configuration at a quarter of its width, with R1 and path lengths as often as there. R3GAN: CIFAR-10's
configuration at a quarter of its width. Both without augmentation. Plain: memory in the order NCHW, float32, PyTorch's convolutions and
their second derivatives, zeros put between pixels and one dense 4x4 filter at the large size, a pass of its own for each penalty, Adam
without fusion, an average by a loop over the parameters, the C library's allocator as it is, images that lie ready; and StyleGAN2's
weights modulated for each image, as in the paper ("plain features": the features instead, as Triptych does). Triptych: its own loop, with
loading, checks, measurements and the average. Every measurement is a new process, and the variants take turns, each round
beginning with another one. Targets: 1.2 times the plain images/s in float32, 1.7 times with bf16 on a CPU that multiplies it natively
(others leave it out). Exit code 1 when one is missed.

`--peer` is a checkout of https://github.com/lucidrains/stylegan2-pytorch, for one more row of StyleGAN2: its own Trainer.train with its
own defaults. Its networks are others, so that work is compared: FLOP/s of what a step needs at least (`work`), whatever else is computed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from turns import Comparison, compare, loop_times

from triptych.core.batch import Batch
from triptych.core.model import TrainingProgress
from triptych.core.rng import Rng
from triptych.data.config import DataConfig
from triptych.engine.config import AverageConfig, OptimConfig, TrainConfig
from triptych.engine.precision import native_precision
from triptych.gans import model as game
from triptych.gans import r3gan, stylegan2_layers, stylegan2_networks
from triptych.gans.penalties import PenaltyConfig
from triptych.gans.r3gan import R3GANConfig, R3GANNetworkConfig
from triptych.gans.stylegan2 import StyleGAN2Config
from triptych.gans.stylegan2_layers import StyleGAN2DiscriminatorConfig, StyleGAN2GeneratorConfig
from triptych.nn import convolution, filters
from triptych.recipes.config import RunConfig

VARIANTS = {
    "stylegan2": ("plain float32", "plain features", "triptych float32", "triptych bf16"),
    "r3gan": ("plain float32", "triptych float32", "triptych bf16"),
}
TARGETS = {"triptych float32": 1.2, "triptych bf16": 1.7}
PEER = "lucidrains"
SETTINGS = {
    "stylegan2": "StyleGAN2 64x64, auto at a quarter of its width (64 and 128 channels)",
    "r3gan": "R3GAN CIFAR-10, at a quarter of its width (192 channels)",
}
SIZES = {"stylegan2": 64, "r3gan": 32}
clock = time.perf_counter
STEPS = {"stylegan2": 17, "r3gan": 5}  # the first is not counted; StyleGAN2's R1 comes in every sixteenth


def configuration(network: str, folder: Path, *, precision: str, steps: int, batch_size: int) -> RunConfig:
    """A run of so many steps on random images, which are written to `folder`."""
    size = SIZES[network]
    images = np.random.default_rng(0).integers(0, 256, (4 * batch_size, size, size, 3), dtype=np.uint8)
    np.savez(folder / "images.npz", arr_0=images)
    settings = TrainConfig(
        total_images=steps * batch_size * (2 if network == "r3gan" else 1),
        batch_size=batch_size,
        precision=precision,  # type: ignore[arg-type]
        sample_count=0,
        statistics_batches=0,
        checkpoint_minutes=None,
        compile="off",
        ema_rates=(),
        averages=(AverageConfig(half_life=10_000),),
    )
    data = DataConfig(source="arrays", path=str(folder / "images.npz"), image_size=size, validation_fraction=0.0, workers=0)
    optim = OptimConfig(name="adam", learning_rate=2e-4, betas=(0.0, 0.99))
    return RunConfig(
        model=stylegan2_config(batch_size) if network == "stylegan2" else r3gan_config(), data=data, train=settings, optim=optim
    )


def stylegan2_config(batch_size: int) -> StyleGAN2Config:
    """auto for 64x64, with 4096 in the place of 16384 channels divided by the resolution, and 128 in that of 512 at most."""
    shape: dict[str, Any] = {"base_channels": 4096, "max_channels": 128, "mapping_layers": 2, "conv_clamp": 256.0}
    return StyleGAN2Config(
        generator=StyleGAN2GeneratorConfig(**shape),
        discriminator=StyleGAN2DiscriminatorConfig(**shape),
        penalty=PenaltyConfig(r1_gamma=0.0002 * 64**2 / batch_size, every=16, at="original"),
    )


def r3gan_config() -> R3GANConfig:
    """CIFAR-10's, with widths of 192 in the place of 768."""
    network = R3GANNetworkConfig(widths=(192, 192, 192, 192))
    return R3GANConfig(generator=network, discriminator=network)


# Plainly ----------------------------------------------------------------------------------------------------------------


def dense(x: Tensor, kernel: Tensor, before: int, behind: int) -> Tensor:
    """Each channel filtered at every pixel, after so many zeros before and behind each row and column."""
    weight = kernel.flip(0, 1).to(x.dtype).expand(x.shape[1], 1, -1, -1)
    return F.conv2d(F.pad(x, (before, behind, before, behind)), weight, groups=x.shape[1])


def plain_upsampled(x: Tensor, kernel: Tensor) -> Tensor:
    """`filters.upsampled`, with the zeros in memory."""
    b, c, h, w = x.shape
    large = torch.cat((x[:, :, :, None, :, None], x.new_zeros(b, c, h, 1, w, 1)), dim=5)
    large = torch.cat((large, torch.zeros_like(large)), dim=3).reshape(b, c, 2 * h, 2 * w)
    return dense(large, 4 * kernel, 2, 1)


def plain_downsampled(x: Tensor, kernel: Tensor) -> Tensor:
    """`filters.downsampled`: the filter at every pixel, then every second."""
    return dense(x, kernel, 1, 1)[:, :, ::2, ::2]


def plain_upsampled_convolution(x: Tensor, weight: Tensor, kernel: Tensor, *, groups: int = 1) -> Tensor:
    """`filters.upsampled_convolution`."""
    turned = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    edge = 2 - weight.shape[2] // 2
    return dense(F.conv_transpose2d(x, turned, stride=2, groups=groups), 4 * kernel, edge, edge)


def plain_downsampled_convolution(x: Tensor, weight: Tensor, kernel: Tensor) -> Tensor:
    """`filters.downsampled_convolution`."""
    if weight.shape[2] == 1:
        return F.conv2d(plain_downsampled(x, kernel), weight)
    return F.conv2d(dense(x, kernel, 2, 2), weight, stride=2)


def plain_rectifier(x: Tensor, slope: float, limit: float | None = None) -> Tensor:
    """`rectifier.leaky_rectifier`."""
    x = F.leaky_relu(x, slope)
    return x if limit is None else x.clamp(-limit, limit)


def run_plainly() -> None:
    """From now on, in this process. Raises AssertionError where that would change results."""
    kernel = filters.kernel_of(filters.BINOMIAL)
    x, weight = torch.randn(2, 4, 8, 8), torch.randn(4, 4, 3, 3)
    torch.testing.assert_close(plain_upsampled(x, kernel), filters.upsampled(x, kernel))
    torch.testing.assert_close(plain_downsampled(x, kernel), filters.downsampled(x, kernel))
    for side in (1, 3):
        part = weight[:, :, :side, :side]
        torch.testing.assert_close(plain_upsampled_convolution(x, part, kernel), filters.upsampled_convolution(x, part, kernel))
        torch.testing.assert_close(plain_downsampled_convolution(x, part, kernel), filters.downsampled_convolution(x, part, kernel))
    convolution._convolved = convolution._plain
    r3gan.upsampled = stylegan2_networks.upsampled = plain_upsampled
    r3gan.downsampled = plain_downsampled
    stylegan2_layers.upsampled_convolution = plain_upsampled_convolution
    stylegan2_networks.downsampled_convolution = plain_downsampled_convolution
    r3gan.leaky_rectifier = stylegan2_layers.leaky_rectifier = stylegan2_networks.leaky_rectifier = plain_rectifier

    def judged(self: game.GAN, seen: game.Seen, *, gamma: float | None) -> tuple[Any, Tensor | None]:
        return seen.scores().outputs, None if gamma is None else self._penalty(seen, gamma=gamma, every=1)

    game.GAN._judged = judged  # type: ignore[method-assign]


def measure_plain(config: RunConfig, *, steps: int, batch_size: int) -> list[float]:
    """Seconds of each iteration but the first."""
    data = config.data.open()
    model: Any = config.model.build(data.spec)
    images = (torch.from_numpy(data.train.batch(np.arange(2 * batch_size)).images).permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous()
    networks = {"discriminator": model.discriminator, "generator": model.generator}
    adam = {
        name: torch.optim.Adam(part.parameters(), lr=2e-4, betas=(0.0, 0.99), foreach=False, fused=False) for name, part in networks.items()
    }
    average = [parameter.detach().clone() for parameter in model.generator.parameters()]
    moments = []
    for step in range(steps):
        progress = TrainingProgress(step * batch_size, batch_size, steps * batch_size)
        for turn in model.turns(progress):
            phase = turn.phase
            for name, part in networks.items():
                part.requires_grad_(name in phase.networks)
            model.prepare(phase, progress)
            (optimizer,) = (adam[name] for name in phase.networks)
            optimizer.zero_grad()
            batch = Batch(images[batch_size * turn.slice :][:batch_size], None, torch.arange(batch_size))
            terms = model.loss(phase, batch, Rng(step, (phase.name,), batch.index))
            terms.loss.mean().backward()
            optimizer.step()
            model.observe(phase, terms.observed)
        with torch.no_grad():
            for mean, parameter in zip(average, model.generator.parameters(), strict=True):
                mean.mul_(0.9999).add_(parameter, alpha=1e-4)
        moments.append(clock())
    return [after - before for before, after in itertools.pairwise(moments)]


# As a whole -------------------------------------------------------------------------------------------------------------


def work(generate: Callable[[], Tensor], discriminate: Callable[[Tensor], Tensor], networks: tuple[nn.Module, nn.Module]) -> int:
    """FLOPs of one image in an iteration without penalties: those of a real one, and of the generated ones of both phases."""
    generator, discriminator = networks
    with FlopCounterMode(display=False) as counter:
        fake = generate().detach()
        (discriminate(fake).sum() + discriminate(torch.randn_like(fake)).sum()).backward()
        discriminator.requires_grad_(False)
        discriminate(generate()).sum().backward()
        discriminator.requires_grad_(True)
    for network in (generator, discriminator):
        network.zero_grad()
    return counter.get_total_flops() // len(fake)


def work_of(config: RunConfig) -> int:
    """`work` of a model of ours."""
    model: Any = config.model.build(config.data.open().spec)
    rng = Rng(0, ("work",), torch.arange(4))
    networks = (model.generator, model.discriminator)
    return work(lambda: model.generated(None, rng), lambda images: model.discriminator(images, None).outputs[0], networks)


# The peer ---------------------------------------------------------------------------------------------------------------


def peer_trainer(folder: Path, *, batch_size: int, scratch: Path) -> Any:
    """lucidrains' Trainer on a CPU. What it imports and a step does not use (pictures, logs, quantization) is replaced by empty modules."""

    class Empty(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            return type(name, (), {}) if not name.startswith("__") else super().__getattribute__(name)

    for name in ("fire", "aim", "torchvision", "torchvision.transforms", "vector_quantize_pytorch"):
        sys.modules[name] = Empty(name)
    sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]  # type: ignore[attr-defined]
    there, torch.cuda.is_available = torch.cuda.is_available, lambda: True
    Tensor.cuda = nn.Module.cuda = lambda self, *_, **__: self  # type: ignore[assignment]
    sys.path.insert(0, str(folder))
    from stylegan2_pytorch.stylegan2_pytorch import Trainer  # pyright: ignore[reportMissingImports]

    torch.cuda.is_available = there
    trainer = Trainer(base_dir=str(scratch), image_size=64, batch_size=batch_size)
    trainer.init_GAN()
    trainer.loader = itertools.repeat(torch.rand(batch_size, 3, 64, 64))
    trainer.steps = 1  # step 0 would save and draw pictures
    return trainer


def measure_peer(folder: Path, *, steps: int, batch_size: int) -> tuple[list[float], int]:
    """Seconds of each step but the first, and its work."""
    with tempfile.TemporaryDirectory() as scratch:
        trainer = peer_trainer(folder, batch_size=batch_size, scratch=Path(scratch))
        moments = []
        for _ in range(steps):
            trainer.train()
            moments.append(clock())
        gan = trainer.GAN
        noise = torch.rand(4, 64, 64, 1)

        def generate() -> Tensor:
            styles = gan.S(torch.randn(4, gan.G.latent_dim))
            return gan.G(styles[:, None].expand(-1, gan.G.num_layers, -1), noise)

        flops = work(generate, lambda images: gan.D(images)[0], (nn.ModuleList((gan.S, gan.G)), gan.D))
    return [after - before for before, after in itertools.pairwise(moments)], flops


def measure(options: argparse.Namespace, *, steps: int) -> Iterator[tuple[str, float]]:
    """What this process finds: seconds of a step, FLOPs of an image, and peak memory in bytes."""
    kind, _, precision = options.child.partition(" ")
    size = {"steps": steps, "batch_size": options.batch_size}
    with tempfile.TemporaryDirectory() as scratch:
        half = "bf16" if precision == "bf16" else "float32"
        config = configuration(options.network, Path(scratch), precision=half, **size)
        flops = work_of(config)
        if kind == PEER:
            times, flops = measure_peer(options.peer, **size)
        elif kind == "plain":
            if options.network == "stylegan2" and precision != "features":
                model: Any = config.model
                config = replace(config, model=replace(model, generator=replace(model.generator, modulation="weights")))
            run_plainly()
            times = measure_plain(config, **size)
        else:
            times = loop_times(config, Path(scratch), clock)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        yield "seconds", statistics.mean(times) if options.network == "stylegan2" else statistics.median(times)
        yield "bytes", peak
        yield "work", flops


def main() -> int:
    """0, or 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=VARIANTS)
    parser.add_argument("--steps", type=int, help="iterations of each measurement; the first is not counted (stylegan2: 17, r3gan: 5)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each variant")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--peer", type=Path, help="folder of lucidrains/stylegan2-pytorch")
    parser.add_argument("--cpu-time", action="store_true", help="seconds that the process computed: where a machine does other things too")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    steps = options.steps or STEPS[options.network]
    if options.cpu_time:
        global clock
        clock = time.process_time
    if options.child:
        print(json.dumps(dict(measure(options, steps=steps))))
        return 0
    variants = (*VARIANTS[options.network], *((PEER,) if options.peer and options.network == "stylegan2" else ()))
    setting = SETTINGS[options.network] + (", seconds of computing" if options.cpu_time else "")
    if native_precision(torch.device("cpu")) != "bf16":
        variants = tuple(name for name in variants if not name.endswith("bf16"))
        setting += "; without bf16, which this CPU does not multiply natively"
    comparison = Comparison(
        title=f"A training step of {'StyleGAN2' if options.network == 'stylegan2' else 'R3GAN'}",
        setting=setting,
        variants={name: "lucidrains' stylegan2-pytorch float32" if name == PEER else name for name in variants},
        targets={name: wanted for name, wanted in TARGETS.items() if name in variants},
        times="times plain",
    )
    return compare(__file__, comparison, rounds=options.rounds, steps=steps, batch_size=options.batch_size, out=options.out)


if __name__ == "__main__":
    sys.exit(main())
