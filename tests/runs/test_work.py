"""Work on many items: shares, pieces, what an interruption leaves, and the verbs that are such work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.runs.glow import moved_run, pixels
from triptych.core.errors import RunError, Stopped
from triptych.engine.distributed import World
from triptych.engine.progress import unwatched
from triptych.runs import Latents, Run
from triptych.runs.files import save_npz
from triptych.runs.pieces import Pieces
from triptych.runs.work import Part, Within, Work, assembled, done, evaluating, in_memory, make_missing, ranges

ALONE = World(0, 1, torch.device("cpu"))


class Squares:
    """The squares of numbers, two at a time; notes what it made."""

    def __init__(self, identity: str = "squares") -> None:
        self.made: list[range] = []
        self.work = Work(7, identity, self._make)

    @property
    def items(self) -> list[int]:
        return [item for part in self.made for item in part]

    def _make(self, items: Sequence[int], within: Within) -> Iterator[Part]:
        for part in ranges(items, 2):
            within(len(part) / 2)
            self.made.append(part)
            yield part, {"squares": np.square(part)}


def carried_out(squares: Squares, out: Path | None, *, progress: Any = unwatched, world: World = ALONE) -> list[int]:
    """The squares of all numbers."""
    return done(
        squares.work,
        out,
        world=world,
        progress=progress,
        kept="squared",
        conclude=lambda parts: assembled(parts, squares.work.count)["squares"].tolist(),
        write=lambda path, found: save_npz(path, {"arr_0": np.array(found)}),
    )


SQUARES = [0, 1, 4, 9, 16, 25, 36]


def stop_at(least: float) -> Callable[[float, float], None]:
    def progress(made: float, total: float) -> None:
        if made >= least:
            raise KeyboardInterrupt

    return progress


def test_progress_is_told_within_batches_and_of_all(tmp_path: Path) -> None:
    told: list[tuple[float, float]] = []
    for out in (None, tmp_path / "a.npz"):
        told.clear()
        assert carried_out(Squares(), out, progress=lambda *now: told.append(now)) == SQUARES
        assert told == [(k, 7) for k in (0, 1, 2, 3, 4, 5, 6, 6.5, 7)]
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_the_same_work_goes_on_and_other_work_begins_anew(tmp_path: Path) -> None:
    out = tmp_path / "a.npz"
    with pytest.raises(Stopped, match="^interrupted; what was squared is kept, and the same command goes on$"):
        carried_out(Squares(), out, progress=stop_at(4))
    assert not out.exists()
    other, same = Squares(identity="others"), Squares()
    assert carried_out(same, out) == SQUARES and same.made == [range(4, 6), range(6, 7)]
    others = {".b.npz.partial-0123456789ab", ".a.npz.partial-x.partial-0123456789ab"}
    for name in others:
        (tmp_path / name).mkdir()
    with pytest.raises(Stopped):
        carried_out(Squares(), out, progress=stop_at(4))
    assert len(list(tmp_path.iterdir())) == 4
    assert carried_out(other, out) == SQUARES and other.made[0] == range(2)
    assert {path.name for path in tmp_path.iterdir()} == {"a.npz", *others}, "pieces of other work on this output are gone, and no others"


def test_each_process_makes_its_share_of_what_is_missing(tmp_path: Path) -> None:
    first, second = Squares(), Squares()
    kept: list[Part] = []

    class Kept:
        def missing(self, items: range) -> list[Sequence[int]]:
            return [items]

        def save(self, items: Sequence[int], arrays: Any) -> None:
            kept.append((items, arrays))

    told: list[tuple[float, float]] = []
    for rank, work in enumerate((first, second)):
        make_missing(work.work, Kept(), world=World(rank, 2, ALONE.device), progress=lambda *now: told.append(now))
        assert told[0] == (0, len(work.items)) and told[-1] == (len(work.items), len(work.items)), "of its own share"
        told.clear()
    assert first.items + second.items == list(range(7))
    assert 0 < len(first.items) < 7
    assert assembled(reversed(kept), 7)["squares"].tolist() == SQUARES


def test_a_process_without_a_share_makes_nothing() -> None:
    class First(World):
        def gather(self, value: Any) -> list[Any]:
            return [value]

    assert in_memory(Squares().work, First(0, 9, ALONE.device), unwatched) == []


def test_a_stop_in_one_process_stops_all(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(World):
        def gather(self, value: Any) -> list[Any]:
            return [value, Stopped()]  # the other was stopped

    with pytest.raises(Stopped, match="another process"):
        in_memory(Squares().work, Two(0, 2, ALONE.device), unwatched)


def test_pieces(tmp_path: Path) -> None:
    pieces = Pieces.of(tmp_path / "a.json", identity={"seed": 1})
    assert list(pieces.missing(range(3, 9))) == [range(3, 9)]
    for start, stop in ((4, 6), (5, 7), (8, 9)):  # the second overlaps: the same was asked for twice at once
        pieces.save(range(start, stop), {"x": np.arange(start, stop)})
    assert list(pieces.missing(range(3, 12))) == [range(3, 4), range(6, 8), range(9, 12)]
    assert list(pieces.missing(range(3))) == [range(3)] and list(pieces.missing(range(4, 6))) == []
    for items in (*pieces.missing(range(3, 12)),):
        pieces.save(items, {"x": np.arange(items.start, items.stop)})
    with pytest.raises(RunError, match=r"the pieces 0 to 2 of 12 are gone; the same command goes on"):
        next(pieces.read(12))
    pieces.save(range(3), {"x": np.arange(3)})
    assert np.concatenate([arrays["x"] for _, arrays in pieces.read(12)]).tolist() == list(range(12))
    (damaged,) = pieces.folder.glob("*-000000009.npz")
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(RunError, match=r"-000000009.npz is damaged, and was removed; the same command goes on"):
        list(pieces.read(12))
    assert list(pieces.missing(range(12))) == [range(8, 9)]
    assert Pieces.of(tmp_path / "a.json", identity={"seed": 2}).folder != pieces.folder
    pieces.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("training", [True, False])
def test_a_model_goes_back_to_the_mode_that_it_was_in(training: bool) -> None:
    model = torch.nn.Linear(1, 1).train(training)
    with evaluating(model):
        assert not model.training and not model(torch.ones(1)).requires_grad
    assert model.training is training
    with pytest.raises(Stopped), evaluating(model):
        raise Stopped("interrupted")
    assert model.training is training


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return moved_run(tmp_path_factory.mktemp("flow") / "run")


def test_encoding_and_decoding_go_on(flow: Run, tmp_path: Path) -> None:
    images, latents_out, out = pixels(5), tmp_path / "latents.npz", tmp_path / "back.npz"
    coder = flow.coder(batch_size=2, device="cpu")
    whole = coder.encode(images)
    stopped = flow.coder(batch_size=2, device="cpu", progress=stop_at(2))
    told: list[tuple[float, float]] = []
    going_on = flow.coder(batch_size=2, device="cpu", progress=lambda *now: told.append(now))
    with pytest.raises(Stopped):
        stopped.encode(images, out=latents_out)
    latents = going_on.encode(images, out=latents_out)
    assert told == [(2, 5), (4, 5), (5, 5)] and not list(tmp_path.glob(".*"))
    assert len(latents.arrays) == len(whole.arrays) > 1
    assert all(np.array_equal(found, expected) for found, expected in zip(latents.arrays, whole.arrays, strict=True))
    with pytest.raises(Stopped):
        stopped.encode(images, out=latents_out)
    told.clear()
    going_on.encode(images[::-1], out=latents_out)
    assert told[0] == (0, 5)  # pieces of other images are not taken up

    with pytest.raises(Stopped):
        stopped.decode(whole, out=out)
    told.clear()
    assert np.array_equal(going_on.decode(whole, out=out).images, coder.decode(whole).images)
    assert told == [(2, 5), (4, 5), (5, 5)]
    with pytest.raises(Stopped):
        stopped.decode(whole, out=out)
    told.clear()
    going_on.decode(Latents(tuple(2 * array for array in whole.arrays), whole.labels), out=out)
    assert told[0] == (0, 5)
