"""What a small run of an earlier version is used for: pictures are drawn from it, and it goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from tests.contract.moved import first_batch
from tests.contract.small_data import small_data
from triptych.core.model import Sampler, Upsampler
from triptych.core.rng import Rng
from triptych.core.translation import Translator
from triptych.engine.metric_log import read_metrics
from triptych.recipes.config import RunConfig
from triptych.runs import open_run, train

MODELS = (
    "adm-digits",
    "classifier-digits",
    "upsample-digits",
    "glow-digits",
    "spade-camvid",
    "pix2pixhd-camvid",
    "unit-mnist",
    "munit-mnist",
    "funit-omniglot",
    "coco-funit-omniglot",
)
MORE_STEPS = 2


def with_data(config: RunConfig) -> RunConfig:
    """The run's configuration with its images, which are made anew."""
    return replace(config, data=replace(config.data, path=small_data(config.data).path))


def pictures(path: Path) -> list[Any]:
    """What the run draws, (n, c, 4, 4) by averages, or, a classifier, the losses of some images."""
    run = open_run(path)
    model = run.load(device="cpu")
    batch = first_batch(with_data(run.config))
    rng = Rng(5, ("pictures",), batch.index)
    if isinstance(model, Sampler):
        images = torch.from_numpy(run.sample(4, seed=5, device="cpu").images).permute(0, 3, 1, 2) / 255
    elif isinstance(model, Upsampler):
        small = replace(batch, images=F.adaptive_avg_pool2d(batch.images, model.input_size))
        images = model.upsample(small, rng, settings=model.sampling)
    elif isinstance(model, Translator):
        images = model.translate(model.example(batch, settings=model.translation).inputs, rng, settings=model.translation)
    else:
        return model.loss(model.phases[0], batch, rng).loss.tolist()
    return F.adaptive_avg_pool2d(images, 4).tolist()


def gone_on(path: Path) -> dict[str, Any]:
    """Mean magnitudes of all tensors, and the metrics, after two more steps."""
    run = open_run(path)
    config = with_data(run.config)
    total = config.train.total_images + MORE_STEPS * config.train.batch_size
    train(replace(config, train=replace(config.train, total_images=total)), path, device="cpu")
    (checkpoint,) = (path / "checkpoints").glob(f"{total:09d}")
    files = {file.stem: load_file(file) for file in sorted(checkpoint.glob("*.safetensors"))}
    means = {f"{stem}/{name}": t.double().abs().mean().item() for stem, tensors in files.items() for name, t in tensors.items()}
    lines = read_metrics(path / "metrics.jsonl")
    metrics = [{name: value for name, value in line.items() if name not in ("time", "images_per_second", "memory_bytes")} for line in lines]
    return {"tensors": means, "metrics": metrics}
