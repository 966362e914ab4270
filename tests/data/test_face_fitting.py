"""Faces of a clip with the proportions of another: groups of points by loops, smoothing, the command, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from triptych.cli.main import main
from triptych.data.face_fitting import GROUPS, fitted
from triptych.data.keypoints import draw_face


def face(*, width: float = 40.0, height: float = 50.0, mouth: float = 12.0, left: float = 30.0, top: float = 20.0) -> np.ndarray:
    """A face that is its own mirror image, all of whose points are far from one another."""
    x, y = np.zeros(68), np.zeros(68)
    angles = np.linspace(0, np.pi, 17)
    x[:17], y[:17] = -np.cos(angles), np.sin(angles)
    for first, last, count, level, inner in ((17, 26, 5, -0.35, 0.2), (36, 45, 2, -0.15, 0.35), (31, 35, 2, 0.3, 0.2)):
        for k in range(count):
            reach = inner + 0.13 * (count - k)
            x[first + k], x[last - k] = -reach, reach
            y[first + k] = y[last - k] = level - 0.02 * k
    for one, other, reach, level in ((38, 43, 0.3, -0.2), (39, 42, 0.2, -0.15), (41, 46, 0.42, -0.1), (40, 47, 0.3, -0.1)):
        x[one], x[other], y[one], y[other] = -reach, reach, level, level
    y[[27, 28, 29, 30, 33]] = -0.1, 0.0, 0.1, 0.2, 0.32
    for first, last, count, level in ((48, 54, 3, 0.5), (55, 59, 2, 0.62), (60, 64, 2, 0.54)):
        for k in range(count):
            reach = mouth / width * (1 - 0.3 * k)
            x[first + k], x[last - k] = -reach, reach
            y[first + k] = y[last - k] = level - 0.01 * k
    x[[67, 65]], y[[67, 65, 51, 57, 62, 66]] = (-0.1, 0.1), (0.57, 0.57, 0.48, 0.64, 0.53, 0.58)
    return np.stack((left + width / 2 * (x + 1), top + height * (y + 1) / 2), axis=1)


def by_hand(clip: list[np.ndarray], reference: np.ndarray) -> list[np.ndarray]:
    """The formulas of the module, point by point."""
    whole = (clip[0][:, 0].max() - clip[0][:, 0].min()) / (reference[:, 0].max() - reference[:, 0].min())
    before: dict[int, tuple[float, float]] = {}
    moved = []
    for points in clip:
        new = points.copy()
        for number, group in enumerate(GROUPS):
            sizes = []
            for face_points in (reference, points):
                centre = sum(face_points[k] for k in group) / len(group)
                spread = sum(np.hypot(*(face_points[k] - centre)) for k in group) / len(group)
                sizes.append((spread + 1e-3, np.hypot(*(centre - face_points[8])) + 1e-3))
            scale = tuple(whole * wanted / own for wanted, own in zip(*sizes, strict=True))
            scale = (scale[0], scale[0]) if 8 in group else scale
            if number in before:
                scale = tuple(0.9 * old + 0.1 * now for old, now in zip(before[number], scale, strict=True))
            before[number] = scale  # type: ignore[assignment]
            centre = sum(points[k] for k in group) / len(group)
            for k in group:
                new[k] = (points[k] - centre) * scale[0] + (centre - points[8]) * scale[1] + points[8]
        moved.append(new)
    return [np.median(moved[max(0, t - 2) : t + 3], axis=0) for t in range(len(moved))]


def turned(points: np.ndarray, seed: int) -> np.ndarray:
    return points + np.random.default_rng(seed).normal(0, 1.5, points.shape)


def test_every_point_has_a_group() -> None:
    assert sorted(point for group in GROUPS for point in group) == list(range(68))
    assert len(GROUPS) == 38 and all(len(group) <= 3 for group in GROUPS)


def test_faces_are_fitted_as_by_hand() -> None:
    clip = [turned(face(left=30 + 2 * t), seed=t) for t in range(7)]
    reference = face(width=60, height=90, mouth=30)
    for one, other in zip(fitted(clip, reference), by_hand(clip, reference), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)


def test_proportions_are_those_of_the_reference_and_the_width_that_of_the_driver() -> None:
    driver, reference = face(width=40, mouth=8), face(width=80, height=120, mouth=36)
    (made,) = fitted([driver], reference)
    assert np.allclose(made[8], driver[8], atol=0.1), "the chin stays"
    assert np.allclose(made - made[8], (reference - reference[8]) / 2, atol=0.1), "half as large, as wide as the driver"


def test_a_face_that_is_fitted_to_itself_moves_by_the_median_alone() -> None:
    clip = [face(left=10 + 3 * t) for t in range(6)]
    for t, made in enumerate(fitted(clip, clip[0])):
        near = [10 + 3 * k for k in range(max(0, t - 2), min(6, t + 3))]
        np.testing.assert_allclose(made, face(left=float(np.median(near))), rtol=0, atol=1e-9)
    assert fitted([], face()) == []


def test_whole_pixels_leave_the_chin_in_its_place() -> None:
    """Where the middle of the jaw is flat, the chin is no more than a rounding away from the middle of its group."""
    for seed in range(20):
        clip = [np.round(turned(face(left=30 + t), seed=10 * seed + t)) for t in range(8)]
        clip[0][[7, 8, 9], 1] = clip[0][8, 1]
        for points, made in zip(clip, fitted(clip, np.round(face(width=60, height=80))), strict=True):
            assert np.abs(made[[7, 8, 9]] - points[[7, 8, 9]]).max() < 25, seed


def test_a_face_without_width_is_refused() -> None:
    for clip, reference in (([np.ones((68, 2))], face()), ([face()], np.ones((68, 2)))):
        with pytest.raises(ValueError, match="the points of the first face, or of the reference, have no width"):
            fitted(clip, reference)


def write(path: Path, points: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(points.tolist()), encoding="utf-8")


def test_the_command_draws_fitted_faces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    clips = {"a": [turned(face(left=20 + 4 * t), seed=t) for t in range(12)], "b": [turned(face(left=40), seed=9)]}
    for name, clip in clips.items():
        for t, points in enumerate(clip):
            write(tmp_path / "points" / name / f"{t}.json", points)
    reference = face(width=50, height=80, mouth=20)
    write(tmp_path / "anna.json", reference)
    command = ["data", "draw", str(tmp_path / "points"), "--out", str(tmp_path / "drawn"), "--height", "128", "--width", "128"]
    assert main([*command, "--fit", str(tmp_path / "anna.json")]) == 0
    for name, clip in clips.items():
        for t, points in enumerate(fitted(clip, reference)):
            found = np.asarray(Image.open(tmp_path / "drawn" / name / f"{t}.png"))
            assert (found == draw_face(points, height=128, width=128)).all() and found.any()
    for name, clip in clips.items():  # clips in one folder
        for t, points in enumerate(clip):
            write(tmp_path / "flat" / f"{name}_{t}.json", points)
    flat = [str(tmp_path / "flat") if part == str(tmp_path / "points") else part for part in command]
    flat[flat.index(str(tmp_path / "drawn"))] = str(tmp_path / "drawn-flat")
    assert main([*flat, "--fit", str(tmp_path / "anna.json")]) == 0
    for name, clip in clips.items():
        for t in range(len(clip)):
            one, other = tmp_path / "drawn" / name / f"{t}.png", tmp_path / "drawn-flat" / f"{name}_{t}.png"
            assert one.read_bytes() == other.read_bytes()
    assert main([*command, "--fit", str(tmp_path / "no.json")]) == 2
    assert f"{tmp_path / 'no.json'}: cannot be read as the points of a face" in capsys.readouterr().err
    write(tmp_path / "flat.json", np.ones((68, 2)))
    assert main([*command, "--fit", str(tmp_path / "flat.json")]) == 2
    assert "cannot be fitted to" in capsys.readouterr().err
    assert main([*command, "--fit", str(tmp_path / "anna.json"), "--kind", "people"]) == 2
    assert "--fit" in capsys.readouterr().err
