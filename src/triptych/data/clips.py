"""Clips: frames that follow one another, with the maps that they are to be made from, and the true flow where there is one.

The members of a frame lie as those of a pair do (see `pairs`); which files are the frames of a clip is said in `clip_files`. A training
draws a clip for each position of its order: where it starts and how its frames are cut is the same for all its frames and maps. References
are other frames of the same clip, none of them between the first and the last frame of the sample, with their maps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from triptych.core.batch import STYLE, ClipLength, DataSpec, InputSpec, style_map
from triptych.core.config import config
from triptych.core.errors import DataError
from triptych.core.rng import key_of, words
from triptych.core.wording import counted
from triptych.data.clip_files import open_clip_files
from triptych.data.cut import Cut
from triptych.data.cut_out import Box, CutOut, Shows, Variation, varied
from triptych.data.frame_files import FlowFiles, shown_by
from triptych.data.images import Data, ImageSet, Loaded
from triptych.data.keypoints import NUM_LIMBS
from triptych.data.naming import held_out
from triptych.data.pairs import REMEDY, PairedDataConfig, empty, folder_settings, is_coloured, member_of, roots, specs_of
from triptych.data.poses import NUM_PARTS, dropped, leave_out
from triptych.data.source import existing_path
from triptych.data.stored import PROBED, CutOf, Member, evenly_spaced, measure, named, of_one_size, probe, read
from triptych.data.transforms import Draws, Size, below, draw, mirror, recolour

_MOST_REFERENCES = 64
_START = 3
"""Words that a sample draws beside those of its cut: for its step, its clip and its start."""


@config
class ClipDataConfig(PairedDataConfig):
    """Clips and the maps that they are to be made from, frame by frame: PATH/train/TYPE/CLIP/..., PATH/val/..., or PATH/TYPE/CLIP/..."""

    kind_name: ClassVar = "clips"
    skips: ClassVar = False
    unwritten: ClassVar = PairedDataConfig.unwritten | {"points", "references", "limbs", "densepose", "drop_parts", "cut_out", "landmarks"}

    length: ClipLength = ClipLength()
    "Frames of a clip in the course of a training."
    most_step: int = 1
    "Training clips take every s-th frame, s drawn from 1 to this, as far as their clip is long enough."
    references: int = 0
    "So many other frames of the same clip belong to each sample, for models that take a look from some; 0: none."
    points: str | None = None
    "Folder of maps of the point of the scene that each pixel shows, PNG: its number, from 1 on, 8, 16 or 24 bits; 0: no point. None: none."
    flow: str | None = None
    "Folder of the true flow to the frame before: CLIP/FRAME.npy, (height, width, 2) x and y in pixels, NaN where unknown. None: none."

    limbs: str | None = None
    "Folder of maps of people with a channel for each of 27 limbs, hands and the face (triptych data draw --form limbs). None: none."
    densepose: str | None = None
    "Folder of DensePose's maps, PNG in RGB: u, v, and the number of the part, 0 to 24. None: none."
    drop_parts: float = 0.0
    "In training each limb of data.limbs and each part of data.densepose is left out of a clip, or its references, with this probability."
    cut_out: Literal["none", "face", "person"] = "none"
    "What is cut out of frames to image_size: the face of data.landmarks, or the person on the first of data.densepose, limbs, conditions."
    landmarks: str | None = None
    "Folder of points of faces, for data.cut_out: CLIP/FRAME.json, 68 points [[x, y], ...] or what OpenPose writes. None: none."

    def validate(self) -> None:
        self.require(self.most_step >= 1, "most_step", "at least 1")
        self.require(0 <= self.references <= _MOST_REFERENCES, "references", f"0 to {_MOST_REFERENCES}")
        known = self.points is None and self.flow is None
        self.require(known or not self.references, "references", "0 with data.points or data.flow, which say nothing of other frames")
        named = not self.references or STYLE not in (self.target, self.instances, *self.maps, *self.conditions)
        self.require(named, "references", f'0 with a folder "{STYLE}", which is what references are called')
        self.require(self.flow is None or self.most_step == 1, "most_step", "1 with data.flow, which is that from one frame to the next")
        posed = bool(self.further_maps)
        self.require(not (posed and self.flip), "flip", "false with data.limbs or data.densepose, whose left would become right")
        self.require(0 <= self.drop_parts < 1, "drop_parts", "0 or more and below 1")
        self.require(posed or self.drop_parts == 0, "drop_parts", "0 without data.limbs and data.densepose")
        whole, shown = self.cut_out == "none", posed or bool(self.conditions)
        self.require(self.cut_out != "person" or shown, "cut_out", "none or face without data.densepose, data.limbs and data.conditions")
        self.require(self.cut_out != "face" or self.landmarks is not None, "landmarks", "the folder of the points of faces to be cut out")
        self.require(self.cut_out == "face" or self.landmarks is None, "landmarks", "nothing, unless data.cut_out is face")
        self.require(whole or known, "cut_out", "none with data.points or data.flow, which are not cut out")
        self.require(
            whole or (self.crop, self.resize) == ("center", None), "cut_out", "none, unless data.crop is center, without data.resize"
        )
        square = self.width in (None, self.image_size)
        self.require(self.cut_out != "face" or square, "cut_out", "none or person with a data.width: faces are cut out as squares")
        taken = [self.target, self.instances, *self.maps, *self.conditions, "", ".", ".."]
        for name in ("densepose", "limbs", "points", "flow", "landmarks"):
            folder, others = getattr(self, name), (*taken,)
            taken.append(folder)
            own = folder is None or (folder not in others and "/" not in folder)
            self.require(own, name, "the name of a folder of its own, without a slash, or nothing")
        self.require(self.on_error == "stop", "on_error", "stop: a frame cannot be left out of its clip")
        self.require(self.skip is None, "skip", "nothing: a frame cannot be left out of its clip")

    @property
    def further_maps(self) -> tuple[str, ...]:
        """Folders of limbs and of DensePose."""
        return tuple(folder for folder in (self.limbs, self.densepose) if folder is not None)

    @property
    def beside(self) -> str:
        """What a clip has beside the frames of a sample, for messages."""
        return f" and the {self.references} of data.references" if self.references else ""

    @property
    def poses(self) -> list[InputSpec]:
        """What the maps of people are; they stand before the conditions."""
        found = [] if self.densepose is None else [InputSpec(name=self.densepose, kind="image", channels=3, stored="densepose")]
        return found + ([] if self.limbs is None else [InputSpec(name=self.limbs, kind="image", channels=NUM_LIMBS, stored="limbs")])

    @property
    def folders(self) -> dict[str, str]:
        """The setting that named each folder of files of images."""
        named = {name: f"data.{name}" for name in ("densepose", "limbs", "points")}
        return folder_settings(self) | {getattr(self, name): setting for name, setting in named.items() if getattr(self, name) is not None}

    @property
    def cutting_out(self) -> CutOut | None:
        """What is cut out of clips; None: nothing, they are cut as pairs are."""
        if self.cut_out == "none":
            return None
        by = self.landmarks or [*(spec.name for spec in self.poses), *self.conditions][0]
        return CutOut(self.cut_out, Cut.of(self, width=self.width), by, self.target)

    def open(self) -> Data:
        path = existing_path(self)
        train_root, held_root = roots(self, path)
        training = _Sources(self, path, train_root)
        if held_root is None:
            chosen, rest = held_out(training.names, fraction=self.validation_fraction)
            held = training
        else:
            held = _Sources(self, path, held_root, specs=training.specs)
            chosen = np.arange(len(training.names))
            rest = np.arange(len(held.names) if self.validation_fraction > 0 else 0)
        if not len(chosen):
            reason = "the only clip is held out, so that none is left to train on"
            raise DataError(f"{train_root / self.target}: {reason}; give more clips, or set data.validation_fraction to 0")
        train = training.images(chosen)
        longest = max(len(clip) for clip in train.clips)
        if longest < self.length.most + self.references:
            reason = f"the longest clip has {counted(longest, 'frame')}, fewer than the {self.length.most} of data.length.most{self.beside}"
            raise DataError(f"{train_root / self.target}: {reason}; lower that, or give longer clips")
        validation = held.images(rest) if len(rest) else None
        for images in (train, validation):
            if images is not None:
                images.probe()
        most = self.length.most
        inputs = [InputSpec.from_dict(spec.to_dict() | {"frames": most}) for spec in training.specs[1:]]
        if self.references:
            inputs += style_specs(training.specs[0], training.specs[1:], count=self.references)
        spec = DataSpec(
            image_size=self.image_size,
            width=None if self.width == self.image_size else self.width,
            channels=train.channels,
            inputs=tuple(inputs),
            frames=most,
            clip_length=self.length,
        )
        learned = f"{counted(len(chosen), 'clip')} of {counted(sum(map(len, train.clips)), 'frame')} to train on"
        return Data(train, validation, spec, (*training.notes, f"{path}: {learned}, {len(rest):,} held out"))


def style_specs(target: InputSpec, inputs: Sequence[InputSpec], *, count: int) -> list[InputSpec]:
    """What `count` references of a clip are, of the images to be made and what they are made from."""
    named = ((STYLE, target), *((style_map(spec.name), spec) for spec in inputs))
    return [replace(spec, name=name, references=count, frames=None) for name, spec in named]


class _Sources:
    """The clips below a folder, and the files of their frames."""

    def __init__(self, config: ClipDataConfig, path: Path, root: Path, *, specs: Sequence[InputSpec] | None = None) -> None:
        self.config, self.root = config, root
        found = open_clip_files(root, config.folders)
        files, numbers, clips = found.files, found.numbers, found.clips
        if specs is None:
            specs = specs_of(config, files, numbers)
            first = len(specs) - len(config.conditions)
            specs[first:first] = config.poses
            if config.points is not None:
                specs.append(InputSpec(name=config.points, kind="points"))
            if config.flow is not None:
                specs.append(InputSpec(name=config.flow, kind="flow"))
        self.specs = tuple(specs)
        self.members = [member_of(spec, files, numbers, path, root) for spec in self.specs if spec.kind != "flow"]
        self.notes = (*(note for one in files.values() for note in one.notes), *filter(None, [found.warning]))
        short = next((name for name, frames in clips.items() if len(frames) < config.length.first + config.references), None)
        if short is not None:
            count = len(clips[short])
            raise DataError(
                f"{root / config.target / short}: a clip of {counted(count, 'frame')}, fewer than the {config.length.first} "
                f"of data.length.first{config.beside}; add frames, lower that, or remove the clip"
            )
        self.names, self.clips = list(clips), [np.array(frames) for frames in clips.values()]
        self.flow = None if config.flow is None else FlowFiles(root / config.flow, found.keys, clips=self.clips, folder=config.flow)
        cut_out = config.cutting_out
        self.shows = None if cut_out is None else shown_by(cut_out, root, found.keys, self.members)

    def images(self, chosen: np.ndarray) -> ClipImages:
        """Some of the clips."""
        return ClipImages(self.members, self.config, [self.clips[k] for k in chosen], flow=self.flow, shows=self.shows)


class ClipImages(ImageSet):
    """Clips, of which the items are windows: every frame of a clip is in one of its windows, but for what is left at its end.

    In training its position says how long a sample is and where it starts: in the item's window, or if it is longer anywhere in the clip.
    """

    config: ClipDataConfig

    def __init__(
        self,
        members: Sequence[Member],
        config: ClipDataConfig,
        clips: list[np.ndarray],
        *,
        flow: FlowFiles | None,
        shows: Shows | None,
    ) -> None:
        """`shows`: where what is cut out is; None: nothing is."""
        first = config.length.first
        windows = [(number, start) for number, clip in enumerate(clips) for start in range(0, len(clip) - first + 1, first)]
        super().__init__(config, channels=members[0].spec.channels or 3, items=np.arange(len(windows)), labels=None)
        self.clips = clips
        self._windows, self._members, self._flow = np.array(windows), tuple(members), flow
        self._lengths = np.array([len(clip) for clip in clips])
        self._cut_out, self._shows = config.cutting_out, shows
        self._cut = replace(Cut.of(config, width=config.width), enlarge=config.enlarge or self._cut_out is not None)

    def of_length(self, frames: int, clips: list[np.ndarray]) -> ClipImages:
        """Some of these clips, of which each has so many frames and more, in windows of so many."""
        config = replace(self.config, length=ClipLength(first=frames, most=frames))
        return ClipImages(self._members, config, clips, flow=self._flow, shows=self._shows)

    def key(self, item: int) -> str:
        return self._members[0].describe(self._first(item))

    def source_key(self, item: int) -> str:
        return self._members[0].key(self._first(item))

    def _first(self, item: int) -> int:
        number, start = self._windows[item]
        return int(self.clips[number][start])

    def frames(self, item: int, position: int | None, *, seed: int) -> np.ndarray:
        """The numbers of the frames of a sample (t,): the window of the item, or the clip that its position draws near it."""
        number, chosen = self._drawn(item, position, seed=seed)
        return self.clips[number][chosen]

    def references(self, item: int, position: int | None, *, seed: int) -> np.ndarray:
        """The numbers of the frames (k,) that go with a sample, in order: drawn by its position; of a held-out one spread over its clip."""
        number, chosen = self._drawn(item, position, seed=seed)
        clip, count = self.clips[number], self.config.references
        others = np.delete(np.arange(len(clip)), np.s_[chosen.start : chosen.stop])
        if position is None:
            return clip[others[evenly_spaced(len(others), count)]]
        drawn = words(np.array([position]), key=key_of(seed, "data", "references"), count=count)[0]
        for k, word in enumerate(drawn):  # the first steps of Fisher and Yates' shuffle
            other = k + below(word, len(others) - k)
            others[[k, other]] = others[[other, k]]
        return clip[np.sort(others[:count])]

    def _drawn(self, item: int, position: int | None, *, seed: int) -> tuple[int, slice]:
        """The clip of a sample, and its frames there; the slice ends behind the last of them."""
        (number, start), length, beside = map(int, self._windows[item]), self.config.length, self.config.references
        if position is None:
            return number, slice(start, start + length.first)
        count = length.at(position)
        drawn = words(np.array([position]), key=key_of(seed, "data", "clip"), count=_START)[0]
        anywhere = len(self.clips[number]) < count + beside
        if anywhere:  # another one, and anywhere in it
            long_enough = np.flatnonzero(self._lengths >= count + beside)
            number = int(long_enough[below(drawn[1], len(long_enough))])
        room = len(self.clips[number])
        step = 1 + below(drawn[0], min(self.config.most_step, (room - 1 - beside) // max(1, count - 1) or 1))
        latest = room - 1 - (count - 1) * step
        if anywhere or count > length.first or step > 1:
            start = below(drawn[2], latest + 1)
        else:
            start += below(drawn[2], min(length.first, latest + 1 - start))
        return number, slice(start, start + (count - 1) * step + 1, step)

    def batch(self, items: np.ndarray, positions: np.ndarray | None = None, *, seed: int = 0) -> Loaded:
        """Clips as long as the longest of them: a shorter one goes on with its last frame, which training does not use."""
        drawn = [(int(item), None if positions is None else int(positions[k])) for k, item in enumerate(items)]
        chosen = [self.frames(*one, seed=seed) for one in drawn]
        count = max(map(len, chosen), default=self.config.length.first)
        draws, beside = draw(positions, self.config, seed=seed), self.config.references
        found, style = self._empty((len(items), count)), self._empty((len(items), beside)) if beside else {}
        for k, frames in enumerate(chosen):
            crop = None if draws.crop is None else draws.crop[k]
            clip, apart = self._variations(drawn[k][1], seed=seed)
            shown = frames if self.config.cut_out == "person" and drawn[k][1] is not None else frames[:1]
            self._load(frames, crop, {name: values[k] for name, values in found.items()}, box=self._box(shown, clip))
            for values in found.values():
                values[k, len(frames) :] = values[k, len(frames) - 1]
            if self.config.points is not None:
                found[self.config.points][k] = numbered(found[self.config.points][k])
            if beside:
                others = self.references(*drawn[k], seed=seed)
                for j in range(0, beside, beside if self._cut_out is None else 1):
                    some = others if self._cut_out is None else others[j : j + 1]
                    into = {name: values[k, j : j + len(some)] for name, values in style.items()}
                    self._load(some, crop, into, box=self._box(some, apart))
        for values_of, name in ((found, "clip"), (style, "references")):
            self._vary(values_of, draws)
            if positions is not None and self.config.drop_parts:
                self._leave_parts_out(values_of, positions, seed=seed, name=name)
        images = found.pop(self._members[0].spec.name)
        if beside:
            found |= {STYLE: style.pop(self._members[0].spec.name)} | {style_map(name): values for name, values in style.items()}
        return Loaded(images, None, found)

    def _vary(self, found: Mapping[str, np.ndarray], draws: Draws) -> None:
        """Mirrors and recolours the frames (b, t, ...) of clips, in place, those of each alike."""
        for k in np.flatnonzero(draws.flip):
            for name, values in found.items():
                self._mirror(values[k], name)
        if draws.jitter is None or not found:
            return
        for spec in (member.spec for member in self._members):
            if is_coloured(spec, self._members[0].spec):
                values = found[spec.name]
                jitter = draws.jitter.repeat(values.shape[1], 0)
                recolour(values.reshape(-1, *values.shape[2:]), jitter, amount=self.config.jitter)

    def _leave_parts_out(self, found: Mapping[str, np.ndarray], positions: np.ndarray, *, seed: int, name: str) -> None:
        """Takes limbs and parts out of all frames of clips, or of their references, in place."""
        for spec in (member.spec for member in self._members):
            if spec.name in found and spec.stored != "pixels":
                count = NUM_LIMBS if spec.stored == "limbs" else NUM_PARTS
                which = dropped(positions, count, share=self.config.drop_parts, seed=seed, name=f"{name}/{spec.stored}")
                for values, gone in zip(found[spec.name], which, strict=True):
                    leave_out(values, gone, spec)

    def probe(self) -> None:
        """Reads the headers of some frames, and the first frames of a few clips. Raises DataError."""

        def sizes(item: int) -> None:
            frame = self._first(item)
            of_one_size(self._members, frame, [measure(member, frame, self._cut.checked) for member in self._members])

        probe(evenly_spaced(len(self), PROBED), sizes, on_error=self.config.on_error, skips=self.config.skips)
        for number in evenly_spaced(len(self.clips), PROBED):
            self._check_sizes(self.clips[int(number)][[0, -1]])
        for item in evenly_spaced(len(self), 4):
            self.batch(np.array([item]))

    def _check_sizes(self, frames: np.ndarray) -> None:
        first, *others = [measure(self._members[0], int(frame), self._cut.checked)[0] for frame in frames]
        for frame, size in zip(frames[1:], others, strict=True):
            self._require_size(int(frame), size, int(frames[0]), first)

    def _require_size(self, frame: int, size: Size, first: int, expected: Size) -> None:
        if size != expected:
            where, other = self._members[0].describe(frame), self._members[0].describe(first)
            raise DataError(
                f"{where}: {size[0]}x{size[1]} pixels, but {other} of the same clip has {expected[0]}x{expected[1]}; "
                "make the frames of a clip one size, or two clips of them"
            )

    def _empty(self, shape: tuple[int, int]) -> dict[str, np.ndarray]:
        whole = (*shape, *self._cut.height_and_width)
        found = {member.spec.name: empty(member.spec, whole) for member in self._members}
        if self._flow is not None:
            found[self._flow.name] = np.empty((*shape, 2, *self._cut.height_and_width), dtype=np.float32)
        return found

    def _variations(self, position: int | None, *, seed: int) -> tuple[Variation | None, Variation | None]:
        """How what is cut out of a clip, and of its references, varies by the position of the sample."""
        if self._cut_out is None or position is None:
            return None, None
        return varied(self._cut_out.kind, position, seed=seed)

    def _box(self, frames: np.ndarray, how: Variation | None) -> Box | None:
        """What is cut out of frames of one size; None: nothing is."""
        if self._cut_out is None or self._shows is None:
            return None
        size, _ = measure(self._members[0], int(frames[0]), self._cut.checked)
        return self._cut_out.box(map(self._shows.extent, map(int, frames)), size, how)

    def _cut_of(self, member: Member, box: Box | None) -> CutOf:
        if self._cut_out is None or box is None:
            return self._cut.checked
        cut = self._cut_out.cut(box, target=member is self._members[0])
        return lambda size, where: cut

    def _load(self, frames: np.ndarray, crop: np.ndarray | None, into: Mapping[str, np.ndarray], *, box: Box | None) -> None:
        """Writes the frames of a clip, each cut alike."""
        cuts = [self._cut_of(member, box) for member in self._members]
        first: Size | None = None
        for t, frame in enumerate(map(int, frames)):
            pairs = zip(self._members, cuts, strict=True)
            sized = [read(member, frame, member.spec, cut_of, crop, remedy=REMEDY) for member, cut_of in pairs]
            for member, values in zip(self._members, of_one_size(self._members, frame, sized), strict=True):
                into[member.spec.name][t] = values
            size = sized[0][0]
            first = first or size
            self._require_size(frame, size, int(frames[0]), first)
            if self._flow is not None:
                with named(self._members[0], frame):
                    into[self._flow.name][t] = self._flow.read(frame, self._cut, size, crop)

    def _mirror(self, values: np.ndarray, name: str) -> None:
        """Mirrors the frames of a clip left to right, in place; what moves to the right then moves to the left."""
        if self._flow is not None and name == self._flow.name:
            values[:] = values[..., ::-1].copy()
            values[:, 0] *= -1
            return
        pixels = values if values.dtype == np.uint8 else values[..., None].view(np.uint8)
        mirror(pixels, np.ones(len(values), dtype=bool))


def numbered(points: np.ndarray) -> np.ndarray:
    """The points of a clip (t, h, w), numbered anew: from 0 on, so that there are at most t h w; -1 where there is none."""
    return np.unique(np.append(points, -1), return_inverse=True)[1][:-1].reshape(points.shape) - 1
