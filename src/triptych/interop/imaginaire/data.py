"""The section `data` of imaginaire's YAML files: what belongs to a sample, how it is cut and varied, and where it lies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from triptych.core.batch import IMAGES_B, STYLE_LABELS, DataSpec, InputSpec
from triptych.core.errors import ConfigError, nearest
from triptych.interop.imaginaire.reading import ModelType, Settings

DataKind = Literal["paired_images", "unpaired_images", "unpaired_few_shot_images"]
KINDS: dict[ModelType, DataKind] = {
    "spade": "paired_images",
    "pix2pixHD": "paired_images",
    "unit": "unpaired_images",
    "munit": "unpaired_images",
    "funit": "unpaired_few_shot_images",
    "coco_funit": "unpaired_few_shot_images",
}
"""The data that a model learns from, as the last part of `data.type`."""

_UNKNOWN_TYPES = ("images", "dummy")
_LEFT_OUT = ("random_resize_h_w_aspect", "rotate", "random_rotate_90", "contrast", "blur", "motion_blur", "compression", "gamma")
_CLASSES = 10_000
_SIDE = 2**16
_SIZES = {"spade": 256, "pix2pixHD": 512, "unit": 512}


@dataclass(frozen=True)
class PlannedData:
    """What the section says."""

    kind: DataKind
    settings: dict[str, Any]
    "Of our data configuration of that kind, but for where the data lie."
    spec: DataSpec
    train_root: str | None
    val_root: str | None
    positive_conditions: bool = False
    "Whether images among the labels go from 0 to 1 there."
    label_parts: str = ""
    "What the labels consist of, for messages."
    unsaid: bool = False
    "Whether the file says nothing of the data, so that labels and sizes are those of the weights."
    warnings: list[str] = field(default_factory=list)

    @property
    def label_channels(self) -> int:
        """Of the labels that the networks see."""
        return sum(_channels(spec) for spec in self.spec.inputs)

    def with_classes(self, num_classes: int) -> PlannedData:
        """The same few-shot data with so many classes."""
        inputs = _style_inputs(self.spec.channels, num_classes)
        return dataclasses.replace(self, spec=dataclasses.replace(self.spec, num_classes=num_classes, inputs=inputs))

    def with_labels(self, channels: int, *, side: int) -> PlannedData:
        """Pairs of squares and of a class map of so many classes."""
        labels = InputSpec(name="seg_maps", kind="classes", num_classes=channels)
        settings = {"maps": (labels.name,), "num_classes": (channels,), "target": "images", "enlarge": True, "image_size": side}
        spec = dataclasses.replace(self.spec, image_size=side, inputs=(labels,))
        return dataclasses.replace(self, settings=settings, spec=spec, label_parts=f"gen.num_labels {channels}")


def unsaid_data(gen: Settings) -> PlannedData:
    """The data of a SPADE whose file has no section `data`, as one for translation alone: a class map, of as many classes as labels."""
    channels, side = gen.number("num_labels", 0, least=0, most=_CLASSES), gen.number("out_image_small_side_size", 256, most=_SIDE)
    line = "data: missing; the labels are taken for one class map, with a class for each channel that the network sees"
    planned = PlannedData("paired_images", {}, DataSpec(image_size=side, channels=3), None, None, unsaid=True, warnings=[line])
    return planned.with_labels(channels, side=side) if channels else planned


def _channels(spec: InputSpec) -> int:
    if spec.kind == "classes":
        return (spec.num_classes or 0) + spec.dont_care
    return 1 if spec.kind == "instances" else spec.channels or 0


def planned_data(kind: ModelType, data: Settings, *, num_classes: int | None) -> PlannedData:
    """What a section `data` says, for a model of that kind. `num_classes`: of the few-shot discriminator, None: it is not said.

    Raises ConfigError, naming the setting, for what is wrong or not here.
    """
    wanted, warnings = KINDS[kind], []
    given = data.text("type", "images").rpartition(".")[2]
    if given not in (wanted, *_UNKNOWN_TYPES):
        raise ConfigError(data.name("type"), f"got {given!r}, expected one that ends in {wanted}, which {kind} learns from")
    types = _input_types(data)
    _check_operations(types, warnings)
    train, val = data.inside("train"), data.inside("val")
    settings = _cut(kind, train.inside("augmentations"), warnings)
    width = settings.pop("width")
    channels = _image_channels(types)
    size = {"image_size": settings["image_size"], "channels": channels}
    settings |= {"channels": channels, "workers": data.number("num_workers", 0, least=0) or None, "enlarge": True}
    roots = _root(train, warnings), _root(val, [])
    if wanted == "paired_images":
        return _paired(kind, data, types, settings | {"width": width}, size, roots, warnings)
    if wanted == "unpaired_images":
        a, b = _domains(types)
        spec = DataSpec(**size, inputs=(InputSpec(name=IMAGES_B, kind="image", channels=channels),))
        return PlannedData(wanted, settings | {"a": a, "b": b}, spec, *roots, warnings=warnings)
    spec = DataSpec(**size, num_classes=num_classes, inputs=_style_inputs(channels, num_classes))
    return PlannedData(wanted, settings | {"validation_fraction": 0.0}, spec, *roots, warnings=warnings)


def _style_inputs(channels: int, num_classes: int | None) -> tuple[InputSpec, ...]:
    image = InputSpec(name="style", kind="image", channels=channels)
    return (image,) if num_classes is None else (image, InputSpec(name=STYLE_LABELS, kind="labels", num_classes=num_classes))


# Types of data -------------------------------------------------------------------------------------------------------------


def _input_types(data: Settings) -> dict[str, Settings]:
    """The settings of each type of data, by name."""
    given = data.value("input_types")
    entries = list(given) if isinstance(given, list) else [given] if isinstance(given, Mapping) else None
    if given is not None and (entries is None or not all(isinstance(entry, Mapping) for entry in entries)):
        raise ConfigError(data.name("input_types"), f"got {given!r}, expected a list with the settings of each type of data by its name")
    found = {}
    for entry in entries or []:
        for name, values in entry.items():
            found[name] = Settings({} if values is None else values, f"{data.name('input_types')}.{name}", data.asked)
    return found


def _check_operations(types: Mapping[str, Settings], warnings: list[str]) -> None:
    """Notes what the original would compute with code that the file names."""
    for settings in types.values():
        for key in ("pre_aug_ops", "post_aug_ops"):
            given = settings.value(key)
            if given not in (None, "None", "none", ""):
                warnings.append(f"{settings.name(key)}: got {given!r}; what a file asks to run is not run: prepare the data so")
        if settings.flag("computed_on_the_fly", False):
            warnings.append(f"{settings.name('computed_on_the_fly')}: nothing is computed; make a folder of these images")


def _names(data: Settings, key: str, types: Mapping[str, Settings]) -> list[str]:
    """The types of data that a setting lists."""
    given = data.value(key)
    names = [given] if isinstance(given, str) else given or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(data.name(key), f"got {given!r}, expected a list of names of data.input_types")
    for name in names:
        if name not in types:
            raise ConfigError(data.name(key), f"got {name!r}, which is none of data.input_types{nearest(name, types)}")
    return names


def _image_channels(types: Mapping[str, Settings]) -> int:
    """Of the images: of the first type that is one."""
    for name, settings in types.items():
        if name.startswith("image"):
            return _depth(settings)
    return 3


def _depth(settings: Settings) -> int:
    depth = settings.number("num_channels", 3)
    if depth not in (1, 3):
        raise ConfigError(settings.name("num_channels"), f"got {depth}, expected 1 (grey) or 3 (RGB)")
    return depth


def _domains(types: Mapping[str, Settings]) -> tuple[str, str]:
    found = [next((name for name in types if name.endswith(ending)), f"images{ending}") for ending in ("_a", "_b")]
    return found[0], found[1]


# Pairs ----------------------------------------------------------------------------------------------------------------------


def _paired(
    kind: ModelType,
    data: Settings,
    types: Mapping[str, Settings],
    settings: dict[str, Any],
    size: dict[str, Any],
    roots: tuple[str | None, str | None],
    warnings: list[str],
) -> PlannedData:
    targets, labels = _names(data, "input_image", types) or ["images"], _names(data, "input_labels", types)
    if len(targets) > 1:
        raise ConfigError(data.name("input_image"), f"got {targets}, expected one: the images to be made")
    if not labels:
        raise ConfigError(data.name("input_labels"), "missing: the types of data that images are made from")
    counts, dont_care = _class_counts(data, types, labels), _dont_care(data, types, labels)
    maps: list[InputSpec] = []
    conditions: list[InputSpec] = []
    instances: list[InputSpec] = []
    for name in labels:
        if name in counts:
            maps.append(InputSpec(name=name, kind="classes", num_classes=counts[name], dont_care=dont_care))
        elif kind == "pix2pixHD" and name == labels[-1] and _mask(types[name]):
            instances.append(InputSpec(name=name, kind="instances"))
        else:
            conditions.append(InputSpec(name=name, kind="image", channels=_depth(types[name])))
    ordered = [spec.name for spec in (*maps, *conditions, *instances)]
    if ordered != labels:
        reason = f"got {', '.join(labels)}, expected class maps first, then images, then instances: {', '.join(ordered)}"
        raise ConfigError(data.name("input_labels"), reason)
    parts = ", ".join(f"{spec.name} {_channels(spec)}" for spec in (*maps, *conditions, *instances))
    return PlannedData(
        "paired_images",
        settings
        | {
            "target": targets[0],
            "maps": tuple(spec.name for spec in maps),
            "num_classes": tuple(spec.num_classes for spec in maps),
            "dont_care": dont_care,
            "instances": instances[0].name if instances else None,
            "conditions": tuple(spec.name for spec in conditions),
        },
        DataSpec(**size, width=settings["width"], inputs=(*maps, *instances, *conditions)),
        *roots,
        positive_conditions=_positive(types, [spec.name for spec in conditions]),
        label_parts=parts,
        warnings=warnings,
    )


def _mask(settings: Settings) -> bool:
    return settings.flag("is_mask", False)


def _class_counts(data: Settings, types: Mapping[str, Settings], labels: list[str]) -> dict[str, int]:
    """The number of classes of each type that is a class map."""
    given = data.value("one_hot_num_classes")
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        masks = [name for name in labels if _mask(types[name])]
        if len(masks) != 1:
            raise ConfigError(data.name("one_hot_num_classes"), f"got {given!r}, expected a number for each class map by its name")
        return {masks[0]: data.number("one_hot_num_classes", 1, most=_CLASSES)}
    numbers = data.inside("one_hot_num_classes")
    return {name: numbers.number(name, 1, most=_CLASSES) for name in given if name in labels}


def _dont_care(data: Settings, types: Mapping[str, Settings], labels: list[str]) -> bool:
    """Whether class maps have a channel more for what is no class."""
    own = {name: types[name].flag("use_dont_care", False) for name in labels}
    given = data.value("use_dont_care")
    if isinstance(given, Mapping):
        section = data.inside("use_dont_care")
        own |= {name: section.flag(name, False) for name in given if name in labels}
        return any(own.values())
    return data.flag("use_dont_care", any(own.values()))


def _positive(types: Mapping[str, Settings], conditions: list[str]) -> bool:
    """Whether these images go from 0 to 1."""
    positive = {name: not types[name].flag("normalize", False) for name in conditions}
    if len(set(positive.values())) > 1:
        name = next(name for name in conditions if positive[name] != positive[conditions[0]])
        raise ConfigError(types[name].name("normalize"), "differs from that of the other images among data.input_labels; make them alike")
    return any(positive.values())


# Places and sizes -----------------------------------------------------------------------------------------------------------


def _root(part: Settings, warnings: list[str]) -> str | None:
    """The folder of the data of a part."""
    given = part.value("roots")
    roots = [given] if isinstance(given, str) else given or []
    if not isinstance(roots, list) or not all(isinstance(root, str) and root for root in roots):
        raise ConfigError(part.name("roots"), f"got {given!r}, expected a list of folders")
    if len(roots) > 1:
        warnings.append(f"{part.name('roots')}: only the first of {len(roots)} folders is used, {roots[0]}; put the data into one")
    if part.choice("dataset_type", "folder", ("folder", "lmdb", "object_store")) == "object_store":
        warnings.append(f"{part.name('dataset_type')}: an object store is not read; copy the data into a folder, and give that (data.path)")
    return roots[0] if roots else None


def _cut(kind: ModelType, augmentations: Settings, warnings: list[str]) -> dict[str, Any]:
    """How images are resized, cut and varied."""
    crop, centre = _size(augmentations, "random_crop_h_w"), _size(augmentations, "center_crop_h_w")
    whole, shortest = _size(augmentations, "resize_h_w"), _size(augmentations, "resize_smallest_side")
    if whole is not None and shortest is not None:
        raise ConfigError(augmentations.name("resize_h_w"), "given beside resize_smallest_side; leave out one of them")
    height, width = crop or centre or whole or shortest or ((_SIZES.get(kind, 256),) * 2)
    if width != height and KINDS[kind] != "paired_images":
        raise ConfigError(augmentations.name("random_crop_h_w"), f"got {height}, {width}, expected squares: only pairs may be rectangles")
    if whole is not None:
        warnings.append(f"{augmentations.name('resize_h_w')}: images keep their proportions here: they are resized to cover it, and cut")
    # Of a rectangle the setting here is the height, which is not always the short side.
    resize = whole[0] if whole else -(-min(shortest) * height // min(height, width)) if shortest else height
    resize = max(resize, height)
    for name in _LEFT_OUT:
        if augmentations.value(name):
            warnings.append(f"{augmentations.name(name)}: not done here, so images vary less (--data.jitter varies colours)")
    scale = augmentations.factor("random_scale_limit", 0.0, least=0, most=8)
    if scale and crop is None:
        warnings.append(f"{augmentations.name('random_scale_limit')}: not done without random_crop_h_w")
    return {
        "image_size": height,
        "width": None if width == height else width,
        "resize": None if resize == height and crop is None else resize,
        "crop": "random" if crop is not None else "center",
        "scale": scale if crop is not None else None,
        "flip": augmentations.flag("horizontal_flip", False),
    }


def _size(settings: Settings, key: str) -> tuple[int, int] | None:
    """Height and width: "256, 512", [256, 512] or 256."""
    given = settings.value(key)
    if given is None:
        return None
    parts = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else [given]
    try:
        sides = [int(part) for part in parts if not isinstance(part, bool | float)]
    except (TypeError, ValueError):
        sides = []
    if len(sides) != len(parts) or len(sides) not in (1, 2) or not all(1 <= side <= _SIDE for side in sides):
        raise ConfigError(settings.name(key), f'got {given!r}, expected height and width in pixels, as "256, 256"')
    return sides[0], sides[-1]
