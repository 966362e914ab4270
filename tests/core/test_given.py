"""What Python calls are given is looked at before anything is done, and named by the argument."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triptych.core.errors import ConfigError
from triptych.core.given import given_path, given_place, optional_path, whole_number, whole_numbers


def test_numbers_and_paths_are_taken_as_they_are_meant() -> None:
    assert [whole_number(value, "n", least=0) for value in (3, np.int64(4), np.uint8(0))] == [3, 4, 0]
    assert type(whole_number(np.int64(4), "n")) is int
    assert whole_numbers(np.array([1, 2]), "pick") == whole_numbers((1, 2), "pick", count=2) == [1, 2]
    assert given_path("a/b", "out") == given_path(Path("a/b"), "out") == Path("a/b")
    assert optional_path(None, "out") is None and optional_path("a/b", "out") == Path("a/b")


@pytest.mark.parametrize("value", [1.5, 2.0, "3", None, True, [1], np.array([1, 2])])
def test_what_is_no_whole_number_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^seed: got .*, expected a whole number from 0 on$"):
        whole_number(value, "seed", least=0)


def test_other_mistakes() -> None:
    for call, said in (
        (lambda: whole_number(-1, "seed", least=0), "seed: got -1, expected a whole number from 0 on"),
        (lambda: whole_numbers(3, "pick"), "pick: got 3, expected whole numbers"),
        (lambda: whole_numbers("34", "pick"), "pick: got '34', expected whole numbers"),
        (lambda: whole_numbers([0, 0.5], "pick"), "pick: got 0.5, expected a whole number"),
        (lambda: whole_numbers([0, 1, 2], "between", count=2), "between: got 3 numbers, expected 2 whole numbers"),
        (lambda: given_path(None, "out"), "out: got None, expected a path"),
        (lambda: given_place("s3://me:secret@b/run", "run_dir"), "run_dir: got s3://b/run, an address; expected a path on this machine"),
        (lambda: given_path("", "out"), "out: got '', expected a path"),
        (lambda: given_path(" \t", "out"), "out: got ' \\t', expected a path"),
        (lambda: given_path(Path(" "), "out"), "out: got PosixPath(' '), expected a path"),
        (lambda: whole_numbers([0], "between", count=2), "between: got 1 number, expected 2 whole numbers"),
        (lambda: whole_number(-(10**5000), "seed", least=0), "seed: got something of type int that is too long to show, expected a whole"),
        (lambda: whole_number([10**5000], "seed"), "seed: got something of type list that is too long to show, expected a whole number"),
        (lambda: optional_path(1, "out"), "out: got 1, expected a path"),
        (lambda: given_path(np.zeros(999), "out"), "..., expected a path"),
    ):
        with pytest.raises(ConfigError) as caught:
            call()
        assert said in str(caught.value) and "\n" not in str(caught.value)
