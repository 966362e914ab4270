"""Packs one small run of every model, and what it becomes when it goes on: run by the version whose runs are to be kept.

    python -m tests.earlier.make FOLDER

Its output for version 0.1.0 lies beside it. Tensors of the runs are rounded to bfloat16, so that they pack well. NAME.tar.xz is the run;
NAME.json holds, after it went on for two more steps, the mean magnitude of every tensor and the metrics, and pictures drawn from the
run as it is packed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tests.contract.shrink import BATCH, shrunk
from tests.earlier.use import MODELS, gone_on, pictures
from triptych.recipes.config import RunConfig
from triptych.runs import train

NARROW = {"num_filters": 2, "max_num_filters": 4, "spade_filters": 2, "encoder_filters": 2}
"""Of generators; smaller still than in the contract tests, where two channels to a group matter."""


def tiny(name: str) -> RunConfig:
    """A recipe as a run of two steps."""
    config = shrunk(name)
    model: Any = config.model
    rates = config.train.ema_rates
    if hasattr(model, "network"):
        model = replace(model, network=replace(model.network, num_channels=32, channel_mult=(1,), attention_resolutions=()))
        rates = ()
    if hasattr(model, "generator"):
        narrow = {field: size for field, size in NARROW.items() if hasattr(model.generator, field)}
        model = replace(model, generator=replace(model.generator, **narrow | ({"num_filters": 1} if name == "spade-camvid" else {})))
    settings = replace(config.train, total_images=2 * BATCH, keep_last=1, seed=3, ema_rates=rates)
    optim = replace(config.optim, schedule="constant", warmup_images=0)
    return replace(config, model=model, train=settings, optim=optim, log=replace(config.log, every=BATCH))


def rounded(run: Path) -> None:
    """Rounds every tensor of the run's checkpoint to bfloat16, and mends the hashes."""
    (checkpoint,) = (run / "checkpoints").iterdir()
    state = json.loads((checkpoint / "state.json").read_text())
    for name in state["files"]:
        tensors = load_file(checkpoint / name)
        save_file({key: t.bfloat16().to(t.dtype) if t.is_floating_point() else t for key, t in tensors.items()}, checkpoint / name)
        state["files"][name] = hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
    (checkpoint / "state.json").write_text(json.dumps(state, indent=1))


def packed(run: Path, file: Path) -> None:
    """Writes the run as an archive, without its lock and with a made-up path of its data."""
    (run / ".lock").unlink()
    text = (run / "config.json").read_text()
    document = json.loads(text)
    document["data"]["path"] = document["data"]["path"] and "images"
    if "perceptual" in document["model"]:
        document["model"]["perceptual"]["weights"] = "weights.pt"
    (run / "config.json").write_text(json.dumps(document, indent=2) + "\n")
    with tarfile.open(file, "w:xz") as archive:
        archive.add(run, arcname="run")


def short(value: Any) -> Any:
    """The same with seven digits of each number."""
    if isinstance(value, dict):
        return {name: short(part) for name, part in value.items()}
    if isinstance(value, list):
        return [short(part) for part in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def main() -> None:
    """Makes the files of all models in the folder named."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        with tempfile.TemporaryDirectory() as scratch:
            run = Path(scratch) / "run"
            config = tiny(name)
            train(config, run, recipe=name, device="cpu")
            rounded(run)
            (run / "metrics.jsonl").unlink()
            (run / "log.txt").unlink()
            shutil.copytree(run, Path(scratch) / "further")
            expected = {"pictures": pictures(run), **gone_on(Path(scratch) / "further")}
            (out / f"{name}.json").write_text(json.dumps(short(expected)) + "\n")
            packed(run, out / f"{name}.tar.xz")


if __name__ == "__main__":
    main()
