"""Training steps on a GPU: time, share of the machine's own bf16 rate, memory, and what each switch of the backend costs.

    python benchmarks/gpu.py [--guided-diffusion DIR] [--minutes 9.5] --out benchmarks/results/gpu-DATE.md

The training loop is that of `triptych train`, on random images that lie in memory, without checkpoints and grids. Processes build and
compile networks beside one another; for the iterations that are timed each has the GPU to itself. The switches are tried on the first
case: torch.compile, channels_last, the fused optimizer, cuDNN's own search for kernels, and the kernels that add in a fixed order, which
exact resume needs. A batch that does not fit is halved. At last the loader alone, beside what the step of that case takes in. With
--guided-diffusion also the step of its image_train.py, in fp16.

What no longer fits into --minutes is named and left out. `--device cpu --small --compile off` runs all of it on small networks, which
tries the script and judges nothing.
Goals: half of the measured bf16 rate in the first case, a loader as fast as its step, twice guided-diffusion's images a second. The exit
code is 1 when one is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine
from PIL import Image

SHARE, AHEAD = 0.5, 2.0
_SECONDS = 3.0  # of iterations, after the warm-up
_NEEDED = 10.0  # a process is not begun later
_FOR_LOADERS = 20.0
_TOGETHER = 3  # processes that do not compile


@dataclass(frozen=True)
class Case:
    """A recipe, how it is changed, and its batch."""

    name: str
    recipe: str
    batch: int
    data: str
    "The name of what `write_data` makes."
    changes: dict[str, Any] = field(default_factory=dict)
    "Of the model."
    precision: str = "bf16"


_NARROW = {"network": {"num_channels": 128}}
CASES = (
    Case("ADM-64", "adm-imagenet64", 160, "images64.npz"),
    Case("ADM-256, half its width", "adm-imagenet256", 12, "images256.npz", _NARROW),
    Case("EDM2-XS", "edm2-img64-xs", 128, "images64.npz"),
    Case("flow matching, DiT-S/4", "flow-photos64", 512, "images64.npz"),
    Case("SPADE-256", "spade-coco256", 8, "pairs256"),
    Case("Glow-64", "glow-imagenet64", 64, "images64.npz", precision="float32"),
)
PLAIN, TRAINED = "compile off", "as trained"
COMPILED = ("ADM-64", "ADM-256, half its width", "EDM2-XS", "flow matching, DiT-S/4")
"""Cases that are compiled as well; Glow goes back through its inverses, and SPADE's spectral norms lie outside of its networks."""
PLAIN_BATCH = 64
"""Of ADM-64 without torch.compile, which needs more memory."""
JOBS = (
    ({TRAINED: "", "cuDNN searches": "search", "optimizer not fused": "foreach"}, ""),
    ({"order of sums free": "free_order", "cuDNN searches, order free": "search free_order"}, "free_order"),
)
"""Of the first case, compiled: processes, by what each measures, and what it is built with."""
CONTIGUOUS = "compile off, without channels_last"
PEER = "guided-diffusion fp16"
LOADED = {"JPEGs of 256x256": "jpegs", "arrays of 64x64": "images64.npz"}
SMALL = {"images64.npz": 8, "images256.npz": 8, "pairs256": 32}
"""Pixels of the sides of small data, which small networks take."""


# ---------------------------------------------------------------------------------------------------------------- the child


def prepare(case: Case, switches: list[str], *, data: Path, device: str, small: bool, compile_: str) -> tuple[Any, list[Any]]:
    """The loop of the case, and batches that lie in memory."""
    import torch

    if "contiguous" in switches:
        torch.channels_last = torch.contiguous_format  # all that asks for the one gets the other
    from triptych.data.loader import Loader
    from triptych.engine.distributed import open_world
    from triptych.gans.spade import SPADEConfig
    from triptych.recipes.catalogue import load_recipe
    from triptych.runs.plan_probe import _loop, middle

    recipe = load_recipe(case.recipe).updated({} if small else {"model": case.changes})
    model, side = recipe.model, recipe.data.image_size
    if small:
        model, side = model.shrunk(), SMALL[case.data]
    if isinstance(model, SPADEConfig):
        model = replace(model, perceptual=replace(model.perceptual, weights=str(data / "vgg19.pt"), preprocessing=None))
    settings = {
        "batch_size": case.batch,
        "microbatch": None,
        "precision": case.precision,
        "out_of_memory": "stop",
        "compile": "off" if "no_compile" in switches else compile_,
        "deterministic": "free_order" not in switches,
        "total_images": 10**6 * case.batch,
        "sample_count": 0,
        "validate_images": 0,
        "evaluate_every": None,
        "best_by": "validation",
    }
    where = {"path": str(data / case.data), "image_size": side, "workers": 0, "validation_fraction": 0.0}
    where |= {"source": "auto", "labels": "auto"} if case.data.startswith("images") else {}
    config = replace(recipe, model=model, data=replace(recipe.data, **where), train=replace(recipe.train, **settings))
    world = open_world(device)
    source = config.data.open()
    loop = _loop(config, source, world)
    with contextlib.closing(Loader(source.train, batch_size=case.batch, seed=0, workers=0)) as loader:
        kept = list(itertools.islice(loader.batches(middle(loop)), 2))
    return loop, kept


@contextlib.contextmanager
def turn(data: Path) -> Iterator[None]:
    """Within it no other process of these uses the GPU."""
    with (data / "turn").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def child(case: Case, switches: list[str], variants: dict[str, str], **where: Any) -> dict[str, Any]:
    """Seconds of an iteration and peak of memory of each variant and, where nothing is compiled, the operations of an image."""
    import torch

    from triptych.core.memory import is_out_of_memory
    from triptych.engine.microbatch import DoesNotFit
    from triptych.runs.plan_probe import _operations, _peak, _timed

    began = time.monotonic()
    loop, kept = prepare(case, switches, **where)
    found: dict[str, Any] = {"variants": {}}
    if "no_compile" not in switches:
        try:
            next(loop.iterations(itertools.cycle(kept)))
        except (RuntimeError, DoesNotFit) as error:
            if isinstance(error, RuntimeError) and not is_out_of_memory(error):
                raise
        found["first_seconds"] = time.monotonic() - began
        _peak(loop.world)  # what others need meanwhile
    with turn(where["data"]):
        iterations = loop.iterations(itertools.cycle(kept))
        for name, change in variants.items():
            torch.backends.cudnn.benchmark = "search" in change
            if "foreach" in change:
                _unfuse(loop)
            _peak(loop.world)
            seconds, rounds = _timed(loop, iterations, _SECONDS)
            found["variants"][name] = {"seconds": seconds, "rounds": rounds, "bytes": _peak(loop.world)}
        return found | ({"flops": _operations(loop, iterations)} if "no_compile" in switches else {})


def _unfuse(loop: Any) -> None:
    """Has the optimizers of the loop step by operations on lists of tensors, in the place of one kernel."""
    for updater in loop.updaters.values():
        for group in updater.optimizer.param_groups:
            group |= {"fused": False, "foreach": True} if "fused" in group else {}
        for state in updater.optimizer.state.values():
            state["step"] = state["step"].cpu()


def peak_rate(device: str, size: int) -> float:
    """Operations a second of the product of two bf16 matrices of that size."""
    import torch

    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = []
    for _ in range(20):
        began = time.perf_counter()
        torch.mm(a, b)
        sync()
        times.append(time.perf_counter() - began)
    return 2 * size**3 / sorted(times)[len(times) // 2]


def guided_diffusion(folder: Path, *, batch: int, data: Path, device: str, small: bool) -> dict[str, Any]:
    """A step of guided-diffusion's image_train.py with the published flags of ImageNet 64x64: its model, loss, fp16 trainer and average."""
    import types

    import torch

    sys.path.insert(0, str(folder))
    sys.modules |= {name: types.ModuleType(name) for name in ("blobfile", "mpi4py")}  # for files and MPI, which a step does not touch
    sys.modules["mpi4py"].MPI = types.SimpleNamespace()  # pyright: ignore[reportAttributeAccessIssue]
    from guided_diffusion.fp16_util import MixedPrecisionTrainer  # pyright: ignore[reportMissingImports]
    from guided_diffusion.nn import update_ema  # pyright: ignore[reportMissingImports]
    from guided_diffusion.script_util import create_model_and_diffusion, model_and_diffusion_defaults  # pyright: ignore[reportMissingImports]

    flags = {"image_size": 64, "num_channels": 192, "num_res_blocks": 3, "attention_resolutions": "32,16,8", "num_head_channels": 64}
    flags |= {"class_cond": True, "dropout": 0.1, "learn_sigma": True, "noise_schedule": "cosine", "resblock_updown": True}
    flags |= {"use_new_attention_order": True, "use_scale_shift_norm": True, "use_fp16": device == "cuda"}
    if small:
        flags |= {"num_channels": 32, "num_res_blocks": 1, "num_head_channels": 32}
    model, diffusion = create_model_and_diffusion(**model_and_diffusion_defaults() | flags)
    model.to(device)
    trainer = MixedPrecisionTrainer(model=model, use_fp16=device == "cuda", fp16_scale_growth=1e-3)
    optimizer = torch.optim.AdamW(trainer.master_params, lr=1e-4)
    average = [parameter.detach().clone() for parameter in trainer.master_params]
    images, labels = torch.rand(batch, 3, 64, 64, device=device) * 2 - 1, torch.randint(0, 1000, (batch,), device=device)
    times: list[float] = []
    with turn(data):
        while len(times) < 3 or (sum(times[2:]) < _SECONDS and len(times) < 50):
            began = time.perf_counter()
            trainer.zero_grad()
            timesteps = torch.randint(0, diffusion.num_timesteps, (batch,), device=device)
            trainer.backward(diffusion.training_losses(model, images, timesteps, model_kwargs={"y": labels})["loss"].mean())
            if trainer.optimize(optimizer):
                update_ema(average, trainer.master_params, rate=0.9999)
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
    taken = sorted(times[2:])
    return {"batch": batch, "seconds": taken[len(taken) // 2], "bytes": torch.cuda.max_memory_allocated() if device == "cuda" else 0}


def loader_rate(path: Path, *, workers: int | None) -> float:
    """Images a second of the loader alone, of 64x64."""
    from triptych.data.config import DataConfig
    from triptych.data.loader import Loader

    size = 64 if path.is_dir() else np.load(path, mmap_mode="r")["arr_0"].shape[1]
    source = DataConfig(path=str(path), image_size=size, labels="none", validation_fraction=0.0, workers=workers).open()
    with contextlib.closing(Loader(source.train, batch_size=64, seed=0, workers=workers)) as loader:
        batches = loader.batches(0)
        for _ in range(4):
            next(batches)
        began, count = time.monotonic(), 0
        while time.monotonic() - began < _SECONDS:
            next(batches)
            count += 64
        return count / (time.monotonic() - began)


# ----------------------------------------------------------------------------------------------------------------- the data


def write_data(folder: Path, *, small: bool) -> None:
    """Random images and pairs, weights of VGG-19 for the perceptual loss, and JPEGs of 256x256 for the loader."""
    import torch

    from triptych.nn.feature_networks import NETWORKS, required_tensors

    generator = np.random.default_rng(0)
    for name, full, count in (("images64.npz", 64, 1024), ("images256.npz", 256, 128)):
        side = SMALL[name] if small else full
        labels = np.arange(count, dtype=np.int64) % 1000
        labels[-1] = 999  # classes go up to the largest number
        pixels = generator.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
        np.savez(folder / name, arr_0=pixels, arr_1=labels)
    side = SMALL["pairs256"] if small else 256
    for kind, levels in (("images", 256), ("labels", 183), ("instances", 30)):
        (folder / "pairs256" / kind).mkdir(parents=True)
        for number in range(32):
            pixels = generator.integers(0, levels, (side, side, 3), dtype=np.uint8)
            picture = Image.fromarray(pixels if kind == "images" else pixels[..., 0])
            picture.save(folder / "pairs256" / kind / f"{number}.png")
    (folder / "jpegs").mkdir()
    for number in range(64 if small else 1024):
        coarse = Image.fromarray(generator.integers(0, 256, (32, 32, 3), dtype=np.uint8))
        coarse.resize((256, 256), Image.Resampling.BICUBIC).save(folder / "jpegs" / f"{number}.jpg", quality=90)
    weights = {name: 0.02 * torch.randn(shape) for name, shape in required_tensors("vgg19", NETWORKS["vgg19"].layers).items()}
    torch.save(weights, folder / "vgg19.pt")


# --------------------------------------------------------------------------------------------------------------- the parent


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    case: Case
    name: str
    found: dict[str, Any]

    @property
    def images(self) -> float:
        """In a second."""
        return self.case.batch / self.found["seconds"]

    def line(self, flops: float, rate: float) -> str:
        """The line; `flops` are those of an image."""
        first = f"{self.found['first_seconds']:.0f}" if "first_seconds" in self.found else ""
        share = self.images * flops / rate
        figures = f"{1e3 * self.found['seconds']:.1f} | {self.images:.1f} | {share:.2f} | {self.found['bytes'] / 2**30:.1f} | {first}"
        return f"| {self.case.name} | {self.name} | {self.case.batch} | {figures} |"


class Measurements:
    """Child processes, until the time is up."""

    def __init__(self, given: argparse.Namespace, data: Path) -> None:
        self._given, self._data, self._end = given, data, time.monotonic() + 60 * given.minutes - _FOR_LOADERS
        self.left_out: list[str] = []

    def allow(self, seconds: float) -> None:
        """Lets it go on for so much longer."""
        self._end += seconds

    def ask(self, what: str, question: dict[str, Any]) -> dict[str, Any] | None:
        """The answer of a child process; None, and a line, where there is no time left or it failed."""
        if self._end - time.monotonic() < _NEEDED:
            self.left_out.append(f"{what}: no time left")
            return None
        given = self._given
        question |= {"data": str(self._data), "device": given.device, "small": given.small, "compile": given.compile}
        limit = self._end - time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, __file__, "--child", json.dumps(question)], capture_output=True, text=True, timeout=limit
            )
        except subprocess.TimeoutExpired:
            self.left_out.append(f"{what}: no time left")
            return None
        if done.returncode:
            self.left_out.append(f"{what}: {(done.stderr.strip().splitlines() or ['it failed'])[-1][:200]}")
            return None
        print(what, done.stdout.splitlines()[-1], file=sys.stderr, flush=True)
        return json.loads(done.stdout.splitlines()[-1])

    def steps(self, case: Case, switches: str, variants: dict[str, str]) -> list[Row]:
        """What the variants of a step take, of the largest batch that fits."""
        while True:
            what = f"{case.name}, {', '.join(variants)}"
            found = self.ask(what, {"case": asdict(case), "switches": switches.split(), "variants": variants})
            if found is None:
                return []
            if not found.get("out_of_memory"):
                more = {key: found[key] for key in ("flops", "first_seconds") if key in found}
                return [Row(case, name, figures | more) for name, figures in found["variants"].items()]
            if case.batch == 1:
                return []
            case = replace(case, batch=case.batch // 2)


def rows(given: argparse.Namespace, measure: Measurements) -> tuple[list[Row], dict[str, Any] | None]:
    """The steps, and that of guided-diffusion."""
    cases = [replace(case, batch=2) for case in CASES] if given.small else list(CASES)
    plain = replace(cases[0], batch=min(cases[0].batch, PLAIN_BATCH))
    with ThreadPoolExecutor(len(JOBS) + len(COMPILED)) as compiling, ThreadPoolExecutor(_TOGETHER) as others:
        compiled = [compiling.submit(measure.steps, cases[0], switches, variants) for variants, switches in JOBS]
        compiled += [compiling.submit(measure.steps, case, "", {TRAINED: ""}) for case in cases[1:] if case.name in COMPILED]
        uncompiled = [others.submit(measure.steps, plain, "no_compile", {PLAIN: ""})]
        question = {"guided_diffusion": str(given.guided_diffusion), "batch": plain.batch}
        peer = None if given.guided_diffusion is None else others.submit(measure.ask, PEER, question)
        uncompiled += [others.submit(measure.steps, case, "no_compile", {PLAIN: ""}) for case in cases[1:]]
        uncompiled.append(others.submit(measure.steps, plain, "no_compile contiguous", {CONTIGUOUS: ""}))
        table = [row for job in (*uncompiled, *compiled) for row in job.result()]
    order = [case.name for case in CASES]
    return sorted(table, key=lambda row: order.index(row.case.name)), None if peer is None else peer.result()


def report(given: argparse.Namespace, measure: Measurements) -> tuple[str, bool]:
    """The tables, and whether the goals are reached."""
    rate = (measure.ask("rate of bf16", {"rate": 512 if given.small else 8192}) or {"rate": float("nan")})["rate"]
    lines = [f"# Steps on a GPU, {datetime.date.today()}", "", machine(), ""]
    lines += [f"Product of two bf16 matrices: {rate / 1e12:.3g} TFLOP/s; shares are of it. Batches lie in memory.", ""]
    lines += ["| step | | batch | ms | images/s | share | memory, GiB | seconds to the first step |", "|---|---|---|---|---|---|---|---|"]
    table, peer = rows(given, measure)
    measure.allow(_FOR_LOADERS)
    loaders = {name: measure.ask(f"loader, {name}", {"loader": path}) for name, path in LOADED.items()}
    flops = {row.case.name: row.found["flops"] for row in table if "flops" in row.found}
    lines += [row.line(flops.get(row.case.name, float("nan")), rate) for row in table]
    goals: list[tuple[str, bool]] = []
    trained = next((row for row in table if row.name == TRAINED and row.case.name == CASES[0].name), None)
    if trained is not None and trained.case.name in flops:
        share = trained.images * flops[trained.case.name] / rate
        goals.append((f"{trained.case.name}: {share:.2f} of the rate, {SHARE} wanted", share >= SHARE))
    if peer is not None:
        images = peer["batch"] / peer["seconds"]
        lines.append(f"| {PEER} | | {peer['batch']} | {1e3 * peer['seconds']:.1f} | {images:.1f} | | {peer['bytes'] / 2**30:.1f} | |")
        if trained is not None:
            goals.append((f"{trained.images / images:.2f} times {PEER}, {AHEAD} wanted", trained.images >= AHEAD * images))
    rates = {name: found["rate"] for name, found in loaders.items() if found is not None}
    lines += ["", "| loader alone | images/s |", "|---|---|", *(f"| {name} | {value:,.0f} |" for name, value in rates.items())]
    if trained is not None and rates:
        name, value = min(rates.items(), key=lambda entry: entry[1])
        goals.append((f"{name}: {value:,.0f} images/s, the step takes {trained.images:,.0f}", value >= trained.images))
    if given.small:
        goals = []
    lines += ["", *(f"- {text}: {'reached' if good else 'MISSED'}" for text, good in goals)]
    lines += ["", *(f"- left out: {text}" for text in measure.left_out)] if measure.left_out else []
    return "\n".join([*lines, ""]), all(good for _, good in goals)


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """What the parent asked this process for."""
    device, data, small = question["device"], Path(question["data"]), question["small"]
    if "rate" in question:
        return {"rate": peak_rate(device, question["rate"])}
    if "loader" in question:
        return {"rate": loader_rate(data / question["loader"], workers=None)}
    if "guided_diffusion" in question:
        return guided_diffusion(Path(question["guided_diffusion"]), batch=question["batch"], data=data, device=device, small=small)
    from triptych.core.memory import is_out_of_memory
    from triptych.engine.microbatch import DoesNotFit

    try:
        where = {"data": data, "device": device, "small": small, "compile_": question["compile"]}
        return child(Case(**question["case"]), question["switches"], question["variants"], **where)
    except (RuntimeError, MemoryError, DoesNotFit) as error:
        if isinstance(error, RuntimeError) and not is_out_of_memory(error):
            raise
        return {"out_of_memory": True}


def main() -> int:
    """Measures, and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="small networks and batches of 2")
    parser.add_argument("--compile", choices=("on", "off"), default="on", help="off: nowhere, where that takes too long to try the script")
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--guided-diffusion", type=Path, metavar="DIR", help="a checkout of openai/guided-diffusion")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        print(json.dumps(answer(json.loads(given.child))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder), small=given.small)
        text, reached = report(given, Measurements(given, Path(folder)))
    print(text)
    if given.out is not None:
        given.out.write_text(text, encoding="utf-8")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
