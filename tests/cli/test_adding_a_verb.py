"""The example of docs/adding-a-verb.md: a verb by the page's two files and its line."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.pages import code_of, module_of
from tests.runs.glow import moved_run
from triptych.cli import main as command_line
from triptych.cli.main import main
from triptych.core.errors import DataError, Stopped
from triptych.runs import Run

PAGE = Path(__file__).parents[2] / "docs/adding-a-verb.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return moved_run(tmp_path_factory.mktemp("flow") / "run")


@pytest.fixture(autouse=True)
def verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The page's files as modules of Triptych, and its line; the module of what the verb does."""
    does, flags, line = code_of(PAGE)
    module = module_of(does, "triptych.runs.nearest", tmp_path, monkeypatch)
    module_of(flags, "triptych.cli.nearest", tmp_path, monkeypatch)
    verbs = dict(command_line.VERBS)
    exec(line, {"VERBS": verbs, "Verb": command_line.Verb})
    monkeypatch.setattr(command_line, "VERBS", verbs)
    return module


def test_the_example_finds_the_nearest_images(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep/near.npz"
    assert main(["nearest", str(run.directory), "--count", "5", "--batch-size", "2", "--device", "cpu", "--out", str(out)]) == 0
    with np.load(out) as file:
        numbers, distances = file["number"], file["distance"]
    samples = run.sample(5, device="cpu", batch_size=2).images.astype(float)
    train = run.config.data.open().train
    images = train.batch(np.arange(len(train))).images.astype(float)
    expected = np.sqrt(((samples[:, None] - images[None]) ** 2).mean((2, 3, 4)))
    assert numbers.tolist() == expected.argmin(1).tolist()
    np.testing.assert_allclose(distances, expected.min(1), rtol=1e-5)
    assert capsys.readouterr().out == f"5 samples compared in {out}; the nearest is {distances.min():.2f} levels off\n"


def test_the_example_goes_on_where_it_was_interrupted(run: Run, verb: ModuleType, tmp_path: Path) -> None:
    def stop(done: float, total: float) -> None:
        if done >= 2:
            raise KeyboardInterrupt

    asked = {"batch_size": 2, "device": "cpu"}
    with pytest.raises(Stopped, match="what was compared is kept"):
        verb.nearest(run, 5, out=tmp_path / "a.npz", progress=stop, **asked)
    told: list[tuple[float, float]] = []
    found = verb.nearest(run, 5, out=tmp_path / "a.npz", progress=lambda *now: told.append(now), **asked)
    assert told == [(2, 5), (4, 5), (5, 5)]
    whole = verb.nearest(run, 5, **asked)
    assert all(np.array_equal(found[name], whole[name]) for name in ("number", "distance"))


def test_the_example_refuses_before_it_reads_weights(run: Run, verb: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "_read", lambda *which: pytest.fail("the weights were read"))
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file"):
        verb.nearest(run, 5, out=tmp_path / "file/near.npz")


def test_the_example_takes_one_checkpoint_in_all_processes() -> None:
    assert "run.open_together(" in code_of(PAGE)[0] and "run.open(" not in PAGE.read_text("utf-8")


def test_the_flags_of_the_example(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nearest", str(run.directory), "--help"]) == 0
    page = capsys.readouterr().out
    assert page.index("--count") < page.index("--checkpoint") < page.index("--device")
    for words in (["nearest", "--help"], ["help", "nearest"]):
        assert main(words) == 0
        assert capsys.readouterr().out.startswith("usage: triptych nearest RUN [--count N]")
    assert main(["--help"]) == 0
    assert "triptych nearest RUN [--count N]" in capsys.readouterr().out
    for flag, value in (("--count", "0"), ("--out", "a.png"), ("--checkpoint", "newest")):
        assert main(["nearest", str(run.directory), flag, value]) == 2
        assert capsys.readouterr().err.startswith(f"triptych: error: {flag}: got ")
