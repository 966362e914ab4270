"""Folders of images that commands make: what they replace, and what they leave alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from triptych.core.errors import DataError
from triptych.data.made import made_in
from triptych.runs.image_folder import GRID, Folder


def folder(out: Path, *names: str, grid_rows: int = 0, labelled: bool = False) -> Folder:
    """One answer for each input."""
    return Folder(out, [[name] for name in names], grid_rows=grid_rows, labelled=labelled)


def write(out: Path, *names: str) -> None:
    for name in names:
        (out / name).write_text("made")


def there(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir() if not path.name.startswith("."))


def test_the_same_request_goes_on_and_another_one_replaces_what_it_made(tmp_path: Path) -> None:
    out = tmp_path / "deep/out"
    asked = folder(out, "a.png", "b.png", grid_rows=1, labelled=True)
    asked.claim("one")
    assert made_in(out).files == {"a.png", "b.png", GRID, "dataset.json"} and made_in(out).request == "one"
    write(out, "a.png", GRID, "dataset.json")
    asked.claim("one")
    assert there(out) == ["a.png", "dataset.json", GRID] and made_in(out).overview == GRID
    folder(out, "a.png", "b.png").claim("two")
    assert there(out) == [] and made_in(out).files == {"a.png", "b.png"}
    assert made_in(out).request == "two" and made_in(out).overview is None


def test_a_request_that_needs_fewer_files_is_not_mixed_with_those_of_another(tmp_path: Path) -> None:
    folder(tmp_path, "a.png", "b.png", "c.png").claim("one")
    write(tmp_path, "a.png", "b.png")
    with pytest.raises(DataError, match=r"already holds b\.png of another request, which would be mixed with the new images; choose"):
        folder(tmp_path, "a.png").claim("two")
    assert there(tmp_path) == ["a.png", "b.png"] and made_in(tmp_path).request == "one"
    (tmp_path / "b.png").unlink()
    folder(tmp_path, "a.png").claim("two")
    assert there(tmp_path) == [] and made_in(tmp_path).files == {"a.png"}


def test_the_same_request_for_fewer_files_keeps_those_that_are_there(tmp_path: Path) -> None:
    folder(tmp_path, "a.png", "b.png", grid_rows=1).claim("one")
    write(tmp_path, "a.png", "b.png", GRID)
    folder(tmp_path, "a.png").claim("one")
    assert there(tmp_path) == ["a.png", "b.png", GRID]
    assert made_in(tmp_path).files == {"a.png", "b.png", GRID} and made_in(tmp_path).overview == GRID


@pytest.mark.parametrize("name", ["a.png", GRID, "dataset.json"])
def test_a_file_that_no_command_made_is_kept(tmp_path: Path, name: str) -> None:
    write(tmp_path, name)
    with pytest.raises(DataError, match="is there already, and no such command made it; choose another folder, or remove it"):
        folder(tmp_path, "a.png", grid_rows=1, labelled=True).claim("one")
    assert there(tmp_path) == [name] and made_in(tmp_path).request is None


def test_an_image_that_has_the_name_of_the_grid_is_none(tmp_path: Path) -> None:
    folder(tmp_path, GRID).claim("one")
    assert made_in(tmp_path).overview is None and made_in(tmp_path).files == {GRID}
