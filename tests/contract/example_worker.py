"""What docs/adding-a-model.md promises, in a copy of the package with its example: the contract tests, the command line, a resume."""

from __future__ import annotations

import sys

import pytest

from triptych.cli.main import main

TRAIN = ("train", "pixel-gaussian-digits", "--run", "run", "--device", "cpu", "--data.workers", "0", "--train.sample-count", "0")


def contract() -> int:
    """The exit code of the contract tests of the example; its tensors' names are noted first, as the page says."""
    names = "tests/contract/test_recipes.py::test_state_names_are_unchanged[pixel-gaussian-digits]"
    noted = pytest.main(["-q", "-p", "no:cacheprovider", "--write-state-names", names])
    files = ["tests/contract/test_recipes.py", "tests/contract/test_opened.py"]
    return noted or pytest.main(["-q", "-p", "no:cacheprovider", "-k", "pixel-gaussian", *files])


def command_line() -> int:
    """The exit code of the first command that fails."""
    trains = ((*TRAIN, "--train.total-images", images) for images in ("3200", "6400"))
    sample = ("sample", "run", "--count", "100", "--temperature", "0.5", "--device", "cpu", "--out", "samples.npz")
    return next((code for words in (("recipes",), *trains, sample) if (code := main(words))), 0)


if __name__ == "__main__":
    sys.exit(contract() or command_line())
