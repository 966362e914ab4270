"""The tables of programs and the folders of interop name one another, and no folder is heavy to import."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from triptych import interop
from triptych.core.errors import CheckpointError, ConfigError, DataError
from triptych.core.ramp import Ramp
from triptych.engine.config import AverageConfig
from triptych.interop.programs import PROGRAMS, TARGETS, ImportRequest, exported, folder_of, going_on, imported
from triptych.recipes.catalogue import load_recipe
from triptych.runs import import_run

FOLDERS = {path.parent.name for path in Path(interop.__file__).parent.glob("*/__init__.py")}


def test_every_folder_is_of_a_program() -> None:
    assert {folder_of(name) for name in (*PROGRAMS, *TARGETS)} == FOLDERS


@pytest.mark.parametrize("program", PROGRAMS)
def test_importers(program: str) -> None:
    assert callable(importlib.import_module(f"triptych.interop.{folder_of(program)}.importer").imported)


@pytest.mark.parametrize("program", TARGETS)
def test_exporters(program: str) -> None:
    assert callable(importlib.import_module(f"triptych.interop.{folder_of(program)}.exporter").exported)


def test_other_programs() -> None:
    with pytest.raises(ConfigError, match="program: got 'glo', expected guided-diffusion, .*; did you mean \"glow\""):
        imported(ImportRequest(Path("x"), None, "glo", None, None, print))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="to: got 'glow', expected one of guided-diffusion, diffusers, nvidia, sit"):
        exported("glow", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", ["file", "ema", "checkpoint", "data", "autoencoder"])
def test_files_lie_on_this_machine(setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address keeps both of its slashes in the message; ~ is the home folder; another thing than a path is named."""

    def given(value: Any) -> dict[str, Any]:
        return {"file": tmp_path / "x.pkl", "run_dir": tmp_path / "run", "program": "nvidia"} | {setting: value}

    with pytest.raises(DataError, match=r"^https://example\.org/a/x\.pkl: an address, where a path on this machine is expected; copy"):
        import_run(**given("https://example.org/a/x.pkl?key=x"))
    monkeypatch.setenv("HOME", str(tmp_path))
    if setting in ("file", "autoencoder"):  # nvidia's pickles come without the others
        with pytest.raises(CheckpointError, match=f"{tmp_path}/y"):
            import_run(**given("~/y"))
    with pytest.raises(ConfigError, match=f"^{setting}: got 3, expected a path"):
        import_run(**given(3))
    assert not (tmp_path / "run").exists()


def test_the_averages_of_an_imported_run_go_on() -> None:
    """From the first step on at the rate that they have at the end of a run, under the names that they had."""
    averages = (
        AverageConfig(half_life=500, ramp_up=0.05, start=80),
        AverageConfig(half_life=Ramp(start=0, end=1000, images=4000)),
        AverageConfig(rate=0.99, warmup=True),
        AverageConfig(length=0.1),
    )
    recipe = load_recipe("adm-digits")
    before = replace(recipe, train=replace(recipe.train, ema_rates=(0.9999,), ema_start=64, averages=averages))
    after = going_on(before)
    assert [average.name for average in after.train.all_averages] == [average.name for average in before.train.all_averages]
    rates = [average.rate_at(0, images=16) for average in after.train.all_averages]
    assert rates == pytest.approx([0.9999, 0.5 ** (16 / 500), 0.5 ** (16 / 1000), 0.99, 0.0])
    assert (after.train.ema_start, after.train.averages[0].start) == (0, 0)
    assert after.train.averages[3] == averages[3] and replace(after, train=before.train) == before


def test_names_that_scripts_outside_rely_on() -> None:
    from triptych.interop.glow import from_variables
    from triptych.interop.guided_diffusion import from_state_dict
    from triptych.interop.imaginaire import from_state_dict as from_imaginaire

    assert list(inspect.signature(from_state_dict).parameters) == ["weights", "flags", "program"]
    assert list(inspect.signature(from_variables).parameters) == ["weights", "flags"]
    assert inspect.signature(from_imaginaire).parameters["edges"].default is True
    with pytest.raises(ImportError, match="cannot import name 'from_weights'"):
        from triptych.interop.glow import from_weights  # noqa: F401


def test_the_flags_of_all_programs_come_without_pytorch() -> None:
    folders = ", ".join(f"triptych.interop.{folder}" for folder in sorted(FOLDERS))
    flags = ", ".join(f"triptych.interop.{folder}.flags" for folder in sorted(FOLDERS - {"diffusers", "dit", "nvidia"}))
    words = f"import sys, triptych.interop.programs, {folders}, {flags}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words]).returncode == 0
