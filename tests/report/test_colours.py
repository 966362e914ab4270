"""Colours of the lines: read on their cards, and told apart by readers with each kind of red-green blindness."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

STYLE = (Path(__file__).parents[2] / "src/triptych/report/templates/style.css").read_text()
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]])
"""Of linear sRGB, D65."""
EYES = {
    "normal": np.eye(3),
    "protanope": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deuteranope": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
}
"""On linear sRGB: Machado, Oliveira and Fernandes 2009, severity 1."""


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear sRGB."""
    ratio = XYZ @ np.clip(rgb, 0, 1) / XYZ.sum(1)
    x, y, z = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(a: str, b: str) -> float:
    """That of WCAG."""
    dark, light = sorted(float(XYZ[1] @ linear(colour)) for colour in (a, b))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_can_be_told_apart_and_from_their_card(scheme: str) -> None:
    block = STYLE.split("@media (prefers-color-scheme: dark)")[scheme == "dark"].split("}")[0]
    colours = dict(re.findall(r"--(c\d|card): (#[0-9a-f]{6})", block))
    assert len(colours) == 9
    lines = [colours[f"c{k}"] for k in range(8)]
    assert all(contrast(colour, colours["card"]) >= 4.5 for colour in lines)
    for name, matrix in EYES.items():
        seen = [lab(matrix @ linear(colour)) for colour in lines]
        nearest = min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2))
        assert nearest > 13, (name, nearest)


def test_happenings_have_room_and_printing_opens_what_is_folded() -> None:
    assert STYLE.index(".events.card { padding: 4px 16px; }") > STYLE.index(".card {"), "the rule for .events alone has no room"
    printed = STYLE.split("@media print {")[1]
    assert "break-inside: avoid" in printed and "details::details-content" in printed
    assert "beforeprint" in (Path(__file__).parents[2] / "src/triptych/report/templates/script.js").read_text()
