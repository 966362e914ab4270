"""Few-shot vid2vid (Wang et al. 2019, arXiv 1910.12713): clips made from clips of label maps, that look like a few other pictures.

The pictures, references, come with label maps. Weights of the generator are made of them; the first reference, or the one that attention
picks, and the frame before are moved by flows to where the new frame shows the same (see `fs_vid2vid_networks`). The generator minimises
the terms of `clip_base`, for both flows: the sums. The discriminator sees the reference with its label map beside a frame;
that of faces, where there is one, the reference's face beside that of a frame.

Of people whose DensePose is known there may be further terms of the flow from the reference (`people`): its teacher then compares the two
maps of DensePose and not the pictures, and the teachers of both flows are believed on the person alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from triptych.core.batch import STYLE, Batch, DataSpec, style_map
from triptych.core.config import Config, config, settings_like
from triptych.core.errors import ConfigError
from triptych.core.finetuning import Finetuning
from triptych.core.rng import Rng
from triptych.gans.clip_base import ClipGAN, ClipGANConfig, ClipTranslationConfig
from triptych.gans.crops import Part, face_crops
from triptych.gans.fs_vid2vid_networks import FewShotFrame, FewShotGenerator, FewShotGeneratorConfig
from triptych.gans.label_maps import LabelMaps
from triptych.gans.model import DISCRIMINATOR, GENERATOR
from triptych.gans.people import Person, terms_of_people, without_head
from triptych.gans.translation_base import Styles
from triptych.gans.video_discriminators import VideoDiscriminator

_FINETUNED = ("weight_generator.fc", "conv_img", "up")
"""How the names of those weights of the generator begin that finetuning changes."""

_ROLLED = 16
"""The part of a side by which a reference is rolled at most is one of so many."""
_LABELS_OF_STYLE = "/reference_labels"
"""Name of the label maps of the references (b, k, n, h, w) among the inputs of a frame in training."""


@config
class FewShotTranslationConfig(ClipTranslationConfig):
    """How label maps become frames that look like references."""

    finetune: int = 0
    "Training steps on the references before frames are made; what they change is not kept."
    finetune_rate: float | None = None
    "Learning rate of these steps; None: optim.learning_rate."

    def validate(self) -> None:
        self.require(self.finetune >= 0, "finetune", "0 or more")
        self.require(self.finetune_rate is None or 0 < self.finetune_rate < 1, "finetune_rate", "above 0 and below 1, or nothing")


@config
class FewShotVid2VidConfig(ClipGANConfig):
    """Few-shot vid2vid."""

    kind_name: ClassVar = "fs_vid2vid"
    unwritten: ClassVar = ClipGANConfig.unwritten | {"people", "hide_head"}

    generator: FewShotGeneratorConfig = FewShotGeneratorConfig()
    "The generator of a frame, with its flow network."
    people: bool = False
    "Frames and references show a person whose DensePose the data has: the flow from references is learned part by part of the body."
    hide_head: bool = False
    "The generator does not see the head on the DensePose of frames, only on that of references; a face then depends on these."
    translation: FewShotTranslationConfig = FewShotTranslationConfig()
    "Settings of `triptych translate`."

    def validate(self) -> None:
        self.require(not self.people or self.flow_weight > 0, "people", "false where flow_weight is 0")
        self.require(self.teacher != "data", "teacher", "another one: the data says nothing of the flow from references")
        hand = self.discriminator.hand.weight
        if hand > 0:
            reason = f"got {hand:g}, expected 0: hands are not compared with those of references; faces are (discriminator.face.weight)"
            raise ConfigError("discriminator.hand.weight", reason)

    def shrunk(self) -> Self:
        return replace(self, generator=self.generator.shrunk(), discriminator=self.discriminator.shrunk())

    @property
    def sides(self) -> dict[str, tuple[object, int, int]]:
        generator = self.generator
        own = {"generator.num_downsamples": (generator.num_downsamples, generator.stride, generator.least_size)}
        return own | generator.flow.sides

    def build(self, spec: DataSpec) -> ClipGAN:
        """As any GAN of clips; raises ConfigError also for data without references, or without DensePose where that is needed."""
        if spec.frames is not None and not any(entry.references is not None for entry in spec.inputs):
            raise ConfigError(
                "", "the data has no references, which this model takes the look of a clip from; set data.references to 1 or more"
            )
        pose = next((entry.name for entry in spec.inputs if entry.stored == "densepose"), None)
        for name in ("people", "hide_head"):
            if getattr(self, name) and pose is None and spec.frames is not None:
                reason = "got True, but the data has no maps of DensePose; give their folder as data.densepose, or set it to False"
                raise ConfigError(name, reason)
        if self.hide_head and (self.positive_conditions or pose in self.positive_inputs):
            raise ConfigError(
                "hide_head",
                "got True, but DensePose goes from 0 to 1; set positive_conditions to False, leave it out of positive_inputs",
            )
        return ClipGANConfig.build(self, spec)

    def model(self, spec: DataSpec, labels: LabelMaps) -> FewShotVid2Vid:
        return FewShotVid2Vid(self, spec, labels)


class FewShotVid2Vid(ClipGAN):
    """The model of a FewShotVid2VidConfig."""

    styles: Styles = "required"

    config: FewShotVid2VidConfig
    generator: FewShotGenerator

    def __init__(self, config: FewShotVid2VidConfig, spec: DataSpec, labels: LabelMaps) -> None:
        generator = FewShotGenerator(config.generator, label_channels=labels.channels, image_channels=spec.channels)
        beside = 2 * labels.channels + spec.channels
        channels = {"label_channels": beside, "image_channels": spec.channels, "crop_channels": 2 * spec.channels}
        discriminator = VideoDiscriminator(config.discriminator, **channels)
        super().__init__(config, spec, generator, discriminator, labels=labels, sizes=config.generator, past_frames=1)
        self.style_sources = tuple(entry for entry in spec.inputs if entry.references is not None)
        self._pose = next((entry.name for entry in labels.inputs if entry.stored == "densepose"), "")

    def _moment(self, clip: Batch, frame: int, made: Tensor | None) -> Batch:
        moment = super()._moment(clip, frame, made)
        return replace(moment, inputs={**moment.inputs, _LABELS_OF_STYLE: self._references(moment.inputs)[1]})

    def frame_of(self, label: Tensor, past_labels: Tensor | None, past: Tensor | None, inputs: Mapping[str, Tensor]) -> FewShotFrame:
        """See `ClipGAN.frame_of`."""
        references, labels = self._references(inputs)
        label = self._seen(label)
        if past is None or past_labels is None:
            return self.generator(label, references, labels)
        return self.generator(label, references, labels, self._seen(past_labels[:, -1]), past[:, -1])

    def _seen(self, label: Float[Tensor, "b n h w"]) -> Float[Tensor, "b n h w"]:
        """The label map of a frame as the generator sees it."""
        if not self.config.hide_head:
            return label
        part, seen = self.labels.channels_of(self._pose), label.clone()
        seen[:, part] = without_head(label[:, part])
        return seen

    def judged_with(self, label: Tensor, frame: FewShotFrame, inputs: Mapping[str, Tensor]) -> Float[Tensor, "b n h w"]:
        """The label map, and that reference with its label map which was moved."""
        image, its_label = self._picked(frame, inputs)
        return torch.cat((label, its_label, image), dim=1)

    def beside_crops(self, part: Part, frame: FewShotFrame, inputs: Mapping[str, Tensor]) -> Float[Tensor, "b c s s"]:
        """The face of that reference which was moved."""
        pose = self._poses[part]
        return face_crops(_of_picked(inputs[style_map(pose.name)], frame), drawn=pose.drawn).of(self._picked(frame, inputs)[0])

    def frame_terms(self, frame: FewShotFrame, moment: Batch) -> dict[str, Float[Tensor, " b"]]:
        """Those of the flow from the reference and, of a frame with a past, of that from the frame before: the sums."""
        warp, source = frame.reference, self._picked(frame, moment.inputs)[0]
        pose, person, within, its_pose = None, None, None, source
        if self.config.people:
            pose, its_pose = moment.inputs[self._pose], _of_picked(moment.inputs[style_map(self._pose)], frame)
            person = Person.of(pose)
            within = person.body
        terms = self.flow_terms(warp.flow, warp.mask, warp.image, moment=moment, source=its_pose, target=pose, within=within)
        if person is not None:
            own = {"image": frame.image, "person": person, "other": Person.of(its_pose)}
            of_flow, of_mask = terms_of_people(warp.flow, warp.mask, warp.image, **own)
            terms |= {"flow_warp": terms["flow_warp"] + of_flow, "mask": terms["mask"] + of_mask}
        if frame.past is None:
            return terms
        warp = frame.past
        second = self.flow_terms(warp.flow, warp.mask, warp.image, moment=moment, within=within)
        return {name: values + second[name] for name, values in terms.items()}

    def _picked(self, frame: FewShotFrame, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        references, labels = self._references(inputs)
        return _of_picked(references, frame), _of_picked(labels, frame)

    def _references(self, inputs: Mapping[str, Tensor]) -> tuple[Float[Tensor, "b k c h w"], Float[Tensor, "b k n h w"]]:
        """The references and their label maps. Raises ConfigError for what is missing or does not fit."""
        if _LABELS_OF_STYLE in inputs:
            return inputs[STYLE], inputs[_LABELS_OF_STYLE]
        label = inputs[self.sources[0].name]
        images, (height, width) = self._style(inputs, count=len(label)), label.shape[-2:]
        if images is None:
            raise ConfigError(STYLE, f"missing, expected images of shape ({len(label)}, k, {self.output_channels}, {height}, {width})")
        learned = max(entry.references or 0 for entry in self.style_sources)
        if self.config.generator.attention and learned < 2 <= images.shape[1]:
            reason = f"got {images.shape[1]} images, but the model learned with one reference (data.references) and cannot choose; give one"
            raise ConfigError(STYLE, reason)
        if images.shape[3:] != (height, width):
            found = f"{images.shape[4]}x{images.shape[3]} pixels"
            raise ConfigError(STYLE, f"got images of {found}, but the frames have {width}x{height}; make them one size")
        maps = dict[str, Tensor]()
        for source in self.sources:
            name = style_map(source.name)
            found, wanted, pictures = inputs.get(name), (*images.shape[:2], *inputs[source.name].shape[1:]), source.kind == "image"
            if found is None or found.shape != wanted or found.is_floating_point() != pictures:
                got = "missing" if found is None else f"got {found.dtype} of shape {tuple(found.shape)}".replace("torch.", "")
                kind = "a tensor" if pictures else "whole numbers"
                raise ConfigError(name, f"{got}, expected {source.name} of the style images, {kind} of shape {wanted}")
            maps[source.name] = found.flatten(0, 1)
        return images, self.labels(maps).unflatten(0, images.shape[:2])

    # Finetuning ---------------------------------------------------------------------------------------------------------

    def finetuning(self, settings: Config) -> Finetuning | None:
        """See `Finetuned`."""
        chosen = settings_like(self.config.translation, settings)
        if not chosen.finetune and chosen.finetune_rate != self.config.translation.finetune_rate:
            raise ConfigError("finetune_rate", f"got {chosen.finetune_rate}, but nothing is learned: give {{}} too", ["finetune"])
        return Finetuning(chosen.finetune, chosen.finetune_rate) if chosen.finetune else None

    def finetuned_weights(self) -> dict[str, dict[str, nn.Parameter]]:
        """All of the discriminator; of the generator what makes weights of the references, its blocks, and its last layer."""
        chosen = {name: weight for name, weight in self.generator.named_parameters() if name.startswith(_FINETUNED)}
        return {DISCRIMINATOR: dict(self.discriminator.named_parameters()), GENERATOR: chosen}

    def of_style(self, look: Mapping[str, Tensor], rng: Rng) -> Batch:
        """A clip of one frame to finetune on: one of the references (1, k, ...), rolled with its maps, beside all of them.

        It is rolled by up to a sixteenth of each side, pixels that leave it coming in on the other one.
        """
        images = look[STYLE]
        sides = images.shape[-2:]
        which = int(rng.integers("which", images.shape[1])[0])
        shift = [round((2 * part - 1) * (side // _ROLLED)) for part, side in zip(rng.uniform("roll", 2)[0].tolist(), sides, strict=True)]
        maps = {source.name: look[style_map(source.name)][:, which : which + 1].roll(shift, (-2, -1)) for source in self.sources}
        return Batch(images[:, which : which + 1].roll(shift, (-2, -1)), None, rng.index, {**look, **maps})


def _of_picked(values: Float[Tensor, "b k ..."], frame: FewShotFrame) -> Float[Tensor, "b ..."]:
    """Of what the references have, that of the one which was moved."""
    return values[torch.arange(len(values), device=values.device), frame.picked]
