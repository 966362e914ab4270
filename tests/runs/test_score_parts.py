"""What scores are made with, each by itself and without a run: images that are kept, pictures of the nearest ones, files of figures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from triptych.core.errors import ConfigError
from triptych.data.domains import UnpairedImages
from triptych.engine.distributed import open_world
from triptych.engine.progress import unwatched
from triptych.evaluation.feature_set import Figure
from triptych.runs.kept_images import keep
from triptych.runs.metric_names import Wanted
from triptych.runs.model_images import ImageRequest, Maker, ModelImages, _sources
from triptych.runs.nearest_pairs import write_pairs
from triptych.runs.protocol import few_mark
from triptych.runs.scoring import Scores, _read, drop_impossible, write_scores
from triptych.runs.sides import PictureSide, RunSide, StatisticsSide, check_sizes


def levels(first: int, made: list[range] | None = None, **options: Any) -> ModelImages:
    """Six images of one level each: first, first + 1 and so on; `made` gets what is made at once."""

    def make(part: range) -> np.ndarray:
        if made is not None:
            made.append(part)
        return np.broadcast_to(np.arange(first + part.start, first + part.stop, dtype=np.uint8)[:, None, None, None], (len(part), 4, 4, 3))

    return ModelImages(make, count=6, size=(4, 4), channels=3, chunk=2, identity={"first": first}, **options)


@pytest.mark.parametrize("name", ["kept", "kept.npz"])
def test_images_that_are_kept_are_read_and_not_made_again(tmp_path: Path, name: str) -> None:
    made: list[range] = []
    images = levels(100, made)
    keep(images, tmp_path / name, world=open_world("cpu"), progress=unwatched)
    assert made == [range(2), range(2, 4), range(4, 6)]
    assert images.images([4, 1, 5])[:, 0, 0, 0].tolist() == [104, 101, 105] and len(made) == 3


@pytest.mark.parametrize("chunk", [1, 2, 17, 30, 32, 40])
def test_of_a_group_whose_answers_are_looked_at_again_every_image_is_made_once(chunk: int) -> None:
    """As diversity does where a chunk is the answers to one input, and reaches over the end of a group of 32."""
    made: list[range] = []

    def make(part: range) -> np.ndarray:
        made.append(part)
        return np.broadcast_to(np.array(part, np.uint8)[:, None, None, None], (len(part), 2, 2, 1))

    images = ModelImages(make, count=160, size=(2, 2), channels=1, chunk=chunk, identity={})
    for start in range(0, 160, 32):
        group = range(start, start + 32)
        assert images.images(group)[:, 0, 0, 0].tolist() == list(group)
        for first in range(start + -start % chunk, start + 32, chunk):
            answers = range(first, min(first + chunk, 160))
            assert images.images(answers)[:, 1, 1, 0].tolist() == list(answers)
    assert made == [range(first, first + chunk) for first in range(0, 160, chunk)]
    images.images([0])
    assert made[-1] == range(chunk), "not all are kept"


def test_of_the_nearest_images_that_of_the_reference_stands_on_the_left(tmp_path: Path) -> None:
    pairs = [{"reference": 1, "made": 5}, {"reference": 3, "made": 0}]
    write_pairs(tmp_path / "pairs.png", levels(10), levels(200), pairs)
    with Image.open(tmp_path / "pairs.png") as picture:
        pixels = np.asarray(picture)[..., 0]
    shown = pixels[24 * 4 :: 24 * 6, 24 * 4 :: 24 * 6]  # of 4 pixels each, and 2 around them, all 24 times as large
    assert shown.tolist() == [[201, 15], [203, 10]]


@pytest.mark.parametrize(
    ("size", "device", "chunk"),
    [
        ((64, 64), "cpu", 32),
        ((16, 16), "cpu", 32),
        ((96, 64), "cpu", 16),
        ((128, 128), "cpu", 8),
        ((512, 512), "cpu", 1),
        ((256, 256), "cuda", 32),
        ((300, 256), "cuda", 16),
    ],
)
def test_a_chunk_is_a_power_of_two_of_so_many_pixels(size: tuple[int, int], device: str, chunk: int) -> None:
    maker: Any = SimpleNamespace(size=size)
    assert Maker._chunk(maker, torch.device(device)) == chunk


@pytest.mark.parametrize(
    ("count", "reference", "most", "made"),
    [(None, 0, None, 10_000), (None, 50_000, None, 10_000), (None, 1707, None, 1707), (None, 1707, 90, 90), (60_000, 1707, None, 60_000)],
)
def test_a_run_makes_as_many_images_as_the_reference_has(count: int | None, reference: int, most: int | None, made: int) -> None:
    side: Any = SimpleNamespace(maker=SimpleNamespace(most=most))
    RunSide.decide(side, count, reference=reference)
    assert side._count == made


def test_fewer_images_than_inception_has_features_are_marked() -> None:
    assert few_mark(2047, of_sets=True) and not few_mark(2048, of_sets=True) and not few_mark(2047, of_sets=False)


def test_an_image_is_shown_as_it_was_written_or_made_alone() -> None:
    for any_range, alone in ((True, range(5, 6)), (False, range(4, 6))):
        made: list[range] = []
        images = levels(100, made, any_range=any_range)
        assert images.shown(5)[0, 0, 0] == 105 and made == [alone]
        images.read_from(lambda items: np.full((len(items), 4, 4, 3), 7, np.uint8))
        assert images.shown(5)[0, 0, 0] == 7 and made == [alone]


class Stepping:
    """A model that notes how it is led."""

    def network_calls(self, settings: Any, *, weaker: bool = False, classifier: bool = False) -> int:
        return 10 * weaker + classifier


@pytest.mark.parametrize(
    ("led", "calls"), [({}, 0), ({"guide": "a"}, 1), ({"guide_with": "b"}, 10), ({"guide": "a", "guide_with": "b"}, 11)]
)
def test_network_calls_are_those_of_what_leads_too(led: dict[str, Any], calls: int) -> None:
    maker: Any = SimpleNamespace(run=SimpleNamespace(outline=Stepping()), request=ImageRequest(**led), settings=None)
    assert Maker.network_calls.fget(maker) == calls  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("subject", "reference", "said"),
    [
        ((PictureSide, (64, 32)), (PictureSide, (48, 48)), "image_size: .* of 32x64, .* of 48x48: make them alike with --image-size 64x32"),
        ((PictureSide, (64, 64)), (PictureSide, (48, 48)), "image_size: .*--image-size 48$"),
        ((PictureSide, (64, 32)), (RunSide, (48, 48)), "reference: .*: give images of the run's size, or larger ones$"),
        ((PictureSide, (64, 64)), (RunSide, (48, 48)), "image_size: .*--image-size 48$"),
        ((PictureSide, (32, 32)), (StatisticsSide, (48, 48)), "reference: .*: give images of the size that statistics are of, or larger"),
        ((PictureSide, (64, 64)), (StatisticsSide, (48, 64)), "image_size: .*--image-size 48x64$"),
        ((RunSide, (64, 64)), (PictureSide, (48, 48)), "reference: .*: give images of the run's size, or larger ones, which are cut$"),
    ],
)
def test_two_sides_have_one_size(subject: Any, reference: Any, said: str) -> None:
    def side(kind: Any, size: tuple[int, int]) -> Any:
        found = kind.__new__(kind)
        found.size, found.name = size, "images"
        return found

    with pytest.raises(ConfigError, match=said):
        check_sizes(side(*subject), side(*reference))
    check_sizes(side(*subject), side(reference[0], subject[1]))


class Real:
    """A reference of so many images, of `each` of which something is known."""

    name = "photos"

    def __init__(self, count: int, *, each: bool = True) -> None:
        self.count, self.each = count, each

    def __len__(self) -> int:
        return self.count


@pytest.mark.parametrize(
    ("reference", "missing"),
    [
        (Real(2), {}),
        (Real(0, each=False), {"recall": "photos holds statistics alone; give its images"}),
        (Real(1), dict.fromkeys(("frechet", "recall"), "there is one image to compare with (photos), and it takes 2")),
        (None, dict.fromkeys(("frechet", "recall"), "it compares with a reference; give one")),
    ],
)
def test_a_metric_that_lacks_something_is_left_out(reference: Any, missing: dict[str, str]) -> None:
    """The inception score needs no reference, the Frechet distance statistics alone, recall its single images."""
    embedder: Any = SimpleNamespace(name="network", outputs=("features", "logits"))
    wanted = Wanted(["is", "frechet", "recall"])
    drop_impossible(wanted, embedder, reference)
    assert wanted.missing == missing and wanted.names == [name for name in ("is", "frechet", "recall") if name not in missing]


def test_figures_of_something_else_are_measured_anew(tmp_path: Path) -> None:
    scores = Scores({"kid": Figure(0.5, 0.25, {"subsets": 3}, {"each": np.arange(3)})}, {"psnr": "no truth"}, {"images": 6}, {})
    write_scores(tmp_path / "made.json", scores, {"digest": "0123"})
    found = _read(tmp_path / "made.json", "0123")
    assert found is not None and found.already and found.to_dict() == scores.to_dict()
    assert found.figures["kid"].arrays["each"].tolist() == [0, 1, 2]
    assert _read(tmp_path / "made.json", "4567") is None and _read(tmp_path / "other.json", "0123") is None


@pytest.mark.parametrize(("direction", "count"), [("a-to-b", 3), ("b-to-a", 5)])
def test_translations_are_of_the_images_of_the_domain_that_they_begin_in(direction: str, count: int) -> None:
    images: Any = UnpairedImages.__new__(UnpairedImages)
    images._a, images._b = range(3), range(5)
    settings: Any = SimpleNamespace(direction=direction)
    assert _sources(images, settings) == count
