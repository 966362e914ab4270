"""Feature spaces: what the networks say of images, and what becomes of weights that cannot be used."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from triptych.core.errors import ConfigError
from triptych.evaluation.feature_space import SPACES, open_space


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def test_random_space() -> None:
    embedder = open_space("random", device="cpu")
    found = embedder(images(3, 20, 33, 3))
    assert found["features"].shape == (3, 64) and found["features"].dtype == torch.float32
    assert embedder.outputs == ("features",) and not embedder.comparable
    assert embedder.identity == {"network": "random", "sha256": None, "resize": "clean", "side": 64}
    assert torch.equal(open_space("random", device="cpu")(images(3, 20, 33, 3))["features"], found["features"])


def test_grey_is_three_times_the_same_channel() -> None:
    grey = images(2, 40, 30, 1)
    embedder = open_space("random", device="cpu")
    torch.testing.assert_close(embedder(grey)["features"], embedder(grey.expand(-1, -1, -1, 3))["features"])


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r'^features: unknown feature space "randm"; did you mean "random"\? \(there is '):
        open_space("randm")
    with pytest.raises(ConfigError, match=r"^features_resize: got clear, expected one of tensorflow, clean, bicubic"):
        open_space("random", resize="clear")


@pytest.mark.parametrize("name", [name for name in SPACES if SPACES[name].file])
def test_missing_weights_name_file_place_and_remedies(name, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path))
    with pytest.raises(ConfigError) as error:
        open_space(name)
    start = f"features: {name} needs the file {SPACES[name].file}, which is not in {tmp_path}/networks: get it from "
    assert str(error.value).startswith(start)
    assert str(error.value).endswith("or name it with --features-weights")
