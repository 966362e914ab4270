"""What Python calls are given that is wrong: one error that names the argument, before anything is read or made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.test_encode import pixels
from tests.contract.shrink import shrunk
from tests.runs.glow import moved_run
from triptych.core.errors import CheckpointError, ConfigError
from triptych.diffusion.adm import EncodingConfig
from triptych.runs import Latents, Run, between, export_run, import_run, open_run, score, train
from triptych.runs.directions import Edit
from triptych.runs.loading import Loading

CPU: dict[str, Any] = {"device": "cpu"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return moved_run(tmp_path_factory.mktemp("runs") / "glow")


@pytest.fixture(scope="module")
def latents(run: Run) -> Latents:
    return run.encode(pixels(3), **CPU)


def one_line(call: Callable[[], object], said: str, error: type[Exception] = ConfigError) -> None:
    with pytest.raises(error) as caught:
        call()
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": None}, "count: got None, expected a whole number from 1 on"),
        ({"count": 2.0}, "count: got 2.0"),
        ({"count": True}, "count: got True"),
        ({"seed": "1"}, "seed: got '1', expected a whole number from 0 on"),
        ({"seed": None}, "seed: got None"),
        ({"seed": -1}, "seed: got -1"),
        ({"settings": {}}, "settings: dict are not the settings wanted here"),
        ({"settings": EncodingConfig()}, "settings: EncodingConfig are not the settings wanted here"),
        ({"out": ""}, "out: got '', expected a path"),
        ({"checkpoint": None}, "checkpoint: got None"),
        ({"checkpoint": 2.5}, "checkpoint: got 2.5"),
        ({"weights": 3}, "weights: got 3"),
        ({"ema_length": "0.1"}, "ema_length: got '0.1'"),
        ({"batch_size": "3"}, "batch_size: got '3'"),
        ({"batch_size": 1.5}, "batch_size: got 1.5"),
        ({"precision": "half"}, "precision: got 'half'"),
    ],
)
def test_samples(run: Run, given: dict[str, Any], said: str) -> None:
    one_line(lambda: run.sample(**({"count": 1} | CPU | given)), said)


def test_labels(tmp_path: Path) -> None:
    conditional = moved_run(tmp_path / "cond", "glow-cifar10-cond")
    for labels, said in (
        ("ab", "labels: got 'ab', expected a list of numbers or names of classes"),
        (3, "labels: got 3, expected a list"),
        ([1.5], "labels: got 1.5, expected a whole number"),
        ([None], "labels: got None, expected a whole number"),
        ([float("inf")], "labels: got inf, expected a whole number"),
        ([], "labels: got an empty list"),
    ):
        one_line(lambda labels=labels: conditional.sample(1, labels=labels, **CPU), said)
    samples = conditional.sample(3, labels=np.array([1, 2]), **CPU).labels
    assert samples is not None and samples.tolist() == [1, 2, 1]


def test_a_checkpoint_by_its_number(run: Run) -> None:
    (number,) = run.checkpoints()
    for given in (number, np.int64(number), str(number)):
        assert Loading(checkpoint=given).checkpoint == str(number)  # type: ignore[arg-type]
        assert run.sample(1, checkpoint=given, **CPU).images.shape[0] == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"path": "x"}, "path: got 'x', expected linear or sphere"),
        ({"path": "linear"}, "path: got linear without between"),
        ({"directions": "nope.npz"}, "directions: got some without strengths"),
        ({"seed": 5}, "seed: got 5 beside latents, which are not drawn"),
        ({"settings": EncodingConfig()}, "settings: got EncodingConfig("),
        ({"between": (0, 1, 2)}, "between: got 3 numbers, expected 2 whole numbers"),
        ({"between": 0}, "between: got 0, expected 2 whole numbers"),
        ({"pick": [0.5]}, "pick: got 0.5, expected a whole number"),
        ({"pick": 0}, "pick: got 0, expected whole numbers"),
        ({"strengths": 3}, "strengths: got 3"),
        ({"strengths": ["a"]}, "strengths: got ['a']"),
        ({"strengths": {"a": "x"}}, "strengths: got 'x' for a, expected a number, or two of them, from and to"),
        ({"strengths": {"a": (0, 1, 2)}}, "strengths: got (0, 1, 2) for a, expected a number"),
        ({"strengths": {"a": [[0], [1, 2]]}}, "strengths: got [[0], [1, 2]] for a, expected a number"),
    ],
)
def test_edits(run: Run, latents: Latents, given: dict[str, Any], said: str) -> None:
    one_line(lambda: run.edit(latents, **CPU, **given), said)


def test_two_numbers_of_any_kind_are_a_range() -> None:
    for given in ((-1, 1), [-1, 1], np.array([-1, 1])):
        edit = Edit({"a": given}, count=5)  # type: ignore[dict-item]
        assert edit.strengths == {"a": (-1.0, 1.0)} and edit.columns == 5
    assert Edit({"a": np.float32(0.5)}).strengths == {"a": 0.5}  # type: ignore[dict-item]


def test_numbers_of_numpy(run: Run, latents: Latents) -> None:
    for name, numbers in (("pick", [2, 0]), ("between", [0, 1])):
        found, expected = (run.edit(latents, **CPU, **{name: given}).images for given in (np.array(numbers), tuple(numbers)))
        assert np.array_equal(found, expected)


def test_latents_in_memory_are_as_those_in_files(run: Run, latents: Latents) -> None:
    def changed(change: Callable[[np.ndarray], np.ndarray]) -> Latents:
        return replace(latents, arrays=tuple(map(change, latents.arrays)))

    for given, said in (
        (None, "latents: got None, expected Latents, or the path of a file of them"),
        (latents.arrays[0], "latents: got array("),
        (Latents((), None), "latents: hold no array"),
        (changed(lambda array: array.astype(np.float64)), "latents: hold float64"),
        (changed(lambda array: array * np.float32(np.nan)), "latents: hold values that are not finite"),
        (changed(lambda array: array[:0]), "latents: hold arrays of 0"),
        (replace(latents, arrays=(latents.arrays[0][:2], *latents.arrays[1:])), "latents: hold arrays of 2, 3"),
        (replace(latents, labels=np.array([0])), "latents: have labels array([0]), expected 3 whole numbers"),
        (replace(latents, labels=np.zeros(3)), "latents: have labels"),
    ):
        one_line(lambda given=given: run.decode(given, **CPU), said)
    kept = run.decode(replace(latents, labels=[1, 2, 3]), **CPU).labels  # type: ignore[arg-type]
    assert kept is not None and kept.dtype == np.int64
    one_line(lambda: between(latents, 0, 1, 3, path="x"), "path: got 'x'")  # type: ignore[arg-type]
    one_line(lambda: between(latents, 0, 1, 2.5), "count: got 2.5")  # type: ignore[arg-type]
    coder = run.coder(**CPU)
    one_line(lambda: coder.error(pixels(2), latents), "images: got 2, expected 3, one for each of the latents")
    one_line(lambda: coder.open(pixels(2), classes="x"), "classes: got 'x', expected auto, folder")  # type: ignore[arg-type]


def test_a_coder_takes_paths_of_any_kind(run: Run, tmp_path: Path) -> None:
    coder = run.coder(**CPU)
    found = [coder.encode(pixels(2), out=out) for out in (str(tmp_path / "a.npz"), tmp_path / "b.npz")]
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert coder.decode(found[0], out=str(tmp_path / "a.png")).images.shape[0] == 2 and (tmp_path / "a.png").exists()


def test_averages(run: Run, tmp_path: Path) -> None:
    for given, said in (
        ({"length": None}, "length: got None, expected from 0.001 to 0.288"),
        ({"length": "0.1"}, "length: got '0.1'"),
        ({"length": 0.1, "at": "64"}, "at: got '64', expected a whole number"),
        ({"length": 0.1, "out": tmp_path / "a.txt"}, "expected a name that ends with .safetensors"),
    ):
        one_line(lambda given=given: run.average(**given), said)


def test_what_is_scored(run: Run) -> None:
    for given, said in (
        ({"metrics": "psnr"}, "metrics: got 'psnr', expected a list of names"),
        ({"metrics": 3}, "metrics: got 3"),
        ({"split": "test"}, "split: got 'test', expected train, validation, all"),
        ({"out": ""}, "out: got '', expected a path"),
        ({"keep_samples": ""}, "keep_samples: got '', expected a path"),
    ):
        one_line(lambda given=given: run.score(count=2, **CPU, **given), said)
    one_line(lambda: run.score(count=2.5, **CPU), "count: got 2.5, expected a whole number")  # type: ignore[arg-type]
    one_line(lambda: score(np.zeros((999, 8, 8, 3), np.uint8), count=3), "images: got array(")  # type: ignore[arg-type]
    one_line(lambda: score("a", 3), "reference: got 3, expected a path or a run")  # type: ignore[arg-type]
    one_line(lambda: score("", "a"), "images: got '', expected a path or a run")
    one_line(lambda: score("a", ""), "reference: got '', expected a path or a run")
    one_line(lambda: run.encode("", **CPU), "images: got '', expected a path")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"metrics": "bits-per-dim"}, "metrics: got 'bits-per-dim', expected a list of names"),
        ({"metrics": ()}, "metrics: got (), expected a list of names"),
        ({"count": 0}, "count: got 0, expected a whole number from 1 on"),
        ({"count": 2.5}, "count: got 2.5, expected a whole number from 1 on"),
        ({"seed": -1}, "seed: got -1, expected a whole number from 0 on"),
        ({"split": "test"}, "split: got 'test', expected train, validation, all"),
        ({"settings": {"likelihood": "ode"}}, "settings: dict are not the settings wanted here, BitsPerDimConfig"),
        ({"data": "photos"}, "data: got 'photos', expected a DataConfig"),
        ({"out": ""}, "out: got '', expected a path"),
    ],
)
def test_likelihoods(run: Run, given: dict[str, Any], said: str) -> None:
    one_line(lambda: run.evaluate(**(CPU | given)), said)


def test_how_many_are_encoded_and_decoded(run: Run, latents: Latents) -> None:
    coder = run.coder(**CPU)
    for count, said in ((1.5, "count: got 1.5, expected a whole number"), (4, "count: got 4, expected 1 to 3, the")):
        one_line(lambda count=count: coder.encode(pixels(3), count=count), said)
        one_line(lambda count=count: coder.decode(latents, count=count), said)


def test_runs_and_trainings(run: Run, tmp_path: Path) -> None:
    config = shrunk("glow-digits")
    for given in (None, 3, run):
        one_line(lambda given=given: open_run(given), "expected the directory of a run", CheckpointError)  # type: ignore[arg-type]
    for given in (None, "glow-digits", shrunk, config.model):
        one_line(lambda given=given: train(given, tmp_path / "x"), "config: got ")  # type: ignore[arg-type]
    one_line(lambda: train(config, tmp_path / "x", recipe=3), "recipe: got 3")  # type: ignore[arg-type]
    one_line(lambda: train(config, tmp_path / "x", init_from=run), "init_from: got <")  # type: ignore[arg-type]
    one_line(lambda: train(config, None), "run_dir: got None")  # type: ignore[arg-type]
    one_line(lambda: export_run(run.directory, "glow", None), "out: got None")  # type: ignore[arg-type]
    one_line(lambda: import_run(None, tmp_path / "x", program="glow"), "file: got None")  # type: ignore[arg-type]
    assert not (tmp_path / "x").exists()
