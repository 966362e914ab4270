"""Few-shot vid2vid in training and in use: the terms of each frame, what the discriminator sees, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.gans import test_vid2vid as plain
from tests.gans.terms import check_gradients, judged_by_hand
from tests.gans.test_vid2vid import CLASSES, FRAMES, SIDE, at, one_hot
from triptych.core.batch import Batch, DataSpec, InputSpec
from triptych.core.errors import ConfigError
from triptych.core.rng import Rng
from triptych.core.translation import Translator, VideoTranslator
from triptych.gans.flow import confidence, warped
from triptych.gans.fs_vid2vid import FewShotVid2Vid, FewShotVid2VidConfig
from triptych.gans.init import InitConfig
from triptych.gans.losses import AdversarialConfig, discriminator_losses, l1
from triptych.gans.lucas_kanade import lucas_kanade
from triptych.gans.video_discriminators import VideoDiscriminatorConfig

pytestmark = pytest.mark.usefixtures("float64")

STYLE = InputSpec(name="style", kind="image", channels=3, references=2)
STYLE_MAPS = InputSpec(name="labels_of_style", kind="classes", num_classes=CLASSES, references=2)
SPEC = replace(plain.SPEC, inputs=(plain.MAPS, STYLE, STYLE_MAPS))
CONFIG = FewShotVid2VidConfig(
    discriminator=VideoDiscriminatorConfig(temporal_scales=1, temporal_frames=2),
    perceptual_weight=0.0,
    l1_weight=3.0,
    flow_weight=2.0,
    temporal_weight=0.5,
    initial=InitConfig(kind="orthogonal", gain=0.7),
).shrunk()
PICKING = replace(CONFIG, generator=replace(CONFIG.generator, attention=True))


def built(config: FewShotVid2VidConfig = CONFIG, spec: DataSpec = SPEC) -> FewShotVid2Vid:
    torch.manual_seed(0)
    model = config.build(spec)
    assert isinstance(model, FewShotVid2Vid)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.train()


def pan() -> Batch:
    """The moving windows of vid2vid's tests, with the last frame and a mirrored first one as references."""
    clip = plain.pan()
    labels = clip.inputs["labels"]
    style = torch.stack((clip.images[:, -1], clip.images[:, 0].flip(-1)), 1)
    maps = torch.stack((labels[:, -1], labels[:, 0].flip(-1)), 1)
    return replace(clip, inputs={"labels": labels, "style": style, "labels_of_style": maps})


def shown(clip: Batch) -> tuple[Tensor, Tensor]:
    """The references and their label maps."""
    return clip.inputs["style"], F.one_hot(clip.inputs["labels_of_style"], CLASSES).movedim(-1, 2).double()


def frame_by_hand(model: FewShotVid2Vid, clip: Batch, t: int, made: Tensor | None) -> Any:
    past = (one_hot(clip, t - 1), made) if made is not None else ()
    return model.generator(one_hot(clip, t), *shown(clip), *past)


@pytest.mark.parametrize("config", [CONFIG, PICKING], ids=["the first", "attention"])
@pytest.mark.parametrize("frame", [0, 1, 3])
def test_the_terms_of_a_frame_are_those_by_hand(frame: int, config: FewShotVid2VidConfig) -> None:
    model, clip = built(config), pan()
    carried: Mapping[str, Tensor] = {}
    for t in range(frame):
        carried = at(model, "generator", t, replace(clip, inputs={**clip.inputs, **carried})).carried
    given = replace(clip, inputs={**clip.inputs, **carried})
    real, label, settings = clip.images[:, frame], one_hot(clip, frame), AdversarialConfig()
    before = carried["/made"][:, -1] if frame else None
    made = frame_by_hand(model, clip, frame, before)
    references, maps = shown(clip)
    assert config is PICKING or made.picked.tolist() == [0, 0]
    reference, its_map = (torch.stack([one[k] for one, k in zip(every, made.picked.tolist(), strict=True)]) for every in (references, maps))
    beside = torch.cat((label, its_map, reference), 1)
    contests = {"": (torch.cat((beside, real), 1), torch.cat((beside, made.image), 1), model.discriminator.net_D)}
    if before is not None:
        both = torch.cat((clip.images[:, frame - 1], real), 1), torch.cat((before, made.image), 1)
        contests["_temporal_0"] = (*both, model.discriminator.net_DT0)
    expected = judged_by_hand(contests, settings=settings)
    expected["l1"] = l1(made.image, real)
    expected |= dict.fromkeys(("flow_l1", "flow_warp", "mask"), torch.zeros(len(real)))
    moves = [(made.reference, reference, reference)]
    if before is not None:
        moves.append((made.past, before, clip.images[:, frame - 1]))
    for warp, source, true_source in moves:
        teacher = lucas_kanade(real, true_source)
        believed = confidence(real, true_source, teacher)
        expected["flow_l1"] = expected["flow_l1"] + ((warp.flow - teacher) * believed).abs().flatten(1).mean(1)
        moved = warped(source, warp.flow)
        expected["flow_warp"] = expected["flow_warp"] + l1(moved, real)
        q = (1 - (moved - real).abs().sum(1, keepdim=True)).clamp(min=0)
        expected["mask"] = expected["mask"] + (warp.mask * q + (1 - warp.mask) * (1 - q)).flatten(1).mean(1)
    found = at(model, "generator", frame, given)
    assert found.logged.keys() == expected.keys()
    weights = {"adversarial": 1, "feature_matching": 10, "l1": 3, "flow_l1": 2, "flow_warp": 2, "mask": 2}
    weights |= {"adversarial_temporal_0": 0.5, "feature_matching_temporal_0": 10}
    for name, term in expected.items():
        torch.testing.assert_close(found.logged[name], term.detach(), rtol=0, atol=1e-9)
    whole = torch.stack([weights[name] * term for name, term in expected.items()]).sum(0)
    check_gradients(model.generator, {"loss": found.loss}, {"loss": whole})
    judged = at(model, "discriminator", frame, given)
    both = [
        discriminator_losses(network(true).outputs, network(fake.detach()).outputs, settings=settings)
        for true, fake, network in contests.values()
    ]
    whole = torch.stack([weight * (real + fake) for weight, (real, fake) in zip((1, 0.5), both, strict=False)]).sum(0)
    torch.testing.assert_close(judged.loss, whole, rtol=0, atol=1e-9)
    check_gradients(model.discriminator, {"loss": judged.loss}, {"loss": whole})


def test_without_weight_or_teacher_there_are_no_terms_of_flow() -> None:
    clip = pan()
    assert not {"flow_l1", "flow_warp", "mask"} & at(built(replace(CONFIG, flow_weight=0.0)), "generator", 0, clip).logged.keys()
    found = at(built(replace(CONFIG, teacher="none")), "generator", 0, clip).logged
    assert "flow_warp" in found and "flow_l1" not in found


@pytest.mark.parametrize("name", ["made", "past_labels", "real_before", "teacher_flow", "reference_labels", "colours"])
def test_a_folder_may_be_called_what_a_frame_has_beside_its_maps(name: str) -> None:
    clip, condition = pan(), InputSpec(name=name, kind="image", channels=3, frames=FRAMES)
    of_style = replace(condition, name=f"{name}_of_style", frames=None, references=2)
    model = built(replace(CONFIG, warping_weight=1.0), replace(SPEC, inputs=(plain.MAPS, condition, STYLE, STYLE_MAPS, of_style)))
    given = replace(clip, inputs={**clip.inputs, name: clip.images, of_style.name: clip.inputs["style"]})
    carried = at(model, "generator", 0, given).carried
    assert at(model, "generator", 1, replace(given, inputs={**given.inputs, **carried})).loss.isfinite().all()


def test_attention_that_learned_with_one_reference_chooses_among_no_more() -> None:
    style, maps = (replace(entry, references=1) for entry in (STYLE, STYLE_MAPS))
    model, clip = built(PICKING, replace(SPEC, inputs=(plain.MAPS, style, maps))).eval(), pan()
    inputs = {**clip.inputs, "labels": clip.inputs["labels"][:, 0]}
    with pytest.raises(ConfigError, match=r"style: got 2 images, but the model learned with one reference \(data.references\) and cannot"):
        model.next_frame(inputs, [], None, settings=model.translation)
    one = {name: values[:, :1] if name.startswith("style") or name.endswith("style") else values for name, values in inputs.items()}
    assert model.next_frame(one, [], None, settings=model.translation).shape == (2, 3, SIDE, SIDE)


def test_held_out_clips_look_like_their_references() -> None:
    model, clip = built().eval(), pan()
    rng = Rng(0, ("validation",), clip.index)
    (phase,) = (one for one in model.phases if one.name == "generator")
    made: list[Tensor] = []
    with torch.no_grad():
        found = model.loss(phase, clip, rng)
        for t in range(FRAMES):
            made.append(frame_by_hand(model, clip, t, made[-1] if made else None).image)
    assert set(found.logged) == {"l1", "warping_error"}
    errors = torch.stack([l1(image, clip.images[:, t]) for t, image in enumerate(made)]).mean(0)
    torch.testing.assert_close(found.logged["l1"], errors, rtol=0, atol=1e-10)
    example = model.example(clip, settings=model.translation)
    assert set(example.inputs) == {"labels", "style", "labels_of_style"}
    last = model.translate(example.inputs, rng, settings=model.translation)
    torch.testing.assert_close(last, made[-1], rtol=0, atol=1e-10)
    assert isinstance(model, Translator) and isinstance(model, VideoTranslator)
    assert (model.past_frames, model.styles, model.style_sources) == (1, "required", (STYLE, STYLE_MAPS))
    other = replace(
        clip, inputs={**clip.inputs, "style": clip.inputs["style"].flip(0), "labels_of_style": clip.inputs["labels_of_style"].flip(0)}
    )
    changed = model.translate(model.example(other, settings=model.translation).inputs, rng, settings=model.translation)
    assert (changed - last).abs().max() > 0.01


def test_a_reference_to_finetune_on_is_rolled_by_up_to_a_sixteenth_either_way() -> None:
    height, width = 64, 96
    pixels = torch.arange(2.0 * height * width).view(1, 2, 1, height, width)
    look = {"style": pixels.expand(1, 2, 3, height, width), "labels_of_style": pixels[:, :, 0].long()}
    model, found = built(), []
    for seed in range(200):
        rolled = model.of_style(look, Rng(seed, ("finetune", 0), torch.zeros(1, dtype=torch.long)))
        assert rolled.images.shape == (1, 1, 3, height, width) and torch.equal(rolled.images[:, :, 0].long(), rolled.inputs["labels"])
        assert rolled.inputs["style"] is look["style"]
        which, rest = divmod(int(rolled.images[0, 0, 0, 0, 0]), height * width)
        y, x = divmod(rest, width)
        found.append((which, (height - y) % height, (width - x) % width))
        assert torch.equal(rolled.images[0, 0], look["style"][0, which].roll(found[-1][1:], (1, 2)))
    whiches, downs, acrosses = (set(each) for each in zip(*found, strict=True))
    assert whiches == {0, 1}
    assert downs == {k % height for k in range(-4, 5)} and acrosses == {k % width for k in range(-6, 7)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: CONFIG.build(plain.SPEC), "the data has no references, .* set data.references to 1 or more"),
        (
            lambda: plain.CONFIG.build(SPEC),
            r"the data has references \(data.references\), which this model does not look at; set that to 0",
        ),
        (
            lambda: replace(CONFIG, teacher="data"),
            "teacher: got 'data', expected another one: the data says nothing of the flow from references",
        ),
        (lambda: CONFIG.build(replace(SPEC, image_size=30)), "generator.num_downsamples: .*expected sides of multiples of 4"),
        (
            lambda: replace(CONFIG, generator=replace(CONFIG.generator, flow=replace(CONFIG.generator.flow, cost_radius=16))).build(SPEC),
            f"generator.flow.cost_radius: got 16 .*expected sides of at least {17 << CONFIG.generator.flow.cost_halvings}",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        change()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"style": None}, rf"style: missing, expected images of shape \(2, k, 3, {SIDE}, {SIDE}\)"),
        ({"style": torch.zeros(2, 1, 3, 16, 16)}, "style: got images of 16x16 pixels, but the frames have 32x32; make them one size"),
        ({"style": torch.zeros(2, 3, SIDE, SIDE)}, r"style: got images of shape \(2, 3, 32, 32\), expected \(2, k, 3, h, w\)"),
        (
            {"labels_of_style": None},
            r"labels_of_style: missing, expected labels of the style images, whole numbers of shape \(2, 2, 32, 32\)",
        ),
        (
            {"labels_of_style": torch.zeros(2, 1, SIDE, SIDE).long()},
            r"labels_of_style: got int64 of shape \(2, 1, 32, 32\), expected labels",
        ),
        (
            {"labels_of_style": torch.zeros(2, 2, SIDE, SIDE)},
            r"labels_of_style: got float32 of shape .*, expected labels .*, whole numbers of",
        ),
    ],
)
def test_references_that_do_not_fit_are_named(change: dict[str, Tensor | None], message: str) -> None:
    model, clip = built().eval(), pan()
    inputs = {**clip.inputs, "labels": clip.inputs["labels"][:, 0], **change}
    with pytest.raises(ConfigError, match=message):
        model.next_frame({name: values for name, values in inputs.items() if values is not None}, [], None, settings=model.translation)
