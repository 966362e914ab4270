"""Run.translate of a model that remembers the colours of points: from all frames before, and on from where it was interrupted."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.pairs import as_map, write
from tests.data.pictures import encoded, picture
from tests.runs.translators import opened
from triptych.core.batch import ClipLength
from triptych.core.errors import Stopped
from triptych.data.clips import ClipDataConfig
from triptych.engine.config import TrainConfig
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.init import InitConfig
from triptych.gans.point_colours import no_colours, seen_colours, with_colours
from triptych.gans.video_discriminators import VideoDiscriminatorConfig
from triptych.gans.wc_vid2vid import WCVid2Vid, WCVid2VidConfig
from triptych.recipes.config import RunConfig
from triptych.runs import train

SIDE, CLASSES, FRAMES = 16, 3, 5
CPU = {"device": "cpu"}


def points(t: int) -> np.ndarray:
    """Of a window that moves by 3 pixels a frame, and back in the end; numbered from 1 on, with some that show none."""
    left = (0, 3, 6, 9, 0)[t]
    numbers = np.arange(SIDE)[:, None] * 40 + np.arange(SIDE) + left + 1
    numbers[:2] = 0
    return numbers.astype(np.uint16)


def label(t: int) -> np.ndarray:
    return np.random.default_rng(t).integers(CLASSES, size=(4, 4)).repeat(4, 0).repeat(4, 1)


def as_tiff(numbers: np.ndarray) -> bytes:
    """With 32 bits, and numbers near 1.9e9 but for 0: they are taken as names of points, not as sizes."""
    stream = io.BytesIO()
    Image.fromarray(np.where(numbers > 0, numbers.astype(np.int32) + 1_900_000_000, 0)).save(stream, "TIFF")
    return stream.getvalue()


@pytest.mark.slow
def test_frames_remember_colours_and_go_on_from_where_they_were(tmp_path: Path) -> None:
    clips = tmp_path / "clips"
    for clip in "ab":
        for t in range(FRAMES):
            write(clips / "images" / clip / f"{t}.png", encoded(picture(SIDE, SIDE, seed=t)))
            write(clips / "labels" / clip / f"{t}.png", as_map(label(t)))
            write(clips / "points" / clip / f"{t}.png", as_map(points(t)))
    model = WCVid2VidConfig(perceptual_weight=0.0, teacher="none", initial=InitConfig(kind="orthogonal", gain=1.0)).shrunk()
    patch = PatchDiscriminatorConfig(num_discriminators=1, num_filters=4, num_layers=1)
    config = RunConfig(
        model=replace(model, discriminator=VideoDiscriminatorConfig(patch=patch)),
        data=ClipDataConfig(
            path=str(clips),
            maps=("labels",),
            num_classes=(CLASSES,),
            points="points",
            image_size=SIDE,
            length=ClipLength(first=2, most=2),
            validation_fraction=0.0,
            workers=0,
        ),
        train=TrainConfig(total_images=1, batch_size=1, sample_count=0, ema_rates=(), compile="off"),
    )
    run = train(config, tmp_path / "run", **CPU)
    given = tmp_path / "in"
    for t in range(FRAMES):
        write(given / "labels" / "a" / f"{t}.png", as_map(label(t)))
        write(given / "points" / "a" / f"{t}.tif", as_tiff(points(t)))

    def interrupt(done: float, count: float) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(Stopped):
        run.translate(given, out=tmp_path / "made", progress=interrupt, **CPU)
    assert len(list((tmp_path / "made").glob("a/*.png"))) == 4
    run.translate(given, out=tmp_path / "made", **CPU)
    made = [opened(tmp_path / "made" / "a" / f"{t}.png") for t in range(FRAMES)]
    whole = run.translate(given, out=tmp_path / "whole", **CPU)
    assert all(np.array_equal(image[0], made[t]) for t, image in enumerate(whole.images))

    network = run.load(**CPU)
    assert isinstance(network, WCVid2Vid)
    numbers = [torch.from_numpy(points(t).astype(np.int64))[None] - 1 for t in range(FRAMES)]
    labels = [network.labels({"labels": torch.from_numpy(label(t))[None]}) for t in range(FRAMES)]
    images = [(torch.from_numpy(image.copy()).permute(2, 0, 1)[None] + 0.5) / 127.5 - 1 for image in made]
    table = no_colours(SIDE * 40, like=images[0])
    for t in range(FRAMES - 1):
        table = with_colours(table, numbers[t], images[t])
    guidance = seen_colours(table, numbers[-1])
    assert guidance[:, 3].mean() == 14 / 16, "the last frame shows what the first one did"
    assert torch.equal(guidance[:, :3, 2:], images[0][:, :, 2:])
    with torch.no_grad():
        last = network.generator(labels[-1], torch.stack(labels[-3:-1], 1), torch.stack(images[-3:-1], 1), guidance).image[0]
        without = network.generator(labels[-1], torch.stack(labels[-3:-1], 1), torch.stack(images[-3:-1], 1)).image[0]
    expected = ((last + 1) * 127.5).clamp(0, 255).permute(1, 2, 0).numpy()
    assert np.abs(expected - made[-1]).max() < 1.5 and (last - without).abs().max() > 0.02
