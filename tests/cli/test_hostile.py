"""Names, settings and files made to do harm, as the commands meet them: one line, which steers no terminal."""

from __future__ import annotations

import ast
import json
import os
import re
import warnings
from pathlib import Path

import pytest

from tests.data.pictures import encoded, picture
from triptych.cli import main as command
from triptych.cli.main import main
from triptych.core.errors import DataError

CLI = Path(command.__file__).parent
STEERING = "\x1b]0;owned\x07\x1b[2J\n\x9b31m"


def one_line(capsys: pytest.CaptureFixture[str], *, code: int, arguments: list[str]) -> str:
    """The line of an error, which is all that is said."""
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("triptych: error: ")
    return err


def test_names_do_not_steer_the_terminal(tmp_path, capsys):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / f"{STEERING}.png").write_bytes(b"no image")
    (folder / "b.png").write_bytes(encoded(picture(16, 16)))
    line = one_line(
        capsys,
        code=2,
        arguments=["train", "adm-digits", "--run", str(tmp_path / "run"), "--data.path", str(folder), "--data.image-size", "16"],
    )
    assert line.rstrip("\n").isprintable()
    assert r"\x1b]0;owned\x07\x1b[2J" in line and "not an image that can be read" in line


def test_warnings_do_not_steer_the_terminal(monkeypatch, capsys):
    monkeypatch.setattr(command, "_dispatch", lambda given: warnings.warn(STEERING, stacklevel=1) or 0)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["recipes"]) == 0
    assert capsys.readouterr().err == "triptych: warning: \\x1b]0;owned\\x07\\x1b[2J\\n\\x9b31m\n"


@pytest.mark.parametrize("name", [STEERING, "\udcff\udcfe"])
def test_errors_are_printable_in_any_encoding(monkeypatch, capsys, name):
    def refuse(given: list[str]) -> int:
        raise DataError(f"{name}: cannot be used")

    monkeypatch.setattr(command, "_dispatch", refuse)
    line = one_line(capsys, code=2, arguments=["sample"])
    assert line.rstrip("\n").isprintable()
    line.encode()


def test_everything_that_commands_say_goes_through_one_function():
    calls = [
        path.name
        for path in CLI.glob("*.py")
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("print", "sys.stdout.write", "sys.stderr.write")
    ]
    assert calls == ["output.py"]


def test_what_commands_say_is_printable(capsys):
    from triptych.cli.output import show, show_page

    show(f"draw from it: {STEERING}")
    show_page("usage:\n  a \x1b[31mpage")
    assert capsys.readouterr().out == "draw from it: \\x1b]0;owned\\x07\\x1b[2J\\n\\x9b31m\nusage:\n  a \\x1b[31mpage\n"


# Settings in files


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "[" * 100_000, "a.json is not JSON: nested too deeply"),
        ("a.json", '{"train": ' * 900 + "1" + "}" * 900, "a.json"),
        ("a.json", '{"data": {"path": ' + "[" * 900 + "]" * 900 + "}}", "a.json"),
        ("a.json", '{"optim": {"learning_rate": 1' + "0" * 400 + "}}", r"optim.learning_rate: got 1000.*expected a finite number"),
        ("a.json", '{"optim": {"learning_rate": 1e400}}', "optim.learning_rate: got inf, expected a finite number"),
        (
            "a.json",
            '{"train": {"batch_size": 1' + "0" * 400 + "}}",
            "train.batch_size: got 1000.*expected a whole number of at most 64 bits",
        ),
        ("a.json", '{"train": {"batch_size": 1' + "0" * 5000 + "}}", "a.json is not JSON: Exceeds the limit"),
        (
            "a.json",
            '{"format": 1, "spec": {}, "model": {}}',
            "a.json is a run's own file; give one of settings, or go on with",
        ),
        ("a.json", '{"model": {"sampling": {"threshold": 1e39}}}', r"threshold: got 1e\+39, expected a positive number, at most 1e6"),
        ("a.json", '{"data": {"anchor_size": 4294967296}}', "anchor_size: got 4294967296, expected from 1 to 16384, or nothing"),
        ("a.json", '{"model": {"kind": []}}', r"model.kind: got \[\], expected text"),
        ("a.json", '{"model": {"kind": {"a": 1}}}', r"model.kind: got \{'a': 1\}, expected text"),
        ("a.json", '{"model": {"network": {"num_channels": 1000000000}}}', "model.*larger than 10,000,000,000 parameters"),
        ("a.json", '{"model": {"diffusion": {"steps": 1000000000000}}}', "diffusion.steps: got 1000000000000, expected 1 to 1,000,000"),
        ("a.json", json.dumps({f"{STEERING}": 1}), r"\\x1b\]0;owned.*unknown setting"),
        ("a.json", '{"data": {"path": "~nosuchuser/images"}}', "~nosuchuser/images: there is no home folder of that user"),
        ("a.json", '{"data": {"path": "a\\u0000b"}}', r"a\\x00b: no path has a zero byte in it"),
        ("a.toml", "a = " + "[" * 100_000, "a.toml is not TOML: nested too deeply"),
        ("a.toml", "a = 1" + "0" * 5000, "a.toml is not TOML: Exceeds the limit"),
        ("a.toml", "[train]\nbatch_size = 0x1" + "0" * 5000, "train.batch_size: got something of type int that is too long to show"),
    ],
)
def test_settings_in_a_file(tmp_path, capsys, name, text, message):
    (tmp_path / name).write_text(text)
    line = one_line(capsys, code=2, arguments=["train", "adm-digits", "--run", str(tmp_path / "run"), "--config", str(tmp_path / name)])
    assert re.search(message, line), line
    assert len(line) < 1000


def test_a_file_of_settings_by_windows(tmp_path, capsys):
    (tmp_path / "a.json").write_text('{"train": {"batch_size": 0}}', encoding="utf-8-sig")
    line = one_line(capsys, code=2, arguments=["train", "adm-digits", "--run", str(tmp_path / "run"), "--config", str(tmp_path / "a.json")])
    assert "train.batch_size: got 0" in line


def test_a_file_of_settings_without_end(tmp_path, capsys):
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(2**25)
    arguments = ["train", "adm-digits", "--run", str(tmp_path / "run"), "--config", str(tmp_path / "a.json")]
    assert "larger than 16,777,216 bytes" in one_line(capsys, code=2, arguments=arguments)


# config.json of a run


def config_of_a_run(tmp_path: Path) -> dict:
    """The document of a run on the digits that has not begun."""
    from triptych.core.batch import DataSpec
    from triptych.recipes.catalogue import load_recipe
    from triptych.runs.document import RunDocument

    spec = DataSpec(image_size=16, channels=1, num_classes=10, class_names=tuple("0123456789"))
    return {"format": 1, **RunDocument(load_recipe("adm-digits"), spec, "adm-digits").to_dict()}


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("spec", "num_classes"), -1, "num_classes: got -1, expected 1 to 1,048,576, or nothing"),
        (("spec", "num_classes"), 10**12, "num_classes: got 1000000000000, expected 1 to 1,048,576"),
        (("spec", "channels"), 10**9, "channels: got 1000000000, expected 1 to 4,096"),
        (("spec", "image_size"), 10**9, "image_size: got 1000000000, expected 1 to 65,536"),
        (("spec", "class_names"), ["a"], "class_names: .*one for each of 10 classes"),
        (("spec",), [], "expected a table of settings"),
        (("model", "kind"), [1], "kind: got .1., expected text"),
        (("model", "kind"), None, "kind: got None, expected text"),
        (("model", "network", "num_channels"), 10**9, "larger than 10,000,000,000 parameters"),
        (("train", "ema_rates"), [10**400], "expected a finite number"),
        (("format",), [1], "no format number"),
        (("recipe",), {}, "recipe: expected the name of a recipe, or null"),
    ],
)
def test_the_settings_of_a_run(tmp_path, capsys, place, value, message):
    document = config_of_a_run(tmp_path)
    part = document
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    (tmp_path / "config.json").write_text(json.dumps(document))
    (tmp_path / "checkpoints").mkdir()
    line = one_line(capsys, code=2, arguments=["translate", str(tmp_path), str(tmp_path)])
    assert re.search(message, line), line
    assert "written by" not in line or f"{tmp_path / 'config.json'} (written by Triptych " in line


@pytest.mark.parametrize("text", ['{"format": 1, "model": ' + "[" * 100_000, '{"format": 1, "model": ' + '{"a": ' * 950 + "1" + "}" * 951])
def test_the_settings_of_a_run_nested_deeply(tmp_path, capsys, text):
    (tmp_path / "config.json").write_text(text)
    assert "nested too deeply" in one_line(capsys, code=2, arguments=["sample", str(tmp_path)])


@pytest.mark.parametrize("verb", ["train", "sample"])
def test_a_file_name_that_is_not_utf8(tmp_path, capsys, verb):
    """As an argument: Python keeps its bytes as surrogates."""
    name = os.fsdecode(b"caf\xe9")
    arguments = {"train": ["train", "adm-digits", "--run", str(tmp_path / "run"), "--data.path", name], "sample": ["sample", name]}[verb]
    assert r"caf\xe9" in one_line(capsys, code=2, arguments=arguments)


def test_help_does_not_steer_the_terminal(tmp_path, capsys):
    document = config_of_a_run(tmp_path)
    document["data"]["path"] = STEERING
    root = tmp_path / f"run{STEERING}"
    root.mkdir()
    (root / "config.json").write_text(json.dumps(document))
    assert main(["train", str(root), "--help"]) == 0
    out = capsys.readouterr().out
    assert "--data.path" in out and "\\x1b" in out
    assert out.replace("\n", "").isprintable()


def test_tensors_that_no_memory_holds(monkeypatch, capsys):
    import torch

    monkeypatch.setattr(command, "_dispatch", lambda given: torch.empty(2**57) and 0)
    line = one_line(capsys, code=1, arguments=["sample"])
    assert re.search(r"not enough memory \(.*allocate memory.*\): ask for less at once", line)


TINY = "--data.image-size 16 --train.total-images 8 --train.batch-size 8 --train.sample-count 3 --model.network.num-channels 32"


@pytest.mark.slow
def test_names_that_are_not_utf8_in_a_whole_run(tmp_path, capsys):
    """Of files, classes and the run: trained, logged, stored, drawn by name; and a damaged file of such a name."""
    data, names = tmp_path / "data", [b"caf\xe9", b"\x1b[31mred", b"plain"]
    for name in names:
        folder = data / os.fsdecode(name)
        folder.mkdir(parents=True)
        for k in range(4):
            (folder / os.fsdecode(b"\xff%d.png" % k)).write_bytes(encoded(picture(16, 16, seed=k)))
    run = tmp_path / os.fsdecode(b"run\xfe")
    arguments = ["train", "adm-digits", "--run", str(run), "--data.path", str(data), "--data.workers", "1", "--model.sampling.steps", "2"]
    assert main([*arguments, *TINY.split()]) == 0
    assert json.loads((run / "config.json").read_text("utf-8"))["spec"]["class_names"] == sorted(map(os.fsdecode, names))
    assert r"run\xfe" in (run / "log.txt").read_text("utf-8")
    picture_path = tmp_path / os.fsdecode(b"\xe9.png")
    assert main(["sample", str(run), "--count", "1", "--labels", os.fsdecode(names[0]), "--out", str(picture_path)]) == 0
    assert picture_path.is_file()
    assert main(["report", str(run)]) == 0 and r"run\udcfe" in (run / "report.html").read_text("utf-8")
    out, err = capsys.readouterr()
    assert r"1 image in" in out and r"\xe9.png" in out
    assert (out + err).replace("\n", "").isprintable()
    (data / os.fsdecode(names[0]) / os.fsdecode(b"\xff1.png")).write_bytes(b"damaged")
    assert main([*arguments[:3], str(tmp_path / "other"), *arguments[4:], *TINY.split()]) == 2
    assert r"caf\xe9/\xff1.png: not an image that can be read" in capsys.readouterr().err
