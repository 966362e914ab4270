"""What a snapshot of NVIDIA's programs, or of R3GAN, holds: its networks, each with its settings and its tensors by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from triptych.core.errors import CheckpointError
from triptych.interop.nvidia.pickles import Record, read_pickle
from triptych.interop.programs import about_file

Kind = Literal["StyleGAN2", "StyleGAN3", "R3GAN", "EDM", "EDM2"]

LICENCES: Mapping[Kind, str] = {
    "StyleGAN2": "NVIDIA Source Code License: for research and evaluation, not for commercial use",
    "StyleGAN3": "NVIDIA Source Code License: for research and evaluation, not for commercial use",
    "R3GAN": "none stated by its authors, so all rights are theirs; ask them before any use but research",
    "EDM": "CC BY-NC-SA 4.0: with attribution, not for commercial use, what is made of them under the same licence",
    "EDM2": "CC BY-NC-SA 4.0: with attribution, not for commercial use, what is made of them under the same licence",
}
"""Of the weights that were published."""
_MARKS: Mapping[str, Kind] = {
    "Model.MainLayers.0.Layers.0.Basis": "R3GAN",
    "synthesis.b4.const": "StyleGAN2",
    "synthesis.input.freqs": "StyleGAN3",
    "unet.emb_fourier.freqs": "EDM2",
    "model.map_layer0.weight": "EDM",
}
"""A tensor of the network that makes images, of each kind."""
AVERAGES = ("G_ema", "ema", "net")
"""Where the average of that network is."""
_MAKERS = (*AVERAGES, "G")
_OF_TRAINING = ("loss_fn", "augment_pipe")
_MOST_NETWORKS, _MOST_MODULES, _MOST_TENSORS, _MOST_DEPTH, _MOST_VALUES = 20, 20_000, 100_000, 50, 10_000
_MOST_NAME, _MOST_TEXT = 250, 1000
"""Characters of a tensor's name and of a setting: a pickle may have one long text in many places."""
_MOST_NUMBER = 1e12


@dataclass(frozen=True)
class Network:
    """A network of a snapshot."""

    class_name: str
    settings: Mapping[str, Any]
    "What it was built with, by name: numbers, text, None, lists and dictionaries of them. A setting that is anything else is left out."
    tensors: Mapping[str, Tensor]
    "Parameters and buffers by the names that its state dict gives them."


@dataclass(frozen=True)
class Snapshot:
    """A file of NVIDIA's."""

    kind: Kind
    networks: Mapping[str, Network]
    "By their names in the file: G, D, G_ema, augment_pipe; ema."
    training: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    "Of what is no network, the numbers that it has as attributes: loss_fn and augment_pipe of EDM's training."

    @property
    def maker_name(self) -> str:
        """The name of the network that makes images: of the average, where the file has it."""
        return next(name for name in _MAKERS if name in self.networks)

    @property
    def maker(self) -> Network:
        return self.networks[self.maker_name]


def read_snapshot(path: str | Path) -> Snapshot:
    """The networks of a pickle. Raises CheckpointError, with the file's name, as `read_pickle` does and where it holds no such networks."""
    content = read_pickle(path)
    with about_file(Path(path)):
        return snapshot_of(content)


def snapshot_of(content: Any) -> Snapshot:
    """The networks in what `read_pickle` returned. Raises CheckpointError where there are none of a kind that is known."""
    content = {"G_ema": content} if isinstance(content, Record) else content
    found = content.items() if isinstance(content, dict) else ()
    records = {name: value for name, value in found if isinstance(name, str) and _is_network(value)}
    if len(records) > _MOST_NETWORKS:
        raise CheckpointError(f"holds {len(records)} networks, expected {_MOST_NETWORKS} or fewer")
    networks = {name: network_of(record) for name, record in records.items()}
    training = {name: _numbers(value) for name, value in found if name in _OF_TRAINING and isinstance(value, Record)}
    for name in _MAKERS:
        for mark, kind in _MARKS.items():
            if name in networks and mark in networks[name].tensors:
                return Snapshot(kind, networks, {name: numbers for name, numbers in training.items() if name not in networks})
    classes = ", ".join(sorted({network.class_name for network in networks.values()})[:4])
    what = f"networks of other classes ({classes})" if networks else "no networks"
    raise CheckpointError(f"holds {what}; expected the G_ema of StyleGAN2 or R3GAN, or the ema of EDM, as their training writes it")


def network_of(record: Record) -> Network:
    """A network of its record. Raises CheckpointError where it is made so that it has no end."""
    left = [_MOST_VALUES]
    plain = {key: value for key, value in _part(record, "_init_kwargs").items() if _is_plain(value, left)}
    return Network(record.name, plain, dict(_tensors(record)))


def _is_network(value: Any) -> bool:
    return isinstance(value, Record) and bool(_part(value, "_modules") or _part(value, "_parameters") or _part(value, "_buffers"))


def _numbers(record: Record) -> dict[str, float]:
    """The finite numbers among an object's attributes."""
    state = record.state if isinstance(record.state, dict) else {}
    plain = {name: value for name, value in state.items() if isinstance(name, str) and isinstance(value, int | float)}
    return {name: float(value) for name, value in plain.items() if abs(value) < _MOST_NUMBER}


def _tensors(network: Record) -> Iterator[tuple[str, Tensor]]:
    """Parameters and saved buffers, as a state dict has them. A pickle may have one module in many places, so both are counted."""
    rest, modules, tensors = [("", network, 0)], 1, 0
    while rest:
        prefix, record, depth = rest.pop()
        parts, children = {**_part(record, "_parameters"), **_part(record, "_buffers")}, _part(record, "_modules")
        modules, tensors = modules + len(children), tensors + len(parts)
        if modules > _MOST_MODULES or tensors > _MOST_TENSORS or depth > _MOST_DEPTH:
            raise CheckpointError("has a network of more modules than any has, or modules within themselves")
        if not all(isinstance(name, str) and len(prefix) + len(name) <= _MOST_NAME for name in (*parts, *children)):
            raise CheckpointError(f"has a tensor whose name is no text, or one of more than {_MOST_NAME} characters")
        unsaved = record.state.get("_non_persistent_buffers_set") if isinstance(record.state, dict) else ()
        unsaved = unsaved if isinstance(unsaved, list | tuple) else ()
        yield from ((f"{prefix}{name}", value) for name, value in parts.items() if isinstance(value, Tensor) and name not in unsaved)
        rest.extend((f"{prefix}{name}.", child, depth + 1) for name, child in children.items() if isinstance(child, Record))


def _part(record: Record, name: str) -> dict[Any, Any]:
    """A dictionary among the attributes of a module; an empty one where it has none of that name."""
    part = record.state.get(name) if isinstance(record.state, dict) else None
    return part if isinstance(part, dict) else {}


def _is_plain(value: Any, left: list[int], depth: int = 0) -> bool:
    """Whether a setting is of numbers, text and None alone, and not too many. `left`: how many more there may be; it is counted down."""
    left[0] -= 1
    if left[0] < 0 or depth > _MOST_DEPTH:
        return False
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(part, left, depth + 1) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(part, left, depth + 1) for part in value)
    if isinstance(value, str):
        return len(value) <= _MOST_TEXT
    return value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < _MOST_NUMBER)
