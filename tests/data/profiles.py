"""Colour profiles (ICC) made by hand: three primaries, or grey, and one exponent."""

from __future__ import annotations

import numpy as np

D50 = (0.9642, 1.0, 0.8249)
"""The white that all profiles are relative to."""
SRGB = np.array([[0.43607, 0.38515, 0.14307], [0.22249, 0.71687, 0.06061], [0.01392, 0.09708, 0.71410]])
"""From linear sRGB to XYZ relative to D50 (IEC 61966-2-1 by Bradford's adaptation)."""
ADOBE = np.array([[0.60974, 0.20528, 0.14919], [0.31111, 0.62567, 0.06322], [0.01947, 0.06087, 0.74457]])
"""Those of Adobe RGB (1998), wider in green."""
ADOBE_GAMMA = 563 / 256


def _fixed(value: float) -> bytes:
    return round(value * 65536).to_bytes(4, "big", signed=True)


def _xyz(values: object) -> bytes:
    return b"XYZ \0\0\0\0" + b"".join(_fixed(float(value)) for value in np.asarray(values))


def _profile(space: bytes, tags: dict[bytes, bytes]) -> bytes:
    tags = {b"wtpt": _xyz(D50), b"cprt": b"text\0\0\0\0none\0", b"desc": b"desc\0\0\0\0\0\0\0\x05test\0" + bytes(78)} | tags
    table, body, start = len(tags).to_bytes(4, "big"), b"", 128 + 4 + 12 * len(tags)
    for name, data in tags.items():
        table += name + (start + len(body)).to_bytes(4, "big") + len(data).to_bytes(4, "big")
        body += data + bytes(-len(data) % 4)
    size = (start + len(body)).to_bytes(4, "big")
    head = size + b"\0\0\0\0\x02\x10\0\0mntr" + space + b"XYZ " + bytes(12) + b"acsp" + bytes(28) + b"".join(map(_fixed, D50))
    return head.ljust(128, b"\0") + table + body


def _curve(gamma: float) -> bytes:
    return b"curv\0\0\0\0\0\0\0\x01" + round(gamma * 256).to_bytes(2, "big")


def rgb_profile(primaries: np.ndarray = ADOBE, gamma: float = ADOBE_GAMMA) -> bytes:
    """Of colours whose levels to the power gamma, times the matrix, are XYZ."""
    columns = {name + b"XYZ": _xyz(primaries[:, k]) for k, name in enumerate((b"r", b"g", b"b"))}
    return _profile(b"RGB ", columns | {name + b"TRC": _curve(gamma) for name in (b"r", b"g", b"b")})


def grey_profile(gamma: float) -> bytes:
    """Of greys whose level to the power gamma is their light."""
    return _profile(b"GRAY", {b"kTRC": _curve(gamma)})


def srgb_of_light(light: np.ndarray) -> np.ndarray:
    """Levels of sRGB, 0 to 255 with fractions, of linear light from 0 to 1 (IEC 61966-2-1)."""
    light = np.clip(light, 0, 1)
    return 255 * np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)


def srgb_of_rgb(levels: np.ndarray, primaries: np.ndarray = ADOBE, gamma: float = ADOBE_GAMMA) -> np.ndarray:
    """What levels (..., 3) of such a profile are in sRGB, 0 to 255 with fractions."""
    return srgb_of_light((levels / 255) ** gamma @ (np.linalg.inv(SRGB) @ primaries).T)
