"""First frames of clips by a run of single images: as that makes them, shown to the frames after them, kept in a run, or refused."""

from __future__ import annotations

import functools
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.pairs import as_map, write
from tests.data.pictures import encoded, picture
from tests.runs.translators import opened
from triptych.core.batch import ClipLength, DataSpec, InputSpec
from triptych.core.errors import ConfigError, DataError, Stopped
from triptych.core.images import to_uint8
from triptych.core.model import seeded_build
from triptych.core.rng import Rng
from triptych.data.clips import ClipDataConfig
from triptych.data.pairs import PairedDataConfig
from triptych.engine.checkpoint import save_checkpoint
from triptych.engine.config import TrainConfig
from triptych.engine.run_directory import RunDirectory
from triptych.gans.clip_base import ClipTranslationConfig
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.init import InitConfig
from triptych.gans.point_colours import no_colours, seen_colours, with_colours
from triptych.gans.spade import SPADE, SPADEConfig
from triptych.gans.video_discriminators import VideoDiscriminatorConfig
from triptych.gans.wc_vid2vid import WCVid2Vid, WCVid2VidConfig
from triptych.recipes.config import RunConfig
from triptych.runs import Run, open_run
from triptych.runs.clip_scoring import RunClips
from triptych.runs.document import RunDocument
from triptych.runs.first_frames import run_first_frames
from triptych.runs.loading import Loading

SIDE, CLASSES, FRAMES = 16, 3, 4
CPU = {"device": "cpu"}
ONE_PATCH = PatchDiscriminatorConfig(num_discriminators=1, num_filters=4, num_layers=1)
TRAIN = TrainConfig(total_images=1, batch_size=1, ema_rates=(), compile="off")
SINGLE = SPADEConfig(perceptual_weight=0.0, initial=InitConfig(kind="orthogonal", gain=1.0)).shrunk()
SINGLE = replace(SINGLE, discriminator=replace(SINGLE.discriminator, patch=ONE_PATCH, feature_pyramid=False))
TWO = ClipTranslationConfig(first_frames=2)


def label(clip: int, t: int) -> np.ndarray:
    return np.random.default_rng([clip, t]).integers(CLASSES, size=(4, 4)).repeat(4, 0).repeat(4, 1)


def points(t: int) -> np.ndarray:
    """Of a window that moves by 3 pixels a frame; numbered from 1 on."""
    return (np.arange(SIDE)[:, None] * 40 + np.arange(SIDE) + 3 * t + 1).astype(np.uint16)


def write_clips(root: Path, *, images: bool) -> Path:
    for clip in range(2):
        for t in range(FRAMES):
            write(root / "labels" / f"{clip}" / f"{t}.png", as_map(label(clip, t)))
            write(root / "points" / f"{clip}" / f"{t}.png", as_map(points(t)))
            if images:
                write(root / "images" / f"{clip}" / f"{t}.png", encoded(picture(SIDE, SIDE, seed=t)))
    return root


def stored(config: RunConfig, spec: DataSpec, place: Path, *, seed: int = 3) -> Run:
    """A run with fresh weights."""
    directory = RunDirectory(place)
    directory.create()
    model = seeded_build(config.model, spec, seed=seed)
    save_checkpoint(directory.checkpoints, images_seen=1, files={"model": model.state_dict()}, info={"log2_loss_scale": {}, "best": None})
    directory.write_config(RunDocument(config, spec, None).to_dict())
    return open_run(place)


def single(place: Path, *, classes: int = CLASSES, seed: int = 3) -> Run:
    spec = DataSpec(image_size=SIDE, channels=3, inputs=(InputSpec(name="labels", kind="classes", num_classes=classes),))
    data = PairedDataConfig(maps=("labels",), num_classes=(classes,), image_size=SIDE)
    return stored(RunConfig(model=SINGLE, data=data, train=TRAIN), spec, place, seed=seed)


@pytest.fixture
def clips(tmp_path: Path) -> Run:
    """A run of clips, half of which are held out."""
    data = ClipDataConfig(
        path=str(write_clips(tmp_path / "clips", images=True)),
        maps=("labels",),
        num_classes=(CLASSES,),
        points="points",
        image_size=SIDE,
        length=ClipLength(first=FRAMES, most=FRAMES),
        validation_fraction=0.5,
        workers=0,
    )
    model = WCVid2VidConfig(perceptual_weight=0.0, teacher="none", initial=InitConfig(kind="orthogonal", gain=1.0)).shrunk()
    model = replace(model, discriminator=VideoDiscriminatorConfig(patch=ONE_PATCH))
    return stored(RunConfig(model=model, data=data, train=TRAIN), data.open().spec, tmp_path / "run")


def single_frame(run: Run, clip: int, t: int, *, seed: int = 0, maps_of: int | None = None) -> np.ndarray:
    """What the run makes of the maps of a clip, or of another one's."""
    model = _loaded(run)
    maps = {"labels": torch.from_numpy(label(clip if maps_of is None else maps_of, t))[None]}
    return to_uint8(model.translate(maps, Rng(seed, ("translate", "first"), torch.tensor([clip])), settings=model.translation)).numpy()[0]


@functools.cache
def _loaded(run: Run) -> SPADE:
    model = run.load(**CPU)
    assert isinstance(model, SPADE)
    return model


def seen(image: np.ndarray) -> torch.Tensor:
    return (torch.from_numpy(image.copy()).permute(2, 0, 1)[None] + 0.5) / 127.5 - 1


@pytest.mark.slow
def test_first_frames_are_those_of_the_run_and_are_shown_to_the_next_ones(clips: Run, tmp_path: Path) -> None:
    other, given = single(tmp_path / "single"), write_clips(tmp_path / "in", images=False)

    def interrupt(done: float, count: float) -> None:
        if done == 5:
            raise KeyboardInterrupt

    asked = {"first": tmp_path / "single", "seed": 7, "settings": TWO, **CPU}
    with pytest.raises(Stopped):
        clips.translate(given, out=tmp_path / "made", progress=interrupt, **asked)  # type: ignore[arg-type]
    clips.translate(given, out=tmp_path / "made", **asked)  # type: ignore[arg-type]
    made = [[opened(tmp_path / f"made/{clip}/{t}.png") for t in range(FRAMES)] for clip in range(2)]
    for clip in range(2):
        for t in range(2):
            assert np.array_equal(made[clip][t], single_frame(other, clip, t, seed=7)), "in one style, the clip's"
        assert not np.array_equal(made[clip][0], single_frame(other, clip, 0, seed=8))
    network = clips.load(**CPU)
    assert isinstance(network, WCVid2Vid)
    labels = [network.labels({"labels": torch.from_numpy(label(0, t))[None]}) for t in range(3)]
    images = [seen(image) for image in made[0][:2]]
    table = no_colours(SIDE * 40, like=images[0])
    for t in range(2):
        table = with_colours(table, torch.from_numpy(points(t).astype(np.int64))[None] - 1, images[t])
    guidance = seen_colours(table, torch.from_numpy(points(2).astype(np.int64))[None] - 1)
    with torch.no_grad():
        third = network.generator(labels[2], torch.stack(labels[:2], 1), torch.stack(images, 1), guidance).image[0]
    assert np.abs(((third + 1) * 127.5).clamp(0, 255).permute(1, 2, 0).numpy() - made[0][2]).max() < 1.5


@pytest.mark.slow
def test_a_run_that_is_kept_begins_all_clips(clips: Run, tmp_path: Path) -> None:
    other, given = single(tmp_path / "single"), write_clips(tmp_path / "in", images=False)
    plain = clips.translate(given, **CPU).images
    once = clips.translate(given, first=tmp_path / "single", **CPU).images
    assert np.array_equal(once[0][0], single_frame(other, 0, 0, seed=0)) and not np.array_equal(once[1], plain[1])
    assert not np.array_equal(once[1][0], single_frame(other, 0, 1, seed=0)), "one frame, unless more are asked for"
    shutil.copytree(tmp_path / "single", clips.paths.first_frames.root)
    for settings, expected in ((None, once), (ClipTranslationConfig(first_frames=0), plain)):
        found = clips.translate(given, settings=settings, **CPU).images
        assert all(np.array_equal(one, two) for one, two in zip(found, expected, strict=True))
    still = clips.translate(given, first=picture(SIDE, SIDE, seed=1)[None], **CPU).images
    assert np.array_equal(still[0][0], picture(SIDE, SIDE, seed=1)), "an image that is given goes before it"
    assert not np.array_equal(still[1][0], still[0][0]), "as the first frame alone"
    others = single(tmp_path / "others", seed=4)
    begun = clips.translate({"labels": [label(0, 0)], "points": [points(0)]}, first=others.directory, **CPU).images
    assert np.array_equal(begun[0][0], single_frame(others, 0, 0)) and not np.array_equal(begun[0], once[0]), "and so does a run"


def test_the_run_that_is_named_goes_before_the_one_that_is_kept_which_begins_held_out_clips(clips: Run, tmp_path: Path) -> None:
    other, named, opened = single(tmp_path / "single"), single(tmp_path / "named", seed=4), clips.open(Loading(device="cpu"))
    assert run_first_frames(None, clips, opened) is None
    shutil.copytree(other.directory, clips.paths.first_frames.root)
    for first, run in ((None, other), (named.directory, named)):
        found = run_first_frames(first, clips, opened)
        assert found is not None
        made = found.frame(0, 0, {"labels": torch.from_numpy(label(0, 0))[None]})
        assert made is not None and np.array_equal(made, single_frame(run, 0, 0))
    held = RunClips(clips, opened, frames=None, count=None).clip(0).made
    data = clips.config.data.open().validation
    assert data is not None
    shown = int(Path(data.key(0)).parent.name)
    assert np.array_equal(held[0], single_frame(other, 0, 0, maps_of=shown)) and not np.array_equal(held[0], held[-1])
    assert np.array_equal(held[-1], clips.translate(None, **CPU).images[0][0]), "the last frame stands for the clip"


def test_still_images_are_counted_by_their_numbers(clips: Run, tmp_path: Path) -> None:
    for k, name in enumerate(("1", "2", "10")):
        write(tmp_path / "in" / "labels" / name / "0.png", as_map(label(0, 0)))
        write(tmp_path / "in" / "points" / name / "0.png", as_map(points(0)))
        write(tmp_path / "first" / f"{name}.png", encoded(picture(SIDE, SIDE, seed=k)))
    clips.translate(tmp_path / "in", first=tmp_path / "first", out=tmp_path / "out", **CPU)
    for k, name in enumerate(("1", "2", "10")):
        assert np.array_equal(opened(tmp_path / "out" / name / "0.png"), picture(SIDE, SIDE, seed=k))


def test_what_it_refuses(clips: Run, tmp_path: Path) -> None:
    given = write_clips(tmp_path / "in", images=False)
    other = single(tmp_path / "other", classes=5)
    with pytest.raises(ConfigError, match=r"images of labels \(classes, 5\), but the clips have labels \(classes, 3\), points \(points\)"):
        clips.translate(given, first=other.directory, **CPU)
    with pytest.raises(ConfigError, match="first: got .*, but WCVid2Vid makes clips; name a run that makes single images"):
        clips.translate(given, first=clips.directory, **CPU)
    with pytest.raises(ConfigError, match="got an image, but held-out clips are made from their first frame on; leave it out, or name"):
        clips.translate(None, first=picture(SIDE, SIDE, seed=1)[None], **CPU)
    with pytest.raises(ConfigError, match="first: got a run, but SPADE makes each image by itself"):
        other.translate(given / "labels/0", first=clips.directory, **CPU)
    with pytest.raises(ConfigError, match=r"frames: got 9, expected at most \d: the longest held-out clip has no more$"):
        RunClips(clips, clips.open(Loading(device="cpu")), frames=9, count=None)
    with pytest.raises(ConfigError, match="frames: got 1, expected at least 2: figures of clips compare each frame with the one before"):
        RunClips(clips, clips.open(Loading(device="cpu")), frames=1, count=None)
    opened, moved = clips.open(Loading(device="cpu")), Path(clips.config.data.path)
    moved.rename(tmp_path / "moved")
    with pytest.raises(DataError, match="does not exist"):
        RunClips(clips, opened, frames=9, count=None)
    (tmp_path / "moved").rename(moved)
    more = {"settings": TWO, **CPU}
    for first in (None, picture(SIDE, SIDE, seed=1)[None]):
        with pytest.raises(ConfigError, match="first_frames: got 2, but no run makes the first frames; name one by first"):
            clips.translate(given, first=first, **more)
    with pytest.raises(ConfigError, match="first_frames: got 0, but clips shall begin with an image: set it to 1, or leave the image out"):
        clips.translate(given, first=picture(SIDE, SIDE, seed=1)[None], settings=ClipTranslationConfig(first_frames=0), **CPU)
    with pytest.raises(ConfigError, match="first_frames: got -1, expected 0 or more"):
        ClipTranslationConfig(first_frames=-1)
