"""What GANs have in common that make clips of label maps, frame by frame.

The frames of a clip are the turns of an iteration: in each the discriminator takes a step, then the generator. A generated frame goes on to
the next ones without gradient. Discriminators of several frames, where there are some, judge every n^s-th of the last frames.

A frame x_t may be made with the help of another picture x', moved by a flow f to where it shows the same, and of use where a mask m is 0.
With the real frame y_t and the flow f* of a teacher, believed where c = 1, the generator minimises for each such picture, beside the terms
of `paired_base`,

    w_flow (mean |c f - c f*| + mean |warp(x', f) - y| + mean m q + mean (1 - m) (1 - q)),   q = max(0, 1 - sum_c |warp - y|)

With `warping_weight` it also minimises how much a frame flickers (Lai et al. 2018, arXiv 1808.00449), x_(t-1) the frame made before,

    w_warping (sum c |x_t - warp(x_(t-1), f*)|) / (sum c)

Discriminators of crops of faces and hands, where there are some, have the scores and features of theirs added, by their weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from triptych.core.batch import Batch, DataSpec, InputSpec
from triptych.core.config import Config, config, settings_like
from triptych.core.errors import ConfigError
from triptych.core.model import LossTerms, Phase, TrainingProgress, Turn
from triptych.core.rng import Rng
from triptych.core.translation import Example
from triptych.gans.crops import Part, PoseMap, part_crops, pose_map
from triptych.gans.discriminators import least_side
from triptych.gans.flow import confidence, flow_l1, mask_loss, past_window, temporal_memory, temporal_window, warping_error
from triptych.gans.inverse_search import inverse_search
from triptych.gans.label_maps import LabelMaps
from triptych.gans.losses import feature_matching, l1
from triptych.gans.lucas_kanade import lucas_kanade
from triptych.gans.model import GENERATOR, Contest, weighted_terms
from triptych.gans.paired_base import PairedGAN, PairedGANConfig
from triptych.gans.translation_base import GeneratorConfig
from triptych.gans.video_discriminators import VideoDiscriminator, VideoDiscriminatorConfig
from triptych.nn.raft import Raft, RaftConfig

FLOW_TERMS = ("flow_l1", "flow_warp", "mask")
_MADE, _LABELS, _BEFORE = "/made", "/past_labels", "/real_before"
"""Names among the inputs of a frame, as no folder is called: the frames made before it (b, p, c, h, w), their label maps, the real one."""
_TEACHER, _BELIEVED = "/teacher_flow", "/teacher_believed"
"""And what the teacher says of it and the real one before, where several terms ask."""


@config
class ClipTranslationConfig(Config):
    """How label maps become frames."""

    first_frames: int = 1
    "Frames at the beginning of a clip that a run of single images makes, where one is given as first frames; 0: none."

    def validate(self) -> None:
        self.require(self.first_frames >= 0, "first_frames", "0 or more")


@config
class ClipGANConfig(PairedGANConfig):
    """A GAN that makes clips."""

    terms: ClassVar = PairedGANConfig.terms | dict.fromkeys(FLOW_TERMS, "flow_weight") | {"warping": "warping_weight"}
    unwritten: ClassVar = PairedGANConfig.unwritten | {"raft", "warping_weight"}
    changeable: ClassVar = frozenset(("translation",))

    discriminator: VideoDiscriminatorConfig = VideoDiscriminatorConfig()
    "The discriminators."
    flow_weight: float = 10.0
    "Weight of each of the three terms of a flow."
    warping_weight: float = 0.0
    "Weight of how far each frame is from the one made before it, warped by the teacher's flow; 0: left out, as published."
    teacher: Literal["auto", "data", "raft", "classical", "dis", "none"] = "auto"
    "Flow to learn from: the data's, RAFT's, Lucas and Kanade's (classical), OpenCV's DIS, none; auto: the first that is there of three."
    raft: RaftConfig = RaftConfig()
    "RAFT as the teacher: auto takes it where it has weights, and the data has no flow. Its file is read when training starts."
    temporal_weight: float = 1.0
    "Weight of the scores of the discriminators of several frames, for both networks."
    translation: ClipTranslationConfig = ClipTranslationConfig()
    "Settings of `triptych translate`."

    def validate(self) -> None:
        for name in ("discriminator_steps", "generator_steps"):
            self.require(getattr(self, name) == 1, name, "1: both take a step in each frame")
        self.require(0 <= self.temporal_weight < float("inf"), "temporal_weight", "0 or a positive number")
        self.require(self.teacher != "none" or not self.warping_weight, "warping_weight", "0 without a teacher of flow")
        self.require(self.teacher != "raft" or self.raft.weights is not None, "teacher", "another one, or raft with a file as raft.weights")
        further = ["discriminator.temporal_scales"] * (self.discriminator.temporal_scales > 0)
        further += [f"discriminator.{part}.weight" for part in self.discriminator.crops]
        for name in further:
            self.require(not self.augment, "augment", f"nothing with {name}")
            self.require(not self.ada.used, "ada", f"none with {name}")
        self.require(self.top_k.least == 1, "top_k", "least 1 with clips, whose frames are steps of their own")

    @property
    @abstractmethod
    def sides(self) -> dict[str, tuple[object, int, int]]:
        """For each setting of the generator that decides the sides of frames: what it is, what they are multiples of, the fewest pixels."""

    @abstractmethod
    def model(self, spec: DataSpec, labels: LabelMaps) -> ClipGAN:
        """The model of data that was checked."""

    def build(self, spec: DataSpec) -> ClipGAN:
        """The model with fresh weights; raises ConfigError for data that is not of clips, and for sizes that do not fit."""
        if spec.frames is None:
            raise ConfigError(
                "", "the data has no clips; this model needs data of the kind clips, with frames and maps that follow one another"
            )
        has_flow = any(entry.kind == "flow" for entry in spec.inputs)
        if self.teacher == "data" and not has_flow:
            raise ConfigError("teacher", "got data, but the data has no flow; give its folder as data.flow, or take another teacher")
        labels, patch = self.label_maps(label_inputs(spec)), self.discriminator.patch
        sides = {**self.sides, "discriminator.patch.num_layers": (patch.num_layers, 1, least_side(patch))}
        if self.discriminator.temporal_scales:
            patch = self.discriminator.temporal
            sides["discriminator.temporal.num_layers"] = (patch.num_layers, 1, least_side(patch))
        for part, settings in self.discriminator.crops.items():
            pose_map(labels.inputs, part=part, weight=settings.weight)
            sides[f"discriminator.{part}.patch.num_layers"] = (settings.patch.num_layers, 1, settings.least_height(part))
        self.check_sides(spec, sides=sides)
        return self.model(spec, labels)


def label_inputs(spec: DataSpec) -> tuple[InputSpec, ...]:
    """The inputs of single frames that label maps are put together from."""
    return tuple(replace(entry, frames=None) for entry in spec.inputs if entry.kind not in ("flow", "points") and entry.references is None)


class GeneratedFrame(Protocol):
    """A frame that a generator made."""

    @property
    def image(self) -> Tensor:
        """(b, c, h, w) in [-1, 1]."""
        ...


class Filmed(NamedTuple):
    """A frame in training."""

    beside: Float[Tensor, "b n h w"]
    "What the discriminator sees beside its image."
    frame: Any
    "A GeneratedFrame."


class ClipGAN(PairedGAN):
    """The model of a ClipGANConfig."""

    config: ClipGANConfig
    discriminator: VideoDiscriminator
    remembers: bool = False
    style_sources: tuple[InputSpec, ...] = ()
    _frame = 0

    def __init__(
        self,
        config: ClipGANConfig,
        spec: DataSpec,
        generator: nn.Module,
        discriminator: VideoDiscriminator,
        *,
        labels: LabelMaps,
        sizes: GeneratorConfig,
        past_frames: int,
    ) -> None:
        """`past_frames`: of a clip, how many before it the generator sees."""
        given = {"labels": labels, "sizes": sizes, "translation": config.translation}
        frame = replace(spec, inputs=labels.inputs, frames=None, clip_length=None)
        super().__init__(config, frame, generator, discriminator, **given, partial=True)
        self.spec, self.past_frames = spec, past_frames
        self.largest_from = 0 if spec.clip_length is None else spec.clip_length.longest_from
        self.flow_name = next((entry.name for entry in spec.inputs if entry.kind == "flow"), None)
        self.teacher = config.teacher
        if self.teacher == "auto":
            self.teacher = "data" if self.flow_name is not None else "classical" if config.raft.weights is None else "raft"
        self.raft = Raft(config.raft.network) if self.teacher == "raft" else None
        if self.raft is not None:
            self.frozen_networks = {**self.frozen_networks, "raft": config.raft.weights}
        self._scales, self._judged_frames = config.discriminator.temporal_scales, config.discriminator.temporal_frames
        crops = config.discriminator.crops.items()
        self._poses: dict[Part, PoseMap] = {part: pose_map(labels.inputs, part=part, weight=settings.weight) for part, settings in crops}
        memory = temporal_memory(scales=self._scales, frames=self._judged_frames)
        self.judged_span, self._kept = memory + 1, max(past_frames, memory)

    # What a model says --------------------------------------------------------------------------------------------------

    @abstractmethod
    def frame_of(self, label: Tensor, past_labels: Tensor | None, past: Tensor | None, inputs: Mapping[str, Tensor]) -> GeneratedFrame:
        """The frame of a label map after those made before it (b, p, c, h, w), with their maps; None before a first one."""

    @abstractmethod
    def frame_terms(self, frame: Any, moment: Batch) -> dict[str, Float[Tensor, " b"]]:
        """The terms of a generated frame beside those of its image."""

    def judged_with(self, label: Tensor, frame: Any, inputs: Mapping[str, Tensor]) -> Float[Tensor, "b n h w"]:
        """What the discriminator sees beside an image: the label map."""
        return label

    def beside_crops(self, part: Part, frame: Any, inputs: Mapping[str, Tensor]) -> Float[Tensor, "n m s s"] | None:
        """What the discriminator of a part sees beside its crops of a frame: nothing."""
        return None

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each of the generator's terms, and of those of discriminators of crops and of several frames."""
        kinds = {"real": self.config.temporal_weight, "fake": self.config.temporal_weight, "adversarial": self.config.temporal_weight}
        kinds["feature_matching"] = self.config.feature_matching_weight
        several = {f"{kind}_temporal_{scale}": weight for kind, weight in kinds.items() for scale in range(self._scales)}
        crops = {f"{kind}_{part}": settings.weight for part, settings in self.config.discriminator.crops.items() for kind in kinds}
        return {**self.config.weights, **crops, **several}

    # The frames of an iteration -----------------------------------------------------------------------------------------

    def turns(self, progress: TrainingProgress) -> Iterator[Turn]:
        """For each frame of a clip, as long as clips are by now, a step of the discriminator and one of the generator."""
        length = self.spec.clip_length
        for _ in range((self.spec.frames or 1) if length is None else length.at(progress.images_seen)):
            yield from (Turn(phase) for phase in self.phases if progress.iteration % phase.every == 0)

    def prepare(self, phase: Phase, progress: TrainingProgress) -> None:
        """As of any GAN; and notes the frame, which is the number of the phase's step."""
        super().prepare(phase, progress)
        self._frame = progress.step

    def loss(self, phase: Phase, batch: Batch, rng: Rng) -> LossTerms:
        """The terms of the phase in a frame of clips, and what the next frame needs of it; in evaluation mode those of whole clips."""
        if not self.training:
            return super().loss(phase, batch, rng)
        past = batch.inputs.get(_MADE) if self._frame else None
        moment = self._moment(batch, self._frame, past)
        made_yet = phase.name == GENERATOR and batch.kept is not None and batch.kept.filled
        if past is not None and not made_yet:
            labels = self._past_labels(batch, past_window(self._frame, frames=self.past_frames + 1))
            moment = replace(moment, inputs={**moment.inputs, _LABELS: labels})
        if phase.name != GENERATOR:
            return super().loss(phase, moment, rng)
        if self.config.warping_weight and self.has_past(moment):  # several terms ask the teacher
            taught = self._between_frames(moment)
            assert taught is not None, "there is a teacher"
            moment = replace(moment, inputs={**moment.inputs, _TEACHER: taught[0], _BELIEVED: taught[1]})
        made = self.made_by_now(moment, rng)
        terms, image = self.generator_terms(made, moment, rng), made.frame.image.detach()
        carried = {_MADE: _with_next(moment.inputs.get(_MADE), image, most=self._kept), **self.remembered(moment.inputs, image)}
        return replace(weighted_terms(terms, self.weights), carried=carried)

    def _moment(self, clip: Batch, frame: int, made: Tensor | None) -> Batch:
        """A frame of clips: its image and maps, the real frames before it, and of the frames that were `made` those that count."""
        framed = {entry.name: entry.frames is not None for entry in self.spec.inputs}
        inputs = {name: clip.inputs[name][:, frame] if there else clip.inputs[name] for name, there in framed.items()}
        if made is not None:
            inputs[_MADE] = made
            inputs[_BEFORE] = clip.images[:, max(0, frame - self._kept) : frame]
        return Batch(clip.images[:, frame], None, clip.index, inputs, clip.kept)

    def remembered(self, inputs: Mapping[str, Tensor], image: Float[Tensor, "b c h w"]) -> dict[str, Tensor]:
        """What of a frame joins the inputs of the one after it, beside its image and maps: nothing."""
        return {}

    def _past_labels(self, clip: Batch, frames: Sequence[int]) -> Tensor:
        maps = self._maps(clip.inputs)
        return self._labels_of([{name: values[:, frame] for name, values in maps.items()} for frame in frames])

    def _labels_of(self, frames: Sequence[Mapping[str, Tensor]]) -> Float[Tensor, "b p n h w"]:
        maps = [self.labels(inputs) for inputs in frames]
        return torch.stack([each.movedim(1, -1) for each in maps], dim=1).movedim(-1, 2)  # each of them channels last, as it was

    def _maps(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {entry.name: inputs[entry.name] for entry in self.sources if entry.name in inputs}

    def _look(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {entry.name: inputs[entry.name] for entry in self.style_sources if entry.name in inputs}

    @staticmethod
    def has_past(moment: Batch) -> bool:
        """Whether a frame is not the first of its clips."""
        return _MADE in moment.inputs

    # Terms --------------------------------------------------------------------------------------------------------------

    @property
    def draws(self) -> bool:
        """It does not."""
        return False

    def made(self, batch: Batch, rng: Rng) -> Filmed:
        """A frame, with what the discriminator sees beside it."""
        label, past = self.labels(batch.inputs), batch.inputs.get(_MADE)
        before = (None, None) if past is None else (batch.inputs[_LABELS], past[:, -self.past_frames :])
        frame = self.frame_of(label, *before, batch.inputs)
        return Filmed(self.judged_with(label, frame, batch.inputs), frame)

    def contests(self, made: Filmed, batch: Batch, rng: Rng) -> list[Contest]:
        """The frame with its label map, its crops, and as many frames as each discriminator of several judges, once there are so many."""
        further = self._crop_contests(batch, made.frame, rng) + self._temporal_contests(batch, made.frame.image, rng)
        return [self._contest(batch, made.beside, made.frame.image, rng), *further]

    def generator_terms(self, made: Filmed, batch: Batch, rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """Those of the frame's image and of its crops, of the flow, and of several frames."""
        image = made.frame.image
        terms = self.judged(batch, made.beside, image, rng) | self.frame_terms(made.frame, batch) | self._warping_term(batch, image)
        for contest in self._crop_contests(batch, made.frame, rng):
            terms |= self._further_terms(contest, fooled=True, matched=True)
        for contest in self._temporal_contests(batch, image, rng):
            fooled, matched = self.config.temporal_weight > 0, self.config.feature_matching_weight > 0
            terms |= self._further_terms(contest, fooled=fooled, matched=matched)
        return terms

    def _crop_contests(self, moment: Batch, frame: GeneratedFrame, rng: Rng) -> list[Contest]:
        contests = list[Contest]()
        for part, pose in self._poses.items():
            crops = part_crops(moment.inputs[pose.name], part=part, drawn=pose.drawn)
            discriminate = partial(self.discriminator.crop, part=part, beside=self.beside_crops(part, frame, moment.inputs))
            given = {"discriminate": lambda view, use=discriminate: use, "name": part, "share": crops.share}
            contests.append(self.contest(crops.of(moment.images), crops.of(frame.image), rng, **given))
        return contests

    def _temporal_contests(self, moment: Batch, fake: Tensor, rng: Rng) -> list[Contest]:
        made, contests = moment.inputs.get(_MADE), list[Contest]()
        for scale in range(self._scales if made is not None else 0):
            assert made is not None
            window = temporal_window(self._frame, scale=scale, frames=self._judged_frames)
            if window is None:
                continue
            real, faked = (
                torch.cat([past[:, frame - self._frame] for frame in window[:-1]] + [last], dim=1)
                for past, last in ((moment.inputs[_BEFORE], moment.images), (made, fake))
            )
            discriminate = partial(self.discriminator.temporal, scale=scale)
            contests.append(self.contest(real, faked, rng, discriminate=lambda view, use=discriminate: use, name=f"temporal_{scale}"))
        return contests

    def _further_terms(self, contest: Contest, *, fooled: bool, matched: bool) -> dict[str, Tensor]:
        """The terms of a contest beside that of whole frames: of its scores if `fooled`, of its features if `matched`."""
        terms, verdict = dict[str, Tensor](), self.verdict(contest, compare=matched)
        if fooled:
            terms[contest.term("adversarial")] = verdict.loss
        if matched:
            distances = feature_matching(verdict.fake.features, verdict.real.features)
            terms[contest.term("feature_matching")] = contest.of_samples(distances)
        return terms

    def flow_terms(
        self,
        flow: Tensor,
        mask: Tensor,
        moved: Tensor,
        *,
        moment: Batch,
        source: Tensor | None = None,
        target: Tensor | None = None,
        within: Tensor | None = None,
    ) -> dict[str, Float[Tensor, " b"]]:
        """flow_l1 where there is a teacher, flow_warp and mask of a picture that was `moved` by a flow; none where they have no weight.

        The teacher compares `target`, or the real frame, with `source`, the real picture in the place of the moved one, or the frame
        before; it is believed `within` this alone (b, 1, h, w).
        """
        if not self.config.flow_weight:
            return {}
        terms = {"flow_warp": l1(moved, moment.images), "mask": mask_loss(mask, moved, moment.images)}
        if source is None and target is None:
            taught = self._between_frames(moment)
        else:
            compared = moment.images if target is None else target, self.before(moment) if source is None else source
            taught = self._taught(*compared, moment.inputs)
        if taught is None:
            return terms
        teacher, believed = taught
        return {"flow_l1": flow_l1(flow, teacher, believed if within is None else believed * within), **terms}

    def _warping_term(self, moment: Batch, image: Tensor) -> dict[str, Float[Tensor, " b"]]:
        """How far a frame is from the one made before it; nothing of a first frame, or without a weight."""
        if _TEACHER not in moment.inputs:
            return {}
        return {"warping": warping_error(image, moment.inputs[_MADE][:, -1], moment.inputs[_TEACHER], moment.inputs[_BELIEVED])}

    @staticmethod
    def before(moment: Batch) -> Float[Tensor, "b c h w"]:
        """The real frame before one that is not the first."""
        return moment.inputs[_BEFORE][:, -1]

    def _between_frames(self, moment: Batch) -> tuple[Tensor, Tensor] | None:
        """What the teacher says of the real frame and the one before; see `_taught`."""
        if _TEACHER in moment.inputs:
            return moment.inputs[_TEACHER], moment.inputs[_BELIEVED]
        return self._taught(moment.images, self.before(moment), moment.inputs)

    @torch.no_grad()
    def _taught(self, real: Tensor, before: Tensor, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
        """The teacher's flow from real frames to those before them, and where it is believed (b, 1, h, w); None without a teacher."""
        if self.teacher == "none":
            return None
        if self.teacher != "data" or self.flow_name is None:
            estimate = self.raft or (inverse_search if self.teacher == "dis" else lucas_kanade)
            flow = estimate(real, before)
            return flow, confidence(real, before, flow)
        flow = inputs[self.flow_name]
        known = flow.isfinite().all(1, keepdim=True)
        flow = torch.where(known, flow, 0)
        return flow, confidence(real, before, flow) * known

    # Held-out clips -----------------------------------------------------------------------------------------------------

    def distances(self, batch: Batch, rng: Rng) -> dict[str, Float[Tensor, " b"]]:
        """Of whole clips, made from their first frame on: l1 and, where that has its weights, perceptual, means over the frames.

        Where there is a teacher, and RAFT has its weights, also warping_error: how far each frame is from the one before it, warped by
        the flow of the real frames; a mean over the frames of which some pixels can be compared.
        """
        frames = list(self._clip(batch.inputs, batch.images.shape[1]))
        real = batch.images.unbind(1)
        compared = [self.compared(*pair) for pair in zip(frames, real, strict=True)]
        distances = {name: torch.stack([frame[name] for frame in compared]).mean(0) for name in compared[0]}
        if self.teacher != "none" and (self.raft is None or self.raft.loaded) and len(frames) > 1:
            errors, counted = [], []
            for t in range(1, len(frames)):
                flow = {} if self.flow_name is None else {self.flow_name: batch.inputs[self.flow_name][:, t]}
                taught = self._taught(real[t], real[t - 1], flow)
                assert taught is not None
                errors.append(warping_error(frames[t], frames[t - 1], *taught))
                counted.append((taught[1].flatten(1).amax(1) > 0).float())  # after a cut there is nothing to compare
            distances["warping_error"] = torch.stack(errors).sum(0) / torch.stack(counted).sum(0).clamp(min=1)
        return distances

    def _clip(self, inputs: Mapping[str, Tensor], length: int) -> Iterator[Tensor]:
        """The frames of whole clips, made from their first one on."""
        past: list[dict[str, Tensor]] = []
        made: Tensor | None = None
        memory: Mapping[str, Tensor] = {}
        look = self._look(inputs)
        for frame in range(length):
            now = {name: values[:, frame] for name, values in self._maps(inputs).items()} | look
            image = self.next_frame({**now, **memory}, past, made, settings=self.config.translation)
            memory = self.remembered({**now, **memory}, image)
            yield image
            past = [*past, now][-self.past_frames :]
            made = _with_next(made, image, most=self.past_frames)

    # Translation --------------------------------------------------------------------------------------------------------

    def example(self, batch: Batch, *, settings: Config) -> Example:
        """The maps of whole clips (b, t, ...) with their references, and the real images of their last frames."""
        return Example(self._maps(batch.inputs) | self._look(batch.inputs), truth=batch.images[:, -1])

    @torch.no_grad()
    def translate(self, inputs: Mapping[str, Tensor], rng: Rng, *, settings: Config) -> Float[Tensor, "b c h w"]:
        """The images in [-1, 1] of the last frames of whole clips, made from their first one on; of single maps that of a first frame.

        `settings` is a ClipTranslationConfig. Raises ConfigError for what is missing or does not fit.
        """
        settings_like(self.config.translation, settings)
        first = self.sources[0]
        maps = inputs.get(first.name)
        if maps is None or maps.ndim <= (4 if first.kind == "image" else 3):
            return self.next_frame(inputs, [], None, settings=settings)
        length = maps.shape[1]
        for name, values in self._maps(inputs).items():
            if not length or values.shape[1:2] != (length,):
                wanted = f"as many frames as {first.name} has, {length}" if length else "one frame or more"
                raise ConfigError(name, f"got a tensor of shape {tuple(values.shape)}, expected clips (b, t, ...) of {wanted}")
        *_, last = self._clip(inputs, length)
        return last

    @torch.no_grad()
    def next_frame(
        self, inputs: Mapping[str, Tensor], past: Sequence[Mapping[str, Tensor]], made: Tensor | None, *, settings: Config
    ) -> Float[Tensor, "b c h w"]:
        """The images of the frame after those of `past` and `made`; see `VideoTranslator`."""
        label = self._label(inputs)
        if made is None or not past:
            return self.frame_of(label, None, None, inputs).image
        return self.frame_of(label, self._labels_of(past), made, inputs).image

    def first_frames(self, settings: Config) -> int:
        """How many frames of a clip a run of single images makes, where one is given for that."""
        return settings_like(self.config.translation, settings).first_frames


def _with_next(made: Tensor | None, image: Tensor, *, most: int) -> Tensor:
    """The frames (b, p, c, h, w) with one more, the newest `most` of them."""
    every = image[:, None] if made is None else torch.cat((made, image[:, None]), dim=1)
    return every[:, -most:]
