"""Arithmetic of the networks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.engine.toys import START, Denoiser, draw
from triptych.core.batch import Batch
from triptych.core.errors import ConfigError, RunError
from triptych.core.model import LossTerms, Phase
from triptych.core.rng import Rng
from triptych.engine.config import OptimConfig, TrainConfig
from triptych.engine.distributed import World
from triptych.engine.microbatch import Attempts, Microbatch
from triptych.engine.precision import LossScale, autocast, native_precision
from triptych.engine.updater import Updater


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_matrices_are_multiplied_in_the_precision(precision: str, dtype: torch.dtype) -> None:
    with autocast(precision, device=torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


@pytest.mark.parametrize(("precision", "by_block", "kept"), [("bf16", False, True), ("bf16", True, False), ("float32", True, True)])
def test_rounded_weights_of_divided_blocks_are_not_kept(precision: str, by_block: bool, kept: bool) -> None:
    """They would be those of the whole network at the end of the forward pass."""
    seen = list[bool]()

    class Watched(Denoiser):
        def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
            seen.append(torch.is_autocast_cache_enabled())
            return super().loss(phase, batch, rng)

    model, world = Watched(), World(0, 1, torch.device("cpu"))
    train, batch = TrainConfig(total_images=4, batch_size=4, precision=precision), next(draw(4, world=world)(0)).to("cpu")  # type: ignore[arg-type]
    microbatch, attempts = Microbatch(model, train=train, world=world), Attempts(model, world)
    updater = Updater(model, ("network",), train=train, optim=OptimConfig(), world=world, microbatch=microbatch, attempts=attempts)
    updater._sharding = SimpleNamespace(by_block=by_block)  # type: ignore[assignment]
    updater.try_passes(model.phases[0], batch, rng=Rng(0, ("step",), batch.index), size=4, progress=START)
    assert seen == [kept]


def test_an_unknown_precision_is_named() -> None:
    with pytest.raises(ConfigError, match=r"precision: got 'fp8', expected one of float32, bf16, fp16"):
        autocast("fp8", device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("can", "chosen"),
    [({"amx_bf16": True}, "bf16"), ({"avx512_bf16": True, "amx_bf16": False}, "bf16"), ({"avx2": True, "avx512_bf16": False}, "float32")],
)
def test_bf16_is_native_to_some_cpus(can: dict[str, bool], chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: can)
    assert native_precision(torch.device("cpu")) == chosen
    monkeypatch.delattr(torch.cpu, "get_capabilities")  # as in earlier versions
    assert native_precision(torch.device("cpu")) == "float32"


@pytest.mark.parametrize(("capability", "chosen"), [((9, 0), "bf16"), ((8, 0), "bf16"), ((7, 5), "float32")])
def test_bf16_is_native_to_some_gpus(capability: tuple[int, int], chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert native_precision(torch.device("cuda:1")) == chosen


def loss_scale(precision: str = "fp16") -> LossScale:
    settings = {"precision": precision, "loss_scale": 2.0**10, "loss_scale_growth": 0.5, "loss_scale_floor": 2.0**9}
    return LossScale(TrainConfig(total_images=8, batch_size=8, **settings))  # type: ignore[arg-type]


def test_gradients_are_divided_by_what_the_loss_was_multiplied_by() -> None:
    scale, gradients = loss_scale(), [torch.tensor([1024.0, -512.0]), torch.tensor(4.0)]
    assert scale.scale == 1024
    scale.unscale(gradients)
    assert gradients[0].tolist() == [1.0, -0.5] and gradients[1].item() == 4 / 1024
    plain = loss_scale("bf16")
    plain.unscale(gradients)
    assert plain.scale == 1 and gradients[0].tolist() == [1.0, -0.5]


def test_the_scale_grows_after_a_good_step_and_halves_after_an_overflow() -> None:
    scale, bad = loss_scale(), torch.tensor(torch.inf)
    assert scale.accept(torch.tensor(3.0)) and scale.log2_scale == 10.5
    assert not scale.accept(bad) and scale.log2_scale == 9.5
    assert scale.accept(torch.tensor(0.0)) and scale.log2_scale == 10.0
    assert not scale.accept(torch.tensor(torch.nan)) and scale.scale == 2.0**9
    with pytest.raises(RunError, match=r"fell below its floor \(512\)"):
        scale.accept(bad)
    plain = loss_scale("float32")
    assert plain.accept(bad) and plain.scale == 1
