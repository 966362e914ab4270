"""Pans: what windows see, its true flow and points; and points of stored clips."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.pairs import as_map, taken, write
from tests.data.pictures import encoded
from triptych.core.batch import ClipLength, InputSpec
from triptych.core.errors import ConfigError
from triptych.data.clips import ClipDataConfig, numbered
from triptych.data.loader import load
from triptych.data.pans import PanDataConfig, PanImages

HEIGHT, WIDTH, MARGIN, SPEED = 6, 8, 3, 2
LENGTH = ClipLength(first=3, most=7, double_every=6)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures that say where their pixels are, and maps that do so too."""
    place = tmp_path_factory.mktemp("pans")
    down, across = HEIGHT + 2 * MARGIN, WIDTH + 2 * MARGIN
    for k in range(5):
        pixels = np.zeros((down, across, 3), dtype=np.uint8)
        pixels[..., 0], pixels[..., 1], pixels[..., 2] = 50 * k, np.arange(across) * 9, np.arange(down)[:, None] * 9
        write(place / "images" / f"{k}.png", encoded(pixels))
        write(place / "labels" / f"{k}.png", as_map(pixels[..., 1] // 9))
    return place


def settings(root: Path, **changes: object) -> PanDataConfig:
    plain = {"maps": ("labels",), "num_classes": (20,), "image_size": HEIGHT, "width": WIDTH, "length": LENGTH, "margin": MARGIN}
    return PanDataConfig(path=str(root), **(plain | {"speed": SPEED, "validation_fraction": 0.25} | changes))


def places(clip: torch.Tensor) -> np.ndarray:
    """Top and left of the window in each frame (t, h, w, 3) of a clip that is not mirrored."""
    return np.stack([clip[:, 0, 0, 2].numpy() // 9, clip[:, 0, 0, 1].numpy() // 9], axis=1)


def test_windows_move_steadily_and_turn_back_at_the_edges(root: Path) -> None:
    data = settings(root, flip=False).open()
    assert isinstance(data.train, PanImages) and data.spec.frames == 7 and data.spec.clip_length == LENGTH
    assert [(entry.name, entry.kind, entry.frames) for entry in data.spec.inputs] == [
        ("labels", "classes", 7),
        ("flow", "flow", 7),
        ("points", "points", 7),
    ]
    moves = set()
    for position in range(40):
        found = data.train.places(0, position, count=9, seed=2)
        assert (found >= 0).all() and (found <= 2 * MARGIN).all()
        steps = abs(np.diff(found, axis=0))
        assert steps.max() <= SPEED and steps.max() > 0
        moves |= {tuple(step) for step in np.diff(found, axis=0)}
    assert len(moves) == (2 * SPEED + 1) ** 2
    batch = taken(data.train, start=0, count=1, batch_size=4)
    assert batch.images.shape == (4, 3, HEIGHT, WIDTH, 3)
    for clip, position in zip(batch.images, range(4), strict=True):
        assert np.array_equal(places(clip), data.train.places(0, position, count=3, seed=3))


def test_flow_and_points_are_those_of_what_is_seen(root: Path) -> None:
    batch = taken(settings(root).open().train, start=6, count=1, batch_size=4)
    assert batch.images.shape[1] == 6
    images, points, flow = batch.images.int(), batch.inputs["points"], batch.inputs["flow"]
    assert torch.equal(batch.inputs["labels"].int(), images[..., 1] // 9)
    assert flow[:, 0].isnan().all()
    for clip in range(4):
        colours: dict[int, list[int]] = {}
        for t in range(6):
            for y in range(HEIGHT):
                for x in range(WIDTH):
                    colour = images[clip, t, y, x].tolist()
                    assert colours.setdefault(int(points[clip, t, y, x]), colour) == colour
                    across, down = flow[clip, t, :, y, x].tolist()
                    if across == across:
                        assert images[clip, t - 1, y + int(down), x + int(across)].tolist() == colour
                    else:
                        assert t == 0 or not (points[clip, t - 1] == points[clip, t, y, x]).any()
        assert set(colours) == set(range(len(colours))) and len({tuple(c) for c in colours.values()}) == len(colours)


def test_held_out_clips_end_where_they_begin(root: Path) -> None:
    data = settings(root).open()
    assert data.validation is not None
    batch = load(data.validation, np.arange(len(data.validation)))
    assert batch.images.shape[1] == 7
    for clip in batch.images:
        there = places(clip)
        assert np.array_equal(there, there[::-1]) and (there[3] != there[0]).any()


@pytest.mark.parametrize(
    ("changes", "setting"), [({"margin": 0}, "margin"), ({"speed": 7}, "speed"), ({"resize": 9}, "resize"), ({"maps": ("flow",)}, "maps")]
)
def test_what_pans_refuse(root: Path, changes: dict[str, object], setting: str) -> None:
    with pytest.raises(ConfigError) as raised:
        settings(root, **changes)
    assert raised.value.setting == setting


def test_points_of_stored_clips(tmp_path: Path) -> None:
    """Numbers of 24 bits from 1 on; those of a clip are numbered anew, and points that are seen again stay the same."""
    stored = np.array([[0, 1, 70_000], [2**24 - 1, 70_000, 1]])
    for t in range(2):
        write(tmp_path / "images" / "a" / f"{t}.png", encoded(np.zeros((2, 3, 3), dtype=np.uint8)))
        write(tmp_path / "labels" / "a" / f"{t}.png", as_map(np.zeros((2, 3), dtype=np.uint8)))
        values = stored + t * (stored == 1)
        coloured = np.stack([values % 256, values // 256 % 256, values // 65536], axis=-1).astype(np.uint8)
        (tmp_path / "points" / "a").mkdir(parents=True, exist_ok=True)
        Image.fromarray(coloured).save(tmp_path / "points" / "a" / f"{t}.png")
    config = ClipDataConfig(
        path=str(tmp_path),
        maps=("labels",),
        num_classes=(1,),
        points="points",
        image_size=2,
        width=3,
        validation_fraction=0.0,
        length=ClipLength(first=2, most=2),
    )
    data = config.open()
    assert data.spec.inputs[1] == InputSpec(name="points", kind="points", frames=2)
    batch = load(data.train, np.arange(1))
    assert batch.inputs["points"][0].tolist() == [[[-1, 0, 2], [3, 2, 0]], [[-1, 1, 2], [3, 2, 1]]]
    assert "points" not in ClipDataConfig(maps=("labels",), num_classes=(1,)).to_dict()
    with pytest.raises(ConfigError, match="points: got 'labels'"):
        ClipDataConfig(maps=("labels",), num_classes=(1,), points="labels")


def test_numbers_of_points_are_dense() -> None:
    assert numbered(np.array([[[9, -1], [2**40, 9]]])).tolist() == [[[0, -1], [1, 0]]]
    assert numbered(np.array([[[5, 5]]])).tolist() == [[[0, 0]]]
