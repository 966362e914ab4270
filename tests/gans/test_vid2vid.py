"""vid2vid in training and in use: its turns, the terms of each frame, what is carried on, teachers, and what its configuration refuses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.gans.terms import check_gradients, gradients, judged_by_hand
from triptych.core.batch import Batch, ClipLength, DataSpec, InputSpec
from triptych.core.errors import ConfigError
from triptych.core.model import Phase, TrainingProgress
from triptych.core.rng import Rng
from triptych.core.translation import Translator, VideoTranslator
from triptych.gans.flow import confidence, temporal_window, warped, warping_error
from triptych.gans.init import InitConfig
from triptych.gans.losses import AdversarialConfig, discriminator_losses, l1
from triptych.gans.lucas_kanade import lucas_kanade
from triptych.gans.vid2vid import Vid2Vid, Vid2VidConfig
from triptych.gans.video_discriminators import VideoDiscriminatorConfig
from triptych.nn.raft import RaftConfig

pytestmark = pytest.mark.usefixtures("float64")

SIDE, CLASSES, FRAMES = 32, 3, 4
MAPS = InputSpec(name="labels", kind="classes", num_classes=CLASSES, frames=FRAMES)
FLOW = InputSpec(name="flow", kind="flow", frames=FRAMES)
SPEC = DataSpec(image_size=SIDE, channels=3, frames=FRAMES, clip_length=ClipLength(first=2, most=FRAMES, double_every=10), inputs=(MAPS,))
WITH_FLOW = replace(SPEC, inputs=(MAPS, FLOW))
CONFIG = Vid2VidConfig(
    discriminator=VideoDiscriminatorConfig(temporal_scales=1, temporal_frames=2),
    perceptual_weight=0.0,
    l1_weight=3.0,
    flow_weight=2.0,
    temporal_weight=0.5,
    initial=InitConfig(kind="orthogonal", gain=0.7),
).shrunk()


def built(config: Vid2VidConfig = CONFIG, spec: DataSpec = WITH_FLOW) -> Vid2Vid:
    torch.manual_seed(0)
    model = config.build(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.train()


def pan(count: int = 2) -> Batch:
    """Windows that move over a smooth picture and its map, each by whole pixels in each frame, with the flow of that."""
    generator = torch.Generator().manual_seed(5)
    world = F.interpolate(torch.rand(count, 3, 12, 12, generator=generator) * 2 - 1, size=(48, 48), mode="bicubic").clamp(-1, 1)
    classes = F.interpolate(torch.randint(CLASSES, (count, 1, 12, 12), generator=generator).float(), size=(48, 48)).long()[:, 0]
    moves = [(2, 1), (-1, 3)]
    images, maps = [], []
    for k in range(count):
        across, down = moves[k % 2]
        places = [(8 + across * t, 2 + down * t) for t in range(FRAMES)]
        images.append(torch.stack([world[k, :, y : y + SIDE, x : x + SIDE] for x, y in places]))
        maps.append(torch.stack([classes[k, y : y + SIDE, x : x + SIDE] for x, y in places]))
    flow = torch.tensor([moves[k % 2] for k in range(count)]).double()[:, None, :, None, None].repeat(1, FRAMES, 1, SIDE, SIDE)
    flow[:, :, :, :2] = torch.nan
    return Batch(torch.stack(images).double(), None, torch.arange(count), {"labels": torch.stack(maps), "flow": flow})


def at(model: Vid2Vid, phase: str, frame: int, clip: Batch) -> Any:
    """The terms of a phase in a frame."""
    (found,) = (one for one in model.phases if one.name == phase)
    model.prepare(found, TrainingProgress(0, len(clip), 100, step=frame))
    return model.loss(found, clip, Rng(3, (phase, frame), clip.index))


def one_hot(clip: Batch, frame: int) -> Tensor:
    return F.one_hot(clip.inputs["labels"][:, frame], CLASSES).movedim(-1, 1).double()


# The turns of an iteration ------------------------------------------------------------------------------------------------


def test_the_frames_of_a_clip_are_turns_and_their_number_grows() -> None:
    model = built()
    for seen, frames in ((0, 2), (9, 2), (10, 4), (1000, 4)):
        turns = list(model.turns(TrainingProgress(seen, 1, 2000)))
        assert [turn.phase.name for turn in turns] == ["discriminator", "generator"] * frames
        assert {turn.slice for turn in turns} == {0}
    assert len(list(built(spec=replace(WITH_FLOW, clip_length=None)).turns(TrainingProgress(0, 1, 9)))) == 2 * FRAMES


@pytest.mark.parametrize("several", [2, 4])
def test_each_frame_goes_on_from_the_frames_that_were_made(several: int) -> None:
    """The two last ones, also where more are kept for a discriminator of four frames."""
    model, clip = built(replace(CONFIG, discriminator=replace(CONFIG.discriminator, temporal_frames=several))), pan()
    carried: Mapping[str, Tensor] = {}
    images: list[Tensor] = []
    for frame in range(FRAMES):
        given = replace(clip, inputs={**clip.inputs, **carried})
        assert not at(model, "discriminator", frame, given).carried
        carried = at(model, "generator", frame, given).carried
        past = [image.detach() for image in images][-2:]
        labels = [one_hot(clip, t) for t in range(max(0, frame - 2), frame)]
        made = (
            model.generator(one_hot(clip, frame), torch.stack(labels, 1), torch.stack(past, 1))
            if past
            else model.generator(one_hot(clip, 0))
        )
        images.append(made.image)
        torch.testing.assert_close(carried["/made"][:, -1], made.image.detach(), rtol=0, atol=1e-12)
        assert not carried["/made"].requires_grad
        assert carried["/made"].shape[1] == min(max(2, several - 1), frame + 1)
    stale = replace(clip, inputs={**clip.inputs, **carried})
    again = at(model, "generator", 0, stale).carried["/made"]
    torch.testing.assert_close(again, images[0][:, None].detach(), rtol=0, atol=1e-12)  # a first frame has no past


@pytest.mark.parametrize("frame", [0, 1, 3])
def test_the_terms_of_a_frame_are_those_by_hand(frame: int) -> None:
    model, clip = built(), pan()
    carried: Mapping[str, Tensor] = {}
    for t in range(frame):
        carried = at(model, "generator", t, replace(clip, inputs={**clip.inputs, **carried})).carried
    given = replace(clip, inputs={**clip.inputs, **carried})
    real, label, settings = clip.images[:, frame], one_hot(clip, frame), AdversarialConfig()
    if frame:
        past = carried["/made"][:, -2:]
        labels = torch.stack([one_hot(clip, t) for t in range(frame - past.shape[1], frame)], 1)
        made = model.generator(label, labels, past)
    else:
        made = model.generator(label)
    contests = {"": (torch.cat((label, real), 1), torch.cat((label, made.image), 1), model.discriminator.net_D)}
    if frame:
        both = torch.cat((clip.images[:, frame - 1], real), 1), torch.cat((carried["/made"][:, -1], made.image), 1)
        contests["_temporal_0"] = (*both, model.discriminator.net_DT0)
    expected = judged_by_hand(contests, settings=settings)
    expected["l1"] = (made.image - real).abs().flatten(1).mean(1)
    if frame >= 2:
        teacher = clip.inputs["flow"][:, frame]
        known = teacher.isfinite().all(1, keepdim=True)
        teacher = torch.where(known, teacher, 0)
        believed = confidence(real, clip.images[:, frame - 1], teacher) * known
        assert 0.5 < believed.mean() < 0.95
        expected["flow_l1"] = ((made.flow - teacher) * believed).abs().flatten(1).mean(1)
        moved = warped(carried["/made"][:, -1], made.flow)
        expected["flow_warp"] = (moved - real).abs().flatten(1).mean(1)
        q = (1 - (moved - real).abs().sum(1, keepdim=True)).clamp(min=0)
        expected["mask"] = (made.mask * q + (1 - made.mask) * (1 - q)).flatten(1).mean(1)
    found = at(model, "generator", frame, given)
    assert found.logged.keys() == expected.keys()
    weights = {"adversarial": 1, "feature_matching": 10, "l1": 3, "flow_l1": 2, "flow_warp": 2, "mask": 2}
    weights |= {"adversarial_temporal_0": 0.5, "feature_matching_temporal_0": 10}
    for name, term in expected.items():
        torch.testing.assert_close(found.logged[name], term.detach(), rtol=0, atol=1e-9)
    whole = torch.stack([weights[name] * term for name, term in expected.items()]).sum(0)
    check_gradients(model.generator, {"loss": found.loss}, {"loss": whole})
    judged = at(model, "discriminator", frame, given)
    losses = {}
    for name, (true, fake, network) in contests.items():
        both = discriminator_losses(network(true).outputs, network(fake.detach()).outputs, settings=settings)
        losses |= {f"real{name}": both[0], f"fake{name}": both[1]}
    assert judged.logged.keys() == losses.keys()
    whole = torch.stack([(0.5 if "temporal" in name else 1) * loss for name, loss in losses.items()]).sum(0)
    torch.testing.assert_close(judged.loss, whole, rtol=0, atol=1e-9)
    check_gradients(model.discriminator, {"loss": judged.loss}, {"loss": whole})


def test_a_teacher_is_asked_once_for_all_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("triptych.gans.clip_base.lucas_kanade", lambda real, before: asked.append(len(real)) or lucas_kanade(real, before))
    model, clip = built(replace(CONFIG, teacher="classical", warping_weight=1.0)), pan()
    found = at(model, "generator", 2, replace(clip, inputs={**clip.inputs, "/made": clip.images[:, :2]}))
    assert {"flow_l1", "warping"} <= found.logged.keys() and asked == [2]


@pytest.mark.parametrize("teacher", ["data", "classical"])
def test_what_a_frame_flickers_is_its_distance_from_the_one_before_moved_by_the_teacher(teacher: str) -> None:
    """Weighed beside the other terms, from the second frame on; the frame before has no gradient."""
    plain, model, clip = (*(built(replace(CONFIG, teacher=teacher, warping_weight=weight)) for weight in (0.0, 7.0)), pan())
    assert "warping" not in at(model, "generator", 0, clip).logged
    for frame in (1, 2):
        given = replace(clip, inputs={**clip.inputs, "/made": clip.images[:, :frame].flip(4)})
        assert "warping" not in at(plain, "generator", frame, given).logged
        found, without = at(model, "generator", frame, given), at(plain, "generator", frame, given)
        labels = torch.stack([one_hot(clip, t) for t in range(frame)], 1)
        image = model.generator(one_hot(clip, frame), labels, given.inputs["/made"]).image
        real, before = clip.images[:, frame], clip.images[:, frame - 1]
        if teacher == "data":
            flow = clip.inputs["flow"][:, frame]
            known = flow.isfinite().all(1, keepdim=True)
            flow = torch.where(known, flow, 0)
            believed = confidence(real, before, flow) * known
        else:
            flow = lucas_kanade(real, before)
            believed = confidence(real, before, flow)
        apart = (image - warped(given.inputs["/made"][:, -1], flow)).abs() * believed
        term = torch.stack([one.sum() / (image.shape[1] * c.sum()) for one, c in zip(apart, believed, strict=True)])
        assert 0.1 < believed.mean() < 1 and term.min() > 0.01
        torch.testing.assert_close(found.logged["warping"], term.detach(), rtol=0, atol=1e-9)
        ours, theirs = gradients(model.generator, found.loss), gradients(plain.generator, without.loss)
        for name, gradient in gradients(model.generator, 7 * term).items():
            torch.testing.assert_close(ours[name] - theirs[name], gradient, rtol=0, atol=1e-9)


@pytest.mark.parametrize("apart", [False, True])
def test_a_flow_that_is_apart_learns_from_its_teacher_alone(apart: bool) -> None:
    """All layers but that of the mask have the gradient of flow_l1; without, those of the image, the warped frame and the mask too."""
    clip = pan()
    model = built(replace(CONFIG, generator=replace(CONFIG.generator, blend=True, flow_apart=apart), warping_weight=7.0))
    given = replace(clip, inputs={**clip.inputs, "/made": clip.images[:, :2].flip(4)})
    flow = clip.inputs["flow"][:, 2]
    known = flow.isfinite().all(1, keepdim=True)
    flow = torch.where(known, flow, 0)
    believed = confidence(clip.images[:, 2], clip.images[:, 1], flow) * known
    labels = torch.stack([one_hot(clip, 0), one_hot(clip, 1)], 1)
    frame = model.generator(one_hot(clip, 2), labels, given.inputs["/made"])
    assert frame.flow is not None
    alone = gradients(model.generator, 2.0 * l1(frame.flow * believed, flow * believed))
    whole = gradients(model.generator, at(model, "generator", 2, given).loss)
    names = [name for name in alone if name.startswith("flow_network_temp.") and name.endswith("weight")]  # norms leave no bias
    assert len(names) > 5 and "flow_network_temp.conv_flow.0.layers.conv.weight" in names
    for name in names:
        assert alone[name].abs().max() > 1e-6
        assert torch.allclose(whole[name], alone[name], rtol=0, atol=1e-10) == apart, name
    mask = "flow_network_temp.conv_mask.0.layers.conv.weight"
    assert whole[mask].abs().max() > 1e-4 and mask not in alone


@pytest.mark.parametrize("settings", [{"teacher": "none"}, {"flow_weight": 0.0}])
def test_a_flow_that_is_apart_needs_a_teacher(settings: dict[str, Any]) -> None:
    generator = replace(CONFIG.generator, flow_apart=True)
    with pytest.raises(ConfigError, match=r"generator.flow_apart: got True, expected False where no teacher's flow is learned"):
        replace(CONFIG, generator=generator, **settings)


# Teachers -----------------------------------------------------------------------------------------------------------------


def test_teachers() -> None:
    clip = pan()
    names = {"flow_warp", "mask"}
    for config, spec, teacher in (
        (CONFIG, WITH_FLOW, "data"),
        (CONFIG, SPEC, "classical"),
        (replace(CONFIG, teacher="classical"), WITH_FLOW, "classical"),
        (replace(CONFIG, teacher="none"), WITH_FLOW, "none"),
    ):
        model = built(config, spec)
        assert model.teacher == teacher
        given = replace(clip, inputs={**clip.inputs, "/made": clip.images[:, :2]})
        terms = at(model, "generator", 2, given).logged
        assert {name for name in terms if name in (*names, "flow_l1")} == names | ({"flow_l1"} if teacher != "none" else set())
        if teacher == "classical":
            flow = lucas_kanade(clip.images[:, 2], clip.images[:, 1])
            believed = confidence(clip.images[:, 2], clip.images[:, 1], flow)
            labels = torch.stack([one_hot(clip, 0), one_hot(clip, 1)], 1)
            found = model.generator(one_hot(clip, 2), labels, clip.images[:, :2]).flow
            torch.testing.assert_close(terms["flow_l1"], l1(found * believed, flow * believed).detach(), rtol=0, atol=1e-9)
    assert "flow_warp" not in at(built(replace(CONFIG, flow_weight=0.0)), "generator", 2, given).logged


def test_raft_teaches_where_there_are_weights_and_no_true_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its network is no part of a checkpoint, and held-out clips have no warping error until its weights are there."""
    with_raft = replace(CONFIG, raft=RaftConfig(network="raft_small", weights="raft.pth"))
    assert built(with_raft).teacher == "data" and built(with_raft).raft is None
    model, clip = built(with_raft, SPEC), pan()
    assert model.teacher == "raft" and dict(model.frozen_networks) == {"raft": "raft.pth"}
    assert not any(name.startswith("raft") for name in (*model.state_dict(), *dict(model.named_parameters())))
    assert set(model.distances(clip, Rng(0, (), clip.index))) == {"l1"}
    assert model.raft is not None
    monkeypatch.setattr(model.raft, "loaded", True)
    monkeypatch.setattr(model.raft, "forward", lambda target, source: 0.5 * (target - source)[:, :2] + 1)
    assert set(model.distances(clip, Rng(0, (), clip.index))) == {"l1", "warping_error"}
    real, before = clip.images[:, 2], clip.images[:, 1]
    flow = 0.5 * (real - before)[:, :2] + 1
    found = model.generator(one_hot(clip, 2), torch.stack([one_hot(clip, 0), one_hot(clip, 1)], 1), clip.images[:, :2]).flow
    terms = at(model, "generator", 2, replace(clip, inputs={**clip.inputs, "/made": clip.images[:, :2]})).logged
    believed = confidence(real, before, flow)
    torch.testing.assert_close(terms["flow_l1"], l1(found * believed, flow * believed).detach(), rtol=0, atol=1e-9)


def test_dis_teaches_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych.gans.clip_base.inverse_search", lambda target, source: 0.5 * (target - source)[:, :2] + 1)
    model, clip = built(replace(CONFIG, teacher="dis")), pan()
    found = model._taught(clip.images[:, 2], clip.images[:, 1], {})
    assert found is not None
    torch.testing.assert_close(found[0], 0.5 * (clip.images[:, 2] - clip.images[:, 1])[:, :2] + 1, rtol=0, atol=0)


def test_a_configuration_without_raft_reads_as_before() -> None:
    assert "raft" not in CONFIG.to_dict() and Vid2VidConfig.from_dict(CONFIG.to_dict()) == CONFIG
    named = replace(CONFIG, teacher="raft", raft=RaftConfig(weights="raft.pth"))
    assert Vid2VidConfig.from_dict(named.to_dict()) == named


# Held-out clips and translations ------------------------------------------------------------------------------------------


def test_held_out_clips_are_made_from_their_first_frame_on() -> None:
    model, clip = built().eval(), pan()
    rng = Rng(0, ("validation",), clip.index)
    (phase,) = (one for one in model.phases if one.name == "generator")
    with torch.no_grad():
        found = model.loss(phase, clip, rng)
    assert set(found.logged) == {"l1", "warping_error"} and torch.equal(found.loss, found.logged["l1"])
    made: list[Tensor] = []
    with torch.no_grad():
        for t in range(FRAMES):
            past = slice(max(0, t - 2), t)
            labels = [one_hot(clip, k) for k in range(FRAMES)][past]
            made.append(model.generator(one_hot(clip, t), *([torch.stack(labels, 1), torch.stack(made[past], 1)] if t else [])).image)
    errors = torch.stack([l1(image, clip.images[:, t]) for t, image in enumerate(made)]).mean(0)
    torch.testing.assert_close(found.logged["l1"], errors, rtol=0, atol=1e-10)
    example = model.example(clip, settings=model.translation)
    assert set(example.inputs) == {"labels"} and torch.equal(example.truth, clip.images[:, -1])
    last = model.translate(example.inputs, rng, settings=model.translation)
    torch.testing.assert_close(last, made[-1], rtol=0, atol=1e-10)
    single = model.translate({"labels": clip.inputs["labels"][:, 0]}, rng, settings=model.translation)
    torch.testing.assert_close(single, made[0], rtol=0, atol=1e-10)
    assert isinstance(model, Translator) and isinstance(model, VideoTranslator) and model.past_frames == 2
    with pytest.raises(ConfigError, match="got 10x12 pixels, expected sides that are multiples of 4"):
        model.next_frame({"labels": clip.inputs["labels"][:, 0, :12, :10]}, [], None, settings=model.translation)


def test_clips_of_images_alone_are_told_from_single_images() -> None:
    """Where there is no class map, the first of what a map is made of has an axis more."""
    depth = torch.rand(2, FRAMES, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(3)) * 2 - 1
    model = built(spec=replace(SPEC, inputs=(InputSpec(name="depth", kind="image", channels=1, frames=FRAMES),))).eval()
    made = list(model._clip({"depth": depth}, FRAMES))
    for given, expected in ((depth, made[-1]), (depth[:, :1], made[0]), (depth[:, 0], made[0])):
        found = model.translate({"depth": given}, Rng(0, (), torch.arange(2)), settings=model.translation)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_maps_of_past_frames_lie_as_that_of_the_frame_in_training_and_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels last, one frame after the other."""
    model, clip = built(), pan()
    seen: list[Tensor] = []
    plain = model.frame_of
    monkeypatch.setattr(model, "frame_of", lambda label, past, *rest: (seen.extend((label, past[:, -1])), plain(label, past, *rest))[1])
    at(model, "generator", 2, replace(clip, inputs={**clip.inputs, "/made": clip.images[:, :2]}))
    maps = [{"labels": clip.inputs["labels"][:, t]} for t in range(3)]
    model.next_frame(maps[2], maps[:2], clip.images[:, :2], settings=model.translation)
    assert [each.stride()[1:] for each in seen] == [(1, SIDE * CLASSES, CLASSES)] * 4


def test_of_clips_too_a_missing_map_is_named() -> None:
    spec = replace(SPEC, inputs=(MAPS, InputSpec(name="depth", kind="image", channels=1, frames=FRAMES)))
    model, clip = built(spec=spec).eval(), pan()
    with pytest.raises(ConfigError, match=r"depth: missing, expected a tensor of shape \(b, 1, h, w\)"):
        model.translate({"labels": clip.inputs["labels"]}, Rng(0, (), clip.index), settings=model.translation)


@pytest.mark.parametrize(
    ("frames", "depths", "message"),
    [
        (
            FRAMES,
            FRAMES - 1,
            r"depth: got a tensor of shape \(2, 3, 1, 32, 32\), expected clips \(b, t, ...\) of as many frames as labels has, 4",
        ),
        (
            FRAMES - 1,
            FRAMES,
            r"depth: got a tensor of shape \(2, 4, 1, 32, 32\), expected clips \(b, t, ...\) of as many frames as labels has, 3",
        ),
        (FRAMES, None, r"depth: got a tensor of shape \(2, 1, 32, 32\), expected clips \(b, t, ...\) of as many frames as labels has, 4"),
        (0, 0, r"labels: got a tensor of shape \(2, 0, 32, 32\), expected clips \(b, t, ...\) of one frame or more"),
    ],
    ids=["fewer", "more", "one", "none"],
)
def test_maps_of_unequally_many_frames_are_refused(frames: int, depths: int | None, message: str) -> None:
    spec = replace(SPEC, inputs=(MAPS, InputSpec(name="depth", kind="image", channels=1, frames=FRAMES)))
    model, clip = built(spec=spec).eval(), pan()
    depth = torch.zeros(2, *[] if depths is None else [depths], 1, SIDE, SIDE)
    with pytest.raises(ConfigError, match=message):
        inputs = {"labels": clip.inputs["labels"][:, :frames], "depth": depth}
        model.translate(inputs, Rng(0, (), clip.index), settings=model.translation)


def test_frames_of_which_nothing_can_be_compared_are_left_out() -> None:
    """After a cut no pixel is believed: that says nothing of flicker, and does not make it smaller."""
    model, clip = built().eval(), pan()
    flow = clip.inputs["flow"].clone()
    flow[0, 1], flow[1, 2:] = math.nan, math.nan
    with torch.no_grad():
        found = model.distances(replace(clip, inputs={**clip.inputs, "flow": flow}), Rng(0, (), clip.index))["warping_error"]
        frames = list(model._clip(clip.inputs, FRAMES))
    for sample, counted in ((0, range(2, FRAMES)), (1, [1])):
        errors = []
        for t in counted:
            taught = model._taught(clip.images[:, t], clip.images[:, t - 1], {"flow": clip.inputs["flow"][:, t]})
            assert taught is not None
            errors.append(warping_error(frames[t], frames[t - 1], *taught)[sample])
        torch.testing.assert_close(found[sample], torch.stack(errors).mean(), rtol=0, atol=1e-12)


def test_held_out_clips_of_one_frame_have_no_flicker() -> None:
    model, clip = built().eval(), pan()
    first = {name: values[:, :1] for name, values in clip.inputs.items()}
    with torch.no_grad():
        found = model.distances(replace(clip, images=clip.images[:, :1], inputs=first), Rng(0, (), clip.index))
        made = model.generator(one_hot(clip, 0)).image
    assert list(found) == ["l1"]
    torch.testing.assert_close(found["l1"], l1(made, clip.images[:, 0]), rtol=0, atol=1e-10)


def test_the_warping_error_of_a_pan_is_none_and_of_still_frames_is_its_movement() -> None:
    clip = pan()
    flow = clip.inputs["flow"][:, 1]
    known = flow.isfinite().all(1, keepdim=True)
    flow = torch.where(known, flow, 0)
    believed = confidence(clip.images[:, 1], clip.images[:, 0], flow) * known
    inside = believed.clone()
    inside[..., -3:], inside[..., -4:, :], inside[..., :1] = 0, 0, 0
    assert warping_error(clip.images[:, 1], clip.images[:, 0], flow, inside).max() < 1e-12
    one = warping_error(clip.images[:, 1], clip.images[:, 0], torch.zeros_like(flow), inside)
    by_hand = ((clip.images[:, 1] - clip.images[:, 0]).abs().mean(1) * inside[:, 0]).flatten(1).sum(1) / inside.flatten(1).sum(1)
    torch.testing.assert_close(one, by_hand, rtol=0, atol=1e-12)
    assert one.min() > 0.02
    assert warping_error(clip.images[:, 1], clip.images[:, 0], flow, torch.zeros_like(inside)).tolist() == [0, 0]


# Configurations -----------------------------------------------------------------------------------------------------------


def comparing(radius: int) -> Vid2Vid:
    """A model whose flow network compares maps of half the size under moves of so many pixels."""
    flow = replace(CONFIG.generator.flow, cost_radius=radius, cost_halvings=1)
    return replace(CONFIG, generator=replace(CONFIG.generator, flow=flow)).build(replace(SPEC, image_size=32))


def test_maps_are_compared_under_moves_that_stay_on_them() -> None:
    assert isinstance(comparing(15), Vid2Vid)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda: CONFIG.build(replace(SPEC, frames=None, clip_length=None)),
            "the data has no clips; this model needs data of the kind clips",
        ),
        (lambda: replace(CONFIG, teacher="data").build(SPEC), "teacher: got data, but the data has no flow; give its folder as data.flow"),
        (lambda: replace(CONFIG, teacher="raft"), "teacher: got 'raft', expected another one, or raft with a file as raft.weights"),
        (lambda: CONFIG.build(replace(SPEC, image_size=30)), "expected sides of multiples of 4"),
        (lambda: CONFIG.build(replace(SPEC, image_size=4)), "generator.num_layers: got 2 .* expected sides of at least 8"),
        (lambda: replace(CONFIG.discriminator, temporal_scales=5), "temporal_scales: got 5, expected 0 to 4"),
        (lambda: CONFIG.build(replace(SPEC, inputs=(FLOW,))), "nothing, pixel by pixel, that the images could be made from"),
        (lambda: replace(CONFIG, discriminator_steps=2), "discriminator_steps: got 2, expected 1: both take a step in each frame"),
        (lambda: comparing(16), "generator.flow.cost_radius: got 16 .* at least 34"),
        (lambda: replace(CONFIG, augment=("color",)), "augment: got .*, expected nothing with discriminator.temporal_scales"),
        (lambda: replace(CONFIG, temporal_weight=-1.0), "temporal_weight: got -1.0, expected 0 or a positive number"),
        (lambda: replace(CONFIG.translation, first_frames=-1), "first_frames: got -1, expected 0 or more"),
    ],
)
def test_what_does_not_fit_is_refused(change, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        change()


@pytest.mark.parametrize(("scales", "frames"), [(1, 2), (2, 2), (2, 3)])
def test_all_discriminators_of_several_frames_judge_from_the_end_of_the_span_on(scales: int, frames: int) -> None:
    several = replace(CONFIG.discriminator, temporal_scales=scales, temporal_frames=frames)
    model = replace(CONFIG, discriminator=several).build(SPEC)
    judged = [temporal_window(frame, scale=scales - 1, frames=frames) is not None for frame in range(model.judged_span)]
    assert judged.index(True) == model.judged_span - 1


def test_some_frames_do_not_reach_all_parts() -> None:
    assert all(isinstance(phase, Phase) and phase.partial for phase in built().phases)
