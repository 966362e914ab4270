"""The section `data` of imaginaire's YAML files: what belongs to a sample, and where it lies; how it is cut is in `cutting`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from triptych.core.batch import IMAGES_B, STYLE, STYLE_LABELS, ClipLength, DataSpec, InputSpec
from triptych.core.errors import ConfigError, nearest
from triptych.core.given import shown
from triptych.data.clips import ClipDataConfig, style_specs
from triptych.data.config import AS_STORED, DataConfig
from triptych.data.domains import UnpairedDataConfig
from triptych.data.few_shot import FewShotDataConfig
from triptych.data.keypoints import NUM_LIMBS
from triptych.data.pairs import PairedDataConfig
from triptych.interop.imaginaire.cutting import MOST_PIXELS, size_of, with_cut, with_cut_out
from triptych.interop.imaginaire.reading import VIDEO, ModelType, Settings

_PAIRED, _UNPAIRED, _FEW_SHOT, _CLIPS = "paired_images", "unpaired_images", "unpaired_few_shot_images", "paired_videos"
_FEW_SHOT_CLIPS = "paired_few_shot_videos"
_DATA: dict[ModelType, str] = {"unit": _UNPAIRED, "munit": _UNPAIRED, "funit": _FEW_SHOT, "coco_funit": _FEW_SHOT}
_DATA |= {"vid2vid": _CLIPS, "fs_vid2vid": _FEW_SHOT_CLIPS, "wc_vid2vid": _CLIPS}
"""The data that a model learns from, as the last part of `data.type`; the others learn from pairs."""
_ANY_DATA = ("images", "dummy")
_POINTS, _POINT_MAPS = "unprojections", "points"
"""The type of data that says which points of the scene pixels show: files of the original, and the folder of maps made of them."""
_POSES = "for_pose_dataset"
_INSTANCES = "instance"
"""How the names of maps of instances begin."""
_OF_PEOPLE: tuple[ModelType, ...] = ("vid2vid", "fs_vid2vid")
"""The models that are made for clips of people too."""
_RANKS = {"densepose": 0, "limbs": 1, "pixels": 2}
"""In which images stand among the label maps of a frame."""
_LONGEST = 100
"""Frames of a clip at most, where the file says nothing."""
_MOST_CLASSES = 10_000
_ORDER = {"classes": 0, "image": 1, "instances": 2, "points": 3}
"""In which label maps are concatenated."""


@dataclass(frozen=True)
class Dataset:
    """What the section describes."""

    config: DataConfig | None
    "The data, but for the folder where they lie; None: the weights have to show what images are made from."
    spec: DataSpec
    train_root: str | None = None
    val_root: str | None = None
    positive_conditions: bool = False
    "Whether images among the labels go from 0 to 1 there."
    positive_inputs: tuple[str, ...] = ()
    "Those that do, where others go from -1 to 1."
    people: bool = False
    "Whether clips are of people whose DensePose is there."
    hide_head: bool = False
    "Whether the generator does not see their heads there."
    assumed: bool = False
    "Whether the file has no such section, so that labels and sizes are assumed, or those of the weights."

    @property
    def label_channels(self) -> int:
        """Channels of the label maps of pairs."""
        return sum(_channels(spec) for spec in self.spec.inputs if spec.references is None)

    @property
    def label_parts(self) -> str:
        """The parts of the label maps with their channels, for messages."""
        if self.assumed:
            return f"gen.num_labels {self.label_channels}"
        return ", ".join(f"{spec.name} {_channels(spec)}" for spec in self._labels)

    @property
    def _labels(self) -> list[InputSpec]:
        maps = (spec for spec in self.spec.inputs if spec.kind != "points" and spec.references is None)
        return sorted(maps, key=lambda spec: _ORDER[spec.kind])

    def single(self) -> Dataset:
        """The frames of clips as pairs."""
        assert isinstance(self.config, ClipDataConfig)
        names = {field.name for field in fields(PairedDataConfig)}
        values = {name: value for name, value in self.config.to_dict().items() if name in names}
        inputs = tuple(replace(entry, frames=None) for entry in self.spec.inputs if entry.kind != "points")
        spec = replace(self.spec, inputs=inputs, frames=None, clip_length=None)
        return replace(self, config=PairedDataConfig.from_dict(values), spec=spec)

    def with_classes(self, num_classes: int) -> Dataset:
        """The same few-shot data with so many classes."""
        return replace(self, spec=replace(self.spec, num_classes=num_classes, inputs=_style_inputs(self.spec.channels, num_classes)))


def assumed_data(channels: int, *, side: int) -> Dataset:
    """Squares, and a class map with a class for each channel of the label maps; 0 channels: the weights have to show how many."""
    inputs = (InputSpec(name="seg_maps", kind="classes", num_classes=channels),) if channels else ()
    pairs = PairedDataConfig(image_size=side, maps=("seg_maps",), num_classes=(channels or 1,), enlarge=True).updated(AS_STORED)
    return Dataset(pairs if channels else None, DataSpec(image_size=side, channels=3, inputs=inputs), assumed=True)


def data_without_section(gen: Settings) -> Dataset:
    """The data of a SPADE whose file has no section `data`, as one for translation alone."""
    gen.warnings.append("data: missing; the labels are taken for one class map, with a class for each channel that the network sees")
    channels = gen.number("num_labels", 0, least=0, most=_MOST_CLASSES)
    return assumed_data(channels, side=gen.number("out_image_small_side_size", 256, most=MOST_PIXELS))


def read_data(kind: ModelType, data: Settings, *, num_classes: int | None) -> Dataset:
    """What `data` says, for such a model; `num_classes`: of the few-shot discriminator, if said. A ConfigError names the setting."""
    expected, name = _DATA.get(kind, _PAIRED), data.text("type", "images").rpartition(".")[2]
    pairs = expected in (_PAIRED, _CLIPS, _FEW_SHOT_CLIPS)
    if name not in (expected, *_ANY_DATA) and not (expected == _PAIRED and name == _CLIPS):  # the frames of clips are pairs
        raise ConfigError(data.name("type"), f"got {shown(name)}, expected one that ends in {expected}, which {kind} learns from")
    types = _input_types(data)
    tables = types.pop(_POINTS, None)
    if tables is not None:
        for key in ("pre_aug_ops", "post_aug_ops", "computed_on_the_fly"):
            tables.value(key)
    for settings in types.values():
        _check_operations(settings)
    train, val = data.inside("train"), data.inside("val")
    positive: tuple[str, ...] = ()
    if pairs:
        config, labels = _pairs(kind, data, types)
        channels = _common_depth(types, config.target)
        positive = _positive(labels, types)
        inputs = tuple(sorted(labels, key=lambda spec: spec.kind == "image"))
    elif expected == _UNPAIRED:
        a, b = (next((name for name in types if name.endswith(end)), f"images{end}") for end in ("_a", "_b"))
        channels = _common_depth(types, a, b)
        config, inputs = UnpairedDataConfig(a=a, b=b), (InputSpec(name=IMAGES_B, kind="image", channels=channels),)
    else:
        channels = _common_depth(types, "images_content", "images_style")
        config, inputs = FewShotDataConfig(validation_fraction=0.0), _style_inputs(channels, num_classes)
    workers = data.number("num_workers", least=0) or None
    config = with_cut(kind, config, train.inside("augmentations"))
    if kind == "fs_vid2vid":
        config = with_cut_out(config, data, people=data.value(_POSES) is not None)
    config = replace(config, channels=channels, workers=workers, enlarge=True)
    config = config.updated(AS_STORED)
    width = config.width if isinstance(config, PairedDataConfig) else None
    spec = DataSpec(image_size=config.image_size, width=width, channels=channels, num_classes=num_classes, inputs=inputs)
    if kind in VIDEO:
        references = data.number("initial_few_shot_K", 1, most=64) if kind == "fs_vid2vid" else 0
        people = _people(data, spec.inputs, types, cut_out=kind == "fs_vid2vid") if kind in _OF_PEOPLE else {}
        config, spec = _clips(config, spec, train, people, points=kind == "wc_vid2vid", tables=tables, references=references)
    densepose = any(entry.stored == "densepose" for entry in inputs)
    alike = len(positive) in (0, sum(entry.kind == "image" for entry in inputs))
    return Dataset(
        config,
        spec,
        _root(train, warn=True),
        _root(val, warn=False),
        positive_conditions=alike and bool(positive),
        positive_inputs=() if alike else positive,
        people=densepose and kind == "fs_vid2vid",
        hide_head=densepose and kind == "fs_vid2vid" and data.inside(_POSES).flag("remove_face_labels", False),
    )


def _style_inputs(channels: int, num_classes: int | None) -> tuple[InputSpec, ...]:
    image = InputSpec(name=STYLE, kind="image", channels=channels)
    return (image,) if num_classes is None else (image, InputSpec(name=STYLE_LABELS, kind="labels", num_classes=num_classes))


# Types of data -------------------------------------------------------------------------------------------------------------


def _input_types(data: Settings) -> dict[str, Settings]:
    value = data.value("input_types")
    entries = value if isinstance(value, list) else [] if value is None else [value]
    fits = isinstance(value, list | Mapping | None) and all(isinstance(entry, Mapping) for entry in entries)
    data.require(fits, "input_types", "a list with the settings of each type of data by its name")
    types: dict[str, Any] = {}
    for name, values in (pair for entry in entries for pair in entry.items()):
        if name in ("", ".", "..") or "/" in name:
            raise ConfigError(data.name("input_types"), f"got {shown(name)}, expected names of folders, without a slash")
        if name in types:
            raise ConfigError(f"{data.name('input_types')}.{name}", "given twice, expected once: one of them would be ignored")
        types[name] = {} if values is None else values
    return {name: Settings(values, f"{data.name('input_types')}.{name}", data) for name, values in types.items()}


def _check_operations(settings: Settings) -> None:
    """Warns of what the original would compute with code that the file names."""
    for key in ("pre_aug_ops", "post_aug_ops"):
        operations = settings.value(key)
        if operations not in (None, "None", "none", ""):
            settings.warn(key, f"got {shown(operations)}; what a file asks to run is not run: prepare the data so")
    if settings.flag("computed_on_the_fly", False):
        settings.warn("computed_on_the_fly", "nothing is computed; make a folder of these images")


def _names(data: Settings, key: str, types: Mapping[str, Settings]) -> list[str]:
    names = data.texts(key, "a list of names of data.input_types")
    for name in names:
        if name not in types:
            raise ConfigError(data.name(key), f"got {shown(name)}, which is none of data.input_types{nearest(name, types)}")
        data.require(names.count(name) == 1, key, f"{name} once")
    return names


def _depth(settings: Settings, *, drawn: bool = False) -> int:
    """Channels of images; those of maps that the original draws may be more, which is warned of."""
    depth = settings.number("num_channels", 3)
    if drawn and depth not in (1, 3, NUM_LIMBS):
        wanted = f"it takes images of 1 or 3 channels, or the {NUM_LIMBS} of limbs"
        settings.warn("num_channels", f"got {depth}; nothing is drawn here: where the run is trained, {wanted}")
    if drawn:
        return depth
    settings.require(depth in (1, 3), "num_channels", "1 (grey) or 3 (RGB)")
    return depth


def _common_depth(types: Mapping[str, Settings], *names: str) -> int:
    """Channels of the images of these types, of which some may be missing. Raises ConfigError where they differ: a run has one number."""
    depths = {name: _depth(types[name]) for name in names if name in types}
    for name, depth in depths.items():
        first = next(iter(depths))
        if depth != depths[first]:
            reason = f"got {depth}, expected {depths[first]}, as {first} has: the images of a run have one number of channels"
            raise ConfigError(types[name].name("num_channels"), reason)
    return next(iter(depths.values()), 3)


# Pairs ----------------------------------------------------------------------------------------------------------------------


def _channels(spec: InputSpec) -> int:
    """Of the label maps."""
    if spec.kind == "classes":
        return (spec.num_classes or 0) + spec.dont_care
    return 1 if spec.kind == "instances" else spec.channels or 0


def _pairs(kind: ModelType, data: Settings, types: Mapping[str, Settings]) -> tuple[PairedDataConfig, list[InputSpec]]:
    """The data, and what images are made from: class maps, images (maps of people first), then instances."""
    targets, names = _names(data, "input_image", types) or ["images"], _names(data, "input_labels", types)
    if len(targets) > 1:
        raise ConfigError(data.name("input_image"), f"got {targets}, expected one: the images to be made")
    if not names:
        raise ConfigError(data.name("input_labels"), "missing: the types of data that images are made from")
    data.require(targets[0] not in names, "input_labels", f"other types of data than {targets[0]}, the images to be made")
    counts = _class_counts(data, types, names)
    dont_care = _dont_care(data, types, counts)
    last = _instances(types, [name for name in names if name not in counts]) if kind == "pix2pixHD" else None
    blank = bool(counts) and not dont_care
    counted = [name for name in names if name in counts]
    maps = [InputSpec(name=name, kind="classes", num_classes=counts[name], dont_care=dont_care, blank=blank) for name in counted]
    instances = [] if last is None else [InputSpec(name=last, kind="instances")]
    images = [_image(kind, data, types[name], name) for name in names if name not in (*counts, last)]
    labels = [*maps, *sorted(images, key=lambda spec: _RANKS[spec.stored]), *instances]
    ordered = [spec.name for spec in labels]
    if ordered != names:
        reason = f"got {', '.join(names)}, expected class maps, DensePose, limbs, other images, instances: {', '.join(ordered)}"
        raise ConfigError(data.name("input_labels"), reason)
    config = PairedDataConfig(
        target=targets[0],
        maps=tuple(spec.name for spec in maps),
        num_classes=tuple(counts[spec.name] for spec in maps),
        dont_care=dont_care,
        blank=blank,
        instances=last,
        conditions=tuple(spec.name for spec in images),
        nearest=tuple(spec.name for spec in images if spec.nearest),
    )
    return config, labels


def _image(kind: ModelType, data: Settings, settings: Settings, name: str) -> InputSpec:
    """An image among the label maps: of clips of people also the maps of limbs and of DensePose, which are resized as maps are anyway."""
    mask, interpolator = settings.flag("is_mask", False), settings.value("interpolator")
    channels, posed = _depth(settings, drawn=kind in VIDEO), kind in _OF_PEOPLE
    if posed and channels == NUM_LIMBS:
        return InputSpec(name=name, kind="image", channels=channels, stored="limbs")
    if posed and channels == 3 and "densepose" in name and data.value(_POSES) is not None:
        data.inside(_POSES).require(data.inside(_POSES).text("pose_type", "both") == "both", "pose_type", "both")
        return InputSpec(name=name, kind="image", channels=channels, stored="densepose")
    return InputSpec(name=name, kind="image", channels=channels, nearest=mask or str(interpolator).upper() == "NEAREST")


def _positive(labels: Sequence[InputSpec], types: Mapping[str, Settings]) -> tuple[str, ...]:
    """Names of the images whose values go from 0 to 1; beside DensePose all are brought to -1 to 1."""
    images = [spec for spec in labels if spec.kind == "image"]
    scaled = any(spec.stored == "densepose" for spec in images)
    normalized = {spec.name: types[spec.name].flag("normalize", False) for spec in images}
    return () if scaled else tuple(name for name, whether in normalized.items() if not whether)


def _class_counts(data: Settings, types: Mapping[str, Settings], labels: list[str]) -> dict[str, int]:
    """The number of classes of each type that is a class map."""
    value = data.value("one_hot_num_classes")
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        masks = [name for name in labels if types[name].flag("is_mask", False)]
        data.require(len(masks) == 1, "one_hot_num_classes", "a number for each class map by its name")
        return {masks[0]: data.number("one_hot_num_classes", most=_MOST_CLASSES)}
    numbers = data.inside("one_hot_num_classes")
    return {name: numbers.number(name, 1, most=_MOST_CLASSES) for name in value if name in labels}


def _dont_care(data: Settings, types: Mapping[str, Settings], maps: Iterable[str]) -> bool:
    """Whether class maps have a channel more, for ignored pixels. Raises ConfigError where some have and some have not."""
    flags = {name: types[name].flag("use_dont_care", False) for name in maps}
    value = data.value("use_dont_care")
    if isinstance(value, Mapping):
        section = data.inside("use_dont_care")
        flags |= {name: section.flag(name, False) for name in value if name in flags}
    elif value is not None:
        return data.flag("use_dont_care")
    if len(set(flags.values())) > 1:
        told = ", ".join(f"{name} {str(flag).lower()}" for name, flag in flags.items())
        raise ConfigError(data.name("use_dont_care"), f"got {told}, expected the same for all class maps, which share data.dont_care here")
    return any(flags.values())


def _instances(types: Mapping[str, Settings], others: Sequence[str]) -> str | None:
    """Which of the label maps without classes is that of the instances: by its name, else the last one that is a mask, if it is one."""
    named = next((name for name in others if name.startswith(_INSTANCES)), None)
    last = named or next(iter(others[-1:]), None)
    if last is None:
        return None
    mask = types[last].flag("is_mask", False)
    if named and not mask:
        types[last].warn("is_mask", f"false, but the name of {last} says that it is the map of instances, and it is taken for that")
    if mask and not named:
        types[last].warn("is_mask", f"true, so {last} is taken for the map of instances, though its name does not begin with {_INSTANCES}")
    return last if named or mask else None


def _people(data: Settings, inputs: Sequence[InputSpec], types: Iterable[str], *, cut_out: bool) -> dict[str, object]:
    """The settings of data of people, where it is that. `cut_out`: the person is, where the file gives a size for that."""
    posed = {spec.stored: spec.name for spec in inputs if spec.stored != "pixels"}
    if not posed and data.value(_POSES) is None:
        return {}
    section = data.inside(_POSES)
    others = [spec.name for spec in inputs if spec.kind == "image" and spec.stored == "pixels"]
    share = section.rate("random_drop_prob", 0.0)
    values: dict[str, Any] = {**posed, "conditions": others, "drop_parts": share if posed else 0.0, "flip": False}
    draw = "triptych data draw DATA/train/JSON --frames DATA/train/images --kind people"
    if section.flag("basic_points_only", False):
        draw += " --body-only"
    elif section.flag("remove_face_labels", False):
        draw += " --face False"
    if "limbs" in posed:
        command = f"{draw} --form limbs --out DATA/train/limbs"
        data.warn(f"input_types.{posed['limbs']}", f"limbs are read as maps here: {command} writes them (--data.limbs limbs)")
    for name in others:
        if "openpose" in name:
            data.warn(f"input_types.{name}", f"lines of people are read as images here: {draw} --out DATA/train/poses draws them")
    if data.inside("train").inside("augmentations").flag("horizontal_flip", False):
        data.warn("train.augmentations.horizontal_flip", "not done here with maps of people, whose left would become right")
    if cut_out and size_of(data, "output_h_w") is not None:
        values["cut_out"] = "person"
        for name in types:
            if "instance" in name:
                command = f"triptych data person MAPS --instances DATA/train/{name} --poses DATA/train/poses --out DATA/train/FOLDER"
                data.warn(f"input_types.{name}", f"other people stay on the maps; {command} takes them out")
    return values


def _clips(
    pairs: DataConfig,
    spec: DataSpec,
    train: Settings,
    people: Mapping[str, object],
    *,
    points: bool,
    tables: Settings | None,
    references: int,
) -> tuple[ClipDataConfig, DataSpec]:
    """Clips of such pairs, with settings of maps of people.

    `points`: they have maps of points too; `tables`: the settings of the files that they are made of, if any.
    """
    first = train.number("initial_sequence_length", 4)
    most = max(first, train.number("max_sequence_length", _LONGEST))
    step = train.inside("augmentations").number("max_time_step", 1)
    length = ClipLength(first=first, most=most)
    if points:
        where = train.name(_POINTS) if tables is None else tables.section
        train.warnings.append(
            f"{where}: points are read as maps here: triptych data points UNPROJECTIONS --out DATA/train/{_POINT_MAPS} writes them"
        )
    values = {name: value for name, value in pairs.to_dict().items() if name != "kind"}
    values |= {"length": length.to_dict(), "most_step": step, "points": _POINT_MAPS if points else None, "references": references}
    values |= people
    config = ClipDataConfig.from_dict(values)
    inputs = [replace(entry, frames=most) for entry in spec.inputs]
    if points:
        inputs.append(InputSpec(name=_POINT_MAPS, kind="points", frames=most))
    if references:
        target = InputSpec(name=config.target, kind="image", channels=spec.channels)
        inputs += style_specs(target, spec.inputs, count=references)
    return config, replace(spec, inputs=tuple(inputs), frames=most, clip_length=length)


# Places ---------------------------------------------------------------------------------------------------------------------


def _root(part: Settings, *, warn: bool) -> str | None:
    """The folder of the data of a part. `warn`: of what is not used."""
    roots = part.texts("roots", "a list of folders")
    if len(roots) > 1 and warn:
        part.warn("roots", f"only the first of {len(roots)} folders is used, {roots[0]}; put the data into one")
    if part.choice("dataset_type", ("folder", "lmdb", "object_store"), "folder") == "object_store" and warn:
        part.warn("dataset_type", "an object store is not read; copy the data into a folder, and give that (data.path)")
    return roots[0] if roots else None
