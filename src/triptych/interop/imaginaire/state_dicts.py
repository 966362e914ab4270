"""Weights of imaginaire's image models: SPADE, pix2pixHD, UNIT, MUNIT, FUNIT, COCO-FUNIT.

    model = from_state_dict(file["net_G"], file["net_D"], {"gen": {...}, "dis": {...}})
    model.generator(label=label, images=images)["fake_images"]

Names and shapes of our networks' weights are the original's, so the weights are copied as they are. The shapes tell what a network is
made of, and the settings of the YAML file must agree with them. The file alone tells what no shape shows: the kind of a norm without
weights, the output's factor or nonlinearity, the scales of a shared discriminator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from triptych.core.outline import without_weights
from triptych.interop.imaginaire.calls import CALLS, OriginalNetwork
from triptych.interop.imaginaire.reading import ModelType, Settings, model_types
from triptych.interop.imaginaire.shapes import Network, Weights, discriminator_of, generator_of
from triptych.interop.weight_files import check_fit, checked_weights


class ImaginaireModel(nn.Module):
    """The networks of a model under the original's names of inputs and outputs. To train or to translate, import a checkpoint."""

    def __init__(self, kind: ModelType, generator: OriginalNetwork | None, discriminator: OriginalNetwork | None) -> None:
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
    """The model of two state dicts (`net_G`, `net_D`), in evaluation mode, with copies of the weights; a half given as None is None.

    Both networks are called with the original's input names as keywords, images as (b, c, h, w), and give dictionaries with its output
    names.
    `config`: the YAML file's sections `gen` and `dis`. `averaged`: the generator's moving average, where the file has one.
    `edges`: pix2pixHD makes edges of the last channel of its label maps, the map of instances, as the original's trainer does before it
    calls its networks; False: the label maps have edges there already, as the original's networks take them.
    Raises ConfigError for settings that are wrong, CheckpointError that names the first tensor that does not fit.
    """
    kinds, first, second = model_types(config), None, None
    if generator is not None:
        state = unwrapped(generator, averaged=averaged, name="the generator's weights")
        network = generator_of(kinds["gen"], Weights(state), Settings(config.get("gen") or {}, "gen"))
        first = CALLS[kinds["gen"]][0](_filled(network, state), edges=edges and kinds["gen"] == "pix2pixHD")
    if discriminator is not None:
        state = unwrapped(discriminator, averaged=averaged, name="the discriminator's weights")
        network = discriminator_of(kinds["dis"], Weights(state), Settings(config.get("dis") or {}, "dis"))
        second = CALLS[kinds["dis"]][1](_filled(network, state), edges=edges and kinds["dis"] == "pix2pixHD")
    return ImaginaireModel(kinds["gen"], first, second).eval()


def unwrapped(state: Any, *, averaged: bool, name: str) -> dict[str, Tensor]:
    """The tensors by their names in the network itself, without the prefixes of data-parallel and averaging wrappers.

    Of a network with a moving average: the average, or with `averaged` False the network that was trained.
    Raises CheckpointError, about `name`, for anything but tensors by name.
    """
    tensors = {key: tensor for key, tensor in checked_weights(state, name=name).items() if key != "num_updates_tracked"}
    for prefix in ("averaged_model.", "module."):
        chosen = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
        if chosen and (prefix == "module." or averaged or len(chosen) == len(tensors)):
            return chosen
    return tensors


def _filled(network: Network, state: Mapping[str, Tensor]) -> nn.Module:
    with without_weights():
        module = network.build()
    check_fit(module.state_dict(), state)
    module.to_empty(device="cpu")
    module.load_state_dict(dict(state))
    return module
