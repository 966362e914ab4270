"""Clips looked at as a whole: each folder that belongs to them, held against what a training says of the same clips."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.data.pairs import as_map, levels, write
from tests.data.pictures import encoded
from tests.data.test_poses import png
from triptych.cli.data_doctor import said
from triptych.cli.main import main
from triptych.core.batch import ClipLength
from triptych.core.errors import DataError
from triptych.data.clips import ClipDataConfig
from triptych.data.examination import Examination
from triptych.data.loader import load
from triptych.data.poses import as_bits
from triptych.runs.doctor import examine

HEIGHT, WIDTH, FRAMES = 16, 20, 3
FACE = json.dumps([[k % 17, k % 13] for k in range(68)]).encode()


def array(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for clip in ("a", "b"):
        for t in range(FRAMES):
            write(tmp_path / f"images/{clip}/{t}.png", encoded(levels(WIDTH, HEIGHT, seed=t + 10 * (clip == "b"))))
            write(tmp_path / f"labels/{clip}/{t}.png", as_map(np.zeros((HEIGHT, WIDTH))))
            write(tmp_path / f"points/{clip}/{t}.png", as_map(np.full((HEIGHT, WIDTH), t)))
            write(tmp_path / f"limbs/{clip}/{t}.png", png(as_bits(np.ones((HEIGHT, WIDTH, 27), dtype=np.uint8))))
            write(tmp_path / f"dense/{clip}/{t}.png", png(np.full((HEIGHT, WIDTH, 3), 24, dtype=np.uint8)))
            write(tmp_path / f"faces/{clip}/{t}.json", FACE)
            if t:
                write(tmp_path / f"flow/{clip}/{t}.npy", array(np.zeros((HEIGHT, WIDTH, 2), dtype=np.float32)))
    return tmp_path


SCENES = {"points": "points", "flow": "flow"}
PEOPLE = {"limbs": "limbs", "densepose": "dense", "flip": False}
FACES = {"cut_out": "face", "landmarks": "faces"}


def settings(root: Path, **changes: object) -> ClipDataConfig:
    length = ClipLength(first=FRAMES, most=FRAMES)
    plain = {"maps": ("labels",), "num_classes": (2,), "image_size": HEIGHT, "width": WIDTH, "validation_fraction": 0.0, "length": length}
    return ClipDataConfig(path=str(root), **(plain | changes))


def named(found: Examination) -> dict[str, list[str]]:
    return {finding.fault.name: [found.key(item) for item in finding.items.tolist()] for finding in found.findings if finding.fault.stops}


def stops(config: ClipDataConfig) -> bool:
    """Whether a training would stop somewhere in these clips."""
    try:
        train = config.open().train
        load(train, np.arange(len(train)))
    except DataError:
        return True
    return False


@pytest.mark.parametrize("further", [SCENES, PEOPLE, FACES | {"width": None}])
def test_sound_clips_are_fit(root: Path, further: dict[str, object]) -> None:
    config = settings(root, **further)
    found = examine(config, workers=0)
    assert found.fit and named(found) == {} and not stops(config)
    assert found.count(0) == 2 * FRAMES, "frames alone are counted"
    assert next(said(found)) == f"{root} (clips): {2 * FRAMES} to train on, 0 held out"
    kinds = {found.part(item).kind for item in range(len(found.rows))}
    assert kinds >= set(further) & {"points", "flow", "limbs", "densepose", "landmarks"}


NARROW = np.zeros((HEIGHT, WIDTH - 2))
FAULTS: dict[str, tuple[dict[str, object], Callable[[Path], object], dict[str, list[str]]]] = {
    "no points": (SCENES, lambda root: (root / "points/b/1.png").unlink(), {"partner": ["images/b/1.png", "labels/b/1.png"]}),
    "narrow points": (SCENES, lambda root: write(root / "points/b/1.png", as_map(NARROW)), {"sizes": ["points/b/1.png"]}),
    "a photo of points": (
        SCENES,
        lambda root: write(root / "points/b/1.png", encoded(levels(WIDTH, HEIGHT), "JPEG")),
        {"damaged": ["points/b/1.png"]},
    ),
    "no flow": (SCENES, lambda root: (root / "flow/b/2.npy").unlink(), {"partner": ["images/b/2.png"]}),
    "empty flow": (SCENES, lambda root: write(root / "flow/b/2.npy", b""), {"empty": ["flow/b/2.npy"]}),
    "far flow": (SCENES, lambda root: write(root / "flow/b/2.npy", array(np.full((HEIGHT, WIDTH, 2), 1e5))), {"damaged": ["flow/b/2.npy"]}),
    "narrow flow": (SCENES, lambda root: write(root / "flow/b/2.npy", array(np.zeros((HEIGHT, 3, 2)))), {"sizes": ["flow/b/2.npy"]}),
    "a picture of limbs": (
        PEOPLE,
        lambda root: write(root / "limbs/a/0.png", png(np.full((HEIGHT, WIDTH, 4), 255, dtype=np.uint8))),
        {"damaged": ["limbs/a/0.png"]},
    ),
    "a part too many": (
        PEOPLE,
        lambda root: write(root / "dense/a/2.png", png(np.full((HEIGHT, WIDTH, 3), 25, dtype=np.uint8))),
        {"damaged": ["dense/a/2.png"]},
    ),
    "DensePose cut short": (
        PEOPLE,
        lambda root: write(root / "dense/a/2.png", (root / "dense/a/2.png").read_bytes()[:60]),
        {"truncated": ["dense/a/2.png"]},
    ),
    "no face": (FACES, lambda root: (root / "faces/a/1.json").unlink(), {"partner": ["images/a/1.png"]}),
    "67 points": (FACES, lambda root: write(root / "faces/a/0.json", b"[[1, 2]]"), {"damaged": ["faces/a/0.json"]}),
    "another size": (
        {},
        lambda root: [
            write(root / "images/b/2.png", encoded(levels(2 * WIDTH, 2 * HEIGHT))),
            write(root / "labels/b/2.png", as_map(np.zeros((2 * HEIGHT, 2 * WIDTH)))),
        ],
        {"sizes": ["images/b/2.png"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_would_stop_a_training_is_found_in_each_folder(root: Path, name: str) -> None:
    further, break_it, wanted = FAULTS[name]
    config = settings(root, **(further | ({"width": None} if further is FACES else {})))
    break_it(root)
    found = examine(config, workers=0, page=root / "page.html")
    assert named(found) == wanted
    assert not found.fit and stops(config)


def test_a_missing_folder_and_what_is_said(root: Path) -> None:
    found = examine(settings(root, flow="moves"), workers=0)
    assert [line for finding in found.findings for line in finding.general] == [f"{root}: holds no folder moves (data.flow)"]
    (root / "flow/b/2.npy").unlink()
    write(root / "flow/b/1.npy", array(np.zeros((HEIGHT, WIDTH, 3))))
    found = examine(settings(root, **SCENES), workers=0)
    why = {finding.fault.name: list(finding.why.values()) for finding in found.findings if finding.fault.stops}
    assert why["partner"] == ["no b/2.npy in flow"]
    assert why["damaged"] == [f"float64 of shape ({HEIGHT}, {WIDTH}, 3), expected floats of shape (height, width, 2)"]


def test_an_unchanged_file_is_not_looked_at_twice_and_a_changed_flow_is(root: Path) -> None:
    config = settings(root, **SCENES)
    assert examine(config, workers=0, out=root.parent / "found.json").fit
    write(root / "flow/b/2.npy", b"no array")
    assert named(examine(config, workers=0, out=root.parent / "found.json")) == {"damaged": ["flow/b/2.npy"]}


def test_files_beside_frames_are_on_the_side_of_their_clip(root: Path) -> None:
    found = examine(settings(root, **SCENES, validation_fraction=0.5), workers=0)
    sides = {clip: {found.side(k) for k in range(len(found.rows)) if f"/{clip}/" in found.key(k)} for clip in "ab"}
    assert sorted(map(sorted, sides.values())) == [["held out"], ["training"]]


def test_what_is_cut_out_may_be_small(root: Path) -> None:
    config = replace(settings(root, **FACES, width=None), image_size=4 * HEIGHT)
    assert examine(config, workers=0).fit and not stops(config)
    assert "small" in named(examine(settings(root, image_size=4 * HEIGHT, width=4 * WIDTH), workers=0))


def test_the_command_looks_at_clips(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (
        ["--maps", "labels", "--num-classes", "2", "--points", "points", "--flow", "flow"],
        ["--limbs", "limbs", "--densepose", "dense"],
        ["--maps", "labels", "--num-classes", "2", "--landmarks", "faces"],
        ["--maps", "labels", "--num-classes", "2", "--clips"],
    ):
        assert main(["data", "doctor", str(root), "--workers", "0", *options]) == 0, options
    capsys.readouterr()
    (root / "limbs/b/1.png").unlink()
    assert main(["data", "doctor", str(root), "--workers", "0", "--limbs", "limbs"]) == 1
    said = capsys.readouterr().out
    assert "images/b/1.png (no b/1.* in limbs)" in said and "--quarantine" not in said
    for options, line in (
        (
            ["--clips", "--maps", "labels", "--num-classes", "2", "--quarantine", "q.json"],
            "--quarantine: got 'q.json', expected nothing for clips",
        ),
        (
            ["--clips"],
            "--maps: got nothing, expected the folder of the class maps, unless --instances, --conditions, --limbs or --densepose say",
        ),
        (["--limbs", "limbs", "--skip", "q.json"], "--skip: got 'q.json', expected nothing: a frame cannot be left out of its clip"),
    ):
        assert main(["data", "doctor", str(root), *options]) == 2
        assert line in capsys.readouterr().err
