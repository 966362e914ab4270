"""Feature spaces: frozen networks that say what an image looks like, in which sets of images are compared.

A figure holds in its space alone: of another network, other weights or another resize it is another figure. So each space has a name,
and an `Embedder` tells what it was made of (`identity`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from triptych.core.cache import cache_folder
from triptych.core.errors import CheckpointError, ConfigError, nearest
from triptych.core.weight_files import read_weights
from triptych.nn.feature_networks import NETWORKS
from triptych.nn.frozen import FrozenNetwork, Layers, Operations, Run, run_layers, traced
from triptych.nn.pixels import RESIZES, Pixels, Resize
from triptych.nn.precision import without_tf32
from triptych.nn.small_networks import random_network, random_weights


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
    comparable: bool = False
    "Whether figures of others are published in this space."


class Embedder(nn.Module):
    """The network of a space, frozen: from stored images to what it says of them.

    `identity` is JSON, and all that its features depend on besides the images: network, sha256 of the weights, resize and side.
    """

    def __init__(self, name: str, space: Space, network: FrozenNetwork, *, sha256: str | None, resize: Resize) -> None:
        super().__init__()
        self.name = name
        self.outputs = space.outputs
        self.comparable = space.comparable
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


_IMAGENET_CAFFE = (104.0, 117.0, 123.0)  # blue, green, red

SPACES: Mapping[str, Space] = {
    "squeezenet": Space(
        "SqueezeNet 1.0 of Deep Compression, trained on ImageNet: mean of the last layer before the classes",
        _pooled(NETWORKS["squeezenet1_0"].run, "fire_9"),
        Pixels(227, "clean", _IMAGENET_CAFFE, (1.0, 1.0, 1.0), bgr=True),
        512,
        file="squeezenet1_0_deepcompression.pth",
        sha256="1fcf5a5358c11bbe59bd89b52ab3de273c1b7bd832d626bba81032b8ac3f551f",
        source="https://github.com/songhan/SqueezeNet-Deep-Compression",
    ),
    "mobilenet-v1": Space(
        "MobileNet v1, trained on ImageNet: mean of its 12th block",
        _pooled(NETWORKS["mobilenet_v1"].run, "pw_12"),
        Pixels(224, "clean", (127.5, 127.5, 127.5), (127.5, 127.5, 127.5)),
        1024,
        file="mobilenet_v1_1.0_to_pw12.pth",
        sha256="a42a771204d551051c726a885b8199b5acd13249c63da8c063f7e3c34b93bc19",
        source="https://github.com/kostasx/tfjs-mobilenet-offline-model",
    ),
    "random": Space(
        "a small network with random weights, for trials: its figures do not compare with any other",
        random_network,
        Pixels(64, "clean", (127.5, 127.5, 127.5), (127.5, 127.5, 127.5)),
        64,
    ),
}


def open_space(name: str, *, weights: Path | None = None, resize: str | None = None, device: torch.device | str = "cpu") -> Embedder:
    """The network of a space, with its weights, on `device`.

    `weights`: their file; None: the one in the cache. A file of other weights than the usual ones gives a space of another name, which
    ends with the first eight digits of its sha256. Raises ConfigError for a name or resize that is not known, and where there are no
    weights, which names the file and where it is looked for; CheckpointError for a file that cannot be used.
    """
    if name not in SPACES:
        raise ConfigError("features", f'unknown feature space "{name}"{nearest(name, SPACES)} (there is {", ".join(SPACES)})')
    space = SPACES[name]
    if resize is not None and resize not in RESIZES:
        raise ConfigError("features_resize", f"got {resize}, expected one of {', '.join(RESIZES)}{nearest(resize, RESIZES)}")
    network = FrozenNetwork(space.run, space.outputs)
    shapes = traced(space.run, space.outputs, (len(space.pixels.mean), space.pixels.side, space.pixels.side))[0]
    digest = None
    if not space.file:
        if weights is not None:
            raise ConfigError("features_weights", f"got {weights}, but {name} has weights of its own; leave it out")
        network.take_tensors(random_weights(shapes), shapes, source=name)
    else:
        path = weights or _found(name, space)
        tensors = read_weights(path)
        digest = _sha256(path)
        if space.sha256 is not None and digest != space.sha256:
            if weights is None:
                wrong = f"its sha256 begins {digest[:8]}, that of the weights of {name} {space.sha256[:8]}"
                raise CheckpointError(f"{path} is damaged or another file: {wrong}")
            name = f"{name}-{digest[:8]}"
        network.take_tensors(tensors, shapes, source=f"{path}, as those of {name}")
    return Embedder(name, space, network, sha256=digest, resize=cast(Resize, resize or space.pixels.resize)).to(device)


def _found(name: str, space: Space) -> Path:
    """The weights of a space in the cache. Raises ConfigError where they are not there."""
    path = cache_folder() / "networks" / space.file
    if path.is_file():
        return path
    raise ConfigError(
        "features",
        f"{name} needs the file {space.file}, which is not in {path.parent}: get it from {space.source} and put it there, "
        "or name it with --features-weights",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
