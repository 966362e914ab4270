"""Weights of imaginaire's image models: SPADE, pix2pixHD, UNIT, MUNIT, FUNIT, COCO-FUNIT.

    model = from_state_dict(file["net_G"], file["net_D"], {"gen": {...}, "dis": {...}})
    model.generator(label=label, images=images)["fake_images"]

The names and shapes of our networks' weights are the original's, so that weights go over as they are. What a network is made of is
read from the shapes; the settings of the YAML file that are given are held against them. Not to be seen in any shape, and so taken at
their word: the kind of a norm without weights, the output's factor or nonlinearity, the scales of a shared discriminator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from triptych.core.outline import without_weights
from triptych.interop.imaginaire.calls import DISCRIMINATORS, GENERATORS, OriginalDiscriminator, OriginalGenerator
from triptych.interop.imaginaire.reading import ModelType, Weights, model_types
from triptych.interop.imaginaire.shapes import Described, describe_discriminator, describe_generator
from triptych.interop.weight_files import check_fit, checked_weights


class ImaginaireModel(nn.Module):
    """The networks of a model under the original's names of inputs and outputs. To train or to translate, import a checkpoint."""

    def __init__(self, kind: ModelType, generator: OriginalGenerator | None, discriminator: OriginalDiscriminator | None) -> None:
        super().__init__()
        self.kind: ModelType = kind
        self.generator, self.discriminator = generator, discriminator


def from_state_dict(
    generator: Mapping[str, Tensor] | None,
    discriminator: Mapping[str, Tensor] | None,
    config: Mapping[str, Any],
    *,
    averaged: bool = True,
    edges: bool = True,
) -> ImaginaireModel:
    """The model of two state dicts (`net_G`, `net_D`), in evaluation mode; what is given as None is None in it.

    `edges`: pix2pixHD makes edges of the last channel of its label maps, the map of instances, as the original's trainer does before it
    calls its networks; False: the label maps have edges there already, as the original's networks take them.
    See `networks`: what its `generator` and `discriminator` are, the other arguments, and what is raised.
    """
    kinds = model_types(config)
    return ImaginaireModel(kinds["gen"], *networks(generator, discriminator, config, averaged=averaged, edges=edges)).eval()


def networks(
    generator: Mapping[str, Tensor] | None,
    discriminator: Mapping[str, Tensor] | None,
    config: Mapping[str, Any],
    *,
    averaged: bool = True,
    edges: bool = True,
) -> tuple[OriginalGenerator | None, OriginalDiscriminator | None]:
    """The networks of two state dicts (`net_G`, `net_D`), either of which may be None, in evaluation mode, with copies of the weights.

    Both are called with the original's input names as keywords and give dictionaries with its output names. `config`: the YAML file's
    sections `gen` and `dis`. `averaged`: the generator's moving average, where the file has one. `edges`: see `from_state_dict`.
    Raises ConfigError for settings that are wrong, CheckpointError that names the first tensor that does not fit.
    """
    kinds = model_types(config)
    first = second = None
    if generator is not None:
        state = unwrapped(generator, averaged=averaged, name="the generator's weights")
        network = _filled(describe_generator(kinds["gen"], Weights(state), config.get("gen") or {}), state)
        first = GENERATORS[kinds["gen"]](network, edges=edges).eval()
    if discriminator is not None:
        state = unwrapped(discriminator, averaged=averaged, name="the discriminator's weights")
        network = _filled(describe_discriminator(kinds["dis"], Weights(state), config.get("dis") or {}), state)
        second = DISCRIMINATORS[kinds["dis"]](network, edges=edges).eval()
    return first, second


def unwrapped(state: Any, *, averaged: bool, name: str) -> dict[str, Tensor]:
    """The tensors under the names that they have in the network itself: without what data-parallel and averaging wrappers put before.

    Of a network with a moving average the average, or with `averaged` False the network that was trained.
    Raises CheckpointError, about `name`, for anything but tensors by name.
    """
    tensors = {key: tensor for key, tensor in checked_weights(state, name=name).items() if key != "num_updates_tracked"}
    for prefix in ("averaged_model.", "module."):
        chosen = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
        if chosen and (prefix == "module." or averaged or len(chosen) == len(tensors)):
            return chosen
    return tensors


def _filled(described: Described, state: Mapping[str, Tensor]) -> nn.Module:
    with without_weights():
        network = described.build()
    own = network.state_dict()
    check_fit(own, state)
    network.to_empty(device="cpu")
    network.load_state_dict(dict(state))
    return network
