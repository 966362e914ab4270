"""Run.translate of a model of clips: frames in order, each from the 8 bits of those before it, and on from where it was interrupted."""

from __future__ import annotations

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
from triptych.core.errors import ConfigError, DataError, Stopped
from triptych.data.clips import ClipDataConfig
from triptych.engine.config import TrainConfig
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.init import InitConfig
from triptych.gans.vid2vid import Vid2Vid, Vid2VidConfig
from triptych.gans.video_networks import VideoDiscriminatorConfig
from triptych.recipes.config import RunConfig
from triptych.runs import Run, train

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


def test_what_does_not_fit_is_said(run: Run, tmp_path: Path) -> None:
    maps = write_maps(tmp_path / "in", {"a": 2}) / "labels"
    with pytest.raises(DataError, match=r"made.npz: the frames of clips are written to a folder, as they are made; name one, without .npz"):
        run.translate(maps, out=tmp_path / "made.npz", **CPU)
    with pytest.raises(ConfigError, match="style: Vid2Vid takes no style from images"):
        run.translate(maps, style=maps, **CPU)
    write(maps / "a/10.png", as_map(class_map("a", 2, side=32)))
    with pytest.raises(DataError, match="a/10 would have 32x32 pixels, but a/8 of the same clip 16x16; the frames of a clip have one size"):
        run.translate(maps, size="own", out=tmp_path / "out", **CPU)
    assert len(run.translate(maps, **CPU).images) == 3, "cut to the run's size"


def test_held_out_clips_and_pictures_during_training(run: Run) -> None:
    held_out = run.translate(None, **CPU)
    assert held_out.images[0].shape == (1, SIDE, SIDE, 3)
    (picture_of_clips,) = (run.directory / "samples").glob("*.png")
    with Image.open(picture_of_clips) as image:
        assert image.width > 3 * SIDE, "the map, what was made, and the truth"
