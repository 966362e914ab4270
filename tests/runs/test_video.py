"""Run.translate of a model of clips: frames in order, each from the 8 bits of those before it, and on from where it was interrupted."""

from __future__ import annotations

import json
import shutil
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.pairs import as_map, write
from tests.data.pictures import encoded, picture
from tests.data.videos import write_video
from tests.processes import forked
from tests.runs.translators import opened
from triptych.cli.main import main
from triptych.core.batch import ClipLength
from triptych.core.errors import ConfigError, DataError, Stopped
from triptych.data.clips import ClipDataConfig
from triptych.data.videos import Video
from triptych.engine.config import TrainConfig
from triptych.evaluation.pairs import psnr
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.init import InitConfig
from triptych.gans.vid2vid import Vid2Vid, Vid2VidConfig
from triptych.gans.video_discriminators import VideoDiscriminatorConfig
from triptych.recipes.config import RunConfig
from triptych.runs import Run, clip_videos, open_run, train
from triptych.runs.clip_scoring import score_clips
from triptych.runs.clip_videos import VideoSettings
from triptych.runs.clip_videos import write_video as write_frames
from triptych.runs.image_folder import Folder
from triptych.runs.model_images import ImageRequest, maker_of

SIDE, CLASSES = 16, 3
CPU = {"device": "cpu"}


def class_map(clip: str, t: int, *, side: int = SIDE) -> np.ndarray:
    generator = np.random.default_rng([ord(clip), t])
    return generator.integers(CLASSES, size=(4, 4)).repeat(side // 4, 0).repeat(side // 4, 1)


def write_maps(root: Path, clips: dict[str, int], *, images: bool = False) -> Path:
    for clip, length in clips.items():
        for t in range(length):
            write(root / "labels" / clip / f"{t + 8}.png", as_map(class_map(clip, t)))
            if images:
                write(root / "images" / clip / f"{t + 8}.png", encoded(picture(SIDE, SIDE, seed=t)))
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One that has seen a clip of three frames."""
    root = tmp_path_factory.mktemp("video")
    data = write_maps(root / "clips", {"a": 3, "b": 3, "c": 4}, images=True)
    patch = PatchDiscriminatorConfig(num_discriminators=1, num_filters=4, num_layers=1)
    model = replace(
        Vid2VidConfig(perceptual_weight=0.0, initial=InitConfig(kind="orthogonal", gain=1.0)).shrunk(),
        discriminator=VideoDiscriminatorConfig(patch=patch),
    )
    config = RunConfig(
        model=model,
        data=ClipDataConfig(
            path=str(data),
            maps=("labels",),
            num_classes=(CLASSES,),
            image_size=SIDE,
            length=ClipLength(first=3, most=3),
            validation_fraction=0.4,
            workers=0,
        ),
        train=TrainConfig(total_images=1, batch_size=1, sample_count=2, ema_rates=(), compile="off", validate_images=1),
    )
    return train(config, root / "run", **CPU)


def by_hand(run: Run, clip: str, length: int) -> list[np.ndarray]:
    """The frames (h, w, c), each made of the 8 bits of the two before it."""
    model = run.load(**CPU)
    assert isinstance(model, Vid2Vid)
    labels = [model.labels({"labels": torch.from_numpy(class_map(clip, t))[None]}) for t in range(length)]
    made: list[np.ndarray] = []
    for t in range(length):
        past = [(torch.from_numpy(image).permute(2, 0, 1)[None] + 0.5) / 127.5 - 1 for image in made[-2:]]
        given = [torch.stack(part, 1) for part in (labels[max(0, t - 2) : t], past)] if t else []
        with torch.no_grad():
            image = model.generator(labels[t], *given).image[0]
        made.append(((image + 1) * 127.5).clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy())
    return made


def test_the_first_so_many_frames_are_the_beginning_of_a_clip(run: Run, tmp_path: Path) -> None:
    maps = write_maps(tmp_path / "in", {"a": 5, "b": 3}) / "labels"
    made = run.translate(maps, count=3, **CPU)
    assert made.names == ["a/10", "a/8", "a/9"], "in the order of their names"
    for name, image in zip(["a/8", "a/9", "a/10"], by_hand(run, "a", 3), strict=True):
        assert np.abs(made.images[made.names.index(name)][0].astype(int) - image.astype(int)).max() <= 1


@pytest.mark.slow
def test_clips_are_made_frame_by_frame_and_go_on_from_where_they_were(run: Run, tmp_path: Path) -> None:
    maps, out = write_maps(tmp_path / "in", {"a": 5, "b": 3}) / "labels", tmp_path / "out"
    names = [f"{clip}/{t + 8}" for clip, length in (("a", 5), ("b", 3)) for t in range(length)]  # 9, then 10
    expected = {
        name: image
        for clip, length in (("a", 5), ("b", 3))
        for name, image in zip((one for one in names if one.startswith(clip)), by_hand(run, clip, length), strict=True)
    }
    assert np.abs(expected["a/10"].astype(int) - expected["a/9"].astype(int)).max() > 2

    def interrupt(done: float, count: float) -> None:
        assert count == 8
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(Stopped, match="interrupted; what was made is kept, and the same command goes on"):
        run.translate(maps, out=out, progress=interrupt, **CPU)
    assert sorted(path.stem for path in out.glob("a/*.png")) == ["10", "11", "8", "9"] and not (out / "b").exists()
    times = {path: path.stat().st_mtime_ns for path in out.glob("a/*.png")}
    told: list[float] = []
    made = run.translate(maps, out=out, progress=lambda done, count: told.append(done), **CPU)
    assert told == [4, 5, 5, 6, 7, 8] and {path: path.stat().st_mtime_ns for path in times} == times
    assert sorted(made.names) == sorted(names) and (out / "grid.png").is_file()
    for name, image in expected.items():
        assert np.abs(opened(out / f"{name}.png").astype(int) - image.astype(int)).max() <= 1, name
    whole = {path.relative_to(out): path.read_bytes() for path in out.glob("*/*.png")}
    fresh = tmp_path / "fresh"
    run.translate(maps, out=fresh, **CPU)
    assert {path.relative_to(fresh): path.read_bytes() for path in fresh.glob("*/*.png")} == whole
    in_memory = run.translate({"labels": [class_map("b", t) for t in range(3)]}, **CPU)
    for t, image in enumerate(in_memory.images):
        assert np.array_equal(image[0], opened(out / f"b/{t + 8}.png"))


def made_slowly(directory: str, maps: str, out: str) -> int:
    """The command of a process that is killed: after some frames it waits for a moment at each."""
    open_run(directory).translate(maps, out=out, progress=lambda done, count: time.sleep(0.05 * (done > 2)), **CPU)
    return 0


@pytest.mark.slow
def test_a_killed_command_goes_on_within_a_clip_to_the_same_bytes(run: Run, tmp_path: Path) -> None:
    maps, out, fresh = write_maps(tmp_path / "in", {"a": 12}) / "labels", tmp_path / "out", tmp_path / "fresh"
    process = forked(made_slowly, str(run.directory), str(maps), str(out), files=f"{tmp_path}/says")
    deadline = time.monotonic() + 60
    while len(list(out.glob("a/*.png"))) < 4:
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.join()
    there = {path: path.stat().st_mtime_ns for path in out.glob("a/*.png")}
    assert process.exitcode == -9 and 4 <= len(there) < 12
    for place in (out, fresh):
        run.translate(maps, out=place, **CPU)
    assert {path: path.stat().st_mtime_ns for path in there} == there, "they were not made again"
    assert contents(out) == contents(fresh) and len(contents(out)) == 12 + 1 + 1


def filmed_slowly(directory: str, maps: str, out: str) -> int:
    """As made_slowly; and it waits at each frame that it writes to the video."""

    def waited(frames: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        for frame in frames:
            time.sleep(0.05)
            yield frame

    clip_videos.write_video = lambda place, frames, *, rate: write_frames(place, waited(frames), rate=rate)
    return made_slowly(directory, maps, out)


@pytest.mark.slow
def test_a_command_that_is_killed_at_frames_and_at_the_video_writes_the_same_video(run: Run, tmp_path: Path) -> None:
    maps, out, fresh = write_maps(tmp_path / "in", {"a": 12}) / "labels", tmp_path / "out/a.mp4", tmp_path / "fresh.mp4"

    def killed_when(there: Callable[[], bool]) -> dict[Path, int]:
        """The frames that are kept after a kill, with their times."""
        process, deadline = forked(filmed_slowly, str(run.directory), str(maps), str(out), files=f"{tmp_path}/says"), time.monotonic() + 60
        while not there():
            assert process.is_alive() and time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()
        process.join()
        assert process.exitcode == -9 and not out.exists()
        return {path: path.stat().st_mtime_ns for path in out.parent.glob(".a.mp4.partial-*/a/*.png")}

    some = killed_when(lambda: len(list(out.parent.glob(".a.mp4.partial-*/a/*.png"))) >= 4)
    assert 4 <= len(some) < 12
    every = killed_when(lambda: any(out.parent.glob(".a.mp4.tmp-*")))
    assert len(every) == 12 and some.items() <= every.items(), "they were not made again"
    told: list[float] = []
    run.translate(maps, out=out, progress=lambda done, count: told.append(done), **CPU)
    assert told == [12], "no frame was made again"
    run.translate(maps, out=fresh, **CPU)
    assert out.read_bytes() == fresh.read_bytes() and len(Video(out)) == 12
    assert [path.name for path in out.parent.iterdir()] == ["a.mp4"], "nothing is left of the kills"


@pytest.mark.slow
def test_a_folder_of_videos_has_one_of_each_clip(run: Run, tmp_path: Path) -> None:
    root, out, settings = write_maps(tmp_path / "in", {"a": 4, "b": 3}, images=True), tmp_path / "out", VideoSettings(kind="webm")

    def interrupt(done: float, count: float) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(Stopped, match="what was made is kept"):
        run.translate(root, out=out, video=settings, progress=interrupt, **CPU)
    assert not any(out.glob("*.webm"))
    told: list[float] = []
    made = run.translate(root, out=out, video=settings, progress=lambda done, count: told.append(done), **CPU)
    assert told == [4, 5, 6, 7] and made.names == [
        f"{clip}/{t}" for clip, t in (*(("a", t) for t in (10, 11, 8, 9)), *(("b", t) for t in (10, 8, 9)))
    ]
    for clip, length in (("a", 4), ("b", 3)):
        run.translate(root / "labels" / clip, out=tmp_path / f"{clip}.webm", **CPU)
        assert (out / f"{clip}.webm").read_bytes() == (tmp_path / f"{clip}.webm").read_bytes() and len(
            Video(out / f"{clip}.webm")
        ) == length
    assert np.array_equal(made.images[3][0], Video(out / "a.webm").frame(1))
    assert {path.name for path in out.iterdir()} == {"a.webm", "b.webm", "grid.png", ".triptych-translate.json"}
    with Image.open(out / "grid.png") as image:
        assert image.height > 7 * SIDE and image.width > 3 * SIDE, "a row for each frame: map, frame, truth"
    before = (out / "a.webm").stat().st_mtime_ns
    (out / "b.webm").unlink()
    run.translate(root, out=out, video=settings, **CPU)
    assert (out / "a.webm").stat().st_mtime_ns == before and (out / "b.webm").is_file(), "what is there is kept"
    run.translate(root, out=out, video=replace(settings, compare=True), **CPU)
    assert Video(out / "a.webm").size == (3 * SIDE, SIDE), "another request replaces them"


@pytest.mark.slow
def test_a_long_clip_takes_the_memory_of_a_few_frames(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, alive = list[weakref.ref[Any]](), list[int]()

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            found = function(*arguments, **named)
            arrays = [x for part in (found, *arguments) for x in (part.values() if isinstance(part, dict) else [part])]
            seen.extend(weakref.ref(x) for x in arrays if isinstance(x, torch.Tensor | np.ndarray))
            alive.append(sum(ref() is not None for ref in seen))
            return found

        return call

    for place, name in ((Vid2Vid, "next_frame"), (Folder, "save"), (Folder, "__getitem__")):
        monkeypatch.setattr(place, name, watched(getattr(place, name)))
    run.translate(write_maps(tmp_path / "in", {"a": 16}) / "labels", out=tmp_path / "out.mp4", **CPU)
    assert len(alive) == 3 * 16 and max(alive[8:]) <= max(alive[:8]) < 24


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_commands_speak_of_frames_and_of_clips(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maps = write_maps(tmp_path / "in", {"a": 2}) / "labels"
    for out, more, said in (("a.mp4", [], "2 frames in"), ("b", ["--video", "mp4"], "2 frames in"), ("c", [], "2 images in")):
        assert main(["translate", str(run.directory), str(maps), "--out", str(tmp_path / out), *more, "--device", "cpu"]) == 0
        assert capsys.readouterr().out == f"{said} {tmp_path / out}\n"
    instead = r"of clips there are warping-error, sharpness, fvd and, beside one of these, psnr, ssim, ms-ssim, lpips$"
    with pytest.raises(ConfigError, match=f"Vid2Vid makes clips, which are not measured as single images: {instead}"):
        maker_of(run, ImageRequest())


def test_two_clips_do_not_become_one_video(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "in"
    for name in ("0", "clip/0"):
        write(root / f"{name}.png", as_map(class_map("a", 0)))
    with pytest.raises(DataError, match=r"two clips would be written as clip\.mp4; put the frames that lie loose into a folder"):
        run.translate(root, out=tmp_path / "out", video=VideoSettings(kind="mp4"), **CPU)


@pytest.mark.slow
def test_a_video_is_whole_or_absent_and_its_frames_are_kept_until_then(run: Run, tmp_path: Path) -> None:
    write_maps(tmp_path / "in", {"a": 5}, images=True)
    folder, out = tmp_path / "in", tmp_path / "made.mp4"

    def interrupt(done: float, count: float) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(Stopped, match="what was made is kept, and the same command goes on"):
        run.translate(folder, out=out, progress=interrupt, **CPU)
    (kept,) = tmp_path.glob(".made.mp4.partial-*")
    assert not out.exists() and len(list(kept.glob("a/*.png"))) == 3
    told: list[float] = []
    settings = VideoSettings(rate=12.5)
    made = run.translate(folder, out=out, video=settings, progress=lambda done, count: told.append(done), **CPU)
    assert told == [3, 4, 5] and not kept.exists() and sorted(path.name for path in tmp_path.iterdir()) == ["in", "made.mp4"]
    frames = run.translate(folder, out=tmp_path / "frames", **CPU)
    video = Video(out)
    assert (len(video), video.rate, video.size) == (5, 12.5, (SIDE, SIDE)) and made.names == frames.names
    order = sorted(range(5), key=lambda k: int(made.names[k].partition("/")[2]))
    for place, k in enumerate(order):
        assert np.array_equal(made.images[k][0], video.frame(place))
        apart = [np.abs(bright(video.frame(place)) - bright(one[0])).mean() for one in frames.images]
        assert int(np.argmin(apart)) == k
    run.translate(folder, out=tmp_path / "again.mp4", video=settings, **CPU)
    assert (tmp_path / "again.mp4").read_bytes() == out.read_bytes()
    run.translate(folder, out=tmp_path / "again.mp4", video=VideoSettings(compare=True), **CPU)
    assert Video(tmp_path / "again.mp4").size == (3 * SIDE, SIDE), "a file that is named is written anew"
    run.translate(folder, out=tmp_path / "side.webm", video=VideoSettings(compare=True), **CPU)
    sides = Video(tmp_path / "side.webm")
    assert (len(sides), sides.rate, sides.size) == (5, 25, (3 * SIDE, SIDE))
    truth, shown = bright(picture(SIDE, SIDE, seed=2)), bright(sides.frame(2))
    near, far = (np.abs(shown[:, at : at + SIDE] - truth).mean() for at in (2 * SIDE, SIDE))
    assert near < far / 2, "the truth stands on the right"


def bright(frame: np.ndarray) -> np.ndarray:
    """What a video keeps at full size; its colours have half of it."""
    return frame @ np.array([0.299, 0.587, 0.114])


@pytest.mark.parametrize("ending", ["mp4", "webm"])
def test_colours_of_videos_are_those_of_their_frames(tmp_path: Path, ending: str) -> None:
    y, x = np.mgrid[:33, :46]
    frames = [np.stack([x * 5, y * 7, np.full_like(x, 20 * t + 90)], -1).astype(np.uint8) for t in range(5)]
    write_frames(tmp_path / f"out.{ending}", iter(frames), rate=29.97)
    video = Video(tmp_path / f"out.{ending}")
    assert (len(video), video.size, round(video.rate, 2)) == (5, (46, 34), 29.97), "even sides"
    for t, frame in enumerate(frames):
        assert np.abs(video.frame(t)[:33, :46].astype(float) - frame).mean((0, 1)).max() < 5


def test_the_same_frames_make_the_same_bytes_whatever_lies_in_memory(tmp_path: Path) -> None:
    random, made = np.random.default_rng(0), set[bytes]()
    frames = list(random.integers(256, size=(5, 20, 20, 3), dtype=np.uint8))
    for k in range(20):
        others = [np.full(random.integers(1, 200_000), k, dtype=np.uint8) for _ in range(5)]
        write_frames(tmp_path / "out.mp4", (frame.copy() for frame in frames), rate=25)
        made.add((tmp_path / "out.mp4").read_bytes())
        del others
    assert len(made) == 1


def test_a_clip_in_a_video_file_and_a_given_first_frame(run: Run, tmp_path: Path) -> None:
    maps = [class_map("a", t).astype(np.uint8) for t in range(4)]
    path = write_video(tmp_path / "clip.mkv", maps, codec="ffv1", pixels="gray", rate=10)
    plain = run.translate({"labels": maps}, **CPU)
    made = run.translate(path, **CPU)
    assert made.names == [f"clip/{t:06d}" for t in range(4)]
    assert all(np.array_equal(one, other) for one, other in zip(made.images, plain.images, strict=True))
    (tmp_path / "labels").mkdir()
    path.rename(tmp_path / "labels/clip.mkv")
    (tmp_path / ".out.mp4.partial-0123456789ab/clip").mkdir(parents=True)
    in_folder = run.translate(tmp_path / "labels", out=tmp_path / "out.mp4", **CPU)
    assert not list(tmp_path.glob(".*")), "the frames of an interrupted request are gone"
    assert len(in_folder.images) == 4 and Video(tmp_path / "out.mp4").rate == 10, "that of the maps"
    write_video(tmp_path / "labels/other.mkv", maps[:2], codec="ffv1", pixels="gray", rate=24)
    write(tmp_path / "labels/still/0.png", as_map(class_map("a", 0)))
    for given, rates in ((None, (10, 24, 25)), (5.0, (5, 5, 5))):  # the second replaces the videos of the first
        run.translate(tmp_path / "labels", out=tmp_path / "videos", video=VideoSettings(kind="mp4", rate=given), grid=0, **CPU)
        assert tuple(Video(tmp_path / f"videos/{clip}.mp4").rate for clip in ("clip", "other", "still")) == rates
        assert len(list((tmp_path / "videos").iterdir())) == 4, "the videos and their stamp: no frames of other requests are left"
        (tmp_path / "videos/.frames.partial-0123456789ab/clip").mkdir(parents=True)
    (tmp_path / "labels/other.mkv").unlink()
    shutil.rmtree(tmp_path / "labels/still")
    first = picture(SIDE, SIDE, seed=9)
    begun = run.translate(tmp_path / "labels", first=first[None], out=tmp_path / "begun", **CPU)
    assert np.array_equal(begun.images[0][0], first) and not np.array_equal(begun.images[1], plain.images[1])
    model = run.load(**CPU)
    assert isinstance(model, Vid2Vid)
    labels = [model.labels({"labels": torch.from_numpy(one.astype(np.int64))[None]}) for one in maps]
    past = ((torch.from_numpy(first).permute(2, 0, 1)[None, None] + 0.5) / 127.5 - 1).float()
    with torch.no_grad():
        image = model.generator(labels[1], labels[0][:, None], past).image[0]
    expected = ((image + 1) * 127.5).clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
    assert np.abs(begun.images[1][0].astype(int) - expected).max() <= 1


def test_videos_that_cannot_be_are_said(run: Run, tmp_path: Path) -> None:
    maps = write_maps(tmp_path / "in", {"a": 2, "b": 2, "c": 2}) / "labels"
    stills = np.stack([picture(SIDE, SIDE, seed=k) for k in range(2)])
    cases: list[tuple[dict[str, Any], str]] = [
        ({"out": tmp_path / "x.mp4"}, r"x.mp4: one video, but there are 3 clips \(a, b, c\); name one of them, or a folder"),
        (
            {"out": tmp_path / "x.mp4", "video": VideoSettings(kind="mp4")},
            "video: got mp4, for a video of each clip in a folder, but .*x.mp4 is",
        ),
        ({"out": tmp_path / "x.mp4", "grid": 4}, "grid: got 4, but .*x.mp4 is one video, with no picture beside it; leave it out, or name"),
        ({"video": VideoSettings(kind="webm")}, "video: got webm, but there is no folder for a video of each clip; name one"),
        ({"out": tmp_path / "x.npz", "video": VideoSettings(kind="webm")}, "video: got webm, but there is no folder"),
        ({"out": tmp_path / "x.avi"}, r"x.avi: translations are written as a folder, .npz, of one image .png, .jpg or .webp, or of a clip"),
        ({"out": tmp_path / "x", "video": VideoSettings(compare=True)}, "compare: got True, but no video is written"),
        (
            {"first": tmp_path / "none.png"},
            "first: .*none.png does not exist; expected an image, a folder with one for each clip, or",
        ),
        ({"out": tmp_path / "x", "first": stills}, "first: 2 first frames for 3 clips; give one for all, or one for each"),
    ]
    for arguments, message in cases:
        with pytest.raises((ConfigError, DataError), match=message):
            run.translate(maps, **arguments, **CPU)
    write(maps / "d/8.png", as_map(class_map("d", 0)))
    with pytest.raises(DataError, match=r"there are 4 clips \(a, b, c, ...\); name one"):
        run.translate(maps, out=tmp_path / "x.mp4", **CPU)
    with pytest.raises(ConfigError, match="first: got an image, but held-out clips are made from their first frame on"):
        run.translate(None, first=stills[:1], **CPU)
    with pytest.raises(ConfigError, match=r"held_out: got true, but .*x.mp4 is a video: name a clip"):
        run.translate(None, out=tmp_path / "x.mp4", **CPU)
    assert not (tmp_path / "x.mp4").exists()


def test_held_out_clips_are_made_and_measured(run: Run, tmp_path: Path) -> None:
    """Each from its first frame on, beside the real one; the figures lie with the run's other evaluations."""
    scores = score_clips(run, metrics=["sharpness", "psnr", "warping-error"], **CPU)
    assert scores.protocol["clips"] == 1 and scores.protocol["frames"] == 3
    assert scores.out is not None and scores.out.parent == run.directory / "evaluations" and scores.out.is_file()
    real = np.stack([picture(SIDE, SIDE, seed=t) for t in range(3)])
    expected = {clip: psnr(np.stack(by_hand(run, clip, 3)), real).mean() for clip in "abc"}
    assert min(abs(scores.figures["psnr"].value - value) for value in expected.values()) < 1e-3
    assert len({round(float(value), 2) for value in expected.values()}) == 3 and scores.figures["psnr"].error is None
    with pytest.raises(ConfigError, match="reference: got .*, but a run is held against its own held-out clips"):
        score_clips(run, tmp_path, metrics=["sharpness"], **CPU)
    with pytest.raises(ConfigError, match="count: got 9, expected 1 to 1, the held-out clips of 3 frames"):
        score_clips(run, metrics=["sharpness"], count=9, **CPU)


def test_clips_that_are_too_short_are_left_out_of_figures(run: Run, tmp_path: Path) -> None:
    """Those of training are no matter, and of the held-out ones the others are measured."""
    write_maps(tmp_path / "clips/train", {"x": 3, "y": 2}, images=True)
    write_maps(tmp_path / "clips/val", {"a": 4, "b": 2}, images=True)
    copy = shutil.copytree(run.directory, tmp_path / "run")
    document = json.loads((copy / "config.json").read_text())
    document["data"] |= {"path": str(tmp_path / "clips"), "length": document["data"]["length"] | {"first": 2, "most": 3}}
    (copy / "config.json").write_text(json.dumps(document))
    mixed = open_run(copy)
    with pytest.warns(UserWarning, match="^1 held-out clip is left out, with fewer than 3 frames$"):
        scores = score_clips(mixed, metrics=["sharpness"], **CPU)
    assert (scores.protocol["clips"], scores.protocol["frames"]) == (1, 3)
    assert score_clips(mixed, metrics=["sharpness"], frames=2, **CPU).protocol["clips"] == 3, "two windows of the longer one"
    with pytest.raises(ConfigError, match="frames: got 5, expected at most 4: the longest held-out clip has no more$"):
        score_clips(mixed, metrics=["sharpness"], frames=5, **CPU)


def test_what_does_not_fit_is_said(run: Run, tmp_path: Path) -> None:
    maps = write_maps(tmp_path / "in", {"a": 2}) / "labels"
    with pytest.raises(DataError, match=r"made.npz: the frames of clips are written to a folder, as they are made; name one, without .npz"):
        run.translate(maps, out=tmp_path / "made.npz", **CPU)
    with pytest.raises(ConfigError, match="style: Vid2Vid takes no style from images"):
        run.translate(maps, style=maps, **CPU)
    write(maps / "a/10.png", as_map(class_map("a", 2, side=32)))
    with pytest.raises(ConfigError, match="size: a/10 would have 32x32 pixels, but a/8 of the same clip 16x16; give run, or a size for"):
        run.translate(maps, size="own", out=tmp_path / "out", **CPU)
    assert len(run.translate(maps, **CPU).images) == 3, "cut to the run's size"


def test_held_out_clips_and_pictures_during_training(run: Run) -> None:
    held_out = run.translate(None, **CPU)
    assert held_out.images[0].shape == (1, SIDE, SIDE, 3)
    (picture_of_clips,) = (run.directory / "samples").glob("*.png")
    with Image.open(picture_of_clips) as image:
        assert image.width > 3 * SIDE, "the map, what was made, and the truth"
