"""A source of images looked at as a whole, before it is trained on: `triptych data doctor`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from triptych.core.errors import ConfigError, DataError
from triptych.core.files import explain, write_text
from triptych.data.clips import ClipDataConfig
from triptych.data.colours import Colours
from triptych.data.config import DataConfig
from triptych.data.crew import made_of
from triptych.data.examination import FORMAT as LOOKED
from triptych.data.examination import Examination, concluded
from triptych.data.looking import (
    Look,
    Wanted,
    fatal,
    look_at,
    look_at_flow,
    look_at_landmarks,
    look_at_map,
    look_at_points,
    look_at_pose,
    packed,
    unread,
)
from triptych.data.pairs import PairedDataConfig
from triptych.data.skipping import FORMAT as SKIPPED
from triptych.data.skipping import write_skip
from triptych.data.subjects import Subjects, open_subjects
from triptych.engine.distributed import open_world
from triptych.engine.progress import Watch, unwatched
from triptych.report.data_page import write_data_page
from triptych.runs.files import check_json, check_kept, check_page, check_place
from triptych.runs.work import Part, Within, Work, done

PIECE = 128
"""Images that a process looks at before it says what it found."""
_VERSION = 4


def examine(
    config: DataConfig,
    *,
    against: str | Path | None = None,
    sized: bool = True,
    workers: int | None = None,
    out: str | Path | None = None,
    page: str | Path | None = None,
    quarantine: str | Path | None = None,
    progress: Watch = unwatched,
) -> Examination:
    """What there is to say of the images that `config` describes; every one is decoded.

    `against`: other images, which ought to be none of these. `sized`: whether images below `config.image_size` are a fault. `workers`: how
    many processes look; None: one for each CPU core. `out`: where all of it is written as JSON;
    an interrupted call with the same `out` goes on where it was. `page`: where a page with the pictures concerned is written. `quarantine`:
    where those are listed that should be left out. Raises ConfigError or DataError where there are no such images, or nothing can be
    written.
    """
    places = [Path(place) for place in (out, page, quarantine) if place is not None]
    for place in places:
        check_place(place)
        check_kept(place, config.path or "")
        if config.skip is not None:
            check_kept(place, config.skip)
    if page is not None:
        check_page(Path(page))
    for place, form in ((out, LOOKED), (quarantine, SKIPPED)):
        if place is not None:
            check_json(Path(place), lambda found, form=form: found.get("format") == form)
    if len({place.absolute() for place in places}) < len(places):
        raise ConfigError("", "--out, --page and --quarantine name the same file; give each its own")
    subjects = open_subjects(config)
    others = None if against is None else _against(against)
    left_out = np.append(~subjects.kept(), np.zeros(0 if others is None else len(others), dtype=bool))
    width = config.width if isinstance(config, PairedDataConfig) else None
    enlarge = config.enlarge or (isinstance(config, ClipDataConfig) and config.cutting_out is not None)
    wanted = Wanted(config.image_size if sized else None, width if sized else None, enlarge, Colours.of(config))
    work = _work(subjects, others, wanted, left_out, workers=os.cpu_count() or 1 if workers is None else workers)
    found = done(
        work,
        None if out is None else Path(out),
        world=open_world("cpu"),
        progress=progress,
        kept="looked at",
        conclude=lambda parts: concluded(subjects, others, wanted, parts, left_out=left_out),
        write=lambda place, found: write_text(place, json.dumps(found.document(), indent=1) + "\n"),
    )
    _written(page, lambda place: write_data_page(place, found))
    _written(quarantine, lambda place: write_skip(place, found.quarantine()))
    return found


def _against(path: str | Path) -> Subjects:
    """The images that others are compared with, all of them on one side."""
    subjects = open_subjects(DataConfig(path=str(path), labels="none", validation_fraction=0.0))
    if subjects.complaints:
        raise DataError(f"--against: {subjects.complaints[0].why}")
    return subjects


def _work(subjects: Subjects, others: Subjects | None, wanted: Wanted, left_out: np.ndarray, *, workers: int) -> Work:
    """The work of looking at every image of both."""
    own = len(subjects)

    def piece(items: range, ended: Mapping[int, str], began: Callable[[int], None]) -> dict[str, np.ndarray]:
        looks = []
        for item in items:
            began(item)
            source, number = (subjects, item) if item < own or others is None else (others, item - own)
            looks.append(_look(source, number, wanted, ended.get(item), passed_over=bool(left_out[item])))
        return packed(looks, items.start)

    def make(items: Sequence[int], within: Within) -> Iterator[Part]:
        pieces = (range(first, min(first + PIECE, items[-1] + 1)) for first in range(items[0], items[-1] + 1, PIECE))
        yield from made_of(pieces, piece, workers=workers)

    identity = [
        "doctor",
        _VERSION,
        str(subjects.place.absolute()),
        subjects.fingerprint(),
        "" if others is None else others.fingerprint(),
        repr(wanted),
        repr([(part.prefix, part.kind, part.num_classes) for part in subjects.parts]),
        hashlib.sha256(left_out.tobytes()).hexdigest(),
    ]
    return Work(len(left_out), identity, make)


def _look(subjects: Subjects, number: int, wanted: Wanted, ended: str | None, *, passed_over: bool) -> Look:
    """What there is to say of an item."""
    if passed_over:
        return Look()
    if ended is not None:
        return fatal(ended)
    part = subjects.part(number)
    try:
        value = subjects.read(number)
    except Exception as error:  # as many types as there are kinds of damage
        return unread(error)
    match part.kind:
        case "map":
            return look_at_map(value, num_classes=part.num_classes)
        case "points":
            return look_at_points(value)
        case "limbs" | "densepose":
            return look_at_pose(value, part.kind)
        case "flow":
            return look_at_flow(value)
        case "landmarks":
            return look_at_landmarks(value)
        case _:
            pass
    return look_at(value, subjects.name(number), wanted, counted=part.kind == "target")


def _written(place: str | Path | None, write: Callable[[Path], object]) -> None:
    if place is None:
        return
    try:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        write(Path(place))
    except OSError as error:
        raise DataError(f"cannot write {place}: {explain(error)}") from error
