"""Two processes of a command: what the first one refuses, which the others are told, is said once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.stored_run import begun
from tests.processes import run_together
from triptych.cli import main as module
from triptych.cli.main import main
from triptych.cli.processes import num_processes
from triptych.core.errors import ConfigError, DataError
from triptych.engine import distributed
from triptych.engine.distributed import World, told_elsewhere


def test_how_many_processes_there_are_is_what_torchrun_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert num_processes() == 4
    monkeypatch.delenv("WORLD_SIZE")
    assert num_processes() == 1


@pytest.mark.slow
@pytest.mark.xdist_group("torchrun")
@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("foreign", "is not a run: it has no config.json but holds thesis.tex"),
        ("begun", "--model.network.num-channels: got 64, but the run in "),  # named by its flag on its way
    ],
)
def test_what_the_main_process_refuses_is_said_once(tmp_path: Path, run: str, said: str) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/thesis.tex").touch()
    begun(tmp_path / "begun")
    words = ["train", "adm-digits", "--run", str(tmp_path / run), "--device", "cpu", "--model.network.num-channels", "64"]
    first, second = run_together(2, main, words, codes=[2, 2])
    assert [line for line in first.stderr.splitlines() if said in line] and first.stderr.count("triptych: error: ") == 1
    assert not second.stderr and not second.stdout


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_that_is_passed_on_is_the_main_processs_to_tell(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = DataError("x.png: cannot be read")

    def refuse() -> None:
        raise refused

    monkeypatch.setattr(World, "from_main", lambda self, value: refused)  # as the broadcast has it
    with pytest.raises(DataError) as raised:
        World(rank, 2, None).on_main(refuse)  # type: ignore[arg-type]
    assert raised.value.first == (rank == 0)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("first", "said"), [(True, True), (False, False), (None, True)])
def test_an_error_that_has_been_renamed_is_told_as_before(first: bool | None, said: bool, capsys: pytest.CaptureFixture[str]) -> None:
    error = ConfigError("train.seed", "got 5")
    if first is not None:
        error.first = first  # type: ignore[attr-defined]
    try:
        try:
            raise error
        except ConfigError as caught:
            raise caught.renamed(lambda name: f"--{name}") from None
    except ConfigError as renamed:
        assert module._fail(renamed, 2, debug=False) == 2
    assert capsys.readouterr().err == ("triptych: error: --train.seed: got 5\n" if said else "")


@pytest.mark.parametrize("other", [OSError("the disk is full"), DataError("y.png: cannot be read")])
@pytest.mark.parametrize("plainly", [True, False])
def test_an_error_on_the_way_of_another_one_is_its_own(other: Exception, plainly: bool) -> None:
    passed = DataError("x.png: cannot be read")
    passed.first = False  # type: ignore[attr-defined]
    assert told_elsewhere(passed) and not told_elsewhere(other)
    other.__context__, other.__suppress_context__ = passed, plainly and isinstance(other, OSError)
    assert not told_elsewhere(other)


def test_the_others_are_not_told_of_an_error_that_was_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that passed it on may be gone, and the store with it: what is missed then would be said instead."""

    class Peers:
        def explained(self, error: BaseException) -> BaseException:
            return RuntimeError("the other processes cannot be reached any more")

    monkeypatch.setattr(distributed, "_join", lambda backend: (None, Peers()))
    for name, value in (("is_initialized", True), ("is_torchelastic_launched", True), ("get_backend", "gloo")):
        monkeypatch.setattr(distributed.dist, name, lambda value=value: value)
    passed = DataError("x.png: cannot be read")
    with pytest.raises(RuntimeError), distributed.failing_together():
        raise passed
    passed.first = False  # type: ignore[attr-defined]
    with pytest.raises(DataError), distributed.failing_together():
        raise passed
