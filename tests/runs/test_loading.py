"""The settings that all verbs over a run share, and the model that is opened with them."""

from __future__ import annotations

import functools
import typing
from pathlib import Path

import numpy as np
import pytest

from tests.runs.glow import moved_run, pixels
from tests.runs.translators import MirrorConfig, write_images
from triptych.cli import encode, evaluate, export, sample, settings, translate
from triptych.cli.main import main
from triptych.core.config import field_types
from triptych.core.errors import ConfigError
from triptych.flows.glow import GlowConfig
from triptych.runs import Run, open_run
from triptych.runs.loading import Loading, LoadingKeywords, WeightsChoice


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return moved_run(tmp_path_factory.mktemp("flow") / "run")


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The configurations whose models were built."""
    built: list[str] = []
    for cls in (MirrorConfig, GlowConfig):

        @functools.wraps(cls.build)  # which says what it builds
        def build(self, spec, *, cls=cls, build=cls.build):
            built.append(cls.__name__)
            return build(self, spec)

        monkeypatch.setattr(cls, "build", build)
    return built


def test_the_keywords_of_a_verb_are_the_settings() -> None:
    assert typing.get_type_hints(LoadingKeywords) == field_types(Loading)
    options = sample.SampleOptions(count=3, checkpoint="8", weights="raw", batch_size=2, precision="bf16", device="cpu")
    assert options.keywords() == {
        "checkpoint": "8",
        "weights": "raw",
        "ema_length": None,
        "batch_size": 2,
        "precision": "bf16",
        "device": "cpu",
    }
    assert Loading(**options.keywords()) == Loading(checkpoint="8", weights="raw", batch_size=2, precision="bf16", device="cpu")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"checkpoint": "newest"}, "checkpoint: got 'newest', expected latest, best or a number of images"),
        ({"batch_size": 0}, "batch_size: got 0, expected at least 1"),
        ({"ema_length": 0.0005}, "ema_length: got 0.0005, expected from 0.001 to 0.288"),
        ({"ema_length": 0.3}, "ema_length: got 0.3, expected from 0.001 to 0.288"),
    ],
)
def test_what_is_refused_is_refused_once_for_all_verbs(given: dict, line: str, flow: Run) -> None:
    for verb in (lambda: flow.sample(1, **given), lambda: flow.evaluate(**given), lambda: flow.coder(**given), lambda: Loading(**given)):
        with pytest.raises(ConfigError, match=line):
            verb()


@pytest.mark.parametrize(
    ("options", "shared"),
    [
        (sample.SampleOptions, Loading),
        (translate.TranslateOptions, Loading),
        (evaluate.EvaluateOptions, Loading),
        (encode.EncodeOptions, Loading),
        (export.ExportOptions, WeightsChoice),
    ],
)
def test_on_a_page_of_help_a_verbs_own_flags_come_first(options: type[Loading], shared: type[WeightsChoice]) -> None:
    names = [name for name, _ in settings._listed(options)]
    assert names[-len(field_types(shared)) :] == list(field_types(shared))
    assert sorted(names) == sorted(field_types(options)) and set(settings.field_docs(options)) >= set(names)


def test_translate_builds_the_model_once(styled: Run, builds: list[str], tmp_path: Path) -> None:
    write_images(tmp_path / "in", ["a.png", "b.png"], size=(16, 16), channels=1)
    for out in ("folder", "a.npz"):
        asked = [str(styled.directory), str(tmp_path / "in"), "--out", str(tmp_path / out), "--device", "cpu", "--temperature", "0.5"]
        assert main(["translate", *asked]) == 0
        assert builds == ["MirrorConfig"]
        builds.clear()
    run = open_run(styled.directory)
    assert run.translation == run.outline.translation
    run.translate(tmp_path / "in", device="cpu")
    assert builds == ["MirrorConfig"]


def test_every_verb_builds_the_model_once(flow: Run, builds: list[str], tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", pixels(2))
    commands = [
        ["sample", "--count", "1", "--out", str(tmp_path / "a.png")],
        ["encode", str(tmp_path / "images.npy"), "--out", str(tmp_path / "latents.npz")],
        ["sample", "--from", str(tmp_path / "latents.npz"), "--out", str(tmp_path / "b.png")],
        ["evaluate", "--count", "1", "--out", str(tmp_path / "a.json")],
    ]
    for verb, *arguments in commands:
        assert main([verb, str(flow.directory), *arguments, "--device", "cpu"]) == 0
        assert builds == ["GlowConfig"], verb
        builds.clear()


def test_an_opened_model_is_its_own(flow: Run) -> None:
    """The model that one call opened keeps its weights when another call opens the run."""
    first = flow.open(Loading(device="cpu"))
    before = {name: tensor.clone() for name, tensor in first.model.state_dict().items()}
    second = flow.open(Loading(device="cpu", batch_size=3))
    assert first.model is not second.model and flow.outline is not second.model
    for tensor in second.model.parameters():
        tensor.data.zero_()
    assert all(bool((tensor == before[name]).all()) for name, tensor in first.model.state_dict().items())
    assert second.batch_size() == second.batch_size((999, 999)) == 3


def test_how_many_images_fit(flow: Run) -> None:
    opened, (height, width) = flow.open(Loading(device="cpu")), flow.spec.height_and_width
    whole = flow.config.train.batch_size
    assert opened.batch_size() == min(64, whole)
    assert opened.batch_size((2 * height, width)) == max(1, whole // 2) and opened.batch_size((1000 * height, width)) == 1
    assert opened.batch_size((1, 1)) == 64
