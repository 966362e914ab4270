"""`triptych data doctor`: whether a set of images can be trained on, and what is wrong with which of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from triptych.cli.arguments import asks_for_help, finished, named_as_flags, require_argument, require_images
from triptych.cli.data_settings import SIZE, lengthened
from triptych.cli.progress_bar import progress_bar
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError
from triptych.core.reading import user_path
from triptych.core.wording import counted
from triptych.data.config import MOST_WORKERS, ClassesFrom, DataConfig, Source

if TYPE_CHECKING:
    from triptych.data.examination import Examination, Finding

LINE = "triptych data doctor IMAGES [--image-size N] [--against OTHERS] [--out FILE.json] [--page FILE.html] [--quarantine FILE]"
_EXAMPLES = 3
_LONGEST_KEY = 60
NOT_FIT = 1


@config
class Length(Config):
    """Frames of the clips of a training, with the defaults of `ClipLength`, which takes PyTorch."""

    first: int = 4
    "Frames of a training clip at first, as data.length.first says it: clips of fewer are a fault."
    most: int = 16
    "The most frames of a training clip, as data.length.most says it: that none has as many is a fault."


@config
class DoctorOptions(Config):
    """What images are held against, and where what was found goes."""

    image_size: int | None = None
    "Size in pixels that they are to be trained at: smaller ones are a fault. None: any size will do."
    against: str | None = None
    "Other images, such as those of a validation or of a reference, which should be none of these. None: no others."
    out: str | None = None
    "FILE.json: all that was found. An interrupted command with the same FILE goes on where it was. None: no file."
    page: str | None = None
    "FILE.html: a page with the pictures concerned. None: no page."
    quarantine: str | None = None
    "FILE.json: images to leave out, and why: those that would stop a training, and of exact duplicates all but one. None: no file."
    skip: str | None = None
    "FILE.json that --quarantine wrote: these images are passed over, as by data.skip. None: all are looked at."
    workers: int | None = None
    "Processes that decode; 0: none but this one, which a damaged file may then end. None: one for each CPU core."
    source: Source = "auto"
    "What IMAGES is, as data.source says it."
    labels: ClassesFrom = "auto"
    "Where the class of an image is, as data.labels says it."
    label_file: str | None = None
    "Text file with the classes of the images in no sub-folder, as data.label_file says it. None: there is none."
    class_file: str | None = None
    "Text file with the names of the classes that it has as numbers, as data.class_file says it. None: there is none."
    enlarge: bool = False
    "Training enlarges small images (data.enlarge): they are no fault."
    background: str | None = DataConfig().background
    "What shows through transparent images, as data.background says it. None: colours beneath show."
    profiles: Literal["convert", "ignore"] = DataConfig().profiles
    "Whether colour profiles are converted to sRGB, as data.profiles says it."
    validation_fraction: float = DataConfig().validation_fraction
    "Share held out, as data.validation_fraction says it: duplicates across that border are named."
    target: str = "images"
    "Of pairs: the folder of the images to be made."
    maps: tuple[str, ...] = ()
    "Of pairs: folders of class maps. With it, or --instances or --conditions, IMAGES holds pairs."
    num_classes: tuple[int, ...] = ()
    "Of pairs: the number of classes of each folder of maps."
    dont_care: bool = False
    "Of pairs: other numbers in a map are ignored, as data.dont_care says it."
    blank: bool = False
    "Of pairs: other numbers in a map are no class, as data.blank says it."
    instances: str | None = None
    "Of pairs: the folder of instance maps. None: there are none."
    conditions: tuple[str, ...] = ()
    "Of pairs: folders of other images to make them from."
    clips: bool = False
    "The pairs are frames of clips; so they are with one of the five folders below, which are looked at too."
    points: str | None = None
    "Of clips: the folder of the maps of points, as data.points says it. None: there are none."
    flow: str | None = None
    "Of clips: the folder of the true flow, as data.flow says it. None: there is none."
    limbs: str | None = None
    "Of clips: the folder of the maps of limbs, as data.limbs says it. None: there are none."
    densepose: str | None = None
    "Of clips: the folder of DensePose's maps, as data.densepose says it. None: there are none."
    landmarks: str | None = None
    "Of clips whose faces are cut out: the folder of their points, as data.landmarks says it. None: no faces are cut out."
    length: Length = dataclasses.field(default_factory=Length)
    "Of clips: how many frames they need."
    references: int = 0
    "Of clips: other frames of the same clip beside those, as data.references says it."
    width: int | None = None
    "Of pairs: the width in pixels that they are trained at. None: the image size."

    def validate(self) -> None:
        for name, endings in (("out", (".json",)), ("quarantine", (".json",)), ("page", (".html", ".htm"))):
            place = getattr(self, name)
            self.require(place is None or Path(place).suffix in endings, name, f"a name that ends with {endings[0]}")
        self.require(self.image_size is None or self.image_size >= 1, "image_size", "at least 1")
        self.require(self.width is None or self.image_size is not None, "width", "nothing without --image-size")
        self.require(self.workers is None or 0 <= self.workers <= MOST_WORKERS, "workers", f"0 to {MOST_WORKERS}, or nothing")
        self.require(self.source not in ("digits", "latents"), "source", "a source of images that lie at a path")
        if not self.are_pairs:
            for name in ("num_classes", "dont_care", "blank", "width"):
                self.require(not getattr(self, name), name, "nothing unless --maps, --instances or --conditions say that these are pairs")
        if not self.are_clips:
            self.require(not self.references, "references", "0 unless --clips says that these are frames of clips")
            if self.length != Length():
                raise ConfigError("length", "got one, expected none unless --clips says that these are frames of clips")
        self.require(not (self.blank and self.dont_care), "blank", "one of it and --dont-care")
        made_of = self.maps or self.instances or self.conditions or self.limbs or self.densepose
        known = "the folder of the class maps, unless --instances, --conditions, --limbs or --densepose say what frames are made from"
        self.require(bool(made_of) or not self.are_clips, "maps", known)
        self.require(self.quarantine is None or not self.are_clips, "quarantine", "nothing for clips: no frame can be left out of its clip")

    @property
    def are_clips(self) -> bool:
        """Whether the images are frames of clips."""
        return self.clips or any(getattr(self, name) is not None for name in ("points", "flow", "limbs", "densepose", "landmarks"))

    @property
    def are_pairs(self) -> bool:
        """Whether the images are pairs, or frames of clips."""
        return bool(self.maps or self.instances or self.conditions) or self.are_clips

    def data(self, path: str) -> DataConfig:
        """The configuration of the images at a path. Raises ConfigError."""
        from triptych.data.clips import ClipDataConfig
        from triptych.data.pairs import PairedDataConfig

        kind = ClipDataConfig if self.are_clips else PairedDataConfig if self.are_pairs else DataConfig
        names = {field.name for field in dataclasses.fields(kind)} & {field.name for field in dataclasses.fields(self)} - {"length"}
        values = {name: getattr(self, name) for name in names if name != "image_size" or self.image_size is not None}
        if self.are_clips:
            values |= {"flip": False, "cut_out": "none" if self.landmarks is None else "face"}
        found = kind(path=str(user_path(path)), **values)
        return found.updated({"length": self.length.to_dict()}) if self.are_clips else found


def main(arguments: Sequence[str]) -> int:
    """0: the images are fit; 1: they are not."""
    if arguments and not asks_for_help(arguments) and not arguments[0].startswith("-"):
        require_images(arguments[0], note="; expected a folder, .zip, .tar, .npz or .npy of images")
    images, options = configure(arguments)
    require_images(options.against, note=" (--against)")

    from triptych.runs.doctor import examine

    with named_as_flags(options), progress_bar("looking") as progress:
        found = examine(
            options.data(images),
            against=options.against,
            sized=options.image_size is not None,
            workers=options.workers,
            out=options.out,
            page=options.page,
            quarantine=options.quarantine,
            progress=progress,
        )
    page = None if options.page is None else f"{options.page} (open it in a browser)"
    written = [place for place in (options.out, page, options.quarantine) if place is not None]
    finished(*said(found), *([f"written: {', '.join(written)}"] if written else []))
    return 0 if found.fit else NOT_FIT


def configure(arguments: Sequence[str]) -> tuple[str, DoctorOptions]:
    """The images, and the options."""
    from triptych.cli.settings import parse

    helped = asks_for_help(arguments)
    if not helped:
        require_argument(arguments, "images", usage=LINE)
    options, _ = parse(
        lengthened(arguments if helped else arguments[1:], SIZE),
        prog="triptych data doctor IMAGES",
        description="Decodes every image, and says what is wrong with which. The exit code is 1 where a training could not use them.",
        options=DoctorOptions(),
        settings=Config(),
    )
    return arguments[0], options


def said(found: Examination) -> Iterator[str]:
    """What was found, line by line."""
    yield f"{found.subjects.place} ({found.subjects.source}): {', '.join(_counts(found))}"
    yield from found.notes
    for stops, title in ((True, "would stop a training:"), (False, "worth a look:")):
        findings = [finding for finding in found.findings if finding.fault.stops == stops]
        if findings:
            yield title
            for finding in findings:
                yield from _lines(found, finding)
    if found.sizes:
        yield "short sides: least {least}, median {median}, greatest {greatest} pixels".format(**found.sizes)
    if found.statistics:
        mean, std, flat = (found.statistics[name] for name in ("mean", "std", "flat"))
        yield f"pixels in [-1, 1]: mean {mean:.4f}, standard deviation {std:.4f} (EDM's sigma_data); flat images: {flat:.1%}"
    size = f" at --image-size {found.wanted.image_size}" if found.wanted.image_size else ""
    if found.fit:
        yield f"fit: these images can be trained on{size}"
    else:
        hint = "; --quarantine FILE.json lists what to leave out" if found.quarantine() else ""
        yield f"not fit: a training{size} would stop{hint}"


def _counts(found: Examination) -> Iterator[str]:
    yield f"{found.count(0):,} to train on"
    yield f"{found.count(1):,} held out"
    if found.count(2):
        yield f"{found.count(2):,} unused"
    if found.against is not None:
        yield f"{found.count(3):,} of {found.against.place}"
    if found.classes:
        counts = [each.training for each in found.classes]
        yield f"{counted(len(counts), 'class', 'classes')} of {min(counts):,} to {max(counts):,}"


def _lines(found: Examination, finding: Finding) -> Iterator[str]:
    groups = f" in {counted(len(finding.groups), 'group')}" if finding.groups else ""
    yield f"  {finding.count:>9,}  {finding.fault.title}{groups}: {finding.fault.advice}"
    examples = [_example(found, finding, item) for item in finding.items[:_EXAMPLES].tolist()]
    if finding.groups:
        examples = [" = ".join(_short(found.key(item)) for item in group[:2].tolist()) for group in finding.groups[:_EXAMPLES]]
    for line in (*finding.general[:_EXAMPLES], *examples):
        yield f"             {line}"


def _example(found: Examination, finding: Finding, item: int) -> str:
    why = finding.why.get(item)
    return _short(found.key(item)) + (f" ({why})" if why else "")


def _short(key: str) -> str:
    return key if len(key) <= _LONGEST_KEY else f"...{key[-_LONGEST_KEY:]}"
