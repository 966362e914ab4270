"""Which of the training timesteps a sampler uses, in guided-diffusion's notation.

""        all of them
"N"       N, evenly spread over the whole range, the first and the last included
"a,b,c"   the range is cut into equal sections, the first one nearest to the data; a, b, c steps are spread over each
"ddimN"   N at a whole stride, 0 included
"""

from __future__ import annotations

from triptych.core.errors import ConfigError

_GRAMMAR = 'a whole number from 1 "N", one for each section "a,b,c", or "ddimN"'


def respaced_timesteps(spec: str | int | None, *, total: int) -> tuple[int, ...]:
    """The timesteps that `spec` keeps of 0..total-1, ascending; None: all. Raises ConfigError, of the setting "steps"."""
    text, counts = _text(spec), counts_of(spec)
    if not counts:
        return tuple(range(total))
    return _strided(counts[0], total) if text.startswith("ddim") else _sections(counts, text, total)


def counts_of(spec: str | int | None) -> list[int]:
    """The numbers in `spec`; none where it is empty. Raises ConfigError, of the setting "steps", for what is no such text."""
    text = _text(spec)
    parts = [text[4:]] if text.startswith("ddim") else text.split(",") if text else []
    return [_count(part, text) for part in parts]


def _text(spec: str | int | None) -> str:
    return "" if spec is None else str(spec).strip()


def _count(part: str, text: str) -> int:
    if not part.strip().isdecimal() or int(part) == 0:
        raise ConfigError("steps", f"got {text!r}, expected {_GRAMMAR}")
    return int(part)


def _strided(count: int, total: int) -> tuple[int, ...]:
    for stride in range(1, total + 1):
        kept = range(0, total, stride)
        if len(kept) == count:
            return tuple(kept)
    legal = sorted({-(-total // stride) for stride in range(1, total + 1)})
    below, above = [n for n in legal if n < count][-1:], [n for n in legal if n > count][:1]
    names = " or ".join(f'"ddim{n}"' for n in below + above)
    raise ConfigError("steps", f'got "ddim{count}", but no whole stride keeps {count} of {total} steps; the nearest are {names}')


def _sections(counts: list[int], text: str, total: int) -> tuple[int, ...]:
    if len(counts) > total:
        raise ConfigError("steps", f"got {text!r}, {len(counts)} sections of {total} steps")
    size, longer = divmod(total, len(counts))
    kept: list[int] = []
    start = 0
    for section, count in enumerate(counts):
        length = size + (section < longer)
        if count > length:
            raise ConfigError("steps", f"got {text!r}, which asks for {count} of the {length} steps of a section; the nearest is {length}")
        stride = (length - 1) / (count - 1) if count > 1 else 1.0
        position = 0.0
        for _ in range(count):  # accumulated as the original does, so that its rounding comes out
            kept.append(start + round(position))
            position += stride
        start += length
    return tuple(kept)
