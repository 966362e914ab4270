"""Images/s of a training step of SPADE, UNIT and vid2vid, against the same networks and losses run plainly.

    python benchmarks/translation_steps.py spade --out FILE.md
    python benchmarks/translation_steps.py unit --out FILE.md
    python benchmarks/translation_steps.py vid2vid [--frames 4] --out FILE.md

SPADE: spade-coco256 at a quarter of its width, 185 label channels, 256x256. UNIT: unit-winter2summer at half of its width, 256x256.
vid2vid: vid2vid-cityscapes at a quarter of its width, clips of 256x512; an image is a clip there. The perceptual losses have VGG-19 with
random weights. Plain: memory in the order NCHW, float32, PyTorch's convolutions and all their derivatives, maps doubled before they are
convolved, Adam without fusion, an average by a loop over the parameters, the C library's allocator as it is, images that lie ready.
Triptych: its own loop, with loading, checks, measurements, the average and channels last. Every measurement is a new process, and the
variants take turns, each round beginning with another one. Targets, in float32 and in bf16 on a CPU that multiplies it natively (others
leave it out): 2.5 and 4.5 times the plain images/s with SPADE, 1.5 and 2.5 with UNIT, 1.3 and 1.8 with vid2vid. Exit code 1 when one is
missed.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from turns import Comparison, compare, loop_times

from triptych.core.batch import Batch, ClipLength
from triptych.core.model import Phase, TrainingProgress
from triptych.core.rng import Rng
from triptych.core.weight_files import read_weights
from triptych.data.clips import ClipDataConfig
from triptych.data.domains import UnpairedDataConfig
from triptych.data.loader import load
from triptych.data.pairs import PairedDataConfig
from triptych.engine.precision import native_precision
from triptych.engine.turns import Turns
from triptych.gans.discriminators import PatchDiscriminatorConfig, shrunk
from triptych.gans.label_maps import LabelMaps
from triptych.gans.spade import SPADEDiscriminatorConfig, SPADEGeneratorConfig
from triptych.gans.unit import UNITGeneratorConfig
from triptych.gans.video_discriminators import VideoDiscriminatorConfig
from triptych.gans.video_networks import EmbeddingConfig, FlowNetworkConfig, Vid2VidGeneratorConfig
from triptych.nn.feature_networks import NETWORKS, required_tensors
from triptych.recipes.config import RunConfig
from triptych.recipes.paired import spade_coco256
from triptych.recipes.unpaired import unit_winter2summer
from triptych.recipes.video import vid2vid_cityscapes

VARIANTS = ("plain float32", "triptych float32", "triptych bf16")


@dataclass(frozen=True)
class Case:
    """A model, and what is wanted of it."""

    called: str
    setting: str
    batch_size: int
    targets: tuple[float, float]
    "The least times the plain images/s, in float32 and bf16."


CASES = {
    "spade": Case("SPADE", "spade-coco256 at a quarter of its width", 4, (2.5, 4.5)),
    "unit": Case("UNIT", "unit-winter2summer at half of its width, 256x256", 1, (1.5, 2.5)),
    "vid2vid": Case("vid2vid", "vid2vid-cityscapes at a quarter of its width, 256x512", 1, (1.3, 1.8)),
}
clock = time.perf_counter


def narrowed(network: str, folder: Path, *, precision: str, steps: int, batch_size: int, frames: int) -> RunConfig:
    """The recipe made narrow, on random images and maps and a perceptual network of random weights in `folder`."""
    model, data, recipe = {"spade": spade, "unit": unit, "vid2vid": vid2vid}[network](folder, count=2 * batch_size, frames=frames)
    if model.perceptual_weight > 0:
        model = replace(model, perceptual=replace(model.perceptual, weights=str(vgg19(folder))))
    settings = replace(
        recipe.train,
        total_images=steps * batch_size,
        batch_size=batch_size,
        precision=precision,  # type: ignore[arg-type]
        sample_count=0,
        validate_every=None,
        statistics_batches=0,
        checkpoint_minutes=None,
    )
    data = replace(data, path=str(folder), validation_fraction=0.0, enlarge=True, workers=1)
    return replace(recipe, model=model, data=data, train=settings)


def spade(folder: Path, *, count: int, frames: int) -> tuple[Any, Any, RunConfig]:
    """Model and data, and the recipe that they are of; random pairs are written to `folder`."""
    for name, most in (("images", None), ("labels", 184), ("instances", 200)):
        write(folder / name, count, size=(256, 256), most=most)
    recipe = spade_coco256()
    assert isinstance(recipe.data, PairedDataConfig)
    patches = PatchDiscriminatorConfig(kernel_size=4, num_filters=32, num_layers=5)
    generator = SPADEGeneratorConfig(num_filters=32, spade_filters=32, encoder_filters=16)
    model: Any = recipe.model
    return replace(model, generator=generator, discriminator=SPADEDiscriminatorConfig(patch=patches)), recipe.data, recipe


def unit(folder: Path, *, count: int, frames: int) -> tuple[Any, Any, RunConfig]:
    """As `spade`, with images of two domains."""
    for name in ("images_a", "images_b"):
        write(folder / name, count, size=(256, 256), most=None)
    recipe = unit_winter2summer()
    assert isinstance(recipe.data, UnpairedDataConfig)
    model: Any = recipe.model
    generator = UNITGeneratorConfig(num_filters=24, max_num_filters=128)
    patches = replace(model.discriminator, num_filters=24, max_num_filters=256)
    return replace(model, generator=generator, discriminator=patches), replace(recipe.data, image_size=256, resize=256), recipe


def vid2vid(folder: Path, *, count: int, frames: int) -> tuple[Any, Any, RunConfig]:
    """As `spade`, with clips of so many frames."""
    for clip in range(count):
        for name, most in (("images", None), ("labels", 35)):
            write(folder / name / f"clip{clip}", frames, size=(256, 512), most=most)
    recipe = vid2vid_cityscapes()
    assert isinstance(recipe.data, ClipDataConfig)
    generator = Vid2VidGeneratorConfig(
        num_filters=8, max_num_filters=256, embedding=EmbeddingConfig(num_filters=8), flow=FlowNetworkConfig(num_filters=8)
    )
    model: Any = recipe.model
    patches = replace(VideoDiscriminatorConfig().patch, num_filters=16, max_num_filters=128)
    data = replace(recipe.data, image_size=256, width=512, crop="center", scale=None, length=ClipLength(first=frames, most=frames))
    return replace(model, generator=generator, discriminator=VideoDiscriminatorConfig(patch=patches)), data, recipe


def write(folder: Path, count: int, *, size: tuple[int, int], most: int | None) -> None:
    """So many random images, or with `most` maps of as many classes in squares of 16 pixels."""
    draws = np.random.default_rng(0)
    folder.mkdir(parents=True)
    height, width = size
    for k in range(count):
        squares = draws.integers(0, most or 256, (height // 16, width // 16))
        pixels = draws.integers(0, 256, (height, width, 3)) if most is None else np.kron(squares, np.ones((16, 16)))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{k}.png")


def vgg19(folder: Path) -> Path:
    """A file of random weights."""
    shapes = required_tensors("vgg19", NETWORKS["vgg19"].layers)
    torch.manual_seed(0)
    weights = {name: torch.randn(shape) / max(1, np.prod(shape[1:])) ** 0.5 for name, shape in shapes.items()}
    torch.save(weights, folder / "vgg19.pt")
    return folder / "vgg19.pt"


class Plain:
    """A network with its optimizer, as `Turns` knows one."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.adam = torch.optim.Adam(network.parameters(), lr=1e-4, betas=(0.0, 0.999), foreach=False, fused=False)

    def require_gradients(self, wanted: bool) -> None:
        self.network.requires_grad_(wanted)


def measure_plain(config: RunConfig, *, steps: int, batch_size: int) -> list[float]:
    """Seconds of each iteration."""
    data = config.data.open()
    model: Any = config.model.build(data.spec)
    if getattr(model, "perceptual", None) is not None:
        model.perceptual.load(read_weights(model.perceptual.config.weights))
        frozen = model.perceptual.network
        for name, values in frozen.named_buffers():
            frozen.get_submodule(name.rpartition(".")[0]).register_buffer(name.rpartition(".")[2], values.contiguous(), persistent=False)
    batch = contiguous(load(data.train, np.arange(batch_size)).to("cpu"))
    networks: Mapping[tuple[str, ...], Any] = {(name,): Plain(getattr(model, name)) for name in ("discriminator", "generator")}
    average = [parameter.detach().clone() for parameter in model.generator.parameters()]
    turns = Turns(model, networks, seed=0)

    def step(phase: Phase, moment: Batch, progress: TrainingProgress) -> Mapping[str, Tensor]:
        adam = networks[phase.networks].adam
        model.prepare(phase, progress)
        adam.zero_grad()
        terms = model.loss(phase, moment, Rng(0, (phase.name, progress.step), moment.index))
        terms.loss.mean().backward()
        adam.step()
        return terms.carried

    moments = []
    labels = LabelMaps.__call__
    with (
        patch.object(LabelMaps, "__call__", lambda *given: labels(*given).contiguous()),
        patch("triptych.nn.convolution.by_products", lambda *given, **named: False),
        patch("triptych.nn.convolution.by_tiles", lambda *given, **named: False),
        patch("triptych.nn.convolution.by_rows", lambda *given, **named: False),
        patch("triptych.nn.linear.by_onednn", lambda *given: False),
        patch("triptych.nn.convolution.pixels_together", lambda *given, **named: 1),
        patch("triptych.gans.label_maps.note", lambda *given: None),
        patch("triptych.gans.discriminators.derived", lambda x, name, make: make(x)),
        patch("triptych.nn.enlarging.folds", lambda *given: False),
        patch("triptych.gans.discriminators.at_scales", joined_at_scales),
        patch("triptych.gans.video_discriminators.at_scales", joined_at_scales),
        patch("triptych.gans.clip_base.ClipGAN._past_labels", past_labels),
        patch("triptych.gans.losses.sample_mean", lambda x: x.float().flatten(1).mean(1)),
    ):
        for k in range(steps):
            turns.take([batch], step, TrainingProgress(k * batch_size, batch_size, steps * batch_size))
            with torch.no_grad():
                for mean, parameter in zip(average, model.generator.parameters(), strict=True):
                    mean.mul_(0.9999).add_(parameter, alpha=1e-4)
            moments.append(clock())
    return [after - before for before, after in itertools.pairwise(moments)]


def joined_at_scales(x: Tensor, beside: Tensor | None, *, count: int) -> Iterator[Tensor]:
    """As `at_scales`, of map and images that are joined first."""
    seen = x if beside is None else torch.cat((beside, x), dim=1)
    for scale in range(count):
        seen = shrunk(seen) if scale else seen
        yield seen


def past_labels(model: Any, clip: Batch, frames: Sequence[int]) -> Tensor:
    """The label maps of past frames (b, frames, n, h, w) in the order NCHW."""
    return torch.stack([model.labels({each.name: clip.inputs[each.name][:, frame] for each in model.sources}) for frame in frames], dim=1)


def contiguous(batch: Batch) -> Batch:
    """The same in the order NCHW."""
    inputs = {name: values.contiguous() for name, values in batch.inputs.items()}
    return replace(batch, images=batch.images.contiguous(), inputs=inputs)


def measure(options: argparse.Namespace, batch_size: int) -> dict[str, float]:
    """What this process finds: seconds of a step, and peak memory in bytes."""
    kind, precision = options.child.split()
    with tempfile.TemporaryDirectory() as scratch:
        size = {"steps": options.steps, "batch_size": batch_size}
        config = narrowed(options.network, Path(scratch), precision=precision, frames=options.frames, **size)
        times = measure_plain(config, **size) if kind == "plain" else loop_times(config, Path(scratch), clock)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": statistics.median(times), "bytes": peak}


def main() -> int:
    """0, or 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=CASES)
    parser.add_argument("--steps", type=int, default=4, help="iterations of each measurement; the first is not counted")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each variant")
    parser.add_argument("--batch-size", type=int, help="spade: 4; the others: 1")
    parser.add_argument("--frames", type=int, default=4, help="of a clip")
    parser.add_argument("--cpu-time", action="store_true", help="seconds that the process computed: where a machine does other things too")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    parser.add_argument("--child", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    case = CASES[options.network]
    batch_size = options.batch_size or case.batch_size
    if options.cpu_time:
        global clock
        clock = time.process_time
    if options.child:
        print(json.dumps(measure(options, batch_size)))
        return 0
    setting = case.setting + (f", clips of {options.frames} frames" if options.network == "vid2vid" else "")
    variants, targets = VARIANTS, dict(zip(VARIANTS[1:], case.targets, strict=True))
    setting += ", seconds of computing" if options.cpu_time else ""
    if native_precision(torch.device("cpu")) != "bf16":
        variants, targets = variants[:2], {VARIANTS[1]: case.targets[0]}
        setting += "; without bf16, which this CPU does not multiply natively"
    comparison = Comparison(
        title=f"A training step of {case.called}",
        setting=setting,
        variants={name: name for name in variants},
        targets=targets,
        times="times plain",
    )
    return compare(__file__, comparison, rounds=options.rounds, steps=options.steps, batch_size=batch_size, out=options.out)


if __name__ == "__main__":
    sys.exit(main())
