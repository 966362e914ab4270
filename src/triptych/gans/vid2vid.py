"""vid2vid: Video-to-Video Synthesis (Wang et al. 2018, arXiv 1808.06601): clips made from clips of label maps.

A frame x_t is made of its label map s_t and of the two frames before it, as they were made, with their label maps. A flow network says
where each pixel was in the frame before, f_t, and where that is of no use, m_t (from the third frame of a clip on). The frame before,
warped by f_t, and m_t modulate the norms of the generator beside the label map, and with `blend` it is what is seen where m_t is 0.
`clip_base` has the terms and the order of updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Self

from jaxtyping import Float
from torch import Tensor

from triptych.core.batch import Batch, DataSpec
from triptych.core.config import config
from triptych.core.errors import ConfigError
from triptych.gans.clip_base import ClipGAN, ClipGANConfig
from triptych.gans.label_maps import LabelMaps
from triptych.gans.video_discriminators import VideoDiscriminator
from triptych.gans.video_networks import Frame, Vid2VidGenerator, Vid2VidGeneratorConfig


@config
class Vid2VidConfig(ClipGANConfig):
    """vid2vid."""

    kind_name: ClassVar = "vid2vid"

    generator: Vid2VidGeneratorConfig = Vid2VidGeneratorConfig()
    "The generator of a frame, with its flow network."

    def validate(self) -> None:
        if self.generator.flow_apart and (self.teacher == "none" or not self.flow_weight):
            raise ConfigError("generator.flow_apart", "got True, expected False where no teacher's flow is learned")

    def shrunk(self) -> Self:
        return replace(self, generator=self.generator.shrunk(), discriminator=self.discriminator.shrunk())

    @property
    def sides(self) -> dict[str, tuple[object, int, int]]:
        generator = self.generator
        return {"generator.num_layers": (generator.num_layers, generator.stride, generator.least_size)} | generator.flow.sides

    def build(self, spec: DataSpec) -> ClipGAN:
        """As any GAN of clips; raises ConfigError also for data with references, which it does not look at."""
        if any(entry.references is not None for entry in spec.inputs):
            raise ConfigError("", "the data has references (data.references), which this model does not look at; set that to 0")
        return ClipGANConfig.build(self, spec)

    def model(self, spec: DataSpec, labels: LabelMaps) -> Vid2Vid:
        return Vid2Vid(self, spec, labels)


class Vid2Vid(ClipGAN):
    """The model of a Vid2VidConfig."""

    generator_class: ClassVar[type[Vid2VidGenerator]] = Vid2VidGenerator

    config: Vid2VidConfig
    generator: Vid2VidGenerator

    def __init__(self, config: Vid2VidConfig, spec: DataSpec, labels: LabelMaps) -> None:
        channels = {"label_channels": labels.channels, "image_channels": spec.channels}
        generator = self.generator_class(config.generator, **channels, image_size=spec.height_and_width)
        discriminator = VideoDiscriminator(config.discriminator, **channels)
        past = config.generator.frames - 1
        super().__init__(config, spec, generator, discriminator, labels=labels, sizes=config.generator, past_frames=past)

    def guidance(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the generator of a frame with a past is given beside that, by name: nothing."""
        return {}

    def frame_of(self, label: Tensor, past_labels: Tensor | None, past: Tensor | None, inputs: Mapping[str, Tensor]) -> Frame:
        """See `ClipGAN.frame_of`."""
        return self.generator(label) if past is None else self.generator(label, past_labels, past, **self.guidance(inputs))

    def frame_terms(self, frame: Frame, moment: Batch) -> dict[str, Float[Tensor, " b"]]:
        """Those of the flow; none of a frame without one."""
        if frame.flow is None or frame.mask is None or frame.warped is None:
            return {}
        return self.flow_terms(frame.flow, frame.mask, frame.warped, moment=moment)
