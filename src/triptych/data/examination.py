"""What was found out of a whole source of images: faults, duplicates, classes, statistics; and whether it can be trained on."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from triptych.core.wording import counted
from triptych.data import duplicates
from triptych.data.cut import Value
from triptych.data.faults import BY_NAME, FAULTS, NEAR_BITS, NEAR_LEVELS, UNBALANCED, Fault, bit
from triptych.data.looking import ROW, Wanted
from triptych.data.subjects import AGAINST, SIDES, TRAIN, UNUSED, Part, Subjects

FORMAT = "triptych-doctor-1"
_MAX_LEVEL = 127.5
_FITTING = (32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Finding:
    """The images that have a fault."""

    fault: Fault
    items: np.ndarray
    "Their numbers, ascending; none where the fault is one of the source as a whole, or of clips."
    groups: Sequence[np.ndarray] = ()
    "Of duplicates: the numbers of those that belong together, some of them of `--against`."
    why: Mapping[int, str] = field(default_factory=dict)
    "What is to be said of an image, by its number."
    general: Sequence[str] = ()
    "What is to be said of the source, or of each clip that has it."

    @property
    def count(self) -> int:
        """How many images have it; of a fault of the source, how many there are; of clips, how many have it."""
        return len(self.items) or len(self.general)

    def reason(self, item: int) -> str:
        """The fault, and what is to be said of an image."""
        said = self.why.get(item)
        return self.fault.title + (f" ({said})" if said else "")


@dataclass(frozen=True)
class ClassCount:
    """How many images a class has."""

    name: str
    training: int
    held_out: int


@dataclass(frozen=True)
class Examination:
    """All that was found out of a source, and of another one (`against`)."""

    subjects: Subjects
    against: Subjects | None
    wanted: Wanted
    rows: np.ndarray
    "What was found out of each image of both, one after the other: ROW (n,)."
    left_out: np.ndarray
    "Which of them were not looked at, as they are to be left out: bool (n,)."
    findings: list[Finding]
    statistics: dict[str, float | int]
    "mean and std of the pixels of training images in [-1, 1] (std is EDM's sigma_data), flat: the share of flat images."
    sizes: dict[str, int]
    "Least, median and greatest short side, and how many images have one of at least 32, 64, ..."
    classes: list[ClassCount]
    kinds: dict[str, int]
    "Images by format and mode."
    notes: list[str]

    @property
    def fit(self) -> bool:
        """Whether a training on all images would come to its end."""
        return not any(finding.fault.stops for finding in self.findings)

    def count(self, *sides: int) -> int:
        """How many images to be learned are on these sides; of pairs, how many pairs."""
        chosen = np.isin(self._sides(), sides) & _targets(self.subjects, self.against) & ~self.left_out
        return int(chosen.sum())

    def side(self, item: int) -> str:
        """On which side an image is."""
        return SIDES[int(self._sides()[item])]

    def key(self, item: int) -> str:
        """The path of an image within its source."""
        subjects, number = self._place(item)
        return subjects.key(number)

    def read(self, item: int) -> Value:
        """An image as it is stored. Raises DataError or OSError."""
        subjects, number = self._place(item)
        return subjects.read(number)

    def part(self, item: int) -> Part:
        """The type of an image."""
        subjects, number = self._place(item)
        return subjects.part(number)

    def quarantine(self) -> dict[str, str]:
        """What is to be left out, by its key, and why: what would stop a training, and of exact duplicates all but one.

        Of pairs it is the key of the image to be made, and duplicates stay; those that lack a partner, or have two, have to be mended.
        Where an image is one of `--against` too, none stays. Of clips nothing can be left out.
        """
        why: dict[str, str] = {}
        if not self.subjects.skips:
            return why
        leaders: dict[int, int] = {}
        for pair in () if self.subjects.pairs is None else self.subjects.pairs.tolist():
            leaders |= dict.fromkeys(pair, pair[0])
        for finding in self.findings:
            if finding.fault.name in ("partner", "double"):
                continue
            if finding.fault.stops:
                items: list[int] = finding.items.tolist()
                for item in items:
                    why.setdefault(self.key(leaders.get(item, item)), finding.reason(item))
            elif finding.fault.name.startswith("copies") and self.subjects.pairs is None:
                for group in finding.groups:
                    kept, *others = group[np.argsort((self._sides()[group] + 1) % len(SIDES), kind="stable")].tolist()
                    for item in others:
                        if self.side(item) != SIDES[AGAINST]:
                            why.setdefault(self.key(item), f"the same pixels as {self.key(kept)}")
        return why

    def document(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "format": FORMAT,
            "source": str(self.subjects.place),
            "kind": self.subjects.source,
            "against": None if self.against is None else str(self.against.place),
            "image_size": self.wanted.image_size,
            "fit": self.fit,
            "images": {SIDES[side]: self.count(side) for side in range(len(SIDES))} | {"left out": int(self.left_out.sum())},
            "statistics": self.statistics,
            "short_sides": self.sizes,
            "kinds": self.kinds,
            "classes": [{"name": each.name, "training": each.training, "held out": each.held_out} for each in self.classes],
            "notes": self.notes,
            "findings": [self._said(finding) for finding in self.findings],
        }

    def _said(self, finding: Finding) -> dict[str, Any]:
        fault = finding.fault
        said: dict[str, Any] = {"fault": fault.name, "stops": fault.stops, "title": fault.title, "advice": fault.advice}
        said["count"] = finding.count
        if finding.general:
            said["said"] = list(finding.general)
        if finding.groups:
            said["groups"] = [[self._named(item) for item in group.tolist()] for group in finding.groups]
        elif len(finding.items):
            said["images"] = [
                self._named(item) | ({"why": finding.why[item]} if item in finding.why else {}) for item in finding.items.tolist()
            ]
        return said

    def _named(self, item: int) -> dict[str, str]:
        return {"key": self.key(item), "side": self.side(item)}

    def _sides(self) -> np.ndarray:
        return _sides(self.subjects, self.against)

    def _place(self, item: int) -> tuple[Subjects, int]:
        if item < len(self.subjects) or self.against is None:
            return self.subjects, item
        return self.against, item - len(self.subjects)


def concluded(
    subjects: Subjects,
    against: Subjects | None,
    wanted: Wanted,
    parts: Iterable[tuple[Sequence[int], Mapping[str, np.ndarray]]],
    *,
    left_out: np.ndarray,
) -> Examination:
    """What is to be said of a source, out of what was found out of each image. `parts`: see `looking.packed`."""
    rows = np.zeros(len(left_out), ROW)
    reasons: dict[str, dict[int, str]] = {}
    kinds: Counter[str] = Counter()
    for items, arrays in parts:
        rows[np.asarray(items)] = arrays["rows"]
        said = json.loads(arrays["said"].tobytes())
        kinds.update(said["kinds"])
        for item, by_fault in said["reasons"].items():
            for fault, why in by_fault.items():
                reasons.setdefault(fault, {})[int(item)] = why
    sides, targets = _sides(subjects, against), _targets(subjects, against)
    usable = targets & rows["decoded"] & ~left_out
    own = np.arange(len(rows)) < len(subjects)
    notes = list(subjects.notes)
    read = [*_single(rows, own, usable, reasons, notes), *_sizes_of_pairs(subjects, rows, left_out)]
    findings = [*_complaints(subjects, left_out), *_excused(read, sides == UNUSED)]
    findings += _duplicates(rows, sides, usable)
    classes = _classes(subjects, left_out)
    findings += _balance(classes)
    order = {fault.name: k for k, fault in enumerate(FAULTS)}
    return Examination(
        subjects,
        against,
        wanted,
        rows,
        left_out,
        sorted(_united(findings), key=lambda finding: order[finding.fault.name]),
        _statistics(rows[usable & own & (sides == TRAIN)], rows[usable & own]),
        _short_sides(rows[usable & own]),
        classes,
        dict(kinds.most_common()),
        notes,
    )


def _sides(subjects: Subjects, against: Subjects | None) -> np.ndarray:
    others = np.full(0 if against is None else len(against), AGAINST, dtype=np.uint8)
    return np.concatenate([subjects.sides, others])


def _targets(subjects: Subjects, against: Subjects | None) -> np.ndarray:
    return np.concatenate([subjects.targets(), np.zeros(0, dtype=bool) if against is None else against.targets()])


def _complaints(subjects: Subjects, left_out: np.ndarray) -> Iterator[Finding]:
    for complaint in subjects.complaints:
        if complaint.item is None:
            yield Finding(BY_NAME[complaint.fault], np.zeros(0, dtype=np.int64), general=[complaint.why])
        elif not left_out[complaint.item]:
            yield Finding(BY_NAME[complaint.fault], np.array([complaint.item]), why={complaint.item: complaint.why})


def _united(findings: Iterable[Finding]) -> Iterator[Finding]:
    """One finding for each fault."""
    by_fault: dict[str, list[Finding]] = {}
    for finding in findings:
        by_fault.setdefault(finding.fault.name, []).append(finding)
    for same in by_fault.values():
        yield (
            same[0]
            if len(same) == 1
            else Finding(
                same[0].fault,
                np.unique(np.concatenate([each.items for each in same])),
                [group for each in same for group in each.groups],
                {item: why for each in same for item, why in each.why.items()},
                [line for each in same for line in each.general],
            )
        )


def _single(
    rows: np.ndarray, own: np.ndarray, usable: np.ndarray, reasons: Mapping[str, Mapping[int, str]], notes: list[str]
) -> Iterator[Finding]:
    """The faults that an image has by itself; those of `--against` do not count."""
    for fault in FAULTS:
        items = np.flatnonzero(_having(rows, fault.name) & own)
        if len(items):
            chosen = set(items.tolist())
            yield Finding(fault, items, why={item: why for item, why in reasons.get(fault.name, {}).items() if item in chosen})
    usable = usable & own & ~_having(rows, "flat")
    grey = rows["grey"] & usable
    count, total = int(grey.sum()), int(usable.sum())
    if 0 < count <= total / 2:
        yield Finding(BY_NAME["grey"], np.flatnonzero(grey))
    elif count == total and total:
        notes.append("all images are grey: --data.channels 1 trains on one channel")
    elif count:
        notes.append(f"{count:,} of {total:,} images are grey, the others in colour")


def _excused(findings: Iterable[Finding], unused: np.ndarray) -> Iterator[Finding]:
    """The findings, where what no training reads stops none. `unused`: which images these are, bool (n,)."""
    for finding in findings:
        idle, rest = (finding.items[which] for which in (unused[finding.items], ~unused[finding.items]))
        if not finding.fault.stops or not len(idle):
            yield finding
            continue
        yield Finding(BY_NAME["unused"], idle, why={item: finding.reason(item) for item in idle.tolist()})
        if len(rest):
            yield replace(finding, items=rest)


def _sizes_of_pairs(subjects: Subjects, rows: np.ndarray, left_out: np.ndarray) -> Iterator[Finding]:
    groups = [] if subjects.pairs is None else [subjects.pairs]
    for group in (*groups, np.array(subjects.alike, dtype=np.int64).reshape(-1, 2)):
        if len(group):
            yield from _of_two_sizes(subjects, rows, group[rows["decoded"][group].all(1) & ~left_out[group].any(1)])


def _of_two_sizes(subjects: Subjects, rows: np.ndarray, pairs: np.ndarray) -> Iterator[Finding]:
    """Which items (p, n) have another size than the first of their row."""
    widths, heights = rows["width"][pairs], rows["height"][pairs]
    differ = (widths != widths[:, :1]) | (heights != heights[:, :1])
    if differ.any():
        first = np.broadcast_to(pairs[:, :1], pairs.shape)
        why = {
            item: f"{_spelled(rows, item)}, but {subjects.key(other)} has {_spelled(rows, other)}"
            for item, other in zip(pairs[differ].tolist(), first[differ].tolist(), strict=True)
        }
        yield Finding(BY_NAME["sizes"], np.sort(pairs[differ]), why=why)


def _having(rows: np.ndarray, fault: str) -> np.ndarray:
    """Which images have a fault: bool (n,)."""
    return (rows["faults"] & np.uint64(bit(fault))) > 0


def _spelled(rows: np.ndarray, item: int) -> str:
    return f"{rows['width'][item]}x{rows['height'][item]}"


def _duplicates(rows: np.ndarray, sides: np.ndarray, usable: np.ndarray) -> Iterator[Finding]:
    items = np.flatnonzero(usable & (rows["values"] > 0))
    if not len(items):
        return
    digests = duplicates.equal(rows["digest"][items])
    yield from _by_border("copies", _groups(items, digests), sides)
    shown = np.flatnonzero(~_having(rows[items], "flat"))
    if len(shown):
        chosen = rows[items[shown]]
        labels = duplicates.near(chosen["hash"], chosen["reduced"], bits=NEAR_BITS, levels=NEAR_LEVELS)
        varied = [group for group in _groups(shown, labels) if (digests[group] != digests[group[0]]).any()]
        yield from _by_border("near", [items[group] for group in varied], sides)


def _groups(items: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
    """The items of each label that two or more have."""
    order = np.argsort(labels, kind="stable")
    groups = np.split(items[order], np.flatnonzero(np.diff(labels[order])) + 1)
    return [group for group in groups if len(group) > 1]


def _by_border(name: str, groups: Sequence[np.ndarray], sides: np.ndarray) -> Iterator[Finding]:
    """Duplicates within a side, those across the held-out border, and those of images of `--against`."""
    sorts: dict[str, list[np.ndarray]] = {name: [], f"{name}_held_out": [], f"{name}_against": []}
    for group in groups:
        own = group[sides[group] != AGAINST]
        if len(own) and len(own) < len(group):
            sorts[f"{name}_against"].append(group)
        if len(own) > 1:
            crossing = (sides[own] == TRAIN).any() and (sides[own] != TRAIN).any()
            sorts[f"{name}_held_out" if crossing else name].append(own)
    for fault, found in sorts.items():
        if found:
            every = np.concatenate(found)
            yield Finding(BY_NAME[fault], np.sort(every[sides[every] != AGAINST]), found)


def _classes(subjects: Subjects, left_out: np.ndarray) -> list[ClassCount]:
    if subjects.labels is None or subjects.class_names is None:
        return []
    here = ~left_out[: len(subjects)]
    count = len(subjects.class_names)
    training = np.bincount(subjects.labels[here & (subjects.sides == TRAIN)], minlength=count)
    rest = np.bincount(subjects.labels[here & (subjects.sides != TRAIN) & (subjects.sides != UNUSED)], minlength=count)
    return [ClassCount(name, int(a), int(b)) for name, a, b in zip(subjects.class_names, training, rest, strict=False)]


def _balance(classes: Sequence[ClassCount]) -> Iterator[Finding]:
    if not classes:
        return
    least, most = min(classes, key=lambda each: each.training), max(classes, key=lambda each: each.training)
    if most.training > UNBALANCED * least.training:
        said = f"{least.name} has {counted(least.training, 'image')} to train on, {most.name} {most.training:,}"
        yield Finding(BY_NAME["balance"], np.zeros(0, dtype=np.int64), general=[said])


def _statistics(training: np.ndarray, all_rows: np.ndarray) -> dict[str, float | int]:
    """Mean and deviation of the values of the squares, whole sums in Python's integers, which do not overflow."""
    count = sum(training["values"].tolist())
    if not count:
        return {}
    total, squares = sum(training["total"].tolist()), sum(training["squares"].tolist())
    variance = (squares * count - total * total) / count**2
    return {
        "images": int((training["values"] > 0).sum()),
        "mean": total / count / _MAX_LEVEL - 1,
        "std": math.sqrt(variance) / _MAX_LEVEL,
        "flat": float(_having(all_rows, "flat").mean()),
    }


def _short_sides(rows: np.ndarray) -> dict[str, int]:
    short = np.minimum(rows["width"], rows["height"])
    if not len(short):
        return {}
    sizes = {"least": int(short.min()), "median": int(np.median(short)), "greatest": int(short.max())}
    return sizes | {f"at least {side}": int((short >= side).sum()) for side in _FITTING}
