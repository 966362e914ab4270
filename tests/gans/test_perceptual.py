"""The perceptual loss: its networks against others of the published layout, its sum by hand, and real weights where there are some."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageFilter
from torch import Tensor, nn

from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.weight_files import read_weights
from triptych.gans.perceptual import PerceptualConfig, PerceptualLoss
from triptych.nn.feature_networks import NETWORKS, FeatureNetwork, layer_names, required_tensors

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
SMALL = {"network": "squeezenet1_0", "layers": ("relu_1", "fire_3"), "layer_weights": (0.25, 1.0)}


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def weights(network: str, layers: tuple[str, ...]) -> dict[str, Tensor]:
    """Random ones under which activations keep their size; running variances are positive."""
    generator, drawn = torch.Generator().manual_seed(1), {}
    for name, shape in required_tensors(network, layers).items():
        values = torch.randn(shape, generator=generator)
        if len(shape) == 4:
            values *= math.sqrt(2 / math.prod(shape[1:]))
        drawn[name] = values.exp() if name.endswith("var") else values if len(shape) == 4 else 1 + 0.1 * values
    return drawn


def loaded(**settings) -> PerceptualLoss:
    config = PerceptualConfig(**settings)
    loss = PerceptualLoss(config)
    loss.load(weights(config.network, config.compared))
    return loss


class Fire(nn.Module):
    def __init__(self, before: int, squeezed: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(before, squeezed, 1)
        self.expand1x1, self.expand3x3 = nn.Conv2d(squeezed, 4 * squeezed, 1), nn.Conv2d(squeezed, 4 * squeezed, 3, padding=1)

    def forward(self, x):
        x = self.squeeze(x).relu()
        return torch.cat((self.expand1x1(x).relu(), self.expand3x3(x).relu()), 1)


def vgg(plan: str) -> list[nn.Module]:
    layers, before = [], 3
    for item in plan.split():
        if item == "M":
            layers.append(nn.MaxPool2d(2, 2))
        else:
            layers += [nn.Conv2d(before, int(item), 3, padding=1), nn.ReLU()]
            before = int(item)
    return layers


def squeezenet() -> list[nn.Module]:
    pool = nn.MaxPool2d(3, 2, ceil_mode=True)
    fires = [Fire(a, b) for a, b in ((96, 16), (128, 16), (128, 32), (256, 32), (256, 48), (384, 48), (384, 64), (512, 64))]
    return [nn.Conv2d(3, 96, 7, 2), nn.ReLU(), pool, *fires[:3], pool, *fires[3:7], pool, fires[7]]


def alexnet() -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(64, 192, 5, 1, 2), nn.ReLU()]
    layers += [nn.MaxPool2d(3, 2), nn.Conv2d(192, 384, 3, 1, 1), nn.ReLU(), nn.Conv2d(384, 256, 3, 1, 1), nn.ReLU()]
    return [*layers, nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU()]


CHAINS = {
    "vgg19": (vgg("64 64 M 128 128 M 256 256 256 256 M 512 512 512 512 M 512 512 512 512"), (1, 6, 11, 20, 29)),
    "vgg16": (vgg("64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512"), (1, 6, 11, 18, 25)),
    "alexnet": (alexnet(), (1, 4, 7, 9, 11)),
    "squeezenet1_0": (squeezenet(), (1, 4, 7, 9, 12)),
}


@pytest.mark.parametrize("network", CHAINS)
def test_loss_of_a_chain_with_torchvisions_indices(network) -> None:
    layers, indices = CHAINS[network]
    names = NETWORKS[network].layers
    given = weights(network, names)
    chain = nn.Sequential(*layers)
    result = chain.load_state_dict({name.removeprefix("features."): tensor for name, tensor in given.items()}, strict=False)
    assert not result.unexpected_keys
    x, y = images(2, 3, 74, 64), images(2, 3, 74, 64, seed=1)
    expected = torch.zeros(2)
    a, b = (((image + 1) / 2 - MEAN) / STD for image in (x, y))
    with torch.no_grad():
        for index, layer in enumerate(chain):
            a, b = layer(a), layer(b)
            if index in indices:
                expected += (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1)[indices.index(index)] * (a - b).abs().mean((1, 2, 3))
    loss = PerceptualLoss(PerceptualConfig(network=network))
    loss.load(given | {"classifier.0.weight": torch.ones(1)})
    torch.testing.assert_close(loss(x, y), expected, rtol=1e-4, atol=1e-6)


def test_resnet50_by_hand() -> None:
    names = NETWORKS["resnet50"].layers
    w = weights("resnet50", names)

    def unit(x, conv, norm, **settings):
        return nn.functional.batch_norm(
            F.conv2d(x, w[f"{conv}.weight"], **settings),
            *(w[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")),
        )

    x = images(1, 3, 64, 64)
    network = FeatureNetwork("resnet50", layers=names)
    network.load(w)
    h = unit((((x + 1) / 2) - MEAN) / STD, "conv1", "bn1", stride=2, padding=3).relu()
    expected = [h]
    h = F.max_pool2d(h, 3, 2, 1)
    for stage, blocks in ((1, 3), (2, 4), (3, 6), (4, 3)):
        for block in range(blocks):
            at, stride = f"layer{stage}.{block}", 2 if block == 0 and stage > 1 else 1
            shortcut = unit(h, f"{at}.downsample.0", f"{at}.downsample.1", stride=stride) if block == 0 else h
            h = unit(h, f"{at}.conv1", f"{at}.bn1").relu()
            h = unit(h, f"{at}.conv2", f"{at}.bn2", stride=stride, padding=1).relu()
            h = (unit(h, f"{at}.conv3", f"{at}.bn3") + shortcut).relu()
        expected.append(h)
    for found, wanted in zip(network(network.prepared(x)), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.parametrize("size", [33, 34])
def test_mobilenet_by_hand(size) -> None:
    names = ("relu_1", "pw_1", "pw_2", "pw_6", "pw_13")
    w = weights("mobilenet_v1", names)

    def unit(x, conv, norm, **settings):
        running = (w[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(F.conv2d(x, w[f"{conv}.weight"], **settings), *running, eps=1e-3).clamp(0, 6)

    def same(x, stride):
        """TensorFlow's border: as much as the output of ceil(size / stride) pixels needs, the odd one at the end."""
        total = max((math.ceil(x.shape[-1] / stride) - 1) * stride + 3 - x.shape[-1], 0)
        return F.pad(x, (total // 2, total - total // 2) * 2)

    x = images(1, 3, size, size)
    network = FeatureNetwork("mobilenet_v1", layers=names)
    network.load(w)
    h = unit(same(x, 2), "conv1", "bn1", stride=2)
    expected = [h]
    for index in range(13):
        stride = 2 if index in (1, 3, 5, 11) else 1
        h = unit(same(h, stride), f"dw.{index}", f"dbn.{index}", stride=stride, groups=h.shape[1])
        h = unit(h, f"pw.{index}", f"pbn.{index}")
        if index + 1 in (1, 2, 6, 13):
            expected.append(h)
    found = network(network.prepared(x))
    assert [feature.shape[1] for feature in found] == [32, 64, 128, 512, 1024]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("network", "count"),
    [
        ("vgg19", 20_024_384),
        ("vgg16", 14_714_688),
        ("alexnet", 2_469_696),
        ("resnet50", 23_508_032),
        ("inception_v3", 21_785_568),
        ("squeezenet1_0", 735_424),
        ("mobilenet_v1", 3_206_976),
    ],
)
def test_published_numbers_of_parameters_without_the_classifier(network, count) -> None:
    shapes = required_tensors(network, layer_names(network))
    assert sum(math.prod(shape) for name, shape in shapes.items() if "running" not in name) == count


def test_inception_v3() -> None:
    network = NETWORKS["inception_v3"]
    shapes = required_tensors("inception_v3", network.layers)
    assert len(shapes) == 94 * 5  # convolutions, each with a weight and four tensors of its norm
    assert shapes["Conv2d_4a_3x3.conv.weight"] == (192, 80, 3, 3)
    assert shapes["Mixed_5b.branch5x5_2.conv.weight"] == (64, 48, 5, 5)
    assert shapes["Mixed_6a.branch3x3dbl_3.bn.running_var"] == (96,)
    assert shapes["Mixed_6c.branch7x7_2.conv.weight"] == (160, 160, 1, 7)
    assert shapes["Mixed_6c.branch7x7_3.conv.weight"] == (192, 160, 7, 1)
    assert shapes["Mixed_6c.branch7x7dbl_2.conv.weight"] == (160, 160, 7, 1)
    assert shapes["Mixed_6c.branch7x7dbl_5.conv.weight"] == (192, 160, 1, 7)
    assert shapes["Mixed_6c.branch7x7dbl_4.conv.weight"] == (160, 160, 7, 1)
    assert shapes["Mixed_7b.branch3x3_2a.conv.weight"] == (384, 384, 1, 3)
    assert shapes["Mixed_7b.branch3x3_2b.conv.weight"] == (384, 384, 3, 1)
    assert shapes["Mixed_7c.branch3x3dbl_3a.conv.weight"] == (384, 384, 1, 3)
    assert shapes["Mixed_7c.branch3x3dbl_3b.conv.weight"] == (384, 384, 3, 1)
    features = FeatureNetwork("inception_v3", layers=network.layers)
    features.load(weights("inception_v3", network.layers))
    with torch.no_grad():
        found = features(features.prepared(images(1, 3, 299, 299)))
    assert [tuple(f.shape[1:]) for f in found] == [(64, 73, 73), (192, 35, 35), (288, 35, 35), (768, 17, 17), (2048, 8, 8)]


def test_what_weights_expect_of_images() -> None:
    red = torch.tensor([1.0, -1.0, 0.0]).view(1, 3, 1, 1)
    for preprocessing, expected in (
        ("imagenet", [(1 - 0.485) / 0.229, -0.456 / 0.224, (0.5 - 0.406) / 0.225]),
        ("caffe", [127.5 - 104, 0 - 117, 255 - 123]),
        ("symmetric", [1.0, -1.0, 0.0]),
    ):
        network = FeatureNetwork("vgg16", layers=("relu_1_1",), preprocessing=preprocessing)
        assert network.prepared(red).flatten().tolist() == pytest.approx(expected, rel=1e-5)
    assert FeatureNetwork("vgg16", layers=("relu_1_1",)).preprocessing == "imagenet"
    assert FeatureNetwork("mobilenet_v1", layers=("relu_1",)).preprocessing == "symmetric"
    assert FeatureNetwork("inception_v3", layers=("pool_1",)).preprocessing == "symmetric"
    grey = FeatureNetwork("vgg16", layers=("relu_1_1",), preprocessing="caffe").prepared(torch.ones(1, 1, 1, 1))
    assert grey.flatten().tolist() == [151.0, 138.0, 132.0]


def test_scales_criterion_and_resize_by_hand() -> None:
    x, y = images(2, 3, 40, 48), images(2, 3, 40, 48, seed=1)
    loss = loaded(**SMALL, criterion="l2", num_scales=2, resize=64)
    expected = torch.zeros(2)
    for size in (64, 32):
        a, b = (F.interpolate(image, (64, 64), mode="bilinear", align_corners=False) for image in (x, y))
        if size == 32:
            a, b = F.avg_pool2d(a, 2), F.avg_pool2d(b, 2)  # what bilinear halving is
        features = [loss.network(loss.network.prepared(image)) for image in (a, b)]
        for weight, fine, coarse in zip((0.25, 1.0), *features, strict=True):
            expected += weight * (fine - coarse).square().mean((1, 2, 3))
    torch.testing.assert_close(loss(x, y), expected)


def test_layers_come_in_the_order_that_was_asked_for() -> None:
    network = FeatureNetwork("squeezenet1_0", layers=("fire_3", "relu_1"))
    network.load(weights("squeezenet1_0", ("fire_3",)))
    assert [feature.shape[1] for feature in network(images(1, 3, 32, 32))] == [128, 96]
    assert layer_names("squeezenet1_0") == ("relu_1", *(f"fire_{number}" for number in range(2, 10)))
    assert layer_names("vgg19")[-4:] == ("relu_5_1", "relu_5_2", "relu_5_3", "relu_5_4")


def test_a_sample_has_the_loss_that_it_has_alone() -> None:
    loss = loaded(**SMALL)
    x, y = images(3, 3, 32, 32), images(3, 3, 32, 32, seed=1)
    torch.testing.assert_close(loss(x, y)[1:2], loss(x[1:2], y[1:2]))
    assert loss(x, x).tolist() == [0.0, 0.0, 0.0]


def test_the_network_is_frozen_and_leaves_no_trace() -> None:
    loss = PerceptualLoss(PerceptualConfig(network="mobilenet_v1", layers=("pw_1", "pw_2"), layer_weights=(1.0, 1.0)))
    holder = nn.ModuleDict({"perceptual": loss, "generator": nn.Linear(2, 2)})
    loss.load(weights("mobilenet_v1", ("pw_1", "pw_2")))
    assert set(holder.state_dict()) == {"generator.weight", "generator.bias"}
    assert len(list(holder.parameters())) == 2
    holder.load_state_dict(holder.state_dict())
    x, y = images(2, 3, 32, 32).requires_grad_(), images(2, 3, 32, 32, seed=1).requires_grad_()
    holder.train()
    in_training = loss(x, y)
    in_training.sum().backward()
    assert y.grad is None
    assert x.grad is not None
    assert x.grad.abs().max() > 0
    assert torch.equal(holder.eval()["perceptual"](x, y), in_training)
    assert holder.double()["perceptual"](x.double(), y.double()).dtype == torch.float64
    assert {buffer.dtype for buffer in holder.buffers()} == {torch.float64}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_weights_are_copied_in_float32(dtype) -> None:
    given = {name: tensor.to(dtype) for name, tensor in weights("squeezenet1_0", ("relu_1",)).items()}
    network = FeatureNetwork("squeezenet1_0", layers=("relu_1",))
    network.load(given)
    before = network(images(1, 3, 32, 32))[0]
    assert before.dtype == torch.float32
    for tensor in given.values():
        tensor.zero_()
    assert torch.equal(network(images(1, 3, 32, 32))[0], before)


def test_gradient_reaches_the_image() -> None:
    loss = loaded(network="squeezenet1_0", layers=("relu_1", "fire_2"), layer_weights=(1.0, 1.0), criterion="l2").double()
    x, y = images(1, 3, 12, 12).double().requires_grad_(), images(1, 3, 12, 12, seed=1).double()
    loss(x, y).sum().backward()
    assert x.grad is not None
    for place in ((0, 0, 3, 4), (0, 2, 6, 6)):
        step = torch.zeros_like(x)
        step[place] = 1e-6
        with torch.no_grad():
            slope = (loss(x + step, y) - loss(x - step, y)).item() / 2e-6
        assert x.grad[place].item() == pytest.approx(slope, rel=1e-4)


def test_weights_that_do_not_fit_are_refused() -> None:
    good = weights("squeezenet1_0", ("relu_1", "fire_3"))
    name = "features.4.squeeze.bias"
    wrong: list[tuple[dict, str]] = [
        ({key: value for key, value in good.items() if key != name}, f"there is no {name} (they begin with features.0.weight)"),
        ({}, "there is no features.0.weight (they begin with nothing)"),
        (good | {name: torch.ones(3)}, f"{name} has the shape [3], expected [16]"),
        (good | {name: torch.ones(16, dtype=torch.int64)}, f"{name} has values that are not finite numbers"),
        (good | {name: torch.full((16,), torch.nan)}, f"{name} has values that are not finite numbers"),
    ]
    for given, message in wrong:
        loss = PerceptualLoss(PerceptualConfig(**SMALL))
        with pytest.raises(CheckpointError) as error:
            loss.load(given, source="net.pth")
        assert str(error.value).startswith("cannot use net.pth, as those of squeezenet1_0: ")
        assert message in str(error.value)
        assert "\n" not in str(error.value)


def test_without_weights_the_loss_says_so() -> None:
    with pytest.raises(ConfigError, match=r"^weights: the perceptual loss has no weights; give a file of those of vgg19$"):
        PerceptualLoss(PerceptualConfig())(images(1, 3, 32, 32), images(1, 3, 32, 32))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": ("relu_1_1", "relu_9_1")}, r"layers: got relu_1_1, relu_9_1, expected layers of vgg19; did you mean"),
        ({"layers": ("zzz",)}, r"layers: .* expected layers of vgg19, expected some of relu_1_1, relu_1_2, "),
        ({"layers": ("relu_1_1", "relu_1_1")}, "layers: .* each once"),
        ({"layers": ()}, "layers: .* at least one name"),
        ({"layers": ("relu_1_1",)}, "layer_weights: .* expected 1 numbers, one for each layer"),
        ({"layer_weights": (1.0,)}, "layer_weights: .* expected 5 numbers"),
        ({"layer_weights": (1.0, 1.0, -1.0, 1.0, 1.0)}, "layer_weights: .* 0 or more"),
        ({"num_scales": 0}, "num_scales: got 0"),
        ({"resize": 0}, "resize: got 0"),
    ],
)
def test_settings_that_are_refused(settings, message) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        PerceptualConfig(**settings)


def test_images_that_are_too_small_are_refused_beforehand() -> None:
    PerceptualConfig().check_size(16, 16)
    PerceptualConfig(resize=224).check_size(4, 4)
    PerceptualConfig(num_scales=3).check_size(64, 96)
    message = r"^layers: at the last of 3 scales images have 8x24 pixels, too few for relu_5_1 of vgg19; take earlier layers, "
    with pytest.raises(ConfigError, match=message):
        PerceptualConfig(num_scales=3).check_size(32, 96)
    for network in NETWORKS:
        with pytest.raises(ConfigError, match="too few"):
            PerceptualConfig(network=network, num_scales=6).check_size(16, 16)


def photo(path: Path, size: tuple[int, int], blur: float = 0.0) -> Tensor:
    with Image.open(path) as image:
        pixels = image.convert("RGB").resize(size, Image.Resampling.BILINEAR).filter(ImageFilter.GaussianBlur(blur))
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1)[None].float() / 127.5 - 1


@pytest.mark.real_data(SHARED)
@pytest.mark.parametrize(
    ("network", "file"),
    [("squeezenet1_0", "squeezenet1_0_deepcompression.pth"), ("mobilenet_v1", "mobilenet_v1_1.0_to_pw12.pth")],
)
def test_a_blurred_photo_is_nearer_than_another_photo(network, file) -> None:
    preprocessing = "caffe" if network == "squeezenet1_0" else None
    loss = PerceptualLoss(PerceptualConfig(network=network, preprocessing=preprocessing))
    loss.load(read_weights(SHARED / "nets" / file), source=file)
    photos = sorted((SHARED / "camvid" / "val" / "images").iterdir())
    first, other = (photo(path, (160, 120)) for path in (photos[0], photos[-1]))
    with torch.no_grad():
        slightly, more, another = (
            float(loss(x, first)) for x in (photo(photos[0], (160, 120), 0.6), photo(photos[0], (160, 120), 2), other)
        )
    assert 0 < slightly < more < another
    assert slightly < 0.5 * another


@pytest.mark.real_data(SHARED)
def test_squeezenet_with_its_real_weights_knows_a_cat() -> None:
    """What the last layer says of photos of cats, by the classifier's convolution: classes 281 to 285 of ImageNet are domestic cats."""
    given = read_weights(SHARED / "nets" / "squeezenet1_0_deepcompression.pth")
    network = FeatureNetwork("squeezenet1_0", layers=("fire_9",), preprocessing="caffe")
    network.load(given)
    cats = torch.cat([photo(path, (160, 160)) for path in sorted((SHARED / "cats100").rglob("*.jpg"))[:24]])
    with torch.no_grad():
        (features,) = network(network.prepared(cats))
        scores = F.conv2d(features, given["classifier.1.weight"], given["classifier.1.bias"]).relu().mean((2, 3))
    best = scores.topk(5).indices
    assert ((best >= 281) & (best <= 285)).any(1).sum() >= 12  # by chance less than one
