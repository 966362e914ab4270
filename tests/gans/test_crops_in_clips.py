"""Discriminators of faces and hands in training: their terms by hand, what is seen beside a crop, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.gans import test_fs_vid2vid as few_shot
from tests.gans import test_vid2vid as plain
from tests.gans.terms import check_gradients, judged_by_hand
from tests.gans.test_crops import face_by_hand, pixels, resized_by_hand
from tests.gans.test_vid2vid import at
from triptych.core.batch import Batch, DataSpec, InputSpec
from triptych.core.errors import ConfigError
from triptych.gans.crops import CropConfig
from triptych.gans.losses import AdversarialConfig, discriminator_losses, feature_matching, generator_loss
from triptych.gans.penalties import PenaltyConfig
from triptych.gans.vid2vid import Vid2VidConfig
from triptych.gans.video_discriminators import VideoDiscriminatorConfig

pytestmark = pytest.mark.usefixtures("float64")

SIDE, FRAMES = 64, 2
POSES = InputSpec(name="poses", kind="image", channels=27, frames=FRAMES)
SPEC = DataSpec(image_size=SIDE, channels=3, frames=FRAMES, inputs=(POSES,))
FACE, HAND = CropConfig(weight=3.0).shrunk(), CropConfig(weight=0.7).shrunk()
JUDGES = replace(VideoDiscriminatorConfig().shrunk(), face=FACE, hand=HAND)
CONFIG = replace(plain.CONFIG, discriminator=JUDGES, l1_weight=0.0, teacher="none")
SETTINGS = AdversarialConfig()

DENSE = InputSpec(name="densepose", kind="image", channels=3, frames=FRAMES)
STYLE = InputSpec(name="style", kind="image", channels=3, references=2)
SHOWN = replace(SPEC, inputs=(DENSE, STYLE, InputSpec(name="densepose_of_style", kind="image", channels=3, references=2)))
FEW = replace(
    few_shot.CONFIG, discriminator=replace(JUDGES, hand=CropConfig()), l1_weight=0.0, teacher="none", generator=few_shot.PICKING.generator
)


def dancers() -> Batch:
    """Three clips: a face and both hands, a face and one hand, and neither."""
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(3, FRAMES, 3, SIDE, SIDE, generator=generator) * 2 - 1
    poses = torch.full((3, FRAMES, 27, SIDE, SIDE), -1.0)
    for t in range(FRAMES):
        poses[:2, t, :24, 20 + t : 50, 30:34] = 1
        poses[0, t, 26, 8 + t : 20, 26:44] = 1
        poses[1, t, 26, 30:44, 40 + t : 45 + t] = 1
        poses[0, t, 24, 30:34, 10:13] = poses[0, t, 25, 40 + t : 42 + t, 55:60] = 1
        poses[1, t, 25, 60:63, 2 + t : 5 + t] = 1
    return Batch(images, None, torch.arange(3), {"poses": poses})


def shown() -> Batch:
    """The clips with DensePose's heads in the place of faces, and two references each."""
    clip, generator = dancers(), torch.Generator().manual_seed(4)
    dense = torch.full((3, FRAMES, 3, SIDE, SIDE), -1.0)
    dense[:, :, 2] = torch.where(clip.inputs["poses"][:, :, 26] > -1, 1.0, -1.0)
    style = torch.rand(3, 2, 3, SIDE, SIDE, generator=generator) * 2 - 1
    maps = dense.flip(-1).clone()
    maps[:2, 1, 2, 30:62] = maps[:2, 1, 2, 10:42].clone()
    style[0], maps[0] = style[0].flip(0), maps[0].flip(0)  # so that attention does not pick the first for all
    return replace(clip, inputs={"densepose": dense, "style": style, "densepose_of_style": maps})


def crop(image: Tensor, place: tuple[int, int, int], size: int) -> Tensor:
    left, top, side = place
    return resized_by_hand(image[:, top : top + side, left : left + side], size)


def faces(images: Tensor, masks: Tensor, *, drawn: bool) -> Tensor:
    return torch.stack([crop(image, face_by_hand(mask, drawn=drawn), 16) for image, mask in zip(images, masks, strict=True)])


def hands(image: Tensor, pose: Tensor) -> list[Tensor]:
    """The hands of an image that are seen."""
    made = []
    for channel in (24, 25):
        if found := pixels(pose[channel] == 1):
            rows, columns = zip(*found, strict=True)
            top, left = (min(max((min(one) + max(one)) // 2 - 4, 0), SIDE - 8) for one in (rows, columns))
            made.append(image[:, top : top + 8, left : left + 8])
    return made


def of_hands(real: Tensor, fake: Tensor, pose: Tensor, network: nn.Module) -> dict[str, Tensor]:
    """All terms of hands, image by image: means over those that are seen."""
    rows: dict[str, list[Tensor]] = {name: [] for name in ("adversarial", "feature_matching", "real", "fake")}
    for k in range(len(real)):
        true, made = hands(real[k], pose[k]), hands(fake[k], pose[k])
        if not true:
            for values in rows.values():
                values.append(torch.zeros(()))
            continue
        known, verdict = network(torch.stack(true)), network(torch.stack(made))
        both = discriminator_losses(known.outputs, verdict.outputs, settings=SETTINGS)
        rows["adversarial"].append(generator_loss(verdict.outputs, settings=SETTINGS).mean())
        rows["feature_matching"].append(feature_matching(verdict.features, known.features).mean())
        for name, values in zip(("real", "fake"), both, strict=True):
            rows[name].append(values.mean())
    return {f"{name}_hand": torch.stack(values) for name, values in rows.items()}


@pytest.mark.parametrize("frame", [0, 1])
def test_the_terms_of_faces_and_hands_are_those_by_hand(frame: int) -> None:
    model, clip = plain.built(CONFIG, SPEC), dancers()
    given = clip if not frame else replace(clip, inputs={**clip.inputs, **at(model, "generator", 0, clip).carried})
    real, pose = clip.images[:, frame], clip.inputs["poses"][:, frame]
    past = (clip.inputs["poses"][:, :1], given.inputs["/made"]) if frame else ()
    fake, judge = model.generator(pose, *past).image, model.discriminator
    cut = [faces(images, pose[:, 26] > -1, drawn=True) for images in (real, fake)]
    contests = {"": (torch.cat((pose, real), 1), torch.cat((pose, fake), 1), judge.net_D), "_face": (*cut, judge.net_D_face)}
    by_hand = of_hands(real, fake, pose, judge.net_D_hand)
    expected = judged_by_hand(contests, settings=SETTINGS) | {name: by_hand[name] for name in ("adversarial_hand", "feature_matching_hand")}
    found = at(model, "generator", frame, given)
    assert found.logged.keys() == expected.keys()
    for name, term in expected.items():
        torch.testing.assert_close(found.logged[name], term.detach(), rtol=0, atol=1e-9)
    assert found.logged["adversarial_hand"][2] == found.logged["feature_matching_hand"][2] == 0
    weights = {"adversarial": 1, "feature_matching": 10, "adversarial_face": 3, "feature_matching_face": 3}
    weights |= {"adversarial_hand": 0.7, "feature_matching_hand": 0.7}
    whole = torch.stack([weights[name] * term for name, term in expected.items()]).sum(0)
    torch.testing.assert_close(found.loss, whole, rtol=0, atol=1e-9)
    check_gradients(model.generator, {"loss": found.loss}, {"loss": whole})
    judged = at(model, "discriminator", frame, given)
    losses = {"real_hand": by_hand["real_hand"], "fake_hand": of_hands(real, fake.detach(), pose, judge.net_D_hand)["fake_hand"]}
    for name, (true, made, network) in contests.items():
        both = discriminator_losses(network(true).outputs, network(made.detach()).outputs, settings=SETTINGS)
        losses |= {f"real{name}": both[0], f"fake{name}": both[1]}
    assert judged.logged.keys() == losses.keys()
    weights = {"_face": 3, "_hand": 0.7}
    whole = torch.stack([weights.get(name[4:], 1) * loss for name, loss in losses.items()]).sum(0)
    torch.testing.assert_close(judged.loss, whole, rtol=0, atol=1e-9)
    check_gradients(model.discriminator, {"loss": judged.loss}, {"loss": whole})


def test_a_face_is_seen_beside_that_of_the_reference_that_was_moved() -> None:
    model, clip = few_shot.built(FEW, SHOWN), shown()
    real, dense, style, maps = clip.images[:, 0], *(clip.inputs[name] for name in ("densepose", "style", "densepose_of_style"))
    made = model.generator(dense[:, 0], style, maps)
    assert set(made.picked.tolist()) == {0, 1}
    picked, its_map = (torch.stack([one[k] for one, k in zip(every, made.picked.tolist(), strict=True)]) for every in (style, maps))
    reference = faces(picked, its_map[:, 2] > 0.9, drawn=False)
    both = [torch.cat((faces(images, dense[:, 0, 2] > 0.9, drawn=False), reference), 1) for images in (real, made.image)]
    contests = {"_face": (*both, model.discriminator.net_D_face)}
    expected = judged_by_hand(contests, settings=SETTINGS)
    found = at(model, "generator", 0, clip)
    for name, term in expected.items():
        torch.testing.assert_close(found.logged[name], term.detach(), rtol=0, atol=1e-9)
    judged = at(model, "discriminator", 0, clip).logged
    losses = discriminator_losses(*(model.discriminator.net_D_face(seen).outputs for seen in both), settings=SETTINGS)
    for name, loss in zip(("real_face", "fake_face"), losses, strict=True):
        torch.testing.assert_close(judged[name], loss.detach(), rtol=0, atol=1e-9)


def part_of(clip: Batch, rows: slice) -> Batch:
    return replace(
        clip, images=clip.images[rows], index=clip.index[rows], inputs={name: values[rows] for name, values in clip.inputs.items()}
    )


@pytest.mark.parametrize("phase", ["discriminator", "generator"])
def test_the_terms_of_a_clip_do_not_depend_on_the_others(phase: str) -> None:
    """So that microbatches and processes add up to the same."""
    for model, clip in ((plain.built(CONFIG, SPEC), dancers()), (few_shot.built(FEW, SHOWN), shown())):
        whole = at(model, phase, 0, clip)
        for rows in (slice(0, 1), slice(1, 3)):
            part = at(model, phase, 0, part_of(clip, rows))
            torch.testing.assert_close(part.loss, whole.loss[rows], rtol=0, atol=1e-10)
            for name, term in part.logged.items():
                torch.testing.assert_close(term, whole.logged[name][rows], rtol=0, atol=1e-10)


@pytest.mark.parametrize("every", [1, 4])
def test_hands_that_are_not_seen_have_no_penalty(every: int) -> None:
    config = replace(CONFIG, penalty=PenaltyConfig(r1_gamma=2.0, every=every))
    model, clip = plain.built(config, SPEC), dancers()
    terms = at(model, "discriminator" if every == 1 else "penalty", 0, clip).logged
    assert terms["r1_hand"][2] == 0 and (terms["r1_hand"][:2] > 0).all()
    crops = torch.stack(hands(clip.images[0, 0], clip.inputs["poses"][0, 0])).requires_grad_()
    (gradient,) = torch.autograd.grad(model.discriminator.net_D_hand(crops).outputs[0].mean((1, 2, 3)).sum(), crops, create_graph=False)
    ratio = terms["r1_hand"][0] / gradient.square().flatten(1).sum(1).mean()
    torch.testing.assert_close(ratio, torch.tensor(1.0 * every), rtol=1e-8, atol=0)


def test_configurations_without_crops_read_as_before_and_others_come_back() -> None:
    old = replace(CONFIG, discriminator=VideoDiscriminatorConfig().shrunk())
    assert old.to_dict()["discriminator"].keys() == {"patch", "temporal", "temporal_frames", "temporal_scales"}
    assert Vid2VidConfig.from_dict(CONFIG.to_dict()) == CONFIG
    assert CONFIG.updated({"discriminator": {"face": {"weight": 5}}}).discriminator.face == replace(FACE, weight=5.0)
    names = set(plain.built(old, SPEC).discriminator.state_dict())
    assert not [name for name in names if not name.startswith("net_D.")]
    drawn = replace(SPEC, inputs=(POSES, replace(plain.FLOW, frames=FRAMES)))
    assert set(plain.built(CONFIG, drawn).discriminator.state_dict()) > names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda: CONFIG.build(plain.SPEC),
            "discriminator.face.weight: got 3, but no label map shows where a face is; expected 0, or a cond",
        ),
        (
            lambda: replace(CONFIG, discriminator=replace(JUDGES, face=CropConfig())).build(replace(SPEC, inputs=(DENSE,))),
            "discriminator.hand.weight: got 0.7, but no label map shows where a hand is",
        ),
        (
            lambda: CONFIG.build(replace(SPEC, image_size=32)),
            "discriminator.hand.patch.num_layers: got 1 for images of 32x32 .* at least 64",
        ),
        (
            lambda: replace(FEW, discriminator=JUDGES),
            r"discriminator.hand.weight: got 0.7, expected 0: hands are not .* faces are \(discriminator.face.weight\)",
        ),
        (lambda: CropConfig(weight=-1.0), "weight: got -1.0, expected 0 or a positive number"),
        (lambda: CropConfig(patch=replace(FACE.patch, shared=True)), "patch: got .*, expected one with shared false"),
        (lambda: replace(CONFIG, augment=("color",)), "augment: got .*, expected nothing with discriminator.face.weight"),
        (lambda: replace(CONFIG, top_k=replace(CONFIG.top_k, least=0.5)), "top_k: got .*, expected least 1 with clips"),
    ],
)
def test_what_does_not_fit_is_refused(change: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        change()
