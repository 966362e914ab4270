"""Images/s of a training step of SiT-B/4 and of EDM2-XS, against SiT's own code and the same networks run plainly.

    python benchmarks/diffusion_steps.py dit --peer DIR --out FILE.md
    python benchmarks/diffusion_steps.py edm2 --out FILE.md

SiT-B/4: the transformer of recipe sit-b-2 over patches of four, on latents of 32x32 with four channels. EDM2-XS: recipe edm2-img64-xs,
64x64 pixels. Both by class, on random images, with weights that are nowhere 0. `--peer` is a checkout of
https://github.com/willisma/SiT, with timm and tqdm on the path: its network, its loss, and the step of its train.py, AdamW and an average
by a loop over the parameters. Plain: memory in the order NCHW, float32, each formula as the paper writes it with PyTorch's operations, Adam
without fusion, an average by a loop, the C library's allocator as it is, images that lie ready. Triptych: its own loop, with loading,
checks, measurements and the average. Every measurement is a new process, and the variants take turns, each round beginning with another
one. Targets: 1.2 times the images/s of the first row in float32, 1.7 times with bf16 on a CPU that multiplies it natively (others leave it
out). Exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import itertools
import json
import math
import resource
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from turns import Comparison, compare

from triptych.core.batch import Batch, LatentSpec
from triptych.core.rng import Rng
from triptych.data.config import DataConfig
from triptych.data.latents import HELD_OUT, LABELS, MEAN, STAMP, STD, LatentStamp
from triptych.diffusion import dit, edm2_network
from triptych.engine.loop import Loop
from triptych.engine.precision import native_precision
from triptych.nn import convolution, linear, magnitude
from triptych.recipes.config import RunConfig
from triptych.recipes.edm2 import edm2_img64_xs
from triptych.recipes.flow_matching import sit_b_2
from triptych.runs import train

PEER = "peer"
VARIANTS = {
    "dit": (PEER, "plain float32", "triptych float32", "triptych bf16"),
    "edm2": ("plain float32", "triptych float32", "triptych bf16"),
}
TARGETS = {"triptych float32": 1.2, "triptych bf16": 1.7}
TITLES = {"dit": "SiT-B/4", "edm2": "EDM2-XS"}
SETTINGS = {"dit": "SiT-B/4, latents of 32x32 with 4 channels, 130M parameters", "edm2": "EDM2-XS, 64x64 pixels, 125M parameters"}
BATCHES = {"dit": 8, "edm2": 4}
NUM_CLASSES = 1000
clock = time.perf_counter


def configuration(network: str, folder: Path, *, precision: str, steps: int, batch_size: int) -> RunConfig:
    """A run of so many steps on random images, which are written to `folder`."""
    recipe = sit_b_2() if network == "dit" else edm2_img64_xs()
    model: Any = recipe.model
    if network == "dit":
        model = replace(model, network=replace(model.network, patch=4))
        data = latents(folder, 4 * batch_size)
    else:
        data = pixels(folder, 4 * batch_size)
    settings = replace(
        recipe.train,
        total_images=steps * batch_size,
        batch_size=batch_size,
        microbatch=None,
        precision=precision,
        ema_rates=(0.9999,) if network == "dit" else (),
        ema_lengths=() if network == "dit" else (0.1,),
        sample_count=0,
        statistics_batches=0,
        checkpoint_minutes=None,
        compile="off",
    )
    return RunConfig(model=model, data=data, train=settings, optim=recipe.optim)


def latents(folder: Path, count: int) -> DataConfig:
    """Random latents of 32x32 with four channels and a class."""
    draw = np.random.default_rng(0)
    spec = LatentSpec(
        autoencoder="none", checkpoint=0, weights="ema", sha256="0", image_size=256, channels=3, mean=(0.0,) * 4, std=(1.0,) * 4
    )
    stamp = LatentStamp(latents=spec, data=DataConfig(image_size=256), class_names=tuple(map(str, range(NUM_CLASSES))))
    arrays = {
        MEAN: draw.standard_normal((count, 4, 32, 32), dtype=np.float32),
        STD: np.full((count, 4, 32, 32), 0.1, np.float32),
        LABELS: draw.integers(0, NUM_CLASSES, count),
        HELD_OUT: np.zeros(count, dtype=bool),
        STAMP: np.array(stamp.text()),
    }
    np.savez(folder / "latents.npz", **arrays)
    return DataConfig(
        source="latents", path=str(folder / "latents.npz"), image_size=256, latent_std=1.0, validation_fraction=0.0, workers=0, flip=False
    )


def pixels(folder: Path, count: int) -> DataConfig:
    """Random images of 64x64 with a class."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (count, 64, 64, 3), dtype=np.uint8)
    labels = np.append(draw.integers(0, NUM_CLASSES, count - 1), NUM_CLASSES - 1)  # there are as many classes as the largest one says
    np.savez(folder / "images.npz", arr_0=images, arr_1=labels)
    return DataConfig(source="arrays", path=str(folder / "images.npz"), image_size=64, validation_fraction=0.0, workers=0, flip=False)


def drawn(network: nn.Module) -> None:
    """Draws the parameters that are 0 at first, so that a step multiplies numbers of the size that they have later."""
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad and not parameter.any():
                parameter.normal_(std=0.1)


# Plainly ----------------------------------------------------------------------------------------------------------------


def plain_normalised(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """`dit._normalised`."""
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale[:, None]) + shift[:, None]


def plain_unit(x: Tensor, *, dims: tuple[int, ...]) -> Tensor:
    """`magnitude.unit`."""
    norm = torch.linalg.vector_norm(x, dim=dims, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
    return x / (1e-4 + norm * math.sqrt(norm.numel() / x.numel())).to(x.dtype)


def plain_filters(self: Any, gain: Tensor | float = 1.0) -> Tensor:
    """`magnitude._UnitLayer.filters`."""
    weight = plain_unit(self.weight, dims=tuple(range(1, self.weight.ndim)))
    return weight * (gain / math.sqrt(weight[0].numel()))


def plain_mp_silu(x: Tensor) -> Tensor:
    """`magnitude.mp_silu`."""
    return F.silu(x) / 0.596


def plain_mp_sum(a: Tensor, b: Tensor, *, t: float) -> Tensor:
    """`magnitude.mp_sum`."""
    return torch.lerp(a, b, t) / math.sqrt((1 - t) ** 2 + t**2)


def plain_mp_cat(a: Tensor, b: Tensor, *, t: float = 0.5) -> Tensor:
    """`magnitude.mp_cat`."""
    n, m = a.shape[1], b.shape[1]
    whole = math.sqrt((n + m) / ((1 - t) ** 2 + t**2))
    return torch.cat((whole / math.sqrt(n) * (1 - t) * a, whole / math.sqrt(m) * t * b), dim=1)


def plain_block(self: edm2_network.EDM2Block, x: Tensor, embedding: Tensor, rng: Rng | None = None) -> Tensor:
    """`EDM2Block.forward`, without dropout."""
    assert self.dropout == 0
    if self.resampling == "down":
        x = F.avg_pool2d(x, 2)
    elif self.resampling == "up":
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
    if self.normalizes:
        x = plain_unit(x if self.conv_skip is None else self.conv_skip(x), dims=(1,))
    h = self.conv_res0(plain_mp_silu(x))
    h = self.conv_res1(plain_mp_silu(h * (self.emb_linear(embedding, self.emb_gain) + 1)[:, :, None, None]))
    if not self.normalizes and self.conv_skip is not None:
        x = self.conv_skip(x)
    x = plain_mp_sum(x, h, t=0.3)
    if self.attn_qkv is not None and self.attn_proj is not None:
        b, c, height, width = x.shape
        y = plain_unit(self.attn_qkv(x).reshape(b, self.heads, -1, 3, height * width), dims=(2,))
        q, k, v = y.transpose(2, 4).unbind(3)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(b, c, height, width)
        x = plain_mp_sum(x, self.attn_proj(mixed), t=0.3)
    return x.clamp(-256, 256)


PLAIN: list[tuple[Any, str, Callable[..., Any]]] = [
    (dit, "_normalised", plain_normalised),
    (dit, "attend", F.scaled_dot_product_attention),
    (linear, "by_onednn", lambda x, weight: False),
    *((convolution, f"by_{way}", lambda x, weight, **named: False) for way in ("tiles", "rows", "products")),
    (edm2_network.EDM2Block, "forward", plain_block),
    (magnitude._UnitLayer, "filters", plain_filters),
    (magnitude, "unit", plain_unit),
    (edm2_network, "mp_silu", plain_mp_silu),
    (edm2_network, "mp_sum", plain_mp_sum),
    (edm2_network, "mp_cat", plain_mp_cat),
]
"""What is replaced, where, and by what."""


def plain_model(config: RunConfig) -> Any:
    """The model, run plainly from now on. Raises AssertionError where that would change its loss or a gradient."""
    model: Any = config.model.build(config.data.open().spec)
    model.train()
    drawn(model)
    (phase,) = model.phases
    spec = config.data.open().spec
    draw = torch.Generator().manual_seed(0)
    images = torch.randn((1, *model.image_shape), generator=draw)
    batch = Batch(images, torch.zeros(1, dtype=torch.long) if spec.num_classes else None, torch.arange(1))
    found = []
    for plainly in (False, True):
        if plainly:
            for place, name, function in PLAIN:
                setattr(place, name, function)
            model.to(memory_format=torch.contiguous_format)
        loss = model.loss(phase, batch, Rng(0, (phase.name,), batch.index)).loss.sum()
        found.append([loss, *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)])
    for ours, plain in zip(*found, strict=True):
        assert (ours is None) == (plain is None)
        if ours is not None and plain is not None:
            scale = float(plain.detach().abs().max())
            torch.testing.assert_close(ours, plain, rtol=0, atol=1e-3 * scale)
    return model


def measure_plain(config: RunConfig, *, steps: int, batch_size: int) -> list[float]:
    """Seconds of each step but the first."""
    model = plain_model(config)
    (phase,) = model.phases
    draw = torch.Generator().manual_seed(0)
    images = torch.randn((batch_size, *model.image_shape), generator=draw)
    labels = torch.randint(NUM_CLASSES, (batch_size,), generator=draw)
    kind = torch.optim.AdamW if config.optim.name == "adamw" else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=1e-4, betas=config.optim.betas, weight_decay=0, foreach=False, fused=False)
    average = [parameter.detach().clone() for parameter in model.parameters()]
    moments = []
    for step in range(steps):
        optimizer.zero_grad()
        batch = Batch(images, labels, torch.arange(batch_size))
        model.loss(phase, batch, Rng(step, (phase.name,), batch.index)).loss.mean().backward()
        optimizer.step()
        model.stepped(phase)
        with torch.no_grad():
            for mean, parameter in zip(average, model.parameters(), strict=True):
                mean.mul_(0.9999).add_(parameter, alpha=1e-4)
        moments.append(clock())
    return [after - before for before, after in itertools.pairwise(moments)]


# As a whole -------------------------------------------------------------------------------------------------------------


def measure_triptych(config: RunConfig, folder: Path) -> list[float]:
    """Seconds of each step but the first."""
    moments: list[float] = []
    iteration = Loop._iteration

    def timed(self: Loop, batches: Any) -> None:
        if not moments:
            drawn(self.model)
        iteration(self, batches)
        moments.append(clock())

    Loop._iteration = timed  # type: ignore[method-assign]
    train(config, folder / "run", device="cpu")
    return [after - before for before, after in itertools.pairwise(moments)]


# The peer ---------------------------------------------------------------------------------------------------------------


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules that the peer and timm import and a step does not use, as empty ones; any name in them is an empty class."""

    names = ("torchdiffeq", "torchvision", "huggingface_hub")

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """One for what is absent."""
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] in self.names else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """An empty one."""

        class Name(type):
            def __getattr__(cls, name: str) -> str:
                if name.startswith("__"):
                    raise AttributeError(name)
                return name

        class Empty(types.ModuleType):
            def __getattr__(self, name: str) -> Any:
                if name.startswith("__"):
                    raise AttributeError(name)
                return Name(name, (), {})

        return Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing in it."""


def measure_peer(folder: Path, *, steps: int, batch_size: int) -> list[float]:
    """Seconds of each step but the first."""
    sys.meta_path.append(Absent())
    sys.path.insert(0, str(folder))
    from models import SiT_models  # pyright: ignore[reportMissingImports]
    from transport import create_transport  # pyright: ignore[reportMissingImports]

    network: nn.Module = SiT_models["SiT-B/4"](input_size=32, num_classes=NUM_CLASSES).train()
    drawn(network)
    average = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    transport = create_transport()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, weight_decay=0)
    images, labels = torch.randn(batch_size, 4, 32, 32), torch.randint(NUM_CLASSES, (batch_size,))
    moments = []
    for _ in range(steps):
        loss = transport.training_losses(network, images, {"y": labels})["loss"].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                average[name].mul_(0.9999).add_(parameter, alpha=1e-4)
        loss.item()
        moments.append(clock())
    return [after - before for before, after in itertools.pairwise(moments)]


def measure(options: argparse.Namespace) -> dict[str, float]:
    """What this process finds: seconds of a step, and peak memory in bytes."""
    kind, _, precision = options.child.partition(" ")
    size = {"steps": options.steps, "batch_size": options.batch_size}
    with tempfile.TemporaryDirectory() as scratch:
        if kind == PEER:
            times = measure_peer(options.peer, **size)
        else:
            config = configuration(options.network, Path(scratch), precision=precision, **size)
            times = measure_plain(config, **size) if kind == "plain" else measure_triptych(config, Path(scratch))
    return {"seconds": statistics.median(times), "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def main() -> int:
    """0, or 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=VARIANTS)
    parser.add_argument("--steps", type=int, default=5, help="steps of each measurement; the first is not counted")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each variant")
    parser.add_argument("--batch-size", type=int, help="images of a step (dit: 8, edm2: 4)")
    parser.add_argument("--peer", type=Path, help="folder of willisma/SiT, for its row of dit")
    parser.add_argument("--cpu-time", action="store_true", help="seconds that the process computed: where a machine does other things too")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.batch_size = options.batch_size or BATCHES[options.network]
    if options.cpu_time:
        global clock
        clock = time.process_time
    if options.child:
        print(json.dumps(measure(options)))
        return 0
    variants = tuple(name for name in VARIANTS[options.network] if name != PEER or options.peer)
    setting = SETTINGS[options.network] + (", seconds of computing" if options.cpu_time else "")
    if native_precision(torch.device("cpu")) != "bf16":
        variants = tuple(name for name in variants if not name.endswith("bf16"))
        setting += "; without bf16, which this CPU does not multiply natively"
    comparison = Comparison(
        title=f"A training step of {TITLES[options.network]}",
        setting=setting,
        variants={name: "SiT's own code float32" if name == PEER else name for name in variants},
        targets={name: wanted for name, wanted in TARGETS.items() if name in variants},
        times="times SiT's" if PEER in variants else "times plain",
    )
    return compare(__file__, comparison, rounds=options.rounds, steps=options.steps, batch_size=options.batch_size, out=options.out)


if __name__ == "__main__":
    sys.exit(main())
