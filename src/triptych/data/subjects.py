"""All images and maps of a source, to be looked at one by one: opened so that one fault does not hide the others."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from triptych.core.errors import ConfigError, DataError
from triptych.core.wording import counted
from triptych.data.arrays import Arrays
from triptych.data.clip_files import by_list, by_place, clips_of
from triptych.data.clips import ClipDataConfig
from triptych.data.config import DataConfig
from triptych.data.cut import Value
from triptych.data.database import is_database, open_database
from triptych.data.files import Files, Folder, open_folder
from triptych.data.frame_files import OfFrame, flow_names, landmark_names, require_folder
from triptych.data.label_file import classes_by
from triptych.data.naming import LABELS, divided, held_out, pairs_warning, parsed
from triptych.data.pack import ArrayPack, array_pack, files_pack, named_classes
from triptych.data.pairs import PairedDataConfig, folder_settings, roots, stem_of
from triptych.data.patterns import matched
from triptych.data.skipping import LeftOut
from triptych.data.source import FILES, NO_IMAGES, check_classes, check_label_file, existing_path, located, open_files, open_pixels
from triptych.data.stored import Keyed
from triptych.data.tfrecord import Records
from triptych.data.videos import open_clips

_AS_PAIRS = "be learned as images too: give the folder of the photos alone, or say that these are pairs by --maps FOLDER --num-classes N"
TRAIN, HELD_OUT, UNUSED, AGAINST = range(4)
SIDES = ("training", "held out", "unused", "against")
"""What the images of each side are called; unused: those of a third folder of a split."""


class Pixels:
    """The images of an array, by number."""

    def __init__(self, images: Arrays | ArrayPack, name: str) -> None:
        self._images, self._name = images, name

    def read(self, k: int) -> np.ndarray:
        """uint8 (h, w, 1 or 3)."""
        return np.ascontiguousarray(self._images.pixels[k])

    def describe(self, k: int) -> str:
        """The name of the file, and the number."""
        return f"{self._name}[{k}]"

    def key(self, k: int) -> str:
        """The number; of a pack the key that the image had before."""
        return self._images.keys[k] if isinstance(self._images, ArrayPack) else self._images.key(k)


@dataclass(frozen=True)
class Part:
    """Images or maps of one type."""

    stored: Keyed
    count: int
    prefix: str = ""
    "What goes before the keys of these."
    kind: Literal["target", "condition", "map", "points", "limbs", "densepose", "flow", "landmarks"] = "target"
    "target: images to be learned; condition: others that they are made from; flow and landmarks: files beside frames that are no images."
    num_classes: int | None = None
    "Of maps: numbers from there on are out of range; None: any number will do."


@dataclass(frozen=True)
class Complaint:
    """A fault that shows without decoding."""

    fault: str
    item: int | None
    "None: it is about the source as a whole, or a clip."
    why: str


@dataclass
class Subjects:
    """The items of a source, numbered from 0."""

    place: Path
    source: str
    parts: list[Part]
    sides: np.ndarray
    "Place in SIDES of each item: uint8 (n,)."
    labels: np.ndarray | None = None
    "Class of each item: int64 (n,)."
    class_names: tuple[str, ...] | None = None
    pairs: np.ndarray | None = None
    "The items of each pair that is complete, the image to be made first: int64 (p, types)."
    alike: list[tuple[int, int]] = field(default_factory=list)
    "Two items that have to have one size beside those of pairs: the first frame of a clip and each other one, a frame and its flow."
    beside: list[tuple[int, int]] = field(default_factory=list)
    "A frame, and a file beside it that is no image."
    skips: bool = True
    "Whether a training can leave some out; of clips it cannot."
    left_out: np.ndarray | None = None
    "Which items data.skip leaves out: bool (n,); None: none."
    complaints: list[Complaint] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    "What the log of a training would say."

    def __post_init__(self) -> None:
        self.count()

    def count(self) -> None:
        """Numbers the items anew, after parts were added."""
        self._ends = np.cumsum([part.count for part in self.parts], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.sides)

    def part(self, item: int) -> Part:
        """The type of an item."""
        return self.parts[self._place(item)[0]]

    def key(self, item: int) -> str:
        """Its path within the source, or its number in an array: the same on every machine."""
        place, number = self._place(item)
        return self.parts[place].prefix + self.parts[place].stored.key(number)

    def name(self, item: int) -> str:
        """The name of its file; of other sources than files it is empty."""
        place, number = self._place(item)
        stored = self.parts[place].stored
        return stored.names[number] if isinstance(stored, Files) else ""

    def read(self, item: int) -> Value:
        """Encoded, or as pixels. Raises DataError or OSError."""
        place, number = self._place(item)
        return self.parts[place].stored.read(number)

    def kept(self) -> np.ndarray:
        """Which items are not left out: bool (n,)."""
        return np.ones(len(self), dtype=bool) if self.left_out is None else ~self.left_out

    def targets(self) -> np.ndarray:
        """Which items are images to be learned: bool (n,)."""
        kinds = [np.full(part.count, part.kind == "target") for part in self.parts]
        return np.concatenate(kinds) if kinds else np.zeros(0, dtype=bool)

    def fingerprint(self) -> str:
        """Letters that change when the files do: of their names, sizes and times of change."""
        digest = hashlib.sha256()
        for path in self._files():
            try:
                status = path.stat()
                said = f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}\n"  # programs set the former back
            except OSError:
                said = f"{path}\0\n"
            digest.update(said.encode(errors="surrogateescape"))
        return digest.hexdigest()[:16]

    def _files(self) -> Iterator[Path]:
        yield from matched(self.place) or [self.place]
        folders = [part.stored for part in self.parts if isinstance(part.stored, Files) and self.source in ("folder", "pairs", "clips")]
        for stored in folders:
            place = Path(str(stored.place))
            yield from (place / stored.names[k] for k in range(len(stored.names)))
            yield place / "data.mdb"
        if not folders and self.place.is_dir():
            for folder, _, names in os.walk(self.place):
                yield from (Path(folder) / name for name in sorted(names))

    def _place(self, item: int) -> tuple[int, int]:
        place = int(np.searchsorted(self._ends, item, side="right"))
        return place, item - int(self._ends[place - 1] if place else 0)


def open_subjects(config: DataConfig) -> Subjects:
    """The items of the source that `config` describes, all splits of it; those that data.skip names are left out.

    Raises ConfigError or DataError where nothing lies there, or what does is of another kind. What else keeps it from being opened is a
    complaint.
    """
    left_out = LeftOut.of(config)
    if isinstance(config, PairedDataConfig):
        return _open_pairs(config, left_out)
    path, source = located(config)
    if source == "latents":
        raise ConfigError("", f"{path} holds latents, which cannot be looked at; give the images that they are of")
    check_label_file(config, source)
    try:
        return (_open_files if source in FILES else _open_pixels)(config, path, source, left_out)
    except DataError as error:
        return _refused(path, source, error)


def _refused(path: Path, source: str, error: DataError) -> Subjects:
    return Subjects(path, source, [], np.zeros(0, dtype=np.uint8), complaints=[Complaint("source", None, str(error))])


def _open_files(config: DataConfig, path: Path, source: str, left_out: LeftOut) -> Subjects:
    files, empty = open_files(path, source)  # pyright: ignore[reportArgumentType]
    pack, count = files_pack(files), len(files.names)
    kept = left_out.kept(files.key, count)
    some = files.part(kept) if pack is None else files
    names = [some.key(k) for k in range(len(some.names))]
    paths = parsed(names)
    fraction = config.validation_fraction
    if pack is None:
        sides = _sides(count, *(kept[part] for part in divided(paths, validation_fraction=fraction)))
    else:
        sides = _sides(count, *pack.divided(kept, validation_fraction=fraction))
    notes = (*files.notes, *left_out.notes(), *pairs_warning(names, str(path), consequence=_AS_PAIRS), *filter(None, [paths.warning]))
    subjects = Subjects(path, source, [Part(files, count)], sides, left_out=_all_but(kept, count), notes=notes)
    if not (sides == TRAIN).any():
        subjects.complaints.append(Complaint("source", None, NO_IMAGES))
    try:
        classes = classes_by(config, some, paths, empty=empty)
        classes = classes if pack is None else named_classes(classes, pack.stamp, path)
    except DataError as error:
        subjects.complaints.append(Complaint("labels", None, str(error.renamed("--labels"))))
    else:
        if classes is not None:
            subjects.labels, subjects.class_names = np.full(count, -1), classes.names
            subjects.labels[np.arange(count) if pack is not None else kept] = classes.labels
    return subjects


def _sides(count: int, training: np.ndarray, rest: np.ndarray) -> np.ndarray:
    sides = np.full(count, UNUSED, dtype=np.uint8)
    sides[training], sides[rest] = TRAIN, HELD_OUT
    return sides


def _all_but(kept: np.ndarray, count: int) -> np.ndarray:
    left_out = np.ones(count, dtype=bool)
    left_out[kept] = False
    return left_out


def _open_pixels(config: DataConfig, path: Path, source: str, left_out: LeftOut) -> Subjects:
    complaints = []
    pack = array_pack(path) if source == "arrays" else None
    if pack is not None:
        count = len(pack.keys)
        kept = left_out.kept(pack.keys.__getitem__, count)
        sides = _sides(count, *pack.divided(kept, validation_fraction=config.validation_fraction))
        named, labels = (None, None) if config.labels == "none" else (pack.stamp.class_names, pack.labels)
        parts, out = [Part(Pixels(pack, path.name), count)], _all_but(kept, count)
        return Subjects(path, source, parts, sides, labels, named, left_out=out, notes=left_out.notes())
    rest = HELD_OUT if config.validation_fraction > 0 else UNUSED  # of images for testing
    try:
        train, test = open_pixels(path, source, side=config.image_size, labelled=config.labels != "none")  # pyright: ignore[reportArgumentType]
        if config.labels != "none" and test is not None and rest == HELD_OUT:
            check_classes(train, test)
    except DataError as error:
        if error.setting != LABELS:
            raise
        complaints.append(Complaint("labels", None, str(error.renamed("--labels"))))
        train, test = open_pixels(path, source, side=config.image_size, labelled=False)  # pyright: ignore[reportArgumentType]
    kept = left_out.kept(train.key, len(train))
    if test is None:
        divisions = held_out([str(k) for k in kept], fraction=config.validation_fraction)
        sides = _sides(len(train), *(kept[part] for part in divisions))
        parts = [_pixels(train)]
    else:
        sides = np.repeat(np.array([TRAIN, rest], dtype=np.uint8), [len(train), len(test)])
        parts = [_pixels(train), _pixels(test)]
        kept = np.concatenate([kept, len(train) + left_out.kept(test.key, len(test))])
    labels = None
    if config.labels != "none" and not complaints and train.labels is not None:
        labels = np.concatenate([each.labels for each in (train, test) if each is not None and each.labels is not None])
    named = None if labels is None else train.class_names
    if not (sides == TRAIN).any():
        complaints.append(Complaint("source", None, NO_IMAGES))
    out = _all_but(kept, len(sides))
    return Subjects(path, source, parts, sides, labels, named, left_out=out, complaints=complaints, notes=left_out.notes())


def _pixels(images: Arrays | Records) -> Part:
    return Part(images if isinstance(images, Records) else Pixels(images, images.name), len(images))


# Pairs


def _open_pairs(config: PairedDataConfig, left_out: LeftOut) -> Subjects:
    path = existing_path(config)
    train_root, held_root = roots(config, path)
    try:
        return _matched(config, path, [train_root] if held_root is None else [train_root, held_root], left_out)
    except DataError as error:
        return _refused(path, _named(config), error)


def _named(config: PairedDataConfig) -> str:
    return "clips" if isinstance(config, ClipDataConfig) else "pairs"


def _matched(config: PairedDataConfig, path: Path, folders: Sequence[Path], left_out: LeftOut) -> Subjects:
    """The members of all pairs, each folder of each type a part, and which of them belong together."""
    types = list(config.folders if isinstance(config, ClipDataConfig) else folder_settings(config))
    subjects = Subjects(path, _named(config), [], np.zeros(0, dtype=np.uint8), skips=config.skips)
    pairs: list[list[int]] = []
    passed_over: list[int] = []
    for side, root in zip((TRAIN, HELD_OUT if config.validation_fraction > 0 else UNUSED), folders, strict=False):
        first = len(subjects)
        by_stem = [_numbered(subjects, config, root, name) for name in types]
        subjects.sides = np.append(subjects.sides, np.full(sum(part.count for part in subjects.parts) - len(subjects), side, np.uint8))
        subjects.count()
        parts = dict(zip(types, subjects.parts[-len(types) :], strict=True))
        files = {name: part.stored for name, part in parts.items() if isinstance(part.stored, Files)}
        if isinstance(config, ClipDataConfig):
            by_stem = list(by_place(root, files, dict(zip(types, by_stem, strict=True))).values())
        whole, alone = _joined(by_stem, types)
        keys, members = list(whole), list(whole.values())
        together: Mapping[str, Sequence[int]] = {key: [k] for k, key in enumerate(keys)}
        if isinstance(config, ClipDataConfig):
            listed = by_list(root, files, dict(zip(types, by_stem, strict=True)))
            if listed is None:
                together = clips_of(keys)
                counts = _frame_counts(together, by_stem[0])
            else:  # nothing else is read by a training
                keys, together, alone = listed.keys, listed.clips, []
                subjects.notes += tuple(filter(None, [listed.warning if side == TRAIN else ""]))
                members = np.stack([listed.numbers[name] for name in types], axis=1).tolist()
                counts = {name: len(clip) for name, clip in together.items()}
                subjects.sides[np.setdiff1d(np.arange(first, len(subjects)), members)] = UNUSED
            _add_clips(subjects, config, root, keys, members, together, side)
            subjects.complaints += _too_short(config, (root / config.target).relative_to(path), counts, side, split=len(folders) == 1)
        subjects.complaints += alone
        kept = left_out.kept_pairs([_key_of(subjects, members, k) for k in range(len(types))], len(members))
        passed_over += [item for k in np.flatnonzero(_all_but(kept, len(members))) for item in members[int(k)]]
        pairs += members
        if len(folders) == 1 and len(kept):
            there = set(kept.tolist())
            names = [name for name, group in together.items() if there.issuperset(group)]
            chosen, rest = held_out(names, fraction=config.validation_fraction)
            for numbers, where in ((rest, HELD_OUT), (chosen, TRAIN)):  # a frame of several clips is learned where one of them is
                for k in (k for number in numbers for k in together[names[int(number)]]):
                    subjects.sides[members[k]] = where
    for frame, item in subjects.beside:
        subjects.sides[item] = subjects.sides[frame]
    if not pairs:
        subjects.complaints.append(Complaint("source", None, "no pair is complete"))
    subjects.pairs = np.array(pairs, dtype=np.int64).reshape(len(pairs), len(types))
    subjects.left_out = np.isin(np.arange(len(subjects)), passed_over)
    subjects.notes += left_out.notes()
    return subjects


def _add_clips(
    subjects: Subjects,
    config: ClipDataConfig,
    root: Path,
    keys: Sequence[str],
    members: Sequence[Sequence[int]],
    clips: Mapping[str, Sequence[int]],
    side: int,
) -> None:
    """Adds what clips have beside complete pairs: frames of one size, and files that are no images. `members`: the items of each frame."""
    frames = [items[0] for items in members]
    subjects.alike += [(frames[clip[0]], frames[k]) for clip in clips.values() for k in clip[1:]]
    if config.flow is not None:
        place = root / config.flow
        _add_files_beside(subjects, "flow", place, frames, flow_names(place, keys, clips=clips.values()), side)
    if config.landmarks is not None:
        place = root / config.landmarks
        _add_files_beside(subjects, "landmarks", place, frames, landmark_names(place, keys), side)


def _frame_counts(whole: Iterable[str], targets: Iterable[str]) -> dict[str, int]:
    """The number of frames of each clip, those included that lack a partner. `targets`: the frames; `whole`: clips of some that do not."""
    counts = Counter(next(iter(clips_of([key]))) for key in targets)
    return {name: counts[name] for name in whole}


def _too_short(config: ClipDataConfig, place: Path, counts: Mapping[str, int], side: int, *, split: bool) -> Iterator[Complaint]:
    """Complaints of clips of too few frames. `counts`: those of each clip at `place`. `split`: some of these are held out."""
    first, most = (frames + config.references for frames in (config.length.first, config.length.most))

    def complaint(fault: str, name: str, wanted: str) -> Complaint:
        frames = counted(counts[name], "frame")
        return Complaint(fault, None, f"{(place / name).as_posix()}: {frames}, fewer than the {wanted}{config.beside}")

    wanted = f"{config.length.first} of data.length.first"
    yield from (complaint("short", name, wanted) for name, count in counts.items() if count < first)
    if side != TRAIN or not counts:
        return
    names = list(counts)
    training = [names[int(k)] for k in held_out(names, fraction=config.validation_fraction)[0]] if split else names
    wanted = f"{config.length.most} of data.length.most"
    if not training:
        yield Complaint("longest", None, f"{place.as_posix()}: the only clip is held out (data.validation_fraction)")
    elif counts[longest := max(training, key=counts.__getitem__)] < most:
        yield complaint("longest", longest, wanted)
    else:
        yield from (complaint("outgrown", name, wanted) for name in training if first <= counts[name] < most)


def _add_files_beside(
    subjects: Subjects, kind: Literal["flow", "landmarks"], place: Path, frames: Sequence[int], needed: Iterable[OfFrame], side: int
) -> None:
    """Adds the files in a folder that frames need. `frames`: the item of each."""
    require_folder(place, f"data.{kind}")
    there = list[OfFrame]()
    for one in needed:
        if one.there:
            there.append(one)
        else:
            subjects.complaints.append(Complaint("partner", frames[one.frame], f"no {one.name} in {place.name}"))
    files = Folder(place, [one.name for one in there])
    subjects.parts.append(Part(files, len(there), f"{place.relative_to(subjects.place).as_posix()}/", kind))
    found = [(frames[one.frame], len(subjects) + k) for k, one in enumerate(there)]
    subjects.beside += found
    subjects.alike += found if kind == "flow" else []
    subjects.sides = np.append(subjects.sides, np.full(len(there), side, dtype=np.uint8))
    subjects.count()


def _numbered(subjects: Subjects, config: PairedDataConfig, root: Path, name: str) -> dict[str, int]:
    """Adds the files of a type in a folder to the subjects, and returns the item of each stem; one stem twice is a complaint."""
    if not (root / name).is_dir():
        raise DataError(f"{root}: holds no folder {name}")
    opened = open_clips if isinstance(config, ClipDataConfig) else lambda path: open_folder(path)[0]
    files = open_database(root / name) if is_database(root / name) else opened(root / name)
    first = sum(part.count for part in subjects.parts)
    subjects.parts.append(_member(config, files, name, prefix=f"{(root / name).relative_to(subjects.place).as_posix()}/"))
    subjects.notes += files.notes
    numbers: dict[str, int] = {}
    for k, file in enumerate(files.names):
        if numbers.setdefault(stem_of(file), first + k) != first + k:
            subjects.complaints.append(Complaint("double", first + k, f"beside {files.names[numbers[stem_of(file)] - first]}"))
    return numbers


def _key_of(subjects: Subjects, members: Sequence[Sequence[int]], place: int) -> Callable[[int], str]:
    """What tells the key of the member at a place of the k-th pair."""
    return lambda k: subjects.key(members[k][place])


def _member(config: PairedDataConfig, files: Files, name: str, *, prefix: str) -> Part:
    """The files of a type."""
    if isinstance(config, ClipDataConfig):
        for further in ("points", "limbs", "densepose"):
            if name == getattr(config, further):
                return Part(files, len(files.names), prefix, further)
    if name in config.maps:
        num_classes = None if config.dont_care or config.blank else config.num_classes[config.maps.index(name)]
        return Part(files, len(files.names), prefix, "map", num_classes)
    kind = "target" if name == config.target else "map" if name == config.instances else "condition"
    return Part(files, len(files.names), prefix, kind)


def _joined(by_stem: Sequence[dict[str, int]], types: Sequence[str]) -> tuple[dict[str, list[int]], list[Complaint]]:
    """The items of each complete pair, by stem, and those that lack a partner."""
    whole, alone = {}, []
    for stem in dict.fromkeys(stem for numbers in by_stem for stem in numbers):
        items = [numbers.get(stem) for numbers in by_stem]
        there = [item for item in items if item is not None]
        if len(there) == len(items):
            whole[stem] = there
            continue
        lacking = ", ".join(name for name, item in zip(types, items, strict=True) if item is None)
        alone += [Complaint("partner", item, f"no {stem}.* in {lacking}") for item in there]
    return whole, alone
