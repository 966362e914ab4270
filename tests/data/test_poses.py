"""Maps of people in clips: limbs as bits, DensePose, what training leaves out of them, and what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.pairs import assert_same, taken, write
from tests.data.pictures import encoded, picture
from tests.data.test_keypoints import openpose, person
from triptych.cli.main import main
from triptych.core.batch import ClipLength, InputSpec
from triptych.core.errors import ConfigError, DataError
from triptych.data.clips import ClipDataConfig
from triptych.data.keypoints import PeopleStyle, draw_person
from triptych.data.loader import load
from triptych.data.poses import as_bits, densepose_of, dropped, leave_out, limbs_of
from triptych.gans.label_maps import LabelMaps

SIDE, CLIPS, FRAMES = 8, 3, 4
LIMBS = InputSpec(name="limbs", kind="image", channels=27, stored="limbs")
DENSEPOSE = InputSpec(name="dense", kind="image", channels=3, stored="densepose")


def png(levels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(levels).save(buffer, "PNG")
    return buffer.getvalue()


def limbs(seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random((SIDE, SIDE, 27)) < 0.4).astype(np.uint8)


def dense(seed: int) -> np.ndarray:
    levels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    levels[..., 2] %= 25
    levels[levels[..., 2] == 0] = 0
    return levels


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("people")
    for clip in range(CLIPS):
        for t in range(FRAMES):
            seed, name = 10 * clip + t, f"{clip}/{t}.png"
            write(place / "images" / name, encoded(picture(SIDE, SIDE, seed=seed)))
            write(place / "limbs" / name, png(as_bits(limbs(seed))))
            write(place / "dense" / name, png(dense(seed)))
            write(place / "edges" / name, encoded(picture(SIDE, SIDE, seed=seed)))
    return place


def settings(root: Path, **changes: object) -> ClipDataConfig:
    plain = {
        "limbs": "limbs",
        "densepose": "dense",
        "conditions": ("edges",),
        "image_size": SIDE,
        "flip": False,
        "validation_fraction": 0.0,
        "length": ClipLength(first=2, most=2),
        "references": 1,
        "workers": 0,
    }
    return ClipDataConfig(path=str(root), **(plain | changes))


def channels_by_hand(levels: np.ndarray) -> torch.Tensor:
    """DensePose (3, h, w) as networks see it."""
    found = np.empty((3, SIDE, SIDE))
    for i in range(SIDE):
        for j in range(SIDE):
            u, v, part = map(float, levels[i, j])
            found[:, i, j] = u / 255 * 2 - 1, v / 255 * 2 - 1, part / 24 * 2 - 1
    return torch.from_numpy(found)


def test_a_bit_for_each_limb_and_back() -> None:
    values = limbs(3)
    packed = as_bits(values)
    assert packed.shape == (SIDE, SIDE, 4) and packed.dtype == np.uint8
    for c in range(27):
        assert np.array_equal(packed[..., c // 8] >> (c % 8) & 1, values[..., c]), c
    assert np.array_equal(limbs_of(packed), 255 * values)


def test_clips_have_the_maps_that_lie_there(root: Path) -> None:
    data = settings(root).open()
    assert [(spec.name, spec.channels, spec.frames, spec.references) for spec in data.spec.inputs] == [
        ("dense", 3, 2, None),
        ("limbs", 27, 2, None),
        ("edges", 3, 2, None),
        ("style", 3, None, 1),
        ("dense_of_style", 3, None, 1),
        ("limbs_of_style", 27, None, 1),
        ("edges_of_style", 3, None, 1),
    ]
    batch = load(data.train, np.arange(len(data.train))).to("cpu")
    assert len(data.train) == 6
    for item in range(6):
        for t in range(2):
            seed = 10 * (item // 2) + 2 * (item % 2) + t
            found = batch.inputs["limbs"][item, t]
            assert torch.equal(found, torch.from_numpy(limbs(seed)).permute(2, 0, 1) * 2.0 - 1)
            expected = channels_by_hand(dense(seed))
            assert (batch.inputs["dense"][item, t].double() - expected).abs().max() < 1e-7
    maps = LabelMaps(tuple(spec for spec in data.spec.inputs if spec.frames), positive=("limbs",))
    whole = maps({name: values[:, 0] for name, values in batch.inputs.items() if not name.endswith("style")})
    assert maps.channels == 33 and torch.equal(whole[0, 3:30], torch.from_numpy(limbs(0)).permute(2, 0, 1).float()), "0 or 1"


def test_maps_are_cut_to_the_nearest_pixel(root: Path) -> None:
    batch = load(settings(root, image_size=4).open().train, np.array([0])).to("cpu")
    expected = limbs(0)[1::2, 1::2]
    assert torch.equal(batch.inputs["limbs"][0, 0], torch.from_numpy(expected).permute(2, 0, 1) * 2.0 - 1)


def test_training_leaves_limbs_and_parts_out_by_position_alone(root: Path) -> None:
    images = settings(root, drop_parts=0.3).open().train
    whole = settings(root).open().train
    one, other = taken(images, count=6), taken(images, start=8, count=4)
    sent, before = one.to("cpu"), taken(whole, count=6).to("cpu")
    assert_same(other, taken(images, start=8, count=4, workers=2))
    assert torch.equal(other.inputs["limbs"], one.inputs["limbs"][8:]) and torch.equal(other.inputs["dense"], one.inputs["dense"][8:])
    for limbs_name, dense_name, stream in (("limbs", "dense", "clip"), ("limbs_of_style", "dense_of_style", "references")):
        gone = dropped(one.index.numpy(), 27, share=0.3, seed=3, name=f"{stream}/limbs")
        parts = dropped(one.index.numpy(), 24, share=0.3, seed=3, name=f"{stream}/densepose")
        assert gone[:, :24].any() and gone[:, 24:].any() and parts.any()
        for k in range(len(one.index)):
            for t in range(before.inputs[limbs_name].shape[1]):
                expected = before.inputs[limbs_name][k, t].clone()
                for c in range(24):  # hands and faces stay
                    if gone[k, c]:
                        expected[c] = -1
                assert torch.equal(sent.inputs[limbs_name][k, t], expected)
                map_before, found = before.inputs[dense_name][k, t], sent.inputs[dense_name][k, t]
                for i in range(SIDE):
                    for j in range(SIDE):
                        part = round((float(map_before[2, i, j]) + 1) * 12)
                        is_out = part > 0 and parts[k, part - 1]
                        assert torch.equal(found[:, i, j], torch.full((3,), -1.0) if is_out else map_before[:, i, j])
    assert torch.equal(sent.inputs["edges"], before.inputs["edges"]) and torch.equal(sent.images, before.images)
    held = load(images, np.arange(6)).to("cpu")
    assert torch.equal(held.inputs["limbs"], load(whole, np.arange(6)).to("cpu").inputs["limbs"]), "nothing without a position"


def test_as_many_are_left_out_as_the_share_says() -> None:
    gone = dropped(np.arange(4000), 27, share=0.05, seed=0, name="clip/limbs")
    assert abs(gone.mean() - 0.05) < 4 * (0.05 * 0.95 / gone.size) ** 0.5
    assert not np.array_equal(gone, dropped(np.arange(4000), 27, share=0.05, seed=0, name="references/limbs"))
    values = densepose_of(np.full((1, 1, 3), 24, dtype=np.uint8))
    leave_out(values, np.arange(24) == 22, DENSEPOSE)
    assert values[2, 0, 0] == 1
    leave_out(values, np.arange(24) == 23, DENSEPOSE)
    assert (values == -1).all()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("limbs", png(np.full((SIDE, SIDE, 4), 255, np.uint8)), "a picture and no map of 27 limbs"),
        ("limbs", png(np.zeros((SIDE, SIDE, 3), np.uint8)), "PNG in RGB, expected PNG in RGBA"),
        ("dense", png(np.full((SIDE, SIDE, 3), 25, np.uint8)), "holds part 25, expected 0 to 24 in the last channel"),
        ("dense", encoded(picture(SIDE, SIDE, seed=1), "JPEG"), "JPEG in RGB, expected PNG in RGB"),
        ("dense", png(np.zeros((SIDE, SIDE + 1, 3), np.uint8)), "9x8 pixels, but"),
        ("limbs", b"", "an empty file"),
    ],
)
def test_what_is_no_map_is_named(root: Path, tmp_path: Path, name: str, content: bytes, message: str) -> None:
    for file in root.rglob("*.png"):
        write(tmp_path / file.relative_to(root), file.read_bytes())
    write(tmp_path / name / "0" / "0.png", content)
    with pytest.raises(DataError, match=f"{name}/0/0.png: .*{message}"):
        settings(tmp_path).open()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flip": True}, "flip: got True, expected false with data.limbs or data.densepose"),
        ({"drop_parts": 1.0}, "drop_parts: got 1.0, expected 0 or more and below 1"),
        ({"limbs": None, "densepose": None, "drop_parts": 0.1}, "drop_parts: got 0.1, expected 0 without data.limbs"),
        ({"limbs": "dense"}, "limbs: got 'dense', expected the name of a folder of its own"),
        ({"limbs": "images"}, "limbs: got 'images', expected the name of a folder of its own"),
        ({"densepose": "a/b"}, "densepose: got 'a/b', expected the name of a folder of its own"),
    ],
)
def test_settings_that_do_not_fit(root: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(root, **changes)


def test_maps_of_people_are_enough(root: Path) -> None:
    """As dances have no other maps."""
    alone: dict[str, object] = {"conditions": (), "maps": (), "num_classes": ()}
    spec = settings(root, references=0, **alone).open().spec
    assert {entry.name: entry.channels for entry in spec.inputs} == {"limbs": 27, "dense": 3}
    with pytest.raises(ConfigError, match="maps: got nothing, expected .* or other maps"):
        settings(root, limbs=None, densepose=None, **alone)


def test_settings_that_older_files_lack_are_not_written(root: Path) -> None:
    written = settings(root, limbs=None, densepose=None).to_dict()
    assert not written.keys() & {"limbs", "densepose", "drop_parts"}
    assert "stored" not in InputSpec(name="a", kind="image", channels=3).to_dict()
    with pytest.raises(ConfigError, match="stored: got 'limbs', expected pixels, limbs of an image of 27 channels"):
        InputSpec(name="a", kind="image", channels=3, stored="limbs")


def test_a_channel_for_each_limb_is_drawn_and_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = person(p1=(10, 10), p8=(10, 30), p14=(20, 10), p19=(25, 10), p17=(30, 5), p15=(35, 5))
    one["right"][:, :] = [(3 + k, 20, 0.5) for k in range(21)]
    one["face"][:17] = [(20 + k, 35, 0.5) for k in range(17)]
    whole = draw_person(one, height=40, width=48, style=PeopleStyle(limbs=True))
    assert whole.shape == (40, 48, 27) and set(np.unique(whole)) == {0, 1}
    assert set(np.flatnonzero(whole.any((0, 1)))) == {0, 5, 22, 25, 26}, "ear to eye, trunk, foot, right hand, face"
    for style, channels in (
        (PeopleStyle(limbs=True, body_only=True), {0, 5}),
        (PeopleStyle(limbs=True, face=False), {0, 5, 22, 25}),
    ):
        fewer = draw_person(one, height=40, width=48, style=style)
        for c in range(27):
            assert np.array_equal(fewer[..., c], whole[..., c] if c in channels else np.zeros((40, 48))), c
        coloured = draw_person(one, height=40, width=48, style=PeopleStyle(body_only=style.body_only, face=style.face))
        assert np.array_equal(coloured.any(-1), fewer.any(-1)), "the same lines"
    write(tmp_path / "openpose" / "a" / "7_keypoints.json", json.dumps(openpose(one)).encode())
    write(tmp_path / "openpose" / "a" / "8_keypoints.json", b'{"people": []}')
    call = ["data", "draw", str(tmp_path / "openpose"), "--kind", "people", "--height", "40", "--width", "48", "--form", "limbs"]
    assert main([*call, "--out", str(tmp_path / "limbs"), "--face", "False"]) == 0
    with Image.open(tmp_path / "limbs/a/7.png") as image:
        assert np.array_equal(limbs_of(np.asarray(image)), 255 * draw_person(one, height=40, width=48, style=style))
    with Image.open(tmp_path / "limbs/a/8.png") as image:
        assert not np.asarray(image).any(), "nobody"
    capsys.readouterr()
    for given, message in (
        (["--kind", "faces"], "--form: got 'limbs', expected colours but with --kind people"),
        (["--forehead", "False"], "--forehead: got False, expected true but with --kind faces"),
        (["--body-only", "True", "--face", "False"], "--face: got False, expected true with --body-only"),
    ):
        assert main([*call, "--out", str(tmp_path / "limbs"), *given]) == 2
        assert message in capsys.readouterr().err
