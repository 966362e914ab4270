"""Scoring clips, frame beside frame: those that a run makes of its held-out maps, or of a folder, against the real ones.

Figures are means over clips, with their standard errors over clips: the frames of one are alike, and do not count one by one.
"""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from triptych import __version__
from triptych.core.errors import ConfigError, DataError, UserError
from triptych.core.reading import sha256_of, user_path
from triptych.core.translation import VideoTranslator
from triptych.core.weight_files import read_weights
from triptych.core.wording import counted
from triptych.data.clip_files import clips_of
from triptych.data.clips import ClipDataConfig, ClipImages
from triptych.data.cut import Cut
from triptych.data.frame_files import FlowFiles
from triptych.data.loader import batches_of
from triptych.data.pans import PanDataConfig
from triptych.data.skipping import Spread
from triptych.engine.distributed import open_world
from triptych.engine.progress import Watch, unwatched
from triptych.evaluation.clip_metric import CLIP_METRICS, FVD, SHARPNESS, WARPING_ERROR, ClipMetricConfig, open_i3d, sharpness
from triptych.evaluation.feature_set import FeatureSet, Figure, SetMetricConfig
from triptych.evaluation.pair_metric import PAIR_METRICS, PairMetricConfig, mean
from triptych.evaluation.set_metric import SET_METRICS
from triptych.gans.flow import confidence, inside, leads_home, warping_error
from triptych.gans.lucas_kanade import lucas_kanade
from triptych.nn.raft import Raft
from triptych.runs.figure_files import figures_place, place_in_run, taken_since
from triptych.runs.first_frames import run_first_frames
from triptych.runs.given.collection import stamp
from triptych.runs.given.data_images import contents, reopened
from triptych.runs.given.pictures import StoredPictures, open_pictures
from triptych.runs.given.sizes import OutputSize
from triptych.runs.loading import Loading, LoadingKeywords
from triptych.runs.metric_names import Wanted, require_known
from triptych.runs.pieces import digest_of
from triptych.runs.protocol import commit
from triptych.runs.scoring import Scores, write_scores
from triptych.runs.stored import Opened, StoredRun
from triptych.runs.video import whole_clip
from triptych.runs.work import Part, Within, Work, assembled, done, evaluating

PER_FRAME = tuple(name for name, metric in PAIR_METRICS.items() if metric.needs == "truth")
"""Figures of single frames beside their truth."""

Estimate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From real frames (1, c, h, w) and those before them to the flow between the two, there and back."""


@dataclass(frozen=True)
class Clip:
    """A clip and what it should have been."""

    made: np.ndarray
    "uint8 (t, h, w, c), as `real`."
    real: np.ndarray
    flow: np.ndarray | None
    "The true flow to the frame before: float32 (t, 2, h, w), NaN where it is not known."


class ClipSet(ABC):
    """Clips by number, one at a time in memory."""

    names: Sequence[str]
    frames: int
    "Of all clips."
    size: tuple[int, int]
    "Height and width."
    channels: int
    has_flow: bool
    identity: Mapping[str, Any]
    "What they are, for JSON."

    @abstractmethod
    def clip(self, number: int) -> Clip:
        """One of them. Raises DataError for what cannot be read."""


class FolderClips(ClipSet):
    """The clips of a folder beside those of another, which has them all, and all of their frames, under the same names."""

    def __init__(self, made: str | Path, real: str | Path, *, flow: str | Path | None, image_size: OutputSize) -> None:
        """`flow`: a folder of the true flow, CLIP/FRAME.npy. Raises ConfigError or DataError."""
        cut = image_size if not isinstance(image_size, str) else None
        self._made, self._real = open_pictures(made, image_size=cut), open_pictures(real, image_size=cut)
        if (self._made.size, self._made.channels) != (self._real.size, self._real.channels):
            shapes = [f"{one.size[1]}x{one.size[0]} pixels, {'grey' if one.channels == 1 else 'RGB'}" for one in (self._made, self._real)]
            advice = "make both grey or both RGB" if self._made.size == self._real.size else "make them one size by --image-size"
            raise DataError(f"{made} has frames of {shapes[0]}, {real} of {shapes[1]}", advice=advice)
        keys, truth = _keys(self._made, made), {key: k for k, key in enumerate(_keys(self._real, real))}
        clips, whole = clips_of(keys), clips_of(list(truth))
        alone = next((key for key in keys if key not in truth), None)
        if alone is not None:
            raise DataError(f"{real}: has no frame {alone}, as {made} does; a clip and its truth have the same names")
        for name, frames in clips.items():
            if len(frames) != len(whole[name]):
                has = f"has {counted(len(frames), 'frame')}, its truth {len(whole[name]):,}"
                raise DataError(f"{made}: the clip {name or 'of all frames'} {has}")
            if len(frames) < 2:
                raise DataError(
                    f"{made}: the clip {name or 'of all frames'} has a single frame; put the frames of a clip into one sub-folder"
                )
        self.names, self._clips, self._truth = list(clips), list(clips.values()), [truth[key] for key in keys]
        self.frames, self.size, self.channels = len(keys), self._made.size, self._made.channels
        self.has_flow, self._flow, flow_of = flow is not None, None, None
        if flow is not None:
            if image_size is not None:
                raise ConfigError(
                    "image_size", f"got {image_size}, but the true flow is that of the frames as they are; leave one of the two out"
                )
            place = user_path(flow)
            flow_of = {"path": str(flow), "stamp": stamp(place)}
            clips_of_keys = [np.array(clip) for clip in self._clips]
            self._flow = FlowFiles(place, keys, clips=clips_of_keys, folder=place.name, setting="--true-flow")
        self.identity = {"made": self._made.identity, "reference": self._real.identity, "flow": flow_of}

    def clip(self, number: int) -> Clip:
        frames = self._clips[number]
        flow = None
        if self._flow is not None:
            height, width = self.size
            flow = np.stack([self._flow.read(frame, Cut(height, width), (width, height), None) for frame in frames])
        return Clip(self._made.images(frames), self._real.images([self._truth[frame] for frame in frames]), flow)


class RunClips(ClipSet):
    """The clips that a run makes of held-out maps, each from its first frame on, every frame of the 8 bits of those before it."""

    def __init__(self, run: StoredRun, opened: Opened, *, frames: int | None, count: int | None) -> None:
        """Raises ConfigError or DataError where the run makes no clips, or has no held-out ones of so many frames."""
        config, model = run.config.data, opened.model
        if isinstance(config, PanDataConfig):
            raise ConfigError(
                "metrics", "clips of pans are not measured here; translate some, and measure their folder against the true frames"
            )
        if not isinstance(config, ClipDataConfig) or not isinstance(model, VideoTranslator):
            raise ConfigError("metrics", f"{WARPING_ERROR}, {SHARPNESS} and {FVD} are of clips, but this run makes single images")
        length = frames or config.length.most
        if length < 2:
            raise ConfigError("frames", f"got {length}, expected at least 2: figures of clips compare each frame with the one before it")
        data = reopened(config, run.spec)
        if not isinstance(data.validation, ClipImages):
            raise ConfigError("reference", "this run's data has no held-out clips; translate some, and measure their folder")
        clips = [clip for clip in data.validation.clips if len(clip) >= length + config.references]
        if not clips:
            longest = max(len(clip) for clip in data.validation.clips) - config.references
            raise ConfigError("frames", f"got {length}, expected at most {longest}: the longest held-out clip has no more{config.beside}")
        if (short := len(data.validation.clips) - len(clips)) and opened.world.is_main:
            left = counted(short, "held-out clip is", "held-out clips are")
            warnings.warn(f"{left} left out, with fewer than {length} frames{config.beside}", stacklevel=3)
        held_out = data.validation.of_length(length, clips)
        available = len(held_out)
        if count is not None and not 1 <= count <= available:
            raise ConfigError("count", f"got {count}, expected 1 to {available}, the held-out clips of {length} frames")
        self._images, self._model, self._opened = Spread(held_out, count or available), model, opened
        self._first = run_first_frames(None, run, opened)
        self._flow_name = next((entry.name for entry in data.spec.inputs if entry.kind == "flow"), None)
        self.names = [self._images.key(k) for k in range(len(self._images))]
        self.frames, self.size, self.channels = length * len(self.names), data.spec.height_and_width, data.spec.channels
        self.has_flow = self._flow_name is not None
        settings = {name: value for name, value in config.to_dict().items() if name != "workers"}
        self.identity = {"weights": dict(opened.origin), "data": settings, "frames": length, "precision": opened.loading.precision}
        self.identity |= {"contents": contents(self._images)}
        if self._first is not None:
            self.identity |= {"first_frames": self._first.origin}

    def clip(self, number: int) -> Clip:
        raw = next(iter(batches_of(self._images, [np.array([number])])))
        opened, model = self._opened, self._model
        inputs = raw.to(opened.world.device).inputs
        given = {"settings": model.translation, "precision": opened.loading.precision, "device": opened.world.device}
        with evaluating(opened.model):
            made = whole_clip(model, number, inputs, first=self._first, **given)
        flow = None if self._flow_name is None else raw.inputs[self._flow_name][0].numpy()
        return Clip(np.stack(made), raw.images[0].numpy(), flow)


def _keys(pictures: StoredPictures, folder: str | Path) -> list[str]:
    """Sub-folders and stem of the frames."""
    place = user_path(folder)
    if not place.is_dir():
        raise DataError(f"{place}: clips are measured in folders: a sub-folder for each, with its frames")
    return [Path(pictures.items.describe(k)).relative_to(place).with_suffix("").as_posix() for k in range(len(pictures.items))]  # type: ignore[arg-type]


def score_clips(
    clips: str | Path | StoredRun,
    reference: str | Path | None = None,
    *,
    metrics: Sequence[str],
    frames: int | None = None,
    count: int | None = None,
    image_size: OutputSize = None,
    flow: str | Path | None = None,
    settings: ClipMetricConfig | None = None,
    pair: PairMetricConfig | None = None,
    out: str | Path | None = None,
    progress: Watch = unwatched,
    **loading: Unpack[LoadingKeywords],
) -> Scores:
    """The figures of clips beside the real ones, in every process; also written to `out`, a .json.

    `clips`: a run, whose held-out clips of `frames` frames (None: data.length.most), `count` of them, are made; or a folder, beside the
    `reference` of the same names, with the true `flow` in another. `metrics`: names of CLIP_METRICS and PER_FRAME. `out`: None for a name
    in the run's folder evaluations, of folders nowhere. Raises ConfigError, CheckpointError and DataError.
    """
    settings, pair, chosen = settings or ClipMetricConfig(), pair or PairMetricConfig(), Loading(**loading)
    require_known(metrics, (*CLIP_METRICS, *PER_FRAME))
    place = figures_place(out)
    source, world = _opened(clips, reference, frames, count, image_size, flow, chosen)
    wanted, measures = Wanted(list(dict.fromkeys(metrics))), dict[str, _Measure]()
    for name in dict.fromkeys(metrics):
        try:
            measures[name] = _measure(name, source, settings, pair, world.device)
        except UserError as error:
            wanted.drop([name], error)
    identity = {name: value for measure in measures.values() for name, value in measure.identity.items()} | dict(source.identity)
    asked = {"metrics": sorted(measures), **identity}
    if place is None and isinstance(clips, StoredRun):
        place = place_in_run(clips.directory, measures, images=source.identity["weights"]["images"], asked=asked)
    started = time.monotonic()

    def make(items: Sequence[int], within: Within) -> Iterator[Part]:
        for item in items:
            clip = source.clip(item)
            yield [item], {name: np.array(measure.find(clip))[None] for name, measure in measures.items()}

    def conclude(parts: Iterable[Part]) -> Scores:
        rows, figures = assembled(parts, len(source.names)), dict[str, Figure]()
        for name, measure in measures.items():
            try:
                figures[name] = measure.conclude(rows[name])
            except UserError as error:
                wanted.drop([name], error)
        counts = {"clips": len(source.names), "frames": source.frames, "size": list(source.size)}
        protocol = {**identity, **counts, "quantization": "uint8", "triptych": __version__, "commit": commit()}
        return Scores(figures, wanted.missing, protocol, {}, place)

    def write(path: Path, scores: Scores) -> None:
        write_scores(path, scores, {"digest": digest_of(asked), **taken_since(started, world)})

    work = Work(len(source.names), asked, make)
    return done(work, place, world=world, progress=progress, kept="measured", conclude=conclude, write=write)


def _opened(
    clips: str | Path | StoredRun,
    reference: str | Path | None,
    frames: int | None,
    count: int | None,
    image_size: OutputSize,
    flow: str | Path | None,
    loading: Loading,
) -> tuple[ClipSet, Any]:
    """The clips, and the processes that look at them. Raises ConfigError for what is not of a run, or not of a folder."""
    if isinstance(clips, StoredRun):
        for name, value in (("reference", reference), ("image_size", image_size), ("flow", flow)):
            if value is not None:
                raise ConfigError(name, f"got {value}, but a run is held against its own held-out clips, as they are; leave it out")
        opened = clips.open_together(loading)
        return RunClips(clips, opened, frames=frames, count=count), opened.world
    if reference is None:
        raise ConfigError("reference", "missing: a folder of the real clips, under the same names")
    for name, value in (("frames", frames), ("count", count)):
        if value is not None:
            raise ConfigError(name, f"got {value}, but {clips} is a folder, of which all clips count; leave it out")
    return FolderClips(clips, reference, flow=flow, image_size=image_size), open_world(loading.device)


# Measuring --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Measure:
    """A metric that is ready to look at clips."""

    find: Callable[[Clip], Any]
    "Its numbers of a clip."
    conclude: Callable[[np.ndarray], Figure]
    "From the numbers of all clips (n, ...)."
    identity: Mapping[str, Any] = field(default_factory=dict)
    "What they depend on besides the clips; JSON."


def _measure(name: str, source: ClipSet, settings: ClipMetricConfig, pair: PairMetricConfig, device: torch.device) -> _Measure:
    """A metric of these clips. Raises UserError where they, or the settings, have not what it needs."""
    if name == WARPING_ERROR:
        flow, estimate = _flow(settings, source.has_flow, device)
        identity = {**flow, "masked_by": "colours" if estimate is None else "colours and forward-backward"}
        return _Measure(lambda clip: _warping_errors(clip, estimate, device), _mean_warping_error, identity)
    if name == SHARPNESS:
        return _Measure(lambda clip: sharpness(clip.made, clip.real), mean)
    if name == FVD:
        features, digest = open_i3d(settings, device=device)
        return _Measure(lambda clip: np.stack((features(clip.made), features(clip.real))), _distance, {"i3d_sha256": digest})
    metric, blank = PAIR_METRICS[name].make(pair, device), np.zeros((1, *source.size, source.channels), np.uint8)
    metric.measure(blank, blank)
    identity = {name: dict(metric.identity)} if metric.identity else {}
    return _Measure(lambda clip: _over_frames(metric.measure(clip.made, clip.real)), metric.conclude, identity)


@torch.no_grad()
def _warping_errors(clip: Clip, estimate: Estimate | None, device: torch.device) -> tuple[float, float, float]:
    """That of the clip, that of the real one, and the share of the pixels that count; NaN where none does. `estimate`: None: the true flow.

    A frame none of whose pixels counts (after a cut) says nothing of flicker: it is in the share alone.
    """
    made, real = (torch.from_numpy(x).to(device).movedim(-1, 1).double() / 127.5 - 1 for x in (clip.made, clip.real))
    errors = []
    for t in range(1, len(real)):
        now, before = real[t : t + 1], real[t - 1 : t]
        if estimate is not None:
            flow, back = (found.double() for found in estimate(now.float(), before.float()))
            counted = leads_home(flow, back)
        else:
            assert clip.flow is not None
            flow = torch.from_numpy(clip.flow[t : t + 1]).to(device).double()
            counted = flow.isfinite().all(1, keepdim=True).double()
            flow = flow.nan_to_num(0.0)
        counted = counted * inside(flow) * confidence(now, before, flow)
        both = [float(warping_error(x[t : t + 1], x[t - 1 : t], flow, counted)) for x in (made, real)]
        errors.append([*both, float(counted.mean())])
    each = np.array(errors)
    seen = each[each[:, 2] > 0, :2]
    ours, theirs = seen.mean(axis=0) if len(seen) else (np.nan, np.nan)
    return float(ours), float(theirs), float(each[:, 2].mean())


def _mean_warping_error(values: np.ndarray) -> Figure:
    seen = values[np.isfinite(values[:, 0])]
    if not len(seen):
        raise DataError("in no frame is there a pixel whose flow is believed: nothing can be compared")
    return replace(mean(seen[:, 0]), details={"real": float(seen[:, 1].mean()), "counted": float(values[:, 2].mean())})


def _distance(values: np.ndarray) -> Figure:
    made, real = (FeatureSet({"features": values[:, k]}) for k in (0, 1))
    return SET_METRICS["frechet"].measure(made, real, SetMetricConfig())


def _over_frames(values: np.ndarray) -> float:
    """The mean of those that are finite; PSNR has others where frames are equal to their truth."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float(values[0])


def _flow(settings: ClipMetricConfig, known: bool, device: torch.device) -> tuple[dict[str, str], Estimate | None]:
    """Whose flow counts, for JSON, and what estimates it. Raises ConfigError where it is not there, CheckpointError for another file."""
    kind = settings.flow
    if kind == "auto":
        kind = "data" if known else "classical" if settings.raft.weights is None else "raft"
    if kind == "data":
        if not known:
            raise ConfigError("flow", "got data, but the clips come without a true flow; give its folder, or take another flow")
        return {"flow_of": kind}, None
    if kind == "classical":
        return {"flow_of": "Lucas and Kanade"}, lambda target, source: (lucas_kanade(target, source), lucas_kanade(source, target))
    assert settings.raft.weights is not None
    path, raft = user_path(settings.raft.weights), Raft(settings.raft.network).to(device)
    raft.load(read_weights(path), source=settings.raft.weights)
    identity = {"flow_of": settings.raft.network, "flow_sha256": sha256_of(path)}
    return identity, lambda target, source: (raft(target, source), raft(source, target))
