"""The images that a run makes, numbered from 0 and made when they are asked for: what is measured of it.

A sampler draws them; a translator makes them of held-out inputs, an upsampler of held-out images that were made small, an encoder of
held-out images by way of their latents. They are made in chunks that begin at multiples of their length and are always whole: so an image
is the same to the last bit in whatever process it is made, and whatever number of images is asked for.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from triptych import __version__
from triptych.core.batch import DataSpec, InputSpec
from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.core.given import shown
from triptych.core.images import nearest_uint8
from triptych.core.model import Encoder, Report, Sampler, Stepwise, Upsampler
from triptych.core.translation import Example, Translator
from triptych.data.domains import UnpairedImages
from triptych.data.images import Data, ImageSet
from triptych.data.pairs import PairedDataConfig
from triptych.data.skipping import Spread
from triptych.evaluation.clip_metric import CLIP_METRICS
from triptych.evaluation.pair_metric import PAIR_METRICS
from triptych.runs.encoding import require_encoder
from triptych.runs.given.data_images import contents, reopened, target_domain
from triptych.runs.given.translation import HeldOut, InputsLike, open_styles
from triptych.runs.guidance import guided, leader
from triptych.runs.latent_space import require_decoded, shown_by
from triptych.runs.reconstructing import Reconstruction
from triptych.runs.sampling import Request, draw, label_list, require_sampler, said_label
from triptych.runs.stored import Opened, StoredRun
from triptych.runs.translating import Translation, check_styles, require_translator
from triptych.runs.upsampling import Upsampling, made_small, require_upsampler
from triptych.runs.work import evaluating

CHUNK = 32
"""Images made at once, at most."""
_MOST_PIXELS = {"cpu": 2**17, "cuda": 2**21}
"""Of a chunk, by kind of device: 32 images of 64x64, and of 256x256. Of larger ones there are fewer in a chunk."""


_OF_SAMPLERS, _OF_TRANSLATORS = ("labels", "guide", "guide_with", "guide_ema_length"), ("style", "style_each", "style_count")
"""Settings of a request that others have no use for."""


@dataclass(frozen=True)
class ImageRequest:
    """Which images a run is to make. Those that it does not make of itself are made of its held-out images, spread evenly over them."""

    seed: int = 0
    settings: Config | None = None
    "Of its sampler, or of its translations; None: the run's."
    labels: Sequence[int | str] | None = None
    "Samplers: taken in turn; None: all classes in turn."
    guide: str | Path | None = None
    guide_with: str | Path | None = None
    guide_ema_length: float | None = None
    "Samplers: runs that lead them, and the average of their weights; see `sampling.sample`."
    style: InputsLike | None = None
    style_each: bool = False
    style_count: int = 1
    "Translators: see `translating.translate`."

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Raises ConfigError for the first of the settings of these names that is given, and says why it may not be."""
        for name in names:
            given, usual = getattr(self, name), getattr(ImageRequest(), name)
            if isinstance(given, np.ndarray) or given != usual:  # of an array that would be an array
                raise ConfigError(name, f"got {shown(given)}, but {why}; leave it out")


class ModelImages:
    """Images of a run, as `Pictures`."""

    def __init__(
        self,
        make: Callable[[range], np.ndarray],
        *,
        count: int,
        size: tuple[int, int],
        channels: int,
        chunk: int,
        identity: dict[str, Any],
        labels: np.ndarray | None = None,
        spec: DataSpec | None = None,
        truth: Callable[[Sequence[int]], np.ndarray] | None = None,
        maps: Callable[[Sequence[int]], np.ndarray] | None = None,
        any_range: bool = False,
    ) -> None:
        """`make`: a whole chunk, uint8 (b, h, w, c), from its numbers, of which the last may lie behind the end; or of `any_range`."""
        self.size, self.channels, self.identity, self.labels = size, channels, identity, labels
        self.spec = spec
        "Whose classes the labels are; None: there are no labels."
        self.truth = truth
        "From numbers of images to the true ones, uint8 (b, h, w, c); None: nobody knows them."
        self.maps = maps
        "From numbers of images to the class maps that they were made of, int64 (b, h, w); None: they were made of others."
        self.chunk = chunk
        "Images that are made at once."
        self._count, self._make, self._any_range = count, make, any_range
        self._kept: dict[int, np.ndarray] = {}  # chunks by their first image, the newest last
        self._read: Callable[[Sequence[int]], np.ndarray] | None = None

    def __len__(self) -> int:
        return self._count

    def images(self, items: Sequence[int]) -> np.ndarray:
        """uint8 (b, h, w, c)."""
        if self._read is not None:
            return self._read(items)
        found = np.empty((len(items), *self.size, self.channels), dtype=np.uint8)
        for k, item in enumerate(items):
            first = item // self.chunk * self.chunk
            if first not in self._kept:
                if len(self._kept) > CHUNK // self.chunk:  # those of a group, whose single images may be asked for once more
                    del self._kept[next(iter(self._kept))]
                self._kept[first] = self._make(range(first, first + self.chunk))
            found[k] = self._kept[first][item - first]
        return found

    def shown(self, item: int) -> np.ndarray:
        """An image for a picture, uint8 (h, w, c): made alone where that can be, so that pixels may be off by a level."""
        alone = self._any_range and self._read is None
        return self._make(range(item, item + 1))[0] if alone else self.images([item])[0]

    def read_from(self, read: Callable[[Sequence[int]], np.ndarray]) -> None:
        """Has the images, which were written, read from now on."""
        self._read = read


TRAINING = "training images"
"""What the inputs of a run without held-out images are called."""


class Maker(ABC):
    """How a run makes images, as far as that is known without its weights."""

    most: int | None = None
    "How many images it can make; None: any number."
    settings: Config
    "Of its sampler, or of its translations."
    labelled: bool = False
    "Whether each image is of a class."
    has_truth: bool = False
    "Whether there is a true image for each."
    class_map: InputSpec | None = None
    "The class map that each is made of; None: they are made of others."

    def __init__(self, run: StoredRun, request: ImageRequest) -> None:
        """Raises ConfigError or DataError for a request that the run cannot serve."""
        self.run, self.request = run, request
        self.size, self.channels = run.spec.pictured.height_and_width, run.spec.pictured.channels

    def identity(self, count: int, *, origin: Mapping[str, Any], precision: str) -> dict[str, Any]:
        """All that the images depend on; JSON. `origin`: of the run's weights."""
        asked = {"weights": dict(origin), "seed": self.request.seed, "settings": self.settings.to_dict(), "precision": precision}
        made_by = {"kind": "run", "path": str(self.run.directory), "triptych": __version__, "count": count}
        return made_by | asked | self._further()

    @property
    def network_calls(self) -> int | None:
        """How often the network is asked for an image, a weaker one that guides too; None: there is no sampler that goes by steps."""
        model, led = self.run.outline, self.request
        if not isinstance(model, Stepwise):
            return None
        return model.network_calls(self.settings, weaker=led.guide_with is not None, classifier=led.guide is not None)

    @abstractmethod
    def made(self, opened: Opened, count: int, report: Report | None = None) -> ModelImages:
        """So many images by the model with its weights; a sampler calls `report` after each of its steps."""

    def _drawn(
        self,
        opened: Opened,
        model: nn.Module,
        wanted: Request,
        *,
        count: int,
        report: Report | None,
        labels: np.ndarray | None = None,
        spec: DataSpec | None = None,
        truth: Callable[[Sequence[int]], np.ndarray] | None = None,
    ) -> ModelImages:
        """So many images that `model`, the opened one or one that leads it, draws; `wanted` are whole chunks."""
        return ModelImages(
            lambda part: draw(model, wanted, part, opened.world.device, report),
            count=count,
            size=self.size,
            channels=self.channels,
            chunk=self._chunk(opened.world.device),
            identity=self.identity(count, origin=opened.origin, precision=opened.loading.precision),
            labels=labels,
            spec=spec,
            truth=truth,
            any_range=True,
        )

    def _further(self) -> dict[str, Any]:
        return {}

    def _chunk(self, device: torch.device) -> int:
        high, wide = self.size
        fits = _MOST_PIXELS["cpu" if device.type == "cpu" else "cuda"] // (high * wide)
        return min(CHUNK, 1 << max(0, fits.bit_length() - 1))  # a power of two, so that groups of images are whole chunks


def maker_of(run: StoredRun, request: ImageRequest) -> Maker:
    """How the run makes what is asked for. Raises ConfigError for a run that makes no images, and as `Maker` does."""
    model = run.outline
    require_decoded(run.spec, run.directory)
    if run.spec.frames is not None:
        of_frames = ", ".join(name for name, metric in PAIR_METRICS.items() if metric.needs == "truth")
        instead = f"of clips there are {', '.join(CLIP_METRICS)} and, beside one of these, {of_frames}"
        raise ConfigError("model", f"{type(model).__name__} makes clips, which are not measured as single images: {instead}")
    if run.spec.pictured.channels not in (1, 3):
        raise ConfigError("model", f"{type(model).__name__} makes no single grey or RGB images, and others are not measured")
    for protocol, maker in _MAKERS:
        if isinstance(model, protocol):
            return maker(run, request)
    raise makes_none(model)


def settings_of(run: StoredRun) -> Config:
    """The default settings of the run's sampler, of its translations or its encoder. Raises ConfigError for a run that makes no images."""
    model = run.outline
    if isinstance(model, Translator):
        return model.translation
    if isinstance(model, Sampler | Upsampler):
        return model.sampling
    if isinstance(model, Encoder):
        return model.encoding
    raise makes_none(model)


def makes_none(model: nn.Module) -> ConfigError:
    """What is said of a model that makes no images."""
    return ConfigError("model", f"{type(model).__name__} makes no images, so there is nothing to measure")


class SampleMaker(Maker):
    """Samples."""

    def __init__(self, run: StoredRun, request: ImageRequest) -> None:
        super().__init__(run, request)
        request.refuse(_OF_TRANSLATORS, "this run's model takes no styles")
        model = require_sampler(run.outline)
        self.settings = request.settings or model.sampling
        self.labelled = model.num_classes is not None or request.guide is not None
        if request.guide is None:
            label_list(model.num_classes, run.spec, count=1, given=request.labels)

    def _further(self) -> dict[str, Any]:
        guides = {name: directory for name in ("guide", "guide_with") if (directory := getattr(self.request, name)) is not None}
        hashes: dict[str, Any] = {}
        for name, place in guides.items():
            run, weights = leader(place, self.request.guide_ema_length)
            hashes[name] = run.origin(checkpoint=weights.checkpoint, weights=weights.chosen)["hash"]
        labels = self.request.labels
        return {"labels": None if labels is None else [said_label(label, self.run.spec) for label in labels]} | hashes

    def made(self, opened: Opened, count: int, report: Report | None = None) -> ModelImages:
        request, chunk = self.request, self._chunk(opened.world.device)
        leading = {"guide": request.guide, "guide_with": request.guide_with, "guide_ema_length": request.guide_ema_length}
        sampler = guided(opened.model, self.run, **leading, settings=self.settings, world=opened.world)
        whole = -(-count // chunk) * chunk
        labels = label_list(require_sampler(sampler.model).num_classes, sampler.spec, count=whole, given=request.labels)
        shown = shown_by(self.run.spec, opened.world, self.run.paths)
        wanted = Request(whole, request.seed, labels, self.settings, opened.loading.precision, shown=shown)
        labels = None if labels is None else labels[:count]
        return self._drawn(opened, sampler.model, wanted, count=count, report=report, labels=labels, spec=sampler.spec)


class InputMaker(Maker):
    """Images made of held-out ones."""

    _images: ImageSet
    inputs: str
    "What they are called."

    def _further(self) -> dict[str, Any]:
        return {"inputs": self.inputs, "contents": self._contents}

    @functools.cached_property
    def _contents(self) -> str:
        return contents(self._images)


class HeldOutMaker(InputMaker):
    """Held-out images, made anew by way of something smaller; each is its own truth."""

    has_truth = True

    def __init__(self, run: StoredRun, request: ImageRequest, *, why: str) -> None:
        super().__init__(run, request)
        request.refuse((*_OF_TRANSLATORS, *_OF_SAMPLERS), why)
        self._images, self.inputs = held_out(reopened(run.config.data, run.spec))
        self.most = len(self._images)

    def _originals(self, count: int) -> tuple[Spread, Callable[[Sequence[int]], np.ndarray]]:
        """So many of the held-out images, and what loads some; behind the end, where a chunk may reach, is the last one again."""
        images = Spread(self._images, count)
        return images, lambda items: images.batch(np.minimum(items, count - 1)).images


class UpsamplingMaker(HeldOutMaker):
    """Held-out images, made small and enlarged again."""

    def __init__(self, run: StoredRun, request: ImageRequest) -> None:
        super().__init__(run, request, why="this run's model enlarges held-out images, with their own labels")
        self.settings = request.settings or require_upsampler(run.outline).sampling
        self.labelled = self._images.labels is not None

    def made(self, opened: Opened, count: int, report: Report | None = None) -> ModelImages:
        (images, originals), side = self._originals(count), require_upsampler(opened.model).input_size

        def small(part: range) -> np.ndarray:
            return made_small(originals(part), side)

        labels = None if images.labels is None else np.pad(images.labels, (0, -count % self._chunk(opened.world.device)), mode="edge")
        wanted = Upsampling(count, self.request.seed, labels, self.settings, opened.loading.precision, load=small)
        told = {"labels": images.labels, "spec": self.run.spec, "truth": originals}
        return self._drawn(opened, opened.model, wanted, count=count, report=report, **told)


class ReconstructionMaker(HeldOutMaker):
    """Held-out images, encoded and decoded."""

    def __init__(self, run: StoredRun, request: ImageRequest) -> None:
        super().__init__(run, request, why="this run's model encodes held-out images, and decodes them")
        self.settings = request.settings or require_encoder(run.outline).encoding

    def made(self, opened: Opened, count: int, report: Report | None = None) -> ModelImages:
        _, originals = self._originals(count)
        wanted = Reconstruction(count, self.request.seed, None, self.settings, opened.loading.precision, load=originals)
        return self._drawn(opened, opened.model, wanted, count=count, report=report, truth=originals)


class TranslationMaker(InputMaker):
    """Translations of held-out inputs, one or several of each."""

    def __init__(self, run: StoredRun, request: ImageRequest) -> None:
        super().__init__(run, request)
        request.refuse(_OF_SAMPLERS, "this run's model translates images")
        model, each = require_translator(run.outline), request.style_each
        check_styles(model, styled=request.style is not None, each=each, answers=request.style_count, held_out=True)
        self.channels, self.settings = model.output_channels, request.settings or model.translation
        self._images, self.inputs = held_out(reopened(run.config.data, run.spec))
        self._inputs = _sources(self._images, self.settings)
        self.most, self.has_truth = self._inputs * request.style_count, isinstance(run.config.data, PairedDataConfig)
        self.class_map = next((source for source in model.sources if source.kind == "classes"), None)
        self._styles = (
            None if request.style is None else open_styles(request.style, model, config=run.config.data, spec=run.spec, each=each)
        )

    def _further(self) -> dict[str, Any]:
        origin = None if self._styles is None else self._styles.origin
        return {**super()._further(), "styles": origin, "answers": self.request.style_count}

    def made(self, opened: Opened, count: int, report: Report | None = None) -> ModelImages:
        answers, request, device = self.request.style_count, self.request, opened.world.device
        inputs = -(-count // answers)
        images = Spread(self._images, inputs, available=self._inputs)
        held = HeldOut(images, self.run.spec, count=inputs)
        wanted = Translation(held, self._styles, answers, request.seed, self.settings, opened.loading.precision)
        at_once = max(1, self._chunk(device) // answers)

        def make(part: range) -> np.ndarray:
            first = part.start // answers
            items = [min(item, inputs - 1) for item in range(first, first + at_once)]
            with evaluating(opened.model):
                return wanted.made(opened.model, items, device).reshape(len(part), *self.size, self.channels)

        def example(items: Sequence[int]) -> Example:
            return wanted.example(opened.model, [item // answers for item in items], "cpu", truth=True)

        def truth(items: Sequence[int]) -> np.ndarray:
            found = example(items).truth
            assert found is not None, "has_truth"
            return nearest_uint8(found).numpy()

        def maps(items: Sequence[int]) -> np.ndarray:
            assert self.class_map is not None
            return example(items).inputs[self.class_map.name].numpy()

        return ModelImages(
            make,
            count=count,
            size=self.size,
            channels=self.channels,
            chunk=at_once * answers,
            identity=self.identity(count, origin=opened.origin, precision=opened.loading.precision),
            truth=truth if self.has_truth else None,
            maps=None if self.class_map is None else maps,
        )


def held_out(data: Data) -> tuple[ImageSet, str]:
    """The held-out images, or where there are none those of the training; and what they are called."""
    return data.looked_at, TRAINING if data.validation is None else "held-out images"


def _sources(images: ImageSet, settings: Config) -> int:
    """How many images can be translated: of two domains those of the one that a translation begins in, each once."""
    return len(images.domains[1 - target_domain(settings)] if isinstance(images, UnpairedImages) else images)


_MAKERS: tuple[tuple[type, type[Maker]], ...] = (
    (Translator, TranslationMaker),
    (Upsampler, UpsamplingMaker),
    (Sampler, SampleMaker),
    (Encoder, ReconstructionMaker),
)
"""How a model makes images, by what it is; the first that fits counts."""
