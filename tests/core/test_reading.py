"""What strangers may have written: settings, JSON and names made to do harm."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from triptych.core.batch import DataSpec, InputSpec
from triptych.core.config import Config, config
from triptych.core.errors import ConfigError, DataError, one_line, printable
from triptych.core.reading import parsed_json, sha256_of, user_path
from triptych.core.tensors import load_tensors


@config
class Part(Config):
    """A section."""

    rate: float = 1.0
    "A rate."


@config
class Faster(Part):
    """Another one."""


@config
class Whole(Config):
    """A configuration with one field of each kind."""

    count: int = 1
    "A number."
    rate: float | None = 1.0
    "A rate."
    rates: tuple[float, ...] = ()
    "Rates."
    part: Part = Part()
    "A section."


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("values", "setting", "message"),
    [
        ({"rate": 10**400}, "rate", r"got 1000.*\.\.\., expected a finite number"),
        ({"rates": [1.0, -(10**400)]}, "rates", "expected a finite number"),
        ({"rate": math.inf}, "rate", "got inf, expected a finite number"),
        ({"rates": [math.nan]}, "rates", "got nan, expected a finite number"),
        ({"count": 10**400}, "count", r"got 1000.*\.\.\., expected a whole number of at most 64 bits"),
        ({"count": 2**63}, "count", "expected a whole number of at most 64 bits"),
        ({"count": 16**5000}, "count", "something of type int that is too long to show"),
        ({"count": nested(20_000)}, "count", "something of type list that is too long to show, expected a whole number"),
        ({"count": "x" * 10**6}, "count", r"got 'x{199}\.\.\., expected a whole number"),
        ({"part": {"kind": ["a"]}}, "part.kind", r"got \['a'\], expected text"),
        ({"part": {"kind": {}}}, "part.kind", r"got \{\}, expected text"),
        ({"part": {"kind": 10**400}}, "part.kind", "expected text"),
        ({"part": {"kind": None}}, "part.kind", "got None, expected text"),
        ({"part": {"kind": "triptych.core.\0"}}, "part.kind", r"unknown 'triptych\.core\.\\x00'"),
        ({"part": {"kind": "triptych.."}}, "part.kind", r"unknown 'triptych\.\.'"),
        ({"part": {"kind": "triptych." + "x" * 5000}}, "part.kind", r"unknown 'triptych\.x+\.\.\."),
    ],
)
def test_values_that_no_setting_can_have(values, setting, message):
    with pytest.raises(ConfigError, match=message) as caught:
        Whole.from_dict(values)
    assert caught.value.setting == setting
    assert len(str(caught.value)) < 500


def test_values_at_the_edge():
    kind = f"{__name__}:Faster"
    made = Whole.from_dict({"count": 2**63 - 1, "rate": 3e38, "rates": [2], "part": {"kind": kind}})
    assert (made.count, made.rate, made.rates, type(made.part).__name__) == (2**63 - 1, 3e38, (2.0,), "Faster")


@pytest.mark.parametrize("num_classes", [-1, 0, 10**12])
def test_numbers_of_classes(num_classes):
    with pytest.raises(ConfigError, match=rf"num_classes: got {num_classes}, expected 1 to 1,048,576"):
        DataSpec(image_size=8, channels=1, num_classes=num_classes)
    with pytest.raises(ConfigError, match=rf"num_classes: got {num_classes}, expected 1 to 1,048,576"):
        InputSpec(name="labels", kind="labels", num_classes=num_classes)


def test_names_of_classes_go_with_their_number():
    with pytest.raises(ConfigError, match="class_names: .*expected one for each of 3 classes"):
        DataSpec(image_size=8, channels=1, num_classes=3, class_names=("a", "b"))


@pytest.mark.parametrize("sides", [{"image_size": 10**9}, {"image_size": 8, "width": 10**9}])
def test_sides_of_images(sides):
    with pytest.raises(ConfigError, match="expected 1 to 65,536"):
        DataSpec(channels=1, **sides)


def test_json_nested_deeply():
    with pytest.raises(ValueError, match="nested too deeply") as caught:
        parsed_json("[" * 100_000)
    assert "\n" not in str(caught.value)
    assert parsed_json(json.dumps({"a": [1]})) == {"a": [1]}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with an umlaut (ü), 日本語 and an emoji 👍🏽", "plain, with an umlaut (ü), 日本語 and an emoji 👍🏽"),
        ("\x1b]0;title\x07\x1b[31mred", r"\x1b]0;title\x07\x1b[31mred"),
        ("two\nlines\rhere\tand there", r"two\nlines\rhere\tand there"),
        ("\x9b31m \x7f", r"\x9b31m \x7f"),
        ("\u202egpj.exe\u2066 \u2028", r"\u202egpj.exe\u2066 \u2028"),
        (b"caf\xe9.png".decode("utf-8", "surrogateescape"), r"caf\xe9.png"),
        ("\ud800", r"\ud800"),
    ],
)
def test_control_characters_are_shown_as_escapes(text, shown):
    assert printable(text) == shown
    assert printable(shown) == shown


def test_paths_of_users(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/a") == tmp_path / "a"
    assert user_path(Path("b")) == Path("b")
    with pytest.raises(DataError, match="^~nosuchuser/a: there is no home folder of that user; write the path out$"):
        user_path("~nosuchuser/a")
    with pytest.raises(DataError, match="no path has a zero byte in it"):
        user_path("a\0b")


def test_what_another_library_says_is_cut_to_a_line() -> None:
    assert one_line(ValueError("a\n  b")) == "a b" and one_line(ValueError("")) == "ValueError"
    assert one_line(ValueError("x" * 300)) == "x" * 300
    assert one_line(ValueError("x" * 301)) == "x" * 300 + "..."


def test_tensors_in_a_folder_whose_name_is_not_utf8(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    save_file({"a": torch.arange(3)}, tmp_path / "plain")
    (tmp_path / "plain").rename(folder / "a.safetensors")
    assert load_tensors(folder / "a.safetensors")["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(("refused", "kind"), [("absent/a", FileNotFoundError), ("", OSError)])
def test_what_pytorch_says_of_a_file_that_it_cannot_map_is_an_error_of_the_disk(tmp_path, monkeypatch, refused, kind):
    path, from_file = tmp_path / "a.safetensors", torch.UntypedStorage.from_file
    save_file({"a": torch.arange(3)}, path)
    monkeypatch.setattr(torch.UntypedStorage, "from_file", lambda *given, **named: from_file(str(tmp_path / refused), False, 8))
    with pytest.raises(kind) as caught:
        load_tensors(path)
    assert caught.value.errno in (errno.ENOENT, errno.ENODEV) and caught.value.filename == str(path)


def test_sha256_of_a_file(tmp_path: Path) -> None:
    """The example of FIPS 180-2."""
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256_of(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with pytest.raises(IsADirectoryError):
        sha256_of(tmp_path)
