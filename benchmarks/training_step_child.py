"""The training steps that training_step.py compares, each run in a process of its own."""

from __future__ import annotations

import argparse
import importlib.machinery
import itertools
import resource
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode
from training_step import BATCH, COMMON_FLAGS, CONVOLUTIONS, NETWORKS, SIZE, Variant

EMA_RATE, LEARNING_RATE = 0.9999, 1e-4  # the defaults of guided-diffusion's image_train.py
_MARK = "benchmark: forward done"
_now: Callable[[], float] = time.perf_counter
"""The clock of all steps."""


@dataclass
class Subject:
    """A training step, and its halves for counting."""

    parameters: list[nn.Parameter]
    run: Callable[[int], list[float]]
    "Takes so many steps and gives the milliseconds of each."
    loss: Callable[[], Tensor]
    "The scalar that is differentiated; for FLOPs and activations."
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    "Around the backward pass too, where the peer needs that."
    scratch: tempfile.TemporaryDirectory[str] | None = None
    "Removed when the process ends."


def child(variant: Variant, options: argparse.Namespace) -> dict[str, Any]:
    """The measurements of one variant in this process."""
    global _now
    if options.cpu_time:
        _now = time.process_time
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    images = torch.rand(BATCH, 3, SIZE, SIZE) * 2 - 1
    makers = {"triptych": triptych, CONVOLUTIONS: convolutions, "guided-diffusion": guided_diffusion, "diffusers": diffusers}
    subject = makers.get(variant.program, denoising_diffusion_pytorch)(variant, options, images)
    return count(subject, variant) if options.count else clock(subject, options)


def clock(subject: Subject, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of every timed step, and the process's peak memory after them."""
    milliseconds = subject.run(options.warmup + options.steps)[options.warmup :]
    return {"milliseconds": milliseconds, "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def timed(step: Callable[[], object]) -> Callable[[int], list[float]]:
    """`Subject.run` of a step that is one call."""

    def run(count: int) -> list[float]:
        moments = [_now()]
        for _ in range(count):
            step()
            moments.append(_now())
        return [(after - before) * 1e3 for before, after in itertools.pairwise(moments)]

    return run


def count(subject: Subject, variant: Variant) -> dict[str, Any]:
    """FLOPs of forward and backward, parameters, and MiB of tensors that forward leaves behind and that both reach at their peak."""
    flops = 0
    if not variant.checkpointing:  # recomputation is not useful work: the parent takes the count of the variant without it
        with subject.context(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            subject.loss().backward()
        flops = counter.get_total_flops()
    subject.run(1)  # optimizer state and gradients exist from here on
    held, peak = tensor_memory(subject)
    return {
        "gflop": flops / 1e9,
        "parameters": sum(parameter.numel() for parameter in subject.parameters),
        "activation_mib": held / 2**20,
        "peak_mib": peak / 2**20,
        "torch": torch.__version__,
    }


def tensor_memory(subject: Subject) -> tuple[int, int]:
    """Bytes alive between forward and backward, and at most during both, above those alive before; gradients are there already."""
    for parameter in subject.parameters:
        parameter.grad = torch.zeros_like(parameter)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler, subject.context():
        loss = subject.loss()
        with record_function(_MARK):
            pass
        loss.backward()
    events = profiler.profiler.kineto_results.events()  # pyright: ignore[reportOptionalMemberAccess]
    boundary = next(event.start_ns() for event in events if event.name() == _MARK)
    alive = held = peak = 0
    for event in sorted((event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns()):
        alive += event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]
        peak = max(peak, alive)
        held = alive if event.start_ns() <= boundary else held
    return held, peak


def bf16(variant: Variant) -> AbstractContextManager[Any]:
    """Autocast where the variant asks for it."""
    return torch.autocast("cpu", dtype=torch.bfloat16) if variant.precision == "bf16" else nullcontext()


def convolutions(variant: Variant, options: argparse.Namespace, images: Tensor) -> Subject:
    """Ten convolutions of feature maps alone, with the gradients of both."""
    dtype = torch.bfloat16 if variant.precision == "bf16" else torch.float32

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(*sizes).to(dtype).to(memory_format=torch.channels_last).requires_grad_()

    x, weight = drawn(BATCH, 256, SIZE, SIZE), nn.Parameter(drawn(256, 256, 3, 3).detach())
    ones = torch.ones_like(x)

    def step() -> None:
        for _ in range(10):
            torch.autograd.grad(nn.functional.conv2d(x, weight, padding=1), (x, weight), ones)

    def loss() -> Tensor:
        return torch.stack([(nn.functional.conv2d(x, weight, padding=1) * ones).sum() for _ in range(10)]).sum()

    from triptych.engine.allocator import keep_freed_memory

    keep_freed_memory()
    return Subject([weight], timed(step), loss)


# ----------------------------------------------------------------------------------------------------------------- Triptych


class _Enough(Exception):
    """Ends a loop that would go on to save."""


def triptych(variant: Variant, options: argparse.Namespace, images: Tensor) -> Subject:
    """Triptych: its own training loop from draw to draw, checks and measurements included; only files and the loader are left out."""
    from triptych.core.batch import DataSpec, RawBatch
    from triptych.core.model import seeded_build
    from triptych.core.rng import Rng
    from triptych.diffusion.adm import ADMConfig
    from triptych.diffusion.gaussian import GaussianConfig
    from triptych.diffusion.unet import UNetConfig
    from triptych.engine.allocator import keep_freed_memory
    from triptych.engine.config import LogConfig, OptimConfig, TrainConfig
    from triptych.engine.distributed import World
    from triptych.engine.loop import Callables, Loop
    from triptych.engine.precision import autocast
    from triptych.engine.run_directory import RunDirectory
    from triptych.engine.signals import StopRequest

    keep_freed_memory()  # as triptych.runs.train does
    if options.count:  # the useful operations, without those on the zeros between images
        from triptych.nn import convolution, linear

        linear.by_onednn = lambda *given: False  # type: ignore[assignment]
        convolution.by_products = convolution.by_tiles = convolution.by_rows = lambda *given, **named: False  # type: ignore[assignment]
    network = UNetConfig(
        num_channels=int(COMMON_FLAGS["num_channels"]),
        num_res_blocks=int(COMMON_FLAGS["num_res_blocks"]),
        channel_mult=(1, 2, 2, 2),
        attention_resolutions=tuple(int(size) for size in str(NETWORKS[options.network]["attention_resolutions"]).split(",")),
        scale_shift_norm=bool(NETWORKS[options.network]["use_scale_shift_norm"]),
        checkpoint=variant.checkpointing,
    )
    device = torch.device("cpu")
    settings = ADMConfig(network=network, diffusion=GaussianConfig(variance="learned_range"))  # learn_sigma
    model = seeded_build(settings, DataSpec(image_size=SIZE, channels=3), seed=0)
    model.to(device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    train = TrainConfig(
        total_images=2**40,
        batch_size=BATCH,
        precision=variant.precision,  # pyright: ignore[reportArgumentType]
        ema_rates=(EMA_RATE,),
        checkpoint_every=None,
        checkpoint_minutes=None,
        sample_every=None,
        validate_every=None,
    )
    raw = RawBatch(((images + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous(), None, torch.arange(BATCH))
    moments: list[float] = []
    wanted = [0]

    def draw(images_seen: int) -> Iterator[RawBatch]:
        for number in range(wanted[0] + 1):
            moments.append(_now())
            yield replace(raw, index=raw.index + images_seen + number * BATCH)
        raise _Enough

    loop = Loop(
        model,
        train=train,
        optim=OptimConfig(learning_rate=LEARNING_RATE),
        log=LogConfig(every=2**40),
        world=World(0, 1, device),
        directory=RunDirectory(Path("not-written")),
        callables=Callables(draw=draw, validate=None),
        reporting=None,
    )

    def run(count: int) -> list[float]:
        wanted[0] = count
        moments.clear()
        with suppress(_Enough):
            loop.run(StopRequest())
        return [(after - before) * 1e3 for before, after in itertools.pairwise(moments)]

    def loss() -> Tensor:
        batch = raw.to(device)
        with autocast(variant.precision, device=device):
            return model.loss(model.phases[0], batch, Rng(0, ("benchmark",), batch.index)).loss.mean()

    return Subject(list(model.parameters()), run, loss)


# -------------------------------------------------------------------------------------------------------------------- peers


def tune(module: nn.Module) -> None:
    """What a user who knows how can do from outside: channels_last and an allocator that keeps memory."""
    from triptych.engine.allocator import keep_freed_memory

    keep_freed_memory()
    module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def guided_diffusion(variant: Variant, options: argparse.Namespace, images: Tensor) -> Subject:
    """openai/guided-diffusion: the objects of its scripts/image_train.py, and its own TrainLoop.run_step."""
    sys.path.insert(0, str(options.guided_diffusion))
    sys.modules |= {name: types.ModuleType(name) for name in ("blobfile", "mpi4py")}  # for files and MPI, which a step does not touch
    sys.modules["mpi4py"].MPI = types.SimpleNamespace()  # pyright: ignore[reportAttributeAccessIssue]
    from guided_diffusion import logger, train_util, unet  # pyright: ignore[reportMissingImports]
    from guided_diffusion.resample import create_named_schedule_sampler  # pyright: ignore[reportMissingImports]
    from guided_diffusion.script_util import create_model_and_diffusion, model_and_diffusion_defaults  # pyright: ignore[reportMissingImports]

    scratch = tempfile.TemporaryDirectory()
    torch.distributed.init_process_group("gloo", init_method=f"file://{scratch.name}/store", rank=0, world_size=1)
    logger.configure(dir=scratch.name, format_strs=["log", "csv"])
    model, diffusion = create_model_and_diffusion(**model_and_diffusion_defaults() | COMMON_FLAGS | NETWORKS[options.network])
    if variant.tuned:
        tune(model)
    sampler = create_named_schedule_sampler("uniform", diffusion)
    loop = train_util.TrainLoop(
        model=model,
        diffusion=diffusion,
        data=None,
        batch_size=BATCH,
        microbatch=-1,
        lr=LEARNING_RATE,
        ema_rate=str(EMA_RATE),
        log_interval=10,
        save_interval=10_000,
        resume_checkpoint="",
        schedule_sampler=sampler,
        weight_decay=0.0,
        lr_anneal_steps=0,
    )
    if variant.tuned:
        loop.opt = torch.optim.AdamW(loop.mp_trainer.master_params, lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    if options.count:  # its attention is always recomputed in backward, which is no useful work

        def plain(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], *_: object) -> Tensor:
            return function(*inputs)

        recompute, unet.checkpoint = unet.checkpoint, plain

    def step() -> None:
        if options.count:
            unet.checkpoint = recompute  # the step and the memory after the first count are its own again
        with bf16(variant):
            loop.run_step(images, {})

    def loss() -> Tensor:
        t, _ = sampler.sample(BATCH, torch.device("cpu"))
        return diffusion.training_losses(model, images, t)["loss"].mean()

    return Subject(list(model.parameters()), timed(step), loss, context=lambda: bf16(variant), scratch=scratch)


def diffusers(variant: Variant, options: argparse.Namespace, images: Tensor) -> Subject:
    """diffusers: what its example train_unconditional.py does in a step; attention has 64 channels a head as in the other networks."""
    sys.path.append(str(options.peers_path))
    from diffusers import DDPMScheduler, UNet2DModel  # pyright: ignore[reportMissingImports]
    from diffusers.training_utils import EMAModel  # pyright: ignore[reportMissingImports]

    attention = [str(SIZE // 2**level) in str(NETWORKS[options.network]["attention_resolutions"]).split(",") for level in range(4)]
    scale_shift = NETWORKS[options.network]["use_scale_shift_norm"]
    model = UNet2DModel(
        sample_size=SIZE,
        block_out_channels=(128, 256, 256, 256),
        down_block_types=tuple("AttnDownBlock2D" if here else "DownBlock2D" for here in attention),
        up_block_types=tuple("AttnUpBlock2D" if here else "UpBlock2D" for here in reversed(attention)),
        attention_head_dim=64,
        resnet_time_scale_shift="scale_shift" if scale_shift else "default",
    )
    if variant.tuned:
        tune(model)
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.95, 0.999), weight_decay=1e-6, fused=variant.tuned or None)
    average = EMAModel(model.parameters(), decay=EMA_RATE, use_ema_warmup=True, foreach=variant.tuned)

    def loss() -> Tensor:
        noise = torch.randn_like(images)
        t = torch.randint(0, 1000, (BATCH,))
        with bf16(variant):
            predicted = model(scheduler.add_noise(images, noise, t), t).sample
        return nn.functional.mse_loss(predicted.float(), noise)

    def step() -> None:
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average.step(model.parameters())

    return Subject(list(model.parameters()), timed(step), loss)


def denoising_diffusion_pytorch(variant: Variant, options: argparse.Namespace, images: Tensor) -> Subject:
    """lucidrains/denoising-diffusion-pytorch: the network of its README (35.7 M) and the step of its Trainer."""
    sys.path.append(str(options.peers_path))
    stub_torchvision()
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet  # pyright: ignore[reportMissingImports]
    from ema_pytorch import EMA  # pyright: ignore[reportMissingImports]

    model = GaussianDiffusion(Unet(dim=64, dim_mults=(1, 2, 4, 8)), image_size=SIZE)
    if variant.tuned:
        tune(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), fused=variant.tuned or None)
    average = EMA(model, beta=0.995, update_every=10)

    def loss() -> Tensor:
        with bf16(variant):
            return model((images + 1) / 2)

    def step() -> None:
        value = loss()
        value.item()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average.update()

    return Subject(list(model.parameters()), timed(step), loss)


def stub_torchvision() -> None:
    """An empty torchvision: the peer imports it for reading and writing images alone, and its wheels do not load beside a CPU torch."""
    parts = {name: types.ModuleType(name) for name in ("torchvision", "torchvision.transforms", "torchvision.utils")}
    for name, module in parts.items():
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        if "." in name:
            setattr(parts["torchvision"], name.partition(".")[2], module)
    sys.modules |= parts
