"""Maps with one person alone: who that is, what is written, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.data.pairs import write
from tests.data.test_poses import dense, limbs, png
from triptych.cli.main import main
from triptych.data.decode import levels_of
from triptych.data.poses import as_bits, limbs_of
from triptych.runs.one_person import person_of

SIDE = 8


def crowd() -> np.ndarray:
    """Nobody, person 3 in the rows 1 and 2, and person 7, who is larger, in the rows 4 to 7."""
    who = np.zeros((SIDE, SIDE), dtype=np.uint8)
    who[1:3], who[4:] = 3, 7
    return who


def drawn(*rows: int, column: int = 2) -> np.ndarray:
    """A line in these rows."""
    pose = np.zeros((SIDE, SIDE, 3), dtype=np.uint8)
    pose[list(rows), column, 1] = 200
    return pose


@pytest.mark.parametrize(
    ("rows", "person"),
    [((1, 2, 4), 3), ((2, 4, 5), 7), ((0, 3, 1), 3), ((0, 3), 7), ((), 7)],
    ids=["most on the small one", "most on the large one", "most on nobody", "all on nobody", "no pose"],
)
def test_the_person_is_the_one_on_whom_most_of_the_pose_lies(rows, person):
    who = crowd().astype(np.int64)
    kept = person_of(who, drawn(*rows).any(-1))
    assert kept.dtype == np.uint8 and np.array_equal(kept, who == person)


def test_nobody_is_kept_of_nobody():
    assert not person_of(np.zeros((SIDE, SIDE), dtype=np.int64), np.ones((SIDE, SIDE), dtype=bool)).any()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, rows in (("a/1", (1, 2)), ("a/2", (5, 6)), ("b/1", ())):
        write(tmp_path / "dense" / f"{name}.png", png(dense(len(rows) + 2)))
        write(tmp_path / "limbs" / f"{name}.png", png(as_bits(limbs(5))))
        write(tmp_path / "who" / f"{name}.png", png(crowd()))
        write(tmp_path / "poses" / f"{name}.png", png(drawn(*rows)))
    return tmp_path


def call(root: Path, maps: str, *, out: str = "one", instances: str = "who", poses: str = "poses") -> list[str]:
    folders = {"--out": out, "--instances": instances, "--poses": poses}
    return ["data", "person", str(root / maps), *(word for flag, folder in folders.items() for word in (flag, str(root / folder)))]


@pytest.mark.parametrize(("maps", "mode"), [("dense", "RGB"), ("limbs", "RGBA")])
def test_other_people_become_black(root, capsys, maps, mode):
    assert main(call(root, maps)) == 0
    assert "3 maps of one person in" in capsys.readouterr().out
    for name, person in (("a/1", 3), ("a/2", 7), ("b/1", 7)):
        before, after = (levels_of((root / folder / f"{name}.png").read_bytes(), mode) for folder in (maps, "one"))
        here = crowd() == person
        assert before[here].any() and np.array_equal(after[here], before[here]) and not after[~here].any()
    if maps == "limbs":
        assert limbs_of(after).shape == (SIDE, SIDE, 27), "still a map of limbs"


def test_limbs_are_a_pose_too(root):
    bits = np.zeros((SIDE, SIDE, 27), dtype=np.uint8)
    bits[1:3, :, 26] = 1
    write(root / "limbs/b/1.png", png(as_bits(bits)))
    assert main(call(root, "dense", poses="limbs")) == 0
    after = levels_of((root / "one/b/1.png").read_bytes(), "RGB")
    assert after[1:3].any() and not after[4:].any()


@pytest.mark.parametrize(
    ("change", "given", "message"),
    [
        (("who/a/2.png", None), {}, "who: has no file a/2.*, which"),
        (("poses/a/2.png", None), {}, "poses: has no file a/2.*, which"),
        (("who/a/2.png", png(crowd()[:4])), {}, "who/a/2.png: 8x4 pixels, but "),
        (("poses/a/2.png", png(drawn(1)[:, :5])), {}, "poses/a/2.png: 5x8 pixels, but "),
        (("who/a/2.png", b"no picture"), {}, "who/a/2.png: "),
        (("who/a/2.png", png(drawn(1))), {}, "a picture in colour (RGB) as a map"),
        (("dense/a/2.png", png(crowd())), {}, "dense/a/2.png: PNG in L, expected PNG in RGB or RGBA, whose levels are numbers"),
        (None, {"instances": "people"}, "people: no such folder"),
        (None, {"out": "dense"}, "which is read; choose another --out"),
        (None, {"out": "who/new"}, "which is read; choose another --out"),
        (None, {"out": "poses/new"}, "which is read; choose another --out"),
    ],
)
def test_what_does_not_fit_is_named(root, capsys, change, given, message):
    if change is not None and change[1] is None:
        (root / change[0]).unlink()
    elif change is not None:
        write(root / change[0], change[1])
    assert main(call(root, "dense", **given)) == 2
    assert message in capsys.readouterr().err


def test_maps_of_others_are_left_alone(root, capsys):
    write(root / "one/b/1.png", b"mine")
    assert main(call(root, "dense")) == 2
    assert "one/b/1.png is there already, and no such command made it" in capsys.readouterr().err
    assert (root / "one/b/1.png").read_bytes() == b"mine" and not (root / "one/a").exists()
    (root / "one/b/1.png").unlink()
    assert main(call(root, "dense")) == main(call(root, "limbs")) == 0
    assert limbs_of(levels_of((root / "one/b/1.png").read_bytes(), "RGBA")).any(), "those of the first call are replaced"


@pytest.mark.parametrize("out", ["file", "file/below", "file.png"])
def test_a_file_is_no_folder_to_write_to(root, capsys, out):
    write(root / out.partition("/")[0], b"mine")
    assert main(call(root, "dense", out=out)) == 2
    assert "is a file; choose another --out" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["--out", "--instances", "--poses"])
def test_all_folders_are_needed(root, capsys, missing):
    words = call(root, "dense")
    place = words.index(missing)
    assert main(words[:place] + words[place + 2 :]) == 2
    assert f"{missing}: missing" in capsys.readouterr().err


def test_a_folder_without_maps_is_named(root, capsys):
    (root / "empty").mkdir()
    assert main(call(root, "empty")) == 2
    assert "empty: holds no maps (.png)" in capsys.readouterr().err
