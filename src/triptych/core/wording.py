"""How messages say things."""

from __future__ import annotations


def counted(number: int | str, one: str, several: str | None = None) -> str:
    """A number and what it counts: 1 image, 2,000 images. A number that is written already is taken as it is.

    `several`: what stands behind all others than 1; None: `one` with an s. Both may go on: "image is", "images are".
    """
    written = number if isinstance(number, str) else f"{number:,}"
    return f"{written} {one if written == '1' else several or f'{one}s'}"
