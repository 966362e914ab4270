"""The command: what it imports, its messages and its exit codes."""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.abc
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy
import pytest

import triptych
import triptych.__main__ as entry
from triptych.cli import main as cli
from triptych.cli import synonyms
from triptych.core.errors import CheckpointError, ConfigError, DataError, RunError, Stopped

from .conftest import FakeRuns


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "triptych", *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["recipes"], ["runs", "."], ["train", "--help"], ["sample", "--help"], ["data", "--help"], ["trian"]],
)
def test_answers_at_once_without_heavy_imports(arguments: list[str]) -> None:
    code = (
        "import sys; from triptych.cli.main import main; main(sys.argv[1:]); "
        "print('heavy:', sorted({'torch', 'numpy', 'tyro', 'rich', 'PIL', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "heavy: []", done


REFUSED = [
    ("sample none", "no run in none: there is no config.json"),
    ("translate none images", "no run in none: there is no config.json"),
    ("evaluate none", "no run in none: there is no config.json"),
    ("encode none images", "no run in none: there is no config.json"),
    ("export none --to diffusers --out a", "no run in none: there is no config.json"),
    ("sample .", "no run in .: there is no config.json"),
    ("sample ''", "got '' where the run directory is expected; usage: triptych sample RUN [--count N] [--out FILE]"),
    ("sample README.md", "README.md is a file: give the folder of the run"),
    ("report .", "no run in .: there is no config.json"),
    ("evaluate none --metrics kid", "none: does not exist; expected a run, or images: a folder, .zip, .tar, .npz or .npy"),
    ("evaluate . --reference none", "none: does not exist (--reference)"),
    (
        "evaluate .",
        "--reference: missing: . is no run, and images are measured against others (--metrics is alone needs none)",
    ),
    ("data stats none --out a.npz", "none: does not exist; expected a folder, .zip, .tar, .npz or .npy of images"),
    ("train adm-photos64 --data.path none", "none: does not exist (data.path)"),
]


def test_what_is_not_there_is_refused_without_heavy_imports() -> None:
    code = """
import shlex, sys
from triptych.cli.main import main
for line in sys.argv[1:]:
    assert main(shlex.split(line)) == 2
print('heavy:', sorted({'torch', 'numpy', 'tyro', 'rich', 'PIL', 'matplotlib'} & set(sys.modules)))
"""
    lines = [line for line, _ in REFUSED]
    done = subprocess.run([sys.executable, "-c", code, *lines], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines() == [f"triptych: error: {message}" for _, message in REFUSED]
    assert done.stdout == "heavy: []\n"


@pytest.mark.parametrize("verb", ["evaluate", "sample", "report", "train"])
def test_a_name_that_is_too_long_is_what_was_given(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "./" + "a" * 300]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "ile name too long" in error


@pytest.mark.parametrize(("rank", "own", "lines"), [("0", "0", 1), ("3", "1", 0), ("2", "0", 1)])
def test_of_several_processes_the_first_of_each_machine_says_a_mistake_in_the_command(rank: str, own: str, lines: int) -> None:
    """Data may be missing on one machine alone."""
    environment = os.environ | {"TORCHELASTIC_RUN_ID": "x", "RANK": rank, "LOCAL_RANK": own, "WORLD_SIZE": "4"}
    command = [sys.executable, "-m", "triptych", "train", "adm-digitz"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == lines and done.stdout == "", done


@pytest.mark.slow
def test_a_run_is_opened_without_the_compiler() -> None:
    """Nor is it needed for a model whose weights are still to come, one of each class, for loading them, or for a step of an optimizer."""
    code = """
import sys, torch
from tests.contract.small_data import full_spec
from triptych.engine.config import OptimConfig
from triptych.engine.optim import make_optimizer
from triptych.recipes.catalogue import load_recipe
from triptych.runs.stored import outline
from triptych.runs.weights import load_weights
for name in sys.argv[1:]:
    recipe = load_recipe(name)
    model = outline(recipe, full_spec(recipe.data))
load_weights(model, {name: torch.zeros(tensor.shape) for name, tensor in model.state_dict().items()})
for name in ('adam', 'adamw', 'adamax', 'adamax-glow'):
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = make_optimizer({'weight': weight}, OptimConfig(name=name), device=torch.device('cpu'))
    weight.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert weight.tolist() < [0, 0]
    optimizer.load_state_dict(optimizer.state_dict())
print('heavy:', sorted({'torch._dynamo', 'sympy', 'tyro', 'rich'} & set(sys.modules)))
"""
    names = ["glow-mnist", "spade-coco256", "pix2pixhd-cityscapes", "unit-mnist", "munit-mnist", "funit-omniglot", "coco-funit-omniglot"]
    names += ["adm-digits", "adm-cifar10-vlb", "classifier-digits", "upsample-digits", "edm-cifar10", "edm-imagenet64", "edm2-digits"]
    names += ["flow-digits", "mean-flow-digits", "dit-b-2", "sit-b-2", "autoencoder-photos", "r3gan-cifar10"]
    names += ["stylegan2-cifar10", "vid2vid-maps64"]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "heavy: []\n", done


def test_help_lists_the_verbs_and_each_has_help() -> None:
    shown = run("--help")
    assert shown.returncode == 0 and shown.stderr == ""
    for verb in cli.VERBS:
        assert f"triptych {verb} " in shown.stdout
        own = run(verb, "--help")
        assert own.returncode == 0 and own.stdout.startswith(f"usage: triptych {verb}"), own


def test_help_of_a_command_may_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    pages = list[str]()
    several = (["help", "data", "person"], ["data", "person", "--help"])
    for words in (["help", "runs"], ["runs", "--help"], ["help"], ["--help"], ["help", "--help"], *several):
        assert cli.main(words) == 0
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1] != pages[2] == pages[3] == pages[4] and pages[5] == pages[6]


def test_words_for_commands_name_some_that_are_there() -> None:
    for words, target in synonyms.VERBS:
        assert target.split()[0] in {*cli.VERBS, "--version"} and not set(words.split()) & set(cli.VERBS)


def test_version() -> None:
    assert run("--version").stdout == f"triptych {triptych.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["trian", "x"], 'unknown command "trian"; did you mean "train"? (triptych --help lists the commands)'),
        (["--verion"], 'unknown option "--verion"; did you mean "--version"? (triptych --help lists the commands)'),
        (["version"], 'unknown command "version"; did you mean "--version"? (triptych --help lists the commands)'),
        (["doctor", "x"], 'unknown command "doctor"; did you mean "data doctor"? (triptych --help lists the commands)'),
        (["list"], 'unknown command "list"; did you mean "runs"? (triptych --help lists the commands)'),
        (["frobnicate"], 'unknown command "frobnicate" (triptych --help lists the commands)'),
        (["help", "trian"], 'unknown command "trian"; did you mean "train"? (triptych --help lists the commands)'),
        (["train"], "no recipe given; usage: triptych train RECIPE [--run DIR] [settings] (triptych recipes lists them)"),
        (["train", ""], "got '' where the recipe is expected; usage: triptych train RECIPE [--run DIR] [settings]"),
        (["train", "--run", "x"], "got '--run' where the recipe is expected; usage: triptych train RECIPE [--run DIR] [settings]"),
        (["sample"], "no run given; usage: triptych sample RUN [--count N] [--out FILE]"),
        (["recipes", "a", "b"], "got 'a b', expected the name of one recipe or nothing"),
        (["export", "run", "--to", "diffusers", "--out", " "], "--out: got ' ', expected more than blanks"),
        (["export", "run", "--to=diffusers", "--out=\t "], "--out: got '\\t ', expected more than blanks"),
        (["train", " ", "--run", "x"], "got ' ', expected more than blanks"),
        (["translate", "run", " "], "got ' ', expected more than blanks"),
        (["imaginaire", "--config", "a.yaml", "--logdir", " "], "--logdir: got ' ', expected more than blanks"),
    ],
)
def test_user_errors_are_one_line_and_exit_code_2(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert capsys.readouterr() == ("", f"triptych: error: {line}\n")


def test_nothing_given_shows_the_help_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert capsys.readouterr().err.startswith("usage: triptych")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("train.batch_size", "too large"), 2, "triptych: error: --train.batch-size: too large\n"),
        (DataError("a.png cannot\nbe read"), 2, "triptych: error: a.png cannot be read\n"),
        (CheckpointError("damaged"), 2, "triptych: error: damaged\n"),
        (RunError("the loss is not finite"), 1, "triptych: error: the loss is not finite\n"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "triptych: error: [Errno 28] No space left on device\n"),
        (
            PermissionError(errno.EACCES, "Permission denied", "a/b"),
            2,
            "triptych: error: a/b: Permission denied; give another place, or change who may use this one\n",
        ),
        (
            PermissionError(errno.EPERM, "Operation not permitted", "a", None, b"b"),
            2,
            "triptych: error: a and b: Operation not permitted; give another place, or change who may use this one\n",
        ),
        (OSError(errno.EROFS, "Read-only file system", Path("x")), 2, "triptych: error: x: Read-only file system; give another place\n"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "xx"), 2, "triptych: error: xx: File name too long\n"),
        (
            OSError(errno.EACCES, "Permission denied"),
            2,
            "triptych: error: Permission denied; give another place, or change who may use this one\n",
        ),
        (
            MemoryError("Unable to allocate 9 TiB"),
            1,
            "triptych: error: not enough memory (Unable to allocate 9 TiB): ask for less at once\n",
        ),
        (KeyboardInterrupt(), 130, "triptych: interrupted\n"),
    ],
)
def test_errors_of_a_run(error: BaseException, code: int, line: str, fake_runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    fake_runs.error = error
    assert cli.main(["train", "toy"]) == code
    assert capsys.readouterr().err == line


def test_debug_shows_where_the_error_arose(fake_runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    fake_runs.error = RunError("the loss is not finite")
    assert cli.main(["train", "toy", "--debug"]) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown and shown.endswith("triptych: error: the loss is not finite\n")


def test_a_defect_keeps_its_traceback(fake_runs: FakeRuns) -> None:
    fake_runs.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        cli.main(["train", "toy"])


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["recipes"], ["train", "adm-digits", "--help"]])
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    code = "import os, sys; os.close(1); r, w = os.pipe(); os.close(r); sys.stdout = os.fdopen(w, 'w'); " + (
        "from triptych.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("command", "code", "line"),
    [
        ("nonsense 2>/dev/full", 2, ""),
        ("nonsense 2>&-", 2, ""),
        ("nonsense >&- 2>&-", 2, ""),
        ("--version >&-", 0, ""),
        ("--version >/dev/full", 1, "triptych: error: [Errno 28] No space left on device: 'standard output'\n"),
    ],
)
def test_an_output_that_takes_nothing_leaves_the_exit_code(command: str, code: int, line: str) -> None:
    if "/dev/full" in command and not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    shell = ["sh", "-c", f'"$0" -m triptych {command}', sys.executable]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", line)


def test_names_of_the_api_are_there() -> None:
    """They are imported when they are asked for."""
    from triptych import runs

    assert sorted(name for names in runs._MODULES.values() for name in names) == runs.__all__
    assert all(callable(getattr(runs, name)) for name in runs.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        getattr(runs, "nothing")  # noqa: B009


@pytest.mark.parametrize("verb", ["train", "sample"])
def test_sigterm_ends_a_verb_as_ctrl_c_does(
    verb: str, fake_runs: FakeRuns, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What takes time is closed, and the exit code and the line are those of an interruption."""
    closed = []

    def working(*given: object, **named: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            closed.append(verb)

    monkeypatch.setattr(sys.modules["triptych.runs"], "train" if verb == "train" else "open_run", working)
    before = signal.getsignal(signal.SIGTERM)
    assert cli.main([verb, "toy"]) == 130
    assert closed == [verb] and signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().err == "triptych: interrupted by SIGTERM\n"


class Interrupting(importlib.abc.MetaPathFinder):
    """Ctrl-C while a module is imported."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == self._name:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("rank", "said"), [("0", "triptych: interrupted\n"), ("1", "")])
def test_ctrl_c_while_the_command_is_imported(
    rank: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.delitem(sys.modules, "triptych.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupting("triptych.cli.main"), *sys.meta_path])
    assert entry.main() == 130
    assert capsys.readouterr().err == said


def test_all_that_the_command_imports_is_imported_where_ctrl_c_is_caught() -> None:
    code = "import sys; before = set(sys.modules); import triptych.__main__; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "['__future__', 'triptych', 'triptych.__main__']\n", done
    scripts = tomllib.loads((Path(triptych.__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert scripts == {"triptych": "triptych.__main__:main"}


@pytest.mark.parametrize(("name", "said"), [("SIGINT", "interrupted"), ("SIGTERM", "interrupted by SIGTERM")])
def test_a_signal_waits_for_the_import_of_numpy(
    name: str, said: str, fake_runs: FakeRuns, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """PyTorch, which may be what imports it, goes on with half of it where it is cut short."""
    (tmp_path / "cut_short.py").write_text(
        f"import os, signal, time\nos.kill(os.getpid(), signal.{name})\ntime.sleep(0.01)\nwhole = True\n"
    )
    monkeypatch.setattr(numpy, "__path__", [*numpy.__path__, str(tmp_path)])
    monkeypatch.setattr(numpy, "cut_short", None, raising=False)
    monkeypatch.delitem(sys.modules, "numpy.cut_short", raising=False)
    imported = []

    def working(*given: object, **named: object) -> None:
        with contextlib.suppress(BaseException):
            imported.append(importlib.import_module("numpy.cut_short").whole)
        time.sleep(10)

    monkeypatch.setattr(sys.modules["triptych.runs"], "train", working)
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert cli.main(["train", "toy"]) == 130 and imported == [True]
    finally:
        signal.signal(signal.SIGINT, ignored)
    assert capsys.readouterr().err == f"triptych: {said}\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_ends_the_import_of_another_module_at_once(
    fake_runs: FakeRuns, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "cut_short_at_once.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(0.05)\n")
    monkeypatch.syspath_prepend(tmp_path)
    imported = []

    def working(*given: object, **named: object) -> None:
        imported.append(importlib.import_module("cut_short_at_once"))
        time.sleep(10)

    monkeypatch.setattr(sys.modules["triptych.runs"], "train", working)
    assert cli.main(["train", "toy"]) == 130 and imported == []
    assert capsys.readouterr().err == "triptych: interrupted by SIGTERM\n"


def test_an_interruption_is_told_by_the_first_process_alone(
    fake_runs: FakeRuns, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_runs.error = Stopped("interrupted; the run is saved at 640 images")
    assert cli.main(["train", "toy"]) == 130
    assert capsys.readouterr().err == "triptych: interrupted; the run is saved at 640 images\n"
    monkeypatch.setenv("RANK", "1")
    assert cli.main(["train", "toy"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ["train", "glow-digits", "--run", "s3://b/run", "--train.total-images", "8", "--train.batch-size", "8"],
            "--run: got s3://b/run, an address; expected a path on this machine",
        ),
        (
            ["data", "doctor", ".", "--page", "s3://b/page.html"],
            "--page: got s3://b/page.html, an address; expected a path on this machine",
        ),
        (["sample", "s3://b/run"], "s3://b/run: an address, where a path on this machine is expected; copy what lies there here"),
        (["train", "s3://b/run"], "s3://b/run: an address, where a path on this machine is expected; copy what lies there here"),
    ],
)
def test_runs_lie_on_this_machine(
    command: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(command) == 2
    assert capsys.readouterr().err == f"triptych: error: {said}\n" and not list(tmp_path.iterdir())
