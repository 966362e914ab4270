"""Evaluations as the page reads them: of very many the newest, the first figures of each, and what tells them apart."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from triptych.report.measured import Evaluation, comparable, differences, evaluations


def written(folder: Path, name: str, figures: dict[str, float], *, age: int = 0) -> None:
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"figures": {name: {"value": value} for name, value in figures.items()}}))
    os.utime(path, (1_000_000 - age, 1_000_000 - age))


def test_of_very_many_files_the_newest_are_read(tmp_path: Path) -> None:
    for k in range(203):
        written(tmp_path, f"{k:03}", {"kid": k / 1000}, age=k)
    found, notes = evaluations(tmp_path)
    assert [each.file for each in found] == [f"{k:03}.json" for k in range(199, -1, -1)], "the oldest of them first"
    assert notes == ["3 older files of evaluations are left out"]


def test_of_a_file_a_hundred_figures_are_read(tmp_path: Path) -> None:
    written(tmp_path, "made", {f"f{k:03}": float(k) for k in range(101)})
    (found,), notes = evaluations(tmp_path)
    assert [figure.value for figure in found.figures] == list(range(100)) and not notes


def test_a_row_of_a_sweep_with_the_same_figures_by_other_steps_is_a_row_of_its_own(tmp_path: Path) -> None:
    def part(steps: int) -> dict[str, Any]:
        return {"figures": {"copies": {"value": 0.0}}, "protocol": {"made": {"settings": {"steps": steps}}}}

    (tmp_path / "alone.json").write_text(json.dumps(part(10)))
    (tmp_path / "sweep.json").write_text(json.dumps({"sweep": [part(10), part(20)]}))
    found, _ = evaluations(tmp_path)
    assert [(each.file, each.steps) for each in found] == [("alone.json", 10.0), ("sweep.json", 20.0)]


def test_of_what_differs_six_names_are_told() -> None:
    one, other = (Evaluation("x.json", (), {f"p.n{k}": str(k + more) for k in range(7)}, None, None) for more in (0, 1))
    assert differences([one, other]) == [", ".join(f"n{k} {k + more}" for k in range(6)) for more in (0, 1)]


@pytest.mark.parametrize("name", ["reference.sha256", "reference.weights.hash"])
def test_what_is_the_same_reference_by_its_hash_may_be_called_otherwise(name: str) -> None:
    for given in ({name: "0123"}, {}):
        one, other = (given | dict.fromkeys(("reference.path", "reference.kind", "reference_name"), called) for called in "ab")
        assert (comparable(one) == comparable(other)) == bool(given)


def test_an_error_that_is_no_number_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "made.json").write_text(json.dumps({"figures": {"kid": {"value": 0.5, "error": "nan"}}}))
    ((found,), _) = evaluations(tmp_path)
    assert found.figures[0].error is None and found.figures[0].interval is None


def test_what_is_of_the_run_does_not_keep_figures_from_being_compared() -> None:
    run = ("seconds", "seed", "x.device", "checkpoint.images", "weights.path", "made.kind", "sampling.steps", "sampler.order")
    asked = ("count", "made.labels", "made.inputs.path", "made.contents", "reference.seed", "reference.device")
    assert comparable(dict.fromkeys((*run, *asked), "x")) == dict.fromkeys(asked, "x")
