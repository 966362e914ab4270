"""Video files: frames by number as in order, turned upright, with maps that go with them; cut, hostile and unfit files named."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.pairs import as_map, taken, write
from tests.data.pictures import encoded
from tests.data.test_clips import HEIGHT, WIDTH, frame, settings
from tests.data.videos import decoded, write_video
from triptych.core.batch import ClipLength
from triptych.core.errors import DataError
from triptych.data.clips import ClipImages
from triptych.data.decode import header_size, number_map
from triptych.data.subjects import open_subjects as opened_subjects
from triptych.data.videos import Video, open_clips

COUNT = 24
FORMATS = {
    "b-frames.mp4": {"options": {"bf": "3"}, "keys": 7},
    "open-groups.mkv": {"options": {"x264-params": "open-gop=1:bframes=3"}, "keys": 6},
    "few-keys.webm": {"codec": "libvpx-vp9", "options": {"auto-alt-ref": "1", "lag-in-frames": "12", "deadline": "realtime"}, "keys": 30},
    "hidden-frames.webm": {"codec": "libvpx", "options": {"auto-alt-ref": "1", "lag-in-frames": "12"}, "keys": 30},
    "grey.mkv": {"codec": "ffv1", "pixels": "gray"},
    "old.avi": {"codec": "mpeg4", "options": {"bf": "2"}, "keys": 5},
    "all-keys.mov": {"codec": "mjpeg", "pixels": "yuvj420p"},
}


def moving(count: int = COUNT, *, side: int = 32) -> list[np.ndarray]:
    field = np.random.default_rng(0).integers(256, size=(side + count, side, 3)).astype(np.uint8)
    return [field[t : t + side] for t in range(count)]


@pytest.fixture(scope="module")
def mp4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("video") / "a.mp4", moving(), keys=7)


@pytest.mark.parametrize("name", FORMATS)
def test_frames_at_random_are_those_in_order(tmp_path: Path, name: str) -> None:
    grey = name == "grey.mkv"
    frames = [one[..., 0] for one in moving()] if grey else moving()
    path = write_video(tmp_path / name, frames, **FORMATS[name])
    expected, video = decoded(path, grey=grey), Video(path)
    assert len(video) == len(expected) == COUNT and video.rate == 25 and video.channels == (1 if grey else 3)
    order = [23, 0, 1, 2, 11, 10, 12, 22, 5, 6, 18, 17, 7, 19, *range(COUNT)]
    assert all(np.array_equal(video.frame(k), expected[k]) for k in order)
    assert video.lossless == grey
    if grey:
        assert all(np.array_equal(video.frame(k)[..., 0], frames[k]) for k in (9, 3))


def test_times_are_those_of_the_file_where_frames_are_not_evenly_spaced(tmp_path: Path) -> None:
    import av

    path, frames = tmp_path / "uneven.mkv", moving(6)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width = stream.height = 32
        stream.pix_fmt = "bgr0"
        for time, pixels in zip((0, 1, 5, 6, 20, 21), frames, strict=True):
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24").reformat(format="bgr0")
            picture.pts = time
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    video = Video(path)
    assert all(np.array_equal(video.frame(k), frames[k]) for k in (4, 2, 3, 0, 5, 1))


def test_turned_videos_are_read_upright(mp4: Path, tmp_path: Path) -> None:
    """The matrix in the header of a track that a telephone held upright writes: 90 degrees clockwise."""
    plain, turned = struct.pack(">4i", 0x10000, 0, 0, 0), struct.pack(">4i", 0, 0x10000, 0, -0x10000)
    data = write_video(tmp_path / "wide.mp4", [one[:16] for one in moving(3)]).read_bytes()
    at = data.index(b"tkhd") + 4 + 40
    assert data[at : at + 16] == plain
    path = tmp_path / "turned.mp4"
    path.write_bytes(data[:at] + turned + data[at + 16 :])
    video, upright = Video(path), decoded(tmp_path / "wide.mp4")
    assert video.size == (16, 32)
    assert np.array_equal(video.frame(1), np.rot90(upright[1], -1)), "clockwise"


def test_videos_are_clips_with_the_maps_of_a_folder_at_the_same_places(tmp_path: Path) -> None:
    frames = [frame(1, t) for t in range(6)]
    write_video(tmp_path / "images/c1.mkv", frames, codec="ffv1", pixels="bgr0")
    write_video(tmp_path / "images/sub/c3.mkv", [frame(3, t) for t in range(4)], codec="ffv1", pixels="bgr0")
    write_video(tmp_path / "labels/sub/c3.mkv", [frame(3, t)[..., 1] // 9 for t in range(4)], codec="ffv1", pixels="gray")
    for t in range(6):
        write(tmp_path / f"labels/c1/{t + 8}.png", as_map(frames[t][..., 1] // 9 if t != 3 else np.zeros((HEIGHT, WIDTH))))
    for t in range(5):
        write(tmp_path / f"images/c2/{t}.png", encoded(frame(2, t)))
        write(tmp_path / f"labels/c2/{t}.png", as_map(frame(2, t)[..., 1] // 9))
    data = settings(tmp_path, flip=False, length=ClipLength(first=4, most=4)).open()
    assert isinstance(data.train, ClipImages)
    assert sum(map(len, data.train.clips)) == 15 and "3 clips of 15 frames" in data.notes[-1]
    batch = taken(data.train, start=0, count=4)
    assert batch.images.shape[1] == 4
    seen = set()
    for clip, labels in zip(batch.images, batch.inputs["labels"], strict=True):
        found = [divmod(int(level), 40) for level in clip[:, 0, 0, 0]]
        assert all(torch.equal(one, torch.from_numpy(frame(c, t // 4))) for one, (c, t) in zip(clip, found, strict=True))
        for number, (c, t) in zip(labels, found, strict=True):
            expected = np.zeros((HEIGHT, WIDTH)) if (c, t) == (1, 12) else frame(0, 0)[..., 1] // 9
            assert np.array_equal(number, expected)
            seen.add((c, t // 4))
    assert len(seen) > 8 and {c for c, _ in seen} == {1, 2, 3}
    found = opened_subjects(settings(tmp_path, length=ClipLength(first=4, most=4)))
    assert (len(found), len(found.pairs), found.complaints) == (30, 15, [])
    again = taken(data.train, start=0, count=4, workers=1)
    assert torch.equal(again.images, batch.images), "a process of its own, with a decoder that was open"


def test_files_are_frames_whose_headers_cost_no_decoding(mp4: Path) -> None:
    files = open_clips(mp4.parent)
    assert list(files.names) == [f"a/{t:06d}" for t in range(COUNT)] and not files.passed_over
    assert files.describe(3) == f"{mp4}: frame 3" and header_size(files.head(3)) == header_size(files.read(3)) == (32, 32)
    with pytest.raises(ValueError, match="a picture in colour"):
        number_map(files.read(0))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("cut.mp4", lambda data: data[:-400], "holds no frames|cannot be read as a video"),
        ("nothing.mp4", lambda data: b"", "cannot be read as a video"),
        ("playlist.mp4", lambda data: b"#EXTM3U\n#EXTINF:1,\n/etc/hostname\n", "cannot be read as a video"),
        ("concat.webm", lambda data: b"ffconcat version 1.0\nfile a.mp4\n", "cannot be read as a video"),
        ("picture.mkv", lambda data: encoded(frame(0, 0)), "cannot be read as a video"),
    ],
)
def test_damaged_and_hostile_files_are_named(mp4: Path, tmp_path: Path, name: str, change, message: str) -> None:
    (tmp_path / name).write_bytes(change(mp4.read_bytes()))
    with pytest.raises(DataError, match=message) as error:
        open_clips(tmp_path)
    assert str(error.value).startswith(str(tmp_path / name)) and "\n" not in str(error.value)


def test_any_damage_is_one_line_or_frames(mp4: Path, tmp_path: Path) -> None:
    data, generator, told = mp4.read_bytes(), np.random.default_rng(0), 0
    for number in range(8):
        damaged = bytearray(data)
        for at in generator.integers(len(data), size=8):
            damaged[at] = generator.integers(256)
        path = tmp_path / f"{number}.mp4"
        path.write_bytes(damaged)
        try:
            video = Video(path)
            for k in range(0, len(video), 5):
                assert video.frame(k).shape == (32, 32, 3)
        except DataError as error:
            told += 1
            assert str(path) in str(error) and "\n" not in str(error)
    assert told


def test_files_cut_short_are_named(tmp_path: Path) -> None:
    whole = write_video(tmp_path / "whole.mkv", moving(), codec="ffv1", pixels="bgr0", keys=1).read_bytes()
    (tmp_path / "cut.mkv").write_bytes(whole[: len(whole) // 3])
    with pytest.raises(DataError, match=r"cut.mkv: cut short( or damaged after|: its frames end after)"):
        Video(tmp_path / "cut.mkv")
    (tmp_path / "last.mkv").write_bytes(whole[:-1])
    with pytest.raises(DataError, match=rf"last.mkv: cut short: {len(whole) - 1:,} of {len(whole):,} bytes; copy or make the file again"):
        Video(tmp_path / "last.mkv")
    at = whole.index(b"\x18\x53\x80\x67") + 4  # the size of what was recorded live is not known: all its bits are set
    (tmp_path / "live.mkv").write_bytes(whole[:at] + b"\x01" + b"\xff" * 7 + whole[at + 8 :])
    (tmp_path / "longer.mkv").write_bytes(whole + b"\0")
    assert len(Video(tmp_path / "live.mkv")) == len(Video(tmp_path / "longer.mkv")) == COUNT
    fast = write_video(tmp_path / "fast.mov", moving(), codec="mjpeg", pixels="yuvj420p").read_bytes()
    at = fast.index(b"mdat")
    (tmp_path / "damaged.mov").write_bytes(fast[: at + 4000] + bytes(3000) + fast[at + 7000 :])
    with pytest.raises(DataError, match=r"damaged.mov: frame \d+: "):
        video = Video(tmp_path / "damaged.mov")
        for k in range(COUNT):
            video.frame(k)


def test_what_does_not_fit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [frame(1, t) for t in range(6)]
    lossless = {"codec": "ffv1", "pixels": "bgr0"}
    write_video(tmp_path / "images/c1.mkv", frames, **lossless)
    for t in range(5):
        write(tmp_path / f"labels/c1/{t}.png", as_map(frames[t][..., 1] // 9))
    with pytest.raises(DataError, match=r"labels/c1: 5 frames, but .*images/c1 has 6; frames of videos go together by their places"):
        settings(tmp_path).open()
    write(tmp_path / "labels/c1/5.png", as_map(frame(0, 0, size=(16, 10))[..., 1] // 18))
    with pytest.raises(DataError, match=r"labels/c1/5.png: 16x10 pixels, but .*images/c1.mkv: frame 5 has 12x8; make them one size"):
        settings(tmp_path).open()
    for t in range(6):
        (tmp_path / f"labels/c1/{t}.png").unlink()
    with pytest.raises(DataError, match="labels: holds no images|labels/c1: 0 frames, but"):
        settings(tmp_path).open()
    write_video(tmp_path / "labels/c1.mkv", frames, **lossless)
    with pytest.raises(DataError, match=r"labels/c1.mkv: a video in colour as maps; save them as PNG files in a folder c1"):
        settings(tmp_path).open()
    write_video(tmp_path / "labels/c1.mkv", [one[..., 1] for one in frames], codec="mjpeg", pixels="yuvj420p")
    with pytest.raises(DataError, match=r"labels/c1.mkv: a video that is compressed with loss, which alters numbers, as maps"):
        settings(tmp_path).open()
    write(tmp_path / "images/c1/0.png", encoded(frames[0]))
    with pytest.raises(DataError, match=r"c1.mkv: the folder c1 beside it is a clip of the same name; rename or remove one"):
        settings(tmp_path).open()
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(
        DataError, match=r"c1.mkv: video files are read and written by PyAV, which is not installed: pip install 'triptych\[video\]'"
    ):
        Video(tmp_path / "images/c1.mkv")
