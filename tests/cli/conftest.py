"""A toy recipe, and stand-ins for the Python API that note how they were called."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Literal

import pytest

from triptych.core.batch import DataSpec
from triptych.core.config import Config, config
from triptych.core.model import ModelConfig
from triptych.data.config import DataConfig
from triptych.engine.config import TrainConfig
from triptych.engine.progress import unwatched
from triptych.recipes.config import RunConfig
from triptych.runs import loading


@config
class ToyNetwork(Config):
    """A section inside the model."""

    num_channels: int = 8
    "Width of the network."
    multipliers: tuple[int, ...] = (1, 2)
    "Width of each level."
    heads: int | None = None
    "Heads of attention; None: one for every 64 channels."
    use_skip: bool = True
    "Whether there are skip connections."

    def validate(self) -> None:
        self.require(self.num_channels >= 1, "num_channels", "at least 1")


@config
class ToySampling(Config):
    """Settings of the sampler."""

    steps: int | None = None
    "Steps; None: all."
    sampler: Literal["ancestral", "ddim"] = "ancestral"
    "Sampler."
    eta: float = 0.0
    "Noise of DDIM."

    def validate(self) -> None:
        self.require(self.eta >= 0, "eta", "0 or more")


@config
class ToyConfig(ModelConfig):
    """A model with a network and a sampler."""

    network: ToyNetwork = field(default_factory=ToyNetwork)
    "The network."
    sampling: ToySampling = field(default_factory=ToySampling)
    "The sampler."
    objective: Literal["epsilon", "velocity"] = "epsilon"
    "What is predicted."

    @classmethod
    def verbs(cls) -> frozenset[str]:
        """It draws, and knows how probable an image is."""
        return frozenset(("sample", "evaluate"))


@config
class SilentConfig(ModelConfig):
    """A model that draws nothing."""


def toy_recipe() -> RunConfig:
    """The toy, trained on the digits."""
    return RunConfig(model=ToyConfig(), data=DataConfig(source="digits", image_size=16), train=TrainConfig(total_images=100, batch_size=10))


@dataclass
class FakeRuns:
    """What `triptych.runs` was asked."""

    config: RunConfig
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    error: BaseException | None = None
    styles: str = "none"
    "Whether the model takes style images."

    def train(self, *given: Any, **named: Any) -> FakeRun:
        return self._note("train", given, named, given[1])

    def open_run(self, *given: Any, **named: Any) -> FakeRun:
        return self._note("open_run", given, named, given[0])

    def _note(self, name: str, given: tuple[Any, ...], named: dict[str, Any], directory: Any) -> FakeRun:
        self.calls.append((name, given, named))
        if self.error is not None:
            raise self.error
        return FakeRun(self, Path(directory), self.config, DataSpec(image_size=16, channels=1, num_classes=10))


@dataclass
class FakeRun:
    runs: FakeRuns
    directory: Path
    config: RunConfig
    spec: DataSpec
    stopped: ClassVar[bool] = False

    def sample(self, *given: Any, **named: Any) -> SimpleNamespace:
        self.runs.calls.append(("sample", given, named))
        named.get("progress", unwatched)(given[0], given[0])
        return SimpleNamespace(images=None)

    @property
    def outline(self) -> SimpleNamespace:
        return SimpleNamespace(styles=self.runs.styles)

    def inputs(self, *given: Any) -> SimpleNamespace:
        self.runs.calls.append(("inputs", given, {}))
        return SimpleNamespace(count=7)

    def upsample(self, *given: Any, **named: Any) -> SimpleNamespace:
        self.runs.calls.append(("upsample", given, named))
        named.get("progress", unwatched)(7, 7)
        return SimpleNamespace(images=None, labels=None)


@pytest.fixture
def fake_runs(monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    """`triptych.runs` replaced; every recipe is the toy."""
    fake = FakeRuns(toy_recipe())
    module = ModuleType("triptych.runs")
    module.__dict__.update(loading=loading, train=fake.train, open_run=fake.open_run, close_world=lambda: None)
    import triptych

    monkeypatch.setitem(sys.modules, "triptych.runs", module)
    monkeypatch.setattr(triptych, "runs", module, raising=False)
    from triptych.cli import arguments, train
    from triptych.recipes.catalogue import Recipe

    monkeypatch.setattr(arguments, "require_run", lambda directory: None)
    monkeypatch.setattr(train, "load_recipe", lambda name: toy_recipe())
    monkeypatch.setattr(train, "find_recipe", lambda name: Recipe(name, "diffusion", "A toy."))
    return fake
