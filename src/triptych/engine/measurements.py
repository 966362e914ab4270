"""Loss terms on their way to the log: summed where they arise, checked for finiteness, brought to the host in one go."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from triptych.core.errors import RunError
from triptych.core.model import NUM_GROUPS, LossTerms


@dataclass
class TermSums:
    """Sums of loss terms. Each term has a row [sum, sum of each group]; the last row has the numbers of samples."""

    dtype: torch.dtype = torch.float32
    names: tuple[str, ...] = ()
    sums: Tensor | None = None
    counts: Tensor | None = None

    def add(self, terms: LossTerms) -> None:
        """Adds the samples of a microbatch."""
        logged = {"loss": terms.loss.detach(), **terms.logged}
        values = torch.stack([value.to(self.dtype) for value in logged.values()])
        ones = torch.ones_like(values[:1])
        if terms.group is None:
            member = torch.zeros(values.shape[1], NUM_GROUPS, dtype=self.dtype, device=values.device)
        else:
            member = (terms.group[:, None] == torch.arange(NUM_GROUPS, device=values.device)).to(self.dtype)
        member = torch.cat((ones.T, member), dim=1)
        # A product with a zero would spread one bad value to every group.
        sums = torch.where(member.bool(), values[:, :, None], 0.0).sum(1)
        counts = member.sum(0)
        self.names = tuple(logged)
        self.sums = sums if self.sums is None else self.sums + sums
        self.counts = counts if self.counts is None else self.counts + counts

    def flat(self, names: Sequence[str] | None = None, *, device: torch.device | None = None) -> Tensor:
        """All numbers as one vector (n,), which `totals` reads. `names`: of the terms, where none was added here; then all is 0."""
        if self.sums is None or self.counts is None:
            assert names is not None
            return torch.zeros((len(names) + 1) * (1 + NUM_GROUPS), dtype=self.dtype, device=device)
        return torch.cat((self.sums.flatten(), self.counts))


def totals(names: Sequence[str], numbers: Sequence[float]) -> Iterator[tuple[str, float, float]]:
    """(name, sum, number of samples) of each term, and after it of its groups, as "name_q0" to "name_q3", that have samples."""
    width = 1 + NUM_GROUPS
    suffixes = ("", *(f"_q{group}" for group in range(NUM_GROUPS)))
    for row, name in enumerate(names):
        for suffix, total, count in zip(suffixes, numbers[row * width : (row + 1) * width], numbers[-width:], strict=True):
            if count:
                yield f"{name}{suffix}", total, count


@dataclass
class StepRecord:
    """One optimizer step: its loss terms, and the norm of its gradient."""

    phase: str
    images: int
    terms: TermSums = field(default_factory=TermSums)
    gradient_norm: Tensor | None = None

    def flat(self) -> Tensor:
        """All numbers of the record as one vector (n,), the gradient norm last."""
        assert self.gradient_norm is not None
        return torch.cat((self.terms.flat(), self.gradient_norm.float().reshape(1)))


@dataclass
class Measurements:
    """The steps since the last line of the log, on the device until they are asked for."""

    sum_over_processes: Callable[[Tensor], Tensor]
    allow_overflow: bool = False
    "Whether a gradient that is not finite is no failure (fp16: the loss scale handles it)."
    _waiting: list[StepRecord] = field(default_factory=list)
    window: dict[str, list[float]] = field(default_factory=dict)
    "[sum, number] of each measurement since the last line, without the waiting steps. It goes into a checkpoint as JSON."

    def add(self, record: StepRecord) -> None:
        """Takes the record of a finished step; nothing is waited for."""
        self._waiting.append(record)

    def check(self) -> None:
        """Brings the waiting records to the host. Raises RunError for the first value that is not finite."""
        if not self._waiting:
            return
        records, self._waiting = self._waiting, []
        vectors = [record.flat() for record in records]
        sizes = [len(vector) for vector in vectors]
        norms = torch.stack([vector[-1] for vector in vectors])
        numbers = self.sum_over_processes(torch.cat(vectors))
        for record, vector, norm in zip(records, numbers.split(sizes), norms.tolist(), strict=True):
            self._take(record, vector[:-1].tolist(), norm)

    def _take(self, record: StepRecord, numbers: list[float], norm: float) -> None:
        for name, total, count in totals(record.terms.names, numbers):
            if name in record.terms.names and not math.isfinite(total):
                raise RunError(
                    f'phase "{record.phase}": the loss term "{name}" is not finite at {record.images} images seen; nothing after the '
                    "last checkpoint was saved; a lower --optim.learning-rate, --optim.clip-norm or --train.precision bf16 may help"
                )
            self._count(f"{record.phase}/{name}", total, count)
        if math.isfinite(norm):
            self._count(f"{record.phase}/gradient_norm", norm, 1)
        elif not self.allow_overflow:
            raise RunError(
                f'phase "{record.phase}": the gradient is not finite at {record.images} images seen though its loss is; nothing after '
                "the last checkpoint was saved; a lower --optim.learning-rate or --optim.clip-norm may help"
            )

    def _count(self, name: str, total: float, count: float) -> None:
        before, number = self.window.get(name, (0.0, 0.0))
        self.window[name] = [before + total, number + count]

    def means(self) -> dict[str, float]:
        """Means over the samples (gradient norms: over the steps) since the last call, as "phase/term"."""
        self.check()
        values = {name: total / count for name, (total, count) in self.window.items()}
        self.window = {}
        return values
