"""Training on images of which some cannot be read, and on those that a list leaves over."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.contract.shrink import BATCH, light
from tests.data.pictures import encoded, picture
from tests.processes import run_together
from triptych.cli.main import main
from triptych.core.errors import ConfigError, DataError
from triptych.data.skipping import read_skip, write_skip
from triptych.engine.checkpoint import checkpoint_path, load_checkpoint
from triptych.engine.distributed import World
from triptych.engine.run_directory import RunDirectory
from triptych.evaluation.bits_per_dim import BitsPerDimConfig
from triptych.recipes.config import RunConfig
from triptych.runs import Run, beginning, latent_data, open_run, train
from triptych.runs.bad_images import BadImages
from triptych.runs.packing import pack_data

COUNT, BAD = 30, ("c0/05.png", "c1/07.png", "c1/14.png", "c2/12.png")


def write_photos(root: Path, bad: tuple[str, ...] = BAD) -> Path:
    for k in range(COUNT):
        path = root / f"c{k % 3}" / f"{k // 3 + 5 * (k % 3):02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(8, 8, seed=k, channels=1)))
    for name in bad:
        (root / name).write_bytes((root / name).read_bytes()[:-40])  # the header, which is looked at first, is whole
    return root


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    return write_photos(tmp_path_factory.mktemp("data") / "photos")


def config(photos: Path, *, total: int = 8 * BATCH, **data: object) -> RunConfig:
    schedule = {"total_images": total, "validate_images": 8, "validate_every": 2 * BATCH, "sample_count": 0}
    data = {"path": str(photos), "channels": 1, "workers": 0, "validation_fraction": 0.2, "most_errors": 0.2} | data
    return light("adm-digits").updated({"data": data, "train": schedule, "log": {"every": 10**6, "report": False}})


def hashes(run: Run, images: int) -> dict[str, str]:
    return load_checkpoint(checkpoint_path(run.directory / "checkpoints", images)).hashes


def named(run: Run | Path) -> list[str]:
    log = ((run if isinstance(run, Path) else run.directory) / "log.txt").read_text()
    return [line.split("others take its place: ")[1].split(":")[0] for line in log.splitlines() if "take its place" in line]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, photos: Path) -> Run:
    """A bit more than two epochs."""
    return train(config(photos, on_error="skip"), tmp_path_factory.mktemp("runs") / "unbroken", device="cpu")


def test_each_bad_image_is_named_once_in_a_run(unbroken, photos):
    assert sorted(named(unbroken)) == list(BAD)
    assert read_skip(unbroken.directory / "bad_images.json").keys() == set(BAD)
    train(config(photos, on_error="skip", total=10 * BATCH), unbroken.directory, device="cpu")
    assert sorted(named(unbroken)) == list(BAD), "and not again when it goes on"


@pytest.mark.slow
def test_stop_loses_nothing_and_skip_goes_on_to_the_same_weights(tmp_path, photos, unbroken, capsys):
    with pytest.raises(DataError, match="or set data.on_error to skip") as caught:
        train(config(photos), tmp_path / "run", device="cpu")
    log = (tmp_path / "run" / "log.txt").read_text()
    assert any(f"{name}: " in str(caught.value) for name in BAD)
    images = int(log.partition("; the same command goes on from there")[0].rpartition("saved at ")[2].split()[0])
    assert 0 < images < 8 * BATCH and f"failed at {images} images: {caught.value}" in log
    assert main(["train", str(tmp_path / "run"), "--device", "cpu"]) == 2, "still"
    assert "triptych: error: " in capsys.readouterr().err
    run = train(config(photos, on_error="skip", workers=2), tmp_path / "run", device="cpu")
    assert hashes(run, 8 * BATCH) == hashes(unbroken, 8 * BATCH), "with loader processes too"
    assert sorted(named(run)) == list(BAD)


def test_too_many_end_the_run_which_keeps_what_it_learned(tmp_path, photos):
    with pytest.raises(DataError, match=r"4 of 24 images cannot be read, more than data.most_errors 0.1 allows") as caught:
        train(config(photos, on_error="skip", most_errors=0.1), tmp_path / "run", device="cpu")
    assert "leave them out by data.skip, or raise data.most_errors" in str(caught.value)
    assert "saved at" in (tmp_path / "run" / "log.txt").read_text()


def in_two(run: str, photos: str) -> int:
    train(config(Path(photos), on_error="skip"), run, device="cpu")
    return 0


def test_what_was_said_is_not_said_again(tmp_path, photos):
    said: list[str] = []
    data = config(photos, on_error="skip")
    for _ in range(2):  # the second is another start
        images = BadImages(data.data.open(), data.data, RunDirectory(tmp_path), World(0, 1, torch.device("cpu")), said.append)
        for found in ({"b.png": "empty"}, {"b.png": "empty", "a.png": "text"}, {"a.png": "text"}):
            images.found.update(found)
            pending = images.news.pending()
            assert pending == (not all(any(key in line for line in said) for key in found))
            assert images.news.tell() is None and not images.found
    assert said == [f"cannot be read, and others take its place: {key}" for key in ("b.png: empty", "a.png: text")]
    assert list(read_skip(tmp_path / "bad_images.json")) == ["a.png", "b.png"]
    images.found.update({f"{k}.png": "" for k in range(5)})
    assert "7 of 30 images cannot be read, more than data.most_errors 0.2 allows" in str(images.news.tell())


@pytest.mark.slow
def test_two_processes_name_each_once(tmp_path, photos, unbroken):
    run_together(2, in_two, str(tmp_path / "run"), str(photos))
    assert sorted(named(tmp_path / "run")) == list(BAD)
    assert read_skip(tmp_path / "run" / "bad_images.json") == read_skip(unbroken.directory / "bad_images.json")


# A list


@pytest.mark.slow
def test_a_run_keeps_its_list(tmp_path, photos):
    listed = tmp_path / "bad.json"
    write_skip(listed, dict.fromkeys(BAD, "no image"))
    run = train(config(photos, skip=str(listed), total=2 * BATCH), tmp_path / "run", device="cpu")
    fewer = write_photos(tmp_path / "fewer", bad=())
    for name in BAD:
        (fewer / name).unlink()
    plain = train(config(fewer, total=2 * BATCH), tmp_path / "plain", device="cpu")
    assert hashes(run, 2 * BATCH) == hashes(plain, 2 * BATCH), "that of images which never had the others"
    listed.rename(tmp_path / "moved.json")
    run = train(config(photos, skip=str(tmp_path / "moved.json"), total=3 * BATCH), tmp_path / "run", device="cpu")
    write_skip(listed, {"c0/00.png": ""})
    with pytest.raises(ConfigError, match=r"data\.skip: got .*, but it is not the list of this run: 1 of its images .*, and 4 are missing"):
        train(config(photos, skip=str(listed), total=4 * BATCH), tmp_path / "run", device="cpu")
    with pytest.raises(ConfigError, match=r"data\.skip: got None, but the run in .* was started with"):
        train(config(photos, total=4 * BATCH), tmp_path / "run", device="cpu")
    listed.unlink()
    assert main(["train", str(tmp_path / "run"), "--train.total-images", str(4 * BATCH), "--device", "cpu"]) == 0
    train(config(photos, skip=str(listed), total=5 * BATCH), tmp_path / "run", device="cpu")
    assert "is not there; the run's own copy counts" in (tmp_path / "run" / "log.txt").read_text()
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"]["skip"] == str(listed)
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    assert open_run(tmp_path / "elsewhere").config.data.skip == str(tmp_path / "elsewhere" / "left_out.json")


def test_a_list_of_the_same_images_may_lie_elsewhere_and_no_other_takes_its_place(tmp_path, photos):
    directory, earlier = RunDirectory(tmp_path), config(photos, skip=str(tmp_path / "first.json"))
    for place, names in ((directory.left_out, BAD), (tmp_path / "same.json", BAD), (tmp_path / "other.json", BAD[1:])):
        write_skip(place, dict.fromkeys(names, ""))
    same, other = (config(photos, skip=str(tmp_path / name)) for name in ("same.json", "other.json"))
    assert beginning._with_own_list(earlier, same, directory) == (earlier, [])
    with pytest.raises(ConfigError, match=r"it is not the list of this run: 0 of its images are not in .*, and 1 is missing"):
        beginning._with_own_list(earlier, other, directory)


# Elsewhere


def test_evaluation_leaves_them_out(tmp_path, unbroken):
    with pytest.warns(UserWarning, match="cannot be read, and is left out: c"):
        result = unbroken.evaluate(split="all", settings=BitsPerDimConfig(steps=1), out=tmp_path / "x.json", device="cpu")
    assert len(result.arrays["image"]) == COUNT - len(BAD) and len(result.arrays["bits_per_dim"]) == COUNT - len(BAD)


def test_encoded_images_are_those_that_can_be_read(photos):
    data = config(photos, on_error="skip").data.open()
    assert data.validation is not None
    with pytest.warns(UserWarning, match="cannot be read, and is left out: c") as caught:
        left = latent_data._without_bad(data, World(0, 1, torch.device("cpu")))
    assert left.validation is not None and len(caught) == len(BAD)
    kept = [images.source_key(k) for images in (left.train, left.validation) for k in range(len(images))]
    assert len(kept) == COUNT - len(BAD) and not set(kept) & set(BAD)
    assert left.train.labels is not None and left.train.labels.tolist() == [int(key[1]) for key in kept[: len(left.train)]]


def test_a_pack_holds_each_image_once(tmp_path, photos):
    settings = config(photos).data
    with pytest.raises(ConfigError, match="got skip, but a pack has every image once"):
        pack_data(dataclasses.replace(settings, on_error="skip"), tmp_path / "x.npz")
    with pytest.raises(DataError, match=f"({'|'.join(BAD)}): "):
        pack_data(settings, tmp_path / "x.npz", workers=0)
    for number, names in enumerate((BAD, (*BAD, "c0/00.png", "c2/13.png"))):
        write_skip(tmp_path / f"{number}.json", dict.fromkeys(names, ""))
    lists = [dataclasses.replace(settings, skip=str(tmp_path / f"{number}.json")) for number in range(2)]
    fewer = lists[1].open()
    for ending in (".npz", ".zip"):
        pack_data(lists[0], tmp_path / f"x{ending}", workers=0)
        packed = dataclasses.replace(lists[1], path=str(tmp_path / f"x{ending}")).open()
        for one, other in ((packed.train, fewer.train), (packed.validation, fewer.validation)):
            assert one is not None and other is not None and len(one) == len(other)
            np.testing.assert_array_equal(one.batch(np.arange(len(one))).images, other.batch(np.arange(len(one))).images)
