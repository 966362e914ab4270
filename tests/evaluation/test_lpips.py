"""LPIPS: as the package lpips has it, by hand, its heads, and its file of weights."""

from __future__ import annotations

import hashlib
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.evaluation.recorded_pairs import lpips_weights, pair, recorded
from triptych.core.errors import CheckpointError, ConfigError, DataError
from triptych.evaluation import lpips as module
from triptych.evaluation.lpips import Backbone, Lpips, LpipsNetwork, heads, open_lpips
from triptych.nn.feature_networks import NETWORKS
from triptych.nn.frozen import run_layers

CPU = torch.device("cpu")


def tensors(name: str) -> tuple[Tensor, Tensor]:
    images, truth = pair(name)
    return torch.from_numpy(images), torch.from_numpy(truth)


@pytest.fixture(scope="module")
def alexnet() -> Lpips:
    return Lpips("alexnet", lpips_weights("alexnet"))


@pytest.mark.parametrize("name", ["alexnet", "vgg16"])
def test_as_the_original_has_it(name: LpipsNetwork) -> None:
    model = Lpips(name, lpips_weights(name)).double()
    assert model(*tensors(name)).tolist() == pytest.approx(recorded()[f"lpips/{name}"], rel=1e-6)  # its scales are of float32


def test_float32_is_near_float64(alexnet: Lpips) -> None:
    """Measured: 1e-6; other CPUs round otherwise."""
    assert alexnet(*tensors("alexnet")).tolist() == pytest.approx(recorded()["lpips/alexnet"], rel=1e-4)


def test_by_hand(alexnet: Lpips) -> None:
    """Eq. 1 in NumPy, with the scaling that the paper's program states."""
    weights = lpips_weights("alexnet")
    shift, scale = np.array([-0.030, -0.088, -0.188]), np.array([0.458, 0.448, 0.450])

    def features(image: np.ndarray) -> list[np.ndarray]:
        x = torch.from_numpy(((image / 127.5 - 1 - shift) / scale).transpose(2, 0, 1)[None])
        found = run_layers(NETWORKS["alexnet"].run, alexnet.network.layers, x, lambda name, _: weights[name].double())
        return [f[0].numpy() for f in found.values()]

    images, truth = pair("alexnet")
    expected = 0.0
    for x, y, head in zip(features(images[0]), features(truth[0]), heads("alexnet"), strict=True):
        x, y = (v / (np.sqrt((v**2).sum(0)) + 1e-10) for v in (x, y))
        expected += (head[:, None, None] * (x - y) ** 2).sum(0).mean()
    assert alexnet(*tensors("alexnet"))[0].item() == pytest.approx(expected, rel=1e-4)


def test_a_distance_in_any_batch(alexnet: Lpips) -> None:
    images, truth = tensors("alexnet")
    distances = alexnet(images, truth)
    assert distances.dtype == torch.float64
    assert alexnet(images, images).tolist() == pytest.approx([0, 0], abs=1e-9)
    assert alexnet(truth, images).tolist() == pytest.approx(distances.tolist(), rel=1e-9)
    assert alexnet(images[1:], truth[1:]).tolist() == pytest.approx(distances[1:].tolist(), rel=1e-9)


def test_black_images_without_features_are_at_no_distance(alexnet: Lpips) -> None:
    """Where no feature is above 0 the length is 0, and the quotient has to be too."""
    dead = Lpips("alexnet", {name: -weight.abs() for name, weight in lpips_weights("alexnet").items()})
    white = torch.full((1, 40, 40, 3), 255, dtype=torch.uint8)
    assert dead(white, white - 40).item() == 0


def test_grey_images_are_repeated(alexnet: Lpips) -> None:
    grey, truth = (images[:1, ..., :1] for images in tensors("alexnet"))
    assert alexnet(grey, truth).item() == pytest.approx(alexnet(grey.expand(-1, -1, -1, 3), truth.expand(-1, -1, -1, 3)).item(), rel=1e-9)


def test_diversity_is_the_mean_over_all_pairs_of_answers(alexnet: Lpips) -> None:
    answers = torch.cat(tensors("alexnet")[:2])[:, :40, :48]  # 4 images
    expected = [alexnet(answers[a : a + 1], answers[b : b + 1]).item() for a, b in combinations(range(4), 2)]
    same = answers[:1].expand(4, -1, -1, -1)
    assert alexnet.diversity(torch.stack((answers, same))).tolist() == pytest.approx([np.mean(expected), 0], rel=1e-12)
    with pytest.raises(DataError, match="diversity needs at least 2 answers to each input, got 1"):
        alexnet.diversity(answers[:, None])


def test_images_too_small_are_refused(alexnet: Lpips) -> None:
    small = torch.zeros(1, 64, 30, 3, dtype=torch.uint8)
    with pytest.raises(DataError, match="LPIPS on alexnet needs images of at least 31 pixels a side, got 30x64"):
        alexnet(small, small)
    assert alexnet(torch.zeros(1, 31, 31, 3, dtype=torch.uint8), torch.zeros(1, 31, 31, 3, dtype=torch.uint8)).item() == 0


def test_heads_are_those_of_version_0_1() -> None:
    """None is below 0; the sums are those of the published files."""
    sums = {
        "alexnet": (2.349532, 16.143028, 39.268440, 27.197179, 20.317177),
        "vgg16": (6.925992, 8.858335, 17.515005, 51.521324, 47.034851),
    }
    sizes = {"alexnet": [64, 192, 384, 256, 256], "vgg16": [64, 128, 256, 512, 512]}
    for name in ("alexnet", "vgg16"):
        own = heads(name)
        assert [len(head) for head in own] == sizes[name]
        assert all(head.min() >= 0 for head in own)
        assert [float(head.sum(dtype=np.float64)) for head in own] == pytest.approx(sums[name], rel=1e-6)
    notice = (Path(module.__file__).parent / "assets" / "lpips.txt").read_text()
    assert "Redistribution and use in source and binary forms" in notice
    assert "Zhang, Phillip Isola" in notice


def test_weights_come_from_the_cache_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path))
    wanted = tmp_path / "networks" / "alexnet-owt-7be5be79.pth"
    with pytest.raises(ConfigError) as error:
        open_lpips("alexnet", device=CPU)
    assert str(error.value).startswith("LPIPS needs the weights of alexnet")
    assert all(
        word in str(error.value) for word in ("--pair.lpips-weights", str(wanted), "download.pytorch.org/models/alexnet-owt-7be5be79.pth")
    )
    wanted.parent.mkdir()
    torch.save(lpips_weights("alexnet"), wanted)
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    with pytest.raises(CheckpointError, match=f"begins with {digest[:8]}, that of alexnet-owt-7be5be79.pth with 7be5be79"):
        open_lpips("alexnet", device=CPU)
    backbone = Backbone(module.BACKBONES["alexnet"].layers, f"alexnet-{digest[:8]}.pth")
    monkeypatch.setattr(module, "BACKBONES", {"alexnet": backbone})
    for given in (wanted, None):
        model = open_lpips("alexnet", weights=given, device=CPU)
        assert model.identity == {"lpips": "0.1", "network": "alexnet", "sha256": digest}
        wanted.rename(wanted.with_name(backbone.file)) if given else None
    assert model(*tensors("alexnet")).tolist() == pytest.approx(recorded()["lpips/alexnet"], rel=1e-4)
