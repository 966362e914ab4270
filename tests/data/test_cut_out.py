"""Faces and people cut out of clips: the boxes by their rules, how they vary, what is cut out of frames and maps, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from tests.data.faces import CLASSES, HEIGHT, WIDTH, classes, corner, frame, lines, points, write_faces
from tests.data.pairs import assert_same, taken, write
from tests.data.pictures import encoded, picture
from tests.data.test_poses import png
from triptych.core.batch import ClipLength
from triptych.core.errors import ConfigError, DataError
from triptych.data.clips import ClipDataConfig, ClipImages
from triptych.data.cut_out import Box, Extent, Variation, face_box, person_box, varied
from triptych.data.keypoints import face_points
from triptych.data.loader import load

SIDE = 16


# Boxes


def nearest_whole(wanted: float, most: int) -> set[int]:
    """The whole numbers from 0 to `most` that lie nearest to it."""
    distances = [abs(k - wanted) for k in range(most + 1)]
    return {k for k, distance in enumerate(distances) if distance <= min(distances) + 1e-9}


def test_the_box_of_a_face_by_its_rule() -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        width, height = (int(side) for side in generator.integers(34, 90, 2))
        left, top = generator.uniform(0, width - 10), generator.uniform(0, height - 10)
        found = Extent(left, top, left + generator.uniform(3, 14), top + generator.uniform(3, 20))
        how = Variation(generator.uniform(0.8, 1.2), *generator.uniform(-0.2, 0.2, 2))
        half = int((found.right - found.left) * how.scale)
        assert 2 * half <= min(width, height)
        across = (found.left + found.right) / 2 + how.across * half
        down = (found.top + found.bottom) / 2 + how.down * half
        across = min(max(across, half), width - half)
        down = min(max(down, 1.25 * half), height - 0.75 * half)
        box = face_box(found, (width, height), how)
        assert box.left in nearest_whole(across - half, width - 2 * half)
        assert box.top in nearest_whole(down - 1.25 * half, height - 2 * half)
        assert (box.right - box.left, box.bottom - box.top) == (2 * half, 2 * half)


def test_the_box_of_a_face_stays_in_its_picture() -> None:
    plain = Variation(1.0)
    assert face_box(Extent(10, 12, 20, 20), (60, 50), plain) == Box(5, 4, 25, 24), "20 wide; 12.5 above and 7.5 below 16, rounded"
    assert face_box(Extent(0, 0, 10, 4), (60, 50), plain) == Box(0, 0, 20, 20)
    assert face_box(Extent(2, 2, 50, 40), (60, 40), plain) == Box(6, 0, 46, 40)
    assert face_box(None, (60, 40), plain) == Box(10, 0, 50, 40)


def test_the_box_of_a_person_by_its_rule() -> None:
    generator = np.random.default_rng(1)
    for _ in range(300):
        width, height = (int(side) for side in generator.integers(60, 160, 2))
        aspect = float(generator.choice([0.5, 1.0, 2.0]))
        tall, wide = int(generator.integers(5, height)), int(generator.integers(2, width // 2))
        left, top = int(generator.integers(0, width - wide)), int(generator.integers(0, height - tall))
        how = Variation(generator.uniform(1, 2), *generator.normal(0, 0.05, 2))
        half = max(int(min(height, max(height // 2, how.scale * tall)) // 2), int(how.scale * wide / aspect) // 2)
        half = min(half, height // 2, int(width / 2 / aspect))
        half_width = int(half * aspect)
        across, down = left + wide / 2 + how.across * half_width, top + tall / 2 + how.down * half
        box = person_box(Extent(left, top, left + wide, top + tall), (width, height), how, aspect=aspect)
        assert box.left in nearest_whole(across - half_width, width - 2 * half_width)
        assert box.top in nearest_whole(down - half, height - 2 * half)
        assert (box.right - box.left, box.bottom - box.top) == (2 * half_width, 2 * half)
    assert person_box(None, (80, 40), Variation(1.5), aspect=0.5) == Box(30, 0, 50, 40), "nobody: the middle, of full height"


def test_how_boxes_vary_in_training() -> None:
    pairs = [varied("face", k, seed=3) for k in range(2000)]
    assert all(clip.scale == other.scale for clip, other in pairs), "of clip and references alike"
    drawn = np.array([[clip.scale - 1, clip.across, clip.down, other.across, other.down] for clip, other in pairs])
    assert np.abs(drawn).max() <= 0.2 and np.abs(drawn.mean(0)).max() < 0.012
    assert np.abs(drawn.std(0) - 0.4 / 12**0.5).max() < 0.008, "evenly from -0.2 to 0.2"
    assert np.abs(np.corrcoef(drawn.T) - np.eye(5)).max() < 0.1
    assert pairs[:5] == [varied("face", k, seed=3) for k in range(5)] != [varied("face", k, seed=4) for k in range(5)]
    people = np.array([varied("person", k, seed=3) for k in range(2000)]) - [1.5, 0, 0]
    assert np.abs(people.mean(0)).max() < 0.006
    assert np.abs(people.std(0) - np.array([[0.05], [0.02]])).max() < 0.004, "of clips, of references"
    assert np.abs(np.corrcoef(people.reshape(2000, 6).T) - np.eye(6)).max() < 0.1


def test_points_of_a_face_that_openpose_is_sure_of() -> None:
    face = np.stack((np.arange(70.0), np.full(70, 7.0), np.where(np.arange(70) % 2, 0.1, 0.2)), axis=1)
    found = face_points({"people": [{"face_keypoints_2d": face.ravel().tolist()}]})
    assert np.array_equal(found, face[::2, :2])
    assert face_points({"people": []}).shape == (0, 2)


# Clips of faces


def settings(root: Path, **changes: object) -> ClipDataConfig:
    plain = {
        "maps": ("labels",),
        "num_classes": (CLASSES,),
        "conditions": ("lines",),
        "cut_out": "face",
        "landmarks": "landmarks",
        "image_size": SIDE,
        "flip": False,
        "validation_fraction": 0.0,
        "length": ClipLength(first=2, most=3, double_every=10),
        "references": 2,
        "workers": 0,
    }
    return ClipDataConfig(path=str(root), **(plain | changes))


def images_of(root: Path, **changes: object) -> ClipImages:
    images = settings(root, **changes).open().train
    assert isinstance(images, ClipImages)
    return images


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_faces(tmp_path_factory.mktemp("faces"), {0: 7, 1: 6}, extent=6)


def extent_of(clip: int, t: int, *, extent: int) -> Extent:
    found = np.array(points(clip, t, extent=extent))
    return Extent(*found.min(0), *found.max(0))


def enlarged(pixels: np.ndarray, box: Box) -> np.ndarray:
    """A box of an image, bilinearly in float64: (SIDE, SIDE, c)."""
    part = torch.from_numpy(pixels[box.top : box.bottom, box.left : box.right].astype(np.float64)).movedim(-1, 0)[None]
    return interpolate(part, size=(SIDE, SIDE), mode="bilinear", align_corners=False)[0].movedim(0, -1).numpy()


def assert_cut(found: dict[str, np.ndarray], clip: int, t: int, box: Box) -> None:
    """What is found of a frame is this box of it."""
    assert np.abs(found["images"] - enlarged(frame(clip, t), box)).max() <= 1
    assert np.abs(found["lines"] - enlarged(lines(clip, t)[..., None], box)).max() <= 1
    rows = [box.top + int((i + 0.5) * (box.bottom - box.top) / SIDE) for i in range(SIDE)]
    columns = [box.left + int((j + 0.5) * (box.right - box.left) / SIDE) for j in range(SIDE)]
    assert np.array_equal(found["labels"], classes(clip, t)[np.ix_(rows, columns)])


def frames_of(images: ClipImages, items: np.ndarray, positions: np.ndarray | None, *, seed: int = 0):
    """Of each frame of each sample, whether it is a reference, its clip and time, and what was loaded."""
    loaded = images.batch(items, positions, seed=seed)
    assert loaded.inputs is not None
    for k, item in enumerate(map(int, items)):
        position = None if positions is None else int(positions[k])
        of_clip = images.frames(item, position, seed=seed)
        for numbers, ending in ((of_clip, ""), (images.references(item, position, seed=seed), "_of_style")):
            for t, number in enumerate(map(int, numbers)):
                clip = 0 if number < 7 else 1
                pixels = loaded.inputs["style"] if ending else loaded.images
                found = {"images": pixels[k, t]} | {name: loaded.inputs[f"{name}{ending}"][k, t] for name in ("lines", "labels")}
                yield k, bool(ending), clip, number - 7 * clip, found


def test_training_clips_have_one_box_and_references_their_own(root: Path) -> None:
    images, positions = images_of(root), np.arange(12)
    first: dict[int, Box] = {}
    moved = 0
    for k, reference, clip, t, found in frames_of(images, positions % len(images), positions, seed=5):
        how = varied("face", k, seed=5)[reference]
        own = face_box(extent_of(clip, t, extent=6), (WIDTH, HEIGHT), how)
        box = own if reference else first.setdefault(k, own)
        moved += box != own
        assert_cut(found, clip, t, box)
    assert moved and len(set(first.values())) > 6


def test_held_out_clips_do_not_vary(root: Path) -> None:
    images, first = images_of(root), dict[int, Box]()
    for k, reference, clip, t, found in frames_of(images, np.arange(len(images)), None):
        left, top = corner(clip, t)
        box = Box(left - 3, top + 2 - round(7.5), left + 9, top + 2 - round(7.5) + 12)
        own = face_box(extent_of(clip, t, extent=6), (WIDTH, HEIGHT), Variation(1.0))
        assert abs(own.top - box.top) <= 1 and (own.left, own.right) == (box.left, box.right)
        assert_cut(found, clip, t, own if reference else first.setdefault(k, own))


def test_cuts_depend_on_seed_and_position_alone(root: Path) -> None:
    short = {"length": ClipLength(first=2, most=2)}
    images = images_of(root, **short)
    assert_same(taken(images, count=3, batch_size=4), taken(images_of(root, **short), count=4, batch_size=3, workers=2))
    positions = np.arange(6)
    one, same, other = (images.batch(positions % len(images), positions, seed=seed).images for seed in (1, 1, 2))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


def test_openposes_faces_are_cut_out_like_landmarks(tmp_path: Path, root: Path) -> None:
    other = images_of(write_faces(tmp_path, {0: 7, 1: 6}, extent=6, openpose=True))
    one = images_of(root).batch(np.arange(4), np.arange(4), seed=1)
    assert np.array_equal(one.images, other.batch(np.arange(4), np.arange(4), seed=1).images)


# Clips of people

TALL, LOW = 48, 32


def body(t: int) -> tuple[int, int]:
    """The left and upper end of a person of 4x10 pixels."""
    return 20 + 3 * t, 14 - 2 * t


def write_people(root: Path, lengths: tuple[int, ...] = (5, 5)) -> Path:
    for clip, length in enumerate(lengths):
        for t in range(length):
            left, top = body(t)
            levels, edges = np.zeros((LOW, TALL, 3), dtype=np.uint8), np.zeros((LOW, TALL), dtype=np.uint8)
            levels[top : top + 10, left : left + 4] = (9, 200, 1 + (clip + t) % 24)
            levels[top : top + 10 : 2, left : left + 4, 2] = 24
            edges[1:3, 1:3] = 255
            name = f"c{clip}/{t}.png"
            write(root / "images" / name, encoded(picture(TALL, LOW, seed=10 * clip + t)))
            write(root / "dense" / name, png(levels))
            write(root / "edges" / name, encoded(edges))
            write(root / "sketch" / name, encoded(picture(TALL, LOW, seed=10 * clip + t)[..., 0]))
    return root


def people(root: Path, **changes: object) -> ClipImages:
    plain = {"maps": (), "num_classes": (), "conditions": ("edges",), "densepose": "dense", "cut_out": "person", "landmarks": None}
    plain |= {"image_size": 32, "width": 16, "length": ClipLength(first=3, most=3), "references": 1}
    return images_of(root, **(plain | changes))


@pytest.mark.parametrize("training", [True, False])
def test_people_are_cut_out_of_all_frames_alike(tmp_path: Path, training: bool) -> None:
    images, positions = people(write_people(tmp_path)), np.arange(6)
    items = positions % len(images)
    loaded = images.batch(items, positions if training else None, seed=2)
    assert loaded.inputs is not None
    for k, item in enumerate(map(int, items)):
        position = k if training else None
        frames = images.frames(item, position, seed=2)
        shown = [body(int(number) % 5) for number in (frames if training else frames[:1])]
        left, top = min(x for x, _ in shown), min(y for _, y in shown)
        right, bottom = max(x for x, _ in shown) + 4, max(y for _, y in shown) + 10
        how = varied("person", k, seed=2)[0] if training else Variation(1.5)
        box = person_box(Extent(left, top, right, bottom), (TALL, LOW), how, aspect=0.5)
        for t, number in enumerate(map(int, frames)):
            with Image.open(tmp_path / "dense" / f"c{number // 5}/{number % 5}.png") as image:
                levels = np.asarray(image)
            rows = [box.top + int((i + 0.5) * (box.bottom - box.top) / 32) for i in range(32)]
            columns = [box.left + int((j + 0.5) * (box.right - box.left) / 16) for j in range(16)]
            expected = levels[np.ix_(rows, columns)]
            assert np.abs((loaded.inputs["dense"][k, t, 2] + 1) * 12 - expected[..., 2]).max() < 1e-4
            pixels = torch.from_numpy(picture(TALL, LOW, seed=10 * (number // 5) + number % 5)[box.top : box.bottom, box.left : box.right])
            smooth = interpolate(pixels.double().movedim(-1, 0)[None], size=(32, 16), mode="bilinear", align_corners=False)
            assert np.abs(loaded.images[k, t] - smooth[0].movedim(0, -1).numpy()).max() <= 1


def test_people_of_conditions_where_there_is_nothing_else(tmp_path: Path) -> None:
    found = people(write_people(tmp_path), densepose=None).batch(np.array([0])).images[0, 0]
    assert np.abs(found[0, 0].astype(int) - picture(TALL, LOW, seed=0)[0, 0]).max() <= 1


# What is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "landmarks/c0/3.json").unlink(), r"landmarks: has no file c0/3.json; add it, or remove the frame"),
        (
            lambda root: write(root / "landmarks/c0/0.json", b"[[1, 2]]"),
            r"landmarks/c0/0.json: cannot be read as the points of a face \(expected 68",
        ),
        (lambda root: write(root / "landmarks/c0/0.json", b"{"), r"landmarks/c0/0.json: cannot be read as the points of a face"),
        (
            lambda root: (root / "landmarks").rename(root / "landmark"),
            r'holds no folder landmarks \(data.landmarks\); did you mean "landmark"',
        ),
        (
            lambda root: [write(root / name / "c0/1.png", encoded(frame(0, 1)[:20, :20])) for name in ("images", "lines", "labels")],
            r"c0/1.png: 20x20 pixels, but what is cut out of its clip reaches to \d+x\d+; make the frames of a clip one size",
        ),
    ],
)
def test_what_is_wrong_is_named_in_one_line(tmp_path: Path, change, message: str) -> None:
    write_faces(tmp_path, {0: 6}, extent=6)
    change(tmp_path)
    with pytest.raises(DataError, match=message) as error:
        settings(tmp_path).open()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"landmarks": None}, "landmarks: got None, expected the folder of the points of faces"),
        ({"cut_out": "none"}, "landmarks: got 'landmarks', expected nothing, unless data.cut_out is face"),
        ({"landmarks": "lines"}, "landmarks: got 'lines', expected the name of a folder of its own"),
        ({"crop": "random"}, "cut_out: got 'face', expected none, unless data.crop is center"),
        ({"width": 32}, "cut_out: got 'face', expected none or person with a data.width"),
        ({"cut_out": "person", "landmarks": None, "conditions": ()}, "cut_out: got 'person', expected none or face without"),
        ({"flow": "flow", "references": 0}, "cut_out: got 'face', expected none with data.points or data.flow"),
    ],
)
def test_settings_that_do_not_fit(root: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        settings(root, **changes).check()
    assert message in str(error.value)


def test_clips_without_a_face_have_the_middle(tmp_path: Path) -> None:
    write_faces(tmp_path, {0: 6}, extent=6)
    for t in range(6):
        write(tmp_path / f"landmarks/c0/{t}.json", b'{"people": []}')
    found = load(images_of(tmp_path), np.array([0])).to("cpu").images[0, 0]
    side = min(WIDTH, HEIGHT)
    expected = enlarged(frame(0, 0), Box((WIDTH - side) // 2, 0, (WIDTH + side) // 2, side))
    shrunk = found.movedim(0, -1).double().numpy() * 127.5 + 127.5  # by a mean of more pixels, which slopes do not change
    assert np.abs(shrunk - expected)[2:-2, 2:-2].max() <= 1
