"""Run.translate of few-shot vid2vid: clips that look like style images, which come with maps; and finetuning on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.pairs import as_map, write
from tests.data.pictures import encoded, picture
from tests.runs.test_video import CLASSES, class_map, write_maps
from tests.runs.translators import opened
from triptych.core.batch import ClipLength
from triptych.core.errors import ConfigError, DataError, Stopped
from triptych.core.finetuning import Finetuning
from triptych.core.model import Phase, TrainingProgress
from triptych.core.ramp import Ramp
from triptych.core.rng import Rng
from triptych.data.clips import ClipDataConfig
from triptych.engine.config import OptimConfig, PhaseOptimConfig, TrainConfig
from triptych.engine.progress import unwatched
from triptych.gans.discriminators import PatchDiscriminatorConfig
from triptych.gans.fs_vid2vid import FewShotTranslationConfig, FewShotVid2Vid, FewShotVid2VidConfig
from triptych.gans.init import InitConfig
from triptych.gans.penalties import PenaltyConfig
from triptych.gans.video_discriminators import VideoDiscriminatorConfig
from triptych.recipes.config import RunConfig
from triptych.runs import Run, train
from triptych.runs.finetuning import finetune

SIDE = 16
CPU = {"device": "cpu"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One that has seen a clip of two frames, with a reference."""
    root = tmp_path_factory.mktemp("few-shot")
    data = write_maps(root / "clips", {"a": 4, "b": 4, "c": 4}, images=True)
    patch = PatchDiscriminatorConfig(num_discriminators=1, num_filters=4, num_layers=1)
    model = replace(
        FewShotVid2VidConfig(perceptual_weight=0.0, l1_weight=10.0, initial=InitConfig(kind="orthogonal", gain=1.0)).shrunk(),
        discriminator=VideoDiscriminatorConfig(patch=patch),
    )
    length = ClipLength(first=2, most=2)
    given: dict[str, Any] = {"maps": ("labels",), "num_classes": (CLASSES,), "image_size": SIDE, "length": length, "references": 1}
    config = RunConfig(
        model=model,
        data=ClipDataConfig(path=str(data), validation_fraction=0.4, workers=0, **given),
        train=TrainConfig(total_images=1, batch_size=1, sample_count=2, ema_rates=(), compile="off", validate_images=1),
        optim=OptimConfig(name="adam", learning_rate=2e-3, betas=(0.0, 0.999)),
    )
    return train(config, root / "run", **CPU)


def write_style(root: Path, count: int = 2, *, first: int = 60) -> Path:
    for k in range(count):
        write(root / "labels" / f"{k}.png", as_map(class_map("z", k)))
        write(root / "images" / f"{k}.png", encoded(style_image(k, first=first)))
    return root


def style_image(k: int, *, first: int = 60) -> np.ndarray:
    return picture(SIDE, SIDE, seed=first + k)


def seen(images: list[np.ndarray]) -> torch.Tensor:
    """(1, k, c, h, w)"""
    return torch.from_numpy(np.stack(images)).movedim(-1, 1)[None].float() / 127.5 - 1


def by_hand(run: Run, clip: str, length: int, styles: list[int], *, model: FewShotVid2Vid | None = None) -> list[np.ndarray]:
    """The frames (h, w, c), each made of the 8 bits of the one before it."""
    model = model or run.load(**CPU)  # type: ignore[assignment]
    assert isinstance(model, FewShotVid2Vid)

    def label(clip: str, t: int) -> torch.Tensor:
        return model.labels({"labels": torch.from_numpy(class_map(clip, t))[None]})

    references, maps = seen([style_image(k) for k in styles]), torch.stack([label("z", k) for k in styles], 1)
    made: list[np.ndarray] = []
    for t in range(length):
        past = [label(clip, t - 1), (torch.from_numpy(made[-1]).permute(2, 0, 1)[None] + 0.5) / 127.5 - 1] if made else []
        with torch.no_grad():
            image = model.generator(label(clip, t), references, maps, *past).image[0]
        made.append(((image + 1) * 127.5).clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy())
    return made


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.slow
def test_clips_look_like_their_style_and_go_on_from_where_they_were(run: Run, tmp_path: Path) -> None:
    maps, style, out = write_maps(tmp_path / "in", {"a": 4, "b": 3}) / "labels", write_style(tmp_path / "style"), tmp_path / "out"
    expected = {
        f"{clip}/{t + 8}": image for clip, length in (("a", 4), ("b", 3)) for t, image in enumerate(by_hand(run, clip, length, [0, 1]))
    }
    other = by_hand(run, "a", 1, [1])[0]
    assert np.abs(other.astype(int) - expected["a/8"].astype(int)).max() > 2, "the style counts"

    def interrupt(done: float, count: float) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(Stopped, match="the same command goes on"):
        run.translate(maps, style=style, out=out, progress=interrupt, **CPU)
    run.translate(maps, style=style, out=out, **CPU)
    for name, image in expected.items():
        assert_close(opened(out / f"{name}.png"), image)
    fresh = tmp_path / "fresh"
    run.translate(maps, style=style, out=fresh, **CPU)
    assert {path.name: path.read_bytes() for path in fresh.glob("*/*.png")} == {
        path.name: path.read_bytes() for path in out.glob("*/*.png")
    }
    grid = opened(out / "grid.png")[::3, ::3]
    windows = np.lib.stride_tricks.sliding_window_view(grid, (SIDE, SIDE, 3))[:, :, 0]
    assert (windows == style_image(0)).all((2, 3, 4)).any(), "it shows the first style image"


def test_clips_take_style_images_in_turn(run: Run, tmp_path: Path) -> None:
    maps, style = write_maps(tmp_path / "in", {"a": 2, "b": 2, "c": 2}), write_style(tmp_path / "style")
    made = run.translate(maps, style=style, style_each=True, **CPU)
    expected = [*by_hand(run, "a", 2, [0]), *by_hand(run, "b", 2, [1]), *by_hand(run, "c", 2, [0])]
    for answer, image in zip(made.images, expected, strict=True):
        assert_close(answer[0], image)
    arrays = {"labels": [class_map("a", t) for t in range(2)]}
    look = {"style": np.stack([style_image(0)]), "labels_of_style": np.stack([class_map("z", 0)])}
    assert_close(np.stack(run.translate(arrays, style=look, **CPU).images)[:, 0], np.stack(expected[:2]))


def test_clips_and_style_images_are_counted_by_their_numbers(run: Run, tmp_path: Path) -> None:
    for k, name in enumerate(("1", "2", "10")):
        write(tmp_path / "in" / "labels" / name / "8.png", as_map(class_map("a", 0)))
        write(tmp_path / "style" / "labels" / f"{name}.png", as_map(class_map("z", k)))
        write(tmp_path / "style" / "images" / f"{name}.png", encoded(style_image(k)))
    given = {"style": tmp_path / "style", **CPU}
    run.translate(tmp_path / "in", style_each=True, out=tmp_path / "out", **given)  # type: ignore[arg-type]
    for k, name in enumerate(("1", "2", "10")):
        assert_close(opened(tmp_path / "out" / name / "8.png"), by_hand(run, "a", 1, [k])[0])
    together = run.translate(tmp_path / "in", **given).images[0][0]  # type: ignore[arg-type]
    assert_close(together, by_hand(run, "a", 1, [0, 1, 2])[0])


def test_style_images_have_one_size_that_of_their_maps_and_of_the_frames(run: Run, tmp_path: Path) -> None:
    maps, style = write_maps(tmp_path / "in", {"a": 1}), write_style(tmp_path / "style")

    def refused(**given: Any) -> str:
        with pytest.raises((ConfigError, DataError)) as found:
            run.translate(maps, style=style, **given, **CPU)
        return str(found.value)

    write(style / "images" / "1.png", encoded(picture(2 * SIDE, SIDE, seed=1)))
    assert "style/labels/1.png: 16x16 pixels, but " in refused() and "make them one size" in refused()
    write(style / "labels" / "1.png", as_map(class_map("z", 1).repeat(2, 1)))
    said = refused(size="own")
    assert said.startswith("size: ") and "style/images/1.png would have 32x16 pixels, but a/8 16x16; style images have that of the" in said
    assert run.translate(maps, style=style, **CPU).images[0].shape == (1, SIDE, SIDE, 3), "cut to the run's size"
    held_out = {"style": {"style": [style_image(0), picture(2 * SIDE, SIDE, seed=1)], "labels_of_style": [class_map("z", 0)] * 2}}
    with pytest.raises(DataError, match=r"labels_of_style\[1\]: 16x16 pixels, but style\[1\] has 32x16; make them one size"):
        run.translate(None, count=1, **held_out, **CPU)


@pytest.mark.slow
def test_nothing_is_learned_for_what_cannot_be_made_or_is_there(run: Run, tmp_path: Path) -> None:
    maps, style, told = write_maps(tmp_path / "in", {"a": 2}), write_style(tmp_path / "style", 1), list[tuple[float, float]]()
    given: dict[str, Any] = {"style": style, "settings": FewShotTranslationConfig(finetune=3), **CPU}
    given["progress"] = lambda done, count: told.append((done, count))
    with pytest.raises(DataError, match="the frames of clips are written to a folder"):
        run.translate(maps, out=tmp_path / "x.npz", **given)
    assert not told
    run.translate(maps, out=tmp_path / "out", **given)
    assert told == [(0, 2), (1, 3), (2, 3), (3, 3), (1, 2), (2, 2)]
    told.clear()
    run.translate(maps, out=tmp_path / "out", **given)
    assert told == [(2, 2)]
    told.clear()
    run.translate(None, count=1, **given)
    assert told[1:4] == [(1, 3), (2, 3), (3, 3)]


def test_held_out_clips_have_references_of_their_own_but_for_other_style_images(run: Run, tmp_path: Path) -> None:
    own = run.translate(None, count=1, **CPU).images[0]
    other = run.translate(None, count=1, style=write_style(tmp_path / "style"), **CPU).images[0]
    assert own.shape == other.shape == (1, SIDE, SIDE, 3) and np.abs(own.astype(int) - other.astype(int)).max() > 2


@pytest.mark.slow
def test_finetuning_brings_frames_nearer_to_the_style_and_leaves_the_run_alone(run: Run, tmp_path: Path) -> None:
    style = write_style(tmp_path / "style", 1)
    maps = tmp_path / "in" / "labels"
    write(maps / "a" / "0.png", as_map(class_map("z", 0)))
    before = {path: path.read_bytes() for path in (run.directory / "checkpoints").rglob("*") if path.is_file()}
    plain = run.translate(maps, style=style, **CPU).images[0][0]
    settings = FewShotTranslationConfig(finetune=30)
    told: list[float] = []
    tuned = run.translate(maps, style=style, settings=settings, progress=lambda done, count: told.append(done), **CPU).images[0][0]
    assert told[:30] == list(range(1, 31))
    distances = [np.abs(image.astype(int) - style_image(0).astype(int)).mean() for image in (plain, tuned)]
    assert distances[1] < 0.8 * distances[0]
    again = run.translate(maps, style=style, settings=settings, **CPU).images[0][0]
    assert np.array_equal(again, tuned)
    assert {path: path.read_bytes() for path in before} == before
    assert np.array_equal(run.translate(maps, style=style, **CPU).images[0][0], plain)
    with pytest.raises(ConfigError, match="finetune_rate: got 0.01, but nothing is learned: give finetune too"):
        run.translate(maps, style=style, settings=FewShotTranslationConfig(finetune_rate=0.01), **CPU)
    slower = run.translate(maps, style=style, settings=replace(settings, finetune_rate=1e-9), **CPU).images[0][0]
    # Spectral norm has moved on: by at most 4 levels, measured (3 with other random biases); a usual rate changes tens of them.
    assert np.abs(slower.astype(int) - plain.astype(int)).max() <= 6
    assert np.abs(tuned.astype(int) - plain.astype(int)).max() > 20


@pytest.mark.slow
def test_a_lazy_penalty_has_its_steps_in_finetuning_too(tmp_path: Path, run: Run) -> None:
    penalised = replace(run.config.model, penalty=PenaltyConfig(r1_gamma=1.0, every=2))  # type: ignore[type-var]
    config = replace(run.config, model=penalised, train=replace(run.config.train, validate_every=None, sample_every=None))
    other = train(config, tmp_path / "run", **CPU)
    maps, style = write_maps(tmp_path / "in", {"a": 1}), write_style(tmp_path / "style", 1)
    plain, tuned = (other.translate(maps, style=style, settings=FewShotTranslationConfig(finetune=n), **CPU).images[0] for n in (0, 3))
    assert not np.array_equal(plain, tuned)


def test_each_step_of_finetuning_is_one_of_training(run: Run) -> None:
    """The chosen weights move and no others of the generator, and spectral norm follows them by its power iteration."""
    model = run.load(**CPU)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    look = {"style": seen([style_image(0)]), "labels_of_style": torch.from_numpy(class_map("z", 0))[None, None]}
    finetune(model, look, how=Finetuning(steps=2, rate=1e-3), optim=run.config.optim, seed=0, progress=unwatched)
    assert isinstance(model, FewShotVid2Vid) and not model.training
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    weights = {f"generator.{name}" for name, _ in model.generator.named_parameters()}
    chosen = {f"generator.{name}" for name in model.finetuned_weights()["generator"]}
    assert changed & weights and changed & weights <= chosen
    assert {name for name in changed if name.startswith("generator.up_0.") and name.endswith("weight_u")}


def test_what_changes_over_a_run_has_arrived_when_it_is_finetuned(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps follow the training: a penalty that falls does not begin anew."""
    model, asked = run.load(**CPU), list[int]()
    prepare = model.prepare

    def prepared(phase: Phase, progress: TrainingProgress) -> None:
        asked.append(progress.images_seen)
        prepare(phase, progress)

    monkeypatch.setattr(model, "prepare", prepared)
    look = {"style": seen([style_image(0)]), "labels_of_style": torch.from_numpy(class_map("z", 0))[None, None]}
    finetune(model, look, how=Finetuning(steps=1, rate=1e-3), optim=run.config.optim, seed=0, progress=unwatched)
    assert len(asked) == len(model.phases) and min(asked) > 10**15


def test_each_network_is_finetuned_at_the_rate_of_its_phase(run: Run) -> None:
    assert isinstance(run.config.model, FewShotVid2VidConfig)
    torch.manual_seed(0)
    model = replace(run.config.model, discriminator_rate=4.0).build(run.spec)
    assert isinstance(model, FewShotVid2Vid)
    weights = model.finetuned_weights()
    before = {name: {key: weight.detach().clone() for key, weight in some.items()} for name, some in weights.items()}
    look = {"style": seen([style_image(0)]), "labels_of_style": torch.from_numpy(class_map("z", 0))[None, None]}
    finetune(model, look, how=Finetuning(steps=1, rate=1e-3), optim=run.config.optim, seed=0, progress=unwatched)
    for name, rate in (("discriminator", 4e-3), ("generator", 1e-3)):  # by which the first step of Adam moves each weight
        moved = max(float((weight.detach() - before[name][key]).abs().max()) for key, weight in weights[name].items())
        assert moved == pytest.approx(rate, rel=1e-2), name


def test_finetuning_takes_the_optimizer_of_each_phase_and_clips(run: Run) -> None:
    """At the end of what changes over a run, without warm-up; a rate that is given is that of all phases."""
    look = {"style": seen([style_image(0)]), "labels_of_style": torch.from_numpy(class_map("z", 0))[None, None]}
    ramp = Ramp(start=1.0, end=2e-3, images=10**6)
    ramped = replace(run.config.optim, warmup_images=1000, phases=(PhaseOptimConfig(phase="generator", learning_rate=ramp),))
    clipped = replace(run.config.optim, eps=1.0, clip_norm=1e-3)

    def moved(how: Finetuning, optim: OptimConfig) -> float:
        model = run.load(**CPU)
        assert isinstance(model, FewShotVid2Vid)
        weights = model.finetuned_weights()["generator"]
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        finetune(model, look, how=how, optim=optim, seed=0, progress=unwatched)
        return max(float((weight.detach() - before[name]).abs().max()) for name, weight in weights.items())

    assert moved(Finetuning(steps=1, rate=None), ramped) == pytest.approx(2e-3, rel=1e-2)
    assert moved(Finetuning(steps=1, rate=1e-3), ramped) == pytest.approx(1e-3, rel=1e-2)
    slower = replace(run.config.optim, learning_rate=4e-3, warmup_images=0, phases=(PhaseOptimConfig(rate_factor=0.5),))
    assert moved(Finetuning(steps=1, rate=None), slower) == pytest.approx(2e-3, rel=1e-2)
    assert moved(Finetuning(steps=1, rate=1e-3), slower) == pytest.approx(1e-3, rel=1e-2)
    assert 0 < moved(Finetuning(steps=1, rate=1.0), clipped) <= 1.1e-3, "the gradient over 1, for eps is 1"


def test_references_are_rolled_by_up_to_a_sixteenth_of_each_side(run: Run) -> None:
    model, image = run.load(**CPU), torch.arange(32 * 64, dtype=torch.float32).view(1, 1, 1, 32, 64).expand(1, 1, 3, 32, 64)
    assert isinstance(model, FewShotVid2Vid)
    look = {"style": image, "labels_of_style": image[:, :, 0].long()}
    places = set[tuple[int, int]]()
    for step in range(200):
        batch = model.of_style(look, Rng(0, ("finetune", step), torch.zeros(1, dtype=torch.long)))
        where = int((batch.images[0, 0, 0] == 0).nonzero()[0] @ torch.tensor([64, 1]))
        places.add(((where // 64 + 16) % 32 - 16, (where % 64 + 32) % 64 - 32))
    downs, acrosses = ({place[axis] for place in places} for axis in (0, 1))
    assert downs == set(range(-2, 3)) and acrosses == set(range(-4, 5))


def test_what_finetuning_looks_at(run: Run) -> None:
    model = run.load(**CPU)
    assert isinstance(model, FewShotVid2Vid)
    look = {
        "style": seen([style_image(k) for k in range(3)]),
        "labels_of_style": torch.stack([torch.from_numpy(class_map("z", k)) for k in range(3)])[None],
    }
    shifts, which = set(), set()
    for step in range(200):
        batch = model.of_style(look, Rng(0, ("finetune", step), torch.zeros(1, dtype=torch.long)))
        assert batch.images.shape == (1, 1, 3, SIDE, SIDE) and torch.equal(batch.inputs["style"], look["style"])
        (found,) = [
            (k, down, across)
            for k in range(3)
            for down in (-1, 0, 1)
            for across in (-1, 0, 1)
            if torch.equal(batch.images[0, 0], look["style"][0, k].roll((down, across), (-2, -1)))
        ]
        assert torch.equal(batch.inputs["labels"][0, 0], look["labels_of_style"][0, found[0]].roll(found[1:], (-2, -1)))
        which.add(found[0])
        shifts.add(found[1:])
    assert which == {0, 1, 2} and len(shifts) == 9
    weights = model.finetuned_weights()
    assert set(weights) == {"discriminator", "generator"} == {phase.name for phase in model.phases}
    assert {name.partition(".")[0] for name in weights["generator"]} == {"weight_generator", "up_0", "up_1", "up_2", "conv_img"}
    assert all(name.startswith("weight_generator.fc_spade_") for name in weights["generator"] if name.startswith("weight_generator"))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, ConfigError, "style: missing: FewShotVid2Vid makes images with the look of others; give one or several of them"),
        (
            {"style": "style", "style_each": True, "style_count": 2},
            ConfigError,
            "style_count: got 2, but FewShotVid2Vid makes one clip of each",
        ),
        ({"style": "style/images/0.png"}, DataError, "not a folder; the style of clips is one with the sub-folders images, labels"),
        ({"style": "style/images"}, DataError, r"holds no folder images \(of style images\)"),
        (
            {"style": "style", "style_each": True, "settings": FewShotTranslationConfig(finetune=1)},
            ConfigError,
            "finetune: got 1 beside style_each, but all style images are learned together; leave one of them out",
        ),
        (
            {"style": {"style": np.zeros((1, SIDE, SIDE, 3), np.uint8)}},
            ConfigError,
            "style: got style, expected arrays by the names style, lab",
        ),
    ],
)
def test_what_does_not_fit_is_named(run: Run, tmp_path: Path, given: dict[str, Any], error: type[Exception], message: str) -> None:
    maps = write_maps(tmp_path / "in", {"a": 2})
    write_style(tmp_path / "style")
    given = {name: tmp_path / value if isinstance(value, str) else value for name, value in given.items()}
    with pytest.raises(error, match=message):
        run.translate(maps, **given, **CPU)
