"""What a network says of pictures, and of references: from images, from statistics, from the cache."""

from __future__ import annotations

import dataclasses
import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.pictures import picture
from tests.processes import run_together
from triptych.cli.main import main
from triptych.core.errors import DataError, RunError, Stopped
from triptych.core.locks import Lock
from triptych.engine.distributed import World, open_world
from triptych.evaluation.feature_set import FeatureSet
from triptych.evaluation.feature_space import Embedder, open_space
from triptych.runs import embedding, references
from triptych.runs.embedding import embedded
from triptych.runs.given.pictures import StoredPictures, open_pictures
from triptych.runs.model_images import ModelImages
from triptych.runs.references import Statistics, open_reference, reference_of
from triptych.runs.sides import StatisticsSide
from triptych.runs.statistics import write_statistics

ALONE = World(0, 1, torch.device("cpu"))
IMAGES = np.stack([picture(8, 6, seed=k) for k in range(70)])


class Spatial(Embedder):
    """The random network with a second output, as Inception's."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.name, self.outputs = "spatial-network", ("features", "spatial")
        self.identity = {"network": self.name, "sha256": None}
        self.random = open_space("random")
        self.seen: list[torch.Tensor] = []

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(images)
        features = self.random(images)["features"]
        return {"features": features, "spatial": features[:, :3] ** 2}


NETWORK = Spatial()


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    NETWORK.seen.clear()
    return tmp_path / "cache" / "references"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.savez(tmp_path / "a.npz", arr_0=IMAGES)
    return tmp_path / "a.npz"


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(DataError) as refused:
        act()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def known(source: Any, network: Embedder = NETWORK, **asked: Any) -> FeatureSet:
    return reference_of(source, network, world=ALONE, **asked)


# What a network says of pictures


def test_the_network_always_sees_whole_groups(file: Path) -> None:
    """The last one is filled with its last image, and so the outputs of an image do not depend on what else is asked for."""
    arrays = embedded(open_pictures(file), NETWORK, world=ALONE).arrays
    expected = np.concatenate([IMAGES, IMAGES[-1:].repeat(26, axis=0)]).reshape(3, 32, 6, 8, 3)
    np.testing.assert_array_equal(torch.stack(NETWORK.seen), expected)
    assert {name: (values.dtype, values.shape) for name, values in arrays.items()} == {
        "features": (np.dtype(np.float32), (70, 64)),
        "spatial": (np.dtype(np.float32), (70, 3)),
    }
    outputs = [NETWORK(torch.from_numpy(group)) for group in expected]
    for name, values in arrays.items():
        np.testing.assert_array_equal(values, torch.cat([found[name] for found in outputs])[:70])


def test_outputs_in_a_file_are_those_in_memory(file: Path, tmp_path: Path) -> None:
    inside = embedded(open_pictures(file), NETWORK, world=ALONE).arrays
    outside = embedded(open_pictures(file), NETWORK, out=tmp_path / "out.npz", world=ALONE).arrays
    for name, values in inside.items():
        assert isinstance(outside[name], np.memmap)
        np.testing.assert_array_equal(outside[name], values)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "out.npz"]


def test_a_file_of_outputs_is_made_once_and_again_where_it_does_not_fit(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"

    def groups() -> int:
        NETWORK.seen.clear()
        embedded(open_pictures(file), NETWORK, out=out, world=ALONE)
        return len(NETWORK.seen)

    assert [groups(), groups()] == [3, 0]
    whole = out.read_bytes()
    for data in (whole[: len(whole) // 2], whole[:9000] + bytes([whole[9000] ^ 1]) + whole[9001:], b""):
        out.write_bytes(data)
        assert [groups(), groups()] == [3, 0]
        assert out.read_bytes() == whole
    np.savez(file, arr_0=IMAGES[::-1])
    assert [groups(), groups()] == [3, 0]
    file.rename(tmp_path / "b.npz")
    (tmp_path / "b.npz").rename(file)
    assert groups() == 0


def test_pictures_with_much_to_say_of_themselves(tmp_path: Path) -> None:
    """As those of a run that are asked for by a label each: a file holds a hash of what is long."""
    found = []
    for name in ("retriever", "retrievers", "retriever"):
        NETWORK.seen.clear()
        identity, chunk = {"labels": [name] * 50_000}, len(IMAGES)
        pictures = ModelImages(lambda part: IMAGES, count=chunk, size=(6, 8), channels=3, chunk=chunk, identity=identity)
        for out in (tmp_path / f"{name}.npz", tmp_path / "retriever.npz"):
            found.append(embedded(pictures, NETWORK, out=out, world=ALONE).array("features"))
            found.append(len(NETWORK.seen))
    np.testing.assert_array_equal(found[0], found[2])
    assert found[1::2] == [3, 3, 3, 6, 3, 3], "other labels are other pictures"


def test_an_interrupted_call_goes_on(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(embedding.looked_at.__kwdefaults__, "groups_kept", 1)
    out, told = tmp_path / "out.npz", []

    def stop(done: float, total: float) -> None:
        told.append((done, total))
        if done == 64:
            raise KeyboardInterrupt

    with pytest.raises(Stopped, match="what was embedded is kept, and the same command goes on"):
        embedded(open_pictures(file), NETWORK, out=out, world=ALONE, progress=stop)
    assert told == [(0, 70), (32, 70), (64, 70)] and not out.exists()
    NETWORK.seen.clear()
    arrays = embedded(open_pictures(file), NETWORK, out=out, world=ALONE).arrays
    assert len(NETWORK.seen) == 1
    for name, values in embedded(open_pictures(file), NETWORK, world=ALONE).arrays.items():
        np.testing.assert_array_equal(arrays[name], values)


def embed_together(path: Path, out: Path) -> int:
    """In each of two processes."""
    os.environ["TRIPTYCH_CACHE"] = str(out / "cache")
    torch.set_num_threads(1)
    world = open_world("cpu")
    inside = embedded(open_pictures(path), Spatial(), world=world).arrays
    outside = embedded(open_pictures(path), Spatial(), out=out / "out.npz", world=world).arrays
    cached = reference_of(path, Spatial(), world=world)
    np.savez(out / f"{world.rank}.npz", inside=inside["features"], outside=outside["features"], cached=cached.array("features"))
    return 0


@pytest.mark.slow
def test_two_processes_find_what_one_finds(file: Path, tmp_path: Path) -> None:
    (tmp_path / "together").mkdir()
    run_together(2, embed_together, file, tmp_path / "together")
    alone = known(file)
    for rank in range(2):
        with np.load(tmp_path / "together" / f"{rank}.npz") as found:
            for name in ("inside", "outside", "cached"):
                np.testing.assert_array_equal(found[name], alone.array("features"))


class Killing(Spatial):
    """Dies at the third group, as by kill -9."""

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        if len(self.seen) == 2:
            os._exit(0)
        return super().forward(images)


def die(path: Path, cache: Path) -> int:
    os.environ["TRIPTYCH_CACHE"] = str(cache)
    embedding.looked_at.__kwdefaults__["groups_kept"] = 1
    torch.set_num_threads(1)
    reference_of(path, Killing(), world=ALONE)
    return 1


@pytest.mark.slow
def test_a_killed_command_leaves_what_it_made(file: Path, cached: Path) -> None:
    run_together(1, die, file, cached.parent)
    assert any(".partial-" in path.name for path in cached.iterdir()) and not list(cached.glob("*[0-9a-f].npz"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # its lock is gone with it
        found = known(file)
    assert len(NETWORK.seen) == 1
    assert [path.suffix for path in cached.iterdir()] == [".npz"]
    np.testing.assert_array_equal(found.array("features"), embedded(open_pictures(file), NETWORK, world=ALONE).array("features"))


def test_values_that_are_not_finite(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NETWORK, "forward", lambda images: {name: torch.full((32, 2), torch.nan) for name in NETWORK.outputs})
    with pytest.raises(RunError, match='spatial-network: "features" of image 0 is not finite'):
        embedded(open_pictures(file), NETWORK, world=ALONE)


# The cache


def test_a_reference_is_embedded_once(file: Path, cached: Path, tmp_path: Path) -> None:
    first = known(file)
    assert len(NETWORK.seen) == 3 and [path.suffix for path in cached.iterdir()] == [".npz"]
    (tmp_path / "elsewhere").mkdir()
    again = known(file.rename(tmp_path / "elsewhere" / "b.npz"))
    assert len(NETWORK.seen) == 3
    arrays = embedded(open_pictures(tmp_path / "elsewhere" / "b.npz"), NETWORK, world=ALONE).arrays
    for found in (first, again):
        np.testing.assert_array_equal(found.array("features"), arrays["features"])
        for output, values in arrays.items():
            moments = found.moments(output)
            assert moments.count == 70
            np.testing.assert_allclose(moments.mean, values.astype(np.float64).mean(0), rtol=1e-12)
            np.testing.assert_allclose(moments.covariance, np.cov(values.astype(np.float64).T), rtol=1e-7, atol=1e-12)


def test_other_pictures_preparations_and_networks_have_entries_of_their_own(file: Path, cached: Path) -> None:
    known(file)
    known(open_pictures(file, image_size=4))
    known(file, open_space("random"))
    np.savez(file, arr_0=IMAGES[:69])
    known(file)
    assert len(list(cached.glob("*.npz"))) == 4


def test_a_damaged_entry_is_made_anew(file: Path, cached: Path) -> None:
    before = known(file).array("features").copy()
    (entry,) = cached.iterdir()
    whole = entry.read_bytes()
    for data in (whole[:5000], whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:], b""):
        entry.write_bytes(data)
        NETWORK.seen.clear()
        np.testing.assert_array_equal(known(file).array("features"), before)
        assert len(NETWORK.seen) == 3 and entry.read_bytes() == whole


def test_one_command_waits_for_another(file: Path, cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And takes what that made."""
    monkeypatch.setattr(references, "_WAIT_SECONDS", 0.01)
    known(file)
    (entry,) = cached.iterdir()
    whole = entry.read_bytes()
    entry.unlink()
    NETWORK.seen.clear()
    lock = Lock(entry.with_suffix(".lock"))

    def finish() -> None:
        time.sleep(0.1)
        entry.write_bytes(whole)
        lock.release(remove=True)

    other = threading.Thread(target=finish)
    other.start()
    with pytest.warns(UserWarning, match=f"another command .process {os.getpid()} on .*embeds this reference: waiting for it"):
        known(file)
    other.join()
    assert NETWORK.seen == [] and list(cached.iterdir()) == [entry]


def test_a_cache_that_cannot_be_written(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(file))
    assert refusal(lambda: known(file)).endswith("Not a directory: name another folder by TRIPTYCH_CACHE")


# Statistics


def saved(path: Path, **changed: Any) -> Path:
    """Statistics as other programs write them."""
    values = np.random.default_rng(0).normal(size=(500, 64))
    arrays = {"mu": values.mean(0), "sigma": np.cov(values.T), "mu_s": values[:, :3].mean(0), "sigma_s": np.cov(values[:, :3].T)}
    np.savez(path, **{name: array for name, array in (arrays | changed).items() if array is not None})
    return path


def test_statistics_are_read_as_they_are(tmp_path: Path) -> None:
    path = saved(tmp_path / "s.npz")
    with np.load(path) as arrays:
        found = known(path, outputs=("features", "spatial"), features=False)
        for output, (mean, covariance) in {"features": ("mu", "sigma"), "spatial": ("mu_s", "sigma_s")}.items():
            np.testing.assert_array_equal(found.moments(output).mean, arrays[mean])
            np.testing.assert_array_equal(found.moments(output).covariance, arrays[covariance])
            assert found.moments(output).count == 0  # the file does not say


def test_pytorch_fids_statistics_have_no_spatial_ones(tmp_path: Path) -> None:
    path = saved(tmp_path / "s.npz", mu_s=None, sigma_s=None)
    assert known(path, features=False).moments("features").mean.shape == (64,)
    line = 'holds mu, sigma, but no mu_s and sigma_s, the statistics of "spatial": give the images'
    assert refusal(lambda: known(path, outputs=("features", "spatial"), features=False)) == f"{path}: {line}"


def test_images_in_a_file_of_statistics_give_the_features(tmp_path: Path) -> None:
    """guided-diffusion's: the statistics are of more images than the file has, and stay as they are."""
    path = saved(tmp_path / "s.npz", arr_0=IMAGES)
    found = known(path)
    assert len(found) == 70
    np.testing.assert_array_equal(found.array("features"), embedded(open_pictures(path), NETWORK, world=ALONE).array("features"))
    with np.load(path) as arrays:
        np.testing.assert_array_equal(found.moments("features").covariance, arrays["sigma"])
    NETWORK.seen.clear()
    known(path, features=False)
    assert all(len(images) == 1 for images in NETWORK.seen)  # no image is embedded where moments are enough
    line = "holds statistics alone: for metrics that look at each image (kid, precision, recall) give the images"
    without = saved(tmp_path / "t.npz")
    assert refusal(lambda: known(without)) == f"{without}: {line}"


NOT_FINITE = np.full((64, 64), np.inf)
SKEW = np.eye(64) + np.triu(np.ones((64, 64)))
ASKEW = np.eye(64) + 0.01 * np.eye(64, k=1)
STATISTICS_FAULTS = {
    "another network's": (
        {"mu": np.zeros(2048), "sigma": np.eye(2048)},
        "mu is float64 of shape [2048], but spatial-network has 64 features",
    ),
    "sigma of another shape": ({"sigma": np.eye(63)}, "sigma is float64 of shape [63, 63]"),
    "whole numbers": ({"mu": np.zeros(64, int)}, "mu is int64 of shape [64]"),
    "no sigma": ({"sigma": None}, 'but no sigma, the statistics of "features"'),
    "no mu": ({"mu": None}, 'but no mu, the statistics of "features"'),
    "not finite": ({"sigma": NOT_FINITE}, "mu or sigma holds values that are not finite"),
    "not symmetric": ({"sigma": SKEW}, "sigma is no covariance, for it is not symmetric or has variances below 0"),
    "not quite symmetric": ({"sigma": ASKEW}, "sigma is no covariance, for it is not symmetric or has variances below 0"),
    "negative": ({"sigma": -np.eye(64)}, "sigma is no covariance, for it is not symmetric or has variances below 0"),
    "objects": ({"mu": np.array([None] * 64)}, "mu holds Python objects"),
    "a network's name": ({"identity": np.array('[{}, {"network": "other"}]')}, "statistics of another network than spatial-network"),
    "a text that is none": ({"identity": np.zeros(1000)}, "identity is float64 of shape [1000], expected a text"),
    "a text without end": ({"identity": np.array("[" * 300_000)}, "identity is <U300000 of shape [], expected a text"),
    "a text that is nested": ({"identity": np.array("[" * 100_000)}, "nested too deeply"),
    "a name that is none": ({"identity": np.array("{")}, "Expecting property name"),
}


@pytest.mark.parametrize("fault", STATISTICS_FAULTS)
def test_statistics_that_cannot_be_used(tmp_path: Path, fault: str) -> None:
    changed, line = STATISTICS_FAULTS[fault]
    path = saved(tmp_path / "s.npz", **changed)
    message = refusal(lambda: known(path, features=False))
    assert message.startswith(f"{path}: ") and line in message


@pytest.mark.parametrize("count", [np.array("many"), np.array([70]), np.array(1.5)])
def test_a_count_that_is_none_is_not_known(tmp_path: Path, count: np.ndarray) -> None:
    assert known(saved(tmp_path / "s.npz", count=count), features=False).moments("features").count == 0


def test_statistics_in_float32_are_symmetric_enough(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=(90, 64)).astype(np.float32) * 100
    path = saved(tmp_path / "s.npz", mu=values.mean(0), sigma=((values - values.mean(0)).T @ (values - values.mean(0)) / 89))
    assert known(path, features=False).moments("features").covariance.dtype == np.float64


def test_a_file_that_is_damaged_or_pickled(tmp_path: Path) -> None:
    path = saved(tmp_path / "s.npz")
    path.write_bytes(path.read_bytes()[:-100])
    assert refusal(lambda: open_reference(path)) == f"{path}: File is not a zip file; copy or make it again"
    pickled = tmp_path / "s.pkl"
    pickled.write_bytes(pickle.dumps({"mu": 0}))
    advice = "give the .npz of these statistics (mu, sigma), or the images"
    assert refusal(lambda: open_reference(pickled)) == f"{pickled}: pickled, and such a file can run any program: {advice}"
    assert "does not exist" in refusal(lambda: open_reference(tmp_path / "none.npz"))


def test_a_reference_is_statistics_or_pictures(tmp_path: Path, file: Path) -> None:
    path = saved(tmp_path / "s.npz")
    opened = open_reference(path)
    assert isinstance(opened, Statistics) and not opened.has_images and opened.identity["kind"] == "statistics"
    before = opened.identity["sha256"]
    saved(path, mu=np.ones(64))
    assert open_reference(path).identity["sha256"] != before
    pictures = open_reference(file, image_size=4)
    assert isinstance(pictures, StoredPictures) and pictures.size == (4, 4)


# triptych data stats


def test_written_statistics_are_a_reference(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych.runs.statistics.open_space", lambda *_, **__: NETWORK)
    out = tmp_path / "s.npz"
    written = write_statistics(file, out, features="spatial-network", images=True)
    assert dataclasses.asdict(written) == {
        "count": 70,
        "size": (6, 8),
        "network": "spatial-network",
        "dimensions": {"features": 64, "spatial": 3},
    }
    outputs = embedded(open_pictures(file), NETWORK, world=ALONE).arrays
    with np.load(out) as arrays:
        assert set(arrays) == {"mu", "sigma", "mu_s", "sigma_s", "arr_0", "count", "identity"}
        np.testing.assert_array_equal(arrays["arr_0"], IMAGES)
        for output, (mean, covariance) in references.NAMES.items():
            values = outputs[output].astype(np.float64)
            np.testing.assert_allclose(arrays[mean], values.mean(0), rtol=1e-12)
            np.testing.assert_allclose(arrays[covariance], np.cov(values.T), rtol=1e-7, atol=1e-12)
    found = known(out, outputs=("features", "spatial"))
    assert found.moments("spatial").count == 70
    np.testing.assert_array_equal(found.array("features"), outputs["features"])
    message = refusal(lambda: known(out, open_space("random")))
    assert "statistics of another network than random as it is asked for here (network spatial-network" in message


def test_the_command_writes_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of grey images arr_0 is RGB all the same, for other programs read that."""
    np.savez_compressed(tmp_path / "a.npz", IMAGES[..., :1])
    flags = ["--features", "random", "--images", "--image-size", "4", "--width", "6", "--device", "cpu", "--out", str(tmp_path / "s.npz")]
    assert main(["data", "stats", str(tmp_path / "a.npz"), *flags]) == 0
    assert capsys.readouterr().out == f"70 images of 6x4 in random (64 features): {tmp_path / 's.npz'}\n"
    assert main(["data", "stats", str(tmp_path / "a.npz"), *flags, "--size", "4"]) == 0, "it is made anew"
    opened = open_reference(tmp_path / "s.npz")
    assert isinstance(opened, Statistics) and len(StatisticsSide(opened)) == 70
    with np.load(tmp_path / "s.npz") as arrays:
        np.savez(tmp_path / "foreign.npz", **{name: arrays[name] for name in ("mu", "sigma", "arr_0")})
        np.savez(tmp_path / "bare.npz", mu=arrays["mu"], sigma=arrays["sigma"])
        others: list[Any] = [open_reference(tmp_path / name) for name in ("foreign.npz", "bare.npz")]
        assert [(each.count, each.size) for each in others] == [(70, (4, 6)), (0, None)]
        assert arrays["arr_0"].shape == (70, 4, 6, 3) and arrays["mu"].shape == (64,)
        features = embedded(open_pictures(tmp_path / "a.npz", image_size=(4, 6)), open_space("random"), world=ALONE).array("features")
        np.testing.assert_allclose(arrays["mu"], features.astype(np.float64).mean(0), rtol=1e-12)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", "nothing to do given; expected one of doctor, stats, encode, pack, points, draw, person, show (triptych data --help"),
        ("stat a.npz", "unknown triptych data 'stat'; did you mean \"stats\"? (triptych data --help)"),
        ("stats", "no images given; usage: triptych data stats IMAGES --out FILE.npz [--features NETWORK]"),
        (
            "stats --out b.npz",
            "got '--out' where the images are expected; usage: triptych data stats IMAGES --out FILE.npz",
        ),
        ("stats none --out b.npz", "none: does not exist; expected a folder, .zip, .tar, .npz or .npy of images"),
        ("stats a.npz", "--out: missing: the file to write; usage: triptych data stats IMAGES --out FILE.npz [--features NETWORK]"),
        ("stats a.npz --out b.png", "--out: got 'b.png', expected a name that ends with .npz"),
        ("stats a.npz --out a.npz --features random", "cannot write a.npz: it is the file that is read; choose another --out"),
        ("stats a.npz --out a.png --features random", "--out: got 'a.png', expected a name that ends with .npz"),
        ("stats a.npz --out s.npz --features random", "cannot write s.npz: it is there, and no such command made it"),
        ("stats a.npz --out b.npz --width 4", "--width: got 4, expected nothing without --image-size"),
        ("stats a.npz --out b.npz --features random --image-size 9", "a.npz[0]: 8x6 pixels, too small for 9x9; lower --image-size"),
        ("stats s.npz --out b.npz --features random", "s.npz: holds mu, sigma, mu_s, sigma_s, expected images as arr_0"),
    ],
)
def test_what_the_command_refuses(
    file: Path, words: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(file.parent)
    saved(Path("s.npz"))
    before = file.read_bytes()
    assert main(["data", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"triptych: error: {line}") and err.count("\n") == 1
    assert file.read_bytes() == before and not Path("b.npz").exists()


def test_the_command_names_the_flag_of_a_setting(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "stats", str(file), "--features", "incaption", "--out", str(tmp_path / "s.npz")]) == 2
    assert capsys.readouterr().err.startswith('triptych: error: --features: unknown feature space "incaption"; did you mean "inception"?')


def test_progress_of_a_reference_is_told(file: Path) -> None:
    told: list[tuple[float, float]] = []
    known(file, progress=lambda *now: told.append(now))
    assert told[0] == (0, 70) and told[-1] == (70, 70)
