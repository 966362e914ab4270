"""World-consistent vid2vid: names and shapes of the published networks, guidance in training and in use, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.gans.published import described, on_meta
from triptych.core.batch import Batch, ClipLength, DataSpec, InputSpec
from triptych.core.errors import ConfigError
from triptych.core.model import TrainingProgress
from triptych.core.rng import Rng
from triptych.core.translation import VideoTranslator
from triptych.gans.init import InitConfig
from triptych.gans.point_colours import guidance_loss, no_colours, seen_colours, with_colours
from triptych.gans.vid2vid import Vid2VidConfig
from triptych.gans.video_networks import WCVid2VidGenerator, WCVid2VidGeneratorConfig
from triptych.gans.wc_vid2vid import WCVid2Vid, WCVid2VidConfig

pytestmark = pytest.mark.usefixtures("float64")

SIDE, CLASSES, FRAMES = 24, 3, 3
POINT_COUNT = 700
"""More than a frame has pixels, fewer than a clip."""
MAPS = InputSpec(name="labels", kind="classes", num_classes=CLASSES, frames=FRAMES)
POINTS = InputSpec(name="points", kind="points", frames=FRAMES)
SPEC = DataSpec(image_size=SIDE, channels=3, frames=FRAMES, clip_length=ClipLength(first=FRAMES, most=FRAMES), inputs=(MAPS, POINTS))
CONFIG = WCVid2VidConfig(
    perceptual_weight=0.0, guidance_weight=7.0, teacher="none", initial=InitConfig(kind="orthogonal", gain=0.7)
).shrunk()

PUBLISHED = {
    "street": (WCVid2VidGeneratorConfig(), 35, 633_518_950, 644, "1f973c294482be23bd9cebebad3891a61b7ae9526650291e5a9ef9b0fca6bdd4"),
    "mannequin": (WCVid2VidGeneratorConfig(max_num_filters=512), 35, 209_944_422, 632, None),
}
"""Configuration, channels of label maps, parameters, tensors; and a hash of the names and shapes in their order, where they are known."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_and_shapes_are_the_published_ones_in_their_order(name: str) -> None:
    config, labels, parameters, tensors, digest = PUBLISHED[name]
    *counts, found = described(on_meta(lambda: WCVid2VidGenerator(config, label_channels=labels)))
    assert counts == [parameters, tensors]
    assert digest is None or found == digest


def built(config: WCVid2VidConfig = CONFIG) -> WCVid2Vid:
    torch.manual_seed(0)
    model = config.build(SPEC)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.train()


def clips(count: int = 2) -> Batch:
    """Random images and maps, and points of which most are seen several times."""
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(count, FRAMES, 3, SIDE, SIDE, generator=generator) * 2 - 1
    maps = torch.randint(CLASSES, (count, FRAMES, SIDE, SIDE), generator=generator)
    points = torch.randint(-60, POINT_COUNT, (count, FRAMES, SIDE, SIDE), generator=generator).clamp(min=-1)
    return Batch(images, None, torch.arange(count), {"labels": maps, "points": points})


def at(model: WCVid2Vid, phase: str, frame: int, clip: Batch) -> Any:
    (found,) = (one for one in model.phases if one.name == phase)
    model.prepare(found, TrainingProgress(0, len(clip), 100, step=frame))
    return model.loss(found, clip, Rng(3, (phase, frame), clip.index))


def one_hot(clip: Batch, frame: int) -> Tensor:
    return F.one_hot(clip.inputs["labels"][:, frame], CLASSES).movedim(-1, 1).double()


def frames_by_hand(model: WCVid2Vid, clip: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """The images of all frames, each made of the ones before it, and their guidance."""
    made, guided = list[Tensor](), list[Tensor]()
    table = no_colours(POINT_COUNT, like=clip.images[:, 0])
    for t in range(FRAMES):
        past = range(max(0, t - 2), t)
        guidance = seen_colours(table, clip.inputs["points"][:, t])
        given = [torch.stack([one_hot(clip, k) for k in past], 1), torch.stack([made[k] for k in past], 1), guidance] if t else []
        made.append(model.generator(one_hot(clip, t), *given).image.detach())
        guided.append(guidance)
        table = with_colours(table, clip.inputs["points"][:, t], made[-1])
    return made, guided


@pytest.mark.parametrize("phase", ["discriminator", "generator"])
def test_clips_of_one_frame_are_learned_from_as_first_frames(phase: str) -> None:
    """As the first clips of a training may be."""
    model, clip = built(), clips()
    alone = replace(clip, images=clip.images[:, :1], inputs={name: values[:, :1] for name, values in clip.inputs.items()})
    torch.testing.assert_close(at(model, phase, 0, alone).loss, at(model, phase, 0, clip).loss, rtol=0, atol=1e-12)


def test_training_carries_the_colours_from_frame_to_frame() -> None:
    model, clip = built(), clips()
    made, guided = frames_by_hand(model, clip)
    assert 0.3 < guided[2][:, 3].mean() < 0.95
    carried: Mapping[str, Tensor] = {}
    for t in range(FRAMES):
        given = replace(clip, inputs={**clip.inputs, **carried})
        assert not at(model, "discriminator", t, given).carried
        terms = at(model, "generator", t, given)
        carried = terms.carried
        torch.testing.assert_close(carried["/made"][:, -1], made[t], rtol=0, atol=1e-12)
        assert ("guidance" in terms.logged) == (t > 0) and not any(tensor.requires_grad for tensor in carried.values())
        if t:
            torch.testing.assert_close(terms.logged["guidance"], guidance_loss(made[t], guided[t]), rtol=0, atol=1e-10)
    again = at(model, "generator", 0, replace(clip, inputs={**clip.inputs, **carried})).carried
    torch.testing.assert_close(again["/made"][:, -1], made[0], rtol=0, atol=1e-12)  # a first frame knows no colours


def test_the_guidance_term_has_its_weight() -> None:
    clip, past = clips(), {}
    for weight in (7.0, 0.0):
        model = built(replace(CONFIG, guidance_weight=weight))
        past = at(model, "generator", 0, clip).carried
        terms = at(model, "generator", 1, replace(clip, inputs={**clip.inputs, **past}))
        losses = terms.loss - sum(model.weights[name] * term for name, term in terms.logged.items())
        torch.testing.assert_close(losses.detach(), torch.zeros(2), rtol=0, atol=1e-10)
        assert ("guidance" in terms.logged) == (weight > 0)
        assert weight == 0 or model.weights["guidance"] == 7
    assert WCVid2VidConfig().weights["guidance"] == 20, "as published"


def test_held_out_clips_and_translations_are_guided_too() -> None:
    """By tables that grow with the points that were shown, frame by frame."""
    model, clip = built().eval(), clips()
    made, _ = frames_by_hand(model, clip)
    for found, expected in zip(model._clip(clip.inputs, FRAMES), made, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert isinstance(model, VideoTranslator) and model.remembers
    assert [source.name for source in model.sources] == ["labels", "points"]
    last = model.translate(model.example(clip, settings=model.translation).inputs, Rng(0, (), clip.index), settings=model.translation)
    torch.testing.assert_close(last, made[-1], rtol=0, atol=1e-10)
    with pytest.raises(ConfigError, match="points: missing"):
        maps = {"labels": clip.inputs["labels"][:, 1]}
        model.next_frame(maps, [{"labels": clip.inputs["labels"][:, 0]}], made[0][:, None], settings=model.translation)


def test_a_frame_whose_past_remembers_nothing_has_no_guidance() -> None:
    model, clip = built().eval(), clips()
    before, now = ({name: values[:, t] for name, values in clip.inputs.items()} for t in (0, 1))
    found = model.next_frame(now, [before], clip.images[:, :1], settings=model.translation)
    with torch.no_grad():
        expected = model.generator(one_hot(clip, 1), one_hot(clip, 0)[:, None], clip.images[:, :1]).image
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("points", "got"),
    [
        (None, "missing"),
        (torch.zeros(2, FRAMES, SIDE, SIDE).double(), f"got float64 of shape (2, {SIDE}, {SIDE})"),
        (torch.zeros(2, FRAMES, SIDE, SIDE // 2).long(), f"got int64 of shape (2, {SIDE}, {SIDE // 2})"),
    ],
    ids=["missing", "no whole numbers", "other sides"],
)
def test_points_of_clips_that_do_not_fit_are_named(points: Tensor | None, got: str) -> None:
    model, clip = built().eval(), clips()
    inputs = {"labels": clip.inputs["labels"]} | ({} if points is None else {"points": points})
    with pytest.raises(ConfigError, match=re.escape(f"points: {got}, expected whole numbers of shape (2, {SIDE}, {SIDE})")):
        model.translate(inputs, Rng(0, (), clip.index), settings=model.translation)


def test_numbers_of_points_say_only_which_are_the_same() -> None:
    """Of a frame the memory has a row for each point that was shown: numbers of any size take no more, and give the same bits."""
    model, clip = built().eval(), clips()
    points = clip.inputs["points"]
    spread = torch.where(points >= 0, (POINT_COUNT - points) * 10**12, points)
    images, far = list(model._clip(clip.inputs, FRAMES)), {**clip.inputs, "points": spread}
    assert all(torch.equal(*pair) for pair in zip(images, model._clip(far, FRAMES), strict=True))
    memory: Mapping[str, Tensor] = {}
    for t in range(FRAMES):
        memory = model.remembered({"points": spread[:, t], **memory}, images[t])
    assert sum(values.numel() for values in memory.values()) <= (POINT_COUNT + 1) * (2 * 4 + 1)


def test_clips_that_begin_without_a_known_point_are_made() -> None:
    model, clip = built().eval(), clips()
    points = clip.inputs["points"].clone()
    points[:, :2] = -1
    blind = replace(clip, inputs={**clip.inputs, "points": points})
    made, guided = frames_by_hand(model, blind)
    assert not guided[1][:, 3].any()
    for found, expected in zip(model._clip(blind.inputs, FRAMES), made, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_guidance_changes_the_large_sizes_alone() -> None:
    config = CONFIG.generator
    torch.manual_seed(1)
    network = WCVid2VidGenerator(config, label_channels=CLASSES).double()
    label, image = one_hot(clips(), 0), clips().images[:, 0]
    guidance = torch.cat((image, torch.ones_like(image[:, :1])), 1)
    plain = network(label, label[:, None], image[:, None]).image
    guided = network(label, label[:, None], image[:, None], guidance).image
    assert not torch.allclose(plain, guided)
    with_maps = {name.split(".")[0] for name in network.state_dict() if ".mlps.2." in name}
    assert with_maps == {f"{way}_{level}" for way in ("up", "down") for level in range(config.combined)}


def test_what_it_refuses() -> None:
    with pytest.raises(ConfigError, match=r"does not say which points its pixels show; give their folder as data\.points"):
        CONFIG.build(replace(SPEC, inputs=(MAPS,)))
    with pytest.raises(ConfigError, match="combined"):
        WCVid2VidGeneratorConfig(combined=0)
    plain = Vid2VidConfig(perceptual_weight=0.0).shrunk().build(SPEC)
    assert [source.name for source in plain.sources] == ["labels"]
