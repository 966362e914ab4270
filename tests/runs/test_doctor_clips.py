"""Clips looked at as a whole: each folder that belongs to them, held against what a training says of the same clips."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.data.databases import write_database
from tests.data.pairs import as_map, levels, write
from tests.data.pictures import encoded
from tests.data.test_poses import png
from triptych.cli.data_doctor import Length, said
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


MANY = 10**6
"""Clips seen after which those of a training have the most frames."""


def refusal(config: ClipDataConfig) -> str:
    """What a training says that stops in these clips; empty: it does not."""
    try:
        train = config.open().train
        load(train, np.arange(len(train)))
        train.batch(np.arange(len(train)), np.arange(len(train)) + MANY, seed=0)
    except DataError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("further", [SCENES, PEOPLE, FACES | {"width": None}])
def test_sound_clips_are_fit(root: Path, further: dict[str, object]) -> None:
    config = settings(root, **further)
    found = examine(config, workers=0)
    assert found.fit and named(found) == {} and not refusal(config)
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
    assert not found.fit and refusal(config)


def write_clip(root: Path, name: str, frames: int) -> None:
    """A clip of so many frames in the place of what is there."""
    for folder, data in (("images", encoded(levels(WIDTH, HEIGHT, seed=99))), ("labels", as_map(np.zeros((HEIGHT, WIDTH))))):
        shutil.rmtree(root / folder / name, ignore_errors=True)
        for t in range(frames):
            write(root / folder / name / f"{t}.png", data)


def of_clips(found: Examination) -> dict[str, list[str]]:
    """What is said of the lengths of clips."""
    return {finding.fault.name: list(finding.general) for finding in found.findings if finding.fault.name in LENGTHS}


LENGTHS = ("short", "longest", "outgrown")


def lengths(first: int, most: int, **changes: object) -> dict[str, object]:
    return {"length": ClipLength(first=first, most=most, double_every=1), **changes}


FRAMES_OF: dict[str, tuple[dict[str, int], dict[str, object], dict[str, list[str]]]] = {
    "as many as needed": ({}, lengths(3, 3), {}),
    "one too few": ({"b": 2}, lengths(3, 3), {"short": ["images/b: 2 frames, fewer than the 3 of data.length.first"]}),
    "a single frame": ({"b": 1}, lengths(2, 3), {"short": ["images/b: 1 frame, fewer than the 2 of data.length.first"]}),
    "enough with references": ({}, lengths(2, 2, references=1), {}),
    "too few with references": (
        {"b": 4},
        lengths(2, 2, references=2),
        {"short": ["images/a: 3 frames, fewer than the 2 of data.length.first and the 2 of data.references"]},
    ),
    "none has the most": ({"b": 4}, lengths(3, 5), {"longest": ["images/b: 4 frames, fewer than the 5 of data.length.most"]}),
    "none has the most with references": (
        {"b": 4},
        lengths(2, 4, references=1),
        {"longest": ["images/b: 4 frames, fewer than the 4 of data.length.most and the 1 of data.references"]},
    ),
    "some have the most": ({"b": 5, "c": 4}, lengths(3, 5), {
        "outgrown": [
            "images/a: 3 frames, fewer than the 5 of data.length.most",
            "images/c: 4 frames, fewer than the 5 of data.length.most",
        ],
    }),
    "some have the most with references": ({"b": 5, "c": 4}, lengths(2, 4, references=1), {
        "outgrown": [
            "images/a: 3 frames, fewer than the 4 of data.length.most and the 1 of data.references",
            "images/c: 4 frames, fewer than the 4 of data.length.most and the 1 of data.references",
        ],
    }),
    "short and none has the most": ({"b": 2}, lengths(3, 4), {
        "short": ["images/b: 2 frames, fewer than the 3 of data.length.first"],
        "longest": ["images/a: 3 frames, fewer than the 4 of data.length.most"],
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMES_OF)
def test_clips_of_too_few_frames_are_found(root: Path, name: str) -> None:
    clips, changes, wanted = FRAMES_OF[name]
    for clip, frames in clips.items():
        write_clip(root, clip, frames)
    config = settings(root, **changes)
    found = examine(config, workers=0, page=root / "page.html")
    assert of_clips(found) == wanted
    said_of = [line for fault in ("short", "longest") for line in wanted.get(fault, ())]
    stopped = refusal(config)
    assert found.fit == (not said_of) == (not stopped)
    assert not said_of or said_of[0].partition(", ")[-1] in stopped, "the same numbers"
    assert "short" not in wanted or str(root / said_of[0].partition(":")[0]) in stopped, "of the same clip"
    document, page = json.dumps(found.document()), (root / "page.html").read_text()
    assert all(line in document and line in page for lines in wanted.values() for line in lines)


def test_held_out_clips_need_the_first_number_alone(root: Path) -> None:
    for folder in ("images", "labels"):
        for side, clip in (("train", "a"), ("val", "b")):
            (root / side / folder).mkdir(parents=True, exist_ok=True)
            (root / folder / clip).rename(root / side / folder / clip)
        (root / folder).rmdir()
    write_clip(root / "train", "a", 4)
    config = settings(root, **lengths(3, 4))
    assert of_clips(examine(config, workers=0)) == {} and not refusal(config)
    write_clip(root / "val", "b", 2)
    found = examine(config, workers=0)
    assert of_clips(found) == {"short": ["val/images/b: 2 frames, fewer than the 3 of data.length.first"]}
    assert not found.fit and f"{root / 'val/images/b'}: a clip of 2 frames" in refusal(config)


@pytest.mark.parametrize("long", ["a", "b"])
def test_the_longest_clip_may_be_held_out(root: Path, long: str) -> None:
    write_clip(root, long, 4)
    config = settings(root, **lengths(3, 4, validation_fraction=0.5))
    found = examine(config, workers=0)
    others = {found.side(k) for k in range(len(found.rows)) if f"/{long}/" in found.key(k)}
    assert of_clips(found).keys() == ({"longest"} if others == {"held out"} else set())
    assert found.fit == (not refusal(config)) == (others == {"training"})


def test_a_clip_that_is_held_out_alone(root: Path) -> None:
    for folder in ("images", "labels"):
        shutil.rmtree(root / folder / "b")
    found = examine(settings(root, validation_fraction=0.9999999), workers=0)
    assert of_clips(found) == {"longest": ["images: the only clip is held out (data.validation_fraction)"]} and not found.fit


def test_frames_that_lack_a_partner_count(root: Path) -> None:
    (root / "labels/b/1.png").unlink()
    write(root / "images/a_mean.png", encoded(levels(WIDTH, HEIGHT)))
    write(root / "images/strays/0.png", encoded(levels(WIDTH, HEIGHT)))
    assert named(examine(settings(root), workers=0)) == {"partner": ["images/a_mean.png", "images/b/1.png", "images/strays/0.png"]}


def test_a_list_says_how_many_frames_a_clip_has(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("databases")
    for folder in ("images", "labels"):
        write_database(place / folder, root / folder)
    (place / "all_filenames.json").write_text(json.dumps({"a___000___": ["0", "1"], "b": ["0", "1", "2"]}))
    config = settings(place)
    found = examine(config, workers=0)
    assert of_clips(found) == {"short": ["images/a___000___: 2 frames, fewer than the 3 of data.length.first"]}
    assert "images/a___000___: a clip of 2 frames" in refusal(config)


def test_what_a_list_names_is_held_out_as_in_a_training(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """By sequences, several of which may be of one folder. What it does not name, here b/2, is not read."""
    place = tmp_path_factory.mktemp("databases")
    (root / "labels/b/2.png").unlink()
    for folder in ("images", "labels"):
        write_database(place / folder, root / folder)
    parts = {f"a___{t:03d}___": [str(t)] for t in range(FRAMES)} | {"b": ["0", "1"]}
    (place / "all_filenames.json").write_text(json.dumps(parts))
    config = settings(place, **lengths(1, 1, validation_fraction=0.5))
    data, found = config.open(), examine(config, workers=0)
    sides = {found.key(k): found.side(k) for k in range(len(found.rows))}
    assert data.validation is not None
    for images, side in ((data.train, "training"), (data.validation, "held out")):
        assert {key for key in sides if key.startswith("images") and sides[key] == side} == set(map(images.source_key, range(len(images))))
    assert found.fit and {key for key in sides if sides[key] == "unused"} == {"images/b/2"}
    of_a = [sides[f"images/a/{t}"] for t in range(FRAMES)]
    assert len(set(of_a)) == 2, "the folder itself is on no side"


def test_a_frame_that_no_list_names_is_not_read(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("databases")
    (root / "images/b/2.png").write_bytes(b"no image")
    (root / "labels/b/2.png").write_bytes(b"")
    for folder in ("images", "labels"):
        write_database(place / folder, root / folder)
    (place / "all_filenames.json").write_text(json.dumps({"a": ["0", "1", "2"], "b": ["0", "1"]}))
    config = settings(place, **lengths(1, 1))
    assert config.open().train.batch(np.arange(2)).images.shape[0] == 2
    found = examine(config, workers=0)
    assert found.fit and [(finding.fault.name, [found.key(k) for k in finding.items]) for finding in found.findings] == [
        ("unused", ["images/b/2", "labels/b/2"])
    ]
    (place / "all_filenames.json").write_text(json.dumps({"a": ["0", "1", "2"], "b": ["0", "1", "2"]}))
    found = examine(config, workers=0)
    assert named(found) == {"unreadable": ["images/b/2"], "empty": ["labels/b/2"]}


def test_a_frame_that_two_sequences_name_is_warned_of(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """By a training and by the doctor; it is on the side of training where either is."""
    place = tmp_path_factory.mktemp("databases")
    for folder in ("images", "labels"):
        write_database(place / folder, root / folder)
    parts = {f"a___{k:03d}___": ["0", str(k)] for k in (1, 2)} | {"b": ["0", "1", "2"]}
    (place / "all_filenames.json").write_text(json.dumps(parts))
    said = f"warning: {place / 'all_filenames.json'}: 1 frame is in several sequences (a/0 in a___001___ and a___002___): "
    for fraction in (0.0, 0.5):
        config = settings(place, **lengths(1, 1, validation_fraction=fraction))
        data, found = config.open(), examine(config, workers=0)
        assert [note for note in data.notes if note.startswith(said)] == [note for note in found.notes if note.startswith(said)] != []
        sides = {found.key(k): found.side(k) for k in range(len(found.rows))}
        learned = set(map(data.train.source_key, range(len(data.train))))
        assert learned == {key for key in sides if key.startswith("images") and sides[key] == "training"}
    assert data.validation is not None and "images/a/0" in learned & set(map(data.validation.source_key, range(len(data.validation))))
    (place / "all_filenames.json").write_text(json.dumps({"a": ["0", "1"], "b": ["0", "1", "2"]}))
    assert not any("several" in note for note in config.open().notes)


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
    longer = replace(config, length=ClipLength(first=FRAMES, most=FRAMES + 1))
    assert named(examine(longer, workers=0, out=root.parent / "found.json")).keys() == {"damaged", "longest"}


def test_files_beside_frames_are_on_the_side_of_their_clip(root: Path) -> None:
    found = examine(settings(root, **SCENES, validation_fraction=0.5), workers=0)
    sides = {clip: {found.side(k) for k in range(len(found.rows)) if f"/{clip}/" in found.key(k)} for clip in "ab"}
    assert sorted(map(sorted, sides.values())) == [["held out"], ["training"]]


def test_what_is_cut_out_may_be_small(root: Path) -> None:
    config = replace(settings(root, **FACES, width=None), image_size=4 * HEIGHT)
    assert examine(config, workers=0).fit and not refusal(config)
    assert "small" in named(examine(settings(root, image_size=4 * HEIGHT, width=4 * WIDTH), workers=0))


LENGTH = ["--length.first", str(FRAMES), "--length.most", str(FRAMES)]


def test_the_command_looks_at_clips(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (
        ["--maps", "labels", "--num-classes", "2", "--points", "points", "--flow", "flow"],
        ["--limbs", "limbs", "--densepose", "dense"],
        ["--maps", "labels", "--num-classes", "2", "--landmarks", "faces"],
        ["--maps", "labels", "--num-classes", "2", "--clips"],
    ):
        assert main(["data", "doctor", str(root), "--workers", "0", *LENGTH, *options]) == 0, options
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


def test_the_command_is_told_how_many_frames_a_training_takes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Length().to_dict().items() <= ClipLength().to_dict().items(), "the defaults of a training"
    command = ["data", "doctor", str(root), "--workers", "0", "--clips", "--maps", "labels", "--num-classes", "2"]
    for options, lines in (
        ([], (
            "          2  clips of fewer frames than a training begins with: add frames, lower --length.first, or remove it",
            "             images/a: 3 frames, fewer than the 4 of data.length.first",
            "          1  no clip to train on has the most frames of a training: give longer clips, or lower --length.most",
        )),
        ([*LENGTH, "--references", "1"], (
            "             images/b: 3 frames, fewer than the 3 of data.length.first and the 1 of data.references",
        )),
    ):  # fmt: skip
        assert main([*command, *options]) == 1
        shown = capsys.readouterr().out.splitlines()
        assert set(lines) <= set(shown) and shown.index("would stop a training:") < shown.index(lines[0])
    write_clip(root, "b", 4)
    assert main([*command, "--validation-fraction", "0", "--length.first", "3", "--length.most", "4"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown.index("worth a look:") < shown.index("             images/a: 3 frames, fewer than the 4 of data.length.most")
    for options, line in (
        (["--length.most", "3"], "--length.most: got 3, expected at least `first`"),
        (["--references", "65"], "--references: got 65, expected 0 to 64"),
    ):
        assert main([*command, *options]) == 2
        assert line in capsys.readouterr().err
    for options, line in (
        (LENGTH, "--length: got one, expected none unless --clips says that these are frames of clips"),
        (["--references", "1"], "--references: got 1, expected 0 unless --clips says that these are frames of clips"),
    ):
        assert main(["data", "doctor", str(root), *options]) == 2
        assert line in capsys.readouterr().err
