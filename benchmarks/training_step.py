"""Time and memory of one training step (forward, backward, optimizer, EMA) of Triptych's ADM U-Net and of its peers.

    python benchmarks/training_step.py --guided-diffusion DIR --peers-path DIR --rounds 5 --steps 8 --out FILE.md

The step takes a batch of 16 random images of 32x32 that lie in memory. Every measurement is a process of its own, because the
settings of the C library's allocator hold for a whole process; the variants take turns, round after round, each round starting
with another one. The peers run as their users run them: with the defaults of their own training scripts.

Exit code 1 when a target is missed. A peer whose path is not given is left out, with the targets that need it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from machine import machine

BATCH, SIZE = 16, 32
PRECISIONS = ("float32", "bf16")
REFERENCE = "guided-diffusion float32"
CONVOLUTIONS = "3x3 convolutions"
"""Not a program: what the machine's own kernels reach, forward and backward, on 256 channels of the images' size."""
SHARES = {"float32": 0.75, "bf16": 0.60}
"""Of that rate, the least that Triptych's step is to reach."""

# The networks that are compared, by the flags of guided-diffusion's image_train.py (all others keep their defaults).
NETWORKS = {
    "ddpm": {"attention_resolutions": "16", "use_scale_shift_norm": False},  # 35.7 M: the shape of DDPM's CIFAR-10 network
    "adm": {"attention_resolutions": "16,8", "use_scale_shift_norm": True},  # 39.6 M: guided-diffusion's default flags
}
COMMON_FLAGS = {"image_size": SIZE, "num_channels": 128, "num_res_blocks": 2, "channel_mult": "1,2,2,2", "learn_sigma": True}


@dataclass(frozen=True)
class Variant:
    """One row of the table."""

    program: str
    precision: str
    tuned: bool = False
    "Peers only: channels_last, fused optimizer and the allocator's thresholds, which their users do not have."
    checkpointing: bool = False
    "Triptych only: gradient checkpointing."

    @property
    def name(self) -> str:
        """As the table shows it."""
        extra = " tuned" if self.tuned else " checkpointing" if self.checkpointing else ""
        return f"{self.program} {self.precision}{extra}"


def variants(options: argparse.Namespace) -> list[Variant]:
    """The rows that can be measured with what was given."""
    programs = [("guided-diffusion", options.guided_diffusion), ("diffusers", options.peers_path)]
    programs.append(("denoising-diffusion-pytorch", options.peers_path))
    rows = [Variant("triptych", precision) for precision in PRECISIONS]
    rows += [Variant("triptych", precision, checkpointing=True) for precision in PRECISIONS]
    rows += [Variant(CONVOLUTIONS, precision) for precision in PRECISIONS]
    for program, path in programs:
        if path is not None:
            rows += [Variant(program, precision) for precision in PRECISIONS]
            rows += [Variant(program, precision, tuned=True) for precision in PRECISIONS if options.tuned_peers]
    rows = [row for row in rows if options.precision in (None, row.precision)]
    return [row for row in rows if not options.only or row.program in options.only]


# ------------------------------------------------------------------------------------------------------------------- parent


def run_child(variant: Variant, options: argparse.Namespace, *, count: bool) -> dict[str, Any]:
    """What a child process measured: step times and peak memory, or (count) FLOPs, parameters and activation memory."""
    command = [sys.executable, __file__, "--child", json.dumps(asdict(variant)), "--network", options.network]
    command += ["--steps", str(options.steps), "--warmup", str(options.warmup), "--threads", str(options.threads)]
    command += ["--count"] if count else []
    command += ["--cpu-time"] if options.cpu_time else []
    for flag, path in (("--guided-diffusion", options.guided_diffusion), ("--peers-path", options.peers_path)):
        command += [flag, str(path)] if path else []
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{variant.name} failed:\n{done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(rows: list[Variant], options: argparse.Namespace) -> tuple[dict[str, dict[str, Any]], list[dict[str, dict[str, Any]]]]:
    """Counts of each variant, and the timings of each round."""
    counts = {}
    for row in rows:
        counts[row.name] = run_child(row, options, count=True)
        if row.checkpointing:
            counts[row.name]["gflop"] = counts[replace(row, checkpointing=False).name]["gflop"]
        print(f"counted {row.name}: {counts[row.name]['gflop']:.0f} GFLOP", file=sys.stderr)
    rounds: list[dict[str, dict[str, Any]]] = []
    for number in range(options.rounds):
        first = number * 3 % len(rows)
        rounds.append({})
        for row in rows[first:] + rows[:first]:
            rounds[-1][row.name] = result = run_child(row, options, count=False)
            print(f"round {number + 1}: {row.name}: {statistics.median(result['milliseconds']):.0f} ms", file=sys.stderr)
    return counts, rounds


def summarize(rows: list[Variant], counts: dict[str, Any], rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One dictionary for each row of the table."""
    table = []
    for row in rows:
        medians = [statistics.median(r[row.name]["milliseconds"]) for r in rounds]
        typical = statistics.median(medians)
        ratios = []
        if REFERENCE in rounds[0]:
            ratios = [statistics.median(r[REFERENCE]["milliseconds"]) / own for r, own in zip(rounds, medians, strict=True)]
        table.append(
            {
                "name": row.name,
                "ms": typical,
                "spread": (min(medians), max(medians)),
                "speedup": statistics.median(ratios) if ratios else None,
                "speedup_spread": (min(ratios), max(ratios)) if ratios else None,
                "gflops": counts[row.name]["gflop"] / typical * 1e3,
                "rss": statistics.median(r[row.name]["peak_rss_mib"] for r in rounds),
                **counts[row.name],
            }
        )
    return table


def targets(table: Iterable[dict[str, Any]]) -> list[tuple[str, float, float, bool]]:
    """(what, value, least or most allowed, reached) of every target that can be judged."""
    by_name = {line["name"]: line for line in table}
    judged: list[tuple[str, float, float, bool]] = []

    def at_least(what: str, value: float, limit: float) -> None:
        judged.append((what, value, limit, value >= limit))

    for precision, limit in (("float32", 1.35), ("bf16", 2.6)):
        ours = by_name.get(f"triptych {precision}")
        if ours is None:
            continue
        if ours["speedup"] is not None:
            at_least(f"speed of triptych {precision} over {REFERENCE}", ours["speedup"], limit)
        if f"{CONVOLUTIONS} {precision}" in by_name:
            share = ours["gflops"] / by_name[f"{CONVOLUTIONS} {precision}"]["gflops"]
            at_least(f"GFLOP/s of triptych over the machine's own 3x3 convolutions, {precision}", share, SHARES[precision])
        for peer in ("diffusers", "denoising-diffusion-pytorch"):
            if f"{peer} {precision}" in by_name:
                at_least(f"GFLOP/s of triptych over {peer}, {precision}", ours["gflops"] / by_name[f"{peer} {precision}"]["gflops"], 1.0)
        if f"guided-diffusion {precision}" in by_name:
            at_least(
                f"peak memory of guided-diffusion over triptych, {precision}",
                by_name[f"guided-diffusion {precision}"]["rss"] / ours["rss"],
                1.0,
            )
        if f"triptych {precision} checkpointing" in by_name:
            saved = ours["peak_mib"] / by_name[f"triptych {precision} checkpointing"]["peak_mib"]
            at_least(f"activations without over with gradient checkpointing, {precision}", saved, 2.0)
    return judged


def report(table: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """The result as markdown."""
    lines = [
        f"# Training step, {datetime.date.today().isoformat()}",
        "",
        machine(),
        f"{options.threads} threads in each process{', whose processor time counts' if options.cpu_time else ''}; batch {BATCH}, "
        f"{SIZE}x{SIZE}, network `{options.network}`.",
        f"{options.rounds} rounds of separate processes in turn, each with {options.warmup} warm-up and {options.steps} timed steps.",
        f"Load average when it started: {options.load:.1f}, with {os.cpu_count()} cores (above 0.5 other programs took part of them).",
        "",
        "- ms: median of the processes' medians (least to largest of them).",
        f"- speed: {REFERENCE} = 1; median over the rounds of the ratio within a round (least to largest).",
        "- GFLOP: executed in forward and backward, as torch.utils.flop_counter counts them, without what is recomputed.",
        "- activations: MiB of tensors alive between forward and backward, and at the peak of both, beside weights, gradients and "
        "optimizer state.",
        "",
        "| variant | parameters, M | GFLOP | ms | speed | GFLOP/s | peak RSS, MiB | activations | at the peak |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for line in table:
        low, high = line["speedup_spread"] or (0, 0)
        cells = [
            line["name"],
            f"{line['parameters'] / 1e6:.1f}",
            f"{line['gflop']:.0f}",
            f"{line['ms']:.0f} ({line['spread'][0]:.0f} to {line['spread'][1]:.0f})",
            f"{line['speedup']:.2f} ({low:.2f} to {high:.2f})" if line["speedup"] else "",
            *(f"{line[key]:.0f}" for key in ("gflops", "rss", "activation_mib", "peak_mib")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| target | value | at least | |", "|---|---|---|---|"]
    lines += [
        f"| {what} | {value:.3f} | {limit:.2f} | {'reached' if reached else 'MISSED'} |" for what, value, limit, reached in targets(table)
    ]
    return "\n".join(lines) + "\n"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guided-diffusion", type=Path, metavar="DIR", help="a checkout of openai/guided-diffusion")
    parser.add_argument("--peers-path", type=Path, metavar="DIR", help="where pip install --target put diffusers and the other peer")
    parser.add_argument("--network", choices=NETWORKS, default="ddpm", help="ddpm: 35.7 M parameters; adm: 39.6 M")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each variant")
    parser.add_argument("--steps", type=int, default=8, help="timed steps in each process")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--tuned-peers", action="store_true", help="also the peers with channels_last, fused optimizer and raised thresholds"
    )
    parser.add_argument("--only", nargs="*", metavar="PROGRAM", help="measure these programs alone")
    parser.add_argument(
        "--cpu-time", action="store_true", help="the processor's time, for a machine that does other things; with one thread"
    )
    parser.add_argument("--precision", choices=PRECISIONS, help="measure this one alone")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> int:
    """0, or 1 when a target is missed."""
    options = parse()
    if options.child:
        from training_step_child import child

        print(json.dumps(child(Variant(**json.loads(options.child)), options)))
        return 0
    options.load = os.getloadavg()[0]
    rows = variants(options)
    counts, rounds = measure(rows, options)
    table = summarize(rows, counts, rounds)
    text = report(table, options)
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0 if all(reached for *_, reached in targets(table)) else 1


if __name__ == "__main__":
    sys.exit(main())
