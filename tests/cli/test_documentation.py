"""Every command in the README, CONTRIBUTING and the pages of docs is one that the program takes, and every link leads somewhere."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch.distributed.run import get_args_parser

from triptych.cli import (
    average,
    compare,
    data,
    data_doctor,
    data_draw,
    data_pack,
    data_person,
    data_points,
    data_show,
    encode,
    evaluate,
    export,
    glow,
    guided_diffusion,
    import_,
    init,
    launch,
    plan,
    report,
    sample,
    score,
    score_clips,
    train,
    translate,
)
from triptych.cli.arguments import flag_words, named_as_flags
from triptych.cli.main import VERBS, main
from triptych.core.config import Config
from triptych.core.errors import ConfigError
from triptych.diffusion.adm import EncodingConfig
from triptych.evaluation.clip_metric import CLIP_METRICS
from triptych.gans.projection import ProjectionConfig
from triptych.gans.stylegan2 import StyleGAN2Sampling
from triptych.interop.flags import parse_flags
from triptych.interop.glow.flags import FLAGS
from triptych.interop.guided_diffusion.flags import all_flags
from triptych.interop.imaginaire.flags import read_flags
from triptych.recipes.catalogue import load_recipe, recipes
from triptych.runs import training
from triptych.runs.clip_scoring import PER_FRAME
from triptych.runs.document import accept_changes
from triptych.runs.loading import LoadingKeywords
from triptych.runs.metric_names import metric_names
from triptych.runs.run import Run, open_run

from .conftest import FakeRuns

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ELSEWHERE = ("python3", "source", ".venv/bin/pip", ".venv/bin/python", "make")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[list[str]]:
    """The command lines of a page; those that only show a usage (RECIPE, RUN) are left out."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip() and not re.search(r"\b(RECIPE|RUN)\b", line):
                yield shlex.split(line, comments=True)


COMMANDS = [pytest.param(page, command, id=" ".join(command)) for page in PAGES for command in commands(page)]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_command(
    page: Path, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if command[0] == "torchrun":
        launched = get_args_parser().parse_args(command[1:])
        assert launched.module and launched.training_script == "triptych"
        command = ["triptych", *launched.training_script_args]
    if command[0] == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE)
        assert set(command[1:]) <= set(targets)
    if command[0] != "triptych":
        assert command[0] in ELSEWHERE
        return
    write_settings(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    verb, *rest = command[1:]
    assert verb in VERBS
    if verb == "recipes":
        assert main([verb, *rest]) == 0
        shown = capsys.readouterr().out
        assert all(name in shown for name in rest or recipes())
    elif "--help" in rest and verb == "train":
        assert main([verb, *rest]) == 0
        assert "--train.total-images" in capsys.readouterr().out
    elif "--help" not in rest:
        if verb == "sample" and (recipe := recipe_of(page, rest[0])) is not None:
            sample.configure(rest[0], rest[1:], sampling=load_recipe(recipe).model.sampling)  # type: ignore[attr-defined]
        else:
            TAKEN[verb](rest)


def write_settings(page: Path, folder: Path) -> None:
    """Writes the page's TOML: a block that begins with "# NAME.toml" to a file of that name, all others to settings.toml."""
    names = [re.match(r"# (\S+\.toml)\n", block) for block in blocks(page, "toml")]
    (folder / "settings.toml").write_text("\n".join(block for name, block in zip(names, blocks(page, "toml"), strict=True) if not name))
    for name, block in zip(names, blocks(page, "toml"), strict=True):
        if name:
            (folder / name[1]).write_text(block)


def recipe_of(page: Path, run: str) -> str | None:
    """The recipe that a command of the page trains this run by, where it says so."""
    trained = [command[2] for command in commands(page) if command[:2] == ["triptych", "train"] and run in command[3:]]
    return next((name for name in trained if name in recipes() and hasattr(load_recipe(name).model, "sampling")), None)


def train_takes(rest: list[str]) -> None:
    run = rest[0].startswith("runs/")
    settings = rest[1:]
    if run:
        base = train.Base(load_recipe("adm-digits"), None, Path(rest[0]))
    else:
        base, settings = train.base_and_settings(rest, usage="")
    options, config = train.configure(base, settings)
    assert (options.run is not None) != run and options.device is None
    assert config != base.config or not any(argument.startswith("--train.") for argument in rest)
    if "--train.total-images" in rest:  # a recipe's intervals may be longer than a run that a page shortens
        assert max(config.train.checkpoint_every or 0, config.train.validate_every or 0) <= config.train.total_images


def init_takes(rest: list[str]) -> None:
    assert not rest[0].startswith("-") and init.configure(rest[1:]).hours > 0


def plan_takes(rest: list[str]) -> None:
    base, settings = train.base_and_settings(rest, usage="")
    options, config = train.configure(base, settings, options=plan.PlanOptions(), verb="plan")
    assert options.json == ("--json" in rest) and config.train.total_images


def launch_takes(rest: list[str]) -> None:
    job = launch.prepared(rest)
    assert job.options.nodes and str(job.options.run) in job.text


def sample_takes(rest: list[str]) -> None:
    recipe = "glow-digits" if "glow" in rest[0] else "adm-digits"
    sampling = StyleGAN2Sampling() if "stylegan2" in rest[0] else load_recipe(recipe).model.sampling  # type: ignore[attr-defined]
    options, _ = sample.configure(rest[0], rest[1:], sampling=sampling)
    assert options.out is not None


def average_takes(rest: list[str]) -> None:
    assert average.configure(rest[0], rest[1:]).length is not None


def evaluate_takes(rest: list[str]) -> None:
    metrics = flag_words("--metrics", rest)
    if any(name in evaluate.CLIP_METRICS for name in metrics):
        assert set(score_clips.configure(rest[0], rest[1:]).metrics) <= {*CLIP_METRICS, *PER_FRAME}
        return
    if "--reference" in rest or (metrics and metrics != ["bits-per-dim"]):
        sampling = load_recipe("munit-mnist" if "munit" in rest[0] else "adm-digits").model
        settings = getattr(sampling, "sampling", None) or sampling.translation  # type: ignore[attr-defined]
        options, _ = score.configure(rest[0], rest[1:], sampling=settings if rest[0].startswith("runs/") else None)
        if metrics:
            metric_names(metrics)
        if options.sweep is not None:
            assert len(score.swept(options.sweep)[1]) > 1
        return
    measured, _ = evaluate.configure(rest[0], rest[1:], data=load_recipe("adm-digits").data)
    assert measured.metrics == ("bits-per-dim",)


def encode_takes(rest: list[str]) -> None:
    encoding = ProjectionConfig() if "stylegan2" in rest[0] else EncodingConfig()
    options, _ = encode.configure(rest[0], rest[2:], encoding=encoding)
    assert options.out is not None


def translate_takes(rest: list[str]) -> None:
    given, flags = translate.split(rest[1:])
    recipe = "fs-vid2vid-maps64" if "--finetune" in flags else "munit-mnist"
    options, _ = translate.configure(rest[0], flags, translation=load_recipe(recipe).model.translation)  # type: ignore[attr-defined]
    assert options.out is not None and options.held_out == (given is None)


def import_takes(rest: list[str]) -> None:
    options = import_.configure(rest)
    if options.program not in ("imaginaire", "nvidia", "diffusers", "sit", "dit"):
        parse_flags(options.flags or "", FLAGS if options.program == "glow" else all_flags(options.program))  # type: ignore[arg-type]


def export_takes(rest: list[str]) -> None:
    options = export.configure(rest[0], rest[1:])
    assert options.to is not None and options.out is not None


def script_takes(rest: list[str]) -> None:
    guided_diffusion.read(rest[0], rest[1:])


def data_takes(rest: list[str]) -> None:
    assert rest[0] in ("doctor", "stats", "encode", "pack", "points", "draw", "person", "show") and not rest[1].startswith("-")
    if rest[0] == "pack":
        assert data_pack.configure(rest[1:])[1].path == rest[1]
    elif rest[0] == "points":
        assert data_points.configure(rest[1:])[0] == rest[1]
    elif rest[0] == "draw":
        assert data_draw.configure(rest[1:])[0] == rest[1]
    elif rest[0] == "person":
        assert data_person.configure(rest[1:])[0] == rest[1]
    elif rest[0] == "show":
        assert data_show.configure(rest[1:])[1].data.path == rest[1]
    elif rest[0] == "doctor":
        images, looked = data_doctor.configure(rest[1:])
        assert images == rest[1] and looked.data(images).path == str(Path(images)) and looked != data_doctor.DoctorOptions()
    elif rest[0] == "stats":
        assert data.configure(rest[2:]).out is not None
    else:
        images, options = data.configure_encode(rest[1:])
        assert images == rest[1] and options.autoencoder is not None and options.out is not None


def report_takes(rest: list[str]) -> None:
    assert (report.configure(rest[0], rest[1:]).out is None) == (len(rest) == 1)


def compare_takes(rest: list[str]) -> None:
    runs, out = compare.configure(rest)
    assert runs == rest[:-2] and str(out) == rest[-1]


def recipes_takes(rest: list[str]) -> None:
    assert main(["recipes", *rest]) == 0


def runs_takes(rest: list[str]) -> None:
    Path(*rest or ["runs"]).mkdir(parents=True)
    assert main(["runs", *rest]) == 0


def glow_takes(rest: list[str]) -> None:
    glow.read(rest)


def imaginaire_takes(rest: list[str]) -> None:
    flags = read_flags(rest)
    train.configure(train.Base(load_recipe("spade-camvid"), None, Path("runs/x")), list(flags.settings))


TAKEN = {
    "train": train_takes,
    "init": init_takes,
    "plan": plan_takes,
    "launch": launch_takes,
    "sample": sample_takes,
    "average": average_takes,
    "evaluate": evaluate_takes,
    "translate": translate_takes,
    "encode": encode_takes,
    "import": import_takes,
    "export": export_takes,
    "data": data_takes,
    "report": report_takes,
    "compare": compare_takes,
    "runs": runs_takes,
    "recipes": recipes_takes,
    "guided-diffusion": script_takes,
    "glow": glow_takes,
    "imaginaire": imaginaire_takes,
}


@pytest.mark.parametrize("verb", VERBS)
def test_examples_on_a_page_of_help(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = importlib.import_module(VERBS[verb].module).USAGE
    shown = re.findall(r"^(?:example:| {8}) triptych (.+)$", page, flags=re.MULTILINE)
    assert shown
    for command in map(shlex.split, shown):
        assert command[0] == verb
        TAKEN[verb](command[1:])


def test_pages_have_commands() -> None:
    """The test above would pass on pages whose blocks it does not find."""
    assert len(COMMANDS) > 25
    assert {command.values[1][1] for command in COMMANDS if command.values[1][0] == "triptych"} == set(VERBS)  # type: ignore[index]


# Those of docs/adding-*.md have tests of their own; those of docs/methods are settings of models that the runs here do not have.
RUN_HERE = [page for page in PAGES if blocks(page, "python") and page.parent.name != "methods" and not page.name.startswith("adding-")]


@pytest.mark.parametrize("page", RUN_HERE, ids=lambda page: page.name)
def test_python_examples(page: Path, fake_runs: FakeRuns) -> None:
    for block in blocks(page, "python"):
        scope: dict[str, Any] = {}
        exec(block, scope)
        for name, function in scope.items():
            if name.startswith("adm_digits_"):
                assert function() != load_recipe("adm-digits")
    for name, given, named in fake_runs.calls:
        function = {"train": training.train, "open_run": open_run}.get(name) or partial(getattr(Run, name), None)
        signature = inspect.signature(function)
        signature.bind(*given, **named)
        assert named.keys() <= {*signature.parameters, *LoadingKeywords.__annotations__}
    if page.name == "README.md":
        assert [name for name, _, _ in fake_runs.calls] == ["train", "open_run", "sample"]


def test_the_tutorial_shows_what_is_accepted_and_what_is_refused() -> None:
    text = (ROOT / "docs/tutorial.md").read_text("utf-8")
    section = text.partition("## 3.")[2].partition("## 4.")[0]
    same, accepted, refused = (shlex.split(block) for block in re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL))
    (said,) = re.findall(r"```\n(triptych: error: .*?)\n```", section)
    base = train.base_of("adm-digits")
    changed = []
    for command in (same, accepted, refused):
        options, config = train.configure(base, command[3:])
        assert options.run == "runs/digits"
        changed.append(config)
    assert accept_changes(base.config, changed[0], directory="runs/digits") == []
    assert "train.total_images changed from" in accept_changes(base.config, changed[1], directory="runs/digits")[0]
    with pytest.raises(ConfigError) as caught, named_as_flags(changed[2]):
        accept_changes(base.config, changed[2], directory="runs/digits")
    assert said == f"triptych: error: {caught.value}"


@pytest.mark.parametrize(("page", "script"), [("glow", glow), ("guided-diffusion", guided_diffusion)])
def test_pages_of_other_command_lines_show_what_is_printed(
    page: str, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("photos", "cifar-10-batches-bin"):
        (tmp_path / folder).mkdir()
    path = ROOT / f"docs/how-to/{page}.md"
    (shown,) = re.findall(r"^    (triptych train .*) \.\.\.$", path.read_text("utf-8"), flags=re.MULTILINE)
    first = next(commands(path))
    flags = script.read(*([first[2], first[3:]] if script is guided_diffusion else [first[2:]]))
    assert shlex.join(["triptych", *next(script.commands(flags))]).startswith(shown)


def test_the_page_on_training_names_the_recipes_that_choose_their_precision() -> None:
    text = " ".join((ROOT / "docs/how-to/train.md").read_text("utf-8").split())
    listed = re.search(r"Recipes of digits and MNIST are `auto`, as are those of (.*?)\. (.*?) are float32, and so is Glow", text)
    assert listed is not None
    named, float32 = (tuple(re.findall(r"`([\w-]+)`", part)) for part in listed.groups())
    for name in recipes():
        says = re.search("digits|mnist", name) or name.startswith(named)
        assert (load_recipe(name).train.precision == "auto") == bool(says and name not in float32 and not name.startswith("glow-")), name


def test_the_page_on_networks_has_the_speeds_that_were_measured() -> None:
    page = ROOT / "docs/how-to/feature-networks.md"
    section = page.read_text("utf-8").partition("## How fast they are")[2].partition("## ")[0]
    (results,) = re.findall(r"\]\((.*?)\)", section)
    rows = [re.split(r" *\| *", line) for line in (page.parent / results).read_text("utf-8").splitlines()]
    measured = {row[1]: float(row[3]) for row in rows if len(row) == 7 and re.fullmatch(r"[\d.]+", row[3])}
    said = re.findall(r"`([\w-]+)` ([\d,]*\d)", section)
    assert len(said) > 5
    for name, speed in said:
        assert float(speed.replace(",", "")) == pytest.approx(measured[name], rel=0.1), name


def test_pages_have_the_titles_that_the_readme_links_them_by() -> None:
    table = re.findall(r"\[([^]]+)\]\((docs/[\w/-]+\.md)\)", (ROOT / "README.md").read_text("utf-8"))
    assert len(table) > 20
    for text, page in table:
        title = (ROOT / page).read_text("utf-8").partition("\n")[0]
        assert text.startswith("docs/") or text.endswith(".md") or text.lower() in title.lower() or text == "figures", (text, title)


def test_readme_lists_every_recipe() -> None:
    listed = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "README.md").read_text("utf-8"), flags=re.MULTILINE)
    assert sorted(listed) == sorted(recipes())


def settings_of(config: Config, before: str = "") -> Iterator[str]:
    """The names of all settings, those of sections too."""
    for field in fields(config):
        name, value = f"{before}{field.name}", getattr(config, field.name)
        yield name
        if isinstance(value, Config):
            yield from settings_of(value, f"{name}.")


def test_settings_that_are_named_in_a_sentence_exist() -> None:
    """Such as `train.seed`, or with fewer sections before it, `penalty.every`; but for the page with another program's settings."""
    names = {name for recipe in recipes() for name in settings_of(load_recipe(recipe))}
    known = {name.split(".", start)[-1] for name in names for start in range(name.count(".") + 1)}
    sections = {section for name in names for section in name.split(".")[:-1]}
    found = 0
    for page in PAGES:
        for name in re.findall(r"`([a-z]\w*(?:\.[a-z][\w-]*)+)(?![\w.(-])", unfenced(page) if page.stem != "imaginaire" else ""):
            if name.partition(".")[0] in sections and not name.endswith((".mdb", ".py", ".txt")):
                found += 1
                assert name.replace("-", "_") in known, (page.name, name)
    assert found > 100


PUBLISHED = {
    "spade": "spade-coco256",
    "pix2pixhd": "pix2pixhd-cityscapes",
    "vid2vid": "vid2vid-cityscapes",
    "fs_vid2vid": "fs-vid2vid-faceforensics",
    "wc_vid2vid": "wc-vid2vid-cityscapes",
}


@pytest.mark.parametrize(("page", "recipe"), PUBLISHED.items())
def test_pages_of_methods_have_the_published_settings_of_the_recipes(page: str, recipe: str) -> None:
    """Of each table of settings the numbers, "true" and "false" in its second column."""
    words, compared = {"true": True, "false": False}, 0
    for block in (ROOT / f"docs/methods/{page}.md").read_text("utf-8").split("\n\n"):
        if block.startswith("| setting | published"):
            config = load_recipe("fs-vid2vid-dancing" if "(dances)" in block.partition("\n")[0] else recipe)
            for name, said in re.findall(r"^\| `([\w.]+)` \| (true|false|\d[\d.]*)", block, flags=re.MULTILINE):
                value: Any = config if name.startswith("data.") else config.model
                for part in name.split("."):
                    value = getattr(value, part)
                compared += 1
                assert value == (words[said] if said in words else float(said)), name
    assert compared > 3


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = unfenced(page)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"https?:", target):
            place, _, anchor = target.partition("#")
            there = page.parent / place if place else page
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), f"{target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_that_a_page_names_are_there(page: Path) -> None:
    """Those of a folder, in lower case, so no placeholders; docs/adding-*.md name the files of their examples too."""
    files = {f"/{path.relative_to(ROOT).as_posix()}" for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")}
    for name in re.findall(r"`([a-z0-9_./]+/[a-z0-9_]+\.py)`", unfenced(page)):
        assert any(file.endswith(f"/{name}") for file in files) or page.name.startswith("adding-"), name


def unfenced(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """What the headings of a page are linked by, as GitHub names them: lower case, without punctuation, dashes for spaces."""
    headings = [heading.replace("`", "") for heading in re.findall(r"^#+ (.+)$", unfenced(page), flags=re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_no_heading_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# A page\n\n[1](#a-page) [2](other.md#what-it-is-not)\n")
    (tmp_path / "other.md").write_text("## What it is, not\n\n```\n# no heading\n```\n")
    test_links_lead_somewhere(tmp_path / "page.md")
    for wrong in ("[3](other.md#no-heading)", "[3](#b-page)", "[3](none.md)"):
        (tmp_path / "page.md").write_text(f"# A page\n\n{wrong}\n")
        with pytest.raises(AssertionError):
            test_links_lead_somewhere(tmp_path / "page.md")
