from __future__ import annotations

import gzip
import io
import re
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from tests.data.pictures import encoded, picture, textured, write_folder, write_idx, write_tar, write_zip
from triptych.core.errors import ConfigError, DataError
from triptych.data import folder_index
from triptych.data.config import DataConfig
from triptych.data.cut import Cut
from triptych.data.files import open_folder
from triptych.data.images import Data
from triptych.data.naming import held_out, pairs_warning
from triptych.data.source import recognised
from triptych.data.subjects import open_subjects
from triptych.engine.run_directory import RunDirectory

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
NAMES = [f"{kind}/{kind}_{k}.png" for kind in ("cat", "dog") for k in range(4)]


def opened(path: Path | None, **settings) -> Data:
    defaults = {"image_size": 16, "validation_fraction": 0.0}
    return DataConfig(path=None if path is None else str(path), **(defaults | settings)).open()


def everything(images) -> np.ndarray:
    return images.batch(np.arange(len(images))).images


# Built-in digits


def test_digits():
    data = opened(None, source="digits", image_size=8)
    assert len(data.train) == 1797
    assert (data.spec.num_classes, data.spec.channels, data.spec.class_names) == (10, 1, tuple("0123456789"))
    assert np.bincount(data.train.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    first = [0, 0, 5, 13, 9, 1, 0, 0]  # the first row of the published file
    assert everything(data.train)[0, 0, :, 0].tolist() == [round(level * 255 / 16 + 1e-9) for level in first]


@pytest.mark.parametrize("image_size", [16, 32])
def test_digits_are_enlarged_by_the_ordinary_transform(image_size):
    from PIL import Image

    small = everything(opened(None, source="digits", image_size=8).train)
    large = everything(opened(None, source="digits", image_size=image_size).train)
    for k in (0, 1000, 1796):
        expected = Image.fromarray(small[k, ..., 0]).resize((image_size, image_size), Image.Resampling.BICUBIC)
        np.testing.assert_array_equal(large[k, ..., 0], np.asarray(expected))


def test_a_path_takes_the_place_of_the_digits(tmp_path):
    assert len(opened(write_folder(tmp_path, NAMES), source="digits").train) == len(NAMES)


# Folders and archives


def test_folder_is_recursive_sorted_and_converted(tmp_path):
    names = ["b.png", "a/2.jpg", "a/1.PNG", "c/deep/x.png"]
    write_folder(tmp_path, names)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "a" / "._1.png").write_text("hidden")
    data = opened(tmp_path)
    keys = [Path(data.train.key(k)).relative_to(tmp_path).as_posix() for k in range(len(data.train))]
    assert keys == ["a/1.PNG", "a/2.jpg", "b.png", "c/deep/x.png"]
    np.testing.assert_array_equal(everything(data.train)[2], picture(20, 16, seed=0)[:, 2:18])
    assert (data.spec.num_classes, data.spec.channels, data.train.labels) == (None, 3, None)


def test_links_are_followed_but_not_in_circles(tmp_path):
    write_folder(tmp_path / "real", ["1.png"])
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "back").symlink_to(root)
    data = opened(root)
    assert len(data.train) == 1
    assert [note for note in data.notes if "link" in note] == [
        f"{root}/link/back: a link to a folder that is there already; its images count once"
    ]


@pytest.mark.parametrize("sign", ["metrics_path", "checkpoints"])
def test_what_lies_in_a_run_is_no_image_of_the_folder_around_it(sign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_index, "_LEAST", 1)  # the lists of small and new folders are kept too
    monkeypatch.setattr(folder_index, "MOMENT", -(10**18))
    place = write_folder(tmp_path / "photos", ["a/1.png", "b/2.png", "runs/mine/samples/000000016.png", "runs/3.png"])
    run = place / "runs" / "mine"
    paths = RunDirectory(run)
    paths.config_path.write_text("{}")
    found, _ = open_folder(place)
    assert list(found.names) == ["a/1.png", "b/2.png", "runs/3.png", "runs/mine/samples/000000016.png"]  # no run yet
    getattr(paths, sign).mkdir()
    for _ in range(2):
        found, empty = open_folder(place)
        assert list(found.names) == ["a/1.png", "b/2.png", "runs/3.png"]
        assert (empty, found.remarks) == ([], [f"{run}: a run; what lies in it counts for none of these images"])
    assert len(open_folder(run)[0].names) == 1  # which is asked for by its name


def test_a_second_link_to_a_folder_is_no_class_without_images(tmp_path):
    """Its images are there once, as those of the first."""
    write_folder(tmp_path / "root", ["a/1.png", "a/2.png", "c/1.png"])
    (tmp_path / "root" / "b").symlink_to(tmp_path / "root" / "a")
    data = opened(tmp_path / "root")
    assert data.spec.class_names == ("a", "c") and len(data.train) == 3
    assert any(f"{tmp_path}/root/b: a link to a folder" in note for note in data.notes), data.notes


@pytest.mark.parametrize("decode", ["exact", "reduced"])
def test_jpegs_are_decoded_as_the_settings_say(tmp_path, decode):
    (tmp_path / "1.jpg").write_bytes(encoded(textured(96, 96), "JPEG", quality=90))
    (found,) = everything(opened(tmp_path, decode=decode).train)
    exact, reduced = (Cut(16, reduced=reduced).image((tmp_path / "1.jpg").read_bytes(), 3) for reduced in (False, True))
    assert (exact != reduced).any()
    np.testing.assert_array_equal(found, exact if decode == "exact" else reduced)


@pytest.mark.parametrize("labels", ["auto", "folder", "prefix"])
def test_classes_by_folder_and_by_prefix(tmp_path, labels):
    data = opened(write_folder(tmp_path, NAMES), labels=labels)
    assert data.spec.class_names == ("cat", "dog")
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4
    assert data.train.labels.dtype == np.int64


def test_labels_none_and_classes_of_the_outer_folder(tmp_path):
    write_folder(tmp_path, ["cat/young/1.png", "cat/old/1.png", "dog/2.png"])
    assert opened(tmp_path, labels="none").spec.num_classes is None
    assert opened(tmp_path).train.labels.tolist() == [0, 0, 1]


def test_one_folder_is_no_class_unless_asked(tmp_path):
    write_folder(tmp_path, ["photos/1.png", "photos/2.png"])
    assert opened(tmp_path).spec.num_classes is None
    assert opened(tmp_path, labels="folder").spec.class_names == ("photos",)


def test_a_dot_is_no_class(tmp_path):
    """Programs write a/1.png of a tar as ./a/1.png."""
    root = write_folder(tmp_path / "root", ["a/1.png", "a/2.png", "b/1.png"])
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.add(root / "a", arcname="./a")
        archive.add(root / "b", arcname="b")
    data = opened(tmp_path / "x.tar")
    assert data.spec.class_names == ("a", "b") and data.train.labels.tolist() == [0, 0, 1]
    with tarfile.open(tmp_path / "flat.tar", "w") as archive:
        archive.add(root / "a", arcname=".")
    with pytest.raises(DataError, match=r"flat.tar: 1.png lies in no sub-folder, so it has no class"):
        opened(tmp_path / "flat.tar", labels="folder")
    assert opened(tmp_path / "flat.tar").spec.num_classes is None


def test_classes_that_no_training_image_has_are_said(tmp_path):
    """Those of held-out images alone, and of a third folder of a split, which count as classes all the same."""
    split = write_folder(tmp_path, [f"{half}/{kind}/1.png" for half in ("train", "val") for kind in ("cat", "dog")])
    assert not opened(split, validation_fraction=0.5).notes
    write_folder(split, ["test/images/1.png"])
    data = opened(split, validation_fraction=0.5)
    assert data.spec.class_names == ("cat", "dog", "images")
    assert data.notes == (f"warning: {split}: 1 of 3 classes has no image to train on (images) and is not learned",)
    write_folder(split, [f"val/{kind}/1.png" for kind in ("emu", "fox", "gnu")])
    said = "4 of 6 classes have no image to train on (emu, fox, gnu and 1 more) and are not learned"
    assert opened(split, validation_fraction=0.5).notes == (f"warning: {split}: {said}",)
    assert not opened(split, validation_fraction=0.5, labels="none").notes


def test_a_zip_may_say_more_of_a_member_than_its_name(tmp_path):
    """Between a name and its content there may be up to 65,535 bytes of extra fields."""
    image = encoded(picture(20, 20, seed=3))
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name, length in (("a.png", 8), ("b.png", 700)):
            entry = zipfile.ZipInfo(name)
            entry.extra = b"\x99\x99" + (length - 4).to_bytes(2, "little") + bytes(length - 4)
            archive.writestr(entry, image)
    images = everything(opened(tmp_path / "x.zip").train)
    assert len(images) == 2 and np.array_equal(images[0], images[1])


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_arrays_of_either_version_of_the_header(tmp_path, version):
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    with open(tmp_path / "x.npy", "wb") as file:
        np.lib.format.write_array(file, images, version=version)
    np.testing.assert_array_equal(everything(opened(tmp_path / "x.npy").train), images)


def test_an_array_that_is_only_mapped_is_read_by_a_worker(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, 16, 16, 3), dtype=np.uint8))
    np.savez_compressed(tmp_path / "x.npz", np.zeros((2, 16, 16, 3), dtype=np.uint8))
    assert [opened(tmp_path / name).train.default_workers() for name in ("x.npy", "x.npz")] == [1, 0]


@pytest.mark.parametrize(("cores", "processes", "workers"), [(16, None, 4), (16, "8", 1), (16, "4", 3), (1, "8", 1), (3, None, 2)])
def test_workers_share_the_cores_of_their_machine(tmp_path, monkeypatch, cores, processes, workers):
    """Those that the process may run on, with the other training processes of its machine."""
    Image.new("RGB", (16, 16)).save(tmp_path / "x.png")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)), raising=False)
    if processes is None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert opened(tmp_path).train.default_workers() == workers


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "stored.zip", "deflated.zip"])
def test_archives_equal_their_folder(tmp_path, name):
    folder = write_folder(tmp_path / "folder", NAMES)
    archive = tmp_path / name
    if name.endswith("zip"):
        write_zip(archive, folder, method=zipfile.ZIP_STORED if name == "stored.zip" else zipfile.ZIP_DEFLATED)
    else:
        write_tar(archive, folder)
    expected, data = opened(folder, validation_fraction=0.3), opened(archive, validation_fraction=0.3)
    for one, other in ((data.train, expected.train), (data.validation, expected.validation)):
        np.testing.assert_array_equal(everything(one), everything(other))
        np.testing.assert_array_equal(one.labels, other.labels)
    assert data.spec == expected.spec
    assert name in data.train.key(0) and "cat" in data.train.key(0)


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.zip"])
def test_an_archive_in_another_order_equals_its_folder(tmp_path, name):
    names = ["a/10.png", "a/9.png", "a b/1.png", "b/2.png", "3.png"]
    folder = write_folder(tmp_path / "folder", names)
    if name.endswith("zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for one in names[::-1]:
                archive.write(folder / one, one)
    else:
        with tarfile.open(tmp_path / name, "w:gz" if name.endswith("gz") else "w") as archive:
            for one in names[::-1]:
                archive.add(folder / one, one)
    expected, data = opened(folder, labels="none").train, opened(tmp_path / name, labels="none").train
    assert [data.source_key(k) for k in range(5)] == [expected.source_key(k) for k in range(5)]
    np.testing.assert_array_equal(everything(data), everything(expected))


def test_split_folders_are_used(tmp_path):
    write_folder(tmp_path, [f"{split}/{name}" for split in ("test", "train", "val") for name in NAMES])
    data = opened(tmp_path, validation_fraction=0.05)
    assert (len(data.train), len(data.validation)) == (8, 8)
    assert "/train/" in data.train.key(0) and "/val/" in data.validation.key(0)
    assert data.spec.class_names == ("cat", "dog")
    assert opened(tmp_path, validation_fraction=0.0).validation is None


@pytest.mark.parametrize(
    ("above", "beside"), [("", "montage.png"), ("x/", "more/cat/9.png"), ("x/", "montage.png"), ("x/y/", "montage.png")]
)
def test_what_lies_beside_split_folders_is_warned_of(tmp_path, above, beside):
    write_folder(tmp_path, [f"{above}{split}/{name}" for split in ("train", "val") for name in NAMES])
    assert opened(tmp_path).notes == ()
    write_folder(tmp_path, [f"{above}{beside}"])
    (warning,) = opened(tmp_path).notes
    assert warning.startswith(f"warning: the folders train and val are no split, for {beside} lies beside them: held-out images are chosen")
    assert warning in open_subjects(DataConfig(path=str(tmp_path))).notes


@pytest.mark.parametrize("channels", [1, 3])
def test_channels(tmp_path, channels):
    from PIL import Image

    folder = write_folder(tmp_path, ["1.png"], size=(16, 16))
    data = opened(folder, channels=channels)
    assert data.spec.channels == channels
    mode = "L" if channels == 1 else "RGB"
    expected = np.asarray(Image.fromarray(picture(16, 16)).convert(mode)).reshape(16, 16, channels)
    np.testing.assert_array_equal(everything(data.train)[0], expected)


# Validation


def test_held_out_is_disjoint_complete_stable_and_of_the_right_size():
    keys = [f"{k}.png" for k in range(5000)]
    train, validation = held_out(keys, fraction=0.1)
    assert sorted([*train, *validation]) == list(range(5000))
    assert abs(len(validation) - 500) < 3 * np.sqrt(450)
    more_train, more_validation = held_out([*keys, *(f"more{k}.png" for k in range(1000))], fraction=0.1)
    assert set(validation) == {k for k in more_validation if k < 5000} and set(train) == {k for k in more_train if k < 5000}
    assert len(held_out(keys, fraction=0.0)[1]) == 0


@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize("fraction", [0.001, 0.5, 0.999])
def test_neither_side_of_a_small_split_is_empty(count, fraction):
    train, validation = held_out([str(k) for k in range(count)], fraction=fraction)
    assert len(train) >= 1 and len(validation) >= 1


def test_what_is_looked_at_is_held_out_where_that_can_be():
    some, none = (DataConfig(source="digits", image_size=8, validation_fraction=fraction).open() for fraction in (0.05, 0.0))
    assert some.sets == [some.train, some.validation] and some.looked_at is some.validation
    assert none.sets == [none.train] and none.looked_at is none.train


def test_the_split_does_not_depend_on_where_the_folder_lies(tmp_path):
    names = [f"{k}.png" for k in range(40)]
    one, other = (opened(write_folder(tmp_path / name, names), validation_fraction=0.3) for name in ("one", "other"))
    keys = [[Path(data.validation.key(k)).name for k in range(len(data.validation))] for data in (one, other)]
    assert keys[0] == keys[1] and keys[0]


def test_a_file_beside_the_folder_of_all_others_deals_anew_but_not_where_that_folder_is_named(tmp_path):
    """A run that goes on refuses the former (tests/runs/test_going_on.py), and the page about data says what to do."""

    def held(place):
        validation = opened(place, validation_fraction=0.3, labels="none").validation
        return {validation.key(k) for k in range(len(validation))}

    folder = write_folder(tmp_path / "photos", [f"archive/{kind}/{k}.png" for kind in "ab" for k in range(20)])
    before = held(folder)
    assert held(folder / "archive") == before
    write_folder(folder, ["cover.png"])
    assert held(folder) != before and held(folder / "archive") == before


# What the log says of the files


@pytest.mark.parametrize("kind", ["folder", "tar", "tar.gz", "zip"])
def test_files_that_are_passed_over_are_counted_by_their_ending(tmp_path, kind):
    folder = write_folder(tmp_path / "files", ["a/1.png", "a/2.jpg"])
    for name in ("notes.txt", "a/more.TXT", "film.mp4", "README", ".hidden", "a/.DS_Store"):
        (folder / name).write_text("x")
    path = {"folder": lambda: folder, "zip": lambda: write_zip(tmp_path / "x.zip", folder)}.get(
        kind, lambda: write_tar(tmp_path / f"x.{kind}", folder)
    )()
    data = opened(path)
    assert data.notes == (f"{path}: passed over 4 files that are no images: 2 .txt, 1 .mp4, 1 without an ending",) or data.notes == (
        f"{path}: passed over 4 files that are no images: 2 .txt, 1 without an ending, 1 .mp4",
    )
    assert opened(write_folder(tmp_path / "clean", ["1.png"])).notes == ()


def test_many_endings_are_summed_up(tmp_path):
    folder = write_folder(tmp_path, ["1.png"])
    for k in range(9):
        (folder / f"x.{k}").write_text("x")
    (note,) = opened(folder).notes
    assert note.startswith(f"{folder}: passed over 9 files that are no images: 1 .") and note.endswith(", 3 others")


@pytest.mark.parametrize(
    ("ending", "file_format"),
    [("avif", "AVIF"), ("jfif", "JPEG"), ("jp2", "JPEG2000"), ("pbm", "PPM"), ("pnm", "PPM"), ("JP2", "JPEG2000")],
)
def test_less_common_formats(tmp_path, ending, file_format):
    if not features.check({"AVIF": "avif", "JPEG2000": "jpg_2000"}.get(file_format, "jpg")):
        pytest.skip(f"this Pillow has no {file_format}")
    pixels = picture(20, 16, channels=1 if ending == "pbm" else 3)
    image = Image.fromarray(pixels.squeeze())
    (image.convert("1") if ending == "pbm" else image).save(tmp_path / f"1.{ending}", file_format)
    data = opened(tmp_path)
    assert len(data.train) == 1 and everything(data.train).shape == (1, 16, 16, 3)
    if ending != "pbm":
        assert np.abs(everything(data.train)[0].astype(int) - pixels[:, 2:18]).mean() < 12


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["images/{}.jpg", "labels/{}.png"], "6 of 12 files look like the other halves of pairs (labels/0.png beside images/0.jpg)"),
        (["x/photos/{}.jpg", "x/Seg_Maps/{}.png"], "(x/Seg_Maps/0.png beside x/photos/0.jpg)"),
        (["{}.jpg", "{}_edges.png"], "(0_edges.png beside 0.jpg)"),
        (["a {}.png", "a {}-Mask.png"], "(a 0-Mask.png beside a 0.png)"),
        (["{}.png", "{}_L.png"], "(0_L.png beside 0.png)"),
        (["d/{}.jpg", "d/{}.png"], "(d/0.png beside d/0.jpg)"),
        (
            [f"{side}/{kind}/{clip}/{{}}.png" for side in ("train", "val") for kind in ("images", "labels", "points") for clip in "ab"],
            "48 of 72 files look like the other halves of pairs (train/labels/a/0.png beside train/images/a/0.png)",
        ),
        (["cat/{}.png", "dog/{}.png"], None),
        (["cat/{}.png", "dog/{}.jpg"], None),
        (["labels/{}.png"], None),
        (["drive/{}"], None),
        (["v1.0/{}"], None),
        (["photos/a{}.png", "labels/b{}.png"], None),
        (["{}_cat.png", "{}_dog.png"], None),
    ],
)
def test_the_other_halves_of_pairs_are_warned_of(names, found):
    every = sorted((name.format(k) for name in names for k in range(6)), key=lambda name: name.split("/"))
    warning = "".join(pairs_warning(every, "here"))
    assert found in warning and warning.startswith("warning: here: ") if found else warning == ""


def test_the_warning_of_pairs_comes_with_the_data(tmp_path):
    write_folder(tmp_path, [f"{kind}/{k}.png" for kind in ("images", "labels") for k in range(4)])
    (warning,) = opened(tmp_path).notes
    assert "4 of 8 files look like" in warning


# MNIST, CIFAR-10, arrays


def write_mnist(folder: Path, *, compressed: bool, test: bool = True) -> None:
    for split, count in (("train", 12), ("t10k", 5))[: 2 if test else 1]:
        images = np.stack([picture(28, 28, seed=k, channels=1)[..., 0] for k in range(count)])
        for kind, values in (("images-idx3", images), ("labels-idx1", np.arange(count) % 10)):
            path = write_idx(folder / f"{split}-{kind}-ubyte", values)
            if compressed:
                Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
                path.unlink()


@pytest.mark.parametrize("compressed", [False, True])
def test_mnist(tmp_path, compressed):
    write_mnist(tmp_path, compressed=compressed)
    data = opened(tmp_path, image_size=28, validation_fraction=0.5)
    assert (len(data.train), len(data.validation), data.spec.channels, data.spec.num_classes) == (12, 5, 1, 10)
    np.testing.assert_array_equal(everything(data.train)[3], picture(28, 28, seed=3, channels=1))
    assert data.train.labels.tolist() == [*range(10), 0, 1]


def test_classes_of_test_images_that_training_lacks_are_named(tmp_path):
    write_mnist(tmp_path, compressed=False)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.array([0, 1, 12, 3, 4]))
    said = "t10k-images-idx3-ubyte: holds the class 12, but train-images-idx3-ubyte, to train on, 0 to 9 alone: mend the labels, or set"
    with pytest.raises(DataError, match=f"^{re.escape(said)} data.labels to none$"):
        opened(tmp_path, image_size=28, validation_fraction=0.5)
    config = DataConfig(path=str(tmp_path), image_size=28)
    subjects = open_subjects(config)
    assert [complaint.why for complaint in subjects.complaints] == [f"{said} --labels to none"] and subjects.labels is None
    for settings in ({"labels": "none"}, {"validation_fraction": 0.0}):
        assert len(opened(tmp_path, image_size=28, **settings).train) == 12
        assert not open_subjects(config.updated(settings)).complaints


@pytest.mark.parametrize("shape", [(3, 0, 8), (3, 8, 0)])
def test_arrays_of_images_without_pixels_are_refused(tmp_path, shape):
    images = np.zeros(shape, dtype=np.uint8)
    np.savez(tmp_path / "a.npz", arr_0=images)
    np.save(tmp_path / "a.npy", images[..., None])
    (tmp_path / "m").mkdir()
    write_idx(tmp_path / "m/train-images-idx3-ubyte", images)
    write_idx(tmp_path / "m/train-labels-idx1-ubyte", np.zeros(3))
    for name in ("a.npz", "a.npy", "m"):
        with pytest.raises(DataError, match=r"uint8 of shape \(3, .*\), expected uint8 of shape \(n, height, width, 1 or 3\)"):
            opened(tmp_path / name, enlarge=True)


def test_mnist_without_test_images_is_split(tmp_path):
    write_mnist(tmp_path, compressed=False, test=False)
    data = opened(tmp_path, image_size=32, enlarge=True, validation_fraction=0.25, channels=3)
    assert len(data.train) + len(data.validation) == 12 and len(data.validation) >= 1
    assert everything(data.validation).shape[1:] == (32, 32, 3)


def test_cifar10(tmp_path):
    images = np.stack([picture(32, 32, seed=k) for k in range(6)])
    records = np.concatenate([np.arange(6, dtype=np.uint8)[:, None], images.transpose(0, 3, 1, 2).reshape(6, -1)], axis=1)
    for name, part in (("data_batch_1", records[:2]), ("data_batch_2", records[2:5]), ("test_batch", records[5:])):
        part.tofile(tmp_path / f"{name}.bin")
    data = opened(tmp_path, image_size=32, validation_fraction=0.01)
    np.testing.assert_array_equal(everything(data.train), images[:5])
    np.testing.assert_array_equal(everything(data.validation), images[5:])
    assert data.train.labels.tolist() == [0, 1, 2, 3, 4]
    assert data.spec.class_names[:3] == ("airplane", "automobile", "bird")
    (tmp_path / "data_batch_2.bin").rename(tmp_path / "data_batch_3.bin")
    with pytest.raises(DataError, match=r"has data_batch_3\.bin, but no data_batch_2\.bin; copy the missing file"):
        opened(tmp_path, image_size=32)


def test_the_python_version_of_cifar10_is_named(tmp_path):
    (tmp_path / "data_batch_1").write_bytes(b"pickled")
    with pytest.raises(DataError, match=r"CIFAR-10's Python version, which is pickled: give the folder of its binary version"):
        opened(tmp_path)


@pytest.mark.parametrize("channels", [1, 3])
def test_arrays(tmp_path, channels):
    images = np.stack([picture(20, 18, seed=k, channels=channels) for k in range(5)])
    np.savez(tmp_path / "x.npz", images, np.array([2, 0, 1, 2, 2]))
    np.savez(tmp_path / "named.npz", images=images, labels=np.array([2, 0, 1, 2, 2]))
    np.testing.assert_array_equal(everything(opened(tmp_path / "named.npz").train), everything(opened(tmp_path / "x.npz").train))
    assert opened(tmp_path / "named.npz").train.labels.tolist() == [2, 0, 1, 2, 2]
    np.save(tmp_path / "x.npy", images[..., 0] if channels == 1 else images)
    labelled, plain = opened(tmp_path / "x.npz"), opened(tmp_path / "x.npy")
    assert labelled.spec.num_classes == 3 and labelled.train.labels.tolist() == [2, 0, 1, 2, 2]
    assert plain.spec.num_classes is None and opened(tmp_path / "x.npz", labels="none").train.labels is None
    np.testing.assert_array_equal(everything(labelled.train), everything(plain.train))
    np.save(tmp_path / "sized.npy", images[:, :16, :16])
    np.testing.assert_array_equal(everything(opened(tmp_path / "sized.npy").train), images[:, :16, :16])


def test_an_array_in_fortrans_order_is_varied_as_any(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), dtype=np.uint8)
    np.save(tmp_path / "c.npy", images)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(images))
    c, fortran = (opened(tmp_path / name).train.batch(np.arange(5), np.arange(5)).images for name in ("c.npy", "fortran.npy"))
    np.testing.assert_array_equal(c, fortran)


def test_arrays_and_files_are_cut_alike(tmp_path):
    images = np.stack([picture(50, 41, seed=k) for k in range(4)])
    np.save(tmp_path / "x.npy", images)
    for k, image in enumerate(images):
        (tmp_path / f"{k}.png").write_bytes(encoded(image))
    for crop in ("center", "random"):
        array, folder = (opened(path, crop=crop).train for path in (tmp_path / "x.npy", tmp_path))
        items = np.array([3, 0, 0, 2, 1])
        results = [images.batch(items, np.arange(100, 105), seed=1).images for images in (array, folder)]
        np.testing.assert_array_equal(*results)


# Padding


@pytest.mark.parametrize("kind", ["folder", "arrays"])
def test_windows_of_images_at_a_given_scale(tmp_path, kind):
    """Those of training lie anywhere, those held out in the middle, and no pixel is scaled where the images have that short side."""
    pixels = np.stack([picture(24, 24, seed=k) for k in range(40)])
    if kind == "arrays":
        np.savez(tmp_path / "images.npz", arr_0=pixels)
    else:
        write_folder(tmp_path / "images", [f"{k:02d}.png" for k in range(40)], size=(24, 24))
    path = tmp_path / ("images.npz" if kind == "arrays" else "images")
    data = opened(path, image_size=16, crop="random", resize=24, flip=False, validation_fraction=0.25)
    assert data.validation is not None
    windows = {image[top : top + 16, left : left + 16].tobytes(): (top, left) for image in pixels for top in range(9) for left in range(9)}
    drawn = data.train.batch(np.arange(len(data.train)), np.arange(len(data.train)), seed=1).images
    assert len({windows[image.tobytes()] for image in drawn}) > 10
    assert {windows[image.tobytes()] for image in everything(data.validation)} == {(4, 4)}
    with pytest.raises(DataError, match=r"24x24 pixels, smaller than data.resize 32: lower data.resize, or set data.enlarge to true"):
        opened(path, image_size=16, resize=32)


def least_around(images: np.ndarray, pad: int) -> np.ndarray:
    """Above and below the least of each column, then left and right the least of each row; images (n, h, w, c)."""
    columns = images.min(axis=1, keepdims=True).repeat(pad, axis=1)
    images = np.concatenate((columns, images, columns), axis=1)
    rows = images.min(axis=2, keepdims=True).repeat(pad, axis=2)
    return np.concatenate((rows, images, rows), axis=2)


@pytest.mark.parametrize("kind", ["npz", "npy", "files"])
@pytest.mark.parametrize("channels", [1, 3])
def test_padding_comes_before_all_else(tmp_path, kind, channels):
    images = np.stack([picture(14, 12, seed=k, channels=channels) for k in range(4)])
    larger = least_around(images, 2)
    path = tmp_path / ("x" if kind == "files" else f"x.{kind}")
    for name, pixels in ((path, images), (tmp_path / "larger.npy", larger)):
        if not name.suffix:
            name.mkdir()
            for k, image in enumerate(pixels):
                (name / f"{k}.png").write_bytes(encoded(image))
        elif name.suffix == ".npz":
            np.savez(name, pixels)
        else:
            np.save(name, pixels)
    for size, crop in ((16, "center"), (16, "random"), (13, "center"), (8, "center"), (8, "random")):
        settings = {"image_size": size, "crop": crop, "channels": channels}
        padded, expected = opened(path, pad=2, **settings).train, opened(tmp_path / "larger.npy", **settings).train
        np.testing.assert_array_equal(everything(padded), everything(expected))
        np.testing.assert_array_equal(*(images.batch(np.arange(4), np.arange(4)).images for images in (padded, expected)))
    with pytest.raises(DataError, match=r"18x16 pixels with data.pad, smaller than data.image_size 17: lower"):
        opened(path, image_size=17, pad=2)


def test_a_padded_photograph_is_decoded_at_full_scale(tmp_path):
    (tmp_path / "x.jpg").write_bytes(encoded(picture(64, 64), "JPEG"))
    whole = everything(opened(tmp_path, image_size=64).train)
    np.save(tmp_path / "x.npy", least_around(whole, 3))
    expected = everything(opened(tmp_path / "x.npy").train)
    for decode in ("exact", "reduced"):
        np.testing.assert_array_equal(everything(opened(tmp_path, pad=3, decode=decode).train), expected)


def test_mnist_padded_as_in_the_original(tmp_path):
    write_mnist(tmp_path, compressed=False)
    data = opened(tmp_path, image_size=32, pad=2, channels=3, validation_fraction=0.5)
    for part, count in ((data.train, 12), (data.validation, 5)):
        images = np.stack([picture(28, 28, seed=k, channels=1)[..., 0] for k in range(count)])
        expected = np.tile(np.pad(images, ((0, 0), (2, 2), (2, 2)), "minimum")[..., None], (1, 1, 1, 3))
        np.testing.assert_array_equal(everything(part), expected)


# Errors


def broken(tmp_path: Path, name: str) -> Path:
    """A path that cannot be used, by the name of what is wrong with it."""
    path = tmp_path / "x"
    image = encoded(picture(16, 16))
    if name == "empty folder":
        path.mkdir()
    elif name in ("cut-off image", "text as image", "small image"):
        write_folder(path, ["a.png", "b.png"])
        bad = {"cut-off image": image[:20], "text as image": b"hello", "small image": encoded(picture(15, 40))}
        (path / "b.png").write_bytes(bad[name])
    elif name in ("text.tar", "text.tar.gz", "text.zip", "text.npz", "text.npy", "text.dat"):
        path = tmp_path / name
        path.write_text("hello " * 200)
    elif name == "cut.tar.gz":
        path = write_tar(tmp_path / name, write_folder(tmp_path / "f", NAMES))
        path.write_bytes(path.read_bytes()[:-3000])
    elif name == "cut.tar":
        path = write_tar(tmp_path / name, write_folder(tmp_path / "f", ["a.png"], size=(100, 100)))
        path.write_bytes(path.read_bytes()[:5000])
    elif name == "no images.zip":
        path = write_zip(tmp_path / name, tmp_path)
    elif name == "objects.npz":
        path = tmp_path / name
        np.savez(path, np.array([np.zeros((2, 2)), np.zeros((3, 3))], dtype=object))
    elif name in ("float.npy", "flat.npy", "named.npz", "labels.npz", "small.npy"):
        path = tmp_path / name
        images = np.zeros((4, 16, 16, 3), dtype=np.uint8)
        if name == "named.npz":
            np.savez(path, pictures=images)
        elif name == "labels.npz":
            np.savez(path, images, np.zeros(3, dtype=np.int64))
        else:
            np.save(path, {"float.npy": images.astype(float), "flat.npy": images.reshape(4, -1), "small.npy": images[:, :, :10]}[name])
    elif name in ("idx magic", "idx length", "idx labels", "idx without labels"):
        path.mkdir()
        write_mnist(path, compressed=False)
        images, labels = path / "train-images-idx3-ubyte", path / "train-labels-idx1-ubyte"
        if name == "idx magic":
            images.write_bytes(b"\0\0\x08\x01" + images.read_bytes()[4:])
        elif name == "idx length":
            images.write_bytes(images.read_bytes()[:-1])
        elif name == "idx labels":
            write_idx(labels, np.zeros(3))
        else:
            labels.unlink()
    elif name in ("cifar length", "cifar class"):
        path.mkdir()
        (path / "data_batch_1.bin").write_bytes(b"\0" * 3074 if name == "cifar length" else b"\x0a" + b"\0" * 3072)
    return path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no such path", r"x: does not exist \(data.path\)"),
        ("empty folder", r"x: no images to train on"),
        ("cut-off image", r"x/b.png: .*; repair or remove the file"),
        ("text as image", r"x/b.png: not an image that can be read .*; repair"),
        (
            "small image",
            r"x/b.png: 15x40 pixels, smaller than data.image_size 16: lower data.image_size, or set data.enlarge to true, or",
        ),
        ("text.tar", r"text.tar: cannot be read as a tar archive"),
        ("text.tar.gz", r"text.tar.gz: cannot be read as a tar archive"),
        ("text.zip", r"text.zip: cannot be read as a zip archive"),
        ("text.npz", r"text.npz: "),
        ("text.npy", r"text.npy: "),
        ("text.dat", r"text.dat: not recognised; expected a folder, or a file ending in .tar"),
        ("cut.tar.gz", r"cut.tar.gz: cannot be read as a tar archive"),
        ("cut.tar", r"cut.tar: "),
        ("no images.zip", r"no images.zip: no images to train on"),
        ("objects.npz", r"objects.npz: arr_0 holds Python objects \(images of mixed sizes\?\); save one uint8 array"),
        ("float.npy", r"float.npy: float64 of shape \(4, 16, 16, 3\), expected uint8 of shape \(n, height, width, 1 or 3\)"),
        ("flat.npy", r"flat.npy: uint8 of shape \(4, 768\), expected"),
        ("named.npz", r"named.npz: holds pictures, expected images as arr_0"),
        ("labels.npz", r"labels.npz: arr_1: int64 of shape \(3,\), expected 4 labels"),
        ("small.npy", r"small.npy: images of 10x16 pixels, smaller than data.image_size 16"),
        ("idx magic", r"train-images-idx3-ubyte: not an idx file of images \(magic 2049, expected 2051\)"),
        ("idx length", r"train-images-idx3-ubyte: 9407 bytes of data where its header says 12x28x28"),
        ("idx labels", r"train-labels-idx1-ubyte: 3 labels for the 12 images"),
        ("idx without labels", r"train-images-idx3-ubyte: the file of its labels, train-labels-idx1-ubyte, is not beside it"),
        ("cifar length", r"data_batch_1.bin: 3074 bytes, expected a multiple of 3073"),
        ("cifar class", r"data_batch_1.bin: holds class 10, expected 0 to 9"),
    ],
)
def test_unusable_data(tmp_path, name, message):
    with pytest.raises(DataError, match=message) as caught:
        everything(opened(broken(tmp_path, name)).train)
    assert "\n" not in str(caught.value)


def test_a_damaged_member_of_an_archive_is_named(tmp_path):
    path = write_zip(tmp_path / "x.zip", write_folder(tmp_path / "f", ["a.png", "b.png"]), method=zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    start = data.index(b"b.png") + len("b.png")
    data[start : start + 8] = b"\xff" * 8
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"x.zip/b.png: damaged in the archive"):
        opened(path)


@pytest.mark.parametrize("names", [["cat_1.png", "dog.png"], ["cat_1.png", "_dog.png"]])
def test_labels_that_the_files_lack(tmp_path, names):
    write_folder(tmp_path, names)
    with pytest.raises(DataError, match=rf"{names[1]} has no class before an underscore"):
        opened(tmp_path, labels="prefix")
    with pytest.raises(DataError, match=r"\.png lies in no sub-folder, so it has no class"):
        opened(tmp_path, labels="folder")
    assert opened(tmp_path).spec.num_classes is None


@pytest.mark.parametrize("labels", ["auto", "folder"])
def test_an_empty_class_folder(tmp_path, labels):
    write_folder(tmp_path, NAMES)
    (tmp_path / "emu").mkdir()
    with pytest.raises(DataError, match=r"emu: a sub-folder without images, but sub-folders are classes"):
        opened(tmp_path, labels=labels)
    assert len(opened(tmp_path, labels="none").train) == 8


def test_settings_that_do_not_fit(tmp_path):
    with pytest.raises(ConfigError, match=r"data.labels: got 'prefix', but digits is not made of image files and it has labels of its own"):
        opened(None, source="digits", labels="prefix")
    np.save(tmp_path / "x.npy", np.zeros((3, 16, 16), np.uint8))
    with pytest.raises(ConfigError, match=r"data.labels: got 'folder', but x.npy is not made of image files and it has no labels"):
        opened(tmp_path / "x.npy", labels="folder")
    with pytest.raises(ConfigError, match=r"data.path: missing"):
        opened(None)
    for source, kind in (("tar", "file, nor a folder of tars"), ("zip", "file"), ("arrays", "file")):
        with pytest.raises(DataError, match=rf"not a {kind}, but data.source is {source}"):
            opened(tmp_path, source=source)
    with pytest.raises(DataError, match=r"holds no train-images-idx3-ubyte"):
        opened(tmp_path, source="mnist")
    with pytest.raises(DataError, match=r"holds no data_batch_1.bin"):
        opened(tmp_path, source="cifar10")
    for name, value in (("image_size", 0), ("validation_fraction", 1.0), ("workers", -1), ("pad", -1), ("pad", 64)):
        with pytest.raises(ConfigError, match=name):
            DataConfig(**{name: value})


# Real data, where it is at hand


@pytest.mark.real_data(SHARED)
def test_the_digits_of_mnist_have_a_black_border():
    whole, padded = (everything(opened(SHARED / "mnist", image_size=28 + 2 * pad, pad=pad).train) for pad in (0, 2))
    np.testing.assert_array_equal(padded, np.pad(whole, ((0, 0), (2, 2), (2, 2), (0, 0))))


@pytest.mark.real_data(SHARED)
@pytest.mark.parametrize(
    ("path", "source", "settings", "count", "classes"),
    [
        ("mnist", "mnist", {"image_size": 28}, 60000, 10),
        ("cats100", "folder", {"image_size": 64}, 3000, None),
        ("camvid/train/images", "folder", {"image_size": 64}, 367, None),
        ("omniglot/images_background_small1.zip", "zip", {"image_size": 64, "channels": 1}, 2720, 5),
    ],
)
def test_real_data(path, source, settings, count, classes):
    assert recognised(SHARED / path) == source
    data = opened(SHARED / path, **settings)
    assert (len(data.train), data.spec.num_classes) == (count, classes)
    images = data.train.batch(np.array([0, count // 2, count - 1])).images
    assert images.std() > 20


def test_hidden_folders_are_left_out_of_archives_too(tmp_path):
    folder = write_folder(tmp_path / "folder", [*NAMES, "cat/.hidden.png", ".ipynb_checkpoints/a-checkpoint.png"])
    write_zip(tmp_path / "x.zip", folder, method=zipfile.ZIP_STORED)
    write_tar(tmp_path / "x.tar", folder)
    found = [opened(tmp_path / name, labels="folder") for name in ("folder", "x.zip", "x.tar")]
    assert {data.spec.class_names for data in found} == {("cat", "dog")}
    assert {len(data.train) for data in found} == {len(found[0].train)}


@pytest.mark.parametrize(("count", "said"), [(2, "1 of its files has"), (3, "2 of its files have")])
def test_the_last_of_several_members_of_one_name_counts(tmp_path, count, said):
    """As in what unpacks them."""
    contents = [encoded(picture(16, 16, seed=seed)) for seed in range(count)]
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        for content in contents:
            archive.writestr("a.png", content)
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for content in contents:
            member = tarfile.TarInfo("a.png")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    for name in ("x.zip", "x.tar"):
        data = opened(tmp_path / name)
        assert len(data.train) == 1 and data.train.content(0) == contents[-1], name
        assert any(f"{said} the name of a later one" in note for note in data.notes), data.notes


def test_links_in_a_tar(tmp_path):
    """A hard link is its file under another name; what leads elsewhere is counted."""
    content = encoded(picture(16, 16, seed=1))
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        member = tarfile.TarInfo("a.png")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
        for name, kind, target in (
            ("b.png", tarfile.LNKTYPE, "a.png"),
            ("c.png", tarfile.SYMTYPE, "a.png"),
            ("d.png", tarfile.LNKTYPE, "z.png"),
        ):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, target
            archive.addfile(link)
    data = opened(tmp_path / "x.tar")
    assert [data.train.content(k) for k in range(len(data.train))] == [content, content]
    assert any(note.endswith("passed over 2 files that are no images: 2 links (.png)") for note in data.notes), data.notes
