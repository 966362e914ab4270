"""A source of images looked at as a whole: `triptych data doctor`."""

from __future__ import annotations

import errno
import html
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.databases import write_database
from tests.data.pairs import as_map, levels, write, write_pairs
from tests.data.pictures import encoded, picture, write_folder, write_idx, write_tar, write_zip
from tests.report.html_pages import read_page
from triptych.cli.data_doctor import _short
from triptych.cli.main import main
from triptych.core.errors import ConfigError, DataError
from triptych.data.config import DataConfig
from triptych.data.examination import Examination
from triptych.data.pairs import PairedDataConfig
from triptych.data.skipping import read_skip, write_skip
from triptych.data.subjects import Subjects, open_subjects
from triptych.runs import doctor
from triptych.runs.doctor import examine

NAMES = [f"{kind}/{k}.png" for kind in ("cat", "dog") for k in range(8)]


def looked(path: Path, *, size: int | None = 16, against: Path | None = None, skip: Path | None = None, **settings) -> Examination:
    config = DataConfig(path=str(path), image_size=size or 64, skip=None if skip is None else str(skip), **settings)
    return examine(config, sized=size is not None, workers=0, against=against)


def named(found: Examination) -> dict[str, list[str]]:
    """The keys of each fault, of faults of the source what is said."""
    return {finding.fault.name: [found.key(item) for item in finding.items.tolist()] or list(finding.general) for finding in found.findings}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for k, name in enumerate(NAMES):
        write(tmp_path / "images" / name, encoded(levels(20, 16, seed=k) // 255 * 170 + picture(20, 16, seed=k) // 3))
    return tmp_path / "images"


def sources(tmp_path: Path, folder: Path) -> dict[str, Path]:
    """The same images in every kind of source of files."""
    return {
        "folder": folder,
        "zip": write_zip(tmp_path / "a.zip", folder),
        "tar": write_tar(tmp_path / "a.tar", folder, prefix="."),
        "lmdb": write_database(tmp_path / "lmdb", folder),
    }


def test_sound_images_are_fit(folder: Path) -> None:
    found = looked(folder)
    assert found.fit and named(found) == {} and found.quarantine() == {}
    data = DataConfig(path=str(folder), image_size=16).open()
    assert data.validation is not None
    assert (found.count(0), found.count(1)) == (len(data.train), len(data.validation))
    sides = {found.key(item): found.side(item) for item in range(len(found.rows))}
    assert {f"{folder}/{key}" for key, side in sides.items() if side == "held out"} == {
        data.validation.key(item) for item in range(len(data.validation))
    }
    pixels = data.train.batch(np.arange(len(data.train))).images.astype(np.float64) / 127.5 - 1
    assert found.statistics["images"] == len(data.train)
    assert found.statistics["mean"] == pytest.approx(pixels.mean(), abs=1e-12)
    assert found.statistics["std"] == pytest.approx(pixels.std(), abs=1e-12)
    assert found.sizes["least"] == found.sizes["greatest"] == 16 and found.kinds == {"PNG RGB": 16}
    assert [(each.name, each.training + each.held_out) for each in found.classes] == [("cat", 8), ("dog", 8)]


def test_every_kind_of_source_has_the_same_findings(tmp_path: Path, folder: Path) -> None:
    from tests.data.test_parquet import of_folder
    from tests.data.test_parquet import write as write_parquet
    from tests.data.test_shards import sharded

    (folder / "cat" / "2.png").write_bytes(b"no image")
    (folder / "dog" / "1.png").write_bytes((folder / "cat" / "1.png").read_bytes())
    (folder / "dog" / "3.png").write_bytes(encoded(picture(20, 15)))
    places = sources(tmp_path, folder)
    places |= {"parquet": write_parquet(tmp_path / "a.parquet", of_folder(folder)), "shards": sharded(folder, tmp_path / "shards")}
    for kind, path in places.items():
        found = looked(path)
        ending = "" if kind == "lmdb" else ".png"
        assert found.subjects.source == ("tar" if kind == "shards" else kind)
        wanted = {"unreadable": [f"cat/2{ending}"], "small": [f"dog/3{ending}"], "copies": [f"cat/1{ending}", f"dog/1{ending}"]}
        faults = named(found)
        assert {name: sorted("/".join(key.split("/")[-2:]) for key in faults[name]) for name in wanted} == wanted, kind
        assert not found.fit


def test_arrays(tmp_path: Path) -> None:
    pixels = np.stack([picture(16, 16, seed=seed) for seed in range(12)])
    pixels[7], pixels[5] = pixels[2], 0
    labels = np.arange(12) % 2
    labels[4:] = 1
    np.savez(tmp_path / "a.npz", arr_0=pixels, arr_1=labels)
    found = looked(tmp_path / "a.npz", validation_fraction=0.0)
    assert named(found) == {"flat": ["5"], "copies": ["2", "7"]} and found.fit
    assert [each.training for each in found.classes] == [2, 10]
    assert named(looked(tmp_path / "a.npz", size=32))["small"] == [str(k) for k in range(12)]
    (tmp_path / "m").mkdir()
    for split, part in (("train", pixels[..., 0]), ("t10k", pixels[2:4, ..., 0])):
        write_idx(tmp_path / "m" / f"{split}-images-idx3-ubyte", part)
        write_idx(tmp_path / "m" / f"{split}-labels-idx1-ubyte", np.zeros(len(part)))
    found = looked(tmp_path / "m")
    assert found.subjects.source == "mnist" and (found.count(0), found.count(1)) == (12, 2)
    assert named(found)["copies_held_out"] == ["2", "3", "7", "test/0", "test/1"]
    assert looked(tmp_path / "m", validation_fraction=0.0).count(1) == 0, "as in a training"
    assert "all images are grey" in found.notes[-1]


def test_packs_have_the_findings_of_their_source(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "dog" / "1.png").write_bytes((folder / "cat" / "1.png").read_bytes())
    (folder / "dog" / "2.jpg").write_bytes(encoded(levels(20, 16, seed=99), "JPEG"))
    for place in (tmp_path / "a.npz", tmp_path / "a.zip"):
        assert main(["data", "pack", str(folder), "--size", "16", "--data.labels", "folder", "--out", str(place), "--workers", "0"]) == 0
        found, source = looked(place, labels="auto"), looked(folder)
        assert found.fit and named(found) == named(source) == {"grey": ["dog/2.jpg"], "copies": ["cat/1.png", "dog/1.png"]}
        assert [found.side(k) for k in range(17)] == [source.side(k) for k in range(17)]
        assert found.classes == source.classes


def test_duplicates_across_the_borders(tmp_path: Path) -> None:
    """Of an image to train on, of a held-out one and of one of another source; and each once more, a little smaller."""
    split = write_folder(tmp_path / "split", [f"{side}/{k}.png" for side in ("train", "val") for k in range(4)], size=(40, 32))
    others = write_folder(tmp_path / "others", ["a.png", "b.png"], size=(48, 40))
    shutil.copy(split / "train" / "0.png", split / "val" / "copy.png")
    shutil.copy(split / "train" / "1.png", split / "train" / "copy.png")
    shutil.copy(split / "train" / "2.png", others / "copy.png")
    for source, target in (("train/3", split / "val"), ("val/0", split / "val"), ("val/1", others)):
        Image.open(split / f"{source}.png").resize((30, 24)).save(target / "near.png" if source != "val/0" else target / "close.png")
    found = looked(split, against=others)
    assert named(found) == {
        "copies": ["train/1.png", "train/copy.png"],
        "copies_held_out": ["train/0.png", "val/copy.png"],
        "copies_against": ["train/2.png"],
        "near": ["val/0.png", "val/close.png"],
        "near_held_out": ["train/3.png", "val/near.png"],
        "near_against": ["val/1.png"],
    }
    assert found.fit, "duplicates stop no training"
    assert found.quarantine() == {
        "train/copy.png": "the same pixels as train/1.png",
        "val/copy.png": "the same pixels as train/0.png",
        "train/2.png": "the same pixels as copy.png",
    }
    (group,) = next(finding.groups for finding in found.findings if finding.fault.name == "near_against")
    assert [(found.key(item), found.side(item)) for item in group.tolist()] == [("val/1.png", "held out"), ("near.png", "against")]


def test_what_is_quarantined_is_passed_over(tmp_path: Path, folder: Path) -> None:
    (folder / "cat" / "2.png").write_bytes(b"")
    (folder / "dog" / "1.png").write_bytes((folder / "cat" / "1.png").read_bytes())
    arguments = ["data", "doctor", str(folder), "--image-size", "16", "--workers", "0", "--quarantine", str(tmp_path / "q.json")]
    assert main(arguments) == 1
    reasons = read_skip(tmp_path / "q.json")
    assert reasons == {"cat/2.png": "empty files", "dog/1.png": "the same pixels as cat/1.png"}
    found = looked(folder, skip=tmp_path / "q.json")
    assert found.fit and named(found) == {} and found.count(0, 1) == 14
    assert found.notes == [f"data.skip {tmp_path}/q.json: 2 images are left out"]
    data = DataConfig(path=str(folder), image_size=16, skip=str(tmp_path / "q.json")).open()
    assert data.validation is not None
    sides = {found.key(item): found.side(item) for item in np.flatnonzero(~found.left_out).tolist()}
    for images, side in ((data.train, "training"), (data.validation, "held out")):
        assert {images.source_key(k) for k in range(len(images))} == {key for key, value in sides.items() if value == side}
    assert [each.training + each.held_out for each in found.classes] == [7, 7]


def test_rows_of_an_array_are_passed_over(tmp_path: Path) -> None:
    pixels = np.stack([levels(16, 16, seed=seed) for seed in range(40)])
    np.savez(tmp_path / "a.npz", arr_0=pixels, arr_1=np.arange(40) % 2)
    write_skip(tmp_path / "q.json", {str(k): "" for k in range(0, 40, 3)})
    found = looked(tmp_path / "a.npz", skip=tmp_path / "q.json", validation_fraction=0.3)
    data = DataConfig(path=str(tmp_path / "a.npz"), image_size=16, validation_fraction=0.3, skip=str(tmp_path / "q.json")).open()
    assert data.validation is not None and found.count(0, 1) == 26
    assert {found.key(k) for k in range(40) if found.side(k) == "held out"} == {
        data.validation.source_key(k) for k in range(len(data.validation))
    }
    assert sum(each.training for each in found.classes) == len(data.train)


@pytest.mark.parametrize(("fraction", "idle"), [(0.1, ["test"]), (0.0, ["test", "val"])])
def test_what_a_training_does_not_read_stops_none(tmp_path: Path, fraction: float, idle: list[str]) -> None:
    write_folder(tmp_path / "images", [f"{split}/{name}" for split in ("train", "val", "test") for name in NAMES])
    for split in idle:
        (tmp_path / "images" / split / "cat/1.png").write_bytes(b"")
        (tmp_path / "images" / split / "cat/2.png").write_bytes(encoded(picture(9, 9)))
    found = looked(tmp_path / "images", validation_fraction=fraction)
    (fault,) = [finding for finding in found.findings if finding.fault.name == "unused"]
    assert {found.key(item): why for item, why in fault.why.items()} == {
        f"{split}/cat/{k}.png": said for split in idle for k, said in ((1, "empty files"), (2, "smaller than the image size (9x9)"))
    }
    assert found.fit and not any(finding.fault.stops for finding in found.findings) and "test/cat/1.png" not in found.quarantine()
    DataConfig(path=str(tmp_path / "images"), image_size=16, validation_fraction=fraction).open()
    (tmp_path / "images" / "train/cat/1.png").write_bytes(b"")
    found = looked(tmp_path / "images", validation_fraction=fraction)
    assert named(found)["empty"] == ["train/cat/1.png"] and not found.fit and len(named(found)["unused"]) == 2 * len(idle)


def test_the_source_itself(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "a.zip").write_bytes(write_zip(tmp_path / "b.zip", folder).read_bytes()[:-40])
    assert named(looked(tmp_path / "a.zip"))["source"][0].startswith(f"{tmp_path}/a.zip: cannot be read as a zip archive")
    (folder / "bird").mkdir()
    found = looked(folder)
    assert not found.fit and named(found) == {
        "labels": [f"{folder}/bird: a sub-folder without images, but sub-folders are classes: move it elsewhere, or set --labels"]
    }
    assert looked(folder, labels="none").fit
    (tmp_path / "nothing").mkdir()
    assert named(looked(tmp_path / "nothing")) == {"source": ["no images to train on"]}
    np.save(tmp_path / "none.npy", np.zeros((0, 32, 32, 3), dtype=np.uint8))
    assert named(looked(tmp_path / "none.npy")) == {"source": ["no images to train on"]}
    write_folder(folder, [f"cow/{k}.png" for k in range(90)])
    assert named(looked(folder, labels="folder"))["labels"]
    (folder / "bird").rmdir()
    assert "has" in named(looked(folder))["balance"][0]


def test_grey_among_colour(folder: Path) -> None:
    (folder / "cat" / "0.png").write_bytes(encoded(picture(20, 16, seed=50, channels=1)))
    assert named(looked(folder)) == {"grey": ["cat/0.png"]}


SETTINGS = {"image_size": 16, "maps": ("labels",), "num_classes": (2,), "instances": "objects", "conditions": ("edges",)}


def test_pairs_of_a_split_of_which_none_is_held_out(tmp_path: Path) -> None:
    for side, count in (("train", 3), ("val", 2)):
        write_pairs(tmp_path / side, count=count)
    for fraction, sides in ((0.05, (3, 2, 0)), (0.0, (3, 0, 2))):
        config = PairedDataConfig(path=str(tmp_path), validation_fraction=fraction, **SETTINGS)
        found, data = examine(config, workers=0), config.open()
        assert tuple(map(found.count, range(3))) == sides and found.fit and (data.validation is None) == (fraction == 0)


def test_pairs(tmp_path: Path) -> None:
    root = write_pairs(tmp_path / "pairs")
    found = examine(PairedDataConfig(path=str(root), **SETTINGS), workers=0)
    assert found.fit and named(found) == {} and found.count(0, 1) == 7
    data = PairedDataConfig(path=str(root), **SETTINGS).open()
    assert data.validation is not None and found.count(1) == len(data.validation)
    (root / "labels" / "drive" / "0.png").unlink()
    write(root / "edges" / "drive" / "1.png", encoded(picture(20, 16, channels=1)))
    write(root / "labels" / "drive" / "2.png", as_map(np.full((16, 24), 2)))
    write(root / "labels" / "drive" / "more.png", as_map(np.zeros((16, 24))))
    write(root / "images" / "drive" / "3.jpg", encoded(picture(24, 16), "JPEG"))
    write(root / "objects" / "drive" / "4.png", b"")
    found = examine(PairedDataConfig(path=str(root), **SETTINGS), workers=0)
    assert named(found) == {
        "empty": ["objects/drive/4.png"],
        "partner": ["images/drive/0.png", "labels/drive/more.png", "objects/drive/0.png", "edges/drive/0.png"],
        "double": ["images/drive/3.png"],
        "sizes": ["edges/drive/1.png"],
        "classes": ["labels/drive/2.png"],
    }
    why = {finding.fault.name: list(finding.why.values()) for finding in found.findings}
    assert why["sizes"] == ["20x16, but images/drive/1.png has 24x16"]
    assert why["classes"] == ["holds 2; 0 to 1 expected"]
    assert sorted(why["partner"]) == ["no drive/0.* in labels"] * 3 + ["no drive/more.* in images, objects, edges"]
    assert found.quarantine().keys() == {"images/drive/1.png", "images/drive/2.png", "images/drive/4.png"}
    write_skip(tmp_path / "q.json", found.quarantine())
    (root / "labels" / "drive" / "more.png").unlink()
    (root / "images" / "drive" / "3.jpg").unlink()
    for name in ("images", "objects", "edges"):
        (root / name / "drive" / "0.png").unlink()
    config = PairedDataConfig(path=str(root), skip=str(tmp_path / "q.json"), validation_fraction=0.5, **SETTINGS)
    left, data = examine(config, workers=0), config.open()
    assert left.fit and data.validation is not None
    assert (left.count(0), left.count(1)) == (len(data.train), len(data.validation)) and left.count(0, 1) == 3
    held = {data.validation.source_key(k) for k in range(len(data.validation))}
    assert {left.key(k) for k in range(len(left.rows)) if left.side(k) == "held out" and left.part(k).kind == "target"} == held
    for fate in ("dont_care", "blank"):
        assert "classes" not in named(examine(PairedDataConfig(path=str(root), **SETTINGS, **{fate: True}), workers=0))


def test_an_interrupted_command_goes_on_and_ends_with_the_same_file(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PIECE", 3)
    (folder / "dog" / "5.png").write_bytes(b"")
    config = DataConfig(path=str(folder), image_size=16)
    examine(config, workers=0, out=tmp_path / "whole.json")
    looks = doctor.look_at
    seen: list[str] = []

    def counted(value, name, wanted, **settings):
        seen.append(name)
        return looks(value, name, wanted, **settings)

    def stopped(done: float, total: float) -> None:
        if done >= 9:
            raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "look_at", counted)
    with pytest.raises(KeyboardInterrupt, match="what was looked at is kept, and the same command goes on"):
        examine(config, workers=0, out=tmp_path / "parts.json", progress=stopped)
    assert not (tmp_path / "parts.json").exists() and len(seen) == 9
    examine(config, workers=0, out=tmp_path / "parts.json")
    assert len(seen) == 16 and len(set(seen)) == 16, "each once"
    assert (tmp_path / "parts.json").read_text() == (tmp_path / "whole.json").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "parts.json", "whole.json"]
    (folder / "cat" / "0.png").write_bytes(b"")
    with pytest.raises(KeyboardInterrupt):
        examine(config, workers=0, out=tmp_path / "parts.json", progress=stopped)
    (folder / "cat" / "0.png").write_bytes(encoded(picture(20, 16, seed=77)))
    seen.clear()
    examine(config, workers=0, out=tmp_path / "parts.json")
    assert len(seen) == 16, "a file has changed since: what was found before does not count"


def test_a_file_of_another_content_with_the_time_of_before_is_another_one(folder: Path) -> None:
    """What was looked at before an interruption counts for the same files alone; programs that copy set times back."""
    config, file = DataConfig(path=str(folder), image_size=16), folder / "dog" / "5.png"
    before, status, content = open_subjects(config).fingerprint(), file.stat(), file.read_bytes()
    assert open_subjects(config).fingerprint() == before
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_mtime_ns == status.st_mtime_ns and open_subjects(config).fingerprint() != before


def test_a_file_that_the_system_does_not_give(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no image of a bad format: what is to be done about it is said."""
    read = Subjects.read

    def refused(subjects: Subjects, item: int) -> object:
        if subjects.key(item) == "cat/1.png":
            raise PermissionError(errno.EACCES, "Permission denied", "cat/1.png")
        return read(subjects, item)

    monkeypatch.setattr(Subjects, "read", refused)
    found = examine(DataConfig(path=str(folder), image_size=16), workers=0).findings
    assert [(each.fault.name, each.count, each.fault.stops) for each in found] == [("unopened", 1, True)]
    assert "permissions" in found[0].fault.advice and "Permission denied" in next(iter(found[0].why.values()))


def test_processes_find_the_same(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PIECE", 3)
    (folder / "dog" / "5.png").write_bytes(b"")
    config = DataConfig(path=str(folder), image_size=16)
    assert examine(config, workers=2).document() == examine(config, workers=0).document()


def test_the_command(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "cat" / "<b>\x1b[31m.png").write_bytes(b"no image")
    shutil.copy(folder / "cat" / "1.png", folder / "cat" / "copy.png")
    places = [tmp_path / name for name in ("o.json", "p.html", "q.json")]
    flags = [word for flag, place in zip(("--out", "--page", "--quarantine"), places, strict=True) for word in (flag, str(place))]
    assert main(["data", "doctor", str(folder), "--image-size", "16", "--workers", "0", "--labels", "none", *flags]) == 1
    said = capsys.readouterr().out
    assert "cat/<b>\\x1b[31m.png (not an image that can be read" in said and "\x1b" not in said
    assert "not fit: a training at --image-size 16 would stop" in said
    assert said.endswith(f"\nwritten: {places[0]}, {places[1]} (open it in a browser), {places[2]}\n")
    document = json.loads(places[0].read_text())
    assert document["format"] == "triptych-doctor-1" and document["fit"] is False
    assert [(each["fault"], each["stops"], each["count"]) for each in document["findings"]] == [
        ("unreadable", True, 1),
        ("copies", False, 2),
    ]
    assert document["findings"][1]["groups"] == [[{"key": f"cat/{name}.png", "side": "training"} for name in ("1", "copy")]]
    page = read_page(places[1])
    assert page.tags.count("img") == 2 and "cat/<b>\\x1b[31m.png" in page.text and "Not fit" in page.text
    assert html.escape("<b>") in places[1].read_text() and "<b>" not in places[1].read_text()
    (folder / "cat" / "<b>\x1b[31m.png").unlink()
    assert main(["data", "doctor", str(folder), "--workers", "0"]) == 0
    assert "fit: these images can be trained on\n" in capsys.readouterr().out


def test_the_end_of_a_long_name_is_shown() -> None:
    whole = "".join(map(str, range(35)))
    assert len(whole) == 60 and (_short(whole), _short(f"ab{whole}")) == (whole, f"...{whole}")


@pytest.mark.parametrize("verb", ["doctor", "stats", "encode", "draw", "points", "person"])
def test_a_path_without_letters_is_not_the_present_folder(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As a variable of a shell that is not set."""
    assert main(["data", verb, "", "--out", "x"]) == 2
    assert "got '' where the " in capsys.readouterr().err


def test_the_command_of_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_pairs(tmp_path / "pairs")
    write(root / "labels" / "drive" / "2.png", as_map(np.full((16, 24), 255)))
    command = ["data", "doctor", str(root), "--maps", "labels", "--num-classes", "2", "--workers", "0"]
    assert main(command) == 1
    said = capsys.readouterr().out
    assert "set --dont-care or --blank" in said and "holds 255; 0 to 1 expected" in said
    for flag in ("--dont-care", "--blank"):
        assert main([*command, flag]) == 0, "what a training takes with that setting"
        assert "fit: these images can be trained on" in capsys.readouterr().out
    assert main([*command, "--dont-care", "--blank"]) == 2
    assert "error: --blank: got True, expected one of it and --dont-care" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--page", "a.png"], "--page: got 'a.png', expected a name that ends with .html"),
        (["--against", "none"], "none: does not exist (--against)"),
        (["--num-classes", "3"], "--num-classes: got 3, expected nothing unless --maps"),
        (["--blank"], "--blank: got True, expected nothing unless --maps"),
        (["--out", "a.json", "--quarantine", "a.json"], "--out, --page and --quarantine name the same file"),
        (["--skip", "none.json"], "none.json: cannot be read (No such file"),
        (["--maps", "labels"], "--num-classes: got nothing, expected the number of classes"),
    ],
)
def test_wrong_use(folder: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", "doctor", str(folder), "--workers", "0", *flags]) == 2
    assert message in capsys.readouterr().err


def test_what_is_no_source(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        looked(tmp_path / "none")
    with pytest.raises(DataError, match="expected a folder, or a file ending in"):
        looked(folder / "cat" / "0.png")
    with pytest.raises(DataError, match="it is the file that is read"):
        examine(DataConfig(path=str(write_zip(tmp_path / "a.zip", folder))), out=tmp_path / "a.zip")
    with pytest.raises((ConfigError, DataError), match="holds neither images/ nor train/images/"):
        examine(PairedDataConfig(path=str(folder), **SETTINGS), workers=0)


@pytest.mark.parametrize("flag", ["--out", "--quarantine"])
@pytest.mark.parametrize("content", ['{"labels": [["0000.png", 0]]}', "[1]", "{", '{"format": 1}'])
def test_a_file_of_others_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, content: str) -> None:
    folder = write_folder(tmp_path / "images", [f"{side}/{k}.png" for side in "ab" for k in range(3)])
    place = tmp_path / "images/dataset.json"
    place.write_text(content)
    assert main(["data", "doctor", str(folder), "--labels", "folder", flag, str(place)]) == 2
    assert "dataset.json: it is there, and no such command made it; choose another --out, or remove it" in capsys.readouterr().err
    assert place.read_text() == content
    for _ in range(2):
        assert main(["data", "doctor", str(folder), "--labels", "folder", flag, str(tmp_path / "mine.json")]) in (0, 1)
