"""The turns of an iteration: which phase takes which images, with which draws, and what one turn carries to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from triptych.core.batch import Batch, Kept
from triptych.core.model import Model, Phase, TrainingProgress
from triptych.core.rng import Rng
from triptych.engine.updater import Updater


class Turns:
    """Takes the turns of a model's iterations."""

    def __init__(self, model: Model, updaters: Mapping[tuple[str, ...], Updater], *, seed: int, keeps: bool = False) -> None:
        """`keeps`: a step may leave to a later one what it computed of the same images, with its graph (`Phase.begins`)."""
        self.updaters = updaters
        self._model, self._seed, self._keeps = model, seed, keeps

    def rng(self, phase: Phase, batch: Batch, progress: TrainingProgress) -> Rng:
        """The draws of a step."""
        return Rng(self._seed, (phase.name, progress.step), batch.index)

    def take(
        self, slices: list[Batch], step: Callable[[Phase, Batch, TrainingProgress], Mapping[str, Tensor]], at: TrainingProgress
    ) -> None:
        """Calls `step` for each turn, with its images. What that returns is carried to the following turns: `slices` get it."""
        steps = Counter[str]()
        for turn in self._model.turns(at):
            name, batch = turn.phase.name, slices[turn.slice]
            begun = turn.phase.begins if self._keeps else ()
            if begun:
                batch = replace(batch, kept=Kept())
                slices[turn.slice] = batch
            for networks, updater in self.updaters.items() if len(self.updaters) > 1 else ():
                updater.require_gradients(networks in (turn.phase.networks, begun))
            carried = step(turn.phase, batch, replace(at, step=steps[name]))
            slices[turn.slice] = replace(batch, inputs={**batch.inputs, **carried}) if carried else batch
            steps[name] += 1
