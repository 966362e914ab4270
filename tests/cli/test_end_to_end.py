"""The commands as a user gives them, in processes of their own, on a model that is small enough."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triptych.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("end to end")]  # one process makes the run that they share

SMALL = shlex.split(
    "--train.batch-size 16 --train.sample-count 10 --train.validate-images 16 --data.image-size 8 "
    "--model.network.num-channels 32 --model.network.attention-resolutions 4 "
    "--model.network.dropout 0 --model.sampling.steps 2 --data.workers 0 --device cpu"
)


def triptych(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "triptych", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    assert done.returncode == 0, done
    return done


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained on 32 images and then, by the same command with a larger total, on 48."""
    directory = tmp_path_factory.mktemp("runs") / "digits"
    train = ("train", "adm-digits", "--run", str(directory), *SMALL, "--train.total-images")
    triptych(*train, "32")
    assert main([*train, "48"]) == 0
    return directory


def test_train_and_go_on(run: Path) -> None:
    assert json.loads((run / "config.json").read_text())["train"]["total_images"] == 48
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["000000032", "000000048"]
    log = (run / "log.txt").read_text()
    assert "goes on at 32 images" in log and "train.total_images changed from 32 to 48" in log


def test_sample_to_every_kind_of_output(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--count", "5", "--labels", "3,7", "--steps", "3", "--sampler", "ddim", "--seed", "1", "--device", "cpu")
    shown = triptych("sample", str(run), *options, "--out", str(tmp_path / "grid.png")).stdout
    assert shown == f"5 images in {tmp_path / 'grid.png'}\n"
    for out in ("samples.npz", "folder"):
        assert main(["sample", str(run), *options, "--out", str(tmp_path / out)]) == 0
        assert capsys.readouterr().out == f"5 images in {tmp_path / out}\n"
    with np.load(tmp_path / "samples.npz") as arrays:
        images, labels = arrays["arr_0"], arrays["arr_1"]
    assert images.dtype == np.uint8 and images.shape == (5, 8, 8, 1)
    assert labels.tolist() == [3, 7, 3, 7, 3]
    for image, path in zip(images, sorted((tmp_path / "folder").glob("*.png")), strict=True):
        assert np.array_equal(np.asarray(Image.open(path)), image[..., 0])
    assert Image.open(tmp_path / "grid.png").size[0] >= 2 * 8


def test_mistakes_name_what_is_wrong(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (("sample", str(run), "--labels", "11"), "11"),
        (("sample", str(run), "--checkpoint", "7"), "latest, best"),
        (("sample", str(run), "--weights", "ema-0.5"), "ema-0.999"),
        (("sample", str(run.parent / "none")), "config.json"),
        (("train", "adm-digits", "--run", str(run), *SMALL, "--model.network.num-channels", "64"), "--model.network.num-channels: got 64"),
        (("train", "adm-photos64", "--run", str(run.parent / "new"), "--data.path", "/none/at/all"), "/none/at/all"),
    ):
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("triptych: error: ") and words in line, line
    assert not (run.parent / "new").exists()
