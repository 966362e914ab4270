"""Adaptive augmentation: how often each change happens, how it is distributed, its gradients, and that a sample's changes are its own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from triptych.core.errors import ConfigError
from triptych.core.ramp import Ramp
from triptych.core.rng import Rng
from triptych.gans.ada import R3GAN_CHANGES, ADAConfig, Changes, adapted, draw
from triptych.nn import warp

CHANGES = ADAConfig.changes()
ALL = ADAConfig().updated(dict.fromkeys(CHANGES, 1.0))
COUNT = 4000


def only(*changes: str, multiplier: float = 1.0) -> ADAConfig:
    """Settings with no other change."""
    return ADAConfig().updated(dict.fromkeys(CHANGES, 0.0) | dict.fromkeys(changes, multiplier))


def rng(count: int, *, first: int = 0, stream: str = "augment") -> Rng:
    return Rng(0, (stream,), torch.arange(first, first + count))


def images(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype) * 2 - 1


def many(change: str, *, p: float = 1.0, size: tuple[int, int] = (16, 32)) -> Changes:
    return draw(rng(COUNT), p=p, settings=only(change), size=size, dtype=torch.float64)


def test_there_are_eighteen() -> None:
    """The filter's four bands are four of them."""
    assert len(CHANGES) + 3 == 18


def test_multipliers_of_the_papers() -> None:
    """ADA's "bgc": pixels, geometry and colours; R3GAN's: half the colours, and cutout."""
    rest = {"image_filter": 0, "noise": 0, "cutout": 0}
    assert {change: getattr(ADAConfig(), change) for change in CHANGES} == dict.fromkeys(CHANGES, 1) | rest
    colours = dict.fromkeys(("brightness", "contrast", "luma_flip", "hue_rotation", "saturation"), 0.5)
    assert {change: getattr(R3GAN_CHANGES, change) for change in CHANGES} == dict.fromkeys(CHANGES, 1) | rest | colours | {"cutout": 1}


def test_at_p_0_images_come_back_to_the_bit() -> None:
    for channels in (1, 3):
        x = images(3, channels, 9, 6)
        for p in (0.0, torch.tensor(0.0)):
            assert torch.equal(adapted(x, rng(3), p=p, settings=ALL), x)
    assert torch.equal(adapted(x, rng(3), p=1.0, settings=only()), x)


SHARES = {  # of images that differ, where each change happens with probability p
    "x_flip": lambda p: p / 2,
    "rotation_90": lambda p: p * 3 / 4,
    "integer_translation": lambda p: p * 15 / 16,  # U(-2, 2), rounded twice: 0 is a quarter of each
    "luma_flip": lambda p: p / 2,
    "image_filter": lambda p: 1 - (1 - p) ** 4,
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_happens_as_often_as_it_should_and_leaves_the_other_images_to_the_bit(change: str) -> None:
    p, x = 0.3, images(COUNT, 3, *((16, 16) if change == "integer_translation" else (4, 4)))
    y = adapted(x, rng(COUNT), p=p, settings=only(change))
    share = SHARES.get(change, lambda p: p)(p)
    differ = (y != x).flatten(1).any(1).double().mean().item()
    assert differ == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / COUNT))
    half = adapted(x, rng(COUNT), p=torch.tensor(2 * p), settings=only(change, multiplier=0.5))
    assert torch.equal(half, y), "a multiplier of 0.5 at twice the probability"


def test_probabilities_above_1_are_1() -> None:
    x = images(8, 3, 6, 6)
    assert torch.equal(adapted(x, rng(8), p=torch.tensor(2.5), settings=ALL), adapted(x, rng(8), p=1.0, settings=ALL))


def assert_normal(values: torch.Tensor, sd: float) -> None:
    """Mean 0, that standard deviation, and the fourth moment of a normal distribution."""
    assert values.mean().abs() < 4 * sd / math.sqrt(len(values))
    assert values.std().item() == pytest.approx(sd, rel=0.05)
    assert (values / sd).pow(4).mean().item() == pytest.approx(3, abs=0.5)


def assert_uniform(values: torch.Tensor, reach: float) -> None:
    assert reach * 0.99 < values.max() <= reach
    assert -reach <= values.min() < -reach * 0.99
    assert values.std().item() == pytest.approx(reach / math.sqrt(3), rel=0.03)
    assert values.mean().abs() < 0.05 * reach


def test_distributions() -> None:
    assert many("x_flip").flip.unique(return_counts=True)[0].tolist() == [-1, 1]
    assert many("x_flip").flip.mean().abs() < 0.06
    assert torch.bincount(many("rotation_90").quarters).tolist() == pytest.approx([COUNT / 4] * 4, rel=0.12)
    places = many("integer_translation").pixels
    assert [sorted(set(axis.tolist())) for axis in places.unbind(1)] == [list(range(-4, 5)), list(range(-2, 3))], "sides 32 and 16"
    assert_normal(many("isotropic_scaling").scale.log2(), 0.2)
    assert_normal(many("anisotropic_scaling").stretch.log2(), 0.2)
    assert_normal(many("fractional_translation").shift[:, 0], 32 / 8)
    assert_normal(many("fractional_translation").shift[:, 1], 16 / 8)
    turned = many("rotation", p=0.75)
    for angle in (turned.first_angle, turned.second_angle):
        assert (angle != 0).double().mean().item() == pytest.approx(0.5, abs=0.04), "1 - sqrt(1 - p)"
        assert_uniform(angle[angle != 0], math.pi)
    assert_normal(many("brightness").brightness, 0.2)
    assert_normal(many("contrast").contrast.log2(), 0.5)
    assert many("luma_flip").luma.mean().abs() < 0.06
    assert_uniform(many("hue_rotation").hue, math.pi)
    assert_normal(many("saturation").saturation.log2(), 1.0)
    sigma = many("noise").sigma
    assert sigma.min() > 0
    assert sigma.square().mean().sqrt().item() == pytest.approx(0.1, rel=0.05)
    cut = many("cutout")
    assert cut.cut.all()
    assert_uniform(2 * cut.middle[:, 0] - 1, 1.0)
    assert_uniform(2 * cut.middle[:, 1] - 1, 1.0)


def test_the_gains_of_bands_keep_the_power_of_a_natural_image() -> None:
    """Band by band, as the paper has it: 2^N(0, 1) for one, all divided by the root of the expected power; then the product."""
    gains = many("image_filter").gains
    power, product = torch.tensor([10.0, 1.0, 1.0, 1.0], dtype=torch.float64) / 13, torch.ones(COUNT, 4, dtype=torch.float64)
    normal = rng(COUNT).normal("normal", 12).double()[:, 7:11]
    for band in range(4):
        t = torch.ones(COUNT, 4, dtype=torch.float64)
        t[:, band] = normal[:, band].exp2()
        product *= t / (power * t.square()).sum(1, keepdim=True).sqrt()
    torch.testing.assert_close(gains, product)
    for one, other in ((0, 1), (1, 2), (2, 3)):  # what they are divided by is the same for all
        assert_normal((gains[:, one] / gains[:, other]).log2(), math.sqrt(2))


def test_changes_are_independent() -> None:
    drawn = draw(rng(COUNT), p=1.0, settings=ALL, size=(64, 64), dtype=torch.float64)
    numbers = [drawn.flip, drawn.quarters.double(), drawn.scale.log2(), drawn.first_angle, drawn.stretch.log2(), drawn.second_angle]
    numbers += [*drawn.pixels.unbind(1), *drawn.shift.unbind(1), drawn.brightness, drawn.contrast.log2(), drawn.luma, drawn.hue]
    numbers += [drawn.saturation.log2(), drawn.sigma, *drawn.middle.unbind(1), *drawn.gains.log2().diff(dim=1).unbind(1)]
    together = torch.corrcoef(torch.stack(numbers))
    together[-3:, -3:] = 0  # differences of the same bands
    assert together.triu(1).abs().max() < 0.07
    happened = draw(rng(COUNT), p=0.5, settings=ALL, size=(64, 64), dtype=torch.float64)
    gates = [happened.scale != 1, happened.stretch != 1, happened.first_angle != 0, happened.second_angle != 0, happened.shift[:, 0] != 0]
    gates += [
        happened.brightness != 0,
        happened.contrast != 1,
        happened.hue != 0,
        happened.saturation != 1,
        happened.sigma > 0,
        happened.cut,
    ]
    assert torch.corrcoef(torch.stack(gates).double()).triu(1).abs().max() < 0.07


def test_sources_are_the_inverse_of_the_transforms_in_the_papers_order() -> None:
    drawn = draw(rng(50), p=0.8, settings=ALL, size=(20, 12), dtype=torch.float64)
    for i, source in enumerate(drawn.sources()):

        def turn(angle: float) -> torch.Tensor:
            generator = torch.tensor([[0.0, -angle, 0.0], [angle, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
            return torch.linalg.matrix_exp(generator)

        def scale(across: float, down: float) -> torch.Tensor:
            return torch.diag(torch.tensor([across, down, 1.0], dtype=torch.float64))

        def move(by: torch.Tensor) -> torch.Tensor:
            matrix = torch.eye(3, dtype=torch.float64)
            matrix[:2, 2] = by
            return matrix

        forward = torch.eye(3, dtype=torch.float64)
        size, stretch = drawn.scale[i].item(), drawn.stretch[i].item()
        for step in (
            scale(drawn.flip[i].item(), 1),
            turn(drawn.quarters[i].item() * math.pi / 2),
            move(drawn.pixels[i]),
            scale(size, size),
            turn(drawn.first_angle[i].item()),
            scale(stretch, 1 / stretch),
            turn(drawn.second_angle[i].item()),
            move(drawn.shift[i]),
        ):
            forward = step @ forward
        torch.testing.assert_close(source, torch.linalg.inv(forward)[:2], rtol=0, atol=1e-9)


def test_colours_are_the_product_of_the_papers_matrices() -> None:
    drawn = draw(rng(50), p=0.8, settings=ALL, size=(4, 4), dtype=torch.float64)
    axis = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64) / math.sqrt(3)
    eye, grey = torch.eye(4, dtype=torch.float64), torch.outer(axis, axis)
    for i, matrix in enumerate(drawn.colours()):
        shift, stretch, cross = eye.clone(), torch.diag(torch.tensor([drawn.contrast[i]] * 3 + [1.0])), torch.zeros_like(eye)
        shift[:3, 3] = drawn.brightness[i]
        cross[:3, :3] = torch.linalg.cross(axis[:3].expand(3, 3), torch.eye(3, dtype=torch.float64), dim=1).T
        flip = eye - 2 * grey * (drawn.luma[i] < 0)
        saturate = grey + (eye - grey) * drawn.saturation[i]
        saturate[3] = eye[3]  # of the fourth axis the paper means nothing
        expected = saturate @ torch.linalg.matrix_exp(drawn.hue[i] * cross) @ flip @ stretch.double() @ shift
        torch.testing.assert_close(matrix, expected[:3], rtol=0, atol=1e-12)


def test_grey_images_get_brightness_contrast_and_luma_flip() -> None:
    x = images(300, 1, 2, 2, dtype=torch.float64)
    settings = only("brightness", "contrast", "luma_flip", "hue_rotation", "saturation")
    drawn = draw(rng(300), p=0.7, settings=settings, size=(2, 2), dtype=torch.float64)
    expected = (drawn.luma * drawn.contrast)[:, None, None, None] * (x + drawn.brightness[:, None, None, None])
    torch.testing.assert_close(adapted(x, rng(300), p=0.7, settings=settings), expected, rtol=0, atol=1e-12)


def test_noise_is_normal_and_of_each_images_strength() -> None:
    x = torch.zeros(60, 3, 16, 16, dtype=torch.float64)
    y = adapted(x, rng(60), p=0.8, settings=only("noise"))
    sigma = draw(rng(60), p=0.8, settings=only("noise"), size=(16, 16), dtype=torch.float64).sigma
    torch.testing.assert_close(y.flatten(1).std(1), sigma, rtol=0.15, atol=0)
    assert_normal((y / sigma.clamp(min=1e-9)[:, None, None, None])[sigma > 0].flatten(), 1.0)


@pytest.mark.parametrize("change", CHANGES)
def test_gradients_of_both_orders(change: str) -> None:
    x = images(3, 3, 4, 5, dtype=torch.float64).requires_grad_()

    def squared(x: torch.Tensor) -> torch.Tensor:  # so that there is something to differentiate twice
        return adapted(x, rng(3), p=1.0, settings=only(change)).square()

    assert torch.autograd.gradcheck(squared, x, fast_mode=True)
    assert torch.autograd.gradgradcheck(squared, x, fast_mode=True)


def test_gradients_of_all_changes_together() -> None:
    x = images(1, 3, 3, 4, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: adapted(x, rng(1, first=2), p=1.0, settings=ALL), x)


def test_changes_are_those_of_the_sample_and_its_stream() -> None:
    x = images(6, 3, 8, 12, dtype=torch.float64)
    whole = adapted(x, rng(6), p=0.7, settings=ALL)
    parts = [adapted(x[i : i + 1], rng(1, first=i), p=0.7, settings=ALL) for i in range(6)]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-12)
    assert torch.equal(adapted(x, rng(6), p=0.7, settings=ALL), whole)
    assert not torch.allclose(adapted(x, rng(6, stream="other"), p=0.7, settings=ALL), whole)


def test_what_a_gpu_does_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """There all images are changed, and those that are not meant keep what they had, and a gradient of 1."""
    x = images(12, 3, 8, 12, dtype=torch.float64).requires_grad_()
    found = []
    for way in (warp._some_changed, warp._all_changed):
        monkeypatch.setattr(warp, "_some_changed", way)
        y = adapted(x, rng(12), p=0.1, settings=ALL)
        found.append((y, *torch.autograd.grad(y.square().sum(), x)))
    still = (found[0][0] == x).flatten(1).all(1)
    assert 1 <= still.sum() < 12
    assert torch.equal(found[1][0][still], x[still])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-12)


def test_a_change_does_not_depend_on_which_others_there_are() -> None:
    alone, among = many("saturation").saturation, draw(rng(COUNT), p=1.0, settings=ALL, size=(16, 32), dtype=torch.float64).saturation
    assert torch.equal(alone, among)


def test_label_maps_are_moved_and_cut_as_their_images() -> None:
    """A map that is smooth, so that both ways of looking up find the same; its values are not touched otherwise."""
    side = 32
    wave = torch.cos(torch.linspace(0, math.pi, side, dtype=torch.float64))
    x = (wave[:, None] + 0.5 * wave[None, :]).expand(20, 1, side, side)
    maps = adapted(x, rng(20), p=0.8, settings=ALL, maps=True)
    settings = replace(ALL, **dict.fromkeys(("brightness", "contrast", "luma_flip", "image_filter", "noise"), 0.0))
    torch.testing.assert_close(maps, adapted(x, rng(20), p=0.8, settings=settings), rtol=0, atol=0.02)
    labels = torch.nn.functional.one_hot(torch.arange(side) % 5, 5).T.double()[None, :, None, :].expand(20, -1, side, -1)
    moved = adapted(labels, rng(20), p=0.8, settings=ALL, maps=True)
    assert moved.min() >= 0
    assert ((moved.sum(1) - 1).abs() < 1e-9).logical_or(moved.sum(1) == 0).all()


def test_half_precision_becomes_float32_and_autocast_changes_nothing() -> None:
    x = images(4, 3, 8, 8).bfloat16()
    plain = adapted(x.float(), rng(4), p=0.7, settings=ALL)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = adapted(x, rng(4), p=0.7, settings=ALL)
    assert found.dtype == torch.float32
    assert torch.equal(found, plain)


def test_images_with_other_channels_have_no_colours() -> None:
    with pytest.raises(ConfigError, match="images of 4 channels have no colours; set ada.brightness"):
        adapted(images(2, 4, 8, 8), rng(2), p=0.0, settings=ADAConfig())
    settings = only("x_flip", "noise", "cutout", "image_filter")
    assert adapted(images(2, 4, 8, 8), rng(2), p=1.0, settings=settings).shape == (2, 4, 8, 8)
    assert adapted(images(2, 7, 8, 8), rng(2), p=1.0, settings=ADAConfig(), maps=True).shape == (2, 7, 8, 8)


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("p", {"p": 1.2}),
        ("p", {"p": -0.1}),
        ("p", {"p": Ramp(start=0.0, end=1.5, images=10)}),
        ("target", {"target": 1.0}),
        ("every", {"every": 0}),
        ("images", {"images": 0}),
        ("cutout", {"cutout": -1.0}),
        ("x_flip", {"x_flip": float("nan")}),
    ],
)
def test_settings_that_are_refused(setting: str, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        ADAConfig(**values)
    assert refused.value.setting == setting


def test_when_it_is_used() -> None:
    assert not ADAConfig().used
    assert ADAConfig(p=0.2).used
    assert ADAConfig(target=0.6).used
    assert replace(R3GAN_CHANGES, p=Ramp(start=0.0, end=0.3, images=10)).used
    assert not replace(only(), p=0.5).used
