"""What all networks of the family have in common, and what is particular to each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gans.published import (
    COCO_TINY,
    FUNIT_D_TINY,
    FUNIT_TINY,
    HD_PATCH,
    MUNIT_TINY,
    PIX2PIXHD_PATCH,
    PIX2PIXHD_TINY,
    SPADE_PATCH_TINY,
    SPADE_TINY,
    UNIT_PATCH,
    UNIT_TINY,
)
from triptych.core.errors import ConfigError
from triptych.gans.discriminators import (
    MultiResPatch,
    PairDiscriminator,
    PatchDiscriminatorConfig,
    ResidualDiscriminatorConfig,
    at_scales,
    averaged_to,
    least_side,
    shrunk,
)
from triptych.gans.funit import FUNITDiscriminator, FUNITGenerator
from triptych.gans.instance_features import FeatureEncoderConfig, averaged_by_instance, cluster_centres, instance_features
from triptych.gans.munit import MUNITGenerator
from triptych.gans.pix2pixhd import Pix2PixHDDiscriminator, Pix2PixHDGenerator, Pix2PixHDGeneratorConfig, with_edges
from triptych.gans.spade import SPADEDiscriminator, SPADEDiscriminatorConfig, SPADEGenerator, SPADEGeneratorConfig
from triptych.gans.unit import UNITGenerator
from triptych.gans.weight_norms import Beside, Conv2d
from triptych.nn.instance_edges import instance_edges

SPADE_SMALL = replace(SPADE_TINY, encoder_size=64)
float64 = pytest.mark.usefixtures("float64")
"""For what two formulas or two batches have to give alike."""


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape).clamp(-1, 1)


def classes(count: int, *size: int) -> Tensor:
    return F.one_hot(torch.randint(count, (2, *size)), count).permute(0, 3, 1, 2).to(torch.get_default_dtype())


def cases() -> dict[str, tuple[Callable[[], nn.Module], Callable[[], dict[str, Any]]]]:
    """A small network of each kind, and what it may be called with."""

    def domains(side: int) -> Callable[[], dict[str, Any]]:
        return lambda: {"images_a": noise(2, 3, side, side), "images_b": noise(2, 3, side, side)}

    def styled(side: int) -> Callable[[], dict[str, Any]]:
        return lambda: {"images_content": noise(2, 3, side, side), "images_style": noise(2, 3, side, side)}

    spade = {"label_channels": 5}
    hd2 = replace(PIX2PIXHD_TINY, num_enhancers=2)
    small = replace(FUNIT_TINY, num_downsamples_content=2)
    residual = ResidualDiscriminatorConfig(num_filters=4, max_num_filters=16, num_layers=3)
    return {
        "spade": (lambda: SPADEGenerator(SPADE_SMALL, **spade), lambda: spade_inputs(32, 48)),
        "spade 512, no style, positions": (
            lambda: SPADEGenerator(replace(SPADE_SMALL, resolution=512, style_dims=None, positional_input=True), **spade),
            lambda: {"label": classes(5, 64, 32)},
        ),
        "spade 1024, joint projection": (
            lambda: SPADEGenerator(replace(SPADE_SMALL, resolution=1024, separate_projection=False), **spade),
            # Two pixels where the generator begins: batch norm makes two values, one of each image, -1 and 1, whose gradient is rounding.
            lambda: spade_inputs(64, 128),
        ),
        "pix2pixHD": (lambda: Pix2PixHDGenerator(PIX2PIXHD_TINY, label_channels=5), lambda: {"label": classes(5, 32, 48)}),
        "pix2pixHD, two enhancers": (lambda: Pix2PixHDGenerator(hd2, label_channels=5), lambda: {"label": classes(5, 128, 192)}),
        "unit": (lambda: UNITGenerator(UNIT_TINY), domains(16)),
        "unit, not pre-activation": (lambda: UNITGenerator(replace(UNIT_TINY, pre_activation=False, output="tanh")), domains(16)),
        "munit": (lambda: MUNITGenerator(MUNIT_TINY), domains(32)),
        "funit": (lambda: FUNITGenerator(small), styled(64)),
        "coco-funit": (lambda: FUNITGenerator(replace(COCO_TINY, num_downsamples_content=2)), styled(64)),
        "spade D": (
            lambda: SPADEDiscriminator(SPADEDiscriminatorConfig(patch=SPADE_PATCH_TINY), label_channels=5),
            lambda: {"images": noise(2, 3, 128, 160), "label": classes(5, 128, 160)},
        ),
        "pix2pixHD D": (
            lambda: Pix2PixHDDiscriminator(replace(PIX2PIXHD_PATCH, num_filters=4), label_channels=5),
            lambda: {"images": noise(2, 3, 33, 48), "label": classes(5, 33, 48)},
        ),
        "unit D": (
            lambda: PairDiscriminator(replace(UNIT_PATCH, num_filters=4)).discriminator_a,
            lambda: {"x": noise(2, 3, 64, 64)},
        ),
        "hd D": (lambda: MultiResPatch(replace(HD_PATCH, num_filters=4)), lambda: {"x": noise(2, 3, 64, 64)}),
        "residual D": (lambda: PairDiscriminator(residual).discriminator_b, lambda: {"images": noise(2, 3, 32, 32)}),
        "funit D": (
            lambda: FUNITDiscriminator(replace(FUNIT_D_TINY, num_layers=3), num_classes=4),
            lambda: {"images": noise(2, 3, 32, 32), "labels": torch.tensor([1, 3])},
        ),
    }


def spade_inputs(*size: int) -> dict[str, Tensor]:
    return {"label": classes(5, *size), "images": noise(2, 3, *size), "noise": torch.randn(2, 8)}


CASES = cases()


def tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif output is not None:
        for part in output:
            yield from tensors(part)


@float64
@pytest.mark.parametrize("name", CASES)
def test_no_sample_changes_what_comes_of_another(name: str) -> None:
    build, inputs = CASES[name]
    network, given = build().eval(), inputs()
    with torch.no_grad():
        together = list(tensors(network(**given)))
        for index in range(2):
            alone = tensors(network(**{key: value[index : index + 1] for key, value in given.items()}))
            for one, both in zip(alone, together, strict=True):
                torch.testing.assert_close(one[0], both[index], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_gradients_reach_every_parameter_and_a_forward_changes_running_statistics_alone(name: str) -> None:
    build, inputs = CASES[name]
    network = build().train()
    before = copy.deepcopy(network.state_dict())
    sum((part.float() ** 2).sum() + part.sum() for part in tensors(network(**inputs()))).backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key
        assert parameter.ndim == 1 or parameter.grad.any(), key
    changed = {key for key, tensor in network.state_dict().items() if not torch.equal(tensor, before[key])}
    assert changed == {key for key in before if "running_" in key or key.endswith("num_batches_tracked")}


@float64
@pytest.mark.parametrize("name", CASES)
def test_channels_last_gives_the_same(name: str) -> None:
    build, inputs = CASES[name]
    network, given = build().eval(), inputs()
    with torch.no_grad():
        expected = list(tensors(network(**given)))
        for one, other in zip(tensors(network.to(memory_format=torch.channels_last)(**channels_last(given))), expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


def channels_last(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value for key, value in given.items()}


@pytest.mark.parametrize("name", CASES)
def test_bfloat16_gives_nearly_the_same(name: str) -> None:
    build, inputs = CASES[name]
    network, given = build().eval(), inputs()
    with torch.no_grad():
        expected = list(tensors(network(**given)))
        with torch.autocast("cpu", torch.bfloat16):
            rounded = list(tensors(network.to(memory_format=torch.channels_last)(**channels_last(given))))
    for one, other in zip(rounded, expected, strict=True):
        assert float((one.float() - other).std()) < 0.5 * float(other.std()) + 0.02  # norms of maps of few pixels magnify rounding


@torch.no_grad()
def test_the_head_of_spade_is_a_sixteenth_of_its_256_pixels() -> None:
    for resolution, stride in ((256, 16), (512, 32), (1024, 64)):
        config = replace(SPADE_SMALL, resolution=resolution, style_dims=None)
        network = SPADEGenerator(config, label_channels=5).eval()
        out = network(label=classes(5, 2 * stride, 3 * stride + 5)).fake_images
        assert config.stride == stride and out.shape == (2, 3, 2 * stride, 3 * stride)
        with pytest.raises(ValueError, match=f"sides of at least {stride}"):
            network(label=classes(5, stride - 1, stride))


def cubic(t: Tensor) -> Tensor:
    """Keys' kernel with a = -0.75, the one of PyTorch."""
    t = t.abs()
    near = 1.25 * t**3 - 2.25 * t**2 + 1
    far = -0.75 * (t**3 - 5 * t**2 + 8 * t - 4)
    return torch.where(t <= 1, near, torch.where(t < 2, far, 0))


@torch.no_grad()
@pytest.mark.parametrize(("height", "width"), [(16, 16), (5, 24)])
def test_the_head_of_spade_sees_where_each_pixel_is(height: int, width: int) -> None:
    """Across, then down: from -1 to 1 over sixteen pixels, enlarged or reduced by cubic interpolation."""
    config = replace(SPADE_SMALL, resolution=256, style_dims=None, positional_input=True)
    label = classes(5, 16 * height, 16 * width)
    seen = SPADEGenerator(config, label_channels=5).spade_generator._head_input(label)

    def line(count: int) -> Tensor:
        places = (torch.arange(count) + 0.5) * 16 / count - 0.5
        near = places.floor()[:, None] + torch.arange(-1, 3)
        return (cubic(places[:, None] - near) * (2 * near.clamp(0, 15) / 15 - 1)).sum(1)

    assert seen.shape == (2, 7, height, width)
    torch.testing.assert_close(seen[:, 5], line(width).expand(2, height, width), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen[:, 6], line(height)[:, None].expand(2, height, width), atol=1e-5, rtol=0)


@torch.no_grad()
def test_discriminators_see_the_label_map_before_the_image() -> None:
    patch = replace(SPADE_PATCH_TINY, num_filters=4, weight_norm="none")
    spade = SPADEDiscriminatorConfig(patch=patch, feature_pyramid=False)
    for network in (Pix2PixHDDiscriminator(patch, label_channels=5), SPADEDiscriminator(spade, label_channels=5)):
        first = [p for name, p in network.named_parameters() if name.endswith("layer0.0.layers.conv.weight")]
        assert [p.shape[1] for p in first] == [8, 8]
        for weight in first:
            weight[:, :5] = 0
        images, others = noise(2, 3, 128, 128), noise(2, 3, 128, 128)
        scores = [network(given, label=classes(5, 128, 128)).outputs[0] for given in (images, images, others)]
        assert torch.equal(scores[0], scores[1]) and not torch.equal(scores[0], scores[2])


@float64
@torch.no_grad()
def test_the_images_of_spade_at_several_sizes_are_added_before_the_tanh() -> None:
    config = replace(SPADE_SMALL, resolution=512, style_dims=None, output_multiplier=0.5)
    network, seen = SPADEGenerator(config, label_channels=5).eval(), {}
    for name in ("conv_img256", "conv_img512"):
        part = network.spade_generator.get_submodule(name)
        part.register_forward_hook(lambda _, __, out, name=name: seen.update({name: out}))
    out = network(label=classes(5, 64, 64)).fake_images
    coarse = seen["conv_img256"].repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(out, torch.tanh(0.5 * (coarse + seen["conv_img512"])))


@float64
@torch.no_grad()
def test_the_style_of_spade_is_the_encoded_one_or_the_given_one() -> None:
    network, given = SPADEGenerator(SPADE_SMALL, label_channels=5).eval(), spade_inputs(32, 32)
    out = network(**given)
    z = out.mu + torch.exp(out.logvar / 2) * given["noise"]
    torch.testing.assert_close(network(label=given["label"], z=z).fake_images, out.fake_images)
    assert float((network(label=given["label"], z=z + 1).fake_images - out.fake_images).abs().max()) > 1e-4
    with pytest.raises(ValueError, match="needs noise"):
        network(label=given["label"], images=given["images"])
    with pytest.raises(ValueError, match="style code is needed"):
        network(label=given["label"])


def test_edges_of_instances() -> None:
    instances = torch.tensor([[1, 1, 2, 2], [1, 1, 2, 2], [1, 1, 1, 1], [3, 1, 1, 1]])[None, None]
    expected = torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 0]])[None, None].float()
    assert torch.equal(instance_edges(instances), expected)
    label = classes(5, 4, 4)[:1]
    assert torch.equal(with_edges(label, instances), torch.cat((label, expected), dim=1))
    assert not instance_edges(torch.full((2, 1, 3, 3), 26001.0)).any()  # the image's own border is none


@float64
def test_features_are_averaged_over_each_instance_of_each_image() -> None:
    features, instances = torch.randn(2, 3, 4, 5), torch.randint(0, 3, (2, 1, 4, 5)) * 1000 - 1
    out = averaged_by_instance(features, instances)
    for b in range(2):
        for name in instances[b].unique():
            where = instances[b, 0] == name
            expected = features[b, :, where].mean(1, keepdim=True).expand(3, int(where.sum()))
            torch.testing.assert_close(out[b, :, where], expected)


def test_the_feature_encoder_makes_features_for_its_generator() -> None:
    config = replace(PIX2PIXHD_TINY, encoder=FeatureEncoderConfig(num_filters=4, num_downsamples=2))
    network = Pix2PixHDGenerator(config, label_channels=5)
    images, instances = noise(2, 3, 32, 32), torch.randint(0, 4, (2, 1, 32, 32))
    features = network.encoder(images, instances=instances)
    assert len(features[0].flatten(1).unique(dim=1)[0]) == 4
    label = F.one_hot(instances[:, 0], 4).permute(0, 3, 1, 2).to(torch.get_default_dtype())
    network(label=with_edges(label, instances), features=features).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    with pytest.raises(ValueError, match="features are needed"):
        network(label=classes(5, 32, 32))


@pytest.mark.parametrize(("pixels", "kept"), [(16, 1), (17, 2)])
def test_looks_of_more_than_a_sixteenth_of_an_image_count(pixels: int, kept: int) -> None:
    instances = torch.zeros(256, dtype=torch.long)
    instances[:pixels] = 5
    label = torch.ones(1, 1, 16, 16)
    assert len(instance_features(noise(1, 3, 16, 16), instances=instances.view(1, 1, 16, 16), label=label).classes) == kept


@pytest.mark.parametrize(("setting", "part"), [("content_norm", "content_encoder"), ("decoder_norm", "decoder")])
def test_encoders_and_decoders_have_norms_of_their_own(setting: str, part: str) -> None:
    network = UNITGenerator(replace(UNIT_TINY, **{setting: "none"}))
    normed = {name.split(".")[1] for name in network.state_dict() if ".norm." in name}
    assert normed == {"content_encoder", "decoder"} - {part}


def test_an_instance_has_the_class_of_most_of_its_pixels_that_have_one() -> None:
    instances = torch.tensor([4, 5, 6, 7]).repeat_interleave(4).expand(1, 1, 16, 16)
    label = torch.zeros(1, 3, 16, 16)
    label[0, 2, :5, :4], label[0, 1, 5:, :4] = 1, 1  # of 4: class 1, and fewer pixels of class 2
    label[0, 2, :2, 4:8] = 1  # of 5: class 2, most are of none; 6: none at all
    label[0, 0, :, 12:] = 1
    assert instance_features(noise(1, 3, 16, 16), instances=instances, label=label).classes.tolist() == [1, 2, 0]


@float64
@torch.no_grad()
def test_looks_are_kept_and_chosen_by_class() -> None:
    config = replace(PIX2PIXHD_TINY, encoder=FeatureEncoderConfig(num_filters=4, num_downsamples=2, num_clusters=2))
    encoder = Pix2PixHDGenerator(config, label_channels=4).encoder
    instances = torch.tensor([10, 10, 11, 12]).repeat_interleave(4).expand(2, 1, 16, 16).clone()
    instances[:, :, 0, 0] = 99  # too small to count
    label = F.one_hot((instances[:, 0] == 12).long(), 3).permute(0, 3, 1, 2).to(torch.get_default_dtype())
    features = averaged_by_instance(noise(2, 3, 16, 16), instances)
    looks = instance_features(features, instances=instances, label=label)
    assert sorted(looks.classes.tolist()) == [0, 0, 0, 0, 1, 1]
    encoder.keep(looks)
    assert not encoder.cluster_2.any() and encoder.cluster_1.shape == (2, 3)
    of_one = looks.features[looks.classes == 1]
    torch.testing.assert_close(encoder.cluster_1.sort(0).values, of_one.sort(0).values)
    kept = encoder.kept(label, choices=torch.tensor([[0, 1, 0], [1, 0, 0]]))
    torch.testing.assert_close(kept[0, :, 3, 15], encoder.cluster_1[1])
    torch.testing.assert_close(kept[1, :, 3, 2], encoder.cluster_0[1])


@float64
def test_centres_of_clusters() -> None:
    means = torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 9.0]])
    vectors = means.repeat_interleave(20, 0) + 0.1 * torch.randn(60, 2)
    order = torch.randperm(60)
    centres = cluster_centres(vectors[order], count=3)
    expected = vectors.view(3, 20, 2).mean(1)
    torch.testing.assert_close(centres[torch.cdist(expected, centres).argmin(1)], expected)
    assert cluster_centres(vectors[:1], count=3).tolist() == [vectors[0].tolist()] * 3


@float64
@torch.no_grad()
def test_a_local_enhancer_adds_to_the_coarse_features_of_the_averaged_input() -> None:
    network, x = Pix2PixHDGenerator(replace(PIX2PIXHD_TINY, num_enhancers=1), label_channels=5).eval(), classes(5, 64, 64)
    ones = F.avg_pool2d(torch.ones(1, 1, 64, 64), 3, 2, 1)
    coarse = F.avg_pool2d(x, 3, 2, 1) / ones  # pixels beyond the border do not count
    down, up = network.enhancer_0.model_downsample, network.enhancer_0.model_upsample
    torch.testing.assert_close(network(label=x), up(down(x) + network.global_model(coarse)), atol=1e-4, rtol=1e-4)


@float64
@torch.no_grad()
def test_styles_of_several_images_are_averaged() -> None:
    network = FUNITGenerator(replace(FUNIT_TINY, num_downsamples_content=2)).eval()
    content, styles = noise(2, 3, 64, 64), noise(2, 3, 3, 64, 64)
    mean = torch.stack([network.generator.style_encoder(styles[:, k]) for k in range(3)]).mean(0)
    torch.testing.assert_close(network.style(styles), mean)
    out = network(images_content=content, images_style=styles, reconstruct=False)
    torch.testing.assert_close(out.images_trans, network.generator.decode(network.generator.content_encoder(content), mean))
    assert out.images_recon is None


@float64
@torch.no_grad()
def test_the_style_of_coco_funit_is_weighed_by_the_content() -> None:
    network = FUNITGenerator(replace(COCO_TINY, num_downsamples_content=2)).eval().generator
    content, style = torch.randn(2, 16, 8, 8), torch.randn(2, 8, 1, 1)
    by_style = network.mlp_style(torch.cat((style.flatten(1), network.usb.expand(2, -1)), dim=1))
    weighed = by_style * network.mlp_content(content.mean((2, 3)))
    torch.testing.assert_close(network.decode(content, style), network.decoder(content, network.mlp(weighed)))


@float64
@torch.no_grad()
def test_the_score_of_a_class_adds_the_likeness_of_mean_features() -> None:
    network = FUNITDiscriminator(replace(FUNIT_D_TINY, num_layers=3), num_classes=4).eval().model
    images, labels = noise(2, 3, 32, 32), torch.tensor([0, 2])
    features = network.model(images)
    likeness = (network.embedder.weight[labels] * features.mean((2, 3))).sum(1)
    scores = network(images, labels)
    torch.testing.assert_close(scores.outputs[0], network.classifier(features) + likeness[:, None, None, None])
    torch.testing.assert_close(scores.features[0][0], features.mean((2, 3)))
    conv = network.classifier.layers["conv"]
    torch.testing.assert_close(network.classifier(features), conv(torch.where(features > 0, features, 0.2 * features)))


def test_features_of_patch_discriminators_are_all_layers_but_the_last() -> None:
    scores = MultiResPatch(replace(HD_PATCH, num_filters=4))(noise(2, 3, 64, 64))
    assert [len(layers) for layers in scores.features] == [6, 6, 6]
    assert [tuple(layer.shape[1:]) for layer in scores.features[1]][:2] == [(4, 16, 16), (8, 8, 8)]


OTHER_PATCHES = [
    replace(SPADE_PATCH_TINY, num_layers=2),
    *(replace(SPADE_PATCH_TINY, num_layers=1, num_discriminators=count) for count in (1, 4)),
]


@pytest.mark.parametrize(("before", "size"), [((10, 12), (5, 6)), ((5, 6), (3, 3)), ((6, 6), (3, 3))])
def test_the_pyramids_map_is_the_mean_of_the_whole_one(before: tuple[int, int], size: tuple[int, int]) -> None:
    """By way of a finer one where that is the same, and not where squares overlap."""
    label = noise(2, 3, 40, 24)
    finer = F.adaptive_avg_pool2d(label, before)
    torch.testing.assert_close(averaged_to(size, finer=finer, label=label), F.adaptive_avg_pool2d(label, size))


@torch.no_grad()
@pytest.mark.parametrize("config", [HD_PATCH, PIX2PIXHD_PATCH, UNIT_PATCH, SPADE_PATCH_TINY, *OTHER_PATCHES])
def test_the_smallest_image_of_patch_discriminators(config: PatchDiscriminatorConfig) -> None:
    network, least = MultiResPatch(replace(config, num_filters=2, max_num_filters=4)), least_side(config)
    assert all(output.numel() for output in network(noise(1, 3, least, least)).outputs)
    if least > 1:
        with pytest.raises((RuntimeError, ValueError), match="greater than|spatial element|1 value per channel"):
            network(noise(1, 3, least - 1, least - 1))


def test_the_residual_discriminator_names_the_size_that_it_takes() -> None:
    network = PairDiscriminator(ResidualDiscriminatorConfig(num_filters=4, max_num_filters=8))
    with pytest.raises(ValueError, match="got images of 128x64 pixels, but the residual discriminator takes 256x256"):
        network(noise(1, 3, 64, 128), domain="a")


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda: SPADEGeneratorConfig(kernel_size=4), "kernel_size"),
        (lambda: SPADEGeneratorConfig(style_dims=0), "style_dims"),
        (lambda: SPADEGeneratorConfig(encoder_size=100), "encoder_size"),
        (lambda: SPADEGeneratorConfig(resolution=1024, num_filters=5), "num_filters"),
        (lambda: Pix2PixHDGeneratorConfig(num_filters=6, num_enhancers=2), "num_filters"),
        (lambda: FeatureEncoderConfig(num_clusters=0), "num_clusters"),
        (lambda: replace(MUNIT_TINY, mlp_layers=0), "mlp_layers"),
        (lambda: replace(MUNIT_TINY, num_downsamples_style=-1), "num_downsamples_style"),
        (lambda: replace(UNIT_TINY, num_downsamples=-1), "num_downsamples"),
        (lambda: replace(COCO_TINY, style_bias_dims=0), "style_bias_dims"),
        (lambda: replace(FUNIT_TINY, style_dims=0), "style_dims"),
        (lambda: replace(HD_PATCH, num_layers=0), "num_layers"),
    ],
)
def test_settings_out_of_range_are_named(make: Callable[[], Any], setting: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make()
    assert raised.value.setting == setting


@float64
def test_a_map_beside_images_is_convolved_by_itself() -> None:
    """As if both were joined first; the map, which has many channels, then needs no gradient, and is made smaller once."""
    images, label = noise(2, 3, 12, 10).requires_grad_(), classes(5, 12, 10)
    seen = list(at_scales(images, label, count=3))
    assert [type(each) for each in seen] == [Beside] * 3 and seen[0].map is label
    expected = [torch.cat((label, images), dim=1)]
    expected += [shrunk(expected[0]), shrunk(shrunk(expected[0]))]
    layer = Conv2d(8, 4, 4, stride=2, padding=1, weight_norm="spectral")
    variables = [images, *layer.parameters()]
    for ours, theirs in zip(seen, expected, strict=True):
        torch.testing.assert_close(torch.cat(ours, dim=1), theirs)
        pair = layer(ours), layer(theirs)
        torch.testing.assert_close(*pair)
        found = [torch.autograd.grad(y.square().sum(), variables, retain_graph=True) for y in pair]
        torch.testing.assert_close(*found)
        assert not ours.map.requires_grad
    again = list(at_scales(images, label, count=3))
    assert all(new.map is old.map for new, old in zip(again, seen, strict=True))
    _, half = at_scales(images.bfloat16(), label.float(), count=2)
    smaller = shrunk(images.bfloat16().float())
    torch.testing.assert_close(half.images, smaller, rtol=1e-6, atol=1e-6, msg="images are not made smaller in less than the map has")
