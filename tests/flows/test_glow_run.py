"""A run of Glow does what the command line offers for it: images, latents and back, bits per dimension."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.contract.shrink import shrunk
from triptych.core.batch import Batch
from triptych.core.errors import ConfigError
from triptych.core.rng import Rng
from triptych.flows.glow import Glow, GlowSamplingConfig
from triptych.runs import Run, train
from triptych.runs.sampling import write_samples


@pytest.fixture(scope="module", params=["glow-digits", "glow-cifar10-cond"])
def run(request, tmp_path_factory) -> Run:
    return train(shrunk(request.param).updated({"train": {"sample_count": 10}}), tmp_path_factory.mktemp("run") / "glow", device="cpu")


def test_encode_and_decode(run) -> None:
    step = 2 ** (8 - run.config.model.bits)
    labels = [1, 7] if run.config.model.class_conditional else None
    images = np.random.default_rng(0).integers(256, size=(5, 8, 8, run.spec.channels), dtype=np.uint8)
    latents = run.encode(images, labels=labels, device="cpu")
    assert [array.shape[1:] for array in latents.arrays] == [(2 * run.spec.channels, 4, 4), (8 * run.spec.channels, 2, 2)]
    decoded = run.decode(latents, device="cpu")
    assert np.array_equal(decoded.images, images // step * step)


def test_a_picture_for_each_temperature(run) -> None:
    last = run.config.train.total_images
    pictures = {path.stem.removeprefix(f"{last:09d}"): path for path in (run.directory / "samples").glob(f"{last:09d}*.png")}
    assert set(pictures) == {"", *(f"-temperature-{t}" for t in ("0", "0.25", "0.5", "0.6", "0.7", "0.8", "0.9", "1"))}
    samples = run.sample(10, settings=GlowSamplingConfig(temperature=(0.9,)), device="cpu")
    write_samples(run.directory / "expected.png", samples)
    for path, same in ((pictures["-temperature-0.9"], True), (pictures["-temperature-0.5"], False)):
        assert (path.read_bytes() == (run.directory / "expected.png").read_bytes()) == same


def test_temperatures_are_taken_in_turn(run) -> None:
    several = run.sample(6, settings=GlowSamplingConfig(temperature=(0.5, 1.0, 0.0)), batch_size=4, device="cpu").images
    for place, temperature in enumerate((0.5, 1.0, 0.0)):
        alone = run.sample(6, settings=GlowSamplingConfig(temperature=(temperature,)), batch_size=6, device="cpu").images
        assert np.abs(several[place::3].astype(int) - alone[place::3]).max() <= 1


def test_samples_are_less_varied_at_a_lower_temperature(run) -> None:
    warm, cold = (run.sample(16, labels=None, settings=GlowSamplingConfig(temperature=(t,)), device="cpu").images for t in (1.0, 0.3))
    assert cold.astype(float).std(0).mean() < 0.6 * warm.astype(float).std(0).mean()


def test_evaluate(run) -> None:
    whole, parts = (run.evaluate(count=6, batch_size=size, device="cpu", out=run.directory / f"{size}.json") for size in (6, 4))
    for report in (whole, parts):
        assert 1 < report.figures["bits-per-dim"]["bits_per_dim"] < 20 and report.figures["bits-per-dim"]["standard_error"] > 0
    assert whole.figures["bits-per-dim"]["bits_per_dim"] == pytest.approx(parts.figures["bits-per-dim"]["bits_per_dim"], abs=1e-5)


def test_first_images_that_do_not_fit_into_memory_name_their_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go through the flow all at once; with fewer of them the same run begins."""
    initialize = Glow.initialize

    def bounded(model: Glow, batch: Batch, rng: Rng) -> None:
        if len(batch) > 8:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if len(batch) < 4:
            raise RuntimeError("not of memory")
        initialize(model, batch, rng)

    monkeypatch.setattr(Glow, "initialize", bounded)

    def config(count: int):
        return shrunk("glow-digits").updated({"model": {"init_images": count}, "train": {"sample_count": 0, "validate_images": 0}})

    reason = r"^model\.init_images: got 9, which do not fit into memory at once \(CUDA out of .*\); give fewer$"
    with pytest.raises(ConfigError, match=reason):
        train(config(9), tmp_path / "run", device="cpu")
    with pytest.raises(RuntimeError, match="not of memory"):
        train(config(3), tmp_path / "run", device="cpu")
    assert train(config(8), tmp_path / "run", device="cpu").checkpoints()
