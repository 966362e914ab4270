"""Terms of people in few-shot vid2vid: masks and sums by loops over pixels, what the generator sees of a head, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.gans import test_fs_vid2vid as few_shot
from tests.gans.test_vid2vid import at
from triptych.core.batch import Batch, DataSpec, InputSpec
from triptych.core.errors import ConfigError
from triptych.gans.flow import confidence, warped
from triptych.gans.fs_vid2vid import FewShotVid2Vid, FewShotVid2VidConfig
from triptych.gans.lucas_kanade import lucas_kanade
from triptych.gans.people import Person, body, groups, head, terms_of_people, without_head

pytestmark = pytest.mark.usefixtures("float64")

SIDE, FRAMES = 32, 2
POSE = InputSpec(name="dense", kind="image", channels=3, frames=FRAMES, stored="densepose")
LINES = InputSpec(name="lines", kind="image", channels=1, frames=FRAMES)
STYLE = InputSpec(name="style", kind="image", channels=3, references=2)
SPEC = DataSpec(
    image_size=SIDE,
    channels=3,
    frames=FRAMES,
    inputs=(
        POSE,
        LINES,
        STYLE,
        InputSpec(name="dense_of_style", kind="image", channels=3, references=2, stored="densepose"),
        InputSpec(name="lines_of_style", kind="image", channels=1, references=2),
    ),
)
CONFIG = replace(few_shot.PICKING, l1_weight=0.0, people=True, hide_head=True)


def person(row: int, column: int, *, seed: int) -> Tensor:
    """A map of DensePose (3, h, w): a head on a torso between two arms, above two legs, the numbers of their parts drawn."""
    generator = torch.Generator().manual_seed(seed)
    part, uv = torch.zeros(SIDE, SIDE, dtype=torch.long), torch.rand(2, SIDE, SIDE, generator=generator)
    left, right = (15 + torch.randint(0, 8, (2,), generator=generator)).tolist()
    for top, first, tall, wide, number in ((0, 3, 4, 4, 23), (4, 3, 6, 4, 2), (4, 0, 5, 3, left), (4, 7, 5, 3, right), (10, 3, 6, 4, 9)):
        part[row + top : row + top + tall, column + first : column + first + wide] = number
    part[row + 1, column + 4] = 24
    return torch.cat((torch.where(part > 0, uv, 0), part[None] / 24)) * 2 - 1


def dancers() -> Batch:
    """Two clips of people who move to the right, with two references each."""
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(2, FRAMES, 3, SIDE, SIDE, generator=generator) * 2 - 1
    images[:, 1] = images[:, 0] + 0.02 * images[:, 1]  # so that a teacher believes in its flow, off the person too
    style = torch.rand(2, 2, 3, SIDE, SIDE, generator=generator) * 2 - 1
    pose = torch.stack([torch.stack([person(3 + k, 8 + 3 * t, seed=k) for t in range(FRAMES)]) for k in range(2)])
    looks = torch.stack([torch.stack([person(9 - k, 4 + 9 * j, seed=10 + 2 * k + j) for j in range(2)]) for k in range(2)])
    lines, its_lines = pose[:, :, :1].clone(), looks[:, :, :1] / 2
    inputs = {"dense": pose, "lines": lines, "style": style, "dense_of_style": looks, "lines_of_style": its_lines}
    return Batch(images, None, torch.arange(2), inputs)


GROUP_OF = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 8, 8)
"""The group of each part, nobody first."""


def built(config: FewShotVid2VidConfig = CONFIG, spec: DataSpec = SPEC) -> FewShotVid2Vid:
    return few_shot.built(config, spec)


# The masks by hand ---------------------------------------------------------------------------------------------------


def parts_of(pose: Tensor) -> list[list[int]]:
    return [[round((value + 1) * 12) for value in row] for row in pose[2].tolist()]


def groups_by_hand(pose: Tensor) -> Tensor:
    whole = torch.zeros(9, SIDE, SIDE)
    for y, row in enumerate(parts_of(pose)):
        for x, part in enumerate(row):
            whole[GROUP_OF[part], y, x] = 1
    return whole


def around_by_hand(pose: Tensor, *, least: int, largest: bool) -> Tensor:
    """Whether, or in what share, the 15x15 pixels around each have such parts; there are none beyond the border."""
    found, parts = torch.zeros(1, SIDE, SIDE), parts_of(pose)
    for row in range(SIDE):
        for column in range(SIDE):
            near = [parts[y][max(0, column - 7) : column + 8] for y in range(max(0, row - 7), min(SIDE, row + 8))]
            seen = [float(part >= least) for line in near for part in line]
            found[0, row, column] = max(seen) if largest else sum(seen) / 225
    return found


def every_part() -> Tensor:
    """Two maps of DensePose whose parts change from pixel to pixel, and which show nobody on their right half."""
    part = torch.randint(0, 25, (2, 1, SIDE, SIDE), generator=torch.Generator().manual_seed(8))
    part[..., SIDE // 2 :] = 0
    return torch.cat((torch.zeros(2, 2, SIDE, SIDE), part / 24), 1) * 2 - 1


@pytest.mark.parametrize("pose", [dancers().inputs["dense"][:, 0], every_part()], ids=["people", "every part"])
def test_masks_are_those_of_loops_over_pixels(pose: Tensor) -> None:
    pose = pose.double()
    torch.testing.assert_close(groups(pose), torch.stack([groups_by_hand(one) for one in pose]), rtol=0, atol=0)
    torch.testing.assert_close(body(pose), torch.stack([around_by_hand(one, least=1, largest=True) for one in pose]), rtol=0, atol=0)
    torch.testing.assert_close(head(pose), torch.stack([around_by_hand(one, least=23, largest=False) for one in pose]), rtol=0, atol=1e-12)
    shown = without_head(pose)
    for one, other in zip(pose, shown, strict=True):
        for y, row in enumerate(parts_of(one)):
            for x, part in enumerate(row):
                assert other[:, y, x].tolist() == ([-1.0] * 3 if part >= 23 else one[:, y, x].tolist())


def terms_by_hand(mask: Tensor, image: Tensor, moved: Tensor, flow: Tensor, pose: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """The terms of the flow and of the mask of one sample, as sums over pixels."""
    parts, its_parts = groups_by_hand(pose), warped(groups_by_hand(other)[None], flow[None])[0]
    there, its_there = around_by_hand(pose, least=1, largest=True), around_by_hand(other, least=1, largest=True)
    of_flow = (its_parts - parts).abs().sum() / parts.numel() + (warped(its_there[None], flow[None])[0] - there).abs().sum() / SIDE**2
    on_head = around_by_hand(pose, least=23, largest=False)
    of_mask = torch.zeros(())
    for row in range(SIDE):
        for column in range(SIDE):
            m, h = mask[0, row, column], on_head[0, row, column]
            off = sum((its_parts[g, row, column] - parts[g, row, column]).abs() for g in range(9))
            left = float(its_there[0, row, column] > there[0, row, column])
            of_mask = of_mask + m * h + (image[:, row, column] - moved[:, row, column]).abs().mean() * h + (1 - m) * (off + left)
    return of_flow, of_mask / SIDE**2


def test_terms_are_those_of_loops_over_pixels() -> None:
    clip, generator = dancers(), torch.Generator().manual_seed(6)
    pose, other = clip.inputs["dense"][:, 1], clip.inputs["dense_of_style"][:, 0]
    mask, flow = torch.rand(2, 1, SIDE, SIDE, generator=generator), 4 * torch.randn(2, 2, SIDE, SIDE, generator=generator)
    image, moved = clip.images[:, 1], warped(clip.inputs["style"][:, 0], flow)
    rows = zip(mask, image, moved, flow, pose, other, strict=True)
    of_flow, of_mask = (torch.stack(values) for values in zip(*(terms_by_hand(*row) for row in rows), strict=True))
    found = terms_of_people(flow, mask, moved, image=image, person=Person.of(pose), other=Person.of(other))
    torch.testing.assert_close(found, (of_flow, of_mask), rtol=0, atol=1e-10)


# In training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", [0, 1])
def test_terms_join_those_of_the_flow_from_the_reference(frame: int) -> None:
    """Against the model without them, and with another teacher: the maps of DensePose, believed on the person."""
    clip = dancers()
    found, plain = {}, {}
    for where, config in ((found, CONFIG), (plain, replace(CONFIG, people=False))):
        model = built(config)
        carried = at(model, "generator", 0, clip).carried if frame else {}
        given = replace(clip, inputs={**clip.inputs, **carried})
        where["terms"] = at(model, "generator", frame, given)
        label = model.labels({name: clip.inputs[name][:, frame] for name in ("dense", "lines")})
        before = [model.labels({name: clip.inputs[name][:, frame - 1] for name in ("dense", "lines")})] if frame else []
        seen = [torch.cat((without_head(each[:, :3]), each[:, 3:]), 1) for each in (label, *before)]
        maps = torch.cat((clip.inputs["dense_of_style"], clip.inputs["lines_of_style"]), 2)
        past = [seen[1], carried["/made"][:, -1]] if frame else []
        where["made"] = model.generator(seen[0], clip.inputs["style"], maps, *past)
    made, its = found["made"], torch.arange(2)
    pose, other = clip.inputs["dense"][:, frame], clip.inputs["dense_of_style"][its, found["made"].picked]
    torch.testing.assert_close(made.image, plain["made"].image, rtol=0, atol=0)
    warp, on_body = made.reference, torch.stack([around_by_hand(one, least=1, largest=True) for one in pose])
    expected = {name: values.clone() for name, values in plain["terms"].logged.items()}
    rows = list(zip(warp.mask, made.image, warp.image, warp.flow, pose, other, strict=True))
    for name, values in zip(("flow_warp", "mask"), zip(*(terms_by_hand(*row) for row in rows), strict=True), strict=True):
        expected[name] = expected[name] + torch.stack(values)
    teacher = lucas_kanade(pose, other)
    believed = confidence(pose, other, teacher) * on_body
    expected["flow_l1"] = ((warp.flow - teacher) * believed).abs().flatten(1).mean(1)
    if frame:
        teacher = lucas_kanade(clip.images[:, 1], clip.images[:, 0])
        believed = confidence(clip.images[:, 1], clip.images[:, 0], teacher) * on_body
        expected["flow_l1"] = expected["flow_l1"] + ((made.past.flow - teacher) * believed).abs().flatten(1).mean(1)
    assert found["terms"].logged.keys() == expected.keys()
    for name, term in expected.items():
        torch.testing.assert_close(found["terms"].logged[name], term.detach(), rtol=0, atol=1e-9)
    weight = CONFIG.flow_weight
    difference = weight * sum(expected[name] - plain["terms"].logged[name] for name in ("flow_l1", "flow_warp", "mask"))
    torch.testing.assert_close(found["terms"].loss - plain["terms"].loss, difference, rtol=0, atol=1e-8)


def test_a_mask_and_a_flow_learn_from_people() -> None:
    """Each part of the terms reaches what it is to teach."""
    clip, generator = dancers(), torch.Generator().manual_seed(7)
    pose, other = clip.inputs["dense"][:, 1], clip.inputs["dense_of_style"][:, 0]
    flow = torch.randn(2, 2, SIDE, SIDE, generator=generator).requires_grad_()
    mask = torch.full((2, 1, SIDE, SIDE), 0.5, requires_grad=True)
    image = clip.images[:, 1].clone().requires_grad_()
    moved, people = warped(clip.inputs["style"][:, 0], flow), {"person": Person.of(pose), "other": Person.of(other)}
    loss = sum(terms_of_people(flow, mask, moved, image=image, **people))
    assert isinstance(loss, Tensor)
    on_flow, on_mask, on_image = torch.autograd.grad(loss.sum(), (flow, mask, image))
    assert on_flow.abs().sum() > 0
    torch.testing.assert_close(on_image.ne(0).any(1, keepdim=True), head(pose) > 0)
    nothing = (head(pose) == 0) & (on_mask > 0)
    assert not nothing.any(), "a mask is made smaller on the head alone"
    still, shown = torch.zeros_like(flow), Person.of(pose)
    same, _ = terms_of_people(still, mask, image, image=image, person=shown, other=shown)
    assert max(same.tolist()) < 1e-12


def test_a_discriminator_and_a_reference_show_the_head() -> None:
    """What is hidden is so for the generator, in frames alone."""
    clip = dancers()
    model = built()
    label = model.labels({name: clip.inputs[name][:, 0] for name in ("dense", "lines")})
    assert model.labels.channels_of("dense") == slice(0, 3) and model.labels.channels_of("lines") == slice(3, 4)
    assert model._seen(label).is_contiguous(memory_format=torch.channels_last)
    moment = {name: values[:, 0] if name in ("dense", "lines") else values for name, values in clip.inputs.items()}
    seen: list[tuple[Tensor, ...]] = []
    hook = model.generator.register_forward_pre_hook(lambda module, given: seen.append(given))
    with torch.no_grad():
        model.frame_of(label, None, None, moment)
    hook.remove()
    assert not torch.equal(seen[0][0], label) and torch.equal(seen[0][0][:, 3:], label[:, 3:])
    assert torch.equal(seen[0][2][:, :, :3], clip.inputs["dense_of_style"])
    whole = built(replace(CONFIG, hide_head=False))
    with torch.no_grad():
        hook = whole.generator.register_forward_pre_hook(lambda module, given: seen.append(given))
        whole.frame_of(label, None, None, moment)
    hook.remove()
    assert torch.equal(seen[1][0], label)


# What is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["people", "hide_head"])
def test_they_need_dense_pose(name: str) -> None:
    config = replace(CONFIG, **({"people": False, "hide_head": False} | {name: True}))
    with pytest.raises(ConfigError, match=rf"^{name}: got True, but the data has no maps of DensePose; give their folder"):
        config.build(few_shot.SPEC)


def test_data_without_clips_is_named_first() -> None:
    pictures = tuple(replace(entry, frames=None) for entry in SPEC.inputs[:2])
    with pytest.raises(ConfigError, match="the data has no clips"):
        CONFIG.build(replace(SPEC, frames=None, inputs=pictures))


def test_a_head_is_hidden_in_values_from_minus_one() -> None:
    for change in ({"positive_conditions": True}, {"positive_inputs": ("dense",)}):
        with pytest.raises(ConfigError, match=r"^hide_head: got True, but DensePose goes from 0 to 1; set positive_conditions to False"):
            replace(CONFIG, **change).build(SPEC)
    replace(CONFIG, positive_inputs=("lines",)).build(SPEC)


def test_terms_of_people_need_those_of_the_flow() -> None:
    with pytest.raises(ConfigError, match=r"^people: got True, expected false where flow_weight is 0"):
        replace(CONFIG, flow_weight=0.0)
