"""The images of a training that cannot be read (data.on_error skip): each is said once in a run, and too many of them end it.

RUN/bad_images.json keeps them through interruptions, in the form that data.skip takes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from triptych.core.batch import share
from triptych.core.errors import UserError
from triptych.data.config import DataConfig
from triptych.data.images import Data, ImageSet
from triptych.data.skipping import most_bad, read_skip, readable, too_many, write_skip
from triptych.engine.callables import News
from triptych.engine.distributed import World
from triptych.engine.run_directory import RunDirectory
from triptych.engine.signals import made_by_all


def readable_images(images: ImageSet, numbers: np.ndarray, world: World, bad: dict[str, str]) -> np.ndarray:
    """Those of some images, by number, that can be read: int64 (n,), the same in every process.

    Without on_error skip these are all. Why the others cannot be read goes to `bad`, by key, in the process that looked at it.
    """
    own = numbers[share(len(numbers), rank=world.rank, world_size=world.size)].tolist()
    good = [number for part in made_by_all(world, lambda: readable(images, own, bad)) for number in part]
    return np.array(good, dtype=np.int64)


class BadImages:
    """What is wrong with images, as all processes find it."""

    def __init__(self, data: Data, config: DataConfig, directory: RunDirectory, world: World, say: Callable[[str], None]) -> None:
        """Raises DataError where the file of an earlier start cannot be read."""
        self._directory, self._world, self._say = directory, world, say
        self._count = sum(map(len, data.sets))
        self._most_errors = config.most_errors
        path = directory.bad_images
        self._said: dict[str, str] = world.on_main(lambda: read_skip(path) if path.exists() else {})
        self.found: dict[str, str] = {}
        "What this process found since it was last said, by key; it may have been said before."

    @property
    def news(self) -> News:
        """For the loop."""
        return News(self._pending, self._tell)

    def _pending(self) -> bool:
        if self.found and self.found.keys() <= self._said.keys():
            self.found.clear()
        return bool(self.found)

    def _tell(self) -> UserError | None:
        """Says in the main process what any process found; why the run has to end, in all of them."""
        found = {key: why for part in self._world.gather(dict(self.found)) for key, why in part.items()}
        self.found.clear()
        new = {key: found[key] for key in sorted(found) if key not in self._said}
        if not new:
            return None
        self._said |= new
        if self._world.is_main:
            for key, why in new.items():
                self._say(f"cannot be read, and others take its place: {key}: {why}")
        self._world.on_main(lambda: write_skip(self._directory.bad_images, dict(sorted(self._said.items()))))
        if len(self._said) <= most_bad(self._count, self._most_errors):
            return None
        return too_many(len(self._said), self._count, self._most_errors, f" ({self._directory.bad_images} names them)")
