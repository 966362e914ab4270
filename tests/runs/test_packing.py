"""Packs: the same images, order, held-out images and runs as from their source, and whole whatever happens while they are written."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.contract.shrink import shrunk
from tests.data.pictures import encoded, picture, write_folder, write_idx, write_zip
from tests.data.records import write_shards
from tests.data.test_shards import sharded
from triptych.cli.main import main
from triptych.core import files
from triptych.core.errors import ConfigError, DataError, Stopped
from triptych.core.npz import read_npz
from triptych.data import archives
from triptych.data.config import DataConfig
from triptych.data.domains import UnpairedDataConfig
from triptych.data.files import is_image
from triptych.data.fingerprint import fingerprint
from triptych.data.images import Data, ImageSet
from triptych.data.loader import Loader, batches_of
from triptych.data.skipping import write_skip
from triptych.data.subjects import open_subjects
from triptych.engine.config import LogConfig, OptimConfig
from triptych.runs import open_run, packing, train
from triptych.runs.packing import pack_data
from triptych.runs.pieces import Pieces

NAMES = [f"{kind}/{k}_{kind}.png" for kind in ("cat", "dog", "eel") for k in range(8)]


def classes(root: Path) -> Path:
    return write_folder(root / "classes", NAMES)


def zipped(root: Path) -> Path:
    return write_zip(root / "x.zip", classes(root))


def photos(root: Path) -> Path:
    """Without classes, in several formats, with names that differ in their endings alone."""
    return write_folder(root / "photos", ["a.jpg", "a.png", "b.png", *(f"deep/er/{k}.jpg" for k in range(12))])


def split(root: Path) -> Path:
    return write_folder(root / "split", [f"train/{k}.png" for k in range(9)] + [f"val/{k}.png" for k in range(4)] + ["test/0.png"])


def shards(root: Path) -> Path:
    return sharded(write_folder(root / "files", NAMES), root / "shards")


def parquet(root: Path) -> Path:
    """In row groups of four, in two files."""
    written = pytest.importorskip("tests.data.test_parquet")
    rows = written.of_folder(write_folder(root / "files", NAMES))
    labels = [NAMES.index(name) // 8 for name, _ in rows]
    for k in range(2):
        written.write(root / "rows" / f"{k}.parquet", rows[k::2], labels[k::2], names=["cat", "dog", "eel"])
    return root / "rows"


def arrays(root: Path) -> Path:
    images = np.stack([picture(20, 16, seed=k) for k in range(14)])
    np.savez(root / "x.npz", arr_0=images, arr_1=np.arange(14) % 3)
    return root / "x.npz"


def mnist(root: Path) -> Path:
    for name, count in (("train", 9), ("t10k", 4)):
        images = np.stack([picture(18, 18, seed=k, channels=1)[..., 0] for k in range(count)])
        write_idx(root / f"{name}-images-idx3-ubyte", images)
        write_idx(root / f"{name}-labels-idx1-ubyte", np.arange(count) % 5)
    return root


def records(root: Path) -> Path:
    for name, count in (("train", 11), ("validation", 3)):
        write_shards(root / "tfr" / name, [picture(16, 16, seed=k) for k in range(count)], bits=4, labels=[k % 3 + 1 for k in range(count)])
    return root / "tfr"


def unsplit_records(root: Path) -> Path:
    write_shards(root / "tfr" / "train", [picture(16, 16, seed=k) for k in range(25)], bits=4)
    return root / "tfr"


SOURCES: dict[str, Callable[[Path], Path]] = {
    "folder with classes": classes,
    "zip": zipped,
    "photos": photos,
    "shards": shards,
    "parquet": parquet,
    "folder with a split": split,
    "arrays": arrays,
    "mnist": mnist,
    "records": records,
    "records without a split": unsplit_records,
}


def settings(path: Path, **changes: Any) -> DataConfig:
    return DataConfig(**({"path": str(path), "image_size": 16, "validation_fraction": 0.2, "workers": 0} | changes))


def packed(config: DataConfig, out: Path, **options: Any) -> DataConfig:
    pack_data(config, out, workers=0, **options)
    return replace(config, path=str(out))


def drawn(images: ImageSet) -> list[torch.Tensor | None]:
    """What training sees first, over an epoch and more."""
    with closing(Loader(images, batch_size=7, seed=3, workers=0)) as loader:
        stream = loader.batches(0)
        batches = [next(stream) for _ in range(len(images) // 7 + 2)]
    return [values for batch in batches for values in (batch.images, batch.labels)]


def require_same(source: Data, pack: Data) -> None:
    assert pack.spec == source.spec
    assert fingerprint(pack) == fingerprint(source)
    assert (pack.validation is None) == (source.validation is None)
    for one, other in ((source.train, pack.train), (source.validation, pack.validation)):
        if one is not None and other is not None:
            assert [other.source_key(k) for k in range(len(other))] == [one.source_key(k) for k in range(len(one))]
            for left, right in zip(drawn(one), drawn(other), strict=True):
                assert (left is None and right is None) or torch.equal(left, right)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("ending", [".npz", ".zip"])
def test_training_sees_the_same(tmp_path, kind, ending):
    """Batches to the bit, mirrored, moved and recoloured; and with every share, the same images are held out."""
    config = settings(SOURCES[kind](tmp_path), augment="shift", jitter=0.1)
    pack = packed(config, tmp_path / f"pack{ending}")
    for fraction in (0.0, 0.2, 0.4):
        source, copy = (replace(one, validation_fraction=fraction).open() for one in (config, pack))
        require_same(source, copy)


def test_labels_and_how_images_are_prepared_go_along(tmp_path):
    config = settings(classes(tmp_path), labels="prefix", pad=1, resize=18, channels=1, enlarge=True, image_size=17)
    assert config.open().spec.num_classes == 8
    for ending in (".npz", ".zip"):
        pack = packed(config, tmp_path / f"pack{ending}")
        require_same(config.open(), pack.open())
        assert replace(pack, labels="none").open().spec.num_classes is None
        assert replace(pack, channels=None).open().spec.channels == 1
        for named, value in (("image_size", 16), ("pad", 0), ("resize", 17), ("channels", 3)):
            with pytest.raises(ConfigError, match=rf"^data\.{named}: got {value}, but the images of pack{ending} "):
                replace(pack, **{named: value}).open()
        with pytest.raises(ConfigError, match=r"data\.crop: got 'random', but .* keeps squares"):
            replace(pack, crop="random", resize=18).open()


@pytest.mark.parametrize("ending", [".npz", ".zip"])
def test_whole_images_can_be_cut_at_random(tmp_path, ending):
    """At any size up to their short side."""
    root = write_folder(tmp_path / "photos", [f"{k}.png" for k in range(12)], size=(50, 40))
    config = settings(root, crop="random", resize=19)
    pack = packed(config, tmp_path / f"pack{ending}")
    for size in (12, 16, 19):
        require_same(replace(config, image_size=size).open(), replace(pack, image_size=size).open())
    require_same(replace(config, crop="center").open(), replace(pack, crop="center").open())
    with pytest.raises(ConfigError, match=r"data\.resize: got 18, but"):
        replace(pack, resize=18).open()
    with pytest.raises(ConfigError, match=r"data\.scale: got 0\.2, but"):
        replace(pack, scale=0.2).open()


def test_whole_images_of_several_sizes_go_into_a_zip(tmp_path):
    root = write_folder(tmp_path / "photos", [f"{k}.png" for k in range(5)], size=(50, 40))
    (root / "9.png").write_bytes(encoded(picture(40, 50)))
    config = settings(root, crop="random", resize=20)
    with pytest.raises(DataError, match=r"9\.png: 20x25 pixels .* first one has 25x20; .* end --out in \.zip"):
        packed(config, tmp_path / "pack.npz")
    require_same(config.open(), packed(config, tmp_path / "pack.zip").open())


def test_files_may_be_kept_as_they_are(tmp_path):
    root = photos(tmp_path)
    config = settings(root)
    pack = packed(config, tmp_path / "pack.zip", files=True)
    for change in ({}, {"crop": "random"}, {"image_size": 12, "channels": 1}):
        require_same(replace(config, **change).open(), replace(pack, **change).open())
    with zipfile.ZipFile(tmp_path / "pack.zip") as archive:
        kept = [archive.read(info) for info in archive.infolist() if info.filename.startswith("00000/")]
    assert kept == [path.read_bytes() for path in sorted(root.rglob("*.*"))]


def test_files_that_are_kept_may_be_of_any_size(tmp_path):
    """Nothing is cut, so no image is too small for data.image_size; the stamp is that of a pack of large ones."""
    small, large = (write_folder(tmp_path / name, ["0.png", "1.png"], size=size) for name, size in (("small", (8, 9)), ("large", (80, 70))))
    config = DataConfig(path=str(small), workers=0)
    assert "8x9 pixels, smaller than data.image_size 64" in refused(config, tmp_path / "squares.zip")
    pack = packed(config, tmp_path / "small.zip", files=True)
    require_same(replace(config, image_size=8).open(), replace(pack, image_size=8).open())
    with zipfile.ZipFile(tmp_path / "small.zip") as archive:
        assert archive.read("00000/img00000000.png") == (small / "0.png").read_bytes()
    stamps = [pack_data(replace(config, path=str(root)), tmp_path / f"{root.name}.zip", files=True, workers=0) for root in (small, large)]
    assert stamps[0].already and stamps[0].stamp.data == stamps[1].stamp.data and not stamps[1].stamp.data.enlarge
    assert stamps[1].stamp.images == fingerprint(replace(config, path=str(large)).open())


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_files_without_an_ending_get_that_of_their_format(name):
    """As rows of a table, or of a database, may be called; so that they are found in the zip."""
    file = encoded(picture(8, 8), name)
    assert packing._ending("Greek/1.2", file) == packing._ending("row-7", file) == f".{name.lower()}"
    assert is_image(f"x{packing._ending('row-7', file)}") and packing._ending("row-7.JPG", file) == ".JPG"


def test_others_read_them_too(tmp_path):
    """An .npz as plain arrays; a zip as StyleGAN's and EDM's programs do: uncompressed files by name, each with a label in dataset.json."""
    config = settings(classes(tmp_path))
    packed(config, tmp_path / "pack.npz")
    packed(config, tmp_path / "pack.zip")
    images = replace(config, validation_fraction=0).open().train
    expected = images.batch(np.arange(len(images)))
    found = read_npz(tmp_path / "pack.npz")
    np.testing.assert_array_equal(found["arr_0"], expected.images)
    np.testing.assert_array_equal(found["arr_1"], expected.labels)
    with zipfile.ZipFile(tmp_path / "pack.zip") as archive:
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        names = sorted(name for name in archive.namelist() if name.endswith(".png"))
        labels = dict(json.loads(archive.read("dataset.json"))["labels"])
        pixels = [np.asarray(Image.open(io.BytesIO(archive.read(name)))) for name in names]
    assert names[0] == "00000/img00000000.png"
    np.testing.assert_array_equal(np.stack(pixels), expected.images)
    assert [labels[name] for name in names] == list(expected.labels)


def test_images_that_are_left_out(tmp_path):
    """By data.skip: they are not packed; or they are, and the training does without them."""
    root = classes(tmp_path)
    (root / "dog" / "3_dog.png").write_bytes(encoded(picture(20, 20))[:300])
    write_skip(tmp_path / "bad.json", {"dog/3_dog.png": "cut short", "cat/1_cat.png": "ugly"})
    config = settings(root, skip=str(tmp_path / "bad.json"))
    for ending in (".npz", ".zip"):
        require_same(config.open(), replace(packed(config, tmp_path / f"pack{ending}"), skip=None).open())
    write_folder(root, NAMES)
    for ending in (".npz", ".zip"):
        pack = packed(replace(config, skip=None), tmp_path / f"all{ending}")
        require_same(config.open(), replace(pack, skip=config.skip).open())
        subjects = open_subjects(replace(pack, skip=config.skip))  # as data doctor sees them
        assert subjects.labels is not None and subjects.labels.tolist() == [0] * 8 + [1] * 8 + [2] * 8
        assert np.flatnonzero(~subjects.kept()).tolist() == [NAMES.index("cat/1_cat.png"), NAMES.index("dog/3_dog.png")]


def test_transparency(tmp_path):
    """On the background that was asked for, which training cannot ask otherwise."""
    root = tmp_path / "photos"
    root.mkdir()
    for k in range(6):
        pixels = np.concatenate((picture(40, 30, seed=k), picture(40, 30, seed=k + 9, channels=1)), axis=2)
        Image.fromarray(pixels, "RGBA").save(root / f"{k}.png")
    config = settings(root, background="#ff8000")
    pack = packed(config, tmp_path / "pack.npz")
    require_same(config.open(), pack.open())
    with pytest.raises(ConfigError, match=r"data\.background: got 'white', but the images of pack\.npz were packed with '#ff8000'"):
        replace(pack, background="white").open()


def test_a_pack_is_the_same_wherever_the_source_lies(tmp_path):
    config = settings(classes(tmp_path))
    copy = replace(config, path=str(write_zip(tmp_path / "x.zip", tmp_path / "classes")), flip=False, jitter=0.1, validation_fraction=0.4)
    for ending in (".npz", ".zip"):
        one, other = tmp_path / f"one{ending}", tmp_path / f"other{ending}"
        packed(config, one)
        packed(copy, other)
        assert one.read_bytes() == other.read_bytes()


def test_the_fingerprint_knows_other_labels(tmp_path):
    """Of the same images, in the same classes."""
    config = settings(arrays(tmp_path))
    was = fingerprint(config.open())
    images, labels = read_npz(tmp_path / "x.npz").values()
    np.savez(tmp_path / "x.npz", arr_0=images, arr_1=(labels + 1) % 3)
    assert fingerprint(config.open()) != was


def test_the_fingerprint_knows_other_images(tmp_path):
    config = settings(classes(tmp_path))
    was = fingerprint(config.open())
    assert fingerprint(replace(config, validation_fraction=0).open()) == was
    assert fingerprint(replace(config, labels="none").open()) != was
    assert fingerprint(replace(config, image_size=15).open()) != was
    for path in (tmp_path / "classes").rglob("*.png"):
        path.write_bytes(encoded(255 - np.asarray(Image.open(path))))
    assert fingerprint(config.open()) != was


# One run -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_goes_on_from_the_pack_to_the_bit(tmp_path):
    """Trained on the pack, and on the source and then on the pack: the same weights; and the log says that the images are the same."""
    config = settings(classes(tmp_path), image_size=8, augment="shift")
    pack = packed(config, tmp_path / "pack.npz")
    recipe = shrunk("adm-digits")
    size = recipe.train.batch_size

    def trained(name: str, *parts: tuple[DataConfig, int]) -> dict[str, torch.Tensor]:
        for data, total in parts:
            settings = replace(recipe.train, total_images=total, validate_images=0)
            optim, log = OptimConfig(learning_rate=1e-3), LogConfig(report=False)
            train(replace(recipe, data=data, train=settings, optim=optim, log=log), tmp_path / name, device="cpu")
        return open_run(tmp_path / name).tensors()

    one, other = trained("pack", (pack, 2 * size)), trained("both", (config, size), (pack, 2 * size))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    said = [re.findall(r"images (\w{12}) \(by keys", (tmp_path / run / "log.txt").read_text()) for run in ("pack", "both")]
    assert said == [[fingerprint(config.open())] * count for count in (1, 2)]


# Interrupted ---------------------------------------------------------------------------------------------------------


def _killed(config: DataConfig, out: Path, where: str, count: int) -> None:
    """In a process of its own: packs, and is killed in the count-th call of the place."""
    left = count

    def dying(function: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if before and left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*arguments, **options)
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    if where == "a piece":
        Pieces.save = dying(Pieces.save, before=False)  # type: ignore[method-assign]
    elif where == "the rename":
        files.os.replace = dying(os.replace, before=True)
    elif where == "the end":
        Pieces.remove_all = dying(Pieces.remove_all, before=True)  # type: ignore[method-assign]
    pack_data(config, out, workers=0)


@pytest.mark.parametrize("ending", [".npz", ".zip"])
def test_after_a_kill_the_same_bytes(tmp_path, monkeypatch, ending):
    """Killed in pieces, and before and after the file gets its name: there is no file, or a whole one, and in the end the same."""
    monkeypatch.setattr("triptych.runs.packing._MOST_IN_A_PIECE", 5)
    config = settings(classes(tmp_path))
    packed(config, tmp_path / f"whole{ending}")
    out = tmp_path / "out" / f"pack{ending}"
    context = multiprocessing.get_context("fork")
    for where, count in (("a piece", 1), ("a piece", 2), ("the rename", 1), ("the rename", 2), ("the rename", 2), ("the end", 1)):
        child = context.Process(target=_killed, args=(config, out, where, count))
        child.start()
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
        assert out.exists() == (where == "the end")
    assert pack_data(config, out, workers=0).already
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    assert out.read_bytes() == (tmp_path / f"whole{ending}").read_bytes()


def test_any_number_of_workers_gives_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("triptych.runs.packing._MOST_IN_A_PIECE", 5)
    config = settings(photos(tmp_path))
    for ending in (".npz", ".zip"):
        for workers in (0, 2):
            pack_data(config, tmp_path / f"{workers}{ending}", workers=workers)
        assert (tmp_path / f"0{ending}").read_bytes() == (tmp_path / f"2{ending}").read_bytes()


# Refused -------------------------------------------------------------------------------------------------------------


def refused(config: DataConfig, out: Path, **options: Any) -> str:
    with pytest.raises((ConfigError, DataError)) as error:
        pack_data(config, out, workers=0, **options)
    assert "\n" not in str(error.value) and not out.exists()
    return str(error.value)


def test_what_cannot_be_packed(tmp_path):
    root = classes(tmp_path)
    out = tmp_path / "pack.npz"
    assert "give --resize 20 too, which keeps whole images" in refused(settings(root, crop="random"), out)
    assert "leave out data.scale" in refused(settings(root, crop="random", resize=16, scale=0.1), out)
    assert "data.on_error: got skip, but a pack has every image once" in refused(settings(root, on_error="skip"), out)
    assert "images of the kind unpaired cannot be packed" in refused(UnpairedDataConfig(path=str(root)), out)
    assert "go into a zip" in refused(settings(root), out, files=True)
    assert "got '" in refused(settings(root), tmp_path / "pack.tar")
    assert "an array is cut at random" in refused(settings(arrays(tmp_path), crop="random", resize=16), out)
    assert "no file that could be kept" in refused(settings(tmp_path / "x.npz"), tmp_path / "pack.zip", files=True)
    with pytest.raises(DataError, match="it is the file that is read"):
        pack_data(settings(tmp_path / "x.npz"), tmp_path / "x.npz")


def test_a_bad_image_is_named(tmp_path):
    root = classes(tmp_path)
    (root / "dog" / "3_dog.png").write_bytes(encoded(picture(20, 20))[:300])
    said = refused(settings(root, validation_fraction=0.9), tmp_path / "pack.npz")
    assert "3_dog.png" in said and said.endswith("; repair or remove the file, or leave it out by data.skip")
    (root / "cat" / "0_cat.png").write_bytes(b"")  # one of those that are looked at when the folder is opened
    said = refused(settings(root), tmp_path / "pack.npz")
    assert "0_cat.png" in said and said.endswith("; repair or remove the file, or leave it out by data.skip")


def test_a_damaged_pack_is_one_line(tmp_path):
    for ending in (".npz", ".zip"):
        out = tmp_path / f"pack{ending}"
        config = packed(settings(classes(tmp_path)), out)
        whole = out.read_bytes()
        for found, put in ((b'"count": 24', b'"count": 25'), (b'"kept": "squares"', b'"kept": "squarez"')):
            wide = b"".join(bytes([letter, 0, 0, 0]) for letter in found)
            assert found in whole or wide in whole
            out.write_bytes(whole.replace(found, put).replace(wide, b"".join(bytes([letter, 0, 0, 0]) for letter in put)))
            with pytest.raises(DataError, match="pack") as error:
                config.open()
            assert "\n" not in str(error.value)


# The command ---------------------------------------------------------------------------------------------------------


def test_the_command(tmp_path, capsys):
    root, out = classes(tmp_path), tmp_path / "pack.npz"
    command = ["data", "pack", str(root), "--size", "16", "--data.labels=prefix", "--out", str(out), "--workers", "0"]
    assert main(command) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("24 images (") and " held out, 8 classes) as squares of 16 pixels, " in line
    assert main(command) == 0
    assert " were there already: " in capsys.readouterr().out
    for ending in (".npz", ".zip"):
        np.savez(tmp_path / "mine.npz", mu=np.zeros(3))
        mine = (tmp_path / "mine.npz").rename(tmp_path / f"mine{ending}")
        before = mine.read_bytes()
        assert main(["data", "pack", str(root), "--image-size", "16", "--out", str(mine)]) == 2
        assert f"cannot write {mine}: it is there, and no such command made it" in capsys.readouterr().err and mine.read_bytes() == before
    assert main(["data", "pack", str(root), "--size", "16", "--out", str(out), "--data.crop", "random"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "--data.crop" in said and "--resize 20" in said
    assert main(["data", "pack", str(root), "--recipe", "spade-camvid", "--out", str(out)]) == 2
    assert "images of the kind paired cannot be packed" in capsys.readouterr().err
    assert main(["data", "pack", str(root), "--recipe", "adm", "--out", str(out)]) == 2
    assert "--recipe" in capsys.readouterr().err
    assert main(["data", "pack", str(tmp_path / "none"), "--out", str(out)]) == 2
    assert (
        capsys.readouterr().err == f"triptych: error: {tmp_path / 'none'}: does not exist; expected a folder, archive or array of images\n"
    ), "not by a setting, which was not given"
    assert main(["data", "pack", str(root)]) == 2
    assert "--out: missing" in capsys.readouterr().err
    for words, said in (
        ("--out=pack.tar", "--out: got 'pack.tar', expected a name that ends with .npz or .zip"),
        ("--workers=-1", "--workers: got -1, expected 0 to 1024, or nothing"),
    ):
        assert main([*command, words]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("source", [classes, split])
def test_none_are_said_to_be_held_out_where_none_are_asked_for(tmp_path, source):
    """Of a source that holds some out by itself too: with that share a training leaves them."""
    config = settings(source(tmp_path))
    for share, count in ((0.0, 0), (0.25, len(replace(config, validation_fraction=0.25).open().validation or ()))):
        packed_now = pack_data(replace(config, validation_fraction=share), tmp_path / f"{share}.npz", workers=0)
        assert packed_now.held_out == count < packed_now.stamp.count and (count > 0) == (share > 0)


@pytest.mark.parametrize("source", ["folder", "zip"])
def test_an_interrupted_pack_takes_up_no_pixels_that_changed_since(tmp_path, monkeypatch, source):
    """Whatever time the file says; of a folder the other pieces are kept."""
    monkeypatch.setattr("triptych.runs.packing._MOST_IN_A_PIECE", 2)
    root = photos(tmp_path)
    place = root if source == "folder" else Path(shutil.make_archive(str(tmp_path / "photos"), "zip", root))
    config, out, made = settings(place), tmp_path / "out" / "pack.npz", list[float]()

    def interrupt(done: float, count: float) -> None:
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(Stopped):
        pack_data(config, out, workers=0, progress=interrupt)
    changed = sorted(root.rglob("*.*"))[1]
    with Image.open(changed) as image:
        Image.fromarray(255 - np.asarray(image)).save(changed)
    os.utime(changed, (10**9, 10**9))
    if source == "zip":
        place.unlink()
        shutil.make_archive(str(tmp_path / "photos"), "zip", root)
    pack_data(config, out, workers=0, progress=lambda done, count: made.append(done))
    assert made[0] == (6 if source == "folder" else 0)
    packed(config, tmp_path / "fresh.npz")
    assert out.read_bytes() == (tmp_path / "fresh.npz").read_bytes()


@pytest.mark.parametrize(("given", "own", "used"), [(None, 0, 0), (None, 1, 1), (0, 1, 0)])
def test_workers_are_those_of_the_call_or_of_the_settings(tmp_path, monkeypatch, given, own, used):
    chosen = list[int]()

    def noted(images, numbers, *, workers):
        chosen.append(workers)
        return batches_of(images, numbers, workers=0)

    monkeypatch.setattr(packing, "batches_of", noted)
    pack_data(settings(photos(tmp_path), workers=own), tmp_path / "pack.npz", workers=given)
    assert chosen == [used]


def test_a_pack_of_another_size_is_not_replaced(tmp_path):
    config, out = settings(photos(tmp_path)), tmp_path / "pack.npz"
    pack_data(config, out, workers=0)
    before, size = out.read_bytes(), config.image_size
    with pytest.raises(DataError, match=rf"pack.npz: it is a pack of \d+ images with image_size {size}, here {size // 2}; choose another"):
        pack_data(replace(config, image_size=size // 2), out, workers=0)
    assert out.read_bytes() == before


def test_what_was_given_up_goes_when_another_pack_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr("triptych.runs.packing._MOST_IN_A_PIECE", 2)
    config, out = settings(photos(tmp_path)), tmp_path / "out" / "pack.npz"

    def interrupt(done: float, count: float) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(Stopped):
        pack_data(replace(config, image_size=8), out, workers=0, progress=interrupt)
    assert list(out.parent.glob(".pack.npz.partial-*"))
    pack_data(config, out, workers=0)
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_a_source_that_changed_is_packed_anew(tmp_path):
    """Whichever image it is, and whatever time its file says."""
    root, out = photos(tmp_path), tmp_path / "pack.npz"
    config = settings(root)
    assert not pack_data(config, out, workers=0).already and pack_data(config, out, workers=0).already
    for file in sorted(root.rglob("*.*"))[::4]:
        before = out.read_bytes()
        with Image.open(file) as image:
            Image.fromarray(255 - np.asarray(image)).save(file)
        os.utime(file, (0, 0))
        assert not pack_data(config, out, workers=0).already and out.read_bytes() != before, file
        assert pack_data(config, out, workers=0).already


def test_a_link_that_leads_to_an_older_file_is_a_change(tmp_path):
    """As in folders of links into a store of versions."""
    root, out, stored = photos(tmp_path), tmp_path / "pack.npz", tmp_path / "stored.png"
    stored.write_bytes(encoded(picture(20, 20, seed=9)))
    pack_data(settings(root), out, workers=0)
    for file in sorted(root.rglob("*.*"))[::4]:
        before = out.read_bytes()
        file.unlink()
        file.symlink_to(stored)
        assert not pack_data(settings(root), out, workers=0).already and out.read_bytes() != before, file
        assert pack_data(settings(root), out, workers=0).already


@pytest.mark.parametrize("ending", [".npz", ".zip"])
def test_a_pack_within_its_source_is_there_already(tmp_path, ending):
    """The pack, and what is hidden beside it, are none of the images."""
    root = classes(tmp_path)
    config, out = settings(root), root / f"pack{ending}"
    assert not pack_data(config, out, workers=0).already
    (root / ".pack.partial").write_bytes(b"later")
    assert pack_data(config, out, workers=0).already
    (root / "cat" / "0_cat.png").touch()
    assert not pack_data(config, out, workers=0).already


def test_a_pack_of_many_names_is_read(tmp_path, monkeypatch):
    """What a zip says of its images may be larger than an image; where it could not be read, it is not made."""
    monkeypatch.setattr(archives, "MOST_BYTES", 4000)
    config = settings(write_folder(tmp_path / "images", [f"{name[:3] * 60}/{name}" for name in NAMES]))
    pack = packed(config, tmp_path / "pack.zip")
    with zipfile.ZipFile(tmp_path / "pack.zip") as archive:
        assert archive.getinfo("triptych-pack.json").file_size > 4000
    require_same(config.open(), pack.open())
    assert pack_data(config, tmp_path / "pack.zip", workers=0).already
    monkeypatch.setattr(archives, "_PACK_BYTES", (2**33, 100, 100))
    with pytest.raises(DataError, match=r"another\.zip: the names of 24 images are too long for a \.zip; end --out in \.npz"):
        pack_data(config, tmp_path / "another.zip", workers=0, progress=lambda *_: pytest.fail("before the work"))
    with pytest.raises(DataError, match=r"triptych-pack\.json: larger than 2,500 bytes"):
        pack.open()
