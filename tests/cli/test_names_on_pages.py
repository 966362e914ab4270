"""What pages name in passing is there: flags, verbs, objects of Python, files, scripts of benchmarks, pictures."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest
from torch.distributed.run import get_args_parser

from triptych import cli, interop
from triptych.cli.main import VERBS
from triptych.cli.settings import flag_name, flags_of
from triptych.core.config import Config
from triptych.evaluation.bits_per_dim import BitsPerDimConfig
from triptych.interop.flags import OriginalFlag
from triptych.interop.guided_diffusion.flags import SCRIPTS
from triptych.recipes.catalogue import load_recipe, recipes

from . import test_documentation as documentation
from .test_documentation import PAGES, ROOT, unfenced

BENCHMARKS = {path.name: path.read_text("utf-8") for path in sorted((ROOT / "benchmarks").glob("*.py"))}
HELPERS = [ROOT / "benchmarks/README.md", *sorted((ROOT / "tests").rglob("*.md"))]
"""Pages for those who work on the code."""
NO_FLAGS = {"--lr", "--epochs", "--gpus", "--n_level", "--num_ch", "--signal"}
"""Words of other programs of which a page says how they are answered, beginnings of flags, and a flag of sbatch."""
NO_RECIPES = {"adm-unet", "edm-skewed", "mean-iou"}
"""Values of settings, and a metric, that begin as recipes do."""


def spans(page: Path) -> list[str]:
    """The code within the sentences of a page, and its indented commands."""
    text = unfenced(page)
    return re.findall(r"`([^`\n]+)`", text) + re.findall(r"^    (triptych .+)$", text, flags=re.MULTILINE)


def modules_of(package: ModuleType) -> Iterator[ModuleType]:
    """All modules of a package, and of its folders."""
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(found.name)


def flags_of_class(options: type[Config]) -> set[str]:
    """Those of its fields; of its sections too, where it can be made of nothing."""
    required = any(field.default is MISSING and field.default_factory is MISSING for field in fields(options))
    return {flag_name(field.name) for field in fields(options)} if required else {flag.name for flag in flags_of(options())}


@cache
def known_flags() -> frozenset[str]:
    """Those of verbs, recipes, translations and encodings, of torchrun, and of the programs whose flags are taken."""
    options = {value for module in modules_of(cli) for value in vars(module).values() if isinstance(value, type)}
    own = {flag for value in {*options, BitsPerDimConfig} if issubclass(value, Config) for flag in flags_of_class(value)}
    for recipe in map(load_recipe, recipes()):
        built = get_type_hints(type(recipe.model).build)["return"]
        parts = [getattr(place, name, None) for place in (recipe.model, built) for name in ("sampling", "translation", "encoding")]
        own |= {flag.name for part in (recipe, *parts) if isinstance(part, Config) for flag in flags_of(part)}
    tables = [value for module in modules_of(interop) for value in vars(module).values() if isinstance(value, Mapping)]
    tables += [script.flags() for script in SCRIPTS.values()]
    others = {f"--{name}" for table in tables for name, flag in table.items() if isinstance(flag, OriginalFlag)}
    return frozenset({*own, *others, *get_args_parser()._option_string_actions, "--from", "--with", "--help", "--debug", "--version"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_that_are_named_in_a_sentence_exist(page: Path) -> None:
    own = [span for span in spans(page) if "benchmarks/" not in span]
    named = {flag: span for span in own for flag in re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", span)}
    unknown = {flag: span for flag, span in named.items() if flag.replace("--no-", "--").replace(".no-", ".") not in known_flags()}
    assert unknown.keys() <= NO_FLAGS, unknown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_verbs_that_are_named_in_a_sentence_exist(page: Path) -> None:
    """But for the one that docs/adding-a-verb.md adds."""
    for verb in (found for span in spans(page) for found in re.findall(r"^triptych ([a-z][\w-]*)", span)):
        assert verb in VERBS or (page.stem == "adding-a-verb" and verb == "nearest"), verb


@pytest.mark.parametrize("page", [*PAGES, ROOT / "benchmarks/README.md"], ids=lambda page: page.name)
def test_recipes_that_are_named_in_a_sentence_exist(page: Path) -> None:
    families = {name.partition("-")[0] for name in recipes()}
    named = {span for span in spans(page) if re.fullmatch(r"\w+(-\w+)+", span) and span.partition("-")[0] in families}
    assert named <= {*recipes(), *NO_RECIPES}, named - {*recipes()}


@pytest.mark.parametrize("page", [*PAGES, *HELPERS], ids=lambda page: page.name)
def test_what_a_page_names_of_the_package_and_of_the_checkout_is_there(page: Path) -> None:
    """Files that docs/adding-*.md make are not."""
    for span in spans(page):
        if re.fullmatch(r"triptych(\.\w+)+(\(.*)?", span):
            pkgutil.resolve_name(span.partition("(")[0])
        if re.fullmatch(r"(src|tests|docs)/[\w./*-]+", span) and not page.name.startswith("adding-"):
            assert list(ROOT.glob(span.rstrip("/"))), span


@pytest.mark.parametrize("page", HELPERS, ids=lambda page: page.parent.name)
def test_links_of_pages_for_developers_lead_somewhere(page: Path) -> None:
    documentation.test_links_lead_somewhere(page)


def test_links_of_results_lead_somewhere() -> None:
    results = list((ROOT / "benchmarks/results").glob("*.md"))
    assert len(results) > 50
    for page in results:
        documentation.test_links_lead_somewhere(page)


def test_each_script_of_the_benchmarks_is_on_their_page() -> None:
    named = set(re.findall(r"`(\w+\.py)`", (ROOT / "benchmarks/README.md").read_text("utf-8")))
    assert named == set(BENCHMARKS)


def test_flags_of_scripts_that_are_shown_exist() -> None:
    """On pages, and at the head of the scripts themselves, over several lines where these end with a backslash."""
    texts = [page.read_text("utf-8") for page in [*PAGES, ROOT / "benchmarks/README.md"]] + list(BENCHMARKS.values())
    shown = re.findall(r"benchmarks/(\w+\.py)([^`\n]*)", "\n".join(texts).replace("\\\n", " "))
    assert len(shown) > 100
    for script, rest in shown:
        helpers = [f"{name}.py" for name in re.findall(r"^from (\w+) import", BENCHMARKS[script], flags=re.MULTILINE)]
        code = "".join(BENCHMARKS.get(name, "") for name in (script, *helpers))
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", rest.partition(" --flags ")[0]):
            assert f'"{flag}"' in code, (script, flag)


def test_each_picture_of_the_pages_is_shown_on_one() -> None:
    link = re.compile(r"!\[[^]]*\]\(([^)\s]+)\)")
    shown = {(page.parent / target).resolve() for page in PAGES for target in link.findall(page.read_text("utf-8"))}
    pictures = {path for folder in ("docs/images", "docs/methods/images") for path in (ROOT / folder).iterdir()}
    assert len(pictures) > 20 and shown == pictures


@pytest.mark.parametrize(
    "wrong", ["--data.no-such", "sample RUN --mixed-at 8", "triptych drawn RUN", "adm-digit", "triptych.runs.drawn", "src/triptych/none.py"]
)
def test_names_of_nothing_are_noticed(wrong: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"`{wrong}` and `triptych sample RUN --mix-at 8`\n")
    with pytest.raises((AssertionError, AttributeError)):
        test_flags_that_are_named_in_a_sentence_exist(page)
        test_verbs_that_are_named_in_a_sentence_exist(page)
        test_recipes_that_are_named_in_a_sentence_exist(page)
        test_what_a_page_names_of_the_package_and_of_the_checkout_is_there(page)
