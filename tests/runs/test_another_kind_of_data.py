"""Another kind of data is a configuration that opens itself: latents of four channels, and clips with what belongs to their frames."""

from __future__ import annotations

import itertools
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.contract.shrink import BATCH, shrunk
from triptych.core.batch import DataSpec, InputSpec
from triptych.core.config import config
from triptych.core.images import save_picture
from triptych.data.config import DataConfig
from triptych.data.images import Data, ImageSet, Loaded
from triptych.data.loader import Loader, evaluation_batches
from triptych.runs import open_run, train


class Latents(ImageSet):
    """Floats in [-1, 1]: (b, 4, 8, 8)."""

    def key(self, item: int) -> str:
        return f"latent {item}"

    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        phase = items[:, None] + np.linspace(0, 6, 4 * 8 * 8)
        return Loaded(np.sin(phase).astype(np.float32).reshape(-1, 4, 8, 8), None)


@config
class LatentsConfig(DataConfig):
    """Latents."""

    def open(self) -> Data:
        train, held_out = (Latents(self, channels=4, items=np.arange(count), labels=None) for count in (20, 5))
        return Data(train, held_out, DataSpec(image_size=8, channels=4))


def test_latents_go_through_a_training(tmp_path: Path) -> None:
    recipe = shrunk("adm-digits-uncond")
    short = replace(recipe.train, total_images=2 * BATCH, sample_count=2, sample_every=BATCH, validate_every=BATCH)
    run = train(replace(recipe, data=LatentsConfig(image_size=8, workers=0), train=short), tmp_path / "run", device="cpu")
    assert open_run(tmp_path / "run").spec.channels == 4
    assert run.sample(2, seed=1, device="cpu").images.shape == (2, 8, 8, 4)
    assert not list((tmp_path / "run" / "samples").glob("*"))  # they are no pictures
    losses = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any("validation" in name for line in losses for name in line)
    with pytest.raises(OSError, match=r"^PNG holds grey or RGB, not 4 channels; use \.npz$"):
        save_picture(np.zeros((8, 8, 4), dtype=np.uint8), tmp_path / "a.png")


class Clips(ImageSet):
    """Three frames each, (b, 3, 4, 6, 3), with a class of each pixel and a grey image of each frame."""

    def key(self, item: int) -> str:
        return f"clip {item}"

    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        frames = (items[:, None, None, None, None] * 20 + np.arange(3 * 4 * 6 * 3).reshape(3, 4, 6, 3) % 256).astype(np.uint8)
        return Loaded(frames, None, {"classes": frames[..., 0].astype(np.int64) % 2, "edges": frames[..., :1]})


def test_clips_go_through_the_loader() -> None:
    clips = Clips(DataConfig(), channels=3, items=np.arange(5), labels=None)
    with closing(Loader(clips, batch_size=4, seed=0, workers=1)) as loader:
        here, there = (list(itertools.islice(one.batches(0), 2)) for one in (Loader(clips, batch_size=4, seed=0, workers=0), loader))
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one.images, other.images) and torch.equal(one.inputs["classes"], other.inputs["classes"])
    raw = next(evaluation_batches(clips, batch_size=2))
    batch = raw.to("cpu")
    assert (batch.images.shape, batch.inputs["edges"].shape) == ((2, 3, 3, 4, 6), (2, 3, 1, 4, 6))
    for frame in range(3):
        assert torch.equal(batch.images[:, frame], raw.images[:, frame].permute(0, 3, 1, 2) / 127.5 - 1)
    assert torch.equal(batch.inputs["classes"], raw.inputs["classes"]) and batch[1:].images.shape == (1, 3, 3, 4, 6)


def test_specs_of_clips_go_to_documents_and_back() -> None:
    inputs = (InputSpec(name="edges", kind="image", channels=1, frames=3),)
    spec = DataSpec(image_size=4, width=6, channels=3, frames=3, inputs=inputs)
    assert spec.to_dict()["frames"] == spec.to_dict()["inputs"][0]["frames"] == 3
    assert DataSpec.from_dict(spec.to_dict()) == spec
