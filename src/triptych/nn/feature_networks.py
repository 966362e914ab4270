"""Networks that classify photos, up to where they turn into classes: images are compared by the features of their layers.

Their tensors have the names of torchvision's models (MobileNet: see `_mobilenet_v1`; EfficientNet-Lite0: see nn/efficientnet.py).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from triptych.nn.efficientnet import efficientnet_lite0
from triptych.nn.frozen import FrozenNetwork, Layers, Operations, Run, bordered, traced
from triptych.nn.inception import inception_v3
from triptych.nn.precision import widened

NetworkName = Literal["vgg19", "vgg16", "alexnet", "resnet50", "inception_v3", "squeezenet1_0", "mobilenet_v1", "efficientnet_lite0"]
Preprocessing = Literal["imagenet", "caffe", "symmetric"]


def layer_names(network: NetworkName) -> tuple[str, ...]:
    """The names of a network's layers, in order."""
    return trace(network, None, height=_TRACED, width=_TRACED)[1]


def required_tensors(network: NetworkName, layers: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors, by name, that the network needs to come to all of `layers`."""
    return trace(network, layers, height=_TRACED, width=_TRACED)[0]


_TRACED = 96  # pixels; enough for all layers of all networks


def trace(
    network: NetworkName, layers: tuple[str, ...] | None, *, height: int, width: int
) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """The tensors that a network asks for until it has come to `layers` (None: all), and the layers by then; nothing is computed."""
    return traced(NETWORKS[network].run, layers, (3, height, width))


def _vgg(convolutions: tuple[int, ...], net: Operations, x: Tensor) -> Layers:
    """Blocks of so many convolutions. "Very Deep Convolutional Networks", Simonyan and Zisserman 2015, arXiv 1409.1556."""
    index = 0
    for block, (count, channels) in enumerate(zip(convolutions, (64, 128, 256, 512, 512), strict=True), start=1):
        for layer in range(1, count + 1):
            x = F.relu(net.conv(x, f"features.{index}", channels, 3, padding=1), inplace=True)
            yield f"relu_{block}_{layer}", x
            index += 2
        x = F.max_pool2d(x, 2)
        index += 1


def _alexnet(net: Operations, x: Tensor) -> Layers:
    """AlexNet: "One weird trick for parallelizing convolutional neural networks", Krizhevsky 2014, arXiv 1404.5997."""
    x = F.relu(net.conv(x, "features.0", 64, 11, stride=4, padding=2))
    yield "relu_1", x
    x = F.relu(net.conv(F.max_pool2d(x, 3, 2), "features.3", 192, 5, padding=2))
    yield "relu_2", x
    x = F.max_pool2d(x, 3, 2)
    for layer, (index, channels) in enumerate(((6, 384), (8, 256), (10, 256)), start=3):
        x = F.relu(net.conv(x, f"features.{index}", channels, 3, padding=1))
        yield f"relu_{layer}", x


def _resnet50(net: Operations, x: Tensor) -> Layers:
    """ResNet-50: "Deep Residual Learning", He et al. 2015, arXiv 1512.03385; the stride is in the 3x3 convolution, as in torchvision."""
    x = F.relu(net.norm(net.conv(x, "conv1", 64, 7, stride=2, padding=3, bias=False), "bn1"))
    yield "relu_1", x
    x = F.max_pool2d(x, 3, 2, padding=1)
    for stage, (blocks, channels) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
        for block in range(blocks):
            x = _bottleneck(net, x, f"layer{stage}.{block}", channels, stride=2 if stage > 1 and block == 0 else 1)
        yield f"layer_{stage}", x


def _bottleneck(net: Operations, x: Tensor, name: str, channels: int, *, stride: int) -> Tensor:
    shortcut = x
    if x.shape[1] != 4 * channels:
        shortcut = net.conv(x, f"{name}.downsample.0", 4 * channels, 1, stride=stride, bias=False)
        shortcut = net.norm(shortcut, f"{name}.downsample.1")
    x = F.relu(net.norm(net.conv(x, f"{name}.conv1", channels, 1, bias=False), f"{name}.bn1"))
    x = F.relu(net.norm(net.conv(x, f"{name}.conv2", channels, 3, stride=stride, padding=1, bias=False), f"{name}.bn2"))
    return F.relu(net.norm(net.conv(x, f"{name}.conv3", 4 * channels, 1, bias=False), f"{name}.bn3") + shortcut)


def _squeezenet(net: Operations, x: Tensor) -> Layers:
    """SqueezeNet 1.0: Iandola et al. 2016, arXiv 1602.07360; its pooling rounds sizes up."""
    x = F.relu(net.conv(x, "features.0", 96, 7, stride=2))
    yield "relu_1", x
    fires = ((3, 16), (4, 16), (5, 32), None, (7, 32), (8, 48), (9, 48), (10, 64), None, (12, 64))
    x = F.max_pool2d(x, 3, 2, ceil_mode=True)
    number = 2  # the paper counts the first convolution
    for fire in fires:
        if fire is None:
            x = F.max_pool2d(x, 3, 2, ceil_mode=True)
            continue
        name, channels = f"features.{fire[0]}", fire[1]
        squeezed = F.relu(net.conv(x, f"{name}.squeeze", channels, 1))
        wide = (("expand1x1", 1, 0), ("expand3x3", 3, 1))
        x = F.relu(torch.cat([net.conv(squeezed, f"{name}.{part}", 4 * channels, k, padding=p) for part, k, p in wide], dim=1))
        yield f"fire_{number}", x
        number += 1


def _mobilenet_v1(net: Operations, x: Tensor) -> Layers:
    """MobileNet v1: Howard et al. 2017, arXiv 1704.04861, width 1; borders as in TensorFlow, with the odd pixel at the end.

    Keys conv1 and bn1, then dw.N, dbn.N (depthwise), pw.N, pbn.N (pointwise) with N from 0.
    """
    x = F.relu6(net.norm(net.conv(bordered(x, 3, stride=2), "conv1", 32, 3, stride=2, bias=False), "bn1", eps=1e-3))
    yield "relu_1", x
    widths = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
    for index, channels in enumerate(widths):
        before, stride = x.shape[1], 2 if index in (1, 3, 5, 11) else 1
        x = net.conv(bordered(x, 3, stride=stride), f"dw.{index}", before, 3, stride=stride, groups=before, bias=False)
        x = F.relu6(net.norm(x, f"dbn.{index}", eps=1e-3))
        x = F.relu6(net.norm(net.conv(x, f"pw.{index}", channels, 1, bias=False), f"pbn.{index}", eps=1e-3))
        yield f"pw_{index + 1}", x


@dataclass(frozen=True)
class _Network:
    run: Run
    layers: tuple[str, ...]
    "The five that are compared where no others are named: about one for each resolution, from fine to coarse."
    preprocessing: Preprocessing = "imagenet"
    "Of the weights that are usual."


_VGG_LAYERS = ("relu_1_1", "relu_2_1", "relu_3_1", "relu_4_1", "relu_5_1")
NETWORKS: Mapping[NetworkName, _Network] = {
    "vgg19": _Network(functools.partial(_vgg, (2, 2, 4, 4, 4)), _VGG_LAYERS),
    "vgg16": _Network(functools.partial(_vgg, (2, 2, 3, 3, 3)), _VGG_LAYERS),
    "alexnet": _Network(_alexnet, ("relu_1", "relu_2", "relu_3", "relu_4", "relu_5")),
    "resnet50": _Network(_resnet50, ("relu_1", "layer_1", "layer_2", "layer_3", "layer_4")),
    "inception_v3": _Network(inception_v3, ("pool_1", "pool_2", "mixed_5d", "mixed_6e", "mixed_7c"), "symmetric"),
    "squeezenet1_0": _Network(_squeezenet, ("relu_1", "fire_3", "fire_5", "fire_7", "fire_9")),
    "mobilenet_v1": _Network(_mobilenet_v1, ("pw_1", "pw_3", "pw_5", "pw_11", "pw_12"), "symmetric"),
    # Its own scaling is (x - 127) / 128 of values in 0..255, half a level beside the symmetric one.
    "efficientnet_lite0": _Network(efficientnet_lite0, ("stage_1", "stage_2", "stage_3", "stage_5", "stage_7"), "symmetric"),
}


class FeatureNetwork(FrozenNetwork):
    """A frozen network, always in evaluation mode, from images to the features of some of its layers."""

    def __init__(self, name: NetworkName, *, layers: tuple[str, ...], preprocessing: Preprocessing | None = None) -> None:
        super().__init__(NETWORKS[name].run, layers)
        self.name: NetworkName = name
        self.preprocessing = preprocessing or NETWORKS[name].preprocessing
        with torch.device("cpu"):  # not saved, so never without values
            scale, shift = _normalization(self.preprocessing)
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("shift", shift, persistent=False)

    def load(self, weights: Mapping[str, Tensor], *, source: str = "the weights") -> None:
        """Copies, on the device and in the type of the network, the tensors that the layers need; others may be there.

        Raises CheckpointError for one that is missing, or has another shape or type or a value that is not finite.
        """
        self.take_tensors(weights, required_tensors(self.name, self.layers), source=f"{source}, as those of {self.name}")

    def prepared(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 3 h w"]:
        """Images, grey or RGB in [-1, 1], as the network takes them."""
        x = widened(images).expand(-1, 3, -1, -1)
        x = x.flip(1) if self.preprocessing == "caffe" else x
        return x * self.get_buffer("scale") + self.get_buffer("shift")

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> list[Float[Tensor, "b _ _ _"]]:
        """The features of the layers, in the order of `layers`, of images that `prepared` has made."""
        found = self.found(x)
        return [found[layer] for layer in self.layers]


def _normalization(preprocessing: Preprocessing) -> tuple[Tensor, Tensor]:
    """Scale and shift of each channel, (1, 3, 1, 1), of images in [-1, 1]."""
    if preprocessing == "imagenet":  # torchvision's constants, of RGB in [0, 1]
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        scale, shift = 0.5 / std, (0.5 - mean) / std
    elif preprocessing == "caffe":  # the mean of ImageNet's photos, BGR in 0..255
        scale, shift = torch.full((3,), 127.5), 127.5 - torch.tensor([104.0, 117.0, 123.0])
    else:
        scale, shift = torch.ones(3), torch.zeros(3)
    return scale[None, :, None, None], shift[None, :, None, None]
