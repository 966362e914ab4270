"""Data made to do harm: other programs' formats, pipes and devices, archives that unpack to far more than they are."""

from __future__ import annotations

import ast
import errno
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from tests.data.pictures import encoded, picture, write_folder, write_tar
from triptych.core.errors import DataError
from triptych.data import decode, patterns
from triptych.data.archives import LocalFile, open_tar, open_zip
from triptych.data.arrays import array_file
from triptych.data.config import DataConfig
from triptych.data.files import MOST_BYTES, ending, open_folder
from triptych.data.latents import read_latent_file

SOURCE = Path(decode.__file__).parents[1]


def load(path: Path, **settings) -> np.ndarray:
    images = DataConfig(path=str(path), image_size=16, validation_fraction=0.0, **settings).open().train
    return images.batch(np.arange(len(images))).images


# Formats

EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 32 32
%%EndComments
0 0 32 32 rectfill showpage
%%EOF
"""


def test_no_image_starts_a_program(tmp_path, monkeypatch):
    """Pillow hands PostScript to Ghostscript, whatever the file is called."""
    programs, called = tmp_path / "bin", tmp_path / "called"
    programs.mkdir()
    for name in ("gs", "gswin32c", "gswin64c", "ffmpeg", "convert"):
        (programs / name).write_text(f"#!/bin/sh\ntouch {called}\nexit 1\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").write_bytes(EPS)
    with pytest.raises(DataError, match=r"a\.png: not an image that can be read \(AVIF, BMP, GIF, JPEG"):
        load(tmp_path / "data")
    for read in (decode.header_size, decode.header_channels, decode.number_map):
        with pytest.raises(Image.UnidentifiedImageError):
            read(EPS)
    assert not called.exists()


def test_every_image_is_opened_with_a_list_of_formats():
    calls = [
        (path.name, call)
        for path in SOURCE.rglob("*.py")
        if "Image.open" in path.read_text("utf-8")
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Image.open"
    ]
    assert len(calls) >= 3
    assert [name for name, call in calls if "formats" not in [keyword.arg for keyword in call.keywords]] == []


@pytest.mark.parametrize("file_format", ["AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP"])
def test_formats_that_are_read(tmp_path, file_format):
    if file_format == "AVIF" and not features.check("avif"):  # not in every version
        pytest.skip("this build of Pillow has no AVIF")
    (tmp_path / "a.png").write_bytes(encoded(picture(16, 16), file_format))
    assert load(tmp_path).shape == (1, 16, 16, 3)


def test_an_image_of_too_many_pixels(tmp_path):
    picture = Image.new("1", (20_000, 10_000))
    picture.save(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size < 2**16
    with pytest.raises(DataError, match=r"a\.png: more than 178,956,970 pixels; repair or remove the file, or set data.on_error to skip$"):
        load(tmp_path)


def test_what_libtiff_says_is_not_on_the_terminal(tmp_path, capfd):
    buffer = io.BytesIO()
    Image.fromarray(picture(64, 64)).save(buffer, "TIFF", compression="tiff_adobe_deflate")
    damaged = bytearray(buffer.getvalue())
    damaged[40:60] = b"\xff" * 20
    (tmp_path / "a.tif").write_bytes(damaged)
    with pytest.raises(DataError, match=r"a\.tif: .*; repair or remove the file$"):
        load(tmp_path)
    os.write(2, b"still there\n")
    assert capfd.readouterr().err == "still there\n"


# Files that are none


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a pipe"])
def test_only_regular_files_are_read(tmp_path, kind):
    write_folder(tmp_path, ["a.png"])
    path = tmp_path / "b.png"
    if kind == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(tmp_path / "pipe" if kind == "link to a pipe" else path)
    if kind == "link to a pipe":
        path.symlink_to(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"b\.png: not a regular file but a pipe or a device, or a link to one; remove it$"):
        load(tmp_path)
    files, _ = open_folder(write_folder(tmp_path / "later", ["a.png"]))
    (tmp_path / "later" / "a.png").unlink()
    path.rename(tmp_path / "later" / "a.png")
    with pytest.raises(OSError, match="not a regular file"):
        files.read(0)


@pytest.mark.parametrize("name", ["train/train-r04-s-0000-of-0001.tfrecords", "data_batch_1.bin", "x.tar", "x.zip", "x.npz", "x.npy"])
def test_a_pipe_is_not_waited_for(tmp_path, name):
    pipe = tmp_path / "d" / name
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    folder = pipe.suffix in (".tfrecords", ".bin")
    source = {".tfrecords": "tfrecord", ".bin": "cifar10"}.get(pipe.suffix, "auto")
    with pytest.raises(DataError, match="not a regular file|not a file"):
        load(tmp_path / "d" if folder else pipe, source=source)
    for read in (open_tar, open_zip, array_file):
        if not folder:
            with pytest.raises(DataError, match="not a regular file"):
                read(pipe)


def test_an_encoded_image_beyond_the_limit(tmp_path):
    with (tmp_path / "a.png").open("wb") as file:
        file.truncate(MOST_BYTES + 1)  # a hole: it takes no room on the disk
    with pytest.raises(DataError, match=r"a\.png: larger than 268,435,456 bytes; repair or remove the file"):
        load(tmp_path)


def test_many_nested_folders(tmp_path):
    depth = 1100  # more than Python's functions may call one another
    start = os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(depth):
            os.mkdir("d")
            os.chdir("d")
        Path("a.png").write_bytes(encoded(picture(16, 16)))
        os.chdir(start)
        assert load(tmp_path).shape == (1, 16, 16, 3)
    finally:
        os.chdir(start)
        subprocess.run(["rm", "-r", str(tmp_path / "d")], check=True)  # pytest, which would do it later, goes no deeper than Python


# Bombs

ZEROS = 1_200_000_000


def deflated_zeros(head: bytes = b"") -> bytes:
    """`head`, then 1.2 GB of zeros, deflated to 1.2 MB without being made."""
    squeezer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    first = squeezer.compress(head) + squeezer.flush(zlib.Z_FULL_FLUSH)
    block = squeezer.compress(bytes(10**6)) + squeezer.flush(zlib.Z_FULL_FLUSH)
    return first + block * (ZEROS // 10**6) + squeezer.flush()


def gzipped(head: bytes = b"") -> bytes:
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + deflated_zeros(head) + bytes(4) + (len(head) + ZEROS).to_bytes(8, "little")[:4]


def zip_bomb(path: Path, name: str, head: bytes = b"", *, stated: int | None = None) -> Path:
    """A zip with one member of `head` and the zeros; `stated`: the size that it says the member has."""
    data = deflated_zeros(head)
    size = len(head) + ZEROS if stated is None else stated
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), data)
    content = bytearray(path.read_bytes())
    for signature, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        start = content.index(signature)
        content[start + place : start + place + 2] = (8).to_bytes(2, "little")
        content[start + place + 14 : start + place + 18] = size.to_bytes(4, "little")
    path.write_bytes(content)
    return path


def npy_header(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def tar_header(name: str, kind: bytes) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = ZEROS, kind
    return member.tobuf(tarfile.GNU_FORMAT)


def bombs(folder: Path) -> dict[str, str]:
    """Files of about 1.2 MB that unpack to 1.2 GB, and what is said of each, or "read"."""
    zip_bomb(folder / "member.zip", "a.png")
    zip_bomb(folder / "lying.zip", "a.png", stated=1000)
    zip_bomb(folder / "small.npz", "arr_0.npy", npy_header((2, 16, 16, 3)))
    zip_bomb(folder / "flat.npz", "arr_0.npy", npy_header((ZEROS,)))
    zip_bomb(folder / "header.npz", "arr_0.npy", b"\x93NUMPY\x02\0" + (10**9).to_bytes(4, "little"))
    (folder / "member.tar.gz").write_bytes(gzipped(tar_header("a.png", tarfile.REGTYPE)))
    (folder / "name.tar.gz").write_bytes(gzipped(tar_header("a.png", tarfile.GNUTYPE_LONGNAME)))
    (folder / "pax.tar.gz").write_bytes(gzipped(tar_header("a.png", tarfile.XHDTYPE)))
    (folder / "mnist").mkdir()
    (folder / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(
        gzipped((2051).to_bytes(4) + b"".join(n.to_bytes(4) for n in (5, 28, 28)))
    )
    return {
        "member.zip": "larger than 268,435,456 bytes",
        "lying.zip": "damaged in the archive",
        "small.npz": "read",
        "flat.npz": "expected uint8 of shape",
        "header.npz": "the header of arr_0 has more than 10,000 bytes",
        "member.tar.gz": "larger than 268,435,456 bytes",
        "name.tar.gz": "headers of more than 1,048,576 bytes",
        "pax.tar.gz": "headers of more than 1,048,576 bytes",
        "mnist": "more bytes of data where its header says 5x28x28",
    }


READ = """
import json, resource, sys
from pathlib import Path
from triptych.core.errors import DataError
from triptych.data.arrays import array_file, mnist
from triptych.data.archives import open_tar, open_zip

said = {}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name in sys.argv[2:]:
    path = Path(sys.argv[1]) / name
    try:
        if path.is_dir():
            mnist(path, "train")
        elif path.suffix == ".npz":
            array_file(path)
        else:
            (open_zip if path.suffix == ".zip" else open_tar)(path).read(0)
        said[name] = "read"
    except DataError as error:
        said[name] = str(error)
said["grown"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * (1 if sys.platform == "darwin" else 1024)
print(json.dumps(said))
"""


def test_bombs_take_no_more_memory_than_their_headers_state(tmp_path):
    expected = bombs(tmp_path)
    assert all(path.stat().st_size < 2_000_000 for path in tmp_path.rglob("*.*z*"))
    done = subprocess.run([sys.executable, "-c", READ, str(tmp_path), *expected], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    grown = said.pop("grown")
    for name, reason in expected.items():
        assert reason in said[name] and "\n" not in said[name], (name, said[name])
    assert grown < 100_000_000


def test_a_sparse_file_in_a_tar(tmp_path):
    member = tarfile.TarInfo("a.png")
    member.type = tarfile.GNUTYPE_SPARSE
    (tmp_path / "x.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(DataError, match="a.png: stored as a sparse file; make the archive again without --sparse"):
        open_tar(tmp_path / "x.tar")


def test_a_damaged_header_within_a_tar_is_not_its_end(tmp_path):
    """tarfile takes it for the end, and the images behind it would be missing without a word."""
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(write_folder(tmp_path / "f", ["a.png", "b.png", "c.png"]), arcname="f")
    data = bytearray(path.read_bytes())
    start = data.index(b"f/b.png")
    data[start : start + 100] = b"x" * 100
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"x\.tar: cannot be read as a tar archive \(a damaged header within it\)"):
        open_tar(path)


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_a_tar_that_ends_between_two_files_is_cut(tmp_path, ending):
    folder = write_folder(tmp_path / "f", ["a.png", "b.png", "c.png"])
    whole = write_tar(tmp_path / "whole.tar", folder)
    with tarfile.open(whole) as tar:
        ends = [member.offset for member in tar][3]
    data, path = whole.read_bytes(), tmp_path / f"x.{ending}"
    pack = gzip.compress if ending == "tar.gz" else bytes
    path.write_bytes(pack(data[:ends]))
    with pytest.raises(DataError, match=r"x\.tar[.gz]*: the archive is cut short: it ends behind 2 images without the zeros"):
        open_tar(path)
    path.write_bytes(pack(data[:ends] + bytes(512)))  # GNU tar reads it too
    assert len(open_tar(path).names) == 2


def test_a_compressed_tar_leaves_room_on_the_disk(tmp_path, monkeypatch):
    path = write_tar(tmp_path / "x.tar.gz", write_folder(tmp_path / "f", ["a.png", "b.png"]))
    free, largest = shutil.disk_usage(tmp_path), max(file.stat().st_size for file in (tmp_path / "f").iterdir())
    for room, said in ((largest, "read"), (largest - 1, "unpacked it takes more than")):
        monkeypatch.setattr(shutil, "disk_usage", lambda folder, room=room: free._replace(free=2**28 + room))
        if said == "read":
            assert len(open_tar(path).read(0))
        else:
            with pytest.raises(DataError, match=rf"x\.tar\.gz: {said} .* has room for; name a folder with more room in TMPDIR"):
                open_tar(path)


def test_a_file_that_is_read_in_several_calls(tmp_path, monkeypatch):
    """The system gives no more than 2 GiB in one."""
    (tmp_path / "x").write_bytes(bytes(range(100)))
    pread = os.pread
    with open(tmp_path / "x", "rb") as file:
        monkeypatch.setattr(os, "pread", lambda descriptor, length, offset: pread(descriptor, min(length, 7), offset))
        local = LocalFile(file, tmp_path / "x")
        assert local.pread(50, 3) == bytes(range(3, 53)) and local.pread(50, 90) == bytes(range(90, 100)) and local.pread(5, 200) == b""


def test_backslashes_in_a_zip(tmp_path):
    """Some programs of Windows write them between the folders; where there are slashes too, they are letters."""
    image = encoded(picture(16, 16))
    for names, expected in (
        (["cat\\", "cat\\1.png", "dog\\new\\2.png"], ["cat/1.png", "dog/new/2.png"]),
        (["cat/1.png", "dog/a\\2.png"], ["cat/1.png", "dog/a\\2.png"]),
    ):
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
            for name in names:
                archive.writestr(name, b"" if name.endswith("\\") else image)
        files = open_zip(tmp_path / "x.zip")
        assert list(files.names) == expected and files.read(1) == image and not files.notes


def test_names_in_archives_that_begin_with_a_slash(tmp_path):
    """Messages name the archive, not a file of this machine; folders are classes as of any names."""
    images = {"/abs/cat/1.png": encoded(picture(16, 16)), "/abs/dog/2.png": b"no image"}
    with tarfile.open(tmp_path / "x.tar", "w") as tar, zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name, content in images.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
            archive.writestr(name, content)
    for path in (tmp_path / "x.tar", tmp_path / "x.zip"):
        with pytest.raises(DataError, match=rf"^{path}/abs/dog/2\.png: not an image"):
            load(path)
        assert DataConfig(path=str(path), image_size=16, validation_fraction=0.0, on_error="skip").open().spec.class_names == ("cat", "dog")


def test_a_link_to_itself_is_passed_over(tmp_path):
    """Whatever the system lists first."""
    (tmp_path / "shards").mkdir()
    write_tar(tmp_path / "shards" / "x.tar", write_folder(tmp_path / "f", ["a.png", "b.png"]))
    (tmp_path / "shards" / "x").symlink_to("x")
    (tmp_path / "f" / "x").symlink_to("x")
    assert len(load(tmp_path / "shards")) == len(load(tmp_path / "f")) == 2


def test_what_the_system_refuses_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "d").mkdir()
    readers = {"x.tar": open_tar, "x.zip": open_zip, "x.npy": array_file, "x.npz": read_latent_file}
    for name in readers:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=r"xxx: cannot be looked at \(File name too long\)$"):
        load(tmp_path / ("x" * 300))
    stat, opened = os.stat, os.open

    def refused(path: object, *given: object, **named: object) -> object:
        if str(path).endswith(("/d/.", *readers)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return (opened if given else stat)(path, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(patterns.os, "stat", refused)
    with pytest.raises(DataError, match=r"/d: cannot be looked at \(Permission denied\)$"):
        load(tmp_path / "d")
    monkeypatch.setattr(patterns.os, "stat", stat)
    monkeypatch.setattr(os, "open", refused)
    for name, read in readers.items():
        with pytest.raises(DataError, match=rf"{name}: cannot be read \(Permission denied\)$"):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a/B.PNG", ".png"), ("a.b/c", ""), (".png", ""), ("a/.png", ""), ("x.", ""), ("x.tar.gz", ".gz"), ("a.b/c.d.e", ".e"), ("/", "")],
)
def test_endings(name, expected):
    assert ending(name) == expected


# Numbers and names in headers


def test_sizes_of_an_idx_file_beyond_64_bits(tmp_path):
    """2^32 - 1 images of 2^31 x 2 pixels: as numbers of 64 bits their product is negative, or small."""
    for shape in ((2**31, 2**31, 4), (2**32 - 1, 2**31, 2)):
        (tmp_path / "train-images-idx3-ubyte").write_bytes((2051).to_bytes(4) + b"".join(n.to_bytes(4) for n in shape))
        with pytest.raises(DataError, match=rf"0 bytes of data where its header says {'x'.join(map(str, shape))}"):
            load(tmp_path, source="mnist")


@pytest.mark.parametrize(
    "text", ["{'descr': '|u1', 'fortran_order': False, 'shape': ((((((", "(" * 5000, "{'shape': 'x'", "[" * 5000 + "]" * 5000]
)
@pytest.mark.parametrize("archive", [False, True])
def test_the_header_of_an_array_that_is_not_closed(tmp_path, text, archive):
    data = b"\x93NUMPY\x01\0" + min(len(text), 9000).to_bytes(2, "little") + text.encode()[:9000]
    path = tmp_path / ("x.npz" if archive else "x.npy")
    if archive:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("arr_0.npy", data)
    else:
        path.write_bytes(data)
    with pytest.raises(DataError, match=r"x\.np[yz]: ") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_an_archive_of_arrays_that_is_named_npy(tmp_path):
    np.savez(tmp_path / "x.npz", np.zeros((2, 16, 16, 3), np.uint8))
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    with pytest.raises(DataError, match=r"x\.npy: "):
        load(tmp_path / "x.npy")


def test_compressed_idx_files_are_read_as_before(tmp_path):
    values = np.arange(5 * 28 * 28, dtype=np.uint64).astype(np.uint8).reshape(5, 28, 28)
    header = (2051).to_bytes(4) + b"".join(n.to_bytes(4) for n in values.shape)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + values.tobytes()))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress((2049).to_bytes(4) + (5).to_bytes(4) + bytes(5)))
    images = DataConfig(path=str(tmp_path), image_size=28, validation_fraction=0.0).open().train
    np.testing.assert_array_equal(images.batch(np.arange(5)).images[..., 0], values)
