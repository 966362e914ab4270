"""How near each sampler comes to the converged sample, by the number of network calls it makes.

    python benchmarks/samplers.py --run runs/adm-digits-demo --out FILE.md

The same noise is brought to images by every deterministic sampler at several numbers of network calls, and compared with two solutions of
1000 steps from that noise: DDIM on every timestep, and Heun's method. The distance is the root mean square over pixels and images, on the
scale of 0 to 255, without clipping the predicted images, which would change the equation. Target: at 20 calls the best is nearer to both
solutions than DDIM at 50. Exit code 1 when it is missed.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

import torch
from machine import machine

from triptych.core.rng import Rng
from triptych.diffusion.model import SamplingConfig
from triptych.runs import open_run

CALLS = (10, 15, 20, 30, 50, 100)
SAMPLERS = ("ddim", "dpm++2m", "unipc", "heun")
TARGET_CALLS, COMPARED_WITH = 20, 50


def main() -> int:
    """0, or 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="a trained run of an ADM recipe (T = 1000)")
    parser.add_argument("--count", type=int, default=64, help="images")
    parser.add_argument("--spacing", choices=("timesteps", "log-snr", "edm"), help="of the solvers, in place of what suits each")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()

    run = open_run(options.run)
    model = run.load()
    rng = Rng(0, ("sample",), torch.arange(options.count))
    classes = model.num_classes
    labels = None if classes is None else torch.arange(options.count) % classes
    calls_made = 0

    def count_call(*_: object) -> None:
        nonlocal calls_made
        calls_made += 1

    model.network.register_forward_hook(count_call)

    def drawn(sampler: str, steps: int) -> tuple[torch.Tensor, int]:
        """The images at the end, not clamped, and the network calls that they took."""
        nonlocal calls_made
        calls_made = 0
        spacing = None if sampler == "ddim" else options.spacing
        settings = SamplingConfig(sampler=sampler, steps=steps, clip=False, spacing=spacing)  # type: ignore[arg-type]
        *_, last = model.sample_progressive(rng, labels=labels, settings=settings)
        return last.sample, calls_made

    references = {"DDIM": drawn("ddim", 1000)[0], "Heun": drawn("heun", 1000)[0]}

    def distances(images: torch.Tensor) -> list[float]:
        return [float((images - reference).square().mean().sqrt()) * 127.5 for reference in references.values()]

    apart = distances(references["Heun"])[0]
    lines = ["| sampler | calls | to DDIM, 1000 steps | to Heun, 1000 steps |", "|---|---|---|---|"]
    found: dict[tuple[str, int], list[float]] = {}
    for sampler in SAMPLERS:
        for calls in CALLS:
            images, made = drawn(sampler, (calls + 1) // 2 if sampler == "heun" else calls)
            found[sampler, calls] = distances(images)
            lines.append(f"| {sampler} | {made} | {found[sampler, calls][0]:.2f} | {found[sampler, calls][1]:.2f} |")
            print(lines[-1], flush=True)
    best = min(SAMPLERS[1:], key=lambda sampler: max(found[sampler, TARGET_CALLS]))
    pairs = list(zip(found[best, TARGET_CALLS], found["ddim", COMPARED_WITH], strict=True))
    passed = all(ours < ddim for ours, ddim in pairs)
    shown = "; ".join(f"{ours:.2f} against {ddim:.2f} (to {name})" for name, (ours, ddim) in zip(references, pairs, strict=True))
    report = "\n".join(
        [
            f"# Samplers by network calls, {datetime.date.today().isoformat()}",
            "",
            f"{run.recipe}, {run.find_checkpoint()} images seen, {options.count} images; spacing: {options.spacing or 'what suits each'}.",
            f"The two solutions of 1000 steps are {apart:.2f} apart. Heun's method takes the steps that need at most that many calls.",
            machine(),
            "",
            *lines,
            "",
            f"{best} at {TARGET_CALLS} calls against DDIM at {COMPARED_WITH}: {shown}. {'Reached.' if passed else 'MISSED.'}",
        ]
    )
    print(report)
    if options.out:
        options.out.write_text(report + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
