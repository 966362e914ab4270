"""What clips are made with, each by itself and without a run: frames from those before, first frames, boxes in frames, and videos."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.data.faces import CLASSES, corner, frame, lines, write_faces
from tests.data.pictures import picture
from triptych.core.batch import InputSpec
from triptych.core.rng import Rng
from triptych.core.translation import Example
from triptych.data.clip_files import open_clip_files
from triptych.data.cut import Cut
from triptych.data.cut_out import CutOut
from triptych.data.stored import Member
from triptych.data.videos import Video
from triptych.engine.distributed import open_world
from triptych.gans.clip_base import ClipTranslationConfig
from triptych.runs import clip_videos
from triptych.runs.clip_videos import Filmed, VideoSettings, in_videos, side_by_side, write_video
from triptych.runs.first_frames import SingleImages, StillImages
from triptych.runs.given.collection import Collection, open_collection
from triptych.runs.given.cut_outs import cut_out
from triptych.runs.given.sizes import squares
from triptych.runs.image_folder import Folder
from triptych.runs.translation_grid import pictured, rows
from triptych.runs.video import Clips, frames_in_memory, make_missing_frames

SIDE, EXTENT = 16, 8
CPU = torch.device("cpu")


# Frames


class Dreamer:
    """Makes a frame of its map, of the two frames before with their maps and, where it `remembers`, of all of them."""

    past_frames, style_sources = 2, ()

    def __init__(self, *, remembers: bool) -> None:
        self.remembers = remembers

    def remembered(self, inputs: Mapping[str, Tensor], image: Tensor) -> Mapping[str, Tensor]:
        return {"memory": (image + inputs["memory"]) / 2 if "memory" in inputs else image}

    def next_frame(
        self, inputs: Mapping[str, Tensor], past: Sequence[Mapping[str, Tensor]], made: Tensor | None, *, settings: Any
    ) -> Tensor:
        assert (made is None) == (not past) and len(past) <= 2
        total = inputs["map"] + inputs.get("memory", 0)
        for k in range(len(past)):
            assert made is not None and made.shape[1] == len(past)
            total = total + (len(past) - k) * (made[:, k] + past[k]["map"])
        return torch.sin(total)


class Maps:
    """Six of them, as the inputs that a user gives."""

    def __len__(self) -> int:
        return 6

    def example(self, model: Any, items: Sequence[int], **options: Any) -> Any:
        (item,) = items
        return SimpleNamespace(inputs={"map": Rng(0, ("maps",), torch.tensor([item])).normal("map", 3, 4, 4)})


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("there", [0, 1, 3, 4])
def test_a_clip_goes_on_from_any_frame_to_the_same_ones(tmp_path: Path, remembers: bool, there: int) -> None:
    model: Any = Dreamer(remembers=remembers)
    learned: list[int] = []
    wanted = Clips(Maps(), [[4, 1, 0, 3], [2, 5]], ClipTranslationConfig(), learn=lambda: learned.append(1))  # type: ignore[arg-type]
    whole = frames_in_memory(model, wanted, device=CPU, progress=lambda done, count: None)
    folder, told = Folder(tmp_path / "out", [[f"{k}.png"] for k in range(6)], grid_rows=0), list[float]()
    for item in wanted.clips[0][:there]:
        folder.save([item], {"images": whole[item][None]})
    make_missing_frames(model, wanted, folder, device=CPU, world=open_world("cpu"), progress=lambda done, count: told.append(done))
    assert all(np.array_equal(folder[item], whole[item]) for item in range(6))
    assert told == [*range(there, 5), *range(4, 7)]
    assert len(learned) == (2 if there == 4 else 3), "before frames are made: here first, then of each clip that lacks some"


# First frames


def test_a_still_image_is_the_first_frame_alone() -> None:
    images = open_collection(picture(SIDE, SIDE, seed=1)[None], InputSpec(name="first", kind="image", channels=3), squares(SIDE))
    still, maps = StillImages(images), {"map": torch.zeros(1, 3, SIDE, SIDE)}
    first = still.frame(2, 0, maps)
    assert first is not None and np.array_equal(first, picture(SIDE, SIDE, seed=1))
    assert still.frame(2, 1, maps) is None


class Stylist(torch.nn.Module):
    """Draws a style."""

    sources, translation = (InputSpec(name="map", kind="image", channels=3),), ClipTranslationConfig()

    def translate(self, inputs: Mapping[str, Tensor], rng: Rng, *, settings: Any) -> Tensor:
        assert list(inputs) == ["map"] and not self.training
        return torch.tanh(inputs["map"] + rng.normal("style", 3, 4, 4))


def test_frames_of_single_images_are_so_many_and_of_one_style_in_a_clip() -> None:
    model: Any = Stylist()
    first = SingleImages(model, count=2, seed=5, precision="float32", device=CPU, origin=None)
    maps = {"map": torch.zeros(1, 3, 4, 4), "points": torch.zeros(1, 4, 4)}
    one, next_one, other = (first.frame(clip, t, maps) for clip, t in ((3, 0), (3, 1), (4, 0)))
    assert one is not None and next_one is not None and other is not None
    assert np.array_equal(one, next_one) and not np.array_equal(one, other)
    expected = torch.tanh(Rng(5, ("translate", "first"), torch.tensor([3])).normal("style", 3, 4, 4))[0].movedim(0, -1)
    assert np.abs(one - (expected.numpy() + 1) * 127.5).max() < 1.01
    assert first.frame(3, 2, maps) is None and model.training


# Boxes in frames


SPECS = (
    InputSpec(name="lines", kind="image", channels=1),
    InputSpec(name="labels", kind="classes", num_classes=CLASSES),
    InputSpec(name="images", kind="image", channels=3),
)


def collections(root: Path, cut: CutOut, *, each: bool) -> tuple[list[str], dict[str, Collection]]:
    """The names of all frames, and the collections that are cut."""
    found = open_clip_files(root, {spec.name: "what is shown" for spec in SPECS})
    members = [Member(spec, found.files[spec.name], found.numbers[spec.name]) for spec in SPECS]
    opened = [Collection(str(root), member, member.spec, squares(SIDE), "") for member in members]
    return found.keys, {one.spec.name: one for one in cut_out(cut, found, opened, root, each=each)}


@pytest.mark.parametrize("each", [False, True])
def test_a_clip_is_cut_by_the_box_of_its_first_frame_or_each_frame_by_its_own(tmp_path: Path, each: bool) -> None:
    root = write_faces(tmp_path, {0: 3, 1: 2}, extent=EXTENT)
    names, cut = collections(root, CutOut("face", Cut(2 * EXTENT), by="landmarks", target="images"), each=each)
    assert names == ["c0/0", "c0/1", "c0/2", "c1/0", "c1/1"]
    for k, name in enumerate(names):
        clip, t = int(name[1]), int(name[3])
        left, top = corner(clip, t if each else 0)
        first = round(top + EXTENT / 3 - 1.25 * EXTENT)
        window = slice(first, first + 2 * EXTENT), slice(left - EXTENT // 2, left + EXTENT * 3 // 2)
        for folder, pixels in (("lines", lines(clip, t)[..., None]), ("images", frame(clip, t))):
            assert np.array_equal(cut[folder].read(k)[1], pixels[window])


def test_of_people_the_images_are_smooth_and_maps_to_the_nearest_pixel(tmp_path: Path) -> None:
    root = write_faces(tmp_path, {0: 1}, extent=EXTENT)  # drawn on everywhere
    how = CutOut("person", Cut(SIDE), by="lines", target="images")
    _, cut = collections(root, how, each=False)
    box = how.box([None], (40, 36))
    side = box.right - box.left
    assert side == box.bottom - box.top == 36
    part = slice(box.top, box.bottom), slice(box.left, box.right)
    smooth = Image.fromarray(frame(0, 0)[part]).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    assert np.array_equal(cut["images"].read(0)[1], np.asarray(smooth))
    assert np.isin(cut["lines"].read(0)[1], lines(0, 0)[part]).all()
    blurred = Image.fromarray(lines(0, 0)[part]).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    assert not np.array_equal(cut["lines"].read(0)[1][..., 0], np.asarray(blurred))


# Videos


def filmed(clips: Mapping[str, Sequence[int]], read: list[int]) -> Filmed:
    """Frames of one level each; `read` gets the items that are shown."""
    count = sum(map(len, clips.values()))

    def make(folder: Folder) -> None:
        for item in (item for group in folder.missing(range(count)) for item in group):
            folder.save([item], {"images": np.full((1, 1, SIDE, SIDE, 3), 60 * item + 30, dtype=np.uint8)})

    def show(item: int, made: np.ndarray) -> Sequence[np.ndarray]:
        read.append(item)
        return [255 - made[0], made[0]]

    return Filmed(clips, [[f"{item}.png"] for item in range(count)], "0123456789ab", make, show)


def films(wanted: Filmed, out: Path, settings: VideoSettings) -> Sequence[np.ndarray]:
    return in_videos(wanted, out, settings, rates=dict.fromkeys(wanted.clips, 10.0), grid_rows=0, world=open_world("cpu"))


def test_videos_of_a_folder_are_kept_and_those_of_another_request_are_not(tmp_path: Path) -> None:
    wanted, plain = filmed({"a": [2, 0], "b": [1, 3]}, []), VideoSettings(kind="mp4")
    made = films(wanted, tmp_path / "out", plain)
    assert [round(made[item].mean() / 60 - 0.5) for item in range(4)] == [0, 1, 2, 3], "each frame from its place in its clip"
    before = (tmp_path / "out/a.mp4").stat().st_mtime_ns
    (tmp_path / "out/b.mp4").unlink()
    films(wanted, tmp_path / "out", plain)
    assert (tmp_path / "out/a.mp4").stat().st_mtime_ns == before and Video(tmp_path / "out/b.mp4").size == (SIDE, SIDE)
    films(wanted, tmp_path / "out", replace(plain, compare=True))
    assert Video(tmp_path / "out/a.mp4").size == (2 * SIDE, SIDE)


def test_a_video_that_is_named_is_written_anew(tmp_path: Path) -> None:
    for settings, width in ((VideoSettings(), SIDE), (VideoSettings(compare=True), 2 * SIDE)):
        films(filmed({"a": [0, 1]}, []), tmp_path / "out.mp4", settings)
        assert Video(tmp_path / "out.mp4").size == (width, SIDE)


def test_frames_of_a_video_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, written = list[int](), list[int]()

    def write(out: Path, frames: Iterable[np.ndarray], *, rate: float) -> None:
        for _ in frames:
            written.append(len(read))

    monkeypatch.setattr(clip_videos, "write_video", write)
    films(filmed({"a": [0, 1, 2]}, read), tmp_path / "out.mp4", VideoSettings(compare=True))
    assert read == [0, 1, 2] and written == [1, 2, 3]


@pytest.mark.parametrize("rate", [30_000 / 1001, 24.0, 0.5])
def test_the_rate_of_a_video_is_the_one_that_is_asked_for(tmp_path: Path, rate: float) -> None:
    """That of American television too, which no small fraction comes near to."""
    write_video(tmp_path / "a.mp4", [np.zeros((SIDE, SIDE, 3), np.uint8)] * 3, rate=rate)
    assert Video(tmp_path / "a.mp4").rate == rate


def test_pictures_of_several_heights_stand_side_by_side_on_white() -> None:
    row = side_by_side([np.full((2, 3, 1), 10, np.uint8), np.full((4, 5, 3), 20, np.uint8)])
    assert row.shape == (4, 8, 3) and (row[:2, :3] == 10).all() and (row[2:, :3] == 255).all() and (row[:, 3:] == 20).all()


def test_of_a_clip_of_maps_the_last_one_is_shown() -> None:
    maps, image = torch.arange(3)[:, None, None].expand(3, 2, 2), torch.linspace(-1, 1, 3)[:, None, None, None].expand(3, 1, 2, 2)
    classes, grey = InputSpec(name="labels", kind="classes", num_classes=3), InputSpec(name="edges", kind="image", channels=1)
    for clip, spec in ((maps, classes), (image, grey)):
        for values, shown in ((clip, clip[-1]), (clip[0], clip[0])):
            (row,) = rows(Example({spec.name: values[None]}, None), [np.zeros((1, 2, 2, 3), np.uint8)], [spec])
            assert np.array_equal(row[0], pictured(shown, spec)), spec.name
