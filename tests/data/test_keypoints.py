"""Key points as pictures: lines, parabolas, colours that meet, files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.pairs import write
from tests.data.pictures import encoded, picture
from tests.runs.translators import opened
from triptych.cli.main import main
from triptych.data import keypoints
from triptych.data.frame_files import json_files
from triptych.data.keypoints import draw_face, draw_person, read_face, read_person
from triptych.data.made import mark


def face() -> np.ndarray:
    """All points outside the picture but for those that a test sets."""
    return np.stack((np.arange(68) * 3.0, np.full(68, -500.0)), axis=1)


def person(**body: tuple[float, float]) -> dict[str, np.ndarray]:
    points = np.zeros((25, 3))
    for name, place in body.items():
        points[int(name[1:])] = (*place, 0.9)
    return {"body": points, "face": np.zeros((70, 3)), "left": np.zeros((21, 3)), "right": np.zeros((21, 3))}


def drawn_by_hand(samples: list[tuple[int, int]], *, side: int, thick: int) -> np.ndarray:
    """White squares around pixels (x, y)."""
    canvas = np.zeros((side, side), dtype=np.uint8)
    for x, y in samples:
        for i in range(-thick, thick):
            for j in range(-thick, thick):
                if 0 <= y + i < side and 0 <= x + j < side:
                    canvas[y + i, x + j] = 255
    return canvas


def test_two_points_are_joined_by_a_line_and_three_by_a_parabola() -> None:
    line = [(int(x), int(round(12 + (x - 10) * 0.4, 6))) for x in np.linspace(10, 30, 20)]
    for points in ([(30, 20), (10, 12)], [(10, 12), (30, 20)]):
        assert keypoints._curve(np.array(points, dtype=float)).tolist() == [list(pixel) for pixel in line]
    curve = [[int(x), int(round(5 + (x - 15) ** 2 / 20, 6))] for x in np.linspace(5, 25, 20)]
    assert keypoints._curve(np.array([(5.0, 10), (15, 5), (25, 10)])).tolist() == curve
    steep = [[int(round(12 + (30 - y) / 8, 6)), int(y)] for y in np.linspace(6, 30, 24)]
    assert keypoints._curve(np.array([(12.0, 30), (15, 6)])).tolist() == steep


def test_what_is_too_bent_or_has_no_length_is_left_out() -> None:
    assert len(keypoints._curve(np.array([(10.0, 10), (14, 14), (14.5, 10.2)]))) == 0
    assert len(keypoints._curve(np.array([(12.0, 12), (12, 12)]))) == 0
    assert len(keypoints._curve(np.array([(12.0, 12), (12, 12), (20, 12)]))) == 0
    assert len(keypoints._curve(np.array([(10.0, 10), (14, 14), (16, 10.2)]))) == 6, "bent by less than y = x^2"


@pytest.mark.parametrize("thick", [1, 2])
def test_a_line_is_as_thick_as_it_should_be_and_ends_at_the_border(thick: int) -> None:
    samples = [(int(x), 38) for x in range(-5, 30)]
    canvas = np.zeros((40, 40, 1), dtype=np.uint8)
    keypoints._stroke(canvas, np.array(samples), (255,), thick)
    assert np.array_equal(canvas[..., 0], drawn_by_hand(samples, side=40, thick=thick))


@pytest.mark.parametrize("thick", [1, 2])
def test_a_line_with_ends_has_a_disc_at_each(thick: int) -> None:
    canvas = np.zeros((24, 32, 1), dtype=np.uint8)
    keypoints._stroke(canvas, np.array([(9, 12), (16, 11), (23, 10)]), (255,), thick, ends=True)
    y, x = np.mgrid[:24, :32]
    discs = (np.hypot(x - 9, y - 12) < 2 * thick) | (np.hypot(x - 23, y - 10) < 2 * thick)
    squares = [(-thick <= x - a) & (x - a < thick) & (-thick <= y - b) & (y - b < thick) for a, b in ((9, 12), (16, 11), (23, 10))]
    assert np.array_equal(canvas[..., 0] == 255, discs | np.any(squares, axis=0))


@pytest.mark.parametrize("forehead", [False, True])
def test_the_points_of_a_face_are_joined_in_their_order(forehead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[tuple[int, ...]] = []
    monkeypatch.setattr(keypoints, "_curve", lambda points: joined.append(tuple(points[:, 0].astype(int))) or np.empty((0, 2)))
    points = np.stack((np.arange(68.0), np.zeros(68)), axis=1)
    draw_face(points, height=8, width=8, forehead=forehead)
    jaw = [(k, k + 1, k + 2) for k in range(0, 16, 2)]
    over = [(16, 15, 14), (14, 13, 12), (12, 11, 10), (10, 9, 8), (8, 7, 6), (6, 5, 4), (4, 3, 2), (2, 1, 0)] if forehead else []
    rest = "17-18-19 19-20-21 22-23-24 24-25-26 28-31 31-32-33 33-34-35 35-28 36-37-38 38-39 39-40-41 41-36 42-43-44 44-45 45-46-47 47-42"
    rest += " 48-49-50 50-51-52 52-53-54 54-55-56 56-57-58 58-59-48 60-61-62 62-63-64 64-65-66 66-67-60"
    assert joined == jaw + over + [tuple(map(int, chain.split("-"))) for chain in rest.split()]


def test_the_forehead_mirrors_the_jaw() -> None:
    points = face()
    points[:17] = [(4 + 2 * k, 30 + 9 * (1 - abs(k - 8) / 8)) for k in range(17)]
    over = keypoints._forehead(points)
    assert np.array_equal(over[:, 0], points[15:0:-1, 0]) and over[7].tolist() == [20, 30 + -9 * 2 // 3]
    assert over[0, 1] == 30 + (30 - points[15, 1]) * 2 // 3


def test_limbs_have_their_colours_and_those_that_meet_are_mixed() -> None:
    found = draw_person(person(p1=(10, 10), p8=(10, 30)), height=40, width=40)  # the trunk
    assert found[12:28, 9:11, 0].all() and not found[..., 1:].any() and found[..., 0].max() <= 153 and not found[:, 13:].any()
    shin = draw_person(person(p13=(10, 10), p14=(10, 30)), height=40, width=40)
    assert not shin[..., :2].any() and shin[20, 9, 2] > 70
    canvas = np.zeros((20, 20, 3), dtype=np.uint8)
    line = np.array([(x, 10) for x in range(5, 15)])
    for down in (-1, 0):  # one offset of the whole line at a time, and any colour there dims all of it
        for across in (-1, 0):
            place = line + np.array((across, down))
            before = canvas[place[:, 1], place[:, 0]].astype(int)
            colour = np.array((0, 153, 153))
            new = (before + colour) // 2 if before.any() else colour
            canvas[place[:, 1], place[:, 0]] = new
    again = np.zeros_like(canvas)
    keypoints._stroke(again, line, (0, 153, 153), 1)
    assert np.array_equal(again, canvas)


def test_what_openpose_did_not_see_is_left_out() -> None:
    unsure = person(p1=(10, 10), p8=(10, 30))
    unsure["body"][8, 2] = 0.005
    assert not draw_person(unsure, height=40, width=40).any()
    hand = person()
    hand["left"][:, :] = [(3 + k, 20, 0.5) for k in range(21)]
    assert draw_person(hand, height=40, width=40).any()
    for part, least in (("left", 0.01), ("face", 0.1)):
        for confidence, seen in ((least / 2, False), (least * 2, True)):
            some = person()
            some[part][:, :] = [(3 + k / 3, 20, confidence) for k in range(len(some[part]))]
            assert draw_person(some, height=40, width=40).any() == seen
    finger = person()
    finger["left"][:5] = [(0 if k == 2 else 10, 5 + 5 * k, 0.5) for k in range(5)]
    found = draw_person(finger, height=40, width=40)
    assert found[7, 9].any() and found[23, 9].any() and not found[11:19].any(), "x = 0 is no place in a hand either"
    far = person(p1=(10, 1), p8=(0, 30))
    assert not draw_person(far, height=40, width=40).any(), "x = 0 is no place"


def test_the_thickness_is_that_of_the_points_that_were_seen() -> None:
    tall = person(p1=(200, 20), p8=(200, 400))
    widths = [int(draw_person(one, height=512, width=400)[200].any(1).sum()) for one in (tall, person(p1=(200, 180), p8=(200, 220)))]
    assert widths == [4, 2]
    far = draw_person(person(p1=(20, 20), p8=(20, 30_000)), height=40, width=40)
    assert far[30].any(1).sum() == 2, "a point outside does not make lines as thick as the picture"


def openpose(*people: dict[str, np.ndarray]) -> dict[str, Any]:
    names = {"body": "pose", "face": "face", "left": "hand_left", "right": "hand_right"}
    return {"people": [{f"{names[part]}_keypoints_2d": values.ravel().tolist() for part, values in one.items()} for one in people]}


def test_the_tallest_of_some_people_is_drawn() -> None:
    small, tall = person(p1=(5, 5), p8=(5, 9)), person(p1=(20, 5), p8=(20, 35))
    found = read_person(openpose(small, tall, small))
    assert found is not None and np.array_equal(found["body"], tall["body"])
    assert read_person({"people": []}) is None
    assert read_person({"people": [{"pose_keypoints_2d": [0] * 75}]}) is not None


def test_a_folder_becomes_pictures_that_clips_are_made_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = face()
    points[28], points[31] = (30, 20), (10, 12)
    for name in ("a/1", "a/2"):
        write(tmp_path / "points" / f"{name}.json", json.dumps(points.tolist()).encode())
        write(tmp_path / "images" / f"{name}.jpg", encoded(picture(48, 40, seed=1), "JPEG"))
    out = tmp_path / "drawn"
    assert main(["data", "draw", str(tmp_path / "points"), "--out", str(out), "--frames", str(tmp_path / "images")]) == 0
    assert "2 pictures of faces in" in capsys.readouterr().out
    assert np.array_equal(opened(out / "a/2.png"), draw_face(points, height=40, width=48))
    write(tmp_path / "people" / "b" / "7_keypoints.json", json.dumps(openpose(person(p1=(10, 10), p8=(10, 30)))).encode())
    size = ["--height", "40", "--width", "40"]
    assert main(["data", "draw", str(tmp_path / "people"), "--out", str(out), "--kind", "people", *size]) == 0
    assert np.array_equal(opened(out / "b/7.png"), draw_person(person(p1=(10, 10), p8=(10, 30)), height=40, width=40))
    assert (out / "a/2.png").exists(), "what was drawn before stays"
    assert main(["data", "draw", str(tmp_path / "people"), "--out", str(tmp_path / "v1.5"), "--kind", "people", *size]) == 0
    assert (tmp_path / "v1.5/b/7.png").read_bytes() == (out / "b/7.png").read_bytes()


def test_no_frame_is_drawn_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = tmp_path / "images"
    write(tmp_path / "points/a/1.json", json.dumps(face().tolist()).encode())
    write(frames / "a/1.png", encoded(picture(48, 40, seed=1)))
    before = (frames / "a/1.png").read_bytes()
    call = ["data", "draw", str(tmp_path / "points"), "--out", str(frames)]
    for given, message in (
        (["--frames", str(frames)], "images, which is read; choose another --out"),
        (["--height", "40", "--width", "48", "--out", str(tmp_path / "points")], "points, which is read; choose another --out"),
        (["--height", "40", "--width", "48"], "images/a/1.png is there already, and no such command made it"),
    ):
        assert main([*call, *given]) == 2
        assert message in capsys.readouterr().err
    assert (frames / "a/1.png").read_bytes() == before and [path.name for path in frames.iterdir()] == ["a"]
    translated = tmp_path / "translated"
    write(translated / "a/1.png", before)
    mark(translated, ["a/1.png"], request="0123")  # as triptych translate leaves it
    assert main([*call[:4], str(translated), "--height", "40", "--width", "48"]) == 2
    assert "translated/a/1.png is there already, and no such command made it" in capsys.readouterr().err
    assert (translated / "a/1.png").read_bytes() == before


def test_hidden_files_are_no_key_points(tmp_path: Path) -> None:
    for name in ("1.json", "._1.json", ".labels.json"):
        write(tmp_path / "points/a" / name, json.dumps(face().tolist()).encode() if name == "1.json" else b"other")
    assert json_files(tmp_path / "points") == [Path("a/1.json")]


def test_two_files_of_one_frame_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("1", "1_keypoints"):
        write(tmp_path / f"people/a/{name}.json", json.dumps(openpose(person(p1=(10, 10), p8=(10, 30)))).encode())
    given = ["--kind", "people", "--height", "40", "--width", "40"]
    assert main(["data", "draw", str(tmp_path / "people"), "--out", str(tmp_path / "out"), *given]) == 2
    assert "people: a/1.json and a/1_keypoints.json are of one frame; remove one of them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (b"[[1, 2]]", "faces", "a.json: cannot be drawn (expected 68 points, as [[x, y], ...])"),
        (b"{", "faces", "a.json: cannot be drawn ("),
        (b'{"people": 3}', "people", "a.json: cannot be drawn (expected what OpenPose writes"),
        (b'{"people": [{"pose_keypoints_2d": [1, 2]}]}', "people", "expected pose_keypoints_2d of 25 points"),
        (json.dumps([[2**15, 0]] * 68).encode(), "faces", "expected 68 points"),
        (json.dumps([[10**400, 0]] * 68).encode(), "faces", "expected 68 points"),
        (b'[["a", 0]]', "faces", "expected 68 points"),
    ],
)
def test_what_cannot_be_drawn_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, kind: str, message: str) -> None:
    write(tmp_path / "points" / "a.json", content)
    given = ["--out", str(tmp_path / "out"), "--kind", kind, "--height", "40", "--width", "40"]
    assert main(["data", "draw", str(tmp_path / "points"), *given]) == 2
    assert message in capsys.readouterr().err


def test_a_size_is_needed_and_a_frame_for_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "points" / "a.json", json.dumps(face().tolist()).encode())
    write(tmp_path / "images" / "b.png", encoded(picture(48, 40, seed=1)))
    call = ["data", "draw", str(tmp_path / "points"), "--out", str(tmp_path / "out")]
    for more, message in (
        ([], "--frames: missing: give the folder of the frames, or else both --height and --width"),
        (["--height", "4"], "--height: got it without --width; give both, or --frames FOLDER"),
        (["--width", "4"], "--width: got it without --height; give both, or --frames FOLDER"),
        (["--height", "4", "--width", "4", "--frames", "x"], "--frames: got it beside --height or --width, which say the size too"),
        (["--width", "4", "--frames", "x"], "--frames: got it beside --height or --width, which say the size too"),
        (
            ["--height", "4", "--width", "4", "--fit", "x.json"],
            "as the points of a face (No such file or directory)",
        ),
        (["--frames", str(tmp_path / "images")], "images has no image a.*, whose size it would have"),
    ):
        assert main([*call, *more]) == 2
        assert message in capsys.readouterr().err
    assert main(["data", "draw", str(tmp_path / "images"), "--out", str(tmp_path / "out"), "--height", "4", "--width", "4"]) == 2
    assert "holds no key points (.json)" in capsys.readouterr().err
    assert main([*call[:2], str(tmp_path / "points" / "a.json"), *call[3:], "--height", "4", "--width", "4"]) == 2
    assert capsys.readouterr().err.endswith("a.json: no folder; name that of the key points (.json)\n")
    assert read_face(face().tolist()).shape == (68, 2)
