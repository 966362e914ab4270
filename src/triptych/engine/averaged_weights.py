"""The model with the weights of an average: what samples, validations and evaluations see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from triptych.core.batch import RawBatch
from triptych.core.errors import UserError
from triptych.core.model import Model
from triptych.engine.config import TrainConfig
from triptych.engine.distributed import World
from triptych.engine.ema import Average
from triptych.engine.precision import autocast
from triptych.engine.sharding import Sharding
from triptych.engine.statistics import estimate_statistics, needs_batches


class AveragedWeights:
    """The averages of a training, of which the first is what is looked at, and their statistics."""

    def __init__(
        self,
        model: Model,
        averages: Sequence[Average],
        *,
        train: TrainConfig,
        world: World,
        sharding: Sharding | None,
        calibrate: Callable[[], Iterator[RawBatch]] | None,
    ) -> None:
        """`calibrate`: see `Callables`."""
        self._model, self._averages, self._calibrate = model, averages, calibrate
        self._train, self._world, self._sharding = train, world, sharding
        self._estimated: dict[str, int] = {}
        "Images seen when each average, by its name, got its statistics."

    @contextmanager
    def applied(self, images_seen: int) -> Iterator[None]:
        """The context in which the model has the weights of its first average, all of them. Without averages they stay."""
        first = self._averages[0] if self._averages else None
        if first is not None:
            self._estimate(first, images_seen)
        with nullcontext() if first is None else first.applied(), self._whole():
            yield

    def estimate(self, images_seen: int) -> UserError | None:
        """Estimates the statistics of all averages from training batches, once for each number of images seen.

        Returns the error of an image that cannot be read, in a training of one process: others would wait for their share.
        """
        try:
            for average in self._averages:
                self._estimate(average, images_seen)
        except UserError as error:
            if self._world.size > 1:
                raise
            return error
        return None

    def _estimate(self, average: Average, images_seen: int) -> None:
        name, calibrate = average.settings.name, self._calibrate
        if calibrate is None or self._estimated.get(name) == images_seen or not needs_batches(self._model):
            return
        with average.applied(), self._whole(), autocast(self._train.precision, device=self._world.device):
            estimate_statistics(self._model, lambda: (raw.to(self._world.device) for raw in calibrate()), seed=self._train.seed)
        self._estimated[name] = images_seen

    def _whole(self) -> AbstractContextManager[None]:
        """The context in which the networks may be run any number of times, by some processes more often than by others."""
        return nullcontext() if self._sharding is None else self._sharding.gathered()
