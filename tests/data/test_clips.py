"""Clips: which frames a sample has, cut and mirrored alike, with their maps and true flow; and what is refused."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.databases import write_database
from tests.data.pairs import as_map, assert_same, taken, write
from tests.data.pictures import encoded
from triptych.core.batch import ClipLength, InputSpec
from triptych.core.errors import ConfigError, DataError
from triptych.data.clip_files import clips_of
from triptych.data.clips import ClipDataConfig, ClipImages
from triptych.data.frame_files import flow_of
from triptych.data.loader import Loader, load
from triptych.data.subjects import HELD_OUT, TRAIN, open_subjects

HEIGHT, WIDTH = 8, 12
LENGTH = ClipLength(first=2, most=5, double_every=7)


def frame(clip: int, t: int, *, size: tuple[int, int] = (WIDTH, HEIGHT)) -> np.ndarray:
    """A frame (h, w, 3) that says which it is, and where its pixels are."""
    pixels = np.zeros((size[1], size[0], 3), dtype=np.uint8)
    pixels[..., 0], pixels[..., 1], pixels[..., 2] = 40 * clip + 4 * t, np.arange(size[0]) * 9, np.arange(size[1])[:, None] * 9
    return pixels


def write_clips(root: Path, lengths: tuple[int, ...] = (9, 6, 3), *, flow: bool = False) -> Path:
    for clip, length in enumerate(lengths):
        for t in range(length):
            pixels = frame(clip, t)
            write(root / "images" / f"c{clip}" / f"{t + 3}.png", encoded(pixels))
            write(root / "labels" / f"c{clip}" / f"{t + 3}.png", as_map(pixels[..., 1] // 9))
            if flow:
                place = root / "flow" / f"c{clip}"
                place.mkdir(parents=True, exist_ok=True)
                values = np.stack([np.full((HEIGHT, WIDTH), t + 0.5), np.tile(np.arange(float(WIDTH)), (HEIGHT, 1))], axis=-1)
                values[0, 0] = np.nan
                np.save(place / f"{t + 3}.npy", values)
    return root


def settings(root: Path, **changes: object) -> ClipDataConfig:
    plain = {"maps": ("labels",), "num_classes": (12,), "image_size": HEIGHT, "width": WIDTH, "validation_fraction": 0.0, "length": LENGTH}
    return ClipDataConfig(path=str(root), **(plain | changes))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clips(tmp_path_factory.mktemp("clips"), flow=True)


def test_clips_by_folder_or_name_in_the_order_of_their_numbers() -> None:
    assert clips_of(["b/9", "b/10", "a/1", "b/sub/1"]) == {"a": [2], "b": [0, 1], "b/sub": [3]}
    assert clips_of(["run_2_10", "run_2_9", "run_10_1"]) == {"run_2": [1, 0], "run_10": [2]}
    assert clips_of(["3", "20", "100"]) == {"": [0, 1, 2]}


def test_a_folder_and_names_that_would_be_one_clip() -> None:
    with pytest.raises(DataError, match=r"drive/1 and drive_0002 would be frames of one clip, drive; rename"):
        clips_of(["drive/1", "drive/2", "drive_0002"])


def test_the_length_of_a_clip() -> None:
    for length in (LENGTH, ClipLength(first=3, most=16, double_every=10, alone=5), ClipLength(first=4, most=4, alone=5), ClipLength()):
        place = length.longest_from
        assert length.at(place) == length.at(10**15) and (place == 0 or length.at(place - 1) < length.at(place))
    assert [LENGTH.at(seen) for seen in (0, 6, 7, 13, 14, 10**15)] == [2, 2, 4, 4, 5, 5]
    assert ClipLength(first=3, most=9).at(10**9) == 3
    alone = replace(LENGTH, alone=3)
    assert [alone.at(seen) for seen in (0, 2, 3, 9, 10, 17)] == [1, 1, 2, 2, 4, 5]
    with pytest.raises(ConfigError, match="alone: got -1, expected 0 or more"):
        ClipLength(alone=-1)
    with pytest.raises(ConfigError, match="most: got 3, expected at least `first`"):
        ClipLength(first=4, most=3)


def test_held_out_windows_are_all_frames_in_order(root: Path) -> None:
    data = settings(root).open()
    assert data.spec.frames == 5 and data.spec.clip_length == LENGTH
    assert data.spec.inputs == (InputSpec(name="labels", kind="classes", num_classes=12, frames=5),)
    assert len(data.train) == 4 + 3 + 1, "windows of two frames"
    batch = load(data.train, np.arange(8))
    assert batch.images.shape == (8, 2, HEIGHT, WIDTH, 3) and batch.inputs["labels"].shape == (8, 2, HEIGHT, WIDTH)
    found = batch.images[..., 0, 0, 0].tolist()
    assert found == [[40 * c + 4 * t, 40 * c + 4 * t + 4] for c, length in enumerate((9, 6, 3)) for t in range(0, length - 1, 2)]
    assert torch.equal(batch.inputs["labels"], batch.images[..., 1].long() // 9)
    sent = batch.to("cpu")
    assert sent.images.shape == (8, 2, 3, HEIGHT, WIDTH) and sent.inputs["labels"].dtype == torch.int64


def test_training_clips_grow_and_their_frames_follow_one_another(root: Path) -> None:
    images = settings(root, flip=False).open().train
    assert isinstance(images, ClipImages)
    starts: dict[int, set[tuple[int, int]]] = {}
    for position in range(60):
        number, places = placed(images, images.frames(position % 8, position, seed=3))
        assert len(places) == LENGTH.at(position) and places == list(range(places[0], places[0] + len(places)))
        starts.setdefault(len(places), set()).add((number, places[0]))
    assert all(len(found) > 3 for found in starts.values()), "clips start anywhere"
    steps = settings(root, most_step=3).open().train
    found = {int(step) for position in range(40) for step in np.diff(placed(steps, steps.frames(0, position, seed=3))[1])}
    assert found == {1, 2, 3}


def test_every_start_is_as_likely_as_another(tmp_path: Path) -> None:
    images = settings(write_clips(tmp_path, (30,)), length=ClipLength(first=4, most=16, double_every=700)).open().train
    assert isinstance(images, ClipImages)
    windows = len(images)
    for first, length in ((700, 8), (1400, 16)):
        starts = [placed(images, images.frames(position % windows, position, seed=3))[1][0] for position in range(first, first + 700)]
        counts = np.bincount(starts, minlength=31 - length)
        assert len(counts) == 31 - length and counts.min() > 0.4 * counts.mean() and counts.max() < 1.8 * counts.mean()
    short = [placed(images, images.frames(6, position, seed=3))[1][0] for position in range(200)]
    assert set(short) == {24, 25, 26} and max(np.bincount(short)) < 100, "of the last window, those that fit"


def placed(images: ClipImages, frames: np.ndarray) -> tuple[int, list[int]]:
    """The clip that frames are of, and their places in it."""
    (number,) = (number for number, clip in enumerate(images.clips) if set(frames) <= set(clip))
    return number, [images.clips[number].tolist().index(one) for one in frames]


def test_batches_are_the_same_in_processes_workers_and_after_a_start_in_the_middle(root: Path) -> None:
    images = settings(root, crop="random", scale=0.3, enlarge=True, jitter=0.2).open().train
    batches = [taken(images, start=4 * k, count=1) for k in range(4)]
    assert [batch.images.shape[1] for batch in batches] == [2, 4, 4, 5], "the second and the last one grow on their way"
    for k, batch in enumerate(batches):
        length = LENGTH.at(4 * k)  # what a training uses of it
        parts = [taken(images, start=4 * k, count=1, rank=rank, world_size=2, workers=int(k == 1)) for rank in (0, 1)]
        together = torch.cat([part.images[:, :length] for part in parts])
        assert torch.equal(together, batch.images[:, :length])
        assert torch.equal(torch.cat([part.inputs["labels"][:, :length] for part in parts]), batch.inputs["labels"][:, :length])
    assert_same(taken(images, start=4, count=2, workers=1), taken(images, start=4, count=2))


def test_all_frames_and_maps_of_a_clip_are_cut_and_mirrored_alike(root: Path) -> None:
    images = settings(root, image_size=4, width=6, resize=5, crop="random", scale=0.5, flow="flow", maps=("labels",)).open().train
    batch = taken(images, start=14, count=3)
    across = batch.images[..., 1].float() / 9
    assert ((across - batch.inputs["labels"]).abs() < 1.6).all()
    lines = across.mean(2)  # (b, t, w): a pixel's column in its file, by the column that it has now
    assert torch.equal(lines[:, :1].expand_as(lines), lines)
    mirrored = lines[:, 0, 0] > lines[:, 0, -1]
    assert 0 < mirrored.sum() < len(mirrored)
    flow = batch.inputs["flow"]
    known = flow.isfinite().all(2)
    for k, clip in enumerate(flow):
        t = (batch.images[k, :, 0, 0, 0] % 40) // 4
        for f in range(2, 4):
            values = clip[f, :, known[k, f]]
            assert (values[0].sign() == (-1 if mirrored[k] else 1)).all()
            scale = float(values[0, 0].abs()) / (float(t[f]) + 0.5)  # of the width
            assert any(abs(scale - size / WIDTH) < 0.09 for size in range(7, 14))
            rows = clip[f, 1][known[k, f]] / scale
            assert (rows - batch.inputs["labels"][k, f][known[k, f]]).abs().max() < 1.6, "y is there where its pixel is"


def test_references_are_other_frames_of_the_same_clip(tmp_path: Path) -> None:
    images = (
        settings(
            write_clips(tmp_path, (9, 6, 4)), references=2, most_step=3, flip=False, length=ClipLength(first=2, most=4, double_every=7)
        )
        .open()
        .train
    )
    assert isinstance(images, ClipImages)
    drawn: set[tuple[int, ...]] = set()
    for position in range(80):
        number, places = placed(images, images.frames(position % 9, position, seed=3))
        of, beside = placed(images, images.references(position % 9, position, seed=3))
        assert of == number and len(beside) == 2 and beside == sorted(set(beside))
        assert all(place < places[0] or place > places[-1] for place in beside)
        drawn.add(tuple(beside))
    assert len(drawn) > 12, "any of them"
    every = {place for beside in drawn for place in beside}
    assert every == set(range(9))


def test_steps_leave_room_for_references(tmp_path: Path) -> None:
    given = {"references": 2, "most_step": 3, "flip": False, "length": ClipLength(first=2, most=2)}
    images = settings(write_clips(tmp_path, (5, 5)), **given).open().train
    assert isinstance(images, ClipImages)
    samples = [(images.frames(position % 4, position, seed=3), images.references(position % 4, position, seed=3)) for position in range(60)]
    assert {int(np.diff(frames)[0]) for frames, _ in samples} == {1, 2} and {len(beside) for _, beside in samples} == {2}


def test_references_of_held_out_windows_are_spread_over_their_clip(root: Path) -> None:
    data = settings(root, references=1, length=ClipLength(first=2, most=2)).open()
    reference = InputSpec(name="style", kind="image", channels=3, references=1)
    maps = InputSpec(name="labels_of_style", kind="classes", num_classes=12, references=1)
    assert data.spec.inputs[1:] == (reference, maps)
    images = data.train
    assert isinstance(images, ClipImages)
    assert [placed(images, images.references(item, None, seed=0))[1] for item in range(4)] == [[2], [0], [0], [0]]
    with pytest.raises(
        DataError, match="a clip of 3 frames, fewer than the 2 of data.length.first and the 2 of data.references; add frames"
    ):
        settings(root, references=2).open()
    longest = ClipLength(first=1, most=8)
    with pytest.raises(DataError, match="the longest clip has 9 frames, fewer than the 8 of data.length.most and the 2 of data.references"):
        settings(root, references=2, length=longest).open()


def test_references_are_cut_mirrored_and_coloured_as_their_clip(root: Path) -> None:
    images = (
        settings(
            root, image_size=4, width=6, resize=5, crop="random", scale=0.5, references=1, length=ClipLength(first=2, most=2), jitter=0.3
        )
        .open()
        .train
    )
    batch = taken(images, start=0, count=3)
    assert batch.inputs["style"].shape[1:] == (1, 4, 6, 3) and batch.inputs["labels_of_style"].shape[1:] == (1, 4, 6)
    assert torch.equal(batch.inputs["labels_of_style"], batch.inputs["labels"][:, :1]), "all frames have one map"
    assert torch.equal(batch.inputs["style"][..., 1:], batch.images[:, :1, ..., 1:]), "but for red, which tells the frame"
    mirrored = batch.inputs["labels_of_style"][:, 0, 0, 0] > batch.inputs["labels_of_style"][:, 0, 0, -1]
    assert 0 < mirrored.sum() < len(mirrored)


def test_true_flow_of_a_file(root: Path) -> None:
    data = settings(root, flow="flow").open()
    assert data.spec.inputs[1] == InputSpec(name="flow", kind="flow", frames=5)
    flow = load(data.train, np.arange(2)).to("cpu").inputs["flow"]
    assert flow.dtype == torch.float32 and flow.shape == (2, 2, 2, HEIGHT, WIDTH)
    assert flow[0, 0].isnan().all(), "the first frame of a clip has none before it"
    assert flow[1, 0, :, 0, 0].isnan().all() and flow[1, 1, 0].nanmean() == 3.5
    assert torch.equal(flow[1, 1, 1, 3], torch.arange(12.0))


def zipped() -> bytes:
    """Flow that numpy.savez wrote."""
    file = io.BytesIO()
    np.savez(file, flow=np.zeros((HEIGHT, WIDTH, 2), dtype=np.float32))
    return file.getvalue()


def header(shape: str) -> bytes:
    """What an .npy begins with."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "data", [zipped(), header("(((("), header(f"({10**9}, {10**9}, 2)"), header("(8, 12, 2)")], ids=["npz", "open", "large", "short"]
)
def test_flow_that_is_no_array(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^cannot be read as an array of NumPy \(.*\); write it by numpy.save$"):
        flow_of(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "labels/c1/5.png").unlink(), r"images/c1/5.png: .*labels has no file c1/5\.\* to go with it"),
        (lambda root: [(root / name / "c2/4.png").unlink() for name in ("images", "labels")], None),
        (
            lambda root: [(root / name / f"c2/{t}.png").unlink() for name in ("images", "labels") for t in (3, 4)],
            r"images/c2: a clip of 1 frame, fewer than the 2 of data.length.first; add frames, lower that, or remove the clip",
        ),
        (
            lambda root: [write(root / name / "c0/11.png", data) for name, data in other_size()],
            r"c0/11.png: 16x10 pixels, but .*images/c0/3.png of the same clip has 12x8; make the frames of a clip one size",
        ),
        (lambda root: write(root / "labels/c0/3.png", as_map(frame(0, 0, size=(16, 10))[..., 1])), r"16x10 pixels, but .* has 12x8"),
        (lambda root: (root / "flow/c0/7.npy").unlink(), r"flow: has no file c0/7.npy; add it, or leave data.flow out"),
        (
            lambda root: np.save(root / "flow/c0/4.npy", np.zeros((2, 8, 12))),
            r"flow/c0/4.npy: float64 of shape \(2, 8, 12\), expected floats",
        ),
        (
            lambda root: np.save(root / "flow/c0/4.npy", np.full((HEIGHT, WIDTH, 2), 1e30, np.float32)),
            r"flow/c0/4.npy: has moves of more than 10,000 pixels; give nan where the flow is not known",
        ),
        (lambda root: write(root / "flow/c0/4.npy", b"no array"), r"flow/c0/4.npy: cannot be read as an array of NumPy"),
        (lambda root: write(root / "flow/c0/4.npy", zipped()), r"flow/c0/4.npy: cannot be read as an array of NumPy"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(tmp_path: Path, change, message: str | None) -> None:
    write_clips(tmp_path, (9, 3, 3), flow=True)
    change(tmp_path)
    if message is None:
        assert len(settings(tmp_path).open().train) == 6
        return
    with pytest.raises(DataError, match=message) as error:
        settings(tmp_path, flow="flow").open()
    assert "\n" not in str(error.value)


def other_size() -> list[tuple[str, bytes]]:
    pixels = frame(0, 8, size=(16, 10))
    return [("images", encoded(pixels)), ("labels", as_map(pixels[..., 1] // 18))]


def test_the_only_clip_cannot_be_held_out(tmp_path: Path) -> None:
    config = settings(write_clips(tmp_path, (9,)), validation_fraction=0.9999999)
    said = "images: the only clip is held out, so that none is left to train on; give more clips, or set data.validation_fraction to 0"
    with pytest.raises(DataError, match=re.escape(said)):
        config.open()


def test_settings_that_do_not_fit(root: Path) -> None:
    with pytest.raises(DataError, match=r"the longest clip has 9 frames, fewer than the 16 of data.length.most; lower that"):
        settings(root, length=ClipLength(first=2, most=16)).open()
    with pytest.raises(DataError, match=r'holds no folder flows \(data.flow\); did you mean "flow"'):
        settings(root, flow="flows").open()
    for changes, message in (
        ({"flow": "flow", "most_step": 2}, "most_step: got 2, expected 1 with data.flow"),
        ({"flow": "flow", "references": 1}, "references: got 1, expected 0 with data.points or data.flow"),
        ({"references": 65}, "references: got 65, expected 0 to 64"),
        ({"flow": "labels"}, "flow: got 'labels', expected the name of a folder of its own"),
        ({"on_error": "skip"}, "on_error: got 'skip', expected stop: a frame cannot be left out"),
    ):
        with pytest.raises(ConfigError, match=message):
            settings(root, **changes)


def test_a_frame_that_cannot_be_read_is_not_to_be_skipped(tmp_path: Path) -> None:
    """Other images have data.on_error skip for that, which clips refuse."""
    root = write_clips(tmp_path)
    opened = settings(root).open().train
    for path in (root / "images").rglob("*.png"):
        path.write_bytes(b"")
    for look in (lambda: settings(root).open(), lambda: next(Loader(opened, batch_size=1, seed=0, workers=0).batches(0))):
        with pytest.raises(DataError, match=r"images/.*an empty file; repair or remove the file$"):
            look()


def test_a_list_beside_databases_says_which_frames_follow_one_another(tmp_path: Path) -> None:
    """As imaginaire writes it: parts of a recording have an ending that their keys lack."""
    files = write_clips(tmp_path / "files", (6, 3))
    for name in ("images", "labels"):
        write_database(tmp_path / name, files / name)
    (tmp_path / "all_filenames.json").unlink()
    assert [len(clip) for clip in clips_found(tmp_path)] == [6, 3], "by the folders in their keys"
    listed = {"c0___000___": ["3", "4"], "c0___001___": ["8", "6", "7"], "c1": ["3", "5"]}
    (tmp_path / "all_filenames.json").write_text(json.dumps(listed))
    images = settings(tmp_path, length=ClipLength(first=2, most=3)).open().train
    assert isinstance(images, ClipImages)
    assert [len(clip) for clip in images.clips] == [2, 3, 2]
    shown = load(images, np.arange(len(images))).images[:, :, 0, 0, 0].tolist()
    assert shown == [[0, 4], [20, 12], [40, 48]], "in the order of the list"
    for text, message in (
        (json.dumps({"c0": ["3", "9", "10"]}), r"images: has no frame c0/9 \(nor 1 more\), which .*all_filenames.json names"),
        (json.dumps({"c0": ["3", "3"]}), r"all_filenames.json: expected the stems of each sequence, in order and each once"),
        ("[", r"all_filenames.json: cannot be read as JSON"),
    ):
        (tmp_path / "all_filenames.json").write_text(text)
        with pytest.raises(DataError, match=message):
            settings(tmp_path).open()


def clips_found(root: Path) -> list[np.ndarray]:
    images = settings(root, length=ClipLength(first=2, most=3)).open().train
    assert isinstance(images, ClipImages)
    return images.clips


def test_held_out_clips_are_whole(tmp_path: Path) -> None:
    write_clips(tmp_path, (6, 6, 6, 6))
    data = settings(tmp_path, validation_fraction=0.4).open()
    assert data.validation is not None
    sides = [{Path(images.key(item)).parent.name for item in range(len(images))} for images in (data.train, data.validation)]
    assert not sides[0] & sides[1] and len(sides[0] | sides[1]) == 4
    subjects = open_subjects(settings(tmp_path, validation_fraction=0.4))
    looked_at = [{subjects.key(item).split("/")[1] for item in np.flatnonzero(subjects.sides == side)} for side in (TRAIN, HELD_OUT)]
    assert looked_at == sides
    for name in ("images", "labels"):
        (tmp_path / "train").mkdir(exist_ok=True)
        (tmp_path / name).rename(tmp_path / "train" / name)
    write_clips(tmp_path / "val", (4,))
    split = replace(settings(tmp_path), validation_fraction=0.1).open()
    assert (len(split.train), len(split.validation or [])) == (12, 2)
    assert settings(tmp_path).open().validation is None, "nothing is held out with a fraction of 0"
