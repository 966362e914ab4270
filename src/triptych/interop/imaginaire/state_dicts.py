"""Weights of imaginaire's image models (SPADE, pix2pixHD, UNIT, MUNIT, FUNIT, COCO-FUNIT), of vid2vid, fs_vid2vid and wc_vid2vid.

    model = from_state_dict(file["net_G"], file["net_D"], {"gen": {...}, "dis": {...}})
    model.generator(label=label, images=images)["fake_images"]

Names and shapes of our networks' weights are the original's, so the weights are copied as they are. The shapes tell what a network is
made of, and the settings of the YAML file must agree with them. The file alone tells what no shape shows: the kind of a norm without
weights, the output's factor or nonlinearity, the scales of a shared discriminator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from triptych.core.outline import without_weights
from triptych.core.weight_files import check_fit, checked_weights
from triptych.gans.discriminators import PairDiscriminator, Scores
from triptych.gans.funit import FUNITDiscriminator, FUNITGenerator
from triptych.gans.munit import MUNITGenerator
from triptych.gans.pix2pixhd import Pix2PixHDDiscriminator, Pix2PixHDGenerator, with_edges
from triptych.gans.spade import SPADEDiscriminator, SPADEGenerator
from triptych.gans.video_discriminators import VideoDiscriminator
from triptych.gans.video_networks import Frame
from triptych.interop.imaginaire.few_shot_video import AVERAGED_EPS, without_second_flow
from triptych.interop.imaginaire.reading import ModelType, Settings, model_types
from triptych.interop.imaginaire.shapes import discriminator_of, generator_of
from triptych.interop.imaginaire.tensors import Network, Weights
from triptych.interop.imaginaire.video import SINGLE


class ImaginaireModel(nn.Module):
    """The networks of a model under the original's names of inputs and outputs. To train or to translate, import a checkpoint."""

    def __init__(
        self,
        kind: ModelType,
        generator: OriginalNetwork | None,
        discriminator: OriginalNetwork | None,
        single_image_model: OriginalNetwork | None,
    ) -> None:
        super().__init__()
        self.kind: ModelType = kind
        self.generator, self.discriminator = generator, discriminator
        self.single_image_model = single_image_model
        "Of wc_vid2vid: the SPADE that makes first frames, where the weights have one."


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
    kinds, first, second, single = model_types(config), None, None, None
    if generator is not None:
        state = unwrapped(generator, averaged=averaged, name="the generator's weights")
        apart = {key.removeprefix(SINGLE): state.pop(key) for key in [key for key in state if key.startswith(SINGLE)]}
        if kinds["gen"] == "fs_vid2vid":
            state = without_second_flow(state)
        find = generator_of
        if kinds["gen"] == "fs_vid2vid" and averaged and has_average(generator):
            find = _averaged_few_shot
        first = _network(find, kinds["gen"], state, Settings(config.get("gen") or {}, "gen"), CALLS[kinds["gen"]][0], edges)
        if apart:
            single = _network(generator_of, "spade", apart, Settings({}), SPADECalls, False)
    if discriminator is not None:
        state = unwrapped(discriminator, averaged=averaged, name="the discriminator's weights")
        second = _network(discriminator_of, kinds["dis"], state, Settings(config.get("dis") or {}, "dis"), CALLS[kinds["dis"]][1], edges)
    return ImaginaireModel(kinds["gen"], first, second, single).eval()


def _network(
    find: Callable[..., Network], kind: ModelType, state: Mapping[str, Tensor], section: Settings, calls: Any, edges: bool
) -> OriginalNetwork:
    return calls(_filled(find(kind, Weights(state), section), state), edges=kind == "pix2pixHD" and edges)


def _averaged_few_shot(kind: ModelType, weights: Weights, section: Settings) -> Network:
    found = generator_of(kind, weights, section)
    return replace(found, config=replace(found.config, reference_eps=AVERAGED_EPS))


def has_average(state: Mapping[str, Any]) -> bool:
    """Whether the weights have a moving average beside those that were trained."""
    return any(".averaged_model." in f".{key}" for key in state)


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


# Networks as the original calls them ----------------------------------------------------------------------------------

Outputs = dict[str, Any]
"""Tensors by the original's names, lists of them where there are several scales."""


class OriginalNetwork(nn.Module):
    """A generator or discriminator under the original's names; `network` is ours. All images and maps are (b, c, h, w)."""

    def __init__(self, network: nn.Module, *, edges: bool) -> None:
        """`edges`: edges are made of the last channel of label maps, the map of instances."""
        super().__init__()
        self.network: Any = network
        self.edges = edges

    def seen(self, label: Tensor) -> Tensor:
        """The label map (b, c, h, w) as our network takes it."""
        return with_edges(label[:, :-1], label[:, -1:]) if self.edges else label


class SPADECalls(OriginalNetwork):
    """fake_images of label; with images also mu and logvar."""

    def forward(self, *, label: Tensor, images: Tensor | None = None, z: Tensor | None = None, random_style: bool = False) -> Outputs:
        """The style of maps (b, c, h, w) is that of `images`; with `random_style` or without images from N(0, I); or `z` (b, dims)."""
        network: SPADEGenerator = self.network
        dims = network.config.style_dims
        if dims is None:
            return {"fake_images": network(label=label).fake_images}
        noise = torch.randn(len(label), dims, device=label.device, dtype=label.dtype) if z is None else None
        if images is None or random_style:
            return {"fake_images": network(label=label, z=noise if z is None else z).fake_images}
        if z is not None:
            mu, logvar = network.encode(images)
            return {"fake_images": network(label=label, z=z).fake_images, "mu": mu, "logvar": logvar}
        return _present(network(label=label, images=images, noise=noise))


class Pix2PixHDCalls(OriginalNetwork):
    """fake_images of label, whose last channel is the map of instances; with `edges` False it is their edges already."""

    def forward(
        self, *, label: Tensor, images: Tensor | None = None, instance_maps: Tensor | None = None, random_style: bool = False
    ) -> Outputs:
        """Of maps (b, c, h, w). A feature encoder takes `images`, and `instance_maps` (b, 1, h, w) where the label maps have edges."""
        network: Pix2PixHDGenerator = self.network
        edged = self.seen(label)
        if network.config.encoder is None:
            return {"fake_images": network(label=edged)}
        instances = label[:, -1:] if self.edges and instance_maps is None else instance_maps
        if images is None or instances is None:
            raise ValueError("the feature encoder needs images" if images is None else "the feature encoder needs instance_maps")
        features = network.encoder(images, instances=instances)
        return {"fake_images": network(label=edged, features=features), "feature_maps": features}


class Vid2VidCalls(OriginalNetwork):
    """fake_images of label; from the third frame on also fake_flow_maps, fake_occlusion_masks and warped_images."""

    def forward(self, *, label: Tensor, prev_labels: Tensor | None = None, prev_images: Tensor | None = None) -> Outputs:
        """Of maps (b, c, h, w), after the frames before them (b, t, c, h, w), oldest first; without such the first frames."""
        return self.found(self.network(label, prev_labels, prev_images))

    @staticmethod
    def found(frame: Frame) -> Outputs:
        """What there is of a frame, by name."""
        found = {"fake_flow_maps": frame.flow, "fake_occlusion_masks": frame.mask, "warped_images": frame.warped}
        return {"fake_images": frame.image} | {name: value for name, value in found.items() if value is not None}


class WCVid2VidCalls(Vid2VidCalls):
    """As vid2vid's, with guidance."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *, label: Tensor, prev_labels: Tensor | None = None, prev_images: Tensor | None = None, guidance: Tensor | None = None
    ) -> Outputs:
        """As vid2vid's; `guidance` (b, 4, h, w): colours in -1 to 1, and where they are known, 1 or 0."""
        return self.found(self.network(label, prev_labels, prev_images, guidance))


class FewShotVid2VidCalls(OriginalNetwork):
    """fake_images of label; of the references and of the frame before fake_flow_maps, fake_occlusion_masks and warped_images."""

    def forward(
        self,
        *,
        label: Tensor,
        ref_images: Tensor,
        ref_labels: Tensor,
        prev_labels: Tensor | None = None,
        prev_images: Tensor | None = None,
    ) -> Outputs:
        """Of maps (b, c, h, w) and references (b, k, c, h, w), after the frame before, the last of (b, t, c, h, w); lists of two."""
        past = () if prev_labels is None or prev_images is None else (prev_labels[:, -1], prev_images[:, -1])
        frame = self.network(label, ref_images, ref_labels, *past)
        warps = [frame.reference, frame.past]
        parts = {"fake_flow_maps": "flow", "fake_occlusion_masks": "mask", "warped_images": "image"}
        found = {name: [None if warp is None else getattr(warp, part) for warp in warps] for name, part in parts.items()}
        return {"fake_images": frame.image, **found}


class UNITCalls(OriginalNetwork):
    """images_ab, images_ba, content_a, content_b; the images' own reconstructions and the way back."""

    def forward(self, *, images_a: Tensor, images_b: Tensor, image_recon: bool = True, cycle_recon: bool = True) -> Outputs:
        """Both domains' images (b, c, h, w), each translated to the other."""
        return _present(self.network(images_a=images_a, images_b=images_b, reconstruct=image_recon, cycle=cycle_recon))


class MUNITCalls(OriginalNetwork):
    """As UNIT's, and the styles."""

    def forward(
        self,
        *,
        images_a: Tensor,
        images_b: Tensor,
        random_style: bool = True,
        style_a_rand: Tensor | None = None,
        style_b_rand: Tensor | None = None,
        image_recon: bool = True,
        latent_recon: bool = True,
        cycle_recon: bool = True,
    ) -> Outputs:
        """Of images (b, c, h, w), in styles (b, dims, 1, 1) that are given or from N(0, I); without `random_style` in the images' own."""
        network: MUNITGenerator = self.network
        drawn = {}
        if random_style:
            shape = (len(images_a), network.style_dims, 1, 1)
            for name, style in (("style_a_rand", style_a_rand), ("style_b_rand", style_b_rand)):
                drawn[name] = torch.randn(*shape, device=images_a.device, dtype=images_a.dtype) if style is None else style
        out = network(
            images_a=images_a,
            images_b=images_b,
            random_style_a=drawn.get("style_a_rand"),
            random_style_b=drawn.get("style_b_rand"),
            encode_translations=latent_recon,
            reconstruct=image_recon,
            cycle=cycle_recon,
        )
        return _present(out) | drawn


class FUNITCalls(OriginalNetwork):
    """images_trans and images_recon."""

    def forward(
        self, *, images_content: Tensor, images_style: Tensor, labels_content: Tensor | None = None, labels_style: Tensor | None = None
    ) -> Outputs:
        """Of images (b, c, h, w). The labels (b,) are for the discriminator."""
        network: FUNITGenerator = self.network
        return _present(network(images_content=images_content, images_style=images_style))


class PairedScores(OriginalNetwork):
    """real_outputs and real_features of images, fake_outputs and fake_features of fake_images."""

    def forward(self, *, label: Tensor, images: Tensor | None = None, fake_images: Tensor | None = None) -> Outputs:
        """Of images (b, c, h, w). `label`: as the generator takes it."""
        network: SPADEDiscriminator | Pix2PixHDDiscriminator | VideoDiscriminator = self.network
        label, out = self.seen(label), {}
        for name, judged in (("real", images), ("fake", fake_images)):
            if judged is not None:
                scores = network(judged, label=label)
                out |= {f"{name}_outputs": list(scores.outputs), f"{name}_features": [list(layers) for layers in scores.features]}
        return out


class DomainScores(OriginalNetwork):
    """out_a and fea_a of images_a, out_ba and fea_ba of images_ba, and so on; lists where there are several scales."""

    def forward(
        self,
        *,
        images_a: Tensor | None = None,
        images_b: Tensor | None = None,
        images_ab: Tensor | None = None,
        images_ba: Tensor | None = None,
        images_aa: Tensor | None = None,
        images_bb: Tensor | None = None,
    ) -> Outputs:
        """All (b, c, h, w), judged as images of the domain that their name ends with: images_ba as of a, which decoded them."""
        network: PairDiscriminator = self.network
        out: Outputs = {}
        judged = {"a": images_a, "b": images_b, "ab": images_ab, "ba": images_ba, "aa": images_aa, "bb": images_bb}
        for name, images in judged.items():
            if images is not None:
                scores: Scores = network(images, domain=name[-1])
                out[f"out_{name}"], out[f"fea_{name}"] = _one_or_list(scores.outputs), _one_or_list(scores.features)
        return out


class ClassScores(OriginalNetwork):
    """real_out_style of images_style, fake_out_trans of images_trans, fake_out_recon of images_recon, and their features."""

    def forward(
        self,
        *,
        images_style: Tensor | None = None,
        labels_style: Tensor | None = None,
        images_trans: Tensor | None = None,
        images_recon: Tensor | None = None,
        images_content: Tensor | None = None,
        labels_content: Tensor | None = None,
    ) -> Outputs:
        """Of images (b, c, h, w) and labels (b,). Reconstructions are judged as of the content's class, all others as of the style's."""
        network: FUNITDiscriminator = self.network
        out: Outputs = {}
        for name, images, labels in (
            ("real_{}_style", images_style, labels_style),
            ("fake_{}_trans", images_trans, labels_style),
            ("fake_{}_recon", images_recon, labels_content),
        ):
            if images is not None and labels is not None:
                scores = network(images, labels=labels)
                out |= {name.format("out"): scores.outputs[0], name.format("features"): scores.features[0][0]}
        return out


def _present(out: NamedTuple) -> Outputs:
    """What the original gives too, by its names."""
    return {name: value for name, value in out._asdict().items() if value is not None and name not in ("given_a", "given_b", "content")}


def _one_or_list(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else list(values)


CALLS: dict[ModelType, tuple[type[OriginalNetwork], type[OriginalNetwork]]] = {
    "spade": (SPADECalls, PairedScores),
    "pix2pixHD": (Pix2PixHDCalls, PairedScores),
    "unit": (UNITCalls, DomainScores),
    "munit": (MUNITCalls, DomainScores),
    "funit": (FUNITCalls, ClassScores),
    "coco_funit": (FUNITCalls, ClassScores),
    "vid2vid": (Vid2VidCalls, PairedScores),
    "fs_vid2vid": (FewShotVid2VidCalls, PairedScores),
    "wc_vid2vid": (WCVid2VidCalls, PairedScores),
}
"""Of each model's generator and discriminator."""
