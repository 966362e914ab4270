"""What belongs to an image as one map with a channel for each thing to know of a pixel, as generators and discriminators take it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from triptych.core.batch import STYLE, InputSpec
from triptych.core.errors import ConfigError, nearest
from triptych.nn.instance_edges import instance_edges
from triptych.nn.one_hot import FEWEST_CHANNELS, OneHot, note


class LabelMaps:
    """Puts the inputs of a batch together, always in the same order: class maps, condition images, and the edges of instances last."""

    def __init__(self, inputs: tuple[InputSpec, ...], *, positive_conditions: bool = False, positive: tuple[str, ...] = ()) -> None:
        """`positive_conditions`: the values of condition images go from 0 to 1, not from -1 to 1; else those of images named in `positive`.

        Raises ConfigError for unfit data, and for such a name that none has.
        """
        if not inputs or any(spec.kind == "labels" for spec in inputs):
            wanted = "images in pairs with class maps (data.maps), instances (data.instances) or other images (data.conditions)"
            raise ConfigError("", f"the data has nothing, pixel by pixel, that the images could be made from; this model needs {wanted}")
        if any(spec.name == STYLE for spec in inputs):
            raise ConfigError("", f'the data has a folder "{STYLE}", which is what style images are called here; give it another name')
        self.inputs = inputs
        self.classes = tuple(spec for spec in inputs if spec.kind == "classes")
        self.conditions = tuple(spec for spec in inputs if spec.kind == "image")
        self.instances = next((spec for spec in inputs if spec.kind == "instances"), None)
        names = [spec.name for spec in self.conditions]
        for name in positive:
            if name not in names:
                raise ConfigError("positive_inputs", f"got {name!r}, which is none of data.conditions{nearest(name, names)}")
        self.positive = frozenset(names if positive_conditions else positive)
        "Names of the condition images whose values go from 0 to 1."

    @property
    def channels(self) -> int:
        """Of the map."""
        classes, conditions = sum(map(class_channels, self.classes)), sum(spec.channels or 0 for spec in self.conditions)
        return classes + conditions + (self.instances is not None)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Float[Tensor, "b n h w"]:
        """The map (b, channels, h, w) of a batch's inputs, in float32 and laid out channels last."""
        first = inputs[self.inputs[0].name]
        # Filled in place: a one-hot map of 184 classes is large, and would else be there several times.
        whole = torch.zeros(len(first), *first.shape[-2:], self.channels, device=first.device)
        start = 0
        for spec in self.classes:
            start = _write_one_hot(whole, inputs[spec.name], start=start, count=class_channels(spec))
        for spec in self.conditions:
            images = inputs[spec.name]
            values = (images + 1) / 2 if spec.name in self.positive else images
            whole[..., start : start + images.shape[1]] = values.permute(0, 2, 3, 1)
            start += images.shape[1]
        if self.instances is not None:
            whole[..., start] = instance_edges(self.instance_map(inputs))[:, 0]
        label = whole.permute(0, 3, 1, 2)
        if not self.conditions and self.channels >= FEWEST_CHANNELS and label.device.type == "cpu":
            note(label, self._ones(inputs, label))
        return label

    def _ones(self, inputs: Mapping[str, Tensor], label: Tensor) -> OneHot:
        """The channels of such a map that are 1, without condition images."""
        index, start = [], 0
        for spec in self.classes:
            classes, count = inputs[spec.name].long(), class_channels(spec)
            index.append(torch.where((classes >= 0) & (classes < count), classes + start, -1))
            start += count
        if self.instances is not None:
            index.append(torch.where(label[:, start] > 0, start, -1))
        return OneHot(torch.stack(index, dim=1).int(), self.channels)

    def channels_of(self, name: str) -> slice:
        """Which channels of the map are those of a condition image."""
        names = [spec.name for spec in self.conditions]
        k, classes = names.index(name), sum(map(class_channels, self.classes))
        start = classes + sum(spec.channels or 0 for spec in self.conditions[:k])
        return slice(start, start + (self.conditions[k].channels or 0))

    def check(self, inputs: Mapping[str, Tensor], *, stride: int, least_size: int) -> None:
        """Raises ConfigError for an input that is missing, has another shape than it should, or other sides than a network takes."""
        first: tuple[int, ...] | None = None
        for spec in self.inputs:
            tensor, pictures = inputs.get(spec.name), spec.kind == "image"
            wanted = f"a tensor of shape (b, {spec.channels}, h, w)" if pictures else "whole numbers of shape (b, h, w)"
            if tensor is None:
                raise ConfigError(spec.name, f"missing, expected {wanted}")
            if (
                tensor.ndim != (4 if pictures else 3)
                or (pictures and tensor.shape[1] != spec.channels)
                or tensor.is_floating_point() != pictures
            ):
                raise ConfigError(spec.name, f"got {tensor.dtype} of shape {tuple(tensor.shape)}, expected {wanted}".replace("torch.", ""))
            (height, width), count = tensor.shape[-2:], len(tensor)
            if height % stride or width % stride or min(height, width) < least_size:
                sides = f"sides that are multiples of {stride}, {least_size} or more"
                raise ConfigError(spec.name, f"got {width}x{height} pixels, expected {sides}")
            if first not in (None, (count, height, width)):
                assert first is not None
                raise ConfigError(spec.name, f"got {count} of {width}x{height} pixels, expected {first[0]} of {first[2]}x{first[1]}")
            first = count, height, width

    def instance_map(self, inputs: Mapping[str, Tensor]) -> Int[Tensor, "b 1 h w"]:
        """The object of each pixel."""
        assert self.instances is not None
        return inputs[self.instances.name][:, None]

    def first_classes(self, inputs: Mapping[str, Tensor]) -> Float[Tensor, "b n h w"]:
        """The first class map alone, one-hot."""
        classes, count = inputs[self.classes[0].name], class_channels(self.classes[0])
        whole = torch.zeros(*classes.shape, count, device=classes.device)
        _write_one_hot(whole, classes, start=0, count=count)
        return whole.permute(0, 3, 1, 2)


def class_channels(spec: InputSpec) -> int:
    """The channels of a one-hot class map: one more than classes where ignored pixels have one, and not where they are blank."""
    return (spec.num_classes or 0) + spec.dont_care


def _write_one_hot(whole: Tensor, classes: Tensor, *, start: int, count: int) -> int:
    """Sets the channel of each pixel's class, of `count` from `start` on; none where it is no such class. Returns the next channel."""
    classes = classes.long()
    is_class = (classes >= 0) & (classes < count)
    index = start + classes.clamp(0, count - 1)
    whole.scatter_(3, index[..., None], is_class[..., None].to(whole.dtype))
    return start + count
