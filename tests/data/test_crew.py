"""Processes that look at images: what ends one of them costs that image alone."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping

import pytest

from tests.data.limits import few_more_files
from triptych.core.errors import RunError
from triptych.data.crew import made_of

PIECES = [range(5), range(5, 10), range(10, 12)]


def squares(items: range, ended: Mapping[int, str], began: Callable[[int], None]) -> list[int | str]:
    found = []
    for item in items:
        began(item)
        if item in ended:
            found.append(ended[item])
            continue
        if item == 3:
            faulthandler.disable()
            os.kill(os.getpid(), signal.SIGSEGV)
        if item == 6:
            os._exit(9)
        if item == 8:
            while True:
                pass
        found.append(item * item)
    return found


def test_an_item_that_ends_its_process_is_named_and_the_others_are_made() -> None:
    made = dict(made_of(PIECES, squares, workers=2, seconds=0.2, waiting_seconds=30.0))
    assert made == {
        PIECES[0]: [0, 1, 4, "its process ended by SIGSEGV", 16],
        PIECES[1]: [25, "its process ended with code 9", 49, "took longer than 0.2 s of the processor", 81],
        PIECES[2]: [100, 121],
    }


def test_an_item_that_waits_for_ever_is_given_up() -> None:
    def waiting(items: range, ended: Mapping[int, str], began: Callable[[int], None]) -> str:
        began(4)
        if not ended:
            time.sleep(600)
        return ended[4]

    assert list(made_of([range(4, 5)], waiting, workers=1, waiting_seconds=0.2)) == [(range(4, 5), "took longer than 0.2 s")]


def test_an_item_that_was_killed_once_is_made(tmp_path) -> None:
    """The system may kill any process for want of memory: the item that it was at need not be to blame."""

    def once(items: range, ended: Mapping[int, str], began: Callable[[int], None]) -> list[int]:
        for item in items:
            began(item)
            if item == 2 and not (tmp_path / "killed").exists():
                (tmp_path / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        assert not ended
        return list(items)

    assert dict(made_of([range(4)], once, workers=1)) == {range(4): [0, 1, 2, 3]}
    assert (tmp_path / "killed").exists()


def test_an_error_of_the_program_is_no_fault_of_an_item() -> None:
    def wrong(items: range, ended: object, began: object) -> None:
        raise KeyError("a mistake")

    with pytest.raises(RunError, match="KeyError: 'a mistake'"):
        list(made_of(PIECES, wrong, workers=1))
    with pytest.raises(KeyError):
        list(made_of(PIECES, wrong, workers=0))


def test_processes_that_cannot_all_be_started_end_with_a_message() -> None:
    """Images could not be opened either in what was left."""
    message = r"^40 processes that look at images could not be started \(Too many open files; [1-9][0-9]* were\): lower --workers$"
    with few_more_files(40), pytest.raises(RunError, match=message):
        list(made_of([range(k, k + 1) for k in range(40)], lambda items, ended, began: items.start, workers=40))
    assert not multiprocessing.active_children()
