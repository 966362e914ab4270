"""Evaluation of real images: does a worse set score worse, are figures the same however they are made, and what memory does it take?

    python benchmarks/evaluation_sets.py --images CIFAR10.tar.gz --networks DIR --out FILE.md

The ladder: half of the images is the reference; the other half, the same half blurred, more blurred, and with noise are scored against
it. Each step has to be farther than the one before by more than 1.96 errors of both, in every space. The same figures: a set and a tiny
run are scored in 1, 2 and 4 processes, in batches of 1, 7 and 64, and after a SIGKILL; figures may differ by 1e-9. Memory: the peak of
`triptych evaluate` with all metrics of sets, at 10,000 images of 32x32 against as many. `--networks` holds cifar10_resnet20.pth and
squeezenet1_0_deepcompression.pth. Exit code 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import machine
from PIL import Image, ImageFilter

SPACES = {"cifar10-resnet20": "cifar10_resnet20.pth", "squeezenet": "squeezenet1_0_deepcompression.pth", "efficientnet-lite0": None}
METRICS = "frechet,kid,precision,recall,prdc-precision,prdc-recall,density,coverage,authenticity,copies,is,is-10"
MOST_GIBIBYTES, SAME = 2.0, 1e-9


def main() -> int:
    """0, or 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="a .tar.gz of image files of 32x32, at least 20,000")
    parser.add_argument("--networks", type=Path, required=True, help="the folder of the networks' weights")
    parser.add_argument("--count", type=int, default=1000, help="images in each half of the ladder")
    parser.add_argument("--only", choices=("ladder", "same", "memory"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines, good = [f"# Evaluation of real images, {datetime.date.today()}"], True
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TRIPTYCH_CACHE"] = f"{scratch}/cache"
        folder = Path(scratch)
        parts = {
            "ladder": lambda: ladder(folder, options),
            "same": lambda: same(folder, options),
            "memory": lambda: memory(folder, options),
        }
        for name in [options.only] if options.only else parts:
            told, reached = parts[name]()
            print("\n".join(told), flush=True)
            lines += ["", *told]
            good &= reached
    lines += ["", machine()]
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if good else 1


def read(archive: Path, count: int) -> np.ndarray:
    """The first images of an archive in a shuffled order of its names: uint8 (count, 32, 32, 3)."""
    with tarfile.open(archive) as tar:
        members = sorted((member for member in tar if member.isfile()), key=lambda member: member.name)
        chosen = np.random.default_rng(0).permutation(len(members))[:count]
        wanted = {members[k].name: place for place, k in enumerate(chosen)}
        images = np.empty((count, 32, 32, 3), dtype=np.uint8)
        for member in tar:
            if member.name in wanted:
                images[wanted[member.name]] = np.asarray(Image.open(tar.extractfile(member)).convert("RGB"))
    return images


def saved(path: Path, images: np.ndarray) -> Path:
    """The images as an .npz."""
    np.savez(path, arr_0=images)
    return path


def blurred(images: np.ndarray, radius: float) -> np.ndarray:
    """Each image through a Gaussian of that many pixels."""
    return np.stack([np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(radius))) for image in images])


def ladder(folder: Path, options: argparse.Namespace) -> tuple[list[str], bool]:
    """The steps in each space."""
    from triptych.runs import score

    images = read(options.images, 2 * options.count)
    reference, half = saved(folder / "reference.npz", images[: options.count]), images[options.count :]
    noise = np.random.default_rng(1).normal(0, 40, half.shape)
    steps = {
        "the other half": half,
        "blurred, 0.7 pixels": blurred(half, 0.7),
        "blurred, 1.5 pixels": blurred(half, 1.5),
        "noise, 40 levels": np.clip(half + noise, 0, 255).round().astype(np.uint8),
    }
    lines, good = [f"The ladder: {options.count} images against {options.count} others.", ""], True
    lines += [f"| space | figure | {' | '.join(steps)} | each above the one before |", f"|---|---|{'---|' * len(steps)}---|"]
    for space, file in SPACES.items():
        weights = None if file is None else options.networks / file
        figures = [
            score(saved(folder / f"step{k}.npz", step), reference, metrics=["frechet", "kid"], features=space, features_weights=weights)
            for k, step in enumerate(steps.values())
        ]
        for name in (f"fd-{space}", "kid"):
            values = [(scores.figures[name].value, scores.figures[name].error or 0.0) for scores in figures]
            gaps = [b - a > 1.96 * (da**2 + db**2) ** 0.5 for (a, da), (b, db) in itertools.pairwise(values)]
            good &= all(gaps)
            shown = " | ".join(f"{value:.4g} ± {error:.2g}" for value, error in values)
            lines.append(f"| {space} | {name} | {shown} | {'yes' if all(gaps) else 'NO'} |")
    return lines, good


def evaluate(*arguments: str | Path, processes: int = 1) -> list[str]:
    """The command."""
    start = ["-m", "triptych"]
    if processes > 1:
        start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m", "--", "triptych"]
    return [sys.executable, *start, "evaluate", *map(str, arguments)]


def figures_of(file: Path) -> dict[str, float]:
    """What was written."""
    return {name: figure["value"] for name, figure in json.loads(file.read_text())["figures"].items()}


def same(folder: Path, options: argparse.Namespace) -> tuple[list[str], bool]:
    """The figures of a set and of a run, made in several ways."""
    images = read(options.images, 1200)
    made, reference = saved(folder / "made.npz", images[:600]), saved(folder / "real.npz", images[600:])
    size = ["--model.network.num-channels", "32", "--model.network.attention-resolutions", "4", "--data.image-size", "8"]
    events = ["--train.total-images", "256", "--train.sample-count", "0", "--train.validate-images", "0"]
    run = folder / "run"
    subprocess.run([sys.executable, "-m", "triptych", "train", "adm-digits", "--run", run, *size, *events], check=True, capture_output=True)
    network = ["--features", "random", "--metrics", METRICS.partition(",is")[0], "--device", "cpu"]
    sources = {"600 images against 600": [made, "--reference", reference], "a run, 100 samples": [run, "--steps", "3", "--count", "100"]}
    lines = [
        "The same figures, made in several ways (greatest difference of all figures):",
        "",
        "| images | way | difference |",
        "|---|---|---|",
    ]
    good = True
    for name, source in sources.items():
        first: dict[str, float] | None = None
        ways = {f"{count} processes": (count, []) for count in (1, 2, 4)}
        ways |= {f"batches of {size}": (1, ["--batch-size", str(size)]) for size in (1, 7, 64)} if source[0] == run else {}
        for number, (way, (processes, flags)) in enumerate([*ways.items(), ("killed, and again", (1, []))]):
            out = folder / f"{name[0]}{number}.json"
            forget(folder, run)
            command = evaluate(*source, *network, *flags, "--out", out, processes=processes)
            if way.startswith("killed"):
                kill(command, folder)
            subprocess.run(command, check=True, capture_output=True)
            values = figures_of(out)
            first = first or values
            difference = max(abs(values[key] - value) for key, value in first.items())
            good &= difference <= SAME
            lines.append(f"| {name} | {way} | {difference:.1e} |")
    return lines, good


def forget(folder: Path, run: Path) -> None:
    """Removes what earlier calls have kept, so that everything is made anew."""
    for place in (folder / "cache", run / "evaluations"):
        subprocess.run(["rm", "-rf", str(place)], check=True)


def kill(command: list[str], folder: Path) -> None:
    """Starts the command, and kills it when the first piece of its work is there."""
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while started.poll() is None and not list(folder.glob("**/.*.partial-*/*.npz")):
        time.sleep(0.001)
    started.send_signal(signal.SIGKILL)
    if started.wait() != -signal.SIGKILL:
        raise SystemExit("the command had ended before it could be killed: take more images")


def memory(folder: Path, options: argparse.Namespace) -> tuple[list[str], bool]:
    """The peak of a command with all metrics."""
    images = read(options.images, 20_000)
    made, reference = saved(folder / "m.npz", images[:10_000]), saved(folder / "r.npz", images[10_000:])
    del images
    space, started = "cifar10-resnet20", time.monotonic()
    network = ["--features", space, "--features-weights", options.networks / SPACES[space]]
    subprocess.run(evaluate(made, "--reference", reference, "--metrics", METRICS, *network, "--device", "cpu"), check=True)
    gibibytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    seconds = time.monotonic() - started
    said = f"Memory: {gibibytes:.2f} GiB at its peak, {seconds:.0f} s, for 10,000 images of 32x32 against 10,000, {METRICS} ({space})"
    return [
        f"{said}; target below {MOST_GIBIBYTES:.0f} GiB: {'met' if gibibytes < MOST_GIBIBYTES else 'MISSED'}."
    ], gibibytes < MOST_GIBIBYTES


if __name__ == "__main__":
    sys.exit(main())
