"""Few-shot vid2vid on faces and people cut out of clips: training, and clips and style images that are cut as training saw them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.faces import CLASSES, classes, corner, frame, lines, write_faces
from tests.data.pairs import as_map, write
from tests.data.pictures import encoded
from tests.data.test_cut_out import body, write_people
from tests.runs.translators import opened
from triptych.cli.main import main
from triptych.core.batch import ClipLength
from triptych.core.errors import ConfigError, DataError
from triptych.data.clips import ClipDataConfig
from triptych.engine.checkpoint import checkpoint_path, load_checkpoint
from triptych.engine.config import OptimConfig, TrainConfig
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.fs_vid2vid import FewShotVid2VidConfig
from triptych.gans.init import InitConfig
from triptych.gans.video_discriminators import VideoDiscriminatorConfig
from triptych.recipes.config import RunConfig
from triptych.runs import Run, open_run, train

SIDE, EXTENT = 16, 8
CPU = {"device": "cpu"}
LENGTHS = {0: 4, 1: 4, 2: 4}


def config(data: Path, **given: Any) -> RunConfig:
    patch = PatchDiscriminatorConfig(num_discriminators=1, num_filters=4, num_layers=1)
    model = replace(
        FewShotVid2VidConfig(perceptual_weight=0.0, l1_weight=10.0, initial=InitConfig(kind="orthogonal", gain=1.0)).shrunk(),
        discriminator=VideoDiscriminatorConfig(patch=patch),
    )
    plain: dict[str, Any] = {"image_size": SIDE, "length": ClipLength(first=2, most=2), "references": 1, "flip": False, "workers": 0}
    return RunConfig(
        model=model,
        data=ClipDataConfig(path=str(data), validation_fraction=0.4, **(plain | given)),
        train=TrainConfig(total_images=1, batch_size=1, sample_count=2, ema_rates=(), compile="off", validate_images=1),
        optim=OptimConfig(name="adam", learning_rate=2e-3, betas=(0.0, 0.999)),
    )


FACES = {
    "maps": ("labels",),
    "num_classes": (CLASSES,),
    "conditions": ("lines",),
    "cut_out": "face",
    "landmarks": "landmarks",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cut-outs")


@pytest.fixture(scope="module")
def run(root: Path) -> Run:
    """One that has seen two frames of a face, cut out of a clip."""
    return train(config(write_faces(root / "clips", LENGTHS, extent=EXTENT), **FACES), root / "run", **CPU)


def without_cutting(run: Run, out: Path) -> Run:
    """The same weights, of a run whose data are said to be as they are."""
    shutil.copytree(run.directory, out)
    path = out / "config.json"
    stored = json.loads(path.read_text())
    assert stored["data"].pop("cut_out") != "none"
    stored["data"].pop("landmarks", None)
    path.write_text(json.dumps(stored))
    return open_run(out)


def face_window(clip: int, t: int) -> tuple[slice, slice]:
    """Rows and columns: twice as wide as the face and as high as wide, 5/8 of it above the middle of the points."""
    left, top = corner(clip, t)
    middle = top + EXTENT / 3
    first = round(middle - 1.25 * EXTENT)
    return slice(first, first + 2 * EXTENT), slice(left - EXTENT // 2, left - EXTENT // 2 + 2 * EXTENT)


def write_cut(folder: Path, clip: int, t: int, window: tuple[slice, slice], *, name: str, images: bool = False) -> None:
    write(folder / "lines" / f"{name}.png", encoded(lines(clip, t)[window]))
    write(folder / "labels" / f"{name}.png", as_map(classes(clip, t)[window]))
    if images:
        write(folder / "images" / f"{name}.png", encoded(frame(clip, t)[window]))


@pytest.mark.slow
def test_clips_and_styles_are_cut_as_in_training(run: Run, tmp_path: Path) -> None:
    whole, style = write_faces(tmp_path / "in", {0: 3, 1: 2}, extent=EXTENT), write_faces(tmp_path / "style", {4: 2}, extent=EXTENT)
    shutil.rmtree(whole / "images")
    for clip, length in ((0, 3), (1, 2)):
        for t in range(length):
            write_cut(tmp_path / "cut", clip, t, face_window(clip, 0), name=f"c{clip}/{t}")
    for t in range(2):
        write_cut(tmp_path / "cut-style", 4, t, face_window(4, t), name=f"c4/{t}", images=True)
    assert face_window(4, 0) != face_window(4, 1) and face_window(0, 0) != face_window(0, 1)
    out, plain = tmp_path / "out", without_cutting(run, tmp_path / "run")
    given = [str(run.directory), str(whole), "--style", str(style), "--device", "cpu"]
    assert main(["translate", *given, "--out", str(out)]) == 0
    plain.translate(tmp_path / "cut", style=tmp_path / "cut-style", out=tmp_path / "expected", **CPU)
    for clip, length in ((0, 3), (1, 2)):
        for t in range(length):
            made, expected = (opened(folder / f"c{clip}/{t}.png") for folder in (out, tmp_path / "expected"))
            assert made.shape == (SIDE, SIDE, 3) and np.array_equal(made, expected), (clip, t)
    one = run.translate(whole, style=style, style_each=True, **CPU).images
    turned = plain.translate(tmp_path / "cut", style=tmp_path / "cut-style", style_each=True, **CPU).images
    assert all(np.array_equal(found, expected) for found, expected in zip(one, turned, strict=True))
    other = write_faces(tmp_path / "other", {4: 2}, extent=EXTENT - 2)
    assert not np.array_equal(run.translate(whole, style=other, **CPU).images[0], opened(out / "c0/0.png")[None])


@pytest.mark.slow
def test_the_same_seed_trains_the_same_run(run: Run, tmp_path: Path) -> None:
    again = train(run.config, tmp_path / "again", **CPU)
    one, other = (load_checkpoint(checkpoint_path(each.directory / "checkpoints", 1)).hashes for each in (run, again))
    assert one == other


def test_held_out_clips_are_cut_too(run: Run) -> None:
    made = run.translate(None, count=1, **CPU).images[0]
    assert made.shape == (1, SIDE, SIDE, 3)


@pytest.mark.slow
def test_people_are_cut_out_by_their_maps(root: Path, tmp_path: Path) -> None:
    people = {"densepose": "dense", "conditions": ("sketch",), "cut_out": "person", "image_size": 2 * SIDE}
    trained = train(config(write_people(root / "people", (4, 4, 4)), **people), root / "people-run", **CPU)
    whole, style = write_people(tmp_path / "in", (3,)), tmp_path / "style"
    left, top = body(0)
    window = slice(top + 5 - 8, top + 5 + 8), slice(left + 2 - 8, left + 2 + 8)  # half of the 32 rows is more than 1.5 times 10
    for folder in ("images", "dense", "sketch"):
        for t in range(3):
            pixels = opened(whole / folder / f"c0/{t}.png")[window]
            smooth = Image.fromarray(pixels).resize((2 * SIDE, 2 * SIDE), Image.Resampling.BILINEAR)
            found = np.asarray(smooth) if folder == "images" else pixels.repeat(2, 0).repeat(2, 1)
            write(tmp_path / "cut" / folder / f"c0/{t}.png", encoded(found))
        for place, clips in ((style, whole), (tmp_path / "cut-style", tmp_path / "cut")):
            write(place / folder / "0.png", (clips / folder / "c0/0.png").read_bytes())
    made = trained.translate(whole, style=style, **CPU).images
    plain = without_cutting(trained, tmp_path / "run")
    expected = plain.translate(tmp_path / "cut", style=tmp_path / "cut-style", **CPU).images
    assert all(np.array_equal(found, other) for found, other in zip(made, expected, strict=True))


def test_people_are_not_cut_out_of_maps_that_lie_alone(tmp_path: Path) -> None:
    people = write_people(tmp_path / "clips", (4, 4))
    trained = train(config(people, densepose="dense", cut_out="person"), tmp_path / "run", **CPU)
    with pytest.raises(DataError, match="clips/dense: holds no folder dense; this run cuts a person out of frames: name the folder that"):
        trained.translate(people / "dense", style=people, **CPU)
    made = trained.translate(people, style=people, **CPU)
    assert len(made.images) == 8 and made.images[0].shape == (1, SIDE, SIDE, 3)


def arrays() -> dict[str, np.ndarray]:
    return {"lines": lines(0, 0)[None, ..., None], "labels": classes(0, 0)[None]}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"inputs": arrays()}, ConfigError, "inputs: got arrays, but this run cuts faces out of frames; name a folder"),
        ({"size": "own"}, ConfigError, "size: got 'own', but this run cuts faces out of frames, to its own size; leave it out"),
        ({"first": np.zeros((1, SIDE, SIDE, 3), np.uint8)}, ConfigError, "first: got an image, but this run cuts a face out of frames"),
        ({"style": {"style": np.zeros((1, SIDE, SIDE, 3), np.uint8)}}, ConfigError, "style: got arrays, but this run cuts faces"),
        ({"inputs": "clips/labels"}, DataError, "clips/labels: holds no folder labels (which this model makes images of)"),
    ],
)
def test_what_cannot_be_cut_is_said(run: Run, root: Path, monkeypatch, changes: dict, error: type[Exception], message: str) -> None:
    monkeypatch.chdir(root)
    with pytest.raises(error) as found:
        run.translate(**({"inputs": "clips", "style": "clips"} | changes), **CPU)
    assert message in str(found.value)


def test_a_frame_without_landmarks_ends_the_command_with_one_line(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, style = write_faces(tmp_path / "in", {0: 3}, extent=EXTENT), write_faces(tmp_path / "style", {4: 1}, extent=EXTENT)
    (style / "landmarks/c4/0.json").unlink()
    command = ["translate", str(run.directory), str(whole), "--style", str(style), "--device", "cpu", "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert "style/landmarks: has no file c4/0.json; add it, or remove the frame" in capsys.readouterr().err.strip().splitlines()[-1]
    shutil.rmtree(whole / "landmarks")
    assert main(command) == 2
    assert "in: holds no folder landmarks (data.landmarks)" in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (tmp_path / "out").exists()
