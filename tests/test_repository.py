"""Rules of the repository itself: versions, packages, imports."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

import triptych
from tests.conftest import lack_of, share_of

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), "exact versions, without build suffix, marker or address"
    return {name.lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)}


def test_every_dependency_of_the_set_up_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"] + project["optional-dependencies"]["logs"]
    names = {re.match(r"[\w-]+", requirement)[0].lower() for requirement in wanted} - {"triptych"}  # type: ignore[index]
    assert names <= set(pins())
    assert pins()["torch"] == "2.13.0"


def test_changelog_names_the_version_or_what_is_unreleased() -> None:
    """A version under development has entries that are unreleased; a released one has a section, and so have those before it."""
    sections = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)
    version, developed, _ = triptych.__version__.partition(".dev")
    assert sections[0] == ("Unreleased" if developed else version)
    released = [tuple(map(int, section.split("."))) for section in sections if section != "Unreleased"]
    assert released == sorted(released, reverse=True)
    assert not developed or tuple(map(int, version.split("."))) > released[0]
    assert {folder.name for folder in (ROOT / "tests/earlier").glob("[0-9]*")} <= set(sections)


def test_what_the_package_says_of_itself_is_in_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert "Typing :: Typed" in project["classifiers"] and (ROOT / "src/triptych/py.typed").is_file()
    licences = {ROOT / name for name in project["license-files"]}
    assert all(path.is_file() for path in licences)
    others = [path.with_suffix(".txt") for path in (ROOT / "src").rglob("assets/*.npz")]
    assert len(others) > 1 and licences == {ROOT / "LICENSE", *others}, "each file of others comes with the text of its licence"
    said = {"MIT": "MIT License", "BSD-2-Clause": "BSD 2-Clause licence", "CC-BY-4.0": "CC BY 4.0"}
    assert set(project["license"].split(" AND ")) == set(said)
    for text in said.values():
        assert sum(text in path.read_text("utf-8") for path in licences) == 1


def test_ci_runs_check_and_test() -> None:
    script = ROOT / ".ci/run"
    assert script.stat().st_mode & 0o111, "it has to be executable"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    text = script.read_text("utf-8")
    assert re.findall(r"^make ([\w-]+)", text, flags=re.MULTILINE) == ["check", "test", "test-slow"]
    (words,) = re.findall(r'^ONEDNN_MAX_CPU_ISA=AVX2 make test TESTS="--share=\S+ \S+ \S+ (.*)"$', text, flags=re.MULTILINE)
    assert all((ROOT / folder).is_dir() for folder in words.split())


def test_every_test_is_in_one_share() -> None:
    files = [f"{path.relative_to(ROOT)}::test" for path in (ROOT / "tests").rglob("test_*.py")]
    sizes = [sum(share_of(file, 5) == number for file in files) for number in range(5)]
    assert sum(sizes) == len(files) and min(sizes) > len(files) / 10


def test_the_faults_for_the_tests_fit_the_code() -> None:
    """A line of src that one of benchmarks/mutations.py changes was moved or rewritten: its entry has to follow."""
    assert list(runpy.run_path(str(ROOT / "benchmarks/mutations.py"))["stale"]()) == []


@pytest.mark.parametrize(
    ("mark", "lack"),
    [
        (pytest.mark.peer("json"), None),
        (pytest.mark.peer("no_such_program"), "no_such_program on PYTHONPATH"),
        (pytest.mark.real_data(ROOT), None),
        (pytest.mark.real_data(ROOT / "none"), f"the data sets in {ROOT / 'none'}"),
        (pytest.mark.slow, None),
    ],
)
def test_tests_are_left_out_for_what_they_lack(mark: pytest.MarkDecorator, lack: str | None) -> None:
    item = SimpleNamespace(iter_markers=lambda name: [mark.mark] if mark.name == name else [])
    assert lack_of(item) == lack  # type: ignore[arg-type]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def imports(path: Path) -> set[str]:
    """Every module that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


read_together = pytest.mark.xdist_group("sources")  # one process parses them


@read_together
@pytest.mark.parametrize(
    ("module", "place"),
    [
        ("tyro", "cli/"),
        ("torch.utils.tensorboard", "engine/metric_log.py"),
        ("tensorboard", "engine/metric_log.py"),
        ("wandb", "engine/metric_log.py"),
        ("matplotlib", "(nowhere)"),
        ("jinja2", "report/"),
        ("pickle", "(nowhere)"),
        ("torchvision", "(nowhere)"),
    ],
)
def test_third_party_tools_stay_in_their_place(module: str, place: str) -> None:
    assert len(SOURCES) > 20
    for path in SOURCES:
        if any(name == module or name.startswith(f"{module}.") for name in imports(path)):
            assert path.relative_to(ROOT / "src/triptych").as_posix().startswith(place), path


@read_together
def test_only_the_command_line_prints() -> None:
    for path in SOURCES:
        called = {node.func.id for node in ast.walk(tree(path)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        assert "print" not in called or "cli" in path.parts, path


@read_together
def test_modules_name_what_they_are() -> None:
    for path in SOURCES:
        if path.stat().st_size:
            assert ast.get_docstring(tree(path)), f"{path} has no docstring"
        assert path.stem not in ("utils", "helpers", "misc", "common"), path


@pytest.mark.xdist_group("group")
@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process runs all tests")
def test_groups_of_tests_stay_together(request):
    """pytest-xdist tells a group by the end of a test's id; where it is lost, shared runs are trained in each process."""
    assert request.node.nodeid.endswith("@group")
