"""docs/adding-a-model.md is true: followed to the letter it gives a model that is tested, trained, resumed and sampled."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from tests.pages import code_of, module_of
from tests.recipes import test_lengths
from triptych.core.batch import Batch, DataSpec
from triptych.core.model import Sampler, seeded_build
from triptych.core.rng import Rng
from triptych.recipes.config import RunConfig

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/adding-a-model.md"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module in docs/adding-a-model.md, under the name that the page gives it; its recipe is `example.recipe`."""
    model, recipe = code_of(PAGE)
    module = module_of(model, "triptych.flows.pixel_gaussian", tmp_path, monkeypatch)
    scope: dict[str, object] = {}
    exec(recipe, scope)
    module.recipe = scope["pixel_gaussian_digits"]  # type: ignore[attr-defined]
    return module


def test_the_recipe_of_the_example_is_one_as_the_others(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_lengths, "load_recipe", lambda name: example.recipe())
    test_lengths.test_a_run_is_looked_at_before_its_end("pixel-gaussian-digits")
    test_lengths.test_warm_up_and_averages_are_short_beside_the_run("pixel-gaussian-digits")


def test_the_example_of_adding_a_model_is_right(example: ModuleType) -> None:
    config = example.recipe()
    assert RunConfig.from_dict(config.to_dict()) == config
    model = seeded_build(config.model, DataSpec(image_size=4, channels=1), seed=0)
    assert isinstance(model, Sampler)
    with torch.no_grad():
        model.density.mean.fill_(0.25)
        model.density.log_std.fill_(-0.5)
    images = torch.rand(6, 1, 4, 4) * 2 - 1
    (phase,) = model.phases
    terms = model.loss(phase, Batch(images, None, torch.arange(6)), Rng(0, ("loss",), torch.arange(6)))
    expected = torch.distributions.Normal(0.25, math.exp(-0.5)).log_prob(images).sum((1, 2, 3))
    torch.testing.assert_close(terms.loss, -expected)
    rng = Rng(0, ("sample",), torch.arange(6))
    drawn = model.sample(rng, labels=None, settings=model.sampling)
    torch.testing.assert_close(model.sample(rng[2:5], labels=None, settings=model.sampling), drawn[2:5], rtol=0, atol=0)
    assert torch.equal(
        model.sample(rng, labels=None, settings=example.PixelGaussianSampling(temperature=0.0)), torch.full_like(drawn, 0.25)
    )


@pytest.mark.slow
def test_the_example_passes_the_contract_tests_and_is_a_recipe_of_the_command_line(tmp_path):
    copy_with_example(tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path / "src"), str(tmp_path)))}
    command = [sys.executable, "-m", "tests.contract.example_worker"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (passed,) = re.findall(r"(\d+) passed, \d+ deselected", done.stdout)
    assert int(passed) >= 8, "round trip, names, resume, phase, microbatches, batch sizes, samples of the run, opened model"
    noted = json.loads((tmp_path / "tests/contract/state_names.json").read_text())
    assert noted["pixel-gaussian-digits"]["parameters"] == 2 * 16 * 16
    assert re.search(r"  pixel-gaussian-digits +Independent Gaussian pixels", done.stdout), "`triptych recipes` lists it"
    assert "goes on" in done.stdout + done.stderr, "the second training resumes the first"
    samples = np.load(tmp_path / "samples.npz")["arr_0"]
    assert samples.shape == (100, 16, 16, 1)
    assert samples[:, 0, 0].mean() < 60 < samples[:, 8, 8].mean(), "digits are bright in the middle and dark in the corner"


def copy_with_example(root: Path) -> None:
    """Writes the package and its contract tests with the page's two blocks of code where the page puts them."""
    places = re.findall(r"`(src/triptych/(?:flows|recipes)/\w+\.py)`", PAGE.read_text("utf-8"))
    for folder in ("src", "tests"):
        # With what is compiled, but not what is being compiled.
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("golden", "earlier", "*.pyc.*"))
    shutil.copy(ROOT / "pyproject.toml", root)
    for place, block in zip(places, code_of(PAGE), strict=True):
        with (root / place).open("a", encoding="utf-8") as file:
            file.write(block)
