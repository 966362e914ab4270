"""The images that a run makes for an evaluation: each is the same whoever asks for it, and what they are made of is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.runs.translators import ONE_MAP, close, halved, paired_run
from triptych.core.errors import ConfigError
from triptych.core.images import nearest_uint8
from triptych.data.skipping import Spread
from triptych.gans.kl_autoencoder import KLEncodingConfig
from triptych.runs import Run
from triptych.runs.given.data_images import model_reference
from triptych.runs.loading import Loading
from triptych.runs.model_images import ImageRequest, ModelImages, maker_of

FAST = {"sampler": "ddim", "steps": 2}


def made(run: Run, count: int, **request: Any) -> ModelImages:
    if hasattr(run.config.model, "sampling") and hasattr(run.config.model.sampling, "sampler"):
        request = {"settings": run.config.model.sampling.updated(FAST)} | request
    maker = maker_of(run, ImageRequest(**request))
    opened = run.open(Loading(device="cpu"))
    assert run.origin() == opened.origin
    return maker.made(opened, count)


@pytest.mark.slow
def test_a_sample_is_the_same_to_the_bit_whoever_asks(tiny: Any) -> None:
    run = tiny("adm-digits")
    whole = made(run, 40)
    images = whole.images(range(40))
    assert images.shape == (40, 8, 8, 1) and len(np.unique(images, axis=0)) == 40
    assert np.array_equal(made(run, 3).images([2, 0]), images[[2, 0]])
    assert np.array_equal(whole.images([39, 5]), images[[39, 5]])
    assert whole.labels is not None and whole.labels.tolist() == [k % 10 for k in range(40)]
    drawn = run.sample(4, settings=run.config.model.sampling.updated(FAST), device="cpu")  # type: ignore[attr-defined]
    assert close(drawn.images, images[:4])
    assert not np.array_equal(made(run, 4, seed=1).images(range(4)), images[:4])
    threes = made(run, 4, labels=["3"])
    assert threes.labels is not None and threes.labels.tolist() == [3] * 4
    assert np.array_equal(threes.images([3]), images[3:4])


def test_upsampled_images_have_their_originals_as_truth(tiny: Any) -> None:
    run = tiny("upsample-digits")
    held = run.config.data.open().validation
    found = made(run, 45)  # every second one of the 90 held-out images
    originals = held.batch(np.arange(0, 90, 2)).images
    assert found.truth is not None and np.array_equal(found.truth(range(45)), originals)
    assert found.labels is not None and np.array_equal(found.labels, held.labels[::2])
    large = torch.from_numpy(originals[:4]).permute(0, 3, 1, 2) / 127.5 - 1
    small = nearest_uint8(F.interpolate(large, size=4, mode="area")).numpy()
    other = run.upsample(small, labels=held.labels[:8:2].tolist(), settings=run.config.model.sampling.updated(FAST), device="cpu")
    assert close(found.images(range(4)), other.images)
    assert maker_of(run, ImageRequest()).most == 90


def test_reconstructions_are_made_by_the_settings_that_are_asked_for(tiny: Any) -> None:
    run = tiny("autoencoder-small")
    means, drawn = made(run, 3), made(run, 3, settings=KLEncodingConfig(sample=True))
    assert np.array_equal(made(run, 3, settings=KLEncodingConfig()).images(range(3)), means.images(range(3)))
    assert not np.array_equal(drawn.images(range(3)), means.images(range(3))) and drawn.identity != means.identity
    assert np.array_equal(drawn.images([2]), drawn.images(range(3))[2:])


def test_translations_with_a_truth(mapped: Run) -> None:
    count = maker_of(mapped, ImageRequest()).most
    assert count is not None and count >= 3
    found, held = made(mapped, count), mapped.config.data.open().validation
    images = mapped.translate(None, device="cpu").images
    assert np.array_equal(found.images(range(count)), np.concatenate(images))
    assert held is not None and found.truth is not None
    assert np.array_equal(found.truth([1, 0]), held.batch(np.array([1, 0])).images)
    assert found.size == (8, 12)
    real = model_reference(mapped)
    assert np.array_equal(real.images([0]), mapped.config.data.open().train.batch(np.array([0])).images)


def test_several_answers_to_each_input_follow_one_another(styled: Run) -> None:
    found = made(styled, 9, style_count=4)
    images = found.images(range(9))
    assert found.truth is None and len(np.unique(images, axis=0)) == 9
    held = styled.config.data.open().validation
    assert held is not None
    inputs = Spread(held, 3).batch(np.arange(3)).images
    answers = styled.translate({"images": inputs}, style_count=4, device="cpu").images
    # Two of one input differ by their random style alone, a constant.
    assert np.ptp(images[1].astype(int) - images[0]) <= 1 and np.ptp(images[4].astype(int) - images[0]) > 1
    assert close(images[:4], np.asarray(answers[0]))
    assert np.abs(images[4].astype(int) - halved(inputs[1])).max() < 40
    assert maker_of(styled, ImageRequest(style_count=4)).most == 4 * len(held)
    further = made(styled, 44, style_count=4).images(range(32, 44))  # in the second chunk
    answers = styled.translate({"images": Spread(held, 11).batch(np.arange(11)).images}, style_count=4, device="cpu").images
    assert close(further, np.concatenate(answers[8:]))


def test_each_of_several_answers_has_the_truth_of_its_input(tmp_path: Path) -> None:
    data = ONE_MAP | {"validation_fraction": 0.5}
    run = paired_run(tmp_path / "run", tmp_path / "pairs", data=data, styles="optional", random_styles=True)
    held, found = run.config.data.open().validation, made(run, 6, style_count=3)
    assert held is not None and found.truth is not None
    assert np.array_equal(found.truth([0, 2, 3, 5]), Spread(held, 2).batch(np.array([0, 0, 1, 1])).images)


def test_between_two_domains_each_image_counts_once(tiny: Any) -> None:
    run = tiny("munit-mnist")
    train_set, held = run.config.data.open().train, run.config.data.open().validation
    a, b = train_set.domains
    there = run.config.model.translation
    back = there.updated({"direction": "b-to-a"})
    real, other = model_reference(run, settings=there), model_reference(run, settings=back)
    assert (len(real), len(other)) == (len(b), len(a))
    assert np.array_equal(real.images([3]), b.batch(np.array([3])).images)
    assert np.array_equal(other.images([3]), a.batch(np.array([3])).images)
    for settings, domain in ((there, held.domains[0]), (back, held.domains[1])):
        assert maker_of(run, ImageRequest(settings=settings)).most == len(domain)


def test_of_a_few_shot_model_the_held_out_classes_are_the_reference(tiny: Any) -> None:
    run = tiny("funit-omniglot")
    real = model_reference(run)
    assert real.identity["split"] == "validation" and real.name.startswith("held-out images of ")
    found = made(run, 3)
    assert np.array_equal(found.images(range(3)), np.concatenate([found.images([k]) for k in range(3)]))
    assert model_reference(run, split="all").images([0]).shape == (1, 32, 32, 1)
    assert len(model_reference(run, split="all")) == len(real) + len(model_reference(run, split="train"))


@pytest.mark.parametrize(
    ("recipe", "request_", "line"),
    [
        ("classifier-digits", {}, "model: NoisyClassifier makes no images, so there is nothing to measure"),
        ("adm-digits", {"style_count": 2}, "style_count: got 2, but this run's model takes no styles; leave it out"),
        ("adm-digits", {"labels": [10]}, "labels: got 10, expected 0 to 9"),
        ("glow-digits", {"labels": [1]}, "labels: this run's model was trained without labels; leave them out"),
        (
            "upsample-digits",
            {"guide": "x"},
            "guide: got 'x', but this run's model enlarges held-out images, with their own labels; leave it out",
        ),
        ("munit-mnist", {"labels": [1]}, "labels: got [1], but this run's model translates images; leave it out"),
        ("munit-mnist", {"labels": np.array([1, 2])}, "labels: got array([1, 2]), but this run's model translates images; leave it out"),
        ("adm-digits", {"style": np.zeros((2, 1, 1, 1))}, "style: got array([[[[0.]]], [[[0.]]]]), but this run's model takes no styles"),
        (
            "funit-omniglot",
            {"style_count": 2},
            "style_count: got 2, but FUNIT draws no style at random: it has one answer; take style images",
        ),
    ],
)
def test_refusals_before_the_weights_are_read(tiny: Any, recipe: str, request_: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        maker_of(tiny(recipe), ImageRequest(**request_))
    assert str(error.value).startswith(line)


def test_all_that_the_images_depend_on_is_in_their_identity(tiny: Any, tmp_path: Path) -> None:
    run = tiny("adm-digits")
    requests: list[dict[str, Any]] = [{}, {"seed": 1}, {"labels": [1]}, {"settings": run.config.model.sampling.updated(FAST)}]
    requests += [{"guide": tiny("classifier-digits").directory}]
    identities = [maker_of(run, ImageRequest(**request)).identity(5, origin=run.origin(), precision="float32") for request in requests]
    assert all(one != other for k, one in enumerate(identities) for other in identities[:k])
    run = tiny("munit-mnist")
    counts = [maker_of(run, ImageRequest(style_count=count)).identity(5, origin=run.origin(), precision="float32") for count in (1, 2)]
    assert counts[0] != counts[1]
