"""What a run makes is not written among the images that it learns: it would learn it when it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runs.glow import moved_run, pixels
from tests.runs.translators import mirror_run, plain_data, write_images
from triptych.core.errors import ConfigError, DataError
from triptych.data.clips import ClipDataConfig
from triptych.data.config import DataConfig
from triptych.data.domains import UnpairedDataConfig
from triptych.data.files import open_folder
from triptych.data.pairs import PairedDataConfig
from triptych.data.pans import PanDataConfig
from triptych.runs import Run
from triptych.runs.files import check_unlearned


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, with a run among them, and a file called as one of a run has."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    write_images(folder, ["a.png", "cats/b.png", "c.png", "run/mine.png"], size=(16, 16), channels=1)
    (folder / "run/checkpoints").mkdir(parents=True)
    for place in ("run/config.json", "config.json"):
        (folder / place).write_text("{}")
    return folder


@pytest.mark.parametrize("name", ["made", "cats/made", "grid.png", "cats/more/grid.webp"])
def test_what_lies_among_the_images_would_be_learned(photos: Path, name: str) -> None:
    said = rf"^cannot write \S+/{name}: it lies in \S+/photos, the images of this run, which .*; choose another --out$"
    with pytest.raises(DataError, match=said):
        check_unlearned(photos / name, DataConfig(path=str(photos)))


@pytest.mark.parametrize("name", ["made.npz", "run", "run/mine.png", "run/samples/x", ".hidden/made", "../made", "../photos2/grid.png"])
def test_other_places_are_none_of_theirs(photos: Path, name: str) -> None:
    check_unlearned(photos / name, DataConfig(path=str(photos)))


def test_a_run_among_the_images_is_none_of_them(photos: Path) -> None:
    """So what it makes may lie in it."""
    found, _ = open_folder(photos)
    assert sorted(found.names) == ["a.png", "c.png", "cats/b.png"]


@pytest.fixture(scope="module")
def domains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two domains, one of them split, and a folder beside them."""
    root = tmp_path_factory.mktemp("domains")
    for folder in ("images_a", "train/photos", "val/photos", "test/photos", "others"):
        write_images(root / folder, ["1.png"], size=(16, 16), channels=1)
    return root


def test_neither_domain_gets_what_the_run_makes(domains: Path) -> None:
    data = UnpairedDataConfig(path=str(domains), b="photos")
    learned = ("images_a", "images_a/made", "images_a/made.png", "train/photos", "val/photos/made")
    for name in learned:
        with pytest.raises(DataError, match=rf"^cannot write \S+/{name}: it lies in \S+, the images of this run, which would learn it"):
            check_unlearned(domains / name, data)
    for name in ("made", "made.png", "others/made", "train/made", "test/photos/made", "images_a/made.npz", "images_a/.made/x.png"):
        check_unlearned(domains / name, data)
    apart = UnpairedDataConfig(a=str(domains / "images_a"), b=str(domains / "others"))
    for name in ("images_a/made", "others/made"):
        with pytest.raises(DataError, match="the images of this run, which would learn it"):
            check_unlearned(domains / name, apart)
    check_unlearned(domains / "made", apart)
    check_unlearned(domains / "images_a/made", UnpairedDataConfig(path=str(domains / "gone")))


def test_folders_of_pairs_and_clips_get_nothing_without_its_other_half(domains: Path) -> None:
    maps: dict[str, Any] = {"path": str(domains), "target": "photos", "maps": ("images_a",), "num_classes": (2,)}
    for data in (PairedDataConfig(**maps), ClipDataConfig(**maps), PanDataConfig(**maps)):
        for name in ("images_a/made", "train/photos/made.png", "val/photos"):
            with pytest.raises(DataError, match="the images of this run, which would look for the other half of a pair when it goes on"):
                check_unlearned(domains / name, data)
        check_unlearned(domains / "others/made", data)


def test_of_other_data_no_folder_is_learned_as_a_whole(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"")
    for data in (
        DataConfig(source="digits"),
        DataConfig(path=str(tmp_path / "x.npz")),
        DataConfig(path=str(tmp_path / "gone")),
        DataConfig(path="https://example.org/x.zip"),
        DataConfig(path=str(photos), source="mnist"),
        PairedDataConfig(path=str(photos), maps=("maps",), num_classes=(2,)),
        UnpairedDataConfig(path=str(photos)),
    ):
        check_unlearned(photos / "made", data)


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Run:
    return learning(moved_run(tmp_path_factory.mktemp("flow") / "run"), photos)


def learning(run: Run, photos: Path) -> Run:
    """The run, as if it had learned these."""
    run.config = replace(run.config, data=DataConfig(path=str(photos), image_size=8, channels=1))
    return run


CALLS: dict[str, Callable[[Run, Path], Any]] = {
    "sample": lambda run, out: run.sample(1, out=out, device="cpu"),
    "edit": lambda run, out: run.edit(None, pick=[0], out=out, device="cpu"),
    "decode": lambda run, out: run.coder(device="cpu").decode(run.encode(pixels(1), device="cpu"), out=out),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_call_writes_among_them(name: str, flow: Run, photos: Path) -> None:
    with pytest.raises(DataError, match="the images of this run, which would learn it when it goes on; choose another --out$"):
        CALLS[name](flow, photos / "made")
    assert not (photos / "made").exists()


def test_images_that_are_kept_for_a_score(flow: Run, photos: Path) -> None:
    with pytest.raises(DataError, match="the images of this run, .*; choose another --keep-samples$"):
        flow.score(metrics=["is"], count=2, keep_samples=photos / "made", device="cpu")
    assert not (photos / "made").exists()


def test_the_picture_of_copies_beside_figures(flow: Run, photos: Path) -> None:
    """Figures themselves are no image, and may lie there."""
    with pytest.raises(DataError, match="cannot write .*/x-copies.png: it lies in .*, the images of this run, .*; choose another --out$"):
        flow.score(metrics=["copies"], count=1, out=photos / "x.json", device="cpu")
    with pytest.raises(ConfigError, match="count: got 1, expected at least 2"):
        flow.score(metrics=["kid"], count=1, out=photos / "x.json", device="cpu")


def test_translations(photos: Path, tmp_path: Path) -> None:
    run = learning(mirror_run(tmp_path / "run", plain_data()), photos)
    with pytest.raises(DataError, match="the images of this run, .*; choose another --out$"):
        run.translate(np.zeros((1, 8, 8, 1), np.uint8), out=photos / "made", device="cpu")


def test_enlarged_images(tiny: Callable[[str], Run], photos: Path) -> None:
    run = tiny("upsample-digits")
    before = run.config
    side = run.outline.input_size  # type: ignore[attr-defined]
    try:
        with pytest.raises(DataError, match="the images of this run, .*; choose another --out$"):
            learning(run, photos).upsample(np.zeros((1, side, side, 1), np.uint8), out=photos / "made", device="cpu")
    finally:
        run.config = before
