"""Sets of images put end to end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from triptych.data.images import ImageSet, Loaded


class EndToEnd(ImageSet):
    """The images of several sets, one set after the other, as they are: none mirrored or varied."""

    def __init__(self, sets: Sequence[ImageSet], *, labels: np.ndarray | None) -> None:
        self._sets, self._ends = sets, np.cumsum([len(images) for images in sets])
        super().__init__(sets[0].config, channels=sets[0].channels, items=np.arange(self._ends[-1]), labels=labels)

    def key(self, item: int) -> str:
        images, number = self._place(item)
        return images.key(number)

    def content(self, item: int) -> bytes | np.ndarray:
        images, number = self._place(item)
        return images.content(number)

    def default_workers(self) -> int:
        return max(images.default_workers() for images in self._sets)

    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        numbers = np.asarray(items, dtype=np.int64)
        belongs, bad = np.searchsorted(self._ends, numbers, side="right"), dict[str, str]()
        found: np.ndarray | None = None
        for k in np.unique(belongs).tolist():
            own = np.flatnonzero(belongs == k)
            loaded = self._sets[k].batch(numbers[own] - int(self._ends[k]) + len(self._sets[k]))
            if found is None:
                found = np.empty((len(numbers), *loaded.images.shape[1:]), loaded.images.dtype)
            found[own] = loaded.images
            bad |= loaded.bad
        assert found is not None, "a batch has images"
        return Loaded(found, None if self.labels is None else self.labels[numbers], bad=bad)

    def _place(self, item: int) -> tuple[ImageSet, int]:
        k = int(np.searchsorted(self._ends, item, side="right"))
        return self._sets[k], item - int(self._ends[k]) + len(self._sets[k])
