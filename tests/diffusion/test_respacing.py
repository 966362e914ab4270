from __future__ import annotations

import contextlib

import pytest

from tests.diffusion import recorded
from triptych.core.errors import ConfigError
from triptych.diffusion.respacing import respaced_timesteps

MORE, _ = recorded.load("adm_more")


@pytest.mark.parametrize("spec", [key.removeprefix("respacing/") for key in MORE if key.startswith("respacing/")])
def test_matches_the_original(spec: str) -> None:
    assert list(respaced_timesteps(spec, total=1000)) == MORE[f"respacing/{spec}"].tolist()


def test_anchors() -> None:
    assert respaced_timesteps("250", total=1000)[:5] == (0, 4, 8, 12, 16)
    assert respaced_timesteps(250, total=1000)[-3:] == (991, 995, 999)
    assert respaced_timesteps("10,10,10", total=1000)[:5] == (0, 37, 74, 111, 148)
    assert len(respaced_timesteps("90,60,60,20,20", total=1000)) == 250


@pytest.mark.parametrize("spec", ["", None, 1000, "1000", "ddim1000"])
def test_all_steps(spec: str | int | None) -> None:
    assert respaced_timesteps(spec, total=1000) == tuple(range(1000))


def test_legal_strides() -> None:
    legal = []
    for count in range(2, 1001):
        with contextlib.suppress(ConfigError):
            legal.append(len(respaced_timesteps(f"ddim{count}", total=1000)))
    assert len(legal) == 62
    assert legal[-6:] == [167, 200, 250, 334, 500, 1000]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("ddim37", r'steps: got "ddim37", but no whole stride keeps 37 of 1000 steps; the nearest are "ddim36" or "ddim38"$'),
        ("ddim5000", '"ddim1000"'),
        ("1001", "1001 of the 1000 steps of a section; the nearest is 1000"),
        ("10,600", "600 of the 500 steps"),
        (",".join(["1"] * 1001), "1001 sections of 1000 steps"),
        ("ten", "'ten'"),
        ("10,,10", "'10,,10'"),
        ("0", "'0'"),
        ("-5", "'-5'"),
        ("ddim", "'ddim'"),
    ],
)
def test_errors_name_what_is_allowed(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        respaced_timesteps(spec, total=1000)
