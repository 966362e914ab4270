"""World-consistent vid2vid (Mallya et al. 2020, arXiv 2007.08509): clips that keep the colours of what they show again.

It is known of pixels which point of the scene they show, p_t(x). A point gets the colour of the first frame that shows it; a later frame
is made with guidance, an image g_t of the colours that are known by then and a mask m_t of where they are (see `point_colours`). Guidance
modulates the norms of the largest sizes beside the label map and the warped frame. The generator minimises in each frame, beside the
terms of `vid2vid`,

    w_g sum m |x_t - g_t| / sum m
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from triptych.core.batch import Batch, DataSpec
from triptych.core.config import config
from triptych.core.errors import ConfigError
from triptych.gans.label_maps import LabelMaps
from triptych.gans.point_colours import guidance_loss, no_colours, no_numbers, places_of, seen_colours, with_colours, with_numbers
from triptych.gans.vid2vid import Vid2Vid, Vid2VidConfig
from triptych.gans.video_networks import Frame, Vid2VidGenerator, WCVid2VidGenerator, WCVid2VidGeneratorConfig

_COLOURS = "/colours"
_NUMBERS = "/numbers"
"""Names of the table of colours among the inputs of a frame and, outside of training, of the numbers of its points."""


@config
class WCVid2VidConfig(Vid2VidConfig):
    """World-consistent vid2vid."""

    kind_name: ClassVar = "wc_vid2vid"
    terms: ClassVar = Vid2VidConfig.terms | {"guidance": "guidance_weight"}

    generator: WCVid2VidGeneratorConfig = WCVid2VidGeneratorConfig()
    "The generator of a frame, with its flow network."
    guidance_weight: float = 20.0
    "Weight of the distance from the colours of points that were seen before."

    def build(self, spec: DataSpec) -> WCVid2Vid:
        """As vid2vid's; raises ConfigError also for data without points."""
        if spec.frames is not None and not any(entry.kind == "points" for entry in spec.inputs):
            reason = "the data does not say which points its pixels show; give their folder as data.points, or data of the kind pans"
            raise ConfigError("", reason)
        model = Vid2VidConfig.build(self, spec)
        assert isinstance(model, WCVid2Vid)
        return model

    def model(self, spec: DataSpec, labels: LabelMaps) -> WCVid2Vid:
        return WCVid2Vid(self, spec, labels)


class WCVid2Vid(Vid2Vid):
    """The model of a WCVid2VidConfig."""

    generator_class: ClassVar[type[Vid2VidGenerator]] = WCVid2VidGenerator
    remembers: bool = True

    config: WCVid2VidConfig
    generator: WCVid2VidGenerator

    def __init__(self, config: WCVid2VidConfig, spec: DataSpec, labels: LabelMaps) -> None:
        super().__init__(config, spec, labels)
        points = next(entry for entry in spec.inputs if entry.kind == "points")
        self.points_name = points.name
        self.sources = (*self.sources, replace(points, frames=None))

    def _moment(self, clip: Batch, frame: int, made: Tensor | None) -> Batch:
        moment = super()._moment(clip, frame, made)
        points = clip.inputs[self.points_name]
        known = no_colours(points[0].numel(), like=clip.images[:, 0]) if made is None else clip.inputs[_COLOURS]
        return replace(moment, inputs={**moment.inputs, _COLOURS: known})

    def remembered(self, inputs: Mapping[str, Tensor], image: Float[Tensor, "b c h w"]) -> dict[str, Tensor]:
        """The colours of the points that were shown so far."""
        points = self._points(inputs, image)
        if self.training:  # there is room for all points of the clip, which are numbered from 0 on
            return {_COLOURS: with_colours(inputs[_COLOURS], points, image)}
        table = inputs[_COLOURS] if _COLOURS in inputs else no_colours(1, like=image)
        table, numbers = with_numbers(table, inputs.get(_NUMBERS, no_numbers(like=points)), points, image)
        return {_COLOURS: table, _NUMBERS: numbers}

    def _points(self, inputs: Mapping[str, Tensor], like: Tensor) -> Int[Tensor, "b h w"]:
        """The points that a frame shows. Raises ConfigError for what is missing or has other sides than its image or map."""
        points, wanted = inputs.get(self.points_name), (len(like), *like.shape[-2:])
        if points is None or points.is_floating_point() or points.shape != wanted:
            got = "missing" if points is None else f"got {points.dtype} of shape {tuple(points.shape)}".replace("torch.", "")
            raise ConfigError(self.points_name, f"{got}, expected whole numbers of shape {wanted}")
        return points

    def guidance(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The colours of the points that the frame shows."""
        points = self._points(inputs, inputs[self.sources[0].name])
        if _COLOURS not in inputs:
            return {}
        places = places_of(points, inputs[_NUMBERS]) if _NUMBERS in inputs else points
        return {"guidance": seen_colours(inputs[_COLOURS], places)}

    def frame_terms(self, frame: Frame, moment: Batch) -> dict[str, Float[Tensor, " b"]]:
        """Those of the flow and, of a frame with a past, guidance."""
        terms = super().frame_terms(frame, moment)
        if self.config.guidance_weight > 0 and self.has_past(moment):
            terms["guidance"] = guidance_loss(frame.image, self.guidance(moment.inputs)["guidance"])
        return terms
