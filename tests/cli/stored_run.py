"""A run as a training leaves it, for tests that only look at its settings."""

from __future__ import annotations

from pathlib import Path

from triptych.engine.run_directory import RunDirectory
from triptych.recipes.catalogue import load_recipe
from triptych.runs.document import RunDocument


def begun(place: Path, **train: object) -> None:
    """A run of adm-digits that has been trained, without weights."""
    config = load_recipe("adm-digits").updated({"train": {"precision": "float32", **train}})
    directory = RunDirectory(place)
    directory.create()
    directory.write_config(RunDocument(config, config.data.open().spec, "adm-digits").to_dict())
    directory.metrics_path.write_text("{}\n")
