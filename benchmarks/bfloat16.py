"""What `train.precision auto` gains and costs: a recipe trained in bfloat16 and in float32, in turns, its speed and its losses.

    python benchmarks/bfloat16.py --out benchmarks/results/bfloat16-DATE.md
    python benchmarks/bfloat16.py --recipe adm-mnist --flags --data.path FOLDER --train.total-images 20000

Each training is a process of its own. Speed is the median over the log's lines of the images between two lines and the seconds
between them. The same seed gives the same images, noise and order in both, so that the losses may be compared.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import machine

PRECISIONS = ("bf16", "float32")


def trained(precision: str, run: Path, recipe: str, flags: list[str]) -> dict[str, float]:
    """Images a second and the last losses of one training."""
    command = [sys.executable, "-m", "triptych", "train", recipe, "--run", str(run), "--train.precision", precision, *flags]
    subprocess.run(command, check=True, capture_output=True)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    figures = {name: value for line in lines for name, value in line.items() if name.endswith("loss")}
    return {"images/s": statistics.median(line["images_per_second"] for line in lines if "images_per_second" in line)} | figures


def main() -> None:
    """Trains, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="adm-digits")
    parser.add_argument("--rounds", type=int, default=2, help="trainings in each precision")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of `triptych train`; the last argument")
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {precision: [] for precision in PRECISIONS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.rounds):
            for precision in PRECISIONS if turn % 2 == 0 else PRECISIONS[::-1]:
                found[precision].append(trained(precision, Path(folder) / f"{precision}-{turn}", options.recipe, options.flags))
                print(precision, found[precision][-1], flush=True)
    medians = {p: {name: statistics.median(part[name] for part in parts) for name in parts[0]} for p, parts in found.items()}
    names = list(medians["float32"])
    report = [
        f"# {options.recipe} in bfloat16 and in float32, {datetime.date.today().isoformat()}",
        "",
        f"{machine()}. Medians of {options.rounds} trainings each, in turns. Flags: {' '.join(options.flags) or 'none'}.",
        "",
        f"| precision | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
        *(f"| {p} | {' | '.join(f'{medians[p][name]:.4g}' for name in names)} |" for p in PRECISIONS),
        "",
        f"bfloat16 does {medians['bf16']['images/s'] / medians['float32']['images/s']:.2f} times the images a second of float32.",
    ]
    print("\n".join(report))
    if options.out:
        options.out.write_text("\n".join(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
