"""What the log says of clips that are too short for a model that looks back."""

from __future__ import annotations

import pytest

from tests.contract.shrink import light
from triptych.engine.distributed import open_world
from triptych.engine.run_directory import RunDirectory
from triptych.runs.document import RunDocument
from triptych.runs.opening_lines import long_warmup, opening_lines, short_clips
from triptych.runs.stored import build


@pytest.mark.parametrize(
    ("most", "said"),
    [(1, "at most 1 frame, and a frame is made from the 2 before it"), (2, "at most 2 frames, and a frame is made"), (3, None)],
)
def test_clips_that_are_too_short_to_look_back_are_warned_of(most, said):
    config = light("vid2vid-maps64").updated({"data": {"length": {"first": 1, "most": most}}, "model": {"generator": {"frames": 3}}})
    data = config.data.open()
    lines = list(short_clips(build(config, data.spec), data))
    assert not lines if said is None else said in lines[0] and "--data.length.most 3 or more" in lines[0]


@pytest.mark.parametrize(("scales", "most", "needed"), [(1, 2, 3), (1, 3, None), (2, 6, 7), (0, 2, None)])
def test_clips_that_are_too_short_for_a_discriminator_are_warned_of(scales, most, needed):
    """The second one sees frames 0, 3 and 6."""
    model = {"generator": {"frames": 2}, "discriminator": {"temporal_scales": scales}}
    config = light("vid2vid-maps64").updated({"data": {"length": {"first": 1, "most": most}}, "model": model})
    data = config.data.open()
    lines = list(short_clips(build(config, data.spec), data))
    assert len(lines) == (needed is not None)
    assert not lines or (f"looks at {needed}, from first to last" in lines[0] and f"--data.length.most {needed} or more" in lines[0])


def test_what_a_run_learns_from_is_counted_as_what_it_is(tmp_path):
    said = {}
    for recipe in ("vid2vid-maps64", "adm-digits"):
        config = light(recipe)
        data = config.data.open()
        model = build(config, data.spec)
        document = RunDocument(config, data.spec, recipe)
        _, said[recipe], *_ = opening_lines(model, data, document, RunDirectory(tmp_path), open_world("cpu"), None)
    assert " training clips (" in said["vid2vid-maps64"] and " training images (" in said["adm-digits"]


@pytest.mark.parametrize(("fraction", "said"), [(0.0001, "1 image is"), (0.005, "8 images are")])
def test_few_held_out_images_are_warned_of(tmp_path, fraction, said):
    config = light("adm-digits").updated({"data": {"validation_fraction": fraction}, "train": {"validate_images": 8}})
    data = config.data.open()
    document = RunDocument(config, data.spec, "adm-digits")
    lines = opening_lines(build(config, data.spec), data, document, RunDirectory(tmp_path), open_world("cpu"), None)
    assert any(line.startswith(f"warning: {said} held out, too few") for line in lines)


def test_enough_held_out_images_are_no_reason_for_a_warning(tmp_path, monkeypatch):
    config = light("adm-digits").updated({"data": {"validation_fraction": 0.005}, "train": {"validate_images": 8}})
    data = config.data.open()
    document, model = RunDocument(config, data.spec, "adm-digits"), build(config, data.spec)
    assert data.validation is not None
    for least, warned in ((len(data.validation), False), (len(data.validation) + 1, True)):
        monkeypatch.setattr("triptych.runs.opening_lines._FEW_HELD_OUT", least)
        lines = opening_lines(model, data, document, RunDirectory(tmp_path), open_world("cpu"), None)
        assert any("held out, too few" in line for line in lines) == warned


@pytest.mark.parametrize(
    ("total", "reached"), [(100, " images: train longer"), (99, " images and ends at 0.99 in place of 1: train longer")]
)
def test_a_warmup_that_is_not_over_says_where_it_ends(total, reached):
    config = light("adm-digits").updated({"train": {"total_images": total}, "optim": {"learning_rate": 1.0, "warmup_images": 100}})
    (line,) = long_warmup(config)
    assert line.endswith(f"rises over 100 of the run's {total}{reached}, or set --optim.warmup-images {round(total / 10)}")


def test_a_number_that_the_phases_replace_is_said_to_do_nothing(tmp_path):
    """By default nothing is said of R3GAN, whose beta2 begins at that of the section."""
    for betas, said in (((0.0, 0.9), 0), ((0.0, 0.95), 1)):
        config = light("r3gan-digits").updated({"optim": {"betas": betas}})
        data = config.data.open()
        document = RunDocument(config, data.spec, "r3gan-digits")
        lines = list(opening_lines(build(config, data.spec), data, document, RunDirectory(tmp_path), open_world("cpu"), None))
        assert sum("the second of optim.betas, 0.95, does nothing in discriminator, generator" in line for line in lines) == said
        assert config.train.total_images < 40 and any(": --train.evaluate-every 1 --train.best-by kid measures" in line for line in lines)


def test_models_of_single_images_have_no_clips():
    config = light("adm-digits")
    data = config.data.open()
    assert not list(short_clips(build(config, data.spec), data))
